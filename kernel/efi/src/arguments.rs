//! The command line of the firmware's shell, and dates.

use core::ffi::c_void;
use core::ptr::null_mut;
use heapless::String;
use r_efi::efi::{Handle, OPEN_PROTOCOL_GET_PROTOCOL, Status, SystemTable};
use r_efi::protocols::loaded_image;

/// Returns the words after the program's name. A longer text is cut.
///
/// # Safety
/// `image` and `table` are the arguments of the program's entry, or null.
pub(crate) unsafe fn of_program<const N: usize>(image: Handle, table: *mut SystemTable) -> String<N> {
    if table.is_null() {
        return String::new();
    }
    let (mut guid, mut program): (_, *mut c_void) = (loaded_image::PROTOCOL_GUID, null_mut());
    // SAFETY: the caller's promise; the arguments are values and local variables.
    let status = unsafe {
        ((*(*table).boot_services).open_protocol)(
            image,
            &raw mut guid,
            &raw mut program,
            image,
            null_mut(),
            OPEN_PROTOCOL_GET_PROTOCOL,
        )
    };
    let program = program.cast::<loaded_image::Protocol>();
    if status != Status::SUCCESS || program.is_null() {
        return String::new();
    }
    // SAFETY: the firmware's description of this program.
    let (options, bytes) = unsafe { ((*program).load_options.cast::<u16>(), (*program).load_options_size) };
    let count = if options.is_null() { 0 } else { bytes as usize / 2 };
    // SAFETY: as many units, which may lie at any byte.
    after_name((0..count).map(|index| unsafe { options.add(index).read_unaligned() }))
}

/// Returns the text after the first word, which ends before a zero.
fn after_name<const N: usize>(units: impl Iterator<Item = u16>) -> String<N> {
    let chars = char::decode_utf16(units.take_while(|unit| *unit != 0)).map(|char| char.unwrap_or('?'));
    let words = chars.skip_while(|char| !char.is_ascii_whitespace());
    let mut text = String::new();
    for char in words.skip_while(char::is_ascii_whitespace) {
        if text.push(char).is_err() {
            break;
        }
    }
    text
}

/// Returns the seconds since 1970 of a date and a time, or `None` if it is no date.
pub(crate) fn seconds([year, month, day]: [u16; 3], [hour, minute, second]: [u8; 3]) -> Option<u64> {
    const BEFORE_MONTH: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let before = BEFORE_MONTH.get(usize::from(month.checked_sub(1)?))?;
    let is_date = (1..=31).contains(&day) && hour < 24 && minute < 60 && second < 60;
    // Years before this one, or with it from March on, that may have a day more.
    let since = u64::from(year).checked_sub(1970)?;
    let years = u64::from(year) - u64::from(month < 3);
    let leaps = |years: u64| years / 4 - years / 100 + years / 400;
    let days = since * 365 + leaps(years).checked_sub(leaps(1969))?;
    let days = days + before + u64::from(day) - 1;
    is_date.then_some(((days * 24 + u64::from(hour)) * 60 + u64::from(minute)) * 60 + u64::from(second))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn words_after_the_name_are_the_arguments() {
        let text = |line: &str| after_name::<16>(line.encode_utf16().collect::<Vec<_>>().into_iter());
        assert_eq!(text("bootset.efi  ip=1.2.3.4 x\0yz").as_str(), "ip=1.2.3.4 x");
        assert_eq!(text("bootset.efi").as_str(), "");
        assert_eq!(text("").as_str(), "");
        assert_eq!(text("a 0123456789abcdefg").as_str(), "0123456789abcdef", "cut");
    }

    #[test]
    fn dates_become_seconds() {
        assert_eq!(seconds([1970, 1, 1], [0, 0, 0]), Some(0));
        assert_eq!(seconds([2000, 2, 29], [12, 0, 0]), Some(951_825_600));
        assert_eq!(seconds([2026, 11, 28], [13, 50, 1]), Some(1_795_873_801));
        for date in [[0, 1, 1], [1969, 12, 31], [2024, 0, 1], [2024, 13, 1], [2024, 1, 0]] {
            assert_eq!(seconds(date, [0, 0, 0]), None, "{date:?}");
        }
        assert_eq!(seconds([2024, 1, 1], [24, 0, 0]), None);
    }
}

//! The firmware's console.

use core::fmt;
use core::ptr::NonNull;
use r_efi::efi::SystemTable;
use r_efi::protocols::simple_text_output::Protocol;

/// UTF-16 units that go to the firmware in one call, with the zero at the end.
const UNITS: usize = 128;

/// Text output of the firmware. Machines without one are silent.
#[derive(Clone, Copy, Debug)]
pub struct Console(Option<NonNull<Protocol>>);

impl Console {
    /// The console of the machine.
    ///
    /// # Safety
    /// 1. `table` is the argument of the program's entry.
    /// 2. The console is not used after `ExitBootServices`.
    #[must_use]
    pub unsafe fn new(table: *mut SystemTable) -> Self {
        // SAFETY: the caller's first promise.
        Self(NonNull::new(table).and_then(|table| NonNull::new(unsafe { (*table.as_ptr()).con_out })))
    }

    fn show(&self, units: &mut [u16]) {
        debug_assert!(units.last() == Some(&0));
        if let Some(protocol) = self.0 {
            let protocol = protocol.as_ptr();
            // SAFETY: the firmware's protocol, and text with a zero at its end. An error means that
            // the console cannot show a character.
            let _ = unsafe { ((*protocol).output_string)(protocol, units.as_mut_ptr()) };
        }
    }
}

impl fmt::Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut units = [0; UNITS];
        let mut len = 0;
        for char in text.chars() {
            // At most two units for a character, and two for the end of a line.
            if len > UNITS - 3 {
                self.show(&mut units[..=len]);
                units = [0; UNITS];
                len = 0;
            }
            if char == '\n' {
                units[len] = u16::from(b'\r');
                len += 1;
            }
            len += char.encode_utf16(&mut units[len..]).len();
        }
        if len > 0 {
            self.show(&mut units[..=len]);
        }
        Ok(())
    }
}

//! The variable with the settings of `rdmaboot.efi`.

use core::ptr::null_mut;
use heapless::String;
use r_efi::efi::{Guid, Status, SystemTable, VARIABLE_BOOTSERVICE_ACCESS, VARIABLE_NON_VOLATILE};

/// Vendor and name of the variable: one line of ASCII text.
const VENDOR: Guid =
    Guid::from_fields(0x5a1d_6c3e, 0x7f42, 0x4b90, 0x8d, 0x11, &[0x52, 0x64, 0x6d, 0x61, 0x42, 0x74]);
const NAME: &str = "RdmaBoot";
/// Longest line, in bytes: addresses, names, and the command line of a kernel.
pub const MAX_LEN: usize = 1024;

fn name() -> [u16; NAME.len() + 1] {
    let mut units = [0; NAME.len() + 1];
    units.iter_mut().zip(NAME.encode_utf16()).for_each(|(unit, char)| *unit = char);
    units
}

/// Returns the line. `None` if the variable does not exist, is longer, or is no text.
///
/// # Safety
/// `table` is the argument of the program's entry, or null.
pub unsafe fn read(table: *mut SystemTable) -> Option<String<MAX_LEN>> {
    // SAFETY: the caller's promise.
    let services = (!table.is_null()).then(|| unsafe { (*table).runtime_services })?;
    let (mut name, mut vendor, mut bytes, mut len) = (name(), VENDOR, [0_u8; MAX_LEN], MAX_LEN);
    // SAFETY: the firmware's function; local variables, and a buffer of `len` bytes.
    let status = unsafe {
        ((*services).get_variable)(
            name.as_mut_ptr(),
            &raw mut vendor,
            null_mut(),
            &raw mut len,
            bytes.as_mut_ptr().cast(),
        )
    };
    let bytes = (status == Status::SUCCESS).then(|| bytes.get(..len))??;
    // The shell's `setvar` may add a zero.
    let text = core::str::from_utf8(bytes).ok()?.trim_end_matches('\0');
    String::try_from(text).ok()
}

/// Writes the line; an empty one deletes the variable.
///
/// # Errors
/// The firmware's status.
///
/// # Safety
/// As [`read`].
pub unsafe fn write(table: *mut SystemTable, line: &str) -> Result<(), Status> {
    if table.is_null() {
        return Err(Status::UNSUPPORTED);
    }
    if line.len() > MAX_LEN {
        return Err(Status::BAD_BUFFER_SIZE);
    }
    let (mut name, mut vendor) = (name(), VENDOR);
    // SAFETY: the firmware's function; local variables, and `line`, which it does not change.
    let status = unsafe {
        ((*(*table).runtime_services).set_variable)(
            name.as_mut_ptr(),
            &raw mut vendor,
            VARIABLE_NON_VOLATILE | VARIABLE_BOOTSERVICE_ACCESS,
            line.len(),
            line.as_ptr().cast_mut().cast(),
        )
    };
    match status {
        Status::SUCCESS => Ok(()),
        Status::NOT_FOUND if line.is_empty() => Ok(()),
        status => Err(status),
    }
}

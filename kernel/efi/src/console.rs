//! The firmware's console.

use core::fmt;
use core::ptr::NonNull;
use r_efi::efi::{Status, SystemTable};
use r_efi::protocols::simple_text_input::{self, InputKey};
use r_efi::protocols::simple_text_output::Protocol;

/// UTF-16 units that go to the firmware in one call, with the zero at the end.
const UNITS: usize = 128;

/// Scan code of the escape key (UEFI 2.11, table 12.1).
const ESCAPE: u16 = 0x17;

/// Text output and keys of the firmware. Machines without a console are silent.
#[derive(Clone, Copy, Debug)]
pub struct Console {
    output: Option<NonNull<Protocol>>,
    input: Option<NonNull<simple_text_input::Protocol>>,
}

impl Console {
    /// The console of the machine.
    ///
    /// # Safety
    /// 1. `table` is the argument of the program's entry.
    /// 2. The console is not used after `ExitBootServices`.
    #[must_use]
    pub unsafe fn new(table: *mut SystemTable) -> Self {
        let Some(table) = NonNull::new(table) else { return Self { output: None, input: None } };
        // SAFETY: the caller's first promise.
        let (output, input) = unsafe { ((*table.as_ptr()).con_out, (*table.as_ptr()).con_in) };
        Self { output: NonNull::new(output), input: NonNull::new(input) }
    }

    /// Returns whether the escape key was pressed. Other keys are dropped.
    #[must_use]
    pub fn escaped(self) -> bool {
        let Some(input) = self.input else { return false };
        let input = input.as_ptr();
        let mut key = InputKey { scan_code: 0, unicode_char: 0 };
        // SAFETY: the firmware's protocol, and a local variable.
        let status = unsafe { ((*input).read_key_stroke)(input, &raw mut key) };
        status == Status::SUCCESS && key.scan_code == ESCAPE
    }

    fn show(&self, units: &mut [u16]) {
        debug_assert!(units.last() == Some(&0));
        if let Some(protocol) = self.output {
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

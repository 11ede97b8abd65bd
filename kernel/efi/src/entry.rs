//! From the firmware's entry to a program in safe code, and its end.

use crate::console::Console;
use crate::file::File;
use core::fmt::{self, Write};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use platform_uefi::{Clock, Device, Error, Firmware, Function};
use r_efi::efi::{Handle, Status, SystemTable};

/// Bytes of a program's stack. The self-test takes 77 KiB, firmware calls come on top of it.
const STACK: usize = 256 << 10;

/// Arguments of the program's entry, for the panic handler.
static IMAGE: AtomicPtr<core::ffi::c_void> = AtomicPtr::new(null_mut());
static TABLE: AtomicPtr<SystemTable> = AtomicPtr::new(null_mut());
/// The open device, for the panic handler.
static DEVICE: AtomicPtr<Device> = AtomicPtr::new(null_mut());

/// A program's view of the machine.
#[derive(Debug)]
pub struct Program {
    firmware: Firmware,
    console: Console,
    file: Option<File>,
}

impl Program {
    /// Runs `work` with a report in the file `name` beside the program, on a stack of its own.
    ///
    /// # Safety
    /// `image` and `table` are the arguments of the program's entry.
    pub unsafe fn run(
        image: Handle,
        table: *mut SystemTable,
        name: &str,
        work: impl FnOnce(&mut Self) -> Status,
    ) -> Status {
        IMAGE.store(image, Ordering::Relaxed);
        TABLE.store(table, Ordering::Relaxed);
        // SAFETY: the caller's promise; a program ends before `ExitBootServices`.
        let (firmware, console) = unsafe { (Firmware::new(image, table), Console::new(table)) };
        let Some(firmware) = firmware else { return Status::UNSUPPORTED };
        // The boot manager resets the machine five minutes after it has started a program.
        firmware.disable_watchdog();
        // SAFETY: as above.
        let file = unsafe { File::beside_program(image, table, name) };
        let mut program = Self { firmware, console, file };
        match &program.file {
            Some(_) => program.line(format_args!("report: {name}, beside this program")),
            None => {
                program.line(format_args!("report: only here; this program's file system cannot be written"))
            }
        }
        let done = firmware.on_stack(STACK, || work(&mut program));
        match done {
            Ok((status, used)) => {
                program.line(format_args!("@stack used={used} bytes={STACK}"));
                status
            }
            Err(error) => {
                program.line(format_args!("error: {error}"));
                Status::OUT_OF_RESOURCES
            }
        }
    }

    /// The firmware.
    #[must_use]
    pub fn firmware(&self) -> Firmware {
        self.firmware
    }

    /// Writes a line to console and report.
    pub fn line(&mut self, line: fmt::Arguments<'_>) {
        let _ = writeln!(self.console, "{line}");
        if let Some(file) = &mut self.file {
            // The end of a line as firmware's editor and other systems have it.
            let _ = write!(file, "{line}\r\n");
            file.flush();
        }
    }

    /// Opens a card, lets `work` use it, and closes it.
    ///
    /// # Errors
    /// As [`Device::open`].
    pub fn with_device<R>(
        &mut self,
        function: &Function,
        clock: Clock,
        work: impl FnOnce(&mut Self, &Device) -> R,
    ) -> Result<R, Error> {
        let device = Device::open(self.firmware, function, clock)?;
        DEVICE.store((&raw const device).cast_mut(), Ordering::Relaxed);
        let result = work(self, &device);
        DEVICE.store(null_mut(), Ordering::Relaxed);
        device.close();
        Ok(result)
    }
}

/// Ends the program after a panic: shows it, closes the open device, and returns to the firmware.
pub fn abort(message: fmt::Arguments<'_>) -> ! {
    let (image, table) = (IMAGE.load(Ordering::Relaxed), TABLE.load(Ordering::Relaxed));
    // SAFETY: the arguments of the program's entry, or null.
    let mut console = unsafe { Console::new(table) };
    let _ = writeln!(console, "error: {message}");
    let device = DEVICE.swap(null_mut(), Ordering::Relaxed);
    if !device.is_null() {
        // SAFETY: `with_device` has put it there and has not returned: its frame is still there,
        // and is never used again.
        unsafe { device.read() }.close();
    }
    if !table.is_null() {
        // SAFETY: as above. The call unloads the program from any depth of calls.
        let _ = unsafe { ((*(*table).boot_services).exit)(image, Status::ABORTED, 0, null_mut()) };
    }
    loop {
        core::hint::spin_loop();
    }
}

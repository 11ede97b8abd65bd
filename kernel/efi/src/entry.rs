//! From the firmware's entry to a program or driver in safe code, and its end.

use crate::arguments;
use crate::console::Console;
use crate::file::File;
use crate::variable;
use core::fmt::{self, Write};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use heapless::String;
use platform_uefi::{BootOption, Clock, Device, Error, Firmware, Function};
use r_efi::efi::{Handle, Status, SystemTable};

/// Bytes of a program's stack. The self-test takes 77 KiB, firmware calls come on top of it.
pub(crate) const STACK: usize = 256 << 10;

/// Arguments of the program's entry, for the panic handler.
static IMAGE: AtomicPtr<core::ffi::c_void> = AtomicPtr::new(null_mut());
static TABLE: AtomicPtr<SystemTable> = AtomicPtr::new(null_mut());
/// The open device, for the panic handler.
static DEVICE: AtomicPtr<Device> = AtomicPtr::new(null_mut());

/// The entry of a UEFI program, its panic handler, and what a host has in their place.
///
/// - `start!(program(REPORT, WORK))`: [`Program::run`] with these arguments.
/// - `start!(driver(OPTION))`: [`drive`] with this boot option.
#[macro_export]
macro_rules! start {
    (program($report:expr, $work:expr)) => {
        $crate::start!(image, table, {
            let (report, work): (Option<&str>, fn(&mut $crate::entry::Program) -> _) = ($report, $work);
            // SAFETY: the arguments of the entry.
            unsafe { $crate::entry::Program::run(image, table, report, work) }
        });
    };
    (driver($option:ty)) => {
        $crate::start!(image, table, {
            // SAFETY: the arguments of the entry.
            unsafe { $crate::entry::drive::<$option>(image, table) }
        });
    };
    ($image:ident, $table:ident, $run:block) => {
        /// The firmware's entry.
        ///
        /// # Safety
        /// Only firmware calls it.
        #[cfg(target_os = "uefi")]
        #[unsafe(no_mangle)]
        pub unsafe extern "efiapi" fn efi_main(
            $image: ::r_efi::efi::Handle,
            $table: *mut ::r_efi::efi::SystemTable,
        ) -> ::r_efi::efi::Status {
            $run
        }

        #[cfg(target_os = "uefi")]
        #[panic_handler]
        fn panic(info: &::core::panic::PanicInfo<'_>) -> ! {
            $crate::entry::abort(::core::format_args!("{info}"))
        }

        #[cfg(not(target_os = "uefi"))]
        fn main() {
            eprintln!("this is a UEFI program: cargo build --release -p efi --target x86_64-unknown-uefi");
        }
    };
}

/// A program's view of the machine.
#[derive(Debug)]
pub struct Program {
    firmware: Firmware,
    console: Console,
    file: Option<File>,
}

impl Program {
    /// Runs `work` on a stack of its own; with a name, it has a report in this file beside the program.
    ///
    /// # Safety
    /// `image` and `table` are the arguments of the program's entry.
    pub unsafe fn run(
        image: Handle,
        table: *mut SystemTable,
        name: Option<&str>,
        work: impl FnOnce(&mut Self) -> Status,
    ) -> Status {
        remember(image, table);
        // SAFETY: the caller's promise; a program ends before `ExitBootServices`.
        let (firmware, console) = unsafe { (Firmware::new(image, table), Console::new(table)) };
        let Some(firmware) = firmware else { return Status::UNSUPPORTED };
        // The boot manager resets the machine five minutes after it has started a program.
        firmware.disable_watchdog();
        // SAFETY: as above.
        let file = name.and_then(|name| unsafe { File::beside_program(image, table, name) });
        let mut program = Self { firmware, console, file };
        match (name, &program.file) {
            (Some(name), Some(_)) => program.line(format_args!("report: {name}, beside this program")),
            (Some(_), None) => {
                program.line(format_args!("report: only here; this program's file system cannot be written"))
            }
            (None, _) => {}
        }
        let done = firmware.on_stack(STACK, || work(&mut program));
        match done {
            Ok((status, used)) => {
                if name.is_some() {
                    program.line(format_args!("@stack used={used} bytes={STACK}"));
                }
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
        Ok(using(device, |device| work(self, device)))
    }
}

fn remember(image: Handle, table: *mut SystemTable) {
    IMAGE.store(image, Ordering::Relaxed);
    TABLE.store(table, Ordering::Relaxed);
}

/// Makes the program a driver with this boot option. Its functions may call [`console`], [`settings`] and [`seconds`].
///
/// # Safety
/// `image` and `table` are the arguments of the program's entry.
pub unsafe fn drive<O: BootOption>(image: Handle, table: *mut SystemTable) -> Status {
    remember(image, table);
    // SAFETY: the caller's promise.
    unsafe { platform_uefi::install::<O>(image, table) }
}

/// Lets `work` use an open device, and closes it.
pub fn using<R>(device: Device, work: impl FnOnce(&Device) -> R) -> R {
    DEVICE.store((&raw const device).cast_mut(), Ordering::Relaxed);
    let result = work(&device);
    DEVICE.store(null_mut(), Ordering::Relaxed);
    device.close();
    result
}

/// The firmware's console, of a driver. Silent before the driver's entry.
#[must_use]
pub fn console() -> Console {
    // SAFETY: the argument of the entry, or null; drivers are not called after `ExitBootServices`.
    unsafe { Console::new(TABLE.load(Ordering::Relaxed)) }
}

/// The settings of `rdmaboot.efi`: one line, or nothing.
#[must_use]
pub fn settings() -> Option<String<{ variable::MAX_LEN }>> {
    // SAFETY: as above.
    unsafe { variable::read(TABLE.load(Ordering::Relaxed)) }
}

/// Changes the settings of `rdmaboot.efi`; an empty line deletes them.
///
/// # Errors
/// The firmware's status.
pub fn set_settings(line: &str) -> Result<(), Status> {
    // SAFETY: as above.
    unsafe { variable::write(TABLE.load(Ordering::Relaxed), line) }
}

/// The words after the program's name on the command line of the firmware's shell. A text that is longer than settings may be is cut
/// there, so that they are refused.
#[must_use]
pub fn arguments() -> String<{ variable::MAX_LEN + 1 }> {
    // SAFETY: as above.
    unsafe { arguments::of_program(IMAGE.load(Ordering::Relaxed), TABLE.load(Ordering::Relaxed)) }
}

/// Seconds since 1970 by the machine's clock, whatever its time zone. `None` without a clock.
#[must_use]
pub fn seconds() -> Option<u64> {
    let table = TABLE.load(Ordering::Relaxed);
    // SAFETY: the argument of the entry, or null.
    let services = (!table.is_null()).then(|| unsafe { (*table).runtime_services })?;
    let mut time = core::mem::MaybeUninit::<r_efi::efi::Time>::uninit();
    // SAFETY: the firmware's function, and a local variable.
    let status = unsafe { ((*services).get_time)(time.as_mut_ptr(), null_mut()) };
    // SAFETY: the firmware has written it.
    let time = (status == Status::SUCCESS).then(|| unsafe { time.assume_init() })?;
    arguments::seconds([time.year, time.month.into(), time.day.into()], [time.hour, time.minute, time.second])
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

//! The firmware's functions, as the driver's platform.

use crate::text::Text;
use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int, c_uint, c_void};
use core::fmt;
use core::ptr::NonNull;
use driver_mlx::{DmaRegion, HostRegion, Instant, MapError, MmioBar, Platform};

/// What memory is given in.
pub(crate) const PAGE: usize = 4096;

/// `struct mlx_platform`. What a function gets first is `context`. Those from `say` on may be null.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MlxPlatform {
    /// The firmware's own.
    pub context: *mut c_void,
    /// BAR0 of the HCA, mapped uncached for good, and its length.
    pub bar: Option<unsafe extern "C" fn(*mut c_void, *mut usize) -> *mut c_void>,
    /// Whole pages of memory that nobody else uses, for good. The HCA reaches them, coherently, at the address that is stored; where
    /// there is nowhere to store one, it must not reach them.
    pub memory: Option<unsafe extern "C" fn(*mut c_void, usize, *mut u64) -> *mut c_void>,
    /// Nanoseconds, of a clock that never goes back.
    pub now: Option<unsafe extern "C" fn(*mut c_void) -> u64>,
    /// Waits for an interrupt of the HCA's or until then, for ever with the largest number; may come back early.
    pub idle: Option<unsafe extern "C" fn(*mut c_void, u64)>,
    /// The library is at its end by a mistake of its own: the HCA is to be stopped. Does not come back.
    pub panic: Option<unsafe extern "C" fn(*mut c_void, *const c_char, usize)>,
    /// Says something to people.
    pub say: Option<unsafe extern "C" fn(*mut c_void, *const c_char, usize)>,
    /// Makes memory of the firmware's own visible to the HCA; 0, and stores its device address.
    pub map: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, usize, *mut u64) -> c_int>,
    /// Ends that.
    pub unmap: Option<unsafe extern "C" fn(*mut c_void, u64, usize)>,
    /// A dword of the function's configuration space.
    pub read_config: Option<unsafe extern "C" fn(*mut c_void, c_uint) -> u32>,
    /// The same, written.
    pub write_config: Option<unsafe extern "C" fn(*mut c_void, c_uint, u32)>,
}

/// `struct mlx_config`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MlxConfig {
    /// The port's IPv4 address, in the order of the network.
    pub address: u32,
    /// Random bits.
    pub seed: [u64; 2],
    /// Grows from boot to boot: the wall clock in nanoseconds, or 0.
    pub boot: u64,
    /// Bytes of memory that the HCA reaches; 0 for 64 MiB.
    pub dma_length: usize,
}

// As the header lays them out; a test in C has the same numbers.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<MlxPlatform>() == 88 && size_of::<MlxConfig>() == 40);

/// The same with all that has to be there.
#[derive(Clone, Copy)]
pub struct Firmware {
    given: MlxPlatform,
    registers: MmioBar,
    memory: unsafe extern "C" fn(*mut c_void, usize, *mut u64) -> *mut c_void,
    now: unsafe extern "C" fn(*mut c_void) -> u64,
    idle: unsafe extern "C" fn(*mut c_void, u64),
}

// SAFETY: the firmware's functions are called by one thread at a time, which the node sees to.
unsafe impl Send for Firmware {}

impl Firmware {
    /// A platform with all that has to be there.
    ///
    /// # Errors
    /// Which function is missing, or gives no registers.
    ///
    /// # Safety
    /// As `<mlx/firmware.h>` says of the functions.
    pub(crate) unsafe fn new(given: MlxPlatform) -> Result<Self, &'static str> {
        let MlxPlatform { context, bar, memory, now, idle, panic, .. } = given;
        let (Some(bar), Some(memory), Some(now), Some(idle), Some(_)) = (bar, memory, now, idle, panic)
        else {
            return Err("a function is missing: bar, memory, now, idle and panic have to be there");
        };
        let mut len = 0;
        // SAFETY: this function's contract.
        let base = unsafe { bar(context, &mut len) };
        let base = NonNull::new(base.cast()).ok_or("bar: there are no registers")?;
        // SAFETY: as above: what it says stays mapped.
        let registers = unsafe { MmioBar::new(base, len) };
        let registers = registers
            .ok_or("bar: the length of the registers is a power of two, and they are aligned to 8")?;
        Ok(Self { given, registers, memory, now, idle })
    }

    /// What the firmware gave.
    pub(crate) fn given(&self) -> &MlxPlatform {
        &self.given
    }

    /// Memory for the HCA, and the driver's own beside it.
    pub(crate) fn memory(&self, dma_len: usize) -> Option<Memory> {
        let mut device_address = 0;
        // SAFETY: the firmware's function.
        let dma = unsafe { (self.memory)(self.given.context, dma_len, &mut device_address) };
        let dma = NonNull::new(dma)?.as_ptr().cast();
        let own_len = (dma_len / 4).next_multiple_of(PAGE);
        // SAFETY: as above.
        let own = unsafe { (self.memory)(self.given.context, own_len, core::ptr::null_mut()) };
        Some(Memory { dma, device_address, dma_len, own: own.cast(), own_len })
    }
}

impl MlxPlatform {
    /// Says something to people.
    pub(crate) fn say(&self, what: &dyn fmt::Display) {
        if let Some(say) = self.say {
            let text = Text::of(what);
            // SAFETY: the firmware's function, with a text of that length.
            unsafe { say(self.context, text.bytes().as_ptr().cast(), text.bytes().len()) };
        }
    }
}

/// What the firmware gave for good: one device after the other has it.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    dma: *mut u8,
    device_address: u64,
    pub(crate) dma_len: usize,
    own: *mut u8,
    own_len: usize,
}

impl Memory {
    /// The same for a device. None if it is not as it has to be.
    ///
    /// # Safety
    /// No device has it, and it is nobody else's.
    pub(crate) unsafe fn regions(&self) -> Option<(DmaRegion, HostRegion)> {
        // SAFETY: this function's contract.
        unsafe {
            let dma = DmaRegion::new(self.dma, self.device_address, self.dma_len);
            dma.zip(HostRegion::new(self.own, self.own_len))
        }
    }
}

impl Platform for Firmware {
    type Bar = MmioBar;

    fn bar(&self) -> MmioBar {
        self.registers
    }

    fn uar_write_combining(&self, _: usize, _: usize) -> Option<MmioBar> {
        None
    }

    fn now(&self) -> Instant {
        // SAFETY: the firmware's function.
        Instant::from_nanos(unsafe { (self.now)(self.given.context) })
    }

    fn idle(&self, deadline: Instant) {
        // The library's own way to take interrupts without a wait, for which a firmware has no need.
        if deadline <= self.now() {
            return;
        }
        // SAFETY: the firmware's function.
        unsafe { (self.idle)(self.given.context, deadline.as_nanos()) };
    }

    fn map(&self, va: usize, len: usize) -> Result<u64, MapError> {
        let map = self.given.map.ok_or(MapError::Unsupported)?;
        let mut device_address = 0;
        let memory = core::ptr::with_exposed_provenance_mut(va);
        // SAFETY: the firmware's function.
        match unsafe { map(self.given.context, memory, len, &mut device_address) } {
            0 => Ok(device_address),
            _ => Err(MapError::BadAddress),
        }
    }

    fn unmap(&self, device_address: u64, len: usize) {
        if let Some(unmap) = self.given.unmap {
            // SAFETY: the firmware's function.
            unsafe { unmap(self.given.context, device_address, len) };
        }
    }

    fn read_config(&self, offset: u16) -> Option<u32> {
        // SAFETY: the firmware's function.
        self.given.read_config.map(|read| unsafe { read(self.given.context, offset.into()) })
    }

    fn write_config(&self, offset: u16, value: u32) {
        if let Some(write) = self.given.write_config {
            // SAFETY: the firmware's function.
            unsafe { write(self.given.context, offset.into(), value) };
        }
    }
}

/// Whom a panic is told. Written before anything can panic, and read at the end only.
struct Last(UnsafeCell<Option<MlxPlatform>>);

// SAFETY: one thread at a time calls the library.
unsafe impl Sync for Last {}

static LAST: Last = Last(UnsafeCell::new(None));

/// Panics are told to this platform from now on.
pub(crate) fn tell_panics(given: MlxPlatform) {
    // SAFETY: one thread at a time, and nothing refers to it.
    unsafe { *LAST.0.get() = Some(given) };
}

/// The end.
#[cfg(target_os = "none")]
pub(crate) fn stop(info: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: nothing else runs any more.
    if let Some(given) = unsafe { *LAST.0.get() }
        && let Some(panic) = given.panic
    {
        let text = Text::of(info);
        // SAFETY: the firmware's function, with a text of that length.
        unsafe { panic(given.context, text.bytes().as_ptr().cast(), text.bytes().len()) };
    }
    loop {
        core::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    static IDLED: AtomicU64 = AtomicU64::new(0);

    unsafe extern "C" fn bar(_: *mut c_void, len: *mut usize) -> *mut c_void {
        static REGISTERS: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];
        // SAFETY: the library's place for it.
        unsafe { *len = size_of_val(&REGISTERS) };
        REGISTERS.as_ptr().cast_mut().cast()
    }
    unsafe extern "C" fn memory(_: *mut c_void, _: usize, _: *mut u64) -> *mut c_void {
        core::ptr::null_mut()
    }
    unsafe extern "C" fn now(_: *mut c_void) -> u64 {
        1000
    }
    unsafe extern "C" fn idle(_: *mut c_void, until: u64) {
        IDLED.store(until, Ordering::Relaxed);
    }
    unsafe extern "C" fn panic(_: *mut c_void, _: *const c_char, _: usize) {}

    const GIVEN: MlxPlatform = MlxPlatform {
        context: core::ptr::null_mut(),
        bar: Some(bar),
        memory: Some(memory),
        now: Some(now),
        idle: Some(idle),
        panic: Some(panic),
        say: None,
        map: None,
        unmap: None,
        read_config: None,
        write_config: None,
    };

    #[test]
    fn nobody_idles_until_what_is_past() {
        // SAFETY: functions as they should be.
        let firmware = unsafe { Firmware::new(GIVEN) }.ok().unwrap();
        for past in [Instant::ORIGIN, Instant::from_nanos(999), Instant::from_nanos(1000)] {
            firmware.idle(past);
            assert_eq!(IDLED.load(Ordering::Relaxed), 0);
        }
        firmware.idle(Instant::MAX);
        assert_eq!(IDLED.load(Ordering::Relaxed), u64::MAX);
    }
}

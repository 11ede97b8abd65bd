//! The driver's platform, built on the firmware's functions.

use crate::abi::MlxPlatform;
use crate::function::PciFunction;
use crate::memory::{Given, Source};
use crate::registers::{Registers, registers};
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::ptr::NonNull;
use driver_mlx::{DeviceState, Duration, Instant, MapError, Platform};

/// The firmware's functions. The mandatory ones are present.
#[derive(Clone, Copy)]
pub struct Firmware {
    given: MlxPlatform,
    registers: Registers,
    function: PciFunction,
    memory: Source,
    now: unsafe extern "C" fn(*mut c_void) -> u64,
    idle: unsafe extern "C" fn(*mut c_void, u64),
}

// SAFETY: the node calls the firmware's functions from one thread at a time.
unsafe impl Send for Firmware {}

impl Firmware {
    /// Checks that all mandatory functions are present.
    ///
    /// # Errors
    /// The missing function, or `bar` without registers.
    ///
    /// # Safety
    /// The functions are as `<mlx/firmware.h>` requires.
    pub(crate) unsafe fn new(given: MlxPlatform) -> Result<Self, &'static str> {
        let MlxPlatform { context, bar, memory, now, idle, panic, .. } = given;
        let (Some(bar), Some(memory), Some(now), Some(idle), Some(_)) = (bar, memory, now, idle, panic)
        else {
            return Err("a function is missing: bar, memory, now, idle and panic have to be there");
        };
        let mut len = 0;
        // SAFETY: this function's contract.
        let base = unsafe { bar(context, &mut len) };
        let base = NonNull::new(base.cast()).ok_or("bar: returned no registers")?;
        // SAFETY: this function's contract: the registers stay mapped.
        let registers = unsafe { registers(base, len) };
        let registers = registers
            .ok_or("bar: the length of the registers is a power of two, and they are aligned to 8")?;
        let function = PciFunction::new(&given)?;
        Ok(Self { given, registers, function, memory, now, idle })
    }

    /// Returns the firmware's functions.
    pub(crate) fn given(&self) -> &MlxPlatform {
        &self.given
    }

    /// Requests memory: `dma_len` bytes for the HCA, and the driver's own.
    pub(crate) fn memory(&self, dma_len: usize) -> Option<Given> {
        Given::ask(&self.given, self.memory, dma_len)
    }

    /// Returns whether the function is physical, so that it owns its port's settings. Without
    /// configuration space it counts as physical.
    pub(crate) fn is_physical(&self) -> bool {
        !self.function.is_virtual()
    }

    /// Returns whether another driver seems to have left the HCA running:
    /// [`DeviceState::left_running`].
    pub(crate) fn is_left_running(&self) -> bool {
        DeviceState::read(self.registers).is_some_and(|state| state.left_running())
    }

    /// Enables bus mastering if the library can switch it. Otherwise the firmware has enabled it.
    /// Returns whether bus mastering is on, and true if the firmware is responsible.
    pub(crate) fn let_master_bus(&self) -> bool {
        !self.function.has_bus_master() || self.function.set_bus_master(true)
    }

    fn wait(&self, time: Duration) {
        let end = Platform::now(self) + time;
        while Platform::now(self) < end {
            Platform::idle(self, end);
        }
    }
}

impl Platform for Firmware {
    type Bar = Registers;

    fn bar(&self) -> Registers {
        self.registers
    }

    fn uar_write_combining(&self, _: usize, _: usize) -> Option<Registers> {
        None
    }

    fn now(&self) -> Instant {
        // SAFETY: the firmware's function.
        Instant::from_nanos(unsafe { (self.now)(self.given.context) })
    }

    fn idle(&self, deadline: Instant) {
        // A deadline in the past only drains interrupt flags; firmware keeps none.
        if deadline <= self.now() {
            return;
        }
        // SAFETY: the firmware's function.
        unsafe { (self.idle)(self.given.context, deadline.as_nanos()) };
    }

    unsafe fn map(&self, va: usize, len: usize, writable: bool) -> Result<u64, MapError> {
        let map = self.given.map.ok_or(MapError::Unsupported)?;
        let mut device_address = 0;
        let memory = core::ptr::with_exposed_provenance_mut(va);
        // SAFETY: the firmware's function.
        match unsafe { map(self.given.context, memory, len, writable.into(), &mut device_address) } {
            0 => Ok(device_address),
            _ => Err(MapError::BadAddress),
        }
    }

    unsafe fn unmap(&self, device_address: u64, len: usize) {
        if let Some(unmap) = self.given.unmap {
            // SAFETY: the firmware's function.
            unsafe { unmap(self.given.context, device_address, len) };
        }
    }

    fn read_config(&self, offset: u16) -> Option<u32> {
        // SAFETY: the firmware's function.
        self.given.read_config.map(|read| unsafe { read(self.given.context, offset.into()) })
    }

    unsafe fn write_config(&self, offset: u16, value: u32) {
        if let Some(write) = self.given.write_config {
            // SAFETY: the firmware's function.
            unsafe { write(self.given.context, offset.into(), value) };
        }
    }

    unsafe fn reset_function(&self) -> bool {
        self.function.reset(|time| self.wait(time))
    }

    unsafe fn restore_function(&self) {
        self.function.restore();
    }

    unsafe fn set_bus_master(&self, on: bool) -> bool {
        self.function.set_bus_master(on)
    }

    fn dma_is_coherent(&self) -> bool {
        self.given.sync_for_device.is_none() && self.given.sync_for_cpu.is_none()
    }

    unsafe fn sync_for_device(&self, va: usize, len: usize) {
        if let Some(sync) = self.given.sync_for_device {
            // SAFETY: the firmware's function, with memory that was registered.
            unsafe { sync(self.given.context, core::ptr::with_exposed_provenance_mut(va), len) };
        }
    }

    unsafe fn sync_for_cpu(&self, va: usize, len: usize) {
        if let Some(sync) = self.given.sync_for_cpu {
            // SAFETY: as above.
            unsafe { sync(self.given.context, core::ptr::with_exposed_provenance_mut(va), len) };
        }
    }
}

/// Platform that panics are reported to. Written before any code can panic, and read only at the
/// end.
struct Last(UnsafeCell<Option<MlxPlatform>>);

// SAFETY: one thread at a time calls the library.
unsafe impl Sync for Last {}

static LAST: Last = Last(UnsafeCell::new(None));

/// Makes this the platform that panics are reported to.
pub(crate) fn tell_panics(given: MlxPlatform) {
    // SAFETY: one thread at a time calls the library, and no reference to the value exists.
    unsafe { *LAST.0.get() = Some(given) };
}

/// Reports a panic and never returns.
#[cfg(any(target_os = "none", target_os = "uefi"))]
pub(crate) fn stop(info: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: no other code runs after a panic.
    if let Some(given) = unsafe { *LAST.0.get() }
        && let Some(panic) = given.panic
    {
        let text = crate::text::Text::of(info);
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
    use core::ffi::c_char;
    use std::sync::atomic::{AtomicU64, Ordering};

    static IDLED: AtomicU64 = AtomicU64::new(0);

    unsafe extern "C" fn bar(_: *mut c_void, len: *mut usize) -> *mut c_void {
        static REGISTERS: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];
        // SAFETY: the library passes a valid pointer.
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
        reset: None,
        bus_master: None,
        sync_for_device: None,
        sync_for_cpu: None,
    };

    #[test]
    fn nobody_idles_until_what_is_past() {
        // SAFETY: the functions meet the header's requirements.
        let firmware = unsafe { Firmware::new(GIVEN) }.ok().unwrap();
        for past in [Instant::ORIGIN, Instant::from_nanos(999), Instant::from_nanos(1000)] {
            firmware.idle(past);
            assert_eq!(IDLED.load(Ordering::Relaxed), 0);
        }
        firmware.idle(Instant::MAX);
        assert_eq!(IDLED.load(Ordering::Relaxed), u64::MAX);
    }
}

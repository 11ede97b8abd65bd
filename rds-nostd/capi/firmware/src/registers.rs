//! BAR0, as the driver accesses it: memory-mapped in firmware. Tests on a host may replace it by an
//! emulated HCA's registers.

#[cfg(any(target_os = "none", target_os = "uefi"))]
pub(crate) use driver_mlx::MmioBar as Registers;
#[cfg(not(any(target_os = "none", target_os = "uefi")))]
pub use host::{Emulated, Registers, emulate};

/// Returns the registers at `base`, or `None` if [`driver_mlx::MmioBar`] cannot use them.
///
/// # Safety
/// As for [`driver_mlx::MmioBar::new`].
#[cfg(any(target_os = "none", target_os = "uefi"))]
pub(crate) unsafe fn registers(base: core::ptr::NonNull<u8>, len: usize) -> Option<Registers> {
    // SAFETY: this function's contract.
    unsafe { Registers::new(base, len) }
}
#[cfg(not(any(target_os = "none", target_os = "uefi")))]
pub(crate) use host::registers;

#[cfg(not(any(target_os = "none", target_os = "uefi")))]
mod host {
    use core::ptr::NonNull;
    use driver_mlx::{Bar, DoorbellRegister, MmioBar};
    use std::boxed::Box;
    use std::cell::Cell;

    /// Registers of an emulated HCA.
    pub trait Emulated {
        /// Bytes of BAR0.
        fn len(&self) -> usize;
        /// Returns whether BAR0 has no bytes.
        fn is_empty(&self) -> bool {
            self.len() == 0
        }
        /// Reads a 32-bit register.
        fn read32(&self, offset: usize) -> u32;
        /// Writes a 32-bit register.
        fn write32(&self, offset: usize, value: u32);
        /// Writes a 64-bit register.
        fn write64(&self, offset: usize, value: u64);
    }

    impl Emulated for MmioBar {
        fn len(&self) -> usize {
            Bar::len(self)
        }
        fn read32(&self, offset: usize) -> u32 {
            Bar::read32(self, offset)
        }
        fn write32(&self, offset: usize, value: u32) {
            // SAFETY: only the driver accesses `Registers`.
            unsafe { Bar::write32(self, offset, value) };
        }
        fn write64(&self, offset: usize, value: u64) {
            // SAFETY: as above.
            unsafe { self.doorbell_register(offset, 8) }.ring(value);
        }
    }

    /// BAR0: emulated, or memory.
    #[derive(Clone, Copy)]
    pub struct Registers(&'static dyn Emulated);

    impl core::fmt::Debug for Registers {
        fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
            f.write_str("Registers")
        }
    }

    std::thread_local! {
        static EMULATED: Cell<Option<(usize, &'static dyn Emulated)>> = const { Cell::new(None) };
    }

    /// Makes these the registers of every `bar` function in this thread that returns `base`.
    pub fn emulate(base: usize, registers: &'static dyn Emulated) {
        EMULATED.set(Some((base, registers)));
    }

    pub(crate) unsafe fn registers(base: NonNull<u8>, len: usize) -> Option<Registers> {
        if let Some((_, emulated)) = EMULATED.get().filter(|(at, _)| *at == base.addr().get()) {
            return Some(Registers(emulated));
        }
        // SAFETY: this function's contract.
        let registers = unsafe { MmioBar::new(base, len) }?;
        Some(Registers(Box::leak(Box::new(registers))))
    }

    /// The doorbell register of a queue.
    #[derive(Debug)]
    pub struct Register(Registers, usize);

    impl DoorbellRegister for Register {
        fn ring(&mut self, value: u64) {
            self.write(0, value);
        }
        fn write(&mut self, offset: usize, value: u64) {
            self.0.0.write64(self.1 + offset, value);
        }
    }

    impl Bar for Registers {
        type DoorbellRegister = Register;

        fn len(&self) -> usize {
            self.0.len()
        }
        fn read32(&self, offset: usize) -> u32 {
            self.0.read32(offset)
        }
        unsafe fn write32(&self, offset: usize, value: u32) {
            self.0.write32(offset, value);
        }
        unsafe fn doorbell_register(&self, offset: usize, _: usize) -> Register {
            Register(*self, offset)
        }
    }
}

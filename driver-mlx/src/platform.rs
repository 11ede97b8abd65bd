//! The seam that an embedder fills: registers, time, waiting, and memory of its own made visible to the HCA.

use core::fmt;

use crate::types::Instant;

/// A handle to (a view of) BAR0.
///
/// `offset` counts bytes from the start of BAR0 and is aligned to the width of the access. Values are host-order numbers as
/// the Programmer's Reference Manual prints them: the implementation stores them big-endian. Each call is one access of
/// exactly that width. An offset beyond [`Bar::len`] must be harmless (the driver checks what the device tells it, but an
/// implementation must not turn a wrong offset into an access outside the BAR).
///
/// Reads have no side effects. Writes are `unsafe`: a register can direct the device to any memory.
/// [`Hca`](crate::Hca) is the only caller.
pub trait Bar: Copy {
    /// The registers of one queue.
    type DoorbellRegister: DoorbellRegister;

    /// Size of BAR0 in bytes. Register pages that firmware places beyond it are refused.
    fn len(&self) -> usize;
    /// Whether there is nothing behind the handle.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// One 32-bit read.
    fn read32(&self, offset: usize) -> u32;
    /// A 64-bit register, read as two 32-bit halves, the high one first.
    fn read64(&self, offset: usize) -> u64 {
        (u64::from(self.read32(offset)) << 32) | u64::from(self.read32(offset + 4))
    }
    /// Writes a 32-bit register.
    ///
    /// ```compile_fail,E0133
    /// fn point_the_command_queue_elsewhere(bar: impl driver_mlx::Bar) {
    ///     bar.write32(0x10, 0x1234);
    /// }
    /// ```
    ///
    /// # Safety
    /// 1. No other driver operates the function.
    /// 2. The device accesses no memory because of the write but what is set aside for it.
    unsafe fn write32(&self, offset: usize, value: u32);
    /// A handle to the `len` bytes of registers at `offset`. `len` is a power of two of at least 8 and divides `offset`.
    /// The driver calls this once for each queue.
    ///
    /// ```compile_fail,E0133
    /// fn ring_the_queue_of_another(bar: impl driver_mlx::Bar) {
    ///     let register = bar.doorbell_register(0x5800, 8);
    /// }
    /// ```
    ///
    /// # Safety
    /// As for [`Bar::write32`], for every write to the handle: its owner writes only doorbells of its own queue.
    unsafe fn doorbell_register(&self, offset: usize, len: usize) -> Self::DoorbellRegister;
}

/// The doorbell register of one queue, or its BlueFlame register. The queue owns it, and no other part of the BAR.
///
/// Making one is `unsafe` ([`Bar::doorbell_register`]), so that writing to it need not be. Values are as for [`Bar`].
pub trait DoorbellRegister: fmt::Debug {
    /// Writes the first 64 bits, in one access. The only platform code on the hot path.
    fn ring(&mut self, value: u64);
    /// Writes 64 bits at byte `offset` of a BlueFlame register. An offset outside of it must be harmless.
    fn write(&mut self, offset: usize, value: u64);
}

/// Why memory could not be made visible to the HCA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum MapError {
    /// This platform shares only the region handed in at start.
    Unsupported,
    /// The range is not mapped memory of this process, or is read-only and was to be writable.
    BadAddress,
    /// No room is left in the address translation of the device.
    NoSpace,
    /// The platform pins the pages first, outside the driver. The caller repeats the call then.
    Pending,
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unsupported => "the platform shares only its DMA region with the device",
            Self::BadAddress => "the range is not mapped memory with the access rights asked for",
            Self::NoSpace => "no device address space left",
            Self::Pending => "the pages are not pinned yet: repeat the call",
        })
    }
}

impl core::error::Error for MapError {}

/// What the driver needs from where it runs.
///
/// Message-signalled interrupts stay with the embedder: the driver only names the MSI-X vector of each event queue in its
/// [`Config`](crate::Config).
///
/// Functions that change what the device can reach are `unsafe`; an [`Hca`](crate::Hca) is their only caller, and does not lend
/// its platform. An implementation of them is an `unsafe fn`, too: allow `unsafe_code` where it is denied.
pub trait Platform {
    /// Handle to BAR0.
    type Bar: Bar;

    /// All of BAR0, uncached.
    fn bar(&self) -> Self::Bar;

    /// A write-combining view of one UAR page: `len` bytes from `offset` of BAR0 on, counted from 0 in the view. Asked once for each page
    /// that holds BlueFlame registers, and for no other page, because registers must not be written combined. `None`: doorbells only.
    fn uar_write_combining(&self, offset: usize, len: usize) -> Option<Self::Bar>;

    /// The monotonic clock.
    fn now(&self) -> Instant;

    /// Waits for an interrupt or until `deadline` of [`Platform::now`], and may return early. Every wait of the
    /// driver goes through here, those for firmware commands included.
    fn idle(&self, deadline: Instant);

    /// Makes `len` bytes at virtual address `va`, which are not of the
    /// [`DmaRegion`](crate::DmaRegion), visible to the device and returns their device address,
    /// which agrees with `va` modulo 4096. The device may only read them unless `writable`.
    ///
    /// The same memory may be mapped more than once, with different rights. Each mapping has its
    /// own rights and addresses.
    ///
    /// # Errors
    /// The platform may refuse: [`MapError`]. [`MapError::BadAddress`]: also for memory that this
    /// process may not write, if `writable`. [`MapError::Pending`]: only if the embedder asked the
    /// platform for it.
    ///
    /// # Safety
    /// The memory is the device's to access until [`Platform::unmap`], by any key that the caller makes for it.
    unsafe fn map(&self, va: usize, len: usize, writable: bool) -> Result<u64, MapError>;

    /// Ends what one call of [`Platform::map`] began. An embedder may have the platform unpin the
    /// pages later.
    ///
    /// # Safety
    /// The device has no key for the address any more: another call may map it to other memory.
    unsafe fn unmap(&self, device_address: u64, len: usize);

    /// The dword at `offset` (a multiple of 4 below 256) of the function's configuration space, as a little-endian number; `None` where
    /// it is out of reach. Asked only by [`Hca::recover`](crate::Hca::recover), for the semaphore that guards a reset of the firmware.
    fn read_config(&self, offset: u16) -> Option<u32> {
        let _ = offset;
        None
    }

    /// Writes a dword of configuration space, if that is within reach.
    ///
    /// ```compile_fail,E0133
    /// fn switch_bus_mastering_on(platform: &impl driver_mlx::Platform) {
    ///     platform.write_config(4, 6);
    /// }
    /// ```
    ///
    /// # Safety
    /// 1. No other driver operates the function.
    /// 2. The device gains no access to memory that may have another use by now.
    unsafe fn write_config(&self, offset: u16, value: u32) {
        let _ = (offset, value);
    }

    /// Resets the function (FLR), waits until it answers again, and says whether that was possible. The device has then forgotten all
    /// memory: without this, one that does not reset itself cannot be recovered. Afterwards configuration space is as
    /// [`Platform::restore_function`] leaves it, with bus mastering off.
    ///
    /// ```compile_fail,E0133
    /// fn reset_under_the_driver(platform: &impl driver_mlx::Platform) {
    ///     platform.reset_function();
    /// }
    /// ```
    ///
    /// # Safety
    /// No other driver operates the function.
    unsafe fn reset_function(&self) -> bool {
        false
    }

    /// The function was reset, perhaps by others: what the embedder had written to configuration space is written again, so that its
    /// registers can be read. Bus mastering stays as it is, because the device may not have let go of memory yet. Called again and again
    /// while the function does not answer. Nothing to do where somebody else sees to that.
    ///
    /// ```compile_fail,E0133
    /// fn rewrite_under_the_driver(platform: &impl driver_mlx::Platform) {
    ///     platform.restore_function();
    /// }
    /// ```
    ///
    /// # Safety
    /// No other driver operates the function.
    unsafe fn restore_function(&self) {}

    /// Switches bus mastering, and answers whether it is beyond doubt as asked: read back from the function. When it is switched
    /// on, what the embedder had written to the MSI-X table is written again too; the device has let go of memory then, and is about to
    /// be brought up. Switched off, the device can reach no memory whatever it does. Where somebody else sees to all that: `false`.
    ///
    /// ```compile_fail,E0133
    /// fn let_a_failed_device_write_again(platform: &impl driver_mlx::Platform) {
    ///     platform.set_bus_master(true);
    /// }
    /// ```
    ///
    /// # Safety
    /// 1. No other driver operates the function.
    /// 2. On: the device holds no address of memory that may have another use by now.
    unsafe fn set_bus_master(&self, on: bool) -> bool {
        let _ = on;
        false
    }

    /// Whether processor and device see each other's writes to consumers' memory at once, so that [`Platform::sync_for_device`] and
    /// [`Platform::sync_for_cpu`] have nothing to do.
    fn dma_is_coherent(&self) -> bool {
        true
    }

    /// What the processor wrote to `len` bytes at `va` must reach the device: caches are cleaned, bounce buffers filled. Nothing to do
    /// where DMA is coherent.
    ///
    /// # Safety
    /// The bytes are mapped memory that the device shares.
    unsafe fn sync_for_device(&self, va: usize, len: usize) {
        let _ = (va, len);
    }

    /// What the device wrote to `len` bytes at `va` must reach the processor: caches are invalidated, bounce buffers emptied. Nothing to
    /// do where DMA is coherent.
    ///
    /// An implementation keeps what the processor wrote to neighbours in the same cache lines.
    ///
    /// # Safety
    /// The bytes are mapped memory that the device shares, and no Rust reference covers them.
    unsafe fn sync_for_cpu(&self, va: usize, len: usize) {
        let _ = (va, len);
    }
}

/// A platform that is lent, to one HCA after the other.
impl<P: Platform> Platform for &P {
    type Bar = P::Bar;

    fn bar(&self) -> Self::Bar {
        (**self).bar()
    }
    fn uar_write_combining(&self, offset: usize, len: usize) -> Option<Self::Bar> {
        (**self).uar_write_combining(offset, len)
    }
    fn now(&self) -> Instant {
        (**self).now()
    }
    fn idle(&self, deadline: Instant) {
        (**self).idle(deadline);
    }
    unsafe fn map(&self, va: usize, len: usize, writable: bool) -> Result<u64, MapError> {
        // SAFETY: this function's contract.
        unsafe { (**self).map(va, len, writable) }
    }
    unsafe fn unmap(&self, device_address: u64, len: usize) {
        // SAFETY: the same contract.
        unsafe { (**self).unmap(device_address, len) };
    }
    fn read_config(&self, offset: u16) -> Option<u32> {
        (**self).read_config(offset)
    }
    unsafe fn write_config(&self, offset: u16, value: u32) {
        // SAFETY: the same contract.
        unsafe { (**self).write_config(offset, value) };
    }
    unsafe fn reset_function(&self) -> bool {
        // SAFETY: the same contract.
        unsafe { (**self).reset_function() }
    }
    unsafe fn restore_function(&self) {
        // SAFETY: the same contract.
        unsafe { (**self).restore_function() };
    }
    unsafe fn set_bus_master(&self, on: bool) -> bool {
        // SAFETY: the same contract.
        unsafe { (**self).set_bus_master(on) }
    }
    fn dma_is_coherent(&self) -> bool {
        (**self).dma_is_coherent()
    }
    unsafe fn sync_for_device(&self, va: usize, len: usize) {
        // SAFETY: the same contract.
        unsafe { (**self).sync_for_device(va, len) };
    }
    unsafe fn sync_for_cpu(&self, va: usize, len: usize) {
        // SAFETY: the same contract.
        unsafe { (**self).sync_for_cpu(va, len) };
    }
}

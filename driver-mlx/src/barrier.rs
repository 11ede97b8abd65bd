//! Ordering between the processor's accesses and the device's, one body for each supported architecture.
//!
//! A Rust `fence` orders atomics between threads; what is needed here is the order in which a bus master sees normal
//! memory, and the order of normal memory against device registers. Under Miri there is neither a bus master nor inline
//! assembly, and a fence stands in.

// A `fence` is no substitute elsewhere: that of RISC-V does not order memory against registers.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!(
    "driver-mlx has no barriers between memory and device registers for this architecture: build for x86_64 or \
     aarch64, or write them in `barrier.rs`"
);

/// Stores to memory before this call are seen by the device before stores to memory after it.
#[inline]
pub(crate) fn publish() {
    #[cfg(miri)]
    core::sync::atomic::fence(core::sync::atomic::Ordering::Release);
    #[cfg(all(not(miri), target_arch = "x86_64"))]
    core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
    #[cfg(all(not(miri), target_arch = "aarch64"))]
    // SAFETY: a barrier instruction has no operands and no effect but ordering.
    unsafe {
        core::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
}

/// Stores to memory before this call are seen by the device before it sees register writes after it.
#[inline]
pub(crate) fn before_doorbell() {
    // Uncached register writes are ordered after earlier stores on x86 by the memory model, and on Arm by the same barrier.
    publish();
}

/// Loads before this call (of an ownership bit) are done before loads after it (of what the bit protects).
#[inline]
pub(crate) fn acquire() {
    #[cfg(miri)]
    core::sync::atomic::fence(core::sync::atomic::Ordering::Acquire);
    #[cfg(all(not(miri), target_arch = "x86_64"))]
    core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
    #[cfg(all(not(miri), target_arch = "aarch64"))]
    // SAFETY: a barrier instruction has no operands and no effect but ordering.
    unsafe {
        core::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
}

/// Stores before this call are seen by the device before a load of its answer after it (arm, then look again).
#[inline]
pub(crate) fn full() {
    #[cfg(all(not(miri), target_arch = "aarch64"))]
    // SAFETY: a barrier instruction has no operands and no effect but ordering.
    unsafe {
        core::arch::asm!("dsb osh", options(nostack, preserves_flags));
    }
    #[cfg(not(all(not(miri), target_arch = "aarch64")))]
    core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
}

/// Orders stores to memory before stores to a write-combining mapping, and pushes the combining buffer out to the device.
#[inline]
pub(crate) fn flush_write_combining() {
    #[cfg(miri)]
    core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
    #[cfg(all(not(miri), target_arch = "x86_64"))]
    // SAFETY: a barrier instruction has no operands and no effect but ordering.
    unsafe {
        core::arch::asm!("sfence", options(nostack, preserves_flags));
    }
    #[cfg(all(not(miri), target_arch = "aarch64"))]
    // SAFETY: a barrier instruction has no operands and no effect but ordering.
    unsafe {
        core::arch::asm!("dsb oshst", options(nostack, preserves_flags));
    }
}

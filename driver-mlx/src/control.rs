//! The driver's calls of the platform's `unsafe` functions: only here are registers and configuration space written.
//!
//! The callers are the parts of an [`Hca`](crate::Hca), which has its platform to itself and
//! decides which memory addresses the device gets.

use crate::dma::DmaMemory;
use crate::platform::{Bar, MapError, Platform};

/// Writes 32 bits to a register.
pub(crate) fn write32<B: Bar>(bar: B, offset: usize, value: u32) {
    // SAFETY: the function's HCA is the caller, which hands the device addresses only of the region it was given.
    unsafe { bar.write32(offset, value) }
}

/// A queue's doorbell register.
pub(crate) fn doorbell_register<B: Bar>(bar: B, offset: usize, len: usize) -> B::DoorbellRegister {
    // SAFETY: the function's HCA is the caller, for a queue that keeps the register to itself and rings with its own number.
    unsafe { bar.doorbell_register(offset, len) }
}

/// Writes a dword of configuration space.
pub(crate) fn write_config<P: Platform>(platform: &P, offset: u16, value: u32) {
    // SAFETY: the function's HCA is the caller, which writes the vendor-specific capability. That
    // names no memory.
    unsafe { platform.write_config(offset, value) }
}

/// Resets the function; false if the platform cannot.
pub(crate) fn reset_function<P: Platform>(platform: &P) -> bool {
    // SAFETY: the function's HCA is the caller.
    unsafe { platform.reset_function() }
}

/// Writes configuration space again after a reset.
pub(crate) fn restore_function<P: Platform>(platform: &P) {
    // SAFETY: the function's HCA is the caller.
    unsafe { platform.restore_function() }
}

/// Switches bus mastering; returns whether it reads back so.
pub(crate) fn set_bus_master<P: Platform>(platform: &P, on: bool) -> bool {
    // SAFETY: the function's HCA is the caller, which gives memory another use only once the device
    // has forgotten it.
    unsafe { platform.set_bus_master(on) }
}

/// Makes memory visible to the device, for [`Hca::register_foreign`](crate::Hca::register_foreign).
pub(crate) fn map<P: Platform>(platform: &P, va: usize, len: usize, writable: bool) -> Result<u64, MapError> {
    // SAFETY: the caller of `register_foreign` promised that the memory belongs to the device while there are keys for it.
    unsafe { platform.map(va, len, writable) }
}

/// Ends what [`map`] began, for the HCA that destroyed the last key of the memory.
pub(crate) fn unmap<P: Platform>(platform: &P, device_address: u64, len: usize) {
    // SAFETY: no key for the memory is left, or the device can no longer reach memory.
    unsafe { platform.unmap(device_address, len) }
}

/// Hands what the processor wrote to `memory` to the device.
pub(crate) fn sync_for_device<P: Platform>(platform: &P, memory: DmaMemory) {
    // SAFETY: `memory` is mapped memory that the device shares (`DmaMemory::from_raw`).
    unsafe { platform.sync_for_device(memory.va(), memory.len()) }
}

/// Hands what the device wrote to `memory` to the processor.
pub(crate) fn sync_for_cpu<P: Platform>(platform: &P, memory: DmaMemory) {
    // SAFETY: `memory` is mapped memory that the device shares and no reference covers
    // (`DmaMemory::from_raw`).
    unsafe { platform.sync_for_cpu(memory.va(), memory.len()) }
}

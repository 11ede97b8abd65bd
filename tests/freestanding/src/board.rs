//! The board: where its HCA's registers and the DMA memory lie, and its clock.

use core::ptr::NonNull;
use driver_mlx::{DmaRegion, HostRegion, Instant, MapError, MmioBar, Platform};

/// BAR0, as the board's firmware placed it, mapped one to one and uncached.
const BAR0: usize = 0x8_0000_0000;
const BAR0_LEN: usize = 32 << 20;
/// Memory set aside for the HCA, mapped one to one and coherent.
const DMA: usize = 0x1000_0000;
/// Its length in bytes.
pub const DMA_LEN: usize = 64 << 20;
/// Memory after it that stays on this side.
const HOST_LEN: usize = 4 << 20;

/// The board.
#[derive(Clone, Copy)]
pub struct Board;

impl Board {
    /// The DMA memory and the driver's own, for the one adapter of the board.
    pub fn memory(&self) -> Option<(DmaRegion, HostRegion)> {
        // SAFETY: the board's linker map leaves this memory to the HCA alone, and this is called once.
        let region =
            unsafe { DmaRegion::new(core::ptr::with_exposed_provenance_mut(DMA), DMA as u64, DMA_LEN) };
        // SAFETY: as above; it follows the DMA memory, and the HCA does not reach it.
        let host =
            unsafe { HostRegion::new(core::ptr::with_exposed_provenance_mut(DMA + DMA_LEN), HOST_LEN) };
        region.zip(host)
    }
}

impl Platform for Board {
    type Bar = MmioBar;

    fn bar(&self) -> MmioBar {
        const BASE: NonNull<u8> =
            NonNull::new(core::ptr::without_provenance_mut(BAR0)).expect("the address is not 0");
        // SAFETY: the board's firmware mapped BAR0 there for good.
        let bar = unsafe { MmioBar::new(BASE, BAR0_LEN) };
        // The constants satisfy what `new` asks; the compiler sees it and drops the branch.
        match bar {
            Some(bar) => bar,
            None => unreachable!("a power of two, aligned"),
        }
    }

    fn uar_write_combining(&self, _: usize, _: usize) -> Option<MmioBar> {
        None
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(ticks())
    }

    fn idle(&self, _deadline: Instant) {
        core::hint::spin_loop();
    }

    unsafe fn map(&self, va: usize, _len: usize, _: bool) -> Result<u64, MapError> {
        Ok(va as u64)
    }

    unsafe fn unmap(&self, _device_address: u64, _len: usize) {}
}

/// A clock of 1 GHz, as this board has it.
#[cfg(target_arch = "x86_64")]
fn ticks() -> u64 {
    // SAFETY: the time stamp counter exists on every x86-64 processor and may be read at this privilege.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// A clock of 1 GHz, as this board has it.
#[cfg(target_arch = "aarch64")]
fn ticks() -> u64 {
    let ticks: u64;
    // SAFETY: reads the virtual counter, which changes nothing.
    unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack)) };
    ticks
}

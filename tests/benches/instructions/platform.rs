//! A node's platform whose doorbells are what they are on hardware: one volatile store to memory. Between the counted functions
//! they are carried to the emulated HCA.

use driver_mlx::{Bar, Instant, MapError, MmioBar, Platform};
use harness::{ModelBar, ModelPlatform};
use hca_model::BarPort;
use hca_model::bar::BAR0_SIZE;
use std::alloc::{Layout, alloc_zeroed};
use std::ptr::NonNull;

/// Bytes of a UAR page.
const PAGE: usize = 4096;
/// UAR pages looked at: more than the driver takes.
const PAGES: std::ops::Range<usize> = 4..40;
/// Registers of 64 bits in a UAR page that anything here writes: CQ arming, event queues, four send doorbells.
const REGISTERS: [usize; 7] = [0x20, 0x40, 0x48, 0x800, 0x900, 0xa00, 0xb00];

/// Registers: 64-bit writes go to memory, everything else to the emulated HCA. With `MANY` queues that share a register, each of its
/// writes has to be carried: then they go to the emulated HCA, too, outside the count.
#[derive(Clone, Copy)]
pub struct BenchBar<const MANY: bool = false> {
    memory: MmioBar,
    model: ModelBar,
}

/// Nothing is counted in here, as its name says to callgrind: it turns the count off where that is on.
#[inline(never)]
fn unmeasured_write64(model: ModelBar, offset: usize, value: u64) {
    model.write64(offset, value);
}

impl<const MANY: bool> Bar for BenchBar<MANY> {
    #[inline]
    fn len(&self) -> usize {
        BAR0_SIZE
    }
    fn read32(&self, offset: usize) -> u32 {
        self.model.read32(offset)
    }
    fn write32(&self, offset: usize, value: u32) {
        self.model.write32(offset, value);
    }
    #[inline]
    fn write64(&self, offset: usize, value: u64) {
        if MANY {
            unmeasured_write64(self.model, offset, value);
        } else {
            self.memory.write64(offset, value);
        }
    }
}

/// The platform.
#[derive(Clone)]
pub struct BenchPlatform<const MANY: bool = false> {
    inner: ModelPlatform,
    bar: BenchBar<MANY>,
}

impl<const MANY: bool> BenchPlatform<MANY> {
    /// Around the platform of a node.
    pub fn new(inner: ModelPlatform) -> Self {
        let layout = Layout::from_size_align(BAR0_SIZE, 4096).expect("a power of two");
        // SAFETY: the layout's size is not 0.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).expect("32 MiB of address space");
        // SAFETY: new memory, never freed, reached through this handle alone.
        let memory = unsafe { MmioBar::new(base, BAR0_SIZE) }.expect("aligned");
        let bar = BenchBar { memory, model: inner.bar() };
        Self { inner, bar }
    }

    /// Carries the doorbells to the emulated HCA.
    pub fn ring(&self) {
        for offset in PAGES.flat_map(|page| REGISTERS.map(|register| page * PAGE + register)) {
            let value = self.bar.memory.read64(offset);
            if value != 0 {
                self.bar.memory.write64(offset, 0);
                self.bar.model.write64(offset, value);
            }
        }
    }

    /// Carries the doorbells and lets the HCAs work until nothing more happens.
    pub fn settle(&self) {
        self.ring();
        self.inner.world().settle(50_000);
    }
}

impl<const MANY: bool> Platform for BenchPlatform<MANY> {
    type Bar = BenchBar<MANY>;

    fn bar(&self) -> BenchBar<MANY> {
        self.bar
    }
    fn uar_write_combining(&self, _: usize, _: usize) -> Option<BenchBar<MANY>> {
        None
    }
    fn now(&self) -> Instant {
        self.inner.now()
    }
    fn idle(&self, deadline: Instant) {
        self.ring();
        self.inner.idle(deadline);
    }
    fn map(&self, va: usize, len: usize, writable: bool) -> Result<u64, MapError> {
        self.inner.map(va, len, writable)
    }
    fn unmap(&self, device_address: u64, len: usize) {
        self.inner.unmap(device_address, len);
    }
}

/// The front of an emulated HCA's BAR0 takes any offset that [`REGISTERS`] names.
const _: () = assert!(PAGES.end * PAGE <= BAR0_SIZE && size_of::<BarPort>() > 0);

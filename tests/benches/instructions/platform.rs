//! A node's platform whose doorbells are what they are on hardware: one volatile store to memory. Between the counted functions
//! they are carried to the emulated HCA.

use dat_nostd::Adapter;
use driver_mlx::{Bar, DoorbellRegister, Instant, MapError, MmioBar, MmioDoorbellRegister, Platform};
use harness::{ModelBar, ModelPlatform, ModelRegister};
use hca_model::BarPort;
use hca_model::bar::BAR0_SIZE;
use std::alloc::{Layout, alloc_zeroed};
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;

/// Bytes of a UAR page.
const PAGE: usize = 4096;
/// UAR pages looked at: more than the driver takes.
const PAGES: Range<usize> = 4..40;
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
fn unmeasured_ring(model: &mut ModelRegister, value: u64) {
    model.ring(value);
}

/// A queue's register: in memory, and of the emulated HCA.
#[derive(Debug)]
pub struct BenchRegister<const MANY: bool> {
    memory: MmioDoorbellRegister,
    model: ModelRegister,
}

impl<const MANY: bool> DoorbellRegister for BenchRegister<MANY> {
    #[inline(always)]
    fn ring(&mut self, value: u64) {
        if MANY {
            unmeasured_ring(&mut self.model, value);
        } else {
            self.memory.ring(value);
        }
    }
    fn write(&mut self, offset: usize, value: u64) {
        self.model.write(offset, value);
    }
}

impl<const MANY: bool> Bar for BenchBar<MANY> {
    type DoorbellRegister = BenchRegister<MANY>;

    #[inline]
    fn len(&self) -> usize {
        BAR0_SIZE
    }
    fn read32(&self, offset: usize) -> u32 {
        self.model.read32(offset)
    }
    unsafe fn write32(&self, offset: usize, value: u32) {
        // SAFETY: this function's contract.
        unsafe { self.model.write32(offset, value) };
    }
    unsafe fn doorbell_register(&self, offset: usize, len: usize) -> BenchRegister<MANY> {
        // SAFETY: this function's contract.
        let model = unsafe { self.model.doorbell_register(offset, len) };
        // SAFETY: `self.memory` is memory.
        let memory = unsafe { self.memory.doorbell_register(offset, len) };
        BenchRegister { memory, model }
    }
}

/// The platform.
#[derive(Clone)]
pub struct BenchPlatform<const MANY: bool = false> {
    inner: ModelPlatform,
    bar: BenchBar<MANY>,
    /// Where the registers are in memory.
    registers: usize,
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
        Self { inner, bar, registers: base.addr().get() }
    }

    /// Where in this process what the HCA reads and writes is: its memory, and the registers.
    pub fn reached(&self) -> Vec<Range<u64>> {
        [self.inner.world().memory(self.inner.node()).addresses(), self.registers..self.registers + BAR0_SIZE]
            .map(|range| range.start as u64..range.end as u64)
            .to_vec()
    }

    /// Carries the doorbells to the emulated HCA.
    pub fn ring(&self) {
        for offset in PAGES.flat_map(|page| REGISTERS.map(|register| page * PAGE + register)) {
            let value = self.bar.memory.read64(offset);
            if value != 0 {
                // SAFETY: memory, and an emulated HCA that reaches no other memory than its region.
                let (mut memory, mut model) = unsafe {
                    (
                        self.bar.memory.doorbell_register(offset, 8),
                        self.bar.model.doorbell_register(offset, 8),
                    )
                };
                memory.ring(0);
                model.ring(value);
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
    unsafe fn map(&self, va: usize, len: usize, writable: bool) -> Result<u64, MapError> {
        // SAFETY: this function's contract.
        unsafe { self.inner.map(va, len, writable) }
    }
    unsafe fn unmap(&self, device_address: u64, len: usize) {
        // SAFETY: this function's contract.
        unsafe { self.inner.unmap(device_address, len) };
    }
}

/// An adapter of the bench, and a handle to its platform.
#[repr(C)]
pub struct BenchAdapter<const MANY: bool = false> {
    // First, so that the functions that are counted do not compute where it is.
    adapter: Adapter<'static, BenchPlatform<MANY>>,
    platform: BenchPlatform<MANY>,
}

impl<const MANY: bool> BenchAdapter<MANY> {
    /// Keeps `platform`, which the adapter has a copy of.
    pub fn new(adapter: Adapter<'static, BenchPlatform<MANY>>, platform: BenchPlatform<MANY>) -> Self {
        Self { adapter, platform }
    }

    /// The platform.
    pub fn platform(&self) -> &BenchPlatform<MANY> {
        &self.platform
    }
}

impl<const MANY: bool> Deref for BenchAdapter<MANY> {
    type Target = Adapter<'static, BenchPlatform<MANY>>;

    fn deref(&self) -> &Self::Target {
        &self.adapter
    }
}

impl<const MANY: bool> DerefMut for BenchAdapter<MANY> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.adapter
    }
}

/// The front of an emulated HCA's BAR0 takes any offset that [`REGISTERS`] names.
const _: () = assert!(PAGES.end * PAGE <= BAR0_SIZE && size_of::<BarPort>() > 0);

//! What the unit tests of the data path share: memory that stays, and a BAR that remembers its writes.

use crate::cq::Cqe;
use crate::dma::{DmaBuffer, DmaMemory};
use crate::platform::{Bar, DoorbellRegister};
use core::cell::RefCell;
use std::boxed::Box;
use std::sync::Mutex;
use std::vec;
use std::vec::Vec;

/// Where the device would see [`memory`].
pub(crate) const DEVICE: u64 = 0x4000_0000;

/// The address of something that lives for the rest of the process.
struct Kept(#[allow(dead_code)] *mut ());

// SAFETY: nobody follows it.
unsafe impl Send for Kept {}

/// All of them: what a static leads to is no leak to an interpreter that looks for leaks.
static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

/// Keeps `value` for the rest of the process.
pub(crate) fn keep<T: ?Sized>(value: Box<T>) -> &'static mut T {
    let value = Box::into_raw(value);
    KEPT.lock().expect("nobody panics with it").push(Kept(value.cast()));
    // SAFETY: it was a box's until just now, and is never freed.
    unsafe { &mut *value }
}

/// A completion that stays when its place in the queue is used again.
pub(crate) fn kept(cqe: &Cqe<'_>) -> Cqe<'static> {
    keep(Box::new(cqe.copy())).cqe()
}

/// Rounds of a test that repeats itself: an interpreter, which is a thousand times slower, gets a tenth of them.
pub(crate) const fn rounds(most: usize) -> usize {
    if cfg!(miri) { most / 10 } else { most }
}

/// `len` zeroed bytes, page-aligned, that live for the rest of the process.
pub(crate) fn memory(len: usize) -> DmaMemory {
    #[repr(align(4096))]
    #[derive(Clone)]
    struct Page([u8; 4096]);
    let pages = keep(vec![Page([0; 4096]); len.div_ceil(4096)].into_boxed_slice());
    let first = pages.first().map(|page| page.0[0]);
    assert_eq!(first, Some(0), "at least one page");
    // SAFETY: kept, and used through slices only from here on.
    unsafe { DmaMemory::from_raw(pages.as_mut_ptr().cast(), DEVICE, len) }
}

/// A buffer in memory of its own.
pub(crate) fn buffer(len: usize) -> DmaBuffer {
    DmaBuffer::new(memory(len))
}

/// As many slots, for the rest of the process.
pub(crate) fn slots(count: usize) -> crate::ring::Slots {
    let memory = keep(vec![0u64; (count * 3).max(64)].into_boxed_slice());
    let region = crate::host::HostRegion::from_static(memory).expect("large enough");
    crate::host::HostMemory::new(region).and_then(|mut host| host.alloc(count)).expect("large enough")
}

/// An epoch without end.
pub(crate) fn epoch() -> crate::host::Epoch {
    let region = crate::host::HostRegion::from_static(keep(Box::new([0; 64]))).expect("large enough");
    keep(Box::new(crate::host::HostMemory::new(region).expect("a map"))).epoch()
}

/// The bytes of `slice`.
pub(crate) fn bytes(slice: DmaMemory, offset: usize, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    slice.read(offset, &mut out).expect("inside");
    out
}

/// Register writes in their order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recorder(&'static RefCell<Vec<(usize, u64)>>);

impl Recorder {
    pub(crate) fn new() -> Self {
        Self(keep(Box::new(RefCell::new(Vec::new()))))
    }

    /// The writes since the last call.
    pub(crate) fn take(&self) -> Vec<(usize, u64)> {
        self.0.take()
    }
}

/// A register of the [`Recorder`], at this offset.
#[derive(Debug)]
pub(crate) struct RecorderRegister(Recorder, usize);

impl DoorbellRegister for RecorderRegister {
    fn ring(&mut self, value: u64) {
        self.write(0, value);
    }
    fn write(&mut self, offset: usize, value: u64) {
        self.0.0.borrow_mut().push((self.1 + offset, value));
    }
}

impl Bar for Recorder {
    type DoorbellRegister = RecorderRegister;

    fn len(&self) -> usize {
        1 << 20
    }
    fn read32(&self, _: usize) -> u32 {
        0
    }
    unsafe fn write32(&self, offset: usize, value: u32) {
        self.0.borrow_mut().push((offset, u64::from(value)));
    }
    unsafe fn doorbell_register(&self, offset: usize, _: usize) -> RecorderRegister {
        RecorderRegister(*self, offset)
    }
}

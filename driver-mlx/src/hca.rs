//! The HCA: bring-up, tear-down, and everything made, asked and destroyed by commands.

mod bring_up;
mod counters;
mod exec;
mod health;
mod memory;
mod multicast;
mod pages;
mod port;
mod queue;
mod queue_pair;
mod records;
mod resize;
mod shared_queue;

pub use counters::{PortCounters, QCounters, Traffic};
pub use memory::{MemoryRegion, MkeyState};
pub use port::{LinkState, PortState};
pub use shared_queue::SrqState;

use crate::buddy::{self, BLOCK, Buddy};
use crate::caps::Capabilities;
use crate::cmd::CommandQueue;
use crate::config::{Config, MAX_COMPLETION_EQS};
use crate::dma::DmaSlice;
use crate::eq::Eq;
use crate::error::{Error, FatalCause, Step};
use crate::event::AsyncEvent;
use crate::host::HostMemory;
use crate::platform::Platform;
use crate::trace::{Counters, Trace};
use crate::types::{LKey, UarPage};

/// One HCA, up and running.
///
/// Queues made here own what posting and polling need and do not borrow it; give them back with
/// [`Hca::destroy_qp`] and [`Hca::destroy_cq`] before [`Hca::tear_down`].
pub struct Hca<'s, P: Platform> {
    platform: P,
    config: Config,
    region: DmaSlice,
    buddy: Buddy<'s>,
    host: HostMemory,
    records: records::Records,
    cmd: CommandQueue,
    events: EventRing<'s>,
    trace: Trace<'s>,
    counters: Counters,
    caps: Capabilities,
    step: Step,
    steps: StepTimes,
    fatal: Option<FatalCause>,
    health: health::Health,
    firmware_pages: u32,
    firmware_version: (u16, u16, u16),
    psid: [u8; 16],
    /// The interface step sequence agreed on.
    issi: u8,
    /// How far bring-up got, so that tear-down undoes that much.
    enabled: bool,
    initialized: bool,
    /// Control page: arming, event queues, plain doorbells.
    uar: Option<UarPage>,
    blueflame: [BlueFlamePage; BLUEFLAME_PAGES],
    async_eq: Option<Eq>,
    completion_eqs: [Option<Eq>; MAX_COMPLETION_EQS as usize],
    reserved_lkey: LKey,
    next_variant: u8,
}

/// UAR pages for BlueFlame; each holds four registers.
const BLUEFLAME_PAGES: usize = 16;

/// A UAR page whose registers belong to one QP each.
#[derive(Clone, Copy, Debug, Default)]
struct BlueFlamePage {
    page: Option<UarPage>,
    used: u8,
}

/// How long a step of bring-up took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct StepTime {
    /// Which.
    pub step: Step,
    /// Nanoseconds.
    pub took: u64,
}

/// Steps in the order they were taken.
#[derive(Debug, Default)]
struct StepTimes {
    times: [StepTime; 20],
    len: usize,
    began: u64,
}

/// Asynchronous events until somebody takes them.
struct EventRing<'s> {
    slots: &'s mut [AsyncEvent],
    first: usize,
    len: usize,
}

impl EventRing<'_> {
    fn push(&mut self, event: AsyncEvent) -> bool {
        if self.len >= self.slots.len() {
            return false;
        }
        let index = self.first + self.len;
        let index = if index >= self.slots.len() { index - self.slots.len() } else { index };
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = event;
            self.len += 1;
        }
        true
    }

    fn pop(&mut self) -> Option<AsyncEvent> {
        if self.len == 0 {
            return None;
        }
        let event = self.slots.get(self.first).copied();
        self.first = if self.first + 1 >= self.slots.len() { 0 } else { self.first + 1 };
        self.len -= 1;
        event
    }
}

impl<P: Platform> Hca<'_, P> {
    /// The platform.
    pub fn platform(&self) -> &P {
        &self.platform
    }

    /// What the HCA can do.
    pub fn caps(&self) -> &Capabilities {
        &self.caps
    }

    /// How often things happened.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What happened last.
    pub fn trace(&self) -> &Trace<'_> {
        &self.trace
    }

    /// How long the steps of bring-up took, in their order.
    pub fn steps(&self) -> &[StepTime] {
        self.steps.times.get(..self.steps.len).unwrap_or(&[])
    }

    /// Why the device can no longer be used, if so.
    pub fn fatal(&self) -> Option<FatalCause> {
        self.fatal
    }

    /// Firmware version: major, minor, sub-minor.
    pub fn firmware_version(&self) -> (u16, u16, u16) {
        self.firmware_version
    }

    /// Name of the board (PSID): text padded with zeros.
    pub fn psid(&self) -> &[u8; 16] {
        &self.psid
    }

    /// Pages of 4 KiB that firmware holds.
    pub fn firmware_pages(&self) -> u32 {
        self.firmware_pages
    }

    /// Bytes left in the region, in one piece or many.
    pub fn free_bytes(&self) -> usize {
        self.buddy.free_blocks() * BLOCK
    }

    /// The reserved key: local access to all of memory by device address, for QPs made with
    /// [`QpConfig::reserved_lkey`](crate::QpConfig::reserved_lkey).
    pub fn reserved_lkey(&self) -> LKey {
        self.reserved_lkey
    }

    /// Takes `len` bytes, zeroed, from the region. They begin at a multiple of `align` (a power of two) as the device counts,
    /// and of 4096 in any case; what is taken is rounded up to a power of two.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; [`Error::InvalidArgument`] if `align` is no power of two or the region itself is less aligned.
    pub fn alloc(&mut self, len: usize, align: usize) -> Result<DmaSlice, Error> {
        let slice = self.take_memory(len, align)?;
        slice.fill(0, slice.len(), 0)?;
        Ok(slice)
    }

    /// Gives back what [`Hca::alloc`] gave. Nothing may use it any more: not a memory key, not a work request.
    ///
    /// # Errors
    /// [`Error::NotAllocated`] unless it is exactly such a slice (or its beginning) and not given back yet.
    pub fn free(&mut self, slice: DmaSlice) -> Result<(), Error> {
        let block = self.block_of(slice).ok_or(Error::NotAllocated)?;
        match self.buddy.run(block) {
            Some(blocks) if slice.len() <= blocks * BLOCK && self.buddy.free(block) => Ok(()),
            _ => Err(Error::NotAllocated),
        }
    }

    /// As [`Hca::alloc`], with the content left as it is.
    fn take_memory(&mut self, len: usize, align: usize) -> Result<DmaSlice, Error> {
        if !align.is_power_of_two() {
            return Err(Error::InvalidArgument("align"));
        }
        if align > BLOCK && !self.region.device_address().is_multiple_of(align as u64) {
            return Err(Error::InvalidArgument("align"));
        }
        let out_of_memory = Error::OutOfMemory { bytes: len };
        let order = buddy::order_for(len.max(align)).ok_or(out_of_memory)?;
        let block = self.buddy.alloc(order).ok_or(out_of_memory)?;
        self.block_slice(block, len)
    }

    fn block_slice(&self, block: usize, len: usize) -> Result<DmaSlice, Error> {
        self.region.slice(block * BLOCK, len).ok_or(Error::OutOfBounds)
    }

    fn block_of(&self, slice: DmaSlice) -> Option<usize> {
        let offset = slice.va().checked_sub(self.region.va())?;
        (self.region.contains(&slice) && offset.is_multiple_of(BLOCK)).then_some(offset / BLOCK)
    }

    /// Memory of an object that could not be destroyed: the device may still use it.
    fn leak(&mut self, slice: DmaSlice) {
        self.counters.leaked_bytes += slice.len() as u64;
    }

    /// Frees an object's memory, or keeps it taken if destroying the object did not succeed.
    fn free_unless(&mut self, destroyed: &Result<(), Error>, slice: DmaSlice) {
        if destroyed.is_err() || self.free(slice).is_err() {
            self.leak(slice);
        }
    }
}

/// The page list of `bytes` bytes of contiguous memory: log2 of the page size relative to 4 KiB, and the number of pages. The
/// largest page is chosen that the address is aligned to and that is not longer than the memory taken for it.
fn page_list(memory: DmaSlice, bytes: usize) -> (u32, usize) {
    let aligned = memory.device_address().trailing_zeros();
    let longest = buddy::order_for(memory.len()).map_or(31, |order| order + 12);
    let log = aligned.min(longest).clamp(12, 31);
    (log - 12, bytes.max(1).div_ceil(1 << log))
}

/// Whether a failed creation left the memory unused: firmware refused, so there is no object. After anything else (a time-out)
/// there may be one.
fn not_created(error: &Error) -> Result<(), Error> {
    match error {
        Error::Timeout { .. } | Error::Fatal(_) => Err(*error),
        _ => Ok(()),
    }
}

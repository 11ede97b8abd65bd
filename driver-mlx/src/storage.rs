//! All memory of an HCA that is not shared with the device.

use crate::event::AsyncEvent;
use crate::trace::{History, TraceEntry, TraceKind};
use crate::types::Instant;

/// Entries of the trace ring.
pub const TRACE_ENTRIES: usize = 64;
/// Asynchronous events kept until somebody takes them.
pub const EVENT_ENTRIES: usize = 64;

/// Memory for one HCA, all zero bytes, so that a static takes no room in an image.
///
/// `BLOCKS` is the number of 4 KiB blocks of the DMA region, rounded up to a power of two; it costs 4 bytes a block: 2 for what is
/// taken, 2 for how many memory keys lead to a buffer. The rest is about 5 KiB.
#[derive(Debug)]
pub struct HcaStorage<const BLOCKS: usize> {
    map: [[u8; 2]; BLOCKS],
    users: [u16; BLOCKS],
    trace: [TraceEntry; TRACE_ENTRIES],
    events: [AsyncEvent; EVENT_ENTRIES],
}

/// The pieces of an [`HcaStorage`], lent to an HCA for as long as it lives.
#[derive(Debug)]
pub struct HcaParts<'s> {
    pub(crate) map: &'s mut [u8],
    pub(crate) users: &'s mut [u16],
    pub(crate) trace: &'s mut [TraceEntry],
    pub(crate) events: &'s mut [AsyncEvent],
}

impl<const BLOCKS: usize> HcaStorage<BLOCKS> {
    /// Empty storage.
    #[must_use]
    pub const fn new() -> Self {
        const { assert!(BLOCKS.is_power_of_two(), "BLOCKS is a power of two") }
        Self {
            map: [[0; 2]; BLOCKS],
            users: [0; BLOCKS],
            trace: [TraceEntry { time: Instant::ORIGIN, kind: TraceKind::Empty }; TRACE_ENTRIES],
            events: [AsyncEvent::None; EVENT_ENTRIES],
        }
    }

    /// What the HCA that was lent this did last: after a failed bring-up, the way there.
    #[must_use]
    pub fn history(&self) -> History<'_> {
        History::new(&self.trace)
    }

    /// What [`Hca::bring_up`](crate::Hca::bring_up) takes.
    pub fn parts(&mut self) -> HcaParts<'_> {
        HcaParts {
            map: self.map.as_flattened_mut(),
            users: &mut self.users,
            trace: &mut self.trace,
            events: &mut self.events,
        }
    }
}

impl<const BLOCKS: usize> Default for HcaStorage<BLOCKS> {
    fn default() -> Self {
        Self::new()
    }
}

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
/// `BLOCKS` is the number of 4 KiB blocks of the DMA region, rounded up to a power of two. A block
/// costs 4 bytes: 2 for what is taken, 2 for how many memory keys lead to a buffer. The rest is
/// about 5 KiB. If the size of the region is set at run time, `BLOCKS` is 1 and
/// [`HcaParts::with_block_tables`] supplies the tables.
#[derive(Debug)]
pub struct HcaStorage<const BLOCKS: usize> {
    map: [[u8; 2]; BLOCKS],
    users: [u16; BLOCKS],
    trace: [TraceEntry; TRACE_ENTRIES],
    events: [AsyncEvent; EVENT_ENTRIES],
    region_in_use: bool,
}

/// The pieces of an [`HcaStorage`], lent to an HCA for as long as it lives.
#[derive(Debug)]
pub struct HcaParts<'s> {
    pub(crate) map: &'s mut [u8],
    pub(crate) users: &'s mut [u16],
    pub(crate) trace: &'s mut [TraceEntry],
    pub(crate) events: &'s mut [AsyncEvent],
    pub(crate) region_in_use: &'s mut bool,
}

impl<'s> HcaParts<'s> {
    /// Replaces the tables of the DMA region's blocks, so that a region may have any size. Both need an entry for each block of
    /// 4 KiB, `map` rounded up to a power of two: 4 bytes a block, 1 KiB for each MiB. Bring-up overwrites their content.
    #[must_use]
    pub fn with_block_tables(self, map: &'s mut [[u8; 2]], users: &'s mut [u16]) -> Self {
        Self { map: map.as_flattened_mut(), users, ..self }
    }
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
            region_in_use: false,
        }
    }

    /// What the HCA that was lent this did last: after a failed bring-up, the way there.
    #[must_use]
    pub fn history(&self) -> History<'_> {
        History::new(&self.trace)
    }

    /// Returns whether the device may still access the DMA region of the HCA that had these parts last. That HCA must be gone.
    ///
    /// `false` after an orderly tear-down, and after a failed bring-up whose steps were all undone. `true` if the device did not
    /// answer: the region must not be used for anything until the function was reset, or its bus mastering is off for good.
    #[must_use]
    pub fn region_in_use(&self) -> bool {
        self.region_in_use
    }

    /// What [`Hca::bring_up`](crate::Hca::bring_up) takes.
    pub fn parts(&mut self) -> HcaParts<'_> {
        HcaParts {
            map: self.map.as_flattened_mut(),
            users: &mut self.users,
            trace: &mut self.trace,
            events: &mut self.events,
            region_in_use: &mut self.region_in_use,
        }
    }
}

impl<const BLOCKS: usize> Default for HcaStorage<BLOCKS> {
    fn default() -> Self {
        Self::new()
    }
}

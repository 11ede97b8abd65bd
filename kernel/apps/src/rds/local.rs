//! The memory of a client of `mode=rdma`: what it writes from and reads into, with guards around it.

use dat_nostd::{Adapter, DmaBuffer, DmaSlice, Platform};
use rds_nostd::RdsError;

use super::cases::Case;
use super::error::{AppError, InCall};
use super::exchange::{ARENA, Writer, Wrong, fill, wrong};

/// Bytes of an atomic operation, which are at the beginning.
pub(super) const WORD: usize = 8;
/// Where the memory of other operations begins: odd, unlike the server's.
const FIRST: usize = 4096 + 5;
/// Bytes before and after it that have to stay.
const GUARD: usize = 64;
/// The most pieces of one operation.
const PIECES: usize = 3;

/// The memory.
pub(super) struct Local(DmaBuffer);

impl Local {
    pub(super) fn alloc<P: Platform>(adapter: &mut Adapter<'_, P>) -> Result<Self, AppError> {
        adapter.dma_alloc(ARENA, 4096).map(Self).map_err(RdsError::Dat).in_call("dma_alloc")
    }

    pub(super) fn free<P: Platform>(self, adapter: &mut Adapter<'_, P>) -> Result<(), AppError> {
        adapter.dma_free(self.0).map_err(|kept| RdsError::Dat(kept.reason)).in_call("dma_free")
    }

    /// Puts there what `case` begins with; a write has something else when it is done once more.
    pub(super) fn prepare(&self, case: &Case, number: u32, again: bool) {
        fill(self.0.as_slice(), FIRST - GUARD, case.bytes + 2 * GUARD, Writer::Overwritten, number, 0);
        if case.is_write() {
            fill(self.0.as_slice(), FIRST, case.bytes, Writer::Client, number + u32::from(again), 0);
        }
    }

    /// The bytes of `case`, in pieces of any length where it is long enough, and how many of these there are.
    pub(super) fn pieces(&self, case: &Case) -> ([DmaSlice<'_>; PIECES], usize) {
        let cuts = [0, case.bytes / 7, case.bytes / 7 + case.bytes / 2, case.bytes];
        let mut pieces = [self.0.as_slice(); PIECES];
        let mut count = 0;
        for cut in cuts.windows(2) {
            let &[from, to] = cut else { continue };
            if from < to
                && let (Some(piece), Some(slice)) =
                    (pieces.get_mut(count), self.0.slice(FIRST + from, to - from))
            {
                *piece = slice;
                count += 1;
            }
        }
        (pieces, count)
    }

    /// Where an atomic operation puts what it found.
    pub(super) fn word(&self) -> Option<DmaSlice<'_>> {
        self.0.slice(0, WORD)
    }

    /// What it found.
    pub(super) fn read_word(&self) -> Option<u64> {
        let mut found = [0; WORD];
        self.0.read(0, &mut found).ok()?;
        Some(u64::from_ne_bytes(found))
    }

    /// What is wrong in the memory that `case` wrote from or read into, and around it.
    pub(super) fn wrong(&self, case: &Case, number: u32) -> Wrong {
        let within = if case.is_write() {
            wrong(self.0.as_slice(), FIRST, case.bytes, Writer::Client, number, 0)
        } else {
            wrong(self.0.as_slice(), FIRST, case.bytes, Writer::Server, number, case.offset + case.skip)
        };
        let guard =
            |at: usize, first| wrong(self.0.as_slice(), at, GUARD, Writer::Overwritten, number, first);
        within.and(guard(FIRST - GUARD, 0)).and(guard(FIRST + case.bytes, GUARD + case.bytes))
    }
}

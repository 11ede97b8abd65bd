//! Memory of the client: the local side of its operations, with guards around it.

use apps::rds::{AppError, InCall};
use dat_nostd::{Adapter, DmaBuffer, DmaSlice, Platform};
use rds_nostd::RdsError;

use super::cases::Case;
use super::exchange::{ARENA, Writer, payload};
use super::no_memory;
use crate::memory::{fill, mismatch};

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

    /// Fills it for `case`. The second operation of a case writes other bytes.
    pub(super) fn prepare(&self, case: &Case, number: u32, again: bool) -> Result<(), AppError> {
        let (all, guards) = (self.0.as_slice(), payload(Writer::Overwritten, number));
        fill(all, FIRST - GUARD, case.bytes + 2 * GUARD, guards, 0).map_err(no_memory)?;
        if !case.is_write() {
            return Ok(());
        }
        fill(all, FIRST, case.bytes, payload(Writer::Client, number + u32::from(again)), 0).map_err(no_memory)
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

    /// Returns the first wrong byte of `case` and of the guards, counted from the first guard.
    pub(super) fn mismatch(&self, case: &Case, number: u32) -> Option<usize> {
        let guards = payload(Writer::Overwritten, number);
        let (inside, first) = if case.is_write() {
            (payload(Writer::Client, number), 0)
        } else {
            (payload(Writer::Server, number), case.offset + case.skip)
        };
        let behind = GUARD + case.bytes;
        [(0, GUARD, guards, 0), (GUARD, case.bytes, inside, first), (behind, GUARD, guards, behind)]
            .into_iter()
            .find_map(|(at, len, payload, first)| {
                Some(at + mismatch(self.0.as_slice(), FIRST - GUARD + at, len, payload, first)?)
            })
    }
}

//! Payload in memory that the HCA reaches.

use driver_mlx::{DmaSlice, OutOfBounds};
use ib_types::Payload;

/// Bytes copied at a time.
const CHUNK: usize = 512;

/// Writes `len` bytes of `payload`, from its position `first` on, at `offset`.
///
/// # Errors
/// They do not fit in `memory`.
pub fn fill(
    memory: DmaSlice<'_>,
    offset: usize,
    len: usize,
    payload: Payload,
    first: usize,
) -> Result<(), OutOfBounds> {
    let mut chunk = [0; CHUNK];
    (0..len).step_by(CHUNK).try_for_each(|at| {
        let bytes = &mut chunk[..CHUNK.min(len - at)];
        bytes.iter_mut().zip(first + at..).for_each(|(to, position)| *to = payload.byte(position));
        memory.write(offset + at, bytes)
    })
}

/// Returns the index of the first of `len` bytes at `offset` that [`fill`] would have written
/// differently. A byte outside `memory` differs.
#[must_use]
pub fn mismatch(
    memory: DmaSlice<'_>,
    offset: usize,
    len: usize,
    payload: Payload,
    first: usize,
) -> Option<usize> {
    let mut chunk = [0; CHUNK];
    (0..len).step_by(CHUNK).find_map(|at| {
        let bytes = &mut chunk[..CHUNK.min(len - at)];
        if memory.read(offset + at, bytes).is_err() {
            return Some(at);
        }
        let wrong = |(byte, position): (&u8, usize)| *byte != payload.byte(position);
        Some(at + bytes.iter().zip(first + at..).position(wrong)?)
    })
}

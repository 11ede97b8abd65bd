//! Payload in memory that the HCA reaches.

use driver_mlx::{DmaSlice, OutOfBounds};
use ib_types::Payload;

/// Bytes copied at a time; whole words, as [`Payload`] requires.
const CHUNK: usize = 512;

/// Writes the first `len` bytes of `payload` at `offset`.
///
/// # Errors
/// They do not fit in `memory`.
pub fn fill(memory: DmaSlice<'_>, offset: usize, len: usize, payload: Payload) -> Result<(), OutOfBounds> {
    let mut chunk = [0; CHUNK];
    (0..len).step_by(CHUNK).try_for_each(|at| {
        let bytes = &mut chunk[..CHUNK.min(len - at)];
        payload.fill(at, bytes);
        memory.write(offset + at, bytes)
    })
}

/// Returns the position of the first of `len` bytes at `offset` that [`fill`] would have written
/// differently.
///
/// # Errors
/// The range is not in `memory`.
pub fn mismatch(
    memory: DmaSlice<'_>,
    offset: usize,
    len: usize,
    payload: Payload,
) -> Result<Option<usize>, OutOfBounds> {
    let mut chunk = [0; CHUNK];
    for at in (0..len).step_by(CHUNK) {
        let bytes = &mut chunk[..CHUNK.min(len - at)];
        memory.read(offset + at, bytes)?;
        if let Some(position) = payload.mismatch(at, bytes) {
            return Ok(Some(position));
        }
    }
    Ok(None)
}

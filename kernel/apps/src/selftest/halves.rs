//! The memory of a self-test: what is sent is in its first half, and arrives in the second.

use super::stage::Stage;
use driver_mlx::DmaBuffer;

/// Bytes of each half.
pub(super) const HALF: usize = 64 << 10;
/// A buffer has two halves, so that this is not told.
const OUTSIDE: Stage = Stage::Wrong("the buffer is too short");

/// Fills the first half and empties the second.
pub(super) fn fill(memory: &DmaBuffer, pattern: impl Fn(usize) -> u8) -> Result<(), Stage> {
    let mut bytes = [0u8; 256];
    for start in (0..HALF).step_by(bytes.len()) {
        bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(start + at));
        memory.write(start, &bytes).map_err(|_| OUTSIDE)?;
    }
    memory.fill(HALF, HALF, 0).map_err(|_| OUTSIDE)
}

/// Whether the second half is what the first was filled with.
pub(super) fn compare(memory: &DmaBuffer, pattern: impl Fn(usize) -> u8) -> Result<(), Stage> {
    let mut bytes = [0u8; 256];
    for start in (0..HALF).step_by(bytes.len()) {
        memory.read(HALF + start, &mut bytes).map_err(|_| OUTSIDE)?;
        if bytes.iter().enumerate().any(|(at, byte)| *byte != pattern(start + at)) {
            return Err(Stage::Wrong("what arrived is not what was sent"));
        }
    }
    Ok(())
}

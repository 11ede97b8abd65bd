//! Parameters that both sides share without a message.

use driver_mlx::{DmaSlice, OutOfBounds};

use crate::Role;

/// The longest message and transfer, bytes.
pub const MAX_MESSAGE: usize = 64 << 10;
/// Messages, writes and reads each way.
pub(crate) const TRANSFERS: u32 = 100;
/// Atomic operations of each kind each way, of those that change something.
pub(crate) const ATOMICS: u32 = 50;
/// Bytes of a control message.
pub(crate) const CONTROL_LEN: usize = 16;

/// Where the peer writes, in the exposed memory.
pub(crate) const TARGET: usize = 0;
/// Where the peer reads.
pub(crate) const SOURCE: usize = MAX_MESSAGE;
/// The word of the atomics.
pub(crate) const WORD: usize = 2 * MAX_MESSAGE;
/// Length of the exposed memory.
pub(crate) const EXPOSED_LEN: usize = 2 * MAX_MESSAGE + 4096;

/// What moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Send and receive.
    Send,
    /// RDMA write.
    Write,
    /// RDMA read.
    Read,
    /// Compare and swap.
    CompareSwap,
    /// Fetch and add.
    FetchAdd,
}

impl Operation {
    /// In their order.
    pub const ALL: [Self; 5] = [Self::Send, Self::Write, Self::Read, Self::CompareSwap, Self::FetchAdd];

    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::Read => "read",
            Self::CompareSwap => "compare_swap",
            Self::FetchAdd => "fetch_add",
        }
    }

    /// The operation behind it.
    pub(crate) fn next(self) -> Option<Self> {
        Self::ALL.into_iter().find(|other| *other as u32 == self as u32 + 1)
    }

    /// Its phase, from 1.
    const fn phase(self) -> u32 {
        self as u32 + 1
    }

    /// How often it is done each way.
    pub(crate) const fn count(self) -> u32 {
        match self {
            Self::Send | Self::Write | Self::Read => TRANSFERS,
            Self::CompareSwap | Self::FetchAdd => ATOMICS,
        }
    }

    /// Number of the message that payload `m` counts as in the pattern.
    pub(crate) const fn message(self, m: u32) -> u32 {
        self.phase() * 1000 + m
    }
}

const fn sender(role: Role) -> u32 {
    match role {
        Role::Server => 1,
        Role::Client => 2,
    }
}

/// Byte `i` of message `message` from `role`: depends on position, message and sender.
#[must_use]
pub const fn pattern(role: Role, message: u32, i: usize) -> u8 {
    let i = i as u32;
    let sum = i.wrapping_mul(31).wrapping_add(message.wrapping_mul(7)).wrapping_add(sender(role) * 13);
    sum.wrapping_add(i >> 8) as u8
}

/// Bytes of the transfers: the edge cases first, then spread over 0 to [`MAX_MESSAGE`].
#[must_use]
pub const fn size(m: u32) -> usize {
    const EDGES: [usize; 26] = [
        0, 1, 2, 3, 4, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025, 2047, 2048, 2049, 4095, 4096, 4097, 8191,
        8192, 16384, 32768, 65535, 65536,
    ];
    if (m as usize) < EDGES.len() { EDGES[m as usize] } else { (m as usize * 7919) % (MAX_MESSAGE + 1) }
}

/// Fills the first `len` bytes of `memory`.
pub(crate) fn fill(memory: DmaSlice<'_>, role: Role, message: u32, len: usize) -> Result<(), OutOfBounds> {
    let mut chunk = [0; 256];
    for start in (0..len).step_by(chunk.len()) {
        let part = &mut chunk[..(len - start).min(256)];
        for (i, byte) in part.iter_mut().enumerate() {
            *byte = pattern(role, message, start + i);
        }
        memory.write(start, part)?;
    }
    Ok(())
}

/// Position of the first of `len` bytes that is not as [`fill`] would have it.
pub(crate) fn mismatch(
    memory: DmaSlice<'_>,
    role: Role,
    message: u32,
    len: usize,
) -> Result<Option<usize>, OutOfBounds> {
    let mut chunk = [0; 256];
    for start in (0..len).step_by(chunk.len()) {
        let part = &mut chunk[..(len - start).min(256)];
        memory.read(start, part)?;
        if let Some(i) = (0..part.len()).find(|&i| part[i] != pattern(role, message, start + i)) {
            return Ok(Some(start + i));
        }
    }
    Ok(None)
}

/// The word after `swaps` compare-and-swaps.
pub(crate) const fn swapped(swaps: u32) -> u64 {
    0x0102_0304_0506_0708_u64.wrapping_mul(swaps as u64 + 1)
}

/// What fetch-and-add `m` adds.
pub(crate) const fn addend(m: u32) -> u64 {
    0x0000_0001_0000_0001_u64.wrapping_mul(m as u64 + 1)
}

/// The word before fetch-and-add `m`.
pub(crate) const fn added(m: u32) -> u64 {
    // 1 + 2 + .. + m of them.
    let sum = m as u64 * (m as u64 + 1) / 2;
    swapped(ATOMICS).wrapping_add(0x0000_0001_0000_0001_u64.wrapping_mul(sum))
}

/// A message that moves no payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    Hello,
    Written(u32),
    Ready(u32),
    Swapped(u32),
    Added(u32),
    Done,
}

impl Control {
    pub(crate) const fn encode(self) -> [u8; CONTROL_LEN] {
        let (kind, number) = match self {
            Self::Hello => (1, 0),
            Self::Written(m) => (2, m),
            Self::Ready(m) => (3, m),
            Self::Swapped(m) => (4, m),
            Self::Added(m) => (5, m),
            Self::Done => (6, 0),
        };
        let [a, b, c, d] = u32::to_le_bytes(number);
        [kind, 0, 0, 0, 0, 0, 0, 0, a, b, c, d, 0, 0, 0, 0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_tells_senders_messages_and_positions_apart() {
        for i in [0, 1, 255, 256, 257, 65535] {
            let here = pattern(Role::Server, 1000, i);
            assert_ne!(here, pattern(Role::Client, 1000, i), "sender");
            assert_ne!(here, pattern(Role::Server, 1001, i), "message");
            assert_ne!(here, pattern(Role::Server, 1000, i + 1), "next byte");
            assert_ne!(here, pattern(Role::Server, 1000, i + 256), "a packet on");
        }
        // As the other side's program computes it: (i * 31 + m * 7 + s * 13 + (i >> 8)) & 0xff.
        assert_eq!(pattern(Role::Client, 2003, 65535), ((65535 * 31 + 2003 * 7 + 26 + 255) & 0xff) as u8);
    }

    #[test]
    fn sizes_reach_from_nothing_to_the_longest() {
        assert_eq!((size(0), size(25)), (0, MAX_MESSAGE));
        assert!((0..TRANSFERS).all(|m| size(m) <= MAX_MESSAGE));
        assert_eq!(size(26), 26 * 7919 % 65537);
    }

    #[test]
    fn each_addition_continues_the_last() {
        assert_eq!(added(0), swapped(ATOMICS));
        for m in 0..ATOMICS {
            assert_eq!(added(m).wrapping_add(addend(m)), added(m + 1));
        }
    }
}

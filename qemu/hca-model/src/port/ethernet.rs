//! What an Ethernet port has besides its link: frame size, protocols, counters.

use super::vport::NicVport;
use crate::card::Card;

/// Counters of frames. Octets include the frame check sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FrameCounters {
    pub(crate) frames: u64,
    pub(crate) octets: u64,
    pub(crate) multicast: u64,
    pub(crate) broadcast: u64,
    pub(crate) sizes: FrameSizes,
}

/// Frames by size, as RFC 2819 and PPCNT divide them: up to 64, 127, 255, 511, 1,023, 1,518, 2,047, 4,095 and
/// 8,191 octets, and longer ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameSizes(pub(crate) [u64; 10]);

impl FrameSizes {
    const ZERO: Self = Self([0; 10]);

    /// Counts `frames` of `len` bytes each, without check sequences.
    #[inline]
    pub(crate) fn add(&mut self, len: u64, frames: u64) {
        let octets = len + CHECK_SEQUENCE;
        let size = match u64::BITS - octets.leading_zeros() {
            _ if octets <= 64 => 0,
            bits @ ..=10 => bits - 6,
            11 => 5 + u32::from(octets > 1518),
            bits => (bits - 5).min(9),
        };
        if let Some(count) = self.0.get_mut(size as usize) {
            *count += frames;
        }
    }
}

/// Bytes of the frame check sequence, which is never in memory.
const CHECK_SEQUENCE: u64 = 4;

impl FrameCounters {
    const ZERO: Self = Self { frames: 0, octets: 0, multicast: 0, broadcast: 0, sizes: FrameSizes::ZERO };

    /// Counts a frame.
    pub(crate) fn count(&mut self, frame: &[u8]) {
        self.frames += 1;
        self.octets += frame.len() as u64 + CHECK_SEQUENCE;
        self.sizes.add(frame.len() as u64, 1);
        match frame.first_chunk::<6>() {
            Some([0xff, 0xff, 0xff, 0xff, 0xff, 0xff]) => self.broadcast += 1,
            Some([first, ..]) if first & 1 != 0 => self.multicast += 1,
            _ => {}
        }
    }

    /// Counts `frames` to one port, `bytes` without their check sequences, by `sizes`.
    pub(crate) fn add(&mut self, frames: u64, bytes: u64, sizes: &FrameSizes) {
        self.frames += frames;
        self.octets += bytes + CHECK_SEQUENCE * frames;
        for (count, more) in self.sizes.0.iter_mut().zip(&sizes.0) {
            *count += more;
        }
    }

    /// Frames to one port.
    pub(crate) const fn unicast(&self) -> u64 {
        self.frames - self.multicast - self.broadcast
    }
}

/// Flow control of one direction (`pfcc_reg`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowControl {
    /// All priorities together (IEEE 802.3x).
    pub(crate) global: bool,
    /// A bit per priority (IEEE 802.1Qbb).
    pub(crate) priorities: u8,
}

/// An Ethernet port.
#[derive(Clone, Debug)]
pub(crate) struct EthernetPort {
    /// Largest frame with its check sequence.
    pub(crate) frame_size: u16,
    /// As PTYS has them (`eth_proto_capability`, `ext_eth_proto_capability`).
    pub(crate) protocols: (u32, u32),
    pub(crate) sent: FrameCounters,
    pub(crate) received: FrameCounters,
    /// Frames longer than `frame_size`.
    pub(crate) too_long: u64,
    /// Sent and obeyed pause frames. Its cable carries none: no buffer of the model fills.
    pub(crate) pause: (FlowControl, FlowControl),
}

impl EthernetPort {
    /// Shortest frame without its check sequence, bytes.
    pub(crate) const SHORTEST_FRAME: usize = 60;

    /// A port as at power-on.
    pub(crate) const fn new(card: &Card) -> Self {
        const PAUSE: FlowControl = FlowControl { global: true, priorities: 0 };
        Self {
            frame_size: NicVport::DEFAULT_FRAME,
            protocols: card.protocols,
            sent: FrameCounters::ZERO,
            received: FrameCounters::ZERO,
            too_long: 0,
            pause: (PAUSE, PAUSE),
        }
    }

    /// Returns whether a frame of `len` bytes, without its check sequence, is not too long.
    pub(crate) fn fits(&self, len: usize) -> bool {
        len as u64 + CHECK_SEQUENCE <= u64::from(self.frame_size)
    }

    /// Clears the counters.
    pub(crate) fn clear(&mut self) {
        (self.sent, self.received, self.too_long) = Default::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_count_by_their_destination() {
        let mut counters = FrameCounters::default();
        for destination in [[0xff; 6], [1, 0, 0x5e, 0, 0, 1], [2; 6]] {
            counters.count(&[&destination[..], &[0; 54]].concat());
        }
        counters.count(&[]);
        let mut expected = FrameCounters { frames: 4, octets: 3 * 64 + 4, ..FrameCounters::ZERO };
        (expected.multicast, expected.broadcast, expected.sizes.0[0]) = (1, 1, 4);
        assert_eq!((counters, counters.unicast()), (expected, 2));
    }

    #[test]
    fn frames_count_by_their_size() {
        let mut counters = FrameCounters::default();
        for size in [64, 65, 127, 128, 1518, 1519, 9000] {
            counters.count(&vec![0; size - CHECK_SEQUENCE as usize]);
        }
        assert_eq!(counters.sizes.0, [1, 2, 1, 0, 0, 1, 1, 0, 0, 1]);
    }
}

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
}

/// Bytes of the frame check sequence, which is never in memory.
const CHECK_SEQUENCE: u64 = 4;

impl FrameCounters {
    /// Counts a frame.
    pub(crate) fn count(&mut self, frame: &[u8]) {
        self.frames += 1;
        self.octets += frame.len() as u64 + CHECK_SEQUENCE;
        match frame.first_chunk::<6>() {
            Some([0xff, 0xff, 0xff, 0xff, 0xff, 0xff]) => self.broadcast += 1,
            Some([first, ..]) if first & 1 != 0 => self.multicast += 1,
            _ => {}
        }
    }

    /// Frames to one port.
    pub(crate) const fn unicast(&self) -> u64 {
        self.frames - self.multicast - self.broadcast
    }
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
}

impl EthernetPort {
    /// A port as at power-on.
    pub(crate) const fn new(card: &Card) -> Self {
        const NONE: FrameCounters = FrameCounters { frames: 0, octets: 0, multicast: 0, broadcast: 0 };
        Self {
            frame_size: NicVport::DEFAULT_FRAME,
            protocols: card.protocols,
            sent: NONE,
            received: NONE,
            too_long: 0,
        }
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
        let expected = FrameCounters { frames: 4, octets: 3 * 64 + 4, multicast: 1, broadcast: 1 };
        assert_eq!((counters, counters.unicast()), (expected, 2));
    }
}

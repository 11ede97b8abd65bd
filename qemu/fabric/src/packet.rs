//! Packets of any medium with an ICRC that is computed lazily.

use crate::ethernet::frame::{self, Frame};
use crate::infiniband::packet as infiniband;

/// Format of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// LRH to ICRC.
    InfiniBand,
    /// Destination address to the byte before the frame check sequence.
    Ethernet,
}

/// An InfiniBand packet, from LRH to ICRC, or an Ethernet frame without its frame check sequence.
/// (Captures add the variant CRC of InfiniBand, which belongs to the link.)
///
/// The ICRC is computed lazily, because most packets are neither captured nor changed. Call
/// [`seal`](Self::seal) before a packet is captured, corrupted or leaves the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    bytes: Vec<u8>,
    format: Format,
    /// The ICRC is not written yet.
    unsealed: bool,
}

impl Packet {
    /// Makes an InfiniBand packet of received bytes, whose ICRC is right or wrong.
    #[must_use]
    #[inline]
    pub const fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, format: Format::InfiniBand, unsealed: false }
    }

    /// Makes an InfiniBand packet with any last four bytes, which [`seal`](Self::seal) replaces by
    /// the ICRC.
    #[must_use]
    #[inline]
    pub const fn unsealed(bytes: Vec<u8>) -> Self {
        Self { bytes, format: Format::InfiniBand, unsealed: true }
    }

    /// Makes an Ethernet frame of received bytes.
    #[must_use]
    #[inline]
    pub const fn frame(bytes: Vec<u8>) -> Self {
        Self { bytes, format: Format::Ethernet, unsealed: false }
    }

    /// Makes a RoCE frame with any ICRC, which [`seal`](Self::seal) replaces.
    #[must_use]
    #[inline]
    pub const fn unsealed_frame(bytes: Vec<u8>) -> Self {
        Self { bytes, format: Format::Ethernet, unsealed: true }
    }

    /// Returns a copy of the packet in `buffer`, whose content is replaced.
    #[must_use]
    pub(crate) fn copied_to(&self, mut buffer: Vec<u8>) -> Self {
        buffer.clear();
        buffer.extend_from_slice(&self.bytes);
        Self { bytes: buffer, ..*self }
    }

    /// Writes the ICRC, if it is not written yet.
    pub fn seal(&mut self) {
        if std::mem::take(&mut self.unsealed) {
            match self.format {
                Format::InfiniBand => infiniband::write_icrc(&mut self.bytes),
                Format::Ethernet => frame::write_icrc(&mut self.bytes),
            }
        }
    }

    /// Marks an IP packet of Ethernet as congested, as [`frame::mark_congestion`] does. Returns
    /// whether it has been marked.
    pub fn mark_congestion(&mut self) -> bool {
        self.format == Format::Ethernet && frame::mark_congestion(&mut self.bytes)
    }

    /// Returns the bytes. The ICRC may not be written yet.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the bytes with their ICRC.
    pub fn sealed_bytes(&mut self) -> &[u8] {
        self.seal();
        &self.bytes
    }

    /// Inverts a bit, as a link error does. Bits after the packet's end are ignored.
    pub fn invert(&mut self, bit: u64) {
        self.seal();
        if let Some(byte) = self.bytes.get_mut((bit / 8) as usize) {
            *byte ^= 1 << (bit % 8);
        }
    }

    /// Returns whether the ICRC is right. Returns false for a packet without ICRC.
    #[must_use]
    #[inline]
    pub fn is_intact(&self) -> bool {
        self.unsealed || self.has_right_icrc()
    }

    fn has_right_icrc(&self) -> bool {
        match self.format {
            Format::InfiniBand => infiniband::icrc_is_right(&self.bytes),
            Format::Ethernet => Frame::parse(&self.bytes)
                .and_then(|frame| frame.roce())
                .is_some_and(|roce| roce.icrc_is_right(&self.bytes)),
        }
    }

    /// Returns the buffer, for another packet.
    #[must_use]
    #[inline]
    pub fn into_buffer(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ethernet::frame::{Ecn, Ip};
    use crate::infiniband::packet::{Bth, LNH_BTH, Lrh, Opcode, append_icrc};

    fn infiniband(icrc: [u8; 4]) -> Vec<u8> {
        let lrh = Lrh { length_words: 6, link_next_header: LNH_BTH, ..Lrh::default() }.to_bytes();
        [&lrh[..], &Bth::new(Opcode::RC_SEND_ONLY, 0xffff, 2, 3).to_bytes(), &icrc].concat()
    }

    /// A RoCE v2 frame over IPv4 with ECT(0), padded to 60 bytes.
    fn roce(icrc: [u8; 4]) -> Vec<u8> {
        let ethernet = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        let ip = [0x45, 2, 0, 44, 0, 0, 0x40, 0, 64, 17, 0x26, 0xbd, 10, 0, 0, 1, 10, 0, 0, 2];
        let udp = [0xc0, 0, 0x12, 0xb7, 0, 24, 0, 0];
        let bth = Bth::new(Opcode::RC_SEND_ONLY, 0xffff, 2, 3).to_bytes();
        [&ethernet[..], &ip, &udp, &bth, &icrc, &[0; 2]].concat()
    }

    #[test]
    fn sealing_writes_the_icrc_of_each_format_once() {
        for (mut packet, mut received) in [
            (Packet::unsealed(infiniband([7; 4])), Packet::new(infiniband([7; 4]))),
            (Packet::unsealed_frame(roce([7; 4])), Packet::frame(roce([7; 4]))),
        ] {
            assert!(packet.is_intact() && !received.is_intact());
            packet.seal();
            received.seal();
            assert!(packet.is_intact() && !received.is_intact(), "only packets without ICRC get one");
            assert_ne!(packet.bytes(), received.bytes());
            packet.invert(packet.bytes().len() as u64 * 8 - 60);
            packet.seal();
            assert!(!packet.is_intact());
        }
        let mut expected = infiniband([0; 4]);
        expected.truncate(20);
        append_icrc(&mut expected);
        assert_eq!(Packet::unsealed(infiniband([7; 4])).sealed_bytes(), expected);
        assert!(!Packet::frame(vec![0; 60]).is_intact(), "no ICRC");
    }

    #[test]
    fn congestion_is_marked_before_and_after_sealing() {
        let ecn = |packet: &Packet| Frame::parse(packet.bytes()).unwrap().ip().as_ref().map(Ip::ecn);
        let mut sealed = Packet::unsealed_frame(roce([0; 4]));
        sealed.seal();
        for mut packet in [Packet::unsealed_frame(roce([0; 4])), sealed] {
            assert!(packet.mark_congestion() && !packet.mark_congestion());
            assert_eq!(ecn(&packet), Some(Ecn::Congested));
            packet.seal();
            assert!(packet.is_intact());
        }
        let mut packet = Packet::new(roce([0; 4]));
        assert!(!packet.mark_congestion(), "the same bytes on InfiniBand are no IP packet");
    }
}

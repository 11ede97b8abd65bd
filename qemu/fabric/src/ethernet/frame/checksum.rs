//! Internet checksums (RFC 1071) of IPv4 headers, TCP and UDP.

use super::Frame;
use super::ip::{Ip, Transport, Version, be16, protocol};

/// Offset of the checksum in an IPv4 header.
const IPV4_CHECKSUM: usize = 10;
/// Offset of the checksum in a TCP header.
const TCP_CHECKSUM: usize = 16;
/// Offset of the checksum in a UDP header.
const UDP_CHECKSUM: usize = 6;

/// Returns the one's complement sum of the 16-bit words of `bytes`. An odd last byte is the upper
/// half of a word.
#[must_use]
pub fn sum(bytes: &[u8]) -> u16 {
    // 2^32 is 1 modulo 2^16 - 1, so that wider words have the same sum.
    let (words, rest) = bytes.as_chunks::<4>();
    let mut last = [0; 4];
    for (to, from) in last.iter_mut().zip(rest) {
        *to = *from;
    }
    let words = words.iter().chain([&last]);
    fold(words.map(|word| u64::from(u32::from_be_bytes(*word))).sum())
}

/// Returns the one's complement sum of two sums.
#[must_use]
pub const fn add(one: u16, other: u16) -> u16 {
    fold(one as u64 + other as u64)
}

const fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Checksum of a transport header.
struct TransportSum {
    /// Sum of pseudo header, header and payload, the checksum included.
    sum: u16,
    /// Offset of the checksum in the frame.
    at: usize,
    is_udp: bool,
}

impl Ip<'_> {
    /// Returns the one's complement sum from the IP header to the end of the packet, as the
    /// `check_sum` of a completion has it.
    #[must_use]
    pub fn sum(&self) -> u16 {
        sum(self.packet())
    }

    /// Returns whether the checksum of an IPv4 header is right. IPv6 has none, and returns true.
    #[must_use]
    pub fn header_checksum_is_right(&self) -> bool {
        self.version() == Version::V6 || sum(self.header()) == 0xffff
    }

    /// Returns whether the checksum of TCP or UDP is right. Returns `None` without such a header.
    ///
    /// UDP over IPv4 may go without checksum: 0 is right (RFC 768). Over IPv6 it is wrong (RFC 8200
    /// 8.1).
    #[must_use]
    pub fn transport_checksum_is_right(&self) -> Option<bool> {
        let transport = self.transport_sum()?;
        let is_absent = transport.is_udp && be16(self.between(transport.at, self.end()), 0) == Some(0);
        Some(match self.version() {
            Version::V4 if is_absent => true,
            Version::V6 if is_absent => false,
            _ => transport.sum == 0xffff,
        })
    }

    /// Returns the IPv4 header with its options.
    fn header(&self) -> &[u8] {
        self.between(self.start(), self.transport_start())
    }

    fn transport_sum(&self) -> Option<TransportSum> {
        let start = self.transport_start();
        let (number, at, end) = match self.transport() {
            Transport::Tcp { .. } => (protocol::TCP, TCP_CHECKSUM, self.end()),
            Transport::Udp { end, .. } => (protocol::UDP, UDP_CHECKSUM, end),
            Transport::Other => return None,
        };
        if self.is_cut() {
            return None;
        }
        // IPv4 and IPv6 arrange the pseudo header differently, with the same sum.
        let addresses = add(sum(self.source()), sum(self.destination()));
        let pseudo = add(addresses, add(u16::from(number), (end - start) as u16));
        let sum = add(pseudo, sum(self.between(start, end)));
        Some(TransportSum { sum, at: start + at, is_udp: number == protocol::UDP })
    }
}

/// Writes checksums of a frame: that of an IPv4 header if `header`, that of TCP or UDP if
/// `transport`. Leaves frames as is that have no such header.
pub fn write_checksums(frame: &mut [u8], header: bool, transport: bool) {
    let Some(ip) = Frame::parse(frame).and_then(|frame| frame.ip()) else { return };
    let in_header = (header && ip.version() == Version::V4)
        .then(|| (ip.start() + IPV4_CHECKSUM, sum(ip.header()), false));
    let in_transport =
        ip.transport_sum().filter(|_| transport).map(|found| (found.at, found.sum, found.is_udp));
    for (at, sum, is_udp) in in_header.into_iter().chain(in_transport) {
        let Some(place) = frame.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<2>) else { continue };
        // Without the former checksum. The rest is never all zero, so that 0 stands for 0xffff.
        let rest = add(sum, !u16::from_be_bytes(*place));
        let checksum = if rest == 0 { 0 } else { !rest };
        // UDP keeps 0 for datagrams without checksum (RFC 768).
        *place = if is_udp && checksum == 0 { [0xff; 2] } else { checksum.to_be_bytes() };
    }
}

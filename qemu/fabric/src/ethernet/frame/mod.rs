//! Frames of Ethernet II, from the destination address to the byte before the frame check sequence.
//!
//! [`Frame::parse`] is the only parser, and [`Header::parse`] its first part, which is all that a
//! switch needs. They copy no payload and check each length once.
//!
//! | module | subject |
//! |---|---|
//! | `ip` | IPv4 and IPv6 with their extension headers, TCP, UDP |
//! | `roce` | RoCE v1 and v2 up to the BTH, ICRC |
//! | `checksum` | sums of IP, TCP and UDP |
//! | `congestion` | congestion mark of IP packets |
//! | `toeplitz` | the hash of receive side scaling |

mod checksum;
mod congestion;
mod ip;
mod roce;
#[cfg(test)]
mod tests;
mod toeplitz;

use ib_types::MacAddress;

pub use checksum::{sum, write_checksums};
pub use congestion::mark_congestion;
pub use ip::{Ecn, IPV4_LEN, IPV6_LEN, Ip, Transport, UDP_LEN, Version, protocol};
pub use roce::{Roce, UDP_PORT, write_icrc};
pub use toeplitz::toeplitz;

use crate::infiniband::packet::{GRH_NEXT_HEADER_IBA, Grh};

use ip::be16;

/// EtherTypes (IEEE 802 numbers).
pub mod ether_type {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// Customer VLAN tag (IEEE 802.1Q).
    pub const VLAN: u16 = 0x8100;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// Service VLAN tag (IEEE 802.1ad).
    pub const SERVICE_VLAN: u16 = 0x88a8;
    /// RoCE v1.
    pub const ROCE_V1: u16 = 0x8915;
}

/// Bytes of the addresses and the EtherType of a frame without tags.
pub const HEADER_LEN: usize = 14;
/// Bytes of a VLAN tag.
pub const TAG_LEN: usize = 4;
/// Tags that are parsed. The EtherType of a further one counts as that of the payload.
const TAGS: usize = 2;
/// Bytes of an ARP packet for IPv4 over Ethernet.
const ARP_LEN: usize = 28;

/// A VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// EtherType of the tag: [`ether_type::VLAN`] or [`ether_type::SERVICE_VLAN`].
    pub kind: u16,
    /// Tag control information: priority, drop eligibility and VLAN.
    pub tci: u16,
}

impl Tag {
    /// Returns the VLAN identifier. 0 is a priority tag, which names no VLAN.
    #[must_use]
    pub const fn vid(self) -> u16 {
        self.tci & 0xfff
    }

    /// Returns the priority code point.
    #[must_use]
    pub const fn priority(self) -> u8 {
        (self.tci >> 13) as u8
    }
}

/// The header after the EtherType, if it is complete and its lengths agree with the frame's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network<'a> {
    /// IPv4 or IPv6.
    Ip(Ip<'a>),
    /// ARP for IPv4 over Ethernet.
    Arp,
    /// RoCE v1: a global route header.
    Grh(Grh),
    /// None of these, or malformed.
    Other,
}

/// Addresses, tags and EtherType of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    destination: MacAddress,
    source: MacAddress,
    tags: [Option<Tag>; TAGS],
    ether_type: u16,
    /// Offset of the first byte after the last EtherType.
    start: usize,
}

impl Header {
    /// Parses the front of a frame. Returns `None` if it is shorter than [`HEADER_LEN`].
    #[must_use]
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (destination, rest) = bytes.split_first_chunk()?;
        let (source, rest) = rest.split_first_chunk()?;
        let (first, _) = rest.split_first_chunk()?;
        let mut ether_type = u16::from_be_bytes(*first);
        let mut start = HEADER_LEN;
        let mut tags = [None; TAGS];
        for tag in &mut tags {
            if !matches!(ether_type, ether_type::VLAN | ether_type::SERVICE_VLAN) {
                break;
            }
            let (Some(tci), Some(next)) = (be16(bytes, start), be16(bytes, start + 2)) else { break };
            *tag = Some(Tag { kind: ether_type, tci });
            ether_type = next;
            start += TAG_LEN;
        }
        let [destination, source] = [*destination, *source].map(MacAddress);
        Some(Self { destination, source, tags, ether_type, start })
    }

    /// Returns the destination address.
    #[must_use]
    pub const fn destination(&self) -> MacAddress {
        self.destination
    }

    /// Returns the source address.
    #[must_use]
    pub const fn source(&self) -> MacAddress {
        self.source
    }

    /// Returns the outermost tag.
    #[must_use]
    pub const fn tag(&self) -> Option<Tag> {
        let [outer, _] = self.tags;
        outer
    }

    /// Returns the tag after the outermost one.
    #[must_use]
    pub const fn inner_tag(&self) -> Option<Tag> {
        let [_, inner] = self.tags;
        inner
    }

    /// Returns the VLAN of the outermost tag, or 0 without tag.
    #[must_use]
    pub fn vlan(&self) -> u16 {
        self.tag().map_or(0, Tag::vid)
    }

    /// Returns the EtherType of the payload, or the length of an IEEE 802.3 frame.
    #[must_use]
    pub const fn ether_type(&self) -> u16 {
        self.ether_type
    }

    /// Returns the offset of the payload: the first byte after the last EtherType.
    #[must_use]
    pub const fn start(&self) -> usize {
        self.start
    }
}

/// A frame whose addresses and EtherType are complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    bytes: &'a [u8],
    header: Header,
    network: Network<'a>,
}

impl<'a> Frame<'a> {
    /// Parses a frame. Returns `None` if it is shorter than [`HEADER_LEN`].
    #[must_use]
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let header = Header::parse(bytes)?;
        let start = header.start();
        let network = match header.ether_type() {
            ether_type::IPV4 => Ip::parse_v4(bytes, start).map(Network::Ip),
            ether_type::IPV6 => Ip::parse_v6(bytes, start).map(Network::Ip),
            ether_type::ROCE_V1 => global_route(bytes, start).map(Network::Grh),
            ether_type::ARP => is_arp(bytes, start).then_some(Network::Arp),
            _ => None,
        };
        Some(Self { bytes, header, network: network.unwrap_or(Network::Other) })
    }

    /// Returns addresses, tags and EtherType.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the header after the EtherType.
    #[must_use]
    pub const fn network(&self) -> Network<'a> {
        self.network
    }

    /// Returns the bytes between two offsets.
    fn between(&self, start: usize, end: usize) -> &'a [u8] {
        self.bytes.get(start..end).unwrap_or_default()
    }

    /// Returns the IP header.
    #[must_use]
    pub const fn ip(&self) -> Option<Ip<'a>> {
        match self.network {
            Network::Ip(ip) => Some(ip),
            _ => None,
        }
    }
}

/// Returns whether an ARP packet for IPv4 over Ethernet (RFC 826) is at an offset.
fn is_arp(bytes: &[u8], at: usize) -> bool {
    let packet = bytes.get(at..).and_then(<[u8]>::first_chunk::<ARP_LEN>);
    packet.is_some_and(|packet| packet.starts_with(&[0, 1, 8, 0, 6, 4]))
}

/// Parses the global route header of a RoCE v1 packet. Returns `None` if the packet is longer than
/// the frame, or no BTH follows.
fn global_route(bytes: &[u8], start: usize) -> Option<Grh> {
    let grh = Grh::parse(bytes.get(start..)?).ok()?;
    let end = start + Grh::LEN + usize::from(grh.payload_len);
    (grh.next_header == GRH_NEXT_HEADER_IBA && end <= bytes.len()).then_some(grh)
}

//! IPv4 (RFC 791) and IPv6 (RFC 8200), and the front of TCP and UDP.

use ib_types::Gid;

/// IP protocol numbers.
pub mod protocol {
    /// Hop-by-hop options of IPv6.
    pub const HOP_BY_HOP: u8 = 0;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// Routing header of IPv6.
    pub const ROUTING: u8 = 43;
    /// Fragment header of IPv6.
    pub const FRAGMENT: u8 = 44;
    /// Destination options of IPv6.
    pub const DESTINATION: u8 = 60;
}

/// Bytes of an IPv4 header without options.
pub const IPV4_LEN: usize = 20;
/// Bytes of an IPv6 header without extensions.
pub const IPV6_LEN: usize = 40;
/// Bytes of a UDP header.
pub const UDP_LEN: usize = 8;
/// Bytes of a TCP header without options.
const TCP_LEN: usize = 20;
/// Extension headers of IPv6 that are parsed, so that a frame of nothing else costs little.
const EXTENSIONS: usize = 8;

/// Version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Version 4.
    V4,
    /// Version 6.
    V6,
}

/// The two bits of explicit congestion notification (RFC 3168).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Ecn {
    /// The sender does not support it.
    NotCapable = 0,
    /// ECT(1).
    Capable1 = 1,
    /// ECT(0).
    Capable0 = 2,
    /// CE: a queue on the way was congested.
    Congested = 3,
}

impl Ecn {
    /// Returns the lower two bits of a traffic class.
    #[must_use]
    pub const fn from_traffic_class(class: u8) -> Self {
        match class & 3 {
            0 => Self::NotCapable,
            1 => Self::Capable1,
            2 => Self::Capable0,
            _ => Self::Congested,
        }
    }
}

/// Transport header of an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp {
        /// Source port.
        source: u16,
        /// Destination port.
        destination: u16,
        /// Flags: NS to FIN, 9 bits.
        flags: u16,
        /// Offset of the payload in the frame.
        payload: usize,
    },
    /// UDP.
    Udp {
        /// Source port.
        source: u16,
        /// Destination port.
        destination: u16,
        /// Offset of the first byte after the datagram in the frame. The IP packet may be longer.
        end: usize,
    },
    /// Another protocol, a fragment, or malformed.
    Other,
}

/// An IP packet whose headers are complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ip<'a> {
    /// The frame.
    bytes: &'a [u8],
    version: Version,
    /// Offset of the header in the frame.
    start: usize,
    /// Offset of the first byte after the header and its extensions.
    transport_start: usize,
    /// Offset of the first byte after the packet.
    end: usize,
    /// The header names more bytes than the frame has.
    is_cut: bool,
    protocol: u8,
    is_fragment: bool,
    transport: Transport,
}

impl<'a> Ip<'a> {
    pub(super) fn parse_v4(bytes: &'a [u8], start: usize) -> Option<Self> {
        let packet = bytes.get(start..)?;
        let header = packet.first_chunk::<IPV4_LEN>()?;
        let header_len = usize::from(header[0] & 0xf) * 4;
        let total_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let lengths_agree = header_len >= IPV4_LEN && total_len >= header_len && header_len <= packet.len();
        if header[0] >> 4 != 4 || !lengths_agree {
            return None;
        }
        // More fragments, or an offset.
        let is_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
        let ip = Self {
            bytes,
            version: Version::V4,
            start,
            transport_start: start + header_len,
            end: start + total_len.min(packet.len()),
            is_cut: total_len > packet.len(),
            protocol: header[9],
            is_fragment,
            transport: Transport::Other,
        };
        Some(ip.with_transport())
    }

    pub(super) fn parse_v6(bytes: &'a [u8], start: usize) -> Option<Self> {
        let header = bytes.get(start..)?.first_chunk::<IPV6_LEN>()?;
        let mut at = start + IPV6_LEN;
        let named = at + usize::from(u16::from_be_bytes([header[4], header[5]]));
        let end = named.min(bytes.len());
        if header[0] >> 4 != 6 {
            return None;
        }
        let mut protocol = header[6];
        let mut is_fragment = false;
        for _ in 0..EXTENSIONS {
            let is_fragment_header = protocol == protocol::FRAGMENT;
            let is_option =
                matches!(protocol, protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION);
            if is_fragment || !(is_option || is_fragment_header) {
                break;
            }
            let extension = bytes.get(at..end)?.first_chunk::<8>()?;
            protocol = extension[0];
            if is_fragment_header {
                // An offset, or more fragments. Without both it is an atomic fragment (RFC 6946).
                is_fragment = u16::from_be_bytes([extension[2], extension[3]]) & 0xfff9 != 0;
                at += 8;
            } else {
                at += 8 + usize::from(extension[1]) * 8;
            }
        }
        if at > end {
            return None;
        }
        let ip = Self {
            bytes,
            version: Version::V6,
            start,
            transport_start: at,
            end,
            is_cut: named > end,
            protocol,
            is_fragment,
            transport: Transport::Other,
        };
        Some(ip.with_transport())
    }

    fn with_transport(mut self) -> Self {
        if !self.is_fragment {
            self.transport = self.parse_transport().unwrap_or(Transport::Other);
        }
        self
    }

    fn parse_transport(&self) -> Option<Transport> {
        let payload = self.bytes.get(self.transport_start..self.end)?;
        let ports = || Some((be16(payload, 0)?, be16(payload, 2)?));
        match self.protocol {
            protocol::TCP => {
                let header = payload.first_chunk::<TCP_LEN>()?;
                let header_len = usize::from(header[12] >> 4) * 4;
                let flags = u16::from_be_bytes([header[12] & 1, header[13]]);
                let (source, destination) = ports()?;
                (TCP_LEN..=payload.len()).contains(&header_len).then_some(Transport::Tcp {
                    source,
                    destination,
                    flags,
                    payload: self.transport_start + header_len,
                })
            }
            protocol::UDP => {
                let length = usize::from(be16(payload, 4)?);
                let (source, destination) = ports()?;
                (UDP_LEN..=payload.len()).contains(&length).then_some(Transport::Udp {
                    source,
                    destination,
                    end: self.transport_start + length,
                })
            }
            _ => None,
        }
    }

    /// Returns the version.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Returns the offset of the IP header in the frame.
    #[must_use]
    pub const fn start(&self) -> usize {
        self.start
    }

    /// Returns the offset in the frame of the first byte after the IP header, its options and the
    /// extension headers that are parsed.
    #[must_use]
    pub const fn transport_start(&self) -> usize {
        self.transport_start
    }

    /// Returns the offset in the frame of the first byte after the IP packet. Padding follows.
    #[must_use]
    pub const fn end(&self) -> usize {
        self.end
    }

    /// Returns whether the header names more bytes than the frame has: no checksum of it is right, and it is not RoCE. Flow
    /// tables look at its headers all the same.
    #[must_use]
    pub const fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Returns the bytes of the IP packet: header to payload.
    #[must_use]
    pub fn packet(&self) -> &'a [u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    /// Returns the protocol after the parsed headers, one of [`protocol`] or another.
    #[must_use]
    pub const fn protocol(&self) -> u8 {
        self.protocol
    }

    /// Returns whether the packet is a fragment. The first fragment, too, has no transport header
    /// that a receiver may use.
    #[must_use]
    pub const fn is_fragment(&self) -> bool {
        self.is_fragment
    }

    /// Returns the transport header.
    #[must_use]
    pub const fn transport(&self) -> Transport {
        self.transport
    }

    /// Returns source and destination port of TCP or UDP.
    #[must_use]
    pub const fn ports(&self) -> Option<(u16, u16)> {
        match self.transport {
            Transport::Tcp { source, destination, .. } | Transport::Udp { source, destination, .. } => {
                Some((source, destination))
            }
            Transport::Other => None,
        }
    }

    /// Returns the source address: 4 or 16 bytes.
    #[must_use]
    pub fn source(&self) -> &'a [u8] {
        match self.version {
            Version::V4 => self.field(12, 4),
            Version::V6 => self.field(8, 16),
        }
    }

    /// Returns the destination address: 4 or 16 bytes.
    #[must_use]
    pub fn destination(&self) -> &'a [u8] {
        match self.version {
            Version::V4 => self.field(16, 4),
            Version::V6 => self.field(24, 16),
        }
    }

    /// Returns the source address as the GID of RoCE v2: IPv4 addresses are mapped into IPv6.
    #[must_use]
    pub fn source_gid(&self) -> Gid {
        as_gid(self.source())
    }

    /// Returns the destination address as the GID of RoCE v2.
    #[must_use]
    pub fn destination_gid(&self) -> Gid {
        as_gid(self.destination())
    }

    /// Returns the traffic class, or the type of service of IPv4: DSCP and ECN.
    #[must_use]
    pub fn traffic_class(&self) -> u8 {
        let word = be16(self.bytes, self.start).unwrap_or_default();
        match self.version {
            Version::V4 => word as u8,
            Version::V6 => (word >> 4) as u8,
        }
    }

    /// Returns the field of explicit congestion notification.
    #[must_use]
    pub fn ecn(&self) -> Ecn {
        Ecn::from_traffic_class(self.traffic_class())
    }

    /// Returns the hop limit, or the time to live of IPv4.
    #[must_use]
    pub fn hop_limit(&self) -> u8 {
        let at = match self.version {
            Version::V4 => 8,
            Version::V6 => 7,
        };
        self.field(at, 1).first().copied().unwrap_or_default()
    }

    /// Returns the bytes of the frame between two offsets.
    pub(super) fn between(&self, start: usize, end: usize) -> &'a [u8] {
        self.bytes.get(start..end).unwrap_or_default()
    }

    fn field(&self, at: usize, len: usize) -> &'a [u8] {
        self.between(self.start + at, self.start + at + len)
    }
}

/// Returns an address of 4 or 16 bytes as a GID.
fn as_gid(address: &[u8]) -> Gid {
    let mut gid = Gid::ZERO;
    if address.len() == 4 {
        gid.0[10..12].fill(0xff);
    }
    if let Some(place) = gid.0.get_mut(16 - address.len()..) {
        place.copy_from_slice(address);
    }
    gid
}

/// Returns the 16 bits at an offset.
pub(super) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|word| u16::from_be_bytes(*word))
}

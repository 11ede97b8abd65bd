//! What goes over the wire: the 48-byte header, extension headers, and the private data of a connection request.
//!
//! Protocol 3.1 of `net/rds` in Linux (`rds.h`, `ib.h`); everything is big-endian. Addresses are not in the header: the
//! connection implies them.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of the header that starts every frame.
pub const HEADER_LEN: usize = 48;
/// Payload bytes of every fragment but a message's last.
pub const FRAGMENT_LEN: usize = 4096;
/// The longest frame.
pub const FRAME_LEN: usize = HEADER_LEN + FRAGMENT_LEN;
/// Bytes of a congestion map: one bit for each port.
pub const CONGESTION_MAP_LEN: usize = 8192;
/// The longest message.
pub const MAX_MESSAGE_LEN: usize = 1 << 20;
/// Port of the connection manager's service (RDMA-CM port space TCP).
pub const SERVICE_PORT: u16 = 18634;

bitflags::bitflags! {
    /// Header flags.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Flags: u8 {
        /// The payload is the sender's congestion map.
        const CONG_BITMAP = 0x01;
        /// Acknowledge at once after the complete message.
        const ACK_REQUIRED = 0x02;
        /// Sent again after a reconnection: drop it if it was seen before.
        const RETRANSMITTED = 0x04;
        const _ = !0;
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Message number on this connection; 0 in acknowledgements and maps.
    pub sequence: u64,
    /// Highest message number received complete, cumulative.
    pub ack: u64,
    /// Payload bytes of the whole message.
    pub len: u32,
    /// Sending socket's port; 0 is RDS itself.
    pub sport: u16,
    /// Receiving socket's port; 0 is RDS itself.
    pub dport: u16,
    /// Flags.
    pub flags: Flags,
    /// Newly posted receives; 0 without flow control.
    pub credit: u8,
    /// Extension headers, see [`Extensions`].
    pub extensions: [u8; 16],
}

impl Header {
    /// An acknowledgement that carries nothing else.
    #[must_use]
    pub const fn acknowledgement(ack: u64) -> Self {
        Self {
            sequence: 0,
            ack,
            len: 0,
            sport: 0,
            dport: 0,
            flags: Flags::empty(),
            credit: 0,
            extensions: [0; 16],
        }
    }

    /// The bytes on the wire, checksum included.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0..8].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.ack.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.len.to_be_bytes());
        bytes[20..22].copy_from_slice(&self.sport.to_be_bytes());
        bytes[22..24].copy_from_slice(&self.dport.to_be_bytes());
        bytes[24] = self.flags.bits();
        bytes[25] = self.credit;
        bytes[32..48].copy_from_slice(&self.extensions);
        let checksum = !sum(&bytes);
        bytes[30..32].copy_from_slice(&checksum.to_be_bytes());
        bytes
    }

    /// The header, if its checksum is right. A checksum of 0 means that the sender did not compute one.
    ///
    /// # Errors
    /// [`BadChecksum`].
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self, BadChecksum> {
        let be16 = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let be32 = |at: usize| (u32::from(be16(at)) << 16) | u32::from(be16(at + 2));
        let be64 = |at: usize| (u64::from(be32(at)) << 32) | u64::from(be32(at + 4));
        if be16(30) != 0 && sum(bytes) != 0xffff {
            return Err(BadChecksum);
        }
        let mut extensions = [0; 16];
        extensions.copy_from_slice(&bytes[32..48]);
        Ok(Self {
            sequence: be64(0),
            ack: be64(8),
            len: be32(16),
            sport: be16(20),
            dport: be16(22),
            flags: Flags::from_bits_retain(bytes[24]),
            credit: bytes[25],
            extensions,
        })
    }

    /// Whether this is a frame that only acknowledges.
    #[must_use]
    pub const fn is_acknowledgement(&self) -> bool {
        self.sport == 0 && self.dport == 0 && self.len == 0
    }

    /// Whether this is a fragment of a congestion map: the flags are exactly that one.
    #[must_use]
    pub const fn is_congestion_map(&self) -> bool {
        self.flags.bits() == Flags::CONG_BITMAP.bits()
    }

    /// Whether `other` can be a fragment of the same message: acknowledgement, credit and checksum may differ.
    #[must_use]
    pub fn same_message(&self, other: &Self) -> bool {
        self.sequence == other.sequence
            && self.len == other.len
            && self.sport == other.sport
            && self.dport == other.dport
    }

    /// Number of frames that the message takes; a message of no bytes takes one.
    #[must_use]
    pub const fn fragments(&self) -> usize {
        fragments(self.len as usize)
    }
}

/// Number of frames that `len` bytes take.
#[must_use]
pub const fn fragments(len: usize) -> usize {
    if len == 0 { 1 } else { len.div_ceil(FRAGMENT_LEN) }
}

/// Payload bytes of frame `index` of a message of `len` bytes.
#[must_use]
pub const fn fragment_len(len: usize, index: usize) -> usize {
    let rest = len.saturating_sub(index * FRAGMENT_LEN);
    if rest > FRAGMENT_LEN { FRAGMENT_LEN } else { rest }
}

/// The header's checksum is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadChecksum;

/// The one's-complement sum of the 16-bit words, as in RFC 1071. Eight bytes are added at a time: the sum modulo
/// 2^16 − 1 does not depend on how the carries are gathered.
fn sum(bytes: &[u8; HEADER_LEN]) -> u16 {
    let mut total: u64 = 0;
    for chunk in bytes.as_chunks::<8>().0 {
        let word = u64::from_be_bytes(*chunk);
        total += (word >> 32) + (word & 0xffff_ffff);
    }
    total = (total >> 32) + (total & 0xffff_ffff);
    total = (total >> 16) + (total & 0xffff);
    total = (total >> 16) + (total & 0xffff);
    ((total >> 16) + (total & 0xffff)) as u16
}

/// One extension header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extension {
    /// Type 2: the sender used this remote key.
    Rdma {
        /// The receiver's own rkey.
        rkey: u32,
    },
    /// Type 3: a region that the sender offers.
    RdmaDest {
        /// The sender's rkey.
        rkey: u32,
        /// Offset of the region's first byte.
        offset: u32,
    },
    /// Type 4, behind type 2: how much the sender transferred.
    RdmaBytes {
        /// Bytes.
        bytes: u32,
        /// It wrote the receiver's memory; otherwise it read it.
        is_write: bool,
    },
    /// A type that RDS over InfiniBand skips (version, multipath, capabilities).
    Other(u8),
}

impl Extension {
    /// The 16 bytes of a header that has this extension alone.
    #[must_use]
    pub fn encode(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        match self {
            Self::Rdma { rkey } => {
                bytes[0] = 2;
                bytes[1..5].copy_from_slice(&rkey.to_be_bytes());
            }
            Self::RdmaDest { rkey, offset } => {
                bytes[0] = 3;
                bytes[1..5].copy_from_slice(&rkey.to_be_bytes());
                bytes[5..9].copy_from_slice(&offset.to_be_bytes());
            }
            Self::RdmaBytes { bytes: count, is_write } => {
                bytes[0] = 4;
                bytes[1..5].copy_from_slice(&count.to_be_bytes());
                bytes[5] = if is_write { 1 } else { 2 };
            }
            Self::Other(_) => {}
        }
        bytes
    }
}

/// Walks the 16 bytes of extension headers. Stops at the terminator, at an unknown type (whose length nobody knows), and
/// where a body would run over the end.
#[derive(Clone, Debug)]
pub struct Extensions<'a>(&'a [u8]);

impl<'a> Extensions<'a> {
    /// The extensions of a header.
    #[must_use]
    pub const fn of(header: &'a Header) -> Self {
        Self(&header.extensions)
    }
}

impl Iterator for Extensions<'_> {
    type Item = Extension;

    fn next(&mut self) -> Option<Extension> {
        let (&kind, rest) = self.0.split_first()?;
        let len = match kind {
            1 | 2 | 6 | 7 => 4,
            3 | 4 => 8,
            5 => 2,
            8 => 1,
            _ => 0,
        };
        if len == 0 || rest.len() < len {
            self.0 = &[];
            return None;
        }
        let (body, rest) = rest.split_at(len);
        self.0 = rest;
        let be32 =
            |at: usize| body.get(at..at + 4).map_or(0, |b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]));
        Some(match kind {
            2 => Extension::Rdma { rkey: be32(0) },
            3 => Extension::RdmaDest { rkey: be32(0), offset: be32(4) },
            4 => Extension::RdmaBytes { bytes: be32(0), is_write: body.get(4) == Some(&1) },
            _ => Extension::Other(kind),
        })
    }
}

/// Protocol version that this crate proposes and speaks.
pub const VERSION: (u8, u8) = (3, 1);

/// The minor versions that are spoken, one bit for each: 3.0's bit is in it as Linux has it, too.
pub const MINOR_MASK: u16 = 0x0003;

/// The consumer's private data of a connection request and its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectData {
    /// Address of whoever sends this.
    pub source: IpAddr,
    /// Address of whoever receives it.
    pub destination: IpAddr,
    /// Protocol version.
    pub version: (u8, u8),
    /// Minor versions that the sender speaks, one bit for each.
    pub minor_mask: u16,
    /// Type of service: the connection's service level is its low four bits.
    pub tos: u8,
}

/// Bytes of [`ConnectData`] between IPv4 addresses.
pub const CONNECT_DATA_V4_LEN: usize = 32;
/// Bytes of [`ConnectData`] between IPv6 addresses.
pub const CONNECT_DATA_V6_LEN: usize = 56;

impl ConnectData {
    /// The bytes, and how many they are. Both addresses are of one family; a mixed pair is written as IPv6.
    #[must_use]
    pub fn encode(&self) -> ([u8; CONNECT_DATA_V6_LEN], usize) {
        let mut bytes = [0; CONNECT_DATA_V6_LEN];
        let (tail, len) = match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                bytes[0..4].copy_from_slice(&source.octets());
                bytes[4..8].copy_from_slice(&destination.octets());
                (8, CONNECT_DATA_V4_LEN)
            }
            (source, destination) => {
                bytes[0..16].copy_from_slice(&v6(source).octets());
                bytes[16..32].copy_from_slice(&v6(destination).octets());
                (32, CONNECT_DATA_V6_LEN)
            }
        };
        bytes[tail] = self.version.0;
        bytes[tail + 1] = self.version.1;
        bytes[tail + 2..tail + 4].copy_from_slice(&self.minor_mask.to_be_bytes());
        bytes[tail + 4] = self.tos;
        // Reserved, the outdated acknowledgement and the credits (no flow control) stay zero.
        (bytes, len)
    }

    /// Reads the private data of a peer whose addresses are IPv4 or not (`is_v4`, from the connection manager).
    /// InfiniBand pads private data, so more bytes than needed are as good. None if it is too short.
    #[must_use]
    pub fn decode(bytes: &[u8], is_v4: bool) -> Option<Self> {
        let len = if is_v4 { CONNECT_DATA_V4_LEN } else { CONNECT_DATA_V6_LEN };
        let bytes = bytes.get(..len)?;
        let (source, destination, tail) = if is_v4 {
            let at = |i: usize| IpAddr::V4(Ipv4Addr::new(bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]));
            (at(0), at(4), 8)
        } else {
            let at = |i: usize| {
                let mut octets = [0; 16];
                octets.copy_from_slice(&bytes[i..i + 16]);
                IpAddr::V6(Ipv6Addr::from(octets))
            };
            (at(0), at(16), 32)
        };
        Some(Self {
            source,
            destination,
            version: (bytes[tail], bytes[tail + 1]),
            minor_mask: u16::from_be_bytes([bytes[tail + 2], bytes[tail + 3]]),
            tos: bytes[tail + 4],
        })
    }

    /// Between no addresses yet, for a version.
    pub(crate) const fn proposal(version: (u8, u8)) -> Self {
        let nowhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        Self { source: nowhere, destination: nowhere, version, minor_mask: MINOR_MASK, tos: 0 }
    }

    /// The version that the two sides speak, by what a peer proposes in its request: 3.1 exactly; of 4.x the highest minor version
    /// that both have; and 4.0 with a peer that names none (major 0), as Linux does. None: refuse it.
    #[must_use]
    pub const fn select_version(&self) -> Option<(u8, u8)> {
        match self.version {
            (3, 1) => Some((3, 1)),
            (0, _) => Some((4, 0)),
            (4, _) => match (self.minor_mask & MINOR_MASK).checked_ilog2() {
                Some(minor) => Some((4, minor as u8)),
                None => None,
            },
            _ => None,
        }
    }

    /// Whether this crate speaks the version of a peer's reply: 3.1, or 4.x, whose wire format is the same.
    #[must_use]
    pub const fn is_acceptable(&self) -> bool {
        matches!(self.version, (3, 1) | (4, _))
    }
}

fn v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// Private data of a refusal: the consumer's number 1 in little-endian order, which a Linux initiator understands as
/// "drop the attempt and try again".
pub const REJECT_DATA: [u8; 4] = [1, 0, 0, 0];

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits
            .chunks(2)
            .map(|pair| u8::from_str_radix(core::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    const NONE: Header = Header::acknowledgement(0);

    /// Headers captured between two Linux guests.
    fn golden() -> [(Header, &'static str); 7] {
        let mut dest = [0; 16];
        dest[..9].copy_from_slice(&hex("03 00000300 00000100"));
        let mut chaser = [0; 16];
        chaser[..5].copy_from_slice(&hex("02 00000300"));
        [
            (
                Header { len: 8192, flags: Flags::CONG_BITMAP, ..NONE },
                "0000000000000000 0000000000000000 00002000 0000 0000 01 00 00000000 deff 00000000000000000000000000000000",
            ),
            (
                Header { sequence: 1, sport: 0x4086, flags: Flags::ACK_REQUIRED, ..NONE },
                "0000000000000001 0000000000000000 00000000 4086 0000 02 00 00000000 bd78 00000000000000000000000000000000",
            ),
            (
                Header { ack: 1, ..NONE },
                "0000000000000000 0000000000000001 00000000 0000 0000 00 00 00000000 fffe 00000000000000000000000000000000",
            ),
            (
                Header { sequence: 6, ack: 4, len: 5, sport: 5001, dport: 5000, ..NONE },
                "0000000000000006 0000000000000004 00000005 1389 1388 00 00 00000000 d8df 00000000000000000000000000000000",
            ),
            (
                Header {
                    sequence: 10,
                    ack: 4,
                    len: 1,
                    sport: 5001,
                    dport: 5000,
                    flags: Flags::ACK_REQUIRED,
                    extensions: dest,
                    ..NONE
                },
                "000000000000000a 0000000000000004 00000001 1389 1388 02 00 00000000 d3db 03 00000300 00000100 00000000000000",
            ),
            (
                Header { sequence: 5, ack: 11, len: 3, sport: 5000, dport: 5001, extensions: chaser, ..NONE },
                "0000000000000005 000000000000000b 00000003 1388 1389 00 00 00000000 d6d8 02 00000300 0000000000000000000000",
            ),
            (
                Header {
                    sequence: 20,
                    len: 4,
                    sport: 7000,
                    dport: 7000,
                    flags: Flags::ACK_REQUIRED.union(Flags::RETRANSMITTED),
                    ..NONE
                },
                "0000000000000014 0000000000000000 00000004 1b58 1b58 06 00 00000000 c337 00000000000000000000000000000000",
            ),
        ]
    }

    #[test]
    fn headers_equal_what_linux_sends() {
        for (header, bytes) in golden() {
            let bytes: [u8; HEADER_LEN] = hex(bytes).try_into().unwrap();
            assert_eq!(header.encode(), bytes, "{header:?}");
            assert_eq!(Header::decode(&bytes), Ok(header));
        }
    }

    #[test]
    fn a_wrong_bit_anywhere_is_found() {
        let good = golden()[4].0.encode();
        for bit in 0..HEADER_LEN * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::decode(&bad), Err(BadChecksum), "bit {bit}");
        }
        let mut unchecked = good;
        unchecked[30..32].fill(0);
        assert_eq!(Header::decode(&unchecked), Ok(golden()[4].0));
    }

    #[test]
    fn extensions_stop_where_they_must() {
        let list = |bytes: &str| {
            let mut extensions = [0; 16];
            let bytes = hex(bytes);
            extensions[..bytes.len()].copy_from_slice(&bytes);
            Extensions::of(&Header { extensions, ..NONE }).collect::<Vec<_>>()
        };
        assert_eq!(list(""), []);
        assert_eq!(list("03 00000300 00000100"), [Extension::RdmaDest { rkey: 0x300, offset: 0x100 }]);
        assert_eq!(
            list("02 00000300 04 00010000 02 000000"),
            [Extension::Rdma { rkey: 0x300 }, Extension::RdmaBytes { bytes: 65536, is_write: false }],
        );
        assert_eq!(
            list("02 00000300 20 02 00000400"),
            [Extension::Rdma { rkey: 0x300 }],
            "an unknown type ends it"
        );
        assert_eq!(
            list("02 00000300 03 00000001 00000002 02 00").len(),
            2,
            "a body that runs over the end is none"
        );
    }

    #[test]
    fn versions_are_chosen_as_linux_does() {
        let of = |version, minor_mask| ConnectData { minor_mask, ..ConnectData::proposal(version) };
        let cases = [
            ((3, 1), 0, Some((3, 1))),
            ((3, 0), 3, None),
            ((3, 2), 7, None),
            ((4, 0), 1, Some((4, 0))),
            ((4, 1), 3, Some((4, 1))),
            ((4, 7), 0xff, Some((4, 1))),
            ((4, 1), 0, None),
            ((4, 2), 4, None),
            ((0, 0), 0, Some((4, 0))),
            ((0, 9), 3, Some((4, 0))),
            ((1, 1), 3, None),
            ((2, 1), 3, None),
            ((5, 0), 3, None),
            ((255, 255), 0xffff, None),
        ];
        for (version, minor_mask, expected) in cases {
            assert_eq!(of(version, minor_mask).select_version(), expected, "{version:?} {minor_mask:#x}");
        }
    }

    #[test]
    fn connect_data_equals_what_linux_sends() {
        let data = ConnectData {
            source: IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1)),
            destination: IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2)),
            version: VERSION,
            minor_mask: MINOR_MASK,
            tos: 0,
        };
        let (bytes, len) = data.encode();
        assert_eq!(
            bytes[..len],
            hex("0a090001 0a090002 03 01 0003 00 00 0000 0000000000000000 00000000 00000000")
        );
        let mut padded = [0u8; 56];
        padded[..len].copy_from_slice(&bytes[..len]);
        assert_eq!(ConnectData::decode(&padded, true), Some(data));
        assert_eq!(ConnectData::decode(&bytes[..31], true), None);
        assert!(data.is_acceptable());
        assert!(!ConnectData { version: (3, 0), ..data }.is_acceptable());

        let data = ConnectData {
            source: "fe80::1".parse().unwrap(),
            destination: "fe80::2".parse().unwrap(),
            ..data
        };
        let (bytes, len) = data.encode();
        assert_eq!(len, 56);
        assert_eq!(ConnectData::decode(&bytes, false), Some(data));
    }

    #[test]
    fn fragments_of_a_message() {
        for (len, frames, last) in
            [(0, 1, 0), (1, 1, 1), (4096, 1, 4096), (4097, 2, 1), (8192, 2, 4096), (1 << 20, 256, 4096)]
        {
            assert_eq!(fragments(len), frames);
            assert_eq!(fragment_len(len, frames - 1), last);
        }
    }
}

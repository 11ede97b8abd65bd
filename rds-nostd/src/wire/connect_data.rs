//! The private data of a connection request and its reply.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::wire::{FRAGMENT_LEN, MAX_MESSAGE_LEN};

/// Protocol version that this crate proposes.
pub const VERSION: (u8, u8) = (3, 1);

/// Supported minor versions, one bit each. Linux sets the bit of 3.0, too.
pub const MINOR_MASK: u16 = 0x0003;

/// The consumer's private data of a connection request and its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectData {
    /// Address of the sender.
    pub source: IpAddr,
    /// Address of the receiver.
    pub destination: IpAddr,
    /// Protocol version.
    pub version: (u8, u8),
    /// Minor versions that the sender supports, one bit each.
    pub minor_mask: u16,
    /// Type of service: the connection's service level is its low four bits.
    pub tos: u8,
    /// Sequence number that the sender expects of the receiver's next message, rounded up; 0 if
    /// unknown. Only this crate sends it.
    pub expects: u64,
    /// Longest message that the sender accepts, in bytes, rounded down to whole fragments.
    /// [`MAX_MESSAGE_LEN`] unless the sender is this crate's.
    pub longest: u32,
}

/// Marks the reserved bytes as this crate's, in the top 4 of their 56 bits.
/// [`ConnectData::expects`] follows in 44 bits, and [`ConnectData::longest`] in 8.
const MARK: u64 = 0xb;
/// Unit of [`ConnectData::expects`] on the wire.
const EXPECTS_UNIT: u64 = 1 << 20;
const EXPECTS_MOST: u64 = (1 << 44) - 1;
/// Default of [`ConnectData::longest`], which is not encoded.
const LONGEST: u32 = MAX_MESSAGE_LEN as u32;

/// Bytes of [`ConnectData`] between IPv4 addresses.
pub const CONNECT_DATA_V4_LEN: usize = 32;
/// Bytes of [`ConnectData`] between IPv6 addresses.
pub const CONNECT_DATA_V6_LEN: usize = 56;

impl ConnectData {
    /// Returns the encoded data and its length. Both addresses have one family; a mixed pair is
    /// encoded as IPv6.
    #[must_use]
    pub fn encode(&self) -> ([u8; CONNECT_DATA_V6_LEN], usize) {
        let mut bytes = [0; CONNECT_DATA_V6_LEN];
        let (tail, len) = match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                put(&mut bytes, 0, &source.octets());
                put(&mut bytes, 4, &destination.octets());
                (8, CONNECT_DATA_V4_LEN)
            }
            (source, destination) => {
                put(&mut bytes, 0, &v6(source).octets());
                put(&mut bytes, 16, &v6(destination).octets());
                (32, CONNECT_DATA_V6_LEN)
            }
        };
        bytes[tail] = self.version.0;
        bytes[tail + 1] = self.version.1;
        put(&mut bytes, tail + 2, &self.minor_mask.to_be_bytes());
        bytes[tail + 4] = self.tos;
        // Reserved bytes and padding in 3.1. In a reply to 4.1 some of them are the fragment size.
        if self.version == VERSION && (self.expects != 0 || self.longest < LONGEST) {
            let units = self.expects.div_ceil(EXPECTS_UNIT).min(EXPECTS_MOST);
            let fragments = u64::from((self.longest / FRAGMENT_LEN as u32) as u8);
            let [_, reserved @ .., a, b, c, d] = ((MARK << 52) | (units << 8) | fragments).to_be_bytes();
            put(&mut bytes, tail + 5, &reserved);
            put(&mut bytes, len - 4, &[a, b, c, d]);
        }
        // The outdated acknowledgement and the credits (no flow control) stay zero.
        (bytes, len)
    }

    /// Decodes a peer's private data. The connection manager supplies the family (`is_v4`). Ignores
    /// trailing bytes, because InfiniBand pads private data. Returns `None` if it is too short.
    #[must_use]
    pub fn decode(bytes: &[u8], is_v4: bool) -> Option<Self> {
        let len = if is_v4 { CONNECT_DATA_V4_LEN } else { CONNECT_DATA_V6_LEN };
        let bytes = bytes.get(..len)?;
        let v4 = |i: usize| bytes.get(i..)?.first_chunk().map(|octets: &[u8; 4]| IpAddr::from(*octets));
        let v6 = |i: usize| bytes.get(i..)?.first_chunk().map(|octets: &[u8; 16]| IpAddr::from(*octets));
        let (source, destination, tail) = if is_v4 { (v4(0)?, v4(4)?, 8) } else { (v6(0)?, v6(16)?, 32) };
        let &[major, minor, mask_high, mask_low, tos, x, y, z] = bytes.get(tail..)?.first_chunk()?;
        let (version, &[a, b, c, d]) = ((major, minor), bytes.last_chunk()?);
        let (expects, longest) = match u64::from_be_bytes([0, x, y, z, a, b, c, d]) {
            ours if version == VERSION && ours >> 52 == MARK => {
                let fragments = ours as u8 as u32;
                let longest = if fragments == 0 { LONGEST } else { fragments * FRAGMENT_LEN as u32 };
                (((ours >> 8) & EXPECTS_MOST) * EXPECTS_UNIT, longest)
            }
            _ => (0, LONGEST),
        };
        Some(Self {
            expects,
            longest,
            source,
            destination,
            version,
            minor_mask: u16::from_be_bytes([mask_high, mask_low]),
            tos,
        })
    }

    /// Returns a proposal of a version, without addresses.
    pub(crate) const fn proposal(version: (u8, u8)) -> Self {
        let nowhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        Self {
            source: nowhere,
            destination: nowhere,
            version,
            minor_mask: MINOR_MASK,
            tos: 0,
            expects: 0,
            longest: LONGEST,
        }
    }

    /// Selects the version for a peer's request: 3.1 exactly; of 4.x the highest common minor
    /// version; and 4.0 for a peer that names none (major 0), as in Linux. Returns `None` to refuse
    /// the request.
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

    /// Returns whether this crate supports the version of a peer's reply: 3.1, or 4.x, which has
    /// the same wire format.
    #[must_use]
    pub const fn is_acceptable(&self) -> bool {
        matches!(self.version, (3, 1) | (4, _))
    }
}

/// Writes `part` at an offset; bytes beyond the end are dropped. All parts share this copy, without the panics of slices.
fn put(bytes: &mut [u8], at: usize, part: &[u8]) {
    bytes.iter_mut().skip(at).zip(part).for_each(|(to, from)| *to = *from);
}

fn v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::testing::hex;

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
            expects: 0,
            longest: LONGEST,
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

        // Linux sends zeros there and ignores them.
        let (bytes, len) = ConnectData { expects: 0x1234_5678_9abc_0001, ..data }.encode();
        assert_eq!(
            bytes[..len],
            hex("0a090001 0a090002 03 01 0003 00 b1 2345 0000000000000000 00000000 6789ac00")
        );
        let told = ConnectData::decode(&bytes, true);
        assert_eq!(told, Some(ConnectData { expects: 0x1234_5678_9ac0_0000, ..data }));
        let small = ConnectData { longest: 0x4_0fff, ..data };
        let (bytes, len) = small.encode();
        assert_eq!(
            bytes[..len],
            hex("0a090001 0a090002 03 01 0003 00 b0 0000 0000000000000000 00000000 00000040")
        );
        assert_eq!(ConnectData::decode(&bytes, true), Some(ConnectData { longest: 0x4_0000, ..data }));
        // UEK reads a fragment size there in 4.1.
        let newer = ConnectData { version: (4, 1), ..data };
        assert_eq!(
            ConnectData { version: (4, 1), expects: 7, ..small }.encode().0[10..],
            newer.encode().0[10..]
        );

        let data = ConnectData {
            source: "fe80::1".parse().unwrap(),
            destination: "fe80::2".parse().unwrap(),
            ..data
        };
        let (bytes, len) = data.encode();
        assert_eq!(len, 56);
        assert_eq!(ConnectData::decode(&bytes, false), Some(data));
        let (bytes, _) = ConnectData { expects: 1, ..data }.encode();
        assert_eq!(ConnectData::decode(&bytes, false), Some(ConnectData { expects: 1 << 20, ..data }));
        let (bytes, _) = ConnectData { expects: u64::MAX, ..data }.encode();
        assert_eq!(ConnectData::decode(&bytes, false).unwrap().expects, EXPECTS_MOST << 20);
    }
}

//! RDMA-CM addressing over the IB CM: service ids from ports, and the IP address header in a REQ's
//! private data (IBA volume 1, annex A11).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of the header; the consumer's private data follows.
pub const HEADER_LEN: usize = 36;
/// Private data left to the consumer in a REQ.
pub const REQ_PRIVATE_LEN: usize = 92 - HEADER_LEN;
/// Private data left to the consumer in a SIDR_REQ.
pub const SIDR_REQ_PRIVATE_LEN: usize = 216 - HEADER_LEN;

/// Port spaces of RDMA-CM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum PortSpace {
    /// IPoIB.
    Ipoib = 0x0002,
    /// TCP: connected services.
    Tcp = 0x0106,
    /// UDP: datagram services.
    Udp = 0x0111,
}

/// The service id of a port: (port space << 16) | port.
pub const fn service_id(space: PortSpace, port: u16) -> u64 {
    (space as u64) << 16 | port as u64
}

/// Takes an RDMA-CM service id apart; `None` when it has another form.
pub const fn parse_service_id(service_id: u64) -> Option<(PortSpace, u16)> {
    let space = match service_id >> 16 {
        0x0002 => PortSpace::Ipoib,
        0x0106 => PortSpace::Tcp,
        0x0111 => PortSpace::Udp,
        _ => return None,
    };
    Some((space, service_id as u16))
}

/// The IP address header at the start of a REQ's private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The sender's port.
    pub src_port: u16,
    /// The sender's address, of the same family as the destination's.
    pub src: IpAddr,
    /// The receiver's address.
    pub dst: IpAddr,
}

/// Why bytes are not such a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// Fewer than 36 bytes.
    Truncated,
    /// Header version other than 0.
    Version(u8),
    /// IP version other than 4 and 6.
    IpVersion(u8),
    /// The two addresses to encode are of different families.
    MixedFamilies,
}

impl core::fmt::Display for HeaderError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            HeaderError::Truncated => f.write_str("private data too short for an RDMA-CM header"),
            HeaderError::Version(v) => write!(f, "RDMA-CM header of version {v}"),
            HeaderError::IpVersion(v) => write!(f, "RDMA-CM header with IP version {v}"),
            HeaderError::MixedFamilies => f.write_str("source and destination of different address families"),
        }
    }
}

impl core::error::Error for HeaderError {}

fn put_ip(field: &mut [u8; 16], ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => {
            let [a, b, c, d] = ip.octets();
            *field = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d];
        }
        IpAddr::V6(ip) => *field = ip.octets(),
    }
}

fn get_ip(field: &[u8; 16], version: u8) -> Option<IpAddr> {
    match version {
        4 => {
            let [.., a, b, c, d] = *field;
            Some(IpAddr::V4(Ipv4Addr::new(a, b, c, d)))
        }
        6 => Some(IpAddr::V6(Ipv6Addr::from(*field))),
        _ => None,
    }
}

impl Header {
    /// The wire bytes.
    pub fn to_bytes(&self) -> Result<[u8; HEADER_LEN], HeaderError> {
        let version = match (self.src, self.dst) {
            (IpAddr::V4(_), IpAddr::V4(_)) => 4,
            (IpAddr::V6(_), IpAddr::V6(_)) => 6,
            _ => return Err(HeaderError::MixedFamilies),
        };
        let mut b = [0; HEADER_LEN];
        let (mut src, mut dst) = ([0; 16], [0; 16]);
        put_ip(&mut src, self.src);
        put_ip(&mut dst, self.dst);
        b[1] = version << 4;
        b[2..4].copy_from_slice(&self.src_port.to_be_bytes());
        b[4..20].copy_from_slice(&src);
        b[20..36].copy_from_slice(&dst);
        Ok(b)
    }

    /// Reads the header, and gives the consumer's private data that follows.
    pub fn parse(private_data: &[u8]) -> Result<(Header, &[u8]), HeaderError> {
        let (head, rest) = private_data.split_first_chunk::<4>().ok_or(HeaderError::Truncated)?;
        let (src, rest) = rest.split_first_chunk::<16>().ok_or(HeaderError::Truncated)?;
        let (dst, rest) = rest.split_first_chunk::<16>().ok_or(HeaderError::Truncated)?;
        if head[0] != 0 {
            return Err(HeaderError::Version(head[0]));
        }
        let version = head[1] >> 4;
        let src = get_ip(src, version).ok_or(HeaderError::IpVersion(version))?;
        let dst = get_ip(dst, version).ok_or(HeaderError::IpVersion(version))?;
        Ok((Header { src_port: u16::from_be_bytes([head[2], head[3]]), src, dst }, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn service_ids() {
        // RDS listens on TCP port 18634.
        assert_eq!(service_id(PortSpace::Tcp, 18634), 0x0000_0000_0106_48ca);
        assert_eq!(service_id(PortSpace::Tcp, 0x4e21), 0x0000_0000_0106_4e21);
        assert_eq!(service_id(PortSpace::Udp, 1), 0x0111_0001);
        assert_eq!(parse_service_id(0x0106_48ca), Some((PortSpace::Tcp, 18634)));
        assert_eq!(parse_service_id(0x013f_0001), None);
        assert_eq!(parse_service_id(0x0200_0000_0106_48ca), None);
    }

    #[test]
    fn ipv4_literal() {
        let header = Header {
            src_port: 0x1234,
            src: Ipv4Addr::new(10, 0, 0, 1).into(),
            dst: Ipv4Addr::new(10, 0, 0, 2).into(),
        };
        let b = header.to_bytes().unwrap();
        assert_eq!(b[..4], [0, 0x40, 0x12, 0x34]);
        assert_eq!(b[4..20], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1]);
        assert_eq!(b[32..36], [10, 0, 0, 2]);
        let mut private = b.to_vec();
        private.extend([7, 8]);
        assert_eq!(Header::parse(&private), Ok((header, &[7, 8][..])));
    }

    #[test]
    fn wrong_headers() {
        assert_eq!(Header::parse(&[0; 35]), Err(HeaderError::Truncated));
        assert_eq!(Header::parse(&[0; 36]), Err(HeaderError::IpVersion(0)));
        assert_eq!(Header::parse(&[1; 36]), Err(HeaderError::Version(1)));
        let mixed = Header { src_port: 1, src: Ipv4Addr::LOCALHOST.into(), dst: Ipv6Addr::LOCALHOST.into() };
        assert_eq!(mixed.to_bytes(), Err(HeaderError::MixedFamilies));
        assert_eq!((REQ_PRIVATE_LEN, SIDR_REQ_PRIVATE_LEN), (56, 180));
    }

    proptest! {
        #[test]
        fn round_trip(port: u16, v6: bool, a: [u8; 16], b: [u8; 16]) {
            let ip = |o: [u8; 16]| get_ip(&o, if v6 { 6 } else { 4 }).unwrap();
            let header = Header { src_port: port, src: ip(a), dst: ip(b) };
            let bytes = header.to_bytes().unwrap();
            prop_assert_eq!(Header::parse(&bytes), Ok((header, &[][..])));
        }

        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = Header::parse(&bytes);
        }
    }
}

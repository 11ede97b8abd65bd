//! How private data lies in CM messages, and how conn qualifiers become service ids.
//!
//! Under an RDMA-CM name the REQ begins with the 36-byte address header (annex A11) and the rest is the consumer's; nothing
//! tells its length, so all of the field is handed over. Under a `…-dat` name every message begins with a header of ours:
//!
//! | bytes | REQ | REP, REJ |
//! |---|---|---|
//! | 0–3 | `DAT1` | `DAT1` |
//! | 4 | length of the consumer's data | same |
//! | 5 | IP version, 4 or 6 | 0 |
//! | 6–7 | source port | 0 |
//! | 8–23 | source address (IPv4 in the last four bytes) | absent, data begins at 8 |
//! | 24– | data, at most 68 bytes | |

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ib_port::ib_mgmt::rdma_cm::{self, PortSpace};

use crate::base::attr::{MAX_PRIVATE_DATA_DAT, MAX_PRIVATE_DATA_RDMA_CM};
use crate::base::types::IaAddress;

const MAGIC: [u8; 4] = *b"DAT1";
const REQ_HEADER: usize = 24;
const REPLY_HEADER: usize = 8;
/// Private data of a REQ.
pub(crate) const REQ_LEN: usize = 92;
/// Private data of a REJ.
pub(crate) const REJ_LEN: usize = 148;
/// Private data of a REP.
pub(crate) const REP_LEN: usize = 196;

/// Which of the two forms an IA speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    RdmaCm,
    Dat,
}

/// A REQ's private data, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request<'a> {
    pub(crate) source: IaAddress,
    pub(crate) source_port: u16,
    /// None if the form does not tell.
    pub(crate) destination: Option<IaAddress>,
    pub(crate) data: &'a [u8],
}

impl Framing {
    /// `max_private_data_size`.
    pub(crate) fn max_private_data(self) -> usize {
        match self {
            Framing::RdmaCm => MAX_PRIVATE_DATA_RDMA_CM,
            Framing::Dat => MAX_PRIVATE_DATA_DAT,
        }
    }

    /// The most that a reject can carry (extension).
    pub(crate) fn max_reject_data(self) -> usize {
        match self {
            Framing::RdmaCm => REJ_LEN,
            Framing::Dat => REJ_LEN - REPLY_HEADER,
        }
    }

    /// Returns the service id of a qualifier, or `None` if the qualifier names no service.
    ///
    /// Under an RDMA-CM name the qualifiers 1 to 65535 are TCP ports of RDMA-CM. Larger ones are
    /// service ids, because programs derive qualifiers from process ids (MVAPICH2). The service ids
    /// of the ports are refused: each service has one name.
    pub(crate) fn service_id(self, conn_qual: u64) -> Option<u64> {
        match self {
            Framing::RdmaCm => match u16::try_from(conn_qual) {
                Ok(0) => None,
                Ok(port) => Some(rdma_cm::service_id(PortSpace::Tcp, port)),
                Err(_) => match rdma_cm::parse_service_id(conn_qual) {
                    Some((PortSpace::Tcp, _)) => None,
                    _ => Some(conn_qual),
                },
            },
            Framing::Dat => (conn_qual != 0).then_some(conn_qual),
        }
    }

    /// A REQ's private data. None if the two addresses are of different families or the data is too long.
    pub(crate) fn request(
        self,
        source: IaAddress,
        source_port: u16,
        destination: IaAddress,
        data: &[u8],
    ) -> Option<[u8; REQ_LEN]> {
        let mut out = [0; REQ_LEN];
        let at = match self {
            Framing::RdmaCm => {
                let header = rdma_cm::Header { src_port: source_port, src: source, dst: destination };
                let bytes = header.to_bytes().ok()?;
                put(&mut out, 0, &bytes)?;
                bytes.len()
            }
            Framing::Dat => {
                put(&mut out, 0, &MAGIC)?;
                let (version, address) = match source {
                    IpAddr::V4(ip) => (4, ip.to_ipv6_compatible().octets()),
                    IpAddr::V6(ip) => (6, ip.octets()),
                };
                put(&mut out, 4, &[u8::try_from(data.len()).ok()?, version])?;
                put(&mut out, 6, &source_port.to_be_bytes())?;
                put(&mut out, 8, &address)?;
                REQ_HEADER
            }
        };
        put(&mut out, at, data)?;
        Some(out)
    }

    /// Takes a REQ's private data apart. None if it is not of this form.
    pub(crate) fn parse_request(self, private_data: &[u8]) -> Option<Request<'_>> {
        match self {
            Framing::RdmaCm => {
                let (header, data) = rdma_cm::Header::parse(private_data).ok()?;
                Some(Request {
                    source: header.src,
                    source_port: header.src_port,
                    destination: Some(header.dst),
                    data,
                })
            }
            Framing::Dat => {
                let (header, rest) = private_data.split_first_chunk::<REQ_HEADER>()?;
                if header.first_chunk() != Some(&MAGIC) {
                    return None;
                }
                let address: [u8; 16] = *header.last_chunk()?;
                let source = match header[5] {
                    4 => {
                        let [.., a, b, c, d] = address;
                        IpAddr::V4(Ipv4Addr::new(a, b, c, d))
                    }
                    6 => IpAddr::V6(Ipv6Addr::from(address)),
                    _ => return None,
                };
                Some(Request {
                    source,
                    source_port: u16::from_be_bytes([header[6], header[7]]),
                    destination: None,
                    data: rest.get(..usize::from(header[4]))?,
                })
            }
        }
    }

    /// Private data of a REP or REJ, in the first bytes of the array. None if it is too long.
    pub(crate) fn reply(self, data: &[u8]) -> Option<([u8; REP_LEN], usize)> {
        let mut out = [0; REP_LEN];
        let at = match self {
            Framing::RdmaCm => 0,
            Framing::Dat => {
                put(&mut out, 0, &MAGIC)?;
                put(&mut out, 4, &[u8::try_from(data.len()).ok()?])?;
                REPLY_HEADER
            }
        };
        put(&mut out, at, data)?;
        Some((out, at + data.len()))
    }

    /// The consumer's part of a REP's or REJ's private data; empty if it is not of this form.
    pub(crate) fn parse_reply(self, private_data: &[u8]) -> &[u8] {
        match self {
            Framing::RdmaCm => private_data,
            Framing::Dat => match private_data.split_first_chunk::<REPLY_HEADER>() {
                Some((header, rest)) if header.first_chunk() == Some(&MAGIC) => {
                    rest.get(..usize::from(header[4])).unwrap_or_default()
                }
                _ => &[],
            },
        }
    }
}

fn put(out: &mut [u8], at: usize, data: &[u8]) -> Option<()> {
    out.get_mut(at..at.checked_add(data.len())?)?.copy_from_slice(data);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: IaAddress = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    const B: IaAddress = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

    #[test]
    fn rdma_cm_pads_to_the_field() {
        let bytes = Framing::RdmaCm.request(A, 0x1234, B, b"hello").unwrap();
        assert_eq!(bytes[..4], [0, 0x40, 0x12, 0x34]);
        let request = Framing::RdmaCm.parse_request(&bytes).unwrap();
        assert_eq!((request.source, request.source_port, request.destination), (A, 0x1234, Some(B)));
        assert_eq!((request.data.len(), &request.data[..6]), (56, &b"hello\0"[..]));
        assert!(Framing::RdmaCm.request(A, 1, B, &[7; 56]).is_some());
        assert!(Framing::RdmaCm.request(A, 1, B, &[7; 57]).is_none());
        let v6 = IpAddr::V6(Ipv6Addr::LOCALHOST);
        assert!(Framing::RdmaCm.request(A, 1, v6, &[]).is_none());
    }

    #[test]
    fn our_own_form_keeps_the_length() {
        let v6 = IpAddr::V6(Ipv6Addr::new(0xfd00, 1, 2, 3, 4, 5, 6, 7));
        for (source, len) in [(A, 0), (A, 64), (v6, 63)] {
            let data = [0x5a; 64];
            let bytes = Framing::Dat.request(source, 7, B, &data[..len]).unwrap();
            let request = Framing::Dat.parse_request(&bytes).unwrap();
            assert_eq!((request.source, request.source_port, request.data), (source, 7, &data[..len]));
        }
        let (bytes, len) = Framing::Dat.reply(b"ok").unwrap();
        assert_eq!(Framing::Dat.parse_reply(&bytes), b"ok");
        assert_eq!(len, 10);
    }

    #[test]
    fn foreign_bytes_are_no_request() {
        let mut bytes = Framing::Dat.request(A, 7, B, &[1; 64]).unwrap();
        assert_eq!(Framing::RdmaCm.parse_request(&bytes), None);
        assert_eq!(Framing::Dat.parse_request(&bytes[..23]), None);
        bytes[4] = 69;
        assert_eq!(Framing::Dat.parse_request(&bytes), None);
        (bytes[4], bytes[5]) = (1, 5);
        assert_eq!(Framing::Dat.parse_request(&bytes), None);
        assert_eq!(Framing::Dat.parse_reply(&[0; 196]), b"");
    }

    #[test]
    fn qualifiers() {
        assert_eq!(Framing::RdmaCm.service_id(18634), Some(0x0106_48ca));
        assert_eq!(Framing::RdmaCm.service_id(0), None);
        assert_eq!(Framing::RdmaCm.service_id(65535), Some(0x0106_ffff));
        for conn_qual in [65536, 64512 + 1024, 4_194_304 + 1024, 0x0105_ffff, 0x0107_0000, u64::MAX] {
            assert_eq!(Framing::RdmaCm.service_id(conn_qual), Some(conn_qual));
        }
        for service_id in [0x0106_0000, 0x0106_48ca, 0x0106_ffff] {
            assert_eq!(Framing::RdmaCm.service_id(service_id), None, "a port's");
        }
        assert_eq!(Framing::Dat.service_id(0), None);
        assert_eq!(Framing::Dat.service_id(u64::MAX), Some(u64::MAX));
        assert_eq!((Framing::RdmaCm.max_private_data(), Framing::Dat.max_private_data()), (56, 64));
    }
}

//! The wire format: the 48-byte header, extension headers, and the private data of a connection
//! request.
//!
//! Protocol 3.1 of `net/rds` in Linux (`rds.h`, `ib.h`), big-endian. The connection implies the
//! addresses, so the header has none.

mod connect_data;
mod extension;
mod frame;
mod header;

use core::net::IpAddr;

pub use connect_data::{CONNECT_DATA_V4_LEN, CONNECT_DATA_V6_LEN, ConnectData, MINOR_MASK, VERSION};
pub use extension::{Extension, Extensions};
pub(crate) use frame::Frame;
pub use header::{BadChecksum, Header};
pub(crate) use header::{HEADER_WORDS, joined};

/// Bytes of the header that starts every frame.
pub const HEADER_LEN: usize = 48;
/// Payload bytes of every fragment except a message's last.
pub const FRAGMENT_LEN: usize = 4096;
/// Maximum bytes of a frame.
pub const FRAME_LEN: usize = HEADER_LEN + FRAGMENT_LEN;
/// Bytes of a congestion map: one bit for each port.
pub const CONGESTION_MAP_LEN: usize = 8192;
/// Fragments of a congestion map.
pub(crate) const MAP_FRAGMENTS: u8 = (CONGESTION_MAP_LEN / FRAGMENT_LEN) as u8;
/// Maximum bytes of a message.
pub const MAX_MESSAGE_LEN: usize = 1 << 20;
/// Port of the connection manager's service (RDMA-CM port space TCP) between IPv4 addresses.
pub const SERVICE_PORT: u16 = 18634;
/// Port of the connection manager's service between IPv6 addresses.
pub const SERVICE_PORT_V6: u16 = 16385;

/// Returns the port on which a node with this address listens, as in Linux.
#[must_use]
pub const fn service_port(address: IpAddr) -> u16 {
    match address.to_canonical() {
        IpAddr::V4(_) => SERVICE_PORT,
        IpAddr::V6(_) => SERVICE_PORT_V6,
    }
}

bitflags::bitflags! {
    /// Header flags.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Flags: u8 {
        /// The payload is the sender's congestion map.
        const CONG_BITMAP = 0x01;
        /// Requests an immediate acknowledgement of the complete message.
        const ACK_REQUIRED = 0x02;
        /// Retransmitted after a reconnection: the receiver drops duplicates.
        const RETRANSMITTED = 0x04;
        const _ = !0;
    }
}

/// Returns the number of frames for `len` bytes.
#[must_use]
pub const fn fragments(len: usize) -> usize {
    if len == 0 { 1 } else { len.div_ceil(FRAGMENT_LEN) }
}

/// Returns the payload bytes of frame `index` of a message of `len` bytes.
#[must_use]
pub const fn fragment_len(len: usize, index: usize) -> usize {
    let rest = len.saturating_sub(index * FRAGMENT_LEN);
    if rest > FRAGMENT_LEN { FRAGMENT_LEN } else { rest }
}

/// Private data of a reject: the consumer's number 1 in little-endian order. Linux drops the
/// attempt and tries again.
pub const REJECT_DATA: [u8; 4] = [1, 0, 0, 0];

#[cfg(test)]
pub(crate) mod testing {
    use std::vec::Vec;

    pub(crate) fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits
            .chunks(2)
            .map(|pair| u8::from_str_radix(core::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linux's `RDS_PORT` and `RDS_CM_PORT`.
    #[test]
    fn each_family_has_its_port() {
        let port = |address: &str| service_port(address.parse().unwrap());
        assert_eq!((port("10.0.0.1"), port("::ffff:10.0.0.1"), port("fe80::1")), (18634, 18634, 16385));
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

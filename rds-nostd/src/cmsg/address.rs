//! Socket addresses: `struct sockaddr_in` and `struct sockaddr_in6`.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::cmsg::error::CmsgError;
use crate::cmsg::fields::{get, put};
use crate::profile::Profile;

/// Bytes of the longer address, `struct sockaddr_in6`.
pub const SOCKADDR_LEN: usize = 28;
/// Bytes of `struct sockaddr_in`.
const SOCKADDR_IN_LEN: usize = 16;

/// Decodes an address from `msg_name`, or from the argument of `bind` and `connect`. Ignores
/// trailing bytes.
///
/// # Errors
/// [`CmsgError::Structure`]: too short for its family. [`CmsgError::Family`]: the profile lacks the
/// family.
pub fn decode_address(profile: Profile, bytes: &[u8]) -> Result<SocketAddr, CmsgError> {
    let needs = |needed| {
        if bytes.len() < needed { Err(CmsgError::Structure { needed, found: bytes.len() }) } else { Ok(()) }
    };
    needs(SOCKADDR_IN_LEN)?;
    let family = get(bytes, 0);
    let port = u16::from_be_bytes(get(bytes, 2));
    if family == profile.sin_family() {
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::from_octets(get(bytes, 4))), port));
    }
    if Some(family) != profile.sin6_family() {
        return Err(CmsgError::Family(family));
    }
    needs(SOCKADDR_LEN)?;
    let address = Ipv6Addr::from_octets(get(bytes, 8));
    let flow = u32::from_be_bytes(get(bytes, 4));
    Ok(SocketAddr::V6(SocketAddrV6::new(address, port, flow, get(bytes, 24))))
}

/// Returns the encoded address and its length, or `None` if the profile lacks the family.
#[must_use]
pub fn encode_address(profile: Profile, address: &SocketAddr) -> Option<([u8; SOCKADDR_LEN], usize)> {
    let mut bytes = [0; SOCKADDR_LEN];
    put(&mut bytes, 2, address.port().to_be_bytes());
    match address {
        SocketAddr::V4(v4) => {
            put(&mut bytes, 0, profile.sin_family().to_ne_bytes());
            put(&mut bytes, 4, v4.ip().octets());
            Some((bytes, SOCKADDR_IN_LEN))
        }
        SocketAddr::V6(v6) => {
            put(&mut bytes, 0, profile.sin6_family()?.to_ne_bytes());
            put(&mut bytes, 4, v6.flowinfo().to_be_bytes());
            put(&mut bytes, 8, v6.ip().octets());
            put(&mut bytes, 24, v6.scope_id());
            Some((bytes, SOCKADDR_LEN))
        }
    }
}

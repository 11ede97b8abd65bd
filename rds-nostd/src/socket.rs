//! Sockets: what an application holds.

use core::net::{IpAddr, Ipv6Addr};

use crate::error::RdsError;
use crate::frames::Queue;

/// Names an open socket. A handle of a closed one names nothing, even when its slot is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SocketHandle {
    pub(crate) slot: u16,
    pub(crate) generation: u32,
}

/// The table entry of a socket.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) open: bool,
    pub(crate) generation: u32,
    /// Bound port; 0 while unbound.
    pub(crate) port: u16,
    /// Bound address, IPv4 mapped.
    pub(crate) address: u128,
    pub(crate) send_buffer: usize,
    /// Bytes accepted and not yet acknowledged by the peer.
    pub(crate) send_bytes: usize,
    /// Messages accepted and not yet acknowledged.
    pub(crate) send_messages: usize,
    /// Arrived and not read.
    pub(crate) received: Queue,
}

impl Socket {
    pub(crate) const EMPTY: Self = Self {
        open: false,
        generation: 0,
        port: 0,
        address: 0,
        send_buffer: 0,
        send_bytes: 0,
        send_messages: 0,
        received: Queue::EMPTY,
    };
}

/// The entry that a handle names.
pub(crate) fn open_socket(sockets: &mut [Socket], handle: SocketHandle) -> Result<&mut Socket, RdsError> {
    sockets
        .get_mut(usize::from(handle.slot))
        .filter(|socket| socket.open && socket.generation == handle.generation)
        .ok_or(RdsError::BadSocket)
}

/// A received message, or its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Who sent it: address and port.
    pub from: core::net::SocketAddr,
    /// Bytes written to the caller's buffer.
    pub len: usize,
    /// Bytes of the message; more than `len` if the buffer was too short, and then the rest is gone.
    pub message_len: usize,
}

/// Addresses are compared and stored in one form: IPv6, IPv4 mapped into it.
pub(crate) const fn key(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// Whether a [`key`] is that of an IPv4 address.
pub(crate) const fn is_v4(key: u128) -> bool {
    Ipv6Addr::from_bits(key).to_ipv4_mapped().is_some()
}

/// The address that [`key`] was made from.
pub(crate) fn address(key: u128) -> IpAddr {
    Ipv6Addr::from_bits(key).to_canonical()
}

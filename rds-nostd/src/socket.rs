//! Sockets of applications.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::error::RdsError;
use crate::frames::Inbox;
use crate::ids::{ConnectionId, OperationId, SocketHandle};
use crate::profile::Profile;
use crate::quota::Buffer;
use crate::slot::Slot;

with_empty! {
    /// Table entry of a socket.
    #[derive(Debug)]
    pub(crate) struct Socket {
        pub(crate) open: bool = false,
        /// Odd while the socket is open, so that no handle of a closed socket has it.
        pub(crate) generation: u32 = 0,
        /// Bound port; 0 while unbound.
        pub(crate) port: u16 = 0,
        /// Bound port while the socket is open and bound to the address that peers send to;
        /// otherwise 0.
        pub(crate) peers_port: u16 = 0,
        /// Socket after this one in its bucket of ports: slot plus 1; 0 for none.
        pub(crate) bucket_next: u16 = 0,
        /// Bound address, IPv4 mapped; 0 while unbound.
        pub(crate) address: u128 = 0,
        /// Messages accepted and not yet acknowledged by peers.
        pub(crate) sent: Buffer = Buffer::EMPTY,
        /// Unread messages, and their account.
        pub(crate) received: Inbox = Inbox::EMPTY,
        pub(crate) unread: Buffer = Buffer::EMPTY,
        /// Messages lent to the application.
        pub(crate) loans: u32 = 0,
        /// Marked in our congestion map.
        pub(crate) congested: bool = false,
        /// `RDS_CONG_MONITOR`, `RDS_RECVERR`, and the rules of `poll`.
        pub(crate) monitor: bool = false,
        pub(crate) receive_errors: bool = false,
        pub(crate) poll_rule: PollRule = PollRule::Linux,
        /// System that the program is written for.
        pub(crate) profile: Profile = Profile::Linux,
        /// Trace points of the receive path, as `struct rds_rx_trace_so`; all 0 for none.
        pub(crate) rx_trace: [u8; 4] = [0; 4],
        /// Ports that refused a message, and ports that have cleared since, folded by 64.
        pub(crate) refused: u64 = 0,
        pub(crate) cleared: u64 = 0,
        /// Number of congestion maps received at the last poll.
        pub(crate) polled_generation: u64 = 0,
        /// Destination of messages that name none: address (0 for none) and port.
        pub(crate) peer: u128 = 0,
        pub(crate) peer_port: u16 = 0,
        /// Type of service, and whether a message was sent with it.
        pub(crate) tos: u8 = 0,
        pub(crate) tos_used: bool = false,
        /// Connection and destination of the last message to a peer. Without a connection, the
        /// destination of the last attempt.
        pub(crate) route: Option<ConnectionId> = None,
        pub(crate) route_to: u128 = 0,
        /// The destination as an IPv4 address in memory order; for IPv6 a value above all IPv4
        /// addresses.
        pub(crate) route_v4: u64 = 0,
        /// Selected before bind.
        pub(crate) transport: Slot<Transport> = Slot::empty(Transport::InfiniBand),
        /// First and last of the unread notifications.
        pub(crate) notifications: Option<OperationId> = None,
        pub(crate) notifications_last: Option<OperationId> = None,
        /// Messages to an unreachable peer were dropped, and the program has not been notified.
        pub(crate) gave_up: bool = false,
        /// Reason why the last message was refused, if a retry may succeed.
        pub(crate) wants: Wants = Wants::Nothing,
    }
}

/// Resource that a refused message waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Wants {
    #[default]
    Nothing,
    /// Frames to send on a connection.
    Frames(ConnectionId, u32),
    /// Frames of the receiving side, for a loopback message.
    LocalFrames(u32),
    /// A connection entry for a new peer.
    Entry,
    /// Entries for RDMA operations, and SGEs of local memory.
    Operations(u16, u32),
}

/// Rules of [`Rds::poll_mask`](crate::Rds::poll_mask).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PollRule {
    /// Linux: OUT while the send buffer has space. Without the congestion monitor, IN also after a
    /// change of any peer's congestion.
    #[default]
    Linux,
    /// rds(3SOCKET): OUT always, IN while a message waits.
    Solaris,
}

impl From<Profile> for PollRule {
    fn from(profile: Profile) -> Self {
        profile.select(Self::Linux, Self::Solaris)
    }
}

/// Transport of messages (`SO_RDS_TRANSPORT`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Transport {
    /// InfiniBand: 0.
    InfiniBand = 0,
    /// Within this node, between sockets bound to loopback addresses: 3.
    Loopback = 3,
}

bitflags::bitflags! {
    /// Events that a socket is ready for, with the values of `poll(2)` on Linux.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct PollMask: u16 {
        /// Something to receive: a message, a status, a congestion update.
        const IN = 0x0001;
        /// A message may be sent.
        const OUT = 0x0004;
        /// As IN.
        const RDNORM = 0x0040;
        /// As OUT.
        const WRNORM = 0x0100;
        /// A peer's congestion changed.
        const WRBAND = 0x0200;
    }
}

impl Socket {
    /// Counts a message in the inbox. Returns whether the socket has more than `most_frames` frames
    /// or its buffer's bytes then, so that it is congested.
    #[inline]
    pub(crate) const fn receives(&mut self, (bytes, count): (usize, usize), most_frames: usize) -> bool {
        self.unread.charge(bytes, count);
        self.unread.exceeds(most_frames)
    }

    /// Stores the connection of messages to a peer.
    pub(crate) fn set_route(&mut self, id: ConnectionId, foreign: u128) {
        (self.route, self.route_to) = (Some(id), foreign);
        self.route_v4 = match address(foreign) {
            IpAddr::V4(v4) => u32::from_ne_bytes(v4.octets()).into(),
            IpAddr::V6(_) => u64::MAX,
        };
    }

    /// Returns the port of this destination, if its address is that of the last message.
    #[inline]
    pub(crate) fn port_on_route(&self, to: &SocketAddr) -> Option<u16> {
        match to {
            SocketAddr::V4(v4) if u64::from(u32::from_ne_bytes(v4.ip().octets())) == self.route_v4 => {
                Some(v4.port())
            }
            SocketAddr::V6(v6) if v6.ip().to_bits() == self.route_to => Some(v6.port()),
            _ => None,
        }
    }

    /// Returns whether events precede the messages of the socket.
    #[inline]
    pub(crate) const fn has_events(&self) -> bool {
        self.notifications.is_some() || self.cleared != 0 || self.gave_up
    }

    /// Returns whether latencies of its messages are traced.
    pub(crate) const fn is_timed(&self) -> bool {
        self.rx_trace[0] != 0
    }

    /// Returns the handle of the open socket in this slot.
    pub(crate) const fn handle(&self, slot: usize) -> SocketHandle {
        SocketHandle { slot: slot as u16, generation: self.generation }
    }
}

/// Maximum number of sockets that handles can name.
const MOST: usize = u16::MAX as usize;

/// Buckets of ports, a constant, so that a message's bucket takes neither a load nor a check.
const BUCKETS: usize = 1024;

/// All sockets of a node.
pub(crate) struct Sockets<'s> {
    entries: &'s mut [Socket],
    /// First socket of each bucket of ports that peers send to: slot plus 1; 0 for none.
    buckets: [u16; BUCKETS],
}

impl<'s> Sockets<'s> {
    pub(crate) fn new(entries: &'s mut [Socket]) -> Self {
        let count = entries.len().min(MOST);
        let (entries, _) = entries.split_at_mut(count);
        entries.fill_with(|| Socket::EMPTY);
        Self { entries, buckets: [0; BUCKETS] }
    }

    pub(crate) const fn len(&self) -> usize {
        self.entries.len()
    }

    #[inline]
    pub(crate) fn get(&self, slot: usize) -> Option<&Socket> {
        self.entries.get(slot)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: usize) -> Option<&mut Socket> {
        self.entries.get_mut(slot)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Socket)> + '_ {
        self.entries.iter().enumerate().filter(|(_, socket)| socket.open)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Socket> + '_ {
        self.entries.iter_mut().filter(|socket| socket.open)
    }

    /// Opens a free entry.
    ///
    /// # Errors
    /// [`RdsError::TooManySockets`].
    pub(crate) fn create(&mut self, like: Socket) -> Result<SocketHandle, RdsError> {
        let free = self.entries.iter_mut().enumerate().find(|(_, socket)| !socket.open);
        let (slot, socket) = free.ok_or(RdsError::TooManySockets)?;
        let generation = socket.generation.wrapping_add(1);
        *socket = Socket { open: true, generation, ..like };
        Ok(SocketHandle { slot: slot as u16, generation })
    }

    /// Returns the entry of a handle.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    #[inline]
    pub(crate) fn open(&self, handle: SocketHandle) -> Result<&Socket, RdsError> {
        let socket = self.entries.get(usize::from(handle.slot));
        socket.filter(|socket| socket.generation == handle.generation).ok_or(RdsError::BadSocket)
    }

    /// # Errors
    /// [`RdsError::BadSocket`].
    #[inline]
    pub(crate) fn open_mut(&mut self, handle: SocketHandle) -> Result<&mut Socket, RdsError> {
        let socket = self.entries.get_mut(usize::from(handle.slot));
        socket.filter(|socket| socket.generation == handle.generation).ok_or(RdsError::BadSocket)
    }

    /// Uncounts an acknowledged message in its socket's send buffer, if the socket is still open.
    #[inline]
    pub(crate) fn sent(&mut self, owner: SocketHandle, bytes: usize) {
        if let Ok(socket) = self.open_mut(owner) {
            socket.sent.release(bytes, 1);
        }
    }

    /// Binds a socket to an address and port. Peers can reach it unless the transport is loopback.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub(crate) fn bind(
        &mut self,
        handle: SocketHandle,
        (address, port): (u128, u16),
        transport: Transport,
    ) -> Result<(), RdsError> {
        let socket = self.open_mut(handle)?;
        (socket.address, socket.port) = (address, port);
        socket.transport.set(transport);
        if transport == Transport::InfiniBand {
            socket.peers_port = port;
            let next = core::mem::replace(self.bucket(port), handle.slot + 1);
            self.open_mut(handle)?.bucket_next = next;
        }
        Ok(())
    }

    /// Frees the entry of a socket.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub(crate) fn close(&mut self, handle: SocketHandle) -> Result<(), RdsError> {
        let socket = self.open_mut(handle)?;
        (socket.open, socket.generation) = (false, socket.generation.wrapping_add(1));
        let port = core::mem::take(&mut socket.peers_port);
        let (slot, next) = (handle.slot + 1, core::mem::take(&mut socket.bucket_next));
        if port == 0 {
            return Ok(());
        }
        let mut before = *self.bucket(port);
        if before == slot {
            *self.bucket(port) = next;
        }
        while let Some(socket) = self.entries.get_mut(usize::from(before).wrapping_sub(1)) {
            before = socket.bucket_next;
            if before == slot {
                socket.bucket_next = next;
            }
        }
        Ok(())
    }

    /// Returns the first socket of a port's bucket.
    const fn bucket(&mut self, port: u16) -> &mut u16 {
        &mut self.buckets[port as usize % BUCKETS]
    }

    /// Returns the slot of the socket that receives peers' messages to `port`.
    #[inline]
    fn find(&self, port: u16) -> Option<usize> {
        let slot = usize::from(self.buckets[usize::from(port) % BUCKETS]).wrapping_sub(1);
        let socket = self.entries.get(slot)?;
        if socket.peers_port == port { Some(slot) } else { self.find_after(socket, port) }
    }

    /// Continues [`find`](Self::find) after `socket`.
    #[cold]
    #[inline(never)]
    fn find_after(&self, socket: &Socket, port: u16) -> Option<usize> {
        let mut next = socket.bucket_next;
        loop {
            let slot = usize::from(next).wrapping_sub(1);
            let socket = self.entries.get(slot)?;
            if socket.peers_port == port {
                return Some(slot);
            }
            next = socket.bucket_next;
        }
    }

    /// Returns whether `port` is congested for peers.
    pub(crate) fn is_congested(&self, port: u16) -> bool {
        self.find(port).and_then(|slot| self.get(slot)).is_some_and(|socket| socket.congested)
    }

    /// Returns the socket that receives peers' messages to `port`.
    #[inline]
    pub(crate) fn of_peers(&mut self, port: u16) -> Option<(usize, &mut Socket)> {
        let slot = self.find(port)?;
        Some((slot, self.entries.get_mut(slot)?))
    }

    /// Returns the socket that is bound to an address and port.
    pub(crate) fn bound_to(&self, address: u128, port: u16) -> Option<usize> {
        let bound = |socket: &Socket| socket.port == port && socket.address == address && socket.open;
        self.entries.iter().position(bound)
    }
}

/// Returns whether messages can be sent to an address, mapped to IPv6 or not.
pub(crate) fn is_unicast(address: IpAddr) -> bool {
    let address = address.to_canonical();
    let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    !(address.is_unspecified() || address.is_multicast() || broadcast)
}

/// Converts an address to the form for comparison and storage: IPv6, with IPv4 mapped into it.
#[inline]
pub(crate) const fn key(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// Returns whether a [`key`] is that of an IPv4 address.
pub(crate) const fn is_v4(key: u128) -> bool {
    Ipv6Addr::from_bits(key).to_ipv4_mapped().is_some()
}

/// Returns the address of a [`key`].
#[inline]
pub(crate) const fn address(key: u128) -> IpAddr {
    if key >> 32 == 0xffff {
        IpAddr::V4(Ipv4Addr::from_bits(key as u32))
    } else {
        IpAddr::V6(Ipv6Addr::from_bits(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::vec::Vec;

    proptest! {
        /// While sockets open and close, several in one bucket, each port resolves to its socket,
        /// and all other ports to none.
        #[test]
        fn ports_lead_to_their_sockets(
            steps in proptest::collection::vec((1u16..40, any::<bool>(), any::<bool>()), 1..200),
        ) {
            let mut entries: Vec<Socket> = (0..12).map(|_| Socket::EMPTY).collect();
            let (mut table, mut model) = (Sockets::new(&mut entries), BTreeMap::new());
            for (port, opens, is_local) in steps {
                // Adjacent ports, and ports that wrap around to the same buckets.
                let port = port.wrapping_mul(1031);
                if opens && !model.contains_key(&port) {
                    let Ok(handle) = table.create(Socket::EMPTY) else { continue };
                    let transport = if is_local { Transport::Loopback } else { Transport::InfiniBand };
                    table.bind(handle, (7, port), transport).unwrap();
                    model.insert(port, (handle, is_local));
                } else if let Some((handle, _)) = model.remove(&port) {
                    table.close(handle).unwrap();
                    prop_assert_eq!(table.close(handle), Err(RdsError::BadSocket));
                }
                for port in (1..40u16).map(|port| port.wrapping_mul(1031)) {
                    let wanted = model.get(&port).filter(|(_, is_local)| !is_local);
                    let found = table.of_peers(port).map(|(slot, _)| slot);
                    prop_assert_eq!(found, wanted.map(|(handle, _)| usize::from(handle.slot)));
                }
            }
        }
    }
}

//! Socket calls that need no adapter, or that call the protocol and post the result.

use core::net::SocketAddr;

use dat_nostd::{Adapter, Platform};

use crate::connection::State;
use crate::counters::Counters;
use crate::error::RdsError;
use crate::ids::SocketHandle;
use crate::io::Rds;
use crate::io::objects::choose_burst;
use crate::profile::Profile;
use crate::quota::Buffer;
use crate::rdma::RdmaNotify;
use crate::socket::{Socket, Transport, is_unicast, key};

impl Rds<'_> {
    /// Creates a socket. It can neither send nor receive before [`bind_socket`](Self::bind_socket).
    ///
    /// # Errors
    /// [`RdsError::TooManySockets`].
    pub fn socket(&mut self) -> Result<SocketHandle, RdsError> {
        let protocol = &mut self.protocol;
        let config = &protocol.config;
        protocol.sockets.create(Socket {
            sent: Buffer::new(config.send_buffer),
            unread: Buffer::new(config.receive_buffer),
            polled_generation: protocol.map_generation,
            profile: config.profile,
            poll_rule: config.profile.into(),
            ..Socket::EMPTY
        })
    }

    /// `socket(family, kind, protocol)`: creates a socket of a profile.
    ///
    /// # Errors
    /// [`RdsError::AddressFamily`], [`RdsError::SocketType`], [`RdsError::Protocol`]: not those of
    /// RDS. [`RdsError::NoDevice`]: the adapter has failed. [`RdsError::TooManySockets`].
    pub fn socket_of<P: Platform>(
        &mut self,
        adapter: &Adapter<'_, P>,
        profile: Profile,
        family: i32,
        kind: i32,
        protocol: i32,
    ) -> Result<SocketHandle, RdsError> {
        if family != profile.address_family() {
            return Err(RdsError::AddressFamily);
        }
        if kind != profile.socket_type() {
            return Err(RdsError::SocketType);
        }
        if protocol != 0 {
            return Err(RdsError::Protocol);
        }
        if adapter.is_dead() {
            return Err(RdsError::NoDevice);
        }
        let handle = self.socket()?;
        self.set_profile(handle, profile)?;
        Ok(handle)
    }

    /// Binds a socket, once, to this node's address or a loopback address, and to a port. Port 0
    /// selects a free one.
    ///
    /// # Errors
    /// [`RdsError::AddressNotAvailable`], [`RdsError::AddressInUse`]; [`RdsError::InvalidArgument`]
    /// for port 1, for unspecified, broadcast and multicast addresses, and for a socket that is
    /// bound; [`RdsError::NoTransport`] if the transport chosen before does not own the address;
    /// [`RdsError::BadSocket`].
    pub fn bind_socket(&mut self, handle: SocketHandle, to: SocketAddr) -> Result<(), RdsError> {
        let wanted = key(to.ip());
        let socket = self.protocol.sockets.open(handle)?;
        if socket.address != 0 || !is_unicast(to.ip()) || to.port() == 1 {
            return Err(RdsError::InvalidArgument);
        }
        let transport = match wanted {
            _ if wanted == self.protocol.local => Transport::InfiniBand,
            _ if to.ip().to_canonical().is_loopback() => Transport::Loopback,
            _ => return Err(RdsError::AddressNotAvailable),
        };
        if socket.transport.get().is_some_and(|chosen| chosen != transport) {
            return Err(RdsError::NoTransport);
        }
        let port = match to.port() {
            0 => self.free_port(wanted)?,
            port if self.protocol.sockets.bound_to(wanted, port).is_some() => {
                return Err(RdsError::AddressInUse);
            }
            port => port,
        };
        self.protocol.sockets.bind(handle, (wanted, port), transport)
    }

    /// Creates a socket and binds it.
    ///
    /// # Errors
    /// As for [`socket`](Self::socket) and [`bind_socket`](Self::bind_socket).
    pub fn bind(&mut self, to: SocketAddr) -> Result<SocketHandle, RdsError> {
        let handle = self.socket()?;
        let bound = self.bind_socket(handle, to);
        if bound.is_err() {
            self.protocol.sockets.close(handle)?;
        }
        bound.map(|()| handle)
    }

    fn free_port(&mut self, address: u128) -> Result<u16, RdsError> {
        let start = self.protocol.random() as u16;
        (0..=u16::MAX)
            .map(|step| start.wrapping_add(step))
            .find(|&port| port > 1 && self.protocol.sockets.bound_to(address, port).is_none())
            .ok_or(RdsError::AddressInUse)
    }

    /// Closes a socket, and drops its unread messages and those whose transmission has not begun.
    /// Messages in flight remain until the peer has acknowledged them. On success no operation,
    /// loan or offer of the socket uses memory any longer.
    ///
    /// # Errors
    /// - [`RdsError::BadSocket`].
    /// - [`RdsError::Again`]: operations, loans or revocations are in flight. [`Poll`](Self::poll),
    ///   and close again. If nothing of their connection completes for 100 ms, it breaks. After a
    ///   failure of the device that lasts until the adapter is
    ///   [recovered](Self::adapter_recovered).
    /// - [`RdsError::Dat`]: a failed device may still write to registered memory; close again after
    ///   recovery.
    pub fn close<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        handle: SocketHandle,
    ) -> Result<(), RdsError> {
        let mut node = self.node(adapter);
        node.protocol.sockets.open(handle)?;
        // Deadlines of requests in flight count from here.
        node.protocol.now = node.adapter.now();
        let mut in_use = false;
        for id in node.protocol.connections.ids() {
            in_use |= node.cancel(id, handle, None);
        }
        node.protocol.cancel_absent(handle, None);
        if in_use || node.protocol.operations.is_ending(handle) {
            return Err(RdsError::Again);
        }
        node.free_regions(Some(handle))?;
        node.finish_released(|_, memory| memory.owner == handle)?;
        node.unregister_all(Some(handle))?;
        while let Ok(Some(_)) = node.protocol.take_notification(handle) {}
        node.protocol.drop_received(handle);
        // Clears its port in the congestion map.
        node.protocol.relieve(usize::from(handle.slot));
        node.protocol.sockets.close(handle)?;
        if node.protocol.sockets.iter().next().is_none() {
            // A program that closes its last socket may exit without another call.
            node.poll_requests();
            node.acknowledge_all();
        }
        choose_burst(node.objects, &node.protocol.sockets);
        node.frames_are_free(handle);
        Ok(())
    }

    /// Removes the oldest notification of a completed operation of this socket
    /// (`RDS_CMSG_RDMA_STATUS`). Returns `None` if there is none.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn take_notification(&mut self, handle: SocketHandle) -> Result<Option<RdmaNotify>, RdsError> {
        self.protocol.take_notification(handle)
    }

    /// Returns whether a message waits for [`recvmsg`](Self::recvmsg).
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn is_readable(&self, handle: SocketHandle) -> Result<bool, RdsError> {
        Ok(!self.protocol.sockets.open(handle)?.received.is_empty())
    }

    /// Returns the bytes of the next message of [`recvmsg`](Self::recvmsg) (`FIONREAD` for datagram
    /// sockets); 0 without a message.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn next_message_len(&self, handle: SocketHandle) -> Result<usize, RdsError> {
        let next = self.protocol.frames.front(&self.protocol.sockets.open(handle)?.received);
        Ok(next.map_or(0, |unread| unread.len))
    }

    /// Returns the bytes that the socket sent and peers have not acknowledged (`TIOCOUTQ`).
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn unacknowledged_bytes(&self, handle: SocketHandle) -> Result<usize, RdsError> {
        let sent = self.protocol.sockets.open(handle)?.sent.bytes();
        Ok(sent - self.protocol.acknowledged_early(handle).1)
    }

    /// Returns the messages that the socket sent and peers have not acknowledged.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn unacknowledged(&self, handle: SocketHandle) -> Result<usize, RdsError> {
        let sent = self.protocol.sockets.open(handle)?.sent.count();
        Ok(sent - self.protocol.acknowledged_early(handle).0)
    }

    /// Returns the events counted since the start.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.protocol.counters
    }

    /// Returns the number of free frames. It is the same before and after a burst is sent,
    /// acknowledged and read, except for the receives of open connections.
    #[must_use]
    pub const fn free_frames(&self) -> usize {
        self.protocol.frames.free_count()
    }

    /// Returns the number of established connections.
    #[must_use]
    pub fn connections_up(&self) -> usize {
        self.protocol.connections.iter().filter(|(_, connection)| connection.state == State::Up).count()
    }

    /// Returns the maximum bytes of a message that [`sendmsg`](Self::sendmsg) accepts for a peer,
    /// regardless of the send buffer: 1 MiB, or less with few frames. A message of more frames than
    /// the connection's share waits for common frames. A [zero-copy payload](crate::Lend) needs few
    /// frames and may be longer. Peers that run this crate report their own limit in the handshake,
    /// which then also applies to messages for them.
    #[must_use]
    pub const fn longest_message(&self) -> usize {
        self.protocol.limits.longest_sent
    }
}

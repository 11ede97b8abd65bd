//! Calls that query and configure a socket: addresses, buffers, options, readiness. rds(3SOCKET);
//! Linux `net/rds/af_rds.c`.

use core::net::SocketAddr;

use dat_nostd::{Adapter, Platform};

use crate::error::RdsError;
use crate::ids::SocketHandle;
use crate::io::Rds;
use crate::profile::{MIN_RCVBUF, MIN_SNDBUF, Profile, reported, usable};
use crate::socket::{PollMask, PollRule, Transport, address, is_unicast, is_v4, key};

impl Rds<'_> {
    /// Returns the bound address (`getsockname`, `TI_GETMYNAME`).
    ///
    /// # Errors
    /// [`RdsError::NotConnected`]: not bound; [`RdsError::BadSocket`].
    pub fn local_address(&self, handle: SocketHandle) -> Result<SocketAddr, RdsError> {
        let socket = self.protocol.sockets.open(handle)?;
        match socket.address {
            0 => Err(RdsError::NotConnected),
            bound => Ok(SocketAddr::new(address(bound), socket.port)),
        }
    }

    /// Sets the destination of messages that name none, any number of times, before or after bind.
    /// Sends nothing.
    ///
    /// # Errors
    /// As in Linux: [`RdsError::NoDestination`] for the unspecified address of IPv4,
    /// [`RdsError::InvalidArgument`] for broadcast and multicast; [`RdsError::NotUnicast`] for all
    /// of these in IPv6, mapped or not. [`RdsError::BadSocket`].
    pub fn connect(&mut self, handle: SocketHandle, to: SocketAddr) -> Result<(), RdsError> {
        let socket = self.protocol.sockets.open_mut(handle)?;
        match to {
            _ if is_unicast(to.ip()) => {}
            SocketAddr::V6(_) => return Err(RdsError::NotUnicast),
            SocketAddr::V4(v4) if v4.ip().is_unspecified() => return Err(RdsError::NoDestination),
            SocketAddr::V4(_) => return Err(RdsError::InvalidArgument),
        }
        (socket.peer, socket.peer_port) = (key(to.ip()), to.port());
        Ok(())
    }

    /// Returns the destination of [`connect`](Self::connect) (`getpeername`).
    ///
    /// # Errors
    /// [`RdsError::NotConnected`], [`RdsError::BadSocket`].
    pub fn peer_address(&self, handle: SocketHandle) -> Result<SocketAddr, RdsError> {
        let socket = self.protocol.sockets.open(handle)?;
        match socket.peer {
            0 => Err(RdsError::NotConnected),
            peer => Ok(SocketAddr::new(address(peer), socket.peer_port)),
        }
    }

    /// Sets the system that the program expects, and with it the rules of
    /// [`poll_mask`](Self::poll_mask). The default is the profile of the node's configuration.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn set_profile(&mut self, handle: SocketHandle, profile: Profile) -> Result<(), RdsError> {
        let socket = self.protocol.sockets.open_mut(handle)?;
        socket.profile = profile;
        socket.poll_rule = profile.into();
        Ok(())
    }

    /// Returns the profile of a socket.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn profile(&self, handle: SocketHandle) -> Result<Profile, RdsError> {
        Ok(self.protocol.sockets.open(handle)?.profile)
    }

    /// `setsockopt(SO_SNDBUF)`. Linux: sets the usable bytes, at most
    /// [`RdsConfig::buffer_max`](crate::RdsConfig::buffer_max) and at least 2304. Solaris:
    /// unlimited.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn set_sndbuf(&mut self, handle: SocketHandle, bytes: u32) -> Result<(), RdsError> {
        let most = self.protocol.config.buffer_max;
        let profile = self.profile(handle)?;
        self.set_send_buffer(handle, usable(profile, bytes, most, MIN_SNDBUF))
    }

    /// `getsockopt(SO_SNDBUF)`. Linux: twice the usable bytes. Solaris: the usable bytes.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn sndbuf(&self, handle: SocketHandle) -> Result<u32, RdsError> {
        Ok(reported(self.profile(handle)?, self.send_buffer(handle)?))
    }

    /// `setsockopt(SO_RCVBUF)`. Linux: sets the usable bytes, at most
    /// [`RdsConfig::buffer_max`](crate::RdsConfig::buffer_max) and at least 1152. Solaris:
    /// unlimited.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn set_rcvbuf<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        handle: SocketHandle,
        bytes: u32,
    ) -> Result<(), RdsError> {
        let most = self.protocol.config.buffer_max;
        let profile = self.profile(handle)?;
        self.set_receive_buffer(adapter, handle, usable(profile, bytes, most, MIN_RCVBUF))
    }

    /// `getsockopt(SO_RCVBUF)`. Linux: twice the usable bytes. Solaris: the usable bytes.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn rcvbuf(&self, handle: SocketHandle) -> Result<u32, RdsError> {
        Ok(reported(self.profile(handle)?, self.receive_buffer(handle)?))
    }

    /// Sets the limit of unacknowledged bytes, which also bounds a message (`SO_SNDBUF`).
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn set_send_buffer(&mut self, handle: SocketHandle, bytes: usize) -> Result<(), RdsError> {
        self.protocol.sockets.open_mut(handle)?.sent.set_limit(bytes);
        Ok(())
    }

    /// Returns the limit of unacknowledged bytes.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn send_buffer(&self, handle: SocketHandle) -> Result<usize, RdsError> {
        Ok(self.protocol.sockets.open(handle)?.sent.limit())
    }

    /// Sets the unread bytes above which the port is congested for peers (`SO_RCVBUF`).
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn set_receive_buffer<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        handle: SocketHandle,
        bytes: usize,
    ) -> Result<(), RdsError> {
        let mut node = self.node(adapter);
        node.protocol.sockets.open_mut(handle)?.unread.set_limit(bytes);
        let slot = usize::from(handle.slot);
        node.protocol.crowded(slot);
        node.frames_are_free(handle);
        Ok(())
    }

    /// Returns the unread bytes above which the port is congested.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn receive_buffer(&self, handle: SocketHandle) -> Result<usize, RdsError> {
        Ok(self.protocol.sockets.open(handle)?.unread.limit())
    }

    /// Reports failed RDMA operations even without `NOTIFY_ME` (`RDS_RECVERR`; off by default).
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn set_receive_errors(&mut self, handle: SocketHandle, on: bool) -> Result<(), RdsError> {
        self.protocol.sockets.open_mut(handle)?.receive_errors = on;
        Ok(())
    }

    /// Returns the value of [`set_receive_errors`](Self::set_receive_errors).
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn receive_errors(&self, handle: SocketHandle) -> Result<bool, RdsError> {
        Ok(self.protocol.sockets.open(handle)?.receive_errors)
    }

    /// Reports ports that clear after they refused a message (`RDS_CONG_MONITOR`; off by default).
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn set_congestion_monitor(&mut self, handle: SocketHandle, on: bool) -> Result<(), RdsError> {
        let socket = self.protocol.sockets.open_mut(handle)?;
        socket.monitor = on;
        (socket.refused, socket.cleared) = (0, 0);
        Ok(())
    }

    /// Returns the value of [`set_congestion_monitor`](Self::set_congestion_monitor).
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn congestion_monitor(&self, handle: SocketHandle) -> Result<bool, RdsError> {
        Ok(self.protocol.sockets.open(handle)?.monitor)
    }

    /// Selects the transport of the socket, once and before bind (`SO_RDS_TRANSPORT`).
    ///
    /// # Errors
    /// [`RdsError::NotSupported`]: bound, or selected before; [`RdsError::BadSocket`].
    pub fn set_transport(&mut self, handle: SocketHandle, transport: Transport) -> Result<(), RdsError> {
        let socket = self.protocol.sockets.open_mut(handle)?;
        if socket.transport.get().is_some() {
            return Err(RdsError::NotSupported);
        }
        socket.transport.set(transport);
        Ok(())
    }

    /// Returns the transport of the socket; `None` before it is chosen.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn transport(&self, handle: SocketHandle) -> Result<Option<Transport>, RdsError> {
        Ok(self.protocol.sockets.open(handle)?.transport.get())
    }

    /// Sets the type of service, once and before the first send (`SIOCRDSSETTOS`). Messages with it
    /// use their own connection, with service level `tos & 0xf` and traffic class `tos`. Zero is
    /// the default and may be set any number of times.
    ///
    /// # Errors
    /// [`RdsError::NoTypeOfService`]: not bound, or bound to a loopback address.
    /// [`RdsError::InvalidArgument`]: already set, or the socket has sent. [`RdsError::BadSocket`].
    pub fn set_type_of_service(&mut self, handle: SocketHandle, tos: u8) -> Result<(), RdsError> {
        let socket = self.protocol.sockets.open_mut(handle)?;
        if socket.address == 0 || socket.transport.get() != Some(Transport::InfiniBand) {
            return Err(RdsError::NoTypeOfService);
        }
        if socket.tos != 0 || socket.tos_used {
            return Err(RdsError::InvalidArgument);
        }
        socket.tos = tos;
        Ok(())
    }

    /// Returns the socket's type of service (`SIOCRDSGETTOS`).
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn type_of_service(&self, handle: SocketHandle) -> Result<u8, RdsError> {
        Ok(self.protocol.sockets.open(handle)?.tos)
    }

    /// Selects the rules of [`poll_mask`](Self::poll_mask).
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn set_poll_rule(&mut self, handle: SocketHandle, rule: PollRule) -> Result<(), RdsError> {
        self.protocol.sockets.open_mut(handle)?.poll_rule = rule;
        Ok(())
    }

    /// Returns the events that a socket is ready for, by its rules (`poll`). OUT does not depend on
    /// congestion at the destination.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn poll_mask(&mut self, handle: SocketHandle) -> Result<PollMask, RdsError> {
        let generation = self.protocol.map_generation;
        let has_room = self.protocol.has_room(handle)? && self.protocol.may_send(handle)?;
        let socket = self.protocol.sockets.open_mut(handle)?;
        let mut mask = PollMask::empty();
        if !socket.received.is_empty() || socket.notifications.is_some() || socket.gave_up {
            mask |= PollMask::IN | PollMask::RDNORM;
        }
        match socket.poll_rule {
            PollRule::Solaris => return Ok(mask | PollMask::OUT | PollMask::WRNORM),
            PollRule::Linux => {}
        }
        if socket.monitor {
            mask.set(PollMask::IN | PollMask::RDNORM, !mask.is_empty() || socket.cleared != 0);
        } else if core::mem::replace(&mut socket.polled_generation, generation) != generation {
            mask |= PollMask::IN | PollMask::RDNORM | PollMask::WRBAND;
        }
        if socket.sent.limit() > 0 && has_room {
            mask |= PollMask::OUT | PollMask::WRNORM;
        }
        Ok(mask)
    }

    /// Drops the socket's messages to exactly `to` that its peer has not acknowledged
    /// (`RDS_CANCEL_SENT_TO`). Messages in flight may still arrive. On success none of their
    /// operations and loans uses memory any longer.
    ///
    /// # Errors
    /// - [`RdsError::Again`]: operations or loans of these messages are in flight. They complete as
    ///   [`Canceled`](crate::RdmaStatus::Canceled) during polls. Another call returns success then.
    ///   If nothing of their connection completes for 100 ms, it breaks.
    /// - [`RdsError::NotConnected`]: the socket is not bound.
    /// - [`RdsError::InvalidArgument`]: the address has another family than the socket.
    /// - [`RdsError::BadSocket`].
    pub fn cancel_sent_to<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        handle: SocketHandle,
        to: SocketAddr,
    ) -> Result<(), RdsError> {
        let mut node = self.node(adapter);
        let socket = node.protocol.sockets.open(handle)?;
        let foreign = key(to.ip());
        if socket.address == 0 {
            return Err(RdsError::NotConnected);
        }
        if is_v4(foreign) != is_v4(socket.address) {
            return Err(RdsError::InvalidArgument);
        }
        let tos = socket.tos;
        node.protocol.cancel_absent(handle, Some((foreign, tos, to.port())));
        let found = node.protocol.connections.find(foreign, tos);
        node.protocol.now = node.adapter.now();
        let in_use = found.is_some_and(|id| node.cancel(id, handle, Some(to.port())));
        if in_use || node.protocol.operations.is_ending(handle) { Err(RdsError::Again) } else { Ok(()) }
    }
}

//! Messages that arrived: to a socket's queue, and from there to its application.

use core::net::SocketAddr;

use crate::error::RdsError;
use crate::frames::{Frame, Marks};
use crate::ids::MessageId;
use crate::ids::SocketHandle;
use crate::message::{FramesHandle, LentMessage, Received};
use crate::protocol::Protocol;
use crate::rdma::RdmaCookie;
use crate::socket::address;
use crate::wire::{Extension, Extensions, Header};

impl Protocol<'_> {
    /// Queues a complete message to a socket.
    pub(crate) fn deliver_to(&mut self, slot: usize, message: MessageId) {
        let Self { sockets, frames, counters, receiving, limits, .. } = self;
        let Some(socket) = sockets.get_mut(slot) else { return };
        let descriptor = frames.message(message);
        let size = (descriptor.len as usize, usize::from(descriptor.frames));
        counters.recv_queued += 1;
        let full = socket.receives(frames, message, size, limits);
        if full || receiving.beyond() > limits.congested_common {
            self.crowded(slot);
        }
    }

    /// Gives the frames of a received message back.
    #[inline(always)]
    pub(crate) fn give_received(&mut self, message: MessageId) {
        let Self { connections, frames, receiving, .. } = self;
        let descriptor = frames.message(message);
        let owner = descriptor.connection;
        let count = if descriptor.frames == 1 {
            frames.give(message.first());
            1
        } else {
            frames.give_message(message)
        };
        match owner {
            Some(id) => {
                let rx = &mut connections.at_mut(id).rx;
                receiving.give(&mut rx.used, count);
            }
            None => receiving.give(&mut self.local_used, count),
        }
    }

    /// Takes the oldest message of a socket, if nothing is to be told before it, it is of one frame, from a peer, and nothing came along
    /// with it. What does not fit into `buffer` is gone. The second answer: something else is to be done now, because frames came free.
    #[inline(always)]
    pub(crate) fn take_front(&mut self, handle: SocketHandle, buffer: &mut [u8]) -> Option<(Received, bool)> {
        let Self { sockets, frames, counters, connections, receiving, .. } = self;
        let socket = sockets.open_mut(handle).ok()?;
        if socket.notifications.is_some() || socket.cleared != 0 {
            return None;
        }
        let read = frames.read_front(&mut socket.received, buffer)?;
        socket.receive_bytes -= read.message_len;
        socket.receive_frames -= 1;
        counters.recv_delivered += 1;
        let more = socket.congested | self.pool_short | self.starved | self.maps_changed;
        let connection = connections.at_mut(read.connection);
        receiving.give_one(&mut connection.rx.used);
        let from = SocketAddr::new(address(connection.foreign), read.sport);
        let received = Received { from, len: read.len, message_len: read.message_len, cookie: None };
        Some((received, more))
    }

    /// Takes the oldest message of a socket, whatever it is.
    ///
    /// # Errors
    /// [`RdsError::Again`]: nothing there. [`RdsError::BadSocket`].
    pub(crate) fn take_message(
        &mut self,
        handle: SocketHandle,
        buffer: &mut [u8],
    ) -> Result<Received, RdsError> {
        let received = self.peek_message(handle, buffer)?;
        let Self { sockets, frames, counters, .. } = self;
        let socket = sockets.open_mut(handle)?;
        let message = socket.received.head().ok_or(RdsError::Again)?;
        socket.receive_bytes -= received.message_len;
        socket.receive_frames -= usize::from(frames.message(message).frames);
        counters.recv_delivered += 1;
        if !frames.advance(message) {
            socket.lose(frames.message(message).rest());
            frames.pop_front(&mut socket.received);
            self.give_received(message);
        }
        Ok(received)
    }

    /// Copies the oldest message of a socket and leaves it there.
    ///
    /// # Errors
    /// As [`take_message`](Self::take_message).
    pub(crate) fn peek_message(&self, handle: SocketHandle, buffer: &mut [u8]) -> Result<Received, RdsError> {
        let message = self.sockets.open(handle)?.received.head().ok_or(RdsError::Again)?;
        let len = self.frames.read_message(message, buffer);
        let descriptor = self.frames.message(message);
        let from = SocketAddr::new(address(self.source_of(descriptor)), descriptor.sport);
        let cookie = if descriptor.is(Marks::EXTENDED) { self.offered(message) } else { None };
        Ok(Received { from, len, message_len: descriptor.len as usize, cookie })
    }

    /// Takes the oldest message of a socket and lends its frames to the application.
    ///
    /// # Errors
    /// As [`take_message`](Self::take_message). [`RdsError::NoBufferSpace`]: it is packed with others, and no frame is to be had for it.
    pub(crate) fn lend_message(&mut self, handle: SocketHandle) -> Result<LentMessage, RdsError> {
        let Received { from, message_len, cookie, .. } = self.peek_message(handle, &mut [])?;
        let Self { sockets, frames, counters, connections, receiving, .. } = self;
        let socket = sockets.open_mut(handle)?;
        let head = socket.received.head().ok_or(RdsError::Again)?;
        let Frame { connection, marks, .. } = *frames.message(head);
        let next = frames.behind(head).next();
        let message = if let (Some(next), Some(id)) = (&next, connection) {
            let rx = &mut connections.at_mut(id).rx;
            let is_fair = receiving.has_one(rx.used);
            // Whoever reads only with ZEROCOPY would wait for ever: one loan of the node may be of the reserve, while nobody has that.
            let left = receiving.beyond() < receiving.common() + self.limits.reserve;
            let may = is_fair || (left && self.reserve_of.is_none() && self.lent_beyond == 0);
            let own = if may { frames.unpack(head, Some(next)) } else { None };
            let own = own.ok_or(RdsError::NoBufferSpace)?;
            receiving.take_one(&mut rx.used);
            if !is_fair {
                self.lent_beyond = self.loans + 1;
            }
            own
        } else {
            socket.lose(frames.message(head).rest());
            frames.pop_front(&mut socket.received);
            if marks.contains(Marks::PACKED) {
                frames.unpack(head, None);
            }
            head
        };
        // Its bytes and frames count as those of an unread one until it comes back.
        let descriptor = frames.message_mut(message);
        (descriptor.socket, descriptor.generation) = (handle.slot, handle.generation);
        counters.recv_delivered += 1;
        self.loans += 1;
        Ok(LentMessage { from, message_len, cookie, frames: frames.lend(message, self.loans) })
    }

    /// The frames of a lent message are free; gives the socket that it was read from. None if they were not lent.
    pub(crate) fn take_back_lent(&mut self, handle: FramesHandle) -> Option<SocketHandle> {
        if !self.frames.is_lent(handle) {
            return None;
        }
        if self.lent_beyond == handle.number {
            self.lent_beyond = 0;
        }
        let descriptor = self.frames.message(handle.message);
        let owner = descriptor.owner();
        if let Ok(socket) = self.sockets.open_mut(owner) {
            socket.receive_bytes -= descriptor.len as usize;
            socket.receive_frames -= usize::from(descriptor.frames);
        }
        self.give_received(handle.message);
        Some(owner)
    }

    /// Who sent a message that arrived, IPv4 mapped.
    pub(crate) fn source_of(&self, descriptor: &Frame) -> u128 {
        descriptor.connection.map_or_else(|| descriptor.source(), |id| self.connections.at(id).foreign)
    }

    #[cold]
    fn offered(&self, message: MessageId) -> Option<RdmaCookie> {
        let extensions = self.frames.read_extensions(message.first());
        let header = Header { extensions, ..Header::acknowledgement(0) };
        Extensions::of(&header).find_map(|extension| match extension {
            Extension::RdmaDest { rkey, offset } => Some(RdmaCookie::new(rkey, offset)),
            _ => None,
        })
    }

    /// Everything that waits in a socket that closes is gone.
    pub(crate) fn drop_received(&mut self, handle: SocketHandle) {
        while let Ok(socket) = self.sockets.open_mut(handle)
            && let Some(message) = self.frames.pop_front(&mut socket.received)
        {
            let descriptor = self.frames.message(message);
            socket.receive_bytes -= descriptor.len as usize;
            socket.receive_frames -= usize::from(descriptor.frames);
            self.give_received(message);
        }
        // What it read as frames, and has not given back, is not its any more.
        if let Ok(socket) = self.sockets.open_mut(handle) {
            (socket.receive_bytes, socket.receive_frames) = (0, 0);
        }
    }
}

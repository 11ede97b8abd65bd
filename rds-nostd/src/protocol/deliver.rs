//! Received messages: from the connection to a socket's inbox, and from there to the application.

use core::net::{SocketAddr, SocketAddrV4};

use crate::error::RdsError;
use crate::frames::{Inbox, Marks, Place, Unread, Use};
use crate::ids::{MessageId, SocketHandle};
use crate::message::{FramesHandle, LentMessage, Received};
use crate::protocol::Protocol;
use crate::quota::Buffer;
use crate::rdma::{RdmaCookie, RdmaNotify};
use crate::socket::address;
use crate::wire::{Extension, Extensions, Header};

impl Protocol<'_> {
    /// Appends a complete message of `size` (bytes, frames) to a socket's inbox.
    pub(crate) fn deliver_to(&mut self, slot: usize, place: Place, size: (usize, usize)) {
        let Some(socket) = self.sockets.get_mut(slot) else { return };
        self.frames.deliver(&mut socket.received, place);
        self.queued(slot, size);
    }

    /// Counts a message of `size` (bytes, frames) in a socket's inbox, and marks the port as
    /// congested if the socket is full.
    pub(crate) fn queued(&mut self, slot: usize, size: (usize, usize)) {
        let Some(socket) = self.sockets.get_mut(slot) else { return };
        self.counters.recv_queued += 1;
        let full = socket.receives(size, self.limits.congested_frames);
        if full || self.receiving.beyond() > self.limits.congested_common {
            self.crowded(slot);
        }
    }

    /// Frees the slot or the frames of a received message.
    pub(crate) fn give_received(&mut self, message: MessageId) {
        let Self { connections, frames, receiving, local_used, .. } = self;
        let entry = frames.message_mut(message);
        let used = match entry.connection {
            Some(id) => {
                let rx = &mut connections.at_mut(id).rx;
                if entry.used == Use::Unread {
                    (entry.used, entry.marks) = (Use::Ring, Marks::empty());
                    return rx.ring.free();
                }
                &mut rx.used
            }
            None => local_used,
        };
        receiving.give(used, frames.give_message(message));
    }

    /// Frees a message that has left its inbox.
    fn give_place(&mut self, place: Place) {
        if let Some(message) = place.message() {
            return self.give_received(message);
        }
        let Self { connections, frames, receiving, .. } = self;
        let Some(id) = frames.connection_of(place) else { return };
        let rx = &mut connections.at_mut(id).rx;
        if frames.remove_record(place, &mut rx.arena) {
            receiving.give_one(&mut rx.used);
        }
    }

    /// Fast path: takes the oldest message of a socket without pending events, if the message is in
    /// its slot and has no extensions. Bytes that exceed `buffer` are lost. Returns also whether
    /// the freed space needs attention, e.g. of a congested port.
    #[inline(always)]
    pub(crate) fn take_in_slot(
        &mut self,
        handle: SocketHandle,
        buffer: &mut [u8],
    ) -> Option<(Received, bool)> {
        let Self { sockets, frames, counters, connections, .. } = self;
        let socket = sockets.open_mut(handle).ok()?;
        if socket.has_events() {
            return None;
        }
        let (unread, len) = frames.read_in_slot(&mut socket.received, buffer)?;
        let Unread { connection, sport, len: message_len, .. } = unread;
        socket.unread.release(message_len, 1);
        counters.recv_delivered += 1;
        let more = socket.congested | self.pool_short | self.starved | self.maps_changed;
        let connection = connections.at_mut(connection?);
        connection.rx.ring.free();
        let from = match connection.peer.v4 {
            Some(v4) => SocketAddr::V4(SocketAddrV4::new(v4, sport)),
            None => SocketAddr::new(address(connection.peer.foreign), sport),
        };
        Some((Received { from, len, message_len, cookie: None }, more))
    }

    /// Takes the oldest message of a socket, of any kind.
    ///
    /// # Errors
    /// [`RdsError::Again`]: no message. [`RdsError::BadSocket`].
    #[inline(never)]
    pub(crate) fn take_message(
        &mut self,
        handle: SocketHandle,
        buffer: &mut [u8],
    ) -> Result<(Received, bool), RdsError> {
        let (unread, received) = self.peek(handle, buffer)?;
        let Self { sockets, frames, counters, .. } = self;
        let socket = sockets.open_mut(handle)?;
        frames.remove_front(&mut socket.received, &unread);
        socket.unread.release_at_most(unread.len, unread.frames);
        counters.recv_delivered += 1;
        let is_congested = socket.congested;
        self.give_place(unread.place);
        Ok((received, is_congested | self.pool_short | self.starved | self.maps_changed))
    }

    /// Copies the oldest message of a socket, which remains queued.
    ///
    /// # Errors
    /// As for [`take_message`](Self::take_message).
    pub(crate) fn peek(
        &mut self,
        handle: SocketHandle,
        buffer: &mut [u8],
    ) -> Result<(Unread, Received), RdsError> {
        let socket = self.sockets.open(handle)?;
        let Some(unread) = self.frames.front(&socket.received) else { return Err(self.nothing(handle)) };
        let len = self.frames.read(&unread, buffer);
        let from = SocketAddr::new(address(self.source_of(&unread)), unread.sport);
        Ok((unread, Received { from, len, message_len: unread.len, cookie: self.offered(&unread) }))
    }

    /// Empties the inbox of a socket without readable message, and returns `Again`. After a device
    /// overwrote a link, the unreachable messages no longer count.
    #[cold]
    fn nothing(&mut self, handle: SocketHandle) -> RdsError {
        if let Ok(socket) = self.sockets.open_mut(handle) {
            socket.received = Inbox::EMPTY;
            if socket.loans == 0 && socket.unread.count() > 0 {
                socket.unread = Buffer::new(socket.unread.limit());
                self.relieve(usize::from(handle.slot));
            }
        }
        RdsError::Again
    }

    /// Takes the oldest message of a socket and lends its frames to the application.
    ///
    /// # Errors
    /// As for [`take_message`](Self::take_message).
    pub(crate) fn lend_message(&mut self, handle: SocketHandle) -> Result<LentMessage, RdsError> {
        let (unread, Received { from, message_len, cookie, .. }) = self.peek(handle, &mut [])?;
        let Self { sockets, frames, counters, connections, rings, .. } = self;
        if let Some(message) = unread.place.message()
            && frames.message(message).used == Use::Unread
            && let Some(id) = unread.connection
        {
            rings.remove_unread(id, &mut connections.at_mut(id).rx.ring, frames, message.first());
        }
        // The message counts as unread until its frames are returned.
        let socket = sockets.open_mut(handle)?;
        frames.remove_front(&mut socket.received, &unread);
        socket.loans += 1;
        counters.recv_delivered += 1;
        Ok(LentMessage { from, message_len, cookie, frames: frames.lend(&unread, handle) })
    }

    /// See [`Rds::take_notification`](crate::Rds::take_notification).
    pub(crate) fn take_notification(&mut self, handle: SocketHandle) -> Result<Option<RdmaNotify>, RdsError> {
        self.operations.take_notification(handle, &mut self.sockets)
    }

    /// Frees the frames of a lent message. Returns the socket that it was read from, or `None` if
    /// they were not lent.
    pub(crate) fn take_back_lent(&mut self, handle: FramesHandle) -> Option<SocketHandle> {
        let frames = self.frames.lent_frames(&handle)?;
        if let Ok(socket) = self.sockets.open_mut(handle.owner) {
            socket.unread.release_at_most(handle.len, frames);
            socket.loans -= 1;
        }
        self.give_place(handle.place);
        Some(handle.owner)
    }

    /// Returns the sender of a received message, IPv4 mapped.
    pub(crate) fn source_of(&self, unread: &Unread) -> u128 {
        match unread.connection {
            Some(id) => self.connections.at(id).peer.foreign,
            None => self.frames.source(unread.place),
        }
    }

    #[cold]
    fn offered(&self, unread: &Unread) -> Option<RdmaCookie> {
        let message = unread.place.message()?;
        if !self.frames.message(message).is(Marks::EXTENDED) {
            return None;
        }
        let extensions = self.frames.read_extensions(message.first());
        let header = Header { extensions, ..Header::acknowledgement(0) };
        Extensions::of(&header).find_map(|extension| match extension {
            Extension::RdmaDest { rkey, offset } => Some(RdmaCookie::new(rkey, offset)),
            _ => None,
        })
    }

    /// Drops all unread messages of a socket that closes.
    pub(crate) fn drop_received(&mut self, handle: SocketHandle) {
        while let Ok(socket) = self.sockets.open_mut(handle)
            && let Some(unread) = self.frames.front(&socket.received)
        {
            self.frames.remove_front(&mut socket.received, &unread);
            self.give_place(unread.place);
        }
        // Frames that are still lent no longer count against the socket.
        if let Ok(socket) = self.sockets.open_mut(handle) {
            socket.unread = Buffer::new(socket.unread.limit());
        }
    }
}

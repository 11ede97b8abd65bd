//! Messages on their way in from sockets: where they go, whether there is room, and their place in the queue.

use core::net::{IpAddr, SocketAddr};

use crate::connection::{Connection, State};
use crate::error::RdsError;
use crate::frames::{Frames, Marks, Shares, Use};
use crate::ids::{ConnectionId, MessageId};
use crate::profile::Profile;
use crate::protocol::{Protocol, port_mask};
use crate::socket::{Socket, SocketHandle, is_v4, key};
use crate::wire::{FRAGMENT_LEN, Flags, fragments};

/// Answers to pings that a peer may have outstanding; further pings are not answered.
const MAX_PONGS: u8 = 16;

/// A message whose frames are filled, on its way to a connection's queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    pub(crate) connection: ConnectionId,
    pub(crate) message: MessageId,
}

impl Protocol<'_> {
    /// Where a message from this socket would go: over the wire, or not. See [`Rds::sendmsg`](crate::Rds::sendmsg) for the errors.
    pub(crate) fn reachable(&self, from: SocketHandle, to: SocketAddr) -> Result<bool, RdsError> {
        let source = self.sockets.open(from)?.address;
        if !is_unicast(to.ip()) {
            return Err(RdsError::InvalidArgument);
        }
        if source == 0 {
            return Err(RdsError::NotConnected);
        }
        let foreign = key(to.ip());
        if is_v4(foreign) != is_v4(source) {
            return Err(RdsError::NotSupported);
        }
        // Loopback addresses are reached from loopback addresses alone, and nothing else is.
        let loopback = source != self.local;
        if to.ip().to_canonical().is_loopback() != loopback {
            return Err(RdsError::InvalidArgument);
        }
        Ok(!loopback && foreign != self.local)
    }

    /// Finds the connection that messages of a socket to a peer go over, and remembers it with the socket. None: they stay on this node.
    #[inline(never)]
    fn find_route(&mut self, from: SocketHandle, to: SocketAddr) -> Result<Option<ConnectionId>, RdsError> {
        if !self.reachable(from, to)? {
            return Ok(None);
        }
        let (foreign, tos) = (key(to.ip()), self.sockets.open(from)?.tos);
        let id = self.connection_for(foreign, tos).ok_or(RdsError::NoBufferSpace)?;
        let socket = self.sockets.open_mut(from)?;
        (socket.route, socket.route_to) = (Some(id), foreign);
        Ok(Some(id))
    }

    /// Checks everything, fills frames with a message, and queues it, unless something goes along with it (`alone` is false): then
    /// [`enqueue`](Self::enqueue) does. None: it went to this node itself.
    ///
    /// # Errors
    /// See [`Rds::sendmsg`](crate::Rds::sendmsg).
    #[inline(always)]
    pub(crate) fn compose(
        &mut self,
        from: SocketHandle,
        to: &SocketAddr,
        payload: &[u8],
        alone: bool,
    ) -> Result<Option<Outgoing>, RdsError> {
        let Self { sockets, connections, frames, maps, sending, limits, counters, .. } = self;
        let socket = sockets.open_mut(from)?;
        let (len, dport) = (payload.len(), to.port());
        let total = socket.send_bytes + len;
        let (Some(id), true) = (socket.route, socket.route_to == key(to.ip())) else {
            return self.compose_for(from, to, payload, alone);
        };
        let connection = connections.at_mut(id);
        let room = sending.fair_room(connection.tx.frames);
        let marked = maps.get(id.index()).is_none_or(|map| map.is_marked(dport));
        if len > FRAGMENT_LEN
            || total >= socket.send_buffer
            || room == 0
            || marked
            || len > limits.longest_sent
        {
            return self.compose_unusual((from, id), to, payload, alone);
        }
        let message =
            fill(frames, socket, connection, (from, dport), payload).ok_or(RdsError::NoBufferSpace)?;
        if alone {
            enter(frames, socket, connection, sending, (id, message));
            counters.send_queued += 1;
            if connection.reconnect.probe_at.is_none() {
                connections.make_due(id);
            }
        }
        Ok(Some(Outgoing { connection: id, message }))
    }

    /// The same for a socket whose last message went elsewhere.
    #[inline(never)]
    fn compose_for(
        &mut self,
        from: SocketHandle,
        to: &SocketAddr,
        payload: &[u8],
        alone: bool,
    ) -> Result<Option<Outgoing>, RdsError> {
        match self.find_route(from, *to)? {
            Some(id) => self.compose_unusual((from, id), to, payload, alone),
            None => {
                self.check_buffer(from, payload.len(), self.limits.longest_local)?;
                self.submit_to_self(from, *to, payload, alone).map(|()| None)
            }
        }
    }

    /// The same for a message that is longer than a frame or perhaps refused.
    #[inline(never)]
    fn compose_unusual(
        &mut self,
        (from, id): (SocketHandle, ConnectionId),
        to: &SocketAddr,
        payload: &[u8],
        alone: bool,
    ) -> Result<Option<Outgoing>, RdsError> {
        self.check_buffer(from, payload.len(), self.limits.longest_sent)?;
        let dport = to.port();
        if self.maps.get(id.index()).is_some_and(|map| map.is_marked(dport)) {
            return Err(self.refuse_congested(from, Some(id), dport));
        }
        let room = self.sending.fair_room(self.connections.at(id).tx.frames);
        if fragments(payload.len()) > room as usize {
            return Err(self.refuse_short(from));
        }
        let Self { sockets, connections, frames, .. } = self;
        let (first, rest) = payload.split_at_checked(FRAGMENT_LEN).unwrap_or((payload, &[]));
        let (socket, connection) = (sockets.open_mut(from)?, connections.at(id));
        let message =
            fill(frames, socket, connection, (from, dport), first).ok_or(RdsError::NoBufferSpace)?;
        self.frames.message_mut(message).len = payload.len() as u32;
        self.add_frames(message, rest, Use::Send);
        let outgoing = Outgoing { connection: id, message };
        if alone {
            self.enqueue(outgoing, from);
        }
        Ok(Some(outgoing))
    }

    /// Where buffers are as rds(3SOCKET) has them, only what waits counts. Without a send buffer there are still empty messages.
    fn check_buffer(&mut self, from: SocketHandle, len: usize, longest: usize) -> Result<(), RdsError> {
        let socket = self.sockets.open(from)?;
        let (buffered, limit) = (socket.send_bytes, socket.send_buffer);
        if len > longest || len > limit && socket.profile == Profile::Linux {
            return Err(RdsError::MessageSize);
        }
        if buffered >= limit && buffered > 0 {
            self.counters.send_queue_full += 1;
            return Err(RdsError::Again);
        }
        Ok(())
    }

    /// Fills more frames with the rest of a message. They are there: the caller asked for so much room.
    #[inline(never)]
    fn add_frames(&mut self, message: MessageId, rest: &[u8], used: Use) {
        for chunk in rest.chunks(FRAGMENT_LEN) {
            let Some(frame) = self.frames.take(used) else { return };
            self.frames.write_payload(frame, chunk);
            self.frames.append(message, frame);
        }
    }

    /// Puts a composed message at the end of its connection's queue: from here on it is not lost.
    pub(crate) fn enqueue(&mut self, outgoing: Outgoing, from: SocketHandle) {
        let Outgoing { connection: id, message } = outgoing;
        let Self { connections, frames, sockets, counters, sending, .. } = self;
        let Ok(socket) = sockets.open_mut(from) else { return };
        enter(frames, socket, connections.at_mut(id), sending, (id, message));
        counters.send_queued += 1;
        connections.make_due(id);
    }

    /// Gives a composed message up.
    pub(crate) fn withdraw(&mut self, outgoing: Outgoing) {
        self.frames.give_message(outgoing.message);
    }

    #[cold]
    fn refuse_congested(&mut self, from: SocketHandle, to: Option<ConnectionId>, port: u16) -> RdsError {
        self.counters.cong_send_error += 1;
        if let Ok(socket) = self.sockets.open_mut(from)
            && socket.monitor
        {
            socket.refused |= port_mask(port);
        }
        // A connection that is down is made again, to hear how things stand now.
        if let Some(id) = to {
            self.connections.at_mut(id).map.wanted = true;
            self.connections.make_due(id);
        }
        RdsError::Congested
    }

    #[cold]
    fn refuse_short(&mut self, from: SocketHandle) -> RdsError {
        self.counters.send_frames_short += 1;
        if let Ok(socket) = self.sockets.open_mut(from) {
            socket.wants_frames = true;
        }
        RdsError::NoBufferSpace
    }

    /// A message to this node never leaves it.
    #[inline(never)]
    fn submit_to_self(
        &mut self,
        from: SocketHandle,
        to: SocketAddr,
        payload: &[u8],
        alone: bool,
    ) -> Result<(), RdsError> {
        if !alone {
            return Err(RdsError::NotSupported);
        }
        let socket = self.sockets.open(from)?;
        let (source, sport) = (socket.address, socket.port);
        let (destination, dport) = (key(to.ip()), to.port());
        if destination == self.local && self.own_port_is_marked(dport) {
            return Err(self.refuse_congested(from, None, dport));
        }
        // A ping is answered at once.
        let ping = dport == 0;
        let (source, sport, destination, dport, payload) = if ping {
            (destination, 0, source, sport, &[][..])
        } else {
            (source, sport, destination, dport, payload)
        };
        let Some(slot) = self.sockets.bound_to(destination, dport) else {
            self.counters.send_queued += 1;
            self.counters.recv_drop_no_sock += 1;
            return Ok(());
        };
        let count = fragments(payload.len());
        let common = (self.receiving.common() + self.limits.reserve).saturating_sub(self.receiving.beyond());
        let room = self.receiving.share().saturating_sub(self.local_used) + common;
        if count > room as usize {
            return Err(self.refuse_short(from));
        }
        let message = self.frames.begin(Use::Receive, |frame| {
            (frame.sport, frame.dport, frame.flags) = (sport, dport, 0);
            (frame.len, frame.sequence) = (payload.len() as u32, 0);
            frame.connection = None;
            frame.set_source(source);
        });
        let message = message.ok_or(RdsError::NoBufferSpace)?;
        let (first, rest) = payload.split_at_checked(FRAGMENT_LEN).unwrap_or((payload, &[]));
        self.frames.write_payload(message.first(), first);
        self.add_frames(message, rest, Use::Receive);
        self.receiving.take(&mut self.local_used, count as u32);
        self.counters.send_queued += 1;
        if ping {
            self.counters.recv_ping += 1;
            self.counters.send_pong += 1;
        }
        self.deliver_to(slot, message);
        Ok(())
    }

    /// Answers a ping with a sequenced message of no bytes; silently not, if frames are short or the peer does not
    /// acknowledge those before it.
    pub(crate) fn pong(&mut self, id: ConnectionId, dport: u16) {
        let tx = &self.connections.at(id).tx;
        let congested = self.maps.get(id.index()).is_some_and(|map| map.is_marked(dport));
        let message = if tx.pongs >= MAX_PONGS || congested || self.sending.fair_room(tx.frames) == 0 {
            None
        } else {
            self.frames.begin(Use::Send, |frame| {
                (frame.sport, frame.dport, frame.flags, frame.len) = (0, dport, 0, 0);
                // It belongs to no socket and counts against none.
                frame.marks = Marks::PONG | Marks::SETTLED;
            })
        };
        let Some(message) = message else {
            self.counters.recv_ping_dropped += 1;
            return;
        };
        let Self { connections, frames, sending, .. } = self;
        let tx = &mut connections.at_mut(id).tx;
        sending.take(&mut tx.frames, 1);
        let descriptor = frames.message_mut(message);
        (descriptor.connection, descriptor.sequence) = (Some(id), tx.next_sequence);
        tx.next_sequence += 1;
        tx.pongs += 1;
        frames.push_back(&mut tx.queue, message);
        tx.next = tx.next.or(Some(message));
        self.counters.send_pong += 1;
        self.connections.make_due(id);
    }

    /// Whether a connection is up: then what it has to send leaves at once.
    #[inline(always)]
    pub(crate) fn is_up(&self, id: ConnectionId) -> bool {
        self.connections.at(id).state == State::Up
    }
}

/// Takes a frame for a message, and fills it with its first bytes.
#[inline(always)]
fn fill(
    frames: &mut Frames<'_>,
    socket: &Socket,
    connection: &Connection,
    (from, dport): (SocketHandle, u16),
    payload: &[u8],
) -> Option<MessageId> {
    let len = payload.len();
    let hurry = connection.tx.hurries(socket.send_bytes + len, socket.send_buffer, len);
    let message = frames.begin(Use::Send, |frame| {
        (frame.sport, frame.dport) = (socket.port, dport);
        frame.flags = if hurry { Flags::ACK_REQUIRED.bits() } else { 0 };
        (frame.socket, frame.generation, frame.len) = (from.slot, from.generation, len as u32);
    })?;
    frames.write_payload(message.first(), payload);
    Some(message)
}

/// Puts a message at the end of a connection's queue.
#[inline(always)]
fn enter(
    frames: &mut Frames<'_>,
    socket: &mut Socket,
    connection: &mut Connection,
    sending: &mut Shares,
    (id, message): (ConnectionId, MessageId),
) {
    let tx = &mut connection.tx;
    let descriptor = frames.message_mut(message);
    sending.take(&mut tx.frames, u32::from(descriptor.frames));
    let silent = descriptor.is(Marks::SILENT);
    descriptor.connection = Some(id);
    // What is not sent has the number of what is before it.
    descriptor.sequence = tx.next_sequence - u64::from(silent);
    tx.next_sequence += u64::from(!silent);
    tx.operations += u16::from(descriptor.operation.is_some());
    socket.send_bytes += descriptor.len as usize;
    socket.send_messages += 1;
    socket.tos_used = true;
    frames.push_back(&mut tx.queue, message);
    tx.next = tx.next.or(Some(message));
}

pub(crate) fn is_unicast(address: IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    !(address.is_unspecified() || address.is_multicast() || broadcast)
}

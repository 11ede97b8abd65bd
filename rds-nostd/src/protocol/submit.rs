//! Messages from sockets: route, space, and their position in the queue.

use core::net::SocketAddr;

use dat_nostd::DatResult;

use crate::connection::{Connection, Cookie, Objects, port_mask};
use crate::error::RdsError;
use crate::frames::{Marks, Place, Use, fill, frames_of_lent};
use crate::ids::{ConnectionId, MessageId, SocketHandle};
use crate::profile::Profile;
use crate::protocol::{Protocol, Segment};
use crate::socket::{Socket, Wants, is_unicast, is_v4, key};
use crate::wire::{FRAGMENT_LEN, Flags, HEADER_LEN, Header, fragments};

/// A message whose frames are filled, before it is queued on this connection.
pub(crate) type Outgoing = (ConnectionId, MessageId);

/// Sending socket and destination port of a message on its socket's route.
type Path = (SocketHandle, u16);

/// A loopback message before its delivery.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoopbackMessage {
    /// Receiving socket, and the message in its own frames; `None` if no socket is bound.
    found: Option<(usize, MessageId)>,
    /// A pong, which carries no extensions.
    is_pong: bool,
}

/// Payload of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Body<'a> {
    /// Bytes that are copied into frames.
    Copied(&'a [u8]),
    /// Number of bytes of a lent payload.
    Lent(usize),
}

impl Body<'_> {
    const fn len(&self) -> usize {
        match self {
            Self::Copied(bytes) => bytes.len(),
            Self::Lent(len) => *len,
        }
    }

    /// Returns the number of frames.
    const fn frames(&self) -> usize {
        match self {
            Self::Copied(bytes) => fragments(bytes.len()),
            Self::Lent(len) => frames_of_lent(*len),
        }
    }
}

/// Posts a message while it is queued.
pub(crate) trait Outlet {
    /// # Errors
    /// DAT's: the message could not be posted.
    fn post(&mut self, objects: &Objects, segment: &Segment) -> DatResult<()>;
}

impl Protocol<'_> {
    /// Returns whether a message from this socket would go over the wire, or stay in this node. See
    /// [`Rds::sendmsg`](crate::Rds::sendmsg) for the errors.
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
        // Loopback addresses reach only each other.
        let loopback = source != self.local;
        if to.ip().to_canonical().is_loopback() != loopback {
            return Err(RdsError::InvalidArgument);
        }
        Ok(!loopback && foreign != self.local)
    }

    /// Finds the connection from a socket to a peer, and stores it as the socket's route. Returns
    /// `None` for loopback.
    #[inline(never)]
    fn find_route(&mut self, from: SocketHandle, to: SocketAddr) -> Result<Option<ConnectionId>, RdsError> {
        if !self.reachable(from, to)? {
            return Ok(None);
        }
        let (foreign, tos) = (key(to.ip()), self.sockets.open(from)?.tos);
        let id = self.connection_for(foreign, tos);
        let socket = self.sockets.open_mut(from)?;
        let Some(id) = id else {
            (socket.route, socket.route_to) = (None, foreign);
            return Err(self.wait_for(from, Wants::Entry));
        };
        socket.set_route(id, foreign);
        socket.tos_used = true;
        // An earlier refusal for another destination does not matter here.
        socket.wants = Wants::Nothing;
        Ok(Some(id))
    }

    /// Sends a single-frame message on its socket's route, by `outlet`, if no message precedes it.
    /// Returns false, without side effects, for anything else, which [`compose`](Self::compose)
    /// handles.
    #[inline(always)]
    pub(crate) fn send(
        &mut self,
        from: SocketHandle,
        to: &SocketAddr,
        payload: &[u8],
        outlet: &mut impl Outlet,
    ) -> bool {
        let Self { sockets, connections, sending, limits, .. } = self;
        let Ok(socket) = sockets.open(from) else { return false };
        let Some(dport) = socket.port_on_route(to) else { return false };
        let Some(connection) = connections.get_mut(socket.route) else { return false };
        let (Connection { peer, tx, .. }, len) = (&*connection, payload.len());
        let plain = tx.posts < tx.fast_until
            && len <= FRAGMENT_LEN
            && socket.sent.is_ample(len)
            && (sending.has_two(peer.frames)
                || sending.has_one(peer.frames) && limits.is_plenty(sending.beyond()));
        debug_assert!(!plain || connection.is_clear(limits.send_depth));
        let path = (from, dport);
        if plain {
            return self.send_now(path, payload, (Flags::empty(), false), outlet);
        }
        self.send_weighed(path, payload, outlet)
    }

    /// Like [`send`](Self::send), for a message that may need requests: an acknowledgement, and a
    /// CQE. Records them, and renews the limit of the fast path.
    #[cold]
    #[inline(never)]
    fn send_weighed(&mut self, path: Path, payload: &[u8], outlet: &mut impl Outlet) -> bool {
        let Self { sockets, connections, frames, maps, sending, limits, counters, .. } = self;
        let Ok(Socket { sent, route, .. }) = sockets.open(path.0) else { return false };
        let Some(connection) = connections.get_mut(*route) else { return false };
        let (len, is_marked) = (payload.len(), connection.map.some_marked());
        let map = route.filter(|_| is_marked).map(|id| maps.get(id.index()));
        if map.is_some_and(|map| map.is_none_or(|map| map.is_marked(path.1)))
            || !connection.is_clear(limits.send_depth)
            || !sending.has_one(connection.peer.frames)
            || frames.free_count() == 0
            || len > FRAGMENT_LEN
            || sent.is_filled_by(len)
        {
            return false;
        }
        let (tx, unasked) = (&mut connection.tx, limits.unasked(sending.beyond()));
        let (sequence, number) = (connection.peer.next_tx, tx.posts + 1);
        let asks = tx.asks(sequence, number, unasked) || tx.hurries(sent, len);
        let reports = asks || number - tx.signalled >= u64::from(limits.signal_every);
        tx.signalled = if reports { number } else { tx.signalled };
        if asks {
            tx.note_asked(sequence, number);
            counters.send_ack_required += 1;
        }
        tx.fast_until = if is_marked { 0 } else { tx.fast_up_to(limits, unasked, sequence + 1, 1) };
        let flags = if asks { Flags::ACK_REQUIRED } else { Flags::empty() };
        self.send_now(path, payload, (flags, reports), outlet)
    }

    /// Queues and posts a message with these flags, and with a CQE if `reports`.
    // Compiled twice, so that a message without requests has constants for them.
    #[inline(always)]
    fn send_now(
        &mut self,
        path: Path,
        payload: &[u8],
        (flags, reports): (Flags, bool),
        outlet: &mut impl Outlet,
    ) -> bool {
        let (from, dport) = path;
        let Self { sockets, connections, frames, sending, counters, .. } = self;
        let Ok(socket) = sockets.open_mut(from) else { return false };
        let Some(connection) = connections.get_mut(socket.route) else { return false };
        let Connection { peer, tx, rx, .. } = &mut *connection;
        let (sequence, ack, number) = (peer.next_tx, rx.ack_value, tx.posts + 1);
        let (len, sport, extensions) = (payload.len(), socket.port, [0; 16]);
        let header = Header { sequence, ack, len: len as u32, sport, dport, flags, credit: 0, extensions };
        let pushed = frames.push_to_send(&mut peer.queue, &header, (from, number));
        let Some(block) = pushed else { return false };
        sending.take_one(&mut peer.frames);
        (peer.next_tx, tx.posts) = (sequence + 1, number);
        rx.acknowledgement_left();
        socket.sent.charge(len, 1);
        counters.send_queued += 1;
        let address = fill(block, &header, payload);
        let cookie = Cookie::numbered(tx.cookies, number);
        let segment = Segment::new(address, HEADER_LEN + len, cookie, reports);
        let posted = outlet.post(&connection.objects, &segment).is_ok();
        if !posted || connection.reconnect.probe_at.is_none() {
            self.sent_first(path, posted);
        }
        true
    }

    /// Handles the first message of the fast path after a while, or one that could not be posted:
    /// it waits in the queue.
    #[cold]
    #[inline(never)]
    fn sent_first(&mut self, (from, _): Path, posted: bool) {
        let Some(id) = self.sockets.open(from).ok().and_then(|socket| socket.route) else { return };
        let Connection { peer, tx, rx, .. } = self.connections.at_mut(id);
        if let Some(message) = peer.queue.tail().filter(|_| !posted) {
            tx.posts -= 1;
            tx.signalled = tx.signalled.min(tx.posts);
            (tx.next, tx.fast_until) = (Some(message), 0);
            (rx.ack_wanted, rx.is_unsaid) = (true, true);
            let descriptor = self.frames.message_mut(message);
            // The request for an acknowledgement may be recorded already.
            (descriptor.posted, descriptor.flags) = (0, Flags::ACK_REQUIRED.bits());
        }
        self.connections.make_due(id);
    }

    /// Checks a message, copies it to frames, and queues it. If it has control messages (`alone` is
    /// false), [`enqueue`](Self::enqueue) queues it later. Returns `None` for a loopback message.
    ///
    /// # Errors
    /// See [`Rds::sendmsg`](crate::Rds::sendmsg).
    #[inline(never)]
    pub(crate) fn compose(
        &mut self,
        from: SocketHandle,
        to: &SocketAddr,
        body: Body<'_>,
        alone: bool,
    ) -> Result<Option<Outgoing>, RdsError> {
        let socket = self.sockets.open(from)?;
        let route = match socket.port_on_route(to).and(socket.route) {
            None => self.find_route(from, *to)?,
            route => route,
        };
        let Some(id) = route else {
            let Body::Copied(payload) = body else { return Err(RdsError::NotSupported) };
            let within = self.compose_within(from, *to, payload)?;
            self.deliver_within(within, &[0; 16]);
            return Ok(None);
        };
        let fits_here = body.frames() * FRAGMENT_LEN <= self.limits.longest_sent;
        let longest = if fits_here { self.connections.at(id).tx.longest() } else { 0 };
        self.check_buffer(from, body.len(), longest)?;
        let dport = to.port();
        if self.maps.get(id.index()).is_some_and(|map| map.is_marked(dport)) {
            return Err(self.refuse_congested(from, Some(id), dport));
        }
        let room = self.sending.fair_room(self.connections.at(id).peer.frames);
        let count = body.frames() as u32;
        if count > room || count > self.free_frames() {
            return Err(self.refuse_short(from, Wants::Frames(id, count)));
        }
        let (socket, len) = (self.sockets.open(from)?, body.len());
        let tx = &self.connections.at(id).tx;
        // The owner of a lent payload waits for its end.
        let lent = matches!(body, Body::Lent(_));
        let hurry = lent || tx.hurries(&socket.sent, len);
        let sport = socket.port;
        let message = self.frames.begin_long(Use::Send, count, |frame| {
            (frame.sport, frame.dport) = (sport, dport);
            frame.flags = if hurry { Flags::ACK_REQUIRED.bits() } else { 0 };
            (frame.socket, frame.generation, frame.len) = (from.slot, from.generation, len as u32);
        });
        let message = message.ok_or(RdsError::NoBufferSpace)?;
        if let Body::Copied(payload) = body {
            self.frames.write_message(message, payload);
        }
        if alone {
            self.enqueue((id, message), from);
        }
        Ok(Some((id, message)))
    }

    /// In the Solaris profile only queued bytes count. A send buffer of 0 still admits empty
    /// messages.
    fn check_buffer(&mut self, from: SocketHandle, len: usize, longest: usize) -> Result<(), RdsError> {
        let socket = self.sockets.open(from)?;
        if len > longest || len > socket.sent.limit() && socket.profile == Profile::Linux {
            return Err(RdsError::MessageSize);
        }
        if !self.may_send(from)? {
            self.counters.send_queue_full += 1;
            return Err(RdsError::Again);
        }
        Ok(())
    }

    /// Queues a composed message. The message cannot be lost from here on.
    pub(crate) fn enqueue(&mut self, (id, message): Outgoing, from: SocketHandle) {
        let descriptor = self.frames.message(message);
        let Ok(socket) = self.sockets.open_mut(from) else { return };
        socket.sent.charge(descriptor.len as usize, 1);
        let count = match descriptor.lent() {
            None => usize::from(descriptor.frames),
            Some(_) => frames_of_lent(descriptor.len as usize),
        };
        self.connections.at_mut(id).tx.operations += u16::from(descriptor.operation.is_some());
        self.counters.send_queued += 1;
        self.append(id, message, count as u32);
    }

    /// Appends a message of `count` frames to its connection's queue.
    pub(super) fn append(&mut self, id: ConnectionId, message: MessageId, count: u32) {
        let Self { connections, frames, sending, .. } = self;
        let (Connection { peer, tx, .. }, descriptor) = (connections.at_mut(id), frames.message_mut(message));
        sending.take(&mut peer.frames, count);
        // A silent message has the sequence number of the preceding message.
        let silent = descriptor.is(Marks::SILENT);
        (descriptor.connection, descriptor.sequence) = (Some(id), peer.next_tx - u64::from(silent));
        peer.next_tx += u64::from(!silent);
        frames.push_back(&mut peer.queue, message);
        tx.next = tx.next.or(Some(message));
        tx.fast_until = 0;
        connections.make_due(id);
    }

    #[cold]
    fn refuse_congested(&mut self, from: SocketHandle, to: Option<ConnectionId>, port: u16) -> RdsError {
        self.counters.cong_send_error += 1;
        if let Ok(socket) = self.sockets.open_mut(from)
            && socket.monitor
        {
            socket.refused |= port_mask(port);
        }
        // Reconnect a connection that is down, to get the peer's current map.
        if let Some(id) = to {
            self.connections.at_mut(id).map.want();
            self.connections.make_due(id);
        }
        RdsError::Congested
    }

    /// Fills frames with a loopback message. The message cannot be refused from here on, and ends with
    /// [`deliver_within`](Self::deliver_within) or [`withdraw_within`](Self::withdraw_within).
    ///
    /// # Errors
    /// See [`Rds::sendmsg`](crate::Rds::sendmsg).
    #[inline(never)]
    pub(crate) fn compose_within(
        &mut self,
        from: SocketHandle,
        to: SocketAddr,
        payload: &[u8],
    ) -> Result<LoopbackMessage, RdsError> {
        self.check_buffer(from, payload.len(), self.limits.longest_local)?;
        let socket = self.sockets.open(from)?;
        let (own, other) = ((socket.address, socket.port), (key(to.ip()), to.port()));
        if other.0 == self.local && self.own_port_is_marked(other.1) {
            return Err(self.refuse_congested(from, None, other.1));
        }
        // A ping gets its reply immediately.
        let is_pong = other.1 == 0;
        let ((source, sport), (destination, dport), payload) =
            if is_pong { (other, own, &[][..]) } else { (own, other, payload) };
        let Some(slot) = self.sockets.bound_to(destination, dport) else {
            return Ok(LoopbackMessage { found: None, is_pong });
        };
        let count = fragments(payload.len()) as u32;
        if count > self.local_room() {
            return Err(self.refuse_short(from, Wants::LocalFrames(count)));
        }
        let message = self.frames.begin_long(Use::Receive, count, |frame| {
            (frame.sport, frame.dport, frame.flags) = (sport, dport, 0);
            (frame.len, frame.sequence) = (payload.len() as u32, 0);
            frame.connection = None;
            frame.set_source(source);
        });
        let message = message.ok_or(RdsError::NoBufferSpace)?;
        self.frames.write_message(message, payload);
        self.receiving.take(&mut self.local_used, count);
        Ok(LoopbackMessage { found: Some((slot, message)), is_pong })
    }

    /// Delivers a loopback message with these extensions. Returns the receiving socket.
    #[inline(never)]
    pub(crate) fn deliver_within(
        &mut self,
        LoopbackMessage { found, is_pong }: LoopbackMessage,
        extensions: &[u8; 16],
    ) -> Option<SocketHandle> {
        self.counters.send_queued += 1;
        let Some((slot, message)) = found else {
            self.counters.recv_drop_no_sock += 1;
            return None;
        };
        if *extensions != [0; 16] && !is_pong {
            self.frames.write_extensions(message.first(), extensions);
            self.frames.message_mut(message).marks.set(Marks::EXTENDED, true);
        }
        if is_pong {
            self.counters.recv_ping += 1;
            self.counters.send_pong += 1;
        }
        let size = self.frames.message(message);
        let size = (size.len as usize, usize::from(size.frames));
        self.deliver_to(slot, Place::of(message), size);
        self.sockets.get(slot).map(|socket| socket.handle(slot))
    }

    /// Frees a loopback message instead of its delivery.
    pub(crate) fn withdraw_within(&mut self, within: LoopbackMessage) {
        if let Some((_, message)) = within.found {
            self.give_received(message);
        }
    }
}

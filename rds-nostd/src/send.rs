//! The sending side: `sendmsg`, posting, completions, acknowledgements.

use core::net::SocketAddr;

use dat_nostd::{Adapter, CompletionFlags, DatResult, LmrTriplet, Platform};

use crate::connection::{Cookie, CookieKind, State};
use crate::error::RdsError;
use crate::frames::{Link, Queue, Use};
use crate::node::{Rds, is_unicast};
use crate::socket::{SocketHandle, is_v4, key, open_socket};
use crate::wire::{FRAGMENT_LEN, Flags, HEADER_LEN, Header, fragment_len, fragments};

/// After so many messages one asks for an acknowledgement, as Linux does.
const MESSAGES_PER_ACK: u32 = 8;
/// Answers to pings that a peer may have outstanding; further pings are not answered.
const MAX_PONGS: u8 = 16;
/// The owner of a message of RDS itself: no socket.
const NOBODY: u16 = u16::MAX;

impl Rds<'_> {
    /// Sends a message and gives its length. When this succeeds the message is kept until the peer's RDS has it, however
    /// often the connection has to be made anew; a peer that cannot be reached is tried without end. A message to port 0 is a
    /// ping: an empty message from port 0 answers it.
    ///
    /// # Errors
    /// [`RdsError::Again`]: the socket's send buffer is full. [`RdsError::NoBufferSpace`]: the node's frames or connections
    /// are. Either may pass with [`poll`](Self::poll). [`RdsError::MessageSize`]: longer than the send buffer or than
    /// [`longest_message`](Self::longest_message). [`RdsError::InvalidArgument`]: a destination that is no unicast address of
    /// this node's family. [`RdsError::BadSocket`].
    pub fn sendmsg<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        from: SocketHandle,
        to: SocketAddr,
        payload: &[u8],
    ) -> Result<usize, RdsError> {
        let socket = open_socket(self.sockets, from)?;
        let (sport, buffered, limit) = (socket.port, socket.send_bytes, socket.send_buffer);
        let foreign = key(to.ip());
        if !is_unicast(to.ip()) || to.ip().is_loopback() || is_v4(foreign) != is_v4(self.local) {
            return Err(RdsError::InvalidArgument);
        }
        let local = foreign == self.local;
        let longest = if local { self.limits.longest_local } else { self.limits.longest_sent };
        if payload.len() > limit.min(longest) {
            return Err(RdsError::MessageSize);
        }
        // Without a send buffer there are still empty messages.
        if buffered >= limit && buffered > 0 {
            self.counters.send_queue_full += 1;
            return Err(RdsError::Again);
        }
        if local {
            self.send_to_self(sport, to.port(), payload)?;
            return Ok(payload.len());
        }
        let connection = self.connection_for(foreign).ok_or(RdsError::NoBufferSpace)?;
        let message = self.compose(payload)?;
        if let Ok(socket) = open_socket(self.sockets, from) {
            socket.send_bytes += payload.len();
            socket.send_messages += 1;
        }
        // Half a send buffer outstanding: hurry the peer's acknowledgement.
        let hurry = buffered + payload.len() >= limit / 2;
        self.enqueue(connection, message, (sport, to.port()), payload.len(), Some(from), hurry);
        self.counters.send_queued += 1;
        if self.connections.get(connection).is_some_and(|state| state.state == State::Down) {
            let now = adapter.platform().now();
            self.connection_due(adapter, connection, now);
        } else {
            self.transmit(adapter, connection);
        }
        Ok(payload.len())
    }

    /// A chain of frames with the payload.
    fn compose(&mut self, payload: &[u8]) -> Result<usize, RdsError> {
        let count = fragments(payload.len());
        if self.frames.send_count() + count > self.limits.send_frames || self.frames.free_count() < count {
            return Err(RdsError::NoBufferSpace);
        }
        self.chain(payload, Use::Send).ok_or(RdsError::NoBufferSpace)
    }

    fn chain(&mut self, payload: &[u8], used: Use) -> Option<usize> {
        let first = self.frames.take(used)?;
        self.frames.append(first, first);
        let mut chunks = payload.chunks(FRAGMENT_LEN);
        self.frames.write_payload(first, chunks.next().unwrap_or(&[]));
        for chunk in chunks {
            let Some(index) = self.frames.take(used) else {
                self.frames.give_message(first);
                return None;
            };
            self.frames.append(first, index);
            self.frames.write_payload(index, chunk);
        }
        Some(first)
    }

    /// A message to this node never leaves it.
    fn send_to_self(&mut self, sport: u16, dport: u16, payload: &[u8]) -> Result<(), RdsError> {
        // A ping is answered at once.
        let (sport, dport, payload) = if dport == 0 { (0, sport, &[][..]) } else { (sport, dport, payload) };
        if self.bound_to(dport).is_none() {
            self.counters.send_queued += 1;
            self.counters.recv_drop_no_sock += 1;
            return Ok(());
        }
        let count = fragments(payload.len());
        if self.frames.free_count() < count || !self.may_receive(count) {
            return Err(RdsError::NoBufferSpace);
        }
        let message = self.chain(payload, Use::Receive).ok_or(RdsError::NoBufferSpace)?;
        let local = self.local;
        if let Some(frame) = self.frames.at_mut(message) {
            frame.sport = sport;
            frame.dport = dport;
            frame.len = payload.len() as u32;
            frame.source = local;
        }
        self.counters.send_queued += 1;
        if sport == 0 {
            self.counters.recv_ping += 1;
            self.counters.send_pong += 1;
        }
        self.deliver(message);
        Ok(())
    }

    /// Puts a message at the end of what the connection has to send.
    fn enqueue(
        &mut self,
        connection: usize,
        message: usize,
        (sport, dport): (u16, u16),
        len: usize,
        socket: Option<SocketHandle>,
        hurry: bool,
    ) {
        let Some(state) = self.connections.get_mut(connection) else { return };
        let sequence = state.next_tx;
        state.next_tx += 1;
        if let Some(frame) = self.frames.at_mut(message) {
            frame.sequence = sequence;
            frame.sport = sport;
            frame.dport = dport;
            frame.len = len as u32;
            frame.flags = if hurry { Flags::ACK_REQUIRED.bits() } else { 0 };
            // A message of RDS itself belongs to no socket and counts against none.
            frame.acked = socket.is_none();
            let owner = socket.unwrap_or(SocketHandle { slot: NOBODY, generation: 0 });
            frame.socket = owner.slot;
            frame.generation = owner.generation;
        }
        self.frames.push_back(&mut state.unsent, message);
    }

    /// Answers a ping with a sequenced message of no bytes; silently not, if frames are short or the peer does not
    /// acknowledge those before it.
    pub(crate) fn pong(&mut self, connection: usize, dport: u16) {
        if self.connections.get(connection).is_none_or(|state| state.pongs >= MAX_PONGS) {
            return;
        }
        if let Ok(message) = self.compose(&[]) {
            self.enqueue(connection, message, (0, dport), 0, None, false);
            self.counters.send_pong += 1;
            if let Some(state) = self.connections.get_mut(connection) {
                state.pongs += 1;
            }
        }
    }

    /// Whether a message that is about to be sent asks for an acknowledgement: because its socket is in a hurry, because
    /// enough went without, or as the first one on its connection.
    fn asks(&mut self, connection: usize, message: usize) {
        let Some(state) = self.connections.get_mut(connection) else { return };
        let Some(descriptor) = self.frames.at_mut(message) else { return };
        state.unasked_messages += 1;
        state.unasked_frames += u32::from(descriptor.frames);
        let hurry = descriptor.flags & Flags::ACK_REQUIRED.bits() != 0;
        if hurry
            || state.unasked_messages > MESSAGES_PER_ACK
            || state.unasked_frames > self.limits.unasked_frames
            || state.highest_ack == 0 && state.unacked.is_empty()
        {
            descriptor.flags |= Flags::ACK_REQUIRED.bits();
            state.unasked_messages = 0;
            state.unasked_frames = 0;
        }
    }

    /// Posts as much as the send queue takes: the congestion map, messages in order, and an acknowledgement if one is wanted
    /// and no message carried it.
    pub(crate) fn transmit<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, connection: usize) {
        while let Some(state) = self.connections.get(connection) {
            // One post is kept for acknowledgements: without them the peer's queue would not move.
            if state.state != State::Up
                || state.posts - state.completed + 1 >= u64::from(self.limits.send_depth)
            {
                break;
            }
            if state.maps_to_send > 0 && state.cursor.is_none() {
                if self.post_map(adapter, connection).is_err() {
                    break;
                }
                continue;
            }
            let Some(message) = state.unsent.head().get() else { break };
            if self.frames.at(message).posted == 0 {
                self.asks(connection, message);
            }
            if self.post_fragment(adapter, connection, message).is_err() {
                break;
            }
        }
        self.acknowledge(adapter, connection);
    }

    fn post_map<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, connection: usize) -> DatResult<()> {
        if let (Some(state), Some(frame)) = (self.connections.get(connection), self.map_frame.get()) {
            let last = state.maps_to_send == 1;
            self.post(adapter, connection, CookieKind::Message, frame, FRAGMENT_LEN, last, false)?;
        }
        if let Some(state) = self.connections.get_mut(connection) {
            state.maps_to_send -= 1;
        }
        Ok(())
    }

    fn post_fragment<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        connection: usize,
        message: usize,
    ) -> DatResult<()> {
        let Some(state) = self.connections.get_mut(connection) else { return Ok(()) };
        let descriptor = self.frames.at(message);
        let index = usize::from(descriptor.posted);
        let frame = if index == 0 { message } else { state.cursor.get().unwrap_or(message) };
        let len = descriptor.len as usize;
        let header = Header {
            sequence: descriptor.sequence,
            ack: state.ack_value,
            len: descriptor.len,
            sport: descriptor.sport,
            dport: descriptor.dport,
            flags: Flags::from_bits_retain(descriptor.flags),
            credit: 0,
            extensions: [0; 16],
        };
        let last = index + 1 == fragments(len);
        let signal = last && header.flags.contains(Flags::ACK_REQUIRED);
        self.frames.write_header(frame, &header.encode());
        let number = self.post(
            adapter,
            connection,
            CookieKind::Message,
            frame,
            fragment_len(len, index),
            last,
            signal,
        )?;
        let next = self.frames.at(frame).next;
        if let Some(descriptor) = self.frames.at_mut(message) {
            descriptor.posted += 1;
            descriptor.last_post = number;
        }
        if let Some(state) = self.connections.get_mut(connection) {
            state.ack_wanted = false;
            state.cursor = if last { Link::NONE } else { next };
            if last {
                self.frames.pop_front(&mut state.unsent);
                self.frames.push_back(&mut state.unacked, message);
            }
        }
        Ok(())
    }

    /// Posts one frame; gives the post's number.
    #[allow(clippy::too_many_arguments)] // All of them differ from call to call.
    fn post<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        connection: usize,
        kind: CookieKind,
        frame: usize,
        payload_len: usize,
        solicit: bool,
        signal: bool,
    ) -> DatResult<u64> {
        let Some(state) = self.connections.get_mut(connection) else { return Ok(0) };
        let Some(ep) = state.ep() else { return Ok(0) };
        let number = state.posts + 1;
        let signal = signal || number - state.signalled >= u64::from(self.limits.signal_every);
        let mut flags = CompletionFlags::empty();
        flags.set(CompletionFlags::SUPPRESS, !signal);
        flags.set(CompletionFlags::SOLICITED_WAIT, solicit);
        let cookie = Cookie { kind, connection: connection as u8, epoch: state.epoch, number: number as u32 };
        let address = self.frames.address(frame);
        let segment = LmrTriplet::new(self.dat.lmr_context, address, (HEADER_LEN + payload_len) as u64);
        adapter.ep_post_send(ep, &[segment], cookie.encode(), flags)?;
        state.posts = number;
        if signal {
            state.signalled = number;
        }
        Ok(number)
    }

    /// Sends an acknowledgement frame if one is wanted: one at a time, what comes in between is covered by the next.
    pub(crate) fn acknowledge<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, connection: usize) {
        let Some(state) = self.connections.get(connection) else { return };
        let Some(frame) = state.ack_frame.get() else { return };
        if !state.ack_wanted
            || state.ack_in_flight
            || state.state != State::Up
            || state.posts - state.completed >= u64::from(self.limits.send_depth)
        {
            return;
        }
        self.frames.write_header(frame, &Header::acknowledgement(state.ack_value).encode());
        if self.post(adapter, connection, CookieKind::Acknowledgement, frame, 0, true, true).is_ok() {
            self.counters.ack_sent += 1;
            if let Some(state) = self.connections.get_mut(connection) {
                state.ack_wanted = false;
                state.ack_in_flight = true;
            }
        }
    }

    /// A reported send ended, and with it all before it.
    pub(crate) fn send_completed<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        cookie: Cookie,
        success: bool,
        now: u64,
    ) {
        let connection = usize::from(cookie.connection);
        let Some(state) = self.connections.get_mut(connection) else { return };
        if state.epoch != cookie.epoch || state.ep().is_none() {
            return;
        }
        if !success {
            self.connection_down(adapter, connection, now);
            return;
        }
        // The cookie has the low half of the number; it is at most one lap behind.
        let behind = (state.posts as u32).wrapping_sub(cookie.number);
        state.completed = state.completed.max(state.posts.saturating_sub(u64::from(behind)));
        if cookie.kind == CookieKind::Acknowledgement {
            state.ack_in_flight = false;
        }
        self.release(connection);
        self.transmit(adapter, connection);
    }

    /// The peer has all messages up to `ack`.
    pub(crate) fn acknowledged(&mut self, connection: usize, ack: u64) {
        let Some(state) = self.connections.get_mut(connection) else { return };
        let highest_sent = match state.unsent.head().get() {
            Some(message) => self.frames.at(message).sequence - 1,
            None => state.next_tx - 1,
        };
        if ack > highest_sent {
            self.counters.ack_beyond += 1;
        }
        let ack = ack.min(highest_sent);
        if ack <= state.highest_ack {
            return;
        }
        state.highest_ack = ack;
        let mut next = state.unacked.head();
        while let Some(message) = next.get() {
            if self.frames.at(message).sequence > ack {
                break;
            }
            next = self.frames.next_message(message);
            self.settle(message);
        }
        self.release(connection);
    }

    /// Takes a message off its socket's account, once.
    fn settle(&mut self, message: usize) {
        let Some(descriptor) = self.frames.at_mut(message) else { return };
        if descriptor.acked {
            return;
        }
        descriptor.acked = true;
        let owner = SocketHandle { slot: descriptor.socket, generation: descriptor.generation };
        let len = descriptor.len as usize;
        if let Ok(socket) = open_socket(self.sockets, owner) {
            socket.send_bytes -= len;
            socket.send_messages -= 1;
        }
    }

    /// Gives the frames of messages back that the peer has and that the HCA is done with.
    fn release(&mut self, connection: usize) {
        let Some(state) = self.connections.get_mut(connection) else { return };
        while let Some(message) = state.unacked.head().get() {
            let descriptor = self.frames.at(message);
            if descriptor.sequence > state.highest_ack || descriptor.last_post > state.completed {
                break;
            }
            state.pongs -= u8::from(descriptor.socket == NOBODY);
            self.frames.pop_front(&mut state.unacked);
            self.frames.give_message(message);
        }
    }

    /// After the endpoint is gone: everything that the peer may not have goes first on the next one.
    pub(crate) fn requeue(&mut self, connection: usize) {
        let Some(state) = self.connections.get_mut(connection) else { return };
        let highest_ack = state.highest_ack;
        let mut unacked = core::mem::replace(&mut state.unacked, Queue::EMPTY);
        let again = (Flags::ACK_REQUIRED | Flags::RETRANSMITTED).bits();
        let mut front = Queue::EMPTY;
        let mut count = 0;
        if !state.cursor.is_none()
            && let Some(message) = state.unsent.head().get()
            && let Some(descriptor) = self.frames.at_mut(message)
        {
            descriptor.posted = 0;
            descriptor.flags |= again;
        }
        state.cursor = Link::NONE;
        while let Some(message) = self.frames.pop_front(&mut unacked) {
            let descriptor = self.frames.at(message);
            if descriptor.sequence <= highest_ack {
                state.pongs -= u8::from(descriptor.socket == NOBODY);
                self.frames.give_message(message);
                continue;
            }
            if let Some(descriptor) = self.frames.at_mut(message) {
                descriptor.posted = 0;
                descriptor.flags |= again;
            }
            self.frames.push_back(&mut front, message);
            count += 1;
        }
        self.frames.splice_front(&mut state.unsent, front);
        self.counters.send_retransmitted += count;
    }

    /// Drops a closed socket's messages that no part was posted of. Their numbers stay unused: gaps are legal.
    pub(crate) fn cancel_unsent(&mut self, connection: usize, owner: SocketHandle) {
        let Some(state) = self.connections.get_mut(connection) else { return };
        let mut unsent = core::mem::replace(&mut state.unsent, Queue::EMPTY);
        while let Some(message) = self.frames.pop_front(&mut unsent) {
            let descriptor = self.frames.at(message);
            let is_owned = descriptor.socket == owner.slot && descriptor.generation == owner.generation;
            if is_owned && descriptor.posted == 0 {
                self.frames.give_message(message);
            } else {
                self.frames.push_back(&mut state.unsent, message);
            }
        }
    }
}

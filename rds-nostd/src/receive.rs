//! The receiving side: frames from peers, delivery, `recvmsg`.
//!
//! A peer is not trusted: what does not follow the protocol to the letter costs the connection, and memory is bounded by
//! what is posted. Nothing that was acknowledged is ever dropped but what nobody is bound to.

use core::net::SocketAddr;

use dat_nostd::{Adapter, CompletionFlags, EpHandle, LmrTriplet, Platform, ReceivedDto};

use crate::connection::{Cookie, CookieKind};
use crate::error::RdsError;
use crate::frames::{Link, Marks, Use};
use crate::node::Rds;
use crate::rdma::RdmaCookie;
use crate::reason::DownReason;
use crate::socket::{Arrival, Received, SocketHandle, address, open_socket};
use crate::wire::{
    CONGESTION_MAP_LEN, Extension, Extensions, FRAGMENT_LEN, FRAME_LEN, Flags, HEADER_LEN, Header,
    fragment_len, fragments,
};

/// Completions of receives taken at once, and receives posted at once, at most.
pub(crate) const BURST: usize = 32;

/// What is left to do with a frame after its header was looked at.
enum Verdict {
    /// Consumed: post the frame again.
    Consumed,
    /// Became part of a message.
    Kept,
    /// The peer broke the protocol.
    Violation(DownReason),
}

impl Rds<'_> {
    /// Frames that came one after the other.
    pub(crate) fn frames_arrived<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        arrivals: &[ReceivedDto],
        now: u64,
    ) {
        let mut rest = arrivals;
        while let Some((arrival, others)) = rest.split_first() {
            let Some(cookie) = Cookie::decode(arrival.user_cookie) else {
                rest = others;
                continue;
            };
            let taken = self.arrived_straight(rest);
            if taken == 0 {
                self.frame_arrived(adapter, cookie, Some(u64::from(arrival.length)), now);
                rest = others;
                continue;
            }
            rest = rest.get(taken..).unwrap_or_default();
            self.refill(adapter, usize::from(cookie.connection));
            self.transmit(adapter, usize::from(cookie.connection));
        }
    }

    /// A posted receive ended: with a frame of `length` bytes, or with None in failure.
    pub(crate) fn frame_arrived<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        cookie: Cookie,
        length: Option<u64>,
        now: u64,
    ) {
        let connection = usize::from(cookie.connection);
        let frame = cookie.number as usize;
        let Some(state) = self.connections.get_mut(connection) else { return };
        // The frames of an endpoint that is gone were taken back when it went.
        if cookie.kind != CookieKind::Receive
            || cookie.epoch != state.epoch
            || state.ep().is_none()
            || usize::from(self.frames.at(frame).posted_to) != connection + 1
        {
            return;
        }
        state.receives_posted -= 1;
        if let Some(entry) = self.frames.at_mut(frame) {
            entry.posted_to = 0;
        }
        let verdict = match length {
            None => None,
            Some(length) if (HEADER_LEN as u64..=FRAME_LEN as u64).contains(&length) => {
                Some(self.process(connection, frame, length as usize - HEADER_LEN))
            }
            Some(_) => Some(Verdict::Violation(DownReason::FrameLength)),
        };
        match verdict {
            Some(Verdict::Kept) => {}
            Some(Verdict::Consumed) => self.frames.give(frame),
            Some(Verdict::Violation(reason)) => {
                self.counters.recv_protocol_errors += 1;
                self.frames.give(frame);
                self.connection_down(adapter, connection, reason, now);
                return;
            }
            None => {
                // Why it broke may still be in the other queue.
                self.frames.give(frame);
                self.mark_broken(connection, DownReason::ReceiveFailed);
                return;
            }
        }
        if self.regions_spent {
            self.free_spent_regions(adapter);
        }
        self.refill(adapter, connection);
        self.transmit(adapter, connection);
    }

    fn process(&mut self, connection: usize, frame: usize, payload_len: usize) -> Verdict {
        let Ok(header) = Header::decode(&self.frames.read_header(frame)) else {
            self.counters.recv_drop_bad_checksum += 1;
            return Verdict::Violation(DownReason::BadChecksum);
        };
        self.acknowledged(connection, header.ack);
        if header.is_acknowledgement() {
            if payload_len != 0 {
                return Verdict::Violation(DownReason::AcknowledgementPayload);
            }
            self.counters.ack_received += 1;
            return Verdict::Consumed;
        }
        if header.is_congestion_map() {
            if header.len as usize == CONGESTION_MAP_LEN && payload_len == FRAGMENT_LEN {
                self.map_arrived(connection, frame);
            } else {
                self.counters.recv_bad_map += 1;
            }
            return Verdict::Consumed;
        }
        self.data_arrived(connection, frame, &header, payload_len)
    }

    fn data_arrived(
        &mut self,
        connection: usize,
        frame: usize,
        header: &Header,
        payload_len: usize,
    ) -> Verdict {
        let Some(state) = self.connections.get_mut(connection) else { return Verdict::Consumed };
        let len = header.len as usize;
        if len > self.limits.longest_received {
            return Verdict::Violation(DownReason::MessageLength);
        }
        self.frames.begin(frame);
        let first = match state.partial.get() {
            None => {
                if let Some(entry) = self.frames.at_mut(frame) {
                    entry.sequence = header.sequence;
                    entry.len = header.len;
                    entry.sport = header.sport;
                    entry.dport = header.dport;
                    entry.flags = header.flags.bits();
                    entry.source = state.foreign;
                    entry.marks.set(Marks::EXTENDED, header.extensions[0] != 0);
                }
                frame
            }
            Some(first) => {
                let begun = self.frames.at(first);
                let same = begun.sequence == header.sequence
                    && begun.len == header.len
                    && begun.sport == header.sport
                    && begun.dport == header.dport;
                if !same {
                    return Verdict::Violation(DownReason::FragmentMismatch);
                }
                first
            }
        };
        let index = usize::from(self.frames.at(first).frames);
        if payload_len != fragment_len(len, index) {
            return Verdict::Violation(DownReason::FragmentLength);
        }
        self.frames.append(first, frame);
        if index + 1 < header.fragments() {
            state.partial = Link::to(first);
            return Verdict::Kept;
        }
        state.partial = Link::NONE;
        self.message_arrived(connection, first);
        Verdict::Kept
    }

    /// A complete message: drop it if it was here before, remember to acknowledge it, hand it on.
    fn message_arrived(&mut self, connection: usize, message: usize) {
        let Some(state) = self.connections.get_mut(connection) else { return };
        let descriptor = self.frames.at(message);
        let (sequence, sport, dport) = (descriptor.sequence, descriptor.sport, descriptor.dport);
        let flags = Flags::from_bits_retain(descriptor.flags);
        state.ack_value = sequence;
        if flags.contains(Flags::ACK_REQUIRED) {
            state.ack_wanted = true;
            self.counters.recv_ack_required += 1;
        }
        if sequence < state.next_rx && flags.contains(Flags::RETRANSMITTED) {
            self.counters.recv_drop_old_seq += 1;
            self.frames.give_message(message);
            return;
        }
        state.next_rx = sequence.wrapping_add(1);
        if dport == 0 {
            self.frames.give_message(message);
            // Port 1 to port 0 is the probe of another transport: acknowledged, never answered.
            if sport > 1 {
                self.counters.recv_ping += 1;
                self.pong(connection, sport);
            }
            // From RDS itself to RDS itself there are acknowledgements and maps; this is neither, whatever its flags say.
            self.counters.recv_bad_map += u64::from(sport == 0);
            return;
        }
        if descriptor.is(Marks::EXTENDED) {
            self.deliver_extended(connection, message);
        } else {
            self.deliver(self.local, message);
        }
    }

    #[cold]
    fn deliver_extended(&mut self, connection: usize, message: usize) {
        let header = Header::decode(&self.frames.read_header(message));
        let offers =
            |header: &Header| Extensions::of(header).any(|e| matches!(e, Extension::RdmaDest { .. }));
        // Linux keeps the memory that it offers until the offer is acknowledged, and a connection that breaks is not made anew before
        // that memory is freed: then it would be too late.
        if header.as_ref().is_ok_and(offers)
            && let Some(state) = self.connections.get_mut(connection)
        {
            state.ack_wanted = true;
        }
        let foreign = self.frames.at(message).source;
        if let (Some(slot), Ok(header)) = (self.deliver(self.local, message), header) {
            self.regions_used(&header, slot, foreign);
        }
    }

    /// Queues a complete message to the socket bound to its port of `address`.
    pub(crate) fn deliver(&mut self, address: u128, message: usize) -> Option<usize> {
        let descriptor = self.frames.at(message);
        let (port, bytes, frames) =
            (descriptor.dport, descriptor.len as usize, usize::from(descriptor.frames));
        let slot = self.bound_to(address, port);
        match slot.and_then(|slot| self.sockets.get_mut(slot)) {
            Some(socket) => {
                self.frames.push_back(&mut socket.received, message);
                self.counters.recv_queued += 1;
                let slot = slot.unwrap_or(0);
                self.ports.found(port, slot);
                self.charge(slot, bytes, frames);
            }
            None => {
                self.counters.recv_drop_no_sock += 1;
                self.frames.give_message(message);
            }
        }
        slot
    }

    /// Whether `count` more frames may be used to receive: the share of the sending side stays free.
    pub(crate) fn may_receive(&self, count: usize) -> bool {
        let kept = self.limits.send_frames.saturating_sub(self.frames.send_count());
        self.frames.free_count() >= kept + count
    }

    /// Whether a connection may take from the reserve: to go on with its unfinished message, if no other is at it.
    #[cold]
    fn may_use_reserve(&mut self, connection: usize) -> bool {
        let unfinished = |index: usize| self.connections.get(index).and_then(|c| c.partial.get());
        let Some(message) = unfinished(connection) else { return false };
        if self.reserve_of != connection && unfinished(self.reserve_of).is_some() {
            return false;
        }
        self.reserve_of = connection;
        let begun = self.frames.at(message);
        let missing = fragments(begun.len as usize).saturating_sub(usize::from(begun.frames));
        let posted = self.connections.get(connection).map_or(0, |c| usize::from(c.receives_posted));
        posted < missing && self.may_receive(1)
    }

    /// Posts receives until the connection has as many as it may, or frames are short. In the latter case the HCA tells
    /// the peer to wait, and nothing is lost.
    pub(crate) fn refill<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, connection: usize) {
        while let Some(state) = self.connections.get(connection) {
            let Some(ep) = state.ep() else { return };
            if state.receives_posted >= self.limits.receive_depth {
                return;
            }
            if self.refill_straight(adapter, connection, ep) {
                continue;
            }
            if !self.may_receive(self.limits.reserve + 1) && !self.may_use_reserve(connection) {
                self.starved = true;
                self.counters.rx_ring_starved += 1;
                return;
            }
            let Some(state) = self.connections.get(connection) else { return };
            let (epoch, lmr_context) = (state.epoch, state.lmr_context);
            let Some(frame) = self.frames.take(Use::Receive) else { return };
            let cookie = Cookie {
                kind: CookieKind::Receive,
                connection: connection as u8,
                epoch,
                number: frame as u32,
            };
            let address = self.frames.address(frame);
            let segment = LmrTriplet::new(lmr_context, address, FRAME_LEN as u64);
            if adapter.ep_post_recv(ep, &[segment], cookie.encode(), CompletionFlags::empty()).is_err() {
                self.frames.give(frame);
                return;
            }
            if let Some(entry) = self.frames.at_mut(frame) {
                entry.posted_to = connection as u8 + 1;
            }
            if let Some(state) = self.connections.get_mut(connection) {
                state.receives_posted += 1;
            }
        }
    }

    /// Posts as many receives at once as are missing and may be taken without the reserve. False if that is none.
    fn refill_straight<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        connection: usize,
        ep: EpHandle,
    ) -> bool {
        let kept = self.limits.send_frames.saturating_sub(self.frames.send_count()) + self.limits.reserve;
        let spare = self.frames.free_count().saturating_sub(kept);
        let Some(state) = self.connections.get_mut(connection) else { return false };
        let missing = usize::from(self.limits.receive_depth.saturating_sub(state.receives_posted));
        let (kind, number) = (CookieKind::Receive, connection as u8);
        let receive = Cookie { kind, connection: number, epoch: state.epoch, number: 0 }.encode();
        state.receive_cookie = receive;
        let mut receives = [(0, 0); BURST];
        let (room, _) = receives.split_at_mut(missing.min(spare).min(BURST));
        let count = self.frames.take_receives(number + 1, receive, room);
        let taken = receives.get(..count).unwrap_or_default();
        let posted = adapter.ep_post_receives(ep, state.lmr_context, FRAME_LEN as u32, taken).unwrap_or(0);
        state.receives_posted += posted as u16;
        for (_, cookie) in taken.get(posted..).unwrap_or_default() {
            self.frames.give(*cookie as u32 as usize);
        }
        posted > 0
    }

    /// After the endpoint is gone: takes back what was posted to it, and what came of an unfinished message.
    pub(crate) fn take_back(&mut self, connection: usize) {
        for frame in 0..self.frames.count() {
            if usize::from(self.frames.at(frame).posted_to) == connection + 1 {
                self.frames.give(frame);
            }
        }
        if let Some(state) = self.connections.get_mut(connection) {
            state.receives_posted = 0;
            state.receive_cookie = 0;
            if let Some(message) = core::mem::replace(&mut state.partial, Link::NONE).get() {
                self.frames.give_message(message);
            }
        }
    }

    /// Takes the oldest message of a socket. What does not fit into `buffer` is gone.
    ///
    /// # Errors
    /// [`RdsError::Again`]: nothing there. [`RdsError::BadSocket`].
    pub fn recvmsg<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        handle: SocketHandle,
        buffer: &mut [u8],
    ) -> Result<Received, RdsError> {
        match self.receive_straight(handle, buffer) {
            Some((received, false)) => Ok(received),
            Some((received, true)) => self.frame_is_free(adapter, handle, received),
            None => {
                let received = self.receive_any(handle, buffer)?;
                self.frame_is_free(adapter, handle, received)
            }
        }
    }

    /// A message was read: a port may be free again, and a connection may get receives.
    #[inline(never)]
    fn frame_is_free<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        handle: SocketHandle,
        received: Received,
    ) -> Result<Received, RdsError> {
        self.discharge(usize::from(handle.slot), 0, 0);
        self.send_changed_maps(adapter);
        if self.starved {
            self.refill_starved(adapter);
        }
        Ok(received)
    }

    #[inline(never)]
    fn receive_any(&mut self, handle: SocketHandle, buffer: &mut [u8]) -> Result<Received, RdsError> {
        let socket = open_socket(self.sockets, handle)?;
        let message = self.frames.pop_front(&mut socket.received).ok_or(RdsError::Again)?;
        let descriptor = self.frames.at(message);
        let from = SocketAddr::new(address(descriptor.source), descriptor.sport);
        let message_len = descriptor.len as usize;
        let frames = usize::from(descriptor.frames);
        let wanted = message_len.min(buffer.len());
        let cookie = if descriptor.is(Marks::EXTENDED) { self.offered(message) } else { None };
        let mut next = Link::to(message);
        for chunk in buffer.get_mut(..wanted).unwrap_or_default().chunks_mut(FRAGMENT_LEN) {
            let Some(index) = next.get() else { break };
            self.frames.read_payload(index, chunk);
            next = self.frames.at(index).next;
        }
        self.frames.give_message(message);
        self.counters.recv_delivered += 1;
        self.discharge(usize::from(handle.slot), message_len, frames);
        Ok(Received { from, len: wanted, message_len, cookie })
    }

    /// Copies the oldest message of a socket and leaves it there (`MSG_PEEK`).
    ///
    /// # Errors
    /// [`RdsError::Again`]: nothing there. [`RdsError::BadSocket`].
    pub fn peekmsg(&mut self, handle: SocketHandle, buffer: &mut [u8]) -> Result<Received, RdsError> {
        let socket = open_socket(self.sockets, handle)?;
        let message = socket.received.head().get().ok_or(RdsError::Again)?;
        Ok(self.copy_out(message, buffer))
    }

    /// The beginning of a message, or all of it.
    fn copy_out(&self, message: usize, buffer: &mut [u8]) -> Received {
        let descriptor = self.frames.at(message);
        let from = SocketAddr::new(address(descriptor.source), descriptor.sport);
        let message_len = descriptor.len as usize;
        let len = message_len.min(buffer.len());
        let cookie = if descriptor.is(Marks::EXTENDED) { self.offered(message) } else { None };
        let mut next = Link::to(message);
        for chunk in buffer.get_mut(..len).unwrap_or_default().chunks_mut(FRAGMENT_LEN) {
            let Some(index) = next.get() else { break };
            self.frames.read_payload(index, chunk);
            next = self.frames.at(index).next;
        }
        Received { from, len, message_len, cookie }
    }

    #[cold]
    fn offered(&self, message: usize) -> Option<RdmaCookie> {
        let header = Header::decode(&self.frames.read_header(message)).ok()?;
        Extensions::of(&header).find_map(|extension| match extension {
            Extension::RdmaDest { rkey, offset } => Some(RdmaCookie::new(rkey, offset)),
            _ => None,
        })
    }

    /// Whatever a socket has for its application, in the order of Linux's `recvmsg`: ends of RDMA operations, congestion
    /// updates, messages. [`recvmsg`](Self::recvmsg) leaves the former where they are.
    ///
    /// # Errors
    /// [`RdsError::Again`]: nothing there. [`RdsError::BadSocket`].
    pub fn receive<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        handle: SocketHandle,
        buffer: &mut [u8],
    ) -> Result<Arrival, RdsError> {
        if let Some(notify) = self.take_notification(handle)? {
            return Ok(Arrival::RdmaStatus(notify));
        }
        match self.take_congestion_update(handle)? {
            0 => Ok(Arrival::Message(self.recvmsg(adapter, handle, buffer)?)),
            ports => Ok(Arrival::CongestionUpdate(ports)),
        }
    }

    /// Whether [`recvmsg`](Self::recvmsg) would find something.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn is_readable(&mut self, handle: SocketHandle) -> Result<bool, RdsError> {
        Ok(!self.open(handle)?.received.is_empty())
    }
}

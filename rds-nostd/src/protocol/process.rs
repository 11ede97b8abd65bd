//! Frames that arrived: acknowledgements, maps, and fragments that become messages.
//!
//! A peer is not trusted: what does not follow the protocol to the letter costs the connection, and memory is bounded by
//! what is posted. Nothing that was acknowledged is ever dropped but what nobody is bound to.

use dat_nostd::{DtoCompletion, Instant};

use crate::connection::{Connection, Cookie};
use crate::counters::Counters;
use crate::frames::{Frame, Frames, Marks, SHORT, Use};
use crate::ids::{ConnectionId, FrameId, MessageId};
use crate::protocol::Protocol;
use crate::reason::DownReason;
use crate::wire::{
    CONGESTION_MAP_LEN, Extension, Extensions, FRAGMENT_LEN, Flags, HEADER_LEN, Header, MAX_MESSAGE_LEN,
    fragment_len, fragments,
};

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Looked at, and free again.
    Consumed,
    /// Became part of a message.
    Kept,
    /// The peer broke the protocol.
    Violation(DownReason),
}

/// A receive that ended well.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// Cookie of the receive.
    pub(crate) user_cookie: u64,
    /// Bytes that arrived.
    pub(crate) length: u32,
}

impl Arrival {
    /// What a receive that ended well reports.
    #[inline(always)]
    pub(crate) fn of(done: &DtoCompletion) -> Self {
        let length = u32::try_from(done.transferred_length).unwrap_or(u32::MAX);
        Self { user_cookie: done.user_cookie, length }
    }
}

impl Protocol<'_> {
    /// A receive ended well. Connections that something is due on because of it are looked at in this round.
    #[inline(always)]
    pub(crate) fn arrived(&mut self, arrival: Arrival, now: Instant) {
        if !self.take_whole(arrival, now) {
            self.take_rest(arrival, now);
        }
    }

    /// Queues a frame that is a whole message for a socket, with nothing beside it, which is what nearly every frame is. False for any
    /// other, and nothing has happened.
    #[inline(always)]
    fn take_whole(&mut self, arrival: Arrival, now: Instant) -> bool {
        let Self { connections, frames, sockets, counters, limits, .. } = self;
        let Some(id) = Cookie::connection_of(arrival.user_cookie) else { return false };
        let Some(connection) = connections.get_mut(id) else { return false };
        let rx = &mut connection.rx;
        // Receives end in the order in which they were posted; those of an endpoint that is gone were taken back.
        let Some(frame) = rx.oldest(arrival.user_cookie) else { return false };
        if rx.partial.is_some() {
            return false;
        }
        let Some(header) = frames.arrived(frame).and_then(|words| Header::of_whole(&words, arrival.length))
        else {
            return false;
        };
        let Some((slot, socket)) = sockets.of_peers(header.dport) else { return false };
        fill(frames.take_arrived(&mut rx.posted, frame), id, &header);
        let full = socket.receives(frames, MessageId::starting(frame), (header.len as usize, 1), limits);
        (rx.ack_value, rx.next_sequence) = (header.sequence, header.sequence.wrapping_add(1));
        rx.posted_count -= 1;
        rx.is_unsaid = true;
        rx.some_short |= header.len <= SHORT;
        connection.reconnect.busy_at = now;
        counters.recv_queued += 1;
        let asked = !header.flags.is_empty();
        if asked {
            rx.ack_wanted = true;
            counters.recv_ack_required += 1;
        }
        let acknowledges = header.ack > connection.tx.highest_ack;
        if (asked || rx.posted_count <= rx.serve_at) && !connection.links.is_due() {
            connections.make_due(id);
        }
        if acknowledges {
            self.acknowledged(id, header.ack);
        }
        if full || self.receiving.beyond() > self.limits.congested_common {
            self.crowded(slot);
        }
        true
    }

    // Cold, so that the loop of whole messages keeps its registers.
    #[cold]
    #[inline(never)]
    fn take_rest(&mut self, arrival: Arrival, now: Instant) {
        if !self.take_part(arrival, now) {
            self.take_other(arrival, now);
        }
    }

    /// Adds a frame to the message that has arrived in part, which is what most frames of long messages are. False for any other, and
    /// nothing has happened.
    #[inline(always)]
    fn take_part(&mut self, arrival: Arrival, now: Instant) -> bool {
        let Self { connections, frames, limits, receiving, .. } = self;
        let Some(id) = Cookie::connection_of(arrival.user_cookie) else { return false };
        let Some(connection) = connections.get_mut(id) else { return false };
        let rx = &mut connection.rx;
        let (Some(frame), Some(message)) = (rx.oldest(arrival.user_cookie), rx.partial) else { return false };
        let first = frames.message(message);
        let (index, len) = (usize::from(first.frames) + usize::from(rx.discarded), first.len as usize);
        // Checked before the header is read: behind the end of a short frame lies an earlier one.
        if arrival.length as usize != HEADER_LEN + fragment_len(len, index) {
            return false;
        }
        let Ok(header) = frames.header(frame) else { return false };
        if !first.belongs(&header) || header.is_congestion_map() {
            return false;
        }
        frames.pop_chain(&mut rx.posted);
        if len <= limits.longest_received {
            frames.append(message, frame);
        } else {
            rx.discarded += 1;
            frames.give(frame);
            receiving.give(&mut rx.used, 1);
        }
        rx.posted_count -= 1;
        connection.reconnect.busy_at = now;
        let complete = index + 1 == fragments(len);
        if complete {
            rx.partial = None;
        }
        let acknowledges = header.ack > connection.tx.highest_ack;
        if complete || rx.posted_count <= limits.refill_at {
            connections.make_due(id);
        }
        if acknowledges {
            self.acknowledged(id, header.ack);
        }
        if complete {
            self.give_reserve_up(id);
            self.message_arrived(id, message, &header);
        }
        true
    }

    /// Processes any other frame.
    #[cold]
    #[inline(never)]
    fn take_other(&mut self, arrival: Arrival, now: Instant) {
        let Some(cookie) = self.connections.current(arrival.user_cookie) else { return };
        let id = cookie.connection;
        let connection = self.connections.at_mut(id);
        if connection.rx.is_refused() {
            return;
        }
        connection.reconnect.busy_at = now;
        if let Verdict::Violation(reason) = self.process(id, &arrival, now) {
            self.connections.at_mut(id).rx.refuse();
            self.mark_broken(id, reason);
        }
        self.connections.make_due(id);
    }

    /// A receive of a connection's present endpoint ended well.
    #[inline(never)]
    pub(crate) fn process(&mut self, id: ConnectionId, arrival: &Arrival, now: Instant) -> Verdict {
        let Self { connections, frames, .. } = self;
        let rx = &mut connections.at_mut(id).rx;
        let Some(frame) = frames.pop_chain(&mut rx.posted) else {
            return Verdict::Violation(DownReason::ReceiveFailed);
        };
        rx.posted_count -= 1;
        if frame.bits() != arrival.user_cookie as u16 {
            self.consumed(id, frame);
            return Verdict::Violation(DownReason::ReceiveFailed);
        }
        let payload_len = (arrival.length as usize).checked_sub(HEADER_LEN);
        let Some(payload_len) = payload_len.filter(|&len| len <= FRAGMENT_LEN) else {
            return self.violated(id, frame, DownReason::FrameLength);
        };
        self.process_frame(id, frame, payload_len, now)
    }

    fn process_frame(
        &mut self,
        id: ConnectionId,
        frame: FrameId,
        payload_len: usize,
        now: Instant,
    ) -> Verdict {
        let Ok(header) = &self.frames.header(frame) else {
            self.counters.recv_drop_bad_checksum += 1;
            return self.violated(id, frame, DownReason::BadChecksum);
        };
        self.acknowledged(id, header.ack);
        if header.is_acknowledgement() {
            if payload_len != 0 {
                return self.violated(id, frame, DownReason::AcknowledgementPayload);
            }
            self.counters.ack_received += 1;
            return self.consumed(id, frame);
        }
        if header.is_congestion_map() {
            if header.len as usize == CONGESTION_MAP_LEN && payload_len == FRAGMENT_LEN {
                self.map_arrived(id, frame);
            } else {
                self.counters.recv_bad_map += 1;
            }
            return self.consumed(id, frame);
        }
        match self.fragment_arrived(id, frame, header, payload_len, now) {
            Ok(Some(message)) => {
                self.message_arrived(id, message, header);
                Verdict::Kept
            }
            Ok(None) => Verdict::Kept,
            Err(reason) => self.violated(id, frame, reason),
        }
    }

    /// A fragment that begins a message, or none at all: gives the message if there is nothing more to it.
    fn fragment_arrived(
        &mut self,
        id: ConnectionId,
        frame: FrameId,
        header: &Header,
        payload_len: usize,
        now: Instant,
    ) -> Result<Option<MessageId>, DownReason> {
        let len = header.len as usize;
        if len > MAX_MESSAGE_LEN {
            return Err(DownReason::MessageLength);
        }
        let Self { connections, frames, .. } = self;
        let connection = connections.at_mut(id);
        let message = match connection.rx.partial {
            None if payload_len != fragment_len(len, 0) => return Err(DownReason::FragmentLength),
            None => {
                let message = begin_message(frames, (id, frame), header);
                let extended = header.extensions != [0; 16];
                frames.message_mut(message).marks.set(Marks::EXTENDED, extended);
                message
            }
            // One that goes on with it has been taken.
            Some(message) if frames.message(message).belongs(header) => {
                return Err(DownReason::FragmentLength);
            }
            Some(_) => return Err(DownReason::FragmentMismatch),
        };
        if header.fragments() == 1 {
            return Ok(Some(message));
        }
        connection.rx.begin(message, header.fragments(), now);
        connections.make_due(id);
        Ok(None)
    }

    /// A complete message: drop it if it was here before, remember to acknowledge it, hand it on.
    fn message_arrived(&mut self, id: ConnectionId, message: MessageId, header: &Header) {
        let before = self.connections.at(id).rx.next_sequence;
        // The first fragment's flags are the message's.
        let descriptor = self.frames.message(message);
        let header = Header { flags: Flags::from_bits_retain(descriptor.flags), ..*header };
        complete(self.connections.at_mut(id), &mut self.counters, &header);
        if header.sequence < before && header.flags.contains(Flags::RETRANSMITTED) {
            self.connections.at_mut(id).rx.next_sequence = before;
            self.counters.recv_drop_old_seq += 1;
            self.give_received(message);
            return;
        }
        if header.len as usize > self.limits.longest_received {
            self.counters.recv_drop_too_long += 1;
            self.give_received(message);
            return;
        }
        if header.dport == 0 {
            self.give_received(message);
            // Port 1 to port 0 is the probe of another transport: acknowledged, never answered.
            if header.sport > 1 {
                self.counters.recv_ping += 1;
                self.pong(id, header.sport);
            }
            // From RDS itself to RDS itself there are acknowledgements and maps; this is neither, whatever its flags say.
            self.counters.recv_bad_map += u64::from(header.sport == 0);
            return;
        }
        let Some((slot, _)) = self.sockets.of_peers(header.dport) else {
            self.counters.recv_drop_no_sock += 1;
            self.give_received(message);
            return;
        };
        let extensions = if self.frames.message(message).is(Marks::EXTENDED) {
            self.frames.read_extensions(message.first())
        } else {
            [0; 16]
        };
        self.deliver_to(slot, message);
        if extensions != [0; 16] {
            let foreign = self.connections.at(id).foreign;
            self.extensions_arrived(id, slot, &Header { extensions, ..header }, foreign);
        }
    }

    #[cold]
    fn extensions_arrived(&mut self, id: ConnectionId, slot: usize, header: &Header, foreign: u128) {
        // Linux keeps the memory that it offers until the offer is acknowledged, and a connection that breaks is not made anew before
        // that memory is freed: then it would be too late.
        if Extensions::of(header).any(|extension| matches!(extension, Extension::RdmaDest { .. })) {
            self.connections.at_mut(id).rx.ack_wanted = true;
        }
        if let Some(socket) = self.sockets.get(slot) {
            let owner = socket.handle(slot);
            self.regions.used(header, owner, foreign, &mut self.counters);
        }
    }

    fn consumed(&mut self, id: ConnectionId, frame: FrameId) -> Verdict {
        self.frames.give(frame);
        self.receiving.give(&mut self.connections.at_mut(id).rx.used, 1);
        Verdict::Consumed
    }

    #[cold]
    fn violated(&mut self, id: ConnectionId, frame: FrameId, reason: DownReason) -> Verdict {
        self.consumed(id, frame);
        self.counters.recv_protocol_errors += 1;
        Verdict::Violation(reason)
    }
}

/// Makes a frame the first one of a message, held until it is read.
fn begin_message(
    frames: &mut Frames<'_>,
    (id, frame): (ConnectionId, FrameId),
    header: &Header,
) -> MessageId {
    fill(frames.at_mut(frame).become_message(Use::Receive), id, header);
    MessageId::starting(frame)
}

/// What a message's first frame says of it.
#[inline(always)]
fn fill(descriptor: &mut Frame, id: ConnectionId, header: &Header) {
    descriptor.describe(header);
    descriptor.connection = Some(id);
}

/// A message is there: it is to be acknowledged.
fn complete(connection: &mut Connection, counters: &mut Counters, header: &Header) {
    let rx = &mut connection.rx;
    (rx.ack_value, rx.is_unsaid) = (header.sequence, true);
    rx.next_sequence = header.sequence.wrapping_add(1);
    rx.some_short |= header.len <= SHORT;
    if header.flags.contains(Flags::ACK_REQUIRED) {
        rx.ack_wanted = true;
        counters.recv_ack_required += 1;
    }
}

#[cfg(test)]
mod oracle;

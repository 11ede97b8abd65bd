//! Frames that arrived: acknowledgements, maps, and fragments that become messages.
//!
//! A peer is not trusted: what does not follow the protocol to the letter costs the connection, and memory is bounded by
//! what is posted. Nothing that was acknowledged is ever dropped but what nobody is bound to.

use dat_nostd::{Instant, ReceivedDto};

use crate::connection::{Connection, Cookie, PARTIAL_LIMIT};
use crate::counters::Counters;
use crate::frames::{Frame, Frames, Marks};
use crate::ids::{ConnectionId, FrameId, MessageId};
use crate::protocol::Protocol;
use crate::reason::DownReason;
use crate::wire::{
    CONGESTION_MAP_LEN, Extension, Extensions, FRAGMENT_LEN, FRAME_LEN, Flags, HEADER_LEN, Header,
    fragment_len,
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

impl Protocol<'_> {
    /// Frames that arrived one after the other: queues the first so many that are whole messages for sockets, of one connection, whose
    /// present endpoint the first is of, with nothing beside them, which is what nearly every frame is. Gives how many. 0: the first is for
    /// [`process`](Self::process).
    #[inline(always)]
    pub(crate) fn take_whole(&mut self, id: ConnectionId, arrivals: &[ReceivedDto]) -> usize {
        let Self { connections, frames, sockets, counters, receiving, limits, .. } = self;
        let connection = connections.at_mut(id);
        let Some(run) = arrivals.first().map(|first| Cookie::without_number(first.user_cookie)) else {
            return 0;
        };
        if connection.rx.partial.is_some() {
            return 0;
        }
        let (mut taken, mut asked, mut sequence, mut ack, mut crowded) = (0, 0, 0, 0, None);
        for arrival in arrivals {
            let oldest = connection.rx.posted.head();
            // They end in the order in which they were posted.
            let Some(frame) = oldest.filter(|frame| run | u64::from(frame.bits()) == arrival.user_cookie)
            else {
                break;
            };
            let Ok(header) = frames.header(frame) else { break };
            if !is_whole(&header, arrival.length) {
                break;
            }
            let Some((slot, socket)) = sockets.of_peers(header.dport) else { break };
            let descriptor = frames.take_arrived(&mut connection.rx.posted, frame);
            fill(descriptor, id, &header, connection.foreign);
            let full = socket.receives(frames, MessageId::starting(frame), (header.len as usize, 1), limits);
            (sequence, ack) = (header.sequence, header.ack);
            // No other flag is among them.
            asked += usize::from(header.flags.bits());
            taken += 1;
            if full {
                crowded = Some(slot);
                break;
            }
        }
        if taken == 0 {
            return 0;
        }
        let rx = &mut connection.rx;
        (rx.ack_value, rx.next_sequence) = (sequence, sequence.wrapping_add(1));
        rx.posted_count -= taken as u16;
        rx.ack_wanted |= asked != 0;
        counters.recv_queued += taken as u64;
        counters.recv_ack_required += (asked / usize::from(Flags::ACK_REQUIRED.bits())) as u64;
        let short = receiving.beyond() > limits.congested_common;
        if short || crowded.is_some() || ack > connection.tx.highest_ack {
            self.pool_short |= short;
            self.took_more(id, ack, crowded);
        }
        taken
    }

    /// A message that arrived acknowledges others, or its socket has too many.
    #[inline(never)]
    fn took_more(&mut self, id: ConnectionId, ack: u64, crowded: Option<usize>) {
        self.acknowledged(id, ack);
        if let Some(slot) = crowded {
            self.crowded(slot);
        }
    }

    /// A receive of a connection's present endpoint ended well.
    #[inline(never)]
    pub(crate) fn process(&mut self, id: ConnectionId, arrival: &ReceivedDto, now: Instant) -> Verdict {
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
        if !(HEADER_LEN as u32..=FRAME_LEN as u32).contains(&arrival.length) {
            return self.violated(id, frame, DownReason::FrameLength);
        }
        self.process_frame(id, frame, arrival.length, now)
    }

    fn process_frame(&mut self, id: ConnectionId, frame: FrameId, length: u32, now: Instant) -> Verdict {
        let Ok(header) = &self.frames.header(frame) else {
            self.counters.recv_drop_bad_checksum += 1;
            return self.violated(id, frame, DownReason::BadChecksum);
        };
        let payload_len = (length as usize).saturating_sub(HEADER_LEN);
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

    /// A fragment: gives the message if it is the last one.
    fn fragment_arrived(
        &mut self,
        id: ConnectionId,
        frame: FrameId,
        header: &Header,
        payload_len: usize,
        now: Instant,
    ) -> Result<Option<MessageId>, DownReason> {
        let len = header.len as usize;
        if len > self.limits.longest_received {
            return Err(DownReason::MessageLength);
        }
        let Self { connections, frames, .. } = self;
        let connection = connections.at_mut(id);
        let message = match connection.rx.partial {
            None if payload_len != fragment_len(len, 0) => return Err(DownReason::FragmentLength),
            None => {
                let message = begin_message(frames, connection, (id, frame), header);
                let extended = header.extensions != [0; 16];
                frames.message_mut(message).marks.set(Marks::EXTENDED, extended);
                message
            }
            Some(message) => {
                let first = self.frames.message(message);
                let begun = Header {
                    sequence: first.sequence,
                    len: first.len,
                    sport: first.sport,
                    dport: first.dport,
                    ..*header
                };
                if !begun.same_message(header) {
                    return Err(DownReason::FragmentMismatch);
                }
                if payload_len != fragment_len(len, usize::from(first.frames)) {
                    return Err(DownReason::FragmentLength);
                }
                self.frames.append(message, frame);
                message
            }
        };
        let complete = usize::from(self.frames.message(message).frames) == header.fragments();
        let rx = &mut self.connections.at_mut(id).rx;
        if complete {
            rx.partial = None;
            return Ok(Some(message));
        }
        let begins = rx.partial.replace(message).is_none();
        rx.partial_until = now + PARTIAL_LIMIT;
        if begins {
            self.connections.make_due(id);
        }
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

/// Whether a frame of so many bytes is a message of its own, for a socket, not sent again and with nothing beside it.
#[inline(always)]
fn is_whole(header: &Header, length: u32) -> bool {
    header.flags.bits() & !Flags::ACK_REQUIRED.bits() == 0
        && length == header.len.wrapping_add(HEADER_LEN as u32)
        && length <= FRAME_LEN as u32
        && header.dport != 0
        && header.extensions == [0; 16]
}

/// Makes a frame the first one of a message, held until it is read.
fn begin_message(
    frames: &mut Frames<'_>,
    connection: &mut Connection,
    (id, frame): (ConnectionId, FrameId),
    header: &Header,
) -> MessageId {
    fill(frames.at_mut(frame).become_message(), id, header, connection.foreign);
    MessageId::starting(frame)
}

/// What a message's first frame says of it.
#[inline(always)]
fn fill(descriptor: &mut Frame, id: ConnectionId, header: &Header, foreign: u128) {
    (descriptor.sport, descriptor.dport, descriptor.flags) =
        (header.sport, header.dport, header.flags.bits());
    (descriptor.len, descriptor.sequence) = (header.len, header.sequence);
    descriptor.connection = Some(id);
    descriptor.set_source(foreign);
}

/// A message is there: it is to be acknowledged.
fn complete(connection: &mut Connection, counters: &mut Counters, header: &Header) {
    let rx = &mut connection.rx;
    rx.ack_value = header.sequence;
    rx.next_sequence = header.sequence.wrapping_add(1);
    if header.flags.contains(Flags::ACK_REQUIRED) {
        rx.ack_wanted = true;
        counters.recv_ack_required += 1;
    }
}

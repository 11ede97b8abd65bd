//! Frames that arrived: acknowledgements, maps, and fragments that become messages.
//!
//! A peer is not trusted: what does not follow the protocol to the letter costs the connection, and memory is bounded by
//! what is posted. Nothing that was acknowledged is ever dropped but what nobody is bound to.

use dat_nostd::{DtoCompletion, Instant};

use crate::connection::Cookie;
use crate::frames::{Frame, Frames, Marks, SHORT, Use};
use crate::ids::{ConnectionId, FrameId, MessageId};
use crate::protocol::Protocol;
use crate::reason::DownReason;
use crate::wire::{self, Extension, Extensions, Flags, Header, MAX_MESSAGE_LEN, fragment_len};

/// Use of a frame that was processed.
#[derive(Clone, Copy, Debug)]
enum Verdict {
    /// Free again.
    Consumed,
    /// Part of a message.
    Kept,
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
    /// Takes a receive that ended well. Connections that something is due on because of it are served in this round.
    #[inline(always)]
    pub(crate) fn arrived(&mut self, arrival: Arrival, now: Instant) {
        let Self { connections, frames, sockets, counters, limits, .. } = self;
        let Some(id) = Cookie::connection_of(arrival.user_cookie) else { return };
        let Some(connection) = connections.get_mut(id) else { return };
        let rx = &mut connection.rx;
        // Receives end in the order of their posts. The receives of an earlier endpoint were taken back.
        let Some(frame) = rx.oldest(arrival.user_cookie) else {
            return self.out_of_order(arrival.user_cookie);
        };
        // Fast path: a message of one frame, to a socket, without extensions. What was parsed stays in registers: the cold function
        // parses again.
        if rx.partial.is_some() {
            return self.take_rest(id, (frame, arrival.length), now);
        }
        let Ok(wire::Frame::Fragment(header, payload_len)) = frames.parse(frame, arrival.length) else {
            return self.take_rest(id, (frame, arrival.length), now);
        };
        if !header.is_plain() || header.len != payload_len {
            return self.take_rest(id, (frame, arrival.length), now);
        }
        let Some((slot, socket)) = sockets.of_peers(header.dport) else {
            return self.take_rest(id, (frame, arrival.length), now);
        };
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
    }

    /// Ends a connection after a receive that is not its oldest one.
    #[cold]
    fn out_of_order(&mut self, cookie: u64) {
        let Some(Cookie { connection: id, .. }) = self.connections.current(cookie) else { return };
        if !self.connections.at(id).rx.is_refused() {
            self.refuse(id, DownReason::ReceiveFailed);
        }
    }

    /// Takes a frame that is not a plain message.
    // Cold, so that the loop of whole messages keeps its registers.
    #[cold]
    #[inline(never)]
    fn take_rest(&mut self, id: ConnectionId, (frame, length): (FrameId, u32), now: Instant) {
        let Self { connections, frames, .. } = self;
        let connection = connections.at_mut(id);
        frames.pop_chain(&mut connection.rx.posted);
        connection.rx.posted_count -= 1;
        connection.reconnect.busy_at = now;
        let parsed = frames.parse(frame, length);
        let processed = parsed.and_then(|parsed| self.process(id, frame, &parsed, now));
        if !matches!(processed, Ok(Verdict::Kept)) {
            self.frames.give(frame);
            self.receiving.give(&mut self.connections.at_mut(id).rx.used, 1);
        }
        if let Err(reason) = processed {
            self.counters.recv_drop_bad_checksum += u64::from(reason == DownReason::BadChecksum);
            self.counters.recv_protocol_errors += 1;
            self.refuse(id, reason);
        }
        self.connections.make_due(id);
    }

    /// Takes nothing more on this endpoint, and lets it go.
    fn refuse(&mut self, id: ConnectionId, reason: DownReason) {
        self.connections.at_mut(id).rx.refuse();
        self.mark_broken(id, reason);
    }

    /// Processes a frame that was taken from the receives.
    ///
    /// # Errors
    /// Returns the rule of the protocol that the peer broke.
    fn process(
        &mut self,
        id: ConnectionId,
        frame: FrameId,
        parsed: &wire::Frame,
        now: Instant,
    ) -> Result<Verdict, DownReason> {
        match parsed {
            wire::Frame::Ack(header) => {
                self.acknowledged(id, header.ack);
                self.counters.ack_received += 1;
                Ok(Verdict::Consumed)
            }
            wire::Frame::Map { header, is_whole } => {
                self.acknowledged(id, header.ack);
                if *is_whole {
                    self.map_arrived(id, frame);
                } else {
                    self.counters.recv_bad_map += 1;
                }
                Ok(Verdict::Consumed)
            }
            wire::Frame::Fragment(header, payload_len) => {
                self.acknowledged(id, header.ack);
                let (verdict, complete) = self.fragment_arrived(id, frame, (header, *payload_len), now)?;
                if let Some(message) = complete {
                    self.message_arrived(id, message);
                }
                Ok(verdict)
            }
        }
    }

    /// Adds a fragment to the message that has begun, or begins one. Returns the message once it is complete. Of a message that is too
    /// long only the first fragment is kept.
    ///
    /// # Errors
    /// MessageLength, FragmentLength, FragmentMismatch.
    fn fragment_arrived(
        &mut self,
        id: ConnectionId,
        frame: FrameId,
        (header, payload_len): (&Header, u32),
        now: Instant,
    ) -> Result<(Verdict, Option<MessageId>), DownReason> {
        if header.len as usize > MAX_MESSAGE_LEN {
            return Err(DownReason::MessageLength);
        }
        let Self { connections, frames, .. } = self;
        let rx = &mut connections.at_mut(id).rx;
        let begun = rx.partial.map(|message| (message, frames.message(message)));
        let index = match begun {
            Some((_, first)) if !first.belongs(header) => return Err(DownReason::FragmentMismatch),
            Some((_, first)) => usize::from(first.frames) + usize::from(rx.discarded),
            None => 0,
        };
        if payload_len as usize != fragment_len(header.len as usize, index) {
            return Err(DownReason::FragmentLength);
        }
        let mut verdict = Verdict::Kept;
        let message = match rx.partial {
            Some(message) => {
                if header.len as usize <= self.limits.longest_received {
                    frames.append(message, frame);
                } else {
                    rx.discarded += 1;
                    verdict = Verdict::Consumed;
                }
                message
            }
            None => begin_message(frames, (id, frame), header),
        };
        if index + 1 == header.fragments() {
            rx.partial = None;
            self.give_reserve_up(id);
            return Ok((verdict, Some(message)));
        }
        if index == 0 {
            rx.begin(message, header.fragments(), now);
        }
        Ok((verdict, None))
    }

    /// Takes a complete message: drops it if it is old, notes its acknowledgement, and delivers it.
    fn message_arrived(&mut self, id: ConnectionId, message: MessageId) {
        // The first fragment's flags and extensions are the message's.
        let &Frame { sequence, sport, dport, len, flags, marks, .. } = self.frames.message(message);
        let flags = Flags::from_bits_retain(flags);
        let rx = &mut self.connections.at_mut(id).rx;
        (rx.ack_value, rx.is_unsaid) = (sequence, true);
        rx.some_short |= len <= SHORT;
        if flags.contains(Flags::ACK_REQUIRED) {
            rx.ack_wanted = true;
            self.counters.recv_ack_required += 1;
        }
        if sequence < rx.next_sequence && flags.contains(Flags::RETRANSMITTED) {
            self.counters.recv_drop_old_seq += 1;
            self.give_received(message);
            return;
        }
        rx.next_sequence = sequence.wrapping_add(1);
        if len as usize > self.limits.longest_received {
            self.counters.recv_drop_too_long += 1;
            self.give_received(message);
            return;
        }
        if dport == 0 {
            self.give_received(message);
            // Port 1 to port 0 is the probe of another transport: acknowledged, never answered.
            if sport > 1 {
                self.counters.recv_ping += 1;
                self.pong(id, sport);
            }
            // From RDS itself to RDS itself there are acknowledgements and maps; this is neither, whatever its flags say.
            self.counters.recv_bad_map += u64::from(sport == 0);
            return;
        }
        let Some((slot, _)) = self.sockets.of_peers(dport) else {
            self.counters.recv_drop_no_sock += 1;
            self.give_received(message);
            return;
        };
        self.deliver_to(slot, message);
        if marks.contains(Marks::EXTENDED) {
            let extensions = self.frames.read_extensions(message.first());
            let foreign = self.connections.at(id).foreign;
            let header = Header { extensions, ..Header::acknowledgement(0) };
            self.extensions_arrived(id, slot, &header, foreign);
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
}

/// Makes a frame the first one of a message, held until it is read.
fn begin_message(
    frames: &mut Frames<'_>,
    (id, frame): (ConnectionId, FrameId),
    header: &Header,
) -> MessageId {
    let first = frames.at_mut(frame).become_message(Use::Receive);
    fill(first, id, header);
    first.marks.set(Marks::EXTENDED, header.extensions != [0; 16]);
    MessageId::starting(frame)
}

/// What a message's first frame says of it.
#[inline(always)]
fn fill(descriptor: &mut Frame, id: ConnectionId, header: &Header) {
    descriptor.describe(header);
    descriptor.connection = Some(id);
}

#[cfg(test)]
mod oracle;

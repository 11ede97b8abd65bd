//! Received frames: acknowledgements, maps, and fragments that are assembled to messages.
//!
//! Peers are untrusted: each violation of the protocol breaks the connection, and posted receives
//! bound the memory. After its acknowledgement, a message is never dropped unless its port is
//! unbound.

use dat_nostd::{Instant, ReceiveDto};

use crate::connection::{Connection, Cookie};
use crate::frames::{Frame, Marks, Place, Rings, Use};
use crate::ids::{ConnectionId, FrameId, MessageId};
use crate::protocol::Protocol;
use crate::reason::DownReason;
use crate::wire::{self, Extension, Extensions, Flags, Header, MAX_MESSAGE_LEN, fragment_len};

/// End of a run of messages.
enum End {
    Run,
    /// The last message crowded the socket in this slot.
    Crowded(usize),
    /// A frame of this length that [`Protocol::arrived`] does not handle.
    Other(FrameId, u32),
}

impl Protocol<'_> {
    /// Takes a run of successful receives of one endpoint. Makes its connection due if more work
    /// follows. Returns the number of receives to post again unchanged. Receives that remain in
    /// `rest` begin the next run.
    ///
    /// Single-fragment messages to sockets, without extension headers, are handled here; all other
    /// frames by a cold call.
    #[inline(always)]
    pub(crate) fn arrived(
        &mut self,
        mut receive: ReceiveDto,
        mut rest: impl Iterator<Item = ReceiveDto>,
        now: Instant,
    ) -> usize {
        let Self { connections, frames, rings, sockets, counters, limits, receiving, .. } = self;
        let Some(id) = Cookie::connection_of(receive.user_cookie) else { return 0 };
        let Some(connection) = connections.get_mut(Some(id)) else { return 0 };
        let Connection { rx, reconnect, .. } = &mut *connection;
        // The receives of an earlier endpoint were freed.
        let Some(mut frame) = rx.frame_of(receive.user_cookie) else { return 0 };
        reconnect.busy_at = now;
        let taken = rx.ring.begin();
        // A message that begins ends its run. If the pool is short, each message crowds its socket.
        let is_common = rx.partial.is_none() && receiving.beyond() <= limits.congested_common;
        let end = loop {
            let other = End::Other(frame, receive.length);
            if !is_common {
                break other;
            }
            // The cold function parses again: passing the header would put it into memory.
            let Some(words) = frames.header_words(frame) else { break other };
            let Some(header) = wire::Frame::parse_plain(&words, receive.length) else { break other };
            (rx.ack_value, rx.heard) = (header.sequence, header.ack);
            let Some((slot, socket)) = sockets.of_peers(header.dport) else { break other };
            frames.keep_in_slot(&mut socket.received, (frame, &header), slot);
            rx.ring.keep();
            counters.recv_queued += 1;
            if !header.flags.is_empty() {
                rx.ack_wanted = true;
                counters.recv_ack_required += 1;
            }
            if socket.receives((header.len as usize, 1), limits.congested_frames) {
                break End::Crowded(slot);
            }
            let Some(next) = rest.next() else { break End::Run };
            let Some(its) = rx.frame_of(next.user_cookie) else { break End::Run };
            (receive, frame) = (next, its);
        };
        let ended = rx.ring.taken() != taken;
        let (mut again, more) = if ended { Self::end_run(connection, rings) } else { (0, false) };
        if more {
            again = self.follow(id, again);
        }
        match end {
            End::Run => {}
            End::Crowded(slot) => self.crowded(slot),
            End::Other(frame, length) => self.take_rest(id, (frame, length), now),
        }
        again
    }

    /// Ends a run of messages. Returns the number of receives to post again unchanged, and whether
    /// work [follows](Self::follow).
    // A call, so that the loop before it keeps its registers.
    #[inline(never)]
    fn end_run(connection: &mut Connection, rings: &Rings<'_>) -> (usize, bool) {
        let Connection { peer, rx, tx, .. } = connection;
        // None of the messages is a duplicate.
        (peer.next_rx, rx.is_unsaid) = (rx.ack_value.wrapping_add(1), true);
        let is_heard = tx.hears(rx.heard, peer.next_tx);
        let (mut again, mut more) = (0, rx.ack_wanted || !rx.is_watched() || !is_heard);
        if rx.ring.is_due() {
            again = rings.repost(&mut rx.ring).into();
            more |= again == 0;
        }
        (again, more)
    }

    /// Does the work that follows a run of messages. Returns the number of receives to post again.
    #[inline(never)]
    fn follow(&mut self, id: ConnectionId, mut again: usize) -> usize {
        let Self { connections, rings, frames, .. } = self;
        let rx = &mut connections.at_mut(id).rx;
        let (heard, mut is_due) = (rx.heard, rx.ack_wanted || !rx.is_watched());
        if rx.ring.is_due() {
            again = rings.repost_read(id, &mut rx.ring, frames).into();
            is_due |= again == 0 && rings.is_short(&rx.ring);
        }
        if is_due {
            connections.make_due(id);
        }
        self.acknowledged(id, heard);
        again
    }

    /// Like [`arrived`](Self::arrived), for a receive outside a run. Receives are posted when the
    /// connection is served.
    pub(crate) fn arrived_alone(&mut self, receive: ReceiveDto, now: Instant) {
        if let Some(cookie) = self.connections.current(receive.user_cookie) {
            self.connections.at_mut(cookie.connection).rx.ring.change();
        }
        self.arrived(receive, core::iter::empty(), now);
    }

    /// Takes a frame outside of the fast path. Receives are posted when the connection is served.
    // Cold, so that the loop of the fast path keeps its registers.
    #[cold]
    #[inline(never)]
    fn take_rest(&mut self, id: ConnectionId, (frame, length): (FrameId, u32), now: Instant) {
        self.connections.at_mut(id).rx.ring.take();
        let parsed = wire::Frame::parse(&self.frames.header_words(frame).unwrap_or_default(), length);
        if let Err(reason) = parsed.and_then(|parsed| self.process(id, frame, parsed, now)) {
            self.counters.recv_drop_bad_checksum += u64::from(reason == DownReason::BadChecksum);
            self.counters.recv_protocol_errors += 1;
            self.connections.at_mut(id).rx.refuse();
            self.mark_broken(id, reason);
        }
        self.connections.make_due(id);
    }

    /// Processes the frame of the last completed receive. A frame that becomes no part of a message
    /// remains in the ring.
    ///
    /// # Errors
    /// Returns the rule of the protocol that the peer broke.
    #[inline]
    fn process(
        &mut self,
        id: ConnectionId,
        frame: FrameId,
        parsed: wire::Frame,
        now: Instant,
    ) -> Result<(), DownReason> {
        match parsed {
            wire::Frame::Ack(header) => {
                self.acknowledged(id, header.ack);
                self.counters.ack_received += 1;
            }
            wire::Frame::Map { header, is_whole } => {
                self.acknowledged(id, header.ack);
                if is_whole {
                    self.map_arrived(id, frame);
                } else {
                    self.counters.recv_bad_map += 1;
                }
            }
            wire::Frame::Fragment(header, payload_len) => {
                self.acknowledged(id, header.ack);
                self.fragment_arrived(id, frame, (header, payload_len), now)?;
            }
        }
        Ok(())
    }

    /// Takes a fragment. An oversized message retains only its first fragment.
    ///
    /// # Errors
    /// MessageLength, FragmentLength, FragmentMismatch.
    #[inline]
    fn fragment_arrived(
        &mut self,
        id: ConnectionId,
        frame: FrameId,
        (header, payload_len): (Header, u32),
        now: Instant,
    ) -> Result<(), DownReason> {
        if header.len as usize > MAX_MESSAGE_LEN {
            return Err(DownReason::MessageLength);
        }
        let Self { connections, frames, rings, .. } = self;
        let rx = &mut connections.at_mut(id).rx;
        let begun = rx.partial.map(|message| (message, frames.message(message)));
        let index = match begun {
            Some((_, first)) if !first.belongs(&header) => return Err(DownReason::FragmentMismatch),
            Some((_, first)) => usize::from(first.frames) + usize::from(rx.discarded),
            None => 0,
        };
        if payload_len as usize != fragment_len(header.len as usize, index) {
            return Err(DownReason::FragmentLength);
        }
        let count = header.fragments();
        if count == 1 {
            // A reference to the header itself would put that of each fragment into memory.
            self.frame_arrived(id, frame, &{ header });
            return Ok(());
        }
        let message = match rx.partial {
            None => {
                rings.remove(id, &mut rx.ring);
                let message = frames.begin_received(frame, &{ header }, id);
                frames.message_mut(message).marks.set(Marks::EXTENDED, header.extensions != [0; 16]);
                rx.begin(message, count, now);
                message
            }
            Some(message) if header.len as usize <= self.limits.longest_received => {
                rings.remove(id, &mut rx.ring);
                frames.at_mut(frame).used = Use::Receive;
                let last = rx.partial_last.replace(frame).unwrap_or(message.first());
                frames.append(message, last, frame);
                message
            }
            Some(message) => {
                rx.discarded += 1;
                message
            }
        };
        if index + 1 == count {
            rx.partial = None;
            self.give_reserve_up(id);
            self.message_arrived(id, message);
        }
        Ok(())
    }

    /// Takes a single-fragment message in the frame of the last completed receive.
    #[inline(never)]
    fn frame_arrived(&mut self, id: ConnectionId, frame: FrameId, header: &Header) {
        let Some(slot) = self.accept(id, header) else { return };
        let Self { connections, frames, sockets, .. } = self;
        let Some(socket) = sockets.get_mut(slot) else { return };
        let is_extended = header.extensions != [0; 16];
        connections.at_mut(id).rx.ring.keep_last();
        frames.keep_in_slot(&mut socket.received, (frame, header), slot);
        frames.at_mut(frame).marks.set(Marks::EXTENDED, is_extended);
        self.queued(slot, (header.len as usize, 1));
        if is_extended {
            self.extensions_arrived(id, slot, header);
        }
    }

    /// Takes a complete message of several frames.
    #[inline(never)]
    fn message_arrived(&mut self, id: ConnectionId, message: MessageId) {
        // The first fragment's flags and extensions apply to the message.
        let &Frame { sequence, sport, dport, len, flags, marks, frames, .. } = self.frames.message(message);
        let flags = Flags::from_bits_retain(flags);
        let header = Header { sequence, len, sport, dport, flags, ..Header::acknowledgement(0) };
        let Some(slot) = self.accept(id, &header) else {
            self.give_received(message);
            return;
        };
        self.deliver_to(slot, Place::of(message), (len as usize, usize::from(frames)));
        if marks.contains(Marks::EXTENDED) {
            let extensions = self.frames.read_extensions(message.first());
            self.extensions_arrived(id, slot, &Header { extensions, ..header });
        }
    }

    /// Records the sequence number of a complete message and its request for an acknowledgement.
    /// Returns the slot of the receiving socket, or `None` to drop the message.
    fn accept(&mut self, id: ConnectionId, header: &Header) -> Option<usize> {
        let &Header { sequence, sport, dport, len, flags, .. } = header;
        let Connection { peer, rx, .. } = self.connections.at_mut(id);
        rx.completed(sequence, flags.contains(Flags::ACK_REQUIRED));
        self.counters.recv_ack_required += u64::from(flags.contains(Flags::ACK_REQUIRED));
        if sequence < peer.next_rx && flags.contains(Flags::RETRANSMITTED) {
            self.counters.recv_drop_old_seq += 1;
            return None;
        }
        peer.next_rx = sequence.wrapping_add(1);
        if len as usize > self.limits.longest_received {
            self.counters.recv_drop_too_long += 1;
            return None;
        }
        if dport == 0 {
            // Port 1 to port 0 is the probe of another transport: acknowledged, without reply.
            if sport > 1 {
                self.counters.recv_ping += 1;
                self.pong(id, sport);
            }
            // Port 0 to port 0 is for acknowledgements and maps only, and this frame is neither.
            self.counters.recv_bad_map += u64::from(sport == 0);
            return None;
        }
        let found = self.sockets.of_peers(dport).map(|(slot, _)| slot);
        self.counters.recv_drop_no_sock += u64::from(found.is_none());
        found
    }

    #[cold]
    fn extensions_arrived(&mut self, id: ConnectionId, slot: usize, header: &Header) {
        let connection = self.connections.at_mut(id);
        // Linux holds offered memory until the offer is acknowledged, and does not reconnect after
        // a break before that memory is freed, so acknowledge the offer immediately.
        if Extensions::of(header).any(|extension| matches!(extension, Extension::RdmaDest { .. })) {
            connection.rx.ack_wanted = true;
        }
        if let Some(socket) = self.sockets.get(slot) {
            let owner = socket.handle(slot);
            self.regions.used(header, owner, connection.peer.foreign, &mut self.counters);
        }
    }
}

#[cfg(test)]
mod oracle;

//! Posting: the congestion map, operations, fragments and acknowledgements, in the order in which they leave.

use dat_nostd::{Adapter, CompletionFlags, DatResult, LmrTriplet, Platform};

use crate::congestion::MAP_FRAGMENTS;
use crate::connection::{Connection, Cookie, CookieKind, State};
use crate::frames::{Link, Marks};
use crate::node::Rds;
use crate::operation::Progress;
use crate::rdma::RdmaStatus;
use crate::wire::{FRAGMENT_LEN, Flags, HEADER_LEN, Header, fragment_len, fragments};

impl Rds<'_> {
    /// Whether a message that is about to be sent asks for an acknowledgement: because its socket is in a hurry, because
    /// enough went without, or as the first one on its connection.
    fn asks(&mut self, connection: usize, message: usize) {
        let Some(state) = self.connections.get_mut(connection) else { return };
        let Some(descriptor) = self.frames.at_mut(message) else { return };
        let hurry = descriptor.flags & Flags::ACK_REQUIRED.bits() != 0;
        let number = state.posts + u64::from(descriptor.frames);
        if hurry || state.asks(descriptor.sequence, number, self.limits.unasked_frames) {
            descriptor.flags |= Flags::ACK_REQUIRED.bits();
            self.counters.send_ack_required += 1;
            state.asked = descriptor.sequence;
            state.asked_post = number;
        }
    }

    /// Posts as much as the send queue takes: the congestion map, messages in order, and an acknowledgement if one is wanted
    /// and no message carried it.
    pub(crate) fn transmit<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, connection: usize) {
        if self.connections.get(connection).is_none_or(Connection::has_nothing_to_send) {
            return;
        }
        while let Some(state) = self.connections.get(connection) {
            // One post is kept for acknowledgements: without them the peer's queue would not move.
            if state.state != State::Up
                || state.posts - state.completed + 1 >= u64::from(self.limits.send_depth)
            {
                break;
            }
            if state.map_changed && state.cursor.is_none() && state.maps_to_send == 0 {
                self.renew_map(connection);
                continue;
            }
            if state.maps_to_send > 0 && state.cursor.is_none() {
                if self.post_map(adapter, connection).is_err() {
                    break;
                }
                continue;
            }
            let Some(message) = state.unsent.head().get() else { break };
            let descriptor = self.frames.at(message);
            if descriptor.posted == 0 {
                if !descriptor.operation.is_none() {
                    let (operation, silent) = (descriptor.operation, descriptor.is(Marks::SILENT));
                    match self.post_operation(adapter, connection, operation, silent) {
                        Progress::Posted => continue,
                        Progress::Full => break,
                        Progress::Complete if silent => {
                            self.sent_silently(connection, message);
                            continue;
                        }
                        Progress::Complete => {}
                        Progress::Failed => {
                            self.drop_unsent(adapter, connection, message);
                            continue;
                        }
                    }
                }
                self.asks(connection, message);
            }
            if self.post_fragment(adapter, connection, message).is_err() {
                break;
            }
        }
        self.acknowledge(adapter, connection);
    }

    /// The operation was all there was to do.
    #[cold]
    fn sent_silently(&mut self, connection: usize, message: usize) {
        let last_post = self.last_post(self.frames.at(message).operation);
        if let Some(frame) = self.frames.at_mut(message) {
            frame.last_post = last_post;
        }
        if let Some(state) = self.connections.get_mut(connection) {
            self.frames.pop_front(&mut state.unsent);
            self.frames.push_back(&mut state.unacked, message);
        }
    }

    /// The first unsent message has an operation that cannot be done.
    #[cold]
    fn drop_unsent<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, connection: usize, message: usize) {
        if let Some(state) = self.connections.get_mut(connection) {
            self.frames.pop_front(&mut state.unsent);
        }
        self.finish(adapter, connection, message, RdmaStatus::OtherError);
        self.settle(message);
        self.frames.give_message(message);
    }

    /// Ends a message's operation, if it has one.
    pub(crate) fn finish<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        connection: usize,
        message: usize,
        status: RdmaStatus,
    ) {
        let Some(frame) = self.frames.at_mut(message) else { return };
        let operation = core::mem::replace(&mut frame.operation, Link::NONE);
        if operation.is_none() {
            return;
        }
        if let Some(state) = self.connections.get_mut(connection) {
            state.operations -= 1;
        }
        self.end_operation(adapter, operation, status);
    }

    fn renew_map(&mut self, connection: usize) {
        if let Some(state) = self.connections.get_mut(connection) {
            state.maps_to_send = MAP_FRAGMENTS;
        }
    }

    fn post_map<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, connection: usize) -> DatResult<()> {
        let Some(state) = self.connections.get_mut(connection) else { return Ok(()) };
        let (index, last) = (MAP_FRAGMENTS - state.maps_to_send, state.maps_to_send == 1);
        if index == 0 {
            // What changes from now on goes with the next one.
            state.map_changed = false;
        }
        if let Some(frame) = self.map_frames.get(usize::from(index)).and_then(|link| link.get()) {
            let report = last && state.map_owed;
            let number = self.post(
                adapter,
                connection,
                CookieKind::Message,
                frame,
                FRAGMENT_LEN,
                last,
                report,
                false,
            )?;
            if let Some(state) = self.connections.get_mut(connection) {
                state.map_post = number;
            }
        }
        if let Some(state) = self.connections.get_mut(connection) {
            state.maps_to_send -= 1;
            // The map's frames serve all connections, so they acknowledge nothing. Linux believes the last of the frames
            // that it takes at once: without another behind them, what was acknowledged just before would be forgotten.
            state.ack_wanted |= last && state.ack_value != 0;
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
            extensions: if descriptor.is(Marks::EXTENDED) {
                self.frames.read_extensions(message)
            } else {
                [0; 16]
            },
        };
        let last = index + 1 == fragments(len);
        let operation = descriptor.operation;
        let signal = last && (header.flags.contains(Flags::ACK_REQUIRED) || !operation.is_none());
        let fence = !operation.is_none() && self.is_fence(operation);
        self.frames.write_header(frame, &header.encode());
        let number = self.post(
            adapter,
            connection,
            CookieKind::Message,
            frame,
            fragment_len(len, index),
            last,
            signal,
            fence,
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
        fence: bool,
    ) -> DatResult<u64> {
        let Some(state) = self.connections.get_mut(connection) else { return Ok(0) };
        let Some(ep) = state.ep() else { return Ok(0) };
        let number = state.posts + 1;
        let signal = signal || number - state.signalled >= u64::from(self.limits.signal_every);
        let mut flags = CompletionFlags::empty();
        flags.set(CompletionFlags::SUPPRESS, !signal);
        flags.set(CompletionFlags::SOLICITED_WAIT, solicit);
        flags.set(CompletionFlags::BARRIER_FENCE, fence);
        let cookie = Cookie { kind, connection: connection as u8, epoch: state.epoch, number: number as u32 };
        let address = self.frames.address(frame);
        let segment = LmrTriplet::new(state.lmr_context, address, (HEADER_LEN + payload_len) as u64);
        adapter.ep_post_send(ep, &[segment], cookie.encode(), flags)?;
        state.posts = number;
        if signal {
            state.signalled = number;
        }
        Ok(number)
    }

    /// The cookie of a connection's post.
    pub(crate) fn cookie(&self, connection: usize, kind: CookieKind, number: u64) -> u64 {
        let epoch = self.connections.get(connection).map_or(0, |state| state.epoch);
        Cookie { kind, connection: connection as u8, epoch, number: number as u32 }.encode()
    }

    /// Counts a post; gives its number.
    pub(crate) fn posted(&mut self, connection: usize, signal: bool) -> u64 {
        let Some(state) = self.connections.get_mut(connection) else { return 0 };
        state.posts += 1;
        if signal {
            state.signalled = state.posts;
        }
        state.posts
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
        self.frames.write_acknowledgement(frame, state.ack_value);
        if self.post(adapter, connection, CookieKind::Acknowledgement, frame, 0, true, true, false).is_ok() {
            self.counters.ack_sent += 1;
            if let Some(state) = self.connections.get_mut(connection) {
                state.ack_wanted = false;
                state.ack_in_flight = true;
            }
        }
    }
}

//! The straight way: messages of one frame, without anything beside them, on connections in good order.
//!
//! Each function looks at everything first and answers None if anything is unusual; then nothing has happened, and the general
//! way does what is to be done.

use core::net::SocketAddr;

use dat_nostd::{Adapter, CompletionFlags, LmrTriplet, Platform, ReceivedDto};

use crate::connection::{Connection, Cookie, CookieKind, State};
use crate::node::Rds;
use crate::socket::{Received, SocketHandle, address, key};
use crate::wire::{FRAGMENT_LEN, Flags, HEADER_LEN};
use crate::words::{self, HEADER_WORDS, Plain};

/// Places of [`Ports`]: a power of two.
const PLACES: usize = 64;

/// Where sockets bound to a port were found: only a place to look first, for ports that are equal modulo [`PLACES`].
#[derive(Debug)]
pub(crate) struct Ports([u16; PLACES]);

impl Ports {
    pub(crate) const EMPTY: Self = Self([0; PLACES]);

    #[inline(always)]
    pub(crate) fn of(&self, port: u16) -> usize {
        usize::from(self.0[usize::from(port) % PLACES])
    }

    pub(crate) fn found(&mut self, port: u16, slot: usize) {
        self.0[usize::from(port) % PLACES] = slot as u16;
    }
}

impl Connection {
    /// Whether a message may be posted at once: the connection is up, nothing goes before it, and the send queue has room for it
    /// and an acknowledgement.
    #[inline(always)]
    fn is_straight(&self, send_depth: u16) -> bool {
        self.state == State::Up
            && self.unsent.is_empty()
            && self.maps_to_send == 0
            && !self.map_changed
            && self.posts - self.completed + 1 < u64::from(send_depth)
    }
}

impl Rds<'_> {
    /// Sends a short message to where its socket's last one went.
    #[inline(always)]
    pub(crate) fn send_straight<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        from: SocketHandle,
        to: &SocketAddr,
        payload: &[u8],
    ) -> Option<()> {
        let socket = self.sockets.get_mut(usize::from(from.slot))?;
        let index = socket.route;
        let state = self.connections.get_mut(usize::from(index))?;
        let (foreign, dport) = (key(to.ip()), to.port());
        // The route was found for this socket, and is forgotten when the entry becomes another peer's.
        let known = socket.generation == from.generation && socket.open && socket.route_to == foreign;
        if !known || !state.is_straight(self.limits.send_depth) {
            return None;
        }
        let total = socket.send_bytes + payload.len();
        if payload.len() > FRAGMENT_LEN
            || total >= socket.send_buffer
            || self.frames.send_count() >= self.limits.send_frames
            || self.maps.get(usize::from(index))?.is_marked(dport)
        {
            return None;
        }
        let (number, sequence) = (state.posts + 1, state.next_tx);
        let asks = state.asks(sequence, number, self.limits.unasked_frames)
            || state.hurries(total, socket.send_buffer, payload.len());
        let signal = asks || number - state.signalled >= u64::from(self.limits.signal_every);
        let flags = if asks { Flags::ACK_REQUIRED.bits() } else { 0 };
        let (sport, len) = (socket.port, payload.len() as u32);

        let frame = self.frames.next_free()?;
        let memory = self.frames.words(frame)?;
        let (header, body) = memory.split_first_chunk::<HEADER_WORDS>()?;
        Plain { sequence, ack: state.ack_value, len, sport, dport, flags }.write(header);
        words::put(body, payload);
        let cookie = Cookie {
            kind: CookieKind::Message,
            connection: index,
            epoch: state.epoch,
            number: number as u32,
        };
        let address = memory.as_ptr().addr() as u64;
        let segment = LmrTriplet::new(state.lmr_context, address, HEADER_LEN as u64 + u64::from(len));
        let mut post_flags = CompletionFlags::SOLICITED_WAIT;
        if !signal {
            post_flags |= CompletionFlags::SUPPRESS;
        }
        adapter
            .ep_post_send(state.ep()?, core::slice::from_ref(&segment), cookie.encode(), post_flags)
            .ok()?;

        state.posts = number;
        state.next_tx = sequence + 1;
        state.ack_wanted = false;
        if signal {
            state.signalled = number;
        }
        if asks {
            (state.asked, state.asked_post) = (sequence, number);
            self.counters.send_ack_required += 1;
        }
        socket.send_bytes = total;
        socket.send_messages += 1;
        self.counters.send_queued += 1;
        self.frames.take_posted(&mut state.unacked, |message| {
            (message.sport, message.dport, message.flags) = (sport, dport, flags);
            (message.socket, message.generation) = (from.slot, from.generation);
            (message.len, message.sequence, message.last_post) = (len, sequence, number);
        })
    }

    /// Hands short messages that arrived one after the other on one connection to their sockets: gives how many, the first so many.
    pub(crate) fn arrived_straight(&mut self, arrivals: &[ReceivedDto]) -> usize {
        let Some(first) = arrivals.first() else { return 0 };
        let number = (first.user_cookie >> 48) as u8;
        let Some(state) = self.connections.get_mut(usize::from(number)) else { return 0 };
        if !state.partial.is_none() {
            return 0;
        }
        let (expected, source) = (state.receive_cookie, state.foreign);
        let (mut done, mut ack, mut sequence, mut flags, mut slot) = (0, 0, 0, 0, 0);
        let mut crowded = false;
        // Then each is looked at by itself.
        let most = if self.pool_short { 1 } else { arrivals.len() };
        for arrival in arrivals.iter().take(most) {
            let frame = arrival.user_cookie as u32 as usize;
            let Some(header) = self.frames.header(frame) else { break };
            // Of one frame, and as long as it says: so not longer than what is taken at least, as receives are of one frame.
            let fits = u64::from(arrival.length) == u64::from(header.len) + HEADER_LEN as u64;
            if (arrival.user_cookie ^ expected) >> 32 != 0 || !fits || !header.is_message() {
                break;
            }
            slot = self.ports.of(header.dport);
            let Some(socket) = self.sockets.get_mut(slot).filter(|socket| socket.peers_port == header.dport)
            else {
                break;
            };
            let arrived = self.frames.arrived(&mut socket.received, (frame, number + 1), |message| {
                (message.sport, message.dport, message.flags) = (header.sport, header.dport, header.flags);
                (message.len, message.sequence, message.source) = (header.len, header.sequence, source);
            });
            if arrived.is_none() {
                break;
            }
            done += 1;
            (ack, sequence) = (header.ack.max(ack), header.sequence);
            flags += u64::from(header.flags);
            socket.receive_bytes += header.len as usize;
            socket.receive_frames += 1;
            if socket.receive_bytes > socket.receive_buffer
                || socket.receive_frames > self.limits.congested_frames
            {
                crowded = true;
                break;
            }
        }
        if done == 0 {
            return 0;
        }
        state.receives_posted -= done as u16;
        state.ack_value = sequence;
        state.next_rx = sequence.wrapping_add(1);
        state.ack_wanted |= flags != 0;
        // No other flag is among them.
        self.counters.recv_ack_required += flags / u64::from(Flags::ACK_REQUIRED.bits());
        if ack > state.highest_ack {
            self.acknowledged(usize::from(number), ack);
        }
        self.counters.recv_queued += done as u64;
        self.unread_frames += done;
        if crowded | self.pool_short || self.unread_frames > self.limits.congested_pool {
            self.charge(slot, 0, 0);
        }
        done
    }

    /// Takes a short message from a socket's queue. Whether more is to be done then is the second answer.
    #[inline(always)]
    pub(crate) fn receive_straight(
        &mut self,
        handle: SocketHandle,
        buffer: &mut [u8],
    ) -> Option<(Received, bool)> {
        let socket = self.sockets.get_mut(usize::from(handle.slot))?;
        if socket.generation != handle.generation || !socket.open {
            return None;
        }
        let (source, sport, len) = self.frames.read_short(&mut socket.received, buffer)?;
        self.counters.recv_delivered += 1;
        self.unread_frames -= 1;
        socket.receive_bytes -= len;
        socket.receive_frames -= 1;
        let more = socket.congested | self.pool_short | self.starved | self.maps_changed;
        let from = SocketAddr::new(address(source), sport);
        Some((Received { from, len, message_len: len, cookie: None }, more))
    }
}

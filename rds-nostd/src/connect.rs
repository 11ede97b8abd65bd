//! Connection management: one RC connection for each peer and type of service, made when there is something to send.
//!
//! When both sides ask at once, the attempt of the lower address stands. The higher one gives its own up for it; the lower one
//! keeps the other's request until it knows what becomes of its own: a Linux peer refuses ours while it asks itself, and its
//! request is then accepted at once.

use dat_nostd::{
    Adapter, CompletionFlags, ConnectFlags, ConnectionEvent, CrHandle, DatResult, EpAttributes, EpHandle,
    Platform, Qos,
};

use crate::congestion::MAP_FRAGMENTS;
use crate::connection::{Connection, NEVER_ASKED, State};
use crate::frames::{Link, Use};
use crate::node::{Rds, is_unicast};
use crate::reason::DownReason;
use crate::slot::Slot;
use crate::socket::{address, key};
use crate::wire::{ConnectData, REJECT_DATA, SERVICE_PORT, VERSION};

/// How long a connection attempt may take, microseconds.
const CONNECT_TIMEOUT_US: u32 = 5_000_000;
/// Time between attempts is drawn from a range that doubles from the first to the second, nanoseconds.
const BACKOFF_MIN: u64 = 1_000_000;
const BACKOFF_MAX: u64 = 1_000_000_000;
/// How long a connection stands before a new request of its peer replaces it, nanoseconds; it doubles with each replacement up to
/// the second, and begins anew after the third without one. Whoever asks all the time does not get a connection torn down and
/// made for each request; and a request that was overtaken by the answer to ours does no harm.
const STANDS: u64 = 10_000_000;
const STANDS_MAX: u64 = 1_000_000_000;
const CALM: u64 = 4_000_000_000;
/// Time between two looks whether a peer is there that somebody waits for, nanoseconds.
const PROBE: u64 = 1_000_000_000;
/// Time between two requests of a peer that are accepted while nothing stands, nanoseconds.
const ACCEPT_APART: u64 = 1_000_000;

/// What to do with a peer's request.
enum Admission {
    /// The connection is ready for it.
    Accept(usize),
    /// Wait for what becomes of this side's own.
    Hold(usize),
    Refuse,
}

impl Rds<'_> {
    /// The connection to a peer with this type of service; a new one if there is room, perhaps in the entry of one that never came
    /// up.
    pub(crate) fn connection_for(&mut self, foreign: u128, tos: u8) -> Option<usize> {
        if let Some(index) = self.connection_to(foreign, tos) {
            return Some(index);
        }
        let free = self.connections.iter().position(|c| c.state == State::Free);
        let index = match free {
            Some(index) => index,
            None => {
                let unused =
                    |(index, state): (usize, &Connection)| state.is_unused() && self.zone_is_unused(index);
                self.connections.iter().enumerate().position(unused)?
            }
        };
        let (zone, zone_lmr, lmr_context) = self.kept_zone(index);
        let connection = self.connections.get_mut(index)?;
        let ack_frame = match connection.ack_frame {
            Link::NONE => Link::to(self.frames.take(Use::Send)?),
            kept => kept,
        };
        *connection = Connection {
            state: State::Down,
            epoch: connection.epoch,
            foreign,
            tos,
            lmr_context,
            zone,
            zone_lmr,
            ack_frame,
            next_tx: (u64::from(self.config.generation) << 24) + 1,
            ..Connection::EMPTY
        };
        self.forget_map(index);
        Some(index)
    }

    /// The connection to a peer with this type of service, if there is one.
    pub(crate) fn connection_to(&self, foreign: u128, tos: u8) -> Option<usize> {
        self.connections.iter().position(|c| c.state != State::Free && c.foreign == foreign && c.tos == tos)
    }

    /// What is due on a connection; gives its next deadline.
    pub(crate) fn connection_due<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        connection: usize,
        now: u64,
    ) -> Option<u64> {
        let state = self.connections.get(connection)?;
        match state.state {
            State::Down if !state.unsent.is_empty() || state.wants_maps() => {
                if now >= state.retry_at {
                    self.begin_connecting(adapter, connection, now);
                }
                let state = self.connections.get(connection)?;
                // An attempt may have ended already; its event then waits, and the adapter has new deadlines anyway.
                Some(if state.state == State::Down { state.retry_at } else { now })
            }
            State::Up => {
                self.refill(adapter, connection);
                let probe = self.probe_at(connection, now);
                self.transmit(adapter, connection);
                probe
            }
            _ => None,
        }
    }

    /// When to look next whether a peer is still there that somebody waits for: one whose map holds a socket back, or one that has
    /// not acknowledged all messages. If it died, it will do neither, and nothing that would notice its death may be sent to it
    /// any more: an acknowledgement does that, from time to time.
    fn probe_at(&mut self, connection: usize, now: u64) -> Option<u64> {
        let waited_for = |state: &&mut Connection| state.map_wanted || !state.unacked.is_empty();
        let state = self.connections.get_mut(connection).filter(waited_for)?;
        if now >= state.retry_at {
            state.ack_wanted |= state.retry_at >= state.up_at;
            state.retry_at = now.saturating_add(PROBE);
        }
        Some(state.retry_at)
    }

    fn begin_connecting<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, connection: usize, now: u64) {
        let Some(state) = self.connections.get(connection) else { return };
        let foreign = address(state.foreign);
        let (data, len) = self.connect_data(connection, VERSION).encode();
        let attempt = self.new_endpoint(adapter, connection).and_then(|ep| {
            adapter.ep_connect(
                ep,
                &foreign,
                u64::from(SERVICE_PORT),
                CONNECT_TIMEOUT_US,
                &data[..len],
                Qos::BestEffort,
                ConnectFlags::Default,
            )
        });
        match attempt {
            Ok(()) => self.set_state(connection, State::Connecting),
            Err(_) => self.connection_down(adapter, connection, DownReason::NoResources, now),
        }
    }

    fn connect_data(&self, connection: usize, version: (u8, u8)) -> ConnectData {
        let (foreign, tos) = self.connections.get(connection).map_or((0, 0), |c| (c.foreign, c.tos));
        ConnectData {
            source: address(self.local),
            destination: address(foreign),
            tos,
            ..ConnectData::proposal(version)
        }
    }

    fn set_state(&mut self, connection: usize, to: State) {
        if let Some(state) = self.connections.get_mut(connection) {
            state.state = to;
        }
    }

    /// An endpoint with its receives posted: the peer may send as soon as it is connected.
    fn new_endpoint<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        connection: usize,
    ) -> DatResult<EpHandle> {
        let zone = self.zone_of(adapter, connection)?;
        let tos = self.connections.get(connection).map_or(0, |state| state.tos);
        let attributes = EpAttributes {
            max_recv_dtos: u32::from(self.limits.receive_depth),
            max_request_dtos: u32::from(self.limits.send_depth),
            max_recv_iov: 1,
            max_request_iov: 1,
            // Every fragment wakes, not only a message's last, which the peer marks: it may be waiting for frames before that.
            recv_completion_flags: CompletionFlags::EVD_THRESHOLD,
            retry_count: self.config.retry_count.min(7),
            // Without end: a peer posts its first receives only when it knows that the connection is up.
            rnr_retry: 7,
            rnr_timer: 10,
            // Without a type of service the subnet chooses the level.
            sl: (tos != 0).then_some(service_level(tos)),
            traffic_class: tos,
            ..EpAttributes::DEFAULT
        };
        let ep = adapter.ep_create(
            self.dat.ia,
            Some(zone),
            Some(self.dat.receive_evd),
            Some(self.dat.request_evd),
            Some(self.dat.connect_evd),
            Some(&attributes),
        )?;
        if let Some(state) = self.connections.get_mut(connection) {
            state.set_ep(Some(ep));
        }
        self.refill(adapter, connection);
        Ok(ep)
    }

    /// A peer asks for a connection.
    pub(crate) fn connection_requested<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        cr: CrHandle,
        now: u64,
    ) {
        match self.admit(adapter, cr, now) {
            Admission::Accept(connection) => self.accept(adapter, connection, cr, now),
            Admission::Hold(connection) => {
                let Some(state) = self.connections.get_mut(connection) else { return };
                let before = core::mem::replace(&mut state.held_request, cr.bits());
                if before != 0 {
                    self.refuse(adapter, CrHandle::from_bits(before));
                }
            }
            Admission::Refuse => {
                self.counters.connect_refused += 1;
                self.refuse(adapter, cr);
            }
        }
    }

    fn refuse<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, cr: CrHandle) {
        // If the request is gone by now there is nobody left to answer.
        let _ = adapter.cr_reject_with(cr, &REJECT_DATA);
    }

    /// Accepts a request for a connection that has no endpoint.
    fn accept<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        connection: usize,
        cr: CrHandle,
        now: u64,
    ) {
        let Ok(request) = adapter.cr_query(cr) else { return };
        let gid = request.remote_gid;
        let version = ConnectData::decode(request.private_data, request.remote_address.is_ipv4())
            .and_then(|data| data.select_version())
            .unwrap_or(VERSION);
        if let Some(state) = self.connections.get_mut(connection) {
            state.foreign_gid = gid;
            let calm = now >= state.accepted_at.saturating_add(CALM);
            state.stands = if calm { STANDS } else { (state.stands * 2).clamp(STANDS, STANDS_MAX) };
            state.accepted_at = now.max(1);
        }
        let (bytes, len) = self.connect_data(connection, version).encode();
        let accepted = self
            .new_endpoint(adapter, connection)
            .and_then(|ep| adapter.cr_accept(cr, Some(ep), &bytes[..len]));
        match accepted {
            Ok(()) => self.set_state(connection, State::Accepting),
            Err(_) => {
                self.connection_down(adapter, connection, DownReason::NoResources, now);
                self.refuse(adapter, cr);
            }
        }
    }

    /// What to do with a request.
    fn admit<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, cr: CrHandle, now: u64) -> Admission {
        let Some((remote, tos)) = self.requester(adapter, cr) else { return Admission::Refuse };
        let known = self.connection_to(remote, tos);
        if known.is_none() {
            let others = self.connections.iter().filter(|c| c.state != State::Free && c.foreign == remote);
            if others.count() >= usize::from(self.config.connections_per_peer.max(1)) {
                return Admission::Refuse;
            }
        }
        let Some(connection) = known.or_else(|| self.connection_for(remote, tos)) else {
            return Admission::Refuse;
        };
        let Some(state) = self.connections.get(connection) else { return Admission::Refuse };
        let asked_at = |apart: u64| state.accepted_at != 0 && now < state.accepted_at.saturating_add(apart);
        let too_often = match state.state {
            State::Free | State::Connecting => false,
            State::Down => asked_at(ACCEPT_APART),
            State::Accepting => asked_at(state.stands),
            State::Up => asked_at(state.stands) || now < state.up_at.saturating_add(STANDS),
        };
        if too_often {
            self.counters.connect_too_often += 1;
            return Admission::Refuse;
        }
        match state.state {
            State::Free => return Admission::Refuse,
            State::Down => {}
            State::Connecting => {
                self.counters.connect_raced += 1;
                if self.local < remote {
                    return Admission::Hold(connection);
                }
                self.note_down(connection, DownReason::Raced);
                self.drop_endpoint(adapter, connection);
            }
            // The peer has begun anew: what it knew of the old connection is gone.
            State::Accepting | State::Up => {
                self.connection_down(adapter, connection, DownReason::Replaced, now);
            }
        }
        Admission::Accept(connection)
    }

    /// Who asks, and for what type of service. None if the request is not one of a peer that speaks our protocol, or if what it says
    /// of itself does not agree.
    fn requester<P: Platform>(&self, adapter: &mut Adapter<'_, P>, cr: CrHandle) -> Option<(u128, u8)> {
        let request = adapter.cr_query(cr).ok()?;
        let (source, gid) = (request.remote_address, request.remote_gid);
        let remote = key(request.remote_address);
        let data = ConnectData::decode(request.private_data, request.remote_address.is_ipv4())?;
        let agrees = key(data.source) == remote && key(data.destination) == self.local;
        let is_peer = remote != self.local && is_unicast(request.remote_address);
        let speaks = data.select_version().is_some();
        // Whoever asks in another's name does so from another port than that one's.
        let is_there = adapter.known_gid(&source).is_none_or(|known| known == gid);
        (speaks && agrees && is_peer && is_there).then_some((remote, data.tos))
    }

    /// The state of a connection changed.
    pub(crate) fn connection_changed<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        event: ConnectionEvent,
        ep: EpHandle,
        now: u64,
    ) {
        let Some(connection) = self.connections.iter().position(|c| c.ep() == Some(ep)) else { return };
        if let Some(reason) = DownReason::of_event(event) {
            self.mark_broken(connection, reason);
            return;
        }
        if self.connections.get(connection).is_some_and(|c| c.state == State::Connecting)
            && !self.reply_agrees(adapter, connection, ep)
        {
            self.counters.connect_refused += 1;
            self.connection_down(adapter, connection, DownReason::BadReply, now);
            return;
        }
        let gid = adapter.ep_query(ep).ok().and_then(|parameters| parameters.remote_gid);
        let Some(state) = self.connections.get_mut(connection) else { return };
        state.state = State::Up;
        state.up_at = now.max(1);
        state.backoff = 0;
        state.maps_to_send = MAP_FRAGMENTS;
        state.map_changed = false;
        state.asked_post = NEVER_ASKED;
        state.foreign_gid = gid.unwrap_or(state.foreign_gid);
        let held = core::mem::take(&mut state.held_request);
        if held != 0 {
            self.refuse(adapter, CrHandle::from_bits(held));
        }
        self.refill(adapter, connection);
        self.transmit(adapter, connection);
    }

    /// Whether a peer's reply has a version that we speak, 3.1 or more, and the connection's addresses.
    fn reply_agrees<P: Platform>(&self, adapter: &Adapter<'_, P>, connection: usize, ep: EpHandle) -> bool {
        let Some(state) = self.connections.get(connection) else { return false };
        let is_v4 = address(state.foreign).is_ipv4();
        let data = adapter.ep_private_data(ep).ok().and_then(|data| ConnectData::decode(data, is_v4));
        data.is_some_and(|data| {
            data.is_acceptable() && key(data.source) == state.foreign && key(data.destination) == self.local
        })
    }

    fn drop_endpoint<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, connection: usize) {
        let Some(state) = self.connections.get_mut(connection) else { return };
        let Some(ep) = state.ep() else { return };
        state.set_ep(None);
        // Aborts whatever the endpoint was doing; after this the HCA touches none of its frames.
        let _ = adapter.ep_free(ep);
        self.requeue(adapter, connection);
        self.take_back(connection);
        if let Some(state) = self.connections.get_mut(connection) {
            state.broken = false;
            state.broken_by = Slot::empty(DownReason::NoResources);
            state.epoch = state.epoch.wrapping_add(1);
            state.state = State::Down;
            state.posts = 0;
            state.completed = 0;
            state.signalled = 0;
            state.maps_to_send = 0;
            state.map_post = u64::MAX;
            // A peer that restarted would take an old acknowledgement for one of its new messages.
            state.ack_value = 0;
            state.ack_wanted = false;
            state.ack_in_flight = false;
            state.highest_ack = 0;
            state.asked = 0;
            state.map_begun = false;
        }
    }

    /// The endpoint failed: the connection goes down at the end of this round. What DAT tells of it counts for more than that
    /// requests and receives were flushed.
    pub(crate) fn mark_broken(&mut self, connection: usize, reason: DownReason) {
        if let Some(state) = self.connections.get_mut(connection) {
            state.broken = state.ep().is_some();
            self.some_broken |= state.broken;
            if !reason.is_flush() {
                state.broken_by.set(reason);
            }
            state.broken_by.get_or_set(reason);
        }
    }

    /// Takes down what was marked, after a last look at how its requests ended and at what DAT tells of the connection: an
    /// operation that the peer denied is told as that, not as dropped with the connection.
    pub(crate) fn take_down_broken<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, now: u64) {
        while core::mem::take(&mut self.some_broken) {
            self.poll_requests(adapter, now);
            self.poll_connections(adapter, now);
            for connection in 0..self.connections.len() {
                if let Some(state) = self.connections.get(connection)
                    && state.broken
                {
                    let flushed = state.broken_by.get().unwrap_or(DownReason::Broken);
                    let reason = if flushed.is_flush() {
                        // Why is told by an event that may be still to come.
                        let ending = state.ep().and_then(|ep| adapter.ep_query(ep).ok()?.ending);
                        ending.and_then(DownReason::of_event).unwrap_or(flushed)
                    } else {
                        flushed
                    };
                    self.connection_down(adapter, connection, reason, now);
                }
            }
        }
    }

    /// Remembers and counts why a connection ended.
    fn note_down(&mut self, connection: usize, reason: DownReason) {
        if let Some(count) = self.counters.downs.get_mut(reason as usize) {
            *count += 1;
        }
        if let Some(state) = self.connections.get_mut(connection) {
            state.downs += 1;
            state.last_down.set(reason);
        }
    }

    /// The connection is lost: everything unacknowledged is kept for the next one, made after a random wait, or at once if the
    /// peer's request waited for what became of ours.
    pub(crate) fn connection_down<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        connection: usize,
        reason: DownReason,
        now: u64,
    ) {
        self.drop_endpoint(adapter, connection);
        self.counters.conn_reset += 1;
        self.note_down(connection, reason);
        let random = self.random();
        let Some(state) = self.connections.get_mut(connection) else { return };
        state.state = State::Down;
        state.retry_at = now + if state.backoff == 0 { 0 } else { random % state.backoff };
        state.backoff = (state.backoff * 2).clamp(BACKOFF_MIN, BACKOFF_MAX);
        let held = core::mem::take(&mut state.held_request);
        if held != 0 {
            self.accept(adapter, connection, CrHandle::from_bits(held), now);
        }
    }
}

/// The service level of a type of service.
pub(crate) const fn service_level(tos: u8) -> u8 {
    tos & 0xf
}

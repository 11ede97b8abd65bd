//! Connection management: one RC connection for each peer, made when there is something to send.

use dat_nostd::{
    Adapter, CompletionFlags, ConnectFlags, ConnectionEvent, CrHandle, DatResult, EpAttributes, EpHandle,
    Platform, Qos,
};

use crate::congestion::MAP_FRAGMENTS;
use crate::connection::{Connection, State};
use crate::frames::{Link, Use};
use crate::node::{Rds, is_unicast};
use crate::socket::{address, key};
use crate::wire::{ConnectData, REJECT_DATA, SERVICE_PORT, VERSION};

/// How long a connection attempt may take, microseconds.
const CONNECT_TIMEOUT_US: u32 = 5_000_000;
/// Time between attempts is drawn from a range that doubles from the first to the second, nanoseconds.
const BACKOFF_MIN: u64 = 1_000_000;
const BACKOFF_MAX: u64 = 1_000_000_000;
/// How long a connection stands before a new request of its peer replaces it, nanoseconds. Whoever asks all the time does not
/// get one torn down and made for each request; and a request that was overtaken by the answer to ours does no harm.
const STANDS: u64 = 10_000_000;

impl Rds<'_> {
    /// The connection to a peer; a new one if there is room, perhaps in the entry of one that never came up.
    pub(crate) fn connection_for(&mut self, foreign: u128) -> Option<usize> {
        if let Some(index) =
            self.connections.iter().position(|c| c.state != State::Free && c.foreign == foreign)
        {
            return Some(index);
        }
        let free = self.connections.iter().position(|c| c.state == State::Free);
        let index = match free {
            Some(index) => index,
            None => self.connections.iter().position(Connection::is_unused)?,
        };
        let connection = self.connections.get_mut(index)?;
        let ack_frame = match connection.ack_frame {
            Link::NONE => Link::to(self.frames.take(Use::Send)?),
            kept => kept,
        };
        *connection = Connection {
            state: State::Down,
            epoch: connection.epoch,
            foreign,
            ack_frame,
            next_tx: (u64::from(self.config.generation) << 24) + 1,
            ..Connection::EMPTY
        };
        self.forget_map(index);
        Some(index)
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
                self.transmit(adapter, connection);
                None
            }
            _ => None,
        }
    }

    fn begin_connecting<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, connection: usize, now: u64) {
        let Some(state) = self.connections.get(connection) else { return };
        let foreign = address(state.foreign);
        let (data, len) = self.connect_data(state.foreign).encode();
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
            Err(_) => self.connection_down(adapter, connection, now),
        }
    }

    fn connect_data(&self, foreign: u128) -> ConnectData {
        ConnectData { source: address(self.local), destination: address(foreign), version: VERSION, tos: 0 }
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
            ..EpAttributes::DEFAULT
        };
        let ep = adapter.ep_create(
            self.dat.ia,
            Some(self.dat.pz),
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
        if let Some(connection) = self.admit(adapter, cr, now) {
            let (bytes, len) = self.connect_data(self.foreign_of(connection)).encode();
            let accepted = self
                .new_endpoint(adapter, connection)
                .and_then(|ep| adapter.cr_accept(cr, Some(ep), &bytes[..len]));
            match accepted {
                Ok(()) => {
                    self.set_state(connection, State::Accepting);
                    return;
                }
                Err(_) => self.connection_down(adapter, connection, now),
            }
        }
        // If the request is gone by now there is nobody left to answer.
        let _ = adapter.cr_reject_with(cr, &REJECT_DATA);
    }

    fn foreign_of(&self, connection: usize) -> u128 {
        self.connections.get(connection).map_or(0, |state| state.foreign)
    }

    /// The connection that a request is for, ready to be accepted; None to refuse it.
    fn admit<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, cr: CrHandle, now: u64) -> Option<usize> {
        let request = adapter.cr_query(cr).ok()?;
        let data = ConnectData::decode(request.private_data, request.remote_address.is_ipv4());
        let remote = key(request.remote_address);
        let is_peer = remote != self.local && is_unicast(request.remote_address);
        let acceptable = data.is_some_and(|data| {
            // There is one connection to each peer, and it has no type of service: a second one with another would take its
            // place again and again.
            let agrees = key(data.source) == remote && key(data.destination) == self.local;
            data.is_acceptable() && data.tos == 0 && agrees && is_peer
        });
        let connection = if acceptable { self.connection_for(remote) } else { None };
        let Some((connection, state)) =
            connection.and_then(|index| Some((index, self.connections.get(index)?)))
        else {
            self.counters.connect_refused += 1;
            return None;
        };
        match state.state {
            State::Free => return None,
            State::Down => {}
            // Both sides ask at once: the attempt of the lower address stands.
            State::Connecting if self.local < remote => {
                self.counters.connect_raced += 1;
                return None;
            }
            State::Connecting => {
                self.counters.connect_raced += 1;
                self.drop_endpoint(adapter, connection);
            }
            State::Up if now < state.up_at.saturating_add(STANDS) => {
                self.counters.connect_refused += 1;
                return None;
            }
            // The peer has begun anew: what it knew of the old connection is gone.
            State::Accepting | State::Up => self.connection_down(adapter, connection, now),
        }
        Some(connection)
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
        if event != ConnectionEvent::Established {
            self.mark_broken(connection);
            return;
        }
        if self.connections.get(connection).is_some_and(|c| c.state == State::Connecting) {
            let is_v4 = address(self.foreign_of(connection)).is_ipv4();
            let agreed = adapter
                .ep_private_data(ep)
                .ok()
                .and_then(|data| ConnectData::decode(data, is_v4))
                .is_some_and(|data| data.is_acceptable());
            if !agreed {
                self.counters.connect_refused += 1;
                self.connection_down(adapter, connection, now);
                return;
            }
        }
        if let Some(state) = self.connections.get_mut(connection) {
            state.state = State::Up;
            state.up_at = now.max(1);
            state.backoff = 0;
            state.maps_to_send = MAP_FRAGMENTS;
            state.map_changed = false;
        }
        self.refill(adapter, connection);
        self.transmit(adapter, connection);
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
            state.unasked_messages = 0;
            state.unasked_frames = 0;
            state.map_begun = false;
        }
    }

    /// The endpoint failed: the connection goes down at the end of this round.
    pub(crate) fn mark_broken(&mut self, connection: usize) {
        if let Some(state) = self.connections.get_mut(connection) {
            state.broken = state.ep().is_some();
            self.some_broken |= state.broken;
        }
    }

    /// Takes down what was marked, after a last look at how its requests ended: an operation that the peer denied is told as
    /// that, not as dropped with the connection.
    pub(crate) fn take_down_broken<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, now: u64) {
        while core::mem::take(&mut self.some_broken) {
            self.poll_requests(adapter, now);
            for connection in 0..self.connections.len() {
                if self.connections.get(connection).is_some_and(|state| state.broken) {
                    self.connection_down(adapter, connection, now);
                }
            }
        }
    }

    /// The connection is lost: everything unacknowledged is kept for the next one, made after a random wait.
    pub(crate) fn connection_down<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        connection: usize,
        now: u64,
    ) {
        self.drop_endpoint(adapter, connection);
        self.counters.conn_reset += 1;
        let random = self.random();
        if let Some(state) = self.connections.get_mut(connection) {
            state.state = State::Down;
            state.retry_at = now + if state.backoff == 0 { 0 } else { random % state.backoff };
            state.backoff = (state.backoff * 2).clamp(BACKOFF_MIN, BACKOFF_MAX);
        }
    }
}

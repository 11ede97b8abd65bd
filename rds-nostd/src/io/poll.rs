//! The event loop.

use dat_nostd::{
    Adapter, DtoCompletion, DtoStatus, EpHandle, EvdHandle, Event, EventData, Instant, Platform, ReceiveDto,
    Wake,
};

use crate::connection::CookieKind;
use crate::ids::ConnectionId;
use crate::io::{Node, Rds};
use crate::protocol::{BURST, Due};
use crate::rdma::RdmaStatus;
use crate::reason::DownReason;

/// Maximum of events taken from one dispatcher per [`Rds::poll`], so that a busy peer does not
/// block the caller's loop.
pub(crate) const EVENTS_PER_POLL: usize = 256;

impl Rds<'_> {
    /// Runs everything that is due: arrivals, completions, connections, acknowledgements. Returns
    /// when to call again at the latest. Returns [`Wake::Now`] whenever something happened, because
    /// the adapter may have new deadlines: poll both again before idling. The result does not cover
    /// later calls: poll once more after [`sendmsg`](Self::sendmsg) and [`close`](Self::close).
    pub fn poll<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, now: Instant) -> Wake {
        self.node(adapter).run(now)
    }
}

impl<P: Platform> Node<'_, '_, '_, P> {
    /// See [`Rds::poll`].
    fn run(&mut self, now: Instant) -> Wake {
        self.protocol.now = now;
        // Requests first: most messages complete before their acknowledgement, and are then
        // released in one pass.
        let mut moved = self.poll_requests();
        moved |= self.poll_receives(now);
        if !moved {
            // Poll the adapter while idle, for callers that poll it rarely.
            let _ = self.adapter.poll(now);
        }
        if self.protocol.some_broken {
            self.take_down_broken(now);
        }
        while self.adapter.evd_take(self.objects.async_evd).is_some() {
            moved = true;
        }
        self.protocol.expire(now);
        self.serve_due(now);
        // Last, because each of these polls the adapter, which may queue an event here.
        moved |= self.poll_demands(now);
        moved |= self.poll_connections(now);
        if self.protocol.some_broken {
            self.take_down_broken(now);
        }
        let held = if self.held.is_empty() { Wake::Idle } else { self.look_up_held(now) };
        let wake = self.protocol.poll_at().earliest(held);
        if moved || core::mem::take(&mut self.protocol.connections_changed) { Wake::Now } else { wake }
    }

    /// Does the due work of a connection.
    pub(crate) fn serve(&mut self, id: ConnectionId, now: Instant) {
        match self.protocol.due(id, now) {
            Due::Connect => self.begin_connecting(id, now),
            Due::Serve => {
                self.refill(id);
                if self.protocol.connection(id).may_send() {
                    self.flush(id);
                }
            }
            Due::Break(reason) => self.protocol.mark_broken(id, reason),
            Due::Nothing => {}
        }
    }

    /// Takes events of an EVD, up to [`EVENTS_PER_POLL`]. Returns whether there was one.
    fn take_events(&mut self, evd: EvdHandle, mut handle: impl FnMut(&mut Self, EventData)) -> bool {
        for count in 0..EVENTS_PER_POLL {
            let Some(event) = self.adapter.evd_take(evd) else { return count > 0 };
            handle(self, event.data);
        }
        true
    }

    /// Takes connection requests. Returns whether there was one.
    fn poll_demands(&mut self, now: Instant) -> bool {
        self.take_events(self.objects.demand_evd, |node, event| {
            if let EventData::ConnectionRequest { cr, .. } = event {
                node.connection_requested(cr, now);
            }
        })
    }

    pub(crate) fn poll_connections(&mut self, now: Instant) -> bool {
        self.take_events(self.objects.connect_evd, |node, event| {
            if let EventData::Connection { event, ep, .. } = event {
                node.connection_changed(event, ep, now);
            }
        })
    }

    fn poll_receives(&mut self, now: Instant) -> bool {
        let mut count = 0;
        while count < EVENTS_PER_POLL {
            let (evd, protocol) = (self.objects.burst_evd, &mut *self.protocol);
            let (taken, other) =
                self.adapter.evd_take_receives(evd, BURST, |first, rest| protocol.arrived(first, rest, now));
            let event = if taken == 0 { self.adapter.evd_take(self.objects.arrivals_evd) } else { other };
            match event {
                Some(event) => self.receive_event(&event, now),
                None if taken == 0 => break,
                None => {}
            }
            count += taken.max(1);
            if self.protocol.regions.has_spent() {
                self.revoke_spent();
            }
            self.release_ended();
            self.serve_due(now);
        }
        count > 0
    }

    /// Takes all completed receives. A peer that closes properly acknowledges first, so a
    /// connection goes down only after its acknowledgements were taken.
    pub(crate) fn take_arrivals(&mut self, now: Instant) {
        let most = usize::from(self.protocol.limits.receive_depth) * self.protocol.connections.len();
        for _ in 0..=most / EVENTS_PER_POLL {
            if !self.poll_receives(now) {
                break;
            }
        }
    }

    /// Handles an event of receives outside of a burst: an error, or an arrival whose latency is
    /// measured.
    #[cold]
    #[inline(never)]
    fn receive_event(&mut self, event: &Event, now: Instant) {
        let EventData::Dto(dto) = &event.data else { return };
        if dto.status == DtoStatus::Success {
            let length = u32::try_from(dto.transferred_length).unwrap_or(u32::MAX);
            self.arrived_apart(ReceiveDto { user_cookie: dto.user_cookie, length }, now);
        } else if let Some(cookie) = self.protocol.connections.current(dto.user_cookie) {
            // The cause may still be in the other queue.
            self.protocol.mark_broken(cookie.connection, DownReason::ReceiveFailed);
        }
    }

    /// Takes completions of requests. A connection with a failed request goes down later, so that
    /// its other completions are taken, too.
    pub(crate) fn poll_requests(&mut self) -> bool {
        self.take_events(self.objects.request_evd, |node, event| match event {
            EventData::Dto(done) => node.request_done(&done),
            EventData::RmrBind(done) => node.bind_done(&done),
            _ => {}
        })
    }

    #[inline]
    fn request_done(&mut self, done: &DtoCompletion) {
        let cookie = self.protocol.connections.current(done.user_cookie);
        let Some(cookie) = cookie.filter(|cookie| cookie.kind != CookieKind::Receive) else { return };
        let id = cookie.connection;
        match done.status {
            DtoStatus::Success => {
                self.protocol.sent(cookie);
                self.release_ended();
                if self.protocol.connection(id).may_send() {
                    self.flush(id);
                }
                return;
            }
            DtoStatus::ErrFlushed => {}
            DtoStatus::ErrRemoteAccess => self.protocol.failed(cookie, RdmaStatus::RemoteError),
            _ => self.protocol.failed(cookie, RdmaStatus::OtherError),
        }
        // Another completion reports the cause of a flush.
        self.protocol.mark_broken(id, DownReason::of_request(done.status));
    }

    /// Takes down the failed connections. Processes earlier completions and DAT's events first, so
    /// that a denied operation reports that, and not a dropped connection.
    pub(crate) fn take_down_broken(&mut self, now: Instant) {
        while core::mem::take(&mut self.protocol.some_broken) {
            self.poll_requests();
            self.poll_connections(now);
            self.take_arrivals(now);
            for id in self.protocol.connections.ids() {
                let connection = self.protocol.connection(id);
                let Some(flushed) = connection.reconnect.broken_by.get() else { continue };
                let ep = EpHandle::from_bits(connection.objects.ep);
                // The event with the cause of a flush may not have arrived yet.
                let ending = self.adapter.ep_query(ep).ok().and_then(|parameters| parameters.ending);
                let cause = ending.and_then(DownReason::of_event).filter(|_| flushed.is_flush());
                self.connection_down(id, cause.unwrap_or(flushed), now);
            }
        }
    }
}

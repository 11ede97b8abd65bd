//! Connection management: one RC connection for each peer and type of service, made when there is something to send.

use core::net::{IpAddr, SocketAddr};

use dat_nostd::{
    Adapter, CompletionFlags, ConnectFlags, ConnectionEvent, CrHandle, DatResult, EpAttributes, EpHandle,
    Instant, Platform, Qos, Wake,
};

use crate::connection::State;
use crate::ids::{ConnectionId, SocketHandle};
use crate::io::Rds;
use crate::io::held::APART;
use crate::io::identity::{Identity, identify};
use crate::io::poll::EVENTS_PER_POLL;
use crate::protocol::{Admission, Request};
use crate::rdma::GATHER;
use crate::reason::DownReason;
use crate::socket::{address, is_unicast, key};
use crate::wire::{ConnectData, REJECT_DATA, VERSION, service_port};

/// How long a connection attempt may take, microseconds.
const CONNECT_TIMEOUT_US: u32 = 5_000_000;

impl Rds<'_> {
    pub(crate) fn begin_connecting<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        id: ConnectionId,
        now: Instant,
    ) {
        let foreign = address(self.protocol.connection(id).foreign);
        let (data, len) = self.connect_data(id, VERSION).encode();
        let attempt = self.new_endpoint(adapter, id).and_then(|ep| {
            adapter.ep_connect(
                ep,
                &foreign,
                u64::from(service_port(foreign)),
                CONNECT_TIMEOUT_US,
                &data[..len],
                Qos::BestEffort,
                ConnectFlags::Default,
            )
        });
        self.protocol.stirred = true;
        match attempt {
            Ok(()) => self.protocol.connections.at_mut(id).state = State::Connecting,
            Err(_) => self.connection_down(adapter, id, DownReason::NoResources, now),
        }
    }

    fn connect_data(&self, id: ConnectionId, version: (u8, u8)) -> ConnectData {
        let connection = self.protocol.connection(id);
        ConnectData {
            source: address(self.protocol.local),
            destination: address(connection.foreign),
            tos: connection.tos,
            expects: connection.rx.next_sequence,
            longest: self.protocol.limits.longest_received as u32,
            ..ConnectData::proposal(version)
        }
    }

    /// An endpoint with its receives posted: the peer may send as soon as it is connected.
    fn new_endpoint<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        id: ConnectionId,
    ) -> DatResult<EpHandle> {
        let zone = self.zone_of(adapter, id)?;
        let tos = self.protocol.connection(id).tos;
        let limits = &self.protocol.limits;
        let attributes = EpAttributes {
            max_recv_dtos: u32::from(limits.receive_depth),
            max_request_dtos: u32::from(limits.request_depth),
            max_recv_iov: 1,
            max_request_iov: GATHER as u32,
            // Every fragment wakes, not only a message's last, which the peer marks: it may be waiting for frames before that.
            recv_completion_flags: CompletionFlags::EVD_THRESHOLD,
            retry_count: self.protocol.config.retry_count.min(7),
            // Unlimited retries of our sends, because a peer may post its first receives after the connection is up.
            rnr_retry: 7,
            rnr_timer: 10,
            // Without a type of service the subnet chooses the level.
            sl: (tos != 0).then_some(service_level(tos)),
            traffic_class: tos,
            ..EpAttributes::DEFAULT
        };
        let ep = adapter.ep_create(
            self.objects.ia,
            Some(zone),
            Some(self.objects.receive_evd),
            Some(self.objects.request_evd),
            Some(self.objects.connect_evd),
            Some(&attributes),
        )?;
        self.protocol.connections.at_mut(id).objects.ep = ep.bits();
        self.refill(adapter, id);
        Ok(ep)
    }

    /// A peer asks for a connection.
    pub(crate) fn connection_requested<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        cr: CrHandle,
        now: Instant,
    ) {
        let Some((request, source)) = self.requester(adapter, cr) else {
            self.refuse_request(adapter, cr);
            return;
        };
        // First what is known without asking anybody: whether the port has its share already.
        if self.protocol.has_its_share(&request, now) {
            return self.refuse_request(adapter, cr);
        }
        // Whoever asks in another's name does so from another port than that one's.
        let may_wait = self.held.has_place_for(request.gid);
        match identify(adapter, (source, request.gid), may_wait) {
            Identity::Right => {}
            Identity::Wrong => return self.refuse_request(adapter, cr),
            Identity::Unknown => return self.hold(adapter, cr, request.gid, now),
        }
        // A peer that has begun anew may have acknowledged before.
        self.take_arrivals(adapter, now);
        self.make_room(adapter, &request, now);
        match self.protocol.admit(&request, now) {
            Admission::Accept(id, None) => self.accept(adapter, id, cr, now),
            Admission::Accept(id, Some(DownReason::Raced)) => {
                // Our own attempt is given up for it, which is no failure.
                self.protocol.note_down(id, DownReason::Raced);
                self.drop_endpoint(adapter, id);
                self.accept(adapter, id, cr, now);
            }
            Admission::Accept(id, Some(reason)) => {
                self.connection_down(adapter, id, reason, now);
                self.accept(adapter, id, cr, now);
            }
            Admission::Hold(id) => {
                let held = &mut self.protocol.connections.at_mut(id).reconnect.held_request;
                let before = core::mem::replace(held, cr.bits());
                if before != 0 {
                    refuse(adapter, CrHandle::from_bits(before));
                }
            }
            Admission::Refuse => self.refuse_request(adapter, cr),
        }
    }

    /// A request waits until its sender's address is known.
    fn hold<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, cr: CrHandle, gid: [u8; 16], now: Instant) {
        if !self.held.add(cr, gid, now) {
            self.refuse_request(adapter, cr);
        }
    }

    /// Looks whether the addresses of those that wait are known now. Answers when to look again.
    #[inline]
    pub(crate) fn look_up_held<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, now: Instant) -> Wake {
        if self.held.is_empty() { Wake::Idle } else { self.look_up(adapter, now) }
    }

    #[cold]
    fn look_up<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, now: Instant) -> Wake {
        for place in self.held.places() {
            let Some((cr, until)) = self.held.get(place) else { continue };
            let asked = adapter.cr_query(cr).map(|query| (query.remote_address, query.remote_gid));
            let identity = asked.map(|(address, gid)| identify(adapter, (address, gid), true));
            if identity == Ok(Identity::Unknown) && now < until {
                continue;
            }
            self.held.remove(place);
            self.protocol.stirred = true;
            match identity {
                Ok(Identity::Right) => self.connection_requested(adapter, cr, now),
                Ok(_) => self.refuse_request(adapter, cr),
                // The request is gone, and whoever sent it with it.
                Err(_) => refuse(adapter, cr),
            }
        }
        if self.held.is_empty() { Wake::Idle } else { Wake::At(now + APART) }
    }

    /// If no entry is left for a new peer, a connection that has been idle for a while goes.
    fn make_room<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        request: &Request,
        now: Instant,
    ) -> bool {
        if !self.protocol.is_full_for(request.remote, request.tos) {
            return false;
        }
        let Some(id) = self.protocol.dispensable(now) else { return false };
        self.connection_down(adapter, id, DownReason::Idle, now);
        true
    }

    /// The same for a peer that a socket sends to. True if there is an entry now where there was none.
    #[cold]
    pub(crate) fn make_room_to<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        from: SocketHandle,
        to: &SocketAddr,
    ) -> bool {
        let (Ok(true), Ok(socket)) = (self.protocol.reachable(from, *to), self.protocol.sockets.open(from))
        else {
            return false;
        };
        // Its port does not matter: nobody asks.
        let request = Request { remote: key(to.ip()), tos: socket.tos, gid: [0; 16] };
        let now = adapter.now();
        self.make_room(adapter, &request, now)
    }

    fn refuse_request<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, cr: CrHandle) {
        self.protocol.counters.connect_refused += 1;
        refuse(adapter, cr);
    }

    /// Accepts a request for a connection that has no endpoint.
    fn accept<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        id: ConnectionId,
        cr: CrHandle,
        now: Instant,
    ) {
        let Ok(request) = adapter.cr_query(cr) else { return };
        let gid = request.remote_gid;
        let data = ConnectData::decode(request.private_data, request.remote_address.is_ipv4());
        let version = data.and_then(|data| data.select_version()).unwrap_or(VERSION);
        self.protocol.accepting(id, gid, now);
        if let Some(data) = data {
            self.peer_says(id, &data);
        }
        let (bytes, len) = self.connect_data(id, version).encode();
        let accepted =
            self.new_endpoint(adapter, id).and_then(|ep| adapter.cr_accept(cr, Some(ep), &bytes[..len]));
        match accepted {
            Ok(()) => self.protocol.connections.at_mut(id).state = State::Accepting,
            Err(_) => {
                self.connection_down(adapter, id, DownReason::NoResources, now);
                refuse(adapter, cr);
            }
        }
    }

    /// Who asks, and for what type of service. None if the request is not one of a peer that speaks our protocol, or if what it says
    /// of itself does not agree.
    fn requester<P: Platform>(
        &self,
        adapter: &mut Adapter<'_, P>,
        cr: CrHandle,
    ) -> Option<(Request, IpAddr)> {
        let request = adapter.cr_query(cr).ok()?;
        let (source, gid) = (request.remote_address, request.remote_gid);
        let remote = key(request.remote_address);
        let data = ConnectData::decode(request.private_data, request.remote_address.is_ipv4())?;
        let agrees = key(data.source) == remote && key(data.destination) == self.protocol.local;
        let is_peer = remote != self.protocol.local && is_unicast(request.remote_address);
        let speaks = data.select_version().is_some();
        (speaks && agrees && is_peer).then_some((Request { remote, tos: data.tos, gid }, source))
    }

    /// The state of a connection changed.
    pub(crate) fn connection_changed<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        event: ConnectionEvent,
        ep: EpHandle,
        now: Instant,
    ) {
        let found = self.protocol.connections.iter().find(|(_, c)| c.objects.ep == ep.bits());
        let Some((id, connection)) = found else { return };
        if let Some(reason) = DownReason::of_event(event) {
            self.protocol.mark_broken(id, reason);
            return;
        }
        if connection.state == State::Failed {
            return;
        }
        if connection.state == State::Connecting {
            let Some(data) = self.reply(adapter, id, ep) else {
                self.protocol.counters.connect_refused += 1;
                self.connection_down(adapter, id, DownReason::BadReply, now);
                return;
            };
            self.peer_says(id, &data);
        }
        let gid = adapter.ep_query(ep).ok().and_then(|parameters| parameters.remote_gid);
        self.protocol.came_up(id, gid, now);
        let held = core::mem::take(&mut self.protocol.connections.at_mut(id).reconnect.held_request);
        if held != 0 {
            refuse(adapter, CrHandle::from_bits(held));
        }
        self.refill(adapter, id);
        self.bind_again(adapter, id);
        self.flush(adapter, id);
    }

    /// Applies the request or the reply of a connection's peer.
    fn peer_says(&mut self, id: ConnectionId, data: &ConnectData) {
        self.protocol.peer_expects(id, data.expects);
        self.protocol.connections.at_mut(id).tx.set_longest(data.longest);
    }

    /// A peer's reply, if it has a version that we speak, 3.1 or more, and the connection's addresses.
    fn reply<P: Platform>(
        &self,
        adapter: &Adapter<'_, P>,
        id: ConnectionId,
        ep: EpHandle,
    ) -> Option<ConnectData> {
        let foreign = self.protocol.connection(id).foreign;
        let is_v4 = address(foreign).is_ipv4();
        let data = adapter.ep_private_data(ep).ok().and_then(|data| ConnectData::decode(data, is_v4))?;
        let agrees = key(data.source) == foreign && key(data.destination) == self.protocol.local;
        (data.is_acceptable() && agrees).then_some(data)
    }

    fn drop_endpoint<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, id: ConnectionId) {
        let ep = self.protocol.connection(id).objects.ep;
        if ep != 0 {
            // What ended before counts: an operation that the peer denied is told as that, not as dropped with the connection.
            self.protocol.connections.at_mut(id).fail();
            let most = u32::from(self.protocol.limits.request_depth) * self.protocol.connections.len() as u32;
            for _ in 0..=most / EVENTS_PER_POLL as u32 {
                if !self.poll_requests(adapter) {
                    break;
                }
            }
            // Aborts whatever the endpoint was doing; after this an HCA that works touches none of its frames.
            let _ = adapter.ep_free(EpHandle::from_bits(ep));
            self.protocol.endpoint_gone(id, adapter.is_dead());
            self.settle_windows(adapter, id);
            self.release_ended(adapter);
            // Its binds that were on their way are in nobody's way any more.
            self.bind_again(adapter, id);
        }
    }

    /// The connection is lost: everything unacknowledged is kept for the next one, made after a random wait, or at once if the
    /// peer's request waited for what became of ours.
    pub(crate) fn connection_down<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        id: ConnectionId,
        reason: DownReason,
        now: Instant,
    ) {
        self.protocol.turn_ends(id, reason);
        self.drop_endpoint(adapter, id);
        self.protocol.went_down(id, reason, now);
        let held = core::mem::take(&mut self.protocol.connections.at_mut(id).reconnect.held_request);
        if held != 0 {
            self.accept(adapter, id, CrHandle::from_bits(held), now);
        }
    }
}

fn refuse<P: Platform>(adapter: &mut Adapter<'_, P>, cr: CrHandle) {
    // If the request is gone by now there is nobody left to answer.
    let _ = adapter.cr_reject_with(cr, &REJECT_DATA);
}

/// The service level of a type of service.
pub(crate) const fn service_level(tos: u8) -> u8 {
    tos & 0xf
}

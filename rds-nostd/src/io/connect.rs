//! Connection management: one RC connection per peer and type of service, established on the first
//! send.

use core::net::SocketAddr;

use dat_nostd::{
    Adapter, CompletionFlags, ConnectFlags, ConnectionEvent, CrHandle, DatResult, EpAttributes, EpHandle,
    Instant, Platform, Qos, Wake,
};

use crate::connection::State;
use crate::ids::{ConnectionId, SocketHandle};
use crate::io::Node;
use crate::io::held::APART;
use crate::io::identity::{Identity, identify};
use crate::io::poll::EVENTS_PER_POLL;
use crate::protocol::{Admission, Request};
use crate::rdma::GATHER;
use crate::reason::DownReason;
use crate::socket::{address, is_unicast, key};
use crate::wire::{ConnectData, REJECT_DATA, VERSION, service_port};

/// Limit of a connection attempt, in microseconds.
const CONNECT_TIMEOUT_US: u32 = 5_000_000;

impl<P: Platform> Node<'_, '_, '_, P> {
    pub(crate) fn begin_connecting(&mut self, id: ConnectionId, now: Instant) {
        let foreign = address(self.protocol.connection(id).peer.foreign);
        let (data, len) = self.connect_data(id, VERSION).encode();
        let attempt = self.new_endpoint(id).and_then(|ep| {
            self.adapter.ep_connect(
                ep,
                &foreign,
                u64::from(service_port(foreign)),
                CONNECT_TIMEOUT_US,
                &data[..len],
                Qos::BestEffort,
                ConnectFlags::Default,
            )
        });
        self.protocol.connections_changed = true;
        match attempt {
            Ok(()) => self.protocol.connections.at_mut(id).state = State::Connecting,
            Err(_) => self.connection_down(id, DownReason::NoResources, now),
        }
    }

    fn connect_data(&self, id: ConnectionId, version: (u8, u8)) -> ConnectData {
        let connection = self.protocol.connection(id);
        ConnectData {
            source: address(self.protocol.local),
            destination: address(connection.peer.foreign),
            tos: connection.peer.tos,
            expects: connection.peer.next_rx,
            longest: self.protocol.limits.longest_received as u32,
            ..ConnectData::proposal(version)
        }
    }

    /// Creates an endpoint and posts its receives, because the peer may send as soon as it is
    /// connected.
    fn new_endpoint(&mut self, id: ConnectionId) -> DatResult<EpHandle> {
        let zone = self.zone_of(id)?;
        let tos = self.protocol.connection(id).peer.tos;
        let limits = &self.protocol.limits;
        let attributes = EpAttributes {
            max_recv_dtos: u32::from(limits.receive_depth),
            max_request_dtos: u32::from(limits.request_depth),
            max_recv_iov: 1,
            max_request_iov: GATHER as u32,
            // Wake at every fragment, not only at a message's last, which the peer marks: the peer
            // may be waiting for frames before that.
            recv_completion_flags: CompletionFlags::EVD_THRESHOLD,
            retry_count: self.protocol.config.retry_count.min(7),
            // Unlimited RNR retries, because a peer may post its first receives after the
            // connection is up.
            rnr_retry: 7,
            rnr_timer: 10,
            // Without a type of service the subnet selects the level.
            sl: (tos != 0).then_some(service_level(tos)),
            traffic_class: tos,
            ..EpAttributes::DEFAULT
        };
        let ep = self.adapter.ep_create(
            self.objects.ia,
            Some(zone),
            Some(self.objects.receive_evd),
            Some(self.objects.request_evd),
            Some(self.objects.connect_evd),
            Some(&attributes),
        )?;
        self.protocol.connections.at_mut(id).objects.ep = ep.bits();
        self.refill(id);
        Ok(ep)
    }

    /// Handles a peer's connection request.
    pub(crate) fn connection_requested(&mut self, cr: CrHandle, now: Instant) {
        let Some(request) = self.requester(cr) else { return self.refuse_request(cr) };
        // Check the port's share first, because that needs no ARP.
        if self.protocol.has_its_share(&request, now) {
            return self.refuse_request(cr);
        }
        // A forged address belongs to another port than the request's.
        let may_wait = self.held.has_place_for(request.gid);
        match identify(self.adapter, (address(request.remote), request.gid), may_wait) {
            Identity::Right => {}
            Identity::Wrong => return self.refuse_request(cr),
            // The request waits until ARP resolves the address.
            Identity::Unknown if self.held.add(cr, request.gid, now) => return,
            Identity::Unknown => return self.refuse_request(cr),
        }
        // A restarted peer may have sent acknowledgements on the old connection.
        self.take_arrivals(now);
        self.make_room(&request, now);
        match self.protocol.admit(&request, now) {
            Admission::Accept(id, reason) => {
                if reason == Some(DownReason::Raced) {
                    // Abort our own attempt in its favour, which is no failure.
                    self.protocol.note_down(id, DownReason::Raced);
                    self.drop_endpoint(id);
                } else if let Some(reason) = reason {
                    self.connection_down(id, reason, now);
                }
                self.accept(id, cr, now);
            }
            Admission::Hold(id) => {
                let held = &mut self.protocol.connections.at_mut(id).reconnect.held_request;
                let before = core::mem::replace(held, cr.bits());
                if before != 0 {
                    refuse(self.adapter, CrHandle::from_bits(before));
                }
            }
            Admission::Refuse => self.refuse_request(cr),
        }
    }

    /// Retries the identification of held requests. Returns when to retry again.
    #[cold]
    pub(crate) fn look_up_held(&mut self, now: Instant) -> Wake {
        for place in self.held.places() {
            let Some((cr, until)) = self.held.get(place) else { continue };
            let asked = self.adapter.cr_query(cr).map(|query| (query.remote_address, query.remote_gid));
            let identity = asked.map(|(address, gid)| identify(self.adapter, (address, gid), true));
            if identity == Ok(Identity::Unknown) && now < until {
                continue;
            }
            self.held.remove(place);
            self.protocol.connections_changed = true;
            match identity {
                Ok(Identity::Right) => self.connection_requested(cr, now),
                Ok(_) => self.refuse_request(cr),
                // The request was withdrawn.
                Err(_) => refuse(self.adapter, cr),
            }
        }
        if self.held.is_empty() { Wake::Idle } else { Wake::At(now + APART) }
    }

    /// Evicts an idle connection if no entry is left for a new peer.
    fn make_room(&mut self, request: &Request, now: Instant) -> bool {
        if !self.protocol.is_full_for(request.remote, request.tos) {
            return false;
        }
        let Some(id) = self.protocol.find_evictable(now) else { return false };
        self.connection_down(id, DownReason::Idle, now);
        true
    }

    /// Evicts an idle connection for a peer that a socket sends to. Returns true if an entry is
    /// free now.
    #[cold]
    pub(crate) fn make_room_to(&mut self, from: SocketHandle, to: &SocketAddr) -> bool {
        let (Ok(true), Ok(socket)) = (self.protocol.reachable(from, *to), self.protocol.sockets.open(from))
        else {
            return false;
        };
        // The GID is irrelevant without a request.
        let request = Request { remote: key(to.ip()), tos: socket.tos, gid: [0; 16] };
        let now = self.adapter.now();
        self.make_room(&request, now)
    }

    fn refuse_request(&mut self, cr: CrHandle) {
        self.protocol.counters.connect_refused += 1;
        refuse(self.adapter, cr);
    }

    /// Accepts a request for a connection that has no endpoint.
    fn accept(&mut self, id: ConnectionId, cr: CrHandle, now: Instant) {
        let Ok(request) = self.adapter.cr_query(cr) else { return };
        let gid = request.remote_gid;
        let data = ConnectData::decode(request.private_data, request.remote_address.is_ipv4());
        let version = data.and_then(|data| data.select_version()).unwrap_or(VERSION);
        self.protocol.accepting(id, gid, now);
        if let Some(data) = data {
            self.peer_says(id, &data);
        }
        let (bytes, len) = self.connect_data(id, version).encode();
        let accepted =
            self.new_endpoint(id).and_then(|ep| self.adapter.cr_accept(cr, Some(ep), &bytes[..len]));
        match accepted {
            Ok(()) => self.protocol.connections.at_mut(id).state = State::Accepting,
            Err(_) => {
                self.connection_down(id, DownReason::NoResources, now);
                refuse(self.adapter, cr);
            }
        }
    }

    /// Returns the sender of a request and its type of service. Returns `None` if it does not speak
    /// our protocol or its addresses disagree.
    fn requester(&self, cr: CrHandle) -> Option<Request> {
        let request = self.adapter.cr_query(cr).ok()?;
        let (remote, gid) = (key(request.remote_address), request.remote_gid);
        let data = ConnectData::decode(request.private_data, request.remote_address.is_ipv4())?;
        let agrees = key(data.source) == remote && key(data.destination) == self.protocol.local;
        let is_peer = remote != self.protocol.local && is_unicast(request.remote_address);
        let speaks = data.select_version().is_some();
        (speaks && agrees && is_peer).then_some(Request { remote, tos: data.tos, gid })
    }

    /// Handles a connection event.
    pub(crate) fn connection_changed(&mut self, event: ConnectionEvent, ep: EpHandle, now: Instant) {
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
            let Some(data) = self.reply(id, ep) else {
                self.protocol.counters.connect_refused += 1;
                self.connection_down(id, DownReason::BadReply, now);
                return;
            };
            self.peer_says(id, &data);
        }
        let gid = self.adapter.ep_query(ep).ok().and_then(|parameters| parameters.remote_gid);
        self.protocol.came_up(id, gid, now);
        let held = core::mem::take(&mut self.protocol.connections.at_mut(id).reconnect.held_request);
        if held != 0 {
            refuse(self.adapter, CrHandle::from_bits(held));
        }
        self.refill(id);
        self.bind_again(id);
        self.flush(id);
    }

    /// Applies the private data of a connection's peer.
    fn peer_says(&mut self, id: ConnectionId, data: &ConnectData) {
        self.protocol.peer_expects(id, data.expects);
        self.protocol.connections.at_mut(id).tx.set_longest(data.longest);
    }

    /// Returns a peer's reply if it has a supported version and the connection's addresses.
    fn reply(&self, id: ConnectionId, ep: EpHandle) -> Option<ConnectData> {
        let foreign = self.protocol.connection(id).peer.foreign;
        let is_v4 = address(foreign).is_ipv4();
        let data = self.adapter.ep_private_data(ep).ok().and_then(|data| ConnectData::decode(data, is_v4))?;
        let agrees = key(data.source) == foreign && key(data.destination) == self.protocol.local;
        (data.is_acceptable() && agrees).then_some(data)
    }

    fn drop_endpoint(&mut self, id: ConnectionId) {
        let ep = self.protocol.connection(id).objects.ep;
        if ep != 0 {
            // Process earlier completions first: an operation that the peer denied must report
            // that, not a dropped connection.
            self.protocol.connections.at_mut(id).fail();
            let most = u32::from(self.protocol.limits.request_depth) * self.protocol.connections.len() as u32;
            for _ in 0..=most / EVENTS_PER_POLL as u32 {
                if !self.poll_requests() {
                    break;
                }
            }
            // Aborts all work of the endpoint. Afterwards a working HCA accesses none of its
            // frames.
            let _ = self.adapter.ep_free(EpHandle::from_bits(ep));
            self.protocol.endpoint_gone(id, self.adapter.is_dead());
            self.settle_windows(id);
            self.release_ended();
            // Its binds in flight no longer block others.
            self.bind_again(id);
        }
    }

    /// Handles the loss of a connection. Retains unacknowledged messages for the next one, which is
    /// established after a random backoff, or immediately if a request of the peer was held.
    pub(crate) fn connection_down(&mut self, id: ConnectionId, reason: DownReason, now: Instant) {
        self.protocol.turn_ends(id, reason);
        self.drop_endpoint(id);
        self.protocol.went_down(id, reason, now);
        let held = core::mem::take(&mut self.protocol.connections.at_mut(id).reconnect.held_request);
        if held != 0 {
            self.accept(id, CrHandle::from_bits(held), now);
        }
    }
}

fn refuse<P: Platform>(adapter: &mut Adapter<'_, P>, cr: CrHandle) {
    // Ignore errors: the request may have been withdrawn.
    let _ = adapter.cr_reject_with(cr, &REJECT_DATA);
}

/// Returns the service level of a type of service.
pub(crate) const fn service_level(tos: u8) -> u8 {
    tos & 0xf
}

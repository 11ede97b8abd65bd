//! The node: everything that RDS keeps, the calls of applications that move no data, and the event loop.

use core::net::{IpAddr, SocketAddr};
use driver_mlx::{Instant, Wake};

use dat_nostd::{
    Adapter, CloseFlags, DatResult, DatReturn, DmaBuffer, DtoStatus, EvdFlags, EvdHandle, Event, EventData,
    IaHandle, LmrHandle, MemPriv, Platform, PspFlags, PspHandle, PzHandle, ReceivedDto,
};

use crate::congestion::{MAP_FRAGMENTS, Map};
use crate::connection::{Connection, Cookie, CookieKind, State};
use crate::counters::Counters;
use crate::error::RdsError;
use crate::frames::{Frames, Link, MAX_FRAMES, Queue, STRIDE};
use crate::limits::Limits;
use crate::operation::Operation;
use crate::rdma::{RdmaStatus, Region};
use crate::receive::BURST;
use crate::socket::{Socket, SocketHandle, Transport, key, open_socket};
use crate::storage::{RdsConfig, RdsParts};
use crate::straight::Ports;
use crate::wire::SERVICE_PORT;

/// Events taken from one dispatcher in one [`Rds::poll`], so that a busy peer does not keep the caller's loop.
const EVENTS_PER_POLL: usize = 256;
/// As many connections as a cookie can tell apart.
const MAX_CONNECTIONS: usize = u8::MAX as usize;
/// As many sockets as a handle can tell apart; one more number means "no socket".
const MAX_SOCKETS: usize = u16::MAX as usize;

/// The DAT objects of a node.
pub(crate) struct DatObjects {
    pub(crate) ia: IaHandle,
    async_evd: EvdHandle,
    pub(crate) pz: PzHandle,
    lmr: LmrHandle,
    pub(crate) lmr_context: u32,
    pub(crate) receive_evd: EvdHandle,
    pub(crate) request_evd: EvdHandle,
    pub(crate) connect_evd: EvdHandle,
    /// Apart from the connection events: a peer that asks too often fills only this one.
    demand_evd: EvdHandle,
    psp: PspHandle,
}

impl DatObjects {
    /// Everything that a node needs on `ia`. What was made before a failure goes with the IA.
    fn create<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        (ia, async_evd): (IaHandle, EvdHandle),
        memory: &DmaBuffer,
        limits: &Limits,
        connections: u32,
    ) -> DatResult<Self> {
        let pz = adapter.pz_create(ia)?;
        let registered = adapter.lmr_create(ia, memory, pz, MemPriv::LOCAL_READ | MemPriv::LOCAL_WRITE)?;
        let receives = u32::from(limits.receive_depth) * connections;
        // One more each: DAT completes an endpoint's requests with one of its own.
        let requests = (u32::from(limits.send_depth) + 1) * connections;
        let receive_evd = adapter.evd_create(ia, receives, None, EvdFlags::DTO)?;
        let request_evd = adapter.evd_create(ia, requests, None, EvdFlags::DTO)?;
        let connect_evd = adapter.evd_create(ia, 4 * connections, None, EvdFlags::CONNECTION)?;
        let demand_evd = adapter.evd_create(ia, connections, None, EvdFlags::CR)?;
        let psp = adapter.psp_create(ia, u64::from(SERVICE_PORT), demand_evd, PspFlags::Consumer)?;
        Ok(Self {
            ia,
            async_evd,
            pz,
            lmr: registered.lmr,
            lmr_context: registered.lmr_context,
            receive_evd,
            request_evd,
            connect_evd,
            demand_evd,
            psp,
        })
    }
}

/// Reliable Datagram Sockets on one adapter.
///
/// Nothing happens between calls: an application calls [`poll`](Self::poll) in its loop.
pub struct Rds<'s> {
    pub(crate) sockets: &'s mut [Socket],
    pub(crate) connections: &'s mut [Connection],
    pub(crate) frames: Frames<'s>,
    pub(crate) config: RdsConfig,
    pub(crate) limits: Limits,
    pub(crate) dat: DatObjects,
    /// This node, IPv4 mapped.
    pub(crate) local: u128,
    /// Memory offered to peers, and whether some of it was used up.
    pub(crate) regions: &'s mut [Region],
    pub(crate) regions_spent: bool,
    /// RDMA operations and their notifications.
    pub(crate) operations: &'s mut [Operation],
    /// What each connection's peer told of its congestion.
    pub(crate) maps: &'s mut [Map],
    /// The frames that our own congestion map is kept in and sent from.
    pub(crate) map_frames: [Link; MAP_FRAGMENTS as usize],
    /// Our map changed, and not every peer knows.
    pub(crate) maps_changed: bool,
    /// Maps received so far.
    pub(crate) map_generation: u64,
    /// Frames of messages that wait to be read, and whether they are too many.
    pub(crate) unread_frames: usize,
    pub(crate) pool_short: bool,
    pub(crate) counters: Counters,
    random: u64,
    /// An endpoint failed, and its connection is not down yet.
    pub(crate) some_broken: bool,
    /// A connection wants for receives because frames are short.
    pub(crate) starved: bool,
    /// The connection whose unfinished message may use the reserve.
    pub(crate) reserve_of: usize,
    /// Where the next round over all connections begins.
    turn: usize,
    /// Where messages were delivered.
    pub(crate) ports: Ports,
}

impl<'s> Rds<'s> {
    /// Opens the adapter's interface `ib0`, registers the frames and listens for peers.
    ///
    /// # Errors
    /// [`RdsError::Dat`]: the adapter lacks memory or objects, or somebody else listens on port 18634.
    /// [`RdsError::InvalidArgument`]: too few frames for so many connections, or a depth that is too small.
    pub fn start<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        parts: RdsParts<'s>,
        config: RdsConfig,
    ) -> Result<Self, RdsError> {
        let (sockets, connections) = (parts.sockets, parts.connections);
        let sockets_len = sockets.len().min(MAX_SOCKETS);
        let connections_len = connections.len().min(MAX_CONNECTIONS);
        let (sockets, _) = sockets.split_at_mut(sockets_len);
        let (connections, _) = connections.split_at_mut(connections_len);
        let frames_len = parts.frames.len().min(MAX_FRAMES);
        let limits = Limits::new(&config, frames_len, connections.len())?;

        let memory = adapter.dma_alloc(frames_len * STRIDE, 4096)?;
        let opened = adapter.ia_open("ib0", 16, None).and_then(|(ia, async_evd)| {
            let dat =
                DatObjects::create(adapter, (ia, async_evd), &memory, &limits, connections.len() as u32);
            if dat.is_err() {
                let _ = adapter.ia_close(ia, CloseFlags::Abrupt);
            }
            dat
        });
        let dat = match opened {
            Ok(dat) => dat,
            Err(error) => {
                let _ = adapter.dma_free(memory);
                return Err(error.into());
            }
        };

        sockets.fill_with(|| Socket::EMPTY);
        connections.fill_with(|| Connection::EMPTY);
        parts.maps.fill_with(|| Map::EMPTY);
        parts.regions.fill_with(|| Region::EMPTY);
        parts.operations.fill_with(|| Operation::EMPTY);
        let mut rds = Self {
            sockets,
            connections,
            frames: Frames::new(parts.frames, memory),
            config,
            limits,
            dat,
            local: key(adapter.address()),
            regions: parts.regions,
            regions_spent: false,
            operations: parts.operations,
            maps: parts.maps,
            map_frames: [Link::NONE; MAP_FRAGMENTS as usize],
            maps_changed: false,
            map_generation: 0,
            unread_frames: 0,
            pool_short: false,
            counters: Counters::default(),
            random: config.seed | 1,
            some_broken: false,
            starved: false,
            reserve_of: 0,
            turn: 0,
            ports: Ports::EMPTY,
        };
        rds.create_map();
        Ok(rds)
    }

    /// Ends everything: connections are dropped, whatever was not acknowledged is lost, all DAT objects are freed.
    ///
    /// # Errors
    /// [`RdsError::Dat`] if an object could not be freed; the others are freed all the same.
    pub fn stop<P: Platform>(mut self, adapter: &mut Adapter<'_, P>) -> Result<(), RdsError> {
        let mut result = Ok(());
        let mut note = |outcome: Result<(), DatReturn>| {
            if let Err(error) = outcome {
                result = Err(RdsError::Dat(error));
            }
        };
        note(adapter.psp_free(self.dat.psp));
        for connection in &mut *self.connections {
            if let Some(ep) = connection.ep() {
                let _ = adapter.ep_disconnect(ep, CloseFlags::Abrupt);
                note(adapter.ep_free(ep));
                connection.set_ep(None);
            }
        }
        for index in 0..self.operations.len() {
            self.end_operation(adapter, Link::to(index), RdmaStatus::Canceled);
        }
        self.free_all_regions(adapter);
        for index in 0..self.connections.len() {
            note(self.free_zone_of(adapter, index));
        }
        for evd in [self.dat.receive_evd, self.dat.request_evd, self.dat.connect_evd, self.dat.demand_evd] {
            note(adapter.evd_free(evd));
        }
        note(adapter.lmr_free(self.dat.lmr));
        note(adapter.pz_free(self.dat.pz));
        if let Some(memory) = self.frames.take_memory() {
            note(adapter.dma_free(memory).map_err(DatReturn::from));
        }
        note(adapter.ia_close(self.dat.ia, CloseFlags::Abrupt));
        result
    }

    /// Runs everything that is due: arrivals, completions, connections, acknowledgements. Answers when to call
    /// again even if nothing happens. The answer is [`Wake::Now`] whenever
    /// something happened: that may have given the adapter new deadlines, so poll both again before idling. It does not
    /// know of calls made after it: poll once more after [`sendmsg`](Self::sendmsg) and [`close`](Self::close), too.
    pub fn poll<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, instant: Instant) -> Wake {
        let now = instant.as_nanos();
        let mut moved = self.poll_receives(adapter, now);
        moved |= self.poll_requests(adapter, now);
        if !moved {
            // Nothing to do: time to look for more, for whoever does not poll the adapter as often.
            let _ = adapter.poll(instant);
        }
        if self.some_broken {
            self.take_down_broken(adapter, now);
        }
        while next_event(adapter, self.dat.async_evd).is_some() {
            moved = true;
        }
        let mut deadline = None;
        // Each in turn is the first to get frames.
        let connections = self.connections.len();
        self.turn = (self.turn + 1) % connections.max(1);
        for step in 0..connections {
            if let Some(at) = self.connection_due(adapter, (self.turn + step) % connections, now) {
                deadline = Some(deadline.map_or(at, |other: u64| other.min(at)));
            }
        }
        // Last, because each look at a dispatcher polls the adapter, which may queue an event here.
        moved |= self.poll_demands(adapter, now);
        moved |= self.poll_connections(adapter, now);
        if self.some_broken {
            self.take_down_broken(adapter, now);
        }
        if moved { Wake::Now } else { deadline.map(Instant::from_nanos).into() }
    }

    /// True if there was something, as with the others.
    fn poll_demands<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, now: u64) -> bool {
        for count in 0..EVENTS_PER_POLL {
            let Some(event) = next_event(adapter, self.dat.demand_evd) else { return count > 0 };
            if let EventData::ConnectionRequest { cr, .. } = event.data {
                self.connection_requested(adapter, cr, now);
            }
        }
        true
    }

    pub(crate) fn poll_connections<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, now: u64) -> bool {
        for count in 0..EVENTS_PER_POLL {
            let Some(event) = next_event(adapter, self.dat.connect_evd) else { return count > 0 };
            if let EventData::Connection { event, ep, .. } = event.data {
                self.connection_changed(adapter, event, ep, now);
            }
        }
        true
    }

    fn poll_receives<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, now: u64) -> bool {
        let mut arrivals = [ReceivedDto::default(); BURST];
        let mut count = 0;
        while count < EVENTS_PER_POLL {
            let taken = adapter.evd_dequeue_receives(self.dat.receive_evd, &mut arrivals);
            if taken > 0 {
                count += taken;
                self.frames_arrived(adapter, arrivals.get(..taken).unwrap_or_default(), now);
                continue;
            }
            let Some(event) = next_event(adapter, self.dat.receive_evd) else { break };
            count += 1;
            let EventData::Dto(dto) = event.data else { continue };
            let Some(cookie) = Cookie::decode(dto.user_cookie) else { continue };
            let length = (dto.status == DtoStatus::Success).then_some(dto.transferred_length);
            self.frame_arrived(adapter, cookie, length, now);
        }
        count > 0
    }

    pub(crate) fn poll_requests<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, now: u64) -> bool {
        for count in 0..EVENTS_PER_POLL {
            let Some(event) = next_event(adapter, self.dat.request_evd) else { return count > 0 };
            let EventData::Dto(dto) = event.data else { continue };
            if let Some(cookie) = Cookie::decode(dto.user_cookie)
                && cookie.kind != CookieKind::Receive
            {
                self.send_completed(adapter, cookie, dto.status, now);
            }
        }
        true
    }

    /// A new socket. It can neither send nor receive before [`bind_socket`](Self::bind_socket).
    ///
    /// # Errors
    /// [`RdsError::TooManySockets`].
    pub fn socket(&mut self) -> Result<SocketHandle, RdsError> {
        let (send_buffer, receive_buffer) = (self.config.send_buffer, self.config.receive_buffer);
        let (polled_generation, profile) = (self.map_generation, self.config.profile);
        let (slot, socket) =
            self.sockets.iter_mut().enumerate().find(|(_, s)| !s.open).ok_or(RdsError::TooManySockets)?;
        let generation = socket.generation.wrapping_add(1);
        *socket = Socket {
            open: true,
            generation,
            send_buffer,
            receive_buffer,
            polled_generation,
            profile,
            poll_rule: profile.into(),
            ..Socket::EMPTY
        };
        Ok(SocketHandle { slot: slot as u16, generation })
    }

    /// Binds a socket, once: to this node's address or to a loopback address, and to a port; port 0 picks a free one.
    ///
    /// # Errors
    /// [`RdsError::AddressNotAvailable`], [`RdsError::AddressInUse`]; [`RdsError::InvalidArgument`] for port 1, for
    /// unspecified, broadcast and multicast addresses, and for a socket that is bound; [`RdsError::NoTransport`] if the
    /// transport chosen before does not own the address; [`RdsError::BadSocket`].
    pub fn bind_socket(&mut self, handle: SocketHandle, to: SocketAddr) -> Result<(), RdsError> {
        let wanted = key(to.ip());
        let socket = open_socket(self.sockets, handle)?;
        if socket.address != 0 || !is_unicast(to.ip()) || to.port() == 1 {
            return Err(RdsError::InvalidArgument);
        }
        let transport = match wanted {
            _ if wanted == self.local => Transport::InfiniBand,
            _ if to.ip().to_canonical().is_loopback() => Transport::Loopback,
            _ => return Err(RdsError::AddressNotAvailable),
        };
        if socket.transport.get().is_some_and(|chosen| chosen != transport) {
            return Err(RdsError::NoTransport);
        }
        let port = match to.port() {
            0 => self.free_port(wanted)?,
            port if self.bound_to(wanted, port).is_some() => return Err(RdsError::AddressInUse),
            port => port,
        };
        let socket = open_socket(self.sockets, handle)?;
        socket.address = wanted;
        socket.port = port;
        socket.peers_port = if transport == Transport::InfiniBand { port } else { 0 };
        socket.transport.set(transport);
        Ok(())
    }

    /// A new socket that is bound at once.
    ///
    /// # Errors
    /// As [`socket`](Self::socket) and [`bind_socket`](Self::bind_socket).
    pub fn bind(&mut self, to: SocketAddr) -> Result<SocketHandle, RdsError> {
        let handle = self.socket()?;
        let bound = self.bind_socket(handle, to);
        if bound.is_err() {
            open_socket(self.sockets, handle)?.open = false;
        }
        bound.map(|()| handle)
    }

    fn free_port(&mut self, address: u128) -> Result<u16, RdsError> {
        let start = self.random() as u16;
        (0..=u16::MAX)
            .map(|step| start.wrapping_add(step))
            .find(|&port| port > 1 && self.bound_to(address, port).is_none())
            .ok_or(RdsError::AddressInUse)
    }

    pub(crate) fn bound_to(&self, address: u128, port: u16) -> Option<usize> {
        let bound = |socket: &Socket| socket.port == port && socket.address == address && socket.open;
        let likely = self.ports.of(port);
        if self.sockets.get(likely).is_some_and(bound) {
            return Some(likely);
        }
        self.sockets.iter().position(bound)
    }

    pub(crate) fn open(&mut self, handle: SocketHandle) -> Result<&mut Socket, RdsError> {
        open_socket(self.sockets, handle)
    }

    /// Closes a socket: what it received and nobody read is gone, and so are messages that no part was sent of. What was sent
    /// goes on until the peer has acknowledged it.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn close<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        handle: SocketHandle,
    ) -> Result<(), RdsError> {
        self.drop_notifications(handle);
        let socket = self.open(handle)?;
        let mut received = core::mem::replace(&mut socket.received, Queue::EMPTY);
        let (bytes, frames) = (socket.receive_bytes, socket.receive_frames);
        socket.open = false;
        socket.peers_port = 0;
        while let Some(message) = self.frames.pop_front(&mut received) {
            self.frames.give_message(message);
        }
        // Which clears its port.
        self.discharge(usize::from(handle.slot), bytes, frames);
        self.relieve(usize::from(handle.slot));
        self.send_changed_maps(adapter);
        for index in 0..self.connections.len() {
            self.cancel(adapter, index, handle, None);
        }
        self.free_regions_of(adapter, handle);
        if self.starved {
            self.refill_starved(adapter);
        }
        Ok(())
    }

    /// Frames came free: connections that wanted for receives get them.
    #[cold]
    pub(crate) fn refill_starved<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>) {
        self.starved = false;
        let connections = self.connections.len();
        self.turn = (self.turn + 1) % connections.max(1);
        for step in 0..connections {
            self.refill(adapter, (self.turn + step) % connections);
        }
    }

    /// Messages that the socket sent and the peer has not acknowledged.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn unacknowledged(&mut self, handle: SocketHandle) -> Result<usize, RdsError> {
        Ok(self.open(handle)?.send_messages)
    }

    /// What happened since the start.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Frames that nobody uses; equal before and after everything was sent, acknowledged and read, but for the receives
    /// posted to open connections.
    #[must_use]
    pub const fn free_frames(&self) -> usize {
        self.frames.free_count()
    }

    /// Connections that are up.
    #[must_use]
    pub fn connections_up(&self) -> usize {
        self.connections.iter().filter(|connection| connection.state == State::Up).count()
    }

    /// Longest message that [`sendmsg`](Self::sendmsg) takes for a peer, however large the send buffer: 1 MiB, or less if there
    /// are few frames. Bytes.
    #[must_use]
    pub const fn longest_message(&self) -> usize {
        self.limits.longest_sent
    }

    /// xorshift64*.
    pub(crate) fn random(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// The next event of a dispatcher. Where there is none the adapter is not polled for one: that is its owner's.
#[inline]
fn next_event<P: Platform>(adapter: &mut Adapter<'_, P>, evd: EvdHandle) -> Option<Event> {
    if adapter.evd_is_quiet(evd) { None } else { adapter.evd_dequeue(evd).ok() }
}

pub(crate) fn is_unicast(address: IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    !(address.is_unspecified() || address.is_multicast() || broadcast)
}

//! How RDS makes connections, against a peer that is a plain DAT consumer: one that connects as Linux does, one whose replies do not
//! fit, one that asks all the time, one that asks in another's name.

use dat_nostd::{
    AdapterConfig, CompletionFlags, ConnectFlags, ConnectionEvent, CrHandle, EpAttributes, EpHandle,
    EvdFlags, EvdHandle, EventData, IaHandle, IpConfig, LmrCreated, LmrTriplet, MemPriv, PspFlags, PzHandle,
    Qos, Wake, adapter_storage,
};
use driver_mlx::{DmaBuffer, Gid, Instant};
use harness::dat::{self, ModelAdapter, address, due};
use harness::platform::ModelBar;
use harness::rds::{GENERATION, boot};
use harness::{World, WorldConfig};
use hca_model::Profile;
use rds_nostd::wire::{
    ConnectData, Extension, FRAGMENT_LEN, FRAME_LEN, Flags, HEADER_LEN, Header, MAX_MESSAGE_LEN, REJECT_DATA,
    SERVICE_PORT, VERSION,
};
use rds_nostd::{DownReason, Msg, RdmaFlags, Rds, RdsConfig, RdsError, RdsStorage, SocketHandle};
use std::net::SocketAddr;
use std::rc::Rc;

const MS: u64 = 1_000_000;
/// Virtual time in which something must happen, in nanoseconds.
const LIMIT: u64 = 30_000 * MS;
const RECEIVES: usize = 16;
/// Places of the peer's memory behind them, for frames to send.
const SENDS: usize = 8;

/// A node with RDS and its peer.
struct Pair {
    world: Rc<World>,
    adapters: Vec<ModelAdapter>,
    /// Which of the nodes has RDS, and which is the peer.
    own: usize,
    peer: usize,
    rds: Rds<'static>,
    socket: SocketHandle,
    ia: IaHandle,
    pz: PzHandle,
    dto: EvdHandle,
    connect: EvdHandle,
    demand: EvdHandle,
    memory: DmaBuffer,
    registered: LmrCreated,
}

impl Pair {
    fn new(seed: u64, own: usize) -> Self {
        Self::with(seed, own, RdsConfig { seed, ..RdsConfig::new(GENERATION) })
    }

    fn with(seed: u64, own: usize, config: RdsConfig) -> Self {
        let world = World::new(&WorldConfig::new(seed));
        let adapters = dat::open(&world, seed, 2, 32 << 20).expect("opens");
        Self::on(world, adapters, own, 1 - own, config)
    }

    fn on(
        world: Rc<World>,
        mut adapters: Vec<ModelAdapter>,
        own: usize,
        peer: usize,
        config: RdsConfig,
    ) -> Self {
        let storage = Box::leak(Box::new(RdsStorage::<4, 4, 512>::new()));
        let mut rds = Rds::start(&mut adapters[own], storage.parts(), config).expect("starts");
        let socket = rds.bind(SocketAddr::new(address(own), 4000)).expect("binds");
        let other = &mut adapters[peer];
        let (ia, _) = other.ia_open("ib0", 8, None).expect("opens");
        let pz = other.pz_create(ia).expect("a zone");
        let dto = other.evd_create(ia, 256, None, EvdFlags::DTO).expect("an EVD");
        let connect = other.evd_create(ia, 32, None, EvdFlags::CONNECTION).expect("an EVD");
        let demand = other.evd_create(ia, 32, None, EvdFlags::CR).expect("an EVD");
        other
            .psp_create(ia, u64::from(SERVICE_PORT), demand, PspFlags::Consumer)
            .expect("nobody else listens");
        let memory = other.dma_alloc((RECEIVES + SENDS) * 8192, 4096).expect("memory");
        let registered =
            other.lmr_create(ia, &memory, pz, MemPriv::LOCAL_READ | MemPriv::LOCAL_WRITE).expect("registers");
        Self { world, adapters, own, peer, rds, socket, ia, pz, dto, connect, demand, memory, registered }
    }

    fn step(&mut self) {
        self.step_within(u64::MAX);
    }

    /// Runs everything once, or the devices until somebody has something to do or `end`.
    fn step_within(&mut self, end: u64) {
        let now = self.world.now();
        let mut next =
            due(self.rds.poll(&mut self.adapters[self.own], Instant::from_nanos(now))).unwrap_or(u64::MAX);
        for adapter in &mut self.adapters {
            next = next.min(due(adapter.poll(Instant::from_nanos(now))).unwrap_or(u64::MAX));
        }
        self.world.idle(next.min(end).max(now + 1));
    }

    /// The same, but for the time: whatever begins or ends, RDS asks to be polled again before anybody sleeps.
    fn step_and_look(&mut self) {
        let now = self.world.now();
        let look = |pair: &Self| {
            let states: Vec<_> = pair.rds.connections_info().map(|connection| connection.flags).collect();
            (states, pair.rds.counters().conn_reset)
        };
        let before = look(self);
        let wake = self.rds.poll(&mut self.adapters[self.own], Instant::from_nanos(now));
        let after = look(self);
        assert!(wake == Wake::Now || before == after, "{wake:?}: from {before:?} to {after:?}");
        let mut next = due(wake).unwrap_or(u64::MAX);
        for adapter in &mut self.adapters {
            next = next.min(due(adapter.poll(Instant::from_nanos(now))).unwrap_or(u64::MAX));
        }
        self.world.idle(next.max(now + 1));
    }

    fn until<T>(&mut self, what: &str, mut find: impl FnMut(&mut Self) -> Option<T>) -> T {
        let end = self.world.now() + LIMIT;
        loop {
            if let Some(found) = find(self) {
                return found;
            }
            assert!(self.world.now() < end, "{what}: {:#?}", self.rds.counters());
            self.step();
        }
    }

    fn send(&mut self) {
        let to = SocketAddr::new(address(self.peer), 5000);
        self.rds
            .sendmsg(&mut self.adapters[self.own], self.socket, Msg::to(&to, b"hello"))
            .expect("accepted");
    }

    fn good(&self) -> ConnectData {
        ConnectData {
            source: address(self.peer),
            destination: address(self.own),
            version: VERSION,
            minor_mask: 3,
            tos: 0,
            expects: 0,
            longest: MAX_MESSAGE_LEN as u32,
        }
    }

    fn endpoint(&mut self) -> EpHandle {
        let attributes = EpAttributes { max_recv_dtos: 32, max_request_dtos: 16, ..EpAttributes::DEFAULT };
        let other = &mut self.adapters[self.peer];
        let evds = (Some(self.dto), Some(self.dto), Some(self.connect));
        let ep = other
            .ep_create(self.ia, Some(self.pz), evds.0, evds.1, evds.2, Some(&attributes))
            .expect("an EP");
        for slot in 0..RECEIVES {
            let address = (self.memory.va() + slot * 8192) as u64;
            let segment = LmrTriplet::new(self.registered.lmr_context, address, FRAME_LEN as u64);
            other.ep_post_recv(ep, &[segment], 0, CompletionFlags::empty()).expect("posts");
        }
        ep
    }

    /// The peer asks for a connection.
    fn ask(&mut self, data: &ConnectData) -> EpHandle {
        let ep = self.endpoint();
        let (bytes, len) = data.encode();
        let (to, port) = (address(self.own), u64::from(SERVICE_PORT));
        self.adapters[self.peer]
            .ep_connect(ep, &to, port, 5_000_000, &bytes[..len], Qos::BestEffort, ConnectFlags::Default)
            .expect("asks");
        ep
    }

    fn event(&mut self) -> Option<(EpHandle, ConnectionEvent)> {
        let event = self.adapters[self.peer].evd_dequeue(self.connect).ok()?;
        match event.data {
            EventData::Connection { event, ep, .. } => Some((ep, event)),
            _ => None,
        }
    }

    /// A request of RDS at the peer.
    fn request(&mut self) -> Option<CrHandle> {
        match self.adapters[self.peer].evd_dequeue(self.demand).ok()?.data {
            EventData::ConnectionRequest { cr, .. } => Some(cr),
            _ => None,
        }
    }

    /// A connection that the peer asked for.
    fn connected(&mut self) -> EpHandle {
        let good = self.good();
        let ep = self.ask(&good);
        let up = self.until("a connection", |pair| pair.event());
        assert_eq!(up, (ep, ConnectionEvent::Established));
        ep
    }

    /// The peer sends headers without payload.
    fn post(&mut self, ep: EpHandle, headers: &[Header]) {
        self.post_with(ep, headers, 0);
    }

    /// The peer sends headers, each with so many bytes.
    fn post_with(&mut self, ep: EpHandle, headers: &[Header], payload: usize) {
        for (number, header) in headers.iter().enumerate() {
            let at = (RECEIVES + number) * 8192;
            let mut bytes = header.encode().to_vec();
            bytes.resize(HEADER_LEN + payload, 0x5a);
            self.memory.write(at, &bytes).expect("inside");
            let address = (self.memory.va() + at) as u64;
            let segment = LmrTriplet::new(self.registered.lmr_context, address, bytes.len() as u64);
            self.adapters[self.peer]
                .ep_post_send(ep, &[segment], 0, CompletionFlags::empty())
                .expect("posts");
        }
    }

    /// Headers of all frames of RDS at the peer but congestion maps.
    fn headers(&self) -> Vec<Header> {
        let at = |slot: usize| {
            let mut bytes = [0; HEADER_LEN];
            self.memory.read(slot * 8192, &mut bytes).expect("inside");
            bytes
        };
        let came = (0..RECEIVES).map(at).filter(|bytes| bytes.iter().any(|&byte| byte != 0));
        came.map(|bytes| Header::decode(&bytes).expect("whole"))
            .filter(|header| !header.is_congestion_map())
            .collect()
    }

    /// A data frame of RDS at the peer: the last four bytes of "hello", wherever it landed.
    fn has_data(&mut self) -> bool {
        (0..RECEIVES).any(|slot| {
            let mut bytes = [0; 5];
            self.memory.read(slot * 8192 + 48, &mut bytes).expect("inside");
            &bytes == b"hello"
        })
    }
}

/// Linux refuses every request while its own is on its way, and takes whatever comes after. One round trip later there is a
/// connection, whoever has the lower address.
#[test]
fn crossing_with_a_peer_that_refuses_while_it_asks() {
    for own in [0, 1] {
        for seed in 1..=8 {
            let mut pair = Pair::new(seed, own);
            let good = pair.good();
            let began = pair.world.now();
            // Not always in the same instant.
            let (first, second) = if seed % 2 == 0 { (true, false) } else { (false, true) };
            if first {
                pair.send();
            }
            let asked = pair.ask(&good);
            if second {
                pair.send();
            }
            let mut refused = 0;
            let up = pair.until("a connection", |pair| {
                if let Some(cr) = pair.request() {
                    refused += 1;
                    pair.adapters[pair.peer].cr_reject_with(cr, &REJECT_DATA).expect("there");
                }
                pair.event()
            });
            assert_eq!(
                up,
                (asked, ConnectionEvent::Established),
                "own {own}, seed {seed}: the peer's only attempt"
            );
            // Once more if the answer overtook the peer's request.
            assert!(refused <= 2, "own {own}, seed {seed}: asked {refused} times");
            let took = pair.world.now() - began;
            assert!(took < 50 * MS, "own {own}, seed {seed}: took {} us", took / 1000);
            pair.until("the message goes over it", |pair| pair.has_data().then_some(()));
            let counters = pair.rds.counters();
            assert_eq!(pair.rds.connections_up(), 1);
            assert!(
                counters.connect_raced <= 1 && counters.connect_refused == 0,
                "own {own}, seed {seed}: {counters:#?}"
            );
        }
    }
}

/// Two that keep their attempt: the one with the lower address accepts the other's request when its own has come to nothing,
/// however that ends.
#[test]
fn a_request_that_waited_is_taken_when_ours_fails() {
    let mut pair = Pair::new(31, 0);
    let good = pair.good();
    pair.send();
    let ours = pair.until("our request", |pair| pair.request());
    let asked = pair.ask(&good);
    pair.until("it waits", |pair| (pair.rds.counters().connect_raced == 1).then_some(()));
    assert_eq!(pair.event(), None, "neither accepted nor refused");
    pair.adapters[1].cr_reject(ours).expect("there");
    let up = pair.until("the peer's own comes up", |pair| pair.event());
    assert_eq!(up, (asked, ConnectionEvent::Established));
    let connection = pair.rds.connections_info().next().expect("one");
    assert_eq!((connection.downs, connection.last_down), (1, Some(DownReason::PeerRejected)));
    pair.until("the message goes over it", |pair| pair.has_data().then_some(()));

    // And refused when ours comes up.
    let mut pair = Pair::new(32, 0);
    let good = pair.good();
    pair.send();
    let ours = pair.until("our request", |pair| pair.request());
    let asked = pair.ask(&good);
    pair.until("it waits", |pair| (pair.rds.counters().connect_raced == 1).then_some(()));
    let ep = pair.endpoint();
    let (bytes, len) = good.encode();
    pair.adapters[1].cr_accept(ours, Some(ep), &bytes[..len]).expect("there");
    let mut events =
        [pair.until("ours is up", |pair| pair.event()), pair.until("theirs is not", |pair| pair.event())];
    events.sort_by_key(|event| event.0 == asked);
    assert_eq!(events, [(ep, ConnectionEvent::Established), (asked, ConnectionEvent::PeerRejected)]);
}

/// What the peer answers has to be of a version that we speak, and between our addresses.
#[test]
fn replies_that_do_not_fit_are_dropped() {
    let mut pair = Pair::new(41, 0);
    let good = pair.good();
    pair.send();
    let bad = [
        ConnectData { version: (3, 0), ..good },
        ConnectData { version: (0, 0), ..good },
        ConnectData { version: (5, 1), ..good },
        ConnectData { source: address(5), ..good },
        ConnectData { destination: address(5), ..good },
    ];
    for (number, data) in bad.iter().enumerate() {
        let request = pair.until("a request", |pair| pair.request());
        let ep = pair.endpoint();
        let (bytes, len) = data.encode();
        pair.adapters[1].cr_accept(request, Some(ep), &bytes[..len]).expect("there");
        pair.until("it is dropped", |pair| {
            (pair.rds.counters().downs[DownReason::BadReply as usize] == number as u64 + 1).then_some(())
        });
        assert_eq!(pair.rds.connections_up(), 0, "{data:?}");
        assert!(!pair.has_data(), "{data:?}");
        // The peer's endpoint came up for a moment and was taken down.
        pair.until("the peer hears of it", |pair| {
            pair.event().filter(|event| event.1 != ConnectionEvent::Established)
        });
        pair.adapters[1].ep_free(ep).expect("freed");
    }
    // 4.1 is 3.1 by another name.
    let request = pair.until("a request", |pair| pair.request());
    let ep = pair.endpoint();
    let (bytes, len) = ConnectData { version: (4, 1), ..good }.encode();
    pair.adapters[1].cr_accept(request, Some(ep), &bytes[..len]).expect("there");
    pair.until("the message arrives", |pair| pair.has_data().then_some(()));
}

/// What we answer is the version that both speak.
#[test]
fn replies_have_the_selected_version() {
    let cases = [((3, 1), 3, (3, 1)), ((4, 0), 1, (4, 0)), ((4, 3), 0xf, (4, 1)), ((0, 0), 0, (4, 0))];
    for (number, (version, minor_mask, selected)) in cases.into_iter().enumerate() {
        let mut pair = Pair::new(50 + number as u64, 0);
        let data = ConnectData { version, minor_mask, ..pair.good() };
        let asked = pair.ask(&data);
        let up = pair.until("a connection", |pair| pair.event());
        assert_eq!(up, (asked, ConnectionEvent::Established), "{version:?}");
        let reply = pair.adapters[1].ep_private_data(asked).expect("up");
        let reply = ConnectData::decode(reply, true).expect("whole");
        assert_eq!((reply.version, reply.source, reply.destination), (selected, address(0), address(1)));
    }
}

/// A peer that asks for a new connection every millisecond: it does not get one torn down and made each time, and when it has
/// calmed down it is treated as before.
#[test]
fn a_flood_of_requests_is_held_back() {
    let mut pair = Pair::new(61, 0);
    let good = pair.good();
    let end = pair.world.now() + 2_000 * MS;
    let (mut asked, mut up) = (0, 0);
    while pair.world.now() < end {
        pair.ask(&good);
        asked += 1;
        let pause = pair.world.now() + MS;
        while pair.world.now() < pause {
            match pair.event() {
                Some((_, ConnectionEvent::Established)) => up += 1,
                // Refused, or replaced by a later one.
                Some((ep, _)) => pair.adapters[1].ep_free(ep).expect("there"),
                None => pair.step_within(pause),
            }
        }
    }
    let counters = *pair.rds.counters();
    assert!(asked > 500, "{asked}");
    assert!(counters.connect_too_often > 100, "{counters:#?}");
    assert_eq!(counters.connect_refused, counters.connect_too_often);
    // 10 ms, 20 ms, 40 ms and so on up to a second: not more than eight in two seconds.
    let made = counters.downs.iter().sum::<u64>();
    assert!(up <= 9 && made <= 9, "asked {asked} times, up {up} times, down {made} times: {counters:#?}");
    assert_eq!(counters.downs[DownReason::Replaced as usize], made);
    let calm = pair.world.now() + 5_000 * MS;
    while pair.world.now() < calm {
        pair.step();
    }
    while pair.event().is_some() {}
    let ep = pair.ask(&good);
    let came = pair.until("an answer", |pair| pair.event().filter(|event| event.0 == ep));
    assert_eq!(came.1, ConnectionEvent::Established);
    let refused = pair.rds.counters().connect_refused;
    // A connection that stands is replaced once it has stood for a moment: the peer has begun anew.
    let later = pair.world.now() + 20 * MS;
    while pair.world.now() < later {
        pair.step();
    }
    let ep = pair.ask(&good);
    let came = pair.until("an answer", |pair| pair.event().filter(|event| event.0 == ep));
    assert_eq!(came.1, ConnectionEvent::Established);
    let after = pair.rds.counters();
    assert_eq!(after.connect_refused, refused);
    // Both took the place of one that stood.
    let replaced = DownReason::Replaced as usize;
    assert_eq!(after.downs[replaced], counters.downs[replaced] + 2);
}

/// Node 2 has given itself the address of node 1, which node 0 knows to be elsewhere.
#[test]
fn nobody_connects_in_anothers_name() {
    let (world, seed) = (World::new(&WorldConfig::new(71)), 71);
    let attached: Vec<_> = (0..3).map(|node| world.attach(Profile::node(node), 16 << 20)).collect();
    let gid = |node: u16| Gid::new(Gid::DEFAULT_PREFIX, Profile::port_guid_of(node));
    let mut adapters = Vec::new();
    for (node, (platform, region)) in attached.into_iter().enumerate() {
        if node < 2 {
            adapters.push(dat::open_one(platform, region, seed, 2).expect("opens"));
            continue;
        }
        adapter_storage! {
            struct Tables { bar: ModelBar, dma_bytes: 64 << 20, lmrs: 128, connections: 128 }
        }
        let storage = Box::leak(Box::new(Tables::new()));
        let neighbours = Box::leak(Box::new([(address(0), gid(0))]));
        let config = AdapterConfig { hca: dat::HCA, ..AdapterConfig::new("ib0", address(1), neighbours, 7) };
        let mut adapter =
            dat_nostd::Adapter::open(platform, region, harness::host_region(), storage.parts(), &config)
                .expect("opens");
        dat::register(&mut adapter, 0);
        adapters.push(adapter);
    }
    let mut pair = Pair::on(world, adapters, 0, 2, RdsConfig::new(GENERATION));
    let good = ConnectData { source: address(1), ..pair.good() };
    let asked = pair.ask(&good);
    let came = pair.until("an answer", |pair| pair.event());
    assert_eq!(came, (asked, ConnectionEvent::PeerRejected));
    assert_eq!((pair.rds.counters().connect_refused, pair.rds.connections_info().count()), (1, 0));
}

/// Requests from an address that nobody has, or nobody answers for, wait for ARP, but only two of a port; the others are refused, and nobody
/// is asked on their account.
#[test]
fn few_requests_of_a_port_wait_for_arp() {
    adapter_storage! {
        struct Tables { bar: ModelBar, dma_bytes: 64 << 20, lmrs: 128, connections: 128 }
    }
    let world = World::new(&WorldConfig::new(73));
    let attached: Vec<_> = (0..2).map(|node| world.attach(Profile::node(node), 16 << 20)).collect();
    let gid = |node: u16| Gid::new(Gid::DEFAULT_PREFIX, Profile::port_guid_of(node));
    let mut adapters = Vec::new();
    for (node, (platform, region)) in attached.into_iter().enumerate() {
        let storage = Box::leak(Box::new(Tables::new()));
        let neighbours = Box::leak(Box::new([(address(0), gid(0))]));
        // The first has IP; the other one gives an address, and is not there for whoever asks who has it.
        let (known, ip): (&[_], _) = match node {
            0 => (&[], Some(IpConfig { prefix_len: 16, ..IpConfig::DEFAULT })),
            _ => (neighbours, None),
        };
        let config = AdapterConfig {
            hca: dat::HCA,
            ip,
            ..AdapterConfig::new("ib0", address(node), known, 7 + node as u128)
        };
        let region = (platform, region, harness::host_region());
        let mut adapter =
            dat_nostd::Adapter::open(region.0, region.1, region.2, storage.parts(), &config).expect("opens");
        dat::register(&mut adapter, 0);
        adapters.push(adapter);
    }
    let mut pair = Pair::on(world, adapters, 0, 1, RdsConfig::new(GENERATION));
    pair.until("IP is up", |pair| pair.adapters[0].ip().is_some_and(|ip| ip.is_up()).then_some(()));
    let asked: Vec<_> = (0..4).map(|tos| pair.ask(&ConnectData { tos, ..pair.good() })).collect();
    let began = pair.world.now();
    for _ in 0..2 {
        let (ep, event) = pair.until("an answer", |pair| pair.event());
        assert!(asked.contains(&ep) && event == ConnectionEvent::PeerRejected);
    }
    assert_eq!(pair.rds.counters().connect_refused, 2);
    assert!(pair.world.now() < began + 100 * MS, "at once");
    let asking = |pair: &mut Pair| pair.adapters[0].ip().map_or(0, |ip| ip.neighbours().count());
    assert_eq!(asking(&mut pair), 1, "they give one address");
    for _ in 0..2 {
        let (_, event) = pair.until("an answer", |pair| pair.event());
        assert_eq!(event, ConnectionEvent::PeerRejected);
    }
    assert!(pair.world.now() > began + 2_000 * MS, "when ARP has come to nothing");
    assert_eq!(pair.rds.connections_info().count(), 0);
}

/// Heartbeats of Oracle's kernels and probes of another transport are passed over, and acknowledged where they ask for it; a ping
/// is answered.
#[test]
fn frames_of_rds_itself() {
    let mut pair = Pair::new(81, 0);
    let ep = pair.connected();
    let none = Header::acknowledgement(0);
    let heartbeat = Flags::from_bits_retain(0x08 | 0x02);
    let mut npaths = [0; 16];
    npaths[..3].copy_from_slice(&[5, 0, 8]);
    pair.post(
        ep,
        &[
            Header { sequence: 1, flags: heartbeat, ..none },
            Header {
                sequence: 2,
                sport: 1,
                dport: 0,
                flags: Flags::ACK_REQUIRED,
                extensions: npaths,
                ..none
            },
            Header { sequence: 3, sport: 7777, dport: 0, ..none },
        ],
    );
    let pong = pair.until("a pong", |pair| pair.headers().into_iter().find(|header| header.dport != 0));
    assert_eq!((pong.sport, pong.dport, pong.len, pong.ack), (0, 7777, 0, 3));
    let headers = pair.headers();
    assert!(headers.iter().all(|header| header.is_acknowledgement() || *header == pong), "{headers:?}");
    assert!(headers.iter().all(|header| header.ack >= 2), "the probe was acknowledged: {headers:?}");
    let counters = pair.rds.counters();
    assert_eq!((counters.recv_ping, counters.send_pong, counters.conn_reset), (1, 1, 0));
}

/// Numbers of messages grow from boot to boot, so that a peer that remembers the last one takes none for old.
#[test]
fn messages_are_numbered_from_the_boot() {
    for generation in [1, 2, 1 << 30] {
        let mut pair = Pair::with(82, 0, RdsConfig::new(boot(generation)));
        pair.connected();
        pair.send();
        let header =
            pair.until("a message", |pair| pair.headers().into_iter().find(|header| header.len == 5));
        // Counted in nanoseconds.
        let begins = u64::from(generation) * 1_000_000_000;
        assert!(header.sequence > begins && header.sequence < begins + 1_000_000_000, "{}", header.sequence);
    }
}

/// What a peer says to have done with keys: only what is the socket's, and with isolation only what is its own, is heeded.
#[test]
fn word_of_keys_is_heeded_of_those_they_are_for() {
    let config = RdsConfig { isolate_peers: true, ..RdsConfig::new(GENERATION) };
    let mut pair = Pair::with(83, 0, config);
    let ep = pair.connected();
    let memory = pair.adapters[0].dma_alloc(4096, 4096).expect("memory");
    let to = |node| SocketAddr::new(address(node), 5000);
    let offer = |pair: &mut Pair, socket, node| {
        let flags = RdmaFlags::USE_ONCE;
        pair.rds
            .get_mr_for_dest(&mut pair.adapters[0], socket, to(node), memory.as_slice(), flags)
            .expect("offered")
    };
    let other = pair.rds.bind(SocketAddr::new(address(0), 4001)).expect("binds");
    let (socket, none) = (pair.socket, Header::acknowledgement(0));
    let theirs = offer(&mut pair, socket, 1);
    let anothers = offer(&mut pair, socket, 2);
    let of_another_socket = offer(&mut pair, other, 1);
    let word = |sequence: u64, rkey: u32| {
        let extensions = Extension::Rdma { rkey }.encode();
        Header { sequence, sport: 5000, dport: 4000, extensions, ..none }
    };
    // The last says how much was written, too.
    let mut last = word(4, theirs.rkey());
    last.extensions[5..14]
        .copy_from_slice(&Extension::RdmaBytes { bytes: 777, is_write: true }.encode()[..9]);
    let words = [anothers.rkey(), of_another_socket.rkey(), 0xdead];
    let mut headers: Vec<Header> = (1..).zip(words).map(|(sequence, rkey)| word(sequence, rkey)).collect();
    headers.push(last);
    pair.post(ep, &headers);
    pair.until("all arrived", |pair| (pair.rds.counters().recv_queued == 4).then_some(()));
    let counters = *pair.rds.counters();
    assert_eq!((counters.recv_bad_rkey, counters.recv_rdma_bytes, counters.conn_reset), (3, 777, 0));
    assert_eq!((counters.mr_8k_alloc, counters.mr_8k_free), (3, 1));
    let mut free = |socket, cookie| pair.rds.free_mr(&mut pair.adapters[0], socket, cookie);
    assert_eq!(free(socket, theirs), Err(RdsError::InvalidArgument), "used up");
    assert_eq!(free(socket, anothers), Ok(()), "still there");
    assert_eq!(free(other, of_another_socket), Ok(()), "still there");
}

/// A connection that is begun because its time has come, or ended because its peer's has, gives the adapter something to do at times that
/// it did not know before, and others what it had of frames: whoever sleeps by what `poll` answers does not sleep over it.
#[test]
fn poll_tells_what_it_began_and_ended() {
    let mut pair = Pair::new(71, 0);
    pair.world.set_cable(1, false);
    pair.send();
    // On Ethernet each attempt waits for replies, which on InfiniBand the subnet administrator saves.
    let end = pair.world.now() + 2 * LIMIT;
    while pair.rds.counters().conn_reset < 8 {
        assert!(pair.world.now() < end, "attempts end: {:#?}", pair.rds.counters());
        pair.step_and_look();
    }
    // One that is up, and whose peer begins a message and goes on with it no more.
    let mut pair = Pair::new(72, 0);
    let ep = pair.connected();
    let begun = Header { sequence: 1, len: 9000, sport: 5000, dport: 4000, ..Header::acknowledgement(0) };
    pair.post_with(ep, &[begun], FRAGMENT_LEN);
    let end = pair.world.now() + LIMIT;
    while pair.rds.counters().downs[DownReason::Stalled as usize] == 0 {
        assert!(pair.world.now() < end, "a message that is not continued ends: {:#?}", pair.rds.counters());
        pair.step_and_look();
    }
}

//! Any number of adapters on one fabric, with DAT objects of each, in a style that runs all of them while it waits. For tests
//! of DAT alone; [`crate::pair`] is for those of what lies above.
//!
//! Everything here panics where a test would: a wait that does not end, an event that is another.

use crate::dat::register;
use crate::platform::{ModelBar, ModelPlatform};
use crate::world::{World, WorldConfig};
use core::net::{IpAddr, Ipv4Addr};
use dat_nostd::{
    Adapter, AdapterConfig, CompletionFlags, ConnectFlags, ConnectionEvent, CrHandle, DatReturn, DmaSlice,
    DtoCompletion, DtoStatus, EpAttributes, EpHandle, EvdFlags, EvdHandle, EventData, Gid, IaAddress,
    IaHandle, LmrCreated, LmrTriplet, MemPriv, Neighbour, PspFlags, PspHandle, PzHandle, Qos, RmrTriplet,
    TIMEOUT_INFINITE, adapter_storage,
};
use driver_mlx::{DmaRegion, Duration, Instant, Wake};
use hca_model::Profile;
use hca_model::card::{CONNECTX_5, CONNECTX_5_EN, Card};
use ib_types::{MacAddress, Payload};
use std::rc::Rc;

/// Memory of a node, bytes.
pub const MEMORY: usize = 32 << 20;
/// Virtual time that anything waited for may take: above the longest time-out of the connection manager.
pub const LIMIT: u64 = 120_000_000_000;
/// Steps in which nothing happens although a node wants to run at once. An adapter that wants
/// that without end would stop the clock.
const IDLE_STEPS: u32 = 10_000;

adapter_storage! {
    /// Tables of a node here.
    pub struct Storage { bar: ModelBar, dma_bytes: MEMORY }
}
/// A node's adapter.
pub type Node = Adapter<'static, ModelPlatform>;

/// Nodes 10.0.0.1, 10.0.0.2, … on one fabric.
pub struct Net {
    /// The world that they are in.
    pub world: Rc<World>,
    /// The adapters.
    pub nodes: Vec<Node>,
    neighbours: &'static [Neighbour],
    seed: u64,
    /// Steps since something happened, if a node wanted to run at once in each of them.
    idle_steps: u32,
}

/// The address of a node.
#[must_use]
pub fn address(node: usize) -> IaAddress {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1 + node as u8))
}

/// Returns the card of nodes by default: a ConnectX-5, with an Ethernet port if the environment has
/// `RDMA_MEDIUM=ethernet`.
#[must_use]
pub fn usual_card() -> &'static Card {
    match std::env::var("RDMA_MEDIUM").as_deref() {
        Ok("ethernet") => &CONNECTX_5_EN,
        Ok("infiniband") | Err(_) => &CONNECTX_5,
        Ok(other) => panic!("RDMA_MEDIUM={other}: infiniband or ethernet"),
    }
}

/// Returns the port GID of a node with such a card: the default prefix, and its GUID or MAC address.
#[must_use]
pub fn gid(card: &Card, node: usize) -> Gid {
    let guid = Profile::port_guid_of(node as u16);
    if card.is_ethernet() {
        let [a, b, c, _, _, d, e, f] = guid.to_be_bytes();
        Gid::link_local(MacAddress([a, b, c, d, e, f]))
    } else {
        Gid::new(Gid::DEFAULT_PREFIX, guid)
    }
}

fn boot(
    platform: ModelPlatform,
    region: DmaRegion,
    (node, generation): (usize, u64),
    neighbours: &'static [Neighbour],
    seed: u64,
) -> Node {
    let world = Rc::clone(platform.world());
    let storage: &'static mut Storage = crate::keep(Storage::new());
    let seed = (u128::from(generation) << 64 | u128::from(seed)) << 8 | node as u128;
    let config = AdapterConfig { generation, ..AdapterConfig::new("ib0", address(node), neighbours, seed) };
    match Adapter::open(platform, region, crate::host_region(), storage.parts(), &config) {
        Ok(mut adapter) => {
            // Handles of other nodes are to be told apart.
            register(&mut adapter, node as u8);
            adapter
        }
        Err(error) => panic!("node {node}: {error}; {:#?}", world.refusals(node)),
    }
}

impl Net {
    /// Nodes on a fabric without faults.
    #[must_use]
    pub fn new(seed: u64, count: usize) -> Self {
        Self::with(&WorldConfig::new(seed), count)
    }

    /// Nodes in a world made so.
    #[must_use]
    pub fn with(config: &WorldConfig, count: usize) -> Self {
        Self::with_memory(config, count, MEMORY)
    }

    /// The same with so many bytes of memory for each node.
    #[must_use]
    pub fn with_memory(config: &WorldConfig, count: usize, memory: usize) -> Self {
        Self::with_devices(
            config,
            (0..count).map(|node| Profile::of(usual_card(), node as u16)).collect(),
            memory,
        )
    }

    /// Nodes with InfiniBand ports, whatever is usual.
    #[must_use]
    pub fn on_infiniband(config: &WorldConfig, count: usize) -> Self {
        Self::with_profiles(config, (0..count).map(|node| Profile::of(&CONNECTX_5, node as u16)).collect())
    }

    /// Nodes whose adapters were opened elsewhere. They cannot [`crash`](Self::crash).
    #[must_use]
    pub fn of_adapters(world: Rc<World>, nodes: Vec<Node>) -> Self {
        Self { world, nodes, neighbours: &[], seed: 0, idle_steps: 0 }
    }

    /// Nodes with these HCAs.
    #[must_use]
    pub fn with_profiles(config: &WorldConfig, profiles: Vec<Profile>) -> Self {
        Self::with_devices(config, profiles, MEMORY)
    }

    fn with_devices(config: &WorldConfig, profiles: Vec<Profile>, memory: usize) -> Self {
        let world = World::new(config);
        let count = profiles.len();
        let card = profiles.first().map_or(&CONNECTX_5, |profile| profile.card);
        let attached: Vec<_> = profiles.into_iter().map(|profile| world.attach(profile, memory)).collect();
        let neighbours: Vec<Neighbour> =
            (0..count + 1).map(|node| (address(node), gid(card, node))).collect();
        let neighbours: &'static [Neighbour] = crate::keep(neighbours);
        let nodes = attached
            .into_iter()
            .enumerate()
            .map(|(node, (platform, region))| boot(platform, region, (node, 0), neighbours, config.seed))
            .collect();
        Self { world, nodes, neighbours, seed: config.seed, idle_steps: 0 }
    }

    /// A node's owner is gone without a word, whatever it was at, and boots again, for the `generation`th time. As everybody who finds an
    /// HCA at work, it resets that before it gives it memory.
    pub fn crash(&mut self, node: usize, generation: u64) {
        let platform = self.world.platform(node);
        self.world.reset(node);
        self.world.enable(node);
        let region = self.world.memory(node).region_again();
        let again = boot(platform, region, (node, generation), self.neighbours, self.seed);
        std::mem::forget(std::mem::replace(&mut self.nodes[node], again));
    }

    /// Runs everything once, or lets time pass if there is nothing to run.
    ///
    /// # Panics
    /// If a node wants to run at once and has nothing to do, over and over.
    #[track_caller]
    pub fn step(&mut self) {
        let (now, turns) = (self.world.now(), self.world.turns());
        let instant = Instant::from_nanos(now);
        let mut wake = Wake::At(instant + Duration::from_millis(1));
        for node in &mut self.nodes {
            wake = wake.earliest(node.poll(instant));
        }
        self.world.idle_until(wake);
        let idle = wake.is_due(instant) && self.world.turns() == turns;
        self.idle_steps = if idle { self.idle_steps + 1 } else { 0 };
        assert!(self.idle_steps < IDLE_STEPS, "a node wants to run without end: {wake:?} at {instant:?}");
    }

    /// Runs until `done` has an answer.
    #[track_caller]
    pub fn until<T>(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> Option<T>) -> T {
        let end = self.world.now() + LIMIT;
        loop {
            if let Some(answer) = done(self) {
                return answer;
            }
            if self.world.now() > end {
                for node in 0..self.nodes.len() {
                    eprintln!("refusals of node {node}: {:#?}", self.world.refusals(node));
                    eprintln!("{:?}", self.nodes[node].port_counters());
                }
                panic!("waited in vain for {what}");
            }
            self.step();
        }
    }

    /// Lets virtual time pass with everybody running.
    #[track_caller]
    pub fn pass(&mut self, nanoseconds: u64) {
        let end = self.world.now() + nanoseconds;
        while self.world.now() < end {
            self.step();
        }
    }

    /// The next event of an EVD.
    #[track_caller]
    pub fn event(&mut self, node: usize, evd: EvdHandle) -> EventData {
        let event = self.until("an event", |net| match net.nodes[node].evd_dequeue(evd) {
            Ok(event) => Some(event),
            Err(DatReturn::QUEUE_EMPTY) => None,
            Err(error) => panic!("{error}"),
        });
        assert_eq!(event.evd, evd);
        event.data
    }

    /// Sends one message of `len` bytes each way and checks it.
    pub fn ping(&mut self, sides: &[Side; 2], len: usize, message: u64) {
        for from in [0, 1] {
            let to = 1 - from;
            let (source, sink) = (&sides[from], &sides[to]);
            source.fill(0, len, message + from as u64);
            let none = CompletionFlags::empty();
            self.nodes[to].ep_post_recv(sink.ep, &[sink.segment(len, len)], 1, none).unwrap();
            self.nodes[from].ep_post_send(source.ep, &[source.segment(0, len)], 2, none).unwrap();
            let received = self.dto(to, sink.recv);
            assert_eq!((received.status, received.transferred_length), (DtoStatus::Success, len as u64));
            assert_eq!(self.dto(from, source.request).status, DtoStatus::Success);
            sink.check(len, len, message + from as u64);
        }
    }

    /// The next event, which is a completion.
    #[track_caller]
    pub fn dto(&mut self, node: usize, evd: EvdHandle) -> DtoCompletion {
        match self.event(node, evd) {
            EventData::Dto(completion) => completion,
            other => panic!("not a completion: {other:?}"),
        }
    }

    /// The next event, which is a connection event of this EP.
    #[track_caller]
    pub fn connection(&mut self, node: usize, side: &Side) -> ConnectionEvent {
        match self.event(node, side.connect) {
            EventData::Connection { event, ep, .. } if ep == side.ep => event,
            other => panic!("not a connection event of the EP: {other:?}"),
        }
    }

    /// The EVD holds nothing.
    #[track_caller]
    pub fn empty(&mut self, node: usize, evd: EvdHandle) {
        assert_eq!(self.nodes[node].evd_dequeue(evd), Err(DatReturn::QUEUE_EMPTY));
    }

    /// An open IA with a zone, memory and EVDs of their own for each stream.
    pub fn side(&mut self, node: usize, options: &Options) -> Side {
        let memory = self.nodes[node].dma_alloc(options.memory, 4096).unwrap();
        self.side_over(node, options, Box::leak(Box::new(memory)).as_slice())
    }

    /// The same over a buffer that is there.
    pub fn side_over(&mut self, node: usize, options: &Options, memory: DmaSlice<'static>) -> Side {
        let adapter = &mut self.nodes[node];
        let (ia, asynchronous) = adapter.ia_open(options.name, 8, None).unwrap();
        let pz = adapter.pz_create(ia).unwrap();
        let lmr = adapter.lmr_create(ia, memory, pz, MemPriv::ALL).unwrap();
        let merged = EvdFlags::DTO | EvdFlags::CONNECTION | EvdFlags::CR;
        let (recv, request, connect, cr) = if options.merged {
            let evd = adapter.evd_create(ia, 64, None, merged).unwrap();
            (evd, evd, evd, evd)
        } else {
            (
                adapter.evd_create(ia, 64, None, EvdFlags::DTO).unwrap(),
                adapter.evd_create(ia, 64, None, EvdFlags::DTO).unwrap(),
                adapter.evd_create(ia, 8, None, EvdFlags::CONNECTION).unwrap(),
                adapter.evd_create(ia, 8, None, EvdFlags::CR).unwrap(),
            )
        };
        let ep = adapter
            .ep_create(ia, Some(pz), Some(recv), Some(request), Some(connect), Some(&options.attributes))
            .unwrap();
        Side { ia, asynchronous, pz, memory, lmr, recv, request, connect, cr, ep }
    }

    /// Two nodes' EPs, connected: 0 to 1, service 7.
    #[track_caller]
    pub fn pair(&mut self, options: &Options) -> [Side; 2] {
        let sides = [self.side(0, options), self.side(1, options)];
        self.connect(&sides);
        sides
    }

    /// Connects two sides.
    #[track_caller]
    pub fn connect(&mut self, [active, passive]: &[Side; 2]) {
        let psp = self.nodes[1].psp_create(passive.ia, 7, passive.cr, PspFlags::Consumer).unwrap();
        self.ask(active, 7, TIMEOUT_INFINITE, b"");
        let cr = self.request(passive, psp);
        self.nodes[1].cr_accept(cr, Some(passive.ep), b"").unwrap();
        assert_eq!(self.connection(0, active), ConnectionEvent::Established);
        assert_eq!(self.connection(1, passive), ConnectionEvent::Established);
        self.nodes[1].psp_free(psp).unwrap();
    }

    /// Node 0 asks node 1.
    #[track_caller]
    pub fn ask(&mut self, active: &Side, qualifier: u64, timeout_us: u32, private_data: &[u8]) {
        let to = address(1);
        let flags = ConnectFlags::Default;
        self.nodes[0]
            .ep_connect(active.ep, &to, qualifier, timeout_us, private_data, Qos::BestEffort, flags)
            .unwrap();
    }

    /// The request that arrives at node 1.
    #[track_caller]
    pub fn request(&mut self, passive: &Side, service: PspHandle) -> CrHandle {
        match self.event(1, passive.cr) {
            EventData::ConnectionRequest {
                sp: dat_nostd::ServicePoint::Psp(psp),
                local_address,
                conn_qual,
                cr,
            } => {
                assert_eq!((psp, local_address), (service, address(1)));
                assert_eq!(self.nodes[1].psp_query(psp).unwrap().conn_qual, conn_qual);
                cr
            }
            other => panic!("not a request: {other:?}"),
        }
    }

    /// Nothing that any model refused.
    #[track_caller]
    pub fn assert_no_refusals(&self) {
        for node in 0..self.nodes.len() {
            assert_eq!(self.world.refusals(node), Vec::<String>::new());
        }
    }
}

/// How a side is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// The IA's name.
    pub name: &'static str,
    /// One EVD for everything.
    pub merged: bool,
    /// Bytes of registered memory.
    pub memory: usize,
    /// The EP's.
    pub attributes: EpAttributes,
}

impl Default for Options {
    fn default() -> Self {
        Self { name: "ib0", merged: false, memory: 1 << 20, attributes: EpAttributes::DEFAULT }
    }
}

/// One end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Side {
    /// The IA.
    pub ia: IaHandle,
    /// Its asynchronous EVD.
    pub asynchronous: EvdHandle,
    /// Protection zone of everything here.
    pub pz: PzHandle,
    /// Registered memory, all rights. Its buffer is leaked, because sides are copied about.
    pub memory: DmaSlice<'static>,
    /// Its registration.
    pub lmr: LmrCreated,
    /// Receive completions.
    pub recv: EvdHandle,
    /// Request completions.
    pub request: EvdHandle,
    /// Connection events.
    pub connect: EvdHandle,
    /// Connection requests.
    pub cr: EvdHandle,
    /// The endpoint.
    pub ep: EpHandle,
}

impl Side {
    /// A segment of this side's memory.
    #[must_use]
    pub fn segment(&self, offset: usize, len: usize) -> LmrTriplet {
        let at = self.lmr.registered_address + offset as u64;
        LmrTriplet::new(self.lmr.lmr_context, at, len as u64)
    }

    /// The same as the peer names it.
    #[must_use]
    pub fn remote(&self, offset: usize, len: usize) -> RmrTriplet {
        let at = self.lmr.registered_address + offset as u64;
        RmrTriplet::new(self.lmr.rmr_context, at, len as u64)
    }

    /// Fills memory with the pattern of `message`.
    pub fn fill(&self, offset: usize, len: usize, message: u64) {
        let mut bytes = vec![0; len];
        payload(message).fill(0, &mut bytes);
        self.memory.write(offset, &bytes).unwrap();
    }

    /// Checks memory against the pattern of `message`.
    #[track_caller]
    pub fn check(&self, offset: usize, len: usize, message: u64) {
        let mut bytes = vec![0; len];
        self.memory.read(offset, &mut bytes).unwrap();
        assert_eq!(payload(message).mismatch(0, &bytes), None, "message {message} of {len} bytes");
    }
}

/// The bytes of a message.
#[must_use]
pub const fn payload(message: u64) -> Payload {
    Payload::new(0, 0, message)
}

//! A node whose peers are nodes of their own: each with its GID, its address, its protection zone and its keys.

use dat_nostd::{
    Adapter, AdapterConfig, AdapterParts, CloseFlags, DmaBuffer, Gid, Neighbour, adapter_storage,
};
use driver_mlx::{DmaRegion, Instant, Wake};
use harness::dat::{HCA, address, register};
use harness::platform::{ModelBar, ModelPlatform};
use harness::rds::{GENERATION, LIMIT, at, message};
use harness::{World, WorldConfig};
use hca_model::Profile;
use rds_nostd::{
    Arrival, Control, Msg, MsgFlags, RdmaArgs, RdmaCookie, RdmaFlags, RdmaStatus, Rds, RdsConfig, RdsError,
    RdsParts, RdsStorage, SocketHandle,
};
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

/// Peers that are nodes, and zones without a node.
const PEERS: usize = 250;
const ZONES: usize = 1000;
/// Peers that connect at once.
const AT_ONCE: usize = 25;
const FRAMES: usize = 8000;
/// What the node may take, tables and DMA memory together, bytes.
const MOST: usize = 64 << 20;
const PEERS_MEMORY: usize = 8 << 20;
/// Bytes that each peer writes.
const LEN: usize = 64;
const PORT: u16 = 4000;

adapter_storage! {
    struct Tables {
        bar: ModelBar, dma_bytes: MOST, eps: PEERS + 8, evds: 8, pzs: PEERS + 8,
        lmrs: 2 * PEERS + 8, events: 8192, connections: 2 * PEERS, paths: PEERS + 8,
    }
}
adapter_storage! {
    struct PeersTables { bar: ModelBar, dma_bytes: PEERS_MEMORY, eps: 4, evds: 8, pzs: 8, lmrs: 8, connections: 16 }
}
adapter_storage! {
    struct ZonesTables {
        bar: ModelBar, dma_bytes: MOST, eps: 8, evds: 8, pzs: ZONES + 8, lmrs: 2 * ZONES + 8, events: 8192, connections: 40,
    }
}
type ZonesStorage = RdsStorage<4, ZONES, FRAMES, { ZONES + 8 }>;
type Storage = RdsStorage<4, PEERS, FRAMES, { PEERS + 8 }>;
type PeersStorage = RdsStorage<2, 2, 128>;

struct Node {
    adapter: Adapter<'static, ModelPlatform>,
    rds: Rds<'static>,
    socket: SocketHandle,
    memory: DmaBuffer,
}

impl Node {
    /// A node over these tables, that knows these neighbours.
    fn open(
        (platform, region): (ModelPlatform, DmaRegion),
        neighbours: &'static [Neighbour],
        parts: AdapterParts<'static, ModelBar>,
        rds_parts: RdsParts<'static>,
        send_frames: usize,
    ) -> Self {
        let node = platform.node();
        let config =
            AdapterConfig { hca: HCA, ..AdapterConfig::new("ib0", address(node), neighbours, node as u128) };
        let mut adapter =
            Adapter::open(platform, region, harness::host_region(), parts, &config).expect("opens");
        register(&mut adapter, 0);
        let config = RdsConfig { receive_depth: 4, send_depth: 8, send_frames, ..RdsConfig::new(GENERATION) };
        let mut rds = Rds::start(&mut adapter, rds_parts, config).expect("starts");
        let socket = rds.bind(at(node, PORT)).expect("binds");
        let memory = adapter.dma_alloc((PEERS * LEN).next_multiple_of(4096), 4096).expect("memory");
        Self { adapter, rds, socket, memory }
    }

    /// Sends a message to a node.
    fn send(&mut self, to: usize, control: &Control<'_>) -> Option<RdmaCookie> {
        let sent =
            self.rds.sendmsg(&mut self.adapter, self.socket, Msg::to(&at(to, PORT), b"x").with(control));
        sent.expect("room")
    }

    /// The node that the next message is from, if there is one, and the cookie that came with it.
    fn receive(&mut self) -> Option<(usize, Option<RdmaCookie>)> {
        let mut buffer = [0; 8];
        match self.rds.recvmsg(&mut self.adapter, self.socket, &mut buffer, MsgFlags::empty()) {
            Ok(Arrival::Message(message)) => {
                let from = (0..=PEERS).find(|&node| address(node) == message.from.ip());
                Some((from.expect("a node"), message.cookie))
            }
            Ok(_) | Err(RdsError::Again) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Begins to write the own bytes into what a cookie of the server names.
    fn write(&mut self, cookie: RdmaCookie) {
        let local = [self.memory.slice(0, LEN).expect("inside")];
        let flags = RdmaFlags::NOTIFY_ME | RdmaFlags::READWRITE | RdmaFlags::SILENT;
        let args = RdmaArgs {
            cookie,
            remote_offset: 0,
            remote_bytes: LEN as u64,
            local: &local,
            flags,
            user_token: 1,
        };
        let control = Control { rdma: Some(args), ..Control::default() };
        self.rds
            .sendmsg(&mut self.adapter, self.socket, Msg::to(&at(0, PORT), &[]).with(&control))
            .expect("room");
    }

    fn outcome(&mut self) -> Option<RdmaStatus> {
        self.rds.take_notification(self.socket).expect("open").map(|told| told.status)
    }
}

struct Ground {
    world: Rc<World>,
    /// The server first.
    nodes: Vec<Node>,
}

impl Ground {
    fn new() -> Self {
        let world = World::new(&WorldConfig::new(13));
        let memory = |node| if node == 0 { MOST } else { PEERS_MEMORY };
        let attached: Vec<_> =
            (0..=PEERS).map(|node| world.attach(Profile::node(node as u16), memory(node))).collect();
        let gid = |node| Gid::new(Gid::DEFAULT_PREFIX, Profile::port_guid_of(node as u16));
        let neighbours: &[Neighbour] =
            harness::keep((0..=PEERS).map(|node| (address(node), gid(node))).collect::<Vec<_>>());
        let open = |(node, attached)| {
            if node == 0 {
                let parts = harness::keep(Tables::new()).parts();
                Node::open(attached, neighbours, parts, harness::keep(Storage::new()).parts(), 3000)
            } else {
                // The server's address is all that a peer knows.
                let parts = harness::keep(PeersTables::new()).parts();
                Node::open(attached, &neighbours[..1], parts, harness::keep(PeersStorage::new()).parts(), 64)
            }
        };
        let nodes = attached.into_iter().enumerate().map(open).collect();
        Self { world, nodes }
    }

    /// Runs all nodes until there is an answer for each of `waiting`.
    fn until<T>(
        &mut self,
        what: &str,
        waiting: &[usize],
        mut answer: impl FnMut(&mut [Node], usize) -> Option<T>,
    ) -> Vec<T> {
        let end = self.world.now() + LIMIT;
        let mut answers: Vec<Option<T>> = waiting.iter().map(|_| None).collect();
        loop {
            for (answered, &node) in answers.iter_mut().zip(waiting) {
                if answered.is_none() {
                    *answered = answer(&mut self.nodes, node);
                }
            }
            if answers.iter().all(Option::is_some) {
                return answers.into_iter().flatten().collect();
            }
            let left = answers.iter().filter(|answer| answer.is_none()).count();
            assert!(self.world.now() < end, "in vain: {what}, {left} are left");
            let now = Instant::from_nanos(self.world.now());
            let mut wake = Wake::Idle;
            for node in &mut self.nodes {
                wake = wake.earliest(node.adapter.poll(now));
                wake = wake.earliest(node.rds.poll(&mut node.adapter, now));
            }
            self.world.idle_until(wake);
        }
    }
}

/// Each peer gets a key for a part of the server's memory and writes there. The key of another one is of no use to it.
#[test]
fn every_peer_has_a_zone_and_a_key_of_its_own() {
    with_stack(exchange);
}

/// A zone is a protection domain, a key for the frames and one for what is offered. A node can offer before it is connected.
#[test]
fn a_thousand_zones_and_their_keys_fit_into_64_mib() {
    with_stack(offer);
}

/// Runs a test whose tables pass over the stack on their way to the heap.
fn with_stack(test: fn()) {
    let thread = std::thread::Builder::new().stack_size(4 * MOST).spawn(test);
    thread.expect("a thread").join().expect("it ends well");
}

fn offer() {
    let world = World::new(&WorldConfig::new(14));
    let parts = harness::keep(ZonesTables::new()).parts();
    let rds_parts = harness::keep(ZonesStorage::new()).parts();
    let Node { mut adapter, mut rds, socket, memory } =
        Node::open(world.attach(Profile::node(0), MOST), &[], parts, rds_parts, 3000);
    let part = memory.slice(0, LEN).expect("inside");
    let mut cookies = std::collections::HashSet::new();
    for index in 0..ZONES {
        let peer = Ipv4Addr::new(10, 1, (index / 250) as u8, 1 + (index % 250) as u8);
        let to = SocketAddr::new(peer.into(), PORT);
        let none = RdmaFlags::empty();
        cookies.insert(rds.get_mr_for_dest(&mut adapter, socket, to, part, none).expect("offered"));
    }
    assert_eq!(cookies.len(), ZONES, "each has another key");
    let census = adapter.census();
    assert!(census.pzs > ZONES && census.lmrs > 2 * ZONES, "{census:?}");
    let tables = size_of::<ZonesTables>() + size_of::<ZonesStorage>() + size_of::<Rds<'_>>();
    fits(&adapter, tables);
    rds.stop(&mut adapter, CloseFlags::Abrupt, |_| {}).expect("stops");
    adapter.dma_free(memory).expect("freed");
    adapter.close().expect("closes");
    assert_eq!(world.census(0).total(), 0, "left behind: {}", world.census(0));
}

/// Checks that a node with so many bytes of tables keeps within the limit.
fn fits(adapter: &Adapter<'_, ModelPlatform>, tables: usize) {
    let dma = MOST - adapter.census().free_bytes;
    assert!(dma + tables <= MOST, "{dma} bytes of DMA memory and {tables} of tables");
}

fn exchange() {
    let mut ground = Ground::new();
    let clients: Vec<usize> = (1..=PEERS).collect();
    let mut cookies = Vec::new();
    for some in clients.chunks(AT_ONCE) {
        for &node in some {
            let bytes = message(node, 1, LEN);
            ground.nodes[node].memory.write(0, &bytes).expect("inside");
            assert_eq!(ground.nodes[node].send(0, &Control::default()), None);
        }
        // The server answers whoever comes with a key for a part of its memory.
        cookies.extend(ground.until("a key for each", some, |nodes, node| {
            let server = &mut nodes[0];
            if let Some((from, None)) = server.receive() {
                let Node { adapter, rds, socket, memory } = server;
                let part = memory.slice((from - 1) * LEN, LEN).expect("inside");
                let control = Control { map: Some((part, RdmaFlags::empty())), ..Control::default() };
                let sent = rds.sendmsg(adapter, *socket, Msg::to(&at(from, PORT), b"x").with(&control));
                assert!(sent.expect("room").is_some());
            }
            let (from, cookie) = nodes[node].receive()?;
            assert_eq!(from, 0);
            cookie
        }));
    }
    for (&node, &cookie) in clients.iter().zip(&cookies) {
        ground.nodes[node].write(cookie);
    }
    let ended = ground.until("every write ends", &clients, |nodes, node| nodes[node].outcome());
    assert!(ended.iter().all(|status| *status == RdmaStatus::Success), "{ended:?}");

    let server = &ground.nodes[0];
    assert_eq!(server.rds.connections_up(), PEERS);
    let census = server.adapter.census();
    assert!(
        census.pzs > PEERS && census.lmrs > 2 * PEERS,
        "a zone for each, and two regions in it: {census:?}"
    );
    fits(&server.adapter, size_of::<Tables>() + size_of::<Storage>() + size_of::<Rds<'_>>());
    let written = |ground: &Ground| {
        clients.iter().all(|&node| {
            let mut bytes = [0; LEN];
            ground.nodes[0].memory.read((node - 1) * LEN, &mut bytes).expect("inside");
            bytes == *message(node, 1, LEN)
        })
    };
    assert!(written(&ground), "each wrote its part");

    let thieves = &clients[..4];
    for &node in thieves {
        let other = message(node, 2, LEN);
        ground.nodes[node].memory.write(0, &other).expect("inside");
        ground.nodes[node].write(cookies[node]);
    }
    let ended = ground.until("every attempt ends", thieves, |nodes, node| nodes[node].outcome());
    assert!(ended.iter().all(|status| *status == RdmaStatus::RemoteError), "{ended:?}");
    assert!(written(&ground), "nobody wrote another's part");

    for (node, Node { mut adapter, mut rds, memory, .. }) in ground.nodes.into_iter().enumerate() {
        rds.stop(&mut adapter, CloseFlags::Abrupt, |_| {}).expect("stops");
        adapter.dma_free(memory).expect("freed");
        adapter.close().expect("closes");
        assert_eq!(ground.world.census(node).total(), 0, "left behind: {}", ground.world.census(node));
    }
}

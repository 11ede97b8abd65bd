//! A node with a thousand connections, and the memory that it takes. Of peers that are nodes of their own: `peers.rs`.

use dat_nostd::{Adapter, AdapterConfig, Gid, adapter_storage};
use driver_mlx::{Duration, Instant};
use harness::dat::{HCA, address, register};
use harness::platform::{ModelBar, ModelPlatform};
use harness::rds::GENERATION;
use harness::{World, WorldConfig};
use hca_model::Profile;
use rds_nostd::{Msg, MsgFlags, Rds, RdsConfig, RdsStorage, SocketHandle};
use std::net::SocketAddr;
use std::rc::Rc;

/// Connections to one node: by their types of service they are as many peers to the other one.
const PER_NODE: usize = 250;
const PEERS: usize = 1000;
/// Frames of the node with all of them, and of the others: their memory is a power of two, 32 MiB.
const FRAMES: usize = 8000;
const OTHERS_FRAMES: usize = 6000;
/// What the node may take, tables and DMA memory together, bytes.
const MOST: usize = 64 << 20;

adapter_storage! {
    struct Tables {
        bar: ModelBar, dma_bytes: MOST, eps: PEERS + 8, evds: 8, pzs: PEERS + 8, lmrs: PEERS + 8,
        events: 8192, connections: PEERS + 40,
    }
}
type Storage = RdsStorage<PEERS, PEERS, FRAMES>;
type OthersStorage = RdsStorage<PER_NODE, PER_NODE, OTHERS_FRAMES>;

struct Node {
    adapter: Adapter<'static, ModelPlatform>,
    rds: Rds<'static>,
    sockets: Vec<SocketHandle>,
}

impl Node {
    fn new(world: &Rc<World>, node: usize, count: usize) -> Self {
        let (platform, region) = world.attach(Profile::node(node as u16), MOST);
        let gid = |other| Gid::new(Gid::DEFAULT_PREFIX, Profile::port_guid_of(other as u16));
        let others = (0..count).filter(|other| *other != node);
        let neighbours = harness::keep(others.map(|other| (address(other), gid(other))).collect::<Vec<_>>());
        let config =
            AdapterConfig { hca: HCA, ..AdapterConfig::new("ib0", address(node), neighbours, node as u128) };
        let tables = harness::keep(Tables::new());
        let mut adapter =
            Adapter::open(platform, region, harness::host_region(), tables.parts(), &config).expect("opens");
        register(&mut adapter, 0);
        let (parts, sockets) = if node == 0 {
            (harness::keep(Storage::new()).parts(), PEERS)
        } else {
            (harness::keep(OthersStorage::new()).parts(), PER_NODE)
        };
        let config = RdsConfig {
            receive_depth: 4,
            send_depth: 8,
            send_frames: 3000,
            connections_per_peer: u8::MAX,
            ..RdsConfig::new(GENERATION)
        };
        let mut rds = Rds::start(&mut adapter, parts, config).expect("starts");
        let sockets = (0..sockets).map(|index| {
            let socket = rds.bind(SocketAddr::new(address(node), port(index))).expect("binds");
            rds.set_type_of_service(socket, (index % PER_NODE) as u8).expect("open");
            socket
        });
        let sockets = sockets.collect();
        Self { adapter, rds, sockets }
    }

    fn send(&mut self, socket: usize, to: SocketAddr, bytes: &[u8]) {
        self.rds.sendmsg(&mut self.adapter, self.sockets[socket], Msg::to(&to, bytes)).expect("room");
    }

    /// The next message of a socket, if there is one: from where, and its bytes.
    fn read(&mut self, socket: usize) -> Option<(SocketAddr, Vec<u8>)> {
        let mut buffer = [0; 64];
        let arrival =
            self.rds.recvmsg(&mut self.adapter, self.sockets[socket], &mut buffer, MsgFlags::empty()).ok()?;
        let message = arrival.message().expect("nothing else comes");
        Some((message.from, buffer[..message.len].to_vec()))
    }
}

fn port(index: usize) -> u16 {
    4000 + index as u16
}

/// The node and the socket at the other end of connection `index`.
fn other(index: usize) -> (usize, usize) {
    (1 + index / PER_NODE, index % PER_NODE)
}

fn payload(index: usize, way: usize) -> Vec<u8> {
    (0..64).map(|i| (index * 31 + i * 7 + way) as u8).collect()
}

fn step(world: &World, nodes: &mut [Node]) {
    let now = Instant::from_nanos(world.now());
    for node in nodes.iter_mut() {
        let _ = node.adapter.poll(now);
        let _ = node.rds.poll(&mut node.adapter, now);
    }
    world.idle((now + Duration::from_micros(20)).as_nanos());
}

/// A thousand connections, a message each way on every one, within 64 MiB: the DMA region is no larger than what the tables leave of
/// that, firmware's pages included.
#[test]
fn a_thousand_connections_exchange_messages_within_64_mib() {
    // The tables pass over the stack on their way to the heap.
    let thread = std::thread::Builder::new().stack_size(4 * MOST).spawn(exchange).expect("a thread");
    thread.join().expect("it ends well");
}

fn exchange() {
    let world = World::new(&WorldConfig::new(12));
    let count = 1 + PEERS / PER_NODE;
    let mut nodes: Vec<Node> = (0..count).map(|node| Node::new(&world, node, count)).collect();
    let mut waiting = Vec::new();
    for index in 0..PEERS {
        let (node, socket) = other(index);
        nodes[0].send(index, SocketAddr::new(address(node), port(socket)), &payload(index, 0));
        waiting.push(index);
        // Some at a time: a port asks for so many connections at once as its tables have room for.
        if waiting.len() < 25 && index + 1 < PEERS {
            continue;
        }
        let mut rounds = 0;
        while !waiting.is_empty() {
            rounds += 1;
            assert!(rounds < 20_000, "connections {waiting:?} come up");
            step(&world, &mut nodes);
            waiting.retain(|&index| {
                let (node, socket) = other(index);
                let Some((from, bytes)) = nodes[node].read(socket) else { return true };
                assert_eq!((from, bytes), (SocketAddr::new(address(0), port(index)), payload(index, 0)));
                nodes[node].send(socket, from, &payload(index, 1));
                false
            });
        }
    }
    let mut unread: Vec<usize> = (0..PEERS).collect();
    let mut rounds = 0;
    while !unread.is_empty() {
        rounds += 1;
        assert!(rounds < 20_000, "answers of {unread:?} arrive");
        step(&world, &mut nodes);
        unread.retain(|&index| {
            let Some((from, bytes)) = nodes[0].read(index) else { return true };
            let (node, socket) = other(index);
            assert_eq!((from, bytes), (SocketAddr::new(address(node), port(socket)), payload(index, 1)));
            false
        });
    }
    assert_eq!(nodes[0].rds.connections_up(), PEERS);
    let dma = MOST - nodes[0].adapter.census().free_bytes;
    let tables = size_of::<Tables>() + size_of::<Storage>() + size_of::<Rds<'_>>();
    let taken = dma + tables;
    assert!(taken <= MOST, "{dma} bytes of DMA memory and {tables} of tables");
    println!("{dma} bytes of DMA memory and {tables} of tables: {} KiB each", taken / PEERS / 1024);
}

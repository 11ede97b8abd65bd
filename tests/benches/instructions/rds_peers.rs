//! RDS with many connections, one message on each in turn.

use crate::platform::{self, BenchBar, BenchPlatform};
use dat_nostd::{Adapter, AdapterConfig, Gid, adapter_storage};
use driver_mlx::{Duration, Instant, Wake};
use harness::dat::{address, register};
use harness::rds::GENERATION;
use harness::{World, WorldConfig};
use hca_model::Profile;
use rds_nostd::{
    Arrival, Msg, MsgFlags, RdmaCookie, Rds, RdsConfig, RdsError, RdsStorage, Received, SocketHandle,
};
use std::net::SocketAddr;

/// Messages over each connection, so that what is done once for several counts as it should.
pub const ROUNDS: usize = 40;

const LEN: usize = 64;
/// Connections to one node: by their types of service they are as many peers to the other one.
const PER_NODE: usize = 250;
/// Connections of the node that is counted.
const MOST: usize = 1000;
/// Bytes of an adapter's memory.
const MEMORY: usize = 128 << 20;

type BenchAdapter = platform::BenchAdapter<true>;
adapter_storage! {
    struct Tables {
        bar: BenchBar<true>, dma_bytes: MEMORY, eps: MOST + 8, evds: 8, pzs: MOST + 8,
        lmrs: MOST + 8, events: 8192, connections: MOST + 40,
    }
}

#[inline(never)]
fn measured_rds_peers_send(
    rds: &mut Rds<'_>,
    adapter: &mut BenchAdapter,
    socket: SocketHandle,
    to: SocketAddr,
    bytes: &[u8; LEN],
) -> Result<Option<RdmaCookie>, RdsError> {
    rds.sendmsg(adapter, socket, Msg::to(&to, bytes))
}

#[inline(never)]
fn measured_rds_peers_poll(rds: &mut Rds<'_>, adapter: &mut BenchAdapter, now: Option<Instant>) -> Wake {
    rds.poll(adapter, now.unwrap_or(Instant::ORIGIN))
}

#[inline(never)]
fn measured_rds_peers_recvmsg(
    rds: &mut Rds<'_>,
    adapter: &mut BenchAdapter,
    socket: SocketHandle,
    buffer: &mut [u8; 2 * LEN],
) -> Result<Arrival, RdsError> {
    rds.recvmsg(adapter, socket, buffer, MsgFlags::empty())
}

/// A node with its sockets.
struct Node {
    adapter: BenchAdapter,
    rds: Rds<'static>,
    sockets: Vec<SocketHandle>,
}

impl Node {
    /// A socket for each connection, each with the connection's type of service.
    fn new(mut adapter: BenchAdapter, node: usize, sockets: usize) -> Self {
        let config = RdsConfig {
            receive_depth: 8,
            send_depth: 8,
            send_frames: 5000,
            connections_per_peer: u8::MAX,
            ..RdsConfig::new(GENERATION)
        };
        let parts = if node == 0 {
            Box::leak(Box::new(RdsStorage::<MOST, MOST, 15_000>::new())).parts()
        } else {
            Box::leak(Box::new(RdsStorage::<PER_NODE, PER_NODE, 15_000>::new())).parts()
        };
        let mut rds = Rds::start(&mut adapter, parts, config).expect("starts");
        let sockets = (0..sockets)
            .map(|index| {
                let socket = rds.bind(SocketAddr::new(address(node), port(index))).expect("binds");
                rds.set_type_of_service(socket, (index % PER_NODE) as u8).expect("open");
                socket
            })
            .collect();
        Self { adapter, rds, sockets }
    }
}

/// Some adapters of one world, each of which knows all others.
fn nodes(seed: u64, count: usize) -> Vec<BenchAdapter> {
    let world = World::new(&WorldConfig::new(seed));
    let attached: Vec<_> = (0..count).map(|node| world.attach(Profile::node(node as u16), MEMORY)).collect();
    let nodes = attached.into_iter().enumerate();
    nodes
        .map(|(node, (platform, region))| {
            let gid = |other| Gid::new(Gid::DEFAULT_PREFIX, Profile::port_guid_of(other as u16));
            let others = (0..count).filter(|other| *other != node);
            let neighbours: Vec<_> = others.map(|other| (address(other), gid(other))).collect();
            let random = u128::from(seed) << 8 | node as u128;
            let config = AdapterConfig::new("ib0", address(node), neighbours.leak(), random);
            let tables = Box::leak(Box::new(Tables::new()));
            let platform = BenchPlatform::new(platform);
            let mut adapter =
                Adapter::open(platform.clone(), region, harness::host_region(), tables.parts(), &config)
                    .expect("opens");
            register(&mut adapter, 0);
            BenchAdapter::new(adapter, platform)
        })
        .collect()
}

fn port(index: usize) -> u16 {
    4000 + index as u16
}

/// The node and the socket at the other end of connection `index`.
fn other(index: usize) -> (usize, usize) {
    (1 + index / PER_NODE, index % PER_NODE)
}

fn payload(operation: usize) -> [u8; LEN] {
    std::array::from_fn(|i| (operation * 31 + i * 7) as u8)
}

/// Polls all nodes until all of them have had the time for everything: what one poll takes is bounded.
fn settle(nodes: &mut [Node]) {
    for _ in 0..3 + nodes[0].sockets.len() / 128 {
        nodes[0].adapter.platform().settle();
        let now = nodes[0].adapter.now();
        for node in nodes.iter_mut() {
            let _ = node.adapter.poll(now);
            let _ = node.rds.poll(&mut node.adapter, now);
        }
        nodes[0].adapter.idle(now + Duration::from_micros(100));
    }
}

/// Makes and checks the operations over so many connections.
pub fn run(connections: usize) {
    let count = 1 + connections.div_ceil(PER_NODE);
    let mut all: Vec<Node> = nodes(4, count)
        .into_iter()
        .enumerate()
        .map(|(node, adapter)| Node::new(adapter, node, if node == 0 { connections } else { PER_NODE }))
        .collect();
    let mut buffer = [0; 2 * LEN];
    // Connections are made outside the count, some at a time.
    for index in 0..connections {
        let (node, socket) = other(index);
        let to = SocketAddr::new(address(node), port(socket));
        let hub = &mut all[0];
        hub.rds.sendmsg(&mut hub.adapter, hub.sockets[index], Msg::to(&to, &payload(index))).expect("sends");
        let mut rounds = 0;
        while (index % 25 == 24 || index + 1 == connections)
            && all[0].rds.connections_up()
                + all[1..].iter().map(|node| node.rds.connections_up()).sum::<usize>()
                < 2 * (index + 1)
        {
            rounds += 1;
            assert!(rounds < 10_000, "connection {index} comes up");
            settle(&mut all);
        }
    }
    settle(&mut all);
    drain(&mut all, connections, &mut buffer);

    for round in 0..ROUNDS {
        let (done, batch) = (round * connections, connections);
        for index in 0..batch {
            let (node, socket) = other(index);
            let to = SocketAddr::new(address(node), port(socket));
            let hub = &mut all[0];
            let bytes = payload(done + index);
            let sent =
                measured_rds_peers_send(&mut hub.rds, &mut hub.adapter, hub.sockets[index], to, &bytes);
            assert_eq!(sent, Ok(None));
        }
        settle(&mut all);
        for index in 0..batch {
            let (node, socket) = other(index);
            let Node { adapter, rds, sockets } = &mut all[node];
            let received =
                rds.recvmsg(adapter, sockets[socket], &mut buffer, MsgFlags::empty()).expect("there");
            let received = received.message().expect("a message");
            assert_eq!((received.len, &buffer[..LEN]), (LEN, &payload(done + index)[..]));
            let to = SocketAddr::new(address(0), port(index));
            rds.sendmsg(adapter, sockets[socket], Msg::to(&to, &payload(done + index + 1))).expect("sends");
        }
        // The peers hear of what was acknowledged; the node that is counted takes what they sent.
        all[0].adapter.platform().settle();
        let now = all[0].adapter.now();
        for node in &mut all[1..] {
            let _ = node.adapter.poll(now);
            let _ = node.rds.poll(&mut node.adapter, now);
        }
        all[0].adapter.platform().settle();
        let hub = &mut all[0];
        for _ in 0..=batch / 128 {
            let _ = measured_rds_peers_poll(&mut hub.rds, &mut hub.adapter, Some(now));
        }
        for index in 0..batch {
            let (rds, socket) = (&mut hub.rds, hub.sockets[index]);
            let received = measured_rds_peers_recvmsg(rds, &mut hub.adapter, socket, &mut buffer);
            let (node, socket) = other(index);
            let from = SocketAddr::new(address(node), port(socket));
            let whole = Received { from, len: LEN, message_len: LEN, cookie: None };
            assert_eq!(received, Ok(Arrival::Message(whole)));
            assert_eq!(buffer[..LEN], payload(done + index + 1));
        }
        settle(&mut all);
    }
}

/// Reads what made the connections.
fn drain(all: &mut [Node], connections: usize, buffer: &mut [u8; 2 * LEN]) {
    for index in 0..connections {
        let (node, socket) = other(index);
        let mut rounds = 0;
        loop {
            let Node { adapter, rds, sockets } = &mut all[node];
            if rds.recvmsg(adapter, sockets[socket], buffer, MsgFlags::empty()).is_ok() {
                break;
            }
            rounds += 1;
            assert!(rounds < 1000, "the first message on connection {index}");
            settle(all);
        }
    }
}

//! Binds of memory windows that the adapter has no place for when a connection comes up: they follow, whoever else stalls.

use dat_nostd::{DmaBuffer, Instant, adapter_storage};
use harness::rds::{GENERATION, Nodes, at, message};
use harness::{ModelBar, World, WorldConfig, dat, keep};
use hca_model::Profile;
use rds_nostd::{Control, Msg, RdmaCookie, RdmaFlags, RdmaStatus, Rds, RdsConfig, SocketHandle};
use std::rc::Rc;

/// Binds of node 0 that may be on their way at once, those of all connections together.
const PLACES: usize = 3;
adapter_storage! {
    struct Tables {
        bar: ModelBar, dma_bytes: 64 << 20, eps: 80, lmrs: 128, connections: 160, binds: PLACES,
    }
}

const SEED: u64 = 168;
const NODES: usize = 4;
/// Bytes of each offer, and of the memory that is registered for a peer.
const LEN: usize = 100;
const REGISTERED: usize = 8192;
/// Messages, with offers or not, that more are than a peer's receives and a send queue take.
const MANY: usize = 20;
/// Node 0 offers. Of its peers the first does nothing wrong, the second fills a send queue, the third keeps all places for binds.
const HONEST: usize = 1;
const STALLS: usize = 2;
const KEEPS: usize = 3;

struct Ground {
    nodes: Nodes,
    sockets: Vec<SocketHandle>,
    memory: Rc<DmaBuffer>,
    offers: usize,
}

impl Ground {
    fn new() -> Self {
        let world = World::new(&WorldConfig::new(SEED));
        let attached: Vec<_> =
            (0..NODES).map(|node| world.attach(Profile::node(node as u16), 32 << 20)).collect();
        let adapters = attached.into_iter().enumerate().map(|(node, (platform, region))| {
            if node == 0 {
                let tables = keep(Tables::new());
                dat::open_in(tables.parts(), platform, region, SEED, NODES, 1, node)
            } else {
                dat::open_one(platform, region, SEED, NODES)
            }
        });
        let adapters = adapters.collect::<Result<_, _>>().expect("opens");
        // So few sends that none is kept for binds.
        let (seed, receive_depth, send_depth, send_buffer) = (SEED, 4, 15, 1 << 20);
        let config = RdsConfig { seed, receive_depth, send_depth, send_buffer, ..RdsConfig::new(GENERATION) };
        let mut nodes = Nodes::on(world, adapters, config);
        let sockets: Vec<_> = (0..NODES).map(|node| nodes.bind(node, 4000)).collect();
        let memory = Rc::new(nodes.adapters[0].dma_alloc(NODES * REGISTERED, 4096).expect("memory"));
        for peer in 1..NODES {
            let part = memory.slice(peer * REGISTERED, REGISTERED).expect("inside");
            let (rds, adapter) = (&mut nodes.rds[0], &mut nodes.adapters[0]);
            rds.register_memory(adapter, sockets[0], at(peer, 4000), part).expect("room");
            nodes.send(0, sockets[0], at(peer, 4000), b"connect").expect("room");
            nodes.receive(peer, sockets[peer], &mut [0; 8]);
        }
        Self { nodes, sockets, memory, offers: 0 }
    }

    fn send(&mut self, peer: usize) {
        self.nodes.send(0, self.sockets[0], at(peer, 4000), b"stuck").expect("room");
    }

    /// A message that tells a peer of part of the memory: where it lies, and its cookie.
    fn offer(&mut self, peer: usize) -> (usize, RdmaCookie) {
        let memory = Rc::clone(&self.memory);
        let place = peer * REGISTERED + self.offers * LEN;
        self.offers += 1;
        let part = memory.slice(place, LEN).expect("inside");
        let control = Control { map: Some((part, RdmaFlags::empty())), ..Control::default() };
        let (rds, adapter) = (&mut self.nodes.rds[0], &mut self.nodes.adapters[0]);
        let offered = rds.sendmsg(adapter, self.sockets[0], Msg::to(&at(peer, 4000), b"use").with(&control));
        (place, offered.expect("room").expect("mapped"))
    }

    fn bound(&self) -> u64 {
        self.nodes.rds[0].counters().windows_bound
    }

    fn step(&mut self) {
        (0..20).for_each(|_| self.nodes.step());
    }

    /// What a peer writes by a cookie is where it belongs.
    fn assert_writes(&mut self, peer: usize, (place, cookie): (usize, RdmaCookie)) {
        let text = message(peer, self.offers, LEN);
        let status = self.nodes.write((peer, self.sockets[peer]), at(0, 4000), (cookie, 0), &text);
        assert_eq!(status, RdmaStatus::Success, "node {peer}");
        let mut found = [0; LEN];
        self.memory.read(place, &mut found).expect("inside");
        assert!(found[..] == text);
    }

    /// A node looks at nothing any more, though its HCA goes on: it takes as many messages as there are receives.
    fn freeze(&mut self) -> Rds<'static> {
        self.nodes.rds.pop().expect("the last one")
    }

    fn close(self) {
        self.nodes.close_with([Rc::into_inner(self.memory).expect("nobody has it")]);
    }
}

/// Windows whose binds were lost with their connections, which come up while another peer keeps all places. As soon as there are places
/// they are bound, though those of a peer that stalls come before them and cannot be; and those when it goes on.
#[test]
fn binds_that_found_no_place_follow() {
    no_place_was_found(false);
}

/// The same if the places come free because the peer that kept them is lost.
#[test]
fn binds_follow_where_the_peer_in_their_way_is_lost() {
    no_place_was_found(true);
}

fn no_place_was_found(is_lost: bool) {
    let mut ground = Ground::new();
    let breaks = ground.nodes.rds[0].counters().conn_reset;
    for peer in [HONEST, STALLS] {
        ground.nodes.world.set_cable(peer, false);
        ground.send(peer);
    }
    let stalls = ground.offer(STALLS);
    let honest = [0; 2].map(|_| ground.offer(HONEST));
    assert_eq!(ground.bound(), PLACES as u64);
    ground.nodes.until("both are lost", |nodes| nodes.rds[0].counters().conn_reset >= breaks + 2);

    let mut keeper = ground.freeze();
    let (mut kept, mut bound) = (0, 0);
    while core::mem::replace(&mut bound, ground.bound()) < ground.bound() {
        assert!(kept < MANY, "there are receives for all");
        ground.offer(KEEPS);
        ground.step();
        kept += 1;
    }

    ground.nodes.world.set_cable(STALLS, true);
    ground.nodes.receive(STALLS, ground.sockets[STALLS], &mut [0; 8]);
    let staller = ground.freeze();
    for _ in 0..MANY {
        ground.send(STALLS);
    }
    ground.nodes.world.set_cable(HONEST, true);
    for _ in 0..3 {
        ground.nodes.receive(HONEST, ground.sockets[HONEST], &mut [0; 8]);
    }
    ground.step();

    if is_lost {
        ground.nodes.world.set_cable(KEEPS, false);
        let breaks = ground.nodes.rds[0].counters().conn_reset;
        ground.nodes.until("it is lost", |nodes| nodes.rds[0].counters().conn_reset > breaks);
        ground.nodes.world.set_cable(KEEPS, true);
    } else {
        let before = keeper.counters().recv_queued;
        ground.nodes.until("the places are free", |nodes| {
            let now = Instant::from_nanos(nodes.world.now());
            let _ = keeper.poll(&mut nodes.adapters[KEEPS], now);
            keeper.counters().recv_queued == before + kept as u64
        });
    }
    for offered in honest {
        ground.assert_writes(HONEST, offered);
    }

    ground.nodes.rds.extend([staller, keeper]);
    for _ in 0..MANY + 1 {
        ground.nodes.receive(STALLS, ground.sockets[STALLS], &mut [0; 8]);
    }
    // The next bind that is over finds room there.
    let more = ground.offer(HONEST);
    ground.nodes.receive(HONEST, ground.sockets[HONEST], &mut [0; 8]);
    ground.assert_writes(HONEST, more);
    ground.assert_writes(STALLS, stalls);
    ground.close();
}

//! RDS where connections break, memory is short, and peers come, go and misbehave. Nodes sleep as the answers of `poll` allow,
//! so a deadline that forgets something shows as a run that does not end.

use dat_nostd::CloseFlags;
use driver_mlx::Instant;
use harness::dat::due;
use harness::dat::{self, ModelAdapter, address};
use harness::rds::{GENERATION, boot};
use harness::{Next, Task, World, WorldConfig};
use rds_nostd::{
    Arrival, Counters, Generation, Msg, MsgFlags, Rds, RdsConfig, RdsError, RdsStorage, SocketHandle,
};
use std::cell::Cell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;

const SECOND: u64 = 1_000_000_000;
/// Virtual time that a run may take.
const LIMIT: u64 = 120 * SECOND;
/// Longer than a connection goes without asking for an acknowledgement: after it nothing stays unacknowledged.
const ASKS: usize = 140_000;
const DEPTH: u16 = 32;

fn at(node: usize, port: u16) -> SocketAddr {
    SocketAddr::new(address(node), port)
}

fn message(from: SocketAddr, to: SocketAddr, number: usize, len: usize) -> Vec<u8> {
    let mut word = u64::from(from.port()) << 48 | u64::from(to.port()) << 32 | number as u64;
    for address in [from.ip(), to.ip()] {
        word = word.rotate_left(9) ^ address.to_string().bytes().fold(0, |a, b| a * 31 + u64::from(b));
    }
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        bytes.extend((word ^ word >> 29).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn world(seed: u64, faults: &str) -> Rc<World> {
    let mut config = WorldConfig::new(seed);
    config.fabric.faults = faults.parse().expect("a list of faults");
    World::new(&config)
}

fn start<const FRAMES: usize>(adapter: &mut ModelAdapter, config: RdsConfig) -> Rds<'static> {
    let storage = Box::leak(Box::new(RdsStorage::<40, 4, FRAMES>::new()));
    Rds::start(adapter, storage.parts(), config).expect("starts")
}

fn config(seed: u64) -> RdsConfig {
    RdsConfig { seed, receive_depth: DEPTH, send_buffer: 1 << 20, ..RdsConfig::new(GENERATION) }
}

/// A message to send: from socket number, to whom, its number among those of this pair, its length.
struct Job {
    socket: usize,
    to: SocketAddr,
    number: usize,
    len: usize,
}

/// A node with what it has to send and what it got.
struct Node {
    adapter: ModelAdapter,
    rds: Rds<'static>,
    sockets: Vec<SocketHandle>,
    jobs: Vec<Job>,
    /// Number of the next message, and lengths, by (from, to).
    expected: HashMap<(SocketAddr, SocketAddr), (usize, Vec<usize>)>,
    sent: usize,
    /// Before this time nothing is read.
    reads_from: u64,
}

impl Node {
    fn bind(&mut self, here: SocketAddr) {
        self.sockets.push(self.rds.bind(here).expect("binds"));
    }

    /// One turn; `left` counts what all nodes together still have to receive.
    fn turn(&mut self, now: u64, left: &Cell<usize>, buffer: &mut [u8]) -> Next {
        let Self { adapter, rds, .. } = self;
        let mut deadlines = vec![
            due(adapter.poll(Instant::from_nanos(now))),
            due(rds.poll(adapter, Instant::from_nanos(now))),
        ];
        let mut moved = false;
        while let Some(job) = self.jobs.get(self.sent) {
            let socket = self.sockets[job.socket];
            let from = rds.local_address(socket).expect("open");
            match rds.sendmsg(adapter, socket, Msg::to(&job.to, &message(from, job.to, job.number, job.len)))
            {
                Ok(_) => {}
                Err(RdsError::Again | RdsError::NoBufferSpace | RdsError::Congested) => break,
                Err(error) => panic!("{error}"),
            }
            self.sent += 1;
            moved = true;
        }
        if now < self.reads_from {
            deadlines.push(Some(self.reads_from));
        } else {
            for &socket in &self.sockets {
                let here = rds.local_address(socket).expect("open");
                while let Ok(Arrival::Message(received)) =
                    rds.recvmsg(adapter, socket, buffer, MsgFlags::empty())
                {
                    let (next, lengths) =
                        self.expected.get_mut(&(received.from, here)).expect("from somebody who sends");
                    assert_eq!(lengths.get(*next), Some(&received.message_len), "{here}: number {next}");
                    let bytes = message(received.from, here, *next, received.message_len);
                    assert!(buffer[..received.len] == bytes, "{here}: number {next} from {}", received.from);
                    *next += 1;
                    left.set(left.get() - 1);
                    moved = true;
                }
            }
        }
        let settled = self.sockets.iter().all(|&socket| rds.unacknowledged(socket) == Ok(0));
        if left.get() == 0 && settled && self.sent == self.jobs.len() {
            // The peers may still wait for an answer.
            deadlines.push(Some(now + SECOND));
            let _ = adapter.poll(Instant::from_nanos(now));
        }
        if moved { Next::Again } else { dat::sleep(adapter, now, deadlines) }
    }
}

fn nodes<const FRAMES: usize>(world: &Rc<World>, seed: u64, count: usize, config: RdsConfig) -> Vec<Node> {
    let adapters = dat::open(world, seed, count, 32 << 20).expect("opens");
    let node = |(index, mut adapter)| Node {
        rds: start::<FRAMES>(&mut adapter, RdsConfig { seed: seed * 10 + index as u64, ..config }),
        adapter,
        sockets: Vec::new(),
        jobs: Vec::new(),
        expected: HashMap::new(),
        sent: 0,
        reads_from: 0,
    };
    adapters.into_iter().enumerate().map(node).collect()
}

/// Adds messages of these lengths from a socket of a node to a socket of another.
fn plan(nodes: &mut [Node], (from, socket): (usize, usize), to: (usize, usize), lengths: &[usize]) {
    let here = nodes[from].rds.local_address(nodes[from].sockets[socket]).expect("open");
    let there = nodes[to.0].rds.local_address(nodes[to.0].sockets[to.1]).expect("open");
    let known = &mut nodes[to.0].expected.entry((here, there)).or_default().1;
    let first = known.len();
    known.extend(lengths);
    let job = |(i, &len)| Job { socket, to: there, number: first + i, len };
    nodes[from].jobs.extend(lengths.iter().enumerate().map(job));
}

/// Runs all nodes until everything planned has arrived and is acknowledged.
fn run(world: &Rc<World>, nodes: &mut [Node]) {
    let planned = |node: &Node| node.expected.values().map(|(next, all)| all.len() - next).sum::<usize>();
    let left = Cell::new(nodes.iter().map(planned).sum());
    let done = Cell::new(0);
    let count = nodes.len();
    let mut tasks: Vec<Task<'_>> = Vec::new();
    for (index, node) in nodes.iter_mut().enumerate() {
        let (left, done) = (&left, &done);
        let mut buffer = vec![0; 1 << 20];
        let mut counted = false;
        tasks.push(Task::new(index, move |now| {
            let next = node.turn(now, left, &mut buffer);
            let Node { rds, sockets, .. } = node;
            let settled = sockets.iter().all(|&socket| rds.unacknowledged(socket) == Ok(0));
            if left.get() == 0 && settled && !counted {
                counted = true;
                done.set(done.get() + 1);
            }
            if done.get() == count { Next::Done } else { next }
        }));
    }
    let outcome = world.run(&mut tasks, LIMIT);
    drop(tasks);
    if let Err(stalled) = outcome {
        let counters: Vec<&Counters> = nodes.iter().map(|node| node.rds.counters()).collect();
        panic!("{stalled}; {} messages missing; {counters:#?}", left.get());
    }
}

fn close(world: &World, nodes: Vec<Node>) {
    for (index, Node { mut adapter, mut rds, .. }) in nodes.into_iter().enumerate() {
        rds.stop(&mut adapter, CloseFlags::Abrupt, |_| {}).expect("stops");
        adapter.close().expect("closes");
        assert_eq!(world.census(index).total(), 0, "left behind: {}", world.census(index));
        assert_eq!(world.refusals(index), [""; 0]);
    }
}

fn total(nodes: &[Node], of: fn(&Counters) -> u64) -> u64 {
    nodes.iter().map(|node| of(node.rds.counters())).sum()
}

/// Three nodes, four sockets each, all to all, on a fabric so bad and with HCAs so impatient that connections break in
/// mid-message and are made anew: every message arrives once, whole and in order, and no frame is lost.
#[test]
fn broken_connections_lose_and_double_nothing() {
    let lengths = [0, 1, 64, 4095, 4096, 4097, 8193, 3, 65_536, 500, ASKS];
    let mut broken = 0;
    for seed in 1..=2 {
        let world = world(seed, "loss=0.2%,dup=1%,reorder=0.2%");
        let settings = RdsConfig { retry_count: 0, ..config(seed) };
        let mut nodes = nodes::<1024>(&world, seed, 3, settings);
        let free: Vec<usize> = nodes.iter().map(|node| node.rds.free_frames()).collect();
        for (index, node) in nodes.iter_mut().enumerate() {
            (0..4).for_each(|port| node.bind(at(index, 4000 + port)));
        }
        for from in 0..12 {
            for to in 0..12 {
                if from / 4 != to / 4 {
                    plan(&mut nodes, (from / 4, from % 4), (to / 4, to % 4), &lengths);
                }
            }
        }
        run(&world, &mut nodes);
        for (node, free) in nodes.iter().zip(free) {
            // One may have broken after its last message was acknowledged: then nothing is posted to it.
            let posted: Vec<u32> =
                node.rds.ib_connections_info(&node.adapter).map(|info| info.cache_allocs).collect();
            assert_eq!(posted.len(), 2, "one connection to each peer, whatever the sockets");
            let depth = u32::from(DEPTH / 2)..=u32::from(DEPTH);
            assert!(posted.iter().all(|posted| *posted == 0 || depth.contains(posted)), "{posted:?}");
            let posted: u32 = posted.iter().sum();
            assert_eq!(node.rds.free_frames(), free - posted as usize, "seed {seed}");
        }
        assert_eq!(total(&nodes, |c| c.recv_protocol_errors + c.recv_drop_bad_checksum + c.ack_beyond), 0);
        assert_eq!(total(&nodes, |c| c.recv_drop_no_sock), 0);
        let resets = total(&nodes, |c| c.conn_reset);
        let again = total(&nodes, |c| c.send_retransmitted);
        println!("seed {seed}: {resets} resets, {again} messages sent again");
        assert!(resets > 0 && again > 0, "seed {seed}: connections broke with messages under way");
        broken += total(&nodes, |c| c.recv_drop_old_seq);
        close(&world, nodes);
    }
    assert!(broken > 0, "some had arrived before, and were known");
}

/// Both sides send their first message in the same moment: one connection comes of it.
#[test]
fn crossed_connects_make_one_connection() {
    let mut crossed = 0;
    for seed in 20..26 {
        let world = world(seed, "none");
        let mut nodes = nodes::<1024>(&world, seed, 2, config(seed));
        (0..2).for_each(|index| nodes[index].bind(at(index, 4000)));
        plan(&mut nodes, (0, 0), (1, 0), &[10, ASKS]);
        plan(&mut nodes, (1, 0), (0, 0), &[11, ASKS]);
        let began = world.now();
        run(&world, &mut nodes);
        crossed += u32::from(total(&nodes, |c| c.connect_raced) > 0);
        assert!(
            world.now() - began < 3 * SECOND,
            "seed {seed}: took {} ms",
            (world.now() - began) / 1_000_000
        );
        assert!(nodes.iter().all(|node| node.rds.connections_up() == 1));
        close(&world, nodes);
    }
    assert!(crossed >= 4, "they crossed with {crossed} of 6 seeds");
}

/// A receiver that does not read holds the sender back; when it reads, everything is there.
#[test]
fn back_pressure_loses_nothing() {
    let world = world(40, "loss=0.5%");
    let mut nodes = nodes::<128>(&world, 40, 2, config(40));
    (0..2).for_each(|index| nodes[index].bind(at(index, 4000)));
    nodes[1].reads_from = world.now() + 3 * SECOND;
    let lengths: Vec<usize> =
        (0..200).map(|i| i * 97 % 9000).chain([nodes[0].rds.longest_message()]).collect();
    plan(&mut nodes, (0, 0), (1, 0), &lengths);
    run(&world, &mut nodes);
    assert!(nodes[1].rds.counters().rx_ring_starved > 0, "frames were short");
    assert!(world.now() > nodes[1].reads_from);
    close(&world, nodes);
}

/// Three peers each send messages that take half of the receiver's frames: parts of all of them at once do not fit, and
/// none blocks the others for ever.
#[test]
fn long_messages_of_several_peers_do_not_block_each_other() {
    for seed in 50..52 {
        let world = world(seed, "none");
        let settings = RdsConfig { receive_depth: 256, ..config(seed) };
        let mut nodes = nodes::<256>(&world, seed, 4, settings);
        (0..4).for_each(|index| nodes[index].bind(at(index, 4000)));
        let longest = nodes[1].rds.longest_message();
        assert_eq!(longest, 64 * 4096);
        let began = world.now();
        for from in 1..4 {
            plan(&mut nodes, (from, 0), (0, 0), &[longest; 3]);
        }
        run(&world, &mut nodes);
        let took = world.now() - began;
        assert!(took < 5 * SECOND, "seed {seed}: nobody slept over work: {} ms", took / 1_000_000);
        assert_eq!(total(&nodes, |c| c.conn_reset), 0);
        close(&world, nodes);
    }
}

/// More sockets than half a send buffer each could fill the frames with messages that nobody acknowledges: they do not.
#[test]
fn unasked_messages_do_not_fill_the_frames() {
    let world = world(60, "none");
    let settings = RdsConfig { send_frames: 64, send_buffer: 106_496, ..config(60) };
    let mut nodes = nodes::<512>(&world, 60, 2, settings);
    for (index, node) in nodes.iter_mut().enumerate() {
        (0..40).for_each(|port| node.bind(at(index, 4000 + port)));
    }
    for socket in 0..40 {
        plan(&mut nodes, (0, socket), (1, socket), &[50_000]);
    }
    let longest = nodes[0].rds.longest_message().min(106_496);
    plan(&mut nodes, (0, 0), (1, 0), &[longest]);
    let count = nodes[0].jobs.len();
    // All must arrive though the last ones of them may stay unacknowledged, so the longest comes last.
    assert_eq!(count, 41);
    run(&world, &mut nodes);
    close(&world, nodes);
}

/// A socket that is closed with messages under way: what was not sent is gone, the rest arrives, and the next socket in its
/// place has an account of its own.
#[test]
fn closing_with_messages_under_way() {
    let world = world(70, "loss=1%");
    let mut nodes = nodes::<1024>(&world, 70, 2, config(70));
    let free = nodes[0].rds.free_frames();
    (0..2).for_each(|index| nodes[index].bind(at(index, 4000)));
    plan(&mut nodes, (0, 0), (1, 0), &[100; 20]);
    run(&world, &mut nodes);

    let to = at(1, 4000);
    let Node { adapter, rds, sockets, .. } = &mut nodes[0];
    let (old, mut accepted) = (sockets[0], 0);
    while rds.sendmsg(adapter, old, Msg::to(&to, &message(at(0, 4000), to, 20 + accepted, 30_000))).is_ok() {
        accepted += 1;
    }
    rds.close(adapter, old).expect("closes");
    assert_eq!(rds.sendmsg(adapter, old, Msg::to(&to, b"x")), Err(RdsError::BadSocket));
    assert_eq!(rds.close(adapter, old), Err(RdsError::BadSocket));
    let new = rds.bind(at(0, 4001)).expect("binds");
    assert_ne!(old, new);
    assert_eq!(rds.unacknowledged(new), Ok(0));
    sockets[0] = new;
    nodes[0].jobs.clear();
    nodes[0].sent = 0;
    plan(&mut nodes, (0, 0), (1, 0), &[5, 10_000, ASKS]);

    // Of the old socket's messages the first few arrive, in order; how many is the HCA's affair.
    let (seen, left) = (Cell::new(0), Cell::new(3));
    let mut buffer = vec![0; 1 << 20];
    let mut nothing = [0; 1];
    let mut tasks: Vec<Task<'_>> = Vec::new();
    let (sender, receiver) = nodes.split_at_mut(1);
    let (sender, receiver) = (&mut sender[0], &mut receiver[0]);
    let (left, seen) = (&left, &seen);
    tasks.push(Task::new(0, |now| {
        let next = sender.turn(now, left, &mut nothing);
        let settled = sender.rds.unacknowledged(new) == Ok(0);
        if left.get() == 0 && settled { Next::Done } else { next }
    }));
    tasks.push(Task::new(1, |now| {
        let Node { adapter, rds, sockets, expected, .. } = &mut *receiver;
        let deadlines =
            [due(adapter.poll(Instant::from_nanos(now))), due(rds.poll(adapter, Instant::from_nanos(now)))];
        let Ok(Arrival::Message(received)) = rds.recvmsg(adapter, sockets[0], &mut buffer, MsgFlags::empty())
        else {
            let quiet = left.get() == 0 && now > LIMIT / 2;
            return if quiet {
                Next::Done
            } else {
                dat::sleep(adapter, now, deadlines.into_iter().chain([Some(now + SECOND)]))
            };
        };
        if received.from == at(0, 4000) {
            let bytes = message(received.from, to, 20 + seen.get(), 30_000);
            assert!(buffer[..received.len] == bytes, "number {}", seen.get());
            seen.set(seen.get() + 1);
        } else {
            let (next, lengths) = expected.get_mut(&(received.from, to)).expect("from the new socket");
            assert_eq!(received.len, lengths[*next]);
            assert!(buffer[..received.len] == message(received.from, to, *next, received.len));
            *next += 1;
            left.set(left.get() - 1);
        }
        Next::Again
    }));
    world.run(&mut tasks, LIMIT).expect("ends");
    drop(tasks);
    assert!(seen.get() < accepted, "{accepted} were accepted, and those not sent are gone: {}", seen.get());
    let posted = nodes[0].rds.ib_connections_info(&nodes[0].adapter).map(|info| info.cache_allocs as usize);
    assert_eq!(nodes[0].rds.free_frames() + posted.sum::<usize>(), free);
    close(&world, nodes);
}

/// A node whose RDS ends and starts anew, in the middle of traffic both ways: its peer's messages wait for it.
#[test]
fn a_peer_that_starts_anew() {
    let world = world(80, "loss=0.5%");
    let mut nodes = nodes::<1024>(&world, 80, 2, config(80));
    (0..2).for_each(|index| nodes[index].bind(at(index, 4000)));
    plan(&mut nodes, (0, 0), (1, 0), &[3000, ASKS]);
    plan(&mut nodes, (1, 0), (0, 0), &[3001, ASKS]);
    run(&world, &mut nodes);
    for generation in 2..5 {
        let Node { mut adapter, mut rds, expected, .. } = nodes.pop().expect("two nodes");
        rds.stop(&mut adapter, CloseFlags::Abrupt, |_| {}).expect("stops");
        let rds = start::<1024>(
            &mut adapter,
            RdsConfig { generation: boot(generation), ..config(80 + u64::from(generation)) },
        );
        let mut node =
            Node { adapter, rds, sockets: Vec::new(), jobs: Vec::new(), expected, sent: 0, reads_from: 0 };
        node.bind(at(1, 4000));
        nodes.push(node);
        plan(&mut nodes, (0, 0), (1, 0), &[100, 50_000, ASKS]);
        plan(&mut nodes, (1, 0), (0, 0), &[101, 50_001, ASKS]);
        run(&world, &mut nodes);
    }
    close(&world, nodes);
}

/// A node that comes back with its clock set back, and then without one: what it sends is numbered behind what its peer has had of it, so
/// that nothing that is sent again over a broken link is taken for old. Either side may be the one that connects.
#[test]
fn a_peer_whose_clock_was_set_back() {
    for first in [0, 1] {
        let world = world(83, "loss=0.3%,dup=1%");
        let settings = RdsConfig { generation: boot(1000), retry_count: 0, ..config(83) };
        let mut nodes = nodes::<1024>(&world, 83, 2, settings);
        (0..2).for_each(|index| nodes[index].bind(at(index, 4000)));
        plan(&mut nodes, (0, 0), (1, 0), &[3000, ASKS]);
        plan(&mut nodes, (1, 0), (0, 0), &[3001, ASKS]);
        run(&world, &mut nodes);
        let boots = [boot(10), Generation::UNKNOWN, boot(9), boot(2000)];
        for (seed, generation) in (84..).zip(boots) {
            let Node { mut adapter, mut rds, expected, .. } = nodes.pop().expect("two nodes");
            let before = rds.connections_info().next().expect("a connection").next_tx;
            rds.stop(&mut adapter, CloseFlags::Abrupt, |_| {}).expect("stops");
            let rds = start::<1024>(&mut adapter, RdsConfig { generation, seed, ..settings });
            let (sockets, jobs) = (Vec::new(), Vec::new());
            let mut node = Node { adapter, rds, sockets, jobs, expected, sent: 0, reads_from: 0 };
            node.bind(at(1, 4000));
            nodes.push(node);
            // What is sent first is in the queue before anything is known of the peer.
            for from in [first, 1 - first] {
                plan(&mut nodes, (from, 0), (1 - from, 0), &[100, 50_000, ASKS, ASKS]);
                run(&world, &mut nodes);
            }
            let after = nodes[1].rds.connections_info().next().expect("a connection").next_tx;
            assert!(after >= before + 4, "{before}, {after}: four messages more");
            let raised = nodes[1].rds.counters().send_numbers_raised;
            assert_eq!(raised, u64::from(generation < boot(1000)), "{generation:?}");
        }
        assert_eq!(nodes[0].rds.counters().send_numbers_raised, 0, "its own numbers were never behind");
        close(&world, nodes);
    }
}

#[test]
fn pings_are_answered() {
    let world = world(90, "none");
    let mut nodes = nodes::<256>(&world, 90, 2, config(90));
    nodes[0].bind(at(0, 4000));
    nodes[1].bind(at(1, 4000));
    for node in [1, 0] {
        let Node { adapter, rds, sockets, .. } = &mut nodes[0];
        rds.sendmsg(adapter, sockets[0], Msg::to(&at(node, 0), &[])).expect("a ping");
        let answer = SocketAddr::new(address(node), 0);
        nodes[0].expected.insert((answer, at(0, 4000)), (0, vec![0]));
        let left = Cell::new(1);
        let mut tasks: Vec<Task<'_>> = Vec::new();
        for (index, node) in nodes.iter_mut().enumerate() {
            let left = &left;
            tasks.push(Task::new(index, move |now| {
                let next = node.turn(now, left, &mut [0; 8]);
                if left.get() == 0 { Next::Done } else { next }
            }));
        }
        world.run(&mut tasks, LIMIT).expect("answered");
        drop(tasks);
        assert_eq!(nodes[node].rds.counters().recv_ping, 1);
    }
    close(&world, nodes);
}

#[test]
fn refusals() {
    let world = world(95, "none");
    let mut adapters = dat::open(&world, 95, 1, 32 << 20).expect("opens");
    let adapter = &mut adapters[0];
    let before = world.census(0);
    // Fewer frames than the connections need; and a service that is taken when everything else is made.
    let small = Box::leak(Box::new(RdsStorage::<4, 4, 8>::new()));
    assert_eq!(Rds::start(adapter, small.parts(), config(1)).err(), Some(RdsError::InvalidArgument));
    let mut rds = start::<256>(adapter, config(1));
    let between = world.census(0);
    let second = Box::leak(Box::new(RdsStorage::<4, 4, 256>::new()));
    assert!(matches!(Rds::start(adapter, second.parts(), config(2)), Err(RdsError::Dat(_))));
    assert_eq!(world.census(0), between, "a failed start leaves nothing");
    rds.stop(adapter, CloseFlags::Abrupt, |_| {}).expect("stops");
    assert_eq!(world.census(0), before);

    let three = Box::leak(Box::new(RdsStorage::<3, 4, 256>::new()));
    let mut rds = Rds::start(adapter, three.parts(), config(3)).expect("starts");
    let bind = |rds: &mut Rds<'_>, text: &str| rds.bind(text.parse().expect("an address"));
    for wrong in ["10.0.0.1:1", "0.0.0.0:5000", "255.255.255.255:5000", "224.0.0.1:5000", "[ff02::1]:5000"] {
        assert_eq!(bind(&mut rds, wrong), Err(RdsError::InvalidArgument), "{wrong}");
    }
    assert_eq!(bind(&mut rds, "10.0.0.9:5000"), Err(RdsError::AddressNotAvailable));
    let socket = bind(&mut rds, "10.0.0.1:5000").expect("binds");
    assert_eq!(bind(&mut rds, "10.0.0.1:5000"), Err(RdsError::AddressInUse));
    let any = bind(&mut rds, "10.0.0.1:0").expect("binds");
    assert!(rds.local_address(any).is_ok_and(|here| here.port() > 1 && here.port() != 5000));
    bind(&mut rds, "10.0.0.1:0").expect("binds");
    assert_eq!(bind(&mut rds, "10.0.0.1:0"), Err(RdsError::TooManySockets));

    let mut send = |rds: &mut Rds<'_>, to: &str, len: usize| {
        rds.sendmsg(adapter, socket, Msg::to(&to.parse().expect("an address"), &vec![0; len]))
    };
    for wrong in ["0.0.0.0:7", "224.0.0.1:7", "127.0.0.1:7"] {
        assert_eq!(send(&mut rds, wrong, 1), Err(RdsError::InvalidArgument), "{wrong}");
    }
    assert_eq!(send(&mut rds, "[fe80::1]:7", 1), Err(RdsError::NotSupported), "another family");
    let longest = rds.longest_message();
    assert_eq!(send(&mut rds, "10.0.0.2:7", longest + 1), Err(RdsError::MessageSize), "never fits");
    rds.set_send_buffer(socket, 0).expect("open");
    assert_eq!(send(&mut rds, "10.0.0.1:7", 1), Err(RdsError::MessageSize));
    assert_eq!(send(&mut rds, "10.0.0.1:7", 0), Ok(None), "an empty message needs no buffer");
    rds.stop(adapter, CloseFlags::Abrupt, |_| {}).expect("stops");
    assert_eq!(world.census(0), before);
}

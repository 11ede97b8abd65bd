//! The unikernel's applications in one process: what runs in the image, on the model, under the seeded scheduler.

use apps::ip::{
    Client, ClientConfig, ClientReport, ClientStorage, Expect, Ping, PingConfig, PingStorage, Served,
    Service, Services, ServicesSlots, ServicesStorage,
};
use apps::rping::{self, Rping, RpingError};
use apps::{Role, Status};
use dat_nostd::net::smoltcp::iface::{SocketSet, SocketStorage};
use dat_nostd::net::smoltcp::socket::udp;
use dat_nostd::net::smoltcp::wire::{IpAddress, IpEndpoint};
use dat_nostd::net::{Host, PacketBuffers};
use dat_nostd::{AdapterConfig, IpConfig, adapter_storage};
use driver_mlx::{Instant, Wake};
use harness::dat::{ModelAdapter, address, due, sleep};
use harness::{ModelBar, Next, Task, World, WorldConfig, dat};
use hca_model::Profile;
use hca_model::card::{CONNECTX_5, CONNECTX_5_EN, Card};
use rdma_fabric::faults::Faults;
use rdma_fabric::infiniband::FabricConfig;
use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::Duration;

const MEMORY: usize = 16 << 20;
const SECOND: u64 = 1_000_000_000;
/// A card of each medium.
const CARDS: [&Card; 2] = [&CONNECTX_5, &CONNECTX_5_EN];

fn world(seed: u64, faults: &str) -> Rc<World> {
    let faults: Faults = faults.parse().expect("faults");
    let config = WorldConfig::new(seed);
    World::new(&WorldConfig { fabric: FabricConfig { faults, ..config.fabric.clone() }, ..config })
}

fn rping_config(role: Role, size: u32, count: u32) -> rping::Config {
    rping::Config {
        role,
        ia: "ib0",
        peer: address(0),
        port: rping::DEFAULT_PORT,
        size,
        count,
        verify: true,
        connect_timeout: Duration::from_secs(60),
        stall_timeout: Duration::from_secs(60),
    }
}

/// A side of rping on its adapter, and how it ended.
struct Pinger {
    adapter: ModelAdapter,
    rping: Option<Rping>,
    outcome: Option<Result<rping::Report, RpingError>>,
}

impl Pinger {
    fn start(mut adapter: ModelAdapter, config: rping::Config) -> Self {
        let rping = Rping::start(&mut adapter, config).expect("objects");
        Self { adapter, rping: Some(rping), outcome: None }
    }

    fn turn(&mut self, now: u64) -> Next {
        let Self { adapter, rping, outcome } = self;
        let deadline = due(adapter.poll(Instant::from_nanos(now)));
        let Some(running) = rping else { return Next::Done };
        let ended = match running.poll(adapter, Instant::from_nanos(now)) {
            Ok(ControlFlow::Continue(wake)) => return sleep(adapter, now, [deadline, due(wake)]),
            Ok(ControlFlow::Break(())) => Ok(running.report()),
            Err(error) => Err(error),
        };
        *outcome = Some(ended);
        rping.take().expect("running").close(adapter).expect("closed");
        Next::Done
    }
}

fn run_rping(seed: u64, faults: &str, server: rping::Config, client: rping::Config) -> [Pinger; 2] {
    let world = world(seed, faults);
    let mut adapters = dat::open(&world, seed, 2, MEMORY).expect("adapters");
    let free = adapters.iter().map(|adapter| adapter.hca().free_bytes()).collect::<Vec<_>>();
    let other = adapters.remove(1);
    let cells = [Pinger::start(adapters.remove(0), server), Pinger::start(other, client)].map(RefCell::new);
    {
        let mut tasks: Vec<Task<'_>> = cells
            .iter()
            .enumerate()
            .map(|(index, cell)| Task::new(index, move |now| cell.borrow_mut().turn(now)))
            .collect();
        world.run(&mut tasks, 600 * SECOND).unwrap_or_else(|stalled| panic!("{stalled}"));
    }
    let pingers = cells.map(RefCell::into_inner);
    for (pinger, free) in pingers.iter().zip(free) {
        assert_eq!(pinger.adapter.hca().free_bytes(), free, "all memory was given back");
    }
    pingers
}

#[test]
fn rping_goes_round_at_all_sizes_also_on_a_bad_fabric() {
    for (seed, size, faults) in
        [(1, 26, "none"), (2, 64, "none"), (3, 65_535, "none"), (4, 5000, "loss=1%,dup=1%,reorder=1%")]
    {
        let config = |role| rping_config(role, size, 100);
        // The server is told another size: it takes what the client says.
        let server = rping::Config { size: 64, ..config(Role::Server) };
        for pinger in run_rping(seed, faults, server, config(Role::Client)) {
            let report = pinger.outcome.expect("ended").expect("success");
            assert_eq!((report.iterations, report.bytes), (100, 100 * u64::from(size)));
        }
    }
}

#[test]
fn rping_without_a_server_says_so() {
    let elsewhere = rping::Config { port: 7175, ..rping_config(Role::Server, 64, 1) };
    let elsewhere = rping::Config { connect_timeout: Duration::from_secs(3), ..elsewhere };
    let client =
        rping::Config { connect_timeout: Duration::from_secs(3), ..rping_config(Role::Client, 64, 1) };
    let [server, client] = run_rping(6, "none", elsewhere, client);
    assert!(matches!(server.outcome, Some(Err(RpingError::NotConnected { last: None, .. }))));
    let Some(Err(RpingError::NotConnected { last: Some(last), .. })) = client.outcome else {
        panic!("{:?}", client.outcome)
    };
    assert_eq!(last, dat_nostd::ConnectionEvent::NonPeerRejected);
}

/// A server of rping sees twenty clients die in the middle, one after the other; nothing of them is left with it.
#[test]
fn rping_outlives_clients_that_are_killed() {
    const CLIENTS: usize = 20;
    /// What a turn costs in virtual time.
    const TURN: u64 = 1000;
    let world = world(7, "none");
    let mut adapters = dat::open(&world, 7, CLIENTS + 1, MEMORY).expect("adapters");
    let mut clients = adapters.split_off(1);
    let mut server = adapters.remove(0);
    let before = (world.census(0), server.hca().free_bytes());
    for (index, client) in clients.drain(..).enumerate() {
        let config =
            rping::Config { stall_timeout: Duration::from_millis(33), ..rping_config(Role::Server, 64, 1) };
        let mut running = Pinger::start(server, config);
        let mut doomed = Pinger::start(client, rping_config(Role::Client, 9000, 1_000_000));
        let last = 5 + index as u32;
        let mut alive = true;
        while running.outcome.is_none() {
            let now = world.now();
            let mut next = match running.turn(now) {
                Next::At(at) => at,
                Next::Again => now + TURN,
                Next::Done => break,
            };
            if alive && doomed.rping.as_ref().is_some_and(|rping| rping.report().iterations >= last) {
                world.kill(index + 1);
                alive = false;
            }
            if alive {
                next = match doomed.turn(now) {
                    Next::At(at) => next.min(at),
                    Next::Again => now + TURN,
                    Next::Done => panic!("{:?}", doomed.outcome),
                };
            }
            world.idle(next.max(now + TURN));
        }
        let ended = running.outcome.expect("ended");
        assert!(
            matches!(
                ended,
                Err(RpingError::Stalled { .. }
                    | RpingError::Transfer { .. }
                    | RpingError::ConnectionLost { .. })
            ),
            "{ended:?}"
        );
        server = running.adapter;
        // What the server says to the dead takes its time.
        let end = world.now() + 300 * SECOND;
        while (world.census(0), server.hca().free_bytes()) != before {
            let now = world.now();
            assert!(now < end, "client {index} left something: {before:?}, {:?}", world.census(0));
            let next = due(server.poll(Instant::from_nanos(now))).unwrap_or(end);
            world.idle(next.max(now + TURN));
        }
    }
}

adapter_storage! {
    struct IpTables {
        bar: ModelBar, dma_bytes: 16 << 20, eps: 8, evds: 32, lmrs: 16, events: 128,
        connections: 32,
    }
}

fn ip_of(node: usize) -> Ipv4Addr {
    match address(node) {
        IpAddr::V4(ip) => ip,
        IpAddr::V6(_) => unreachable!("the world's addresses are IPv4"),
    }
}

/// Two adapters that know nobody's GID, with IP up, and their hosts.
fn hosts(world: &Rc<World>, card: &'static Card) -> Vec<(ModelAdapter, Host<'static>)> {
    let attached: Vec<_> = (0..2).map(|node| world.attach(Profile::of(card, node), MEMORY)).collect();
    let open = attached.into_iter().map(|(platform, region)| {
        let node = platform.node();
        let storage = Box::leak(Box::new(IpTables::new()));
        let config = AdapterConfig {
            generation: 1,
            hca: dat::HCA,
            ip: Some(IpConfig::DEFAULT),
            ..AdapterConfig::new("ib0", address(node), &[], 0x0a0a + node as u128)
        };
        let mut adapter =
            ModelAdapter::open(platform, region, harness::host_region(), storage.parts(), &config)
                .expect("opens");
        dat::register(&mut adapter, 0);
        adapter
    });
    let mut adapters: Vec<ModelAdapter> = open.collect();
    let end = world.now() + 60 * SECOND;
    while !adapters.iter_mut().all(|adapter| adapter.ip().is_some_and(|ip| ip.is_up())) {
        let now = world.now();
        assert!(now < end, "IP is up within a minute");
        let deadlines = adapters.iter_mut().filter_map(|adapter| due(adapter.poll(Instant::from_nanos(now))));
        let next = deadlines.min().unwrap_or(end);
        world.idle(next.max(now + 1000));
    }
    let host = |(node, mut adapter): (usize, ModelAdapter)| {
        let buffers = Box::leak(Box::new(PacketBuffers::new()));
        let host = Host::new(&mut adapter, buffers, node as u64, Instant::from_nanos(world.now()));
        (adapter, host.expect("IP is up"))
    };
    adapters.into_iter().enumerate().map(host).collect()
}

/// Services on one node; on the other whatever `client` does, until it says that it is done.
fn run_ip(
    card: &'static Card,
    (seed, faults): (u64, &str),
    mut client: impl FnMut(&mut Host<'static>, &mut ModelAdapter, u64) -> Status,
) -> Vec<Served> {
    let world = world(seed, faults);
    let mut hosts = hosts(&world, card);
    let (mut other, mut other_host) = hosts.remove(1);
    let (mut server, mut server_host) = hosts.remove(0);
    let slots = Box::leak(Box::new(ServicesSlots::new()));
    let mut services = Services::new(Box::leak(Box::new(ServicesStorage::new())), slots, 1 << 20);
    let mut served = Vec::new();
    let done = RefCell::new(false);
    let mut tasks = [
        Task::new(0, |now| {
            if *done.borrow() {
                return Next::Done;
            }
            let deadline = due(server.poll(Instant::from_nanos(now)));
            let at = Instant::from_nanos(now);
            let wake = services.poll(&mut server_host, &mut server, at, &mut |client| served.push(*client));
            sleep(&mut server, now, [deadline, due(wake), Some(now + SECOND)])
        }),
        Task::new(1, |now| {
            let deadline = due(other.poll(Instant::from_nanos(now)));
            match client(&mut other_host, &mut other, now) {
                ControlFlow::Continue(wake) => sleep(&mut other, now, [deadline, due(wake)]),
                ControlFlow::Break(()) => {
                    *done.borrow_mut() = true;
                    Next::Done
                }
            }
        }),
    ];
    world.run(&mut tasks, 3600 * SECOND).unwrap_or_else(|stalled| panic!("{stalled}"));
    drop(tasks);
    served
}

fn transfer(
    card: &'static Card,
    (seed, faults): (u64, &str),
    service: Service,
    send: u64,
) -> (ClientReport, Vec<Served>) {
    let config = ClientConfig {
        to: ip_of(0),
        port: service.port(),
        send,
        seed,
        connect_timeout: Duration::from_secs(60),
        stall_timeout: Duration::from_secs(300),
    };
    let slot = Box::leak(Box::new(SocketStorage::EMPTY));
    let mut client =
        Client::new(Box::leak(Box::new(ClientStorage::new())), slot, config, Instant::from_nanos(SECOND));
    let served = run_ip(card, (seed, faults), |host, adapter, now| {
        client.poll(host, adapter, Instant::from_nanos(now)).unwrap_or_else(|error| panic!("{error}"))
    });
    (client.report(), served)
}

#[test]
fn tcp_moves_a_mebibyte_each_way_with_the_right_hash() {
    let worlds = [(1, "none"), (2, "loss=1%"), (3, "loss=1%,dup=1%,reorder=1%")];
    for (card, (seed, faults)) in CARDS.into_iter().flat_map(|card| worlds.map(|world| (card, world))) {
        for (service, send) in [(Service::Hash, 1 << 20), (Service::Source, 0)] {
            let (report, served) = transfer(card, (seed, faults), service, send);
            assert!(report.is(Expect::of_port(service.port())), "{faults} {service:?}: {report:?}");
            let [served] = served.as_slice() else { panic!("{faults} {service:?}: {served:?}") };
            assert_eq!((served.service, served.bytes, served.peer), (service, 1 << 20, ip_of(1)));
        }
    }
}

#[test]
fn no_ping_is_lost_on_a_good_fabric_and_losses_are_counted_on_a_bad_one() {
    let worlds = [(1, "none"), (2, "loss=5%")];
    for (card, (seed, faults)) in CARDS.into_iter().flat_map(|card| worlds.map(|world| (card, world))) {
        let config = PingConfig {
            to: ip_of(0),
            count: 100,
            size: 1472,
            ident: 9,
            interval: Duration::from_millis(1),
            timeout: Duration::from_secs(1),
        };
        let slot = Box::leak(Box::new(SocketStorage::EMPTY));
        let mut ping = Ping::new(Box::leak(Box::new(PingStorage::new())), slot, config);
        run_ip(card, (seed, faults), |host, adapter, now| ping.poll(host, adapter, Instant::from_nanos(now)));
        let report = *ping.report();
        assert_eq!((report.sent, report.received + report.lost, report.wrong), (100, 100, 0), "{report:?}");
        assert_eq!(report.lost > 0, faults != "none", "{report:?}");
    }
}

#[test]
fn datagrams_up_to_the_mtu_come_back_from_the_echo_service() {
    for card in CARDS {
        let slot = Box::leak(Box::new(SocketStorage::EMPTY));
        let mut sockets = SocketSet::new(core::slice::from_mut(slot));
        let buffer = || {
            let entries = Box::leak(Box::new([udp::PacketMetadata::EMPTY; 4]));
            udp::PacketBuffer::new(&mut entries[..], &mut Box::leak(Box::new([0; 16 << 10]))[..])
        };
        let mut socket = udp::Socket::new(buffer(), buffer());
        socket.bind(5000).expect("a free port");
        let handle = sockets.add(socket);
        let echo = IpEndpoint::new(IpAddress::Ipv4(ip_of(0)), Service::Echo.port());
        let (mut lens, mut sent) = (None, None::<Vec<u8>>);
        let mut echoed = 0;
        run_ip(card, (5, "none"), |host, adapter, now| {
            let mtu = adapter.ip().expect("IP").mtu();
            // The one that is too long for a packet is not sent, and does not hold up the next.
            let lens =
                lens.get_or_insert_with(|| vec![0, 1, 1000, mtu - 29, mtu - 28, mtu - 27, 7].into_iter());
            let socket = sockets.get_mut::<udp::Socket<'_>>(handle);
            if let Ok((data, from)) = socket.recv() {
                assert_eq!((data, from.endpoint), (&sent.take().expect("asked")[..], echo));
                echoed += 1;
            }
            if sent.as_ref().is_none_or(|sent| sent.len() == mtu - 27) {
                let Some(len) = lens.next() else { return ControlFlow::Break(()) };
                let data: Vec<u8> = (0..len).map(|at| (at * 7 + len) as u8).collect();
                socket.send_slice(&data, echo).expect("room");
                sent = Some(data);
            }
            let wake = host.poll(adapter, &mut sockets, Instant::from_nanos(now));
            ControlFlow::Continue(wake.earliest(Wake::At(Instant::from_nanos(now + SECOND / 100))))
        });
        assert_eq!(echoed, 6, "{}", card.name);
    }
}

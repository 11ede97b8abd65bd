//! DAT between two nodes in one process: connections, transfers, refusals, and what happens when the peer is gone.

use dat_nostd::{
    AdapterConfig, CloseFlags, CompletionFlags, ConnectionEvent, DtoStatus, EpAttributes, EpState, EventData,
    ProviderInfo, Registry, RegistryEntry, ReturnType, adapter_storage,
};
use demo::Stream;
use driver_mlx::PortType;
use harness::dat::{ModelAdapter, address};
use harness::pair::{MEMORY, Pair};
use harness::{ModelBar, World, WorldConfig, host_region};
use hca_model::Profile;
use hca_model::card::{CONNECTX_5, CONNECTX_5_EN};

const SECOND: u64 = 1_000_000_000;

fn stream(sender: usize) -> Stream {
    Stream { sender: sender as u8, operation: 31, seed: 0xda7 }
}

adapter_storage! {
    struct Tables { bar: ModelBar, dma_bytes: 32 << 20 }
}

impl Check for Pair {}

/// Patterns in the memory of the sides.
trait Check {
    fn fill(pair: &Pair, side: usize, sequence: u64, offset: usize, len: usize) {
        let mut bytes = vec![0; len];
        stream(side).payload(sequence).fill(0, &mut bytes);
        pair.sides[side].memory.write(offset, &bytes).expect("inside");
    }

    fn check(pair: &Pair, side: usize, sequence: u64, offset: usize, len: usize) {
        let mut bytes = vec![0; len];
        pair.sides[side].memory.read(offset, &mut bytes).expect("inside");
        let found = stream(1 - side).payload(sequence).mismatch(0, &bytes);
        assert_eq!(found, None, "message {sequence} of {len} bytes at side {side}");
    }
}

/// Both names of an interface: RDMA-CM framing and our own.
#[test]
fn every_kind_of_transfer_on_both_framings() {
    for (seed, name) in [(1, "ib0"), (2, "ib0-dat")] {
        let mut config = WorldConfig::new(seed);
        config.fabric.faults = "loss=1%,dup=1%,reorder=1%".parse().expect("a list of faults");
        let mut pair = Pair::new(&config, name);
        let eps = pair.connect(7001, &EpAttributes::DEFAULT, |sides, eps| {
            for (side, ep) in sides.iter_mut().zip(eps) {
                side.receive(ep, 1_000_000, 300_000, 0).expect("receive");
            }
        });
        let flags = CompletionFlags::empty();
        for (n, len) in [0, 1, 4095, 4096, 4097, 70_001, 300_000].into_iter().enumerate() {
            let n = n as u64;
            for from in [0, 1] {
                let to = 1 - from;
                Pair::fill(&pair, from, n, 8, len);
                pair.sides[from].send(eps[from], 8, len, 100 + n).expect("send");
                assert_eq!(pair.success(to, true, n), len as u64);
                Pair::check(&pair, to, n, 1_000_000, len);
                pair.success(from, false, 100 + n);
                pair.sides[to].receive(eps[to], 1_000_000, 300_000, n + 1).expect("receive");

                Pair::fill(&pair, from, 50 + n, 400_000, len);
                let (local, remote) =
                    (pair.sides[from].local(400_000, len), pair.sides[to].remote(700_001, len));
                let adapter = &mut pair.sides[from].adapter;
                adapter.ep_post_rdma_write(eps[from], &[local], 200 + n, &remote, flags).expect("write");
                pair.success(from, false, 200 + n);
                Pair::check(&pair, to, 50 + n, 700_001, len);

                Pair::fill(&pair, to, 70 + n, 1_500_000, len);
                let (local, remote) = (
                    pair.sides[from].local(1_300_000, len.min(200_000)),
                    pair.sides[to].remote(1_500_000, len.min(200_000)),
                );
                let adapter = &mut pair.sides[from].adapter;
                adapter.ep_post_rdma_read(eps[from], &[local], 300 + n, &remote, flags).expect("read");
                assert_eq!(pair.success(from, false, 300 + n), len.min(200_000) as u64);
                Pair::check(&pair, from, 70 + n, 1_300_000, len.min(200_000));
            }
        }
        pair.disconnect(eps);
        // The receives that nobody used come back flushed.
        for side in [0, 1] {
            assert_eq!(pair.completion(side, true).status, DtoStatus::ErrFlushed);
        }
        pair.finish(&[eps]);
    }
}

#[test]
fn a_refusal_reaches_the_consumer_with_its_private_data() {
    let mut pair = Pair::new(&WorldConfig::new(3), "ib0");
    let psp = pair.listen(7002).expect("listens");
    let ep = pair.sides[0].endpoint(&EpAttributes::DEFAULT).expect("endpoint");
    pair.ask(ep, 7002, 30_000_000, b"please").expect("asks");
    let cr = pair.request();
    pair.sides[1].adapter.cr_reject_with(cr, b"not today").expect("rejects");
    assert_eq!(pair.connection_event(0), (ConnectionEvent::PeerRejected, ep));
    let data = pair.sides[0].adapter.ep_private_data(ep).expect("lives");
    assert!(data.starts_with(b"not today"), "{data:?}");
    pair.sides[1].adapter.psp_free(psp).expect("freed");

    // Nobody listens there.
    pair.sides[0].adapter.ep_reset(ep).expect("reset");
    pair.ask(ep, 7003, 30_000_000, b"").expect("asks");
    assert_eq!(pair.connection_event(0), (ConnectionEvent::NonPeerRejected, ep));

    // A request that nobody answers ends with the consumer's time-out.
    let psp = pair.listen(7004).expect("listens");
    pair.sides[0].adapter.ep_reset(ep).expect("reset");
    let began = pair.world.now();
    pair.ask(ep, 7004, 3_000_000, b"").expect("asks");
    assert_eq!(pair.connection_event(0), (ConnectionEvent::TimedOut, ep));
    let took = pair.world.now() - began;
    assert!((3 * SECOND..4 * SECOND).contains(&took), "{} ms", took / 1_000_000);
    let cr = pair.request();
    pair.sides[1].adapter.cr_reject(cr).expect("the request is still there to be answered");
    pair.sides[1].adapter.psp_free(psp).expect("freed");
    pair.sides[0].adapter.ep_free(ep).expect("freed");
    pair.finish(&[]);
}

#[test]
fn a_peer_without_power_ends_the_connection_and_every_post_comes_back() {
    let mut pair = Pair::new(&WorldConfig::new(4), "ib0");
    let eps = pair.connect(7005, &EpAttributes::DEFAULT, |sides, eps| {
        sides[0].receive(eps[0], 0, 4096, 1).expect("receive");
    });
    pair.world.kill(1);
    let began = pair.world.now();
    pair.sides[0].send(eps[0], 0, 10_000, 2).expect("send");
    pair.sides[0].send(eps[0], 0, 10_000, 3).expect("send");
    let failed = pair.completion(0, false);
    assert_eq!((failed.status, failed.user_cookie), (DtoStatus::ErrTransport, 2));
    let flushed = pair.completion(0, false);
    assert_eq!((flushed.status, flushed.user_cookie), (DtoStatus::ErrFlushed, 3));
    let flushed = pair.completion(0, true);
    assert_eq!((flushed.status, flushed.user_cookie), (DtoStatus::ErrFlushed, 1));
    assert_eq!(pair.connection_event(0), (ConnectionEvent::Broken, eps[0]));
    assert!(pair.world.now() - began < 60 * SECOND, "bounded");
    let status = pair.sides[0].adapter.ep_get_status(eps[0]).expect("lives");
    assert_eq!(status.state, EpState::Disconnected);
    assert!(status.recv_idle && status.request_idle);
}

#[test]
fn an_hca_that_is_gone_ends_everything_of_its_node() {
    let mut pair = Pair::new(&WorldConfig::new(5), "ib0");
    let eps = pair.connect(7006, &EpAttributes::DEFAULT, |_, _| {});
    pair.world.unplug(0);
    let began = pair.world.now();
    assert_eq!(pair.connection_event(0), (ConnectionEvent::Broken, eps[0]));
    assert!(pair.world.now() - began < 10 * SECOND, "within a few health polls");
    assert!(pair.sides[0].adapter.is_dead());
    // What is posted to a disconnected endpoint comes back at once.
    pair.sides[0].send(eps[0], 0, 10, 1).expect("posts");
    let flushed = pair.completion(0, false);
    assert_eq!((flushed.status, flushed.user_cookie), (DtoStatus::ErrFlushed, 1));
}

#[test]
fn memory_that_was_not_offered_is_not_reached() {
    let mut pair = Pair::new(&WorldConfig::new(6), "ib0");
    let eps = pair.connect(7007, &EpAttributes::DEFAULT, |_, _| {});
    pair.sides[1].memory.fill(0, MEMORY, 0x55).expect("inside");
    let mut remote = pair.sides[1].remote(MEMORY - 8, 8);
    remote.segment_length = 16;
    let local = pair.sides[0].local(0, 16);
    let flags = CompletionFlags::empty();
    pair.sides[0].adapter.ep_post_rdma_write(eps[0], &[local], 1, &remote, flags).expect("posts");
    assert_eq!(pair.completion(0, false).status, DtoStatus::ErrRemoteAccess);
    assert_eq!(pair.connection_event(0), (ConnectionEvent::Broken, eps[0]));
    let mut bytes = vec![0; MEMORY];
    pair.sides[1].memory.read(0, &mut bytes).expect("inside");
    assert!(bytes.iter().all(|&byte| byte == 0x55), "nothing was written");
}

#[test]
fn software_events_and_empty_queues() {
    let mut pair = Pair::new(&WorldConfig::new(7), "ib0");
    let side = &mut pair.sides[0];
    let evd = side
        .adapter
        .evd_create(side.ia, 4, None, dat_nostd::EvdFlags::SOFTWARE)
        .expect("an EVD for software events");
    assert!(side.adapter.evd_dequeue(evd).expect_err("empty").is(ReturnType::QueueEmpty));
    for value in 1..=4 {
        side.adapter.evd_post_se(evd, value).expect("room");
    }
    for value in 1..=4 {
        assert_eq!(side.adapter.evd_dequeue(evd).expect("one").data, EventData::Software { value });
    }
    side.adapter.evd_free(evd).expect("freed");
    pair.finish(&[]);
}

/// A node with a port of each medium: one registry, two names for each port.
#[test]
fn names_follow_the_medium_of_the_port() {
    let world = World::new(&WorldConfig::new(9));
    let profiles = [Profile::of(&CONNECTX_5, 0), Profile::of(&CONNECTX_5_EN, 1)];
    let attached = profiles.map(|profile| world.attach(profile, 32 << 20));
    let mut adapters = attached.map(|(platform, region)| {
        let config = AdapterConfig::new("ib0", address(platform.node()), &[], 9);
        let parts = Box::leak(Box::new(Tables::new())).parts();
        ModelAdapter::open(platform, region, host_region(), parts, &config).expect("opens")
    });
    let media = adapters.each_ref().map(|adapter| adapter.port_type());
    assert_eq!(media, [PortType::InfiniBand, PortType::Ethernet]);
    let mut entries = [RegistryEntry::EMPTY; 4];
    let mut registry = Registry::new(&mut entries);
    let names = [["ib0", "ib0-dat"], ["roce0", "roce0-dat"]];
    for (index, names) in names.into_iter().enumerate() {
        for name in names {
            let info = ProviderInfo::new(name);
            if index == 1 {
                let error = registry.registry_add_provider(&mut adapters[0], info).expect_err("not its name");
                assert!(error.is(ReturnType::InvalidParameter));
            }
            registry.registry_add_provider(&mut adapters[index], info).expect("its name");
        }
    }
    for (index, name) in
        names.into_iter().enumerate().flat_map(|(index, names)| names.map(|name| (index, name)))
    {
        assert_eq!(registry.find(name, 1, 2, false).ok(), adapters[index].id(), "{name}");
        let (ia, _) = adapters[index].ia_open(name, 8, None).expect("opens");
        adapters[index].ia_close(ia, CloseFlags::Graceful).expect("closes");
    }
    for name in ["roce0", "roce0-dat", "roce1", "roce", "ib1"] {
        assert!(adapters[0].ia_open(name, 8, None).is_err(), "{name}");
    }
    for name in ["roce1", "roce", "roce0-da", "ib1", "-dat"] {
        assert!(adapters[1].ia_open(name, 8, None).is_err(), "{name}");
    }
}

//! What DAT makes of cards that take long, or cannot do everything.

use crate::common;

use common::{Net, Options, address};
use dat_nostd::*;
use harness::{World, WorldConfig};
use hca_model::{Habits, Profile};

const SECOND: u64 = 1_000_000_000;

/// Opens an adapter on a card whose link takes so many seconds; how it went, and after how many seconds.
fn open(training: u64, timeout: Option<u64>) -> (Result<bool, OpenError>, u64) {
    let world = World::new(&WorldConfig::new(74));
    let habits = Habits { training: Some(training * SECOND), ..Habits::default() };
    let (platform, region) = world.attach(Profile { habits, ..Profile::node(0) }, 8 << 20);
    let storage = Box::leak(Box::new(common::Storage::new()));
    let config = AdapterConfig { ip: None, ..AdapterConfig::new("ib0", address(0), &[], 1) };
    let activation_timeout = timeout.map_or(config.activation_timeout, Duration::from_secs);
    let config = AdapterConfig { activation_timeout, ..config };
    let opened = Adapter::open(platform, region, harness::host_region(), storage.parts(), &config);
    let opened = opened.map(|adapter| {
        let active = adapter.is_up();
        adapter.close().expect("closes");
        active
    });
    (opened, world.now() / SECOND)
}

#[test]
fn a_link_may_take_as_long_as_the_embedder_says() {
    for (training, timeout) in [(40, None), (100, Some(120))] {
        let (opened, took) = open(training, timeout);
        assert_eq!(opened, Ok(true), "training, and a sweep behind it, are no failure");
        assert!((training..training + 3).contains(&took), "{took} s");
    }
    let (opened, took) = open(100, Some(20));
    assert!(matches!(opened, Err(OpenError::PortNotActive { waited_ms: 20_000..21_000 })), "{opened:?}");
    assert!((20..22).contains(&took), "{took} s");
    // Who does not wait has an adapter whose port comes up later.
    let (opened, took) = open(100, Some(0));
    assert!(opened == Ok(false) && took < 3, "{opened:?} after {took} s");
}

#[test]
fn a_recovery_waits_for_the_link_as_long_as_it_is_told() {
    let mut net = Net::new(75, 1);
    net.world.with_hca(0, |hca| {
        let habits = hca.habits_mut();
        (habits.training, habits.link_follows_driver) = (Some(50 * SECOND), true);
        hca.fail(mlx5_prm::status::HealthSyndrome(1));
    });
    net.until("the failure", |net| net.nodes[0].hca().fatal());
    let began = net.world.now();
    net.nodes[0].recover(Duration::from_secs(60)).expect("recovers");
    let took = (net.world.now() - began) / SECOND;
    assert!(net.nodes[0].is_up() && took >= 50, "{took} s");
}

/// Operands would be in the other byte order: nobody gets to do such an operation, and all others go on.
#[test]
fn atomics_that_would_be_wrong_are_not_to_be_had() {
    let habits = Habits { no_atomic_byte_order: true, ..Habits::default() };
    let profiles = [0, 1].map(|node| Profile { habits: habits.clone(), ..Profile::node(node) });
    let mut net = Net::with_profiles(&WorldConfig::new(76), profiles.to_vec());
    let [active, passive] = net.pair(&Options::default());
    let (local, remote, none) = (active.segment(0, 8), passive.remote(0, 8), CompletionFlags::empty());
    let node = &mut net.nodes[0];
    for refused in [
        node.ep_post_fetch_add(active.ep, &local, 1, &remote, 1, none),
        node.ep_post_compare_swap(active.ep, &local, 1, &remote, 1, 2, none),
    ] {
        assert!(refused.is_err_and(|error| error.is(ReturnType::ModelNotSupported)));
    }
    node.ep_post_rdma_write(active.ep, &[local], 2, &remote, none).expect("room");
    assert_eq!(net.dto(0, active.request).status, DtoStatus::Success);
    net.assert_no_refusals();
}

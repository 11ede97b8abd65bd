//! Lives of an HCA, each from a seed: slow commands, answers out of order, page requests at any time, refusals, fatal errors, resets by
//! others, losses of the device at any moment, that of its recovery included, and crashes of its owner. Every life ends with right data,
//! and with nothing left over.
//!
//! 50 seeds, 1000 with `MLX5_TESTS_LONG=1`; `MLX5_TESTS_SEED=n` replays one.

use crate::common;

use common::{Net, Options, Side};
use dat_nostd::*;
use driver_mlx::Error;
use harness::WorldConfig;
use harness::lives::{profile, strike};
use harness::seeds::{self, Random};

const SECOND: u64 = 1_000_000_000;
const NONE: CompletionFlags = CompletionFlags::empty();
/// Bytes of a message.
const LEN: usize = 5000;
fn ping(net: &mut Net, sides: &[Side; 2], message: u64) {
    for (from, to) in [(0, 1), (1, 0)] {
        let (source, sink) = (&sides[from], &sides[to]);
        source.fill(0, LEN, message + from as u64);
        net.nodes[to].ep_post_recv(sink.ep, &[sink.segment(LEN, LEN)], 1, NONE).unwrap();
        net.nodes[from].ep_post_send(source.ep, &[source.segment(0, LEN)], 2, NONE).unwrap();
        assert_eq!(net.dto(to, sink.recv).status, DtoStatus::Success);
        assert_eq!(net.dto(from, source.request).status, DtoStatus::Success);
        sink.check(LEN, LEN, message + from as u64);
    }
}

/// Every DTO that is posted is reported, and the connection's end behind it.
fn end_of_connection(net: &mut Net, node: usize, side: &Side, posted: u64) {
    for cookie in 0..posted {
        assert_eq!(net.dto(node, side.recv).user_cookie, 100 + cookie);
    }
    for cookie in 0..posted {
        assert_eq!(net.dto(node, side.request).user_cookie, 200 + cookie);
    }
    assert_eq!(net.connection(node, side), ConnectionEvent::Broken);
    net.until("IA_CATASTROPHIC", |net| match net.nodes[node].evd_dequeue(side.asynchronous) {
        Ok(Event { data: EventData::Async { error: AsyncError::IaCatastrophic, .. }, .. }) => Some(()),
        _ => None,
    });
}

/// Recovers until it holds, whatever strikes meanwhile.
fn recover(net: &mut Net, node: usize) {
    let began = net.world.now();
    while net.nodes[node].is_dead() {
        match net.nodes[node].recover(Duration::from_secs(30)) {
            Ok(()) | Err(OpenError::PortNotActive { .. }) => net.pass(5 * SECOND),
            Err(OpenError::Hca(Error::RecoveryTooSoon { wait_ms })) => {
                net.world.pass((wait_ms + 1) * 1_000_000)
            }
            Err(OpenError::Hca(error @ Error::RecoveryGivenUp { .. })) => panic!("{error}"),
            Err(_) => net.world.pass(30 * SECOND),
        }
        assert!(net.world.now() - began < 900 * SECOND, "bounded");
    }
    net.until("the port", |net| net.nodes[node].is_up().then_some(()));
}

fn live(seed: u64) {
    let mut random = Random::new(seed);
    let profiles = vec![profile(0, &mut random), profile(1, &mut random)];
    let mut net = Net::with_profiles(&WorldConfig::new(seed), profiles);
    let options = Options { memory: 4 * LEN, ..Options::default() };
    let mut sides = net.pair(&options);
    let mut left = None;
    for life in 0..2 + random.below(4) {
        let message = seed << 16 | life << 8;
        ping(&mut net, &sides, message);
        let node = random.below(2) as usize;
        let posted = random.below(6);
        let side = sides[node];
        if random.one_in(4) {
            for cookie in 0..posted {
                net.nodes[node].ep_post_recv(side.ep, &[side.segment(LEN, LEN)], cookie, NONE).unwrap();
                net.nodes[node].ep_post_send(side.ep, &[side.segment(0, LEN)], cookie, NONE).unwrap();
            }
            net.world.pass(random.below(SECOND / 1000));
            net.crash(node, life + 1);
            let other = sides[1 - node].ia;
            net.nodes[1 - node].ia_close(other, CloseFlags::Abrupt).unwrap();
            recover(&mut net, node);
            let objects = net.world.census(node).total();
            assert_eq!(*left.get_or_insert(objects), objects, "life {life}: {:?}", net.world.census(node));
            assert_eq!(net.nodes[node].hca().firmware_pages(), net.world.firmware_pages(node));
            sides = [0, 1].map(|at| match at == node {
                true => net.side(at, &options),
                false => net.side_over(at, &options, sides[at].memory),
            });
            net.connect(&sides);
            continue;
        }
        strike(&net.world, node, random.below(3 * SECOND), &mut random);
        for cookie in 0..posted {
            net.nodes[node].ep_post_recv(side.ep, &[side.segment(LEN, LEN)], 100 + cookie, NONE).unwrap();
            net.nodes[node].ep_post_send(side.ep, &[side.segment(0, LEN)], 200 + cookie, NONE).unwrap();
        }
        end_of_connection(&mut net, node, &side, posted);
        if random.one_in(2) {
            strike(&net.world, node, random.below(8 * SECOND), &mut random);
        }
        recover(&mut net, node);
        side.check(0, LEN, message + node as u64);
        let other = sides[1 - node].ia;
        net.nodes[1 - node].ia_close(other, CloseFlags::Abrupt).unwrap();
        // What is still to strike strikes a device that nobody uses.
        net.world.pass(50 * SECOND);
        net.pass(5 * SECOND);
        recover(&mut net, node);
        let census = net.nodes[node].census();
        assert_eq!((census.ias, census.eps, census.lmrs, census.evds, census.events), (0, 0, 0, 0, 0));
        let objects = net.world.census(node).total();
        assert_eq!(*left.get_or_insert(objects), objects, "life {life}: {:?}", net.world.census(node));
        sides = [0, 1].map(|node| net.side_over(node, &options, sides[node].memory));
        net.connect(&sides);
        net.world.pass(60 * SECOND);
    }
    ping(&mut net, &sides, seed << 16 | 0xffff);
}

#[test]
fn an_hca_has_many_lives() {
    match seeds::only_seed() {
        Some(seed) => live(seed),
        None => {
            let path = concat!(module_path!(), "::an_hca_has_many_lives");
            seeds::in_processes(path, 0..if seeds::long() { 1000 } else { 50 });
        }
    }
}

//! Random calls on a bad fabric: every operation posted completes exactly once and in order, every attempt to connect ends in
//! exactly one event, behind everything that it ends.

use crate::common;

use common::Net;
use dat_nostd::AdapterCounters;
use harness::WorldConfig;
use harness::player::{Habits, Player, Tally};
use harness::seeds::Random;

const HABITS: Habits = Habits {
    receive: 8,
    send: 5,
    write: 2,
    read: 2,
    atomic: 1,
    immediate: 1,
    invalidate: 0,
    bind: 2,
    connect: 2,
    disconnect: 1,
    graceful: 1,
    reset: 2,
    free: 1,
};

/// `own` and `shared` endpoints a node.
fn play(seed: u64, steps: u64, (own, shared): (usize, usize)) -> Tally {
    let mut config = WorldConfig::new(seed);
    config.fabric.faults = "loss=0.5%,dup=1%,reorder=1%,delay=1us..20us".parse().unwrap();
    let mut net = Net::with(&config, 2);
    let mut random = Random::new(seed);
    let mut tally = Tally::default();
    let make = |(index, node)| Player::new(index, node, own, shared);
    let mut players: Vec<Player> = net.nodes.iter_mut().enumerate().map(make).collect();
    let keys: Vec<(u32, u64)> = players.iter().map(Player::key).collect();
    for _ in 0..steps {
        for _ in 0..random.below(12) {
            net.step();
        }
        if random.one_in(40) {
            net.pass(20_000_000);
        }
        let index = random.below(2) as usize;
        players[index].drain(&mut net.nodes[index], &mut tally);
        players[index].act(&mut net.nodes[index], &HABITS, keys[1 - index], &mut random, &mut tally);
    }
    // The end: everything is told, without anybody being reset or freed.
    for (player, node) in players.iter_mut().zip(&mut net.nodes) {
        player.drain(node, &mut tally);
        player.end(node);
    }
    net.until("all ends", |net| {
        let mut ended = true;
        for (player, node) in players.iter_mut().zip(&mut net.nodes) {
            player.drain(node, &mut tally);
            ended &= player.has_ended(node);
        }
        ended.then_some(())
    });
    net.pass(1_000_000_000);
    for (mut player, node) in players.into_iter().zip(&mut net.nodes) {
        player.drain(node, &mut tally);
        player.check_all_told(node);
        player.leave(node);
    }
    net.assert_no_refusals();
    let world = net.world.clone();
    for (node, adapter) in net.nodes.drain(..).enumerate() {
        assert_eq!(adapter.counters(), AdapterCounters::default());
        adapter.close().unwrap();
        assert_eq!(world.census(node).total(), 0, "{}", world.census(node));
    }
    tally
}

#[test]
fn everything_completes_exactly_once() {
    let mut all = Tally::default();
    for seed in 1..9 {
        let endpoints = if seed % 2 == 0 { (2, 2) } else { (4, 0) };
        all.add(&play(seed, 4000, endpoints));
    }
    assert!(all.successes > 500 && all.failures > 500 && all.binds > 50 && all.shared > 100, "{all:?}");
    assert!(all.established > 50 && all.ends > 100, "{all:?}");
}

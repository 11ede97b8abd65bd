//! RDS in chaos: three to eight nodes whose packets get lost, doubled and reordered, whose cables are pulled, which stall, and which
//! die, with or without a word, and boot again, with a clock that may have been set back, all as a seed says. Sockets are of one type of
//! service or of two, peers have zones of their own or not, programs cancel and close. A model judges what arrives.
//!
//! | variable | meaning |
//! |---|---|
//! | `MLX5_TESTS_LONG=1` | 1000 seeds instead of 100 |
//! | `MLX5_TESTS_SEED=n` | this seed alone |
//!
//! A failure prints its seed and what happened before it.

mod desk;
mod ledger;
mod model;
mod node;
mod plan;
mod run;
mod tally;
mod trace;

use harness::seeds::{self, long, only_seed, with_seed};
use tally::Tally;

#[test]
fn messages_survive_chaos() {
    if let Some(seed) = only_seed() {
        println!("\n{}", with_seed("RDS in chaos", seed, || run::run(seed)));
        return;
    }
    let mut all = Tally::default();
    let seeds = 1..if long() { 1001 } else { 101 };
    seeds.clone().for_each(|seed| all.add(&in_process(seed)));
    println!("{} seeds: {all}", seeds.count());
    // That it was chaos.
    assert!(all.boots > 400 && all.deaths > 40 && all.cuts > 50 && all.resets > 1000, "{all}");
    assert!(all.silent > 5 && all.stalls > 50 && all.services > 100, "{all}");
    assert!(all.windows > 100, "{all}");
    assert!(
        all.raced > 100 && all.again > 1000 && all.old > 100 && all.congested > 100 && all.raised > 10,
        "{all}"
    );
}

/// One seed in a process of its own: a hundred worlds are gigabytes.
fn in_process(seed: u64) -> Tally {
    const NAME: &str = concat!(module_path!(), "::messages_survive_chaos");
    let text = seeds::in_process(NAME, seed);
    text.lines().find_map(Tally::parse).unwrap_or_else(|| panic!("no account of seed {seed}:\n{text}"))
}

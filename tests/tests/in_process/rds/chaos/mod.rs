//! RDS in chaos: three to eight nodes whose packets get lost, doubled and reordered, whose cables are pulled, which stall, and which
//! die, with or without a word, and boot again, with a clock that may have been set back, all as a seed says. Ports are InfiniBand, Ethernet,
//! or some of each. Sockets are of one type of service or of two, peers have zones of their own or not, programs cancel and close. A model
//! judges what arrives.
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

/// Seeds beyond those of CI that found a defect. 605: an operation that failed took the message with the last
/// acknowledgement along, and the node ended as if the peer had it.
const ONCE_FAILED: [u64; 1] = [605];

#[test]
fn messages_survive_chaos() {
    if let Some(seed) = only_seed() {
        println!("\n{}", with_seed("RDS in chaos", seed, || run::run(seed)));
        return;
    }
    let mut all = Tally::default();
    let runs = if long() { 1000 } else { 100 };
    let again = ONCE_FAILED.into_iter().filter(|seed| *seed > runs);
    (1..=runs).chain(again).for_each(|seed| all.add(&in_process(seed)));
    println!("{runs} seeds: {all}");
    // Enough happened on average.
    assert!(
        all.boots > 4 * runs && all.deaths > runs * 2 / 5 && all.cuts > runs / 2 && all.resets > 10 * runs,
        "{all}"
    );
    assert!(all.silent > runs / 20 && all.stalls > runs / 2 && all.services > runs, "{all}");
    assert!(all.windows > runs && all.denied > 0 && all.mixed > runs / 6, "{all}");
    assert!(
        all.raced > runs
            && all.again > 10 * runs
            && all.old > runs
            && all.congested > runs
            && all.raised > runs / 10,
        "{all}"
    );
}

/// One seed in a process of its own: a hundred worlds are gigabytes.
fn in_process(seed: u64) -> Tally {
    const NAME: &str = concat!(module_path!(), "::messages_survive_chaos");
    let text = seeds::in_process(NAME, seed);
    text.lines().find_map(Tally::parse).unwrap_or_else(|| panic!("no account of seed {seed}:\n{text}"))
}

//! RDS in chaos: three to eight nodes whose packets get lost, doubled and reordered, whose cables are pulled, and which die and
//! boot again, all as a seed says. A model judges what arrives.
//!
//! | variable | meaning |
//! |---|---|
//! | `MLX5_TESTS_LONG=1` | 1000 seeds instead of 50 |
//! | `MLX5_TESTS_SEED=n` | this seed alone |
//!
//! A failure prints its seed and what happened before it.

mod model;
mod node;
mod plan;
mod run;
mod trace;

use run::{Tally, run};
use tests::seeds::{in_processes, long, only_seed, with_seed};

#[test]
fn messages_survive_chaos() {
    let seeds = match only_seed() {
        Some(seed) => seed..seed + 1,
        None if long() => {
            in_processes("messages_survive_chaos", 1..1001);
            return;
        }
        None => 1..51,
    };
    let only = seeds.end - seeds.start == 1;
    let mut all = Tally::default();
    for seed in seeds {
        let tally = with_seed("RDS in chaos", seed, || run(seed));
        if only {
            println!("seed {seed}: {tally:?}");
        }
        all.add(&tally);
    }
    if !only {
        println!("{all:?}");
        // That it was chaos.
        assert!(all.boots > 50 && all.cuts > 25 && all.resets > 300, "{all:?}");
        assert!(all.raced > 5 && all.again > 100 && all.old > 5, "{all:?}");
    }
}

//! Parsers and state machines against hostile input, from seeds: 5 seconds, 10 in continuous
//! integration (`CI`), ten minutes with `MLX5_TESTS_LONG=1`. Every case is a function of its seed
//! alone. A finding prints the seed; `MLX5_TESTS_SEED=n` runs that case and no other.
//! `MLX5_TESTS_FUZZ_SECONDS=n` chooses another length.

mod cm;
mod hostile;
mod parsers;
mod queries;

use hostile::Random;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A case: its name, and what runs it.
type Case = (&'static str, fn(&mut Random));

const CASES: [Case; 7] = [
    ("parsers", parsers::any_bytes),
    ("connection manager", cm::hostile_wire),
    ("connection manager, lossy wire", cm::lossy_wire),
    ("subnet administration client", queries::client),
    ("several segments, receiver", queries::receiver),
    ("several segments, sender", queries::sender),
    ("neighbours", queries::neighbours),
];

fn run(seed: u64) {
    let (name, case) = CASES[(seed % CASES.len() as u64) as usize];
    let result = catch_unwind(AssertUnwindSafe(|| case(&mut Random::new(seed))));
    if let Err(panic) = result {
        eprintln!("{name}: a finding; once more with MLX5_TESTS_SEED={seed}");
        resume_unwind(panic);
    }
}

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable}={value} is not a number")))
}

#[test]
fn hostile_input_is_counted_and_ignored() {
    if let Some(seed) = number("MLX5_TESTS_SEED") {
        println!("the case of seed {seed}: {}", CASES[(seed % CASES.len() as u64) as usize].0);
        run(seed);
        return;
    }
    let long = std::env::var_os("MLX5_TESTS_LONG").is_some_and(|value| !value.is_empty() && value != "0");
    let ci = std::env::var_os("CI").is_some();
    let usual = if ci { 10 } else { 5 };
    let seconds = number("MLX5_TESTS_FUZZ_SECONDS").unwrap_or(if long { 600 } else { usual });
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let first = hostile::mix(clock.as_nanos() as u64) >> 16;
    println!("seeds from {first}, for {seconds} s");
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut cases = 0;
    while Instant::now() < end {
        run(first + cases);
        cases += 1;
    }
    println!("{cases} cases without a finding");
    assert!(cases >= CASES.len() as u64, "too slow to run every kind of case");
}

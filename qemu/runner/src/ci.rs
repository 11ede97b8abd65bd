//! `cargo xtask ci`: everything that a change has to pass, one step after the other. A step that fails does not keep the others
//! from running.

use crate::cache;
use crate::error::{Error, Result};
use crate::levels::{self, Bench, Count, Level};
use std::time::Instant;

/// A step: what it is, and what it does.
type Step = (&'static str, fn() -> Result<Count>);

const STEPS: [Step; 6] = [
    ("lint", || levels::run(&[Level::Lint], false)),
    ("the bench, with its bars", || {
        let report = cache::root().join("target/bench.json");
        levels::bench(Bench::Instructions, Some(&report)).map(|()| Count::PASSED)
    }),
    ("the emulated HCA's bench, with its bars", || {
        let report = cache::root().join("target/bench-model.json");
        levels::bench(Bench::Model, Some(&report)).map(|()| Count::PASSED)
    }),
    ("the demonstration's workload in one process, from all its seeds", levels::demonstration),
    ("Miri", || levels::run(&[Level::Miri], false)),
    ("cargo xtask test", || levels::run(&levels::DEFAULT, false)),
];

/// Runs all steps, saying which one it is at and how long each took, and ends with a line `N passed, N failed`.
///
/// # Errors
/// Something failed; everything else has still run.
pub fn run() -> Result<()> {
    let began = Instant::now();
    // Downloads wait for the network while the first steps compile. A level waits for what is not there yet.
    std::thread::spawn(levels::prepare);
    let mut total = Count::default();
    let mut summary = Vec::new();
    for (number, (name, work)) in (1..).zip(STEPS) {
        let step = format!("step {number} of {}, {name}", STEPS.len());
        println!("ci: {step}");
        let started = Instant::now();
        let count = work().unwrap_or_else(|error| {
            eprintln!("ci: {error}");
            Count::FAILED
        });
        let line = format!("ci: {step}: {count}, {:.0} s", started.elapsed().as_secs_f64());
        println!("{line} ({:.0} s since the start)", began.elapsed().as_secs_f64());
        summary.push(line);
        total.add(count);
    }
    print!("{}", total.failures());
    println!("{}\nci: {:.0} s in all\n{total}", summary.join("\n"), began.elapsed().as_secs_f64());
    if total.failed() { Err(Error::Program("there were failures".into())) } else { Ok(()) }
}

//! `cargo xtask ci`: all steps that a change must pass. A failed step does not keep the others from
//! running.

use crate::cargo;
use crate::levels::{self, Bench, Count, Level};
use rdma_lab::error::{Error, Result};
use std::time::Instant;

/// A step: its name and its work.
struct Step(&'static str, fn() -> Result<Count>);

/// Steps that run one after the other.
type Lane = &'static [Step];

/// The phases run one after the other, the lanes of a phase side by side. Miri has the lowest
/// priority and fills the pauses of the other lane: link-time optimisation uses one processor, and
/// programs in C wait.
const PHASES: [&[Lane]; 2] = [
    &[&[Step("lint", || levels::run(&[Level::Lint], false))]],
    &[
        &[
            Step("the bench, with its bars", || {
                let report = cargo::root().join("target/bench.json");
                levels::bench(Bench::Instructions, Some(&report)).map(|()| Count::PASSED)
            }),
            Step("the emulated HCA's bench, with its bars", || {
                let report = cargo::root().join("target/bench-model.json");
                levels::bench(Bench::Model, Some(&report)).map(|()| Count::PASSED)
            }),
            Step("the demonstration's workload in one process, from all its seeds", levels::demonstration),
            Step("cargo xtask test", || levels::run(&levels::DEFAULT, false)),
        ],
        &[Step("Miri", || levels::run(&[Level::Miri], false))],
    ],
];

/// Runs the steps of a lane. Returns their counts and a line for each.
fn run_lane(lane: Lane, began: Instant) -> (Count, Vec<String>) {
    let mut total = Count::default();
    let mut summary = Vec::new();
    for Step(name, work) in lane {
        println!("ci: step {name}");
        let started = Instant::now();
        let count = work().unwrap_or_else(|error| {
            eprintln!("ci: {error}");
            Count::FAILED
        });
        let line = format!("ci: step {name}: {count}, {:.0} s", started.elapsed().as_secs_f64());
        println!("{line} ({:.0} s since the start)", began.elapsed().as_secs_f64());
        summary.push(line);
        total.add(count);
    }
    (total, summary)
}

/// Runs all steps, with progress and times, and prints a line `N passed, N failed` at the end.
///
/// # Errors
/// A step failed; all others have still run.
pub fn run() -> Result<()> {
    let began = Instant::now();
    // Downloads wait for the network while the first steps compile. A level waits for images that
    // are not there yet.
    std::thread::spawn(levels::prepare);
    let mut total = Count::default();
    let mut summary = Vec::new();
    for lanes in PHASES {
        let results: Vec<_> = std::thread::scope(|scope| {
            let running: Vec<_> =
                lanes.iter().map(|lane| scope.spawn(move || run_lane(lane, began))).collect();
            running.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
        });
        for result in results {
            let (count, lines) = result.unwrap_or_else(|_| (Count::FAILED, Vec::new()));
            total.add(count);
            summary.extend(lines);
        }
    }
    print!("{}", total.failures());
    println!("{}\nci: {:.0} s in all\n{total}", summary.join("\n"), began.elapsed().as_secs_f64());
    if total.failed() { Err(Error::Program("there were failures".into())) } else { Ok(()) }
}

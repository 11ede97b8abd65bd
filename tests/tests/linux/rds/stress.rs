//! `app=rds mode=stress` with the unmodified rds-stress of rds-tools, in both roles, with messages and with RDMA. Debian's present releases do not
//! have that program: the variable `RDS_STRESS` names one, linked statically. Without it the test says SKIPPED. The same with a program of
//! ours that does the same; and the measurement of Linux and of unikernels by it.

use super::{Ground, LINUX, UNIKERNEL, result};
use crate::node::{Node, number};
use rdma_lab::Error;
use runner::conditions;
use runner::linux::judge;
use runner::rds_bench::{self, PATTERNS};
use std::path::PathBuf;

/// A Linux guest and a unikernel.
pub trait Side {
    /// Shortest duration of a run, in seconds.
    const SECONDS: u32 = 1;

    /// Their addresses.
    fn addresses(&self) -> [&'static str; 2];
    /// A unikernel with this command line.
    fn unikernel(&self, words: &str) -> Node;
    /// Runs a script in the guest, which has to succeed; what it printed.
    fn linux(&mut self, script: &str) -> Vec<String>;
}

impl Side for Ground {
    fn addresses(&self) -> [&'static str; 2] {
        [LINUX, UNIKERNEL]
    }

    fn unikernel(&self, words: &str) -> Node {
        self.unikernel(words)
    }

    fn linux(&mut self, script: &str) -> Vec<String> {
        self.linux(script)
    }
}

/// Switches of the active side; all bytes are compared.
pub const RUNS: [&str; 4] = [
    "-q1024 -a200 -t2 -d4 -v",
    "-q64 -a63 -d8 -o -v",
    "-q1024 -D65536 -d2 -v",
    "-D4096 -t2 -I4 -d2 -v --rdma-use-once=1",
];

/// The program that the variable `RDS_STRESS` names.
pub fn program() -> Option<PathBuf> {
    std::env::var_os("RDS_STRESS").map(PathBuf::from)
}

/// What a side's average says.
pub struct Average {
    sent: f64,
    received: f64,
    rdma_in: f64,
    rdma_out: f64,
}

pub fn average(who: &str, switches: &str, lines: &[String]) -> Average {
    let line = lines.iter().find_map(|line| line.strip_suffix("(average)"));
    let line = line.unwrap_or_else(|| panic!("{who} {switches}: no average in:\n{}", lines.join("\n")));
    println!("{who} {switches}: {line}");
    let columns: Vec<f64> = line.split_whitespace().map(|column| column.parse().expect("a number")).collect();
    let [_, sent, received, _, rdma_in, rdma_out, ..] = columns[..] else { panic!("{line}") };
    Average { sent, received, rdma_in, rdma_out }
}

/// Both sides did something, in the directions that the switches say.
pub fn judge_run(switches: &str, active: &Average, passive: &Average) {
    let both_ways = !switches.split(' ').any(|switch| switch == "-o");
    assert!(active.sent > 0.0 && passive.received > 0.0, "{switches}");
    assert_eq!((passive.sent > 0.0, active.received > 0.0), (both_ways, both_ways), "{switches}");
    let rdma = switches.contains("-D");
    for side in [active, passive] {
        assert_eq!((side.rdma_in > 0.0, side.rdma_out > 0.0), (rdma, rdma), "{switches}");
    }
}

/// rds-stress with a unikernel at the other end, in both roles.
pub fn rds_stress<S: Side>(side: &mut S) {
    let [linux, unikernel] = side.addresses();
    for switches in RUNS {
        let switches = &format!("{switches} -T{}", 2 + S::SECONDS);
        let mut node = side.unikernel("app=rds mode=stress");
        node.expect("waiting for incoming connection");
        let lines = side.linux(&format!("rds-stress -r {linux} -s {unikernel} {switches}"));
        let active = average("Linux, active,", switches, &lines);
        judge_run(switches, &active, &average("unikernel, passive,", switches, &node.finish()));

        side.linux(&format!(
            "background stress rds-stress -r {linux}\n\
             listening stress says 'waiting for incoming'"
        ));
        let words = switches.replace(' ', ",");
        let node = side.unikernel(&format!("app=rds mode=stress to={linux} switches={words}"));
        let active = average("unikernel, active,", switches, &node.finish());
        let lines = side.linux("reap stress");
        judge_run(switches, &active, &average("Linux, passive,", switches, &lines));
    }
}

#[test]
fn rds_stress_of_rds_tools_runs_in_both_roles() {
    let Some(program) = program() else {
        return conditions::skip("RDS_STRESS names no rds-stress of rds-tools, linked statically");
    };
    for kernel in judge::kernels() {
        let Some(mut ground) = Ground::with_binaries(*kernel, &[], vec![program.clone()]) else { return };
        rds_stress(&mut ground);
        ground.end();
    }
}

/// Requests in flight, bytes of each, bytes of RDMA up to the longest operation. All bytes
/// are compared.
const LOADS: [[u32; 3]; 3] = [[4, 1024, 0], [2, 1024, 65536], [4, 1024, 1 << 20]];

/// `rds_load.c` with a unikernel's rds-stress at the other end, in both roles.
pub fn loads<S: Side>(side: &mut S) {
    let [linux, unikernel] = side.addresses();
    let seconds = S::SECONDS;
    for [depth, request, rdma] in LOADS {
        let mut node = side.unikernel("app=rds mode=stress");
        node.expect("waiting for incoming connection");
        let asked = format!("rds_load run {linux} {unikernel} {seconds} {depth} {request} {rdma} 1");
        moved(rdma, &side.linux(&asked));
        node.finish();

        side.linux(&format!("background load rds_load serve {linux}\nlistening load 4000"));
        let words =
            format!("app=rds mode=stress to={linux} switches=-v,-T{seconds},-d{depth},-q{request},-D{rdma}");
        average("unikernel", &words, &side.unikernel(&words).finish());
        moved(rdma, &side.linux("reap load"));
    }
}

#[test]
fn a_program_like_rds_stress_runs_in_both_roles() {
    for kernel in judge::kernels() {
        let Some(mut ground) = Ground::new(*kernel, &["rds_load.c"]) else { return };
        loads(&mut ground);
        ground.end();
    }
}

/// There were requests and answers both ways, and RDMA if it was asked for.
fn moved(rdma: u32, lines: &[String]) {
    let line = result(lines, "@load requests=");
    println!("{line}");
    for key in ["requests", "answers", "received"] {
        assert!(number(line, key) > 0, "{line}");
    }
    for key in ["rdma_in", "rdma_out"] {
        assert_eq!(number(line, key) > 0, rdma > 0, "{line}");
    }
}

/// What it measures is not judged here: other work of this machine slows down whichever pair meets it.
#[test]
fn linux_and_unikernels_are_measured_in_turn() {
    if !conditions::long() {
        return;
    }
    let patterns = PATTERNS.to_vec();
    let options =
        rds_bench::Options { rounds: 1, seconds: 1, check: true, patterns, ..rds_bench::Options::default() };
    match rds_bench::measure(&options) {
        Ok(table) => println!("{}", table.text()),
        Err(Error::Missing { what, remedy }) if !conditions::required() => {
            conditions::skip(&format!("{what}; {remedy}"))
        }
        Err(error) => panic!("{error}"),
    }
}

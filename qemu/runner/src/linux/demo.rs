//! Second half of the demonstration: Linux's RDS and a unikernel exchange messages and RDMA. Each
//! acts as server and as client.

use super::power_on;
use crate::cargo;
use crate::console::Operation;
use crate::report::Node;
use hca_serve::Summary;
use rdma_lab::error::{Error, Result};
use rdma_lab::linux::{Kernel, Lab, Options};
use rdma_lab::setup::Qemu;
use rdma_lab::unikernel::{self, Verdict};
use std::path::Path;
use std::time::{Duration, Instant};

/// Addresses of Linux and of the unikernel.
const LINUX: &str = "172.16.0.1";
const UNIKERNEL: &str = "172.16.0.9";
const KERNEL: Kernel = Kernel::V6_1;
/// C programs for the guest, in the directory `tests/guest`.
const PROGRAMS: [&str; 2] = ["rds.c", "rds_rdma.c"];
/// Time limit of an exchange.
const LIMIT: Duration = Duration::from_secs(120);
/// Volume in each direction: pings, and messages of 0 bytes to 100 KiB.
const PINGS: u64 = 1000;
const MESSAGES: u64 = 5000;

/// Script that sets up IP over InfiniBand, and RDS above it.
const SET_UP: &str = "hcas-up && modprobe ib_ipoib || exit 1\n\
    ip link set lo up; ip address add 172.16.0.1/24 dev ib0 && ip link set ib0 up || exit 1\n\
    for wait in $(seq 300); do [ \"$(cat /sys/class/net/ib0/carrier)\" = 1 ] && break; sleep 0.1; done\n\
    modprobe rds_rdma";

/// An exchange between Linux and the unikernel.
struct Exchange {
    /// Name in the report.
    name: &'static str,
    /// Command line of the unikernel.
    words: String,
    /// Command line of the guest's program. Pings need none: Linux's kernel replies.
    program: String,
    /// Server side, which is started first.
    server: Side,
    /// True if the server exits only on request.
    quit: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Linux,
    Unikernel,
}

fn exchanges(divide: u64, seed: u64) -> [Exchange; 6] {
    let [pings, messages] = [PINGS, MESSAGES].map(|volume| (volume / divide).max(1));
    [
        Exchange {
            name: "rds_ping",
            words: "app=rds mode=echo".into(),
            program: format!("rds ping {LINUX} {UNIKERNEL} {pings} 1"),
            server: Side::Unikernel,
            quit: true,
        },
        Exchange {
            name: "rds_ping",
            words: format!("app=rds mode=ping to={LINUX} count={pings} interval=1"),
            program: String::new(),
            server: Side::Linux,
            quit: false,
        },
        Exchange {
            name: "rds",
            words: format!("program=rds_messages role=server to={LINUX} count={messages} seed={seed}"),
            program: format!("rds send {LINUX} {UNIKERNEL} {messages} {seed}"),
            server: Side::Unikernel,
            quit: false,
        },
        Exchange {
            name: "rds",
            words: format!("program=rds_messages role=client to={LINUX} count={messages} seed={seed}"),
            program: format!("rds receive {LINUX} {UNIKERNEL} {messages} {seed}"),
            server: Side::Linux,
            quit: false,
        },
        Exchange {
            name: "rds_rdma",
            words: "program=rds_server".into(),
            program: format!("rds_rdma rdma {LINUX} {UNIKERNEL} 1"),
            server: Side::Unikernel,
            quit: false,
        },
        Exchange {
            name: "rds_rdma",
            words: format!("program=rds_rdma to={LINUX}"),
            program: format!("rds_rdma server {LINUX}"),
            server: Side::Linux,
            quit: false,
        },
    ]
}

/// Parameters of a run.
pub struct Demo<'a> {
    /// QEMU for both machines.
    pub qemu: &'a Qemu,
    /// Image of the unikernel.
    pub image: &'a Path,
    /// Image of the test partners.
    pub workload: &'a Path,
    /// Guests, HCAs and fabric. `run` sets guests and programs.
    pub lab: Options,
    /// Divisor of the volume.
    pub divide: u64,
    /// Seed of the message contents.
    pub seed: u64,
}

impl Demo<'_> {
    /// Returns the lab options of a demonstration.
    pub fn lab() -> Options {
        Options::new(KERNEL, 1)
    }

    /// Runs all exchanges and prints progress on standard output. Returns the results of Linux and
    /// the unikernel, and the counters of the fabric.
    ///
    /// # Errors
    /// - [`Error::Missing`]: a Linux guest cannot be set up.
    /// - [`Error::Guest`]: an exchange did not complete with everything verified.
    pub fn run(&self) -> Result<(Vec<Node>, Summary)> {
        let folder = cargo::root().join("tests/guest");
        let programs = PROGRAMS.iter().map(|name| folder.join(name)).collect();
        let started = Instant::now();
        let mut lab = Lab::start(self.qemu, Options { spare: 1, programs, ..self.lab.clone() })?;
        println!("Linux {}, booted in {:.1} s", lab.version(), started.elapsed().as_secs_f64());
        let times =
            [power_on::linux(&mut lab, 0)?, power_on::unikernel(&lab, self.image, lab.first_spare())?];
        lab.succeed(0, SET_UP, LIMIT)?;
        let mut nodes = [format!("Linux {KERNEL}"), "unikernel".into()].map(|role| Node {
            role,
            verified: true,
            ..Node::default()
        });
        for (node, time) in nodes.iter_mut().zip(times) {
            node.ready = Some(time);
        }
        for exchange in exchanges(self.divide.max(1), self.seed) {
            let operations = self.exchange(&mut lab, &exchange)?;
            for (node, operation) in nodes.iter_mut().zip(operations) {
                // An echo server measures no pings.
                let Some(operation) = operation.filter(|operation| operation.messages > 0) else { continue };
                println!(
                    "{}: {}: {} messages, {} bytes, {} verified",
                    node.role, operation.op, operation.messages, operation.bytes, operation.verified
                );
                node.operations.push(operation);
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        nodes.iter_mut().for_each(|node| node.seconds = seconds);
        Ok((nodes.into(), lab.stop()?))
    }

    /// Runs an exchange. Returns the results of Linux and of the unikernel.
    fn exchange(&self, lab: &mut Lab, exchange: &Exchange) -> Result<[Option<Operation>; 2]> {
        let mut lines = Vec::new();
        if exchange.server == Side::Linux && !exchange.program.is_empty() {
            lab.succeed(
                0,
                &format!(
                    "background rds-server timeout {} {}\n\
                     listening rds-server says @rds",
                    LIMIT.as_secs(),
                    exchange.program
                ),
                LIMIT,
            )?;
        }
        let words = format!("{} ip={UNIKERNEL}/24", exchange.words);
        println!("unikernel: {words}");
        let mut options = unikernel::Options::new(&words);
        options.hcas = vec![lab.socket(lab.first_spare())?.to_path_buf()];
        options.accelerator.clone_from(&self.lab.accelerator);
        let image = if words.contains("program=") { self.workload } else { self.image };
        let mut running = unikernel::start(self.qemu, image, &options)?;
        let linux = match exchange.server {
            Side::Unikernel => {
                running.follow(&mut lines, Some("@rds listening"), LIMIT)?;
                println!("Linux: {}", exchange.program);
                let answer = lab.succeed(0, &exchange.program, LIMIT)?;
                if exchange.quit {
                    running.write_line("@quit")?;
                }
                answer
            }
            Side::Linux => Vec::new(),
        };
        running.follow(&mut lines, None, LIMIT)?;
        let verdict = running.finish(None)?.verdict;
        if verdict != Verdict::Success {
            let reason =
                lines.iter().find_map(|line| line.strip_prefix("error: ")).unwrap_or("it says nothing");
            return Err(Error::Guest(format!("the unikernel with `{words}` {verdict}: {reason}")));
        }
        let linux = match exchange.server {
            Side::Linux if !exchange.program.is_empty() => lab.succeed(0, "reap rds-server", LIMIT)?,
            _ => linux,
        };
        let own = result(&lines).ok_or_else(|| Error::Guest(format!("no result of `{words}`")))?;
        let theirs = result(&linux);
        Ok([theirs, Some(own)].map(|line| line.and_then(|line| operation(exchange.name, line))))
    }
}

/// Returns the last result line.
fn result(lines: &[String]) -> Option<&str> {
    let told =
        |line: &&String| line.starts_with('@') && NUMBERS.iter().any(|key| number(line, key).is_some());
    lines.iter().rev().find(told).map(String::as_str)
}

/// Keys of the counters in result lines.
const NUMBERS: [&str; 4] = ["received", "done", "messages", "regions"];

fn word<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

fn number(line: &str, key: &str) -> Option<u64> {
    word(line, key)?.parse().ok()
}

/// Converts a result line to an operation of the report. The programs print such a line only after
/// all data was compared.
fn operation(name: &str, line: &str) -> Option<Operation> {
    let count = NUMBERS.iter().find_map(|key| number(line, key))?;
    let average = number(line, "avg_us").map(|average| average.saturating_mul(1000).saturating_mul(count));
    let milliseconds = number(line, "ms").map(|ms| ms.saturating_mul(1_000_000));
    Some(Operation {
        op: name.into(),
        messages: count,
        bytes: number(line, "bytes").unwrap_or(0),
        ns: number(line, "ns").or(milliseconds).or(average).unwrap_or(0),
        lat_p50_ns: None,
        lat_p99_ns: None,
        verified: count,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_found_among_other_lines() {
        let lines = [
            "@step name=port us=3",
            "@rds listening port=4100",
            "@result op=rds_messages messages=5 bytes=9 verified=5 ns=4",
            "x",
        ];
        let lines = lines.map(String::from);
        let line = result(&lines).expect("a result");
        let operation = operation("rds", line).expect("an operation");
        assert_eq!((operation.messages, operation.bytes, operation.ns), (5, 9, 4));
        assert_eq!(result(&lines[..2]), None);
    }

    #[test]
    fn every_exchange_names_both_addresses_of_its_pair() {
        for exchange in exchanges(1_000_000, 7) {
            let to_linux = exchange.words.contains(LINUX);
            assert!(to_linux || exchange.program.contains(UNIKERNEL), "{}", exchange.words);
            assert!(!exchange.words.contains("count=0"), "{}", exchange.words);
        }
    }
}

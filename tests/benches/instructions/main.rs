//! Instructions per operation of the hot path, counted by callgrind.
//!
//! `cargo bench -p benches` prints a table; `--report FILE` (or the variable `MLX5_BENCH_REPORT`) also writes JSON. The program
//! starts itself under valgrind: there it makes [`OPERATIONS`] of each operation over [`HANDLES`] handles, so that all rings
//! wrap, and only what happens inside the functions named `measured_*` is counted. The emulated HCAs run between them.
//! Cookies, lengths and bytes are checked. Driver and DAT are counted again over [`MANY_HANDLES`]: what they do must not depend on
//! how many there are. The program fails if an operation takes more than its bar, or differs by more than 5 % over many handles.
//!
//! | operation | what is counted |
//! |---|---|
//! | `driver.post_write` | `Qp::post_send` of a signalled RDMA write of one SGE, and `Qp::ring` |
//! | `driver.post_batch` | each of 32 such posts under one `Qp::ring`, its share of that included |
//! | `driver.post_gather` | as `driver.post_write`, of four SGEs |
//! | `driver.post_inline` | as `driver.post_write`, with `Qp::post_inline` of 64 bytes |
//! | `driver.post_unsignalled` | as `driver.post_write`, without a completion |
//! | `driver.poll` | `Cq::poll` with a completion, finding its QP by the user index, and `Qp::retire`; all QPs share the CQ |
//! | `dat.post_write` | `ep_post_rdma_write` of one segment |
//! | `dat.dequeue` | `evd_dequeue` with a completion; all EPs share the EVD |
//! | `dat.post_send` | `ep_post_send` of one segment |
//! | `dat.post_recv` | `ep_post_recv` of one segment |
//! | `dat.poll_idle` | `Adapter::poll` with nothing to do: all EPs connected, their CQs armed |
//! | `dat.dequeue_empty` | `evd_dequeue` with nothing there, its share of the polls of the adapter included |
//! | `dat.dequeue_recv` | as `dat.dequeue`, of a receive |
//! | `linux.post_write`, `linux.dequeue` | `ep_post_rdma_write` and `evd_dequeue` on the platform of a Linux process, on a served HCA: the request that rings the doorbell included |
//! | `capi.post_write`, `capi.dequeue` | the same through the C library, its lock included |
//! | `rds.send64` | `sendmsg` of 64 bytes, until it is posted and rung for |
//! | `rds.recv64` | for each message of 64 bytes, its share of `Rds::poll`, and `recvmsg`: all that RDS does at the receiving side, posting receives and acknowledgements included; not `Adapter::poll`, which is the application's own call |
//! | `rds.least_send64`, `rds.least_recv64` | the same with nothing of RDS but its header: what DAT, driver, header and copy take at the least |
//! | `rds.copied_kib` | for each KiB of messages of 1000 KiB, all that RDS does at both sides: `sendmsg`, `Rds::poll`, `recvmsg` |
//! | `rds.lent_kib` | the same of a message that the sender lends and the receiver takes as frames, which it gives back |
//! | `rds.peers_send64` | as `rds.send64`, with 255 and with 1000 peers, 40 rounds of one message to each |
//! | `rds.peers_recv64` | as `rds.recv64`, with 255 and with 1000 peers, 40 rounds of one message from each |
//! | `rds.acked64` | for each message of 64 bytes, its share of `Rds::poll` at the sending side: completions and acknowledgements |

mod callgrind;
mod capi;
mod dat;
mod driver;
mod lines;
mod platform;
mod rds;
mod rds_least;
mod rds_long;
mod rds_peers;

use std::collections::BTreeMap;
use std::process::ExitCode;

/// Operations of each kind.
pub const OPERATIONS: usize = 10_000;
/// Handles that they go round.
pub const HANDLES: usize = 32;
/// Handles that driver and DAT go round a second time.
pub const MANY_HANDLES: usize = 1000;

/// Peers of a node, where `driver` and `dat` have [`HANDLES`] handles.
const PEERS: usize = 255;

/// Peers of the node that is counted, in the process with so many handles.
const fn peers(handles: usize) -> usize {
    if handles == HANDLES { PEERS } else { handles }
}

const POST_WRITE: &str = "dat.post_write";
const DEQUEUE: &str = "dat.dequeue";
const LINUX_POST: &str = "linux.post_write";
const LINUX_DEQUEUE: &str = "linux.dequeue";
const CAPI_POST: &str = "capi.post_write";
const CAPI_DEQUEUE: &str = "capi.dequeue";
const COPIED: &str = "rds.copied_kib";
const LENT: &str = "rds.lent_kib";
const PEERS_SEND: &str = "rds.peers_send64";
const PEERS_RECV: &str = "rds.peers_recv64";

/// The functions that are counted, and the operation that they belong to.
const MEASURED: [(&str, &str); 34] = [
    ("measured_linux_post_write", LINUX_POST),
    ("measured_linux_dequeue", LINUX_DEQUEUE),
    ("measured_capi_post_write", CAPI_POST),
    ("measured_capi_dequeue", CAPI_DEQUEUE),
    ("measured_driver_post_batch", "driver.post_batch"),
    ("measured_driver_post_gather", "driver.post_gather"),
    ("measured_driver_post_inline", "driver.post_inline"),
    ("measured_driver_post_unsignalled", "driver.post_unsignalled"),
    ("measured_driver_post_write", "driver.post_write"),
    ("measured_driver_poll", "driver.poll"),
    ("measured_dat_post_write", POST_WRITE),
    ("measured_dat_dequeue", DEQUEUE),
    ("measured_dat_post_send", "dat.post_send"),
    ("measured_dat_post_recv", "dat.post_recv"),
    ("measured_dat_dequeue_recv", "dat.dequeue_recv"),
    ("measured_dat_poll_idle", "dat.poll_idle"),
    ("measured_dat_dequeue_empty", "dat.dequeue_empty"),
    ("measured_rds_sendmsg", "rds.send64"),
    ("measured_rds_poll", "rds.recv64"),
    ("measured_rds_recvmsg", "rds.recv64"),
    ("measured_rds_sender", "rds.acked64"),
    ("measured_rds_least_send", "rds.least_send64"),
    ("measured_rds_least_poll", "rds.least_recv64"),
    ("measured_rds_least_recvmsg", "rds.least_recv64"),
    ("measured_rds_peers_send", PEERS_SEND),
    ("measured_rds_peers_poll", PEERS_RECV),
    ("measured_rds_peers_recvmsg", PEERS_RECV),
    ("measured_rds_long_sendmsg", COPIED),
    ("measured_rds_long_poll", COPIED),
    ("measured_rds_long_recvmsg", COPIED),
    ("measured_rds_lent_sendmsg", LENT),
    ("measured_rds_lent_poll", LENT),
    ("measured_rds_lent_recvmsg", LENT),
    ("measured_rds_lent_give_back", LENT),
];
/// The operations, and how many instructions each may take at most. Where several SGEs, inline data and the common case have one
/// writer, the common case takes up to a tenth more than with a writer of its own.
const BARS: [(&str, Option<f64>); 26] = [
    (LINUX_POST, None),
    (LINUX_DEQUEUE, None),
    (CAPI_POST, None),
    (CAPI_DEQUEUE, None),
    ("driver.post_batch", Some(42.5)),
    ("driver.post_gather", Some(95.0)),
    ("driver.post_inline", Some(88.0)),
    ("driver.post_unsignalled", None),
    ("driver.post_write", Some(56.0)),
    ("driver.poll", Some(46.0)),
    (POST_WRITE, Some(100.0)),
    (DEQUEUE, Some(85.0)),
    ("dat.post_send", Some(86.5)),
    ("dat.post_recv", Some(95.5)),
    ("dat.dequeue_recv", Some(85.5)),
    ("dat.poll_idle", Some(450.0)),
    ("dat.dequeue_empty", Some(32.0)),
    ("rds.least_send64", None),
    ("rds.send64", Some(297.0)),
    ("rds.least_recv64", None),
    ("rds.recv64", Some(336.0)),
    ("rds.acked64", Some(103.0)),
    (PEERS_SEND, Some(331.0)),
    (PEERS_RECV, Some(520.0)),
    (COPIED, None),
    (LENT, Some(185.0)),
];
/// The cache lines that an operation on a cold endpoint may touch, beside stack, program, registers and what the HCA reaches.
const MOST_LINES: [(&str, usize); 2] = [(POST_WRITE, 8), (DEQUEUE, 7)];
/// How much of what a copied message takes a lent one may take.
const MOST_OF_COPIED: f64 = 0.25;
/// What C's calls are held against, and how much more they may take.
const PAIRS: [(&str, &str); 2] = [(LINUX_POST, CAPI_POST), (LINUX_DEQUEUE, CAPI_DEQUEUE)];
const MOST_FOR_C: f64 = 60.0;
/// How much more or less an operation may take over many handles.
const MOST_DIFFERENCE: f64 = 0.05;
/// Set in the process that is counted, to the number of handles.
const CHILD: &str = "MLX5_BENCH_COUNTED";
/// Where to write the report.
const REPORT: &str = "MLX5_BENCH_REPORT";

fn main() -> ExitCode {
    if let Ok(handles) = std::env::var(CHILD) {
        let handles = handles.parse().unwrap_or(HANDLES);
        driver::run(handles);
        dat::run(handles);
        if handles == HANDLES {
            rds::run();
            rds_least::run();
            rds_long::run();
            rds_long::run_lent();
            capi::run();
        }
        rds_peers::run(peers(handles));
        return ExitCode::SUCCESS;
    }
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure() -> Result<(), String> {
    let report = report_file()?;
    let means =
        |handles| Ok::<_, String>(means(&callgrind::count(CHILD, handles, "*measured_*")?, peers(handles)));
    let (few, many) = (means(HANDLES)?, means(MANY_HANDLES)?);
    println!(
        "instructions per operation, mean of {OPERATIONS} and more over {HANDLES} and {MANY_HANDLES} handles:"
    );
    let mut items = vec![];
    let mut missed = vec![];
    for (name, bar) in BARS {
        let mean = few.get(name).copied().ok_or(format!("callgrind saw nothing of {name}"))?;
        items.push(format!("\"{name}\": {mean:.2}"));
        match many.get(name) {
            Some(other) => {
                println!("{name:<24} {mean:>8.1} {other:>8.1}");
                items.push(format!("\"{name}_{MANY_HANDLES}\": {other:.2}"));
                if (other / mean - 1.0).abs() > MOST_DIFFERENCE {
                    missed.push(format!(
                        "{name} takes {other:.1} over {MANY_HANDLES} handles, {mean:.1} over {HANDLES}"
                    ));
                }
            }
            None => println!("{name:<24} {mean:>8.1}"),
        }
        let most = many.get(name).map_or(mean, |other| mean.max(*other));
        if let Some(bar) = bar
            && most > bar
        {
            missed.push(format!("{name} takes {most:.1}, more than {bar}"));
        }
    }
    println!("cache lines of an operation on a cold endpoint, the most of 100:");
    for ((name, lines), (_, most)) in dat::lines()?.into_iter().zip(MOST_LINES) {
        println!("{name:<24} {lines:>8}");
        items.push(format!("\"{name}_lines\": {lines}"));
        if lines > most {
            missed.push(format!("{name} touches {lines} cache lines, more than {most}"));
        }
    }
    for (rust, c) in PAIRS {
        let more = few.get(c).zip(few.get(rust)).map_or(f64::INFINITY, |(c, rust)| c - rust);
        if more > MOST_FOR_C {
            missed.push(format!("{c} takes {more:.1} more than {rust}, which is above {MOST_FOR_C}"));
        }
    }
    let share = few.get(LENT).zip(few.get(COPIED)).map_or(f64::INFINITY, |(lent, copied)| lent / copied);
    if share > MOST_OF_COPIED {
        missed.push(format!("{LENT} takes {share:.3} of {COPIED}, which is above {MOST_OF_COPIED}"));
    }
    if let Some(path) = report {
        let text = format!("{{\"instructions\": {{{}}}}}\n", items.join(", "));
        std::fs::write(&path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    if missed.is_empty() { Ok(()) } else { Err(missed.join("; ")) }
}

/// Instructions of one operation, by its name, of those that were counted with so many peers.
fn means(counts: &BTreeMap<String, u64>, peers: usize) -> BTreeMap<&'static str, f64> {
    let mut means = BTreeMap::new();
    for (function, operation) in MEASURED {
        if let Some(count) = counts.get(function) {
            let operations = match operation {
                PEERS_SEND | PEERS_RECV => rds_peers::ROUNDS * peers,
                _ => OPERATIONS,
            };
            *means.entry(operation).or_default() += *count as f64 / operations as f64;
        }
    }
    means
}

/// `--report FILE`, or the variable; cargo's own `--bench` is no option of ours.
fn report_file() -> Result<Option<std::path::PathBuf>, String> {
    let mut arguments = std::env::args_os().skip(1).filter(|argument| argument != "--bench");
    let mut file = std::env::var_os(REPORT);
    while let Some(argument) = arguments.next() {
        if argument != "--report" {
            return Err(format!("unknown option {}; there is --report FILE", argument.display()));
        }
        file = Some(arguments.next().ok_or("--report needs a file")?);
    }
    Ok(file.map(Into::into))
}

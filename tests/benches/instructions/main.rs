//! Instructions per operation of the hot path, counted by callgrind.
//!
//! `cargo bench -p tests` prints a table; `--report FILE` (or the variable `MLX5_BENCH_REPORT`) also writes JSON. The program
//! starts itself under valgrind: there it makes [`OPERATIONS`] of each operation over [`HANDLES`] handles, so that all rings
//! wrap, and only what happens inside the functions named `measured_*` is counted. The emulated HCAs run between them.
//! Cookies, lengths and bytes are checked.
//!
//! | operation | what is counted |
//! |---|---|
//! | `driver.post_write` | `Qp::post_send` of a signalled RDMA write of one piece, and `Qp::ring` |
//! | `driver.poll` | `Cq::poll` with a completion, and `Qp::retire` of it; 32 QPs share the CQ |
//! | `dat.post_write` | `ep_post_rdma_write` of one segment |
//! | `dat.dequeue` | `evd_dequeue` with a completion; 32 EPs share the EVD |
//! | `rds.send64` | `sendmsg` of 64 bytes |
//! | `rds.recv64` | for each message of 64 bytes, its share of `Rds::poll`, and `recvmsg` |

mod callgrind;
mod dat;
mod driver;
mod platform;
mod rds;

use std::process::ExitCode;

/// Operations of each kind.
pub const OPERATIONS: usize = 10_000;
/// Handles that they go round.
pub const HANDLES: usize = 32;

/// The functions that are counted, and the operation that they belong to.
const MEASURED: [(&str, &str); 7] = [
    ("measured_driver_post_write", "driver.post_write"),
    ("measured_driver_poll", "driver.poll"),
    ("measured_dat_post_write", "dat.post_write"),
    ("measured_dat_dequeue", "dat.dequeue"),
    ("measured_rds_sendmsg", "rds.send64"),
    ("measured_rds_poll", "rds.recv64"),
    ("measured_rds_recvmsg", "rds.recv64"),
];
const NAMES: [&str; 6] =
    ["driver.post_write", "driver.poll", "dat.post_write", "dat.dequeue", "rds.send64", "rds.recv64"];

/// Set in the process that is counted.
const CHILD: &str = "MLX5_BENCH_COUNTED";
/// Where to write the report.
const REPORT: &str = "MLX5_BENCH_REPORT";

fn main() -> ExitCode {
    if std::env::var_os(CHILD).is_some() {
        driver::run();
        dat::run();
        rds::run();
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
    let counts = callgrind::count(CHILD, "*measured_*")?;
    let mut means = [0.0; NAMES.len()];
    for (function, operation) in MEASURED {
        let count = counts.get(function).ok_or(format!("callgrind saw no call of {function}"))?;
        if let Some(index) = NAMES.iter().position(|name| *name == operation) {
            means[index] += *count as f64 / OPERATIONS as f64;
        }
    }
    println!("instructions per operation, mean of {OPERATIONS} over {HANDLES} handles:");
    for (name, mean) in NAMES.iter().zip(means) {
        println!("{name:<20} {mean:>8.1}");
    }
    if let Some(path) = report {
        let items: Vec<String> =
            NAMES.iter().zip(means).map(|(name, mean)| format!("\"{name}\": {mean:.2}")).collect();
        let text = format!("{{\"instructions\": {{{}}}}}\n", items.join(", "));
        std::fs::write(&path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(())
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

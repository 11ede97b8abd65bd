//! `cargo xtask bench rds`: RDS requests and replies between two Linux guests, and between two
//! unikernels, alternately at the same server. The result is the ratio of both rates, because
//! absolute rates only show how fast this machine emulates.
//!
//! | module | subject |
//! |---|---|
//! | `pattern` | patterns and their bars |
//! | `sides` | a measurement of either pair |
//! | `table` | medians, ratios, output |

mod pattern;
mod sides;
mod table;

use crate::{cargo, kernel_image, setup};
pub use pattern::{PATTERNS, Pattern, Unit};
use rdma_lab::error::{Error, IoContext, Result};
use rdma_lab::linux::{Kernel, Lab, Options as LabOptions};
use sides::{Linux, Unikernels};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Instant;
pub use table::{Rates, Table};

/// Options of the user.
#[derive(Debug, Clone)]
pub struct Options {
    /// Number of rounds.
    pub rounds: u32,
    /// Duration of a measurement, in seconds.
    pub seconds: u32,
    /// Makes both sides compare all bytes instead of only headers.
    pub check: bool,
    /// Patterns to measure.
    pub patterns: Vec<Pattern>,
    /// QEMU's accelerator.
    pub accelerator: String,
    /// Path of rds-tools' rds-stress, linked statically. If set, it is measured on Linux too, in
    /// addition to the program that replaces it.
    pub rds_stress: Option<PathBuf>,
    /// File for the table in JSON.
    pub report: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            rounds: 3,
            seconds: 3,
            check: false,
            patterns: PATTERNS.to_vec(),
            accelerator: "tcg".into(),
            rds_stress: None,
            report: None,
        }
    }
}

/// Kernel of the Linux guests.
const KERNEL: Kernel = Kernel::V6_1;

/// Measures, prints progress on standard error, and prints the table.
///
/// # Errors
/// - [`Error::Missing`]: a Linux guest cannot be set up.
/// - [`Error::Guest`]: a guest or unikernel failed.
/// - [`Error::Program`]: a ratio is below its bar.
pub fn run(options: &Options) -> Result<()> {
    if let Some(path) = &options.report {
        // Check the report file first: the bench takes minutes.
        std::fs::File::create(path).context("cannot write", path)?;
    }
    let table = measure(options)?;
    print!("{}", table.text());
    if let Some(path) = &options.report {
        let json = serde_json::to_string_pretty(&table).map_err(|error| Error::Format(error.to_string()))?;
        std::fs::write(path, json + "\n").context("cannot write", path)?;
    }
    match table.missed().as_slice() {
        [] => Ok(()),
        missed => Err(Error::Program(format!("below the bar: {}", missed.join(", ")))),
    }
}

/// Measures everything `options.rounds` times, Linux and unikernels alternately.
///
/// # Errors
/// As [`run`], without the check of the bars.
pub fn measure(options: &Options) -> Result<Table> {
    options.rds_stress.as_deref().map_or(Ok(()), is_rds_stress)?;
    let (qemu, image) = (setup::all()?, kernel_image::build()?);
    let started = Instant::now();
    let lab_options = LabOptions {
        spare: 2,
        strict: false,
        programs: vec![cargo::root().join("tests/guest/rds_load.c")],
        binaries: options.rds_stress.iter().cloned().collect(),
        accelerator: options.accelerator.clone(),
        ..LabOptions::new(KERNEL, 2)
    };
    let mut lab = Lab::start(&qemu, lab_options)?;
    Linux::set_up(&mut lab)?;
    let linux = format!("Linux {}", lab.version());
    eprintln!("bench: {linux}, two guests, up after {:.1} s", started.elapsed().as_secs_f64());
    let mut table = Table::new(&linux, &options.patterns);
    for round in 1..=options.rounds {
        for (number, pattern) in options.patterns.iter().enumerate() {
            let by_linux = Linux::run(&mut lab, pattern, options)?;
            if options.rds_stress.is_some() {
                let rates = Linux::run_rds_stress(&mut lab, pattern, options)?;
                eprintln!("bench: rds-stress {}", pattern.unit.show(rates.get(pattern.unit)));
                table.add_rds_stress(number, rates);
            }
            let by_unikernels = Unikernels { qemu: &qemu, image: &image, lab: &lab }.run(pattern, options)?;
            eprintln!(
                "bench: round {round} of {}, {}: {linux} {}, unikernels {} ({:.0} s since the start)",
                options.rounds,
                pattern.name,
                pattern.unit.show(by_linux.get(pattern.unit)),
                pattern.unit.show(by_unikernels.get(pattern.unit)),
                started.elapsed().as_secs_f64()
            );
            table.add(number, by_linux, by_unikernels);
        }
    }
    lab.stop()?;
    Ok(table)
}

/// Name of rds-stress in the guests. No program of theirs has this name.
const RDS_STRESS: &str = "rds-stress";

/// Checks the path of rds-stress.
///
/// # Errors
/// - [`Error::Usage`]: the file does not exist or has a different name, which may collide with a
///   program of the guests.
fn is_rds_stress(path: &Path) -> Result<()> {
    if path.is_file() && path.file_name() == Some(OsStr::new(RDS_STRESS)) {
        return Ok(());
    }
    Err(Error::Usage(format!("--rds-stress: {} is not there, or is not called {RDS_STRESS}", path.display())))
}

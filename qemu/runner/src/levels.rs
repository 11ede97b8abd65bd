//! `cargo xtask test` and `cargo xtask bench`: the levels of tests, each by calling cargo with the right packages.

use crate::cache;
use crate::error::{Error, Result};
use crate::linux;
use crate::process::Supervised;
use crate::setup;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

/// A level of tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Formatting, clippy on the host and on bare metal, documentation.
    Lint,
    /// The libraries build without std for both bare-metal targets.
    NoStd,
    /// The tests beside the code, in every package.
    Unit,
    /// The full stack on the model in one process: targets `in_process*` of the package `tests`.
    InProcess,
    /// The unikernel under QEMU: targets `boot*`.
    Boot,
    /// Unmodified Linux guests, captures read by tshark: targets `oracle*`.
    Oracle,
    /// Parts under Miri; needs the nightly toolchain with that component.
    Miri,
}

/// The levels by name.
const NAMES: [(&str, Level); 7] = [
    ("lint", Level::Lint),
    ("no-std", Level::NoStd),
    ("unit", Level::Unit),
    ("in-process", Level::InProcess),
    ("boot", Level::Boot),
    ("oracle", Level::Oracle),
    ("miri", Level::Miri),
];

/// What runs when no level is named.
pub const DEFAULT: [Level; 5] = [Level::NoStd, Level::Unit, Level::InProcess, Level::Boot, Level::Oracle];

impl Level {
    fn name(self) -> &'static str {
        NAMES.iter().find(|(_, level)| *level == self).map_or("", |(name, _)| name)
    }

    /// The prefix of the test targets that belong to the level.
    fn prefix(self) -> Option<&'static str> {
        match self {
            Self::InProcess => Some("in_process"),
            Self::Boot => Some("boot"),
            Self::Oracle => Some("oracle"),
            _ => None,
        }
    }
}

impl FromStr for Level {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        NAMES.iter().find(|(name, _)| *name == text).map(|(_, level)| *level).ok_or_else(|| {
            let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
            Error::Usage(format!("unknown test level {text}; there are {}", names.join(", ")))
        })
    }
}

/// The libraries that an embedder takes.
const LIBRARIES: [&str; 6] = ["mlx5-prm", "driver-mlx", "ib-mgmt", "ib-port", "dat-nostd", "rds-nostd"];

/// The variable by which tests learn that they are to run their full lengths.
pub const LONG_VARIABLE: &str = "MLX5_TESTS_LONG";
/// The variable that makes it a failure, not a skipped test, when no Linux guest can be had (with the value 1).
pub const REQUIRE_ORACLE_VARIABLE: &str = "MLX5_REQUIRE_ORACLE";
/// The variable by which the bench learns where to write its report.
pub const BENCH_REPORT_VARIABLE: &str = "MLX5_BENCH_REPORT";

/// How many passed and failed: tests, and steps that are no tests.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Count {
    passed: u64,
    failed: u64,
}

impl Count {
    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }

    /// From a line of Rust's test harness.
    fn from_line(line: &str) -> Option<Self> {
        let rest = line.strip_prefix("test result: ")?;
        let number = |label: &str| {
            let before = rest.split(label).next()?;
            before.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        };
        Some(Self { passed: number(" passed")?, failed: number(" failed")? })
    }
}

/// Runs `levels` and ends with a line `N passed, N failed`.
///
/// # Errors
/// Something failed; everything else has still run.
pub fn test(levels: &[Level], long: bool) -> Result<()> {
    let started = Instant::now();
    let targets = test_targets()?;
    if levels.iter().any(|level| matches!(level, Level::Boot | Level::Oracle | Level::NoStd | Level::Lint)) {
        setup::rust_targets()?;
    }
    // Once, with its progress, before tests run that would do it silently.
    if levels.iter().any(|level| matches!(level, Level::Boot | Level::Oracle)) {
        setup::qemu()?;
    }
    if levels.contains(&Level::Oracle) && targets.iter().any(|name| name.starts_with("oracle")) {
        setup::program("tshark", "tshark")?;
        let required = std::env::var_os(REQUIRE_ORACLE_VARIABLE).is_some_and(|value| value == "1");
        match linux::image(&linux::ORACLE) {
            Ok(_) => {}
            Err(error @ Error::Missing { .. }) if !required => {
                println!("SKIPPED: tests with Linux guests: {error}");
            }
            Err(error) => return Err(error),
        }
    }
    let mut total = Count::default();
    for &level in levels {
        let began = Instant::now();
        let count = run_level(level, &targets, long)?;
        println!(
            "level {}: {} passed, {} failed, {:.0} s",
            level.name(),
            count.passed,
            count.failed,
            began.elapsed().as_secs_f64()
        );
        total.add(count);
    }
    println!("all levels in {:.0} s", started.elapsed().as_secs_f64());
    println!("{} passed, {} failed", total.passed, total.failed);
    if total.failed == 0 { Ok(()) } else { Err(Error::Program("there were failures".into())) }
}

fn run_level(level: Level, targets: &[String], long: bool) -> Result<Count> {
    let mut total = Count::default();
    for arguments in commands(level, targets) {
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        println!("level {}: cargo {}", level.name(), words.join(" "));
        total.add(cargo(&words, long)?);
    }
    Ok(total)
}

/// The calls of cargo that make up a level.
fn commands(level: Level, targets: &[String]) -> Vec<Vec<String>> {
    let words = |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
    let libraries = LIBRARIES.map(|name| format!("--package {name}")).join(" ");
    match level {
        Level::Lint => vec![
            words("fmt --all --check"),
            words("clippy --workspace --exclude kernel --all-targets -- -D warnings"),
            words("clippy --package kernel --lib --tests -- -D warnings"),
            words("clippy --package kernel --target x86_64-unknown-none -- -D warnings"),
            words("clippy --package freestanding --target x86_64-unknown-none -- -D warnings"),
            words("clippy --package driver-mlx --features defmt --target x86_64-unknown-none -- -D warnings"),
            words("doc --workspace --exclude kernel --no-deps"),
        ],
        Level::NoStd => setup::TARGETS
            .iter()
            .map(|target| words(&format!("build {libraries} --target {target}")))
            .chain([words("build --release --package kernel --target x86_64-unknown-none")])
            .collect(),
        Level::Unit => vec![
            words("test --workspace --exclude kernel --exclude tests"),
            words("test --package kernel --lib"),
            words("test --package tests --lib"),
        ],
        Level::InProcess | Level::Boot | Level::Oracle => {
            let prefix = level.prefix().unwrap_or_default();
            let chosen: Vec<String> = targets
                .iter()
                .filter(|name| name.starts_with(prefix))
                .flat_map(|name| ["--test".to_owned(), name.clone()])
                .collect();
            if chosen.is_empty() {
                return Vec::new();
            }
            // QEMU guests share two cores badly: those tests run one after the other.
            let serial = if level == Level::InProcess { "" } else { "-- --test-threads=1" };
            vec![[words("test --package tests"), chosen, words(serial)].concat()]
        }
        Level::Miri => {
            vec![words("+nightly miri test --package mlx5-prm --package ib-mgmt --package driver-mlx --lib")]
        }
    }
}

/// The names of the test targets of the package `tests`.
fn test_targets() -> Result<Vec<String>> {
    let metadata = metadata()?;
    let packages = metadata["packages"].as_array().cloned().unwrap_or_default();
    let targets = packages
        .iter()
        .filter(|package| package["name"] == "tests")
        .flat_map(|package| package["targets"].as_array().cloned().unwrap_or_default())
        .filter(|target| {
            target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "test"))
        })
        .filter_map(|target| target["name"].as_str().map(str::to_owned));
    Ok(targets.collect())
}

fn metadata() -> Result<serde_json::Value> {
    let output = cargo_command()
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| Error::Program(format!("cannot start cargo: {error}")))?;
    serde_json::from_slice(&output.stdout)
        .map_err(|error| Error::Format(format!("cargo metadata is not JSON: {error}")))
}

fn cargo_command() -> Command {
    // Not the variable CARGO: that names one toolchain's program, which does not take `+nightly`.
    let mut command = Command::new("cargo");
    command.current_dir(cache::root()).stdin(Stdio::null());
    command
}

/// The longest that one call of cargo may take.
const CARGO_LIMIT: Duration = Duration::from_secs(4 * 3600);

/// Runs cargo, passing its output on, and counts. A call without tests counts as one.
fn cargo(arguments: &[&str], long: bool) -> Result<Count> {
    let mut command = cargo_command();
    command.args(arguments).stdout(Stdio::piped());
    if long {
        command.env(LONG_VARIABLE, "1");
    }
    if arguments.first() == Some(&"doc") {
        command.env("RUSTDOCFLAGS", "-D warnings");
    }
    let mut child = Supervised::spawn(command)?;
    let mut count = Count::default();
    let mut tests = false;
    if let Some(output) = child.streams().stdout.take() {
        for line in BufReader::new(output).split(b'\n').map_while(std::result::Result::ok) {
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            if let Some(found) = Count::from_line(&line) {
                tests = true;
                count.add(found);
            }
        }
    }
    let success = child.wait_until(Instant::now() + CARGO_LIMIT)?.is_some_and(|status| status.success());
    match (success, tests) {
        (true, true) => {}
        (true, false) => count.passed += 1,
        // A failed build, or a harness that ended without its result line.
        (false, _) => count.failed = count.failed.max(1),
    }
    Ok(count)
}

/// Runs the benches of the package `tests`; `report` is where they write their JSON.
///
/// # Errors
/// There are none, or they fail.
pub fn bench(report: Option<&Path>) -> Result<()> {
    setup::program("valgrind", "valgrind")?;
    let mut command = cargo_command();
    command.args(["bench", "--package", "tests"]);
    if let Some(path) = report {
        let absolute = std::path::absolute(path).map_err(|source| Error::Io {
            action: "cannot write",
            path: path.to_path_buf(),
            source,
        })?;
        // What cannot be written is told before the work, not after it.
        std::fs::File::create(&absolute).map_err(|source| Error::Io {
            action: "cannot write",
            path: absolute.clone(),
            source,
        })?;
        command.env(BENCH_REPORT_VARIABLE, absolute);
    }
    let mut child = Supervised::spawn(command)?;
    match child.wait_until(Instant::now() + CARGO_LIMIT)? {
        Some(status) if status.success() => Ok(()),
        _ => Err(Error::Program("the benches failed".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_are_counted() {
        let line = "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured; 7 filtered out; finished in 0.01s";
        assert_eq!(Count::from_line(line), Some(Count { passed: 12, failed: 3 }));
        assert_eq!(Count::from_line("test foo ... ok"), None);
    }

    #[test]
    fn levels_choose_their_targets_and_unknown_ones_are_named() {
        let targets = ["boot_hello", "in_process_rc", "oracle_probe"].map(str::to_owned);
        let boot = commands(Level::Boot, &targets);
        assert_eq!(boot, [["test", "--package", "tests", "--test", "boot_hello", "--", "--test-threads=1"]]);
        assert_eq!(commands(Level::Boot, &[]), Vec::<Vec<String>>::new());
        for (name, level) in NAMES {
            assert_eq!(name.parse::<Level>().ok(), Some(level));
        }
        let refused = "quick".parse::<Level>().expect_err("unknown").to_string();
        assert!(refused.contains("unknown test level quick") && refused.contains("in-process"), "{refused}");
    }
}

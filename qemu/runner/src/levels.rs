//! `cargo xtask test` and `cargo xtask bench`: the levels of tests, each by calling cargo with the right packages.

use crate::cargo;
use crate::conditions::{LONG_VARIABLE, SKIPPED, required, skip};
use crate::error::{Error, Result};
use crate::failures::{self, Failure};
use crate::graph::Graph;
use crate::links;
use crate::linux::{self, Kernel, Recipe, judge};
use crate::process::Supervised;
use crate::prose;
use crate::setup;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// A level of tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Formatting, clippy on the host and on bare metal, documentation, packages, import circles, prose.
    Lint,
    /// The libraries build without std for both bare-metal targets.
    NoStd,
    /// The tests beside the code, in every package.
    Unit,
    /// The full stack on the model in one process: the target `in_process` of the package `tests`.
    InProcess,
    /// The unikernel under QEMU: the target `boot`.
    Boot,
    /// What programs of others make of the HCA and of captures: the target `oracle`.
    Oracle,
    /// Unmodified Linux guests: the target `linux`.
    Linux,
    /// The libraries' unit tests and a short world under Miri.
    Miri,
}

/// The levels by name.
const NAMES: [(&str, Level); 8] = [
    ("lint", Level::Lint),
    ("no-std", Level::NoStd),
    ("unit", Level::Unit),
    ("in-process", Level::InProcess),
    ("boot", Level::Boot),
    ("oracle", Level::Oracle),
    ("linux", Level::Linux),
    ("miri", Level::Miri),
];

/// What runs when no level is named.
pub const DEFAULT: [Level; 6] =
    [Level::NoStd, Level::Unit, Level::InProcess, Level::Boot, Level::Oracle, Level::Linux];

impl Level {
    fn name(self) -> &'static str {
        NAMES.iter().find(|(_, level)| *level == self).map_or("", |(name, _)| name)
    }

    /// The level's test target in the package `tests`, if it has one.
    fn target(self) -> Option<&'static str> {
        match self {
            Self::InProcess => Some("in_process"),
            Self::Boot => Some("boot"),
            Self::Oracle => Some("oracle"),
            Self::Linux => Some("linux"),
            Self::Lint | Self::NoStd | Self::Unit | Self::Miri => None,
        }
    }

    /// What the level's tests stand on and a machine may lack; made once, with its progress, before tests run that would
    /// do it silently.
    fn prepare(self) -> Result<()> {
        match self {
            Self::Boot => setup::qemu().map(drop),
            Self::Oracle => {
                setup::program("tshark", "tshark")?;
                setup::qemu()?;
                let recipes = [Recipe::new(Kernel::V6_1), judge::programs(Kernel::Backports)?];
                recipes.iter().try_for_each(|recipe| linux::image(recipe).map(drop))
            }
            Self::Miri => setup::miri(),
            Self::Linux => {
                setup::qemu()?;
                let plain = Kernel::RELEASES.map(Recipe::new);
                let programs = [Kernel::V6_1, Kernel::Backports].map(judge::programs);
                let mut recipes = plain.into_iter().map(Ok).chain(programs);
                recipes.try_for_each(|recipe| linux::image(&recipe?).map(drop))
            }
            _ => Ok(()),
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
const LIBRARIES: [&str; 7] =
    ["ib-types", "mlx5-prm", "driver-mlx", "ib-mgmt", "ib-port", "dat-nostd", "rds-nostd"];

/// The crates that are published.
const PUBLISHED: [&str; 12] = [
    "ib-types",
    "mlx5-prm",
    "driver-mlx",
    "vfio-functions",
    "platform-linux",
    "ib-mgmt",
    "ib-port",
    "dat-nostd",
    "rds-nostd",
    "hca-model",
    "hca-serve",
    "unikernel",
];

/// The variable by which the bench learns where to write its report.
pub const BENCH_REPORT_VARIABLE: &str = "MLX5_BENCH_REPORT";

/// The packages that cargo resolves features for when it builds a target of the package `tests`: those of the unit level, so
/// that both levels share one build.
const TEST_SELECTION: &str = "--workspace";

/// How many passed, failed and were skipped: tests, and steps that are no tests.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Count {
    passed: u64,
    failed: u64,
    skipped: u64,
    /// What those that failed said.
    failures: Vec<Failure>,
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        if self.skipped > 0 { write!(f, ", {} skipped", self.skipped) } else { Ok(()) }
    }
}

impl Count {
    /// One step that passed.
    pub(crate) const PASSED: Self = Self { passed: 1, failed: 0, skipped: 0, failures: Vec::new() };
    /// One step that failed.
    pub(crate) const FAILED: Self = Self { passed: 0, failed: 1, skipped: 0, failures: Vec::new() };

    /// Whether anything failed.
    pub(crate) fn failed(&self) -> bool {
        self.failed > 0
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.failures.extend(other.failures);
    }

    /// What those that failed said, a paragraph each.
    pub(crate) fn failures(&self) -> String {
        self.failures.iter().map(|failure| format!("{failure}\n")).collect()
    }

    /// Takes the skipped tests out of the passed ones, among which the test harness counts them.
    fn without_skipped(mut self) -> Self {
        self.passed = self.passed.saturating_sub(self.skipped);
        self
    }

    /// From a line of Rust's test harness.
    fn from_line(line: &str) -> Option<Self> {
        let rest = line.strip_prefix("test result: ")?;
        let number = |label: &str| {
            let before = rest.split(label).next()?;
            before.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        };
        Some(Self { passed: number(" passed")?, failed: number(" failed")?, ..Self::default() })
    }
}

/// Runs `levels` and ends with a line `N passed, N failed`, and how many were skipped if any.
///
/// # Errors
/// Something failed; everything else has still run.
pub fn test(levels: &[Level], long: bool) -> Result<()> {
    let total = run(levels, long)?;
    println!("{}{total}", total.failures());
    if total.failed() { Err(Error::Program("there were failures".into())) } else { Ok(()) }
}

/// Makes what the tests of all levels stand on. Errors are left to the level that needs it, which tries again.
pub(crate) fn prepare() {
    for level in DEFAULT {
        let _ = level.prepare();
    }
}

/// Runs `levels` and counts.
///
/// # Errors
/// A level cannot run at all.
pub(crate) fn run(levels: &[Level], long: bool) -> Result<Count> {
    let started = Instant::now();
    // The unikernel's unit tests compile applications that must not compile.
    let bare_metal = [Level::Boot, Level::Oracle, Level::Linux, Level::NoStd, Level::Lint, Level::Unit];
    if levels.iter().any(|level| bare_metal.contains(level)) {
        setup::rust_targets()?;
    }
    let mut total = Count::default();
    for (number, &level) in (1..).zip(levels) {
        println!("level {} ({number} of {})", level.name(), levels.len());
        let began = Instant::now();
        let count = match level.prepare() {
            Ok(()) => run_level(level, long)?,
            Err(error @ Error::Missing { .. }) if !required() => {
                skip(&format!("level {}: {error}", level.name()));
                Count { skipped: 1, ..Count::default() }
            }
            Err(error) => return Err(error),
        };
        println!("level {}: {count}, {:.0} s", level.name(), began.elapsed().as_secs_f64());
        total.add(count);
    }
    println!("all levels in {:.0} s", started.elapsed().as_secs_f64());
    Ok(total)
}

/// The demonstration's workload in one process, on a bad fabric, from all its seeds. Other full lengths take too long for each
/// change.
///
/// # Errors
/// Cargo cannot be started.
pub(crate) fn demonstration() -> Result<Count> {
    let count =
        cargo(&["test", "--quiet", TEST_SELECTION, "--test", "in_process", "--", "demo::"], true, "")?;
    // A filter that finds no test would pass.
    Ok(if count.passed == 0 { Count::FAILED } else { count })
}

fn run_level(level: Level, long: bool) -> Result<Count> {
    let run = |arguments: Vec<String>, beside_others: bool| {
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let call = format!("level {}: cargo {}", level.name(), words.join(" "));
        println!("{call}");
        let began = Instant::now();
        let package = words.iter().skip_while(|word| **word != "--package").nth(1);
        let prefix = package.filter(|_| beside_others).map(|name| format!("{name}: "));
        let count = cargo(&words, long, &prefix.unwrap_or_default())?;
        println!("{call}: {:.0} s", began.elapsed().as_secs_f64());
        Ok(count)
    };
    let calls = commands(level);
    let counts: Vec<Result<Count>> = if level == Level::Miri {
        // An interpreter uses one processor.
        std::thread::scope(|scope| {
            let runs: Vec<_> = calls.into_iter().map(|call| scope.spawn(|| run(call, true))).collect();
            runs.into_iter().map(|run| run.join().unwrap_or(Ok(Count::FAILED))).collect()
        })
    } else {
        calls.into_iter().map(|call| run(call, false)).collect()
    };
    let mut total = Count::default();
    for count in counts {
        total.add(count?);
    }
    if level == Level::Lint {
        total.add(step("import circles", Graph::of_project().and_then(|graph| graph.judge())));
        total.add(step("prose", prose::judge()));
        total.add(step("links of Markdown files", links::judge()));
    }
    Ok(total)
}

/// Counts a step of `lint` that is no call of cargo.
fn step(name: &str, result: Result<()>) -> Count {
    println!("level lint: {name}");
    match result {
        Ok(()) => Count::PASSED,
        Err(error) => {
            eprintln!("{error}");
            Count::FAILED
        }
    }
}

/// The calls of cargo that make up a level.
fn commands(level: Level) -> Vec<Vec<String>> {
    let words = |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
    let packages = |names: &[&str]| -> String {
        names.iter().map(|name| format!("--package {name}")).collect::<Vec<_>>().join(" ")
    };
    let libraries = packages(&LIBRARIES);
    match level {
        // Packages of one selection share their builds; a second selection may differ in features
        // and then compiles everything again.
        Level::Lint => vec![
            words("fmt --all --check"),
            words("clippy --workspace --all-targets -- -D warnings"),
            words(&format!(
                "clippy --package kernel --package unikernel --package freestanding --package driver-mlx --package dat-nostd --target {} -- -D warnings",
                setup::TARGETS[0]
            )),
            words("doc --workspace --exclude kernel --exclude unikernel --no-deps"),
            words("doc --package unikernel --features dat --no-deps --target x86_64-unknown-none"),
            words(&format!("package --quiet --no-verify --allow-dirty {}", packages(&PUBLISHED))),
        ],
        Level::NoStd => setup::TARGETS
            .iter()
            .map(|target| words(&format!("build {libraries} --target {target}")))
            .chain([words("build --release --package kernel --target x86_64-unknown-none")])
            .collect(),
        // More threads than processors: programs in C wait most of the time.
        Level::Unit => vec![words("test --workspace --exclude tests -- --test-threads=4")],
        Level::InProcess | Level::Boot | Level::Oracle | Level::Linux => {
            let target = level.target().unwrap_or_default();
            // More threads than processors: guests wait for timers and for each other.
            let threads = if level == Level::InProcess { "" } else { " -- --test-threads=3" };
            vec![words(&format!("test {TEST_SELECTION} --test {target}{threads}"))]
        }
        // A short world, and the libraries that have unsafe code; the others forbid it.
        Level::Miri => ["harness --test short", "driver-mlx --lib", "dat-nostd --lib"]
            .map(|what| words(&format!("+{} miri test --package {what}", setup::MIRI_TOOLCHAIN)))
            .to_vec(),
    }
}

/// What Miri is told.
const MIRI_FLAGS: [&str; 4] = [
    // A device address is a number.
    "-Zmiri-permissive-provenance",
    // Of atomic accesses of several sizes to the same bytes, as DMA memory has them, Miri can find races but no stale values.
    "-Zmiri-disable-weak-memory-emulation",
    // The machine is out of reach: random tests must not look for failures of earlier days, and take few cases.
    "-Zmiri-env-set=PROPTEST_DISABLE_FAILURE_PERSISTENCE=true",
    "-Zmiri-env-set=PROPTEST_CASES=2",
];

/// The longest that one call of cargo may take.
const CARGO_LIMIT: Duration = Duration::from_secs(4 * 3600);

/// Runs cargo, passing its output on with `prefix` before each line, and counts. A call without tests counts as one.
fn cargo(arguments: &[&str], long: bool, prefix: &str) -> Result<Count> {
    let mut command = cargo::command();
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Without a terminal cargo would draw no colours.
    if std::io::IsTerminal::is_terminal(&std::io::stderr()) && std::env::var_os("CARGO_TERM_COLOR").is_none()
    {
        command.env("CARGO_TERM_COLOR", "always");
    }
    if long {
        command.env(LONG_VARIABLE, "1");
    }
    if arguments.get(1) == Some(&"miri") {
        command.env("MIRIFLAGS", MIRI_FLAGS.join(" "));
    }
    if arguments.first() == Some(&"doc") {
        command.env("RUSTDOCFLAGS", "-D warnings");
    }
    let mut child = Supervised::spawn(command)?;
    let prefix = prefix.to_owned();
    let of_errors = prefix.clone();
    let errors = child
        .streams()
        .stderr
        .take()
        .map(|stream| std::thread::spawn(move || pass_errors_on(stream, &of_errors)));
    let mut count = Count::default();
    let mut failures = failures::Reader::default();
    let mut tests = false;
    if let Some(output) = child.streams().stdout.take() {
        for line in BufReader::new(output).split(b'\n').map_while(std::result::Result::ok) {
            let line = String::from_utf8_lossy(&line);
            println!("{prefix}{line}");
            failures.line(&line);
            if let Some(found) = Count::from_line(&line) {
                tests = true;
                count.add(found);
            }
        }
    }
    count.failures = failures.into_failures();
    count.skipped = errors.and_then(|thread| thread.join().ok()).unwrap_or(0);
    count = count.without_skipped();
    let success = child.wait_until(Instant::now() + CARGO_LIMIT)?.is_some_and(|status| status.success());
    match (success, tests) {
        (true, true) => {}
        (true, false) => count.passed += 1,
        // A failed build, or a harness that ended without its result line.
        (false, _) => count.failed = count.failed.max(1),
    }
    Ok(count)
}

/// Passes on what comes from a child's standard error; answers how many lines say that a test was skipped.
fn pass_errors_on(stream: impl std::io::Read, prefix: &str) -> u64 {
    let mut skipped = 0;
    for line in BufReader::new(stream).split(b'\n').map_while(std::result::Result::ok) {
        let line = String::from_utf8_lossy(&line);
        skipped += u64::from(line.starts_with(SKIPPED));
        eprintln!("{prefix}{line}");
    }
    skipped
}

/// A bench of the package `tests`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bench {
    /// Driver, DAT and RDS.
    Instructions,
    /// The emulated HCA.
    Model,
}

/// Runs a bench of the package `tests`; `report` is where it writes its JSON.
///
/// # Errors
/// It fails.
pub fn bench(bench: Bench, report: Option<&Path>) -> Result<()> {
    setup::program("valgrind", "valgrind")?;
    let mut command = cargo::command();
    let name = match bench {
        Bench::Instructions => "instructions",
        Bench::Model => "model",
    };
    command.args(["bench", "--package", "benches", "--bench", name]);
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
        let count = Count { passed: 12, failed: 3, ..Count::default() };
        assert_eq!(Count::from_line(line), Some(count));
        assert_eq!(Count::from_line("test foo ... ok"), None);
    }

    #[test]
    fn skipped_tests_are_counted_and_are_not_among_the_passed() {
        let errors =
            b"   Compiling tests\nSKIPPED: no QEMU\nwarning: SKIPPED: not at the start\nSKIPPED: no tshark\n";
        assert_eq!(pass_errors_on(&errors[..], ""), 2);
        let count = Count { passed: 5, failed: 1, skipped: 2, ..Count::default() }.without_skipped();
        assert_eq!(count.to_string(), "3 passed, 1 failed, 2 skipped");
        assert_eq!(Count { passed: 5, ..Count::default() }.to_string(), "5 passed, 0 failed");
    }

    #[test]
    fn levels_choose_their_targets_and_unknown_ones_are_named() {
        let boot = ["test", "--workspace", "--test", "boot", "--", "--test-threads=3"];
        assert_eq!(commands(Level::Boot), [boot]);
        assert_eq!(commands(Level::InProcess), [["test", "--workspace", "--test", "in_process"]]);
        for (name, level) in NAMES {
            assert_eq!(name.parse::<Level>().ok(), Some(level));
        }
        let refused = "quick".parse::<Level>().expect_err("unknown").to_string();
        assert!(refused.contains("unknown test level quick") && refused.contains("in-process"), "{refused}");
    }

    #[test]
    fn published_crates_are_those_that_manifests_publish() {
        let metadata = cargo::metadata().expect("cargo metadata");
        let packages = metadata["packages"].as_array().expect("packages");
        // `publish = false` is an empty list of registries, no such key is null.
        let published = packages.iter().filter(|package| package["publish"].is_null());
        let mut published: Vec<&str> = published.filter_map(|package| package["name"].as_str()).collect();
        published.sort_unstable();
        let mut listed = PUBLISHED.to_vec();
        listed.sort_unstable();
        assert_eq!(published, listed);
        for package in packages.iter().filter(|package| package["publish"].is_null()) {
            for key in ["description", "license", "rust_version"] {
                assert!(package[key].is_string(), "{}: no {key}", package["name"]);
            }
            for key in ["keywords", "categories"] {
                let list = package[key].as_array().map_or(0, Vec::len);
                assert!((1..=5).contains(&list), "{}: {list} {key}", package["name"]);
            }
        }
    }

    #[test]
    fn each_target_of_the_package_of_tests_is_a_levels() {
        let metadata = cargo::metadata().expect("cargo metadata");
        let tests = metadata["packages"]
            .as_array()
            .and_then(|packages| packages.iter().find(|package| package["name"] == "tests"))
            .expect("the package of tests");
        let mut targets: Vec<&str> = tests["targets"]
            .as_array()
            .expect("targets")
            .iter()
            .filter(|target| target["kind"][0] == "test")
            .filter_map(|target| target["name"].as_str())
            .collect();
        targets.sort_unstable();
        let mut levels: Vec<&str> = NAMES.iter().filter_map(|(_, level)| level.target()).collect();
        levels.sort_unstable();
        assert_eq!(targets, levels);
    }
}

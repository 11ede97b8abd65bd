//! Tests that are functions of a seed: how many seeds are tried, in what processes, and randomness from one.
//!
//! | variable | meaning |
//! |---|---|
//! | `CI` | there is more time than before somebody's screen |
//! | `MLX5_TESTS_LONG=1` | full lengths |
//! | `MLX5_TESTS_SEED=n` | this seed alone |

use ib_types::SplitMix64;

/// Whether the full lengths are asked for.
#[must_use]
pub fn long() -> bool {
    std::env::var_os("MLX5_TESTS_LONG").is_some_and(|value| value != "0")
}

/// Whether this is continuous integration, where there is more time than before somebody's screen.
#[must_use]
pub fn ci() -> bool {
    std::env::var_os("CI").is_some()
}

/// The one seed that is asked for.
///
/// # Panics
/// If what was asked for is no number.
#[must_use]
pub fn only_seed() -> Option<u64> {
    let text = std::env::var("MLX5_TESTS_SEED").ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("MLX5_TESTS_SEED={text} is no number")))
}

/// Runs a test for one seed in a process of its own and answers what it printed: a world's memory stays until its process
/// ends, and `work` that is asked for thousands of them would fill the machine. `test` is the test's whole path with its target,
/// as `concat!(module_path!(), "::name")` gives it.
///
/// # Panics
/// If the test fails; if there is no such test.
#[must_use]
pub fn in_process(test: &str, seed: u64) -> String {
    let (_, name) = test.split_once("::").expect("a path with the target's name");
    let child = std::process::Command::new(std::env::current_exe().expect("this program's path"))
        .args(["--exact", name, "--nocapture"])
        .env("MLX5_TESTS_SEED", seed.to_string())
        .stdin(std::process::Stdio::null())
        .output()
        .expect("this program once more");
    let text = String::from_utf8_lossy(&child.stdout).into_owned();
    if !child.status.success() || !text.contains("test result: ok. 1 passed") {
        eprintln!("{text}{}", String::from_utf8_lossy(&child.stderr));
        panic!("{name} failed with MLX5_TESTS_SEED={seed}");
    }
    text
}

/// Runs a test as [`in_process`] does, for each of many seeds.
///
/// # Panics
/// With the first seed that fails.
pub fn in_processes(test: &str, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        println!("{}", in_process(test, seed));
    }
}

/// Runs `work` and says which seed it was if it fails.
///
/// # Panics
/// As `work` does.
pub fn with_seed<T>(what: &str, seed: u64, work: impl FnOnce() -> T + std::panic::UnwindSafe) -> T {
    match std::panic::catch_unwind(work) {
        Ok(value) => value,
        Err(cause) => {
            eprintln!("{what} failed; MLX5_TESTS_SEED={seed} replays it");
            std::panic::resume_unwind(cause)
        }
    }
}

/// A generator with 64 bits of state (SplitMix64): every seed gives an unrelated sequence.
#[derive(Clone, Debug)]
pub struct Random(SplitMix64);

impl Random {
    /// From the beginning.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// 64 random bits.
    #[allow(clippy::should_implement_trait)] // It never ends.
    pub fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Below `limit`, which is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// One time in `n`.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of them.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// An index, as often as its weight says.
    pub fn weighted(&mut self, weights: &[u32]) -> usize {
        let mut at = self.below(weights.iter().map(|weight| u64::from(*weight)).sum());
        for (index, weight) in weights.iter().enumerate() {
            match at.checked_sub(u64::from(*weight)) {
                Some(rest) => at = rest,
                None => return index,
            }
        }
        unreachable!("the sum of the weights is above every value")
    }
}

//! DAT under random use. Every run is a function of a seed, which a failure prints.
//!
//! | variable | meaning |
//! |---|---|
//! | `CI` | 60 seconds of random calls instead of 5 |
//! | `MLX5_TESTS_LONG=1` | full lengths: 10 minutes of random calls, 200 seeds of faults |
//! | `MLX5_TESTS_SEED=n` | this seed alone |

mod calls;
mod faults;
mod model;
mod player;
mod random;

/// Whether the full lengths are asked for.
fn long() -> bool {
    std::env::var_os("MLX5_TESTS_LONG").is_some_and(|value| value != "0")
}

/// Whether this is continuous integration, where there is more time than before somebody's screen.
fn ci() -> bool {
    std::env::var_os("CI").is_some()
}

/// The one seed that is asked for.
fn only_seed() -> Option<u64> {
    let text = std::env::var("MLX5_TESTS_SEED").ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("MLX5_TESTS_SEED={text} is no number")))
}

/// Runs the test `name` for each seed in a process of its own, many seeds long: a world's memory stays until its process
/// ends, and `work` that is asked for thousands of them would fill the machine.
fn in_processes(name: &str, seeds: std::ops::Range<u64>) {
    let program = std::env::current_exe().expect("this program's path");
    for seed in seeds {
        let status = std::process::Command::new(&program)
            .args(["--exact", name, "--nocapture"])
            .env("MLX5_TESTS_SEED", seed.to_string())
            .stdin(std::process::Stdio::null())
            .status()
            .expect("this program once more");
        assert!(status.success(), "{name} failed with MLX5_TESTS_SEED={seed}");
    }
}

/// Runs `work` and says which seed it was if it fails.
fn with_seed<T>(what: &str, seed: u64, work: impl FnOnce() -> T + std::panic::UnwindSafe) -> T {
    match std::panic::catch_unwind(work) {
        Ok(value) => value,
        Err(cause) => {
            eprintln!("{what} failed; MLX5_TESTS_SEED={seed} replays it");
            std::panic::resume_unwind(cause)
        }
    }
}

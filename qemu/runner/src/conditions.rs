//! The conditions that a test runs under: full lengths, required tools, skipping.

use std::io::Write as _;

/// Environment variable that makes tests run their full lengths.
pub const LONG_VARIABLE: &str = "MLX5_TESTS_LONG";
/// Environment variable that makes a missing tool a failure instead of a skipped test (value 1).
pub const REQUIRE_VARIABLE: &str = "MLX5_TESTS_REQUIRE";

/// Prefix of the line that reports a skipped test.
pub(crate) const SKIPPED: &str = "SKIPPED: ";

fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| !value.is_empty() && value != "0")
}

/// Returns whether tests run their full lengths.
pub fn long() -> bool {
    is_set(LONG_VARIABLE)
}

/// Returns whether a missing tool is a failure.
pub fn required() -> bool {
    is_set(REQUIRE_VARIABLE)
}

/// Reports a skipped test on the standard error, past the test harness, which shows the output of
/// failed tests only. `cargo xtask test` counts these lines: one per test.
pub fn skip(reason: &str) {
    let line = format!("{SKIPPED}{}\n", reason.replace('\n', " "));
    // A closed standard error has no reader to notify.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

//! Tests the behaviour of `cargo xtask` on errors: one line on standard error and a non-zero
//! status.

use std::process::{Command, Output, Stdio};

fn xtask(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("xtask starts")
}

/// Returns the line on standard error of a call that must fail.
fn refusal(arguments: &[&str]) -> String {
    let output = xtask(arguments);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{arguments:?} succeeded: {text}");
    assert_eq!(text.lines().count(), 1, "{arguments:?}: {text}");
    text
}

#[test]
fn without_a_command_the_usage_and_a_failure() {
    let output = xtask(&[]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    for command in ["setup", "demo", "serve", "test", "bench"] {
        assert!(text.contains(&format!("\n  {command} ")), "{command} is not in: {text}");
    }
    assert!(xtask(&["--help"]).status.success());
}

#[test]
fn each_mistake_is_named() {
    for (arguments, named) in [
        (&["frobnicate"][..], "unknown command frobnicate"),
        (&["--frob"], "--frob"),
        (&["demo", "--frob"], "--frob"),
        (&["demo", "--open-fabric", "--frob"], "--frob"),
        (&["demo", "--seed", "many"], "many"),
        (&["demo", "--seed"], "--seed"),
        (&["demo", "--faults", "loss=200%"], "200%"),
        (&["guests"], "which guests?"),
        (&["serve"], "--socket"),
        (&["demo", "--accel", "fast"], "unknown accelerator fast; there are auto, tcg, kvm"),
        (&["test", "quick"], "unknown test level quick"),
        (&["setup", "now"], "now"),
        (&["bench", "speed"], "speed"),
        (&["bench", "--rounds", "2"], "--rounds is for `bench rds`"),
        (&["bench", "rds", "--rounds", "0"], "zero"),
        (&["bench", "rds", "--accel", "fast"], "unknown accelerator fast"),
    ] {
        let line = refusal(arguments);
        assert!(line.contains(named), "{arguments:?}: {line}");
        assert!(line.contains("--help` lists what there is"), "{arguments:?}: {line}");
    }
}

#[test]
fn every_command_has_its_help() {
    for command in ["demo", "serve", "test", "bench", "ci", "graph", "prose", "boot", "guests", "setup"] {
        let output = xtask(&[command, "--help"]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{command}");
        assert!(text.starts_with(&format!("usage: cargo xtask {command}")), "{text}");
        assert!(text.contains("exit status: 0"), "{text}");
    }
    let text = String::from_utf8_lossy(&xtask(&["demo", "--seed", "5", "-h"]).stdout).into_owned();
    assert!(text.contains("--with-linux") && text.contains("--accel"), "{text}");
}

#[test]
fn files_that_cannot_be_written_are_told_before_any_work() {
    let line = refusal(&["demo", "--report", "/nowhere/report.json"]);
    assert!(line.contains("/nowhere/report.json"), "{line}");
}

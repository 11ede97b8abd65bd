//! Tests the behaviour of `rdma-lab` on errors: one line on standard error and a non-zero status,
//! before any work.

use rdma_lab::process::Temporary;
use std::process::{Command, Output, Stdio};

fn rdma_lab(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rdma-lab"))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("rdma-lab starts")
}

/// Returns the line on standard error of a call that must fail.
fn refusal(arguments: &[&str]) -> String {
    let output = rdma_lab(arguments);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{arguments:?} succeeded: {text}");
    assert_eq!(text.lines().count(), 1, "{arguments:?}: {text}");
    text
}

#[test]
fn each_mistake_is_named() {
    for (arguments, named) in [
        (&["frobnicate"][..], "unknown command frobnicate"),
        (&["--frob"], "--frob"),
        (&["guests"], "which guests? --linux 'WORDS', --unikernel 'WORDS'"),
        (&["guests", "uname -a"], "which guests?"),
        (&["guests", "--linux", "", "uname -a", "id"], "there is a script already"),
        (&["guests", "--open-fabric", "--frob"], "--frob"),
        (&["guests", "--unikernel", "app=hello", "uname -a"], "only Linux guests run scripts"),
        (&["guests", "--server", "ip=10.0.0.1"], "--server is for a unikernel that serves others"),
        (&["guests", "--unikernel", "app=hello"], "which unikernel? --image ELF"),
        (&["guests", "--linux", "cpus=2"], "`cpus=2` is unknown; there are count=N kernel=NAME packages=A,B"),
        (&["guests", "--linux", "kernel=5.10"], "unknown kernel 5.10; there are 6.1, 6.12, backports"),
        (&["guests", "--linux", "vcpus=1000"], "vcpus=1000 is no number from 1 to 64"),
        (&["guests", "--linux", "packages=../x"], "`../x` is no name of a package"),
        (&["guests", "--linux", "", "--image", "/x"], "--image applies to each --unikernel that follows it"),
        (&["guests", "--linux", "", "--accel", "fast"], "unknown accelerator fast; there are auto, tcg, kvm"),
        (&["guests", "--linux", "", "--limit", "long"], "--limit long: give a number"),
        (&["serve"], "--socket"),
        (&["serve", "--socket", "/x", "--faults", "fire=1%"], "unknown fault `fire`"),
        (&["boot", "--hca"], "which unikernel? --image ELF"),
        (&["boot", "--hca", "--profile", "cx-7"], "--profile applies to each --hca that follows it"),
        (&["iso"], "which unikernel? --image ELF"),
        (&["iso", "--output"], "--output"),
    ] {
        let line = refusal(arguments);
        assert!(line.contains(named), "{arguments:?}: {line}");
        assert!(line.contains("--help` lists what there is"), "{arguments:?}: {line}");
    }
}

#[test]
fn every_command_has_its_help() {
    let all = String::from_utf8_lossy(&rdma_lab(&["--help"]).stdout).into_owned();
    for command in ["guests", "serve", "boot", "iso"] {
        assert!(all.contains(&format!("\n  {command} ")), "{all}");
        let output = rdma_lab(&[command, "--help"]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{command}");
        assert!(text.starts_with(&format!("usage: rdma-lab {command}")), "{text}");
        assert!(text.contains("exit status: 0"), "{text}");
    }
    let output = rdma_lab(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("a command is missing"));
    let text = String::from_utf8_lossy(&rdma_lab(&["guests", "--seed", "5", "-h"]).stdout).into_owned();
    assert!(text.contains("\n    packages=A,B ") && text.contains("\n  --accel NAME "), "{text}");
}

#[test]
fn files_that_cannot_be_used_are_told_before_any_work() {
    let folder = Temporary::folder("cli-test").expect("folder");
    let socket = folder.path().join("a");
    let socket = socket.to_str().expect("text");
    for (arguments, named) in [
        (&["serve", "--socket", socket, "--pcap", "/nowhere/c.pcapng"][..], "/nowhere/c.pcapng"),
        (&["serve", "--socket", "/nowhere/a"], "/nowhere/a"),
        (&["boot", "--image", "/nowhere/kernel"], "/nowhere/kernel"),
        (&["iso", "--image", "/nowhere/kernel"], "/nowhere/kernel"),
        (&["guests", "--image", "/nowhere/kernel", "--unikernel", ""], "/nowhere/kernel"),
    ] {
        let line = refusal(arguments);
        assert!(line.contains(named), "{arguments:?}: {line}");
    }
}

//! What a user sees of `cargo xtask` when something is wrong: one clear line and a status that is not zero; and
//! that a server ended by a signal leaves nothing behind.

use runner::process::Temporary;
use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn xtask(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("xtask starts")
}

/// The one line on standard error of a call that must fail.
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
        (&["demo", "--seed", "many"], "many"),
        (&["demo", "--seed"], "--seed"),
        (&["demo", "--faults", "loss=200%"], "200%"),
        (&["serve"], "--socket"),
        (&["serve", "--socket", "/x", "--faults", "fire=1%"], "unknown fault `fire`"),
        (&["test", "quick"], "unknown test level quick"),
        (&["setup", "now"], "now"),
    ] {
        let line = refusal(arguments);
        assert!(line.contains(named), "{arguments:?}: {line}");
    }
}

#[test]
fn files_that_cannot_be_written_are_told_before_any_work() {
    let line = refusal(&["demo", "--report", "/nowhere/report.json"]);
    assert!(line.contains("/nowhere/report.json"), "{line}");
    let folder = Temporary::folder("cli-test").expect("folder");
    let socket = folder.path().join("a");
    let socket = socket.to_str().expect("text");
    let line = refusal(&["serve", "--socket", socket, "--pcap", "/nowhere/c.pcapng"]);
    assert!(line.contains("/nowhere/c.pcapng"), "{line}");
    let line = refusal(&["serve", "--socket", "/nowhere/a"]);
    assert!(line.contains("/nowhere/a"), "{line}");
}

#[test]
fn a_server_ended_by_a_signal_leaves_no_socket_and_a_whole_capture() {
    let folder = Temporary::folder("cli-test").expect("folder");
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
        let (one, two, capture) = (path("one"), path("two"), path("capture.pcapng"));
        let mut server = Command::new(env!("CARGO_BIN_EXE_xtask"))
            .args(["serve", "--socket", &one, "--socket", &two, "--pcap", &capture])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("xtask starts");
        let output = BufReader::new(server.stdout.take().expect("its output"));
        let text: Vec<String> =
            output.lines().map_while(Result::ok).take_while(|l| !l.contains("Ctrl-C")).collect();
        assert!(text.iter().any(|line| line.contains("vfio-user-pci") && line.contains(&one)), "{text:?}");
        let line = refusal(&["serve", "--socket", &two]);
        assert!(line.contains("in use") && line.contains(&two), "{line}");
        let id = rustix::process::Pid::from_child(&server);
        rustix::process::kill_process(id, signal).expect("the server runs");
        let deadline = Instant::now() + Duration::from_secs(10);
        let status = loop {
            match server.try_wait().expect("a child") {
                Some(status) => break status,
                None if Instant::now() > deadline => {
                    let _ = server.kill();
                    panic!("the server did not end");
                }
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        assert!(!status.success());
        for socket in [&one, &two] {
            assert!(!std::path::Path::new(socket).exists(), "{socket} is left");
        }
        let bytes = std::fs::read(&capture).expect("the capture");
        assert_eq!(bytes[..4], [0x0a, 0x0d, 0x0d, 0x0a], "a pcapng section");
    }
}

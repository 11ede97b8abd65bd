//! Tests of the program's user interface: signals, report, control socket, readiness, and a capture
//! by a pipe.

use crate::support::Folder;
use crate::support::client::{BAR0, CONFIG, Client, IDS};
use crate::support::guest::pair;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hca-serve"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A running server, killed when dropped.
struct Server {
    child: Child,
    folder: Folder,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Starts a server with two HCAs, `a` and `b`, and the `options`, in which `FOLDER` stands for
    /// its directory. Returns when clients can connect.
    fn start(options: &str) -> Self {
        Self::start_in(options, |_| {})
    }

    /// Starts a server after `prepare` was called with its directory.
    fn start_in(options: &str, prepare: impl FnOnce(&Path)) -> Self {
        let folder = Folder::new();
        prepare(folder.path());
        let path = folder.path().to_str().expect("text");
        let options = options.replace("FOLDER", path);
        let (ready, told) = std::os::unix::net::UnixStream::pair().expect("pair");
        // The shell assigns the descriptor's number.
        let program = env!("CARGO_BIN_EXE_hca-serve");
        let script = format!(
            "exec {program} --socket {path}/a --socket {path}/b --ready-fd 3 {options} 3>&0 </dev/null"
        );
        let child = Command::new("sh")
            .args(["-c", &script])
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(told)))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        let server = Self { child, folder };
        let mut line = String::new();
        BufReader::new(ready).read_line(&mut line).expect("told");
        assert_eq!(line, "ready\n");
        server
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn control(&self) -> Control {
        let stream = UnixStream::connect(self.path("control")).expect("connects");
        Control(BufReader::new(stream))
    }

    /// Sends a signal and waits for the exit. Returns status, standard output and standard error.
    fn end(&mut self, signal: Signal) -> (Option<i32>, Vec<u8>, String) {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, signal).expect("it runs");
        let deadline = Instant::now() + Duration::from_secs(20);
        let status = loop {
            match self.child.try_wait().expect("a child") {
                Some(status) => break status.code(),
                None => assert!(Instant::now() < deadline, "the server did not end"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let (mut out, mut err) = (Vec::new(), String::new());
        if let Some(stream) = &mut self.child.stdout {
            stream.read_to_end(&mut out).expect("output");
        }
        if let Some(stream) = &mut self.child.stderr {
            stream.read_to_string(&mut err).expect("errors");
        }
        (status, out, err)
    }
}

struct Control(BufReader<UnixStream>);

impl Control {
    fn line(&mut self, line: &str) -> Value {
        self.0.get_mut().write_all(format!("{line}\n").as_bytes()).expect("sent");
        let mut answer = String::new();
        self.0.read_line(&mut answer).expect("answered");
        serde_json::from_str(&answer).expect("JSON")
    }

    fn ask(&mut self, command: &Value) -> Value {
        let answer = self.line(&command.to_string());
        assert_eq!(answer["ok"], true, "{command}: {answer}");
        answer
    }
}

fn refused(arguments: &[&str]) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = program().args(arguments).output().expect("starts");
    let text = String::from_utf8_lossy(&stderr).into_owned();
    assert_eq!(text.lines().count(), 1, "{arguments:?}: {text}");
    (status.code(), text)
}

#[test]
fn help_says_what_there_is_and_mistakes_say_where_it_is() {
    let output = program().arg("--help").output().expect("starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.starts_with("usage: hca-serve --socket"), "{text}");
    assert!(text.contains("exit status: 0"), "{text}");
    for (arguments, status, named) in [
        (&["--frob"][..], 2, "unknown option --frob (`hca-serve --help` lists what there is)"),
        (&[], 2, "--socket"),
        (&["--socket", "/nowhere/a"], 1, "/nowhere/a"),
        (&["--socket", "a", "--report", "/nowhere/r"], 1, "/nowhere/r"),
        (&["--socket", "a", "--ready-fd", "77"], 2, "not open"),
        (&["--socket", "a", "--ready-fd", "1"], 2, "3 or more"),
    ] {
        let (code, text) = refused(arguments);
        assert!(code == Some(status) && text.contains(named), "{arguments:?}: {code:?} {text}");
    }
}

#[test]
fn signals_end_it_with_a_report_a_whole_capture_and_status_0() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut server =
            Server::start("--report FOLDER/report --pcap FOLDER/capture --guid-base 0x0002c90300000010");
        let (code, text) = refused(&["--socket", server.path("b").to_str().expect("text")]);
        assert!(code == Some(1) && text.contains("in use"), "{text}");
        let mut client = Client::new(&server.path("a"));
        assert_eq!(client.ids(), IDS);
        client.write(BAR0, 0x18, &[0, 0, 0, 1]);
        assert_eq!(client.ids(), IDS);
        let (status, out, err) = server.end(signal);
        assert_eq!(status, Some(0), "{err}");
        let out = String::from_utf8_lossy(&out);
        assert!(out.contains("vfio-user-pci") && out.contains("/a\""), "{out}");
        assert!(err.contains("refusals"), "{err}");
        let report: Value =
            serde_json::from_slice(&std::fs::read(server.path("report")).expect("report")).expect("JSON");
        assert_eq!(report["hcas"][0]["refusals"], 1, "{report:#}");
        assert_eq!(report["hcas"][1]["port_guid"], "0x0002c90300000020");
        assert_eq!(report["hcas"][0]["connected"], true);
        assert!(report["fabric"]["sent"].is_u64() && report["losses"].is_array());
        for socket in ["a", "b"] {
            assert!(!server.path(socket).exists(), "{socket} is left");
        }
        let capture = std::fs::read(server.path("capture")).expect("capture");
        assert_eq!(capture[..4], [0x0a, 0x0d, 0x0d, 0x0a], "a pcapng section");
    }
}

#[test]
fn the_control_socket_changes_the_world_while_it_runs() {
    let server = Server::start("--control FOLDER/control --log none");
    let mut control = server.control();
    assert_eq!(control.ask(&json!({ "do": "help" }))["commands"].as_array().map(Vec::len), Some(16));
    for (line, named) in [
        ("nonsense", "help"),
        (r#"{"do":"dance"}"#, "dance"),
        (r#"{"do":"cable","hca":0}"#, "plugged"),
        (r#"{"do":"cable","hca":7,"plugged":true}"#, "there is no HCA 7"),
        (r#"{"do":"kill","hca":0,"why":1}"#, "why"),
        (r#"{"do":"faults","spec":"fire=1%"}"#, "fire"),
        (r#"{"do":"partitions","hca":0,"pkeys":["8001"]}"#, "0x8001"),
        (r#"{"do":"lid","hca":0,"lid":1}"#, "2 to 49151"),
        (r#"{"do":"lid","hca":0,"lid":49152}"#, "2 to 49151"),
        (r#"{"do":"ipoib_mtu","bytes":9000}"#, "2048"),
        (r#"{"do":"qps","hca":7}"#, "there is no HCA 7"),
        (r#"{"do":"qp","hca":0,"qpn":72}"#, "there is no QP 0x48"),
        (r#"{"do":"qp","hca":0,"qpn":"48"}"#, "0x48"),
        ("[1]", "help"),
    ] {
        let answer = control.line(line);
        let text = answer["error"].as_str().unwrap_or_default().to_owned();
        assert!(answer["ok"] == false && text.contains(named), "{line}: {answer}");
    }

    let mut client = Client::new(&server.path("b"));
    let state = |control: &mut Control, member: &str| {
        let answer = control.ask(&json!({ "do": "state" }));
        answer["hcas"][1][member].clone()
    };
    assert_eq!(state(&mut control, "connected"), true);
    let until = |control: &mut Control, member: &str, wanted: Value| {
        let deadline = Instant::now() + Duration::from_secs(20);
        while state(control, member) != wanted {
            assert!(Instant::now() < deadline, "{member} is never {wanted}");
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    until(&mut control, "active", true.into());
    control.ask(&json!({ "do": "cable", "hca": 1, "plugged": false }));
    until(&mut control, "link_up", false.into());
    control.ask(&json!({ "do": "cable", "hca": 1, "plugged": true }));
    until(&mut control, "active", true.into());

    control.ask(&json!({ "do": "kill", "hca": 1 }));
    assert_eq!(client.ids(), [0xff; 4], "off the bus, and the socket is open");
    assert_eq!(client.read(BAR0, 0, 8), [0xff; 8]);
    drop(client);
    let mut client = Client::new(&server.path("b"));
    assert_eq!(client.ids(), [0xff; 4], "for the next client too");
    until(&mut control, "link_up", false.into());
    control.ask(&json!({ "do": "revive", "hca": 1 }));
    assert_eq!(client.ids(), IDS);
    until(&mut control, "active", true.into());

    // State survives a change of clients only if `warm` is set.
    let mut left = Vec::new();
    for warm in [true, false] {
        control.ask(&json!({ "do": "warm", "hca": 1, "on": warm }));
        assert_eq!(state(&mut control, "warm"), warm);
        // Registers read all ones while memory decoding is off.
        client.write(CONFIG, 4, &[2, 0]);
        client.write(BAR0, 0x14, &0x1234_5000u32.to_be_bytes());
        assert_eq!(client.ids(), IDS);
        drop(client);
        client = Client::new(&server.path("b"));
        client.write(CONFIG, 4, &[2, 0]);
        left.push(client.read(BAR0, 0x14, 4)[1]);
    }
    assert_eq!(left, [0x34, 0]);

    let faults = control.ask(&json!({ "do": "faults", "spec": "loss=2%", "seed": 9 }));
    assert_eq!((&faults["faults"], &faults["seed"]), (&json!("loss=2%"), &json!(9)));
    control.ask(&json!({ "do": "faults", "spec": "none" }));
    control.ask(&json!({ "do": "latency", "microseconds": 50 }));
    control.ask(&json!({ "do": "ipoib_mtu", "bytes": 4096 }));
    control.ask(&json!({ "do": "partitions", "hca": 1, "pkeys": ["0xffff", "0x8001"] }));
    until(&mut control, "pkeys", json!(["0xffff", "0x8001"]));
    assert!(control.ask(&json!({ "do": "counters" }))["fabric"]["sent"].as_u64() > Some(0));
    assert!(control.ask(&json!({ "do": "losses" }))["losses"].is_array());

    // A client may leave a line incomplete, but may not send an endless one.
    let mut endless = server.control();
    let _ = endless.0.get_mut().write_all(&vec![b'x'; 1 << 20]);
    let mut rest = String::new();
    let _ = endless.0.read_to_string(&mut rest);
    assert!(rest.is_empty() || rest.contains("at most"), "{rest}");
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &server.path("control").metadata().expect("socket").permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_failed_qp_is_explained_by_control_socket_log_and_report() {
    let mut server = Server::start("--control FOLDER/control --report FOLDER/report");
    let mut guests = pair([&server.path("a"), &server.path("b")]);
    let target = guests[1].target();
    guests[0].write(7, target).expect("a good write");
    // A gigabyte beyond the peer's memory.
    guests[0].write(8, (target.0 + (1 << 30), target.1)).expect_err("refused");
    let mut control = server.control();
    let listed = control.ask(&json!({ "do": "qps", "hca": 0 }));
    let failed: Vec<&Value> = listed["qps"].as_array().expect("QPs").iter().collect();
    let failed: Vec<&&Value> = failed.iter().filter(|qp| !qp["failure"].is_null()).collect();
    assert_eq!(failed.len(), 1, "{listed}");
    assert_eq!(
        (&failed[0]["state"], &failed[0]["service"]),
        (&json!("error"), &json!("reliable connection"))
    );
    let own = failed[0]["failure"].as_str().expect("text").to_owned();
    assert!(
        own.starts_with("RDMA write of 16384 bytes at PSN 11, WQE 0x1: remote access error: QP "),
        "{own}"
    );

    let qpn = failed[0]["qpn"].as_u64().expect("a number");
    let found = control.ask(&json!({ "do": "qp", "hca": 0, "qpn": qpn }));
    assert_eq!(found, control.ask(&json!({ "do": "qp", "hca": 0, "qpn": format!("{qpn:#x}") })));
    let peer = found["peer"]["failure"].as_str().expect("the peer's HCA is served here");
    assert!(found["peer"]["hca"] == 1 && peer.ends_with(" does not cover the address range"), "{peer}");
    let names: Vec<&str> = found["events"]
        .as_array()
        .expect("events")
        .iter()
        .filter_map(|event| event["event"].as_str())
        .collect();
    assert_eq!(names, ["state", "state", "state", "completed", "NAK received", "WQE failed", "state"]);
    let table = found["table"].as_array().expect("lines");
    assert!(
        table.len() == 8 && table[4].as_str().is_some_and(|line| line.contains("1 send WQEs")),
        "{table:?}"
    );

    drop(guests);
    let (status, _, err) = server.end(Signal::TERM);
    assert_eq!(status, Some(0), "{err}");
    assert!(err.contains(&format!("QP {qpn:#x} failed: {own}")) && err.contains("2 failed QPs"), "{err}");
    let report: Value =
        serde_json::from_slice(&std::fs::read(server.path("report")).expect("report")).expect("JSON");
    let failures = &report["hcas"][0]["qp_failures"];
    assert_eq!((&failures["total"], &failures["last"][0]["reason"]), (&json!(1), &json!(own)), "{report:#}");
}

#[test]
fn a_capture_to_standard_output_holds_nobody_up() {
    let mut server = Server::start("--pcap - --log json --control FOLDER/control");
    let mut client = Client::new(&server.path("a"));
    // The pipe has no reader yet; the subnet manager's packets fill it.
    let mut control = server.control();
    for round in 0..40 {
        for plugged in [false, true] {
            control.ask(&json!({ "do": "cable", "hca": round % 2, "plugged": plugged }));
            assert_eq!(client.ids(), IDS);
        }
    }
    client.write(BAR0, 0x18, &[0, 0, 0, 1]);
    assert_eq!(client.ids(), IDS);
    let mut out = server.child.stdout.take().expect("piped");
    let reader = std::thread::spawn(move || {
        let mut capture = Vec::new();
        out.read_to_end(&mut capture).map(|_| capture)
    });
    let (status, _, err) = server.end(Signal::TERM);
    let capture = reader.join().expect("a reader").expect("capture");
    assert_eq!(status, Some(0), "{err}");
    assert_eq!(capture[..4], [0x0a, 0x0d, 0x0d, 0x0a], "a pcapng section and nothing before it");
    let refusal = err.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let refusal: Vec<Value> = refusal.filter(|line| line["level"] == "refusal").collect();
    assert_eq!(refusal.len(), 1, "{err}");
    assert_eq!(refusal[0]["hca"], 0, "{err}");
}

#[test]
fn a_capture_to_a_pipe_waits_for_its_reader_and_the_server_does_not() {
    for read in [true, false] {
        let mut server = Server::start_in("--pcap FOLDER/pipe", |folder| {
            let (at, kind, mode) = (rustix::fs::CWD, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
            rustix::fs::mknodat(at, folder.join("pipe"), kind, mode, 0).expect("a pipe");
        });
        let mut client = Client::new(&server.path("a"));
        assert_eq!(client.ids(), IDS);
        let path = server.path("pipe");
        let reader = read.then(|| std::thread::spawn(move || std::fs::read(path)));
        let (status, _, err) = server.end(Signal::TERM);
        // Without a reader the capture is lost, and the program reports that.
        assert_eq!((status, err.contains("nobody reads")), (Some(i32::from(!read)), !read), "{err}");
        if let Some(reader) = reader {
            let capture = reader.join().expect("a reader").expect("capture");
            assert_eq!(capture[..4], [0x0a, 0x0d, 0x0d, 0x0a], "a pcapng section");
        }
    }
}

#[test]
fn a_standard_error_that_nobody_reads_holds_nobody_up() {
    let server = Server::start("");
    let mut client = Client::new(&server.path("a"));
    for _ in 0..20_000 {
        client.write(BAR0, 0x18, &[0, 0, 0, 1]);
    }
    assert_eq!(client.ids(), IDS);
    let mut connections = 0;
    // Each connection causes a line: far more than a pipe holds.
    while connections < 3000 {
        let mut stream = UnixStream::connect(server.path("b")).expect("connects");
        stream.write_all(&[0xff; 16]).expect("sent");
        connections += 1;
        let _ = stream.read(&mut [0; 16]);
    }
    assert_eq!(client.ids(), IDS);
}

#[test]
fn copies_can_be_turned_off_and_on() {
    let server = Server::start("--control FOLDER/control --packets-only");
    let mut control = server.control();
    let mut guests = pair([&server.path("a"), &server.path("b")]);
    let target = guests[1].target();
    let mut byte = 0;
    // Bytes copied without packets, for 16 KiB written.
    let mut copied = |control: &mut Control| {
        let count = |control: &mut Control| control.ask(&json!({ "do": "counters" }))["copied"].as_u64();
        let before = count(control).expect("a number");
        byte += 1;
        guests[0].write(byte, target).expect("data move");
        assert!(guests[1].written().iter().all(|found| *found == byte));
        count(control).expect("a number") - before
    };
    assert_eq!(copied(&mut control), 0, "--packets-only");
    control.ask(&json!({ "do": "copies", "on": true }));
    assert!(copied(&mut control) > 0);
    control.ask(&json!({ "do": "copies", "on": false }));
    assert_eq!(copied(&mut control), 0);
    // Delayed or lossy packets are never replaced by copies.
    control.ask(&json!({ "do": "copies", "on": true }));
    control.ask(&json!({ "do": "latency", "microseconds": 1 }));
    assert_eq!(copied(&mut control), 0);
    control.ask(&json!({ "do": "latency", "microseconds": 0 }));
    control.ask(&json!({ "do": "faults", "spec": "dup=100%", "seed": 3 }));
    let duplicated = |control: &mut Control| {
        let counters = control.ask(&json!({ "do": "counters" }));
        counters["fabric"]["duplicated"].as_u64().expect("a number")
    };
    let before = duplicated(&mut control);
    assert_eq!(copied(&mut control), 0);
    assert!(duplicated(&mut control) > before);
    control.ask(&json!({ "do": "faults", "spec": "none" }));
    assert!(copied(&mut control) > 0);
}

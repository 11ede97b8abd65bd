//! RDS between Linux's `rds_rdma` and the C library: the same programs on both sides, unchanged.

use super::{Ground, LINUX, UNIKERNEL, number, result, word};
use runner::install::{RDS, STATIC_NEEDS};
use runner::linux::judge;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// Pings, and messages of all sizes.
const PINGS: u32 = 200;
const MESSAGES: u64 = 2000;

/// The library, which cargo builds.
fn archive() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the project");
    let built = Command::new("cargo")
        .current_dir(root)
        .args(["build", "--quiet", "--package", RDS.package])
        .stdin(Stdio::null())
        .status();
    assert!(built.expect("cargo starts").success());
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    target.join("debug").join(RDS.archive())
}

/// A program of the folder `guest`, compiled with the library.
fn compile(name: &str) -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("librds-{name}"));
    let compiled = Command::new("cc")
        .args(["-O2", "-include", "rds/sockets.h", "-I"])
        .arg(tests.parent().expect("the project").join(RDS.folder).join("include"))
        .arg(tests.join("guest").join(format!("{name}.c")))
        .arg(archive())
        .args(STATIC_NEEDS)
        .arg("-o")
        .arg(&program)
        .status();
    assert!(compiled.expect("cc starts").success());
    program
}

/// A program with the library that runs on the spare HCA. Ended when dropped.
struct Here {
    child: Child,
    output: BufReader<ChildStdout>,
    lines: Vec<String>,
}

impl Here {
    fn start(ground: &Ground, program: &Path, words: &str) -> Self {
        let socket = ground.lab.socket(ground.lab.first_spare()).expect("a socket");
        let mut child = Command::new(program)
            .args(words.split_whitespace())
            .env("RDS_DEVICE", format!("{}@{UNIKERNEL}", socket.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, output, lines: Vec::new() }
    }

    /// Waits for the line that begins so.
    fn expect(&mut self, start: &str) -> String {
        loop {
            let mut line = String::new();
            let read = self.output.read_line(&mut line).expect("readable");
            assert!(read > 0, "it ended before {start:?}:\n{}", self.lines.join("\n"));
            self.lines.push(line.trim_end().to_owned());
            if line.starts_with(start) {
                return line;
            }
        }
    }

    /// Waits for its end, which has to be a success.
    fn finish(mut self) {
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "{status}: {}", self.lines.join("\n"));
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn messages_between_linux_and_the_library() {
    let program = compile("rds");
    for kernel in judge::kernels() {
        let Some(mut ground) = Ground::new(*kernel, &["rds.c"]) else { return };
        let mut echo = Here::start(&ground, &program, &format!("echo {UNIKERNEL}"));
        echo.expect("@rds listening ");
        let lines = ground.linux(&format!("rds ping {LINUX} {UNIKERNEL} {PINGS} 1"));
        let line = result(&lines, "@rds ping ");
        assert_eq!((number(line, "sent"), number(line, "received")), (PINGS.into(), PINGS.into()), "{line}");
        drop(echo);
        let words = format!("{LINUX} {MESSAGES} 5");
        let mut receiver = Here::start(&ground, &program, &format!("receive {UNIKERNEL} {words}"));
        receiver.expect("@rds listening ");
        let lines = ground.linux(&format!("rds send {LINUX} {UNIKERNEL} {MESSAGES} 5"));
        let (sent, received) = (result(&lines, "@rds hash "), receiver.expect("@rds hash "));
        receiver.finish();
        assert_eq!((number(&received, "messages"), word(&received, "sum")), (MESSAGES, word(sent, "sum")));
        ground.end();
    }
}

#[test]
fn rdma_by_cookie_between_linux_and_the_library() {
    let program = compile("rds_rdma");
    for kernel in judge::kernels() {
        let Some(mut ground) = Ground::new(*kernel, &["rds_rdma.c"]) else { return };
        ground.linux(&format!(
            "background server rds_rdma server {LINUX}\n\
             until grep '^@rds server' /tmp/server.out; do sleep 0.05; done"
        ));
        let mut client = Here::start(&ground, &program, &format!("rdma {UNIKERNEL} {LINUX} 1"));
        let line = client.expect("@rdma ");
        client.finish();
        ground.linux("reap server");
        // A failure that nobody asked for is told as what it is.
        assert_eq!((number(&line, "done"), number(&line, "unasked")), (390, 1), "{line}");
        ground.end_but_for(Some("RemoteAccess"));
    }
}

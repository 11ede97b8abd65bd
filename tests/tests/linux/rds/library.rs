//! RDS between Linux's `rds_rdma` and the C library: the same program on both sides, unchanged.

use super::{Ground, LINUX, UNIKERNEL, number, result, word};
use crate::c_programs::{self, Here};
use runner::install::RDS;
use runner::linux::judge;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Pings, and messages of all sizes.
const PINGS: u32 = 200;
const MESSAGES: u64 = 2000;

/// A program of the folder `guest` with the library, on the spare HCA.
fn here(ground: &Ground, program: &Path, words: &str) -> Here {
    let socket = ground.lab.socket(ground.lab.first_spare()).expect("a socket");
    let mut command = Command::new(program);
    command.env("RDS_DEVICE", format!("{}@{UNIKERNEL}", socket.display()));
    Here::start(command.args(words.split_whitespace()))
}

/// The program, unchanged.
fn compile(file: &str) -> PathBuf {
    c_programs::compile(&RDS, &["-include", "rds/sockets.h"], file)
}

#[test]
fn messages_between_linux_and_the_library() {
    let program = compile("tests/guest/rds.c");
    for kernel in judge::kernels() {
        let Some(mut ground) = Ground::new(*kernel, &["rds.c"]) else { return };
        let mut echo = here(&ground, &program, &format!("echo {UNIKERNEL}"));
        echo.expect("@rds listening ");
        let lines = ground.linux(&format!("rds ping {LINUX} {UNIKERNEL} {PINGS} 1"));
        let line = result(&lines, "@rds ping ");
        assert_eq!((number(line, "sent"), number(line, "received")), (PINGS.into(), PINGS.into()), "{line}");
        drop(echo);
        let words = format!("{LINUX} {MESSAGES} 5");
        let mut receiver = here(&ground, &program, &format!("receive {UNIKERNEL} {words}"));
        receiver.expect("@rds listening ");
        let lines = ground.linux(&format!("rds send {LINUX} {UNIKERNEL} {MESSAGES} 5"));
        let (sent, received) = (result(&lines, "@rds hash "), receiver.expect("@rds hash "));
        receiver.finish();
        assert_eq!((number(&received, "messages"), word(&received, "sum")), (MESSAGES, word(sent, "sum")));
        // The other way.
        ground.linux(&format!(
            "background receive rds receive {LINUX} {UNIKERNEL} {MESSAGES} 6\n\
             until grep '^@rds listening' /tmp/receive.out; do sleep 0.05; done"
        ));
        let mut sender = here(&ground, &program, &format!("send {UNIKERNEL} {LINUX} {MESSAGES} 6"));
        let sent = sender.expect("@rds hash ");
        sender.finish();
        let lines = ground.linux("reap receive");
        let received = result(&lines, "@rds hash ");
        assert_eq!((number(received, "messages"), word(received, "sum")), (MESSAGES, word(&sent, "sum")));
        ground.end();
    }
}

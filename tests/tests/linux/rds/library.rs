//! RDS between Linux's `rds_rdma` and the C library: the same program on both sides, unchanged.

use super::rdma::{DONE, DROPPED, linux_tells_of_denied_operations};
use super::{Ground, LINUX, UNIKERNEL, result};
use crate::c_programs::{self, Here};
use crate::node::{number, word};
use runner::conditions;
use runner::install::RDS;
use runner::linux::judge;
use std::path::Path;
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

/// What compiles a program for the kernel's AF_RDS, unchanged.
const UNCHANGED: &[&str] = &["-include", "rds/sockets.h"];

#[test]
fn messages_between_linux_and_the_library() {
    let program = c_programs::compile(&RDS, UNCHANGED, "tests/guest/rds.c");
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
        let (sent, received) =
            (result(&lines, "@result op=rds_messages "), receiver.expect("@result op=rds_messages "));
        receiver.finish();
        assert_eq!(
            (number(&received, "messages"), word(&received, "bytes")),
            (MESSAGES, word(sent, "bytes"))
        );
        // The other way.
        ground.linux(&format!(
            "background receive rds receive {LINUX} {UNIKERNEL} {MESSAGES} 6\n\
             listening receive says '@rds listening'"
        ));
        let mut sender = here(&ground, &program, &format!("send {UNIKERNEL} {LINUX} {MESSAGES} 6"));
        let sent = sender.expect("@result op=rds_messages ");
        sender.finish();
        let lines = ground.linux("reap receive");
        let received = result(&lines, "@result op=rds_messages ");
        assert_eq!((number(received, "messages"), word(received, "bytes")), (MESSAGES, word(&sent, "bytes")));
        // The echo was killed: nobody responded to what Linux sent to it.
        ground.end_but_for(&["no response from QP "]);
    }
}

/// What compiles a program for Linux and for Solaris.
const SYSTEMS: [&[&str]; 2] = [UNCHANGED, &["-DRDS_SOLARIS"]];
/// Operations of a round that Linux's server, which has whole pages, lets be done; and those that it denies, which is all that end before
/// or behind those pages, with another key, and with one that is no more.
const DONE_ON_PAGES: u64 = DONE + 2;
const DENIED: u64 = 8;
/// How a denied operation ends for the library, asked for or not (`RDS_RDMA_REMOTE_ERROR`).
const REMOTE_ERROR: u64 = 1;

#[test]
fn rdma_by_cookie_between_linux_and_the_library() {
    for kernel in judge::kernels() {
        for system in &SYSTEMS[..if conditions::long() { 2 } else { 1 }] {
            let program = c_programs::compile(&RDS, system, "tests/guest/rds_rdma.c");
            let Some(mut ground) = Ground::new(*kernel, &["rds_rdma.c"]) else { return };
            let mut server = here(&ground, &program, &format!("server {UNIKERNEL}"));
            server.expect("@rds server");
            let lines = ground.linux(&format!("rds_rdma rdma {LINUX} {UNIKERNEL} 1"));
            let client = result(&lines, "@rdma ").to_owned();
            server.finish();
            println!("Linux asks, {system:?}: {client}");
            assert_eq!(number(&client, "done"), DONE_ON_PAGES, "{client}");
            assert_eq!(
                (number(&client, "failed"), number(&client, "unasked")),
                (DENIED, DROPPED),
                "{client}"
            );
            // And one more, whose end Linux calls dropped.
            linux_tells_of_denied_operations(&mut ground, *kernel, DENIED + 1);
            // The other way.
            ground.linux(&format!(
                "background server rds_rdma server {LINUX}\n\
                 listening server says '@rds server'"
            ));
            let mut asking = here(&ground, &program, &format!("rdma {UNIKERNEL} {LINUX} 1"));
            let client = asking.expect("@rdma ");
            asking.finish();
            let lines = ground.linux("reap server");
            println!("the library asks, {system:?}: {client}");
            assert_eq!(number(&client, "done"), DONE_ON_PAGES, "{client}");
            assert_eq!(
                (number(&client, "failed"), number(&client, "unasked")),
                (DENIED, REMOTE_ERROR),
                "{client}"
            );
            assert_eq!(number(result(&lines, "@server "), "regions"), DONE_ON_PAGES + 4, "{lines:?}");
            ground.end_but_for(&["remote access error"]);
        }
    }
}

//! RDMA by cookie and congestion between Linux's `rds_rdma` and a unikernel, each as server and as client: every length with every
//! switch, bytes compared on both sides; what has to fail fails and touches nothing; a full receiver closes its own port alone.

use super::{Ground, LINUX, UNIKERNEL, result};
use crate::node::number;
use rdma_lab::linux::Kernel;
use runner::conditions;
use runner::linux::judge;
use std::time::Instant;

/// Operations of a round that are done, with the first uses of regions that are tried again; and regions offered for them.
pub const DONE: u64 = 12 * 4 * 4 * 2 + 4;

/// How an operation ends for Linux that failed, and whose end nobody asked for (`RDS_RDMA_DROPPED`).
pub const DROPPED: u64 = 3;

/// Runs a client on Linux against the server of the workload. Returns the client's line and the
/// server's.
fn linux_asks(ground: &mut Ground, script: &str, rounds: u64) -> [String; 2] {
    let began = Instant::now();
    let mut node = ground.unikernel("program=rds_server");
    node.expect("@rds listening");
    let lines = ground.linux(&format!("rds_rdma {script} {LINUX} {UNIKERNEL} {rounds}"));
    let line = result(&lines, &format!("@{script} ")).to_owned();
    let lines = node.finish();
    println!("{script} by Linux, {:.1} s: {line}\n{}", began.elapsed().as_secs_f64(), lines.join("\n"));
    [line, result(&lines, "@result op=rds_server ").to_owned()]
}

/// Runs the client of the workload against a server on Linux.
fn the_unikernel_asks(ground: &mut Ground, script: &str, rounds: u64) -> [String; 2] {
    let began = Instant::now();
    ground.linux(&format!(
        "background server rds_rdma server {LINUX}\n\
         listening server says '@rds server'"
    ));
    let words = format!("program=rds_{script} to={LINUX} count={rounds}");
    let lines = ground.unikernel(&words).finish();
    println!("{script} by the unikernel, {:.1} s:\n{}", began.elapsed().as_secs_f64(), lines.join("\n"));
    let server = ground.linux("reap server");
    [result(&lines, &format!("@result op=rds_{script} ")).to_owned(), result(&server, "@server ").to_owned()]
}

/// `mlx5_ib` of 6.1 tells of each of Linux's operations that a peer denied, once, with the completion; that of 6.12 does not. Nothing
/// else is told of.
pub fn linux_tells_of_denied_operations(ground: &mut Ground, kernel: Kernel, expected: u64) {
    let guest = ground.lab.guest(0).expect("the guest");
    let complaints = judge::complaints(&guest.take_kernel_log().expect("the kernel's log"));
    let of_denied = |line: &String| line.ends_with("WC error: 10, Message: remote access error");
    let denied = complaints.iter().filter(|line| of_denied(line)).count() as u64;
    let others = complaints.iter().filter(|line| !of_denied(line) && !line.ends_with("dump error cqe"));
    let others: Vec<_> = others.collect();
    assert!(others.is_empty(), "{others:?}");
    assert_eq!(denied, if kernel == Kernel::V6_1 { expected } else { 0 });
}

#[test]
fn rdma_by_cookie_with_every_switch_both_ways() {
    let rounds = if conditions::long() { 10 } else { 1 };
    for kernel in judge::kernels() {
        let Some(mut ground) = Ground::new(*kernel, &["rds_rdma.c"]) else { return };
        let [client, server] = linux_asks(&mut ground, "rdma", rounds);
        assert_eq!(number(&client, "done"), rounds * DONE, "{client}");
        assert_eq!(number(&client, "failed"), rounds * 5 * 2, "{client}");
        assert_eq!(number(&client, "unasked"), DROPPED, "{client}");
        assert_eq!(number(&server, "wrong"), 0, "{server}");
        // And one more, whose end Linux calls dropped.
        linux_tells_of_denied_operations(&mut ground, *kernel, rounds * 5 * 2 + 1);
        let [client, server] = the_unikernel_asks(&mut ground, "rdma", rounds);
        // A region of Linux has whole pages: bytes before it in its page are no failure.
        assert_eq!(number(&client, "messages"), rounds * (DONE + 2), "{client}");
        assert_eq!(number(&client, "failed"), rounds * 5 * 2, "{client}");
        assert_eq!(number(&server, "regions"), rounds * (DONE + 8), "{server}");
        ground.end_but_for(&["remote access error"]);
    }
}

#[test]
fn a_full_receiver_closes_its_own_port_alone_both_ways() {
    let rounds = if conditions::long() { 50 } else { 5 };
    for kernel in judge::kernels() {
        let Some(mut ground) = Ground::new(*kernel, &["rds_rdma.c"]) else { return };
        let [client, server] = linux_asks(&mut ground, "congestion", rounds);
        assert_eq!((number(&client, "times"), number(&client, "updates")), (rounds, 2 * rounds), "{client}");
        assert_eq!(number(&server, "wrong"), 0, "{server}");
        let [client, _] = the_unikernel_asks(&mut ground, "congestion", rounds);
        assert_eq!(
            (number(&client, "refused"), number(&client, "updates")),
            (6 * rounds, 2 * rounds),
            "{client}"
        );
        ground.end();
    }
}

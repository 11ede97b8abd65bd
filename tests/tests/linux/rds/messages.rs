//! RDS between Linux's `rds_rdma` and a unikernel: pings, an echo server, messages of all sizes, each way.

use super::{Ground, LINUX, UNIKERNEL, result};
use crate::node::{number, word};
use rdma_fabric::faults::Faults;
use rdma_lab::Error;
use rdma_lab::linux::Kernel;
use runner::linux::{Demo, judge};
use runner::report::Node;
use runner::{conditions, kernel_image, setup};
use std::time::Instant;

/// Pings each way.
const PINGS: u32 = 1000;

fn linux_pings_the_unikernel(ground: &mut Ground) {
    let mut node = ground.unikernel("app=rds mode=echo");
    node.expect("@rds listening ");
    node.tell("@info");
    node.expect("Sockets:");
    node.tell("@info -x");
    node.expect("console input: @info takes options of rds-info: -c");
    node.tell("@info -k -n");
    node.expect("Sockets:");
    let lines = ground.linux(&format!("rds ping {LINUX} {UNIKERNEL} {PINGS} 1"));
    let line = result(&lines, "@rds ping ");
    assert_eq!((number(line, "sent"), number(line, "received")), (PINGS.into(), PINGS.into()), "{line}");
    println!("Linux to the unikernel: {line}");
    node.quit();
    let lines = node.finish();
    assert_eq!((counter(&lines, "recv_ping"), counter(&lines, "send_pong")), (PINGS.into(), PINGS.into()));
}

fn the_unikernel_pings_linux(ground: &mut Ground) {
    let mut node = ground.unikernel(&format!("app=rds mode=ping to={LINUX} count={PINGS} interval=1"));
    let line = node.expect("@rds ping ");
    assert_eq!((number(&line, "sent"), number(&line, "received")), (PINGS.into(), PINGS.into()), "{line}");
    println!("the unikernel to Linux: {line}");
    node.finish();
}

#[test]
fn no_ping_between_linux_and_a_unikernel_is_lost() {
    for kernel in Kernel::RELEASES {
        let Some(mut ground) = Ground::new(kernel, &["rds.c"]) else { return };
        linux_pings_the_unikernel(&mut ground);
        the_unikernel_pings_linux(&mut ground);
        ground.end();
    }
}

/// Messages from Linux to the unikernel, or the other way.
/// What the unikernel counted under this name; what is not listed is 0.
fn counter(lines: &[String], name: &str) -> u64 {
    let mut words = lines.iter().map(|line| line.split_whitespace());
    let found = words.find_map(|mut words| if words.next() == Some(name) { words.next() } else { None });
    found.map_or(0, |value| value.parse().expect("a number"))
}

/// Answers what the unikernel said.
fn messages(ground: &mut Ground, from_linux: bool, count: u64, seed: u64) -> Vec<String> {
    let began = Instant::now();
    let (here, there) = if from_linux {
        let mut node = ground
            .unikernel(&format!("program=rds_messages role=server to={LINUX} count={count} seed={seed}"));
        node.expect("@rds listening");
        let lines = ground.linux(&format!("rds send {LINUX} {UNIKERNEL} {count} {seed}"));
        (result(&lines, "@result op=rds_messages ").to_owned(), node.finish())
    } else {
        ground.linux(&format!(
            "background receive rds receive {LINUX} {UNIKERNEL} {count} {seed}\n\
             listening receive says '@rds listening'"
        ));
        let node = ground.unikernel(&format!(
            "program=rds_messages role=client to={LINUX} count={count} seed={seed} stall=90"
        ));
        let there = node.finish();
        let lines = ground.linux("reap receive");
        (result(&lines, "@result op=rds_messages ").to_owned(), there)
    };
    let lines = there;
    let there = result(&lines, "@result op=rds_messages ");
    for key in ["messages", "bytes", "verified"] {
        assert_eq!(word(&here, key), word(there, key), "{key}: {here}\n{there}");
    }
    assert_eq!(number(&here, "messages"), count);
    println!(
        "{} bytes {}: {:.1} s",
        word(&here, "bytes"),
        if from_linux { "from Linux" } else { "to Linux" },
        began.elapsed().as_secs_f64()
    );
    lines
}

#[test]
fn messages_of_all_sizes_arrive_once_and_in_order() {
    let count = if conditions::long() { 50_000 } else { 2000 };
    for kernel in judge::kernels() {
        let Some(mut ground) = Ground::new(*kernel, &["rds.c"]) else { return };
        messages(&mut ground, true, count, 1);
        messages(&mut ground, false, count, 2);
        ground.end();
    }
}

/// A fabric that loses packets and has its links cut again and again.
fn cut_and_lossy(ground: &mut Ground, from_linux: bool, (loss, cuts, count): (&str, u64, u64), seed: u64) {
    let faults = format!("loss={loss},cuts={cuts}/300..900/100ms..5s");
    let faults: Faults = faults.parse().expect("faults");
    let before = ground.lab.served().counters().expect("the fabric");
    ground.lab.served().set_faults(faults, seed).expect("the fabric");
    let lines = messages(ground, from_linux, count, seed);
    let after = ground.lab.served().counters().expect("the fabric");
    ground.lab.served().set_faults(Faults::default(), seed).expect("the fabric");
    assert_eq!(after.cuts - before.cuts, cuts, "cuts");
    assert!(after.dropped > before.dropped, "lost packets");
    // Those of two seconds and more outlast all of the HCA's attempts.
    assert!(counter(&lines, "conn_reset") > 0, "no connection was lost:\n{}", lines.join("\n"));
}

#[test]
fn no_message_is_lost_on_a_fabric_that_loses_packets_and_links() {
    if !conditions::long() {
        return;
    }
    let volume = ("0.1%", 20, 4200);
    for kernel in judge::kernels() {
        let Some(mut ground) = Ground::new(*kernel, &["rds.c"]) else { return };
        cut_and_lossy(&mut ground, true, volume, 3);
        cut_and_lossy(&mut ground, false, volume, 4);
        ground.end();
    }
}

#[test]
fn the_demonstration_with_linux_verifies_messages_and_rdma_both_ways() {
    let qemu = match setup::qemu() {
        Ok(qemu) => qemu,
        Err(error) => {
            assert!(!conditions::required(), "QEMU is required here: {error}");
            return conditions::skip("no QEMU on this machine");
        }
    };
    setup::rust_targets().expect("the bare-metal target");
    let image = kernel_image::build().expect("the image builds");
    let workload = kernel_image::build_workload().expect("the partners' image builds");
    let demo =
        Demo { qemu: &qemu, image: &image, workload: &workload, lab: Demo::lab(), divide: 10, seed: 5 };
    let (nodes, summary) = match demo.run() {
        Ok(result) => result,
        Err(error @ Error::Missing { .. }) if !conditions::required() => {
            return conditions::skip(&error.to_string());
        }
        Err(error) => panic!("{error}"),
    };
    let [linux, unikernel] = nodes.as_slice() else { panic!("{nodes:?}") };
    let verified = |node: &Node, name: &str| -> Vec<u64> {
        node.operations.iter().filter(|result| result.op == name).map(|result| result.verified).collect()
    };
    for node in [linux, unikernel] {
        assert_eq!(verified(node, "rds_ping"), [100]);
        assert!(node.verified);
        assert_eq!(verified(node, "rds"), [500, 500]);
        let rdma = verified(node, "rds_rdma");
        assert!(rdma.len() == 2 && rdma.iter().all(|count| *count > 100), "{rdma:?}");
    }
    assert!(summary.fabric.delivered > 0 && summary.fabric.dropped == 0);
}

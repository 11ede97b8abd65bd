//! The demonstration as the user runs it, at a part of its volume: two unikernels under QEMU, two served HCAs.

use rdma_fabric::faults::Faults;
use rdma_lab::process::Temporary;
use runner::demo::{self, Options};
use runner::report::{Node, Report};
use runner::{kernel_image, setup, tshark};
use std::path::PathBuf;
use std::time::Duration;

fn run(capture: Option<PathBuf>, faults: &str, seed: u64) -> Report {
    run_on("cx-5", 32, capture, faults, seed)
}

fn run_on(card: &str, divide: u64, capture: Option<PathBuf>, faults: &str, seed: u64) -> Report {
    let qemu = setup::all().unwrap_or_else(|error| panic!("{error}"));
    let image = kernel_image::build().unwrap_or_else(|error| panic!("{error}"));
    let options = Options {
        report: None,
        capture,
        kind: card.parse().expect("a card"),
        faults: faults.parse::<Faults>().expect("faults"),
        seed,
        accelerator: "tcg".into(),
        log: true,
        divide,
        with_linux: false,
        open_fabric: false,
        limit: Duration::from_secs(300),
    };
    demo::run_image(&qemu, &image, &options).unwrap_or_else(|error| panic!("{error}"))
}

/// Messages of one operation that a node verified.
fn verified(node: &Node, operation: &str) -> u64 {
    node.operations.iter().filter(|result| result.op == operation).map(|result| result.verified).sum()
}

fn check(report: &Report) {
    assert!(report.verified, "{report:#?}");
    let [server, client] = report.nodes.as_slice() else { panic!("{report:#?}") };
    for node in [server, client] {
        assert!(node.verified, "{report:#?}");
        assert_eq!(verified(node, "send_recv"), 20_000 / 32 / 2, "{report:#?}");
        assert_eq!(verified(node, "rds"), 20_000 / 32 / 2, "{report:#?}");
        assert!(node.steps.iter().any(|step| step.name == "init_hca"), "{report:#?}");
    }
    // What of DAT's objects either side judged: fixed numbers, except the messages over the shared queue.
    let both = |operation| verified(server, operation) + verified(client, operation);
    for (operation, count) in [
        ("rmr_bind", 19),
        ("srq", 64 * 4),
        ("watermarks", 12),
        ("cr_handoff", 3),
        ("dup_connect", 4),
        ("graceful", 16),
        ("completions", 21),
    ] {
        assert_eq!(both(operation), count, "{operation}: {report:#?}");
    }
    assert!(verified(server, "rdma_write") > 0 && verified(client, "rdma_read") > 0, "{report:#?}");
    for operation in ["rdma_write", "rdma_read"] {
        let moved: u64 =
            client.operations.iter().filter(|result| result.op == operation).map(|result| result.bytes).sum();
        assert!(moved >= (64 << 20) / 32, "{operation}: {moved} bytes");
    }
}

#[test]
fn the_demo_verifies_every_byte_and_its_capture_is_infiniband() {
    let folder = Temporary::folder("demo-test").expect("folder");
    let capture = folder.path().join("capture.pcapng");
    let report = run(Some(capture.clone()), "none", 11);
    check(&report);
    assert_eq!((report.packets.lost, report.packets.duplicated), (0, 0));
    let malformed = tshark::read(&capture, "_ws.malformed", &["frame.number"]).expect("tshark");
    assert_eq!(malformed, Vec::<Vec<String>>::new());
    let opcodes = tshark::read(&capture, "infiniband.bth", &["infiniband.bth.opcode"]).expect("tshark");
    // UD send, RC send, RDMA write, RDMA read request, ACK.
    for opcode in ["100", "4", "10", "12", "17"] {
        assert!(opcodes.iter().any(|row| row[0] == opcode), "no packet of opcode {opcode}");
    }
}

#[test]
fn the_demo_verifies_every_byte_on_a_fabric_that_loses_duplicates_and_reorders() {
    let report = run(None, "loss=1%,dup=1%,reorder=1%", 12);
    check(&report);
    let packets = &report.packets;
    assert!(packets.lost > 0 && packets.duplicated > 0 && packets.reordered > 0, "{packets:?}");
    assert!(packets.retransmitted > 0, "what was lost is sent again: {packets:?}");
}

#[test]
fn the_demo_verifies_every_byte_on_roce_and_its_capture_is_udp() {
    let folder = Temporary::folder("demo-test").expect("folder");
    let capture = folder.path().join("capture.pcapng");
    let report = run_on("cx-5-en", 32, Some(capture.clone()), "loss=0.5%,dup=0.5%,reorder=0.5%", 13);
    check(&report);
    assert!(report.packets.lost > 0 && report.packets.retransmitted > 0, "{:?}", report.packets);
    let malformed = tshark::read(&capture, "_ws.malformed", &["frame.number"]).expect("tshark");
    assert_eq!(malformed, Vec::<Vec<String>>::new());
    let ports = tshark::read(&capture, "infiniband.bth", &["udp.dstport"]).expect("tshark");
    assert!(ports.len() > 1000 && ports.iter().all(|row| row[0] == "4791"), "{} packets", ports.len());
    assert!(!tshark::read(&capture, "arp", &["frame.number"]).expect("tshark").is_empty());
}

/// The unikernel on other cards, with habits of real ones.
#[test]
fn other_cards() {
    for card in [
        "cx-4,command-time=1us..2ms,page-requests=4",
        "cx-7,training=2s,link-follows-driver,disabled-until-enabled,nic-interface=1",
        "vf,reset-time=1s,function=3",
    ] {
        let report = run_on(card, 400, None, "none", 11);
        assert!(report.verified, "{card}: {report:#?}");
    }
}

//! Flight recorder: each kind of failure names its cause in words, and the last events are kept in order.

use mlx5_prm::contexts::qpc;
use mlx5_prm::datapath::{CqeOpcode, SendOpcode};
use mlx5_prm::value::{AccessFlags, QpState, ServiceType};

use super::bed::{Bed, Handle, Options};
use super::requests::Request;
use super::umr::{Change, post};
use crate::recorder::{CAPACITY, DropReason, Event, QpRecord, ResendCause};

fn record(bed: &mut Bed, qp: &Handle) -> QpRecord {
    let qpn = qp.qpn;
    bed.hca(qp.node).qp_record(qpn).expect("the QP exists")
}

/// Runs until the QP has failed. Returns why, as its record, the device's list and its log have it.
fn failure(bed: &mut Bed, qp: &Handle) -> String {
    bed.run_until("a failure", |bed| bed.qp(qp).transport.has_failed());
    let reason = record(bed, qp).failure.expect("a reason");
    let last = bed.hca(qp.node).qp_failures().last().filter(|last| last.qpn == qp.qpn).last().cloned();
    assert_eq!(last.map(|last| last.reason.to_string()), Some(reason.clone()));
    let line = format!("QP {:#x} failed: {reason}", qp.qpn);
    assert!(bed.hca(qp.node).log().entries().any(|entry| entry.to_string() == line), "{line}");
    reason
}

/// Fails a request from `a` to `b`, and compares the reasons of both; `b` fails only where it has one.
fn fails(
    request: impl FnOnce(&mut Bed, &mut Handle, &mut Handle) -> Request,
    options: &Options,
    [requester, responder]: [&str; 2],
) -> [QpRecord; 2] {
    let mut bed = Bed::new(2);
    let (mut a, mut b) = bed.pair(options);
    let request = request(&mut bed, &mut a, &mut b);
    bed.send(&mut a, &request);
    let text = failure(&mut bed, &a);
    assert!(text.contains(requester), "{text}");
    if responder.is_empty() {
        assert_eq!(record(&mut bed, &b).failure, None);
    } else {
        let text = failure(&mut bed, &b);
        assert!(text.contains(responder), "{text}");
    }
    [record(&mut bed, &a), record(&mut bed, &b)]
}

const ALL: AccessFlags = AccessFlags::all();

fn options() -> Options {
    Options { psn: 17, ..Options::default() }
}

/// A write of 4096 bytes to a key that is changed first.
fn write_to(
    change: impl FnOnce(&mut Bed, &mut Handle, u32),
) -> impl FnOnce(&mut Bed, &mut Handle, &mut Handle) -> Request {
    move |bed, _, b| {
        let (from, lkey) = bed.buffer(0, 0x1000);
        let (to, rkey) = bed.buffer(1, 0x1000);
        change(bed, b, rkey);
        Request::new(SendOpcode::RDMA_WRITE, &[(from, 0x1000, lkey)]).to(to, rkey)
    }
}

fn change_key(bed: &mut Bed, rkey: u32, change: impl FnOnce(&mut crate::object::mkey::Mkey)) {
    bed.hca(1).device.objects.mkeys.change(rkey >> 8, change).expect("the key exists");
}

#[test]
fn a_refused_key_is_named_on_both_sides() {
    let [a, b] = fails(
        write_to(|bed, _, rkey| change_key(bed, rkey, |mkey| mkey.pd = 8)),
        &options(),
        [
            "RDMA write of 4096 bytes at PSN 17, WQE 0x0: remote access error: QP 0x40 at LID 3 refused rkey 0x10042",
            "RDMA write of 4096 bytes at PSN 17 from QP 0x40 at LID 2: remote access error: rkey 0x10042 belongs to \
             another protection domain",
        ],
    );
    assert_eq!(names(&a), ["state", "state", "NAK received", "WQE failed", "state"]);
    assert_eq!(names(&b), ["state", "state", "key refused", "NAK sent", "state"]);
    let ends = |text: &str, end: &str| assert!(text.ends_with(end), "{text}");
    ends(&a.entries[3].to_string(), "WQE 0x0, RDMA write, PSN 17: remote access error (0x13), vendor 0x88");
    ends(&b.entries[2].to_string(), "key refused     0x10042 belongs to another protection domain");
    ends(&b.entries[4].to_string(), "state           ready to send -> error, by device");
    let refused = "remote access error";
    fails(
        write_to(|bed, _, rkey| change_key(bed, rkey, |mkey| mkey.free = true)),
        &options(),
        [refused, "is free"],
    );
    fails(
        write_to(|bed, _, rkey| change_key(bed, rkey, |mkey| mkey.len = 1)),
        &options(),
        [refused, "does not cover"],
    );
    fails(
        write_to(|bed, _, rkey| change_key(bed, rkey, |mkey| mkey.qpn = Some(9))),
        &options(),
        [refused, "another QP"],
    );
    fails(
        write_to(|bed, b, _| bed.allow(b, &[qpc::rre, qpc::rae], 1)),
        &options(),
        [refused, "the QP does not allow RDMA writes"],
    );
    let read = |bed: &mut Bed, _: &mut Handle, _: &mut Handle| {
        let (to, lkey) = bed.buffer(0, 0x1000);
        Request::new(SendOpcode::RDMA_READ, &[(to, 64, lkey)]).to(0x1000, 0x1234)
    };
    fails(read, &options(), ["RDMA read of 64 bytes at PSN 17", "rkey 0x1234 does not exist"]);
}

#[test]
fn refused_requests_name_what_is_wrong() {
    let atomic = |bed: &mut Bed, _: &mut Handle, _: &mut Handle| {
        let (at, lkey) = bed.buffer(0, 0x1000);
        let (to, rkey) = bed.buffer(1, 0x1000);
        Request::new(SendOpcode::ATOMIC_FA, &[(at, 8, lkey)]).to(to + 4, rkey)
    };
    let invalid = "remote invalid request: QP 0x40 at LID 3 refused the request";
    fails(
        atomic,
        &options(),
        [invalid, "fetch and add of 8 bytes at PSN 17 from QP 0x40 at LID 2: invalid request"],
    );
    let long = |bed: &mut Bed, _: &mut Handle, b: &mut Handle| {
        let (at, lkey) = bed.buffer(0, 0x1000);
        let (to, rkey) = bed.buffer(1, 0x1000);
        bed.receive(b, &[(to, 100, rkey)]);
        Request::new(SendOpcode::SEND, &[(at, 101, lkey)])
    };
    let [_, b] = fails(long, &options(), [invalid, "101 bytes for a receive WQE of 100 bytes"]);
    assert!(names(&b).contains(&"receive failed"));
    let bad_receive = |bed: &mut Bed, _: &mut Handle, b: &mut Handle| {
        let (at, lkey) = bed.buffer(0, 0x1000);
        bed.receive(b, &[(0, 100, 0x777)]);
        Request::new(SendOpcode::SEND, &[(at, 50, lkey)])
    };
    fails(bad_receive, &options(), ["remote operation error", "lkey 0x777 does not exist"]);
    let ring = |bed: &mut Bed, _: &mut Handle, b: &mut Handle| {
        b.receives = 90;
        bed.receive(b, &[]);
        Request::new(SendOpcode::SEND, &[])
    };
    fails(ring, &options(), ["remote operation error", "qp_doorbell_record.receive_counter"]);
}

#[test]
fn a_silent_or_busy_peer_is_named() {
    let short = Options { retry_count: 2, ack_timeout: 10, rnr_retry: 2, ..options() };
    let silent = |bed: &mut Bed, _: &mut Handle, _: &mut Handle| {
        bed.world.set_cable(1, false);
        Request::new(SendOpcode::SEND, &[])
    };
    let text =
        "transport retry count exceeded: no response from QP 0x40 at LID 3, sent 3 times, 4.194304 ms apart";
    let [a, _] = fails(silent, &short, [text, ""]);
    let timed_out = |entry: &&crate::recorder::Entry| {
        matches!(entry.event, Event::Resent { cause: ResendCause::Timeout, left: 0, .. })
    };
    assert_eq!(a.entries.iter().find(timed_out).map(|entry| entry.times), Some(3));
    let busy = |_: &mut Bed, _: &mut Handle, _: &mut Handle| Request::new(SendOpcode::SEND, &[]);
    let [a, b] = fails(busy, &short, ["has no receive WQE after 2 retries", ""]);
    assert!(names(&a).contains(&"NAK received") && names(&b).contains(&"NAK sent"), "{b:?}");
    assert!(a.entries.iter().any(|entry| entry.to_string().contains("receiver not ready")), "{a:?}");
    let gone = |bed: &mut Bed, _: &mut Handle, b: &mut Handle| {
        bed.modify(b, QpState::ERR);
        Request::new(SendOpcode::SEND, &[])
    };
    let [_, b] = fails(gone, &short, ["no response", ""]);
    let dropped = |entry: &crate::recorder::Entry| {
        matches!(entry.event, Event::Dropped { reason: DropReason::State, .. }) && entry.times == 3
    };
    assert!(b.entries.iter().any(dropped), "{b:?}");
}

#[test]
fn local_failures_name_what_is_wrong() {
    let local = |request: fn(&mut Bed, &mut Handle, &mut Handle) -> Request, text| {
        fails(request, &options(), [text, ""]);
    };
    local(
        |_, _, _| Request::new(SendOpcode::SEND, &[(0x1000, 8, 0x9999)]),
        "send of 8 bytes at PSN 17, WQE 0x0: local protection error: lkey 0x9999 does not exist",
    );
    local(
        |bed, _, _| {
            let at = 1 << 40;
            let key = bed.make_key(0, at, 0x1000, at, ALL);
            Request::new(SendOpcode::SEND, &[(at, 8, key)])
        },
        "DMA fault: 8 bytes at 0x10000000000",
    );
    local(
        |bed, a, _| {
            bed.set(a, qpc::log_msg_max, 3);
            let (at, lkey) = bed.buffer(0, 0x1000);
            Request::new(SendOpcode::SEND, &[(at, 9, lkey)])
        },
        "local length error: wqe_data_seg.byte_count: 9 bytes exceed 8",
    );
    local(
        |_, _, _| Request::new(SendOpcode::LSO, &[]),
        "large send offload, WQE 0x0: local QP operation error: wqe_ctrl_seg.opcode",
    );
    local(
        |bed, a, _| {
            a.posted = 65;
            let _ = bed;
            Request::new(SendOpcode::NOP, &[])
        },
        "qp_doorbell_record.send_counter: 66 basic blocks outstanding in a queue of 64",
    );
}

#[test]
fn failures_of_other_services_name_their_cause() {
    // A registration that is not allowed.
    let mut bed = Bed::new(2);
    let (_, mut b) = bed.pair(&options());
    post(&mut bed, &mut b, &Change::register(0x9999_9900, 0, 0x1000, ALL).pages(&[0x1000]));
    let text = failure(&mut bed, &b);
    assert!(text.contains("memory window bind error: ") && text.contains("0x99999900"), "{text}");
    // The send queue of an unreliable connection.
    let (mut a, _) = bed.pair_of(ServiceType::UC, 0, 1, &options());
    bed.send(&mut a, &Request::new(SendOpcode::SEND, &[(0, 8, 0x9999)]));
    let text = failure(&mut bed, &a);
    assert!(text.contains("lkey 0x9999 does not exist"), "{text}");
    let last = record(&mut bed, &a).entries.iter().rev().find(|entry| entry.event.name() == "state").copied();
    assert!(last.is_some_and(|last| last.to_string().contains("-> send queue error, by device")), "{last:?}");
    // A CQ that is full.
    let cqn = bed.make_cq(0, 2);
    let mut qp = bed.make_qp_on(0, ServiceType::RC, &options(), cqn);
    bed.modify(&qp, QpState::RTR);
    bed.modify(&qp, QpState::RTS);
    for _ in 0..6 {
        bed.post(&mut qp, &Request::new(SendOpcode::NOP, &[]));
    }
    bed.ring(&qp);
    let text = failure(&mut bed, &qp);
    assert!(text.starts_with(&format!("CQ {cqn:#x} failed")), "{text}");
}

fn names(record: &QpRecord) -> Vec<&'static str> {
    record.entries.iter().map(|entry| entry.event.name()).collect()
}

#[test]
fn a_run_of_good_requests_is_one_entry() {
    let mut bed = Bed::new(2);
    let (mut a, mut b) = bed.pair(&options());
    let (from, lkey) = bed.buffer(0, 0x1000);
    let (to, rkey) = bed.buffer(1, 0x1000);
    let good = Request::new(SendOpcode::RDMA_WRITE, &[(from, 10, lkey)]).to(to, rkey);
    for _ in 0..100 {
        bed.send(&mut a, &good);
        assert_eq!(bed.wait(&a).opcode, CqeOpcode::REQ);
    }
    assert_eq!(names(&record(&mut bed, &a)), ["state", "state", "completed"]);
    let Event::Completed { count, end, unacked } = record(&mut bed, &a).entries[2].event else { panic!() };
    assert_eq!((count, end, unacked.get()), (100, 100, 117));
    bed.receive(&mut b, &[(to, 100, rkey)]);
    bed.send(&mut a, &Request::new(SendOpcode::SEND, &[(from, 10, lkey)]));
    bed.wait(&b);
    let Event::Received { count, end, expected } = record(&mut bed, &b).entries[2].event else { panic!() };
    assert_eq!((count, end, expected.get()), (101, 1, 118));
    // The failure ends the run; what it takes along is another one.
    bed.wait(&a);
    bed.post(&mut a, &Request::new(SendOpcode::RDMA_WRITE, &[(from, 10, lkey)]).to(to, 0x7777));
    bed.post(&mut a, &good);
    bed.ring(&a);
    failure(&mut bed, &a);
    let entries = record(&mut bed, &a).entries;
    let last: Vec<String> = entries[2..].iter().map(|entry| entry.event.to_string()).collect();
    assert_eq!(last.len(), 5, "{last:?}");
    assert_eq!(last[0], "101 send WQEs, all before 0x65 and PSN 118");
    assert_eq!(last[1], "PSN 118: remote access error, retries left 0");
    assert!(last[2].starts_with("WQE 0x65, RDMA write, PSN 118: remote access error"), "{last:?}");
    assert_eq!(last[4], "send WQEs before 0x67, receive WQEs before 0x0");
    assert!(entries.is_sorted_by_key(|entry| entry.at), "{entries:?}");
}

#[test]
fn events_survive_errors_and_resets_until_the_qp_is_destroyed() {
    let mut bed = Bed::new(2);
    let (mut a, _) = bed.pair(&options());
    for _ in 0..CAPACITY {
        bed.modify(&a, QpState::SQD);
        bed.now += 100;
        bed.modify(&a, QpState::RTS);
    }
    let entries = record(&mut bed, &a).entries;
    assert_eq!(entries.len(), CAPACITY);
    assert!(entries.iter().all(|entry| entry.event.name() == "state" && entry.times == 1));
    bed.send(&mut a, &Request::new(SendOpcode::SEND, &[(0, 8, 0x9999)]));
    let reason = failure(&mut bed, &a);
    bed.modify(&a, QpState::RST);
    let after = record(&mut bed, &a);
    assert_eq!((after.entries.len(), after.state), (CAPACITY, QpState::RST));
    assert_eq!(after.failure.as_ref(), Some(&reason));
    assert_eq!(after.entries[CAPACITY - 4].event.name(), "key refused");
    assert_eq!(after.entries[..4], entries[4..8], "the oldest ones went");
    // Counters that begin at zero again are no run.
    bed.modify(&a, QpState::INIT);
    assert_eq!(names(&record(&mut bed, &a))[CAPACITY - 2..], ["state", "state"]);
    let (node, qpn) = (a.node, a.qpn);
    bed.hca(node).device.qp_goes(qpn);
    bed.hca(node).device.objects.qps.remove(qpn);
    assert!(bed.hca(node).qp_record(qpn).is_none());
    assert_eq!(bed.hca(node).qp_records().count(), 0);
    let failures = bed.hca(node).qp_failures();
    assert_eq!((failures.total(), failures.last().len()), (1, 1), "the device remembers");
}

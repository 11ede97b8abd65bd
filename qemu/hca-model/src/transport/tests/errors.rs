//! Every way a work request can fail: what the completions, the events and the QP's state say on both sides.

use mlx5_prm::contexts::qpc;
use mlx5_prm::datapath::{CqeOpcode, FmCeSe, SendOpcode, ctrl_opmod_idx_opcode, ctrl_qpn_ds};
use mlx5_prm::event::EventType;
use mlx5_prm::status::CqeSyndrome;
use mlx5_prm::value::{AccessFlags, QpState, ServiceType};

use super::bed::{Bed, Completion, Handle, Options, pattern};
use super::requests::Request;
use crate::log::Level;

/// The next completion is the error `syndrome` of the WQE `counter`, the following `flushed` ones are flushes in order, then
/// there is none, and the QP is in error.
fn failed(bed: &mut Bed, qp: &Handle, syndrome: CqeSyndrome, counter: u16, flushed: &[u16]) {
    let got = bed.wait(qp);
    assert_eq!((got.opcode, got.syndrome, got.counter), (CqeOpcode::REQ_ERR, syndrome.0, counter), "{got:?}");
    for counter in flushed {
        let got = bed.wait(qp);
        assert_eq!((got.opcode, got.syndrome, got.counter), (CqeOpcode::REQ_ERR, 5, *counter), "{got:?}");
    }
    assert_eq!(bed.poll_cq(qp.node, qp.cqn), None);
    assert_eq!(bed.qp(qp).state(), QpState::ERR);
}

/// What is to be sent, after one good write and before one that is flushed, by a requester whose responder is given too.
fn remote_error(
    request: impl Fn(&mut Bed, &mut Handle) -> Request,
    syndrome: CqeSyndrome,
    event: Option<EventType>,
) {
    let mut bed = Bed::new(2);
    let (mut a, mut b) = bed.pair(&Options::default());
    let (from, lkey) = bed.buffer(0, 0x4000);
    let (to, rkey) = bed.buffer(1, 0x4000);
    let good = Request::new(SendOpcode::RDMA_WRITE, &[(from, 10, lkey)]).to(to, rkey);
    bed.post(&mut a, &good);
    let request = request(&mut bed, &mut b);
    let bad = bed.post(&mut a, &request);
    // Flushed although nobody asked for its completion.
    let after = bed.send(&mut a, &good.clone().flags(FmCeSe::empty()));
    assert_eq!(bed.wait(&a).opcode, CqeOpcode::REQ, "what came before is done");
    failed(&mut bed, &a, syndrome, bad, &[after]);
    assert_eq!(bed.qp(&b).state(), QpState::ERR, "the responder's QP too");
    let events = bed.events(1);
    assert_eq!(events, event.map(|event| (event, b.qpn)).into_iter().collect::<Vec<_>>());
    assert_eq!(bed.events(0), []);
}

fn data(bed: &mut Bed, len: u32) -> Vec<(u64, u32, u32)> {
    let (at, key) = bed.buffer(0, len as usize);
    vec![(at, len, key)]
}

#[test]
fn remote_access_errors() {
    let access = |request: fn(&mut Bed, &mut Handle) -> Request| {
        remote_error(request, CqeSyndrome::REMOTE_ACCESS_ERR, Some(EventType::WQ_ACCESS_ERROR));
    };
    // A key that does not exist.
    access(|bed, _| Request::new(SendOpcode::RDMA_WRITE, &data(bed, 100)).to(0x1000, 0x1234));
    // One byte beyond the region, by a write and by a read.
    access(|bed, _| {
        let (to, rkey) = bed.buffer(1, 0x1000);
        Request::new(SendOpcode::RDMA_WRITE, &data(bed, 9000)).to(to, rkey)
    });
    access(|bed, _| {
        let (to, rkey) = bed.buffer(1, 0x1000);
        Request::new(SendOpcode::RDMA_READ, &data(bed, 100)).to(to + 0xf9d, rkey)
    });
    // Rights: the key's, then the QP's.
    access(|bed, _| {
        let at = bed.guests[1].alloc(0x1000);
        let rkey = bed.make_key(1, at, 0x1000, at, AccessFlags::REMOTE_READ);
        Request::new(SendOpcode::RDMA_WRITE, &data(bed, 4)).to(at, rkey)
    });
    access(|bed, _| {
        let at = bed.guests[1].alloc(0x1000);
        let rkey = bed.make_key(1, at, 0x1000, at, AccessFlags::REMOTE_WRITE);
        Request::new(SendOpcode::RDMA_READ, &data(bed, 4)).to(at, rkey)
    });
    access(|bed, _| {
        let at = bed.guests[1].alloc(0x1000);
        let rkey = bed.make_key(1, at, 0x1000, at, AccessFlags::REMOTE_WRITE);
        Request::new(SendOpcode::ATOMIC_FA, &data(bed, 8)).to(at, rkey)
    });
    access(|bed, b| {
        bed.allow(b, &[qpc::rwe, qpc::rae], 1);
        let (to, rkey) = bed.buffer(1, 0x1000);
        Request::new(SendOpcode::RDMA_READ, &data(bed, 4)).to(to, rkey)
    });
    access(|bed, b| {
        bed.allow(b, &[qpc::rre, qpc::rwe], 1);
        let (to, rkey) = bed.buffer(1, 0x1000);
        Request::new(SendOpcode::ATOMIC_CS, &data(bed, 8)).to(to, rkey)
    });
    // Somebody else's protection domain.
    access(|bed, _| {
        let (to, rkey) = bed.buffer(1, 0x1000);
        bed.hca(1).device.objects.mkeys.change(rkey >> 8, |mkey| mkey.pd = 8).unwrap();
        Request::new(SendOpcode::RDMA_WRITE, &data(bed, 4)).to(to, rkey)
    });
}

#[test]
fn remote_invalid_requests() {
    // An atomic that is not aligned.
    remote_error(
        |bed, _| {
            let (to, rkey) = bed.buffer(1, 0x1000);
            Request::new(SendOpcode::ATOMIC_FA, &data(bed, 8)).to(to + 4, rkey)
        },
        CqeSyndrome::REMOTE_INVAL_REQ_ERR,
        Some(EventType::WQ_INVAL_REQ_ERROR),
    );
    // A message longer than the responder takes.
    remote_error(
        |bed, b| {
            bed.set(b, qpc::log_msg_max, 12);
            let (to, rkey) = bed.buffer(1, 0x8000);
            Request::new(SendOpcode::RDMA_WRITE, &data(bed, 0x1001)).to(to, rkey)
        },
        CqeSyndrome::REMOTE_INVAL_REQ_ERR,
        Some(EventType::WQ_INVAL_REQ_ERROR),
    );
}

#[test]
fn more_reads_than_the_responder_has_resources_for() {
    let mut bed = Bed::new(2);
    let (mut a, b) = bed.pair(&Options { log_sra_max: 4, log_rra_max: 0, ..Options::default() });
    let (local, lkey) = bed.buffer(0, 0x8_0000);
    let (remote, rkey) = bed.buffer(1, 0x8_0000);
    for i in 0..8 {
        let request = Request::new(SendOpcode::RDMA_READ, &[(local + i * 0x1_0000, 0x1_0000, lkey)]);
        bed.post(&mut a, &request.to(remote, rkey));
    }
    bed.ring(&a);
    let mut got = bed.wait(&a);
    while got.opcode == CqeOpcode::REQ {
        got = bed.wait(&a);
    }
    assert_eq!(got.syndrome, CqeSyndrome::REMOTE_INVAL_REQ_ERR.0);
    assert_eq!(bed.qp(&b).state(), QpState::ERR);
}

#[test]
fn a_send_longer_than_its_buffer() {
    for len in [101, 5000] {
        let mut bed = Bed::new(2);
        let (mut a, mut b) = bed.pair(&Options { mtu: 4, ..Options::default() });
        let (to, rkey) = bed.buffer(1, 0x1000);
        let first = bed.receive(&mut b, &[(to, 100, rkey)]);
        let second = bed.receive(&mut b, &[(to, 100, rkey)]);
        let segments = data(&mut bed, len);
        let sent = bed.send(&mut a, &Request::new(SendOpcode::SEND, &segments));
        failed(&mut bed, &a, CqeSyndrome::REMOTE_INVAL_REQ_ERR, sent, &[]);
        let got = bed.wait(&b);
        assert_eq!((got.opcode, got.syndrome, got.counter), (CqeOpcode::RESP_ERR, 0x01, first));
        let got = bed.wait(&b);
        assert_eq!((got.opcode, got.syndrome, got.counter), (CqeOpcode::RESP_ERR, 0x05, second));
        assert_eq!(bed.qp(&b).state(), QpState::ERR);
    }
}

#[test]
fn a_receive_with_a_bad_key() {
    let mut bed = Bed::new(2);
    let (mut a, mut b) = bed.pair(&Options::default());
    let (to, _) = bed.buffer(1, 0x1000);
    bed.receive(&mut b, &[(to, 100, 0x777)]);
    let segments = data(&mut bed, 50);
    let sent = bed.send(&mut a, &Request::new(SendOpcode::SEND, &segments));
    failed(&mut bed, &a, CqeSyndrome::REMOTE_OP_ERR, sent, &[]);
    let got = bed.wait(&b);
    assert_eq!((got.opcode, got.syndrome), (CqeOpcode::RESP_ERR, CqeSyndrome::LOCAL_PROT_ERR.0));
}

#[test]
fn memory_that_does_not_answer() {
    // The key allows it, but the guest has no memory there: seen at the responder of a write with immediate as a local
    // access error, at its requester as a remote operation error.
    let mut bed = Bed::new(2);
    let (mut a, mut b) = bed.pair(&Options::default());
    let (to, rkey) = bed.buffer(1, 0x1000);
    bed.receive(&mut b, &[(to, 0x1000, rkey)]);
    let nowhere = 1 << 40;
    let hole =
        bed.make_key(1, nowhere, 0x1000, nowhere, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE);
    let segments = data(&mut bed, 50);
    let request = Request::new(SendOpcode::RDMA_WRITE_IMM, &segments).to(nowhere, hole);
    let sent = bed.send(&mut a, &request);
    failed(&mut bed, &a, CqeSyndrome::REMOTE_OP_ERR, sent, &[]);
    let got = bed.wait(&b);
    assert_eq!((got.opcode, got.syndrome), (CqeOpcode::RESP_ERR, CqeSyndrome::LOCAL_ACCESS_ERR.0));
    // And as the source of a send.
    let (mut a, _) = bed.pair(&Options::default());
    let hole = bed.make_key(0, nowhere, 0x1000, nowhere, AccessFlags::LOCAL_WRITE);
    let sent = bed.send(&mut a, &Request::new(SendOpcode::SEND, &[(nowhere, 8, hole)]));
    failed(&mut bed, &a, CqeSyndrome::LOCAL_PROT_ERR, sent, &[]);
}

#[test]
fn local_protection_errors() {
    type Make = fn(&mut Bed, (u64, u32)) -> Request;
    let cases: [Make; 4] = [
        |_, _| Request::new(SendOpcode::SEND, &[(0x1000, 8, 0x9999)]),
        |bed, remote| {
            // The second half of the source is missing: found when its packet is built.
            let (at, key) = bed.buffer(0, 0x2000);
            Request::new(SendOpcode::RDMA_WRITE, &[(at, 0x2001, key)]).to(remote.0, remote.1)
        },
        |bed, remote| {
            let at = bed.guests[0].alloc(0x1000);
            let key = bed.make_key(0, at, 0x1000, at, AccessFlags::empty());
            Request::new(SendOpcode::RDMA_READ, &[(at, 64, key)]).to(remote.0, remote.1)
        },
        |bed, remote| {
            let at = bed.guests[0].alloc(0x1000);
            let key = bed.make_key(0, at, 0x1000, at, AccessFlags::empty());
            Request::new(SendOpcode::ATOMIC_FA, &[(at, 8, key)]).to(remote.0, remote.1)
        },
    ];
    for (n, make) in cases.into_iter().enumerate() {
        let mut bed = Bed::new(2);
        let (mut a, b) = bed.pair(&Options { mtu: 2, ..Options::default() });
        let remote = bed.buffer(1, 0x4000);
        let good = Request::new(SendOpcode::RDMA_WRITE, &data(&mut bed, 10)).to(remote.0, remote.1);
        bed.post(&mut a, &good);
        let request = make(&mut bed, remote);
        let bad = bed.post(&mut a, &request);
        let after = bed.send(&mut a, &good);
        assert_eq!(bed.wait(&a).opcode, CqeOpcode::REQ, "case {n}");
        failed(&mut bed, &a, CqeSyndrome::LOCAL_PROT_ERR, bad, &[after]);
        assert_eq!(bed.qp(&b).state(), QpState::RTS, "the peer knows nothing of it");
        assert!(bed.hca(0).device.log.refusals() > 0);
    }
}

/// A WQE that the device refuses to begin.
fn local_error(make: impl Fn(&mut Bed, &mut Handle) -> u16, syndrome: CqeSyndrome, field: &str) {
    let mut bed = Bed::new(2);
    let (mut a, _) = bed.pair(&Options::default());
    let bad = make(&mut bed, &mut a);
    let after = bed.post(&mut a, &Request::new(SendOpcode::NOP, &[]));
    bed.ring(&a);
    failed(&mut bed, &a, syndrome, bad, &[after]);
    let refused =
        bed.hca(0).device.log.entries().rev().find(|entry| entry.level == Level::Refusal).cloned().unwrap();
    assert_eq!(refused.field, field, "{refused}");
}

#[test]
fn wqes_that_make_no_sense() {
    let raw = |change: fn(&mut Vec<u8>)| {
        move |bed: &mut Bed, a: &mut Handle| {
            let mut wqe = ctrl_opmod_idx_opcode(0, a.posted, SendOpcode::SEND).to_be_bytes().to_vec();
            wqe.extend(ctrl_qpn_ds(a.qpn, 2).to_be_bytes());
            wqe.extend([0, 0, 0, 8, 0, 0, 0, 0]);
            wqe.extend([0x80, 0, 0, 4, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0]);
            change(&mut wqe);
            bed.post_raw(a, &wqe)
        }
    };
    let op = CqeSyndrome::LOCAL_QP_OP_ERR;
    local_error(raw(|wqe| wqe[7] = 0), op, "wqe_ctrl_seg.ds");
    local_error(raw(|wqe| wqe[7] = 63), op, "wqe_ctrl_seg.ds");
    local_error(raw(|wqe| wqe[2] ^= 1), op, "wqe_ctrl_seg.wqe_index");
    local_error(raw(|wqe| wqe[6] ^= 1), op, "wqe_ctrl_seg.qpn");
    local_error(raw(|wqe| wqe[3] = 0x25), op, "wqe_ctrl_seg.ds");
    local_error(raw(|wqe| wqe[3] = 0x7f), op, "wqe_ctrl_seg.opcode");
    local_error(raw(|wqe| wqe[11] = 0x19), op, "wqe_ctrl_seg");
    local_error(raw(|wqe| wqe[11] = 0xe8), op, "wqe_ctrl_seg.fm");
    local_error(raw(|wqe| wqe[19] = 13), op, "wqe_inline_seg.byte_count");
    local_error(raw(|wqe| wqe[16] = 0xff), op, "wqe_inline_seg.byte_count");
}

#[test]
fn wqes_that_are_too_long() {
    let length = CqeSyndrome::LOCAL_LENGTH_ERR;
    local_error(
        |bed, a| bed.post(a, &Request::new(SendOpcode::SEND, &[(0, 0x4000_0001, 0)])),
        length,
        "wqe_data_seg.byte_count",
    );
    // A byte count of zero stands for 2 GiB.
    local_error(
        |bed, a| bed.post(a, &Request::new(SendOpcode::SEND, &[(0, 0, 0)])),
        length,
        "wqe_data_seg.byte_count",
    );
    local_error(
        |bed, a| bed.post(a, &Request::new(SendOpcode::ATOMIC_CS, &[(0, 16, 0)])),
        length,
        "wqe_data_seg.byte_count",
    );
    let op = CqeSyndrome::LOCAL_QP_OP_ERR;
    local_error(
        |bed, a| {
            let mut request = Request::new(SendOpcode::RDMA_READ, &[]);
            request.inline = Some(vec![0; 12]);
            bed.post(a, &request)
        },
        op,
        "wqe_inline_seg.inline",
    );
}

#[test]
fn a_silent_peer() {
    let mut bed = Bed::new(2);
    let options = Options { retry_count: 3, ack_timeout: 10, ..Options::default() };
    let (mut a, _) = bed.pair(&options);
    let (to, rkey) = bed.buffer(1, 0x1000);
    bed.world.set_cable(1, false);
    let start = bed.now;
    let segments = data(&mut bed, 8);
    let sent = bed.send(&mut a, &Request::new(SendOpcode::RDMA_WRITE, &segments).to(to, rkey));
    failed(&mut bed, &a, CqeSyndrome::TRANSPORT_RETRY_EXC_ERR, sent, &[]);
    // The first time-out and one for each retry: 4 x 4.096 us x 2^10.
    let waited = bed.now - start;
    assert!((16_777_216..17_000_000).contains(&waited), "{waited} ns");
    assert_eq!((bed.counters(0).timeouts, bed.counters(0).retransmitted), (4, 3));
}

#[test]
fn a_cut_link_that_comes_back() {
    let mut bed = Bed::new(2);
    let (mut a, _) = bed.pair(&Options { ack_timeout: 16, ..Options::default() });
    let (from, lkey) = bed.buffer(0, 0x10_0000);
    let (to, rkey) = bed.buffer(1, 0x10_0000);
    let payload = pattern(1, 1, 0x10_0000);
    bed.guests[0].write(from, &payload);
    bed.send(&mut a, &Request::new(SendOpcode::RDMA_WRITE, &[(from, 0x10_0000, lkey)]).to(to, rkey));
    for _ in 0..3 {
        bed.step();
    }
    bed.world.set_cable(1, false);
    bed.run_for(100_000);
    bed.world.set_cable(1, true);
    assert_eq!(bed.wait(&a).syndrome, 0);
    assert!(bed.guests[1].read(to, 0x10_0000) == payload);
    assert!(bed.counters(0).retransmitted > 0);
    let change = |(kind, _): &(EventType, u32)| *kind == EventType::PORT_CHANGE;
    assert!(bed.events(1).iter().filter(|event| change(event)).count() >= 3, "down, initialised, active");
}

#[test]
fn receiver_not_ready() {
    let mut bed = Bed::new(2);
    // Timer code 16 is 2.56 ms.
    let options = Options { rnr_retry: 2, min_rnr_nak: 16, ..Options::default() };
    let (mut a, mut b) = bed.pair(&options);
    let (to, rkey) = bed.buffer(1, 0x1000);
    let segments = data(&mut bed, 5000);
    // In time: the second attempt finds a receive.
    bed.send(&mut a, &Request::new(SendOpcode::SEND, &segments));
    let start = bed.now;
    bed.run_for(1_000_000);
    assert_eq!(bed.counters(1).rnr_naks_sent, 1);
    let (large, key) = bed.buffer(1, 5000);
    bed.receive(&mut b, &[(large, 5000, key)]);
    assert_eq!(bed.wait(&b).bytes, 5000);
    let waited = bed.now - start;
    assert!((2_560_000..2_700_000).contains(&waited), "{waited} ns");
    assert_eq!(bed.wait(&a).syndrome, 0);
    // Never: the first attempt and two more.
    let sent = bed.send(&mut a, &Request::new(SendOpcode::RDMA_WRITE_IMM, &[]).to(to, rkey));
    failed(&mut bed, &a, CqeSyndrome::RNR_RETRY_EXC_ERR, sent, &[]);
    assert_eq!(bed.counters(1).rnr_naks_sent, 4);
    assert_eq!(bed.qp(&b).state(), QpState::RTS);
}

#[test]
fn an_rnr_retry_count_of_seven_has_no_end() {
    let mut bed = Bed::new(2);
    let (mut a, mut b) =
        bed.pair(&Options { rnr_retry: 7, min_rnr_nak: 1, retry_count: 0, ..Options::default() });
    bed.send(&mut a, &Request::new(SendOpcode::SEND, &[]));
    bed.run_for(2_000_000);
    assert!(bed.counters(1).rnr_naks_sent > 50);
    bed.receive(&mut b, &[]);
    assert_eq!(bed.wait(&a).syndrome, 0);
}

#[test]
fn the_error_state_flushes_what_is_and_what_will_be_posted() {
    let mut bed = Bed::new(2);
    let (mut a, mut b) = bed.pair(&Options::default());
    let (to, rkey) = bed.buffer(1, 0x1000);
    for _ in 0..3 {
        bed.receive(&mut b, &[(to, 100, rkey)]);
    }
    bed.post(&mut b, &Request::new(SendOpcode::SEND, &[]));
    bed.post(&mut b, &Request::new(SendOpcode::SEND, &[]).flags(FmCeSe::empty()));
    // Not rung for: the doorbell record tells.
    bed.modify(&b, QpState::INIT);
    bed.ring(&b);
    bed.modify(&b, QpState::ERR);
    let flush = |got: Completion| (got.opcode, got.syndrome, got.counter);
    assert_eq!([0, 1].map(|_| flush(bed.wait(&b))), [0, 1].map(|i| (CqeOpcode::REQ_ERR, 5, i)));
    assert_eq!([0; 3].map(|_| flush(bed.wait(&b))), [0, 1, 2].map(|i| (CqeOpcode::RESP_ERR, 5, i)));
    // The draining technique: one marker on each queue.
    bed.receive(&mut b, &[(to, 100, rkey)]);
    bed.send(&mut b, &Request::new(SendOpcode::NOP, &[]));
    let mut markers = [flush(bed.wait(&b)), flush(bed.wait(&b))];
    markers.sort_by_key(|marker| marker.0);
    assert_eq!(markers, [(CqeOpcode::REQ_ERR, 5, 2), (CqeOpcode::RESP_ERR, 5, 3)]);
    // The peer meets silence.
    bed.set(&a, qpc::retry_count, 0);
    bed.qp(&a).transport.requester.retries_left = 0;
    let sent = bed.send(&mut a, &Request::new(SendOpcode::SEND, &[]));
    failed(&mut bed, &a, CqeSyndrome::TRANSPORT_RETRY_EXC_ERR, sent, &[]);
    // Reset: nothing more.
    bed.modify(&b, QpState::RST);
    bed.receive(&mut b, &[(to, 100, rkey)]);
    bed.run_for(1_000_000);
    assert_eq!(bed.poll_cq(1, b.cqn), None);
}

#[test]
fn a_message_that_was_begun_is_flushed_with_its_receive() {
    let mut bed = Bed::new(2);
    let (mut a, mut b) = bed.pair(&Options { mtu: 1, ..Options::default() });
    let (to, rkey) = bed.buffer(1, 0x10_0000);
    bed.receive(&mut b, &[(to, 0x10_0000, rkey)]);
    let segments = data(&mut bed, 0x10_0000);
    bed.send(&mut a, &Request::new(SendOpcode::SEND, &segments));
    bed.run_until("the message is begun", |bed| bed.counters(1).packets_received > 100);
    bed.modify(&b, QpState::ERR);
    let got = bed.wait(&b);
    assert_eq!((got.opcode, got.syndrome, got.counter), (CqeOpcode::RESP_ERR, 5, 0));
}

#[test]
fn queues_that_lie_about_themselves() {
    // More posted than the ring holds.
    let mut bed = Bed::new(2);
    let (mut a, mut b) = bed.pair(&Options::default());
    a.posted = 65;
    bed.ring(&a);
    bed.run_until("error", |bed| bed.qp(&a).state() == QpState::ERR);
    assert_eq!(bed.events(0), [(EventType::WQ_CATAS_ERROR, a.qpn)]);
    // The same of receives, found when one is wanted.
    let (mut c, _) = bed.pair_on(1, 1, &Options::default());
    b.receives = 70;
    bed.receive(&mut b, &[]);
    let _ = bed.send(&mut c, &Request::new(SendOpcode::NOP, &[]));
    let (mut d, mut e) = bed.pair(&Options::default());
    e.receives = 90;
    bed.receive(&mut e, &[]);
    let sent = bed.send(&mut d, &Request::new(SendOpcode::SEND, &[]));
    failed(&mut bed, &d, CqeSyndrome::REMOTE_OP_ERR, sent, &[]);
    assert_eq!(bed.events(1), [(EventType::WQ_CATAS_ERROR, e.qpn)]);
}

#[test]
fn a_full_cq_takes_its_qps_along() {
    let mut bed = Bed::new(2);
    let cqn = bed.make_cq(0, 2);
    let mut qp = bed.make_qp_on(0, ServiceType::RC, &Options::default(), cqn);
    bed.modify(&qp, QpState::RTR);
    bed.modify(&qp, QpState::RTS);
    for _ in 0..6 {
        bed.post(&mut qp, &Request::new(SendOpcode::NOP, &[]));
    }
    bed.ring(&qp);
    bed.run_until("error", |bed| bed.qp(&qp).state() == QpState::ERR);
    let events = bed.events(0);
    assert!(events.contains(&(EventType::WQ_CATAS_ERROR, qp.qpn)), "{events:?}");
    assert!(events.iter().any(|(kind, _)| *kind == EventType::CQ_ERROR), "{events:?}");
}

#[test]
fn an_error_of_its_own_is_told_from_one_that_was_ordered() {
    let mut bed = Bed::new(2);
    let (mut a, b) = bed.pair(&Options::default());
    let silent = bed.pair_of(ServiceType::UC, 0, 1, &Options::default());
    assert!(!bed.qp(&a).transport.has_failed());
    // A key that does not exist.
    let (local, _) = bed.buffer(0, 0x1000);
    bed.send(&mut a, &Request::new(SendOpcode::SEND, &[(local, 64, 0x7700)]));
    assert_ne!(bed.wait(&a).syndrome, 0);
    assert!(bed.qp(&a).transport.has_failed());
    bed.modify(&a, QpState::RST);
    assert!(!bed.qp(&a).transport.has_failed());
    bed.modify(&b, QpState::ERR);
    assert!(bed.qp(&b).state() == QpState::ERR && !bed.qp(&b).transport.has_failed());
    // The send queue of an unreliable QP alone.
    let mut silent = silent.0;
    bed.send(&mut silent, &Request::new(SendOpcode::SEND, &[(local, 64, 0x7700)]));
    assert_ne!(bed.wait(&silent).syndrome, 0);
    assert!(bed.qp(&silent).state() == QpState::SQER && bed.qp(&silent).transport.has_failed());
    bed.modify(&silent, QpState::RTS);
    assert!(!bed.qp(&silent).transport.has_failed());
}

//! Q counters: what happens on a QP is counted in its set, and only there, as often as it happens.

use mlx5_prm::Field;
use mlx5_prm::commands::query_q_counter_out as q;
use mlx5_prm::contexts::qpc;
use mlx5_prm::datapath::SendOpcode;
use mlx5_prm::later;
use mlx5_prm::status::CqeSyndrome;
use mlx5_prm::value::ServiceType;

use super::bed::{Bed, Handle, Options};
use super::requests::Request;

/// Gives each QP a counter set of its own.
fn counted(bed: &mut Bed, qps: &[&Handle]) {
    for qp in qps {
        let set = bed.hca(qp.node).device.objects.q_counters.allocate().unwrap();
        bed.set(qp, qpc::counter_set_id, set);
    }
}

fn count(bed: &mut Bed, qp: &Handle, counter: Field) -> u32 {
    let set = bed.qp(qp).counter_set().unwrap();
    bed.hca(qp.node).device.objects.q_counters.sets.get(u32::from(set)).map_or(0, |held| counter.get32(held))
}

/// All counters of a QP's set that are not zero: their offsets and values.
fn all(bed: &mut Bed, qp: &Handle) -> Vec<(usize, u32)> {
    let set = bed.qp(qp).counter_set().unwrap();
    let body = bed.hca(qp.node).device.objects.q_counters.sets.get(u32::from(set)).unwrap().clone();
    (0x10..body.len())
        .step_by(4)
        .map(|at| (at, u32::from_be_bytes(body[at..at + 4].try_into().unwrap())))
        .filter(|(_, value)| *value != 0)
        .collect()
}

fn at(counter: Field) -> usize {
    counter.bit_offset as usize / 8
}

#[test]
fn requests_are_counted_where_they_are_taken() {
    let mut bed = Bed::new(2);
    let (mut a, b) = bed.pair(&Options::default());
    counted(&mut bed, &[&a, &b]);
    let (local, lkey) = bed.buffer(0, 0x1_0000);
    let (remote, rkey) = bed.buffer(1, 0x1_0000);
    for (opcode, times, len) in [
        (SendOpcode::RDMA_WRITE, 3, 0x9000),
        (SendOpcode::RDMA_READ, 2, 0x9000),
        (SendOpcode::ATOMIC_FA, 4, 8),
    ] {
        for _ in 0..times {
            bed.send(&mut a, &Request::new(opcode, &[(local, len, lkey)]).to(remote, rkey));
            assert_eq!(bed.wait(&a).syndrome, 0);
        }
    }
    let expected =
        [(at(q::rx_write_requests), 3), (at(q::rx_read_requests), 2), (at(q::rx_atomic_requests), 4)];
    assert_eq!(all(&mut bed, &b), expected);
    assert_eq!(all(&mut bed, &a), []);
}

#[test]
fn receivers_that_are_not_ready() {
    let mut bed = Bed::new(2);
    let (mut a, mut b) = bed.pair(&Options { rnr_retry: 3, min_rnr_nak: 1, ..Options::default() });
    counted(&mut bed, &[&a, &b]);
    let sent = bed.send(&mut a, &Request::new(SendOpcode::SEND, &[]));
    let got = bed.wait(&a);
    assert_eq!((got.counter, got.syndrome), (sent, CqeSyndrome::RNR_RETRY_EXC_ERR.0));
    // The first try and three more.
    assert_eq!(count(&mut bed, &a, q::rnr_nak_retry_err), 4);
    assert_eq!(count(&mut bed, &b, q::out_of_buffer), 4);
    assert_eq!(count(&mut bed, &a, q::req_cqe_error), 1);
    bed.receive(&mut b, &[]);
    // Datagrams without a receive count at their receiver too.
    let (mut d, e) = bed.pair_of(ServiceType::UC, 0, 1, &Options::default());
    counted(&mut bed, &[&d, &e]);
    for _ in 0..5 {
        bed.send(&mut d, &Request::new(SendOpcode::SEND, &[]));
    }
    bed.run_for(100_000);
    assert_eq!(all(&mut bed, &e), [(at(q::out_of_buffer), 5)]);
    assert_eq!(all(&mut bed, &d), []);
}

#[test]
fn losses_show_on_both_sides() {
    let mut bed = Bed::new(2);
    let (mut a, b) = bed.pair(&Options { ack_timeout: 10, mtu: 3, ..Options::default() });
    counted(&mut bed, &[&a, &b]);
    let (local, lkey) = bed.buffer(0, 0x10_0000);
    let (remote, rkey) = bed.buffer(1, 0x10_0000);
    bed.faults("loss=3%", 5);
    for opcode in [SendOpcode::RDMA_WRITE, SendOpcode::RDMA_READ] {
        for _ in 0..4 {
            bed.send(&mut a, &Request::new(opcode, &[(local, 0x4_0000, lkey)]).to(remote, rkey));
            assert_eq!(bed.wait(&a).syndrome, 0);
        }
    }
    let (device_a, device_b) = (bed.counters(0), bed.counters(1));
    for (qp, counter, expected) in [
        (&a, q::packet_seq_err, device_a.sequence_naks_received),
        (&a, q::local_ack_timeout_err, device_a.timeouts),
        (&a, q::implied_nak_seq_err, device_a.implied_naks),
        (&b, q::out_of_sequence, device_b.out_of_sequence),
        (&b, q::duplicate_request, device_b.duplicates),
    ] {
        assert!(expected > 0, "{counter:?} was put to the test");
        assert_eq!(u64::from(count(&mut bed, qp, counter)), expected, "{counter:?}");
    }
    let silent = [q::out_of_buffer, q::rnr_nak_retry_err, q::req_cqe_error, q::resp_cqe_error];
    for counter in silent {
        assert_eq!((count(&mut bed, &a, counter), count(&mut bed, &b, counter)), (0, 0));
    }
}

#[test]
fn port_counters_tell_what_passed_the_wire() {
    let mut bed = Bed::new(2);
    let (mut a, _) = bed.pair(&Options { mtu: 3, ..Options::default() });
    let (local, lkey) = bed.buffer(0, 0x1_0000);
    let (remote, rkey) = bed.buffer(1, 0x1_0000);
    bed.run_for(1_000_000);
    let before = (bed.hca(0).device.port.counters, bed.hca(1).device.port.counters);
    bed.send(&mut a, &Request::new(SendOpcode::RDMA_WRITE, &[(local, 10_000, lkey)]).to(remote, rkey));
    assert_eq!(bed.wait(&a).syndrome, 0);
    let after = (bed.hca(0).device.port.counters, bed.hca(1).device.port.counters);
    // Ten packets of 1024 bytes at most: LRH 8, BTH 12, ICRC 4 each, and the RETH of 16 in the first.
    assert_eq!(after.0.xmit_packets - before.0.xmit_packets, 10);
    assert_eq!(after.0.xmit_data - before.0.xmit_data, (10_000 + 10 * 24 + 16) / 4);
    for (sent, received) in [
        (after.0.xmit_packets - before.0.xmit_packets, after.1.rcv_packets - before.1.rcv_packets),
        (after.0.xmit_data - before.0.xmit_data, after.1.rcv_data - before.1.rcv_data),
        (after.1.xmit_packets - before.1.xmit_packets, after.0.rcv_packets - before.0.rcv_packets),
        (
            after.0.unicast_xmit_packets - before.0.unicast_xmit_packets,
            after.1.unicast_rcv_packets - before.1.unicast_rcv_packets,
        ),
    ] {
        assert!(sent > 0);
        assert_eq!(sent, received);
    }
    // What stays inside the device does not pass the wire.
    let before = bed.hca(0).device.port.counters;
    let (mut c, _) = bed.pair_on(0, 0, &Options::default());
    bed.send(&mut c, &Request::new(SendOpcode::RDMA_WRITE, &[(local, 5000, lkey)]).to(local + 0x8000, lkey));
    assert_eq!(bed.wait(&c).syndrome, 0);
    assert_eq!(bed.hca(0).device.port.counters.xmit_packets, before.xmit_packets);
}

/// What is counted on both sides: counters by what Linux calls them, and how often.
type Counted = Vec<(usize, u32)>;

/// Lets something go wrong on a pair, and answers what both sides have counted of it. `options` are the pair's.
fn provoked(options: &Options, wrong: impl FnOnce(&mut Bed, &mut Handle, &mut Handle)) -> (Counted, Counted) {
    let mut bed = Bed::new(2);
    let (mut a, mut b) = bed.pair(options);
    counted(&mut bed, &[&a, &b]);
    wrong(&mut bed, &mut a, &mut b);
    bed.run_for(1_000_000);
    (all(&mut bed, &a), all(&mut bed, &b))
}

fn named(counters: &[(Field, u32)]) -> Counted {
    let mut named: Counted = counters.iter().map(|(counter, times)| (at(*counter), *times)).collect();
    named.sort_unstable();
    named
}

/// Each error counter of Linux's `hw_counters`, by what makes it count.
#[test]
fn errors_are_counted_by_their_kind_on_the_side_that_sees_them() {
    let options =
        Options { rnr_retry: 2, min_rnr_nak: 1, retry_count: 3, ack_timeout: 10, ..Options::default() };
    let failed =
        |bed: &mut Bed, a: &Handle, syndrome: CqeSyndrome| assert_eq!(bed.wait(a).syndrome, syndrome.0);

    // A message longer than its receive; behind it, one more of each.
    let (a, b) = provoked(&options, |bed, a, b| {
        let (from, lkey) = bed.buffer(0, 0x1000);
        let (to, key) = bed.buffer(1, 0x1000);
        bed.receive(b, &[(to, 100, key)]);
        bed.receive(b, &[(to, 100, key)]);
        bed.post(a, &Request::new(SendOpcode::SEND, &[(from, 101, lkey)]));
        bed.send(a, &Request::new(SendOpcode::SEND, &[(from, 10, lkey)]));
        failed(bed, a, CqeSyndrome::REMOTE_INVAL_REQ_ERR);
    });
    assert_eq!(
        a,
        named(&[(q::req_cqe_error, 2), (q::req_remote_invalid_request, 1), (q::req_cqe_flush_error, 1)])
    );
    assert_eq!(
        b,
        named(&[
            (q::resp_cqe_error, 2),
            (q::resp_local_length_error, 1),
            (q::resp_cqe_flush_error, 1),
            (q::resp_remote_invalid_request, 1),
        ])
    );

    // A key that does not exist at the other side.
    let (a, b) = provoked(&options, |bed, a, _| {
        let (from, lkey) = bed.buffer(0, 0x1000);
        bed.send(a, &Request::new(SendOpcode::RDMA_WRITE, &[(from, 8, lkey)]).to(0x1000, 0x7777));
        failed(bed, a, CqeSyndrome::REMOTE_ACCESS_ERR);
    });
    assert_eq!(a, named(&[(q::req_cqe_error, 1), (q::req_remote_access_errors, 1)]));
    assert_eq!(b, named(&[(q::resp_remote_access_errors, 1)]));

    // A receive whose key is wrong.
    let (a, b) = provoked(&options, |bed, a, b| {
        let (from, lkey) = bed.buffer(0, 0x1000);
        bed.receive(b, &[(0x1000, 100, 0x777)]);
        bed.send(a, &Request::new(SendOpcode::SEND, &[(from, 8, lkey)]));
        failed(bed, a, CqeSyndrome::REMOTE_OP_ERR);
    });
    assert_eq!(a, named(&[(q::req_cqe_error, 1), (q::req_remote_operation_errors, 1)]));
    assert_eq!(b, named(&[(q::resp_cqe_error, 1), (q::resp_local_protection, 1)]));

    // One's own key, and a request that makes no sense: the other side hears nothing.
    let (a, b) = provoked(&options, |bed, a, _| {
        bed.send(a, &Request::new(SendOpcode::SEND, &[(0x1000, 8, 0x9999)]));
        failed(bed, a, CqeSyndrome::LOCAL_PROT_ERR);
    });
    assert_eq!((a, b), (named(&[(q::req_cqe_error, 1), (q::req_local_protection, 1)]), vec![]));

    // Nobody there: the first time and three more.
    let (a, b) = provoked(&options, |bed, a, _| {
        let (from, lkey) = bed.buffer(0, 0x1000);
        let (to, rkey) = bed.buffer(1, 0x1000);
        bed.world.set_cable(1, false);
        bed.send(a, &Request::new(SendOpcode::RDMA_WRITE, &[(from, 8, lkey)]).to(to, rkey));
        failed(bed, a, CqeSyndrome::TRANSPORT_RETRY_EXC_ERR);
    });
    let silent =
        [(q::req_cqe_error, 1), (q::req_transport_retries_exceeded, 1), (q::local_ack_timeout_err, 4)];
    assert_eq!((a, b), (named(&silent), vec![]));

    // Never ready: the first time and two more.
    let (a, b) = provoked(&options, |bed, a, _| {
        bed.send(a, &Request::new(SendOpcode::SEND, &[]));
        failed(bed, a, CqeSyndrome::RNR_RETRY_EXC_ERR);
    });
    let never = [(q::req_cqe_error, 1), (q::rnr_nak_retry_err, 3), (later::REQ_RNR_RETRIES_EXCEEDED, 1)];
    assert_eq!((a, b), (named(&never), named(&[(q::out_of_buffer, 3)])));
}

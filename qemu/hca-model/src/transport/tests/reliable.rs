//! RC on a fabric without faults.

use mlx5_prm::contexts::{ads, qpc};
use mlx5_prm::datapath::{CqeOpcode, FmCeSe, SendOpcode};
use mlx5_prm::event::EventType;
use mlx5_prm::value::{AccessFlags, QpState};

use super::super::state::{Mixed, Payload, Piece, Rare, Sge, Sges, Wqe};
use super::bed::{Bed, Handle, Options, pattern};
use super::requests::Request;
use crate::meter::Budget;

/// Sizes around the MTU, and some that are not.
fn sizes(mtu: usize) -> Vec<usize> {
    vec![
        0,
        1,
        3,
        4,
        5,
        mtu - 1,
        mtu,
        mtu + 1,
        2 * mtu - 1,
        2 * mtu,
        2 * mtu + 1,
        4095,
        4096,
        4097,
        65_536,
        200_003,
    ]
}

#[test]
fn sends_of_all_sizes_at_every_mtu() {
    for mtu in 1..=5 {
        let mut bed = Bed::new(2);
        let (mut a, mut b) = bed.pair(&Options { mtu, ..Options::default() });
        let (from, lkey) = bed.buffer(0, 0x4_0000);
        let (to, rkey) = bed.buffer(1, 0x4_0000);
        for (n, len) in sizes(128 << mtu).into_iter().enumerate() {
            let data = pattern(1, n as u32, len);
            bed.guests[0].write(from, &data);
            bed.guests[1].write(to, &vec![0xee; len + 1]);
            let received = bed.receive(&mut b, &[(to, 0x4_0000, rkey)]);
            let segments: &[_] = if len == 0 { &[] } else { &[(from, len as u32, lkey)] };
            let sent = bed.send(&mut a, &Request::new(SendOpcode::SEND, segments));
            let at = bed.wait(&b);
            assert_eq!((at.opcode, at.counter, at.bytes), (CqeOpcode::RESP_SEND, received, len as u32));
            assert_eq!((at.qpn, at.user), (b.qpn, b.qpn ^ 0xabc));
            let done = bed.wait(&a);
            assert_eq!((done.opcode, done.counter, done.wqe_opcode), (CqeOpcode::REQ, sent, 0x0a));
            assert_eq!((done.qpn, done.user), (a.qpn, a.qpn ^ 0xabc));
            assert_eq!(bed.guests[1].read(to, len), data, "{len} bytes at {}", 128 << mtu);
            assert_eq!(bed.guests[1].read(to + len as u64, 1), [0xee], "nothing behind the message");
        }
        assert_eq!(bed.events(1), [], "nothing out of the ordinary");
    }
}

#[test]
fn writes_and_reads_of_all_sizes() {
    for mtu in [1, 3, 5] {
        let mut bed = Bed::new(2);
        let (mut a, b) = bed.pair(&Options { mtu, ..Options::default() });
        let (local, lkey) = bed.buffer(0, 0x8_0000);
        let (remote, rkey) = bed.buffer(1, 0x8_0000);
        for (n, len) in sizes(128 << mtu).into_iter().enumerate() {
            let data = pattern(2, n as u32, len);
            let offset = n as u64 * 7;
            bed.guests[0].write(local, &data);
            bed.guests[1].write(remote, &vec![0xee; len + 200]);
            let segments: &[_] = if len == 0 { &[] } else { &[(local, len as u32, lkey)] };
            bed.send(&mut a, &Request::new(SendOpcode::RDMA_WRITE, segments).to(remote + offset, rkey));
            let done = bed.wait(&a);
            assert_eq!((done.opcode, done.wqe_opcode), (CqeOpcode::REQ, 0x08));
            assert_eq!(bed.guests[1].read(remote + offset, len), data);
            assert_eq!(bed.guests[1].read(remote + offset + len as u64, 1), [0xee]);

            let back = local + 0x4_0000;
            bed.guests[0].write(back, &vec![0xdd; len + 1]);
            let segments: &[_] = if len == 0 { &[] } else { &[(back, len as u32, lkey)] };
            bed.send(&mut a, &Request::new(SendOpcode::RDMA_READ, segments).to(remote + offset, rkey));
            let done = bed.wait(&a);
            assert_eq!((done.opcode, done.wqe_opcode, done.bytes), (CqeOpcode::REQ, 0x10, len as u32));
            assert_eq!(bed.guests[0].read(back, len), data);
            assert_eq!(bed.guests[0].read(back + len as u64, 1), [0xdd]);
        }
        assert_eq!(bed.poll_cq(1, b.cqn), None, "the responder's consumer sees nothing of it");
    }
}

#[test]
fn scattered_and_gathered() {
    let mut bed = Bed::new(2);
    let (mut a, mut b) = bed.pair(&Options { mtu: 2, ..Options::default() });
    let (from, lkey) = bed.buffer(0, 0x1_0000);
    let (to, rkey) = bed.buffer(1, 0x1_0000);
    let data = pattern(3, 0, 3000);
    bed.guests[0].write(from, &data[..1]);
    bed.guests[0].write(from + 0x1ffe, &data[1..701]);
    bed.guests[0].write(from + 0x5000, &data[701..]);
    bed.receive(&mut b, &[(to + 3, 513, rkey), (to + 0x3001, 1, rkey), (to + 0x6ffd, 4000, rkey)]);
    let gather = [(from, 1, lkey), (from + 0x1ffe, 700, lkey), (from + 0x5000, 2299, lkey)];
    bed.send(&mut a, &Request::new(SendOpcode::SEND, &gather));
    assert_eq!(bed.wait(&b).bytes, 3000);
    let got = [
        bed.guests[1].read(to + 3, 513),
        bed.guests[1].read(to + 0x3001, 1),
        bed.guests[1].read(to + 0x6ffd, 2486),
    ];
    assert_eq!(got.concat(), data);
}

#[test]
fn immediate_solicited_inline_and_invalidate() {
    let mut bed = Bed::new(2);
    let (mut a, mut b) = bed.pair(&Options::default());
    let (to, rkey) = bed.buffer(1, 0x1000);
    let doomed = bed.make_key(1, to, 0x1000, to, AccessFlags::REMOTE_WRITE);
    for _ in 0..4 {
        bed.receive(&mut b, &[(to, 0x1000, rkey)]);
    }
    let mut request = Request::new(SendOpcode::SEND_IMM, &[]).immediate(0x1234_5678);
    request.inline = Some(pattern(4, 1, 100));
    request.flags = FmCeSe::CQ_UPDATE | FmCeSe::SOLICITED;
    bed.send(&mut a, &request);
    let got = bed.wait(&b);
    assert_eq!((got.opcode, got.immediate, got.bytes), (CqeOpcode::RESP_SEND_IMM, 0x1234_5678, 100));
    assert!(got.solicited);
    assert_eq!(bed.guests[1].read(to, 100), pattern(4, 1, 100));

    let mut request =
        Request::new(SendOpcode::RDMA_WRITE_IMM, &[]).to(to + 0x800, rkey).immediate(0xdead_beef);
    request.inline = Some(pattern(4, 2, 33));
    bed.send(&mut a, &request);
    let got = bed.wait(&b);
    assert_eq!((got.opcode, got.immediate, got.bytes), (CqeOpcode::RESP_WR_IMM, 0xdead_beef, 33));
    assert!(!got.solicited);
    assert_eq!(bed.guests[1].read(to + 0x800, 33), pattern(4, 2, 33));
    assert_eq!(bed.guests[1].read(to, 100), pattern(4, 1, 100), "the receive's own buffer stays as it is");

    bed.send(&mut a, &Request::new(SendOpcode::SEND_INVAL, &[]).immediate(doomed));
    let got = bed.wait(&b);
    assert_eq!((got.opcode, got.immediate), (CqeOpcode::RESP_SEND_INV, doomed));
    assert!(bed.hca(1).device.objects.mkeys.get(doomed).unwrap().free);
}

#[test]
fn unsignalled_work_is_told_by_the_next_signalled() {
    let mut bed = Bed::new(2);
    let (mut a, _) = bed.pair(&Options::default());
    let (from, lkey) = bed.buffer(0, 0x1000);
    let (to, rkey) = bed.buffer(1, 0x1000);
    let silent =
        Request::new(SendOpcode::RDMA_WRITE, &[(from, 64, lkey)]).to(to, rkey).flags(FmCeSe::empty());
    let mut last = 0;
    // Three times round the ring of 64 basic blocks.
    for round in 0..20 {
        for _ in 0..9 {
            bed.post(&mut a, &silent);
        }
        last = bed.send(&mut a, &Request::new(SendOpcode::NOP, &[]));
        let done = bed.wait(&a);
        assert_eq!((done.counter, done.wqe_opcode), (last, 0), "round {round}");
        assert_eq!(bed.poll_cq(0, a.cqn), None);
    }
    assert_eq!(last, 199);
}

#[test]
fn long_wqes_wrap_round_the_ring() {
    let mut bed = Bed::new(2);
    let (mut a, _) = bed.pair(&Options { log_sq: 4, ..Options::default() });
    let (to, rkey) = bed.buffer(1, 0x1000);
    for n in 0..40 {
        // 5 basic blocks: every place in the ring of 16 is a beginning once.
        let mut request = Request::new(SendOpcode::RDMA_WRITE, &[]).to(to, rkey);
        request.inline = Some(pattern(5, n, 260));
        bed.send(&mut a, &request);
        assert_eq!(bed.wait(&a).opcode, CqeOpcode::REQ);
        assert_eq!(bed.guests[1].read(to, 260), pattern(5, n, 260), "{n}");
    }
}

#[test]
fn atomics_in_both_byte_orders() {
    for host_order in [false, true] {
        let mut bed = Bed::new(2);
        if host_order {
            for node in 0..2 {
                let mut wanted = vec![0; 256];
                mlx5_prm::caps::atomic_caps::atomic_req_8B_endianness_mode.set(&mut wanted, 1u8);
                bed.hca(node).device.caps.set_atomic(&wanted).unwrap();
            }
        }
        let bytes = |value: u64| if host_order { value.to_le_bytes() } else { value.to_be_bytes() };
        let (mut a, _) = bed.pair(&Options::default());
        let (local, lkey) = bed.buffer(0, 0x1000);
        let (remote, rkey) = bed.buffer(1, 0x1000);
        bed.guests[1].write(remote + 8, &bytes(100));
        let mut add = Request::new(SendOpcode::ATOMIC_FA, &[(local, 8, lkey)]).to(remote + 8, rkey);
        add.atomic = (23, 0);
        bed.send(&mut a, &add);
        assert_eq!(bed.wait(&a).bytes, 8);
        assert_eq!(bed.guests[0].read(local, 8), bytes(100));
        assert_eq!(bed.guests[1].read(remote + 8, 8), bytes(123));
        for (compare, swap, then) in [(5, 6, 123), (123, 77, 77)] {
            let mut cas = Request::new(SendOpcode::ATOMIC_CS, &[(local, 8, lkey)]).to(remote + 8, rkey);
            cas.atomic = (swap, compare);
            bed.send(&mut a, &cas);
            bed.wait(&a);
            assert_eq!(bed.guests[0].read(local, 8), bytes(123));
            assert_eq!(bed.guests[1].read(remote + 8, 8), bytes(then));
        }
    }
}

#[test]
fn a_fence_waits_for_reads() {
    let mut bed = Bed::new(2);
    let (mut a, mut b) = bed.pair(&Options::default());
    let (local, lkey) = bed.buffer(0, 0x4_0000);
    let (remote, rkey) = bed.buffer(1, 0x4_0000);
    bed.guests[1].write(remote, &pattern(6, 0, 0x4_0000));
    // A read whose result is sent back by the next WQE: only a fence makes that right.
    for round in 0..5u32 {
        bed.receive(&mut b, &[(remote, 0x4_0000, rkey)]);
        let fresh = pattern(6, round + 1, 0x3_0000);
        bed.guests[1].write(remote, &fresh);
        bed.guests[0].write(local, &vec![0; 0x3_0000]);
        let read = Request::new(SendOpcode::RDMA_READ, &[(local, 0x3_0000, lkey)]).to(remote, rkey);
        bed.post(&mut a, &read.flags(FmCeSe::empty()));
        let send = Request::new(SendOpcode::SEND, &[(local, 0x3_0000, lkey)]);
        bed.send(&mut a, &send.flags(FmCeSe::CQ_UPDATE | FmCeSe::FENCE));
        bed.wait(&b);
        bed.wait(&a);
        assert_eq!(bed.guests[1].read(remote, 0x3_0000), fresh);
    }
}

#[test]
fn more_reads_than_may_be_outstanding() {
    for (log_sra_max, log_rra_max) in [(0, 0), (2, 2), (0, 4)] {
        let mut bed = Bed::new(2);
        let (mut a, _) = bed.pair(&Options { mtu: 1, log_sra_max, log_rra_max, ..Options::default() });
        let (local, lkey) = bed.buffer(0, 0x1_0000);
        let (remote, rkey) = bed.buffer(1, 0x1_0000);
        bed.guests[1].write(remote, &pattern(7, 0, 0x1_0000));
        for i in 0..32 {
            let request = Request::new(SendOpcode::RDMA_READ, &[(local + i * 2048, 2048, lkey)]);
            bed.post(&mut a, &request.to(remote + i * 2048, rkey));
        }
        bed.ring(&a);
        for i in 0..32 {
            assert_eq!(bed.wait(&a).counter, i);
        }
        assert_eq!(bed.guests[0].read(local, 0x1_0000), pattern(7, 0, 0x1_0000));
        assert_eq!(bed.counters(0).retransmitted, 0);
    }
}

#[test]
fn the_first_request_establishes_communication() {
    let mut bed = Bed::new(2);
    let (mut a, mut b) = bed.pair(&Options::default());
    bed.qp(&b).enter(QpState::RTR);
    let (to, rkey) = bed.buffer(1, 0x1000);
    for _ in 0..2 {
        bed.receive(&mut b, &[(to, 0x1000, rkey)]);
        bed.send(&mut a, &Request::new(SendOpcode::SEND, &[]));
        bed.wait(&b);
    }
    assert_eq!(bed.events(1), [(EventType::COMM_EST, b.qpn)], "once");
}

#[test]
fn loopback_to_the_own_port() {
    let mut bed = Bed::new(1);
    let (mut a, mut b) = bed.pair_on(0, 0, &Options::default());
    let (from, lkey) = bed.buffer(0, 0x1_0000);
    let (to, rkey) = bed.buffer(0, 0x1_0000);
    let data = pattern(8, 0, 50_000);
    bed.guests[0].write(from, &data);
    bed.receive(&mut b, &[(to, 0x1_0000, rkey)]);
    let sent = bed.world.medium.fabric().counters().sent;
    bed.send(&mut a, &Request::new(SendOpcode::SEND, &[(from, 50_000, lkey)]));
    assert_eq!(bed.wait(&b).bytes, 50_000);
    assert_eq!(bed.wait(&a).opcode, CqeOpcode::REQ);
    assert_eq!(bed.guests[0].read(to, 50_000), data);
    assert_eq!(bed.world.medium.fabric().counters().sent, sent, "nothing on the wire");
    // Forced loopback needs neither LID nor link.
    bed.world.set_cable(0, false);
    for qp in [&a, &b] {
        bed.qp(qp).reconfigure(|context| {
            let path = qpc::primary_address_path.of_mut(context);
            ads::fl.set(path, 1u32);
            ads::rlid.set(path, 0u32);
        });
    }
    bed.receive(&mut b, &[(to, 0x1_0000, rkey)]);
    bed.send(&mut a, &Request::new(SendOpcode::SEND, &[(from, 9, lkey)]));
    assert_eq!(bed.wait(&b).bytes, 9);
}

#[test]
fn many_pairs_share_the_link_fairly() {
    let mut bed = Bed::new(2);
    let (from, lkey) = bed.buffer(0, 0x10_0000);
    let (to, rkey) = bed.buffer(1, 0x10_0000);
    let mut pairs: Vec<_> = (0..8).map(|_| bed.pair(&Options::default()).0).collect();
    for pair in &mut pairs {
        bed.send(pair, &Request::new(SendOpcode::RDMA_WRITE, &[(from, 0x10_0000, lkey)]).to(to, rkey));
    }
    let first = bed.wait(&pairs[0].clone());
    assert_eq!(first.opcode, CqeOpcode::REQ);
    let start = bed.now;
    for pair in &pairs[1..] {
        bed.wait(pair);
    }
    let spread = bed.now - start;
    assert!(spread < 200_000, "the last one came {spread} ns after the first");
}

#[test]
fn draining_finishes_what_is_begun() {
    let mut bed = Bed::new(2);
    let (mut a, _) = bed.pair(&Options::default());
    let (from, lkey) = bed.buffer(0, 0x1_0000);
    let (to, rkey) = bed.buffer(1, 0x1_0000);
    let write = Request::new(SendOpcode::RDMA_WRITE, &[(from, 0x1_0000, lkey)]).to(to, rkey);
    bed.send(&mut a, &write);
    bed.step();
    bed.modify(&a, QpState::SQ_DRAINING);
    bed.send(&mut a, &write);
    assert_eq!(bed.wait(&a).counter, 0);
    bed.run_until("drained", |bed| bed.event(0) == Some((EventType::SQ_DRAINED, a.qpn)));
    bed.run_for(1_000_000);
    assert_eq!(bed.poll_cq(0, a.cqn), None, "what was posted meanwhile waits");
    bed.modify(&a, QpState::RTS);
    assert_eq!(bed.wait(&a).counter, 1);
}

#[test]
fn reading_peers_do_not_starve_requests() {
    let mut bed = Bed::new(2);
    let (mut a, mut b) = bed.pair(&Options { log_sra_max: 4, log_rra_max: 4, ..Options::default() });
    let (from, lkey) = bed.buffer(0, 0x10_0000);
    let (to, rkey) = bed.buffer(1, 0x10_0000);
    for _ in 0..16 {
        bed.post(&mut a, &Request::new(SendOpcode::RDMA_READ, &[(from, 0x10_0000, lkey)]).to(to, rkey));
    }
    bed.ring(&a);
    bed.step();
    bed.step();
    let write = Request::new(SendOpcode::RDMA_WRITE, &[(to, 0x1_0000, rkey)]).to(from, lkey);
    bed.send(&mut b, &write);
    assert_eq!(bed.wait(&b).syndrome, 0);
    let done = core::iter::from_fn(|| bed.poll_cq(0, a.cqn)).count();
    assert!(done < 10, "{done} of sixteen long reads were done before one short write");
}

#[test]
fn a_function_level_reset_is_noticed_by_the_subnet_manager() {
    let mut bed = Bed::new(2);
    let (mut a, _) = bed.pair(&Options { retry_count: 1, ack_timeout: 8, ..Options::default() });
    let lid = bed.hca(1).device.port.lid;
    let start = bed.now;
    bed.hca(1).reset();
    assert_eq!(bed.hca(1).device.port.lid, 0);
    bed.send(&mut a, &Request::new(SendOpcode::RDMA_WRITE, &[]));
    bed.run_until("active again", |bed| bed.hca(1).device.port.is_active());
    assert!(bed.now - start < 1_000_000, "{} ns", bed.now - start);
    assert_eq!(bed.hca(1).device.port.lid, lid, "the same LID again");
    assert_eq!(bed.wait(&a).syndrome, 0x15, "the connection is gone with the reset");
}

#[test]
fn a_slow_receiver_is_not_flooded() {
    // A receiver that posts four receives at a time, late. Each of them takes one message and none is sent in vain but
    // those that ask whether there is a receive again.
    let mut bed = Bed::new(2);
    let (mut a, mut b) = bed.pair(&Options { mtu: 3, min_rnr_nak: 1, ..Options::default() });
    let (from, lkey) = bed.buffer(0, 0x4000);
    let (to, rkey) = bed.buffer(1, 0x4000);
    let mut arrived = 0;
    bed.guests[0].write(from, &pattern(1, 1, 0x4000));
    for _ in 0..60 {
        bed.post(&mut a, &Request::new(SendOpcode::SEND, &[(from, 0x1000, lkey)]));
    }
    bed.ring(&a);
    while arrived < 60 {
        for _ in 0..4 {
            bed.receive(&mut b, &[(to, 0x4000, rkey)]);
        }
        for _ in 0..4 {
            let got = bed.wait(&b);
            assert_eq!((got.syndrome, got.bytes), (0, 0x1000));
            arrived += 1;
        }
        bed.run_for(300_000);
    }
    let sent = bed.counters(0);
    assert_eq!(sent.rnr_naks_received, bed.counters(1).rnr_naks_sent);
    assert!(sent.rnr_naks_received > 20, "it was put to the test: {}", sent.rnr_naks_received);
    assert!(
        sent.retransmitted <= sent.rnr_naks_received * 4 + 240,
        "{} packets again for {} of RNR",
        sent.retransmitted,
        sent.rnr_naks_received
    );
}

#[test]
fn memory_for_requests_comes_when_they_do_and_without_it_they_go_on() {
    for (memory, most) in [(1 << 20, 256), (100, 8)] {
        let mut bed = Bed::new(2);
        let (mut a, mut b) =
            bed.pair(&Options { log_sq: 9, rnr_retry: 7, min_rnr_nak: 1, ..Options::default() });
        bed.hca(0).device.budget = Budget::new(memory);
        // One that nobody takes yet, and many behind it that take no packet.
        bed.post(&mut a, &Request::new(SendOpcode::SEND, &[]));
        for _ in 0..400 {
            bed.post(&mut a, &Request::new(SendOpcode::NOP, &[]));
        }
        bed.ring(&a);
        bed.run_for(1_000_000);
        assert_eq!(bed.qp(&a).transport.requester.wqes.len(), most);
        let held = bed.hca(0).device.budget.held();
        assert_eq!(held > 256 << 8, most == 256, "{held} bytes");
        bed.receive(&mut b, &[]);
        for counter in 0..401 {
            let done = bed.wait(&a);
            assert_eq!((done.syndrome, done.counter), (0, counter));
        }
        // A reset gives it back.
        bed.modify(&a, QpState::RST);
        assert_eq!(bed.hca(0).device.budget.held(), 0);
        assert!(bed.qp(&a).memory() < 256 << 8);
    }
}

/// Host memory of a QP's requests under way.
fn requests(bed: &mut Bed, qp: &Handle) -> u64 {
    let wqes = &bed.qp(qp).transport.requester.wqes;
    let payload = |wqe: &Wqe| match &wqe.payload {
        Payload::Gather(Sges::Few(..)) => 0,
        Payload::Gather(Sges::Many(list)) => list.capacity() * size_of::<Sge>(),
        Payload::Inline(data) => data.capacity(),
        Payload::Mixed(mixed) => {
            size_of::<Mixed>() + mixed.inline.capacity() + mixed.pieces.capacity() * size_of::<Piece>()
        }
    };
    // Each may have the parts that few have.
    let rare = wqes.len() * size_of::<Rare>();
    (wqes.capacity() * size_of::<Wqe>() + rare + wqes.iter().map(payload).sum::<usize>()) as u64
}

#[test]
fn requests_under_way_take_no_more_memory_than_is_held_for_them() {
    // Lists of these lengths, and where half of the data is inline.
    for (segments, inline) in [(60, None), (35, None), (17, None), (3, None), (40, Some(300)), (2, Some(8))] {
        for (memory, most) in [(1 << 20, 256), (100, 16)] {
            let what = format!("{segments} segments, {inline:?} in {memory}");
            let mut bed = Bed::new(2);
            let options = Options { log_sq: 9, rnr_retry: 7, min_rnr_nak: 1, ..Options::default() };
            let (mut a, mut b) = bed.pair(&options);
            bed.hca(0).device.budget = Budget::new(memory);
            let (from, key) = bed.buffer(0, 64);
            let mut request = Request::new(SendOpcode::SEND, &vec![(from, 1, key); segments]);
            request.inline = inline.map(|len| vec![7; len]);
            let mut count = 0u16;
            while a.posted <= 512 - 16 {
                bed.post(&mut a, &request);
                count += 1;
            }
            let blocks = a.posted / count;
            bed.ring(&a);
            bed.run_for(1_000_000);
            let under_way = bed.qp(&a).transport.queue.under_way();
            let room = if most == 16 { blocks.max(8) } else { 256 };
            // No more packets than that are on their way.
            assert_eq!(under_way, (room / blocks).min(129) * blocks, "{what}");
            let used = requests(&mut bed, &a);
            let held = bed.qp(&a).transport.requests_memory(512);
            assert!(used <= held, "{what}: {used} of {held} bytes");
            let (to, key) = bed.buffer(1, 4096);
            for counter in 0..count {
                bed.receive(&mut b, &[(to, 4096, key)]);
                let done = bed.wait(&a);
                assert_eq!((done.syndrome, done.counter), (0, counter * blocks), "{what}");
            }
        }
    }
}

#[test]
fn rooms_for_requests_leave_a_quarter_to_others() {
    let mut bed = Bed::new(2);
    let mut pairs = Vec::new();
    for _ in 0..8 {
        pairs.push(bed.pair(&Options { log_sq: 9, min_rnr_nak: 1, ..Options::default() }));
    }
    bed.hca(0).device.budget = Budget::new(5 * (256 << 9));
    for (a, _) in &mut pairs {
        bed.post(a, &Request::new(SendOpcode::SEND, &[]));
        for _ in 0..20 {
            bed.post(a, &Request::new(SendOpcode::NOP, &[]));
        }
        bed.ring(a);
    }
    bed.run_for(1_000_000);
    let budget = bed.hca(0).device.budget;
    assert!((budget.limit() / 2..=budget.limit() * 3 / 4).contains(&budget.held()), "{budget:?}");
    for (a, b) in &mut pairs {
        bed.receive(b, &[]);
        for counter in 0..21 {
            assert_eq!(bed.wait(a).counter, counter);
        }
    }
}

//! Unreliable connections: whole messages arrive, or nothing of them is told.

use mlx5_prm::contexts::qpc;
use mlx5_prm::datapath::{CqeOpcode, SendOpcode};
use mlx5_prm::event::EventType;
use mlx5_prm::status::CqeSyndrome;
use mlx5_prm::value::{AccessFlags, QpState, ServiceType};

use super::bed::{Bed, Handle, Options, pattern};
use super::requests::Request;

fn pair(bed: &mut Bed) -> (Handle, Handle) {
    bed.pair_of(ServiceType::UC, 0, 1, &Options { mtu: 3, ..Options::default() })
}

#[test]
fn messages_of_every_length_and_kind() {
    let mut bed = Bed::new(2);
    let (mut a, mut b) = pair(&mut bed);
    let (from, lkey) = bed.buffer(0, 0x1_0000);
    let (to, rkey) = bed.buffer(1, 0x1_0000);
    let before = bed.counters(0).packets_received;
    for (n, len) in [0, 1, 1023, 1024, 1025, 5000, 0xffff].into_iter().enumerate() {
        let data = pattern(4, n as u32, len);
        bed.guests[0].write(from, &data);
        let segments = if len == 0 { vec![] } else { vec![(from, len as u32, lkey)] };
        let slot = bed.receive(&mut b, &[(to, 0x1_0000, rkey)]);
        let opcode = if n % 2 == 0 { SendOpcode::SEND } else { SendOpcode::SEND_IMM };
        bed.send(&mut a, &Request::new(opcode, &segments).immediate(n as u32 + 7));
        let sent = bed.wait(&a);
        assert_eq!((sent.opcode, sent.wqe_opcode), (CqeOpcode::REQ, opcode.0));
        let got = bed.wait(&b);
        let expected = if n % 2 == 0 { CqeOpcode::RESP_SEND } else { CqeOpcode::RESP_SEND_IMM };
        assert_eq!((got.opcode, got.bytes, got.counter), (expected, len as u32, slot));
        assert!((n % 2 == 0) || got.immediate == n as u32 + 7);
        assert_eq!(bed.guests[1].read(to, len), data);
        // The same by write; with immediate data the receiver learns of it.
        bed.guests[1].write(to, &vec![0; len]);
        bed.receive(&mut b, &[]);
        let write = Request::new(SendOpcode::RDMA_WRITE_IMM, &segments).to(to, rkey).immediate(99);
        bed.send(&mut a, &write);
        assert_eq!(bed.wait(&a).syndrome, 0);
        let got = bed.wait(&b);
        assert_eq!((got.opcode, got.bytes, got.immediate), (CqeOpcode::RESP_WR_IMM, len as u32, 99));
        assert_eq!(bed.guests[1].read(to, len), data);
    }
    assert_eq!(bed.counters(0).packets_received, before, "nothing is acknowledged");
    assert_eq!(bed.counters(0).retransmitted, 0);
}

#[test]
fn what_cannot_be_taken_is_dropped_in_silence() {
    let mut bed = Bed::new(2);
    let (mut a, mut b) = pair(&mut bed);
    let (from, lkey) = bed.buffer(0, 0x4000);
    let (to, rkey) = bed.buffer(1, 0x4000);
    let send = |len: u32| Request::new(SendOpcode::SEND, &[(from, len, lkey)]);
    // No receive; too long for it (it stays for the next); a key that does not exist, does not reach, does not allow.
    bed.send(&mut a, &send(3000));
    assert_eq!(bed.wait(&a).syndrome, 0);
    bed.run_for(100_000);
    let only = bed.receive(&mut b, &[(to, 2000, rkey)]);
    let guarded = bed.make_key(1, to, 0x1000, to, AccessFlags::REMOTE_READ);
    for (len, to, key) in [(3000, 0, 0), (8, to, 0x123), (8, to + 0x3ffc, rkey), (8, to, guarded)] {
        let write = Request::new(SendOpcode::RDMA_WRITE, &[(from, len, lkey)]).to(to, key);
        let request = if key == 0 { send(len) } else { write };
        bed.send(&mut a, &request);
        assert_eq!(bed.wait(&a).syndrome, 0, "the sender never learns of it");
    }
    bed.run_for(100_000);
    assert_eq!(bed.poll_cq(1, b.cqn), None);
    assert_eq!(bed.events(1), []);
    assert_eq!(bed.counters(1).messages_dropped, 5);
    assert_eq!(bed.qp(&b).state(), QpState::RTS);
    bed.guests[0].write(from, &pattern(1, 1, 1500));
    bed.send(&mut a, &send(1500));
    let got = bed.wait(&b);
    assert_eq!((got.counter, got.bytes), (only, 1500));
    assert_eq!(bed.guests[1].read(to, 1500), pattern(1, 1, 1500));
    // Remote writes must be allowed by the QP too.
    bed.allow(&b, &[qpc::rre, qpc::rae], 1);
    bed.send(&mut a, &Request::new(SendOpcode::RDMA_WRITE, &[(from, 8, lkey)]).to(to, rkey));
    bed.run_for(100_000);
    assert_eq!(bed.counters(1).messages_dropped, 6);
}

#[test]
fn lost_packets_cost_their_messages_only() {
    let mut bed = Bed::with_ram(2, 64 << 20);
    let options = Options { mtu: 3, log_rq: 9, log_sq: 9, ..Options::default() };
    let (mut a, mut b) = bed.pair_of(ServiceType::UC, 0, 1, &options);
    let (from, lkey) = bed.buffer(0, 0x1000 * 200);
    let (to, rkey) = bed.buffer(1, 0x1000 * 400);
    for slot in 0..400u64 {
        bed.receive(&mut b, &[(to + slot * 0x1000, 0x1000, rkey)]);
    }
    bed.faults("loss=5%", 77);
    for n in 0..200u32 {
        let at = from + u64::from(n) * 0x1000;
        bed.guests[0].write(at, &pattern(9, n, 3500));
        bed.send(&mut a, &Request::new(SendOpcode::SEND_IMM, &[(at, 3500, lkey)]).immediate(n));
    }
    bed.run_for(20_000_000);
    let (mut arrived, mut last) = (0, None);
    while let Some(got) = bed.poll_cq(1, b.cqn) {
        assert_eq!((got.opcode, got.bytes), (CqeOpcode::RESP_SEND_IMM, 3500));
        assert_eq!(u32::from(got.counter), arrived, "a dropped message leaves its receive to the next");
        assert!(last.is_none_or(|last| got.immediate > last), "in order");
        last = Some(got.immediate);
        let data = bed.guests[1].read(to + u64::from(got.counter) * 0x1000, 3500);
        assert_eq!(data, pattern(9, got.immediate, 3500), "message {}", got.immediate);
        arrived += 1;
    }
    assert!((120..195).contains(&arrived), "{arrived} of 200 messages of 4 packets at 5 % loss");
    assert_eq!(bed.qp(&b).state(), QpState::RTS);
}

#[test]
fn errors_of_ones_own() {
    let mut bed = Bed::new(2);
    let (mut a, mut b) = pair(&mut bed);
    let (from, lkey) = bed.buffer(0, 0x1000);
    let (to, rkey) = bed.buffer(1, 0x1000);
    // What an unreliable connection does not have stops its send queue, not the receives.
    let bad = bed.send(&mut a, &Request::new(SendOpcode::RDMA_READ, &[(from, 8, lkey)]).to(to, rkey));
    let got = bed.wait(&a);
    assert_eq!((got.counter, got.syndrome), (bad, CqeSyndrome::LOCAL_QP_OP_ERR.0));
    assert_eq!(bed.qp(&a).state(), QpState::SQER);
    let flushed = bed.send(&mut a, &Request::new(SendOpcode::SEND, &[(from, 8, lkey)]));
    let got = bed.wait(&a);
    assert_eq!((got.counter, got.syndrome), (flushed, CqeSyndrome::WR_FLUSH_ERR.0));
    let slot = bed.receive(&mut a, &[(from, 0x1000, lkey)]);
    bed.send(&mut b, &Request::new(SendOpcode::SEND, &[(to, 10, rkey)]));
    let got = bed.wait(&a);
    assert_eq!((got.opcode, got.counter), (CqeOpcode::RESP_SEND, slot));
    // Half of a message is out when its second page turns out to be nobody's; after recovery numbering is whole again.
    bed.modify(&a, QpState::RTS);
    let half = bed.send(&mut a, &Request::new(SendOpcode::SEND, &[(from, 2048, lkey), (from, 2048, 0x999)]));
    let got = bed.wait(&a);
    assert_eq!((got.counter, got.syndrome), (half, CqeSyndrome::LOCAL_PROT_ERR.0));
    bed.modify(&a, QpState::RTS);
    bed.receive(&mut b, &[(to, 0x1000, rkey)]);
    bed.send(&mut a, &Request::new(SendOpcode::SEND, &[(from, 8, lkey)]));
    assert_eq!(bed.wait(&a).syndrome, 0);
    // A receive with a bad key is the receiver's own mistake: it stops.
    let mut got = bed.wait(&b);
    while got.opcode == CqeOpcode::REQ {
        got = bed.wait(&b);
    }
    assert_eq!(got.opcode, CqeOpcode::RESP_SEND);
    let slot = bed.receive(&mut b, &[(to, 100, 0x777)]);
    bed.send(&mut a, &Request::new(SendOpcode::SEND, &[(from, 8, lkey)]));
    let got = bed.wait(&b);
    assert_eq!(
        (got.opcode, got.syndrome, got.counter),
        (CqeOpcode::RESP_ERR, CqeSyndrome::LOCAL_PROT_ERR.0, slot)
    );
    assert_eq!(bed.qp(&b).state(), QpState::ERR);
    assert_eq!(bed.events(1).iter().filter(|event| event.0 == EventType::WQ_CATAS_ERROR).count(), 0);
}

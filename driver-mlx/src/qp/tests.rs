use super::*;
use crate::completion::{ReceiveOpcode, Received};
use crate::config::{Access, QpConfig};
use crate::control;
use crate::cq::{Cq, Cqe};
use crate::path::Path;
use crate::testing::{Recorder, bytes, epoch, kept, memory, slots};
use crate::types::{CqNumber, LKey, Lid, Pd, QKey, RKey, ServiceLevel};
use mlx5_prm::datapath::wqe_ctrl_seg;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::vec;

mod oracle;

const QPN: u32 = 0x12_3456;
const DOORBELL: usize = 0x10 * 4096 + 0x800;

struct Bench {
    qp: Qp<Recorder>,
    geometry: QpGeometry,
    memory: DmaMemory,
    record: DmaMemory,
    bar: Recorder,
    cq: Cq<Recorder>,
    cq_memory: DmaMemory,
    completions: u32,
}

impl Bench {
    fn new(service: Service, send: u32, recv: u32, blueflame: usize) -> Self {
        Self::with_inline(service, send, recv, blueflame, false)
    }

    fn with_inline(service: Service, send: u32, recv: u32, blueflame: usize, inline_receive: bool) -> Self {
        let bar = Recorder::new();
        let head = if service == Service::Rc { 2 } else { 4 };
        let geometry = QpGeometry::new(send, recv, head + 4, 3, QpGeometry::WQEBB).expect("fits");
        let rings = memory(geometry.ring_bytes());
        let record = memory(64);
        let beside = (slots(geometry.send_wqebbs()), geometry.receives().map(slots));
        let config = QpConfig { service, inline_receive, ..QpConfig::rc(Pd::default(), CqNumber::new(2)) };
        let context = QpContext {
            config,
            port: 1,
            pkey_index: 0,
            pkey_changed: false,
            access: Access::empty(),
            register: None,
        };
        let terminator = crate::types::LKey::new(0x100);
        let limits = QpLimits {
            max_send_sge: 4,
            max_inline: 60,
            max_recv_sge: 3,
            terminator,
            frames: FrameLimits { min_head: 18, checksums: true },
        };
        let handle = control::doorbell_register(bar, DOORBELL, (2 * blueflame).max(8));
        let register = SendRegister::new(handle, blueflame, epoch());
        let mut qp =
            Qp::new([rings, record], beside, &geometry, limits, register, context, Generation::default())
                .expect("fits");
        qp.set_numbers(QpNumber::new(QPN), QpNumber::new(QPN));
        let cq_memory = memory(64 * 64);
        let cq = Cq::new(
            [cq_memory, memory(64)],
            control::doorbell_register(bar, 0x20, 8),
            0,
            Generation::default(),
        )
        .expect("fits");
        Self { qp, geometry, memory: rings, record, bar, cq, cq_memory, completions: 0 }
    }

    /// `len` bytes of the send ring from WQEBB `block` on.
    fn sq(&self, block: usize, len: usize) -> vec::Vec<u8> {
        bytes(self.memory, self.geometry.rq_bytes + block * 64, len)
    }

    fn record(&self, word: usize) -> u32 {
        self.record.load_be32(word * 4).expect("inside")
    }

    /// A completion as the device writes it, taken from the queue.
    fn completion(&mut self, opcode: u8, qpn: u32, wqe_counter: u16) -> Cqe<'static> {
        self.complete(opcode, qpn, wqe_counter);
        self.cq.poll(kept).expect("sound").expect("there")
    }

    /// Posts a request and drops its doorbell.
    fn post(&mut self, op: SendOp, sges: &[Sge], wr_id: impl Into<WrId>, flags: SendFlags) {
        let _ = self.qp.post_send(op, sges, wr_id, flags).expect("room");
    }

    fn complete(&mut self, opcode: u8, qpn: u32, wqe_counter: u16) {
        let at = (self.completions % 64) as usize * 64;
        let owner = (self.completions / 64) as u8 & 1;
        self.completions += 1;
        let mut cqe = [0; 64];
        cqe[0x38..0x3c].copy_from_slice(&qpn.to_be_bytes());
        cqe[0x3c..0x3e].copy_from_slice(&wqe_counter.to_be_bytes());
        cqe[0x3f] = opcode << 4 | owner;
        self.cq_memory.write(at, &cqe).expect("inside");
    }
}

/// The `wr_id` of what was retired.
fn id(retired: Option<Completion>) -> Option<u64> {
    retired.map(|completion| completion.wr_id().id)
}

fn sge(address: u64, length: u32) -> Sge {
    Sge { address, length, lkey: LKey::new(0x1122_3344) }
}

#[test]
fn rdma_write_golden_bytes() {
    let mut bench = Bench::new(Service::Rc, 8, 8, 0);
    let op = SendOp::Write { raddr: 0x0102_0304_0506_0708, rkey: RKey::new(0xa1b2_c3d4) };
    let flags = SendFlags::SIGNALED | SendFlags::FENCE;
    // The SGE of length 0 is left out: in a work request it would mean 2 GiB.
    let sges = [sge(0x7000_0000_1000, 0x40), sge(5, 0), sge(0x2000, 0x1234)];
    let doorbell = bench.qp.post_send(op, &sges, 7, flags).expect("room");
    let golden = [
        [0x00, 0x00, 0x00, 0x08, 0x12, 0x34, 0x56, 0x04, 0, 0, 0, 0x48, 0, 0, 0, 0],
        [1, 2, 3, 4, 5, 6, 7, 8, 0xa1, 0xb2, 0xc3, 0xd4, 0, 0, 0, 0],
        [0, 0, 0, 0x40, 0x11, 0x22, 0x33, 0x44, 0, 0, 0x70, 0, 0, 0, 0x10, 0],
        [0, 0, 0x12, 0x34, 0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0, 0, 0, 0x20, 0],
    ];
    assert_eq!(bench.sq(0, 64), golden.concat());
    assert_eq!((bench.record(1), bench.bar.take().len()), (0, 0), "nothing is visible before ringing");
    bench.qp.ring(doorbell);
    assert_eq!(bench.record(1), 1);
    assert_eq!(bench.bar.take(), [(DOORBELL, 0x0000_0008_1234_5604)]);
}

#[test]
fn a_doorbell_rings_its_queue_and_generation_alone() {
    let mut bench = Bench::new(Service::Rc, 8, 8, 0);
    let mut other = Bench::new(Service::Rc, 8, 8, 0);
    other.qp.set_numbers(QpNumber::new(QPN + 1), QpNumber::new(QPN + 1));
    let post = |bench: &mut Bench| {
        bench.qp.post_send(SendOp::Send, &[sge(0x1000, 1)], 1, SendFlags::SIGNALED).expect("room")
    };
    let of_other = post(&mut other);
    let before = post(&mut bench);
    bench.qp.ring(of_other);
    assert_eq!((bench.record(1), bench.bar.take().len()), (0, 0), "another queue's");
    bench.qp.clear();
    let after = post(&mut bench);
    bench.qp.ring(before);
    assert_eq!((bench.record(1), bench.bar.take().len()), (0, 0), "from before the reset");
    bench.qp.ring(after);
    assert_eq!((bench.record(1), bench.bar.take().len()), (1, 1));
}

#[test]
fn an_older_doorbell_hands_over_what_is_newer_too() {
    let mut bench = Bench::new(Service::Rc, 8, 8, 0);
    let [first, second] = [1, 2].map(|wr_id| {
        bench.qp.post_send(SendOp::Send, &[sge(0x1000, 1)], wr_id, SendFlags::SIGNALED).expect("room")
    });
    bench.qp.ring(second);
    assert_eq!(bench.record(1), 2);
    bench.qp.ring(first);
    assert_eq!(bench.record(1), 2, "the record never goes back");
}

#[test]
fn one_doorbell_hands_over_a_batch() {
    let mut bench = Bench::new(Service::Rc, 8, 8, 0);
    let (one, other) = (sge(0x1000, 48), sge(0x2000, 0x1000));
    bench.post(SendOp::Send, &[one, other], 7, SendFlags::SIGNALED);
    let newest = bench.qp.post_send(SendOp::Send, &[one], 8, SendFlags::empty()).expect("room");
    let too_long = bench.qp.post_send(SendOp::Send, &[one, sge(0, 1 << 31)], 9, SendFlags::empty());
    assert_eq!(too_long, Err(PostError::TooLong));
    assert_eq!((bench.record(1), bench.bar.take().len()), (0, 0), "nothing is visible before ringing");
    let golden = [
        [0, 0, 0, 0x0a, 0x12, 0x34, 0x56, 3, 0, 0, 0, 8, 0, 0, 0, 0],
        [0, 0, 0, 48, 0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0, 0, 0, 0x10, 0],
        [0, 0, 0x10, 0, 0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0, 0, 0, 0x20, 0],
    ];
    assert_eq!(bench.sq(0, 48), golden.concat());
    assert_eq!(bench.sq(1, 16), [0, 0, 1, 0x0a, 0x12, 0x34, 0x56, 2, 0, 0, 0, 0, 0, 0, 0, 0]);
    bench.qp.ring(newest);
    assert_eq!((bench.record(1), bench.bar.take().len()), (2, 1));
}

#[test]
fn immediate_invalidate_read_and_nop() {
    let mut bench = Bench::new(Service::Rc, 8, 8, 0);
    let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
    bench.post(SendOp::SendImm(0x0a0b_0c0d), &[sge(0x10, 1)], 0, flags);
    bench.post(SendOp::SendInval(RKey::new(0x500)), &[], 0, SendFlags::empty());
    let read = SendOp::Read { raddr: 0x99, rkey: RKey::new(3) };
    bench.post(read, &[sge(0x10, 1)], 0, SendFlags::SIGNALED);
    let newest = bench.qp.post_send(SendOp::Nop, &[], 0, SendFlags::SIGNALED).expect("room");
    let ctrl = |block| bench.sq(block, 16);
    assert_eq!(ctrl(0), [0, 0, 0, 0x0b, 0x12, 0x34, 0x56, 2, 0, 0, 0, 0x0a, 0x0a, 0x0b, 0x0c, 0x0d]);
    assert_eq!(ctrl(1), [0, 0, 1, 0x01, 0x12, 0x34, 0x56, 1, 0, 0, 0, 0, 0, 0, 0x05, 0]);
    assert_eq!(ctrl(2), [0, 0, 2, 0x10, 0x12, 0x34, 0x56, 3, 0, 0, 0, 8, 0, 0, 0, 0]);
    assert_eq!(ctrl(3), [0, 0, 3, 0x00, 0x12, 0x34, 0x56, 1, 0, 0, 0, 8, 0, 0, 0, 0]);
    bench.qp.ring(newest);
    assert_eq!(bench.record(1), 4, "one ring for four posts");
    assert_eq!(bench.bar.take().len(), 1);
}

#[test]
fn inline_data_starts_after_its_length() {
    let mut bench = Bench::new(Service::Rc, 8, 0, 0);
    let data: vec::Vec<u8> = (1..=40).collect();
    let _ = bench.qp.post_inline(SendOp::Send, &data, 0, SendFlags::SIGNALED).expect("room");
    let wqe = bench.sq(0, 64);
    assert_eq!(wqe[7], 4, "control and 44 bytes in three octowords");
    assert_eq!(wqe[16..20], [0x80, 0, 0, 40]);
    assert_eq!(wqe[20..60], data);
    assert_eq!(wqe[60..], [0; 4]);
    let long = bench.qp.post_inline(SendOp::Send, &[0; 61], 0, SendFlags::SIGNALED);
    assert_eq!(long, Err(PostError::TooLong));
    let read = SendOp::Read { raddr: 0, rkey: RKey::new(0) };
    let read = bench.qp.post_inline(read, &[0], 0, SendFlags::SIGNALED);
    assert_eq!(read, Err(PostError::WrongService));
    assert_eq!(bench.qp.post_recv(&[], 0), Err(PostError::WrongService), "no receive queue");
}

#[test]
fn datagrams_carry_their_address() {
    let mut bench = Bench::new(Service::Ud { q_key: QKey::new(1) }, 8, 8, 0);
    let path = Path::InfiniBand {
        dlid: Lid::new(0x0021),
        sl: ServiceLevel::new(3),
        src_path_bits: 0,
        static_rate: 0,
        grh: None,
    };
    let to = AddressVector::new(&path, QpNumber::new(0x77), QKey::new(0x8001_0000), 1);
    let _ = bench.qp.post_ud(&to, SendOp::Send, &[sge(0x1000, 256)], 0, SendFlags::SIGNALED).expect("room");
    let wqe = bench.sq(0, 128);
    assert_eq!(wqe[..8], [0, 0, 0, 0x0a, 0x12, 0x34, 0x56, 5]);
    assert_eq!(wqe[16..32], [0x80, 0x01, 0, 0, 0, 0, 0, 0, 0x80, 0, 0, 0x77, 0x03, 0, 0, 0x21]);
    assert_eq!(wqe[32..64], [0; 32]);
    assert_eq!(wqe[64..68], [0, 0, 1, 0]);
    assert_eq!(bench.qp.send_outstanding(), 2);
    let refused = bench.qp.post_send(SendOp::Send, &[], 0, SendFlags::SIGNALED);
    assert_eq!(refused, Err(PostError::WrongService), "no address");
    let write = SendOp::Write { raddr: 0, rkey: RKey::new(0) };
    let refused = bench.qp.post_ud(&to, write, &[], 0, SendFlags::SIGNALED);
    assert_eq!(refused, Err(PostError::WrongService));
    let mut connected = Bench::new(Service::Rc, 8, 8, 0);
    let refused = connected.qp.post_ud(&to, SendOp::Send, &[], 0, SendFlags::SIGNALED);
    assert_eq!(refused, Err(PostError::WrongService));
}

#[test]
fn work_requests_wrap_at_the_end_of_the_ring() {
    let mut bench = Bench::new(Service::Rc, 2, 0, 0);
    assert_eq!(bench.geometry.sq_bytes, 256, "two of 96 bytes in wqebbs of 64");
    bench.post(SendOp::Send, &[], 1, SendFlags::SIGNALED);
    let four = [sge(1, 1), sge(2, 2), sge(3, 3), sge(4, 4)];
    bench.post(SendOp::Send, &four, 2, SendFlags::SIGNALED);
    let done = bench.completion(0, QPN, 1);
    assert_eq!(id(bench.qp.retire(&done)), Some(2));
    let doorbell = bench.qp.post_send(SendOp::Send, &four, 3, SendFlags::SIGNALED).expect("room");
    let (end, start) = (bench.sq(3, 64), bench.sq(0, 16));
    assert_eq!(end[..8], [0, 0, 3, 0x0a, 0x12, 0x34, 0x56, 5]);
    assert_eq!(end[16 + 3], 1);
    assert_eq!(start[3], 4, "the last SGE is at the start");
    bench.qp.ring(doorbell);
    assert_eq!(bench.record(1), 5);
    assert_eq!(bench.bar.take(), [(DOORBELL, 0x0000_030a_1234_5605)]);
}

/// Only entries that were written are posted again, with their names, and no more than the ring holds.
#[test]
fn receives_are_posted_again_as_they_were_written() {
    let mut bench = Bench::new(Service::Rc, 1, 4, 0);
    let repost = |qp: &mut Qp<_>, count| qp.receiver().expect("its own queue").repost(count);
    for wr_id in [11, 12] {
        bench.qp.post_recv(&[sge(1, 1)], wr_id).expect("room");
        assert!(bench.qp.flush_next(WorkQueue::Receive).is_some());
    }
    let posted = repost(&mut bench.qp, 3);
    assert_eq!(posted, 0, "two of four entries were written, the last of the three among them");
    for wr_id in [13, 14] {
        bench.qp.post_recv(&[sge(1, 1)], wr_id).expect("room");
    }
    assert_eq!((repost(&mut bench.qp, 9), bench.record(0)), (2, 6));
    for wr_id in [13, 14, 11, 12] {
        assert_eq!(bench.qp.flush_next(WorkQueue::Receive), Some(WrId::from(wr_id)));
    }
}

#[test]
fn receives_end_with_a_terminator() {
    let mut bench = Bench::new(Service::Rc, 1, 4, 0);
    assert_eq!(bench.geometry.rq_bytes, 4 * 64, "three sges take a stride of four");
    bench.qp.post_recv(&[sge(0x5000, 100), sge(0, 0), sge(0x6000, 50)], 11).expect("room");
    let golden = [
        [0, 0, 0, 100, 0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0, 0, 0, 0x50, 0],
        [0, 0, 0, 50, 0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0, 0, 0, 0x60, 0],
        [0, 0, 0, 0, 0, 0, 0x01, 0x00, 0, 0, 0, 0, 0, 0, 0, 0],
    ];
    assert_eq!(bytes(bench.memory, 0, 48), golden.concat());
    assert_eq!(bench.record(0), 1, "a receive is posted when its record says so");
    assert_eq!(bench.bar.take(), [], "there is no doorbell for receives");
    for wr_id in 12..15 {
        bench.qp.post_recv(&[sge(1, 1)], wr_id).expect("room");
    }
    assert_eq!(bench.qp.post_recv(&[], 15), Err(PostError::Full));
    assert_eq!(bench.qp.post_recv(&[sge(1, 1); 4], 15), Err(PostError::TooManySges));
    let mut sges = [sge(0, 0); 3];
    assert_eq!(bench.qp.posted_recv(0, &mut sges), Some((2, WrId::from(11))));
    assert_eq!(sges, [sge(0x5000, 100), sge(0x6000, 50), sge(0, 0)]);
    assert_eq!(bench.qp.posted_recv(3, &mut sges), Some((1, WrId::from(14))));
    assert_eq!(bench.qp.posted_recv(4, &mut sges), None);
    let first = bench.completion(2, QPN, 0);
    assert_eq!(id(bench.qp.retire(&first)), Some(11));
    let long = sge(1, 0x8000_0000);
    assert_eq!(bench.qp.post_recv(&[long], 15), Err(PostError::TooLong));
    let refused = bench.qp.post_send(SendOp::Send, &[long], 15, SendFlags::SIGNALED);
    assert_eq!(refused, Err(PostError::TooLong));
    assert_eq!((bench.record(0), bench.qp.send_outstanding()), (4, 0), "refused posts leave no trace");
}

#[test]
fn blueflame_alternates_halves_and_falls_back() {
    let mut bench = Bench::new(Service::Rc, 16, 0, 256);
    let post = |bench: &mut Bench, sges: &[Sge]| {
        bench.qp.post_send(SendOp::Send, sges, 0, SendFlags::SIGNALED).expect("room")
    };
    let doorbell = post(&mut bench, &[sge(0x11, 0x22)]);
    bench.qp.ring(doorbell);
    let writes = bench.bar.take();
    let ring = bench.sq(0, 64);
    assert_eq!(writes.len(), 8, "one block of eight quadwords");
    for (index, (offset, value)) in writes.into_iter().enumerate() {
        assert_eq!(offset, DOORBELL + index * 8);
        assert_eq!(value.to_be_bytes(), ring[index * 8..index * 8 + 8]);
    }
    let [older, newest] = [(); 2].map(|()| post(&mut bench, &[]));
    bench.qp.ring(newest);
    assert_eq!(bench.bar.take(), [(DOORBELL + 256, 0x0000_020a_1234_5601)], "two at once: doorbell only");
    bench.qp.ring(older);
    assert_eq!(bench.bar.take(), [], "nothing new to ring for");
    let doorbell = post(&mut bench, &[]);
    bench.qp.ring(doorbell);
    assert_eq!(bench.bar.take()[0], (DOORBELL, 0x0000_030a_1234_5601));
}

#[test]
fn impossible_completions_retire_nothing() {
    let mut bench = Bench::new(Service::Rc, 8, 8, 0);
    let five = [sge(1, 1); 4];
    for wr_id in 0..3 {
        bench.post(SendOp::Send, &five, wr_id, SendFlags::SIGNALED);
        bench.qp.post_recv(&[sge(1, 1)], 100 + wr_id).expect("room");
    }
    // Another QP; the middle of a work request; what was not posted; a receive out of order.
    for (opcode, qpn, counter) in [(0, QPN + 1, 0), (0, QPN, 1), (0, QPN, 6), (13, QPN, 0xffff), (2, QPN, 1)]
    {
        let wrong = bench.completion(opcode, qpn, counter);
        assert_eq!(id(bench.qp.retire(&wrong)), None, "{opcode} {qpn:#x} {counter}");
    }
    assert_eq!(bench.qp.spurious_completions(), 5);
    let last = bench.completion(0, QPN, 4);
    assert_eq!(id(bench.qp.retire(&last)), Some(2), "earlier ones go with it");
    assert_eq!(bench.qp.send_outstanding(), 0);
    assert_eq!(id(bench.qp.retire(&last)), None, "only once");
    for wr_id in 100..103 {
        let flushed = bench.completion(14, QPN, wr_id as u16 - 100);
        assert_eq!(id(bench.qp.retire(&flushed)), Some(wr_id));
    }
    let more = bench.completion(2, QPN, 3);
    assert_eq!(id(bench.qp.retire(&more)), None);
}

#[test]
fn wr_ids_and_tags_come_back() {
    let mut bench = Bench::new(Service::Rc, 8, 8, 0);
    let name = |n: u64| WrId { id: n, tag: !n << 8 };
    let five = [sge(1, 1); 4];
    for n in 0..4 {
        let sges = if n % 2 == 0 { &five[..] } else { &five[..1] };
        bench.post(SendOp::Send, sges, name(n), SendFlags::empty());
        bench.qp.post_recv(&five[..1], name(100 + n)).expect("room");
    }
    // They begin at WQEBBs 0, 2, 3, 5.
    assert_eq!(bench.qp.send_end(), 6);
    let third = bench.completion(0, QPN, 3);
    assert_eq!((bench.qp.peek(&third), bench.qp.end_of(&third)), (Some(name(2)), Some(5)));
    let retired = bench.qp.retire(&third).expect("outstanding");
    assert_eq!((retired.wr_id(), retired.count()), (name(2), 3));
    assert_eq!((bench.qp.peek(&third), bench.qp.end_of(&third)), (None, None));
    let fourth = bench.completion(0, QPN, 5);
    let retired = bench.qp.retire(&fourth).expect("outstanding");
    assert_eq!((retired.wr_id(), retired.count()), (name(3), 1));
    assert_eq!((bench.qp.retire(&fourth), bench.qp.spurious_completions()), (None, 1), "only once");
    assert_eq!((bench.qp.send_outstanding(), bench.qp.flush_next(WorkQueue::Send)), (0, None));
    bench.post(SendOp::Send, &five, name(4), SendFlags::empty());
    assert_eq!(bench.qp.flush_next(WorkQueue::Send), Some(name(4)));
    assert_eq!(bench.qp.flush_next(WorkQueue::Send), None);
    let received = bench.completion(2, QPN, 0);
    let retired = bench.qp.retire(&received).expect("outstanding");
    assert_eq!((retired.wr_id(), retired.count()), (name(100), 1));
    assert_eq!((0..4).map(|_| bench.qp.flush_next(WorkQueue::Receive)).last(), Some(None));
    assert_eq!((bench.qp.receive_outstanding(), bench.qp.spurious_completions()), (0, 1));
}

#[test]
fn the_common_calls_change_nothing_that_they_refuse() {
    const SPECIAL: u64 = 1 << 20;
    let mut bench = Bench::new(Service::Rc, 8, 8, 0);
    for (id, tag) in [(0, 0), (1, 0), (2, SPECIAL)] {
        bench.post(SendOp::Send, &[sge(1, 1)], WrId { id, tag }, SendFlags::SIGNALED);
    }
    bench.complete(0, QPN, 1);
    bench.complete(0, QPN, 2);
    bench.complete(13, QPN, 2);
    let Bench { qp, cq, .. } = &mut bench;
    // Of a later request than the oldest.
    assert_eq!(cq.poll_common(|cqe| qp.retire_common::<false>(cqe, SPECIAL)), Some(None));
    assert_eq!((qp.send_outstanding(), qp.spurious_completions()), (3, 0));
    let run = cq.poll_common(|cqe| qp.retire_common::<true>(cqe, SPECIAL)).flatten().expect("a run");
    assert_eq!((run.wr_id().id, run.count(), qp.send_outstanding()), (1, 2, 1));
    // Of a special request.
    assert_eq!(cq.poll_common(|cqe| qp.retire_common::<true>(cqe, SPECIAL)), Some(None));
    assert_eq!(id(cq.poll(|cqe| qp.retire(cqe)).expect("sound").flatten()), Some(2));
    // A failure is not common, and there is nothing behind it.
    assert_eq!(cq.poll_common(|_| -> Option<()> { panic!("looked at") }), Some(None));
    assert!(cq.poll(|_| ()).expect("sound").is_some());
    assert_eq!(cq.poll_common(|_| -> Option<()> { panic!("looked at") }), None);
    // Requests: atomics, empty SGEs.
    let fetch = SendOp::FetchAdd { raddr: 8, rkey: RKey::new(1), add: 1 };
    assert_eq!(qp.post_common(fetch, &[sge(8, 8)], 3, SendFlags::SIGNALED), None);
    assert_eq!(qp.post_common(SendOp::Send, &[sge(8, 0)], 3, SendFlags::SIGNALED), None);
    assert_eq!(qp.send_outstanding(), 0);
    assert!(qp.post_common(SendOp::Send, &[sge(8, 8); 4], 3, SendFlags::SIGNALED).is_some());
    assert_eq!(qp.send_outstanding(), 2);
}

#[test]
fn completions_say_what_happened() {
    let mut bench = Bench::new(Service::Rc, 8, 8, 0);
    bench.post(SendOp::Send, &[sge(1, 1)], 1, SendFlags::SIGNALED);
    let sent = bench.completion(0, 0x0a00_0000 | QPN, 0);
    let sent = bench.qp.retire(&sent).expect("outstanding");
    let opcode = mlx5_prm::datapath::SendOpcode::SEND;
    assert_eq!(sent, Completion::Sent(Sent { wr_id: 1.into(), opcode, count: 1 }));
    let opcodes = [
        ReceiveOpcode::WriteImm(0),
        ReceiveOpcode::Send,
        ReceiveOpcode::SendImm(0),
        ReceiveOpcode::SendInval(RKey::new(0)),
    ];
    for (at, opcode) in opcodes.into_iter().enumerate() {
        bench.qp.post_recv(&[sge(1, 1)], 7).expect("room");
        let cqe = bench.completion(1 + at as u8, QPN, at as u16);
        let received = Received { wr_id: 7.into(), opcode, length: 0 };
        assert_eq!(bench.qp.retire(&cqe), Some(Completion::Received(received)));
    }
    bench.qp.post_recv(&[sge(1, 1)], 8).expect("room");
    let cqe = bench.completion(14, QPN, 4);
    let Some(Completion::Failed(failed)) = bench.qp.retire(&cqe) else { panic!("it failed") };
    assert_eq!((failed.wr_id, failed.queue, failed.count), (8.into(), WorkQueue::Receive, 1));
}

/// The device reads the Ethernet segment after the control segment: flags, length, and the first bytes of the frame
/// from byte 14 of it on.
#[test]
fn frames_begin_in_the_request() {
    let mut bench = Bench::new(Service::RawPacket, 4, 1, 0);
    let post = |bench: &mut Bench, head: &[u8], rest: &[Sge]| {
        let doorbell = bench.qp.post_frame(head, rest, FrameChecksums::IP, 1, SendFlags::SIGNALED);
        doorbell.map(|doorbell| bench.qp.ring(doorbell))
    };
    assert_eq!(post(&mut bench, &[1; 17], &[sge(0x1000, 5)]), Err(PostError::TooShort));
    assert_eq!(post(&mut bench, &[1; MAX_FRAME_HEAD + 1], &[]), Err(PostError::TooLong));
    let head: vec::Vec<u8> = (1..=18).collect();
    assert_eq!(post(&mut bench, &head, &[sge(0x1000, 5)]), Ok(()));
    let wqe = bench.sq(0, 64);
    assert_eq!((wqe_ctrl_seg::ds.get32(&wqe), wqe_ctrl_seg::opcode.get32(&wqe)), (4, 0xa));
    assert_eq!((wqe[20], &wqe[28..30]), (0x40, &[0, 18][..]));
    assert_eq!(wqe[30..48], head);
    assert_eq!((&wqe[48..52], &wqe[56..64]), (&[0, 0, 0, 5][..], &[0, 0, 0, 0, 0, 0, 0x10, 0][..]));
    // A complete frame may be shorter.
    assert_eq!(post(&mut bench, &[1; 14], &[]), Ok(()));
    assert_eq!(post(&mut bench, &[1; MAX_FRAME_HEAD], &[]), Ok(()));
    assert_eq!(bench.qp.send_outstanding(), 4, "seven octowords are two WQEBBs");
}

#[test]
fn impossible_sizes_are_refused() {
    let sizes = |send, recv, octowords, sges| QpGeometry::new(send, recv, octowords, sges, QpGeometry::WQEBB);
    assert!(sizes(1 << 16, 0, 6, 1).is_none());
    assert!(sizes(1 << 14, 0, 16, 1).is_none(), "wqebbs, not requests, are counted in 16 bits");
    assert!(sizes(0, 1 << 16, 6, 1).is_none());
    assert!(sizes(u32::MAX, u32::MAX, usize::MAX, u32::MAX).is_none());
    assert_eq!(sizes(0, 0, 6, 1).map(|g| g.ring_bytes()), Some(0));
    assert_eq!(sizes(1, 1, 6, 1).map(|g| (g.rq_bytes, g.sq_bytes)), Some((64, 128)));
    let own_pages =
        QpGeometry::new(1, 8, 4, 1, QpGeometry::PAGE).map(|g| (g.receives(), g.rq_bytes, g.sq_bytes));
    assert_eq!(own_pages, Some((Some(256), 4096, 64)));
}

proptest! {
    /// Posts of any size, completions of any of them (signalled or not), over many laps of ring and counters: wr_ids come back
    /// in order, nothing overlaps, and the device can read every control segment where the index says.
    #[test]
    fn wr_ids_come_back_in_order(ops in prop::collection::vec((0u8..3, 0usize..5, 0usize..4), 0..400), start in 0u16..=u16::MAX) {
        let mut bench = Bench::new(Service::Rc, 6, 4, 0);
        let wqebbs = 1usize << bench.geometry.log_sq_size;
        // As if the counters had run for a while.
        bench.qp.sq.start_at(start);
        if let Some(rq) = &mut bench.qp.rq {
            rq.start_at(start);
        }
        let mut sends: VecDeque<(u64, u16)> = VecDeque::new();
        let mut receives: VecDeque<(u64, u16)> = VecDeque::new();
        let (mut head, mut free, mut received) = (start, wqebbs, start);
        let mut newest = None;
        for (step, (op, sges, pick)) in ops.into_iter().enumerate() {
            let wr_id = step as u64 * 3 + 1;
            match op {
                0 => {
                    let need = (1 + sges).div_ceil(4);
                    let list = vec![sge(step as u64, 1); sges];
                    let result = bench.qp.post_send(SendOp::Send, &list, wr_id, SendFlags::SIGNALED);
                    prop_assert_eq!(result.is_ok(), need <= free);
                    if let Ok(doorbell) = result {
                        newest = Some(doorbell);
                        let ctrl = bench.sq(usize::from(head) % wqebbs, 16);
                        prop_assert_eq!(wqe_ctrl_seg::wqe_index.get(&ctrl), u64::from(head));
                        prop_assert_eq!(wqe_ctrl_seg::ds.get(&ctrl), 1 + sges as u64);
                        sends.push_back((wr_id, head));
                        head = head.wrapping_add(need as u16);
                        free -= need;
                    }
                }
                1 if !sends.is_empty() => {
                    let pick = pick % sends.len();
                    let (wr_id, index) = sends[pick];
                    sends.drain(..=pick);
                    let done = bench.completion(0, QPN, index);
                    prop_assert_eq!(id(bench.qp.retire(&done)), Some(wr_id));
                    let tail = sends.front().map_or(head, |s| s.1);
                    free = wqebbs - usize::from(head.wrapping_sub(tail));
                    prop_assert_eq!(usize::from(bench.qp.send_outstanding()), wqebbs - free);
                }
                _ => {
                    if bench.qp.post_recv(&[sge(1, 1)], wr_id).is_ok() {
                        receives.push_back((wr_id, received));
                        received = received.wrapping_add(1);
                    } else {
                        prop_assert_eq!(receives.len(), 4);
                        if let Some((wr_id, index)) = receives.pop_front() {
                            let done = bench.completion(2, QPN, index);
                            prop_assert_eq!(id(bench.qp.retire(&done)), Some(wr_id));
                        }
                    }
                }
            }
        }
        if let Some(newest) = newest {
            bench.qp.ring(newest);
            prop_assert_eq!(bench.record(1), u32::from(head));
        }
        prop_assert_eq!(bench.qp.spurious_completions(), 0);
    }
}

#[test]
fn queues_move_between_threads() {
    fn is_send<T: Send>() {}
    is_send::<Qp<crate::MmioBar>>();
    is_send::<Cq<crate::MmioBar>>();
    is_send::<DmaMemory>();
}

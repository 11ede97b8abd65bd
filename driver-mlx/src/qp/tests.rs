use super::*;
use crate::config::{Access, QpConfig};
use crate::cq::{Completion, Cq, SendCompletion};
use crate::testing::{Recorder, bytes, memory};
use crate::types::{CqNumber, LKey, Lid, Path, Pd, QKey, RKey, ServiceLevel};
use mlx5_prm::datapath::wqe_ctrl_seg;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::vec;

const QPN: u32 = 0x12_3456;
const DOORBELL: usize = 0x10 * 4096 + 0x800;

struct Bench {
    qp: Qp<Recorder>,
    geometry: QpGeometry,
    memory: DmaMemory,
    bar: Recorder,
    cq: Cq<Recorder>,
    cq_memory: DmaMemory,
    completions: u32,
}

impl Bench {
    fn new(service: Service, send: u32, recv: u32, blueflame: usize) -> Self {
        let bar = Recorder::new();
        let head = if service == Service::Rc { 2 } else { 4 };
        let geometry = QpGeometry::new(send, recv, head + 4, 3).expect("fits");
        let memory = memory(geometry.total);
        let config = QpConfig { service, ..QpConfig::rc(Pd::new(1), CqNumber::new(2)) };
        let context = QpContext { config, port: 1, pkey_index: 0, access: Access::empty(), register: None };
        let limits = QpLimits { max_send_sge: 4, max_inline: 60, max_recv_sge: 3 };
        let doorbell = Doorbell { bar, offset: DOORBELL, blueflame };
        let mut qp = Qp::new(memory, &geometry, limits, doorbell, context).expect("fits");
        qp.set_number(QpNumber::new(QPN));
        let cq_memory = crate::testing::memory(64 * 64 + 64);
        let cq = Cq::new(cq_memory, 6, bar, 0).expect("fits");
        Self { qp, geometry, memory, bar, cq, cq_memory, completions: 0 }
    }

    /// `len` bytes of the send ring from basic block `block` on.
    fn sq(&self, block: usize, len: usize) -> vec::Vec<u8> {
        bytes(self.memory, self.geometry.rq_bytes + block * 64, len)
    }

    fn record(&self, word: usize) -> u32 {
        self.memory.load_be32(self.geometry.record + word * 4).expect("inside")
    }

    /// A completion as the device writes it, taken from the queue.
    fn completion(&mut self, opcode: u8, qpn: u32, wqe_counter: u16) -> Completion {
        self.complete(opcode, qpn, wqe_counter);
        self.cq.poll().expect("sound").expect("there")
    }

    /// The same for a success of the send queue, taken as what it is.
    fn sent(&mut self, wqe_counter: u16) -> SendCompletion {
        self.complete(0, QPN, wqe_counter);
        self.cq.poll_send().expect("there")
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

fn sge(address: u64, length: u32) -> Sge {
    Sge { address, length, lkey: LKey::new(0x1122_3344) }
}

#[test]
fn rdma_write_golden_bytes() {
    let mut bench = Bench::new(Service::Rc, 8, 8, 0);
    let op = SendOp::Write { raddr: 0x0102_0304_0506_0708, rkey: RKey::new(0xa1b2_c3d4) };
    let flags = SendFlags::SIGNALED | SendFlags::FENCE;
    // The piece of length 0 is left out: in a work request it would mean 2 GiB.
    let pieces = [sge(0x7000_0000_1000, 0x40), sge(5, 0), sge(0x2000, 0x1234)];
    bench.qp.post_send(op, &pieces, 7, flags).expect("room");
    let golden = [
        [0x00, 0x00, 0x00, 0x08, 0x12, 0x34, 0x56, 0x04, 0, 0, 0, 0x48, 0, 0, 0, 0],
        [1, 2, 3, 4, 5, 6, 7, 8, 0xa1, 0xb2, 0xc3, 0xd4, 0, 0, 0, 0],
        [0, 0, 0, 0x40, 0x11, 0x22, 0x33, 0x44, 0, 0, 0x70, 0, 0, 0, 0x10, 0],
        [0, 0, 0x12, 0x34, 0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0, 0, 0, 0x20, 0],
    ];
    assert_eq!(bench.sq(0, 64), golden.concat());
    assert_eq!((bench.record(1), bench.bar.take().len()), (0, 0), "nothing is visible before ringing");
    bench.qp.ring();
    assert_eq!(bench.record(1), 1);
    assert_eq!(bench.bar.take(), [(DOORBELL, 0x0000_0008_1234_5604)]);
    bench.qp.ring();
    assert_eq!(bench.bar.take(), [], "nothing new to ring for");
}

#[test]
fn immediate_invalidate_read_and_nop() {
    let mut bench = Bench::new(Service::Rc, 8, 8, 0);
    let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
    bench.qp.post_send(SendOp::SendImm(0x0a0b_0c0d), &[sge(0x10, 1)], 0, flags).expect("room");
    bench.qp.post_send(SendOp::SendInval(RKey::new(0x500)), &[], 0, SendFlags::empty()).expect("room");
    let read = SendOp::Read { raddr: 0x99, rkey: RKey::new(3) };
    bench.qp.post_send(read, &[sge(0x10, 1)], 0, SendFlags::SIGNALED).expect("room");
    bench.qp.post_send(SendOp::Nop, &[], 0, SendFlags::SIGNALED).expect("room");
    let ctrl = |block| bench.sq(block, 16);
    assert_eq!(ctrl(0), [0, 0, 0, 0x0b, 0x12, 0x34, 0x56, 2, 0, 0, 0, 0x0a, 0x0a, 0x0b, 0x0c, 0x0d]);
    assert_eq!(ctrl(1), [0, 0, 1, 0x01, 0x12, 0x34, 0x56, 1, 0, 0, 0, 0, 0, 0, 0x05, 0]);
    assert_eq!(ctrl(2), [0, 0, 2, 0x10, 0x12, 0x34, 0x56, 3, 0, 0, 0, 8, 0, 0, 0, 0]);
    assert_eq!(ctrl(3), [0, 0, 3, 0x00, 0x12, 0x34, 0x56, 1, 0, 0, 0, 8, 0, 0, 0, 0]);
    bench.qp.ring();
    assert_eq!(bench.record(1), 4, "one ring for four posts");
    assert_eq!(bench.bar.take().len(), 1);
}

#[test]
fn inline_data_starts_behind_its_length() {
    let mut bench = Bench::new(Service::Rc, 8, 0, 0);
    let data: vec::Vec<u8> = (1..=40).collect();
    bench.qp.post_inline(SendOp::Send, &data, 0, SendFlags::SIGNALED).expect("room");
    let wqe = bench.sq(0, 64);
    assert_eq!(wqe[7], 4, "control and 44 bytes in three units");
    assert_eq!(wqe[16..20], [0x80, 0, 0, 40]);
    assert_eq!(wqe[20..60], data);
    assert_eq!(wqe[60..], [0; 4]);
    assert_eq!(bench.qp.post_inline(SendOp::Send, &[0; 61], 0, SendFlags::SIGNALED), Err(PostError::TooLong));
    let read = SendOp::Read { raddr: 0, rkey: RKey::new(0) };
    assert_eq!(bench.qp.post_inline(read, &[0], 0, SendFlags::SIGNALED), Err(PostError::WrongService));
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
    bench.qp.post_ud(&to, SendOp::Send, &[sge(0x1000, 256)], 0, SendFlags::SIGNALED).expect("room");
    let wqe = bench.sq(0, 128);
    assert_eq!(wqe[..8], [0, 0, 0, 0x0a, 0x12, 0x34, 0x56, 5]);
    assert_eq!(wqe[16..32], [0x80, 0x01, 0, 0, 0, 0, 0, 0, 0x80, 0, 0, 0x77, 0x03, 0, 0, 0x21]);
    assert_eq!(wqe[32..64], [0; 32]);
    assert_eq!(wqe[64..68], [0, 0, 1, 0]);
    assert_eq!(bench.qp.send_outstanding(), 2);
    let refused = bench.qp.post_send(SendOp::Send, &[], 0, SendFlags::SIGNALED);
    assert_eq!(refused, Err(PostError::WrongService), "no address");
    let write = SendOp::Write { raddr: 0, rkey: RKey::new(0) };
    assert_eq!(bench.qp.post_ud(&to, write, &[], 0, SendFlags::SIGNALED), Err(PostError::WrongService));
    let mut connected = Bench::new(Service::Rc, 8, 8, 0);
    let refused = connected.qp.post_ud(&to, SendOp::Send, &[], 0, SendFlags::SIGNALED);
    assert_eq!(refused, Err(PostError::WrongService));
}

#[test]
fn work_requests_wrap_at_the_end_of_the_ring() {
    let mut bench = Bench::new(Service::Rc, 2, 0, 0);
    assert_eq!(bench.geometry.sq_bytes, 256, "two of 96 bytes in blocks of 64");
    bench.qp.post_send(SendOp::Send, &[], 1, SendFlags::SIGNALED).expect("room");
    let four = [sge(1, 1), sge(2, 2), sge(3, 3), sge(4, 4)];
    bench.qp.post_send(SendOp::Send, &four, 2, SendFlags::SIGNALED).expect("room");
    let done = bench.completion(0, QPN, 1);
    assert_eq!(bench.qp.retire(&done), Some(2));
    bench.qp.post_send(SendOp::Send, &four, 3, SendFlags::SIGNALED).expect("room");
    let (end, start) = (bench.sq(3, 64), bench.sq(0, 16));
    assert_eq!(end[..8], [0, 0, 3, 0x0a, 0x12, 0x34, 0x56, 5]);
    assert_eq!(end[16 + 3], 1);
    assert_eq!(start[3], 4, "the last piece is at the start");
    bench.qp.ring();
    assert_eq!(bench.record(1), 5);
    assert_eq!(bench.bar.take(), [(DOORBELL, 0x0000_030a_1234_5605)]);
}

#[test]
fn receives_end_with_a_terminator() {
    let mut bench = Bench::new(Service::Rc, 1, 4, 0);
    assert_eq!(bench.geometry.rq_bytes, 4 * 64, "three pieces take a stride of four");
    bench.qp.post_recv(&[sge(0x5000, 100), sge(0, 0), sge(0x6000, 50)], 11).expect("room");
    let golden = [
        [0, 0, 0, 100, 0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0, 0, 0, 0x50, 0],
        [0, 0, 0, 50, 0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0, 0, 0, 0x60, 0],
        [0, 0, 0, 0, 0, 0, 0x01, 0x00, 0, 0, 0, 0, 0, 0, 0, 0],
    ];
    assert_eq!(bytes(bench.memory, 0, 48), golden.concat());
    assert_eq!(bench.record(0), 1, "a receive is posted when its record says so");
    assert_eq!(bench.bar.take(), [], "there is no doorbell for receives");
    for cookie in 12..15 {
        bench.qp.post_recv(&[sge(1, 1)], cookie).expect("room");
    }
    assert_eq!(bench.qp.post_recv(&[], 15), Err(PostError::Full));
    assert_eq!(bench.qp.post_recv(&[sge(1, 1); 4], 15), Err(PostError::TooManySges));
    let mut pieces = [sge(0, 0); 3];
    assert_eq!(bench.qp.posted_recv(0, &mut pieces), Some((2, Kept::from(11))));
    assert_eq!(pieces, [sge(0x5000, 100), sge(0x6000, 50), sge(0, 0)]);
    assert_eq!(bench.qp.posted_recv(3, &mut pieces), Some((1, Kept::from(14))));
    assert_eq!(bench.qp.posted_recv(4, &mut pieces), None);
    let first = bench.completion(2, QPN, 0);
    assert_eq!(bench.qp.retire(&first), Some(11));
    let long = sge(1, 0x8000_0000);
    assert_eq!(bench.qp.post_recv(&[long], 15), Err(PostError::TooLong));
    assert_eq!(bench.qp.post_send(SendOp::Send, &[long], 15, SendFlags::SIGNALED), Err(PostError::TooLong));
    assert_eq!((bench.record(0), bench.qp.send_outstanding()), (4, 0), "refused posts leave no trace");
}

#[test]
fn blueflame_alternates_halves_and_falls_back() {
    let mut bench = Bench::new(Service::Rc, 16, 0, 256);
    bench.qp.post_send(SendOp::Send, &[sge(0x11, 0x22)], 0, SendFlags::SIGNALED).expect("room");
    bench.qp.ring();
    let writes = bench.bar.take();
    let ring = bench.sq(0, 64);
    assert_eq!(writes.len(), 8, "one block of eight quadwords");
    for (index, (offset, value)) in writes.into_iter().enumerate() {
        assert_eq!(offset, DOORBELL + index * 8);
        assert_eq!(value.to_be_bytes(), ring[index * 8..index * 8 + 8]);
    }
    bench.qp.post_send(SendOp::Send, &[], 0, SendFlags::SIGNALED).expect("room");
    bench.qp.post_send(SendOp::Send, &[], 0, SendFlags::SIGNALED).expect("room");
    bench.qp.ring();
    assert_eq!(bench.bar.take(), [(DOORBELL + 256, 0x0000_020a_1234_5601)], "two at once: doorbell only");
    bench.qp.post_send(SendOp::Send, &[], 0, SendFlags::SIGNALED).expect("room");
    bench.qp.ring();
    assert_eq!(bench.bar.take()[0], (DOORBELL, 0x0000_030a_1234_5601));
}

#[test]
fn impossible_completions_retire_nothing() {
    let mut bench = Bench::new(Service::Rc, 8, 8, 0);
    let five = [sge(1, 1); 4];
    for cookie in 0..3 {
        bench.qp.post_send(SendOp::Send, &five, cookie, SendFlags::SIGNALED).expect("room");
        bench.qp.post_recv(&[sge(1, 1)], 100 + cookie).expect("room");
    }
    // Another QP; the middle of a work request; what was not posted; a receive out of order.
    for (opcode, qpn, counter) in [(0, QPN + 1, 0), (0, QPN, 1), (0, QPN, 6), (13, QPN, 0xffff), (2, QPN, 1)]
    {
        let wrong = bench.completion(opcode, qpn, counter);
        assert_eq!(bench.qp.retire(&wrong), None, "{opcode} {qpn:#x} {counter}");
    }
    assert_eq!(bench.qp.spurious_completions(), 5);
    let last = bench.completion(0, QPN, 4);
    assert_eq!(bench.qp.retire(&last), Some(2), "earlier ones go with it");
    assert_eq!(bench.qp.send_outstanding(), 0);
    assert_eq!(bench.qp.retire(&last), None, "only once");
    for cookie in 100..103 {
        let flushed = bench.completion(14, QPN, cookie as u16 - 100);
        assert_eq!(bench.qp.retire(&flushed), Some(cookie));
    }
    let more = bench.completion(2, QPN, 3);
    assert_eq!(bench.qp.retire(&more), None);
}

#[test]
fn what_is_kept_comes_back() {
    let mut bench = Bench::new(Service::Rc, 8, 8, 0);
    let kept = |n: u64| Kept { cookie: n, note: !n << 8 };
    let five = [sge(1, 1); 4];
    for n in 0..4 {
        let pieces = if n % 2 == 0 { &five[..] } else { &five[..1] };
        bench.qp.post_send(SendOp::Send, pieces, kept(n), SendFlags::empty()).expect("room");
        bench.qp.post_recv(&five[..1], kept(100 + n)).expect("room");
    }
    // They begin at blocks 0, 2, 3, 5.
    assert_eq!(bench.qp.send_end(), 6);
    let third = bench.completion(0, QPN, 3);
    assert_eq!((bench.qp.kept(&third), bench.qp.end_of(&third)), (Some(kept(2)), Some(5)));
    let plain = bench.sent(3);
    assert_eq!(bench.qp.retire_oldest(&plain, |_| true), None, "not the oldest");
    assert_eq!(bench.qp.retire_kept(&third), Some(Retired { kept: kept(2), count: 3 }));
    assert_eq!((bench.qp.kept(&third), bench.qp.end_of(&third)), (None, None));
    let plain = bench.sent(5);
    assert_eq!(bench.qp.retire_oldest(&plain, |at| at != kept(3)), None, "not wanted");
    assert_eq!(bench.qp.retire_oldest(&plain, |at| at == kept(3)), Some(kept(3)));
    assert_eq!(bench.qp.retire_oldest(&plain, |_| true), None, "only once");
    assert_eq!((bench.qp.send_outstanding(), bench.qp.take_send()), (0, None));
    bench.qp.post_send(SendOp::Send, &five, kept(4), SendFlags::empty()).expect("room");
    assert_eq!((bench.qp.take_send(), bench.qp.take_send()), (Some(kept(4)), None));
    let received = bench.completion(2, QPN, 0);
    assert_eq!(bench.qp.retire_kept(&received), Some(Retired { kept: kept(100), count: 1 }));
    assert_eq!((0..4).map(|_| bench.qp.take_recv()).last(), Some(None));
    assert_eq!((bench.qp.receive_outstanding(), bench.qp.spurious_completions()), (0, 0));
}

#[test]
fn a_device_that_is_gone_is_not_written_to_plainly() {
    let mut bench = Bench::new(Service::Rc, 8, 0, 0);
    let remote = || (0x100, RKey::new(5));
    assert!(bench.qp.write_plain(remote, sge(0x10, 64), Kept::from(1)));
    assert_eq!(bench.bar.take().len(), 1);
    bench.qp.refuse_plain();
    assert!(!bench.qp.write_plain(remote, sge(0x10, 64), Kept::from(2)));
    assert!(bench.bar.take().is_empty());
    assert_eq!((bench.qp.take_send(), bench.qp.take_send()), (Some(Kept::from(1)), None));
}

#[test]
fn impossible_sizes_are_refused() {
    assert!(QpGeometry::new(1 << 16, 0, 6, 1).is_none());
    assert!(QpGeometry::new(1 << 14, 0, 16, 1).is_none(), "blocks, not requests, are counted in 16 bits");
    assert!(QpGeometry::new(0, 1 << 16, 6, 1).is_none());
    assert!(QpGeometry::new(u32::MAX, u32::MAX, usize::MAX, u32::MAX).is_none());
    assert_eq!(QpGeometry::new(0, 0, 6, 1).map(|g| g.ring_bytes()), Some(0));
    assert_eq!(QpGeometry::new(1, 1, 6, 1).map(|g| (g.rq_bytes, g.sq_bytes)), Some((64, 128)));
}

proptest! {
    /// Posts of any size, completions of any of them (signalled or not), over many laps of ring and counters: cookies come back
    /// in order, nothing overlaps, and the device can read every control segment where the index says.
    #[test]
    fn cookies_come_back_in_order(ops in prop::collection::vec((0u8..3, 0usize..5, 0usize..4), 0..400), start in 0u16..=u16::MAX) {
        let mut bench = Bench::new(Service::Rc, 6, 4, 0);
        let blocks = 1usize << bench.geometry.log_sq_size;
        // As if the counters had run for a while.
        let sq = &mut bench.qp.sq;
        (sq.head, sq.end, sq.rung) = (start, start.wrapping_add(sq.size), start);
        if let Some(rq) = &mut bench.qp.rq {
            (rq.head, rq.tail) = (start, start);
        }
        let mut sends: VecDeque<(u64, u16)> = VecDeque::new();
        let mut receives: VecDeque<(u64, u16)> = VecDeque::new();
        let (mut head, mut free, mut received) = (start, blocks, start);
        for (step, (op, pieces, pick)) in ops.into_iter().enumerate() {
            let cookie = step as u64 * 3 + 1;
            match op {
                0 => {
                    let need = (1 + pieces).div_ceil(4);
                    let list = vec![sge(step as u64, 1); pieces];
                    let result = bench.qp.post_send(SendOp::Send, &list, cookie, SendFlags::SIGNALED);
                    prop_assert_eq!(result.is_ok(), need <= free);
                    if result.is_ok() {
                        let ctrl = bench.sq(usize::from(head) % blocks, 16);
                        prop_assert_eq!(wqe_ctrl_seg::wqe_index.get(&ctrl), u64::from(head));
                        prop_assert_eq!(wqe_ctrl_seg::ds.get(&ctrl), 1 + pieces as u64);
                        sends.push_back((cookie, head));
                        head = head.wrapping_add(need as u16);
                        free -= need;
                    }
                }
                1 if !sends.is_empty() => {
                    let pick = pick % sends.len();
                    let (cookie, index) = sends[pick];
                    sends.drain(..=pick);
                    let done = bench.sent(index);
                    prop_assert_eq!(bench.qp.retire_send(&done), Some(cookie));
                    let tail = sends.front().map_or(head, |s| s.1);
                    free = blocks - usize::from(head.wrapping_sub(tail));
                    prop_assert_eq!(usize::from(bench.qp.send_outstanding()), blocks - free);
                }
                _ => {
                    if bench.qp.post_recv(&[sge(1, 1)], cookie).is_ok() {
                        receives.push_back((cookie, received));
                        received = received.wrapping_add(1);
                    } else {
                        prop_assert_eq!(receives.len(), 4);
                        if let Some((cookie, index)) = receives.pop_front() {
                            let done = bench.completion(2, QPN, index);
                            prop_assert_eq!(bench.qp.retire(&done), Some(cookie));
                        }
                    }
                }
            }
        }
        bench.qp.ring();
        let rung = bench.record(1);
        prop_assert!(rung == u32::from(head) || head == start);
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

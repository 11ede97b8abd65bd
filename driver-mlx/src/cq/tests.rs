use super::*;
use crate::control;
use crate::testing::{Recorder, kept, memory};
use mlx5_prm::status::CqeSyndrome;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::vec::Vec;

const LOG_SIZE: u32 = 6;
const SIZE: u32 = 1 << LOG_SIZE;
const UAR: usize = 0x10 * 4096;

struct Device {
    memory: DmaMemory,
    record: DmaMemory,
    produced: u32,
}

impl Device {
    /// Writes a completion as hardware does: the owner byte last, with this lap's owner bit.
    fn complete(&mut self, opcode: u8, qpn: u32, wqe_counter: u16, user_index: u32) {
        let at = (self.produced % SIZE) as usize * 64;
        let owner = (self.produced / SIZE) as u8 & 1;
        let mut cqe = [0u8; 64];
        cqe[0x11] = 0x05;
        cqe[0x16..0x18].copy_from_slice(&0x1234u16.to_be_bytes());
        cqe[0x18..0x1c].copy_from_slice(&0x1755_6677u32.to_be_bytes());
        cqe[0x20..0x24].copy_from_slice(&user_index.to_be_bytes());
        cqe[0x24..0x28].copy_from_slice(&0xcafe_8001u32.to_be_bytes());
        cqe[0x2c..0x30].copy_from_slice(&4136u32.to_be_bytes());
        cqe[0x36] = 0x81;
        cqe[0x37] = 0x15;
        cqe[0x38..0x3c].copy_from_slice(&(0x0a00_0000 | qpn).to_be_bytes());
        cqe[0x3c..0x3e].copy_from_slice(&wqe_counter.to_be_bytes());
        cqe[0x3f] = opcode << 4 | 2 | owner;
        self.memory.write(at, &cqe).expect("inside");
        self.produced += 1;
    }

    fn consumer_index(&self) -> u32 {
        self.record.load_be32(0).expect("inside")
    }
}

fn queue() -> (Cq<Recorder>, Device, Recorder) {
    let (ring, record) = (memory(64 << LOG_SIZE), memory(64));
    let bar = Recorder::new();
    let mut cq =
        Cq::new([ring, record], control::doorbell_register(bar, UAR + 0x20, 8), 0, Generation::default())
            .expect("fits");
    cq.set_number(CqNumber::new(0x42));
    (cq, Device { memory: ring, record, produced: 0 }, bar)
}

#[test]
fn every_field_is_decoded() {
    let (mut cq, mut device, _) = queue();
    assert_eq!(cq.poll(|_| ()).map(|c| c.is_none()), Ok(true), "fresh entries are invalid");
    device.complete(3, 0x12_3456, 0xabcd, 0x77);
    let completion = cq.poll(kept).expect("sound").expect("there");
    assert_eq!(completion.kind(), CompletionKind::ReceiveImm);
    assert!(!completion.is_send() && completion.solicited() && completion.datagram().grh);
    assert_eq!((completion.qpn().get(), completion.user_index()), (0x12_3456, 0x77));
    assert_eq!((completion.byte_len(), completion.imm()), (4136, 0xcafe_8001));
    assert_eq!((completion.wqe_counter(), completion.send_opcode().0), (0xabcd, 0x0a));
    let source = completion.datagram();
    assert_eq!((source.slid.get(), source.src_qpn.get()), (0x1234, 0x55_6677));
    assert_eq!((source.sl, source.path_bits, completion.pkey().get()), (7, 5, 0x8001));
    assert_eq!((completion.error(), completion.invalidated_rkey()), (None, None));
    device.complete(13, 1, 2, 3);
    let failed = cq.poll(kept).expect("sound").expect("there");
    assert_eq!(failed.kind(), CompletionKind::SendError);
    let error = CompletionError { syndrome: CqeSyndrome::TRANSPORT_RETRY_EXC_ERR, vendor: 0x81 };
    assert_eq!(failed.error(), Some(error));
}

#[test]
fn impossible_entries_are_consumed_and_counted() {
    let (mut cq, mut device, _) = queue();
    for opcode in 5..=12 {
        device.complete(opcode, 1, 1, 1);
        assert_eq!(cq.peek(0).map(|_| ()), Err(CqError::UnexpectedOpcode(opcode)));
        assert_eq!(cq.poll(|_| ()).map(|_| ()), Err(CqError::UnexpectedOpcode(opcode)));
    }
    assert_eq!(cq.errors(), 8);
    device.complete(2, 1, 1, 1);
    device.memory.write(8 * 64 + 0x3f, &[0x2c]).expect("inside");
    assert_eq!(cq.poll(|_| ()).map(|_| ()), Err(CqError::UnexpectedFormat(3)), "compressed");
    assert_eq!(cq.poll(|_| ()).map(|c| c.is_none()), Ok(true));
}

#[test]
fn entries_of_the_last_lap_are_not_taken_twice() {
    let (mut cq, mut device, _) = queue();
    for n in 0..SIZE * 5 {
        device.complete(0, 9, n as u16, 0);
        assert_eq!(cq.poll(|c| c.wqe_counter()).expect("sound"), Some(n as u16));
        assert!(cq.poll(|_| ()).expect("sound").is_none(), "{n}");
    }
}

#[test]
fn the_consumer_index_is_told_in_batches_and_at_arming() {
    let (mut cq, mut device, _) = queue();
    for n in 0..20 {
        device.complete(0, 9, n, 0);
    }
    for _ in 0..15 {
        cq.poll(|_| ()).expect("sound").expect("there");
    }
    assert_eq!(device.consumer_index(), 0);
    cq.poll(|_| ()).expect("sound").expect("there");
    assert_eq!(device.consumer_index(), 16);
    for _ in 0..4 {
        cq.poll(|_| ()).expect("sound").expect("there");
    }
    assert_eq!(device.consumer_index(), 16);
    assert!(cq.poll(|_| ()).expect("sound").is_none());
    cq.arm(false);
    assert_eq!(device.consumer_index(), 20);
    assert_eq!(cq.capacity(), SIZE - 16);
}

#[test]
fn arming_follows_the_sequence() {
    let (mut cq, mut device, bar) = queue();
    let record = |device: &Device| device.record.load_be32(4).expect("inside");
    assert_eq!(record(&device), 2 << 28, "never armed");
    device.complete(0, 9, 0, 0);
    cq.poll(|_| ()).expect("sound").expect("there");
    cq.arm(true);
    assert_eq!(record(&device), 0x0100_0001);
    assert_eq!(bar.take(), [(UAR + 0x20, 0x0100_0001_0000_0042)]);
    assert_eq!(device.consumer_index(), 1, "the index is told before arming");
    cq.arm(false);
    assert_eq!(bar.take(), [(UAR + 0x20, 0x0000_0001_0000_0042)]);
    for sn in [1, 2, 3, 0] {
        cq.notified();
        cq.arm(false);
        assert_eq!(record(&device), sn << 28 | 1);
    }
}

/// Wherever a ring begins: also in the middle of a lap, as after a resize.
#[test]
fn no_entry_of_an_empty_ring_seems_to_be_there() {
    for first in [0, SIZE / 2, SIZE, SIZE + 5, 3 * SIZE - 1] {
        let (mut cq, _, _) = queue();
        cq.ring = empty_ring(memory(64 << LOG_SIZE), first).expect("fits");
        for index in first..first + SIZE {
            cq.seek(index);
            assert_eq!(cq.poll_common(|_| Some(())), None, "entry {index} of a ring that begins at {first}");
        }
    }
}

#[test]
fn ring_sizes() {
    assert_eq!(log_size_for(0), Some(6));
    assert_eq!(log_size_for(48), Some(6));
    assert_eq!(log_size_for(49), Some(7));
    assert_eq!(log_size_for(u32::MAX), None);
    for entries in [1, 48, 49, 1000, 4080] {
        assert!(log_size_for(entries).is_some_and(|log| capacity(log) >= entries));
    }
}

proptest! {
    /// Any interleaving of completions, polls, looks ahead and sweeps agrees with a plain queue.
    #[test]
    fn agrees_with_a_plain_queue(ops in prop::collection::vec((0u8..8, 0u32..4), 0..600)) {
        let (mut cq, mut device, _) = queue();
        let mut expected: VecDeque<(u32, u16)> = VecDeque::new();
        for (step, (op, argument)) in ops.into_iter().enumerate() {
            match op {
                0..=3 if expected.len() < SIZE as usize - 1 => {
                    device.complete(0, 100 + argument, step as u16, argument);
                    expected.push_back((100 + argument, step as u16));
                }
                6 => {
                    let found = cq.peek(argument).expect("sound").map(|c| (c.qpn().get(), c.wqe_counter()));
                    prop_assert_eq!(found, expected.get(argument as usize).copied());
                }
                7 if step % 7 == 0 => {
                    let before = expected.len();
                    expected.retain(|&(qpn, _)| qpn != 100 + argument);
                    let gone = (before - expected.len()) as u32;
                    prop_assert_eq!(cq.sweep(QpNumber::new(100 + argument)), gone);
                }
                _ => {
                    let found = cq.poll(|c| (c.qpn().get(), c.wqe_counter())).expect("sound");
                    prop_assert_eq!(found, expected.pop_front());
                }
            }
        }
        let rest: Vec<_> = core::iter::from_fn(|| cq.poll(|c| c.wqe_counter()).expect("sound")).collect();
        prop_assert_eq!(rest, expected.into_iter().map(|e| e.1).collect::<Vec<_>>());
    }
}

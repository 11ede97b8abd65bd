//! The free list against a plain model, and completions that cannot be.

use super::*;
use crate::control;
use crate::cq::Cq;
use crate::testing::{Recorder, bytes, kept, memory, rounds, slots};
use crate::types::LKey;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

fn queue(max_wr: u32, max_sge: u32) -> (Srq, SrqGeometry) {
    let geometry = SrqGeometry::new(max_wr, max_sge).expect("sizes");
    let memory = [memory(geometry.ring_bytes), memory(64)];
    let srq = Srq::new(
        memory,
        slots(geometry.slots()),
        &geometry,
        max_sge as u8,
        crate::types::LKey::new(0x100),
        Generation::default(),
    )
    .expect("a queue");
    (srq, geometry)
}

fn sge(address: u64, length: u32) -> Sge {
    Sge { address, length, lkey: LKey::new(0x1122_3344) }
}

/// The `wr_id` of what was retired.
fn id(retired: Option<Completion>) -> Option<u64> {
    retired.map(|completion| completion.wr_id().id)
}

/// A completion of the entry: an opcode of the receive side unless `opcode` is 0 (send).
fn completion(opcode: u8, entry: u16) -> Cqe<'static> {
    let ring = memory(64 << 6);
    let mut cq = Cq::<Recorder>::new(
        [ring, memory(64)],
        control::doorbell_register(Recorder::new(), 0, 8),
        0,
        Generation::default(),
    )
    .expect("fits");
    let mut cqe = [0; 64];
    cqe[0x38..0x3c].copy_from_slice(&0x12_3456u32.to_be_bytes());
    cqe[0x3c..0x3e].copy_from_slice(&entry.to_be_bytes());
    cqe[0x3f] = opcode << 4;
    ring.write(0, &cqe).expect("inside");
    cq.poll(kept).expect("sound").expect("there")
}

/// Next entry as the ring says.
fn next(srq: &Srq, geometry: &SrqGeometry, entry: u16) -> u16 {
    let stride = 16usize << geometry.log_stride;
    let head = bytes(srq.memory[0], usize::from(entry) * stride, 4);
    assert_eq!(head[..2], [0, 0]);
    u16::from_be_bytes([head[2], head[3]])
}

#[test]
fn entries_begin_with_the_next_ones_index() {
    let (mut srq, geometry) = queue(7, 2);
    assert_eq!((geometry.log_size, geometry.log_stride, srq.capacity()), (3, 2, 7));
    srq.post_recv(&[sge(0x5000, 100), sge(0, 0)], 5).expect("room");
    let golden = [
        [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 100, 0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0, 0, 0, 0x50, 0],
        [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    ];
    assert_eq!(bytes(srq.memory[0], 0, 48), golden.concat());
    assert_eq!(bytes(srq.memory[1], 0, 4), [0; 4], "not the device's before ringing");
    srq.ring();
    assert_eq!(bytes(srq.memory[1], 0, 4), [0, 0, 0, 1]);
    assert_eq!(next(&srq, &geometry, 7), 0, "linked in a circle");
}

#[test]
fn completions_that_cannot_be_free_nothing() {
    let (mut srq, _) = queue(7, 1);
    for wr_id in 0..3 {
        srq.post_recv(&[sge(1, 1)], wr_id).expect("room");
    }
    // Not posted; outside the ring; of the send queue.
    for (opcode, entry) in [(2, 3), (2, 8), (2, 0xffff), (14, 7), (0, 0), (13, 1)] {
        assert_eq!(srq.peek(&completion(opcode, entry)), None);
        assert_eq!(id(srq.retire(&completion(opcode, entry))), None, "{opcode} {entry}");
    }
    assert_eq!((srq.spurious_completions(), srq.outstanding()), (6, 3));
    assert_eq!(id(srq.retire(&completion(14, 1))), Some(1));
    assert_eq!(id(srq.retire(&completion(14, 1))), None, "only once");
}

#[test]
fn a_scribbled_ring_changes_no_account() {
    let (mut srq, geometry) = queue(7, 1);
    let mut posted = Vec::new();
    // Miri is slow: a third of the words there, other ones in each round.
    let step = if cfg!(miri) { 3 } else { 1 };
    for round in 0..rounds(200) as u64 {
        let first = 8 * (round as usize % step);
        for at in (first..geometry.ring_bytes).step_by(8 * step) {
            let value = round.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(at as u32);
            srq.memory[0].store_be64(at, value).expect("inside");
        }
        let room = posted.len() < usize::from(srq.capacity());
        assert_eq!(srq.post_recv(&[sge(1, 1)], round).is_ok(), room);
        if room {
            posted.push(round);
        }
        if let Some(wr_id) = id(srq.retire(&completion(2, (round % 9) as u16))) {
            let at = posted.iter().position(|other| *other == wr_id).expect("posted, and not retired before");
            posted.remove(at);
        }
        assert_eq!(usize::from(srq.outstanding()), posted.len());
    }
}

#[test]
fn impossible_sizes_are_refused() {
    assert_eq!(SrqGeometry::new(1 << 15, 1), None);
    assert!(SrqGeometry::new((1 << 15) - 1, 1).is_some());
    assert_eq!(SrqGeometry::new(1, 127).map(|g| g.log_stride), Some(7));
    assert_eq!(SrqGeometry::new(1, 128), None);
    assert_eq!(SrqGeometry::new(u32::MAX, u32::MAX), None);
}

proptest! {
    /// A device that follows the ring's links takes the receives in the order in which they were posted, whatever the order in
    /// which they complete.
    #[test]
    fn the_device_finds_every_receive_in_order(steps in prop::collection::vec((0u8..3, 0usize..16), 0..rounds(600))) {
        let (mut srq, geometry) = queue(11, 1);
        let capacity = usize::from(srq.capacity());
        let mut posted: Vec<u64> = vec![];
        let mut taken: Vec<(u16, u64)> = vec![];
        let (mut device_head, mut wr_id) = (0u16, 0u64);
        for (step, pick) in steps {
            match step {
                0 => {
                    let result = srq.post_recv(&[sge(wr_id, 1)], wr_id);
                    prop_assert_eq!(result.is_ok(), posted.len() + taken.len() < capacity);
                    if result.is_ok() {
                        posted.push(wr_id);
                        wr_id += 1;
                    }
                }
                1 if !posted.is_empty() => {
                    let stride = 16usize << geometry.log_stride;
                    let address = srq.memory[0].load_be64(usize::from(device_head) * stride + 24).expect("inside");
                    prop_assert_eq!(address, posted.remove(0));
                    taken.push((device_head, address));
                    device_head = next(&srq, &geometry, device_head);
                }
                2 if !taken.is_empty() => {
                    let (entry, wr_id) = taken.remove(pick % taken.len());
                    prop_assert_eq!(id(srq.retire(&completion(2, entry))), Some(wr_id));
                }
                _ => {}
            }
            prop_assert_eq!(usize::from(srq.outstanding()), posted.len() + taken.len());
        }
    }
}

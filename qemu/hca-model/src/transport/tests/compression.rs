//! Completions in short, as software takes them apart again.

use mlx5_prm::datapath::*;
use mlx5_prm::value::QpState;

use super::bed::{Bed, Handle, Options};
use super::requests::Request;
use crate::object::compression::MiniFormat;

/// Length, counter and kind of each completion in the ring of `qp`'s receive CQ from its start on, short ones taken apart, and how many
/// were short.
fn completions(bed: &mut Bed, qp: &Handle, cqe_bytes: u64) -> (Vec<(CqeOpcode, u32, u16)>, u32) {
    let (_, ring, _, log_size) = *bed.guests[1].cqs.iter().find(|cq| cq.0 == qp.cqn).expect("its CQ");
    let cqe_at = |bed: &Bed, slot: u64| bed.guests[1].read(ring + (slot + 1) * cqe_bytes - 64, 64);
    let (mut slot, mut found, mut short) = (0, Vec::new(), 0);
    while slot < 1 << log_size {
        let cqe = cqe_at(bed, slot);
        let op_own = cqe[CQE_OP_OWN];
        if cqe_opcode(op_own) == CqeOpcode::INVALID || cqe_owner(op_own) {
            break;
        }
        let (count, first) = (cqe64::byte_cnt.get32(&cqe), cqe64::wqe_counter.get32(&cqe) as u16);
        if cqe_format(op_own) != CqeFormat::COMPRESSED {
            found.push((cqe_opcode(op_own), count, first));
            slot += 1;
            continue;
        }
        assert!(count > 1, "one is written whole");
        let array = cqe_at(bed, slot + 1);
        for i in 0..count as usize {
            let bytes = u32::from_be_bytes(array[8 * i + 4..][..4].try_into().expect("4 bytes"));
            found.push((cqe_opcode(op_own), bytes, first + i as u16));
        }
        short += count;
        slot += u64::from(count);
    }
    (found, short)
}

fn messages_in_a_row(cqe_bytes: u32, reliable: bool) {
    let mut bed = Bed::new(2);
    if !reliable {
        bed.faults("loss=5%", 3);
    }
    let (mut a, mut b) = bed.pair(&Options::default());
    let cq = bed.hca(1).device.objects.queues.cqs.get_mut(b.cqn).expect("a CQ");
    cq.compression = Some(MiniFormat::Hash);
    if cqe_bytes == 128 {
        cq.cqe_bytes = 128;
        cq.log_size -= 1;
        let slot = bed.guests[1].cqs.iter_mut().find(|cq| cq.0 == b.cqn).expect("its ring");
        slot.3 -= 1;
    }
    let (from, lkey) = bed.buffer(0, 0x1000);
    let (to, key) = bed.buffer(1, 0x1000);
    for _ in 0..14 {
        bed.receive(&mut b, &[(to, 0x1000, key)]);
    }
    for i in 0..12 {
        let mut request = Request::new(SendOpcode::SEND, &[(from, 100 + i, lkey)]);
        if i == 5 {
            request = Request::new(SendOpcode::SEND_IMM, &[(from, 105, lkey)]).immediate(9);
        }
        bed.post(&mut a, &request);
    }
    bed.ring(&a);
    for _ in 0..12 {
        assert_eq!(bed.wait(&a).syndrome, 0);
    }
    // What is flushed comes behind.
    bed.modify(&b, QpState::ERR);
    bed.run_for(10_000_000);
    let (all, short) = completions(&mut bed, &b, u64::from(cqe_bytes));
    assert_eq!(all.len(), 14, "{all:?}");
    // Where packets get lost, they may come one by one.
    assert!(short > 0 || !reliable, "none is short");
    for (i, (opcode, bytes, counter)) in all.iter().enumerate() {
        assert_eq!(usize::from(*counter), i);
        let expected = match i {
            5 => (CqeOpcode::RESP_SEND_IMM, 105),
            12.. => (CqeOpcode::RESP_ERR, 0),
            _ => (CqeOpcode::RESP_SEND, 100 + i as u32),
        };
        if i < 12 {
            assert_eq!((*opcode, *bytes), expected);
        } else {
            assert_eq!(*opcode, expected.0);
        }
    }
    assert_eq!(bed.hca(1).device.objects.queues.cqs.get(b.cqn).expect("a CQ").producer, 14);
}

#[test]
fn receives_in_a_row_are_written_in_short() {
    for cqe_bytes in [64, 128] {
        for reliable in [true, false] {
            messages_in_a_row(cqe_bytes, reliable);
        }
    }
}

#[test]
fn a_lone_receive_is_whole_and_at_once() {
    let mut bed = Bed::new(2);
    let (mut a, mut b) = bed.pair(&Options::default());
    let queues = &mut bed.hca(1).device.objects.queues;
    queues.cqs.get_mut(b.cqn).expect("a CQ").compression = Some(MiniFormat::ChecksumAndStride);
    let (from, lkey) = bed.buffer(0, 0x1000);
    let (to, key) = bed.buffer(1, 0x1000);
    for i in 0..5 {
        bed.receive(&mut b, &[(to, 0x1000, key)]);
        bed.send(&mut a, &Request::new(SendOpcode::SEND, &[(from, 64 + i, lkey)]));
        let got = bed.wait(&b);
        assert_eq!((got.opcode, got.bytes, got.inline.0), (CqeOpcode::RESP_SEND, 64 + i, 0));
        assert_eq!(bed.wait(&a).syndrome, 0);
    }
}

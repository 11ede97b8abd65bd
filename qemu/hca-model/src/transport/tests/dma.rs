//! Copies within memory that a send queue orders.

use mlx5_prm::datapath::{
    CTRL_FM_CE_SE, CqeOpcode, FmCeSe, SendOpcode, ctrl_opmod_idx_opcode, ctrl_qpn_ds, wqe_data_seg,
};
use mlx5_prm::status::CqeSyndrome;
use mlx5_prm::value::{AccessFlags, QpState, ServiceType};

use super::bed::{Bed, Completion, Handle, Options, pattern};
use super::requests::{Request, Seg};
use crate::caps::LOG_MAX_COPY;

/// Posts a copy.
fn post_copy(bed: &mut Bed, qp: &mut Handle, opmod: u8, ends: &[Seg]) {
    let mut wqe = vec![0; 32];
    wqe[CTRL_FM_CE_SE] = FmCeSe::CQ_UPDATE.bits();
    for (address, len, lkey) in ends {
        let mut segment = [0; 16];
        wqe_data_seg::addr.set(&mut segment, *address);
        wqe_data_seg::byte_count.set(&mut segment, *len);
        wqe_data_seg::lkey.set(&mut segment, *lkey);
        wqe.extend(segment);
    }
    let ds = (wqe.len() / 16) as u32;
    wqe[..4].copy_from_slice(&ctrl_opmod_idx_opcode(opmod, qp.posted, SendOpcode::MMO).to_be_bytes());
    wqe[4..8].copy_from_slice(&ctrl_qpn_ds(qp.qpn, ds).to_be_bytes());
    bed.post_raw(qp, &wqe);
    bed.ring(qp);
}

/// Posts one and waits for its completion.
fn copy(bed: &mut Bed, qp: &mut Handle, opmod: u8, ends: &[Seg]) -> Completion {
    post_copy(bed, qp, opmod, ends);
    bed.wait(qp)
}

#[test]
fn memory_is_copied_in_the_order_of_the_queue() {
    let mut bed = Bed::new(2);
    let (mut a, mut b) = bed.pair(&Options::default());
    let most = 1 << LOG_MAX_COPY;
    let (at, key) = bed.buffer(0, 3 * most);
    let (there, there_key) = bed.buffer(1, most);
    let data = pattern(3, 1, most);
    bed.guests[0].write(at, &data);
    let len = most as u32;
    let done = copy(&mut bed, &mut a, 1, &[(at, len, key), (at + len as u64 + 4, len, key)]);
    assert_eq!((done.opcode, done.wqe_opcode), (CqeOpcode::REQ, SendOpcode::MMO.0));
    assert_eq!(bed.guests[0].read(at + len as u64 + 4, most), data);
    // Over itself, and what follows in the queue sees it.
    copy(&mut bed, &mut a, 1, &[(at, 64, key), (at + 8, 64, key)]);
    bed.receive(&mut b, &[(there, 72, there_key)]);
    bed.send(&mut a, &Request::new(SendOpcode::SEND, &[(at, 72, key)]));
    assert_eq!(bed.wait(&b).bytes, 72);
    assert_eq!(bed.guests[1].read(there, 72), [&data[..8], &data[..64]].concat());
}

#[test]
fn a_copy_is_done_once_whatever_is_sent_again() {
    let mut bed = Bed::new(2);
    let (mut a, _) = bed.pair(&Options::default());
    let (at, key) = bed.buffer(0, 0x1000);
    let (there, rkey) = bed.buffer(1, 0x1000);
    let data = pattern(4, 1, 64);
    bed.guests[0].write(at, &data);
    bed.faults("loss=100%", 1);
    bed.send(&mut a, &Request::new(SendOpcode::RDMA_WRITE, &[(at + 0x800, 8, key)]).to(there, rkey));
    post_copy(&mut bed, &mut a, 1, &[(at, 64, key), (at + 8, 64, key)]);
    bed.run_until("it is sent again", |bed| bed.counters(0).retransmitted > 0);
    bed.faults("", 1);
    assert_eq!((bed.wait(&a).counter, bed.wait(&a).counter), (0, 1));
    assert_eq!(bed.guests[0].read(at, 72), [&data[..8], &data[..]].concat());
}

#[test]
fn what_may_not_be_copied_ends_the_queue_and_writes_nothing() {
    let most = 1u32 << LOG_MAX_COPY;
    let protection = CqeSyndrome::LOCAL_PROT_ERR;
    let (length, operation) = (CqeSyndrome::LOCAL_LENGTH_ERR, CqeSyndrome::LOCAL_QP_OP_ERR);
    // Bytes of source and destination, which destination, `opmod`.
    let cases = [
        (64, 64, 1, 1, protection),
        (64, 64, 2, 1, protection),
        (64, 32, 0, 1, length),
        (most + 1, most + 1, 0, 1, length),
        (0, 0, 0, 1, length),
        (64, 64, 0, 0, operation),
        (64, 64, 0, 2, operation),
    ];
    for (from, to, which, opmod, syndrome) in cases {
        let mut bed = Bed::new(2);
        let (mut a, _) = bed.pair(&Options::default());
        let (at, key) = bed.buffer(0, 4 << LOG_MAX_COPY);
        bed.guests[0].write(at, &[5; 64]);
        let target = at + 2 * u64::from(most);
        let read_only = bed.make_key(0, target, 64, target, AccessFlags::REMOTE_READ);
        let missing = key ^ 1;
        let lkey = [key, read_only, missing][which];
        let failed = copy(&mut bed, &mut a, opmod, &[(at, from, key), (target, to, lkey)]);
        assert_eq!(failed.syndrome, syndrome.0, "{from} to {to}, {which}, {opmod}");
        assert_eq!(bed.qp(&a).state(), QpState::ERR);
        assert_eq!(bed.guests[0].read(target, 64), [0; 64]);
    }
    // One end only, three, and a queue that cannot.
    for (ends, service) in [(1, ServiceType::RC), (3, ServiceType::RC), (2, ServiceType::UC)] {
        let mut bed = Bed::new(2);
        let (mut a, _) = bed.pair_of(service, 0, 1, &Options::default());
        let (at, key) = bed.buffer(0, 0x1000);
        let failed = copy(&mut bed, &mut a, 1, &vec![(at, 64, key); ends]);
        assert_eq!(failed.syndrome, operation.0, "{ends} ends on {service}");
    }
}

//! Little data that comes in the completion itself (`qpc.cs_res`, `qpc.cs_req`).

use mlx5_prm::contexts::qpc;
use mlx5_prm::datapath::*;
use mlx5_prm::status::CqeSyndrome;

use super::bed::{Bed, Handle, Options, pattern};
use super::requests::{Request, Seg, data_segment};

#[test]
fn a_short_receive_is_in_its_completion() {
    let mut bed = Bed::new(2);
    let (mut a, mut b) = bed.pair(&Options { mtu: 1, ..Options::default() });
    bed.set(&b, qpc::cs_res, 1);
    let (to, lkey) = bed.buffer(1, 0x1000);
    for len in [0, 1, 31, 32, 33, 300] {
        bed.guests[1].write(to, &[0xee; 512]);
        bed.receive(&mut b, &[(to, 512, lkey)]);
        let data = pattern(1, len as u32, len);
        let mut request = Request::new(SendOpcode::SEND_IMM, &[]).immediate(5);
        request.inline = Some(data.clone());
        bed.send(&mut a, &request);
        let got = bed.wait(&b);
        assert_eq!((got.opcode, got.bytes, got.immediate), (CqeOpcode::RESP_SEND_IMM, len as u32, 5));
        let (format, bytes) = got.inline;
        if (1..=32).contains(&len) {
            assert_eq!(format, CqeFormat::INLINE_DATA32_SEG.0);
            assert_eq!(bytes[..len], data);
            assert_eq!(bed.guests[1].read(to, 512), [0xee; 512], "nothing is scattered");
        } else {
            assert_eq!(format, 0);
            assert_eq!(bed.guests[1].read(to, len), data);
        }
    }
    // It must fit the receive WQE all the same.
    bed.receive(&mut b, &[(to, 10, lkey)]);
    let mut request = Request::new(SendOpcode::SEND, &[]);
    request.inline = Some(vec![1; 11]);
    bed.send(&mut a, &request);
    assert_eq!(bed.wait(&b).syndrome, CqeSyndrome::LOCAL_LENGTH_ERR.0);
}

#[test]
fn a_short_answer_is_in_its_completion() {
    let mut bed = Bed::new(2);
    let (mut a, _) = bed.pair(&Options::default());
    bed.set(&a, qpc::cs_req, 0x11);
    let (local, lkey) = bed.buffer(0, 0x1000);
    let (remote, rkey) = bed.buffer(1, 0x1000);
    bed.guests[1].write(remote, &pattern(2, 3, 64));
    for len in [8u32, 32, 33] {
        bed.guests[0].write(local, &[0xee; 64]);
        bed.send(&mut a, &Request::new(SendOpcode::RDMA_READ, &[(local, len, lkey)]).to(remote, rkey));
        let got = bed.wait(&a);
        assert_eq!((got.syndrome, got.bytes), (0, len));
        let data = pattern(2, 3, len as usize);
        if len <= 32 {
            assert_eq!((got.inline.0, &got.inline.1[..len as usize]), (1, &data[..]));
            assert_eq!(bed.guests[0].read(local, 64), [0xee; 64]);
        } else {
            assert_eq!(got.inline.0, 0);
            assert_eq!(bed.guests[0].read(local, len as usize), data);
        }
    }
    let mut request = Request::new(SendOpcode::ATOMIC_FA, &[(local, 8, lkey)]).to(remote, rkey);
    request.atomic = (1, 0);
    bed.send(&mut a, &request);
    let got = bed.wait(&a);
    assert_eq!(got.inline.0, 1);
    assert_eq!(got.inline.1[..8], pattern(2, 3, 8));
}

/// A SEND of a WQE's own bytes, of `data` in memory, and of its own again.
fn mixed(bed: &mut Bed, qp: &mut Handle, inline: [&[u8]; 2], (address, len, lkey): Seg) {
    let segment = |data: &[u8]| {
        let mut bytes = (INLINE_SEG | data.len() as u32).to_be_bytes().to_vec();
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(16), 0);
        bytes
    };
    let mut wqe = vec![0; 16];
    wqe.extend(segment(inline[0]));
    wqe.extend(data_segment(&(address, len, lkey)));
    wqe.extend(segment(inline[1]));
    let ds = (wqe.len() / 16) as u32;
    wqe[..4].copy_from_slice(&ctrl_opmod_idx_opcode(0, qp.posted, SendOpcode::SEND).to_be_bytes());
    wqe[4..8].copy_from_slice(&ctrl_qpn_ds(qp.qpn, ds).to_be_bytes());
    wqe[CTRL_FM_CE_SE] = FmCeSe::CQ_UPDATE.bits();
    bed.post_raw(qp, &wqe);
    bed.ring(qp);
}

#[test]
fn inline_data_and_memory_take_turns_in_a_send() {
    for packets_only in [false, true] {
        let mut bed = Bed::new(2);
        let (mut a, mut b) = bed.pair(&Options { mtu: 1, ..Options::default() });
        bed.world.set_packets_only(packets_only);
        let (to, lkey) = bed.buffer(1, 0x1000);
        let (from, own) = bed.buffer(0, 0x1000);
        let memory = pattern(3, 1, 600);
        bed.guests[0].write(from, &memory);
        // Of one packet and of several, whose borders lie within the parts.
        for (front, len, back) in [(8, 40, 0), (8, 40, 12), (0, 16, 4), (100, 600, 3), (12, 500, 200)] {
            let own_bytes = pattern(3, 2, 300);
            let inline = [&own_bytes[..front], &own_bytes[front..front + back]];
            bed.receive(&mut b, &[(to, 0x1000, lkey)]);
            mixed(&mut bed, &mut a, inline, (from, len as u32, own));
            assert_eq!(bed.wait(&a).syndrome, 0, "{front}, {len}, {back}");
            let expected = [inline[0], &memory[..len], inline[1]].concat();
            assert_eq!(bed.wait(&b).bytes, expected.len() as u32);
            assert_eq!(bed.guests[1].read(to, expected.len()), expected, "{front}, {len}, {back}");
        }
    }
}

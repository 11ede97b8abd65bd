//! Guests and peers that send anything: nothing panics, hangs, or reaches memory that no key gives.

use mlx5_prm::contexts::qpc;
use mlx5_prm::value::{AccessFlags, ServiceType};
use proptest::prelude::*;
use rdma_fabric::infiniband::packet::{Bth, LNH_BTH, LNH_GRH, Lrh, Opcode};

use super::bed::{Bed, Options};
use super::requests::Request;
use rdma_fabric::infiniband::packet::append_icrc;
use rdma_fabric::packet::Packet;
use rdma_fabric::ports::PortIndex;

/// A packet for a QP with arbitrary contents and right checksum.
fn packet(
    op: u8,
    grh: bool,
    ack: bool,
    psn: u32,
    qpn: u32,
    lids: (u16, u16),
    mut content: Vec<u8>,
) -> Packet {
    content.truncate(content.len() / 4 * 4);
    let front = if grh { 40 } else { 0 };
    let words = ((8 + front + 12 + content.len() + 4) / 4) as u16;
    let link_next_header = if grh { LNH_GRH } else { LNH_BTH };
    let lrh = Lrh { link_next_header, dlid: lids.1, slid: lids.0, length_words: words, ..Lrh::default() };
    let mut bytes = lrh.to_bytes().to_vec();
    if grh {
        bytes.extend([0x60; 40]);
    }
    let pad_count = op >> 6;
    let bth = Bth { ack_req: ack, pad_count, ..Bth::new(Opcode(op), 0xffff, qpn, psn) };
    bytes.extend(bth.to_bytes());
    bytes.extend(content);
    append_icrc(&mut bytes);
    Packet::new(bytes)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn packets_of_a_hostile_peer(
        packets in proptest::collection::vec(
            (any::<u8>(), any::<bool>(), any::<bool>(), 0u32..6, 0usize..7,
             proptest::collection::vec(any::<u8>(), 0..600), any::<bool>()),
            1..60,
        )
    ) {
        let mut bed = Bed::with_ram(2, 4 << 20);
        let (mut a, b) = bed.pair(&Options { mtu: 2, ack_timeout: 6, ..Options::default() });
        let ud = bed.make_qp(1, ServiceType::UD, &Options::default());
        bed.modify(&ud, mlx5_prm::value::QpState::RTR);
        let options = Options { mtu: 2, ..Options::default() };
        let (_, uc) = bed.pair_of(ServiceType::UC, 0, 1, &options);
        let (_, xrc) = bed.pair_of(ServiceType::XRC, 0, 1, &options);
        bed.set(&b, qpc::cs_res, 1);
        let (to, rkey) = bed.buffer(1, 0x1000);
        let (from, lkey) = bed.buffer(0, 0x1000);
        let untouched = bed.guests[1].alloc(0x1000);
        bed.guests[1].write(untouched, &[0x5a; 0x1000]);
        let mut receiver = b.clone();
        for _ in 0..8 {
            bed.receive(&mut receiver, &[(to, 0x400, rkey)]);
        }
        let mut receiver = uc.clone();
        for _ in 0..8 {
            bed.receive(&mut receiver, &[(to, 0x400, rkey)]);
        }
        bed.post(&mut a, &Request::new(mlx5_prm::datapath::SendOpcode::RDMA_READ, &[(from, 0x1000, lkey)]).to(to, rkey));
        bed.ring(&a);
        let lids = (bed.hca(0).device.port.lid, bed.hca(1).device.port.lid);
        for (op, grh, ack, ahead, target, mut content, keyed) in packets {
            let qpn = [b.qpn, ud.qpn, 1, 0, a.qpn, uc.qpn, xrc.qpn][target];
            // The fifth is the requester, whose READ waits for answers.
            let answers = target == 4;
            let base = match answers {
                true => bed.qp(&a).transport.requester.unacked,
                false => bed.qp(&b).transport.responder.expected,
            };
            if keyed && content.len() >= 16 {
                // A RETH that means the region, or nearly.
                content[..8].copy_from_slice(&(to + 0xf00).to_be_bytes());
                content[8..12].copy_from_slice(&rkey.to_be_bytes());
                content[12] = 0;
                content[13] = 0;
            }
            let psn = base.add(ahead.wrapping_sub(2)).get();
            let op = match target {
                0 => op & 0x1f,
                4 => 0x0d + op % 6,
                5 => 0x20 | (op % 0x0c),
                6 => 0xa0 | (op & 0x1f),
                _ => op,
            };
            let (port, lids) = if answers { (PortIndex(1), (lids.1, lids.0)) } else { (PortIndex(0), lids) };
            let packet = packet(op, grh, ack, psn, qpn, lids, content);
            let now = bed.now;
            bed.world.medium.fabric_mut().send(port, packet, now);
            bed.step();
        }
        bed.run_for(2_000_000);
        prop_assert_eq!(bed.guests[1].read(untouched, 0x1000), vec![0x5a; 0x1000]);
    }

    #[test]
    fn send_rings_full_of_anything(
        blocks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 64), 1..30),
        sane in any::<bool>(),
        kind in 0usize..5,
    ) {
        let mut bed = Bed::with_ram(2, 4 << 20);
        let options = Options { ack_timeout: 6, retry_count: 1, rnr_retry: 1, ..Options::default() };
        let kinds = [ServiceType::RC, ServiceType::UC, ServiceType::XRC, ServiceType::UD, ServiceType::REG_UMR];
        let (mut a, _) = bed.pair_of(kinds[kind], 0, 1, &options);
        let (at, _) = bed.buffer(0, 0x1000);
        let window = bed.make_key(0, at, 0x1000, at, AccessFlags::UMR_EN);
        assert!(bed.hca(0).device.objects.mkeys.change(window >> 8, |mkey| mkey.octowords = 64).is_some());
        for mut block in blocks {
            if sane {
                // Well-formed enough to get past the first checks.
                block[0] = 0;
                block[1..3].copy_from_slice(&a.posted.to_be_bytes());
                let opcodes = [0x00, 0x01, 0x08, 0x09, 0x0a, 0x0b, 0x10, 0x11, 0x12, 0x25, 0x25];
                block[3] = opcodes[usize::from(block[3]) % opcodes.len()];
                let mut ds = 1 + u32::from(block[7] % 4);
                if block[3] == 0x25 {
                    // A UMR of a key that exists, with translations of any kind behind it.
                    ds = 8 + u32::from(block[7] % 5);
                    block[12..16].copy_from_slice(&window.to_be_bytes());
                    block[16] &= 0xf8;
                    block[17..20].fill(0);
                    block[20] = 0;
                    block[21] %= 9;
                    block[36..64].fill(0);
                    let (len, seed) = ((ds as usize * 16).div_ceil(64) * 64, block.clone());
                    block.extend((64..len).map(|i| seed[(i * 7) % 36] ^ i as u8));
                }
                block[4..8].copy_from_slice(&(a.qpn << 8 | ds).to_be_bytes());
                block[8..11].fill(0);
                block[11] &= 0x4e;
            }
            bed.post_raw(&mut a, &block);
        }
        // The last one asks for a completion: its own, or a flush.
        bed.post(&mut a, &Request::new(mlx5_prm::datapath::SendOpcode::NOP, &[]));
        bed.ring(&a);
        bed.run_for(10_000_000);
        let mut completions = 0;
        while bed.poll_cq(0, a.cqn).is_some() {
            completions += 1;
        }
        prop_assert!(completions > 0);
    }
}

//! UD, QP1, multicast.

use mlx5_prm::contexts::qpc;
use mlx5_prm::datapath::{CqeOpcode, EXTENDED_UD_AV, SendOpcode, av};
use mlx5_prm::status::CqeSyndrome;
use mlx5_prm::value::{QpState, ServiceType};

use super::bed::{Bed, Handle, Options, pattern};
use super::requests::Request;
use rdma_fabric::infiniband::packet::QKEY_GSI;
use rdma_fabric::ports::PortIndex;

fn ready(bed: &mut Bed, node: usize, service: ServiceType) -> Handle {
    let qp = bed.make_qp(node, service, &Options::default());
    bed.modify(&qp, QpState::RTR);
    bed.modify(&qp, QpState::RTS);
    qp
}

fn vector(dqpn: u32, qkey: u32, rlid: u16) -> [u8; 48] {
    let mut bytes = [0; 48];
    av::qkey.set(&mut bytes, qkey);
    bytes[8..12].copy_from_slice(&(EXTENDED_UD_AV | dqpn).to_be_bytes());
    av::rlid.set(&mut bytes, rlid);
    av::sl.set(&mut bytes, 5u8);
    bytes
}

fn send(bed: &mut Bed, qp: &mut Handle, address: [u8; 48], payload: &[u8]) {
    let mut request = Request::new(SendOpcode::SEND, &[]);
    request.inline = Some(payload.to_vec());
    bed.post_with_av(qp, &request, Some(address));
    bed.ring(qp);
    let done = bed.wait(qp);
    assert_eq!((done.opcode, done.syndrome), (CqeOpcode::REQ, 0));
}

#[test]
fn datagrams_with_and_without_grh() {
    let mut bed = Bed::new(2);
    let (mut a, mut b) = (ready(&mut bed, 0, ServiceType::UD), ready(&mut bed, 1, ServiceType::UD));
    let (to, key) = bed.buffer(1, 0x2000);
    let lid = bed.hca(1).device.port.lid;
    let payload = pattern(1, 1, 300);
    bed.guests[1].write(to, &[0x77; 400]);
    bed.receive(&mut b, &[(to, 0x2000, key)]);
    send(&mut bed, &mut a, vector(b.qpn, 0x1111, lid), &payload);
    let got = bed.wait(&b);
    assert_eq!((got.opcode, got.bytes, got.grh), (CqeOpcode::RESP_SEND, 340, 0));
    assert_eq!(got.source, (bed.hca(0).device.port.lid, a.qpn, 5));
    assert_eq!(bed.guests[1].read(to + 40, 300), payload);

    let mut address = vector(b.qpn, 0x1111, lid);
    av::grh.set(&mut address, 1u8);
    av::hop_limit.set(&mut address, 9u8);
    av::tclass.set(&mut address, 0x3cu8);
    av::flow_label.set(&mut address, 0x1_2345u32);
    let dgid = bed.hca(1).device.port.gid(0);
    address[0x20..].copy_from_slice(&dgid);
    bed.receive(&mut b, &[(to, 20, key), (to + 0x1000, 0x1000, key)]);
    send(&mut bed, &mut a, address, &payload);
    let got = bed.wait(&b);
    assert_eq!((got.bytes, got.grh), (340, 1));
    let grh = [bed.guests[1].read(to, 20), bed.guests[1].read(to + 0x1000, 20)].concat();
    assert_eq!(
        grh[..8],
        [0x63, 0xc1, 0x23, 0x45, 0x01, 0x44, 0x1b, 9],
        "payload length: BTH, DETH, 300, ICRC"
    );
    assert_eq!(grh[8..24], bed.hca(0).device.port.gid(0));
    assert_eq!(grh[24..], dgid);
    assert_eq!(bed.guests[1].read(to + 0x1014, 300), payload);
    // By the default prefix too, whatever the subnet's is; by another's GID not.
    let missed = bed.counters(1).no_qp;
    for (byte, arrives) in [(address[0x20], true), (0x20, false)] {
        address[0x20] = byte;
        bed.receive(&mut b, &[(to, 0x1000, key)]);
        send(&mut bed, &mut a, address, &payload);
        bed.run_for(100_000);
        assert_eq!(bed.poll_cq(1, b.cqn).is_some(), arrives);
    }
    assert_eq!(bed.counters(1).no_qp, missed + 1);
}

#[test]
fn datagrams_that_are_not_taken() {
    let mut bed = Bed::new(2);
    let (mut a, mut b) = (ready(&mut bed, 0, ServiceType::UD), ready(&mut bed, 1, ServiceType::UD));
    let (to, key) = bed.buffer(1, 0x1000);
    let lid = bed.hca(1).device.port.lid;
    // No receive.
    send(&mut bed, &mut a, vector(b.qpn, 0x1111, lid), &[1]);
    bed.run_for(100_000);
    assert_eq!(bed.counters(1).datagrams_dropped, 1);
    let index = bed.receive(&mut b, &[(to, 100, key)]);
    // Wrong Q_Key, too long, no such QP, not a datagram QP.
    send(&mut bed, &mut a, vector(b.qpn, 0x1112, lid), &[1]);
    send(&mut bed, &mut a, vector(b.qpn, 0x1111, lid), &[1; 61]);
    send(&mut bed, &mut a, vector(b.qpn + 77, 0x1111, lid), &[1]);
    let (_, rc) = bed.pair(&Options::default());
    send(&mut bed, &mut a, vector(rc.qpn, 0x1111, lid), &[1]);
    // A foreign partition.
    for pkey in [0x8001, 0xffff] {
        bed.world.medium.fabric_mut().set_partitions(PortIndex(0), &[pkey], bed.now);
        bed.run_until("it is programmed", |bed| bed.hca(0).device.port.pkeys[0] == pkey);
        if pkey == 0x8001 {
            send(&mut bed, &mut a, vector(b.qpn, 0x1111, lid), &[1]);
            bed.run_for(100_000);
        }
    }
    assert_eq!(bed.poll_cq(1, b.cqn), None);
    let counters = bed.counters(1);
    assert_eq!((counters.qkey_mismatches, counters.datagrams_dropped), (1, 2));
    assert_eq!((counters.no_qp, counters.pkey_mismatches), (2, 1));
    assert_eq!((bed.hca(1).device.port.pkey_violations, bed.hca(1).device.port.qkey_violations), (1, 1));
    // The QP is as before, and the receive still there.
    send(&mut bed, &mut a, vector(b.qpn, 0x1111, lid), &[9; 60]);
    let got = bed.wait(&b);
    assert_eq!((got.counter, got.bytes), (index, 100));
}

#[test]
fn a_controlled_q_key_is_the_senders_own() {
    let mut bed = Bed::new(2);
    let (mut a, mut b) = (ready(&mut bed, 0, ServiceType::UD), ready(&mut bed, 1, ServiceType::UD));
    let (to, key) = bed.buffer(1, 0x1000);
    let lid = bed.hca(1).device.port.lid;
    bed.receive(&mut b, &[(to, 0x1000, key)]);
    send(&mut bed, &mut a, vector(b.qpn, 0x8000_0000, lid), &[3; 8]);
    assert_eq!(bed.wait(&b).bytes, 48);
}

#[test]
fn address_vectors_may_be_compact() {
    let mut bed = Bed::new(2);
    let (mut a, mut b) = (ready(&mut bed, 0, ServiceType::UD), ready(&mut bed, 1, ServiceType::UD));
    let (to, key) = bed.buffer(1, 0x2000);
    let mut compact = vector(b.qpn, 0x1111, bed.hca(1).device.port.lid);
    compact[8] = 0;
    // In one basic block, and in more than one.
    for length in [8, 300] {
        let payload = pattern(1, 1, length);
        bed.receive(&mut b, &[(to, 0x2000, key)]);
        send(&mut bed, &mut a, compact, &payload);
        let got = bed.wait(&b);
        assert_eq!((got.opcode, got.bytes, got.grh), (CqeOpcode::RESP_SEND, 40 + length as u32, 0));
        assert_eq!(got.source, (bed.hca(0).device.port.lid, a.qpn, 5));
        assert_eq!(bed.guests[1].read(to + 40, length), payload);
    }
}

#[test]
fn errors_of_a_datagram_stop_its_send_queue_only() {
    let mut bed = Bed::new(2);
    let (mut a, mut b) = (ready(&mut bed, 0, ServiceType::UD), ready(&mut bed, 1, ServiceType::UD));
    let (to, key) = bed.buffer(0, 0x2000);
    let lids = [bed.hca(0).device.port.lid, bed.hca(1).device.port.lid];
    let too_long = Request::new(SendOpcode::SEND, &[(to, 4097, key)]);
    let bad_key = Request::new(SendOpcode::SEND, &[(to, 8, 0x5555)]);
    let good = Request::new(SendOpcode::SEND, &[]);
    let write = Request::new(SendOpcode::RDMA_WRITE, &[]);
    let address = vector(b.qpn, 0x1111, lids[1]);
    for (request, address, syndrome) in [
        (&too_long, address, CqeSyndrome::LOCAL_LENGTH_ERR),
        (&bad_key, address, CqeSyndrome::LOCAL_PROT_ERR),
        (&write, address, CqeSyndrome::LOCAL_QP_OP_ERR),
    ] {
        let first = bed.post_with_av(&mut a, request, Some(address));
        let second = bed.post_with_av(&mut a, &good, Some(address));
        bed.ring(&a);
        let got = [bed.wait(&a), bed.wait(&a)].map(|got| (got.opcode, got.syndrome, got.counter));
        assert_eq!(got, [(CqeOpcode::REQ_ERR, syndrome.0, first), (CqeOpcode::REQ_ERR, 5, second)]);
        assert_eq!(bed.qp(&a).state(), QpState::SQER);
        // Receives go on meanwhile.
        bed.receive(&mut a, &[(to, 0x2000, key)]);
        send(&mut bed, &mut b, vector(a.qpn, 0x1111, lids[0]), &[1]);
        assert_eq!(bed.wait(&a).opcode, CqeOpcode::RESP_SEND);
        // A send posted meanwhile is flushed; SQERR2RTS ends it.
        let third = bed.post_with_av(&mut a, &good, Some(address));
        bed.ring(&a);
        let got = bed.wait(&a);
        assert_eq!((got.syndrome, got.counter), (5, third));
        bed.modify(&a, QpState::RTS);
    }
}

#[test]
fn general_services_by_qp1_and_by_a_queue_that_speaks_for_it() {
    let mut bed = Bed::new(2);
    let gsi: Vec<_> = (0..2).map(|node| ready(&mut bed, node, ServiceType::QP1)).collect();
    let [mut a, mut b] = [gsi[0].clone(), gsi[1].clone()];
    for qp in &gsi {
        bed.set(qp, qpc::q_key, QKEY_GSI);
    }
    let (to, key) = bed.buffer(1, 0x1000);
    let lid = bed.hca(1).device.port.lid;
    let mad = pattern(3, 3, 256);
    bed.receive(&mut b, &[(to, 296, key)]);
    send(&mut bed, &mut a, vector(1, QKEY_GSI, lid), &mad);
    let got = bed.wait(&b);
    assert_eq!((got.bytes, got.immediate, got.source.1), (296, 0xffff, 1), "P_Key in the immediate's place");
    assert_eq!(bed.guests[1].read(to + 40, 256), mad);
    // An ordinary UD queue pair with deth_sqpn 1.
    let mut ud = ready(&mut bed, 0, ServiceType::UD);
    bed.set(&ud, qpc::deth_sqpn, 1);
    bed.set(&ud, qpc::q_key, QKEY_GSI);
    bed.receive(&mut b, &[(to, 296, key)]);
    send(&mut bed, &mut ud, vector(1, QKEY_GSI, lid), &mad);
    assert_eq!(bed.wait(&b).source.1, 1);
}

#[test]
fn a_path_query_from_qp1() {
    for pkey in [0xffff, 0x7fff] {
        path_query_of_a_member(pkey);
    }
}

fn path_query_of_a_member(pkey: u16) {
    use ib_mgmt::mad::{Mad, attr, class, method};
    let mut bed = Bed::new(2);
    let now = bed.now;
    bed.world.medium.fabric_mut().set_partitions(PortIndex(0), &[pkey], now);
    bed.run_until("it is a member", |bed| bed.hca(0).device.port.pkeys[0] == pkey);
    let mut a = ready(&mut bed, 0, ServiceType::QP1);
    bed.set(&a, qpc::q_key, QKEY_GSI);
    let (at, key) = bed.buffer(0, 0x1000);
    bed.receive(&mut a, &[(at, 296, key)]);
    let mut mad = Mad::new(class::SUBN_ADM, 2, method::GET, attr::PATH_RECORD, 0x55);
    let gids = [bed.hca(0).device.port.gid(0), bed.hca(1).device.port.gid(0)];
    mad.as_bytes_mut()[48..56].copy_from_slice(&(1u64 << 2 | 1 << 3).to_be_bytes());
    mad.as_bytes_mut()[64..80].copy_from_slice(&gids[1]);
    mad.as_bytes_mut()[80..96].copy_from_slice(&gids[0]);
    let sm_lid = bed.hca(0).device.port.sm_lid;
    let mut request = Request::new(SendOpcode::SEND, &[]);
    request.inline = Some(mad.as_bytes().to_vec());
    bed.post_with_av(&mut a, &request, Some(vector(1, QKEY_GSI, sm_lid)));
    bed.ring(&a);
    let mut got = [bed.wait(&a), bed.wait(&a)];
    got.sort_by_key(|got| got.opcode);
    assert_eq!((got[1].opcode, got[1].bytes, got[1].source), (CqeOpcode::RESP_SEND, 296, (sm_lid, 1, 5)));
    let reply = bed.guests[0].read(at + 40, 256);
    assert_eq!((reply[3], &reply[4..6]), (0x81, &[0, 0][..]));
    assert_eq!(reply[56 + 40..56 + 42], bed.hca(1).device.port.lid.to_be_bytes());
}

#[test]
fn multicast_reaches_attached_queues_here_and_there() {
    let mut bed = Bed::new(3);
    let group = [0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
    let mut qps: Vec<_> = (0..3).map(|node| ready(&mut bed, node, ServiceType::UD)).collect();
    // Nodes join at the administrator in its own tests; here the group exists once one of them asks.
    let mut join = ib_mgmt::mad::Mad::new(3, 2, 2, 0x38, 1);
    let mask = 1u64 | 1 << 2 | 1 << 6 | 1 << 7 | 1 << 12 | 1 << 13 | 1 << 16;
    join.as_bytes_mut()[48..56].copy_from_slice(&mask.to_be_bytes());
    join.as_bytes_mut()[56..72].copy_from_slice(&group);
    join.as_bytes_mut()[88..92].copy_from_slice(&0x1111u32.to_be_bytes());
    join.as_bytes_mut()[96..98].copy_from_slice(&[0xff, 0xff]);
    join.as_bytes_mut()[104] = 1;
    let mut mlid = 0;
    for (node, qp) in qps.iter_mut().enumerate() {
        let mut gsi = ready(&mut bed, node, ServiceType::QP1);
        bed.set(&gsi, qpc::q_key, QKEY_GSI);
        let (at, key) = bed.buffer(node, 0x1000);
        bed.receive(&mut gsi, &[(at, 296, key)]);
        let mut request = Request::new(SendOpcode::SEND, &[]);
        request.inline = Some(join.as_bytes().to_vec());
        bed.post_with_av(&mut gsi, &request, Some(vector(1, QKEY_GSI, 1)));
        bed.ring(&gsi);
        bed.wait(&gsi);
        bed.wait(&gsi);
        let reply = bed.guests[node].read(at + 40, 256);
        assert_eq!(reply[4..6], [0, 0]);
        mlid = u16::from_be_bytes([reply[92], reply[93]]);
        let qpn = qp.qpn;
        bed.hca(node).device.objects.qps.attach(group, qpn);
        let (to, key) = bed.buffer(node, 0x1000);
        bed.receive(qp, &[(to, 0x1000, key)]);
    }
    let mut address = vector(0xff_ffff, 0x1111, mlid);
    av::grh.set(&mut address, 1u8);
    address[0x20..].copy_from_slice(&group);
    let mut sender = ready(&mut bed, 0, ServiceType::UD);
    send(&mut bed, &mut sender, address, &[0x42; 12]);
    for qp in &qps {
        let got = bed.wait(qp);
        assert_eq!((got.bytes, got.grh, got.source.1), (52, 1, sender.qpn));
    }
}

#[test]
fn a_datagram_to_the_own_port() {
    let mut bed = Bed::new(1);
    let (mut a, mut b) = (ready(&mut bed, 0, ServiceType::UD), ready(&mut bed, 0, ServiceType::UD));
    let (to, key) = bed.buffer(0, 0x1000);
    let lid = bed.hca(0).device.port.lid;
    bed.receive(&mut b, &[(to, 0x1000, key)]);
    send(&mut bed, &mut a, vector(b.qpn, 0x1111, lid), &pattern(1, 2, 77));
    assert_eq!(bed.wait(&b).bytes, 117);
    assert_eq!(bed.guests[0].read(to + 40, 77), pattern(1, 2, 77));
}

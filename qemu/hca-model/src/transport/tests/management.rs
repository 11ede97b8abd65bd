//! What the device answers itself, and what it leaves to the software behind QP0 and QP1.

use ib_mgmt::mad::{Mad, attr, class, method};
use ib_mgmt::pma;
use ib_mgmt::sa::{InformInfo, Notice, SaMad, trap};
use ib_mgmt::smp::{NodeInfo, PortInfo, Smp, node_type, phys_state};
use mlx5_prm::contexts::qpc;
use mlx5_prm::datapath::{CqeOpcode, EXTENDED_UD_AV, SendOpcode, av};
use mlx5_prm::value::{PortState, QpState, RegisterId, ServiceType};

use super::bed::{Bed, Handle, Options};
use super::requests::Request;
use rdma_fabric::infiniband::SWITCH_GUID;
use rdma_fabric::infiniband::packet::QKEY_GSI;
use rdma_fabric::ports::PortIndex;

/// A management QP with one receive, and where that lands.
pub(super) fn management_qp(bed: &mut Bed, node: usize, service: ServiceType) -> (Handle, u64, u32) {
    let mut qp = bed.make_qp(node, service, &Options::default());
    if service == ServiceType::QP0 {
        bed.set(&qp, qpc::q_key, 0);
    } else {
        bed.set(&qp, qpc::q_key, QKEY_GSI);
    }
    bed.modify(&qp, QpState::RTR);
    bed.modify(&qp, QpState::RTS);
    let (at, key) = bed.buffer(node, 0x1000);
    bed.receive(&mut qp, &[(at, 296, key)]);
    (qp, at, key)
}

pub(super) fn vector(qpn: u32, qkey: u32, lid: u16) -> [u8; 48] {
    let mut bytes = [0; 48];
    av::qkey.set(&mut bytes, qkey);
    bytes[8..12].copy_from_slice(&(EXTENDED_UD_AV | qpn).to_be_bytes());
    av::rlid.set(&mut bytes, lid);
    bytes
}

/// Sends a MAD and answers with the one that comes back, with the LID and QP number it is from.
pub(super) fn ask(
    bed: &mut Bed,
    qp: &mut (Handle, u64, u32),
    lid: u16,
    mad: &[u8; 256],
) -> (Mad, (u16, u32)) {
    let mut request = Request::new(SendOpcode::SEND, &[]);
    request.inline = Some(mad.to_vec());
    let (number, qkey) = if bed.qp(&qp.0).q_key() == 0 { (0, 0) } else { (1, QKEY_GSI) };
    bed.post_with_av(&mut qp.0, &request, Some(vector(number, qkey, lid)));
    bed.ring(&qp.0);
    let mut got = [bed.wait(&qp.0), bed.wait(&qp.0)];
    got.sort_by_key(|got| got.opcode);
    assert_eq!((got[1].opcode, got[1].bytes), (CqeOpcode::RESP_SEND, 296));
    let reply: [u8; 256] = bed.guests[qp.0.node].read(qp.1 + 40, 256).try_into().unwrap();
    bed.receive(&mut qp.0, &[(qp.1, 296, qp.2)]);
    (Mad::from_bytes(reply), (got[1].source.0, got[1].source.1))
}

#[test]
fn software_behind_qp0_asks_by_lid_and_by_direction() {
    let mut bed = Bed::new(2);
    let mut qp = management_qp(&mut bed, 0, ServiceType::QP0);
    let [own, other] = [0, 1].map(|node| bed.hca(node).device.port.lid);
    let get = |attribute, modifier| Smp::lid_routed(method::GET, attribute, modifier, 0x77);
    // The switch, the other adapter's agent, and the own one.
    for (lid, guid) in
        [(1, SWITCH_GUID), (other, bed.hca(1).device.port.port_guid), (own, bed.hca(0).device.port.port_guid)]
    {
        let (reply, source) = ask(&mut bed, &mut qp, lid, get(attr::NODE_INFO, 0).as_bytes());
        assert_eq!((reply.method(), reply.status(), reply.tid(), source), (0x81, 0, 0x77, (lid, 0)));
        let info = NodeInfo::from_slice(&reply.as_bytes()[64..]).unwrap();
        assert_eq!(info.port_guid(), guid);
    }
    let (reply, _) = ask(&mut bed, &mut qp, 1, get(attr::SM_INFO, 0).as_bytes());
    assert_eq!((reply.status(), reply.as_bytes()[64 + 20]), (0, 0xf3), "priority 15, master");
    // By two hops; the device sends without LIDs, and gets the answer the same way.
    let mut smp = Smp::directed_route(method::GET, attr::NODE_INFO, 0, 0x78, &[1, 2]);
    smp.set_hop_pointer(1);
    let (reply, source) = ask(&mut bed, &mut qp, 0xffff, smp.as_bytes());
    assert_eq!((reply.status(), reply.tid(), source), (0x8000, 0x78, (0xffff, 0)));
    let info = NodeInfo::from_slice(&reply.as_bytes()[64..]).unwrap();
    assert_eq!((info.node_type(), info.port_guid()), (node_type::CA, bed.hca(1).device.port.port_guid));
}

#[test]
fn a_virtual_function_has_no_management_lane() {
    let mut bed = Bed::new(2);
    let mut a = management_qp(&mut bed, 0, ServiceType::QP0);
    let mut b = management_qp(&mut bed, 1, ServiceType::QP0);
    bed.hca(1).device.port.has_smi = false;
    let lid = bed.hca(1).device.port.lid;
    // Its agent answers, also for what would be software's business.
    let get = |attribute| Smp::lid_routed(method::GET, attribute, 0, 0x77);
    let (reply, source) = ask(&mut bed, &mut a, lid, get(attr::NODE_INFO).as_bytes());
    assert_eq!((reply.status(), source), (0, (lid, 0)));
    let (reply, _) = ask(&mut bed, &mut a, lid, get(attr::SM_INFO).as_bytes());
    assert_eq!(reply.status(), ib_mgmt::mad::status::ATTR_NOT_SUPPORTED);
    assert_eq!(bed.poll_cq(1, b.0.cqn), None);
    // What it sends completes, and goes nowhere.
    let before = bed.hca(1).device.port.counters;
    for to in [1, lid] {
        let mut request = Request::new(SendOpcode::SEND, &[]);
        request.inline = Some(get(attr::NODE_INFO).as_bytes().to_vec());
        bed.post_with_av(&mut b.0, &request, Some(vector(0, 0, to)));
        bed.ring(&b.0);
        let handle = b.0.clone();
        assert_eq!(bed.wait(&handle).opcode, CqeOpcode::REQ);
    }
    bed.run_for(1_000_000);
    assert_eq!(bed.poll_cq(1, b.0.cqn), None);
    let after = bed.hca(1).device.port.counters;
    assert_eq!(after.xmit_discards - before.xmit_discards, 2);
    assert_eq!(after.xmit_packets, before.xmit_packets);
}

#[test]
fn what_is_no_request_for_the_agent_goes_to_software() {
    let mut bed = Bed::new(2);
    let mut a = management_qp(&mut bed, 0, ServiceType::QP0);
    let b = management_qp(&mut bed, 1, ServiceType::QP0);
    let lid = bed.hca(1).device.port.lid;
    for (i, smp) in [
        Smp::lid_routed(method::TRAP, attr::NOTICE, 0, 1),
        Smp::lid_routed(method::GET_RESP, attr::NODE_INFO, 0, 2),
        Smp::lid_routed(method::GET, attr::SM_INFO, 0, 3),
    ]
    .iter()
    .enumerate()
    {
        let mut request = Request::new(SendOpcode::SEND, &[]);
        request.inline = Some(smp.as_bytes().to_vec());
        bed.post_with_av(&mut a.0, &request, Some(vector(0, 0, lid)));
        bed.ring(&a.0);
        assert_eq!(bed.wait(&a.0).syndrome, 0);
        if i == 0 {
            assert_eq!(bed.wait(&b.0).opcode, CqeOpcode::RESP_SEND);
            assert_eq!(bed.guests[1].read(b.1 + 40, 256), smp.as_bytes());
        }
    }
    // The receive is used up: what comes then is dropped, and counts.
    bed.run_until("dropped", |bed| bed.hca(1).device.port.counters.vl15_dropped == 2);
}

#[test]
fn counters_are_told_by_the_device_and_agree_with_the_traffic() {
    let mut bed = Bed::new(2);
    let mut qp = management_qp(&mut bed, 0, ServiceType::QP1);
    let [own, other] = [0, 1].map(|node| bed.hca(node).device.port.lid);
    let get = |attribute, port: u8| {
        let mut mad = Mad::new(class::PERF_MGMT, 1, method::GET, attribute, 0x5a);
        pma::set_data(&mut mad, &[0, port]);
        mad
    };
    for lid in [other, own, 1] {
        let (reply, source) = ask(&mut bed, &mut qp, lid, get(attr::CLASS_PORT_INFO, 0).as_bytes());
        assert_eq!((reply.base_version(), reply.status(), source), (1, 0, (lid, 1)));
    }
    // The other port has no software at all.
    let (reply, _) = ask(&mut bed, &mut qp, other, get(pma::attr::PORT_COUNTERS_EXTENDED, 1).as_bytes());
    let before = pma::PortCountersExtended::from_slice(pma::data(&reply)).unwrap();
    let (reply, _) = ask(&mut bed, &mut qp, other, get(pma::attr::PORT_COUNTERS_EXTENDED, 1).as_bytes());
    let after = pma::PortCountersExtended::from_slice(pma::data(&reply)).unwrap();
    // One answer out, one question in: LRH, BTH, DETH, MAD, ICRC are 288 bytes.
    assert_eq!(after.xmit_packets() - before.xmit_packets(), 1);
    assert_eq!(after.rcv_data() - before.rcv_data(), 288 / 4);
    assert_eq!(after.unicast_rcv_packets(), after.rcv_packets());
    assert!(after.unicast_rcv_packets() > 7, "the subnet manager's questions count too");
    let (reply, _) = ask(&mut bed, &mut qp, other, get(pma::attr::PORT_COUNTERS, 0).as_bytes());
    assert_eq!(reply.status(), 0, "whoever names no port means the only one");
    let (reply, _) = ask(&mut bed, &mut qp, other, get(pma::attr::PORT_COUNTERS, 2).as_bytes());
    assert_eq!(reply.status(), ib_mgmt::mad::status::INVALID_FIELD);
}

#[test]
fn changed_capabilities_are_told_to_the_subnet_manager() {
    let mut bed = Bed::new(1);
    let before = (bed.hca(0).device.port.counters.xmit_packets, bed.now);
    bed.hca(0).device.port.capability_mask ^= 1 << 16;
    let mask = bed.hca(0).device.port.capability_mask;
    bed.run_until("the subnet manager knows", |bed| {
        let known = bed.world.medium.fabric().port_record(PortIndex(0)).unwrap().port_info.unwrap();
        known.capability_mask() == mask
    });
    // The trap, and the answer to the subnet manager's look at the port, long before it would have looked by itself.
    assert_eq!(bed.hca(0).device.port.counters.xmit_packets - before.0, 2, "trap {}", trap::CAPABILITY);
    assert!(bed.now - before.1 < 5_000_000_000);
}

#[test]
fn a_port_shows_its_lanes_to_the_subnet_manager() {
    let bed = Bed::new(1);
    let known = bed.world.medium.fabric().port_record(PortIndex(0)).unwrap().clone();
    assert_eq!(
        known.sl_to_vl,
        Some([0x01, 0x23, 0x01, 0x23, 0x01, 0x23, 0x01, 0x23]),
        "16 levels, four lanes"
    );
    assert_eq!(
        known.vl_arbitration.keys().copied().collect::<Vec<_>>(),
        [1, 3],
        "eight entries of each priority"
    );
}

#[test]
fn a_changed_description_is_told_to_the_subnet_manager_and_read_by_it() {
    let mut bed = Bed::new(1);
    let before = (bed.hca(0).device.port.counters.xmit_packets, bed.now);
    let mut text = [0; 64];
    text[..6].copy_from_slice(b"host 7");
    bed.hca(0).device.access(RegisterId::NODE_DESC, true, &mut text).expect("taken");
    bed.run_until("the subnet manager knows", |bed| {
        bed.world.medium.fabric().port_record(PortIndex(0)).unwrap().description.unwrap().as_str() == "host 7"
    });
    assert!(bed.now - before.1 < 5_000_000_000);
    bed.run_for(100_000_000);
    assert_eq!(
        bed.hca(0).device.port.counters.xmit_packets - before.0,
        6,
        "trap, description, PortInfo, three tables of lanes"
    );
    // The same again is no news; and what was read need not be told.
    bed.hca(0).device.access(RegisterId::NODE_DESC, true, &mut text).expect("taken");
    bed.run_for(100_000_000);
    assert_eq!(bed.hca(0).device.port.counters.xmit_packets - before.0, 6);
    assert!(bed.world.medium.fabric().port_record(PortIndex(0)).unwrap().active);
}

/// Notices that reach a subscriber of `number` at node 0.
fn subscribed(bed: &mut Bed, number: u16) -> (Handle, u64, u32) {
    let mut qp = management_qp(bed, 0, ServiceType::QP1);
    let mut mad = SaMad::request(method::SET, attr::INFORM_INFO, 0, 9);
    // To the QP that asks.
    mad.set_record_data(InformInfo::subscription(number).set_qpn(0).as_bytes());
    let (reply, _) = ask(bed, &mut qp, 1, mad.to_mad().as_bytes());
    assert_eq!(reply.status(), 0);
    qp
}

#[test]
fn a_wrong_management_key_is_told_to_the_subnet_manager_once_a_while() {
    let mut bed = Bed::new(2);
    let subscriber = subscribed(&mut bed, trap::BAD_M_KEY);
    let mut qp0 = management_qp(&mut bed, 0, ServiceType::QP0);
    let [own, lid] = [0, 1].map(|node| bed.hca(node).device.port.lid);
    // A key of the fabric's own, which none may even read without; the switch itself lets no such Set pass.
    assert_ne!(bed.hca(1).device.port.m_key, 0);
    bed.hca(1).device.port.m_key_protect = 2;
    let mut smp = Smp::lid_routed(method::GET, attr::GUID_INFO, 0, 0x42);
    smp.set_m_key(0x1122_3344_5566_7788);
    let sent = bed.hca(1).device.port.counters.xmit_packets;
    for _ in 0..5 {
        let mut request = Request::new(SendOpcode::SEND, &[]);
        request.inline = Some(smp.as_bytes().to_vec());
        bed.post_with_av(&mut qp0.0, &request, Some(vector(0, 0, lid)));
        bed.ring(&qp0.0);
        assert_eq!(bed.wait(&qp0.0).syndrome, 0);
    }
    assert_eq!(bed.wait(&subscriber.0).opcode, CqeOpcode::RESP_SEND);
    let report = bed.guests[0].read(subscriber.1 + 40 + 56, 80);
    let notice = Notice::from_slice(&report).unwrap();
    assert_eq!((notice.trap_number(), notice.issuer_lid(), notice.notice_type()), (trap::BAD_M_KEY, lid, 2));
    let details = notice.details();
    assert_eq!(details[2..6], [(own >> 8) as u8, own as u8, 0, 0]);
    assert_eq!(details[6..14], [method::GET, 0, 0, 0x14, 0, 0, 0, 0]);
    assert_eq!(details[14..22], 0x1122_3344_5566_7788u64.to_be_bytes());
    assert_eq!(bed.hca(1).device.port.m_key_violations, 5);
    assert_eq!(bed.hca(1).device.port.counters.xmit_packets - sent, 1, "one trap, no answers");
}

#[test]
fn who_lost_the_key_waits_for_its_lease_to_end() {
    let mut bed = Bed::new(2);
    let mut qp = management_qp(&mut bed, 0, ServiceType::QP0);
    let port = &mut bed.hca(1).device.port;
    let (lid, key) = (port.lid, port.m_key);
    (port.m_key_protect, port.m_key_lease_period) = (2, 1);
    let get = Smp::lid_routed(method::GET, attr::PORT_INFO, 1, 0x42);
    let mut send = |bed: &mut Bed| {
        let mut request = Request::new(SendOpcode::SEND, &[]);
        request.inline = Some(get.as_bytes().to_vec());
        bed.post_with_av(&mut qp.0, &request, Some(vector(0, 0, lid)));
        bed.ring(&qp.0);
        assert_eq!(bed.wait(&qp.0).opcode, CqeOpcode::REQ);
    };
    send(&mut bed);
    bed.run_for(999_000_000);
    assert_eq!(bed.poll_cq(0, qp.0.cqn), None, "no answer");
    bed.run_for(2_000_000);
    let (reply, _) = ask(&mut bed, &mut qp, lid, get.as_bytes());
    let info = PortInfo::from_slice(&reply.as_bytes()[64..]).unwrap();
    assert_eq!((info.m_key(), info.m_key_protect()), (key, 0), "the key stays, and is shown");
}

#[test]
fn the_switch_takes_a_link_down_and_lets_it_up_again() {
    let mut bed = Bed::new(2);
    let mut qp = management_qp(&mut bed, 0, ServiceType::QP0);
    let lid = bed.hca(1).device.port.lid;
    for (physical, state) in
        [(phys_state::DISABLED, PortState::DOWN), (phys_state::POLLING, PortState::ACTIVE)]
    {
        let mut smp = Smp::lid_routed(method::SET, attr::PORT_INFO, 2, 0x42);
        smp.set_m_key(bed.world.medium.fabric().config().m_key);
        smp.set_data(PortInfo::zeroed().set_port_phys_state(physical).as_bytes());
        let (reply, _) = ask(&mut bed, &mut qp, 1, smp.as_bytes());
        assert_eq!(reply.status(), 0);
        bed.run_until("the port follows", |bed| bed.hca(1).device.port.state == state);
    }
    assert_eq!(bed.hca(1).device.port.lid, lid);
    assert_eq!(bed.hca(1).device.port.counters.link_downed, 1);
}

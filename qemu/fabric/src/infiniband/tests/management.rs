//! The switch as a node: what its agents answer, directed routes through it, traps, ports switched off, losses by flow.

use crate::infiniband::packet::{QKEY_GSI, icrc_is_right};
use ib_mgmt::pma;
use ib_mgmt::sa::{Notice, notice_type, producer, trap};
use ib_mgmt::smp::{SmInfo, SwitchInfo, phys_state};

use super::super::manager::DEFAULT_PKEY;
use super::*;

/// A packet of QP0: directed ones without LIDs, others from `slid` to `dlid`.
pub(super) fn smp_packet(smp: &Smp, slid: u16, dlid: u16) -> Packet {
    let route = MadRoute {
        vl: 15,
        sl: 0,
        slid,
        dlid,
        pkey: 0xffff,
        source_qpn: 0,
        dest_qpn: 0,
        qkey: 0,
        psn: 0,
        grh: None,
    };
    mad_packet(&route, smp.as_bytes())
}

/// The next SMP at a port.
pub(super) fn next_smp(fabric: &mut Fabric, at: PortIndex) -> Option<Smp> {
    fabric.poll(1 << 40);
    let packet = fabric.receive(at, u64::MAX)?;
    let shape = Shape::of(packet.bytes())?;
    assert!(icrc_is_right(packet.bytes()));
    assert_eq!((shape.lrh.vl, shape.bth.dest_qpn), (15, 0));
    Some(Smp::from_mad(&datagram(&shape, packet.bytes())?.1))
}

/// Sends an SMP by LID and answers with what comes back.
pub(super) fn ask_switch(fabric: &mut Fabric, agent: &Agent, smp: &Smp) -> Option<Smp> {
    fabric.send(agent.index, smp_packet(smp, agent.lid(), SM_LID), 1 << 40);
    let reply = loop {
        match next_smp(fabric, agent.index) {
            // A sweep.
            Some(other)
                if other.mgmt_class() == class::SUBN_DIRECTED_ROUTE && other.method() == method::GET => {}
            other => break other,
        }
    };
    if let Some(reply) = reply {
        assert_eq!((reply.tid(), reply.attr_id()), (smp.tid(), smp.attr_id()));
    }
    reply
}

pub(super) fn get(attribute: u16, modifier: u32) -> Smp {
    Smp::lid_routed(method::GET, attribute, modifier, 0x1234)
}

#[test]
fn the_switch_tells_what_it_is() {
    let (mut fabric, mut agents) = fabric_of(3, "", 1);
    bring_up(&mut fabric, &mut agents);
    let a = &agents[1];
    let mut data = |attribute, modifier| {
        let reply = ask_switch(&mut fabric, a, &get(attribute, modifier)).unwrap();
        assert_eq!((reply.method(), reply.status()), (method::GET_RESP, 0), "{attribute:#x}");
        *reply.data()
    };
    let info = NodeInfo::from_slice(&data(attr::NODE_INFO, 0)).unwrap();
    assert_eq!((info.node_type(), info.num_ports(), info.local_port_num()), (2, 36, 2));
    assert_eq!((info.node_guid(), info.port_guid()), (SWITCH_GUID, SWITCH_GUID));
    let sm = SmInfo::from_slice(&data(attr::SM_INFO, 0)).unwrap();
    assert_eq!((sm.guid(), sm.priority(), sm.sm_state()), (SWITCH_GUID, 15, 3));
    assert!(sm.act_count() > 10);
    let info = SwitchInfo::from_slice(&data(attr::SWITCH_INFO, 0)).unwrap();
    assert_eq!((info.linear_fdb_top(), info.multicast_fdb_top()), (4, 0xc000));
    let zero = PortInfo::from_bytes(data(attr::PORT_INFO, 0));
    assert_eq!((zero.lid(), zero.port_state(), zero.local_port_num()), (SM_LID, 4, 2));
    assert_ne!(zero.capability_mask() & 2, 0, "a subnet manager is here");
    let states = [1, 3, 4, 36].map(|port| PortInfo::from_bytes(data(attr::PORT_INFO, port)));
    assert_eq!(states.map(|port| port.port_state()), [4, 4, 1, 1]);
    assert_eq!(states.map(|port| port.port_phys_state()), [5, 5, 2, 2]);
    assert_eq!(data(attr::LINEAR_FORWARDING, 0)[..6], [255, 0, 1, 2, 3, 255]);
    assert_eq!(data(attr::LINEAR_FORWARDING, 1), [255; 64]);
    assert_eq!(data(attr::PKEY_TABLE, 3 << 16)[..4], [0xff, 0xff, 0, 0]);
    assert_eq!(data(attr::GUID_INFO, 0)[..8], SWITCH_GUID.to_be_bytes());
    assert!(data(attr::NODE_DESCRIPTION, 0).starts_with(b"emulated InfiniBand switch\0"));
}

#[test]
fn what_the_switch_does_not_know_is_refused() {
    let (mut fabric, mut agents) = fabric_of(1, "", 1);
    bring_up(&mut fabric, &mut agents);
    let m_key = fabric.config().m_key;
    for (mut smp, expected) in [
        (get(0x7777, 0), status::ATTR_NOT_SUPPORTED),
        (get(attr::PORT_INFO, 37), status::INVALID_FIELD),
        (get(attr::PORT_INFO, 0x1_0000), status::INVALID_FIELD),
        (get(attr::GUID_INFO, 1), status::INVALID_FIELD),
        (get(attr::PKEY_TABLE, 1), status::INVALID_FIELD),
        (get(attr::PKEY_TABLE, 37 << 16), status::INVALID_FIELD),
        (get(attr::LINEAR_FORWARDING, 768), status::INVALID_FIELD),
        (get(attr::LINEAR_FORWARDING, u32::MAX), status::INVALID_FIELD),
        (Smp::lid_routed(method::SET, attr::NODE_DESCRIPTION, 0, 0x1234), status::ATTR_NOT_SUPPORTED),
        (Smp::lid_routed(0x44, attr::NODE_INFO, 0, 0x1234), status::METHOD_NOT_SUPPORTED),
    ] {
        let reply = ask_switch(&mut fabric, &agents[0], smp.set_m_key(m_key)).unwrap();
        assert_eq!(reply.status(), expected, "{smp:?}");
    }
    let response = Smp::lid_routed(method::GET_RESP, attr::NODE_INFO, 0, 1);
    assert_eq!(ask_switch(&mut fabric, &agents[0], &response), None);
}

#[test]
fn directed_routes_lead_to_the_switch_and_through_it() {
    let (mut fabric, mut agents) = fabric_of(3, "", 1);
    bring_up(&mut fabric, &mut agents);
    let (from, to) = (agents[0].index, agents[2].index);
    let mut smp = Smp::directed_route(method::GET, attr::NODE_INFO, 0, 7, &[1]);
    smp.set_hop_pointer(1);
    fabric.send(from, smp_packet(&smp, 0xffff, 0xffff), 1 << 40);
    let reply = std::iter::from_fn(|| next_smp(&mut fabric, from)).find(|smp| smp.tid() == 7).unwrap();
    assert_eq!((reply.status(), reply.hop_pointer(), reply.return_path()[1]), (0x8000, 1, 1));
    assert_eq!(NodeInfo::from_slice(reply.data()).unwrap().node_guid(), SWITCH_GUID);

    // Two hops: the third adapter's agent answers.
    let mut smp = Smp::directed_route(method::GET, attr::NODE_INFO, 0, 8, &[1, 3]);
    smp.set_hop_pointer(1);
    fabric.send(from, smp_packet(&smp, 0xffff, 0xffff), 1 << 40);
    let arrived = std::iter::from_fn(|| next_smp(&mut fabric, to)).find(|smp| smp.tid() == 8).unwrap();
    assert_eq!((arrived.hop_pointer(), arrived.hop_count(), arrived.return_path()[1]), (2, 2, 1));
    let mut reply = arrived.to_response(0);
    reply.set_data(&[0x5a; 64]);
    fabric.send(to, smp_packet(&reply, 0xffff, 0xffff), 1 << 40);
    let back = std::iter::from_fn(|| next_smp(&mut fabric, from)).find(|smp| smp.tid() == 8).unwrap();
    assert_eq!((back.status(), back.hop_pointer(), back.data()), (0x8000, 1, &[0x5a; 64]));

    // By LID to the switch and on from there, and back the same way.
    let mut smp = Smp::directed_route(method::GET, attr::NODE_INFO, 0, 9, &[3]);
    smp.set_dr_slid(agents[0].lid());
    fabric.send(from, smp_packet(&smp, agents[0].lid(), SM_LID), 1 << 40);
    let arrived = std::iter::from_fn(|| next_smp(&mut fabric, to)).find(|smp| smp.tid() == 9).unwrap();
    assert_eq!((arrived.hop_pointer(), arrived.hop_count()), (1, 1));
    fabric.send(to, smp_packet(&arrived.to_response(0), 0xffff, 0xffff), 1 << 40);
    let back = std::iter::from_fn(|| next_smp(&mut fabric, from)).find(|smp| smp.tid() == 9).unwrap();
    assert_eq!((back.hop_pointer(), back.status()), (0, 0x8000));

    // Out by a port where nobody is.
    let before = fabric.counters();
    let mut smp = Smp::directed_route(method::GET, attr::NODE_INFO, 0, 10, &[1, 30]);
    smp.set_hop_pointer(1);
    fabric.send(from, smp_packet(&smp, 0xffff, 0xffff), 1 << 40);
    assert!(std::iter::from_fn(|| next_smp(&mut fabric, from)).all(|smp| smp.tid() != 10));
    assert_eq!(fabric.counters().delivered_bytes % 4, before.delivered_bytes % 4);
}

#[test]
fn every_lid_that_the_table_leads_to_port_0_is_the_switchs() {
    let mut fabric = Fabric::new(FabricConfig { subnet_manager: false, ..FabricConfig::default() });
    let agent = Agent::new(&mut fabric, 0);
    let mut send = |smp: &Smp, slid, dlid| {
        fabric.send(agent.index, smp_packet(smp, slid, dlid), 1);
        next_smp(&mut fabric, agent.index)
    };
    let mut table = [255; 64];
    (table[4], table[8], table[9]) = (1, 0, 0);
    let mut smp = Smp::directed_route(method::SET, attr::LINEAR_FORWARDING, 0, 1, &[1]);
    smp.set_hop_pointer(1).set_data(&table);
    assert!(send(&smp, 0xffff, 0xffff).is_some());
    for lid in [8, 9] {
        let reply = send(&get(attr::NODE_INFO, 0), 4, lid).unwrap();
        assert_eq!((reply.method(), reply.status()), (method::GET_RESP, 0), "LID {lid}");
    }
    assert_eq!(send(&get(attr::NODE_INFO, 0), 4, 10), None);
}

#[test]
fn the_switch_counts_what_passes_each_port() {
    let (mut fabric, mut agents) = fabric_of(2, "", 1);
    let now = bring_up(&mut fabric, &mut agents);
    let counters = |fabric: &mut Fabric, port: u8, method, select: u16| {
        let mut mad = Mad::new(class::PERF_MGMT, 1, method, pma::attr::PORT_COUNTERS_EXTENDED, 3);
        let mut data = [0, port, 0, 0, 0, 0, 0, 0];
        data[2..4].copy_from_slice(&select.to_be_bytes());
        pma::set_data(&mut mad, &data);
        let reply = ask(fabric, &agents[1], &mad).unwrap();
        assert_eq!(reply.status(), 0);
        pma::PortCountersExtended::from_slice(pma::data(&reply)).unwrap()
    };
    let before = [1, 2].map(|port| counters(&mut fabric, port, method::GET, 0));
    for i in 0..10 {
        fabric.send(PortIndex(0), test_packet(2, 3, i), now);
    }
    fabric.send(PortIndex(0), test_packet(2, 77, 10), now);
    while fabric.receive(PortIndex(1), u64::MAX).is_some() {}
    let after = [1, 2].map(|port| counters(&mut fabric, port, method::GET, 0));
    assert_eq!(after[0].rcv_packets() - before[0].rcv_packets(), 11);
    assert_eq!(after[0].rcv_switch_relay_errors(), 1, "nobody has LID 77");
    assert!(after[1].xmit_packets() - before[1].xmit_packets() >= 10);
    counters(&mut fabric, 1, method::SET, 1 << 3);
    let cleared = counters(&mut fabric, 1, method::GET, 0);
    assert_eq!((cleared.rcv_packets(), cleared.rcv_data() > 0), (0, true));
}

#[test]
fn a_link_that_comes_back_has_the_same_lid() {
    let (mut fabric, mut agents) = fabric_of(3, "", 1);
    let now = bring_up(&mut fabric, &mut agents);
    fabric.set_link(PortIndex(1), false, now);
    agents[1].info.set_port_state(port_state::INIT).set_lid(0);
    fabric.poll(now);
    assert!(!fabric.port_record(PortIndex(1)).unwrap().active);
    let info = ask_switch(&mut fabric, &agents[0], &get(attr::PORT_INFO, 2)).unwrap();
    assert_eq!(PortInfo::from_bytes(*info.data()).port_state(), port_state::DOWN);
    fabric.set_link(PortIndex(1), true, now);
    bring_up(&mut fabric, &mut agents);
    assert_eq!((agents[1].lid(), agents[1].reregister), (3, 2));
}

#[test]
fn a_port_is_switched_off_and_on() {
    let (mut fabric, mut agents) = fabric_of(2, "", 1);
    bring_up(&mut fabric, &mut agents);
    let set = |fabric: &mut Fabric, port: u32, physical| {
        let mut smp = Smp::lid_routed(method::SET, attr::PORT_INFO, port, 0x1234);
        smp.set_m_key(fabric.config().m_key);
        smp.set_data(PortInfo::zeroed().set_port_phys_state(physical).as_bytes());
        let reply = ask_switch(fabric, &agents[0], &smp).unwrap();
        assert_eq!(reply.status(), 0);
        PortInfo::from_bytes(*reply.data()).port_phys_state()
    };
    assert_eq!(set(&mut fabric, 2, phys_state::DISABLED), phys_state::DISABLED);
    assert!(!fabric.port_is_enabled(PortIndex(1)) && fabric.port_is_enabled(PortIndex(0)));
    set(&mut fabric, 0, phys_state::DISABLED);
    set(&mut fabric, 20, phys_state::DISABLED);
    assert_eq!(set(&mut fabric, 2, phys_state::POLLING), phys_state::LINK_UP);
    assert!(fabric.port_is_enabled(PortIndex(1)));
}

#[test]
fn a_trap_is_taken_and_repressed() {
    let (mut fabric, mut agents) = fabric_of(1, "", 1);
    bring_up(&mut fabric, &mut agents);
    let notice = Notice::generic(notice_type::INFORMATIONAL, producer::CA, trap::CAPABILITY, 2);
    let mut smp = Smp::lid_routed(method::TRAP, attr::NOTICE, 0, 0x55);
    smp.set_data(notice.as_bytes().first_chunk().unwrap());
    fabric.send(PortIndex(0), smp_packet(&smp, 2, SM_LID), 1 << 40);
    let replies: Vec<Smp> = std::iter::from_fn(|| next_smp(&mut fabric, PortIndex(0))).collect();
    assert!(replies.iter().any(|reply| (reply.method(), reply.tid()) == (method::TRAP_REPRESS, 0x55)));
    let looks = |smp: &&Smp| (smp.method(), smp.attr_id()) == (method::GET, attr::PORT_INFO);
    assert!(replies.iter().any(|reply| looks(&reply)), "the subnet manager has a look");
}

#[test]
fn partitions_are_programmed() {
    let (mut fabric, mut agents) = fabric_of(2, "", 1);
    let now = bring_up(&mut fabric, &mut agents);
    assert_eq!(agents[0].pkeys[..4], [0xff, 0xff, 0, 0]);
    fabric.set_partitions(PortIndex(0), &[DEFAULT_PKEY, 0x8001, 0x0002], now);
    fabric.poll(now);
    while let Some(packet) = fabric.receive(PortIndex(0), u64::MAX) {
        let reply = agents[0].smp(&packet).unwrap();
        fabric.send(PortIndex(0), reply, now);
        fabric.poll(now);
    }
    assert_eq!(agents[0].pkeys[..8], [0xff, 0xff, 0x80, 1, 0, 2, 0, 0]);
    assert_eq!((agents[0].info.port_state(), agents[0].reregister), (port_state::ACTIVE, 1));
    assert!(fabric.port_record(PortIndex(0)).unwrap().active);
}

#[test]
fn partitions_that_change_while_a_port_comes_up_are_programmed() {
    for polls in 0..12 {
        let (mut fabric, mut agents) = fabric_of(1, "", 1);
        let mut now = 0;
        for step in 0..100 {
            if step == polls {
                fabric.set_partitions(PortIndex(0), &[DEFAULT_PKEY, 0x8001], now);
            }
            fabric.poll(now);
            if let Some(packet) = fabric.receive(PortIndex(0), u64::MAX)
                && let Some(reply) = agents[0].smp(&packet)
            {
                fabric.send(PortIndex(0), reply, now);
            }
            now += 1_000_000;
        }
        assert_eq!(agents[0].pkeys[..4], [0xff, 0xff, 0x80, 1], "changed after {polls} polls");
        assert!(fabric.port_record(PortIndex(0)).unwrap().active);
    }
}

#[test]
fn losses_are_the_fabrics_by_flow() {
    let (mut fabric, mut agents) = fabric_of(3, "", 77);
    let now = bring_up(&mut fabric, &mut agents);
    fabric.set_faults("loss=5%,dup=1%".parse().unwrap());
    let mut seen = [const { Vec::new() }; 2];
    for i in 0..4_000 {
        // From the first to the second, and from the third to the second.
        for (from, slid) in [(0, 2), (2, 4)] {
            fabric.send(PortIndex(from), test_packet(slid, 3, i), now);
        }
        while let Some(packet) = fabric.receive(PortIndex(1), u64::MAX) {
            let shape = Shape::of(packet.bytes()).unwrap();
            if shape.bth.dest_qpn == 9 {
                seen[usize::from(shape.lrh.slid == 4)].push(shape.bth.psn);
            }
        }
    }
    for (slid, mut seen) in [2, 4].into_iter().zip(seen) {
        let copies = seen.len();
        seen.dedup();
        let flow = Flow { source_lid: slid, dest_lid: 3, dest_qpn: 9, kind: Kind::Reliable };
        let losses = fabric.losses().of(&flow);
        assert_eq!(losses.lost(), 4_000 - seen.len() as u64, "from LID {slid}");
        assert!((120..290).contains(&losses.lost()));
        assert_eq!(losses.duplicated, (copies - seen.len()) as u64);
        assert_eq!(fabric.losses().sum(|flow| flow.source_lid == slid), losses);
    }
}

proptest! {
    #[test]
    fn no_management_datagram_harms_the_fabric(mads in proptest::collection::vec((
        (0usize..6, 0usize..8, 0usize..24), any::<[u8; 8]>(), any::<[u8; 32]>(), any::<[u8; 32]>(), any::<bool>(),
    ), 1..24)) {
        let (mut fabric, mut agents) = fabric_of(2, "", 1);
        let now = bring_up(&mut fabric, &mut agents);
        for ((kind, method, attribute), header, front, back, directed) in mads {
            let class = [0x01, 0x81, 0x03, 0x03, 0x04, 0x07][kind];
            let method = [1, 2, 5, 6, 0x12, 0x14, 0x15, 0x81][method];
            let attribute = [
                1, 2, 3, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1b, 0x1d, 0x20, 0x30, 0x31, 0x33,
                0x35, 0x38, 0x3a, 0xf3, 0xff90,
            ][attribute];
            let version = if class == 3 { 2 } else { 1 };
            let mut mad = Mad::new(class, version, method, attribute, 9);
            let bytes = mad.as_bytes_mut();
            bytes[4..8].copy_from_slice(&header[..4]);
            bytes[20..24].copy_from_slice(&header[4..]);
            bytes[24..56].copy_from_slice(&front);
            if header[0] & 1 == 0 {
                bytes[24..36].fill(0);
            }
            for chunk in bytes[56..].chunks_mut(32) {
                chunk.copy_from_slice(&back[..chunk.len()]);
            }
            let general = kind > 1;
            let route = MadRoute {
                vl: if general { 0 } else { 15 },
                sl: 0,
                slid: 2,
                dlid: if directed && !general { 0xffff } else { SM_LID },
                pkey: 0xffff,
                source_qpn: u32::from(general),
                dest_qpn: u32::from(general),
                qkey: if general { QKEY_GSI } else { 0 },
                psn: 0,
                grh: None,
            };
            fabric.send(PortIndex(0), mad_packet(&route, mad.as_bytes()), now);
            fabric.poll(now);
        }
        for i in 0..200 {
            fabric.poll(now + i * 1_000_000_000);
            while fabric.receive(PortIndex(1), u64::MAX).is_some() {}
            while fabric.receive(PortIndex(0), u64::MAX).is_some() {}
        }
    }
}

#[test]
fn both_ends_of_a_link_have_the_same_speed() {
    let (mut fabric, mut agents) = fabric_of(3, "", 1);
    fabric.set_speeds(PortIndex(0), Speeds::HDR);
    fabric.set_speeds(PortIndex(1), Speeds::NDR);
    bring_up(&mut fabric, &mut agents);
    let mut found = |port: u32| {
        let reply = ask_switch(&mut fabric, &agents[2], &get(attr::PORT_INFO, port)).expect("an answer");
        let info = PortInfo::from_bytes(*reply.data());
        (info.link_speed_ext_active(), info.link_speed_ext_supported(), info.link_width_supported())
    };
    assert_eq!([found(1), found(2), found(3)], [(4, 7, 0x13), (8, 0xf, 0x13), (2, 3, 3)], "HDR, NDR, EDR");
}

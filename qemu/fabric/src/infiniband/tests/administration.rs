//! Subnet administration as its clients see it: tables in segments, groups, subscriptions, services, partitions.

use ib_types::{Instant, Lid, PKey, QKey};
use std::sync::atomic::{AtomicU64, Ordering};

use ib_mgmt::rmpp::{Received, Receiver, Sender, SenderConfig, Step};
use ib_mgmt::sa::{
    InformInfo, McMemberMask, McMemberRecord, NodeMask, NodeRecord, Notice, PathMask, PathRecord,
    PortInfoMask, PortInfoRecord, SaMad, ServiceMask, ServiceRecord, join_state, trap,
};

use super::super::multicast::IPOIB_BROADCAST;
use super::*;

/// A general services MAD that arrives at a port within a few milliseconds; sweeps are passed over.
pub(super) fn next_mad(fabric: &mut Fabric, at: PortIndex, now: u64) -> Option<SaMad> {
    loop {
        let packet = fabric.receive(at, now)?;
        let shape = Shape::of(packet.bytes())?;
        if shape.bth.dest_qpn == 1 {
            return datagram(&shape, packet.bytes()).map(|(_, mad)| SaMad::from_mad(&mad));
        }
    }
}

/// Asks for a table as a client does, with acknowledgements and retries. Answers with the records' bytes.
fn table(
    fabric: &mut Fabric,
    agent: &Agent,
    request: &SaMad,
    window: u32,
    now: &mut u64,
) -> Result<(Vec<u8>, usize), u16> {
    // A late segment of an earlier answer is none of this one.
    static TRANSACTION: AtomicU64 = AtomicU64::new(0x1_0000);
    let mut request = *request;
    request.set_tid(TRANSACTION.fetch_add(1, Ordering::Relaxed));
    let mut receiver = Receiver::new(window);
    let mut buffer = vec![0; 1 << 20];
    for _ in 0..400 {
        if receiver.received_len() == 0 {
            fabric.send(agent.index, agent.query(&request.to_mad()), *now);
        }
        for _ in 0..20 {
            fabric.poll(*now);
            while let Some(mad) = next_mad(fabric, agent.index, *now) {
                if mad.tid() != request.tid() || mad.method() != method::GET_TABLE_RESP {
                    continue;
                }
                if mad.status() != 0 {
                    return Err(mad.status());
                }
                let units = usize::from(mad.attribute_offset()) * 8;
                match receiver.input(&mad, &mut buffer) {
                    Received::More => {}
                    Received::Acknowledge(reply) => {
                        fabric.send(agent.index, agent.query(&reply.to_mad()), *now)
                    }
                    Received::Complete { len, reply } => {
                        if let Some(reply) = reply {
                            fabric.send(agent.index, agent.query(&reply.to_mad()), *now);
                        }
                        fabric.poll(*now);
                        buffer.truncate(len);
                        return Ok((buffer, units));
                    }
                    Received::Failed { status, .. } => panic!("RMPP status {status}"),
                }
            }
            *now += 100_000_000;
        }
    }
    panic!("no table after a quarter of an hour");
}

/// When tables are asked for: long after the ports were brought up.
const START: u64 = 1 << 40;

fn get_table(attribute: u16, mask: u64, record: &[u8]) -> SaMad {
    let mut mad = SaMad::request(method::GET_TABLE, attribute, mask, 0x4711);
    mad.set_record_data(record);
    mad
}

#[test]
fn a_table_of_many_nodes_comes_in_segments_whatever_gets_lost() {
    for faults in ["", "loss=20%", "loss=10%,dup=10%,reorder=10%"] {
        let (mut fabric, mut agents) = fabric_of(40, "", 3);
        bring_up(&mut fabric, &mut agents);
        fabric.set_faults(faults.parse().unwrap());
        let mut now = START;
        for window in [1, 8, 64] {
            let request = get_table(attr::NODE_RECORD, 0, &[]);
            let (bytes, units) = table(&mut fabric, &agents[7], &request, window, &mut now).unwrap();
            assert_eq!((units, bytes.len()), (112, 112 * 41), "{faults}, window {window}");
            let records: Vec<NodeRecord> =
                bytes.chunks(units).map(|record| NodeRecord::from_slice(record).unwrap()).collect();
            assert_eq!((records[0].lid, records[0].info.node_type()), (1, 2));
            for (i, record) in records[1..].iter().enumerate() {
                assert_eq!((record.lid, record.info.port_guid()), (2 + i as u16, 0x1000 + i as u64));
                assert_eq!(record.description.as_str(), "agent");
            }
        }
    }
}

#[test]
fn components_choose_among_the_records() {
    let (mut fabric, mut agents) = fabric_of(4, "", 3);
    bring_up(&mut fabric, &mut agents);
    let mut now = START;
    let mut ask = |attribute, mask, record: &[u8]| {
        let (bytes, units) =
            table(&mut fabric, &agents[0], &get_table(attribute, mask, record), 8, &mut now).unwrap();
        if units == 0 { Vec::new() } else { bytes.chunks(units).map(<[u8]>::to_vec).collect() }
    };
    let mut node = NodeRecord::from_slice(&[0; 108]).unwrap();
    node.info.set_port_guid(0x1002).set_node_type(1);
    let found = ask(attr::NODE_RECORD, NodeMask::PORT_GUID.bits(), &node.to_bytes());
    assert_eq!(found.iter().map(|record| record[1]).collect::<Vec<_>>(), [4]);
    assert_eq!(ask(attr::NODE_RECORD, NodeMask::NODE_TYPE.bits(), &node.to_bytes()).len(), 4);
    node.info.set_port_guid(0x77);
    assert!(ask(attr::NODE_RECORD, NodeMask::PORT_GUID.bits(), &node.to_bytes()).is_empty());

    let mut port = PortInfoRecord::from_slice(&[0; 68]).unwrap();
    assert_eq!(ask(attr::PORT_INFO_RECORD, 0, &[]).len(), 4 + 37, "all adapters', and the switch's");
    port.end_port_lid = 3;
    let found = ask(attr::PORT_INFO_RECORD, PortInfoMask::LID.bits(), &port.to_bytes());
    assert_eq!(found.len(), 1);
    assert_eq!(PortInfoRecord::from_slice(&found[0]).unwrap().info.lid(), 3);
    port.info.set_port_state(port_state::DOWN);
    assert_eq!(ask(attr::PORT_INFO_RECORD, PortInfoMask::PORT_STATE.bits(), &port.to_bytes()).len(), 32);

    assert_eq!(ask(attr::SWITCH_INFO_RECORD, 0, &[]).len(), 1);
    assert_eq!(ask(attr::SM_INFO_RECORD, 0, &[]).len(), 1);
    assert_eq!(ask(attr::LINK_RECORD, 0, &[]).len(), 8);
    assert_eq!(ask(attr::PKEY_TABLE_RECORD, 1, &[0, 2]).len(), 1);
    assert_eq!(ask(attr::GUID_INFO_RECORD, 0, &[]).len(), 5);
    assert_eq!(ask(attr::LINEAR_FORWARDING_RECORD, 0, &[])[0][8..13], [255, 0, 1, 2, 3]);
}

#[test]
fn a_request_in_segments_and_wrong_acknowledgements_end_politely() {
    let (mut fabric, mut agents) = fabric_of(20, "", 3);
    bring_up(&mut fabric, &mut agents);
    let a = &agents[0];
    let mut sender = Sender::new(600, SenderConfig::default());
    assert_eq!(sender.poll(Instant::ORIGIN), Step::Send(1));
    let template = SaMad::request(method::GET_MULTI, attr::MULTI_PATH_RECORD, 0, 5);
    let segment = sender.segment(1, &template, &[1; 600]);
    let mut exchange = |mad: &SaMad| {
        fabric.send(a.index, a.query(&mad.to_mad()), 1 << 40);
        fabric.poll(1 << 40);
        next_mad(&mut fabric, a.index, u64::MAX)
    };
    let reply = exchange(&segment).unwrap();
    assert_eq!((reply.rmpp_type(), reply.tid()), (ib_mgmt::sa::rmpp::ABORT, 5));
    // An acknowledgement of nothing is nobody's.
    let mut receiver = Receiver::new(1);
    let mut buffer = [0; 600];
    let Received::Acknowledge(mut ack) = receiver.input(&segment, &mut buffer) else { panic!() };
    ack.set_method(method::GET_TABLE);
    assert_eq!(exchange(&ack), None);
    // One that acknowledges what was not sent ends the transfer.
    let first = exchange(&get_table(attr::NODE_RECORD, 0, &[])).unwrap();
    assert_eq!((first.rmpp_segment(), first.rmpp_payload_len()), (1, 21 * 112 + 12 * 20));
    ack.set_tid(0x4711).set_rmpp_segment(9).set_rmpp_payload_len(20);
    let abort = exchange(&ack).unwrap();
    assert_eq!((abort.rmpp_type(), abort.rmpp_status()), (ib_mgmt::sa::rmpp::ABORT, 123));
}

fn member(method: u8, mask: McMemberMask, mgid: Gid, port: Gid, states: u8) -> SaMad {
    let mut record = McMemberRecord::zeroed();
    record
        .set_mgid(mgid)
        .set_port_gid(port)
        .set_qkey(QKey::new(0x0b1b))
        .set_pkey(PKey::new(0xffff))
        .set_join_state(states);
    let mut mad = SaMad::request(method, attr::MC_MEMBER_RECORD, mask.bits(), 0x99);
    mad.set_record_data(record.as_bytes());
    mad
}

const JOIN: McMemberMask = McMemberMask::MGID.union(McMemberMask::PORT_GID).union(McMemberMask::JOIN_STATE);
const CREATE: McMemberMask = JOIN
    .union(McMemberMask::QKEY)
    .union(McMemberMask::PKEY)
    .union(McMemberMask::TRAFFIC_CLASS)
    .union(McMemberMask::SL)
    .union(McMemberMask::FLOW_LABEL);

#[test]
fn ipoibs_broadcast_group_is_there() {
    let (mut fabric, mut agents) = fabric_of(2, "", 1);
    bring_up(&mut fabric, &mut agents);
    let set = |agent: &Agent, mask| member(method::SET, mask, IPOIB_BROADCAST, agent.gid(), 1).to_mad();
    // As Linux asks: MGID, port GID, P_Key and join state.
    let reply = ask(&mut fabric, &agents[0], &set(&agents[0], JOIN | McMemberMask::PKEY)).unwrap();
    assert_eq!(reply.status(), 0);
    let record = McMemberRecord::from_slice(SaMad::from_mad(&reply).record_data()).unwrap();
    assert_eq!(
        (record.qkey(), record.mlid(), record.mtu(), record.mtu_selector()),
        (QKey::new(0x0b1b), Lid::new(0xc000), 4, 2)
    );
    assert_eq!(
        (record.pkey(), record.join_state(), record.port_gid()),
        (PKey::new(0xffff), 1, agents[0].gid())
    );
    // It outlives its members.
    let bye = member(method::DELETE, JOIN, IPOIB_BROADCAST, agents[0].gid(), 1).to_mad();
    assert_eq!(ask(&mut fabric, &agents[0], &bye).unwrap().status(), 0);
    fabric.set_ipoib_mtu(5);
    let reply = ask(&mut fabric, &agents[1], &set(&agents[1], JOIN)).unwrap();
    assert_eq!(McMemberRecord::from_slice(SaMad::from_mad(&reply).record_data()).unwrap().mtu(), 5);
    // A wrong Q_Key is refused; so is joining for somebody else.
    let mut wrong = member(method::SET, JOIN | McMemberMask::QKEY, IPOIB_BROADCAST, agents[0].gid(), 1);
    let mut record = McMemberRecord::from_slice(wrong.record_data()).unwrap();
    wrong.set_record_data(record.set_qkey(QKey::new(1)).as_bytes());
    assert_eq!(ask(&mut fabric, &agents[0], &wrong.to_mad()).unwrap().status(), status::SA_REQ_INVALID);
    let other = set(&agents[1], JOIN);
    assert_eq!(ask(&mut fabric, &agents[0], &other).unwrap().status(), status::SA_REQ_INVALID);
}

#[test]
fn who_only_sends_does_not_receive() {
    let (mut fabric, mut agents) = fabric_of(5, "", 1);
    bring_up(&mut fabric, &mut agents);
    let mgid = Gid([0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
    let states = [
        join_state::SEND_ONLY_FULL_MEMBER,
        join_state::NON_MEMBER,
        join_state::SEND_ONLY_NON_MEMBER,
        join_state::FULL_MEMBER,
    ];
    let mut mlid = 0;
    for (agent, state) in agents.iter().zip(states) {
        let mask = if mlid == 0 { CREATE } else { JOIN };
        let reply =
            ask(&mut fabric, agent, &member(method::SET, mask, mgid, agent.gid(), state).to_mad()).unwrap();
        assert_eq!(reply.status(), 0);
        mlid = McMemberRecord::from_slice(SaMad::from_mad(&reply).record_data()).unwrap().mlid().get();
    }
    // The fifth never joined; it may send all the same.
    for from in [0, 4] {
        fabric.send(PortIndex(from), test_packet(2 + from as u16, mlid, 1), 1 << 50);
        let got = [0, 1, 2, 3, 4].map(|i| {
            std::iter::from_fn(|| fabric.receive(PortIndex(i), u64::MAX))
                .any(|packet| Shape::of(packet.bytes()).unwrap().bth.dest_qpn == 9)
        });
        assert_eq!(got, [false, true, false, true, false]);
    }
    // A non-member does not keep the group alive; the send-only full member does.
    let mut leave = |i: usize, state| {
        let mad = member(method::DELETE, JOIN, mgid, agents[i].gid(), state).to_mad();
        ask(&mut fabric, &agents[i], &mad).unwrap().status()
    };
    assert_eq!(leave(3, 1), 0);
    assert_eq!(leave(3, 1), status::SA_REQ_INVALID, "twice");
    assert_eq!(leave(1, 1), status::SA_REQ_INVALID, "it is a member of another kind");
    assert_eq!(leave(0, 8), 0);
    assert_eq!(leave(1, 2), status::SA_REQ_INVALID, "the group is gone");
}

#[test]
fn membership_is_listed_and_ends_with_the_link() {
    let (mut fabric, mut agents) = fabric_of(3, "", 1);
    bring_up(&mut fabric, &mut agents);
    // The creator leaves the choice of the MGID.
    let create = member(method::SET, CREATE, Gid::ZERO, agents[0].gid(), 1).to_mad();
    let reply = ask(&mut fabric, &agents[0], &create).unwrap();
    let mgid = McMemberRecord::from_slice(SaMad::from_mad(&reply).record_data()).unwrap().mgid();
    assert!(reply.status() == 0 && mgid.is_multicast());
    for agent in &agents[1..] {
        let join = member(method::SET, JOIN, mgid, agent.gid(), 1).to_mad();
        assert_eq!(ask(&mut fabric, agent, &join).unwrap().status(), 0);
    }
    let mut now = START;
    let mut list = |fabric: &mut Fabric, sm_key| {
        let mut request = member(method::GET_TABLE, McMemberMask::MGID, mgid, Gid::ZERO, 0);
        request.set_sm_key(sm_key);
        let (bytes, units) = table(fabric, &agents[0], &request, 8, &mut now).unwrap();
        let records = bytes.chunks(units.max(1)).map(|bytes| McMemberRecord::from_slice(bytes).unwrap());
        records.map(|record| record.port_gid()).collect::<Vec<_>>()
    };
    assert_eq!(list(&mut fabric, 0), [agents[0].gid()], "one's own");
    assert_eq!(list(&mut fabric, 1), [0, 1, 2].map(|i| agents[i].gid()));
    fabric.set_link(PortIndex(2), false, 1 << 41);
    assert_eq!(list(&mut fabric, 1), [0, 1].map(|i| agents[i].gid()));
}

pub(super) fn subscribe(number: u16) -> Mad {
    let mut mad = SaMad::request(method::SET, attr::INFORM_INFO, 0, 0x31);
    mad.set_record_data(InformInfo::subscription(number).as_bytes());
    mad.to_mad()
}

/// The trap numbers and GIDs reported to an agent, each answered.
fn reports(fabric: &mut Fabric, agent: &Agent, now: u64) -> Vec<(u16, Gid)> {
    let mut found = Vec::new();
    fabric.poll(now);
    while let Some(mad) = next_mad(fabric, agent.index, u64::MAX) {
        if mad.method() == method::REPORT {
            let notice = Notice::from_slice(mad.record_data()).unwrap();
            assert_eq!((mad.attr_id(), notice.issuer_lid()), (attr::NOTICE, SM_LID));
            assert_eq!(notice.issuer_gid(), Gid::new(Gid::DEFAULT_PREFIX, SWITCH_GUID));
            found.push((notice.trap_number(), notice.gid()));
            fabric.send(agent.index, agent.query(&mad.to_mad().to_response(0)), now);
            fabric.poll(now);
        }
    }
    // Between two looks so far apart one is repeated.
    found.dedup();
    found
}

#[test]
fn subscribers_hear_of_ports_and_groups() {
    let (mut fabric, mut agents) = fabric_of(3, "", 1);
    let mut now = bring_up(&mut fabric, &mut agents);
    for number in [trap::IN_SERVICE, trap::OUT_OF_SERVICE, trap::GROUP_CREATED, trap::GROUP_DELETED] {
        assert_eq!(ask(&mut fabric, &agents[0], &subscribe(number)).unwrap().status(), 0);
    }
    now += 1 << 41;
    let gone = agents[2].gid();
    fabric.set_link(PortIndex(2), false, now);
    assert_eq!(reports(&mut fabric, &agents[0], now), [(65, gone)]);
    assert!(reports(&mut fabric, &agents[0], now + 5_000_000_000).is_empty(), "answered is answered");
    agents[2].info.set_port_state(port_state::INIT).set_lid(0);
    fabric.set_link(PortIndex(2), true, now);
    let mut heard = Vec::new();
    for step in 0..40 {
        fabric.poll(now + step * 1_000);
        while let Some(packet) = fabric.receive(PortIndex(2), u64::MAX) {
            let reply = agents[2].smp(&packet).unwrap();
            fabric.send(PortIndex(2), reply, now);
        }
        heard.extend(reports(&mut fabric, &agents[0], now + step * 1_000));
    }
    assert_eq!(heard, [(64, gone)]);

    let mgid = Gid([0xff, 0x12, 0xa0, 0x1b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
    let create = member(method::SET, CREATE, mgid, agents[1].gid(), 1).to_mad();
    assert_eq!(ask(&mut fabric, &agents[1], &create).unwrap().status(), 0);
    assert_eq!(reports(&mut fabric, &agents[0], now), [(66, mgid)]);
    fabric.set_link(PortIndex(1), false, now);
    let heard = reports(&mut fabric, &agents[0], now);
    assert!(heard.contains(&(67, mgid)) && heard.contains(&(65, agents[1].gid())), "{heard:?}");
}

#[test]
fn an_unanswered_report_is_repeated_and_given_up_and_subscriptions_end() {
    let (mut fabric, mut agents) = fabric_of(2, "", 1);
    bring_up(&mut fabric, &mut agents);
    assert_eq!(ask(&mut fabric, &agents[0], &subscribe(trap::ALL)).unwrap().status(), 0);
    let records = get_table(attr::INFORM_INFO_RECORD, 0, &[]);
    assert_eq!(table(&mut fabric, &agents[1], &records, 1, &mut START.clone()).unwrap().0.len(), 64);
    let mut now = 1 << 42;
    fabric.set_link(PortIndex(1), false, now);
    let mut heard = 0;
    for _ in 0..20 {
        fabric.poll(now);
        while let Some(mad) = next_mad(&mut fabric, PortIndex(0), u64::MAX) {
            heard += u32::from(mad.method() == method::REPORT);
        }
        now += 500_000_000;
    }
    assert_eq!(heard, 2 * 3, "out of service and the link's state, three times each");
    let end = |agent: &Agent, fabric: &mut Fabric| {
        let mut mad = SaMad::request(method::SET, attr::INFORM_INFO, 0, 0x32);
        mad.set_record_data(InformInfo::subscription(trap::ALL).set_subscribe(0).as_bytes());
        ask(fabric, agent, &mad.to_mad()).unwrap().status()
    };
    assert_eq!(end(&agents[0], &mut fabric), 0);
    assert_eq!(end(&agents[0], &mut fabric), status::SA_REQ_INVALID);
}

#[test]
fn paths_keep_to_partitions() {
    let (mut fabric, mut agents) = fabric_of(3, "", 1);
    bring_up(&mut fabric, &mut agents);
    fabric.set_partitions(PortIndex(0), &[0xffff, 0x8001], 1 << 39);
    fabric.set_partitions(PortIndex(1), &[0x7fff, 0x0001], 1 << 39);
    fabric.set_partitions(PortIndex(2), &[0x7fff], 1 << 39);
    let path = |fabric: &mut Fabric, from: usize, to: usize, pkey: Option<u16>| {
        let mut record = PathRecord::zeroed();
        record.set_sgid(agents[from].gid()).set_dgid(agents[to].gid()).set_pkey(PKey::new(pkey.unwrap_or(0)));
        let mask = PathMask::SGID | PathMask::DGID | pkey.map_or(PathMask::empty(), |_| PathMask::PKEY);
        let mut mad = SaMad::request(method::GET, attr::PATH_RECORD, mask.bits(), 3);
        mad.set_record_data(record.as_bytes());
        let reply = SaMad::from_mad(&ask(fabric, &agents[0], &mad.to_mad()).unwrap());
        let found = PathRecord::from_slice(reply.record_data()).unwrap();
        if reply.status() == 0 { Ok(found.pkey()) } else { Err(reply.status()) }
    };
    assert_eq!(path(&mut fabric, 0, 1, None), Ok(PKey::new(0xffff)));
    assert_eq!(path(&mut fabric, 0, 1, Some(0x8001)), Ok(PKey::new(0x8001)));
    assert_eq!(path(&mut fabric, 1, 0, Some(0x8001)), Ok(PKey::new(0x0001)), "the source's own");
    assert_eq!(path(&mut fabric, 0, 2, Some(0x8001)), Err(status::SA_NO_RECORDS));
    assert_eq!(path(&mut fabric, 1, 2, None), Err(status::SA_NO_RECORDS), "both are limited members");
    let mut join = member(method::SET, CREATE, Gid::ZERO, agents[2].gid(), 1);
    let mut record = McMemberRecord::from_slice(join.record_data()).unwrap();
    join.set_record_data(record.set_pkey(PKey::new(0x8001)).as_bytes());
    assert_eq!(ask(&mut fabric, &agents[2], &join.to_mad()).unwrap().status(), status::SA_REQ_INVALID);
}

#[test]
fn a_path_to_a_group_is_the_groups() {
    let (mut fabric, mut agents) = fabric_of(1, "", 1);
    bring_up(&mut fabric, &mut agents);
    let mut record = PathRecord::zeroed();
    record.set_sgid(agents[0].gid()).set_dgid(IPOIB_BROADCAST);
    let mut mad = SaMad::request(method::GET, attr::PATH_RECORD, (PathMask::SGID | PathMask::DGID).bits(), 3);
    mad.set_record_data(record.as_bytes());
    let reply = SaMad::from_mad(&ask(&mut fabric, &agents[0], &mad.to_mad()).unwrap());
    let found = PathRecord::from_slice(reply.record_data()).unwrap();
    assert_eq!((reply.status(), found.dlid(), found.mtu(), found.rate()), (0, Lid::new(0xc000), 4, 3));
}

#[test]
fn services_are_announced_found_and_forgotten() {
    let (mut fabric, mut agents) = fabric_of(2, "", 1);
    bring_up(&mut fabric, &mut agents);
    let mut record = ServiceRecord::zeroed();
    record.set_service_id(0x1000_0000_0000_0001).set_service_gid(agents[0].gid()).set_service_pkey(0xffff);
    record.as_bytes_mut()[48..52].copy_from_slice(b"test");
    let id = ServiceMask::SERVICE_ID | ServiceMask::SERVICE_GID;
    let mad = |method, mask: ServiceMask, record: &ServiceRecord| {
        let mut mad = SaMad::request(method, attr::SERVICE_RECORD, mask.bits(), 3);
        mad.set_record_data(record.as_bytes());
        mad.to_mad()
    };
    let mut status_of = |agent: usize, mad: Mad| ask(&mut fabric, &agents[agent], &mad).unwrap().status();
    assert_eq!(status_of(0, mad(method::SET, ServiceMask::SERVICE_ID, &record)), 0x0600);
    assert_eq!(status_of(1, mad(method::SET, id, &record)), status::SA_REQ_INVALID, "not its own GID");
    assert_eq!(status_of(0, mad(method::SET, id, &record)), 0);
    assert_eq!(status_of(1, mad(method::GET, ServiceMask::SERVICE_NAME, &record)), 0);
    let mut other = record;
    other.as_bytes_mut()[48] = b'T';
    assert_eq!(status_of(1, mad(method::GET, ServiceMask::SERVICE_NAME, &other)), status::SA_NO_RECORDS);
    assert_eq!(status_of(0, mad(method::DELETE, id, &record)), 0);
    assert_eq!(status_of(0, mad(method::DELETE, id, &record)), status::SA_NO_RECORDS);
    // A lease of no time is over at once; one that goes with its port is over with it.
    record.set_service_lease(0);
    assert_eq!(status_of(0, mad(method::SET, id | ServiceMask::SERVICE_LEASE, &record)), 0);
    assert_eq!(status_of(1, mad(method::GET, id, &record)), status::SA_NO_RECORDS);
    assert_eq!(status_of(0, mad(method::SET, id, &record)), 0);
    assert_eq!(status_of(1, mad(method::GET, id, &record)), 0);
    fabric.set_link(PortIndex(0), false, 1 << 41);
    fabric.poll(1 << 41);
    assert_eq!(ask(&mut fabric, &agents[1], &mad(method::GET, id, &record)).unwrap().status(), 0x0300);
}

#[test]
fn a_path_is_as_fast_as_its_slower_end() {
    let (mut fabric, mut agents) = fabric_of(3, "", 3);
    // EDR, HDR, NDR.
    for (agent, speed) in agents.iter_mut().zip([2, 4, 8]) {
        agent.info.set_link_speed_ext_active(speed);
    }
    bring_up(&mut fabric, &mut agents);
    let mut rate = |from: usize, to: u16, asked: Option<u8>| {
        let dlid = to.to_be_bytes();
        let slid = agents[from].lid().to_be_bytes();
        let wanted = [asked.unwrap_or(0) | 2 << 6];
        let mask = 1 << 4 | 1 << 5 | if asked.is_some() { 1 << 18 | 1 << 19 } else { 0 };
        let query = path_query(method::GET, mask, &[(40, &dlid), (42, &slid), (55, &wanted)]);
        let reply = ask(&mut fabric, &agents[from], &query).expect("an answer");
        let record = PathRecord::from_slice(SaMad::from_mad(&reply).record_data()).expect("a record");
        if reply.status() == 0 { Ok(record.rate()) } else { Err(reply.status()) }
    };
    let [edr, hdr, ndr] = [2, 3, 4];
    for (from, to, expected) in
        [(0, ndr, 16), (1, ndr, 17), (2, hdr, 17), (2, edr, 16), (2, ndr, 21), (2, 1, 21)]
    {
        assert_eq!(rate(from, to, None), Ok(expected), "{from} to {to}");
    }
    assert_eq!((rate(1, ndr, Some(17)), rate(1, edr, Some(17))), (Ok(17), Err(status::SA_NO_RECORDS)));
}

#[test]
fn the_multicast_table_is_in_records() {
    let (mut fabric, mut agents) = fabric_of(2, "", 3);
    bring_up(&mut fabric, &mut agents);
    let join = member(
        method::SET,
        McMemberMask::from_bits_retain(1 | 2 | 1 << 16),
        IPOIB_BROADCAST,
        agents[1].gid(),
        1,
    );
    assert_eq!(ask(&mut fabric, &agents[1], &join.to_mad()).expect("an answer").status(), 0);
    let mut now = START;
    let request = get_table(attr::MULTICAST_FORWARDING_RECORD, 0, &[]);
    let (bytes, units) = table(&mut fabric, &agents[0], &request, 8, &mut now).expect("a table");
    // One block, of 36 ports in three positions; port 2 is bit 2 of the first.
    assert_eq!((units, bytes.len()), (72, 3 * 72));
    let places: Vec<&[u8]> = bytes.chunks(72).map(|record| &record[..4]).collect();
    assert_eq!(places, [[0, 1, 0, 0], [0, 1, 0x10, 0], [0, 1, 0x20, 0]]);
    assert_eq!(bytes[8..72].chunks(2).filter(|mask| *mask == [0, 1 << 2]).count(), 1);
    let request = get_table(attr::MULTICAST_FORWARDING_RECORD, 1 << 1, &[0, 0, 0x10, 0]);
    let (bytes, _) = table(&mut fabric, &agents[0], &request, 8, &mut now).expect("a table");
    assert_eq!((bytes.len(), bytes[2]), (72, 0x10));
}

#[test]
fn the_lanes_of_ports_are_in_records() {
    let (mut fabric, mut agents) = fabric_of(4, "", 3);
    // The first has no tables, the second all, the third one lane and short tables, the last refuses one block.
    for agent in &mut agents[1..] {
        agent.info.set_capability_mask(1 << 6).set_vl_arb_low_cap(64).set_vl_arb_high_cap(33);
    }
    agents[2].info.set_capability_mask(0).set_vl_arb_low_cap(8).set_vl_arb_high_cap(0);
    agents[3].refused_block = Some(2);
    bring_up(&mut fabric, &mut agents);
    let mut now = START;
    let mut ask = |attribute, mask, record: &[u8]| {
        let request = get_table(attribute, mask, record);
        let (bytes, units) = table(&mut fabric, &agents[0], &request, 8, &mut now).expect("a table");
        bytes.chunks(units.max(1)).map(<[u8]>::to_vec).collect::<Vec<_>>()
    };
    // LID, input port 0, output port 1, four reserved bytes, the table.
    let [second, fourth] = [
        [0, 3, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 1],
        [0, 5, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 3],
    ];
    assert_eq!(ask(attr::SL_TO_VL_RECORD, 0, &[]), [second, fourth]);
    assert_eq!(ask(attr::SL_TO_VL_RECORD, 1, &[0, 5]), [fourth]);
    assert_eq!(ask(attr::SL_TO_VL_RECORD, 1 << 2, &[0, 0, 0, 1]).len(), 2);
    assert!(ask(attr::SL_TO_VL_RECORD, 1 << 1, &[0, 0, 1]).is_empty());

    // LID, port, block, four reserved bytes, 32 entries.
    let blocks = ask(attr::VL_ARBITRATION_RECORD, 0, &[]);
    let places: Vec<&[u8]> = blocks.iter().map(|record| &record[..4]).collect();
    let expected: [[u8; 4]; 8] = [
        [0, 3, 1, 1],
        [0, 3, 1, 2],
        [0, 3, 1, 3],
        [0, 3, 1, 4],
        [0, 4, 1, 1],
        [0, 5, 1, 1],
        [0, 5, 1, 3],
        [0, 5, 1, 4],
    ];
    assert_eq!(places, expected);
    assert!(
        blocks
            .iter()
            .all(|record| record.len() == 72 && record[4..8] == [0; 4] && record[8..] == [record[3]; 64])
    );
    assert_eq!(ask(attr::VL_ARBITRATION_RECORD, 1 | 1 << 2, &[0, 5, 0, 4]).len(), 1);
    assert_eq!(ask(attr::VL_ARBITRATION_RECORD, 1 << 2, &[0, 0, 0, 2]).len(), 1);
    assert!(ask(attr::VL_ARBITRATION_RECORD, 1 << 1, &[0, 0, 2]).is_empty());
    // A port that is configured again may have other tables.
    let agent = &mut agents[1];
    agent
        .info
        .set_port_state(port_state::INIT)
        .set_capability_mask(0)
        .set_vl_arb_low_cap(0)
        .set_vl_arb_high_cap(0);
    fabric.set_link(agent.index, false, 0);
    fabric.set_link(agent.index, true, 0);
    bring_up(&mut fabric, &mut agents);
    now = 2 * START;
    let request = get_table(attr::SL_TO_VL_RECORD, 0, &[]);
    let (bytes, _) = table(&mut fabric, &agents[0], &request, 8, &mut now).expect("a table");
    assert_eq!(bytes, fourth);
}

#[test]
fn lanes_that_somebody_sets_later_are_read_by_the_sweep() {
    let (mut fabric, mut agents) = fabric_of(1, "", 3);
    agents[0].info.set_capability_mask(1 << 6).set_vl_arb_low_cap(8);
    let now = bring_up(&mut fabric, &mut agents);
    let index = agents[0].index;
    let lanes = |fabric: &Fabric| {
        let record = fabric.port_record(index).unwrap();
        (record.sl_to_vl.map(|map| map[0]), record.vl_arbitration.get(&1).map(|block| block[0]))
    };
    assert_eq!(lanes(&fabric), (Some(0), Some(1)));
    agents[0].lanes = 7;
    let read = run_until(&mut fabric, &mut agents, now, |fabric, _| lanes(fabric) == (Some(7), Some(8)));
    assert!(read.is_some_and(|read| read < now + 15_000_000_000), "{read:?}");
    // It does not answer for them any more: what was known stays, and nothing waits for them.
    agents[0].is_silent = true;
    let now = run_until(&mut fabric, &mut agents, read.unwrap(), |_, agents| agents[0].ignored == 1).unwrap();
    fabric.set_partitions(index, &[0x8001], now);
    let set = run_until(&mut fabric, &mut agents, now, |_, agents| agents[0].pkeys[..2] == [0x80, 1]);
    assert!(set.is_some_and(|set| set < now + 1_000_000), "{set:?}");
    let quiet = |fabric: &Fabric, _: &[Agent]| fabric.next_deadline() > Some(now + 5_000_000_000);
    assert!(run_until(&mut fabric, &mut agents, now, quiet).is_some());
    assert!(fabric.port_record(index).unwrap().active);
    assert_eq!(lanes(&fabric), (Some(7), Some(8)));
    // Nor does a sweep ask for ever.
    let before = agents[0].ignored;
    let later =
        run_until(&mut fabric, &mut agents, now, |_, agents| agents[0].ignored == before + 9).unwrap();
    assert!(later > now + 15_000_000_000, "{later}");
}

#[test]
fn a_port_that_says_nothing_of_its_lanes_comes_up() {
    let (mut fabric, mut agents) = fabric_of(2, "", 3);
    agents[1].info.set_capability_mask(1 << 6).set_vl_arb_low_cap(64).set_vl_arb_high_cap(64);
    agents[1].is_silent = true;
    assert!(bring_up(&mut fabric, &mut agents) < 2_000_000_000);
    let record = fabric.port_record(agents[1].index).unwrap();
    assert!(record.sl_to_vl.is_none() && record.vl_arbitration.is_empty());
}

//! One port that takes all that it can get of the subnet administrator, and another that is served all the same.

use ib_mgmt::mad::{attr, method, status};
use ib_mgmt::sa::{Notice, SaMad, ServiceRecord, notice_type, producer, trap};
use ib_mgmt::smp::Smp;

use super::administration::{next_mad, subscribe};
use super::management::{next_smp, smp_packet};
use super::*;
use crate::work;

const NOW: u64 = 1 << 40;

/// Three ports; the first is greedy.
fn fabric() -> (Fabric, Vec<Agent>) {
    let (mut fabric, mut agents) = fabric_of(3, "", 1);
    bring_up(&mut fabric, &mut agents);
    (fabric, agents)
}

fn table(tid: u64) -> Mad {
    let mut request = SaMad::request(method::GET_TABLE, attr::PORT_INFO_RECORD, 0, tid);
    request.set_tid(tid);
    request.to_mad()
}

#[test]
fn tables_that_nobody_acknowledges_are_in_nobody_elses_way() {
    let (mut fabric, agents) = fabric();
    let refused = |fabric: &mut Fabric, agent: &Agent, tid| {
        fabric.send(agent.index, agent.query(&table(tid)), NOW);
        fabric.poll(NOW);
        let replies = std::iter::from_fn(|| next_mad(fabric, agent.index, u64::MAX));
        replies.filter(|mad| mad.tid() == tid).any(|mad| mad.status() == status::BUSY)
    };
    let busy = (1..=300).filter(|tid| refused(&mut fabric, &agents[0], *tid)).count();
    assert_eq!(busy, 300 - 16, "its share");
    assert!(!refused(&mut fabric, &agents[1], 1));
}

#[test]
fn invented_groups_leave_room_for_others() {
    let (mut fabric, agents) = fabric();
    let create = 1 | 2 | 1 << 2 | 1 << 6 | 1 << 7 | 1 << 12 | 1 << 13 | 1 << 16;
    let mut make = |agent: &Agent, number: u16| {
        let mut mgid = Gid([0xff, 0x12, 0x60, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        mgid.0[14..].copy_from_slice(&number.to_be_bytes());
        ask(&mut fabric, agent, &multicast_query(method::SET, create, mgid, agent.gid(), 1)).unwrap().status()
    };
    let made = (0..1_100).filter(|number| make(&agents[0], *number) == 0).count();
    assert_eq!(made, 128, "its share");
    assert_eq!(make(&agents[0], 2_000), status::SA_NO_RESOURCES);
    assert_eq!(make(&agents[1], 2_000), 0);
}

#[test]
fn services_are_many_for_each_and_withdrawn_by_their_own_port() {
    let (mut fabric, agents) = fabric();
    let request = |agent: &Agent, method: u8, id: u64| {
        let mut record = ServiceRecord::zeroed();
        record.set_service_id(id).set_service_gid(agent.gid());
        let mut mad = SaMad::request(method, attr::SERVICE_RECORD, 1 | 2, id);
        mad.set_record_data(record.as_bytes());
        mad.to_mad()
    };
    let mut set =
        |agent: &Agent, id| ask(&mut fabric, agent, &request(agent, method::SET, id)).unwrap().status();
    assert_eq!((1..=300).filter(|id| set(&agents[0], *id) == 0).count(), 256, "its share");
    assert_eq!(set(&agents[1], 1), 0);
    let theirs = request(&agents[1], method::DELETE, 1);
    assert_eq!(ask(&mut fabric, &agents[0], &theirs).unwrap().status(), status::SA_NO_RECORDS);
    assert_eq!(ask(&mut fabric, &agents[1], &theirs).unwrap().status(), 0);
}

#[test]
fn floods_of_traps_do_not_drown_reports_about_others() {
    let (mut fabric, agents) = fabric();
    for number in [trap::CAPABILITY, trap::OUT_OF_SERVICE] {
        assert_eq!(ask(&mut fabric, &agents[1], &subscribe(number)).unwrap().status(), 0);
    }
    let send_trap = |fabric: &mut Fabric, number: u16, tid| {
        let notice = Notice::generic(notice_type::INFORMATIONAL, producer::CA, number, 2);
        let mut smp = Smp::lid_routed(method::TRAP, attr::NOTICE, 0, tid);
        smp.set_data(notice.as_bytes().first_chunk().unwrap());
        fabric.send(PortIndex(0), smp_packet(&smp, 2, SM_LID), NOW);
    };
    for tid in 0..1_000 {
        send_trap(&mut fabric, trap::CAPABILITY, tid);
        fabric.poll(NOW);
    }
    fabric.set_link(PortIndex(2), false, NOW);
    fabric.poll(NOW);
    let reports = std::iter::from_fn(|| next_mad(&mut fabric, PortIndex(1), u64::MAX));
    let numbers: Vec<u16> = reports
        .filter(|mad| mad.method() == method::REPORT)
        .map(|mad| Notice::from_slice(mad.record_data()).unwrap().trap_number())
        .collect();
    assert!(numbers.contains(&trap::OUT_OF_SERVICE), "{} reports", numbers.len());
    // What only a switch or the subnet manager has to tell is not an adapter's to say.
    while fabric.receive(PortIndex(0), u64::MAX).is_some() {}
    send_trap(&mut fabric, trap::LINK_STATE, 0x9999);
    assert!(std::iter::from_fn(|| next_smp(&mut fabric, PortIndex(0))).all(|smp| smp.tid() != 0x9999));
}

#[test]
fn management_requests_are_answered_in_bounded_steps() {
    let (mut fabric, agents) = fabric();
    fabric.poll(NOW);
    for tid in 1..=100 {
        let mut request = SaMad::request(method::GET, attr::CLASS_PORT_INFO, 0, tid);
        request.set_tid(tid);
        fabric.send(agents[0].index, agents[0].query(&request.to_mad()), NOW);
    }
    let mut calls = 0;
    while fabric.management.len() != 0 {
        let (before, left) = (fabric.owed(agents[0].index), fabric.management.len());
        fabric.poll(NOW);
        let steps = fabric.owed(agents[0].index) - before;
        assert!(fabric.management.len() < left && steps < STEPS_PER_CALL + 2 * work::MAD, "{steps} steps");
        assert_eq!(fabric.next_deadline().map(|next| next <= NOW + 1_000), Some(true));
        calls += 1;
    }
    assert!(calls >= 6, "{calls} calls");
    let replies = std::iter::from_fn(|| next_mad(&mut fabric, agents[0].index, u64::MAX)).count();
    assert_eq!(replies, 100);
}

#[test]
fn tables_beyond_the_share_cost_no_look_at_records() {
    let (mut fabric, agents) = fabric();
    let mut cost = |tid| {
        let mut request = SaMad::request(method::GET_TABLE, attr::PATH_RECORD, 0, tid);
        request.set_tid(tid);
        let before = fabric.owed(agents[0].index);
        fabric.send(agents[0].index, agents[0].query(&request.to_mad()), NOW);
        fabric.poll(NOW);
        fabric.owed(agents[0].index) - before
    };
    let costs: Vec<u64> = (1..=17).map(&mut cost).collect();
    assert!(costs[15] > work::MAD, "{costs:?}");
    assert_eq!(costs[16], work::MAD);
    assert_eq!(cost(1), work::MAD, "the same table is in progress");
}

#[test]
fn look_ups_of_groups_are_charged() {
    let (mut fabric, agents) = fabric();
    let create = 2 | 1 << 2 | 1 << 6 | 1 << 7 | 1 << 12 | 1 << 13 | 1 << 16;
    let join = |agent: &Agent| multicast_query(method::SET, create, Gid::ZERO, agent.gid(), 1);
    let mut costs = Vec::new();
    for _ in 0..100 {
        let before = fabric.owed(agents[0].index);
        assert_eq!(ask(&mut fabric, &agents[0], &join(&agents[0])).unwrap().status(), 0);
        costs.push(fabric.owed(agents[0].index) - before);
    }
    assert!(costs[99] >= costs[0] + 4 * (99 / 16), "{costs:?}");
    let before = fabric.owed(agents[1].index);
    fabric.send(agents[1].index, test_packet(agents[1].lid(), 0xc050, 0), NOW);
    assert_eq!(fabric.owed(agents[1].index) - before, 101 / 16 + work::PACKET, "a copy for one member");
}

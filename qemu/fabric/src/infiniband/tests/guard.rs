//! What a port cannot do to others where the fabric manages itself, and what it can where the fabric is open.

use ib_mgmt::pma;
use ib_mgmt::smp::{SwitchInfo, phys_state};

use super::management::{ask_switch, get, next_smp, smp_packet};
use super::*;

/// The same fabric with another key.
fn fabric_with_key(m_key: u64) -> (Fabric, Vec<Agent>) {
    let mut fabric = Fabric::new(FabricConfig { m_key, ..FabricConfig::default() });
    let agents = (0..3).map(|n| Agent::new(&mut fabric, n)).collect();
    (fabric, agents)
}

/// Set(PortInfo) that switches port `number` of the switch off.
fn switch_off(number: u32, m_key: u64) -> Smp {
    let mut smp = Smp::lid_routed(method::SET, attr::PORT_INFO, number, 0x1234);
    smp.set_m_key(m_key).set_data(PortInfo::zeroed().set_port_phys_state(phys_state::DISABLED).as_bytes());
    smp
}

/// Set(PortInfo) on the way from the first port to the third.
fn move_port(m_key: u64) -> Packet {
    let mut smp = Smp::directed_route(method::SET, attr::PORT_INFO, 0, 0x77, &[1, 3]);
    smp.set_m_key(m_key).set_hop_pointer(1).set_data(PortInfo::zeroed().set_lid(2).as_bytes());
    smp_packet(&smp, 0xffff, 0xffff)
}

fn arrives(fabric: &mut Fabric, at: PortIndex, tid: u64) -> bool {
    std::iter::from_fn(|| next_smp(fabric, at)).any(|smp| smp.tid() == tid)
}

#[test]
fn nobody_sets_without_the_key() {
    let key = 0x1234_5678_9abc_def0;
    let (mut fabric, mut agents) = fabric_with_key(key);
    bring_up(&mut fabric, &mut agents);
    assert!(agents.iter().all(|agent| (agent.info.m_key(), agent.info.m_key_protect()) == (key, 1)));
    for (wrong, refused) in [(0, 1), (key + 1, 2)] {
        assert_eq!(ask_switch(&mut fabric, &agents[0], &switch_off(2, wrong)), None);
        assert!(fabric.port_is_enabled(PortIndex(1)));
        assert_eq!(fabric.counters().refused, refused);
    }
    let reply = ask_switch(&mut fabric, &agents[0], &switch_off(2, key)).unwrap();
    assert_eq!(reply.status(), 0);
    assert!(!fabric.port_is_enabled(PortIndex(1)));

    // Nor does it get to another adapter, which may have been reset and have no key yet, by either way.
    fabric.send(PortIndex(0), move_port(0), 1 << 40);
    assert!(!arrives(&mut fabric, PortIndex(2), 0x77));
    fabric.send(PortIndex(0), smp_packet(&switch_off(1, 0), 2, 4), 1 << 40);
    assert!(!arrives(&mut fabric, PortIndex(2), 0x1234));
    assert_eq!(fabric.counters().refused, 4);
    fabric.send(PortIndex(0), move_port(key), 1 << 40);
    assert!(arrives(&mut fabric, PortIndex(2), 0x77));
}

#[test]
fn everybody_reads_all_but_the_key() {
    let key = 77;
    let (mut fabric, mut agents) = fabric_with_key(key);
    bring_up(&mut fabric, &mut agents);
    let mut info = |m_key| {
        let reply = ask_switch(&mut fabric, &agents[0], get(attr::PORT_INFO, 0).set_m_key(m_key)).unwrap();
        let info = PortInfo::from_bytes(*reply.data());
        (reply.status(), info.m_key_protect(), info.m_key())
    };
    assert_eq!(info(0), (0, 1, 0));
    let mut query = Mad::new(class::SUBN_ADM, 2, method::GET, attr::PORT_INFO_RECORD, 5);
    query.as_bytes_mut()[48..56].copy_from_slice(&1u64.to_be_bytes());
    query.as_bytes_mut()[56..58].copy_from_slice(&agents[1].lid().to_be_bytes());
    let reply = ask(&mut fabric, &agents[0], &query).unwrap();
    assert_eq!(reply.status(), 0);
    let record = PortInfo::from_bytes(reply.as_bytes()[60..124].try_into().unwrap());
    assert_eq!((record.lid(), record.m_key()), (agents[1].lid(), 0));
}

#[test]
fn a_port_sends_as_itself_only() {
    let (mut fabric, mut agents) = fabric_of(3, "", 1);
    let now = bring_up(&mut fabric, &mut agents);
    let arrived = |fabric: &mut Fabric, packet: Packet| {
        fabric.send(PortIndex(0), packet, now);
        std::iter::from_fn(|| fabric.receive(PortIndex(1), u64::MAX)).count()
    };
    assert_eq!(arrived(&mut fabric, test_packet(2, 3, 1)), 1);
    // The LID of the third; no LID; the LID of nobody.
    for slid in [4, 0, 99] {
        assert_eq!(arrived(&mut fabric, test_packet(slid, 3, 1)), 0, "{slid}");
    }
    // Another partition, and a membership that it does not have.
    fabric.set_partitions(PortIndex(0), &[0x7fff, 0x8001], now);
    assert_eq!(arrived(&mut fabric, test_packet(2, 3, 1)), 0);
    // The management lane leads to QP0 alone.
    let mut disguised = test_packet(4, 3, 1).into_buffer();
    disguised[0] = 0xf0;
    disguised.truncate(disguised.len() - 4);
    append_icrc(&mut disguised);
    assert_eq!(arrived(&mut fabric, Packet::new(disguised)), 0);
    assert_eq!(fabric.counters().refused, 5);
    assert_eq!(fabric.losses().sum(|_| true).refused, 5);
    let mut mad = Mad::new(class::PERF_MGMT, 1, method::GET, pma::attr::PORT_COUNTERS, 3);
    pma::set_data(&mut mad, &[0, 1]);
    let reply = ask(&mut fabric, &agents[1], &mad).unwrap();
    let told = pma::PortCounters::from_slice(pma::data(&reply)).unwrap();
    assert_eq!(told.rcv_constraint_errors(), 5);
}

#[test]
fn groups_are_left_for_others_with_the_key_only() {
    let key = 0xfeed_0000_beef;
    let (mut fabric, mut agents) = fabric_with_key(key);
    bring_up(&mut fabric, &mut agents);
    let mgid = super::super::multicast::IPOIB_BROADCAST;
    let member = |method| multicast_query(method, 1 | 2 | 1 << 16, mgid, agents[1].gid(), 1);
    assert_eq!(ask(&mut fabric, &agents[1], &member(method::SET)).unwrap().status(), 0);
    let mut leave = |sm_key: u64| {
        let mut bye = member(method::DELETE);
        bye.as_bytes_mut()[36..44].copy_from_slice(&sm_key.to_be_bytes());
        ask(&mut fabric, &agents[0], &bye).unwrap().status()
    };
    assert_eq!([leave(0), leave(1)], [status::SA_REQ_INVALID; 2]);
    assert_eq!(leave(key), 0);
}

#[test]
fn an_open_fabric_is_everybodys() {
    let (mut fabric, mut agents) = fabric_with_key(0);
    let now = bring_up(&mut fabric, &mut agents);
    assert!(agents.iter().all(|agent| (agent.info.m_key(), agent.info.m_key_protect()) == (0, 0)));
    fabric.send(PortIndex(0), move_port(0), 1 << 40);
    assert!(arrives(&mut fabric, PortIndex(2), 0x77));
    fabric.send(PortIndex(0), test_packet(99, 3, 1), now);
    assert!(fabric.receive(PortIndex(1), u64::MAX).is_some());
    assert_eq!(ask_switch(&mut fabric, &agents[0], &switch_off(2, 0)).unwrap().status(), 0);
    assert!(!fabric.port_is_enabled(PortIndex(1)));
    assert_eq!(fabric.counters().refused, 0);
}

#[test]
fn a_key_of_somebody_elses_manager_guards_the_switch() {
    let mut fabric = Fabric::new(FabricConfig { subnet_manager: false, ..FabricConfig::default() });
    let mut agent = Agent::new(&mut fabric, 0);
    let mut answer = |method, attribute, m_key, data: &[u8; 64]| {
        let mut smp = Smp::directed_route(method, attribute, 0, 9, &[1]);
        smp.set_m_key(m_key).set_hop_pointer(1).set_data(data);
        fabric.send(agent.index, smp_packet(&smp, 0xffff, 0xffff), 1);
        next_smp(&mut fabric, agent.index).map(|smp| *smp.data())
    };
    agent.info.set_m_key(0x55).set_m_key_protect(1).set_lid(9).set_master_sm_lid(0);
    let info = *agent.info.as_bytes();
    assert!(answer(method::SET, attr::PORT_INFO, 0, &info).is_some(), "there is no key yet");
    let switch = SwitchInfo::zeroed();
    let mut data = [0; 64];
    data[..20].copy_from_slice(switch.as_bytes());
    for attribute in [attr::PORT_INFO, attr::SWITCH_INFO, attr::LINEAR_FORWARDING] {
        assert_eq!(answer(method::SET, attribute, 0, &data), None, "{attribute:#x}");
    }
    let mut key = |m_key| {
        let data = answer(method::GET, attr::PORT_INFO, m_key, &[0; 64]).unwrap();
        PortInfo::from_bytes(data).m_key()
    };
    assert_eq!((key(0), key(0x55)), (0, 0x55));
    // At level 2 nobody even reads.
    agent.info.set_m_key_protect(2);
    let info = *agent.info.as_bytes();
    assert!(answer(method::SET, attr::PORT_INFO, 0x55, &info).is_some());
    assert_eq!(answer(method::GET, attr::NODE_INFO, 0, &[0; 64]), None);
    assert!(answer(method::GET, attr::NODE_INFO, 0x55, &[0; 64]).is_some());
}

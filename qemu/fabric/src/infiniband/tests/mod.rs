//! The fabric alone: a port with a small management agent at the end of each cable.

mod administration;
mod guard;
mod management;
mod shares;

use crate::infiniband::packet::{QKEY_GSI, append_icrc, icrc_is_right};
use std::io::Write;
use std::sync::{Arc, Mutex};

use crate::infiniband::packet::{Bth, LID_PERMISSIVE, LNH_BTH, Lrh, Opcode};
use ib_mgmt::mad::{Mad, attr, class, method, status};
use ib_mgmt::smp::{NodeInfo, PortInfo, Smp, port_state};
use proptest::prelude::*;

use super::manager::{MadRoute, SM_LID, mad_packet};
use super::*;
use crate::capture::PcapNg;
use crate::losses::Kind;
use crate::packet::Packet;
use crate::work::STEPS_PER_CALL;

/// A port that answers SMPs as an agent must, from the specification, not with the model's code.
struct Agent {
    index: PortIndex,
    guid: u64,
    info: PortInfo,
    pkeys: [u8; 64],
    reregister: u32,
    /// A block of VL arbitration that it should have, and refuses.
    refused_block: Option<u8>,
    /// Added to its tables of lanes.
    lanes: u8,
    /// It does not answer for its tables of lanes.
    is_silent: bool,
    /// Requests that it did not answer for that.
    ignored: u32,
}

impl Agent {
    fn new(fabric: &mut Fabric, n: u64) -> Self {
        let index = fabric.attach(&format!("node{n}")).unwrap();
        let mut info = PortInfo::zeroed();
        info.set_port_state(port_state::INIT).set_port_phys_state(5).set_mtu_cap(5).set_vl_cap(4);
        fabric.set_link(index, true, 0);
        Self {
            index,
            guid: 0x1000 + n,
            info,
            pkeys: [0; 64],
            reregister: 0,
            refused_block: None,
            lanes: 0,
            is_silent: false,
            ignored: 0,
        }
    }

    fn lid(&self) -> u16 {
        self.info.lid()
    }

    fn gid(&self) -> Gid {
        Gid::new(self.info.gid_prefix(), self.guid)
    }

    /// Answers one SMP packet.
    fn smp(&mut self, packet: &Packet) -> Option<Packet> {
        let shape = Shape::of(packet.bytes())?;
        assert!(icrc_is_right(packet.bytes()));
        if shape.bth.dest_qpn != 0 {
            return None;
        }
        assert_eq!((shape.lrh.vl, shape.lrh.dlid, shape.lrh.slid), (15, 0xffff, 0xffff));
        let (deth, mad) = datagram(&shape, packet.bytes())?;
        assert_eq!((deth.qkey, deth.src_qpn), (0, 0));
        let smp = Smp::from_mad(&mad);
        assert_eq!((smp.hop_pointer(), smp.hop_count()), (1, 1), "as it arrives after one hop");
        assert_eq!(smp.initial_path()[1], self.index.0 as u8 + 1);
        let mut data = *smp.data();
        let mut failed = 0;
        match (smp.method(), smp.attr_id()) {
            (method::GET, attr::NODE_INFO) => {
                let mut info = NodeInfo::zeroed();
                info.set_node_type(1).set_num_ports(1).set_node_guid(self.guid).set_port_guid(self.guid);
                info.set_local_port_num(1);
                data = [0; 64];
                data[..40].copy_from_slice(info.as_bytes());
            }
            (method::GET, attr::NODE_DESCRIPTION) => {
                data = [0; 64];
                data[..5].copy_from_slice(b"agent");
            }
            (method::GET, attr::PORT_INFO) => data = *self.info.as_bytes(),
            (method::GET, attr::SL_TO_VL | attr::VL_ARBITRATION) if self.is_silent => {
                self.ignored += 1;
                return None;
            }
            (method::GET, attr::SL_TO_VL) => {
                assert_ne!(self.info.capability_mask() & 1 << 6, 0, "it said that it has none");
                data = [0; 64];
                data[..8].copy_from_slice(&self.guid.to_be_bytes());
                data[0] = self.lanes;
            }
            (method::GET, attr::VL_ARBITRATION) => {
                let block = (smp.attr_mod() >> 16) as u8;
                let entries =
                    [self.info.vl_arb_low_cap(), self.info.vl_arb_high_cap()][usize::from(block > 2)];
                assert!(entries > 32 * ((block - 1) % 2), "block {block} of a table of {entries}");
                data = [block + self.lanes; 64];
                failed = if Some(block) == self.refused_block { status::INVALID_FIELD } else { 0 };
            }
            (method::SET, attr::PKEY_TABLE) => self.pkeys = data,
            (method::SET, attr::PORT_INFO) => {
                let set = PortInfo::from_bytes(data);
                let old = self.info.port_state();
                self.info = set;
                let state = match (set.port_state(), old) {
                    (0, old) => old,
                    (3, 2) => 3,
                    (4, 3) => 4,
                    // No such transition (IBTA 14.2.5.6): it was made before, and the answer got lost.
                    (wanted, old) => {
                        assert_eq!(wanted, old);
                        failed = status::INVALID_FIELD;
                        old
                    }
                };
                self.info.set_port_state(state).set_port_phys_state(5).set_client_reregister(false);
                self.reregister += u32::from(set.client_reregister());
                data = *self.info.as_bytes();
            }
            other => panic!("{other:?}"),
        }
        let mut reply = smp.to_response(failed);
        reply.set_data(&data).set_hop_pointer(1);
        let route = MadRoute {
            vl: 15,
            sl: 0,
            slid: LID_PERMISSIVE,
            dlid: LID_PERMISSIVE,
            pkey: 0xffff,
            source_qpn: 0,
            dest_qpn: 0,
            qkey: 0,
            psn: 0,
            grh: None,
        };
        Some(mad_packet(&route, reply.as_bytes()))
    }

    fn query(&self, mad: &Mad) -> Packet {
        self.query_in(0xffff, mad)
    }

    fn query_in(&self, pkey: u16, mad: &Mad) -> Packet {
        let route = MadRoute {
            vl: 0,
            sl: 0,
            slid: self.lid(),
            dlid: SM_LID,
            pkey,
            source_qpn: 1,
            dest_qpn: 1,
            qkey: QKEY_GSI,
            psn: 3,
            grh: None,
        };
        mad_packet(&route, mad.as_bytes())
    }
}

/// Lets all agents and the subnet manager work until every port is Active, or a second has passed.
fn bring_up(fabric: &mut Fabric, agents: &mut [Agent]) -> u64 {
    let all_active = |fabric: &Fabric, agents: &[Agent]| {
        agents.iter().all(|agent| fabric.port_record(agent.index).unwrap().active)
    };
    run_until(fabric, agents, 0, all_active).expect("not active after a minute")
}

/// Lets the ports answer until `done`, for a minute at most.
fn run_until(
    fabric: &mut Fabric,
    agents: &mut [Agent],
    start: u64,
    done: impl Fn(&Fabric, &[Agent]) -> bool,
) -> Option<u64> {
    let mut now = start;
    while now < start + 60_000_000_000 {
        fabric.poll(now);
        for agent in agents.iter_mut() {
            while let Some(packet) = fabric.receive(agent.index, now) {
                if !icrc_is_right(packet.bytes()) {
                    continue;
                }
                if let Some(reply) = agent.smp(&packet) {
                    fabric.send(agent.index, reply, now);
                }
            }
        }
        if done(fabric, agents) {
            return Some(now);
        }
        now = fabric.next_deadline().unwrap().max(now + 1);
    }
    None
}

fn fabric_of(count: u64, faults: &str, seed: u64) -> (Fabric, Vec<Agent>) {
    let mut fabric = Fabric::new(FabricConfig {
        seed,
        faults: faults.parse().unwrap(),
        latency: 1_000,
        ..FabricConfig::default()
    });
    let agents = (0..count).map(|n| Agent::new(&mut fabric, n)).collect();
    (fabric, agents)
}

#[test]
fn every_port_becomes_active() {
    let (mut fabric, mut agents) = fabric_of(3, "", 1);
    let now = bring_up(&mut fabric, &mut agents);
    assert!(now < 1_000_000, "{now} ns without faults");
    for (i, agent) in agents.iter().enumerate() {
        assert_eq!(agent.lid(), 2 + i as u16);
        assert_eq!((agent.info.master_sm_lid(), agent.info.subnet_timeout()), (1, 18));
        assert_eq!(
            (agent.info.port_state(), agent.info.neighbor_mtu(), agent.info.operational_vls()),
            (4, 5, 4)
        );
        assert_eq!(agent.info.gid_prefix(), 0xfe80_0000_0000_0000);
        assert_eq!(agent.pkeys[..4], [0xff, 0xff, 0, 0]);
        assert_eq!(agent.reregister, 1);
        assert_eq!(fabric.gid(agent.index), Some(agent.gid()));
    }
}

#[test]
fn ports_become_active_although_every_third_packet_is_lost() {
    for seed in 0..10 {
        let (mut fabric, mut agents) = fabric_of(2, "loss=30%,dup=5%,corrupt=5%", seed);
        bring_up(&mut fabric, &mut agents);
        assert!(fabric.counters().dropped > 0);
    }
}

#[test]
fn a_port_that_lost_its_configuration_is_found_by_the_sweep() {
    let (mut fabric, mut agents) = fabric_of(1, "", 1);
    let start = bring_up(&mut fabric, &mut agents);
    agents[0].info.set_port_state(port_state::INIT).set_lid(0);
    let mut now = start;
    while agents[0].info.port_state() != port_state::ACTIVE {
        now = fabric.next_deadline().unwrap().max(now + 1);
        assert!(now < start + 11_000_000_000);
        fabric.poll(now);
        while let Some(packet) = fabric.receive(PortIndex(0), now) {
            let reply = agents[0].smp(&packet).unwrap();
            fabric.send(PortIndex(0), reply, now);
        }
    }
    assert_eq!(agents[0].lid(), 2, "the same LID again");
    assert_eq!(agents[0].reregister, 2);
}

fn ask(fabric: &mut Fabric, agent: &Agent, mad: &Mad) -> Option<Mad> {
    let pkey = fabric.port_record(agent.index).unwrap().pkeys[0];
    fabric.send(agent.index, agent.query_in(pkey, mad), 1 << 40);
    fabric.poll(1 << 40);
    while let Some(packet) = fabric.receive(agent.index, u64::MAX) {
        let shape = Shape::of(packet.bytes()).unwrap();
        assert!(icrc_is_right(packet.bytes()));
        let (deth, reply) = datagram(&shape, packet.bytes()).unwrap();
        if shape.bth.dest_qpn != 1 {
            continue; // a sweep
        }
        assert_eq!((deth.qkey, deth.src_qpn), (0x8001_0000, 1));
        assert_eq!((shape.lrh.slid, shape.lrh.dlid), (1, agent.lid()));
        assert_eq!(reply.tid(), mad.tid());
        return Some(reply);
    }
    None
}

fn path_query(method: u8, mask: u64, fields: &[(usize, &[u8])]) -> Mad {
    let mut mad = Mad::new(class::SUBN_ADM, 2, method, attr::PATH_RECORD, 0x77);
    mad.as_bytes_mut()[48..56].copy_from_slice(&mask.to_be_bytes());
    for (at, bytes) in fields {
        mad.as_bytes_mut()[56 + at..56 + at + bytes.len()].copy_from_slice(bytes);
    }
    mad
}

#[test]
fn path_records() {
    let (mut fabric, mut agents) = fabric_of(2, "", 1);
    bring_up(&mut fabric, &mut agents);
    let (a, b) = (&agents[0], &agents[1]);
    let fields: [(usize, &[u8]); 4] = [(8, &b.gid().0), (24, &a.gid().0), (49, &[0x81]), (50, &[0xff, 0xff])];
    let mask = 1 << 2 | 1 << 3 | 1 << 11 | 1 << 12 | 1 << 13;
    let reply = ask(&mut fabric, a, &path_query(method::GET, mask, &fields)).unwrap();
    assert_eq!((reply.method(), reply.status()), (method::GET_RESP, 0));
    let record = &reply.as_bytes()[56..120];
    assert_eq!(record[8..24], b.gid().0);
    assert_eq!(record[24..40], a.gid().0);
    assert_eq!(record[40..44], [0, 3, 0, 2], "destination LID, source LID");
    assert_eq!(record[47], 0, "no global route");
    assert_eq!(record[49..58], [0x81, 0xff, 0xff, 0, 0, 0x85, 0x90, 0x88, 0]);

    // Nobody has that GID; the source is nobody.
    let nobody = Gid::new(Gid::DEFAULT_PREFIX, 99);
    let query = path_query(method::GET, 1 << 2 | 1 << 3, &[(8, &nobody.0), (24, &a.gid().0)]);
    assert_eq!(ask(&mut fabric, a, &query).unwrap().status(), status::SA_NO_RECORDS);
    let query = path_query(method::GET, 1 << 2 | 1 << 3, &[(8, &b.gid().0), (24, &nobody.0)]);
    assert_eq!(ask(&mut fabric, a, &query).unwrap().status(), status::SA_INVALID_GID);
    assert_eq!(ask(&mut fabric, a, &path_query(method::GET, 0, &[])).unwrap().status(), 0x0600);
    // An MTU above 4096 does not exist: selector "greater than", code 5.
    let query = path_query(
        method::GET,
        1 << 2 | 1 << 3 | 1 << 16 | 1 << 17,
        &[(8, &b.gid().0), (24, &a.gid().0), (54, &[5])],
    );
    assert_eq!(ask(&mut fabric, a, &query).unwrap().status(), status::SA_NO_RECORDS);

    // All paths from the asker: to the switch, to itself, to the other.
    let query = path_query(method::GET_TABLE, 1 << 5, &[(42, &a.lid().to_be_bytes())]);
    let reply = ask(&mut fabric, a, &query).unwrap();
    assert_eq!((reply.method(), reply.status()), (method::GET_TABLE_RESP, 0));
    let bytes = reply.as_bytes();
    assert_eq!(bytes[24..36], [1, 1, 0xff, 0, 0, 0, 0, 1, 0, 0, 0, 20 + 192]);
    assert_eq!(bytes[44..46], [0, 8], "64 bytes apart");
    assert_eq!([0, 64, 128].map(|at| bytes[56 + at + 41]), [1, 2, 3], "destination LIDs");
}

#[test]
fn the_administrator_has_an_answer_for_everything() {
    let (mut fabric, mut agents) = fabric_of(1, "", 1);
    bring_up(&mut fabric, &mut agents);
    let a = &agents[0];
    let mut get = |class, version, method, attribute| {
        let mad = Mad::new(class, version, method, attribute, 5);
        ask(&mut fabric, a, &mad).map(|reply| (reply.method(), reply.status()))
    };
    assert_eq!(get(class::SUBN_ADM, 2, method::GET, attr::CLASS_PORT_INFO), Some((0x81, 0)));
    assert_eq!(get(class::SUBN_ADM, 2, method::GET, attr::SERVICE_RECORD), Some((0x81, 0x0300)), "none");
    assert_eq!(get(class::SUBN_ADM, 2, method::GET, 0x7777), Some((0x81, 0x0c)));
    assert_eq!(get(class::SUBN_ADM, 2, method::GET_MULTI, attr::MULTI_PATH_RECORD), Some((0x94, 0x0c)));
    assert_eq!(get(class::SUBN_ADM, 1, method::GET, attr::PATH_RECORD), Some((0x81, 0x04)));
    assert_eq!(get(class::SUBN_ADM, 2, 0x7f, attr::PATH_RECORD), Some((0xff, 0x08)));
    assert_eq!(get(class::PERF_MGMT, 1, method::GET, 0x12), Some((0x81, 0)), "the switch's counters");
    assert_eq!(get(class::DEVICE_MGMT, 1, method::GET, 1), Some((0x81, 0x08)));
    assert_eq!(get(class::SUBN_ADM, 2, method::GET_RESP, attr::PATH_RECORD), None);
    assert_eq!(get(class::CM, 2, method::SEND, attr::CM_REQ), None);
    assert_eq!(get(class::SUBN_ADM, 2, method::GET, attr::NODE_RECORD), Some((0x81, 0x0400)), "two");
    assert_eq!(get(class::SUBN_ADM, 2, method::GET_TABLE, attr::PORT_INFO_RECORD), Some((0x92, 0)));
}

fn multicast_query(method: u8, mask: u64, mgid: Gid, port: Gid, join_state: u8) -> Mad {
    let mut mad = Mad::new(class::SUBN_ADM, 2, method, attr::MC_MEMBER_RECORD, 0x99);
    let bytes = mad.as_bytes_mut();
    bytes[48..56].copy_from_slice(&mask.to_be_bytes());
    bytes[56..72].copy_from_slice(&mgid.0);
    bytes[72..88].copy_from_slice(&port.0);
    bytes[88..92].copy_from_slice(&0x0b1bu32.to_be_bytes());
    bytes[96..98].copy_from_slice(&[0xff, 0xff]);
    bytes[104] = join_state;
    mad
}

#[test]
fn groups_are_joined_forwarded_to_and_left() {
    let (mut fabric, mut agents) = fabric_of(3, "", 1);
    bring_up(&mut fabric, &mut agents);
    let mgid = Gid([0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    let create = 1 | 2 | 1 << 2 | 1 << 6 | 1 << 7 | 1 << 12 | 1 << 13 | 1 << 16;
    let join = 1 | 2 | 1 << 16;
    let set = |mask, port| multicast_query(method::SET, mask, mgid, port, 1);
    let reply = ask(&mut fabric, &agents[1], &set(join, agents[1].gid())).unwrap();
    assert_eq!(reply.status(), status::SA_INSUFFICIENT_COMPONENTS, "the group does not exist yet");
    let reply = ask(&mut fabric, &agents[0], &set(create, agents[0].gid())).unwrap();
    assert_eq!(reply.status(), 0);
    let mlid = u16::from_be_bytes([reply.as_bytes()[92], reply.as_bytes()[93]]);
    assert!(mlid >= 0xc000);
    assert_eq!(reply.as_bytes()[88..92], [0, 0, 0x0b, 0x1b]);
    for agent in &agents[1..] {
        let reply = ask(&mut fabric, agent, &set(join, agent.gid())).unwrap();
        assert_eq!((reply.status(), reply.as_bytes()[104]), (0, 0x21), "scope of the MGID, full member");
    }
    let now = 1 << 50;
    fabric.send(PortIndex(0), test_packet(agents[0].lid(), mlid, 1), now);
    let got = |fabric: &mut Fabric, i| fabric.receive(PortIndex(i), u64::MAX).is_some();
    assert_eq!([0, 1, 2].map(|i| got(&mut fabric, i)), [false, true, true], "to all but the sender");
    let bye = multicast_query(method::DELETE, join, mgid, agents[1].gid(), 1);
    let reply = ask(&mut fabric, &agents[1], &bye).unwrap();
    assert_eq!((reply.method(), reply.status()), (method::DELETE_RESP, 0));
    assert_eq!(ask(&mut fabric, &agents[1], &bye).unwrap().status(), status::SA_REQ_INVALID);
    fabric.set_link(PortIndex(2), false, now);
    fabric.send(PortIndex(0), test_packet(agents[0].lid(), mlid, 2), now);
    assert_eq!([0, 1, 2].map(|i| got(&mut fabric, i)), [false, false, false]);
}

/// An RC packet that carries `number` as PSN.
fn test_packet(slid: u16, dlid: u16, number: u32) -> Packet {
    let lrh = Lrh { link_next_header: LNH_BTH, dlid, slid, length_words: 14, ..Lrh::default() };
    let mut bytes = lrh.to_bytes().to_vec();
    bytes.extend_from_slice(&Bth::new(Opcode::RC_SEND_ONLY, 0xffff, 9, number).to_bytes());
    bytes.extend_from_slice(&[0x5a; 32]);
    append_icrc(&mut bytes);
    Packet::new(bytes)
}

fn number(packet: &Packet) -> u32 {
    Shape::of(packet.bytes()).unwrap().bth.psn
}

#[test]
fn a_link_is_first_in_first_out_and_takes_its_time() {
    let (mut fabric, mut agents) = fabric_of(2, "delay=0ns..5ms", 3);
    let start = bring_up(&mut fabric, &mut agents) + 1_000_000_000;
    for i in 0..500 {
        fabric.send(PortIndex(0), test_packet(2, 3, i), start);
    }
    assert!(fabric.receive(PortIndex(1), start + 999).is_none());
    let mut now = start;
    let mut seen = Vec::new();
    while seen.len() < 500 {
        match fabric.receive(PortIndex(1), now) {
            Some(packet) => seen.push(number(&packet)),
            None => now = fabric.next_deadline().unwrap(),
        }
    }
    assert_eq!(seen, (0..500).collect::<Vec<_>>());
    assert!(now > start + 4_000_000 && now <= start + 5_001_000);
}

fn run_faulty(spec: &str, seed: u64) -> (Vec<u32>, FabricCounters) {
    let (mut fabric, mut agents) = fabric_of(2, "", seed);
    let start = bring_up(&mut fabric, &mut agents) + 1;
    fabric.set_faults(spec.parse().unwrap());
    let mut seen = Vec::new();
    for i in 0..20_000 {
        fabric.send(PortIndex(0), test_packet(2, 3, i), start);
        while let Some(packet) = fabric.receive(PortIndex(1), start + 1_000) {
            if icrc_is_right(packet.bytes()) {
                seen.push(number(&packet));
            }
        }
    }
    while let Some(packet) = fabric.receive(PortIndex(1), u64::MAX) {
        if icrc_is_right(packet.bytes()) {
            seen.push(number(&packet));
        }
    }
    (seen, fabric.counters())
}

#[test]
fn faults_are_counted_as_they_show() {
    let (seen, counters) = run_faulty("loss=1%,dup=1%,reorder=1%,corrupt=1%", 11);
    for (name, count) in [
        ("dropped", counters.dropped),
        ("duplicated", counters.duplicated),
        ("reordered", counters.reordered),
        ("corrupted", counters.corrupted),
    ] {
        assert!((120..280).contains(&count), "{count} {name}");
    }
    let mut sorted = seen.clone();
    sorted.sort_unstable();
    sorted.dedup();
    let missing = 20_000 - sorted.len() as u64;
    let twice = (seen.len() - sorted.len()) as u64;
    // A corrupted packet is missing (a copy of it has the same error), unless the bit is one that the ICRC does not cover.
    let most = counters.dropped + counters.corrupted;
    assert!((most - 20..=most).contains(&missing), "{missing} of {most}");
    assert!(counters.duplicated.abs_diff(twice) <= counters.corrupted);
    let backwards = seen.windows(2).filter(|pair| pair[1] < pair[0]).count() as u64;
    assert!(backwards > 100 && backwards <= counters.reordered);
}

#[test]
fn the_same_seed_replays_the_same_faults() {
    let spec = "loss=2%,dup=2%,reorder=2%,corrupt=2%,delay=1us..20us";
    assert_eq!(run_faulty(spec, 5), run_faulty(spec, 5));
    assert_ne!(run_faulty(spec, 5).0, run_faulty(spec, 6).0);
}

#[test]
fn a_cut_link_loses_what_is_on_its_way_and_what_comes() {
    let (mut fabric, mut agents) = fabric_of(2, "", 1);
    let now = bring_up(&mut fabric, &mut agents);
    let before = fabric.counters().link_down;
    for i in 0..10 {
        fabric.send(PortIndex(0), test_packet(2, 3, i), now);
    }
    fabric.set_link(PortIndex(1), false, now);
    fabric.send(PortIndex(0), test_packet(2, 3, 10), now);
    fabric.send(PortIndex(1), test_packet(3, 2, 10), now);
    assert_eq!(fabric.counters().link_down - before, 12);
    assert!(fabric.receive(PortIndex(1), u64::MAX).is_none());
    assert!(!fabric.port_record(PortIndex(1)).unwrap().active);
    assert!(fabric.ready(PortIndex(0)));
}

#[test]
fn credit_runs_out_and_comes_back() {
    let (mut fabric, mut agents) = fabric_of(2, "", 1);
    let now = bring_up(&mut fabric, &mut agents);
    let mut sent = 0;
    while fabric.ready(PortIndex(0)) {
        fabric.send(PortIndex(0), test_packet(2, 3, sent), now);
        sent += 1;
    }
    assert_eq!(sent, 1_024);
    assert!(fabric.ready(PortIndex(1)));
    assert!(fabric.receive(PortIndex(1), u64::MAX).is_some());
    assert!(fabric.ready(PortIndex(0)));
}

#[test]
fn congested_port_drops_after_the_head_of_queue_lifetime() {
    const LIFETIME: u64 = 4_096 << 16;
    let (mut fabric, mut agents) = fabric_of(2, "", 1);
    let now = bring_up(&mut fabric, &mut agents);
    let dropped = |fabric: &Fabric| fabric.counters().overflow;
    fabric.links_mut().set_congested(PortIndex(1), true, now);
    for i in 0..1_024 {
        fabric.send(PortIndex(0), test_packet(2, 3, i), now);
    }
    fabric.poll(now);
    // The packets arrive after the latency of 1 us.
    let first = now + 1_000 + LIFETIME;
    assert!(!fabric.ready(PortIndex(0)));
    assert_eq!((fabric.next_deadline(), dropped(&fabric)), (Some(first), 0));
    for sequence in 0..6 {
        fabric.poll(first + sequence * LIFETIME);
        assert_eq!(dropped(&fabric), sequence + 1);
    }
    let stall = first + 6 * LIFETIME;
    fabric.poll(stall);
    assert_eq!(dropped(&fabric), 1_024, "the seventh drop in sequence stalls the port");
    fabric.send(PortIndex(0), test_packet(2, 3, 0), stall);
    fabric.poll(stall + 1_000);
    assert_eq!(dropped(&fabric), 1_025);
    let losses = fabric.losses().sum(|_| true);
    assert_eq!(losses.overflow, 1_025);
    assert_eq!(fabric.switch.counters(Some(PortIndex(1))).unwrap().xmit_discards, 1_025);
    fabric.links_mut().set_congested(PortIndex(1), false, stall);
    fabric.send(PortIndex(0), test_packet(2, 3, 7), stall);
    fabric.poll(stall + 2 * LIFETIME);
    assert_eq!(fabric.receive(PortIndex(1), stall + 2 * LIFETIME).map(|packet| number(&packet)), Some(7));
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);
impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_capture_holds_every_packet_as_it_was_sent() {
    let file = Shared::default();
    let mut fabric =
        Fabric::new(FabricConfig { faults: "corrupt=100%".parse().unwrap(), ..FabricConfig::default() });
    let index = fabric.attach("first").unwrap();
    fabric.set_capture(Box::new(PcapNg::new(file.clone(), 0).unwrap()));
    let second = fabric.attach("second").unwrap();
    fabric.set_link(index, true, 0);
    fabric.set_link(second, true, 0);
    let packet = test_packet(2, 3, 77);
    fabric.send(index, packet.clone(), 5);
    fabric.finish_capture().unwrap();
    let bytes = file.0.lock().unwrap().clone();
    let holds = |needle: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
    assert!(holds(packet.bytes()) && holds(b"first") && holds(b"second") && holds(b"subnet manager"));
    assert!(holds(b"dropped: no route"), "nobody has a LID yet");
}

proptest! {
    #[test]
    fn no_packet_of_a_guest_harms_the_fabric(packets in proptest::collection::vec(
        (proptest::collection::vec(any::<u8>(), 0..320), any::<bool>(), any::<u8>()), 1..20)
    ) {
        let (mut fabric, mut agents) = fabric_of(2, "", 1);
        let now = bring_up(&mut fabric, &mut agents);
        for (mut bytes, fix, kind) in packets {
            if fix && bytes.len() >= 40 {
                bytes.truncate(bytes.len() / 4 * 4);
                let dlid: u16 = [SM_LID, 3, 0xffff, 0xc000][usize::from(kind) % 4];
                let vl = if kind & 4 == 0 { 0 } else { 15 };
                let words = (bytes.len() / 4) as u16;
                let lrh = Lrh { vl, dlid, slid: 2, length_words: words, link_next_header: LNH_BTH, sl: 0 };
                bytes[..8].copy_from_slice(&lrh.to_bytes());
                bytes[8] = 0x64;
                bytes[9] = 0x40;
                bytes.truncate(bytes.len() - 4);
                append_icrc(&mut bytes);
            }
            fabric.send(PortIndex(0), Packet::new(bytes), now);
            fabric.poll(now);
        }
        while fabric.receive(PortIndex(1), u64::MAX).is_some() {}
        while fabric.receive(PortIndex(0), u64::MAX).is_some() {}
    }
}

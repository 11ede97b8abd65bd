//! Ports without adapters, so that a test controls their events, their polls and the time between
//! polls.

use std::rc::Rc;
use std::sync::{Arc, Mutex};

use crate::common::address;
use driver_mlx::{
    AddressVector, AsyncEvent, Config, Gid, Hca, Instant, Mtu, Path, Psn, QKey, QpConfig, QpNumber,
    SendFlags, SendOp, Service, ServiceLevel, Wake,
};
use harness::verbs::Endpoint;
use harness::{ModelBar, ModelPlatform, Node, World, WorldConfig};
use hca_model::Profile;
use ib_port::ib_mgmt::cm::message::Message;
use ib_port::ib_mgmt::cm::{AcceptParams, CmEvent, ConnectParams, RejReason};
use ib_port::ib_mgmt::mad::{MAD_LEN, Mad, attr, class, method};
use ib_port::ib_mgmt::sa::{
    CLASS_VERSION, ClientConfig, Notice, PathRecord, SaMad, notice_type, producer, trap,
};
use ib_port::{IpConfig, Port, PortConfig, PortInfo, PortStorage, Resolution};
use rdma_fabric::capture::Capture;
use rdma_fabric::packet::Packet;
use rdma_fabric::ports::PortIndex;

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1000 * MS;
const MEMORY: usize = 8 << 20;
/// Length of a step of [`Ports::run`], nanoseconds.
const STEP: u64 = 100_000;
/// Port change event: the subnet manager requests reregistration.
const CLIENT_REREGISTER: u8 = 0x09;
const SERVICE: u64 = 0x0106_0007;

/// An HCA and its port.
pub struct Member {
    pub hca: Hca<'static, ModelPlatform>,
    pub port: Port<'static, ModelBar>,
}

/// Ports on one fabric.
pub struct Ports {
    pub world: Rc<World>,
    pub members: Vec<Member>,
    /// Port events of the device are followed by a refresh.
    pub follow: bool,
}

fn ipv4(node: usize) -> std::net::Ipv4Addr {
    match address(node) {
        std::net::IpAddr::V4(ip) => ip,
        std::net::IpAddr::V6(_) => unreachable!("nodes have IPv4 addresses"),
    }
}

impl Ports {
    /// Ports with the default partition.
    pub fn new(seed: u64, count: usize) -> Self {
        Self::with(seed, &vec![&[0xffff][..]; count], false)
    }

    /// A port for each of these P_Key tables, opened when the subnet manager has programmed them.
    /// No event of that time is pending.
    pub fn with(seed: u64, tables: &[&[u16]], ip: bool) -> Self {
        let world = World::new(&WorldConfig::new(seed));
        let bring_up = |node| Node::bring_up(&world, Profile::node(node as u16), MEMORY, &Config::DEFAULT);
        let mut nodes: Vec<Node> = (0..tables.len()).map(|node| bring_up(node).unwrap()).collect();
        for node in &mut nodes {
            node.wait_active().unwrap();
        }
        set_partitions(&world, tables);
        world.pass(100 * MS);
        let members = nodes.into_iter().enumerate().map(|(node, Node { mut hca, .. })| {
            let _ = hca.poll(Instant::from_nanos(world.now()));
            while hca.next_event().is_some() {}
            let storage = Box::leak(Box::new(PortStorage::<64, 8, 8, 8, 8, 8>::new()));
            let ip = ip.then(|| (ipv4(node), IpConfig::DEFAULT));
            let config = PortConfig {
                seed: seed << 8 | node as u64,
                sa: ClientConfig::default(),
                ip,
                address: None,
                vlan: None,
            };
            let port = Port::open(&mut hca, storage.parts(), &config).unwrap();
            Member { hca, port }
        });
        let members = members.collect();
        Self { world, members, follow: true }
    }

    pub fn now(&self) -> Instant {
        Instant::from_nanos(self.world.now())
    }

    pub fn info(&self, node: usize) -> PortInfo {
        *self.members[node].port.info()
    }

    /// Runs everything once. The clock advances by a fixed step, also if a port wants to run at once.
    pub fn step(&mut self) {
        let now = self.now();
        for Member { hca, port } in &mut self.members {
            let _ = hca.poll(now);
            while let Some(event) = hca.next_event() {
                match event {
                    AsyncEvent::Port { change, .. } if self.follow => {
                        port.refresh(hca, change.0 == CLIENT_REREGISTER).unwrap();
                    }
                    AsyncEvent::Qp { qpn, .. } => _ = port.qp_failed(qpn),
                    _ => {}
                }
            }
            if hca.fatal().is_none() {
                let _ = port.poll(now);
                port.service(hca, now);
            }
        }
        self.world.idle(now.as_nanos() + STEP);
    }

    pub fn run(&mut self, nanoseconds: u64) {
        let end = self.world.now() + nanoseconds;
        while self.world.now() < end {
            self.step();
        }
    }

    /// Runs until `done` is true; false after five seconds.
    pub fn until(&mut self, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.world.now() + 5 * SECOND;
        while !done(self) {
            if self.world.now() > end {
                return false;
            }
            self.step();
        }
        true
    }

    /// The path that the subnet administrator names, if it answers.
    pub fn path(&mut self, from: usize, to: usize) -> Option<PathRecord> {
        let dgid = self.info(to).gid;
        let mut path = None;
        self.until(|ports| {
            let now = ports.now();
            if let Resolution::Known(known) = ports.members[from].port.resolve(now, dgid) {
                path = Some(known);
            }
            path.is_some()
        });
        path
    }

    /// Queries that the subnet administrator has answered so far.
    fn answered(&self, node: usize) -> u64 {
        self.members[node].port.counters().sa.answered
    }
}

pub fn set_partitions(world: &World, tables: &[&[u16]]) {
    let now = world.now();
    for (index, keys) in tables.iter().enumerate() {
        world.with_fabric(|fabric| fabric.set_partitions(PortIndex(index as u32), keys, now));
    }
}

/// A path to node 1, and connection parameters of this QP number.
pub fn request(path: PathRecord, number: u32) -> ConnectParams {
    ConnectParams::new(path, SERVICE, QpNumber::new(number), Psn::new(number))
}

/// The connection manager sees a changed port: another subnet prefix, a shorter MTU.
#[test]
fn requests_are_compared_with_the_port_as_it_is_now() {
    let mut ports = Ports::new(301, 2);
    let mut path = ports.path(0, 1).expect("a path");
    ports.members[1].port.cm().listen(SERVICE, 1, 0).unwrap();
    ports.world.with_hca(1, |hca| (hca.port_mut().gid_prefix, hca.port_mut().mtu) = (0xfec0 << 48, 3));
    let Member { hca, port } = &mut ports.members[1];
    port.refresh(hca, false).unwrap();
    let info = ports.info(1);
    assert_eq!((info.gid.prefix(), info.mtu), (0xfec0 << 48, Mtu::B1024));
    let mut ask = |ports: &mut Ports, number, dgid, mtu| {
        let now = ports.now();
        path.set_dgid(dgid).set_mtu(mtu);
        ports.members[0].port.cm().connect(now, &request(path, number), &[], number).unwrap();
        ports.run(10 * MS);
        match (ports.members[0].port.cm().poll_event(), ports.members[1].port.cm().poll_event()) {
            (Some(CmEvent::Rejected { reason, .. }), None) => Some(reason),
            (None, Some(CmEvent::ConnectRequest { .. })) => None,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(ask(&mut ports, 0x51, info.gid, 3), None);
    assert_eq!(ask(&mut ports, 0x52, info.gid, 4), Some(RejReason::INVALID_MTU));
    let former = Gid::new(Gid::DEFAULT_PREFIX + 1, info.gid.interface_id());
    assert_eq!(ask(&mut ports, 0x53, former, 3), Some(RejReason::INVALID_GID));
}

/// Only the subnet manager reports ports. Any node could send a REPORT.
#[test]
fn reports_of_other_nodes_are_ignored() {
    let mut ports = Ports::new(302, 1);
    let mut other = Node::bring_up(&ports.world, Profile::node(1), MEMORY, &Config::DEFAULT).unwrap();
    let lid = other.wait_active().unwrap().lid();
    ports.run(10 * MS);
    let gid = Gid::new(Gid::DEFAULT_PREFIX, Profile::port_guid_of(1));
    assert!(ports.until(|ports| {
        let now = ports.now();
        matches!(ports.members[0].port.resolve(now, gid), Resolution::Known(path) if path.dlid() == lid)
    }));
    let before = ports.members[0].port.counters();

    let mut notice =
        Notice::generic(notice_type::SUBNET_MANAGEMENT, producer::CLASS_MANAGER, trap::OUT_OF_SERVICE, 1);
    notice.set_gid(gid);
    let mut report =
        SaMad::from_mad(&Mad::new(class::SUBN_ADM, CLASS_VERSION, method::REPORT, attr::NOTICE, 7));
    report.set_record_data(notice.as_bytes());
    let datagrams = |config: QpConfig| QpConfig { service: Service::Ud { q_key: QKey::GSI }, ..config };
    let mut sender = Endpoint::new(&mut other.hca, 4096, 4, datagrams).unwrap();
    other.hca.modify_to_rts_datagram(&mut sender.qp, Psn::new(0)).unwrap();
    sender.memory.write(0, report.to_mad().as_bytes()).unwrap();
    let path = Path::InfiniBand {
        dlid: ports.info(0).lid,
        sl: ServiceLevel::default(),
        src_path_bits: 0,
        static_rate: 0,
        grh: None,
    };
    let to = AddressVector::new(&path, QpNumber::GSI, QKey::GSI, 0);
    let doorbell =
        sender.qp.post_ud(&to, SendOp::Send, &[sender.sge(0, MAD_LEN)], 1, SendFlags::SIGNALED).unwrap();
    sender.qp.ring(doorbell);
    ports.run(10 * MS);
    let after = ports.members[0].port.counters();
    assert_eq!((after.reports, after.other_class), (before.reports, before.other_class + 1));
    let now = ports.now();
    assert!(matches!(ports.members[0].port.resolve(now, gid), Resolution::Known(_)), "the path is known");
}

/// A subnet manager that requests reregistration may have lost its subscriptions.
#[test]
fn subscriptions_are_renewed_where_the_subnet_manager_asks() {
    let mut ports = Ports::new(303, 1);
    ports.run(100 * MS);
    assert_eq!(ports.answered(0), 2, "ports that come, ports that go");
    for (reregister, answered) in [(false, 2), (true, 4)] {
        let Member { hca, port } = &mut ports.members[0];
        port.refresh(hca, reregister).unwrap();
        ports.run(100 * MS);
        assert_eq!(ports.answered(0), answered, "reregister: {reregister}");
    }
}

/// No reply arrives for a subscription that was pending when the HCA failed.
#[test]
fn a_recovered_port_subscribes_again() {
    let mut ports = Ports::new(304, 1);
    let now = ports.now();
    let _ = ports.members[0].port.poll(now);
    assert_eq!(ports.members[0].port.counters().sa.sent, 2);
    ports.world.with_hca(0, |hca| hca.fail(mlx5_prm::status::HealthSyndrome(1)));
    let Member { hca, port } = &mut ports.members[0];
    while hca.fatal().is_none() {
        let _ = hca.poll(Instant::from_nanos(ports.world.now()));
        ports.world.idle(ports.world.now() + STEP);
    }
    hca.recover().unwrap();
    port.reopen(hca, 0x304).unwrap();
    ports.run(5 * SECOND);
    assert_eq!(ports.answered(0), 2);
}

/// A port that has nothing else to do wakes its owner for the next attempt.
#[test]
fn a_subscription_without_reply_is_due_again() {
    let mut ports = Ports::new(305, 1);
    ports.world.with_fabric(|fabric| fabric.set_faults("loss=100%".parse().unwrap()));
    ports.run(4 * SECOND);
    assert_eq!(ports.members[0].port.counters().sa.timeouts, 2);
    ports.world.with_fabric(|fabric| fabric.set_faults(Default::default()));
    let now = ports.now();
    let wake = ports.members[0].port.poll(now);
    let Wake::At(due) = wake else { panic!("{wake:?}") };
    assert!((now.as_nanos()..now.as_nanos() + 30 * SECOND).contains(&due.as_nanos()), "{due:?} at {now:?}");
    ports.world.pass(due.as_nanos() - now.as_nanos());
    ports.run(100 * MS);
    assert_eq!(ports.answered(0), 2);
}

/// The packets of REQs that were sent.
#[derive(Clone, Default)]
struct Requests(Arc<Mutex<Vec<Vec<u8>>>>);

impl Capture for Requests {
    fn interface(&mut self, _: u32, _: &str) {}

    fn packet(&mut self, _: u32, _: u64, bytes: &[u8], _: Option<&str>) {
        // LRH, BTH, DETH before the datagram, ICRC behind it.
        let mad = bytes.get(28..28 + MAD_LEN).filter(|_| bytes.len() == 28 + MAD_LEN + 4);
        let message = mad.map(|mad| Message::parse(&Mad::from_bytes(mad.try_into().unwrap())));
        if matches!(message, Some(Some(Message::Req(_)))) {
            self.0.lock().unwrap().push(bytes.to_vec());
        }
    }

    fn finish(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A connection in TimeWait gives its slot to a new one. A late copy of its REQ is rejected.
#[test]
fn a_late_copy_of_a_request_is_no_new_request() {
    const ROOM: u32 = 64;
    let mut ports = Ports::new(306, 2);
    let mut path = ports.path(0, 1).expect("a path");
    // OpenSM's: TimeWait takes seconds.
    path.set_packet_life_time(18);
    ports.members[1].port.cm().listen(SERVICE, 1, 0).unwrap();
    let sent = Requests::default();
    ports.world.capture(Box::new(sent.clone()));
    for number in 1..=ROOM + 1 {
        let now = ports.now();
        ports.members[0].port.cm().connect(now, &request(path, 0x100 + number), &[], 1).unwrap();
        ports.run(MS);
        let now = ports.now();
        let cm = ports.members[1].port.cm();
        let Some(CmEvent::ConnectRequest { id, .. }) = cm.poll_event() else { panic!("request {number}") };
        let own = AcceptParams::new(QpNumber::new(0x100 + number), Psn::new(number));
        cm.accept(now, id, &own, &[], 1).unwrap();
        ports.run(MS);
        let cm = ports.members[0].port.cm();
        let Some(CmEvent::Reply { id, .. }) = cm.poll_event() else { panic!("reply {number}") };
        cm.rtu(id, &[]).unwrap();
        ports.run(MS);
        let now = ports.now();
        ports.members[0].port.cm().disconnect(now, id, &[]).unwrap();
        ports.run(MS);
        for member in &mut ports.members {
            while member.port.cm().poll_event().is_some() {}
        }
    }
    assert_eq!(ports.members[1].port.cm().counters().evicted, 1);
    let (now, first) = (ports.world.now(), sent.0.lock().unwrap()[0].clone());
    ports.world.with_fabric(|fabric| fabric.send(PortIndex(0), Packet::new(first), now));
    let before = ports.members[1].port.cm().counters().duplicates;
    ports.run(10 * MS);
    let cm = ports.members[1].port.cm();
    assert_eq!((cm.counters().duplicates, cm.poll_event()), (before + 1, None));
}

/// Sends an IP packet. Returns whether it arrives.
fn reaches(ports: &mut Ports, from: usize, to: usize, number: u8) -> bool {
    let mut packet = [0; 60];
    packet[..10].copy_from_slice(&[0x45, 0, 0, 60, 0, number, 0, 0, 64, 253]);
    packet[12..16].copy_from_slice(&ipv4(from).octets());
    packet[16..20].copy_from_slice(&ipv4(to).octets());
    let now = ports.now();
    ports.members[from].port.ip(now).expect("IP").send(&packet).unwrap();
    ports.until(|ports| {
        let now = ports.now();
        ports.members[to].port.ip(now).expect("IP").rx() == Some(&packet[..])
    })
}

fn ip_is_up(ports: &mut Ports) -> bool {
    ports.until(|ports| {
        let now = ports.now();
        ports.members.iter_mut().all(|member| member.port.ip(now).expect("IP").is_up())
    })
}

/// IP's queue pair uses the entry of its P_Key, and the new entry where the subnet manager moves
/// the P_Key. Limited members of the default partition do not reach each other.
#[test]
fn ip_finds_its_partition_in_any_entry() {
    const FIRST: &[u16] = &[0xffff];
    const SECOND: &[u16] = &[0x7fff, 0xffff];
    for (seed, before, after) in [(307, SECOND, FIRST), (308, FIRST, SECOND)] {
        let mut ports = Ports::with(seed, &[before, before], true);
        assert!(ip_is_up(&mut ports));
        assert!(reaches(&mut ports, 0, 1, 1) && reaches(&mut ports, 1, 0, 2), "{before:x?}");
        set_partitions(&ports.world, &[after, after]);
        ports.run(100 * MS);
        assert_eq!(usize::from(ports.info(0).pkey_index), after.len() - 1);
        assert!(ip_is_up(&mut ports));
        assert!(reaches(&mut ports, 0, 1, 3) && reaches(&mut ports, 1, 0, 4), "{after:x?}");
    }
}

/// The table of a port was programmed before QP1 was made: no event moves QP1 to its entry.
#[test]
fn a_port_has_the_speed_of_its_link() {
    assert_eq!(Ports::new(1, 1).info(0).speed, 100_000);
}

#[test]
fn qp1_begins_with_the_entry_of_its_partition() {
    let mut ports = Ports::with(309, &[&[0, 0xffff], &[0xffff]], false);
    ports.follow = false;
    assert_eq!(ports.info(0).pkey_index, 1);
    assert!(ports.path(0, 1).is_some());
    assert_eq!(ports.members[0].port.counters().gsi.restarts, 0);
}

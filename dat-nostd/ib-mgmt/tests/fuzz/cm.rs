//! Two connection managers on a wire that spoils, repeats, holds back, loses and makes up messages,
//! with owners that do anything at any time.

use crate::hostile::Random;
use ib_mgmt::cm::{
    AcceptParams, Cm, CmConfig, CmEvent, CmSlot, ConnId, ConnectParams, DatagramService, EndedSet, Listener,
    RejReason, ResolveParams, State,
};
use ib_mgmt::mad::{Mad, MadAddress, class};
use ib_mgmt::sa::PathRecord;
use ib_types::{Duration, Guid, Instant, Lid, PKey, Psn, QKey, QpNumber};

const SLOTS: usize = 6;
const SERVICE: u64 = 0x0106_48ca;
const DATAGRAM_SERVICE: u64 = 0x0111_48ca;
const MS: Duration = Duration::from_millis(1);

struct World<'s> {
    nodes: [Cm<'s>; 2],
    /// Ids that the owners have seen, live ones and old ones.
    ids: [Vec<ConnId>; 2],
    wire: Vec<(usize, Mad)>,
    now: Instant,
    /// MADs handed to each node.
    given: [u64; 2],
    /// MADs among these that are no CM messages.
    foreign: [u64; 2],
}

fn path(from: usize) -> PathRecord {
    let (slid, dlid) = (from as u16 + 1, 2 - from as u16);
    *PathRecord::zeroed()
        .set_slid(Lid::new(slid))
        .set_dlid(Lid::new(dlid))
        .set_pkey(PKey::DEFAULT)
        .set_mtu(5)
        .set_packet_life_time(2)
}

/// When a manager wants to run next; the origin for at once.
fn due(cm: &Cm<'_>) -> Option<Instant> {
    cm.poll_at().deadline(Instant::ORIGIN)
}

impl World<'_> {
    fn give(&mut self, to: usize, mad: &Mad) {
        self.given[to] += 1;
        let cm = mad.mgmt_class() == class::CM && mad.method() == 3;
        self.foreign[to] += u64::from(!cm);
        self.nodes[to].process(self.now, &MadAddress::local(Lid::new(2 - to as u16)), mad);
        let counters = self.nodes[to].counters();
        assert_eq!((counters.received, counters.foreign), (self.given[to], self.foreign[to]));
        assert!(self.nodes[to].slots_in_use() <= SLOTS);
    }

    fn owner(&mut self, random: &mut Random) {
        let node = random.index(2);
        let cm = &mut self.nodes[node];
        let ids = &self.ids[node];
        let id = if ids.is_empty() { None } else { Some(ids[random.index(ids.len())]) };
        let len = random.data_len();
        let data = random.bytes(len);
        let token = random.next() as u32;
        match (random.below(11), id) {
            (0 | 1, _) => {
                let params = ConnectParams {
                    response_timeout: random.below(14) as u8,
                    max_cm_retries: random.below(4) as u8,
                    deadline: random.chance(30).then(|| self.now + random.time_below(40 * MS)),
                    ..ConnectParams::new(
                        path(node),
                        SERVICE,
                        QpNumber::new(1 + random.below(5) as u32),
                        Psn::new(token & 0xff_ffff),
                    )
                };
                if let Ok(id) = cm.connect(self.now, &params, &data, token) {
                    self.ids[node].push(id);
                }
            }
            (2, _) => {
                let params = ResolveParams {
                    response_timeout: random.below(14) as u8,
                    max_cm_retries: random.below(4) as u8,
                    ..ResolveParams::new(path(node), DATAGRAM_SERVICE)
                };
                if let Ok(id) = cm.resolve_datagram(self.now, &params, &data, token) {
                    self.ids[node].push(id);
                }
            }
            (3, Some(id)) => {
                let params = AcceptParams {
                    target_ack_delay: 2,
                    ..AcceptParams::new(
                        QpNumber::new(1 + random.below(5) as u32),
                        Psn::new(token & 0xff_ffff),
                    )
                };
                let _ = cm.accept(self.now, id, &params, &data, token);
            }
            (4, Some(id)) => _ = cm.rtu(id, &data),
            (5, Some(id)) => {
                let _ = cm.reject(self.now, id, RejReason(random.edge() as u16), &data, &data);
            }
            (6, Some(id)) => _ = cm.defer(id, random.below(34) as u8),
            (7, Some(id)) => _ = cm.disconnect(self.now, id, &data),
            (8, Some(id)) => _ = cm.abandon(self.now, id, &data),
            (9, Some(id)) => _ = cm.communication_established(id),
            (10, Some(id)) => {
                let service = DatagramService {
                    status: random.edge() as u8,
                    qpn: QpNumber::new(token >> 8),
                    qkey: QKey::new(token),
                };
                let _ = cm.answer_datagram(self.now, id, service, &data, &data);
            }
            _ => {}
        }
    }

    /// Collects messages and events of the nodes.
    fn collect(&mut self) {
        for node in 0..2 {
            let mut messages = 0;
            while let Some(out) = self.nodes[node].dispatch(self.now) {
                messages += 1;
                // At most one per slot, and the queued short replies.
                assert!(messages <= 2 * SLOTS + 16, "a storm");
                assert_eq!(
                    (out.mad.mgmt_class(), out.mad.base_version(), out.mad.method()),
                    (class::CM, 1, 3)
                );
                if self.wire.len() < 64 {
                    self.wire.push((1 - node, out.mad));
                }
            }
            while let Some(event) = self.nodes[node].poll_event() {
                if let CmEvent::ConnectRequest { id, .. } | CmEvent::DatagramRequest { id, .. } = event {
                    self.ids[node].push(id);
                }
                if let CmEvent::Reply { id, .. } | CmEvent::ConnectRequest { id, .. } = event {
                    assert!(self.nodes[node].private_data(id).len() <= 224);
                    assert!(self.nodes[node].reject_info(id).len() <= 72);
                }
            }
            if self.ids[node].len() > 64 {
                // Keep only the newest of the old ids, and all live ids.
                let cm = &self.nodes[node];
                let old = self.ids[node].len() - 32;
                let mut index = 0;
                self.ids[node].retain(|id| {
                    index += 1;
                    index > old || cm.info(*id).is_some()
                });
            }
        }
    }

    fn later(&mut self, random: &mut Random) {
        let next = self.nodes.iter().filter_map(|cm| due(cm)).min();
        self.now = match next {
            Some(at) if random.chance(50) => self.now.max(at),
            _ => self.now + random.time_below(5 * MS),
        };
    }

    /// Owners give up, the wire is quiet: everything must end by itself.
    fn rest(&mut self) {
        self.wire.clear();
        for round in 0..2_000 {
            for node in 0..2 {
                for id in core::mem::take(&mut self.ids[node]) {
                    let _ = self.nodes[node].abandon(self.now, id, &[]);
                }
            }
            self.collect();
            self.wire.clear();
            match self.nodes.iter().filter_map(|cm| due(cm)).min() {
                Some(at) => self.now = self.now.max(at),
                None => break,
            }
            assert!(round < 1_999, "never rests");
        }
        for cm in &mut self.nodes {
            while cm.poll_event().is_some() {}
            assert_eq!(cm.slots_in_use(), 0, "slots leaked");
            assert_eq!(due(cm), None);
        }
    }
}

impl Random {
    /// A length of private data: mostly one that fits.
    fn data_len(&mut self) -> usize {
        if self.chance(90) { self.index(57) } else { self.index(300) }
    }
}

fn with_world(random: &mut Random, work: impl FnOnce(&mut Random, &mut World<'_>)) {
    let (mut sa, mut sb) = ([CmSlot::EMPTY; SLOTS], [CmSlot::EMPTY; SLOTS]);
    let (mut ha, mut hb) = ([EndedSet::EMPTY; 2], [EndedSet::EMPTY; 2]);
    let (mut la, mut lb) = ([Listener::EMPTY; 2], [Listener::EMPTY; 2]);
    let config = |guid: u64, seed: u64| CmConfig {
        ca_ack_delay: 2,
        max_timeout: 14,
        service_timeout: 10,
        ..CmConfig::new(Guid::new(guid), seed)
    };
    let mut nodes = [
        Cm::new(&mut sa, &mut ha, &mut la, config(1, random.next())),
        Cm::new(&mut sb, &mut hb, &mut lb, config(2, random.next())),
    ];
    for cm in &mut nodes {
        cm.listen(SERVICE, 7, random.below(4) as u16).expect("room");
        cm.listen_datagram(DATAGRAM_SERVICE, 8, random.below(4) as u16).expect("room");
    }
    let ids = [Vec::new(), Vec::new()];
    let mut world =
        World { nodes, ids, wire: Vec::new(), now: Instant::ORIGIN, given: [0; 2], foreign: [0; 2] };
    work(random, &mut world);
    world.rest();
}

/// Messages are spoilt and made up.
pub fn hostile_wire(random: &mut Random) {
    with_world(random, |random, world| {
        for _ in 0..200 {
            world.owner(random);
            world.collect();
            match random.below(4) {
                0 => {
                    let mad = random.mad(class::CM);
                    world.give(random.index(2), &mad);
                }
                _ if !world.wire.is_empty() => {
                    let at = random.index(world.wire.len());
                    let (to, mut mad) = world.wire[at];
                    if random.chance(50) {
                        // The message, rarely the header: what is let through has to be dealt with.
                        let from = if random.chance(80) { 24 } else { 0 };
                        random.spoil(&mut mad.as_bytes_mut()[from..]);
                    }
                    world.give(to, &mad);
                    if random.chance(70) {
                        world.wire.swap_remove(at);
                    }
                }
                _ => {}
            }
            world.later(random);
        }
    });
}

/// Messages are lost, repeated and reordered, never spoilt: what both sides believe to be a
/// connection is one.
pub fn lossy_wire(random: &mut Random) {
    with_world(random, |random, world| {
        for _ in 0..300 {
            world.owner(random);
            world.collect();
            if !world.wire.is_empty() {
                let at = random.index(world.wire.len());
                let (to, mad) = world.wire[at];
                if random.chance(80) {
                    world.give(to, &mad);
                }
                if random.chance(80) {
                    world.wire.swap_remove(at);
                }
            }
            world.later(random);
        }
        for (node, ids) in world.ids.iter().enumerate() {
            let cm = &world.nodes[node];
            assert_eq!(cm.counters().foreign, 0);
            for id in ids {
                let Some(info) = cm.info(*id) else { continue };
                if info.state == State::Established {
                    let qp = cm.qp_attributes(*id).expect("known");
                    assert_eq!(qp.remote_qpn, info.remote_qpn);
                    assert!((1..=5).contains(&qp.remote_qpn.get()), "a queue pair that nobody named");
                }
            }
        }
    });
}

//! The subnet manager: brings every attached port to Active by directed-route SMPs (IBTA volume 1, chapter 14).
//!
//! It sits behind port 0 of the switch, so that each port is one hop away: NodeInfo, NodeDescription and PortInfo are read,
//! the P_Key table and PortInfo (LID, subnet prefix, subnet manager's LID) set, then the port is armed and activated.
//! Afterwards it looks in now and then: a port that fell back (reset, cable) is configured again, and its tables of lanes are
//! read, which somebody else may have set. What happens to ports it
//! notes as [`Event`]s, for the subnet administrator to report.

use crate::infiniband::packet::{Bth, Deth, Grh, LNH_BTH, LNH_GRH, Lrh, Opcode};
use ib_mgmt::mad::{Mad, attr, class, method};
use ib_mgmt::sa::{Notice, trap};
use ib_mgmt::smp::{NodeDescription, NodeInfo, PKeyTable, PortInfo, Smp, pkeys_match, port_state};
use ib_types::Gid;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::infiniband::packet::{ICRC_LEN, LID_MULTICAST, LID_PERMISSIVE, VL_MANAGEMENT, append_icrc};
use crate::packet::Packet;
use crate::ports::PortIndex;

/// LID of the subnet manager and administrator; ports follow, in order of attachment.
pub const SM_LID: u16 = 1;
/// P_Key of the default partition, full member.
pub(super) const DEFAULT_PKEY: u16 = 0xffff;
/// Subnet time-out code that ports are given: 4.096 us × 2^18, OpenSM's default.
pub(super) const SUBNET_TIMEOUT: u8 = 18;

/// How long an SMP may take before it is sent again.
const RESPONSE_NS: u64 = 50_000_000;
/// Pause after an answer that makes no sense, before the port is read afresh.
const BACK_OFF_NS: u64 = 200_000_000;
/// How often a table that a port can do without is asked for.
const TABLE_TRIES: u8 = 4;
/// How often an active port is looked at (OpenSM's sweep interval).
const SWEEP_NS: u64 = 10_000_000_000;

/// Traps of channel adapters: changes of their own; keys that did not fit.
const LOCAL_CHANGES: RangeInclusive<u16> = trap::CAPABILITY..=145;
const VIOLATIONS: RangeInclusive<u16> = 256..=258;

/// What a subnet manager knows of a port.
#[derive(Clone, Debug)]
pub struct PortRecord {
    /// Name given at attachment.
    pub name: String,
    /// The port's LID, reserved for it from the beginning.
    pub lid: u16,
    /// Whether the port was brought to Active and did not fall back since.
    pub active: bool,
    /// Its NodeInfo, once read.
    pub node_info: Option<NodeInfo>,
    /// Its PortInfo, as last read or set.
    pub port_info: Option<PortInfo>,
    /// Its NodeDescription, once read.
    pub description: Option<NodeDescription>,
    /// The partitions it is in, as the subnet manager programs them.
    pub pkeys: Vec<u16>,
    /// The virtual lanes of its service levels, once read, if it says that it maps them.
    pub sl_to_vl: Option<[u8; 8]>,
    /// Its VL arbitration, by block, as far as it has blocks.
    pub vl_arbitration: BTreeMap<u8, [u8; 64]>,
}

impl PortRecord {
    /// The port's first GID.
    #[must_use]
    pub fn gid(&self) -> Option<Gid> {
        let guid = self.node_info?.port_guid();
        Some(Gid::new(Gid::DEFAULT_PREFIX, guid))
    }

    /// Whether the port is in the partition of `pkey`, as a full member or not.
    #[must_use]
    pub fn is_in_partition(&self, pkey: u16) -> bool {
        self.pkeys.iter().any(|own| own & 0x7fff == pkey & 0x7fff)
    }

    /// A P_Key by which two ports may talk, the source's.
    #[must_use]
    pub fn common_pkey(&self, other: &Self) -> Option<u16> {
        let talks = |own: &&u16| other.pkeys.iter().any(|theirs| pkeys_match(**own, *theirs));
        self.pkeys.iter().find(talks).copied()
    }
}

/// Something that subscribers may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A port came into service.
    InService(Gid),
    /// A port went out of service.
    OutOfService(Option<Gid>),
    /// A link of the switch came up or went down.
    LinkState,
    /// A port said something itself.
    Notice(Box<Notice>),
}

/// P_Keys of a port: one block of its table.
const PKEYS: usize = 32;

/// The steps of bringing a port up, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// Link down: nothing to ask.
    Down,
    NodeInfo,
    NodeDescription,
    PortInfo,
    SlToVl,
    /// A block of VL arbitration.
    Arbitration(u8),
    PKeys,
    Configure,
    Arm,
    Activate,
    /// Active; the node description has changed and is read again.
    Describe,
    /// Active; the request is the sweep's.
    Sweep,
}

/// `PortInfo.CapabilityMask`: the port maps service levels to virtual lanes.
const SL_MAPPING_SUPPORTED: u32 = 1 << 6;

impl Step {
    /// Whether it reads a table of lanes.
    const fn reads_table(self) -> bool {
        matches!(self, Self::SlToVl | Self::Arbitration(_))
    }

    /// The first step behind this one that reads a table of lanes which the port has, else that of its partitions. Arbitration has two
    /// blocks of 32 entries for low priority and two for high (IBTA 14.2.5.9).
    fn after(self, info: &PortInfo) -> Self {
        let maps = info.capability_mask() & SL_MAPPING_SUPPORTED != 0;
        let blocks = [(1, info.vl_arb_low_cap(), 0), (2, info.vl_arb_low_cap(), 32)]
            .into_iter()
            .chain([(3, info.vl_arb_high_cap(), 0), (4, info.vl_arb_high_cap(), 32)])
            .filter(|(_, entries, before)| entries > before)
            .map(|(block, ..)| Self::Arbitration(block));
        let tables = maps.then_some(Self::SlToVl).into_iter().chain(blocks);
        tables.into_iter().find(|step| *step > self).unwrap_or(Self::PKeys)
    }
}

#[derive(Debug)]
struct Managed {
    record: PortRecord,
    step: Step,
    /// When to send the step's request (again).
    due: u64,
    /// Transaction of the outstanding request; 0 for none.
    tid: u64,
    /// How often that was sent.
    tries: u8,
    /// The port lost its configuration since it was last active: its clients must register again.
    fresh: bool,
}

/// The subnet manager's state.
#[derive(Debug)]
pub(super) struct Manager {
    /// What it gives to every port, so that nobody else sets anything there; 0 for none.
    m_key: u64,
    ports: Vec<Managed>,
    /// Number of its first transaction.
    first_tid: u64,
    requests: u32,
    psn: u32,
    events: Vec<(PortIndex, Event)>,
}

impl Manager {
    pub(super) fn new(m_key: u64, first_tid: u64) -> Self {
        Self { m_key, ports: Vec::new(), first_tid, requests: 0, psn: 0, events: Vec::new() }
    }

    pub(super) fn attach(&mut self, name: &str) {
        let is_free = |lid: &u16| self.records().all(|record| record.lid != *lid);
        let first = SM_LID + 1 + self.ports.len() as u16;
        let record = PortRecord {
            name: name.to_owned(),
            lid: (first..LID_MULTICAST).find(is_free).unwrap_or(first),
            active: false,
            node_info: None,
            port_info: None,
            description: None,
            pkeys: vec![DEFAULT_PKEY],
            sl_to_vl: None,
            vl_arbitration: BTreeMap::new(),
        };
        self.ports.push(Managed { record, step: Step::Down, due: 0, tid: 0, tries: 0, fresh: true });
    }

    pub(super) fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.ports.iter().map(|port| port.record.name.as_str())
    }

    pub(super) fn record(&self, index: PortIndex) -> Option<&PortRecord> {
        self.ports.get(index.0 as usize).map(|port| &port.record)
    }

    pub(super) fn records(&self) -> impl Iterator<Item = &PortRecord> {
        self.ports.iter().map(|port| &port.record)
    }

    /// A link came up or went down, or its port was reset.
    pub(super) fn link_changed(&mut self, index: PortIndex, up: bool, now: u64) {
        let Some(port) = self.ports.get_mut(index.0 as usize) else { return };
        port.out_of_service(index, &mut self.events);
        port.tid = 0;
        port.due = now;
        port.step = if up { Step::NodeInfo } else { Step::Down };
        self.events.push((index, Event::LinkState));
    }

    /// Whether [`take_events`](Self::take_events) has something.
    pub(super) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// What happened since the last call, and to which port.
    pub(super) fn take_events(&mut self) -> Vec<(PortIndex, Event)> {
        std::mem::take(&mut self.events)
    }

    /// SMPs sent so far: the subnet manager lives.
    pub(super) fn activity(&self) -> u32 {
        self.requests
    }

    /// Changes the partitions of a port; at most 32 count.
    pub(super) fn set_pkeys(&mut self, index: PortIndex, pkeys: &[u16], now: u64) {
        let Some(port) = self.ports.get_mut(index.0 as usize) else { return };
        port.record.pkeys = pkeys.iter().copied().take(PKEYS).collect();
        // A port whose table may have been written already gets it again, whatever comes next.
        if port.record.active || port.step >= Step::PKeys {
            port.step = Step::PKeys;
            port.due = now;
            port.tid = 0;
        }
    }

    /// Gives a port a LID. A port that has it gets the former one in exchange. Returns the former LID.
    pub(super) fn set_lid(&mut self, index: PortIndex, lid: u16, now: u64) -> Option<u16> {
        let former = self.record(index)?.lid;
        let owner = self.ports.iter().position(|port| port.record.lid == lid);
        for (place, lid) in [(owner, former), (Some(index.0 as usize), lid)] {
            let Some(port) = place.and_then(|place| self.ports.get_mut(place)) else { continue };
            port.record.lid = lid;
            if port.record.active || port.step >= Step::Configure {
                (port.step, port.due, port.tid) = (Step::Configure, now, 0);
            }
        }
        Some(former)
    }

    /// A port trapped. Answers whether the trap is one that the subnet manager takes: what adapters have to tell (IBTA 14.2.5.1).
    pub(super) fn trap(&mut self, from: PortIndex, notice: &Notice, now: u64) -> bool {
        let Some(port) = self.ports.get_mut(from.0 as usize) else { return false };
        let number = notice.trap_number();
        if !notice.is_generic() || !(LOCAL_CHANGES.contains(&number) || VIOLATIONS.contains(&number)) {
            return false;
        }
        if number == trap::CAPABILITY && port.is_watched() {
            let [_, _, _, _, _, other, _, _, _, _, high, low, ..] = *notice.details();
            let described = other & trap::OTHER_LOCAL_CHANGES != 0
                && u16::from_be_bytes([high, low]) & trap::NODE_DESCRIPTION_CHANGE != 0;
            if described {
                (port.step, port.tid) = (Step::Describe, 0);
            }
            port.due = now;
        }
        let mut notice = *notice;
        notice.set_issuer_lid(port.record.lid).set_issuer_gid(port.record.gid().unwrap_or_default());
        self.events.push((from, Event::Notice(Box::new(notice))));
        true
    }

    pub(super) fn next_psn(&mut self) -> u32 {
        self.psn = (self.psn + 1) & 0xff_ffff;
        self.psn
    }

    /// The next SMP to send now, and the port to send it to.
    pub(super) fn next_request(&mut self, now: u64) -> Option<(PortIndex, Packet)> {
        let index = loop {
            let index = self.ports.iter().position(|port| port.step != Step::Down && port.due <= now)?;
            if !self.ports.get_mut(index)?.goes_without_table(now) {
                break index;
            }
        };
        self.requests = self.requests.wrapping_add(1);
        let tid = self.first_tid.wrapping_add(u64::from(self.requests)).max(1);
        let m_key = self.m_key;
        let psn = self.next_psn();
        let port = self.ports.get_mut(index)?;
        port.tries = if port.tid == 0 { 1 } else { port.tries.saturating_add(1) };
        port.tid = tid;
        port.due = now.saturating_add(RESPONSE_NS);
        let path = [index as u8 + 1];
        // PortInfo of the port that the packet comes in by is number 0 at a channel adapter; P_Key block 0.
        let (method, attribute, modifier) = match port.step {
            Step::Down => return None,
            Step::NodeInfo => (method::GET, attr::NODE_INFO, 0),
            Step::NodeDescription | Step::Describe => (method::GET, attr::NODE_DESCRIPTION, 0),
            Step::PortInfo | Step::Sweep => (method::GET, attr::PORT_INFO, 0),
            Step::SlToVl => (method::GET, attr::SL_TO_VL, 0),
            Step::Arbitration(block) => (method::GET, attr::VL_ARBITRATION, u32::from(block) << 16),
            Step::PKeys => (method::SET, attr::PKEY_TABLE, 0),
            Step::Configure | Step::Arm | Step::Activate => (method::SET, attr::PORT_INFO, 0),
        };
        let mut smp = Smp::directed_route(method, attribute, modifier, tid, &path);
        smp.set_m_key(m_key);
        match port.step {
            Step::PKeys => {
                let mut table = PKeyTable::default();
                for (to, from) in table.0.iter_mut().zip(&port.record.pkeys) {
                    *to = *from;
                }
                smp.set_data(&table.to_bytes());
            }
            Step::Configure | Step::Arm | Step::Activate => {
                smp.set_data(port.settings(m_key).as_bytes());
            }
            _ => {}
        }
        // On the wire the hop pointer already names the hop taken (IBTA 14.2.2).
        smp.set_hop_pointer(1);
        let route = MadRoute {
            vl: VL_MANAGEMENT,
            sl: 0,
            slid: LID_PERMISSIVE,
            dlid: LID_PERMISSIVE,
            pkey: DEFAULT_PKEY,
            source_qpn: 0,
            dest_qpn: 0,
            qkey: 0,
            psn,
            grh: None,
        };
        Some((PortIndex(index as u32), mad_packet(&route, smp.as_bytes())))
    }

    /// Takes a response. Answers with the LID that the port has now accepted, to be routed.
    pub(super) fn response(&mut self, from: PortIndex, mad: &Mad, now: u64) -> Option<u16> {
        let events = &mut self.events;
        let port = self.ports.get_mut(from.0 as usize)?;
        let smp = Smp::from_mad(mad);
        let expected = smp.mgmt_class() == class::SUBN_DIRECTED_ROUTE && smp.method() == method::GET_RESP;
        if !expected || port.tid == 0 || smp.tid() != port.tid {
            return None;
        }
        port.tid = 0;
        let refused = smp.status() & 0x7fff != 0;
        if refused && !port.step.reads_table() {
            port.start_over(now, from, events);
            return None;
        }
        port.due = now;
        match port.step {
            Step::Down => {}
            Step::NodeInfo => {
                port.record.node_info = NodeInfo::from_slice(smp.data());
                port.step = Step::NodeDescription;
            }
            Step::NodeDescription => {
                port.record.description = Some(NodeDescription(*smp.data()));
                port.step = Step::PortInfo;
            }
            Step::PortInfo => {
                let info = keyless(&smp);
                port.record.port_info = Some(info);
                if info.port_state() == port_state::DOWN {
                    port.start_over(now, from, events);
                } else {
                    port.record.sl_to_vl = None;
                    port.record.vl_arbitration.clear();
                    port.next_table(now);
                }
            }
            // A port can do without its tables of lanes.
            Step::SlToVl => {
                port.record.sl_to_vl = smp.data().first_chunk().copied().filter(|_| !refused);
                port.next_table(now);
            }
            Step::Arbitration(block) => {
                if refused {
                    port.record.vl_arbitration.remove(&block);
                } else {
                    port.record.vl_arbitration.insert(block, *smp.data());
                }
                port.next_table(now);
            }
            Step::PKeys => port.step = Step::Configure,
            Step::Describe => {
                port.record.description = Some(NodeDescription(*smp.data()));
                port.step = Step::Sweep;
            }
            Step::Configure => {
                let info = keyless(&smp);
                if info.lid() != port.record.lid {
                    port.start_over(now, from, events);
                    return None;
                }
                port.record.port_info = Some(info);
                port.fresh = false;
                port.step = match info.port_state() {
                    port_state::ACTIVE => port.activated(now, from, events),
                    port_state::ARMED => Step::Activate,
                    _ => Step::Arm,
                };
                return Some(port.record.lid);
            }
            Step::Arm | Step::Activate => {
                let info = keyless(&smp);
                port.record.port_info = Some(info);
                match (port.step, info.port_state()) {
                    (Step::Arm, port_state::ARMED) => port.step = Step::Activate,
                    (_, port_state::ACTIVE) => port.step = port.activated(now, from, events),
                    _ => port.start_over(now, from, events),
                }
            }
            Step::Sweep => {
                let info = keyless(&smp);
                if info.port_state() != port_state::ACTIVE || info.lid() != port.record.lid {
                    port.out_of_service(from, events);
                    port.step = Step::NodeInfo;
                } else {
                    port.record.port_info = Some(info);
                    port.next_table(now);
                }
            }
        }
        None
    }

    pub(super) fn next_deadline(&self) -> Option<u64> {
        self.ports.iter().filter(|port| port.step != Step::Down).map(|port| port.due).min()
    }
}

impl Managed {
    /// The port is active, and nothing of it is being set.
    fn is_watched(&self) -> bool {
        self.record.active && !(Step::PKeys..=Step::Activate).contains(&self.step)
    }

    /// Goes on to the next table of lanes. Behind the last come the partitions, or a pause where the port is active.
    fn next_table(&mut self, now: u64) {
        let read = if self.step.reads_table() { self.step } else { Step::PortInfo };
        self.step = read.after(&self.record.port_info.unwrap_or_default());
        if self.record.active && self.step == Step::PKeys {
            self.step = Step::Sweep;
            self.due = now.saturating_add(SWEEP_NS);
        }
    }

    /// Gives a table of lanes up that was asked for often enough. Answers whether it did.
    fn goes_without_table(&mut self, now: u64) -> bool {
        let silent = self.step.reads_table() && self.tid != 0 && self.tries >= TABLE_TRIES;
        if silent {
            self.tid = 0;
            self.next_table(now);
        }
        silent
    }

    /// The port lost its configuration.
    fn out_of_service(&mut self, index: PortIndex, events: &mut Vec<(PortIndex, Event)>) {
        if self.record.active {
            events.push((index, Event::OutOfService(self.record.gid())));
        }
        self.record.active = false;
        self.fresh = true;
    }

    fn start_over(&mut self, now: u64, index: PortIndex, events: &mut Vec<(PortIndex, Event)>) {
        if self.record.active {
            self.out_of_service(index, events);
        }
        self.step = Step::NodeInfo;
        self.due = now.saturating_add(BACK_OFF_NS);
    }

    fn activated(&mut self, now: u64, index: PortIndex, events: &mut Vec<(PortIndex, Event)>) -> Step {
        if !self.record.active {
            events.extend(self.record.gid().map(|gid| (index, Event::InService(gid))));
        }
        self.record.active = true;
        self.due = now.saturating_add(SWEEP_NS);
        Step::Sweep
    }

    /// PortInfo to set for the present step. Zero in the enabled widths, speeds and states means "no change".
    fn settings(&self, m_key: u64) -> PortInfo {
        let mut info = self.record.port_info.unwrap_or_default();
        let (state, reregister) = match self.step {
            Step::Arm => (port_state::ARMED, false),
            Step::Activate => (port_state::ACTIVE, false),
            _ => (0, self.fresh),
        };
        let mtu = info.mtu_cap();
        let vls = info.vl_cap();
        info.set_gid_prefix(Gid::DEFAULT_PREFIX)
            .set_m_key(m_key)
            // Everybody may read, but not the key.
            .set_m_key_protect(u8::from(m_key != 0))
            .set_m_key_lease_period(0)
            .set_lid(self.record.lid)
            .set_master_sm_lid(SM_LID)
            .set_master_sm_sl(0)
            .set_lmc(0)
            .set_neighbor_mtu(mtu)
            .set_operational_vls(vls)
            .set_port_state(state)
            .set_port_phys_state(0)
            .set_link_down_default_state(0)
            .set_link_width_enabled(0)
            .set_link_speed_enabled(0)
            .set_link_speed_ext_enabled(0)
            .set_subnet_timeout(SUBNET_TIMEOUT)
            .set_client_reregister(reregister);
        info
    }
}

/// The PortInfo in an answer, without the M_Key: it is kept to be shown.
fn keyless(smp: &Smp) -> PortInfo {
    *PortInfo::from_bytes(*smp.data()).set_m_key(0)
}

/// Where a management datagram goes, and as whose.
#[derive(Clone, Copy, Debug)]
pub struct MadRoute {
    /// Virtual lane.
    pub vl: u8,
    /// Service level.
    pub sl: u8,
    /// Source LID.
    pub slid: u16,
    /// Destination LID.
    pub dlid: u16,
    /// P_Key.
    pub pkey: u16,
    /// Source QP number.
    pub source_qpn: u32,
    /// Destination QP number.
    pub dest_qpn: u32,
    /// Q_Key.
    pub qkey: u32,
    /// Packet sequence number.
    pub psn: u32,
    /// Global route header, if the path has one.
    pub grh: Option<Grh>,
}

/// A UD packet that carries `mad`.
pub fn mad_packet(route: &MadRoute, mad: &[u8; 256]) -> Packet {
    let transport_len = Bth::LEN + Deth::LEN + mad.len() + ICRC_LEN;
    let grh_len = if route.grh.is_some() { Grh::LEN } else { 0 };
    let len = Lrh::LEN + grh_len + transport_len;
    let mut bytes = Vec::with_capacity(len);
    let lrh = Lrh {
        vl: route.vl,
        sl: route.sl,
        link_next_header: if route.grh.is_some() { LNH_GRH } else { LNH_BTH },
        dlid: route.dlid,
        length_words: (len / 4) as u16,
        slid: route.slid,
    };
    bytes.extend_from_slice(&lrh.to_bytes());
    if let Some(grh) = route.grh {
        bytes.extend_from_slice(&Grh { payload_len: transport_len as u16, ..grh }.to_bytes());
    }
    bytes
        .extend_from_slice(&Bth::new(Opcode::UD_SEND_ONLY, route.pkey, route.dest_qpn, route.psn).to_bytes());
    bytes.extend_from_slice(&Deth { qkey: route.qkey, src_qpn: route.source_qpn }.to_bytes());
    bytes.extend_from_slice(mad);
    append_icrc(&mut bytes);
    Packet::new(bytes)
}

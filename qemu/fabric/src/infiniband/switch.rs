//! The switch as a node of its own: its subnet management agent, its counters, and the way of directed routes through it
//! (IBTA volume 1 chapters 14, 16 and 18).
//!
//! Port 0 is the management port; behind it live the subnet manager and administrator. Port *n* of the switch is
//! [`PortIndex`] *n* − 1.

use ib_mgmt::mad::{Mad, attr, class, method, status};
use ib_mgmt::smp::{NodeDescription, NodeInfo, PortInfo, Smp, SwitchInfo, node_type, phys_state, port_state};
use ib_types::Gid;

use super::attributes::{block, guids, linear_block, multicast_block, pkeys, sm_info};
use super::manager::{Manager, SM_LID};
use super::multicast::Groups;
use super::performance::{self, PortCounters};
use super::programmed::Program;
use super::speeds::Speeds;
use crate::infiniband::m_key::{Access, MKey};
use crate::infiniband::packet::{LID_MULTICAST, LID_PERMISSIVE};
use crate::ports::{MAX_PORTS, PortIndex};

/// GUID of the switch, of its management port and of the system.
pub const SWITCH_GUID: u64 = 0x506b_4b03_00fa_b000;
/// Ports of the switch, unless more are in use.
const PORTS: usize = 36;
/// Device id: a Quantum switch's.
const DEVICE_ID: u16 = 0xd2f0;
/// What the switch calls itself.
const DESCRIPTION: &str = "emulated InfiniBand switch";
/// Entries of the forwarding tables.
pub(super) const LINEAR_CAP: u16 = 0xbfff;
pub(super) const MULTICAST_CAP: u16 = 0x3fff;
/// A LID without a port.
pub(super) const NO_PORT: u8 = 255;
/// MTU code of every port.
const MTU: u8 = 5;
/// HOQLife code of every port, unless a subnet manager sets another: 268 ms.
const HOQ_LIFE: u8 = 16;
/// Largest HOQLife code with a lifetime. Larger ones are unlimited (IBTA 14.2.5.6).
const LONGEST_HOQ_LIFE: u8 = 19;

/// Whether a port is switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Power {
    On,
    Off,
    /// Off until the link is down: it is to train anew.
    Cycle,
}

/// What the switch itself knows of a port.
#[derive(Clone, Copy, Debug)]
struct SwitchPort {
    up: bool,
    power: Power,
    /// Those of the link, as far as both sides can do them.
    speeds: Speeds,
    counters: PortCounters,
}

impl Default for SwitchPort {
    fn default() -> Self {
        Self { up: false, power: Power::On, speeds: Speeds::EDR, counters: PortCounters::default() }
    }
}

/// Where a packet on a directed route goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hop {
    /// Out by this port.
    Forward(u8),
    /// It is for the switch itself.
    Here,
    /// It came back to the switch, where its route began: to the subnet manager, or on by LID to whoever sent it here.
    Back,
    /// It makes no sense.
    Lost,
}

/// The switch.
#[derive(Debug, Default)]
pub(super) struct Switch {
    /// The M_Key of the fabric's own manager; 0 for none.
    own_key: u64,
    /// Packets with a wrong M_Key.
    m_key_violations: u16,
    /// By number; 0 is the management port.
    ports: Vec<SwitchPort>,
    /// What a subnet manager of somebody else's programmed; `None` where the fabric has its own.
    pub(super) program: Option<Box<Program>>,
}

/// What the switch's agent tells about the subnet.
pub(super) struct Tables<'a> {
    pub(super) manager: &'a Manager,
    pub(super) routes: &'a [Option<PortIndex>],
    pub(super) groups: &'a Groups,
}

impl Switch {
    /// A switch without cables, which may be `programmed` by a subnet manager of somebody else's. Otherwise `own_key` guards it.
    pub(super) fn new(programmed: bool, own_key: u64) -> Self {
        let program = || Box::new(Program::new(LINEAR_CAP, MULTICAST_CAP));
        let own_key = if programmed { 0 } else { own_key };
        Self { own_key, program: programmed.then(program), ..Self::default() }
    }

    /// The key that guards all ports of the switch: the management port's.
    fn m_key(&self) -> MKey {
        match &self.program {
            Some(program) => program.m_key(),
            None => MKey { key: self.own_key, protect: u8::from(self.own_key != 0) },
        }
    }

    /// Ports beside the management port.
    pub(super) fn port_count(&self) -> u8 {
        self.ports.len().saturating_sub(1).clamp(PORTS, MAX_PORTS) as u8
    }

    /// A cable was plugged in at the next port.
    pub(super) fn attach(&mut self) {
        if self.ports.is_empty() {
            self.ports.push(SwitchPort { up: true, ..SwitchPort::default() });
        }
        self.ports.push(SwitchPort::default());
    }

    pub(super) fn set_speeds(&mut self, index: PortIndex, speeds: Speeds) {
        if let Some(port) = self.ports.get_mut(number(index)) {
            port.speeds = speeds;
        }
    }

    pub(super) fn set_link(&mut self, index: PortIndex, up: bool, now: u64) {
        if let Some(port) = self.ports.get_mut(number(index)) {
            port.counters.link_downed += u64::from(port.up && !up);
            port.up = up;
            if !up && port.power == Power::Cycle {
                port.power = Power::On;
            }
            if let Some(program) = &mut self.program {
                program.link_changed(number(index), now);
            }
        }
    }

    /// Whether the port is switched on.
    pub(super) fn is_enabled(&self, index: PortIndex) -> bool {
        self.ports.get(number(index)).is_none_or(|port| port.power == Power::On)
    }

    /// Returns the head-of-queue lifetime of a port in nanoseconds, or `None` if it is unlimited.
    pub(super) fn head_lifetime(&self, index: PortIndex) -> Option<u64> {
        let code = self.program.as_ref().and_then(|program| program.hoq_life(number(index)));
        let code = code.unwrap_or(HOQ_LIFE);
        (code <= LONGEST_HOQ_LIFE).then(|| 4_096 << code)
    }

    /// The counters of the port behind which `source` sits; the management port for the subnet manager.
    pub(super) fn counters(&mut self, source: Option<PortIndex>) -> Option<&mut PortCounters> {
        let number = source.map_or(0, number);
        self.ports.get_mut(number).map(|port| &mut port.counters)
    }

    /// Takes a packet on a directed route one hop further. `ingress` is the number of the port it came in by.
    pub(super) fn route(&self, smp: &mut Smp, ingress: u8) -> Hop {
        let (pointer, count) = (smp.hop_pointer(), smp.hop_count());
        // A route that begins here came this far by LID (IBTA 14.2.2.2, first rule).
        let begins = pointer == 0 && smp.dr_slid() != LID_PERMISSIVE;
        if (count == 0 && !begins) || count > 62 {
            return Hop::Lost;
        }
        if smp.status() & status::SMP_DIRECTION != 0 {
            // Returning: back by the port it came in by (IBTA 14.2.2.4).
            return match pointer {
                0 | 1 => Hop::Back,
                _ if pointer > count + 1 => Hop::Lost,
                _ => {
                    smp.set_hop_pointer(pointer - 1);
                    forward(smp.return_path(), pointer - 1)
                }
            };
        }
        if begins && count != 0 {
            smp.set_hop_pointer(1);
            return forward(smp.initial_path(), 1);
        }
        if (pointer == 0 && !begins) || pointer > count {
            return Hop::Lost;
        }
        let mut way_back = *smp.return_path();
        if let Some(hop) = way_back.get_mut(usize::from(pointer)) {
            *hop = ingress;
        }
        smp.set_return_path(&way_back);
        if pointer == count {
            return if smp.dr_dlid() == LID_PERMISSIVE { Hop::Here } else { Hop::Lost };
        }
        smp.set_hop_pointer(pointer + 1);
        forward(smp.initial_path(), pointer + 1)
    }

    /// Answers a subnet management packet that reached the switch by port `ingress`; `None` for what wants no answer, or has a wrong
    /// M_Key.
    pub(super) fn answer(&mut self, tables: &Tables<'_>, smp: &Smp, ingress: u8, now: u64) -> Option<Smp> {
        let set = match smp.method() {
            method::GET => false,
            method::SET => true,
            method if method & method::RESPONSE != 0 => return None,
            method::TRAP | method::TRAP_REPRESS | method::SEND | method::REPORT => return None,
            _ => return Some(smp.to_response(status::METHOD_NOT_SUPPORTED)),
        };
        if let Some(program) = &mut self.program {
            program.watch_key(smp, now);
        }
        let access = self.m_key().access(smp);
        if access == Access::None {
            self.m_key_violations = self.m_key_violations.saturating_add(1);
            return None;
        }
        Some(access.show(self.answer_to(tables, smp, ingress, set)))
    }

    /// The answer to a Get or Set that may be made.
    fn answer_to(&mut self, tables: &Tables<'_>, smp: &Smp, ingress: u8, set: bool) -> Smp {
        let modifier = smp.attr_mod();
        if let Some(answer) = self.programmed(tables, smp, set, ingress) {
            return match answer {
                Ok(data) => *smp.to_response(status::OK).set_data(&data),
                Err(status) => smp.to_response(status),
            };
        }
        let data = match smp.attr_id() {
            attr::PORT_INFO if set => {
                let port = (modifier & 0xff) as u8;
                self.set_port(port, &PortInfo::from_bytes(*smp.data()));
                self.port_info(tables, port, ingress).map(|info| *info.as_bytes())
            }
            _ if set => return smp.to_response(status::ATTR_NOT_SUPPORTED),
            attr::NODE_DESCRIPTION => Some(self.description().0),
            attr::NODE_INFO => Some(block(self.node_info(ingress).as_bytes())),
            attr::SWITCH_INFO => Some(block(self.switch_info(tables).as_bytes())),
            // Bit 31 asks for the extended speeds, which are always there.
            attr::PORT_INFO => match modifier & 0x7fff_ffff {
                port @ 0..=0xff => self.port_info(tables, port as u8, ingress).map(|info| *info.as_bytes()),
                _ => None,
            },
            attr::GUID_INFO if modifier == 0 => Some(guids()),
            attr::PKEY_TABLE if self.exists((modifier >> 16) as usize) && modifier & 0xffff == 0 => {
                Some(pkeys())
            }
            // Everything goes by lane 0, and every lane has its turn.
            attr::SL_TO_VL | attr::VL_ARBITRATION | attr::MLX_EXT_PORT_INFO => Some([0; 64]),
            attr::LINEAR_FORWARDING => linear_block(tables, modifier as usize),
            attr::MULTICAST_FORWARDING => multicast_block(tables, modifier),
            attr::SM_INFO => Some(block(sm_info(tables.manager).as_bytes())),
            attr::GUID_INFO | attr::PKEY_TABLE => None,
            _ => return smp.to_response(status::ATTR_NOT_SUPPORTED),
        };
        match data {
            Some(data) => *smp.to_response(status::OK).set_data(&data),
            None => smp.to_response(status::INVALID_FIELD),
        }
    }

    /// Answers what a subnet manager of somebody else's asks or sets; `None` for what is the same whoever manages.
    fn programmed(
        &mut self,
        tables: &Tables<'_>,
        smp: &Smp,
        set: bool,
        ingress: u8,
    ) -> Option<Result<[u8; 64], u16>> {
        // Without a program there is nothing to be done here.
        self.program.as_ref()?;
        match smp.attr_id() {
            attr::SM_INFO => Some(Err(status::ATTR_NOT_SUPPORTED)),
            attr::PORT_INFO if set => {
                let number = (smp.attr_mod() & 0xff) as u8;
                let Some(now) = self.port_info(tables, number, ingress) else {
                    return Some(Err(status::INVALID_FIELD));
                };
                let wanted = PortInfo::from_bytes(*smp.data());
                self.set_port(number, &wanted);
                let program = self.program.as_mut()?;
                if !program.set_port(usize::from(number), &now, &wanted) {
                    return Some(Err(status::INVALID_FIELD));
                }
                self.port_info(tables, number, ingress).map(|info| Ok(*info.as_bytes()))
            }
            attr::SWITCH_INFO if set => {
                let mut bytes = [0; 20];
                for (to, from) in bytes.iter_mut().zip(smp.data()) {
                    *to = *from;
                }
                self.program.as_mut()?.set_switch(SwitchInfo::from_bytes(bytes));
                Some(Ok(block(self.switch_info(tables).as_bytes())))
            }
            _ => self.program.as_mut()?.table(smp, set),
        }
    }

    /// Answers a performance management packet.
    pub(super) fn performance(&mut self, request: &Mad) -> Mad {
        let missing = usize::from(self.port_count()) + 1 - self.ports.len().min(MAX_PORTS);
        let mut unused = vec![PortCounters::default(); missing];
        let used = self.ports.iter_mut().map(|port| &mut port.counters);
        let mut ports: Vec<(u8, &mut PortCounters)> =
            used.chain(&mut unused).take(MAX_PORTS).zip(0u8..).map(|(counters, n)| (n, counters)).collect();
        performance::answer(request, &mut ports, true)
    }

    fn exists(&self, port: usize) -> bool {
        port <= usize::from(self.port_count())
    }

    pub(super) fn description(&self) -> NodeDescription {
        NodeDescription::new(DESCRIPTION)
    }

    pub(super) fn node_info(&self, ingress: u8) -> NodeInfo {
        let mut info = NodeInfo::zeroed();
        info.set_base_version(1)
            .set_class_version(1)
            .set_node_type(node_type::SWITCH)
            .set_num_ports(self.port_count())
            .set_system_image_guid(SWITCH_GUID)
            .set_node_guid(SWITCH_GUID)
            .set_port_guid(SWITCH_GUID)
            .set_partition_cap(32)
            .set_device_id(DEVICE_ID)
            .set_local_port_num(ingress)
            .set_vendor_id(0x02c9);
        info
    }

    pub(super) fn switch_info(&self, tables: &Tables<'_>) -> SwitchInfo {
        let top = tables.routes.iter().rposition(Option::is_some).unwrap_or(0).max(usize::from(SM_LID));
        let multicast_top = tables.groups.iter().map(|group| group.mlid).max();
        let mut info = SwitchInfo::zeroed();
        info.set_linear_fdb_cap(LINEAR_CAP)
            .set_multicast_fdb_cap(MULTICAST_CAP)
            .set_linear_fdb_top(top as u16)
            .set_default_port(NO_PORT)
            .set_default_multicast_primary_port(NO_PORT)
            .set_default_multicast_not_primary_port(NO_PORT)
            .set_life_time_value(18)
            .set_partition_enforcement_cap(32)
            // Enhanced port 0.
            .set_capability_bits(1)
            .set_multicast_fdb_top(multicast_top.unwrap_or(LID_MULTICAST - 1));
        match &self.program {
            Some(program) => program.switch_info(info),
            None => info,
        }
    }

    /// PortInfo of port `number`, as asked by way of port `ingress`.
    pub(super) fn port_info(&self, tables: &Tables<'_>, number: u8, ingress: u8) -> Option<PortInfo> {
        if !self.exists(usize::from(number)) {
            return None;
        }
        let port = self.ports.get(usize::from(number)).copied().unwrap_or_default();
        let widths = port.speeds.port_info_widths();
        let mut info = PortInfo::zeroed();
        info.set_local_port_num(ingress)
            .set_link_width_enabled(widths)
            .set_link_width_supported(widths)
            .set_link_width_active(2)
            .set_link_speed_supported(7)
            .set_link_speed_enabled(7)
            .set_link_speed_active(4)
            .set_link_speed_ext_supported(port.speeds.extended())
            .set_link_speed_ext_enabled(port.speeds.extended())
            .set_link_speed_ext_active(port.speeds.extended_active())
            .set_link_down_default_state(2)
            .set_vl_cap(3)
            .set_operational_vls(3)
            .set_mtu_cap(MTU)
            .set_neighbor_mtu(MTU)
            .set_resp_time_value(16)
            .set_hoq_life(HOQ_LIFE)
            .set_vl_stall_count(7);
        if number == 0 {
            // IsSM, traps, system image GUID, extended speeds.
            info.set_gid_prefix(Gid::DEFAULT_PREFIX)
                .set_lid(SM_LID)
                .set_master_sm_lid(SM_LID)
                .set_m_key_protect(self.m_key().protect)
                .set_m_key_violations(self.m_key_violations)
                .set_capability_mask(1 << 1 | 1 << 3 | 1 << 11 | 1 << 14)
                .set_guid_cap(1)
                .set_subnet_timeout(super::manager::SUBNET_TIMEOUT)
                .set_port_state(port_state::ACTIVE)
                .set_port_phys_state(phys_state::LINK_UP);
            return Some(match &self.program {
                Some(program) => program.port_info(0, info),
                None => info,
            });
        }
        let record = tables.manager.record(PortIndex(u32::from(number) - 1));
        let (state, physical) = match record {
            _ if port.power == Power::Off => (port_state::DOWN, phys_state::DISABLED),
            _ if !port.up => (port_state::DOWN, phys_state::POLLING),
            Some(record) if record.active => (port_state::ACTIVE, phys_state::LINK_UP),
            _ => (port_state::INIT, phys_state::LINK_UP),
        };
        info.set_port_state(state).set_port_phys_state(physical);
        if state == port_state::DOWN {
            info.set_link_speed_ext_active(0).set_link_speed_active(1).set_link_width_active(1);
        }
        if let Some(peer) = record.and_then(|record| record.port_info).filter(|_| port.up) {
            info.set_neighbor_mtu(peer.neighbor_mtu().clamp(1, MTU));
        }
        Some(match &self.program {
            Some(program) => program.port_info(usize::from(number), info),
            None => info,
        })
    }

    /// What Set(PortInfo) changes: the physical state of an outer port, which PortState Down makes train anew (IBTA 14.2.5.6). Its
    /// other settings are the subnet manager's, who does not need the wire for them.
    fn set_port(&mut self, number: u8, wanted: &PortInfo) {
        let port = self.ports.get_mut(usize::from(number)).filter(|_| number != 0);
        let Some(port) = port else { return };
        match wanted.port_phys_state() {
            phys_state::DISABLED => port.power = Power::Off,
            phys_state::POLLING => port.power = Power::On,
            _ => {}
        }
        if wanted.port_state() == port_state::DOWN && port.power == Power::On && port.up {
            port.power = Power::Cycle;
        }
    }
}

/// The number of a port of the switch.
fn number(index: PortIndex) -> usize {
    index.0 as usize + 1
}

/// Out by the port that a path names; nothing goes through the management port.
fn forward(path: &[u8; 64], hop: u8) -> Hop {
    match path.get(usize::from(hop)) {
        Some(&port) if port != 0 => Hop::Forward(port),
        _ => Hop::Lost,
    }
}

/// Whether an SMP is of a class that the switch's agent knows.
pub(super) fn is_subnet_management(smp: &Smp) -> bool {
    matches!(smp.mgmt_class(), class::SUBN_LID_ROUTED | class::SUBN_DIRECTED_ROUTE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn smp(pointer: u8, path: &[u8]) -> Smp {
        let mut smp = Smp::directed_route(method::GET, attr::NODE_INFO, 0, 1, path);
        smp.set_hop_pointer(pointer);
        smp
    }

    #[test]
    fn directed_routes_lead_through() {
        let switch = Switch::default();
        let mut packet = smp(1, &[1, 7]);
        assert_eq!(switch.route(&mut packet, 3), Hop::Forward(7));
        assert_eq!((packet.hop_pointer(), packet.return_path()[1]), (2, 3));
        // The answer: the adapter at port 7 noted the port it has, and turned the packet round.
        packet = packet.to_response(0);
        assert_eq!(switch.route(&mut packet, 7), Hop::Forward(3));
        assert_eq!(packet.hop_pointer(), 1);

        let mut packet = smp(1, &[1]);
        assert_eq!(switch.route(&mut packet, 9), Hop::Here);
        assert_eq!((packet.hop_pointer(), packet.return_path()[1]), (1, 9));
        let mut back = packet.to_response(0);
        assert_eq!(switch.route(&mut back, 9), Hop::Back, "the manager's own packets take one hop");
    }

    #[test]
    fn routes_that_lead_nowhere() {
        let switch = Switch::default();
        for mut packet in [smp(0, &[1, 2]), smp(3, &[1, 2]), smp(1, &[1, 0]), smp(1, &[])] {
            assert_eq!(switch.route(&mut packet, 1), Hop::Lost);
        }
        let mut packet = smp(1, &[1; 62]);
        packet.set_hop_count(200);
        assert_eq!(switch.route(&mut packet, 1), Hop::Lost);
        let mut packet = smp(1, &[1]);
        packet.set_dr_dlid(5);
        assert_eq!(switch.route(&mut packet, 1), Hop::Lost, "the rest of the way by LID is not supported");
        let mut packet = smp(0, &[]);
        packet.set_dr_slid(5);
        assert_eq!(switch.route(&mut packet, 1), Hop::Here, "by LID all the way");
        let mut packet = smp(0, &[4]);
        packet.set_dr_slid(5);
        assert_eq!(switch.route(&mut packet, 1), Hop::Forward(4), "by LID first");
        assert_eq!(packet.hop_pointer(), 1);
        assert_eq!(switch.route(&mut packet.to_response(0), 4), Hop::Back);
        let mut packet = smp(9, &[1, 2]).to_response(0);
        assert_eq!(switch.route(&mut packet, 1), Hop::Lost);
    }
}

//! What a subnet manager of somebody else's has programmed into the switch: the states of its ports, its LID, its tables
//! (IBTA volume 1, 14.2.5 and 18.2.4). It takes the place of the fabric's own manager, and packets go by its tables.

use ib_mgmt::mad::{attr, method, status};
use ib_mgmt::sa::{Notice, notice_type, producer, trap};
use ib_mgmt::smp::{PortInfo, Smp, SwitchInfo, port_state};
use std::collections::BTreeMap;

use crate::infiniband::m_key::{Lease, MKey};
use crate::infiniband::packet::LID_MULTICAST;
use crate::ports::PortIndex;

/// LIDs of one block of the linear table, groups and ports of one of the multicast table.
const LINEAR_BLOCK: usize = 64;
const MULTICAST_BLOCK: usize = 32;
const PORTS_OF_MASK: usize = 16;
/// A LID without a port.
const NO_PORT: u8 = 255;
/// Blocks of tables that only have to be kept: P_Keys, lanes. As many as 254 ports can have.
const KEPT: usize = 4_096;

/// Nanoseconds between a trap and its repetition, and how often one is sent in all (IBTA 14.3.10: until the manager represses it).
const TRAP_INTERVAL: u64 = 1_000_000_000;
const TRAPS: u8 = 8;

/// A trap that the subnet manager has yet to hear of.
#[derive(Debug)]
struct Trap {
    tid: u64,
    due: u64,
    left: u8,
}

/// What was programmed.
#[derive(Debug)]
pub(super) struct Program {
    /// What was set of PortInfo, by port; 0 is the management port.
    ports: Vec<PortInfo>,
    /// What was set of SwitchInfo.
    switch: SwitchInfo,
    /// A port's state changed since the manager last said that it knows.
    changed: bool,
    /// The news of that.
    trap: Option<Trap>,
    /// Transaction of the last trap.
    last_tid: u64,
    /// That of the management port's M_Key.
    lease: Lease,
    /// Port by LID.
    linear: Vec<u8>,
    /// Masks of ports by group, one for each position.
    multicast: Vec<[u16; PORTS_OF_MASK]>,
    /// Tables by attribute and modifier that lead to nothing here but must read as they were written.
    kept: BTreeMap<(u16, u32), [u8; 64]>,
}

impl Program {
    /// As at power-on, with these LIDs of each kind.
    pub(super) fn new(linear: u16, multicast: u16) -> Self {
        Self {
            ports: Vec::new(),
            switch: SwitchInfo::zeroed(),
            changed: true,
            trap: None,
            last_tid: 0,
            lease: Lease::default(),
            linear: vec![NO_PORT; usize::from(linear) + 1],
            multicast: vec![[0; PORTS_OF_MASK]; usize::from(multicast) + 1],
            kept: BTreeMap::new(),
        }
    }

    /// A link came up or went down: the port begins anew.
    pub(super) fn link_changed(&mut self, number: usize, now: u64) {
        self.changed = true;
        self.last_tid += 1;
        self.trap = Some(Trap { tid: self.last_tid, due: now, left: TRAPS });
        if let Some(port) = self.ports.get_mut(number) {
            *port = PortInfo::zeroed();
        }
    }

    /// When a trap is to be sent next.
    pub(super) fn trap_due(&self) -> Option<u64> {
        self.trap.as_ref().map(|trap| trap.due)
    }

    /// The trap that is due (128, link state change), and the LID and service level that it goes to. Before a manager has named itself
    /// nobody is told.
    pub(super) fn next_trap(&mut self, now: u64) -> Option<(Smp, u16, u8)> {
        let trap = self.trap.as_mut().filter(|trap| trap.due <= now)?;
        let tid = trap.tid;
        trap.due = now.saturating_add(TRAP_INTERVAL);
        trap.left = trap.left.saturating_sub(1);
        let manager = self.ports.first().map_or(0, PortInfo::master_sm_lid);
        if trap.left == 0 || manager == 0 {
            self.trap = None;
        }
        if manager == 0 {
            return None;
        }
        let lid = self.lid();
        let mut notice = Notice::generic(notice_type::URGENT, producer::SWITCH, trap::LINK_STATE, lid);
        notice.set_details(&lid.to_be_bytes());
        let mut smp = Smp::lid_routed(method::TRAP, attr::NOTICE, 0, tid);
        if let Some(data) = notice.as_bytes().first_chunk() {
            smp.set_data(data);
        }
        Some((smp, manager, self.ports.first().map_or(0, PortInfo::master_sm_sl)))
    }

    /// The manager has heard of the trap with this transaction.
    pub(super) fn repressed(&mut self, tid: u64) {
        // The upper half of a transaction may be the manager's.
        self.trap.take_if(|trap| trap.tid as u32 == tid as u32);
    }

    /// The M_Key that guards the switch.
    pub(super) fn m_key(&self) -> MKey {
        self.ports
            .first()
            .map_or_else(MKey::default, |port| MKey { key: port.m_key(), protect: port.m_key_protect() })
    }

    /// A packet comes that the key judges: what that does to the key's lease.
    pub(super) fn watch_key(&mut self, smp: &Smp, now: u64) {
        let Some(port) = self.ports.first_mut() else { return };
        if self.lease.has_run_out(now) {
            port.set_m_key_protect(0);
        }
        let key = MKey { key: port.m_key(), protect: port.m_key_protect() };
        self.lease.judged(key, smp, key.access(smp), port.m_key_lease_period(), now);
    }

    /// The LID of the management port; 0 before there is one.
    pub(super) fn lid(&self) -> u16 {
        self.ports.first().map_or(0, PortInfo::lid)
    }

    /// The port that packets to `lid` leave by: 0 is the management port.
    pub(super) fn port_of(&self, lid: u16) -> Option<u8> {
        self.linear.get(usize::from(lid)).copied().filter(|port| *port != NO_PORT)
    }

    /// The ports that packets to the group `mlid` leave by, but not the one that they came in by.
    pub(super) fn members(&self, mlid: u16, from: PortIndex) -> Vec<PortIndex> {
        let masks = self.multicast.get(usize::from(mlid.wrapping_sub(LID_MULTICAST)));
        let numbers = (0u32..).zip(masks.into_iter().flatten());
        let set = numbers.flat_map(|(position, mask)| {
            (0..16).filter(move |bit| mask >> bit & 1 == 1).map(move |bit| 16 * position + bit)
        });
        // Port 0, the management port, listens to no group.
        set.filter_map(|number| number.checked_sub(1)).map(PortIndex).filter(|port| *port != from).collect()
    }

    /// Whether data goes through the port: from state Armed on.
    pub(super) fn carries(&self, index: PortIndex) -> bool {
        let port = self.ports.get(index.0 as usize + 1);
        port.is_some_and(|port| matches!(port.port_state(), port_state::ARMED | port_state::ACTIVE))
    }

    /// What `info`, as the port is by itself, looks like with what was set.
    pub(super) fn port_info(&self, number: usize, mut info: PortInfo) -> PortInfo {
        let unset = PortInfo::zeroed();
        let set = self.ports.get(number).unwrap_or(&unset);
        if number == 0 {
            // No subnet manager lives here.
            let capabilities = info.capability_mask() & !(1 << 1);
            info.set_capability_mask(capabilities)
                .set_m_key(set.m_key())
                .set_gid_prefix(set.gid_prefix())
                .set_lid(set.lid())
                .set_master_sm_lid(set.master_sm_lid())
                .set_m_key_lease_period(set.m_key_lease_period())
                .set_m_key_protect(set.m_key_protect())
                .set_master_sm_sl(set.master_sm_sl())
                .set_lmc(set.lmc())
                .set_subnet_timeout(set.subnet_timeout());
        } else if info.port_state() != port_state::DOWN {
            info.set_port_state(match set.port_state() {
                state @ (port_state::ARMED | port_state::ACTIVE) => state,
                _ => port_state::INIT,
            });
        }
        if set.neighbor_mtu() != 0 {
            info.set_neighbor_mtu(set.neighbor_mtu().min(info.mtu_cap()));
        }
        if set.operational_vls() != 0 {
            info.set_operational_vls(set.operational_vls().min(info.vl_cap()));
        }
        if set.hoq_life() != 0 || set.vl_stall_count() != 0 {
            info.set_hoq_life(set.hoq_life()).set_vl_stall_count(set.vl_stall_count());
        }
        info
    }

    /// Returns the HOQLife code that was set for a port, if any.
    pub(super) fn hoq_life(&self, number: usize) -> Option<u8> {
        let set = self.ports.get(number)?;
        (set.hoq_life() != 0 || set.vl_stall_count() != 0).then(|| set.hoq_life())
    }

    /// Set(PortInfo) of a port that is `now`; answers whether it is one that the port can follow.
    pub(super) fn set_port(&mut self, number: usize, now: &PortInfo, wanted: &PortInfo) -> bool {
        if self.ports.len() <= number {
            self.ports.resize(number + 1, PortInfo::zeroed());
        }
        let before = now.port_state();
        // No change, or one step on the way up; Down makes the link train anew (IBTA 14.2.5.6).
        let state = match (wanted.port_state(), before) {
            _ if number == 0 => port_state::ACTIVE,
            (0, _) => before,
            (port_state::DOWN, port_state::DOWN) => before,
            (port_state::DOWN, _) => port_state::INIT,
            (port_state::ARMED, port_state::INIT | port_state::ARMED) => port_state::ARMED,
            (port_state::ACTIVE, port_state::ARMED | port_state::ACTIVE) => port_state::ACTIVE,
            _ => return false,
        };
        self.changed |= number != 0 && wanted.port_state() == port_state::DOWN && before != port_state::DOWN;
        if let Some(port) = self.ports.get_mut(number) {
            *port = *wanted;
            port.set_port_state(state);
        }
        true
    }

    /// SwitchInfo: `info`, as the switch is by itself, with what was set.
    pub(super) fn switch_info(&self, mut info: SwitchInfo) -> SwitchInfo {
        let set = &self.switch;
        info.set_linear_fdb_top(set.linear_fdb_top())
            .set_default_port(set.default_port())
            .set_default_multicast_primary_port(set.default_multicast_primary_port())
            .set_default_multicast_not_primary_port(set.default_multicast_not_primary_port())
            .set_life_time_value(set.life_time_value())
            .set_port_state_change(self.changed)
            // It enforces no partitions.
            .set_partition_enforcement_cap(0)
            .set_multicast_fdb_top(set.multicast_fdb_top());
        info
    }

    /// Set(SwitchInfo). A port state change bit of 1 clears it.
    pub(super) fn set_switch(&mut self, wanted: SwitchInfo) {
        self.changed &= !wanted.port_state_change();
        self.switch = wanted;
    }

    /// Reads or writes a table; `None` for what has none.
    pub(super) fn table(&mut self, smp: &Smp, set: bool) -> Option<Result<[u8; 64], u16>> {
        let modifier = smp.attr_mod();
        let mut data = *smp.data();
        match smp.attr_id() {
            attr::LINEAR_FORWARDING => {
                let first = (modifier as usize).saturating_mul(LINEAR_BLOCK);
                let places = self.linear.get_mut(first..).unwrap_or_default();
                if places.is_empty() {
                    return Some(Err(status::INVALID_FIELD));
                }
                for (place, value) in places.iter_mut().zip(&mut data) {
                    if set { *place = *value } else { *value = *place }
                }
            }
            attr::MULTICAST_FORWARDING => {
                let (block, position) = ((modifier & 0x1ff) as usize, (modifier >> 28) as usize);
                let places = self.multicast.get_mut(block * MULTICAST_BLOCK..).unwrap_or_default();
                if places.is_empty() {
                    return Some(Err(status::INVALID_FIELD));
                }
                for (masks, bytes) in places.iter_mut().zip(data.as_chunks_mut::<2>().0) {
                    let Some(mask) = masks.get_mut(position) else { continue };
                    if set { *mask = u16::from_be_bytes(*bytes) } else { *bytes = mask.to_be_bytes() }
                }
            }
            attribute @ (attr::PKEY_TABLE | attr::SL_TO_VL | attr::VL_ARBITRATION) => {
                let place = (attribute, modifier);
                if !set {
                    return self.kept.get(&place).map(|data| Ok(*data));
                }
                if self.kept.len() >= KEPT && !self.kept.contains_key(&place) {
                    return Some(Err(status::INVALID_FIELD));
                }
                self.kept.insert(place, data);
            }
            _ => return None,
        }
        Some(Ok(data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn smp(attribute: u16, modifier: u32, data: [u8; 64]) -> Smp {
        *Smp::directed_route(method::SET, attribute, modifier, 1, &[]).set_data(&data)
    }

    #[test]
    fn packets_go_by_the_tables() {
        let mut program = Program::new(0xbff, 0x3f);
        assert_eq!((program.port_of(5), program.members(0xc001, PortIndex(0))), (None, vec![]));
        let mut block = [NO_PORT; 64];
        block[5] = 3;
        block[6] = 0;
        assert!(matches!(program.table(&smp(attr::LINEAR_FORWARDING, 1, block), true), Some(Ok(_))));
        assert_eq!([program.port_of(69), program.port_of(70), program.port_of(71)], [Some(3), Some(0), None]);
        assert_eq!(program.table(&smp(attr::LINEAR_FORWARDING, 1, [0; 64]), false), Some(Ok(block)));
        assert_eq!(
            program.table(&smp(attr::LINEAR_FORWARDING, u32::MAX, block), true),
            Some(Err(status::INVALID_FIELD))
        );
        // Group 1: ports 1 and 2, and 17.
        let mut masks = [0; 64];
        masks[3] = 0b111;
        let _ = program.table(&smp(attr::MULTICAST_FORWARDING, 0, masks), true);
        masks[3] = 0b10;
        let _ = program.table(&smp(attr::MULTICAST_FORWARDING, 1 << 28, masks), true);
        assert_eq!(program.members(0xc001, PortIndex(0)), [PortIndex(1), PortIndex(16)]);
        assert_eq!(program.table(&smp(attr::MULTICAST_FORWARDING, 1 << 28, [0; 64]), false), Some(Ok(masks)));
    }

    #[test]
    fn a_port_comes_up_step_by_step() {
        let mut program = Program::new(0xbff, 0x3f);
        let mut own = PortInfo::zeroed();
        own.set_port_state(port_state::INIT).set_mtu_cap(5).set_vl_cap(3);
        let step = |program: &mut Program, state: u8| {
            let now = program.port_info(1, own);
            let mut wanted = PortInfo::zeroed();
            wanted.set_port_state(state).set_neighbor_mtu(4);
            (program.set_port(1, &now, &wanted), program.port_info(1, own).port_state())
        };
        assert_eq!(step(&mut program, port_state::ACTIVE), (false, port_state::INIT), "not at once");
        assert_eq!(step(&mut program, 0), (true, port_state::INIT));
        assert!(!program.carries(PortIndex(0)));
        assert_eq!(step(&mut program, port_state::ARMED), (true, port_state::ARMED));
        assert_eq!(step(&mut program, port_state::ACTIVE), (true, port_state::ACTIVE));
        assert_eq!(program.port_info(1, own).neighbor_mtu(), 4);
        assert!(program.carries(PortIndex(0)));
        let mut clear = SwitchInfo::zeroed();
        clear.set_port_state_change(true);
        program.set_switch(clear);
        assert!(!program.switch_info(SwitchInfo::zeroed()).port_state_change());
        program.link_changed(1, 5);
        assert!(program.switch_info(SwitchInfo::zeroed()).port_state_change());
        assert_eq!(program.port_info(1, own).port_state(), port_state::INIT);
    }

    #[test]
    fn a_link_that_changes_is_told_until_the_manager_knows() {
        let mut program = Program::new(0xbff, 0x3f);
        program.link_changed(1, 0);
        assert_eq!((program.next_trap(0), program.trap_due()), (None, None), "there is no manager yet");
        let mut wanted = PortInfo::zeroed();
        wanted.set_lid(9).set_master_sm_lid(4).set_master_sm_sl(2);
        assert!(program.set_port(0, &PortInfo::zeroed(), &wanted));
        program.link_changed(3, 100);
        assert_eq!((program.next_trap(99), program.trap_due()), (None, Some(100)));
        let (smp, lid, sl) = program.next_trap(100).expect("due");
        assert_eq!((lid, sl, smp.method(), smp.attr_id()), (4, 2, method::TRAP, attr::NOTICE));
        // Generic, urgent, of a switch, 128, issued by the switch, about the switch.
        let data = smp.data();
        assert_eq!(
            (data[0], &data[1..4], &data[4..8], &data[10..12]),
            (0x81, &[0, 0, 2][..], &[0, 128, 0, 9][..], &[0, 9][..])
        );
        assert_eq!(program.trap_due(), Some(100 + TRAP_INTERVAL));
        let (again, ..) = program.next_trap(100 + TRAP_INTERVAL).expect("due again");
        assert_eq!(again.tid(), smp.tid());
        program.repressed(smp.tid() + 1);
        assert!(program.trap_due().is_some(), "another's");
        program.repressed(smp.tid());
        assert_eq!(program.trap_due(), None);
        // A manager that never answers is told so often and no more.
        program.link_changed(3, 0);
        let told = (0..100).filter(|second| program.next_trap(second * TRAP_INTERVAL).is_some()).count();
        assert_eq!(told, usize::from(TRAPS));
    }
}

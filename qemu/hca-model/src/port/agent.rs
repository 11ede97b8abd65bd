//! The port's management agents: subnet management (IBTA volume 1 chapter 14), and the door to performance management.

use super::{GID_TABLE_SIZE, PKEY_TABLE_SIZE, Port};
use ib_mgmt::mad::{Mad, attr, class, method, status};
use ib_mgmt::smp::{GuidInfo, NodeInfo, PKeyTable, PortInfo, Smp, node_type};
use mlx5_prm::event::PortChange;
use mlx5_prm::value::{PortPhysicalState, PortState};
use rdma_fabric::infiniband::{Access, MKey, performance};

/// Where a performance management packet names the port.
const PORT_SELECT: usize = 65;
/// P_Keys of one block of the table.
const PKEY_BLOCK: usize = 32;

impl Port {
    /// Answers a management packet; `None` when there is no answer: not a request, or its M_Key is wrong and counts. The host
    /// (`own`) may read whatever the M_Key, but not the key itself.
    pub fn agent(&mut self, mad: &[u8; 256], own: bool, now: u64) -> Option<[u8; 256]> {
        let request = Smp::from_bytes(*mad);
        if request.method() == method::TRAP_REPRESS {
            return Some(*request.as_bytes());
        }
        if request.method() & method::RESPONSE != 0 {
            return None;
        }
        let supported = matches!(request.method(), method::GET | method::SET);
        let reply = match request.mgmt_class() {
            _ if !supported => request.to_response(status::METHOD_NOT_SUPPORTED),
            class::SUBN_LID_ROUTED | class::SUBN_DIRECTED_ROUTE => {
                if self.m_key_lease.has_run_out(now) {
                    self.m_key_protect = 0;
                }
                let key = MKey { key: self.m_key, protect: self.m_key_protect };
                let access = match key.access(&request) {
                    Access::None if own && request.method() == method::GET => Access::Reading,
                    access => access,
                };
                self.m_key_lease.judged(key, &request, access, self.m_key_lease_period, now);
                if access == Access::None {
                    self.m_key_violations = self.m_key_violations.saturating_add(1);
                    return None;
                }
                // Whoever reads it knows it, and need not be told.
                let described = request.attr_id() == attr::NODE_DESCRIPTION;
                self.description_changed &= own || !described;
                access.show(self.subnet(&request))
            }
            class::PERF_MGMT => {
                // One port, which all ports are, and which is meant by whoever names none.
                let number = if mad.get(PORT_SELECT) == Some(&0) { 0 } else { 1 };
                let ports = &mut [(number, &mut self.counters)];
                return Some(*performance::answer(&Mad::from_bytes(*mad), ports, true).as_bytes());
            }
            _ => request.to_response(status::BAD_VERSION),
        };
        Some(*reply.as_bytes())
    }

    fn subnet(&mut self, request: &Smp) -> Smp {
        let set = request.method() == method::SET;
        match request.attr_id() {
            attr::NODE_DESCRIPTION if !set => with_data(request, &self.node_description),
            attr::NODE_INFO if !set => with_data(request, self.node_info().as_bytes()),
            attr::PORT_INFO => self.port_info_attribute(request, set),
            attr::PKEY_TABLE => self.pkey_attribute(request, set),
            attr::GUID_INFO => self.guid_attribute(request, set),
            attr::SL_TO_VL => {
                if set {
                    let data = request.data();
                    for (to, from) in self.sl_to_vl.iter_mut().zip(data) {
                        *to = *from;
                    }
                }
                with_data(request, &self.sl_to_vl)
            }
            attr::VL_ARBITRATION => self.arbitration_attribute(request, set),
            // No speeds of the vendor's own.
            attr::MLX_EXT_PORT_INFO if !set => with_data(request, &[0; 64]),
            // SMInfo is answered by a subnet manager, and there is none in the adapter.
            _ => request.to_response(status::ATTR_NOT_SUPPORTED),
        }
    }

    fn node_info(&self) -> NodeInfo {
        let mut info = NodeInfo::zeroed();
        info.set_base_version(1)
            .set_class_version(1)
            .set_node_type(node_type::CA)
            .set_num_ports(1)
            .set_system_image_guid(self.system_image_guid)
            .set_node_guid(self.node_guid)
            .set_port_guid(self.port_guid)
            .set_partition_cap(PKEY_TABLE_SIZE as u16)
            .set_device_id(self.device_id)
            .set_local_port_num(1)
            .set_vendor_id(0x02c9);
        info
    }

    /// PortInfo as it is now.
    #[must_use]
    pub fn port_info(&self) -> PortInfo {
        let up = self.state != PortState::DOWN;
        let mut info = PortInfo::zeroed();
        info.set_m_key(self.m_key)
            .set_gid_prefix(self.gid_prefix)
            .set_lid(self.lid)
            .set_master_sm_lid(self.sm_lid)
            .set_capability_mask(self.capability_mask)
            .set_m_key_lease_period(self.m_key_lease_period)
            .set_local_port_num(1)
            .set_link_width_enabled(self.link_width_enabled)
            // 4x runs.
            .set_link_width_supported(self.speeds.port_info_widths())
            .set_link_width_active(2)
            .set_link_speed_supported(7)
            .set_port_state(self.state.0)
            .set_port_phys_state(self.physical_state.0)
            .set_link_down_default_state(2)
            .set_m_key_protect(self.m_key_protect)
            .set_lmc(self.lmc)
            // QDR in the old field, the speed that runs in the extended one.
            .set_link_speed_active(if up { 4 } else { 1 })
            .set_link_speed_enabled(self.link_speed_enabled)
            .set_neighbor_mtu(self.mtu)
            .set_master_sm_sl(self.sm_sl)
            .set_vl_cap(3)
            .set_vl_high_limit(self.vl_high_limit)
            .set_vl_arb_high_cap(8)
            .set_vl_arb_low_cap(8)
            .set_init_type_reply(self.init_type_reply)
            .set_mtu_cap(self.mtu_cap)
            .set_vl_stall_count(self.vl_stall_count)
            .set_hoq_life(self.hoq_life)
            .set_operational_vls(self.operational_vls)
            .set_m_key_violations(self.m_key_violations)
            .set_p_key_violations(self.pkey_violations)
            .set_q_key_violations(self.qkey_violations)
            .set_guid_cap(GID_TABLE_SIZE as u8)
            .set_subnet_timeout(self.subnet_timeout)
            .set_resp_time_value(16)
            .set_local_phy_errors(self.error_thresholds >> 4)
            .set_overrun_errors(self.error_thresholds & 0xf)
            .set_link_speed_ext_active(if up { self.speeds.extended_active() } else { 0 })
            .set_link_speed_ext_supported(self.speeds.extended())
            .set_link_speed_ext_enabled(self.link_speed_ext_enabled);
        info
    }

    fn port_info_attribute(&mut self, request: &Smp, set: bool) -> Smp {
        // The modifier is the port number; 0 means the one the packet came by. Bit 31 asks for the extended speeds.
        if request.attr_mod() & 0x7fff_ffff > 1 {
            return request.to_response(status::INVALID_FIELD);
        }
        if set {
            let wanted = PortInfo::from_bytes(*request.data());
            if !self.port_info_fits(&wanted) {
                let mut reply = with_data(request, self.port_info().as_bytes());
                reply.set_status(reply.status() | status::INVALID_FIELD);
                return reply;
            }
            self.set_port_info(&wanted);
        }
        with_data(request, self.port_info().as_bytes())
    }

    /// Whether Set(PortInfo) with these values is legal (14.2.5.6).
    fn port_info_fits(&self, wanted: &PortInfo) -> bool {
        let state = match wanted.port_state() {
            0 | 1 => true,
            3 => matches!(self.state, PortState::INIT | PortState::ARMED),
            4 => matches!(self.state, PortState::ARMED | PortState::ACTIVE),
            _ => false,
        };
        let lid = (1..0xc000).contains(&wanted.lid());
        let physical = matches!(wanted.port_phys_state(), 0..=3);
        let mtu = (1..=self.mtu_cap).contains(&wanted.neighbor_mtu()) || wanted.neighbor_mtu() == 0;
        let lanes = wanted.operational_vls() <= 3;
        state && lid && physical && mtu && lanes
    }

    fn set_port_info(&mut self, wanted: &PortInfo) {
        self.m_key = wanted.m_key();
        self.m_key_protect = wanted.m_key_protect();
        self.m_key_lease_period = wanted.m_key_lease_period();
        if self.gid_prefix != wanted.gid_prefix() {
            self.gid_prefix = wanted.gid_prefix();
            self.changes.push(PortChange::GUID);
        }
        let moved = self.lid != wanted.lid() || self.lmc != wanted.lmc();
        let master_moved = self.sm_lid != wanted.master_sm_lid() || self.sm_sl != wanted.master_sm_sl();
        self.lid = wanted.lid();
        self.lmc = wanted.lmc();
        self.sm_lid = wanted.master_sm_lid();
        self.sm_sl = wanted.master_sm_sl();
        if moved || master_moved {
            self.changes.push(PortChange::LID);
        }
        // 0 and all ones leave the enabled sets as they are.
        if !matches!(wanted.link_width_enabled(), 0 | 0xff) {
            self.link_width_enabled = wanted.link_width_enabled() & self.speeds.port_info_widths();
        }
        if !matches!(wanted.link_speed_enabled(), 0 | 0xf) {
            self.link_speed_enabled = wanted.link_speed_enabled() & 7;
        }
        if wanted.neighbor_mtu() != 0 {
            self.mtu = wanted.neighbor_mtu();
        }
        if wanted.operational_vls() != 0 {
            self.operational_vls = wanted.operational_vls();
        }
        self.vl_high_limit = wanted.vl_high_limit();
        self.vl_stall_count = wanted.vl_stall_count();
        self.hoq_life = wanted.hoq_life();
        self.subnet_timeout = wanted.subnet_timeout();
        self.error_thresholds = wanted.local_phy_errors() << 4 | wanted.overrun_errors();
        // Violation counters can only be cleared.
        if wanted.m_key_violations() == 0 {
            self.m_key_violations = 0;
        }
        if wanted.p_key_violations() == 0 {
            self.pkey_violations = 0;
        }
        if wanted.q_key_violations() == 0 {
            self.qkey_violations = 0;
        }
        match PortPhysicalState(wanted.port_phys_state()) {
            PortPhysicalState::POLLING => self.set_admin(true),
            PortPhysicalState::DISABLED => self.set_admin(false),
            _ => {}
        }
        match PortState(wanted.port_state()) {
            PortState::DOWN => self.retrain(),
            PortState::ARMED if self.state == PortState::INIT => self.state = PortState::ARMED,
            PortState::ACTIVE if self.state == PortState::ARMED => {
                self.state = PortState::ACTIVE;
                if !self.description_changed {
                    self.known_capability_mask = self.capability_mask;
                }
                self.changes.push(PortChange::ACTIVE);
            }
            _ => {}
        }
        if wanted.client_reregister() {
            self.changes.push(PortChange::CLIENT_REREG);
        }
    }

    fn pkey_attribute(&mut self, request: &Smp, set: bool) -> Smp {
        let block = (request.attr_mod() & 0xffff) as usize;
        let Some(entries) = self.pkeys.chunks_mut(PKEY_BLOCK).nth(block) else {
            return request.to_response(status::INVALID_FIELD);
        };
        if set {
            let wanted = PKeyTable::from_bytes(request.data());
            if *entries != wanted.0 {
                entries.copy_from_slice(&wanted.0);
                self.changes.push(PortChange::PKEY);
            }
            return with_data(request, &wanted.to_bytes());
        }
        let mut table = PKeyTable::default();
        for (to, from) in table.0.iter_mut().zip(entries.iter()) {
            *to = *from;
        }
        with_data(request, &table.to_bytes())
    }

    fn guid_attribute(&mut self, request: &Smp, set: bool) -> Smp {
        if request.attr_mod() != 0 {
            return request.to_response(status::INVALID_FIELD);
        }
        if set {
            let mut wanted = GuidInfo::from_bytes(request.data()).0;
            // The first is burnt in.
            wanted[0] = self.port_guid;
            if self.guids != wanted {
                self.guids = wanted;
                self.changes.push(PortChange::GUID);
            }
        }
        with_data(request, &GuidInfo(self.guids).to_bytes())
    }

    fn arbitration_attribute(&mut self, request: &Smp, set: bool) -> Smp {
        // Blocks 1 and 3: the low and the high priority table; 2 and 4 would be their upper halves.
        let table = match request.attr_mod() >> 16 {
            1 => &mut self.vl_arbitration[0],
            3 => &mut self.vl_arbitration[1],
            _ => return request.to_response(status::INVALID_FIELD),
        };
        if set {
            *table = *request.data();
        }
        with_data(request, table)
    }
}

/// A good response with `data`, zero behind it.
fn with_data(request: &Smp, data: &[u8]) -> Smp {
    let mut reply = request.to_response(status::OK);
    let mut whole = [0; 64];
    for (to, from) in whole.iter_mut().zip(data) {
        *to = *from;
    }
    reply.set_data(&whole);
    reply
}

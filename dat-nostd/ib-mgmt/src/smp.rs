//! Subnet management packets and their attributes (IBA volume 1, chapter 14).
//!
//! The same views serve a subnet management agent (which fills them in) and a client (which reads
//! them).

use crate::mad::{Mad, class, method};
use crate::view::record;
use ib_types::Gid;

record! {
    /// A subnet management packet: a MAD of class 0x01 (LID routed) or 0x81 (directed route).
    pub struct Smp[256] {
        /// Management class.
        mgmt_class, set_mgmt_class: u8 = 1, 1;
        /// Method.
        method, set_method: u8 = 3, 1;
        /// Status; the top bit is the direction of a directed-route packet (1: returning).
        status, set_status: u16 = 4, 2;
        /// Directed route: hop pointer.
        hop_pointer, set_hop_pointer: u8 = 6, 1;
        /// Directed route: hop count.
        hop_count, set_hop_count: u8 = 7, 1;
        /// Transaction id.
        tid, set_tid: u64 = 8, 8;
        /// Attribute id.
        attr_id, set_attr_id: u16 = 16, 2;
        /// Attribute modifier.
        attr_mod, set_attr_mod: u32 = 20, 4;
        /// Management key.
        m_key, set_m_key: u64 = 24, 8;
        /// Directed route: source LID, 0xffff when the route starts at the source.
        dr_slid, set_dr_slid: u16 = 32, 2;
        /// Directed route: destination LID, 0xffff when the route ends at the destination.
        dr_dlid, set_dr_dlid: u16 = 34, 2;
    }
}

impl Smp {
    /// Offset of the attribute data.
    pub const DATA_AT: usize = 64;

    /// A LID-routed SMP.
    pub fn lid_routed(method: u8, attr_id: u16, attr_mod: u32, tid: u64) -> Smp {
        let mut mad = Mad::new(class::SUBN_LID_ROUTED, 1, method, attr_id, tid);
        mad.set_attr_mod(attr_mod);
        Smp(*mad.as_bytes())
    }

    /// A directed-route SMP along `path`, the output ports of each hop; at most 63 hops (more are
    /// cut off).
    pub fn directed_route(method: u8, attr_id: u16, attr_mod: u32, tid: u64, path: &[u8]) -> Smp {
        let mut mad = Mad::new(class::SUBN_DIRECTED_ROUTE, 1, method, attr_id, tid);
        mad.set_attr_mod(attr_mod);
        let mut smp = Smp(*mad.as_bytes());
        smp.set_dr_slid(0xffff).set_dr_dlid(0xffff).set_hop_count(path.len().min(63) as u8);
        // Index 0 of the path is not used; hop 1 leaves by entry 1.
        let mut initial_path = [0; 64];
        for (slot, port) in initial_path.iter_mut().skip(1).zip(path) {
            *slot = *port;
        }
        smp.set_initial_path(&initial_path);
        smp
    }

    /// The MAD.
    pub fn to_mad(&self) -> Mad {
        Mad::from_bytes(self.0)
    }

    /// A MAD as SMP, whatever its class.
    pub fn from_mad(mad: &Mad) -> Smp {
        Smp(*mad.as_bytes())
    }

    /// The 64 bytes of attribute data.
    pub fn data(&self) -> &[u8; 64] {
        self.block(1)
    }

    /// Replaces the attribute data.
    pub fn set_data(&mut self, data: &[u8; 64]) -> &mut Smp {
        self.set_block(1, data)
    }

    /// Directed route: the outgoing path.
    pub fn initial_path(&self) -> &[u8; 64] {
        self.block(2)
    }

    /// Replaces the outgoing path.
    pub fn set_initial_path(&mut self, path: &[u8; 64]) -> &mut Smp {
        self.set_block(2, path)
    }

    /// Directed route: the way back.
    pub fn return_path(&self) -> &[u8; 64] {
        self.block(3)
    }

    /// Replaces the way back.
    pub fn set_return_path(&mut self, path: &[u8; 64]) -> &mut Smp {
        self.set_block(3, path)
    }

    /// The response to this request with the given status; a directed-route one is turned round.
    pub fn to_response(&self, status: u16) -> Smp {
        let mut smp = *self;
        let direction = if self.mgmt_class() == class::SUBN_DIRECTED_ROUTE {
            crate::mad::status::SMP_DIRECTION
        } else {
            0
        };
        smp.set_method(method::GET_RESP).set_status(status | direction);
        smp
    }

    fn block(&self, index: usize) -> &[u8; 64] {
        let (blocks, _) = self.0.as_chunks::<64>();
        blocks.get(index).unwrap_or(&[0; 64])
    }

    fn set_block(&mut self, index: usize, data: &[u8; 64]) -> &mut Smp {
        if let Some(block) = self.0.as_chunks_mut::<64>().0.get_mut(index) {
            *block = *data;
        }
        self
    }
}

/// Node types of [`NodeInfo::node_type`].
pub mod node_type {
    /// Channel adapter.
    pub const CA: u8 = 1;
    /// Switch.
    pub const SWITCH: u8 = 2;
    /// Router.
    pub const ROUTER: u8 = 3;
}

/// Port states of [`PortInfo::port_state`].
pub mod port_state {
    /// Down.
    pub const DOWN: u8 = 1;
    /// Initialize: the link works, the subnet manager has not come yet.
    pub const INIT: u8 = 2;
    /// Armed.
    pub const ARMED: u8 = 3;
    /// Active.
    pub const ACTIVE: u8 = 4;
}

/// Physical port states of [`PortInfo::port_phys_state`].
pub mod phys_state {
    /// Sleep.
    pub const SLEEP: u8 = 1;
    /// Polling.
    pub const POLLING: u8 = 2;
    /// Disabled.
    pub const DISABLED: u8 = 3;
    /// Port configuration training.
    pub const TRAINING: u8 = 4;
    /// Link up.
    pub const LINK_UP: u8 = 5;
    /// Link error recovery.
    pub const ERROR_RECOVERY: u8 = 6;
}

/// The text of a NodeDescription: 64 bytes of UTF-8, zero-padded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeDescription(pub [u8; 64]);

impl NodeDescription {
    /// From text; what exceeds 64 bytes is cut off.
    pub fn new(text: &str) -> NodeDescription {
        let mut bytes = [0; 64];
        for (to, from) in bytes.iter_mut().zip(text.bytes()) {
            *to = from;
        }
        NodeDescription(bytes)
    }

    /// The text up to the first zero byte, as far as it is UTF-8.
    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|b| *b == 0).unwrap_or(64);
        let text = self.0.get(..end).unwrap_or_default();
        match core::str::from_utf8(text) {
            Ok(text) => text,
            Err(error) => {
                core::str::from_utf8(text.get(..error.valid_up_to()).unwrap_or_default()).unwrap_or_default()
            }
        }
    }
}

record! {
    /// NodeInfo, attribute 0x11.
    pub struct NodeInfo[40] {
        /// Base version, 1.
        base_version, set_base_version: u8 = 0, 1;
        /// Class version, 1.
        class_version, set_class_version: u8 = 1, 1;
        /// Node type, see [`node_type`].
        node_type, set_node_type: u8 = 2, 1;
        /// Number of physical ports.
        num_ports, set_num_ports: u8 = 3, 1;
        /// System image GUID.
        system_image_guid, set_system_image_guid: u64 = 4, 8;
        /// Node GUID.
        node_guid, set_node_guid: u64 = 12, 8;
        /// Port GUID.
        port_guid, set_port_guid: u64 = 20, 8;
        /// Entries of the P_Key table.
        partition_cap, set_partition_cap: u16 = 28, 2;
        /// Device id.
        device_id, set_device_id: u16 = 30, 2;
        /// Device revision.
        revision, set_revision: u32 = 32, 4;
        /// The port this packet came in by.
        local_port_num, set_local_port_num: u8 = 36, 1;
        /// Vendor id, an OUI.
        vendor_id, set_vendor_id: u32 = 37, 3;
    }
}

record! {
    /// PortInfo, attribute 0x15.
    pub struct PortInfo[64] {
        /// M_Key.
        m_key, set_m_key: u64 = 0, 8;
        /// GID prefix.
        gid_prefix, set_gid_prefix: u64 = 8, 8;
        /// Base LID.
        lid, set_lid: u16 = 16, 2;
        /// LID of the master subnet manager.
        master_sm_lid, set_master_sm_lid: u16 = 18, 2;
        /// Capability mask, see [`PortCapabilities`].
        capability_mask, set_capability_mask: u32 = 20, 4;
        /// Diagnostic code.
        diag_code, set_diag_code: u16 = 24, 2;
        /// M_Key lease period, seconds.
        m_key_lease_period, set_m_key_lease_period: u16 = 26, 2;
        /// The port this packet came in by.
        local_port_num, set_local_port_num: u8 = 28, 1;
        /// Link widths enabled: 1 1x, 2 4x, 4 8x, 8 12x, 16 2x.
        link_width_enabled, set_link_width_enabled: u8 = 29, 1;
        /// Link widths supported.
        link_width_supported, set_link_width_supported: u8 = 30, 1;
        /// Link width active.
        link_width_active, set_link_width_active: u8 = 31, 1;
        /// Link speeds supported.
        link_speed_supported, set_link_speed_supported: u8 = 32, 1 [7:4];
        /// Port state, see [`port_state`].
        port_state, set_port_state: u8 = 32, 1 [3:0];
        /// Physical state, see [`phys_state`].
        port_phys_state, set_port_phys_state: u8 = 33, 1 [7:4];
        /// State after a link-down: 1 sleep, 2 polling.
        link_down_default_state, set_link_down_default_state: u8 = 33, 1 [3:0];
        /// M_Key protection level.
        m_key_protect, set_m_key_protect: u8 = 34, 1 [7:6];
        /// LID mask control: the port answers to 2^LMC LIDs.
        lmc, set_lmc: u8 = 34, 1 [2:0];
        /// Link speed active.
        link_speed_active, set_link_speed_active: u8 = 35, 1 [7:4];
        /// Link speeds enabled.
        link_speed_enabled, set_link_speed_enabled: u8 = 35, 1 [3:0];
        /// Active MTU (code 1 to 5).
        neighbor_mtu, set_neighbor_mtu: u8 = 36, 1 [7:4];
        /// Service level of the master subnet manager.
        master_sm_sl, set_master_sm_sl: u8 = 36, 1 [3:0];
        /// Virtual lanes supported (code).
        vl_cap, set_vl_cap: u8 = 37, 1 [7:4];
        /// Initialisation type asked for.
        init_type, set_init_type: u8 = 37, 1 [3:0];
        /// Limit of high priority arbitration.
        vl_high_limit, set_vl_high_limit: u8 = 38, 1;
        /// Entries of the high priority arbitration table.
        vl_arb_high_cap, set_vl_arb_high_cap: u8 = 39, 1;
        /// Entries of the low priority arbitration table.
        vl_arb_low_cap, set_vl_arb_low_cap: u8 = 40, 1;
        /// Initialisation type done.
        init_type_reply, set_init_type_reply: u8 = 41, 1 [7:4];
        /// Largest MTU supported (code 1 to 5).
        mtu_cap, set_mtu_cap: u8 = 41, 1 [3:0];
        /// VL stall count.
        vl_stall_count, set_vl_stall_count: u8 = 42, 1 [7:5];
        /// Head-of-queue life.
        hoq_life, set_hoq_life: u8 = 42, 1 [4:0];
        /// Virtual lanes operational (code).
        operational_vls, set_operational_vls: u8 = 43, 1 [7:4];
        /// Partition enforcement and raw filter bits.
        enforcement, set_enforcement: u8 = 43, 1 [3:0];
        /// M_Key violations.
        m_key_violations, set_m_key_violations: u16 = 44, 2;
        /// P_Key violations.
        p_key_violations, set_p_key_violations: u16 = 46, 2;
        /// Q_Key violations.
        q_key_violations, set_q_key_violations: u16 = 48, 2;
        /// Entries of the GUID table.
        guid_cap, set_guid_cap: u8 = 50, 1;
        /// Clients should register again.
        client_reregister, set_client_reregister: bool = 51, 1 [7:7];
        /// Subnet time-out exponent: 4.096 µs · 2^n.
        subnet_timeout, set_subnet_timeout: u8 = 51, 1 [4:0];
        /// Response time exponent of this port's agent: 4.096 µs · 2^n.
        resp_time_value, set_resp_time_value: u8 = 52, 1 [4:0];
        /// Threshold of local physical errors.
        local_phy_errors, set_local_phy_errors: u8 = 53, 1 [7:4];
        /// Threshold of overrun errors.
        overrun_errors, set_overrun_errors: u8 = 53, 1 [3:0];
        /// Maximum credit hint.
        max_credit_hint, set_max_credit_hint: u16 = 54, 2;
        /// Link round trip latency.
        link_round_trip_latency, set_link_round_trip_latency: u32 = 57, 3;
        /// Capability mask 2.
        capability_mask2, set_capability_mask2: u16 = 60, 2;
        /// Extended link speed active: 0 none, 1 FDR, 2 EDR, 4 HDR, 8 NDR.
        link_speed_ext_active, set_link_speed_ext_active: u8 = 62, 1 [7:4];
        /// Extended link speeds supported.
        link_speed_ext_supported, set_link_speed_ext_supported: u8 = 62, 1 [3:0];
        /// Extended link speeds enabled.
        link_speed_ext_enabled, set_link_speed_ext_enabled: u8 = 63, 1 [4:0];
    }
}

impl PortInfo {
    /// The capability mask as flags.
    pub fn capabilities(&self) -> PortCapabilities {
        PortCapabilities::from_bits_retain(self.capability_mask())
    }
}

bitflags::bitflags! {
    /// `PortInfo:CapabilityMask` (IBA volume 1, table 146).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct PortCapabilities: u32 {
        /// A subnet manager runs here.
        const IS_SM = 1 << 1;
        /// Notices supported.
        const IS_NOTICE_SUPPORTED = 1 << 2;
        /// Traps supported.
        const IS_TRAP_SUPPORTED = 1 << 3;
        /// Optional inter-packet delay values supported.
        const IS_OPTIONAL_IPD_SUPPORTED = 1 << 4;
        /// Automatic path migration supported.
        const IS_AUTOMATIC_MIGRATION_SUPPORTED = 1 << 5;
        /// SL to VL mapping supported.
        const IS_SL_MAPPING_SUPPORTED = 1 << 6;
        /// M_Key in non-volatile memory.
        const IS_MKEY_NVRAM = 1 << 7;
        /// P_Keys in non-volatile memory.
        const IS_PKEY_NVRAM = 1 << 8;
        /// LED info supported.
        const IS_LED_INFO_SUPPORTED = 1 << 9;
        /// The subnet manager here is disabled.
        const IS_SM_DISABLED = 1 << 10;
        /// System image GUID supported.
        const IS_SYSTEM_IMAGE_GUID_SUPPORTED = 1 << 11;
        /// P_Key violation trap on the switch's external port.
        const IS_PKEY_SWITCH_EXTERNAL_PORT_TRAP_SUPPORTED = 1 << 12;
        /// Extended link speeds supported.
        const IS_EXTENDED_SPEEDS_SUPPORTED = 1 << 14;
        /// `capability_mask2` is valid.
        const IS_CAPABILITY_MASK2_SUPPORTED = 1 << 15;
        /// Communication management supported.
        const IS_COMMUNICATION_MANAGEMENT_SUPPORTED = 1 << 16;
        /// SNMP tunnelling supported.
        const IS_SNMP_TUNNELING_SUPPORTED = 1 << 17;
        /// Re-initialisation supported.
        const IS_REINIT_SUPPORTED = 1 << 18;
        /// Device management supported.
        const IS_DEVICE_MANAGEMENT_SUPPORTED = 1 << 19;
        /// A vendor class supported.
        const IS_VENDOR_CLASS_SUPPORTED = 1 << 20;
        /// Directed-route notices supported.
        const IS_DR_NOTICE_SUPPORTED = 1 << 21;
        /// Notice at changes of this mask.
        const IS_CAPABILITY_MASK_NOTICE_SUPPORTED = 1 << 22;
        /// Boot management supported.
        const IS_BOOT_MANAGEMENT_SUPPORTED = 1 << 23;
        /// Link round trip latency supported.
        const IS_LINK_ROUND_TRIP_LATENCY_SUPPORTED = 1 << 24;
        /// Client re-registration supported.
        const IS_CLIENT_REREGISTRATION_SUPPORTED = 1 << 25;
    }
}

record! {
    /// SwitchInfo, attribute 0x12.
    pub struct SwitchInfo[20] {
        /// Entries of the linear forwarding table.
        linear_fdb_cap, set_linear_fdb_cap: u16 = 0, 2;
        /// Entries of the random forwarding table.
        random_fdb_cap, set_random_fdb_cap: u16 = 2, 2;
        /// Entries of the multicast forwarding table.
        multicast_fdb_cap, set_multicast_fdb_cap: u16 = 4, 2;
        /// Highest LID in the linear forwarding table.
        linear_fdb_top, set_linear_fdb_top: u16 = 6, 2;
        /// Default port.
        default_port, set_default_port: u8 = 8, 1;
        /// Default multicast primary port.
        default_multicast_primary_port, set_default_multicast_primary_port: u8 = 9, 1;
        /// Default multicast non-primary port.
        default_multicast_not_primary_port, set_default_multicast_not_primary_port: u8 = 10, 1;
        /// Packet life time exponent in the switch: 4.096 µs · 2^n.
        life_time_value, set_life_time_value: u8 = 11, 1 [7:3];
        /// A port's state changed.
        port_state_change, set_port_state_change: bool = 11, 1 [2:2];
        /// LIDs per port.
        lids_per_port, set_lids_per_port: u16 = 12, 2;
        /// Entries of the partition enforcement table.
        partition_enforcement_cap, set_partition_enforcement_cap: u16 = 14, 2;
        /// Enhanced port 0, from the top: inbound, outbound enforcement, raw filters, enhanced port
        /// 0.
        capability_bits, set_capability_bits: u8 = 16, 1 [7:3];
        /// Highest multicast LID in the table.
        multicast_fdb_top, set_multicast_fdb_top: u16 = 18, 2;
    }
}

record! {
    /// SMInfo, attribute 0x20.
    pub struct SmInfo[24] {
        /// Port GUID of the subnet manager.
        guid, set_guid: u64 = 0, 8;
        /// SM_Key.
        sm_key, set_sm_key: u64 = 8, 8;
        /// Activity count.
        act_count, set_act_count: u32 = 16, 4;
        /// Priority.
        priority, set_priority: u8 = 20, 1 [7:4];
        /// State: 0 not active, 1 discovering, 2 standby, 3 master.
        sm_state, set_sm_state: u8 = 20, 1 [3:0];
    }
}

/// GUIDInfo, attribute 0x14: one block of eight GUIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct GuidInfo(pub [u64; 8]);

impl GuidInfo {
    /// Decodes the attribute data.
    pub fn from_bytes(data: &[u8; 64]) -> GuidInfo {
        let mut guids = [0; 8];
        for (guid, bytes) in guids.iter_mut().zip(data.as_chunks::<8>().0) {
            *guid = u64::from_be_bytes(*bytes);
        }
        GuidInfo(guids)
    }

    /// The attribute data.
    pub fn to_bytes(&self) -> [u8; 64] {
        let mut data = [0; 64];
        for (bytes, guid) in data.as_chunks_mut::<8>().0.iter_mut().zip(self.0) {
            *bytes = guid.to_be_bytes();
        }
        data
    }

    /// GIDs of this block under a subnet prefix; a zero GUID gives no GID.
    pub fn gids(&self, prefix: u64) -> impl Iterator<Item = Gid> + '_ {
        self.0.iter().filter(|guid| **guid != 0).map(move |guid| Gid::new(prefix, *guid))
    }
}

/// P_KeyTable, attribute 0x16: one block of 32 partition keys; bit 15 marks full membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PKeyTable(pub [u16; 32]);

impl PKeyTable {
    /// Decodes the attribute data of a P_KeyTable.
    pub fn from_bytes(data: &[u8; 64]) -> PKeyTable {
        let mut keys = [0; 32];
        for (key, bytes) in keys.iter_mut().zip(data.as_chunks::<2>().0) {
            *key = u16::from_be_bytes(*bytes);
        }
        PKeyTable(keys)
    }

    /// The attribute data.
    pub fn to_bytes(&self) -> [u8; 64] {
        let mut data = [0; 64];
        for (bytes, key) in data.as_chunks_mut::<2>().0.iter_mut().zip(self.0) {
            *bytes = key.to_be_bytes();
        }
        data
    }
}

/// Returns whether two partition keys match: equal low 15 bits, not zero, at least one a full
/// member (IBA volume 1, section 10.9.1.1).
pub const fn pkeys_match(a: u16, b: u16) -> bool {
    a & 0x7fff == b & 0x7fff && a & 0x7fff != 0 && (a | b) & 0x8000 != 0
}

/// SLtoVLMappingTable, attribute 0x17: the virtual lane of each of the 16 service levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SlToVl(pub [u8; 16]);

impl SlToVl {
    /// From the first eight bytes of attribute data.
    pub fn from_bytes(data: &[u8; 8]) -> SlToVl {
        let mut vls = [0; 16];
        for (pair, byte) in vls.as_chunks_mut::<2>().0.iter_mut().zip(data) {
            *pair = [byte >> 4, byte & 15];
        }
        SlToVl(vls)
    }

    /// The first eight bytes of attribute data.
    pub fn to_bytes(&self) -> [u8; 8] {
        let mut data = [0; 8];
        for (byte, pair) in data.iter_mut().zip(self.0.as_chunks::<2>().0) {
            *byte = pair[0] << 4 | (pair[1] & 15);
        }
        data
    }
}

/// An entry of the VL arbitration table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct VlArbEntry {
    /// Virtual lane, 4 bits.
    pub vl: u8,
    /// Weight in units of 64 bytes; 0 skips the entry.
    pub weight: u8,
}

/// VLArbitrationTable, attribute 0x18: one block of 32 entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct VlArbitration(pub [VlArbEntry; 32]);

impl VlArbitration {
    /// Decodes the attribute data.
    pub fn from_bytes(data: &[u8; 64]) -> VlArbitration {
        let mut entries = [VlArbEntry::default(); 32];
        for (entry, bytes) in entries.iter_mut().zip(data.as_chunks::<2>().0) {
            *entry = VlArbEntry { vl: bytes[0] & 15, weight: bytes[1] };
        }
        VlArbitration(entries)
    }

    /// The attribute data.
    pub fn to_bytes(&self) -> [u8; 64] {
        let mut data = [0; 64];
        for (bytes, entry) in data.as_chunks_mut::<2>().0.iter_mut().zip(&self.0) {
            *bytes = [entry.vl & 15, entry.weight];
        }
        data
    }
}

#[cfg(test)]
#[path = "smp_tests.rs"]
mod tests;

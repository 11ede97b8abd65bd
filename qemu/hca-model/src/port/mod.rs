//! The port: its addresses, tables, state and counters.
//!
//! | module | subject |
//! |---|---|
//! | `agent` | management of an InfiniBand port |
//! | `ethernet` | frame size, protocols and counters of an Ethernet port |
//! | `vport` | addresses and receive filter of an Ethernet function |

mod agent;
mod ethernet;
mod vport;

use mlx5_prm::event::PortChange;
use mlx5_prm::value::{PortPhysicalState, PortState};
use rdma_fabric::infiniband::{Lease, PortCounters, Speeds};

pub(crate) use ethernet::EthernetPort;
#[cfg(test)]
pub(crate) use ethernet::FrameCounters;
pub use ethernet::FrameSizes;
pub(crate) use vport::{
    LOG_MAX_LIST, LOG_MAX_VLANS, NicVport, Promiscuous, ROCE_ADDRESSES, RoceAddress, RoceVersion,
};

/// Entries of the GID table.
pub const GID_TABLE_SIZE: usize = 8;
/// Entries of the P_Key table (`cmd_hca_cap.pkey_table_size` 0).
pub const PKEY_TABLE_SIZE: usize = 128;

/// Bits of the capability mask that software may set: IsSM, communication management, SNMP tunnelling, device management,
/// vendor class (`hca_vport_context.cap_mask1_field_select`).
pub const SETTABLE_CAPABILITIES: u32 = 1 << 1 | 1 << 16 | 1 << 17 | 1 << 19 | 1 << 20;

/// The port.
#[derive(Clone, Debug)]
pub struct Port {
    /// PCI device id, which NodeInfo names too.
    pub(crate) device_id: u16,
    /// Speeds and widths that the port can do; the fastest runs.
    pub(crate) speeds: Speeds,
    /// Of which technology its lanes are (`sltp_reg.version`).
    pub(crate) technology: u8,
    /// What an Ethernet port has besides.
    pub(crate) ethernet: Option<EthernetPort>,
    /// Subnet management packets reach this function.
    pub(crate) has_smi: bool,
    /// GUID of the node.
    pub node_guid: u64,
    /// GUID of the port.
    pub port_guid: u64,
    /// GUID of the system.
    pub system_image_guid: u64,
    /// Node description, 64 bytes.
    pub node_description: [u8; 64],
    /// High half of every GID.
    pub gid_prefix: u64,
    /// Low halves of the GID table; 0 is unset.
    pub guids: [u64; GID_TABLE_SIZE],
    /// P_Key table; 0 is unset.
    pub pkeys: [u16; PKEY_TABLE_SIZE],
    /// Local identifier; 0 before the subnet manager came by.
    pub lid: u16,
    /// LID mask control.
    pub lmc: u8,
    /// The subnet manager's LID.
    pub sm_lid: u16,
    /// Service level towards the subnet manager.
    pub sm_sl: u8,
    /// M_Key.
    pub m_key: u64,
    /// M_Key protection bits.
    pub m_key_protect: u8,
    /// M_Key lease period in seconds.
    pub m_key_lease_period: u16,
    pub(crate) m_key_lease: Lease,
    /// When the subnet manager can hear of a wrong M_Key again.
    pub(crate) next_violation: u64,
    /// Logical state.
    pub state: PortState,
    /// Physical state.
    pub physical_state: PortPhysicalState,
    /// Logical state as administered: down disables the link.
    pub admin_up: bool,
    /// Whether a cable is plugged in at both ends.
    pub cable: bool,
    /// Whether the link has trained.
    pub(crate) trained: bool,
    /// Whether the port at the cable's other end is switched on.
    pub far_end: bool,
    /// The link went down since the other end looked; it may be up again.
    pub(crate) link_lost: bool,
    /// Packets need a global routing header, those of subnet management apart: a virtual function without a LID of its own.
    pub(crate) grh_required: bool,
    /// Management classes of QP1 whose datagrams are lost.
    pub(crate) lost_classes: Vec<u8>,
    /// Capability mask (PortInfo).
    pub capability_mask: u32,
    /// The capability mask that the subnet manager knows; another one where it has something to hear.
    pub(crate) known_capability_mask: u32,
    /// The node description changed since somebody on the subnet read it.
    pub(crate) description_changed: bool,
    /// `NeighborMTU` code.
    pub mtu: u8,
    /// `MTUCap` code.
    pub mtu_cap: u8,
    /// Operational virtual lanes code.
    pub operational_vls: u8,
    /// Subnet time-out code.
    pub subnet_timeout: u8,
    /// `InitTypeReply`.
    pub init_type_reply: u8,
    /// `HOQLife`.
    pub hoq_life: u8,
    /// `VLHighLimit`.
    pub vl_high_limit: u8,
    /// `VLStallCount`.
    pub vl_stall_count: u8,
    /// `LinkWidthEnabled`.
    pub link_width_enabled: u8,
    /// `LinkSpeedEnabled`.
    pub link_speed_enabled: u8,
    /// `LinkSpeedExtEnabled`.
    pub link_speed_ext_enabled: u8,
    /// `LocalPhyErrors`, `OverrunErrors`.
    pub error_thresholds: u8,
    /// Packets with a wrong M_Key.
    pub m_key_violations: u16,
    /// Packets with a P_Key that is not in the table.
    pub pkey_violations: u16,
    /// Packets with a wrong Q_Key.
    pub qkey_violations: u16,
    /// SL to VL mapping.
    pub sl_to_vl: [u8; 8],
    /// VL arbitration tables, low and high priority.
    pub vl_arbitration: [[u8; 64]; 2],
    /// Counters.
    pub counters: PortCounters,
    /// Changes that wait to be raised as events.
    pub(crate) changes: Vec<PortChange>,
}

/// The prefix that GIDs have before a subnet manager gives another, and that a port answers to all the same.
const DEFAULT_GID_PREFIX: u64 = 0xfe80_0000_0000_0000;

impl Port {
    /// A port as at power-on, its cable unplugged.
    #[must_use]
    pub fn new(profile: &crate::Profile) -> Self {
        let mut node_description = [0; 64];
        for (to, from) in node_description.iter_mut().take(63).zip(profile.node_description.bytes()) {
            *to = from;
        }
        let mut guids = [0; GID_TABLE_SIZE];
        guids[0] = profile.port_guid;
        let mut pkeys = [0; PKEY_TABLE_SIZE];
        pkeys[0] = 0xffff;
        let speeds = profile.card.speeds;
        Self {
            device_id: profile.card.device_id,
            speeds,
            technology: profile.card.technology,
            ethernet: profile.card.is_ethernet().then(|| EthernetPort::new(profile.card)),
            has_smi: profile.card.has_smi,
            node_guid: profile.node_guid,
            port_guid: profile.port_guid,
            system_image_guid: profile.system_image_guid,
            node_description,
            gid_prefix: 0xfe80_0000_0000_0000,
            guids,
            pkeys,
            lid: 0,
            lmc: 0,
            sm_lid: 0,
            sm_sl: 0,
            m_key: 0,
            m_key_protect: 0,
            m_key_lease_period: 0,
            m_key_lease: Lease::default(),
            next_violation: 0,
            state: PortState::DOWN,
            physical_state: PortPhysicalState::POLLING,
            admin_up: true,
            cable: false,
            trained: !profile.habits.link_follows_driver && profile.habits.training.is_none(),
            far_end: true,
            link_lost: false,
            grh_required: profile.habits.grh_required,
            lost_classes: profile.habits.lost_classes.clone(),
            capability_mask: profile.card.capability_mask,
            known_capability_mask: profile.card.capability_mask,
            description_changed: false,
            mtu: 5,
            mtu_cap: 5,
            operational_vls: 3,
            subnet_timeout: 18,
            init_type_reply: 0,
            hoq_life: 16,
            vl_high_limit: 0,
            vl_stall_count: 7,
            link_width_enabled: speeds.port_info_widths(),
            link_speed_enabled: 7,
            link_speed_ext_enabled: speeds.extended(),
            error_thresholds: 0x88,
            m_key_violations: 0,
            pkey_violations: 0,
            qkey_violations: 0,
            sl_to_vl: [0x01, 0x23, 0x01, 0x23, 0x01, 0x23, 0x01, 0x23],
            vl_arbitration: [[0; 64]; 2],
            counters: PortCounters::default(),
            changes: Vec::new(),
        }
    }

    /// GID number `index`; all zero when unset.
    #[must_use]
    pub fn gid(&self, index: usize) -> [u8; 16] {
        let mut gid = [0; 16];
        if let Some(&guid) = self.guids.get(index)
            && guid != 0
        {
            gid[..8].copy_from_slice(&self.gid_prefix.to_be_bytes());
            gid[8..].copy_from_slice(&guid.to_be_bytes());
        }
        gid
    }

    /// P_Key number `index`.
    #[must_use]
    pub fn pkey(&self, index: u16) -> Option<u16> {
        self.pkeys.get(usize::from(index)).copied().filter(|&pkey| pkey != 0)
    }

    /// Counts packets sent that nobody made: their bytes, and on Ethernet their frames by size.
    #[inline]
    pub(crate) fn add_sent(&mut self, packets: u64, bytes: u64, sizes: &FrameSizes) {
        match &mut self.ethernet {
            Some(port) => port.sent.add(packets, bytes, sizes),
            None => self.counters.add_sent(packets, bytes),
        }
    }

    /// Counts packets received, as [`add_sent`](Self::add_sent) does.
    #[inline]
    pub(crate) fn add_received(&mut self, packets: u64, bytes: u64, sizes: &FrameSizes) {
        match &mut self.ethernet {
            Some(port) => port.received.add(packets, bytes, sizes),
            None => self.counters.add_received(packets, bytes),
        }
    }

    /// Returns whether a GID is one of the port's.
    pub(crate) fn is_own_gid(&self, gid: &[u8; 16]) -> bool {
        let guid = u64::from_be_bytes(*gid.last_chunk().unwrap_or(&[0; 8]));
        let prefix = u64::from_be_bytes(*gid.first_chunk().unwrap_or(&[0; 8]));
        let own_prefix = prefix == self.gid_prefix || prefix == DEFAULT_GID_PREFIX;
        guid != 0 && own_prefix && self.guids.contains(&guid)
    }

    /// Returns whether a packet's P_Key matches entry `index` of the table, or any with `None`: equal, and not both
    /// limited members (IBTA 10.9.3). Counts a violation otherwise.
    pub(crate) fn admits(&mut self, index: Option<u16>, pkey: u16) -> bool {
        let fits = match index {
            None => self.pkeys.iter().any(|own| *own != 0 && ib_mgmt::smp::pkeys_match(*own, pkey)),
            Some(index) => self.pkey(index).is_some_and(|own| ib_mgmt::smp::pkeys_match(own, pkey)),
        };
        if !fits {
            self.pkey_violations = self.pkey_violations.saturating_add(1);
        }
        fits
    }

    /// The entry of the P_Key table by which the port answers a packet with `pkey`.
    pub(crate) fn matching_pkey(&self, pkey: u16) -> u16 {
        self.pkeys.iter().copied().find(|own| ib_mgmt::smp::pkeys_match(*own, pkey)).unwrap_or(pkey)
    }

    /// Payload bytes of a full packet on this link.
    #[must_use]
    pub const fn mtu_bytes(&self) -> u32 {
        128 << self.mtu
    }

    /// Sets the node description; a change is something for the subnet manager to hear.
    pub(crate) fn set_node_description(&mut self, text: &[u8; 64]) {
        if self.node_description != *text {
            self.node_description = *text;
            self.description_changed = true;
            self.known_capability_mask = !self.capability_mask;
        }
    }

    /// How often a port tells the subnet manager the same at most: every subnet time-out (IBTA 13.4.9).
    pub(crate) fn trap_interval(&self) -> u64 {
        4096 << self.subnet_timeout.min(31)
    }

    /// Whether the subnet manager has yet to hear of a change of the capability mask or of the node description.
    pub(crate) fn announces_capabilities(&self) -> bool {
        self.known_capability_mask != self.capability_mask && self.is_active()
    }

    /// Whether data packets may pass.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.state == PortState::ACTIVE
    }

    /// Plugs or unplugs the cable, as the fabric sees it.
    pub fn set_cable(&mut self, cable: bool) {
        self.cable = cable;
        self.update_link();
    }

    /// The port at the cable's other end was switched on or off.
    pub fn set_far_end(&mut self, on: bool) {
        if self.far_end != on {
            self.far_end = on;
            self.update_link();
        }
    }

    /// The link has trained, or has to begin again.
    pub(crate) fn set_trained(&mut self, trained: bool) {
        if self.trained != trained {
            self.trained = trained;
            self.update_link();
        }
    }

    /// Enables or disables the port (PAOS, vport state).
    pub fn set_admin(&mut self, up: bool) {
        self.admin_up = up;
        self.update_link();
    }

    fn update_link(&mut self) {
        let up = self.cable && self.far_end && self.admin_up && self.trained;
        if up && self.state == PortState::DOWN {
            self.physical_state = PortPhysicalState::LINK_UP;
            // No subnet manager activates an Ethernet port.
            let (state, change) = match self.ethernet {
                None => (PortState::INIT, PortChange::INITIALIZED),
                Some(_) => (PortState::ACTIVE, PortChange::ACTIVE),
            };
            self.state = state;
            self.changes.push(change);
        } else if !up {
            self.physical_state =
                if self.admin_up { PortPhysicalState::POLLING } else { PortPhysicalState::DISABLED };
            self.lose_link();
        }
    }

    /// The link goes down and comes up again, unless something holds it down.
    fn retrain(&mut self) {
        self.lose_link();
        self.update_link();
    }

    fn lose_link(&mut self) {
        // Whoever manages when it is up again need not be the one who set the key.
        (self.m_key, self.m_key_protect, self.m_key_lease) = (0, 0, Lease::default());
        if self.state != PortState::DOWN {
            self.state = PortState::DOWN;
            self.counters.link_downed += 1;
            self.changes.push(PortChange::DOWN);
            self.link_lost = true;
        }
    }
}

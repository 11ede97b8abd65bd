//! What a device is made as: identity, limits, and the faults a test may order.

use crate::card::{CONNECTX_5, Card};
use crate::habits::Habits;
use ib_types::MacAddress;
use mlx5_prm::opcode::Opcode;

/// Faults for tests of what a driver does with a device that misbehaves. All off by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Misbehaviour {
    /// Ask for this many init pages instead of the profile's number.
    pub starve_pages: Option<u32>,
    /// Capability bits to hide: byte offset of a dword of the general capabilities and the bits to clear in it.
    pub hidden_capabilities: Vec<(usize, u32)>,
    /// A command that never completes.
    pub stall_command: Option<Opcode>,
    /// The health counter stands still.
    pub wedge_health: bool,
    /// `initializing` never clears.
    pub never_initialized: bool,
    /// Effect of a write of 1 to `nic_interface` that does not stop the device.
    pub disable: Option<FalseDisable>,
    /// MODIFY_CQ changes the ring and writes no resize CQE.
    pub silent_resize: bool,
}

/// A device that a write of 1 to `nic_interface` does not stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FalseDisable {
    /// `nic_interface` reads as before.
    Ignored,
    /// `nic_interface` reads 1.
    Shown,
}

/// How strictly input is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Strictness {
    /// As far as is known of firmware, and what Linux does is accepted.
    Lenient,
    /// Everything that the PRM calls reserved or illegal is refused.
    Strict,
}

/// A device as it leaves the factory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The kind of card.
    pub card: &'static Card,
    /// GUID of the node.
    pub node_guid: u64,
    /// GUID of the port, the low half of its first GID.
    pub port_guid: u64,
    /// GUID of the system.
    pub system_image_guid: u64,
    /// Node description before software sets one.
    pub node_description: String,
    /// Parameter-set identification of QUERY_ADAPTER.
    pub psid: String,
    /// MSI-X vectors.
    pub vectors: u16,
    /// Where in BAR0 the MSI-X table and the pending bits lie.
    pub msix: [u32; 2],
    /// log2 of command queue entries (at most 5).
    pub log_cmdq_size: u8,
    /// Pages asked for before SET_HCA_CAP.
    pub boot_pages: u32,
    /// Pages asked for before INIT_HCA, without those that [`Card::pages_for_qps`] counts.
    pub init_pages: u32,
    /// Pages that every further [`objects_per_growth`](Self::objects_per_growth) objects need at run time.
    pub growth_pages: u32,
    /// Objects that the pages at hand suffice for, again and again.
    pub objects_per_growth: u32,
    /// log2 of QPs as the current capability says at power-on.
    pub log_max_qp: u8,
    /// Bytes of host memory that the guest's objects and requests may take ([`Budget`](crate::meter::Budget)).
    pub memory: u64,
    /// How strictly input is checked.
    pub strictness: Strictness,
    /// Faults.
    pub misbehaviour: Misbehaviour,
    /// What it does as some real cards do.
    pub habits: Habits,
}

impl Profile {
    /// Distance between the GUIDs of two nodes.
    pub const GUID_STEP: u64 = 0x10;
    /// Port GUID of node 0, unless another is given.
    pub const GUID_BASE: u64 = 0x506b_4b03_00a0_0000;

    /// Node `i` of a fabric, counted from 0: GUIDs are fixed, so that others can name them before the device exists.
    #[must_use]
    pub fn node(i: u16) -> Self {
        Self::of(&CONNECTX_5, i)
    }

    /// The same of another kind.
    #[must_use]
    pub fn of(card: &'static Card, i: u16) -> Self {
        let port_guid = Self::port_guid_of(i);
        Self {
            card,
            node_guid: port_guid,
            port_guid,
            system_image_guid: port_guid,
            node_description: format!("emulated {} {i}", card.title),
            psid: card.psid.to_owned(),
            vectors: card.vectors,
            msix: card.msix,
            log_cmdq_size: 5,
            boot_pages: card.boot_pages,
            init_pages: card.init_pages,
            growth_pages: 16,
            objects_per_growth: 256,
            log_max_qp: 14,
            memory: 1 << 30,
            strictness: Strictness::Strict,
            misbehaviour: Misbehaviour::default(),
            habits: Habits::of(card),
        }
    }

    /// The port GUID of node `i`.
    #[must_use]
    pub const fn port_guid_of(i: u16) -> u64 {
        Self::GUID_BASE + i as u64 * Self::GUID_STEP
    }

    /// Returns the permanent MAC address of an Ethernet port: that of the port's GUID (EUI-64).
    #[must_use]
    pub const fn mac(&self) -> MacAddress {
        let [a, b, c, _, _, d, e, f] = self.port_guid.to_be_bytes();
        MacAddress([a, b, c, d, e, f])
    }
}

//! The kinds of cards that the model can be, as data: what tells one generation from another and is known of it. What a card of any
//! kind may do besides is [`Habits`](crate::habits::Habits).
//!
//! Identity, versions and sizes are those that public logs of such cards show. Where none shows a number (the pages that firmware takes
//! on anything newer than a ConnectX-4) it is of the right order only.

use mlx5_prm::Field;
use mlx5_prm::caps::cmd_hca_cap as cap;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::value::{CapType, PortType, RegisterId};
use rdma_fabric::infiniband::Speeds;

/// A kind of card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Card {
    /// The word for it on command lines.
    pub name: &'static str,
    /// What it is called.
    pub title: &'static str,
    /// PCI device id.
    pub device_id: u16,
    /// PCI subsystem id.
    pub subsystem_id: u16,
    /// Parameter-set identification.
    pub psid: &'static str,
    /// Firmware version: major, minor, sub-minor.
    pub firmware: (u32, u32, u32),
    /// `health_buffer.hw_id`.
    pub hardware_id: u32,
    /// log2 of BAR0 in MiB, `cmd_hca_cap.uar_sz`.
    pub log_bar_mib: u32,
    /// MSI-X vectors.
    pub vectors: u16,
    /// Where in BAR0 the MSI-X table and the pending bits lie.
    pub msix: [u32; 2],
    /// Of which technology the chip is (`sltp_reg.version`, `mgir_reg.technology`): 28 nm is 1, 16 nm is 3, 7 nm is 4.
    pub technology: u8,
    /// Generation of PCI Express (3 is 8 GT/s), and lanes.
    pub pci_link: (u8, u8),
    /// Pages asked for before SET_HCA_CAP.
    pub boot_pages: u32,
    /// Pages asked for before INIT_HCA, without those for QPs.
    pub init_pages: u32,
    /// Pages asked for before INIT_HCA for each 1024 QPs of `log_max_qp`.
    pub pages_for_qps: u32,
    /// The port's medium.
    pub port_type: PortType,
    /// InfiniBand speeds of the port.
    pub speeds: Speeds,
    /// Ethernet protocols of the port, as PTYS has them (`eth_proto_capability`, `ext_eth_proto_capability`).
    pub protocols: (u32, u32),
    /// `PortInfo.CapabilityMask` at power-on.
    pub capability_mask: u32,
    /// `hca_vport_context.has_smi`: subnet management packets reach this function.
    pub has_smi: bool,
    /// Capabilities that are otherwise than a ConnectX-5's.
    pub capabilities: &'static [(Field, u32)],
    /// The same of the other types of capabilities.
    pub other_capabilities: &'static [(CapType, Field, u32)],
    /// The key that ends a scatter list, if QUERY_SPECIAL_CONTEXTS says which.
    pub terminator: Option<u32>,
    /// Registers that ACCESS_REG refuses to write.
    pub read_only_registers: &'static [RegisterId],
    /// Commands that it does not know.
    pub refused_commands: &'static [Opcode],
    /// The LID reads 0xffff before it is set.
    pub unset_lid_is_ffff: bool,
    /// The dwords at `cmd_exec_to` and `cmd_q_init_to`.
    pub command_timeouts: [u32; 2],
    /// DTOR, as (byte offset, time-out word).
    pub default_timeouts: &'static [(usize, u32)],
}

/// A ConnectX-4 with an EDR port.
pub const CONNECTX_4: Card = Card {
    name: "cx-4",
    title: "ConnectX-4",
    device_id: 0x1013,
    subsystem_id: 0x0008,
    psid: "MT_2180110032",
    firmware: (12, 28, 2006),
    hardware_id: 0x0209,
    technology: 1,
    vectors: 64,
    msix: IN_REGISTERS,
    init_pages: 4676,
    pages_for_qps: 64,
    unset_lid_is_ffff: true,
    capabilities: &[
        (cap::log_max_eq, 8),
        (cap::log_max_cq, 24),
        (cap::log_max_mkey, 24),
        (cap::log_max_srq, 23),
        (cap::log_max_rmp, 23),
        (cap::log_max_pd, 24),
        (cap::log_max_xrcd, 24),
        (cap::log_max_transport_domain, 16),
        (cap::max_qp_mcg, 0x30),
        (cap::fl_rc_qp_when_roce_disabled, 0),
        (cap::relaxed_ordering_write, 0),
        (cap::relaxed_ordering_read, 0),
        (cap::relaxed_ordering_write_umr, 0),
        (cap::relaxed_ordering_read_umr, 0),
        (cap::device_memory, 0),
        (cap::cqe_128_always, 0),
        (cap::cqe_compression_128, 0),
        (cap::mini_cqe_resp_stride_index, 0),
        (mlx5_prm::later::CAP_DMA_MMO_SQ, 0),
        (mlx5_prm::later::CAP_LOG_DMA_MMO_MAX_SIZE, 0),
    ],
    ..CONNECTX_5
};

/// A ConnectX-5 with an EDR port, with few and small demands: what the model is unless it is told otherwise.
pub const CONNECTX_5: Card = Card {
    name: "cx-5",
    title: "ConnectX-5",
    device_id: 0x1017,
    subsystem_id: 0x0007,
    psid: "MT_0000000008",
    firmware: (16, 35, 2000),
    hardware_id: 0x020d,
    log_bar_mib: 5,
    vectors: 32,
    msix: BEHIND_UARS,
    technology: 3,
    pci_link: (3, 16),
    boot_pages: 6,
    init_pages: 64,
    pages_for_qps: 1,
    port_type: PortType::IB,
    speeds: Speeds::EDR,
    protocols: (0, 0),
    capability_mask: 0x2651_e848,
    has_smi: true,
    capabilities: &[],
    other_capabilities: &[],
    terminator: None,
    read_only_registers: &[],
    refused_commands: &[],
    unset_lid_is_ffff: false,
    command_timeouts: [0; 2],
    default_timeouts: &[],
};

/// A ConnectX-6 with an HDR port.
pub const CONNECTX_6: Card = Card {
    name: "cx-6",
    title: "ConnectX-6",
    device_id: 0x101b,
    subsystem_id: 0x0006,
    psid: "MT_0000000223",
    firmware: (20, 34, 1002),
    hardware_id: 0x020f,
    vectors: 64,
    msix: IN_REGISTERS,
    pci_link: (4, 16),
    init_pages: 6100,
    pages_for_qps: 64,
    speeds: Speeds::HDR,
    unset_lid_is_ffff: true,
    capabilities: &[
        (cap::log_max_eq, 8),
        (cap::log_max_cq, 24),
        (cap::log_max_mkey, 24),
        (cap::log_max_srq, 23),
        (cap::log_max_rmp, 23),
        (cap::log_max_pd, 23),
        (cap::log_max_xrcd, 23),
        (cap::log_max_transport_domain, 16),
    ],
    command_timeouts: [MINUTE, 5 | SECONDS],
    default_timeouts: TIMEOUTS,
    ..CONNECTX_5
};

/// A ConnectX-7 with an NDR port.
pub const CONNECTX_7: Card = Card {
    name: "cx-7",
    title: "ConnectX-7",
    device_id: 0x1021,
    subsystem_id: 0x0023,
    psid: "MT_0000000838",
    firmware: (28, 39, 1002),
    hardware_id: 0x0218,
    technology: 4,
    pci_link: (5, 16),
    init_pages: 8200,
    speeds: Speeds::NDR,
    capability_mask: 0xa751_e848,
    terminator: Some(0x0000_0700),
    ..CONNECTX_6
};

/// A virtual function of a ConnectX-5, as a hypervisor hands it on: named, and with a LID of its own.
pub const VIRTUAL_FUNCTION: Card = Card {
    name: "vf",
    title: "ConnectX-5 VF",
    device_id: 0x1018,
    log_bar_mib: 1,
    vectors: 12,
    msix: IN_REGISTERS,
    init_pages: 3362,
    pages_for_qps: 64,
    capability_mask: 0x2651_ec48,
    has_smi: false,
    capabilities: &[
        (cap::vport_group_manager, 0),
        (cap::device_memory, 0),
        (cap::log_max_eq, 4),
        // 64 KiB: there is not much room.
        (cap::log_uar_page_sz, 4),
        (cap::num_of_uars_per_page, 16),
    ],
    read_only_registers: &[
        RegisterId::HOST_ENDIANNESS,
        RegisterId::PAOS,
        RegisterId::PMTU,
        RegisterId::PTYS,
        RegisterId::PVLC,
    ],
    refused_commands: &[Opcode::MAD_IFC],
    unset_lid_is_ffff: true,
    ..CONNECTX_5
};

/// A ConnectX-5 with a 100 GbE port.
pub const CONNECTX_5_EN: Card = Card {
    name: "cx-5-en",
    title: "ConnectX-5 EN",
    subsystem_id: 0x0012,
    psid: "MT_0000000012",
    port_type: PortType::ETH,
    protocols: (CR4_100G, 0),
    has_smi: false,
    refused_commands: &[Opcode::MAD_IFC],
    ..CONNECTX_5
};

/// A ConnectX-6 Dx with a 100 GbE port.
pub const CONNECTX_6_DX: Card = Card {
    name: "cx-6-dx",
    title: "ConnectX-6 Dx",
    device_id: 0x101d,
    subsystem_id: 0x0016,
    psid: "MT_0000000359",
    firmware: (22, 35, 1012),
    hardware_id: 0x0212,
    port_type: PortType::ETH,
    protocols: (CR4_100G, EXT_100G),
    has_smi: false,
    refused_commands: &[Opcode::MAD_IFC],
    ..CONNECTX_6
};

/// A ConnectX-7 with a 200 GbE port.
pub const CONNECTX_7_EN: Card = Card {
    name: "cx-7-en",
    title: "ConnectX-7 EN",
    subsystem_id: 0x0057,
    psid: "MT_0000000841",
    port_type: PortType::ETH,
    protocols: (CR4_100G, EXT_200G),
    has_smi: false,
    refused_commands: &[Opcode::MAD_IFC],
    ..CONNECTX_7
};

/// 100GBASE-CR4, as a bit of `ptys_reg.eth_proto_*`.
const CR4_100G: u32 = 1 << 20;
/// 100GAUI-2 and 200GAUI-4, as bits of `ptys_reg.ext_eth_proto_*`.
const EXT_100G: u32 = 1 << 10;
const EXT_200G: u32 = 1 << 12;

/// MSI-X table and pending bits in the last pages of 32 MiB, behind every UAR page that is handed out.
const BEHIND_UARS: [u32; 2] = [0x01ff_0000, 0x01ff_8000];
/// Among the registers of the initialization segment, as on cards: behind the timer.
pub(crate) const IN_REGISTERS: [u32; 2] = [0x2000, 0x3000];

/// Multiplier of a time-out word that counts seconds.
const SECONDS: u32 = 1 << 29;
const MINUTE: u32 = 60 | SECONDS;
/// PCI toggle, health poll, crash dump, firmware reset, tear-down, reclaiming pages.
const TIMEOUTS: &[(usize, u32)] = &[
    (0x04, 2 | SECONDS),
    (0x14, 2 | SECONDS),
    (0x18, MINUTE),
    (0x1c, MINUTE),
    (0x28, 3 | SECONDS),
    (0x30, 5 | SECONDS),
];

impl Card {
    /// All kinds, in order of age.
    pub const ALL: &'static [&'static Self] = &[
        &CONNECTX_4,
        &CONNECTX_5,
        &CONNECTX_5_EN,
        &CONNECTX_6,
        &CONNECTX_6_DX,
        &CONNECTX_7,
        &CONNECTX_7_EN,
        &VIRTUAL_FUNCTION,
    ];

    /// The kind that is called `name` on command lines.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        Self::ALL.iter().copied().find(|card| card.name == name)
    }

    /// Returns whether its port is an Ethernet port.
    #[must_use]
    pub fn is_ethernet(&self) -> bool {
        self.port_type == PortType::ETH
    }

    /// Bytes of BAR0.
    #[must_use]
    pub const fn bar_size(&self) -> usize {
        1 << (20 + self.log_bar_mib)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_card_is_one_of_its_own() {
        for (i, card) in Card::ALL.iter().enumerate() {
            assert_eq!(Card::named(card.name), Some(*card));
            for other in &Card::ALL[..i] {
                // Cards of either medium can have one PCI device id.
                assert_ne!((card.device_id, card.port_type), (other.device_id, other.port_type));
                assert_ne!(card.title, other.title);
            }
            assert!(card.msix.iter().all(|at| *at as usize + 0x1000 <= card.bar_size()));
        }
        assert_eq!(Card::named("cx-3"), None);
    }
}

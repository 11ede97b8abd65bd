//! What the HCA can do, taken from its capability blocks.

use mlx5_prm::caps::{cmd_hca_cap, roce_cap};
use mlx5_prm::{later, value};

/// Kind of the ports of an HCA. Cards that can be both (VPI) say here which they are configured as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum PortType {
    /// InfiniBand.
    #[default]
    InfiniBand,
    /// Ethernet, with or without RoCE.
    Ethernet,
}

/// Abilities of an Ethernet port for RoCE v2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct RoceCapabilities {
    /// Entries of the address table.
    pub address_table_size: u16,
    /// Version 2 over IPv4.
    pub ipv4: bool,
    /// Version 2 over IPv6.
    pub ipv6: bool,
}

impl RoceCapabilities {
    /// `roce_cap.roce_version`: version 2. `roce_cap.l3_type`: IPv4 and IPv6.
    const VERSION_2: u32 = 1 << 2;
    const IPV4: u32 = 1 << 1;
    const IPV6: u32 = 1 << 2;

    /// Returns what the block says, and whether connections may loop while RoCE is on.
    pub(crate) fn parse(block: &[u8]) -> (Self, bool) {
        let version_2 = roce_cap::roce_version.get32(block) & Self::VERSION_2 != 0;
        let network = if version_2 { roce_cap::l3_type.get32(block) } else { 0 };
        let address_table_size = roce_cap::roce_address_table_size.get(block) as u16;
        let roce =
            Self { address_table_size, ipv4: network & Self::IPV4 != 0, ipv6: network & Self::IPV6 != 0 };
        (roce, roce_cap::fl_rc_qp_when_roce_enabled.is_set(block))
    }
}

/// The capabilities that the driver and its users act on, as they hold after INIT_HCA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Capabilities {
    /// log2 of the number of QPs.
    pub log_max_qp: u8,
    /// log2 of the basic blocks of a send queue, and of the entries of a receive queue.
    pub log_max_qp_sz: u8,
    /// log2 of the number of CQs.
    pub log_max_cq: u8,
    /// log2 of the entries of a CQ.
    pub log_max_cq_sz: u8,
    /// log2 of the number of EQs.
    pub log_max_eq: u8,
    /// log2 of the entries of an EQ.
    pub log_max_eq_sz: u8,
    /// log2 of the number of memory keys.
    pub log_max_mkey: u8,
    /// log2 of the RDMA reads that a QP may have outstanding as requester.
    pub log_max_ra_req_qp: u8,
    /// log2 of the RDMA reads that a QP may have outstanding as responder.
    pub log_max_ra_res_qp: u8,
    /// log2 of the bytes of the longest message.
    pub log_max_msg: u8,
    /// Bytes of the largest send work request.
    pub max_wqe_sz_sq: u16,
    /// Bytes of the largest receive work request.
    pub max_wqe_sz_rq: u16,
    /// log2 of the bytes of a BlueFlame register (both halves), 0 if there are none.
    pub log_bf_reg_size: u8,
    /// Entries of the GID table.
    pub gid_table_size: u32,
    /// Entries of the P_Key table.
    pub pkey_table_size: u32,
    /// The device's share of the local ACK time-out: 4.096 us times 2 to this power.
    pub local_ca_ack_delay: u8,
    /// Supported static rates, a bit for each code.
    pub stat_rate_support: u16,
    /// Clocks that time stamps of a send queue may use: 0 free-running, 1 real-time, 2 both.
    pub sq_ts_format: u8,
    /// Number of ports.
    pub num_ports: u8,
    /// Kind of the ports.
    pub port_type: PortType,
    /// RoCE v2; `None` on InfiniBand ports and where it is switched off.
    pub roce: Option<RoceCapabilities>,
    /// The card announces [`Path::Loopback`](crate::Path::Loopback). InfiniBand cards may offer it
    /// without announcing it.
    pub force_loopback: bool,
    /// Frames can be sent and received ([`Service::RawPacket`](crate::Service)): an Ethernet port with flow tables.
    pub raw_packet: bool,
    /// Whether the port is described by vport contexts (else by management datagrams).
    pub ib_virt: bool,
    /// Whether a datagram QP may send under another QP number.
    pub set_deth_sqpn: bool,
    /// Format of CQEs: 1 for user indexes.
    pub cqe_version: u8,
    /// log2 of the smallest page that a memory key may have.
    pub log_pg_sz: u8,
    /// log2 of the entries of a shared receive queue.
    pub log_max_srq_sz: u8,
    /// QPs that may be attached to a multicast group.
    pub max_qp_mcg: u32,
    /// Compare-and-swap and fetch-and-add of 8 bytes, in this processor's byte order.
    pub atomic: bool,
    /// Completion queues can be resized.
    pub cq_resize: bool,
    /// Small messages can be received in the completion itself.
    pub sctr_data_cqe: bool,
    /// Memory windows can be bound by work requests.
    pub imaicl: bool,
    /// The device can be stopped with whatever objects there are: TEARDOWN_HCA "prepare fast teardown", then `nic_interface` 1.
    pub fast_teardown: bool,
    /// QUERY_SPECIAL_CONTEXTS says which key ends a scatter list.
    pub terminate_scatter_list_mkey: bool,
    /// Counters of the port's traffic.
    pub vport_counters: bool,
    /// Reliable connections.
    pub rc: bool,
    /// Unreliable connections.
    pub uc: bool,
    /// Unreliable datagrams.
    pub ud: bool,
    /// Frequency of the completion time stamps, in kHz; 0 if unknown.
    pub device_frequency_khz: u32,
}

impl Capabilities {
    /// From the general capability block.
    pub(crate) fn parse(block: &[u8]) -> Self {
        use cmd_hca_cap as cap;
        let mhz = cap::device_frequency_mhz.get32(block);
        let khz = cap::device_frequency_khz.get32(block);
        Self {
            log_max_qp: cap::log_max_qp.get(block) as u8,
            log_max_qp_sz: cap::log_max_qp_sz.get(block) as u8,
            log_max_cq: cap::log_max_cq.get(block) as u8,
            log_max_cq_sz: cap::log_max_cq_sz.get(block) as u8,
            log_max_eq: cap::log_max_eq.get(block) as u8,
            log_max_eq_sz: cap::log_max_eq_sz.get(block) as u8,
            log_max_mkey: cap::log_max_mkey.get(block) as u8,
            log_max_ra_req_qp: cap::log_max_ra_req_qp.get(block) as u8,
            log_max_ra_res_qp: cap::log_max_ra_res_qp.get(block) as u8,
            log_max_msg: cap::log_max_msg.get(block) as u8,
            max_wqe_sz_sq: cap::max_wqe_sz_sq.get(block) as u16,
            max_wqe_sz_rq: cap::max_wqe_sz_rq.get(block) as u16,
            log_bf_reg_size: if cap::bf.is_set(block) { cap::log_bf_reg_size.get(block) as u8 } else { 0 },
            gid_table_size: 8u32.checked_shl(cap::gid_table_size.get32(block)).unwrap_or(0),
            pkey_table_size: 128u32.checked_shl(cap::pkey_table_size.get32(block)).unwrap_or(0),
            local_ca_ack_delay: cap::local_ca_ack_delay.get(block) as u8,
            stat_rate_support: cap::stat_rate_support.get(block) as u16,
            sq_ts_format: cap::sq_ts_format.get(block) as u8,
            num_ports: cap::num_ports.get(block) as u8,
            port_type: match value::PortType(cap::port_type.get(block) as u8) {
                value::PortType::IB => PortType::InfiniBand,
                _ => PortType::Ethernet,
            },
            roce: None,
            force_loopback: cap::fl_rc_qp_when_roce_disabled.is_set(block),
            raw_packet: cap::eth_net_offloads.is_set(block) && cap::nic_flow_table.is_set(block),
            ib_virt: cap::ib_virt.is_set(block),
            set_deth_sqpn: cap::set_deth_sqpn.is_set(block),
            cqe_version: cap::cqe_version.get(block) as u8,
            log_pg_sz: cap::log_pg_sz.get(block) as u8,
            log_max_srq_sz: cap::log_max_srq_sz.get(block) as u8,
            max_qp_mcg: cap::max_qp_mcg.get32(block),
            atomic: cap::atomic.is_set(block),
            cq_resize: cap::cq_resize.is_set(block),
            sctr_data_cqe: cap::sctr_data_cqe.is_set(block),
            imaicl: cap::imaicl.is_set(block),
            fast_teardown: cap::fast_teardown.is_set(block),
            terminate_scatter_list_mkey: later::CAP_TERMINATE_SCATTER_LIST_MKEY.is_set(block),
            vport_counters: cap::vport_counters.is_set(block),
            rc: cap::rc.is_set(block),
            uc: cap::uc.is_set(block),
            ud: cap::ud.is_set(block),
            device_frequency_khz: if khz != 0 { khz } else { mhz.saturating_mul(1000) },
        }
    }

    /// The PRM's name of the first capability that this driver cannot do without and that is not there.
    pub(crate) fn missing(&self) -> Option<&'static str> {
        [
            (self.rc, "rc"),
            (self.ud, "ud"),
            (self.cqe_version == 1, "cqe_version"),
            (self.log_max_qp_sz >= 6, "log_max_qp_sz"),
            (self.log_max_cq_sz >= 6, "log_max_cq_sz"),
            (self.log_max_eq_sz >= 7, "log_max_eq_sz"),
            (self.max_wqe_sz_sq >= 128, "max_wqe_sz_sq"),
            (self.max_wqe_sz_rq >= 16, "max_wqe_sz_rq"),
            (self.num_ports >= 1, "num_ports"),
        ]
        .into_iter()
        .find_map(|(there, name)| (!there).then_some(name))
    }
}

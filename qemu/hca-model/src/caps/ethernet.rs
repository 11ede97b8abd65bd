//! Capabilities of an Ethernet port: offloads, RoCE and flow tables, of a ConnectX-5 and nothing that is not modelled.

use super::BLOCK;
use crate::port::{LOG_MAX_LIST, LOG_MAX_VLANS, ROCE_ADDRESSES};
use mlx5_prm::Field;
use mlx5_prm::caps::{
    cmd_hca_cap as c, flow_table_fields_supported as fields, flow_table_nic_cap as nic,
    flow_table_prop_layout as props, per_protocol_networking_offload_caps as offloads, roce_cap,
};
use mlx5_prm::value::PortType;

/// log2 of raw Ethernet queues, TIRs, TISs and tables of receive queues.
const LOG_MAX_QUEUES: u32 = 10;
/// log2 of entries of a table of receive queues.
const LOG_MAX_RQT_SIZE: u32 = 8;
/// log2 of the payload of a frame that is segmented.
pub(crate) const LOG_MAX_LSO: u32 = 18;
/// `per_protocol_networking_offload_caps.wqe_inline_mode`: no header must be inline.
const INLINE_NOT_REQUIRED: u32 = 2;
/// log2 of entries of a flow table.
const LOG_MAX_TABLE: u32 = 16;
/// Highest level of a flow table. Linux refuses a device with less than 59.
const MAX_LEVEL: u32 = 0xff;
/// Registers of a frame that meters write, as bits.
const METER_REGISTERS: u32 = 0xfc;
/// `qos_cap.flow_meter_reg_id` of rdma-core's `mlx5_ifc.h`; Linux 6.1 does not name it.
const METER_REGISTERS_AT: Field = Field::bits(0, 7, 0);
/// UDP port of RoCE v2, and its source ports.
const ROCE_PORT: u32 = 4791;
const SOURCE_PORTS: (u32, u32) = (0xc000, 0xffff);

/// General capabilities that differ from an InfiniBand port's.
pub(super) const GENERAL: &[(Field, u32)] = &[
    (c::port_type, PortType::ETH.0 as u32),
    (c::ib_virt, 0),
    (c::vport_group_manager, 0),
    (c::nic_flow_table, 1),
    (c::eth_net_offloads, 1),
    (c::roce, 1),
    (c::cc_query_allowed, 1),
    // Linux reads counter groups by them, and takes the first as given without.
    (c::pcam_reg, 0),
    (c::log_max_rq, LOG_MAX_QUEUES),
    (c::log_max_sq, LOG_MAX_QUEUES),
    (c::log_max_tir, LOG_MAX_QUEUES),
    (c::log_max_tis, LOG_MAX_QUEUES),
    (c::log_max_rqt, LOG_MAX_QUEUES),
    (c::log_max_rqt_size, LOG_MAX_RQT_SIZE),
    (c::log_max_tis_per_sq, 0),
    (c::disable_local_lb_uc, 1),
    (c::disable_local_lb_mc, 1),
    (c::log_max_current_uc_list, LOG_MAX_LIST),
    (c::log_max_current_mc_list, LOG_MAX_LIST),
    (c::log_max_vlan_list, LOG_MAX_VLANS),
    (c::pad_tx_eth_packet, 1),
    (c::max_flow_counter_15_0, 0xffff),
    (c::modify_rq_counter_set_id, 1),
];

/// Capability type 1.
pub(super) fn offloads() -> Vec<u8> {
    let mut block = vec![0; offloads::SIZE];
    for (field, value) in [
        (offloads::csum_cap, 1),
        (offloads::vlan_cap, 1),
        (offloads::wqe_vlan_insert, 1),
        (offloads::self_lb_en_modifiable, 1),
        (offloads::max_lso_cap, LOG_MAX_LSO),
        (offloads::wqe_inline_mode, INLINE_NOT_REQUIRED),
        (offloads::rss_ind_tbl_cap, LOG_MAX_RQT_SIZE),
    ] {
        field.set(&mut block, value);
    }
    block
}

/// Capability type 4.
pub(super) fn roce() -> Vec<u8> {
    let mut block = vec![0; roce_cap::SIZE];
    for (field, value) in [
        // GRH, IPv4, IPv6.
        (roce_cap::l3_type, 0b111),
        // Version 1 and 2.
        (roce_cap::roce_version, 0b101),
        (roce_cap::r_roce_dest_udp_port, ROCE_PORT),
        (roce_cap::r_roce_min_src_udp_port, SOURCE_PORTS.0),
        (roce_cap::r_roce_max_src_udp_port, SOURCE_PORTS.1),
        (roce_cap::roce_address_table_size, ROCE_ADDRESSES as u32),
        (roce_cap::fl_rc_qp_when_roce_enabled, 1),
        (roce_cap::fl_rc_qp_when_roce_disabled, 1),
    ] {
        field.set(&mut block, value);
    }
    block
}

/// Capability type 0xc. The model has no flow meters. It lists the registers that meters of a card write (C2 to C7), because a
/// test of rdma-core 56 fails without them.
pub(super) fn quality_of_service() -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    METER_REGISTERS_AT.set(&mut block, METER_REGISTERS);
    block
}

/// Capability type 7.
pub(super) fn flow_tables() -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    let receive = nic::flow_table_properties_nic_receive.of_mut(&mut block);
    for (field, value) in [
        (props::ft_support, 1),
        (props::flow_counter, 1),
        (props::flow_modify_en, 1),
        (props::modify_root, 1),
        (props::identified_miss_table_mode, 1),
        (props::flow_table_modify, 1),
        (props::log_max_ft_size, LOG_MAX_TABLE),
        (props::max_ft_level, MAX_LEVEL),
        (props::log_max_ft_num, 10),
        (props::log_max_flow_counter, 16),
        (props::log_max_destination, 6),
        (props::log_max_flow, 16),
    ] {
        field.set(receive, value);
    }
    for part in [props::ft_field_support, props::ft_field_bitmask_support] {
        let supported = part.of_mut(receive);
        for field in [
            fields::outer_dmac,
            fields::outer_smac,
            fields::outer_ether_type,
            fields::outer_ip_version,
            fields::outer_first_prio,
            fields::outer_first_cfi,
            fields::outer_first_vid,
            fields::outer_ipv4_ttl,
            fields::outer_sip,
            fields::outer_dip,
            fields::outer_frag,
            fields::outer_ip_protocol,
            fields::outer_ip_ecn,
            fields::outer_ip_dscp,
            fields::outer_udp_sport,
            fields::outer_udp_dport,
            fields::outer_tcp_sport,
            fields::outer_tcp_dport,
            fields::outer_tcp_flags,
        ] {
            field.set(supported, 1u8);
        }
    }
    block
}

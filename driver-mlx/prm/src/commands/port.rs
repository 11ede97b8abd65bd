//! Ports, vports and addresses: inputs and outputs of the commands (PRM, "Command Reference").

use crate::contexts::{hca_vport_context, mac_address_layout, nic_vport_context, roce_addr_layout};

crate::layout! {
    /// QUERY_VPORT_STATE input (opcode 0x750).
    query_vport_state_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: other_vport [31], vport_number [15:0];
    }
    /// QUERY_VPORT_STATE output.
    query_vport_state_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x0c: admin_state [7:4], state [3:0];
    }
    /// MODIFY_VPORT_STATE input (opcode 0x751).
    modify_vport_state_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: other_vport [31], vport_number [15:0];
        0x0c: admin_state [7:4];
    }
    /// MODIFY_VPORT_STATE output.
    modify_vport_state_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// QUERY_NIC_VPORT_CONTEXT input (opcode 0x754).
    query_nic_vport_context_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: other_vport [31], vport_number [15:0];
        0x0c: allowed_list_type [26:24];
    }
    /// QUERY_NIC_VPORT_CONTEXT output.
    query_nic_vport_context_out (272) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x10: nic_vport_context (struct nic_vport_context);
    }
    /// MODIFY_NIC_VPORT_CONTEXT input (opcode 0x755).
    modify_nic_vport_context_in (512) {
        0x000: opcode [31:16];
        0x004: op_mod [15:0];
        0x008: other_vport [31], vport_number [15:0];
        0x00c: field_select (struct modify_nic_vport_field_select);
        0x100: nic_vport_context (struct nic_vport_context);
    }
    /// MODIFY_NIC_VPORT_CONTEXT output.
    modify_nic_vport_context_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// QUERY_HCA_VPORT_CONTEXT input (opcode 0x762).
    query_hca_vport_context_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: other_vport [31], port_num [19:16], vport_number [15:0];
    }
    /// QUERY_HCA_VPORT_CONTEXT output.
    query_hca_vport_context_out (528) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x10: hca_vport_context (struct hca_vport_context);
    }
    /// MODIFY_HCA_VPORT_CONTEXT input (opcode 0x763).
    modify_hca_vport_context_in (528) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: other_vport [31], port_num [19:16], vport_number [15:0];
        0x10: hca_vport_context (struct hca_vport_context);
    }
    /// MODIFY_HCA_VPORT_CONTEXT output.
    modify_hca_vport_context_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// QUERY_HCA_VPORT_GID input (opcode 0x764).
    query_hca_vport_gid_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: other_vport [31], port_num [19:16], vport_number [15:0];
        0x0c: gid_index [15:0];
    }
    /// QUERY_HCA_VPORT_GID output.
    query_hca_vport_gid_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x0c: gids_num [31:16];
        0x10: gid (tail 16);
    }
    /// QUERY_HCA_VPORT_PKEY input (opcode 0x765).
    query_hca_vport_pkey_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: other_vport [31], port_num [19:16], vport_number [15:0];
        0x0c: pkey_index [15:0];
    }
    /// QUERY_HCA_VPORT_PKEY output.
    query_hca_vport_pkey_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x10: pkey (tail 4);
    }
    /// QUERY_ROCE_ADDRESS input (opcode 0x760).
    query_roce_address_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: roce_address_index [31:16], vhca_port_num [3:0];
    }
    /// QUERY_ROCE_ADDRESS output.
    query_roce_address_out (48) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x10: roce_address (struct roce_addr_layout);
    }
    /// SET_ROCE_ADDRESS input (opcode 0x761).
    set_roce_address_in (48) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: roce_address_index [31:16], vhca_port_num [3:0];
        0x10: roce_address (struct roce_addr_layout);
    }
    /// SET_ROCE_ADDRESS output.
    set_roce_address_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// SET_L2_TABLE_ENTRY input (opcode 0x829).
    set_l2_table_entry_in (64) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x14: table_index [23:0];
        0x1c: vlan_valid [12], vlan [11:0];
        0x20: mac_address (struct mac_address_layout);
    }
    /// SET_L2_TABLE_ENTRY output.
    set_l2_table_entry_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// DELETE_L2_TABLE_ENTRY input (opcode 0x82b).
    delete_l2_table_entry_in (64) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x14: table_index [23:0];
    }
    /// DELETE_L2_TABLE_ENTRY output.
    delete_l2_table_entry_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// Fields that MODIFY_NIC_VPORT_CONTEXT changes.
    modify_nic_vport_field_select (4) {
        0x00: affiliation [13], disable_uc_local_lb [11], disable_mc_local_lb [10], node_guid [9], port_guid [8], min_inline [7], mtu [6], change_event [5], promisc [4], permanent_address [3], addresses_list [2], roce_en [1];
    }
}

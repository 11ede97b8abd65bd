//! Flow tables, groups, entries and counters: inputs and outputs of the commands (PRM, "Command Reference").

use crate::steering::{flow_context, flow_table_context, fte_match_param};

crate::layout! {
    /// SET_FLOW_TABLE_ROOT input (opcode 0x92f).
    set_flow_table_root_in (64) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: other_vport [31], vport_number [15:0];
        0x10: table_type [31:24], table_of_other_vport [16], table_vport_number [15:0];
        0x14: table_id [23:0];
        0x18: underlay_qpn [23:0];
        0x1c: table_eswitch_owner_vhca_id_valid [31], table_eswitch_owner_vhca_id [15:0];
    }
    /// SET_FLOW_TABLE_ROOT output.
    set_flow_table_root_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// CREATE_FLOW_TABLE input (opcode 0x930).
    create_flow_table_in (64) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: other_vport [31], vport_number [15:0];
        0x10: table_type [31:24];
        0x18: flow_table_context (struct flow_table_context);
    }
    /// CREATE_FLOW_TABLE output.
    create_flow_table_out (16) {
        0x00: status [31:24], icm_address_63_40 [23:0];
        0x04: syndrome [31:0];
        0x08: icm_address_39_32 [31:24], table_id [23:0];
        0x0c: icm_address_31_0 [31:0];
    }
    /// DESTROY_FLOW_TABLE input (opcode 0x931).
    destroy_flow_table_in (64) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: other_vport [31], vport_number [15:0];
        0x10: table_type [31:24];
        0x14: table_id [23:0];
    }
    /// DESTROY_FLOW_TABLE output.
    destroy_flow_table_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// QUERY_FLOW_TABLE input (opcode 0x932).
    query_flow_table_in (64) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x10: table_type [31:24];
        0x14: table_id [23:0];
    }
    /// QUERY_FLOW_TABLE output.
    query_flow_table_out (64) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x18: flow_table_context (struct flow_table_context);
    }
    /// CREATE_FLOW_GROUP input (opcode 0x933).
    create_flow_group_in (1024) {
        0x000: opcode [31:16];
        0x004: op_mod [15:0];
        0x008: other_vport [31], vport_number [15:0];
        0x010: table_type [31:24], group_type [19:16];
        0x014: table_id [23:0];
        0x018: source_eswitch_owner_vhca_id_valid [31];
        0x01c: start_flow_index [31:0];
        0x024: end_flow_index [31:0];
        0x028: match_definer_id [15:0];
        0x03c: match_criteria_enable [7:0];
        0x040: match_criteria (struct fte_match_param);
    }
    /// CREATE_FLOW_GROUP output.
    create_flow_group_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x08: group_id [23:0];
    }
    /// DESTROY_FLOW_GROUP input (opcode 0x934).
    destroy_flow_group_in (64) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: other_vport [31], vport_number [15:0];
        0x10: table_type [31:24];
        0x14: table_id [23:0];
        0x18: group_id [31:0];
    }
    /// DESTROY_FLOW_GROUP output.
    destroy_flow_group_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// QUERY_FLOW_GROUP input (opcode 0x935).
    query_flow_group_in (64) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x10: table_type [31:24];
        0x14: table_id [23:0];
        0x18: group_id [31:0];
    }
    /// QUERY_FLOW_GROUP output.
    query_flow_group_out (1024) {
        0x000: status [31:24];
        0x004: syndrome [31:0];
        0x01c: start_flow_index [31:0];
        0x024: end_flow_index [31:0];
        0x03c: match_criteria_enable [7:0];
        0x040: match_criteria (struct fte_match_param);
    }
    /// SET_FLOW_TABLE_ENTRY input (opcode 0x936).
    set_fte_in (832) {
        0x000: opcode [31:16];
        0x004: op_mod [15:0];
        0x008: other_vport [31], vport_number [15:0];
        0x010: table_type [31:24];
        0x014: table_id [23:0];
        0x018: ignore_flow_level [31], modify_enable_mask [7:0];
        0x020: flow_index [31:0];
        0x040: flow_context (struct flow_context);
    }
    /// SET_FLOW_TABLE_ENTRY output.
    set_fte_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// QUERY_FLOW_TABLE_ENTRY input (opcode 0x937).
    query_fte_in (64) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x10: table_type [31:24];
        0x14: table_id [23:0];
        0x20: flow_index [31:0];
    }
    /// QUERY_FLOW_TABLE_ENTRY output.
    query_fte_out (832) {
        0x000: status [31:24];
        0x004: syndrome [31:0];
        0x040: flow_context (struct flow_context);
    }
    /// DELETE_FLOW_TABLE_ENTRY input (opcode 0x938).
    delete_fte_in (64) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: other_vport [31], vport_number [15:0];
        0x10: table_type [31:24];
        0x14: table_id [23:0];
        0x20: flow_index [31:0];
    }
    /// DELETE_FLOW_TABLE_ENTRY output.
    delete_fte_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// ALLOC_FLOW_COUNTER input (opcode 0x939).
    alloc_flow_counter_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x0c: flow_counter_bulk_log_size [12:8], flow_counter_bulk [7:0];
    }
    /// ALLOC_FLOW_COUNTER output.
    alloc_flow_counter_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x08: flow_counter_id [31:0];
    }
    /// DEALLOC_FLOW_COUNTER input (opcode 0x93a).
    dealloc_flow_counter_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: flow_counter_id [31:0];
    }
    /// DEALLOC_FLOW_COUNTER output.
    dealloc_flow_counter_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// QUERY_FLOW_COUNTER input (opcode 0x93b).
    query_flow_counter_in (32) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x18: clear [31], num_of_counters [15:0];
        0x1c: flow_counter_id [31:0];
    }
    /// QUERY_FLOW_COUNTER output.
    query_flow_counter_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x10: flow_statistics (tail 16);
    }
    /// MODIFY_FLOW_TABLE input (opcode 0x93c).
    modify_flow_table_in (64) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: other_vport [31], vport_number [15:0];
        0x0c: modify_field_select [15:0];
        0x10: table_type [31:24];
        0x14: table_id [23:0];
        0x18: flow_table_context (struct flow_table_context);
    }
    /// MODIFY_FLOW_TABLE output.
    modify_flow_table_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
}

//! Device life cycle: inputs and outputs of the commands (PRM, "Command Reference").

use crate::contexts::query_adapter_param_block;

crate::layout! {
    /// ENABLE_HCA input (opcode 0x104).
    enable_hca_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: embedded_cpu_function [31], function_id [15:0];
    }
    /// ENABLE_HCA output.
    enable_hca_out (12) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// DISABLE_HCA input (opcode 0x105).
    disable_hca_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: embedded_cpu_function [31], function_id [15:0];
    }
    /// DISABLE_HCA output.
    disable_hca_out (12) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// QUERY_ISSI input (opcode 0x10a).
    query_issi_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
    }
    /// QUERY_ISSI output.
    query_issi_out (112) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x08: current_issi [15:0];
        0x6c: supported_issi_dw0 [31:0];
    }
    /// SET_ISSI input (opcode 0x10b).
    set_issi_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: current_issi [15:0];
    }
    /// SET_ISSI output.
    set_issi_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// QUERY_PAGES input (opcode 0x107).
    query_pages_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: embedded_cpu_function [31], function_id [15:0];
    }
    /// QUERY_PAGES output.
    query_pages_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x08: embedded_cpu_function [31], function_id [15:0];
        0x0c: num_pages [31:0];
    }
    /// MANAGE_PAGES input (opcode 0x108).
    manage_pages_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: embedded_cpu_function [31], function_id [15:0];
        0x0c: input_num_entries [31:0];
        0x10: pas (tail 8);
    }
    /// MANAGE_PAGES output.
    manage_pages_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x08: output_num_entries [31:0];
        0x10: pas (tail 8);
    }
    /// QUERY_HCA_CAP input (opcode 0x100).
    query_hca_cap_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: other_function [31], function_id [15:0];
    }
    /// QUERY_HCA_CAP output.
    query_hca_cap_out (4112) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x10: capability (bytes 4096);
    }
    /// SET_HCA_CAP input (opcode 0x109).
    set_hca_cap_in (4112) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: other_function [31], function_id [15:0];
        0x10: capability (bytes 4096);
    }
    /// SET_HCA_CAP output.
    set_hca_cap_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// SET_DRIVER_VERSION input (opcode 0x10d).
    set_driver_version_in (80) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x10: driver_version (bytes 64);
    }
    /// SET_DRIVER_VERSION output.
    set_driver_version_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// INIT_HCA input (opcode 0x102).
    init_hca_in (32) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x0c: sw_vhca_id [29:16];
        0x10: sw_owner_id (bytes 16);
    }
    /// INIT_HCA output.
    init_hca_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// TEARDOWN_HCA input (opcode 0x103).
    teardown_hca_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: profile [15:0];
    }
    /// TEARDOWN_HCA output.
    teardown_hca_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x0c: state [0];
    }
    /// QUERY_ADAPTER input (opcode 0x101).
    query_adapter_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
    }
    /// QUERY_ADAPTER output.
    query_adapter_out (272) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x10: query_adapter_struct (struct query_adapter_param_block);
    }
    /// NOP input (opcode 0x80d).
    nop_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
    }
    /// NOP output.
    nop_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// QUERY_LAG input (opcode 0x842).
    query_lag_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
    }
    /// QUERY_LAG output.
    query_lag_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x08: ctx (struct lagc);
    }
    /// Bonding of ports.
    lagc (8) {
        0x00: fdb_selection_mode [31], port_select_mode [10:8], lag_state [2:0];
        0x04: active_port [19:16], tx_remap_affinity_2 [11:8], tx_remap_affinity_1 [3:0];
    }
}

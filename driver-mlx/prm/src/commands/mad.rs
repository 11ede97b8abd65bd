//! MADs, multicast groups and access registers: inputs and outputs of the commands (PRM, "Command
//! Reference").

crate::layout! {
    /// MAD_IFC input (opcode 0x50d).
    mad_ifc_in (272) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: remote_lid [31:16], port [7:0];
        0x10: mad (bytes 256);
    }
    /// MAD_IFC output.
    mad_ifc_out (272) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x10: response_mad_packet (bytes 256);
    }
    /// QUERY_MAD_DEMUX input (opcode 0x80b).
    query_mad_demux_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
    }
    /// QUERY_MAD_DEMUX output.
    query_mad_demux_out (20) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x10: mad_dumux_parameters_block [31:0];
    }
    /// SET_MAD_DEMUX input (opcode 0x80c).
    set_mad_demux_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x0c: demux_mode [25:24];
    }
    /// SET_MAD_DEMUX output.
    set_mad_demux_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// ATTACH_TO_MCG input (opcode 0x806).
    attach_to_mcg_in (32) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: qpn [23:0];
        0x10: multicast_gid (bytes 16);
    }
    /// ATTACH_TO_MCG output.
    attach_to_mcg_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// DETACH_FROM_MCG input (opcode 0x807).
    detach_from_mcg_in (32) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: qpn [23:0];
        0x10: multicast_gid (bytes 16);
    }
    /// DETACH_FROM_MCG output.
    detach_from_mcg_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// ACCESS_REG input (opcode 0x805).
    access_register_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: register_id [15:0];
        0x0c: argument [31:0];
        0x10: register_data (tail 4);
    }
    /// ACCESS_REG output.
    access_register_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x10: register_data (tail 4);
    }
}

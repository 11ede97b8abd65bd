//! Device memory: inputs and outputs of the commands (PRM, "Command Reference"). Addresses are
//! offsets in BAR0.

crate::layout! {
    /// ALLOC_MEMIC input (opcode 0x205).
    alloc_memic_in (32) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x0c: log_memic_addr_alignment [7:0];
        0x10: range_start_addr (quad);
        0x18: range_size [31:0];
        0x1c: memic_size [31:0];
    }
    /// ALLOC_MEMIC output.
    alloc_memic_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x08: memic_start_addr (quad);
    }
    /// DEALLOC_MEMIC input (opcode 0x206).
    dealloc_memic_in (32) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x10: memic_start_addr (quad);
        0x18: memic_size [31:0];
    }
    /// DEALLOC_MEMIC output.
    dealloc_memic_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// MODIFY_MEMIC input (opcode 0x207).
    modify_memic_in (64) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x0c: memic_operation_type [7:0];
        0x10: memic_start_addr (quad);
    }
    /// MODIFY_MEMIC output.
    modify_memic_out (64) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x10: memic_operation_addr (quad);
    }
}

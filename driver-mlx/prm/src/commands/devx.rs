//! User contexts and user memory: inputs and outputs of the commands (PRM, "Command Reference").

crate::layout! {
    /// Rights of a user context besides the creation of objects.
    uctx (48) {
        0x00: cap [31:0];
    }
    /// CREATE_UCTX input (opcode 0xa04).
    create_uctx_in (64) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x10: uctx (struct uctx);
    }
    /// CREATE_UCTX output.
    create_uctx_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x08: uid [15:0];
    }
    /// DESTROY_UCTX input (opcode 0xa06).
    destroy_uctx_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: uid [15:0];
    }
    /// DESTROY_UCTX output.
    destroy_uctx_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// Memory that a user handed over, as pages of one size.
    umem (32) {
        0x10: ats [31], log_page_size [4:0];
        0x14: page_offset [31:0];
        0x18: num_of_mtt (quad);
        0x20: mtt (tail 8);
    }
    /// CREATE_UMEM input (opcode 0xa08).
    create_umem_in (48) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x10: umem (struct umem);
    }
    /// CREATE_UMEM output.
    create_umem_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x08: umem_id [23:0];
    }
    /// DESTROY_UMEM input (opcode 0xa0a).
    destroy_umem_in (16) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: umem_id [23:0];
    }
    /// DESTROY_UMEM output.
    destroy_umem_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
}

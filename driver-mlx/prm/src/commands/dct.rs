//! Dynamically connected transport: inputs and outputs of the commands (PRM, "Command Reference").

crate::layout! {
    /// CREATE_DCT input (opcode 0x710).
    create_dct_in (128) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x10: state [27:24];
        0x14: user_index [23:0];
        0x18: cqn [23:0];
        0x1c: counter_set_id [31:24], atomic_mode [23:20], rre [19], rwe [18], rae [17], atomic_like_write_en [16], latency_sensitive [15], rlky [14], free_ar [13];
        0x20: cs_res [23:16], min_rnr_nak [12:8];
        0x24: srqn_xrqn [23:0];
        0x28: pd [23:0];
        0x2c: tclass [31:24], flow_label [19:0];
        0x30: dc_access_key (quad);
        0x38: mtu [26:24], port [23:16], pkey_index [15:0];
        0x3c: my_addr_index [23:16], hop_limit [7:0];
        0x40: dc_access_key_violation_count [31:0];
        0x44: dei_cfi [11], eth_prio [10:8], ecn [7:6], dscp [5:0];
        0x4c: ece [31:0];
    }
    /// CREATE_DCT output.
    create_dct_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x08: dctn [23:0];
        0x0c: ece [31:0];
    }
    /// DESTROY_DCT input (opcode 0x711).
    destroy_dct_in (16) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: dctn [23:0];
    }
    /// DESTROY_DCT output.
    destroy_dct_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// DRAIN_DCT input (opcode 0x712).
    drain_dct_in (16) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: dctn [23:0];
    }
    /// DRAIN_DCT output.
    drain_dct_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// QUERY_DCT input (opcode 0x713).
    query_dct_in (16) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: dctn [23:0];
    }
    /// QUERY_DCT output.
    query_dct_out (128) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
}

//! Completion queues: inputs and outputs of the commands (PRM, "Command Reference").

use crate::contexts::cqc;

crate::layout! {
    /// CREATE_CQ input (opcode 0x400).
    create_cq_in (272) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x10: cq_context (struct cqc);
        0x5c: cq_umem_valid [31];
        0x110: pas (tail 8);
    }
    /// CREATE_CQ output.
    create_cq_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x08: cqn [23:0];
    }
    /// DESTROY_CQ input (opcode 0x401).
    destroy_cq_in (16) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: cqn [23:0];
    }
    /// DESTROY_CQ output.
    destroy_cq_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// QUERY_CQ input (opcode 0x402).
    query_cq_in (16) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: cqn [23:0];
    }
    /// QUERY_CQ output.
    query_cq_out (272) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x10: cq_context (struct cqc);
        0x110: pas (tail 8);
    }
    /// MODIFY_CQ input (opcode 0x403).
    modify_cq_in (272) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: cqn [23:0];
        0x0c: modify_field_select [31:0];
        0x10: cq_context (struct cqc);
        0x5c: cq_umem_valid [31];
        0x110: pas (tail 8);
    }
    /// MODIFY_CQ output.
    modify_cq_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
}

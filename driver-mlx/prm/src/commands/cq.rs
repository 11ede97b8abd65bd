//! Completion queues: inputs and outputs of the commands (PRM, "Command Reference").

use crate::contexts::cqc;

crate::layout! {
    /// CREATE_CQ input (opcode 0x400).
    create_cq_in (272) {
        0x000: opcode [31:16], uid [15:0];
        0x004: op_mod [15:0];
        0x010: cq_context (struct cqc);
        0x05c: cq_umem_valid [31];
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
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: cqn [23:0];
    }
    /// QUERY_CQ output.
    query_cq_out (272) {
        0x000: status [31:24];
        0x004: syndrome [31:0];
        0x010: cq_context (struct cqc);
        0x110: pas (tail 8);
    }
    /// Fields for op_mod 0: [`crate::value::ModifyCqFields`].
    modify_field_select (4) {
        0x00: modify_field_select [31:0];
    }
    /// Fields for op_mod 1: [`crate::value::ResizeCqFields`].
    resize_field_select (4) {
        0x00: resize_field_select [31:0];
    }
    /// Fields that MODIFY_CQ changes: selected by op_mod.
    modify_field_select_resize_field_select_auto (4) {
        0x00: modify_field_select (variant modify_field_select), resize_field_select (variant resize_field_select);
    }
    /// MODIFY_CQ input (opcode 0x403).
    modify_cq_in (272) {
        0x000: opcode [31:16], uid [15:0];
        0x004: op_mod [15:0];
        0x008: cqn [23:0];
        0x00c: modify_field_select_resize_field_select (struct modify_field_select_resize_field_select_auto);
        0x010: cq_context (struct cqc);
        0x05c: cq_umem_valid [31];
        0x110: pas (tail 8);
    }
    /// MODIFY_CQ output.
    modify_cq_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
}

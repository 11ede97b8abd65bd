//! Shared receive queues: inputs and outputs of the commands (PRM, "Command Reference").

use crate::contexts::{rmpc, srqc, xrc_srqc, xrqc};

crate::layout! {
    /// CREATE_SRQ input (opcode 0x700).
    create_srq_in (272) {
        0x000: opcode [31:16], uid [15:0];
        0x004: op_mod [15:0];
        0x010: srq_context_entry (struct srqc);
        0x110: pas (tail 8);
    }
    /// CREATE_SRQ output.
    create_srq_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x08: srqn [23:0];
    }
    /// DESTROY_SRQ input (opcode 0x701).
    destroy_srq_in (16) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: srqn [23:0];
    }
    /// DESTROY_SRQ output.
    destroy_srq_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// QUERY_SRQ input (opcode 0x702).
    query_srq_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: srqn [23:0];
    }
    /// QUERY_SRQ output.
    query_srq_out (272) {
        0x000: status [31:24];
        0x004: syndrome [31:0];
        0x010: srq_context_entry (struct srqc);
        0x110: pas (tail 8);
    }
    /// ARM_RQ input (opcode 0x703).
    arm_rq_in (16) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: srq_number [23:0];
        0x0c: lwm [15:0];
    }
    /// ARM_RQ output.
    arm_rq_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// CREATE_XRC_SRQ input (opcode 0x705).
    create_xrc_srq_in (272) {
        0x000: opcode [31:16], uid [15:0];
        0x004: op_mod [15:0];
        0x010: xrc_srq_context_entry (struct xrc_srqc);
        0x05c: xrc_srq_umem_valid [31];
        0x110: pas (tail 8);
    }
    /// CREATE_XRC_SRQ output.
    create_xrc_srq_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x08: xrc_srqn [23:0];
    }
    /// DESTROY_XRC_SRQ input (opcode 0x706).
    destroy_xrc_srq_in (16) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: xrc_srqn [23:0];
    }
    /// DESTROY_XRC_SRQ output.
    destroy_xrc_srq_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// QUERY_XRC_SRQ input (opcode 0x707).
    query_xrc_srq_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: xrc_srqn [23:0];
    }
    /// QUERY_XRC_SRQ output.
    query_xrc_srq_out (272) {
        0x000: status [31:24];
        0x004: syndrome [31:0];
        0x010: xrc_srq_context_entry (struct xrc_srqc);
        0x110: pas (tail 8);
    }
    /// ARM_XRC_SRQ input (opcode 0x708).
    arm_xrc_srq_in (16) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: xrc_srqn [23:0];
        0x0c: lwm [15:0];
    }
    /// ARM_XRC_SRQ output.
    arm_xrc_srq_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// CREATE_RMP input (opcode 0x90c).
    create_rmp_in (272) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x20: ctx (struct rmpc);
    }
    /// CREATE_RMP output.
    create_rmp_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x08: rmpn [23:0];
    }
    /// MODIFY_RMP input (opcode 0x90d).
    modify_rmp_in (272) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: rmp_state [31:28], rmpn [23:0];
        0x10: bitmask (struct rmp_bitmask);
        0x20: ctx (struct rmpc);
    }
    /// MODIFY_RMP output.
    modify_rmp_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// DESTROY_RMP input (opcode 0x90e).
    destroy_rmp_in (16) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: rmpn [23:0];
    }
    /// DESTROY_RMP output.
    destroy_rmp_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// QUERY_RMP input (opcode 0x90f).
    query_rmp_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: rmpn [23:0];
    }
    /// QUERY_RMP output.
    query_rmp_out (272) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x20: rmp_context (struct rmpc);
    }
    /// CREATE_XRQ input (opcode 0x717).
    create_xrq_in (336) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x10: xrq_context (struct xrqc);
    }
    /// CREATE_XRQ output.
    create_xrq_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x08: xrqn [23:0];
    }
    /// DESTROY_XRQ input (opcode 0x718).
    destroy_xrq_in (16) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: xrqn [23:0];
    }
    /// DESTROY_XRQ output.
    destroy_xrq_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// QUERY_XRQ input (opcode 0x719).
    query_xrq_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: xrqn [23:0];
    }
    /// QUERY_XRQ output.
    query_xrq_out (336) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x10: xrq_context (struct xrqc);
    }
    /// ARM_XRQ input (opcode 0x71a).
    arm_xrq_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: xrqn [23:0];
        0x0c: lwm [15:0];
    }
    /// ARM_XRQ output.
    arm_xrq_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// Fields that MODIFY_RMP changes.
    rmp_bitmask (8) {
        0x04: lwm [0];
    }
}

//! Raw Ethernet queues, TIRs, TISs and RQ tables: inputs and outputs of the commands (PRM, "Command Reference").

use crate::contexts::{rqc, rqtc, sqc, tirc, tisc};

crate::layout! {
    /// CREATE_TIR input (opcode 0x900).
    create_tir_in (272) {
        0x000: opcode [31:16], uid [15:0];
        0x004: op_mod [15:0];
        0x020: ctx (struct tirc);
    }
    /// CREATE_TIR output.
    create_tir_out (16) {
        0x00: status [31:24], icm_address_63_40 [23:0];
        0x04: syndrome [31:0];
        0x08: icm_address_39_32 [31:24], tirn [23:0];
        0x0c: icm_address_31_0 [31:0];
    }
    /// MODIFY_TIR input (opcode 0x901).
    modify_tir_in (272) {
        0x000: opcode [31:16], uid [15:0];
        0x004: op_mod [15:0];
        0x008: tirn [23:0];
        0x010: bitmask (struct modify_tir_bitmask);
        0x020: ctx (struct tirc);
    }
    /// MODIFY_TIR output.
    modify_tir_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// DESTROY_TIR input (opcode 0x902).
    destroy_tir_in (16) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: tirn [23:0];
    }
    /// DESTROY_TIR output.
    destroy_tir_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// QUERY_TIR input (opcode 0x903).
    query_tir_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: tirn [23:0];
    }
    /// QUERY_TIR output.
    query_tir_out (272) {
        0x000: status [31:24];
        0x004: syndrome [31:0];
        0x020: tir_context (struct tirc);
    }
    /// CREATE_SQ input (opcode 0x904).
    create_sq_in (272) {
        0x000: opcode [31:16], uid [15:0];
        0x004: op_mod [15:0];
        0x020: ctx (struct sqc);
    }
    /// CREATE_SQ output.
    create_sq_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x08: sqn [23:0];
    }
    /// MODIFY_SQ input (opcode 0x905).
    modify_sq_in (272) {
        0x000: opcode [31:16], uid [15:0];
        0x004: op_mod [15:0];
        0x008: sq_state [31:28], sqn [23:0];
        0x010: modify_bitmask (quad);
        0x020: ctx (struct sqc);
    }
    /// MODIFY_SQ output.
    modify_sq_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// DESTROY_SQ input (opcode 0x906).
    destroy_sq_in (16) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: sqn [23:0];
    }
    /// DESTROY_SQ output.
    destroy_sq_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// QUERY_SQ input (opcode 0x907).
    query_sq_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: sqn [23:0];
    }
    /// QUERY_SQ output.
    query_sq_out (272) {
        0x000: status [31:24];
        0x004: syndrome [31:0];
        0x020: sq_context (struct sqc);
    }
    /// CREATE_RQ input (opcode 0x908).
    create_rq_in (272) {
        0x000: opcode [31:16], uid [15:0];
        0x004: op_mod [15:0];
        0x020: ctx (struct rqc);
    }
    /// CREATE_RQ output.
    create_rq_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x08: rqn [23:0];
    }
    /// MODIFY_RQ input (opcode 0x909).
    modify_rq_in (272) {
        0x000: opcode [31:16], uid [15:0];
        0x004: op_mod [15:0];
        0x008: rq_state [31:28], rqn [23:0];
        0x010: modify_bitmask (quad);
        0x020: ctx (struct rqc);
    }
    /// MODIFY_RQ output.
    modify_rq_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// DESTROY_RQ input (opcode 0x90a).
    destroy_rq_in (16) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: rqn [23:0];
    }
    /// DESTROY_RQ output.
    destroy_rq_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// QUERY_RQ input (opcode 0x90b).
    query_rq_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: rqn [23:0];
    }
    /// QUERY_RQ output.
    query_rq_out (272) {
        0x000: status [31:24];
        0x004: syndrome [31:0];
        0x020: rq_context (struct rqc);
    }
    /// CREATE_TIS input (opcode 0x912).
    create_tis_in (192) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x20: ctx (struct tisc);
    }
    /// CREATE_TIS output.
    create_tis_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x08: tisn [23:0];
    }
    /// MODIFY_TIS input (opcode 0x913).
    modify_tis_in (192) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: tisn [23:0];
        0x10: bitmask (struct modify_tis_bitmask);
        0x20: ctx (struct tisc);
    }
    /// MODIFY_TIS output.
    modify_tis_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// DESTROY_TIS input (opcode 0x914).
    destroy_tis_in (16) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: tisn [23:0];
    }
    /// DESTROY_TIS output.
    destroy_tis_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// QUERY_TIS input (opcode 0x915).
    query_tis_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: tisn [23:0];
    }
    /// QUERY_TIS output.
    query_tis_out (176) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x10: tis_context (struct tisc);
    }
    /// CREATE_RQT input (opcode 0x916).
    create_rqt_in (272) {
        0x000: opcode [31:16], uid [15:0];
        0x004: op_mod [15:0];
        0x020: rqt_context (struct rqtc);
    }
    /// CREATE_RQT output.
    create_rqt_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x08: rqtn [23:0];
    }
    /// MODIFY_RQT input (opcode 0x917).
    modify_rqt_in (272) {
        0x000: opcode [31:16], uid [15:0];
        0x004: op_mod [15:0];
        0x008: rqtn [23:0];
        0x010: bitmask (struct rqt_bitmask);
        0x020: ctx (struct rqtc);
    }
    /// MODIFY_RQT output.
    modify_rqt_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// DESTROY_RQT input (opcode 0x918).
    destroy_rqt_in (16) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: rqtn [23:0];
    }
    /// DESTROY_RQT output.
    destroy_rqt_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// QUERY_RQT input (opcode 0x919).
    query_rqt_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: rqtn [23:0];
    }
    /// QUERY_RQT output.
    query_rqt_out (272) {
        0x000: status [31:24];
        0x004: syndrome [31:0];
        0x020: rqt_context (struct rqtc);
    }
    /// Fields that MODIFY_TIR changes.
    modify_tir_bitmask (8) {
        0x04: self_lb_en [4], hash [2], packet_merge [0];
    }
    /// Fields that MODIFY_TIS changes.
    modify_tis_bitmask (8) {
        0x04: lag_tx_port_affinity [2], strict_lag_tx_port_affinity [1], prio [0];
    }
    /// Fields that MODIFY_RQT changes.
    rqt_bitmask (8) {
        0x04: rqn_list [0];
    }
}

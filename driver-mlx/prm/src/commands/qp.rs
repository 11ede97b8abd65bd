//! Queue pairs: inputs and outputs of the commands (PRM, "Command Reference").

use crate::contexts::qpc;

crate::layout! {
    /// CREATE_QP input (opcode 0x500).
    create_qp_in (272) {
        0x000: opcode [31:16], uid [15:0];
        0x004: op_mod [15:0];
        0x008: input_qpn [23:0];
        0x010: opt_param_mask [31:0];
        0x014: ece [31:0];
        0x018: qpc (struct qpc);
        0x10c: wq_umem_valid [31];
        0x110: pas (tail 8);
    }
    /// CREATE_QP output.
    create_qp_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x08: qpn [23:0];
        0x0c: ece [31:0];
    }
    /// DESTROY_QP input (opcode 0x501).
    destroy_qp_in (16) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: qpn [23:0];
    }
    /// DESTROY_QP output.
    destroy_qp_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// RST2INIT_QP input (opcode 0x502).
    rst2init_qp_in (272) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: qpn [23:0];
        0x10: opt_param_mask [31:0];
        0x14: ece [31:0];
        0x18: qpc (struct qpc);
    }
    /// RST2INIT_QP output.
    rst2init_qp_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x0c: ece [31:0];
    }
    /// INIT2RTR_QP input (opcode 0x503).
    init2rtr_qp_in (272) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: qpn [23:0];
        0x10: opt_param_mask [31:0];
        0x14: ece [31:0];
        0x18: qpc (struct qpc);
    }
    /// INIT2RTR_QP output.
    init2rtr_qp_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x0c: ece [31:0];
    }
    /// RTR2RTS_QP input (opcode 0x504).
    rtr2rts_qp_in (272) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: qpn [23:0];
        0x10: opt_param_mask [31:0];
        0x14: ece [31:0];
        0x18: qpc (struct qpc);
    }
    /// RTR2RTS_QP output.
    rtr2rts_qp_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x0c: ece [31:0];
    }
    /// RTS2RTS_QP input (opcode 0x505).
    rts2rts_qp_in (272) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: qpn [23:0];
        0x10: opt_param_mask [31:0];
        0x14: ece [31:0];
        0x18: qpc (struct qpc);
    }
    /// RTS2RTS_QP output.
    rts2rts_qp_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x0c: ece [31:0];
    }
    /// SQERR2RTS_QP input (opcode 0x506).
    sqerr2rts_qp_in (272) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: qpn [23:0];
        0x10: opt_param_mask [31:0];
        0x18: qpc (struct qpc);
    }
    /// SQERR2RTS_QP output.
    sqerr2rts_qp_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// 2ERR_QP input (opcode 0x507).
    qp_2err_in (16) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: qpn [23:0];
    }
    /// 2ERR_QP output.
    qp_2err_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// 2RST_QP input (opcode 0x50a).
    qp_2rst_in (16) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: qpn [23:0];
    }
    /// 2RST_QP output.
    qp_2rst_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// QUERY_QP input (opcode 0x50b).
    query_qp_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: qpn [23:0];
    }
    /// QUERY_QP output.
    query_qp_out (272) {
        0x000: status [31:24];
        0x004: syndrome [31:0];
        0x010: opt_param_mask [31:0];
        0x014: ece [31:0];
        0x018: qpc (struct qpc);
        0x110: pas (tail 8);
    }
    /// SQD_RTS_QP input (opcode 0x50c).
    sqd2rts_qp_in (272) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: qpn [23:0];
        0x10: opt_param_mask [31:0];
        0x18: qpc (struct qpc);
    }
    /// SQD_RTS_QP output.
    sqd2rts_qp_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// INIT2INIT_QP input (opcode 0x50e).
    init2init_qp_in (272) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: qpn [23:0];
        0x10: opt_param_mask [31:0];
        0x14: ece [31:0];
        0x18: qpc (struct qpc);
    }
    /// INIT2INIT_QP output.
    init2init_qp_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x0c: ece [31:0];
    }
}

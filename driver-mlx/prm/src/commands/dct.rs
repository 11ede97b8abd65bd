//! Dynamically connected transport: inputs and outputs of the commands (PRM, "Command Reference").

use crate::contexts::dctc;

crate::layout! {
    /// CREATE_DCT input (opcode 0x710).
    create_dct_in (128) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x10: dct_context_entry (struct dctc);
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
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: dctn [23:0];
    }
    /// QUERY_DCT output.
    query_dct_out (128) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x10: dct_context_entry (struct dctc);
    }
}

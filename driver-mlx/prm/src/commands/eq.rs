//! Event queues: inputs and outputs of the commands (PRM, "Command Reference").

use crate::contexts::eqc;

crate::layout! {
    /// CREATE_EQ input (opcode 0x301).
    create_eq_in (272) {
        0x000: opcode [31:16], uid [15:0];
        0x004: op_mod [15:0];
        0x010: eq_context_entry (struct eqc);
        0x058: event_bitmask (bytes 32);
        0x110: pas (tail 8);
    }
    /// CREATE_EQ output.
    create_eq_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x08: eq_number [7:0];
    }
    /// DESTROY_EQ input (opcode 0x302).
    destroy_eq_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: eq_number [7:0];
    }
    /// DESTROY_EQ output.
    destroy_eq_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// QUERY_EQ input (opcode 0x303).
    query_eq_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: eq_number [7:0];
    }
    /// QUERY_EQ output.
    query_eq_out (272) {
        0x000: status [31:24];
        0x004: syndrome [31:0];
        0x010: eq_context_entry (struct eqc);
        0x058: event_bitmask (quad);
        0x110: pas (tail 8);
    }
    /// CONFIG_INT_MODERATION input (opcode 0x804).
    config_int_moderation_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: min_delay [27:16], int_vector [15:0];
    }
    /// CONFIG_INT_MODERATION output.
    config_int_moderation_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x08: min_delay [27:16], int_vector [15:0];
    }
}

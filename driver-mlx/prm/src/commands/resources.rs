//! UAR, PD, transport domain, XRCD and counter-set numbers: inputs and outputs of the commands
//! (PRM, "Command Reference").

crate::layout! {
    /// ALLOC_UAR input (opcode 0x802).
    alloc_uar_in (16) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
    }
    /// ALLOC_UAR output.
    alloc_uar_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x08: uar [23:0];
    }
    /// DEALLOC_UAR input (opcode 0x803).
    dealloc_uar_in (16) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: uar [23:0];
    }
    /// DEALLOC_UAR output.
    dealloc_uar_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// ALLOC_PD input (opcode 0x800).
    alloc_pd_in (16) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
    }
    /// ALLOC_PD output.
    alloc_pd_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x08: pd [23:0];
    }
    /// DEALLOC_PD input (opcode 0x801).
    dealloc_pd_in (16) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: pd [23:0];
    }
    /// DEALLOC_PD output.
    dealloc_pd_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// ALLOC_TRANSPORT_DOMAIN input (opcode 0x816).
    alloc_transport_domain_in (16) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
    }
    /// ALLOC_TRANSPORT_DOMAIN output.
    alloc_transport_domain_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x08: transport_domain [23:0];
    }
    /// DEALLOC_TRANSPORT_DOMAIN input (opcode 0x817).
    dealloc_transport_domain_in (16) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: transport_domain [23:0];
    }
    /// DEALLOC_TRANSPORT_DOMAIN output.
    dealloc_transport_domain_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// ALLOC_XRCD input (opcode 0x80e).
    alloc_xrcd_in (16) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
    }
    /// ALLOC_XRCD output.
    alloc_xrcd_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x08: xrcd [23:0];
    }
    /// DEALLOC_XRCD input (opcode 0x80f).
    dealloc_xrcd_in (16) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: xrcd [23:0];
    }
    /// DEALLOC_XRCD output.
    dealloc_xrcd_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// ALLOC_Q_COUNTER input (opcode 0x771).
    alloc_q_counter_in (16) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
    }
    /// ALLOC_Q_COUNTER output.
    alloc_q_counter_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x08: counter_set_id [7:0];
    }
    /// DEALLOC_Q_COUNTER input (opcode 0x772).
    dealloc_q_counter_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: counter_set_id [7:0];
    }
    /// DEALLOC_Q_COUNTER output.
    dealloc_q_counter_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
}

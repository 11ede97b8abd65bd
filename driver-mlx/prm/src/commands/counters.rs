//! Counters and congestion: inputs and outputs of the commands (PRM, "Command Reference").

crate::layout! {
    /// QUERY_VPORT_COUNTER input (opcode 0x770).
    query_vport_counter_in (32) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: other_vport [31], port_num [19:16], vport_number [15:0];
        0x18: clear [31];
    }
    /// QUERY_VPORT_COUNTER output.
    query_vport_counter_out (528) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x10: received_errors (struct traffic_counter);
        0x20: transmit_errors (struct traffic_counter);
        0x30: received_ib_unicast (struct traffic_counter);
        0x40: transmitted_ib_unicast (struct traffic_counter);
        0x50: received_ib_multicast (struct traffic_counter);
        0x60: transmitted_ib_multicast (struct traffic_counter);
        0x70: received_eth_broadcast (struct traffic_counter);
        0x80: transmitted_eth_broadcast (struct traffic_counter);
        0x90: received_eth_unicast (struct traffic_counter);
        0xa0: transmitted_eth_unicast (struct traffic_counter);
        0xb0: received_eth_multicast (struct traffic_counter);
        0xc0: transmitted_eth_multicast (struct traffic_counter);
    }
    /// QUERY_VNIC_ENV input (opcode 0x76f).
    query_vnic_env_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: other_vport [31], vport_number [15:0];
    }
    /// QUERY_VNIC_ENV output.
    query_vnic_env_out (528) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x10: vport_env (struct vnic_diagnostic_statistics);
    }
    /// Errors of a function, and events that it was too slow for.
    vnic_diagnostic_statistics (512) {
        0x00: counter_error_queues [31:0];
        0x04: total_error_queues [31:0];
        0x08: send_queue_priority_update_flow [31:0];
        0x10: nic_receive_steering_discard (quad);
        0x18: receive_discard_vport_down (quad);
        0x20: transmit_discard_vport_down (quad);
        0x28: async_eq_overrun [31:0];
        0x2c: comp_eq_overrun [31:0];
        0x34: invalid_command [31:0];
        0x38: quota_exceeded_command [31:0];
        0x3c: internal_rq_out_of_buffer [31:0];
        0x40: cq_overrun [31:0];
        0x44: eth_wqe_too_small [31:0];
    }
    /// QUERY_Q_COUNTER input (opcode 0x773).
    query_q_counter_in (32) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x18: clear [31];
        0x1c: counter_set_id [7:0];
    }
    /// QUERY_Q_COUNTER output.
    query_q_counter_out (256) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x10: rx_write_requests [31:0];
        0x18: rx_read_requests [31:0];
        0x20: rx_atomic_requests [31:0];
        0x28: rx_dct_connect [31:0];
        0x30: out_of_buffer [31:0];
        0x38: out_of_sequence [31:0];
        0x40: duplicate_request [31:0];
        0x48: rnr_nak_retry_err [31:0];
        0x50: packet_seq_err [31:0];
        0x58: implied_nak_seq_err [31:0];
        0x60: local_ack_timeout_err [31:0];
        0x78: resp_local_length_error [31:0];
        0x7c: req_local_length_error [31:0];
        0x80: resp_local_qp_error [31:0];
        0x84: local_operation_error [31:0];
        0x88: resp_local_protection [31:0];
        0x8c: req_local_protection [31:0];
        0x90: resp_cqe_error [31:0];
        0x94: req_cqe_error [31:0];
        0x98: req_mw_binding [31:0];
        0x9c: req_bad_response [31:0];
        0xa0: req_remote_invalid_request [31:0];
        0xa4: resp_remote_invalid_request [31:0];
        0xa8: req_remote_access_errors [31:0];
        0xac: resp_remote_access_errors [31:0];
        0xb0: req_remote_operation_errors [31:0];
        0xb4: req_transport_retries_exceeded [31:0];
        0xb8: cq_overflow [31:0];
        0xbc: resp_cqe_flush_error [31:0];
        0xc0: req_cqe_flush_error [31:0];
        0xc8: roce_adp_retrans [31:0];
        0xcc: roce_adp_retrans_to [31:0];
        0xd0: roce_slow_restart [31:0];
        0xd4: roce_slow_restart_cnps [31:0];
        0xd8: roce_slow_restart_trans [31:0];
    }
    /// QUERY_CONG_STATUS input (opcode 0x822).
    query_cong_status_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: priority [7:4], cong_protocol [3:0];
    }
    /// QUERY_CONG_STATUS output.
    query_cong_status_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x0c: enable [31], tag_enable [30];
    }
    /// QUERY_CONG_STATISTICS input (opcode 0x826).
    query_cong_statistics_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: clear [31];
    }
    /// QUERY_CONG_STATISTICS output.
    query_cong_statistics_out (272) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x10: rp_cur_flows [31:0];
        0x14: sum_flows [31:0];
        0x18: rp_cnp_ignored_high [31:0];
        0x1c: rp_cnp_ignored_low [31:0];
        0x20: rp_cnp_handled_high [31:0];
        0x24: rp_cnp_handled_low [31:0];
        0x48: time_stamp_high [31:0];
        0x4c: time_stamp_low [31:0];
        0x50: accumulators_period [31:0];
        0x54: np_ecn_marked_roce_packets_high [31:0];
        0x58: np_ecn_marked_roce_packets_low [31:0];
        0x5c: np_cnp_sent_high [31:0];
        0x60: np_cnp_sent_low [31:0];
    }
    /// A pair of traffic counters.
    traffic_counter (16) {
        0x00: packets (quad);
        0x08: octets (quad);
    }
}

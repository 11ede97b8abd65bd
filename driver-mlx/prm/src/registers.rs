//! Access registers (payloads of ACCESS_REG).

crate::layout! {
    /// Port administrative and operational status.
    paos_reg (16) {
        0x00: swid [31:24], local_port [23:16], admin_status [11:8], oper_status [3:0];
        0x04: ase [31], ee [30], e [1:0];
    }
    /// Port MTU, in bytes.
    pmtu_reg (16) {
        0x00: local_port [23:16];
        0x04: max_mtu [31:16];
        0x08: admin_mtu [31:16];
        0x0c: oper_mtu [31:16];
    }
    /// Port type and speed.
    ptys_reg (64) {
        0x00: an_disable_admin [30], an_disable_cap [29], local_port [23:16], proto_mask [2:0];
        0x04: an_status [31:28], data_rate_oper [15:0];
        0x08: ext_eth_proto_capability [31:0];
        0x0c: eth_proto_capability [31:0];
        0x10: ib_link_width_capability [31:16], ib_proto_capability [15:0];
        0x14: ext_eth_proto_admin [31:0];
        0x18: eth_proto_admin [31:0];
        0x1c: ib_link_width_admin [31:16], ib_proto_admin [15:0];
        0x20: ext_eth_proto_oper [31:0];
        0x24: eth_proto_oper [31:0];
        0x28: ib_link_width_oper [31:16], ib_proto_oper [15:0];
        0x2c: connector_type [3:0];
        0x30: eth_proto_lp_advertise [31:0];
    }
    /// Port virtual lane capabilities.
    pvlc_reg (16) {
        0x00: local_port [23:16];
        0x04: vl_hw_cap [3:0];
        0x08: vl_admin [3:0];
        0x0c: vl_operational [3:0];
    }
    /// Module EEPROM access.
    mcia_reg (144) {
        0x00: l [31], module [23:16], status [7:0];
        0x04: i2c_device_address [31:24], page_number [23:16], device_address [15:0];
        0x08: size [15:0];
        0x10: dwords (bytes 128);
    }
    /// Port counters; `grp` says how `counter_set` reads.
    ppcnt_reg (256) {
        0x00: swid [31:24], local_port [23:16], pnat [15:14], grp [5:0];
        0x04: clr [31], prio_tc [2:0];
        0x08: counter_set (bytes 248);
    }
    /// `ppcnt_reg.counter_set` of the InfiniBand group (0x20).
    ib_port_cntrs_grp_data_layout (40) {
        0x00: symbol_error_counter [31:16], link_error_recovery_counter [15:8], link_downed_counter [7:0];
        0x04: port_rcv_errors [31:16], port_rcv_remote_physical_errors [15:0];
        0x08: port_rcv_switch_relay_errors [31:16], port_xmit_discards [15:0];
        0x0c: port_xmit_constraint_errors [31:24], port_rcv_constraint_errors [23:16], link_overrun_errors [7:0];
        0x10: vl_15_dropped [15:0];
        0x24: port_xmit_wait [31:0];
    }
    /// `ppcnt_reg.counter_set` of the 802.3 group (0).
    eth_802_3_cntrs_grp_data_layout (248) {
        0x00: a_frames_transmitted_ok_high [31:0];
        0x04: a_frames_transmitted_ok_low [31:0];
        0x08: a_frames_received_ok_high [31:0];
        0x0c: a_frames_received_ok_low [31:0];
        0x10: a_frame_check_sequence_errors_high [31:0];
        0x14: a_frame_check_sequence_errors_low [31:0];
        0x18: a_alignment_errors_high [31:0];
        0x1c: a_alignment_errors_low [31:0];
        0x20: a_octets_transmitted_ok_high [31:0];
        0x24: a_octets_transmitted_ok_low [31:0];
        0x28: a_octets_received_ok_high [31:0];
        0x2c: a_octets_received_ok_low [31:0];
        0x30: a_multicast_frames_xmitted_ok_high [31:0];
        0x34: a_multicast_frames_xmitted_ok_low [31:0];
        0x38: a_broadcast_frames_xmitted_ok_high [31:0];
        0x3c: a_broadcast_frames_xmitted_ok_low [31:0];
        0x40: a_multicast_frames_received_ok_high [31:0];
        0x44: a_multicast_frames_received_ok_low [31:0];
        0x48: a_broadcast_frames_received_ok_high [31:0];
        0x4c: a_broadcast_frames_received_ok_low [31:0];
        0x50: a_in_range_length_errors_high [31:0];
        0x54: a_in_range_length_errors_low [31:0];
        0x58: a_out_of_range_length_field_high [31:0];
        0x5c: a_out_of_range_length_field_low [31:0];
        0x60: a_frame_too_long_errors_high [31:0];
        0x64: a_frame_too_long_errors_low [31:0];
        0x68: a_symbol_error_during_carrier_high [31:0];
        0x6c: a_symbol_error_during_carrier_low [31:0];
        0x70: a_mac_control_frames_transmitted_high [31:0];
        0x74: a_mac_control_frames_transmitted_low [31:0];
        0x78: a_mac_control_frames_received_high [31:0];
        0x7c: a_mac_control_frames_received_low [31:0];
        0x80: a_unsupported_opcodes_received_high [31:0];
        0x84: a_unsupported_opcodes_received_low [31:0];
        0x88: a_pause_mac_ctrl_frames_received_high [31:0];
        0x8c: a_pause_mac_ctrl_frames_received_low [31:0];
        0x90: a_pause_mac_ctrl_frames_transmitted_high [31:0];
        0x94: a_pause_mac_ctrl_frames_transmitted_low [31:0];
    }
    /// `ppcnt_reg.counter_set` of the RFC 2863 group (1).
    eth_2863_cntrs_grp_data_layout (248) {
        0x00: if_in_octets_high [31:0];
        0x04: if_in_octets_low [31:0];
        0x08: if_in_ucast_pkts_high [31:0];
        0x0c: if_in_ucast_pkts_low [31:0];
        0x10: if_in_discards_high [31:0];
        0x14: if_in_discards_low [31:0];
        0x18: if_in_errors_high [31:0];
        0x1c: if_in_errors_low [31:0];
        0x20: if_in_unknown_protos_high [31:0];
        0x24: if_in_unknown_protos_low [31:0];
        0x28: if_out_octets_high [31:0];
        0x2c: if_out_octets_low [31:0];
        0x30: if_out_ucast_pkts_high [31:0];
        0x34: if_out_ucast_pkts_low [31:0];
        0x38: if_out_discards_high [31:0];
        0x3c: if_out_discards_low [31:0];
        0x40: if_out_errors_high [31:0];
        0x44: if_out_errors_low [31:0];
        0x48: if_in_multicast_pkts_high [31:0];
        0x4c: if_in_multicast_pkts_low [31:0];
        0x50: if_in_broadcast_pkts_high [31:0];
        0x54: if_in_broadcast_pkts_low [31:0];
        0x58: if_out_multicast_pkts_high [31:0];
        0x5c: if_out_multicast_pkts_low [31:0];
        0x60: if_out_broadcast_pkts_high [31:0];
        0x64: if_out_broadcast_pkts_low [31:0];
    }
    /// `ppcnt_reg.counter_set` of the RFC 2819 group (2).
    eth_2819_cntrs_grp_data_layout (248) {
        0x00: ether_stats_drop_events_high [31:0];
        0x04: ether_stats_drop_events_low [31:0];
        0x08: ether_stats_octets_high [31:0];
        0x0c: ether_stats_octets_low [31:0];
        0x10: ether_stats_pkts_high [31:0];
        0x14: ether_stats_pkts_low [31:0];
        0x18: ether_stats_broadcast_pkts_high [31:0];
        0x1c: ether_stats_broadcast_pkts_low [31:0];
        0x20: ether_stats_multicast_pkts_high [31:0];
        0x24: ether_stats_multicast_pkts_low [31:0];
        0x28: ether_stats_crc_align_errors_high [31:0];
        0x2c: ether_stats_crc_align_errors_low [31:0];
        0x30: ether_stats_undersize_pkts_high [31:0];
        0x34: ether_stats_undersize_pkts_low [31:0];
        0x38: ether_stats_oversize_pkts_high [31:0];
        0x3c: ether_stats_oversize_pkts_low [31:0];
        0x40: ether_stats_fragments_high [31:0];
        0x44: ether_stats_fragments_low [31:0];
        0x48: ether_stats_jabbers_high [31:0];
        0x4c: ether_stats_jabbers_low [31:0];
        0x50: ether_stats_collisions_high [31:0];
        0x54: ether_stats_collisions_low [31:0];
        0x58: ether_stats_pkts64octets_high [31:0];
        0x5c: ether_stats_pkts64octets_low [31:0];
        0x60: ether_stats_pkts65to127octets_high [31:0];
        0x64: ether_stats_pkts65to127octets_low [31:0];
        0x68: ether_stats_pkts128to255octets_high [31:0];
        0x6c: ether_stats_pkts128to255octets_low [31:0];
        0x70: ether_stats_pkts256to511octets_high [31:0];
        0x74: ether_stats_pkts256to511octets_low [31:0];
        0x78: ether_stats_pkts512to1023octets_high [31:0];
        0x7c: ether_stats_pkts512to1023octets_low [31:0];
        0x80: ether_stats_pkts1024to1518octets_high [31:0];
        0x84: ether_stats_pkts1024to1518octets_low [31:0];
        0x88: ether_stats_pkts1519to2047octets_high [31:0];
        0x8c: ether_stats_pkts1519to2047octets_low [31:0];
        0x90: ether_stats_pkts2048to4095octets_high [31:0];
        0x94: ether_stats_pkts2048to4095octets_low [31:0];
        0x98: ether_stats_pkts4096to8191octets_high [31:0];
        0x9c: ether_stats_pkts4096to8191octets_low [31:0];
        0xa0: ether_stats_pkts8192to10239octets_high [31:0];
        0xa4: ether_stats_pkts8192to10239octets_low [31:0];
    }
    /// Port flow control.
    pfcc_reg (32) {
        0x00: local_port [23:16], ppan_mask_n [4], minor_stall_mask [3], critical_stall_mask [2];
        0x04: ppan [31:28], prio_mask_tx [23:16], prio_mask_rx [7:0];
        0x08: pptx [31], aptx [30], pptx_mask_n [29], pfctx [23:16];
        0x0c: pprx [31], aprx [30], pprx_mask_n [29], pfcrx [23:16];
        0x10: device_stall_minor_watermark [31:16], device_stall_critical_watermark [15:0];
    }
    /// Real-time clock.
    mrtc_reg (16) {
        0x00: time_synced [31];
        0x08: time_h [31:0];
        0x0c: time_l [31:0];
    }
    /// Firmware reset level.
    mfrl_reg (8) {
        0x04: pci_sync_for_fw_update_start [29], pci_sync_for_fw_update_resp [28:27], rst_type_sel [26:24], reset_state [19:16], reset_type [15:8], reset_level [7:0];
    }
    /// Default time-outs.
    dtor_reg (64) {
        0x04: pcie_toggle_to (struct default_timeout);
        0x14: health_poll_to (struct default_timeout);
        0x18: full_crdump_to (struct default_timeout);
        0x1c: fw_reset_to (struct default_timeout);
        0x20: flush_on_err_to (struct default_timeout);
        0x24: pci_sync_update_to (struct default_timeout);
        0x28: tear_down_to (struct default_timeout);
        0x2c: fsm_reactivate_to (struct default_timeout);
        0x30: reclaim_pages_to (struct default_timeout);
        0x34: reclaim_vfs_pages_to (struct default_timeout);
    }
    /// Port capabilities.
    pcap_reg (20) {
        0x00: local_port [23:16];
        0x04: port_capability_mask (bytes 16);
    }
    /// PCI Express information.
    mpein_reg (48) {
        0x00: depth [29:24], pcie_index [23:16], node [15:8];
        0x04: capability_mask [31:0];
        0x08: link_width_enabled [23:16], link_speed_enabled [15:0];
        0x0c: lane0_physical_position [31:24], link_width_active [23:16], link_speed_active [15:0];
        0x10: num_of_pfs [31:16], num_of_vfs [15:0];
        0x14: bdf0 [31:16];
        0x18: max_read_request_size [31:28], max_payload_size [27:24], pwr_status [18:16], port_type [15:12], lane_reversal [0];
        0x1c: pci_power [11:0];
        0x24: device_status [31:16], port_state [15:8];
        0x28: receiver_detect_result [15:0];
    }
    /// A time-out: multiplier (0 ms, 1 s, 2 minutes, 3 hours) and value; see
    /// [`crate::init_seg::timeout_word`].
    default_timeout (4) {
        0x00: to_multiplier [31:29], to_value [19:0];
    }
    /// HOST_ENDIANNESS: `he` is 0x00 for a little-endian host, 0x80 for a big-endian one.
    host_endianness (16) {
        0x00: he [31:24];
    }
}

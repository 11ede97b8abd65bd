//! Capability structures of QUERY_HCA_CAP and SET_HCA_CAP.

crate::layout! {
    /// General capabilities (capability type 0).
    cmd_hca_cap (256) {
        0x00: shared_object_to_user_object_allowed [15], vhca_resource_manager [0];
        0x04: hca_cap_2 [31], create_lag_when_not_master_up [30], dtor [29], event_on_vhca_state_teardown_request [28], event_on_vhca_state_in_use [27], event_on_vhca_state_active [26], event_on_vhca_state_allocated [25], event_on_vhca_state_invalid [24], vhca_id [15:0];
        0x10: log_max_srq_sz [31:24], log_max_qp_sz [23:16], event_cap [15], isolate_vl_tc_new [12], prio_tag_required [7], log_max_qp [4:0];
        0x14: ece_support [28], reg_c_preserve [22], log_max_srq [20:16], uplink_follow [14], ts_cqe_to_dest_cqn [13], shampo [5];
        0x18: max_sgl_for_optimized_performance [31:24], log_max_cq_sz [23:16], relaxed_ordering_write_umr [15], relaxed_ordering_read_umr [14], virtio_net_device_emualtion_manager [6], virtio_blk_device_emualtion_manager [5], log_max_cq [4:0];
        0x1c: log_max_eq_sz [31:24], relaxed_ordering_write [23], relaxed_ordering_read [22], log_max_mkey [21:16], dump_fill_mkey [7], fast_teardown [4], log_max_eq [3:0];
        0x20: max_indirection [31:24], fixed_buffer_size [23], log_max_mrw_sz [22:16], force_teardown [15], log_max_bsf_list_size [13:8], umr_extended_translation_offset [7], null_mkey [6], log_max_klm_list_size [5:0];
        0x24: log_max_ra_req_dc [21:16], eth_wqe_too_small [13], vnic_env_cq_overrun [6], log_max_ra_res_dc [5:0];
        0x28: release_all_pages [26], must_not_use [25], roce_accl [22], log_max_ra_req_qp [21:16], log_max_ra_res_qp [5:0];
        0x2c: end_pad [31], cc_query_allowed [30], cc_modify_allowed [29], start_pad [28], cache_line_128byte [27], rts2rts_qp_counters_set_id [22], vnic_env_int_rq_oob [19], sbcam_reg [18], qcam_reg [16], gid_table_size [15:0];
        0x30: out_of_seq_cnt [31], vport_counters [30], retransmission_q_counters [29], debug [28], modify_rq_counter_set_id [27], rq_delay_drop [26], max_qp_cnt [25:16], pkey_table_size [15:0];
        0x34: vport_group_manager [31], vhca_group_manager [30], ib_virt [29], eth_virt [28], vnic_env_queue_counters [27], ets [26], nic_flow_table [25], eswitch_manager [24], device_memory [23], mcam_reg [22], pcam_reg [21], local_ca_ack_delay [20:16], port_module_event [15], enhanced_error_q_counters [14], ports_check [13], disable_link_up [11], beacon_led [10], port_type [9:8], num_ports [7:0];
        0x38: pps [30], pps_modify [29], log_max_msg [28:24], max_tc [19:16], temp_warn_event [15], dcbx [14], general_notification_event [13], fpga [10], rol_s [9], rol_g [8], wol_s [6], wol_g [5], wol_a [4], wol_b [3], wol_m [2], wol_u [1], wol_p [0];
        0x3c: stat_rate_support [31:16], pci_sync_for_fw_update_event [14], init2_lag_tx_port_affinity [7], cqe_version [3:0];
        0x40: compact_address_vector [31], striding_rq [30], ipoib_enhanced_offloads [28], ipoib_basic_offloads [27], repeated_block_disabled [25], umr_modify_entity_size_disabled [24], umr_modify_atomic_disabled [23], umr_indirect_mkey_disabled [22], umr_fence [21:20], dc_req_scat_data_cqe [19], drain_sigerr [16], cmdif_checksum [15:14], sigerr_cqe [13], wq_signature [11], sctr_data_cqe [10], sho [8], tph [7], rf [6], dct [5], qos [4], eth_net_offloads [3], roce [2], atomic [1];
        0x44: cq_oi [31], cq_resize [30], cq_moderation [29], cq_eq_remap [25], pg [24], block_lb_mc [23], scqe_break_moderation [21], cq_period_start_from_cqe [20], cd [19], apm [17], vector_calc [16], umr_ptr_rlky [15], imaicl [14], qp_packet_based [13], qkv [9], pkv [8], set_deth_sqpn [7], xrc [3], ud [2], uc [1], rc [0];
        0x48: uar_4k [31], fl_rc_qp_when_roce_disabled [23], regexp_params [22], uar_sz [21:16], port_selection_cap [15], umem_uid_0 [13], log_pg_sz [7:0];
        0x4c: bf [31], driver_version [30], pad_tx_eth_packet [29], mkey_by_name [25], log_bf_reg_size [20:16], lag_dct [9:8], lag_tx_port_affinity [7], lag_native_fdb_selection [6], lag_master [4], num_lag_ports [3:0];
        0x50: max_wqe_sz_sq [15:0];
        0x54: max_wqe_sz_rq [15:0];
        0x58: max_flow_counter_31_16 [31:16], max_wqe_sz_sq_dc [15:0];
        0x5c: max_qp_mcg [24:0];
        0x60: flow_counter_bulk_alloc [15:8], log_max_mcg [7:0];
        0x64: log_max_transport_domain [28:24], log_max_pd [20:16], log_max_xrcd [4:0];
        0x68: nic_receive_steering_discard [31], receive_discard_vport_down [30], transmit_discard_vport_down [29], eq_overrun_count [28], invalid_command_count [26], quota_exceeded_count [25], log_max_flow_counter_bulk [23:16], max_flow_counter_15_0 [15:0];
        0x6c: log_max_rq [28:24], log_max_sq [20:16], log_max_tir [12:8], log_max_tis [4:0];
        0x70: basic_cyclic_rcv_wqe [31], log_max_rmp [28:24], log_max_rqt [20:16], log_max_rqt_size [12:8], log_max_tis_per_sq [4:0];
        0x74: ext_stride_num_range [31], roce_rw_supported [30], log_max_current_uc_list_wr_supported [29], log_max_stride_sz_rq [28:24], log_min_stride_sz_rq [20:16], log_max_stride_sz_sq [12:8], log_min_stride_sz_sq [4:0];
        0x78: hairpin [31], log_max_hairpin_queues [28:24], log_max_hairpin_wq_data_sz [20:16], log_max_hairpin_num_packets [12:8], log_max_wq_sz [4:0];
        0x7c: nic_vport_change_event [31], disable_local_lb_uc [30], disable_local_lb_mc [29], log_min_hairpin_wq_data_sz [28:24], vhca_state [21], log_max_vlan_list [20:16], log_max_current_mc_list [12:8], log_max_current_uc_list [4:0];
        0x80: general_obj_types (quad);
        0x88: sq_ts_format [31:30], rq_ts_format [29:28], steering_format_version [27:24], create_qp_start_hint [23:0];
        0x8c: ats [30], log_max_uctx [28:24], ipsec_offload [21], log_max_umem [20:16], max_num_eqs [15:0];
        0x90: tls_tx [30], tls_rx [29], log_max_l2_table [28:24], log_uar_page_sz [15:0];
        0x98: device_frequency_mhz [31:0];
        0x9c: device_frequency_khz [31:0];
        0xa4: num_of_uars_per_page [31:0];
        0xa8: flex_parser_protocols [31:0];
        0xac: max_geneve_tlv_options [31:24], max_geneve_tlv_option_data_len [20:16], adv_virtualization [6];
        0xb0: log_max_dci_stream_channels [20:16], log_max_dci_errored_streams [12:8];
        0xb4: enhanced_cqe_compression [15], log_max_dek [12:8], mini_cqe_resp_stride_index [3], cqe_128_always [2], cqe_compression_128 [1], cqe_compression [0];
        0xb8: cqe_compression_timeout [31:16], cqe_compression_max_num [15:0];
        0xbc: flex_parser_id_gtpu_dw_0 [23:20], tag_matching [15], rndv_offload_rc [14], rndv_offload_dc [13], log_tag_matching_list_sz [12:8], log_max_xrq [4:0];
        0xc0: affiliate_nic_vport_criteria [31:24], native_port_num [23:16], num_vhca_ports [15:8], flex_parser_id_gtpu_teid [7:4], sw_owner_id [1];
        0xc4: max_num_of_monitor_counters [31:16], num_ppcnt_monitor_counters [15:0];
        0xc8: max_num_sf [31:16], num_q_monitor_counters [15:0];
        0xd0: sf [31], sf_set_partition [30], log_max_sf [28:24], apu [23], migration [18], log_min_sf_size [15:8], max_num_sf_partitions [7:0];
        0xd4: uctx_cap [31:0];
        0xd8: flex_parser_id_geneve_tlv_option_0 [27:24], flex_parser_id_icmp_dw1 [23:20], flex_parser_id_icmp_dw0 [19:16], flex_parser_id_icmpv6_dw1 [15:12], flex_parser_id_icmpv6_dw0 [11:8], flex_parser_id_outer_first_mpls_over_gre [7:4], flex_parser_id_outer_first_mpls_over_udp_label [3:0];
        0xdc: max_num_match_definer [31:16], sf_base_id [15:0];
        0xe0: flex_parser_id_gtpu_dw_2 [31:28], flex_parser_id_gtpu_first_ext_dw_0 [27:24], num_total_dynamic_vf_msix [23:0];
        0xe4: dynamic_msix_table_size [11:0];
        0xe8: min_dynamic_vf_msix_table_size [19:16], max_dynamic_vf_msix_table_size [11:0];
        0xf0: vhca_tunnel_commands (quad);
        0xf8: match_definer_format_supported (quad);
    }
    /// RoCE capabilities (capability type 4).
    roce_cap (256) {
        0x00: roce_apm [31], sw_r_roce_src_udp_port [27], fl_rc_qp_when_roce_disabled [26], fl_rc_qp_when_roce_enabled [25], qp_ts_format [1:0];
        0x10: l3_type [19:16], roce_version [7:0];
        0x14: r_roce_dest_udp_port [15:0];
        0x18: r_roce_max_src_udp_port [31:16], r_roce_min_src_udp_port [15:0];
        0x1c: roce_address_table_size [15:0];
    }
    /// Atomic capabilities (capability type 3).
    atomic_caps (256) {
        0x08: atomic_req_8B_endianness_mode [31:30], supported_atomic_req_8B_endianness_mode_1 [25];
        0x10: atomic_operations [15:0];
        0x14: atomic_size_qp [15:0];
        0x18: atomic_size_dc [15:0];
    }
    /// General capabilities, second part (capability type 0x20).
    cmd_hca_cap_2 (256) {
        0x14: max_reformat_insert_size [31:24], max_reformat_insert_offset [23:16], max_reformat_remove_size [15:8], max_reformat_remove_offset [7:0];
        0x34: log_min_mkey_entity_size [20:16];
        0x44: sw_vhca_id_valid [30], sw_vhca_id [29:16];
        0x48: ts_cqe_metadata_size2wqe_counter [20:16];
    }
    /// Device memory (capability type 0xf).
    device_mem_cap (256) {
        0x00: memic [31];
        0x04: log_min_memic_alloc_size [20:16], log_max_memic_addr_alignment [7:0];
        0x08: memic_bar_start_addr (quad);
        0x10: memic_bar_size [31:0];
        0x14: max_memic_size [31:0];
        0x18: steering_sw_icm_start_address (quad);
        0x20: log_header_modify_sw_icm_size [23:16], log_sw_icm_alloc_granularity [13:8], log_steering_sw_icm_size [7:0];
        0x24: log_header_modify_pattern_sw_icm_size [7:0];
        0x28: header_modify_sw_icm_start_address (quad);
        0x38: header_modify_pattern_sw_icm_start_address (quad);
        0x40: memic_operations [31:0];
    }
    /// On-demand paging capabilities (capability type 2).
    odp_cap (256) {
        0x08: sig [31];
        0x10: rc_odp_caps (struct odp_per_transport_service_cap);
        0x14: uc_odp_caps (struct odp_per_transport_service_cap);
        0x18: ud_odp_caps (struct odp_per_transport_service_cap);
        0x1c: xrc_odp_caps (struct odp_per_transport_service_cap);
        0x20: dc_odp_caps (struct odp_per_transport_service_cap);
    }
    /// On-demand paging of one transport service.
    odp_per_transport_service_cap (4) {
        0x00: send [31], receive [30], write [29], read [28], atomic [27], srq_receive [26];
    }
    /// Ethernet offloads (capability type 1).
    per_protocol_networking_offload_caps (256) {
        0x000: csum_cap [31], vlan_cap [30], lro_cap [29], lro_psh_flag [28], lro_time_stamp [27], wqe_vlan_insert [24], self_lb_en_modifiable [23], max_lso_cap [20:16], multi_pkt_send_wqe [15:14], wqe_inline_mode [13:12], rss_ind_tbl_cap [11:8], reg_umr_sq [7], scatter_fcs [6], enhanced_multi_pkt_send_wqe [5], tunnel_lso_const_out_ip_id [4], tunnel_lro_gre [3], tunnel_lro_vxlan [2], tunnel_stateless_gre [1], tunnel_stateless_vxlan [0];
        0x004: swp [31], swp_csum [30], swp_lso [29], cqe_checksum_full [28], tunnel_stateless_geneve_tx [27], tunnel_stateless_mpls_over_udp [26], tunnel_stateless_mpls_over_gre [25], tunnel_stateless_vxlan_gpe [24], tunnel_stateless_ipv4_over_vxlan [23], tunnel_stateless_ip_over_ip [22], insert_trailer [21], tunnel_stateless_ip_over_ip_rx [19], tunnel_stateless_ip_over_ip_tx [18], max_vxlan_udp_ports [15:8], max_geneve_opt_len [1], tunnel_stateless_geneve_rx [0];
        0x008: lro_min_mss_size [15:0];
        0x030: lro_timer_supported_periods (bytes 16);
    }
    /// Match fields that a kind of flow table has.
    flow_table_fields_supported (16) {
        0x00: outer_dmac [31], outer_smac [30], outer_ether_type [29], outer_ip_version [28], outer_first_prio [27], outer_first_cfi [26], outer_first_vid [25], outer_ipv4_ttl [24], outer_second_prio [23], outer_second_cfi [22], outer_second_vid [21], outer_sip [19], outer_dip [18], outer_frag [17], outer_ip_protocol [16], outer_ip_ecn [15], outer_ip_dscp [14], outer_udp_sport [13], outer_udp_dport [12], outer_tcp_sport [11], outer_tcp_dport [10], outer_tcp_flags [9], outer_gre_protocol [8], outer_gre_key [7], outer_vxlan_vni [6], outer_geneve_vni [5], outer_geneve_oam [4], outer_geneve_protocol_type [3], outer_geneve_opt_len [2], source_vhca_port [1], source_eswitch_port [0];
        0x04: inner_dmac [31], inner_smac [30], inner_ether_type [29], inner_ip_version [28], inner_first_prio [27], inner_first_cfi [26], inner_first_vid [25], inner_second_prio [23], inner_second_cfi [22], inner_second_vid [21], inner_sip [19], inner_dip [18], inner_frag [17], inner_ip_protocol [16], inner_ip_ecn [15], inner_ip_dscp [14], inner_udp_sport [13], inner_udp_dport [12], inner_tcp_sport [11], inner_tcp_dport [10], inner_tcp_flags [9];
        0x08: geneve_tlv_option_0_data [31], geneve_tlv_option_0_exist [30], outer_first_mpls_over_udp [26:23], outer_first_mpls_over_gre [22:19], inner_first_mpls [18:15], outer_first_mpls [14:11], outer_esp_spi [8], bth_dst_qp [5];
        0x0c: metadata_reg_c_7 [7], metadata_reg_c_6 [6], metadata_reg_c_5 [5], metadata_reg_c_4 [4], metadata_reg_c_3 [3], metadata_reg_c_2 [2], metadata_reg_c_1 [1], metadata_reg_c_0 [0];
    }
    /// Properties of a kind of flow table.
    flow_table_prop_layout (64) {
        0x00: ft_support [31], flow_counter [29], flow_modify_en [28], modify_root [27], identified_miss_table_mode [26], flow_table_modify [25], reformat [24], decap [23], pop_vlan [21], push_vlan [20], pop_vlan_2 [18], push_vlan_2 [17], reformat_and_vlan_action [16], sw_owner [14], reformat_l3_tunnel_to_l2 [13], reformat_l2_to_l3_tunnel [12], reformat_and_modify_action [11], ignore_flow_level [10], table_miss_action_domain [8], termination_table [7], reformat_and_fwd_to_table [6], ipsec_encrypt [3], ipsec_decrypt [2], sw_owner_v2 [1];
        0x04: termination_table_raw_traffic [31], log_max_ft_size [29:24], log_max_modify_header_context [23:16], max_modify_header_actions [15:8], max_ft_level [7:0];
        0x08: execute_aso [25];
        0x0c: reformat_insert [29], reformat_remove [28], macsec_encrypt [27], macsec_decrypt [26], reformat_add_macsec [23], reformat_remove_macsec [22], log_max_ft_num [7:0];
        0x10: log_max_flow_counter [15:8], log_max_destination [7:0];
        0x14: log_max_flow [7:0];
        0x20: ft_field_support (struct flow_table_fields_supported);
        0x30: ft_field_bitmask_support (struct flow_table_fields_supported);
    }
    /// More match fields that a kind of flow table has.
    flow_table_fields_supported_2 (16) {
        0x00: bth_opcode [17];
    }
    /// Flow tables of the NIC (capability type 7).
    flow_table_nic_cap (4096) {
        0x000: nic_rx_multi_path_tirs [31], nic_rx_multi_path_tirs_fts [30], allow_sniffer_and_nic_rx_shared_tir [29], sw_owner_reformat_supported [24];
        0x004: encap_general_header [31], log_max_packet_reformat_context [20:16], max_encap_header_size [9:0];
        0x040: flow_table_properties_nic_receive (struct flow_table_prop_layout);
        0x080: flow_table_properties_nic_receive_rdma (struct flow_table_prop_layout);
        0x0c0: flow_table_properties_nic_receive_sniffer (struct flow_table_prop_layout);
        0x100: flow_table_properties_nic_transmit (struct flow_table_prop_layout);
        0x140: flow_table_properties_nic_transmit_rdma (struct flow_table_prop_layout);
        0x180: flow_table_properties_nic_transmit_sniffer (struct flow_table_prop_layout);
        0x2a0: ft_field_support_2_nic_receive_rdma (struct flow_table_fields_supported_2);
        0x300: ft_field_support_2_nic_transmit_rdma (struct flow_table_fields_supported_2);
        0x400: sw_steering_nic_rx_action_drop_icm_address (quad);
        0x408: sw_steering_nic_tx_action_drop_icm_address (quad);
        0x410: sw_steering_nic_tx_action_allow_icm_address (quad);
    }
}

//! Object contexts: EQ, CQ, QP, address path, memory key, SRQ, work queue, vport.

crate::layout! {
    /// Event queue context. `page_offset` counts 64 bytes, `log_page_size` is relative to 4 KiB.
    eqc (64) {
        0x00: status [31:28], ec [18], oi [17], st [11:8];
        0x08: page_offset [11:6];
        0x0c: log_eq_size [28:24], uar_page [23:0];
        0x14: intr [11:0];
        0x18: log_page_size [28:24];
        0x28: consumer_counter [23:0];
        0x2c: producer_counter [23:0];
    }
    /// Completion queue context. `page_offset` counts 64 bytes, `log_page_size` is relative to 4
    /// KiB.
    cqc (64) {
        0x00: status [31:28], dbr_umem_valid [25], apu_cq [24], cqe_sz [23:21], cc [20], scqe_break_moderation_en [18], oi [17], cq_period_mode [16:15], cqe_comp_en [14], mini_cqe_res_format [13:12], st [11:8], cqe_compression_layout [1:0];
        0x08: page_offset [11:6];
        0x0c: log_cq_size [28:24], uar_page [23:0];
        0x10: cq_period [27:16], cq_max_count [15:0];
        0x14: c_eqn_or_apu_element [31:0];
        0x18: log_page_size [28:24];
        0x20: last_notified_index [23:0];
        0x24: last_solicit_index [23:0];
        0x28: consumer_counter [23:0];
        0x2c: producer_counter [23:0];
        0x38: dbr_addr (quad);
    }
    /// Queue pair context. `log_rq_stride` is log2 of bytes less 4, `log_sq_size` log2 of basic
    /// blocks, `page_offset` counts 64 bytes, `log_page_size` is relative to 4 KiB.
    qpc (232) {
        0x00: state [31:28], lag_tx_port_affinity [27:24], st [23:16], isolate_vl_tc [13], pm_state [12:11], req_e2e_credit_mode [9:8], offload_type [7:4], end_padding_mode [3:2];
        0x04: wq_signature [31], block_lb_mc [30], atomic_like_write_en [29], latency_sensitive [28], drain_sigerr [26], pd [23:0];
        0x08: mtu [31:29], log_msg_max [28:24], log_rq_size [22:19], log_rq_stride [18:16], no_sq [15], log_sq_size [14:11], ts_format [7:6], rlky [4], ulp_stateless_offload_mode [3:0];
        0x0c: counter_set_id [31:24], uar_page [23:0];
        0x10: user_index [23:0];
        0x14: log_page_size [28:24], remote_qpn [23:0];
        0x18: primary_address_path (struct ads);
        0x44: secondary_address_path (struct ads);
        0x70: log_ack_req_freq [31:28], log_sra_max [23:21], retry_count [18:16], rnr_retry [15:13], fre [11], cur_rnr_retry [10:8], cur_retry_count [7:5];
        0x78: next_send_psn [23:0];
        0x7c: log_num_dci_stream_channels [28:24], cqn_snd [23:0];
        0x80: log_num_dci_errored_streams [28:24], deth_sqpn [23:0];
        0x88: last_acked_psn [23:0];
        0x8c: ssn [23:0];
        0x90: log_rra_max [23:21], atomic_mode [19:16], rre [15], rwe [14], rae [13], page_offset [11:6], cd_slave_receive [2], cd_slave_send [1], cd_master [0];
        0x94: min_rnr_nak [28:24], next_rcv_psn [23:0];
        0x98: xrcd [23:0];
        0x9c: cqn_rcv [23:0];
        0xa0: dbr_addr (quad);
        0xa8: q_key [31:0];
        0xac: rq_type [26:24], srqn_rmpn_xrqn [23:0];
        0xb0: rmsn [23:0];
        0xb4: hw_sq_wqebb_counter [31:16], sw_sq_wqebb_counter [15:0];
        0xb8: hw_rq_counter [31:0];
        0xbc: sw_rq_counter [31:0];
        0xc4: cgs [16], cs_req [15:8], cs_res [7:0];
        0xc8: dc_access_key (quad);
        0xd0: dbr_umem_valid [28];
    }
    /// Address path of a queue pair.
    ads (44) {
        0x00: fl [31], free_ar [30], pkey_index [15:0];
        0x04: grh [23], mlid [22:16], rlid [15:0];
        0x08: ack_timeout [31:27], src_addr_index [23:16], stat_rate [11:8], hop_limit [7:0];
        0x0c: tclass [27:20], flow_label [19:0];
        0x10: rgid_rip (bytes 16);
        0x20: f_dscp [27], f_ecn [26], f_eth_prio [24], ecn [23:22], dscp [21:16], udp_sport [15:0];
        0x24: dei_cfi [31], eth_prio [30:28], sl [27:24], vhca_port_num [23:16], rmac_47_32 [15:0];
        0x28: rmac_31_0 [31:0];
    }
    /// Memory key context. `log_page_size` is absolute (12 is 4 KiB).
    mkc (64) {
        0x00: free [30], access_mode_4_2 [28:26], relaxed_ordering_write [18], small_fence_on_rdma_read_response [16], umr_en [15], a [14], rw [13], rr [12], lw [11], lr [10], access_mode_1_0 [9:8], ma_translation_mode [5:4];
        0x04: qpn [31:8], mkey_7_0 [7:0];
        0x0c: length64 [31], bsf_en [30], sync_umr [29], expected_sigerr_count [26], en_rinval [24], pd [23:0];
        0x10: start_addr (quad);
        0x18: len (quad);
        0x20: bsf_octword_size [31:0];
        0x34: translations_octword_size [31:0];
        0x38: relaxed_ordering_read [6], log_page_size [4:0];
    }
    /// Context of a basic shared receive queue. `log_rq_stride` is log2 of bytes less 4.
    srqc (64) {
        0x00: state [31:28], log_srq_size [27:24];
        0x04: wq_signature [31], cont_srq [30], rlky [28], log_rq_stride [26:24], xrcd [23:0];
        0x08: page_offset [31:26], cqn [23:0];
        0x10: log_page_size [29:24];
        0x18: pd [23:0];
        0x1c: lwm [31:16], wqe_cnt [15:0];
        0x28: dbr_addr (quad);
    }
    /// Context of an XRC shared receive queue. `log_rq_stride` is log2 of bytes less 4.
    xrc_srqc (64) {
        0x00: state [31:28], log_xrc_srq_size [27:24];
        0x04: wq_signature [31], cont_srq [30], rlky [28], basic_cyclic_rcv_wqe [27], log_rq_stride [26:24], xrcd [23:0];
        0x08: page_offset [31:26], dbr_umem_valid [24], cqn [23:0];
        0x10: user_index_equal_xrc_srqn [31], log_page_size [29:24], user_index [23:0];
        0x18: pd [23:0];
        0x1c: lwm [31:16], wqe_cnt [15:0];
        0x28: db_record_addr_h [31:0];
        0x2c: db_record_addr_l [31:2];
    }
    /// Work queue inside an RMP, XRQ, RQ or SQ. `log_wq_stride` is log2 of bytes.
    wq (192) {
        0x00: wq_type [31:28], wq_signature [27], end_padding_mode [26:25], cd_slave [24];
        0x04: hds_skip_first_sge [31], log2_hds_buf_size [30:28], page_offset [20:16], lwm [15:0];
        0x08: pd [23:0];
        0x0c: uar_page [23:0];
        0x10: dbr_addr (quad);
        0x18: hw_counter [31:0];
        0x1c: sw_counter [31:0];
        0x20: log_wq_stride [19:16], log_wq_pg_sz [12:8], log_wq_sz [4:0];
        0x24: dbr_umem_valid [31], wq_umem_valid [30], log_hairpin_num_packets [28:24], log_hairpin_data_sz [20:16], log_wqe_num_of_strides [11:8], two_byte_shift_en [7], log_wqe_stride_size [2:0];
        0x38: headers_mkey [31:0];
        0x3c: shampo_enable [31], log_reservation_size [26:24], log_max_num_of_packets_per_reservation [18:16], log_headers_entry_size [9:8], log_headers_buffer_entry_num [3:0];
        0xc0: pas (tail 8);
    }
    /// Receive memory pool context.
    rmpc (240) {
        0x00: state [23:20];
        0x04: basic_cyclic_rcv_wqe [31];
        0x30: wq (struct wq);
    }
    /// Tag-matching receive queue context.
    xrqc (320) {
        0x00: state [31:28], rlkey [27], topology [11:8], offload [3:0];
        0x04: user_index [23:0];
        0x08: cqn [23:0];
        0x20: tag_matching_topology_context (struct tag_matching_topology_context);
        0x80: wq (struct wq);
    }
    /// Transport interface send: where send queues of a traffic class send.
    tisc (160) {
        0x00: strict_lag_tx_port_affinity [31], tls_en [30], lag_tx_port_affinity [27:24], prio [19:16];
        0x24: transport_domain [23:0];
        0x28: underlay_qpn [23:0];
        0x2c: pd [23:0];
    }
    /// Transport interface receive: which receive queues a frame may go to, and how one is chosen.
    tirc (240) {
        0x04: disp_type [31:28], tls_en [27];
        0x10: lro_timeout_period_usecs [27:12], packet_merge_mask [11:8], lro_max_ip_payload_size [7:0];
        0x1c: inline_rqn [23:0];
        0x20: rx_hash_symmetric [31], tunneled_offload_en [29], indirect_table [23:0];
        0x24: rx_hash_fn [31:28], self_lb_block [25:24], transport_domain [23:0];
        0x28: rx_hash_toeplitz_key (bytes 40);
        0x50: rx_hash_field_selector_outer (struct rx_hash_field_select);
        0x54: rx_hash_field_selector_inner (struct rx_hash_field_select);
    }
    /// Table of receive queues that a TIR chooses from.
    rqtc (240) {
        0x14: list_q_type [26:24], rqt_max_size [15:0];
        0x18: rq_vhca_id_format [31], rqt_actual_size [15:0];
        0xf0: rq_num (tail 4);
    }
    /// Entry of a table of receive queues.
    rq_num (4) {
        0x00: rq_num [23:0];
    }
    /// Send queue of raw Ethernet.
    sqc (240) {
        0x00: rlky [31], cd_master [30], fre [29], flush_in_error_en [28], allow_multi_pkt_send_wqe [27], min_wqe_inline_mode [26:24], state [23:20], reg_umr [19], allow_swp [18], hairpin [17], ts_format [5:4];
        0x04: user_index [23:0];
        0x08: cqn [23:0];
        0x0c: hairpin_peer_rq [23:0];
        0x10: hairpin_peer_vhca [15:0];
        0x18: ts_cqe_to_dest_cqn [23:0];
        0x1c: packet_pacing_rate_limit_index [15:0];
        0x20: tis_lst_sz [31:16], qos_queue_group_id [15:0];
        0x2c: tis_num_0 [23:0];
        0x30: wq (struct wq);
    }
    /// Receive queue of raw Ethernet.
    rqc (240) {
        0x00: rlky [31], delay_drop_en [30], scatter_fcs [29], vsd [28], mem_rq_type [27:24], state [23:20], flush_in_error_en [18], hairpin [17], ts_format [5:4];
        0x04: user_index [23:0];
        0x08: cqn [23:0];
        0x0c: counter_set_id [31:24];
        0x10: rmpn [23:0];
        0x14: hairpin_peer_sq [23:0];
        0x18: hairpin_peer_vhca [15:0];
        0x24: shampo_no_match_alignment_granularity [25:24], shampo_match_criteria_type [17:16], reservation_timeout [15:0];
        0x30: wq (struct wq);
    }
    /// Fields that a TIR hashes.
    rx_hash_field_select (4) {
        0x00: l3_prot_type [31], l4_prot_type [30], selected_fields [29:0];
    }
    /// Virtual port of an InfiniBand function.
    hca_vport_context (512) {
        0x00: field_select [31:0];
        0x20: sm_virt_aware [31], has_smi [30], has_raw [29], grh_required [28], port_physical_state [15:12], vport_state_policy [11:8], port_state [7:4], vport_state [3:0];
        0x28: system_image_guid (quad);
        0x30: port_guid (quad);
        0x38: node_guid (quad);
        0x40: cap_mask1 [31:0];
        0x44: cap_mask1_field_select [31:0];
        0x48: cap_mask2 [31:0];
        0x4c: cap_mask2_field_select [31:0];
        0x60: lid [31:16], init_type_reply [11:8], lmc [7:5], subnet_timeout [4:0];
        0x64: sm_lid [31:16], sm_sl [15:12];
        0x68: qkey_violation_counter [31:16], pkey_violation_counter [15:0];
    }
    /// Virtual port of an Ethernet function.
    nic_vport_context (256) {
        0x000: min_wqe_inline_mode [26:24], disable_mc_local_lb [2], disable_uc_local_lb [1], roce_en [0];
        0x004: arm_change_event [31], event_on_mtu [4], event_on_promisc_change [3], event_on_vlan_change [2], event_on_mc_address_change [1], event_on_uc_address_change [0];
        0x008: vhca_id_type [31], affiliation_criteria [19:16], affiliated_vhca_id [15:0];
        0x024: mtu [15:0];
        0x028: system_image_guid (quad);
        0x030: port_guid (quad);
        0x038: node_guid (quad);
        0x068: qkey_violation_counter [31:16];
        0x0f0: promisc_uc [31], promisc_mc [30], promisc_all [29], allowed_list_type [26:24], allowed_list_size [11:0];
        0x0f4: permanent_address (struct mac_address_layout);
        0x100: current_uc_mac_address (tail 8);
    }
    /// Entry of the RoCE address table.
    roce_addr_layout (32) {
        0x00: source_l3_address (bytes 16);
        0x10: vlan_valid [28], vlan_id [27:16], source_mac_47_32 [15:0];
        0x14: source_mac_31_0 [31:0];
        0x18: roce_l3_type [11:8], roce_version [7:0];
    }
    /// Output of QUERY_ADAPTER; `vsd_contd_psid` is the PSID text.
    query_adapter_param_block (256) {
        0x18: ieee_vendor_id [23:0];
        0x1c: vsd_vendor_id [15:0];
        0x20: vsd (bytes 208);
        0xf0: vsd_contd_psid (bytes 16);
    }
    /// Context of a dynamically connected target.
    dctc (64) {
        0x00: state [27:24];
        0x04: user_index [23:0];
        0x08: cqn [23:0];
        0x0c: counter_set_id [31:24], atomic_mode [23:20], rre [19], rwe [18], rae [17], atomic_like_write_en [16], latency_sensitive [15], rlky [14], free_ar [13];
        0x10: cs_res [23:16], min_rnr_nak [12:8];
        0x14: srqn_xrqn [23:0];
        0x18: pd [23:0];
        0x1c: tclass [31:24], flow_label [19:0];
        0x20: dc_access_key (quad);
        0x28: mtu [26:24], port [23:16], pkey_index [15:0];
        0x2c: my_addr_index [23:16], hop_limit [7:0];
        0x30: dc_access_key_violation_count [31:0];
        0x34: dei_cfi [11], eth_prio [10:8], ecn [7:6], dscp [5:0];
        0x3c: ece [31:0];
    }
    /// MAC address.
    mac_address_layout (8) {
        0x00: mac_addr_47_32 [15:0];
        0x04: mac_addr_31_0 [31:0];
    }
    /// Tag matching context of an XRQ.
    tag_matching_topology_context (16) {
        0x00: log_matching_list_sz [31:28], append_next_index [15:0];
        0x04: sw_phase_cnt [31:16], hw_phase_cnt [15:0];
    }
    /// MTT: one page of a memory key, `ptag` being the upper bits of its device address.
    mtt (8) {
        0x00: ptag_63_32 [31:0];
        0x04: ptag_31_8 [31:8], wr_en [1], rd_en [0];
    }
}

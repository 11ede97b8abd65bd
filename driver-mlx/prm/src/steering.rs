//! Flow tables and their entries (PRM, "Flow Steering").

crate::layout! {
    /// Flow table. `log_size` is log2 of entries.
    flow_table_context (40) {
        0x00: reformat_en [31], decap_en [30], sw_owner [29], termination_table [28], table_miss_action [27:24], level [23:16], log_size [7:0];
        0x04: table_miss_id [23:0];
        0x08: lag_master_next_table_id [23:0];
        0x18: sw_owner_icm_root_1 (quad);
        0x20: sw_owner_icm_root_0 (quad);
    }
    /// VLAN tag.
    vlan (4) {
        0x00: ethtype [31:16], prio [15:13], cfi [12], vid [11:0];
    }
    /// IPv6 address.
    ipv6_layout (16) {
        0x00: ipv6 (bytes 16);
    }
    /// IPv4 address.
    ipv4_layout (16) {
        0x0c: ipv4 [31:0];
    }
    /// IP address of either version.
    ipv6_layout_ipv4_layout_auto (16) {
        0x00: ipv6_layout (variant ipv6_layout), ipv4_layout (variant ipv4_layout);
    }
    /// Match fields of a frame, from its Ethernet header to TCP or UDP.
    fte_match_set_lyr_2_4 (64) {
        0x00: smac_47_16 [31:0];
        0x04: smac_15_0 [31:16], ethertype [15:0];
        0x08: dmac_47_16 [31:0];
        0x0c: dmac_15_0 [31:16], first_prio [15:13], first_cfi [12], first_vid [11:0];
        0x10: ip_protocol [31:24], ip_dscp [23:18], ip_ecn [17:16], cvlan_tag [15], svlan_tag [14], frag [13], ip_version [12:9], tcp_flags [8:0];
        0x14: tcp_sport [31:16], tcp_dport [15:0];
        0x18: ipv4_ihl [15:12], ttl_hoplimit [7:0];
        0x1c: udp_sport [31:16], udp_dport [15:0];
        0x20: src_ipv4_src_ipv6 (struct ipv6_layout_ipv4_layout_auto);
        0x30: dst_ipv4_dst_ipv6 (struct ipv6_layout_ipv4_layout_auto);
    }
    /// GRE key.
    gre_key (4) {
        0x00: key [31:0];
    }
    /// Match fields of sources, second VLAN tags, tunnels and BTH.
    fte_match_set_misc (64) {
        0x00: gre_c_present [31], gre_k_present [29], gre_s_present [28], source_vhca_port [27:24], source_sqn [23:0];
        0x04: source_eswitch_owner_vhca_id [31:16], source_port [15:0];
        0x08: outer_second_prio [31:29], outer_second_cfi [28], outer_second_vid [27:16], inner_second_prio [15:13], inner_second_cfi [12], inner_second_vid [11:0];
        0x0c: outer_second_cvlan_tag [31], inner_second_cvlan_tag [30], outer_second_svlan_tag [29], inner_second_svlan_tag [28], gre_protocol [15:0];
        0x10: gre_key (struct gre_key);
        0x14: vxlan_vni [31:8], bth_opcode [7:0];
        0x18: geneve_vni [31:8], geneve_tlv_option_0_exist [1], geneve_oam [0];
        0x1c: outer_ipv6_flow_label [19:0];
        0x20: inner_ipv6_flow_label [19:0];
        0x24: geneve_opt_len [21:16], geneve_protocol_type [15:0];
        0x28: bth_dst_qp [23:0];
        0x30: outer_esp_spi [31:0];
    }
    /// MPLS label.
    fte_match_mpls (4) {
        0x00: mpls_label [31:12], mpls_exp [11:9], mpls_s_bos [8], mpls_ttl [7:0];
    }
    /// Match fields of MPLS and metadata registers.
    fte_match_set_misc2 (64) {
        0x00: outer_first_mpls (struct fte_match_mpls);
        0x04: inner_first_mpls (struct fte_match_mpls);
        0x08: outer_first_mpls_over_gre (struct fte_match_mpls);
        0x0c: outer_first_mpls_over_udp (struct fte_match_mpls);
        0x10: metadata_reg_c_7 [31:0];
        0x14: metadata_reg_c_6 [31:0];
        0x18: metadata_reg_c_5 [31:0];
        0x1c: metadata_reg_c_4 [31:0];
        0x20: metadata_reg_c_3 [31:0];
        0x24: metadata_reg_c_2 [31:0];
        0x28: metadata_reg_c_1 [31:0];
        0x2c: metadata_reg_c_0 [31:0];
        0x30: metadata_reg_a [31:0];
        0x34: macsec_syndrome [23:16];
    }
    /// Match fields of TCP sequence numbers, ICMP, VXLAN-GPE and GTP.
    fte_match_set_misc3 (64) {
        0x00: inner_tcp_seq_num [31:0];
        0x04: outer_tcp_seq_num [31:0];
        0x08: inner_tcp_ack_num [31:0];
        0x0c: outer_tcp_ack_num [31:0];
        0x10: outer_vxlan_gpe_vni [23:0];
        0x14: outer_vxlan_gpe_next_protocol [31:24], outer_vxlan_gpe_flags [23:16];
        0x18: icmp_header_data [31:0];
        0x1c: icmpv6_header_data [31:0];
        0x20: icmp_type [31:24], icmp_code [23:16], icmpv6_type [15:8], icmpv6_code [7:0];
        0x24: geneve_tlv_option_0_data [31:0];
        0x28: gtpu_teid [31:0];
        0x2c: gtpu_msg_type [31:24], gtpu_msg_flags [23:16];
        0x30: gtpu_dw_2 [31:0];
        0x34: gtpu_first_ext_dw_0 [31:0];
        0x38: gtpu_dw_0 [31:0];
    }
    /// Match fields of programmable parsers.
    fte_match_set_misc4 (64) {
        0x00: prog_sample_field_value_0 [31:0];
        0x04: prog_sample_field_id_0 [31:0];
        0x08: prog_sample_field_value_1 [31:0];
        0x0c: prog_sample_field_id_1 [31:0];
        0x10: prog_sample_field_value_2 [31:0];
        0x14: prog_sample_field_id_2 [31:0];
        0x18: prog_sample_field_value_3 [31:0];
        0x1c: prog_sample_field_id_3 [31:0];
    }
    /// Match fields of MACsec and tunnel headers.
    fte_match_set_misc5 (64) {
        0x00: macsec_tag_0 [31:0];
        0x04: macsec_tag_1 [31:0];
        0x08: macsec_tag_2 [31:0];
        0x0c: macsec_tag_3 [31:0];
        0x10: tunnel_header_0 [31:0];
        0x14: tunnel_header_1 [31:0];
        0x18: tunnel_header_2 [31:0];
        0x1c: tunnel_header_3 [31:0];
    }
    /// Match fields of a flow group or a flow table entry.
    fte_match_param (512) {
        0x000: outer_headers (struct fte_match_set_lyr_2_4);
        0x040: misc_parameters (struct fte_match_set_misc);
        0x080: inner_headers (struct fte_match_set_lyr_2_4);
        0x0c0: misc_parameters_2 (struct fte_match_set_misc2);
        0x100: misc_parameters_3 (struct fte_match_set_misc3);
        0x140: misc_parameters_4 (struct fte_match_set_misc4);
        0x180: misc_parameters_5 (struct fte_match_set_misc5);
    }
    /// Flow table entry; destinations, then counters follow.
    flow_context (768) {
        0x000: push_vlan (struct vlan);
        0x004: group_id [31:0];
        0x008: flow_tag [23:0];
        0x00c: action [15:0];
        0x010: extended_destination [31], flow_source [29:28], encrypt_decrypt_type [27:24], destination_list_size [23:0];
        0x014: flow_counter_list_size [23:0];
        0x018: packet_reformat_id [31:0];
        0x01c: modify_header_id [31:0];
        0x020: push_vlan_2 (struct vlan);
        0x024: encrypt_decrypt_obj_id [31:0];
        0x040: match_value (struct fte_match_param);
        0x240: execute_aso (bytes 32);
        0x300: destination (tail 16);
    }
    /// Destination of a flow table entry.
    dest_format_struct (8) {
        0x00: destination_type [31:24], destination_id [23:0];
        0x04: destination_eswitch_owner_vhca_id_valid [31], packet_reformat [30], destination_eswitch_owner_vhca_id [15:0];
    }
    /// Destination with a packet reformat.
    extended_dest_format (16) {
        0x00: destination_entry (struct dest_format_struct);
        0x08: packet_reformat_id [31:0];
    }
    /// Counter of a flow table entry.
    flow_counter_list (8) {
        0x00: flow_counter_id [31:0];
    }
    /// Destination or counter of a flow table entry.
    dest_format_struct_flow_counter_list_auto (16) {
        0x00: extended_dest_format (variant extended_dest_format), flow_counter_list (variant flow_counter_list);
    }
}

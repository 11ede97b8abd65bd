//! Access registers by which tools identify and monitor a card, and general objects. `mlx5_ifc.h`
//! of Linux 6.1 lacks them, or has them under several names. Named as the PRM names them.

use crate::value::RegisterId;

impl RegisterId {
    /// `SLTP`, lanes.
    pub const SLTP: Self = Self(0x5027);
    /// `MTCAP`, how many temperatures there are.
    pub const MTCAP: Self = Self(0x9009);
    /// `MTMP`, a temperature.
    pub const MTMP: Self = Self(0x900a);
    /// `MGIR`, which card and firmware it is.
    pub const MGIR: Self = Self(0x9020);
    /// `MQIS`, texts about the card.
    pub const MQIS: Self = Self(0x9064);
}

crate::layout! {
    /// Supported registers and features of the port (PCAM) and of management (MCAM): a bit each,
    /// the highest first.
    capability_reg (80) {
        0x00: feature_group [23:16], access_reg_group [7:0];
        0x08: access_reg_cap_mask (bytes 16);
        0x28: feature_cap_mask (bytes 16);
    }
    /// Management: general information.
    mgir_reg (160) {
        0x00: device_hw_revision [31:16], device_id [15:0];
        0x04: num_ports [27:16], technology [15:11], pvs [4:0];
        0x08: hw_dev_id [15:0];
        0x10: manufacturing_base_mac_47_32 [15:0];
        0x14: manufacturing_base_mac_31_0 [31:0];
        0x1c: uptime [31:0];
        0x20: secured [24], major [23:16], minor [15:8], sub_minor [7:0];
        0x24: build_id [31:0];
        0x28: month [31:24], day [23:16], year [15:0];
        0x2c: hour [15:0];
        0x30: psid (bytes 16);
        0x44: extended_major [31:0];
        0x48: extended_minor [31:0];
        0x4c: extended_sub_minor [31:0];
    }
    /// Management: state of a firmware component.
    mcqs_reg (16) {
        0x00: last_index_flag [31], device_index [27:16], component_index [15:0];
        0x04: identifier [15:0];
        0x08: progress [15:9], component_status [8:4], component_update_state [3:0];
        0x0c: device_type [7:0];
    }
    /// Management: information about a firmware component; `info_type` selects the format of
    /// `data`.
    mcqi_reg (148) {
        0x00: read_pending_component [31], device_index [27:16], component_index [15:0];
        0x04: device_type [7:0];
        0x08: info_type [4:0];
        0x0c: info_size [31:0];
        0x10: offset [31:0];
        0x14: data_size [15:0];
        0x18: data (bytes 124);
    }
    /// `mcqi_reg.data`, capabilities (0).
    mcqi_cap (20) {
        0x00: supported_info_bitmask [31:0];
        0x04: component_size [31:0];
        0x08: max_component_size [31:0];
        0x0c: log_mcda_word_size [31:28], mcda_max_write_size [15:0];
        0x10: rd_en [31], signed_updates_only [30], match_psid [28];
    }
    /// `mcqi_reg.data`, version (1).
    mcqi_version (124) {
        0x00: build_time_valid [29], user_defined_time_valid [28], version_string_length [7:0];
        0x04: version [31:0];
        0x20: version_string (bytes 92);
    }
    /// `mcqi_reg.data`, how the component becomes active (5).
    mcqi_activation_method (124) {
        0x00: self_activation [6], pending_server_reboot [3], pending_fw_reset [2], auto_activate [1], all_hosts_sync [0];
    }
    /// Management: how a component is changed.
    mcc_reg (32) {
        0x00: time_elapsed_since_last_cmd [27:16], instruction [7:0];
        0x04: component_index [15:0];
        0x08: handle_owner_type [31:28], handle_owner_host_id [27:24], update_handle [23:0];
        0x0c: control_progress [22:16], error_code [15:8], control_state [3:0];
        0x10: component_size [31:0];
    }
    /// Management: temperature sensors.
    mtcap_reg (16) {
        0x00: sensor_count [6:0];
        0x04: internal_sensor_count [6:0];
        0x08: sensor_map (quad);
    }
    /// Management: a temperature, in units of 0.125 degrees Celsius.
    mtmp_reg (32) {
        0x00: sensor_index [11:0];
        0x04: temperature [15:0];
        0x08: mte [31], mtr [30], max_temperature [15:0];
        0x0c: tee [31:30], temperature_threshold_hi [15:0];
        0x10: temperature_threshold_lo [15:0];
        0x18: sensor_name (bytes 8);
    }
    /// Port module and lanes; each lane is a dword: receive lane, transmit lane, module.
    pmlp_reg (64) {
        0x00: rxtx [31], local_port [23:16], width [7:0];
        0x04: lane_module_mapping (bytes 32);
    }
    /// Port diagnostics: `page_select` says how `page_data` reads.
    pddr_reg (256) {
        0x00: local_port [23:16], pnat [15:14];
        0x04: page_select [7:0];
        0x08: page_data (bytes 248);
    }
    /// `pddr_reg.page_data`, operation (0), of an InfiniBand port.
    pddr_operation_info_page (248) {
        0x00: proto_active [23:20], neg_mode_active [19:16];
        0x04: phy_mngr_fsm_state [31:24], ib_phy_fsm_state [15:8];
        0x08: phy_manager_link_width_enabled [31:16], phy_manager_link_proto_enabled [15:0];
        0x0c: core_to_phy_link_width_enabled [31:16], core_to_phy_link_proto_enabled [15:0];
        0x10: cable_link_width_cap [31:16], cable_link_speed_cap [15:0];
        0x14: link_width_active [31:16], link_speed_active [15:0];
        0x18: loopback_mode [11:0];
        0x1c: fec_mode_active [31:16], fec_mode_request [15:0];
    }
    /// `pddr_reg.page_data`, troubleshooting (1).
    pddr_troubleshooting_page (248) {
        0x00: group_opcode [15:0];
        0x04: monitor_opcode [15:0];
        0x0c: status_message (bytes 236);
    }
    /// Management: data of a component that is being changed.
    mcda_reg (144) {
        0x00: update_handle [23:0];
        0x04: offset [31:0];
        0x08: size [15:0];
        0x10: data (bytes 128);
    }
    /// Management: texts about the card; `info_type` says which.
    mqis_reg (24) {
        0x00: info_type [7:0];
        0x04: info_length [15:0];
        0x08: read_offset [31:16], read_length [15:0];
        0x10: info_string (bytes 8);
    }
    /// SerDes lane transmit parameters; only the head is defined here.
    sltp_reg (76) {
        0x00: status [31:28], version [27:24], local_port [23:16], lane [11:8];
    }
    /// Port phy link mode: forward error correction.
    pplm_reg (128) {
        0x00: local_port [23:16];
        0x08: fec_mode_active [23:0];
    }
    /// CREATE_GENERAL_OBJECT input (opcode 0xa00): the kind stands where others have `op_mod`; the
    /// object follows.
    create_general_object_in (16) {
        0x00: opcode [31:16], uid [15:0];
        0x04: vhca_tunnel_id [31:16], obj_type [15:0];
        0x08: obj_id [31:0];
        0x0c: log_obj_range [28:24];
        0x10: object (tail 4);
    }
    /// CREATE_GENERAL_OBJECT output.
    create_general_object_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x08: obj_id [31:0];
    }
    /// DESTROY_GENERAL_OBJECT input (opcode 0xa03).
    destroy_general_object_in (16) {
        0x00: opcode [31:16], uid [15:0];
        0x04: vhca_tunnel_id [31:16], obj_type [15:0];
        0x08: obj_id [31:0];
    }
    /// DESTROY_GENERAL_OBJECT output.
    destroy_general_object_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
}

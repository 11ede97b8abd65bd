//! Event queue entries and the forms of their data.

use bitflags::bitflags;

crate::layout! {
    /// Data of a completion event.
    comp_event (28) {
        0x18: cq_number [23:0];
    }
    /// Data of a DCT event.
    dct_events (28) {
        0x18: dct_number [23:0];
    }
    /// Data of an event on a QP or SRQ.
    qp_events (28) {
        0x14: r#type [31:24];
        0x18: qpn_rqn_sqn [23:0];
    }
    /// Data of a page fault on a WQE's own buffer.
    wqe_associated_page_fault_event (28) {
        0x00: bytes_committed [31:0];
        0x04: wqe_index [15:0];
        0x08: len [15:0];
        0x18: rdma [26], write_read [25], requestor [24], qpn [23:0];
    }
    /// Data of a page fault on an RDMA target.
    rdma_page_fault_event (28) {
        0x00: bytes_committed [31:0];
        0x04: r_key [31:0];
        0x08: packet_len [15:0];
        0x0c: rdma_op_len [31:0];
        0x10: rdma_va (quad);
        0x18: rdma [26], write [25], requestor [24], qp_number [23:0];
    }
    /// Data of a CQ error.
    cq_error (28) {
        0x00: cqn [23:0];
        0x08: syndrome [7:0];
    }
    /// Data of a port state change; the sub-type says what changed.
    port_state_change_event (28) {
        0x08: port_num [31:28];
    }
    /// Data of a GPIO event.
    gpio_event (28) {
        0x0c: gpio_event_hi [31:0];
        0x10: gpio_event_lo [31:0];
    }
    /// Data of a doorbell or BlueFlame congestion event.
    db_bf_congestion_event (24) {
        0x00: event_subtype [31:24], congestion_level [15:8];
    }
    /// Data of a stalled virtual lane.
    stall_vl_event (24) {
        0x00: port_num [7], vl [3:0];
    }
    /// Data of a command completion: bit n stands for entry n.
    cmd_inter_comp_event (28) {
        0x00: command_completion_vector [31:0];
    }
    /// Event data as the event type reads it.
    event_auto (28) {
        0x00: comp_event (variant comp_event), dct_events (variant dct_events), qp_events (variant qp_events),
            wqe_associated_page_fault_event (variant wqe_associated_page_fault_event),
            rdma_page_fault_event (variant rdma_page_fault_event), cq_error (variant cq_error),
            port_state_change_event (variant port_state_change_event), gpio_event (variant gpio_event),
            db_bf_congestion_event (variant db_bf_congestion_event), stall_vl_event (variant stall_vl_event),
            cmd_inter_comp_event (variant cmd_inter_comp_event);
    }
    /// Event queue entry.
    eqe (64) {
        0x00: event_type [23:16], event_sub_type [7:0];
        0x20: event_data (struct event_auto);
        0x3c: signature [15:8], owner [0];
    }
    /// Data of a page request. `num_pages` is signed; a negative value requests the return of
    /// pages.
    eqe_page_req (28) {
        0x00: ec_function [31:16], func_id [15:0];
        0x04: num_pages [31:0];
    }
    /// Data of a NIC vport change.
    eqe_vport_change (28) {
        0x00: vport_num [15:0];
    }
    /// Data of a port module event.
    eqe_port_module (7) {
        0x00: module [23:16], module_status [7:0];
        0x04: error_type [15:8];
    }
    /// Data of an XRQ error.
    eqe_xrq_err (28) {
        0x14: r#type [31:24], xrqn [23:0];
    }
    /// Data of a general event with sub-type PCI_SYNC_FOR_FW_UPDATE_EVENT.
    eqe_sync_fw_update (4) {
        0x00: sync_rst_state [3:0];
    }
    /// Data of a vHCA state change.
    eqe_vhca_state (4) {
        0x00: ec_function [31:16], function_id [15:0];
    }
    /// Data of an object change.
    eqe_obj_change (8) {
        0x00: obj_type [15:0];
        0x04: obj_id [31:0];
    }
}

bitflags! {
    /// `eqe_page_req.ec_function`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct PageRequestFlags: u16 {
        /// The function belongs to the embedded CPU.
        const EC_FUNCTION = 1 << 15;
        /// The function is gone: all its pages are free without a command.
        const RELEASE_ALL_PAGES = 1 << 14;
    }
}

/// Byte offset of the event type.
pub const EQE_TYPE: usize = 0x01;
/// Byte offset of the sub-type.
pub const EQE_SUB_TYPE: usize = 0x03;
/// Byte offset of the data, 28 bytes.
pub const EQE_DATA: usize = 0x20;
/// Byte offset of the byte whose lowest bit is the owner.
pub const EQE_OWNER: usize = 0x3f;
/// Owner byte that every entry must hold before the EQ is created.
pub const EQE_INIT_OWNER: u8 = 1;

const _: () = {
    assert!(eqe::event_type.bit_offset as usize == EQE_TYPE * 8);
    assert!(eqe::event_sub_type.bit_offset as usize == EQE_SUB_TYPE * 8);
    assert!(eqe::event_data.offset == EQE_DATA);
    assert!(eqe::owner.bit_offset as usize == EQE_OWNER * 8 + 7);
};

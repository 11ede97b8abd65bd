//! What this program needs of libibverbs (rdma-core, `infiniband/verbs.h`), whose posting and polling are calls through the context.

use std::ffi::{c_char, c_int, c_uint, c_void};

#[repr(C)]
pub struct Context {
    device: *mut c_void,
    before_poll: [*mut c_void; 11],
    pub poll_cq: unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int,
    between: [*mut c_void; 13],
    pub post_send: unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int,
    pub post_recv: unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int,
}

#[repr(C)]
pub struct Cq {
    pub context: *mut Context,
}

#[repr(C)]
pub struct Qp {
    pub context: *mut Context,
    pub qp_context: *mut c_void,
    pd: *mut c_void,
    send_cq: *mut Cq,
    recv_cq: *mut Cq,
    srq: *mut c_void,
    handle: u32,
    pub qp_num: u32,
}

#[repr(C)]
pub struct Mr {
    context: *mut Context,
    pd: *mut c_void,
    addr: *mut c_void,
    length: usize,
    handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

#[repr(C)]
pub struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

#[repr(C)]
pub struct SendWr {
    pub wr_id: u64,
    pub next: *mut SendWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub opcode: c_int,
    pub send_flags: c_uint,
    imm_data: u32,
    /// Remote addresses, keys and what other operations need.
    rest: [u64; 12],
}

impl SendWr {
    /// IBV_WR_SEND, signalled, of one piece of memory.
    pub fn send(sge: &mut Sge) -> Self {
        Self {
            wr_id: 1,
            next: std::ptr::null_mut(),
            sg_list: sge,
            num_sge: 1,
            opcode: 2,
            send_flags: 2,
            imm_data: 0,
            rest: [0; 12],
        }
    }
}

#[repr(C)]
pub struct RecvWr {
    pub wr_id: u64,
    pub next: *mut RecvWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
}

/// A completion.
#[repr(C)]
#[derive(Default)]
pub struct Wc {
    pub wr_id: u64,
    pub status: c_int,
    pub opcode: c_int,
    pub vendor_err: u32,
    pub byte_len: u32,
    imm_data: u32,
    qp_num: u32,
    src_qp: u32,
    wc_flags: c_uint,
    pkey_index: u16,
    slid: u16,
    sl: u8,
    dlid_path_bits: u8,
}

#[repr(C)]
#[derive(Default)]
pub struct Capacity {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

#[repr(C)]
pub struct QpInit {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut c_void,
    pub cap: Capacity,
    pub qp_type: c_int,
    pub sq_sig_all: c_int,
}

#[repr(C)]
#[derive(Default)]
pub struct Path {
    pub dgid: [u64; 2],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

#[repr(C)]
#[derive(Default)]
pub struct QpAttr {
    pub qp_state: c_int,
    pub cur_qp_state: c_int,
    pub path_mtu: c_int,
    pub path_mig_state: c_int,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: Capacity,
    pub ah_attr: Path,
    pub alt_ah_attr: Path,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

/// The first members of `struct ibv_port_attr`, and room for the others.
#[repr(C)]
#[derive(Default)]
pub struct PortAttr {
    pub state: c_int,
    pub max_mtu: c_int,
    pub active_mtu: c_int,
    pub gid_tbl_len: c_int,
    pub before_lid: [u32; 4],
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub rest: [u64; 4],
}

#[link(name = "ibverbs")]
unsafe extern "C" {
    pub fn ibv_get_device_list(count: *mut c_int) -> *mut *mut c_void;
    pub fn ibv_open_device(device: *mut c_void) -> *mut Context;
    pub fn ibv_get_device_name(device: *mut c_void) -> *const c_char;
    pub fn ibv_query_port(context: *mut Context, port: u8, attr: *mut PortAttr) -> c_int;
    pub fn ibv_alloc_pd(context: *mut Context) -> *mut c_void;
    pub fn ibv_reg_mr(pd: *mut c_void, addr: *mut c_void, length: usize, access: c_int) -> *mut Mr;
    pub fn ibv_create_cq(
        context: *mut Context,
        entries: c_int,
        cq_context: *mut c_void,
        channel: *mut c_void,
        vector: c_int,
    ) -> *mut Cq;
    pub fn ibv_create_qp(pd: *mut c_void, init: *mut QpInit) -> *mut Qp;
    pub fn ibv_modify_qp(qp: *mut Qp, attr: *mut QpAttr, mask: c_int) -> c_int;
    pub fn ibv_destroy_qp(qp: *mut Qp) -> c_int;
    pub fn ibv_destroy_cq(cq: *mut Cq) -> c_int;
    pub fn ibv_dereg_mr(mr: *mut Mr) -> c_int;
    pub fn ibv_dealloc_pd(pd: *mut c_void) -> c_int;
    pub fn ibv_close_device(context: *mut Context) -> c_int;
}

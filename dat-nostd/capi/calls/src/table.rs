//! All calls that take a handle, with their arguments, in the order of a provider's table.

/// Hands the calls to a macro, in the order in which versions 1.0, 1.1 and 1.2 added them to
/// `struct dat_provider`. The first member there, `ia_open_func`, is the library's own. A call is
/// `checked member: name(argument: type, …)`. Frequent calls are `quick` instead of `checked`, and
/// calls that wait are `waits` (a [`WaitCall`](crate::WaitCall) of [`requests`](crate::requests)).
/// Types are those of [`layout`](crate::layout), `RawHandle`, `LmrTriplet` and `RmrTriplet`.
#[macro_export]
macro_rules! for_each_call {
    ($with:ident) => { $with! {
        checked ia_query_func: dat_ia_query(
            ia_handle: RawHandle, async_evd_handle: *mut RawHandle, ia_attr_mask: u64, attributes: *mut IaAttr,
            provider_attr_mask: u64, provider_attributes: *mut ProviderAttr
        ),
        checked ia_close_func: dat_ia_close(ia_handle: RawHandle, flags: u32),
        checked set_consumer_context_func: dat_set_consumer_context(dat_handle: RawHandle, context: u64),
        checked get_consumer_context_func: dat_get_consumer_context(dat_handle: RawHandle, context: *mut u64),
        checked get_handle_type_func: dat_get_handle_type(dat_handle: RawHandle, handle_type: *mut u32),
        checked cno_create_func: dat_cno_create(ia_handle: RawHandle, agent: ProxyAgent, cno_handle: *mut RawHandle),
        checked cno_modify_agent_func: dat_cno_modify_agent(cno_handle: RawHandle, agent: ProxyAgent),
        checked cno_query_func: dat_cno_query(cno_handle: RawHandle, mask: u32, cno_param: *mut CnoParam),
        checked cno_free_func: dat_cno_free(cno_handle: RawHandle),
        waits cno_wait_func: dat_cno_wait(cno_handle: RawHandle, timeout: u32, evd_handle: *mut RawHandle),
        checked cr_query_func: dat_cr_query(cr_handle: RawHandle, mask: u32, cr_param: *mut CrParam),
        checked cr_accept_func: dat_cr_accept(cr_handle: RawHandle, ep_handle: RawHandle, private_data_size: i32, data: *const u8),
        checked cr_reject_func: dat_cr_reject(cr_handle: RawHandle),
        checked cr_handoff_func: dat_cr_handoff(cr_handle: RawHandle, handoff: u64),
        checked evd_create_func: dat_evd_create(
            ia_handle: RawHandle, evd_min_qlen: i32, cno_handle: RawHandle, evd_flags: u32, evd_handle: *mut RawHandle
        ),
        checked evd_query_func: dat_evd_query(evd_handle: RawHandle, mask: u32, evd_param: *mut EvdParam),
        checked evd_modify_cno_func: dat_evd_modify_cno(evd_handle: RawHandle, cno_handle: RawHandle),
        checked evd_enable_func: dat_evd_enable(evd_handle: RawHandle),
        checked evd_disable_func: dat_evd_disable(evd_handle: RawHandle),
        waits evd_wait_func: dat_evd_wait(evd_handle: RawHandle, timeout: u32, threshold: i32, event: *mut Event, nmore: *mut i32),
        checked evd_resize_func: dat_evd_resize(evd_handle: RawHandle, evd_min_qlen: i32),
        checked evd_post_se_func: dat_evd_post_se(evd_handle: RawHandle, event: *const Event),
        quick evd_dequeue_func: dat_evd_dequeue(evd_handle: RawHandle, event: *mut Event),
        checked evd_free_func: dat_evd_free(evd_handle: RawHandle),
        checked ep_create_func: dat_ep_create(
            ia_handle: RawHandle, pz_handle: RawHandle, recv_evd_handle: RawHandle, request_evd_handle: RawHandle,
            connect_evd_handle: RawHandle, attributes: *const EpAttr, ep_handle: *mut RawHandle
        ),
        checked ep_query_func: dat_ep_query(ep_handle: RawHandle, mask: u64, ep_param: *mut EpParam),
        checked ep_modify_func: dat_ep_modify(ep_handle: RawHandle, mask: u64, ep_param: *const EpParam),
        checked ep_connect_func: dat_ep_connect(
            ep_handle: RawHandle, remote_ia_address: *const u8, remote_conn_qual: u64, timeout: u32, private_data_size: i32,
            data: *const u8, quality_of_service: u32, flags: u32
        ),
        checked ep_dup_connect_func: dat_ep_dup_connect(
            ep_handle: RawHandle, dup_ep_handle: RawHandle, timeout: u32, private_data_size: i32, data: *const u8,
            quality_of_service: u32
        ),
        checked ep_disconnect_func: dat_ep_disconnect(ep_handle: RawHandle, flags: u32),
        quick ep_post_send_func: dat_ep_post_send(
            ep_handle: RawHandle, num_segments: i32, local_iov: *const LmrTriplet, user_cookie: u64, completion_flags: u32
        ),
        quick ep_post_recv_func: dat_ep_post_recv(
            ep_handle: RawHandle, num_segments: i32, local_iov: *const LmrTriplet, user_cookie: u64, completion_flags: u32
        ),
        quick ep_post_rdma_read_func: dat_ep_post_rdma_read(
            ep_handle: RawHandle, num_segments: i32, local_iov: *const LmrTriplet, user_cookie: u64, remote_iov: *const RmrTriplet,
            completion_flags: u32
        ),
        quick ep_post_rdma_write_func: dat_ep_post_rdma_write(
            ep_handle: RawHandle, num_segments: i32, local_iov: *const LmrTriplet, user_cookie: u64, remote_iov: *const RmrTriplet,
            completion_flags: u32
        ),
        checked ep_get_status_func: dat_ep_get_status(
            ep_handle: RawHandle, ep_state: *mut u32, recv_idle: *mut i32, request_idle: *mut i32
        ),
        checked ep_free_func: dat_ep_free(ep_handle: RawHandle),
        checked lmr_create_func: dat_lmr_create(
            ia_handle: RawHandle, mem_type: u32, region: RegionDescription, length: u64, pz_handle: RawHandle, mem_privileges: u32,
            lmr_handle: *mut RawHandle, lmr_context: *mut u32, rmr_context: *mut u32, registered_length: *mut u64,
            registered_address: *mut u64
        ),
        checked lmr_query_func: dat_lmr_query(lmr_handle: RawHandle, mask: u32, lmr_param: *mut LmrParam),
        checked lmr_free_func: dat_lmr_free(lmr_handle: RawHandle),
        checked rmr_create_func: dat_rmr_create(pz_handle: RawHandle, rmr_handle: *mut RawHandle),
        checked rmr_query_func: dat_rmr_query(rmr_handle: RawHandle, mask: u32, rmr_param: *mut RmrParam),
        checked rmr_bind_func: dat_rmr_bind(
            rmr_handle: RawHandle, lmr_triplet: *const LmrTriplet, mem_privileges: u32, ep_handle: RawHandle, user_cookie: u64,
            completion_flags: u32, rmr_context: *mut u32
        ),
        checked rmr_free_func: dat_rmr_free(rmr_handle: RawHandle),
        checked psp_create_func: dat_psp_create(
            ia_handle: RawHandle, conn_qual: u64, evd_handle: RawHandle, flags: u32, psp_handle: *mut RawHandle
        ),
        checked psp_query_func: dat_psp_query(psp_handle: RawHandle, mask: u32, psp_param: *mut PspParam),
        checked psp_free_func: dat_psp_free(psp_handle: RawHandle),
        checked rsp_create_func: dat_rsp_create(
            ia_handle: RawHandle, conn_qual: u64, ep_handle: RawHandle, evd_handle: RawHandle, rsp_handle: *mut RawHandle
        ),
        checked rsp_query_func: dat_rsp_query(rsp_handle: RawHandle, mask: u32, rsp_param: *mut RspParam),
        checked rsp_free_func: dat_rsp_free(rsp_handle: RawHandle),
        checked pz_create_func: dat_pz_create(ia_handle: RawHandle, pz_handle: *mut RawHandle),
        checked pz_query_func: dat_pz_query(pz_handle: RawHandle, mask: u32, pz_param: *mut PzParam),
        checked pz_free_func: dat_pz_free(pz_handle: RawHandle),
        checked psp_create_any_func: dat_psp_create_any(
            ia_handle: RawHandle, conn_qual: *mut u64, evd_handle: RawHandle, flags: u32, psp_handle: *mut RawHandle
        ),
        checked ep_reset_func: dat_ep_reset(ep_handle: RawHandle),
        checked evd_set_unwaitable_func: dat_evd_set_unwaitable(evd_handle: RawHandle),
        checked evd_clear_unwaitable_func: dat_evd_clear_unwaitable(evd_handle: RawHandle),
        checked lmr_sync_rdma_read_func: dat_lmr_sync_rdma_read(ia_handle: RawHandle, local_segments: *const LmrTriplet, num_segments: u64),
        checked lmr_sync_rdma_write_func: dat_lmr_sync_rdma_write(
            ia_handle: RawHandle, local_segments: *const LmrTriplet, num_segments: u64
        ),
        checked ep_create_with_srq_func: dat_ep_create_with_srq(
            ia_handle: RawHandle, pz_handle: RawHandle, recv_evd_handle: RawHandle, request_evd_handle: RawHandle,
            connect_evd_handle: RawHandle, srq_handle: RawHandle, attributes: *const EpAttr, ep_handle: *mut RawHandle
        ),
        checked ep_recv_query_func: dat_ep_recv_query(ep_handle: RawHandle, nbufs_allocated: *mut i32, bufs_alloc_span: *mut i32),
        checked ep_set_watermark_func: dat_ep_set_watermark(ep_handle: RawHandle, soft_high_watermark: i32, hard_high_watermark: i32),
        checked srq_create_func: dat_srq_create(
            ia_handle: RawHandle, pz_handle: RawHandle, srq_attr: *const SrqAttr, srq_handle: *mut RawHandle
        ),
        checked srq_free_func: dat_srq_free(srq_handle: RawHandle),
        quick srq_post_recv_func: dat_srq_post_recv(
            srq_handle: RawHandle, num_segments: i32, local_iov: *const LmrTriplet, user_cookie: u64
        ),
        checked srq_query_func: dat_srq_query(srq_handle: RawHandle, mask: u32, srq_param: *mut SrqParam),
        checked srq_resize_func: dat_srq_resize(srq_handle: RawHandle, srq_max_recv_dto: i32),
        checked srq_set_lw_func: dat_srq_set_lw(srq_handle: RawHandle, low_watermark: i32),
    } };
}

/// Hands the calls of `<dat/dat_ib_extensions.h>` to a macro: `checked` or `waits`, as in
/// [`for_each_call`]. They are in no provider's table.
#[macro_export]
macro_rules! for_each_extension {
    ($with:ident) => { $with! {
        checked dat_ib_post_rdma_write_immed(
            ep_handle: RawHandle, num_segments: i32, local_iov: *const LmrTriplet, user_cookie: u64, remote_iov: *const RmrTriplet,
            immediate: u32, completion_flags: u32
        ),
        checked dat_ib_post_cmp_and_swap(
            ep_handle: RawHandle, compare: u64, swap: u64, local_iov: *const LmrTriplet, user_cookie: u64,
            remote_iov: *const RmrTriplet, completion_flags: u32
        ),
        checked dat_ib_post_fetch_and_add(
            ep_handle: RawHandle, add: u64, local_iov: *const LmrTriplet, user_cookie: u64, remote_iov: *const RmrTriplet,
            completion_flags: u32
        ),
        checked dat_ep_post_send_with_invalidate(
            ep_handle: RawHandle, num_segments: i32, local_iov: *const LmrTriplet, user_cookie: u64, completion_flags: u32,
            invalidate: u32, rmr_context: u32
        ),
        checked dat_rmr_create_for_ep(pz_handle: RawHandle, rmr_handle: *mut RawHandle),
        checked dat_ib_lmr_create(
            ia_handle: RawHandle, mem_type: u32, region: RegionDescription, length: u64, pz_handle: RawHandle, mem_privileges: u32,
            va_type: u32, lmr_handle: *mut RawHandle, lmr_context: *mut u32, rmr_context: *mut u32, registered_length: *mut u64,
            registered_address: *mut u64
        ),
        checked dat_ib_cr_reject(cr_handle: RawHandle, private_data_size: i32, data: *const u8),
        waits dat_ib_evd_wait(evd_handle: RawHandle, timeout: u32, threshold: i32, event: *mut IbEvent, nmore: *mut i32),
        checked dat_ib_evd_dequeue(evd_handle: RawHandle, event: *mut IbEvent),
    } };
}

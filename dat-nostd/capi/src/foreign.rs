//! Providers that programs register, and what every provider is: a table of calls.

use crate::handles::RawHandle;
use crate::layout::*;
use dat_nostd::{LmrTriplet, RmrTriplet};
use std::ffi::c_char;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// The calls of a provider, in the order in which versions 1.0, 1.1 and 1.2 added them, handed to a macro.
macro_rules! for_each_call {
    ($with:ident) => { $with! {
        ia_open_func: dat_ia_open(*const u8, i32, *mut RawHandle, *mut RawHandle),
        ia_query_func: dat_ia_query(RawHandle, *mut RawHandle, u64, *mut IaAttr, u64, *mut ProviderAttr),
        ia_close_func: dat_ia_close(RawHandle, u32),
        set_consumer_context_func: dat_set_consumer_context(RawHandle, u64),
        get_consumer_context_func: dat_get_consumer_context(RawHandle, *mut u64),
        get_handle_type_func: dat_get_handle_type(RawHandle, *mut u32),
        cno_create_func: dat_cno_create(RawHandle, ProxyAgent, *mut RawHandle),
        cno_modify_agent_func: dat_cno_modify_agent(RawHandle, ProxyAgent),
        cno_query_func: dat_cno_query(RawHandle, u32, *mut CnoParam),
        cno_free_func: dat_cno_free(RawHandle),
        cno_wait_func: dat_cno_wait(RawHandle, u32, *mut RawHandle),
        cr_query_func: dat_cr_query(RawHandle, u32, *mut CrParam),
        cr_accept_func: dat_cr_accept(RawHandle, RawHandle, i32, *const u8),
        cr_reject_func: dat_cr_reject(RawHandle),
        cr_handoff_func: dat_cr_handoff(RawHandle, u64),
        evd_create_func: dat_evd_create(RawHandle, i32, RawHandle, u32, *mut RawHandle),
        evd_query_func: dat_evd_query(RawHandle, u32, *mut EvdParam),
        evd_modify_cno_func: dat_evd_modify_cno(RawHandle, RawHandle),
        evd_enable_func: dat_evd_enable(RawHandle),
        evd_disable_func: dat_evd_disable(RawHandle),
        evd_wait_func: dat_evd_wait(RawHandle, u32, i32, *mut Event, *mut i32),
        evd_resize_func: dat_evd_resize(RawHandle, i32),
        evd_post_se_func: dat_evd_post_se(RawHandle, *const Event),
        evd_dequeue_func: dat_evd_dequeue(RawHandle, *mut Event),
        evd_free_func: dat_evd_free(RawHandle),
        ep_create_func: dat_ep_create(RawHandle, RawHandle, RawHandle, RawHandle, RawHandle, *const EpAttr, *mut RawHandle),
        ep_query_func: dat_ep_query(RawHandle, u64, *mut EpParam),
        ep_modify_func: dat_ep_modify(RawHandle, u64, *const EpParam),
        ep_connect_func: dat_ep_connect(RawHandle, *const u8, u64, u32, i32, *const u8, u32, u32),
        ep_dup_connect_func: dat_ep_dup_connect(RawHandle, RawHandle, u32, i32, *const u8, u32),
        ep_disconnect_func: dat_ep_disconnect(RawHandle, u32),
        ep_post_send_func: dat_ep_post_send(RawHandle, i32, *const LmrTriplet, u64, u32),
        ep_post_recv_func: dat_ep_post_recv(RawHandle, i32, *const LmrTriplet, u64, u32),
        ep_post_rdma_read_func: dat_ep_post_rdma_read(RawHandle, i32, *const LmrTriplet, u64, *const RmrTriplet, u32),
        ep_post_rdma_write_func: dat_ep_post_rdma_write(RawHandle, i32, *const LmrTriplet, u64, *const RmrTriplet, u32),
        ep_get_status_func: dat_ep_get_status(RawHandle, *mut u32, *mut i32, *mut i32),
        ep_free_func: dat_ep_free(RawHandle),
        lmr_create_func: dat_lmr_create(RawHandle, u32, RegionDescription, u64, RawHandle, u32, *mut RawHandle, *mut u32, *mut u32, *mut u64, *mut u64),
        lmr_query_func: dat_lmr_query(RawHandle, u32, *mut LmrParam),
        lmr_free_func: dat_lmr_free(RawHandle),
        rmr_create_func: dat_rmr_create(RawHandle, *mut RawHandle),
        rmr_query_func: dat_rmr_query(RawHandle, u32, *mut RmrParam),
        rmr_bind_func: dat_rmr_bind(RawHandle, *const LmrTriplet, u32, RawHandle, u64, u32, *mut u32),
        rmr_free_func: dat_rmr_free(RawHandle),
        psp_create_func: dat_psp_create(RawHandle, u64, RawHandle, u32, *mut RawHandle),
        psp_query_func: dat_psp_query(RawHandle, u32, *mut PspParam),
        psp_free_func: dat_psp_free(RawHandle),
        rsp_create_func: dat_rsp_create(RawHandle, u64, RawHandle, RawHandle, *mut RawHandle),
        rsp_query_func: dat_rsp_query(RawHandle, u32, *mut RspParam),
        rsp_free_func: dat_rsp_free(RawHandle),
        pz_create_func: dat_pz_create(RawHandle, *mut RawHandle),
        pz_query_func: dat_pz_query(RawHandle, u32, *mut PzParam),
        pz_free_func: dat_pz_free(RawHandle),
        psp_create_any_func: dat_psp_create_any(RawHandle, *mut u64, RawHandle, u32, *mut RawHandle),
        ep_reset_func: dat_ep_reset(RawHandle),
        evd_set_unwaitable_func: dat_evd_set_unwaitable(RawHandle),
        evd_clear_unwaitable_func: dat_evd_clear_unwaitable(RawHandle),
        lmr_sync_rdma_read_func: dat_lmr_sync_rdma_read(RawHandle, *const LmrTriplet, u64),
        lmr_sync_rdma_write_func: dat_lmr_sync_rdma_write(RawHandle, *const LmrTriplet, u64),
        ep_create_with_srq_func: dat_ep_create_with_srq(RawHandle, RawHandle, RawHandle, RawHandle, RawHandle, RawHandle, *const EpAttr, *mut RawHandle),
        ep_recv_query_func: dat_ep_recv_query(RawHandle, *mut i32, *mut i32),
        ep_set_watermark_func: dat_ep_set_watermark(RawHandle, i32, i32),
        srq_create_func: dat_srq_create(RawHandle, RawHandle, *const SrqAttr, *mut RawHandle),
        srq_free_func: dat_srq_free(RawHandle),
        srq_post_recv_func: dat_srq_post_recv(RawHandle, i32, *const LmrTriplet, u64),
        srq_query_func: dat_srq_query(RawHandle, u32, *mut SrqParam),
        srq_resize_func: dat_srq_resize(RawHandle, i32),
        srq_set_lw_func: dat_srq_set_lw(RawHandle, i32),
    } };
}
pub(crate) use for_each_call;

macro_rules! provider {
    ($($member:ident: $call:ident($($argument:ty),*),)*) => {
        /// `struct dat_provider`.
        #[repr(C)]
        #[allow(missing_docs)]
        pub struct Provider {
            pub device_name: *const c_char,
            pub extension: Pointer,
            $(pub $member: unsafe extern "C" fn($($argument),*) -> u32,)*
        }
    };
}

for_each_call!(provider);

const _: () = assert!(size_of::<Provider>() == 560);

// SAFETY: the table is never written, and its pointers are to a constant and to functions.
unsafe impl Sync for Provider {}

/// A provider that a program has registered under a name.
#[derive(Clone)]
pub(crate) struct Foreign {
    pub(crate) name: String,
    pub(crate) info: ProviderInfo,
    table: &'static Provider,
}

impl Foreign {
    /// # Safety
    /// `table` is a provider's table that stays until the provider is removed and every handle of it is gone.
    pub(crate) unsafe fn new(name: String, info: ProviderInfo, table: *const Provider) -> Option<Self> {
        // SAFETY: this function's contract.
        let table = unsafe { table.as_ref() }?;
        Some(Self { name, info, table })
    }

    pub(crate) fn calls(&self) -> &'static Provider {
        self.table
    }

    /// What tells tables apart.
    pub(crate) fn table(&self) -> usize {
        ptr::from_ref(self.table).addr()
    }
}

/// Whether any program has ever registered a provider of its own.
static ANY: AtomicBool = AtomicBool::new(false);
/// Their tables, by address.
static TABLES: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// From now on handles may be this provider's.
pub(crate) fn expect(foreign: &Foreign) {
    TABLES.lock().unwrap_or_else(PoisonError::into_inner).push(foreign.table());
    ANY.store(true, Ordering::Release);
}

/// No handle is this provider's any more.
pub(crate) fn forget(foreign: &Foreign) {
    let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(place) = tables.iter().position(|table| *table == foreign.table()) {
        tables.swap_remove(place);
    }
}

/// The provider of a handle that is not ours: a pointer to an object that begins with a pointer to its table.
#[inline]
pub(crate) fn foreign(handle: RawHandle) -> Option<&'static Provider> {
    // Our handles name their kind in the top byte, where addresses of a process have nothing.
    if handle >> 56 != 0 || !ANY.load(Ordering::Relaxed) { None } else { find_foreign(handle) }
}

#[cold]
fn find_foreign(handle: RawHandle) -> Option<&'static Provider> {
    /// The first page is nobody's.
    const PAGE: u64 = 4096;
    if handle < PAGE || !handle.is_multiple_of(8) {
        return None;
    }
    // SAFETY: there are foreign providers, whose handles are pointers to such objects. A stray number that is no address cannot be told
    // from one then, as with every library of DAT.
    let table = unsafe { ptr::with_exposed_provenance::<*const Provider>(handle as usize).read() };
    if !TABLES.lock().unwrap_or_else(PoisonError::into_inner).contains(&table.addr()) {
        return None;
    }
    // SAFETY: a registered table.
    unsafe { table.as_ref() }
}

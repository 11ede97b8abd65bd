//! The adapter: one per port, owner of everything.

use core::marker::PhantomData;

use driver_mlx::{DmaSlice, Platform};

use crate::attr::*;
use crate::event::Event;
use crate::handle::*;
use crate::ret::{DatResult, DatReturn, ReturnType};
use crate::types::*;

/// One HCA port with its DAT objects. Everything is called from one thread.
pub struct Adapter<'s, P: Platform> {
    platform: P,
    storage: PhantomData<&'s mut ()>,
}

const MISSING: DatReturn = DatReturn::new(ReturnType::NotImplemented);

/// Result of [`Adapter::evd_wait_poll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Still waiting; poll again by this time (nanoseconds), or after [`Adapter::poll`] did something.
    Pending(u64),
    /// The oldest event, and how many are left.
    Ready(Event, u32),
    /// `DAT_TIMEOUT_EXPIRED`, and how many events are queued.
    TimedOut(u32),
}

#[allow(unused_variables)]
impl<'s, P: Platform> Adapter<'s, P> {
    /// Runs everything that is due; answers with the next deadline (nanoseconds), None if nothing is timed.
    pub fn poll(&mut self, now: u64) -> Option<u64> {
        let _ = &self.platform;
        None
    }
    /// Arms the interrupts that somebody waits for, polls once more, and says whether the loop may idle.
    pub fn prepare_idle(&mut self, now: u64) -> bool {
        true
    }
    /// The platform.
    pub fn platform(&self) -> &P {
        &self.platform
    }

    /// `dat_ia_open`. The async EVD is made if none is given.
    pub fn ia_open(
        &mut self,
        name: &str,
        async_evd_min_qlen: u32,
        async_evd: Option<EvdHandle>,
    ) -> DatResult<(IaHandle, EvdHandle)> {
        Err(MISSING)
    }
    /// `dat_ia_query`.
    pub fn ia_query(&self, ia: IaHandle) -> DatResult<(EvdHandle, IaAttributes<'_>, ProviderAttributes)> {
        Err(MISSING)
    }
    /// `dat_ia_close`.
    pub fn ia_close(&mut self, ia: IaHandle, flags: CloseFlags) -> DatResult<()> {
        Err(MISSING)
    }
    /// `dat_pz_create`.
    pub fn pz_create(&mut self, ia: IaHandle) -> DatResult<PzHandle> {
        Err(MISSING)
    }
    /// `dat_pz_query`.
    pub fn pz_query(&self, pz: PzHandle) -> DatResult<IaHandle> {
        Err(MISSING)
    }
    /// `dat_pz_free`.
    pub fn pz_free(&mut self, pz: PzHandle) -> DatResult<()> {
        Err(MISSING)
    }
    /// `dat_lmr_create` of a virtual region: segments and peers name it by `region.va()`.
    pub fn lmr_create(
        &mut self,
        ia: IaHandle,
        region: DmaSlice,
        pz: PzHandle,
        mem_priv: MemPriv,
    ) -> DatResult<LmrCreated> {
        Err(MISSING)
    }
    /// Extension: segments and peers name the region's bytes by offsets from 0.
    pub fn lmr_create_zero_based(
        &mut self,
        ia: IaHandle,
        region: DmaSlice,
        pz: PzHandle,
        mem_priv: MemPriv,
    ) -> DatResult<LmrCreated> {
        Err(MISSING)
    }
    /// `dat_lmr_query`.
    pub fn lmr_query(&self, lmr: LmrHandle) -> DatResult<LmrParameters> {
        Err(MISSING)
    }
    /// `dat_lmr_free`.
    pub fn lmr_free(&mut self, lmr: LmrHandle) -> DatResult<()> {
        Err(MISSING)
    }
    /// `dat_lmr_sync_rdma_read`.
    pub fn lmr_sync_rdma_read(&self, ia: IaHandle, segments: &[LmrTriplet]) -> DatResult<()> {
        Err(MISSING)
    }
    /// `dat_lmr_sync_rdma_write`.
    pub fn lmr_sync_rdma_write(&self, ia: IaHandle, segments: &[LmrTriplet]) -> DatResult<()> {
        Err(MISSING)
    }
    /// `dat_evd_create`.
    pub fn evd_create(
        &mut self,
        ia: IaHandle,
        min_qlen: u32,
        cno: Option<CnoHandle>,
        flags: EvdFlags,
    ) -> DatResult<EvdHandle> {
        Err(MISSING)
    }
    /// `dat_evd_query`.
    pub fn evd_query(&self, evd: EvdHandle) -> DatResult<EvdParameters> {
        Err(MISSING)
    }
    /// `dat_evd_free`.
    pub fn evd_free(&mut self, evd: EvdHandle) -> DatResult<()> {
        Err(MISSING)
    }
    /// `dat_evd_enable`.
    pub fn evd_enable(&mut self, evd: EvdHandle) -> DatResult<()> {
        Err(MISSING)
    }
    /// `dat_evd_disable`.
    pub fn evd_disable(&mut self, evd: EvdHandle) -> DatResult<()> {
        Err(MISSING)
    }
    /// `dat_evd_set_unwaitable`.
    pub fn evd_set_unwaitable(&mut self, evd: EvdHandle) -> DatResult<()> {
        Err(MISSING)
    }
    /// `dat_evd_clear_unwaitable`.
    pub fn evd_clear_unwaitable(&mut self, evd: EvdHandle) -> DatResult<()> {
        Err(MISSING)
    }
    /// `dat_evd_post_se`.
    pub fn evd_post_se(&mut self, evd: EvdHandle, value: u64) -> DatResult<()> {
        Err(MISSING)
    }
    /// `dat_evd_dequeue`; QUEUE_EMPTY (without class bits) if there is nothing.
    pub fn evd_dequeue(&mut self, evd: EvdHandle) -> DatResult<Event> {
        Err(MISSING)
    }
    /// Begins `dat_evd_wait`. While it is open, other waits and dequeues on the EVD are INVALID_STATE.
    pub fn evd_wait_begin(
        &mut self,
        evd: EvdHandle,
        now: u64,
        timeout_us: u32,
        threshold: u32,
    ) -> DatResult<()> {
        Err(MISSING)
    }
    /// Whether the wait is over. It has ended when this answers anything but `Pending`.
    pub fn evd_wait_poll(&mut self, evd: EvdHandle, now: u64) -> DatResult<Wait> {
        Err(MISSING)
    }
    /// Gives up a wait.
    pub fn evd_wait_end(&mut self, evd: EvdHandle) -> DatResult<()> {
        Err(MISSING)
    }
    /// `dat_ep_create`.
    #[allow(clippy::too_many_arguments)]
    pub fn ep_create(
        &mut self,
        ia: IaHandle,
        pz: Option<PzHandle>,
        recv_evd: Option<EvdHandle>,
        request_evd: Option<EvdHandle>,
        connect_evd: Option<EvdHandle>,
        attributes: Option<&EpAttributes>,
    ) -> DatResult<EpHandle> {
        Err(MISSING)
    }
    /// `dat_ep_query`.
    pub fn ep_query(&self, ep: EpHandle) -> DatResult<EpParameters> {
        Err(MISSING)
    }
    /// `dat_ep_get_status`.
    pub fn ep_get_status(&self, ep: EpHandle) -> DatResult<EpStatus> {
        Err(MISSING)
    }
    /// `dat_ep_connect`. `timeout_us` > 0 or TIMEOUT_INFINITE.
    #[allow(clippy::too_many_arguments)]
    pub fn ep_connect(
        &mut self,
        ep: EpHandle,
        remote: &IaAddress,
        conn_qual: u64,
        timeout_us: u32,
        private_data: &[u8],
        qos: Qos,
        flags: ConnectFlags,
    ) -> DatResult<()> {
        Err(MISSING)
    }
    /// Private data of the peer's accept or reject; lives until the EP is freed or reset.
    pub fn ep_private_data(&self, ep: EpHandle) -> DatResult<&[u8]> {
        Err(MISSING)
    }
    /// `dat_ep_disconnect`.
    pub fn ep_disconnect(&mut self, ep: EpHandle, flags: CloseFlags) -> DatResult<()> {
        Err(MISSING)
    }
    /// `dat_ep_reset`.
    pub fn ep_reset(&mut self, ep: EpHandle) -> DatResult<()> {
        Err(MISSING)
    }
    /// `dat_ep_free`.
    pub fn ep_free(&mut self, ep: EpHandle) -> DatResult<()> {
        Err(MISSING)
    }
    /// `dat_ep_post_send`.
    pub fn ep_post_send(
        &mut self,
        ep: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        Err(MISSING)
    }
    /// `dat_ep_post_recv`.
    pub fn ep_post_recv(
        &mut self,
        ep: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        Err(MISSING)
    }
    /// `dat_ep_post_rdma_read`.
    pub fn ep_post_rdma_read(
        &mut self,
        ep: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        remote: &RmrTriplet,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        Err(MISSING)
    }
    /// `dat_ep_post_rdma_write`.
    pub fn ep_post_rdma_write(
        &mut self,
        ep: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        remote: &RmrTriplet,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        Err(MISSING)
    }
    /// Extension: RDMA write that consumes a receive at the peer and hands it `immediate`.
    pub fn ep_post_rdma_write_immediate(
        &mut self,
        ep: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        remote: &RmrTriplet,
        immediate: u32,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        Err(MISSING)
    }
    /// Extension: send that kills the peer's `rmr_context`.
    pub fn ep_post_send_invalidate(
        &mut self,
        ep: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        rmr_context: u32,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        Err(MISSING)
    }
    /// `dat_psp_create`.
    pub fn psp_create(
        &mut self,
        ia: IaHandle,
        conn_qual: u64,
        evd: EvdHandle,
        flags: PspFlags,
    ) -> DatResult<PspHandle> {
        Err(MISSING)
    }
    /// `dat_psp_query`.
    pub fn psp_query(&self, psp: PspHandle) -> DatResult<PspParameters> {
        Err(MISSING)
    }
    /// `dat_psp_free`.
    pub fn psp_free(&mut self, psp: PspHandle) -> DatResult<()> {
        Err(MISSING)
    }
    /// `dat_cr_query`.
    pub fn cr_query(&self, cr: CrHandle) -> DatResult<CrParameters<'_>> {
        Err(MISSING)
    }
    /// `dat_cr_accept`.
    pub fn cr_accept(&mut self, cr: CrHandle, ep: Option<EpHandle>, private_data: &[u8]) -> DatResult<()> {
        Err(MISSING)
    }
    /// `dat_cr_reject`.
    pub fn cr_reject(&mut self, cr: CrHandle) -> DatResult<()> {
        Err(MISSING)
    }
    /// Extension: reject with private data, at most 148 bytes.
    pub fn cr_reject_with(&mut self, cr: CrHandle, private_data: &[u8]) -> DatResult<()> {
        Err(MISSING)
    }
    /// Extension: memory from the adapter's DMA region. `align` a power of two up to 4096 is always honoured.
    pub fn dma_alloc(&mut self, len: usize, align: usize) -> DatResult<DmaSlice> {
        Err(MISSING)
    }
    /// Extension: gives memory of `dma_alloc` back.
    pub fn dma_free(&mut self, memory: DmaSlice) -> DatResult<()> {
        Err(MISSING)
    }
    /// Extension: this adapter's address.
    pub fn address(&self) -> IaAddress {
        core::net::Ipv4Addr::UNSPECIFIED.into()
    }
    /// Extension: path MTU of the port, bytes.
    pub fn mtu(&self) -> u32 {
        0
    }
    /// Extension: whether the port is active.
    pub fn is_up(&self) -> bool {
        false
    }
}

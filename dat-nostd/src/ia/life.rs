//! Interface adapter instances: open, query, close. DAT 1.2, IA management.

use driver_mlx::{Bar, Platform};

use crate::adapter::Adapter;
use crate::adapter::device::Device;
use crate::adapter::objects::{Named, Objects};
use crate::base::attr::{EpCreator, IaAttributes, IovOwnership, ProviderAttributes};
use crate::base::handle::{
    CnoHandle, EvdHandle, IaHandle, LmrHandle, PspHandle, PzHandle, RmrHandle, RspHandle, SrqHandle,
};
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::table::OfIa;
use crate::base::types::{
    CloseFlags, CompletionFlags, EpState, EvdFlags, MemType, NAME_MAX_LENGTH, OPTIMAL_ALIGNMENT,
};
use crate::conn::framing::Framing;
use crate::ep::MAX_IOV;
use crate::evd::{MAX_QLEN, check_stream};
use crate::ia::instance::Ia;
use crate::ia::listing::{VERSION_MAJOR, VERSION_MINOR, Version, answer};

impl<'s, P: Platform> Adapter<'s, P> {
    /// `dat_ia_open`. `name` is the adapter's (RDMA-CM framing) or that with `-dat` (own framing), and registered: see
    /// [`Registry`](crate::Registry). Without `async_evd` one is
    /// made, which the close destroys. Each open gives an IA of its own.
    ///
    /// # Errors
    /// INVALID_PARAMETER (name empty or too long, length 0); PROVIDER_NOT_FOUND; INVALID_HANDLE (EVD_ASYNC);
    /// INSUFFICIENT_RESOURCES.
    pub fn ia_open(
        &mut self,
        name: &str,
        async_evd_min_qlen: u32,
        async_evd: Option<EvdHandle>,
    ) -> DatResult<(IaHandle, EvdHandle)> {
        self.ia_openv(name, async_evd_min_qlen, async_evd, VERSION_MAJOR, VERSION_MINOR, false)
    }

    /// `dat_ia_openv`: as [`Adapter::ia_open`], with the version of the interface that the consumer was written for.
    ///
    /// # Errors
    /// As [`Adapter::ia_open`]; PROVIDER_NOT_FOUND for another major or a larger minor version, or if thread safety is asked for.
    pub fn ia_openv(
        &mut self,
        name: &str,
        async_evd_min_qlen: u32,
        async_evd: Option<EvdHandle>,
        major: u32,
        minor: u32,
        thread_safe: bool,
    ) -> DatResult<(IaHandle, EvdHandle)> {
        if name.is_empty() || name.len() >= NAME_MAX_LENGTH {
            return Err(DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg1));
        }
        let listed = |framing| Some((framing, self.device().listings().version(framing)?));
        let listed = self.device().listings().framing_of(name).and_then(listed);
        answer(listed.map(|(_, version)| version), Version::new(major, minor, thread_safe))?;
        let Some((framing, _)) = listed else {
            return Err(DatReturn::error(ReturnType::ProviderNotFound, Subtype::NameNotRegistered));
        };
        if async_evd.is_none() && (async_evd_min_qlen == 0 || async_evd_min_qlen > i32::MAX as u32) {
            return Err(DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg2));
        }
        check_stream(
            self.objects().table(),
            None,
            async_evd,
            EvdFlags::ASYNC,
            Subtype::InvalidHandleEvdAsync,
        )?;
        self.device().usable()?;
        const FULL: DatReturn = DatReturn::error(ReturnType::InsufficientResources, Subtype::ResourceMemory);
        // The EVD refers to its IA and the IA to its EVD: the IA comes first, with a handle that is none.
        let handle = self.objects_mut().table_mut().insert(Ia::new(framing, async_evd)).map_err(|_| FULL)?;
        let evd = match async_evd {
            Some(evd) => evd,
            None => match self.make_evd(handle, async_evd_min_qlen, None, EvdFlags::ASYNC) {
                Ok(evd) => evd,
                Err(error) => {
                    let _ = self.objects_mut().remove(handle);
                    return Err(error);
                }
            },
        };
        self.objects_mut().get_mut(handle)?.set_async_evd(evd);
        Ok((handle, evd))
    }

    /// `dat_ia_query`: asynchronous EVD, IA attributes, provider attributes.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn ia_query(&self, ia: IaHandle) -> DatResult<(EvdHandle, IaAttributes<'_>, ProviderAttributes)> {
        let ia = self.objects().get(ia)?;
        let lmr_sync_req = !self.device().hca().dma_is_coherent();
        let provider = ProviderAttributes { lmr_sync_req, ..provider_attributes(ia.framing()) };
        Ok((ia.async_evd(), ia_attributes(self.device(), self.objects()), provider))
    }

    /// `dat_ia_close`. Abrupt destroys everything of this IA; waits on its EVDs end with ABORT.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_STATE (IA_IN_USE): graceful, and something besides the asynchronous EVD is left. Connection requests that
    /// nobody has answered do not count, nor do the EPs that came with them: they are rejected.
    pub fn ia_close(&mut self, handle: IaHandle, flags: CloseFlags) -> DatResult<()> {
        let ia = self.objects().get(handle)?;
        let (async_evd, own) = (ia.async_evd(), ia.own_async_evd());
        if flags == CloseFlags::Graceful {
            let used = self.objects().are_left(handle, async_evd);
            if used {
                return Err(DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStateIaInUse));
            }
        }
        self.close_objects(handle, async_evd);
        if let Some(own) = own {
            let _ = self.drop_evd(own);
        }
        self.objects_mut().remove(handle)?;
        self.connections().run_port();
        Ok(())
    }

    /// Destroys what belongs to an IA, whatever its state: each object before what it refers to.
    fn close_objects(&mut self, ia: IaHandle, async_evd: EvdHandle) {
        self.free_each(ia, Self::cr_reject);
        self.free_each(ia, |adapter, rmr| adapter.memory().drop_window(rmr));
        self.free_each(ia, Self::rsp_free);
        self.free_each(ia, |adapter, ep| adapter.endpoints().remove_ep(ep));
        self.free_each(ia, Self::srq_free);
        self.free_each(ia, Self::lmr_free);
        self.free_each(ia, Self::psp_free);
        self.free_each(ia, Self::pz_free);
        // The asynchronous EVD hears of everything to the last.
        let but_async =
            |adapter: &mut Self, evd| if evd == async_evd { Ok(()) } else { adapter.drop_evd(evd) };
        self.free_each(ia, but_async);
        self.objects_mut().cnos_mut().drop_of(ia);
    }

    /// Visits every object that an IA has in a table, in the order of its slots.
    fn free_each<H: Named<'s, P::Bar, Object: OfIa>>(
        &mut self,
        ia: IaHandle,
        free: impl Fn(&mut Self, H) -> DatResult<()>,
    ) {
        let mut from = 0;
        while let Some(handle) = self.objects().table::<H>().next_of(ia, from) {
            from = u32::from(handle.any().slot()) + 1;
            // What the device refuses to destroy ends with the adapter.
            let _ = free(self, handle);
        }
    }
}

impl<'s, B: Bar> Objects<'s, B> {
    /// Returns whether an IA has an object of this kind.
    fn has<H: Named<'s, B, Object: OfIa>>(&self, ia: IaHandle) -> bool {
        self.table::<H>().next_of(ia, 0).is_some()
    }

    /// Whether an IA has anything but its asynchronous EVD.
    fn are_left(&self, ia: IaHandle, async_evd: EvdHandle) -> bool {
        // Requests that nobody has answered, and the EPs that came with them, are not the consumer's.
        self.eps().iter().any(|(_, ep)| ep.ia() == ia && ep.state() != EpState::TentativeConnectionPending)
            || self.has::<LmrHandle>(ia)
            || self.has::<PspHandle>(ia)
            || self.has::<RspHandle>(ia)
            || self.has::<SrqHandle>(ia)
            || self.has::<RmrHandle>(ia)
            || self.has::<CnoHandle>(ia)
            || self.has::<PzHandle>(ia)
            || self.table::<EvdHandle>().iter().any(|(evd, state)| state.ia() == ia && evd != async_evd)
    }
}

fn ia_attributes<'a, P: Platform>(device: &Device<'a, P>, objects: &Objects<'_, P::Bar>) -> IaAttributes<'a> {
    let (major, minor, sub_minor) = device.hca().firmware_version();
    let longest = device.longest_message();
    let count = |count: usize| count.min(i32::MAX as usize) as u32;
    let (reads_in, reads_out) = device.max_reads();
    let eps = count(objects.eps().capacity());
    IaAttributes {
        adapter_name: device.listings().name(),
        vendor_name: "Mellanox",
        hardware_version_major: 0,
        hardware_version_minor: 0,
        firmware_version_major: u32::from(major),
        firmware_version_minor: u32::from(minor) * 10_000 + u32::from(sub_minor),
        ia_address: device.address(),
        max_eps: eps,
        max_dto_per_ep: device.max_dtos(),
        max_rdma_read_per_ep_in: reads_in,
        max_rdma_read_per_ep_out: reads_out,
        max_evds: count(objects.table::<EvdHandle>().capacity()),
        max_evd_qlen: MAX_QLEN,
        max_iov_segments_per_dto: MAX_IOV as u32,
        max_lmrs: count(objects.table::<LmrHandle>().capacity()),
        max_lmr_block_size: u64::MAX,
        max_lmr_virtual_address: u64::MAX,
        max_pzs: count(objects.table::<PzHandle>().capacity()),
        max_message_size: longest,
        max_rdma_size: longest,
        max_rmrs: count(objects.table::<RmrHandle>().capacity()),
        max_rmr_target_address: u64::MAX,
        max_srqs: count(objects.table::<SrqHandle>().capacity()),
        max_ep_per_srq: eps,
        max_recv_per_srq: device.max_srq_dtos(),
        max_iov_segments_per_rdma_read: MAX_IOV as u32,
        max_iov_segments_per_rdma_write: MAX_IOV as u32,
        max_rdma_read_in: reads_in.saturating_mul(eps),
        max_rdma_read_out: reads_out.saturating_mul(eps),
        max_rdma_read_per_ep_in_guaranteed: true,
        max_rdma_read_per_ep_out_guaranteed: true,
    }
}

fn provider_attributes(framing: Framing) -> ProviderAttributes {
    // All streams merge except asynchronous errors with anything.
    let mut merging = [[true; 6]; 6];
    for (row, cells) in merging.iter_mut().enumerate() {
        for (column, cell) in cells.iter_mut().enumerate() {
            *cell = (row == 5) == (column == 5);
        }
    }
    ProviderAttributes {
        provider_name: "mlx5",
        provider_version_major: 0,
        provider_version_minor: 1,
        dapl_version_major: 1,
        dapl_version_minor: 2,
        lmr_mem_types_supported: MemType::Lmr as u32 | MemType::SharedVirtual as u32,
        iov_ownership_on_return: IovOwnership::Consumer,
        dat_qos_supported: 0,
        completion_flags_supported: CompletionFlags::all(),
        is_thread_safe: false,
        max_private_data_size: framing.max_private_data() as u32,
        supports_multipath: false,
        ep_creator: EpCreator::IfAsked,
        pz_support: 0,
        optimal_buffer_alignment: OPTIMAL_ALIGNMENT as u32,
        evd_stream_merging_supported: merging,
        srq_supported: true,
        srq_watermarks_supported: 0x111,
        srq_ep_pz_difference_supported: false,
        srq_info_supported: 0x11,
        ep_recv_info_supported: 0x11,
        lmr_sync_req: false,
        dto_async_return_guaranteed: false,
        rdma_write_for_rdma_read_req: false,
    }
}

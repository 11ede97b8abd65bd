//! Local memory regions: create, query, sync, free. DAT 1.2, memory management.

use driver_mlx::{Bar, Base, DmaSlice, Error, MemoryRegion, Pd, Platform, Rejected};

use crate::adapter::Adapter;
use crate::adapter::device::Device;
use crate::adapter::objects::Objects;
use crate::base::attr::{LmrCreated, LmrParameters};
use crate::base::handle::{HandleType, IaHandle, LmrHandle, PzHandle};
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::table::OfIa;
use crate::base::types::{LmrTriplet, MemPriv};
use crate::mem::Memory;
use crate::mem::lmr::{Grant, IN_USE, Key, Kind, Lmr, Region, access, check_rights, creation_error, lmr_of};

const FULL: DatReturn = DatReturn::error(ReturnType::InsufficientResources, Subtype::ResourceMemoryRegion);

impl<'s, P: Platform> Memory<'_, 's, P> {
    /// Makes a region of memory.
    fn register(&mut self, memory: DmaSlice<'_>, grant: &Grant) -> DatResult<LmrCreated> {
        if memory.is_empty() {
            self.pzs.get(grant.pz)?.domain(grant.ia)?;
            return Err(DatReturn::error(ReturnType::LengthError, Subtype::InvalidArg4));
        }
        self.insert(grant, |device, pd| {
            device.hca_mut().register(pd, memory, access(grant.mem_priv), grant.base)
        })
    }

    /// Makes a region of the memory of a region.
    fn register_again(
        &mut self,
        lmr: LmrHandle,
        ia: IaHandle,
        pz: PzHandle,
        mem_priv: MemPriv,
    ) -> DatResult<LmrCreated> {
        let parent = self.lmrs.get(lmr)?;
        parent.ia().check(ia, HandleType::Lmr)?;
        parent.may_give(mem_priv)?;
        let grant = Grant { base: parent.base(), kind: Kind::Lmr, ..Grant::new(ia, pz, mem_priv) };
        // The key is taken from the table while the table may change.
        let key = self.lmrs.get_mut(lmr)?.take_key();
        let made = match &key {
            Key::Ready(region) => self.insert(&grant, |device, pd| {
                device.hca_mut().register_again(pd, region, access(mem_priv), grant.base)
            }),
            _ => Err(IN_USE),
        };
        self.lmrs.get_mut(lmr)?.put_key(key);
        made
    }

    /// Creates a region with the key that `make` registers.
    pub(crate) fn insert(
        &mut self,
        grant: &Grant,
        make: impl FnOnce(&mut Device<'s, P>, Pd) -> Result<MemoryRegion, Error>,
    ) -> DatResult<LmrCreated> {
        let pd = self.admit(grant)?;
        let region =
            make(self.device, pd).map_err(|error| creation_error(error, Subtype::ResourceMemoryRegion))?;
        let handle = self.enter(grant, pd, (region.address(), region.length()), Key::Taken)?;
        let lmr = self.lmrs.get_mut(handle)?;
        lmr.settle(region);
        Ok(lmr.created())
    }

    /// Checks that a region can be created, and returns its protection domain.
    pub(crate) fn admit(&mut self, grant: &Grant) -> DatResult<Pd> {
        let pd = self.pzs.get(grant.pz)?.domain(grant.ia)?;
        check_rights(grant.mem_priv)?;
        self.device.usable()?;
        if self.lmrs.len() >= self.lmrs.capacity() {
            return Err(FULL);
        }
        Ok(pd)
    }

    /// Puts a region into the table. No segment lies inside before its key is ready, but a cookie
    /// names its extent.
    pub(crate) fn enter(
        &mut self,
        grant: &Grant,
        pd: Pd,
        extent: (u64, u64),
        key: Key,
    ) -> DatResult<LmrHandle> {
        let lmr = Lmr::new(grant, pd, extent, key);
        let handle = self.lmrs.insert(lmr).map_err(|_| FULL)?;
        self.pzs.get_mut(grant.pz)?.users_mut().attach();
        self.lmrs.get_mut(handle)?.set_handle(handle);
        Ok(handle)
    }

    /// Finishes the creation of a region. Returns `None` if firmware has not answered.
    pub(crate) fn poll_creation(&mut self, handle: LmrHandle) -> DatResult<Option<LmrCreated>> {
        let lmr = self.lmrs.get_mut(handle)?;
        let Key::Creating(pending) = lmr.take_key() else {
            return Err(DatReturn::new(ReturnType::InternalError));
        };
        match self.device.hca_mut().poll_pending(pending) {
            Err(pending) => {
                lmr.put_key(Key::Creating(pending));
                Ok(None)
            }
            Ok(Ok(region)) => {
                lmr.settle(region);
                Ok(Some(lmr.created()))
            }
            Ok(Err(error)) => {
                self.remove(handle)?;
                Err(creation_error(error, Subtype::ResourceMemoryRegion))
            }
        }
    }

    /// Begins to free a region. Returns false, without effect, if too many commands are pending.
    fn begin_free(&mut self, handle: LmrHandle) -> DatResult<bool> {
        let lmr = self.lmrs.get_mut(handle)?;
        if self.windows.is_bound(handle) {
            return Err(IN_USE);
        }
        let region = match lmr.take_key() {
            Key::Ready(region) => region,
            key => {
                lmr.put_key(key);
                return Err(IN_USE);
            }
        };
        match self.device.hca_mut().begin_deregister(region) {
            Ok(pending) => {
                lmr.put_key(Key::Destroying(pending));
                Ok(true)
            }
            Err(Rejected { error: Error::NoCommandSlot, value }) => {
                lmr.put_key(Key::Ready(value));
                Ok(false)
            }
            Err(rejected) => self.freed(handle, Err(rejected)).map(|()| true),
        }
    }

    /// Goes on with the freeing of a region. Returns `None` if firmware has not answered.
    fn poll_free(&mut self, handle: LmrHandle) -> DatResult<Option<()>> {
        let lmr = self.lmrs.get_mut(handle)?;
        let Key::Destroying(pending) = lmr.take_key() else {
            return Err(DatReturn::new(ReturnType::InternalError));
        };
        match self.device.hca_mut().poll_pending(pending) {
            Err(pending) => {
                lmr.put_key(Key::Destroying(pending));
                Ok(None)
            }
            Ok(ended) => self.freed(handle, ended).map(Some),
        }
    }

    fn free_region(&mut self, handle: LmrHandle) -> DatResult<()> {
        let lmr = self.lmrs.get_mut(handle)?;
        if self.windows.is_bound(handle) {
            return Err(IN_USE);
        }
        let ended = match lmr.take_key() {
            Key::Creating(pending) => match self.device.hca_mut().finish(pending) {
                Ok(region) => self.device.hca_mut().deregister(region),
                Err(_) => Ok(()),
            },
            Key::Ready(region) => self.device.hca_mut().deregister(region),
            Key::Destroying(pending) => self.device.hca_mut().finish(pending),
            Key::Taken => Ok(()),
        };
        self.freed(handle, ended)
    }

    /// Removes a region, unless its key is still in use.
    fn freed(&mut self, handle: LmrHandle, ended: Result<(), Rejected<MemoryRegion>>) -> DatResult<()> {
        let mut freed = Ok(());
        if let Err(Rejected { error, value }) = ended {
            // Only the device knows whether a bind that was flushed had been carried out, and in which order binds of several EPs were. One
            // that has failed may go on with memory that is not the adapter's.
            let used = match error {
                Error::Command(refused) => refused.is_in_use(),
                Error::Fatal(_) => true,
                _ => false,
            };
            if used {
                self.lmrs.get_mut(handle)?.put_key(Key::Ready(value));
                return Err(IN_USE);
            }
            // The key may still be there, and then its buffer stays registered; the consumer's object is gone all the same.
            freed = Err(DatReturn::new(ReturnType::InternalError));
        }
        self.remove(handle)?;
        freed
    }

    fn remove(&mut self, handle: LmrHandle) -> DatResult<()> {
        let lmr = self.lmrs.remove(handle)?;
        self.leave_zone(lmr.pz());
        Ok(())
    }

    /// Frees what a device that had failed kept of closed IAs; it has been reset since.
    pub(crate) fn free_kept(&mut self) {
        for slot in self.lmrs.slots() {
            if let Some(lmr) = self.lmrs.handle_at(slot) {
                let _ = self.free_region(lmr);
            }
        }
        for slot in self.pzs.slots() {
            if let Some(pz) = self.pzs.handle_at(slot) {
                let _ = self.free_zone(pz);
            }
        }
    }

    /// Passes each segment's key and range to the driver's hook. Segments of no bytes name no region.
    fn sync(
        &self,
        segments: &[LmrTriplet],
        hook: impl Fn(&Device<'s, P>, &MemoryRegion, &LmrTriplet) -> Result<(), Error>,
    ) -> DatResult<()> {
        let outside = DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg2);
        let named = || segments.iter().filter(|segment| segment.segment_length > 0);
        for segment in named() {
            let lmr = lmr_of(self.lmrs, segment.lmr_context).map_err(|_| outside)?;
            if !lmr.contains(segment) {
                return Err(outside);
            }
        }
        for segment in named() {
            if let Some(region) = lmr_of(self.lmrs, segment.lmr_context)?.region(MemPriv::empty())? {
                hook(self.device, region, segment).map_err(|_| outside)?;
            }
        }
        Ok(())
    }
}

impl<B: Bar> Objects<'_, B> {
    /// Whether memory (first address and bytes) may be registered as this kind: a cookie names one range.
    pub(crate) fn check_cookie(&self, kind: Kind, extent: (u64, u64)) -> DatResult<()> {
        if self.table::<LmrHandle>().iter().all(|(_, lmr)| lmr.agrees(kind, extent)) {
            Ok(())
        } else {
            Err(IN_USE)
        }
    }
}

impl<'s, P: Platform> Adapter<'s, P> {
    /// `dat_lmr_create`, of a [`DmaBuffer`](crate::DmaBuffer), a range of one, or any other [`Region`]. Local read is granted in any
    /// case.
    ///
    /// # Errors
    /// INVALID_HANDLE (IA, PZ, LMR); LENGTH_ERROR for an empty region; INVALID_PARAMETER for remote write without local write
    /// (InfiniBand demands both) and for memory of another adapter; INVALID_STATE (LMR_IN_USE) if the cookie of shared memory names other
    /// memory; PRIVILEGES_VIOLATION for rights that the parent region does not have; INSUFFICIENT_RESOURCES.
    pub fn lmr_create<'b>(
        &mut self,
        ia: IaHandle,
        region: impl Into<Region<'b>>,
        pz: PzHandle,
        mem_priv: MemPriv,
    ) -> DatResult<LmrCreated> {
        self.objects().get(ia)?;
        let grant = Grant::new(ia, pz, mem_priv);
        match region.into() {
            Region::Virtual(memory) => self.memory().register(memory, &grant),
            Region::Lmr(lmr) => self.memory().register_again(lmr, ia, pz, mem_priv),
            Region::SharedVirtual(memory, cookie) => {
                let kind = Kind::Shared(cookie);
                self.objects().check_cookie(kind, (memory.va() as u64, memory.len() as u64))?;
                self.memory().register(memory, &Grant { kind, ..grant })
            }
        }
    }

    /// Extension: as [`Adapter::lmr_create`] of memory, but segments and peers name the bytes by offsets: from 0 if the memory
    /// begins at a multiple of 4096, which a buffer of [`Adapter::dma_alloc`] does, else from its offset in its page
    /// (`registered_address`).
    ///
    /// # Errors
    /// As `lmr_create`.
    pub fn lmr_create_zero_based<'b>(
        &mut self,
        ia: IaHandle,
        memory: impl Into<DmaSlice<'b>>,
        pz: PzHandle,
        mem_priv: MemPriv,
    ) -> DatResult<LmrCreated> {
        self.objects().get(ia)?;
        let grant = Grant { base: Base::Zero, ..Grant::new(ia, pz, mem_priv) };
        self.memory().register(memory.into(), &grant)
    }

    /// `dat_lmr_query`.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn lmr_query(&self, lmr: LmrHandle) -> DatResult<LmrParameters> {
        Ok(self.objects().get(lmr)?.parameters())
    }

    /// `dat_lmr_free`. Transfers that still use the region end with protection errors.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_STATE (LMR_IN_USE) while an RMR is bound to it, also by a bind that the device carried out though its
    /// completion was flushed, until that RMR is freed or bound again; and for memory of the consumer's own while a device that has failed
    /// may still write there: it can be freed when [`Adapter::recover`] has succeeded, which does so itself.
    pub fn lmr_free(&mut self, lmr: LmrHandle) -> DatResult<()> {
        self.memory().free_region(lmr)
    }

    /// Begins [`Adapter::lmr_free`], which [`Adapter::lmr_poll_free`] finishes: for consumers that
    /// share the adapter and do not wait for firmware with it. Returns false, without effect, while
    /// as many commands are pending as may be.
    ///
    /// # Errors
    /// As [`Adapter::lmr_free`]; INVALID_STATE (LMR_IN_USE) also for a region whose creation or end is
    /// pending.
    pub fn lmr_begin_free(&mut self, lmr: LmrHandle) -> DatResult<bool> {
        self.memory().begin_free(lmr)
    }

    /// Finishes what [`Adapter::lmr_begin_free`] began. Returns `None` if firmware has not answered.
    ///
    /// # Errors
    /// As [`Adapter::lmr_free`]. INVALID_HANDLE: the IA was closed meanwhile.
    pub fn lmr_poll_free(&mut self, lmr: LmrHandle) -> DatResult<Option<()>> {
        self.memory().poll_free(lmr)
    }

    /// Finishes what [`Adapter::lmr_begin_virtual`] began. Returns `None` if firmware has not
    /// answered.
    ///
    /// # Errors
    /// As [`Adapter::lmr_create_virtual`]. INVALID_HANDLE: the IA was closed meanwhile.
    pub fn lmr_poll_virtual(&mut self, lmr: LmrHandle) -> DatResult<Option<LmrCreated>> {
        self.memory().poll_creation(lmr)
    }

    /// `dat_lmr_sync_rdma_read`: what was written here becomes visible to a peer's reads ([`Platform::sync_for_device`]). Segments of
    /// length 0 are passed over.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_PARAMETER for a segment outside its region; then none was synchronized.
    pub fn lmr_sync_rdma_read(&mut self, ia: IaHandle, segments: &[LmrTriplet]) -> DatResult<()> {
        self.objects().get(ia)?;
        self.memory().sync(segments, |device, region, segment| {
            device.hca().sync_for_device(region, segment.virtual_address, segment.segment_length)
        })
    }

    /// `dat_lmr_sync_rdma_write`: what a peer has written becomes visible here ([`Platform::sync_for_cpu`]). Segments of length 0 are
    /// passed over.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_PARAMETER for a segment outside its region; then none was synchronized.
    pub fn lmr_sync_rdma_write(&mut self, ia: IaHandle, segments: &[LmrTriplet]) -> DatResult<()> {
        self.objects().get(ia)?;
        self.memory().sync(segments, |device, region, segment| {
            device.hca().sync_for_cpu(region, segment.virtual_address, segment.segment_length)
        })
    }
}

//! Protection zones and local memory regions: create, query, sync, free. DAT 1.2, memory management.

use driver_mlx::DmaSlice;
use driver_mlx::{Base, Error, Pd, Platform};

use crate::adapter::Adapter;
use crate::base::attr::{LmrCreated, LmrParameters};
use crate::base::handle::{HandleType, IaHandle, LmrHandle, PzHandle};
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::types::{LmrTriplet, MemPriv, MemType};
use crate::mem::lmr::{IN_USE, Kind, Lmr, Pz, REMOTE, Region, access, context_of, creation_error, lmr_of};

impl<'s, P: Platform> Adapter<'s, P> {
    /// `dat_pz_create`.
    ///
    /// # Errors
    /// INVALID_HANDLE, INSUFFICIENT_RESOURCES.
    pub fn pz_create(&mut self, ia: IaHandle) -> DatResult<PzHandle> {
        self.objects.ias.get(ia)?;
        self.usable()?;
        const FULL: Subtype = Subtype::ResourceProtectionDomain;
        if self.objects.pzs.len() >= self.objects.pzs.capacity() {
            return Err(DatReturn::error(ReturnType::InsufficientResources, FULL));
        }
        let pd = self.device.hca.alloc_pd().map_err(|error| creation_error(error, FULL))?;
        self.objects
            .pzs
            .insert(Pz { ia, pd, users: 0 })
            .map_err(|_| DatReturn::error(ReturnType::InsufficientResources, FULL))
    }

    /// The protection domain of a zone of this IA.
    pub(crate) fn zone(&self, pz: PzHandle, ia: IaHandle) -> DatResult<Pd> {
        let pz = self.objects.pzs.get(pz)?;
        pz.ia.check(ia, HandleType::Pz)?;
        Ok(pz.pd)
    }

    /// `dat_pz_query`: the IA.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn pz_query(&self, pz: PzHandle) -> DatResult<IaHandle> {
        Ok(self.objects.pzs.get(pz)?.ia)
    }

    /// `dat_pz_free`.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_STATE (PZ_IN_USE) while an EP or LMR refers to it.
    pub fn pz_free(&mut self, pz: PzHandle) -> DatResult<()> {
        if self.objects.pzs.get(pz)?.users > 0 {
            return Err(DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStatePzInUse));
        }
        let pz = self.objects.pzs.remove(pz)?;
        if !self.is_dead() {
            // The zone is gone for the consumer either way; the device's refusal is in the driver's trace.
            let _ = self.device.hca.dealloc_pd(pz.pd);
        }
        Ok(())
    }

    /// `dat_lmr_create`, of memory or any other [`Region`].
    ///
    /// # Errors
    /// INVALID_HANDLE (IA, PZ, LMR); LENGTH_ERROR for an empty region; INVALID_PARAMETER for remote write without local write
    /// (InfiniBand demands both); INVALID_STATE (LMR_IN_USE) if the cookie of shared memory names other memory;
    /// PRIVILEGES_VIOLATION for rights that the parent region does not have; INSUFFICIENT_RESOURCES.
    pub fn lmr_create(
        &mut self,
        ia: IaHandle,
        region: impl Into<Region>,
        pz: PzHandle,
        mem_priv: MemPriv,
    ) -> DatResult<LmrCreated> {
        match region.into() {
            Region::Virtual(memory) => self.register(ia, memory, pz, mem_priv, Base::Virtual, Kind::Virtual),
            Region::Lmr(lmr) => {
                self.objects.ias.get(ia)?;
                let parent = self.objects.lmrs.get(lmr)?;
                parent.ia.check(ia, HandleType::Lmr)?;
                let (memory, has) = (parent.memory, parent.privileges);
                let base = if parent.zero_based() { Base::Zero } else { Base::Virtual };
                // Local read is always there, and what the memory's owner has kept from writing stays so.
                if !(has | MemPriv::LOCAL_READ).contains(mem_priv) {
                    return Err(DatReturn::new(ReturnType::PrivilegesViolation));
                }
                self.register(ia, memory, pz, mem_priv, base, Kind::Lmr)
            }
            Region::SharedVirtual(memory, cookie) => {
                self.objects.ias.get(ia)?;
                let other = self.objects.lmrs.iter().any(|(_, lmr)| {
                    lmr.kind == Kind::Shared(cookie)
                        && (lmr.memory.va(), lmr.memory.len()) != (memory.va(), memory.len())
                });
                if other {
                    return Err(IN_USE);
                }
                self.register(ia, memory, pz, mem_priv, Base::Virtual, Kind::Shared(cookie))
            }
        }
    }

    /// Extension: as [`Adapter::lmr_create`] of memory, but segments and peers name the bytes by offsets: from 0 if the memory
    /// begins at a multiple of 4096, which that of [`Adapter::dma_alloc`] does, else from its offset in its page
    /// (`registered_address`).
    ///
    /// # Errors
    /// As `lmr_create`; INVALID_PARAMETER for memory whose virtual and device addresses differ modulo 4096.
    pub fn lmr_create_zero_based(
        &mut self,
        ia: IaHandle,
        region: DmaSlice,
        pz: PzHandle,
        mem_priv: MemPriv,
    ) -> DatResult<LmrCreated> {
        if region.va() as u64 % 4096 != region.device_address() % 4096 {
            return Err(DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg3));
        }
        self.register(ia, region, pz, mem_priv, Base::Zero, Kind::Virtual)
    }

    fn register(
        &mut self,
        ia: IaHandle,
        memory: DmaSlice,
        pz: PzHandle,
        mem_priv: MemPriv,
        base: Base,
        kind: Kind,
    ) -> DatResult<LmrCreated> {
        self.objects.ias.get(ia)?;
        let pd = self.zone(pz, ia)?;
        if memory.is_empty() {
            return Err(DatReturn::error(ReturnType::LengthError, Subtype::InvalidArg4));
        }
        let remote_write_alone = mem_priv.intersects(MemPriv::REMOTE_WRITE | MemPriv::REMOTE_ATOMIC)
            && !mem_priv.contains(MemPriv::LOCAL_WRITE);
        if remote_write_alone || !(MemPriv::ALL | MemPriv::REMOTE_ATOMIC).contains(mem_priv) {
            return Err(DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg6));
        }
        self.usable()?;
        const FULL: DatReturn =
            DatReturn::error(ReturnType::InsufficientResources, Subtype::ResourceMemoryRegion);
        if self.objects.lmrs.len() >= self.objects.lmrs.capacity() {
            return Err(FULL);
        }
        let region = self
            .device
            .hca
            .register(pd, memory, access(mem_priv), base)
            .map_err(|error| creation_error(error, Subtype::ResourceMemoryRegion))?;
        let remote = mem_priv.intersects(REMOTE);
        let start = match base {
            Base::Virtual => memory.va() as u64,
            Base::Zero => memory.va() as u64 % 4096,
        };
        let rmr_context = if remote { region.rkey.get() } else { 0 };
        let length = memory.len() as u64;
        let lmr = Lmr {
            handle: LmrHandle::from_bits(0),
            ia,
            pz,
            context: 0,
            pd,
            start,
            length,
            privileges: mem_priv,
            region,
            memory,
            kind,
        };
        let handle = self.objects.lmrs.insert(lmr).map_err(|_| FULL)?;
        let lmr_context = context_of(handle);
        let lmr = self.objects.lmrs.get_mut(handle)?;
        (lmr.handle, lmr.context) = (handle, lmr_context);
        self.objects.pzs.get_mut(pz)?.users += 1;
        Ok(LmrCreated {
            lmr: handle,
            lmr_context,
            rmr_context,
            registered_size: length,
            registered_address: start,
        })
    }

    /// `dat_lmr_query`.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn lmr_query(&self, lmr: LmrHandle) -> DatResult<LmrParameters> {
        let lmr = self.objects.lmrs.get(lmr)?;
        let remote = lmr.privileges.intersects(REMOTE);
        Ok(LmrParameters {
            ia: lmr.ia,
            mem_type: match lmr.kind {
                Kind::Virtual => MemType::Virtual,
                Kind::Lmr => MemType::Lmr,
                Kind::Shared(_) => MemType::SharedVirtual,
            },
            pz: lmr.pz,
            length: lmr.length,
            mem_priv: lmr.privileges,
            lmr_context: lmr.context,
            rmr_context: if remote { lmr.region.rkey.get() } else { 0 },
            registered_size: lmr.length,
            registered_address: lmr.start,
        })
    }

    /// `dat_lmr_free`. Transfers that still use the region end with protection errors.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_STATE (LMR_IN_USE) while an RMR is bound to it.
    pub fn lmr_free(&mut self, lmr: LmrHandle) -> DatResult<()> {
        self.objects.lmrs.get(lmr)?;
        if self.is_bound(lmr) {
            return Err(IN_USE);
        }
        let region = self.objects.lmrs.get(lmr)?.region;
        let freed = if self.is_dead() { Ok(()) } else { self.device.hca.deregister(region) };
        // Firmware's "resource busy": only the device knows whether a bind that was flushed had been carried out, and in which order
        // binds of several EPs were.
        if let Err(Error::Command(refused)) = freed
            && refused.status.0 == 0x06
        {
            return Err(IN_USE);
        }
        let lmr = self.objects.lmrs.remove(lmr)?;
        if let Ok(pz) = self.objects.pzs.get_mut(lmr.pz) {
            pz.users = pz.users.saturating_sub(1);
        }
        freed.map_err(|_| DatReturn::new(ReturnType::InternalError))
    }

    /// `dat_lmr_sync_rdma_read`: local changes become visible to a peer's reads. DMA is coherent here, so this checks.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_PARAMETER for a segment outside its region.
    pub fn lmr_sync_rdma_read(&self, ia: IaHandle, segments: &[LmrTriplet]) -> DatResult<()> {
        self.objects.ias.get(ia)?;
        for segment in segments {
            let outside = DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg2);
            let lmr = lmr_of(&self.objects.lmrs, segment.lmr_context).map_err(|_| outside)?;
            lmr.sge(segment, lmr.pd, false).map_err(|_| outside)?;
        }
        Ok(())
    }

    /// `dat_lmr_sync_rdma_write`: a peer's writes become visible here. DMA is coherent here, so this checks.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_PARAMETER for a segment outside its region.
    pub fn lmr_sync_rdma_write(&self, ia: IaHandle, segments: &[LmrTriplet]) -> DatResult<()> {
        self.lmr_sync_rdma_read(ia, segments)
    }

    /// Extension: memory from the adapter's DMA region, in blocks of 4096 bytes and aligned to them at least.
    ///
    /// # Errors
    /// INSUFFICIENT_RESOURCES (RESOURCE_MEMORY); INVALID_PARAMETER for a length of 0 or an alignment that is no power of two.
    pub fn dma_alloc(&mut self, len: usize, align: usize) -> DatResult<DmaSlice> {
        if len == 0 || !align.is_power_of_two() {
            return Err(DatReturn::new(ReturnType::InvalidParameter));
        }
        self.device
            .hca
            .alloc(len, align.max(4096))
            .map_err(|_| DatReturn::error(ReturnType::InsufficientResources, Subtype::ResourceMemory))
    }

    /// Extension: gives memory of [`Adapter::dma_alloc`] back. It must not be registered any more.
    ///
    /// # Errors
    /// INVALID_PARAMETER if it was not given out.
    pub fn dma_free(&mut self, memory: DmaSlice) -> DatResult<()> {
        self.device.hca.free(memory).map_err(|_| DatReturn::new(ReturnType::InvalidParameter))
    }
}

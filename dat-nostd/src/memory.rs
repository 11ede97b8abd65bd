//! Protection zones and local memory regions. DAT 1.2, memory management.

use driver_mlx::{Access, Base, Error, MemoryRegion, Pd, Platform, Sge};

use crate::adapter::Adapter;
use crate::attr::{LmrCreated, LmrParameters};
use crate::handle::{HandleType, IaHandle, LmrHandle, PzHandle, Typed};
use crate::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::table::Table;
use crate::types::{LmrTriplet, MemPriv, MemType};
use driver_mlx::DmaSlice;

/// A protection zone.
#[derive(Debug)]
pub struct Pz {
    pub(crate) ia: IaHandle,
    pub(crate) pd: Pd,
    /// Objects that refer to it.
    pub(crate) users: u32,
}

/// A local memory region.
#[derive(Debug)]
pub struct Lmr {
    /// Its own.
    pub(crate) handle: LmrHandle,
    pub(crate) ia: IaHandle,
    pub(crate) pz: PzHandle,
    /// Slot (bits 31–16) and generation (15–0) as handed out.
    pub(crate) context: u32,
    pub(crate) pd: Pd,
    pub(crate) start: u64,
    pub(crate) length: u64,
    pub(crate) privileges: MemPriv,
    pub(crate) region: MemoryRegion,
    memory: DmaSlice,
    kind: Kind,
}

/// What a region was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Virtual,
    Lmr,
    Shared(LmrCookie),
}

/// `DAT_LMR_COOKIE`: 40 bytes that name shared memory among the consumers of an adapter.
pub type LmrCookie = [u8; 40];

/// `DAT_MEM_TYPE` and `DAT_REGION_DESCRIPTION`: what a region is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// `DAT_MEM_TYPE_VIRTUAL`: memory; segments and peers name its bytes by `va()`.
    Virtual(DmaSlice),
    /// `DAT_MEM_TYPE_LMR`: the memory of a region that exists, with another zone and other rights.
    Lmr(LmrHandle),
    /// `DAT_MEM_TYPE_SHARED_VIRTUAL`: memory that several consumers register under one cookie. Without processes all of them have it
    /// at one address; the cookie guards against naming two pieces of memory alike.
    SharedVirtual(DmaSlice, LmrCookie),
}

impl From<DmaSlice> for Region {
    fn from(memory: DmaSlice) -> Self {
        Region::Virtual(memory)
    }
}

impl From<LmrHandle> for Region {
    fn from(lmr: LmrHandle) -> Self {
        Region::Lmr(lmr)
    }
}

/// `lmr_context`: slot and a 16-bit generation that is never 0, so no context is ever 0.
fn context_of(handle: LmrHandle) -> u32 {
    let generation = (handle.any().generation().wrapping_sub(1) % 0xffff) + 1;
    u32::from(handle.any().slot()) << 16 | generation
}

/// DAT's rights as the device's. Local read is always there.
pub(crate) fn access(privileges: MemPriv) -> Access {
    let mut access = Access::empty();
    access.set(Access::LOCAL_WRITE, privileges.contains(MemPriv::LOCAL_WRITE));
    access.set(Access::REMOTE_READ, privileges.contains(MemPriv::REMOTE_READ));
    access.set(Access::REMOTE_WRITE, privileges.contains(MemPriv::REMOTE_WRITE));
    access.set(Access::REMOTE_ATOMIC, privileges.contains(MemPriv::REMOTE_ATOMIC));
    access
}

/// The code for a driver's error in a call that makes something.
pub(crate) fn creation_error(error: Error, resource: Subtype) -> DatReturn {
    match error {
        Error::OutOfMemory { .. } => {
            DatReturn::error(ReturnType::InsufficientResources, Subtype::ResourceMemory)
        }
        Error::Limit { .. } | Error::InsufficientPages { .. } => {
            DatReturn::error(ReturnType::InsufficientResources, resource)
        }
        // Firmware's "no resources" and "exceeds limits" statuses mean that its own tables are full.
        Error::Command(command) if matches!(command.status.0, 0x0f | 0x08) => {
            DatReturn::error(ReturnType::InsufficientResources, resource)
        }
        _ => DatReturn::new(ReturnType::InternalError),
    }
}

const IN_USE: DatReturn = DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStateLmrInUse);
/// Rights that need a key for the peer.
const REMOTE: MemPriv = MemPriv::REMOTE_READ.union(MemPriv::REMOTE_WRITE).union(MemPriv::REMOTE_ATOMIC);

impl Lmr {
    /// Whether bytes are named by offsets.
    fn zero_based(&self) -> bool {
        self.start != self.memory.va() as u64
    }

    /// A segment as the device wants it, if it lies inside, the zone is right and the rights suffice.
    #[inline]
    pub(crate) fn sge(&self, triplet: &LmrTriplet, pd: Pd, writes: bool) -> Result<Sge, DatReturn> {
        let offset = triplet.virtual_address.wrapping_sub(self.start);
        if triplet.segment_length > self.length || offset > self.length - triplet.segment_length {
            return Err(DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg3));
        }
        if self.pd != pd {
            return Err(DatReturn::error(
                ReturnType::ProtectionViolation,
                if writes { Subtype::ProtectionWrite } else { Subtype::ProtectionRead },
            ));
        }
        if writes && !self.privileges.contains(MemPriv::LOCAL_WRITE) {
            return Err(DatReturn::error(ReturnType::PrivilegesViolation, Subtype::PrivilegesWrite));
        }
        // A segment of 2^31 bytes and more is refused by the driver (TooLong); the cast must not hide it.
        let length = triplet.segment_length.min(u64::from(u32::MAX)) as u32;
        Ok(Sge { address: triplet.virtual_address, length, lkey: self.region.lkey })
    }
}

/// The region that a context names.
#[inline]
pub(crate) fn lmr_of<'t>(lmrs: &'t Table<'_, LmrHandle, Lmr>, context: u32) -> Result<&'t Lmr, DatReturn> {
    match lmrs.at((context >> 16) as u16) {
        Some(lmr) if lmr.context == context => Ok(lmr),
        _ => Err(DatReturn::new(ReturnType::PrivilegesViolation)),
    }
}

impl<'s, P: Platform> Adapter<'s, P> {
    /// `dat_pz_create`.
    ///
    /// # Errors
    /// INVALID_HANDLE, INSUFFICIENT_RESOURCES.
    pub fn pz_create(&mut self, ia: IaHandle) -> DatResult<PzHandle> {
        self.ias.get(ia)?;
        self.usable()?;
        const FULL: Subtype = Subtype::ResourceProtectionDomain;
        if self.pzs.len() >= self.pzs.capacity() {
            return Err(DatReturn::error(ReturnType::InsufficientResources, FULL));
        }
        let pd = self.hca.alloc_pd().map_err(|error| creation_error(error, FULL))?;
        self.pzs
            .insert(Pz { ia, pd, users: 0 })
            .map_err(|_| DatReturn::error(ReturnType::InsufficientResources, FULL))
    }

    /// The protection domain of a zone of this IA.
    pub(crate) fn zone(&self, pz: PzHandle, ia: IaHandle) -> DatResult<Pd> {
        let pz = self.pzs.get(pz)?;
        pz.ia.check(ia, HandleType::Pz)?;
        Ok(pz.pd)
    }

    /// `dat_pz_query`: the IA.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn pz_query(&self, pz: PzHandle) -> DatResult<IaHandle> {
        Ok(self.pzs.get(pz)?.ia)
    }

    /// `dat_pz_free`.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_STATE (PZ_IN_USE) while an EP or LMR refers to it.
    pub fn pz_free(&mut self, pz: PzHandle) -> DatResult<()> {
        if self.pzs.get(pz)?.users > 0 {
            return Err(DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStatePzInUse));
        }
        let pz = self.pzs.remove(pz)?;
        if !self.is_dead() {
            // The zone is gone for the consumer either way; the device's refusal is in the driver's trace.
            let _ = self.hca.dealloc_pd(pz.pd);
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
                self.ias.get(ia)?;
                let parent = self.lmrs.get(lmr)?;
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
                self.ias.get(ia)?;
                let other = self.lmrs.iter().any(|(_, lmr)| {
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
        self.ias.get(ia)?;
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
        if self.lmrs.len() >= self.lmrs.capacity() {
            return Err(FULL);
        }
        let region = self
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
        let handle = self.lmrs.insert(lmr).map_err(|_| FULL)?;
        let lmr_context = context_of(handle);
        let lmr = self.lmrs.get_mut(handle)?;
        (lmr.handle, lmr.context) = (handle, lmr_context);
        self.pzs.get_mut(pz)?.users += 1;
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
        let lmr = self.lmrs.get(lmr)?;
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
        self.lmrs.get(lmr)?;
        if self.is_bound(lmr) {
            return Err(IN_USE);
        }
        let region = self.lmrs.get(lmr)?.region;
        let freed = if self.is_dead() { Ok(()) } else { self.hca.deregister(region) };
        // Firmware's "resource busy": only the device knows whether a bind that was flushed had been carried out, and in which order
        // binds of several EPs were.
        if let Err(Error::Command(refused)) = freed
            && refused.status.0 == 0x06
        {
            return Err(IN_USE);
        }
        let lmr = self.lmrs.remove(lmr)?;
        if let Ok(pz) = self.pzs.get_mut(lmr.pz) {
            pz.users = pz.users.saturating_sub(1);
        }
        freed.map_err(|_| DatReturn::new(ReturnType::InternalError))
    }

    /// `dat_lmr_sync_rdma_read`: local changes become visible to a peer's reads. DMA is coherent here, so this checks.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_PARAMETER for a segment outside its region.
    pub fn lmr_sync_rdma_read(&self, ia: IaHandle, segments: &[LmrTriplet]) -> DatResult<()> {
        self.ias.get(ia)?;
        for segment in segments {
            let outside = DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg2);
            let lmr = lmr_of(&self.lmrs, segment.lmr_context).map_err(|_| outside)?;
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
        self.hca
            .alloc(len, align.max(4096))
            .map_err(|_| DatReturn::error(ReturnType::InsufficientResources, Subtype::ResourceMemory))
    }

    /// Extension: gives memory of [`Adapter::dma_alloc`] back. It must not be registered any more.
    ///
    /// # Errors
    /// INVALID_PARAMETER if it was not given out.
    pub fn dma_free(&mut self, memory: DmaSlice) -> DatResult<()> {
        self.hca.free(memory).map_err(|_| DatReturn::new(ReturnType::InvalidParameter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_are_never_zero_and_carry_the_slot() {
        assert_eq!(context_of(LmrHandle::make(0, 0, 1)), 1);
        assert_eq!(context_of(LmrHandle::make(0, 7, 0xffff)), 0x0007_ffff);
        assert_eq!(context_of(LmrHandle::make(0, 7, 0x1_0000)), 0x0007_0001);
        assert_eq!(context_of(LmrHandle::make(3, 0xffff, u32::MAX)), 0xffff_ffff);
        assert_eq!(crate::handle::HandleType::Lmr.invalid().subtype(), Some(Subtype::InvalidHandleLmr));
    }

    #[test]
    fn rights() {
        assert_eq!(access(MemPriv::ALL), Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE);
        assert_eq!(access(MemPriv::LOCAL_READ), Access::empty());
    }
}

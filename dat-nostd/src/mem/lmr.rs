//! Protection zones and local memory regions as objects.

use driver_mlx::DmaSlice;
use driver_mlx::{Access, Error, MemoryRegion, Pd, Sge};

use crate::base::handle::{IaHandle, LmrHandle, PzHandle, Typed};
use crate::base::ret::{DatReturn, ReturnType, Subtype};
use crate::base::table::Table;
use crate::base::types::{LmrTriplet, MemPriv};

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
    pub(crate) memory: DmaSlice,
    pub(crate) kind: Kind,
}

/// What a region was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
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
pub(crate) fn context_of(handle: LmrHandle) -> u32 {
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

pub(crate) const IN_USE: DatReturn =
    DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStateLmrInUse);

/// Rights that need a key for the peer.
pub(crate) const REMOTE: MemPriv =
    MemPriv::REMOTE_READ.union(MemPriv::REMOTE_WRITE).union(MemPriv::REMOTE_ATOMIC);

impl Lmr {
    /// Whether bytes are named by offsets.
    pub(crate) fn zero_based(&self) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_are_never_zero_and_carry_the_slot() {
        assert_eq!(context_of(LmrHandle::make(0, 0, 1)), 1);
        assert_eq!(context_of(LmrHandle::make(0, 7, 0xffff)), 0x0007_ffff);
        assert_eq!(context_of(LmrHandle::make(0, 7, 0x1_0000)), 0x0007_0001);
        assert_eq!(context_of(LmrHandle::make(3, 0xffff, u32::MAX)), 0xffff_ffff);
        assert_eq!(crate::base::handle::HandleType::Lmr.invalid().subtype(), Some(Subtype::InvalidHandleLmr));
    }

    #[test]
    fn rights() {
        assert_eq!(access(MemPriv::ALL), Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE);
        assert_eq!(access(MemPriv::LOCAL_READ), Access::empty());
    }
}

//! Local memory regions as objects.

use core::mem::{self, offset_of};

use driver_mlx::{
    Access, Base, Deregistration, DmaBuffer, DmaSlice, Error, LKey, MapError, MemoryRegion, Pd, Pending,
    Registration, Sge,
};

use crate::base::attr::{LmrCreated, LmrParameters};
use crate::base::handle::{IaHandle, LmrHandle, PzHandle, Typed};
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::table::{Slot, Table, of_ia};
use crate::base::types::{LmrTriplet, MemPriv, MemType};

/// A local memory region. The fields that posts read are in the first cache line of its slot.
#[derive(Debug)]
#[repr(C)]
pub struct Lmr {
    pd: Pd,
    /// Address of the first byte after it.
    end: u64,
    length: u64,
    /// Generation (bits 31–16) and slot (15–0) as handed out.
    context: u32,
    privileges: MemPriv,
    lkey: LKey,
    /// Its own.
    handle: LmrHandle,
    ia: IaHandle,
    pz: PzHandle,
    start: u64,
    /// The context for peers; 0 without remote rights.
    rmr_context: u32,
    key: Key,
    base: Base,
    kind: Kind,
}

const _: () = assert!(offset_of!(Lmr, handle) <= Slot::<Lmr>::HOT);

of_ia! { Lmr }

/// For whom a region is made, and what it allows.
#[derive(Clone, Copy)]
pub(crate) struct Grant {
    pub(crate) ia: IaHandle,
    pub(crate) pz: PzHandle,
    pub(crate) mem_priv: MemPriv,
    pub(crate) base: Base,
    pub(crate) kind: Kind,
}

impl Grant {
    /// Memory that segments and peers name by its addresses.
    pub(crate) fn new(ia: IaHandle, pz: PzHandle, mem_priv: MemPriv) -> Self {
        Self { ia, pz, mem_priv, base: Base::Virtual, kind: Kind::Virtual }
    }
}

/// The driver's key of a region.
#[derive(Debug)]
pub(crate) enum Key {
    /// CREATE_MKEY is in flight.
    Creating(Pending<Registration>),
    /// The region can be used.
    Ready(MemoryRegion),
    /// DESTROY_MKEY is in flight.
    Destroying(Pending<Deregistration>),
    /// A call has taken the key away.
    Taken,
}

impl Key {
    /// The key, if the region can be used.
    fn ready(&self) -> Option<&MemoryRegion> {
        if let Self::Ready(region) = self { Some(region) } else { None }
    }
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

/// `DAT_MEM_TYPE` and `DAT_REGION_DESCRIPTION`: what a region is made from. Memory is a [`DmaBuffer`] or a range of one; that of the
/// consumer's own enters by [`Adapter::lmr_create_virtual`](crate::Adapter::lmr_create_virtual).
#[derive(Clone, Copy, Debug)]
pub enum Region<'b> {
    /// `DAT_MEM_TYPE_VIRTUAL`: memory; segments and peers name its bytes by `va()`.
    Virtual(DmaSlice<'b>),
    /// `DAT_MEM_TYPE_LMR`: the memory of a region that exists, with another zone and other rights.
    Lmr(LmrHandle),
    /// `DAT_MEM_TYPE_SHARED_VIRTUAL`: memory that several consumers register under one cookie. Without processes all of them have it
    /// at one address; the cookie guards against naming two ranges of memory alike.
    SharedVirtual(DmaSlice<'b>, LmrCookie),
}

impl<'b> From<DmaSlice<'b>> for Region<'b> {
    fn from(memory: DmaSlice<'b>) -> Self {
        Region::Virtual(memory)
    }
}

impl<'b> From<&'b DmaBuffer> for Region<'b> {
    fn from(buffer: &'b DmaBuffer) -> Self {
        Region::Virtual(buffer.as_slice())
    }
}

impl From<LmrHandle> for Region<'_> {
    fn from(lmr: LmrHandle) -> Self {
        Region::Lmr(lmr)
    }
}

/// `lmr_context`: slot and a 16-bit generation that is never 0, so no context is ever 0.
pub(crate) fn context_of(handle: LmrHandle) -> u32 {
    let generation = (handle.any().generation().wrapping_sub(1) % 0xffff) + 1;
    generation << 16 | u32::from(handle.any().slot())
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
        Error::OutOfMemory { .. } | Error::Map(MapError::NoSpace) => {
            DatReturn::error(ReturnType::InsufficientResources, Subtype::ResourceMemory)
        }
        // Memory of another adapter, or memory that the device cannot be shown.
        Error::NotAllocated | Error::Map(MapError::Unsupported | MapError::BadAddress) => {
            DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg3)
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

/// Whether these rights can be given: remote write needs local write on InfiniBand, and no other bits exist.
pub(crate) fn check_rights(mem_priv: MemPriv) -> DatResult<()> {
    let writes = MemPriv::REMOTE_WRITE | MemPriv::REMOTE_ATOMIC;
    let remote_write_alone = mem_priv.intersects(writes) && !mem_priv.contains(MemPriv::LOCAL_WRITE);
    if remote_write_alone || !(MemPriv::ALL | MemPriv::REMOTE_ATOMIC).contains(mem_priv) {
        return Err(DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg6));
    }
    Ok(())
}

impl Lmr {
    /// A region that cannot be used yet: no segment lies inside before [`Lmr::settle`]. Its handle is
    /// still to be set.
    pub(crate) fn new(grant: &Grant, pd: Pd, (start, length): (u64, u64), key: Key) -> Self {
        let Grant { ia, pz, mem_priv, base, kind } = *grant;
        Self {
            handle: LmrHandle::from_bits(0),
            ia,
            pz,
            context: 0,
            pd,
            start,
            length,
            end: 0,
            privileges: mem_priv,
            lkey: LKey::new(0),
            rmr_context: 0,
            key,
            base,
            kind,
        }
    }

    pub(crate) fn set_handle(&mut self, handle: LmrHandle) {
        self.handle = handle;
    }

    pub(crate) fn handle(&self) -> LmrHandle {
        self.handle
    }

    pub(crate) fn pz(&self) -> PzHandle {
        self.pz
    }

    pub(crate) fn base(&self) -> Base {
        self.base
    }

    /// The context that segments name it by; 0 before it can be used.
    #[inline]
    pub(crate) fn context(&self) -> u32 {
        self.context
    }

    /// Returns whether the region can be made from memory (first address and bytes) that is shared as
    /// `kind` beside this one: a cookie names one range.
    pub(crate) fn agrees(&self, kind: Kind, extent: (u64, u64)) -> bool {
        self.kind != kind || (self.start, self.length) == extent
    }

    /// The driver's key, if the region can be used and has these rights.
    pub(crate) fn region(&self, needed: MemPriv) -> DatResult<Option<&MemoryRegion>> {
        self.may_give(needed)?;
        Ok(self.key.ready())
    }

    /// Takes the key away. [`Lmr::put_key`] puts one back.
    pub(crate) fn take_key(&mut self) -> Key {
        mem::replace(&mut self.key, Key::Taken)
    }

    pub(crate) fn put_key(&mut self, key: Key) {
        self.key = key;
    }

    /// Lets the region be used with its key.
    pub(crate) fn settle(&mut self, region: MemoryRegion) {
        self.start = region.address();
        self.length = region.length();
        self.end = region.address().wrapping_add(region.length());
        self.lkey = region.lkey();
        self.rmr_context = if self.privileges.intersects(REMOTE) { region.rkey().get() } else { 0 };
        self.context = context_of(self.handle);
        self.key = Key::Ready(region);
    }

    /// `dat_lmr_query`.
    pub(crate) fn parameters(&self) -> LmrParameters {
        LmrParameters {
            ia: self.ia,
            mem_type: match self.kind {
                Kind::Virtual => MemType::Virtual,
                Kind::Lmr => MemType::Lmr,
                Kind::Shared(_) => MemType::SharedVirtual,
            },
            pz: self.pz,
            length: self.length,
            mem_priv: self.privileges,
            lmr_context: self.context,
            rmr_context: self.rmr_context,
            registered_size: self.length,
            registered_address: self.start,
        }
    }

    /// What creating it answers.
    pub(crate) fn created(&self) -> LmrCreated {
        LmrCreated {
            lmr: self.handle,
            lmr_context: self.context,
            rmr_context: self.rmr_context,
            registered_size: self.length,
            registered_address: self.start,
        }
    }

    /// Whether a consumer may make a region of this one with these rights. Local read is always there, and what the memory's owner has
    /// kept from writing stays so.
    pub(crate) fn may_give(&self, mem_priv: MemPriv) -> DatResult<()> {
        if (self.privileges | MemPriv::LOCAL_READ).contains(mem_priv) {
            Ok(())
        } else {
            Err(DatReturn::new(ReturnType::PrivilegesViolation))
        }
    }

    /// Whether a window on it may give peers these rights.
    pub(crate) fn may_expose(&self, mem_priv: MemPriv) -> DatResult<()> {
        for (right, needs, subtype) in [
            (MemPriv::REMOTE_READ, MemPriv::LOCAL_READ, Subtype::PrivilegesRead),
            (MemPriv::REMOTE_WRITE, MemPriv::LOCAL_WRITE, Subtype::PrivilegesWrite),
            (MemPriv::REMOTE_ATOMIC, MemPriv::LOCAL_WRITE, Subtype::PrivilegesWrite),
        ] {
            if mem_priv.contains(right) && !self.privileges.contains(needs) {
                return Err(DatReturn::error(ReturnType::PrivilegesViolation, subtype));
            }
        }
        Ok(())
    }

    /// A segment as the device wants it, its length cut to 32 bits, if it lies inside, the zone is right and the rights suffice.
    /// Local read is not checked: InfiniBand has no region without it (IBTA 1.3, Register Memory Region), and the pages of the
    /// post calls promise PRIVILEGES_VIOLATION only for rights that the region lacks.
    #[inline]
    pub(crate) fn sge(&self, triplet: &LmrTriplet, pd: Pd, writes: bool) -> Option<Sge> {
        let writable = !writes || self.privileges.contains(MemPriv::LOCAL_WRITE);
        let is_named = self.context == triplet.lmr_context;
        (is_named && self.pd == pd && writable && self.contains(triplet)).then_some(Sge {
            address: triplet.virtual_address,
            length: triplet.segment_length as u32,
            lkey: self.lkey,
        })
    }

    /// Whether all of a segment is the region's.
    #[inline]
    pub(crate) fn contains(&self, triplet: &LmrTriplet) -> bool {
        // From the segment's first byte to the region's end: more than the region before its start and behind its end.
        let rest = self.end.wrapping_sub(triplet.virtual_address);
        rest >= triplet.segment_length && rest <= self.length
    }
}

/// The regions of a post's segments: a table, or those of a run of posts, looked up once.
pub(crate) trait Regions {
    /// Returns the region in the slot of this context, or of segment `index`. [`Lmr::sge`] compares
    /// the contexts.
    fn region(&self, index: usize, context: u32) -> Option<&Lmr>;
}

impl Regions for Table<'_, LmrHandle, Lmr> {
    #[inline]
    fn region(&self, _: usize, context: u32) -> Option<&Lmr> {
        self.at(context as u16)
    }
}

impl<const N: usize> Regions for [&Lmr; N] {
    #[inline]
    fn region(&self, index: usize, _: u32) -> Option<&Lmr> {
        self.get(index).copied()
    }
}

/// Returns [`Lmr::sge`] of the region that segment `index` names, or an error. An empty segment has no
/// errors.
pub(crate) fn sge_of(
    regions: &impl Regions,
    index: usize,
    triplet: &LmrTriplet,
    pd: Pd,
    writes: bool,
) -> DatResult<Sge> {
    if triplet.segment_length == 0 {
        return Ok(Sge { address: 0, length: 0, lkey: LKey::new(0) });
    }
    let lmr = named(regions, index, triplet.lmr_context)?;
    lmr.sge(triplet, pd, writes).ok_or(if !lmr.contains(triplet) {
        DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg3)
    } else if lmr.pd != pd {
        let subtype = if writes { Subtype::ProtectionWrite } else { Subtype::ProtectionRead };
        DatReturn::error(ReturnType::ProtectionViolation, subtype)
    } else {
        DatReturn::error(ReturnType::PrivilegesViolation, Subtype::PrivilegesWrite)
    })
}

/// The region that a context names.
#[inline]
pub(crate) fn lmr_of<'t>(lmrs: &'t Table<'_, LmrHandle, Lmr>, context: u32) -> Result<&'t Lmr, DatReturn> {
    named(lmrs, 0, context)
}

/// The region of segment `index`, if it is the one that the context names.
#[inline]
fn named(regions: &impl Regions, index: usize, context: u32) -> Result<&Lmr, DatReturn> {
    match regions.region(index, context) {
        Some(lmr) if lmr.context == context => Ok(lmr),
        _ => Err(DatReturn::new(ReturnType::PrivilegesViolation)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_are_never_zero_and_carry_the_slot() {
        assert_eq!(context_of(LmrHandle::make(0, 0, 1)), 0x0001_0000);
        assert_eq!(context_of(LmrHandle::make(0, 7, 0xffff)), 0xffff_0007);
        assert_eq!(context_of(LmrHandle::make(0, 7, 0x1_0000)), 0x0001_0007);
        assert_eq!(context_of(LmrHandle::make(3, 0xffff, u32::MAX)), 0xffff_ffff);
        assert_eq!(crate::base::handle::HandleType::Lmr.invalid().subtype(), Some(Subtype::InvalidHandleLmr));
    }

    #[test]
    fn rights() {
        assert_eq!(access(MemPriv::ALL), Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE);
        assert_eq!(access(MemPriv::LOCAL_READ), Access::empty());
    }
}

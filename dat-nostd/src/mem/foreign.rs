//! Memory of the consumer's own: the unsafe calls of this crate.

use driver_mlx::{Base, Error, Platform};

use crate::adapter::Adapter;
use crate::base::attr::LmrCreated;
use crate::base::handle::{IaHandle, LmrHandle, PzHandle};
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::types::MemPriv;
use crate::mem::Memory;
use crate::mem::lmr::{Grant, Key, Kind, LmrCookie, access, creation_error};

impl<P: Platform> Memory<'_, '_, P> {
    /// # Safety
    /// As [`Adapter::lmr_create_virtual`].
    unsafe fn register_foreign(
        &mut self,
        (va, len): (*mut u8, usize),
        grant: &Grant,
    ) -> DatResult<LmrCreated> {
        check_length(len)?;
        self.insert(grant, |device, pd| {
            // SAFETY: this function's contract is the driver's.
            unsafe { device.hca_mut().register_foreign(pd, va, len, access(grant.mem_priv), grant.base) }
        })
    }
}

fn check_length(len: usize) -> DatResult<()> {
    if len == 0 { Err(DatReturn::error(ReturnType::LengthError, Subtype::InvalidArg4)) } else { Ok(()) }
}

impl<'s, P: Platform> Adapter<'s, P> {
    /// `dat_lmr_create` with `DAT_MEM_TYPE_VIRTUAL`, of `len` bytes at `va` that are the consumer's own: a heap's, a stack's, anything
    /// that [`Platform::map`] can show the device, in one range of its addresses. It is unmapped when the region is freed.
    ///
    /// # Errors
    /// As [`Adapter::lmr_create`]; INVALID_PARAMETER for memory that the platform does not map.
    ///
    /// # Safety
    /// Until `lmr_free` has succeeded for this region, for every region made from it, and for no longer than that:
    /// - `va` to `va + len` stays mapped and where it is;
    /// - no Rust reference covers bytes that the device may write (with local write, remote write or remote atomic access), and no
    ///   mutable one covers bytes that it may read;
    /// - access from this side is volatile or atomic.
    ///
    /// If `lmr_free` fails, or is never called, the device may use the memory until the adapter is closed or dropped.
    pub unsafe fn lmr_create_virtual(
        &mut self,
        ia: IaHandle,
        va: *mut u8,
        len: usize,
        pz: PzHandle,
        mem_priv: MemPriv,
    ) -> DatResult<LmrCreated> {
        self.objects().get(ia)?;
        // SAFETY: this function's contract.
        unsafe { self.memory().register_foreign((va, len), &Grant::new(ia, pz, mem_priv)) }
    }

    /// Extension: as [`Adapter::lmr_create_virtual`], but segments and peers name the bytes by
    /// offsets, as in [`Adapter::lmr_create_zero_based`].
    ///
    /// # Errors
    /// As [`Adapter::lmr_create_virtual`].
    ///
    /// # Safety
    /// As [`Adapter::lmr_create_virtual`].
    pub unsafe fn lmr_create_virtual_zero_based(
        &mut self,
        ia: IaHandle,
        va: *mut u8,
        len: usize,
        pz: PzHandle,
        mem_priv: MemPriv,
    ) -> DatResult<LmrCreated> {
        let grant = Grant { base: Base::Zero, ..Grant::new(ia, pz, mem_priv) };
        self.objects().get(ia)?;
        // SAFETY: this function's contract.
        unsafe { self.memory().register_foreign((va, len), &grant) }
    }

    /// `dat_lmr_create` with `DAT_MEM_TYPE_SHARED_VIRTUAL`, of memory of the consumer's own: as [`Adapter::lmr_create_virtual`], with
    /// the cookie under which its consumers know it.
    ///
    /// # Errors
    /// As [`Adapter::lmr_create_virtual`]; INVALID_STATE (LMR_IN_USE) if the cookie names other memory.
    ///
    /// # Safety
    /// As [`Adapter::lmr_create_virtual`].
    pub unsafe fn lmr_create_shared_virtual(
        &mut self,
        ia: IaHandle,
        va: *mut u8,
        len: usize,
        cookie: LmrCookie,
        pz: PzHandle,
        mem_priv: MemPriv,
    ) -> DatResult<LmrCreated> {
        let kind = Kind::Shared(cookie);
        self.objects().check_cookie(kind, (va.addr() as u64, len as u64))?;
        self.objects().get(ia)?;
        // SAFETY: this function's contract.
        unsafe { self.memory().register_foreign((va, len), &Grant { kind, ..Grant::new(ia, pz, mem_priv) }) }
    }

    /// Begins to create a region of the consumer's own memory, which [`Adapter::lmr_poll_virtual`]
    /// finishes: for consumers that share the adapter and do not wait for firmware with it. Returns
    /// `None`, without effect, while as many commands are pending as may be.
    ///
    /// # Errors
    /// As [`Adapter::lmr_create_shared_virtual`], which it is with a cookie. INTERNAL_ERROR if the
    /// platform answers `MapError::Pending`, which the consumer asked it for.
    ///
    /// # Safety
    /// As [`Adapter::lmr_create_virtual`], from this call on.
    pub unsafe fn lmr_begin_virtual(
        &mut self,
        ia: IaHandle,
        (va, len): (*mut u8, usize),
        base: Base,
        cookie: Option<LmrCookie>,
        pz: PzHandle,
        mem_priv: MemPriv,
    ) -> DatResult<Option<LmrHandle>> {
        let kind = cookie.map_or(Kind::Virtual, Kind::Shared);
        let (start, length) = (va.addr() as u64, len as u64);
        if cookie.is_some() {
            self.objects().check_cookie(kind, (start, length))?;
        }
        self.objects().get(ia)?;
        check_length(len)?;
        let grant = Grant { base, kind, ..Grant::new(ia, pz, mem_priv) };
        let mut memory = self.memory();
        let pd = memory.admit(&grant)?;
        // SAFETY: this function's contract is the driver's.
        let begun =
            unsafe { memory.device.hca_mut().begin_register_foreign(pd, va, len, access(mem_priv), base) };
        match begun {
            Ok(pending) => memory.enter(&grant, pd, (start, length), Key::Creating(pending)).map(Some),
            Err(Error::NoCommandSlot) => Ok(None),
            Err(error) => Err(creation_error(error, Subtype::ResourceMemoryRegion)),
        }
    }
}

//! Local memory regions.

use super::exported::calls;
use crate::args::{bad, need, put, segments};
use crate::convert::EXISTING_RIGHTS;
use crate::handles::{Kinded, RawHandle};
use crate::layout::{LmrParam, RegionDescription};
use crate::node::Node;
use crate::reach::{node_of, with};
use crate::state::State;
use core::ptr;
use dat_nostd::{
    Base, DatResult, DatReturn, IaHandle, LmrCreated, LmrHandle, LmrTriplet, MemPriv, MemType, PzHandle,
    Region, ReturnType, Subtype,
};

/// The memory and the rights that a program registers.
struct Wanted {
    mem_type: u32,
    region: RegionDescription,
    length: u64,
    mem_priv: MemPriv,
    va_type: VaType,
}

/// `DAT_VA_TYPE`: how segments and peers name the bytes of a region.
#[derive(Clone, Copy, PartialEq)]
enum VaType {
    Virtual,
    ZeroBased,
}

/// Where a program wants the results. All but the handle may be null.
struct Results {
    lmr_handle: *mut RawHandle,
    lmr_context: *mut u32,
    rmr_context: *mut u32,
    registered_length: *mut u64,
    registered_address: *mut u64,
}

/// Begins to create a region, or creates one of a region's memory. Returns `None`, without effect,
/// while too many commands are pending.
///
/// # Safety
/// The region is the program's: `length` bytes at its address, and the cookie's 40 bytes.
unsafe fn begin<N: Node>(
    inner: &mut State<N>,
    ia: IaHandle,
    pz: PzHandle,
    wanted: &Wanted,
) -> DatResult<Option<Begun>> {
    let Wanted { mem_type, region, length, mem_priv, va_type } = *wanted;
    let adapter = &mut inner.adapter;
    let kind = [MemType::Virtual, MemType::Lmr, MemType::SharedVirtual];
    let kind = kind.into_iter().find(|kind| *kind as u32 == mem_type);
    let kind = kind.ok_or(bad(Subtype::InvalidArg2))?;
    if kind != MemType::Virtual && va_type == VaType::ZeroBased {
        return Err(DatReturn::new(ReturnType::ModelNotSupported));
    }
    if kind == MemType::Lmr {
        let parent = LmrHandle::of(region.first.addr() as u64);
        return adapter.lmr_create(ia, Region::Lmr(parent), pz, mem_priv).map(|made| Some(Begun::Made(made)));
    }
    let start = region.first.cast::<u8>();
    // Beyond the end of the address space there is nothing.
    let len = usize::try_from(length).ok().filter(|len| start.addr().checked_add(*len).is_some());
    let len = len.ok_or(bad(Subtype::InvalidArg4))?;
    if start.is_null() && len > 0 {
        return Err(bad(Subtype::InvalidArg3));
    }
    let base = if va_type == VaType::ZeroBased { Base::Zero } else { Base::Virtual };
    let cookie = if kind == MemType::SharedVirtual {
        need(region.cookie, Subtype::InvalidArg3)?;
        // SAFETY: this function's contract, for the cookie's bytes.
        Some(unsafe { region.cookie.read_unaligned() })
    } else {
        None
    };
    // SAFETY: this function's contract. By DAT's rules the program leaves the memory where it is
    // until the region is freed; it is not Rust's.
    let lmr = unsafe { adapter.lmr_begin_virtual(ia, (start, len), base, cookie, pz, mem_priv) }?;
    Ok(lmr.map(Begun::Pending))
}

/// A region whose creation was begun.
enum Begun {
    Made(LmrCreated),
    Pending(LmrHandle),
}

/// Registers memory and stores the results.
///
/// # Safety
/// 1. As [`register`].
/// 2. Results may be written.
unsafe fn create<N: Node>(
    ia: RawHandle,
    pz: RawHandle,
    wanted: DatResult<Wanted>,
    results: &Results,
) -> DatResult<()> {
    let node = node_of::<N, IaHandle>(ia)?;
    let (ia, pz) = (IaHandle::of(ia), PzHandle::of(pz));
    let mut begun = None;
    let made = node.repeat(|inner| {
        let made = match begun {
            None => {
                inner.adapter.ia_query(ia)?;
                inner.adapter.pz_query(pz)?;
                let wanted = wanted.as_ref().map_err(|error| *error)?;
                if !EXISTING_RIGHTS.contains(wanted.mem_priv) {
                    return Err(bad(Subtype::InvalidArg6));
                }
                // SAFETY: clause 1.
                match unsafe { begin(inner, ia, pz, wanted) }? {
                    Some(Begun::Made(made)) => made,
                    Some(Begun::Pending(lmr)) => {
                        begun = Some(lmr);
                        return Ok(None);
                    }
                    None => return Ok(None),
                }
            }
            Some(lmr) => match inner.adapter.lmr_poll_virtual(lmr)? {
                Some(made) => made,
                None => return Ok(None),
            },
        };
        if let Ok(Wanted { region: RegionDescription { first, cookie }, .. }) = &wanted {
            let words = [first.expose_provenance(), cookie.expose_provenance()];
            inner.beside.regions.put(made.lmr.raw(), words);
        }
        Ok(Some(made))
    });
    let made = made.unwrap_or_else(IaHandle::invalid)?;
    // SAFETY: clause 2.
    unsafe {
        put(results.lmr_handle, made.lmr.raw());
        put(results.lmr_context, made.lmr_context);
        put(results.rmr_context, made.rmr_context);
        put(results.registered_length, made.registered_size);
        put(results.registered_address, made.registered_address);
    }
    Ok(())
}

calls! {
    /// `dat_lmr_create`.
    fn dat_lmr_create(
        ia_handle: RawHandle,
        mem_type: u32,
        region: RegionDescription,
        length: u64,
        pz_handle: RawHandle,
        mem_privileges: u32,
        lmr_handle: *mut RawHandle,
        lmr_context: *mut u32,
        rmr_context: *mut u32,
        registered_length: *mut u64,
        registered_address: *mut u64,
    ) {
        need(lmr_handle, Subtype::InvalidArg7)?;
        let mem_priv = MemPriv::from_bits_retain(mem_privileges);
        let wanted = Wanted { mem_type, region, length, mem_priv, va_type: VaType::Virtual };
        let results = Results { lmr_handle, lmr_context, rmr_context, registered_length, registered_address };
        // SAFETY: this module's contract.
        unsafe { create::<N>(ia_handle, pz_handle, Ok(wanted), &results) }
    }

    /// `dat_ib_lmr_create`: also zero-based.
    fn dat_ib_lmr_create(
        ia_handle: RawHandle,
        mem_type: u32,
        region: RegionDescription,
        length: u64,
        pz_handle: RawHandle,
        mem_privileges: u32,
        va_type: u32,
        lmr_handle: *mut RawHandle,
        lmr_context: *mut u32,
        rmr_context: *mut u32,
        registered_length: *mut u64,
        registered_address: *mut u64,
    ) {
        need(lmr_handle, Subtype::InvalidArg8)?;
        let mem_priv = MemPriv::from_bits_retain(mem_privileges);
        let va_type = match va_type {
            0 => Ok(VaType::Virtual),
            1 => Ok(VaType::ZeroBased),
            _ => Err(bad(Subtype::InvalidArg7)),
        };
        let wanted = va_type.map(|va_type| Wanted { mem_type, region, length, mem_priv, va_type });
        let results = Results { lmr_handle, lmr_context, rmr_context, registered_length, registered_address };
        // SAFETY: this module's contract.
        unsafe { create::<N>(ia_handle, pz_handle, wanted, &results) }
    }

    /// `dat_lmr_query`.
    fn dat_lmr_query(lmr_handle: RawHandle, mask: u32, lmr_param: *mut LmrParam) {
        let param = with::<N, _, _>(lmr_handle, |inner, lmr: LmrHandle| {
            let found = inner.adapter.lmr_query_masked(lmr, mask)?;
            let words = inner.beside.regions.get(lmr_handle).ok_or(DatReturn::new(ReturnType::InternalError))?;
            let region = RegionDescription {
                first: ptr::with_exposed_provenance_mut(words[0]),
                cookie: ptr::with_exposed_provenance(words[1]),
            };
            Ok(LmrParam {
                ia_handle: found.ia.raw(),
                mem_type: found.mem_type as u32,
                region_desc: region,
                length: found.length,
                pz_handle: found.pz.raw(),
                mem_priv: found.mem_priv.bits(),
                lmr_context: found.lmr_context,
                rmr_context: found.rmr_context,
                registered_size: found.registered_size,
                registered_address: found.registered_address,
            })
        })?;
        need(lmr_param, Subtype::InvalidArg3)?;
        // SAFETY: the caller's.
        unsafe { put(lmr_param, param) };
        Ok(())
    }

    /// `dat_lmr_free`.
    fn dat_lmr_free(lmr_handle: RawHandle) {
        let node = node_of::<N, LmrHandle>(lmr_handle)?;
        let lmr = LmrHandle::of(lmr_handle);
        let mut begun = false;
        let freed = node.repeat(|inner| {
            if begun {
                return inner.adapter.lmr_poll_free(lmr);
            }
            begun = inner.adapter.lmr_begin_free(lmr)?;
            Ok(None)
        });
        freed.unwrap_or_else(LmrHandle::invalid)
    }

    /// `dat_lmr_sync_rdma_read`.
    fn dat_lmr_sync_rdma_read(
        ia_handle: RawHandle,
        local_segments: *const LmrTriplet,
        num_segments: u64,
    ) {
        let count = i64::try_from(num_segments).unwrap_or(i64::MAX);
        // SAFETY: the caller's.
        let segments = unsafe { segments(local_segments, count, Subtype::InvalidArg2) };
        with::<N, _, _>(ia_handle, |inner, ia: IaHandle| {
            inner.adapter.ia_query(ia)?;
            inner.adapter.lmr_sync_rdma_read(ia, segments?)
        })
    }

    /// `dat_lmr_sync_rdma_write`.
    fn dat_lmr_sync_rdma_write(
        ia_handle: RawHandle,
        local_segments: *const LmrTriplet,
        num_segments: u64,
    ) {
        let count = i64::try_from(num_segments).unwrap_or(i64::MAX);
        // SAFETY: the caller's.
        let segments = unsafe { segments(local_segments, count, Subtype::InvalidArg2) };
        with::<N, _, _>(ia_handle, |inner, ia: IaHandle| {
            inner.adapter.ia_query(ia)?;
            inner.adapter.lmr_sync_rdma_write(ia, segments?)
        })
    }
}

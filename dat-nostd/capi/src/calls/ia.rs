//! Interface adapters.

use super::exported::{SUCCESS, answer, exported};
use crate::args::{need, put};
use crate::convert::{close_flags, ia_attr, provider_attr};
use crate::handles::{Kinded, NULL, RawHandle};
use crate::layout::{IaAttr, ProviderAttr};
use crate::node::{IaNote, Node};
use crate::process;
use crate::reach::{control, node_of};
use crate::registry::Provider;
use dat_nostd::{DatResult, EvdHandle, IaHandle, Subtype};

/// `DAT_EVD_ASYNC_EXISTS`.
const ASYNC_EXISTS: RawHandle = 1;
/// `DAT_EVD_OUT_OF_SCOPE`.
const OUT_OF_SCOPE: RawHandle = 2;

/// What an open gives: the IA and its asynchronous EVD.
struct Opened {
    ia: RawHandle,
    async_evd: RawHandle,
}

/// Opens an IA of a device of ours.
fn open(
    node: &'static Node,
    name: &str,
    qlen: i32,
    evd: RawHandle,
    minor: u32,
    dat: bool,
) -> DatResult<Opened> {
    // The asynchronous EVD of the first open is elsewhere; this IA gets one that nobody hears.
    let out_of_scope = matches!(evd, ASYNC_EXISTS | OUT_OF_SCOPE);
    let given = if out_of_scope { None } else { EvdHandle::given(evd) };
    let qlen = if out_of_scope { 1 } else { u32::try_from(qlen).unwrap_or(0) };
    let mut inner = node.lock_urgently();
    // Thread safety is more than was asked for, or just that.
    let (ia, evd) =
        inner.adapter.ia_openv(if dat { "ib0-dat" } else { "ib0" }, qlen, given, 1, minor, false)?;
    inner.ias.insert(ia.raw(), IaNote { name: name.into(), out_of_scope });
    Ok(Opened { ia: ia.raw(), async_evd: if out_of_scope { OUT_OF_SCOPE } else { evd.raw() } })
}

/// `dat_ia_openv`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ia_openv(
    ia_name: *const u8,
    async_evd_min_qlen: i32,
    async_evd_handle: *mut RawHandle,
    ia_handle: *mut RawHandle,
    dat_major: u32,
    dat_minor: u32,
    thread_safety: i32,
) -> u32 {
    // What was asked for is had in either case.
    let _ = thread_safety;
    answer(|| {
        need(async_evd_handle, Subtype::InvalidArg3)?;
        need(ia_handle, Subtype::InvalidArg4)?;
        // SAFETY: the caller's; pointers are not null where that was looked at.
        let (name, evd) = unsafe { (crate::args::name(ia_name)?, async_evd_handle.read_unaligned()) };
        let provider = process::names().open(&name, dat_major)?;
        let opened = match provider {
            Provider::Ours { node, own_framing } => {
                open(node, &name, async_evd_min_qlen, evd, dat_minor, own_framing)?
            }
            Provider::Foreign(foreign) => {
                let (mut async_evd, mut ia) = (evd, NULL);
                // SAFETY: a registered provider's call, with the caller's name.
                let code = unsafe {
                    (foreign.calls().ia_open_func)(ia_name, async_evd_min_qlen, &mut async_evd, &mut ia)
                };
                if code != SUCCESS {
                    return Err(dat_nostd::DatReturn(code));
                }
                Opened { ia, async_evd }
            }
        };
        // SAFETY: the caller's.
        unsafe {
            put(async_evd_handle, opened.async_evd);
            put(ia_handle, opened.ia);
        }
        Ok(())
    })
}

/// `dat_ia_open` of this provider's table.
pub(crate) unsafe extern "C" fn dat_ia_open(
    ia_name: *const u8,
    async_evd_min_qlen: i32,
    async_evd_handle: *mut RawHandle,
    ia_handle: *mut RawHandle,
) -> u32 {
    // SAFETY: the caller's.
    unsafe { dat_ia_openv(ia_name, async_evd_min_qlen, async_evd_handle, ia_handle, 1, 2, 0) }
}

exported! {
    /// `dat_ia_query`.
    checked fn dat_ia_query(
        ia_handle: RawHandle,
        async_evd_handle: *mut RawHandle,
        ia_attr_mask: u64,
        attributes: *mut IaAttr,
        provider_attr_mask: u64,
        provider_attributes: *mut ProviderAttr,
    ) as ia_query_func {
        let node = node_of::<IaHandle>(ia_handle)?;
        let inner = node.lock();
        let found = inner.adapter.ia_query_masked(IaHandle::of(ia_handle), ia_attr_mask, provider_attr_mask)?;
        if ia_attr_mask != 0 {
            need(attributes, Subtype::InvalidArg4)?;
        }
        if provider_attr_mask != 0 {
            need(provider_attributes, Subtype::InvalidArg6)?;
        }
        let note = inner.ias.get(&ia_handle);
        let name = note.map_or(found.1.adapter_name, |note| note.name.as_str());
        let evd = if note.is_some_and(|note| note.out_of_scope) { OUT_OF_SCOPE } else { found.0.raw() };
        // SAFETY: the caller's. Without a mask the pointers mean nothing.
        unsafe {
            put(async_evd_handle, evd);
            if ia_attr_mask != 0 {
                put(attributes, ia_attr(&found.1, name, node.address()));
            }
            if provider_attr_mask != 0 {
                put(provider_attributes, provider_attr(&found.2));
            }
        }
        Ok(())
    }

    /// `dat_ia_close`.
    checked fn dat_ia_close(ia_handle: RawHandle, flags: u32) as ia_close_func {
        control(ia_handle, |inner, ia: IaHandle| {
            inner.adapter.ia_query(ia)?;
            inner.adapter.ia_close(ia, close_flags(flags)?)?;
            inner.forget_the_dead();
            Ok(())
        })
    }
}

//! The registry's calls.

use super::guarded;
use crate::foreign::{self, Foreign, Provider};
use crate::process;
use dat_calls::args::{bad, get, name, need};
use dat_calls::calls::list_providers;
use dat_calls::layout::ProviderInfo;
use dat_nostd::Subtype;

/// `dat_registry_list_providers`: fills structures that the caller's array points to. Asked for none, it says how many there are.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dat_registry_list_providers(
    max_to_return: i32,
    number_entries: *mut i32,
    list: *const *mut ProviderInfo,
) -> u32 {
    let call = || {
        let known = process::names().list();
        // SAFETY: the caller's.
        unsafe { list_providers(max_to_return, number_entries, list, &known) }
    };
    // SAFETY: numbers and pointers own nothing.
    unsafe { guarded(call) }
}

/// `dat_registry_add_provider`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dat_registry_add_provider(
    provider: *const Provider,
    provider_info: *const ProviderInfo,
) -> u32 {
    let call = || {
        need(provider, Subtype::InvalidArg1)?;
        // SAFETY: the caller's. The name is the first member.
        let (info, name) = unsafe { (get(provider_info, Subtype::InvalidArg2)?, name(provider_info.cast())) };
        let name = name.ok().filter(|name| !name.is_empty()).ok_or(bad(Subtype::InvalidArg2))?;
        if info.dapl_version_major != 1 {
            return Err(bad(Subtype::InvalidArg2));
        }
        // SAFETY: the caller leaves the table where it is until it is removed.
        let foreign =
            unsafe { Foreign::new(name.into(), info, provider) }.ok_or(bad(Subtype::InvalidArg1))?;
        process::names().add(foreign.clone())?;
        foreign::expect(&foreign);
        Ok(())
    };
    // SAFETY: numbers and pointers own nothing.
    unsafe { guarded(call) }
}

/// `dat_registry_remove_provider`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dat_registry_remove_provider(
    provider: *const Provider,
    provider_info: *const ProviderInfo,
) -> u32 {
    let call = || {
        need(provider, Subtype::InvalidArg1)?;
        need(provider_info, Subtype::InvalidArg2)?;
        // SAFETY: the caller's. The name is the first member.
        let name = unsafe { name(provider_info.cast()) }.map_err(|_| bad(Subtype::InvalidArg2))?;
        foreign::forget(&process::names().remove(provider.addr(), name)?);
        Ok(())
    };
    // SAFETY: numbers and pointers own nothing.
    unsafe { guarded(call) }
}

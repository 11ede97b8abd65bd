//! The registry's calls.

use super::exported::answer;
use crate::args::{bad, get, name, need, put};
use crate::foreign::{self, Foreign, Provider};
use crate::layout::ProviderInfo;
use crate::process;
use dat_nostd::Subtype;

/// `dat_registry_list_providers`: fills structures that the caller's array points to. Asked for none, it says how many there are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_registry_list_providers(
    max_to_return: i32,
    number_entries: *mut i32,
    list: *const *mut ProviderInfo,
) -> u32 {
    answer(|| {
        need(number_entries, Subtype::InvalidArg2)?;
        let known = process::names().list();
        // SAFETY: the caller's.
        unsafe { put(number_entries, known.len() as i32) };
        let room = usize::try_from(max_to_return).ok().filter(|room| *room > 0);
        let room = room.ok_or(bad(Subtype::InvalidArg1))?;
        need(list, Subtype::InvalidArg3)?;
        for (place, info) in known.iter().take(room).enumerate() {
            // SAFETY: the caller's array has `room` pointers.
            let to = unsafe { list.add(place).read_unaligned() };
            need(to, Subtype::InvalidArg3)?;
            // SAFETY: the caller's structure.
            unsafe { put(to, *info) };
        }
        if known.len() > room { Err(bad(Subtype::InvalidArg1)) } else { Ok(()) }
    })
}

/// `dat_registry_add_provider`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_registry_add_provider(
    provider: *const Provider,
    provider_info: *const ProviderInfo,
) -> u32 {
    answer(|| {
        need(provider, Subtype::InvalidArg1)?;
        // SAFETY: the caller's. The name is the first member.
        let (info, name) = unsafe { (get(provider_info, Subtype::InvalidArg2)?, name(provider_info.cast())) };
        let name = name.ok().filter(|name| !name.is_empty()).ok_or(bad(Subtype::InvalidArg2))?;
        if info.dapl_version_major != 1 {
            return Err(bad(Subtype::InvalidArg2));
        }
        // SAFETY: the caller leaves the table where it is until it is removed.
        let foreign = unsafe { Foreign::new(name, info, provider) }.ok_or(bad(Subtype::InvalidArg1))?;
        process::names().add(foreign.clone())?;
        foreign::expect(&foreign);
        Ok(())
    })
}

/// `dat_registry_remove_provider`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_registry_remove_provider(
    provider: *const Provider,
    provider_info: *const ProviderInfo,
) -> u32 {
    answer(|| {
        need(provider, Subtype::InvalidArg1)?;
        need(provider_info, Subtype::InvalidArg2)?;
        // SAFETY: the caller's. The name is the first member.
        let name = unsafe { name(provider_info.cast()) }.map_err(|_| bad(Subtype::InvalidArg2))?;
        foreign::forget(&process::names().remove(provider.addr(), &name)?);
        Ok(())
    })
}

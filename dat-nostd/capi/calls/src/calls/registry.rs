//! The registry.

use crate::args::{bad, need, put};
use crate::layout::ProviderInfo;
use dat_nostd::{DatResult, Subtype};

/// `dat_registry_list_providers`: fills structures that the caller's array points to. Asked for none, it says how many there are.
///
/// # Errors
/// INVALID_PARAMETER.
pub unsafe fn list_providers(
    max_to_return: i32,
    number_entries: *mut i32,
    list: *const *mut ProviderInfo,
    known: &[ProviderInfo],
) -> DatResult<()> {
    need(number_entries, Subtype::InvalidArg2)?;
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
}

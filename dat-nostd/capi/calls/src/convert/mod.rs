//! Between the structures of C and those of `dat_nostd`.

mod attr;
mod event;

pub(crate) use attr::{ep_attr, ep_attributes, ia_attr, provider_attr};
pub use event::TakenEvent;
pub(crate) use event::completion;

use crate::layout::Name;
use dat_nostd::{CloseFlags, ConnectFlags, DatResult, MemPriv, PspFlags, Qos, Subtype};

use crate::args::bad;

/// DAT's rights and `DAT_IB_MEM_PRIV_REMOTE_ATOMIC`.
pub(crate) const EXISTING_RIGHTS: MemPriv = MemPriv::ALL.union(MemPriv::REMOTE_ATOMIC);

/// A name as C has it, cut to what fits.
#[must_use]
pub fn name(text: &str) -> Name {
    let mut name = [0; 256];
    for (to, byte) in name.iter_mut().zip(text.bytes().take(255)) {
        *to = byte as core::ffi::c_char;
    }
    name
}

/// A count that must not be negative.
pub(crate) fn count(given: i32, argument: Subtype) -> DatResult<u32> {
    u32::try_from(given).map_err(|_| bad(argument))
}

/// A number of ours in a `DAT_COUNT`.
pub(crate) fn signed(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

pub(crate) fn qos(given: u32, argument: Subtype) -> DatResult<Qos> {
    match given {
        0 => Ok(Qos::BestEffort),
        1 => Ok(Qos::HighThroughput),
        2 => Ok(Qos::LowLatency),
        4 => Ok(Qos::Economy),
        8 => Ok(Qos::Premium),
        _ => Err(bad(argument)),
    }
}

pub(crate) fn close_flags(given: u32) -> DatResult<CloseFlags> {
    match given {
        0 => Ok(CloseFlags::Abrupt),
        1 => Ok(CloseFlags::Graceful),
        _ => Err(bad(Subtype::InvalidArg2)),
    }
}

pub(crate) fn connect_flags(given: u32) -> DatResult<ConnectFlags> {
    match given {
        0 => Ok(ConnectFlags::Default),
        1 => Ok(ConnectFlags::Multipath),
        _ => Err(bad(Subtype::InvalidArg8)),
    }
}

pub(crate) fn psp_flags(given: u32) -> DatResult<PspFlags> {
    match given {
        0 => Ok(PspFlags::Consumer),
        1 => Ok(PspFlags::Provider),
        _ => Err(bad(Subtype::InvalidArg4)),
    }
}

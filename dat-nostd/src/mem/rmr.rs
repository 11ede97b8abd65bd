//! Remote memory regions as objects.

use driver_mlx::{MemoryWindow, Pd, RKey};

use crate::base::handle::{IaHandle, PzHandle};
use crate::base::ret::{DatReturn, ReturnType};
use crate::mem::bind::{Bound, Pending};

pub(crate) const FULL: DatReturn = DatReturn::new(ReturnType::InsufficientResources);

/// A remote memory region.
#[derive(Debug)]
pub struct Rmr {
    pub(crate) ia: IaHandle,
    pub(crate) pz: PzHandle,
    pub(crate) pd: Pd,
    pub(crate) window: MemoryWindow,
    /// Its binds in flight.
    pub(crate) pending: Pending,
    /// As of the newest bind that is known to have succeeded, and which one that was.
    pub(crate) confirmed: Option<Bound>,
    pub(crate) order: u64,
    /// The device's key as of that bind; at first, as the window was made.
    pub(crate) stands: RKey,
}

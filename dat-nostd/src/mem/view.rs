//! The parts of an adapter that memory management needs, borrowed together.

use driver_mlx::Platform;

use crate::adapter::device::Device;
use crate::adapter::shared::Shared;
use crate::base::handle::{LmrHandle, PzHandle};
use crate::base::table::Table;
use crate::mem::lmr::Lmr;
use crate::mem::zone::Pz;

/// Zones, regions and windows of an adapter, and the device that has their keys.
pub(crate) struct Memory<'a, 's, P: Platform> {
    pub(crate) device: &'a mut Device<'s, P>,
    pub(crate) pzs: &'a mut Table<'s, PzHandle, Pz>,
    pub(crate) lmrs: &'a mut Table<'s, LmrHandle, Lmr>,
    pub(crate) shared: &'a mut Shared<'s>,
}

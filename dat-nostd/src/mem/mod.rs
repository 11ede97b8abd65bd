//! Memory: protection zones, local memory regions, remote memory regions, buffers.

pub(crate) mod bind;
pub(crate) mod buffers;
#[allow(unsafe_code)]
pub(crate) mod foreign;
pub(crate) mod lmr;
#[allow(unsafe_code)]
pub(crate) mod processor;
pub(crate) mod regions;
pub(crate) mod rmr;
pub(crate) mod windows;
pub(crate) mod zone;
pub(crate) mod zones;

use driver_mlx::Platform;

use crate::adapter::device::Device;
use crate::adapter::objects::{Objects, Tables};
use crate::base::handle::{LmrHandle, PzHandle};
use crate::base::table::Table;
use crate::mem::lmr::Lmr;
use crate::mem::rmr::Windows;
use crate::mem::zone::Pz;

/// Zones, regions and windows of an adapter, and the device that has their keys.
pub(crate) struct Memory<'a, 's, P: Platform> {
    device: &'a mut Device<'s, P>,
    pzs: &'a mut Table<'s, PzHandle, Pz>,
    lmrs: &'a mut Table<'s, LmrHandle, Lmr>,
    windows: &'a mut Windows<'s>,
}

impl<'a, 's, P: Platform> Memory<'a, 's, P> {
    pub(crate) fn new(device: &'a mut Device<'s, P>, objects: &'a mut Objects<'s, P::Bar>) -> Self {
        let Tables { pzs, lmrs, windows, .. } = objects.split();
        Self { device, pzs, lmrs, windows }
    }
}

//! Extension: memory of the adapter's own region, for consumers.

use driver_mlx::{DmaBuffer, Error, Platform, Rejected};

use crate::adapter::Adapter;
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::mem::lmr::IN_USE;

/// A buffer that could not be freed comes back.
#[derive(Debug)]
pub struct BufferKept {
    /// Why.
    pub reason: DatReturn,
    /// The buffer.
    pub buffer: DmaBuffer,
}

impl From<BufferKept> for DatReturn {
    fn from(kept: BufferKept) -> Self {
        kept.reason
    }
}

impl<'s, P: Platform> Adapter<'s, P> {
    /// Extension: memory from the adapter's DMA region, in blocks of 4096 bytes and aligned to them at least.
    ///
    /// # Errors
    /// INSUFFICIENT_RESOURCES (RESOURCE_MEMORY), also while the device is gone; INVALID_PARAMETER for a length of 0 or an alignment that is no power of two.
    pub fn dma_alloc(&mut self, len: usize, align: usize) -> DatResult<DmaBuffer> {
        if len == 0 || !align.is_power_of_two() {
            return Err(DatReturn::new(ReturnType::InvalidParameter));
        }
        self.device_mut()
            .hca_mut()
            .alloc(len, align.max(4096))
            .map_err(|_| DatReturn::error(ReturnType::InsufficientResources, Subtype::ResourceMemory))
    }

    /// Extension: gives memory of [`Adapter::dma_alloc`] back. Once the device is gone ([`Adapter::is_dead`]) nobody can say what it
    /// still writes: nothing is given out then before [`Adapter::recover`] has reset it.
    ///
    /// # Errors
    /// INVALID_STATE (LMR_IN_USE) while an LMR leads to it, INVALID_PARAMETER for a buffer of another adapter; the buffer comes back.
    pub fn dma_free(&mut self, buffer: DmaBuffer) -> Result<(), BufferKept> {
        match self.device_mut().hca_mut().free(buffer) {
            Ok(()) => Ok(()),
            Err(Rejected { error: Error::InUse, value }) => Err(BufferKept { reason: IN_USE, buffer: value }),
            Err(Rejected { value, .. }) => {
                Err(BufferKept { reason: DatReturn::new(ReturnType::InvalidParameter), buffer: value })
            }
        }
    }
}

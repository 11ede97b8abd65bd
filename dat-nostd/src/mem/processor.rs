//! Registered memory under the processor's hands, in the device's place: for protocols that move data within a node.

use driver_mlx::{DmaSlice, Platform};

use crate::adapter::Adapter;
use crate::adapter::device::Device;
use crate::base::handle::LmrHandle;
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::types::MemPriv;
use crate::mem::lmr::Lmr;

/// The promise that goes with access to what is registered: who registers memory keeps it, and may give it to another thread, while a
/// device reads and writes it all the same. This processor may do what a device does only if no other thread does anything meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoleAccess(());

impl SoleAccess {
    /// Makes the promise.
    ///
    /// ```compile_fail,E0133
    /// let promise = dat_nostd::SoleAccess::promised();
    /// ```
    ///
    /// # Safety
    /// As long as a copy of this is used with an adapter, no other thread than the adapter's accesses memory that is registered with it
    /// while one of the adapter's calls runs. Where there is one thread, or where all memory is other threads' by C's rules, that is so.
    #[must_use]
    pub const unsafe fn promised() -> Self {
        Self(())
    }
}

impl<P: Platform> Device<'_, P> {
    /// For the calls of this module, which have the promise and write only where `needed` says so.
    fn bytes_of<'a>(
        &'a self,
        lmr: &'a Lmr,
        address: u64,
        len: usize,
        needed: MemPriv,
    ) -> DatResult<DmaSlice<'a>> {
        let region = lmr.region(needed)?.ok_or_else(outside)?;
        // SAFETY: no other thread accesses the bytes by the promise of `SoleAccess`; the rest is said above.
        unsafe { self.hca().memory_of(region, address, len as u64) }.map_err(|_| outside())
    }

    /// Copies what a device may have written to where one may read.
    fn copy(&self, to: DmaSlice<'_>, from: DmaSlice<'_>) -> DatResult<()> {
        self.hca().sync_slice_for_cpu(from);
        to.copy_from(0, from, 0, from.len()).map_err(|_| outside())?;
        self.hca().sync_slice_for_device(to);
        Ok(())
    }
}

impl<P: Platform> Adapter<'_, P> {
    /// Extension: reads a region's bytes from `address` on, as its segments name them, into all of `to`.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_PARAMETER (ARG2) unless all of them are the region's, and the device has it.
    pub fn lmr_read(&self, _: SoleAccess, lmr: LmrHandle, address: u64, to: DmaSlice<'_>) -> DatResult<()> {
        self.device()
            .copy(to, self.device().bytes_of(self.objects().get(lmr)?, address, to.len(), MemPriv::empty())?)
    }

    /// Extension: writes all of `from` to a region, from `address` on.
    ///
    /// # Errors
    /// As [`Adapter::lmr_read`]; PRIVILEGES_VIOLATION for a region without local write.
    pub fn lmr_write(
        &self,
        _: SoleAccess,
        lmr: LmrHandle,
        address: u64,
        from: DmaSlice<'_>,
    ) -> DatResult<()> {
        self.device().copy(
            self.device().bytes_of(self.objects().get(lmr)?, address, from.len(), MemPriv::LOCAL_WRITE)?,
            from,
        )
    }

    /// Extension: changes 8 bytes of a region, which are a number in the processor's byte order. Writes the number before the change to
    /// `before`, last. An atomic operation of the device on the same bytes may come in between.
    ///
    /// # Errors
    /// As [`Adapter::lmr_write`]; INVALID_PARAMETER (ARG2), unless `before` has 8 bytes.
    pub fn lmr_change(
        &self,
        _: SoleAccess,
        lmr: LmrHandle,
        address: u64,
        before: DmaSlice<'_>,
        change: impl FnOnce(u64) -> u64,
    ) -> DatResult<()> {
        if before.len() != 8 {
            return Err(outside());
        }
        let word = self.device().bytes_of(self.objects().get(lmr)?, address, 8, MemPriv::LOCAL_WRITE)?;
        self.device().hca().sync_slice_for_cpu(word);
        let mut bytes = [0; 8];
        word.read(0, &mut bytes).map_err(|_| outside())?;
        word.write(0, &change(u64::from_ne_bytes(bytes)).to_ne_bytes()).map_err(|_| outside())?;
        self.device().hca().sync_slice_for_device(word);
        before.write(0, &bytes).map_err(|_| outside())?;
        self.device().hca().sync_slice_for_device(before);
        Ok(())
    }
}

const fn outside() -> DatReturn {
    DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg2)
}

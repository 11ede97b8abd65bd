//! Protection zones: create, query, free. DAT 1.2, memory management.

use driver_mlx::Platform;

use crate::adapter::Adapter;
use crate::base::handle::{IaHandle, PzHandle};
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::table::OfIa;
use crate::mem::Memory;
use crate::mem::lmr::creation_error;
use crate::mem::zone::Pz;

impl<P: Platform> Memory<'_, '_, P> {
    fn create_zone(&mut self, ia: IaHandle) -> DatResult<PzHandle> {
        const FULL: Subtype = Subtype::ResourceProtectionDomain;
        self.device.usable()?;
        if self.pzs.len() >= self.pzs.capacity() {
            return Err(DatReturn::error(ReturnType::InsufficientResources, FULL));
        }
        let pd = self.device.hca_mut().alloc_pd().map_err(|error| creation_error(error, FULL))?;
        self.pzs
            .insert(Pz::new(ia, pd))
            .map_err(|_| DatReturn::error(ReturnType::InsufficientResources, FULL))
    }

    pub(super) fn free_zone(&mut self, pz: PzHandle) -> DatResult<()> {
        if self.pzs.get(pz)?.users().is_any() {
            return Err(DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStatePzInUse));
        }
        let pz = self.pzs.remove(pz)?;
        if !self.device.is_dead() {
            // The zone is gone for the consumer either way; the device's refusal is in the driver's trace.
            let _ = self.device.hca_mut().dealloc_pd(pz.pd());
        }
        Ok(())
    }

    /// An object refers to a zone no more.
    pub(crate) fn leave_zone(&mut self, pz: PzHandle) {
        if let Ok(pz) = self.pzs.get_mut(pz) {
            pz.users_mut().detach();
        }
    }
}

impl<'s, P: Platform> Adapter<'s, P> {
    /// `dat_pz_create`.
    ///
    /// # Errors
    /// INVALID_HANDLE, INSUFFICIENT_RESOURCES.
    pub fn pz_create(&mut self, ia: IaHandle) -> DatResult<PzHandle> {
        self.objects().get(ia)?;
        self.memory().create_zone(ia)
    }

    /// `dat_pz_query`: the IA.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn pz_query(&self, pz: PzHandle) -> DatResult<IaHandle> {
        Ok(self.objects().get(pz)?.ia())
    }

    /// `dat_pz_free`.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_STATE (PZ_IN_USE) while an EP or LMR refers to it.
    pub fn pz_free(&mut self, pz: PzHandle) -> DatResult<()> {
        self.memory().free_zone(pz)
    }
}

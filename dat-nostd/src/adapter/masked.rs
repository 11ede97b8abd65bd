//! Queries as a C consumer asks them, with a mask. The answers are whole, as the specification allows; the mask is checked.

use driver_mlx::Platform;

use crate::adapter::Adapter;
use crate::base::attr::{
    CnoParameters, CrParameters, EpParameters, EvdParameters, IaAttributes, LmrParameters,
    ProviderAttributes, PspParameters, RmrParameters, RspParameters, SrqParameters,
};
use crate::base::fields::{
    CnoFields, CrFields, EpFields, EvdFields, IaFields, LmrFields, ProviderFields, PspFields, PzFields,
    RmrFields, RspFields, SrqFields,
};
use crate::base::handle::{
    CnoHandle, CrHandle, EpHandle, EvdHandle, IaHandle, LmrHandle, PspHandle, PzHandle, RmrHandle, RspHandle,
    SrqHandle,
};
use crate::base::ret::DatResult;

macro_rules! masked {
    ($($name:ident $query:ident($handle:ty, $fields:ident: $bits:ty) -> $answer:ty;)*) => {
        impl<'s, P: Platform> Adapter<'s, P> {$(
            #[doc = concat!("`dat_", stringify!($query), "` with a mask, of the bits of [`", stringify!($fields), "`].")]
            ///
            /// # Errors
            /// INVALID_HANDLE; INVALID_PARAMETER for a bit that means nothing.
            pub fn $name(&self, handle: $handle, mask: $bits) -> DatResult<$answer> {
                let answer = self.$query(handle)?;
                $fields::check(mask)?;
                Ok(answer)
            }
        )*}
    };
}

masked! {
    cno_query_masked cno_query(CnoHandle, CnoFields: u32) -> CnoParameters;
    cr_query_masked cr_query(CrHandle, CrFields: u32) -> CrParameters<'_>;
    ep_query_masked ep_query(EpHandle, EpFields: u64) -> EpParameters;
    evd_query_masked evd_query(EvdHandle, EvdFields: u32) -> EvdParameters;
    lmr_query_masked lmr_query(LmrHandle, LmrFields: u32) -> LmrParameters;
    psp_query_masked psp_query(PspHandle, PspFields: u32) -> PspParameters;
    pz_query_masked pz_query(PzHandle, PzFields: u32) -> IaHandle;
    rmr_query_masked rmr_query(RmrHandle, RmrFields: u32) -> RmrParameters;
    rsp_query_masked rsp_query(RspHandle, RspFields: u32) -> RspParameters;
    srq_query_masked srq_query(SrqHandle, SrqFields: u32) -> SrqParameters;
}

impl<'s, P: Platform> Adapter<'s, P> {
    /// `dat_ia_query` with masks, of the bits of [`IaFields`] and of [`ProviderFields`].
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_PARAMETER for a bit that means nothing (ARG3, ARG5).
    pub fn ia_query_masked(
        &self,
        handle: IaHandle,
        ia_mask: u64,
        provider_mask: u64,
    ) -> DatResult<(EvdHandle, IaAttributes<'_>, ProviderAttributes)> {
        let answer = self.ia_query(handle)?;
        IaFields::check(ia_mask)?;
        ProviderFields::check(provider_mask)?;
        Ok(answer)
    }
}

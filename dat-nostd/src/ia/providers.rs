//! Which providers an adapter stands for. DAT 1.2, DAT registry.

use driver_mlx::Platform;

use crate::adapter::Adapter;
use crate::base::ret::DatResult;
use crate::ia::registry::{ProviderInfo, Registry};

impl<'s, P: Platform> Adapter<'s, P> {
    /// `dat_provider_init`: enters the adapter under exactly the name in `info`.
    ///
    /// # Errors
    /// As [`Registry::registry_add_provider`]; no entry is left then.
    pub fn provider_init<'n>(
        &mut self,
        registry: &mut Registry<'_, 'n>,
        info: ProviderInfo<'n>,
    ) -> DatResult<()> {
        registry.registry_add_provider(self, info)
    }

    /// `dat_provider_fini`.
    ///
    /// # Errors
    /// As [`Registry::registry_remove_provider`].
    pub fn provider_fini(
        &mut self,
        registry: &mut Registry<'_, '_>,
        info: &ProviderInfo<'_>,
    ) -> DatResult<()> {
        registry.registry_remove_provider(self, info)
    }
}

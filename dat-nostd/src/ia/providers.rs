//! Which providers an adapter stands for. DAT 1.2, DAT registry.

use driver_mlx::Platform;

use crate::adapter::Adapter;
use crate::base::ret::DatResult;
use crate::conn::framing::Framing;
use crate::ia::listing::{AdapterId, Version};
use crate::ia::registry::{ProviderInfo, Registry};

/// What an adapter's own-framing IAs are called: its name and this.
const DAT_SUFFIX: &str = "-dat";

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

    /// The form of CM messages that a name stands for.
    pub(crate) fn framing_of(&self, name: &str) -> Option<Framing> {
        if name == self.device.name {
            Some(Framing::RdmaCm)
        } else if name.strip_suffix(DAT_SUFFIX) == Some(self.device.name) {
            Some(Framing::Dat)
        } else {
            None
        }
    }

    /// Whether a name is one of this adapter's.
    pub(crate) fn answers_to(&self, name: &str) -> bool {
        self.framing_of(name).is_some()
    }

    /// Whether one of its names is registered.
    pub(crate) fn is_registered(&self) -> bool {
        !self.device.listings.is_empty()
    }

    /// Whether an IA of this form is open.
    pub(crate) fn is_open(&self, framing: Framing) -> bool {
        self.objects.ias.iter().any(|(_, ia)| ia.framing == framing)
    }

    /// A name is registered: IAs can be opened under it, and what they make has handles with this id.
    pub(crate) fn set_listing(&mut self, id: AdapterId, framing: Framing, version: Version) {
        self.device.listings.id = Some(id);
        *self.device.listings.of(framing) = Some(version);
        self.objects.set_adapter(id.0);
    }

    /// A name is not registered any more.
    pub(crate) fn unlist(&mut self, framing: Framing) {
        *self.device.listings.of(framing) = None;
    }
}

//! The registry: names and versions of providers. DAT 1.2, DAT registry.

use driver_mlx::Platform;

use crate::adapter::Adapter;
use crate::base::handle::IaHandle;
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::types::NAME_MAX_LENGTH;
use crate::ia::listing::{AdapterId, VERSION_MAJOR, VERSION_MINOR, Version, answer};

/// `DAT_PROVIDER_INFO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProviderInfo<'n> {
    /// The name to open.
    pub ia_name: &'n str,
    /// Version of the interface.
    pub dapl_version_major: u32,
    /// Its minor number: a request for a smaller one is satisfied too.
    pub dapl_version_minor: u32,
    /// Whether calls may come from several threads at once.
    pub is_thread_safe: bool,
}

impl<'n> ProviderInfo<'n> {
    /// This crate's adapters under a name.
    pub const fn new(ia_name: &'n str) -> Self {
        Self {
            ia_name,
            dapl_version_major: VERSION_MAJOR,
            dapl_version_minor: VERSION_MINOR,
            is_thread_safe: false,
        }
    }
}

impl From<&ProviderInfo<'_>> for Version {
    fn from(info: &ProviderInfo<'_>) -> Self {
        Self::new(info.dapl_version_major, info.dapl_version_minor, info.is_thread_safe)
    }
}

/// One place of a registry.
#[derive(Clone, Copy, Debug, Default)]
pub struct RegistryEntry<'n>(Option<(ProviderInfo<'n>, AdapterId)>);

impl RegistryEntry<'_> {
    /// A free place.
    pub const EMPTY: Self = Self(None);
}

/// The registry, over places that the program gives: one for each name.
///
/// An adapter's IAs can be opened under the names that are registered for it, and only as long as they are.
#[derive(Debug)]
pub struct Registry<'r, 'n> {
    entries: &'r mut [RegistryEntry<'n>],
    /// The id that the next adapter gets, unless it is taken.
    next: u8,
}

pub(crate) fn bad(argument: Subtype) -> DatReturn {
    DatReturn::error(ReturnType::InvalidParameter, argument)
}

impl<'r, 'n> Registry<'r, 'n> {
    /// A registry without providers.
    pub fn new(entries: &'r mut [RegistryEntry<'n>]) -> Self {
        Self::with_first_id(entries, 0)
    }

    /// The same, of which the first adapter gets this id: for a program that keeps several registries.
    pub fn with_first_id(entries: &'r mut [RegistryEntry<'n>], first: u8) -> Self {
        entries.fill(RegistryEntry::EMPTY);
        Self { entries, next: first }
    }

    fn providers(&self) -> impl Iterator<Item = &(ProviderInfo<'n>, AdapterId)> {
        self.entries.iter().filter_map(|entry| entry.0.as_ref())
    }

    /// `dat_registry_list_providers`: fills `list`, and `number_entries` with how many there are: also if they do not fit,
    /// which an empty list asks.
    ///
    /// # Errors
    /// INVALID_PARAMETER for an empty list (ARG1) or one too short (ARG3).
    pub fn registry_list_providers(
        &self,
        list: &mut [ProviderInfo<'n>],
        number_entries: &mut usize,
    ) -> DatResult<()> {
        *number_entries = self.providers().count();
        if list.is_empty() {
            return Err(bad(Subtype::InvalidArg1));
        }
        if list.len() < *number_entries {
            return Err(bad(Subtype::InvalidArg3));
        }
        for (to, (info, _)) in list.iter_mut().zip(self.providers()) {
            *to = *info;
        }
        Ok(())
    }

    /// `dat_registry_add_provider`: `provider` answers under the name from now on. With its first name it gets its id.
    ///
    /// # Errors
    /// INVALID_PARAMETER if the name is empty, too long or not one of the provider's (ARG2), the version is beyond the provider's (ARG2),
    /// or the provider is registered elsewhere, with an id that is taken here (ARG1); PROVIDER_ALREADY_REGISTERED;
    /// INSUFFICIENT_RESOURCES.
    pub fn registry_add_provider<P: Platform>(
        &mut self,
        provider: &mut Adapter<'_, P>,
        info: ProviderInfo<'n>,
    ) -> DatResult<()> {
        let framing = match provider.device().listings().framing_of(info.ia_name) {
            Some(framing) if info.ia_name.len() < NAME_MAX_LENGTH => framing,
            _ => return Err(bad(Subtype::InvalidArg2)),
        };
        let version = Version::from(&info);
        if Version::OURS.satisfies(version).is_err() {
            return Err(bad(Subtype::InvalidArg2));
        }
        if self.providers().any(|(other, _)| other.ia_name == info.ia_name) {
            return Err(DatReturn::new(ReturnType::ProviderAlreadyRegistered));
        }
        let Some(place) = self.entries.iter().position(|entry| entry.0.is_none()) else {
            return Err(DatReturn::new(ReturnType::InsufficientResources));
        };
        let id = self.id_for(provider)?;
        provider.device_mut().listings_mut().set_id(id);
        provider.device_mut().listings_mut().set(framing, Some(version));
        // Handles of what IAs make have this id.
        provider.objects_mut().set_adapter(id.0);
        if let Some(entry) = self.entries.get_mut(place) {
            entry.0 = Some((info, id));
        }
        Ok(())
    }

    /// The id of a provider that is registered already, or a new one.
    fn id_for<P: Platform>(&mut self, provider: &Adapter<'_, P>) -> DatResult<AdapterId> {
        let listings = &provider.device().listings();
        let is_other = |name| listings.framing_of(name).is_none();
        let taken = |id| self.providers().any(|(other, of)| *of == id && is_other(other.ia_name));
        if let Some(id) = listings.id().filter(|_| !listings.is_empty()) {
            return if taken(id) { Err(bad(Subtype::InvalidArg1)) } else { Ok(id) };
        }
        let mut ids = (0..=u8::MAX).map(|step| AdapterId(self.next.wrapping_add(step)));
        let id = ids.find(|id| !self.providers().any(|(_, of)| of == id));
        let id = id.ok_or(DatReturn::new(ReturnType::InsufficientResources))?;
        self.next = id.0.wrapping_add(1);
        Ok(id)
    }

    /// `dat_registry_remove_provider`: the name cannot be opened any more.
    ///
    /// # Errors
    /// INVALID_PARAMETER if the provider is not registered under this name; PROVIDER_IN_USE while an IA of that name is open.
    pub fn registry_remove_provider<P: Platform>(
        &mut self,
        provider: &mut Adapter<'_, P>,
        info: &ProviderInfo<'_>,
    ) -> DatResult<()> {
        let id = provider.id();
        let ours = |entry: &&mut RegistryEntry<'n>| {
            entry.0.is_some_and(|(other, of)| other.ia_name == info.ia_name && Some(of) == id)
        };
        let entry = self.entries.iter_mut().find(ours).ok_or(bad(Subtype::InvalidArg2))?;
        let framing =
            provider.device().listings().framing_of(info.ia_name).ok_or(bad(Subtype::InvalidArg2))?;
        if provider.objects().table::<IaHandle>().iter().any(|(_, ia)| ia.framing() == framing) {
            return Err(DatReturn::new(ReturnType::ProviderInUse));
        }
        entry.0 = None;
        provider.device_mut().listings_mut().set(framing, None);
        Ok(())
    }

    /// The adapter ([`Adapter::id`]) whose `ia_openv` a name is for.
    ///
    /// # Errors
    /// INVALID_PARAMETER for a name that is empty or too long; PROVIDER_NOT_FOUND, its subtype says what did not match.
    pub fn find(&self, name: &str, major: u32, minor: u32, thread_safe: bool) -> DatResult<AdapterId> {
        if name.is_empty() || name.len() >= NAME_MAX_LENGTH {
            return Err(bad(Subtype::InvalidArg1));
        }
        let found = self.providers().find(|(info, _)| info.ia_name == name);
        answer(found.map(|(info, _)| info.into()), Version::new(major, minor, thread_safe))?;
        found
            .map(|(_, id)| *id)
            .ok_or(DatReturn::error(ReturnType::ProviderNotFound, Subtype::NameNotRegistered))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        let ours =
            |major, minor, thread_safe| answer(Some(Version::OURS), Version::new(major, minor, thread_safe));
        assert_eq!(ours(1, 2, false), Ok(()));
        assert_eq!(ours(1, 0, false), Ok(()));
        let none = |subtype| Err(DatReturn::error(ReturnType::ProviderNotFound, subtype));
        assert_eq!(ours(2, 0, false), none(Subtype::MajorNotFound));
        assert_eq!(ours(1, 3, false), none(Subtype::MinorNotFound));
        assert_eq!(ours(1, 2, true), none(Subtype::ThreadSafetyNotFound));
        assert_eq!(answer(None, Version::OURS), none(Subtype::NameNotRegistered));
    }
}

//! The registry: names and versions of providers. DAT 1.2, DAT registry.

use driver_mlx::Platform;

use crate::adapter::Adapter;
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::types::NAME_MAX_LENGTH;

/// Version of the specification that this crate implements.
pub const VERSION_MAJOR: u32 = 1;

/// Its minor number.
pub const VERSION_MINOR: u32 = 2;

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

/// One place of a registry.
#[derive(Clone, Copy, Debug, Default)]
pub struct RegistryEntry<'n>(Option<(ProviderInfo<'n>, u8)>);

impl RegistryEntry<'_> {
    /// A free place.
    pub const EMPTY: Self = Self(None);
}

/// The registry, over places that the program gives.
#[derive(Debug)]
pub struct Registry<'r, 'n> {
    pub(crate) entries: &'r mut [RegistryEntry<'n>],
}

/// Whether a provider satisfies a request, or why it does not.
pub(crate) fn matches(
    info: &ProviderInfo<'_>,
    major: u32,
    minor: u32,
    thread_safe: bool,
) -> Result<(), Subtype> {
    if info.dapl_version_major != major {
        Err(Subtype::MajorNotFound)
    } else if info.dapl_version_minor < minor {
        Err(Subtype::MinorNotFound)
    } else if info.is_thread_safe != thread_safe {
        Err(Subtype::ThreadSafetyNotFound)
    } else {
        Ok(())
    }
}

/// What `ia_openv` asks of this crate's adapters.
pub(crate) fn check_version(major: u32, minor: u32, thread_safe: bool) -> DatResult<()> {
    matches(&ProviderInfo::new(""), major, minor, thread_safe)
        .map_err(|subtype| DatReturn::error(ReturnType::ProviderNotFound, subtype))
}

pub(crate) fn bad(argument: Subtype) -> DatReturn {
    DatReturn::error(ReturnType::InvalidParameter, argument)
}

impl<'r, 'n> Registry<'r, 'n> {
    /// A registry without providers.
    pub fn new(entries: &'r mut [RegistryEntry<'n>]) -> Self {
        entries.fill(RegistryEntry::EMPTY);
        Self { entries }
    }

    pub(crate) fn providers(&self) -> impl Iterator<Item = &(ProviderInfo<'n>, u8)> {
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

    /// `dat_registry_add_provider`: `provider` answers under the name.
    ///
    /// # Errors
    /// INVALID_PARAMETER if the name is empty, too long or not one of the provider's; PROVIDER_ALREADY_REGISTERED;
    /// INSUFFICIENT_RESOURCES.
    pub fn registry_add_provider<P: Platform>(
        &mut self,
        provider: &Adapter<'_, P>,
        info: ProviderInfo<'n>,
    ) -> DatResult<()> {
        if info.ia_name.is_empty()
            || info.ia_name.len() >= NAME_MAX_LENGTH
            || !provider.answers_to(info.ia_name)
        {
            return Err(bad(Subtype::InvalidArg2));
        }
        if self.providers().any(|(other, _)| other.ia_name == info.ia_name) {
            return Err(DatReturn::new(ReturnType::ProviderAlreadyRegistered));
        }
        let free = self.entries.iter_mut().find(|entry| entry.0.is_none());
        let free = free.ok_or(DatReturn::new(ReturnType::InsufficientResources))?;
        free.0 = Some((info, provider.id()));
        Ok(())
    }

    /// `dat_registry_remove_provider`.
    ///
    /// # Errors
    /// INVALID_PARAMETER if the provider is not registered under this name; PROVIDER_IN_USE while an IA of that name is open.
    pub fn registry_remove_provider<P: Platform>(
        &mut self,
        provider: &Adapter<'_, P>,
        info: &ProviderInfo<'_>,
    ) -> DatResult<()> {
        let ours = |entry: &&mut RegistryEntry<'n>| {
            entry.0.is_some_and(|(other, id)| other.ia_name == info.ia_name && id == provider.id())
        };
        let entry = self.entries.iter_mut().find(ours).ok_or(bad(Subtype::InvalidArg2))?;
        if provider.is_open(info.ia_name) {
            return Err(DatReturn::new(ReturnType::ProviderInUse));
        }
        entry.0 = None;
        Ok(())
    }

    /// The adapter ([`AdapterConfig::id`](crate::AdapterConfig::id)) whose `ia_openv` a name is for: `dat_ia_openv` less the
    /// opening.
    ///
    /// # Errors
    /// INVALID_PARAMETER for a name that is empty or too long; PROVIDER_NOT_FOUND, its subtype says what did not match.
    pub fn find(&self, name: &str, major: u32, minor: u32, thread_safe: bool) -> DatResult<u8> {
        if name.is_empty() || name.len() >= NAME_MAX_LENGTH {
            return Err(bad(Subtype::InvalidArg1));
        }
        let none = |subtype| DatReturn::error(ReturnType::ProviderNotFound, subtype);
        let (info, id) = self
            .providers()
            .find(|(info, _)| info.ia_name == name)
            .ok_or(none(Subtype::NameNotRegistered))?;
        matches(info, major, minor, thread_safe).map_err(none)?;
        Ok(*id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert_eq!(check_version(1, 2, false), Ok(()));
        assert_eq!(check_version(1, 0, false), Ok(()));
        let none = |subtype| Err(DatReturn::error(ReturnType::ProviderNotFound, subtype));
        assert_eq!(check_version(2, 0, false), none(Subtype::MajorNotFound));
        assert_eq!(check_version(1, 3, false), none(Subtype::MinorNotFound));
        assert_eq!(check_version(1, 2, true), none(Subtype::ThreadSafetyNotFound));
    }
}

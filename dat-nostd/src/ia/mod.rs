//! Interface adapter instances and the registry. DAT 1.2, IA management.

pub(crate) mod instance;
pub(crate) mod life;
pub(crate) mod listing;
pub(crate) mod providers;
pub(crate) mod registry;

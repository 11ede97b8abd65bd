//! What an adapter knows of its registration.

use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::conn::framing::Framing;

/// Version of the specification that this crate implements.
pub const VERSION_MAJOR: u32 = 1;

/// Its minor number.
pub const VERSION_MINOR: u32 = 2;

/// A version of the interface, and whether calls may come from several threads at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    major: u32,
    minor: u32,
    thread_safe: bool,
}

impl Version {
    /// This crate's.
    pub(crate) const OURS: Self = Self { major: VERSION_MAJOR, minor: VERSION_MINOR, thread_safe: false };

    pub(crate) const fn new(major: u32, minor: u32, thread_safe: bool) -> Self {
        Self { major, minor, thread_safe }
    }

    /// Whether a provider of this version satisfies a request, or why it does not: a larger minor number does.
    pub(crate) fn satisfies(self, wanted: Version) -> Result<(), Subtype> {
        if self.major != wanted.major {
            Err(Subtype::MajorNotFound)
        } else if self.minor < wanted.minor {
            Err(Subtype::MinorNotFound)
        } else if self.thread_safe != wanted.thread_safe {
            Err(Subtype::ThreadSafetyNotFound)
        } else {
            Ok(())
        }
    }
}

/// What a registered name answers to a request for a version; None: the name is not registered.
pub(crate) fn answer(listed: Option<Version>, wanted: Version) -> DatResult<()> {
    let none = |subtype| DatReturn::error(ReturnType::ProviderNotFound, subtype);
    listed.ok_or(none(Subtype::NameNotRegistered))?.satisfies(wanted).map_err(none)
}

/// What tells the adapters of one [`Registry`](crate::Registry) apart; part of every handle.
///
/// The registry gives it when an adapter is registered, before which no IA can be opened and so no handle exists. Ids go round: one
/// is given again only when all 256 have been, so a handle that outlived its adapter is none of its successor's either. A program has one
/// registry, as the specification has it; one with several gives their ids different beginnings
/// ([`Registry::with_first_id`](crate::Registry::with_first_id)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AdapterId(pub(crate) u8);

/// The names of an adapter that are registered: the registry's entries, as `ia_openv` asks for them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Listings {
    pub(crate) id: Option<AdapterId>,
    rdma_cm: Option<Version>,
    dat: Option<Version>,
}

impl Listings {
    /// The place of the name that stands for a framing.
    pub(crate) fn of(&mut self, framing: Framing) -> &mut Option<Version> {
        match framing {
            Framing::RdmaCm => &mut self.rdma_cm,
            Framing::Dat => &mut self.dat,
        }
    }

    /// As what the name that stands for a framing is registered.
    pub(crate) fn version(&self, framing: Framing) -> Option<Version> {
        match framing {
            Framing::RdmaCm => self.rdma_cm,
            Framing::Dat => self.dat,
        }
    }

    /// Whether no name is registered: then nothing can be open either.
    pub(crate) fn is_empty(&self) -> bool {
        self.rdma_cm.is_none() && self.dat.is_none()
    }
}

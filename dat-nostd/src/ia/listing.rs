//! What an adapter knows of its registration.

use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::conn::framing::Framing;
use driver_mlx::PortType;

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

/// Suffix of an adapter's name for its IAs with our own framing.
const DAT_SUFFIX: &str = "-dat";
/// Prefix of the names whose number selects one of [`ETHERNET_NAMES`].
const INFINIBAND_PREFIX: &str = "ib";
/// Names of adapters `ib0` to `ib15` with Ethernet ports.
const ETHERNET_NAMES: [&str; 16] = [
    "roce0", "roce1", "roce2", "roce3", "roce4", "roce5", "roce6", "roce7", "roce8", "roce9", "roce10",
    "roce11", "roce12", "roce13", "roce14", "roce15",
];

/// The names of an adapter, and the version under which each is registered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listings<'s> {
    /// As the embedder calls it.
    embedder_name: &'s str,
    /// As the medium calls it.
    name: &'s str,
    id: Option<AdapterId>,
    rdma_cm: Option<Version>,
    dat: Option<Version>,
}

impl<'s> Listings<'s> {
    /// Returns the listings of an unregistered adapter.
    pub(crate) fn new(embedder_name: &'s str, port_type: PortType) -> Self {
        let number =
            embedder_name.strip_prefix(INFINIBAND_PREFIX).and_then(|number| number.parse::<usize>().ok());
        let ethernet_name = number.and_then(|number| ETHERNET_NAMES.get(number).copied());
        let name = match port_type {
            PortType::InfiniBand => embedder_name,
            PortType::Ethernet => ethernet_name.unwrap_or(embedder_name),
        };
        Self { embedder_name, name, id: None, rdma_cm: None, dat: None }
    }

    /// The adapter's name, that of its IAs with RDMA-CM framing: `ib3`, on Ethernet `roce3`.
    pub(crate) fn name(&self) -> &'s str {
        self.name
    }

    /// The id that the registry gave, `None` before.
    pub(crate) fn id(&self) -> Option<AdapterId> {
        self.id
    }

    /// Returns the form of CM messages that a name stands for, or `None` if it is not the adapter's.
    pub(crate) fn framing_of(&self, name: &str) -> Option<Framing> {
        if self.is_name(name) {
            return Some(Framing::RdmaCm);
        }
        name.strip_suffix(DAT_SUFFIX).filter(|stem| self.is_name(stem)).map(|_| Framing::Dat)
    }

    /// Returns whether a name is the adapter's: `ib3`, and on Ethernet also `roce3`.
    fn is_name(&self, name: &str) -> bool {
        name == self.embedder_name || name == self.name
    }

    /// Registers the name of a framing, or removes it.
    pub(crate) fn set(&mut self, framing: Framing, version: Option<Version>) {
        match framing {
            Framing::RdmaCm => self.rdma_cm = version,
            Framing::Dat => self.dat = version,
        }
    }

    pub(crate) fn set_id(&mut self, id: AdapterId) {
        self.id = Some(id);
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

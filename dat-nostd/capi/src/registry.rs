//! The registry: which names there are, and what is open under them. DAT 1.2, DAT registry.
//!
//! Names come from the file that `DAT_OVERRIDE` names, else from `/etc/dat.conf`; from programs that register providers of their own; and
//! a name of the form `DEVICE@ADDRESS` needs no entry.

use crate::foreign::Foreign;
use crate::layout::ProviderInfo;
use crate::node::{LIBRARY, Node};
use crate::{nodes, service};
use capi_device::Target;
use capi_device::conf::{self, Entry};
use dat_nostd::{DatResult, DatReturn, ReturnType, Subtype};

/// Devices that a process may have open: handles say which in eight bits.
const MAX_DEVICES: usize = 255;

const NOT_REGISTERED: DatReturn = DatReturn::error(ReturnType::ProviderNotFound, Subtype::NameNotRegistered);

/// What is known of names.
#[derive(Default)]
pub(crate) struct Names {
    /// The file's; None until it is needed, so that a program may set its environment in `main`.
    entries: Option<Vec<Entry>>,
    foreign: Vec<Foreign>,
    open: Vec<(Target, &'static Node)>,
}

/// Whom a name is for.
pub(crate) enum Provider {
    /// This library.
    Ours { node: &'static Node, own_framing: bool },
    /// One that a program has registered.
    Foreign(Box<Foreign>),
}

impl Names {
    fn entries(&mut self) -> &[Entry] {
        self.entries.get_or_insert_with(|| conf::read(LIBRARY))
    }

    /// Finds the provider of a name, and opens its device if that is not open.
    pub(crate) fn open(&mut self, name: &str, major: u32) -> DatResult<Provider> {
        if let Some(foreign) = self.foreign.iter().find(|foreign| foreign.name == name) {
            return Ok(Provider::Foreign(Box::new(foreign.clone())));
        }
        let target = match self.entries().iter().find(|entry| entry.ia_name == name) {
            Some(entry) if entry.major != major => {
                return Err(DatReturn::error(ReturnType::ProviderNotFound, Subtype::MajorNotFound));
            }
            Some(entry) => entry.target.clone(),
            None => Target::from_name(name),
        };
        let target = target.ok_or(NOT_REGISTERED)?;
        let own_framing = target.own_framing;
        let node = match self.open.iter().find(|(other, _)| other.device == target.device) {
            // A port has one address.
            Some((other, _)) if other.address != target.address => return Err(NOT_REGISTERED),
            Some((_, node)) => node,
            None => self.bring_up(target)?,
        };
        Ok(Provider::Ours { node, own_framing })
    }

    fn bring_up(&mut self, target: Target) -> DatResult<&'static Node> {
        let none_left = DatReturn::error(ReturnType::InsufficientResources, Subtype::ResourceDevice);
        let id = self.open.len();
        let id = u8::try_from(id).ok().filter(|_| id < MAX_DEVICES).ok_or(none_left)?;
        let node = nodes::enter(id, Node::open(&target, id)?);
        service::start(node)?;
        self.open.push((target, node));
        Ok(node)
    }

    /// What `dat_registry_list_providers` lists.
    pub(crate) fn list(&mut self) -> Vec<ProviderInfo> {
        let mut list: Vec<_> = self.foreign.iter().map(|foreign| foreign.info).collect();
        list.extend(self.entries().iter().map(|entry| ProviderInfo {
            ia_name: crate::convert::name(&entry.ia_name),
            dapl_version_major: entry.major,
            dapl_version_minor: entry.minor,
            is_thread_safe: entry.is_thread_safe.into(),
        }));
        list
    }

    /// Enters a provider of a program's.
    pub(crate) fn add(&mut self, foreign: Foreign) -> DatResult<()> {
        let taken = self.foreign.iter().any(|other| other.name == foreign.name)
            || self.entries().iter().any(|entry| entry.ia_name == foreign.name);
        if taken {
            return Err(DatReturn::new(ReturnType::ProviderAlreadyRegistered));
        }
        self.foreign.push(foreign);
        Ok(())
    }

    /// Takes one out.
    pub(crate) fn remove(&mut self, table: usize, name: &str) -> DatResult<Foreign> {
        let ours = |other: &Foreign| other.table() == table && other.name == name;
        let place = self.foreign.iter().position(ours);
        let place = place.ok_or(DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg2))?;
        Ok(self.foreign.swap_remove(place))
    }
}

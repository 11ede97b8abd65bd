//! The registry: which names there are, and what is open under them. DAT 1.2, DAT registry.
//!
//! Names come from the file that `DAT_OVERRIDE` names, else from `/etc/dat.conf`; from programs that register providers of their own; and
//! a name of the form `DEVICE@ADDRESS` needs no entry.

use crate::foreign::Foreign;
use crate::node::{LIBRARY, Leaving, Node};
use crate::{nodes, service};
use capi_device::Target;
use capi_device::conf::{self, Entry};
use dat_calls::layout::ProviderInfo;
use dat_calls::{Kinded as _, name};
use dat_nostd::{DatResult, DatReturn, IaHandle, ReturnType, Subtype};
use std::ptr;

const NOT_REGISTERED: DatReturn = DatReturn::error(ReturnType::ProviderNotFound, Subtype::NameNotRegistered);

/// What is known of names.
#[derive(Default)]
pub(crate) struct Names {
    /// The file's; None until it is needed, so that a program may set its environment in `main`.
    entries: Option<Vec<Entry>>,
    foreign: Vec<Foreign>,
    open: Vec<(Target, &'static Node)>,
    /// The number of the device that was opened last.
    last: u8,
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
        // Handles of a device that was closed are not soon another's.
        let mut ids = (1..=255).map(|step| self.last.wrapping_add(step));
        let id = ids.find(|id| nodes::get(*id).is_none_or(|node| node.lock().is_none())).ok_or(none_left)?;
        let node = nodes::get_or_make(id);
        node.open(&target, id)?;
        self.last = id;
        service::start(node).inspect_err(|_| node.close())?;
        self.open.push((target, node));
        Ok(node)
    }

    /// Closes an IA, and its device with the last one.
    ///
    /// With the agent of it that is still being called.
    pub(crate) fn close_ia(
        &mut self,
        node: &'static Node,
        ia: IaHandle,
        flags: u32,
    ) -> DatResult<Option<Leaving>> {
        let mut inner = node.lock_urgently().ok_or(dat_nostd::HandleType::Ia.invalid())?;
        let closed = inner.close_ia(ia, flags);
        let leaving = Leaving::find(&inner, ia.raw(), None);
        node.changed(inner);
        closed?;
        self.close_unused(node);
        Ok(leaving)
    }

    /// Closes a device that nobody has an IA of.
    pub(crate) fn close_unused(&mut self, node: &'static Node) {
        if node.lock_urgently().is_some_and(|inner| inner.adapter.census().ias == 0) {
            self.open.retain(|(_, other)| !ptr::eq(*other, node));
            node.close();
        }
    }

    /// What `dat_registry_list_providers` lists.
    pub(crate) fn list(&mut self) -> Vec<ProviderInfo> {
        let mut list: Vec<_> = self.foreign.iter().map(|foreign| foreign.info).collect();
        list.extend(self.entries().iter().map(|entry| ProviderInfo {
            ia_name: name(&entry.ia_name),
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

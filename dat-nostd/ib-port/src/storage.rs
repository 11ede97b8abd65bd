//! Memory of a port.

use ib_mgmt::cm::{CmSlot, Listener};
use ib_mgmt::sa::QuerySlot;

use crate::path::PathEntry;

/// Services listened to at once.
pub const LISTENERS: usize = 64;
/// Questions to the subnet administrator under way at once.
pub const QUERIES: usize = 16;
/// Paths remembered.
pub const PATHS: usize = 64;

/// Memory for one port; `CONNECTIONS` of the connection manager's slots, about 1 KiB each, and about 12 KiB more.
#[derive(Debug)]
pub struct PortStorage<const CONNECTIONS: usize> {
    connections: [CmSlot; CONNECTIONS],
    listeners: [Listener; LISTENERS],
    queries: [QuerySlot; QUERIES],
    paths: [PathEntry; PATHS],
}

/// The pieces of a [`PortStorage`], lent to a port for as long as it lives.
#[derive(Debug)]
pub struct PortParts<'s> {
    pub(crate) connections: &'s mut [CmSlot],
    pub(crate) listeners: &'s mut [Listener],
    pub(crate) queries: &'s mut [QuerySlot],
    pub(crate) paths: &'s mut [PathEntry],
}

impl<const CONNECTIONS: usize> PortStorage<CONNECTIONS> {
    /// Empty storage.
    pub const fn new() -> Self {
        Self {
            connections: [CmSlot::EMPTY; CONNECTIONS],
            listeners: [Listener::EMPTY; LISTENERS],
            queries: [QuerySlot::EMPTY; QUERIES],
            paths: [PathEntry::EMPTY; PATHS],
        }
    }

    /// What [`Port::open`](crate::Port::open) takes.
    pub fn parts(&mut self) -> PortParts<'_> {
        PortParts {
            connections: &mut self.connections,
            listeners: &mut self.listeners,
            queries: &mut self.queries,
            paths: &mut self.paths,
        }
    }
}

impl<const CONNECTIONS: usize> Default for PortStorage<CONNECTIONS> {
    fn default() -> Self {
        Self::new()
    }
}

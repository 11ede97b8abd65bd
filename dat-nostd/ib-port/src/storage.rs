//! Memory of a port.

use ib_mgmt::cm::{CmSlot, Listener};
use ib_mgmt::ipoib::NeighbourSlot;
use ib_mgmt::sa::QuerySlot;

use crate::group::GroupSlot;
use crate::ipoib::{FRAME_LEN, IP_SENDS, TxSlot};
use crate::path::PathEntry;

/// Services listened to at once.
pub const LISTENERS: usize = 64;
/// Questions to the subnet administrator under way at once.
pub const QUERIES: usize = 16;
/// Paths remembered.
pub const PATHS: usize = 128;
/// IP neighbours known or asked for at once.
pub const NEIGHBOURS: usize = 128;
/// Multicast groups of IP at once, the broadcast group included.
pub const GROUPS: usize = 16;

/// Memory for one port; `CONNECTIONS` of the connection manager's slots, about 1 KiB each, and about 40 KiB more.
#[derive(Debug)]
pub struct PortStorage<const CONNECTIONS: usize> {
    connections: [CmSlot; CONNECTIONS],
    listeners: [Listener; LISTENERS],
    queries: [QuerySlot; QUERIES],
    paths: [PathEntry; PATHS],
    neighbours: [NeighbourSlot; NEIGHBOURS],
    groups: [GroupSlot; GROUPS],
    tx: [TxSlot; IP_SENDS],
    packet: [u8; FRAME_LEN],
}

/// The pieces of a [`PortStorage`], lent to a port for as long as it lives.
#[derive(Debug)]
pub struct PortParts<'s> {
    pub(crate) connections: &'s mut [CmSlot],
    pub(crate) listeners: &'s mut [Listener],
    pub(crate) queries: &'s mut [QuerySlot],
    pub(crate) paths: &'s mut [PathEntry],
    pub(crate) ip: IpParts<'s>,
}

/// The pieces for IP.
#[derive(Debug)]
pub(crate) struct IpParts<'s> {
    pub(crate) neighbours: &'s mut [NeighbourSlot],
    pub(crate) groups: &'s mut [GroupSlot],
    pub(crate) tx: &'s mut [TxSlot],
    pub(crate) packet: &'s mut [u8; FRAME_LEN],
}

impl<const CONNECTIONS: usize> PortStorage<CONNECTIONS> {
    /// Empty storage.
    pub const fn new() -> Self {
        Self {
            connections: [CmSlot::EMPTY; CONNECTIONS],
            listeners: [Listener::EMPTY; LISTENERS],
            queries: [QuerySlot::EMPTY; QUERIES],
            paths: [PathEntry::EMPTY; PATHS],
            neighbours: [NeighbourSlot::EMPTY; NEIGHBOURS],
            groups: [GroupSlot::EMPTY; GROUPS],
            tx: [TxSlot::EMPTY; IP_SENDS],
            packet: [0; FRAME_LEN],
        }
    }

    /// What [`Port::open`](crate::Port::open) takes.
    pub fn parts(&mut self) -> PortParts<'_> {
        PortParts {
            connections: &mut self.connections,
            listeners: &mut self.listeners,
            queries: &mut self.queries,
            paths: &mut self.paths,
            ip: IpParts {
                neighbours: &mut self.neighbours,
                groups: &mut self.groups,
                tx: &mut self.tx,
                packet: &mut self.packet,
            },
        }
    }
}

impl<const CONNECTIONS: usize> Default for PortStorage<CONNECTIONS> {
    fn default() -> Self {
        Self::new()
    }
}

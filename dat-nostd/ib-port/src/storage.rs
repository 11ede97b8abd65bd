//! Memory of a port.

use ib_mgmt::cm::{CmSlot, EndedSet, Listener};
use ib_mgmt::ipoib::NeighbourSlot;
use ib_mgmt::sa::QuerySlot;
use ib_types::{Gid, MacAddress};

use crate::frames::{FRAME_LEN, IP_SENDS, TxSlot};
use crate::group::GroupSlot;
use crate::ip::MemberSlot;
use crate::path::PathEntry;

/// Memory for one port; each const parameter is how many there may be at once.
///
/// | parameter | what |
/// |---|---|
/// | `CONNECTIONS` | connections in the connection manager; those in TimeWait give way to new ones |
/// | `LISTENERS` | services listened to |
/// | `QUERIES` | questions to the subnet administrator under way |
/// | `PATHS` | paths remembered |
/// | `NEIGHBOURS` | IP neighbours known or asked for |
/// | `GROUPS` | multicast groups of IP: on InfiniBand the broadcast group is one, on Ethernet up to 3 are those of the own addresses |
#[derive(Debug)]
pub struct PortStorage<
    const CONNECTIONS: usize,
    const LISTENERS: usize,
    const QUERIES: usize,
    const PATHS: usize,
    const NEIGHBOURS: usize,
    const GROUPS: usize,
> {
    connections: [CmSlot; CONNECTIONS],
    ended: [EndedSet; CONNECTIONS],
    listeners: [Listener; LISTENERS],
    queries: [QuerySlot; QUERIES],
    paths: [PathEntry; PATHS],
    neighbours: [NeighbourSlot; NEIGHBOURS],
    macs: [NeighbourSlot<Gid, MacAddress>; NEIGHBOURS],
    groups: [GroupSlot; GROUPS],
    members: [MemberSlot; GROUPS],
    tx: [TxSlot; IP_SENDS],
    packet: [u8; FRAME_LEN],
}

/// The parts of a [`PortStorage`], lent to a port for as long as it lives.
#[derive(Debug)]
pub struct PortParts<'s> {
    pub(crate) connections: &'s mut [CmSlot],
    pub(crate) ended: &'s mut [EndedSet],
    pub(crate) listeners: &'s mut [Listener],
    pub(crate) queries: &'s mut [QuerySlot],
    pub(crate) paths: &'s mut [PathEntry],
    pub(crate) ip: IpParts<'s>,
}

/// The parts for IP.
#[derive(Debug)]
pub(crate) struct IpParts<'s> {
    pub(crate) neighbours: &'s mut [NeighbourSlot],
    pub(crate) macs: &'s mut [NeighbourSlot<Gid, MacAddress>],
    pub(crate) groups: &'s mut [GroupSlot],
    pub(crate) members: &'s mut [MemberSlot],
    pub(crate) tx: &'s mut [TxSlot],
    pub(crate) packet: &'s mut [u8; FRAME_LEN],
}

impl<
    const CONNECTIONS: usize,
    const LISTENERS: usize,
    const QUERIES: usize,
    const PATHS: usize,
    const NEIGHBOURS: usize,
    const GROUPS: usize,
> PortStorage<CONNECTIONS, LISTENERS, QUERIES, PATHS, NEIGHBOURS, GROUPS>
{
    /// Empty storage.
    pub const fn new() -> Self {
        Self {
            connections: [CmSlot::EMPTY; CONNECTIONS],
            ended: [EndedSet::EMPTY; CONNECTIONS],
            listeners: [Listener::EMPTY; LISTENERS],
            queries: [QuerySlot::EMPTY; QUERIES],
            paths: [PathEntry::EMPTY; PATHS],
            neighbours: [NeighbourSlot::EMPTY; NEIGHBOURS],
            macs: [NeighbourSlot::EMPTY; NEIGHBOURS],
            groups: [GroupSlot::EMPTY; GROUPS],
            members: [MemberSlot::EMPTY; GROUPS],
            tx: [TxSlot::EMPTY; IP_SENDS],
            packet: [0; FRAME_LEN],
        }
    }

    /// What [`Port::open`](crate::Port::open) takes.
    pub fn parts(&mut self) -> PortParts<'_> {
        PortParts {
            connections: &mut self.connections,
            ended: &mut self.ended,
            listeners: &mut self.listeners,
            queries: &mut self.queries,
            paths: &mut self.paths,
            ip: IpParts {
                neighbours: &mut self.neighbours,
                macs: &mut self.macs,
                groups: &mut self.groups,
                members: &mut self.members,
                tx: &mut self.tx,
                packet: &mut self.packet,
            },
        }
    }
}

impl<
    const CONNECTIONS: usize,
    const LISTENERS: usize,
    const QUERIES: usize,
    const PATHS: usize,
    const NEIGHBOURS: usize,
    const GROUPS: usize,
> Default for PortStorage<CONNECTIONS, LISTENERS, QUERIES, PATHS, NEIGHBOURS, GROUPS>
{
    fn default() -> Self {
        Self::new()
    }
}

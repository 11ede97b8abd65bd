//! Multicast groups of the subnet: who joined, and which LID carries them.

use ib_mgmt::sa::join_state::{FULL_MEMBER, NON_MEMBER, SEND_ONLY_FULL_MEMBER, SEND_ONLY_NON_MEMBER};
use ib_mgmt::sa::trap;
use ib_types::Gid;

use crate::infiniband::packet::LID_MULTICAST;
use crate::ports::PortIndex;
use std::collections::HashSet;

/// Groups that the subnet can have, and how many of them one port may have made.
const LIMIT: usize = 4_096;
const SHARE: usize = 128;
/// Groups whose look-up counts as one step of work.
const GROUPS_PER_STEP: u64 = 16;
/// Join states that keep a group alive.
const ALIVE: u8 = FULL_MEMBER | SEND_ONLY_FULL_MEMBER;
/// Join states that receive.
const RECEIVES: u8 = FULL_MEMBER | NON_MEMBER;
/// All join states.
pub(super) const JOIN_STATES: u8 = ALIVE | RECEIVES | SEND_ONLY_NON_MEMBER;

/// The broadcast group of IP over InfiniBand in the default partition (RFC 4391, section 4).
pub(super) const IPOIB_BROADCAST: Gid =
    Gid([0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
/// Q_Key of IP over InfiniBand's groups.
const IPOIB_QKEY: u32 = 0x0b1b;

/// A group's parameters, equal for all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parameters {
    pub(super) qkey: u32,
    pub(super) mtu: u8,
    pub(super) tclass: u8,
    pub(super) pkey: u16,
    pub(super) rate: u8,
    pub(super) life: u8,
    pub(super) sl: u8,
    pub(super) flow_label: u32,
    pub(super) hop_limit: u8,
    pub(super) scope: u8,
}

#[derive(Debug)]
pub(super) struct Group {
    pub(super) mgid: Gid,
    pub(super) mlid: u16,
    pub(super) parameters: Parameters,
    /// Who made it; the subnet manager's own stay without members.
    creator: Option<PortIndex>,
    /// Port and its join state bits.
    members: Vec<(PortIndex, u8)>,
}

impl Group {
    pub(super) fn join_state(&self, port: PortIndex) -> u8 {
        self.members.iter().find(|(member, _)| *member == port).map_or(0, |(_, state)| *state)
    }

    /// The members and their join states.
    pub(super) fn members(&self) -> impl Iterator<Item = (PortIndex, u8)> {
        self.members.iter().copied()
    }

    /// Ports that receive.
    pub(super) fn receivers(&self) -> impl Iterator<Item = PortIndex> {
        self.members().filter(|(_, bits)| bits & RECEIVES != 0).map(|(port, _)| port)
    }
}

/// All groups.
#[derive(Debug)]
pub(super) struct Groups {
    groups: Vec<Group>,
    created: u16,
    /// Trap numbers of groups created and deleted, to be reported, and whose doing that is.
    pub(super) changes: Vec<(u16, Gid, Option<PortIndex>)>,
}

impl Groups {
    /// The broadcast group of IP over InfiniBand, with an MTU of this code.
    pub(super) fn new(ipoib_mtu: u8) -> Self {
        let mut groups = Self { groups: Vec::new(), created: 0, changes: Vec::new() };
        let parameters = Parameters {
            qkey: IPOIB_QKEY,
            mtu: ipoib_mtu,
            tclass: 0,
            pkey: super::manager::DEFAULT_PKEY,
            // 10 Gb/s, as OpenSM gives it: slow enough for every port.
            rate: 3,
            life: 18,
            sl: 0,
            flow_label: 0,
            hop_limit: 0,
            scope: 2,
        };
        groups.create(IPOIB_BROADCAST, parameters, None);
        groups.changes.clear();
        groups
    }

    /// Changes the MTU of IP over InfiniBand's broadcast group.
    pub(super) fn set_ipoib_mtu(&mut self, mtu: u8) {
        if let Some(group) = self.groups.iter_mut().find(|group| group.mgid == IPOIB_BROADCAST) {
            group.parameters.mtu = mtu;
        }
    }

    pub(super) fn get(&self, mgid: Gid) -> Option<&Group> {
        self.groups.iter().find(|group| group.mgid == mgid)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter()
    }

    /// Returns the steps of work of a look-up.
    pub(super) fn look_up_steps(&self) -> u64 {
        self.groups.len() as u64 / GROUPS_PER_STEP
    }

    /// Returns an MGID that no group has, for a creator that leaves the choice (IBTA 15.2.5.17).
    pub(super) fn free_mgid(&self, scope: u8) -> Option<Gid> {
        let mgid = |number: u16| {
            let mut gid = Gid([0xff, 0x10 | scope & 0xf, 0xa0, 0x1b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            if let Some(place) = gid.0.last_chunk_mut() {
                *place = number.to_be_bytes();
            }
            gid
        };
        let used: HashSet<Gid> = self.groups.iter().map(|group| group.mgid).collect();
        (1..=u16::MAX).map(mgid).find(|gid| !used.contains(gid))
    }

    /// Makes a group; `None` when there is no room, or its creator has made its share.
    pub(super) fn create(
        &mut self,
        mgid: Gid,
        parameters: Parameters,
        creator: Option<PortIndex>,
    ) -> Option<&Group> {
        let made = self.groups.iter().filter(|group| group.creator == creator).count();
        if self.groups.len() >= LIMIT || made >= SHARE {
            return None;
        }
        // A LID that no living group uses; there are more LIDs than groups.
        let mlid = loop {
            let mlid = LID_MULTICAST + self.created % 0x3ffe;
            self.created = self.created.wrapping_add(1);
            if self.groups.iter().all(|group| group.mlid != mlid) {
                break mlid;
            }
        };
        self.changes.push((trap::GROUP_CREATED, mgid, creator));
        self.groups.push(Group { mgid, mlid, parameters, creator, members: Vec::new() });
        self.groups.last()
    }

    /// Adds join state bits of a port.
    pub(super) fn join(&mut self, mgid: Gid, port: PortIndex, state: u8) {
        let Some(group) = self.groups.iter_mut().find(|group| group.mgid == mgid) else { return };
        match group.members.iter_mut().find(|(member, _)| *member == port) {
            Some((_, bits)) => *bits |= state,
            None => group.members.push((port, state)),
        }
    }

    /// Takes join state bits of a port away. Answers whether the port was a member with any of them. The last full
    /// member's leaving ends the group (IBTA 15.2.5.17).
    pub(super) fn leave(&mut self, mgid: Gid, port: PortIndex, state: u8) -> bool {
        let Some(group) = self.groups.iter_mut().find(|group| group.mgid == mgid) else { return false };
        let Some((_, bits)) =
            group.members.iter_mut().find(|(member, bits)| *member == port && bits & state != 0)
        else {
            return false;
        };
        *bits &= !state;
        self.tidy();
        true
    }

    /// A port is gone.
    pub(super) fn leave_all(&mut self, port: PortIndex) {
        for group in &mut self.groups {
            group.members.retain(|(member, _)| *member != port);
        }
        self.tidy();
    }

    fn tidy(&mut self) {
        for group in &mut self.groups {
            group.members.retain(|(_, bits)| *bits != 0);
        }
        let changes = &mut self.changes;
        self.groups.retain(|group| {
            let alive = group.creator.is_none() || group.members.iter().any(|(_, bits)| bits & ALIVE != 0);
            if !alive {
                changes.push((trap::GROUP_DELETED, group.mgid, group.creator));
            }
            alive
        });
    }

    /// Ports to which the switch forwards a packet that came in by `from`: receiving members, never back where it came from.
    pub(super) fn members(&self, mlid: u16, from: PortIndex) -> Vec<PortIndex> {
        let group = self.groups.iter().find(|group| group.mlid == mlid);
        group.map_or_else(Vec::new, |group| group.receivers().filter(|port| *port != from).collect())
    }
}

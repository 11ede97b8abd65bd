//! Multicast groups of the subnet: who joined, and which LID carries them.

use ib_mgmt::Gid;

use super::PortIndex;
use super::shape::LID_MULTICAST;

/// Groups that the subnet can have.
const LIMIT: usize = 1_024;

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
    /// Port and its join state bits: 1 full member, 2 non-member, 4 send-only.
    members: Vec<(PortIndex, u8)>,
}

impl Group {
    pub(super) fn join_state(&self, port: PortIndex) -> u8 {
        self.members.iter().find(|(member, _)| *member == port).map_or(0, |(_, state)| *state)
    }
}

/// All groups.
#[derive(Debug, Default)]
pub(super) struct Groups {
    groups: Vec<Group>,
    created: u16,
}

impl Groups {
    pub(super) fn get(&self, mgid: Gid) -> Option<&Group> {
        self.groups.iter().find(|group| group.mgid == mgid)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter()
    }

    /// Makes a group; `None` when there is no room.
    pub(super) fn create(&mut self, mgid: Gid, parameters: Parameters) -> Option<&Group> {
        if self.groups.len() >= LIMIT {
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
        self.groups.push(Group { mgid, mlid, parameters, members: Vec::new() });
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

    /// Takes join state bits of a port away. Answers whether the port was a member. The last full member's leaving ends
    /// the group (IBTA 15.2.5.17).
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
        self.groups.retain(|group| group.members.iter().any(|(_, bits)| bits & 1 != 0));
    }

    /// Ports to which the switch forwards a packet that came in by `from`: receiving members, never back where it came from.
    pub(super) fn members(&self, mlid: u16, from: PortIndex) -> Vec<PortIndex> {
        let receives = |(port, bits): &(PortIndex, u8)| (*port != from && bits & 3 != 0).then_some(*port);
        let group = self.groups.iter().find(|group| group.mlid == mlid);
        group.map_or_else(Vec::new, |group| group.members.iter().filter_map(receives).collect())
    }
}

//! Path of a packet through the switch: by LID, group or directed route, out by a port's link, in at the other end.

use crate::infiniband::packet::{LID_MULTICAST, LID_PERMISSIVE, Lrh, VL_MANAGEMENT};
use crate::packet::Packet;
use crate::work;

use super::manager;
use super::programmed::Program;
use super::{Fabric, inbox};
use crate::ports::PortIndex;

/// Where copies of a packet go.
enum Copies {
    None,
    Manager,
    One(PortIndex),
    Group(Vec<PortIndex>),
}

impl Fabric {
    /// Puts a packet on the wire at a port.
    pub fn send(&mut self, from: PortIndex, mut packet: Packet, now: u64) {
        if self.links.is_cut_by_packet(from, now) {
            self.set_link(from, false, now);
        }
        let (remark, copies) = self.route(from, &packet);
        if let Some(counters) = self.switch.counters(Some(from)) {
            counters.received(packet.bytes());
        }
        if let Some(capture) = &mut self.capture {
            capture.packet(from.0, now, packet.sealed_bytes(), remark);
        }
        // Copied only where a capture or a group needs the packet as it was.
        match copies {
            Copies::None => {}
            Copies::Manager => {
                self.links.set_quiet(None);
                if self.management.push(from, packet) {
                    self.links.hold(from, inbox::CREDIT);
                } else {
                    self.links.counters_mut().overflow += 1;
                }
            }
            Copies::One(to) => self.transmit(from.0, to, packet, now),
            Copies::Group(members) => {
                self.owe(from, work::PACKET * members.len() as u64);
                for to in members {
                    self.transmit(from.0, to, packet.clone(), now);
                }
            }
        }
    }

    /// The port behind which `lid` is.
    pub(super) fn port_of(&self, lid: u16) -> Option<PortIndex> {
        match &self.switch.program {
            Some(program) => Some(PortIndex(u32::from(program.port_of(lid)?).checked_sub(1)?)),
            None => self.routes.get(usize::from(lid)).copied().flatten(),
        }
    }

    /// The LID of the switch's management port.
    pub(super) fn switch_lid(&self) -> u16 {
        self.switch.program.as_ref().map_or(manager::SM_LID, |program| program.lid())
    }

    /// Where a packet goes by what a subnet manager of somebody else's programmed; `None` where nowhere.
    fn programmed_route(&self, program: &Program, from: PortIndex, lrh: &Lrh) -> Option<Copies> {
        // Subnet management goes through ports of any state, data through those that are Armed or Active.
        let passes = |port: PortIndex| lrh.vl == VL_MANAGEMENT || program.carries(port);
        // The management port may have more LIDs than its first (IBTA 18.2.4.3).
        let own = lrh.dlid == self.switch_lid() && lrh.dlid != 0;
        if own || program.port_of(lrh.dlid) == Some(0) {
            return Some(Copies::Manager);
        }
        if !passes(from) {
            return None;
        }
        if lrh.dlid >= LID_MULTICAST {
            let members = program.members(lrh.dlid, from);
            return Some(Copies::Group(members.into_iter().filter(|port| passes(*port)).collect()));
        }
        self.port_of(lrh.dlid).filter(|port| passes(*port)).map(Copies::One)
    }

    /// Where a packet goes.
    fn route(&mut self, from: PortIndex, packet: &Packet) -> (Option<&'static str>, Copies) {
        if !self.link_is_up(from) {
            self.links.lose_to_link(packet.bytes());
            return (Some("dropped: link down"), Copies::None);
        }
        let Ok(lrh) = Lrh::parse(packet.bytes()) else {
            self.links.counters_mut().malformed += 1;
            return (Some("dropped: malformed"), Copies::None);
        };
        if !self.admits(from, &lrh, packet.bytes()) {
            self.links.counters_mut().refused += 1;
            self.links.losses_of(packet.bytes()).refused += 1;
            if let Some(counters) = self.switch.counters(Some(from)) {
                counters.rcv_constraint_errors += 1;
            }
            return (Some("dropped: a LID, P_Key or M_Key that was not given to the port"), Copies::None);
        }
        if lrh.dlid == LID_PERMISSIVE {
            // Only directed routes use it: the switch looks at each of their hops.
            if lrh.vl == VL_MANAGEMENT {
                return (None, Copies::Manager);
            }
        } else if let Some(program) = &self.switch.program {
            if let Some(copies) = self.programmed_route(program, from, &lrh) {
                return (None, copies);
            }
        } else if lrh.dlid >= LID_MULTICAST {
            self.owe(from, self.groups.look_up_steps());
            return match self.groups.members(lrh.dlid, from) {
                members if members.is_empty() => (None, Copies::None),
                members => (None, Copies::Group(members)),
            };
        } else if lrh.dlid == manager::SM_LID {
            return (None, Copies::Manager);
        } else if let Some(Some(to)) = self.routes.get(usize::from(lrh.dlid)) {
            return (None, Copies::One(*to));
        }
        self.links.counters_mut().no_route += 1;
        self.links.losses_of(packet.bytes()).no_route += 1;
        if let Some(counters) = self.switch.counters(Some(from)) {
            counters.rcv_relay_errors += 1;
        }
        (Some("dropped: no route"), Copies::None)
    }

    pub(super) fn transmit(&mut self, source: u32, to: PortIndex, packet: Packet, now: u64) {
        let Some(counters) = self.switch.counters(Some(to)) else { return };
        if !self.links.is_up(to) {
            self.links.lose_to_link(packet.bytes());
            counters.xmit_discards += 1;
            return;
        }
        counters.sent(packet.bytes());
        let arrival = now.saturating_add(self.config.latency);
        self.links.transmit(source, to, packet, arrival, &self.config.faults);
    }

    /// Drops packets that have exceeded the head-of-queue lifetime of a congested port.
    pub(super) fn expire(&mut self, now: u64) {
        let mut from = 0;
        while let Some(index) = self.links.next_congested(from) {
            from = index.0 + 1;
            let Some(lifetime) = self.switch.head_lifetime(index) else { continue };
            let dropped = self.links.expire(index, lifetime, now);
            if let Some(counters) = self.switch.counters(Some(index)) {
                counters.xmit_discards += dropped;
            }
        }
    }

    /// Returns the time at which [`expire`](Self::expire) drops a packet.
    pub(super) fn next_expiry(&self) -> Option<u64> {
        let ports =
            std::iter::successors(self.links.next_congested(0), |port| self.links.next_congested(port.0 + 1));
        ports.filter_map(|port| self.links.expiry(port, self.switch.head_lifetime(port)?)).min()
    }

    /// The next packet that has arrived at a port.
    pub fn receive(&mut self, at: PortIndex, now: u64) -> Option<Packet> {
        self.links.receive(at, now)
    }
}

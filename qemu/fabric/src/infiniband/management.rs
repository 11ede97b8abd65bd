//! What reaches the switch's management port: packets of directed routes, and those to LID 1. Takes them to the switch's
//! agents, the subnet manager and the subnet administrator, and their answers back.

use crate::infiniband::packet::Grh;
use ib_mgmt::mad::{Mad, class, method, status};
use ib_mgmt::sa::{Notice, notice_type, producer, trap};
use ib_mgmt::smp::Smp;
use ib_types::PKey;

use super::administrator::{self, Address, Subnet};
use super::manager::{self, DEFAULT_PKEY, Event, SM_LID};
use super::switch::{self, Hop, Tables};
use super::{Fabric, MANAGER, datagram, inbox};
use crate::infiniband::packet::{LID_PERMISSIVE, QKEY_GSI, Shape, VL_MANAGEMENT};
use crate::packet::Packet;
use crate::ports::PortIndex;
use crate::work::{self, STEPS_PER_CALL};

/// MADs of the subnet administrator that one call sends.
const REPLIES: usize = 256;

impl Fabric {
    /// Lets the switch, the subnet manager and the administrator work. Call it between deliveries; it is bounded.
    #[inline]
    pub fn poll(&mut self, now: u64) {
        if self.links.has_work(now) {
            self.work(now);
        }
    }

    fn work(&mut self, now: u64) {
        self.links.mend(now);
        self.expire(now);
        self.management.begin_call();
        let mut steps = 0;
        while steps < STEPS_PER_CALL
            && let Some((from, packet)) = self.management.pop()
        {
            self.links.release(from, inbox::CREDIT);
            let before = self.owed(from);
            self.management_packet(from, &packet, now);
            let cost = self.owed(from) - before;
            self.management.charge(from, cost);
            steps += cost;
        }
        // Without a link, as it is told of where another manages, it asks nobody.
        while let Some((to, packet)) = self.manager.next_request(now) {
            self.send_from_manager(to, packet, now);
        }
        while let Some((trap, lid, sl)) = self.switch.program.as_mut().and_then(|p| p.next_trap(now)) {
            self.send_trap(&trap, lid, sl, now);
        }
        self.report_events(now);
        for _ in 0..REPLIES {
            let Some((to, mad)) = self.administrator.poll(now) else { break };
            self.send_general(&to, &mad, now);
        }
        let waits =
            self.management.len() != 0 || self.manager.has_events() || !self.groups.changes.is_empty();
        let managers = self.manager.next_deadline().into_iter().chain(self.administrator.next_deadline());
        let traps = self.switch.program.as_ref().and_then(|program| program.trap_due());
        let expiry = self.next_expiry();
        let next = managers.chain(self.links.mend_time()).chain(traps).chain(expiry).min();
        let next = next.unwrap_or(u64::MAX);
        self.links.set_quiet((!waits).then_some(next));
    }

    /// When [`poll`](Self::poll) or [`receive`](Self::receive) has something to do next; 0 is at once.
    #[must_use]
    #[inline]
    pub fn next_deadline(&self) -> Option<u64> {
        self.links.next_deadline()
    }

    fn send_from_manager(&mut self, to: PortIndex, packet: Packet, now: u64) {
        self.links.counters_mut().sent += 1;
        if let Some(counters) = self.switch.counters(None) {
            counters.sent(packet.bytes());
        }
        if let Some(capture) = &mut self.capture {
            capture.packet(MANAGER, now, packet.bytes(), None);
        }
        self.transmit(MANAGER, to, packet, now);
    }

    fn management_packet(&mut self, from: PortIndex, packet: &Packet, now: u64) {
        self.owe(from, work::MAD);
        let Some(shape) = Shape::of(packet.bytes()) else {
            self.links.counters_mut().malformed += 1;
            return;
        };
        if !packet.is_intact() {
            return;
        }
        let Some((deth, mad)) = datagram(&shape, packet.bytes()) else { return };
        if let Some(counters) = self.switch.counters(None) {
            counters.received(packet.bytes());
        }
        if shape.bth.dest_qpn == 0 && shape.lrh.vl == VL_MANAGEMENT {
            self.subnet_management(from, &shape, deth.src_qpn, &mad, now);
        } else if shape.bth.dest_qpn == 1 && deth.qkey == QKEY_GSI {
            let address = Address {
                lid: shape.lrh.slid,
                qpn: deth.src_qpn,
                vl: shape.lrh.vl,
                sl: shape.lrh.sl,
                pkey: shape.bth.pkey,
                grh: shape.grh(packet.bytes()).map(|grh| Grh { sgid: grh.dgid, dgid: grh.sgid, ..grh }),
            };
            let reply = if mad.mgmt_class() == class::PERF_MGMT && !mad.is_response() {
                Some(self.switch.performance(&mad))
            } else if self.switch.program.is_some() {
                None
            } else {
                let mut subnet = Subnet {
                    manager: &self.manager,
                    switch: &self.switch,
                    routes: &self.routes,
                    groups: &mut self.groups,
                    m_key: self.config.m_key,
                    packet_life_time: self.config.packet_life_time.min(31),
                };
                let reply = self.administrator.input(&mut subnet, from, &address, &mad, now);
                let looked = self.administrator.take_looked();
                self.owe(from, looked);
                reply
            };
            if let Some(reply) = reply {
                self.send_general(&address, &reply, now);
            }
        }
    }

    /// Sends a MAD of QP1. It goes by the LID, as any packet does: a requester without one has asked in vain.
    fn send_general(&mut self, to: &Address, mad: &Mad, now: u64) {
        let Some(port) = self.port_of(to.lid) else {
            self.links.counters_mut().no_route += 1;
            return;
        };
        let route = manager::MadRoute {
            vl: to.vl,
            sl: to.sl,
            slid: self.switch_lid(),
            dlid: to.lid,
            // Whoever manages is a full member of every partition (IBTA 13.5.4): limited members do not hear each other.
            pkey: PKey::new(to.pkey).full_member().get(),
            source_qpn: 1,
            dest_qpn: to.qpn,
            qkey: QKEY_GSI,
            psn: self.manager.next_psn(),
            grh: to.grh,
        };
        self.send_from_manager(port, manager::mad_packet(&route, mad.as_bytes()), now);
    }

    fn subnet_management(&mut self, from: PortIndex, shape: &Shape, source_qpn: u32, mad: &Mad, now: u64) {
        let mut smp = Smp::from_mad(mad);
        if !switch::is_subnet_management(&smp) {
            self.links.counters_mut().malformed += 1;
            return;
        }
        let ingress = from.0 as u8 + 1;
        let mut route = manager::MadRoute {
            vl: VL_MANAGEMENT,
            sl: shape.lrh.sl,
            slid: self.switch_lid(),
            dlid: shape.lrh.slid,
            pkey: DEFAULT_PKEY,
            source_qpn: 0,
            dest_qpn: source_qpn,
            qkey: 0,
            psn: shape.bth.psn,
            grh: None,
        };
        let directed = smp.mgmt_class() == class::SUBN_DIRECTED_ROUTE;
        if directed {
            let by_lid = smp.dr_slid() != LID_PERMISSIVE && smp.dr_dlid() == LID_PERMISSIVE;
            let returns = route;
            (route.slid, route.dlid) = (LID_PERMISSIVE, LID_PERMISSIVE);
            match self.switch.route(&mut smp, ingress) {
                Hop::Forward(port) => {
                    route.source_qpn = source_qpn;
                    route.dest_qpn = shape.bth.dest_qpn;
                    let packet = manager::mad_packet(&route, smp.as_bytes());
                    let to = PortIndex(u32::from(port) - 1);
                    return self.send_from_manager(to, packet, now);
                }
                // The rest of the way is by LID (IBTA 14.2.2.4).
                Hop::Back if by_lid => {
                    let dlid = smp.dr_slid();
                    let Some(to) = self.port_of(dlid) else {
                        self.links.counters_mut().no_route += 1;
                        return;
                    };
                    smp.set_hop_pointer(0);
                    let route =
                        manager::MadRoute { dlid, dest_qpn: shape.bth.dest_qpn, source_qpn, ..returns };
                    return self.send_from_manager(to, manager::mad_packet(&route, smp.as_bytes()), now);
                }
                Hop::Back => {
                    if let Some(lid) = self.manager.response(from, &smp.to_mad(), now) {
                        self.set_route(lid, from);
                    }
                    return;
                }
                Hop::Lost => {
                    self.links.counters_mut().malformed += 1;
                    return;
                }
                Hop::Here if by_lid => route = returns,
                Hop::Here => {}
            }
        }
        if smp.method() == method::TRAP_REPRESS
            && let Some(program) = &mut self.switch.program
        {
            return program.repressed(smp.tid());
        }
        if smp.method() == method::TRAP && self.switch.program.is_none() {
            let notice = notice_of(&smp);
            if self.manager.trap(from, &notice, now) {
                let mut repress = smp;
                repress.set_method(method::TRAP_REPRESS);
                self.reply_to_smp(from, &route, repress, directed, now);
            }
            return;
        }
        let tables = Tables { manager: &self.manager, routes: &self.routes, groups: &self.groups };
        if let Some(reply) = self.switch.answer(&tables, &smp, ingress, now) {
            self.reply_to_smp(from, &route, reply, directed, now);
        }
        if smp.method() == method::SET {
            // PortInfo may have enabled or disabled the port whose number is in the low byte.
            self.links.change(PortIndex((smp.attr_mod() & 0xff).wrapping_sub(1)));
        }
    }

    /// Sends a trap of the switch's own to the subnet manager at `dlid`.
    fn send_trap(&mut self, trap: &Smp, dlid: u16, sl: u8, now: u64) {
        let Some(port) = self.port_of(dlid) else {
            self.links.counters_mut().no_route += 1;
            return;
        };
        let route = manager::MadRoute {
            vl: VL_MANAGEMENT,
            sl,
            slid: self.switch_lid(),
            dlid,
            pkey: DEFAULT_PKEY,
            source_qpn: 0,
            dest_qpn: 0,
            qkey: 0,
            psn: self.manager.next_psn(),
            grh: None,
        };
        self.send_from_manager(port, manager::mad_packet(&route, trap.as_bytes()), now);
    }

    fn reply_to_smp(
        &mut self,
        to: PortIndex,
        route: &manager::MadRoute,
        mut smp: Smp,
        directed: bool,
        now: u64,
    ) {
        if directed {
            let status = smp.status();
            smp.set_status(status | status::SMP_DIRECTION);
        }
        self.send_from_manager(to, manager::mad_packet(route, smp.as_bytes()), now);
    }

    fn set_route(&mut self, lid: u16, to: PortIndex) {
        let lid = usize::from(lid);
        if self.routes.len() <= lid {
            self.routes.resize(lid + 1, None);
        }
        if let Some(route) = self.routes.get_mut(lid) {
            *route = Some(to);
        }
    }

    /// Lets the subscribers know what happened, and forgets what ports out of service had.
    fn report_events(&mut self, now: u64) {
        for (index, event) in self.manager.take_events() {
            let notice = match event {
                Event::InService(gid) => manager_notice(trap::IN_SERVICE, gid),
                Event::OutOfService(gid) => {
                    self.groups.leave_all(index);
                    self.administrator.leave(index);
                    match gid {
                        Some(gid) => manager_notice(trap::OUT_OF_SERVICE, gid),
                        None => continue,
                    }
                }
                Event::LinkState => {
                    let mut notice =
                        Notice::generic(notice_type::URGENT, producer::SWITCH, trap::LINK_STATE, SM_LID);
                    notice.set_details(&SM_LID.to_be_bytes()).set_issuer_gid(administrator::manager_gid());
                    notice
                }
                Event::Notice(notice) => *notice,
            };
            self.report(&notice, Some(index), now);
        }
        for (number, mgid, creator) in std::mem::take(&mut self.groups.changes) {
            self.report(&manager_notice(number, mgid), creator, now);
        }
    }

    /// Reports an event, which whoever caused it pays for.
    fn report(&mut self, notice: &Notice, cause: Option<PortIndex>, now: u64) {
        self.administrator.report(notice, cause, now);
        let looked = self.administrator.take_looked();
        if let Some(index) = cause {
            self.owe(index, looked);
        }
    }
}

/// A notice of the subnet manager's own, about a port or a group.
fn manager_notice(number: u16, gid: ib_types::Gid) -> Notice {
    let mut notice = Notice::generic(notice_type::SUBNET_MANAGEMENT, producer::CLASS_MANAGER, number, SM_LID);
    notice.set_gid(gid).set_issuer_gid(administrator::manager_gid());
    notice
}

/// The notice in a trap.
fn notice_of(smp: &Smp) -> Notice {
    let mut bytes = [0; Notice::LEN];
    if let Some(room) = bytes.first_chunk_mut::<64>() {
        *room = *smp.data();
    }
    Notice::from_bytes(bytes)
}

//! The communication manager: what arrives.

use super::machine::Cm;
use super::message::{
    CLASS_VERSION, Drep, Dreq, Lap, Message, Mra, Rej, Rep, Req, Rtu, ap_status, transport, which,
};
use super::reason::RejReason;
use super::slot::{CmSlot, Shared, ShortKind, ShortReply, Terminal, event};
use super::types::{CmConfig, DisconnectCause, Listener, Role, State};
use crate::mad::{GrhAddress, Mad, MadAddress, attr, class, method};
use crate::sa::PathRecord;
use crate::units::local_ack_timeout;
use ib_types::{Gid, Guid, Instant, Lid, QpNumber};

impl Cm<'_> {
    /// Takes a received MAD and where it came from. MADs that are no CM messages are counted and
    /// ignored.
    pub fn process(&mut self, now: Instant, src: &MadAddress, mad: &Mad) {
        self.shared.counters.received += 1;
        let Some(message) = Message::parse(mad) else {
            self.refuse_foreign(src, mad);
            return;
        };
        let tid = mad.tid();
        match message {
            Message::Req(m) => self.req(now, src, tid, &m),
            Message::Mra(m) => self.mra(now, &m),
            Message::Rej(m) => self.rej(now, &m),
            Message::Rep(m) => self.rep(now, src, tid, &m),
            Message::Rtu(m) => self.rtu_received(&m),
            Message::Dreq(m) => self.dreq(now, src, tid, &m),
            Message::Drep(m) => self.drep(now, &m),
            Message::SidrReq(m) => self.sidr_req(now, src, tid, &m),
            Message::SidrRep(m) => self.sidr_rep(&m),
            Message::Lap(m) => self.lap(src, tid, &m),
            // Unexpected, because this manager never sends a LAP.
            Message::Apr(_) => self.shared.counters.unexpected += 1,
            Message::Unknown(_) => self.shared.counters.malformed += 1,
        }
    }

    fn refuse_foreign(&mut self, src: &MadAddress, mad: &Mad) {
        if mad.mgmt_class() != class::CM || mad.method() != method::SEND {
            self.shared.counters.foreign += 1;
            return;
        }
        self.shared.counters.malformed += 1;
        if mad.class_version() != CLASS_VERSION && mad.attr_id() == attr::CM_REQ {
            let remote_id = Req::from_mad(mad).local_comm_id();
            let reason = RejReason::INVALID_CLASS_VERSION;
            self.refuse(src, mad.tid(), which::REQ, 0, remote_id, reason);
        }
    }

    fn refuse(
        &mut self,
        src: &MadAddress,
        tid: u64,
        which: u8,
        local_id: u32,
        remote_id: u32,
        reason: RejReason,
    ) {
        let kind = ShortKind::Rej { which, reason };
        self.shared.reply(ShortReply { dest: *src, tid, local_id, remote_id, kind });
    }

    /// The slot of one of our communication ids.
    pub(super) fn lookup(&self, local_id: u32) -> Option<usize> {
        let (slot, generation) = self.cipher.decode(local_id);
        let index = usize::from(slot);
        let found = self.slots.get(index)?;
        let alive = found.state != State::Free && found.generation as u16 == generation;
        (alive && found.local_id == local_id).then_some(index)
    }

    /// As [`Cm::lookup`], for a message whose sender's id must match the slot's.
    fn lookup_pair(&mut self, local_id: u32, remote_id: u32) -> Option<(&mut CmSlot, &mut Shared)> {
        let found = self.lookup(local_id).filter(|index| {
            self.slots.get(*index).is_some_and(|s| s.remote_id != 0 && s.remote_id == remote_id)
        });
        let Some(index) = found else {
            self.shared.counters.unknown_id += 1;
            return None;
        };
        self.parts(index)
    }

    fn req(&mut self, now: Instant, src: &MadAddress, tid: u64, req: &Req) {
        let src = &self.reachable(src, req);
        let remote_id = req.local_comm_id();
        let same = |s: &CmSlot| {
            s.state != State::Free
                && !s.datagram
                && s.role == Role::Passive
                && s.remote_id == remote_id
                && s.remote_guid == req.local_ca_guid()
                && s.remote_qpn == req.local_qpn()
                && s.remote_psn == req.starting_psn()
        };
        if let Some(index) = self.slots.iter().position(same) {
            self.repeated_req(src, tid, index);
            return;
        }
        if let Some(reason) = self.history.find(now, req) {
            self.shared.counters.duplicates += 1;
            self.refuse(src, tid, which::REQ, 0, remote_id, reason);
            return;
        }
        if req.transport_service() != transport::RC {
            self.shared.counters.malformed += 1;
            self.refuse(src, tid, which::REQ, 0, remote_id, RejReason::INVALID_TRANSPORT_TYPE);
            return;
        }
        if !(1..=5).contains(&req.path_mtu()) {
            self.shared.counters.malformed += 1;
            self.refuse(src, tid, which::REQ, 0, remote_id, RejReason::INVALID_MTU);
            return;
        }
        // Before anything is believed of the sender: it did not mean this port.
        if let Some(reason) = self.shared.config.rejects_path(req) {
            self.shared.counters.wrong_path += 1;
            self.refuse(src, tid, which::REQ, 0, remote_id, reason);
            return;
        }
        // The peer uses a QP number that we believe connected: it has forgotten that connection.
        if self.drop_stale(now, req.local_ca_guid(), req.local_qpn(), remote_id) {
            self.refuse(src, tid, which::REQ, 0, remote_id, RejReason::STALE_CONNECTION);
            return;
        }
        let serves = |l: &&Listener| l.used && !l.datagram && l.service_id == req.service_id();
        let Some(listener) = self.listeners.iter().find(serves).copied() else {
            self.shared.counters.no_listener += 1;
            self.refuse(src, tid, which::REQ, 0, remote_id, RejReason::INVALID_SERVICE_ID);
            return;
        };
        let index = if self.is_full(&listener) { None } else { self.allocate(now) };
        let Some((slot, shared)) = index.and_then(|index| self.parts(index)) else {
            self.shared.counters.no_resources += 1;
            self.refuse(src, tid, which::REQ, 0, remote_id, RejReason::NO_RESOURCES);
            return;
        };
        slot.state = State::ReqRcvd;
        slot.role = Role::Passive;
        slot.owner = listener.owner;
        slot.tid = tid;
        slot.peer = *src;
        slot.remote_id = remote_id;
        slot.remote_guid = req.local_ca_guid();
        slot.service_id = req.service_id();
        slot.path = path_of(req, src);
        slot.remote_qpn = req.local_qpn();
        slot.remote_psn = req.starting_psn();
        slot.peer_responder_resources = req.responder_resources();
        slot.peer_initiator_depth = req.initiator_depth();
        slot.peer_srq = req.srq();
        slot.peer_flow_control = req.flow_control();
        // The peer's values, until the owner sets others.
        slot.responder_resources = req.initiator_depth();
        slot.initiator_depth = req.responder_resources();
        slot.retry_count = req.retry_count();
        slot.rnr_retry_count = req.rnr_retry_count();
        slot.ack_timeout = req.primary_local_ack_timeout();
        slot.max_cm_retries = req.max_cm_retries();
        slot.response = shared.response(req.local_cm_response_timeout(), slot.path.packet_life_time());
        slot.keep_private(req.private_data());
        slot.post(shared, event::REQUEST);
    }

    /// Returns whether a listener's backlog is full of requests that wait to be fetched.
    pub(super) fn is_full(&self, listener: &Listener) -> bool {
        let waits = |s: &&CmSlot| {
            s.events & event::REQUEST != 0
                && (s.datagram, s.service_id) == (listener.datagram, listener.service_id)
        };
        listener.backlog != 0 && self.slots.iter().filter(waits).count() >= usize::from(listener.backlog)
    }

    /// Where the sender of a request is reached from a port whose packets all need a route.
    fn reachable(&self, src: &MadAddress, req: &Req) -> MadAddress {
        let route = self.shared.config.route.map(|hop_limit| GrhAddress {
            local_gid: req.primary_remote_gid(),
            remote_gid: req.primary_local_gid(),
            hop_limit,
            traffic_class: req.primary_traffic_class(),
            flow_label: req.primary_flow_label(),
        });
        MadAddress { grh: src.grh.or(route), ..*src }
    }

    fn repeated_req(&mut self, src: &MadAddress, tid: u64, index: usize) {
        let Some((slot, shared)) = self.parts(index) else { return };
        shared.counters.duplicates += 1;
        match slot.state {
            // The owner takes its time: the peer should not spend its repetitions on that.
            State::ReqRcvd => {
                if slot.mra_sent == 0 {
                    slot.mra_sent = shared.config.service_timeout.min(31) + 1;
                }
                slot.repeat_mra(shared, which::REQ);
            }
            // Resend the REP, or the REJ.
            State::RepSent | State::Rejected => slot.resend(shared),
            // A straggler: the peer has the REP, or it would not be established.
            State::Established
            | State::Free
            | State::ReqSent
            | State::RepRcvd
            | State::SidrReqSent
            | State::SidrReqRcvd
            | State::SidrRepSent => {}
            State::DreqSent | State::TimeWait | State::Done => {
                let remote_id = slot.remote_id;
                self.refuse(src, tid, which::REQ, 0, remote_id, RejReason::STALE_CONNECTION);
            }
        }
    }

    /// Ends the connection that uses a peer's QP number or communication id. Returns whether there
    /// was one. A connection that waits for a DREP is over anyway, and does not block the new one.
    fn drop_stale(&mut self, now: Instant, guid: Guid, qpn: QpNumber, remote_id: u32) -> bool {
        let uses = |s: &&mut CmSlot| {
            s.has_live_qp() && s.remote_guid == guid && (s.remote_qpn == qpn || s.remote_id == remote_id)
        };
        let Some(slot) = self.slots.iter_mut().find(uses) else { return false };
        let shared = &mut self.shared;
        shared.counters.stale += 1;
        match slot.state {
            State::DreqSent => {
                slot.send_now = false;
                slot.post_terminal(shared, Terminal::Disconnected(DisconnectCause::Local));
                slot.enter_time_wait(shared, now);
                return false;
            }
            State::Established => {
                slot.post_terminal(shared, Terminal::Disconnected(DisconnectCause::Stale));
                slot.send_now = false;
                slot.enter_time_wait(shared, now);
            }
            _ => {
                slot.post_terminal(shared, Terminal::Rejected(RejReason::STALE_CONNECTION));
                slot.send_now = false;
                slot.enter_time_wait(shared, now);
            }
        }
        true
    }

    fn rep(&mut self, now: Instant, src: &MadAddress, tid: u64, rep: &Rep) {
        let (local_id, remote_id) = (rep.remote_comm_id(), rep.local_comm_id());
        let index = self.lookup(local_id);
        let Some((slot, shared)) = index.and_then(|index| self.parts(index)) else {
            self.shared.counters.unknown_id += 1;
            self.refuse(src, tid, which::REP, local_id, remote_id, RejReason::INVALID_COMM_ID);
            return;
        };
        if slot.role == Role::Active && slot.state == State::Done {
            // Given up, only the owner has not looked yet.
            shared.counters.unknown_id += 1;
            self.refuse(src, tid, which::REP, local_id, remote_id, RejReason::INVALID_COMM_ID);
            return;
        }
        if slot.role == Role::Passive || (slot.state != State::ReqSent && slot.remote_id != remote_id) {
            shared.counters.unexpected += 1;
            return;
        }
        match slot.state {
            State::ReqSent => {}
            State::RepRcvd => {
                shared.counters.duplicates += 1;
                slot.repeat_mra(shared, which::REP);
                return;
            }
            // Resend the RTU.
            State::Established => {
                shared.counters.duplicates += 1;
                slot.resend(shared);
                return;
            }
            State::TimeWait => {
                shared.counters.duplicates += 1;
                if slot.tx.attr_id() == attr::CM_REJ {
                    slot.resend(shared);
                } else {
                    self.refuse(src, tid, which::REP, local_id, remote_id, RejReason::STALE_CONNECTION);
                }
                return;
            }
            // The DREQ, or the REJ, is on its way.
            _ => {
                shared.counters.duplicates += 1;
                return;
            }
        }
        if self.drop_stale(now, rep.local_ca_guid(), rep.local_qpn(), remote_id) {
            self.refuse(src, tid, which::REP, local_id, remote_id, RejReason::STALE_CONNECTION);
            if let Some((slot, shared)) = index.and_then(|index| self.parts(index)) {
                slot.send_now = false;
                slot.post_terminal(shared, Terminal::Rejected(RejReason::STALE_CONNECTION));
                slot.enter_done();
            }
            return;
        }
        let Some((slot, shared)) = index.and_then(|index| self.parts(index)) else { return };
        slot.state = State::RepRcvd;
        slot.send_now = false;
        slot.disarm();
        slot.overall = Instant::MAX;
        slot.remote_id = remote_id;
        slot.remote_guid = rep.local_ca_guid();
        slot.remote_qpn = rep.local_qpn();
        slot.remote_psn = rep.starting_psn();
        slot.peer_responder_resources = rep.responder_resources();
        slot.peer_initiator_depth = rep.initiator_depth();
        slot.peer_srq = rep.srq();
        slot.peer_flow_control = rep.flow_control();
        // The peer serves what it says, and never more than was asked for; the other way round
        // alike.
        slot.initiator_depth = slot.initiator_depth.min(rep.responder_resources());
        slot.responder_resources = slot.responder_resources.min(rep.initiator_depth());
        slot.rnr_retry_count = rep.rnr_retry_count();
        slot.target_ack_delay = rep.target_ack_delay();
        slot.ack_timeout = local_ack_timeout(slot.path.packet_life_time(), rep.target_ack_delay());
        slot.keep_private(rep.private_data());
        slot.post(shared, event::REPLY);
    }

    fn rtu_received(&mut self, rtu: &Rtu) {
        let Some((slot, shared)) = self.lookup_pair(rtu.remote_comm_id(), rtu.local_comm_id()) else {
            return;
        };
        match (slot.role, slot.state) {
            (Role::Passive, State::RepSent) => {
                slot.keep_private(rtu.private_data());
                slot.become_established(shared);
            }
            (Role::Passive, State::Established | State::DreqSent | State::TimeWait) => {
                shared.counters.duplicates += 1;
            }
            _ => shared.counters.unexpected += 1,
        }
    }

    fn mra(&mut self, now: Instant, mra: &Mra) {
        let index = self.lookup(mra.remote_comm_id());
        let Some((slot, shared)) = index.and_then(|index| self.parts(index)) else {
            self.shared.counters.unknown_id += 1;
            return;
        };
        let expected = match slot.state {
            State::ReqSent => mra.message_mraed() == which::REQ,
            State::RepSent => mra.message_mraed() == which::REP && mra.local_comm_id() == slot.remote_id,
            _ => false,
        };
        if !expected || slot.mras_left == 0 {
            shared.counters.unexpected += 1;
            return;
        }
        // The number of MRAs is limited, so that a peer cannot delay for ever.
        slot.mras_left -= 1;
        let more = shared.peer_time(mra.service_timeout()) + slot.response;
        slot.arm(shared, (now + more).min(slot.overall));
    }

    fn rej(&mut self, now: Instant, rej: &Rej) {
        let remote_id = rej.local_comm_id();
        let index = if rej.remote_comm_id() != 0 {
            self.lookup(rej.remote_comm_id())
        } else {
            // A REQ withdrawn before its sender learnt our id: it names its own, and its CA in the
            // additional information.
            let guid = rej.info().first_chunk().map(|bytes| Guid::new(u64::from_be_bytes(*bytes)));
            self.slots.iter().position(|s| {
                rej.info_len() >= 8
                    && matches!(s.state, State::ReqRcvd | State::RepSent)
                    && s.role == Role::Passive
                    && s.remote_id == remote_id
                    && Some(s.remote_guid) == guid
            })
        };
        let Some((slot, shared)) = index.and_then(|index| self.parts(index)) else {
            self.shared.counters.unknown_id += 1;
            return;
        };
        // The peer may reject without an id of its own; only for an established connection must it
        // name both.
        let named = slot.remote_id != 0 && slot.remote_id == remote_id;
        let unnamed = slot.remote_id == 0 || remote_id == 0;
        let reason = RejReason(rej.reason());
        let terminal = match slot.state {
            State::ReqSent | State::RepSent | State::ReqRcvd | State::RepRcvd if named || unnamed => {
                Terminal::Rejected(reason)
            }
            State::Established if named => Terminal::Disconnected(DisconnectCause::Rejected(reason)),
            State::DreqSent if named => Terminal::Disconnected(DisconnectCause::Local),
            _ => {
                shared.counters.unexpected += 1;
                return;
            }
        };
        // The owner may still be looking at the request's data.
        if slot.state != State::ReqRcvd {
            slot.keep_private(rej.private_data());
        }
        slot.keep_info(rej.info(), rej.info_len());
        slot.send_now = false;
        slot.post_terminal(shared, terminal);
        if slot.state == State::ReqSent {
            // The QP was never ready to receive: nothing to wait for.
            slot.enter_done();
        } else {
            slot.enter_time_wait(shared, now);
        }
    }

    fn dreq(&mut self, now: Instant, src: &MadAddress, tid: u64, dreq: &Dreq) {
        // Reply in any state, because the peer has ended the connection.
        let (local_id, remote_id) = (dreq.remote_comm_id(), dreq.local_comm_id());
        let kind = ShortKind::Drep;
        let reply = ShortReply { dest: *src, tid, local_id, remote_id, kind };
        let index = self.lookup(local_id);
        let Some((slot, shared)) = index.and_then(|index| self.parts(index)) else {
            self.shared.counters.unknown_id += 1;
            self.shared.reply(reply);
            return;
        };
        if slot.remote_id != remote_id || slot.remote_id == 0 {
            shared.counters.unknown_id += 1;
            shared.reply(reply);
            return;
        }
        if slot.local_qpn != dreq.remote_qpn() && slot.state != State::ReqRcvd {
            shared.counters.malformed += 1;
            return;
        }
        match slot.state {
            State::RepSent => {
                // The peer was connected, so its RTU is lost or late.
                slot.become_established(shared);
            }
            // The peer repeats it until our own DREQ comes.
            State::Established if slot.deferring => {
                slot.peer_left = true;
                return;
            }
            State::Established | State::DreqSent | State::RepRcvd | State::ReqRcvd => {}
            _ => {
                shared.counters.duplicates += 1;
                shared.reply(reply);
                return;
            }
        }
        shared.reply(reply);
        let cause =
            if slot.state == State::DreqSent { DisconnectCause::Local } else { DisconnectCause::Peer };
        if slot.state != State::ReqRcvd {
            slot.keep_private(dreq.private_data());
        }
        slot.send_now = false;
        slot.post_terminal(shared, Terminal::Disconnected(cause));
        slot.enter_time_wait(shared, now);
    }

    fn drep(&mut self, now: Instant, drep: &Drep) {
        let Some((slot, shared)) = self.lookup_pair(drep.remote_comm_id(), drep.local_comm_id()) else {
            return;
        };
        match slot.state {
            State::DreqSent => {
                slot.keep_private(drep.private_data());
                slot.send_now = false;
                slot.post_terminal(shared, Terminal::Disconnected(DisconnectCause::Local));
                slot.enter_time_wait(shared, now);
            }
            State::TimeWait => shared.counters.duplicates += 1,
            _ => shared.counters.unexpected += 1,
        }
    }

    /// Alternate paths are not supported.
    fn lap(&mut self, src: &MadAddress, tid: u64, lap: &Lap) {
        let (local_id, remote_id) = (lap.remote_comm_id(), lap.local_comm_id());
        let known = self.lookup(local_id).is_some();
        let status = if known { ap_status::UNSUPPORTED } else { ap_status::INVALID_COMM_ID };
        let kind = ShortKind::Apr { status };
        self.shared.reply(ShortReply { dest: *src, tid, local_id, remote_id, kind });
    }
}

impl CmSlot {
    /// Sends an MRA with the timeout that the owner chose before.
    fn repeat_mra(&mut self, shared: &mut Shared, which: u8) {
        if let Some(service_timeout) = self.mra_sent.checked_sub(1) {
            shared.reply(self.short(ShortKind::Mra { which, service_timeout }));
        }
    }
}

impl CmConfig {
    /// Returns the reason to reject a REQ whose primary path does not end at this port: wrong GID,
    /// or an MTU that is too large.
    fn rejects_path(&self, req: &Req) -> Option<RejReason> {
        let (own, meant) = (self.gid, req.primary_remote_gid());
        // A port also has the GID of the default prefix (IBTA 4.1.1).
        let default = Gid::new(Gid::DEFAULT_PREFIX, own.interface_id());
        let other = !self.other_gid.is_zero() && meant == self.other_gid;
        if !own.is_zero() && meant != own && meant != default && !other {
            return Some(RejReason::INVALID_GID);
        }
        (req.path_mtu() > self.mtu).then_some(RejReason::INVALID_MTU)
    }
}

/// A REQ's primary path, seen from its receiver. The LIDs of a REQ may be void, as they are behind
/// a router. LID and service level towards the sender are then those that the REQ came with; its
/// own service level is the sender's subnet's.
fn path_of(req: &Req, src: &MadAddress) -> PathRecord {
    let void = |lid: Lid| lid == Lid::new(0) || lid == Lid::PERMISSIVE;
    let dlid = if void(req.primary_local_lid()) { src.lid } else { req.primary_local_lid() };
    let sl = if void(req.primary_local_lid()) { src.sl } else { req.primary_sl() };
    let slid = if void(req.primary_remote_lid()) { Lid::new(0) } else { req.primary_remote_lid() };
    *PathRecord::zeroed()
        .set_sgid(req.primary_remote_gid())
        .set_dgid(req.primary_local_gid())
        .set_slid(slid)
        .set_dlid(dlid)
        .set_pkey(req.pkey())
        .set_sl(sl)
        .set_mtu(req.path_mtu())
        .set_rate(req.primary_packet_rate())
        .set_packet_life_time(req.primary_local_ack_timeout().saturating_sub(1))
        .set_hop_limit(req.primary_hop_limit())
        .set_traffic_class(req.primary_traffic_class())
        .set_flow_label(req.primary_flow_label())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_types::ServiceLevel;

    #[test]
    fn a_routed_request_is_answered_with_the_service_level_it_came_with() {
        let src = MadAddress { sl: ServiceLevel::new(5), ..MadAddress::local(Lid::new(9)) };
        for (lid, dlid, sl) in [(Lid::PERMISSIVE, 9, 5), (Lid::new(0), 9, 5), (Lid::new(4), 4, 2)] {
            let req = *Req::zeroed().set_primary_local_lid(lid).set_primary_sl(ServiceLevel::new(2));
            let path = path_of(&req, &src);
            assert_eq!((path.dlid().get(), path.sl().get()), (dlid, sl));
        }
    }
}

//! Datagram services: service id resolution (IBA volume 1, section 12.11).

use super::machine::Cm;
use super::message::{SidrRep, SidrReq, sidr_status};
use super::slot::{CmSlot, ShortKind, ShortReply, event};
use super::types::{CmError, ConnId, DatagramService, ListenError, Listener, ResolveParams, Role, State};
use crate::mad::{MadAddress, attr};
use crate::sa::PathRecord;
use ib_types::{Instant, PKey};

/// Assumed time exponent of a requester's timeout, because a SIDR_REQ does not contain it.
const USUAL_RESPONSE: u8 = 18;

impl Cm<'_> {
    /// Takes SIDR_REQs for a service id; as [`Cm::listen`] otherwise.
    pub fn listen_datagram(&mut self, service_id: u64, owner: u32, backlog: u16) -> Result<(), ListenError> {
        self.enter_listener(Listener { used: true, datagram: true, service_id, owner, backlog })
    }

    /// Requests the queue pair of a datagram service, with private data (216 bytes at most;
    /// RDMA-CM's address header is part of them). Then comes
    /// [`CmEvent::DatagramReply`](super::CmEvent::DatagramReply) or
    /// [`CmEvent::TimedOut`](super::CmEvent::TimedOut).
    pub fn resolve_datagram(
        &mut self,
        now: Instant,
        params: &ResolveParams,
        private_data: &[u8],
        owner: u32,
    ) -> Result<ConnId, CmError> {
        let p = params;
        if p.response_timeout > 31 || p.max_cm_retries > 15 {
            return Err(CmError::InvalidParameter);
        }
        let mut req = SidrReq::zeroed();
        req.set_private_data(private_data)?;
        let index = self.allocate(now).ok_or(CmError::NoResources)?;
        let (slot, shared) = self.parts(index).ok_or(CmError::NoResources)?;
        req.set_request_id(slot.local_id).set_pkey(p.path.pkey()).set_service_id(p.service_id);
        slot.state = State::SidrReqSent;
        slot.role = Role::Active;
        slot.datagram = true;
        slot.owner = owner;
        slot.service_id = p.service_id;
        slot.tid = u64::from(slot.local_id) << 32 | u64::from(attr::CM_SIDR_REQ);
        slot.peer = p.path.gsi_address();
        slot.path = p.path;
        slot.retries_left = p.max_cm_retries;
        slot.overall = p.deadline.unwrap_or(Instant::MAX);
        slot.response = shared.response(p.response_timeout, p.path.packet_life_time());
        let tid = slot.tid;
        slot.transmit(shared, req.to_mad(tid));
        slot.await_answer(shared, now);
        Ok(slot.id(index))
    }

    /// Answers a [`CmEvent::DatagramRequest`](super::CmEvent::DatagramRequest), with additional
    /// information (72 bytes at most) and private data (136 bytes at most). No event follows; the
    /// id is void.
    pub fn answer_datagram(
        &mut self,
        now: Instant,
        id: ConnId,
        service: DatagramService,
        info: &[u8],
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let (slot, shared) = self.find(id)?;
        if slot.state != State::SidrReqRcvd {
            return Err(CmError::WrongState(slot.state));
        }
        let mut rep = SidrRep::zeroed();
        rep.set_info(info)?.set_private_data(private_data)?;
        rep.set_request_id(slot.remote_id)
            .set_status(service.status)
            .set_qpn(service.qpn)
            .set_service_id(slot.service_id)
            .set_qkey(service.qkey);
        shared.counters.datagram_answers += 1;
        let tid = slot.tid;
        slot.transmit(shared, rep.to_mad(tid));
        slot.state = State::SidrRepSent;
        slot.events = 0;
        slot.owner_gone = true;
        // Long enough to answer the next repetition, should the answer be lost.
        let linger = now + 2 * slot.response;
        slot.arm(shared, linger);
        Ok(())
    }

    pub(super) fn sidr_req(&mut self, now: Instant, src: &MadAddress, tid: u64, req: &SidrReq) {
        let same = |s: &CmSlot| {
            matches!(s.state, State::SidrReqRcvd | State::SidrRepSent)
                && (s.remote_id, s.tid, s.service_id) == (req.request_id(), tid, req.service_id())
                && (s.peer.lid, s.peer.grh.map(|grh| grh.remote_gid))
                    == (src.lid, src.grh.map(|grh| grh.remote_gid))
        };
        if let Some(index) = self.slots.iter().position(same) {
            self.shared.counters.duplicates += 1;
            if let Some((slot, shared)) = self.parts(index)
                && slot.state == State::SidrRepSent
            {
                slot.resend(shared);
            }
            return;
        }
        let serves = |l: &&Listener| l.used && l.datagram && l.service_id == req.service_id();
        let Some(listener) = self.listeners.iter().find(serves).copied() else {
            self.shared.counters.no_listener += 1;
            self.refuse_datagram(src, tid, req, sidr_status::SERVICE_ID_NOT_SUPPORTED);
            return;
        };
        let index = if self.is_full(&listener) { None } else { self.allocate(now) };
        let Some((slot, shared)) = index.and_then(|index| self.parts(index)) else {
            self.shared.counters.no_resources += 1;
            self.refuse_datagram(src, tid, req, sidr_status::NO_QP);
            return;
        };
        slot.state = State::SidrReqRcvd;
        slot.role = Role::Passive;
        slot.datagram = true;
        slot.owner = listener.owner;
        slot.tid = tid;
        slot.peer = *src;
        slot.remote_id = req.request_id();
        slot.service_id = req.service_id();
        slot.path = path_back(src, req.pkey());
        slot.response = shared.response(USUAL_RESPONSE, 0);
        slot.keep_private(req.private_data());
        slot.post(shared, event::REQUEST);
    }

    fn refuse_datagram(&mut self, src: &MadAddress, tid: u64, req: &SidrReq, status: u8) {
        let kind = ShortKind::SidrRep { status, service_id: req.service_id() };
        let reply = ShortReply { dest: *src, tid, local_id: 0, remote_id: req.request_id(), kind };
        self.shared.reply(reply);
    }

    pub(super) fn sidr_rep(&mut self, rep: &SidrRep) {
        let index = self.lookup(rep.request_id());
        let Some((slot, shared)) = index.and_then(|index| self.parts(index)) else {
            self.shared.counters.unknown_id += 1;
            return;
        };
        if slot.state != State::SidrReqSent {
            shared.counters.unexpected += 1;
            return;
        }
        if rep.status() == sidr_status::VALID && rep.service_id() != slot.service_id {
            // A reply for a different service names the wrong queue pair.
            shared.counters.malformed += 1;
            return;
        }
        slot.service = DatagramService { status: rep.status(), qpn: rep.qpn(), qkey: rep.qkey() };
        slot.keep_private(rep.private_data());
        slot.keep_info(rep.info(), rep.info_len());
        shared.counters.datagram_replies += 1;
        slot.send_now = false;
        slot.post(shared, event::REPLY);
        slot.enter_done();
    }
}

/// Returns the path back to the sender of a request. Parts that a datagram does not contain are
/// zero.
fn path_back(src: &MadAddress, pkey: PKey) -> PathRecord {
    let mut path = PathRecord::zeroed();
    path.set_dlid(src.lid).set_pkey(pkey).set_sl(src.sl);
    if let Some(grh) = src.grh {
        path.set_sgid(grh.local_gid)
            .set_dgid(grh.remote_gid)
            .set_hop_limit(grh.hop_limit)
            .set_traffic_class(grh.traffic_class)
            .set_flow_label(grh.flow_label);
    }
    path
}

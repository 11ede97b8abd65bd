//! The communication manager: what its owner calls.

use heapless::Deque;
use ib_types::{Gid, Instant, Lid, QpNumber, mix};

use super::history::{EndedSet, History};
use super::id::IdCipher;
use super::message::{Dreq, Rej, Rep, Req, Rtu, sidr_status, transport, which};
use super::reason::RejReason;
use super::slot::{CmSlot, Shared, ShortKind, event};
use super::types::{
    AcceptParams, CmConfig, CmCounters, CmError, CmEvent, ConnId, ConnInfo, ConnectParams, DatagramService,
    ListenError, Listener, QpAttributes, Role, State,
};
use crate::units::local_ack_timeout;

/// The communication manager of a port. See the [module](super) for its use.
#[derive(Debug)]
pub struct Cm<'s> {
    pub(super) slots: &'s mut [CmSlot],
    pub(super) listeners: &'s mut [Listener],
    pub(super) history: History<'s>,
    pub(super) cipher: IdCipher,
    pub(super) shared: Shared,
    /// Where the search for a free slot begins, so that slots rest as long as possible.
    alloc_cursor: usize,
    /// Where the search for the next message begins, so that none starves.
    pub(super) send_cursor: usize,
    /// Slot of the event fetched last.
    held: Option<usize>,
}

impl<'s> Cm<'s> {
    /// Resets to the state of [`Cm::new`] and reuses its tables. Sends nothing to peers.
    pub fn restart(&mut self, config: CmConfig) {
        let history = core::mem::take(&mut self.history).into_sets();
        *self = Self::new(
            core::mem::take(&mut self.slots),
            history,
            core::mem::take(&mut self.listeners),
            config,
        );
    }

    /// The port has changed: sets [`CmConfig::gid`], [`CmConfig::mtu`] and [`CmConfig::route`].
    pub fn set_port(&mut self, gid: Gid, mtu: u8, route: Option<u8>) {
        let config = &mut self.shared.config;
        (config.gid, config.mtu, config.route) = (gid, mtu, route);
    }

    /// Sets [`CmConfig::other_gid`].
    pub fn set_other_gid(&mut self, gid: Gid) {
        self.shared.config.other_gid = gid;
    }

    /// A manager of at most `slots.len()` connections (the first 65535 count) and `listeners.len()`
    /// listeners. Previous contents of the tables are lost.
    ///
    /// Connections in TimeWait give way when no slot is free. `history` then remembers four of them
    /// in each set, so that late copies of their REQs do not connect again. An empty one remembers
    /// none.
    pub fn new(
        slots: &'s mut [CmSlot],
        history: &'s mut [EndedSet],
        listeners: &'s mut [Listener],
        config: CmConfig,
    ) -> Cm<'s> {
        let usable = slots.len().min(usize::from(u16::MAX));
        let slots = slots.get_mut(..usize::from(u16::MAX).min(usable)).unwrap_or_default();
        for (index, slot) in slots.iter_mut().enumerate() {
            *slot = CmSlot::EMPTY;
            // Not the same ids again after a restart, even with few connections.
            slot.generation = mix(config.seed ^ index as u64) as u32;
        }
        listeners.fill(Listener::EMPTY);
        Cm {
            slots,
            listeners,
            history: History::new(history, mix(config.seed ^ 0x68_6973_746f_7279)),
            cipher: IdCipher::new(config.seed),
            shared: Shared {
                config,
                counters: CmCounters::default(),
                replies: Deque::new(),
                next_deadline: Instant::MAX,
                any_send: false,
                any_event: false,
                event_seq: 0,
            },
            alloc_cursor: 0,
            send_cursor: 0,
            held: None,
        }
    }

    /// Takes REQs for a service id. `owner` comes back with each request. At most `backlog`
    /// requests wait to be fetched by [`Cm::poll_event`] (0: as many as there are slots); further
    /// ones are refused with "no resources".
    pub fn listen(&mut self, service_id: u64, owner: u32, backlog: u16) -> Result<(), ListenError> {
        self.enter_listener(Listener { used: true, datagram: false, service_id, owner, backlog })
    }

    pub(super) fn enter_listener(&mut self, listener: Listener) -> Result<(), ListenError> {
        if self.is_listening(listener.service_id) {
            return Err(ListenError::InUse);
        }
        let entry = self.listeners.iter_mut().find(|l| !l.used).ok_or(ListenError::Full)?;
        *entry = listener;
        Ok(())
    }

    /// Ends listening. Returns false if no listener was registered. Requests that arrived stay.
    pub fn unlisten(&mut self, service_id: u64) -> bool {
        let entry = self.listeners.iter_mut().find(|l| l.used && l.service_id == service_id);
        entry.map(|l| *l = Listener::EMPTY).is_some()
    }

    /// Returns whether a service id has a listener.
    pub fn is_listening(&self, service_id: u64) -> bool {
        self.listeners.iter().any(|l| l.used && l.service_id == service_id)
    }

    /// Active side: sends a REQ. Then comes one of [`CmEvent::Reply`], [`CmEvent::Rejected`],
    /// [`CmEvent::TimedOut`].
    pub fn connect(
        &mut self,
        now: Instant,
        params: &ConnectParams,
        private_data: &[u8],
        owner: u32,
    ) -> Result<ConnId, CmError> {
        let p = params;
        let legal = p.retry_count < 8
            && p.rnr_retry_count < 8
            && p.response_timeout < 32
            && p.max_cm_retries < 16
            && (1..=5).contains(&p.path.mtu());
        if !legal {
            return Err(CmError::InvalidParameter);
        }
        let mut req = Req::zeroed();
        req.set_private_data(private_data)?;
        let index = self.allocate(now).ok_or(CmError::NoResources)?;
        let (slot, shared) = self.parts(index).ok_or(CmError::NoResources)?;
        let ack_timeout = local_ack_timeout(p.path.packet_life_time(), shared.config.ca_ack_delay);
        // A REQ whose path crosses a router names no LIDs.
        let (local_lid, remote_lid) = if p.path.is_routed() {
            (Lid::PERMISSIVE, Lid::PERMISSIVE)
        } else {
            (p.path.slid(), p.path.dlid())
        };
        req.set_local_comm_id(slot.local_id)
            .set_service_id(p.service_id)
            .set_local_ca_guid(shared.config.ca_guid)
            .set_local_qpn(p.qpn)
            .set_responder_resources(p.responder_resources)
            .set_initiator_depth(p.initiator_depth)
            .set_remote_cm_response_timeout(p.response_timeout)
            .set_transport_service(transport::RC)
            .set_flow_control(p.flow_control)
            .set_starting_psn(p.starting_psn)
            .set_local_cm_response_timeout(p.response_timeout)
            .set_retry_count(p.retry_count)
            .set_pkey(p.path.pkey())
            .set_path_mtu(p.path.mtu())
            .set_rnr_retry_count(p.rnr_retry_count)
            .set_max_cm_retries(p.max_cm_retries)
            .set_srq(p.srq)
            .set_primary_local_lid(local_lid)
            .set_primary_remote_lid(remote_lid)
            .set_primary_local_gid(p.path.sgid())
            .set_primary_remote_gid(p.path.dgid())
            .set_primary_flow_label(p.path.flow_label())
            .set_primary_packet_rate(p.path.rate())
            .set_primary_traffic_class(p.path.traffic_class())
            .set_primary_hop_limit(p.path.hop_limit())
            .set_primary_sl(p.path.sl())
            .set_primary_subnet_local(!p.path.is_routed())
            .set_primary_local_ack_timeout(ack_timeout);
        slot.state = State::ReqSent;
        slot.role = Role::Active;
        slot.owner = owner;
        slot.service_id = p.service_id;
        slot.tid = u64::from(slot.local_id) << 32 | u64::from(which::REQ);
        slot.peer = p.path.gsi_address();
        slot.path = p.path;
        slot.local_qpn = p.qpn;
        slot.local_psn = p.starting_psn;
        slot.responder_resources = p.responder_resources;
        slot.initiator_depth = p.initiator_depth;
        slot.retry_count = p.retry_count;
        slot.rnr_retry_count = p.rnr_retry_count;
        slot.ack_timeout = ack_timeout;
        slot.target_ack_delay = shared.config.ca_ack_delay;
        slot.max_cm_retries = p.max_cm_retries;
        slot.retries_left = p.max_cm_retries;
        slot.mras_left = p.max_cm_retries.max(1);
        slot.overall = p.deadline.unwrap_or(Instant::MAX);
        slot.response = shared.response(p.response_timeout, p.path.packet_life_time());
        let tid = slot.tid;
        slot.transmit(shared, req.to_mad(tid));
        slot.await_answer(shared, now);
        Ok(slot.id(index))
    }

    /// Active side, after [`CmEvent::Reply`] and with the QP in RTS: sends the RTU. The connection
    /// is established.
    pub fn rtu(&mut self, id: ConnId, private_data: &[u8]) -> Result<(), CmError> {
        let (slot, shared) = self.find(id)?;
        if slot.state != State::RepRcvd {
            return Err(CmError::WrongState(slot.state));
        }
        let mut rtu = Rtu::zeroed();
        rtu.set_private_data(private_data)?;
        rtu.set_local_comm_id(slot.local_id).set_remote_comm_id(slot.remote_id);
        slot.state = State::Established;
        shared.counters.active_established += 1;
        let tid = slot.tid;
        slot.transmit(shared, rtu.to_mad(tid));
        Ok(())
    }

    /// Passive side, after [`CmEvent::ConnectRequest`] and with the QP in RTR: sends the REP. Then
    /// comes one of [`CmEvent::Established`], [`CmEvent::Rejected`], [`CmEvent::TimedOut`],
    /// [`CmEvent::Disconnected`]; `owner` takes the place of the listener's cookie.
    pub fn accept(
        &mut self,
        now: Instant,
        id: ConnId,
        params: &AcceptParams,
        private_data: &[u8],
        owner: u32,
    ) -> Result<(), CmError> {
        let (slot, shared) = self.find(id)?;
        if slot.state != State::ReqRcvd {
            return Err(CmError::WrongState(slot.state));
        }
        let p = params;
        if p.rnr_retry_count > 7 || p.target_ack_delay > 31 {
            return Err(CmError::InvalidParameter);
        }
        let mut rep = Rep::zeroed();
        rep.set_private_data(private_data)?;
        rep.set_local_comm_id(slot.local_id)
            .set_remote_comm_id(slot.remote_id)
            .set_local_qpn(p.qpn)
            .set_starting_psn(p.starting_psn)
            .set_responder_resources(p.responder_resources)
            .set_initiator_depth(p.initiator_depth)
            .set_target_ack_delay(p.target_ack_delay)
            // Failover: not supported.
            .set_failover_accepted(1)
            .set_flow_control(p.flow_control)
            .set_rnr_retry_count(p.rnr_retry_count)
            .set_srq(p.srq)
            .set_local_ca_guid(shared.config.ca_guid);
        slot.state = State::RepSent;
        slot.owner = owner;
        slot.local_qpn = p.qpn;
        slot.local_psn = p.starting_psn;
        slot.responder_resources = p.responder_resources;
        slot.initiator_depth = p.initiator_depth;
        slot.target_ack_delay = p.target_ack_delay;
        slot.retries_left = slot.max_cm_retries;
        slot.mras_left = slot.max_cm_retries.max(1);
        slot.private_len = 0;
        let tid = slot.tid;
        slot.transmit(shared, rep.to_mad(tid));
        slot.await_answer(shared, now);
        Ok(())
    }

    /// Refuses: a request (passive) or a reply (active), with a reason, additional information (72
    /// bytes at most) and private data (148 bytes at most). No event follows; the id is void.
    pub fn reject(
        &mut self,
        now: Instant,
        id: ConnId,
        reason: RejReason,
        info: &[u8],
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let (slot, shared) = self.find(id)?;
        let (message, passive) = match slot.state {
            State::ReqRcvd => (which::REQ, true),
            State::RepRcvd => (which::REP, false),
            other => return Err(CmError::WrongState(other)),
        };
        let mut rej: Rej = slot.rej(message, reason);
        rej.set_info(info)?.set_private_data(private_data)?;
        shared.counters.rejected_by_us += 1;
        let tid = slot.tid;
        slot.transmit(shared, rej.to_mad(tid));
        slot.owner_gone = true;
        slot.events = 0;
        if passive {
            slot.state = State::Rejected;
            // Long enough to answer the next repetition of the REQ, should the REJ be lost.
            let linger = now + 2 * slot.response;
            slot.arm(shared, linger);
        } else {
            slot.enter_time_wait(shared, now);
        }
        Ok(())
    }

    /// Extends the peer's timeout while the owner decides on a request or a reply. Sends an MRA
    /// with the time exponent that the owner needs (0 to 31).
    pub fn defer(&mut self, id: ConnId, service_timeout: u8) -> Result<(), CmError> {
        let (slot, shared) = self.find(id)?;
        let message = match slot.state {
            State::ReqRcvd => which::REQ,
            State::RepRcvd => which::REP,
            other => return Err(CmError::WrongState(other)),
        };
        if service_timeout > 31 {
            return Err(CmError::InvalidParameter);
        }
        slot.mra_sent = service_timeout + 1;
        shared.reply(slot.short(ShortKind::Mra { which: message, service_timeout }));
        Ok(())
    }

    /// Passive side: the QP received something ("communication established"), so the active side is
    /// ready though its RTU has not come. [`CmEvent::Established`] follows. Nothing happens to a
    /// connection that is established already.
    pub fn communication_established(&mut self, id: ConnId) -> Result<(), CmError> {
        let (slot, shared) = self.find(id)?;
        match slot.state {
            State::RepSent => {
                slot.become_established(shared);
                Ok(())
            }
            State::Established => Ok(()),
            other => Err(CmError::WrongState(other)),
        }
    }

    /// Ends an established connection: sends a DREQ. [`CmEvent::Disconnected`] follows, at last
    /// [`CmEvent::TimeWaitExit`].
    pub fn disconnect(&mut self, now: Instant, id: ConnId, private_data: &[u8]) -> Result<(), CmError> {
        let (slot, shared) = self.find(id)?;
        if slot.state != State::Established {
            return Err(CmError::WrongState(slot.state));
        }
        slot.send_dreq(shared, now, private_data)
    }

    /// Defers the peer's DREQ: no DREP is sent and no event raised. The owner must finish first,
    /// and then calls [`Cm::disconnect`] or [`Cm::abandon`].
    pub fn defer_disconnect(&mut self, id: ConnId) {
        if let Ok((slot, _)) = self.find(id) {
            slot.deferring = true;
        }
    }

    /// Returns whether the peer sent a DREQ while [`Cm::defer_disconnect`] was in force.
    pub fn peer_left(&self, id: ConnId) -> bool {
        self.get(id).is_some_and(|slot| slot.peer_left)
    }

    /// Gives a connection up, whatever its state; no event follows, and the id is void. An
    /// unanswered REQ is withdrawn by REJ "timeout", an unfinished handshake ended by REJ
    /// "consumer", an established connection by DREQ (IBA volume 1, section 12.9.8). Data given
    /// along goes where the message has room for it.
    pub fn abandon(&mut self, now: Instant, id: ConnId, private_data: &[u8]) -> Result<(), CmError> {
        let (slot, shared) = self.find(id)?;
        match slot.state {
            State::ReqSent => {
                let mut rej = Rej::from_mad(&slot.rej_timeout(shared.config.ca_guid));
                rej.set_private_data(private_data)?;
                shared.counters.rejected_by_us += 1;
                let tid = slot.tid;
                slot.transmit(shared, rej.to_mad(tid));
                slot.events = 0;
                slot.owner_gone = true;
                slot.enter_done();
            }
            State::ReqRcvd | State::RepRcvd => {
                self.reject(now, id, RejReason::CONSUMER_DEFINED, &[], private_data)?;
            }
            State::RepSent => {
                let mut rej = slot.rej(which::OTHER, RejReason::CONSUMER_DEFINED);
                rej.set_private_data(private_data)?;
                shared.counters.rejected_by_us += 1;
                let tid = slot.tid;
                slot.transmit(shared, rej.to_mad(tid));
                slot.events = 0;
                slot.owner_gone = true;
                slot.enter_time_wait(shared, now);
            }
            State::Established => {
                slot.send_dreq(shared, now, private_data)?;
                slot.events = 0;
                slot.owner_gone = true;
            }
            State::SidrReqSent => {
                // A SIDR_REQ leaves no state at the peer.
                slot.events = 0;
                slot.owner_gone = true;
                slot.send_now = false;
                slot.enter_done();
            }
            State::SidrReqRcvd => {
                let refusal = DatagramService::refused(sidr_status::REJECTED);
                self.answer_datagram(now, id, refusal, &[], &[])?;
            }
            State::DreqSent | State::TimeWait | State::Rejected | State::SidrRepSent | State::Done => {
                slot.events = 0;
                slot.owner_gone = true;
                slot.reap();
            }
            State::Free => return Err(CmError::InvalidId),
        }
        Ok(())
    }

    /// The next event. [`Cm::private_data`] and similar data of its connection remain valid at
    /// least until the next call.
    #[must_use = "the event comes once"]
    pub fn poll_event(&mut self) -> Option<CmEvent> {
        if let Some(slot) = self.held.take().and_then(|index| self.slots.get_mut(index)) {
            slot.held = false;
            slot.reap();
        }
        if !self.shared.any_event {
            return None;
        }
        let next = self.slots.iter_mut().enumerate().filter(|(_, slot)| slot.events != 0);
        let Some((index, slot)) = next.min_by_key(|(_, slot)| slot.event_seq) else {
            self.shared.any_event = false;
            return None;
        };
        slot.held = true;
        self.held = Some(index);
        slot.take_event(index)
    }

    /// Returns the state and the peer's parameters of a connection.
    pub fn info(&self, id: ConnId) -> Option<ConnInfo> {
        let slot = self.get(id)?;
        Some(ConnInfo {
            role: slot.role,
            state: slot.state,
            service_id: slot.service_id,
            path: slot.path,
            peer: slot.peer,
            remote_ca_guid: slot.remote_guid,
            remote_qpn: slot.remote_qpn,
            peer_responder_resources: slot.peer_responder_resources,
            peer_initiator_depth: slot.peer_initiator_depth,
            peer_srq: slot.peer_srq,
            peer_flow_control: slot.peer_flow_control,
        })
    }

    /// Returns the attributes of the own QP; see [`QpAttributes`] for when they are valid.
    pub fn qp_attributes(&self, id: ConnId) -> Option<QpAttributes> {
        let slot = self.get(id)?;
        (slot.remote_qpn != QpNumber::new(0) && !slot.datagram).then(|| slot.qp_attributes())
    }

    /// The private data that came last: the REQ's until `accept`, the REP's, RTU's, REJ's, DREQ's
    /// or DREP's. The complete field is returned, because a message does not contain the length in
    /// use.
    pub fn private_data(&self, id: ConnId) -> &[u8] {
        self.get(id).and_then(|slot| slot.private.get(..usize::from(slot.private_len))).unwrap_or_default()
    }

    /// The additional information of the REJ.
    pub fn reject_info(&self, id: ConnId) -> &[u8] {
        self.get(id).and_then(|slot| slot.info.get(..usize::from(slot.info_len))).unwrap_or_default()
    }

    /// Counters since the start.
    pub fn counters(&self) -> CmCounters {
        self.shared.counters
    }

    /// Slots in use, those in TimeWait and those with unfetched events included.
    pub fn slots_in_use(&self) -> usize {
        self.slots.iter().filter(|slot| slot.state != State::Free).count()
    }

    /// The slot of an id that its owner may still use.
    fn get(&self, id: ConnId) -> Option<&CmSlot> {
        let slot = self.slots.get(usize::from(id.slot))?;
        let alive = slot.state != State::Free && slot.generation == id.generation && !slot.owner_gone;
        alive.then_some(slot)
    }

    pub(super) fn find(&mut self, id: ConnId) -> Result<(&mut CmSlot, &mut Shared), CmError> {
        if self.get(id).is_none() {
            return Err(CmError::InvalidId);
        }
        self.parts(usize::from(id.slot)).ok_or(CmError::InvalidId)
    }

    pub(super) fn parts(&mut self, index: usize) -> Option<(&mut CmSlot, &mut Shared)> {
        Some((self.slots.get_mut(index)?, &mut self.shared))
    }

    /// Returns a fresh slot with a communication id. When none is free, a connection that is over
    /// gives way: see [`CmSlot::gives_way`].
    pub(super) fn allocate(&mut self, now: Instant) -> Option<usize> {
        let count = self.slots.len();
        let is = |slots: &[CmSlot], index: usize, state| slots.get(index).is_some_and(|s| s.state == state);
        let free = (0..count)
            .map(|step| (self.alloc_cursor + step) % count)
            .find(|index| is(self.slots, *index, State::Free));
        let index = free.or_else(|| self.evict(now))?;
        self.alloc_cursor = (index + 1) % count;
        let slot = self.slots.get_mut(index)?;
        let mut generation = slot.generation.wrapping_add(1);
        let mut local_id = self.cipher.encode(index as u16, generation);
        if local_id == 0 {
            // 0 means "no id" in messages.
            generation = generation.wrapping_add(1);
            local_id = self.cipher.encode(index as u16, generation);
        }
        *slot =
            CmSlot { generation, local_id, deadline: Instant::MAX, overall: Instant::MAX, ..CmSlot::EMPTY };
        Some(index)
    }

    /// Takes the slot of the connection that gives way first.
    fn evict(&mut self, now: Instant) -> Option<usize> {
        let over = self.slots.iter().enumerate().filter_map(|(index, slot)| Some((slot.gives_way()?, index)));
        let (_, index) = over.min()?;
        let slot = self.slots.get(index)?;
        self.shared.counters.evicted += 1;
        if slot.role == Role::Passive && !slot.datagram {
            let (until, reason) = match slot.state {
                State::Rejected => (slot.deadline, RejReason(Rej::from_mad(&slot.tx).reason())),
                State::DreqSent => (now + slot.time_wait(&self.shared), RejReason::STALE_CONNECTION),
                _ => (slot.deadline, RejReason::STALE_CONNECTION),
            };
            self.history.remember(slot, until, reason);
        }
        Some(index)
    }
}

impl CmSlot {
    pub(super) fn become_established(&mut self, shared: &mut Shared) {
        self.state = State::Established;
        self.disarm();
        self.send_now = false;
        shared.counters.passive_established += 1;
        self.post(shared, event::ESTABLISHED);
    }

    pub(super) fn send_dreq(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let mut dreq = Dreq::zeroed();
        dreq.set_private_data(private_data)?;
        dreq.set_local_comm_id(self.local_id)
            .set_remote_comm_id(self.remote_id)
            .set_remote_qpn(self.remote_qpn);
        self.state = State::DreqSent;
        self.retries_left = shared.config.max_dreq_retries;
        self.overall = Instant::MAX;
        // A transaction of its own, initiated here.
        let tid = u64::from(self.local_id) << 32 | u64::from(crate::mad::attr::CM_DREQ);
        self.transmit(shared, dreq.to_mad(tid));
        self.await_answer(shared, now);
        Ok(())
    }
}

//! A connection: its fields and the steps that several inputs share.

use heapless::Deque;
use ib_types::{Duration, Guid, Instant, Lid, PKey, Psn, QKey, QpNumber, ServiceLevel};

use super::message::{Apr, Drep, Mra, Rej, SidrRep, which};
use super::reason::RejReason;
use super::types::{
    CmConfig, CmCounters, CmEvent, ConnId, DatagramService, DisconnectCause, QpAttributes, Role, Stage, State,
};
use crate::mad::{Mad, MadAddress};
use crate::sa::PathRecord;
use crate::units::exponent_time;

/// Short answers that can wait to be sent.
pub(super) const SHORT_REPLIES: usize = 16;
/// Minimum wait for a reply, whatever the peer's exponent is.
const MIN_RESPONSE: Duration = Duration::from_millis(1);
/// Room for the longest private data (RTU, DREP).
pub(super) const PRIVATE_LEN: usize = 224;

/// End of an attempt or a connection.
// The representation keeps "not yet" at zero, so that tables of free slots are all zero bytes and
// need no room in an image.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(super) enum Terminal {
    NotYet = 0,
    Rejected(RejReason),
    TimedOut(Stage),
    Disconnected(DisconnectCause),
}

/// Events not fetched yet, in the order of delivery from the lowest bit.
pub(super) mod event {
    pub const REQUEST: u8 = 1;
    pub const REPLY: u8 = 2;
    pub const ESTABLISHED: u8 = 4;
    pub const TERMINAL: u8 = 8;
    pub const EXIT: u8 = 16;
}

/// An answer that needs no slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShortReply {
    pub dest: MadAddress,
    pub tid: u64,
    pub local_id: u32,
    pub remote_id: u32,
    pub kind: ShortKind,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum ShortKind {
    Rej { which: u8, reason: RejReason },
    Mra { which: u8, service_timeout: u8 },
    Drep,
    Apr { status: u8 },
    SidrRep { status: u8, service_id: u64 },
}

impl ShortReply {
    pub fn to_mad(self) -> Mad {
        match self.kind {
            ShortKind::Rej { which, reason } => {
                let mut m = Rej::zeroed();
                m.set_local_comm_id(self.local_id).set_remote_comm_id(self.remote_id);
                m.set_message_rejected(which).set_reason(reason.0);
                m.to_mad(self.tid)
            }
            ShortKind::Mra { which, service_timeout } => {
                let mut m = Mra::zeroed();
                m.set_local_comm_id(self.local_id).set_remote_comm_id(self.remote_id);
                m.set_message_mraed(which).set_service_timeout(service_timeout);
                m.to_mad(self.tid)
            }
            ShortKind::Drep => {
                let mut m = Drep::zeroed();
                m.set_local_comm_id(self.local_id).set_remote_comm_id(self.remote_id);
                m.to_mad(self.tid)
            }
            ShortKind::Apr { status } => {
                let mut m = Apr::zeroed();
                m.set_local_comm_id(self.local_id).set_remote_comm_id(self.remote_id).set_ap_status(status);
                m.to_mad(self.tid)
            }
            ShortKind::SidrRep { status, service_id } => {
                let mut m = SidrRep::zeroed();
                m.set_request_id(self.remote_id).set_status(status).set_service_id(service_id);
                m.to_mad(self.tid)
            }
        }
    }
}

/// State shared by all slots.
#[derive(Debug)]
pub(super) struct Shared {
    pub config: CmConfig,
    pub counters: CmCounters,
    pub replies: Deque<ShortReply, SHORT_REPLIES>,
    /// No timer is due before this.
    pub next_deadline: Instant,
    /// Some slot may have a message to send.
    pub any_send: bool,
    /// Some slot may have an event.
    pub any_event: bool,
    pub event_seq: u64,
}

impl Shared {
    pub fn reply(&mut self, reply: ShortReply) {
        if self.replies.push_back(reply).is_err() {
            self.counters.replies_dropped += 1;
        }
    }

    /// The time of an exponent that a peer chose.
    pub fn peer_time(&self, n: u8) -> Duration {
        exponent_time(n.min(self.config.max_timeout))
    }

    /// Returns the time to wait for a reply: the response time plus the round trip.
    pub fn response(&self, exponent: u8, packet_life_time: u8) -> Duration {
        let time = self.peer_time(exponent) + 2 * self.peer_time(packet_life_time);
        time.max(MIN_RESPONSE)
    }
}

/// Slot of one connection.
#[derive(Clone, Copy, Debug)]
pub struct CmSlot {
    pub(super) state: State,
    pub(super) role: Role,
    /// The exchange resolves a datagram service (SIDR) instead of making a connection.
    pub(super) datagram: bool,
    /// The owner gets no further events.
    pub(super) owner_gone: bool,
    /// The owner must finish first: no DREP before its own DREQ.
    pub(super) deferring: bool,
    /// A DREQ was received meanwhile.
    pub(super) peer_left: bool,
    /// An event of this slot was fetched last; its data stays until the next is fetched.
    pub(super) held: bool,
    pub(super) events: u8,
    pub(super) event_seq: u64,
    pub(super) generation: u32,
    pub(super) owner: u32,
    pub(super) local_id: u32,
    pub(super) remote_id: u32,
    pub(super) remote_guid: Guid,
    pub(super) service_id: u64,
    pub(super) tid: u64,
    pub(super) peer: MadAddress,
    pub(super) path: PathRecord,
    pub(super) local_qpn: QpNumber,
    pub(super) remote_qpn: QpNumber,
    pub(super) local_psn: Psn,
    pub(super) remote_psn: Psn,
    /// RDMA reads and atomics that the own QP serves and issues.
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    /// The peer's offer.
    pub(super) peer_responder_resources: u8,
    pub(super) peer_initiator_depth: u8,
    pub(super) peer_srq: bool,
    pub(super) peer_flow_control: bool,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) ack_timeout: u8,
    pub(super) target_ack_delay: u8,
    pub(super) max_cm_retries: u8,
    pub(super) retries_left: u8,
    /// MRAs of the peer that still prolong the wait.
    pub(super) mras_left: u8,
    /// Own MRA's service timeout plus one; 0: none sent.
    pub(super) mra_sent: u8,
    /// Time to wait for a reply.
    pub(super) response: Duration,
    /// When the state's timer runs out; [`Instant::MAX`]: no timer.
    pub(super) deadline: Instant,
    /// When the whole attempt fails.
    pub(super) overall: Instant,
    pub(super) send_now: bool,
    pub(super) tx: Mad,
    pub(super) terminal: Terminal,
    /// Where a datagram service is.
    pub(super) service: DatagramService,
    pub(super) private_len: u8,
    pub(super) info_len: u8,
    pub(super) private: [u8; PRIVATE_LEN],
    pub(super) info: [u8; 72],
}

impl CmSlot {
    /// A free slot.
    pub const EMPTY: CmSlot = CmSlot {
        state: State::Free,
        role: Role::Active,
        datagram: false,
        owner_gone: false,
        deferring: false,
        peer_left: false,
        held: false,
        events: 0,
        event_seq: 0,
        generation: 0,
        owner: 0,
        local_id: 0,
        remote_id: 0,
        remote_guid: Guid::new(0),
        service_id: 0,
        tid: 0,
        peer: MadAddress {
            lid: Lid::new(0),
            qpn: QpNumber::new(0),
            sl: ServiceLevel::new(0),
            path_bits: 0,
            pkey: PKey::new(0),
            grh: None,
        },
        path: PathRecord::zeroed(),
        local_qpn: QpNumber::new(0),
        remote_qpn: QpNumber::new(0),
        local_psn: Psn::new(0),
        remote_psn: Psn::new(0),
        responder_resources: 0,
        initiator_depth: 0,
        peer_responder_resources: 0,
        peer_initiator_depth: 0,
        peer_srq: false,
        peer_flow_control: false,
        retry_count: 0,
        rnr_retry_count: 0,
        ack_timeout: 0,
        target_ack_delay: 0,
        max_cm_retries: 0,
        retries_left: 0,
        mras_left: 0,
        mra_sent: 0,
        response: Duration::ZERO,
        deadline: Instant::ORIGIN,
        overall: Instant::ORIGIN,
        send_now: false,
        tx: Mad::zeroed(),
        terminal: Terminal::NotYet,
        service: DatagramService { status: 0, qpn: QpNumber::new(0), qkey: QKey::new(0) },
        private_len: 0,
        info_len: 0,
        private: [0; PRIVATE_LEN],
        info: [0; 72],
    };

    pub(super) fn id(&self, slot: usize) -> ConnId {
        ConnId { slot: slot as u16, generation: self.generation }
    }

    /// Returns whether this is a datagram service, not a connection.
    pub(super) fn is_datagram(&self) -> bool {
        self.datagram
    }

    /// Returns whether the peer's QP may send to ours.
    pub(super) fn has_live_qp(&self) -> bool {
        matches!(
            self.state,
            State::ReqRcvd | State::RepSent | State::RepRcvd | State::Established | State::DreqSent
        )
    }

    pub(super) fn transmit(&mut self, shared: &mut Shared, mad: Mad) {
        self.tx = mad;
        self.resend(shared);
    }

    pub(super) fn resend(&mut self, shared: &mut Shared) {
        self.send_now = true;
        shared.any_send = true;
    }

    pub(super) fn arm(&mut self, shared: &mut Shared, deadline: Instant) {
        self.deadline = deadline;
        shared.next_deadline = shared.next_deadline.min(deadline);
    }

    pub(super) fn disarm(&mut self) {
        self.deadline = Instant::MAX;
    }

    /// Starts (again) waiting for the answer to what is being sent.
    pub(super) fn await_answer(&mut self, shared: &mut Shared, now: Instant) {
        self.arm(shared, (now + self.response).min(self.overall));
    }

    pub(super) fn post(&mut self, shared: &mut Shared, event: u8) {
        if self.owner_gone {
            return;
        }
        if self.events == 0 {
            self.event_seq = shared.event_seq;
            shared.event_seq += 1;
        }
        self.events |= event;
        shared.any_event = true;
    }

    /// Raises the terminal event, unless the owner never fetched the request.
    pub(super) fn post_terminal(&mut self, shared: &mut Shared, terminal: Terminal) {
        match terminal {
            Terminal::Rejected(_) => shared.counters.rejected_by_peer += 1,
            Terminal::TimedOut(_) => shared.counters.timeouts += 1,
            Terminal::Disconnected(_) => shared.counters.disconnects += 1,
            Terminal::NotYet => {}
        }
        if self.events & event::REQUEST != 0 {
            shared.counters.withdrawn += 1;
            self.events = 0;
            self.owner_gone = true;
            return;
        }
        // Drop a reply that was not fetched yet: it is void.
        self.events &= !event::REPLY;
        self.terminal = terminal;
        self.post(shared, event::TERMINAL);
    }

    /// Enters TimeWait: twice the packet life time and the ACK delay must pass before the QP's
    /// numbers are reused (IBA volume 1, section 12.9.8.4).
    pub(super) fn enter_time_wait(&mut self, shared: &mut Shared, now: Instant) {
        self.state = State::TimeWait;
        let time = self.time_wait(shared);
        self.arm(shared, now + time);
    }

    /// Returns the duration of TimeWait: a packet may be in flight for a packet life time, and so
    /// may its reply.
    pub(super) fn time_wait(&self, shared: &Shared) -> Duration {
        2 * shared.peer_time(self.path.packet_life_time()) + shared.peer_time(self.target_ack_delay)
    }

    /// Returns the rank and the end of this slot if a new connection may take it. Slots in TimeWait
    /// come first, because [`History`] keeps what matters of them. Answers kept for repetitions
    /// come next, then abandoned connections whose peer does not answer the DREQ. Among equals the
    /// slot that ends first gives way.
    ///
    /// [`History`]: super::history::History
    pub(super) fn gives_way(&self) -> Option<(u8, Instant)> {
        let order = match self.state {
            State::TimeWait => 0,
            State::Rejected | State::SidrRepSent => 1,
            State::DreqSent if self.owner_gone => 2,
            _ => return None,
        };
        // An unfetched event, or an unsent message, is still owed.
        (self.events == 0 && !self.send_now && !self.held).then_some((order, self.deadline))
    }

    /// Over without a trace, once the last message is sent and the last event fetched.
    pub(super) fn enter_done(&mut self) {
        self.state = State::Done;
        self.disarm();
        self.reap();
    }

    /// Frees the slot if it is no longer needed.
    pub(super) fn reap(&mut self) {
        if self.state == State::Done && self.events == 0 && !self.send_now && !self.held {
            self.state = State::Free;
        }
    }

    pub(super) fn keep_private(&mut self, data: &[u8]) {
        let len = data.len().min(PRIVATE_LEN);
        for (to, from) in self.private.iter_mut().zip(data) {
            *to = *from;
        }
        self.private_len = len as u8;
    }

    pub(super) fn keep_info(&mut self, info: &[u8], len: u8) {
        let len = len.min(72);
        for (to, from) in self.info.iter_mut().zip(info) {
            *to = *from;
        }
        self.info_len = len;
    }

    /// A REJ from this slot.
    pub(super) fn rej(&self, which: u8, reason: RejReason) -> Rej {
        let mut rej = Rej::zeroed();
        rej.set_local_comm_id(self.local_id)
            .set_remote_comm_id(self.remote_id)
            .set_message_rejected(which)
            .set_reason(reason.0);
        rej
    }

    /// Returns a REJ with reason "timeout". The REJ contains the CA GUID, because the peer's
    /// communication id may not have arrived yet.
    pub(super) fn rej_timeout(&self, ca_guid: Guid) -> Mad {
        let mut rej = self.rej(which::OTHER, RejReason::TIMEOUT);
        // Eight bytes fit into the 72.
        let _ = rej.set_info(&ca_guid.get().to_be_bytes());
        rej.to_mad(self.tid)
    }

    /// A short answer from this slot.
    pub(super) fn short(&self, kind: ShortKind) -> ShortReply {
        ShortReply {
            dest: self.peer,
            tid: self.tid,
            local_id: self.local_id,
            remote_id: self.remote_id,
            kind,
        }
    }

    pub(super) fn qp_attributes(&self) -> QpAttributes {
        QpAttributes {
            path: self.path,
            remote_qpn: self.remote_qpn,
            rq_psn: self.local_psn,
            sq_psn: self.remote_psn,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            ack_timeout: self.ack_timeout,
        }
    }

    /// Takes the first event out.
    pub(super) fn take_event(&mut self, slot: usize) -> Option<CmEvent> {
        let bit = 1u8.checked_shl(self.events.trailing_zeros())?;
        self.events &= !bit;
        let (id, owner) = (self.id(slot), self.owner);
        Some(match bit {
            event::REQUEST if self.is_datagram() => CmEvent::DatagramRequest { id, listener: owner },
            event::REPLY if self.is_datagram() => CmEvent::DatagramReply { id, owner, service: self.service },
            event::REQUEST => CmEvent::ConnectRequest { id, listener: owner },
            event::REPLY => CmEvent::Reply { id, owner },
            event::ESTABLISHED => CmEvent::Established { id, owner },
            event::EXIT => CmEvent::TimeWaitExit { id, owner },
            _ => match self.terminal {
                Terminal::NotYet => return None,
                Terminal::Rejected(reason) => CmEvent::Rejected { id, owner, reason },
                Terminal::TimedOut(stage) => CmEvent::TimedOut { id, owner, stage },
                Terminal::Disconnected(cause) => CmEvent::Disconnected { id, owner, cause },
            },
        })
    }
}

//! Completions, errors, and what an error does to the rest of a QP's work (PRM, work requests and completions).

use mlx5_prm::Field;
use mlx5_prm::commands::query_q_counter_out as q;
use mlx5_prm::datapath::{CqeFormat, CqeOpcode, SendOpcode, cqe64, err_cqe};
use mlx5_prm::event::{EventQueueType, EventType};
use mlx5_prm::later;
use mlx5_prm::status::CqeSyndrome;
use mlx5_prm::value::{QpState, ServiceType};

use super::Context;
use super::state::{Current, FLUSH_TURN, Failure, ReceiveWqe, Sges, SharedOwner};
use crate::device::device_clock;
use crate::meter::price;
use crate::object::qp::Qp;
use crate::recorder::Event;

/// Vendor syndromes in the style of hardware's (PRM, work requests and completions): informative only.
pub(super) mod vendor {
    pub(in super::super) const RETRY_EXCEEDED: u8 = 0x81;
    pub(in super::super) const RNR_RETRY_EXCEEDED: u8 = 0x87;
    pub(in super::super) const REMOTE_ACCESS: u8 = 0x88;
    pub(in super::super) const REMOTE_INVALID: u8 = 0x8a;
    pub(in super::super) const REMOTE_OPERATION: u8 = 0x8b;
    pub(in super::super) const LOCAL_PROTECTION: u8 = 0x51;
    pub(in super::super) const LOCAL_LENGTH: u8 = 0x68;
    pub(in super::super) const BAD_RESPONSE: u8 = 0x99;
    pub(in super::super) const BIND: u8 = 0x36;
    pub(in super::super) const FLUSH: u8 = 0xf9;
}

/// `cqe64.l4_l3_hdr_type`: the packet had a VLAN tag.
const TAGGED: u8 = 1;

/// A received message, as its completion tells it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    pub(super) opcode: CqeOpcode,
    pub(super) byte_count: u32,
    pub(super) immediate: u32,
    pub(super) solicited: bool,
    pub(super) slid: u16,
    pub(super) sl: u8,
    pub(super) path_bits: u8,
    /// [`mlx5_prm::datapath::GrhPresence`].
    pub(super) grh: u8,
    pub(super) source_qpn: u32,
    /// Tag control information of a VLAN tag.
    pub(super) vlan: Option<u16>,
}

impl Context<'_, '_> {
    /// Completion of a send WQE: signalled ones and errors only.
    /// `data` is a READ's or atomic's answer, where the completion itself carries it.
    pub(super) fn complete_send(
        &mut self,
        qp: &mut Qp,
        index: u16,
        opcode: SendOpcode,
        byte_count: u32,
        data: &[u8],
    ) {
        let mut cqe = [0; cqe64::SIZE];
        cqe64::srqn.set(&mut cqe, qp.completions().index_or(0));
        cqe64::byte_cnt.set(&mut cqe, byte_count);
        self.stamp(&mut cqe);
        cqe64::s_wqe_opcode.set(&mut cqe, opcode.0);
        cqe64::qpn.set(&mut cqe, qp.qpn());
        cqe64::wqe_counter.set(&mut cqe, index);
        cqe64::opcode.set(&mut cqe, CqeOpcode::REQ.0);
        let half = put_inline(&mut cqe, qp.completions().inline_answer(), data);
        self.push_cqe(qp.completions().send_cq(), &cqe, half.as_ref(), false);
    }

    fn complete_send_error(&mut self, qp: &mut Qp, index: u16, opcode: SendOpcode, failure: Failure) {
        let (cqn, user_index) = (qp.completions().send_cq(), qp.completions().index_or(0));
        self.complete_error(qp.qpn(), cqn, index, CqeOpcode::REQ_ERR, opcode.0, user_index, failure);
        self.count(qp, q::req_cqe_error);
        let counter = match failure.syndrome {
            CqeSyndrome::WR_FLUSH_ERR => q::req_cqe_flush_error,
            CqeSyndrome::LOCAL_LENGTH_ERR => q::req_local_length_error,
            CqeSyndrome::LOCAL_QP_OP_ERR => q::local_operation_error,
            CqeSyndrome::LOCAL_PROT_ERR => q::req_local_protection,
            CqeSyndrome::MW_BIND_ERR => q::req_mw_binding,
            CqeSyndrome::BAD_RESP_ERR => q::req_bad_response,
            CqeSyndrome::REMOTE_INVAL_REQ_ERR => q::req_remote_invalid_request,
            CqeSyndrome::REMOTE_ACCESS_ERR => q::req_remote_access_errors,
            CqeSyndrome::REMOTE_OP_ERR => q::req_remote_operation_errors,
            CqeSyndrome::TRANSPORT_RETRY_EXC_ERR => q::req_transport_retries_exceeded,
            CqeSyndrome::RNR_RETRY_EXC_ERR => later::REQ_RNR_RETRIES_EXCEEDED,
            _ => return,
        };
        self.count(qp, counter);
    }

    /// Completion of a receive WQE. `data` is what the completion itself carries, by [`Self::inline_fits`].
    pub(super) fn complete_receive(
        &mut self,
        qp: &mut Qp,
        wqe: &ReceiveWqe,
        received: &Received,
        data: &[u8],
    ) {
        let mut cqe = [0; cqe64::SIZE];
        cqe64::ml_path.set(&mut cqe, received.path_bits);
        cqe64::slid.set(&mut cqe, received.slid);
        cqe64::g.set(&mut cqe, received.grh);
        cqe64::sl.set(&mut cqe, received.sl);
        cqe64::rqpn.set(&mut cqe, received.source_qpn);
        if let Some(tci) = received.vlan {
            cqe64::l4_l3_hdr_type.set(&mut cqe, TAGGED);
            cqe64::vlan_info.set(&mut cqe, tci);
        }
        cqe64::srqn.set(&mut cqe, receive_index(qp, wqe));
        cqe64::immediate.set(&mut cqe, received.immediate);
        cqe64::byte_cnt.set(&mut cqe, received.byte_count);
        self.stamp(&mut cqe);
        cqe64::qpn.set(&mut cqe, qp.qpn());
        cqe64::wqe_counter.set(&mut cqe, wqe.index);
        cqe64::opcode.set(&mut cqe, received.opcode.0);
        cqe64::se.set(&mut cqe, received.solicited);
        let half = put_inline(&mut cqe, qp.completions().inline_receive(), data);
        self.push_cqe(receive_cq(qp, wqe), &cqe, half.as_ref(), received.solicited);
    }

    /// Completion of a receive WQE with an error.
    pub(super) fn complete_receive_error(&mut self, qp: &mut Qp, wqe: &ReceiveWqe, failure: Failure) {
        let index = receive_index(qp, wqe);
        if failure.syndrome != CqeSyndrome::WR_FLUSH_ERR {
            let Failure { syndrome, vendor } = failure;
            self.note(qp, Event::ReceiveFailed { index: wqe.index, syndrome, vendor });
        }
        self.complete_error(qp.qpn(), receive_cq(qp, wqe), wqe.index, CqeOpcode::RESP_ERR, 0, index, failure);
        self.count(qp, q::resp_cqe_error);
        let counter = match failure.syndrome {
            CqeSyndrome::WR_FLUSH_ERR => q::resp_cqe_flush_error,
            CqeSyndrome::LOCAL_LENGTH_ERR => q::resp_local_length_error,
            CqeSyndrome::LOCAL_PROT_ERR => q::resp_local_protection,
            _ => q::resp_local_qp_error,
        };
        self.count(qp, counter);
    }

    #[allow(clippy::too_many_arguments)] // The fields of an error CQE.
    pub(super) fn complete_error(
        &mut self,
        number: u32,
        cqn: u32,
        counter: u16,
        kind: CqeOpcode,
        send_opcode: u8,
        index: u32,
        failure: Failure,
    ) {
        let mut cqe = [0; err_cqe::SIZE];
        err_cqe::srqn.set(&mut cqe, index);
        err_cqe::vendor_err_synd.set(&mut cqe, failure.vendor);
        err_cqe::syndrome.set(&mut cqe, failure.syndrome.0);
        err_cqe::s_wqe_opcode.set(&mut cqe, send_opcode);
        err_cqe::qpn.set(&mut cqe, number);
        err_cqe::wqe_counter.set(&mut cqe, counter);
        err_cqe::opcode.set(&mut cqe, kind.0);
        self.push_cqe(cqn, &cqe, None, true);
    }

    pub(super) fn stamp(&self, cqe: &mut [u8; cqe64::SIZE]) {
        let ticks = device_clock(self.io.now);
        cqe64::timestamp_h.set(cqe, (ticks >> 32) as u32);
        cqe64::timestamp_l.set(cqe, ticks as u32);
    }

    pub(super) fn push_cqe(&mut self, cqn: u32, cqe: &[u8; 64], first_half: Option<&[u8; 64]>, notify: bool) {
        // A CQ that fails has logged it, and its QPs come to `on_cq_error`.
        let _ = self.queues.push_cqe(self.io, self.log, cqn, cqe, first_half, notify);
    }

    /// Returns whether the CQ's entries hold up to `limit` bytes: 64 need the first half of a 128-byte entry.
    pub(super) fn inline_fits(&self, qp: &Qp, wqe: &ReceiveWqe, limit: usize) -> bool {
        self.entry_holds(receive_cq(qp, wqe), limit)
    }

    pub(super) fn entry_holds(&self, cqn: u32, limit: usize) -> bool {
        let Some(cq) = self.queues.cqs.get(cqn) else { return false };
        match limit {
            0 => false,
            32 => true,
            _ => cq.cqe_bytes == 128,
        }
    }

    pub(super) fn count(&mut self, qp: &Qp, counter: Field) {
        if let Some(set) = qp.counter_set() {
            self.q_counters.bump(set, counter);
        }
    }

    /// Completes the WQEs at the head of an RC send queue that are done.
    pub(super) fn complete_finished(&mut self, qp: &mut Qp) {
        while let Some(wqe) = qp.transport.requester.wqes.front() {
            if wqe.failure.is_some() {
                self.fail_front(qp);
                return;
            }
            let done = if wqe.psns == 0 {
                wqe.issued
            } else if wqe.work.is_answered() {
                wqe.answered == wqe.psns
            } else {
                wqe.issued && !qp.transport.requester.unacked.is_before(wqe.end())
            };
            if !done {
                return;
            }
            let (index, blocks, opcode, signalled) = (wqe.index, wqe.blocks, wqe.opcode, wqe.signalled);
            let byte_count = if wqe.work.is_answered() { wqe.len as u32 } else { 0 };
            let requester = &mut qp.transport.requester;
            let rare = requester.wqes.pop_front().and_then(|wqe| wqe.rare);
            requester.at = requester.at.saturating_sub(1);
            requester.ssn = requester.ssn.wrapping_add(1) & 0x00ff_ffff;
            qp.transport.queue.retired = index.wrapping_add(blocks);
            if signalled {
                let inline = rare.as_ref().and_then(|rare| rare.inline_answer.as_deref());
                self.complete_send(qp, index, opcode, byte_count, inline.unwrap_or_default());
            }
        }
    }

    /// The oldest WQE failed: its completion, then the QP's error state.
    pub(super) fn fail_front(&mut self, qp: &mut Qp) {
        if let Some(wqe) = qp.transport.requester.wqes.pop_front() {
            let unknown = Failure { syndrome: CqeSyndrome::LOCAL_QP_OP_ERR, vendor: 0 };
            let failure = wqe.failure.unwrap_or(unknown);
            qp.transport.queue.retired = wqe.index.wrapping_add(wqe.blocks);
            self.note_failed(qp, &wqe, failure);
            self.complete_send_error(qp, wqe.index, wqe.opcode, failure);
        }
        // A state of unreliable services only (IBTA 10.3.1.5).
        let alone =
            matches!(qp.service(), ServiceType::UC | ServiceType::UD | ServiceType::QP0 | ServiceType::QP1);
        if alone && qp.state() == QpState::RTS {
            self.enter_send_error(qp);
        } else {
            self.enter_error(qp);
        }
    }

    /// Marks the oldest WQE as failed, and acts on it.
    pub(super) fn fail_oldest(&mut self, qp: &mut Qp, syndrome: CqeSyndrome, vendor: u8) {
        if let Some(wqe) = qp.transport.requester.wqes.front_mut() {
            wqe.failure = Some(Failure { syndrome, vendor });
        }
        self.fail_front(qp);
    }

    /// The QP goes to error: everything that was posted is flushed, in order.
    pub(super) fn enter_error(&mut self, qp: &mut Qp) {
        self.fail(qp, QpState::ERR);
        self.flush(qp);
    }

    /// The send queue of an unreliable QP fails alone (SQER): sends are flushed, receives go on.
    fn enter_send_error(&mut self, qp: &mut Qp) {
        self.fail(qp, QpState::SQER);
        // The rest of a long queue in later turns.
        if self.flush_sends(qp) {
            self.schedule(qp);
        }
    }

    /// Flushes the send queue, and the receive queue with `both`. Answers whether there is more: it is done by turns.
    pub(super) fn flush_queues(&mut self, qp: &mut Qp, both: bool) -> bool {
        let sends = self.flush_sends(qp);
        let receives = both && self.flush_receives(qp);
        sends || receives
    }

    /// Flushes both queues, the rest of long ones in later turns.
    pub(super) fn flush(&mut self, qp: &mut Qp) {
        qp.transport.flushing = self.device.schedule.flushes_held() || self.flush_queues(qp, true);
        if qp.transport.flushing {
            self.schedule(qp);
        }
        let transport = &mut qp.transport;
        transport.requester.ack_deadline = None;
        transport.requester.rnr_until = None;
        transport.deadline = None;
        transport.responder.jobs.clear();
        transport.responder.ack_due = false;
        transport.responder.nak = None;
        if qp.rings().receive().is_some() {
            self.device.schedule.watch(qp.qpn(), self.io.now);
        }
    }

    /// Flushes sends. Answers whether there are more.
    pub(super) fn flush_sends(&mut self, qp: &mut Qp) -> bool {
        const FLUSHED: Failure = Failure { syndrome: CqeSyndrome::WR_FLUSH_ERR, vendor: vendor::FLUSH };
        while let Some(wqe) = qp.transport.requester.wqes.pop_front() {
            self.meter.charge(price::WQE);
            qp.transport.queue.retired = wqe.index.wrapping_add(wqe.blocks);
            self.complete_send_error(qp, wqe.index, wqe.opcode, FLUSHED);
        }
        qp.transport.requester.at = 0;
        let Some(sq) = qp.rings().send() else { return false };
        // A record that cannot be read, or claims too much, has nothing that could be flushed.
        if self.refresh_posted(qp).is_err() {
            return false;
        }
        for _ in 0..FLUSH_TURN {
            let queue = &qp.transport.queue;
            let (index, available) = (queue.fetched, queue.posted.wrapping_sub(queue.fetched));
            if available == 0 {
                return false;
            }
            self.meter.charge(price::WQE);
            let (blocks, opcode) = self.skim(qp, sq, index, available);
            qp.transport.queue.fetched = index.wrapping_add(blocks);
            qp.transport.queue.retired = qp.transport.queue.fetched;
            self.complete_send_error(qp, index, opcode, FLUSHED);
        }
        qp.transport.queue.posted != qp.transport.queue.fetched
    }

    /// Flushes receives. Answers whether there may be more.
    pub(super) fn flush_receives(&mut self, qp: &mut Qp) -> bool {
        const FLUSHED: Failure = Failure { syndrome: CqeSyndrome::WR_FLUSH_ERR, vendor: vendor::FLUSH };
        if let Some(receive) = qp.transport.responder.spare.take() {
            self.complete_receive_error(qp, &receive, FLUSHED);
        }
        if let Some(Current::Send { receive, .. }) = qp.transport.responder.current.take() {
            self.complete_receive_error(qp, &receive, FLUSHED);
        }
        if qp.shared_queue().is_some() {
            // What was not taken stays in the shared queue; the owner learns that nothing more will come from this QP.
            if !qp.transport.responder.last_wqe_told {
                qp.transport.responder.last_wqe_told = true;
                self.qp_event(qp, EventType::SRQ_LAST_WQE);
            }
            return false;
        }
        for _ in 0..FLUSH_TURN {
            let Some(index) = self.next_receive_index(qp) else { return false };
            self.meter.charge(price::WQE);
            let wqe = ReceiveWqe {
                index,
                sges: Sges::default(),
                capacity: 0,
                pd: qp.user().pd,
                reserved_lkey: false,
                srqn: None,
                owner: None,
            };
            self.complete_receive_error(qp, &wqe, FLUSHED);
        }
        true
    }

    pub(super) fn qp_event(&mut self, qp: &Qp, kind: EventType) {
        self.queues.qp_event(self.io, self.log, kind, EventQueueType::QP, qp.qpn());
    }

    /// The QP's queues cannot be worked on: error without a WQE to blame.
    pub(super) fn catastrophe(&mut self, qp: &mut Qp) {
        self.fail(qp, QpState::ERR);
        qp.transport.reset();
        qp.transport.failed = true;
        self.qp_event(qp, EventType::WQ_CATAS_ERROR);
    }
}

/// Puts `data` into a completion, which then says so (`cqe64.op_own`, format). Answers with the first half of a 128-byte
/// entry, where the data is there.
fn put_inline(cqe: &mut [u8; cqe64::SIZE], limit: usize, data: &[u8]) -> Option<[u8; 64]> {
    if data.is_empty() {
        return None;
    }
    let format = if limit == 32 { CqeFormat::INLINE_DATA32_SEG } else { CqeFormat::INLINE_DATA64_SEG };
    cqe64::format.set(cqe, format.0);
    let mut half = [0; 64];
    let place = if format == CqeFormat::INLINE_DATA32_SEG { &mut *cqe } else { &mut half };
    for (to, from) in place.iter_mut().zip(data) {
        *to = *from;
    }
    (format == CqeFormat::INLINE_DATA64_SEG).then_some(half)
}

/// The CQ of a receive WQE: the QP's, or that of the XRC SRQ it is from.
fn receive_cq(qp: &Qp, wqe: &ReceiveWqe) -> u32 {
    wqe.owner.map_or(qp.completions().receive_cq(), |owner| owner.cqn)
}

fn receive_index(qp: &Qp, wqe: &ReceiveWqe) -> u32 {
    match wqe.owner {
        Some(SharedOwner { user_index: 0xff_ffff, .. }) => return wqe.srqn.unwrap_or(0),
        Some(owner) => return owner.user_index,
        None => {}
    }
    qp.completions().index_or(wqe.srqn.unwrap_or(0))
}

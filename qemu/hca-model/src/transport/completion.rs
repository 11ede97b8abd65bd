//! Retired send WQEs, errors, and what an error does to the rest of a QP's work (PRM, work requests and completions).

use mlx5_prm::event::EventType;
use mlx5_prm::status::CqeSyndrome;
use mlx5_prm::value::{QpState, ServiceType};

use super::data_path::DataPath;
use super::state::{Current, FLUSH_TURN, Failure, ReceiveWqe, Sges};
use crate::meter::price;
use crate::object::qp::Qp;

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

impl DataPath<'_, '_> {
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
                self.delivery().complete_send(qp, index, opcode, byte_count, inline.unwrap_or_default());
            }
        }
    }

    /// The oldest WQE failed: its completion, then the QP's error state.
    pub(super) fn fail_front(&mut self, qp: &mut Qp) {
        if let Some(wqe) = qp.transport.requester.wqes.pop_front() {
            let unknown = Failure { syndrome: CqeSyndrome::LOCAL_QP_OP_ERR, vendor: 0 };
            let failure = wqe.failure.unwrap_or(unknown);
            qp.transport.queue.retired = wqe.index.wrapping_add(wqe.blocks);
            self.reports().note_failed(qp, &wqe, failure);
            self.delivery().complete_send_error(qp, wqe.index, wqe.opcode, failure);
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
        self.reports().fail(qp, QpState::ERR);
        self.flush(qp);
    }

    /// The send queue of an unreliable QP fails alone (SQER): sends are flushed, receives go on.
    fn enter_send_error(&mut self, qp: &mut Qp) {
        self.reports().fail(qp, QpState::SQER);
        // The rest of a long queue in later turns.
        if self.flush_sends(qp) {
            self.turns().add(qp);
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
        qp.transport.flushing = self.turns().flushes_held() || self.flush_queues(qp, true);
        if qp.transport.flushing {
            self.turns().add(qp);
        }
        let transport = &mut qp.transport;
        transport.requester.ack_deadline = None;
        transport.requester.rnr_until = None;
        transport.deadline = None;
        transport.responder.jobs.clear();
        transport.responder.ack_due = false;
        transport.responder.nak = None;
        if qp.rings().receive().is_some() {
            let now = self.now();
            self.turns().watch(qp.qpn(), now);
        }
    }

    /// Flushes sends. Answers whether there are more.
    pub(super) fn flush_sends(&mut self, qp: &mut Qp) -> bool {
        const FLUSHED: Failure = Failure { syndrome: CqeSyndrome::WR_FLUSH_ERR, vendor: vendor::FLUSH };
        while let Some(wqe) = qp.transport.requester.wqes.pop_front() {
            self.meter().charge(price::WQE);
            qp.transport.queue.retired = wqe.index.wrapping_add(wqe.blocks);
            self.delivery().complete_send_error(qp, wqe.index, wqe.opcode, FLUSHED);
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
            self.meter().charge(price::WQE);
            let (blocks, opcode) = qp.skim(self.guest(), sq, index, available);
            qp.transport.queue.fetched = index.wrapping_add(blocks);
            qp.transport.queue.retired = qp.transport.queue.fetched;
            self.delivery().complete_send_error(qp, index, opcode, FLUSHED);
        }
        qp.transport.queue.posted != qp.transport.queue.fetched
    }

    /// Flushes receives. Answers whether there may be more.
    pub(super) fn flush_receives(&mut self, qp: &mut Qp) -> bool {
        const FLUSHED: Failure = Failure { syndrome: CqeSyndrome::WR_FLUSH_ERR, vendor: vendor::FLUSH };
        if let Some(receive) = qp.transport.responder.spare.take() {
            self.delivery().complete_receive_error(qp, &receive, FLUSHED);
        }
        if let Some(Current::Send { receive, .. }) = qp.transport.responder.current.take() {
            self.delivery().complete_receive_error(qp, &receive, FLUSHED);
        }
        if qp.shared_queue().is_some() {
            // What was not taken stays in the shared queue; the owner learns that nothing more will come from this QP.
            if !qp.transport.responder.last_wqe_told {
                qp.transport.responder.last_wqe_told = true;
                self.delivery().qp_event(qp, EventType::SRQ_LAST_WQE);
            }
            return false;
        }
        for _ in 0..FLUSH_TURN {
            let index = match qp.take_receive_index(self.guest()) {
                Ok(Some(index)) => index,
                Ok(None) => return false,
                Err(fault) => {
                    self.reports().refuse_queue(qp, fault);
                    return false;
                }
            };
            self.meter().charge(price::WQE);
            let wqe = ReceiveWqe {
                index,
                sges: Sges::default(),
                capacity: 0,
                pd: qp.user().pd,
                reserved_lkey: false,
                srqn: None,
                owner: None,
            };
            self.delivery().complete_receive_error(qp, &wqe, FLUSHED);
        }
        true
    }

    /// The QP's queues cannot be worked on: error without a WQE to blame.
    pub(super) fn catastrophe(&mut self, qp: &mut Qp) {
        self.reports().fail(qp, QpState::ERR);
        qp.transport.reset();
        qp.transport.failed = true;
        self.delivery().qp_event(qp, EventType::WQ_CATAS_ERROR);
    }
}

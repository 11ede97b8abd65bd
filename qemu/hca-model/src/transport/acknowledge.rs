//! What a requester does with responses: acknowledgements, NAKs, READ responses, results of atomics (IBTA 9.7.5, 9.7.7).

use mlx5_prm::commands::query_q_counter_out as q;
use mlx5_prm::status::CqeSyndrome;
use mlx5_prm::value::QpState;
use rdma_fabric::infiniband::packet::{Aeth, AethSyndrome, AtomicAckEth, Operation, rnr_timer_ns};

use super::completion::vendor;
use super::data_path::DataPath;
use super::state::{Failure, Work};
use crate::log::Subject;
use crate::object::qp::Qp;
use crate::recorder::{DropReason, Event, ResendCause};
use crate::run::Data;
use ib_types::Psn;

/// An RNR retry count of 7 never runs out.
const RNR_FOREVER: u8 = 7;

impl DataPath<'_, '_> {
    /// A response packet: `content` is what follows its BTH.
    pub(super) fn response(&mut self, qp: &mut Qp, operation: Operation, psn: Psn, content: &[u8]) {
        if !matches!(qp.state(), QpState::RTS | QpState::SQD | QpState::SQ_DRAINING) {
            self.counters().no_qp += 1;
            return self.reports().note(qp, Event::Dropped { reason: DropReason::State, psn });
        }
        let requester = &qp.transport.requester;
        // Only what was sent and is not acknowledged can be answered; anything else is a ghost or a repetition.
        if psn.since(requester.unacked) >= requester.sent.since(requester.unacked) {
            return self.reports().note(qp, Event::Dropped { reason: DropReason::Unexpected, psn });
        }
        match operation {
            Operation::Acknowledge => {
                let Ok(aeth) = Aeth::parse(content) else {
                    self.counters().malformed += 1;
                    return;
                };
                self.acknowledge(qp, psn, aeth.syndrome, aeth.msn);
            }
            Operation::AtomicAcknowledge => {
                let parsed = Aeth::parse(content)
                    .and_then(|_| AtomicAckEth::parse(content.get(Aeth::LEN..).unwrap_or_default()));
                let Ok(result) = parsed else {
                    self.counters().malformed += 1;
                    return;
                };
                let result = self.atomic_order().bytes(result.original);
                self.answer(qp, operation, psn, &result);
            }
            Operation::ReadResponseMiddle => self.answer(qp, operation, psn, content),
            _ => match content.get(Aeth::LEN..) {
                Some(data) => self.answer(qp, operation, psn, data),
                None => self.counters().malformed += 1,
            },
        }
        self.turns().add(qp);
    }

    fn acknowledge(&mut self, qp: &mut Qp, psn: Psn, syndrome: AethSyndrome, msn: u32) {
        match syndrome {
            AethSyndrome::Ack { credits } => {
                qp.transport.requester.credited(credits, msn);
                self.acknowledged(qp, psn.next());
            }
            AethSyndrome::PsnSequenceError => {
                self.counters().sequence_naks_received += 1;
                self.reports().note_nak(qp, psn, syndrome, qp.transport.requester.retries_left);
                self.delivery().count(qp, q::packet_seq_err);
                // A lost READ response came to light: that repetition covers this one.
                if self.acknowledged(qp, psn) && qp.state() != QpState::ERR && self.retry(qp) {
                    self.start_over(qp, psn);
                }
            }
            AethSyndrome::RnrNak { timer } => {
                self.counters().rnr_naks_received += 1;
                self.reports().note_nak(qp, psn, syndrome, qp.transport.requester.rnr_left);
                self.delivery().count(qp, q::rnr_nak_retry_err);
                if !self.acknowledged(qp, psn) || qp.state() == QpState::ERR {
                    return;
                }
                let rnr_retry = qp.connection().rnr_retry();
                let requester = &mut qp.transport.requester;
                if rnr_retry != RNR_FOREVER {
                    let Some(left) = requester.rnr_left.checked_sub(1) else {
                        self.fail_oldest(qp, CqeSyndrome::RNR_RETRY_EXC_ERR, vendor::RNR_RETRY_EXCEEDED);
                        return;
                    };
                    requester.rnr_left = left;
                }
                requester.not_ready(msn);
                requester.rnr_until = Some(self.now().saturating_add(rnr_timer_ns(timer)));
                requester.ack_deadline = None;
                requester.seek(psn);
                self.turns().arm(qp);
            }
            AethSyndrome::InvalidRequest | AethSyndrome::RemoteAccess | AethSyndrome::RemoteOperational => {
                self.reports().note_nak(qp, psn, syndrome, 0);
                if !self.acknowledged(qp, psn) || qp.state() == QpState::ERR {
                    return;
                }
                let (syndrome, vendor) = match syndrome {
                    AethSyndrome::InvalidRequest => {
                        (CqeSyndrome::REMOTE_INVAL_REQ_ERR, vendor::REMOTE_INVALID)
                    }
                    AethSyndrome::RemoteAccess => (CqeSyndrome::REMOTE_ACCESS_ERR, vendor::REMOTE_ACCESS),
                    _ => (CqeSyndrome::REMOTE_OP_ERR, vendor::REMOTE_OPERATION),
                };
                self.fail_oldest(qp, syndrome, vendor);
            }
            AethSyndrome::InvalidRdRequest | AethSyndrome::Reserved(_) => {
                self.reports().note_nak(qp, psn, syndrome, 0);
                if self.acknowledged(qp, psn) && qp.state() != QpState::ERR {
                    self.fail_oldest(qp, CqeSyndrome::BAD_RESP_ERR, vendor::BAD_RESPONSE);
                }
            }
        }
    }

    /// Everything before `end` is acknowledged, up to a READ or atomic that is not answered: that one was lost on its way
    /// and is asked for again. Answers whether `end` was reached.
    fn acknowledged(&mut self, qp: &mut Qp, end: Psn) -> bool {
        let requester = &mut qp.transport.requester;
        let mut reached = end;
        for wqe in &requester.wqes {
            if wqe.psns == 0 || !wqe.work.is_answered() || wqe.answered == wqe.psns {
                continue;
            }
            let missing = wqe.first.add(wqe.answered);
            if missing.is_before(end) {
                reached = missing;
            }
            break;
        }
        if requester.unacked.is_before(reached) {
            self.progress(qp, reached);
        }
        if reached != end && qp.state() != QpState::ERR {
            self.missing_answer(qp, reached);
            return false;
        }
        true
    }

    /// The peer has taken everything before `unacked`.
    pub(super) fn progress(&mut self, qp: &mut Qp, unacked: Psn) {
        let (retries, rnr_retries) = (qp.connection().retry_count(), qp.connection().rnr_retry());
        let requester = &mut qp.transport.requester;
        requester.unacked = unacked;
        requester.got_through();
        requester.retries_left = retries;
        requester.rnr_left = rnr_retries;
        if requester.cursor.is_before(unacked) {
            requester.seek(unacked);
        }
        self.complete_finished(qp);
        if qp.state() != QpState::ERR {
            if qp.transport.requester.reads != 0 {
                qp.transport.requester.count_reads();
            }
            let requester = &qp.transport.requester;
            if requester.ack_deadline.is_some() || requester.unacked != requester.sent {
                let now = self.now();
                self.turns().restart_ack_timer(qp, now);
            }
        }
    }

    /// A response shows that the one at `psn` was lost. Asked for once; after that the timer decides.
    fn missing_answer(&mut self, qp: &mut Qp, psn: Psn) {
        if qp.transport.requester.gap_at == Some(psn) {
            return;
        }
        qp.transport.requester.gap_at = Some(psn);
        self.counters().implied_naks += 1;
        self.delivery().count(qp, q::implied_nak_seq_err);
        self.reports().note_resent(qp, ResendCause::MissingResponse, psn);
        self.start_over(qp, psn);
    }

    /// One packet of the answer to a READ, or an atomic's result.
    fn answer(&mut self, qp: &mut Qp, operation: Operation, psn: Psn, data: &[u8]) {
        // It acknowledges everything before its request.
        let pending = |wqe: &super::state::Wqe| wqe.work.is_answered() && wqe.answered < wqe.psns;
        let Some(wqe) = qp.transport.requester.wqes.iter().find(|wqe| pending(wqe)) else { return };
        let missing = wqe.first.add(wqe.answered);
        if psn.is_before(missing) {
            return;
        }
        if psn != missing {
            // Of this READ a packet is lost, or the whole answer when it is about a later one.
            if qp.transport.requester.unacked.is_before(missing) {
                self.progress(qp, missing);
            }
            self.missing_answer(qp, missing);
            return;
        }
        let first = wqe.first;
        if qp.transport.requester.unacked.is_before(first) {
            self.progress(qp, first);
        }
        let mtu = u64::from(qp.connection().mtu());
        let user = qp.user();
        let (send_cq, limit) = (qp.completions().send_cq(), qp.completions().inline_answer());
        let requester = &mut qp.transport.requester;
        let Some(at) = requester.wqes.iter().position(pending) else { return };
        let Some(wqe) = requester.wqes.get_mut(at) else { return };
        let offset = u64::from(wqe.answered) * mtu;
        let left = wqe.len.saturating_sub(offset);
        let last = wqe.answered + 1 == wqe.psns;
        let fits = match operation {
            Operation::AtomicAcknowledge => wqe.work != Work::Read && data.len() == 8,
            Operation::ReadResponseOnly | Operation::ReadResponseLast => last && data.len() as u64 == left,
            _ => !last && data.len() as u64 == mtu,
        } && (operation == Operation::AtomicAcknowledge) == (wqe.work != Work::Read);
        if !fits {
            wqe.failure = Some(Failure { syndrome: CqeSyndrome::BAD_RESP_ERR, vendor: vendor::BAD_RESPONSE });
            let (index, subject) = (wqe.index, Subject::Qp { qpn: qp.qpn() });
            let text = format!("{operation:?} of {} bytes where {left} bytes are missing", data.len());
            self.reports().refuse(subject, "", text.clone());
            qp.transport.recorder.blame(Some(index), text);
            self.complete_finished(qp);
            return;
        }
        let inline = wqe.signalled && wqe.psns == 1 && (1..=limit).contains(&data.len());
        let wqe = &*wqe;
        let inline = inline && self.delivery().entry_holds(send_cq, limit);
        // Little data may come in the completion itself; software puts it in place then.
        let placed =
            if inline { Ok(()) } else { self.memory().scatter(user, wqe.sges(), offset, &Data::Bytes(data)) };
        let requester = &mut qp.transport.requester;
        let Some(wqe) = requester.wqes.get_mut(at) else { return };
        if let Err(fault) = placed {
            let index = wqe.index;
            wqe.failure =
                Some(Failure { syndrome: CqeSyndrome::LOCAL_PROT_ERR, vendor: vendor::LOCAL_PROTECTION });
            self.reports().refuse_data(qp, index, fault);
            self.complete_finished(qp);
            return;
        }
        wqe.answered += 1;
        if inline {
            wqe.rare_mut().inline_answer = Some(data.to_vec());
        }
        if requester.gap_at == Some(psn) {
            requester.gap_at = None;
        }
        self.progress(qp, psn.next());
    }
}

//! What a responder sends: READ responses, results of atomics, acknowledgements, NAKs, in the order of their PSNs.

use mlx5_prm::event::EventType;
use mlx5_prm::value::{AccessFlags, QpState};
use rdma_fabric::infiniband::packet::{Aeth, AethSyndrome, AtomicAckEth, Opcode};

use super::data_path::DataPath;
use super::failure::Reason;
use super::memory::Fault;
use super::output::{Envelope, Head};
use super::state::{Answer, Nak};
use crate::log::Subject;
use crate::object::qp::Qp;
use crate::recorder::Event;
use ib_types::Psn;

impl DataPath<'_, '_> {
    /// Sends what is due. Answers whether the budget, and nothing else, ended it.
    pub(super) fn respond(&mut self, qp: &mut Qp, budget: &mut usize) -> bool {
        let responder = &qp.transport.responder;
        if responder.jobs.is_empty() && !responder.ack_due && responder.nak.is_none() {
            return false;
        }
        let envelope = self.output().connection(qp);
        while !qp.transport.responder.jobs.is_empty() {
            if *budget == 0 || self.meter().is_spent() {
                return true;
            }
            *budget -= 1;
            if let Err(nak) = self.send_answer(qp, &envelope) {
                let responder = &mut qp.transport.responder;
                responder.jobs.clear();
                responder.halted = true;
                responder.nak = Some(nak);
            }
        }
        let responder = &mut qp.transport.responder;
        let msn = responder.msn;
        let expected = responder.expected;
        if let Some(nak) = responder.nak.take() {
            responder.ack_due = false;
            let psn = nak.psn.unwrap_or(expected);
            self.output().acknowledge(&envelope, psn, nak.syndrome, msn);
            self.reports().note(qp, Event::NakSent { psn, syndrome: nak.syndrome });
            *budget = budget.saturating_sub(1);
            match AethSyndrome::from_bits(nak.syndrome) {
                AethSyndrome::PsnSequenceError => self.counters().sequence_naks_sent += 1,
                AethSyndrome::RnrNak { .. } => self.counters().rnr_naks_sent += 1,
                _ => {}
            }
            if nak.fatal && qp.state() != QpState::ERR {
                self.enter_error(qp);
            }
        } else if responder.ack_due {
            responder.ack_due = false;
            let credits = qp.credits(self.guest());
            self.output().acknowledge(&envelope, expected.previous(), credits, msn);
            *budget = budget.saturating_sub(1);
        }
        false
    }

    /// Sends the next packet of the oldest answer.
    fn send_answer(&mut self, qp: &mut Qp, envelope: &Envelope) -> Result<(), Nak> {
        let mtu = u64::from(qp.connection().mtu());
        let Some(job) = qp.transport.responder.jobs.front_mut() else { return Ok(()) };
        let (psn, msn) = (job.psn, job.msn);
        if let Answer::Acknowledge = job.kind {
            qp.transport.responder.jobs.pop_front();
            let credits = qp.credits(self.guest());
            self.output().acknowledge(envelope, psn, credits, msn);
            return Ok(());
        }
        let first = !job.started;
        job.started = true;
        let aeth = Aeth { syndrome: AethSyndrome::Ack { credits: AethSyndrome::NO_CREDITS }, msn: job.msn };
        let mut head =
            Head { opcode: Opcode::RC_ATOMIC_ACKNOWLEDGE, psn, ack_request: false, solicited: false };
        match job.kind {
            Answer::Acknowledge => Ok(()),
            Answer::Atomic { original } => {
                qp.transport.responder.jobs.pop_front();
                let mut extended = [0; Aeth::LEN + AtomicAckEth::LEN];
                let (front, back) = extended.split_at_mut(Aeth::LEN);
                front.copy_from_slice(&aeth.to_bytes());
                back.copy_from_slice(&AtomicAckEth { original }.to_bytes());
                let draft = self.output().draft(envelope, &head, &extended, 0);
                self.output().dispatch(draft);
                Ok(())
            }
            Answer::Read { va, rkey, left, user } => {
                let len = left.min(mtu);
                let last = left <= mtu;
                head.opcode = match (first, last) {
                    (true, false) => Opcode::RC_READ_RESPONSE_FIRST,
                    (false, false) => Opcode::RC_READ_RESPONSE_MIDDLE,
                    (false, true) => Opcode::RC_READ_RESPONSE_LAST,
                    (true, true) => Opcode::RC_READ_RESPONSE_ONLY,
                };
                if last {
                    qp.transport.responder.jobs.pop_front();
                } else {
                    job.psn = psn.next();
                    job.kind = Answer::Read { va: va.wrapping_add(len), rkey, left: left - len, user };
                }
                let aeth = aeth.to_bytes();
                let extended: &[u8] = if first || last { &aeth } else { &[] };
                let mut draft = self.output().draft(envelope, &head, extended, len as usize);
                if len != 0
                    && let Err(fault) =
                        self.memory().read_key(user, rkey, va, AccessFlags::REMOTE_READ, draft.payload())
                {
                    self.output().discard(draft);
                    return Err(self.failed_read(qp, psn, fault));
                }
                self.output().dispatch(draft);
                Ok(())
            }
        }
    }

    /// The memory of a READ went away between its request and its answer.
    fn failed_read(&mut self, qp: &mut Qp, psn: Psn, fault: Fault) -> Nak {
        let (field, text) = self.reports().explain(qp, Reason::Fault(fault, "rkey"));
        qp.transport.recorder.blame(None, format!("RDMA read, response at PSN {}: {text}", psn.get()));
        self.reports().refuse(Subject::Qp { qpn: qp.qpn() }, field, format!("READ response: {text}"));
        let syndrome = match fault {
            Fault::Dma(_) => AethSyndrome::RemoteOperational,
            _ => {
                self.delivery().qp_event(qp, EventType::WQ_ACCESS_ERROR);
                AethSyndrome::RemoteAccess
            }
        };
        Nak { psn: Some(psn), syndrome: syndrome.bits(), fatal: true }
    }
}

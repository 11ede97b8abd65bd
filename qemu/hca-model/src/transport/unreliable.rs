//! The responder half of an unreliable connection: what is not as expected is dropped in silence, a message at a time
//! (IBTA 9.8.2, 9.9.3).

use mlx5_prm::commands::query_q_counter_out as q;
use mlx5_prm::event::EventType;
use mlx5_prm::value::QpState;
use rdma_fabric::infiniband::packet::{AethSyndrome, Operation};

use super::data_path::DataPath;
use super::execute::is_only;
use super::inbound::Inbound;
use super::responder::Refusal;
use super::state::Current;
use crate::log::Subject;
use crate::object::qp::Qp;
use crate::recorder::{self, DropReason, Event};
use ib_types::Psn;

impl DataPath<'_, '_> {
    /// A packet for a UC QP.
    pub(super) fn unreliable(&mut self, qp: &mut Qp, operation: Operation, packet: &Inbound<'_>) {
        let receives = matches!(
            qp.state(),
            QpState::RTR | QpState::RTS | QpState::SQD | QpState::SQ_DRAINING | QpState::SQER
        );
        if !receives {
            self.counters().no_qp += 1;
            let psn = Psn::new(packet.bth.psn);
            return self.reports().note(qp, Event::Dropped { reason: DropReason::State, psn });
        }
        if !qp.transport.responder.established && qp.state() == QpState::RTR {
            qp.transport.responder.established = true;
            self.delivery().qp_event(qp, EventType::COMM_EST);
        }
        let psn = Psn::new(packet.bth.psn);
        if psn != qp.transport.responder.expected {
            self.counters().out_of_sequence += 1;
            self.delivery().count(qp, q::out_of_sequence);
            self.reports().note(qp, Event::Dropped { reason: DropReason::OutOfSequence, psn });
            self.abandon(qp);
        }
        if operation.is_first() || is_only(operation) {
            // A new message begins whatever became of the one before.
            self.abandon(qp);
        } else if qp.transport.responder.current.is_none() {
            // The rest of a message that was dropped.
            qp.transport.responder.expected = psn.next();
            return;
        }
        qp.transport.responder.expected = psn;
        if let Err(refusal) = self.execute(qp, operation, packet) {
            qp.transport.responder.expected = psn.next();
            self.abandon(qp);
            self.drop_message(qp, psn, refusal);
        }
    }

    /// The message under way will not be completed. Its receive WQE serves the next one.
    fn abandon(&mut self, qp: &mut Qp) {
        let responder = &mut qp.transport.responder;
        if let Some(Current::Send { receive, .. }) = responder.current.take() {
            responder.spare = Some(receive);
        }
    }

    fn drop_message(&mut self, qp: &mut Qp, psn: Psn, refusal: Refusal) {
        match refusal {
            Refusal::NotReady => {
                self.counters().messages_dropped += 1;
                self.delivery().count(qp, q::out_of_buffer);
                self.reports().note(qp, Event::Dropped { reason: DropReason::NoReceive, psn });
            }
            // The receive WQE is at fault and has completed with an error.
            Refusal::Nak(AethSyndrome::RemoteOperational, event, reason) => {
                if let Some(reason) = reason {
                    let (field, text) = self.reports().explain(qp, *reason);
                    qp.transport.recorder.blame(None, format!("receive WQE for PSN {}: {text}", psn.get()));
                    self.reports().refuse(Subject::Qp { qpn: qp.qpn() }, field, text);
                }
                if let Some(event) = event {
                    self.delivery().qp_event(qp, event);
                }
                self.enter_error(qp);
            }
            Refusal::Nak(syndrome, _, reason) => {
                self.counters().messages_dropped += 1;
                if let Some(reason) = reason {
                    let (field, text) = self.reports().explain(qp, *reason);
                    self.reports().note(qp, Event::Dropped { reason: DropReason::Refused, psn });
                    let text = format!("dropped: {}: {text}", recorder::Nak(syndrome.bits()));
                    self.reports().inform(Subject::Qp { qpn: qp.qpn() }, field, text);
                }
            }
        }
    }
}

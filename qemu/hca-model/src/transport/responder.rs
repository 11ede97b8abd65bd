//! The responder half of a reliable connection: the order of requests, refusals, repetitions (IBTA 9.7.4, 9.7.5.1).

use mlx5_prm::commands::query_q_counter_out as q;
use mlx5_prm::event::EventType;
use mlx5_prm::value::{QpState, ServiceType};
use rdma_fabric::infiniband::packet::{AethSyndrome, Operation, Reth, XrcEth};

use super::data_path::DataPath;
use super::failure::Reason;
use super::inbound::Inbound;
use super::memory::Fault;
use super::state::{ACK_LIMIT, Answer, Job, Nak, REPEATED_JOBS, Responder, Target};
use crate::log::Subject;
use crate::object::mkey::User;
use crate::object::qp::Qp;
use crate::object::srq::SrqKind;
use crate::recorder::{self, DropReason, Event};
use ib_types::Psn;

/// Why a request is not carried out.
pub(super) enum Refusal {
    /// No receive WQE: the requester shall come again.
    NotReady,
    /// Answered by a NAK; the QP then goes to error. An event tells the owner.
    Nak(AethSyndrome, Option<EventType>, Option<Box<Reason>>),
}

pub(super) fn invalid(text: impl Into<String>) -> Refusal {
    let reason = Box::new(Reason::Text("", text.into()));
    Refusal::Nak(AethSyndrome::InvalidRequest, Some(EventType::WQ_INVAL_REQ_ERROR), Some(reason))
}

pub(super) fn access(fault: Fault) -> Refusal {
    match fault {
        // The key allows it, memory does not answer: not the requester's mistake.
        Fault::Dma(_) => operational(fault),
        _ => Refusal::Nak(
            AethSyndrome::RemoteAccess,
            Some(EventType::WQ_ACCESS_ERROR),
            Some(Box::new(Reason::Fault(fault, "rkey"))),
        ),
    }
}

pub(super) fn operational(fault: Fault) -> Refusal {
    Refusal::Nak(AethSyndrome::RemoteOperational, None, Some(Box::new(Reason::Fault(fault, "lkey"))))
}

impl Responder {
    /// The next request begins `psns` later.
    pub(super) fn advance(&mut self, psns: u32) {
        self.expected = self.expected.add(psns);
    }

    /// A message ends with `psns` packets.
    pub(super) fn finish_message(&mut self, psns: u32) {
        self.advance(psns);
        self.msn = (self.msn + 1) & 0x00ff_ffff;
    }

    /// The request at `psn`, just carried out, is acknowledged after the answers before it.
    fn owe_ack(&mut self, psn: Psn) {
        if self.jobs.len() < ACK_LIMIT {
            let (end, msn) = (psn.next(), self.msn);
            let kind = Answer::Acknowledge;
            self.jobs.push_back(Job { psn, end, msn, new: false, started: false, kind });
        } else {
            self.ack_due = true;
        }
    }

    /// Repeated requests that wait to be answered.
    fn repeated(&self) -> usize {
        self.jobs.iter().filter(|job| !job.new && !matches!(job.kind, Answer::Acknowledge)).count()
    }
}

impl DataPath<'_, '_> {
    /// A request packet for an RC QP.
    pub(super) fn request(&mut self, qp: &mut Qp, operation: Operation, packet: &Inbound<'_>) {
        if !matches!(qp.state(), QpState::RTR | QpState::RTS | QpState::SQD | QpState::SQ_DRAINING)
            || qp.transport.responder.halted
        {
            self.counters().no_qp += 1;
            let psn = Psn::new(packet.bth.psn);
            return self.reports().note(qp, Event::Dropped { reason: DropReason::State, psn });
        }
        if !qp.transport.responder.established && qp.state() == QpState::RTR {
            qp.transport.responder.established = true;
            self.delivery().qp_event(qp, EventType::COMM_EST);
        }
        let psn = Psn::new(packet.bth.psn);
        let expected = qp.transport.responder.expected;
        let target = self.find_target(qp, packet);
        if let Ok(target) = &target {
            qp.transport.responder.target = *target;
        }
        if psn == expected {
            qp.transport.responder.nak_sent = false;
            match target.and_then(|_| self.execute(qp, operation, packet)) {
                // What is answered with data needs no acknowledgement beside it.
                Ok(()) if packet.bth.ack_req && !has_answer(operation) => qp.transport.responder.owe_ack(psn),
                Ok(()) => {}
                Err(refusal) => self.refuse(qp, operation, content(qp, packet), refusal),
            }
        } else if psn.is_before(expected) {
            self.counters().duplicates += 1;
            self.delivery().count(qp, q::duplicate_request);
            self.reports().note(qp, Event::Dropped { reason: DropReason::Repeated, psn });
            self.repeat(qp, operation, psn, content(qp, packet));
        } else {
            self.counters().out_of_sequence += 1;
            self.delivery().count(qp, q::out_of_sequence);
            self.reports().note(qp, Event::Dropped { reason: DropReason::OutOfSequence, psn });
            let responder = &mut qp.transport.responder;
            if !responder.nak_sent {
                responder.nak_sent = true;
                responder.nak =
                    Some(Nak { psn: None, syndrome: AethSyndrome::PsnSequenceError.bits(), fatal: false });
            }
        }
        self.turns().add(qp);
    }

    /// XRC: the shared receive queue that a request names. It must belong to the QP's domain (IBTA A14.3).
    fn find_target(&mut self, qp: &Qp, packet: &Inbound<'_>) -> Result<Option<Target>, Refusal> {
        if qp.service() != ServiceType::XRC {
            return Ok(None);
        }
        let header = XrcEth::parse(packet.content).map_err(|_| invalid("a packet without XRCETH"))?;
        match self.srqs().get(header.srqn) {
            Some(srq) if srq.kind == SrqKind::Xrc && qp.uses_xrcd(srq.xrcd) => {
                Ok(Some(Target { srqn: srq.srqn, user: srq.user(qp.user()) }))
            }
            _ => Err(invalid(format!("no XRC SRQ {:#x} in domain {:#x}", header.srqn, qp.xrcd()))),
        }
    }

    fn refuse(&mut self, qp: &mut Qp, operation: Operation, content: &[u8], refusal: Refusal) {
        let timer = qp.connection().rnr_timer();
        let responder = &mut qp.transport.responder;
        match refusal {
            Refusal::NotReady => {
                responder.nak_sent = true;
                let syndrome = AethSyndrome::RnrNak { timer }.bits();
                responder.nak = Some(Nak { psn: None, syndrome, fatal: false });
                self.delivery().count(qp, q::out_of_buffer);
            }
            Refusal::Nak(syndrome, event, reason) => {
                responder.halted = true;
                responder.nak = Some(Nak { psn: None, syndrome: syndrome.bits(), fatal: true });
                let text = reason.map(|reason| {
                    let (field, text) = self.reports().explain(qp, *reason);
                    self.reports().refuse(
                        Subject::Qp { qpn: qp.qpn() },
                        field,
                        format!("{}: {text}", recorder::Nak(syndrome.bits())),
                    );
                    text
                });
                self.reports().note_refusal(qp, operation, content, syndrome, text);
                match syndrome {
                    AethSyndrome::RemoteAccess => self.delivery().count(qp, q::resp_remote_access_errors),
                    AethSyndrome::InvalidRequest => self.delivery().count(qp, q::resp_remote_invalid_request),
                    // An operational error has no counter.
                    _ => {}
                }
                if let Some(event) = event {
                    self.delivery().qp_event(qp, event);
                }
            }
        }
    }

    /// A request that was executed before: SEND and WRITE are acknowledged again, READ is executed again, the result of an
    /// atomic is remembered (IBTA 9.7.5.1.3).
    fn repeat(&mut self, qp: &mut Qp, operation: Operation, psn: Psn, content: &[u8]) {
        let mtu = qp.connection().mtu();
        let user = actor(qp);
        let responder = &mut qp.transport.responder;
        match operation {
            Operation::ReadRequest => {
                let Ok(reth) = Reth::parse(content) else { return };
                let left = u64::from(reth.dma_len);
                let end = psn.add(reth.dma_len.div_ceil(mtu).max(1));
                if responder.expected.is_before(end) {
                    // Beyond what was ever asked for: no repetition of anything.
                    return;
                }
                let answer = Answer::Read { va: reth.va, rkey: reth.rkey, left, user };
                let covers = |job: &&mut Job| {
                    let read = matches!(job.kind, Answer::Read { .. });
                    read && !psn.is_before(job.psn) && psn.is_before(job.end)
                };
                if let Some(job) = responder.jobs.iter_mut().find(covers) {
                    // Not begun: it will be answered anyway. Begun: the requester has what lies before `psn`.
                    if job.started || job.psn != psn {
                        *job = Job { psn, started: false, kind: answer, ..job.clone() };
                    }
                } else if responder.repeated() < REPEATED_JOBS {
                    let msn = responder.msn;
                    responder.jobs.push_back(Job { psn, end, msn, new: false, started: false, kind: answer });
                }
            }
            Operation::CompareSwap | Operation::FetchAdd => {
                let known = responder.results.iter().find(|(known, _)| *known == psn);
                // One that is still waiting to be answered needs no second answer.
                let waiting = responder.jobs.iter().any(|job| job.psn == psn);
                if let Some((_, original)) = known
                    && !waiting
                    && responder.repeated() < REPEATED_JOBS
                {
                    let kind = Answer::Atomic { original: *original };
                    let msn = responder.msn;
                    responder.jobs.push_back(Job {
                        psn,
                        end: psn.next(),
                        msn,
                        new: false,
                        started: false,
                        kind,
                    });
                }
            }
            _ => responder.ack_due = true,
        }
    }
}

/// What follows a request's BTH, and its XRCETH.
pub(super) fn content<'a>(qp: &Qp, packet: &Inbound<'a>) -> &'a [u8] {
    let content = packet.content;
    if qp.service() == ServiceType::XRC { content.get(XrcEth::LEN..).unwrap_or_default() } else { content }
}

/// On whose behalf a request is carried out: the QP's, or with XRC the shared receive queue's.
pub(super) fn actor(qp: &Qp) -> User {
    qp.transport.responder.target.map_or_else(|| qp.user(), |target| target.user)
}

/// A request that data comes back for.
fn has_answer(operation: Operation) -> bool {
    matches!(operation, Operation::ReadRequest | Operation::CompareSwap | Operation::FetchAdd)
}

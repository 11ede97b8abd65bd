//! Records of a QP's events, and the reasons for its failure in words.

use super::memory::Fault;
use super::send_queue::QueueFault;
use super::state::{Failure, QpTransport, Wqe};
use crate::device::Device;
use crate::log::{Level, Log, Subject};
use crate::object::qp::{Qp, Route};
use crate::port::Port;
use crate::recorder::{self, Event, Failures, Nak, PeerAddress, Progress, QpRecord, ResendCause};
use ib_types::{Gid, Psn};
use mlx5_prm::status::CqeSyndrome;
use mlx5_prm::value::{QpState, ServiceType};
use rdma_fabric::infiniband::packet::{AethSyndrome, Operation, Reth};

impl QpTransport {
    fn recorded(&self, state: QpState) -> Progress {
        Progress {
            retired: self.queue.retired,
            taken: self.receive.taken,
            ssn: self.requester.ssn,
            msn: self.responder.msn,
            unacked: self.requester.unacked,
            expected: self.responder.expected,
            flushes: matches!(state, QpState::ERR | QpState::SQER),
        }
    }
}

impl Device {
    /// Returns the record of a QP, or `None` if it does not exist.
    pub(crate) fn qp_record(&self, qpn: u32) -> Option<QpRecord> {
        let qp = self.objects.qps.get(qpn)?;
        let progress = qp.transport.recorded(qp.state());
        let entries = qp.transport.recorder.entries(self.log.now(), &progress);
        Some(QpRecord { entries, ..self.summary_of(qp) })
    }

    /// Returns the records of all QPs, without their events.
    pub(crate) fn qp_records(&self) -> impl Iterator<Item = QpRecord> {
        self.objects.qps.iter().map(|(_, qp)| self.summary_of(qp))
    }

    fn summary_of(&self, qp: &Qp) -> QpRecord {
        QpRecord {
            qpn: qp.qpn(),
            service: qp.service(),
            state: qp.state(),
            peer: is_connected(qp)
                .then_some((peer_address(&self.port, qp.path().route()), qp.connection().remote_qpn())),
            failure: qp.transport.recorder.failure().map(str::to_owned),
            entries: Vec::new(),
        }
    }
}

fn is_connected(qp: &Qp) -> bool {
    matches!(qp.service(), ServiceType::RC | ServiceType::UC | ServiceType::XRC)
}

fn peer_address(port: &Port, route: &Route) -> PeerAddress {
    if port.ethernet.is_some() { PeerAddress::Gid(Gid(route.grh.dgid)) } else { PeerAddress::Lid(route.dlid) }
}

/// Returns the peer of a connection, in words.
fn peer(port: &Port, qp: &Qp) -> String {
    format!("QP {:#x} at {}", qp.connection().remote_qpn(), peer_address(port, qp.path().route()))
}

/// Records a rare event of a QP at `now`, in nanoseconds.
#[cold]
#[inline(never)]
pub(super) fn record(qp: &mut Qp, now: u64, event: Event) {
    let progress = qp.transport.recorded(qp.state());
    qp.transport.recorder.record(now, progress, event);
}

/// What is wrong with a request.
pub(super) enum Reason {
    /// Memory refuses it; the kind of key, `lkey` or `rkey`.
    Fault(Fault, &'static str),
    /// The field at fault, if there is one, and what is wrong.
    Text(&'static str, String),
}

impl Reason {
    /// Returns the field at fault and what is wrong, for the log.
    pub(super) fn describe(self) -> (&'static str, String) {
        match self {
            Self::Fault(fault, kind) => fault.describe(kind),
            Self::Text(field, text) => (field, text),
        }
    }
}

/// The log and the QPs' records, as the data path writes to them.
pub(super) struct Reports<'a> {
    port: &'a Port,
    log: &'a mut Log,
    failures: &'a mut Failures,
    now: u64,
}

impl<'a> Reports<'a> {
    /// Makes the view. `now` is in nanoseconds.
    #[inline(always)]
    pub(super) fn new(port: &'a Port, log: &'a mut Log, failures: &'a mut Failures, now: u64) -> Self {
        Self { port, log, failures, now }
    }
}

impl Reports<'_> {
    /// Records a rare event.
    pub(super) fn note(&self, qp: &mut Qp, event: Event) {
        record(qp, self.now, event);
    }

    /// Records that requests from `psn` on are about to be sent again.
    #[cold]
    pub(super) fn note_resent(&self, qp: &mut Qp, cause: ResendCause, psn: Psn) {
        let left = qp.transport.requester.retries_left;
        self.note(qp, Event::Resent { cause, psn, left });
    }

    /// Records a NAK with `left` retries of its kind.
    #[cold]
    pub(super) fn note_nak(&self, qp: &mut Qp, psn: Psn, syndrome: AethSyndrome, left: u8) {
        self.note(qp, Event::NakReceived { psn, syndrome: syndrome.bits(), left });
    }

    /// Logs why the queues of `qp` cannot be worked on, or its send WQE at `wqe` fails, and records it.
    #[cold]
    pub(super) fn refuse_work(&mut self, qp: &mut Qp, wqe: Option<u16>, field: &'static str, text: String) {
        let subject = Subject::WorkQueue { qpn: qp.qpn() };
        match wqe {
            Some(index) => self.log.refuse(subject, field, format!("WQE {index:#x}: {text}")),
            None => self.log.refuse(subject, field, text.clone()),
        }
        qp.transport.recorder.blame(wqe, format!("{field}: {text}"));
    }

    /// Logs why the queues of `qp` cannot be worked on, and records it.
    #[cold]
    pub(super) fn refuse_queue(&mut self, qp: &mut Qp, QueueFault(field, text): QueueFault) {
        self.refuse_work(qp, None, field, text);
    }

    /// Logs what a peer or software did wrong.
    #[cold]
    pub(super) fn refuse(&mut self, subject: Subject, field: &'static str, text: String) {
        self.log.refuse(subject, field, text);
    }

    /// Logs why a message of an unreliable connection is dropped.
    #[cold]
    pub(super) fn inform(&mut self, subject: Subject, field: &'static str, text: String) {
        self.log.add(Level::Info, subject, field, text);
    }

    /// Logs that local memory refuses the data of the send WQE at `index`, and records it.
    #[cold]
    pub(super) fn refuse_data(&mut self, qp: &mut Qp, index: u16, fault: Fault) {
        let (field, text) = self.explain(qp, Reason::Fault(fault, "lkey"));
        self.log.refuse(Subject::WorkQueue { qpn: qp.qpn() }, field, format!("WQE {index:#x}: {text}"));
        qp.transport.recorder.blame(Some(index), text);
    }

    /// Records why a request is refused. Returns the field at fault and what is wrong, for the log.
    #[cold]
    pub(super) fn explain(&self, qp: &mut Qp, reason: Reason) -> (&'static str, String) {
        match reason {
            Reason::Fault(Fault::Key(key, error), _) => self.note(qp, Event::KeyRefused { key, error }),
            Reason::Fault(Fault::Dma(_), _) => self.note(qp, Event::MemoryFault),
            Reason::Fault(..) | Reason::Text(..) => {}
        }
        reason.describe()
    }

    /// Records that the expected request is refused by a NAK after which the QP fails. `content` follows its BTH.
    #[cold]
    pub(super) fn note_refusal(
        &self,
        qp: &mut Qp,
        operation: Operation,
        content: &[u8],
        syndrome: AethSyndrome,
        text: Option<String>,
    ) {
        let (what, len) = match operation {
            Operation::ReadRequest => ("RDMA read", reth_len(content)),
            Operation::CompareSwap => ("compare and swap", 8),
            Operation::FetchAdd => ("fetch and add", 8),
            op if op.has_reth() => ("RDMA write", reth_len(content)),
            op if op.is_write() => ("part of an RDMA write", content.len() as u32),
            _ => ("send", content.len() as u32),
        };
        let clue = || qp.transport.recorder.take_clue(None).map(String::from);
        let text = text.or_else(clue).unwrap_or_else(|| "the receive queue failed before".to_owned());
        let (psn, from, nak) =
            (qp.transport.responder.expected.get(), peer(self.port, qp), Nak(syndrome.bits()));
        qp.transport
            .recorder
            .blame(None, format!("{what} of {len} bytes at PSN {psn} from {from}: {nak}: {text}"));
    }

    /// The QP fails: it is now in `state`, ERR or SQER. Logs and records the reason.
    #[cold]
    pub(super) fn fail(&mut self, qp: &mut Qp, state: QpState) {
        let from = qp.enter(state);
        qp.transport.failed = true;
        self.note(qp, Event::State { from, to: state, by_device: true });
        let recorder = &mut qp.transport.recorder;
        let reason = recorder.take_clue(None).map_or_else(|| "unknown reason".to_owned(), String::from);
        let reason = recorder.set_failure(reason);
        self.log.warn(Subject::FailedQp { qpn: qp.qpn() }, "", reason.clone());
        self.failures.push(recorder::Failure { at: self.now, qpn: qp.qpn(), reason });
    }

    /// Records the failure of the oldest send WQE, which is no longer in the queue.
    #[cold]
    pub(super) fn note_failed(&self, qp: &mut Qp, wqe: &Wqe, failure: Failure) {
        let (index, opcode) = (wqe.index, wqe.opcode);
        let what = opcode.meaning().unwrap_or("request");
        let psn = qp.transport.requester.unacked;
        let place = if wqe.psns == 0 {
            format!("{what}, WQE {index:#x}")
        } else {
            format!("{what} of {} bytes at PSN {}, WQE {index:#x}", wqe.len, psn.get())
        };
        let last = qp.transport.recorder.last();
        let clue = qp.transport.recorder.take_clue(Some(index)).map(String::from);
        let clue = clue.unwrap_or_else(|| reason(&peer(self.port, qp), qp, wqe, failure.syndrome, last));
        let syndrome = failure.syndrome.meaning().unwrap_or("unknown error");
        qp.transport.recorder.blame(None, format!("{place}: {syndrome}: {clue}"));
        let Failure { syndrome, vendor } = failure;
        self.note(qp, Event::Failed { opcode, index, psn, syndrome, vendor });
    }
}

fn reth_len(content: &[u8]) -> u32 {
    Reth::parse(content).map_or(0, |reth| reth.dma_len)
}

/// Returns why a send WQE failed because of the peer.
fn reason(peer: &str, qp: &Qp, wqe: &Wqe, syndrome: CqeSyndrome, last: Option<Event>) -> String {
    match (syndrome, last) {
        (CqeSyndrome::TRANSPORT_RETRY_EXC_ERR, Some(Event::Resent { cause: ResendCause::Timeout, .. })) => {
            let wait = qp.transport.requester.ack_time as f64 / 1e6;
            format!(
                "no response from {peer}, sent {} times, {wait} ms apart",
                u32::from(qp.connection().retry_count()) + 1
            )
        }
        (CqeSyndrome::TRANSPORT_RETRY_EXC_ERR, _) => {
            format!("{peer} reports lost packets after {} retries", qp.connection().retry_count())
        }
        (CqeSyndrome::RNR_RETRY_EXC_ERR, _) => {
            format!("{peer} has no receive WQE after {} retries", qp.connection().rnr_retry())
        }
        (CqeSyndrome::REMOTE_ACCESS_ERR, _) => {
            format!("{peer} refused rkey {:#x} at address {:#x}", wqe.rkey, wqe.raddr)
        }
        (CqeSyndrome::REMOTE_INVAL_REQ_ERR, _) => format!("{peer} refused the request"),
        (CqeSyndrome::REMOTE_OP_ERR, _) => format!("{peer} cannot access its own memory"),
        (CqeSyndrome::BAD_RESP_ERR, _) => format!("{peer} sent a response that is not allowed"),
        _ => "no further reason".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Card, Profile};

    #[test]
    fn peer_is_named_by_the_address_of_its_network() {
        let mut route = Route { dlid: 9, ..Route::default() };
        route.grh.dgid[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 2]);
        for (card, name) in [("cx-6", "LID 9"), ("cx-6-dx", "GID ::ffff:10.0.0.2")] {
            let card = Card::named(card).expect("a card");
            let port = Port::new(&Profile { card, ..Profile::node(0) });
            assert_eq!(peer_address(&port, &route).to_string(), name);
        }
    }

    #[test]
    fn no_hca_has_lid_0() {
        let hca = crate::Hca::new(Profile::node(0));
        assert_eq!(hca.port().lid, 0);
        assert!(!hca.has_address(PeerAddress::Lid(0)));
    }
}

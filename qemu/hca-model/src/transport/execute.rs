//! What requests of a reliable connection do: SEND, WRITE, READ, atomics, invalidation (IBTA 9.7.4, 9.7.5.2, 9.9.3).

use super::completion::vendor;
use super::data_path::DataPath;
use super::delivery::Received;
use super::failure::Reason;
use super::inbound::Inbound;
use super::memory::Fault;
use super::receive::NoReceive;
use super::responder::{Refusal, access, actor, content, invalid, operational};
use super::state::{Answer, Current, Failure, Job, ReceiveWqe};
use crate::object::qp::Qp;
use crate::run::{Data, Run};
use mlx5_prm::commands::query_q_counter_out as q;
use mlx5_prm::datapath::CqeOpcode;
use mlx5_prm::event::EventType;
use mlx5_prm::status::CqeSyndrome;
use mlx5_prm::value::{AccessFlags, ServiceType};
use rdma_fabric::infiniband::packet::{AethSyndrome, AtomicEth, Bth, Ieth, ImmDt, Operation, Reth};

/// Bytes that a CQE carries at most.
const CARRIED: usize = 64;

const LOCAL_PROTECTION: Failure =
    Failure { syndrome: CqeSyndrome::LOCAL_PROT_ERR, vendor: vendor::LOCAL_PROTECTION };

/// Why SENDs and WRITEs are not carried out, and the receive WQE that was taken: to be completed with the failure, or kept for the next
/// message.
pub(super) struct Refused {
    pub(super) refusal: Refusal,
    pub(super) receive: Option<ReceiveWqe>,
    pub(super) failure: Option<Failure>,
}

impl Refused {
    #[cold]
    fn new(refusal: Refusal, receive: Option<ReceiveWqe>, failure: Option<Failure>) -> Box<Self> {
        Box::new(Self { refusal, receive, failure })
    }
}

impl From<Refusal> for Box<Refused> {
    fn from(refusal: Refusal) -> Self {
        Refused::new(refusal, None, None)
    }
}

impl DataPath<'_, '_> {
    /// Carries out the expected request.
    pub(super) fn execute(
        &mut self,
        qp: &mut Qp,
        operation: Operation,
        packet: &Inbound<'_>,
    ) -> Result<(), Refusal> {
        let content = content(qp, packet);
        let within = match (&qp.transport.responder.current, operation) {
            (None, op) => op.is_first() || is_only(op),
            (Some(Current::Send { .. }), op) => op.is_send() && !op.starts_send(),
            (Some(Current::Write { .. }), op) => op.is_write() && !op.has_reth(),
        };
        if !within {
            return Err(invalid(format!("{operation:?} in the wrong order")));
        }
        match operation {
            Operation::ReadRequest => self.take_read(qp, content),
            Operation::CompareSwap | Operation::FetchAdd => self.take_atomic(qp, operation, content),
            op => {
                let run = run_of(op, &packet.bth, content)?;
                check_len(qp, &run)?;
                self.take_run(qp, &run, packet.origin.slid, packet.origin.sl).map_err(|refused| {
                    let Refused { refusal, receive, failure } = *refused;
                    match (receive, failure) {
                        (Some(receive), Some(failure)) => {
                            self.delivery().complete_receive_error(qp, &receive, failure)
                        }
                        (Some(receive), None) => qp.transport.responder.spare = Some(receive),
                        (None, _) => {}
                    }
                    refusal
                })
            }
        }
    }

    /// Carries out SENDs and WRITEs. A refusal says what has to become of the receive WQE; nothing else has happened then but to memory.
    pub(super) fn take_run(
        &mut self,
        qp: &mut Qp,
        run: &Run<'_>,
        slid: u16,
        sl: u8,
    ) -> Result<(), Box<Refused>> {
        if run.write { self.take_write(qp, run, slid, sl) } else { self.take_send(qp, run, slid, sl) }
    }

    fn take_send(&mut self, qp: &mut Qp, run: &Run<'_>, slid: u16, sl: u8) -> Result<(), Box<Refused>> {
        let (receive, received) = match qp.transport.responder.current.take() {
            Some(Current::Send { receive, received }) => (receive, received),
            _ => (self.receive_wqe(qp)?, 0),
        };
        let data = &run.data;
        let total = received + data.len() as u64;
        if total > receive.capacity {
            let text = format!("{total} bytes for a receive WQE of {} bytes", receive.capacity);
            if qp.service() == ServiceType::UC {
                return Err(Refused::new(invalid(text), Some(receive), None));
            }
            let failure = Failure { syndrome: CqeSyndrome::LOCAL_LENGTH_ERR, vendor: vendor::LOCAL_LENGTH };
            let reason = Some(Box::new(Reason::Text("wqe_data_seg.byte_count", text)));
            let refusal = Refusal::Nak(AethSyndrome::InvalidRequest, None, reason);
            return Err(Refused::new(refusal, Some(receive), Some(failure)));
        }
        // Little data of one packet may come in the completion itself; software puts it in place then.
        let inline = run.first
            && run.last
            && (1..=qp.completions().inline_receive()).contains(&data.len())
            && self.delivery().inline_fits(qp, &receive, qp.completions().inline_receive());
        let mut carried = [0; CARRIED];
        let carried = carried.get_mut(..if inline { data.len() } else { 0 }).unwrap_or_default();
        let placed = if inline {
            data.read(carried).map_err(Fault::Dma)
        } else {
            self.memory().scatter(receive.user(qp.qpn()), receive.sges.as_slice(), received, data)
        };
        if let Err(fault) = placed {
            let refusal = operational(fault);
            return Err(Refused::new(refusal, Some(receive), Some(LOCAL_PROTECTION)));
        }
        if !run.last {
            qp.transport.responder.current = Some(Current::Send { receive, received: total });
            qp.transport.responder.advance(run.psns);
            return Ok(());
        }
        let (opcode, immediate) = match (run.immediate, run.invalidate) {
            (Some(immediate), _) => (CqeOpcode::RESP_SEND_IMM, immediate),
            (_, Some(rkey)) => {
                if let Err(refusal) = self.memory().invalidate(actor(qp), rkey).map_err(access) {
                    let failure =
                        Failure { syndrome: CqeSyndrome::LOCAL_QP_OP_ERR, vendor: vendor::REMOTE_ACCESS };
                    return Err(Refused::new(refusal, Some(receive), Some(failure)));
                }
                (CqeOpcode::RESP_SEND_INV, rkey)
            }
            _ => (CqeOpcode::RESP_SEND, 0),
        };
        let received = Received {
            byte_count: total as u32,
            immediate,
            solicited: run.solicited,
            ..describe(qp, opcode, slid, sl)
        };
        qp.transport.responder.finish_message(run.psns);
        self.delivery().complete_receive(qp, &receive, &received, carried);
        Ok(())
    }

    fn take_write(&mut self, qp: &mut Qp, run: &Run<'_>, slid: u16, sl: u8) -> Result<(), Box<Refused>> {
        let (va, rkey, left, total) = match (run.reth, &qp.transport.responder.current) {
            (Some(reth), _) => {
                let len = u64::from(reth.dma_len);
                qp.remote_access().check_write().map_err(|forbidden| access(forbidden.into()))?;
                if len > qp.connection().longest_message() {
                    return Err(invalid(format!("a WRITE of {len} bytes")).into());
                }
                // A WRITE of nothing does not look at its key (IBTA 9.7.4.1.4). The copy of a whole
                // message checks it, but one with immediate data must not consume a receive before.
                let later = run.last && run.immediate.is_none();
                if len != 0 && !later {
                    let user = actor(qp);
                    self.memory()
                        .check_key(user, reth.rkey, reth.va, len, AccessFlags::REMOTE_WRITE)
                        .map_err(|error| access(Fault::Key(reth.rkey, error)))?;
                }
                (reth.va, reth.rkey, len, len)
            }
            (None, Some(Current::Write { va, rkey, left, total })) => (*va, *rkey, *left, *total),
            _ => return Err(invalid("a WRITE that never began").into()),
        };
        let len = run.data.len() as u64;
        if if run.last { len != left } else { len >= left } {
            return Err(invalid(format!("{len} bytes of a WRITE where {left} are left")).into());
        }
        // The receive comes first: without one nothing of the packet may happen.
        let receive = if run.immediate.is_some() { Some(self.receive_wqe(qp)?) } else { None };
        if len != 0
            && let Err(fault) =
                self.memory().write_key(actor(qp), rkey, va, AccessFlags::REMOTE_WRITE, &run.data)
        {
            let failure =
                Failure { syndrome: CqeSyndrome::LOCAL_ACCESS_ERR, vendor: vendor::LOCAL_PROTECTION };
            return Err(Refused::new(access(fault), receive, Some(failure)));
        }
        if run.first {
            self.delivery().count(qp, q::rx_write_requests);
        }
        if !run.last {
            let va = va.wrapping_add(len);
            qp.transport.responder.current = Some(Current::Write { va, rkey, left: left - len, total });
            qp.transport.responder.advance(run.psns);
            return Ok(());
        }
        qp.transport.responder.current = None;
        qp.transport.responder.finish_message(run.psns);
        if let Some(receive) = receive {
            let received = Received {
                byte_count: total as u32,
                immediate: run.immediate.unwrap_or(0),
                solicited: run.solicited,
                ..describe(qp, CqeOpcode::RESP_WR_IMM, slid, sl)
            };
            self.delivery().complete_receive(qp, &receive, &received, &[]);
        }
        Ok(())
    }

    fn take_read(&mut self, qp: &mut Qp, content: &[u8]) -> Result<(), Refusal> {
        let reth = Reth::parse(content).map_err(|_| invalid("a READ without RETH"))?;
        if content.len() != Reth::LEN {
            return Err(invalid("a READ with payload"));
        }
        self.check_read(qp, &reth)?;
        let psn = qp.transport.responder.expected;
        let psns = reth.dma_len.div_ceil(qp.connection().mtu()).max(1);
        let left = u64::from(reth.dma_len);
        let kind = Answer::Read { va: reth.va, rkey: reth.rkey, left, user: actor(qp) };
        self.begin_read(qp, psns);
        let responder = &mut qp.transport.responder;
        let (msn, end) = (responder.msn, psn.add(psns));
        responder.jobs.push_back(Job { psn, end, msn, new: true, started: false, kind });
        Ok(())
    }

    /// A READ that was checked: the next request begins after its answer.
    pub(super) fn begin_read(&mut self, qp: &mut Qp, psns: u32) {
        self.delivery().count(qp, q::rx_read_requests);
        qp.transport.responder.finish_message(psns);
    }

    /// Whether a READ may be answered.
    pub(super) fn check_read(&mut self, qp: &mut Qp, reth: &Reth) -> Result<(), Refusal> {
        qp.remote_access().check_read().map_err(|forbidden| access(forbidden.into()))?;
        let len = u64::from(reth.dma_len);
        if len > qp.connection().longest_message() {
            return Err(invalid(format!("a READ of {len} bytes")));
        }
        if len != 0 {
            let user = actor(qp);
            self.memory()
                .check_key(user, reth.rkey, reth.va, len, AccessFlags::REMOTE_READ)
                .map_err(|error| access(Fault::Key(reth.rkey, error)))?;
        }
        check_resources(qp)
    }

    fn take_atomic(&mut self, qp: &mut Qp, operation: Operation, content: &[u8]) -> Result<(), Refusal> {
        let atomic = AtomicEth::parse(content).map_err(|_| invalid("an atomic without its header"))?;
        if content.len() != AtomicEth::LEN {
            return Err(invalid("an atomic with payload"));
        }
        if !atomic.va.is_multiple_of(8) {
            return Err(invalid(format!("an atomic at {:#x}", atomic.va)));
        }
        let allowed = qp.remote_access().check_atomic(self.habits().atomic_mode);
        allowed.map_err(|forbidden| access(forbidden.into()))?;
        check_resources(qp)?;
        let user = actor(qp);
        let order = self.atomic_order();
        let change = |old| {
            let original = order.number(old);
            let new = match operation {
                Operation::CompareSwap if original == atomic.compare => atomic.swap_or_add,
                Operation::CompareSwap => return None,
                _ => original.wrapping_add(atomic.swap_or_add),
            };
            Some(order.bytes(new))
        };
        let original =
            order.number(self.memory().update_key(user, atomic.rkey, atomic.va, change).map_err(access)?);
        self.delivery().count(qp, q::rx_atomic_requests);
        let kept = qp.connection().reads_taken();
        let responder = &mut qp.transport.responder;
        let psn = responder.expected;
        responder.finish_message(1);
        responder.results.push_back((psn, original));
        while responder.results.len() > kept {
            responder.results.pop_front();
        }
        let kind = Answer::Atomic { original };
        let msn = responder.msn;
        responder.jobs.push_back(Job { psn, end: psn.next(), msn, new: true, started: false, kind });
        Ok(())
    }

    fn receive_wqe(&mut self, qp: &mut Qp) -> Result<ReceiveWqe, Refusal> {
        if let Some(spare) = qp.transport.responder.spare.take() {
            return Ok(spare);
        }
        match self.take_receive(qp, 0) {
            Ok(wqe) => Ok(wqe),
            Err(NoReceive::Empty) => Err(Refusal::NotReady),
            Err(NoReceive::Broken) => {
                Err(Refusal::Nak(AethSyndrome::RemoteOperational, Some(EventType::WQ_CATAS_ERROR), None))
            }
        }
    }
}

/// Checks that one more READ or atomic may be outstanding.
fn check_resources(qp: &Qp) -> Result<(), Refusal> {
    let limit = qp.connection().reads_taken();
    let busy = qp.transport.responder.jobs.iter().filter(|job| job.new).count();
    if busy < limit {
        Ok(())
    } else {
        Err(invalid(format!("more than {limit} READs and atomics at once (qpc.log_rra_max)")))
    }
}

/// A request of one packet: an "only", a READ request, an atomic.
pub(super) fn is_only(operation: Operation) -> bool {
    operation.ends_message()
        && matches!(
            operation,
            Operation::SendOnly
                | Operation::SendOnlyImm
                | Operation::SendOnlyInvalidate
                | Operation::WriteOnly
                | Operation::WriteOnlyImm
                | Operation::ReadRequest
                | Operation::CompareSwap
                | Operation::FetchAdd
        )
}

/// Immediate data or the rkey to invalidate, as the number on the wire, and what follows.
fn immediate(operation: Operation, content: &[u8]) -> Result<(u32, &[u8]), Refusal> {
    let missing = |_| invalid("a packet without its immediate data");
    if operation.has_imm() {
        let value = ImmDt::parse(content).map_err(missing)?;
        Ok((u32::from_be_bytes(value.to_bytes()), content.get(ImmDt::LEN..).unwrap_or_default()))
    } else if operation.has_ieth() {
        let value = Ieth::parse(content).map_err(missing)?;
        Ok((value.rkey, content.get(Ieth::LEN..).unwrap_or_default()))
    } else {
        Ok((0, content))
    }
}

/// What a completion says of a message from the peer, but for its length and immediate.
fn describe(qp: &Qp, opcode: CqeOpcode, slid: u16, sl: u8) -> Received {
    Received {
        opcode,
        byte_count: 0,
        immediate: 0,
        solicited: false,
        slid,
        sl,
        path_bits: 0,
        grh: 0,
        source_qpn: qp.connection().remote_qpn(),
        vlan: None,
    }
}

/// A packet as a run of one.
fn run_of<'a>(operation: Operation, bth: &Bth, content: &'a [u8]) -> Result<Run<'a>, Refusal> {
    let mut data = content;
    let reth = if operation.has_reth() {
        data = content.get(Reth::LEN..).unwrap_or_default();
        Some(Reth::parse(content).map_err(|_| invalid("a WRITE without RETH"))?)
    } else {
        None
    };
    let (number, data) = immediate(operation, data)?;
    Ok(Run {
        known: true,
        write: operation.is_write(),
        first: operation.is_first() || is_only(operation),
        last: operation.ends_message(),
        psn: bth.psn,
        psns: 1,
        ack_requests: u32::from(bth.ack_req),
        reth,
        immediate: operation.has_imm().then_some(number),
        invalidate: operation.has_ieth().then_some(number),
        solicited: bth.solicited,
        data: Data::Bytes(data),
    })
}

/// Whether the payload has a length that its place in the message allows.
fn check_len(qp: &Qp, run: &Run<'_>) -> Result<(), Refusal> {
    let mtu = qp.connection().mtu() as usize;
    let (len, most) = (run.data.len(), run.psns as usize * mtu);
    let nothing = run.first && run.psns == 1 && len == 0;
    let fits = if run.last { len <= most && (len + mtu > most || nothing) } else { len == most };
    if fits {
        Ok(())
    } else {
        Err(invalid(format!("{} packets with {len} bytes at an MTU of {mtu}", run.psns)))
    }
}

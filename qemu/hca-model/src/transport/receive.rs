//! Receive queues: a QP's own and shared ones (PRM, work requests and completions).

use mlx5_prm::datapath::{DATA_LKEY_TERMINATOR, DS_SIZE, wqe_data_seg, wqe_srq_next_seg};
use mlx5_prm::event::EventType;

use super::data_path::DataPath;
use super::send_queue::QueueFault;
use super::state::{ReceiveWqe, Sge, Sges, SharedOwner};
use crate::meter::price;
use crate::object::mkey::User;
use crate::object::qp::Qp;
use crate::object::srq::{Srq, SrqKind};
use crate::seams::GuestMemory;

/// Longest receive WQE: 512 bytes, and the next segment of a shared queue's.
const MAX_STRIDE: usize = 2048;

/// Why there is no receive WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoReceive {
    /// None is posted.
    Empty,
    /// The queue cannot be read.
    Broken,
}

impl Qp {
    /// Takes the index of the next posted WQE of the QP's own queue.
    pub(super) fn take_receive_index(&mut self, memory: &dyn GuestMemory) -> Result<Option<u16>, QueueFault> {
        let index = self.posted_receive(memory)?;
        if let Some(index) = index {
            self.transport.receive.taken = index.wrapping_add(1);
        }
        Ok(index)
    }

    /// Returns the index of the next posted WQE of the QP's own queue.
    fn posted_receive(&mut self, memory: &dyn GuestMemory) -> Result<Option<u16>, QueueFault> {
        let Some(rq) = self.rings().receive() else { return Ok(None) };
        let ring = &self.transport.receive;
        if ring.taken == ring.posted {
            let posted = self.rings().posted_receives(memory);
            let posted = posted.map_err(|fault| QueueFault("qpc.dbr_addr", fault.to_string()))?;
            if u32::from(posted.wrapping_sub(ring.taken)) > rq.entries() {
                let text = format!("{posted:#x} with {:#x} taken", ring.taken);
                return Err(QueueFault("qp_doorbell_record.receive_counter", text));
            }
            self.transport.receive.posted = posted;
        }
        let ring = &self.transport.receive;
        Ok((ring.taken != ring.posted).then_some(ring.taken))
    }

    /// Returns the receive WQEs of the QP's own queue that are posted and not taken, by the doorbell record of now.
    pub(super) fn receives_left(&self, memory: &dyn GuestMemory) -> Option<u16> {
        let rq = self.rings().receive()?;
        let posted = self.rings().posted_receives(memory).ok()?;
        let left = posted.wrapping_sub(self.transport.receive.taken);
        (u32::from(left) <= rq.entries()).then_some(left)
    }

    /// Reads the next receive WQE of the QP's own queue, and leaves it there.
    fn next_receive(
        &mut self,
        memory: &dyn GuestMemory,
        terminator: Option<u32>,
    ) -> Result<Option<ReceiveWqe>, QueueFault> {
        let Some(rq) = self.rings().receive() else { return Ok(None) };
        let Some(index) = self.posted_receive(memory)? else { return Ok(None) };
        let mut bytes = [0; MAX_STRIDE];
        let bytes = bytes.get_mut(..rq.stride()).unwrap_or_default();
        let read = self.rings().read(memory, rq.entry(index), bytes);
        read.map_err(|fault| QueueFault("create_qp_in.pas", fault.to_string()))?;
        Ok(Some(scatter_list(index, bytes, self.user(), None, terminator)))
    }
}

/// A receive WQE of a shared queue.
struct Shared {
    wqe: ReceiveWqe,
    /// So few are left that the owner wants to know.
    reaches_limit: bool,
}

impl Srq {
    /// Takes the next WQE for a QP's `user`, if it has room for `needed` bytes.
    fn take(
        &mut self,
        memory: &dyn GuestMemory,
        user: User,
        terminator: Option<u32>,
        needed: u64,
    ) -> Result<Option<Shared>, QueueFault> {
        let left = self.left(memory).map_err(|fault| QueueFault("srqc.dbr_addr", fault.to_string()))?;
        if left == 0 {
            return Ok(None);
        }
        let entries = 1u32 << self.log_size;
        if u32::from(left) > entries {
            let text = format!("{left} entries outstanding in a queue of {entries}");
            return Err(QueueFault("srq_doorbell_record.counter", text));
        }
        let index = if self.linked { self.head } else { self.taken };
        let slot = u64::from(index) & u64::from(entries - 1);
        let mut bytes = [0; MAX_STRIDE];
        let bytes = bytes.get_mut(..1 << self.log_stride).unwrap_or_default();
        let read = self.buffer.read(memory, slot << self.log_stride, bytes);
        read.map_err(|fault| QueueFault("create_srq_in.pas", fault.to_string()))?;
        let list = if self.has_next_segment() {
            bytes.get(wqe_srq_next_seg::SIZE..).unwrap_or_default()
        } else {
            &*bytes
        };
        let mut wqe = scatter_list(index, list, self.user(user), Some(self.srqn), terminator);
        if self.kind == SrqKind::Xrc {
            wqe.owner = Some(SharedOwner { cqn: self.cqn, user_index: self.user_index });
        }
        if wqe.capacity < needed {
            return Ok(None);
        }
        if self.linked {
            self.head = wqe_srq_next_seg::next_wqe_index.get32(bytes) as u16 & (entries - 1) as u16;
        }
        self.taken = self.taken.wrapping_add(1);
        Ok(Some(Shared { wqe, reaches_limit: self.limit_reached(left - 1) }))
    }
}

impl DataPath<'_, '_> {
    /// Takes the next receive WQE if it has room for `needed` bytes; [`NoReceive::Empty`] leaves a smaller one there.
    pub(super) fn take_receive(&mut self, qp: &mut Qp, needed: u64) -> Result<ReceiveWqe, NoReceive> {
        if let Some(srqn) = qp.shared_queue() {
            let srqn = qp.transport.responder.target.map_or(srqn, |target| target.srqn);
            return self.take_shared(qp, srqn, needed);
        }
        let wqe = self.own_receive(qp)?;
        if wqe.capacity < needed {
            return Err(NoReceive::Empty);
        }
        qp.transport.receive.taken = wqe.index.wrapping_add(1);
        Ok(wqe)
    }

    /// Reads the next receive WQE of the QP's own queue, and leaves it there.
    pub(super) fn own_receive(&mut self, qp: &mut Qp) -> Result<ReceiveWqe, NoReceive> {
        self.meter().charge(price::WQE);
        match qp.next_receive(self.guest(), self.memory().terminator()) {
            Ok(wqe) => wqe.ok_or(NoReceive::Empty),
            Err(fault) => {
                self.reports().refuse_queue(qp, fault);
                Err(NoReceive::Broken)
            }
        }
    }

    /// Takes a WQE of a shared queue. One that cannot go on gives none to its QPs any more; its owner learns of it once.
    fn take_shared(&mut self, qp: &mut Qp, srqn: u32, needed: u64) -> Result<ReceiveWqe, NoReceive> {
        let (guest, terminator) = (self.guest(), self.memory().terminator());
        let srq = self.srqs().get_mut(srqn).filter(|srq| !srq.failed).ok_or(NoReceive::Broken)?;
        match srq.take(guest, qp.user(), terminator, needed) {
            Ok(None) => Err(NoReceive::Empty),
            Ok(Some(Shared { wqe, reaches_limit })) => {
                if reaches_limit {
                    self.delivery().srq_event(srqn, EventType::SRQ_RQ_LIMIT);
                }
                Ok(wqe)
            }
            Err(QueueFault(field, text)) => {
                srq.failed = true;
                let fault = QueueFault(field, format!("SRQ {srqn:#x}: {text}"));
                self.reports().refuse_queue(qp, fault);
                self.delivery().srq_event(srqn, EventType::SRQ_CATAS_ERROR);
                Err(NoReceive::Broken)
            }
        }
    }
}

fn scatter_list(
    index: u16,
    bytes: &[u8],
    user: User,
    srqn: Option<u32>,
    terminator: Option<u32>,
) -> ReceiveWqe {
    let (mut sges, mut capacity) = (Sges::default(), 0);
    for segment in bytes.chunks_exact(DS_SIZE) {
        let len = wqe_data_seg::byte_count.get32(segment);
        let lkey = wqe_data_seg::lkey.get32(segment);
        let ends = match terminator {
            Some(terminator) => lkey == terminator,
            None => len == 0 || lkey == DATA_LKEY_TERMINATOR,
        };
        if ends {
            break;
        }
        // Drivers mean it as an end; to a device that names another key it is an entry like any other, and no bytes stand for 2 GiB.
        let len = if len == 0 && lkey == DATA_LKEY_TERMINATOR { 1 << 31 } else { len };
        capacity += u64::from(len);
        sges.push(Sge { address: wqe_data_seg::addr.get(segment), len, lkey });
    }
    let User { pd, reserved_lkey, .. } = user;
    ReceiveWqe { index, sges, capacity, pd, reserved_lkey, srqn, owner: None }
}

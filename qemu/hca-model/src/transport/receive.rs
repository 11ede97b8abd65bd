//! Receive queues: a QP's own and shared ones (PRM, work requests and completions).

use mlx5_prm::datapath::{DATA_LKEY_TERMINATOR, DS_SIZE, wqe_data_seg, wqe_srq_next_seg};
use mlx5_prm::event::EventType;

use super::Context;
use super::state::{ReceiveWqe, Sge, Sges, SharedOwner};
use crate::meter::price;
use crate::object::mkey::User;
use crate::object::qp::Qp;
use crate::object::srq::SrqKind;

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

impl Context<'_, '_> {
    /// The index of the next posted WQE of the QP's own queue, which is then taken.
    pub(super) fn next_receive_index(&mut self, qp: &mut Qp) -> Option<u16> {
        self.posted_receive(qp).ok().flatten()?;
        let ring = &mut qp.transport.receive;
        let index = ring.taken;
        ring.taken = index.wrapping_add(1);
        Some(index)
    }

    /// The index of the next posted WQE of the QP's own queue, which stays there.
    fn posted_receive(&mut self, qp: &mut Qp) -> Result<Option<u16>, NoReceive> {
        let Some(rq) = qp.rings().receive() else { return Ok(None) };
        let ring = &qp.transport.receive;
        if ring.taken == ring.posted {
            let posted = qp.rings().posted_receives(self.io.memory);
            match posted {
                Ok(posted) => {
                    if u32::from(posted.wrapping_sub(ring.taken)) > rq.entries() {
                        let text = format!("{posted:#x} with {:#x} taken", ring.taken);
                        self.reports().refuse_work(qp, None, "qp_doorbell_record.receive_counter", text);
                        return Err(NoReceive::Broken);
                    }
                    qp.transport.receive.posted = posted;
                }
                Err(fault) => {
                    self.reports().refuse_work(qp, None, "qpc.dbr_addr", fault.to_string());
                    return Err(NoReceive::Broken);
                }
            }
        }
        let ring = &qp.transport.receive;
        Ok((ring.taken != ring.posted).then_some(ring.taken))
    }

    /// Receive WQEs of the QP's own queue that are posted and not taken, by the doorbell record of now.
    pub(super) fn receives_left(&mut self, qp: &mut Qp) -> Option<u16> {
        let rq = qp.rings().receive()?;
        let posted = qp.rings().posted_receives(self.io.memory).ok()?;
        let left = posted.wrapping_sub(qp.transport.receive.taken);
        (u32::from(left) <= rq.entries()).then_some(left)
    }

    /// Takes the next receive WQE.
    pub(super) fn take_receive(&mut self, qp: &mut Qp) -> Result<ReceiveWqe, NoReceive> {
        self.take_receive_of(qp, 0)
    }

    /// Takes the next receive WQE if it has room for `needed` bytes; [`NoReceive::Empty`] leaves a smaller one there.
    pub(super) fn take_receive_of(&mut self, qp: &mut Qp, needed: u64) -> Result<ReceiveWqe, NoReceive> {
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
        self.meter.charge(price::WQE);
        let Some(rq) = qp.rings().receive() else { return Err(NoReceive::Empty) };
        let Some(index) = self.posted_receive(qp)? else { return Err(NoReceive::Empty) };
        let mut bytes = [0; MAX_STRIDE];
        let Some(bytes) = bytes.get_mut(..rq.stride()) else { return Err(NoReceive::Broken) };
        if let Err(fault) = qp.rings().read(self.io.memory, rq.entry(index), bytes) {
            self.reports().refuse_work(qp, None, "create_qp_in.pas", fault.to_string());
            return Err(NoReceive::Broken);
        }
        Ok(scatter_list(index, bytes, qp.user(), None, self.mkeys.terminator))
    }

    fn take_shared(&mut self, qp: &mut Qp, srqn: u32, needed: u64) -> Result<ReceiveWqe, NoReceive> {
        let Some(srq) = self.srqs.get_mut(srqn) else { return Err(NoReceive::Broken) };
        if srq.failed {
            return Err(NoReceive::Broken);
        }
        let left = match srq.left(self.io.memory) {
            Ok(left) => left,
            Err(fault) => {
                return self.shared_failed(qp, srqn, "srqc.dbr_addr", fault.to_string());
            }
        };
        if left == 0 {
            return Err(NoReceive::Empty);
        }
        let entries = 1u32 << srq.log_size;
        if u32::from(left) > entries {
            let text = format!("{left} entries outstanding in a queue of {entries}");
            return self.shared_failed(qp, srqn, "srq_doorbell_record.counter", text);
        }
        let index = if srq.linked { srq.head } else { srq.taken };
        let slot = u64::from(index) & u64::from(entries - 1);
        let mut bytes = [0; MAX_STRIDE];
        let Some(bytes) = bytes.get_mut(..1 << srq.log_stride) else { return Err(NoReceive::Broken) };
        if let Err(fault) = srq.buffer.read(self.io.memory, slot << srq.log_stride, bytes) {
            return self.shared_failed(qp, srqn, "create_srq_in.pas", fault.to_string());
        }
        let list = if srq.has_next_segment() {
            bytes.get(wqe_srq_next_seg::SIZE..).unwrap_or_default()
        } else {
            &*bytes
        };
        let mut wqe = scatter_list(index, list, srq.user(qp.user()), Some(srq.srqn), self.mkeys.terminator);
        if srq.kind == SrqKind::Xrc {
            wqe.owner = Some(SharedOwner { cqn: srq.cqn, user_index: srq.user_index });
        }
        if wqe.capacity < needed {
            return Err(NoReceive::Empty);
        }
        if srq.linked {
            srq.head = wqe_srq_next_seg::next_wqe_index.get32(bytes) as u16 & (entries - 1) as u16;
        }
        srq.taken = srq.taken.wrapping_add(1);
        if srq.limit_reached(left - 1) {
            self.delivery().srq_event(srqn, EventType::SRQ_RQ_LIMIT);
        }
        Ok(wqe)
    }
}

impl Context<'_, '_> {
    /// A shared receive queue cannot go on: its owner learns of it once, and its QPs get nothing from it any more.
    fn shared_failed<T>(
        &mut self,
        qp: &mut Qp,
        srqn: u32,
        field: &'static str,
        text: String,
    ) -> Result<T, NoReceive> {
        self.reports().refuse_work(qp, None, field, format!("SRQ {srqn:#x}: {text}"));
        if let Some(srq) = self.srqs.get_mut(srqn) {
            srq.failed = true;
        }
        self.delivery().srq_event(srqn, EventType::SRQ_CATAS_ERROR);
        Err(NoReceive::Broken)
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

//! Delivery of CQEs and events to software's queues, and of counts to counter sets (PRM, work requests and completions).

use mlx5_prm::Field;
use mlx5_prm::commands::query_q_counter_out as q;
use mlx5_prm::datapath::{CqeFormat, CqeOpcode, SendOpcode, cqe64, err_cqe};
use mlx5_prm::event::{EventQueueType, EventType};
use mlx5_prm::later;
use mlx5_prm::status::CqeSyndrome;

use super::failure::record;
use super::state::{Failure, ReceiveWqe, SharedOwner};
use crate::device::device_clock;
use crate::log::Log;
use crate::object::counters::QCounters;
use crate::object::qp::Qp;
use crate::object::queues::Queues;
use crate::recorder::Event;
use crate::seams::Io;

/// CQs, EQs and counter sets, as the data path writes to them.
pub(super) struct Delivery<'a, 'io> {
    queues: &'a mut Queues,
    counters: &'a mut QCounters,
    io: &'a mut Io<'io>,
    log: &'a mut Log,
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

impl<'a, 'io> Delivery<'a, 'io> {
    /// Makes the view.
    #[inline(always)]
    pub(super) fn new(
        io: &'a mut Io<'io>,
        queues: &'a mut Queues,
        counters: &'a mut QCounters,
        log: &'a mut Log,
    ) -> Self {
        Self { queues, counters, io, log }
    }

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

    /// Completion of a send WQE with an error.
    pub(super) fn complete_send_error(
        &mut self,
        qp: &mut Qp,
        index: u16,
        opcode: SendOpcode,
        failure: Failure,
    ) {
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
            record(qp, self.io.now, Event::ReceiveFailed { index: wqe.index, syndrome, vendor });
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

    /// Counts in a QP's counter set.
    pub(super) fn count(&mut self, qp: &Qp, counter: Field) {
        if let Some(set) = qp.counter_set() {
            self.count_in(set, counter);
        }
    }

    /// Counts in a counter set.
    pub(super) fn count_in(&mut self, set: u8, counter: Field) {
        self.counters.bump(set, counter);
    }

    /// Raises an event of a QP.
    pub(super) fn qp_event(&mut self, qp: &Qp, kind: EventType) {
        self.event(EventQueueType::QP, qp.qpn(), kind);
    }

    /// Raises an event of a shared receive queue.
    pub(super) fn srq_event(&mut self, srqn: u32, kind: EventType) {
        self.event(EventQueueType::QP, srqn, kind);
    }

    /// Raises an event of a work queue, in QP form.
    pub(super) fn event(&mut self, queue: EventQueueType, number: u32, kind: EventType) {
        self.queues.qp_event(self.io, self.log, kind, queue, number);
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

//! The QP data path: work queues, and the InfiniBand transport that carries them.
//!
//! The device calls the functions of this file; they are the whole border between it and the data path, and their
//! signatures are fixed. What they may use of [`Hca`]: `qps`, `queues` (CQEs and events), `mkeys`, `srqs`, `q_counters`,
//! `port`, `log`, `transport` (the data path's own state), each a field of its own, so that a QP can be held while a CQE
//! is pushed or a key translated.

use crate::hca::Hca;
use crate::object::qp::Qp;
use crate::seams::{Io, Packet};
use mlx5_prm::value::QpState;

/// What the data path keeps per QP.
#[derive(Clone, Debug, Default)]
pub struct QpTransport {}

/// What the data path keeps per device: run queue, timers.
#[derive(Debug, Default)]
pub struct DeviceTransport {}

/// What QUERY_QP reports of a QP's progress (`qpc` fields of the same names).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpProgress {
    /// PSN of the next request packet.
    pub next_send_psn: u32,
    /// PSN expected next.
    pub next_rcv_psn: u32,
    /// Last PSN acknowledged by the peer.
    pub last_acked_psn: u32,
    /// Send sequence number.
    pub ssn: u32,
    /// Receive message sequence number.
    pub rmsn: u32,
    /// Basic blocks of the send queue processed.
    pub hw_sq_wqebb_counter: u16,
    /// Basic blocks of the send queue posted, as last read from the doorbell record.
    pub sw_sq_wqebb_counter: u16,
    /// Receive entries processed.
    pub hw_rq_counter: u32,
    /// Receive entries posted, as last read from the doorbell record.
    pub sw_rq_counter: u32,
}

/// A send doorbell of QP `qpn` (which exists, and whose UAR page it is): `wqe_head` is the first 8 bytes of the last WQE's
/// control segment. Only notes the work; [`poll`] does it.
pub fn doorbell(_hca: &mut Hca, _io: &mut Io<'_>, _qpn: u32, _wqe_head: u64) {}

/// A packet from the wire, LRH to ICRC, not checked in any way. Called only while the port's physical link is up.
pub fn receive(_hca: &mut Hca, _io: &mut Io<'_>, _packet: Packet) {}

/// Does at most about `budget` packets or work queue entries of work, and what timers up to `io.now` ask for. Answers
/// whether more could be done at once.
pub fn poll(_hca: &mut Hca, _io: &mut Io<'_>, _budget: usize) -> bool {
    false
}

/// When [`poll`] must be called next although nothing happens until then.
#[must_use]
pub fn next_deadline(_hca: &Hca) -> Option<u64> {
    None
}

/// QP `qpn` changed from `old` to `new` by command (`qp.state` is already `new`, its context parsed): ERR flushes, RST
/// forgets everything without completions (counters to zero), RTR and RTS start the responder and the requester.
pub fn on_state_change(_hca: &mut Hca, _io: &mut Io<'_>, _qpn: u32, _old: QpState, _new: QpState) {}

/// QP `qpn` is about to be removed: no completion may follow.
pub fn on_destroy(_hca: &mut Hca, _qpn: u32) {}

/// CQ `cqn` failed (overrun, write failure): the QPs that use it go to ERR, as after an error of their own.
pub fn on_cq_error(_hca: &mut Hca, _io: &mut Io<'_>, _cqn: u32) {}

/// The progress of a QP, for QUERY_QP.
#[must_use]
pub fn progress(_qp: &Qp) -> QpProgress {
    QpProgress::default()
}

/// The device is reset: all QPs are gone already; the device's own state goes back to what it was at power-on.
pub fn on_reset(hca: &mut Hca) {
    hca.transport = DeviceTransport::default();
}

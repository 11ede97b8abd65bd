//! Queue pairs on an SRQ whose endpoint is gone. A message that has begun to arrive holds a buffer
//! of the queue. The buffer comes back when the device has flushed it: the QP goes to ERROR, and
//! LAST_WQE_REACHED says that it holds no more buffers (IBTA 10.3.1). Destroyed before that, it
//! would never report the buffer.

mod end;

use driver_mlx::{Bar, Cqe, Qp, QpNumber, QpState};

use crate::base::handle::{EpHandle, EvdHandle, SrqHandle};
use crate::base::table::{Slot, Table};
use crate::ep::streams::Streams;
use crate::srq::queue::Srq;

/// QPs that may be draining at once. A device takes microseconds for one; with all places taken, a
/// free waits for one of them.
pub(crate) const MAX_DRAINING: usize = 8;

/// A QP whose EP is gone, or has another QP.
#[derive(Debug)]
pub struct EndedQp<B: Bar> {
    qp: Qp<B>,
    qpn: QpNumber,
    streams: Streams,
    srq: Option<SrqHandle>,
    /// Requests outstanding: as many completions may still come.
    requests: u32,
    /// The device has said that the QP holds no buffer of its SRQ.
    last_receive: bool,
    /// When it is destroyed whatever the device has said, in [`ticks`].
    until: u32,
}

impl<B: Bar> EndedQp<B> {
    /// The SRQ of which it may hold a buffer.
    fn holds(&self) -> Option<SrqHandle> {
        let received =
            matches!(self.qp.state(), QpState::ReadyToReceive | QpState::ReadyToSend | QpState::Error);
        self.srq.filter(|_| received && !self.last_receive)
    }

    /// Returns whether it keeps places for completions of this SRQ in the CQ of this receive EVD.
    pub(super) fn reserves(&self, srq: SrqHandle, recv: Option<EvdHandle>) -> bool {
        self.srq == Some(srq) && self.streams.recv == recv
    }

    fn reports_to(&self, evd: EvdHandle) -> bool {
        self.streams.recv == Some(evd) || self.streams.request == Some(evd)
    }
}

/// The SRQs of an adapter, and the QPs that hold buffers of theirs.
pub(crate) struct Srqs<'s, B: Bar> {
    table: Table<'s, SrqHandle, Srq>,
    /// QPs on SRQs whose EPs are gone. The handles of this table never leave the adapter.
    draining: Table<'s, EpHandle, EndedQp<B>>,
}

impl<'s, B: Bar> Srqs<'s, B> {
    /// Without any, over these places.
    pub(crate) fn new(srqs: &'s mut [Slot<Srq>], draining: &'s mut [Slot<EndedQp<B>>]) -> Self {
        Self { table: Table::new(srqs), draining: Table::new(draining) }
    }

    /// The SRQs.
    pub(crate) fn table(&self) -> &Table<'s, SrqHandle, Srq> {
        &self.table
    }

    pub(crate) fn table_mut(&mut self) -> &mut Table<'s, SrqHandle, Srq> {
        &mut self.table
    }

    /// Number of QPs that drain.
    pub(crate) fn draining(&self) -> u32 {
        self.draining.len() as u32
    }

    /// Returns whether a draining QP reserves the completions of an SRQ in the CQ of this EVD.
    pub(crate) fn reserves(&self, srq: SrqHandle, recv: Option<EvdHandle>) -> bool {
        self.draining.iter().any(|(_, ended)| ended.reserves(srq, recv))
    }

    /// Takes a completion of a draining QP and returns its buffer to the SRQ. Returns false for all other QPs.
    #[cold]
    pub(crate) fn take_drained(&mut self, cqe: &Cqe<'_>) -> bool {
        let mut ended = self.draining.iter().map(|(_, ended)| ended);
        let Some(ended) = ended.find(|ended| ended.qpn == cqe.qpn()) else { return false };
        if !cqe.is_send()
            && let Some(Ok(srq)) = ended.srq.map(|srq| self.table.get_mut(srq))
        {
            srq.retire(cqe);
        }
        true
    }
}

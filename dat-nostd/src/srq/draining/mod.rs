//! Queue pairs on an SRQ whose endpoint is gone. A message that has begun to arrive holds a buffer
//! of the queue. The buffer comes back when the device has flushed it: the QP goes to ERROR, and
//! LAST_WQE_REACHED says that it holds no more buffers (IBTA 10.3.1). Destroyed before that, it
//! would never report the buffer.

mod end;

use driver_mlx::{Bar, Cqe, Qp, QpNumber, QpState};

use crate::base::handle::{EpHandle, EvdHandle, SrqHandle};
use crate::base::table::Table;
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
    pub(crate) fn reserves(&self, srq: SrqHandle, recv: Option<EvdHandle>) -> bool {
        self.srq == Some(srq) && self.streams.recv == recv
    }

    fn reports_to(&self, evd: EvdHandle) -> bool {
        self.streams.recv == Some(evd) || self.streams.request == Some(evd)
    }
}

/// Takes a completion of a draining QP and returns its buffer to the SRQ. Returns false for all other QPs.
#[cold]
pub(crate) fn take_drained<B: Bar>(
    draining: &Table<'_, EpHandle, EndedQp<B>>,
    srqs: &mut Table<'_, SrqHandle, Srq>,
    cqe: &Cqe<'_>,
) -> bool {
    let mut ended = draining.iter().map(|(_, ended)| ended);
    let Some(srq) = ended.find(|ended| ended.qpn == cqe.qpn()).map(|ended| ended.srq) else { return false };
    if !cqe.is_send()
        && let Some(Ok(srq)) = srq.map(|srq| srqs.get_mut(srq))
    {
        srq.retire(cqe);
    }
    true
}

//! A queue pair whose endpoint is gone.

use driver_mlx::{Bar, Qp, QpNumber, QpState};

use crate::base::handle::{EvdHandle, SrqHandle};
use crate::ep::streams::Streams;

/// QPs that may be draining at once. A device takes microseconds for one; with all places taken, a
/// free waits for one of them.
pub(crate) const MAX_DRAINING: usize = 8;

/// A QP whose EP is gone, or has another QP.
#[derive(Debug)]
pub struct EndedQp<B: Bar> {
    pub(crate) qp: Qp<B>,
    pub(crate) qpn: QpNumber,
    pub(crate) streams: Streams,
    pub(crate) srq: Option<SrqHandle>,
    /// Requests outstanding: as many completions may still come.
    pub(crate) requests: u32,
    /// The device has said that the QP holds no buffer of its SRQ.
    pub(crate) last_receive: bool,
    /// When it is destroyed whatever the device has said, in [`ticks`].
    pub(crate) until: u32,
}

impl<B: Bar> EndedQp<B> {
    /// The SRQ of which it may hold a buffer.
    pub(crate) fn holds(&self) -> Option<SrqHandle> {
        let received =
            matches!(self.qp.state(), QpState::ReadyToReceive | QpState::ReadyToSend | QpState::Error);
        self.srq.filter(|_| received && !self.last_receive)
    }

    pub(crate) fn reports_to(&self, evd: EvdHandle) -> bool {
        self.streams.recv == Some(evd) || self.streams.request == Some(evd)
    }
}

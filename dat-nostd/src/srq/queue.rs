//! A shared receive queue.

use driver_mlx::{Bar, Completion, Cq, Cqe, Pd, QpNumber, SrqNumber};

use crate::base::handle::{IaHandle, PzHandle};
use crate::base::ret::{DatReturn, ReturnType, Subtype};
use crate::base::states::SrqState;

/// Most buffers that an SRQ may be asked to hold.
pub(crate) const MAX_SRQ_DTOS: u32 = (1 << 15) - 1;

/// Buffers that every SRQ could hold: the device cannot make one longer, so there is room to grow.
pub(crate) const LEAST_DTOS: u32 = 63;

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    pub(crate) ia: IaHandle,
    pub(crate) pz: PzHandle,
    pub(crate) pd: Pd,
    pub(crate) state: SrqState,
    pub(crate) queue: driver_mlx::Srq,
    pub(crate) max_recv_dtos: u32,
    pub(crate) max_recv_iov: u32,
    pub(crate) low_watermark: u32,
    /// The low watermark was set and has not been reported since.
    pub(crate) armed: bool,
    /// Bytes of the longest buffer ever posted: what the device claims to have stored is bounded by it.
    pub(crate) longest: u32,
    /// EPs on it.
    pub(crate) users: u32,
}

impl Srq {
    /// The number for QPs.
    pub(crate) fn number(&self) -> SrqNumber {
        self.queue.number()
    }

    /// Completions that EPs of this queue can have in one CQ.
    pub(crate) fn completions(&self) -> u32 {
        self.max_recv_dtos
    }

    /// Retires the receive that a completion queue entry reports.
    pub(crate) fn retire(&mut self, cqe: &Cqe<'_>) -> Option<Completion> {
        self.queue.retire(cqe)
    }

    /// Retires the receives of a QP that is gone and whose completions are in a CQ.
    pub(crate) fn take_back<B: Bar>(&mut self, cq: &Cq<B>, qpn: QpNumber) {
        for ahead in 0..cq.capacity() {
            match cq.peek(ahead) {
                Ok(Some(completion)) if completion.qpn() == qpn && !completion.is_send() => {
                    self.retire(&completion);
                }
                Ok(Some(_)) | Err(_) => {}
                Ok(None) => break,
            }
        }
    }

    /// Bytes that may have been received, at most.
    pub(crate) fn bound(&self, claimed: u32) -> u32 {
        claimed.min(self.longest)
    }
}

pub(crate) fn bad(argument: Subtype) -> DatReturn {
    DatReturn::error(ReturnType::InvalidParameter, argument)
}

pub(crate) const fn bad_attributes() -> DatReturn {
    DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg7)
}

//! A shared receive queue.

use driver_mlx::{Bar, Completion, Cq, Cqe, Pd, QpNumber, SrqConfig, SrqNumber};

use crate::base::attr::{SrqAttributes, SrqParameters};
use crate::base::handle::{IaHandle, LmrHandle, PzHandle};
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::states::{SrqCall, SrqEvent, SrqState};
use crate::base::table::{Table, of_ia};
use crate::base::types::LmrTriplet;
use crate::base::users::Users;
use crate::ep::post::Gather;
use crate::ep::{MAX_IOV, post_error};
use crate::mem::lmr::Lmr;

/// Most buffers that an SRQ may be asked to hold.
pub(crate) const MAX_SRQ_DTOS: u32 = (1 << 15) - 1;

/// Buffers that every SRQ could hold: the device cannot make one longer, so there is room to grow.
pub(crate) const LEAST_DTOS: u32 = 63;

/// No room for an SRQ, or for buffers on it.
pub(crate) const FULL: DatReturn = DatReturn::error(ReturnType::InsufficientResources, Subtype::ResourceSrq);

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    ia: IaHandle,
    pz: PzHandle,
    pd: Pd,
    state: SrqState,
    queue: driver_mlx::Srq,
    max_recv_dtos: u32,
    max_recv_iov: u32,
    low_watermark: u32,
    /// The low watermark was set and has not been reported since.
    armed: bool,
    /// Bytes of the longest buffer ever posted: what the device claims to have stored is bounded by it.
    longest: u32,
    /// EPs on it.
    users: Users,
}

of_ia! { Srq }

impl Srq {
    /// A queue without buffers.
    pub(crate) fn new(
        ia: IaHandle,
        pz: PzHandle,
        pd: Pd,
        queue: driver_mlx::Srq,
        attributes: &SrqAttributes,
    ) -> Self {
        Self {
            ia,
            pz,
            pd,
            state: SrqState::Operational,
            queue,
            max_recv_dtos: attributes.max_recv_dtos,
            max_recv_iov: attributes.max_recv_iov,
            low_watermark: 0,
            armed: false,
            longest: 0,
            users: Users::default(),
        }
    }

    pub(crate) fn pz(&self) -> PzHandle {
        self.pz
    }

    pub(crate) fn pd(&self) -> Pd {
        self.pd
    }

    pub(crate) fn state(&self) -> SrqState {
        self.state
    }

    /// `dat_srq_query`, with the buffers whose completions wait to be dequeued.
    pub(crate) fn parameters(&self, taken: u32) -> SrqParameters {
        SrqParameters {
            ia: self.ia,
            state: self.state,
            pz: self.pz,
            max_recv_dtos: self.max_recv_dtos,
            max_recv_iov: self.max_recv_iov,
            low_watermark: self.low_watermark,
            available_dto_count: self.outstanding().saturating_sub(taken) as i32,
            outstanding_dto_count: self.outstanding() as i32,
        }
    }

    /// Buffers posted whose completions have not been retired.
    fn outstanding(&self) -> u32 {
        u32::from(self.queue.outstanding())
    }

    /// Returns the count of EPs on it.
    pub(crate) fn users(&self) -> &Users {
        &self.users
    }

    pub(crate) fn users_mut(&mut self) -> &mut Users {
        &mut self.users
    }

    /// Checks that it may hold this many buffers.
    pub(crate) fn check_size(&self, max_recv_dtos: u32) -> DatResult<()> {
        SrqCall::Resize.in_state(self.state)?;
        if max_recv_dtos < self.outstanding() || max_recv_dtos < self.low_watermark {
            return Err(DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStateSrqInUse));
        }
        Ok(())
    }

    /// Returns how to make a longer ring for this many buffers, or `None` if the ring holds them.
    ///
    /// # Errors
    /// INSUFFICIENT_RESOURCES: EPs or buffers are on the ring.
    pub(crate) fn longer(&self, max_recv_dtos: u32) -> DatResult<Option<SrqConfig>> {
        if max_recv_dtos <= u32::from(self.queue.capacity()) {
            return Ok(None);
        }
        if self.users.is_any() || self.outstanding() > 0 {
            return Err(FULL);
        }
        Ok(Some(SrqConfig { pd: self.pd, max_wr: max_recv_dtos, max_sge: self.max_recv_iov }))
    }

    /// Replaces its ring, which nothing uses.
    pub(crate) fn replace(&mut self, queue: driver_mlx::Srq) -> driver_mlx::Srq {
        self.armed = false;
        core::mem::replace(&mut self.queue, queue)
    }

    pub(crate) fn set_max_recv_dtos(&mut self, max_recv_dtos: u32) {
        self.max_recv_dtos = max_recv_dtos;
    }

    /// The driver's queue.
    pub(crate) fn queue(&self) -> &driver_mlx::Srq {
        &self.queue
    }

    /// The driver's queue, to be destroyed.
    pub(crate) fn into_queue(self) -> driver_mlx::Srq {
        self.queue
    }

    /// The low watermark is reported once from now on; 0 is none.
    pub(crate) fn set_low_watermark(&mut self, low_watermark: u32) {
        (self.low_watermark, self.armed) = (low_watermark, low_watermark > 0);
    }

    /// Takes an event of the device. Returns the reason to report, if there is one.
    pub(crate) fn take(&mut self, event: SrqEvent) -> Option<i32> {
        let (state, reason) = event.in_state(self.state)?;
        if event == SrqEvent::Low && !core::mem::take(&mut self.armed) {
            return None;
        }
        self.state = state;
        Some(reason)
    }

    /// Posts a buffer.
    pub(crate) fn post_recv(
        &mut self,
        lmrs: &Table<'_, LmrHandle, Lmr>,
        iov: &[LmrTriplet],
        user_cookie: u64,
    ) -> DatResult<()> {
        let gather = Gather::<MAX_IOV>::new(lmrs, iov, self.max_recv_iov, self.pd, true)?;
        if self.outstanding() >= self.max_recv_dtos {
            return Err(FULL);
        }
        self.queue.post_recv(gather.slice(), user_cookie).map_err(post_error)?;
        self.queue.ring();
        self.longest = self.longest.max(gather.total().min(u64::from(u32::MAX)) as u32);
        Ok(())
    }

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

    /// Bytes of the longest buffer ever posted.
    pub(crate) fn longest(&self) -> u32 {
        self.longest
    }
}

pub(crate) fn bad(argument: Subtype) -> DatReturn {
    DatReturn::error(ReturnType::InvalidParameter, argument)
}

pub(crate) const fn bad_attributes() -> DatReturn {
    DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg7)
}

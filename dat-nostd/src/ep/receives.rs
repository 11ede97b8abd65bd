//! Receive buffers that endpoints hold: query and watermarks. DAT 1.2, `dat_ep_recv_query`, `dat_ep_set_watermark`.

use driver_mlx::{Bar, Cqe, Platform};

use crate::adapter::Adapter;
use crate::adapter::objects::Objects;
use crate::base::attr::EpRecvInfo;
use crate::base::handle::{EpHandle, SrqHandle};
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::types::{VALUE_UNKNOWN, WATERMARK_INFINITE};
use crate::ep::Ep;
use crate::ep::watermark::Watermarks;

impl<'s, P: Platform> Adapter<'s, P> {
    /// `dat_ep_recv_query`: buffers at the EP for which no completion has been generated, and their span. Messages come in order, so the
    /// span is their number.
    ///
    /// An EP on an SRQ has a buffer from when the device takes it out of the SRQ, of which only the completion tells: while messages can
    /// come both counts are [`VALUE_UNKNOWN`], as the page allows, else 0.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn ep_recv_query(&self, ep: EpHandle) -> DatResult<EpRecvInfo> {
        let ep = self.objects().get(ep)?;
        let can_receive = ep.can_have_received() || ep.connection.is_flushing();
        let count = match ep.srq {
            None => ep.receives.outstanding().saturating_sub(self.objects().buffers_taken(ep)) as i32,
            Some(_) if ep.connection.last_receive() || ep.qp.is_none() || !can_receive => 0,
            Some(_) => VALUE_UNKNOWN,
        };
        Ok(EpRecvInfo { nbufs_allocated: count, bufs_alloc_span: count })
    }

    /// `dat_ep_set_watermark`. The marks are about the buffers that messages have consumed: those taken from the EP's own receive queue,
    /// or from its SRQ, whose completions the consumer has not dequeued. When they are more than `soft_high`, one asynchronous event with
    /// the reason [`SRQ_SOFT_HIGH_WATERMARK_EVENT`] comes; above `hard_high` the connection breaks. Looked at in every poll, and now.
    ///
    /// [`SRQ_SOFT_HIGH_WATERMARK_EVENT`]: crate::states::SRQ_SOFT_HIGH_WATERMARK_EVENT
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_PARAMETER for a negative value that is not [`WATERMARK_INFINITE`].
    pub fn ep_set_watermark(&mut self, handle: EpHandle, soft_high: i32, hard_high: i32) -> DatResult<()> {
        self.objects().get(handle)?;
        for (mark, argument) in [(soft_high, Subtype::InvalidArg2), (hard_high, Subtype::InvalidArg3)] {
            if mark < WATERMARK_INFINITE {
                return Err(DatReturn::error(ReturnType::InvalidParameter, argument));
            }
        }
        self.endpoints().set_watermarks(handle, Watermarks { soft: soft_high, hard: hard_high });
        self.endpoints().check_watermark(handle);
        Ok(())
    }
}

impl<B: Bar> Objects<'_, B> {
    /// Buffers of an EP that messages have taken and that the consumer has not dequeued: its receive completions.
    pub(crate) fn buffers_taken(&self, ep: &Ep<B>) -> u32 {
        let Some(Ok(evd)) = ep.streams.recv.map(|evd| self.get(evd)) else { return 0 };
        let is_taken = |completion: &Cqe<'_>| !completion.is_send() && ep.owns(completion);
        evd.peek_all().flatten().filter(is_taken).count() as u32
    }

    /// Buffers of an SRQ whose completions have come and have not been dequeued.
    pub(crate) fn taken_of_srq(&self, handle: SrqHandle) -> u32 {
        let users = self.eps().iter().filter(|(_, ep)| ep.srq == Some(handle));
        users.map(|(_, ep)| self.buffers_taken(ep)).sum()
    }

    /// Whether an EP has no receive outstanding: of its own none, of an SRQ none that the consumer has to dequeue.
    pub(crate) fn is_recv_idle(&self, ep: &Ep<B>) -> bool {
        match ep.srq {
            None => ep.receives.outstanding() == 0,
            Some(_) => self.buffers_taken(ep) == 0,
        }
    }
}

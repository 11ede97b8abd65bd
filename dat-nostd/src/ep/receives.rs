//! Receive buffers that endpoints hold: query and watermarks. DAT 1.2, `dat_ep_recv_query`, `dat_ep_set_watermark`.

use driver_mlx::{Bar, Cqe, Platform};

use crate::adapter::Adapter;
use crate::adapter::objects::Objects;
use crate::base::attr::EpRecvInfo;
use crate::base::event::AsyncError;
use crate::base::handle::{EpHandle, SrqHandle};
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::states::{EpEvent, SRQ_SOFT_HIGH_WATERMARK_EVENT};
use crate::base::types::{VALUE_UNKNOWN, WATERMARK_INFINITE};
use crate::ep::Ep;
use crate::ep::watermark::{Watermarks, exceeds};

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
        let ep = self.objects.get(ep)?;
        let count = match ep.srq {
            None => ep.receives.outstanding().saturating_sub(self.objects.buffers_taken(ep)) as i32,
            Some(_) if ep.connection.last_receive() || ep.qp.is_none() || !ep.can_receive() => 0,
            Some(_) => VALUE_UNKNOWN,
        };
        Ok(EpRecvInfo { nbufs_allocated: count, bufs_alloc_span: count })
    }

    /// `dat_ep_set_watermark`. The marks are about the buffers that messages have consumed: those taken from the EP's own receive queue,
    /// or from its SRQ, whose completions the consumer has not dequeued. When they are more than `soft_high`, one asynchronous event with
    /// the reason [`SRQ_SOFT_HIGH_WATERMARK_EVENT`] comes; above `hard_high` the connection breaks. Looked at in every poll, and now.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_PARAMETER for a negative value that is not [`WATERMARK_INFINITE`].
    pub fn ep_set_watermark(&mut self, handle: EpHandle, soft_high: i32, hard_high: i32) -> DatResult<()> {
        self.objects.get(handle)?;
        for (mark, argument) in [(soft_high, Subtype::InvalidArg2), (hard_high, Subtype::InvalidArg3)] {
            if mark < WATERMARK_INFINITE {
                return Err(DatReturn::error(ReturnType::InvalidParameter, argument));
            }
        }
        self.set_watermarks(handle, Watermarks { soft: soft_high, hard: hard_high });
        self.check_watermark(handle);
        Ok(())
    }

    fn set_watermarks(&mut self, handle: EpHandle, marks: Watermarks) {
        self.count_watermarks(handle, false);
        if let Ok(ep) = self.objects.get_mut(handle) {
            ep.watermarks = marks;
        }
        self.count_watermarks(handle, true);
    }

    /// Counts an EP in or out of those whose buffers are watched.
    pub(crate) fn count_watermarks(&mut self, handle: EpHandle, come: bool) {
        if self.objects.get(handle).is_ok_and(|ep| ep.watermarks.any()) {
            let (slot, eps) = (handle.handle().slot(), self.objects.eps_mut());
            if come {
                self.progress.watched_mut().push(eps, slot)
            } else {
                self.progress.watched_mut().remove(eps, slot)
            }
        }
    }

    /// Looks at all watched EPs.
    pub(crate) fn check_watermarks(&mut self) {
        for _ in 0..self.progress.watched_mut().len() {
            let Some(slot) = self.progress.watched_mut().rotate(self.objects.eps_mut()) else {
                return;
            };
            self.progress.visit();
            if let Some(handle) = self.objects.eps().handle_at(slot) {
                self.check_watermark(handle);
            }
        }
    }

    fn check_watermark(&mut self, handle: EpHandle) {
        let Ok(ep) = self.objects.get(handle) else { return };
        let taken = self.objects.buffers_taken(ep);
        let (marks, ia, slot) = (ep.watermarks, ep.ia, handle.handle().slot());
        if exceeds(taken, marks.soft) {
            self.set_watermarks(handle, Watermarks { soft: WATERMARK_INFINITE, ..marks });
            let reason = SRQ_SOFT_HIGH_WATERMARK_EVENT;
            self.delivery().post_async(Some(ia), AsyncError::EpBroken, handle.into(), reason);
        }
        if exceeds(taken, marks.hard) {
            self.connections().end_ep(slot, EpEvent::Failed);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks() {
        assert!(exceeds(1, 0) && !exceeds(0, 0) && !exceeds(5, 5) && exceeds(6, 5));
        assert!(!exceeds(u32::MAX, WATERMARK_INFINITE));
        assert!(Watermarks { soft: 0, hard: WATERMARK_INFINITE }.any());
    }
}

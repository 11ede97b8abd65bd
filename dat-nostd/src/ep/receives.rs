//! Receive buffers that endpoints hold: query and watermarks. DAT 1.2, `dat_ep_recv_query`, `dat_ep_set_watermark`.

use driver_mlx::Platform;

use crate::adapter::Adapter;
use crate::base::attr::EpRecvInfo;
use crate::base::event::AsyncError;
use crate::base::handle::EpHandle;
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::states::{EpEvent, SRQ_SOFT_HIGH_WATERMARK_EVENT};
use crate::base::types::WATERMARK_INFINITE;
use crate::ep::endpoint::Ep;
use crate::ep::watermark::{Watermarks, exceeds};

impl<'s, P: Platform> Adapter<'s, P> {
    /// `dat_ep_recv_query`: buffers that the EP holds and that are not completed (with an SRQ: that the consumer has not dequeued),
    /// and their span. Messages come in order, so the span is their number.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn ep_recv_query(&self, ep: EpHandle) -> DatResult<EpRecvInfo> {
        let held = self.buffers_held(self.objects.eps.get(ep)?) as i32;
        Ok(EpRecvInfo { nbufs_allocated: held, bufs_alloc_span: held })
    }

    /// `dat_ep_set_watermark` of an EP on an SRQ. When it holds more buffers than `soft_high`, one asynchronous event with the
    /// reason [`SRQ_SOFT_HIGH_WATERMARK_EVENT`] comes; above `hard_high` the connection breaks. Looked at in every poll, and now.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_PARAMETER for a negative value that is not [`WATERMARK_INFINITE`]; MODEL_NOT_SUPPORTED for an EP
    /// without SRQ.
    pub fn ep_set_watermark(&mut self, handle: EpHandle, soft_high: i32, hard_high: i32) -> DatResult<()> {
        let ep = self.objects.eps.get(handle)?;
        for (mark, argument) in [(soft_high, Subtype::InvalidArg2), (hard_high, Subtype::InvalidArg3)] {
            if mark < WATERMARK_INFINITE {
                return Err(DatReturn::error(ReturnType::InvalidParameter, argument));
            }
        }
        if ep.srq.is_none() {
            return Err(DatReturn::new(ReturnType::ModelNotSupported));
        }
        self.count_watermarks(handle, false);
        self.objects.eps.get_mut(handle)?.watermarks = Watermarks { soft: soft_high, hard: hard_high };
        self.count_watermarks(handle, true);
        self.check_watermark(handle);
        Ok(())
    }

    /// Counts an EP in or out of those whose buffers are watched.
    pub(crate) fn count_watermarks(&mut self, handle: EpHandle, come: bool) {
        if self.objects.eps.get(handle).is_ok_and(|ep| ep.watermarks.any()) {
            self.progress.watched =
                if come { self.progress.watched + 1 } else { self.progress.watched.saturating_sub(1) };
        }
    }

    /// Looks at all watched EPs.
    pub(crate) fn check_watermarks(&mut self) {
        if self.progress.watched == 0 {
            return;
        }
        for slot in 0..self.objects.eps.end() {
            if self.objects.eps.at(slot).is_some_and(|ep| ep.watermarks.any())
                && let Some(handle) = self.objects.eps.handle_at(slot)
            {
                self.check_watermark(handle);
            }
        }
    }

    fn check_watermark(&mut self, handle: EpHandle) {
        let Ok(ep) = self.objects.eps.get(handle) else { return };
        let held = self.buffers_held(ep);
        let (marks, ia, slot) = (ep.watermarks, ep.ia, handle.handle().slot());
        if exceeds(held, marks.soft) {
            self.count_watermarks(handle, false);
            if let Ok(ep) = self.objects.eps.get_mut(handle) {
                ep.watermarks.soft = WATERMARK_INFINITE;
            }
            self.count_watermarks(handle, true);
            let reason = SRQ_SOFT_HIGH_WATERMARK_EVENT;
            self.async_event(Some(ia), AsyncError::EpBroken, handle.into(), reason);
        }
        if exceeds(held, marks.hard) {
            self.end_ep(slot, EpEvent::Failed);
        }
    }

    /// Buffers that an EP holds.
    pub(crate) fn buffers_held(&self, ep: &Ep<P::Bar>) -> u32 {
        if ep.srq.is_none() {
            return ep.receives.outstanding();
        }
        let Some(Ok(evd)) = ep.recv_evd.map(|evd| self.objects.evds.get(evd)) else { return 0 };
        let Some(cq) = &evd.cq else { return 0 };
        let mut held = 0;
        for ahead in 0..evd.completions() {
            if let Ok(Some(completion)) = cq.peek(ahead)
                && !completion.is_send()
                && ep.owns(&completion)
            {
                held += 1;
            }
        }
        held
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

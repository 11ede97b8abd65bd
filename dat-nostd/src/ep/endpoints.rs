//! Creation, change and removal of endpoints, and their watermarks.

use driver_mlx::{LKey, Pd, Platform, Qp, Sge};

use crate::adapter::part::part;
use crate::base::attr::EpAttributes;
use crate::base::event::AsyncError;
use crate::base::handle::{EpHandle, IaHandle, PzHandle, Typed};
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::states::{EpEvent, SRQ_SOFT_HIGH_WATERMARK_EVENT};
use crate::base::types::{EpState, WATERMARK_INFINITE};
use crate::conn::Connections;
use crate::ep::plan::Plan;
use crate::ep::streams::Streams;
use crate::ep::watermark::{Watermarks, exceeds};
use crate::ep::work::Work;
use crate::ep::{Ep, MAX_IOV};
use crate::srq::QueuePairs;

pub(super) const BAD_VALUE: DatReturn = DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg3);

part! {
    /// The parts of an adapter that EPs are made of.
    Endpoints, connections: Connections, queue_pairs: QueuePairs
}

impl<P: Platform> Endpoints<'_, '_, P> {
    /// The EP of a request, made by the provider: the consumer gives it zone and EVDs by `ep_modify` before it accepts.
    pub(crate) fn make_tentative_ep(&mut self, ia: IaHandle, reads: (u8, u8)) -> DatResult<EpHandle> {
        let most = self.device.max_reads();
        let default = EpAttributes::DEFAULT;
        let attributes = EpAttributes {
            max_rdma_read_in: u32::from(reads.0).min(most.0),
            max_rdma_read_out: u32::from(reads.1).min(most.1),
            max_rdma_read_iov: default.max_request_iov,
            max_rdma_write_iov: default.max_request_iov,
            ..default
        };
        let streams = Streams { recv: None, request: None, connect: None };
        let plan = Plan { pd: Pd::default(), streams, srq: None, attributes };
        self.create_ep(ia, None, &plan, EpState::TentativeConnectionPending)
    }

    /// Makes an EP by a plan that has been checked.
    pub(crate) fn create_ep(
        &mut self,
        ia: IaHandle,
        pz: Option<PzHandle>,
        plan: &Plan,
        state: EpState,
    ) -> DatResult<EpHandle> {
        const FULL: DatReturn = DatReturn::error(ReturnType::InsufficientResources, Subtype::ResourceTep);
        self.device.usable()?;
        if self.objects.eps().is_full() {
            return Err(FULL);
        }
        self.queue_pairs().make_room_for(None, plan)?;
        let longest = self.device.longest(&plan.attributes);
        let ep = Ep::new(ia, pz, plan, state, longest, self.device.unspecified());
        let handle = self.objects.eps_mut().insert(ep).map_err(|_| FULL)?;
        if pz.is_some() {
            match self.device.build_qp(self.objects, plan, handle.handle().slot()) {
                Ok(qp) => self.objects.get_mut(handle)?.install(Some(qp), self.device.next_psn()),
                Err(error) => {
                    // Cannot fail: the EP was inserted above.
                    let _ = self.objects.remove(handle);
                    return Err(error);
                }
            }
        }
        self.objects.count(handle, true);
        self.delivery().feeds_changed(handle);
        self.count_watermarks(handle, true);
        Ok(handle)
    }

    /// Removes an EP whatever its state.
    pub(crate) fn remove_ep(&mut self, ep: EpHandle) -> DatResult<()> {
        self.objects.get(ep)?;
        self.connections().forget(ep);
        self.objects.forget_events(ep);
        let ended = self.queue_pairs().take_qp(ep);
        self.count_watermarks(ep, false);
        self.objects.count(ep, false);
        let removed = self.objects.remove(ep).map(drop);
        ended.map_or(Ok(()), |ended| self.queue_pairs().end_qp(ended)).and(removed)
    }

    /// Carries out a change. Has no side effects if it fails. The EP is counted in nowhere meanwhile.
    pub(super) fn apply(&mut self, handle: EpHandle, pz: Option<PzHandle>, plan: &Plan) -> DatResult<()> {
        self.objects.check_notification(&plan.streams, &plan.attributes, BAD_VALUE)?;
        self.queue_pairs().make_room_for(Some(handle), plan)?;
        let ep = self.objects.get(handle)?;
        let same_queues = ep.pz == pz
            && (ep.streams.recv, ep.streams.request) == (plan.streams.recv, plan.streams.request)
            && queues(&ep.attributes) == queues(&plan.attributes);
        if !same_queues {
            self.rebuild(handle, pz, plan)?;
        }
        let longest = self.device.longest(&plan.attributes);
        self.objects.get_mut(handle)?.set_plan(pz, plan, longest);
        Ok(())
    }

    /// Another QP in the stead of the EP's; the receives move.
    fn rebuild(&mut self, handle: EpHandle, pz: Option<PzHandle>, plan: &Plan) -> DatResult<()> {
        let (most_requests, most_receives) = plan.counts();
        let (requests, mut receives) = (Work::new(most_requests), Work::new(most_receives));
        let build = |_| self.device.build_qp(self.objects, plan, handle.any().slot());
        let mut qp = pz.map(build).transpose()?;
        if let Some(new) = &mut qp
            && let Err(error) = self.move_receives(handle, new, &mut receives)
        {
            let _ = qp.map(|qp| self.device.hca_mut().destroy_qp(qp));
            return Err(error);
        }
        let qpn = qp.as_ref().map(|qp| qp.number()).unwrap_or_default();
        let ep = self.objects.get_mut(handle)?;
        let streams = ep.streams();
        let old_qpn = core::mem::replace(&mut ep.qpn, qpn);
        let old_qp = core::mem::replace(&mut ep.qp, qp);
        (ep.requests, ep.receives) = (requests, receives);
        if let Some(old) = old_qp {
            // The EP has its new QP whatever becomes of the old one, which has never received.
            let _ = self.queue_pairs().give_up_qp(old, old_qpn, &streams, plan.srq);
        }
        Ok(())
    }

    /// Posts the receives of the EP's QP on another one, in their order.
    fn move_receives(&self, handle: EpHandle, new: &mut Qp<P::Bar>, receives: &mut Work) -> DatResult<()> {
        const FAILED: DatReturn = DatReturn::new(ReturnType::InternalError);
        let ep = self.objects.get(handle)?;
        let Some(old) = &ep.qp else { return Ok(()) };
        let mut sges = [Sge { address: 0, length: 0, lkey: LKey::new(0) }; MAX_IOV];
        for nth in 0..ep.receives.outstanding() {
            let (count, wr_id) = old.posted_recv(nth as u16, &mut sges).ok_or(FAILED)?;
            let sges = sges.get(..count).ok_or(FAILED)?;
            new.post_recv(sges, wr_id).map_err(|error| match error {
                driver_mlx::PostError::TooManySges => BAD_VALUE,
                _ => FAILED,
            })?;
            receives.posted(1);
        }
        Ok(())
    }

    pub(super) fn set_watermarks(&mut self, handle: EpHandle, marks: Watermarks) {
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

    pub(super) fn check_watermark(&mut self, handle: EpHandle) {
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

/// Returns the attributes that determine the queues of a QP.
fn queues(of: &EpAttributes) -> [u32; 6] {
    let (receives, requests) = (of.max_recv_dtos, of.max_request_dtos);
    [receives, requests, of.max_recv_iov, of.max_request_iov, of.max_rdma_read_iov, of.max_rdma_write_iov]
}

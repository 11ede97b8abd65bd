//! The queue pair of an endpoint: make, replace, destroy.

use driver_mlx::{Access, InitParams, Platform, Psn, Qp, QpConfig, QpNumber};

use crate::adapter::Adapter;
use crate::base::attr::EpAttributes;
use crate::base::handle::{EpHandle, EvdHandle, SrqHandle, Typed};
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::types::EvdFlags;
use crate::ep::plan::Plan;
use crate::ep::streams::{Streams, notification, request_notification, reservations};
use crate::evd::dispatcher::Notification;
use crate::mem::lmr::creation_error;

impl<'s, P: Platform> Adapter<'s, P> {
    /// A QP ready for receives, for the EP in this slot.
    pub(crate) fn build_qp(&mut self, plan: &Plan, slot: u16) -> DatResult<Qp<P::Bar>> {
        let cq_of = |evd: Option<EvdHandle>| {
            let evd = evd.and_then(|evd| self.objects.evds.get(evd).ok());
            evd.and_then(|evd| evd.cq.as_ref()).map(|cq| cq.number())
        };
        let attributes = &plan.attributes;
        let none = self.device.null_cq.number();
        let (send_cq, recv_cq) = match (cq_of(plan.streams.request), cq_of(plan.streams.recv)) {
            (Some(send), Some(receive)) => (send, receive),
            (Some(send), None) => (send, send),
            (None, Some(receive)) => (receive, receive),
            (None, None) => (none, none),
        };
        let request_iov =
            attributes.max_request_iov.max(attributes.max_rdma_read_iov).max(attributes.max_rdma_write_iov);
        let (requests, receives) = plan.counts();
        let takes_binds = plan.streams.request.is_some_and(|evd| {
            self.objects.evds.get(evd).is_ok_and(|evd| evd.flags.contains(EvdFlags::RMR_BIND))
        });
        let config = QpConfig {
            send_cq,
            recv_cq,
            // One more for our marker.
            max_send_wr: if requests == 0 { 0 } else { requests + 1 },
            max_recv_wr: receives,
            max_send_sge: request_iov.max(1),
            max_recv_sge: attributes.max_recv_iov.max(1),
            user_index: u32::from(slot),
            srq: plan.srq.and_then(|srq| self.objects.shared.srqs.get(srq).ok()).map(|srq| srq.number()),
            memory_windows: takes_binds,
            ..QpConfig::rc(plan.pd, send_cq)
        };
        let failed = |error| creation_error(error, Subtype::ResourceTep);
        let mut qp = self.device.hca.create_qp(&config).map_err(failed)?;
        let mut access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        access.set(Access::REMOTE_ATOMIC, self.device.hca.caps().atomic);
        let params = InitParams { port: 1, pkey_index: 0, access };
        if let Err(error) = self.device.hca.modify_to_init(&mut qp, &params) {
            let _ = self.device.hca.destroy_qp(qp);
            return Err(failed(error));
        }
        Ok(qp)
    }

    /// By what the EP's QP is made now; None without a protection zone.
    pub(crate) fn plan(&self, handle: EpHandle) -> DatResult<Option<Plan>> {
        let ep = self.objects.eps.get(handle)?;
        let plan = Plan { pd: ep.pd, streams: ep.streams(), srq: ep.srq, attributes: ep.attributes };
        Ok(ep.pz.map(|_| plan))
    }

    /// Makes the QP of an EP that has a protection zone, ready for receives.
    pub(crate) fn make_qp(&mut self, handle: EpHandle) -> DatResult<()> {
        let Some(plan) = self.plan(handle)? else { return Ok(()) };
        let qp = self.build_qp(&plan, handle.any().slot())?;
        self.install_qp(handle, Some(qp))
    }

    /// Gives an EP without QP a fresh one, with nothing outstanding.
    pub(crate) fn install_qp(&mut self, handle: EpHandle, qp: Option<Qp<P::Bar>>) -> DatResult<()> {
        let psn = Psn::new(self.device.random.next_u32());
        let ep = self.objects.eps.get_mut(handle)?;
        ep.qpn = qp.as_ref().map(|qp| qp.number()).unwrap_or_default();
        ep.qp = qp;
        ep.psn = psn;
        ep.suppressed = 0;
        ep.marker = None;
        ep.last_receive = false;
        ep.requests.clear();
        ep.receives.clear();
        Ok(())
    }

    /// Destroys the QP and forgets its completions.
    pub(crate) fn destroy_ep_qp(&mut self, handle: EpHandle) -> DatResult<()> {
        self.settle_binds(handle);
        let ep = self.objects.eps.get_mut(handle)?;
        let Some(qp) = ep.qp.take() else { return Ok(()) };
        let qpn = core::mem::take(&mut ep.qpn);
        let (streams, srq) = (ep.streams(), ep.srq);
        self.give_up_qp(qp, qpn, &streams, srq)
    }

    /// Destroys a QP and takes its completions out of the CQs of these EVDs. Buffers of an SRQ that they report are free again.
    pub(crate) fn give_up_qp(
        &mut self,
        qp: Qp<P::Bar>,
        qpn: QpNumber,
        streams: &Streams,
        srq: Option<SrqHandle>,
    ) -> DatResult<()> {
        let destroyed = if self.is_dead() { Ok(()) } else { self.device.hca.destroy_qp(qp) };
        self.sweep(streams.request, qpn, srq);
        if streams.recv != streams.request {
            self.sweep(streams.recv, qpn, srq);
        }
        destroyed.map_err(|_| DatReturn::new(ReturnType::InternalError))
    }

    /// Completions that an EP may cause in its EVDs' CQs: of requests, and of receives. EPs that share an SRQ and a receive EVD
    /// have together as many receives as the SRQ holds, which the first of them reserves and the last gives back.
    pub(crate) fn places_needed(
        &self,
        this: Option<EpHandle>,
        srq: Option<SrqHandle>,
        streams: &Streams,
        attributes: &EpAttributes,
    ) -> (u32, u32) {
        let (requests, receives) = reservations(attributes, streams);
        let Some(srq) = srq else { return (requests, receives) };
        let others = |(handle, ep): (EpHandle, &crate::ep::Ep<P::Bar>)| {
            Some(handle) != this && ep.srq == Some(srq) && ep.recv_evd == streams.recv
        };
        let shared = self.objects.eps.iter().any(others);
        let whole = self.objects.shared.srqs.get(srq).map_or(0, |srq| srq.completions());
        (requests, if shared { 0 } else { whole })
    }

    /// Counts a new EP in at what it refers to.
    pub(crate) fn attach(&mut self, handle: EpHandle) {
        self.count_watermarks(handle, true);
        let Ok(ep) = self.objects.eps.get(handle) else { return };
        let (requests, receives) = self.places_needed(Some(handle), ep.srq, &ep.streams(), &ep.attributes);
        let streams = [
            (ep.recv_evd, receives, Some(notification(ep.attributes.recv_completion_flags))),
            (ep.request_evd, requests, Some(request_notification(&ep.attributes))),
            (ep.connect_evd, 0, None),
        ];
        for (evd, reserved, notification) in streams {
            if let Some(Ok(evd)) = evd.map(|evd| self.objects.evds.get_mut(evd)) {
                evd.users += 1;
                evd.reserved += reserved;
                if let Some(notification) = notification {
                    evd.notification = notification;
                    evd.dto_streams += 1;
                }
            }
        }
        if let Some(Ok(pz)) = ep.pz.map(|pz| self.objects.pzs.get_mut(pz)) {
            pz.users += 1;
        }
        if let Some(Ok(srq)) = ep.srq.map(|srq| self.objects.shared.srqs.get_mut(srq)) {
            srq.users += 1;
        }
    }

    /// Counts an EP out.
    pub(crate) fn detach(&mut self, handle: EpHandle) {
        self.count_watermarks(handle, false);
        let Ok(ep) = self.objects.eps.get(handle) else { return };
        let (requests, receives) = self.places_needed(Some(handle), ep.srq, &ep.streams(), &ep.attributes);
        let streams =
            [(ep.recv_evd, receives, true), (ep.request_evd, requests, true), (ep.connect_evd, 0, false)];
        for (evd, reserved, dto) in streams {
            if let Some(Ok(evd)) = evd.map(|evd| self.objects.evds.get_mut(evd)) {
                evd.users = evd.users.saturating_sub(1);
                evd.reserved = evd.reserved.saturating_sub(reserved);
                evd.dto_streams = evd.dto_streams.saturating_sub(u32::from(dto));
                if evd.dto_streams == 0 {
                    evd.notification = Notification::Threshold;
                }
            }
        }
        if let Some(Ok(pz)) = ep.pz.map(|pz| self.objects.pzs.get_mut(pz)) {
            pz.users = pz.users.saturating_sub(1);
        }
        if let Some(Ok(srq)) = ep.srq.map(|srq| self.objects.shared.srqs.get_mut(srq)) {
            srq.users = srq.users.saturating_sub(1);
        }
    }
}

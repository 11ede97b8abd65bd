//! Endpoints: create, query, reset, disconnect, free. DAT 1.2, endpoint management.

use driver_mlx::{Pd, Platform, Psn, QpNumber};

use crate::adapter::Adapter;
use crate::base::attr::{EpAttributes, EpParameters, EpStatus, MAX_PRIVATE_DATA_ANY};
use crate::base::handle::{EpHandle, EvdHandle, IaHandle, PzHandle};
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::states::{Effect, EpCall, EpEvent};
use crate::base::types::{CloseFlags, EpState, EvdFlags, WATERMARK_INFINITE};
use crate::conn::attempt::Attempt;
use crate::ep::endpoint::{Ep, max_write, reclaim_every};
use crate::ep::plan::Plan;
use crate::ep::streams::Streams;
use crate::ep::watermark::Watermarks;
use crate::ep::work::Work;
use crate::evd::dispatcher::{MAX_QLEN, check_stream};

impl<'s, P: Platform> Adapter<'s, P> {
    /// `dat_ep_create`. Without attributes: [`EpAttributes::DEFAULT`], with a count of 0 where there is no EVD.
    ///
    /// The EVDs' CQs keep room for everything that the EP may have outstanding.
    ///
    /// # Errors
    /// INVALID_HANDLE (IA, PZ, EVDs that lack the stream's flag); INVALID_PARAMETER for attributes above the limits or in
    /// conflict with other EPs on the EVD; INSUFFICIENT_RESOURCES.
    pub fn ep_create(
        &mut self,
        ia: IaHandle,
        pz: Option<PzHandle>,
        recv_evd: Option<EvdHandle>,
        request_evd: Option<EvdHandle>,
        connect_evd: Option<EvdHandle>,
        attributes: Option<&EpAttributes>,
    ) -> DatResult<EpHandle> {
        const BAD: DatReturn = DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg6);
        self.objects.ias.get(ia)?;
        let pd = match pz {
            Some(pz) => self.zone(pz, ia)?,
            None => Pd::default(),
        };
        let streams = Streams { recv: recv_evd, request: request_evd, connect: connect_evd };
        self.check_streams(ia, &streams)?;
        let attributes = self.check_attributes(&streams, attributes, false, BAD)?;
        self.check_notification(&streams, &attributes, BAD)?;
        let plan = Plan { pd, streams, srq: None, attributes };
        self.create_ep(ia, pz, &plan, EpState::Unconnected)
    }

    /// Whether the EVDs live and take the streams.
    pub(crate) fn check_streams(&self, ia: IaHandle, streams: &Streams) -> DatResult<()> {
        check_stream(
            &self.objects.evds,
            Some(ia),
            streams.recv,
            EvdFlags::DTO,
            Subtype::InvalidHandleEvdRecv,
        )?;
        check_stream(
            &self.objects.evds,
            Some(ia),
            streams.request,
            EvdFlags::DTO,
            Subtype::InvalidHandleEvdRequest,
        )?;
        check_stream(
            &self.objects.evds,
            Some(ia),
            streams.connect,
            EvdFlags::CONNECTION,
            Subtype::InvalidHandleEvdConn,
        )
    }

    /// The EP of a request, made by the provider: the consumer gives it zone and EVDs by `ep_modify` before it accepts.
    pub(crate) fn make_tentative_ep(&mut self, ia: IaHandle, reads: (u8, u8)) -> DatResult<EpHandle> {
        let caps = self.device.hca.caps();
        let most = |log: u8| 1u32 << log.min(7);
        let default = EpAttributes::DEFAULT;
        let attributes = EpAttributes {
            max_rdma_read_in: u32::from(reads.0).min(most(caps.log_max_ra_res_qp)),
            max_rdma_read_out: u32::from(reads.1).min(most(caps.log_max_ra_req_qp)),
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
        self.usable()?;
        if self.objects.eps.len() >= self.objects.eps.capacity() {
            return Err(FULL);
        }
        let attributes = plan.attributes;
        let (requests, receives) = self.places_needed(None, plan.srq, &plan.streams, &attributes);
        self.make_room(&plan.streams, requests, receives)?;
        let (most_requests, most_receives) = plan.counts();
        let (max_message, max_rdma) = self.longest(&attributes);
        let ep = Ep {
            handle: EpHandle::from_bits(0),
            ia,
            pz,
            pd: plan.pd,
            recv_evd: plan.streams.recv,
            request_evd: plan.streams.request,
            connect_evd: plan.streams.connect,
            srq: plan.srq,
            watermarks: Watermarks {
                soft: if plan.srq.is_some() { attributes.srq_soft_hw } else { WATERMARK_INFINITE },
                hard: WATERMARK_INFINITE,
            },
            state,
            qp: None,
            qpn: QpNumber::default(),
            requests: Work::new(most_requests),
            receives: Work::new(most_receives),
            suppressed: 0,
            reclaim_every: reclaim_every(&attributes),
            max_message,
            max_rdma,
            max_write: max_write(&attributes, max_rdma),
            attributes,
            psn: Psn::new(0),
            attempt: Attempt::None,
            closing: None,
            marker: None,
            last_receive: false,
            local_port: 0,
            remote_address: self.unspecified(),
            remote_port: 0,
            private_data: [0; MAX_PRIVATE_DATA_ANY],
            private_data_size: 0,
        };
        let handle = self.objects.eps.insert(ep).map_err(|_| FULL)?;
        self.objects.eps.get_mut(handle)?.handle = handle;
        if let Err(error) = self.make_qp(handle) {
            // It was inserted just now.
            let _ = self.objects.eps.remove(handle);
            return Err(error);
        }
        self.attach(handle);
        Ok(handle)
    }

    /// Bytes of the longest message and of the longest RDMA transfer.
    pub(crate) fn longest(&self, attributes: &EpAttributes) -> (u64, u64) {
        let longest = 1u64 << self.device.hca.caps().log_max_msg.clamp(12, 31);
        let limit = |asked: u64| if asked == 0 { longest } else { asked.min(longest) };
        (limit(attributes.max_message_size), limit(attributes.max_rdma_size))
    }

    /// Makes sure that the CQs of the EVDs hold what another EP may cause.
    pub(crate) fn make_room(&mut self, streams: &Streams, requests: u32, receives: u32) -> DatResult<()> {
        if self.can_reserve(streams, requests, receives) {
            return Ok(());
        }
        let both = streams.recv == streams.request;
        for (evd, more) in [
            (streams.recv, if both { receives + requests } else { receives }),
            (streams.request, if both { 0 } else { requests }),
        ] {
            if let Some(evd) = evd {
                let state = self.objects.evds.get(evd)?;
                if state.unreserved() >= more {
                    continue;
                }
                let entries = state.reserved + more;
                if entries > MAX_QLEN {
                    return Err(DatReturn::error(ReturnType::InsufficientResources, Subtype::ResourceTevd));
                }
                // Twice as long, so that a row of EPs does not resize for each.
                let ample = entries.saturating_mul(2).min(MAX_QLEN);
                if self.resize_cq(evd, ample).is_err() {
                    self.resize_cq(evd, entries)?;
                }
            }
        }
        Ok(())
    }

    /// Moves an EP by an event that ends nothing.
    pub(crate) fn move_ep(&mut self, ep: EpHandle, event: EpEvent) {
        if let Ok(ep) = self.objects.eps.get_mut(ep)
            && let Some(transition) = event.in_state(ep.state)
            && transition.event.is_none()
        {
            ep.state = transition.to;
        }
    }

    /// `dat_ep_query`.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn ep_query(&self, ep: EpHandle) -> DatResult<EpParameters> {
        let ep = self.objects.eps.get(ep)?;
        Ok(EpParameters {
            ia: ep.ia,
            state: ep.state,
            local_address: self.device.address,
            local_port: ep.local_port,
            remote_address: ep.remote_address,
            remote_port: ep.remote_port,
            pz: ep.pz,
            recv_evd: ep.recv_evd,
            request_evd: ep.request_evd,
            connect_evd: ep.connect_evd,
            srq: ep.srq,
            attributes: ep.attributes,
            remote_gid: ep
                .attempt
                .conn()
                .and_then(|conn| self.device.port.cm_ref().info(conn))
                .map(|info| info.path.dgid().0),
            ending: ep.closing.map(|closing| closing.event),
        })
    }

    /// `dat_ep_get_status`.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn ep_get_status(&self, ep: EpHandle) -> DatResult<EpStatus> {
        let ep = self.objects.eps.get(ep)?;
        Ok(EpStatus {
            state: ep.state,
            recv_idle: self.buffers_held(ep) == 0,
            request_idle: ep.requests.outstanding() == 0,
        })
    }

    /// Private data of the peer's accept (after ESTABLISHED, active side) or reject (extension, after PEER_REJECTED); empty if
    /// there is none. It lives until the EP is freed or reset.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn ep_private_data(&self, ep: EpHandle) -> DatResult<&[u8]> {
        let ep = self.objects.eps.get(ep)?;
        Ok(ep.private_data.get(..usize::from(ep.private_data_size)).unwrap_or_default())
    }

    /// `dat_ep_reset`: a fresh, unconnected EP; never blocks, as the QP is a new one. Completions not taken are lost.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_STATE unless disconnected or unconnected; INSUFFICIENT_RESOURCES.
    pub fn ep_reset(&mut self, ep: EpHandle) -> DatResult<()> {
        if EpCall::Reset.in_state(self.objects.eps.get(ep)?.state)? == Effect::Nothing {
            return Ok(());
        }
        self.usable()?;
        // The new QP first: without it nothing changes.
        let fresh = match self.plan(ep)? {
            Some(plan) => Some(self.build_qp(&plan, ep.handle().slot())?),
            None => None,
        };
        self.end_closing(ep);
        // What the device says to the old one's end changes nothing for the consumer.
        let _ = self.destroy_ep_qp(ep);
        self.install_qp(ep, fresh)?;
        let unspecified = self.unspecified();
        self.move_ep(ep, EpEvent::Reset);
        let ep = self.objects.eps.get_mut(ep)?;
        ep.attempt = Attempt::None;
        ep.private_data_size = 0;
        ep.remote_address = unspecified;
        (ep.remote_port, ep.local_port) = (0, 0);
        Ok(())
    }

    /// `dat_ep_free`. A connection or its set-up is aborted; completions and events of the EP vanish.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_STATE while a service point or request holds it.
    pub fn ep_free(&mut self, ep: EpHandle) -> DatResult<()> {
        EpCall::Free.in_state(self.objects.eps.get(ep)?.state)?;
        self.remove_ep(ep)
    }

    /// Removes an EP whatever its state.
    pub(crate) fn remove_ep(&mut self, ep: EpHandle) -> DatResult<()> {
        self.leave_awaiting(ep);
        self.abandon_attempt(ep);
        let closing = self.objects.eps.get_mut(ep)?.closing.take();
        if closing.is_some() {
            self.progress.closing = self.progress.closing.saturating_sub(1);
        }
        self.forget_events(ep);
        let destroyed = self.destroy_ep_qp(ep);
        self.detach(ep);
        let removed = self.objects.eps.remove(ep).map(drop);
        destroyed.and(removed)
    }

    /// Drops queued connection events of an EP, so that no event carries a dead handle.
    fn forget_events(&mut self, handle: EpHandle) {
        let Ok(ep) = self.objects.eps.get(handle) else { return };
        let Some(Ok(evd)) = ep.connect_evd.map(|evd| self.objects.evds.get_mut(evd)) else { return };
        self.objects.events.retain(
            &mut evd.queue,
            |data| !matches!(data, crate::base::event::EventData::Connection { ep, .. } if *ep == handle),
        );
    }

    /// `dat_ep_disconnect`. Abrupt: everything outstanding is flushed, then DISCONNECTED. Graceful: outstanding requests
    /// finish first. A pending set-up is aborted with one DISCONNECTED event.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_STATE unless connected, connecting, disconnecting or (no-op) disconnected.
    pub fn ep_disconnect(&mut self, ep: EpHandle, flags: CloseFlags) -> DatResult<()> {
        let state = self.objects.eps.get(ep)?;
        if EpCall::Disconnect.in_state(state.state)? == Effect::Nothing {
            return Ok(());
        }
        match state.state {
            EpState::DisconnectPending if state.closing.is_some_and(|closing| !closing.is_alive()) => Ok(()),
            EpState::DisconnectPending if flags == CloseFlags::Graceful => Ok(()),
            EpState::Connected if flags == CloseFlags::Graceful => self.begin_graceful(ep),
            _ => self.disconnect_now(ep),
        }
    }
}

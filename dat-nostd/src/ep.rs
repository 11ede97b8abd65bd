//! Endpoints: life, attributes, work queues. DAT 1.2, endpoint management.

use driver_mlx::{Bar, Completion, CompletionKind, Pd, Platform, Qp, QpNumber};

use crate::adapter::Adapter;
use crate::attr::{EpAttributes, EpParameters, EpStatus, MAX_PRIVATE_DATA_ANY};
use crate::close::Closing;
use crate::completion::{Meaning, Reaction};
use crate::connect::Attempt;
use crate::ep_attr::Streams;
use crate::ep_qp::Plan;
use crate::evd::{MAX_QLEN, check_stream};
use crate::handle::{EpHandle, EvdHandle, IaHandle, PzHandle, SrqHandle};
use crate::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::states::{Effect, EpCall, EpEvent};
use crate::types::{CloseFlags, EpState, EvdFlags, IaAddress, WATERMARK_INFINITE};
use crate::watermark::Watermarks;
use crate::work::{Note, Work};

/// Segments that any post may have.
pub(crate) const MAX_IOV: usize = 16;
/// Outstanding operations of an EP in one direction.
pub(crate) const MAX_DTOS: u32 = 1 << 13;
/// Suppressed requests in a row before one asks for a completion all the same, so that their slots come back.
const MAX_SUPPRESSED: u32 = 64;

/// An endpoint.
#[derive(Debug)]
pub struct Ep<B: Bar> {
    /// Its own.
    pub(crate) handle: EpHandle,
    pub(crate) ia: IaHandle,
    pub(crate) pz: Option<PzHandle>,
    pub(crate) pd: Pd,
    pub(crate) recv_evd: Option<EvdHandle>,
    pub(crate) request_evd: Option<EvdHandle>,
    pub(crate) connect_evd: Option<EvdHandle>,
    pub(crate) srq: Option<SrqHandle>,
    pub(crate) watermarks: Watermarks,
    pub(crate) attributes: EpAttributes,
    pub(crate) state: EpState,
    pub(crate) qp: Option<Qp<B>>,
    pub(crate) qpn: QpNumber,
    pub(crate) requests: Work,
    pub(crate) receives: Work,
    /// Requests since the last that asks for a completion.
    pub(crate) suppressed: u32,
    /// How many of them at most.
    pub(crate) reclaim_every: u32,
    /// Bytes of the longest send and of the longest RDMA transfer.
    pub(crate) max_message: u64,
    pub(crate) max_rdma: u64,
    /// Bytes of the longest RDMA write of one segment: none if a write may have no segment.
    pub(crate) max_write: u64,
    /// Starting PSN of this side, new for every attempt.
    pub(crate) psn: u32,
    pub(crate) attempt: Attempt,
    pub(crate) closing: Option<Closing>,
    /// Our own last request, whose completion says that all before it are done.
    pub(crate) marker: Option<u32>,
    /// On an SRQ: the device has said that no more of its buffers will complete here.
    pub(crate) last_receive: bool,
    pub(crate) local_port: u64,
    pub(crate) remote_address: IaAddress,
    pub(crate) remote_port: u64,
    pub(crate) private_data: [u8; MAX_PRIVATE_DATA_ANY],
    pub(crate) private_data_size: u8,
}

/// Requests in a row that may go without a completion.
pub(crate) fn reclaim_every(attributes: &EpAttributes) -> u32 {
    (attributes.max_request_dtos / 2).clamp(1, MAX_SUPPRESSED)
}

/// Bytes of the longest RDMA write of one segment.
pub(crate) fn max_write(attributes: &EpAttributes, max_rdma: u64) -> u64 {
    if attributes.max_rdma_write_iov > 0 { max_rdma } else { 0 }
}

impl<B: Bar> Ep<B> {
    /// The EVDs of its streams.
    pub(crate) fn streams(&self) -> Streams {
        Streams { recv: self.recv_evd, request: self.request_evd, connect: self.connect_evd }
    }

    /// Whether a completion is of this EP's present QP.
    #[inline(always)]
    pub(crate) fn owns(&self, completion: &Completion) -> bool {
        self.qpn == completion.qpn()
    }

    /// What a completion means to the connection.
    #[inline(always)]
    pub(crate) fn reaction(&self, completion: &Completion) -> Reaction {
        let success = !matches!(completion.kind(), CompletionKind::SendError | CompletionKind::ReceiveError);
        if success && self.state == EpState::Connected {
            Reaction::None
        } else {
            self.reaction_slow(success, completion)
        }
    }

    #[cold]
    fn reaction_slow(&self, success: bool, completion: &Completion) -> Reaction {
        match self.state {
            EpState::CompletionPending if success && !completion.is_send() => Reaction::Establish,
            EpState::CompletionPending | EpState::Connected if !success => Reaction::Fail,
            EpState::DisconnectPending
                if !success && self.closing.is_none_or(|closing| closing.is_alive()) =>
            {
                Reaction::Fail
            }
            _ => Reaction::None,
        }
    }

    /// What the operation that a completion, still in its queue, reports was posted with.
    pub(crate) fn marks_of(&self, completion: &Completion) -> Option<Note> {
        self.qp.as_ref()?.kept(completion).map(|kept| Note(kept.note))
    }

    /// What a completion, still in its queue, will give the consumer.
    pub(crate) fn meaning(&self, completion: &Completion) -> Meaning {
        if !completion.is_send() {
            // Receives of an SRQ carry no flags.
            let marks = if self.srq.is_some() { None } else { self.marks_of(completion) };
            let unsignalled = marks.is_some_and(Note::is_unsignalled) && completion.error().is_none();
            return Meaning::Deliver { unsignalled };
        }
        let Some(note) = self.marks_of(completion) else { return Meaning::Nothing };
        let success = completion.kind() == CompletionKind::Send;
        if note.is_marker() || success && note.is_silent() {
            return Meaning::Nothing;
        }
        Meaning::Deliver { unsignalled: success && note.is_unsignalled() }
    }

    /// The consumer's cookie of the oldest operation that a dead device will never finish; with its place among binds if it is
    /// one.
    pub(crate) fn take_unfinished(&mut self, receive: bool) -> Option<(u64, Option<u16>)> {
        let qp = self.qp.as_mut()?;
        let work = if receive { &mut self.receives } else { &mut self.requests };
        loop {
            let kept = if receive { qp.take_recv() } else { qp.take_send() }?;
            work.retired(1);
            let note = Note(kept.note);
            if receive || !note.is_marker() {
                return Some((kept.cookie, note.is_bind().then_some(note.place())));
            }
        }
    }
}

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
        self.ias.get(ia)?;
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
        check_stream(&self.evds, Some(ia), streams.recv, EvdFlags::DTO, Subtype::InvalidHandleEvdRecv)?;
        check_stream(&self.evds, Some(ia), streams.request, EvdFlags::DTO, Subtype::InvalidHandleEvdRequest)?;
        check_stream(
            &self.evds,
            Some(ia),
            streams.connect,
            EvdFlags::CONNECTION,
            Subtype::InvalidHandleEvdConn,
        )
    }

    /// The EP of a request, made by the provider: the consumer gives it zone and EVDs by `ep_modify` before it accepts.
    pub(crate) fn make_tentative_ep(&mut self, ia: IaHandle, reads: (u8, u8)) -> DatResult<EpHandle> {
        let caps = self.hca.caps();
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
        if self.eps.len() >= self.eps.capacity() {
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
            psn: 0,
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
        let handle = self.eps.insert(ep).map_err(|_| FULL)?;
        self.eps.get_mut(handle)?.handle = handle;
        if let Err(error) = self.make_qp(handle) {
            // It was inserted just now.
            let _ = self.eps.remove(handle);
            return Err(error);
        }
        self.attach(handle);
        Ok(handle)
    }

    /// Bytes of the longest message and of the longest RDMA transfer.
    pub(crate) fn longest(&self, attributes: &EpAttributes) -> (u64, u64) {
        let longest = 1u64 << self.hca.caps().log_max_msg.clamp(12, 31);
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
                let state = self.evds.get(evd)?;
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
        if let Ok(ep) = self.eps.get_mut(ep)
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
        let ep = self.eps.get(ep)?;
        Ok(EpParameters {
            ia: ep.ia,
            state: ep.state,
            local_address: self.address,
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
                .and_then(|conn| self.port.cm_ref().info(conn))
                .map(|info| info.path.dgid.0),
            ending: ep.closing.map(|closing| closing.event),
        })
    }

    /// `dat_ep_get_status`.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn ep_get_status(&self, ep: EpHandle) -> DatResult<EpStatus> {
        let ep = self.eps.get(ep)?;
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
        let ep = self.eps.get(ep)?;
        Ok(ep.private_data.get(..usize::from(ep.private_data_size)).unwrap_or_default())
    }

    /// `dat_ep_reset`: a fresh, unconnected EP; never blocks, as the QP is a new one. Completions not taken are lost.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_STATE unless disconnected or unconnected; INSUFFICIENT_RESOURCES.
    pub fn ep_reset(&mut self, ep: EpHandle) -> DatResult<()> {
        if EpCall::Reset.in_state(self.eps.get(ep)?.state)? == Effect::Nothing {
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
        let ep = self.eps.get_mut(ep)?;
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
        EpCall::Free.in_state(self.eps.get(ep)?.state)?;
        self.remove_ep(ep)
    }

    /// Removes an EP whatever its state.
    pub(crate) fn remove_ep(&mut self, ep: EpHandle) -> DatResult<()> {
        self.leave_awaiting(ep);
        self.abandon_attempt(ep);
        let closing = self.eps.get_mut(ep)?.closing.take();
        if closing.is_some() {
            self.closing = self.closing.saturating_sub(1);
        }
        self.forget_events(ep);
        let destroyed = self.destroy_ep_qp(ep);
        self.detach(ep);
        let removed = self.eps.remove(ep).map(drop);
        destroyed.and(removed)
    }

    /// Drops queued connection events of an EP, so that no event carries a dead handle.
    fn forget_events(&mut self, handle: EpHandle) {
        let Ok(ep) = self.eps.get(handle) else { return };
        let Some(Ok(evd)) = ep.connect_evd.map(|evd| self.evds.get_mut(evd)) else { return };
        self.events.retain(
            &mut evd.queue,
            |data| !matches!(data, crate::event::EventData::Connection { ep, .. } if *ep == handle),
        );
    }

    /// `dat_ep_disconnect`. Abrupt: everything outstanding is flushed, then DISCONNECTED. Graceful: outstanding requests
    /// finish first. A pending set-up is aborted with one DISCONNECTED event.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_STATE unless connected, connecting, disconnecting or (no-op) disconnected.
    pub fn ep_disconnect(&mut self, ep: EpHandle, flags: CloseFlags) -> DatResult<()> {
        let state = self.eps.get(ep)?;
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

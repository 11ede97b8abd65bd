//! Endpoints: life, attributes, work queues. DAT 1.2, endpoint management.

use driver_mlx::{
    Access, Bar, Completion, CompletionKind, DmaSlice, InitParams, Pd, Platform, Qp, QpConfig, QpNumber,
};

use crate::adapter::Adapter;
use crate::attr::{EpAttributes, EpParameters, EpStatus, MAX_PRIVATE_DATA_ANY};
use crate::close::Closing;
use crate::completion::{Meaning, Reaction};
use crate::connect::Attempt;
use crate::evd::{Notification, check_stream};
use crate::handle::{EpHandle, EvdHandle, IaHandle, PzHandle, Typed};
use crate::memory::creation_error;
use crate::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::states::{Effect, Operation};
use crate::types::{CloseFlags, CompletionFlags, EpState, EvdFlags, IaAddress, Qos};
use crate::work::{Cookie, Work};

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
    pub(crate) attributes: EpAttributes,
    pub(crate) state: EpState,
    pub(crate) qp: Option<Qp<B>>,
    pub(crate) qpn: QpNumber,
    pub(crate) cookies: Option<DmaSlice>,
    pub(crate) requests: Work,
    pub(crate) receives: Work,
    /// Requests since the last that asks for a completion.
    pub(crate) suppressed: u32,
    /// How many of them at most.
    pub(crate) reclaim_every: u32,
    /// Bytes of the longest send and of the longest RDMA transfer.
    pub(crate) max_message: u64,
    pub(crate) max_rdma: u64,
    /// Starting PSN of this side, new for every attempt.
    pub(crate) psn: u32,
    pub(crate) attempt: Attempt,
    pub(crate) closing: Option<Closing>,
    /// Our own last request, whose completion says that all before it are done.
    pub(crate) marker: Option<u32>,
    pub(crate) local_port: u64,
    pub(crate) remote_address: IaAddress,
    pub(crate) remote_port: u64,
    pub(crate) private_data: [u8; MAX_PRIVATE_DATA_ANY],
    pub(crate) private_data_size: u8,
}

impl<B: Bar> Ep<B> {
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
            EpState::DisconnectPending if !success && self.closing.is_none_or(|closing| closing.draining) => {
                Reaction::Fail
            }
            _ => Reaction::None,
        }
    }

    /// Number and marks of the request that a send completion, still in its queue, reports.
    pub(crate) fn find_request(&self, completion: &Completion) -> Option<(u32, Cookie)> {
        self.requests.find(self.cookies.as_ref()?, completion.wqe_counter())
    }

    /// What a completion, still in its queue, will give the consumer.
    pub(crate) fn meaning(&self, completion: &Completion) -> Meaning {
        if !completion.is_send() {
            let marks = self
                .cookies
                .and_then(|cookies| self.receives.receive_marks(&cookies, completion.wqe_counter()));
            let unsignalled = marks.is_some_and(Cookie::is_unsignalled) && completion.error().is_none();
            return Meaning::Deliver { unsignalled };
        }
        let Some((_, cookie)) = self.find_request(completion) else { return Meaning::Nothing };
        let success = completion.kind() == CompletionKind::Send;
        if cookie.is_marker() || success && cookie.is_silent() {
            return Meaning::Nothing;
        }
        Meaning::Deliver { unsignalled: success && cookie.is_unsignalled() }
    }

    /// The consumer's cookie of the oldest operation that a dead device will never finish.
    pub(crate) fn take_unfinished(&mut self, receive: bool) -> Option<u64> {
        let marker = self.marker;
        let work = if receive { &mut self.receives } else { &mut self.requests };
        while work.outstanding() > 0 {
            let index = work.tail;
            work.tail = work.tail.wrapping_add(1);
            if receive || marker != Some(index) {
                let cookies = self.cookies?;
                return Some(work.user_cookie(&cookies, index));
            }
        }
        None
    }
}

/// How completions of a stream notify, by the EP's attribute.
fn notification(flags: CompletionFlags) -> Notification {
    if flags.contains(CompletionFlags::SOLICITED_WAIT) {
        Notification::Solicited
    } else if flags.contains(CompletionFlags::UNSIGNALLED) {
        Notification::Unsignalled
    } else {
        Notification::Threshold
    }
}

/// The same for requests, where SOLICITED_WAIT is about the peer.
fn request_notification(attributes: &EpAttributes) -> Notification {
    notification(attributes.request_completion_flags & !CompletionFlags::SOLICITED_WAIT)
}

fn bad_attributes() -> DatReturn {
    DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg6)
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
        self.ias.get(ia)?;
        let pd = match pz {
            Some(pz) => Some(self.pzs.get(pz)?.pd),
            None => None,
        };
        check_stream(&self.evds, recv_evd, EvdFlags::DTO, Subtype::InvalidHandleEvdRecv)?;
        check_stream(&self.evds, request_evd, EvdFlags::DTO, Subtype::InvalidHandleEvdRequest)?;
        check_stream(&self.evds, connect_evd, EvdFlags::CONNECTION, Subtype::InvalidHandleEvdConn)?;
        let attributes = self.check_attributes(recv_evd, request_evd, attributes)?;
        self.check_notification(recv_evd, request_evd, &attributes)?;
        self.usable()?;
        const FULL: DatReturn = DatReturn::error(ReturnType::InsufficientResources, Subtype::ResourceTep);
        if self.eps.len() >= self.eps.capacity() {
            return Err(FULL);
        }
        let (requests, receives) = reservations(&attributes);
        if !self.can_reserve(recv_evd, receives, request_evd, requests) {
            return Err(DatReturn::error(ReturnType::InsufficientResources, Subtype::ResourceTevd));
        }
        let longest = 1u64 << self.hca.caps().log_max_msg.clamp(12, 31);
        let limit = |asked: u64| if asked == 0 { longest } else { asked.min(longest) };
        let request_work = Work::new(attributes.max_request_dtos, 0);
        let receive_work = Work::new(attributes.max_recv_dtos, request_work.bytes());
        let cookie_bytes = request_work.bytes() + receive_work.bytes();
        let cookies = match cookie_bytes {
            0 => None,
            bytes => Some(
                self.hca.alloc(bytes, 64).map_err(|error| creation_error(error, Subtype::ResourceMemory))?,
            ),
        };
        let ep = Ep {
            handle: EpHandle::from_bits(0),
            ia,
            pz,
            pd: pd.unwrap_or_default(),
            recv_evd,
            request_evd,
            connect_evd,
            state: EpState::Unconnected,
            qp: None,
            qpn: QpNumber::default(),
            cookies,
            requests: request_work,
            receives: receive_work,
            suppressed: 0,
            reclaim_every: (attributes.max_request_dtos / 2).clamp(1, MAX_SUPPRESSED),
            max_message: limit(attributes.max_message_size),
            max_rdma: limit(attributes.max_rdma_size),
            attributes,
            psn: 0,
            attempt: Attempt::None,
            closing: None,
            marker: None,
            local_port: 0,
            remote_address: self.unspecified(),
            remote_port: 0,
            private_data: [0; MAX_PRIVATE_DATA_ANY],
            private_data_size: 0,
        };
        let handle = self.eps.insert(ep).map_err(|_| FULL)?;
        self.eps.get_mut(handle)?.handle = handle;
        if pd.is_some()
            && let Err(error) = self.make_qp(handle)
        {
            self.discard_ep(handle);
            return Err(error);
        }
        self.attach(handle);
        Ok(handle)
    }

    /// Makes the QP of an EP that has a protection zone, ready for receives.
    fn make_qp(&mut self, handle: EpHandle) -> DatResult<()> {
        let ep = self.eps.get(handle)?;
        let cq_of = |evd: Option<EvdHandle>| {
            let evd = evd.and_then(|evd| self.evds.get(evd).ok());
            evd.and_then(|evd| evd.cq.as_ref()).map(|cq| cq.number())
        };
        let attributes = &ep.attributes;
        let none = self.null_cq.number();
        let (send_cq, recv_cq) = match (cq_of(ep.request_evd), cq_of(ep.recv_evd)) {
            (Some(send), Some(receive)) => (send, receive),
            (Some(send), None) => (send, send),
            (None, Some(receive)) => (receive, receive),
            (None, None) => (none, none),
        };
        let request_iov =
            attributes.max_request_iov.max(attributes.max_rdma_read_iov).max(attributes.max_rdma_write_iov);
        let config = QpConfig {
            send_cq,
            recv_cq,
            // One more for our marker.
            max_send_wr: match attributes.max_request_dtos {
                0 => 0,
                requests => requests + 1,
            },
            max_recv_wr: attributes.max_recv_dtos,
            max_send_sge: request_iov.max(1),
            max_recv_sge: attributes.max_recv_iov.max(1),
            user_index: u32::from(handle.any().slot()),
            ..QpConfig::rc(ep.pd, send_cq)
        };
        let failed = |error| creation_error(error, Subtype::ResourceTep);
        let mut qp = self.hca.create_qp(&config).map_err(failed)?;
        let params =
            InitParams { port: 1, pkey_index: 0, access: Access::REMOTE_READ | Access::REMOTE_WRITE };
        let psn = self.random.next_u32() & 0xff_ffff;
        if let Err(error) = self.hca.modify_to_init(&mut qp, &params) {
            let _ = self.hca.destroy_qp(qp);
            return Err(failed(error));
        }
        let ep = self.eps.get_mut(handle)?;
        ep.qpn = qp.number();
        ep.qp = Some(qp);
        ep.psn = psn;
        ep.suppressed = 0;
        ep.marker = None;
        (ep.requests.head, ep.requests.tail, ep.requests.block) = (0, 0, 0);
        (ep.receives.head, ep.receives.tail) = (0, 0);
        Ok(())
    }

    /// Counts a new EP in at what it refers to.
    fn attach(&mut self, handle: EpHandle) {
        let Ok(ep) = self.eps.get(handle) else { return };
        let (requests, receives) = reservations(&ep.attributes);
        let streams = [
            (ep.recv_evd, receives, Some(notification(ep.attributes.recv_completion_flags))),
            (ep.request_evd, requests, Some(request_notification(&ep.attributes))),
            (ep.connect_evd, 0, None),
        ];
        for (evd, reserved, notification) in streams {
            if let Some(Ok(evd)) = evd.map(|evd| self.evds.get_mut(evd)) {
                evd.users += 1;
                evd.reserved += reserved;
                if let Some(notification) = notification {
                    evd.notification = notification;
                    evd.dto_streams += 1;
                }
            }
        }
        if let Some(Ok(pz)) = ep.pz.map(|pz| self.pzs.get_mut(pz)) {
            pz.users += 1;
        }
    }

    /// Counts an EP out.
    fn detach(&mut self, handle: EpHandle) {
        let Ok(ep) = self.eps.get(handle) else { return };
        let (requests, receives) = reservations(&ep.attributes);
        let streams =
            [(ep.recv_evd, receives, true), (ep.request_evd, requests, true), (ep.connect_evd, 0, false)];
        for (evd, reserved, dto) in streams {
            if let Some(Ok(evd)) = evd.map(|evd| self.evds.get_mut(evd)) {
                evd.users = evd.users.saturating_sub(1);
                evd.reserved = evd.reserved.saturating_sub(reserved);
                evd.dto_streams = evd.dto_streams.saturating_sub(u32::from(dto));
                if evd.dto_streams == 0 {
                    evd.notification = Notification::Threshold;
                }
            }
        }
        if let Some(Ok(pz)) = ep.pz.map(|pz| self.pzs.get_mut(pz)) {
            pz.users = pz.users.saturating_sub(1);
        }
    }

    fn can_reserve(
        &self,
        recv_evd: Option<EvdHandle>,
        receives: u32,
        request_evd: Option<EvdHandle>,
        requests: u32,
    ) -> bool {
        let room = |evd: Option<EvdHandle>, count: u32| match evd.map(|evd| self.evds.get(evd)) {
            Some(Ok(evd)) => evd.unreserved() >= count,
            _ => count == 0,
        };
        if recv_evd == request_evd {
            room(recv_evd, receives + requests)
        } else {
            room(recv_evd, receives) && room(request_evd, requests)
        }
    }

    /// The attributes as they will be in force.
    fn check_attributes(
        &self,
        recv_evd: Option<EvdHandle>,
        request_evd: Option<EvdHandle>,
        given: Option<&EpAttributes>,
    ) -> DatResult<EpAttributes> {
        let Some(given) = given else {
            let mut attributes = EpAttributes::DEFAULT;
            if recv_evd.is_none() {
                attributes.max_recv_dtos = 0;
            }
            if request_evd.is_none() {
                attributes.max_request_dtos = 0;
            }
            attributes.max_rdma_read_iov = attributes.max_request_iov;
            attributes.max_rdma_write_iov = attributes.max_request_iov;
            return Ok(attributes);
        };
        let mut attributes = *given;
        for iov in [&mut attributes.max_rdma_read_iov, &mut attributes.max_rdma_write_iov] {
            if *iov == 0 {
                *iov = given.max_request_iov;
            }
        }
        let caps = self.hca.caps();
        let longest = 1u64 << caps.log_max_msg.clamp(12, 31);
        let iov = [
            attributes.max_recv_iov,
            attributes.max_request_iov,
            attributes.max_rdma_read_iov,
            attributes.max_rdma_write_iov,
        ];
        // What the standard promises to every adapter with 2^31 is accepted and cut to what the device has.
        let too_long = |size: u64| size > longest.max(1 << 31);
        let recv_flags = [
            CompletionFlags::empty(),
            CompletionFlags::EVD_THRESHOLD,
            CompletionFlags::UNSIGNALLED,
            CompletionFlags::SOLICITED_WAIT,
        ];
        let request_flags = CompletionFlags::EVD_THRESHOLD
            | CompletionFlags::UNSIGNALLED
            | CompletionFlags::SUPPRESS
            | CompletionFlags::SOLICITED_WAIT
            | CompletionFlags::BARRIER_FENCE;
        let reads = 1u32 << caps.log_max_ra_res_qp.min(7);
        let reads_out = 1u32 << caps.log_max_ra_req_qp.min(7);
        let wrong = given.qos != Qos::BestEffort
            || (attributes.max_recv_dtos == 0) != recv_evd.is_none()
            || (attributes.max_request_dtos == 0) != request_evd.is_none()
            || attributes.max_recv_dtos > self.max_dtos()
            || attributes.max_request_dtos > self.max_dtos()
            || iov.iter().any(|&iov| iov > MAX_IOV as u32)
            || too_long(attributes.max_message_size)
            || too_long(attributes.max_rdma_size)
            || !recv_flags.contains(&attributes.recv_completion_flags)
            || !request_flags.contains(attributes.request_completion_flags)
            || attributes.max_rdma_read_in > reads
            || attributes.max_rdma_read_out > reads_out
            || attributes.retry_count > 7
            || attributes.rnr_retry > 7
            || attributes.rnr_timer > 31
            || attributes.sl.is_some_and(|sl| sl > 15);
        if wrong { Err(bad_attributes()) } else { Ok(attributes) }
    }

    /// Operations that an EP may have outstanding in one direction.
    pub(crate) fn max_dtos(&self) -> u32 {
        (1u32 << self.hca.caps().log_max_qp_sz.min(15)).min(MAX_DTOS)
    }

    /// The rules for EPs that share an EVD (DAT 1.2, completion flags): one mode for all streams, and only the threshold mode
    /// on an EVD with other streams.
    fn check_notification(
        &self,
        recv_evd: Option<EvdHandle>,
        request_evd: Option<EvdHandle>,
        attributes: &EpAttributes,
    ) -> DatResult<()> {
        let recv = notification(attributes.recv_completion_flags);
        let request = request_notification(attributes);
        if recv_evd.is_some() && recv_evd == request_evd && recv != request {
            return Err(bad_attributes());
        }
        for (evd, mode) in [(recv_evd, recv), (request_evd, request)] {
            let Some(Ok(evd)) = evd.map(|evd| self.evds.get(evd)) else { continue };
            let mixed = evd.flags != EvdFlags::DTO && mode != Notification::Threshold;
            if mixed || evd.dto_streams > 0 && evd.notification != mode {
                return Err(bad_attributes());
            }
        }
        Ok(())
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
            attributes: ep.attributes,
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
            recv_idle: ep.receives.outstanding() == 0,
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
        if Operation::Reset.in_state(self.eps.get(ep)?.state)? == Effect::Nothing {
            return Ok(());
        }
        self.usable()?;
        self.end_closing(ep);
        self.destroy_ep_qp(ep)?;
        self.make_qp(ep)?;
        let unspecified = self.unspecified();
        let ep = self.eps.get_mut(ep)?;
        ep.state = EpState::Unconnected;
        ep.attempt = Attempt::None;
        ep.private_data_size = 0;
        ep.remote_address = unspecified;
        (ep.remote_port, ep.local_port) = (0, 0);
        Ok(())
    }

    /// Destroys the QP and forgets its completions.
    fn destroy_ep_qp(&mut self, handle: EpHandle) -> DatResult<()> {
        let ep = self.eps.get_mut(handle)?;
        let Some(qp) = ep.qp.take() else { return Ok(()) };
        let qpn = core::mem::take(&mut ep.qpn);
        let (recv_evd, request_evd) = (ep.recv_evd, ep.request_evd);
        let destroyed = if self.is_dead() { Ok(()) } else { self.hca.destroy_qp(qp) };
        self.sweep(request_evd, qpn);
        if recv_evd != request_evd {
            self.sweep(recv_evd, qpn);
        }
        destroyed.map_err(|_| DatReturn::new(ReturnType::InternalError))
    }

    /// `dat_ep_free`. A connection or its set-up is aborted; completions and events of the EP vanish.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_STATE while a service point or request holds it.
    pub fn ep_free(&mut self, ep: EpHandle) -> DatResult<()> {
        Operation::Free.in_state(self.eps.get(ep)?.state)?;
        self.leave_awaiting(ep);
        self.abandon_attempt(ep);
        let closing = self.eps.get_mut(ep)?.closing.take();
        if closing.is_some() {
            self.closing = self.closing.saturating_sub(1);
        }
        self.forget_events(ep);
        let destroyed = self.destroy_ep_qp(ep);
        self.detach(ep);
        self.discard_ep(ep);
        destroyed
    }

    /// Takes an EP without QP out of its table.
    fn discard_ep(&mut self, ep: EpHandle) {
        if let Ok(ep) = self.eps.remove(ep)
            && let Some(cookies) = ep.cookies
        {
            let _ = self.hca.free(cookies);
        }
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
        if Operation::Disconnect.in_state(state.state)? == Effect::Nothing {
            return Ok(());
        }
        match state.state {
            EpState::DisconnectPending if state.closing.is_some_and(|closing| !closing.draining) => Ok(()),
            EpState::DisconnectPending if flags == CloseFlags::Graceful => Ok(()),
            EpState::Connected if flags == CloseFlags::Graceful => self.begin_graceful(ep),
            _ => self.disconnect_now(ep),
        }
    }
}

/// Completions that an EP with these attributes may cause: requests with our marker, and receives.
fn reservations(attributes: &EpAttributes) -> (u32, u32) {
    let requests = match attributes.max_request_dtos {
        0 => 0,
        requests => requests + 1,
    };
    (requests, attributes.max_recv_dtos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_reserved() {
        let mut attributes = EpAttributes::DEFAULT;
        assert_eq!(reservations(&attributes), (17, 16));
        attributes.max_request_dtos = 0;
        assert_eq!(reservations(&attributes), (0, 16));
    }
}

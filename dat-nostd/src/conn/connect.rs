//! The active side of connections, and what both sides share. DAT 1.2, `dat_ep_connect`.

use crate::base::states::{ConnectionInput, EpCall, EpEvent, Stage};
use driver_mlx::{Bar, Duration, Instant, Mtu, Platform, Psn, RtrParams, RtsParams, ServiceLevel, Wake};
use ib_port::ib_mgmt::cm::{
    self, CmEvent, ConnId, ConnectParams, DisconnectCause, QpAttributes, RejClass, RejReason,
};
use ib_port::ib_mgmt::sa::{PathRecord, QueryError};
use ib_port::ib_mgmt::units::{exponent_for, exponent_time};
use ib_port::{AddressResolution, Port, Resolution};

use crate::adapter::Adapter;
use crate::base::attr::EpAttributes;
use crate::base::event::{ConnectionEvent, EventData};
use crate::base::handle::{EpHandle, Typed};
use crate::base::log::log;
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::types::{ConnectFlags, EpState, IaAddress, Qos, deadline_of};
use crate::conn::Connections;
use crate::conn::attempt::{Attempt, OWNER_PSP, Request};
use crate::conn::connection::Ends;

/// What a peer's connection manager and its owner are given for an answer; one that needs longer says so (MRA).
/// RDMA-CM's 4.3 s make one lost datagram cost that much.
const PROCESSING: Duration = Duration::from_secs(1);

/// RNR retry count without a limit.
pub(crate) const RNR_RETRY_UNLIMITED: u8 = 7;

/// Between two requests for a service that nobody listens on.
const PAUSE: Duration = Duration::from_millis(50);

/// Exponent of the time in which a CM message should be answered along a path: the way there and back, and the peer's own
/// time (IBA volume 1, section 12.7.4).
fn response_timeout(path: &PathRecord) -> u8 {
    exponent_for(PROCESSING + 2 * exponent_time(path.packet_life_time()))
}

/// RTR by the connection manager's attributes.
pub(crate) fn rtr_params<B: Bar>(
    port: &mut Port<'_, B>,
    now: Instant,
    attributes: &EpAttributes,
    from: &QpAttributes,
    rq_psn: Psn,
    responder_resources: u8,
) -> Option<RtrParams> {
    Some(RtrParams {
        path: port.driver_path(
            now,
            &from.path,
            attributes.sl.map(ServiceLevel::new),
            attributes.traffic_class,
        )?,
        mtu: Mtu::from_code(from.path.mtu())?,
        remote_qpn: from.remote_qpn,
        rq_psn,
        responder_resources,
        min_rnr_timer: attributes.rnr_timer,
    })
}

/// Returns the RTS parameters. The peer may request fewer retries than the EP's attributes allow,
/// never more.
pub(crate) fn rts_params(attributes: &EpAttributes, from: &QpAttributes) -> RtsParams {
    RtsParams {
        sq_psn: from.sq_psn,
        ack_timeout: from.ack_timeout,
        retry_count: from.retry_count.min(attributes.retry_count),
        rnr_retry: from.rnr_retry_count.min(attributes.rnr_retry),
        initiator_depth: from.initiator_depth,
    }
}

impl<'s, P: Platform> Adapter<'s, P> {
    /// `dat_ep_connect`. `timeout_us` above 0, [`TIMEOUT_INFINITE`](crate::TIMEOUT_INFINITE) for none. The outcome is one event on the connect EVD.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_STATE unless unconnected, or (EP_NOTREADY) without protection zone or connect EVD;
    /// INVALID_ADDRESS for an address that no host can have or of another family than this IA's; INVALID_PARAMETER
    /// (qualifier, time-out, private data); MODEL_NOT_SUPPORTED (quality of service, multipath).
    #[allow(clippy::too_many_arguments)]
    pub fn ep_connect(
        &mut self,
        handle: EpHandle,
        remote: &IaAddress,
        conn_qual: u64,
        timeout_us: u32,
        private_data: &[u8],
        qos: Qos,
        flags: ConnectFlags,
    ) -> DatResult<()> {
        self.connections().connect(handle, remote, conn_qual, timeout_us, private_data, qos, flags)
    }
}

impl<P: Platform> Connections<'_, '_, P> {
    #[allow(clippy::too_many_arguments)]
    fn connect(
        &mut self,
        handle: EpHandle,
        remote: &IaAddress,
        conn_qual: u64,
        timeout_us: u32,
        private_data: &[u8],
        qos: Qos,
        flags: ConnectFlags,
    ) -> DatResult<()> {
        let ep = self.objects.get(handle)?;
        EpCall::Connect.in_state(ep.state())?;
        if ep.qp().is_none() || ep.streams().connect.is_none() {
            return Err(DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStateEpNotready));
        }
        let framing = self.objects.framing(ep.ia())?;
        let bad = |argument| Err(DatReturn::error(ReturnType::InvalidParameter, argument));
        if remote.is_unspecified() || remote.is_multicast() {
            return Err(DatReturn::error(ReturnType::InvalidAddress, Subtype::InvalidAddressMalformed));
        }
        if remote.is_ipv4() != self.device.address().is_ipv4() {
            return Err(DatReturn::error(ReturnType::InvalidAddress, Subtype::InvalidAddressUnsupported));
        }
        let Some(service_id) = framing.service_id(conn_qual) else { return bad(Subtype::InvalidArg3) };
        if timeout_us == 0 {
            return bad(Subtype::InvalidArg4);
        }
        if private_data.len() > framing.max_private_data() {
            return bad(Subtype::InvalidArg5);
        }
        if qos != Qos::BestEffort || flags != ConnectFlags::Default {
            return Err(DatReturn::new(ReturnType::ModelNotSupported));
        }
        self.device.usable()?;
        let now = self.device.now();
        let deadline = deadline_of(now, timeout_us);
        let found = self.device.resolve_address(now, remote);
        let local_port = self.progress.pending_mut().next_local_port();
        self.objects.move_ep(handle, EpEvent::Connecting);
        let ep = self.objects.get_mut(handle)?;
        let connection = ep.connection_mut();
        connection.set_ends(Ends {
            local_port: u64::from(local_port),
            remote_address: *remote,
            remote_port: conn_qual,
        });
        connection.set_private_data(private_data, false);
        if found == AddressResolution::Failed {
            self.end_ep(handle.any().slot(), EpEvent::Unreachable);
            return Ok(());
        }
        *connection.attempt_mut() = Attempt::Resolving(Request {
            address: *remote,
            service_id,
            deadline,
            patience: deadline.min(now + self.progress.pending().service_patience()),
            not_before: now,
            another_path: false,
        });
        self.progress.pending_mut().resolving_mut().push(self.objects.eps_mut(), handle.any().slot());
        self.advance_resolving(handle.any().slot(), now);
        Ok(())
    }

    /// Goes on with every attempt that waits for its path; says when the first times out.
    pub(crate) fn advance_all_resolving(&mut self, now: Instant) -> Wake {
        let mut wake = Wake::Idle;
        for _ in 0..self.progress.pending().resolving() {
            let Some(slot) = self.progress.pending_mut().resolving_mut().rotate(self.objects.eps_mut())
            else {
                break;
            };
            self.progress.visit();
            self.advance_resolving(slot, now);
            if let Some(ep) = self.objects.eps().at(slot)
                && let Attempt::Resolving(request) = ep.connection().attempt()
            {
                let paused = now < request.not_before;
                wake = wake.earliest(Wake::by(if paused { request.not_before } else { request.deadline }));
            }
        }
        wake
    }

    fn advance_resolving(&mut self, slot: u16, now: Instant) {
        let Some(ep) = self.objects.eps().at(slot) else { return };
        let Attempt::Resolving(request) = ep.connection().attempt() else { return };
        if now < request.not_before {
            return;
        }
        let resolution = match self.device.resolve_address(now, &request.address) {
            AddressResolution::Known(gid) => self.device.port_mut().resolve(now, gid),
            AddressResolution::Pending => Resolution::Pending,
            AddressResolution::Failed => Resolution::Failed(QueryError::Timeout),
        };
        let input = match resolution {
            Resolution::Pending if now < request.deadline => return,
            Resolution::Pending => ConnectionInput::Deadline,
            Resolution::Failed(_) => ConnectionInput::PathFailed,
            Resolution::Known(path) => {
                let sent = self.send_request(slot, now, &path, &request);
                // Without a connection the CM is full: a resource error.
                let input = if sent.is_some() { ConnectionInput::PathKnown } else { ConnectionInput::NoRoom };
                return self.connection_input(slot, input, sent);
            }
        };
        self.connection_input(slot, input, None);
    }

    /// The one way in which an attempt goes on: what an input means at its stage, and what follows for its EP. `sent` is the
    /// connection of a REQ that has just gone out.
    fn connection_input(&mut self, slot: u16, input: ConnectionInput, sent: Option<ConnId>) {
        let Some(ep) = self.objects.eps_mut().at_mut(slot) else { return };
        let Some((next, event)) = ep.connection().attempt().after(input, sent) else { return };
        let before = core::mem::replace(ep.connection_mut().attempt_mut(), next);
        if before.stage() == Stage::Resolving {
            self.progress.pending_mut().resolving_mut().remove(self.objects.eps_mut(), slot);
        }
        if next.stage() == Stage::Resolving {
            self.progress.pending_mut().resolving_mut().push(self.objects.eps_mut(), slot);
        }
        if next.stage() == Stage::Idle
            && let Some(conn) = before.conn()
        {
            let now = self.device.now();
            // Over already, or void: nothing to give up.
            let _ = self.device.cm_mut().abandon(now, conn, &[]);
            self.progress.pending_mut().request_flush();
        }
        match event {
            Some(EpEvent::Established) => self.stands(slot),
            Some(event) => self.end_ep(slot, event),
            None => {}
        }
    }

    /// Gives up whatever connects this EP, without further events.
    pub(crate) fn abandon_attempt(&mut self, handle: EpHandle) {
        if self.objects.get(handle).is_ok() {
            self.connection_input(handle.any().slot(), ConnectionInput::Abandoned, None);
        }
    }

    fn send_request(
        &mut self,
        slot: u16,
        now: Instant,
        path: &PathRecord,
        request: &Request,
    ) -> Option<ConnId> {
        let ep = self.objects.eps().at(slot)?;
        let framing = self.objects.get(ep.ia()).ok()?.framing();
        let (ends, data) = (ep.connection().ends(), ep.connection().private_data());
        let private_data =
            framing.request(self.device.address(), ends.local_port as u16, ends.remote_address, data)?;
        let port_mtu = self.device.port().info().mtu.code();
        let mut path = *path;
        path.set_mtu(path.mtu().min(port_mtu));
        if let Some(sl) = ep.attributes().sl {
            path.set_sl(ServiceLevel::new(sl));
        }
        let mut params = ConnectParams::new(path, request.service_id, ep.qpn(), ep.connection().psn());
        params.responder_resources = ep.attributes().max_rdma_read_in as u8;
        params.initiator_depth = ep.attributes().max_rdma_read_out as u8;
        params.retry_count = ep.attributes().retry_count;
        // The count that this message carries is the peer's (IBTA 12.7.28), whose own attribute decides.
        params.rnr_retry_count = RNR_RETRY_UNLIMITED;
        params.srq = ep.srq().is_some();
        params.flow_control = !params.srq;
        params.response_timeout = response_timeout(&path);
        params.deadline = (request.deadline != Instant::MAX).then_some(request.deadline);
        self.device.cm_mut().connect(now, &params, &private_data, u32::from(slot)).ok()
    }

    /// Carries out the events of the connection manager up to the next request. Returns the request
    /// and its listener.
    pub(super) fn next_request(&mut self, now: Instant) -> Option<(ConnId, u32)> {
        while let Some(event) = self.device.cm_mut().poll_event() {
            self.progress.set_happened();
            match event {
                CmEvent::ConnectRequest { id, listener } => return Some((id, listener)),
                CmEvent::Reply { id, owner } => self.reply_arrived(now, id, owner),
                CmEvent::Established { id, owner } => {
                    if let Some(slot) = self.ep_of(id, owner) {
                        self.establish_passive(slot);
                    }
                }
                CmEvent::Rejected { id, owner, reason } => self.rejected(now, id, owner, reason),
                CmEvent::TimedOut { id, owner, stage } => self.timed_out(now, id, owner, stage),
                CmEvent::Disconnected { id, owner, cause } => self.disconnected(id, owner, cause),
                // A fresh QP gets another number (firmware reuses one only after all others) and a random PSN, so no EP waits
                // for this.
                CmEvent::TimeWaitExit { .. } => {}
                // DAT has no datagram services: nobody listens for them, nobody asks.
                CmEvent::DatagramRequest { id, .. } => _ = self.device.cm_mut().abandon(now, id, &[]),
                CmEvent::DatagramReply { .. } => {}
            }
        }
        None
    }

    /// The EP whose connection this is. A request that nobody has accepted belongs to none: its CR is told.
    fn ep_of(&mut self, id: ConnId, owner: u32) -> Option<u16> {
        if owner & OWNER_PSP != 0 {
            self.request_withdrawn(id);
            return None;
        }
        let slot = owner as u16;
        let ep = self.objects.eps().at(slot)?;
        (ep.connection().id() == Some(id)).then_some(slot)
    }

    fn reply_arrived(&mut self, now: Instant, id: ConnId, owner: u32) {
        let slot = self.ep_of(id, owner);
        let connected = slot.and_then(|slot| self.connect_qp(slot, id));
        match (slot, connected) {
            (Some(_), Some(())) => {}
            (slot, _) => {
                // Nobody waits for it any more, or the QP could not follow.
                let _ = self.device.cm_mut().reject(now, id, RejReason::NO_RESOURCES, &[], &[]);
                if let Some(slot) = slot {
                    self.connection_input(slot, ConnectionInput::UnusableReply, None);
                }
            }
        }
    }

    /// Active side: QP to RTR and RTS, RTU, ESTABLISHED.
    fn connect_qp(&mut self, slot: u16, id: ConnId) -> Option<()> {
        let from = self.device.cm().qp_attributes(id)?;
        let ep = self.objects.eps_mut().at_mut(slot)?;
        let (now, port) = (self.device.now(), self.device.port_mut());
        let rtr = rtr_params(port, now, ep.attributes(), &from, from.rq_psn, from.responder_resources)?;
        let (pkey_index, _) = port.info().partitions.member_of(from.path.pkey())?;
        let rts = rts_params(ep.attributes(), &from);
        let qp = ep.qp_mut()?;
        qp.set_pkey_index(pkey_index);
        self.device.hca_mut().modify_to_rtr(qp, &rtr).ok()?;
        self.device.hca_mut().modify_to_rts(qp, &rts).ok()?;
        self.device.cm_mut().rtu(id, &[]).ok()?;
        self.keep_private_data(slot, id);
        self.connection_input(slot, ConnectionInput::Reply, None);
        Some(())
    }

    /// The connection stands: ESTABLISHED.
    fn stands(&mut self, slot: u16) {
        let Some(ep) = self.objects.eps_mut().at_mut(slot) else { return };
        if let Some(event) = ep.take(EpEvent::Established).and_then(|transition| transition.event) {
            self.post_connection_event(slot, event, None);
        }
    }

    /// The consumer's part of what came with a REP or REJ.
    fn keep_private_data(&mut self, slot: u16, id: ConnId) {
        let Some(ep) = self.objects.eps().at(slot) else { return };
        let Ok(ia) = self.objects.get(ep.ia()) else { return };
        let data = ia.framing().parse_reply(self.device.cm().private_data(id));
        if let Some(ep) = self.objects.eps_mut().at_mut(slot) {
            ep.connection_mut().set_private_data(data, true);
        }
    }

    /// Passive side: the peer has confirmed, by RTU or by its first data. QP to RTS, ESTABLISHED.
    pub(crate) fn establish_passive(&mut self, slot: u16) {
        let Some(ep) = self.objects.eps_mut().at_mut(slot) else { return };
        let (EpState::CompletionPending, Attempt::Accepted { conn }) =
            (ep.state(), ep.connection().attempt())
        else {
            return;
        };
        let from = self.device.cm().qp_attributes(conn);
        let rts = from.map(|from| rts_params(ep.attributes(), &from));
        let moved = match (rts, ep.qp_mut()) {
            (Some(rts), Some(qp)) => self.device.hca_mut().modify_to_rts(qp, &rts).is_ok(),
            _ => false,
        };
        if !moved {
            self.fail_ep(slot);
            return;
        }
        ep.connection_mut().set_private_data(&[], false);
        // It may know already; then nothing happens.
        let _ = self.device.cm_mut().communication_established(conn);
        if let Some(handle) = self.objects.eps().handle_at(slot) {
            self.objects.leave_awaiting(handle);
        }
        self.connection_input(slot, ConnectionInput::Confirmed, None);
    }

    fn rejected(&mut self, now: Instant, id: ConnId, owner: u32, reason: RejReason) {
        let Some(slot) = self.ep_of(id, owner) else { return };
        let Some(ep) = self.objects.eps_mut().at_mut(slot) else { return };
        let no_service = reason == RejReason::INVALID_SERVICE_ID;
        let input = if let Attempt::Requested { request, .. } = ep.connection_mut().attempt_mut()
            && (no_service || reason.class() == RejClass::Path)
            && now < request.deadline
            && !request.another_path
            && self.device.doubt_path(now, id)
        {
            // The path may have led to another port than the one meant.
            request.another_path = true;
            ConnectionInput::WrongPath
        } else if let Attempt::Requested { request, .. } = ep.connection_mut().attempt_mut()
            && no_service
            && now < request.patience
        {
            request.not_before = now + PAUSE;
            ConnectionInput::NoService
        } else if reason == RejReason::CONSUMER_DEFINED {
            if ep.state() == EpState::ActiveConnectionPending {
                self.keep_private_data(slot, id);
            }
            ConnectionInput::RejectedByConsumer
        } else {
            ConnectionInput::RejectedOtherwise
        };
        self.connection_input(slot, input, None);
    }

    fn timed_out(&mut self, now: Instant, id: ConnId, owner: u32, stage: cm::Stage) {
        let Some(slot) = self.ep_of(id, owner) else { return };
        let Some(ep) = self.objects.eps().at(slot) else { return };
        let mut input = ConnectionInput::Unanswered;
        if let (cm::Stage::Req, Attempt::Requested { request, .. }) = (stage, ep.connection().attempt()) {
            if let Some(info) = self.device.cm().info(id) {
                self.device.port_mut().forget_path(info.path.dgid());
            }
            if now >= request.deadline {
                input = ConnectionInput::Deadline;
            }
        }
        self.connection_input(slot, input, None);
    }

    fn disconnected(&mut self, id: ConnId, owner: u32, cause: DisconnectCause) {
        // The sink has failed receives of EPs without a receive EVD; they end the connection first.
        self.drain_sink();
        let Some(slot) = self.ep_of(id, owner) else { return };
        // The device reported the failure first; the DREQ may be the peer's answer to it.
        let failed = !self.device.cm().peer_left(id) && self.objects.has_failed(slot);
        let input = match cause {
            DisconnectCause::Peer | DisconnectCause::Local if failed => ConnectionInput::Lost,
            DisconnectCause::Peer | DisconnectCause::Local => ConnectionInput::Disconnected,
            // Everything of ours was done before the DREQ went out, whatever became of the peer.
            DisconnectCause::LocalUnanswered if self.objects.is_leaving(slot) => {
                ConnectionInput::Disconnected
            }
            DisconnectCause::LocalUnanswered | DisconnectCause::Rejected(_) | DisconnectCause::Stale => {
                ConnectionInput::Lost
            }
        };
        self.connection_input(slot, input, None);
    }

    /// Queues a connection event of an EP: at `position` of its connect EVD, or behind all that was looked at there.
    pub(super) fn post_connection_event(&mut self, slot: u16, event: ConnectionEvent, position: Option<u32>) {
        let (Some(handle), Some(ep)) = (self.objects.eps().handle_at(slot), self.objects.eps().at(slot))
        else {
            return;
        };
        log!(info, "dat: EP {=u16} QP {=u32:#x}: {}", slot, ep.qpn().get(), event);
        let Some(evd) = ep.streams().connect else { return };
        let private_data_size = match event {
            ConnectionEvent::Established | ConnectionEvent::PeerRejected => {
                ep.connection().peers_data().len()
            }
            _ => 0,
        };
        let data = EventData::Connection { event, ep: handle, private_data_size };
        self.delivery().post_at(evd, position, data);
    }
}

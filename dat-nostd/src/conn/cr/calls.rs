//! Calls on connection requests: query, accept, reject, hand-off.

use crate::base::states::{EpCall, EpEvent};
use driver_mlx::{Bar, Instant, Platform};
use ib_port::ib_mgmt::cm::{AcceptParams, ConnId, RejReason};

use crate::adapter::Adapter;
use crate::adapter::objects::Objects;
use crate::base::attr::CrParameters;
use crate::base::event::EventData;
use crate::base::handle::{CrHandle, EpHandle, HandleType, Typed};
use crate::base::log::log;
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::types::EpState;
use crate::conn::Connections;
use crate::conn::attempt::Attempt;
use crate::conn::connect::{RNR_RETRY_UNLIMITED, rtr_params};
use crate::conn::connection::Ends;
use crate::conn::cr::Cr;
use crate::conn::framing::REQ_LEN;
use crate::conn::service::{EpSource, Target};

/// Reason of the reject when a table or an event queue is full.
const FULL: RejReason = RejReason::NO_RESOURCES;

impl<P: Platform> Adapter<'_, P> {
    /// Carries out the events of the connection manager.
    pub(crate) fn process_cm(&mut self, now: Instant) {
        while let Some((conn, listener)) = self.connections().next_request(now) {
            let request = self.connections().parse_request(conn, listener);
            if let Err(reason) = request.and_then(|(cr, target)| self.deliver_request(cr, &target)) {
                let _ = self.device_mut().cm_mut().reject(now, conn, reason, &[], &[]);
            }
        }
    }

    /// Delivers a request to a service point's consumer, with an EP if the provider has to make it.
    fn deliver_request(&mut self, mut cr: Cr, target: &Target) -> Result<(), RejReason> {
        self.objects().can_deliver(target)?;
        cr.ep = match target.source {
            EpSource::Consumer => None,
            EpSource::Reserved(ep) => Some(ep),
            EpSource::Provider => {
                Some(self.endpoints().make_tentative_ep(target.ia, cr.reads).map_err(|_| FULL)?)
            }
        };
        self.connections().deliver(cr, target)
    }

    /// `dat_cr_query`. What it lends lives until the request is answered.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn cr_query(&self, cr: CrHandle) -> DatResult<CrParameters<'_>> {
        let cr = self.objects().get(cr)?;
        Ok(CrParameters {
            remote_address: cr.remote_address,
            remote_port: cr.remote_port,
            private_data: cr.private_data.get(..usize::from(cr.private_data_size)).unwrap_or_default(),
            local_ep: cr.ep,
            remote_gid: cr.remote_gid,
        })
    }

    /// `dat_cr_accept`. `ep` must be unconnected, and be given exactly if the request brings none of its own; the EP then waits
    /// for the peer's confirmation. On failure nothing changes.
    ///
    /// # Errors
    /// INVALID_HANDLE (CR; EP missing, given though the request has one, or without protection zone or connect EVD);
    /// INVALID_STATE of the EP; INVALID_PARAMETER for too much private data.
    pub fn cr_accept(
        &mut self,
        handle: CrHandle,
        ep: Option<EpHandle>,
        private_data: &[u8],
    ) -> DatResult<()> {
        self.connections().accept(handle, ep, private_data)
    }

    /// `dat_cr_reject`: the peer gets PEER_REJECTED. A reserved EP is unconnected again, one of the provider's is gone.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn cr_reject(&mut self, cr: CrHandle) -> DatResult<()> {
        self.cr_reject_with(cr, &[])
    }

    /// Extension: reject with private data, which the peer finds by `ep_private_data` after PEER_REJECTED. At most 148 bytes,
    /// 140 under a `…-dat` name.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_PARAMETER for too much private data.
    pub fn cr_reject_with(&mut self, cr: CrHandle, private_data: &[u8]) -> DatResult<()> {
        let framing = self.objects().get(cr)?.framing;
        let too_long = DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg3);
        if private_data.len() > framing.max_reject_data() {
            return Err(too_long);
        }
        let (bytes, len) = framing.reply(private_data).ok_or(too_long)?;
        let cr = self.objects_mut().remove(cr)?;
        self.release_request_ep(&cr);
        self.connections().refuse(cr.conn, RejReason::CONSUMER_DEFINED, bytes.get(..len).unwrap_or_default());
        Ok(())
    }

    /// `dat_cr_handoff`: the request appears anew, its private data with it, at the service point of the same IA that owns
    /// `conn_qual`. If that one cannot take it, the peer is refused. This CR is gone either way.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_PARAMETER if no service point of the IA owns the qualifier: then nothing has changed.
    pub fn cr_handoff(&mut self, cr: CrHandle, conn_qual: u64) -> DatResult<()> {
        let ia = self.objects().get(cr)?.ia;
        let Some(target) = self.objects().target_for(ia, conn_qual) else {
            return Err(DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg2));
        };
        let cr = self.objects_mut().remove(cr)?;
        self.release_request_ep(&cr);
        if let Err(reason) = self.deliver_request(cr, &target) {
            self.connections().refuse(cr.conn, reason, &[]);
        }
        Ok(())
    }

    /// The EP that a request brought goes back to where it came from.
    fn release_request_ep(&mut self, cr: &Cr) {
        let Some(handle) = cr.ep else { return };
        let Ok(ep) = self.objects().get(handle) else { return };
        if ep.state() == EpState::TentativeConnectionPending {
            let _ = self.endpoints().remove_ep(handle);
            return;
        }
        self.objects_mut().move_ep(handle, EpEvent::RequestAnswered);
        let unspecified = self.device().unspecified();
        if let Ok(ep) = self.objects_mut().get_mut(handle) {
            ep.connection_mut().set_ends(Ends::none(unspecified));
        }
    }
}

impl<P: Platform> Connections<'_, '_, P> {
    /// Reads a REQ for one of our service points.
    fn parse_request(&self, conn: ConnId, listener: u32) -> Result<(Cr, Target), RejReason> {
        let gone = RejReason::INVALID_SERVICE_ID;
        let target = self.objects.target_of(listener).ok_or(gone)?;
        let framing = self.objects.get(target.ia).map_err(|_| gone)?.framing();
        let info = self.device.cm().info(conn).ok_or(gone)?;
        if info.service_id != target.service_id {
            return Err(gone);
        }
        // The HCA would drop what the peer sends. Linux's reason for it too: the standard has none
        // about P_Keys.
        if self.device.port().info().partitions.reached_by(info.path.pkey()).is_none() {
            return Err(RejReason::INVALID_GID);
        }
        let request = framing.parse_request(self.device.cm().private_data(conn));
        let request = request.ok_or(RejReason::UNSUPPORTED)?;
        if request
            .destination
            .is_some_and(|destination| destination != self.device.address() && !destination.is_loopback())
        {
            return Err(gone);
        }
        let mut cr = Cr {
            ia: target.ia,
            framing,
            conn,
            withdrawn: false,
            remote_address: request.source,
            remote_port: u64::from(request.source_port),
            remote_gid: info.path.dgid().0,
            conn_qual: target.conn_qual,
            sp: target.sp,
            ep: None,
            reads: (info.peer_initiator_depth, info.peer_responder_resources),
            private_data: [0; REQ_LEN],
            private_data_size: request.data.len().min(REQ_LEN) as u8,
        };
        for (to, from) in cr.private_data.iter_mut().zip(request.data) {
            *to = *from;
        }
        Ok((cr, target))
    }

    /// Queues the event of a request.
    fn deliver(&mut self, mut cr: Cr, target: &Target) -> Result<(), RejReason> {
        (cr.sp, cr.conn_qual) = (target.sp, target.conn_qual);
        let ends = cr.ends();
        let ep = cr.ep;
        let cr = self.objects.table_mut::<CrHandle>().insert(cr).map_err(|_| FULL)?;
        self.target_used(target);
        if let Some(ep) = ep {
            self.objects.move_ep(ep, EpEvent::RequestArrived);
            if let Ok(ep) = self.objects.get_mut(ep) {
                ep.connection_mut().set_ends(ends);
            }
        }
        log!(info, "dat: connection request {=u64:#x} for port {=u64}", cr.bits(), target.conn_qual);
        let (sp, conn_qual, local_address) = (target.sp, target.conn_qual, self.device.address());
        let event = EventData::ConnectionRequest { sp, local_address, conn_qual, cr };
        self.delivery().post(target.evd, event);
        Ok(())
    }

    /// The peer of a request that nobody has answered gave up.
    pub(in crate::conn) fn request_withdrawn(&mut self, conn: ConnId) {
        for slot in self.objects.table::<CrHandle>().slots() {
            if let Some(cr) = self.objects.table_mut::<CrHandle>().at_mut(slot)
                && cr.conn == conn
            {
                cr.withdrawn = true;
            }
        }
    }

    fn accept(&mut self, handle: CrHandle, ep: Option<EpHandle>, private_data: &[u8]) -> DatResult<()> {
        let cr = self.objects.get(handle)?;
        let (ep_handle, call) = match (ep, cr.ep) {
            (Some(ep), None) => (ep, EpCall::Accept),
            (None, Some(ep)) => (ep, EpCall::Answer),
            _ => return Err(HandleType::Ep.invalid()),
        };
        let ep = self.objects.get(ep_handle)?;
        ep.ia().check(cr.ia, HandleType::Ep)?;
        call.in_state(ep.state())?;
        if ep.qp().is_none() || ep.streams().connect.is_none() {
            return Err(HandleType::Ep.invalid());
        }
        let too_long = DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg3);
        if private_data.len() > cr.framing.max_private_data() {
            return Err(too_long);
        }
        let (bytes, len) = cr.framing.reply(private_data).ok_or(too_long)?;
        self.device.usable()?;
        let conn = cr.conn;
        let peer = if cr.withdrawn { None } else { self.device.cm().info(conn) };
        let ends = cr.ends();
        let accepted = match peer {
            Some(info) => {
                let attributes = ep.attributes();
                let mut params = AcceptParams::new(ep.qpn(), ep.connection().psn());
                params.responder_resources =
                    info.peer_initiator_depth.min(attributes.max_rdma_read_in.min(255) as u8);
                params.initiator_depth =
                    info.peer_responder_resources.min(attributes.max_rdma_read_out.min(255) as u8);
                params.rnr_retry_count = RNR_RETRY_UNLIMITED;
                params.target_ack_delay = self.device.hca().caps().local_ca_ack_delay.min(31);
                params.srq = ep.srq().is_some();
                params.flow_control = !params.srq;
                self.ready_to_receive(ep_handle, conn, &params)?;
                let now = self.device.now();
                let owner = u32::from(ep_handle.any().slot());
                let reply = bytes.get(..len).unwrap_or_default();
                self.device.cm_mut().accept(now, conn, &params, reply, owner).is_ok()
            }
            None => false,
        };
        self.objects.remove(handle)?;
        self.objects.move_ep(ep_handle, EpEvent::Accepted);
        let ep = self.objects.get_mut(ep_handle)?;
        let connection = ep.connection_mut();
        connection.set_ends(ends);
        connection.set_private_data(&[], false);
        if accepted {
            *connection.attempt_mut() = Attempt::Accepted { conn };
        }
        self.objects.enter_awaiting(ep_handle);
        self.delivery().feeds_changed(ep_handle);
        if accepted {
            self.progress.pending_mut().request_flush();
            self.run_port();
        } else {
            // The peer is gone: the accept succeeds and ends in its event.
            self.end_ep(ep_handle.any().slot(), EpEvent::PeerDisconnected);
        }
        Ok(())
    }

    /// INIT to RTR before the peer is told.
    fn ready_to_receive(&mut self, ep: EpHandle, conn: ConnId, params: &AcceptParams) -> DatResult<()> {
        const FAILED: DatReturn = DatReturn::new(ReturnType::InternalError);
        let from = self.device.cm().qp_attributes(conn).ok_or(FAILED)?;
        let (now, port) = (self.device.now(), self.device.port_mut());
        // The table may have changed since the request came.
        let pkey_index = port.info().partitions.reached_by(from.path.pkey()).ok_or(FAILED)?;
        let ep = self.objects.get_mut(ep)?;
        let (psn, resources) = (params.starting_psn, params.responder_resources);
        let rtr = rtr_params(port, now, ep.attributes(), &from, psn, resources).ok_or(FAILED)?;
        let qp = ep.qp_mut().ok_or(FAILED)?;
        qp.set_pkey_index(pkey_index);
        self.device.hca_mut().modify_to_rtr(qp, &rtr).map_err(|_| FAILED)
    }

    fn refuse(&mut self, conn: ConnId, reason: RejReason, private_data: &[u8]) {
        let now = self.device.now();
        // A peer that has given up needs no answer.
        let _ = self.device.cm_mut().reject(now, conn, reason, &[], private_data);
        self.progress.pending_mut().request_flush();
        self.run_port();
    }
}

impl<B: Bar> Objects<'_, B> {
    /// Returns whether the consumer of a service point can take one more request.
    fn can_deliver(&self, target: &Target) -> Result<(), RejReason> {
        let evd = self.get(target.evd).map_err(|_| FULL)?;
        if evd.is_full() || self.table::<CrHandle>().is_full() {
            return Err(FULL);
        }
        Ok(())
    }
}

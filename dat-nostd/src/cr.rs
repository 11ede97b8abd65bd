//! Public service points and connection requests: the passive side. DAT 1.2, connection management.

use driver_mlx::Platform;
use ib_port::ib_mgmt::cm::{AcceptParams, ConnId, ListenError, RejReason};

use crate::adapter::Adapter;
use crate::attr::{CrParameters, PspParameters};
use crate::connect::{Attempt, OWNER_PSP, rtr_params};
use crate::evd::check_stream;
use crate::event::{ConnectionEvent, EventData};
use crate::framing::{Framing, REQ_LEN};
use crate::handle::{CrHandle, EpHandle, EvdHandle, HandleType, IaHandle, PspHandle, Typed};
use crate::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::states::Operation;
use crate::types::{EpState, EvdFlags, IaAddress, PspFlags};

/// A public service point.
#[derive(Debug)]
pub struct Psp {
    pub(crate) ia: IaHandle,
    conn_qual: u64,
    service_id: u64,
    evd: EvdHandle,
    flags: PspFlags,
}

/// A connection request that waits for its answer.
#[derive(Debug)]
pub struct Cr {
    pub(crate) ia: IaHandle,
    framing: Framing,
    conn: ConnId,
    /// The peer has given up; an accept ends in ACCEPT_COMPLETION_ERROR.
    withdrawn: bool,
    remote_address: IaAddress,
    remote_port: u64,
    remote_gid: [u8; 16],
    conn_qual: u64,
    private_data: [u8; REQ_LEN],
    private_data_size: u8,
}

impl<'s, P: Platform> Adapter<'s, P> {
    /// `dat_psp_create`. Requests arrive on `evd` until the service point is freed; when the EVD is full, they are refused.
    ///
    /// # Errors
    /// INVALID_HANDLE (IA, EVD without the CR stream); INVALID_PARAMETER for a qualifier that names no service (0; under
    /// RDMA-CM names also above 65535); CONN_QUAL_IN_USE; MODEL_NOT_SUPPORTED for [`PspFlags::Provider`];
    /// INSUFFICIENT_RESOURCES.
    pub fn psp_create(
        &mut self,
        ia: IaHandle,
        conn_qual: u64,
        evd: EvdHandle,
        flags: PspFlags,
    ) -> DatResult<PspHandle> {
        let framing = self.framing(ia)?;
        check_stream(&self.evds, Some(evd), EvdFlags::CR, Subtype::InvalidHandleEvdCr)?;
        let Some(service_id) = framing.service_id(conn_qual) else {
            return Err(DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg2));
        };
        if flags != PspFlags::Consumer {
            return Err(DatReturn::new(ReturnType::ModelNotSupported));
        }
        if self.port.cm_ref().is_listening(service_id) {
            return Err(DatReturn::new(ReturnType::ConnQualInUse));
        }
        self.usable()?;
        const FULL: DatReturn = DatReturn::new(ReturnType::InsufficientResources);
        let backlog = self.evds.get(evd)?.queue.limit().min(u32::from(u16::MAX)) as u16;
        let psp = self.psps.insert(Psp { ia, conn_qual, service_id, evd, flags }).map_err(|_| FULL)?;
        let owner = OWNER_PSP | u32::from(psp.any().slot());
        if let Err(error) = self.port.cm().listen(service_id, owner, backlog) {
            let _ = self.psps.remove(psp);
            return Err(match error {
                ListenError::InUse => DatReturn::new(ReturnType::ConnQualInUse),
                ListenError::Full => FULL,
            });
        }
        self.evds.get_mut(evd)?.users += 1;
        Ok(psp)
    }

    /// `dat_psp_query`.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn psp_query(&self, psp: PspHandle) -> DatResult<PspParameters> {
        let psp = self.psps.get(psp)?;
        Ok(PspParameters { ia: psp.ia, conn_qual: psp.conn_qual, evd: psp.evd, psp_flags: psp.flags })
    }

    /// `dat_psp_free`. Requests already delivered stay valid and must be answered.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn psp_free(&mut self, psp: PspHandle) -> DatResult<()> {
        let psp = self.psps.remove(psp)?;
        self.port.cm().unlisten(psp.service_id);
        if let Ok(evd) = self.evds.get_mut(psp.evd) {
            evd.users = evd.users.saturating_sub(1);
        }
        Ok(())
    }

    /// A REQ for one of our service points.
    pub(crate) fn request_arrived(&mut self, now: u64, conn: ConnId, listener: u32) {
        if let Err(reason) = self.take_request(conn, listener as u16) {
            let _ = self.port.cm().reject(now, conn, reason, &[], &[]);
        }
    }

    fn take_request(&mut self, conn: ConnId, psp_slot: u16) -> Result<(), RejReason> {
        let gone = RejReason::INVALID_SERVICE_ID;
        let psp_handle = self.psps.handle_at(psp_slot).ok_or(gone)?;
        let psp = self.psps.get(psp_handle).map_err(|_| gone)?;
        let framing = self.ias.get(psp.ia).map_err(|_| gone)?.framing;
        let info = self.port.cm_ref().info(conn).ok_or(gone)?;
        if info.service_id != psp.service_id {
            return Err(gone);
        }
        let request = framing.parse_request(self.port.cm_ref().private_data(conn));
        let request = request.ok_or(RejReason::UNSUPPORTED)?;
        if request
            .destination
            .is_some_and(|destination| destination != self.address && !destination.is_loopback())
        {
            return Err(gone);
        }
        let evd = self.evds.get(psp.evd).map_err(|_| gone)?;
        if evd.queue.is_full() || evd.overflowed {
            return Err(RejReason::NO_RESOURCES);
        }
        let mut cr = Cr {
            ia: psp.ia,
            framing,
            conn,
            withdrawn: false,
            remote_address: request.source,
            remote_port: u64::from(request.source_port),
            remote_gid: info.path.dgid.0,
            conn_qual: psp.conn_qual,
            private_data: [0; REQ_LEN],
            private_data_size: request.data.len().min(REQ_LEN) as u8,
        };
        for (to, from) in cr.private_data.iter_mut().zip(request.data) {
            *to = *from;
        }
        let (evd, conn_qual) = (psp.evd, psp.conn_qual);
        let cr = self.crs.insert(cr).map_err(|_| RejReason::NO_RESOURCES)?;
        let local_address = self.address;
        self.post_event(evd, EventData::ConnectionRequest { psp: psp_handle, local_address, conn_qual, cr });
        Ok(())
    }

    /// The peer of a request that nobody has answered gave up.
    pub(crate) fn request_withdrawn(&mut self, conn: ConnId) {
        for slot in 0..self.crs.end() {
            if let Some(cr) = self.crs.at_mut(slot)
                && cr.conn == conn
            {
                cr.withdrawn = true;
            }
        }
    }

    /// `dat_cr_query`. What it lends lives until the request is answered.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn cr_query(&self, cr: CrHandle) -> DatResult<CrParameters<'_>> {
        let cr = self.crs.get(cr)?;
        Ok(CrParameters {
            remote_address: cr.remote_address,
            remote_port: cr.remote_port,
            private_data: cr.private_data.get(..usize::from(cr.private_data_size)).unwrap_or_default(),
            local_ep: None,
            remote_gid: cr.remote_gid,
        })
    }

    /// `dat_cr_accept`. The EP must be unconnected; it then waits for the peer's confirmation. On failure nothing changes.
    ///
    /// # Errors
    /// INVALID_HANDLE (CR; EP missing, or without protection zone or connect EVD); INVALID_STATE of the EP;
    /// INVALID_PARAMETER for too much private data.
    pub fn cr_accept(
        &mut self,
        handle: CrHandle,
        ep: Option<EpHandle>,
        private_data: &[u8],
    ) -> DatResult<()> {
        let cr = self.crs.get(handle)?;
        let ep_handle = ep.ok_or(HandleType::Ep.invalid())?;
        let ep = self.eps.get(ep_handle)?;
        if ep.qp.is_none() || ep.connect_evd.is_none() {
            return Err(HandleType::Ep.invalid());
        }
        Operation::Accept.in_state(ep.state)?;
        let too_long = DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg3);
        if private_data.len() > cr.framing.max_private_data() {
            return Err(too_long);
        }
        let (bytes, len) = cr.framing.reply(private_data).ok_or(too_long)?;
        self.usable()?;
        let conn = cr.conn;
        let peer = if cr.withdrawn { None } else { self.port.cm_ref().info(conn) };
        let remote = (cr.remote_address, cr.remote_port, cr.conn_qual);
        let accepted = match peer {
            Some(info) => {
                let attributes = &ep.attributes;
                let mut params = AcceptParams::new(ep.qpn.get(), ep.psn);
                params.responder_resources =
                    info.peer_initiator_depth.min(attributes.max_rdma_read_in.min(255) as u8);
                params.initiator_depth =
                    info.peer_responder_resources.min(attributes.max_rdma_read_out.min(255) as u8);
                params.rnr_retry_count = attributes.rnr_retry;
                params.target_ack_delay = self.hca.caps().local_ca_ack_delay.min(31);
                self.ready_to_receive(ep_handle, conn, &params)?;
                let now = self.hca.platform().now();
                let owner = u32::from(ep_handle.any().slot());
                let reply = bytes.get(..len).unwrap_or_default();
                self.port.cm().accept(now, conn, &params, reply, owner).is_ok()
            }
            None => false,
        };
        self.crs.remove(handle)?;
        let ep = self.eps.get_mut(ep_handle)?;
        (ep.remote_address, ep.remote_port, ep.local_port) = remote;
        ep.state = EpState::CompletionPending;
        ep.private_data_size = 0;
        if accepted {
            ep.attempt = Attempt::Accepted { conn };
            self.enter_awaiting(ep_handle);
            self.flush_port = true;
            self.run_port();
        } else {
            // The peer is gone: the accept succeeds and ends in its event.
            self.enter_awaiting(ep_handle);
            let slot = ep_handle.any().slot();
            self.begin_close(slot, ConnectionEvent::AcceptCompletionError, EpState::Disconnected);
        }
        Ok(())
    }

    /// INIT to RTR before the peer is told.
    fn ready_to_receive(&mut self, ep: EpHandle, conn: ConnId, params: &AcceptParams) -> DatResult<()> {
        const FAILED: DatReturn = DatReturn::new(ReturnType::InternalError);
        let from = self.port.cm_ref().qp_attributes(conn).ok_or(FAILED)?;
        let ep = self.eps.get_mut(ep)?;
        let rtr = rtr_params(&ep.attributes, &from, params.starting_psn, params.responder_resources);
        let rtr = rtr.ok_or(FAILED)?;
        let qp = ep.qp.as_mut().ok_or(FAILED)?;
        self.hca.modify_to_rtr(qp, &rtr).map_err(|_| FAILED)
    }

    /// `dat_cr_reject`: the peer gets PEER_REJECTED.
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
        let framing = self.crs.get(cr)?.framing;
        let too_long = DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg3);
        if private_data.len() > framing.max_reject_data() {
            return Err(too_long);
        }
        let (bytes, len) = framing.reply(private_data).ok_or(too_long)?;
        let cr = self.crs.remove(cr)?;
        let now = self.hca.platform().now();
        let data = bytes.get(..len).unwrap_or_default();
        // A peer that has given up needs no answer.
        let _ = self.port.cm().reject(now, cr.conn, RejReason::CONSUMER_DEFINED, &[], data);
        self.flush_port = true;
        self.run_port();
        Ok(())
    }
}

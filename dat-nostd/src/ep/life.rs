//! Endpoints: create, query, reset, disconnect, free. DAT 1.2, endpoint management.

use driver_mlx::{Pd, Platform};

use crate::adapter::Adapter;
use crate::adapter::part::Parts;
use crate::base::attr::{EpAttributes, EpParameters, EpStatus};
use crate::base::handle::{EpHandle, EvdHandle, IaHandle, PzHandle};
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::states::{Effect, EpCall, EpEvent};
use crate::base::types::{CloseFlags, EpState};
use crate::ep::attr::Counts;
use crate::ep::plan::Plan;
use crate::ep::streams::Streams;

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
        self.objects().get(ia)?;
        let pd = match pz {
            Some(pz) => self.objects().get(pz)?.domain(ia)?,
            None => Pd::default(),
        };
        let streams = Streams { recv: recv_evd, request: request_evd, connect: connect_evd };
        self.objects().check_streams(ia, &streams)?;
        let attributes = self.device().check_attributes(&streams, attributes, Counts::Match, BAD)?;
        self.objects().check_notification(&streams, &attributes, BAD)?;
        let plan = Plan { pd, streams, srq: None, attributes };
        self.endpoints().create_ep(ia, pz, &plan, EpState::Unconnected)
    }

    /// `dat_ep_query`.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn ep_query(&self, ep: EpHandle) -> DatResult<EpParameters> {
        let ep = self.objects().get(ep)?;
        let ends = ep.connection.ends();
        let info = ep.connection.id().and_then(|conn| self.device().cm().info(conn));
        Ok(EpParameters {
            ia: ep.ia,
            state: ep.state(),
            local_address: self.device().address(),
            local_port: ends.local_port,
            remote_address: ends.remote_address,
            remote_port: ends.remote_port,
            pz: ep.pz,
            recv_evd: ep.streams.recv,
            request_evd: ep.streams.request,
            connect_evd: ep.streams.connect,
            srq: ep.srq,
            attributes: ep.attributes,
            remote_gid: info.map(|info| info.path.dgid().0),
            ending: ep.ending(),
        })
    }

    /// `dat_ep_get_status`.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn ep_get_status(&self, ep: EpHandle) -> DatResult<EpStatus> {
        let ep = self.objects().get(ep)?;
        Ok(EpStatus {
            state: ep.state(),
            recv_idle: self.objects().is_recv_idle(ep),
            request_idle: ep.requests.outstanding() == 0,
        })
    }

    /// Private data of the peer's accept (after ESTABLISHED, active side) or reject (extension, after PEER_REJECTED); empty if
    /// there is none. It lives until the EP is freed or reset.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn ep_private_data(&self, ep: EpHandle) -> DatResult<&[u8]> {
        Ok(self.objects().get(ep)?.connection.peers_data())
    }

    /// `dat_ep_reset`: a fresh, unconnected EP; does not wait for flushes, as the QP is a new one.
    /// Completions not taken are lost.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_STATE unless disconnected or unconnected; INSUFFICIENT_RESOURCES.
    pub fn ep_reset(&mut self, ep: EpHandle) -> DatResult<()> {
        if EpCall::Reset.in_state(self.objects().get(ep)?.state())? == Effect::Nothing {
            return Ok(());
        }
        self.device().usable()?;
        self.queue_pairs().make_draining_room();
        // The new QP first: without it nothing changes.
        let plan = self.objects().get(ep)?.plan();
        let Parts { device, objects, .. } = self.parts();
        let fresh = plan.map(|plan| device.build_qp(objects, &plan, ep.handle().slot())).transpose()?;
        self.connections().end_closing(ep);
        if let Some(ended) = self.queue_pairs().take_qp(ep) {
            // The device's reply to the end of the old QP changes nothing for the consumer.
            let _ = self.queue_pairs().end_qp(ended);
        }
        let (psn, unspecified) = (self.device_mut().next_psn(), self.device().unspecified());
        let ep = self.objects_mut().get_mut(ep)?;
        ep.install(fresh, psn);
        ep.connection.forget(unspecified);
        // The call is legal, so the event means something.
        let _ = ep.take(EpEvent::Reset);
        Ok(())
    }

    /// `dat_ep_free`. A connection or its set-up is aborted; completions and events of the EP
    /// vanish. A buffer of an SRQ that a message has begun to fill is free again when the device
    /// has flushed it: the adapter keeps the QP that long.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_STATE while a service point or request holds it.
    pub fn ep_free(&mut self, ep: EpHandle) -> DatResult<()> {
        let endpoint = self.objects().get(ep)?;
        EpCall::Free.in_state(endpoint.state())?;
        if endpoint.srq.is_some() {
            self.queue_pairs().make_draining_room();
        }
        self.endpoints().remove_ep(ep)
    }

    /// `dat_ep_disconnect`. Abrupt: everything outstanding is flushed, then DISCONNECTED. Graceful: outstanding requests
    /// finish first. A pending set-up is aborted with one DISCONNECTED event.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_STATE unless connected, connecting, disconnecting or (no-op) disconnected.
    pub fn ep_disconnect(&mut self, ep: EpHandle, flags: CloseFlags) -> DatResult<()> {
        match EpCall::Disconnect.in_state(self.objects().get(ep)?.state())? {
            Effect::Nothing => Ok(()),
            _ => self.connections().disconnect(ep, flags),
        }
    }
}

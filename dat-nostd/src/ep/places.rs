//! What an endpoint refers to: checks of its EVDs, the room that it reserves in their CQs, the users that it counts as.

use driver_mlx::Bar;

use crate::adapter::objects::{Objects, Tables};
use crate::base::attr::EpAttributes;
use crate::base::event::EventData;
use crate::base::handle::{EpHandle, EvdHandle, IaHandle, SrqHandle};
use crate::base::ret::{DatResult, DatReturn, Subtype};
use crate::base::states::EpEvent;
use crate::base::types::EvdFlags;
use crate::ep::Ep;
use crate::ep::plan::Plan;
use crate::ep::streams::{Streams, notification, request_notification, reservations};
use crate::evd::check_stream;
use crate::mem::zone::Pz;
use crate::srq::queue::Srq;

impl<B: Bar> Objects<'_, B> {
    /// Whether the EVDs live and take the streams.
    pub(crate) fn check_streams(&self, ia: IaHandle, streams: &Streams) -> DatResult<()> {
        for (evd, flag, subtype) in [
            (streams.recv, EvdFlags::DTO, Subtype::InvalidHandleEvdRecv),
            (streams.request, EvdFlags::DTO, Subtype::InvalidHandleEvdRequest),
            (streams.connect, EvdFlags::CONNECTION, Subtype::InvalidHandleEvdConn),
        ] {
            check_stream(self.table(), Some(ia), evd, flag, subtype)?;
        }
        Ok(())
    }

    /// Moves an EP by an event that ends nothing, if it means something in its state.
    pub(crate) fn move_ep(&mut self, ep: EpHandle, event: EpEvent) {
        if let Ok(ep) = self.get_mut(ep) {
            let _ = ep.take(event);
        }
    }

    /// Drops queued connection events of an EP, so that no event carries a dead handle.
    pub(crate) fn forget_events(&mut self, handle: EpHandle) {
        let Ok(ep) = self.get(handle) else { return };
        let Some(evd) = ep.streams.connect else { return };
        let is_ours = |data: &EventData| matches!(data, EventData::Connection { ep, .. } if *ep == handle);
        self.evds_mut().retain(evd, |data| !is_ours(data));
    }

    /// The rules for EPs that share an EVD (DAT 1.2, completion flags): one mode for all streams, and only the threshold mode
    /// on an EVD with other streams.
    pub(crate) fn check_notification(
        &self,
        streams: &Streams,
        attributes: &EpAttributes,
        bad: DatReturn,
    ) -> DatResult<()> {
        let recv = notification(attributes.recv_completion_flags);
        let request = request_notification(attributes);
        if streams.recv.is_some() && streams.recv == streams.request && recv != request {
            return Err(bad);
        }
        for (evd, mode) in [(streams.recv, recv), (streams.request, request)] {
            if evd.is_some_and(|evd| self.get(evd).is_ok_and(|evd| evd.conflicts(mode))) {
                return Err(bad);
            }
        }
        Ok(())
    }

    /// Whether the EVDs' CQs have room for what an EP may have outstanding.
    pub(crate) fn can_reserve(&self, streams: &Streams, requests: u32, receives: u32) -> bool {
        let room = |evd: Option<EvdHandle>, count: u32| match evd.map(|evd| self.get(evd)) {
            Some(Ok(evd)) => evd.unreserved() >= count,
            _ => count == 0,
        };
        if streams.recv == streams.request {
            room(streams.recv, receives + requests)
        } else {
            room(streams.recv, receives) && room(streams.request, requests)
        }
    }

    /// Completions that an EP may cause in its EVDs' CQs: of requests, and of receives. EPs that share an SRQ and a receive EVD
    /// have together as many receives as the SRQ holds, which the first of them reserves and the last gives back.
    pub(crate) fn places_needed(&self, this: Option<EpHandle>, plan: &Plan) -> (u32, u32) {
        let streams = &plan.streams;
        let (requests, receives) = reservations(&plan.attributes, streams);
        let Some(srq) = plan.srq else { return (requests, receives) };
        (requests, self.srq_places(srq, streams.recv, this))
    }

    /// Completions of receives that an EP on this SRQ reserves in the CQ of its receive EVD: none
    /// if another EP there, or a draining QP, reserves them.
    pub(crate) fn srq_places(&self, srq: SrqHandle, recv: Option<EvdHandle>, this: Option<EpHandle>) -> u32 {
        if recv.is_none() {
            return 0;
        }
        let others = |(handle, ep): (EpHandle, &Ep<B>)| {
            Some(handle) != this && ep.srq == Some(srq) && ep.streams.recv == recv
        };
        let shared = self.table().iter().any(others) || self.srqs().reserves(srq, recv);
        if shared { 0 } else { self.get(srq).map_or(0, |srq| srq.completions()) }
    }

    /// Keeps places in the CQs of the EVDs, or gives them back.
    pub(crate) fn reserve(&mut self, streams: &Streams, requests: u32, receives: u32, keep: bool) {
        for (evd, count) in [(streams.recv, receives), (streams.request, requests)] {
            if let Some(Ok(evd)) = evd.map(|evd| self.get_mut(evd)) {
                evd.reserve(count, keep);
            }
        }
    }

    /// Counts an EP in or out at what it refers to.
    pub(crate) fn count(&mut self, handle: EpHandle, come: bool) {
        let Ok(ep) = self.get(handle) else { return };
        let (requests, receives) = self.places_needed(Some(handle), &ep.shape());
        let (pz, srq) = (ep.pz, ep.srq);
        for (evd, completions, mode) in [
            (ep.streams.recv, receives, Some(notification(ep.attributes.recv_completion_flags))),
            (ep.streams.request, requests, Some(request_notification(&ep.attributes))),
            (ep.streams.connect, 0, None),
        ] {
            if let Some(Ok(evd)) = evd.map(|evd| self.get_mut(evd)) {
                evd.count_user(completions, mode, come);
            }
        }
        let Tables { pzs, srqs, .. } = self.split();
        let zone = pz.and_then(|pz| pzs.get_mut(pz).ok()).map(Pz::users_mut);
        let srq = srq.and_then(|srq| srqs.table_mut().get_mut(srq).ok()).map(Srq::users_mut);
        for users in [zone, srq].into_iter().flatten() {
            users.count(come);
        }
    }
}

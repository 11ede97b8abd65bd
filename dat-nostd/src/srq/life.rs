//! Shared receive queues: create, post, resize, query, free. DAT 1.2, SRQ management.

use driver_mlx::{Bar, Pd, Platform, SrqConfig, SrqNumber};

use crate::adapter::Adapter;
use crate::adapter::objects::{Objects, Tables};
use crate::adapter::part::Parts;
use crate::base::attr::{EpAttributes, SrqAttributes, SrqParameters};
use crate::base::event::AsyncError;
use crate::base::handle::{EpHandle, EvdHandle, HandleType, IaHandle, PzHandle, SrqHandle};
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::states::{SrqCall, SrqEvent};
use crate::base::table::OfIa;
use crate::base::types::{EpState, LmrTriplet};
use crate::ep::MAX_IOV;
use crate::ep::attr::Counts;
use crate::ep::plan::Plan;
use crate::ep::streams::Streams;
use crate::mem::lmr::creation_error;
use crate::srq::QueuePairs;
use crate::srq::queue::{FULL, LEAST_DTOS, Srq, bad, bad_attributes};

impl<'s, P: Platform> Adapter<'s, P> {
    /// `dat_srq_create`.
    ///
    /// # Errors
    /// INVALID_HANDLE (IA, PZ); INVALID_PARAMETER for counts of 0 or above the limits, or a low watermark that is not
    /// `DAT_SRQ_LW_DEFAULT` (0); INSUFFICIENT_RESOURCES.
    pub fn srq_create(
        &mut self,
        ia: IaHandle,
        pz: PzHandle,
        attributes: &SrqAttributes,
    ) -> DatResult<SrqHandle> {
        self.objects().get(ia)?;
        let pd = self.objects().get(pz)?.domain(ia)?;
        let wrong = attributes.max_recv_dtos == 0
            || attributes.max_recv_dtos > self.device().max_srq_dtos()
            || attributes.max_recv_iov == 0
            || attributes.max_recv_iov > MAX_IOV as u32
            || attributes.low_watermark != 0;
        if wrong {
            return Err(bad(Subtype::InvalidArg3));
        }
        self.device().usable()?;
        if self.objects().table::<SrqHandle>().is_full() {
            return Err(FULL);
        }
        let config = SrqConfig {
            pd,
            max_wr: attributes.max_recv_dtos.max(LEAST_DTOS).min(self.device().max_srq_dtos()),
            max_sge: attributes.max_recv_iov,
        };
        let queue = self
            .device_mut()
            .hca_mut()
            .create_srq(&config)
            .map_err(|error| creation_error(error, Subtype::ResourceSrq))?;
        let srq = Srq::new(ia, pz, pd, queue, attributes);
        let handle = self.objects_mut().table_mut().insert(srq).map_err(|_| FULL)?;
        self.objects_mut().get_mut(pz)?.users_mut().attach();
        Ok(handle)
    }

    /// `dat_srq_query`.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn srq_query(&self, handle: SrqHandle) -> DatResult<SrqParameters> {
        let srq = self.objects().get(handle)?;
        Ok(srq.parameters(self.objects().taken_of_srq(handle)))
    }

    /// `dat_srq_resize`: so many buffers fit afterwards, at least.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_PARAMETER for 0 or beyond the IA's limit; INVALID_STATE if more are outstanding, or the low
    /// watermark is higher, or the queue failed; INSUFFICIENT_RESOURCES: beyond the ring (the next power of two less one, 63 at
    /// least) the device cannot go while EPs or buffers are on it.
    pub fn srq_resize(&mut self, handle: SrqHandle, max_recv_dtos: u32) -> DatResult<()> {
        let srq = self.objects().get(handle)?;
        if max_recv_dtos == 0 || max_recv_dtos > self.device().max_srq_dtos() {
            return Err(bad(Subtype::InvalidArg2));
        }
        srq.check_size(max_recv_dtos)?;
        self.device().usable()?;
        if let Some(config) = srq.longer(max_recv_dtos)? {
            let queue = self
                .device_mut()
                .hca_mut()
                .create_srq(&config)
                .map_err(|error| creation_error(error, Subtype::ResourceSrq))?;
            let old = self.objects_mut().get_mut(handle)?.replace(queue);
            // Nothing uses the old one.
            let _ = self.device_mut().hca_mut().destroy_srq(old);
        }
        if self.objects().is_sunk(handle) {
            self.queue_pairs().make_room_in_sink(handle, max_recv_dtos)?;
        }
        self.queue_pairs().reserve_for_srq(handle, max_recv_dtos)?;
        self.objects_mut().get_mut(handle)?.set_max_recv_dtos(max_recv_dtos);
        Ok(())
    }

    /// `dat_srq_set_lw`: one asynchronous event with the reason [`SRQ_LOW_WATERMARK_EVENT`] when fewer buffers than this are left,
    /// at once if that is so already; then none until it is set anew. 0 asks for none.
    ///
    /// [`SRQ_LOW_WATERMARK_EVENT`]: crate::base::states::SRQ_LOW_WATERMARK_EVENT
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_PARAMETER above the queue's size; INVALID_STATE if the queue failed.
    pub fn srq_set_lw(&mut self, handle: SrqHandle, low_watermark: u32) -> DatResult<()> {
        let srq = self.objects().get(handle)?;
        if low_watermark > srq.completions() {
            return Err(bad(Subtype::InvalidArg2));
        }
        SrqCall::SetLowWatermark.in_state(srq.state())?;
        self.device().usable()?;
        let below = (self.srq_query(handle)?.available_dto_count as u32) < low_watermark;
        let Parts { device, objects, .. } = self.parts();
        let srq = objects.get_mut(handle)?;
        // The device would tell when the next one is taken, and we know now.
        let limit = if below { 0 } else { low_watermark as u16 };
        device
            .hca_mut()
            .arm_srq(srq.queue(), limit)
            .map_err(|_| DatReturn::new(ReturnType::InternalError))?;
        srq.set_low_watermark(low_watermark);
        if below {
            self.queue_pairs().srq_event(handle, SrqEvent::Low);
        }
        Ok(())
    }

    /// `dat_srq_free`.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_STATE (SRQ_IN_USE) while an EP is on it.
    pub fn srq_free(&mut self, handle: SrqHandle) -> DatResult<()> {
        if self.objects().get(handle)?.users().is_any() {
            return Err(DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStateSrqInUse));
        }
        self.queue_pairs().end_draining(Some(handle));
        let srq = self.objects_mut().remove(handle)?;
        self.memory().leave_zone(srq.pz());
        self.device_mut()
            .hca_mut()
            .destroy_srq(srq.into_queue())
            .map_err(|_| DatReturn::new(ReturnType::InternalError))
    }

    /// `dat_srq_post_recv`: a buffer for whichever EP of the queue gets the next message. Legal in every state.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_PARAMETER (too many segments, a segment outside its LMR); PROTECTION_VIOLATION;
    /// PRIVILEGES_VIOLATION without local write; INSUFFICIENT_RESOURCES if `max_recv_dtos` are outstanding.
    pub fn srq_post_recv(
        &mut self,
        handle: SrqHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
    ) -> DatResult<()> {
        let Tables { lmrs, srqs, .. } = self.objects_mut().split();
        srqs.table_mut().get_mut(handle)?.post_recv(lmrs, iov, user_cookie)
    }

    /// `dat_ep_create_with_srq`: an EP whose receives come from an SRQ; `ep_post_recv` on it is INVALID_STATE. `max_recv_dtos` of the
    /// attributes is kept as given, 0 and [`HW_DEFAULT`](crate::HW_DEFAULT) too, and `max_recv_iov` is ignored; `srq_soft_hw` is the
    /// first soft high watermark. Without a receive EVD the consumer hears nothing of receives: their buffers are free again when the
    /// adapter is polled.
    ///
    /// # Errors
    /// As `ep_create`; INVALID_HANDLE (SRQ); INVALID_PARAMETER if the EP's protection zone is not the SRQ's (ARG2).
    #[allow(clippy::too_many_arguments)]
    pub fn ep_create_with_srq(
        &mut self,
        ia: IaHandle,
        pz: PzHandle,
        recv_evd: Option<EvdHandle>,
        request_evd: Option<EvdHandle>,
        connect_evd: Option<EvdHandle>,
        srq: SrqHandle,
        attributes: &EpAttributes,
    ) -> DatResult<EpHandle> {
        const BAD: DatReturn = bad_attributes();
        self.objects().get(ia)?;
        let pd = self.objects().get(pz)?.domain(ia)?;
        let streams = Streams { recv: recv_evd, request: request_evd, connect: connect_evd };
        self.objects().check_streams(ia, &streams)?;
        let state = self.objects().get(srq)?.state();
        self.objects().get(srq)?.ia().check(ia, HandleType::Srq)?;
        self.objects().check_srq_zone(srq, pd)?;
        let attributes = self.device().check_attributes(&streams, Some(attributes), Counts::OnSrq, BAD)?;
        self.objects().check_notification(&streams, &attributes, BAD)?;
        SrqCall::Attach.in_state(state)?;
        let plan = Plan { pd, streams, srq: Some(srq), attributes };
        self.endpoints().create_ep(ia, Some(pz), &plan, EpState::Unconnected)
    }
}

impl<P: Platform> QueuePairs<'_, '_, P> {
    /// What the device tells of an SRQ.
    pub(crate) fn srq_told(&mut self, number: SrqNumber, event: SrqEvent) {
        for slot in self.objects.table::<SrqHandle>().slots() {
            if self.objects.table::<SrqHandle>().at(slot).is_some_and(|srq| srq.number() == number)
                && let Some(handle) = self.objects.table::<SrqHandle>().handle_at(slot)
            {
                self.srq_event(handle, event);
            }
        }
    }

    fn srq_event(&mut self, handle: SrqHandle, event: SrqEvent) {
        let Ok(srq) = self.objects.get_mut(handle) else { return };
        let Some(reason) = srq.take(event) else { return };
        let ia = srq.ia();
        self.delivery().post_async(Some(ia), AsyncError::ProviderInternalError, handle.into(), reason);
    }
}

impl<B: Bar> Objects<'_, B> {
    /// Whether EPs of this protection domain may be on an SRQ.
    pub(crate) fn check_srq_zone(&self, srq: SrqHandle, pd: Pd) -> DatResult<()> {
        if self.get(srq)?.pd() == pd { Ok(()) } else { Err(bad(Subtype::InvalidArg2)) }
    }
}

//! The end of queue pairs: now, or when they are drained.

use driver_mlx::{Duration, Instant, Platform, Qp, QpNumber, Wake};

use crate::adapter::events::DeviceEvents;
use crate::adapter::objects::{Objects, Tables};
use crate::base::handle::{EpHandle, EvdHandle, SrqHandle};
use crate::base::ret::{DatResult, DatReturn, ReturnType};
use crate::conn::closing::{LAST_RECEIVE_WITHIN, TICK, ticks};
use crate::ep::streams::Streams;
use crate::mem::windows::settle_binds;
use crate::srq::QueuePairs;
use crate::srq::draining::EndedQp;

/// Steps in which a call waits for the device.
const STEP: Duration = Duration::from_micros(20);

impl<P: Platform> QueuePairs<'_, '_, P> {
    /// Takes the QP from an EP that ends or gets another one.
    pub(crate) fn take_qp(&mut self, handle: EpHandle) -> Option<EndedQp<P::Bar>> {
        settle_binds(self.objects, handle);
        let until = ticks(self.device.now()).wrapping_add(LAST_RECEIVE_WITHIN);
        let ep = self.objects.get_mut(handle).ok()?;
        let (qp, qpn) = ep.take_qp()?;
        let streams = Streams { connect: None, ..ep.streams() };
        let (srq, requests) = (ep.srq(), ep.requests().outstanding());
        Some(EndedQp { qp, qpn, streams, srq, requests, last_receive: ep.connection().last_receive(), until })
    }

    /// Destroys a QP, later if it may hold a buffer of its SRQ. Drops the completions that it left.
    pub(crate) fn end_qp(&mut self, mut ended: EndedQp<P::Bar>) -> DatResult<()> {
        let (qpn, streams) = (ended.qpn, ended.streams);
        let Some(srq) = ended.holds().filter(|_| !self.device.is_dead()) else { return self.destroy(ended) };
        let receives = self.objects.srq_places(srq, streams.recv, None);
        let full = self.objects.srqs().draining.is_full();
        if full
            || self.device.hca_mut().modify_to_error(&mut ended.qp).is_err()
            || self.make_room(&streams, ended.requests, receives).is_err()
        {
            return self.destroy(ended);
        }
        self.objects.reserve(&streams, ended.requests, receives, true);
        if let Err(ended) = self.objects.srqs_mut().draining.insert(ended) {
            // Unreachable: the table was not full.
            return self.destroy(ended);
        }
        self.sweep_qp(qpn, &streams, Some(srq));
        Ok(())
    }

    fn destroy(&mut self, ended: EndedQp<P::Bar>) -> DatResult<()> {
        self.give_up_qp(ended.qp, ended.qpn, &ended.streams, ended.srq)
    }

    /// Destroys a QP and takes its completions out of the CQs of these EVDs. Buffers of an SRQ that they report are free again.
    pub(crate) fn give_up_qp(
        &mut self,
        qp: Qp<P::Bar>,
        qpn: QpNumber,
        streams: &Streams,
        srq: Option<SrqHandle>,
    ) -> DatResult<()> {
        let destroyed = self.device.hca_mut().destroy_qp(qp);
        self.sweep_qp(qpn, streams, srq);
        destroyed.map_err(|_| DatReturn::new(ReturnType::InternalError))
    }

    /// Takes the completions of a QP out of the CQs of these EVDs. Buffers of an SRQ that they
    /// report are free again.
    fn sweep_qp(&mut self, qpn: QpNumber, streams: &Streams, srq: Option<SrqHandle>) {
        let recv = streams.recv.filter(|recv| Some(*recv) != streams.request);
        for evd in [streams.request, recv].into_iter().flatten() {
            let Tables { evds, srqs, .. } = self.objects.split();
            evds.sweep(evd, qpn, srq.and_then(|srq| srqs.table.get_mut(srq).ok()));
        }
        if let (None, Some(srq)) = (streams.recv, srq) {
            self.sweep_sink(qpn, srq);
        }
    }

    /// Destroys a draining QP and gives back what it reserved.
    fn finish(&mut self, place: EpHandle) {
        let Ok(ended) = self.objects.srqs_mut().draining.remove(place) else { return };
        let receives = ended.srq.map_or(0, |srq| self.objects.srq_places(srq, ended.streams.recv, None));
        self.objects.reserve(&ended.streams, ended.requests, receives, false);
        // The EP is gone whatever the device says to this.
        let _ = self.destroy(ended);
    }

    /// Handles LAST_WQE_REACHED. Returns whether the QP was a draining one.
    pub(crate) fn drained(&mut self, qpn: QpNumber) -> bool {
        let found =
            self.objects.srqs().draining.iter().find(|(_, ended)| ended.qpn == qpn).map(|(place, _)| place);
        found.map(|place| self.finish(place)).is_some()
    }

    /// Destroys the draining QPs whose LAST_WQE_REACHED is overdue. Returns when the next one will
    /// be.
    pub(crate) fn expire_draining(&mut self, now: Instant) -> Wake {
        let mut wake = Wake::Idle;
        for place in self.objects.srqs().draining.slots() {
            let Some(ended) = self.objects.srqs().draining.at(place) else { continue };
            let left = ended.until.wrapping_sub(ticks(now)) as i32;
            if left > 0 {
                wake = wake.earliest(Wake::At(now + TICK * left as u32));
            } else if let Some(place) = self.objects.srqs().draining.handle_at(place) {
                self.finish(place);
            }
        }
        wake
    }

    /// Destroys the draining QPs of an SRQ whose buffers go too, or all.
    pub(crate) fn end_draining(&mut self, srq: Option<SrqHandle>) {
        self.finish_each(|ended| srq.is_none() || ended.srq == srq);
    }

    fn finish_each(&mut self, is_meant: impl Fn(&EndedQp<P::Bar>) -> bool) {
        for place in self.objects.srqs().draining.slots() {
            if self.objects.srqs().draining.at(place).is_some_and(&is_meant)
                && let Some(place) = self.objects.srqs().draining.handle_at(place)
            {
                self.finish(place);
            }
        }
    }

    /// Waits for the draining QPs that report to an EVD, whose CQ they would keep the device from
    /// destroying.
    pub(crate) fn drain_evd(&mut self, evd: EvdHandle) {
        let reports = |ended: &EndedQp<P::Bar>| ended.reports_to(evd);
        self.await_draining(|objects| objects.srqs().draining.iter().any(|(_, ended)| reports(ended)));
        self.finish_each(reports);
    }

    /// Waits until another QP can drain.
    pub(crate) fn make_draining_room(&mut self) {
        self.await_draining(|objects| objects.srqs().draining.is_full());
    }

    fn await_draining(&mut self, waits: impl Fn(&Objects<'_, P::Bar>) -> bool) {
        while !self.device.is_dead() && waits(self.objects) {
            let now = self.device.now();
            let _ = DeviceEvents::new(self.device, self.objects, self.progress).take(now);
            let _ = self.expire_draining(now);
            if waits(self.objects) {
                self.device.hca().idle(now + STEP);
            }
        }
    }
}

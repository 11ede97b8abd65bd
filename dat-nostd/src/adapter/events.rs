//! Events of the device: completions, errors of queues and QPs, fatal errors.

use driver_mlx::{AsyncEvent, CqNumber, Instant, Platform, QpNumber, Wake};

use crate::adapter::part::part;
use crate::base::event::AsyncError;
use crate::base::handle::{EvdHandle, Handle};
use crate::base::states::{EpEvent, SrqEvent};
use crate::base::table::OfIa;
use crate::base::types::EpState;
use crate::conn::Connections;
use crate::ep::Ep;
use crate::evd::delivery::Delivery;
use crate::srq::QueuePairs;

/// Event of a QP that got its first packet before its confirmation (PRM, event types).
const COMMUNICATION_ESTABLISHED: u8 = 0x02;

/// Port change by which the subnet manager requests re-registration (PRM, port state change event).
const CLIENT_REREGISTER: u8 = 0x09;

part! {
    /// The parts of an adapter that events of its device change.
    DeviceEvents, connections: Connections, queue_pairs: QueuePairs
}

impl<P: Platform> DeviceEvents<'_, '_, P> {
    /// Runs what is due in the driver and handles the device's events.
    pub(crate) fn take(&mut self, now: Instant) -> Wake {
        let wake = self.device.hca_mut().poll(now);
        if let Some(event) = self.device.hca_mut().next_event() {
            self.device_events(event);
        }
        if self.device.hca().fatal().is_some() {
            self.die();
        }
        wake
    }

    // A function of its own, because most polls find no event.
    #[cold]
    #[inline(never)]
    fn device_events(&mut self, first: AsyncEvent) {
        self.progress.set_happened();
        self.device_event(first);
        while let Some(event) = self.device.hca_mut().next_event() {
            self.device_event(event);
        }
    }

    /// Completion events: whose CQ may be armed again.
    pub(super) fn notifications(&mut self) {
        let mut delivery = Delivery::new(self.objects, self.progress);
        if self.device.poll_completions(|number| delivery.notified(number)) > 0 {
            self.progress.set_happened();
        }
    }

    fn device_event(&mut self, event: AsyncEvent) {
        match event {
            AsyncEvent::Port { change, .. } => {
                self.device.refresh_port(change.0 == CLIENT_REREGISTER);
            }
            AsyncEvent::Qp { qpn, .. } if self.device.port_mut().qp_failed(qpn) => {}
            AsyncEvent::RawPacket { .. } => self.device.port_mut().raw_packet_failed(),
            AsyncEvent::Qp { qpn, event } => self.qp_event(qpn, event.0 == COMMUNICATION_ESTABLISHED),
            AsyncEvent::CqError { cqn, .. } => self.cq_error(cqn),
            AsyncEvent::QpLastWqe(qpn) if self.queue_pairs().drained(qpn) => {}
            AsyncEvent::QpLastWqe(qpn) => self.connections().last_receive(qpn),
            AsyncEvent::SrqLimit(number) => self.queue_pairs().srq_told(number, SrqEvent::Low),
            AsyncEvent::SrqError(number) => self.queue_pairs().srq_told(number, SrqEvent::Failed),
            AsyncEvent::Fatal(_) => self.die(),
            AsyncEvent::PagesRefused { .. } => {
                self.delivery().post_async(None, AsyncError::ProviderInternalError, Handle::from_bits(0), 0);
            }
            _ => {}
        }
    }

    /// Handles an event of a QP: data that arrived before the RTU, or an error without a completion.
    fn qp_event(&mut self, qpn: QpNumber, established: bool) {
        for slot in self.objects.eps().slots() {
            let Some(ep) = self.objects.eps().at(slot) else { continue };
            if ep.qpn() != qpn || ep.qp().is_none() {
                continue;
            }
            if established {
                self.connections().establish_passive(slot);
            } else {
                let alive = matches!(ep.state(), EpState::Connected | EpState::DisconnectPending);
                let (ia, handle) = (ep.ia(), self.objects.eps().handle_at(slot));
                self.connections().fail_ep(slot);
                if alive && let Some(handle) = handle {
                    self.delivery().post_async(Some(ia), AsyncError::EpBroken, handle.into(), 0);
                }
            }
            return;
        }
    }

    /// A CQ failed: its EVD is unusable, and the EPs that use it fail.
    fn cq_error(&mut self, number: CqNumber) {
        let Some(slot) = self.objects.evds_mut().find(number) else { return };
        let Some(evd) = self.objects.table_mut::<EvdHandle>().at_mut(slot) else { return };
        if !evd.overflow() {
            return;
        }
        self.progress.count_overflow();
        let ia = evd.ia();
        let Some(handle) = self.objects.table::<EvdHandle>().handle_at(slot) else { return };
        self.objects.evds_mut().ready(slot);
        self.delivery().post_async(Some(ia), AsyncError::EvdOverflow, handle.into(), 0);
        for ep in self.objects.eps().slots() {
            let uses =
                |ep: &Ep<P::Bar>| ep.streams().recv == Some(handle) || ep.streams().request == Some(handle);
            if self.objects.eps().at(ep).is_some_and(uses) {
                self.connections().fail_ep(ep);
            }
        }
    }

    /// The device is gone: IA_CATASTROPHIC, every connection ends, everything outstanding counts as flushed.
    pub(super) fn die(&mut self) {
        if !self.device.die() {
            return;
        }
        self.progress.set_happened();
        self.delivery().post_async(None, AsyncError::IaCatastrophic, Handle::from_bits(0), 0);
        for slot in self.objects.table::<EvdHandle>().slots() {
            if let Some(evd) = self.objects.table_mut::<EvdHandle>().at_mut(slot) {
                evd.leave_fast_path();
            }
        }
        for slot in self.objects.eps().slots() {
            self.connections().end_ep(slot, EpEvent::DeviceGone);
        }
        let _ = self.connections().progress_all_closing(Instant::ORIGIN);
        self.queue_pairs().end_draining(None);
        self.objects.evds_mut().wake_all();
    }
}

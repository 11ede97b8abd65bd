//! Watching the device: the health poll and the events it sends.

use super::Hca;
use super::device_state::{HealthBuffer, interface_state, is_away};
use super::function::Function;
use crate::cmd::Ticket;
use crate::error::{FatalCause, HealthWarning};
use crate::event::AsyncEvent;
use crate::platform::{Bar, Platform};
use crate::trace::TraceKind;
use crate::types::{CqNumber, Instant, QpNumber, SrqNumber, Wake};
use mlx5_prm::datapath::{cq_error, eqe_page_req, port_state_change_event, qp_events};
use mlx5_prm::event::{EventQueueType, EventType, PortChange};
use mlx5_prm::init_seg;
use mlx5_prm::status::{CqErrorSyndrome, HealthSyndrome};
use mlx5_prm::value::NicInterface;

/// Equal readings of the health counter, after the first, that are reported.
const EQUAL_READINGS: u32 = 3;

/// What the health poll remembers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Health {
    counter: Option<u32>,
    equal: u32,
    /// A command that asks whether firmware still runs though its counter stands.
    pub(super) probe: Option<Ticket>,
    /// Whether the register of the command queue's address reads as it was written.
    pub(super) names_owner: bool,
    /// The syndrome that was reported last.
    syndrome: Option<HealthSyndrome>,
    /// When to look next.
    pub(super) next: Instant,
    /// The device has failed, and reaches no memory any more.
    confined: bool,
}

/// In a page request's flags: it is the embedded processor's.
const EMBEDDED_CPU: u32 = 1 << 15;
/// In a page request's flags: the function is gone, all its pages are free.
const RELEASE_ALL: u32 = 1 << 14;

impl<P: Platform> Hca<'_, P> {
    /// Takes asynchronous events, answers page requests, and looks at the device's health when it is time. Says by when
    /// it wants to be called again, at the latest: a device that has failed is looked at until its bus mastering is known to be off.
    pub fn poll(&mut self, now: Instant) -> Wake {
        self.drain_async(now);
        self.look_at_health(now);
        if self.health.confined { Wake::Idle } else { Wake::At(self.health.next) }
    }

    /// The oldest event not yet taken.
    pub fn next_event(&mut self) -> Option<AsyncEvent> {
        self.events.pop()
    }

    /// Takes completion events and names the CQ of each: it has completions, and [`Cq::notified`](crate::Cq::notified) is
    /// due. The number is the device's claim. Gives how many there were; the most in one call is the size of the queues.
    pub fn poll_completions(&mut self, mut notify: impl FnMut(CqNumber)) -> u32 {
        let bar = self.platform.bar();
        let mut taken = 0;
        for eq in self.completion_eqs.iter_mut().flatten() {
            for _ in 0..eq.size() {
                match eq.next_completion(bar) {
                    None => break,
                    Some(Ok(cqn)) => {
                        taken += 1;
                        notify(cqn);
                    }
                    Some(Err(_)) => self.counters.bad_events += 1,
                }
            }
            eq.update(bar);
        }
        self.counters.completion_events += u64::from(taken);
        taken
    }

    /// Arms all event queues: the next event raises an interrupt, at once if there is one already.
    pub fn arm_events(&mut self) {
        let bar = self.platform.bar();
        for eq in self.async_eq.iter_mut().chain(self.completion_eqs.iter_mut().flatten()) {
            eq.arm(bar);
        }
    }

    /// Whether the device is still fit for use; looks now, whatever the time. How often it is called makes no difference to the health
    /// poll.
    pub fn check_health(&mut self, now: Instant) -> Option<FatalCause> {
        self.look_at_sensors(now);
        self.fatal
    }

    pub(super) fn push_event(&mut self, event: AsyncEvent) {
        if !self.events.push(event) {
            self.counters.events_lost += 1;
        }
    }

    pub(super) fn set_fatal(&mut self, now: Instant, cause: FatalCause) {
        if self.fatal.is_none() {
            self.fail(cause);
            self.trace.push(now, TraceKind::Health(cause));
            self.push_event(AsyncEvent::Fatal(cause));
        }
    }

    /// The device counts as failed. Its queues may outlive its firmware: before anybody learns of it, and uses buffers again, it is kept
    /// from memory.
    pub(super) fn fail(&mut self, cause: FatalCause) {
        self.fatal.get_or_insert(cause);
        self.health.confined = self.confine();
    }

    /// Takes what the asynchronous event queue holds, but no more than one turn of it.
    pub(super) fn drain_async(&mut self, now: Instant) {
        // Answering a page request waits for commands and so comes here again: the queue is lent away meanwhile.
        let Some(mut eq) = self.async_eq.take() else { return };
        let bar = self.platform.bar();
        for _ in 0..eq.size() {
            let Some(eqe) = eq.next(bar) else { break };
            self.counters.events += 1;
            self.trace.push(now, TraceKind::Event { event: eqe.event, sub_type: eqe.sub_type });
            if eqe.event == EventType::PAGE_REQUEST {
                // The answer takes a while, in which more may arrive.
                eq.update(bar);
            }
            self.dispatch(now, eqe.event, eqe.sub_type, &eqe.data);
        }
        eq.update(bar);
        self.async_eq = Some(eq);
    }

    fn dispatch(&mut self, now: Instant, event: EventType, sub_type: u8, data: &[u8]) {
        match event {
            EventType::PAGE_REQUEST => self.page_request(data),
            EventType::PORT_CHANGE => {
                let port = port_state_change_event::port_num.get(data) as u8;
                self.push_event(AsyncEvent::Port { port, change: PortChange(sub_type) });
            }
            EventType::PATH_MIG
            | EventType::COMM_EST
            | EventType::SQ_DRAINED
            | EventType::WQ_CATAS_ERROR
            | EventType::PATH_MIG_FAILED
            | EventType::WQ_INVAL_REQ_ERROR
            | EventType::WQ_ACCESS_ERROR
                if EventQueueType(qp_events::r#type.get(data) as u8) == EventQueueType::QP =>
            {
                let qpn = QpNumber::new(qp_events::qpn_rqn_sqn.get32(data));
                self.push_event(AsyncEvent::Qp { qpn, event });
            }
            EventType::SRQ_LAST_WQE => {
                self.push_event(AsyncEvent::QpLastWqe(QpNumber::new(qp_events::qpn_rqn_sqn.get32(data))));
            }
            EventType::SRQ_RQ_LIMIT => {
                self.push_event(AsyncEvent::SrqLimit(SrqNumber::new(qp_events::qpn_rqn_sqn.get32(data))));
            }
            EventType::SRQ_CATAS_ERROR => {
                self.push_event(AsyncEvent::SrqError(SrqNumber::new(qp_events::qpn_rqn_sqn.get32(data))));
            }
            EventType::CQ_ERROR => {
                let cqn = CqNumber::new(cq_error::cqn.get32(data));
                let syndrome = CqErrorSyndrome(cq_error::syndrome.get(data) as u8);
                self.push_event(AsyncEvent::CqError { cqn, syndrome });
            }
            EventType::INTERNAL_ERROR => self.set_fatal(now, FatalCause::InternalError),
            // Commands are polled for.
            EventType::CMD => {}
            EventType::COMP => self.counters.bad_events += 1,
            _ => self.push_event(AsyncEvent::Other { event, sub_type }),
        }
    }

    fn page_request(&mut self, data: &[u8]) {
        let flags = eqe_page_req::ec_function.get32(data);
        let function =
            Function { id: eqe_page_req::func_id.get(data) as u16, embedded_cpu: flags & EMBEDDED_CPU != 0 };
        if flags & RELEASE_ALL != 0 {
            self.release_all_pages(function);
            return;
        }
        // A failure has been counted and traced where it happened; there is nobody here to tell.
        let served = self.serve_page_request(function, eqe_page_req::num_pages.get32(data) as i32);
        if served.is_err() {
            self.counters.page_requests_failed += 1;
        }
    }

    /// The health poll, if it is time.
    pub(super) fn look_at_health(&mut self, now: Instant) {
        if now < self.health.next || self.health.confined {
            return;
        }
        self.health.next = now + self.limits.health_interval;
        if self.fatal.is_some() {
            // It was away, say, when it failed.
            self.health.confined = self.confine();
            return;
        }
        self.counters.health_polls += 1;
        self.look_at_sensors(now);
        if self.fatal.is_none() && self.enabled {
            self.look_for_trouble(now);
        }
    }

    /// Whether the device has failed: what Linux's mlx5 calls a fatal sensor, in its order, because a device that is gone reads as all
    /// ones everywhere.
    fn look_at_sensors(&mut self, now: Instant) {
        let bar = self.platform.bar();
        if self.fatal.is_some() {
            return;
        }
        if is_away(bar) {
            return self.set_fatal(now, FatalCause::LinkDead);
        }
        // Until ENABLE_HCA is done, the function may well say that it is disabled, and the buffer may tell of what was before.
        if !self.enabled {
            return;
        }
        let interface = interface_state(bar);
        if interface == NicInterface::DISABLED.0 || interface == NicInterface::SW_RESET.0 {
            return self.set_fatal(now, FatalCause::Interface(interface));
        }
        let HealthBuffer { reset_wanted, syndrome, ext_syndrome, .. } = HealthBuffer::read(bar);
        if reset_wanted && syndrome != HealthSyndrome::HEALTHY {
            return self.set_fatal(now, FatalCause::Syndrome { syndrome, extended: ext_syndrome });
        }
        if self.is_disowned() {
            self.set_fatal(now, FatalCause::Forgotten);
        }
    }

    /// From now on the device is this driver's; if its registers say so, they tell of a function-level reset too.
    pub(super) fn begin_health_poll(&mut self) {
        self.health.next = self.platform.now() + self.limits.health_interval;
        self.health.names_owner = self.is_owner();
    }

    /// What is told and not acted upon: a syndrome without a wish for a reset, which may be a neighbour's, and a counter that stands.
    fn look_for_trouble(&mut self, now: Instant) {
        let bar = self.platform.bar();
        let HealthBuffer { syndrome, ext_syndrome, .. } = HealthBuffer::read(bar);
        let ill = (syndrome != HealthSyndrome::HEALTHY).then_some(syndrome);
        if ill != self.health.syndrome {
            self.health.syndrome = ill;
            if let Some(syndrome) = ill {
                self.warn(now, HealthWarning::Syndrome { syndrome, extended: ext_syndrome });
            }
        }
        let counter = bar.read32(init_seg::HEALTH_COUNTER_OFFSET) & 0xff_ffff;
        if self.health.counter.replace(counter) != Some(counter) {
            self.health.equal = 0;
        } else {
            self.health.equal = self.health.equal.saturating_add(1);
            if self.health.equal == EQUAL_READINGS {
                self.warn(now, HealthWarning::CounterStands);
            }
        }
        self.probe(now, self.health.equal >= EQUAL_READINGS);
    }

    fn warn(&mut self, now: Instant, warning: HealthWarning) {
        self.trace.push(now, TraceKind::HealthWarning(warning));
        self.push_event(AsyncEvent::Health(warning));
    }
}

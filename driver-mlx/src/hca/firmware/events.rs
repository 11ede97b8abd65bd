//! Asynchronous events: their queue and their meaning.

use super::function::Function;
use super::{Firmware, Memory};
use crate::completion::WorkQueue;
use crate::eq::Eq;
use crate::error::FatalCause;
use crate::event::AsyncEvent;
use crate::platform::Platform;
use crate::trace::TraceKind;
use crate::types::{CqNumber, Instant, QpNumber, SrqNumber};
use mlx5_prm::datapath::{cq_error, eqe_page_req, port_state_change_event, qp_events};
use mlx5_prm::event::{EventQueueType, EventType, PortChange};
use mlx5_prm::status::CqErrorSyndrome;

/// In a page request's flags: it is the embedded processor's.
const EMBEDDED_CPU: u32 = 1 << 15;
/// In a page request's flags: the function is gone, all its pages are free.
const RELEASE_ALL: u32 = 1 << 14;

impl<P: Platform> Firmware<'_, P> {
    /// Takes page requests and events from this queue from now on.
    pub(in crate::hca) fn set_async_eq(&mut self, eq: Eq) {
        self.async_eq = Some(eq);
    }

    /// Takes the queue away, to destroy it.
    pub(in crate::hca) fn take_async_eq(&mut self) -> Option<Eq> {
        self.async_eq.take()
    }

    /// Arms the queue of asynchronous events.
    pub(in crate::hca) fn arm_async(&mut self) {
        if let Some(eq) = &mut self.async_eq {
            eq.arm(self.platform.bar());
        }
    }

    /// Takes what the asynchronous event queue holds, but no more than one turn of it.
    #[inline]
    pub(in crate::hca) fn drain_async(&mut self, memory: &mut Memory<'_>, now: Instant) {
        if self.async_eq.as_ref().is_some_and(Eq::has_entry) {
            self.take_events(memory, now);
        }
    }

    // A function of its own, because most polls find no event and should not move the queue.
    #[cold]
    #[inline(never)]
    fn take_events(&mut self, memory: &mut Memory<'_>, now: Instant) {
        // Answering a page request waits for commands and so comes here again: the queue is lent away meanwhile.
        let Some(mut eq) = self.async_eq.take() else { return };
        let bar = self.platform.bar();
        for _ in 0..eq.size() {
            let Some(eqe) = eq.next(bar) else { break };
            self.log.counters_mut().events += 1;
            self.log.trace(now, TraceKind::Event { event: eqe.event, sub_type: eqe.sub_type });
            if eqe.event == EventType::PAGE_REQUEST {
                // The answer takes a while, in which more may arrive.
                eq.update(bar);
            }
            self.dispatch(memory, now, eqe.event, eqe.sub_type, &eqe.data);
        }
        eq.update(bar);
        self.async_eq = Some(eq);
    }

    fn dispatch(
        &mut self,
        memory: &mut Memory<'_>,
        now: Instant,
        event: EventType,
        sub_type: u8,
        data: &[u8],
    ) {
        match event {
            EventType::PAGE_REQUEST => self.page_request(memory, data),
            EventType::PORT_CHANGE => {
                let port = port_state_change_event::port_num.get(data) as u8;
                self.log.push_event(AsyncEvent::Port { port, change: PortChange(sub_type) });
            }
            EventType::PATH_MIG
            | EventType::COMM_EST
            | EventType::SQ_DRAINED
            | EventType::WQ_CATAS_ERROR
            | EventType::PATH_MIG_FAILED
            | EventType::WQ_INVAL_REQ_ERROR
            | EventType::WQ_ACCESS_ERROR => {
                let event = match EventQueueType(qp_events::r#type.get(data) as u8) {
                    EventQueueType::QP => {
                        AsyncEvent::Qp { qpn: QpNumber::new(qp_events::qpn_rqn_sqn.get32(data)), event }
                    }
                    EventQueueType::SQ => AsyncEvent::RawPacket { queue: WorkQueue::Send, event },
                    EventQueueType::RQ => AsyncEvent::RawPacket { queue: WorkQueue::Receive, event },
                    _ => AsyncEvent::Other { event, sub_type },
                };
                self.log.push_event(event);
            }
            EventType::SRQ_LAST_WQE => {
                self.log.push_event(AsyncEvent::QpLastWqe(QpNumber::new(qp_events::qpn_rqn_sqn.get32(data))));
            }
            EventType::SRQ_RQ_LIMIT => {
                self.log.push_event(AsyncEvent::SrqLimit(SrqNumber::new(qp_events::qpn_rqn_sqn.get32(data))));
            }
            EventType::SRQ_CATAS_ERROR => {
                self.log.push_event(AsyncEvent::SrqError(SrqNumber::new(qp_events::qpn_rqn_sqn.get32(data))));
            }
            EventType::CQ_ERROR => {
                let cqn = CqNumber::new(cq_error::cqn.get32(data));
                let syndrome = CqErrorSyndrome(cq_error::syndrome.get(data) as u8);
                self.log.push_event(AsyncEvent::CqError { cqn, syndrome });
            }
            EventType::INTERNAL_ERROR => self.set_fatal(now, FatalCause::InternalError),
            // Commands are polled for.
            EventType::CMD => {}
            EventType::COMP => self.log.counters_mut().bad_events += 1,
            _ => self.log.push_event(AsyncEvent::Other { event, sub_type }),
        }
    }

    fn page_request(&mut self, memory: &mut Memory<'_>, data: &[u8]) {
        let flags = eqe_page_req::ec_function.get32(data);
        let function =
            Function { id: eqe_page_req::func_id.get(data) as u16, embedded_cpu: flags & EMBEDDED_CPU != 0 };
        if flags & RELEASE_ALL != 0 {
            self.pages(memory).release_all(function);
            return;
        }
        // The failure itself is counted and traced where it happens.
        let served = self.pages(memory).serve(function, eqe_page_req::num_pages.get32(data) as i32);
        if served.is_err() {
            self.log.counters_mut().page_requests_failed += 1;
        }
    }
}

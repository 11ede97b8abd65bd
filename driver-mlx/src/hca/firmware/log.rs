//! The record of one HCA: steps of bring-up, trace, counters, asynchronous events.

use crate::error::{HealthWarning, Step};
use crate::event::AsyncEvent;
use crate::trace::{Counters, Trace, TraceEntry, TraceKind};
use crate::types::{Duration, Instant};

/// Duration of a step of bring-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct StepTime {
    /// The step.
    pub step: Step,
    /// Its duration.
    pub took: Duration,
}

/// Trace, counters and asynchronous events, in storage that survives the HCA.
pub(in crate::hca) struct Log<'s> {
    trace: Trace<'s>,
    events: EventRing<'s>,
    counters: Counters,
    step: Step,
    /// Times of the steps before the current one, in order.
    times: [StepTime; 20],
    len: usize,
    began: Instant,
}

/// Asynchronous events that the consumer has not taken.
struct EventRing<'s> {
    slots: &'s mut [AsyncEvent],
    first: usize,
    len: usize,
}

impl EventRing<'_> {
    fn push(&mut self, event: AsyncEvent) -> bool {
        if self.len >= self.slots.len() {
            return false;
        }
        let index = self.first + self.len;
        let index = if index >= self.slots.len() { index - self.slots.len() } else { index };
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = event;
            self.len += 1;
        }
        true
    }

    fn pop(&mut self) -> Option<AsyncEvent> {
        if self.len == 0 {
            return None;
        }
        let event = self.slots.get(self.first).copied();
        self.first = if self.first + 1 >= self.slots.len() { 0 } else { self.first + 1 };
        self.len -= 1;
        event
    }
}

impl<'s> Log<'s> {
    pub(in crate::hca) fn new(
        trace: &'s mut [TraceEntry],
        events: &'s mut [AsyncEvent],
        now: Instant,
    ) -> Self {
        Self {
            trace: Trace::new(trace),
            events: EventRing { slots: events, first: 0, len: 0 },
            counters: Counters::default(),
            step: Step::Presence,
            times: [StepTime::default(); 20],
            len: 0,
            began: now,
        }
    }

    /// Adds an entry to the trace.
    pub(in crate::hca) fn trace(&mut self, now: Instant, kind: TraceKind) {
        self.trace.push(now, kind);
    }

    /// The trace, for a report.
    pub(in crate::hca) fn entries(&self) -> &Trace<'s> {
        &self.trace
    }

    pub(in crate::hca) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(super) fn counters_mut(&mut self) -> &mut Counters {
        &mut self.counters
    }

    pub(in crate::hca) fn step(&self) -> Step {
        self.step
    }

    pub(in crate::hca) fn times(&self) -> &[StepTime] {
        self.times.get(..self.len).unwrap_or(&[])
    }

    /// Begins bring-up once more.
    pub(super) fn restart(&mut self, now: Instant) {
        (self.step, self.len, self.began) = (Step::Presence, 0, now);
    }

    /// Ends the current step of bring-up and begins the next.
    pub(in crate::hca) fn enter(&mut self, now: Instant, next: Step) {
        if let Some(slot) = self.times.get_mut(self.len) {
            *slot = StepTime { step: self.step, took: now - self.began };
            self.len += 1;
        }
        self.began = now;
        self.set_step(now, next);
    }

    /// Begins a step outside of bring-up.
    pub(in crate::hca) fn set_step(&mut self, now: Instant, step: Step) {
        self.step = step;
        self.trace(now, TraceKind::Step(step));
    }

    /// Keeps an event for the consumer, if there is room.
    pub(super) fn push_event(&mut self, event: AsyncEvent) {
        if !self.events.push(event) {
            self.counters.events_lost += 1;
        }
    }

    /// Reports a condition that needs no reset.
    pub(super) fn warn(&mut self, now: Instant, warning: HealthWarning) {
        self.trace(now, TraceKind::HealthWarning(warning));
        self.push_event(AsyncEvent::Health(warning));
    }

    /// Takes the oldest event.
    pub(in crate::hca) fn next_event(&mut self) -> Option<AsyncEvent> {
        self.events.pop()
    }

    /// Counts completion events taken, and entries of their queues without a meaning.
    pub(in crate::hca) fn count_completions(&mut self, taken: u32, bad: u32) {
        self.counters.completion_events += u64::from(taken);
        self.counters.bad_events += u64::from(bad);
    }
}

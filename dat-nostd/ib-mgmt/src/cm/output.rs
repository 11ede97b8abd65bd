//! The communication manager: timers, and what is to be sent.

use super::machine::Cm;
use super::slot::{CmSlot, Shared, Terminal, event};
use super::types::{DisconnectCause, Outgoing, Stage, State};
use ib_types::{Instant, Wake};

impl Cm<'_> {
    /// Runs the timers, and gives one MAD to send; call until there is none. Timers make events
    /// too.
    #[must_use = "the message is sent by nobody else"]
    #[inline]
    pub fn dispatch(&mut self, now: Instant) -> Option<Outgoing> {
        if self.poll_at().is_due(now) { self.next_outgoing(now) } else { None }
    }

    // A function of its own, because most polls have nothing to send and should not need its stack.
    #[inline(never)]
    fn next_outgoing(&mut self, now: Instant) -> Option<Outgoing> {
        self.expire(now);
        if let Some(reply) = self.shared.replies.pop_front() {
            self.shared.counters.sent += 1;
            return Some(Outgoing { dest: reply.dest, mad: reply.to_mad() });
        }
        if !self.shared.any_send {
            return None;
        }
        let count = self.slots.len();
        for step in 0..count {
            let index = (self.send_cursor + step) % count;
            let Some(slot) = self.slots.get_mut(index).filter(|slot| slot.send_now) else { continue };
            self.send_cursor = (index + 1) % count;
            slot.send_now = false;
            let outgoing = Outgoing { dest: slot.peer, mad: slot.tx };
            slot.reap();
            self.shared.counters.sent += 1;
            return Some(outgoing);
        }
        self.shared.any_send = false;
        None
    }

    /// When to call [`Cm::dispatch`] next. May be earlier than anything happens, never later.
    #[inline]
    pub fn poll_at(&self) -> Wake {
        if self.shared.any_send || !self.shared.replies.is_empty() {
            return Wake::Now;
        }
        Wake::by(self.shared.next_deadline)
    }

    /// Returns whether [`Cm::poll_event`] may return an event.
    pub fn has_event(&self) -> bool {
        self.shared.any_event
    }

    fn expire(&mut self, now: Instant) {
        if now < self.shared.next_deadline {
            return;
        }
        self.shared.next_deadline = Instant::MAX;
        for slot in self.slots.iter_mut().filter(|slot| slot.state != State::Free) {
            if slot.deadline <= now {
                slot.expire(&mut self.shared, now);
            }
            if slot.state != State::Free {
                self.shared.next_deadline = self.shared.next_deadline.min(slot.deadline);
            }
        }
    }
}

impl CmSlot {
    fn expire(&mut self, shared: &mut Shared, now: Instant) {
        match self.state {
            State::ReqSent | State::RepSent | State::DreqSent | State::SidrReqSent => {
                if now < self.overall
                    && let Some(left) = self.retries_left.checked_sub(1)
                {
                    self.retries_left = left;
                    shared.counters.retries += 1;
                    self.resend(shared);
                    self.await_answer(shared, now);
                    return;
                }
                self.give_up(shared, now);
            }
            State::TimeWait => {
                self.post(shared, event::EXIT);
                self.enter_done();
            }
            State::Rejected | State::SidrRepSent => self.enter_done(),
            // No timer in these; an owner that is slow is the owner's business.
            State::Free
            | State::ReqRcvd
            | State::RepRcvd
            | State::Established
            | State::SidrReqRcvd
            | State::Done => self.disarm(),
        }
    }

    fn give_up(&mut self, shared: &mut Shared, now: Instant) {
        match self.state {
            State::ReqSent => {
                let rej = self.rej_timeout(shared.config.ca_guid);
                self.transmit(shared, rej);
                self.post_terminal(shared, Terminal::TimedOut(Stage::Req));
                self.enter_done();
            }
            State::SidrReqSent => {
                self.post_terminal(shared, Terminal::TimedOut(Stage::Sidr));
                self.enter_done();
            }
            State::RepSent => {
                let rej = self.rej_timeout(shared.config.ca_guid);
                self.transmit(shared, rej);
                self.post_terminal(shared, Terminal::TimedOut(Stage::Rep));
                self.enter_time_wait(shared, now);
            }
            _ => {
                self.post_terminal(shared, Terminal::Disconnected(DisconnectCause::LocalUnanswered));
                self.enter_time_wait(shared, now);
            }
        }
    }
}

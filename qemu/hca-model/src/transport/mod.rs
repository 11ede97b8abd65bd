//! The QP data path: work queues, and the InfiniBand transport that carries them.
//!
//! The methods of `Device` in this file are the whole border between the rest of the device and the data path.
//!
//! | module | subject |
//! |---|---|
//! | `state`, `device_state` | what is kept |
//! | `data_path` | the device's parts beside its QPs, and the views of them |
//! | `send_queue`, `wqe`, `receive` | fetching send and receive WQEs |
//! | `parser`, `segments` | checks of send WQEs |
//! | `memory` | view: payload through memory keys |
//! | `umr` | changing memory keys |
//! | `dma` | copies within memory |
//! | `inbound` | a packet of any medium |
//! | `incoming` | from a packet to its QP |
//! | `output` | view: building and sending packets, and what the device answers itself |
//! | `address` | address vectors |
//! | `requester`, `acknowledge` | RC: sending, and what comes back |
//! | `copy` | RC: requests to a neighbour without packets |
//! | `credit` | RC: flow control |
//! | `responder`, `execute`, `respond` | RC and XRC: taking requests, carrying them out, and answering them |
//! | `unreliable` | UC: taking requests |
//! | `roce` | headers of RoCE |
//! | `congestion` | RoCE: marks and notifications |
//! | `schedule` | which QP has its turn, and when |
//! | `datagram` | UD and the management QPs |
//! | `adversary`, `blueflame` | a card that forgives no mistake |
//! | `nic` | raw Ethernet |
//! | `completion` | errors, flush |
//! | `delivery` | view: CQEs, events, counter sets |
//! | `failure` | view: log, records of a QP's events, and why it failed |

mod acknowledge;
mod address;
mod adversary;
mod blueflame;
mod completion;
mod congestion;
mod copy;
mod credit;
mod data_path;
mod datagram;
mod delivery;
mod device_state;
mod dma;
mod execute;
mod failure;
mod inbound;
mod incoming;
mod memory;
mod nic;
mod output;
mod parser;
mod place;
mod receive;
mod requester;
mod respond;
mod responder;
mod roce;
mod schedule;
mod segments;
mod send_queue;
mod state;
mod umr;
mod unreliable;
mod wqe;

#[cfg(test)]
mod tests;

use mlx5_prm::commands::query_q_counter_out;
use mlx5_prm::event::EventType;
use mlx5_prm::value::{QpState, ServiceType};

use crate::device::Device;
use crate::meter::price;
use crate::object::qp::Qp;
use crate::object::qps::Qps;
use crate::recorder::Event;
use crate::seams::Io;
use data_path::DataPath;
use rdma_fabric::packet::Packet;
use state::WINDOW;

#[cfg(test)]
pub(crate) use device_state::CongestionCounters;
pub use device_state::{DeviceTransport, TransportCounters};
pub use nic::NicTransport;
pub use state::QpTransport;

/// What one QP may do before the next has its turn: packets and WQEs.
const TURN: usize = 32;
impl Device {
    /// A packet from the wire, LRH to ICRC, not checked in any way. Called only while the port's physical link is up.
    pub(crate) fn receive_packet(&mut self, io: &mut Io<'_>, packet: Packet) {
        if self.port.ethernet.is_some() {
            return self.receive_from_cable(io, packet);
        }
        self.port.counters.received(packet.bytes());
        let (qps, mut path) = self.split(io);
        path.incoming(qps, packet, false);
    }

    /// Does at most about `budget` packets or work queue entries of work, and what timers up to `io.now` ask for. Answers
    /// whether more could be done at once.
    pub(crate) fn poll_transport(&mut self, io: &mut Io<'_>, budget: usize) -> bool {
        let (qps, mut path) = self.split(io);
        let (now, has_credit) = (path.now(), path.output().has_credit());
        // A timer that expires while nothing can be sent again would use up the retries.
        if has_credit && path.turns().has_expired(now) {
            path.expire(qps);
        }
        if path.turns().watches() {
            path.look_at_errors(qps);
        }
        if has_credit {
            path.output().announce_capabilities();
        } else if path.turns().has_runnable() {
            path.port().counters.xmit_wait += 1;
        }
        let mut budget = budget;
        let waiting = path.state().loopback.len().min(budget);
        for _ in 0..waiting {
            if !path.meter().is_spent()
                && let Some(packet) = path.state().loopback.pop_front()
            {
                path.incoming(qps, packet, true);
            }
        }
        while budget != 0
            && !path.meter().is_spent()
            && let Some(qpn) = path.turns().next()
        {
            let Some(qp) = qps.get_mut(qpn) else { continue };
            qp.transport.place.leave();
            path.meter().charge(price::LOOK);
            if !has_credit && qp.state() != QpState::ERR && qp.service() != ServiceType::REG_UMR {
                path.turns().postpone(qp);
                continue;
            }
            let given = budget.min(TURN);
            let mut left = given;
            if path.serve(qp, &mut left) {
                if core::mem::take(&mut qp.transport.later) {
                    path.turns().postpone(qp);
                } else {
                    path.turns().add(qp);
                }
            }
            budget -= (given - left).max(1).min(budget);
        }
        self.transport.schedule.end_call(&mut self.objects.qps, &mut self.budget);
        self.transport.schedule.has_more(io.now) || !self.transport.loopback.is_empty()
    }

    /// Whether [`poll_transport`](Self::poll_transport) has nothing to do.
    #[inline]
    pub(crate) fn transport_is_idle(&self, now: u64) -> bool {
        self.transport.schedule.is_idle(now)
            && self.transport.loopback.is_empty()
            && !self.port.announces_capabilities()
            && self.nic.is_idle()
    }

    /// When [`poll_transport`](Self::poll_transport) must be called next although nothing happens until then.
    #[must_use]
    pub(crate) fn transport_deadline(&self) -> Option<u64> {
        if !self.transport.loopback.is_empty() || !self.nic.is_idle() {
            return Some(0);
        }
        self.transport.schedule.deadline()
    }

    /// QP `qpn` changed from `old` to `new` by command (the QP is in `new` already, its path applied): ERR flushes, RST
    /// forgets everything without completions (counters to zero), RTR and RTS start the responder and the requester.
    pub(crate) fn qp_changed_state(&mut self, io: &mut Io<'_>, qpn: u32, old: QpState, new: QpState) {
        let (qps, mut path) = self.split(io);
        let Some(qp) = qps.get_mut(qpn) else { return };
        path.reports().note(qp, Event::State { from: old, to: new, by_device: false });
        if new == QpState::RTS {
            qp.transport.requester.ack_time = match qp.path().ack_timeout() {
                0 => 0,
                // 4.096 us is 4096 ns.
                exponent => 4096 << exponent.max(path.habits().ack_floor.unwrap_or(0)).min(31),
            };
        }
        match (old, new) {
            (_, QpState::RST) => {
                path.turns().unwatch(qpn);
                let before = qp.memory();
                qp.transport.reset();
                qp.transport.give_room_back();
                let less = before - qp.memory();
                self.budget.release(less);
            }
            (QpState::INIT, QpState::RTR) => {
                qp.transport.responder.expected = qp.connection().first_expected();
                qp.transport.responder.msn = 0;
            }
            (QpState::RTR, QpState::RTS) => {
                let connection = *qp.connection();
                let first = connection.first_sent();
                let requester = &mut qp.transport.requester;
                (requester.assigned, requester.unacked, requester.cursor, requester.sent) =
                    (first, first, first, first);
                requester.retries_left = connection.retry_count();
                requester.rnr_left = connection.rnr_retry();
                requester.burst = WINDOW;
                // No software may post sends before RTS (IBTA 10.3.1); a card looks at a doorbell.
                qp.transport.queue.rung = qp.rings().send().is_some() && !path.habits().rts_doorbell;
                path.turns().add(qp);
            }
            (QpState::SQER, QpState::RTS) => {
                qp.transport.failed = false;
                // What was under way is lost; numbering goes on where the next message begins.
                let requester = &mut qp.transport.requester;
                let next = requester.assigned;
                (requester.unacked, requester.cursor, requester.sent) = (next, next, next);
                qp.transport.queue.rung = qp.rings().send().is_some();
                path.turns().add(qp);
            }
            (_, QpState::RTS) => {
                qp.transport.queue.rung = qp.rings().send().is_some();
                path.turns().add(qp);
            }
            (_, QpState::ERR) => {
                qp.transport.failed = false;
                path.flush(qp);
            }
            _ => path.turns().add(qp),
        }
    }

    /// QP `qpn` is about to be removed: no completion may follow.
    pub(crate) fn qp_goes(&mut self, qpn: u32) {
        if let Some(qp) = self.objects.qps.get(qpn) {
            self.transport.schedule.forget(qp, &mut self.meter);
        }
    }

    /// See [`Hca::hold_flushes`](crate::Hca::hold_flushes).
    pub(crate) fn hold_flushes(&mut self, hold: bool) {
        self.transport.schedule.hold_flushes(hold);
        for (_, qp) in self.objects.qps.iter_mut().filter(|(_, qp)| qp.state() == QpState::ERR) {
            self.transport.schedule(qp);
        }
    }

    /// CQ `cqn` failed (overrun, write failure): the QPs that use it go to ERR, as after an error of their own.
    pub(crate) fn cq_failed(&mut self, io: &mut Io<'_>, cqn: u32) {
        self.charge_scan();
        let (qps, mut path) = self.split(io);
        for (_, qp) in qps.iter_mut() {
            if qp.uses_cq(cqn) && !matches!(qp.state(), QpState::RST | QpState::ERR) {
                qp.transport.recorder.blame(None, format!("CQ {cqn:#x} failed: overrun, or its memory"));
                path.delivery().count(qp, query_q_counter_out::cq_overflow);
                path.enter_error(qp);
                path.delivery().qp_event(qp, EventType::WQ_CATAS_ERROR);
            }
        }
        self.cq_of_nic_failed(io, cqn);
    }
}

impl DeviceTransport {
    /// The send queue of `qp` was rung: only notes the work, [`Device::poll_transport`] does it.
    pub(crate) fn ring(&mut self, qp: &mut Qp) {
        self.counters.doorbells += 1;
        qp.transport.queue.rung = true;
        self.schedule.add(qp);
    }

    /// Puts a QP in line for its turn.
    #[inline]
    pub(crate) fn schedule(&mut self, qp: &mut Qp) {
        self.schedule.add(qp);
    }
}

impl DataPath<'_, '_> {
    /// Runs the timers that are due.
    fn expire(&mut self, qps: &mut Qps) {
        let now = self.now();
        while !self.meter().is_spent()
            && let Some(qp) = self.turns().next_expired(qps, now)
        {
            self.meter().charge(price::LOOK);
            self.requester_timers(qp);
            if qp.state() != QpState::ERR {
                self.turns().arm(qp);
            }
        }
    }

    /// Receives that were posted to QPs in error are flushed too.
    fn look_at_errors(&mut self, qps: &mut Qps) {
        let now = self.now();
        let Some(mut look) = self.turns().begin_look(now) else { return };
        while let Some(qpn) = self.turns().look_at(&mut look) {
            if self.meter().is_spent() {
                return self.turns().suspend_look(look);
            }
            self.meter().charge(price::LOOK);
            match qps.get_mut(qpn) {
                Some(qp) if qp.state() == QpState::ERR => {
                    let before = qp.transport.receive.taken;
                    let more = self.flush_receives(qp);
                    look.found |= qp.transport.receive.taken != before;
                    if !more {
                        look.advance();
                    }
                }
                _ => self.turns().unwatch(qpn),
            }
        }
        self.turns().end_look(look, now);
    }

    /// A QP's turn. Answers whether it could do more at once.
    fn serve(&mut self, qp: &mut Qp, budget: &mut usize) -> bool {
        match (qp.service(), qp.state()) {
            (_, QpState::RST | QpState::INIT) => false,
            (_, QpState::ERR) if self.turns().flushes_held() => false,
            (_, QpState::ERR) => {
                // Sends posted after the error are flushed when they are rung for.
                let flushing = core::mem::take(&mut qp.transport.flushing);
                if core::mem::take(&mut qp.transport.queue.rung) || flushing {
                    qp.transport.flushing = self.flush_queues(qp, flushing);
                }
                qp.transport.flushing
            }
            (ServiceType::REG_UMR | ServiceType::UC, _) => self.transmit(qp, budget),
            (ServiceType::RC | ServiceType::XRC, _) => {
                // Answers first, the peer waits for them; but a peer that reads without end leaves a quarter for requests. Where
                // the answers used up the call, the requests are first in the next one.
                let mut requests = *budget / 4;
                let mut more = false;
                if core::mem::take(&mut qp.transport.requests_first) {
                    let given = requests;
                    more = self.transmit(qp, &mut requests);
                    *budget -= given - requests;
                }
                let mut answers = *budget - requests.min(*budget);
                let given = answers;
                more |= self.respond(qp, &mut answers);
                *budget -= given - answers;
                qp.transport.requests_first = self.meter().is_spent() && given != answers;
                self.transmit(qp, budget) || more
            }
            _ => self.transmit_datagrams(qp, budget),
        }
    }
}

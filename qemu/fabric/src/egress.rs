//! One port of the switch: its queue of packets on their way, and the faults that befall them.

use std::collections::VecDeque;

use crate::counters::FabricCounters;
use crate::faults::Faults;
use crate::packet::Packet;
use crate::random::Random;

/// A packet on its way.
#[derive(Debug)]
struct Flying {
    /// When it arrives.
    due: u64,
    /// Whose credit it holds.
    source: u32,
    packet: Packet,
}

/// A packet that waits to be overtaken.
#[derive(Debug)]
struct Held {
    /// Later packets that still have to pass.
    passes: u32,
    /// When it arrives at the latest, overtaken or not.
    deadline: u64,
    overtaken: bool,
    source: u32,
    packet: Packet,
}

/// The way from the switch to one port.
#[derive(Debug, Default)]
pub(crate) struct Egress {
    queue: VecDeque<Flying>,
    held: Vec<Held>,
    congestion: Option<Congestion>,
}

/// State of a port whose receiver accepts no packets (IBTA 18.2.5.4).
#[derive(Clone, Copy, Debug)]
struct Congestion {
    /// Time since which the first packet has been at the head.
    since: u64,
    /// Packets dropped in sequence, up to [`STALL_COUNT`].
    drops: u8,
    /// Time until which the port drops every packet.
    stalled_until: Option<u64>,
}

/// Packets dropped in sequence after which a port stalls (`PortInfo.VLStallCount`).
const STALL_COUNT: u8 = 7;
/// Duration of a stall, in head-of-queue lifetimes.
const STALL: u64 = 8;

/// Packets in flight to one port at most. Senders that wait for credit stay far below.
const QUEUE_LIMIT: usize = 16_384;
/// Longest wait of a held packet for something to overtake it.
const HOLD_NS: u64 = 200_000;

impl Egress {
    /// Sends `packet` on its way, with whatever `faults` do to it.
    pub(crate) fn send(
        &mut self,
        source: u32,
        mut packet: Packet,
        arrival: u64,
        faults: &Faults,
        random: &mut Random,
        counters: &mut FabricCounters,
    ) -> Outcome {
        if faults.is_none() {
            return self.queue_up(source, packet, arrival, counters);
        }
        if random.chance(faults.loss) {
            counters.dropped += 1;
            return Outcome { copies: 0, fate: Some(Fate::Lost) };
        }
        let mut fate = None;
        if random.chance(faults.corrupt) {
            packet.invert(random.below(packet.bytes().len() as u64 * 8));
            counters.corrupted += 1;
            fate = Some(Fate::Corrupted);
        }
        let mut arrival = arrival;
        if let Some((low, high)) = faults.delay {
            arrival += low + random.below(high - low + 1);
        }
        if random.chance(faults.dup) {
            counters.duplicated += 1;
            let copy = packet.clone();
            let first = self.queue_up(source, packet, arrival, counters);
            let second = self.queue_up(source, copy, arrival, counters);
            let fate = first.fate.or(second.fate).or(fate).or(Some(Fate::Duplicated));
            return Outcome { copies: first.copies + second.copies, fate };
        }
        if random.chance(faults.reorder) && self.held.len() < 64 {
            let passes = 1 + random.below(8) as u32;
            let deadline = arrival + HOLD_NS;
            self.held.push(Held { passes, deadline, overtaken: false, source, packet });
            return Outcome { copies: 1, fate: fate.or(Some(Fate::HeldBack)) };
        }
        let outcome = self.queue_up(source, packet, arrival, counters);
        Outcome { fate: outcome.fate.or(fate), ..outcome }
    }

    fn queue_up(
        &mut self,
        source: u32,
        packet: Packet,
        arrival: u64,
        counters: &mut FabricCounters,
    ) -> Outcome {
        if self.queue.len() >= QUEUE_LIMIT {
            counters.overflow += 1;
            return Outcome { copies: 0, fate: Some(Fate::QueueFull) };
        }
        // A link is first in, first out: a delay holds up what comes behind.
        let due = self.queue.back().map_or(arrival, |last| last.due.max(arrival));
        self.queue.push_back(Flying { due, source, packet });
        Outcome { copies: 1, fate: None }
    }

    /// The receiver accepts no packets, or does again. Returns whether that is a change.
    pub(crate) fn set_congested(&mut self, congested: bool, now: u64) -> bool {
        if congested == self.congestion.is_some() {
            return false;
        }
        self.congestion = congested.then_some(Congestion { since: now, drops: 0, stalled_until: None });
        true
    }

    /// Returns whether [`send`](Self::send) may do anything to a packet but to queue it.
    pub(crate) fn may_harm(&self, faults: &Faults) -> bool {
        !faults.is_none() || self.queue.len() >= QUEUE_LIMIT
    }

    /// Returns the number of packets in flight.
    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Returns the number of packets that have arrived and not been received.
    pub(crate) fn backlog(&self, now: u64) -> usize {
        self.queue.partition_point(|flying| flying.due <= now)
    }

    pub(crate) const fn is_congested(&self) -> bool {
        self.congestion.is_some()
    }

    /// Returns the time at which [`expire`](Self::expire) drops a packet, with a head-of-queue
    /// `lifetime` in nanoseconds.
    pub(crate) fn expiry(&self, lifetime: u64) -> Option<u64> {
        let congestion = self.congestion.as_ref()?;
        let head = self.queue.front()?.due;
        let stalled = congestion.stalled_until.is_some_and(|until| head < until);
        Some(if stalled { head } else { congestion.since.max(head).saturating_add(lifetime) })
    }

    /// Returns the next packet to drop because the receiver does not accept it, and whose credit it
    /// holds.
    pub(crate) fn expire(&mut self, lifetime: u64, now: u64) -> Option<(u32, Packet)> {
        self.expiry(lifetime).filter(|due| *due <= now)?;
        let congestion = self.congestion.as_mut()?;
        if congestion.stalled_until.is_none_or(|until| until <= now) {
            congestion.since = now;
            congestion.drops = (congestion.drops + 1).min(STALL_COUNT);
            let stalls = congestion.drops == STALL_COUNT;
            congestion.stalled_until = stalls.then(|| now.saturating_add(STALL * lifetime));
        }
        self.queue.pop_front().map(|flying| (flying.source, flying.packet))
    }

    /// The next packet that has arrived, and whose credit it gives back.
    pub(crate) fn receive(&mut self, now: u64, counters: &mut FabricCounters) -> Option<(u32, Packet)> {
        if !self.held.is_empty()
            && let Some(i) = self.held.iter().position(|held| held.passes == 0 || held.deadline <= now)
        {
            let held = self.held.remove(i);
            counters.reordered += u64::from(held.overtaken);
            return Some((held.source, held.packet));
        }
        if self.queue.front()?.due > now {
            return None;
        }
        let flying = self.queue.pop_front()?;
        self.congestion = None;
        for held in &mut self.held {
            held.passes = held.passes.saturating_sub(1);
            held.overtaken = true;
        }
        Some((flying.source, flying.packet))
    }

    /// When the next packet arrives.
    pub(crate) fn next_arrival(&self) -> Option<u64> {
        if self.congestion.is_some() {
            return None;
        }
        let held = self.held.iter().map(|held| if held.passes == 0 { 0 } else { held.deadline });
        held.chain(self.queue.front().map(|flying| flying.due)).min()
    }

    /// Takes everything off the wire: the link went down.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = (u32, Packet)> {
        let held = self.held.drain(..).map(|held| (held.source, held.packet));
        held.chain(self.queue.drain(..).map(|flying| (flying.source, flying.packet)))
    }
}

/// What became of a packet that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Copies now on their way.
    pub(crate) copies: u32,
    /// What else befell it; the worst of it, if several things did.
    pub(crate) fate: Option<Fate>,
}

/// What befell a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Lost,
    Corrupted,
    Duplicated,
    HeldBack,
    QueueFull,
}

//! Links of a switch's ports: their queues, credits, cuts, and the work that their packets cost.
//!
//! Switches of each medium route packets; the rest of a packet's way is here.

use crate::agenda::{Deadlines, ReadySet};
use crate::buffers::Buffers;
use crate::counters::{FabricCounters, Traffic};
use crate::cuts::{Cuts, Cutter};
use crate::egress::Egress;
use crate::faults::Faults;
use crate::losses::{FlowKey, LossTable, Losses};
use crate::packet::Packet;
use crate::ports::PortIndex;
use crate::random::Random;
use crate::work::STEPS_PER_CALL;

/// Packets of one port in flight after which the port has no credit.
pub(crate) const CREDITS: usize = 1_024;

/// One port.
#[derive(Debug, Default)]
struct Port {
    is_up: bool,
    egress: Egress,
    /// Packets that this port sent and that are in flight.
    in_flight: usize,
    /// Steps of work that this port's packets caused and that its adapter has not paid.
    owed: u64,
}

/// The links of all ports. Losses are counted by flows `F`.
#[derive(Debug)]
pub(crate) struct Links<F> {
    ports: Vec<Port>,
    random: Random,
    cutter: Cutter,
    buffers: Buffers,
    /// Time of each port's next arrival.
    arrivals: Deadlines,
    /// Ports whose receivers accept no packets, and perhaps some that do again.
    congested: ReadySet,
    /// Ports whose link or credit changed since [`each_due`](Links::each_due) returned them.
    changed: ReadySet,
    /// Any did.
    has_changed: bool,
    /// Time until which the switch has nothing to do. `None` where it has to check.
    quiet: Option<u64>,
    /// Packets in flight to ports.
    flying: u64,
    counters: FabricCounters,
    /// Packets of requests that were carried out without packets.
    copied: u64,
    losses: LossTable<F>,
}

impl<F: FlowKey> Links<F> {
    pub(crate) fn new(seed: u64, cuts: Option<Cuts>) -> Self {
        Self {
            ports: Vec::new(),
            random: Random::new(seed),
            cutter: Cutter::new(cuts, seed, 0),
            buffers: Buffers::default(),
            arrivals: Deadlines::new(),
            congested: ReadySet::default(),
            changed: ReadySet::default(),
            has_changed: false,
            quiet: None,
            flying: 0,
            counters: FabricCounters::default(),
            copied: 0,
            losses: LossTable::default(),
        }
    }

    /// Starts the sequence of random numbers again.
    pub(crate) fn reseed(&mut self, seed: u64, cuts: Option<Cuts>) {
        self.random = Random::new(seed);
        self.set_cuts(seed, cuts);
    }

    /// Changes the cuts from now on.
    pub(crate) fn set_cuts(&mut self, seed: u64, cuts: Option<Cuts>) {
        self.quiet = None;
        self.change_cut_port();
        self.cutter = Cutter::new(cuts, seed, self.counters.sent);
    }

    /// The port whose link is cut, if any, is enabled or disabled.
    fn change_cut_port(&mut self) {
        if let Some(port) = self.cutter.port() {
            self.change(port);
        }
    }

    /// The state of a port changed, which its adapter follows.
    pub(crate) fn change(&mut self, index: PortIndex) {
        self.changed.insert(index.0 as usize);
        self.has_changed = true;
    }

    /// Sets the time until which the switch has nothing to do, unless a link or a congested port
    /// gives it work. `None` is unknown: it has to check.
    #[inline]
    pub(crate) const fn set_quiet(&mut self, until: Option<u64>) {
        self.quiet = until;
    }

    /// Returns whether the switch has to check for work.
    #[inline]
    pub(crate) fn has_work(&self, now: u64) -> bool {
        self.quiet.is_none_or(|until| until <= now)
    }

    #[inline]
    fn has_due_port(&self, now: u64) -> bool {
        self.has_changed || self.arrivals.earliest() <= now
    }

    /// Returns whether the switch has to check for work, or [`each_due`](Self::each_due) has a port.
    #[inline]
    pub(crate) fn is_due(&self, now: u64) -> bool {
        self.has_due_port(now) || self.has_work(now)
    }

    /// Returns the time of the next arrival or of work of the switch. 0 is at once.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        let next = self.arrivals.earliest().min(self.quiet.unwrap_or(0));
        Some(next).filter(|next| *next != Deadlines::NEVER)
    }

    /// Calls `each` with every port at which a packet has arrived, or whose link or credit changed
    /// since the last call. A port with packets comes again until they are received.
    #[inline]
    pub(crate) fn each_due(&mut self, now: u64, each: impl FnMut(PortIndex)) {
        if self.has_due_port(now) {
            self.visit_due(now, each);
        }
    }

    fn visit_due(&mut self, now: u64, mut each: impl FnMut(PortIndex)) {
        self.has_changed = false;
        while let Some(port) = self.changed.first_in(0..self.ports.len()) {
            self.changed.remove(port);
            each(PortIndex(port as u32));
        }
        let mut from = 0;
        while let Some(port) = self.arrivals.next_due(from, now) {
            each(PortIndex(port as u32));
            from = port + 1;
        }
    }

    /// Returns the lowest port from `from` on whose receiver accepts no packets.
    pub(crate) fn next_congested(&self, from: u32) -> Option<PortIndex> {
        let mut from = from as usize;
        while let Some(index) = self.congested.first_in(from..self.ports.len()) {
            let index = PortIndex(index as u32);
            if self.port(index).is_some_and(|port| port.egress.is_congested()) {
                return Some(index);
            }
            from = index.0 as usize + 1;
            self.congested.remove(index.0 as usize);
        }
        None
    }

    /// Sets the time of a port's next arrival.
    #[inline]
    fn follow_arrivals(&mut self, index: PortIndex) {
        let next = self.port(index).and_then(|port| port.egress.next_arrival());
        self.arrivals.set(index.0 as usize, next.unwrap_or(Deadlines::NEVER));
    }

    /// Adds a port, its link down.
    pub(crate) fn attach(&mut self) -> PortIndex {
        self.ports.push(Port::default());
        PortIndex(self.ports.len() as u32 - 1)
    }

    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.ports.len()
    }

    #[inline]
    fn port(&self, index: PortIndex) -> Option<&Port> {
        self.ports.get(index.0 as usize)
    }

    #[inline]
    fn port_mut(&mut self, index: PortIndex) -> Option<&mut Port> {
        self.ports.get_mut(index.0 as usize)
    }

    #[inline]
    pub(crate) const fn counters(&self) -> &FabricCounters {
        &self.counters
    }

    #[inline]
    pub(crate) const fn counters_mut(&mut self) -> &mut FabricCounters {
        &mut self.counters
    }

    /// Returns the packets of requests that were carried out without packets.
    pub(crate) const fn copied(&self) -> u64 {
        self.copied
    }

    /// Counts `traffic` as if its packets had been sent and delivered.
    #[inline]
    pub(crate) const fn count_copied(&mut self, traffic: &Traffic) {
        self.copied += traffic.packets();
        self.counters.add_direct(traffic);
    }

    pub(crate) const fn losses(&self) -> &LossTable<F> {
        &self.losses
    }

    /// Returns the losses of the packet's flow.
    pub(crate) fn losses_of(&mut self, packet: &[u8]) -> &mut Losses {
        self.losses.entry(F::of(packet))
    }

    /// Returns whether no packet is in flight.
    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.flying == 0
    }

    #[inline]
    pub(crate) fn is_up(&self, index: PortIndex) -> bool {
        self.port(index).is_some_and(|port| port.is_up)
    }

    /// Returns whether the port's link is cut.
    #[inline]
    pub(crate) fn is_cut(&self, index: PortIndex) -> bool {
        self.cutter.cuts(index)
    }

    /// Brings a link up or down, and returns whether that is a change. Packets in flight to a link
    /// that goes down are lost. A link that is cut stays down.
    pub(crate) fn set_up(&mut self, index: PortIndex, up: bool) -> bool {
        let up = up && !self.is_cut(index);
        let Some(port) = self.port_mut(index).filter(|port| port.is_up != up) else { return false };
        port.is_up = up;
        if !up {
            let lost: Vec<(u32, Packet)> = port.egress.drain().collect();
            self.arrivals.set(index.0 as usize, Deadlines::NEVER);
            self.flying -= lost.len() as u64;
            for (source, packet) in lost {
                self.lose_to_link(packet.bytes());
                self.give_back(source);
            }
        }
        self.quiet = None;
        self.change(index);
        true
    }

    /// Counts a packet that is lost because a link is down.
    pub(crate) fn lose_to_link(&mut self, packet: &[u8]) {
        self.counters.link_down += 1;
        self.losses_of(packet).link_down += 1;
    }

    /// Counts a packet that a port sends. Returns whether the port's link is cut, and this packet is
    /// the first to be lost.
    #[inline]
    pub(crate) fn is_cut_by_packet(&mut self, from: PortIndex, now: u64) -> bool {
        self.counters.sent += 1;
        let is_cut = self.cutter.sent(from, self.counters.sent, now);
        if is_cut {
            self.counters.cuts += 1;
            // Also a link that was down already has to be mended.
            self.quiet = None;
        }
        is_cut
    }

    /// Ends a cut whose time is over.
    pub(crate) fn mend(&mut self, now: u64) {
        if self.mend_time().is_some_and(|end| end <= now) {
            self.change_cut_port();
        }
        self.cutter.poll(self.counters.sent, now);
    }

    /// Returns the time at which [`mend`](Self::mend) has something to do.
    pub(crate) fn mend_time(&self) -> Option<u64> {
        self.cutter.deadline()
    }

    /// Sends a packet to a port whose link is up. Port `source` pays for it with its credit.
    #[inline]
    pub(crate) fn transmit(
        &mut self,
        source: u32,
        to: PortIndex,
        packet: Packet,
        arrival: u64,
        faults: &Faults,
    ) {
        let Some(port) = self.ports.get_mut(to.0 as usize) else { return };
        // A packet that is not harmed needs no flow.
        let flow = port.egress.may_harm(faults).then(|| F::of(packet.bytes()));
        let outcome = port.egress.send(source, packet, arrival, faults, &mut self.random, &mut self.counters);
        if port.egress.is_congested() {
            // The switch did not know the packet's expiry.
            self.quiet = None;
        }
        let next = port.egress.next_arrival().unwrap_or(Deadlines::NEVER);
        self.arrivals.set(to.0 as usize, next);
        if let (Some(fate), Some(flow)) = (outcome.fate, flow) {
            self.losses.entry(flow).count(fate);
        }
        self.flying += u64::from(outcome.copies);
        if let Some(port) = self.ports.get_mut(source as usize) {
            port.in_flight += outcome.copies as usize;
        }
    }

    /// Returns the next packet that has arrived at a port.
    #[inline]
    pub(crate) fn receive(&mut self, at: PortIndex, now: u64) -> Option<Packet> {
        if self.is_empty() { None } else { self.take_arrival(at, now) }
    }

    fn take_arrival(&mut self, at: PortIndex, now: u64) -> Option<Packet> {
        let port = self.ports.get_mut(at.0 as usize)?;
        let received = port.egress.receive(now, &mut self.counters);
        self.arrivals.set(at.0 as usize, port.egress.next_arrival().unwrap_or(Deadlines::NEVER));
        let (source, packet) = received?;
        self.flying -= 1;
        self.counters.delivered += 1;
        self.counters.delivered_bytes += packet.bytes().len() as u64;
        self.give_back(source);
        Some(packet)
    }

    /// Returns the number of packets in flight to a port.
    pub(crate) fn queued(&self, index: PortIndex) -> usize {
        self.port(index).map_or(0, |port| port.egress.queued())
    }

    /// Returns the number of packets that have arrived at a port and not been received.
    pub(crate) fn backlog(&self, index: PortIndex, now: u64) -> usize {
        self.port(index).map_or(0, |port| port.egress.backlog(now))
    }

    /// The receiver of a port accepts no packets from now on, or does again. While it does not, the
    /// switch drops packets by their head-of-queue lifetime (IBTA 18.2.5.4).
    pub(crate) fn set_congested(&mut self, index: PortIndex, congested: bool, now: u64) {
        if self.port_mut(index).is_some_and(|port| port.egress.set_congested(congested, now)) {
            self.quiet = None;
            self.follow_arrivals(index);
            if congested {
                self.congested.insert(index.0 as usize);
            }
        }
    }

    /// Returns the time at which a packet to a congested port exceeds its head-of-queue `lifetime`,
    /// in nanoseconds.
    pub(crate) fn expiry(&self, index: PortIndex, lifetime: u64) -> Option<u64> {
        self.port(index)?.egress.expiry(lifetime)
    }

    /// Drops packets to a congested port that have exceeded their head-of-queue `lifetime`, in
    /// nanoseconds. Returns their number.
    pub(crate) fn expire(&mut self, index: PortIndex, lifetime: u64, now: u64) -> u64 {
        let mut dropped = 0;
        while let Some((source, packet)) =
            self.port_mut(index).and_then(|port| port.egress.expire(lifetime, now))
        {
            dropped += 1;
            self.flying -= 1;
            self.counters.overflow += 1;
            self.losses_of(packet.bytes()).overflow += 1;
            self.give_back(source);
            self.buffers.give(packet.into_buffer());
        }
        dropped
    }

    fn give_back(&mut self, source: u32) {
        if let Some(port) = self.ports.get_mut(source as usize) {
            if port.in_flight == CREDITS {
                self.changed.insert(source as usize);
                self.has_changed = true;
            }
            port.in_flight = port.in_flight.saturating_sub(1);
        }
    }

    /// Takes credit of a port for a packet that waits at the switch, as much as for `packets` in
    /// flight.
    pub(crate) fn hold(&mut self, source: PortIndex, packets: usize) {
        if let Some(port) = self.port_mut(source) {
            port.in_flight += packets;
        }
    }

    /// Returns the credit that [`hold`](Self::hold) took.
    pub(crate) fn release(&mut self, source: PortIndex, packets: usize) {
        (0..packets).for_each(|_| self.give_back(source.0));
    }

    /// Returns whether a port has credit.
    #[inline]
    pub(crate) fn has_credit(&self, index: PortIndex) -> bool {
        self.port(index).is_some_and(|port| port.in_flight < CREDITS)
    }

    /// Returns the steps that a port owes.
    pub(crate) fn owed(&self, index: PortIndex) -> u64 {
        self.port(index).map_or(0, |port| port.owed)
    }

    /// Returns the steps that all ports owe.
    pub(crate) fn all_owed(&self) -> u64 {
        self.ports.iter().map(|port| port.owed).sum()
    }

    /// Charges a port.
    pub(crate) fn owe(&mut self, index: PortIndex, steps: u64) {
        if let Some(port) = self.port_mut(index) {
            port.owed = port.owed.saturating_add(steps);
        }
    }

    /// Returns the steps that a port owes, which it thereby pays.
    #[inline]
    pub(crate) fn take_owed(&mut self, index: PortIndex) -> u64 {
        self.port_mut(index).map_or(0, |port| std::mem::take(&mut port.owed))
    }

    /// Pays one call's share of the steps that a port owes. Returns the steps paid.
    pub(crate) fn pay_turn(&mut self, index: PortIndex) -> u64 {
        let Some(port) = self.port_mut(index) else { return 0 };
        let paid = port.owed.min(STEPS_PER_CALL);
        port.owed -= paid;
        paid
    }

    /// Returns a buffer for a packet, with any content.
    #[inline]
    pub(crate) fn take_buffer(&mut self) -> Vec<u8> {
        self.buffers.take()
    }

    /// Takes back the buffer of a packet that was received.
    #[inline]
    pub(crate) fn give_buffer(&mut self, buffer: Vec<u8>) {
        self.buffers.give(buffer);
    }
}

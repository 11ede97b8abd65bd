//! The Ethernet switch: a transparent bridge (IEEE 802.1D, 802.1Q).
//!
//! ```text
//! port ── learn source ── look up destination ──┬── known: its port ──── mark, faults, queue ── port
//!                                               └── else: all others ── mark, faults, queue ── ports
//! ```
//!
//! Frames keep their tags. Addresses are learned per VLAN. A frame of any content takes bounded work,
//! which is charged to its sender: copies of a flooded frame, and each new source address.

use std::fmt;
use std::io;

use ib_types::MacAddress;

use super::flow::Flow;
use super::frame::{HEADER_LEN, Header, TAG_LEN};
use super::table::{AddressTable, Learned};
use crate::capture::Capture;
use crate::counters::{FabricCounters, Traffic};
use crate::faults::Faults;
use crate::links::Links;
use crate::losses::LossTable;
use crate::packet::Packet;
use crate::ports::{MAX_PORTS, PortIndex, SwitchFull};
use crate::work;

/// Longest frame of a port unless set: 9,000 bytes after a header with two tags.
pub const JUMBO_FRAME: usize = 9_000 + HEADER_LEN + 2 * TAG_LEN;
/// Nanoseconds for which a frame stays at the head of the queue to a port that accepts none: 268 ms,
/// as on InfiniBand.
const HEAD_LIFETIME: u64 = 4_096 << 16;
/// Frames that wait at a port at most for a copy of a flooded frame to be added.
const FLOOD_BACKLOG: usize = 256;
/// Port whose credit no frame holds.
const NOBODY: PortIndex = PortIndex(u32::MAX);
/// Bytes of a copy that cost one step.
const BYTES_PER_STEP: u64 = 512;
/// Group addresses that a bridge does not forward, but for their last 4 bits (IEEE 802.1D 7.12.6).
const LINK_LOCAL: [u8; 5] = [0x01, 0x80, 0xc2, 0, 0];

/// Settings of a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchConfig {
    /// Seed of all random numbers.
    pub seed: u64,
    /// Injected faults.
    pub faults: Faults,
    /// Nanoseconds from any port to any other.
    pub latency: u64,
    /// Nanoseconds after which an address that sends nothing is forgotten.
    pub ageing: u64,
}

impl Default for SwitchConfig {
    fn default() -> Self {
        // The ageing time that IEEE 802.1D recommends.
        let ageing = 300_000_000_000;
        Self { seed: 1, faults: Faults::default(), latency: 0, ageing }
    }
}

/// Frames by their way through the switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchCounters {
    /// Frames copied to all other ports: broadcasts, multicasts and unknown destinations.
    pub flooded: u64,
    /// Frames not forwarded because their destination is at the port that they arrived at.
    pub filtered: u64,
    /// Frames that were marked as congested.
    pub marked: u64,
}

/// Addresses of the request frames of a RoCE connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RocePath {
    /// Source address.
    pub source: MacAddress,
    /// Destination address.
    pub destination: MacAddress,
    /// VLAN, or 0 without tag.
    pub vlan: u16,
    /// Bytes of the longest frame.
    pub longest: usize,
}

#[derive(Debug)]
struct Port {
    name: String,
    /// Longest frame, in bytes.
    longest: usize,
}

/// Destination of a frame.
enum Route {
    None,
    One(PortIndex),
    All,
}

/// A switch of Ethernet frames, which learns where addresses are.
pub struct Switch {
    config: SwitchConfig,
    links: Links<Flow>,
    ports: Vec<Port>,
    addresses: AddressTable,
    counters: SwitchCounters,
    capture: Option<Box<dyn Capture + Send>>,
}

impl fmt::Debug for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Switch")
            .field("config", &self.config)
            .field("ports", &self.ports)
            .field("counters", self.links.counters())
            .finish_non_exhaustive()
    }
}

impl Switch {
    /// Makes a switch without ports.
    #[must_use]
    pub fn new(config: SwitchConfig) -> Self {
        Self {
            links: Links::new(config.seed, config.faults.cuts),
            ports: Vec::new(),
            addresses: AddressTable::new(config.ageing),
            counters: SwitchCounters::default(),
            capture: None,
            config,
        }
    }

    /// Attaches a port, its link down. `name` appears in captures.
    ///
    /// # Errors
    /// [`SwitchFull`].
    pub fn attach(&mut self, name: &str) -> Result<PortIndex, SwitchFull> {
        if self.ports.len() >= MAX_PORTS {
            return Err(SwitchFull);
        }
        let index = self.links.attach();
        self.ports.push(Port { name: name.to_owned(), longest: JUMBO_FRAME });
        self.addresses.attach();
        if let Some(capture) = &mut self.capture {
            capture.interface(index.0, name);
        }
        Ok(index)
    }

    pub(crate) const fn links(&self) -> &Links<Flow> {
        &self.links
    }

    pub(crate) const fn links_mut(&mut self) -> &mut Links<Flow> {
        &mut self.links
    }

    /// Returns the name of a port.
    #[must_use]
    pub fn name(&self, index: PortIndex) -> Option<&str> {
        self.ports.get(index.0 as usize).map(|port| port.name.as_str())
    }

    /// Sets the longest frame that a port receives and sends, in bytes without frame check sequence.
    /// [`JUMBO_FRAME`] unless set.
    pub fn set_longest(&mut self, index: PortIndex, bytes: usize) {
        if let Some(port) = self.ports.get_mut(index.0 as usize) {
            port.longest = bytes;
        }
    }

    /// Reserves an address for a port, in all VLANs: frames from it at all other ports are dropped.
    /// Without, a port can attract the frames of another by sending from its address.
    pub fn pin(&mut self, index: PortIndex, address: MacAddress) {
        self.addresses.pin(address, index);
    }

    /// Releases the addresses that are reserved for a port.
    pub fn unpin(&mut self, index: PortIndex) {
        self.addresses.unpin(index);
    }

    /// Records every frame from now on, as its sender sent it.
    pub fn set_capture(&mut self, mut capture: Box<dyn Capture + Send>) {
        for (index, port) in (0..).zip(&self.ports) {
            capture.interface(index, &port.name);
        }
        self.capture = Some(capture);
    }

    /// Ends the capture, if there is one.
    ///
    /// # Errors
    /// The first error of its writer.
    pub fn finish_capture(&mut self) -> io::Result<()> {
        self.capture.take().map_or(Ok(()), |mut capture| capture.finish())
    }

    /// Returns the settings.
    #[must_use]
    pub const fn config(&self) -> &SwitchConfig {
        &self.config
    }

    /// Changes the injected faults from now on.
    pub fn set_faults(&mut self, faults: Faults) {
        self.config.faults = faults;
        self.links.set_cuts(self.config.seed, faults.cuts);
    }

    /// Changes the nanoseconds from any port to any other. Frames in flight are not overtaken.
    pub const fn set_latency(&mut self, nanoseconds: u64) {
        self.config.latency = nanoseconds;
    }

    /// Starts the sequence of random numbers again, from `seed`.
    pub fn reseed(&mut self, seed: u64) {
        self.config.seed = seed;
        self.links.reseed(seed, self.config.faults.cuts);
    }

    /// Returns frames by what happened to them.
    #[must_use]
    pub const fn counters(&self) -> FabricCounters {
        *self.links.counters()
    }

    /// Returns frames by their way through the switch.
    #[must_use]
    pub const fn switch_counters(&self) -> SwitchCounters {
        self.counters
    }

    /// Returns the losses that [`counters`](Self::counters) adds up, by flow.
    #[must_use]
    pub const fn losses(&self) -> &LossTable<Flow> {
        self.links.losses()
    }

    /// Returns the number of frames that would have crossed the switch for requests that were
    /// carried out without frames.
    #[must_use]
    pub const fn copied(&self) -> u64 {
        self.links.copied()
    }

    /// Brings a port's link up or down. Frames in flight to a link that goes down are lost, and the
    /// switch forgets the addresses behind it.
    pub fn set_link(&mut self, index: PortIndex, up: bool) {
        if self.links.set_up(index, up) && !up {
            self.addresses.forget(index);
        }
    }

    /// Returns whether a port's link is up.
    #[must_use]
    #[inline]
    pub fn link_is_up(&self, index: PortIndex) -> bool {
        self.links.is_up(index)
    }

    /// Returns whether a port's link is not cut.
    #[must_use]
    #[inline]
    pub fn port_is_enabled(&self, index: PortIndex) -> bool {
        (index.0 as usize) < self.ports.len() && !self.links.is_cut(index)
    }

    /// Returns whether no frame is in flight.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// Puts a frame on the wire at a port.
    pub fn send(&mut self, from: PortIndex, mut frame: Packet, now: u64) {
        if self.links.is_cut_by_packet(from, now) {
            self.set_link(from, false);
        }
        let (remark, route) = self.route(from, frame.bytes(), now);
        if let Some(capture) = &mut self.capture {
            capture.packet(from.0, now, frame.sealed_bytes(), remark);
        }
        match route {
            Route::None => self.links.give_buffer(frame.into_buffer()),
            Route::One(to) => self.transmit(from, to, frame, now),
            Route::All => self.flood(from, frame, now),
        }
    }

    /// Learns the source of a frame and returns its destination, with a remark if it is dropped.
    fn route(&mut self, from: PortIndex, frame: &[u8], now: u64) -> (Option<&'static str>, Route) {
        if !self.links.is_up(from) {
            self.links.lose_to_link(frame);
            return (Some("dropped: link down"), Route::None);
        }
        let Some(header) = Header::parse(frame) else {
            self.links.counters_mut().malformed += 1;
            return (Some("dropped: malformed"), Route::None);
        };
        let (destination, vlan) = (header.destination(), header.vlan());
        let learned = self.addresses.learn(header.source(), vlan, from, now);
        if learned == Learned::New {
            self.links.owe(from, work::PACKET);
        }
        if learned == Learned::Foreign || frame.len() > self.longest(from) {
            self.refuse(frame);
            return (Some("dropped: another port's address, or too long"), Route::None);
        }
        if destination.is_multicast() {
            if destination.0.starts_with(&LINK_LOCAL) && destination.0[5] < 16 {
                self.counters.filtered += 1;
                return (Some("not forwarded: link-local group"), Route::None);
            }
            return (None, Route::All);
        }
        match self.addresses.find(destination, vlan, now) {
            Some(to) if to == from => {
                self.counters.filtered += 1;
                (Some("not forwarded: destination at the same port"), Route::None)
            }
            Some(to) => (None, Route::One(to)),
            None => (None, Route::All),
        }
    }

    fn refuse(&mut self, frame: &[u8]) {
        self.links.counters_mut().refused += 1;
        self.links.losses_of(frame).refused += 1;
    }

    fn longest(&self, index: PortIndex) -> usize {
        self.ports.get(index.0 as usize).map_or(0, |port| port.longest)
    }

    /// Sends copies of a frame to all other ports whose links are up. They hold no credit of the sender,
    /// because one receiver that takes nothing would stop it.
    #[cold]
    fn flood(&mut self, from: PortIndex, frame: Packet, now: u64) {
        self.counters.flooded += 1;
        let cost = work::PACKET + frame.bytes().len() as u64 / BYTES_PER_STEP;
        for to in (0..self.ports.len() as u32).map(PortIndex) {
            if to == from || !self.links.is_up(to) {
                continue;
            }
            self.links.owe(from, cost);
            if self.links.queued(to) < FLOOD_BACKLOG {
                let copy = frame.copied_to(self.links.take_buffer());
                self.transmit(NOBODY, to, copy, now);
            } else {
                self.links.counters_mut().overflow += 1;
                self.links.losses_of(frame.bytes()).overflow += 1;
            }
        }
        self.links.give_buffer(frame.into_buffer());
    }

    fn transmit(&mut self, from: PortIndex, to: PortIndex, mut frame: Packet, now: u64) {
        let is_up = self.links.is_up(to);
        if !is_up || frame.bytes().len() > self.longest(to) {
            if is_up {
                self.refuse(frame.bytes());
            } else {
                self.links.lose_to_link(frame.bytes());
            }
            self.links.give_buffer(frame.into_buffer());
            return;
        }
        if let Some(threshold) = self.config.faults.ecn
            && self.links.backlog(to, now) >= threshold as usize
            && frame.mark_congestion()
        {
            self.counters.marked += 1;
        }
        let arrival = now.saturating_add(self.config.latency);
        self.links.transmit(from.0, to, frame, arrival, &self.config.faults);
    }

    /// Calls `each` with every port at which a frame has arrived, or whose link or credit changed
    /// since the last call.
    #[inline]
    pub fn each_due(&mut self, now: u64, each: impl FnMut(PortIndex)) {
        self.links.each_due(now, each);
    }

    /// Returns whether [`poll`](Self::poll) has something to do, or [`each_due`](Self::each_due)
    /// has a port.
    #[must_use]
    #[inline]
    pub fn is_due(&self, now: u64) -> bool {
        self.links.is_due(now)
    }

    /// Returns the next frame that has arrived at a port.
    pub fn receive(&mut self, at: PortIndex, now: u64) -> Option<Packet> {
        self.links.receive(at, now)
    }

    /// Ends cuts, and drops frames to ports that accept none.
    #[inline]
    pub fn poll(&mut self, now: u64) {
        if self.links.has_work(now) {
            self.work(now);
        }
    }

    fn work(&mut self, now: u64) {
        self.links.mend(now);
        let mut expiry = None;
        let mut from = 0;
        while let Some(port) = self.links.next_congested(from) {
            from = port.0 + 1;
            self.links.expire(port, HEAD_LIFETIME, now);
            expiry = expiry.into_iter().chain(self.links.expiry(port, HEAD_LIFETIME)).min();
        }
        let next = expiry.into_iter().chain(self.links.mend_time()).min();
        self.links.set_quiet(Some(next.unwrap_or(u64::MAX)));
    }

    /// Returns the time at which [`poll`](Self::poll) or [`receive`](Self::receive) has something to
    /// do. 0 is at once.
    #[must_use]
    #[inline]
    pub fn next_deadline(&self) -> Option<u64> {
        self.links.next_deadline()
    }

    /// Returns the port that frames of a connection reach at once and unchanged, and its responses
    /// the sender, if no capture records them.
    #[must_use]
    #[inline]
    pub fn unwatched(&self, from: PortIndex, path: &RocePath, now: u64) -> Option<PortIndex> {
        if self.capture.is_some() || !self.config.faults.is_none() || self.config.latency != 0 {
            return None;
        }
        let to = self.addresses.find(path.destination, path.vlan, now).filter(|to| *to != from)?;
        let returns = self.addresses.find(path.source, path.vlan, now) == Some(from);
        let fits = path.longest <= self.longest(from).min(self.longest(to));
        (returns && fits && self.links.is_up(from) && self.links.is_up(to)).then_some(to)
    }

    /// Counts `traffic` as if its frames had crossed the switch along `path` and back.
    #[inline]
    pub(crate) fn count_copied(&mut self, path: &RocePath, traffic: &Traffic, now: u64) {
        self.links.count_copied(traffic);
        self.addresses.refresh(path.source, path.vlan, now);
        if traffic.responses != 0 {
            self.addresses.refresh(path.destination, path.vlan, now);
        }
    }
}

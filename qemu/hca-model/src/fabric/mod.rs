//! The InfiniBand fabric: one switch, its links, their faults, the subnet manager and administrator, the capture.
//!
//! Packets are routed by LID as a switch's linear forwarding table would, after the subnet manager has given LIDs by real
//! directed-route SMPs on VL 15. The switch is a node of its own: directed routes lead through it, and behind its port 0,
//! at LID 1, are its agents, the subnet manager and the subnet administrator. Everything random comes from one seed.
//!
//! | module | subject |
//! |---|---|
//! | [`faults`], [`cuts`], [`random`] | what is injected, from which seed |
//! | [`capture`] | pcapng |
//! | [`losses`] | what was lost, by flow |
//! | `ports` | the switch's ports by number |
//! | `link` | a link's queue |
//! | `switch` | the switch's agents, directed routes |
//! | `manager` | subnet manager |
//! | `administrator` | subnet administrator |
//! | `multicast` | groups |
//! | `management` | what reaches LID 1 |

mod administrator;
pub mod capture;
pub mod cuts;
pub mod faults;
mod link;
pub mod losses;
mod management;
mod manager;
mod multicast;
mod ports;
mod programmed;
pub mod random;
mod switch;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::io;

use crate::meter::{STEPS_PER_CALL, price};
use crate::packet::Lrh;
use ib_mgmt::mad::Mad;
use ib_types::Gid;

pub use capture::{Capture, Encapsulation, PcapNg};
pub use cuts::Cuts;
pub use faults::{Faults, FaultsError};
pub use link::FabricCounters;
pub use losses::{Flow, Kind, LossTable, Losses};
pub use manager::PortRecord;
pub(crate) use manager::{Route as MadRoute, mad_packet};
pub use ports::PortIndex;
pub use switch::SWITCH_GUID;

use crate::packet::{LID_MULTICAST, LID_PERMISSIVE, Shape, Traffic, VL_MANAGEMENT};
use crate::seams::{Link, Packet};
use administrator::Administrator;
use cuts::Cutter;
use link::{Egress, Fate};
use losses::Front;
use manager::Manager;
use multicast::Groups;
use ports::MAX_PORTS;
use programmed::Program;
use random::Random;
use switch::Switch;

/// How the fabric behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricConfig {
    /// Seed of everything random.
    pub seed: u64,
    /// Injected faults.
    pub faults: Faults,
    /// Nanoseconds from any port to any other.
    pub latency: u64,
    /// Whether the fabric has a subnet manager and administrator of its own. Without, a node's has to be one: until then no
    /// port becomes Active.
    pub subnet_manager: bool,
}

impl Default for FabricConfig {
    fn default() -> Self {
        Self { seed: 1, faults: Faults::default(), latency: 0, subnet_manager: true }
    }
}

/// The interface number under which the subnet manager's packets are captured.
const MANAGER: u32 = u32::MAX;
/// Packets of one port that may be on their way before [`Fabric::ready`] says no.
const CREDITS: usize = 1_024;
/// Packet buffers kept for reuse.
const BUFFERS: usize = 1_024;
/// MTU code of IP over InfiniBand's broadcast group: 2048, as OpenSM gives it.
const IPOIB_MTU: u8 = 4;

struct Port {
    up: bool,
    egress: Egress,
    in_flight: usize,
    /// Steps of work that the switch and its agents did for what the port sent, and that its HCA has not been charged for.
    owed: u64,
}

/// The fabric. See the [module](self).
pub struct Fabric {
    config: FabricConfig,
    random: Random,
    cutter: Cutter,
    ports: Vec<Port>,
    /// Port by LID, as the subnet manager programs it.
    routes: Vec<Option<PortIndex>>,
    groups: Groups,
    switch: Switch,
    manager: Manager,
    administrator: Administrator,
    /// Packets that reached the switch's management port.
    management: VecDeque<(PortIndex, Packet)>,
    counters: FabricCounters,
    losses: LossTable,
    capture: Option<Box<dyn Capture + Send>>,
    /// Until when [`poll`](Self::poll) has nothing to do, as far as is known; `None` where it has to look.
    quiet: Option<u64>,
    /// Packets on their way to ports.
    flying: u64,
    /// Packets of requests that went without.
    copied: u64,
    /// Buffers of packets that have arrived, for the next ones: senders take them, receivers give them back.
    buffers: Vec<Vec<u8>>,
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fabric")
            .field("config", &self.config)
            .field("ports", &self.ports.len())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

/// There is no free port on the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchFull;

impl fmt::Display for SwitchFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the switch has only {MAX_PORTS} ports")
    }
}

impl std::error::Error for SwitchFull {}

/// Management packets that may wait for the subnet manager.
const MANAGEMENT_LIMIT: usize = 1_024;

impl Fabric {
    /// A switch without cables.
    #[must_use]
    pub fn new(config: FabricConfig) -> Self {
        Self {
            random: Random::new(config.seed),
            cutter: Cutter::new(config.faults.cuts, config.seed, 0),
            ports: Vec::new(),
            routes: Vec::new(),
            groups: Groups::new(IPOIB_MTU),
            switch: Switch::new(!config.subnet_manager),
            manager: Manager::default(),
            administrator: Administrator::default(),
            management: VecDeque::new(),
            counters: FabricCounters::default(),
            losses: LossTable::default(),
            capture: None,
            quiet: None,
            flying: 0,
            copied: 0,
            buffers: Vec::new(),
            config,
        }
    }

    /// Records every packet from now on. Ports attached before are announced at once.
    pub fn set_capture(&mut self, mut capture: Box<dyn Capture + Send>) {
        capture.interface(MANAGER, "subnet manager");
        for (i, name) in self.manager.names().enumerate() {
            capture.interface(i as u32, name);
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

    /// Brings out what was captured so far, and goes on.
    ///
    /// # Errors
    /// The first error of the capture's writer.
    pub fn flush_capture(&mut self) -> io::Result<()> {
        self.capture.as_mut().map_or(Ok(()), |capture| capture.finish())
    }

    /// Plugs a new port in, its link down. `name` appears in captures.
    ///
    /// # Errors
    /// [`SwitchFull`].
    pub fn attach(&mut self, name: &str) -> Result<PortIndex, SwitchFull> {
        if self.ports.len() >= MAX_PORTS {
            return Err(SwitchFull);
        }
        self.quiet = None;
        let index = PortIndex(self.ports.len() as u32);
        self.ports.push(Port { up: false, egress: Egress::default(), in_flight: 0, owed: 0 });
        self.manager.attach(name);
        self.switch.attach();
        if let Some(capture) = &mut self.capture {
            capture.interface(index.0, name);
        }
        Ok(index)
    }

    /// Brings a port's link up or down. What is on its way to a link that goes down is lost; the subnet manager notices.
    pub fn set_link(&mut self, index: PortIndex, up: bool, now: u64) {
        let up = up && !self.cutter.cuts(index);
        let Some(port) = self.ports.get_mut(index.0 as usize) else { return };
        if port.up == up {
            return;
        }
        port.up = up;
        self.quiet = None;
        self.switch.set_link(index, up);
        if !up {
            let lost: Vec<(u32, Packet)> = port.egress.drain().collect();
            self.counters.link_down += lost.len() as u64;
            self.flying -= lost.len() as u64;
            for (source, packet) in lost {
                self.losses.entry(Flow::of(&packet.bytes)).link_down += 1;
                self.give_back(source);
            }
            self.groups.leave_all(index);
        }
        if self.switch.program.is_none() {
            self.manager.link_changed(index, up, now);
        }
    }

    /// Whether a port's link is up.
    #[must_use]
    pub fn link_is_up(&self, index: PortIndex) -> bool {
        self.ports.get(index.0 as usize).is_some_and(|port| port.up)
    }

    /// Whether a port is enabled and its link is up.
    #[inline]
    pub(crate) fn is_linked(&self, index: PortIndex) -> bool {
        self.link_is_up(index) && self.port_is_enabled(index)
    }

    /// What the subnet manager knows of a port.
    #[must_use]
    pub fn port_record(&self, index: PortIndex) -> Option<&PortRecord> {
        self.manager.record(index)
    }

    /// What happened to packets so far.
    #[must_use]
    pub fn counters(&self) -> FabricCounters {
        self.counters
    }

    /// What happened to packets so far, by flow: the same losses that [`counters`](Self::counters) adds up.
    #[must_use]
    pub fn losses(&self) -> &LossTable {
        &self.losses
    }

    /// Whether a port of the switch is switched on and its link is not cut. One that is not has its link down, whatever is at the other end of
    /// the cable.
    #[must_use]
    pub fn port_is_enabled(&self, index: PortIndex) -> bool {
        self.switch.is_enabled(index) && !self.cutter.cuts(index)
    }

    /// Puts a port into other partitions than the default one: the subnet manager programs its P_Key table with (at most
    /// 32 of) these keys. Bit 15 marks full membership.
    pub fn set_partitions(&mut self, index: PortIndex, pkeys: &[u16], now: u64) {
        self.quiet = None;
        self.manager.set_pkeys(index, pkeys, now);
    }

    /// The MTU of IP over InfiniBand's broadcast group, as a code: 4 for 2048 bytes, which it is from the beginning, 5 for
    /// 4096. Ports that have joined already are not told.
    pub fn set_ipoib_mtu(&mut self, code: u8) {
        self.groups.set_ipoib_mtu(code.clamp(1, 5));
    }

    /// The configuration the fabric was made with: print its seed.
    #[must_use]
    pub fn config(&self) -> &FabricConfig {
        &self.config
    }

    /// Changes the injected faults from now on.
    pub fn set_faults(&mut self, faults: Faults) {
        self.quiet = None;
        self.config.faults = faults;
        self.cutter = Cutter::new(faults.cuts, self.config.seed, self.counters.sent);
    }

    /// Changes the time that packets take from any port to any other. Those on their way are not overtaken.
    pub fn set_latency(&mut self, nanoseconds: u64) {
        self.config.latency = nanoseconds;
    }

    /// Starts the sequence of random numbers anew: what follows replays from `seed`.
    pub fn reseed(&mut self, seed: u64) {
        self.quiet = None;
        self.config.seed = seed;
        self.random = Random::new(seed);
        self.cutter = Cutter::new(self.config.faults.cuts, seed, self.counters.sent);
    }

    /// Whether nothing is on its way.
    pub(crate) const fn is_empty(&self) -> bool {
        self.flying == 0
    }

    /// A port's turn to send: the work that it owes for, and whether it has credit.
    #[inline]
    pub(crate) fn begin_turn(&mut self, index: PortIndex) -> (u64, bool) {
        let Some(port) = self.ports.get_mut(index.0 as usize) else { return (0, false) };
        (std::mem::take(&mut port.owed), port.in_flight < CREDITS)
    }

    /// Whether a port still has credit: a port with thousands of packets on their way should wait.
    #[must_use]
    pub fn ready(&self, index: PortIndex) -> bool {
        self.ports.get(index.0 as usize).is_some_and(|port| port.in_flight < CREDITS)
    }

    /// Puts a packet on the wire at a port.
    pub fn send(&mut self, from: PortIndex, mut packet: Packet, now: u64) {
        self.counters.sent += 1;
        if self.cutter.sent(from, self.counters.sent, now) {
            self.counters.cuts += 1;
            self.quiet = None;
            self.set_link(from, false, now);
        }
        let (remark, copies) = self.route(from, &packet);
        if let Some(counters) = self.switch.counters(Some(from)) {
            counters.received(&packet.bytes);
        }
        if let Some(capture) = &mut self.capture {
            capture.packet(from.0, now, packet.sealed_bytes(), remark);
        }
        // Copied only where a capture or a group needs the packet as it was.
        match copies {
            Copies::None => {}
            Copies::Manager => {
                self.quiet = None;
                if self.management.len() < MANAGEMENT_LIMIT {
                    self.management.push_back((from, packet));
                } else {
                    self.counters.overflow += 1;
                }
            }
            Copies::One(to) => self.transmit(from.0, to, packet, now),
            Copies::Group(members) => {
                self.owe(from, price::PACKET * members.len() as u64);
                for to in members {
                    self.transmit(from.0, to, packet.clone(), now);
                }
            }
        }
    }

    fn owe(&mut self, index: PortIndex, steps: u64) {
        if let Some(port) = self.ports.get_mut(index.0 as usize) {
            port.owed = port.owed.saturating_add(steps);
        }
    }

    /// A turn of a port whose HCA another server runs: it pays for a turn's share of the work that it caused. Answers whether it may
    /// send.
    pub fn pay_turn(&mut self, index: PortIndex) -> bool {
        let Some(port) = self.ports.get_mut(index.0 as usize) else { return false };
        port.owed = port.owed.saturating_sub(STEPS_PER_CALL);
        port.owed == 0
    }

    /// A buffer for a packet, with whatever is in it.
    pub fn take_buffer(&mut self) -> Vec<u8> {
        self.buffers.pop().unwrap_or_default()
    }

    /// Keeps the buffer of a packet that has arrived.
    pub fn give_buffer(&mut self, buffer: Vec<u8>) {
        if self.buffers.len() < BUFFERS {
            self.buffers.push(buffer);
        }
    }

    /// RC requests that were carried out without packets count as the packets that would have gone; how many those were.
    #[must_use]
    pub const fn copied(&self) -> u64 {
        self.copied
    }

    /// The port that a packet from `from` to `dlid` reaches at once and untouched, with nobody watching.
    pub(crate) fn unwatched(&self, from: PortIndex, dlid: u16) -> Option<PortIndex> {
        if self.capture.is_some() || !self.config.faults.is_none() || self.config.latency != 0 {
            return None;
        }
        let to = match &self.switch.program {
            Some(program) if program.carries(from) => self.port_of(dlid).filter(|to| program.carries(*to))?,
            Some(_) => return None,
            None => self.port_of(dlid)?,
        };
        (to != from && self.link_is_up(from) && self.link_is_up(to)).then_some(to)
    }

    /// Counts packets that would have gone from one port to another and back.
    pub(crate) fn count_copied(&mut self, from: PortIndex, to: PortIndex, traffic: &Traffic) {
        let packets = traffic.requests + traffic.responses;
        self.copied += packets;
        self.counters.sent += packets;
        self.counters.delivered += packets;
        self.counters.delivered_bytes += traffic.request_bytes + traffic.response_bytes;
        if let Some(counters) = self.switch.counters(Some(from)) {
            counters.add_received(traffic.requests, traffic.request_bytes);
            counters.add_sent(traffic.responses, traffic.response_bytes);
        }
        if let Some(counters) = self.switch.counters(Some(to)) {
            counters.add_sent(traffic.requests, traffic.request_bytes);
            counters.add_received(traffic.responses, traffic.response_bytes);
        }
    }

    /// The port behind which `lid` is.
    fn port_of(&self, lid: u16) -> Option<PortIndex> {
        match &self.switch.program {
            Some(program) => Some(PortIndex(u32::from(program.port_of(lid)?).checked_sub(1)?)),
            None => self.routes.get(usize::from(lid)).copied().flatten(),
        }
    }

    /// The LID of the switch's management port.
    fn switch_lid(&self) -> u16 {
        self.switch.program.as_ref().map_or(manager::SM_LID, |program| program.lid())
    }

    /// Where a packet goes by what a subnet manager of somebody else's programmed; `None` where nowhere.
    fn programmed_route(&self, program: &Program, from: PortIndex, lrh: &Lrh) -> Option<Copies> {
        // Subnet management goes through ports of any state, data through those that are Armed or Active.
        let passes = |port: PortIndex| lrh.vl == VL_MANAGEMENT || program.carries(port);
        if lrh.dlid == self.switch_lid() && lrh.dlid != 0 {
            return Some(Copies::Manager);
        }
        if !passes(from) {
            return None;
        }
        if lrh.dlid >= LID_MULTICAST {
            let members = program.members(lrh.dlid, from);
            return Some(Copies::Group(members.into_iter().filter(|port| passes(*port)).collect()));
        }
        self.port_of(lrh.dlid).filter(|port| passes(*port)).map(Copies::One)
    }

    /// Where a packet goes.
    fn route(&mut self, from: PortIndex, packet: &Packet) -> (Option<&'static str>, Copies) {
        if !self.link_is_up(from) {
            self.counters.link_down += 1;
            self.losses.entry(Flow::of(&packet.bytes)).link_down += 1;
            return (Some("dropped: link down"), Copies::None);
        }
        let Ok(lrh) = Lrh::parse(&packet.bytes) else {
            self.counters.malformed += 1;
            return (Some("dropped: malformed"), Copies::None);
        };
        if lrh.dlid == LID_PERMISSIVE {
            // Only directed routes use it: the switch looks at each of their hops.
            if lrh.vl == VL_MANAGEMENT {
                return (None, Copies::Manager);
            }
        } else if let Some(program) = &self.switch.program {
            if let Some(copies) = self.programmed_route(program, from, &lrh) {
                return (None, copies);
            }
        } else if lrh.dlid >= LID_MULTICAST {
            return match self.groups.members(lrh.dlid, from) {
                members if members.is_empty() => (None, Copies::None),
                members => (None, Copies::Group(members)),
            };
        } else if lrh.dlid == manager::SM_LID {
            return (None, Copies::Manager);
        } else if let Some(Some(to)) = self.routes.get(usize::from(lrh.dlid)) {
            return (None, Copies::One(*to));
        }
        self.counters.no_route += 1;
        self.losses.entry(Flow::of(&packet.bytes)).no_route += 1;
        if let Some(counters) = self.switch.counters(Some(from)) {
            counters.rcv_relay_errors += 1;
        }
        (Some("dropped: no route"), Copies::None)
    }

    fn transmit(&mut self, source: u32, to: PortIndex, packet: Packet, now: u64) {
        let Some(port) = self.ports.get_mut(to.0 as usize) else { return };
        let Some(counters) = self.switch.counters(Some(to)) else { return };
        if !port.up {
            self.counters.link_down += 1;
            self.losses.entry(Flow::of(&packet.bytes)).link_down += 1;
            counters.xmit_discards += 1;
            return;
        }
        counters.sent(&packet.bytes);
        let front = Front::of(&packet.bytes);
        let arrival = now.saturating_add(self.config.latency);
        let outcome = port.egress.send(
            source,
            packet,
            arrival,
            &self.config.faults,
            &mut self.random,
            &mut self.counters,
        );
        if let Some(fate) = outcome.fate {
            let losses = self.losses.entry(front.flow());
            match fate {
                Fate::Lost => losses.dropped += 1,
                Fate::Corrupted => losses.corrupted += 1,
                Fate::Duplicated => losses.duplicated += 1,
                Fate::HeldBack => losses.held += 1,
                Fate::QueueFull => losses.overflow += 1,
            }
        }
        self.flying += u64::from(outcome.copies);
        if let Some(port) = self.ports.get_mut(source as usize) {
            port.in_flight += outcome.copies as usize;
        }
    }

    fn give_back(&mut self, source: u32) {
        if let Some(port) = self.ports.get_mut(source as usize) {
            port.in_flight = port.in_flight.saturating_sub(1);
        }
    }

    /// The next packet that has arrived at a port.
    pub fn receive(&mut self, at: PortIndex, now: u64) -> Option<Packet> {
        let port = self.ports.get_mut(at.0 as usize)?;
        let (source, packet) = port.egress.receive(now, &mut self.counters)?;
        self.flying -= 1;
        self.counters.delivered += 1;
        self.counters.delivered_bytes += packet.bytes.len() as u64;
        self.give_back(source);
        Some(packet)
    }

    /// The GID that the subnet manager gave to a port, once it knows the port.
    #[must_use]
    pub fn gid(&self, index: PortIndex) -> Option<Gid> {
        self.manager.record(index).and_then(PortRecord::gid)
    }

    /// A port's side of its cable at time `now`.
    pub fn wire(&mut self, port: PortIndex, now: u64) -> Wire<'_> {
        Wire { fabric: self, port, now }
    }
}

/// A port's side of its cable, for [`crate::Hca::poll`].
#[derive(Debug)]
pub struct Wire<'a> {
    fabric: &'a mut Fabric,
    port: PortIndex,
    now: u64,
}

impl Link for Wire<'_> {
    fn send(&mut self, packet: Packet) {
        self.fabric.send(self.port, packet, self.now);
    }
}

enum Copies {
    None,
    Manager,
    One(PortIndex),
    Group(Vec<PortIndex>),
}

/// The datagram header and the MAD of a UD packet that holds one.
pub(crate) fn datagram(shape: &Shape, packet: &[u8]) -> Option<(crate::packet::Deth, Mad)> {
    use crate::packet::{Deth, Opcode};
    if shape.bth.opcode != Opcode::UD_SEND_ONLY {
        return None;
    }
    let content = shape.content(packet);
    let deth = Deth::parse(content).ok()?;
    let mad = content.get(Deth::LEN..)?;
    // A MAD is always 256 bytes (IBTA 13.4.2).
    <&[u8; 256]>::try_from(mad).ok().map(|mad| (deth, Mad::from_bytes(*mad)))
}

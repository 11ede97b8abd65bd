//! The InfiniBand fabric: one switch, its links, their faults, the subnet manager and administrator, the capture.
//!
//! Packets are routed by LID as a switch's linear forwarding table would, after the subnet manager has given LIDs by real
//! directed-route SMPs on VL 15. The switch is a node of its own: directed routes lead through it, and behind its port 0,
//! at LID 1, are its agents, the subnet manager and the subnet administrator. Everything random comes from one seed.
//!
//! | module | subject |
//! |---|---|
//! | [`packet`] | packets as they are on the wire: headers, opcodes, checksums |
//! | `flow` | sender, destination and transport of a packet |
//! | `performance` | a port's counters, and the agent that reports them |
//! | `speeds`, `m_key` | speeds and management key of a port |
//! | `forwarding`, `ingress` | the way of a packet, and what the switch lets in |
//! | `direct` | requests without packets |
//! | `switch`, `attributes` | the switch's agents, directed routes |
//! | `manager` | subnet manager |
//! | `administrator` | subnet administrator |
//! | `multicast` | groups |
//! | `management`, `inbox` | what reaches LID 1, and its order |

mod administrator;
mod attributes;
mod direct;
mod flow;
mod forwarding;
mod inbox;
mod ingress;
mod m_key;
mod management;
mod manager;
mod multicast;
pub mod packet;
pub mod performance;
mod programmed;
mod speeds;
mod switch;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;

use crate::capture::Capture;
use crate::counters::FabricCounters;
use crate::faults::Faults;
use crate::links::Links;
use crate::losses::LossTable;
use crate::ports::{MAX_PORTS, PortIndex, SwitchFull};
use ib_mgmt::mad::Mad;
use ib_types::Gid;

pub use direct::Destination;
pub use flow::Flow;
pub use m_key::{Access, Lease, MKey};
pub use manager::{MadRoute, PortRecord, mad_packet};
pub use performance::PortCounters;
pub use speeds::Speeds;
pub use switch::SWITCH_GUID;

use administrator::Administrator;
use inbox::Inbox;
use manager::Manager;
use multicast::Groups;
use packet::{Deth, LID_MULTICAST, Opcode, Shape};
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
    /// The key without which nobody but the fabric's own subnet manager sets anything (M_Key, and the key of trusted requests to the
    /// subnet administrator), and with it the switch's refusal of LIDs and P_Keys that a port was not given. Whoever serves guests that are
    /// not trusted draws it from the host's randomness. 0 leaves the fabric open to everybody.
    pub m_key: u64,
    /// Number of the subnet manager's first transaction. Ports that could guess it could reply in
    /// another port's place, so a server of untrusted guests draws it, apart from the key.
    pub first_tid: u64,
    /// Packet life time of the paths that the subnet administrator names, 4.096 µs · 2^n: how long ports wait for packets of ended
    /// connections.
    pub packet_life_time: u8,
}

impl Default for FabricConfig {
    fn default() -> Self {
        Self {
            seed: 1,
            faults: Faults::default(),
            latency: 0,
            subnet_manager: true,
            m_key: DEFAULT_M_KEY,
            first_tid: 1,
            packet_life_time: PACKET_LIFE_TIME,
        }
    }
}

/// About a millisecond: a switch holds packets for microseconds.
const PACKET_LIFE_TIME: u8 = 8;
/// OpenSM's packet life time, about a second.
pub const OPENSM_PACKET_LIFE_TIME: u8 = 18;
/// The M_Key of a fabric whose ports are trusted.
const DEFAULT_M_KEY: u64 = 0x6d6c_7835_6b65_7931;
/// The interface number under which the subnet manager's packets are captured.
const MANAGER: u32 = u32::MAX;
/// MTU code of IP over InfiniBand's broadcast group: 2048, as OpenSM gives it.
const IPOIB_MTU: u8 = 4;

/// The fabric. See the [module](self).
pub struct Fabric {
    config: FabricConfig,
    /// Ports may send only as what the fabric's own subnet manager made of them.
    guarded: bool,
    links: Links<Flow>,
    /// Port by LID, as the subnet manager programs it.
    routes: Vec<Option<PortIndex>>,
    groups: Groups,
    switch: Switch,
    manager: Manager,
    administrator: Administrator,
    /// Packets that reached the switch's management port.
    management: Inbox,
    capture: Option<Box<dyn Capture + Send>>,
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fabric")
            .field("config", &self.config)
            .field("ports", &self.links.len())
            .field("counters", self.links.counters())
            .finish_non_exhaustive()
    }
}

impl Fabric {
    /// A switch without cables.
    #[must_use]
    pub fn new(config: FabricConfig) -> Self {
        Self {
            links: Links::new(config.seed, config.faults.cuts),
            routes: Vec::new(),
            groups: Groups::new(IPOIB_MTU),
            guarded: config.subnet_manager && config.m_key != 0,
            switch: Switch::new(!config.subnet_manager, config.m_key),
            manager: Manager::new(config.m_key, config.first_tid),
            administrator: Administrator::default(),
            management: Inbox::default(),
            capture: None,
            config,
        }
    }

    pub(crate) const fn links(&self) -> &Links<Flow> {
        &self.links
    }

    pub(crate) const fn links_mut(&mut self) -> &mut Links<Flow> {
        &mut self.links
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

    /// Plugs a new port in, its link down. `name` appears in captures.
    ///
    /// # Errors
    /// [`SwitchFull`].
    pub fn attach(&mut self, name: &str) -> Result<PortIndex, SwitchFull> {
        if self.links.len() >= MAX_PORTS {
            return Err(SwitchFull);
        }
        self.links.set_quiet(None);
        let index = self.links.attach();
        self.manager.attach(name);
        self.switch.attach();
        if let Some(capture) = &mut self.capture {
            capture.interface(index.0, name);
        }
        Ok(index)
    }

    /// Sets the speeds and widths that both ends of a port's link report. Up to EDR unless set.
    pub fn set_speeds(&mut self, index: PortIndex, speeds: Speeds) {
        self.switch.set_speeds(index, speeds);
    }

    /// Brings a port's link up or down. What is on its way to a link that goes down is lost; the subnet manager notices.
    pub fn set_link(&mut self, index: PortIndex, up: bool, now: u64) {
        if !self.links.set_up(index, up) {
            return;
        }
        let up = self.links.is_up(index);
        self.switch.set_link(index, up, now);
        if !up {
            self.groups.leave_all(index);
        }
        if self.switch.program.is_none() {
            self.manager.link_changed(index, up, now);
        }
    }

    /// Whether a port's link is up.
    #[must_use]
    #[inline]
    pub fn link_is_up(&self, index: PortIndex) -> bool {
        self.links.is_up(index)
    }

    /// What the subnet manager knows of a port.
    #[must_use]
    pub fn port_record(&self, index: PortIndex) -> Option<&PortRecord> {
        self.manager.record(index)
    }

    /// What happened to packets so far.
    #[must_use]
    pub fn counters(&self) -> FabricCounters {
        *self.links.counters()
    }

    /// What happened to packets so far, by flow: the same losses that [`counters`](Self::counters) adds up.
    #[must_use]
    pub fn losses(&self) -> &LossTable<Flow> {
        self.links.losses()
    }

    /// Whether a port of the switch is switched on and its link is not cut. One that is not has its link down, whatever is at the other end of
    /// the cable.
    #[must_use]
    #[inline]
    pub fn port_is_enabled(&self, index: PortIndex) -> bool {
        self.switch.is_enabled(index) && !self.links.is_cut(index)
    }

    /// Puts a port into other partitions than the default one: the subnet manager programs its P_Key table with (at most
    /// 32 of) these keys. Bit 15 marks full membership.
    pub fn set_partitions(&mut self, index: PortIndex, pkeys: &[u16], now: u64) {
        self.links.set_quiet(None);
        self.manager.set_pkeys(index, pkeys, now);
    }

    /// Gives a port a LID, as a subnet manager does that has lost its table of them. A port that has it gets the
    /// former one in exchange. No port goes out of service, so that no subscriber learns of it.
    ///
    /// Returns false, without side effects, if there is no such port, or if the LID is the switch's or not unicast.
    pub fn set_lid(&mut self, index: PortIndex, lid: u16, now: u64) -> bool {
        if !(manager::SM_LID + 1..LID_MULTICAST).contains(&lid) {
            return false;
        }
        let Some(former) = self.manager.set_lid(index, lid, now) else { return false };
        self.links.set_quiet(None);
        for lid in [former, lid] {
            if let Some(route) = self.routes.get_mut(usize::from(lid)) {
                *route = None;
            }
        }
        true
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
        self.config.faults = faults;
        self.links.set_cuts(self.config.seed, faults.cuts);
    }

    /// Changes the time that packets take from any port to any other. Those on their way are not overtaken.
    pub fn set_latency(&mut self, nanoseconds: u64) {
        self.config.latency = nanoseconds;
    }

    /// Starts the sequence of random numbers anew: what follows replays from `seed`.
    pub fn reseed(&mut self, seed: u64) {
        self.config.seed = seed;
        self.links.reseed(seed, self.config.faults.cuts);
    }

    /// Calls `each` with every port at which a packet has arrived, or whose link or credit changed
    /// since the last call. A port with packets comes again until [`receive`](Self::receive)
    /// has returned them all.
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

    /// Returns whether no packet is in flight.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// Whether a port still has credit: a port with thousands of packets on their way should wait.
    #[must_use]
    #[inline]
    pub fn ready(&self, index: PortIndex) -> bool {
        self.links.has_credit(index)
    }

    fn owed(&self, index: PortIndex) -> u64 {
        self.links.owed(index)
    }

    pub(super) fn owe(&mut self, index: PortIndex, steps: u64) {
        self.links.owe(index, steps);
    }

    /// RC requests that were carried out without packets count as the packets that would have gone; how many those were.
    #[must_use]
    pub const fn copied(&self) -> u64 {
        self.links.copied()
    }

    /// The GID that the subnet manager gave to a port, once it knows the port.
    #[must_use]
    pub fn gid(&self, index: PortIndex) -> Option<Gid> {
        self.manager.record(index).and_then(PortRecord::gid)
    }
}

/// Returns the datagram header and the MAD of a UD packet that contains a MAD.
#[must_use]
pub fn datagram(shape: &Shape, packet: &[u8]) -> Option<(Deth, Mad)> {
    if shape.bth.opcode != Opcode::UD_SEND_ONLY {
        return None;
    }
    let content = shape.content(packet);
    let deth = Deth::parse(content).ok()?;
    let mad = content.get(Deth::LEN..)?;
    // A MAD is always 256 bytes (IBTA 13.4.2).
    <&[u8; 256]>::try_from(mad).ok().map(|mad| (deth, Mad::from_bytes(*mad)))
}

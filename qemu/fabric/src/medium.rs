//! The network of a server: an InfiniBand fabric and an Ethernet switch, and the cables of their ports.

use std::io;
use std::ops::{Deref, DerefMut};

use crate::counters::Traffic;
use crate::ethernet::{self, Switch};
use crate::faults::Faults;
use crate::infiniband::{self, Fabric};
use crate::links::Links;
use crate::losses::FlowKey;
use crate::packet::Packet;
use crate::ports::{PortIndex, SwitchFull};
use crate::wire::{Way, Wire};

/// Kind of a port's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet.
    Ethernet,
}

/// Bit of the numbers of Ethernet ports. Ports of the InfiniBand fabric have the fabric's numbers.
const ETHERNET: u32 = 1 << 31;

/// An InfiniBand fabric and an Ethernet switch. Each port belongs to one of them.
///
/// Settings and reports of one kind are reached through that kind's type, with the port's number
/// there ([`Medium::local`]).
#[derive(Debug)]
pub struct Medium {
    fabric: Fabric,
    switch: Switch,
    /// The switch has ports. A switch without ports is not polled.
    has_ethernet: bool,
}

impl Medium {
    /// Makes a network of a fabric and a switch without ports.
    #[must_use]
    pub const fn new(fabric: Fabric, switch: Switch) -> Self {
        Self { fabric, switch, has_ethernet: false }
    }

    /// Returns the InfiniBand fabric.
    #[must_use]
    pub const fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Returns the InfiniBand fabric.
    pub const fn fabric_mut(&mut self) -> &mut Fabric {
        &mut self.fabric
    }

    /// Returns the Ethernet switch.
    #[must_use]
    pub const fn switch(&self) -> &Switch {
        &self.switch
    }

    /// Returns the Ethernet switch.
    pub const fn switch_mut(&mut self) -> &mut Switch {
        &mut self.switch
    }

    /// Attaches a port, its link down. `name` appears in captures.
    ///
    /// # Errors
    /// [`SwitchFull`].
    pub fn attach(&mut self, name: &str, layer: LinkLayer) -> Result<PortIndex, SwitchFull> {
        match layer {
            LinkLayer::InfiniBand => self.fabric.attach(name),
            LinkLayer::Ethernet => {
                let port = self.switch.attach(name)?;
                self.has_ethernet = true;
                Ok(as_ethernet(port))
            }
        }
    }

    /// Returns the kind of a port, and its number at the fabric or the switch.
    #[must_use]
    #[inline]
    pub const fn local(port: PortIndex) -> (LinkLayer, PortIndex) {
        let layer = if port.0 & ETHERNET == 0 { LinkLayer::InfiniBand } else { LinkLayer::Ethernet };
        (layer, PortIndex(port.0 & !ETHERNET))
    }

    /// Returns the name of a port.
    #[must_use]
    pub fn name(&self, port: PortIndex) -> Option<&str> {
        match Self::local(port) {
            (LinkLayer::InfiniBand, port) => self.fabric.port_record(port).map(|record| record.name.as_str()),
            (LinkLayer::Ethernet, port) => self.switch.name(port),
        }
    }

    /// Changes the injected faults of both networks from now on.
    pub fn set_faults(&mut self, faults: Faults) {
        self.fabric.set_faults(faults);
        self.switch.set_faults(faults);
    }

    /// Starts the random numbers of both networks again, from `seed`.
    pub fn reseed(&mut self, seed: u64) {
        self.fabric.reseed(seed);
        self.switch.reseed(seed);
    }

    /// Changes the nanoseconds from any port to any other of its network. Packets in flight are not
    /// overtaken.
    pub fn set_latency(&mut self, nanoseconds: u64) {
        self.fabric.set_latency(nanoseconds);
        self.switch.set_latency(nanoseconds);
    }

    /// Ends the captures of both networks.
    ///
    /// # Errors
    /// The first error of their writers.
    pub fn finish_capture(&mut self) -> io::Result<()> {
        self.fabric.finish_capture().and(self.switch.finish_capture())
    }

    /// Returns the cable of a port at time `now`, in nanoseconds.
    #[inline]
    pub const fn cable(&mut self, port: PortIndex, now: u64) -> Cable<'_> {
        match Self::local(port) {
            (LinkLayer::InfiniBand, port) => {
                Cable::InfiniBand(CableOf { network: &mut self.fabric, port, now })
            }
            (LinkLayer::Ethernet, port) => Cable::Ethernet(CableOf { network: &mut self.switch, port, now }),
        }
    }

    /// Returns the steps of work that the ports' packets caused and that no adapter has paid yet.
    #[must_use]
    pub fn owed(&self) -> u64 {
        self.fabric.links().all_owed() + self.switch.links().all_owed()
    }

    /// Lets fabric, switch and their agents work, with a bounded amount of work.
    #[inline]
    pub fn poll(&mut self, now: u64) {
        self.fabric.poll(now);
        if self.has_ethernet {
            self.switch.poll(now);
        }
    }

    /// Calls `each` with every port at which a packet has arrived, or whose link or credit changed
    /// since the last call. A port with packets comes again until its packets are received.
    #[inline]
    pub fn each_due(&mut self, now: u64, mut each: impl FnMut(PortIndex)) {
        self.fabric.each_due(now, &mut each);
        if self.has_ethernet {
            self.switch.each_due(now, |port| each(as_ethernet(port)));
        }
    }

    /// Returns whether there is more to do at `now`, or [`each_due`](Self::each_due) has a port.
    #[must_use]
    #[inline]
    pub fn is_due(&self, now: u64) -> bool {
        self.fabric.is_due(now) || (self.has_ethernet && self.switch.is_due(now))
    }

    /// Returns the time at which [`poll`](Self::poll) or [`Wire::receive`] has something to do.
    #[must_use]
    #[inline]
    pub fn next_deadline(&self) -> Option<u64> {
        let fabric = self.fabric.next_deadline();
        if !self.has_ethernet {
            return fabric;
        }
        fabric.into_iter().chain(self.switch.next_deadline()).min()
    }
}

/// Returns the number of the switch's port at the medium.
const fn as_ethernet(port: PortIndex) -> PortIndex {
    PortIndex(port.0 | ETHERNET)
}

/// What cables need of the network that they lead to.
pub(crate) trait Network {
    /// Flows by which it counts losses.
    type Flow: FlowKey;

    fn links(&self) -> &Links<Self::Flow>;
    fn links_mut(&mut self) -> &mut Links<Self::Flow>;
    fn send(&mut self, from: PortIndex, packet: Packet, now: u64);
    fn is_enabled(&self, port: PortIndex) -> bool;
    fn set_link(&mut self, port: PortIndex, up: bool, now: u64);
    fn direct(&self, from: PortIndex, way: Way<'_>, now: u64) -> Option<PortIndex>;
    fn count_direct(&mut self, ends: [PortIndex; 2], way: Way<'_>, traffic: &Traffic, now: u64);
}

impl Network for Fabric {
    type Flow = infiniband::Flow;

    #[inline]
    fn links(&self) -> &Links<infiniband::Flow> {
        self.links()
    }

    #[inline]
    fn links_mut(&mut self) -> &mut Links<infiniband::Flow> {
        self.links_mut()
    }

    #[inline]
    fn send(&mut self, from: PortIndex, packet: Packet, now: u64) {
        self.send(from, packet, now);
    }

    #[inline]
    fn is_enabled(&self, port: PortIndex) -> bool {
        self.port_is_enabled(port)
    }

    fn set_link(&mut self, port: PortIndex, up: bool, now: u64) {
        self.set_link(port, up, now);
    }

    #[inline]
    fn direct(&self, from: PortIndex, way: Way<'_>, _: u64) -> Option<PortIndex> {
        match way {
            Way::InfiniBand(way) => self.unwatched(from, way),
            Way::Roce(_) => None,
        }
    }

    #[inline]
    fn count_direct(&mut self, [from, to]: [PortIndex; 2], _: Way<'_>, traffic: &Traffic, _: u64) {
        self.count_copied(from, to, traffic);
    }
}

impl Network for Switch {
    type Flow = ethernet::Flow;

    #[inline]
    fn links(&self) -> &Links<ethernet::Flow> {
        self.links()
    }

    #[inline]
    fn links_mut(&mut self) -> &mut Links<ethernet::Flow> {
        self.links_mut()
    }

    #[inline]
    fn send(&mut self, from: PortIndex, packet: Packet, now: u64) {
        self.send(from, packet, now);
    }

    #[inline]
    fn is_enabled(&self, port: PortIndex) -> bool {
        self.port_is_enabled(port)
    }

    fn set_link(&mut self, port: PortIndex, up: bool, _: u64) {
        self.set_link(port, up);
    }

    #[inline]
    fn direct(&self, from: PortIndex, way: Way<'_>, now: u64) -> Option<PortIndex> {
        match way {
            Way::Roce(path) => self.unwatched(from, path, now).map(as_ethernet),
            Way::InfiniBand(_) => None,
        }
    }

    #[inline]
    fn count_direct(&mut self, _: [PortIndex; 2], way: Way<'_>, traffic: &Traffic, now: u64) {
        if let Way::Roce(path) = way {
            self.count_copied(path, traffic, now);
        }
    }
}

/// The cable of a port, at a time. It is a [`Wire`]. The variants are wires that know their network,
/// for those who use one often.
#[derive(Debug)]
pub enum Cable<'a> {
    /// Of an InfiniBand port.
    InfiniBand(CableOf<'a, Fabric>),
    /// Of an Ethernet port.
    Ethernet(CableOf<'a, Switch>),
}

impl Cable<'_> {
    /// The adapter accepts no packets from now on, or does again. Meanwhile the switch drops
    /// packets by their head-of-queue lifetime.
    pub fn set_congested(&mut self, congested: bool) {
        match self {
            Self::InfiniBand(CableOf { network, port, now }) => {
                network.links_mut().set_congested(*port, congested, *now);
            }
            Self::Ethernet(CableOf { network, port, now }) => {
                network.links_mut().set_congested(*port, congested, *now);
            }
        }
    }

    /// Pays for one call's share of the work that the port's packets caused. Returns the steps paid,
    /// which are [`STEPS_PER_CALL`](crate::work::STEPS_PER_CALL) if the port may owe more.
    pub fn pay_turn(&mut self) -> u64 {
        match self {
            Self::InfiniBand(cable) => cable.network.links_mut().pay_turn(cable.port),
            Self::Ethernet(cable) => cable.network.links_mut().pay_turn(cable.port),
        }
    }
}

impl<'a> Deref for Cable<'a> {
    type Target = dyn Wire + 'a;

    #[inline]
    fn deref(&self) -> &Self::Target {
        match self {
            Self::InfiniBand(cable) => cable,
            Self::Ethernet(cable) => cable,
        }
    }
}

impl DerefMut for Cable<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::InfiniBand(cable) => cable,
            Self::Ethernet(cable) => cable,
        }
    }
}

/// The cable of a port of network `N`, at a time.
#[derive(Debug)]
pub struct CableOf<'a, N> {
    network: &'a mut N,
    port: PortIndex,
    now: u64,
}

impl<N: Network> Wire for CableOf<'_, N> {
    #[inline]
    fn send(&mut self, packet: Packet) {
        self.network.send(self.port, packet, self.now);
    }

    #[inline]
    fn receive(&mut self) -> Option<Packet> {
        self.network.links_mut().receive(self.port, self.now)
    }

    #[inline]
    fn has_credit(&self) -> bool {
        self.network.links().has_credit(self.port)
    }

    #[inline]
    fn take_buffer(&mut self) -> Vec<u8> {
        self.network.links_mut().take_buffer()
    }

    #[inline]
    fn give_buffer(&mut self, buffer: Vec<u8>) {
        self.network.links_mut().give_buffer(buffer);
    }

    #[inline]
    fn is_enabled(&self) -> bool {
        self.network.is_enabled(self.port)
    }

    #[inline]
    fn is_up(&self) -> bool {
        self.network.links().is_up(self.port)
    }

    fn set_up(&mut self, up: bool) {
        self.network.set_link(self.port, up, self.now);
    }

    #[inline]
    fn take_owed(&mut self) -> u64 {
        self.network.links_mut().take_owed(self.port)
    }

    #[inline]
    fn direct(&self, way: Way<'_>) -> Option<PortIndex> {
        self.network.direct(self.port, way, self.now)
    }

    #[inline]
    fn count_direct(&mut self, way: Way<'_>, to: PortIndex, traffic: &Traffic) {
        self.network.count_direct([self.port, to], way, traffic, self.now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ethernet::{RocePath, SwitchConfig};
    use crate::infiniband::{Destination, FabricConfig};
    use ib_types::MacAddress;

    const A: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
    const B: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);

    /// A network with two ports of each kind, in turn, all links up.
    fn medium() -> (Medium, [PortIndex; 4]) {
        let fabric = Fabric::new(FabricConfig { subnet_manager: false, ..FabricConfig::default() });
        let mut medium = Medium::new(fabric, Switch::new(SwitchConfig::default()));
        let layers = [LinkLayer::InfiniBand, LinkLayer::Ethernet, LinkLayer::InfiniBand, LinkLayer::Ethernet];
        let mut number = 0;
        let ports = layers.map(|layer| {
            let port = medium.attach(&format!("{layer:?}{number}"), layer).unwrap();
            number += 1;
            assert_eq!(Medium::local(port).0, layer);
            medium.cable(port, 0).set_up(true);
            port
        });
        (medium, ports)
    }

    fn broadcast(source: MacAddress) -> Packet {
        Packet::frame([&MacAddress::BROADCAST.0[..], &source.0, &[8, 6, 1, 2, 3]].concat())
    }

    #[test]
    fn each_port_belongs_to_one_network() {
        let (mut medium, ports) = medium();
        let names = ports.map(|port| medium.name(port).unwrap().to_owned());
        assert_eq!(names, ["InfiniBand0", "Ethernet1", "InfiniBand2", "Ethernet3"]);
        assert_eq!(ports.map(|port| Medium::local(port).1.0), [0, 0, 1, 1]);
        medium.cable(ports[1], 0).send(broadcast(A));
        let mut arrived = |port| medium.cable(port, 0).receive().is_some();
        assert_eq!(ports.map(&mut arrived), [false, false, false, true]);
        assert_eq!((medium.switch().counters().sent, medium.fabric().counters().sent), (1, 0));
        assert!(medium.cable(ports[1], 0).take_owed() > 0);
        medium.cable(ports[0], 0).send(Packet::new(vec![0; 40]));
        assert_eq!((medium.switch().counters().sent, medium.fabric().counters().sent), (1, 1));
        medium.cable(ports[3], 0).set_up(false);
        assert_eq!(ports.map(|port| medium.cable(port, 0).is_up()), [true, true, true, false]);
        assert!(ports.iter().all(|port| medium.cable(*port, 0).is_enabled()));
        assert!(ports.iter().all(|port| medium.cable(*port, 0).has_credit()));
    }

    #[test]
    fn deadlines_and_settings_are_those_of_both_networks() {
        let (mut medium, ports) = medium();
        medium.poll(0);
        // The links came up.
        medium.each_due(0, |_| {});
        let quiet = medium.next_deadline();
        medium.set_latency(700);
        medium.cable(ports[1], 100).send(broadcast(A));
        assert_eq!(medium.next_deadline(), Some(800));
        assert!(!medium.is_due(799) && medium.is_due(800));
        assert!(medium.cable(ports[3], 800).receive().is_some());
        assert_eq!(medium.next_deadline(), quiet);
        medium.set_faults("loss=100%".parse().unwrap());
        medium.reseed(9);
        assert_eq!((medium.fabric().config().seed, medium.switch().config().seed), (9, 9));
        assert_eq!(medium.fabric().config().faults, medium.switch().config().faults);
        medium.cable(ports[1], 900).send(broadcast(A));
        assert_eq!(medium.switch().counters().dropped, 1);
    }

    #[test]
    fn ways_of_one_kind_lead_to_ports_of_that_kind() {
        let (mut medium, ports) = medium();
        for (port, address) in [(ports[1], A), (ports[3], B)] {
            medium.cable(port, 0).send(broadcast(address));
        }
        let path = RocePath { source: A, destination: B, vlan: 0, longest: 1_500 };
        assert_eq!(medium.cable(ports[1], 0).direct(Way::Roce(&path)), Some(ports[3]));
        assert_eq!(medium.cable(ports[0], 0).direct(Way::Roce(&path)), None);
        let way = Destination { slid: 1, dlid: 2, sl: 0, pkey: 0xffff, qpn: 5, grh: None };
        assert_eq!(medium.cable(ports[1], 0).direct(Way::InfiniBand(&way)), None);
        let traffic = Traffic { requests: 2, ..Traffic::default() };
        medium.cable(ports[1], 0).count_direct(Way::Roce(&path), ports[3], &traffic);
        assert_eq!((medium.switch().copied(), medium.fabric().copied()), (2, 0));
    }
}

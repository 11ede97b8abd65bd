//! Several HCAs on one fabric, moved on by one call: what serves them to virtual machines and what tests them in one
//! process does the same.

use crate::device::Device;
use crate::hca::Hca;
use crate::profile::Profile;
use crate::run::{Copied, Neighbour, Ranges, ReadRun, Run};
use crate::seams::{GuestMemory, Interrupts, Io, NoMemory, NoPeers, Peers};
use crate::turn::{begin, deliver, follow_link, link_changes, turn};
use rdma_fabric::counters::Traffic;
use rdma_fabric::ethernet::{Switch, SwitchConfig};
use rdma_fabric::infiniband::{Destination, Fabric, FabricConfig};
use rdma_fabric::medium::{Cable, LinkLayer, Medium};
use rdma_fabric::packet::Packet;
use rdma_fabric::ports::{PortIndex, SwitchFull};
use rdma_fabric::wire::Wire;

/// The guest behind one HCA.
pub trait NodePort {
    /// Its memory and its interrupt messages.
    fn parts(&mut self) -> (&dyn GuestMemory, &mut dyn Interrupts);

    /// Calls `work`, a peer's request at this node, with memory and interrupts. Returns `None` if
    /// `work` panicked and the node contains that: its HCA is undefined then, but not the peer's.
    fn contain<T>(&mut self, work: impl FnOnce(&dyn GuestMemory, &mut dyn Interrupts) -> T) -> Option<T> {
        let (memory, interrupts) = self.parts();
        Some(work(memory, interrupts))
    }

    /// Returns whether peers may access the memory in their own polls. Otherwise they send packets.
    fn takes_copies(&self) -> bool {
        true
    }
}

/// One HCA, and its port of the switch.
#[derive(Debug)]
pub struct Node {
    /// The device.
    pub hca: Hca,
    /// Its cable's other end.
    pub port: PortIndex,
}

/// HCAs and the fabric that connects them.
#[derive(Debug)]
pub struct World {
    /// The nodes, in order of [`add`](Self::add).
    pub nodes: Vec<Node>,
    /// The network.
    pub medium: Medium,
    /// Requests go as packets also where nobody watches them.
    packets_only: bool,
}

/// The other nodes of a node that has its turn.
struct Others<'a, G> {
    now: u64,
    /// Before and after the node itself.
    nodes: [&'a mut [Node]; 2],
    guests: [&'a mut [G]; 2],
}

impl<G: NodePort> Others<'_, G> {
    /// Calls `work` with a neighbour that takes copies. Returns `None` without one.
    fn with_neighbour<T>(
        &mut self,
        Neighbour(number): Neighbour,
        work: impl FnOnce(&mut Device, &mut Io<'_>) -> T,
    ) -> Option<T> {
        let [before, behind] = &mut self.nodes;
        let [guests_before, guests_behind] = &mut self.guests;
        let number = number as usize;
        let found = match number.checked_sub(before.len()) {
            None => before.get_mut(number).zip(guests_before.get_mut(number)),
            Some(number) => behind.get_mut(number).zip(guests_behind.get_mut(number)),
        };
        let (node, guest) = found?;
        let (now, bus_master) = (self.now, node.hca.bus_master());
        let device = node.hca.neighbour().filter(|_| guest.takes_copies())?;
        guest.contain(|memory, interrupts| {
            let memory: &dyn GuestMemory = if bus_master { memory } else { &NoMemory };
            let (wire, peers) = (&mut Nowhere, &mut NoPeers);
            work(device, &mut Io { now, memory, interrupts, wire, peers })
        })
    }
}

impl<G: NodePort> Peers for Others<'_, G> {
    fn find(&self, port: PortIndex) -> Option<Neighbour> {
        let [before, behind] = &self.nodes;
        let mut nodes = before.iter().chain(behind.iter());
        let number = nodes.position(|node| node.port == port && node.hca.takes_copies())?;
        let [before, behind] = &self.guests;
        let guest = before.get(number).or_else(|| behind.get(number - before.len()))?;
        guest.takes_copies().then_some(Neighbour(number as u32))
    }

    fn has_turn(&self, Neighbour(number): Neighbour) -> bool {
        let [before, behind] = &self.nodes;
        let number = number as usize;
        let node = match number.checked_sub(before.len()) {
            None => before.get(number),
            Some(number) => behind.get(number),
        };
        node.is_none_or(|node| node.hca.has_turn())
    }

    fn copy(&mut self, to: Neighbour, from: &Destination, run: &Run<'_>) -> Copied {
        self.with_neighbour(to, |device, io| device.take_copy(io, from, run)).unwrap_or(Copied::No)
    }

    fn count(&mut self, neighbour: Neighbour, traffic: &Traffic) {
        self.with_neighbour(neighbour, |device, _| device.count_copied(traffic));
    }

    fn copy_read(
        &mut self,
        neighbour: Neighbour,
        from: &Destination,
        read: &ReadRun,
        to: &Ranges<'_>,
    ) -> Copied {
        let copied = self.with_neighbour(neighbour, |device, io| device.take_copied_read(io, from, read, to));
        copied.unwrap_or(Copied::No)
    }
}

/// The wire of a node while another one's request is carried out: answers wait for the node's own turn.
struct Nowhere;

impl Wire for Nowhere {
    fn send(&mut self, _: Packet) {
        debug_assert!(false, "a packet outside of a turn");
    }
}

impl World {
    /// Makes a world without nodes. Seed, faults and latency of `config` are also the Ethernet switch's.
    #[must_use]
    pub fn new(config: FabricConfig) -> Self {
        let ethernet = SwitchConfig {
            seed: config.seed,
            faults: config.faults,
            latency: config.latency,
            ..SwitchConfig::default()
        };
        let medium = Medium::new(Fabric::new(config), Switch::new(ethernet));
        Self { nodes: Vec::new(), medium, packets_only: false }
    }

    /// Adds a node, its cable plugged in. `name` is what captures call it. Answers with its place in
    /// [`nodes`](Self::nodes).
    ///
    /// # Errors
    /// [`SwitchFull`].
    pub fn add(&mut self, profile: Profile, name: &str) -> Result<usize, SwitchFull> {
        let port = if profile.card.is_ethernet() {
            self.medium.attach(name, LinkLayer::Ethernet)?
        } else {
            let port = self.medium.attach(name, LinkLayer::InfiniBand)?;
            self.medium.fabric_mut().set_speeds(port, profile.card.speeds);
            port
        };
        let mut hca = Hca::new(profile);
        hca.device.port.set_cable(true);
        self.nodes.push(Node { hca, port });
        Ok(self.nodes.len() - 1)
    }

    /// Whether requests go as packets also where nobody watches them. (Where there are faults, a latency or a capture, they always
    /// do.)
    pub fn set_packets_only(&mut self, packets_only: bool) {
        self.packets_only = packets_only;
    }

    /// Plugs a node's cable in, or pulls it.
    pub fn set_cable(&mut self, node: usize, plugged: bool) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.hca.device.port.set_cable(plugged);
        }
    }

    /// Does a bounded amount of work for every node and the network. `guests` are the nodes' guests,
    /// in the same order; a node without one has no turn. Returns whether more could be done at
    /// once.
    pub fn poll<G: NodePort>(&mut self, now: u64, guests: &mut [G]) -> bool {
        self.medium.poll(now);
        let mut more = false;
        for index in 0..guests.len() {
            more |= self.poll_node(index, now, guests);
        }
        self.medium.poll(now);
        more | self.medium.is_due(now)
    }

    /// Polls one node like [`poll`](Self::poll), for callers that contain the failure of a node.
    /// Returns whether more could be done at once.
    pub fn poll_node<G: NodePort>(&mut self, index: usize, now: u64, guests: &mut [G]) -> bool {
        let Some(node) = self.nodes.get_mut(index) else { return false };
        if !begin(&mut node.hca, &mut self.medium.cable(node.port, now), now) {
            return false;
        }
        let Some((before, rest)) = self.nodes.split_at_mut_checked(index) else { return false };
        let Some((guests_before, guests_rest)) = guests.split_at_mut_checked(index) else { return false };
        let (Some((node, behind)), Some((guest, guests_behind))) =
            (rest.split_first_mut(), guests_rest.split_first_mut())
        else {
            return false;
        };
        let mut others = Others { now, nodes: [before, behind], guests: [guests_before, guests_behind] };
        let peers: &mut dyn Peers = if self.packets_only { &mut NoPeers } else { &mut others };
        let mut cable = self.medium.cable(node.port, now);
        let (memory, interrupts) = guest.parts();
        let more = node.hca.work(Io { now, memory, interrupts, wire: &mut cable, peers });
        more | follow_link(&mut node.hca, &mut cable)
    }

    /// As [`poll_node`](Self::poll_node), with `poll` in place of the HCA's own. Returns as
    /// [`turn`] does.
    pub fn turn<T>(
        &mut self,
        index: usize,
        now: u64,
        poll: impl FnOnce(&mut Hca, &mut Cable<'_>) -> T,
    ) -> (Option<T>, bool) {
        let Some(node) = self.nodes.get_mut(index) else { return (None, false) };
        turn(&mut node.hca, &mut self.medium.cable(node.port, now), now, poll)
    }

    /// Returns whether a node's next turn changes the state of its link.
    pub fn link_changes(&mut self, index: usize, now: u64) -> bool {
        let node = self.nodes.get(index);
        node.is_some_and(|node| link_changes(&node.hca, &self.medium.cable(node.port, now)))
    }

    /// Delivers packets to a node whose HCA has no turn, so that their senders' credit returns.
    pub fn deliver(&mut self, index: usize, now: u64) {
        if let Some(node) = self.nodes.get_mut(index) {
            deliver(&mut node.hca, &mut self.medium.cable(node.port, now));
        }
    }

    /// When [`poll`](Self::poll) must be called next although nothing happens until then; not after `now` when it said that
    /// more could be done.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        let devices = self.nodes.iter().filter_map(|node| node.hca.next_deadline());
        devices.chain(self.medium.next_deadline()).min()
    }
}

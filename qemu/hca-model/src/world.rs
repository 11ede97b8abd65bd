//! Several HCAs on one fabric, moved on by one call: what serves them to virtual machines and what tests them in one
//! process does the same.

use crate::device::Device;
use crate::hca::Hca;
use crate::profile::Profile;
use crate::run::{Copied, Neighbour, ReadRun, Run};
use crate::seams::{GuestMemory, Interrupts, Io, Link, NoMemory};
use mlx5_prm::value::{PortPhysicalState, PortState};
use rdma_fabric::infiniband::packet::Packet;
use rdma_fabric::infiniband::{Destination, Fabric, FabricConfig, SwitchFull};
use rdma_fabric::ports::PortIndex;
use rdma_fabric::wire::Wire;

/// The guest behind one HCA.
pub trait NodePort {
    /// Its memory and its interrupt messages.
    fn parts(&mut self) -> (&dyn GuestMemory, &mut dyn Interrupts);

    /// Calls `work`, a peer's request at this node, with memory and interrupts. Returns false if
    /// `work` panicked and the node contains that: its HCA is undefined then, but not the peer's.
    fn contain(&mut self, work: impl FnOnce(&dyn GuestMemory, &mut dyn Interrupts)) -> bool {
        let (memory, interrupts) = self.parts();
        work(memory, interrupts);
        true
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
    /// The fabric.
    pub fabric: Fabric,
    /// Requests go as packets also where nobody watches them.
    packets_only: bool,
}

/// A node's side of its cable, with the other nodes in reach.
struct NodeLink<'a, G> {
    fabric: &'a mut Fabric,
    port: PortIndex,
    now: u64,
    packets_only: bool,
    /// Before and behind the node itself.
    nodes: [&'a mut [Node]; 2],
    guests: [&'a mut [G]; 2],
}

impl<G: NodePort> NodeLink<'_, G> {
    /// Lets a neighbour do something.
    fn with_neighbour(
        &mut self,
        Neighbour(number): Neighbour,
        work: impl FnOnce(&mut Device, &mut Io<'_>) -> Copied,
    ) -> Copied {
        let [before, behind] = &mut self.nodes;
        let [guests_before, guests_behind] = &mut self.guests;
        let number = number as usize;
        let found = match number.checked_sub(before.len()) {
            None => before.get_mut(number).zip(guests_before.get_mut(number)),
            Some(number) => behind.get_mut(number).zip(guests_behind.get_mut(number)),
        };
        let Some((node, guest)) = found else { return Copied::No };
        let (now, bus_master) = (self.now, node.hca.bus_master());
        let Some(device) = node.hca.neighbour().filter(|_| guest.takes_copies()) else { return Copied::No };
        let mut copied = Copied::No;
        let is_done = guest.contain(|memory, interrupts| {
            let memory: &dyn GuestMemory = if bus_master { memory } else { &NoMemory };
            copied = work(device, &mut Io { now, memory, interrupts, link: &mut Nowhere });
        });
        if !is_done {
            return Copied::No;
        }
        if let Copied::Done { traffic, .. } = &copied {
            self.fabric.count_copied(self.port, node.port, traffic);
        }
        copied
    }
}

impl<G: NodePort> Wire for NodeLink<'_, G> {
    fn send(&mut self, packet: Packet) {
        self.fabric.send(self.port, packet, self.now);
    }

    fn has_credit(&self) -> bool {
        self.fabric.ready(self.port)
    }

    fn take_buffer(&mut self) -> Vec<u8> {
        self.fabric.take_buffer()
    }

    fn give_buffer(&mut self, buffer: Vec<u8>) {
        self.fabric.give_buffer(buffer);
    }
}

impl<G: NodePort> Link for NodeLink<'_, G> {
    fn reach(&self, way: &Destination) -> Option<Neighbour> {
        let to = self.fabric.unwatched(self.port, way).filter(|_| !self.packets_only)?;
        let mut nodes = self.nodes.iter().flat_map(|nodes| nodes.iter());
        let number = nodes.position(|node| node.port == to && node.hca.takes_copies())?;
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

    fn copy(&mut self, to: Neighbour, from: &Destination, run: &Run<'_>, bytes: u64) -> Copied {
        self.with_neighbour(to, |device, io| device.take_copy(io, from, run, bytes))
    }

    fn copy_read(
        &mut self,
        to: Neighbour,
        from: &Destination,
        read: &ReadRun,
        out: &mut [u8],
        bytes: u64,
    ) -> Copied {
        self.with_neighbour(to, |device, io| device.take_copied_read(io, from, read, out, bytes))
    }
}

/// The wire of a node while another one's request is carried out: answers wait for the node's own turn.
struct Nowhere;

impl Wire for Nowhere {
    fn send(&mut self, _: Packet) {
        debug_assert!(false, "a packet outside of a turn");
    }
}

impl Link for Nowhere {}

/// Whether the physical link is up, as far as the device sees.
fn link_is_up(hca: &Hca) -> bool {
    hca.device.port.physical_state == PortPhysicalState::LINK_UP && !hca.is_killed()
}

/// Packets that a node takes in one poll.
const DELIVERIES: usize = 64;

impl World {
    /// A fabric without nodes.
    #[must_use]
    pub fn new(config: FabricConfig) -> Self {
        Self { nodes: Vec::new(), fabric: Fabric::new(config), packets_only: false }
    }

    /// Adds a node, its cable plugged in. `name` is what captures call it. Answers with its place in
    /// [`nodes`](Self::nodes).
    ///
    /// # Errors
    /// [`SwitchFull`].
    pub fn add(&mut self, profile: Profile, name: &str) -> Result<usize, SwitchFull> {
        let port = self.fabric.attach(name)?;
        self.fabric.set_speeds(port, profile.card.speeds);
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

    /// Does a bounded amount of work for every node and the fabric. `guests` are the nodes' guests, in the same order; a node
    /// without one stands still. Answers whether more could be done at once.
    pub fn poll<G: NodePort>(&mut self, now: u64, guests: &mut [G]) -> bool {
        self.follow_links(now);
        self.fabric.poll(now);
        let mut more = false;
        for index in 0..guests.len() {
            more |= self.poll_node(index, now, guests);
        }
        more | self.poll_switch(now)
    }

    /// The fabric's part of [`poll`](Self::poll), which comes before and after the nodes'. Answers whether a packet has arrived.
    pub fn poll_fabric(&mut self, now: u64) -> bool {
        self.follow_links(now);
        self.poll_switch(now)
    }

    #[inline]
    fn follow_links(&mut self, now: u64) {
        for index in 0..self.nodes.len() {
            self.follow_link(index, now);
        }
    }

    /// Answers whether a packet has arrived.
    #[inline]
    fn poll_switch(&mut self, now: u64) -> bool {
        self.fabric.poll(now);
        self.fabric.next_deadline().is_some_and(|deadline| deadline <= now)
    }

    /// One node's part of [`poll`](Self::poll): whoever serves several guests can so tell whose work failed. Answers whether
    /// more could be done at once.
    pub fn poll_node<G: NodePort>(&mut self, index: usize, now: u64, guests: &mut [G]) -> bool {
        if !self.begin_turn(index, now) {
            return false;
        }
        let Some((before, rest)) = self.nodes.split_at_mut_checked(index) else { return false };
        let Some((guests_before, guests_rest)) = guests.split_at_mut_checked(index) else { return false };
        let (Some((node, behind)), Some((guest, guests_behind))) =
            (rest.split_first_mut(), guests_rest.split_first_mut())
        else {
            return false;
        };
        let (memory, interrupts) = guest.parts();
        let mut wire = NodeLink {
            fabric: &mut self.fabric,
            port: node.port,
            now,
            packets_only: self.packets_only,
            nodes: [before, behind],
            guests: [guests_before, guests_behind],
        };
        let more = node.hca.work(now, memory, interrupts, &mut wire);
        self.follow_link(index, now);
        more
    }

    /// First half of [`poll_node`](Self::poll_node): delivers packets and charges the fabric's work
    /// for the node. Returns whether its HCA has work.
    #[inline]
    pub fn begin_turn(&mut self, index: usize, now: u64) -> bool {
        self.deliver(index, now);
        let Some(node) = self.nodes.get_mut(index).filter(|node| !node.hca.is_lent()) else { return false };
        node.hca.device.meter.charge(self.fabric.take_owed(node.port));
        !node.hca.pass(now)
    }

    /// Delivers packets to a node. Returns their senders' credit even while its HCA has no turn.
    #[inline]
    pub fn deliver(&mut self, index: usize, now: u64) {
        let Some(node) = self.nodes.get_mut(index) else { return };
        for _ in 0..if self.fabric.is_empty() { 0 } else { DELIVERIES } {
            let Some(packet) = self.fabric.receive(node.port, now) else { break };
            node.hca.receive(packet);
        }
    }

    /// Second half of [`poll_node`](Self::poll_node), after the poll of an HCA: updates its link.
    pub fn finish_turn(&mut self, index: usize, now: u64) {
        self.follow_link(index, now);
    }

    /// When [`poll`](Self::poll) must be called next although nothing happens until then; not after `now` when it said that
    /// more could be done.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        let devices = self.nodes.iter().filter_map(|node| node.hca.next_deadline());
        devices.chain(self.fabric.next_deadline()).min()
    }

    /// Tells the fabric whether a node's link is up, and whether it was down meanwhile.
    #[inline]
    fn follow_link(&mut self, index: usize, now: u64) {
        let Some(node) = self.nodes.get_mut(index) else { return };
        let port = &node.hca.device.port;
        // A port that is Active has its physical link up, and the far end switched on.
        if port.state == PortState::ACTIVE
            && !port.link_lost
            && !node.hca.is_killed()
            && self.fabric.is_linked(node.port)
        {
            return;
        }
        self.change_link(index, now);
    }

    #[cold]
    fn change_link(&mut self, index: usize, now: u64) {
        let Some(node) = self.nodes.get_mut(index) else { return };
        if node.hca.is_lent() {
            return;
        }
        let enabled = self.fabric.port_is_enabled(node.port);
        node.hca.device.port.set_far_end(enabled);
        let up = link_is_up(&node.hca);
        if node.hca.take_link_loss() {
            self.fabric.set_link(node.port, false, now);
        }
        if up != self.fabric.link_is_up(node.port) {
            self.fabric.set_link(node.port, up, now);
        }
    }
}

//! Several HCAs on one fabric. Tests call [`World::poll`]; a server gives the turns of a round
//! itself, because its clients' messages belong to them. Both follow one [`Scheduler`].

use crate::device::Device;
use crate::hca::Hca;
use crate::port::FrameSizes;
use crate::profile::Profile;
use crate::run::{Copied, Neighbour, Ranges, ReadRun, Requester, Run};
use crate::scheduler::{Scheduler, Slot};
use crate::seams::{GuestMemory, Interrupts, Io, NoMemory, NoPeers, Peers};
use crate::turn::{begin, deliver, follow_link, link_changes, turn};
use rdma_fabric::agenda::Deadlines;
use rdma_fabric::counters::Traffic;
use rdma_fabric::ethernet::{Switch, SwitchConfig};
use rdma_fabric::infiniband::{Fabric, FabricConfig};
use rdma_fabric::medium::{Cable, LinkLayer, Medium};
use rdma_fabric::packet::Packet;
use rdma_fabric::ports::{PortIndex, SwitchFull};
use rdma_fabric::wire::Wire;
use std::collections::BTreeSet;

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
    nodes: Vec<Node>,
    /// The network.
    pub medium: Medium,
    /// The nodes' order.
    pub scheduler: Scheduler,
    /// Node by [`place_of`] its port. Other ports have their HCAs in other servers.
    node_at: Vec<Option<usize>>,
    /// Ports without a node that have packets, or whose link or credit changed.
    others: BTreeSet<PortIndex>,
    /// Node whose turn ended last, and its owner's deadline. A node that is busy has its next turn
    /// before its deadline matters.
    unsettled: Option<(usize, u64)>,
    /// Requests go as packets also where nobody watches them.
    packets_only: bool,
}

/// The other nodes of a node that has its turn.
struct Others<'a, G> {
    now: u64,
    scheduler: &'a Scheduler,
    node_at: &'a [Option<usize>],
    /// Number of the peer that was woken last.
    woken: usize,
    /// Nodes before and after the one that has its turn.
    nodes: [&'a mut [Node]; 2],
    guests: [&'a mut [G]; 2],
}

impl<G: NodePort> Others<'_, G> {
    /// Returns the index of a node, and whether it is in the second slices.
    #[inline]
    fn place(&self, number: usize) -> (bool, usize) {
        let first = self.nodes[0].len();
        // The node itself is in neither, and its index in none.
        if number < first { (false, number) } else { (true, number.wrapping_sub(first + 1)) }
    }

    #[inline]
    fn hca(&self, number: usize) -> Option<&Hca> {
        let (behind, index) = self.place(number);
        let nodes = if behind { &self.nodes[1] } else { &self.nodes[0] };
        nodes.get(index).map(|node| &node.hca)
    }

    /// Calls `work` with a neighbour that takes copies. Returns `None` without one.
    fn with_neighbour<T>(
        &mut self,
        Neighbour(number): Neighbour,
        work: impl FnOnce(&mut Device, &mut Io<'_>) -> T,
    ) -> Option<T> {
        let number = number as usize;
        if self.woken != number {
            // It pays in a turn, and the requests may change its deadline.
            self.woken = number;
            self.scheduler.wake(number);
        }
        let (behind, index) = self.place(number);
        let (nodes, guests) = match behind {
            false => (&mut self.nodes[0], &mut self.guests[0]),
            true => (&mut self.nodes[1], &mut self.guests[1]),
        };
        let (node, guest) = (nodes.get_mut(index)?, guests.get_mut(index)?);
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
        let number = self.node_at.get(place_of(port)).copied().flatten()?;
        let (behind, index) = self.place(number);
        let guest = if behind { self.guests[1].get(index) } else { self.guests[0].get(index) }?;
        (self.hca(number)?.takes_copies() && guest.takes_copies()).then_some(Neighbour(number as u32))
    }

    fn has_turn(&self, Neighbour(number): Neighbour) -> bool {
        let number = number as usize;
        let has_turn = self.hca(number).is_none_or(Hca::has_turn);
        if !has_turn {
            // Its next turn pays for the requests so far.
            self.scheduler.wake(number);
        }
        has_turn
    }

    fn copy(&mut self, to: Neighbour, from: &Requester, run: &Run<'_>) -> Copied {
        self.with_neighbour(to, |device, io| device.take_copy(io, from, run)).unwrap_or(Copied::No)
    }

    fn count(&mut self, neighbour: Neighbour, traffic: &Traffic, sizes: &[FrameSizes; 2]) {
        self.with_neighbour(neighbour, |device, _| device.count_copied(traffic, sizes));
    }

    fn copy_read(
        &mut self,
        neighbour: Neighbour,
        from: &Requester,
        read: &ReadRun,
        to: &Ranges<'_>,
    ) -> Copied {
        let copied = self.with_neighbour(neighbour, |device, io| device.take_copied_read(io, from, read, to));
        copied.unwrap_or(Copied::No)
    }
}

/// The turn of a node.
struct Turn<'a> {
    index: usize,
    now: u64,
    packets_only: bool,
    scheduler: &'a Scheduler,
    node_at: &'a [Option<usize>],
}

impl Turn<'_> {
    /// As [`World::run`].
    #[inline(always)]
    fn run<G: NodePort>(self, cable: &mut impl Wire, nodes: &mut [Node], guests: &mut [G]) -> bool {
        let Self { index, now, packets_only, scheduler, node_at } = self;
        let Some(node) = nodes.get_mut(index) else { return false };
        if !begin(&mut node.hca, cable, now) {
            return false;
        }
        let Some((before, rest)) = nodes.split_at_mut_checked(index) else { return false };
        let Some((guests_before, guests_rest)) = guests.split_at_mut_checked(index) else { return false };
        let (Some((node, behind)), Some((guest, guests_behind))) =
            (rest.split_first_mut(), guests_rest.split_first_mut())
        else {
            return false;
        };
        let (nodes, guests) = ([before, behind], [guests_before, guests_behind]);
        let mut others = Others { now, scheduler, node_at, woken: usize::MAX, nodes, guests };
        let peers: &mut dyn Peers = if packets_only { &mut NoPeers } else { &mut others };
        let (memory, interrupts) = guest.parts();
        let more = node.hca.work(Io { now, memory, interrupts, wire: cable, peers });
        more | follow_link(&mut node.hca, cable)
    }
}

/// Returns the index of a port in [`World::node_at`].
const fn place_of(port: PortIndex) -> usize {
    let (layer, port) = Medium::local(port);
    2 * port.0 as usize + matches!(layer, LinkLayer::Ethernet) as usize
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
        Self {
            nodes: Vec::new(),
            medium: Medium::new(Fabric::new(config), Switch::new(ethernet)),
            scheduler: Scheduler::default(),
            node_at: Vec::new(),
            others: BTreeSet::new(),
            unsettled: None,
            packets_only: false,
        }
    }

    /// Adds a node, its cable plugged in. `name` is what captures call it. Answers with its place in
    /// [`nodes`](Self::nodes).
    ///
    /// # Errors
    /// [`SwitchFull`].
    pub fn add(&mut self, profile: Profile, name: &str) -> Result<usize, SwitchFull> {
        let port = if profile.card.is_ethernet() {
            let port = self.medium.attach(name, LinkLayer::Ethernet)?;
            // No other port can attract its frames.
            self.medium.switch_mut().pin(Medium::local(port).1, profile.mac());
            port
        } else {
            let port = self.medium.attach(name, LinkLayer::InfiniBand)?;
            self.medium.fabric_mut().set_speeds(port, profile.card.speeds);
            port
        };
        let mut hca = Hca::new(profile);
        hca.device.port.set_cable(true);
        hca.registers().set_waker(self.scheduler.add());
        let node = self.nodes.len();
        self.nodes.push(Node { hca, port });
        let place = place_of(port);
        self.node_at.resize(self.node_at.len().max(place + 1), None);
        if let Some(at) = self.node_at.get_mut(place) {
            *at = Some(node);
        }
        Ok(node)
    }

    /// Replaces the HCA of a node by a new one with the same profile, cable and kind of restarts.
    pub fn renew(&mut self, index: usize) {
        let Some(node) = self.nodes.get_mut(index) else { return };
        let (cable, warm) = (node.hca.port().cable, node.hca.is_warm());
        node.hca = Hca::new(node.hca.profile().clone());
        node.hca.device.port.set_cable(cable);
        node.hca.set_warm(warm);
        node.hca.registers().set_waker(self.scheduler.waker(index));
        self.scheduler.wake(index);
    }

    /// Returns the nodes, in order of [`add`](Self::add).
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns the HCA of a node, which has work from then on.
    pub fn hca_mut(&mut self, index: usize) -> Option<&mut Hca> {
        self.scheduler.wake(index);
        self.nodes.get_mut(index).map(|node| &mut node.hca)
    }

    /// Whether requests go as packets also where nobody watches them. (Where there are faults, a latency or a capture, they always
    /// do.)
    pub fn set_packets_only(&mut self, packets_only: bool) {
        self.packets_only = packets_only;
    }

    /// Plugs a node's cable in, or pulls it.
    pub fn set_cable(&mut self, node: usize, plugged: bool) {
        if let Some(hca) = self.hca_mut(node) {
            hca.device.port.set_cable(plugged);
        }
    }

    /// Does a bounded amount of work for every node that has work, and for the network. `guests`
    /// are the nodes' guests, in the same order; a node without one has no turn. Returns whether
    /// more could be done at once.
    pub fn poll<G: NodePort>(&mut self, now: u64, guests: &mut [G]) -> bool {
        self.medium.poll(now);
        self.begin_round(now);
        while let Some(slot) = self.next_slot(now) {
            match slot {
                Slot::Turn(index) if index < guests.len() => {
                    self.poll_node(index, now, guests);
                }
                // Its work waits for its guest.
                Slot::Turn(index) => self.scheduler.wake(index),
                Slot::Waits(index) => self.deliver(index, now),
            }
        }
        self.medium.poll(now);
        self.scheduler.has_work_below(guests.len()) || self.medium.is_due(now)
    }

    /// Begins a round of turns at `now`. The caller has polled the medium.
    #[inline]
    pub fn begin_round(&mut self, now: u64) {
        if self.unsettled.is_some_and(|(node, _)| !self.scheduler.is_ready(node)) {
            self.settle_deadline();
        }
        self.scheduler.pass(now);
        self.scheduler.begin_round();
    }

    /// Returns the next node of the round, if any.
    #[inline]
    pub fn next_slot(&mut self, now: u64) -> Option<Slot> {
        self.wake_ports(now);
        self.scheduler.next()
    }

    /// Wakes the nodes of ports with packets or changes.
    #[inline]
    fn wake_ports(&mut self, now: u64) {
        let Self { medium, node_at, scheduler, others, .. } = self;
        medium.each_due(now, |port| match node_at.get(place_of(port)).copied().flatten() {
            Some(node) if scheduler.is_ready(node) => {}
            Some(node) => scheduler.wake(node),
            None => _ = others.insert(port),
        });
    }

    /// Takes the ports without a node at which a packet has arrived, or whose link or credit changed.
    pub fn take_other_ports(&mut self, now: u64) -> BTreeSet<PortIndex> {
        self.wake_ports(now);
        std::mem::take(&mut self.others)
    }

    /// Returns whether [`take_other_ports`](Self::take_other_ports) has a port.
    pub fn has_other_ports(&self) -> bool {
        !self.others.is_empty()
    }

    /// Gives a node its turn, with or without work. Returns whether more could be done at once.
    pub fn poll_node<G: NodePort>(&mut self, index: usize, now: u64, guests: &mut [G]) -> bool {
        self.scheduler.begin_turn(index);
        let more = self.run(index, now, guests);
        self.end_turn(index, more, None);
        more
    }

    /// Runs a node in its turn. Returns whether it has more work, for [`end_turn`](Self::end_turn).
    pub fn run<G: NodePort>(&mut self, index: usize, now: u64, guests: &mut [G]) -> bool {
        let Self { nodes, medium, scheduler, node_at, packets_only, .. } = self;
        let Some(node) = nodes.get(index) else { return false };
        let turn = Turn { index, now, packets_only: *packets_only, scheduler, node_at };
        // All uses of the cable in a turn are of one kind.
        match medium.cable(node.port, now) {
            Cable::InfiniBand(mut cable) => turn.run(&mut cable, nodes, guests),
            Cable::Ethernet(mut cable) => turn.run(&mut cable, nodes, guests),
        }
    }

    /// As [`run`](Self::run), with `poll` in place of the HCA's own. Returns as [`turn`] does.
    pub fn run_with<T>(
        &mut self,
        index: usize,
        now: u64,
        poll: impl FnOnce(&mut Hca, &mut dyn Wire) -> T,
    ) -> (Option<T>, bool) {
        let Some(node) = self.nodes.get_mut(index) else { return (None, false) };
        match self.medium.cable(node.port, now) {
            Cable::InfiniBand(mut cable) => turn(&mut node.hca, &mut cable, now, |hca, wire| poll(hca, wire)),
            Cable::Ethernet(mut cable) => turn(&mut node.hca, &mut cable, now, |hca, wire| poll(hca, wire)),
        }
    }

    /// Returns the HCA of a node in its turn.
    pub fn running(&mut self, index: usize) -> Option<&mut Hca> {
        self.nodes.get_mut(index).map(|node| &mut node.hca)
    }

    /// Ends a node's turn: it has work if `more`, else at `wake` or at its HCA's deadline.
    #[inline]
    pub fn end_turn(&mut self, index: usize, more: bool, wake: Option<u64>) {
        if more {
            self.scheduler.claim(index);
            return;
        }
        if self.unsettled.is_some_and(|(node, _)| node != index) {
            self.settle_deadline();
        }
        self.unsettled = Some((index, wake.unwrap_or(Deadlines::NEVER)));
    }

    /// Sets the deadline of the node whose turn ended last.
    fn settle_deadline(&mut self) {
        let Some((index, wake)) = self.unsettled.take() else { return };
        let own = self.nodes.get(index).and_then(|node| node.hca.next_deadline());
        self.scheduler.set_deadline(index, own.map_or(wake, |own| own.min(wake)));
    }

    /// Carries out a node's register writes, as a device does that
    /// [reads work queues at the doorbell](crate::adversary::Adversary::eager_fetch).
    pub fn take_writes<G: NodePort>(&mut self, index: usize, now: u64, guest: &mut G) {
        let Some(node) = self.nodes.get_mut(index) else { return };
        let (memory, interrupts) = guest.parts();
        node.hca.take_writes(now, memory, interrupts, &mut *self.medium.cable(node.port, now));
        self.scheduler.wake(index);
    }

    /// Returns whether a node's next turn changes the state of its link.
    pub fn link_changes(&mut self, index: usize, now: u64) -> bool {
        let Some(node) = self.nodes.get(index) else { return false };
        match self.medium.cable(node.port, now) {
            Cable::InfiniBand(cable) => link_changes(&node.hca, &cable),
            Cable::Ethernet(cable) => link_changes(&node.hca, &cable),
        }
    }

    /// Returns whether a node's port has credit. Without it, the node sends no packets.
    pub fn has_credit(&mut self, index: usize, now: u64) -> bool {
        let node = self.nodes.get(index);
        node.is_some_and(|node| self.medium.cable(node.port, now).has_credit())
    }

    /// Delivers packets to a node whose HCA has no turn, so that their senders' credit returns.
    pub fn deliver(&mut self, index: usize, now: u64) {
        let Some(node) = self.nodes.get_mut(index) else { return };
        match self.medium.cable(node.port, now) {
            Cable::InfiniBand(mut cable) => deliver(&mut node.hca, &mut cable),
            Cable::Ethernet(mut cable) => deliver(&mut node.hca, &mut cable),
        }
    }

    /// Returns the time of the next [`poll`](Self::poll) if nothing happens before, in nanoseconds.
    #[must_use]
    pub fn next_deadline(&mut self) -> Option<u64> {
        self.next_turn().into_iter().chain(self.medium.next_deadline()).min()
    }

    /// Returns the time at which a node has work without an event, in nanoseconds.
    #[must_use]
    pub fn next_turn(&mut self) -> Option<u64> {
        self.settle_deadline();
        self.scheduler.next_deadline()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::AHEAD;

    /// A guest without memory.
    struct Bare;

    impl Interrupts for Bare {
        fn raise(&mut self, _: u16) {}
    }

    impl NodePort for Bare {
        fn parts(&mut self) -> (&dyn GuestMemory, &mut dyn Interrupts) {
            (&NoMemory, self)
        }
    }

    #[test]
    fn poll_passes_over_nodes_without_a_turn_and_keeps_their_work() {
        let mut world = World::new(FabricConfig::default());
        for node in 0..3 {
            world.add(Profile::node(node), "node").expect("a port");
        }
        // Node 0 has used more time than the others, and node 2 has no guest.
        world.scheduler.charge(0, 10 * AHEAD);
        world.scheduler.claim_all();
        let has_link = |world: &World, node: usize| world.medium.fabric().link_is_up(world.nodes[node].port);
        world.poll(1, &mut [Bare, Bare]);
        assert_eq!([1, 2].map(|node| has_link(&world, node)), [true, false]);
        world.poll(2, &mut [Bare, Bare, Bare]);
        assert!(has_link(&world, 2));
    }
}

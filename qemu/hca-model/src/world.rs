//! Several HCAs on one fabric, moved on by one call: what serves them to virtual machines and what tests them in one
//! process does the same.

use crate::fabric::{Fabric, FabricConfig, PortIndex, SwitchFull};
use crate::hca::Hca;
use crate::profile::Profile;
use crate::seams::{GuestMemory, Interrupts};
use mlx5_prm::value::{PortPhysicalState, PortState};

/// The guest behind one HCA.
pub trait NodePort {
    /// Its memory and its interrupt messages.
    fn parts(&mut self) -> (&dyn GuestMemory, &mut dyn Interrupts);
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
}

/// Packets that a node takes in one poll.
const DELIVERIES: usize = 64;

impl World {
    /// A fabric without nodes.
    #[must_use]
    pub fn new(config: FabricConfig) -> Self {
        Self { nodes: Vec::new(), fabric: Fabric::new(config) }
    }

    /// Adds a node, its cable plugged in. `name` is what captures call it. Answers with its place in
    /// [`nodes`](Self::nodes).
    ///
    /// # Errors
    /// [`SwitchFull`].
    pub fn add(&mut self, profile: Profile, name: &str) -> Result<usize, SwitchFull> {
        let port = self.fabric.attach(name)?;
        let mut hca = Hca::new(profile);
        hca.port.set_cable(true);
        self.nodes.push(Node { hca, port });
        Ok(self.nodes.len() - 1)
    }

    /// Plugs a node's cable in, or pulls it.
    pub fn set_cable(&mut self, node: usize, plugged: bool) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.hca.port.set_cable(plugged);
        }
    }

    /// Does a bounded amount of work for every node and the fabric. `guests` are the nodes' guests, in the same order; a node
    /// without one stands still. Answers whether more could be done at once.
    pub fn poll<G: NodePort>(&mut self, now: u64, guests: &mut [G]) -> bool {
        self.poll_fabric(now);
        let mut more = false;
        for (index, guest) in guests.iter_mut().enumerate() {
            more |= self.poll_node(index, now, guest);
        }
        more | self.poll_fabric(now)
    }

    /// The fabric's part of [`poll`](Self::poll), which comes before and after the nodes'. Answers whether a packet has arrived.
    pub fn poll_fabric(&mut self, now: u64) -> bool {
        self.follow_links(now);
        self.fabric.poll(now);
        self.fabric.next_deadline().is_some_and(|deadline| deadline <= now)
    }

    /// One node's part of [`poll`](Self::poll): whoever serves several guests can so tell whose work failed. Answers whether
    /// more could be done at once.
    pub fn poll_node(&mut self, index: usize, now: u64, guest: &mut impl NodePort) -> bool {
        let Some(node) = self.nodes.get_mut(index) else { return false };
        for _ in 0..DELIVERIES {
            let Some(packet) = self.fabric.receive(node.port, now) else { break };
            node.hca.receive(packet);
        }
        // A port without credit waits: its peers first have to take what is on its way.
        if !self.fabric.ready(node.port) {
            node.hca.port.counters.xmit_wait += 1;
            return true;
        }
        let (memory, interrupts) = guest.parts();
        node.hca.poll(now, memory, interrupts, &mut self.fabric.wire(node.port, now))
    }

    /// When [`poll`](Self::poll) must be called next although nothing happens until then; not after `now` when it said that
    /// more could be done.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        let devices = self.nodes.iter().filter_map(|node| node.hca.next_deadline());
        devices.chain(self.fabric.next_deadline()).min()
    }

    /// Tells the fabric which links are up, and which ports lost their configuration by a reset.
    fn follow_links(&mut self, now: u64) {
        for node in &mut self.nodes {
            node.hca.port.set_far_end(self.fabric.port_is_enabled(node.port));
            let port = &node.hca.port;
            let up = port.physical_state == PortPhysicalState::LINK_UP && !node.hca.is_killed();
            let active = self.fabric.port_record(node.port).is_some_and(|record| record.active);
            if active && (port.state == PortState::INIT || port.state == PortState::DOWN) {
                self.fabric.set_link(node.port, false, now);
            }
            self.fabric.set_link(node.port, up, now);
        }
    }
}

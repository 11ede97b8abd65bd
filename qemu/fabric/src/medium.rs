//! A switch of any kind, and the cables of its ports.

use crate::counters::Traffic;
use crate::infiniband::{Destination, Fabric};
use crate::packet::Packet;
use crate::ports::{PortIndex, SwitchFull};
use crate::wire::Wire;

/// A network, by its kind. Settings and reports of one kind are reached through that kind's type.
#[derive(Debug)]
pub enum Medium {
    /// An InfiniBand fabric.
    InfiniBand(Fabric),
}

impl Medium {
    /// Returns the InfiniBand fabric.
    #[must_use]
    pub const fn fabric(&self) -> &Fabric {
        let Self::InfiniBand(fabric) = self;
        fabric
    }

    /// Returns the InfiniBand fabric.
    pub const fn fabric_mut(&mut self) -> &mut Fabric {
        let Self::InfiniBand(fabric) = self;
        fabric
    }

    /// Attaches a port, its link down. `name` appears in captures.
    ///
    /// # Errors
    /// [`SwitchFull`].
    pub fn attach(&mut self, name: &str) -> Result<PortIndex, SwitchFull> {
        match self {
            Self::InfiniBand(fabric) => fabric.attach(name),
        }
    }

    /// Returns the name of a port.
    #[must_use]
    pub fn name(&self, port: PortIndex) -> Option<&str> {
        match self {
            Self::InfiniBand(fabric) => fabric.port_record(port).map(|record| record.name.as_str()),
        }
    }

    /// Returns the cable of a port at time `now`, in nanoseconds.
    #[inline]
    pub const fn cable(&mut self, port: PortIndex, now: u64) -> Cable<'_> {
        Cable { medium: self, port, now }
    }

    /// Lets the switch and its agents work, with a bounded amount of work.
    #[inline]
    pub fn poll(&mut self, now: u64) {
        match self {
            Self::InfiniBand(fabric) => fabric.poll(now),
        }
    }

    /// Returns whether the switch has more to do at `now`, or a packet has arrived.
    #[must_use]
    #[inline]
    pub fn is_due(&self, now: u64) -> bool {
        self.next_deadline().is_some_and(|deadline| deadline <= now)
    }

    /// Returns the time at which [`poll`](Self::poll) or [`Wire::receive`] has something to do.
    #[must_use]
    #[inline]
    pub fn next_deadline(&self) -> Option<u64> {
        match self {
            Self::InfiniBand(fabric) => fabric.next_deadline(),
        }
    }
}

/// The cable of a port, at a time.
#[derive(Debug)]
pub struct Cable<'a> {
    medium: &'a mut Medium,
    port: PortIndex,
    now: u64,
}

impl Cable<'_> {
    /// The adapter accepts no packets from now on, or does again. Meanwhile the switch drops
    /// packets by their head-of-queue lifetime.
    pub fn set_congested(&mut self, congested: bool) {
        match self.medium {
            Medium::InfiniBand(fabric) => fabric.set_congested(self.port, congested, self.now),
        }
    }

    /// Pays for one call's share of the work that the port's packets caused. Returns whether
    /// nothing is owed.
    pub fn pay_turn(&mut self) -> bool {
        match self.medium {
            Medium::InfiniBand(fabric) => fabric.pay_turn(self.port),
        }
    }
}

impl Wire for Cable<'_> {
    #[inline]
    fn send(&mut self, packet: Packet) {
        match self.medium {
            Medium::InfiniBand(fabric) => fabric.send(self.port, packet, self.now),
        }
    }

    #[inline]
    fn receive(&mut self) -> Option<Packet> {
        match self.medium {
            Medium::InfiniBand(fabric) if fabric.is_empty() => None,
            Medium::InfiniBand(fabric) => fabric.receive(self.port, self.now),
        }
    }

    #[inline]
    fn has_credit(&self) -> bool {
        match &*self.medium {
            Medium::InfiniBand(fabric) => fabric.ready(self.port),
        }
    }

    #[inline]
    fn take_buffer(&mut self) -> Vec<u8> {
        match self.medium {
            Medium::InfiniBand(fabric) => fabric.take_buffer(),
        }
    }

    #[inline]
    fn give_buffer(&mut self, buffer: Vec<u8>) {
        match self.medium {
            Medium::InfiniBand(fabric) => fabric.give_buffer(buffer),
        }
    }

    #[inline]
    fn is_enabled(&self) -> bool {
        match &*self.medium {
            Medium::InfiniBand(fabric) => fabric.port_is_enabled(self.port),
        }
    }

    #[inline]
    fn is_up(&self) -> bool {
        match &*self.medium {
            Medium::InfiniBand(fabric) => fabric.link_is_up(self.port),
        }
    }

    fn set_up(&mut self, up: bool) {
        match self.medium {
            Medium::InfiniBand(fabric) => fabric.set_link(self.port, up, self.now),
        }
    }

    #[inline]
    fn take_owed(&mut self) -> u64 {
        match self.medium {
            Medium::InfiniBand(fabric) => fabric.take_owed(self.port),
        }
    }

    #[inline]
    fn direct(&self, way: &Destination) -> Option<PortIndex> {
        match &*self.medium {
            Medium::InfiniBand(fabric) => fabric.unwatched(self.port, way),
        }
    }

    #[inline]
    fn count_direct(&mut self, to: PortIndex, traffic: &Traffic) {
        match self.medium {
            Medium::InfiniBand(fabric) => fabric.count_copied(self.port, to, traffic),
        }
    }
}

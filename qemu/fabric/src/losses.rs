//! Losses by flow: a sender that numbers its packets can be checked to have lost exactly these.

use std::collections::BTreeMap;

use crate::egress::Fate;
use crate::infiniband::packet::Transport;

/// Transport of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Reliable connection.
    Reliable,
    /// Unreliable connection.
    Unreliable,
    /// Unreliable datagram, to one port.
    Datagram,
    /// Unreliable datagram, to a group: each copy counts.
    Multicast,
    /// Subnet management, on its own lane.
    Management,
    /// Any other, and packets of flows beyond the number that are counted separately.
    Other,
}

impl Kind {
    /// Returns the kind of a packet of a transport, to a group or to one port.
    pub(crate) const fn of(transport: Transport, is_multicast: bool) -> Self {
        match transport {
            Transport::Rc => Self::Reliable,
            Transport::Uc => Self::Unreliable,
            Transport::Ud if is_multicast => Self::Multicast,
            Transport::Ud => Self::Datagram,
            _ => Self::Other,
        }
    }
}

/// Packets that count together: their addresses and transport.
pub trait FlowKey: Copy + Ord {
    /// The flow of packets beyond the number of flows that are counted separately.
    const REST: Self;

    /// Returns the flow of a packet with any bytes.
    fn of(packet: &[u8]) -> Self;
}

/// Packets of a flow by what happened to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Lost by injected loss.
    pub dropped: u64,
    /// Arrived twice by injected duplication.
    pub duplicated: u64,
    /// Had one bit changed: lost at the receiver, unless no check covers that bit.
    pub corrupted: u64,
    /// Held back for later ones to overtake.
    pub held: u64,
    /// Lost because a link was or went down.
    pub link_down: u64,
    /// Lost because a queue was full.
    pub overflow: u64,
    /// Lost because no port has the LID.
    pub no_route: u64,
    /// Lost because the sender's port refused them.
    pub refused: u64,
}

impl Losses {
    /// Packets that never arrive: everything lost on the way, corrupted ones not among them.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.dropped + self.link_down + self.overflow + self.no_route + self.refused
    }

    /// Counts a packet by its fate.
    pub(crate) const fn count(&mut self, fate: Fate) {
        match fate {
            Fate::Lost => self.dropped += 1,
            Fate::Corrupted => self.corrupted += 1,
            Fate::Duplicated => self.duplicated += 1,
            Fate::HeldBack => self.held += 1,
            Fate::QueueFull => self.overflow += 1,
        }
    }

    fn add(&mut self, other: &Self) {
        self.dropped += other.dropped;
        self.duplicated += other.duplicated;
        self.corrupted += other.corrupted;
        self.held += other.held;
        self.link_down += other.link_down;
        self.overflow += other.overflow;
        self.no_route += other.no_route;
        self.refused += other.refused;
    }
}

/// Flows that are counted separately. Packets of further flows count together.
pub(crate) const LIMIT: usize = 16_384;

/// The losses of all flows. Flows that lost nothing are not in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LossTable<F>(BTreeMap<F, Losses>);

impl<F> Default for LossTable<F> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<F: FlowKey> LossTable<F> {
    /// The flows that lost something.
    pub fn iter(&self) -> impl Iterator<Item = (&F, &Losses)> {
        self.0.iter()
    }

    /// The losses of one flow.
    #[must_use]
    pub fn of(&self, flow: &F) -> Losses {
        self.0.get(flow).copied().unwrap_or_default()
    }

    /// The losses of all flows that `wanted` picks.
    #[must_use]
    pub fn sum(&self, wanted: impl Fn(&F) -> bool) -> Losses {
        let mut sum = Losses::default();
        for (_, losses) in self.0.iter().filter(|(flow, _)| wanted(flow)) {
            sum.add(losses);
        }
        sum
    }

    pub(crate) fn entry(&mut self, flow: F) -> &mut Losses {
        let full = self.0.len() >= LIMIT && !self.0.contains_key(&flow);
        self.0.entry(if full { F::REST } else { flow }).or_default()
    }
}

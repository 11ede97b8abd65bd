//! Order of the nodes' turns: which nodes have work, when the others will, and whose turn it is.
//!
//! A node has work after a register write, a packet, a peer's copy, a deadline, or a call of its
//! owner. A round gives one turn to every node with work, in the order of their numbers. Nodes
//! without work cost nothing.
//!
//! A server charges the time of each turn to its node. A node that is [`AHEAD`] of the least used
//! claimant waits, so that no node gets more than its share while others claim theirs. A node
//! claims by its guest's messages and by work left after its turn. Packets and deadlines are no
//! claim, because a node that uses no time would delay the others without end.

use rdma_fabric::agenda::{Deadlines, ReadySet};
use std::sync::Arc;

/// Maximum lead of a node's used time over the least used one, in nanoseconds.
pub const AHEAD: u64 = 200_000;
/// Time since its last activity for which a node counts as active, in nanoseconds.
const ACTIVE: u64 = 2_000_000;

/// Inserts a node into the ready set, from any thread.
#[derive(Clone, Debug)]
pub(crate) struct Waker {
    ready: Arc<ReadySet>,
    node: usize,
}

impl Waker {
    #[inline]
    pub(crate) fn wake(&self) {
        self.ready.insert(self.node);
    }
}

/// A node's part of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// The node has its turn.
    Turn(usize),
    /// The node is ahead and waits. It should receive its packets, so that credit returns.
    Waits(usize),
}

/// The nodes' order. See the [module](self).
#[derive(Debug, Default)]
pub struct Scheduler {
    ready: Arc<ReadySet>,
    /// Ready nodes that claim time.
    claims: ReadySet,
    deadlines: Deadlines,
    /// Used time of each node, in nanoseconds. Nodes count from [`floor`](Self::floor) on.
    used: Vec<u64>,
    /// Least that any node counts as used, so that idle nodes save up no time.
    floor: u64,
    /// Most that any node has used.
    most: u64,
    /// Least used time of any claimant when the round began.
    least: Option<u64>,
    /// Next node of the round.
    cursor: usize,
    /// The two nodes that were active last, and when.
    active: [Option<(usize, u64)>; 2],
}

impl Scheduler {
    /// Adds a node, which has work. Returns its waker.
    pub(crate) fn add(&mut self) -> Waker {
        let node = self.used.len();
        self.used.push(0);
        self.wake(node);
        self.waker(node)
    }

    /// Returns the waker of a node.
    pub(crate) fn waker(&self, node: usize) -> Waker {
        Waker { ready: Arc::clone(&self.ready), node }
    }

    /// The node has work.
    #[inline]
    pub fn wake(&self, node: usize) {
        self.ready.insert(node);
    }

    /// The node has work, and claims time.
    #[inline]
    pub fn claim(&self, node: usize) {
        self.wake(node);
        self.claims.insert(node);
    }

    /// All nodes have work, and claim time.
    pub fn claim_all(&self) {
        (0..self.used.len()).for_each(|node| self.claim(node));
    }

    /// Returns whether any node has work.
    #[must_use]
    #[inline]
    pub fn has_work(&self) -> bool {
        self.has_work_below(self.used.len())
    }

    /// Returns whether any of the first `count` nodes has work.
    #[inline]
    pub(crate) fn has_work_below(&self, count: usize) -> bool {
        self.ready.first_in(0..count).is_some()
    }

    /// Returns whether a node has work.
    #[inline]
    pub(crate) fn is_ready(&self, node: usize) -> bool {
        self.ready.contains(node)
    }

    /// The time is `now`: nodes whose deadlines have passed have work.
    #[inline]
    pub(crate) fn pass(&mut self, now: u64) {
        while let Some(node) = self.deadlines.next_due(0, now) {
            self.deadlines.set(node, Deadlines::NEVER);
            self.wake(node);
        }
    }

    /// Begins a round.
    #[inline]
    pub(crate) fn begin_round(&mut self) {
        self.cursor = 0;
        if self.most == 0 {
            // The owner charges no time.
            return;
        }
        let mut least = None;
        let mut from = 0;
        while let Some(node) = self.claims.first_in(from..self.used.len()) {
            from = node + 1;
            least = least.into_iter().chain(Some(self.used(node))).min();
        }
        let least = least.unwrap_or(self.most);
        self.least = Some(least);
        self.floor = self.floor.max(least.saturating_sub(AHEAD));
    }

    /// Returns the next node of the round.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Slot> {
        let node = self.ready.first_in(self.cursor..self.used.len())?;
        self.cursor = node + 1;
        if self.is_ahead(node) {
            return Some(Slot::Waits(node));
        }
        self.begin_turn(node);
        Some(Slot::Turn(node))
    }

    /// The node's turn begins: what it had to do until now is done in it.
    #[inline]
    pub fn begin_turn(&self, node: usize) {
        self.ready.remove(node);
        if self.claims.contains(node) {
            self.claims.remove(node);
        }
    }

    /// The node has work at `deadline`, instead of any former deadline.
    #[inline]
    pub(crate) fn set_deadline(&mut self, node: usize, deadline: u64) {
        self.deadlines.set(node, deadline);
    }

    /// Returns the earliest deadline of any node, in nanoseconds.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        Some(self.deadlines.earliest()).filter(|earliest| *earliest != Deadlines::NEVER)
    }

    /// Returns the time that a node counts as having used, in nanoseconds.
    #[must_use]
    pub fn used(&self, node: usize) -> u64 {
        self.used.get(node).map_or(0, |used| self.floor.max(*used))
    }

    /// Charges `nanoseconds` to a node.
    #[inline]
    pub fn charge(&mut self, node: usize, nanoseconds: u64) {
        let total = self.used(node).saturating_add(nanoseconds);
        if let Some(used) = self.used.get_mut(node) {
            *used = total;
            self.most = self.most.max(total);
        }
    }

    /// Returns whether a node must wait, because it used so much more time than a claimant.
    #[must_use]
    #[inline]
    pub fn is_ahead(&self, node: usize) -> bool {
        self.least.is_some_and(|least| self.used(node) > least.saturating_add(AHEAD))
    }

    /// A node's guest or its HCA is active at `now`.
    #[inline]
    pub fn note_active(&mut self, node: usize, now: u64) {
        let [last, before] = &mut self.active;
        if last.is_some_and(|(last, _)| last != node) {
            *before = *last;
        }
        *last = Some((node, now));
    }

    /// Returns whether a node other than `node` was active recently.
    #[must_use]
    #[inline]
    pub fn is_contended(&self, node: usize, now: u64) -> bool {
        let other = self.active.iter().flatten().find(|(active, _)| *active != node);
        other.is_some_and(|(_, at)| now.saturating_sub(*at) < ACTIVE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(nodes: usize) -> Scheduler {
        let mut scheduler = Scheduler::default();
        (0..nodes).for_each(|_| drop(scheduler.add()));
        scheduler
    }

    fn round(scheduler: &mut Scheduler) -> Vec<Slot> {
        scheduler.begin_round();
        std::iter::from_fn(|| scheduler.next()).collect()
    }

    #[test]
    fn nodes_without_work_have_no_turn() {
        let mut scheduler = of(200);
        assert_eq!(round(&mut scheduler).len(), 200, "new nodes have work");
        assert_eq!(round(&mut scheduler), []);
        scheduler.waker(150).wake();
        scheduler.set_deadline(7, 100);
        scheduler.set_deadline(8, 50);
        scheduler.set_deadline(8, 101);
        scheduler.pass(99);
        assert_eq!(round(&mut scheduler), [Slot::Turn(150)]);
        assert_eq!(scheduler.next_deadline(), Some(100));
        scheduler.pass(100);
        assert_eq!(round(&mut scheduler), [Slot::Turn(7)]);
        assert_eq!((scheduler.next_deadline(), scheduler.has_work()), (Some(101), false));
    }

    #[test]
    fn node_woken_in_a_round_has_its_turn_in_order() {
        let mut scheduler = of(3);
        round(&mut scheduler);
        scheduler.wake(1);
        scheduler.begin_round();
        assert_eq!(scheduler.next(), Some(Slot::Turn(1)));
        // Work for itself and for the node before it waits for the next round.
        scheduler.claim_all();
        assert_eq!(scheduler.next(), Some(Slot::Turn(2)));
        assert_eq!(scheduler.next(), None);
        assert_eq!(round(&mut scheduler), [Slot::Turn(0), Slot::Turn(1)]);
    }

    #[test]
    fn node_ahead_waits_for_nodes_with_work() {
        let mut scheduler = of(2);
        scheduler.charge(0, 10 * AHEAD);
        scheduler.claim_all();
        assert_eq!(round(&mut scheduler), [Slot::Waits(0), Slot::Turn(1)]);
        // Node 1 has no work any more.
        assert_eq!(round(&mut scheduler), [Slot::Turn(0)]);
        // And it has saved up no time.
        assert_eq!(scheduler.used(1), 9 * AHEAD);
        scheduler.claim_all();
        scheduler.charge(0, 1);
        assert_eq!(round(&mut scheduler), [Slot::Waits(0), Slot::Turn(1)]);
        // A packet or a deadline of node 1 is no claim.
        scheduler.wake(1);
        assert_eq!(round(&mut scheduler), [Slot::Turn(0), Slot::Turn(1)]);
    }

    #[test]
    fn node_is_contended_by_recent_activity_of_others() {
        let mut scheduler = of(3);
        scheduler.note_active(0, 10);
        assert!(!scheduler.is_contended(0, 10) && scheduler.is_contended(1, 10));
        scheduler.note_active(2, 20);
        scheduler.note_active(2, 30);
        assert!(scheduler.is_contended(2, 9 + ACTIVE), "by node 0");
        assert!(!scheduler.is_contended(2, 10 + ACTIVE));
        assert!(scheduler.is_contended(0, 29 + ACTIVE) && !scheduler.is_contended(0, 30 + ACTIVE));
    }
}

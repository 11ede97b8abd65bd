//! Packets that wait for the switch's management port, by sender.
//!
//! One request can take the work of hundreds of calls. Its sender owes the excess, and its next
//! packets wait until later calls have paid. Senders in debt share one payment per call, so that
//! floods of many ports take no more of a server's time than the flood of one. Packets of other
//! senders do not wait for them.

use std::collections::VecDeque;

use crate::agenda::ReadySet;
use crate::links::CREDITS;
use crate::packet::Packet;
use crate::ports::PortIndex;
use crate::work::STEPS_PER_CALL;

/// Packets of one sender that wait at most.
const WAITING: usize = 128;
/// Credit that each of them holds: a sender has none left when no more may wait.
pub(super) const CREDIT: usize = CREDITS / WAITING;
/// Steps that a call pays for the senders in debt. A server's iteration has two calls, and a device
/// has [`STEPS_PER_CALL`] in it.
const PAYMENT: u64 = STEPS_PER_CALL / 2;

#[derive(Debug, Default)]
struct Sender {
    packets: VecDeque<Packet>,
    /// Steps that its packets took and that no call has paid.
    debt: u64,
}

/// The waiting packets. See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Inbox {
    senders: Vec<Sender>,
    waiting: usize,
    /// Senders with packets.
    ready: ReadySet,
    /// Senders with debt.
    indebted: ReadySet,
    /// Sender after the one that was served last, and after the one that was paid for last.
    next: usize,
    next_paid: usize,
}

impl Inbox {
    /// Queues a packet. Returns false if too many packets of its sender wait.
    pub(super) fn push(&mut self, from: PortIndex, packet: Packet) -> bool {
        let index = from.0 as usize;
        if index >= self.senders.len() {
            self.senders.resize_with(index + 1, Sender::default);
        }
        let Some(sender) = self.senders.get_mut(index).filter(|sender| sender.packets.len() < WAITING) else {
            return false;
        };
        sender.packets.push_back(packet);
        self.waiting += 1;
        self.ready.insert(index);
        true
    }

    /// Returns the number of waiting packets.
    pub(super) const fn len(&self) -> usize {
        self.waiting
    }

    /// Begins a call: pays for the senders in debt.
    pub(super) fn begin_call(&mut self) {
        let mut left = PAYMENT;
        while left != 0
            && let Some(index) = first_from(&self.indebted, self.next_paid, self.senders.len())
        {
            self.next_paid = index + 1;
            let Some(sender) = self.senders.get_mut(index) else { return };
            let paid = sender.debt.min(left);
            sender.debt -= paid;
            left -= paid;
            if sender.debt == 0 {
                self.indebted.remove(index);
            }
        }
    }

    /// Returns the next packet of a sender that owes less than the work of a call.
    pub(super) fn pop(&mut self) -> Option<(PortIndex, Packet)> {
        let count = self.senders.len();
        let first = first_from(&self.ready, self.next, count)?;
        let mut index = first;
        while self.senders.get(index)?.debt >= STEPS_PER_CALL {
            index = first_from(&self.ready, index + 1, count).filter(|index| *index != first)?;
        }
        self.next = index + 1;
        let sender = self.senders.get_mut(index)?;
        let packet = sender.packets.pop_front()?;
        self.waiting -= 1;
        if sender.packets.is_empty() {
            self.ready.remove(index);
        }
        Some((PortIndex(index as u32), packet))
    }

    /// Charges the work of a packet to its sender.
    pub(super) fn charge(&mut self, from: PortIndex, steps: u64) {
        if let Some(sender) = self.senders.get_mut(from.0 as usize).filter(|_| steps != 0) {
            sender.debt = sender.debt.saturating_add(steps);
            self.indebted.insert(from.0 as usize);
        }
    }
}

/// Returns the first member from `from` on, or else the lowest, of members below `count`.
fn first_from(set: &ReadySet, from: usize, count: usize) -> Option<usize> {
    set.first_in(from..count).or_else(|| set.first_in(0..from.min(count)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An inbox with `packets` of each of `ports`.
    fn inbox(ports: u32, packets: usize) -> Inbox {
        let mut inbox = Inbox::default();
        for port in (0..ports).flat_map(|port| (0..packets).map(move |_| port)) {
            assert!(inbox.push(PortIndex(port), Packet::new(vec![0; 8])));
        }
        inbox
    }

    fn next(inbox: &mut Inbox) -> Option<u32> {
        inbox.pop().map(|(from, _)| from.0)
    }

    #[test]
    fn senders_take_turns_and_have_a_limit_each() {
        let mut inbox = inbox(2, WAITING);
        assert!(!inbox.push(PortIndex(0), Packet::new(vec![0; 8])));
        assert!(inbox.push(PortIndex(2), Packet::new(vec![0; 8])));
        let order: Vec<_> = (0..5).map(|_| next(&mut inbox)).collect();
        assert_eq!(order, [Some(0), Some(1), Some(2), Some(0), Some(1)]);
        assert_eq!(inbox.len(), 2 * WAITING + 1 - 5);
    }

    #[test]
    fn sender_in_debt_waits_and_others_do_not() {
        let mut inbox = inbox(2, 3);
        inbox.charge(PortIndex(0), 4 * STEPS_PER_CALL);
        let order: Vec<_> = (0..4).map(|_| next(&mut inbox)).collect();
        assert_eq!(order, [Some(1), Some(1), Some(1), None]);
        let mut calls = 0;
        while inbox.pop().is_none() {
            inbox.begin_call();
            calls += 1;
        }
        assert_eq!(calls, 3 * STEPS_PER_CALL / PAYMENT + 1, "less than the work of one call is left");
    }

    #[test]
    fn floods_of_many_ports_take_no_more_than_that_of_one() {
        for ports in [1, 8] {
            let mut inbox = inbox(ports, 100);
            let mut served = 0;
            for _ in 0..800 {
                inbox.begin_call();
                while let Some((from, _)) = inbox.pop() {
                    inbox.charge(from, 10 * STEPS_PER_CALL);
                    served += 1;
                }
            }
            // The first packet of each port, and those that the payments were for.
            let bound = u64::from(ports) + 800 * PAYMENT / (10 * STEPS_PER_CALL) + 1;
            assert!((30..=bound).contains(&served), "{served} of {ports} ports");
        }
    }
}

//! What one task and one of the other side's have under way: numbers that have to follow each other, and a ring of requests each way.

use super::message::{Op, Rdma, RdmaOp};
use super::options::{MAX_SLOTS, MAX_TASKS};

/// One task and one of the other side's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    /// Numbers of the next message each way; requests and answers are counted together.
    pub(super) send_sequence: u32,
    pub(super) receive_sequence: u32,
    /// Places of the next request each way.
    pub(super) send_index: u32,
    pub(super) receive_index: u32,
    /// Requests of ours that are not answered, and theirs.
    pub(super) pending: u32,
    pub(super) unacked: u32,
    /// Its port takes no more; an operation has to end before the place's next one.
    pub(super) congested: bool,
    pub(super) draining: bool,
    /// The next request has memory read, the one before had it written.
    pub(super) reads_next: bool,
}

/// A place in the rings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    /// When our request was sent, nanoseconds.
    pub(super) sent_at: u64,
    /// What their request said of RDMA; the answer repeats it.
    pub(super) asked: Option<Rdma>,
    /// The operation of the last answer has not ended; what it reads, if it does.
    pub(super) in_flight: bool,
    pub(super) reads: Option<u64>,
    /// Cookie of the memory that our request offers, while it is registered by a call; 0 without one.
    pub(super) key: u64,
}

impl Pair {
    pub(super) const EMPTY: Self = Self {
        send_sequence: 0,
        receive_sequence: 0,
        send_index: 0,
        receive_index: 0,
        pending: 0,
        unacked: 0,
        congested: false,
        draining: false,
        reads_next: false,
    };

    /// With the task `other` of the other side.
    pub(super) const fn with(other: usize) -> Self {
        Self { reads_next: other & 1 == 0, ..Self::EMPTY }
    }

    /// What the next request has done with its memory.
    pub(super) fn next_op(&mut self, direction: u8) -> RdmaOp {
        let op = match direction {
            1 => RdmaOp::Read,
            2 => RdmaOp::Write,
            _ if self.reads_next => RdmaOp::Read,
            _ => RdmaOp::Write,
        };
        self.reads_next = op.other() == RdmaOp::Read;
        op
    }

    /// The place that a message that arrives must be of: an answer's is that of the oldest request.
    pub(super) const fn due_index(&self, op: Op, depth: u32) -> u32 {
        match op {
            Op::Request => self.receive_index,
            Op::Ack => (self.send_index + depth - self.pending) % depth,
        }
    }

    /// The place of the oldest request that is not answered.
    pub(super) const fn unanswered(&self, depth: u32) -> u32 {
        (self.receive_index + depth - self.unacked) % depth
    }
}

impl Slot {
    pub(super) const EMPTY: Self = Self { sent_at: 0, asked: None, in_flight: false, reads: None, key: 0 };
}

/// All pairs of this node's tasks and the other side's.
pub(super) struct Pairs {
    pairs: [Pair; MAX_TASKS * MAX_TASKS],
    slots: [Slot; MAX_SLOTS],
}

impl Pairs {
    pub(super) const fn new() -> Self {
        Self { pairs: [Pair::EMPTY; MAX_TASKS * MAX_TASKS], slots: [Slot::EMPTY; MAX_SLOTS] }
    }

    /// For so many tasks on each side.
    pub(super) fn begin(&mut self, tasks: usize) {
        self.slots.fill(Slot::EMPTY);
        for (index, pair) in self.pairs.iter_mut().enumerate() {
            *pair = Pair::with(index % tasks.max(1));
        }
    }

    /// A pair, and the slot at a place of it. None for one that is not there, of which none is asked for.
    pub(super) fn get(&mut self, pair: usize, slot: usize) -> Option<(&mut Pair, &mut Slot)> {
        Some((self.pairs.get_mut(pair)?, self.slots.get_mut(slot)?))
    }

    pub(super) fn pair(&mut self, pair: usize) -> Option<&mut Pair> {
        self.pairs.get_mut(pair)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_follow_each_other() {
        let mut pair = Pair::with(0);
        (pair.send_index, pair.pending, pair.receive_index, pair.unacked) = (1, 3, 0, 2);
        assert_eq!(
            (pair.due_index(Op::Request, 4), pair.due_index(Op::Ack, 4), pair.unanswered(4)),
            (0, 2, 2)
        );
    }

    #[test]
    fn reads_and_writes_take_turns() {
        let mut even = Pair::with(0);
        assert_eq!([0; 3].map(|mode| even.next_op(mode)), [RdmaOp::Read, RdmaOp::Write, RdmaOp::Read]);
        let mut odd = Pair::with(1);
        assert_eq!([0, 0, 1, 1, 2, 2].map(|mode| odd.next_op(mode)).map(|op| op as u8), [2, 1, 1, 1, 2, 2]);
    }
}

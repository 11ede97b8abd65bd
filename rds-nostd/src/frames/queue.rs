//! First-in first-out lists through the table of frames.

use crate::frames::{Frame, Frames, Use};
use crate::ids::{FrameId, MessageId};

/// A list of messages.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Queue {
    head: Option<MessageId>,
    tail: Option<MessageId>,
}

impl Queue {
    pub(crate) const EMPTY: Self = Self { head: None, tail: None };

    pub(crate) const fn head(&self) -> Option<MessageId> {
        self.head
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.head.is_none()
    }

    /// The first message goes; `next` is the one behind it.
    #[inline(always)]
    pub(crate) const fn drop_head(&mut self, next: Option<MessageId>) {
        self.head = next;
        if next.is_none() {
            self.tail = None;
        }
    }
}

/// A list of frames: receives, in the order in which they were posted, which is the order in which they complete.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Chain {
    head: Option<FrameId>,
    tail: Option<FrameId>,
}

impl Chain {
    pub(crate) const EMPTY: Self = Self { head: None, tail: None };

    #[inline(always)]
    pub(crate) const fn head(&self) -> Option<FrameId> {
        self.head
    }
}

impl Frames<'_> {
    /// Puts a message that nothing follows at the end of a queue.
    #[inline(always)]
    pub(crate) fn push_back(&mut self, queue: &mut Queue, message: MessageId) {
        match queue.tail {
            Some(tail) => self.message_mut(tail).next_message = Some(message),
            None => queue.head = Some(message),
        }
        queue.tail = Some(message);
    }

    #[inline(always)]
    pub(crate) fn pop_front(&mut self, queue: &mut Queue) -> Option<MessageId> {
        let message = queue.head?;
        queue.head = core::mem::take(&mut self.message_mut(message).next_message);
        if queue.head.is_none() {
            queue.tail = None;
        }
        Some(message)
    }

    /// The message behind `message` in its queue.
    #[inline(always)]
    pub(crate) fn next_message(&self, message: MessageId) -> Option<MessageId> {
        self.message(message).next_message
    }

    /// Puts frames that are linked from `first` to `last` at the end of a chain.
    #[inline(always)]
    pub(crate) fn extend_chain(&mut self, chain: &mut Chain, first: FrameId, last: FrameId) {
        match chain.tail {
            Some(tail) => self.at_mut(tail).next = Some(first),
            None => chain.head = Some(first),
        }
        chain.tail = Some(last);
    }

    /// Takes the first frame of a chain, `frame`, which something arrived in, and makes it a message of its own.
    #[inline(always)]
    pub(crate) fn take_arrived(&mut self, chain: &mut Chain, frame: FrameId) -> &mut Frame {
        let entry = self.at_mut(frame);
        chain.head = entry.next;
        if chain.head.is_none() {
            chain.tail = None;
        }
        entry.become_message(Use::Receive)
    }

    /// Takes the first frame of a chain.
    #[inline(always)]
    pub(crate) fn pop_chain(&mut self, chain: &mut Chain) -> Option<FrameId> {
        let first = chain.head?;
        chain.head = core::mem::take(&mut self.at_mut(first).next);
        if chain.head.is_none() {
            chain.tail = None;
        }
        Some(first)
    }

    /// Takes all frames behind the first `keep` ones of a chain, which the HCA was not told of, and gives them back.
    pub(crate) fn cut_chain(&mut self, chain: &mut Chain, keep: usize) {
        let mut kept = Chain::EMPTY;
        for _ in 0..keep {
            let Some(frame) = self.pop_chain(chain) else { break };
            self.extend_chain(&mut kept, frame, frame);
        }
        while let Some(frame) = self.pop_chain(chain) {
            self.give(frame);
        }
        *chain = kept;
    }

    /// Takes all frames of a chain, which a device that has failed may write to: nobody gets them before [`release`](Self::release).
    pub(crate) fn withhold(&mut self, chain: &mut Chain) {
        let Chain { head, tail } = core::mem::replace(chain, Chain::EMPTY);
        if let (Some(first), Some(last)) = (head, tail) {
            let mut withheld = core::mem::replace(&mut self.withheld, Chain::EMPTY);
            self.extend_chain(&mut withheld, first, last);
            self.withheld = withheld;
        }
    }

    /// The device was reset: what was withheld is free.
    pub(crate) fn release(&mut self) {
        let mut withheld = core::mem::replace(&mut self.withheld, Chain::EMPTY);
        self.cut_chain(&mut withheld, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::vec::Vec;

    proptest! {
        /// Messages of any lengths, queued and given back in any order, equal a model with ordinary containers.
        #[test]
        fn messages_and_queues_lose_nothing(steps in prop::collection::vec((0u8..3, 1usize..5), 1..200)) {
            let mut table = [Frame::EMPTY; 23];
            let mut frames = Frames::plain(&mut table, 1);
            let mut queue = Queue::EMPTY;
            let mut model: VecDeque<(MessageId, usize)> = VecDeque::new();
            for (action, len) in steps {
                match action {
                    0 | 1 if frames.free_count() >= len => {
                        let message = frames.begin(Use::Send, |_| ()).unwrap();
                        for _ in 1..len {
                            let next = frames.take(Use::Send).unwrap();
                            frames.append(message, next);
                        }
                        frames.push_back(&mut queue, message);
                        model.push_back((message, len));
                    }
                    2 => {
                        let popped = frames.pop_front(&mut queue);
                        let expected = model.pop_front();
                        prop_assert_eq!(popped, expected.map(|(message, _)| message));
                        if let Some(message) = popped {
                            prop_assert_eq!(frames.give_message(message) as usize, expected.unwrap().1);
                        }
                    }
                    _ => prop_assert!(frames.free_count() < len),
                }
                let used: usize = model.iter().map(|(_, len)| len).sum();
                prop_assert_eq!(frames.free_count(), 23 - used);
                let mut walked = Vec::new();
                let mut next = queue.head();
                while let Some(message) = next {
                    walked.push((message, usize::from(frames.message(message).frames)));
                    next = frames.next_message(message);
                }
                prop_assert_eq!(walked, model.iter().copied().collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn receives_complete_in_the_order_of_their_posts() {
        let mut table = [Frame::EMPTY; 8];
        let mut frames = Frames::plain(&mut table, 1);
        let mut posted = Chain::EMPTY;
        for _ in 0..2 {
            assert_eq!(frames.post_receives(&mut posted, 1 << 32, 3, |receives| receives.count()), (3, 3));
        }
        // The last one was not taken by the HCA after all.
        frames.cut_chain(&mut posted, 5);
        assert_eq!(frames.free_count(), 3);
        let order: Vec<usize> =
            std::iter::from_fn(|| frames.pop_chain(&mut posted)).map(FrameId::index).collect();
        assert_eq!(order, [0, 1, 2, 3, 4]);
        assert_eq!(frames.free_count(), 3);
    }
}

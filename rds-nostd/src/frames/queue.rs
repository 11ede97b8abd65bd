//! First-in first-out lists in the table of frames.

use crate::frames::{Frame, Frames};
use crate::ids::MessageId;

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

    pub(crate) const fn tail(&self) -> Option<MessageId> {
        self.tail
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.head.is_none()
    }

    /// Appends a message of this table of frames, without a successor.
    #[inline]
    pub(super) fn push(&mut self, table: &mut [Frame], message: Option<MessageId>) {
        match table.get_mut(self.tail.map_or(usize::MAX, |tail| tail.first().index())) {
            Some(last) => last.next_message = message,
            None => self.head = message,
        }
        self.tail = message;
    }

    /// Removes the first message; `next` is its successor.
    pub(crate) const fn drop_head(&mut self, next: Option<MessageId>) {
        self.head = next;
        if next.is_none() {
            self.tail = None;
        }
    }
}

impl Frames<'_> {
    /// Appends a message without a successor to a queue.
    #[inline]
    pub(crate) fn push_back(&mut self, queue: &mut Queue, message: MessageId) {
        queue.push(self.table, Some(message));
    }

    #[inline]
    pub(crate) fn pop_front(&mut self, queue: &mut Queue) -> Option<MessageId> {
        let message = queue.head?;
        queue.head = core::mem::take(&mut self.message_mut(message).next_message);
        if queue.head.is_none() {
            queue.tail = None;
        }
        Some(message)
    }

    /// Returns the messages of a queue from `first` on.
    pub(crate) fn messages(&self, first: Option<MessageId>) -> impl Iterator<Item = (MessageId, &Frame)> {
        let entry = |message: MessageId| (message, self.message(message));
        core::iter::successors(first.map(entry), move |(_, frame)| frame.next_message.map(entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::{Frame, Use};
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::vec::Vec;

    proptest! {
        /// Messages of any lengths, queued and freed in any order, equal a model with standard
        /// containers.
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
                        let mut last = message.first();
                        for _ in 1..len {
                            let next = frames.take(Use::Send).unwrap();
                            frames.append(message, last, next);
                            last = next;
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
                    next = frames.message(message).next_message;
                }
                prop_assert_eq!(walked, model.iter().copied().collect::<Vec<_>>());
            }
        }
    }
}

//! Software event queues: lists in one pool, each with its reservation, so that an event that has its place is never lost.

use crate::base::event::EventData;

/// One place of the pool.
#[derive(Debug)]
pub struct EventSlot {
    /// The next place plus one.
    next: u32,
    /// How many completions of the EVD's CQ come first.
    follows: u32,
    data: Stored,
}

#[derive(Debug)]
#[repr(u8)]
enum Stored {
    None = 0,
    Some(EventData) = 1,
}

impl EventSlot {
    /// An empty place; all zero bytes.
    pub const EMPTY: EventSlot = EventSlot { next: 0, follows: 0, data: Stored::None };
}

/// All places.
pub(crate) struct EventPool<'s> {
    slots: &'s mut [EventSlot],
    /// Places from here on were never used.
    fresh: u32,
    free: u32,
    /// Places promised to queues.
    reserved: u32,
    /// Places with an event in them.
    used: u32,
}

/// One EVD's queue.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    first: u32,
    last: u32,
    len: u32,
    limit: u32,
}

impl EventQueue {
    /// Events queued.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Events that fit.
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len >= self.limit
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first == 0
    }
}

impl<'s> EventPool<'s> {
    pub(crate) fn new(slots: &'s mut [EventSlot]) -> Self {
        Self { slots, fresh: 0, free: 0, reserved: 0, used: 0 }
    }

    /// Most events that one queue could still be given.
    pub(crate) fn available(&self) -> u32 {
        (self.slots.len().min(u32::MAX as usize - 1) as u32).saturating_sub(self.reserved)
    }

    /// A queue with room for `limit` events; None if the pool has not that many left.
    pub(crate) fn create(&mut self, limit: u32) -> Option<EventQueue> {
        if limit > self.available() {
            return None;
        }
        self.reserved += limit;
        Some(EventQueue { limit, ..EventQueue::default() })
    }

    /// Gives a queue another length; false, and nothing has changed, if the pool has not that many places left or the queue
    /// holds more events.
    #[must_use]
    pub(crate) fn resize(&mut self, queue: &mut EventQueue, limit: u32) -> bool {
        if limit < queue.len || limit.saturating_sub(queue.limit) > self.available() {
            return false;
        }
        self.reserved = self.reserved.saturating_sub(queue.limit) + limit;
        queue.limit = limit;
        true
    }

    /// Places with an event in them, of all queues.
    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// Places promised to queues.
    pub(crate) fn reserved(&self) -> u32 {
        self.reserved
    }

    /// Ends a queue; its events are lost.
    pub(crate) fn destroy(&mut self, queue: &mut EventQueue) {
        while self.pop(queue).is_some() {}
        self.reserved = self.reserved.saturating_sub(queue.limit);
        queue.limit = 0;
    }

    /// Appends; false if the queue is full.
    #[must_use]
    pub(crate) fn push(&mut self, queue: &mut EventQueue, follows: u32, data: EventData) -> bool {
        if queue.is_full() {
            return false;
        }
        let index = self.free.checked_sub(1).unwrap_or(self.fresh);
        let Some(slot) = self.slots.get_mut(index as usize) else { return false };
        if self.free == 0 {
            self.fresh += 1;
        } else {
            self.free = slot.next;
        }
        *slot = EventSlot { next: 0, follows, data: Stored::Some(data) };
        match queue.last.checked_sub(1).and_then(|last| self.slots.get_mut(last as usize)) {
            Some(last) => last.next = index + 1,
            None => queue.first = index + 1,
        }
        queue.last = index + 1;
        queue.len += 1;
        self.used += 1;
        true
    }

    /// How many completions come before the oldest event; None if there is none.
    #[inline]
    pub(crate) fn follows(&self, queue: &EventQueue) -> Option<u32> {
        let index = queue.first.checked_sub(1)?;
        self.slots.get(index as usize).map(|slot| slot.follows)
    }

    /// Takes the oldest event.
    pub(crate) fn pop(&mut self, queue: &mut EventQueue) -> Option<EventData> {
        let index = queue.first.checked_sub(1)?;
        let slot = self.slots.get_mut(index as usize)?;
        let Stored::Some(data) = core::mem::replace(&mut slot.data, Stored::None) else { return None };
        queue.first = slot.next;
        if queue.first == 0 {
            queue.last = 0;
        }
        queue.len -= 1;
        self.used = self.used.saturating_sub(1);
        slot.next = self.free;
        self.free = index + 1;
        Some(data)
    }

    /// Lets `change` see and change the position of every event of the queue.
    pub(crate) fn reposition(&mut self, queue: &EventQueue, mut change: impl FnMut(u32) -> u32) {
        let mut at = queue.first;
        while let Some(slot) = at.checked_sub(1).and_then(|index| self.slots.get_mut(index as usize)) {
            slot.follows = change(slot.follows);
            at = slot.next;
        }
    }

    /// Drops the events of the queue that `keep` refuses.
    pub(crate) fn retain(&mut self, queue: &mut EventQueue, keep: impl Fn(&EventData) -> bool) {
        for _ in 0..queue.len {
            let (Some(follows), Some(data)) = (self.follows(queue), self.pop(queue)) else { return };
            if keep(&data) {
                // A place was freed just now, so there is one.
                let _ = self.push(queue, follows, data);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn software(value: u64) -> EventData {
        EventData::Software { value }
    }

    fn drain(pool: &mut EventPool<'_>, queue: &mut EventQueue) -> Vec<u64> {
        core::iter::from_fn(|| pool.pop(queue))
            .map(|data| match data {
                EventData::Software { value } => value,
                other => panic!("{other:?}"),
            })
            .collect()
    }

    #[test]
    fn reservations_hold() {
        let mut slots = [const { EventSlot::EMPTY }; 5];
        let mut pool = EventPool::new(&mut slots);
        let mut a = pool.create(3).unwrap();
        assert!(pool.create(3).is_none());
        let mut b = pool.create(2).unwrap();
        for value in 0..3 {
            assert!(pool.push(&mut a, 0, software(value)));
        }
        assert!(!pool.push(&mut a, 0, software(9)));
        assert!(pool.push(&mut b, 0, software(10)) && pool.push(&mut b, 0, software(11)));
        assert!(!pool.push(&mut b, 0, software(12)));
        assert_eq!(pool.pop(&mut a), Some(software(0)));
        assert!(pool.push(&mut a, 7, software(3)));
        assert_eq!(drain(&mut pool, &mut a), [1, 2, 3]);
        pool.destroy(&mut b);
        assert_eq!(pool.available(), 2);
        let mut c = pool.create(2).unwrap();
        assert!(pool.push(&mut c, 0, software(20)));
        assert_eq!(drain(&mut pool, &mut c), [20]);
    }

    #[test]
    fn positions_and_retain() {
        let mut slots = [const { EventSlot::EMPTY }; 8];
        let mut pool = EventPool::new(&mut slots);
        let mut queue = pool.create(8).unwrap();
        for value in 0..6 {
            assert!(pool.push(&mut queue, value as u32 * 10, software(value)));
        }
        pool.retain(&mut queue, |data| !matches!(data, EventData::Software { value } if value % 3 == 0));
        pool.reposition(&queue, |follows| follows + 1);
        assert_eq!((queue.len(), pool.follows(&queue)), (4, Some(11)));
        assert_eq!(drain(&mut pool, &mut queue), [1, 2, 4, 5]);
        assert!(queue.is_empty());
    }
}

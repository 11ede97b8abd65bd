//! Receive rings: the frames of each connection, in the order of its receive queue.
//!
//! A single-fragment message remains in its slot until it is read. Then the receive is posted again
//! unchanged. If receives run short, unread messages leave the ring.

use crate::frames::{Frame, Frames, Use};
use crate::ids::{ConnectionId, FrameId};

/// Messages between two posts of receives; at most half of the ring.
const TURN: u16 = 8;
/// Minimum entries of a receive queue. A smaller ring has no slot for each entry, so its receives
/// are always written anew.
const LEAST: u16 = 4;

/// Rings of all connections. The number of slots is the same for each, and a power of two.
pub(crate) struct Rings<'s> {
    slots: &'s mut [Option<FrameId>],
    depth: u16,
    /// Maximum of messages between two posts of receives.
    turn: u16,
    /// Outstanding receives below which each message posts receives again and unread messages leave
    /// the ring.
    few: u16,
}

with_empty! {
    /// The state of one ring. Numbers are circular.
    ///
    /// ```text
    ///   taken            posted          taken + depth
    ///     | outstanding    | pending       |
    ///     | in the HCA     | to be posted  |
    /// ```
    #[derive(Clone, Copy, Debug, Default)]
    pub(crate) struct Ring {
        /// Completed receives.
        taken: u16 = 0,
        /// Receives posted.
        posted: u16 = 0,
        /// `taken` at which receives are posted again.
        due: u16 = 0,
        /// Slots with a frame.
        filled: u16 = 0,
        /// Slots with an unread message.
        unread: u16 = 0,
        /// Lower bound of the numbers of receives with an unread message. Meaningless while
        /// `unread` is 0.
        first_unread: u16 = 0,
        /// Each pending slot has the frame of its entry in the receive queue.
        is_as_posted: bool = false,
    }
}

impl Ring {
    /// Maximum slots of a ring.
    pub(crate) const MOST: u16 = 256;
    /// Completes the oldest receive. Its frame remains in the ring.
    #[inline]
    pub(crate) const fn take(&mut self) {
        self.taken = self.taken.wrapping_add(1);
    }

    /// Returns the number of receives that the HCA owns.
    #[inline]
    pub(crate) const fn outstanding(&self) -> u16 {
        self.posted.wrapping_sub(self.taken)
    }

    /// Returns the number of frames without an unread message.
    pub(crate) const fn waiting(&self) -> u16 {
        self.filled - self.unread
    }

    /// Returns whether a message in a slot is unread.
    pub(crate) const fn has_unread(&self) -> bool {
        self.unread != 0
    }

    /// Returns the number of slots with a frame.
    pub(crate) const fn filled(&self) -> u16 {
        self.filled
    }

    /// Returns the number of the next receive to complete.
    #[inline]
    pub(crate) const fn taken(&self) -> u16 {
        self.taken
    }

    /// Begins a run of [`keep`](Self::keep). Returns the number of the next receive to complete.
    #[inline]
    pub(crate) const fn begin(&mut self) -> u16 {
        if self.unread == 0 {
            self.first_unread = self.taken;
        }
        self.taken
    }

    /// Completes the oldest receive, whose slot becomes unread.
    #[inline]
    pub(crate) const fn keep(&mut self) {
        self.unread += 1;
        self.take();
    }

    /// Marks the slot of the last completed receive as unread.
    pub(crate) const fn keep_last(&mut self) {
        self.taken = self.taken.wrapping_sub(1);
        self.begin();
        self.keep();
    }

    /// Frees a slot whose message was read or moved.
    #[inline]
    pub(crate) const fn free(&mut self) {
        self.unread -= 1;
    }

    /// Makes the next post write all pending receives again.
    pub(crate) const fn change(&mut self) {
        self.is_as_posted = false;
    }

    /// Returns whether enough messages arrived since receives were last posted.
    #[inline]
    pub(crate) const fn is_due(&self) -> bool {
        self.taken.wrapping_sub(self.due) < u16::MAX / 2
    }
}

impl<'s> Rings<'s> {
    /// Divides `slots` into rings of `depth` slots, a power of two.
    pub(crate) fn new(slots: &'s mut [Option<FrameId>], depth: u16) -> Self {
        slots.fill(None);
        Self { slots, depth, turn: TURN.min(depth / 2), few: depth / 4 }
    }

    pub(crate) const fn depth(&self) -> u16 {
        self.depth
    }

    #[inline]
    fn index(&self, id: ConnectionId, number: u16) -> usize {
        id.index() * usize::from(self.depth) + usize::from(number & self.depth.wrapping_sub(1))
    }

    #[inline]
    fn at(&self, id: ConnectionId, number: u16) -> Option<FrameId> {
        self.slots.get(self.index(id, number)).copied().flatten()
    }

    /// Returns whether receives can be posted only after frames have left or joined the ring.
    #[inline]
    pub(crate) const fn is_short(&self, ring: &Ring) -> bool {
        !ring.is_as_posted || ring.outstanding() <= self.few
    }

    /// Schedules the next post of receives.
    #[inline]
    fn plan(&self, ring: &mut Ring) {
        // Not `clamp`, whose panic for an empty range is larger than this function.
        let spare = ring.outstanding().saturating_sub(self.few).min(self.turn).max(1);
        ring.due = ring.taken.wrapping_add(spare);
    }

    /// Takes the pending receives up to the first unread message as posted again, with unchanged
    /// entries. Returns their number, or 0 if an entry has changed, or if
    /// [`repost_read`](Self::repost_read) may find some.
    #[inline]
    pub(crate) fn repost(&self, ring: &mut Ring) -> u16 {
        if !ring.is_as_posted {
            return 0;
        }
        let end = if ring.has_unread() { ring.first_unread } else { ring.taken };
        let end = end.wrapping_add(self.depth);
        let free = end.wrapping_sub(ring.posted);
        if free > 0 {
            ring.posted = end;
            self.plan(ring);
        }
        free
    }

    /// Like [`repost`](Self::repost), after it returned 0. Advances `first_unread` to the oldest
    /// unread message first.
    pub(crate) fn repost_read(&self, id: ConnectionId, ring: &mut Ring, frames: &Frames<'_>) -> u16 {
        let is_unread = |frame: FrameId| frames.at(frame).used == Use::Unread;
        let end = if ring.has_unread() { ring.taken } else { ring.first_unread };
        while ring.first_unread != end && !self.at(id, ring.first_unread).is_some_and(is_unread) {
            ring.first_unread = ring.first_unread.wrapping_add(1);
        }
        let free = self.repost(ring);
        self.plan(ring);
        free
    }

    /// Returns the frame of the oldest outstanding receive.
    pub(crate) fn oldest(&self, id: ConnectionId, ring: &Ring) -> Option<FrameId> {
        self.at(id, ring.taken).filter(|_| ring.outstanding() > 0)
    }

    /// Removes the frame of the last completed receive.
    #[inline]
    pub(crate) fn remove(&mut self, id: ConnectionId, ring: &mut Ring) {
        self.clear(id, ring, ring.taken.wrapping_sub(1));
    }

    /// Removes a frame together with the unread message in it.
    pub(crate) fn remove_unread(
        &mut self,
        id: ConnectionId,
        ring: &mut Ring,
        frames: &mut Frames<'_>,
        frame: FrameId,
    ) {
        ring.free();
        self.clear(id, ring, frames.at(frame).posted);
        frames.leave_ring(frame);
    }

    /// Empties a pending slot.
    #[inline]
    fn clear(&mut self, id: ConnectionId, ring: &mut Ring, number: u16) {
        self.set(id, number, None);
        ring.filled -= 1;
        ring.is_as_posted = false;
    }

    #[inline]
    fn set(&mut self, id: ConnectionId, number: u16, frame: Option<FrameId>) {
        let index = self.index(id, number);
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = frame;
        }
    }

    /// Returns the frame of pending slot `index`, if its message is unread.
    pub(crate) fn unread(
        &self,
        id: ConnectionId,
        ring: &Ring,
        frames: &Frames<'_>,
        index: u16,
    ) -> Option<FrameId> {
        let is_pending = index < self.depth - ring.outstanding();
        let frame = self.at(id, ring.posted.wrapping_add(index)).filter(|_| is_pending)?;
        (frames.at(frame).used == Use::Unread).then_some(frame)
    }

    /// Closes the gaps between pending frames and adds up to `room` free frames. Returns the number
    /// added. Unread messages must have left the pending slots.
    pub(crate) fn fill(
        &mut self,
        id: ConnectionId,
        ring: &mut Ring,
        frames: &mut Frames<'_>,
        room: u32,
    ) -> u16 {
        let (first, pending) = (ring.posted, self.depth - ring.outstanding());
        let kept = self.close_gaps(id, ring, frames);
        let most = pending.min(kept + room.min(u32::from(self.depth)) as u16);
        let mut filled = kept;
        while filled < most {
            let number = first.wrapping_add(filled);
            // The entry describes the single-frame message that the frame will become.
            let describe = |entry: &mut Frame| (entry.connection, entry.posted) = (Some(id), number);
            let Some(message) = frames.begin(Use::Ring, describe) else { break };
            self.set(id, number, Some(message.first()));
            filled += 1;
        }
        ring.filled += filled - kept;
        filled - kept
    }

    /// Moves the frames of pending slots to the front. Returns their number.
    fn close_gaps(&mut self, id: ConnectionId, ring: &Ring, frames: &mut Frames<'_>) -> u16 {
        let (there, mut kept) = (ring.filled - ring.outstanding(), 0);
        for pending in 0..self.depth {
            if kept == there {
                break;
            }
            let from = ring.posted.wrapping_add(pending);
            if let Some(frame) = self.at(id, from) {
                let to = ring.posted.wrapping_add(kept);
                frames.at_mut(frame).posted = to;
                self.set(id, from, None);
                self.set(id, to, Some(frame));
                kept += 1;
            }
        }
        kept
    }

    /// Returns the frames of the pending slots up to the first empty one.
    pub(crate) fn ready(&self, id: ConnectionId, ring: &Ring) -> Ready<'_, 's> {
        Ready { rings: self, id, next: ring.posted, left: self.depth - ring.outstanding() }
    }

    /// Records that `count` of the ready frames were posted.
    pub(crate) fn posted(&self, ring: &mut Ring, count: u16) {
        ring.posted = ring.posted.wrapping_add(count);
        ring.is_as_posted = ring.outstanding() == self.depth && self.depth >= LEAST;
        self.plan(ring);
    }

    /// Empties the ring of a closed endpoint. Returns its frames.
    pub(crate) fn drain(
        &mut self,
        id: ConnectionId,
        ring: &mut Ring,
    ) -> impl Iterator<Item = FrameId> + use<'_, 's> {
        *ring = Ring::EMPTY;
        let start = id.index() * usize::from(self.depth);
        let slots = self.slots.get_mut(start..start + usize::from(self.depth)).unwrap_or_default();
        slots.iter_mut().filter_map(Option::take)
    }
}

/// Frames of pending slots, in the order of their posts.
pub(crate) struct Ready<'r, 's> {
    rings: &'r Rings<'s>,
    id: ConnectionId,
    next: u16,
    left: u16,
}

impl Iterator for Ready<'_, '_> {
    type Item = FrameId;

    #[inline]
    fn next(&mut self) -> Option<FrameId> {
        self.left = self.left.checked_sub(1)?;
        let frame = self.rings.at(self.id, self.next)?;
        self.next = self.next.wrapping_add(1);
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::Frame;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::vec::Vec;

    proptest! {
        /// Receives complete in the order of their posts. A receive that is posted again has the
        /// frame of its entry, and no unread message.
        #[test]
        fn receives_end_in_order(
            depth in prop::sample::select(std::vec![4u16, 8, 64, 128, 256]),
            steps in prop::collection::vec((0u8..6, 1usize..200), 1..300),
        ) {
            let mut table = std::vec![Frame::EMPTY; 2000];
            let mut frames = Frames::plain(&mut table, 1);
            let mut slots = std::vec![None; 3 * usize::from(depth)];
            let mut rings = Rings::new(&mut slots, depth);
            let (id, mut ring) = (ConnectionId::new(1), Ring::EMPTY);
            // Model of the receive queue.
            let (mut entries, mut posted) = (std::vec![None; depth.into()], 0usize);
            let (mut outstanding, mut unread) = (VecDeque::new(), VecDeque::new());
            for (step, count) in steps {
                match step {
                    0 => {
                        while let Some(frame) = unread.pop_front() {
                            rings.remove_unread(id, &mut ring, &mut frames, frame);
                            frames.give(frame);
                        }
                        rings.fill(id, &mut ring, &mut frames, count as u32);
                        let ready: Vec<FrameId> = rings.ready(id, &ring).take(count).collect();
                        for frame in &ready {
                            entries[posted % usize::from(depth)] = Some(*frame);
                            posted += 1;
                            outstanding.push_back(*frame);
                        }
                        rings.posted(&mut ring, ready.len() as u16);
                    }
                    1 => {
                        let mut again = rings.repost(&mut ring);
                        if again == 0 {
                            again = rings.repost_read(id, &mut ring, &frames);
                        }
                        let is_stuck = again == 0 && ring.is_as_posted && ring.outstanding() < depth;
                        prop_assert!(!is_stuck || !unread.is_empty());
                        for _ in 0..again {
                            let frame = entries[posted % usize::from(depth)].expect("written");
                            prop_assert!(unread.iter().all(|unread| *unread != frame));
                            outstanding.push_back(frame);
                            posted += 1;
                        }
                    }
                    2 => {
                        if let Some(frame) = unread.swap_remove_back(count % unread.len().max(1)) {
                            frames.at_mut(frame).used = Use::Ring;
                            ring.free();
                        }
                    }
                    _ => {
                        prop_assert_eq!(rings.oldest(id, &ring), outstanding.front().copied());
                        let Some(frame) = outstanding.pop_front() else { continue };
                        ring.take();
                        match step {
                            4 => {
                                ring.keep_last();
                                frames.at_mut(frame).used = Use::Unread;
                                unread.push_back(frame);
                            }
                            5 => {
                                rings.remove(id, &mut ring);
                                frames.give(frame);
                            }
                            _ => {}
                        }
                    }
                }
                prop_assert_eq!(usize::from(ring.outstanding()), outstanding.len());
                prop_assert!(ring.waiting() >= ring.outstanding());
                prop_assert_eq!(usize::from(ring.filled() - ring.waiting()), unread.len());
            }
            let filled = ring.filled();
            prop_assert_eq!(rings.drain(id, &mut ring).count(), usize::from(filled));
        }
    }
}

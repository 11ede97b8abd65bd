//! Frames: the memory that messages live in from `sendmsg` or the HCA until they are acknowledged or read.
//!
//! A frame is a header and up to 4096 payload bytes, in one piece of DMA memory, so that a fragment is one segment. A
//! message is a chain of frames, and its descriptor lies in the table entry of the first one: as every message has a
//! frame, there is always room for its descriptor. All tables are all zero bytes when nothing is in them.

use driver_mlx::{DmaBlocks, DmaBuffer, DmaSlice, DmaWord};

use crate::socket::SocketHandle;
use crate::wire::{FRAME_LEN, HEADER_LEN};
use crate::words::{self, HEADER_WORDS, Plain};

/// As many frames as a [`Link`] can tell apart.
pub(crate) const MAX_FRAMES: usize = u16::MAX as usize;
/// Distance between frames: whole cache lines.
pub(crate) const STRIDE: usize = FRAME_LEN.next_multiple_of(64);
/// The same in quadwords.
const WORDS: usize = STRIDE / 8;

/// An index into a table, or nothing, which is all zero bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Link(u16);

impl Link {
    pub(crate) const NONE: Self = Self(0);

    /// Tables have at most [`MAX_FRAMES`] entries (`Frames::new` cuts longer ones).
    pub(crate) const fn to(index: usize) -> Self {
        Self(index as u16 + 1)
    }

    pub(crate) const fn get(self) -> Option<usize> {
        (self.0 as usize).checked_sub(1)
    }

    pub(crate) const fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// A first-in first-out chain of messages.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Queue {
    head: Link,
    tail: Link,
}

impl Queue {
    pub(crate) const EMPTY: Self = Self { head: Link::NONE, tail: Link::NONE };

    pub(crate) const fn head(&self) -> Link {
        self.head
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.head.is_none()
    }
}

/// What a frame is used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Use {
    #[default]
    Free = 0,
    /// Part of a message (or of an acknowledgement) of ours.
    Send,
    /// Posted to the HCA, or holding what arrived and was not read.
    Receive,
}

bitflags::bitflags! {
    /// What is to be known of a message.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Marks: u8 {
        /// Acknowledged or cancelled, and no longer counted against its socket's send buffer.
        const SETTLED = 1;
        /// Its socket takes no interest in it any more: not to be sent again.
        const CANCELLED = 2;
        /// The header, in the first frame's memory, has extensions.
        const EXTENDED = 4;
        /// It is only an operation: nothing is sent.
        const SILENT = 8;
    }
}

/// The table entry of a frame; everything but `next`, `used` and `posted_to` is the descriptor of the message that starts here. What
/// is mostly the same lies side by side.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Frame {
    /// The next frame of the message, or of the free list.
    pub(crate) next: Link,
    /// The next message of its queue.
    pub(crate) next_message: Link,
    /// Its RDMA operation, while that is not over.
    pub(crate) operation: Link,
    /// Frames posted so far, on the sending side.
    pub(crate) posted: u16,
    /// Frames linked so far.
    pub(crate) frames: u16,
    /// Last frame of the message.
    pub(crate) last: Link,
    pub(crate) dport: u16,
    pub(crate) sport: u16,
    /// The sending socket; its generation tells whether it is still the one.
    pub(crate) socket: u16,
    pub(crate) used: Use,
    /// While posted to receive: the connection, plus 1.
    pub(crate) posted_to: u8,
    pub(crate) marks: Marks,
    pub(crate) flags: u8,
    pub(crate) generation: u32,
    pub(crate) len: u32,
    pub(crate) sequence: u64,
    /// Number of the last post of its connection that carried a part of it.
    pub(crate) last_post: u64,
    /// The sender's address (receiving side), IPv4 mapped.
    pub(crate) source: u128,
}

impl Frame {
    pub(crate) const fn is(&self, mark: Marks) -> bool {
        self.marks.contains(mark)
    }

    /// Whether the message that starts here is a socket's.
    pub(crate) const fn is_of(&self, owner: SocketHandle) -> bool {
        self.socket == owner.slot && self.generation == owner.generation
    }

    /// A frame that nobody uses; all zero bytes.
    pub(crate) const EMPTY: Self = Self {
        next: Link::NONE,
        used: Use::Free,
        posted_to: 0,
        next_message: Link::NONE,
        last: Link::NONE,
        frames: 0,
        posted: 0,
        sport: 0,
        dport: 0,
        flags: 0,
        marks: Marks::empty(),
        operation: Link::NONE,
        socket: 0,
        generation: 0,
        len: 0,
        sequence: 0,
        last_post: 0,
        source: 0,
    };
}

/// All frames of a node: table, memory, free list and what each side uses.
pub(crate) struct Frames<'s> {
    table: &'s mut [Frame],
    /// The memory, frame by frame, None only where the lists are tested alone; and the virtual address of the first.
    blocks: Option<DmaBlocks<WORDS>>,
    start: u64,
    free: Link,
    free_count: usize,
    send_count: usize,
}

impl<'s> Frames<'s> {
    /// As many frames as the table has entries and the memory has room for.
    pub(crate) fn new(table: &'s mut [Frame], memory: DmaBuffer) -> Self {
        let (room, start) = (memory.len() / STRIDE, memory.va() as u64);
        Self { blocks: Some(DmaBlocks::new(memory)), start, ..Self::lists(table, room) }
    }

    fn lists(table: &'s mut [Frame], room: usize) -> Self {
        let count = table.len().min(room).min(MAX_FRAMES);
        let (table, _) = table.split_at_mut(count);
        table.fill(Frame::EMPTY);
        for (index, frame) in table.iter_mut().enumerate() {
            frame.next = if index + 1 < count { Link::to(index + 1) } else { Link::NONE };
        }
        let free = if count == 0 { Link::NONE } else { Link::to(0) };
        Self { table, blocks: None, start: 0, free, free_count: count, send_count: 0 }
    }

    pub(crate) fn memory(&self) -> Option<DmaSlice<'_>> {
        self.blocks.as_ref().map(DmaBlocks::as_slice)
    }

    /// Takes the memory out, for giving it back.
    pub(crate) fn take_memory(&mut self) -> Option<DmaBuffer> {
        self.blocks.take().map(DmaBlocks::into_buffer)
    }

    /// Virtual address of frame `index`.
    pub(crate) fn address(&self, index: usize) -> u64 {
        self.start + (index * STRIDE) as u64
    }

    pub(crate) const fn free_count(&self) -> usize {
        self.free_count
    }

    /// Frames in messages of ours.
    pub(crate) const fn send_count(&self) -> usize {
        self.send_count
    }

    pub(crate) const fn count(&self) -> usize {
        self.table.len()
    }

    /// A link always comes from this table, so the entry is there; a foreign one reads as the first entry's.
    pub(crate) fn at(&self, index: usize) -> &Frame {
        static NOTHING: Frame = Frame::EMPTY;
        self.table.get(index).unwrap_or(&NOTHING)
    }

    pub(crate) fn at_mut(&mut self, index: usize) -> Option<&mut Frame> {
        self.table.get_mut(index)
    }

    /// Takes a frame from the free list.
    pub(crate) fn take(&mut self, used: Use) -> Option<usize> {
        let index = self.free.get()?;
        let frame = self.table.get_mut(index)?;
        self.free = frame.next;
        *frame = Frame { used, ..Frame::EMPTY };
        self.free_count -= 1;
        self.send_count += usize::from(used == Use::Send);
        Some(index)
    }

    /// The frame that [`Frames::take`] would give.
    #[inline(always)]
    pub(crate) const fn next_free(&self) -> Option<usize> {
        self.free.get()
    }

    /// Takes the next free frame for a message of ours that fits into it and is posted, and puts it at the end of a queue. `describe`
    /// fills in what the message is; what is there of an older one stays otherwise, where nobody asks for it on the sending side.
    #[inline(always)]
    pub(crate) fn take_posted(&mut self, queue: &mut Queue, describe: impl FnOnce(&mut Frame)) -> Option<()> {
        let link = self.free;
        let frame = self.table.get_mut(link.get()?)?;
        self.free = frame.next;
        (frame.next, frame.used, frame.posted_to, frame.next_message) =
            (Link::NONE, Use::Send, 0, Link::NONE);
        (frame.last, frame.frames, frame.posted) = (link, 1, 1);
        (frame.marks, frame.operation) = (Marks::empty(), Link::NONE);
        describe(frame);
        self.free_count -= 1;
        self.send_count += 1;
        self.link(queue, link);
        Some(())
    }

    /// A message that arrived in one frame, if it was posted to the connection with this number (counted from 1): describes it and puts it
    /// at the end of a queue.
    #[inline(always)]
    pub(crate) fn arrived(
        &mut self,
        queue: &mut Queue,
        (index, posted_to): (usize, u8),
        describe: impl FnOnce(&mut Frame),
    ) -> Option<()> {
        let link = Link::to(index);
        let frame = self.table.get_mut(index)?;
        if frame.posted_to != posted_to {
            return None;
        }
        (frame.next, frame.next_message, frame.operation, frame.posted) =
            (Link::NONE, Link::NONE, Link::NONE, 0);
        (frame.frames, frame.last) = (1, link);
        (frame.used, frame.posted_to, frame.marks) = (Use::Receive, 0, Marks::empty());
        describe(frame);
        self.link(queue, link);
        Some(())
    }

    /// Puts a message that nothing follows at the end of a queue.
    #[inline(always)]
    fn link(&mut self, queue: &mut Queue, link: Link) {
        match queue.tail.get().and_then(|tail| self.table.get_mut(tail)) {
            Some(tail) => tail.next_message = link,
            None => queue.head = link,
        }
        queue.tail = link;
    }

    /// Takes frames from the free list to be posted as receives of the connection with this number (counted from 1), as many as there
    /// are and `out` has room for; gives their number, and puts down where each is, and its index added to `cookie`. What they held
    /// stays in their entries until something arrives there.
    #[inline(always)]
    pub(crate) fn take_receives(&mut self, posted_to: u8, cookie: u64, out: &mut [(u64, u64)]) -> usize {
        let mut free = self.free;
        let mut count = 0;
        for place in out {
            let Some(index) = free.get() else { break };
            let Some(frame) = self.table.get_mut(index) else { break };
            free = frame.next;
            (frame.used, frame.posted_to) = (Use::Receive, posted_to);
            *place = (self.start + (index * STRIDE) as u64, cookie | index as u64);
            count += 1;
        }
        self.free = free;
        self.free_count -= count;
        count
    }

    /// Something arrived in a frame: what its entry says of older messages goes.
    pub(crate) fn begin(&mut self, index: usize) {
        if let Some(frame) = self.table.get_mut(index) {
            *frame = Frame { used: frame.used, ..Frame::EMPTY };
        }
    }

    /// Takes the oldest message of a queue of received ones, if it is of one frame, without extensions, and fits `buffer`: copies it there,
    /// gives the frame back, and says who sent it and how long it is.
    #[inline(always)]
    pub(crate) fn read_short(&mut self, queue: &mut Queue, buffer: &mut [u8]) -> Option<(u128, u16, usize)> {
        let link = queue.head;
        let index = link.get()?;
        let frame = self.table.get_mut(index)?;
        let len = frame.len as usize;
        if frame.frames != 1 || frame.marks.contains(Marks::EXTENDED) || len > buffer.len() {
            return None;
        }
        let (_, payload) = self.blocks.as_ref()?.block(index)?.split_first_chunk::<HEADER_WORDS>()?;
        let (buffer, _) = buffer.split_at_mut(len);
        words::get(payload, buffer);
        queue.head = frame.next_message;
        if queue.head.is_none() {
            queue.tail = Link::NONE;
        }
        (frame.next, frame.used) = (self.free, Use::Free);
        self.free = link;
        self.free_count += 1;
        Some((frame.source, frame.sport, len))
    }

    /// Gives one frame back.
    pub(crate) fn give(&mut self, index: usize) {
        if let Some(frame) = self.table.get_mut(index)
            && frame.used != Use::Free
        {
            self.send_count -= usize::from(frame.used == Use::Send);
            // `take` clears the rest.
            (frame.next, frame.used, frame.posted_to) = (self.free, Use::Free, 0);
            self.free = Link::to(index);
            self.free_count += 1;
        }
    }

    /// Gives all frames of a message back.
    pub(crate) fn give_message(&mut self, first: usize) {
        let mut next = Link::to(first);
        while let Some(index) = next.get() {
            next = self.at(index).next;
            self.give(index);
        }
    }

    /// Makes `index` the last frame of the message that starts at `first` (which may be itself).
    pub(crate) fn append(&mut self, first: usize, index: usize) {
        if first != index
            && let Some(last) = self.at(first).last.get()
            && let Some(frame) = self.table.get_mut(last)
        {
            frame.next = Link::to(index);
        }
        if let Some(frame) = self.table.get_mut(first) {
            frame.last = Link::to(index);
            frame.frames += 1;
        }
    }

    #[inline(always)]
    pub(crate) fn push_back(&mut self, queue: &mut Queue, message: usize) {
        if let Some(frame) = self.table.get_mut(message) {
            frame.next_message = Link::NONE;
        }
        self.link(queue, Link::to(message));
    }

    #[inline(always)]
    pub(crate) fn pop_front(&mut self, queue: &mut Queue) -> Option<usize> {
        let message = queue.head.get()?;
        queue.head = self.at(message).next_message;
        if queue.head.is_none() {
            queue.tail = Link::NONE;
        }
        Some(message)
    }

    /// The message behind `message` in its queue.
    pub(crate) fn next_message(&self, message: usize) -> Link {
        self.at(message).next_message
    }

    /// Puts everything in `front` before what is in `queue`.
    pub(crate) fn splice_front(&mut self, queue: &mut Queue, front: Queue) {
        let Some(tail) = front.tail.get() else { return };
        if let Some(frame) = self.table.get_mut(tail) {
            frame.next_message = queue.head;
        }
        queue.head = front.head;
        if queue.tail.is_none() {
            queue.tail = front.tail;
        }
    }

    /// A frame's memory as quadwords: the header's six, then the payload's.
    #[inline(always)]
    pub(crate) fn words(&self, index: usize) -> Option<&[DmaWord; WORDS]> {
        self.blocks.as_ref()?.block(index)
    }

    /// The header of a frame, if it is a plain one.
    #[inline(always)]
    pub(crate) fn header(&self, index: usize) -> Option<Plain> {
        Plain::read(self.words(index)?.first_chunk()?)
    }

    /// Writes the header of an acknowledgement that carries nothing else.
    pub(crate) fn write_acknowledgement(&self, index: usize, ack: u64) {
        if let Some(header) = self.words(index).and_then(|words| words.first_chunk()) {
            Plain { sequence: 0, ack, len: 0, sport: 0, dport: 0, flags: 0 }.write(header);
        }
    }

    // Frames lie inside the memory by construction, so these accesses do not fail.

    fn write(&self, index: usize, offset: usize, bytes: &[u8]) {
        if let Some(memory) = self.memory() {
            let _ = memory.write(index * STRIDE + offset, bytes);
        }
    }

    fn read(&self, index: usize, offset: usize, bytes: &mut [u8]) {
        if let Some(memory) = self.memory() {
            let _ = memory.read(index * STRIDE + offset, bytes);
        }
    }

    pub(crate) fn clear(&self, index: usize) {
        if let Some(memory) = self.memory() {
            let _ = memory.fill(index * STRIDE, STRIDE, 0);
        }
    }

    pub(crate) fn write_header(&self, index: usize, header: &[u8; HEADER_LEN]) {
        self.write(index, 0, header);
    }

    pub(crate) fn read_header(&self, index: usize) -> [u8; HEADER_LEN] {
        let mut header = [0; HEADER_LEN];
        self.read(index, 0, &mut header);
        header
    }

    pub(crate) fn write_payload(&self, index: usize, payload: &[u8]) {
        self.write(index, HEADER_LEN, payload);
    }

    pub(crate) fn read_payload(&self, index: usize, payload: &mut [u8]) {
        self.read(index, HEADER_LEN, payload);
    }

    /// The extension headers of a frame.
    pub(crate) fn write_extensions(&self, index: usize, extensions: &[u8; 16]) {
        self.write(index, HEADER_LEN - extensions.len(), extensions);
    }

    pub(crate) fn read_extensions(&self, index: usize) -> [u8; 16] {
        let mut extensions = [0; 16];
        self.read(index, HEADER_LEN - extensions.len(), &mut extensions);
        extensions
    }

    pub(crate) fn write_payload_at(&self, index: usize, offset: usize, bytes: &[u8]) {
        self.write(index, HEADER_LEN + offset, bytes);
    }

    pub(crate) fn read_payload_at(&self, index: usize, offset: usize, bytes: &mut [u8]) {
        self.read(index, HEADER_LEN + offset, bytes);
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
        fn messages_and_queues_lose_nothing(steps in prop::collection::vec((0u8..4, 1usize..5), 1..200)) {
            let mut table = [Frame::EMPTY; 23];
            let count = table.len();
            let mut frames = Frames::lists(&mut table, count);
            let mut queue = Queue::EMPTY;
            let mut model: VecDeque<(usize, usize)> = VecDeque::new();
            for (action, len) in steps {
                match action {
                    0 | 1 if frames.free_count() >= len => {
                        let first = frames.take(Use::Send).unwrap();
                        frames.append(first, first);
                        for _ in 1..len {
                            let next = frames.take(Use::Send).unwrap();
                            frames.append(first, next);
                        }
                        frames.push_back(&mut queue, first);
                        model.push_back((first, len));
                    }
                    2 => {
                        let popped = frames.pop_front(&mut queue);
                        prop_assert_eq!(popped, model.pop_front().map(|(first, _)| first));
                        if let Some(first) = popped {
                            frames.give_message(first);
                        }
                    }
                    3 => {
                        // Cut the queue in two and splice it together again.
                        let mut front = Queue::EMPTY;
                        for _ in 0..model.len() / 2 {
                            let first = frames.pop_front(&mut queue).unwrap();
                            frames.push_back(&mut front, first);
                        }
                        frames.splice_front(&mut queue, front);
                    }
                    _ => prop_assert!(frames.free_count() < len),
                }
                let used: usize = model.iter().map(|(_, len)| len).sum();
                prop_assert_eq!(frames.free_count(), 23 - used);
                prop_assert_eq!(frames.send_count(), used);
                let mut walked = Vec::new();
                let mut next = queue.head();
                while let Some(message) = next.get() {
                    walked.push((message, usize::from(frames.at(message).frames)));
                    next = frames.next_message(message);
                }
                prop_assert_eq!(walked, model.iter().copied().collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn giving_twice_changes_nothing() {
        let mut table = [Frame::EMPTY; 2];
        let count = table.len();
        let mut frames = Frames::lists(&mut table, count);
        let index = frames.take(Use::Receive).unwrap();
        frames.give(index);
        frames.give(index);
        assert_eq!(frames.free_count(), 2);
        assert!(
            frames.take(Use::Send).is_some()
                && frames.take(Use::Send).is_some()
                && frames.take(Use::Send).is_none()
        );
    }
}

//! Frames: the memory of messages, from `sendmsg` or the HCA until they are acknowledged or read.
//!
//! A frame is a header and up to 4096 payload bytes, contiguous in DMA memory, so that a fragment
//! is one segment. A message is a chain of frames. The table entry of the first frame is its
//! descriptor, so that every message has space for one. Empty tables are all zero bytes.

mod arena;
mod inbox;
mod lent;
mod memory;
mod queue;
mod ring;

use dat_nostd::{DmaBuffer, DmaSlice, DmaWord};

use crate::ids::{ConnectionId, FrameId, MessageId, OperationId, SocketHandle};
use crate::wire::{self, FRAGMENT_LEN, HEADER_WORDS, Header};
use crate::words;

pub(crate) use arena::{Arena, SHORT};
pub(crate) use inbox::{Inbox, Place, Unread};
pub(crate) use lent::{Lent, frames_of_lent, header_place};
use memory::{Block, address_of};
pub(crate) use memory::{HEADERS_PER_FRAME, Memory, STRIDE};
pub(crate) use queue::Queue;
pub(crate) use ring::{Ready, Ring, Rings};

/// Use of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Use {
    #[default]
    Free = 0,
    /// Part of an outgoing message.
    Send,
    /// Part of a received message.
    Receive,
    /// In a ring of receives, without an unread message.
    Ring,
    /// In a ring of receives, with an unread message.
    Unread,
    /// The first frame of a received message that is lent to the application.
    Lent,
    /// Contains records of short received messages.
    Arena,
    /// In the receive queue of a failed device, which may write to it until its reset.
    Withheld,
}

bitflags::bitflags! {
    /// Marks of a message.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Marks: u8 {
        /// Acknowledged or cancelled, and no longer counted against its socket's send buffer.
        const SETTLED = 1;
        /// Cancelled by its socket: not to be retransmitted.
        const CANCELLED = 2;
        /// The header, in the first frame's memory, has extensions.
        const EXTENDED = 4;
        /// Only an operation: no message is sent.
        const SILENT = 8;
        /// A ping or a pong, without a socket.
        const PONG = 16;
        /// The payload is in application memory; the frames contain only headers.
        const LENT = 32;
        /// Receive times are recorded.
        const TIMED = 64;
    }
}

with_empty! {
    /// Table entry of a frame. All fields except `next` and `used` are the descriptor of the
    /// message that starts here.
    // Fields with the same value in all new messages are adjacent, so that one store writes
    // several.
    #[derive(Clone, Copy, Debug, Default)]
    #[repr(C)]
    pub(crate) struct Frame {
        /// Next frame of the message, or of the free list.
        pub(crate) next: Option<FrameId> = None,
        /// Next message of its queue.
        pub(crate) next_message: Option<MessageId> = None,
        /// Record of the next message, if `next_message` is an arena; otherwise 0.
        next_record: u16 = 0,
        /// RDMA operation of the message, until it completes.
        pub(crate) operation: Option<OperationId> = None,
        /// Connection whose share the frame counts against; none for loopback messages.
        pub(crate) connection: Option<ConnectionId> = None,
        pub(crate) marks: Marks = Marks::empty(),
        pub(crate) flags: u8 = 0,
        pub(crate) used: Use = Use::Free,
        /// Frames linked so far; fragments for an outgoing message with a lent payload, because its
        /// frames contain many headers each.
        pub(crate) frames: u16 = 0,
        /// Sent message: frames posted so far. Frame in a ring: number of its receive.
        pub(crate) posted: u16 = 0,
        pub(crate) dport: u16 = 0,
        pub(crate) sport: u16 = 0,
        /// Slot of the sending socket, which `generation` distinguishes from later ones; or of the
        /// receiving socket.
        pub(crate) socket: u16 = 0,
        /// Sent message: generation of its socket. Unread message: link back to the previous place
        /// of its inbox.
        pub(crate) generation: u32 = 0,
        pub(crate) len: u32 = 0,
        pub(crate) sequence: u64 = 0,
        /// Sent message: number of the last post that carried a part of it. Received message: the
        /// last of its times.
        pub(crate) last_post: u64 = 0,
        /// Two words. Loopback message: address of the sender, IPv4 mapped. `TIMED`: times of
        /// arrival. `LENT`: address of the payload. Arena: bits of unread records.
        extra: [u64; 2] = [0; 2],
    }
}

impl Frame {
    /// Turns a frame into a message of its own. Resets all fields that the caller does not fill.
    #[inline]
    pub(crate) const fn become_message(&mut self, used: Use) -> &mut Self {
        (self.next, self.used, self.marks) = (None, used, Marks::empty());
        (self.next_message, self.next_record) = (None, 0);
        (self.operation, self.frames, self.posted) = (None, 1, 0);
        self
    }

    /// Fills the descriptor of a peer's message from its header.
    #[inline]
    pub(crate) fn describe(&mut self, header: &Header, id: ConnectionId) {
        (self.sport, self.dport, self.flags) = (header.sport, header.dport, header.flags.bits());
        (self.len, self.sequence, self.connection) = (header.len, header.sequence, Some(id));
    }

    /// Returns whether a header can be that of a fragment of the message that starts here.
    #[inline]
    pub(crate) const fn belongs(&self, header: &Header) -> bool {
        let begun = Header {
            sequence: self.sequence,
            len: self.len,
            sport: self.sport,
            dport: self.dport,
            ..*header
        };
        begun.same_message(header)
    }

    pub(crate) const fn is(&self, mark: Marks) -> bool {
        self.marks.contains(mark)
    }

    /// Returns whether the message that starts here belongs to a socket.
    pub(crate) const fn is_of(&self, owner: SocketHandle) -> bool {
        self.socket == owner.slot && self.generation == owner.generation && !self.is(Marks::PONG)
    }

    pub(crate) const fn owner(&self) -> SocketHandle {
        SocketHandle { slot: self.socket, generation: self.generation }
    }

    /// Returns the receive times of a peer's message in nanoseconds: header parsed, first frame
    /// taken, message queued.
    pub(crate) fn times(&self) -> Option<[u64; 3]> {
        let [header, start] = self.extra;
        self.is(Marks::TIMED).then_some([header, start, self.last_post])
    }

    pub(crate) const fn begin_times(&mut self, header: u64, start: u64) {
        self.marks = self.marks.union(Marks::TIMED);
        (self.extra, self.last_post) = ([header, start], start);
    }

    pub(crate) const fn end_times(&mut self, end: u64) {
        self.last_post = end;
    }

    pub(crate) fn source(&self) -> u128 {
        u128::from(self.extra[0]) << 64 | u128::from(self.extra[1])
    }

    pub(crate) const fn set_source(&mut self, source: u128) {
        self.extra = [(source >> 64) as u64, source as u64];
    }
}

/// All frames of a node: table, memory and free list.
pub(crate) struct Frames<'s> {
    table: &'s mut [Frame],
    memory: Memory,
    free: Option<FrameId>,
    free_count: usize,
    /// Number of the last loan or arena.
    last_number: u64,
    /// Fallback for invalid links, which do not occur.
    nowhere: Frame,
}

impl<'s> Frames<'s> {
    /// Creates a frame per table entry. `memory` contains them, followed by the headers of
    /// acknowledgements.
    pub(crate) fn new(table: &'s mut [Frame], memory: Memory) -> Self {
        let count = table.len().min(FrameId::MOST);
        let (table, _) = table.split_at_mut(count);
        table.fill(Frame::EMPTY);
        for (index, frame) in table.iter_mut().enumerate() {
            frame.next = (index + 1 < count).then(|| FrameId::new(index + 1));
        }
        let free = (count > 0).then(|| FrameId::new(0));
        Self { table, memory, free, free_count: count, last_number: 0, nowhere: Frame::EMPTY }
    }

    /// Creates frames in ordinary memory, with `acks` acknowledgement headers.
    #[cfg(test)]
    pub(crate) fn plain(table: &'s mut [Frame], acks: usize) -> Self {
        let count = table.len() + acks.div_ceil(HEADERS_PER_FRAME);
        Self::new(table, Memory::plain(count))
    }

    pub(crate) fn memory(&self) -> Option<DmaSlice<'_>> {
        self.memory.as_slice()
    }

    /// Removes the memory, to free it.
    pub(crate) fn take_memory(&mut self) -> Option<DmaBuffer> {
        self.memory.take()
    }

    /// Returns the virtual address of a frame.
    #[inline]
    pub(crate) fn address(&self, frame: FrameId) -> u64 {
        self.words(frame).map_or(0, address_of)
    }

    pub(crate) const fn free_count(&self) -> usize {
        self.free_count
    }

    /// Returns the entry of a link, which always comes from this table.
    #[inline]
    pub(crate) fn at(&self, frame: FrameId) -> &Frame {
        self.table.get(frame.index()).unwrap_or(&self.nowhere)
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, frame: FrameId) -> &mut Frame {
        self.table.get_mut(frame.index()).unwrap_or(&mut self.nowhere)
    }

    #[inline]
    pub(crate) fn message(&self, message: MessageId) -> &Frame {
        self.at(message.first())
    }

    #[inline]
    pub(crate) fn message_mut(&mut self, message: MessageId) -> &mut Frame {
        self.at_mut(message.first())
    }

    /// Takes a frame from the free list.
    #[inline]
    pub(crate) fn take(&mut self, used: Use) -> Option<FrameId> {
        let id = self.free?;
        let frame = self.table.get_mut(id.index())?;
        self.free = frame.next;
        (frame.next, frame.used) = (None, used);
        self.free_count -= 1;
        Some(id)
    }

    /// Frees a frame.
    #[inline]
    pub(crate) fn give(&mut self, id: FrameId) {
        let free = self.free;
        let frame = self.at_mut(id);
        if frame.used == Use::Free {
            return;
        }
        (frame.next, frame.used) = (free, Use::Free);
        self.free = Some(id);
        self.free_count += 1;
    }

    /// Frees all frames of a message. Returns their number.
    pub(crate) fn give_message(&mut self, message: MessageId) -> u32 {
        let (mut next, mut count) = (Some(message.first()), 0);
        while let Some(id) = next.filter(|id| self.at(*id).used != Use::Free) {
            next = self.at(id).next;
            self.give(id);
            count += 1;
        }
        count
    }

    /// Frees the messages at the head of a queue, up to `end`, while `over` returns true. Returns
    /// the number of their frames.
    pub(crate) fn give_run(
        &mut self,
        queue: &mut Queue,
        end: Option<MessageId>,
        mut over: impl FnMut(&Frame) -> bool,
    ) -> u32 {
        let index =
            |message: Option<MessageId>| message.map_or(usize::MAX, |message| message.first().index());
        let (mut next, mut free, before) = (queue.head(), self.free, self.free_count);
        while index(next) != index(end)
            && let Some(frame) = self.table.get_mut(index(next))
            && over(frame)
        {
            frame.used = Use::Free;
            let rest = core::mem::replace(&mut frame.next, free);
            free = core::mem::replace(&mut next, frame.next_message).map(MessageId::first);
            self.free_count += 1;
            if let Some(rest) = rest {
                self.free = free;
                self.give_message(MessageId::starting(rest));
                free = self.free;
            }
        }
        queue.drop_head(next);
        self.free = free;
        (self.free_count - before) as u32
    }

    /// Takes a frame for a new message of one frame, which `describe` fills in.
    #[inline]
    pub(crate) fn begin(&mut self, used: Use, describe: impl FnOnce(&mut Frame)) -> Option<MessageId> {
        let id = self.take(used)?;
        describe(self.at_mut(id).become_message(used));
        Some(MessageId::starting(id))
    }

    /// Takes `count` frames for a new message, which `describe` fills in. The caller has checked
    /// that they are free.
    pub(crate) fn begin_long(
        &mut self,
        used: Use,
        count: u32,
        describe: impl FnOnce(&mut Frame),
    ) -> Option<MessageId> {
        let message = self.begin(used, describe)?;
        let mut last = message.first();
        for _ in 1..count {
            let frame = self.take(used)?;
            self.append(message, last, frame);
            last = frame;
        }
        Some(message)
    }

    /// Takes a frame for a single-frame message of a socket that is sent immediately, as post
    /// `post`, and appends it to a queue. Returns its memory for [`fill`], or `None` without a free
    /// frame.
    #[inline(always)]
    pub(crate) fn push_to_send(
        &mut self,
        queue: &mut Queue,
        header: &Header,
        (owner, post): (SocketHandle, u64),
    ) -> Option<&Block> {
        let index = self.free.map_or(usize::MAX, FrameId::index);
        let frame = self.table.get_mut(index)?;
        let block = self.memory.block(index)?;
        let message = core::mem::replace(&mut self.free, frame.next).map(MessageId::starting);
        self.free_count -= 1;
        frame.become_message(Use::Send);
        (frame.posted, frame.connection, frame.flags) = (1, None, 0);
        (frame.sport, frame.dport, frame.len) = (header.sport, header.dport, header.len);
        (frame.socket, frame.generation) = (owner.slot, owner.generation);
        (frame.sequence, frame.last_post) = (header.sequence, post);
        queue.push(self.table, message);
        Some(block)
    }

    /// Appends `frame` to a message, after its last frame `last`.
    #[inline]
    pub(crate) fn append(&mut self, message: MessageId, last: FrameId, frame: FrameId) {
        self.message_mut(message).frames += 1;
        self.at_mut(last).next = Some(frame);
    }

    /// Returns a number that no loan or arena has had.
    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Removes a frame from its ring, with the message in it.
    pub(crate) fn leave_ring(&mut self, frame: FrameId) {
        let [sequence, ..] = self.header_words(frame).unwrap_or_default();
        let entry = self.at_mut(frame);
        (entry.used, entry.sequence) = (Use::Receive, u64::from_be(sequence));
    }

    /// Turns the frame of a receive into the first frame of a message.
    #[inline(never)]
    pub(crate) fn begin_received(&mut self, frame: FrameId, header: &Header, id: ConnectionId) -> MessageId {
        let entry = self.at_mut(frame).become_message(Use::Receive);
        entry.describe(header, id);
        // A stale link back could confirm a forged link.
        entry.generation = 0;
        MessageId::starting(frame)
    }

    /// Withholds a frame until [`release`](Self::release), because a failed device may write to it.
    pub(crate) fn withhold(&mut self, frame: FrameId) {
        self.at_mut(frame).used = Use::Withheld;
    }

    /// Frees all withheld frames after the device was reset.
    pub(crate) fn release(&mut self) {
        for index in 0..self.table.len() {
            let frame = FrameId::new(index);
            if self.at(frame).used == Use::Withheld {
                self.give(frame);
            }
        }
    }

    /// Returns the header of a frame as quadwords.
    #[inline]
    pub(crate) fn header_words(&self, frame: FrameId) -> Option<[u64; HEADER_WORDS]> {
        let words = self.words(frame)?.first_chunk::<HEADER_WORDS>()?;
        Some(words.each_ref().map(DmaWord::load))
    }

    /// Returns a frame's memory as quadwords: the header's six, then the payload's.
    #[inline]
    fn words(&self, frame: FrameId) -> Option<&Block> {
        self.memory.block(frame.index())
    }

    // Frames are inside the memory by construction, so these accesses do not fail.

    /// Writes the header of a frame. Returns the frame's virtual address.
    #[inline]
    pub(crate) fn write_header(&self, frame: FrameId, header: &Header) -> u64 {
        self.write_header_at(frame.index(), 0, &header.to_words())
    }

    /// Writes a header to cache line `place` of a block. Returns its virtual address.
    #[inline]
    pub(crate) fn write_header_at(&self, block: usize, place: usize, header: &[u64; HEADER_WORDS]) -> u64 {
        let words = self.memory.block(block);
        let words = words.and_then(|words| words.get(place * 8..)?.first_chunk::<HEADER_WORDS>());
        let Some(words) = words else { return 0 };
        write(words, header);
        words.as_ptr().addr() as u64
    }

    /// Writes the acknowledgement header of connection `index`. Returns its virtual address.
    pub(crate) fn write_acknowledgement(&self, index: usize, ack: u64) -> u64 {
        let (block, place) = (self.table.len() + index / HEADERS_PER_FRAME, index % HEADERS_PER_FRAME);
        self.write_header_at(block, place, &Header::acknowledgement(ack).to_words())
    }

    #[inline]
    fn payload(&self, frame: FrameId) -> &[DmaWord] {
        let words = self.words(frame).and_then(|words| words.split_first_chunk::<HEADER_WORDS>());
        words.map_or(&[], |(_, payload)| payload)
    }

    #[inline]
    pub(crate) fn write_payload(&self, frame: FrameId, bytes: &[u8]) {
        words::put(self.payload(frame), bytes);
    }

    #[inline]
    pub(crate) fn read_payload(&self, frame: FrameId, bytes: &mut [u8]) {
        words::get(self.payload(frame), bytes);
    }

    /// Fills the frames of a message.
    pub(crate) fn write_message(&self, message: MessageId, payload: &[u8]) {
        let mut next = Some(message.first());
        for chunk in payload.chunks(FRAGMENT_LEN) {
            let Some(frame) = next else { return };
            self.write_payload(frame, chunk);
            next = self.at(frame).next;
        }
    }

    /// Copies a message to `buffer`, limited to the buffer and to its frames. Returns the number of
    /// bytes.
    #[inline]
    pub(crate) fn read_message(&self, message: MessageId, buffer: &mut [u8]) -> usize {
        let descriptor = self.message(message);
        let held = usize::from(descriptor.frames) * FRAGMENT_LEN;
        let len = (descriptor.len as usize).min(held).min(buffer.len());
        let (buffer, _) = buffer.split_at_mut(len);
        match descriptor.next {
            None => self.read_payload(message.first(), buffer),
            Some(_) => self.read_frames(message.first(), buffer),
        }
        len
    }

    #[inline(never)]
    fn read_frames(&self, first: FrameId, buffer: &mut [u8]) {
        let mut next = Some(first);
        for chunk in buffer.chunks_mut(FRAGMENT_LEN) {
            let Some(frame) = next else { break };
            self.read_payload(frame, chunk);
            next = self.at(frame).next;
        }
    }

    /// Writes the extension headers of a frame.
    pub(crate) fn write_extensions(&self, frame: FrameId, extensions: &[u8; 16]) {
        let header = Header { extensions: *extensions, ..Header::acknowledgement(0) };
        self.write_header(frame, &header);
    }

    pub(crate) fn read_extensions(&self, frame: FrameId) -> [u8; 16] {
        let [.., first, second] = self.header_words(frame).unwrap_or_default();
        wire::joined([first, second])
    }

    /// Writes the bytes of a header unchanged, with any checksum.
    #[cfg(test)]
    pub(crate) fn write_header_bytes(&self, frame: FrameId, bytes: &[u8; 8 * HEADER_WORDS]) {
        let words = self.words(frame).expect("a frame of the table");
        for (word, bytes) in words.iter().zip(bytes.as_chunks::<8>().0) {
            word.store(u64::from_ne_bytes(*bytes));
        }
    }

    /// Returns quadword `index` of a frame's payload, first byte lowest.
    pub(crate) fn payload_word(&self, frame: FrameId, index: usize) -> u64 {
        self.payload(frame).get(index).map_or(0, |word| u64::from_le(word.load()))
    }

    pub(crate) fn set_payload_word(&self, frame: FrameId, index: usize, value: u64) {
        if let Some(word) = self.payload(frame).get(index) {
            word.store(value.to_le());
        }
    }
}

/// Writes header and payload of a single-frame message to its memory. Returns the virtual address.
#[inline(always)]
pub(crate) fn fill(block: &Block, header: &Header, payload: &[u8]) -> u64 {
    if let Some((head, body)) = block.split_first_chunk::<HEADER_WORDS>() {
        write(head, &header.to_words());
        words::put(body, payload);
    }
    address_of(block)
}

#[inline]
fn write(words: &[DmaWord; HEADER_WORDS], header: &[u64; HEADER_WORDS]) {
    for (word, value) in words.iter().zip(header) {
        word.store(*value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn giving_twice_changes_nothing() {
        let mut table = [Frame::EMPTY; 2];
        let mut frames = Frames::plain(&mut table, 1);
        let id = frames.take(Use::Receive).unwrap();
        frames.give(id);
        frames.give(id);
        assert_eq!(frames.free_count(), 2);
        assert!(frames.take(Use::Send).is_some() && frames.take(Use::Send).is_some());
        assert!(frames.take(Use::Send).is_none());
    }

    #[test]
    fn a_message_of_several_frames_comes_back() {
        let mut table = [Frame::EMPTY; 3];
        let mut frames = Frames::plain(&mut table, 1);
        let bytes: std::vec::Vec<u8> = (0..9000).map(|i| (i * 7) as u8).collect();
        let message = frames.begin(Use::Send, |frame| frame.len = 9000).unwrap();
        frames.write_payload(message.first(), &bytes[..4096]);
        let mut last = message.first();
        for chunk in bytes[4096..].chunks(4096) {
            let next = frames.take(Use::Send).unwrap();
            frames.write_payload(next, chunk);
            frames.append(message, last, next);
            last = next;
        }
        let mut back = [0; 9000];
        assert_eq!(frames.read_message(message, &mut back), 9000);
        assert!(back[..] == bytes[..]);
        assert_eq!((frames.give_message(message), frames.free_count()), (3, 3));
    }

    #[test]
    fn acknowledgements_lie_behind_the_frames() {
        let mut table = [Frame::EMPTY; 2];
        let frames = Frames::plain(&mut table, 70);
        let first = frames.address(FrameId::new(0));
        assert_eq!(frames.write_acknowledgement(0, 5), first + 2 * STRIDE as u64);
        assert_eq!(frames.write_acknowledgement(69, 6), first + 3 * STRIDE as u64 + 4 * 64);
    }

    /// A descriptor whose length exceeds its frames is a bug elsewhere. A copy must not continue
    /// into the next message.
    #[test]
    fn copies_end_with_the_frames_of_a_message() {
        let mut table = [Frame::EMPTY; 4];
        let mut frames = Frames::plain(&mut table, 1);
        let mut buffer = [0; 4 * FRAGMENT_LEN];
        for count in 1..4 {
            let message = frames.begin(Use::Receive, |frame| frame.len = u32::MAX).expect("free");
            let mut last = message.first();
            for _ in 1..count {
                let next = frames.take(Use::Receive).expect("free");
                frames.append(message, last, next);
                last = next;
            }
            assert_eq!(frames.read_message(message, &mut buffer), count * FRAGMENT_LEN);
            frames.give_message(message);
        }
    }
}

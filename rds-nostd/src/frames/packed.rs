//! Short messages that nobody has read, packed: as many as fit lie in one frame, so that what is left in one socket leaves frames for what
//! goes to others.
//!
//! Each lies there as it arrived, header and payload, from a whole quadword on. The frame's entry describes the first that was not read.

use core::iter::successors;
use core::ops::Range;

use dat_nostd::DmaWord;

use crate::frames::memory::WORDS;
use crate::frames::{Frame, Frames, Marks, Queue, Use};
use crate::ids::{ConnectionId, MessageId};
use crate::wire::{HEADER_WORDS, Header};
use crate::words;

/// Quadwords of a message and its header.
const fn words_of(len: u32) -> usize {
    HEADER_WORDS + (len as usize).div_ceil(8)
}

/// The longest message that counts as short, bytes: two of them fit into a frame.
pub(crate) const SHORT: u32 = ((WORDS / 2 - HEADER_WORDS) * 8) as u32;

/// Messages packed behind another one: how many, and their payload bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest {
    pub(crate) count: usize,
    pub(crate) bytes: usize,
}

/// A message behind others in their frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packed {
    /// Where it begins, in quadwords.
    start: usize,
    pub(crate) header: Header,
    /// What is behind it.
    rest: Rest,
}

impl Frame {
    /// What a message's header says of it.
    #[inline(always)]
    pub(crate) const fn describe(&mut self, header: &Header) {
        (self.sport, self.dport, self.flags) = (header.sport, header.dport, header.flags.bits());
        (self.len, self.sequence) = (header.len, header.sequence);
    }

    /// The part of its frame that is used, in quadwords: from this message's header to the end of the last one behind it.
    const fn extent(&self) -> (usize, usize) {
        if self.is(Marks::PACKED) {
            let [extent, _] = self.elsewhere;
            (extent as u32 as usize, (extent >> 32) as usize)
        } else {
            (0, words_of(self.len))
        }
    }

    /// What is packed behind this message.
    pub(crate) const fn rest(&self) -> Rest {
        if !self.is(Marks::PACKED) {
            return Rest { count: 0, bytes: 0 };
        }
        let [_, rest] = self.elsewhere;
        Rest { count: (rest >> 32) as usize, bytes: rest as u32 as usize }
    }

    const fn set_packed(&mut self, (start, end): (usize, usize), rest: Rest) {
        self.marks = self.marks.union(Marks::PACKED);
        self.elsewhere = [(end as u64) << 32 | start as u64, (rest.count as u64) << 32 | rest.bytes as u64];
    }

    /// Whether a received message is of one frame, and that holds all that is known of it.
    const fn may_be_packed(&self) -> bool {
        self.frames == 1 && !self.marks.intersects(Marks::EXTENDED.union(Marks::TIMED))
    }
}

impl Frames<'_> {
    /// Packs the short messages in a socket's queue that came over a connection; how many frames came free. They may overtake what came
    /// over others: RDS promises no order between peers.
    pub(crate) fn pack(&mut self, queue: &mut Queue, id: ConnectionId) -> u32 {
        let mut unread = core::mem::replace(queue, Queue::EMPTY);
        let (mut open, mut freed) = (None, 0);
        while let Some(message) = self.pop_front(&mut unread) {
            let frame = self.message(message);
            if frame.connection == Some(id) {
                let packable = frame.may_be_packed();
                if packable && open.is_some_and(|open| self.join(open, message)) {
                    freed += 1;
                    continue;
                }
                open = packable.then_some(message);
            }
            self.push_back(queue, message);
        }
        freed
    }

    /// Puts a message, and those packed behind it, into another one's frame, and gives its own back. False if they do not fit.
    fn join(&mut self, into: MessageId, message: MessageId) -> bool {
        let (moved, open) = (self.message(message), self.message(into));
        let ((start, end), (first, at)) = (moved.extent(), open.extent());
        let extent = (first, at + (end - start));
        if extent.1 > WORDS {
            return false;
        }
        let (own, rest) = (open.rest(), moved.rest());
        let rest =
            Rest { count: own.count + 1 + rest.count, bytes: own.bytes + moved.len as usize + rest.bytes };
        self.copy_words((message, start..end), (into, at));
        self.message_mut(into).set_packed(extent, rest);
        self.give(message.first());
        true
    }

    /// Copies forwards: within one frame the target lies before the source.
    fn copy_words(&self, (from, range): (MessageId, Range<usize>), (to, at): (MessageId, usize)) {
        let words = |message: MessageId| self.words(message.first()).map_or(&[][..], |words| words);
        let from = words(from).get(range).unwrap_or_default();
        for (to, from) in words(to).get(at..).unwrap_or_default().iter().zip(from) {
            to.store(from.load());
        }
    }

    /// The first of packed messages was read: the entry describes the next one. False if none is there: the frame is done with. What is
    /// still said to be the [rest](Frame::rest) then, a device wrote over.
    pub(crate) fn advance(&mut self, message: MessageId) -> bool {
        let next = self.behind(message).next();
        if let Some(next) = next {
            self.advance_to(message, &next);
        }
        next.is_some()
    }

    fn advance_to(&mut self, message: MessageId, next: &Packed) {
        let frame = self.message_mut(message);
        let (_, end) = frame.extent();
        frame.describe(&next.header);
        frame.set_packed((next.start, end), next.rest);
    }

    /// The messages packed behind this one.
    pub(crate) fn behind(&self, message: MessageId) -> impl Iterator<Item = Packed> + use<'_> {
        let frame = self.message(message);
        let ((start, end), rest) = (frame.extent(), frame.rest());
        let used = self.words(message.first()).and_then(|words| words.get(..end)).unwrap_or_default();
        // A device may write to this memory at any time.
        let at = move |start: usize, rest: Rest| {
            let words = used.get(start..)?.first_chunk()?.each_ref().map(DmaWord::load);
            let header = Header::from_words(&words).ok()?;
            let count = rest.count.checked_sub(1)?;
            let rest = Rest { count, bytes: rest.bytes.checked_sub(header.len as usize)? };
            (start + words_of(header.len) <= end).then_some(Packed { start, header, rest })
        };
        let first = at(start + words_of(frame.len), rest);
        successors(first, move |packed| at(packed.start + words_of(packed.header.len), packed.rest))
    }

    /// Copies the first of packed messages to a buffer that is not longer.
    #[cold]
    pub(super) fn read_packed(&self, message: MessageId, buffer: &mut [u8]) {
        let (start, end) = self.message(message).extent();
        let words = self.words(message.first()).and_then(|words| words.get(start + HEADER_WORDS..end));
        words::get(words.unwrap_or_default(), buffer);
    }

    /// Takes the first of packed messages out of their frame, into one of its own that is in no queue; or, without a `next` one, into this
    /// one. None if no frame is free.
    #[cold]
    pub(crate) fn unpack(&mut self, message: MessageId, next: Option<&Packed>) -> Option<MessageId> {
        let descriptor = *self.message(message);
        let (start, _) = descriptor.extent();
        let range = start..start + words_of(descriptor.len);
        let own = match next {
            None => message,
            Some(_) => MessageId::starting(self.take(Use::Receive)?),
        };
        self.copy_words((message, range), (own, 0));
        if let Some(next) = next {
            *self.message_mut(own) = Frame { next: None, next_message: None, ..descriptor };
            self.advance_to(message, next);
        }
        self.message_mut(own).marks.remove(Marks::PACKED);
        Some(own)
    }
}

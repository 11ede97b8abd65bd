//! Inboxes: lists of unread messages, linked through frames and records.

use dat_nostd::DmaWord;

use crate::frames::arena::{RECORD_WORDS, SHORT, word_of};
use crate::frames::{Frame, Frames, Use};
use crate::ids::{ConnectionId, FrameId, MessageId};
use crate::wire::{FRAGMENT_LEN, HEADER_WORDS, Header};
use crate::words;

/// Location of an unread message: in its own frames, or as a record of an [arena](super::arena).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Place {
    frame: FrameId,
    /// Number of the record's first unit, from 1; 0 for a message in its own frames.
    number: u16,
}

impl Place {
    /// Returns the place of a message in its own frames.
    #[inline]
    pub(crate) const fn of(message: MessageId) -> Self {
        Self::record(message.first(), 0)
    }

    /// Returns the place of a record, given its first unit plus 1.
    #[inline]
    pub(super) const fn record(frame: FrameId, number: u16) -> Self {
        Self { frame, number }
    }

    pub(super) const fn from_bits(bits: u32) -> Option<Self> {
        match FrameId::from_bits(bits as u16) {
            Some(frame) => Some(Self { frame, number: (bits >> 16) as u16 }),
            None => None,
        }
    }

    #[inline]
    pub(super) const fn bits(self) -> u32 {
        self.frame.bits() as u32 | (self.number as u32) << 16
    }

    #[inline]
    pub(crate) const fn frame(self) -> FrameId {
        self.frame
    }

    /// Returns the number of the record's first unit, from 1.
    #[inline]
    pub(super) const fn number(self) -> u16 {
        self.number
    }

    /// Returns the message, if it has its own frames.
    #[inline]
    pub(crate) const fn message(self) -> Option<MessageId> {
        if self.number() == 0 { Some(MessageId::starting(self.frame())) } else { None }
    }
}

/// Unread messages of a socket, oldest first.
// The places as numbers, 0 for none, so that one store writes one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Inbox {
    head: u32,
    tail: u32,
}

impl Inbox {
    pub(crate) const EMPTY: Self = Self { head: 0, tail: 0 };

    pub(crate) const fn is_empty(&self) -> bool {
        self.head == 0
    }

    #[inline]
    pub(crate) const fn head(&self) -> Option<Place> {
        Place::from_bits(self.head)
    }
}

/// An unread message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unread {
    pub(crate) place: Place,
    /// Next message of the inbox; 0 for none.
    next: u32,
    /// Connection of the sender; `None` for a loopback message.
    pub(crate) connection: Option<ConnectionId>,
    pub(crate) sport: u16,
    /// Payload bytes.
    pub(crate) len: usize,
    /// Frames that the message counts as against its socket.
    pub(crate) frames: usize,
}

impl Frame {
    /// Returns the next message of the inbox.
    #[inline]
    const fn next_place(&self) -> u32 {
        match self.next_message {
            Some(message) => Place::record(message.first(), self.next_record).bits(),
            None => 0,
        }
    }
}

impl Frames<'_> {
    /// Appends the message in a frame of a ring to an inbox. The frame remains in its slot until
    /// the message is read.
    #[inline]
    pub(crate) fn keep_in_slot(
        &mut self,
        inbox: &mut Inbox,
        (frame, header): (FrameId, &Header),
        socket: usize,
    ) {
        let before = self.link(inbox, Place::of(MessageId::starting(frame)));
        let entry = self.at_mut(frame);
        (entry.used, entry.next_message, entry.next_record) = (Use::Unread, None, 0);
        (entry.dport, entry.sport, entry.len) = (header.dport, header.sport, header.len);
        (entry.socket, entry.generation) = (socket as u16, before);
    }

    /// Appends a message to an inbox.
    pub(crate) fn deliver(&mut self, inbox: &mut Inbox, place: Place) {
        let before = self.link(inbox, place);
        self.set_before(place, before);
    }

    /// Makes a message the tail of an inbox. Returns the previous tail.
    #[inline]
    fn link(&mut self, inbox: &mut Inbox, place: Place) -> u32 {
        let before = core::mem::replace(&mut inbox.tail, place.bits());
        match Place::from_bits(before) {
            None => inbox.head = place.bits(),
            Some(before) => self.set_next(before, place.bits()),
        }
        before
    }

    /// Moves a message in its own frame to a record.
    pub(crate) fn replace(&mut self, inbox: &mut Inbox, from: Place, to: Place) {
        let before = if inbox.head == from.bits() { 0 } else { self.at(from.frame()).generation };
        let next = self.unread(from).map_or(0, |unread| unread.next);
        let next = if inbox.tail == from.bits() { 0 } else { next };
        self.set_next(to, next);
        match Place::from_bits(before) {
            None => inbox.head = to.bits(),
            Some(before) => self.set_next(before, to.bits()),
        }
        match Place::from_bits(next) {
            None => inbox.tail = to.bits(),
            Some(next) => self.set_before(next, to.bits()),
        }
    }

    #[inline]
    fn set_next(&mut self, place: Place, next: u32) {
        if place.number() == 0 {
            let entry = self.at_mut(place.frame());
            entry.next_message = FrameId::from_bits(next as u16).map(MessageId::starting);
            entry.next_record = (next >> 16) as u16;
        } else if let Some([first, _]) = self.record_words(place) {
            first.store(first.load() & u64::from(u32::MAX) | u64::from(next) << 32);
        }
    }

    /// Sets the link back of a message in its own frames. Records have none, because they never
    /// move.
    #[inline]
    fn set_before(&mut self, place: Place, before: u32) {
        if place.number() == 0 {
            self.at_mut(place.frame()).generation = before;
        }
    }

    /// Returns the quadwords of a record before its payload.
    pub(super) fn record_words(&self, place: Place) -> Option<&[DmaWord; RECORD_WORDS]> {
        self.words(place.frame())?.get(word_of(place)..)?.first_chunk()
    }

    /// Copies the oldest message of an inbox to `buffer`, cut to its length, and frees the slot.
    /// Returns the message and the bytes that were copied, or `None` if the message is not in a slot, or has extensions or times.
    #[inline(always)]
    pub(crate) fn read_in_slot(&mut self, inbox: &mut Inbox, buffer: &mut [u8]) -> Option<(Unread, usize)> {
        let place = inbox.head()?;
        let frame = self.table.get_mut(place.frame().index())?;
        let connection = frame.connection?;
        if frame.used != Use::Unread || !frame.marks.is_empty() {
            return None;
        }
        let (_, payload) = self.memory.block(place.frame().index())?.split_first_chunk::<HEADER_WORDS>()?;
        let message_len = frame.len as usize;
        // A slot has one frame, even if the length of its entry is wrong.
        let (buffer, _) = buffer.split_at_mut(message_len.min(FRAGMENT_LEN).min(buffer.len()));
        words::get(payload, buffer);
        frame.used = Use::Ring;
        let (next, sport, len) = (frame.next_place(), frame.sport, message_len);
        let unread = Unread { place, next, connection: Some(connection), sport, len, frames: 1 };
        self.remove_front(inbox, &unread);
        Some((unread, buffer.len()))
    }

    /// Returns the oldest message of an inbox, or `None` if the inbox is empty or a device
    /// overwrote the link to the message.
    pub(crate) fn front(&self, inbox: &Inbox) -> Option<Unread> {
        let place = inbox.head()?;
        let unread = self.unread(place)?;
        let follows = |next| inbox.tail != inbox.head && self.follows(next, place);
        let next = if Place::from_bits(unread.next).is_some_and(follows) { unread.next } else { 0 };
        Some(Unread { next, ..unread })
    }

    /// Returns whether the link back of `next` confirms that it follows `place`. A record's own bit
    /// decides when it is read.
    fn follows(&self, next: Place, place: Place) -> bool {
        next.number() != 0 || self.at(next.frame()).generation == place.bits()
    }

    /// Returns the message at `place`.
    pub(super) fn unread(&self, place: Place) -> Option<Unread> {
        let entry = self.at(place.frame());
        let connection = entry.connection;
        if place.number() == 0 {
            let is_message = matches!(entry.used, Use::Receive | Use::Unread);
            let (len, frames) = (entry.len as usize, usize::from(entry.frames));
            let (next, sport) = (entry.next_place(), entry.sport);
            return is_message.then_some(Unread { place, next, connection, sport, len, frames });
        }
        if !entry.has_record(place.number() - 1) {
            return None;
        }
        let word = self.record_words(place)?[0].load();
        Some(Unread {
            place,
            next: (word >> 32) as u32,
            connection,
            sport: (word >> 16) as u16,
            len: usize::from(word as u16).min(SHORT as usize),
            frames: 1,
        })
    }

    /// Returns the connection whose share a message counts against.
    pub(crate) fn connection_of(&self, place: Place) -> Option<ConnectionId> {
        self.at(place.frame()).connection
    }

    /// Returns the sender of a loopback message.
    pub(crate) fn source(&self, place: Place) -> u128 {
        self.at(place.frame()).source()
    }

    /// Returns the messages of an inbox, oldest first.
    pub(crate) fn all(&self, inbox: &Inbox) -> impl Iterator<Item = Unread> + use<'_> {
        let mut rest = *inbox;
        core::iter::from_fn(move || {
            let unread = self.front(&rest)?;
            rest.head = unread.next;
            Some(unread)
        })
        // Bounded, because a device may link records in a cycle.
        .take(self.table.len() * STEPS_PER_FRAME)
    }

    /// Returns the sequence number of an unread message.
    pub(crate) fn number(&self, place: Place) -> u64 {
        match place.message() {
            Some(message) if self.message(message).used == Use::Unread => {
                u64::from_be(self.header_words(message.first()).unwrap_or_default()[0])
            }
            Some(message) => self.message(message).sequence,
            None => self.record_words(place).map_or(0, |words| words[1].load()),
        }
    }

    /// Removes the oldest message of an inbox.
    pub(crate) const fn remove_front(&self, inbox: &mut Inbox, unread: &Unread) {
        inbox.head = unread.next;
        if unread.next == 0 {
            inbox.tail = 0;
        }
    }

    /// Copies an unread message to `buffer`, as much as fits. Returns the number of bytes.
    pub(crate) fn read(&self, unread: &Unread, buffer: &mut [u8]) -> usize {
        if let Some(message) = unread.place.message() {
            return self.read_message(message, buffer);
        }
        let (buffer, _) = buffer.split_at_mut(unread.len.min(buffer.len()));
        let start = word_of(unread.place) + RECORD_WORDS;
        let words = self.words(unread.place.frame()).and_then(|words| words.get(start..));
        words::get(words.unwrap_or_default(), buffer);
        buffer.len()
    }
}

/// Maximum number of messages per frame.
const STEPS_PER_FRAME: usize = 128;

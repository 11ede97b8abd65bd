//! Short messages that keep a receive from being posted again: they are copied into an arena, a frame of records. A connection has one
//! arena open.
//!
//! A record begins at a multiple of [`UNIT`] bytes:
//!
//! | quadword | 15:0 | 31:16 | 63:32 |
//! |---|---|---|---|
//! | 0 | payload bytes | sender's port | place of the next message |
//! | 1 | message number | | |
//! | 2 | place of the message before (31:0) | | |
//! | 3.. | payload | | |
//!
//! The table entry of an arena has a bit for each record that nobody has read. Links and lengths lie in memory that a device may
//! write to, so a link without its bit leads nowhere, and a length ends with the frame.

use dat_nostd::DmaSlice;

use crate::frames::inbox::{Inbox, Place};
use crate::frames::memory::STRIDE;
use crate::frames::{Frame, Frames, Use};
use crate::ids::{ConnectionId, FrameId, MessageId};
use crate::wire::HEADER_WORDS;

/// The longest message that is copied, bytes. A longer copy costs more than another receive.
pub(crate) const SHORT: u32 = 512;
/// Records begin at multiples of so many bytes.
const UNIT: usize = 32;
/// The same in quadwords.
const UNIT_WORDS: usize = UNIT / 8;
/// Units of an arena: the bits that its table entry has.
const UNITS: u16 = 128;
/// Quadwords of a record before its payload.
pub(super) const RECORD_WORDS: usize = 3;

/// First quadword of a record in its frame.
pub(super) const fn word_of(place: Place) -> usize {
    (place.number().wrapping_sub(1) % UNITS) as usize * UNIT_WORDS
}

/// The arena that a connection fills, and the free units that it fills next: all of them while nothing is unread.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arena {
    frame: Option<FrameId>,
    next: u16,
    end: u16,
}

impl Arena {
    pub(crate) const NONE: Self = Self { frame: None, next: 0, end: 0 };
}

/// Units of a record with so many payload bytes.
const fn units(len: u32) -> u16 {
    (RECORD_WORDS + (len as usize).div_ceil(8)).div_ceil(UNIT_WORDS) as u16
}

impl Frame {
    /// The bit of a record that begins with this unit.
    const fn bit(unit: u16) -> (usize, u64) {
        ((unit / 64 % 2) as usize, 1 << (unit % 64))
    }

    /// Returns whether a record that nobody has read begins with this unit.
    pub(super) fn has_record(&self, unit: u16) -> bool {
        let (half, bit) = Self::bit(unit);
        self.used == Use::Arena && self.elsewhere[half] & bit != 0
    }
}

impl Frames<'_> {
    /// Copies the message in a frame into an arena, to its end or to a gap where messages were read. `None` if there is no room.
    pub(crate) fn copy_to(&mut self, arena: &mut Arena, from: FrameId) -> Option<Place> {
        let Frame { len, sport, .. } = *self.at(from);
        if arena.next + units(len) > arena.end && !self.fill_gap(arena, len) {
            return None;
        }
        let frame = arena.frame?;
        let place = Place::record(frame, arena.next + 1);
        let payload = self.words(from)?.get(HEADER_WORDS..)?.get(..(len as usize).div_ceil(8))?;
        let record = self.words(frame)?.get(word_of(place)..)?;
        let ([first, second, _], room) = record.split_first_chunk::<RECORD_WORDS>()?;
        // Within one frame the record begins before the payload.
        for (to, from) in room.iter().zip(payload) {
            to.store(from.load());
        }
        first.store(u64::from(len) | u64::from(sport) << 16);
        second.store(self.number(Place::of(MessageId::starting(from))));
        let (half, bit) = Frame::bit(arena.next);
        self.at_mut(frame).elsewhere[half] |= bit;
        arena.next += units(len);
        Some(place)
    }

    /// Goes on with an arena where messages were read, so that a socket that nobody reads does not keep the memory of what others have
    /// read. Returns false if a message of `len` bytes has no room between those that are unread.
    fn fill_gap(&self, arena: &mut Arena, len: u32) -> bool {
        let Some(frame) = arena.frame else { return false };
        let entry = self.at(frame);
        // The handle of a loan names its place.
        if entry.posted > 0 {
            return false;
        }
        let (mut start, mut unit) = (0, 0);
        loop {
            let is_free = unit < UNITS && !entry.has_record(unit);
            if !is_free && unit - start >= units(len) {
                (arena.next, arena.end) = (start, unit);
                return true;
            }
            if unit >= UNITS {
                return false;
            }
            unit += 1;
            if !is_free {
                let record = self.unread(Place::record(frame, unit));
                unit += record.map_or(1, |record| units(record.len as u32)) - 1;
                start = unit;
            }
        }
    }

    /// Makes the frame of a message the open arena of its connection, with the message as its first record. The arena before it is free
    /// when all of it has been read.
    pub(crate) fn open_arena(
        &mut self,
        arena: &mut Arena,
        frame: FrameId,
        id: ConnectionId,
        inbox: &mut Inbox,
    ) {
        let number = self.next_number();
        *arena = Arena { frame: Some(frame), next: 0, end: UNITS };
        self.at_mut(frame).elsewhere = [0; 2];
        let Some(place) = self.copy_to(arena, frame) else { return };
        self.replace(inbox, Place::of(MessageId::starting(frame)), place);
        let entry = self.at_mut(frame);
        let records = entry.elsewhere;
        let entry = entry.become_message(Use::Arena);
        (entry.connection, entry.sequence, entry.elsewhere) = (Some(id), number, records);
    }

    /// Nobody uses a record any more. Returns whether its arena is free: it was the last one.
    pub(crate) fn remove_record(&mut self, place: Place, arena: &mut Arena) -> bool {
        let (half, bit) = Frame::bit(place.number().wrapping_sub(1));
        let entry = self.at_mut(place.frame());
        entry.elsewhere[half] &= !bit;
        let is_last = entry.elsewhere == [0; 2];
        if is_last {
            if arena.frame == Some(place.frame()) {
                *arena = Arena::NONE;
            }
            self.give(place.frame());
        }
        is_last
    }

    /// Lends a record. Returns the number of the loan.
    pub(super) fn lend_record(&mut self, place: Place) -> u64 {
        let entry = self.at_mut(place.frame());
        entry.posted += 1;
        entry.sequence
    }

    /// The loan of a record is over. With the last one all handles of the arena's loans become void, so that their places can be used
    /// again.
    pub(super) fn end_record_loan(&mut self, place: Place) {
        let number = self.next_number();
        let entry = self.at_mut(place.frame());
        entry.posted = entry.posted.saturating_sub(1);
        if entry.posted == 0 {
            entry.sequence = number;
        }
    }

    /// Returns whether a record is lent by this number.
    pub(super) fn is_record_lent(&self, place: Place, number: u64) -> bool {
        let entry = self.at(place.frame());
        entry.has_record(place.number().wrapping_sub(1)) && entry.sequence == number
    }

    /// The payload of a record.
    pub(super) fn record_payload(&self, place: Place, len: usize) -> Option<DmaSlice<'_>> {
        let start = (word_of(place) + RECORD_WORDS) * 8;
        let len = len.min(STRIDE.saturating_sub(start));
        self.memory()?.slice(place.frame().index() * STRIDE + start, len)
    }

    /// Writes over the first quadword of a record, as a device might.
    #[cfg(test)]
    pub(crate) fn forge_record(&self, place: Place, word: u64) {
        self.record_words(place).expect("a record")[0].store(word);
    }
}

//! Arenas: frames with the records of several unread short messages, so that their receives can be
//! posted again. Each connection fills one arena at a time.
//!
//! Records are aligned to [`UNIT`] bytes:
//!
//! | quadword | 15:0 | 31:16 | 63:32 |
//! |---|---|---|---|
//! | 0 | payload bytes | sender's port | place of the next message |
//! | 1 | message number | | |
//! | 2.. | payload | | |
//!
//! The table entry of an arena has a bit for each unread record. Links and lengths are in memory
//! that a device may write to. Therefore a link to a record needs the record's bit, and a link to a
//! frame needs the frame's link back. Lengths end with the frame.

use dat_nostd::DmaSlice;

use crate::frames::inbox::{Inbox, Place};
use crate::frames::memory::STRIDE;
use crate::frames::{Frame, Frames, Use};
use crate::ids::{ConnectionId, FrameId, MessageId};
use crate::wire::HEADER_WORDS;

/// Maximum bytes of a message to copy. A longer copy costs more than another receive.
pub(crate) const SHORT: u32 = 512;
/// Alignment of records, in bytes.
const UNIT: usize = 32;
/// Alignment of records, in quadwords.
const UNIT_WORDS: usize = UNIT / 8;
/// Units of an arena, the number of bits in its table entry.
const UNITS: u16 = 128;
/// Quadwords of a record before its payload.
pub(super) const RECORD_WORDS: usize = 2;

/// Index of a record's first quadword in its frame.
pub(super) const fn word_of(place: Place) -> usize {
    (place.number().wrapping_sub(1) % UNITS) as usize * UNIT_WORDS
}

/// The arena that a connection fills, and its first free unit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arena {
    frame: Option<FrameId>,
    next: u16,
}

impl Arena {
    pub(crate) const NONE: Self = Self { frame: None, next: 0 };
}

/// Units of a record with `len` payload bytes.
const fn units(len: u32) -> u16 {
    (RECORD_WORDS + (len as usize).div_ceil(8)).div_ceil(UNIT_WORDS) as u16
}

impl Frame {
    /// Index and mask of the bit for a record that starts at `unit`.
    const fn bit(unit: u16) -> (usize, u64) {
        ((unit / 64 % 2) as usize, 1 << (unit % 64))
    }

    /// Returns whether an unread record starts at `unit`.
    pub(super) fn has_record(&self, unit: u16) -> bool {
        let (half, bit) = Self::bit(unit);
        self.used == Use::Arena && self.extra[half] & bit != 0
    }
}

impl Frames<'_> {
    /// Appends the message in a frame to an arena. Returns `None` if the arena is full.
    pub(crate) fn copy_to(&mut self, arena: &mut Arena, from: FrameId) -> Option<Place> {
        let Frame { len, sport, .. } = *self.at(from);
        if arena.next + units(len) > UNITS {
            return None;
        }
        let frame = arena.frame?;
        let place = Place::record(frame, arena.next + 1);
        let payload = self.words(from)?.get(HEADER_WORDS..)?.get(..(len as usize).div_ceil(8))?;
        let record = self.words(frame)?.get(word_of(place)..)?;
        let ([first, second], room) = record.split_first_chunk::<RECORD_WORDS>()?;
        // Within one frame the record begins before the payload.
        for (to, from) in room.iter().zip(payload) {
            to.store(from.load());
        }
        first.store(u64::from(len) | u64::from(sport) << 16);
        second.store(self.number(Place::of(MessageId::starting(from))));
        let (half, bit) = Frame::bit(arena.next);
        self.at_mut(frame).extra[half] |= bit;
        arena.next += units(len);
        Some(place)
    }

    /// Makes the frame of a message the open arena of its connection, with the message as first
    /// record. The previous arena is freed when its last record is read.
    pub(crate) fn open_arena(
        &mut self,
        arena: &mut Arena,
        frame: FrameId,
        id: ConnectionId,
        inbox: &mut Inbox,
    ) {
        let number = self.next_number();
        *arena = Arena { frame: Some(frame), next: 0 };
        self.at_mut(frame).extra = [0; 2];
        let Some(place) = self.copy_to(arena, frame) else { return };
        self.replace(inbox, Place::of(MessageId::starting(frame)), place);
        let entry = self.at_mut(frame);
        let records = entry.extra;
        let entry = entry.become_message(Use::Arena);
        (entry.connection, entry.sequence, entry.extra) = (Some(id), number, records);
    }

    /// Frees a record. Returns whether it was the last one, which frees the arena.
    pub(crate) fn remove_record(&mut self, place: Place, arena: &mut Arena) -> bool {
        let (half, bit) = Frame::bit(place.number().wrapping_sub(1));
        let entry = self.at_mut(place.frame());
        entry.extra[half] &= !bit;
        let is_last = entry.extra == [0; 2];
        if is_last {
            if arena.frame == Some(place.frame()) {
                *arena = Arena::NONE;
            }
            self.give(place.frame());
        }
        is_last
    }

    /// Returns whether a zero-copy handle with `number` refers to the record.
    pub(super) fn is_record_lent(&self, place: Place, number: u64) -> bool {
        let entry = self.at(place.frame());
        entry.has_record(place.number().wrapping_sub(1)) && entry.sequence == number
    }

    /// Returns the payload of a record.
    pub(super) fn record_payload(&self, place: Place, len: usize) -> Option<DmaSlice<'_>> {
        let start = (word_of(place) + RECORD_WORDS) * 8;
        let len = len.min(STRIDE.saturating_sub(start));
        self.memory()?.slice(place.frame().index() * STRIDE + start, len)
    }

    /// Overwrites the first quadword of a record, as a device might.
    #[cfg(test)]
    pub(crate) fn forge_record(&self, place: Place, word: u64) {
        self.record_words(place).expect("a record")[0].store(word);
    }
}

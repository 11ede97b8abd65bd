//! What an endpoint knows of its outstanding operations: counters, and what the driver keeps of each beside the consumer's cookie.

use driver_mlx::{Cqe, Receiver, SendFlags, WrId};

use crate::base::event::{DtoOperation, ReceiveDto};
use crate::base::types::CompletionFlags;

/// What the driver keeps for us with a work request, beside the consumer's cookie.
///
/// | bits | content |
/// |---|---|
/// | 63–32 | bytes |
/// | 47–32 | instead, of a bind its place among those on their way |
/// | 31–30 | operation: send, receive, RDMA write, RDMA read; of atomics: compare and swap, fetch and add |
/// | 12 | an atomic |
/// | 11 | a bind |
/// | 10 | our own marker |
/// | 9 | posted UNSIGNALLED |
/// | 8 | posted SUPPRESS |
/// | 7–0 | the driver's own |
#[derive(Clone, Copy)]
pub(crate) struct Note(u64);

impl Note {
    pub(crate) const SUPPRESS: u64 = 1 << 8;
    pub(crate) const UNSIGNALLED: u64 = 1 << 9;
    pub(crate) const MARKER: u64 = 1 << 10;
    pub(crate) const BIND: u64 = 1 << 11;
    const ATOMIC: u64 = 1 << 12;
    /// Any of these: there is more to it than a transfer that is reported.
    pub(crate) const SPECIAL: u64 = Self::SUPPRESS | Self::MARKER | Self::BIND | Self::ATOMIC;

    #[inline]
    pub(crate) fn new(length: u32, operation: DtoOperation, marks: u64) -> Self {
        let (operation, atomic) = match operation {
            DtoOperation::Send => (0, 0),
            DtoOperation::Receive => (1, 0),
            DtoOperation::RdmaWrite => (2, 0),
            DtoOperation::RdmaRead => (3, 0),
            DtoOperation::CompareSwap => (0, Self::ATOMIC),
            DtoOperation::FetchAdd => (1, Self::ATOMIC),
        };
        Self(u64::from(length) << 32 | operation << 30 | atomic | marks)
    }

    /// Of the bind at this place of those on their way.
    pub(crate) fn bind(place: u16, marks: u64) -> Self {
        Self(u64::from(place) << 32 | marks | Self::BIND)
    }

    /// Returns the note in a work request's ID.
    #[inline]
    pub(crate) fn of(wr_id: WrId) -> Self {
        Self(wr_id.tag)
    }

    /// With the consumer's cookie, as the driver takes it.
    #[inline]
    pub(crate) fn with(self, cookie: u64) -> WrId {
        WrId { id: cookie, tag: self.0 }
    }

    #[inline]
    pub(crate) fn length(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Returns the place of a bind among those in flight; `None` if it is none.
    pub(crate) fn bind_place(self) -> Option<u16> {
        self.has(Self::BIND).then_some((self.0 >> 32) as u16)
    }

    /// Of one that is no atomic.
    #[inline]
    pub(crate) fn transfer(self) -> DtoOperation {
        const TRANSFERS: [DtoOperation; 4] =
            [DtoOperation::Send, DtoOperation::Receive, DtoOperation::RdmaWrite, DtoOperation::RdmaRead];
        TRANSFERS[(self.0 as u32 >> 30) as usize]
    }

    pub(crate) fn operation(self) -> DtoOperation {
        match self.transfer() {
            transfer if self.0 & Self::ATOMIC == 0 => transfer,
            DtoOperation::Send => DtoOperation::CompareSwap,
            _ => DtoOperation::FetchAdd,
        }
    }

    /// Returns whether it has any of these marks.
    pub(crate) fn has(self, marks: u64) -> bool {
        self.0 & marks != 0
    }

    /// Returns whether the consumer gets an event of it. Errors of suppressed requests are reported, our own marker never is.
    pub(crate) fn is_reported(self, success: bool) -> bool {
        !self.has(if success { Self::SUPPRESS | Self::MARKER } else { Self::MARKER })
    }
}

/// One direction's operations: how many were posted, are done, may be outstanding.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// Operations posted, circular.
    head: u32,
    /// Where `head` may go before more are retired: the operations retired, and the limit.
    end: u32,
    limit: u32,
}

impl Work {
    pub(crate) fn new(limit: u32) -> Self {
        Self { head: 0, end: limit, limit }
    }

    /// Forgets everything outstanding, as a fresh QP has.
    pub(crate) fn clear(&mut self) {
        (self.head, self.end) = (0, self.limit);
    }

    /// Operations posted, circular.
    #[inline]
    pub(crate) fn head(&self) -> u32 {
        self.head
    }

    /// Operations retired, circular.
    #[inline]
    pub(crate) fn tail(&self) -> u32 {
        self.end.wrapping_sub(self.limit)
    }

    #[inline]
    pub(crate) fn outstanding(&self) -> u32 {
        self.head.wrapping_sub(self.tail())
    }

    /// Returns the number of operations that may still be posted.
    #[inline]
    pub(crate) fn room(&self) -> u32 {
        (self.end.wrapping_sub(self.head) as i32).max(0) as u32
    }

    /// As [`room`](Self::room); circular below 0.
    #[inline]
    pub(crate) fn left(&self) -> u32 {
        self.end.wrapping_sub(self.head)
    }

    /// Returns whether nothing more may be posted.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.end.wrapping_sub(self.head) as i32 <= 0
    }

    /// Whether exactly as many are outstanding as may be: only an EP's own last request, after which nothing ordinary is posted, goes
    /// beyond.
    #[inline]
    pub(crate) fn is_at_limit(&self) -> bool {
        self.head == self.end
    }

    /// So many more have been posted.
    #[inline]
    pub(crate) fn posted(&mut self, count: u32) {
        self.head = self.head.wrapping_add(count);
    }

    /// So many more are done.
    #[inline]
    pub(crate) fn retired(&mut self, count: u16) {
        self.end = self.end.wrapping_add(u32::from(count));
    }
}

/// How the flags of a request have it carried out.
#[derive(Clone, Copy)]
pub(crate) struct How {
    pub(crate) send_flags: SendFlags,
    pub(crate) marks: u64,
}

impl How {
    /// Returns how a request is posted when `room` requests, itself included, still fit. So that the slots of suppressed requests come
    /// back, one completes visibly to us where the room is a multiple of `reclaim_every`, a power of two, and one more: the last one
    /// that fits, if none before it. Where others complete in time, none does.
    #[inline]
    pub(crate) fn new(flags: CompletionFlags, room: u32, reclaim_every: u8) -> Self {
        let mut how = Self { send_flags: SendFlags::SIGNALED, marks: 0 };
        how.send_flags.set(SendFlags::SOLICITED, flags.contains(CompletionFlags::SOLICITED_WAIT));
        how.send_flags.set(SendFlags::FENCE, flags.contains(CompletionFlags::BARRIER_FENCE));
        if flags.contains(CompletionFlags::UNSIGNALLED) {
            how.marks |= Note::UNSIGNALLED;
        }
        if flags.contains(CompletionFlags::SUPPRESS) {
            how.marks |= Note::SUPPRESS;
            let is_reclaimed = room.wrapping_sub(1) & (u32::from(reclaim_every) - 1) == 0;
            how.send_flags.set(SendFlags::SIGNALED, is_reclaimed);
        }
        how
    }

    /// Whether the device says nothing when the request ends well.
    #[inline]
    pub(crate) fn is_silent(self) -> bool {
        !self.send_flags.contains(SendFlags::SIGNALED)
    }
}

/// The receives of an EP that has its own queue, to take many messages.
pub(crate) struct EpReceiver<'e> {
    queue: Receiver<'e>,
    work: &'e mut Work,
}

impl<'e> EpReceiver<'e> {
    #[inline]
    pub(crate) fn new(queue: Receiver<'e>, work: &'e mut Work) -> Self {
        Self { queue, work }
    }

    /// As [`Ep::retire_common`](crate::ep::Ep::retire_common) of a message.
    #[inline(always)]
    pub(crate) fn retire(&mut self, completion: &Cqe<'_>) -> Option<ReceiveDto> {
        let message = self.queue.retire(completion)?;
        self.work.retired(1);
        // The device's claim is bounded by what was posted.
        let length = message.length.min(Note::of(message.wr_id).length());
        Some(ReceiveDto { user_cookie: message.wr_id.id, length })
    }

    /// Posts receives again as they were one lap of their ring before. Every state of the EP allows it.
    #[inline]
    pub(crate) fn repost(&mut self, count: usize) {
        let count = count.min(self.work.room() as usize) as u16;
        let posted = self.queue.repost(count);
        self.work.posted(posted.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn notes_carry_everything() {
        let note = Note::new(0x8000_0000, DtoOperation::RdmaRead, Note::SUPPRESS | Note::UNSIGNALLED);
        assert_eq!((note.length(), note.operation()), (0x8000_0000, DtoOperation::RdmaRead));
        assert!(!note.is_reported(true) && note.is_reported(false) && note.has(Note::UNSIGNALLED));
        assert_eq!((note.has(Note::MARKER), note.bind_place()), (false, None));
        assert_eq!(note.with(7), WrId { id: 7, tag: note.0 });
        for operation in [
            DtoOperation::Send,
            DtoOperation::Receive,
            DtoOperation::RdmaWrite,
            DtoOperation::RdmaRead,
            DtoOperation::CompareSwap,
            DtoOperation::FetchAdd,
        ] {
            let note = Note::new(u32::MAX, operation, 0);
            let atomic = matches!(operation, DtoOperation::CompareSwap | DtoOperation::FetchAdd);
            assert_eq!(
                (note.operation(), note.0 & Note::SPECIAL != 0, note.0 & 0xff),
                (operation, atomic, 0)
            );
        }
        let marker = Note::new(0, DtoOperation::Send, Note::MARKER);
        assert!(!marker.is_reported(true) && !marker.is_reported(false));
        let bind = Note::bind(0xabcd, Note::UNSIGNALLED);
        assert_eq!(bind.bind_place(), Some(0xabcd));
        assert!(bind.has(Note::SPECIAL) && bind.has(Note::UNSIGNALLED) && bind.is_reported(true));
        assert_eq!(bind.0 & 0xff, 0);
    }

    /// Suppressed requests never fill the queue without one that completes visibly, whatever completes in between.
    #[test]
    fn a_full_queue_empties() {
        for (limit, every) in [(1, 1), (2, 1), (4, 2), (9, 4), (64, 32), (100, 32)] {
            let (mut work, mut visible, mut random) = (Work::new(limit), VecDeque::new(), 1u32);
            for step in 0..10_000 {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                if work.is_full() || random >> 29 == 0 {
                    assert!(!work.is_full() || !visible.is_empty(), "{limit}, {every}: step {step}");
                    if let Some(done) = visible.pop_front() {
                        work.retired((done - work.tail()) as u16);
                    }
                    continue;
                }
                let how = How::new(CompletionFlags::SUPPRESS, work.left(), every);
                work.posted(1);
                if !how.is_silent() {
                    visible.push_back(work.head());
                }
            }
        }
    }

    /// Where others complete in time, no suppressed request does.
    #[test]
    fn few_suppressed_requests_are_silent() {
        let mut work = Work::new(8);
        for _ in 0..100 {
            for _ in 0..3 {
                assert!(How::new(CompletionFlags::SUPPRESS, work.left(), 4).is_silent());
                work.posted(1);
            }
            assert!(!How::new(CompletionFlags::empty(), work.left(), 4).is_silent());
            work.posted(1);
            work.retired(4);
        }
    }

    #[test]
    fn work_counts() {
        let mut work = Work::new(2);
        assert!(!work.is_full());
        (work.head, work.end) = (u32::MAX, 1);
        work.posted(1);
        work.posted(1);
        assert_eq!((work.outstanding(), work.is_full()), (2, true));
        work.retired(2);
        assert_eq!((work.outstanding(), work.is_full()), (0, false));
        assert!(Work::new(0).is_full());
    }
}

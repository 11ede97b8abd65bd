//! What the owner of a queue pair keeps with a work request, and how it gets it back.

use super::Qp;
use crate::cq::{CompletedWork, Completion, SendCompletion};
use crate::platform::Bar;

/// What the owner keeps with a work request: two numbers of its own, given to the post, given back when the work request is done. Where
/// one is enough, posts take it alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Kept {
    /// Any number.
    pub cookie: u64,
    /// Any number in bits 63:8; bits 7:0 do not come back.
    pub note: u64,
}

impl From<u64> for Kept {
    #[inline(always)]
    fn from(cookie: u64) -> Self {
        Self { cookie, note: 0 }
    }
}

/// A work request that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Retired {
    /// What was kept with it.
    pub kept: Kept,
    /// Work requests that are done with it: itself, and those before it that have no completion of their own.
    pub count: u16,
}

impl<B: Bar> Qp<B> {
    /// Frees the slots that `completion` reports done and gives the cookie of its work request. In the send queue, earlier
    /// work requests without a completion of their own are freed with it; in the receive queue completions come in order. Receives
    /// from a shared queue are retired there: [`Srq::retire`](crate::Srq::retire).
    ///
    /// `None` (and a count in [`Qp::spurious_completions`]) if the completion names no outstanding work request of this queue
    /// pair.
    #[inline]
    pub fn retire(&mut self, completion: &Completion) -> Option<u64> {
        self.retire_kept(completion).map(|retired| retired.kept.cookie)
    }

    /// [`Qp::retire`], with all that was kept, and the number of work requests that are done.
    #[inline]
    pub fn retire_kept(&mut self, completion: &Completion) -> Option<Retired> {
        self.retire_work(completion.work())
    }

    /// [`Qp::retire`] for what [`Cq::poll_send`](crate::Cq::poll_send) gave.
    #[inline(always)]
    pub fn retire_send(&mut self, completion: &SendCompletion) -> Option<u64> {
        match self.retire_oldest(completion, |_| true) {
            Some(kept) => Some(kept.cookie),
            None => self.retire_sent(*completion),
        }
    }

    /// Retires the oldest work request of the send queue, if that is what `completion` reports done and if `accept` takes what is kept
    /// with it: the usual case where each has its completion. `None` if not, and nothing has happened: [`Qp::retire_kept`] tells.
    #[inline(always)]
    pub fn retire_oldest(
        &mut self,
        completion: &SendCompletion,
        accept: impl FnOnce(Kept) -> bool,
    ) -> Option<Kept> {
        if !completion.is_of(self.qpn_in_entry) {
            return None;
        }
        self.sq.retire_oldest(completion.wqe_counter(), accept)
    }

    /// A completion that is not of the oldest work request.
    #[cold]
    #[inline(never)]
    fn retire_sent(&mut self, completion: SendCompletion) -> Option<u64> {
        self.retire(&completion.into())
    }

    fn retire_work(&mut self, completion: CompletedWork) -> Option<Retired> {
        let retired = if completion.qpn() != self.number() {
            None
        } else if completion.is_send() {
            self.sq.retire(completion.wqe_counter())
        } else {
            self.rq.as_mut().and_then(|rq| rq.retire(completion))
        };
        if retired.is_none() {
            self.spurious = self.spurious.saturating_add(1);
        }
        retired
    }

    /// Retires the oldest work request of the send queue without a completion: for owners who know that the device is gone. `None` if
    /// none is outstanding.
    pub fn take_send(&mut self) -> Option<Kept> {
        self.sq.take_oldest()
    }

    /// The same for the oldest receive.
    pub fn take_recv(&mut self) -> Option<Kept> {
        self.rq.as_mut()?.take_oldest()
    }

    /// The cookie of the work request that `completion` reports done, which stays outstanding: for completions that were only
    /// [peeked](crate::Cq::peek) at.
    #[must_use]
    #[inline]
    pub fn cookie(&self, completion: &Completion) -> Option<u64> {
        self.kept(completion).map(|kept| kept.cookie)
    }

    /// [`Qp::cookie`], with all that is kept.
    #[must_use]
    #[inline]
    pub fn kept(&self, completion: &Completion) -> Option<Kept> {
        if completion.qpn() != self.number() {
            None
        } else if completion.is_send() {
            self.sq.find(completion.wqe_counter()).map(|(kept, _)| kept)
        } else {
            self.rq.as_ref().and_then(|rq| rq.find(completion.work())).map(|(kept, _)| kept)
        }
    }

    /// The index that the next work request of the send queue gets, in basic blocks, circular.
    #[must_use]
    #[inline]
    pub fn send_end(&self) -> u16 {
        self.sq.head
    }

    /// The index after the outstanding work request of the send queue that `completion` reports done: what [`Qp::send_end`] was after it
    /// was posted.
    #[must_use]
    pub fn end_of(&self, completion: &Completion) -> Option<u16> {
        if completion.qpn() != self.number() || !completion.is_send() {
            return None;
        }
        self.sq.find(completion.wqe_counter()).map(|(_, next)| next)
    }
}

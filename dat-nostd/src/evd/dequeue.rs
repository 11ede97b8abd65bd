//! `dat_evd_dequeue`: the oldest event of an EVD, from its CQ or its software queue. The hot path. DAT 1.2, event management.

use driver_mlx::{Bar, Cq, Platform};

use crate::adapter::Adapter;
use crate::adapter::objects::Tables;
use crate::adapter::part::Parts;
use crate::base::event::{Event, EventData, ReceiveDto};
use crate::base::handle::{EvdHandle, Typed};
use crate::base::ret::{DatResult, DatReturn};
use crate::ep::work::EpReceiver;
use crate::evd::completion::{take_receive, take_transfer};

/// The further receives of a run: see [`Adapter::evd_take_receives`].
pub struct ReceiveRun<'r, 'e, B: Bar> {
    cq: &'r mut Cq<B>,
    receiver: &'r mut EpReceiver<'e>,
    /// Events that the call may still take.
    left: &'r mut usize,
}

impl<B: Bar> Iterator for ReceiveRun<'_, '_, B> {
    type Item = ReceiveDto;

    #[inline(always)]
    fn next(&mut self) -> Option<ReceiveDto> {
        if *self.left == 0 {
            return None;
        }
        // A completion of another EP stays in its place.
        let receive = self.cq.poll_common(|cqe| self.receiver.retire(cqe)).flatten()?;
        *self.left -= 1;
        Some(receive)
    }
}

impl<'s, P: Platform> Adapter<'s, P> {
    /// `dat_evd_dequeue`. An EVD that takes completions looks at its CQ; if there is nothing, one call in 512 polls the adapter. Other
    /// EVDs poll the adapter if there is nothing, and look again.
    ///
    /// # Errors
    /// QUEUE_EMPTY (without class bits, see [`DatReturn::QUEUE_EMPTY`]); INVALID_HANDLE; INVALID_STATE while a wait is open or
    /// after an overflow.
    // One copy for all callers: where there are many the compiler makes functions of its parts.
    #[inline(never)]
    pub fn evd_dequeue(&mut self, evd: EvdHandle) -> DatResult<Event> {
        self.next_event::<false, _>(evd, true, |event| event)
    }

    /// Extension: as [`Adapter::evd_dequeue`], but where there is nothing the adapter is never polled for it: that is left to whoever
    /// polls it anyway. None also where the other call would be an error.
    #[inline(never)]
    pub fn evd_take(&mut self, evd: EvdHandle) -> Option<Event> {
        self.next_event::<true, _>(evd, false, Result::ok)
    }

    /// Extension: as [`Adapter::evd_dequeue`], for layers that make something else of what it returns: `wrap` does.
    #[inline]
    pub fn evd_dequeue_with<T>(&mut self, evd: EvdHandle, wrap: impl FnOnce(DatResult<Event>) -> T) -> T {
        self.next_event::<false, _>(evd, true, wrap)
    }

    /// Extension: takes events until there is none, or `most` were taken. `take` gets the receives that succeeded, in runs of one EP that
    /// are next to each other in the CQ: the first one, and an iterator over the others, of which those that it leaves begin the next
    /// run. Any other event ends the call and is returned beside the number of events, in which it counts. The adapter is not polled.
    ///
    /// `take` returns how many receives of the EP to post again. A receive that is posted again has the segments and the cookie of the
    /// receive one lap before. Nothing is posted if one of these entries was never used, or if the EP's limit allows no receive.
    ///
    /// A lap has `max_recv_dtos` receives, rounded up to a power of two. An entry has 16 bytes for each of `max_recv_iov` segments,
    /// rounded up in the same way, and a lap has at least 64 bytes.
    #[inline]
    pub fn evd_take_receives(
        &mut self,
        evd: EvdHandle,
        most: usize,
        mut take: impl FnMut(ReceiveDto, ReceiveRun<'_, '_, P::Bar>) -> usize,
    ) -> (usize, Option<Event>) {
        let mut left = most;
        let Parts { device, objects, .. } = self.parts();
        let Tables { evds, eps, .. } = objects.split();
        if let Ok(state) = evds.table_mut().get_mut(evd)
            && (state.is_on_fast_path() || state.find_fast_path(device.is_dead()))
            && let Some(cq) = &mut state.cq
        {
            let ended = loop {
                if left == 0 {
                    break true;
                }
                let first = cq.poll_common(|cqe| take_receive(eps, cqe));
                let Some(Some((mut receiver, first))) = first else { break first.is_none() };
                left -= 1;
                let again = take(first, ReceiveRun { cq, receiver: &mut receiver, left: &mut left });
                if again > 0 {
                    receiver.repost(again);
                }
            };
            state.looks.delivered(most - left);
            if ended {
                return (most - left, None);
            }
        }
        let other = self.next_other(evd, false, Result::ok);
        (most - left + usize::from(other.is_some()), other)
    }

    /// The oldest event. Most are transfers that ended well, straight from the CQ's entry; what is not is left to the cold part.
    // The event is wrapped in each part, so that it is put into memory once. `RUNS` is for consumers who suppress most completions: it
    // costs those who do not.
    #[inline(always)]
    fn next_event<const RUNS: bool, T>(
        &mut self,
        evd: EvdHandle,
        polls: bool,
        wrap: impl FnOnce(DatResult<Event>) -> T,
    ) -> T {
        let Parts { objects, progress, .. } = self.parts();
        let Tables { evds, eps, .. } = objects.split();
        if let Ok(state) = evds.table_mut().get_mut(evd)
            && state.is_on_fast_path()
        {
            let taken = match &mut state.cq {
                Some(cq) => cq.poll_common(|cqe| take_transfer::<RUNS, _>(eps, cqe)),
                // Events that the adapter brings: a dequeue that polls has to see to it.
                None if polls => Some(None),
                None => None,
            };
            match taken {
                Some(Some(done)) => {
                    state.looks.delivered(1);
                    return wrap(Ok(Event { evd, data: EventData::Dto(done) }));
                }
                None if !(polls && progress.is_poll_due()) => {
                    return wrap(Err(DatReturn::QUEUE_EMPTY));
                }
                _ => {}
            }
        }
        self.next_other(evd, polls, wrap)
    }

    #[cold]
    #[inline(never)]
    fn next_other<T>(&mut self, evd: EvdHandle, polls: bool, wrap: impl FnOnce(DatResult<Event>) -> T) -> T {
        let data = self.next_of_any_kind(evd, polls);
        wrap(data.and_then(|data| Ok(Event { evd, data: data.ok_or(DatReturn::QUEUE_EMPTY)? })))
    }

    /// The oldest event of an EVD.
    fn next_of_any_kind(&mut self, evd: EvdHandle, polls: bool) -> DatResult<Option<EventData>> {
        let data = self.dispatchers().next(evd)?;
        if data.is_some() || !polls {
            return Ok(data);
        }
        let now = self.device().now();
        let _ = self.poll(now);
        Ok(self.dispatchers().take(evd.any().slot()))
    }
}

//! Extensions: receives posted and taken several at a time, for consumers that exchange many short messages.

use crate::base::states::EpCall;
use driver_mlx::{Platform, Sge};

use crate::adapter::Adapter;
use crate::base::event::DtoOperation;
use crate::base::handle::{EpHandle, EvdHandle};
use crate::base::ret::DatResult;
use crate::base::types::MemPriv;
use crate::ep::work::Note;
use crate::mem::lmr::lmr_of;

/// A receive that ended well: what [`Adapter::evd_take_receives`] takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceivedDto {
    /// The consumer's cookie of the receive.
    pub user_cookie: u64,
    /// Bytes that arrived.
    pub length: u32,
}

impl<'s, P: Platform> Adapter<'s, P> {
    /// Extension: posts a receive of one segment of `length` bytes for each address and cookie, and tells the device of all of them at
    /// once. Gives how many were posted, the first so many: what is behind them is for [`Adapter::ep_post_recv`], which does the
    /// same one by one, or says why not. Where there is no more room nothing is taken from `receives`.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_STATE as for [`Adapter::ep_post_recv`]; PRIVILEGES_VIOLATION for a context that names no LMR.
    #[inline]
    pub fn ep_post_receives(
        &mut self,
        handle: EpHandle,
        lmr_context: u32,
        length: u32,
        receives: impl IntoIterator<Item = (u64, u64)>,
    ) -> DatResult<usize> {
        let ep = self.objects.eps.get_mut(handle)?;
        EpCall::PostRecv.in_state(ep.state())?;
        let lmr = lmr_of(&self.objects.lmrs, lmr_context)?;
        let writable = lmr.pd == ep.pd && lmr.privileges.contains(MemPriv::LOCAL_WRITE);
        if self.device.dead || !writable || u64::from(length) > lmr.length || ep.attributes.max_recv_iov == 0
        {
            return Ok(0);
        }
        let Some(qp) = &mut ep.qp else { return Ok(0) };
        let room = ep.receives.limit.saturating_sub(ep.receives.outstanding());
        let (start, last, lkey) = (lmr.start, lmr.length - u64::from(length), lmr.lkey);
        let tag = Note::new(length, DtoOperation::Receive, 0);
        let Some(mut batch) = qp.post_recvs() else { return Ok(0) };
        let mut room = u32::from(batch.room()).min(room);
        let mut receives = receives.into_iter();
        while room > 0
            && let Some((address, cookie)) = receives.next()
        {
            let sge = Sge { address, length, lkey };
            if address.wrapping_sub(start) > last || !batch.post(&sge, tag.with(cookie)) {
                break;
            }
            room -= 1;
        }
        let posted = batch.finish();
        ep.receives.posted_many(posted);
        Ok(usize::from(posted))
    }

    /// Extension: takes arrivals of messages from the head of an EVD and hands each to `take`: receives that ended well, without
    /// immediate data, as many as there are and at most `most`. Gives their number. 0 if the next event is any other or there is none:
    /// [`Adapter::evd_dequeue`] tells.
    #[inline(always)]
    pub fn evd_take_receives(
        &mut self,
        evd: EvdHandle,
        most: usize,
        mut take: impl FnMut(ReceivedDto),
    ) -> usize {
        let Ok(state) = self.objects.evds.get_mut(evd) else { return 0 };
        // Then no EP waits for its peer's first message, and a completion is nothing but a completion.
        let fast = state.is_on_fast_path() || state.find_fast_path();
        let Some(cq) = state.cq.as_mut().filter(|_| fast) else { return 0 };
        let mut count = 0;
        while count < most
            && let Some((wr_id, length)) = cq.poll_ordinary(|next| {
                let ep = self.objects.eps.at_mut(next.user_index() as u16)?;
                let retired = ep.qp.as_mut()?.retire_received(next)?;
                ep.receives.retired(1);
                Some(retired)
            })
        {
            // The device's claim is bounded by what was posted.
            let length = length.min(Note(wr_id.tag).length());
            take(ReceivedDto { user_cookie: wr_id.id, length });
            count += 1;
        }
        state.looks.delivered(count);
        count
    }
}

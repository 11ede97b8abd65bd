//! Extensions: a send of one segment without a list, several sends at a time, and atomic operations on the peer's memory. Not of DAT 1.2;
//! the rules of posts hold for them.

use driver_mlx::{Platform, RKey, SendOp, Sge};

use crate::adapter::Adapter;
use crate::base::event::DtoOperation;
use crate::base::handle::EpHandle;
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::types::{CompletionFlags, LmrTriplet, RmrTriplet};
use crate::ep::dto::{ORDINARY_FLAGS, RDMA_FLAGS, Request};
use crate::ep::work::{How, Note};
use crate::mem::lmr::lmr_of;

/// Bytes that an atomic operation is about.
const ATOMIC: u64 = 8;

/// One send of several: what [`Adapter::ep_post_sends`] posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendDto {
    /// Where the message begins, and its bytes there.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// Where it goes on, if it is of two segments.
    pub second_address: u64,
    /// Bytes.
    pub second_length: u32,
    /// As for [`Adapter::ep_post_send`].
    pub user_cookie: u64,
    /// As for [`Adapter::ep_post_send`].
    pub flags: CompletionFlags,
}

impl<'s, P: Platform> Adapter<'s, P> {
    /// Extension: as [`Adapter::ep_post_send`] of one segment, whose parts are given one by one: no list has to be put into memory.
    ///
    /// # Errors
    /// As [`Adapter::ep_post_send`].
    #[inline(always)]
    pub fn ep_post_send_segment(
        &mut self,
        ep: EpHandle,
        lmr_context: u32,
        (address, length): (u64, u64),
        user_cookie: u64,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        let segment = LmrTriplet::new(lmr_context, address, length);
        match self.post_ordinary(ep, &segment, user_cookie, flags, SendOp::Send, None) {
            Some(posted) => posted,
            None => self.post_segment_examined(ep, lmr_context, (address, length), user_cookie, flags),
        }
    }

    #[cold]
    #[inline(never)]
    fn post_segment_examined(
        &mut self,
        ep: EpHandle,
        lmr_context: u32,
        (address, length): (u64, u64),
        user_cookie: u64,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        self.ep_post_send(ep, &[LmrTriplet::new(lmr_context, address, length)], user_cookie, flags)
    }

    /// Extension: posts sends, and tells the device of all of them at once: of one segment in the region `lmr_context`, or of two, the
    /// second in the region `second`. Gives how many were posted, the first so many: the one behind them, if there was any, is for
    /// [`Adapter::ep_post_send`], which takes what is out of the ordinary, or says why not. Where there is no more room for
    /// requests nothing is taken from `sends`; one that is taken and not posted is the one behind them.
    ///
    /// # Errors
    /// INVALID_HANDLE; PRIVILEGES_VIOLATION for a context that names no LMR.
    #[inline]
    pub fn ep_post_sends(
        &mut self,
        handle: EpHandle,
        lmr_context: u32,
        second: Option<u32>,
        sends: impl IntoIterator<Item = SendDto>,
    ) -> DatResult<usize> {
        let ep = self.objects.eps.get_mut(handle)?;
        let (longest, reclaim_every) = (ep.lane.send, ep.reclaim_every);
        let first = lmr_of(&self.objects.lmrs, lmr_context)?;
        let other = second.map(|second| lmr_of(&self.objects.lmrs, second)).transpose()?;
        let (two, other) = (other.is_some(), other.unwrap_or(first));
        if first.pd != ep.pd || other.pd != ep.pd || two && ep.attributes.max_request_iov < 2 {
            return Ok(0);
        }
        let (mut posted, mut sends) = (0, sends.into_iter());
        while !ep.requests.is_full()
            && let Some(send) = sends.next()
        {
            let length = u64::from(send.length) + if two { u64::from(send.second_length) } else { 0 };
            let inside = first.has(send.address, send.length)
                && (!two || other.has(send.second_address, send.second_length));
            if !inside || length > longest || !ORDINARY_FLAGS.contains(send.flags) {
                break;
            }
            let sge = Sge { address: send.address, length: send.length, lkey: first.lkey };
            let beyond = Sge { address: send.second_address, length: send.second_length, lkey: other.lkey };
            let how = How::new(send.flags, ep.requests.head, reclaim_every);
            let wr_id = Note::new(length as u32, DtoOperation::Send, how.marks).with(send.user_cookie);
            if !ep.post_part(&sge, two.then_some(&beyond), wr_id, how) {
                break;
            }
            posted += 1;
        }
        if posted > 0 {
            ep.ring();
        }
        Ok(posted)
    }

    /// Extension: if the peer's 8 bytes are `compare`, they become `swap`; what they were comes into `local`. The numbers are in
    /// the byte order of the peer's processor.
    ///
    /// # Errors
    /// As [`Adapter::ep_post_rdma_read`]; LENGTH_ERROR unless both buffers are of 8 bytes; INVALID_PARAMETER for a target that is
    /// no multiple of 8; MODEL_NOT_SUPPORTED if the device has no atomics.
    #[allow(clippy::too_many_arguments)]
    pub fn ep_post_compare_swap(
        &mut self,
        ep: EpHandle,
        local: &LmrTriplet,
        user_cookie: u64,
        remote: &RmrTriplet,
        compare: u64,
        swap: u64,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        let rkey = RKey::new(remote.rmr_context);
        let op = SendOp::CompareSwap { raddr: remote.target_address, rkey, compare, swap };
        self.post_atomic(ep, local, user_cookie, remote, flags, op, DtoOperation::CompareSwap)
    }

    /// Extension: adds to the peer's 8 bytes; what they were before comes into `local`. The numbers are in the byte order of the
    /// peer's processor.
    ///
    /// # Errors
    /// As [`Adapter::ep_post_compare_swap`].
    pub fn ep_post_fetch_add(
        &mut self,
        ep: EpHandle,
        local: &LmrTriplet,
        user_cookie: u64,
        remote: &RmrTriplet,
        add: u64,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        let rkey = RKey::new(remote.rmr_context);
        let op = SendOp::FetchAdd { raddr: remote.target_address, rkey, add };
        self.post_atomic(ep, local, user_cookie, remote, flags, op, DtoOperation::FetchAdd)
    }

    #[allow(clippy::too_many_arguments)]
    fn post_atomic(
        &mut self,
        ep: EpHandle,
        local: &LmrTriplet,
        user_cookie: u64,
        remote: &RmrTriplet,
        flags: CompletionFlags,
        op: SendOp,
        operation: DtoOperation,
    ) -> DatResult<()> {
        self.objects.eps.get(ep)?;
        if !self.device.hca.caps().atomic {
            return Err(DatReturn::new(ReturnType::ModelNotSupported));
        }
        if local.segment_length != ATOMIC || remote.segment_length != ATOMIC {
            return Err(DatReturn::new(ReturnType::LengthError));
        }
        if !remote.target_address.is_multiple_of(ATOMIC) {
            return Err(DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg4));
        }
        let request = Request {
            op,
            operation,
            allowed: RDMA_FLAGS,
            flags_argument: Subtype::InvalidArg5,
            remote_length: Some(ATOMIC),
        };
        self.post_request(ep, core::slice::from_ref(local), user_cookie, flags, request)
    }
}

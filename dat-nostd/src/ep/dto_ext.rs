//! Extensions: several sends or receives at a time, and atomic operations on the peer's memory. Not of DAT 1.2; the rules of posts hold
//! for them.

use driver_mlx::{Platform, RKey, SendOp};

use crate::adapter::Adapter;
use crate::adapter::objects::Tables;
use crate::adapter::part::Parts;
use crate::base::handle::EpHandle;
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::states::EpCall;
use crate::base::types::{CompletionFlags, LmrTriplet, RmrTriplet};
use crate::ep::post::Post;
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
    /// Extension: posts sends, and tells the device of all of them at once: of one segment in the region `lmr_context`, or of two, the
    /// second in the region `second`. Returns how many were posted, the first so many: the one behind them, if there was any, is for
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
        let Tables { eps, lmrs, .. } = self.objects_mut().split();
        let ep = eps.get_mut(handle)?;
        // Once, because a run has many sends.
        let first = lmr_of(lmrs, lmr_context)?;
        let second = second.map(|context| lmr_of(lmrs, context)).transpose()?;
        if 1 + usize::from(second.is_some()) > ep.attributes.max_request_iov as usize {
            return Ok(0);
        }
        let (mut posted, mut newest, mut sends) = (0, None, sends.into_iter());
        while !ep.requests.is_full()
            && let Some(send) = sends.next()
        {
            let SendDto { user_cookie, flags, .. } = send;
            let head = LmrTriplet::new(first.context(), send.address, send.length.into());
            // Two calls, because the compiler keeps a known number of segments in registers.
            let doorbell = match second {
                None => ep.post_of_run([first], [head], user_cookie, flags),
                Some(second) => {
                    let length = send.second_length.into();
                    let rest = LmrTriplet::new(second.context(), send.second_address, length);
                    ep.post_of_run([first, second], [head, rest], user_cookie, flags)
                }
            };
            let Ok(doorbell) = doorbell else { break };
            newest = doorbell;
            posted += 1;
        }
        if let Some(doorbell) = newest {
            ep.ring(doorbell);
        }
        Ok(posted)
    }

    /// Extension: posts a receive of one segment of `length` bytes for each address and cookie. Returns how many were posted, the first so
    /// many: what is behind them is for [`Adapter::ep_post_recv`], which does the same one by one, or says why not. Where there is
    /// no more room nothing is taken from `receives`.
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
        let Parts { device, objects, .. } = self.parts();
        let Tables { eps, lmrs, .. } = objects.split();
        let ep = eps.get_mut(handle)?;
        EpCall::PostRecv.in_state(ep.state())?;
        let lmr = lmr_of(lmrs, lmr_context)?;
        Ok(if device.is_dead() { 0 } else { ep.post_recvs(lmr, length, receives) })
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
        self.post_atomic(ep, local, user_cookie, remote, flags, op)
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
        self.post_atomic(ep, local, user_cookie, remote, flags, op)
    }

    fn post_atomic(
        &mut self,
        ep: EpHandle,
        local: &LmrTriplet,
        user_cookie: u64,
        remote: &RmrTriplet,
        flags: CompletionFlags,
        op: SendOp,
    ) -> DatResult<()> {
        self.objects().get(ep)?;
        if !self.device().hca().caps().atomic {
            return Err(DatReturn::new(ReturnType::ModelNotSupported));
        }
        if local.segment_length != ATOMIC || remote.segment_length != ATOMIC {
            return Err(DatReturn::new(ReturnType::LengthError));
        }
        if !remote.target_address.is_multiple_of(ATOMIC) {
            return Err(DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg4));
        }
        let iov = core::slice::from_ref(local);
        self.post(ep, &Post { op, iov, remote_length: Some(ATOMIC), user_cookie, flags })
    }
}

//! Extensions: a send of one segment without a list, and atomic operations on the peer's memory. Not of DAT 1.2; the rules of posts
//! hold for them.

use driver_mlx::{Platform, RKey, SendOp};

use crate::adapter::Adapter;
use crate::base::event::DtoOperation;
use crate::base::handle::EpHandle;
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::types::{CompletionFlags, LmrTriplet, RmrTriplet};
use crate::ep::dto::{RDMA_FLAGS, Request};

/// Bytes that an atomic operation is about.
const ATOMIC: u64 = 8;

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

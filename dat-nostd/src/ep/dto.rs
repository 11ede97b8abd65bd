//! Posts: send, receive, RDMA read and write. DAT 1.2, data transfer operations. The hot path.

use crate::base::states::EpCall;
use driver_mlx::{LKey, Pd, Platform, PostError, RKey, SendFlags, SendOp, Sge};

use crate::adapter::Adapter;
use crate::base::event::DtoOperation;
use crate::base::handle::{EpHandle, LmrHandle};
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::table::Table;
use crate::base::types::{CompletionFlags, EpState, LmrTriplet, RmrTriplet};
use crate::ep::endpoint::MAX_IOV;
use crate::ep::work::Note;
use crate::mem::lmr::{Lmr, lmr_of};

const NO_SGE: Sge = Sge { address: 0, length: 0, lkey: LKey::new(0) };

/// Flags of sends; the other requests lack SOLICITED_WAIT.
const SEND_FLAGS: CompletionFlags = CompletionFlags::SUPPRESS
    .union(CompletionFlags::SOLICITED_WAIT)
    .union(CompletionFlags::UNSIGNALLED)
    .union(CompletionFlags::BARRIER_FENCE);
pub(crate) const RDMA_FLAGS: CompletionFlags = SEND_FLAGS.difference(CompletionFlags::SOLICITED_WAIT);

/// A request as the hot path takes it.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) op: SendOp,
    pub(crate) operation: DtoOperation,
    pub(crate) allowed: CompletionFlags,
    /// The argument that has the flags.
    pub(crate) flags_argument: Subtype,
    /// Bytes of the remote buffer; none for sends.
    pub(crate) remote_length: Option<u64>,
}

/// Local segments in the form of the device, at most `N`.
pub(crate) struct Gather<const N: usize> {
    sges: [Sge; N],
    count: usize,
    /// Bytes of all.
    pub(crate) total: u64,
}

/// Whether requests may be posted. The state that they are made for is asked first.
#[inline(always)]
fn may_request(state: EpState) -> Result<(), DatReturn> {
    if state == EpState::Connected { Ok(()) } else { EpCall::PostRequest.in_state(state).map(|_| ()) }
}

fn flags_error(argument: Subtype) -> DatReturn {
    DatReturn::error(ReturnType::InvalidParameter, argument)
}

pub(crate) fn post_error(error: PostError) -> DatReturn {
    match error {
        PostError::Full => DatReturn::new(ReturnType::InsufficientResources),
        PostError::TooManySges => DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg2),
        PostError::TooLong => DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg3),
        PostError::WrongService => DatReturn::new(ReturnType::InternalError),
    }
}

/// The segments of a post, at most `max_iov`, checked: each lies inside its region, in the zone `pd`, and may be written if it is to be.
/// Of a segment of length 0 nothing else is looked at.
#[inline(always)]
pub(crate) fn gather<const N: usize>(
    lmrs: &Table<'_, LmrHandle, Lmr>,
    iov: &[LmrTriplet],
    max_iov: u32,
    pd: Pd,
    writes: bool,
) -> Result<Gather<N>, DatReturn> {
    if iov.len() > max_iov as usize || iov.len() > N {
        return Err(flags_error(Subtype::InvalidArg2));
    }
    let mut out = Gather { sges: [NO_SGE; N], count: iov.len(), total: 0 };
    for (sge, triplet) in out.sges.iter_mut().zip(iov) {
        if triplet.segment_length == 0 {
            continue;
        }
        *sge = lmr_of(lmrs, triplet.lmr_context)?.sge(triplet, pd, writes)?;
        // Each is at most its region, so a few of them do not overflow.
        out.total = out.total.saturating_add(triplet.segment_length);
    }
    Ok(out)
}

impl<const N: usize> Gather<N> {
    #[inline(always)]
    pub(crate) fn slice(&self) -> &[Sge] {
        self.sges.get(..self.count).unwrap_or_default()
    }

    /// Cuts the segments to `length` bytes in all.
    #[cold]
    fn cut(&mut self, length: u64) {
        let mut left = length;
        for sge in self.sges.iter_mut().take(self.count) {
            sge.length = left.min(u64::from(sge.length)) as u32;
            left -= u64::from(sge.length);
        }
        self.total = length;
    }
}

impl<'s, P: Platform> Adapter<'s, P> {
    /// `dat_ep_post_send`.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_STATE unless connected or disconnected; INSUFFICIENT_RESOURCES if `max_request_dtos` are
    /// outstanding; INVALID_PARAMETER (too many segments, a segment outside its LMR, too long, flags);
    /// PROTECTION_VIOLATION; PRIVILEGES_VIOLATION for a context that names no LMR.
    #[inline]
    pub fn ep_post_send(
        &mut self,
        ep: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        self.post_send_op(ep, iov, user_cookie, flags, SendOp::Send)
    }

    /// Extension: send with immediate data, which the peer's receive completion carries.
    ///
    /// # Errors
    /// As [`Adapter::ep_post_send`].
    pub fn ep_post_send_immediate(
        &mut self,
        ep: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        immediate: u32,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        self.post_send_op(ep, iov, user_cookie, flags, SendOp::SendImm(immediate))
    }

    /// Extension: send that kills the peer's `rmr_context`.
    ///
    /// # Errors
    /// As [`Adapter::ep_post_send`].
    pub fn ep_post_send_invalidate(
        &mut self,
        ep: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        rmr_context: u32,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        self.post_send_op(ep, iov, user_cookie, flags, SendOp::SendInval(RKey::new(rmr_context)))
    }

    #[inline(always)]
    fn post_send_op(
        &mut self,
        ep: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        flags: CompletionFlags,
        op: SendOp,
    ) -> DatResult<()> {
        let operation = DtoOperation::Send;
        let request = Request {
            op,
            operation,
            allowed: SEND_FLAGS,
            flags_argument: Subtype::InvalidArg5,
            remote_length: None,
        };
        self.post_request(ep, iov, user_cookie, flags, request)
    }

    /// `dat_ep_post_rdma_write`.
    ///
    /// # Errors
    /// As [`Adapter::ep_post_send`]; LENGTH_ERROR if the remote buffer is shorter than the local ones.
    #[inline]
    pub fn ep_post_rdma_write(
        &mut self,
        ep: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        remote: &RmrTriplet,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        let op = SendOp::Write { raddr: remote.target_address, rkey: RKey::new(remote.rmr_context) };
        self.post_write(ep, iov, user_cookie, remote, flags, op)
    }

    /// Extension: RDMA write that then takes a receive of the peer and hands it `immediate`.
    ///
    /// # Errors
    /// As [`Adapter::ep_post_rdma_write`].
    pub fn ep_post_rdma_write_immediate(
        &mut self,
        ep: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        remote: &RmrTriplet,
        immediate: u32,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        let rkey = RKey::new(remote.rmr_context);
        let op = SendOp::WriteImm { raddr: remote.target_address, rkey, imm: immediate };
        self.post_write(ep, iov, user_cookie, remote, flags, op)
    }

    #[inline(always)]
    fn post_write(
        &mut self,
        ep: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        remote: &RmrTriplet,
        flags: CompletionFlags,
        op: SendOp,
    ) -> DatResult<()> {
        let request = Request {
            op,
            operation: DtoOperation::RdmaWrite,
            allowed: if matches!(op, SendOp::WriteImm { .. }) { SEND_FLAGS } else { RDMA_FLAGS },
            flags_argument: Subtype::InvalidArg6,
            remote_length: Some(remote.segment_length),
        };
        self.post_request(ep, iov, user_cookie, flags, request)
    }

    /// `dat_ep_post_rdma_read`: all of the remote buffer into the local segments, in order.
    ///
    /// # Errors
    /// As [`Adapter::ep_post_send`]; LENGTH_ERROR if the local segments are shorter than the remote buffer;
    /// PRIVILEGES_VIOLATION for a local segment without local write.
    #[inline]
    pub fn ep_post_rdma_read(
        &mut self,
        ep: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        remote: &RmrTriplet,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        let request = Request {
            op: SendOp::Read { raddr: remote.target_address, rkey: RKey::new(remote.rmr_context) },
            operation: DtoOperation::RdmaRead,
            allowed: RDMA_FLAGS,
            flags_argument: Subtype::InvalidArg6,
            remote_length: Some(remote.segment_length),
        };
        self.post_request(ep, iov, user_cookie, flags, request)
    }

    #[inline(always)]
    pub(crate) fn post_request(
        &mut self,
        handle: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        flags: CompletionFlags,
        request: Request,
    ) -> DatResult<()> {
        // One segment is what most posts have: no array for the others is prepared.
        if iov.len() == 1 {
            self.post_gathered::<1>(handle, iov, user_cookie, flags, request)
        } else {
            self.post_several(handle, iov, user_cookie, flags, request)
        }
    }

    #[cold]
    #[inline(never)]
    fn post_several(
        &mut self,
        handle: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        flags: CompletionFlags,
        request: Request,
    ) -> DatResult<()> {
        self.post_gathered::<MAX_IOV>(handle, iov, user_cookie, flags, request)
    }

    /// Every request goes this way: handle, state, room, flags, segments and lengths are checked here, and nowhere else.
    #[inline(always)]
    fn post_gathered<const N: usize>(
        &mut self,
        handle: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        flags: CompletionFlags,
        request: Request,
    ) -> DatResult<()> {
        let mut ep = self.objects.eps.get_mut(handle)?;
        may_request(ep.state())?;
        if ep.requests.is_full() {
            self.reclaim(handle)?;
            ep = self.objects.eps.get_mut(handle)?;
        }
        let mut how = How { send_flags: SendFlags::SIGNALED, marks: 0, suppressed: 0 };
        if !flags.is_empty() {
            let attribute = ep.attributes.request_completion_flags;
            check_flags(flags, request.allowed, attribute, request.flags_argument)?;
            how = How::new(flags, ep.suppressed + 1 < ep.reclaim_every, ep.suppressed);
        }
        // The data comes here: reads, and atomics, which bring what was there.
        let read = request.operation as u8 >= DtoOperation::RdmaRead as u8;
        let max_iov = match request.operation {
            DtoOperation::RdmaRead | DtoOperation::CompareSwap | DtoOperation::FetchAdd => {
                ep.attributes.max_rdma_read_iov
            }
            DtoOperation::RdmaWrite => ep.attributes.max_rdma_write_iov,
            DtoOperation::Send | DtoOperation::Receive => ep.attributes.max_request_iov,
        };
        let mut gather = gather::<N>(&self.objects.lmrs, iov, max_iov, ep.pd, read)?;
        if let Some(remote_length) = request.remote_length {
            let fits = if read { gather.total >= remote_length } else { gather.total <= remote_length };
            if !fits || (if read { remote_length } else { gather.total }) > ep.max_rdma {
                return Err(DatReturn::new(ReturnType::LengthError));
            }
            if read && gather.total > remote_length {
                gather.cut(remote_length);
            }
        } else if gather.total > ep.max_message {
            return Err(flags_error(Subtype::InvalidArg3));
        }
        let connected = ep.state() == EpState::Connected;
        let Some(qp) = &mut ep.qp else { return Err(DatReturn::new(ReturnType::InternalError)) };
        let wr_id = Note::new(gather.total as u32, request.operation, how.marks).with(user_cookie);
        qp.post_send(request.op, gather.slice(), wr_id, how.send_flags).map_err(post_error)?;
        // A device that is gone flushes nothing: we do, what is in the queue. Nothing is connected then any more.
        if connected || !self.device.dead {
            qp.ring();
        }
        ep.requests.posted();
        ep.suppressed = how.suppressed;
        Ok(())
    }

    /// `dat_ep_post_recv`. Legal in every state; on a disconnected EP the receive is flushed at once.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_STATE (EP_NOTREADY) without a protection zone; INSUFFICIENT_RESOURCES if `max_recv_dtos` are
    /// outstanding; INVALID_PARAMETER; PROTECTION_VIOLATION; PRIVILEGES_VIOLATION without local write.
    #[inline]
    pub fn ep_post_recv(
        &mut self,
        handle: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        if iov.len() == 1 {
            self.post_recv_gathered::<1>(handle, iov, user_cookie, flags)
        } else {
            self.post_recv_several(handle, iov, user_cookie, flags)
        }
    }

    #[cold]
    #[inline(never)]
    fn post_recv_several(
        &mut self,
        handle: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        self.post_recv_gathered::<MAX_IOV>(handle, iov, user_cookie, flags)
    }

    #[inline(always)]
    fn post_recv_gathered<const N: usize>(
        &mut self,
        handle: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        let ep = self.objects.eps.get_mut(handle)?;
        EpCall::PostRecv.in_state(ep.state())?;
        if !flags.is_empty() {
            let attribute = ep.attributes.recv_completion_flags;
            check_flags(flags, CompletionFlags::UNSIGNALLED, attribute, Subtype::InvalidArg5)?;
        }
        let gather = gather::<N>(&self.objects.lmrs, iov, ep.attributes.max_recv_iov, ep.pd, true)?;
        if ep.receives.is_full() {
            // Receives of an EP on an SRQ are posted there.
            return Err(match ep.srq {
                Some(_) => ep.state().invalid(),
                None => DatReturn::new(ReturnType::InsufficientResources),
            });
        }
        let Some(qp) = &mut ep.qp else {
            return Err(DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStateEpNotready));
        };
        let marks = if flags.contains(CompletionFlags::UNSIGNALLED) { Note::UNSIGNALLED } else { 0 };
        let length = gather.total.min(u64::from(u32::MAX)) as u32;
        let wr_id = Note::new(length, DtoOperation::Receive, marks).with(user_cookie);
        qp.post_recv(gather.slice(), wr_id).map_err(post_error)?;
        ep.receives.posted();
        Ok(())
    }

    /// Makes sure that one more request may be outstanding, or INSUFFICIENT_RESOURCES.
    pub(crate) fn make_request_room(&mut self, handle: EpHandle) -> DatResult<()> {
        let ep = self.objects.eps.get(handle)?;
        if ep.requests.is_full() { self.reclaim(handle) } else { Ok(()) }
    }

    /// Takes suppressed completions from the head of the request EVD's CQ, so that a run of suppressed requests goes on
    /// without anybody dequeuing. INSUFFICIENT_RESOURCES if there is still no room. Nothing else happens: a post never waits.
    #[cold]
    fn reclaim(&mut self, handle: EpHandle) -> DatResult<()> {
        const FULL: DatReturn = DatReturn::new(ReturnType::InsufficientResources);
        let ep = self.objects.eps.get(handle)?;
        let evd = ep.request_evd.ok_or(FULL)?;
        self.drop_silent(evd);
        let ep = self.objects.eps.get(handle)?;
        if ep.requests.is_full() { Err(FULL) } else { Ok(()) }
    }
}

/// How the flags of a request have it carried out.
#[derive(Clone, Copy)]
struct How {
    send_flags: SendFlags,
    marks: u64,
    /// Requests without a completion in a row, this one included.
    suppressed: u32,
}

impl How {
    /// `may_suppress`: every so often one completes visibly to us, so that the slots of those before it come back.
    #[inline]
    fn new(flags: CompletionFlags, may_suppress: bool, suppressed: u32) -> Self {
        let mut how = Self { send_flags: SendFlags::SIGNALED, marks: 0, suppressed: 0 };
        how.send_flags.set(SendFlags::SOLICITED, flags.contains(CompletionFlags::SOLICITED_WAIT));
        how.send_flags.set(SendFlags::FENCE, flags.contains(CompletionFlags::BARRIER_FENCE));
        if flags.contains(CompletionFlags::UNSIGNALLED) {
            how.marks |= Note::UNSIGNALLED;
        }
        if flags.contains(CompletionFlags::SUPPRESS) {
            how.marks |= Note::SUPPRESS;
            if may_suppress {
                how.send_flags.remove(SendFlags::SIGNALED);
                how.suppressed = suppressed + 1;
            }
        }
        how
    }
}

/// Whether a post may have these flags: `allowed` ones, and UNSIGNALLED only if the EP's attribute says so.
#[inline]
pub(crate) fn check_flags(
    flags: CompletionFlags,
    allowed: CompletionFlags,
    attribute: CompletionFlags,
    argument: Subtype,
) -> Result<(), DatReturn> {
    let unsignalled_ok =
        !flags.contains(CompletionFlags::UNSIGNALLED) || attribute.contains(CompletionFlags::UNSIGNALLED);
    if allowed.contains(flags) && unsignalled_ok { Ok(()) } else { Err(flags_error(argument)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_follow_the_attribute() {
        let none = CompletionFlags::empty();
        let threshold = CompletionFlags::EVD_THRESHOLD;
        let unsignalled = CompletionFlags::UNSIGNALLED;
        let suppress = CompletionFlags::SUPPRESS;
        assert!(check_flags(suppress, SEND_FLAGS, threshold, Subtype::InvalidArg5).is_ok());
        assert!(check_flags(unsignalled, SEND_FLAGS, threshold, Subtype::InvalidArg5).is_err());
        assert!(check_flags(unsignalled, SEND_FLAGS, unsignalled, Subtype::InvalidArg5).is_ok());
        assert!(check_flags(suppress | unsignalled, SEND_FLAGS, suppress, Subtype::InvalidArg5).is_err());
        assert!(check_flags(suppress | unsignalled, SEND_FLAGS, unsignalled, Subtype::InvalidArg5).is_ok());
        assert!(check_flags(suppress | unsignalled, SEND_FLAGS, none, Subtype::InvalidArg5).is_err());
        assert!(
            check_flags(CompletionFlags::SOLICITED_WAIT, RDMA_FLAGS, none, Subtype::InvalidArg5).is_err()
        );
        assert!(check_flags(CompletionFlags::SOLICITED_WAIT, SEND_FLAGS, none, Subtype::InvalidArg5).is_ok());
        assert!(check_flags(threshold, SEND_FLAGS, none, Subtype::InvalidArg5).is_err());
        assert!(check_flags(suppress, CompletionFlags::UNSIGNALLED, none, Subtype::InvalidArg5).is_err());
        let code = check_flags(unsignalled, RDMA_FLAGS, none, Subtype::InvalidArg5).unwrap_err();
        assert!(code.is(ReturnType::InvalidParameter));
    }

    #[test]
    fn a_read_fills_the_front_segments() {
        let sge = |length| Sge { address: 0, length, lkey: LKey::new(1) };
        let mut gather = Gather::<4> { sges: [sge(100), sge(100), sge(100), NO_SGE], count: 3, total: 300 };
        gather.cut(150);
        assert_eq!(gather.slice().iter().map(|sge| sge.length).collect::<std::vec::Vec<_>>(), [100, 50, 0]);
        assert_eq!(gather.total, 150);
    }
}

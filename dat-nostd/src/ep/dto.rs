//! Posts: send, receive, RDMA read and write. DAT 1.2, data transfer operations. The hot path.

use crate::base::states::{EP_CALLS, Effect, EpCall};
use driver_mlx::{LKey, Pd, Platform, RKey, SendOp, Sge};

use crate::adapter::Adapter;
use crate::base::event::DtoOperation;
use crate::base::handle::{EpHandle, LmrHandle};
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::table::Table;
use crate::base::types::{CompletionFlags, EpState, LmrTriplet, MemPriv, RmrTriplet};
use crate::ep::endpoint::MAX_IOV;
use crate::ep::work::{How, Note};
use crate::mem::lmr::{Lmr, lmr_of};

const NO_SGE: Sge = Sge { address: 0, length: 0, lkey: LKey::new(0) };

/// Flags of sends; the other requests lack SOLICITED_WAIT.
const SEND_FLAGS: CompletionFlags = CompletionFlags::SUPPRESS
    .union(CompletionFlags::SOLICITED_WAIT)
    .union(CompletionFlags::UNSIGNALLED)
    .union(CompletionFlags::BARRIER_FENCE);
pub(crate) const RDMA_FLAGS: CompletionFlags = SEND_FLAGS.difference(CompletionFlags::SOLICITED_WAIT);

/// Flags that most requests have none but.
pub(crate) const ORDINARY_FLAGS: CompletionFlags =
    CompletionFlags::SUPPRESS.union(CompletionFlags::SOLICITED_WAIT);

/// Receives are posted in every state, so that nobody asks for it.
const _: () = {
    let mut state = 0;
    while state < EP_CALLS[EpCall::PostRecv as usize].len() {
        assert!(!matches!(EP_CALLS[EpCall::PostRecv as usize][state], Effect::Refuse));
        state += 1;
    }
};

/// A request as it is examined.
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

fn flags_error(argument: Subtype) -> DatReturn {
    DatReturn::error(ReturnType::InvalidParameter, argument)
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
        let posted = match iov {
            [segment] => self.post_ordinary(ep, segment, user_cookie, flags, SendOp::Send, None),
            _ => None,
        };
        match posted {
            Some(posted) => posted,
            None => self.post_send_examined(ep, iov, user_cookie, flags),
        }
    }

    #[cold]
    #[inline(never)]
    fn post_send_examined(
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
    #[inline(always)]
    pub fn ep_post_rdma_write(
        &mut self,
        ep: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        remote: &RmrTriplet,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        let op = SendOp::Write { raddr: remote.target_address, rkey: RKey::new(remote.rmr_context) };
        let length = Some(remote.segment_length);
        let posted = match iov {
            [segment] => self.post_ordinary(ep, segment, user_cookie, flags, op, length),
            _ => None,
        };
        match (posted, iov) {
            (Some(posted), _) => posted,
            (None, [segment]) => self.post_write_examined(ep, segment, user_cookie, remote, flags),
            (None, _) => self.post_write_gathered(ep, iov, user_cookie, remote, flags),
        }
    }

    #[cold]
    #[inline(never)]
    fn post_write_gathered(
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

    /// With no argument more than there are registers for: the ordinary path would have a stack frame for it.
    #[cold]
    #[inline(never)]
    fn post_write_examined(
        &mut self,
        ep: EpHandle,
        segment: &LmrTriplet,
        user_cookie: u64,
        remote: &RmrTriplet,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        self.post_write_gathered(ep, core::slice::from_ref(segment), user_cookie, remote, flags)
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

    /// The checks of an ordinary send or RDMA write: one segment, on a connection, with room. Each is a comparison with what the objects
    /// hold ready. None if one of them says no, and nothing has happened: [`Adapter::post_request`] examines what is unusual, or wrong
    /// with it.
    #[inline(always)]
    pub(crate) fn post_ordinary(
        &mut self,
        handle: EpHandle,
        segment: &LmrTriplet,
        user_cookie: u64,
        flags: CompletionFlags,
        op: SendOp,
        remote_length: Option<u64>,
    ) -> Option<DatResult<()>> {
        let ep = self.objects.eps.get_mut(handle).ok()?;
        if ep.requests.is_at_limit() || !ORDINARY_FLAGS.contains(flags) {
            return None;
        }
        let (longest, operation) = match remote_length {
            Some(_) => (ep.lane.write, DtoOperation::RdmaWrite),
            None => (ep.lane.send, DtoOperation::Send),
        };
        let length = segment.segment_length;
        if length > longest
            || remote_length
                .is_some_and(|remote| length > remote || flags.contains(CompletionFlags::SOLICITED_WAIT))
        {
            return None;
        }
        let sge = self.objects.lmrs.at(segment.lmr_context as u16)?.sge_of(segment, ep.pd)?;
        let how = How::new(flags, ep.requests.head, ep.reclaim_every);
        let wr_id = Note::new(sge.length, operation, how.marks).with(user_cookie);
        ep.post_ordinary(op, &sge, wr_id, how).then_some(Ok(()))
    }

    /// Examines and posts any request: handle, state, room, flags, segments and lengths.
    pub(crate) fn post_request(
        &mut self,
        handle: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        flags: CompletionFlags,
        request: Request,
    ) -> DatResult<()> {
        let mut ep = self.objects.eps.get_mut(handle)?;
        EpCall::PostRequest.in_state(ep.state())?;
        if ep.requests.is_full() {
            self.reclaim(handle)?;
            ep = self.objects.eps.get_mut(handle)?;
        }
        if !flags.is_empty() {
            let attribute = ep.attributes.request_completion_flags;
            check_flags(flags, request.allowed, attribute, request.flags_argument)?;
        }
        let how = How::new(flags, ep.requests.head, ep.reclaim_every);
        // The data comes here: reads, and atomics, which bring what was there.
        let read = request.operation as u8 >= DtoOperation::RdmaRead as u8;
        let max_iov = match request.operation {
            DtoOperation::RdmaRead | DtoOperation::CompareSwap | DtoOperation::FetchAdd => {
                ep.attributes.max_rdma_read_iov
            }
            DtoOperation::RdmaWrite => ep.attributes.max_rdma_write_iov,
            DtoOperation::Send | DtoOperation::Receive => ep.attributes.max_request_iov,
        };
        let mut gather = gather::<MAX_IOV>(&self.objects.lmrs, iov, max_iov, ep.pd, read)?;
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
        let wr_id = Note::new(gather.total as u32, request.operation, how.marks).with(user_cookie);
        // A device that is gone flushes nothing: we do, what is in the queue. Nothing is connected then any more.
        let rings = ep.state() == EpState::Connected || !self.device.dead;
        ep.post(request.op, gather.slice(), wr_id, how, rings)
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
        match self.post_recv_ordinary(handle, iov, user_cookie, flags) {
            Some(posted) => posted,
            None => self.post_recv_examined(handle, iov, user_cookie, flags),
        }
    }

    /// The checks of an ordinary receive, as [`Adapter::post_ordinary`] has those of a request.
    #[inline(always)]
    fn post_recv_ordinary(
        &mut self,
        handle: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        flags: CompletionFlags,
    ) -> Option<DatResult<()>> {
        let [segment] = iov else { return None };
        let ep = self.objects.eps.get_mut(handle).ok()?;
        if !flags.is_empty() || ep.receives.is_at_limit() || segment.segment_length > ep.lane.receive {
            return None;
        }
        let lmr = self.objects.lmrs.at(segment.lmr_context as u16)?;
        if !lmr.privileges.contains(MemPriv::LOCAL_WRITE) {
            return None;
        }
        let sge = lmr.sge_of(segment, ep.pd)?;
        let wr_id = Note::new(sge.length, DtoOperation::Receive, 0).with(user_cookie);
        ep.post_recv_ordinary(&sge, wr_id).then_some(Ok(()))
    }

    /// Examines and posts any receive.
    #[cold]
    #[inline(never)]
    fn post_recv_examined(
        &mut self,
        handle: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        let ep = self.objects.eps.get_mut(handle)?;
        EpCall::PostRecv.in_state(ep.state())?;
        // No segment can be of the zone that the EP does not have: one code, with and without
        // segments.
        if ep.pz.is_none() {
            return Err(DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStateEpNotready));
        }
        if !flags.is_empty() {
            let attribute = ep.attributes.recv_completion_flags;
            check_flags(flags, CompletionFlags::UNSIGNALLED, attribute, Subtype::InvalidArg5)?;
        }
        let gather = gather::<MAX_IOV>(&self.objects.lmrs, iov, ep.attributes.max_recv_iov, ep.pd, true)?;
        if ep.receives.is_full() {
            // Receives of an EP on an SRQ are posted there.
            return Err(match ep.srq {
                Some(_) => ep.state().invalid(),
                None => DatReturn::new(ReturnType::InsufficientResources),
            });
        }
        let marks = if flags.contains(CompletionFlags::UNSIGNALLED) { Note::UNSIGNALLED } else { 0 };
        let length = gather.total.min(u64::from(u32::MAX)) as u32;
        let wr_id = Note::new(length, DtoOperation::Receive, marks).with(user_cookie);
        ep.post_recv(gather.slice(), wr_id)
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

/// Whether a post may have these flags: `allowed` ones, and UNSIGNALLED only if the EP's attribute says so, or beside SUPPRESS, to which it
/// adds nothing: NetPIPE posts both.
#[inline]
pub(crate) fn check_flags(
    flags: CompletionFlags,
    allowed: CompletionFlags,
    attribute: CompletionFlags,
    argument: Subtype,
) -> Result<(), DatReturn> {
    let unsignalled_ok = !flags.contains(CompletionFlags::UNSIGNALLED)
        || flags.contains(CompletionFlags::SUPPRESS)
        || attribute.contains(CompletionFlags::UNSIGNALLED);
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
        assert!(check_flags(suppress | unsignalled, SEND_FLAGS, suppress, Subtype::InvalidArg5).is_ok());
        assert!(check_flags(suppress | unsignalled, SEND_FLAGS, unsignalled, Subtype::InvalidArg5).is_ok());
        assert!(check_flags(suppress | unsignalled, SEND_FLAGS, none, Subtype::InvalidArg5).is_ok());
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

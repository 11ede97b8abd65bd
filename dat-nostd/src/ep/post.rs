//! From a post call to the queue pair: the one way of requests, and that of receives. The hot path.

use driver_mlx::{Bar, Doorbell, LKey, Pd, RKey, SendOp, Sge, WrId};

use crate::base::event::DtoOperation;
use crate::base::handle::LmrHandle;
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::states::EpCall;
use crate::base::table::Table;
use crate::base::types::{CompletionFlags, EpState, LmrTriplet, RmrTriplet};
use crate::ep::work::{How, Note};
use crate::ep::{Ep, MAX_IOV, MAX_SEGMENT, post_error};
use crate::mem::lmr::{Lmr, Regions, sge_of};

const NO_SGE: Sge = Sge { address: 0, length: 0, lkey: LKey::new(0) };

/// Flags of sends; the other requests lack SOLICITED_WAIT.
pub(crate) const SEND_FLAGS: CompletionFlags = CompletionFlags::SUPPRESS
    .union(CompletionFlags::SOLICITED_WAIT)
    .union(CompletionFlags::UNSIGNALLED)
    .union(CompletionFlags::BARRIER_FENCE);
pub(crate) const RDMA_FLAGS: CompletionFlags = SEND_FLAGS.difference(CompletionFlags::SOLICITED_WAIT);

/// Flags that a common request may have.
const COMMON_FLAGS: CompletionFlags = CompletionFlags::SUPPRESS.union(CompletionFlags::SOLICITED_WAIT);

/// Refusal of what is not common. Nobody sees it: the full check follows.
const UNCOMMON: DatReturn = DatReturn::new(ReturnType::InternalError);

/// A request as its caller states it.
#[derive(Clone, Copy)]
pub(crate) struct Post<'a> {
    pub(crate) op: SendOp,
    pub(crate) iov: &'a [LmrTriplet],
    /// Bytes of the remote buffer; none for sends.
    pub(crate) remote_length: Option<u64>,
    pub(crate) user_cookie: u64,
    pub(crate) flags: CompletionFlags,
}

/// A request that has been checked, of at most `N` segments.
pub(crate) struct Checked<const N: usize> {
    op: SendOp,
    gather: Gather<N>,
    wr_id: WrId,
    how: How,
}

/// Local segments in the form of the device, at most `N`.
pub(crate) struct Gather<const N: usize> {
    sges: [Sge; N],
    count: usize,
    /// Bytes of all.
    total: u64,
}

impl<const N: usize> Gather<N> {
    /// The segments of a post, at most `max_iov`. Each lies inside its region, in the zone `pd`, and may be written if it is to be. Of
    /// a segment of length 0 nothing else matters.
    #[inline(always)]
    pub(crate) fn new(
        regions: &impl Regions,
        iov: &[LmrTriplet],
        max_iov: u32,
        pd: Pd,
        writes: bool,
    ) -> DatResult<Self> {
        if iov.len() > max_iov as usize || iov.len() > N {
            return Err(DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg2));
        }
        let mut out = Self { sges: [NO_SGE; N], count: iov.len(), total: 0 };
        for (index, (sge, triplet)) in out.sges.iter_mut().zip(iov).enumerate() {
            if N < MAX_IOV {
                let lmr = regions.region(index, triplet.lmr_context).ok_or(UNCOMMON)?;
                *sge = lmr.sge(triplet, pd, writes).ok_or(UNCOMMON)?;
            } else {
                *sge = sge_of(regions, index, triplet, pd, writes)?;
                if triplet.segment_length > MAX_SEGMENT {
                    // The driver refuses it, which the cut length must not hide.
                    sge.length = u32::MAX;
                }
            }
            // Each is at most its region, so a few of them do not overflow.
            out.total = out.total.saturating_add(triplet.segment_length);
        }
        Ok(out)
    }

    #[inline]
    pub(crate) fn slice(&self) -> &[Sge] {
        self.sges.get(..self.count).unwrap_or_default()
    }

    /// Bytes of all.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Cuts the segments to `length` bytes in all.
    fn cut(&mut self, length: u64) {
        let mut left = length;
        for sge in self.sges.iter_mut().take(self.count) {
            sge.length = left.min(u64::from(sge.length)) as u32;
            left -= u64::from(sge.length);
        }
        self.total = length;
    }
}

impl<'a> Post<'a> {
    /// A send of any kind.
    #[inline]
    pub(crate) fn send(op: SendOp, iov: &'a [LmrTriplet], user_cookie: u64, flags: CompletionFlags) -> Self {
        Self { op, iov, remote_length: None, user_cookie, flags }
    }

    /// A send, or an RDMA write to `remote`, without immediate data.
    #[inline]
    pub(crate) fn plain(
        iov: &'a [LmrTriplet],
        remote: Option<&RmrTriplet>,
        user_cookie: u64,
        flags: CompletionFlags,
    ) -> Self {
        let write =
            |to: &RmrTriplet| SendOp::Write { raddr: to.target_address, rkey: RKey::new(to.rmr_context) };
        let remote_length = remote.map(|to| to.segment_length);
        Self { op: remote.map_or(SendOp::Send, write), iov, remote_length, user_cookie, flags }
    }

    #[inline]
    fn operation(&self) -> DtoOperation {
        match self.op {
            SendOp::Write { .. } | SendOp::WriteImm { .. } => DtoOperation::RdmaWrite,
            SendOp::Read { .. } => DtoOperation::RdmaRead,
            SendOp::CompareSwap { .. } => DtoOperation::CompareSwap,
            SendOp::FetchAdd { .. } => DtoOperation::FetchAdd,
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInval(_) | SendOp::Nop => DtoOperation::Send,
        }
    }

    /// Checks a request that an EP is to post, in one pass over its segments.
    ///
    /// With `N` below [`MAX_IOV`] it is refused if it is not common: a send or RDMA write on a connection, with room, whose segments
    /// the device takes as they are.
    // One check, which is compiled for one or two segments in its callers and once for all.
    #[inline(always)]
    pub(crate) fn check<const N: usize, B: Bar>(
        &self,
        ep: &Ep<B>,
        regions: &impl Regions,
    ) -> DatResult<Checked<N>> {
        let operation = self.operation();
        let how = How::new(self.flags, ep.requests.left(), ep.reclaim_every);
        let gather = if N < MAX_IOV {
            let longest = match self.op {
                SendOp::Send => ep.lane.send,
                SendOp::Write { .. } if !self.flags.contains(CompletionFlags::SOLICITED_WAIT) => {
                    ep.lane.write
                }
                _ => return Err(UNCOMMON),
            };
            if ep.requests.is_at_limit() || !COMMON_FLAGS.contains(self.flags) {
                return Err(UNCOMMON);
            }
            let gather = Gather::new(regions, self.iov, N as u32, ep.pd, false)?;
            if is_uncommon(gather.total, longest)
                || self.remote_length.is_some_and(|remote| gather.total > remote)
            {
                return Err(UNCOMMON);
            }
            gather
        } else {
            self.check_flags(operation, ep.attributes.request_completion_flags)?;
            self.gather(operation, ep, regions)?
        };
        let wr_id = Note::new(gather.total as u32, operation, how.marks).with(self.user_cookie);
        Ok(Checked { op: self.op, gather, wr_id, how })
    }

    /// The segments of any request, with all rules about their lengths.
    fn gather<const N: usize, B: Bar>(
        &self,
        operation: DtoOperation,
        ep: &Ep<B>,
        regions: &impl Regions,
    ) -> DatResult<Gather<N>> {
        // The data comes here: reads, and atomics, which bring what was there.
        let (reads, max_iov) = match operation {
            DtoOperation::Send | DtoOperation::Receive => (false, ep.attributes.max_request_iov),
            DtoOperation::RdmaWrite => (false, ep.attributes.max_rdma_write_iov),
            _ => (true, ep.attributes.max_rdma_read_iov),
        };
        let mut gather = Gather::new(regions, self.iov, max_iov, ep.pd, reads)?;
        let Some(remote) = self.remote_length else {
            return if gather.total > ep.longest.message {
                Err(DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg3))
            } else {
                Ok(gather)
            };
        };
        let (needed, there) = if reads { (remote, gather.total) } else { (gather.total, remote) };
        if needed > there || needed > ep.longest.rdma {
            return Err(DatReturn::new(ReturnType::LengthError));
        }
        if reads && there > needed {
            gather.cut(needed);
        }
        Ok(gather)
    }

    fn check_flags(&self, operation: DtoOperation, attribute: CompletionFlags) -> DatResult<()> {
        let takes_receive = operation == DtoOperation::Send || matches!(self.op, SendOp::WriteImm { .. });
        let allowed = if takes_receive { SEND_FLAGS } else { RDMA_FLAGS };
        // The argument that has the flags.
        let argument = match operation {
            DtoOperation::RdmaWrite | DtoOperation::RdmaRead => Subtype::InvalidArg6,
            _ => Subtype::InvalidArg5,
        };
        check_flags(self.flags, allowed, attribute, argument)
    }
}

/// Whether a transfer of so many bytes is empty, or longer than what may be posted now.
#[inline]
fn is_uncommon(total: u64, longest: u32) -> bool {
    total.wrapping_sub(1) >= u64::from(longest)
}

/// Whether a post may have these flags: `allowed` ones, and UNSIGNALLED only if the EP's attribute says so, or beside SUPPRESS, to which it
/// adds nothing: NetPIPE posts both.
pub(crate) fn check_flags(
    flags: CompletionFlags,
    allowed: CompletionFlags,
    attribute: CompletionFlags,
    argument: Subtype,
) -> DatResult<()> {
    let unsignalled_ok = !flags.contains(CompletionFlags::UNSIGNALLED)
        || flags.contains(CompletionFlags::SUPPRESS)
        || attribute.contains(CompletionFlags::UNSIGNALLED);
    if allowed.contains(flags) && unsignalled_ok {
        Ok(())
    } else {
        Err(DatReturn::error(ReturnType::InvalidParameter, argument))
    }
}

impl<B: Bar> Ep<B> {
    /// Posts a request that has been checked, and rings for it. Without `rings` the doorbell is returned, for [`Ep::ring`].
    #[inline(always)]
    pub(crate) fn post<const N: usize>(
        &mut self,
        request: &Checked<N>,
        rings: bool,
    ) -> DatResult<Option<Doorbell>> {
        let Checked { op, gather, wr_id, how } = request;
        let Some(qp) = &mut self.qp else { return Err(DatReturn::new(ReturnType::InternalError)) };
        let doorbell = if N < MAX_IOV {
            qp.post_common(*op, gather.slice(), *wr_id, how.send_flags).ok_or(UNCOMMON)?
        } else {
            qp.post_send(*op, gather.slice(), *wr_id, how.send_flags).map_err(post_error)?
        };
        let unrung = if rings {
            qp.ring(doorbell);
            None
        } else {
            Some(doorbell)
        };
        self.count_posted(*how);
        Ok(unrung)
    }

    /// Checks and posts one send of a run with the given regions. Returns the doorbell for [`Ep::ring`].
    #[inline]
    pub(crate) fn post_of_run<const N: usize>(
        &mut self,
        regions: [&Lmr; N],
        iov: [LmrTriplet; N],
        user_cookie: u64,
        flags: CompletionFlags,
    ) -> DatResult<Option<Doorbell>> {
        let request = Post::send(SendOp::Send, &iov, user_cookie, flags).check::<N, _>(self, &regions)?;
        self.post(&request, false)
    }

    /// Hands over what was posted.
    #[inline]
    pub(crate) fn ring(&mut self, doorbell: Doorbell) {
        if let Some(qp) = &mut self.qp {
            qp.ring(doorbell);
        }
    }

    /// Checks and posts a receive, as [`Post::check`] and [`Ep::post`] do a request.
    #[inline(always)]
    pub(crate) fn post_recv<const N: usize>(
        &mut self,
        lmrs: &Table<'_, LmrHandle, Lmr>,
        iov: &[LmrTriplet],
        user_cookie: u64,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        let gather = if N < MAX_IOV {
            if !flags.is_empty() || self.receives.is_at_limit() {
                return Err(UNCOMMON);
            }
            let gather = Gather::<N>::new(lmrs, iov, N as u32, self.pd, true)?;
            if is_uncommon(gather.total, self.lane.receive) {
                return Err(UNCOMMON);
            }
            gather
        } else {
            self.check_recv(flags)?;
            let gather = Gather::new(lmrs, iov, self.attributes.max_recv_iov, self.pd, true)?;
            if self.receives.is_full() {
                // Receives of an EP on an SRQ are posted there.
                let full = DatReturn::new(ReturnType::InsufficientResources);
                return Err(if self.srq.is_some() { self.state.invalid() } else { full });
            }
            gather
        };
        let marks = if flags.contains(CompletionFlags::UNSIGNALLED) { Note::UNSIGNALLED } else { 0 };
        let length = if N < MAX_IOV { gather.total } else { gather.total.min(u32::MAX.into()) } as u32;
        let wr_id = Note::new(length, DtoOperation::Receive, marks).with(user_cookie);
        let Some(qp) = &mut self.qp else {
            return Err(DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStateEpNotready));
        };
        let posted = qp.post_recv(gather.slice(), wr_id);
        posted.map_err(|error| if N < MAX_IOV { UNCOMMON } else { post_error(error) })?;
        self.receives.posted(1);
        Ok(())
    }

    /// Posts receives of one segment of `length` bytes in one region each, as many as are common: their number.
    #[inline]
    pub(crate) fn post_recvs(
        &mut self,
        lmr: &Lmr,
        length: u32,
        receives: impl IntoIterator<Item = (u64, u64)>,
    ) -> usize {
        let Some(qp) = self.qp.as_mut().filter(|_| !is_uncommon(length.into(), self.lane.receive)) else {
            return 0;
        };
        let (pd, room) = (self.pd, self.receives.room());
        let note = Note::new(length, DtoOperation::Receive, 0);
        let posted =
            qp.post_recvs(receives.into_iter().take(room as usize).map_while(|(address, cookie)| {
                let segment = LmrTriplet::new(lmr.context(), address, length.into());
                Some((lmr.sge(&segment, pd, true)?, note.with(cookie)))
            }));
        self.receives.posted(posted as u32);
        posted
    }

    fn check_recv(&self, flags: CompletionFlags) -> DatResult<()> {
        EpCall::PostRecv.in_state(self.state())?;
        // No segment can be of the zone that the EP does not have: one code, with and without
        // segments.
        if self.pz.is_none() {
            return Err(DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStateEpNotready));
        }
        let attribute = self.attributes.recv_completion_flags;
        check_flags(flags, CompletionFlags::UNSIGNALLED, attribute, Subtype::InvalidArg5)
    }

    /// Whether doorbells are rung: on a connection, which ends before the device is given up, and as long as the device is there. A
    /// device that is gone flushes nothing: we do, what is in the queue.
    pub(crate) fn rings(&self, dead: bool) -> bool {
        self.state() == EpState::Connected || !dead
    }
}

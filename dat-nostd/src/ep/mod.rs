//! Endpoints. DAT 1.2, endpoint management and data transfer operations.
//!
//! [`Ep`] holds attributes, queue pair and counters of outstanding operations. Its fields are private to this directory.

pub(crate) mod attr;
pub(crate) mod dto;
pub(crate) mod dto_ext;
pub(crate) mod endpoints;
pub(crate) mod life;
pub(crate) mod modify;
pub(crate) mod places;
pub(crate) mod plan;
pub(crate) mod post;
pub(crate) mod qp;
pub(crate) mod receives;
pub(crate) mod streams;
pub(crate) mod watermark;
pub(crate) mod work;

use core::mem::offset_of;

use driver_mlx::{
    Bar, Completion, Cqe, MmioBar, Pd, PostError, Psn, Qp, QpNumber, SendFlags, SendOp, WorkQueue,
};

use crate::base::attr::EpAttributes;
use crate::base::event::{ConnectionEvent, DtoOperation};
use crate::base::handle::{IaHandle, PzHandle, SrqHandle};
use crate::base::list::{Link, linked};
use crate::base::ret::{DatReturn, ReturnType, Subtype};
use crate::base::states::{EpEvent, Transition};
use crate::base::table::{Slot, of_ia};
use crate::base::types::{EpState, IaAddress};
use crate::conn::connection::Connection;
use crate::ep::plan::Plan;
use crate::ep::streams::Streams;
use crate::ep::watermark::Watermarks;
use crate::ep::work::{EpReceiver, How, Note, Work};
use crate::evd::Notification;
use crate::evd::reaction::Reaction;

/// Segments that any post may have.
pub(crate) const MAX_IOV: usize = 16;

/// Outstanding operations of an EP in one direction.
pub(crate) const MAX_DTOS: u32 = 1 << 13;

/// Longest run of suppressed requests without a CQE. A CQE returns the slots of all requests before it.
const MAX_SUPPRESSED: u32 = 64;

/// The list of EPs that wait for a path.
#[derive(Debug)]
pub(crate) struct ResolvingEp;

/// The list of EPs whose connection is ending.
#[derive(Debug)]
pub(crate) struct ClosingEp;

/// The list of EPs with a high watermark.
#[derive(Debug)]
pub(crate) struct WatchedEp;

of_ia! { Ep<B> }
linked! { Ep<B>, ResolvingEp, in_resolving }
linked! { Ep<B>, ClosingEp, in_closing }
linked! { Ep<B>, WatchedEp, in_watched }

/// An endpoint. In its place of the table posts and completions touch two cache lines, up to [`driver_mlx::Qp`]'s first, and a third
/// of that to ring.
#[derive(Debug)]
#[repr(C)]
pub struct Ep<B: Bar> {
    pd: Pd,
    requests: Work,
    receives: Work,
    /// Limits of the fast path, by attributes and state.
    lane: Lane,
    /// Changed by [`Ep::take`] only.
    state: EpState,
    /// Of so many suppressed requests in a row one is posted with `SIGNALED`, so that the slots before it are reclaimed. A power of two.
    reclaim_every: u8,
    qp: Option<Qp<B>>,
    qpn: QpNumber,
    /// `requests.head` after the last request posted without `SIGNALED`; one that is not posted yet
    /// if there is none.
    silent_end: u32,
    ia: IaHandle,
    pz: Option<PzHandle>,
    streams: Streams,
    srq: Option<SrqHandle>,
    watermarks: Watermarks,
    attributes: EpAttributes,
    /// Bytes of the longest send and of the longest RDMA transfer.
    longest: Longest,
    connection: Connection,
    in_resolving: Link<ResolvingEp>,
    in_closing: Link<ClosingEp>,
    in_watched: Link<WatchedEp>,
    /// Our own last request, whose completion says that all before it are done.
    marker: Option<u32>,
}

const _: () = assert!(offset_of!(Ep<MmioBar>, qp) == Slot::<Ep<MmioBar>>::HOT);

/// The longest transfers of an EP, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Longest {
    pub(crate) message: u64,
    pub(crate) rdma: u64,
}

/// Longest transfers on the fast path, bytes; 0 if the state or an attribute forbids them. None exceeds [`MAX_SEGMENT`], so one
/// segment holds each.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lane {
    pub(crate) send: u32,
    pub(crate) write: u32,
    pub(crate) receive: u32,
}

/// Bytes of the longest segment that the device takes.
pub(crate) const MAX_SEGMENT: u64 = (1 << 31) - 1;

#[cold]
#[inline(never)]
pub(crate) fn post_error(error: PostError) -> DatReturn {
    match error {
        PostError::Full => DatReturn::new(ReturnType::InsufficientResources),
        PostError::TooManySges => DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg2),
        PostError::TooLong => DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg3),
        PostError::TooShort | PostError::WrongService => DatReturn::new(ReturnType::InternalError),
    }
}

impl<B: Bar> Ep<B> {
    /// An EP by a plan, without QP.
    pub(crate) fn new(
        ia: IaHandle,
        pz: Option<PzHandle>,
        plan: &Plan,
        state: EpState,
        longest: Longest,
        unspecified: IaAddress,
    ) -> Self {
        let (most_requests, most_receives) = plan.counts();
        let mut ep = Self {
            ia,
            pz,
            pd: plan.pd,
            streams: plan.streams,
            srq: plan.srq,
            watermarks: plan.watermarks(),
            attributes: plan.attributes,
            state,
            qp: None,
            qpn: QpNumber::default(),
            requests: Work::new(most_requests),
            receives: Work::new(most_receives),
            silent_end: u32::MAX,
            reclaim_every: 1,
            longest,
            lane: Lane::default(),
            connection: Connection::new(unspecified),
            in_resolving: Link::OUT,
            in_closing: Link::OUT,
            in_watched: Link::OUT,
            marker: None,
        };
        ep.set_plan(pz, plan, longest);
        ep
    }

    /// Takes over what a plan says: zone, EVDs, attributes, and what follows from them.
    pub(crate) fn set_plan(&mut self, pz: Option<PzHandle>, plan: &Plan, longest: Longest) {
        let attributes = plan.attributes;
        (self.pz, self.pd) = (pz, plan.pd);
        self.streams = plan.streams;
        self.longest = longest;
        let half = (attributes.max_request_dtos / 2).clamp(1, MAX_SUPPRESSED);
        self.reclaim_every = 1 << half.ilog2();
        self.attributes = attributes;
        self.open_lane();
    }

    /// Makes [`Ep::lane`] fit attributes and state.
    fn open_lane(&mut self) {
        let connected = self.state == EpState::Connected;
        let if_any = |possible: bool, iov: u32, length: u64| {
            if possible && iov > 0 { length.min(MAX_SEGMENT) as u32 } else { 0 }
        };
        let Self { attributes, .. } = self;
        self.lane = Lane {
            send: if_any(connected, attributes.max_request_iov, self.longest.message),
            write: if_any(connected, attributes.max_rdma_write_iov, self.longest.rdma),
            receive: if_any(true, attributes.max_recv_iov, MAX_SEGMENT),
        };
    }

    /// Returns the plan that matches the EP's current attributes, with or without a protection zone.
    pub(crate) fn shape(&self) -> Plan {
        Plan { pd: self.pd, streams: self.streams, srq: self.srq, attributes: self.attributes }
    }

    /// Returns the plan of the current QP, or `None` without a protection zone.
    pub(crate) fn plan(&self) -> Option<Plan> {
        self.pz.map(|_| self.shape())
    }

    /// Gives it a QP without history, or none; nothing is outstanding then.
    pub(crate) fn install(&mut self, qp: Option<Qp<B>>, psn: Psn) {
        self.qpn = qp.as_ref().map(Qp::number).unwrap_or_default();
        self.qp = qp;
        self.connection.restart(psn);
        (self.silent_end, self.marker) = (u32::MAX, None);
        self.requests.clear();
        self.receives.clear();
    }

    /// Returns the IA that created the EP.
    pub(crate) fn ia(&self) -> IaHandle {
        self.ia
    }

    /// The domain of its protection zone.
    pub(crate) fn pd(&self) -> Pd {
        self.pd
    }

    /// Its SRQ, if it takes receives from one.
    pub(crate) fn srq(&self) -> Option<SrqHandle> {
        self.srq
    }

    /// The EVDs of its streams.
    pub(crate) fn streams(&self) -> Streams {
        self.streams
    }

    /// The number of its QP.
    pub(crate) fn qpn(&self) -> QpNumber {
        self.qpn
    }

    /// Its attributes.
    pub(crate) fn attributes(&self) -> &EpAttributes {
        &self.attributes
    }

    /// Its requests.
    pub(crate) fn requests(&self) -> &Work {
        &self.requests
    }

    /// Its own receives; those of an SRQ are not counted here.
    pub(crate) fn receives(&self) -> &Work {
        &self.receives
    }

    /// Its QP, if it has a protection zone.
    pub(crate) fn qp(&self) -> Option<&Qp<B>> {
        self.qp.as_ref()
    }

    /// Its QP, if it has a protection zone.
    #[inline]
    pub(crate) fn qp_mut(&mut self) -> Option<&mut Qp<B>> {
        self.qp.as_mut()
    }

    /// Its connection.
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Its connection.
    pub(crate) fn connection_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// Takes its QP away, with its number.
    pub(crate) fn take_qp(&mut self) -> Option<(Qp<B>, QpNumber)> {
        Some((self.qp.take()?, core::mem::take(&mut self.qpn)))
    }

    /// Posts our own NOP, which completes after all requests before it, unless one is pending. The send queue reserves an entry for it.
    pub(crate) fn post_marker(&mut self) -> Option<()> {
        let qp = self.qp.as_mut().filter(|_| self.marker.is_none())?;
        let wr_id = Note::new(0, DtoOperation::Send, Note::MARKER).with(0);
        let doorbell = qp.post_send(SendOp::Nop, &[], wr_id, SendFlags::SIGNALED).ok()?;
        qp.ring(doorbell);
        self.marker = Some(self.requests.head());
        self.requests.posted(1);
        Some(())
    }

    /// Its state.
    #[inline]
    pub(crate) fn state(&self) -> EpState {
        self.state
    }

    /// Returns whether the last request was posted without `SIGNALED`.
    pub(crate) fn ends_silently(&self) -> bool {
        self.silent_end == self.requests.head()
    }

    /// Moves it by an event, as the state table says; None if the event means nothing in its state. Nothing else changes the state.
    pub(crate) fn take(&mut self, event: EpEvent) -> Option<Transition> {
        let transition = event.in_state(self.state)?;
        self.state = transition.to;
        self.open_lane();
        Some(transition)
    }

    /// The event with which its connection is ending.
    pub(crate) fn ending(&self) -> Option<ConnectionEvent> {
        let closing = self.connection.closing()?;
        closing.event.or_else(|| EpEvent::Finished.in_state(self.state)?.event)
    }

    /// Returns whether messages arrive in this state.
    pub(crate) fn can_have_received(&self) -> bool {
        matches!(self.state, EpState::Connected | EpState::CompletionPending | EpState::DisconnectPending)
    }

    /// Returns whether a completion belongs to this EP's current QP.
    #[inline]
    pub(crate) fn owns(&self, completion: &Cqe<'_>) -> bool {
        self.qpn == completion.qpn()
    }

    #[inline]
    pub(crate) fn count_posted(&mut self, how: How) {
        self.requests.posted(1);
        if how.is_silent() {
            self.silent_end = self.requests.head();
        }
    }

    /// Retires what a completion of its QP reports done, unless that is a receive of its SRQ.
    #[inline]
    pub(crate) fn retire(&mut self, completion: &Cqe<'_>) -> Option<Completion> {
        let retired = self.qp.as_mut()?.retire(completion);
        let work = if completion.is_send() { &mut self.requests } else { &mut self.receives };
        work.retired(retired.as_ref().map_or(0, Completion::count));
        retired
    }

    /// As [`Ep::retire`] of the success of a transfer that has no marks. Returns `None`, without side effects, for all others. With
    /// `RUNS` it also retires the requests without CQE before that one.
    #[inline(always)]
    pub(crate) fn retire_common<const RUNS: bool>(&mut self, completion: &Cqe<'_>) -> Option<Completion> {
        let retired = self.qp.as_mut()?.retire_common::<RUNS>(completion, Note::SPECIAL)?;
        match &retired {
            Completion::Received(_) => self.receives.retired(1),
            _ => self.requests.retired(retired.count()),
        }
        Some(retired)
    }

    /// Returns the EP's own receives, to take many messages.
    #[inline(always)]
    pub(crate) fn receiver(&mut self) -> Option<EpReceiver<'_>> {
        Some(EpReceiver::new(self.qp.as_mut()?.receiver()?, &mut self.receives))
    }

    /// Returns the effect of a completion on the connection.
    pub(crate) fn reaction(&self, completion: &Cqe<'_>) -> Reaction {
        let success = completion.error().is_none();
        match self.state {
            EpState::CompletionPending if success && !completion.is_send() => Reaction::Establish,
            EpState::CompletionPending | EpState::Connected if !success => Reaction::Fail,
            EpState::DisconnectPending if !success && !self.connection.is_flushing() => Reaction::Fail,
            _ => Reaction::None,
        }
    }

    /// Returns the note of the operation that a completion reports. The completion remains in its CQ.
    pub(crate) fn marks_of(&self, completion: &Cqe<'_>) -> Option<Note> {
        self.qp.as_ref()?.peek(completion).map(Note::of)
    }

    /// Returns whether the event of a completion notifies in this mode; `None` if it becomes none. The completion remains in its CQ.
    pub(crate) fn event(&self, completion: &Cqe<'_>, mode: Notification) -> Option<bool> {
        let success = completion.error().is_none();
        // Receives of an SRQ carry no flags.
        let note = self.marks_of(completion);
        if completion.is_send() && !note?.is_reported(success) {
            return None;
        }
        Some(match mode {
            Notification::Threshold => true,
            Notification::Unsignalled => !(success && note.is_some_and(|note| note.has(Note::UNSIGNALLED))),
            Notification::Solicited => !success || completion.solicited(),
        })
    }

    /// Requests of the consumer's that a dead device will never finish.
    pub(crate) fn requests_unfinished(&self) -> u32 {
        let outstanding = self.requests.outstanding();
        let is_ours = |marker: u32| marker.wrapping_sub(self.requests.tail()) < outstanding;
        outstanding.saturating_sub(self.marker.is_some_and(is_ours).into())
    }

    /// The consumer's cookie of the oldest operation that a dead device will never finish; with its place among binds if it is
    /// one.
    pub(crate) fn take_unfinished(&mut self, receive: bool) -> Option<(u64, Option<u16>)> {
        let qp = self.qp.as_mut()?;
        let (work, queue) = if receive {
            (&mut self.receives, WorkQueue::Receive)
        } else {
            (&mut self.requests, WorkQueue::Send)
        };
        loop {
            let wr_id = qp.flush_next(queue)?;
            work.retired(1);
            let note = Note::of(wr_id);
            if !note.has(Note::MARKER) {
                return Some((wr_id.id, note.bind_place()));
            }
        }
    }
}

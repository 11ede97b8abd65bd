//! An endpoint: its attributes, its queue pair, what is outstanding.

use core::mem::offset_of;

use driver_mlx::{
    Bar, Completion, CompletionKind, Cqe, MmioBar, Pd, PostError, Psn, Qp, QpNumber, WorkQueue,
};

use crate::base::attr::{EpAttributes, MAX_PRIVATE_DATA_ANY};
use crate::base::event::ConnectionEvent;
use crate::base::handle::{EvdHandle, IaHandle, PzHandle, SrqHandle};
use crate::base::list::{Link, linked};
use crate::base::ret::{DatReturn, ReturnType, Subtype};
use crate::base::states::{EpEvent, Transition};
use crate::base::table::Slot;
use crate::base::types::{EpState, IaAddress};
use crate::conn::attempt::Attempt;
use crate::conn::closing::Closing;
use crate::ep::plan::Plan;
use crate::ep::streams::Streams;
use crate::ep::watermark::Watermarks;
use crate::ep::work::{How, Note, Work};
use crate::evd::reaction::{Meaning, Reaction};

/// Segments that any post may have.
pub(crate) const MAX_IOV: usize = 16;

/// Outstanding operations of an EP in one direction.
pub(crate) const MAX_DTOS: u32 = 1 << 13;

/// Of suppressed requests at least one in so many asks for a completion all the same, so that their slots come back.
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

linked! { Ep<B>, ResolvingEp, in_resolving }
linked! { Ep<B>, ClosingEp, in_closing }
linked! { Ep<B>, WatchedEp, in_watched }

/// An endpoint. In its place of the table posts and completions touch two cache lines, up to [`driver_mlx::Qp`]'s first, and a third
/// of that to ring.
#[derive(Debug)]
#[repr(C)]
pub struct Ep<B: Bar> {
    pub(crate) pd: Pd,
    pub(crate) requests: Work,
    pub(crate) receives: Work,
    /// What may be posted now without a further question.
    pub(crate) lane: Lane,
    /// Changed by [`Ep::take`] only.
    state: EpState,
    /// Of suppressed requests one in so many asks for a completion all the same; a power of two.
    pub(crate) reclaim_every: u8,
    pub(crate) qp: Option<Qp<B>>,
    pub(crate) qpn: QpNumber,
    /// What `requests.head` was after the last request of which the device says nothing if it ends well.
    silent_end: Option<u32>,
    pub(crate) ia: IaHandle,
    pub(crate) pz: Option<PzHandle>,
    pub(crate) recv_evd: Option<EvdHandle>,
    pub(crate) request_evd: Option<EvdHandle>,
    pub(crate) connect_evd: Option<EvdHandle>,
    pub(crate) srq: Option<SrqHandle>,
    pub(crate) watermarks: Watermarks,
    pub(crate) attributes: EpAttributes,
    /// Bytes of the longest send and of the longest RDMA transfer.
    pub(crate) longest: Longest,
    /// Starting PSN of this side, new for every attempt.
    pub(crate) psn: Psn,
    pub(crate) attempt: Attempt,
    pub(crate) closing: Option<Closing>,
    in_resolving: Link<ResolvingEp>,
    in_closing: Link<ClosingEp>,
    in_watched: Link<WatchedEp>,
    /// Our own last request, whose completion says that all before it are done.
    pub(crate) marker: Option<u32>,
    /// On an SRQ: the device has said that no more of its buffers will complete here.
    pub(crate) last_receive: bool,
    pub(crate) local_port: u64,
    pub(crate) remote_address: IaAddress,
    pub(crate) remote_port: u64,
    pub(crate) private_data: [u8; MAX_PRIVATE_DATA_ANY],
    pub(crate) private_data_size: u8,
}

const _: () = assert!(offset_of!(Ep<MmioBar>, qp) == Slot::<Ep<MmioBar>>::HOT);

/// The longest transfers of an EP, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Longest {
    pub(crate) message: u64,
    pub(crate) rdma: u64,
}

/// Bytes of the longest common transfers that may be posted now, by attributes and state; 0 if none may. Of each length up to it, but 0,
/// the device takes one segment.
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
        PostError::WrongService => DatReturn::new(ReturnType::InternalError),
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
            recv_evd: None,
            request_evd: None,
            connect_evd: None,
            srq: plan.srq,
            watermarks: plan.watermarks(),
            attributes: plan.attributes,
            state,
            qp: None,
            qpn: QpNumber::default(),
            requests: Work::new(most_requests),
            receives: Work::new(most_receives),
            silent_end: None,
            reclaim_every: 1,
            longest,
            lane: Lane::default(),
            psn: Psn::new(0),
            attempt: Attempt::None,
            closing: None,
            in_resolving: Link::OUT,
            in_closing: Link::OUT,
            in_watched: Link::OUT,
            marker: None,
            last_receive: false,
            local_port: 0,
            remote_address: unspecified,
            remote_port: 0,
            private_data: [0; MAX_PRIVATE_DATA_ANY],
            private_data_size: 0,
        };
        ep.set_plan(pz, plan, longest);
        ep
    }

    /// Takes over what a plan says: zone, EVDs, attributes, and what follows from them.
    pub(crate) fn set_plan(&mut self, pz: Option<PzHandle>, plan: &Plan, longest: Longest) {
        let attributes = plan.attributes;
        (self.pz, self.pd) = (pz, plan.pd);
        (self.recv_evd, self.request_evd) = (plan.streams.recv, plan.streams.request);
        self.connect_evd = plan.streams.connect;
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

    /// By what it is made now.
    pub(crate) fn shape(&self) -> Plan {
        Plan { pd: self.pd, streams: self.streams(), srq: self.srq, attributes: self.attributes }
    }

    /// By what its QP is made now; None without a protection zone.
    pub(crate) fn plan(&self) -> Option<Plan> {
        self.pz.map(|_| self.shape())
    }

    /// Gives it a QP without history, or none; nothing is outstanding then.
    pub(crate) fn install(&mut self, qp: Option<Qp<B>>, psn: Psn) {
        self.qpn = qp.as_ref().map(Qp::number).unwrap_or_default();
        self.qp = qp;
        self.psn = psn;
        self.silent_end = None;
        self.marker = None;
        self.last_receive = false;
        self.requests.clear();
        self.receives.clear();
    }

    /// Forgets its last connection.
    pub(crate) fn forget_connection(&mut self, unspecified: IaAddress) {
        self.attempt = Attempt::None;
        self.private_data_size = 0;
        self.remote_address = unspecified;
        (self.remote_port, self.local_port) = (0, 0);
    }

    /// Its state.
    #[inline]
    pub(crate) fn state(&self) -> EpState {
        self.state
    }

    /// Whether the device says nothing of its last request if that ends well.
    pub(crate) fn ends_silently(&self) -> bool {
        self.silent_end == Some(self.requests.head())
    }

    /// Moves it by an event, as the state table says; None if the event means nothing in its state. Nothing else changes the state.
    pub(crate) fn take(&mut self, event: EpEvent) -> Option<Transition> {
        let transition = event.in_state(self.state)?;
        self.state = transition.to;
        self.open_lane();
        Some(transition)
    }

    /// Whether the end of its connection has begun and cannot be stopped: the QP is in error, and flushes come.
    pub(crate) fn is_flushing(&self) -> bool {
        self.closing.is_some_and(|closing| !closing.is_alive())
    }

    /// The event with which its connection is ending.
    pub(crate) fn ending(&self) -> Option<ConnectionEvent> {
        let closing = self.closing?;
        closing.event.or_else(|| EpEvent::Finished.in_state(self.state)?.event)
    }

    /// Whether its QP is ready to receive, or is being flushed after it was.
    pub(crate) fn can_receive(&self) -> bool {
        self.can_have_received() || self.is_flushing()
    }

    /// Whether its state is one in which messages come.
    pub(crate) fn can_have_received(&self) -> bool {
        matches!(self.state, EpState::Connected | EpState::CompletionPending | EpState::DisconnectPending)
    }

    /// The EVDs of its streams.
    pub(crate) fn streams(&self) -> Streams {
        Streams { recv: self.recv_evd, request: self.request_evd, connect: self.connect_evd }
    }

    /// Whether a completion is of this EP's present QP.
    #[inline]
    pub(crate) fn owns(&self, completion: &Cqe<'_>) -> bool {
        self.qpn == completion.qpn()
    }

    #[inline]
    pub(crate) fn count_posted(&mut self, how: How) {
        self.requests.posted(1);
        if how.is_silent() {
            self.silent_end = Some(self.requests.head());
        }
    }

    /// Retires what a completion of its QP reports done, unless that is a receive of its SRQ.
    #[inline]
    pub(crate) fn retire(&mut self, completion: &Cqe<'_>) -> Option<Completion> {
        self.qp.as_mut()?.retire(completion)
    }

    /// What a completion means to the connection.
    pub(crate) fn reaction(&self, completion: &Cqe<'_>) -> Reaction {
        let success = !matches!(completion.kind(), CompletionKind::SendError | CompletionKind::ReceiveError);
        match self.state {
            EpState::CompletionPending if success && !completion.is_send() => Reaction::Establish,
            EpState::CompletionPending | EpState::Connected if !success => Reaction::Fail,
            EpState::DisconnectPending
                if !success && self.closing.is_none_or(|closing| closing.is_alive()) =>
            {
                Reaction::Fail
            }
            _ => Reaction::None,
        }
    }

    /// What the operation that a completion, still in its queue, reports was posted with.
    pub(crate) fn marks_of(&self, completion: &Cqe<'_>) -> Option<Note> {
        self.qp.as_ref()?.peek(completion).map(Note::of)
    }

    /// What a completion, still in its queue, will give the consumer.
    pub(crate) fn meaning(&self, completion: &Cqe<'_>) -> Meaning {
        if !completion.is_send() {
            // Receives of an SRQ carry no flags.
            let marks = if self.srq.is_some() { None } else { self.marks_of(completion) };
            let unsignalled = marks.is_some_and(Note::is_unsignalled) && completion.error().is_none();
            return Meaning::Deliver { unsignalled };
        }
        let Some(note) = self.marks_of(completion) else { return Meaning::Nothing };
        let success = completion.kind() == CompletionKind::Send;
        if note.is_marker() || success && note.is_silent() {
            return Meaning::Nothing;
        }
        Meaning::Deliver { unsignalled: success && note.is_unsignalled() }
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
            if receive || !note.is_marker() {
                return Some((wr_id.id, note.is_bind().then_some(note.place())));
            }
        }
    }
}

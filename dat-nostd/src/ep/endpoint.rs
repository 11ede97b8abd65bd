//! An endpoint: its attributes, its queue pair, what is outstanding.

use driver_mlx::{Bar, CompletionKind, Cqe, Pd, Psn, Qp, QpNumber, WorkQueue};

use crate::base::attr::{EpAttributes, MAX_PRIVATE_DATA_ANY};
use crate::base::handle::{EpHandle, EvdHandle, IaHandle, PzHandle, SrqHandle};
use crate::base::types::{EpState, IaAddress};
use crate::conn::attempt::Attempt;
use crate::conn::closing::Closing;
use crate::ep::streams::Streams;
use crate::ep::watermark::Watermarks;
use crate::ep::work::{Note, Work};
use crate::evd::reaction::{Meaning, Reaction};

/// Segments that any post may have.
pub(crate) const MAX_IOV: usize = 16;

/// Outstanding operations of an EP in one direction.
pub(crate) const MAX_DTOS: u32 = 1 << 13;

/// Suppressed requests in a row before one asks for a completion all the same, so that their slots come back.
pub(crate) const MAX_SUPPRESSED: u32 = 64;

/// An endpoint.
#[derive(Debug)]
pub struct Ep<B: Bar> {
    /// Its own.
    pub(crate) handle: EpHandle,
    pub(crate) ia: IaHandle,
    pub(crate) pz: Option<PzHandle>,
    pub(crate) pd: Pd,
    pub(crate) recv_evd: Option<EvdHandle>,
    pub(crate) request_evd: Option<EvdHandle>,
    pub(crate) connect_evd: Option<EvdHandle>,
    pub(crate) srq: Option<SrqHandle>,
    pub(crate) watermarks: Watermarks,
    pub(crate) attributes: EpAttributes,
    pub(crate) state: EpState,
    pub(crate) qp: Option<Qp<B>>,
    pub(crate) qpn: QpNumber,
    pub(crate) requests: Work,
    pub(crate) receives: Work,
    /// Requests since the last that asks for a completion.
    pub(crate) suppressed: u32,
    /// How many of them at most.
    pub(crate) reclaim_every: u32,
    /// Bytes of the longest send and of the longest RDMA transfer.
    pub(crate) max_message: u64,
    pub(crate) max_rdma: u64,
    /// Bytes of the longest RDMA write of one segment: none if a write may have no segment.
    pub(crate) max_write: u64,
    /// Starting PSN of this side, new for every attempt.
    pub(crate) psn: Psn,
    pub(crate) attempt: Attempt,
    pub(crate) closing: Option<Closing>,
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

/// Requests in a row that may go without a completion.
pub(crate) fn reclaim_every(attributes: &EpAttributes) -> u32 {
    (attributes.max_request_dtos / 2).clamp(1, MAX_SUPPRESSED)
}

/// Bytes of the longest RDMA write of one segment.
pub(crate) fn max_write(attributes: &EpAttributes, max_rdma: u64) -> u64 {
    if attributes.max_rdma_write_iov > 0 { max_rdma } else { 0 }
}

impl<B: Bar> Ep<B> {
    /// The EVDs of its streams.
    pub(crate) fn streams(&self) -> Streams {
        Streams { recv: self.recv_evd, request: self.request_evd, connect: self.connect_evd }
    }

    /// Whether a completion is of this EP's present QP.
    #[inline(always)]
    pub(crate) fn owns(&self, completion: &Cqe) -> bool {
        self.qpn == completion.qpn()
    }

    /// What a completion means to the connection.
    #[inline(always)]
    pub(crate) fn reaction(&self, completion: &Cqe) -> Reaction {
        let success = !matches!(completion.kind(), CompletionKind::SendError | CompletionKind::ReceiveError);
        if success && self.state == EpState::Connected {
            Reaction::None
        } else {
            self.reaction_slow(success, completion)
        }
    }

    #[cold]
    pub(crate) fn reaction_slow(&self, success: bool, completion: &Cqe) -> Reaction {
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
    pub(crate) fn marks_of(&self, completion: &Cqe) -> Option<Note> {
        self.qp.as_ref()?.peek(completion).map(|wr_id| Note(wr_id.tag))
    }

    /// What a completion, still in its queue, will give the consumer.
    pub(crate) fn meaning(&self, completion: &Cqe) -> Meaning {
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

    /// The consumer's cookie of the oldest operation that a dead device will never finish; with its place among binds if it is
    /// one.
    pub(crate) fn take_unfinished(&mut self, receive: bool) -> Option<(u64, Option<u16>)> {
        let qp = self.qp.as_mut()?;
        let work = if receive { &mut self.receives } else { &mut self.requests };
        loop {
            let queue = if receive { WorkQueue::Receive } else { WorkQueue::Send };
            let wr_id = qp.flush_next(queue)?;
            work.retired(1);
            let note = Note(wr_id.tag);
            if receive || !note.is_marker() {
                return Some((wr_id.id, note.is_bind().then_some(note.place())));
            }
        }
    }
}

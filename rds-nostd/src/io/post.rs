//! Posts of the protocol's sends and receives.

use dat_nostd::{
    Adapter, CompletionFlags, DatResult, DatReturn, EpHandle, LmrTriplet, Platform, ReturnType, RmrTriplet,
};

use crate::connection::Objects;
use crate::frames::Lent;
use crate::ids::ConnectionId;
use crate::io::Node;
use crate::protocol::{Flow, Outlet, Post, Segment, Step};
use crate::rdma::{GATHER, Kind, Transfer};
use crate::reason::DownReason;
use crate::wire::FRAME_LEN;

impl<P: Platform> Node<'_, '_, '_, P> {
    /// Posts everything that a connection has to send and its send queue takes.
    #[inline]
    pub(crate) fn flush(&mut self, id: ConnectionId) {
        loop {
            let mut flow = self.protocol.flow(id);
            let Some(post) = flow.dispatch() else { return flow.settle() };
            if post == Post::Fragment && self.post_fragments(id) {
                continue;
            }
            if let Err((is_transfer, error)) = self.post_one(id, post) {
                return self.not_posted(id, is_transfer, error);
            }
        }
    }

    /// Posts fragments under one doorbell. Returns false if the send queue is full, or if the first
    /// fragment needs the slow path.
    #[inline(never)]
    fn post_fragments(&mut self, id: ConnectionId) -> bool {
        let mut flow = self.protocol.flow(id);
        let Objects { ep, lmr_context, .. } = *flow.objects();
        let (ep, lent) = (EpHandle::from_bits(ep), flow.lent_region());
        if lent == Some(Lent::SCATTERED) {
            return false;
        }
        let mut sends = flow.fragments(lent);
        let next = core::iter::from_fn(|| sends.next());
        let posted = self.adapter.ep_post_sends(ep, lmr_context, lent, next).unwrap_or(0);
        sends.posted(posted);
        posted > 0
    }

    /// Posts a single item of any kind. An error includes whether a transfer failed.
    #[inline(never)]
    fn post_one(&mut self, id: ConnectionId, post: Post) -> Result<(), (bool, DatReturn)> {
        let mut flow = self.protocol.flow(id);
        match post {
            Post::Map => {
                let segment = flow.map_fragment();
                Wire(self.adapter).post(flow.objects(), &segment).map_err(|error| (false, error))?;
                flow.map_fragment_posted(segment.signal);
            }
            Post::Acknowledgement => {
                let segment = flow.acknowledgement();
                Wire(self.adapter).post(flow.objects(), &segment).map_err(|error| (false, error))?;
                flow.acknowledgement_posted();
            }
            Post::Fragment => post_fragment(self.adapter, &mut flow)?,
            Post::Operation => match flow.operation() {
                Step::Done => {}
                Step::Fragment => post_fragment(self.adapter, &mut flow)?,
                Step::Transfer(of, cookie, signal) => {
                    let Some(transfer) = flow.transfer(of) else { return Ok(()) };
                    let ep = EpHandle::from_bits(flow.objects().ep);
                    let posted = post_transfer(self.adapter, ep, &transfer, cookie, signal);
                    posted.map_err(|error| (true, error))?;
                    flow.transfer_posted(of, signal);
                }
            },
        }
        Ok(())
    }

    /// Handles a failed post: the send queue is full until a completion, or the post is impossible.
    #[cold]
    fn not_posted(&mut self, id: ConnectionId, is_transfer: bool, error: DatReturn) {
        if is_transfer && !error.is(ReturnType::InsufficientResources) {
            if self.protocol.refused(id) {
                self.protocol.mark_broken(id, DownReason::NoResources);
            }
            self.release_ended();
        }
        self.protocol.connections.make_due(id);
    }

    /// Posts receives if a connection lacks them.
    #[inline]
    pub(crate) fn refill(&mut self, id: ConnectionId) {
        if self.protocol.wants_receives(id) && self.protocol.connection(id).objects.ep != 0 {
            self.post_receives(id);
        }
    }

    // Not inlined, so that the compiler specializes one copy into a loop.
    #[inline(never)]
    fn post_receives(&mut self, id: ConnectionId) {
        self.protocol.refill(id, |objects, receives| {
            let (ep, lmr_context) = (EpHandle::from_bits(objects.ep), objects.lmr_context);
            self.adapter.ep_post_receives(ep, lmr_context, FRAME_LEN as u32, receives).unwrap_or(0)
        });
    }

    /// Serves all connections that are due now.
    pub(crate) fn serve_due(&mut self, now: dat_nostd::Instant) {
        let last = self.protocol.connections.last_due();
        while let Some(id) = self.protocol.connections.pop_due() {
            self.serve(id, now);
            if Some(id) == last {
                break;
            }
        }
    }
}

/// The adapter as the outlet of messages.
pub(crate) struct Wire<'w, 's, P: Platform>(pub(crate) &'w mut Adapter<'s, P>);

impl<P: Platform> Outlet for Wire<'_, '_, P> {
    #[inline(always)]
    fn post(&mut self, objects: &Objects, segment: &Segment) -> DatResult<()> {
        let ep = EpHandle::from_bits(objects.ep);
        let iov = [LmrTriplet::new(objects.lmr_context, segment.address, segment.len.into())];
        self.0.ep_post_send(ep, &iov, segment.cookie, segment.flags())
    }
}

#[cold]
fn post_fragment<P: Platform>(
    adapter: &mut Adapter<'_, P>,
    flow: &mut Flow<'_, '_>,
) -> Result<(), (bool, DatReturn)> {
    let Some(mut burst) = flow.burst() else { return Ok(()) };
    let segment = flow.segment(&burst);
    let objects = flow.objects();
    let posted = match segment.lent {
        None => Wire(adapter).post(objects, &segment),
        Some(lent) => {
            let header = LmrTriplet::new(objects.lmr_context, segment.address, u64::from(segment.len));
            let (mut segments, (parts, found)) = ([header; GATHER], flow.parts_of(&lent));
            for (segment, part) in segments.iter_mut().skip(1).zip(&parts) {
                *segment = LmrTriplet::new(part.lmr_context, part.address, part.len.into());
            }
            let segments = segments.get(..1 + found).unwrap_or_default();
            let ep = EpHandle::from_bits(objects.ep);
            adapter.ep_post_send(ep, segments, segment.cookie, segment.flags())
        }
    };
    posted.map_err(|error| (false, error))?;
    flow.segment_posted(&mut burst, segment.signal);
    flow.end(&burst);
    Ok(())
}

#[cold]
fn post_transfer<P: Platform>(
    adapter: &mut Adapter<'_, P>,
    ep: EpHandle,
    transfer: &Transfer,
    cookie: u64,
    signal: bool,
) -> DatResult<()> {
    let local = &transfer.local;
    let segments = local.iovs.map(|iov| LmrTriplet::new(iov.lmr_context, iov.address, iov.len.into()));
    let [segment, ..] = segments;
    let segments = segments.get(..local.count).unwrap_or_default();
    let remote = RmrTriplet::new(transfer.rkey, transfer.remote_address, local.len());
    let mut flags = CompletionFlags::empty();
    flags.set(CompletionFlags::SUPPRESS, !signal);
    match transfer.kind {
        Kind::Transfer if transfer.is_write => {
            adapter.ep_post_rdma_write(ep, segments, cookie, &remote, flags)
        }
        Kind::Transfer => adapter.ep_post_rdma_read(ep, segments, cookie, &remote, flags),
        Kind::CompareSwap { compare, swap } => {
            adapter.ep_post_compare_swap(ep, &segment, cookie, &remote, compare, swap, flags)
        }
        Kind::FetchAdd { add } => adapter.ep_post_fetch_add(ep, &segment, cookie, &remote, add, flags),
    }
}

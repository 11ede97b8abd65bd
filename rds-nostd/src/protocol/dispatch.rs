//! Order of a connection's posts: congestion map, operations, fragments, acknowledgements.

mod burst;

use dat_nostd::CompletionFlags;

use crate::connection::{Connection, Cookie, CookieKind, Objects, State};
use crate::counters::Counters;
use crate::frames::{Frames, Lent, Marks};
use crate::ids::{ConnectionId, FrameId, OperationId};
use crate::limits::Limits;
use crate::protocol::Protocol;
use crate::quota::Shares;
use crate::rdma::{GATHER, Iov, Operations, RdmaStatus, Transfer};
use crate::wire::{FRAGMENT_LEN, HEADER_LEN, MAP_FRAGMENTS};

/// Kind of the next post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Post {
    /// The next frame of the first unsent message ([`Flow::burst`]).
    Fragment,
    /// A fragment of our congestion map ([`Flow::map_fragment`]).
    Map,
    /// An acknowledgement without payload ([`Flow::acknowledgement`]).
    Acknowledgement,
    /// The next step of a message with an RDMA operation ([`Flow::operation`]).
    Operation,
}

/// Next step of a message with an RDMA operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// A transfer of this operation ([`Flow::transfer`]), its cookie, and whether it gets a CQE.
    Transfer(OperationId, u64, bool),
    /// All transfers are posted: the next fragment.
    Fragment,
    /// The message is complete without a post; [`Flow::dispatch`] returns the next one.
    Done,
}

/// A SEND of one or two segments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    /// Virtual address in the frames' memory, and bytes.
    pub(crate) address: u64,
    pub(crate) len: u32,
    /// Payload after it, if that is lent.
    pub(crate) lent: Option<Iov>,
    pub(crate) cookie: u64,
    /// With CQE; wakes the peer; waits for preceding RDMA reads.
    pub(crate) signal: bool,
    pub(crate) solicit: bool,
    pub(crate) fence: bool,
}

impl Segment {
    /// Returns a SEND of one segment, which wakes the peer.
    #[inline]
    pub(super) const fn new(address: u64, len: usize, cookie: u64, signal: bool) -> Self {
        Self { address, len: len as u32, lent: None, cookie, signal, solicit: true, fence: false }
    }

    /// Returns the completion flags of the post.
    #[inline]
    pub(crate) fn flags(&self) -> CompletionFlags {
        let mut flags = CompletionFlags::empty();
        flags.set(CompletionFlags::SUPPRESS, !self.signal);
        flags.set(CompletionFlags::SOLICITED_WAIT, self.solicit);
        flags.set(CompletionFlags::BARRIER_FENCE, self.fence);
        flags
    }
}

/// A connection with all that it needs to send.
pub(crate) struct Flow<'f, 's> {
    id: ConnectionId,
    connection: &'f mut Connection,
    frames: &'f mut Frames<'s>,
    operations: &'f mut Operations<'s>,
    own_map: &'f [Option<FrameId>; MAP_FRAGMENTS as usize],
    sending: &'f Shares,
    limits: &'f Limits,
    counters: &'f mut Counters,
}

impl<'s> Protocol<'s> {
    #[inline]
    pub(crate) fn flow(&mut self, id: ConnectionId) -> Flow<'_, 's> {
        Flow {
            id,
            connection: self.connections.at_mut(id),
            frames: &mut self.frames,
            operations: &mut self.operations,
            own_map: &self.own_map,
            sending: &self.sending,
            limits: &self.limits,
            counters: &mut self.counters,
        }
    }

    /// Handles a transfer of [`Flow::operation`] that can never be posted: drops its message.
    /// Returns true if a part of the message is in flight, so that the connection must break first.
    #[cold]
    pub(crate) fn refused(&mut self, id: ConnectionId) -> bool {
        let Some(message) = self.connections.at(id).tx.next else { return false };
        let Some(operation) = self.frames.message(message).operation else { return false };
        self.operations.fail(operation, RdmaStatus::OtherError);
        if self.operations.is_begun(operation) {
            return true;
        }
        self.drop_unsent(id, |_, candidate| candidate == message, RdmaStatus::OtherError);
        false
    }
}

impl<'f, 's> Flow<'f, 's> {
    #[inline]
    pub(crate) const fn objects(&self) -> &Objects {
        &self.connection.objects
    }

    /// Returns the next post of the connection, if its send queue has space. [`count`](Self::count)
    /// records it.
    #[inline]
    pub(crate) fn dispatch(&mut self) -> Option<Post> {
        let connection = &*self.connection;
        if connection.state != State::Up {
            return None;
        }
        let depth = u64::from(self.limits.send_depth);
        let in_flight = connection.tx.in_flight();
        // One post is reserved for acknowledgements: without them the peer's queue would stall.
        if in_flight + 1 < depth {
            if connection.map.is_due() && connection.tx.cursor.is_none() {
                return Some(Post::Map);
            }
            if let Some(message) = connection.tx.next {
                let plain = self.frames.message(message).operation.is_none();
                return Some(if plain { Post::Fragment } else { Post::Operation });
            }
        }
        let rx = &self.connection.rx;
        let acknowledges = rx.ack_wanted && !rx.ack_in_flight && in_flight < depth;
        acknowledges.then_some(Post::Acknowledgement)
    }

    /// Computes the limit of the fast path when nothing is left to post.
    #[inline]
    pub(crate) fn settle(&mut self) {
        let (connection, limits) = (&mut *self.connection, self.limits);
        connection.tx.fast_until = if connection.is_clear(limits.send_depth) && !connection.map.some_marked()
        {
            connection.tx.fast_up_to(
                limits,
                limits.unasked(self.sending.beyond()),
                connection.peer.next_tx,
                0,
            )
        } else {
            0
        };
    }

    /// Returns the next step of the first unsent message, which has an operation.
    #[cold]
    pub(crate) fn operation(&mut self) -> Step {
        let Some(message) = self.connection.tx.next else { return Step::Done };
        let descriptor = self.frames.message_mut(message);
        let Some(operation) = descriptor.operation.filter(|_| descriptor.posted == 0) else {
            return Step::Fragment;
        };
        let silent = descriptor.is(Marks::SILENT);
        if let Some(of) = self.operations.next_to_transfer(operation) {
            let cookie = self.cookie(CookieKind::Rdma);
            // The following message has a CQE. Without a message the last transfer needs one.
            let signal = self.is_report_due() || silent && self.operations.is_last_transfer(of);
            return Step::Transfer(of, cookie, signal);
        }
        if !silent {
            return Step::Fragment;
        }
        descriptor.last_post = self.operations.last_post(operation);
        self.connection.tx.next = descriptor.next_message;
        Step::Done
    }

    /// Returns the next transfer of an operation.
    pub(crate) fn transfer(&self, of: OperationId) -> Option<Transfer> {
        self.operations.transfer(of)
    }

    #[cold]
    pub(crate) fn map_fragment(&mut self) -> Segment {
        let (index, is_reported) = self.connection.map.next_fragment();
        let (last, signal) = (index + 1 == MAP_FRAGMENTS, is_reported || self.is_report_due());
        let frame = self.own_map.get(usize::from(index)).copied().flatten();
        let address = frame.map_or(0, |frame| self.frames.address(frame));
        let cookie = self.cookie(CookieKind::Message);
        let segment = Segment::new(address, HEADER_LEN + FRAGMENT_LEN, cookie, signal);
        Segment { solicit: last, ..segment }
    }

    /// Returns an acknowledgement frame. Only one is in flight at a time; the next covers all later
    /// arrivals.
    pub(crate) fn acknowledgement(&mut self) -> Segment {
        let address = self.frames.write_acknowledgement(self.id.index(), self.connection.rx.ack_value);
        let cookie = self.cookie(CookieKind::Acknowledgement);
        Segment::new(address, HEADER_LEN, cookie, true)
    }

    /// Returns whether the next post needs a CQE in any case.
    fn is_report_due(&self) -> bool {
        let tx = &self.connection.tx;
        tx.posts + 1 - tx.signalled >= u64::from(self.limits.signal_every)
    }

    /// Returns the cookie of the next post, which has this kind.
    pub(crate) const fn cookie(&self, kind: CookieKind) -> u64 {
        let Connection { objects, tx, .. } = &*self.connection;
        Cookie { kind, connection: self.id, epoch: objects.epoch, number: (tx.posts + 1) as u32 }.encode()
    }

    /// Counts a post, with or without CQE. Returns its number.
    #[inline]
    pub(crate) fn count(&mut self, signal: bool) -> u64 {
        let tx = &mut self.connection.tx;
        tx.posts += 1;
        if signal {
            tx.signalled = tx.posts;
        }
        tx.posts
    }

    /// Returns the segments of a fragment of the first unsent message, whose payload is lent.
    #[cold]
    pub(crate) fn parts_of(&self, part: &Iov) -> ([Iov; GATHER - 1], usize) {
        let alone = ([*part; GATHER - 1], 1);
        let lent = self.connection.tx.next.and_then(|message| self.frames.message(message).lent());
        match lent.filter(|_| part.lmr_context == Lent::SCATTERED) {
            // The limit of segments per fragment was checked in `check_loan`.
            Some(lent) => {
                self.operations.range(lent.operation, part.address, part.len.into()).unwrap_or(alone)
            }
            None => alone,
        }
    }

    /// Records the post of [`map_fragment`](Self::map_fragment).
    pub(crate) fn map_fragment_posted(&mut self, signal: bool) {
        let number = self.count(signal);
        let Connection { map, rx, .. } = &mut *self.connection;
        let last = map.fragment_posted(number);
        // The map's frames serve all connections, so they acknowledge nothing. Linux uses the
        // acknowledgement of the last frame in a batch, so without another frame it would ignore an
        // earlier acknowledgement.
        rx.ack_wanted |= last && rx.ack_value != 0;
    }

    /// Records the post of [`acknowledgement`](Self::acknowledgement).
    pub(crate) fn acknowledgement_posted(&mut self) {
        self.count(true);
        self.counters.ack_sent += 1;
        let rx = &mut self.connection.rx;
        rx.acknowledgement_left();
        rx.ack_in_flight = true;
    }

    /// Records the post of a transfer of [`operation`](Self::operation).
    pub(crate) fn transfer_posted(&mut self, of: OperationId, signal: bool) {
        let number = self.count(signal);
        self.operations.posted(of, number);
    }
}

//! RDMA operations under way: from `sendmsg` to the notification. Linux `net/rds/rdma.c`, `send.c`.
//!
//! An operation belongs to a message. Its transfers are posted before the message's first fragment; its entry later serves
//! as the notification, so that there is always room for one. It is never done twice: when the connection breaks, what was
//! begun is dropped together with its message.

use dat_nostd::{
    Adapter, CompletionFlags, DatReturn, DmaSlice, DtoStatus, LmrHandle, LmrTriplet, MemPriv, Platform,
    ReturnType, RmrTriplet,
};

use crate::connection::CookieKind;
use crate::error::RdsError;
use crate::frames::Link;
use crate::node::Rds;
use crate::rdma::{
    AtomicArgs, AtomicOp, MAX_RDMA_LEN, RdmaArgs, RdmaCookie, RdmaFlags, RdmaNotify, RdmaStatus,
};
use crate::send::NOBODY;
use crate::slot::Slot;
use crate::socket::{SocketHandle, open_socket};

/// Pieces of local memory that one operation may have; each is a transfer of its own.
pub const MAX_PIECES: usize = 16;

/// Local memory of an operation, registered for it.
#[derive(Clone, Copy, Debug)]
struct Piece {
    lmr_bits: u64,
    segment: LmrTriplet,
}

const NO_PIECE: Piece = Piece { lmr_bits: 0, segment: LmrTriplet::new(0, 0, 0) };

/// What an operation is.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// RDMA read or write, as its flags say.
    Transfer,
    CompareSwap {
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        add: u64,
    },
}

/// The table entry of an operation or of its notification.
#[derive(Debug)]
pub(crate) struct Operation {
    used: bool,
    kind: Kind,
    /// The atomic operation of the same message; later the next notification of the socket.
    next: Link,
    socket: u16,
    generation: u32,
    notify: bool,
    /// Failure is told even without `notify`.
    notify_failure: bool,
    flags: RdmaFlags,
    status: Slot<RdmaStatus>,
    user_token: u64,
    rkey: u32,
    remote_address: u64,
    pieces: [Piece; MAX_PIECES],
    count: u8,
    posted: u8,
    /// Numbers of the first and the last post; 0 if there was none.
    first_post: u64,
    last_post: u64,
}

impl Operation {
    pub(crate) const EMPTY: Self = Self {
        used: false,
        kind: Kind::Transfer,
        next: Link::NONE,
        socket: 0,
        generation: 0,
        notify: false,
        notify_failure: false,
        flags: RdmaFlags::empty(),
        status: Slot::empty(RdmaStatus::Success),
        user_token: 0,
        rkey: 0,
        remote_address: 0,
        pieces: [NO_PIECE; MAX_PIECES],
        count: 0,
        posted: 0,
        first_post: 0,
        last_post: 0,
    };

    pub(crate) const fn is_begun(&self) -> bool {
        self.first_post != 0
    }
}

/// What became of the attempt to post a part of an operation.
pub(crate) enum Progress {
    /// All of it is posted.
    Complete,
    /// One transfer was posted.
    Posted,
    /// No room now.
    Full,
    /// It can never be posted.
    Failed,
}

impl Rds<'_> {
    /// Registers the local memory of an RDMA operation and keeps what is needed for it.
    ///
    /// # Errors
    /// [`RdsError::InvalidArgument`], [`RdsError::MessageSize`], [`RdsError::NoMemory`], [`RdsError::Dat`]: see
    /// [`sendmsg_control`](Self::sendmsg_control).
    pub(crate) fn create_transfer<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        (owner, connection): (SocketHandle, usize),
        args: &RdmaArgs<'_>,
    ) -> Result<Link, RdsError> {
        let total: usize = args.local.iter().map(|piece| piece.len()).sum();
        if args.local.is_empty()
            || args.local.iter().any(|piece| piece.is_empty())
            || total as u64 > args.remote_bytes
        {
            return Err(RdsError::InvalidArgument);
        }
        if args.local.len() > MAX_PIECES || total > MAX_RDMA_LEN {
            return Err(RdsError::MessageSize);
        }
        let remote = (args.cookie, args.remote_offset);
        let how = (args.flags, args.user_token);
        let created =
            self.create_operation(adapter, (owner, connection), Kind::Transfer, remote, args.local, how)?;
        self.counters.send_rdma += 1;
        self.counters.send_rdma_bytes += total as u64;
        Ok(created)
    }

    /// The same for an atomic operation.
    ///
    /// # Errors
    /// As [`create_transfer`](Self::create_transfer).
    pub(crate) fn create_atomic<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        (owner, connection): (SocketHandle, usize),
        args: &AtomicArgs,
    ) -> Result<Link, RdsError> {
        let address = u64::from(args.cookie.offset()).wrapping_add(args.remote_offset);
        if args.local.len() != 8 || !args.local.va().is_multiple_of(8) || !address.is_multiple_of(8) {
            return Err(RdsError::InvalidArgument);
        }
        let remote = (args.cookie, args.remote_offset);
        let kind = match args.op.plain()? {
            AtomicOp::CompareSwap { compare, swap } | AtomicOp::MaskedCompareSwap { compare, swap, .. } => {
                Kind::CompareSwap { compare, swap }
            }
            AtomicOp::FetchAdd { add } | AtomicOp::MaskedFetchAdd { add, .. } => Kind::FetchAdd { add },
        };
        let how = (args.flags, args.user_token);
        let created =
            self.create_operation(adapter, (owner, connection), kind, remote, &[args.local], how)?;
        match kind {
            Kind::CompareSwap { .. } => self.counters.atomic_cswp += 1,
            _ => self.counters.atomic_fadd += 1,
        }
        Ok(created)
    }

    fn create_operation<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        (owner, connection): (SocketHandle, usize),
        kind: Kind,
        (cookie, remote_offset): (RdmaCookie, u64),
        local: &[DmaSlice<'_>],
        (flags, user_token): (RdmaFlags, u64),
    ) -> Result<Link, RdsError> {
        let remote_address =
            u64::from(cookie.offset()).checked_add(remote_offset).ok_or(RdsError::InvalidArgument)?;
        let notify_failure = open_socket(self.sockets, owner)?.receive_errors;
        let index = self.operations.iter().position(|op| !op.used).ok_or(RdsError::NoMemory)?;
        let zone = self.zone_of(adapter, connection)?;
        let mut pieces = [NO_PIECE; MAX_PIECES];
        let rights = MemPriv::LOCAL_READ | MemPriv::LOCAL_WRITE;
        for (memory, piece) in local.iter().zip(0..) {
            let created = match adapter.lmr_create(self.dat.ia, *memory, zone, rights) {
                Ok(created) => created,
                Err(error) => {
                    free_pieces(adapter, &mut pieces);
                    return Err(error.into());
                }
            };
            let (context, address) = (created.lmr_context, created.registered_address);
            if let Some(piece) = pieces.get_mut::<usize>(piece) {
                piece.lmr_bits = created.lmr.bits();
                piece.segment = LmrTriplet::new(context, address, memory.len() as u64);
            }
        }
        if let Some(entry) = self.operations.get_mut(index) {
            *entry = Operation {
                used: true,
                kind,
                socket: owner.slot,
                generation: owner.generation,
                notify: flags.contains(RdmaFlags::NOTIFY_ME),
                notify_failure,
                flags,
                user_token,
                rkey: cookie.rkey(),
                remote_address,
                pieces,
                count: local.len() as u8,
                ..Operation::EMPTY
            };
        }
        Ok(Link::to(index))
    }

    /// Makes `second` the operation that follows `first` in the same message.
    pub(crate) fn follow(&mut self, first: Link, second: Link) {
        if let Some(op) = first.get().and_then(|index| self.operations.get_mut(index)) {
            op.next = second;
        }
    }

    /// Gives an operation up whose message was refused: nobody hears of it.
    pub(crate) fn withdraw_operation<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, link: Link) {
        if let Some(op) = link.get().and_then(|index| self.operations.get_mut(index)) {
            free_pieces(adapter, &mut op.pieces);
            *op = Operation::EMPTY;
        }
    }

    pub(crate) fn operation(&self, link: Link) -> Option<&Operation> {
        self.operations.get(link.get()?)
    }

    /// Posts the next transfer of an operation.
    pub(crate) fn post_operation<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        connection: usize,
        link: Link,
        alone: bool,
    ) -> Progress {
        let Some(op) = self.operation(link) else { return Progress::Complete };
        let Some(piece) = op.pieces.get(usize::from(op.posted)).filter(|_| op.posted < op.count) else {
            return match op.next {
                Link::NONE => Progress::Complete,
                next => self.post_operation(adapter, connection, next, alone),
            };
        };
        let Some(state) = self.connections.get(connection) else { return Progress::Full };
        let Some(ep) = state.ep() else { return Progress::Full };
        let segment = piece.segment;
        let remote = RmrTriplet::new(op.rkey, op.remote_address, segment.segment_length);
        // The message behind it reports; without one the last transfer has to.
        let signal = alone && op.posted + 1 == op.count && op.next.is_none()
            || state.posts + 1 - state.signalled >= u64::from(self.limits.signal_every);
        let cookie = self.cookie(connection, CookieKind::Rdma, state.posts + 1);
        let mut flags = CompletionFlags::empty();
        flags.set(CompletionFlags::SUPPRESS, !signal);
        let posted = match op.kind {
            Kind::Transfer if op.flags.contains(RdmaFlags::READWRITE) => {
                adapter.ep_post_rdma_write(ep, &[segment], cookie, &remote, flags)
            }
            Kind::Transfer => adapter.ep_post_rdma_read(ep, &[segment], cookie, &remote, flags),
            Kind::CompareSwap { compare, swap } => {
                adapter.ep_post_compare_swap(ep, &segment, cookie, &remote, compare, swap, flags)
            }
            Kind::FetchAdd { add } => adapter.ep_post_fetch_add(ep, &segment, cookie, &remote, add, flags),
        };
        match posted {
            Ok(()) => {}
            Err(error) if is_full(error) => return Progress::Full,
            Err(_) => return Progress::Failed,
        }
        let number = self.posted(connection, signal);
        if let Some(op) = link.get().and_then(|index| self.operations.get_mut(index)) {
            op.posted += 1;
            op.remote_address = op.remote_address.wrapping_add(segment.segment_length);
            op.first_post = if op.first_post == 0 { number } else { op.first_post };
            op.last_post = number;
        }
        Progress::Posted
    }

    /// Post `number` of a connection failed: remembers it if it was a transfer of the operation.
    pub(crate) fn note_failure(&mut self, link: Link, number: u64, status: DtoStatus) {
        let Some(op) = link.get().and_then(|index| self.operations.get_mut(index)) else { return };
        let next = op.next;
        if op.first_post != 0 && (op.first_post..=op.last_post).contains(&number) {
            match status {
                DtoStatus::Success | DtoStatus::ErrFlushed => {}
                DtoStatus::ErrRemoteAccess => op.status.set(RdmaStatus::RemoteError),
                _ => op.status.set(RdmaStatus::OtherError),
            }
        }
        self.note_failure(next, number, status);
    }

    /// Its application gave an operation up that is under way.
    pub(crate) fn cancel_operation(&mut self, link: Link) {
        if let Some(op) = link.get().and_then(|index| self.operations.get_mut(index)) {
            op.status.get_or_set(RdmaStatus::Canceled);
            let next = op.next;
            self.cancel_operation(next);
        }
    }

    /// Whether nothing is to be sent after it.
    pub(crate) fn is_silent(&self, link: Link) -> bool {
        self.operation(link).is_some_and(|op| {
            op.flags.contains(RdmaFlags::SILENT) && (op.next.is_none() || self.is_silent(op.next))
        })
    }

    /// Whether the message that follows waits for it.
    pub(crate) fn is_fence(&self, link: Link) -> bool {
        self.operation(link).is_some_and(|op| op.flags.contains(RdmaFlags::FENCE) || self.is_fence(op.next))
    }

    /// Number of the last post of a message's operations.
    pub(crate) fn last_post(&self, link: Link) -> u64 {
        self.operation(link).map_or(0, |op| op.last_post.max(self.last_post(op.next)))
    }

    /// Ends an operation whose transfers the HCA is done with: with `status`, unless it failed otherwise before. Its local
    /// memory is free again; the socket hears of it if it wanted to.
    pub(crate) fn end_operation<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        link: Link,
        status: RdmaStatus,
    ) {
        let Some(index) = link.get() else { return };
        let Some(op) = self.operations.get_mut(index).filter(|op| op.used) else { return };
        let next = core::mem::replace(&mut op.next, Link::NONE);
        free_pieces(adapter, &mut op.pieces);
        let own = op.status.get_or_set(status);
        let owner = SocketHandle { slot: op.socket, generation: op.generation };
        let wanted = op.notify || op.notify_failure && own != RdmaStatus::Success;
        let last = match open_socket(self.sockets, owner) {
            Ok(socket) if wanted && op.socket != NOBODY => {
                let last = socket.notifications_last;
                socket.notifications_last = link;
                if last.is_none() {
                    socket.notifications = link;
                }
                last
            }
            _ => {
                *op = Operation::EMPTY;
                Link::NONE
            }
        };
        if let Some(before) = last.get().and_then(|index| self.operations.get_mut(index)) {
            before.next = link;
        }
        self.end_operation(adapter, next, status);
    }

    /// The end of an operation of this socket that it asked to hear of (`RDS_CMSG_RDMA_STATUS`), oldest first; None if there is
    /// none.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn take_notification(&mut self, handle: SocketHandle) -> Result<Option<RdmaNotify>, RdsError> {
        let socket = open_socket(self.sockets, handle)?;
        let Some(op) = socket.notifications.get().and_then(|index| self.operations.get_mut(index)) else {
            return Ok(None);
        };
        socket.notifications = op.next;
        if socket.notifications.is_none() {
            socket.notifications_last = Link::NONE;
        }
        let status = op.status.get().unwrap_or(RdmaStatus::OtherError);
        let notify = RdmaNotify { user_token: op.user_token, status };
        *op = Operation::EMPTY;
        Ok(Some(notify))
    }

    /// A socket closes: nobody is left to hear of its operations.
    pub(crate) fn drop_notifications(&mut self, handle: SocketHandle) {
        while let Ok(Some(_)) = self.take_notification(handle) {}
    }
}

fn is_full(error: DatReturn) -> bool {
    error.is(ReturnType::InsufficientResources)
}

fn free_pieces<P: Platform>(adapter: &mut Adapter<'_, P>, pieces: &mut [Piece; MAX_PIECES]) {
    for piece in pieces.iter_mut().filter(|piece| piece.lmr_bits != 0) {
        // It can only fail with the adapter itself, whose regions are gone then.
        let _ = adapter.lmr_free(LmrHandle::from_bits(piece.lmr_bits));
        *piece = NO_PIECE;
    }
}

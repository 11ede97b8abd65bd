//! RDMA operations under way: from `sendmsg` to the notification. Linux `net/rds/rdma.c`, `send.c`.
//!
//! An operation belongs to a message. Its transfers are posted before the message's first fragment; its entry later serves
//! as the notification, so that there is always room for one. It is never done twice: when the connection breaks, what was
//! begun is dropped together with its message.

use dat_nostd::{
    Adapter, CompletionFlags, DatReturn, DtoStatus, LmrHandle, LmrTriplet, MemPriv, Platform, ReturnType,
    RmrTriplet,
};

use crate::connection::CookieKind;
use crate::error::RdsError;
use crate::frames::Link;
use crate::node::Rds;
use crate::rdma::{MAX_RDMA_LEN, RdmaArgs, RdmaFlags, RdmaNotify, RdmaStatus};
use crate::send::NOBODY;
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

/// The table entry of an operation or of its notification.
#[derive(Debug)]
pub(crate) struct Operation {
    used: bool,
    /// The next notification of the socket.
    next: Link,
    socket: u16,
    generation: u32,
    notify: bool,
    /// Failure is told even without `notify`.
    notify_failure: bool,
    flags: RdmaFlags,
    status: Option<RdmaStatus>,
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
        next: Link::NONE,
        socket: 0,
        generation: 0,
        notify: false,
        notify_failure: false,
        flags: RdmaFlags::empty(),
        status: None,
        user_token: 0,
        rkey: 0,
        remote_address: 0,
        pieces: [NO_PIECE; MAX_PIECES],
        count: 0,
        posted: 0,
        first_post: 0,
        last_post: 0,
    };

    pub(crate) const fn flags(&self) -> RdmaFlags {
        self.flags
    }

    pub(crate) const fn is_silent(&self) -> bool {
        self.flags.contains(RdmaFlags::SILENT)
    }

    /// Number of the last post so far.
    pub(crate) const fn last_post(&self) -> u64 {
        self.last_post
    }

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
    /// Registers the local memory of an operation and keeps what is needed for it.
    ///
    /// # Errors
    /// [`RdsError::InvalidArgument`], [`RdsError::MessageSize`], [`RdsError::NoMemory`], [`RdsError::Dat`]: see
    /// [`sendmsg_control`](Self::sendmsg_control).
    pub(crate) fn create_operation<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        owner: SocketHandle,
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
        let remote_address = u64::from(args.cookie.offset())
            .checked_add(args.remote_offset)
            .ok_or(RdsError::InvalidArgument)?;
        let notify_failure = open_socket(self.sockets, owner)?.receive_errors;
        let index = self.operations.iter().position(|op| !op.used).ok_or(RdsError::NoMemory)?;
        let mut pieces = [NO_PIECE; MAX_PIECES];
        for (at, memory) in args.local.iter().enumerate() {
            let rights = MemPriv::LOCAL_READ | MemPriv::LOCAL_WRITE;
            match (adapter.lmr_create(self.dat.ia, *memory, self.dat.pz, rights), pieces.get_mut(at)) {
                (Ok(created), Some(piece)) => {
                    let segment =
                        LmrTriplet::new(created.lmr_context, created.registered_address, memory.len() as u64);
                    *piece = Piece { lmr_bits: created.lmr.bits(), segment };
                }
                (Err(error), _) => {
                    free_pieces(adapter, &mut pieces);
                    return Err(error.into());
                }
                (Ok(_), None) => {}
            }
        }
        if let Some(entry) = self.operations.get_mut(index) {
            *entry = Operation {
                used: true,
                socket: owner.slot,
                generation: owner.generation,
                notify: args.flags.contains(RdmaFlags::NOTIFY_ME),
                notify_failure,
                flags: args.flags,
                user_token: args.user_token,
                rkey: args.cookie.rkey(),
                remote_address,
                pieces,
                count: args.local.len() as u8,
                ..Operation::EMPTY
            };
        }
        Ok(Link::to(index))
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
            return Progress::Complete;
        };
        let Some(state) = self.connections.get(connection) else { return Progress::Full };
        let Some(ep) = state.ep() else { return Progress::Full };
        let segment = piece.segment;
        let remote = RmrTriplet::new(op.rkey, op.remote_address, segment.segment_length);
        // The message behind it reports; without one the last transfer has to.
        let signal = alone && op.posted + 1 == op.count
            || state.posts + 1 - state.signalled >= u64::from(self.limits.signal_every);
        let cookie = self.cookie(connection, CookieKind::Rdma, state.posts + 1);
        let mut flags = CompletionFlags::empty();
        flags.set(CompletionFlags::SUPPRESS, !signal);
        let posted = if op.flags.contains(RdmaFlags::READWRITE) {
            adapter.ep_post_rdma_write(ep, &[segment], cookie, &remote, flags)
        } else {
            adapter.ep_post_rdma_read(ep, &[segment], cookie, &remote, flags)
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
        if op.first_post != 0 && (op.first_post..=op.last_post).contains(&number) {
            op.status = match status {
                DtoStatus::Success | DtoStatus::ErrFlushed => op.status,
                DtoStatus::ErrRemoteAccess => Some(RdmaStatus::RemoteError),
                _ => Some(RdmaStatus::OtherError),
            };
        }
    }

    /// Its application gave an operation up that is under way.
    pub(crate) fn cancel_operation(&mut self, link: Link) {
        if let Some(op) = link.get().and_then(|index| self.operations.get_mut(index)) {
            op.status.get_or_insert(RdmaStatus::Canceled);
        }
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
        let Some(op) = self.operations.get_mut(index) else { return };
        free_pieces(adapter, &mut op.pieces);
        let status = *op.status.get_or_insert(status);
        let owner = SocketHandle { slot: op.socket, generation: op.generation };
        let wanted = op.notify || op.notify_failure && status != RdmaStatus::Success;
        let last = match open_socket(self.sockets, owner) {
            Ok(socket) if wanted && op.socket != NOBODY => {
                let last = socket.notifications_last;
                socket.notifications_last = link;
                if last.is_none() {
                    socket.notifications = link;
                }
                op.next = Link::NONE;
                last
            }
            _ => {
                *op = Operation::EMPTY;
                return;
            }
        };
        if let Some(before) = last.get().and_then(|index| self.operations.get_mut(index)) {
            before.next = link;
        }
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
        let status = op.status.unwrap_or(RdmaStatus::OtherError);
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

//! RDMA as rds(3SOCKET) has it, its terms and regions: memory offered to peers by cookies. Linux `net/rds/rdma.c`.
//!
//! A region has exactly the requested bytes. Peers address them by offsets from the start of a page, because a cookie has 32 bits for an
//! offset: the first page of the region, or of the registered memory around it. A release by a firmware command ends access at once.
//! Access to part of registered memory ends when the HCA executes the unbind, after the messages in the send queue.

mod memories;
mod operations;
mod pieces;
mod regions;
mod windows;

use dat_nostd::DmaSlice;

use crate::error::RdsError;

pub use memories::MemoryHandle;
pub(crate) use memories::{Kept, Memory};
pub(crate) use operations::{Ending, Kind, Operation, Operations, Transfer};
pub use pieces::MAX_PIECES;
pub(crate) use pieces::{GATHER, Piece};
pub(crate) use regions::{Region, Regions};
pub(crate) use windows::{Use, Window, Windows};

/// The longest region, and the longest RDMA operation; bytes.
pub const MAX_RDMA_LEN: usize = 1 << 20;

/// Memory of a peer, as `rds_rdma_cookie_t`: the remote key in the low half, in the high half the offset of the region's
/// first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RdmaCookie(pub u64);

impl RdmaCookie {
    pub(crate) const fn new(rkey: u32, offset: u32) -> Self {
        Self((offset as u64) << 32 | rkey as u64)
    }

    /// The remote key.
    #[must_use]
    pub const fn rkey(self) -> u32 {
        self.0 as u32
    }

    /// What the region's first byte is addressed by.
    #[must_use]
    pub const fn offset(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

bitflags::bitflags! {
    /// Flags of regions and operations, with the values of `RDS_RDMA_…`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct RdmaFlags: u64 {
        /// Operation: write the peer's memory; otherwise read it.
        const READWRITE = 0x01;
        /// Operation: the message that goes with it leaves only when a read is done.
        const FENCE = 0x02;
        /// Region: access ends with the release. No effect here: [`free_mr`](crate::Rds::free_mr) with cookie 0 reports the end for every
        /// region, and a layer of C waits for it.
        const INVALIDATE = 0x04;
        /// Region: released when the peer says that it used it.
        const USE_ONCE = 0x08;
        /// Nothing waits here in any case.
        const DONTWAIT = 0x10;
        /// Operation: tell how it ended.
        const NOTIFY_ME = 0x20;
        /// Operation: without payload and cookie, send no message.
        const SILENT = 0x40;
        /// Region: its peers may read it. Where none of the three is given they may read and write, as on Linux. These are this crate's
        /// own; Linux takes no notice of them.
        const PEER_READS = 1 << 16;
        /// Region: its peers may write it.
        const PEER_WRITES = 1 << 17;
        /// Region: its peers may do atomic operations on it.
        const PEER_ATOMICS = 1 << 18;
    }
}

/// How an operation ended, with the values of `RDS_RDMA_…`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum RdmaStatus {
    /// It was done.
    Success = 0,
    /// The peer denied the access: wrong key, offset or length.
    RemoteError = 1,
    /// The application gave it up.
    Canceled = 2,
    /// The connection broke; it may have been done in part.
    Dropped = 3,
    /// Anything else.
    OtherError = 4,
}

impl RdmaStatus {
    /// The status with this number.
    #[must_use]
    pub const fn from_number(number: i32) -> Option<Self> {
        Some(match number {
            0 => Self::Success,
            1 => Self::RemoteError,
            2 => Self::Canceled,
            3 => Self::Dropped,
            4 => Self::OtherError,
            _ => return None,
        })
    }
}

/// `struct rds_rdma_notify`: the end of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmaNotify {
    /// As given with the operation.
    pub user_token: u64,
    /// How it ended.
    pub status: RdmaStatus,
}

/// `struct rds_rdma_args`: an operation on a peer's memory.
#[derive(Clone, Copy, Debug)]
pub struct RdmaArgs<'a> {
    /// The peer's region.
    pub cookie: RdmaCookie,
    /// Where in the region it begins, bytes.
    pub remote_offset: u64,
    /// Bytes of the region that may be touched: as many as the local pieces have; in the Linux profile also more.
    pub remote_bytes: u64,
    /// Local memory, piece by piece. Where it overlaps the remote memory, as it can within a node, there is a mixture of both afterwards.
    pub local: &'a [DmaSlice<'a>],
    /// READWRITE, FENCE, NOTIFY_ME, SILENT.
    pub flags: RdmaFlags,
    /// For the notification.
    pub user_token: u64,
}

/// What an atomic operation does to 8 bytes of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Replaces the value by `swap` if it is `compare`.
    CompareSwap {
        /// What has to be there.
        compare: u64,
        /// What is there afterwards.
        swap: u64,
    },
    /// Adds `add`; what goes beyond 64 bits is gone.
    FetchAdd {
        /// The number to add.
        add: u64,
    },
    /// Compares and replaces some bits (`RDS_CMSG_MASKED_ATOMIC_CSWP`). Only with masks of all ones, which is the plain operation.
    MaskedCompareSwap {
        /// What has to be there.
        compare: u64,
        /// What is there afterwards.
        swap: u64,
        /// Bits that are compared.
        compare_mask: u64,
        /// Bits that are replaced.
        swap_mask: u64,
    },
    /// Adds within fields (`RDS_CMSG_MASKED_ATOMIC_FADD`). Only with a mask of zero, which is the plain operation.
    MaskedFetchAdd {
        /// The number to add.
        add: u64,
        /// Bits that nothing is carried out of.
        nocarry_mask: u64,
    },
}

impl AtomicOp {
    /// The operation without masks that does the same. HCAs of this family have masked ones, but neither the DAT layer nor the
    /// emulated HCA offers them.
    ///
    /// # Errors
    /// [`RdsError::NotSupported`]: there is none.
    pub const fn plain(self) -> Result<Self, RdsError> {
        match self {
            Self::MaskedCompareSwap { compare, swap, compare_mask: u64::MAX, swap_mask: u64::MAX } => {
                Ok(Self::CompareSwap { compare, swap })
            }
            Self::MaskedFetchAdd { add, nocarry_mask: 0 } => Ok(Self::FetchAdd { add }),
            Self::MaskedCompareSwap { .. } | Self::MaskedFetchAdd { .. } => Err(RdsError::NotSupported),
            plain => Ok(plain),
        }
    }
}

/// `struct rds_atomic_args`: an atomic operation on 8 bytes of a peer, aligned to 8.
#[derive(Clone, Copy, Debug)]
pub struct AtomicArgs<'a> {
    /// The peer's region.
    pub cookie: RdmaCookie,
    /// Where in the region, bytes.
    pub remote_offset: u64,
    /// 8 bytes for what was there before, in this machine's order. Written last: if they are the same bytes, nothing changes.
    pub local: DmaSlice<'a>,
    /// What to do.
    pub op: AtomicOp,
    /// NOTIFY_ME, SILENT, FENCE.
    pub flags: RdmaFlags,
    /// For the notification.
    pub user_token: u64,
}

/// A payload that is sent from where it lies (`MSG_ZEROCOPY`). It is lent until the peer's RDS has the whole message: until then its bytes
/// may be sent once more, if the connection has to be made anew, and must not change.
#[derive(Clone, Copy, Debug)]
pub struct Lend<'a> {
    /// The payload, piece by piece. In memory that was [registered](crate::Rds::register_memory) for the destination it costs no command of
    /// the HCA's firmware; else each piece is registered for this message. Of several pieces no 4096 bytes, counted from the first, may lie
    /// in more than five; one piece goes fastest.
    pub payload: &'a [DmaSlice<'a>],
    /// NOTIFY_ME: tell when it is lent no more. Success: the peer has the message. Canceled: it was given up. Dropped: its registration
    /// was lost with the adapter, see [`Rds::adapter_recovered`](crate::Rds::adapter_recovered). In either case it may have arrived all the
    /// same.
    pub flags: RdmaFlags,
    /// For the notification.
    pub user_token: u64,
}

/// What goes along with a message: the control messages of `sendmsg`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Control<'a> {
    /// `RDS_CMSG_RDMA_ARGS`: do this before the message is sent.
    pub rdma: Option<RdmaArgs<'a>>,
    /// `RDS_CMSG_ATOMIC_FADD`, `RDS_CMSG_ATOMIC_CSWP`: and then this.
    pub atomic: Option<AtomicArgs<'a>>,
    /// `RDS_CMSG_RDMA_MAP`: offer this memory to the receiver.
    pub map: Option<(DmaSlice<'a>, RdmaFlags)>,
    /// `RDS_CMSG_RDMA_DEST`: offer memory for which there is a cookie.
    pub dest: Option<RdmaCookie>,
    /// `RDS_CMSG_ZCOPY_COOKIE`: send this in place of the message's own payload, which is empty; nothing else goes along.
    pub lend: Option<Lend<'a>>,
}

impl Control<'_> {
    /// Whether nothing goes along.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rdma.is_none()
            && self.atomic.is_none()
            && self.map.is_none()
            && self.dest.is_none()
            && self.lend.is_none()
    }
}

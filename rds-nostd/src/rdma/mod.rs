//! RDMA of rds(3SOCKET): types, and memory that is offered to peers by cookies. Linux
//! `net/rds/rdma.c`.
//!
//! A region has exactly the requested bytes. Peers address them relative to the start of a page,
//! because a cookie has 32 bits for an offset: the first page of the region, or of the registered
//! memory that contains it. A release by a firmware command ends access immediately. Access to part
//! of registered memory ends when the HCA executes the unbind, after the messages in the send
//! queue.

mod iov;
mod memories;
mod operations;
mod regions;
mod windows;

use dat_nostd::DmaSlice;

use crate::error::RdsError;

pub use iov::MAX_IOVS;
pub(crate) use iov::{GATHER, Iov};
pub(crate) use memories::Memory;
pub use memories::MemoryHandle;
pub(crate) use operations::{Kind, Operation, Operations, Transfer};
pub(crate) use regions::{Region, Regions};
pub(crate) use windows::{Use, Window, Windows};

/// Maximum bytes of a region and of an RDMA operation.
pub const MAX_RDMA_LEN: usize = 1 << 20;

/// Memory of a peer, as `rds_rdma_cookie_t`: the remote key in the low half, the offset of the
/// region's first byte in the high half.
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

    /// Returns the offset that addresses the region's first byte.
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
        /// Operation: delay its message until the read completes.
        const FENCE = 0x02;
        /// Region: end access at the release. Without effect here: [`free_mr`](crate::Rds::free_mr)
        /// with cookie 0 reports the end for every region, and a C layer waits for it.
        const INVALIDATE = 0x04;
        /// Region: release it when the peer reports its use.
        const USE_ONCE = 0x08;
        /// No effect, because calls never wait.
        const DONTWAIT = 0x10;
        /// Operation: report its status.
        const NOTIFY_ME = 0x20;
        /// Operation: without payload and cookie, send no message.
        const SILENT = 0x40;
        /// Region: peers may read it. Without any of these three flags peers may read and write, as
        /// in Linux. The flags are extensions of this crate, which Linux ignores.
        const PEER_READS = 1 << 16;
        /// Region: its peers may write it.
        const PEER_WRITES = 1 << 17;
        /// Region: peers may execute atomic operations on it.
        const PEER_ATOMICS = 1 << 18;
    }
}

/// Status of a completed operation, with the values of `RDS_RDMA_…`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum RdmaStatus {
    /// The operation succeeded.
    Success = 0,
    /// The peer denied the access: wrong key, offset or length.
    RemoteError = 1,
    /// The socket cancelled it.
    Canceled = 2,
    /// The connection broke. A part of it may have been executed.
    Dropped = 3,
    /// Any other error.
    OtherError = 4,
}

impl RdmaStatus {
    /// Returns the status with this number.
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

/// `struct rds_rdma_notify`: status of a completed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmaNotify {
    /// Token of the operation.
    pub user_token: u64,
    /// Status.
    pub status: RdmaStatus,
}

/// `struct rds_rdma_args`: an operation on a peer's memory.
#[derive(Clone, Copy, Debug)]
pub struct RdmaArgs<'a> {
    /// The peer's region.
    pub cookie: RdmaCookie,
    /// Offset in the region, in bytes.
    pub remote_offset: u64,
    /// Bytes of the region that the operation may access: the sum of `local`, or more in the Linux
    /// profile.
    pub remote_bytes: u64,
    /// Local memory, as a list of segments. If it overlaps the remote memory, as is possible within
    /// a node, the result is a mixture of both.
    pub local: &'a [DmaSlice<'a>],
    /// READWRITE, FENCE, NOTIFY_ME, SILENT.
    pub flags: RdmaFlags,
    /// For the notification.
    pub user_token: u64,
}

/// Atomic operation on 8 bytes of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Replaces the value by `swap` if it equals `compare`.
    CompareSwap {
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Adds `add`, modulo 2^64.
    FetchAdd {
        /// Addend.
        add: u64,
    },
    /// Compares and replaces some bits (`RDS_CMSG_MASKED_ATOMIC_CSWP`). Supported only with masks
    /// of all ones, as the operation without masks.
    MaskedCompareSwap {
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
        /// Bits that are compared.
        compare_mask: u64,
        /// Bits that are replaced.
        swap_mask: u64,
    },
    /// Adds within fields (`RDS_CMSG_MASKED_ATOMIC_FADD`). Supported only with a zero mask, as the
    /// operation without masks.
    MaskedFetchAdd {
        /// Addend.
        add: u64,
        /// Bits without carry to the next.
        nocarry_mask: u64,
    },
}

impl AtomicOp {
    /// Returns the equivalent operation without masks. HCAs of this family have masked operations,
    /// but neither the DAT layer nor the emulated HCA offers them.
    ///
    /// # Errors
    /// [`RdsError::NotSupported`]: no equivalent exists.
    pub(crate) const fn kind(self) -> Result<Kind, RdsError> {
        Ok(match self {
            Self::CompareSwap { compare, swap }
            | Self::MaskedCompareSwap { compare, swap, compare_mask: u64::MAX, swap_mask: u64::MAX } => {
                Kind::CompareSwap { compare, swap }
            }
            Self::FetchAdd { add } | Self::MaskedFetchAdd { add, nocarry_mask: 0 } => Kind::FetchAdd { add },
            _ => return Err(RdsError::NotSupported),
        })
    }
}

/// `struct rds_atomic_args`: an atomic operation on 8 bytes of a peer, aligned to 8.
#[derive(Clone, Copy, Debug)]
pub struct AtomicArgs<'a> {
    /// The peer's region.
    pub cookie: RdmaCookie,
    /// Offset in the region, in bytes.
    pub remote_offset: u64,
    /// 8 bytes for the previous value, in native byte order. Written last: if local and remote are
    /// the same bytes, they keep their value.
    pub local: DmaSlice<'a>,
    /// The operation.
    pub op: AtomicOp,
    /// NOTIFY_ME, SILENT, FENCE.
    pub flags: RdmaFlags,
    /// For the notification.
    pub user_token: u64,
}

/// A payload that is sent without a copy (`MSG_ZEROCOPY`). The program must not change it until the
/// peer has acknowledged the complete message, because a reconnection may retransmit it.
#[derive(Clone, Copy, Debug)]
pub struct Lend<'a> {
    /// The payload, as a list of segments. Memory that was
    /// [registered](crate::Rds::register_memory) for the destination needs no firmware command;
    /// each other segment is registered for this message. A fragment of 4096 bytes, counted from
    /// the first, may span up to five segments. A single segment is fastest.
    pub payload: &'a [DmaSlice<'a>],
    /// NOTIFY_ME: report the end of the loan. Success: the peer has the message. Canceled: the
    /// socket cancelled it. Dropped: its registration was lost with the adapter, see
    /// [`Rds::adapter_recovered`](crate::Rds::adapter_recovered). The message may have arrived in
    /// each case.
    pub flags: RdmaFlags,
    /// For the notification.
    pub user_token: u64,
}

/// Control messages of a `sendmsg`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Control<'a> {
    /// `RDS_CMSG_RDMA_ARGS`: an operation to execute before the message.
    pub rdma: Option<RdmaArgs<'a>>,
    /// `RDS_CMSG_ATOMIC_FADD`, `RDS_CMSG_ATOMIC_CSWP`: an atomic operation after it.
    pub atomic: Option<AtomicArgs<'a>>,
    /// `RDS_CMSG_RDMA_MAP`: memory to register and offer to the receiver.
    pub map: Option<(DmaSlice<'a>, RdmaFlags)>,
    /// `RDS_CMSG_RDMA_DEST`: the cookie of memory to offer to the receiver.
    pub dest: Option<RdmaCookie>,
    /// `RDS_CMSG_ZCOPY_COOKIE`: send this payload without a copy. The message's own payload and all
    /// other control messages must be empty.
    pub lend: Option<Lend<'a>>,
}

impl Control<'_> {
    /// Returns whether there is no control message.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rdma.is_none()
            && self.atomic.is_none()
            && self.map.is_none()
            && self.dest.is_none()
            && self.lend.is_none()
    }
}

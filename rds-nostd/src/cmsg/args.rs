//! Structures of RDMA, field by field. Addresses in them are those of the program; the C layer
//! dereferences them.

use dat_nostd::DmaSlice;

use crate::cmsg::abi::Abi;
use crate::cmsg::error::CmsgError;
use crate::cmsg::fields::{Field, codecs, get, structures};
use crate::rdma::{AtomicArgs, AtomicOp, RdmaArgs, RdmaCookie, RdmaFlags};

structures! {
    /// `struct rds_iovec`, 16 bytes: memory of the program, or part of a peer's.
    #[derive(Default)]
    pub struct RdsIovec {
        /// Address, or offset in a peer's region.
        pub addr: u64 = 0,
        /// Length in bytes.
        pub bytes: u64 = 8,
    }

    /// `struct rds_get_mr_args`, 32 bytes: memory to offer (MAP, `RDS_GET_MR`).
    #[derive(Default)]
    pub struct RdsGetMrArgs {
        /// The memory.
        pub vec: RdsIovec = 0,
        /// Address that receives the cookie; 0 for none.
        pub cookie_addr: u64 = 16,
        /// USE_ONCE, INVALIDATE.
        pub flags: RdmaFlags = 24,
    }

    /// `struct rds_get_mr_for_dest_args`, 160 bytes: memory to offer to one peer
    /// (`RDS_GET_MR_FOR_DEST`).
    pub struct RdsGetMrForDestArgs {
        /// The peer, as a `struct sockaddr_storage` for
        /// [`decode_address`](crate::cmsg::decode_address).
        pub dest: [u8; Self::DEST_LEN] = 0,
        /// The memory.
        pub args: RdsGetMrArgs = Self::DEST_LEN,
    }

    /// `struct rds_free_mr_args`, 16 bytes: memory to revoke (`RDS_FREE_MR`).
    pub struct RdsFreeMrArgs {
        /// The region; 0 for all released regions.
        pub cookie: RdmaCookie = 0,
        /// INVALIDATE.
        pub flags: RdmaFlags = 8,
    }

    /// `struct rds_rdma_args`, 56 bytes: an operation on a peer's memory. With a token of 32 bits
    /// it has 52 bytes and 4 of padding.
    pub struct RdsRdmaArgs {
        /// The peer's region.
        pub cookie: RdmaCookie = 0,
        /// Part of the region: `addr` is an offset into it.
        pub remote_vec: RdsIovec = 8,
        /// Address of an array of [`RdsIovec`] in the program: the local memory.
        pub local_vec_addr: u64 = 24,
        /// Elements of the array.
        pub nr_local: u64 = 32,
        /// READWRITE, FENCE, NOTIFY_ME, SILENT.
        pub flags: RdmaFlags = 40,
        /// For the notification.
        pub user_token: u64 = Self::TOKEN_AT,
    }
}

codecs! {
    RdsIovec: 16;
    RdsGetMrArgs: 32;
    RdsGetMrForDestArgs: Self::DEST_LEN + RdsGetMrArgs::LEN;
    RdsFreeMrArgs: 16;
}

impl RdsGetMrForDestArgs {
    /// Bytes of a `struct sockaddr_storage`.
    pub const DEST_LEN: usize = 128;
}

impl RdsRdmaArgs {
    /// Bytes of the structure.
    pub const LEN: usize = 56;
    const TOKEN_AT: usize = 48;

    /// Returns the minimum length.
    pub(super) const fn least_len(abi: &Abi) -> usize {
        Self::TOKEN_AT + abi.token_bytes
    }

    pub(super) fn at(bytes: &[u8], abi: &Abi) -> Self {
        Self { user_token: token(bytes, Self::TOKEN_AT, abi), ..Self::get(bytes, 0) }
    }

    /// Returns the bytes written.
    pub(super) fn write(&self, bytes: &mut [u8], abi: &Abi) -> usize {
        self.put(bytes, 0);
        // Clears the upper half where it is padding.
        0u64.put(bytes, Self::TOKEN_AT);
        put_token(bytes, Self::TOKEN_AT, self.user_token, abi);
        Self::LEN
    }

    /// Returns the operation on the memory that the array describes.
    #[must_use]
    pub const fn with<'a>(&self, local: &'a [DmaSlice<'a>]) -> RdmaArgs<'a> {
        RdmaArgs {
            cookie: self.cookie,
            remote_offset: self.remote_vec.addr,
            remote_bytes: self.remote_vec.bytes,
            local,
            flags: self.flags,
            user_token: self.user_token,
        }
    }
}

/// `struct rds_atomic_args`, 72 bytes: an atomic operation on a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdsAtomicArgs {
    /// The peer's region.
    pub cookie: RdmaCookie,
    /// Address that receives the previous value: 8 bytes.
    pub local_addr: u64,
    /// Offset in the region.
    pub remote_addr: u64,
    /// The operation. The control message's type selects the member of the union.
    pub op: AtomicOp,
    /// NOTIFY_ME, SILENT, FENCE.
    pub flags: RdmaFlags,
    /// For the notification.
    pub user_token: u64,
}

impl RdsAtomicArgs {
    /// Bytes of the structure.
    pub const LEN: usize = 72;

    pub(super) const FADD: i32 = 6;
    pub(super) const CSWP: i32 = 7;
    pub(super) const MASKED_FADD: i32 = 8;
    pub(super) const MASKED_CSWP: i32 = 9;

    /// Returns the type of the control message.
    pub(super) const fn kind(&self) -> i32 {
        match self.op {
            AtomicOp::FetchAdd { .. } => Self::FADD,
            AtomicOp::CompareSwap { .. } => Self::CSWP,
            AtomicOp::MaskedFetchAdd { .. } => Self::MASKED_FADD,
            AtomicOp::MaskedCompareSwap { .. } => Self::MASKED_CSWP,
        }
    }

    /// Decodes a control message of this type, one of the four.
    pub(super) fn at(bytes: &[u8], kind: i32, abi: &Abi) -> Self {
        let [first, second, third, fourth] = get::<[u64; 4]>(bytes, 24);
        let op = match kind {
            Self::FADD => AtomicOp::FetchAdd { add: first },
            Self::CSWP => AtomicOp::CompareSwap { compare: first, swap: second },
            Self::MASKED_FADD => AtomicOp::MaskedFetchAdd { add: first, nocarry_mask: second },
            _ => AtomicOp::MaskedCompareSwap {
                compare: first,
                swap: second,
                compare_mask: third,
                swap_mask: fourth,
            },
        };
        Self {
            cookie: Field::get(bytes, 0),
            local_addr: Field::get(bytes, 8),
            remote_addr: Field::get(bytes, 16),
            op,
            flags: Field::get(bytes, 56),
            user_token: token(bytes, 64, abi),
        }
    }

    /// Returns the bytes written.
    pub(super) fn write(&self, bytes: &mut [u8], abi: &Abi) -> usize {
        let operands = match self.op {
            AtomicOp::FetchAdd { add } => [add, 0, 0, 0],
            AtomicOp::CompareSwap { compare, swap } => [compare, swap, 0, 0],
            AtomicOp::MaskedFetchAdd { add, nocarry_mask } => [add, nocarry_mask, 0, 0],
            AtomicOp::MaskedCompareSwap { compare, swap, compare_mask, swap_mask } => {
                [compare, swap, compare_mask, swap_mask]
            }
        };
        [self.cookie.0, self.local_addr, self.remote_addr].put(bytes, 0);
        operands.put(bytes, 24);
        self.flags.put(bytes, 56);
        put_token(bytes, 64, self.user_token, abi);
        Self::LEN
    }

    /// Returns the operation with the 8 bytes at `local_addr`.
    #[must_use]
    pub const fn with<'a>(&self, local: DmaSlice<'a>) -> AtomicArgs<'a> {
        AtomicArgs {
            cookie: self.cookie,
            remote_offset: self.remote_addr,
            local,
            op: self.op,
            flags: self.flags,
            user_token: self.user_token,
        }
    }
}

/// Trace points: header to start of the message, reassembly, delivery.
const POSITIONS: usize = 3;

/// `struct rds_rx_trace_so`, 4 bytes: the trace points of the receive path to report
/// (`SO_RDS_MSG_RXPATH_LATENCY`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxTraceOption {
    count: u8,
    positions: [u8; POSITIONS],
}

impl RxTraceOption {
    /// Bytes of the structure.
    pub const LEN: usize = 4;

    /// Decodes the argument of the option.
    ///
    /// # Errors
    /// [`CmsgError::Structure`]: wrong length. [`CmsgError::Position`]: more than three trace
    /// points, or an undefined one. Linux returns `EFAULT` for both.
    pub fn decode(bytes: &[u8]) -> Result<Self, CmsgError> {
        let &[count, ref positions @ ..] = bytes else {
            return Err(CmsgError::Structure { needed: Self::LEN, found: 0 });
        };
        let &positions: &[u8; POSITIONS] = positions
            .try_into()
            .map_err(|_| CmsgError::Structure { needed: Self::LEN, found: bytes.len() })?;
        let told = positions.get(..usize::from(count)).ok_or(CmsgError::Position(count))?;
        match told.iter().find(|position| usize::from(**position) >= POSITIONS) {
            Some(&position) => Err(CmsgError::Position(position)),
            None => Ok(Self { count, positions }),
        }
    }

    /// Returns the encoded structure.
    #[must_use]
    pub const fn encode(self) -> [u8; Self::LEN] {
        let [first, second, third] = self.positions;
        [self.count, first, second, third]
    }

    /// Returns the trace points to report, in order.
    #[must_use]
    pub fn positions(&self) -> &[u8] {
        self.positions.get(..usize::from(self.count)).unwrap_or(&[])
    }

    /// Selects the reported trace points from the latencies of all.
    #[must_use]
    pub fn trace(self, nanoseconds: [u64; POSITIONS]) -> RxTrace {
        let mut told = [0; POSITIONS];
        for (told, position) in told.iter_mut().zip(self.positions()) {
            *told = nanoseconds.get(usize::from(*position)).copied().unwrap_or(0);
        }
        RxTrace { option: self, nanoseconds: told }
    }
}

/// `struct rds_cmsg_rx_trace`, 32 bytes: latencies of the receive path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxTrace {
    /// The trace points.
    pub option: RxTraceOption,
    /// Latencies in the same order, in nanoseconds.
    pub nanoseconds: [u64; POSITIONS],
}

impl RxTrace {
    /// Bytes of the structure.
    pub const LEN: usize = 32;

    pub(super) fn at(bytes: &[u8]) -> Result<Self, CmsgError> {
        let option = RxTraceOption::decode(&<[u8; RxTraceOption::LEN]>::get(bytes, 0))?;
        Ok(Self { option, nanoseconds: get(bytes, 8) })
    }

    /// Returns the bytes written.
    pub(super) fn put(&self, bytes: &mut [u8]) -> usize {
        self.option.encode().put(bytes, 0);
        self.nanoseconds.put(bytes, 8);
        Self::LEN
    }
}

structures! {
    /// `struct rds_zcopy_cookies`, 36 bytes: completed zero-copy sends.
    #[derive(Default)]
    pub struct ZcopyCookies {
        /// Number of valid cookies.
        pub num: u32 = 0,
        /// Cookies of `RDS_CMSG_ZCOPY_COOKIE`.
        pub cookies: [u32; ZcopyCookies::MOST] = 4,
    }
}

impl ZcopyCookies {
    /// Bytes of the structure.
    pub const LEN: usize = 4 + 4 * Self::MOST;
    /// `RDS_MAX_ZCOOKIES`.
    pub const MOST: usize = 8;
}

pub(super) fn token(bytes: &[u8], at: usize, abi: &Abi) -> u64 {
    match abi.token_bytes {
        4 => u32::get(bytes, at).into(),
        _ => Field::get(bytes, at),
    }
}

pub(super) fn put_token(bytes: &mut [u8], at: usize, token: u64, abi: &Abi) {
    match abi.token_bytes {
        4 => (token as u32).put(bytes, at),
        _ => token.put(bytes, at),
    }
}

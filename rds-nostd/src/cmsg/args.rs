//! Structures of RDMA, field by field. Addresses in them are those of the program; the C layer
//! dereferences them.

use dat_nostd::DmaSlice;

use crate::cmsg::abi::Abi;
use crate::cmsg::error::CmsgError;
use crate::cmsg::fields::{get, get_u32, get_u64, put, put_u32, put_u64};
use crate::rdma::{AtomicArgs, AtomicOp, RdmaArgs, RdmaCookie, RdmaFlags};

/// `struct rds_iovec`, 16 bytes: memory of the program, or part of a peer's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RdsIovec {
    /// Address, or offset in a peer's region.
    pub addr: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl RdsIovec {
    /// Bytes of the structure.
    pub const LEN: usize = 16;

    /// Decodes an element.
    ///
    /// # Errors
    /// [`CmsgError::Structure`]: too few bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, CmsgError> {
        Ok(Self::at(structure(bytes, Self::LEN)?, 0))
    }

    /// Returns the encoded structure.
    #[must_use]
    pub fn encode(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        self.put(&mut bytes, 0);
        bytes
    }

    fn at(bytes: &[u8], at: usize) -> Self {
        Self { addr: get_u64(bytes, at), bytes: get_u64(bytes, at + 8) }
    }

    fn put(self, bytes: &mut [u8], at: usize) {
        put_u64(bytes, at, self.addr);
        put_u64(bytes, at + 8, self.bytes);
    }
}

/// `struct rds_get_mr_args`, 32 bytes: memory to offer (MAP, `RDS_GET_MR`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RdsGetMrArgs {
    /// The memory.
    pub vec: RdsIovec,
    /// Address that receives the cookie; 0 for none.
    pub cookie_addr: u64,
    /// USE_ONCE, INVALIDATE.
    pub flags: RdmaFlags,
}

impl RdsGetMrArgs {
    /// Bytes of the structure.
    pub const LEN: usize = 32;

    /// Decodes the argument of an option or the payload of a control message.
    ///
    /// # Errors
    /// [`CmsgError::Structure`]: too few bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, CmsgError> {
        Ok(Self::at(structure(bytes, Self::LEN)?, 0))
    }

    /// Returns the encoded structure.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        self.put(&mut bytes, 0);
        bytes
    }

    fn at(bytes: &[u8], at: usize) -> Self {
        Self {
            vec: RdsIovec::at(bytes, at),
            cookie_addr: get_u64(bytes, at + 16),
            flags: RdmaFlags::from_bits_retain(get_u64(bytes, at + 24)),
        }
    }

    fn put(&self, bytes: &mut [u8], at: usize) {
        self.vec.put(bytes, at);
        put_u64(bytes, at + 16, self.cookie_addr);
        put_u64(bytes, at + 24, self.flags.bits());
    }
}

/// `struct rds_get_mr_for_dest_args`, 160 bytes: memory to offer to one peer
/// (`RDS_GET_MR_FOR_DEST`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdsGetMrForDestArgs {
    /// The peer, as a `struct sockaddr_storage` for
    /// [`decode_address`](crate::cmsg::decode_address).
    pub dest: [u8; Self::DEST_LEN],
    /// The memory.
    pub args: RdsGetMrArgs,
}

impl RdsGetMrForDestArgs {
    /// Bytes of the structure.
    pub const LEN: usize = Self::DEST_LEN + RdsGetMrArgs::LEN;
    /// Bytes of a `struct sockaddr_storage`.
    pub const DEST_LEN: usize = 128;

    /// Decodes the argument of the option.
    ///
    /// # Errors
    /// [`CmsgError::Structure`]: too few bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, CmsgError> {
        let bytes = structure(bytes, Self::LEN)?;
        Ok(Self { dest: get(bytes, 0), args: RdsGetMrArgs::at(bytes, Self::DEST_LEN) })
    }

    /// Returns the encoded structure.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        put(&mut bytes, 0, self.dest);
        self.args.put(&mut bytes, Self::DEST_LEN);
        bytes
    }
}

/// `struct rds_free_mr_args`, 16 bytes: memory to revoke (`RDS_FREE_MR`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdsFreeMrArgs {
    /// The region; 0 for all released regions.
    pub cookie: RdmaCookie,
    /// INVALIDATE.
    pub flags: RdmaFlags,
}

impl RdsFreeMrArgs {
    /// Bytes of the structure.
    pub const LEN: usize = 16;

    /// Decodes the argument of the option.
    ///
    /// # Errors
    /// [`CmsgError::Structure`]: too few bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, CmsgError> {
        let bytes = structure(bytes, Self::LEN)?;
        let flags = RdmaFlags::from_bits_retain(get_u64(bytes, 8));
        Ok(Self { cookie: RdmaCookie(get_u64(bytes, 0)), flags })
    }

    /// Returns the encoded structure.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        put_u64(&mut bytes, 0, self.cookie.0);
        put_u64(&mut bytes, 8, self.flags.bits());
        bytes
    }
}

/// `struct rds_rdma_args`, 56 bytes: an operation on a peer's memory. With a token of 32 bits it
/// has 52 bytes and 4 of padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdsRdmaArgs {
    /// The peer's region.
    pub cookie: RdmaCookie,
    /// Part of the region: `addr` is an offset into it.
    pub remote_vec: RdsIovec,
    /// Address of an array of [`RdsIovec`] in the program: the local memory.
    pub local_vec_addr: u64,
    /// Elements of the array.
    pub nr_local: u64,
    /// READWRITE, FENCE, NOTIFY_ME, SILENT.
    pub flags: RdmaFlags,
    /// For the notification.
    pub user_token: u64,
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
        Self {
            cookie: RdmaCookie(get_u64(bytes, 0)),
            remote_vec: RdsIovec::at(bytes, 8),
            local_vec_addr: get_u64(bytes, 24),
            nr_local: get_u64(bytes, 32),
            flags: RdmaFlags::from_bits_retain(get_u64(bytes, 40)),
            user_token: token(bytes, Self::TOKEN_AT, abi),
        }
    }

    pub(super) fn put(&self, bytes: &mut [u8], abi: &Abi) {
        put_u64(bytes, 0, self.cookie.0);
        self.remote_vec.put(bytes, 8);
        put_u64(bytes, 24, self.local_vec_addr);
        put_u64(bytes, 32, self.nr_local);
        put_u64(bytes, 40, self.flags.bits());
        put_token(bytes, Self::TOKEN_AT, self.user_token, abi);
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
        let [first, second, third, fourth] = [24, 32, 40, 48].map(|at| get_u64(bytes, at));
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
            cookie: RdmaCookie(get_u64(bytes, 0)),
            local_addr: get_u64(bytes, 8),
            remote_addr: get_u64(bytes, 16),
            op,
            flags: RdmaFlags::from_bits_retain(get_u64(bytes, 56)),
            user_token: token(bytes, 64, abi),
        }
    }

    pub(super) fn put(&self, bytes: &mut [u8], abi: &Abi) {
        let operands = match self.op {
            AtomicOp::FetchAdd { add } => [add, 0, 0, 0],
            AtomicOp::CompareSwap { compare, swap } => [compare, swap, 0, 0],
            AtomicOp::MaskedFetchAdd { add, nocarry_mask } => [add, nocarry_mask, 0, 0],
            AtomicOp::MaskedCompareSwap { compare, swap, compare_mask, swap_mask } => {
                [compare, swap, compare_mask, swap_mask]
            }
        };
        put_u64(bytes, 0, self.cookie.0);
        put_u64(bytes, 8, self.local_addr);
        put_u64(bytes, 16, self.remote_addr);
        for (operand, at) in operands.into_iter().zip([24, 32, 40, 48]) {
            put_u64(bytes, at, operand);
        }
        put_u64(bytes, 56, self.flags.bits());
        put_token(bytes, 64, self.user_token, abi);
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
        let option = RxTraceOption::decode(&get::<{ RxTraceOption::LEN }>(bytes, 0))?;
        Ok(Self { option, nanoseconds: [8, 16, 24].map(|at| get_u64(bytes, at)) })
    }

    pub(super) fn put(&self, bytes: &mut [u8]) {
        put(bytes, 0, self.option.encode());
        for (nanoseconds, at) in self.nanoseconds.into_iter().zip([8, 16, 24]) {
            put_u64(bytes, at, nanoseconds);
        }
    }
}

/// `struct rds_zcopy_cookies`, 36 bytes: completed zero-copy sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZcopyCookies {
    /// Number of valid cookies.
    pub num: u32,
    /// Cookies of `RDS_CMSG_ZCOPY_COOKIE`.
    pub cookies: [u32; Self::MOST],
}

impl ZcopyCookies {
    /// Bytes of the structure.
    pub const LEN: usize = 4 + 4 * Self::MOST;
    /// `RDS_MAX_ZCOOKIES`.
    pub const MOST: usize = 8;

    pub(super) fn at(bytes: &[u8]) -> Self {
        let cookies = core::array::from_fn(|index| get_u32(bytes, 4 + 4 * index));
        Self { num: get_u32(bytes, 0), cookies }
    }

    pub(super) fn put(&self, bytes: &mut [u8]) {
        put_u32(bytes, 0, self.num);
        for (cookie, index) in self.cookies.into_iter().zip(0..) {
            put_u32(bytes, 4 + 4 * index, cookie);
        }
    }
}

pub(super) fn token(bytes: &[u8], at: usize, abi: &Abi) -> u64 {
    match abi.token_bytes {
        4 => u64::from(get_u32(bytes, at)),
        _ => get_u64(bytes, at),
    }
}

pub(super) fn put_token(bytes: &mut [u8], at: usize, token: u64, abi: &Abi) {
    match abi.token_bytes {
        4 => put_u32(bytes, at, token as u32),
        _ => put_u64(bytes, at, token),
    }
}

/// Returns the first `needed` bytes.
fn structure(bytes: &[u8], needed: usize) -> Result<&[u8], CmsgError> {
    bytes.get(..needed).ok_or(CmsgError::Structure { needed, found: bytes.len() })
}

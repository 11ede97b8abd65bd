//! Control messages: type and payload.

use crate::cmsg::abi::Abi;
use crate::cmsg::args::{RdsAtomicArgs, RdsGetMrArgs, RdsRdmaArgs, RxTrace, ZcopyCookies, put_token, token};
use crate::cmsg::error::CmsgError;
use crate::cmsg::fields::{Field, get, put};
use crate::rdma::{RdmaCookie, RdmaNotify, RdmaStatus};

/// Maximum payload of a control message, in bytes.
pub const MAX_PAYLOAD_LEN: usize = RdsAtomicArgs::LEN;

/// A control message of level `SOL_RDS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cmsg {
    /// `RDS_CMSG_RDMA_ARGS`, 1.
    RdmaArgs(RdsRdmaArgs),
    /// `RDS_CMSG_RDMA_DEST`, 2.
    RdmaDest(RdmaCookie),
    /// `RDS_CMSG_RDMA_MAP`, 3.
    RdmaMap(RdsGetMrArgs),
    /// `RDS_CMSG_RDMA_STATUS`, 4. Layouts with 32-bit tokens carry the lower half.
    RdmaStatus(RdmaNotify),
    /// `RDS_CMSG_CONG_UPDATE`, 5: bit `p % 64` for port `p`.
    CongUpdate(u64),
    /// `RDS_CMSG_ATOMIC_FADD`, 6, `_CSWP`, 7, and with masks 8 and 9.
    Atomic(RdsAtomicArgs),
    /// `RDS_CMSG_RXPATH_LATENCY`, 11.
    RxpathLatency(RxTrace),
    /// `RDS_CMSG_ZCOPY_COOKIE`, 12.
    ZcopyCookie(u32),
    /// `RDS_CMSG_ZCOPY_COMPLETION`, 13.
    ZcopyCompletion(ZcopyCookies),
}

const RDMA_ARGS: i32 = 1;
const RDMA_DEST: i32 = 2;
const RDMA_MAP: i32 = 3;
const RDMA_STATUS: i32 = 4;
const CONG_UPDATE: i32 = 5;
const RXPATH_LATENCY: i32 = 11;
const ZCOPY_COOKIE: i32 = 12;
const ZCOPY_COMPLETION: i32 = 13;

impl Cmsg {
    /// `cmsg_type`.
    #[must_use]
    pub const fn kind(&self) -> i32 {
        match self {
            Self::RdmaArgs(_) => RDMA_ARGS,
            Self::RdmaDest(_) => RDMA_DEST,
            Self::RdmaMap(_) => RDMA_MAP,
            Self::RdmaStatus(_) => RDMA_STATUS,
            Self::CongUpdate(_) => CONG_UPDATE,
            Self::Atomic(args) => args.kind(),
            Self::RxpathLatency(_) => RXPATH_LATENCY,
            Self::ZcopyCookie(_) => ZCOPY_COOKIE,
            Self::ZcopyCompletion(_) => ZCOPY_COMPLETION,
        }
    }

    /// Returns whether the ABI defines the type.
    #[must_use]
    pub const fn is_of(&self, abi: &Abi) -> bool {
        self.kind() <= abi.last_type
    }

    /// Decodes a payload. Ignores trailing bytes.
    ///
    /// # Errors
    /// [`CmsgError::Type`], [`CmsgError::Payload`], [`CmsgError::Status`], [`CmsgError::Position`].
    pub fn decode(abi: &Abi, kind: i32, payload: &[u8]) -> Result<Self, CmsgError> {
        if kind > abi.last_type {
            return Err(CmsgError::Type(kind));
        }
        let least = |needed| match payload.get(..needed) {
            Some(bytes) => Ok(bytes),
            None => Err(CmsgError::Payload { kind, needed, found: payload.len() }),
        };
        Ok(match kind {
            RDMA_ARGS => Self::RdmaArgs(RdsRdmaArgs::at(least(RdsRdmaArgs::least_len(abi))?, abi)),
            RDMA_DEST => Self::RdmaDest(get(least(8)?, 0)),
            RDMA_MAP => Self::RdmaMap(RdsGetMrArgs::decode(least(RdsGetMrArgs::LEN)?)?),
            RDMA_STATUS => {
                let bytes = least(abi.notify_len())?;
                let status = get::<u32>(bytes, abi.token_bytes).cast_signed();
                let status = RdmaStatus::from_number(status).ok_or(CmsgError::Status(status))?;
                Self::RdmaStatus(RdmaNotify { user_token: token(bytes, 0, abi), status })
            }
            CONG_UPDATE => Self::CongUpdate(get(least(8)?, 0)),
            RdsAtomicArgs::FADD..=RdsAtomicArgs::MASKED_CSWP => {
                Self::Atomic(RdsAtomicArgs::at(least(RdsAtomicArgs::LEN)?, kind, abi))
            }
            RXPATH_LATENCY => Self::RxpathLatency(RxTrace::at(least(RxTrace::LEN)?)?),
            ZCOPY_COOKIE => Self::ZcopyCookie(get(least(4)?, 0)),
            ZCOPY_COMPLETION => Self::ZcopyCompletion(get(least(ZcopyCookies::LEN)?, 0)),
            _ => return Err(CmsgError::Type(kind)),
        })
    }

    /// Returns the encoded payload and its length. Padding is 0.
    #[must_use]
    pub fn encode(&self, abi: &Abi) -> ([u8; MAX_PAYLOAD_LEN], usize) {
        fn fill(bytes: &mut [u8], value: impl Field, len: usize) -> usize {
            value.put(bytes, 0);
            len
        }
        let mut bytes = [0; MAX_PAYLOAD_LEN];
        let len = match *self {
            Self::RdmaDest(RdmaCookie(word)) | Self::CongUpdate(word) => fill(&mut bytes, word, 8),
            Self::RdmaMap(args) => fill(&mut bytes, args, RdsGetMrArgs::LEN),
            Self::RxpathLatency(trace) => trace.put(&mut bytes),
            Self::ZcopyCookie(cookie) => fill(&mut bytes, cookie, 4),
            Self::ZcopyCompletion(cookies) => fill(&mut bytes, cookies, ZcopyCookies::LEN),
            Self::RdmaArgs(args) => args.write(&mut bytes, abi),
            Self::Atomic(args) => args.write(&mut bytes, abi),
            Self::RdmaStatus(notify) => {
                put_token(&mut bytes, 0, notify.user_token, abi);
                put(&mut bytes, abi.token_bytes, notify.status as u32);
                abi.notify_len()
            }
        };
        (bytes, len)
    }
}

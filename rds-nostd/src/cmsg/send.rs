//! Control messages of `sendmsg`.

use crate::cmsg::abi::Abi;
use crate::cmsg::args::{RdsAtomicArgs, RdsGetMrArgs, RdsRdmaArgs};
use crate::cmsg::buffer::ControlReader;
use crate::cmsg::error::CmsgError;
use crate::cmsg::message::Cmsg;
use crate::rdma::RdmaCookie;

/// The control messages of a `sendmsg`, checked as in Linux: no unsupported type, no duplicate, and
/// either an offer of memory or an operation. The C layer dereferences the addresses and builds a
/// [`Control`](crate::Control).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendControl {
    /// `RDS_CMSG_RDMA_ARGS`. Convert it with [`RdsRdmaArgs::with`].
    pub rdma: Option<RdsRdmaArgs>,
    /// An atomic operation. Convert it with [`RdsAtomicArgs::with`].
    pub atomic: Option<RdsAtomicArgs>,
    /// `RDS_CMSG_RDMA_MAP`.
    pub map: Option<RdsGetMrArgs>,
    /// `RDS_CMSG_RDMA_DEST`.
    pub dest: Option<RdmaCookie>,
    /// `RDS_CMSG_ZCOPY_COOKIE`, which belongs to `MSG_ZEROCOPY`. Linux supports neither over
    /// InfiniBand (`EOPNOTSUPP`).
    pub zcopy: Option<u32>,
}

impl SendControl {
    /// Parses `msg_control`, `msg_controllen` bytes.
    ///
    /// # Errors
    /// Any [`CmsgError`] except those of structures and addresses.
    pub fn parse(abi: Abi, buffer: &[u8]) -> Result<Self, CmsgError> {
        let mut control = Self::default();
        for message in ControlReader::new(abi, buffer) {
            let message = message?;
            let second = match message {
                Cmsg::RdmaArgs(args) => control.rdma.replace(args).is_some(),
                Cmsg::Atomic(args) => control.atomic.replace(args).is_some(),
                Cmsg::RdmaMap(args) => control.map.replace(args).is_some() || control.dest.is_some(),
                Cmsg::RdmaDest(cookie) => control.dest.replace(cookie).is_some() || control.map.is_some(),
                Cmsg::ZcopyCookie(cookie) => control.zcopy.replace(cookie).is_some(),
                Cmsg::RdmaStatus(_)
                | Cmsg::CongUpdate(_)
                | Cmsg::RxpathLatency(_)
                | Cmsg::ZcopyCompletion(_) => return Err(CmsgError::OnlyReceived(message.kind())),
            };
            if second {
                return Err(CmsgError::Twice(message.kind()));
            }
        }
        let offers = control.map.is_some() || control.dest.is_some();
        if offers && (control.rdma.is_some() || control.atomic.is_some()) {
            return Err(CmsgError::OfferWithOperation);
        }
        Ok(control)
    }
}

//! A connection request that waits for its answer.

use ib_port::ib_mgmt::cm::ConnId;

use crate::base::event::ServicePoint;
use crate::base::handle::{EpHandle, IaHandle};
use crate::base::types::IaAddress;
use crate::conn::framing::{Framing, REQ_LEN};

/// A connection request that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub struct Cr {
    pub(crate) ia: IaHandle,
    pub(crate) framing: Framing,
    pub(crate) conn: ConnId,
    /// The peer has given up; an accept ends in ACCEPT_COMPLETION_ERROR.
    pub(crate) withdrawn: bool,
    pub(crate) remote_address: IaAddress,
    pub(crate) remote_port: u64,
    pub(crate) remote_gid: [u8; 16],
    pub(crate) conn_qual: u64,
    pub(crate) sp: ServicePoint,
    /// Reserved for it, or made for it.
    pub(crate) ep: Option<EpHandle>,
    /// The peer's depths of RDMA reads, as this side sees them.
    pub(crate) reads: (u8, u8),
    pub(crate) private_data: [u8; REQ_LEN],
    pub(crate) private_data_size: u8,
}

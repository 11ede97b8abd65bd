//! Connection requests. DAT 1.2, connection management.

mod calls;

use ib_port::ib_mgmt::cm::ConnId;

use crate::base::event::ServicePoint;
use crate::base::handle::{EpHandle, IaHandle};
use crate::base::table::of_ia;
use crate::base::types::IaAddress;
use crate::conn::connection::Ends;
use crate::conn::framing::{Framing, REQ_LEN};

/// A connection request that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub struct Cr {
    ia: IaHandle,
    framing: Framing,
    conn: ConnId,
    /// The peer has given up; an accept ends in ACCEPT_COMPLETION_ERROR.
    withdrawn: bool,
    remote_address: IaAddress,
    remote_port: u64,
    remote_gid: [u8; 16],
    conn_qual: u64,
    sp: ServicePoint,
    /// Reserved for it, or made for it.
    ep: Option<EpHandle>,
    /// The peer's depths of RDMA reads, as this side sees them.
    reads: (u8, u8),
    private_data: [u8; REQ_LEN],
    private_data_size: u8,
}

of_ia! { Cr }

impl Cr {
    /// Returns the ends of the requested connection.
    fn ends(&self) -> Ends {
        Ends {
            local_port: self.conn_qual,
            remote_address: self.remote_address,
            remote_port: self.remote_port,
        }
    }
}

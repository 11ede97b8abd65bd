//! Reliable Datagram Sockets (RDS) on DAT: reliable, ordered datagrams between sockets, all of them sharing one RC connection
//! for each pair of addresses. No heap, no threads, no clock; wire-compatible with Linux's `rds_rdma` (protocol 3.1).
//!
//! | module | subject |
//! |---|---|
//! | [`wire`] | headers, fragments, private data |
//! | `frames` | the memory that messages live in |
//! | `limits` | how that memory is divided |
//! | `node` | [`Rds`]: start, bind, close, the event loop |
//! | `send`, `transmit`, `settle` | `sendmsg`, posting, completions and acknowledgements |
//! | `receive` | arrivals, delivery, `recvmsg` |
//! | `congestion` | which ports take no more, here and at the peers |
//! | `rdma`, `operation` | memory offered to peers, operations on theirs |
//! | `zone` | whom offered memory is protected from |
//! | `options`, `profile` | addresses, buffers, options and readiness of sockets; as Linux or rds(3SOCKET) has them |
//! | `calls`, `interface` | what a C layer needs: flags of calls, interfaces |
//! | `connect`, `reason` | connection management, and why connections end |
//! | `counters`, `info`, `info_binary`, `table` | what a node tells of itself: records, `rds-info`'s elements, tables |
//!
//! A message is copied once on each side: into frames by [`Rds::sendmsg`], out of them by [`Rds::recvmsg`]. It occupies
//! frames until the peer's RDS has acknowledged it; when a connection is lost, a new one is made and what was not
//! acknowledged is sent again. A message that arrives for a port that nobody is bound to is acknowledged, dropped and counted.
//!
//! ```no_run
//! use std::net::{IpAddr, SocketAddr};
//!
//! use dat_nostd::{Adapter, Platform};
//! use rds_nostd::{Rds, RdsConfig, RdsError, RdsStorage};
//!
//! fn echo<P: Platform>(adapter: &mut Adapter<'_, P>, storage: &mut RdsStorage<4, 8, 1024>) -> Result<(), RdsError> {
//!     let mut rds = Rds::start(adapter, storage.parts(), RdsConfig::default())?;
//!     let address: IpAddr = adapter.address();
//!     let socket = rds.bind(SocketAddr::new(address, 4000))?;
//!     let mut buffer = [0; 8192];
//!     loop {
//!         let now = adapter.platform().now();
//!         adapter.poll(now);
//!         rds.poll(adapter, now);
//!         match rds.recvmsg(adapter, socket, &mut buffer) {
//!             Ok(message) => {
//!                 rds.sendmsg(adapter, socket, message.from, &buffer[..message.len])?;
//!             }
//!             Err(RdsError::Again) => {}
//!             Err(error) => return Err(error),
//!         }
//!     }
//! }
//! ```
//!
//! Not here: masked atomics (but for masks with which they are plain ones), time stamps, receive-path latency, zero-copy sends,
//! flow control by credits, multipath, and the TCP transport.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod calls;
mod congestion;
mod connect;
mod connection;
mod counters;
mod error;
mod frames;
mod info;
mod info_binary;
mod interface;
mod limits;
mod node;
mod operation;
mod options;
mod profile;
mod rdma;
mod reason;
mod receive;
mod send;
mod settle;
mod slot;
mod socket;
mod storage;
mod straight;
mod table;
mod transmit;
pub mod wire;
mod words;
mod zone;

pub use calls::{MsgFlags, MsgReceived};
pub use congestion::port_mask;
pub use counters::{Counter, Counters};
pub use error::RdsError;
pub use info::{ConnectionFlags, ConnectionInfo, IbConnectionInfo, MessageInfo, SocketInfo};
pub use info_binary::{
    InfoError, InfoWritten, RDS_INFO_CONNECTIONS, RDS_INFO_COUNTERS, RDS_INFO_IB_CONNECTIONS,
    RDS_INFO_RECV_MESSAGES, RDS_INFO_RETRANS_MESSAGES, RDS_INFO_SEND_MESSAGES, RDS_INFO_SOCKETS,
    RDS6_INFO_CONNECTIONS, RDS6_INFO_IB_CONNECTIONS, RDS6_INFO_RECV_MESSAGES, RDS6_INFO_RETRANS_MESSAGES,
    RDS6_INFO_SEND_MESSAGES, RDS6_INFO_SOCKETS,
};
pub use interface::{Interface, InterfaceFlags};
pub use node::Rds;
pub use operation::MAX_PIECES;
pub use profile::Profile;
pub use rdma::{
    AtomicArgs, AtomicOp, Control, MAX_RDMA_LEN, RdmaArgs, RdmaCookie, RdmaFlags, RdmaNotify, RdmaStatus,
};
pub use reason::DownReason;
pub use socket::{Arrival, PollMask, PollRule, Received, SocketHandle, Transport};
pub use storage::{RdsConfig, RdsParts, RdsStorage};
pub use table::{Table, TableKind};

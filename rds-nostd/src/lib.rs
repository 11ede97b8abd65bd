//! Reliable Datagram Sockets (RDS) on DAT: reliable, ordered datagrams between sockets, all of them
//! sharing one RC connection for each pair of addresses. No heap, no threads, no clock;
//! wire-compatible with Linux's `rds_rdma` (protocol 3.1).
//!
//! | module | subject |
//! |---|---|
//! | [`wire`] | headers, fragments, private data |
//! | `frames`, `limits` | the memory of messages, and its division among peers |
//! | `connection` | the state of a peer: `tx`, `rx`, `map`, `reconnect`; the table of all |
//! | `protocol` | the protocol without I/O: `process` takes frames, `dispatch` returns posts, `poll_at` the next deadline |
//! | `io` | [`Rds`]: sockets with their addresses and options, [`Rds::poll`], and all other users of the adapter |
//! | `profile` | differences between Linux and rds(3SOCKET) |
//! | `rdma` | memory offered to peers, operations on theirs |
//! | `message`, `interface` | arguments of `sendmsg` and results of `recvmsg`, as in C; interfaces |
//! | [`cmsg`] | control messages, structures and addresses in C's layout |
//! | `reason` | reasons why connections go down |
//! | `counters`, `info` | information about a node: records, `rds-info`'s elements, tables |
//! | [`guide`] | RDMA by cookie, and the costs of messages |
//!
//! A message is copied once on each side, into frames by [`Rds::sendmsg`] and out of them by
//! [`Rds::recvmsg`], unless its payload is lent ([`Lend`], [`MsgFlags::ZEROCOPY`]). Its frames are
//! in use until the peer's RDS has acknowledged it. After the loss of a connection the node
//! reconnects, and retransmits unacknowledged messages. Messages to an unbound port are
//! acknowledged, dropped and counted.
//!
//! ```no_run
//! use std::net::{IpAddr, SocketAddr};
//! use std::time::Duration;
//!
//! use dat_nostd::{Adapter, Platform};
//! use rds_nostd::{Arrival, Generation, Msg, MsgFlags, Rds, RdsConfig, RdsError, RdsStorage};
//!
//! fn echo<P: Platform>(
//!     adapter: &mut Adapter<'_, P>,
//!     storage: &mut RdsStorage<4, 8, 1024>,
//!     wall_clock: Duration,
//! ) -> Result<(), RdsError> {
//!     let config = RdsConfig::new(Generation::from_wall_clock(wall_clock));
//!     let mut rds = Rds::start(adapter, storage.parts(), config)?;
//!     let address: IpAddr = adapter.address();
//!     let socket = rds.bind(SocketAddr::new(address, 4000))?;
//!     let mut buffer = [0; 8192];
//!     loop {
//!         let now = adapter.now();
//!         adapter.poll(now);
//!         rds.poll(adapter, now);
//!         match rds.recvmsg(adapter, socket, &mut buffer, MsgFlags::empty()) {
//!             // Messages from port 0 are replies to pings.
//!             Ok(Arrival::Message(message)) if message.from.port() == 0 => {}
//!             Ok(Arrival::Message(message)) => {
//!                 match rds.sendmsg(adapter, socket, Msg::to(&message.from, &buffer[..message.len])) {
//!                     // Drop the reply to a client that does not drain its socket: others must not wait.
//!                     Ok(_) | Err(RdsError::Again | RdsError::NoBufferSpace | RdsError::Congested) => {}
//!                     Err(error) => return Err(error),
//!                 }
//!             }
//!             Ok(_) | Err(RdsError::Again) => {}
//!             Err(error) => return Err(error),
//!         }
//!     }
//! }
//! ```
//!
//! Missing: masked atomics (except with masks that make them plain), time stamps, credit-based flow
//! control, multipath, RDS over TCP.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

#[macro_use]
mod empty;

pub mod cmsg;
mod config;
mod connection;
mod counters;
mod error;
mod frames;
mod generation;
pub mod guide;
mod ids;
mod info;
mod interface;
mod io;
mod limits;
mod log;
mod message;
mod profile;
mod protocol;
mod quota;
mod rdma;
mod reason;
mod slot;
mod socket;
mod storage;
pub mod wire;
mod words;

pub use config::RdsConfig;
pub use connection::port_mask;
pub use counters::{Counter, Counters};
pub use error::RdsError;
pub use generation::Generation;
pub use ids::SocketHandle;
pub use info::binary::{
    InfoError, InfoWritten, RDS_INFO_CONNECTIONS, RDS_INFO_COUNTERS, RDS_INFO_IB_CONNECTIONS,
    RDS_INFO_RECV_MESSAGES, RDS_INFO_RETRANS_MESSAGES, RDS_INFO_SEND_MESSAGES, RDS_INFO_SOCKETS,
    RDS6_INFO_CONNECTIONS, RDS6_INFO_IB_CONNECTIONS, RDS6_INFO_RECV_MESSAGES, RDS6_INFO_RETRANS_MESSAGES,
    RDS6_INFO_SEND_MESSAGES, RDS6_INFO_SOCKETS,
};
pub use info::table::{Table, TableKind};
pub use info::{ConnectionFlags, ConnectionInfo, IbConnectionInfo, MessageInfo, SocketInfo};
pub use interface::{Interface, InterfaceFlags};
pub use io::Rds;
pub use message::{Arrival, FramesHandle, LentMessage, Msg, MsgFlags, Received};
pub use profile::Profile;
pub use rdma::{
    AtomicArgs, AtomicOp, Control, Lend, MAX_IOVS, MAX_RDMA_LEN, MemoryHandle, RdmaArgs, RdmaCookie,
    RdmaFlags, RdmaNotify, RdmaStatus,
};
pub use reason::DownReason;
pub use socket::{PollMask, PollRule, Transport};
pub use storage::{RdsParts, RdsStorage};

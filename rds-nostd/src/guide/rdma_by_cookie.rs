//! RDMA by cookie: transfers between the memories of two programs, without copies.
//!
//! A program offers a buffer to a peer by a *cookie*: 64 bits with a remote key and an offset. The
//! peer names the cookie in an operation, and the HCAs read or write the buffer. The processor of
//! the offering side has no part in the transfer. The calls are those of rds(3SOCKET) and of Linux.
//!
//! # When to use it
//!
//! | data | use |
//! |---|---|
//! | up to some KiB | a message, which is copied once on each side |
//! | longer, requested by the receiver, into a buffer of its choice | RDMA by cookie |
//! | longer, any receive buffer will do | a message with a borrowed payload ([`Lend`](crate::Lend)) |
//! | a counter or a lock in a peer's memory | an atomic operation by cookie ([`AtomicArgs`](crate::AtomicArgs)) |
//!
//! # How it works
//!
//! ```text
//! client                                       server
//!   register_memory(.., server, buffer)          register_memory(.., client, block)
//!   sendmsg, map: buffer ------ cookie ------->  recvmsg: message.cookie
//!                                                sendmsg, rdma: cookie, block
//!   buffer  <------------- RDMA write ---------     1. the operation
//!   recvmsg  <------------- reply -------------     2. the message
//!                                                recvmsg: RdmaStatus, token and Success
//! ```
//!
//! The operation executes before its message, so the client finds the data in its buffer when the
//! reply arrives. [`register_memory`](crate::Rds::register_memory) is optional. It is called once
//! for each peer and saves a firmware command for each offer and operation.
//!
//! # Example
//!
//! ```
//! use core::net::SocketAddr;
//! use dat_nostd::{Adapter, DmaSlice, Platform};
//! use rds_nostd::{
//!     Arrival, Control, Msg, MsgFlags, Rds, RdmaArgs, RdmaCookie, RdmaFlags, RdmaStatus, RdsError,
//!     Received, SocketHandle,
//! };
//!
//! /// Client: requests a block into `buffer`, which the server may write once.
//! fn request<P: Platform>(
//!     (rds, adapter): (&mut Rds<'_>, &mut Adapter<'_, P>),
//!     socket: SocketHandle,
//!     server: SocketAddr,
//!     buffer: DmaSlice<'_>,
//! ) -> Result<(), RdsError> {
//!     let flags = RdmaFlags::PEER_WRITES | RdmaFlags::USE_ONCE;
//!     let control = Control { map: Some((buffer, flags)), ..Control::default() };
//!     rds.sendmsg(adapter, socket, Msg::to(&server, b"read block 7").with(&control))?;
//!     Ok(())
//! }
//!
//! /// Server: writes `block` to the client's buffer, and replies.
//! fn reply<P: Platform>(
//!     (rds, adapter): (&mut Rds<'_>, &mut Adapter<'_, P>),
//!     socket: SocketHandle,
//!     (client, cookie): (SocketAddr, RdmaCookie),
//!     block: DmaSlice<'_>,
//! ) -> Result<(), RdsError> {
//!     let write = RdmaArgs {
//!         cookie,
//!         remote_offset: 0,
//!         remote_bytes: block.len() as u64,
//!         local: &[block],
//!         flags: RdmaFlags::READWRITE | RdmaFlags::NOTIFY_ME,
//!         user_token: 7,
//!     };
//!     let control = Control { rdma: Some(write), ..Control::default() };
//!     rds.sendmsg(adapter, socket, Msg::to(&client, b"done").with(&control))?;
//!     Ok(())
//! }
//!
//! /// Server: one iteration of its loop. Returns the status of a completed write: `block` may change
//! /// then. Without `Success` the client's buffer may lack a part.
//! fn serve<P: Platform>(
//!     (rds, adapter): (&mut Rds<'_>, &mut Adapter<'_, P>),
//!     socket: SocketHandle,
//!     block: DmaSlice<'_>,
//! ) -> Result<Option<RdmaStatus>, RdsError> {
//!     let now = adapter.now();
//!     adapter.poll(now);
//!     rds.poll(adapter, now);
//!     let mut text = [0; 64];
//!     match rds.recvmsg(adapter, socket, &mut text, MsgFlags::empty()) {
//!         Ok(Arrival::Message(Received { from, cookie: Some(cookie), .. })) => {
//!             reply((rds, adapter), socket, (from, cookie), block).map(|()| None)
//!         }
//!         Ok(Arrival::RdmaStatus(completed)) => Ok(Some(completed.status)),
//!         Ok(_) | Err(RdsError::Again) => Ok(None),
//!         Err(error) => Err(error),
//!     }
//! }
//! ```
//!
//! # Rules
//!
//! - **Memory** belongs to the adapter ([`Adapter::dma_alloc`](dat_nostd::Adapter::dma_alloc)), or
//!   is any memory of the program (`DmaSlice::foreign`, which is `unsafe`). A region and an
//!   operation have at most 1 MiB ([`MAX_RDMA_LEN`](crate::MAX_RDMA_LEN)), and an operation at most
//!   512 local segments.
//! - **Protection.** Each peer has its own protection zone
//!   ([`isolate_peers`](crate::RdsConfig::isolate_peers), on by default), so a key is useless to
//!   all other peers. An offer must then name its peer: with a message, or by
//!   [`get_mr_for_dest`](crate::Rds::get_mr_for_dest). Without isolation, any peer that learns or
//!   guesses a key may use it.
//! - **Identity.** A peer's IPv4 address must resolve to the GID of its port, by IPoIB or the
//!   static table. Without IPoIB, and for IPv6 addresses outside the table, the node accepts the
//!   address that a peer claims.
//! - **Rights.** Peers may read and write a region, as in Linux, unless the offer has one of the
//!   flags `PEER_READS`, `PEER_WRITES` and `PEER_ATOMICS`.
//! - **Order.** The peer may use a cookie once the message that carries it has arrived. A message
//!   waits for its own read only with `FENCE`.
//! - **Status.** An operation reports its status with `NOTIFY_ME`, and a failure also after
//!   [`set_receive_errors`](crate::Rds::set_receive_errors). A broken connection drops the
//!   operations that it has begun, together with their messages. `Dropped` thus means: perhaps
//!   executed in part.
//! - **End of an offer.** A region with `USE_ONCE` ends when the peer's message reports its use.
//!   All others end by [`free_mr`](crate::Rds::free_mr). Without a firmware command, access ends a
//!   moment later: `free_mr` with cookie 0, `unregister_memory` and `close` return `Again` until
//!   then. Poll, and repeat the call. A peer without completions for 100 ms then loses its
//!   connection. After a device failure, access to memory of the program ends only with the
//!   recovery.
//! - **Linux as the peer.** A denied operation breaks the connection. Linux accepts the next
//!   connection only when its program has released all regions that it mapped for the peer.
//! - **Within a node** RDMA is an immediate copy by the processor, with the same checks and
//!   notifications. It requires [`rdma_within`](crate::RdsConfig::rdma_within). Loopback addresses
//!   have no RDMA, as in Linux.
//!
//! # What it costs
//!
//! | step | memory registered before | otherwise |
//! |---|---|---|
//! | offer (`map`, `get_mr_for_dest`) | a bind among the messages | a firmware command |
//! | operation | a work request for each six segments | and a firmware command for each segment |
//! | release | an unbind among the messages | a firmware command |
//! | data | no instruction | no instruction |
//!
//! A firmware command blocks the complete node. Binds are memory windows: an offer uses one only
//! while the connection to the peer is up, the HCA has windows, and the adapter's storage has
//! `rmrs` and `binds` left (`adapter_storage!`). A node reuses its windows, one for each region.
//! The key of a window is a counter that repeats after 128 uses. It is valid on all connections of
//! the peer, also after a break.
//!
//! With registered memory the example takes about 1,900 instructions on both sides together: two
//! short messages of 857 with their acknowledgements ([`costs`](crate::guide::costs)), a posted
//! write (100) and its completion (85). The bench asserts each of these figures. Not included are
//! the bind and the entries of region and operation, which it does not measure. The length of the
//! data has no influence. A copied message of 1 MiB takes 848,000.

//! Costs of messages in instructions and memory, and ways to reduce them.
//!
//! `cargo xtask bench` counts the instructions under callgrind, on x86-64, and fails above the bars
//! below.
//!
//! | step | instructions | bar |
//! |---|---|---|
//! | [`sendmsg`](crate::Rds::sendmsg) of 64 bytes, with its doorbell | 297 | `rds.send64` |
//! | [`poll`](crate::Rds::poll) and [`recvmsg`](crate::Rds::recvmsg) of 64 bytes, and a new receive | 336 | `rds.recv64` |
//! | release of an acknowledged message at its sender | 103 | `rds.acked64` |
//! | `sendmsg` to 255 peers in turn | 331 | `rds.peers_send64` |
//! | `poll` and `recvmsg` from 255 peers in turn, with the acknowledgements | 520 | `rds.peers_recv64` |
//! | 1 MiB copied on both sides, per KiB | 819 | `rds.copied_kib` |
//! | 1 MiB without copies on both sides, per KiB | 185 | `rds.lent_kib` |
//!
//! A message of 64 bytes thus takes 734 instructions from `sendmsg` to the release of its frame.
//! 1,000 peers cost at most 5 % more than 255.
//!
//! # Which path to use
//!
//! - **Short messages**: plain `sendmsg`. One frame, one doorbell, one copy on each side.
//! - **Several messages in a row**: [`MsgFlags::MORE`](crate::MsgFlags::MORE). All of them leave
//!   with one doorbell, which is a write over PCIe.
//! - **Long messages**: [`Lend`](crate::Lend) at the sender and
//!   [`MsgFlags::ZEROCOPY`](crate::MsgFlags::ZEROCOPY) at the receiver take less than a quarter of
//!   the instructions. Register the memory once ([`register_memory`](crate::Rds::register_memory)):
//!   otherwise each message takes firmware commands. A single segment is fastest.
//! - **Data into a buffer of the receiver's choice**: [RDMA by
//!   cookie](crate::guide::rdma_by_cookie), whose instructions do not depend on the length.
//!
//! # Example
//!
//! A program sends a burst under one doorbell, and a block without a copy:
//!
//! ```
//! use core::net::SocketAddr;
//! use dat_nostd::{Adapter, DmaSlice, Platform};
//! use rds_nostd::{Control, Lend, Msg, MsgFlags, Rds, RdmaFlags, RdsError, SocketHandle};
//!
//! fn send_burst<P: Platform>(
//!     (rds, adapter): (&mut Rds<'_>, &mut Adapter<'_, P>),
//!     socket: SocketHandle,
//!     peer: SocketAddr,
//!     messages: &[&[u8]],
//! ) -> Result<(), RdsError> {
//!     for message in messages {
//!         rds.sendmsg(adapter, socket, Msg::to(&peer, message).flags(MsgFlags::MORE))?;
//!     }
//!     // Rings the doorbell for all of them.
//!     let now = adapter.now();
//!     rds.poll(adapter, now);
//!     Ok(())
//! }
//!
//! /// `block` must not change before `recvmsg` returns an `RdmaStatus` with token 7.
//! fn send_block<P: Platform>(
//!     (rds, adapter): (&mut Rds<'_>, &mut Adapter<'_, P>),
//!     socket: SocketHandle,
//!     peer: SocketAddr,
//!     block: DmaSlice<'_>,
//! ) -> Result<(), RdsError> {
//!     let lend = Lend { payload: &[block], flags: RdmaFlags::NOTIFY_ME, user_token: 7 };
//!     let control = Control { lend: Some(lend), ..Control::default() };
//!     rds.sendmsg(adapter, socket, Msg::to(&peer, &[]).with(&control))?;
//!     Ok(())
//! }
//! ```
//!
//! # Compared with the minimum
//!
//! The bench also counts a program that omits whatever RDS can omit: messages of 64 bytes over DAT,
//! on one connection, after RDS's header with its checksum. That program has one socket, and no
//! ports, order, shares, congestion, retransmission or errors. Its messages take 168 instructions to
//! send and 187 to receive. RDS adds 128 and 148 for these features. The original aims were 280 for either, and 420
//! with many peers.
//!
//! # Memory
//!
//! [`RdsStorage`](crate::RdsStorage) lists the bytes of each table entry, and
//! [`dma_len`](crate::RdsStorage::dma_len) returns the DMA memory. Most of it is frames of 4160
//! bytes. Their number bounds the messages that a node accepts: 1,024 frames accept 1 MiB, 256
//! frames 256 KiB. Peers with this crate learn the limit in the handshake, and their `sendmsg`
//! fails with `MessageSize` beyond it. Messages of other peers, and messages that were queued
//! before the connection was up, may exceed the limit. The node acknowledges, drops and counts them
//! ([`recv_drop_too_long`](crate::Counters::recv_drop_too_long)).

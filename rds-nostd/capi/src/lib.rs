//! Reliable Datagram Sockets for C programs on Linux: the socket calls of `<rds/rds.h>` on
//! [`rds_nostd`].
//!
//! | module | subject |
//! |---|---|
//! | `calls` | the exported functions, and `poll` |
//! | `blocking` | calls that block, and thread cancellation in them |
//! | `descriptor` | the program's descriptor of a socket |
//! | `node` | an HCA with its sockets, its lock and its thread |
//! | `fd_table` | table from descriptor to HCA, read without a lock |
//! | `process` | the HCAs of a process, and the owners of its sockets |
//!
//! [`rds_calls`] implements the calls. The firmware library shares it.
//!
//! `RDS_DEVICE` names the HCAs (`DEVICE@ADDRESS`, with commas between several), or `dat.conf` does.
//! The first is brought up with the first socket, each other one when a socket is bound to its
//! address. One thread of the library per HCA makes progress. Descriptors are event descriptors,
//! readable while the socket has something to receive.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod blocking;
#[allow(unsafe_code)]
pub mod calls;
#[allow(unsafe_code)]
mod descriptor;
#[allow(unsafe_code)]
mod fd_table;
#[allow(unsafe_code)]
mod node;
#[allow(unsafe_code)]
mod process;

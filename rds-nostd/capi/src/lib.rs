//! Reliable Datagram Sockets for C programs: the socket calls of `<rds/rds.h>` on [`rds_nostd`], in a Linux process.
//!
//! | module | subject |
//! |---|---|
//! | `calls` | the functions under their names, and `poll` |
//! | `blocking` | calls that wait, in which threads can be cancelled |
//! | `descriptor` | what a socket is to the program |
//! | `node` | an HCA with its sockets, behind its lock, and its thread |
//! | `homes` | which HCA a socket is on, by its number, without a lock |
//! | `process` | the HCAs of a process, and where its sockets are |
//!
//! What the calls do is in [`rds_calls`], which firmware shares.
//!
//! `RDS_DEVICE` names the HCAs (`DEVICE@ADDRESS`, with commas between several), or `dat.conf` does. The first is brought up when the first
//! socket is made, another when a socket is bound to its address. A thread of the library's moves everything on, one for each. Descriptors
//! are event descriptors: readable while the socket has something to receive.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod blocking;
#[allow(unsafe_code)]
pub mod calls;
#[allow(unsafe_code)]
mod descriptor;
#[allow(unsafe_code)]
mod homes;
#[allow(unsafe_code)]
mod node;
#[allow(unsafe_code)]
mod process;

//! Reliable Datagram Sockets for C programs: the socket calls of `<rds/rds.h>` on [`rds_nostd`], in a Linux process.
//!
//! | module | subject |
//! |---|---|
//! | `calls` | the functions, as C calls them |
//! | `abi` | `struct msghdr` as Linux and as Solaris lay it out |
//! | `memory` | what pointers of the program's lead to |
//! | `failure` | why calls fail, as `errno` has it |
//! | `control` | what goes along with a message, both ways |
//! | `options` | `setsockopt` and `getsockopt` |
//! | `socket` | a socket and its descriptor |
//! | `node` | the one HCA of a process, with its sockets, behind its lock |
//! | `wait` | calls that wait, and `poll` |
//!
//! A process has one HCA: `RDS_DEVICE` names it (`DEVICE@ADDRESS`), or the first line of `dat.conf` that names a device. It is brought up when
//! the first socket is made. A thread of the library's moves everything on. Descriptors are event descriptors: readable while the socket
//! has something to receive.
#![deny(unsafe_code)]

mod abi;
#[allow(unsafe_code)]
pub mod calls;
#[allow(unsafe_code)]
mod control;
mod failure;
#[allow(unsafe_code)]
mod memory;
#[allow(unsafe_code)]
mod node;
#[allow(unsafe_code)]
mod options;
mod socket;
mod wait;

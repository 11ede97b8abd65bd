//! The C socket calls of RDS on [`rds_nostd`], without operating system, standard library or
//! allocator. A [`Node`] supplies the lock of a device, the way to wait, and the descriptors.
//!
//! | module | subject |
//! |---|---|
//! | [`calls`] | the functions |
//! | `abi` | `struct msghdr` as Linux and as Solaris lay it out |
//! | `memory` | memory that the program's pointers name |
//! | [`failure`] | errors, as `errno` numbers them |
//! | `control` | control messages, both directions |
//! | `options` | `setsockopt` and `getsockopt` |
//! | [`socket`] | a socket and its descriptor |
//! | `node` | an HCA with its sockets, behind its lock |
//! | [`recovery`] | recovery of a failed HCA |
//! | `wait` | calls that wait |
//! | `table` | the calls with their arguments, for libraries that export them |
#![no_std]
#![deny(unsafe_code)]

#[cfg(test)]
extern crate std;

mod abi;
#[allow(unsafe_code)]
pub mod calls;
#[allow(unsafe_code)]
mod control;
pub mod failure;
#[allow(unsafe_code)]
mod memory;
mod node;
#[allow(unsafe_code)]
mod options;
pub mod recovery;
pub mod socket;
mod table;
mod wait;

pub use control::Iovs;
pub use failure::{Answer, Failure};
pub use node::{Node, Sockets, State};
pub use options::{Kept, Level, SocketOption, Target};
pub use socket::{Descriptor, Socket};

//! The socket calls of RDS as C makes them, on [`rds_nostd`], wherever they run. Without an operating system, standard library or
//! allocator; what runs them says how a device's lock is taken, how one waits, and what a descriptor is: [`Node`].
//!
//! | module | subject |
//! |---|---|
//! | [`calls`] | the functions |
//! | `abi` | `struct msghdr` as Linux and as Solaris lay it out |
//! | `memory` | what pointers of the program's lead to |
//! | [`failure`] | why calls fail, as `errno` has it |
//! | `control` | what goes along with a message, both ways |
//! | `options` | `setsockopt` and `getsockopt` |
//! | [`socket`] | a socket and its descriptor |
//! | `node` | an HCA with its sockets, behind its lock |
//! | [`recovery`] | an HCA that has failed is brought back |
//! | `wait` | calls that wait |
//! | `table` | the calls with their arguments, for those who export them |
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

pub use control::Pieces;
pub use failure::{Answer, Failure};
pub use node::{Node, Sockets, State};
pub use options::{Kept, Level, SocketOption, Target};
pub use socket::{Descriptor, Socket};

//! The unikernel's applications without the machine: driven by polling, they know nothing of where they run, so that the same
//! code runs in the unikernel on QEMU, against Linux, and in one process on the emulated HCA.
//!
//! | module | application |
//! |---|---|
//! | [`boot`] | `app=serve` and its client, `rdmaboot.efi`: boot images over RDS and RDMA |
//! | [`ip`] | `app=ip`, `app=ping`, `app=tcp`: an IP host, its services and their clients |
//! | [`rds`] | `app=rds`: Reliable Datagram Sockets: pings, an echo server; what works on them have in common |
//! | [`stress`] | `app=rds mode=stress`: rds-stress, with itself and with the one of rds-tools |
//! | [`rping`] | `app=rping`: rdmacm-utils' `rping`, on DAT |
//! | [`selftest`] | `app=selftest`: the first hour with a card, without a partner |
//!
//! [`connection`] is what the applications on DAT stand on.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

use core::ops::ControlFlow;

use driver_mlx::Wake;

pub mod boot;
pub mod connection;
pub mod ip;
pub mod rds;
pub mod rping;
pub mod selftest;
pub mod stress;

/// Which side a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Answers.
    Server,
    /// Begins.
    Client,
}

/// State of an application after a call. `Continue` has the time of the next call, which is earlier if something arrives. `Break`: the
/// application is done.
pub type Status = ControlFlow<(), Wake>;

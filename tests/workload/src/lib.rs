//! Test partners whose programs are data. The same engine runs in the unikernel (`main.rs` is its
//! image) and in one process on the emulated HCA. The programs in C in `tests/guest` run the same
//! steps on Linux.
//!
//! | module | program |
//! |---|---|
//! | [`verbs`] | a reliable connection on the driver only: send, write, read, atomics |
//! | [`rds`] | Reliable Datagram Sockets: messages, RDMA by cookie, congestion |
//! | [`perftest`] | the server of `ib_write_bw -R` |
//! | [`memory`] | payload in memory that the HCA reaches |
//! | [`report`] | the result of a step |
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod memory;
pub mod perftest;
pub mod rds;
pub mod report;
pub mod verbs;

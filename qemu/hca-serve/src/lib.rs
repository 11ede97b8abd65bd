//! Emulated ConnectX-5 HCAs on one InfiniBand fabric, served over vfio-user. Clients are any QEMU
//! that has `vfio-user-pci`, with any guest, and programs that implement the protocol.
//!
//! | module | what |
//! |---|---|
//! | [`server`] | sockets, clients, the thread that runs the devices; requests to it |
//! | [`link`] | several servers joined into one fabric |
//! | `wire` | the vfio-user protocol: messages as bytes, a client's stream of them |
//! | `guest` | memory and interrupts that a client provides |
//! | [`product`] | the program: output, control, reports |
//!
//! Clients are not trusted: the README lists their possible effects on each other.
#![deny(unsafe_code)]

pub mod error;
mod guest;
pub mod link;
mod planted;
pub mod product;
pub mod server;
mod wire;

pub use error::{Error, Result};
pub use server::{
    Activity, Handle, HcaState, LogSink, NoticeSink, Options, Served, Stepped, Summary, Work, serve,
    to_stderr,
};

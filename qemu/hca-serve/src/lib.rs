//! Emulated ConnectX-5 HCAs on one InfiniBand fabric, served over vfio-user: to any QEMU that has `vfio-user-pci`, to any guest,
//! and to programs that speak the protocol themselves.
//!
//! | module | what |
//! |---|---|
//! | [`server`] | sockets, clients, the one thread that runs everything; what may be asked of it |
//! | [`link`] | several servers joined into one fabric |
//! | `wire` | the vfio-user protocol: messages as bytes, a client's stream of them |
//! | `guest` | what a client lends its device: memory and interrupts |
//! | [`product`] | what makes it a program: output, control, reports |
//!
//! Clients are not trusted: see the README on what each can and cannot do to the others.
#![deny(unsafe_code)]

pub mod error;
mod guest;
pub mod link;
pub mod product;
pub mod server;
mod wire;

pub use error::{Error, Result};
pub use server::{
    Activity, Handle, HcaState, LogSink, NoticeSink, Options, Served, Stepped, Summary, Work, serve,
    to_stderr,
};

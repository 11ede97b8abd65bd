//! A `no_std`, allocation-free driver for Mellanox ConnectX HCAs (the mlx5 family), from PCI BAR to verbs.
//!
//! An embedder implements [`Platform`], hands over a [`DmaRegion`] and an [`HcaStorage`], and calls [`Hca::bring_up`]:
//!
//! | module | subject |
//! |---|---|
//! | [`platform`], [`mmio`], [`dma`] | the seam: registers, time, waiting, shared memory |
//! | [`pci`] | which PCI functions are ours, and how they are switched on and reset |
//! | [`hca`] | bring-up, tear-down, objects, events, health |
//! | [`cq`], [`qp`], [`wqe`] | the data path: post, ring, poll, retire |
//! | [`caps`], [`config`], [`types`], [`error`], [`event`], [`trace`], [`storage`] | what the others are stated in |
//!
//! Nothing that the device says is trusted: a wrong completion, event, length or index is an error and a count.
//!
//! Not supported yet: Ethernet ports (RoCE), shared receive queues, memory windows, atomics, resizing of completion queues.
#![no_std]

#[cfg(test)]
extern crate std;

mod barrier;
mod buddy;
pub mod caps;
mod cmd;
pub mod config;
pub mod cq;
pub mod dma;
mod eq;
pub mod error;
pub mod event;
pub mod hca;
pub mod mmio;
pub mod pci;
pub mod platform;
pub mod qp;
mod ring;
pub mod storage;
#[cfg(test)]
mod testing;
pub mod trace;
pub mod types;
pub mod wqe;

pub use caps::Capabilities;
pub use cmd::Ticket;
pub use config::{
    Access, Base, Config, CqConfig, InitParams, MAX_COMPLETION_EQS, QpConfig, RtrParams, RtsParams, Service,
};
pub use cq::{Completion, CompletionError, CompletionKind, Cq, CqError};
pub use dma::{DmaRegion, DmaSlice, OutOfBounds};
pub use error::{CommandError, Error, FatalCause, Step};
pub use event::AsyncEvent;
pub use hca::{Hca, LinkState, MemoryRegion, PortState, StepTime};
pub use mmio::MmioBar;
pub use platform::{Bar, MapError, Platform};
pub use qp::{Qp, QpState};
pub use storage::{HcaParts, HcaStorage};
pub use trace::{Counters, Trace, TraceEntry, TraceKind};
pub use types::{
    CqNumber, EqNumber, Gid, Grh, LKey, Lid, Mtu, PKey, Path, Pd, Psn, QKey, QpNumber, RKey, Sge, UarPage,
};
pub use wqe::{AddressVector, PostError, SendFlags, SendOp};

//! A `no_std`, allocation-free driver for Mellanox ConnectX HCAs (the mlx5 family), from PCI BAR to verbs.
//!
//! An embedder implements [`Platform`], hands over a [`DmaRegion`] and a [`HostRegion`] and an [`HcaStorage`], and calls [`Hca::bring_up`]:
//!
//! | module | subject |
//! |---|---|
//! | [`platform`], [`mmio`], [`dma`], [`host`] | the seam: registers, time, waiting, shared memory, and memory that is not shared |
//! | [`pci`] | which PCI functions are ours, and how they are switched on and reset |
//! | [`hca`] | bring-up, tear-down, objects, events, health |
//! | [`cq`], [`qp`], [`srq`], [`wqe`], [`completion`], [`mw`] | the data path: post, ring, poll, retire; keys bound on it |
//! | [`report`] | what to say after a failure |
//! | [`caps`], [`config`], [`types`], [`error`], [`event`], [`trace`], [`storage`] | what the others are stated in |
//!
//! Nothing that the device says is trusted: a wrong completion, event, length or index is an error and a count.
//!
//! What a program does with it, whatever its platform:
//!
//! ```
//! use driver_mlx::{
//!     Access, Base, Completion, Config, CqConfig, DmaRegion, Error, Hca, HcaParts, HostRegion, InitParams, Platform, QpConfig,
//!     SendFlags, SendOp, Sge,
//! };
//!
//! fn prepare<P: Platform>(
//!     platform: P,
//!     region: DmaRegion,
//!     host: HostRegion,
//!     storage: HcaParts<'_>,
//! ) -> Result<(), Error> {
//!     let mut hca = Hca::bring_up(platform, region, host, storage, &Config::DEFAULT)?;
//!     let pd = hca.alloc_pd()?;
//!     let mut cq = hca.create_cq(&CqConfig { entries: 64, eq: 0 })?;
//!     let mut qp = hca.create_qp(&QpConfig::rc(pd, cq.number()))?;
//!     let memory = hca.alloc(4096, 4096)?;
//!     let key = hca.register(pd, &memory, Access::LOCAL_WRITE, Base::Virtual)?;
//!     let params = InitParams { port: 1, pkey_index: 0, access: Access::REMOTE_WRITE };
//!     hca.modify_to_init(&mut qp, &params)?;
//!     // ... exchange numbers with the peer, then `modify_to_rtr` and `modify_to_rts` ...
//!     let sge = Sge { address: key.address(), length: 4096, lkey: key.lkey() };
//!     if let Ok(doorbell) = qp.post_send(SendOp::Send, &[sge], 7, SendFlags::SIGNALED) {
//!         qp.ring(doorbell);
//!     }
//!     while let Ok(Some(retired)) = cq.poll(|cqe| qp.retire(cqe)) {
//!         match retired {
//!             Some(Completion::Sent(sent)) => assert_eq!(sent.wr_id.id, 7),
//!             other => panic!("{other:?}"),
//!         }
//!     }
//!     hca.destroy_qp(qp)?;
//!     hca.destroy_cq(cq)?;
//!     hca.deregister(key)?;
//!     hca.free(memory)?;
//!     hca.dealloc_pd(pd)?;
//!     hca.tear_down()
//! }
//! ```
//!
//! The crate compiles for x86_64 and aarch64. Other architectures need barriers of their own between memory and device registers.
//!
//! Not supported yet: segmentation offload, RSS and VLAN offload of raw Ethernet, RoCE v1; work requests that register memory; XRC and DC services. With firmware of interface step
//! sequence 0 there are no shared receive queues; the device cannot resize those, nor make a completion queue smaller here.
#![no_std]
#![deny(unsafe_code)]

#[cfg(test)]
extern crate std;

#[allow(unsafe_code)]
mod barrier;
mod buddy;
pub mod caps;
mod cmd;
pub mod completion;
pub mod config;
#[allow(unsafe_code)]
mod control;
pub mod cq;
#[allow(unsafe_code)]
pub mod dma;
mod eq;
pub mod error;
pub mod event;
mod generation;
pub mod hca;
#[allow(unsafe_code)]
pub mod host;
mod log;
#[allow(unsafe_code)]
pub mod mmio;
pub mod mw;
pub mod path;
#[allow(unsafe_code)]
pub mod pci;
#[allow(unsafe_code)]
pub mod platform;
pub mod qp;
pub mod report;
#[allow(unsafe_code)]
mod ring;
pub mod srq;
pub mod storage;
#[cfg(test)]
#[allow(unsafe_code)]
mod testing;
pub mod trace;
pub mod types;
pub mod wqe;

pub use caps::{Capabilities, PortType, RoceCapabilities};
pub use cmd::Ticket;
pub use completion::{Completion, Failed, ReceiveOpcode, Received, Sent, WorkQueue, WrId};
pub use config::{
    Access, Base, Config, CqConfig, INLINE_RECEIVE, InitParams, MAX_COMPLETION_EQS, QpConfig, RtrParams,
    RtsParams, Service, SrqConfig,
};
pub use cq::{CompletionError, CompletionKind, Cq, CqError, Cqe, CqeCopy, Datagram, NetworkHeader};
pub use dma::{DmaBlocks, DmaBuffer, DmaRegion, DmaSlice, DmaWord, OutOfBounds};
pub use error::{CommandError, Error, FatalCause, HealthWarning, Rejected, Step};
pub use event::AsyncEvent;
pub use hca::{
    Deregistration, DeviceState, EthernetLink, Hca, HealthBuffer, InfiniBandLink, Link, LinkState,
    MemoryRegion, MkeyState, Operation, Pending, PortCounters, PortState, QCounters, Registration,
    ReservedLKey, SrqState, StepTime, Traffic, emergency_stop,
};
pub use host::HostRegion;
pub use mmio::{MmioBar, MmioDoorbellRegister};
pub use mw::{MemoryWindow, MwBind, MwType};
pub use path::{AddressVector, Grh, Path};
pub use platform::{Bar, DoorbellRegister, MapError, Platform};
pub use qp::{Doorbell, MAX_FRAME_HEAD, Qp, QpState, Receiver};
pub use srq::Srq;
pub use storage::{HcaParts, HcaStorage};
pub use trace::{Counters, Trace, TraceEntry, TraceKind};
// Its documentation has relative links, which only the standard library's own pages resolve.
#[doc(no_inline)]
pub use types::Duration;
pub use types::{
    CounterSet, CqNumber, EqNumber, Gid, Guid, Instant, LKey, Lid, MacAddress, Mtu, PKey, Pd, PdNumber, Psn,
    QKey, QpNumber, RKey, Rate, ServiceLevel, Sge, SrqNumber, UarPage, VlanId, Wake,
};
pub use wqe::{FrameChecksums, PostError, SendFlags, SendOp};

//! DAT 1.2 (uDAPL) without an operating system: no heap, no threads, no clock.
//!
//! An [`Adapter`] owns an HCA port and all objects; every call of the specification is a method of it, named without the
//! `dat_` prefix, and answers with a [`DatResult`]. Nothing runs between calls: [`Adapter::poll`] moves everything on and
//! says when it wants to be called again.
//!
//! ```
//! use core::time::Duration;
//! use dat_nostd::*;
//!
//! /// Waits for a connection on port 7471, takes one message into `memory` and says how long it is.
//! fn serve<P: Platform>(adapter: &mut Adapter<'_, P>, memory: &DmaBuffer) -> DatResult<u64> {
//!     let (ia, _) = adapter.ia_open("ib0", 8, None)?;
//!     let pz = adapter.pz_create(ia)?;
//!     let lmr = adapter.lmr_create(ia, memory, pz, MemPriv::LOCAL_WRITE)?;
//!     let streams = EvdFlags::CR | EvdFlags::CONNECTION | EvdFlags::DTO;
//!     let evd = adapter.evd_create(ia, 16, None, streams)?;
//!     let ep = adapter.ep_create(ia, Some(pz), Some(evd), Some(evd), Some(evd), None)?;
//!     let all = LmrTriplet::new(lmr.lmr_context, lmr.registered_address, lmr.registered_size);
//!     adapter.ep_post_recv(ep, &[all], 1, CompletionFlags::empty())?;
//!     adapter.psp_create(ia, 7471, evd, PspFlags::Consumer)?;
//!     loop {
//!         match adapter.wait(evd, Duration::from_secs(60))?.data {
//!             EventData::ConnectionRequest { cr, .. } => adapter.cr_accept(cr, Some(ep), b"welcome")?,
//!             EventData::Dto(done) => return Ok(done.transferred_length),
//!             _ => {}
//!         }
//!     }
//! }
//! ```
//!
//! | folder | subject |
//! |---|---|
//! | `base` | what every object is stated in: handles, tables, return codes, [`states`], types, attributes |
//! | `adapter` | the facade, and its parts: the device, the tables of objects, what is due; storage |
//! | `ia` | interface adapter instances, the registry |
//! | `mem` | protection zones, local memory regions, windows |
//! | `evd` | event dispatchers: queues, CQs, waits, notification, what completions mean |
//! | `ep`, `srq` | endpoints: attributes, queue pairs, posts, outstanding operations; shared receive queues |
//! | `conn` | connections: active side, service points, requests, private data, the end; IP over InfiniBand ([`Adapter::ip`]), addresses by ARP |
//!
//! [`guide`] follows a write, a received packet and a connection through these directories.
//!
//! In each directory the objects (`ep/mod.rs`, `evd/mod.rs`, …) do not depend on the adapter; calls are in their submodules.
//!
//! # Waiting
//! [`Adapter::wait`] is the loop of a program that waits for one thing. Others poll: [`Adapter::poll`], then [`Adapter::next_ready`] for
//! what became ready and [`Adapter::deliver_upcalls`] for agents of CNOs, then their own work, and [`Adapter::prepare_idle`] before they
//! sleep. A poll looks at what is due; EVDs and EPs that are idle cost it nothing. `dat_evd_wait` and `dat_cno_wait` are begin, poll and
//! end, so that nobody blocks. What begins is a token, [`EvdWaiter`] or [`CnoWaiter`]: as long as an EVD has a waiter, other waits and
//! dequeues there are INVALID_STATE, and a waiter that is dropped waits no more. An agent is called outside any other call, with
//! [`AgentCalls`] to post by.
//!
//! All 72 functions of uDAPL 1.2 are here. The
//! registry's calls are methods of [`Registry`], and a provider is an [`Adapter`]. Memory types: virtual, LMR, shared virtual (one
//! address space: the cookie is checked).
//!
//! # Extensions
//! Zero-based regions ([`Adapter::lmr_create_zero_based`], [`Adapter::lmr_create_virtual_zero_based`]); private data on reject ([`Adapter::cr_reject_with`]); transport
//! attributes ([`EpAttributes::retry_count`] and below); DMA memory ([`Adapter::dma_alloc`]); the adapter's address, MTU and
//! state; immediate data and remote invalidation ([`Adapter::ep_post_rdma_write_immediate`],
//! [`Adapter::ep_post_send_immediate`], [`Adapter::ep_post_send_invalidate`] of windows by [`Adapter::rmr_create_invalidatable`]); atomics ([`Adapter::ep_post_compare_swap`],
//! [`Adapter::ep_post_fetch_add`], [`MemPriv::REMOTE_ATOMIC`]); operation and vendor syndrome in completions; IP over InfiniBand
//! ([`Adapter::ip`]); the peer's port GID and how a connection is ending ([`EpParameters::remote_gid`], [`EpParameters::ending`]),
//! and the GID that an address is known to have ([`Adapter::known_gid`]); receives and sends posted many at a time
//! ([`Adapter::ep_post_receives`], [`Adapter::ep_post_sends`]), and dequeues that never poll the adapter, of one event
//! ([`Adapter::evd_take`]) and of runs of receives ([`Adapter::evd_take_receives`]).
//!
//! # Registration
//! An adapter's IAs are opened under the names that are registered for it: a program enters its adapters into its [`Registry`]
//! ([`Registry::registry_add_provider`]), which also gives each an [`AdapterId`], so that no handle of one is a handle of another.
//!
//! # What the specification leaves to a provider
//! | choice | clause |
//! |---|---|
//! | an RDMA transfer above the EP's `max_rdma_size` is LENGTH_ERROR when it is posted | `dat_ep_post_rdma_read`, `dat_ep_post_rdma_write`: the operation fails with DAT_LENGTH_ERROR where a buffer and the data do not fit; no page names another code for a length, and `dat_ep_create` gives an EP the exact `max_rdma_size` asked for |
//! | a window has less than 2 GiB | `dat_rmr_bind`: INVALID_PARAMETER, for which a length beyond the LMR is only an example; a work request counts the bytes of a transfer in 31 bits |
//! | 56 bytes of private data under `ib0`, 64 under `ib0-dat` | `max_private_data_size` of `DAT_PROVIDER_ATTR` says what a provider takes; InfiniBand's REQ has 92 bytes, of which RDMA-CM addressing (IBTA volume 1, annex A11) takes 36 |
//! | buffers that an EP has taken from an SRQ are [`VALUE_UNKNOWN`] until they complete | `dat_ep_recv_query`: the value of a count that cannot be had at a reasonable cost |
//!
//! # Not supported yet
//! Quality of service and multipath (MODEL_NOT_SUPPORTED); growth of an SRQ beyond its ring (the next power of two less one, 63 at least) while
//! endpoints or buffers are on it.
#![no_std]
#![deny(unsafe_code)]

#[cfg(test)]
extern crate std;

mod adapter;
mod base;
mod cno;
mod conn;
mod ep;
mod evd;
pub mod guide;
/// Fields of the structs that [`adapter_storage!`] defines; for the macro only.
#[doc(hidden)]
pub mod entries {
    pub use crate::adapter::storage::Entry;
    pub use crate::base::table::Slot;
    pub use crate::cno::Cno;
    pub use crate::conn::cr::Cr;
    pub use crate::conn::service::{Psp, Rsp};
    pub use crate::ep::Ep;
    pub use crate::evd::Evd;
    pub use crate::evd::queue::EventSlot;
    pub use crate::ia::instance::Ia;
    pub use crate::mem::bind::BindSlot;
    pub use crate::mem::lmr::Lmr;
    pub use crate::mem::rmr::Rmr;
    pub use crate::mem::zone::Pz;
    pub use crate::srq::draining::EndedQp;
    pub use crate::srq::queue::Srq;
    pub use core::sync::atomic::AtomicU32;
    pub use driver_mlx::report::History;
    pub use driver_mlx::{HcaParts, HcaStorage};
    pub use ib_port::PortStorage;
}
mod ia;
mod mem;
mod srq;

pub use adapter::Adapter;
pub use adapter::census::{AdapterCensus, AdapterCounters};
pub use adapter::config::{AdapterConfig, Neighbour, OpenError};
pub use adapter::storage::{AdapterParts, AdapterStorage, Capacities};
pub use base::attr::*;
pub use base::event::*;
pub use base::fields::*;
pub use base::handle::*;
pub use base::ret::*;
pub use base::states;
pub use base::types::*;
pub use conn::ip::*;
// Its documentation has relative links, which only the standard library's own pages resolve.
pub use cno::upcall::{AgentCalls, ProxyAgent, Upcall};
pub use cno::waiter::{CnoWait, CnoWaiter};
#[doc(no_inline)]
pub use driver_mlx::Duration;
pub use driver_mlx::{
    Bar, Base, DmaBlocks, DmaBuffer, DmaRegion, DmaSlice, DmaWord, Gid, HostRegion, Instant, Platform, Wake,
};
pub use ep::dto_ext::SendDto;
pub use evd::delivery::Ready;
pub use evd::dequeue::ReceiveRun;
pub use evd::waiter::{EvdWaiter, Wait};
pub use ia::listing::{AdapterId, VERSION_MAJOR, VERSION_MINOR};
pub use ia::registry::{ProviderInfo, Registry, RegistryEntry};
pub use mem::buffers::BufferKept;
pub use mem::lmr::{LmrCookie, Region};
pub use mem::processor::SoleAccess;

/// The guide, whose code is compiled.
#[cfg(doctest)]
#[doc = include_str!("../EMBEDDING.md")]
struct Embedding;

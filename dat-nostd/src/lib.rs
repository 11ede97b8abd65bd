//! DAT 1.2 (uDAPL) without an operating system: no heap, no threads, no clock.
//!
//! An [`Adapter`] owns an HCA port and all objects; every call of the specification is a method of it, named without the
//! `dat_` prefix, and answers with a [`DatResult`]. Nothing runs between calls: [`Adapter::poll`] moves everything on and
//! says when it wants to be called again.
//!
//! ```
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
//!         match adapter.evd_dequeue(evd) {
//!             Ok(Event { data: EventData::ConnectionRequest { cr, .. }, .. }) => {
//!                 adapter.cr_accept(cr, Some(ep), b"welcome")?;
//!             }
//!             Ok(Event { data: EventData::Dto(done), .. }) => return Ok(done.transferred_length),
//!             Ok(_) => {}
//!             Err(DatReturn::QUEUE_EMPTY) => {
//!                 let now = adapter.platform().now();
//!                 let wake = adapter.poll(now);
//!                 if adapter.prepare_idle(now) {
//!                     adapter.platform().idle(wake.deadline(now).unwrap_or(Instant::MAX));
//!                 }
//!             }
//!             Err(error) => return Err(error),
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
//! In each folder the objects (`ep/endpoint.rs`, `evd/dispatcher.rs`, …) know nothing of the adapter; the calls on them are beside them.
//!
//! All 72 functions of uDAPL 1.2 are here. `dat_evd_wait` and `dat_cno_wait` are begin, poll and end, so that nobody blocks; the
//! registry's calls are methods of [`Registry`], and a provider is an [`Adapter`]. Memory types: virtual, LMR, shared virtual (one
//! address space: the cookie is checked).
//!
//! # Extensions
//! Zero-based regions ([`Adapter::lmr_create_zero_based`]); private data on reject ([`Adapter::cr_reject_with`]); transport
//! attributes ([`EpAttributes::retry_count`] and below); DMA memory ([`Adapter::dma_alloc`]); the adapter's address, MTU and
//! state; immediate data and remote invalidation ([`Adapter::ep_post_rdma_write_immediate`],
//! [`Adapter::ep_post_send_immediate`], [`Adapter::ep_post_send_invalidate`] of windows by [`Adapter::rmr_create_invalidatable`]); atomics ([`Adapter::ep_post_compare_swap`],
//! [`Adapter::ep_post_fetch_add`], [`MemPriv::REMOTE_ATOMIC`]); operation and vendor syndrome in completions; IP over InfiniBand
//! ([`Adapter::ip`]); the peer's port GID and how a connection is ending ([`EpParameters::remote_gid`], [`EpParameters::ending`]),
//! and the GID that an address is known to have ([`Adapter::known_gid`]); receives posted and taken many at a time
//! ([`Adapter::ep_post_receives`], [`Adapter::evd_dequeue_receives`]), and a look at an EVD that polls nothing
//! ([`Adapter::evd_is_quiet`]).
//!
//! # Not supported yet
//! Quality of service and multipath (MODEL_NOT_SUPPORTED); one wait at a time on a CNO; growth of an SRQ beyond its ring (the next power of two less one, 63 at least) while
//! endpoints or buffers are on it.
#![no_std]
#![deny(unsafe_code)]

#[cfg(test)]
extern crate std;

mod adapter;
mod base;
mod conn;
mod ep;
mod evd;
mod ia;
mod mem;
mod srq;

pub use adapter::Adapter;
pub use adapter::census::{AdapterCensus, AdapterCounters};
pub use adapter::config::{AdapterConfig, Neighbour, OpenError};
pub use adapter::storage::{
    AdapterParts, AdapterStorage, MAX_BINDS, MAX_CNOS, MAX_CRS, MAX_IAS, MAX_PSPS, MAX_PZS, MAX_RMRS,
    MAX_RSPS, MAX_SRQS,
};
pub use base::attr::*;
pub use base::event::*;
pub use base::fields::*;
pub use base::handle::*;
pub use base::ret::*;
pub use base::states;
pub use base::types::*;
pub use conn::ip::*;
pub use driver_mlx::{
    Bar, DmaBuffer, DmaRegion, DmaSlice, Duration, Gid, HostRegion, Instant, Platform, Wake,
};
pub use ep::straight::ReceivedDto;
pub use evd::cno::{CnoWait, ProxyAgent};
pub use evd::wait_state::Wait;
pub use ia::registry::{ProviderInfo, Registry, RegistryEntry, VERSION_MAJOR, VERSION_MINOR};
pub use mem::buffers::BufferKept;
pub use mem::lmr::{LmrCookie, Region};

//! InfiniBand management as pure protocol: wire formats and state machines without I/O, clock, heap
//! or panics.
//!
//! The crate is `no_std` and allocates nothing. Its users are a port's management agent
//! (`ib-port`), which moves MADs between these state machines and QP1, and an emulated HCA with its
//! subnet manager. Input from the wire causes a response or an error, never a panic. Time is an
//! [`Instant`](ib_types::Instant) that the caller passes as `now`.
//!
//! # Layers
//!
//! | module | what | source |
//! |---|---|---|
//! | [`units`] | rate and time codes | IBA volume 1, chapters 4, 12, 15 |
//! | [`mad`] | management datagram: header, classes, methods, status, attribute ids | chapter 13 |
//! | [`smp`] | subnet management: NodeInfo, PortInfo, tables, directed routes | chapter 14 |
//! | [`sa`] | subnet administration: records, masks, a [`sa::Client`] with retries | chapter 15 |
//! | [`rmpp`] | tables in several segments, both sides | section 13.6 |
//! | [`pma`] | performance management: port counters | chapter 16 |
//! | [`cm`] | communication management: messages, the [`cm::Cm`] state machine | chapter 12 |
//! | [`rdma_cm`] | service ids from ports; the IP addresses in a REQ's private data | annex A11 |
//! | [`ethernet`] | headers of frames, ARP, IPv6 neighbour discovery | RFC 826, RFC 4861 |
//! | [`membership`] | reports of multicast groups, and queries: IGMP, MLD | RFC 3376, RFC 3810 |
//! | [`ipoib`] | IPoIB: encapsulation, ARP, multicast, the [`ipoib::Neighbours`] table | RFC 4391 |
//!
//! # Example
//!
//! Two communication managers connect; the caller only carries MADs and prepares its queue pairs.
//!
//! ```
//! use ib_mgmt::cm::{AcceptParams, Cm, CmConfig, CmEvent, CmSlot, ConnectParams, EndedSet, Listener};
//! use ib_mgmt::mad::MadAddress;
//! use ib_mgmt::rdma_cm::{PortSpace, service_id};
//! use ib_mgmt::sa::PathRecord;
//! use ib_types::{Guid, Instant, Lid, PKey, Psn, QpNumber};
//!
//! let (mut slots_a, mut slots_b) = ([CmSlot::EMPTY; 4], [CmSlot::EMPTY; 4]);
//! let (mut ended_a, mut ended_b) = ([EndedSet::EMPTY; 4], [EndedSet::EMPTY; 4]);
//! let (mut listen_a, mut listen_b) = ([Listener::EMPTY; 1], [Listener::EMPTY; 1]);
//! let mut a = Cm::new(&mut slots_a, &mut ended_a, &mut listen_a, CmConfig::new(Guid::new(0xa), 1));
//! let mut b = Cm::new(&mut slots_b, &mut ended_b, &mut listen_b, CmConfig::new(Guid::new(0xb), 2));
//! let service = service_id(PortSpace::Tcp, 18634);
//! b.listen(service, 7, 0)?;
//!
//! let path = *PathRecord::zeroed().set_slid(Lid::new(1)).set_dlid(Lid::new(2)).set_pkey(PKey::DEFAULT).set_mtu(5);
//! a.connect(Instant::ORIGIN, &ConnectParams::new(path, service, QpNumber::new(0x41), Psn::new(100)), b"hello", 1)?;
//! let mut connected = false;
//! for now in (0..4).map(Instant::from_nanos) {
//!     while let Some(out) = a.dispatch(now) {
//!         b.process(now, &MadAddress::local(Lid::new(1)), &out.mad);
//!     }
//!     while let Some(out) = b.dispatch(now) {
//!         a.process(now, &MadAddress::local(Lid::new(2)), &out.mad);
//!     }
//!     while let Some(event) = b.poll_event() {
//!         match event {
//!             CmEvent::ConnectRequest { id, listener } => {
//!                 assert_eq!((listener, &b.private_data(id)[..5]), (7, &b"hello"[..]));
//!                 // Here the QP goes to RTR by `b.qp_attributes(id)`.
//!                 b.accept(now, id, &AcceptParams::new(QpNumber::new(0x42), Psn::new(200)), b"welcome", 2)?;
//!             }
//!             CmEvent::Established { owner, .. } => connected = owner == 2,
//!             other => panic!("{other:?}"),
//!         }
//!     }
//!     while let Some(CmEvent::Reply { id, .. }) = a.poll_event() {
//!         let qp = a.qp_attributes(id).expect("known from the reply on");
//!         assert_eq!((qp.remote_qpn.get(), qp.rq_psn.get(), qp.sq_psn.get()), (0x42, 100, 200));
//!         a.rtu(id, b"")?;
//!     }
//! }
//! assert!(connected);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Not supported
//!
//! - responses of several segments in the client (it reports them; [`rmpp`] has both sides)
//! - alternate paths and path migration (refused)
//! - unreliable and extended connections in the CM state machine (their messages and headers are
//!   here)
//! - the subnet management key protocol
//! - IPv6 neighbour discovery over InfiniBand
//! - IPoIB's connected mode

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod cm;
pub mod ethernet;
pub mod ipoib;
pub mod mad;
pub mod membership;
pub mod pma;
pub mod rdma_cm;
pub mod rmpp;
pub mod sa;
pub mod smp;
pub mod units;
mod view;

pub use ib_types::Gid;

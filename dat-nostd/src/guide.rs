//! Three paths through the code: a write, a received packet, a connection.
//!
//! # A write, from a DAT consumer to the wire
//!
//! ```text
//! ep_post_rdma_write   dat-nostd  src/ep/dto.rs      checks, then opcode, SGEs, wr_id, flags
//!   Qp::post_send      driver-mlx src/qp/            one WQE into the ring
//!   Qp::ring                                         doorbell record, doorbell
//! (the device fetches the WQE, reads the buffer, writes a CQE)
//! evd_dequeue          dat-nostd  src/evd/dequeue.rs reads the CQE in place
//!   Qp::retire         driver-mlx src/qp/            returns the wr_id, frees the WQEBBs
//! ```
//!
//! All posts share one function for their checks. It resolves the handle, consults the state table, finds the LMR of each segment
//! by its `lmr_context`, checks bounds and protection zone, and reserves a slot of the request queue. [`Qp::post_send`] writes
//! the WQE in the device's byte order and stores the `wr_id` in memory that the device cannot reach. Several SGEs, inline data,
//! fences and BlueFlame are handled out of line.
//!
//! [`Adapter::evd_dequeue`] reads the CQE from the CQ. Its `user_index` is the EP's slot. The path copies no data, queues nothing
//! twice and issues no firmware command.
//!
//! # A received packet
//!
//! On the emulated HCA the fabric (`qemu/hca-model/src/fabric`) delivers a packet to the responder of its destination QP
//! (`transport/responder.rs`). The responder checks PSN and opcode, takes a WQE from the receive queue or SRQ, translates the SGEs
//! by their memory keys, and writes the data, then the CQE. If the CQ is armed, it requests an interrupt from the event queue. A
//! request on a fabric without faults, latency or capture needs no packets: `transport/copy.rs` passes its payload to the same
//! responder.
//!
//! On the guest's side, [`Adapter::poll`] reads the completion event queue, maps each CQ number to its EVD and puts the EVD on the
//! ready queue. `evd_dequeue` decodes the CQE into an event. Datagrams to QP1 go to `ib-port`, which passes each MAD to its
//! protocol in `ib-mgmt` (SA client, connection manager). These protocols access neither memory nor device.
//!
//! # A connection
//!
//! ```text
//! active                                          passive
//!   ep_connect: stores the request, returns
//!   poll: address -> GID (ARP or table)
//!         GID -> path (PathRecord query)
//!         REQ --------------------------------->  CONNECTION_REQUEST event
//!         REP <---------------------------------  cr_accept: QP to RTR and RTS
//!         QP to RTR and RTS
//!         RTU --------------------------------->
//!   ESTABLISHED event                             ESTABLISHED event
//! ```
//!
//! The connection manager (`ib-mgmt/src/cm`) is a state machine without I/O: `process`, `dispatch`, `poll_at`. It repeats the REQ
//! until the peer replies. Every change of an EP's state consults the tables in [`states`](crate::states). Either side closes with
//! a DREQ: outstanding requests are flushed, and DISCONNECTED follows the last flushed completion.
//!
//! [`Qp::post_send`]: driver_mlx::Qp::post_send
//! [`Adapter::poll`]: crate::Adapter::poll
//! [`Adapter::evd_dequeue`]: crate::Adapter::evd_dequeue

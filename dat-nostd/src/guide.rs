//! Three paths through the code: a write, a received packet, a connection.
//!
//! # A write, from a DAT consumer to the wire
//!
//! ```text
//! consumer        dat-nostd                    driver-mlx                 device
//!   ep_post_rdma_write
//!      |---------> Post::check
//!      |           handle, lengths, segments
//!      |           Ep::post --------------------> Qp::post_send
//!      |                                          one WQE into the ring,
//!      |                                          wr_id beside it
//!      |              <----- Doorbell ----------
//!      |           Ep::ring --------------------> Qp::ring
//!      |                                          doorbell record,
//!      |                                          doorbell ------------> fetches the WQE,
//!      |                                                                 reads the buffer,
//!   evd_dequeue                                                          writes a CQE
//!      |---------> Cq::poll(..) ----------------> the entry, in place
//!      |             Qp::retire ----------------> wr_id, WQEBBs free
//!      |<--- Event
//! ```
//!
//! Each layer has one way in and one way out. `Post::check` turns the arguments of any post into a checked request in one pass over
//! its segments: it finds the LMR of each by its `lmr_context`, and checks bounds, zone and rights. `Ep::post` hands it to
//! [`Qp::post_send`], the only writer of send WQEs, which stores the `wr_id` in memory that the device cannot reach. A post returns a
//! [`Doorbell`], and a batch rings the newest one alone.
//!
//! Check and writer are compiled twice from one source. The copy in the caller's code refuses what is not common (several
//! segments, inline data, a fence, a full queue), so it needs no stack. What it refuses goes to a cold copy that takes everything,
//! and says why not.
//!
//! [`Adapter::evd_dequeue`] reads the CQE where it lies in the CQ. Its `user_index` is the EP's slot. The path copies no data, queues
//! nothing twice and issues no firmware command. An empty CQ is one look; one empty dequeue in 512 polls the adapter, for consumers
//! who do nothing else.
//!
//! # A received packet
//!
//! On the emulated HCA the fabric (`qemu/fabric`) delivers a packet to the responder of its destination QP
//! (`transport/responder.rs`). The responder checks PSN and opcode, takes a WQE from the receive queue or SRQ, translates the SGEs
//! by their memory keys, and writes the data, then the CQE. If the CQ is armed, it requests an interrupt from the event queue. A
//! request on a fabric without faults, latency or capture needs no packets: `transport/copy.rs` passes its payload to the same
//! responder.
//!
//! ```text
//! fabric            responder                      driver-mlx, dat-nostd
//!   packet -------> PSN, opcode
//!                   WQE of the receive queue
//!                   data by its memory key
//!                   CQE ---------------------------> in the CQ
//!                   event, if the CQ is armed -----> Adapter::poll: CQ number -> EVD -> ready queue
//!                                                    evd_dequeue: the CQE becomes an event
//! ```
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
//! [`Doorbell`]: driver_mlx::Doorbell
//! [`Qp::post_send`]: driver_mlx::Qp::post_send
//! [`Adapter::poll`]: crate::Adapter::poll
//! [`Adapter::evd_dequeue`]: crate::Adapter::evd_dequeue

//! The traits through which memory, interrupts and the wire reach the model.

use crate::port::FrameSizes;
use crate::run::{Copied, Neighbour, Ranges, ReadRun, Requester, Run};
use rdma_fabric::counters::Traffic;
use rdma_fabric::ports::PortIndex;
use rdma_fabric::wire::Wire;

pub use crate::guest_memory::{DmaFault, GuestMemory, NoMemory, copy_in_parts};

/// MSI-X messages of the device. Masking and the pending bits are the owner's business.
pub trait Interrupts {
    /// Sends the message of `vector`.
    fn raise(&mut self, vector: u16);
}

/// The devices that take requests of this one without packets.
///
/// The defaults are those of a device without such peers.
pub trait Peers {
    /// Returns the device at a port, if it takes requests without packets.
    fn find(&self, _port: PortIndex) -> Option<Neighbour> {
        None
    }

    /// Returns whether it takes any now; otherwise later.
    fn has_turn(&self, _to: Neighbour) -> bool {
        false
    }

    /// Has a device take requests of a connection.
    fn copy(&mut self, _to: Neighbour, _from: &Requester, _run: &Run<'_>) -> Copied {
        Copied::No
    }

    /// Has a device count the packets that were replaced, those it sent included. `sizes` are those of
    /// the frames of requests and responses, on Ethernet.
    fn count(&mut self, _neighbour: Neighbour, _traffic: &Traffic, _sizes: &[FrameSizes; 2]) {}

    /// Has a device answer an RDMA READ, or a part of it, to memory of this one.
    fn copy_read(
        &mut self,
        _neighbour: Neighbour,
        _from: &Requester,
        _read: &ReadRun,
        _to: &Ranges<'_>,
    ) -> Copied {
        Copied::No
    }
}

/// No peers: all requests go as packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPeers;

impl Peers for NoPeers {}

/// Time and seams of one call of the device.
pub struct Io<'a> {
    /// Monotonic nanoseconds.
    pub now: u64,
    /// Guest memory; every access fails while bus mastering is off.
    pub memory: &'a dyn GuestMemory,
    /// Interrupt messages.
    pub interrupts: &'a mut dyn Interrupts,
    /// The wire.
    pub wire: &'a mut dyn Wire,
    /// Devices that take requests without packets.
    pub peers: &'a mut dyn Peers,
}

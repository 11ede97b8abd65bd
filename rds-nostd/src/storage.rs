//! Capacities and memory: the one place where sizes are chosen.

use crate::connection::Connection;
use crate::frames::{ACKS_PER_FRAME, Frame, STRIDE};
use crate::generation::Generation;
use crate::ids::ConnectionId;
use crate::profile::Profile;
use crate::protocol::{Map, Remembered};
use crate::rdma::{Operation, Region};
use crate::socket::Socket;

/// Tables for `SOCKETS` sockets, `CONNECTIONS` peers, `FRAMES` frames, `REGIONS` regions of memory offered to peers and
/// `OPERATIONS` RDMA operations under way. All zero bytes, so a static one takes no room in
/// an image: 176 bytes a socket, 372 and a congestion map of 8192 a connection, 64 a frame, 64 a
/// region, 608 an operation; and 4160 bytes of DMA memory a frame, see
/// [`dma_len`](Self::dma_len).
pub struct RdsStorage<
    const SOCKETS: usize,
    const CONNECTIONS: usize,
    const FRAMES: usize,
    const REGIONS: usize = 16,
    const OPERATIONS: usize = 16,
> {
    sockets: [Socket; SOCKETS],
    connections: [Connection; CONNECTIONS],
    maps: [Map; CONNECTIONS],
    /// Finds connections by peer, and orders their deadlines.
    buckets: [Option<ConnectionId>; CONNECTIONS],
    heap: [Option<ConnectionId>; CONNECTIONS],
    remembered: [Remembered; CONNECTIONS],
    frames: [Frame; FRAMES],
    regions: [Region; REGIONS],
    operations: [Operation; OPERATIONS],
}

/// Slices of a [`RdsStorage`], for [`Rds::start`](crate::Rds::start).
pub struct RdsParts<'s> {
    pub(crate) sockets: &'s mut [Socket],
    pub(crate) connections: &'s mut [Connection],
    pub(crate) maps: &'s mut [Map],
    pub(crate) buckets: &'s mut [Option<ConnectionId>],
    pub(crate) heap: &'s mut [Option<ConnectionId>],
    pub(crate) remembered: &'s mut [Remembered],
    pub(crate) frames: &'s mut [Frame],
    pub(crate) regions: &'s mut [Region],
    pub(crate) operations: &'s mut [Operation],
}

impl<
    const SOCKETS: usize,
    const CONNECTIONS: usize,
    const FRAMES: usize,
    const REGIONS: usize,
    const OPERATIONS: usize,
> RdsStorage<SOCKETS, CONNECTIONS, FRAMES, REGIONS, OPERATIONS>
{
    /// Empty tables.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            sockets: [const { Socket::EMPTY }; SOCKETS],
            connections: [const { Connection::EMPTY }; CONNECTIONS],
            maps: [const { Map::EMPTY }; CONNECTIONS],
            buckets: [None; CONNECTIONS],
            heap: [None; CONNECTIONS],
            remembered: [Remembered::NOBODY; CONNECTIONS],
            frames: [Frame::EMPTY; FRAMES],
            regions: [const { Region::EMPTY }; REGIONS],
            operations: [const { Operation::EMPTY }; OPERATIONS],
        }
    }

    /// Bytes of DMA memory that [`Rds::start`](crate::Rds::start) takes from the adapter.
    #[must_use]
    pub const fn dma_len() -> usize {
        dma_len(FRAMES, CONNECTIONS)
    }

    /// The tables, handed out.
    pub fn parts(&mut self) -> RdsParts<'_> {
        RdsParts {
            sockets: &mut self.sockets,
            connections: &mut self.connections,
            maps: &mut self.maps,
            buckets: &mut self.buckets,
            heap: &mut self.heap,
            remembered: &mut self.remembered,
            frames: &mut self.frames,
            regions: &mut self.regions,
            operations: &mut self.operations,
        }
    }
}

impl<const S: usize, const C: usize, const F: usize, const R: usize, const O: usize> Default
    for RdsStorage<S, C, F, R, O>
{
    fn default() -> Self {
        Self::new()
    }
}

/// DMA memory of so many frames, and behind them of the headers that so many connections send acknowledgements from; bytes.
pub(crate) const fn dma_len(frames: usize, connections: usize) -> usize {
    (frames + connections.div_ceil(ACKS_PER_FRAME)) * STRIDE
}

/// What a node chooses at start.
#[derive(Clone, Copy, Debug)]
pub struct RdsConfig {
    /// Receives kept posted for each connection, 2 or more. No more than its share of the frames, so that no peer can take
    /// those of another; half of the receiving side's frames (at most 256) are kept back for long messages.
    pub receive_depth: u16,
    /// Sends in flight for each connection, 4 or more.
    pub send_depth: u16,
    /// Frames that messages of ours may take together, at most half of all; the others are for what arrives.
    pub send_frames: usize,
    /// Send buffer of a new socket, bytes.
    pub send_buffer: usize,
    /// Receive buffer of a new socket, bytes: with more than this unread its port counts as congested.
    pub receive_buffer: usize,
    /// The most that `SO_SNDBUF` and `SO_RCVBUF` may ask for in the Linux profile (`wmem_max`, `rmem_max`), bytes.
    /// [`set_send_buffer`](crate::Rds::set_send_buffer) and
    /// [`set_receive_buffer`](crate::Rds::set_receive_buffer) are not bound by it.
    pub buffer_max: usize,
    /// What programs of new sockets expect.
    pub profile: Profile,
    /// How often the HCA sends a packet again before it gives the connection up (0 to 7; Linux: 1). What was not
    /// acknowledged is then sent again on a new connection.
    pub retry_count: u8,
    /// Gives each peer a protection zone of its own, so that a key offered to one peer is of no use to another. Then memory is offered
    /// only for a destination ([`get_mr`](crate::Rds::get_mr) names none). Costs a PZ and a registration of the frames for each peer.
    pub isolate_peers: bool,
    /// Connections of different types of service that one peer may ask for. This node itself makes as many as its sockets have
    /// types. A peer that is not trusted may take them all and keep them: the table of connections has room for the others beside
    /// them, or this is 1.
    pub connections_per_peer: u8,
    /// Grows from boot to boot: messages are numbered from here, so that a peer that knew this node before does not take new messages
    /// for old ones.
    pub generation: Generation,
    /// Randomness of this node, for ports and for the time between connection attempts.
    pub seed: u64,
}

impl RdsConfig {
    /// What Linux uses, scaled to a pool of some 1000 frames.
    #[must_use]
    pub const fn new(generation: Generation) -> Self {
        Self {
            receive_depth: 256,
            send_depth: 128,
            send_frames: 512,
            send_buffer: 106_496,
            receive_buffer: 106_496,
            buffer_max: 212_992,
            profile: Profile::Linux,
            retry_count: 7,
            isolate_peers: false,
            connections_per_peer: 4,
            generation,
            seed: 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_as_large_as_documented() {
        let sizes = [size_of::<Socket>(), size_of::<Connection>(), size_of::<Frame>()];
        assert_eq!(sizes, [176, 336, 64]);
        assert_eq!((size_of::<Region>(), size_of::<Operation>()), (64, 608));
        assert_eq!(RdsStorage::<1, 1, 10>::dma_len(), 11 * 4160);
    }
}

//! Capacities and memory of a node.

use crate::connection::{Connection, Map, Remembered};
use crate::frames::{Frame, HEADERS_PER_FRAME, STRIDE};
use crate::ids::{ConnectionId, FrameId};

use crate::rdma::{Iov, Memory, Operation, Region, Window};
use crate::socket::Socket;

/// Tables of a node. As a static they take no space in an image, because all bytes are zero.
///
/// | parameter | entries | bytes each |
/// |---|---|---|
/// | `SOCKETS` | sockets | 192 |
/// | `CONNECTIONS` | peers with a connection | 432, and a congestion map of 8192 |
/// | `FRAMES` | frames | 66, and 4160 of DMA memory ([`dma_len`](Self::dma_len)) |
/// | `REGIONS` | regions of memory offered to peers, each with a memory window | 136 |
/// | `OPERATIONS` | RDMA operations in progress | 96 |
/// | `IOVS` | segments of local memory of all operations | 32 |
/// | `MEMORIES` | memories registered in advance | 64 |
/// | `PEERS` | evicted peers whose numbers are remembered, to recognize retransmitted messages | 48 |
pub struct RdsStorage<
    const SOCKETS: usize,
    const CONNECTIONS: usize,
    const FRAMES: usize,
    const REGIONS: usize = 16,
    const OPERATIONS: usize = 16,
    const IOVS: usize = 512,
    const MEMORIES: usize = 16,
    const PEERS: usize = 1024,
> {
    sockets: [Socket; SOCKETS],
    connections: [Connection; CONNECTIONS],
    maps: [Map; CONNECTIONS],
    /// Index of connections by peer, and heap of their deadlines.
    buckets: [Option<ConnectionId>; CONNECTIONS],
    heap: [Option<ConnectionId>; CONNECTIONS],
    remembered: [Remembered; PEERS],
    frames: [Frame; FRAMES],
    /// Receive rings. Together they have at most one slot per frame.
    receives: [Option<FrameId>; FRAMES],
    regions: [Region; REGIONS],
    windows: [Window; REGIONS],
    operations: [Operation; OPERATIONS],
    iovs: [Iov; IOVS],
    memories: [Memory; MEMORIES],
}

/// Slices of an [`RdsStorage`], for [`Rds::start`](crate::Rds::start).
pub struct RdsParts<'s> {
    pub(crate) sockets: &'s mut [Socket],
    pub(crate) connections: &'s mut [Connection],
    pub(crate) maps: &'s mut [Map],
    pub(crate) buckets: &'s mut [Option<ConnectionId>],
    pub(crate) heap: &'s mut [Option<ConnectionId>],
    pub(crate) remembered: &'s mut [Remembered],
    pub(crate) frames: &'s mut [Frame],
    pub(crate) receives: &'s mut [Option<FrameId>],
    pub(crate) regions: &'s mut [Region],
    pub(crate) windows: &'s mut [Window],
    pub(crate) operations: &'s mut [Operation],
    pub(crate) iovs: &'s mut [Iov],
    pub(crate) memories: &'s mut [Memory],
}

impl<
    const SOCKETS: usize,
    const CONNECTIONS: usize,
    const FRAMES: usize,
    const REGIONS: usize,
    const OPERATIONS: usize,
    const IOVS: usize,
    const MEMORIES: usize,
    const PEERS: usize,
> RdsStorage<SOCKETS, CONNECTIONS, FRAMES, REGIONS, OPERATIONS, IOVS, MEMORIES, PEERS>
{
    /// Creates empty tables.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            sockets: [const { Socket::EMPTY }; SOCKETS],
            connections: [const { Connection::EMPTY }; CONNECTIONS],
            maps: [const { Map::EMPTY }; CONNECTIONS],
            buckets: [None; CONNECTIONS],
            heap: [None; CONNECTIONS],
            remembered: [Remembered::EMPTY; PEERS],
            frames: [Frame::EMPTY; FRAMES],
            receives: [None; FRAMES],
            regions: [const { Region::EMPTY }; REGIONS],
            windows: [Window::EMPTY; REGIONS],
            operations: [const { Operation::EMPTY }; OPERATIONS],
            iovs: [Iov::EMPTY; IOVS],
            memories: [Memory::EMPTY; MEMORIES],
        }
    }

    /// Returns the bytes of DMA memory that [`Rds::start`](crate::Rds::start) takes from the
    /// adapter.
    #[must_use]
    pub const fn dma_len() -> usize {
        dma_len(FRAMES, CONNECTIONS)
    }

    /// Borrows the tables.
    pub fn parts(&mut self) -> RdsParts<'_> {
        RdsParts {
            sockets: &mut self.sockets,
            connections: &mut self.connections,
            maps: &mut self.maps,
            buckets: &mut self.buckets,
            heap: &mut self.heap,
            remembered: &mut self.remembered,
            frames: &mut self.frames,
            receives: &mut self.receives,
            regions: &mut self.regions,
            windows: &mut self.windows,
            operations: &mut self.operations,
            iovs: &mut self.iovs,
            memories: &mut self.memories,
        }
    }
}

impl<
    const S: usize,
    const C: usize,
    const F: usize,
    const R: usize,
    const O: usize,
    const P: usize,
    const M: usize,
    const N: usize,
> Default for RdsStorage<S, C, F, R, O, P, M, N>
{
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the bytes of DMA memory for the frames, followed by the headers of the connections'
/// acknowledgements.
pub(crate) const fn dma_len(frames: usize, connections: usize) -> usize {
    (frames + connections.div_ceil(HEADERS_PER_FRAME)) * STRIDE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_as_large_as_documented() {
        let sizes = [size_of::<Socket>(), size_of::<Connection>(), size_of::<Frame>()];
        assert_eq!(sizes, [192, 432, 64]);
        assert_eq!((size_of::<Region>(), size_of::<Window>(), size_of::<Operation>()), (80, 56, 96));
        assert_eq!((size_of::<Iov>(), size_of::<Memory>(), size_of::<Remembered>()), (32, 64, 48));
        assert_eq!(RdsStorage::<1, 1, 10>::dma_len(), 11 * 4160);
    }
}

//! Capacities and memory of a node.

use crate::connection::{Connection, Map, Remembered};
use crate::frames::{Frame, HEADERS_PER_FRAME, STRIDE};
use crate::ids::{ConnectionId, FrameId};

use crate::rdma::{Iov, Memory, Operation, Region, Window};
use crate::socket::Socket;

/// Defines the tables of a node: each by its entries, their number, and an empty entry.
macro_rules! tables {
    ($($(#[$doc:meta])* $table:ident: [$entry:ty; $count:ident] = $empty:expr,)*) => {
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
            $($(#[$doc])* $table: [$entry; $count],)*
        }

        /// Slices of an [`RdsStorage`], for [`Rds::start`](crate::Rds::start).
        pub struct RdsParts<'s> {
            $(pub(crate) $table: &'s mut [$entry],)*
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
            #[expect(clippy::new_without_default, reason = "tables are statics")]
            #[must_use]
            pub const fn new() -> Self {
                Self { $($table: [const { $empty }; $count],)* }
            }

            /// Returns the bytes of DMA memory that [`Rds::start`](crate::Rds::start) takes from the
            /// adapter.
            #[must_use]
            pub const fn dma_len() -> usize {
                dma_len(FRAMES, CONNECTIONS)
            }

            /// Borrows the tables.
            pub fn parts(&mut self) -> RdsParts<'_> {
                RdsParts { $($table: &mut self.$table,)* }
            }
        }
    };
}

tables! {
    sockets: [Socket; SOCKETS] = Socket::EMPTY,
    connections: [Connection; CONNECTIONS] = Connection::EMPTY,
    maps: [Map; CONNECTIONS] = Map::EMPTY,
    /// Index of connections by peer, and heap of their deadlines.
    buckets: [Option<ConnectionId>; CONNECTIONS] = None,
    heap: [Option<ConnectionId>; CONNECTIONS] = None,
    remembered: [Remembered; PEERS] = Remembered::EMPTY,
    frames: [Frame; FRAMES] = Frame::EMPTY,
    /// Receive rings. Together they have at most one slot per frame.
    receives: [Option<FrameId>; FRAMES] = None,
    regions: [Region; REGIONS] = Region::EMPTY,
    windows: [Window; REGIONS] = Window::EMPTY,
    operations: [Operation; OPERATIONS] = Operation::EMPTY,
    iovs: [Iov; IOVS] = Iov::EMPTY,
    memories: [Memory; MEMORIES] = Memory::EMPTY,
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

//! The memory of a node.

use rds_nostd::RdsStorage;

use super::config::MAX_LEN;

/// Sockets: those of one mode, and some more.
const SOCKET_SLOTS: usize = 16;
/// Peers at the same time.
const CONNECTIONS: usize = 8;
/// Fragments; with a header each they take 12 MiB of the DMA region.
const FRAMES: usize = 3072;
/// Regions that peers may be offered at the same time, and operations on theirs.
const REGIONS: usize = 64;
const OPERATIONS: usize = 32;

/// The memory of a node: all zero bytes; [`Storage::dma_len`] more come from the adapter's DMA region.
pub struct Storage {
    pub(super) rds: RdsStorage<SOCKET_SLOTS, CONNECTIONS, FRAMES, REGIONS, OPERATIONS>,
    pub(super) buffer: [u8; MAX_LEN],
}

impl Storage {
    /// Nothing in it.
    #[must_use]
    pub const fn new() -> Self {
        Self { rds: RdsStorage::new(), buffer: [0; MAX_LEN] }
    }

    /// Bytes of the DMA region that messages take.
    #[must_use]
    pub const fn dma_len() -> usize {
        RdsStorage::<SOCKET_SLOTS, CONNECTIONS, FRAMES, REGIONS, OPERATIONS>::dma_len()
    }
}

impl Default for Storage {
    fn default() -> Self {
        Self::new()
    }
}

//! The memory of a node.

use rds_nostd::RdsStorage;

use crate::datagrams::{Buffers, MAX_DATAGRAM};

/// The memory of a node: about 640 KiB, all zero bytes, and 9 MiB from the adapter's DMA region.
pub struct Storage {
    pub(crate) buffers: Buffers,
    pub(crate) rds: RdsStorage<4, 4, 1280>,
}

impl Storage {
    /// Nothing in it.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            buffers: Buffers { outgoing: [0; MAX_DATAGRAM], incoming: [0; MAX_DATAGRAM] },
            rds: RdsStorage::new(),
        }
    }
}

impl Default for Storage {
    fn default() -> Self {
        Self::new()
    }
}

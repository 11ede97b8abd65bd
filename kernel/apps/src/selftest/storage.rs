//! The memory of a self-test.

use dat_nostd::adapter_storage;
use driver_mlx::{Bar, HcaParts};
use rds_nostd::RdsStorage;

/// Bytes of the largest region: the newest cards may want so much.
pub(super) const DMA_BYTES: usize = 512 << 20;
/// Bytes of the message that RDS sends itself: several fragments.
const MESSAGE: usize = 20_000;

adapter_storage! {
    pub(super) struct Tables<B: Bar> {
        bar: B, dma_bytes: DMA_BYTES, eps: 4, evds: 8, lmrs: 8, events: 64, connections: 8,
    }
}

pub(super) type RdsTables = RdsStorage<4, 2, 1024>;

/// What the driver and the layers above remember: all zero bytes.
pub struct Storage<B: Bar> {
    pub(super) adapter: Tables<B>,
    pub(super) rds: RdsTables,
    pub(super) buffer: [u8; MESSAGE],
}

impl<B: Bar> Storage<B> {
    /// Nothing in it.
    #[must_use]
    pub const fn new() -> Self {
        Self { adapter: Tables::<B>::new(), rds: RdsStorage::new(), buffer: [0; MESSAGE] }
    }

    /// The driver's part alone, for who wants the HCA before.
    pub fn hca(&mut self) -> HcaParts<'_> {
        self.adapter.hca()
    }
}

impl<B: Bar> Default for Storage<B> {
    fn default() -> Self {
        Self::new()
    }
}

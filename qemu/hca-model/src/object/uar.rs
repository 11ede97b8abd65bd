//! User access regions: doorbell pages (PRM, UAR page format).

use mlx5_prm::init_seg::uar::LOG_BF_REG_SIZE;
use std::collections::{BTreeMap, BTreeSet};

/// First UAR page number: the initialization segment lies below.
pub const FIRST_UAR: u32 = 0x10;

/// Bytes of a UAR page.
pub const UAR_PAGE: usize = 4096;

/// Where the CQ arm doorbell lies in a UAR page.
pub const CQ_DOORBELL: usize = 0x20;
/// Where the arming EQ doorbell lies.
pub const EQ_ARM_DOORBELL: usize = 0x40;
/// Where the EQ doorbell without arming lies.
pub const EQ_DOORBELL: usize = 0x48;
/// Where the first send doorbell (BlueFlame) register lies.
pub const BLUEFLAME: usize = 0x800;

/// A BlueFlame write under way: which work queue entry its bytes belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlueFlame {
    /// The QP that was rung.
    pub qpn: u32,
    /// Basic block of the send queue that the buffer's first byte stands for.
    pub wqe_index: u16,
}

/// Bytes of half a BlueFlame register.
pub const BUFFER: usize = 1 << (LOG_BF_REG_SIZE - 1);
/// BlueFlame buffers of a page.
const BUFFERS: usize = (UAR_PAGE - BLUEFLAME) / BUFFER;

/// The number of the buffer at `offset`.
const fn buffer(offset: usize) -> usize {
    offset.wrapping_sub(BLUEFLAME) / BUFFER
}

/// QPs of one page whose BlueFlame data differs that are remembered.
const MOST_DIFFERING: usize = 64;

/// An allocated UAR page.
#[derive(Clone, Debug, Default)]
pub struct Uar {
    /// First halves of 64-bit registers that were written in two pieces, by offset of the register.
    pub halves: BTreeMap<usize, [u8; 8]>,
    /// BlueFlame buffers that were rung, in order of their offsets.
    blueflame: [Option<BlueFlame>; BUFFERS],
    /// QPs whose BlueFlame data was found to differ from their ring.
    differing: BTreeSet<u32>,
}

impl Uar {
    /// Host memory that a page takes at most.
    pub const MEMORY: u64 = 32 << 10;

    /// Notes that the BlueFlame buffer at `offset` was rung.
    pub fn ring(&mut self, offset: usize, rung: BlueFlame) {
        if let Some(buffer) = self.blueflame.get_mut(buffer(offset)) {
            *buffer = Some(rung);
        }
    }

    /// What the BlueFlame buffer at `offset` was rung with.
    #[must_use]
    pub fn rung(&self, offset: usize) -> Option<BlueFlame> {
        self.blueflame.get(buffer(offset)).copied().flatten()
    }

    /// Notes that a QP's BlueFlame data differs from its ring. Answers whether that is news.
    pub fn differs(&mut self, qpn: u32) -> bool {
        self.differing.len() < MOST_DIFFERING && self.differing.insert(qpn)
    }
}

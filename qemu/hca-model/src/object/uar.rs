//! One user access region: a page of doorbells (PRM, UAR page format).

use mlx5_prm::init_seg::uar::LOG_BF_REG_SIZE;
use std::collections::{BTreeMap, BTreeSet};

/// First UAR page number: the initialization segment lies below.
pub const FIRST_UAR: u32 = 0x10;

/// Bytes of a UAR page.
pub const UAR_PAGE: usize = 4096;

/// Where the CQ arm doorbell lies in a UAR page.
const CQ_DOORBELL: usize = 0x20;
/// Where the arming EQ doorbell lies.
const EQ_ARM_DOORBELL: usize = 0x40;
/// Where the EQ doorbell without arming lies.
const EQ_DOORBELL: usize = 0x48;
/// Where the first send doorbell (BlueFlame) register lies.
const BLUEFLAME: usize = 0x800;

/// What a write to a UAR page rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbell {
    /// Nothing yet: half of a register.
    Nothing,
    /// The EQ doorbell register, with arming or without, and its dword.
    Eq {
        /// The EQ is armed.
        arm: bool,
        /// EQ number and consumer index.
        value: u32,
    },
    /// The CQ doorbell register.
    Cq(u64),
    /// The first 8 bytes of a WQE, which name the QP. What else they say is not looked at: what counts is the ring in memory.
    Send {
        /// Number of the QP.
        qpn: u32,
    },
    /// Further bytes of a BlueFlame buffer.
    BlueFlame {
        /// What the buffer was rung with.
        rung: Option<BlueFlame>,
        /// Bytes from the start of the buffer.
        at: usize,
    },
    /// There is no register.
    Unknown,
}

/// A BlueFlame write under way: which work queue entry its bytes belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlueFlame {
    /// The QP that was rung.
    pub(crate) qpn: u32,
    /// Basic block of the send queue that the buffer's first byte stands for.
    pub(crate) wqe_index: u16,
}

/// Bytes of half a BlueFlame register.
const BUFFER: usize = 1 << (LOG_BF_REG_SIZE - 1);
/// BlueFlame buffers of a page.
const BUFFERS: usize = (UAR_PAGE - BLUEFLAME) / BUFFER;

/// The number of the buffer at `offset`.
const fn buffer(offset: usize) -> usize {
    offset.wrapping_sub(BLUEFLAME) / BUFFER
}

/// QPs of one page whose BlueFlame data differs that are remembered.
const MOST_DIFFERING: usize = 64;

/// A UAR that software was given.
#[derive(Clone, Debug, Default)]
pub struct Uar {
    /// First halves of 64-bit registers that were written in two parts, by offset of the register.
    halves: BTreeMap<usize, [u8; 8]>,
    /// BlueFlame buffers that were rung, in order of their offsets.
    blueflame: [Option<BlueFlame>; BUFFERS],
    /// QPs whose BlueFlame data was found to differ from their ring.
    differing: BTreeSet<u32>,
}

impl Uar {
    /// Host memory that a page takes at most.
    pub const MEMORY: u64 = 32 << 10;

    /// Takes a write of at most 8 bytes, within one 64-bit unit, at `inside` the page.
    #[inline]
    pub fn write(&mut self, inside: usize, bytes: &[u8]) -> Doorbell {
        let unit = inside & !7;
        if unit >= BLUEFLAME && !unit.is_multiple_of(BUFFER) {
            return Doorbell::BlueFlame { rung: self.rung(inside), at: inside % BUFFER };
        }
        // The EQ doorbells are dwords: they act when their last byte arrives, wherever the rest of the unit is.
        let end = inside % 8 + bytes.len();
        let acts_at = if unit == EQ_ARM_DOORBELL || unit == EQ_DOORBELL { 4 } else { 8 };
        let value = match <[u8; 8]>::try_from(bytes) {
            // What drivers of 64-bit machines write.
            Ok(whole) if self.halves.is_empty() => whole,
            _ => {
                let mut value = self.halves.remove(&unit).unwrap_or([0; 8]);
                for (to, from) in value.iter_mut().skip(inside % 8).zip(bytes) {
                    *to = *from;
                }
                if end < acts_at {
                    self.halves.insert(unit, value);
                    return Doorbell::Nothing;
                }
                value
            }
        };
        let value = u64::from_be_bytes(value);
        match unit {
            EQ_ARM_DOORBELL | EQ_DOORBELL if inside % 8 < 4 => {
                Doorbell::Eq { arm: unit == EQ_ARM_DOORBELL, value: (value >> 32) as u32 }
            }
            EQ_ARM_DOORBELL | EQ_DOORBELL => Doorbell::Nothing,
            CQ_DOORBELL => Doorbell::Cq(value),
            _ if unit >= BLUEFLAME => {
                let rung = BlueFlame { qpn: (value as u32) >> 8, wqe_index: (value >> 40) as u16 };
                if let Some(buffer) = self.blueflame.get_mut(buffer(unit)) {
                    *buffer = Some(rung);
                }
                Doorbell::Send { qpn: rung.qpn }
            }
            _ => Doorbell::Unknown,
        }
    }

    /// Returns the QP whose send doorbell a write of `head` at `inside` a page rings.
    #[must_use]
    pub fn send_doorbell(inside: usize, head: [u8; 8]) -> Option<u32> {
        let rings = inside >= BLUEFLAME && inside.is_multiple_of(BUFFER);
        rings.then_some(u64::from_be_bytes(head) as u32 >> 8)
    }

    /// What the BlueFlame buffer at `offset` was rung with.
    #[must_use]
    fn rung(&self, offset: usize) -> Option<BlueFlame> {
        self.blueflame.get(buffer(offset)).copied().flatten()
    }

    /// Notes that a QP's BlueFlame data differs from its ring. Answers whether that is news.
    pub fn differs(&mut self, qpn: u32) -> bool {
        self.differing.len() < MOST_DIFFERING && self.differing.insert(qpn)
    }
}

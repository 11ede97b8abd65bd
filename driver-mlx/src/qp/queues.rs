//! Send and receive queue: what is outstanding, and the bytes of work requests.

use super::Doorbell;
use crate::barrier;
use crate::cq::Completion;
use crate::platform::Bar;
use crate::ring::{BLOCK_UNITS, Units};
use crate::types::{RKey, Sge};
use crate::wqe::{PostError, SendFlags};
use core::sync::atomic::Ordering;
use mlx5_prm::datapath::{INLINE_SEG, SendOpcode};

#[derive(Debug)]
pub(super) struct SendQueue {
    pub(super) ring: Units,
    /// One unit for each basic block: cookie, and in the second quadword the index of this work request (bits 15:0) and of
    /// the one after it (31:16).
    pub(super) slots: Units,
    pub(super) head: u16,
    pub(super) tail: u16,
    pub(super) size: u16,
    /// Head when the doorbell was last rung.
    pub(super) rung: u16,
    /// First quadword of the last work request.
    pub(super) last: u64,
    /// One more than the pieces a connected work request may have; 0 on a datagram service.
    pub(super) connected_limit: u8,
    /// One more than the pieces a datagram may have; 0 on a connected service.
    pub(super) datagram_limit: u8,
    pub(super) max_inline: u16,
}

#[derive(Debug)]
pub(super) struct ReceiveQueue {
    pub(super) ring: Units,
    pub(super) slots: Units,
    pub(super) head: u16,
    pub(super) tail: u16,
    pub(super) size: u16,
    pub(super) log_stride: u8,
    pub(super) max_sge: u8,
}

/// Basic blocks of so many units, without the overflow check of `div_ceil`: a work request has few.
#[inline(always)]
const fn blocks(units: usize) -> usize {
    (units + (BLOCK_UNITS - 1)) >> BLOCK_UNITS.trailing_zeros()
}

/// Why a number of pieces is not below `limit`.
#[cold]
pub(super) fn too_many(limit: u8) -> PostError {
    if limit == 0 { PostError::WrongService } else { PostError::TooManySges }
}

impl SendQueue {
    #[inline(always)]
    pub(super) fn first_unit(&self) -> usize {
        usize::from(self.head) * BLOCK_UNITS
    }

    /// Whether a work request of so many units fits behind what is outstanding.
    #[inline(always)]
    pub(super) fn room(&self, units: usize) -> Result<(), PostError> {
        let blocks = blocks(units);
        let outstanding = usize::from(self.head.wrapping_sub(self.tail));
        if outstanding + blocks > usize::from(self.size) { Err(PostError::Full) } else { Ok(()) }
    }

    /// The remote address segment, always the second unit.
    #[inline(always)]
    pub(super) fn put_remote(&mut self, raddr: u64, rkey: RKey) {
        let block = self.ring.block(usize::from(self.head));
        block[2].store(raddr.to_be(), Ordering::Relaxed);
        block[3].store((u64::from(rkey.get()) << 32).to_be(), Ordering::Relaxed);
    }

    #[inline(always)]
    pub(super) fn put_sges(&mut self, mut unit: usize, sges: &[Sge]) -> Result<usize, PostError> {
        for sge in sges {
            if sge.length == 0 {
                continue;
            }
            if sge.length & INLINE_SEG != 0 {
                return Err(PostError::TooLong);
            }
            self.ring.put(unit, u64::from(sge.length) << 32 | u64::from(sge.lkey.get()), sge.address);
            unit += 1;
        }
        Ok(unit)
    }

    /// An inline segment: its header takes the first four bytes of the first unit.
    #[inline]
    pub(super) fn put_inline(&mut self, mut unit: usize, data: &[u8]) -> usize {
        if data.is_empty() {
            return unit;
        }
        let (head, rest) = data.split_at(data.len().min(12));
        let mut first = [0; 16];
        first[..4].copy_from_slice(&(INLINE_SEG | data.len() as u32).to_be_bytes());
        first[4..4 + head.len()].copy_from_slice(head);
        self.put_bytes(unit, &first);
        unit += 1;
        let (whole, tail) = rest.as_chunks::<16>();
        for bytes in whole {
            self.put_bytes(unit, bytes);
            unit += 1;
        }
        if !tail.is_empty() {
            let mut last = [0; 16];
            last[..tail.len()].copy_from_slice(tail);
            self.put_bytes(unit, &last);
            unit += 1;
        }
        unit
    }

    #[inline(always)]
    pub(super) fn put_bytes(&mut self, unit: usize, bytes: &[u8; 16]) {
        let value = u128::from_be_bytes(*bytes);
        self.ring.put(unit, (value >> 64) as u64, value as u64);
    }

    /// The control segment, the slot, the new head.
    #[inline(always)]
    pub(super) fn finish(
        &mut self,
        qpn_shifted: u32,
        opcode: SendOpcode,
        imm: u32,
        end: usize,
        cookie: u64,
        flags: SendFlags,
    ) {
        let ds = end - self.first_unit();
        let first =
            (u64::from(self.head) << 8 | u64::from(opcode.0)) << 32 | u64::from(qpn_shifted) | ds as u64;
        let control = self.ring.block(usize::from(self.head));
        control[0].store(first.to_be(), Ordering::Relaxed);
        control[1].store((u64::from(flags.bits()) << 32 | u64::from(imm)).to_be(), Ordering::Relaxed);
        let next = self.head.wrapping_add(blocks(ds) as u16);
        self.slots.put_native(usize::from(self.head), cookie, u64::from(next) << 16 | u64::from(self.head));
        self.head = next;
        self.last = first;
    }

    #[inline(never)]
    /// Writes a lone small work request to the register, else only its first quadword; then turns to the other half.
    pub(super) fn ring_blueflame<B: Bar>(&mut self, doorbell: &mut Doorbell<B>) {
        barrier::flush_write_combining();
        let index = (self.last >> 40) as u16;
        let bytes = usize::from(self.head.wrapping_sub(index)) * 64;
        if index == self.rung && bytes <= doorbell.blueflame {
            let start = usize::from(index) * BLOCK_UNITS;
            for unit in 0..bytes / 16 {
                let (first, second) = self.ring.get(start + unit);
                // The first quadword is the doorbell: the one just made, whatever the memory says by now.
                let first = if unit == 0 { self.last } else { first };
                doorbell.bar.write64(doorbell.offset + unit * 16, first);
                doorbell.bar.write64(doorbell.offset + unit * 16 + 8, second);
            }
        } else {
            doorbell.bar.write64(doorbell.offset, self.last);
        }
        barrier::flush_write_combining();
        doorbell.offset ^= doorbell.blueflame;
    }

    #[inline]
    pub(super) fn retire(&mut self, index: u16) -> Option<u64> {
        let outstanding = self.head.wrapping_sub(self.tail);
        if index.wrapping_sub(self.tail) >= outstanding {
            return None;
        }
        let (cookie, meta) = self.slots.get_native(usize::from(index));
        let next = (meta >> 16) as u16;
        // One compare for "at least one block and no more than are outstanding".
        let last = next.wrapping_sub(self.tail).wrapping_sub(1);
        if meta as u16 != index || last >= outstanding {
            return None;
        }
        self.tail = next;
        Some(cookie)
    }
}

impl ReceiveQueue {
    #[inline]
    pub(super) fn retire(&mut self, completion: &Completion) -> Option<u64> {
        let expected = completion.wqe_counter() ^ self.tail;
        if self.tail == self.head || expected & (self.size - 1) != 0 {
            return None;
        }
        let (cookie, _) = self.slots.get_native(usize::from(self.tail));
        self.tail = self.tail.wrapping_add(1);
        Some(cookie)
    }
}

//! Send and receive queue: what is outstanding, and the bytes of work requests.

use super::Doorbell;
use crate::barrier;
use crate::cq::Completion;
use crate::platform::Bar;
use crate::ring::{BLOCK_UNITS, Units};
use crate::types::{RKey, Sge};
use crate::wqe::{ATOMIC_BYTES, PostError, SendOp};
use core::sync::atomic::Ordering;
use mlx5_prm::datapath::{FmCeSe, INLINE_SEG, SendOpcode};

#[derive(Debug)]
pub(super) struct SendQueue {
    pub(super) ring: Units,
    /// One unit for each basic block: cookie, and in the second quadword the index of this work request (bits 15:0) and of
    /// the one after it (31:16).
    pub(super) slots: Units,
    /// QP number in the place the control segment has it.
    pub(super) qpn_shifted: u32,
    pub(super) head: u16,
    pub(super) tail: u16,
    /// Basic blocks; 0 if there is no send queue.
    pub(super) size: u16,
    /// Head when the doorbell was last rung.
    pub(super) rung: u16,
    /// First quadword of the last work request.
    pub(super) last: u64,
    /// One more than the pieces a connected work request may have now; 0 on a datagram service, without a send queue, and while the
    /// next work request must wait for a change of memory keys ([`SendQueue::fenced`]).
    pub(super) connected_limit: u8,
    /// One more than the pieces a datagram may have; 0 on a connected service.
    pub(super) datagram_limit: u8,
    pub(super) max_inline: u16,
    /// Whether the service has RDMA reads, atomics, invalidation.
    pub(super) reliable: bool,
    /// What `connected_limit` will be again after the next work request, which must wait for a change of memory keys; 0 if it need not.
    pub(super) fenced: u8,
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
    /// Whether small messages may arrive in the completion.
    pub(super) inline_receive: bool,
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

    /// A work request of a connected service, with `sges` checked for their number.
    #[inline(always)]
    pub(super) fn post(
        &mut self,
        op: SendOp,
        sges: &[Sge],
        cookie: u64,
        control: u8,
    ) -> Result<(), PostError> {
        // Before anything is written: the next block may still belong to the device.
        if self.head.wrapping_sub(self.tail) >= self.size {
            return Err(PostError::Full);
        }
        match op.parts() {
            (SendOpcode::SEND_INVAL, ..) if !self.reliable => Err(PostError::WrongService),
            (opcode, imm, None) => self.post_pieces::<1>(opcode, imm, sges, cookie, control),
            (SendOpcode::RDMA_WRITE, imm, Some((raddr, rkey))) => {
                self.put_remote(raddr, rkey);
                self.post_pieces::<2>(SendOpcode::RDMA_WRITE, imm, sges, cookie, control)
            }
            (SendOpcode::RDMA_WRITE_IMM, imm, Some((raddr, rkey))) => {
                self.put_remote(raddr, rkey);
                self.post_pieces::<2>(SendOpcode::RDMA_WRITE_IMM, imm, sges, cookie, control)
            }
            _ => self.post_answered(op, sges, cookie, control),
        }
    }

    /// The pieces from unit `FIRST` on, and what completes the work request. Most have one piece and fit one block.
    #[inline(always)]
    fn post_pieces<const FIRST: usize>(
        &mut self,
        opcode: SendOpcode,
        imm: u32,
        sges: &[Sge],
        cookie: u64,
        control: u8,
    ) -> Result<(), PostError> {
        if let [sge] = sges
            && sge.length.wrapping_sub(1) < INLINE_SEG - 1
            && FIRST < BLOCK_UNITS
        {
            let block = self.ring.block(usize::from(self.head));
            let first = u64::from(sge.length) << 32 | u64::from(sge.lkey.get());
            block[FIRST * 2].store(first.to_be(), Ordering::Relaxed);
            block[FIRST * 2 + 1].store(sge.address.to_be(), Ordering::Relaxed);
            self.finish(opcode, imm, FIRST + 1, cookie, control);
            Ok(())
        } else {
            self.post_list(FIRST, opcode, imm, sges, cookie, control)
        }
    }

    /// As [`SendQueue::post_pieces`], any number of them.
    #[inline(never)]
    fn post_list(
        &mut self,
        units: usize,
        opcode: SendOpcode,
        imm: u32,
        sges: &[Sge],
        cookie: u64,
        control: u8,
    ) -> Result<(), PostError> {
        self.room(units + sges.len())?;
        let first = self.first_unit();
        let end = self.put_sges(first + units, sges)?;
        self.finish(opcode, imm, end - first, cookie, control);
        Ok(())
    }

    /// What the peer answers with data: RDMA reads and atomics.
    #[inline(never)]
    fn post_answered(&mut self, op: SendOp, sges: &[Sge], cookie: u64, control: u8) -> Result<(), PostError> {
        let (opcode, imm, remote) = op.parts();
        let (Some((raddr, rkey)), true) = (remote, self.reliable) else {
            return Err(PostError::WrongService);
        };
        let operands = match op {
            SendOp::CompareSwap { compare, swap, .. } => Some((swap, compare)),
            SendOp::FetchAdd { add, .. } => Some((add, 0)),
            _ => None,
        };
        let mut units = 2;
        if let Some((swap_add, compare)) = operands {
            match sges {
                [sge] if sge.length == ATOMIC_BYTES => {}
                [_] => return Err(PostError::TooLong),
                _ => return Err(PostError::TooManySges),
            }
            self.ring.put(self.first_unit() + 2, swap_add, compare);
            units = 3;
        }
        self.put_remote(raddr, rkey);
        self.post_list(units, opcode, imm, sges, cookie, control)
    }

    /// Why `pieces` is not below the limit; or, if it is only that the next work request must wait for a change of memory keys, that
    /// work request.
    #[cold]
    #[inline(never)]
    pub(super) fn post_fenced(
        &mut self,
        op: SendOp,
        sges: &[Sge],
        cookie: u64,
        control: u8,
    ) -> Result<(), PostError> {
        let limit = self.connected_limit.max(self.fenced);
        if sges.len() >= usize::from(limit) {
            return Err(too_many(limit));
        }
        self.post(op, sges, cookie, small_fence(control))?;
        self.unfence();
        Ok(())
    }

    /// The next work request waits until memory keys are as this one makes them.
    pub(super) fn fence_next(&mut self) {
        self.fenced = self.fenced.max(self.connected_limit);
        self.connected_limit = 0;
    }

    /// A work request that waits has been posted.
    pub(super) fn unfence(&mut self) {
        self.connected_limit = self.connected_limit.max(self.fenced);
        self.fenced = 0;
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

    /// The control segment of a work request of `ds` units, the slot, the new head.
    #[inline(always)]
    pub(super) fn finish(&mut self, opcode: SendOpcode, imm: u32, ds: usize, cookie: u64, control: u8) {
        let head = self.head;
        let first =
            (u64::from(head) << 8 | u64::from(opcode.0)) << 32 | u64::from(self.qpn_shifted) | ds as u64;
        let block = self.ring.block(usize::from(head));
        block[0].store(first.to_be(), Ordering::Relaxed);
        block[1].store((u64::from(control) << 32 | u64::from(imm)).to_be(), Ordering::Relaxed);
        let next = head.wrapping_add(blocks(ds) as u16);
        self.slots.put_native(usize::from(head), cookie, u64::from(next) << 16 | u64::from(head));
        self.head = next;
        self.last = first;
    }

    /// Writes a lone small work request to the register, else only its first quadword; then turns to the other half.
    #[inline(never)]
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

    /// The cookie of the outstanding work request at `index`, and the index after it.
    #[inline(always)]
    pub(super) fn find(&self, index: u16) -> Option<(u64, u16)> {
        let (cookie, meta) = self.slots.get_native(usize::from(index));
        let next = (meta >> 16) as u16;
        // Outstanding are those that end behind the tail and not behind the head: fewer blocks are left after them than are now.
        let left = self.head.wrapping_sub(next);
        (meta as u16 == index && left < self.head.wrapping_sub(self.tail)).then_some((cookie, next))
    }

    #[inline(always)]
    pub(super) fn retire(&mut self, index: u16) -> Option<u64> {
        let (cookie, next) = self.find(index)?;
        self.tail = next;
        Some(cookie)
    }
}

/// The control byte of a work request that waits for a change of memory keys besides what it waits for already.
pub(super) fn small_fence(control: u8) -> u8 {
    let mode = if control & FmCeSe::FENCE_MASK.bits() == 0 {
        FmCeSe::INITIATOR_SMALL_FENCE
    } else {
        FmCeSe::SMALL_AND_FENCE
    };
    control & !FmCeSe::FENCE_MASK.bits() | mode.bits()
}

impl ReceiveQueue {
    /// The cookie of the receive that `completion` reports, and how many are older.
    #[inline]
    pub(super) fn find(&self, completion: &Completion) -> Option<(u64, u16)> {
        let older = completion.wqe_counter().wrapping_sub(self.tail) & (self.size - 1);
        let possible = self.inline_receive || !completion.is_inline();
        let entry = self.tail.wrapping_add(older);
        (older < self.head.wrapping_sub(self.tail) && possible)
            .then(|| (self.slots.get_native(usize::from(entry)).0, older))
    }

    #[inline]
    pub(super) fn retire(&mut self, completion: &Completion) -> Option<u64> {
        let (cookie, 0) = self.find(completion)? else { return None };
        self.tail = self.tail.wrapping_add(1);
        Some(cookie)
    }
}

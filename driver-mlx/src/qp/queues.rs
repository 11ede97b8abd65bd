//! Send and receive queue: what is outstanding, and the bytes of work requests.

use super::{Doorbell, Kept, Retired};
use crate::barrier;
use crate::cq::CompletedWork;
use crate::platform::Bar;
use crate::ring::{BLOCK_UNITS, DoorbellRecord, Units};
use crate::types::{RKey, Sge};
use crate::wqe::{ATOMIC_BYTES, PostError, SendOp};
use core::sync::atomic::{AtomicU64, Ordering};
use mlx5_prm::datapath::{FmCeSe, INLINE_SEG, SendOpcode};

#[derive(Debug)]
pub(super) struct SendQueue {
    pub(super) ring: Units,
    /// One unit for each basic block: in that of a work request's first block what is [kept](Kept) with it, and in bits 7:0 of the
    /// second quadword its number of blocks. Those bits are 0 for its other blocks.
    pub(super) slots: Units,
    /// QP number in the place the control segment has it.
    pub(super) qpn_shifted: u32,
    pub(super) head: u16,
    /// As far as `head` may go before something is retired: the tail, and the size of the ring.
    pub(super) end: u16,
    /// Basic blocks; 0 if there is no send queue.
    pub(super) size: u16,
    /// Head when the doorbell was last rung.
    pub(super) rung: u16,
    /// First quadword of the last work request, as in memory.
    pub(super) last: u64,
    /// One more than the pieces a connected work request may have now; 0 on a datagram service, without a send queue, and while the
    /// next work request must wait for a change of memory keys ([`SendQueue::fenced`]).
    pub(super) connected_limit: u8,
    /// One more than the pieces a datagram may have; 0 on a connected service.
    pub(super) datagram_limit: u8,
    /// As `connected_limit`; 0 too if small work requests are written straight to the device.
    pub(super) plain_limit: u8,
    pub(super) max_inline: u16,
    /// First quadword of an RDMA write of one piece, without its index.
    pub(super) write_base: u64,
    /// Whether `plain_limit` is 0 for good: small work requests are written straight to the device, or the device is gone.
    pub(super) never_plain: bool,
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

/// The bits of a slot's second quadword that have the number of blocks.
const BLOCKS_MASK: u64 = 0xff;

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

    /// Index of the oldest work request, if one is outstanding.
    #[inline(always)]
    fn tail(&self) -> u16 {
        self.end.wrapping_sub(self.size)
    }

    /// Basic blocks posted and not yet retired.
    #[inline(always)]
    pub(super) fn outstanding(&self) -> u16 {
        self.head.wrapping_sub(self.tail())
    }

    /// Whether a work request of so many units fits behind what is outstanding.
    #[inline(always)]
    pub(super) fn room(&self, units: usize) -> Result<(), PostError> {
        if blocks(units) > usize::from(self.end.wrapping_sub(self.head)) {
            Err(PostError::Full)
        } else {
            Ok(())
        }
    }

    /// A work request of a connected service, with `sges` checked for their number.
    #[inline(always)]
    pub(super) fn post(
        &mut self,
        op: SendOp,
        sges: &[Sge],
        kept: Kept,
        control: u8,
    ) -> Result<(), PostError> {
        // Before anything is written: the next block may still belong to the device.
        if self.head == self.end {
            return Err(PostError::Full);
        }
        match op {
            SendOp::Write { raddr, rkey } => {
                self.post_piece(SendOpcode::RDMA_WRITE, Some((raddr, rkey)), op, sges, kept, control)
            }
            SendOp::Send => self.post_piece(SendOpcode::SEND, None, op, sges, kept, control),
            _ => self.post_any(op, sges, kept, control),
        }
    }

    /// The most frequent work requests: most have one piece, and fit one block.
    // After a store to shared memory the compiler reads everything again: so each thing is read once, just before its use.
    #[inline(always)]
    fn post_piece(
        &mut self,
        opcode: SendOpcode,
        remote: Option<(u64, RKey)>,
        op: SendOp,
        sges: &[Sge],
        kept: Kept,
        control: u8,
    ) -> Result<(), PostError> {
        let [sge] = sges else { return self.post_any(op, sges, kept, control) };
        if sge.length.wrapping_sub(1) >= INLINE_SEG - 1 {
            return self.post_any(op, sges, kept, control);
        }
        let head = self.head;
        let block = self.ring.block(usize::from(head));
        let data = if let Some((raddr, rkey)) = remote {
            put_remote(block, raddr, rkey);
            [&block[4], &block[5]]
        } else {
            [&block[2], &block[3]]
        };
        data[0].store(data_first(sge).to_be(), Ordering::Relaxed);
        data[1].store(sge.address.to_be(), Ordering::Relaxed);
        let ds = if remote.is_some() { 3 } else { 2 };
        let first = control_first(head, opcode, self.qpn_shifted, ds).to_be();
        block[0].store(first, Ordering::Relaxed);
        block[1].store(control_second(control, 0).to_be(), Ordering::Relaxed);
        let next = head.wrapping_add(1);
        self.keep(head, kept, 1);
        self.head = next;
        self.last = first;
        Ok(())
    }

    /// Any work request of a connected service, with any number of pieces. There is one block for it at least.
    #[inline(never)]
    fn post_any(&mut self, op: SendOp, sges: &[Sge], kept: Kept, control: u8) -> Result<(), PostError> {
        let (opcode, imm, remote) = op.parts();
        if !self.reliable && (op.is_answered() || opcode == SendOpcode::SEND_INVAL) {
            return Err(PostError::WrongService);
        }
        let operands = match op {
            SendOp::CompareSwap { compare, swap, .. } => Some((swap, compare)),
            SendOp::FetchAdd { add, .. } => Some((add, 0)),
            _ => None,
        };
        if operands.is_some() {
            match sges {
                [sge] if sge.length == ATOMIC_BYTES => {}
                [_] => return Err(PostError::TooLong),
                _ => return Err(PostError::TooManySges),
            }
        }
        self.room(1 + usize::from(remote.is_some()) + usize::from(operands.is_some()) + sges.len())?;
        let first = self.first_unit();
        let mut unit = first + 1;
        if let Some((raddr, rkey)) = remote {
            put_remote(self.ring.block(usize::from(self.head)), raddr, rkey);
            unit += 1;
        }
        if let Some((swap_add, compare)) = operands {
            self.ring.put(unit, swap_add, compare);
            unit += 1;
        }
        let end = self.put_sges(unit, sges)?;
        self.finish(opcode, imm, end - first, kept, control);
        Ok(())
    }

    /// Why `pieces` is not below the limit; or, if it is only that the next work request must wait for a change of memory keys, that
    /// work request.
    #[cold]
    #[inline(never)]
    pub(super) fn post_fenced(
        &mut self,
        op: SendOp,
        sges: &[Sge],
        kept: Kept,
        control: u8,
    ) -> Result<(), PostError> {
        let limit = self.connected_limit.max(self.fenced);
        if sges.len() >= usize::from(limit) {
            return Err(too_many(limit));
        }
        self.post(op, sges, kept, small_fence(control))?;
        self.unfence();
        Ok(())
    }

    /// An RDMA write of one piece, rung for at once. False, and nothing was done, if there is anything unusual about it.
    // One way through without a call, so that registers need not be saved.
    #[inline(always)]
    pub(super) fn write_plain<B: Bar>(
        &mut self,
        record: &mut DoorbellRecord,
        doorbell: &Doorbell<B>,
        remote: impl FnOnce() -> (u64, RKey),
        sge: Sge,
        kept: Kept,
    ) -> bool {
        let head = self.head;
        if self.plain_limit < 2 || head == self.end || sge.length.wrapping_sub(1) >= INLINE_SEG - 1 {
            return false;
        }
        self.keep(head, kept, 1);
        let next = head.wrapping_add(1);
        let block = self.ring.block(usize::from(head));
        block[4].store(data_first(&sge).to_be(), Ordering::Relaxed);
        block[5].store(sge.address.to_be(), Ordering::Relaxed);
        let (raddr, rkey) = remote();
        put_remote(block, raddr, rkey);
        let first = (u64::from(head) << 40 | self.write_base).to_be();
        block[0].store(first, Ordering::Relaxed);
        block[1].store(control_second(FmCeSe::CQ_UPDATE.bits(), 0).to_be(), Ordering::Relaxed);
        self.head = next;
        self.rung = next;
        barrier::publish();
        record.store_second(u32::from(next));
        barrier::before_doorbell();
        doorbell.bar.write64(doorbell.offset, u64::from_be(first));
        true
    }

    /// The next work request waits until memory keys are as this one makes them.
    pub(super) fn fence_next(&mut self) {
        self.fenced = self.fenced.max(self.connected_limit);
        (self.connected_limit, self.plain_limit) = (0, 0);
    }

    /// A work request that waits has been posted.
    pub(super) fn unfence(&mut self) {
        if self.fenced != 0 {
            (self.connected_limit, self.fenced) = (self.fenced, 0);
            self.plain_limit = if self.never_plain { 0 } else { self.connected_limit };
        }
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
            self.ring.put(unit, data_first(sge), sge.address);
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
    pub(super) fn finish(&mut self, opcode: SendOpcode, imm: u32, ds: usize, kept: Kept, control: u8) {
        let head = self.head;
        let first = control_first(head, opcode, self.qpn_shifted, ds).to_be();
        let block = self.ring.block(usize::from(head));
        block[0].store(first, Ordering::Relaxed);
        block[1].store(control_second(control, imm).to_be(), Ordering::Relaxed);
        let used = blocks(ds) as u16;
        self.keep(head, kept, used);
        for inner in 1..used {
            self.keep(head.wrapping_add(inner), Kept::default(), 0);
        }
        self.head = head.wrapping_add(used);
        self.last = first;
    }

    /// Fills the slot of a block: of a work request of so many blocks, or 0 for one that none begins at.
    #[inline(always)]
    pub(super) fn keep(&self, index: u16, kept: Kept, blocks: u16) {
        let slot = self.slots.unit(usize::from(index));
        slot[0].store(kept.cookie, Ordering::Relaxed);
        slot[1].store(kept.note & !BLOCKS_MASK | u64::from(blocks), Ordering::Relaxed);
    }

    /// Writes a lone small work request to the register, else only its first quadword; then turns to the other half.
    #[inline(never)]
    pub(super) fn ring_blueflame<B: Bar>(&mut self, doorbell: &mut Doorbell<B>) {
        barrier::flush_write_combining();
        let last = u64::from_be(self.last);
        let index = (last >> 40) as u16;
        let bytes = usize::from(self.head.wrapping_sub(index)) * 64;
        if index == self.rung && bytes <= doorbell.blueflame {
            let start = usize::from(index) * BLOCK_UNITS;
            for unit in 0..bytes / 16 {
                let (first, second) = self.ring.get(start + unit);
                // The first quadword is the doorbell: the one just made, whatever the memory says by now.
                let first = if unit == 0 { last } else { first };
                doorbell.bar.write64(doorbell.offset + unit * 16, first);
                doorbell.bar.write64(doorbell.offset + unit * 16 + 8, second);
            }
        } else {
            doorbell.bar.write64(doorbell.offset, last);
        }
        barrier::flush_write_combining();
        doorbell.offset ^= doorbell.blueflame;
        self.rung = self.head;
    }

    /// What the slot of a block says: of the work request that begins there, its number of blocks too.
    #[inline(always)]
    fn slot(&self, index: u16) -> (Kept, u16) {
        let slot = self.slots.unit(usize::from(index));
        let (cookie, second) = (slot[0].load(Ordering::Relaxed), slot[1].load(Ordering::Relaxed));
        (Kept { cookie, note: second & !BLOCKS_MASK }, (second & BLOCKS_MASK) as u16)
    }

    /// What is kept with the outstanding work request at `index`, and the index after it.
    #[inline]
    pub(super) fn find(&self, index: u16) -> Option<(Kept, u16)> {
        let (outstanding, older) = (self.outstanding(), index.wrapping_sub(self.tail()));
        let (kept, used) = self.slot(index);
        (older < outstanding && used != 0 && used <= outstanding - older)
            .then_some((kept, index.wrapping_add(used)))
    }

    /// Retires the work request at `index` and all before it.
    pub(super) fn retire(&mut self, index: u16) -> Option<Retired> {
        let (kept, next) = self.find(index)?;
        let older = index.wrapping_sub(self.tail());
        let (mut count, mut passed) = (1, 0);
        while passed < older {
            let (_, used) = self.slot(self.tail().wrapping_add(passed));
            if used == 0 || used > older - passed {
                return None;
            }
            passed += used;
            count += 1;
        }
        self.end = next.wrapping_add(self.size);
        Some(Retired { kept, count })
    }

    /// Retires the work request at `index` if it is the oldest, and if `accept` takes what is kept with it.
    #[inline(always)]
    pub(super) fn retire_oldest(&mut self, index: u16, accept: impl FnOnce(Kept) -> bool) -> Option<Kept> {
        // All that is outstanding was posted in order, so nothing but the oldest begins where the tail is.
        if index.wrapping_add(self.size) != self.end || index == self.head {
            return None;
        }
        let (kept, used) = self.slot(index);
        if !accept(kept) {
            return None;
        }
        self.end = self.end.wrapping_add(used);
        Some(kept)
    }

    /// Retires the oldest work request.
    pub(super) fn take_oldest(&mut self) -> Option<Kept> {
        self.retire(self.tail()).map(|retired| retired.kept)
    }
}

/// The remote address segment, always the second unit of a work request.
#[inline(always)]
pub(super) fn put_remote(block: &[AtomicU64; 8], raddr: u64, rkey: RKey) {
    block[2].store(raddr.to_be(), Ordering::Relaxed);
    block[3].store((u64::from(rkey.get()) << 32).to_be(), Ordering::Relaxed);
}

/// First quadword of a control segment: index, opcode, QP number, units.
#[inline(always)]
pub(super) fn control_first(head: u16, opcode: SendOpcode, qpn_shifted: u32, ds: usize) -> u64 {
    (u64::from(head) << 8 | u64::from(opcode.0)) << 32 | u64::from(qpn_shifted) | ds as u64
}

/// The first quadword of an RDMA write of three units, without its index.
pub(super) fn write_base(qpn_shifted: u32) -> u64 {
    control_first(0, SendOpcode::RDMA_WRITE, qpn_shifted, 3)
}

/// Second quadword: fences and flags, immediate.
#[inline(always)]
fn control_second(control: u8, imm: u32) -> u64 {
    u64::from(control) << 32 | u64::from(imm)
}

/// First quadword of a data segment: length, key.
#[inline(always)]
pub(super) fn data_first(sge: &Sge) -> u64 {
    u64::from(sge.length) << 32 | u64::from(sge.lkey.get())
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
    /// Receives posted and not yet retired.
    #[inline(always)]
    pub(super) fn outstanding(&self) -> u16 {
        self.head.wrapping_sub(self.tail)
    }

    /// What is kept with the receive at `index`.
    #[inline(always)]
    pub(super) fn kept(&self, index: u16) -> Kept {
        let (cookie, note) = self.slots.get_native(usize::from(index));
        Kept { cookie, note }
    }

    /// What is kept with the receive that `completion` reports, and how many are older.
    #[inline]
    pub(super) fn find(&self, completion: CompletedWork) -> Option<(Kept, u16)> {
        let older = completion.wqe_counter().wrapping_sub(self.tail) & (self.size - 1);
        let possible = self.inline_receive || !completion.is_inline();
        (older < self.outstanding() && possible).then(|| (self.kept(self.tail.wrapping_add(older)), older))
    }

    #[inline]
    pub(super) fn retire(&mut self, completion: CompletedWork) -> Option<Retired> {
        let (kept, 0) = self.find(completion)? else { return None };
        self.tail = self.tail.wrapping_add(1);
        Some(Retired { kept, count: 1 })
    }

    /// Retires the oldest receive.
    pub(super) fn take_oldest(&mut self) -> Option<Kept> {
        if self.outstanding() == 0 {
            return None;
        }
        let kept = self.kept(self.tail);
        self.tail = self.tail.wrapping_add(1);
        Some(kept)
    }
}

//! The send queue: what is outstanding, and the bytes of requests.

use super::SendRegister;
use crate::barrier;
use crate::completion::WrId;
use crate::mw::{BIND_OCTOWORDS, small_fence};
use crate::platform::DoorbellRegister;
use crate::ring::{DoorbellRecord, OCTOWORDS_PER_ENTRY, SendRing, Slot, Slots, data_segment};
use crate::types::{QpNumber, RKey, Sge};
use crate::wqe::{ATOMIC_BYTES, AddressVector, PostError, SendOp};
use core::slice;
use core::sync::atomic::{AtomicU64, Ordering};
use mlx5_prm::datapath::{INLINE_SEG, SendOpcode};

#[derive(Debug)]
pub(super) struct SendQueue {
    /// In the slot of a request's first WQEBB its [`WrId`], with its number of WQEBBs in bits 7:0 of the tag. Those bits are 0 for its
    /// other WQEBBs.
    ring: SendRing,
    /// WQEBBs posted; the low 16 bits are the index of the next request.
    head: u64,
    /// What `head` must be below for an ordinary request: WQEBBs retired and those of the ring; while requests are not ordinary those
    /// retired alone, so that one comparison tells.
    end: u64,
    /// Head when the doorbell was last rung; for a BlueFlame register always `head`.
    rung: u64,
    /// What a completion of the oldest request says, as [`place`] has it: its index in bits 63:48, the QP number in bits 23:0.
    oldest: u64,
    number: QpNumber,
    /// First quadword of the control segment of an ordinary send and of an ordinary write, without their index.
    bases: [u64; 2],
    /// First quadword of the last request, as in memory.
    last: u64,
    /// WQEBBs; 0 if there is no send queue.
    size: u16,
    /// Small requests are written to a BlueFlame register: index of the first that was not.
    blueflame: Option<u16>,
    /// The next request waits until memory keys are as the one before it makes them.
    fenced: bool,
    /// The head when a request of several WQEBBs was last posted: behind it each request is one WQEBB.
    wide: u64,
    /// Connected service (RC, UC).
    connected: bool,
    /// Whether the service has RDMA reads, atomics, invalidation.
    reliable: bool,
    max_sge: u8,
    max_inline: u16,
    pub(super) slots: Slots,
}

/// What a send queue is made for.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendLimits {
    pub(super) connected: bool,
    pub(super) reliable: bool,
    pub(super) blueflame: bool,
    pub(super) max_sge: u8,
    pub(super) max_inline: u16,
}

/// The bits of a slot's tag that have the number of WQEBBs.
const WQEBBS_MASK: u64 = 0xff;

/// Of the last quadword of a completion: index, opcode and QP number, turned so that the index is at the top, where its carry is lost.
#[inline(always)]
fn place(tail: u64) -> u64 {
    tail.rotate_left(32) & 0xffff_00f0_00ff_ffff
}

/// WQEBBs of so many octowords, without the overflow check of `div_ceil`: a request has few.
#[inline(always)]
const fn wqebbs(octowords: usize) -> usize {
    (octowords + (OCTOWORDS_PER_ENTRY - 1)) >> OCTOWORDS_PER_ENTRY.trailing_zeros()
}

impl SendQueue {
    /// An empty queue over `ring`; `size` is 0 if there is none.
    pub(super) fn new(ring: SendRing, slots: Slots, size: u16, limits: SendLimits) -> Self {
        let SendLimits { connected, reliable, blueflame, max_sge, max_inline } = limits;
        Self {
            ring,
            head: 0,
            end: 0,
            rung: 0,
            oldest: 0,
            number: QpNumber::default(),
            bases: [0; 2],
            last: 0,
            size,
            blueflame: blueflame.then_some(0),
            fenced: false,
            wide: 0,
            connected,
            reliable,
            max_sge,
            max_inline,
            slots,
        }
    }

    /// Forgets everything posted.
    pub(super) fn clear(&mut self) {
        self.ring.clear();
        (self.head, self.rung, self.last, self.wide) = (0, 0, 0, 0);
        self.blueflame = self.blueflame.map(|_| 0);
        self.fenced = false;
        self.settle(0);
    }

    pub(super) fn set_number(&mut self, number: QpNumber) {
        self.number = number;
        self.bases = [(SendOpcode::SEND, 2), (SendOpcode::RDMA_WRITE, 3)]
            .map(|(opcode, octowords)| control_first(opcode, number, octowords));
        self.settle(self.tail());
    }

    #[inline(always)]
    pub(super) fn number(&self) -> QpNumber {
        self.number
    }

    /// As if so many WQEBBs had been posted and retired.
    #[cfg(test)]
    pub(super) fn start_at(&mut self, index: u16) {
        (self.head, self.rung) = (index.into(), index.into());
        self.settle(index);
    }

    /// Index of the oldest request, if one is outstanding.
    #[inline(always)]
    fn tail(&self) -> u16 {
        (self.oldest >> 48) as u16
    }

    /// Makes what ordinary requests and their completions go by fit the rest, with the tail at `tail`: after everything else.
    fn settle(&mut self, tail: u16) {
        let ordinary =
            self.connected && !self.fenced && self.blueflame.is_none() && self.size > 0 && self.max_sge > 0;
        let retired = self.retired(tail);
        self.end = if ordinary { retired + u64::from(self.size) } else { retired };
        self.oldest = u64::from(tail) << 48 | u64::from(self.number.get());
        if self.blueflame.is_some() {
            self.rung = self.head;
        }
    }

    /// The tail, counted as [`head`](Self::head) is in the struct: without end.
    #[inline(always)]
    fn retired(&self, tail: u16) -> u64 {
        self.head - u64::from(self.head().wrapping_sub(tail))
    }

    /// Index that the next request gets.
    #[inline(always)]
    pub(super) fn head(&self) -> u16 {
        self.head as u16
    }

    /// WQEBBs posted and not yet retired.
    #[inline(always)]
    pub(super) fn outstanding(&self) -> u16 {
        self.head().wrapping_sub(self.tail())
    }

    /// Whether a request of so many octowords fits behind what is outstanding.
    fn room(&self, octowords: usize) -> Result<(), PostError> {
        let room = self.size - self.outstanding();
        if wqebbs(octowords) > usize::from(room) { Err(PostError::Full) } else { Ok(()) }
    }

    /// A request of a connected service. Most are sends and writes of one SGE, which fit one WQEBB.
    // The rare case of each is handed what the operation is taken apart into, so that none has to be put into memory for it.
    #[inline(always)]
    pub(super) fn post(
        &mut self,
        op: SendOp,
        sges: &[Sge],
        wr_id: WrId,
        control: u8,
    ) -> Result<(), PostError> {
        let tag = wr_id.tag & !WQEBBS_MASK | u64::from(control);
        match (op, sges) {
            (SendOp::Write { raddr, rkey }, [sge])
                if self.post_ordinary(op, sge, wr_id, control).is_none() =>
            {
                self.post_rare_write(raddr, rkey, sge, wr_id.id, tag)
            }
            (SendOp::Send, [sge]) if self.post_ordinary(op, sge, wr_id, control).is_none() => {
                self.post_rare_send(sge, wr_id.id, tag)
            }
            (SendOp::Write { .. } | SendOp::Send, [_]) => Ok(()),
            _ => self.post_rare(op, sges, wr_id.id, tag),
        }
    }

    /// A send or write of one SGE, while there is room (the next WQEBB may still belong to the device), of a length that is not 0 or 2^31
    /// and more: gives what the doorbell is to say. None for any other request: nothing was posted.
    #[inline(always)]
    pub(super) fn post_ordinary(
        &mut self,
        op: SendOp,
        sge: &Sge,
        wr_id: WrId,
        control: u8,
    ) -> Option<(u64, u64)> {
        if self.head >= self.end || sge.length as i32 <= 0 {
            return None;
        }
        match op {
            SendOp::Write { raddr, rkey } => Some(self.put(Some((raddr, rkey)), sge, wr_id, control)),
            SendOp::Send => Some(self.put(None, sge, wr_id, control)),
            _ => None,
        }
    }

    /// As [`post_ordinary`](Self::post_ordinary) of a send, of one SGE or of two, but nobody rings yet. False: nothing was posted.
    #[inline(always)]
    pub(super) fn post_part(&mut self, sge: &Sge, second: Option<&Sge>, wr_id: WrId, control: u8) -> bool {
        let fits = match second {
            Some(second) => self.max_sge >= 2 && second.length as i32 > 0,
            None => true,
        };
        if self.head >= self.end || sge.length as i32 <= 0 || !fits {
            return false;
        }
        // The number of octowords is in the low bits.
        let first = self.bases[0] + u64::from(second.is_some());
        self.put_control(first, u64::from(control) << 32, wr_id, 1, |block| {
            put_pair(block, 2, data_segment(sge));
            if let Some(second) = second {
                put_pair(block, 4, data_segment(second));
            }
        });
        true
    }

    /// What the doorbell is to say of everything posted: the new head, and the first quadword of the last request.
    #[inline(always)]
    fn newest(&self) -> (u64, u64) {
        (self.head, u64::from_be(self.last))
    }

    #[cold]
    #[inline(never)]
    fn post_rare_write(
        &mut self,
        raddr: u64,
        rkey: RKey,
        sge: &Sge,
        id: u64,
        tag: u64,
    ) -> Result<(), PostError> {
        self.post_rare(SendOp::Write { raddr, rkey }, slice::from_ref(sge), id, tag)
    }

    #[cold]
    #[inline(never)]
    fn post_rare_send(&mut self, sge: &Sge, id: u64, tag: u64) -> Result<(), PostError> {
        self.post_rare(SendOp::Send, slice::from_ref(sge), id, tag)
    }

    /// Writes an RDMA write (to `remote`) or a send of one SGE; gives what the doorbell is to say.
    #[inline(always)]
    fn put(&mut self, remote: Option<(u64, RKey)>, sge: &Sge, wr_id: WrId, control: u8) -> (u64, u64) {
        let base = self.bases[usize::from(remote.is_some())];
        self.put_control(base, u64::from(control) << 32, wr_id, 1, |block| {
            if let Some((raddr, rkey)) = remote {
                put_pair(block, 2, (raddr, u64::from(rkey.get()) << 32));
                put_pair(block, 4, data_segment(sge));
            } else {
                put_pair(block, 2, data_segment(sge));
            }
        })
    }

    /// Makes a request of `used` WQEBBs: its control segment (`first` without the index), its slot, the new head; `segments` writes what
    /// is missing in its first WQEBB. Gives what the doorbell is to say.
    #[inline(always)]
    fn put_control(
        &mut self,
        first: u64,
        second: u64,
        wr_id: WrId,
        used: u64,
        segments: impl FnOnce(&[AtomicU64; 8]),
    ) -> (u64, u64) {
        let head = self.head;
        let (block, slot) = self.ring.entry(head);
        // First, so that their registers are free afterwards.
        segments(block);
        let first = (u64::from(head as u16) << 40 | first).to_be();
        *slot = Slot { id: wr_id.id, tag: wr_id.tag & !WQEBBS_MASK | used };
        self.head = head + used;
        self.last = first;
        block[0].store(first, Ordering::Relaxed);
        block[1].store(second.to_be(), Ordering::Relaxed);
        (head + used, u64::from_be(first))
    }

    /// Any request of a connected service, with any number of SGEs; or why not. Bits 7:0 of the tag are the control byte: so all
    /// arguments fit registers, and a post that does not come here needs no stack.
    #[cold]
    #[inline(never)]
    fn post_rare(&mut self, op: SendOp, sges: &[Sge], id: u64, tag: u64) -> Result<(), PostError> {
        let (wr_id, control) = (WrId { id, tag: tag & !WQEBBS_MASK }, tag as u8);
        let (opcode, imm, remote) = op.parts();
        self.check_connected(op)?;
        if sges.len() > usize::from(self.max_sge) {
            return Err(PostError::TooManySges);
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
        let mut octowords = self.put_remote(remote);
        if let Some((swap_add, compare)) = operands {
            self.ring.put(self.head, octowords, swap_add, compare);
            octowords += 1;
        }
        octowords = self.put_sges(octowords, sges)?;
        self.finish(opcode, imm, octowords, wr_id, control);
        Ok(())
    }

    /// A request whose data is copied now.
    pub(super) fn post_inline(
        &mut self,
        op: SendOp,
        data: &[u8],
        wr_id: WrId,
        control: u8,
    ) -> Result<(), PostError> {
        let (opcode, imm, remote) = op.parts();
        self.check_connected(op)?;
        if op.is_answered() {
            return Err(PostError::WrongService);
        }
        if data.len() > usize::from(self.max_inline) {
            return Err(PostError::TooLong);
        }
        self.room(1 + usize::from(remote.is_some()) + (data.len() + 4).div_ceil(16))?;
        let octowords = self.put_remote(remote);
        let octowords = self.put_inline(octowords, data);
        self.finish(opcode, imm, octowords, wr_id, control);
        Ok(())
    }

    /// A datagram.
    pub(super) fn post_ud(
        &mut self,
        to: &AddressVector,
        op: SendOp,
        sges: &[Sge],
        wr_id: WrId,
        control: u8,
    ) -> Result<(), PostError> {
        let (opcode, imm, _) = op.parts();
        let possible = matches!(opcode, SendOpcode::SEND | SendOpcode::SEND_IMM);
        if self.connected || self.size == 0 || !possible {
            return Err(PostError::WrongService);
        }
        if sges.len() > usize::from(self.max_sge) {
            return Err(PostError::TooManySges);
        }
        let mut octowords = 1;
        self.room(4 + sges.len())?;
        for pair in to.words.as_chunks::<2>().0 {
            self.ring.put(self.head, octowords, pair[0], pair[1]);
            octowords += 1;
        }
        octowords = self.put_sges(octowords, sges)?;
        self.finish(opcode, imm, octowords, wr_id, control);
        Ok(())
    }

    /// A change of a memory key (UMR), given as the octowords after the control segment; what is posted next waits for it.
    pub(super) fn post_umr(
        &mut self,
        key: u32,
        segments: &([(u64, u64); BIND_OCTOWORDS - 1], usize),
        wr_id: WrId,
        control: u8,
    ) -> Result<(), PostError> {
        let (segments, used) = segments;
        self.room(1 + used)?;
        for (index, (high, low)) in segments.iter().take(*used).enumerate() {
            self.ring.put(self.head, 1 + index, *high, *low);
        }
        self.finish(SendOpcode::UMR, key, 1 + used, wr_id, control);
        self.fenced = true;
        self.settle(self.tail());
        Ok(())
    }

    /// Whether the service has this operation.
    fn check_connected(&self, op: SendOp) -> Result<(), PostError> {
        let reliable = op.is_answered() || matches!(op, SendOp::SendInval(_));
        // What sends no packet is every service's.
        let connected = self.connected || op == SendOp::Nop;
        if !connected || self.size == 0 || reliable && !self.reliable {
            return Err(PostError::WrongService);
        }
        Ok(())
    }

    /// The remote address segment, if there is one. Gives the octowords so far.
    fn put_remote(&mut self, remote: Option<(u64, RKey)>) -> usize {
        let Some((raddr, rkey)) = remote else { return 1 };
        self.ring.put(self.head, 1, raddr, u64::from(rkey.get()) << 32);
        2
    }

    /// Data segments from octoword `octowords` on, without those of length 0. Gives the octowords so far.
    fn put_sges(&mut self, mut octowords: usize, sges: &[Sge]) -> Result<usize, PostError> {
        for sge in sges {
            if sge.length == 0 {
                continue;
            }
            if sge.length & INLINE_SEG != 0 {
                return Err(PostError::TooLong);
            }
            let (first, second) = data_segment(sge);
            self.ring.put(self.head, octowords, first, second);
            octowords += 1;
        }
        Ok(octowords)
    }

    /// An inline segment: its header takes the first four bytes of the first octoword. Gives the octowords so far.
    fn put_inline(&mut self, mut octowords: usize, data: &[u8]) -> usize {
        if data.is_empty() {
            return octowords;
        }
        let (head, rest) = data.split_at(data.len().min(12));
        let mut first = [0; 16];
        first[..4].copy_from_slice(&(INLINE_SEG | data.len() as u32).to_be_bytes());
        first[4..4 + head.len()].copy_from_slice(head);
        self.put_bytes(octowords, &first);
        octowords += 1;
        let (whole, tail) = rest.as_chunks::<16>();
        for bytes in whole {
            self.put_bytes(octowords, bytes);
            octowords += 1;
        }
        if !tail.is_empty() {
            let mut last = [0; 16];
            last[..tail.len()].copy_from_slice(tail);
            self.put_bytes(octowords, &last);
            octowords += 1;
        }
        octowords
    }

    #[inline(always)]
    fn put_bytes(&mut self, octoword: usize, bytes: &[u8; 16]) {
        let value = u128::from_be_bytes(*bytes);
        self.ring.put(self.head, octoword, (value >> 64) as u64, value as u64);
    }

    /// Makes a request of so many octowords, all written but the control segment: that, with the fence that is due, the slots, the new
    /// head.
    fn finish(&mut self, opcode: SendOpcode, imm: u32, octowords: usize, wr_id: WrId, control: u8) {
        let control = if self.fenced { small_fence(control) } else { control };
        let used = wqebbs(octowords) as u64;
        for inner in 1..used {
            self.ring.keep(self.head + inner, Slot::default());
        }
        let second = u64::from(control) << 32 | u64::from(imm);
        self.put_control(control_first(opcode, self.number, octowords), second, wr_id, used, |_| {});
        self.fenced = false;
        if used > 1 {
            self.wide = self.head;
        }
        self.settle(self.tail());
    }

    /// What the doorbell is to say, and the new head, if anything was posted since.
    #[inline(always)]
    pub(super) fn unrung(&self) -> Option<(u64, u64)> {
        (self.head != self.rung).then(|| self.newest())
    }

    /// The doorbell has been rung for everything before `head`.
    #[inline(always)]
    pub(super) fn rung(&mut self, head: u64) {
        self.rung = head;
    }

    /// Rings a BlueFlame register for what was posted since, if anything was: writes a lone small request to it, else only the first
    /// quadword of the last. Then turns to the other half.
    ///
    /// A stale queue writes nothing: the device would take its request for one of the queue that has
    /// this number and page now. A recovery on another core takes longer than check and write.
    #[cold]
    #[inline(never)]
    pub(super) fn ring_blueflame<R: DoorbellRegister>(
        &mut self,
        record: &mut DoorbellRecord,
        register: &mut SendRegister<R>,
    ) {
        let Some(from) = self.blueflame.filter(|from| *from != self.head()) else { return };
        if register.epoch.has_ended() {
            return;
        }
        barrier::publish();
        record.store_second(u32::from(self.head()));
        barrier::flush_write_combining();
        let last = u64::from_be(self.last);
        let index = (last >> 40) as u16;
        let count = self.head().wrapping_sub(index);
        if index == from && usize::from(count) * 64 <= register.half_len {
            let mut offset = register.half;
            for at in 0..count {
                for (quad, word) in self.ring.block(u64::from(index.wrapping_add(at))).iter().enumerate() {
                    // The first quadword is the doorbell: the one just made, whatever the memory says by now.
                    let word = u64::from_be(word.load(Ordering::Relaxed));
                    register.handle.write(offset, if at == 0 && quad == 0 { last } else { word });
                    offset += 8;
                }
            }
        } else {
            register.handle.write(register.half, last);
        }
        barrier::flush_write_combining();
        register.half ^= register.half_len;
        self.blueflame = Some(self.head());
    }

    /// Retires the request that a completion with this last quadword reports done, if it is the oldest, an ordinary one, and its tag has
    /// none of the bits `special`.
    #[inline(always)]
    pub(super) fn retire_oldest(&mut self, tail: u64, special: u64) -> Option<WrId> {
        let place = place(tail);
        let index = (place >> 48) as u16;
        if place != self.oldest || index == self.head() {
            return None;
        }
        let Slot { id, tag } = self.ring.slot(index.into());
        if tag & special != 0 {
            return None;
        }
        let used = tag & WQEBBS_MASK;
        self.end += used;
        self.oldest = place.wrapping_add(used << 48);
        Some(WrId { id, tag: tag & !WQEBBS_MASK })
    }

    /// Retires a request and those before it, if a completion with this last quadword reports its success and none of the bits `special`
    /// is in its tag; its name, and how many they are.
    #[inline(always)]
    pub(super) fn retire_run(&mut self, tail: u64, special: u64) -> Option<(WrId, u16)> {
        const INDEX: u64 = 0xffff << 48;
        let place = place(tail);
        let index = (place >> 48) as u16;
        let is_meant = (place ^ self.oldest) & !INDEX == 0 && self.ring.slot(index.into()).tag & special == 0;
        if is_meant { self.retire(index) } else { None }
    }

    /// What the slot of a WQEBB says: of the request that begins there, its number of WQEBBs too.
    fn slot(&self, index: u16) -> (WrId, u16) {
        let Slot { id, tag } = self.ring.slot(index.into());
        (WrId { id, tag: tag & !WQEBBS_MASK }, (tag & WQEBBS_MASK) as u16)
    }

    /// The outstanding request at `index`, and the index after it.
    pub(super) fn find(&self, index: u16) -> Option<(WrId, u16)> {
        let (outstanding, older) = (self.outstanding(), index.wrapping_sub(self.tail()));
        let (wr_id, used) = self.slot(index);
        (older < outstanding && used != 0).then_some((wr_id, index.wrapping_add(used)))
    }

    /// Retires the request at `index` and all before it; gives how many they are.
    pub(super) fn retire(&mut self, index: u16) -> Option<(WrId, u16)> {
        let (wr_id, next) = self.find(index)?;
        let tail = self.tail();
        let count = if self.retired(tail) < self.wide {
            self.count(tail, index)
        } else {
            index.wrapping_sub(tail) + 1
        };
        self.settle(next);
        Some((wr_id, count))
    }

    /// Outstanding requests from the one at `tail` to that at `index`, both included, of whatever width.
    #[cold]
    fn count(&self, mut tail: u16, index: u16) -> u16 {
        let mut count = 1;
        while tail != index {
            // All that is outstanding was posted in order, so a request begins at the tail.
            let (_, used) = self.slot(tail);
            tail = tail.wrapping_add(used);
            count += 1;
        }
        count
    }

    /// Retires the oldest request.
    pub(super) fn flush_next(&mut self) -> Option<WrId> {
        if self.outstanding() == 0 {
            return None;
        }
        self.retire(self.tail()).map(|(wr_id, _)| wr_id)
    }
}

/// First quadword of a control segment, without the index: opcode, QP number, octowords.
fn control_first(opcode: SendOpcode, number: QpNumber, octowords: usize) -> u64 {
    u64::from(opcode.0) << 32 | u64::from(number.get()) << 8 | octowords as u64
}

/// Writes two quadwords of a WQEBB, big-endian.
#[inline(always)]
fn put_pair(block: &[AtomicU64; 8], at: usize, (first, second): (u64, u64)) {
    block[at & 7].store(first.to_be(), Ordering::Relaxed);
    block[(at + 1) & 7].store(second.to_be(), Ordering::Relaxed);
}

//! The send queue: the writer of requests, and what is outstanding.

use super::frame::EthSegment;
use super::{Doorbell, SendRegister};
use crate::barrier;
use crate::completion::WrId;
use crate::cq::Cqe;
use crate::mw::{BIND_OCTOWORDS, small_fence};
use crate::path::AddressVector;
use crate::platform::DoorbellRegister;
use crate::ring::{DoorbellRecord, OCTOWORDS_PER_ENTRY, SendRing, Slot, Slots, data_segment};
use crate::types::{QpNumber, RKey, Sge};
use crate::wqe::{ATOMIC_BYTES, PostError, SendFlags, SendOp};
use core::mem::offset_of;
use core::sync::atomic::Ordering;
use mlx5_prm::datapath::{INLINE_SEG, SendOpcode};

/// Posting and retiring touch the first cache line, up to the limits.
#[derive(Debug)]
#[repr(C)]
pub(super) struct SendQueue {
    /// The slot of a request's first WQEBB has its [`WrId`], with its number of WQEBBs in bits 7:0 of the tag. Those bits are 0 for its
    /// other WQEBBs.
    ring: SendRing,
    /// WQEBBs posted; the low 16 bits are the index of the next request.
    head: u64,
    /// Upper bound of `head` on the fast path: WQEBBs retired plus the ring size. Only the WQEBBs retired while every request must take
    /// the slow path.
    end: u64,
    /// Index of the oldest request in bits 63:48, QP number in bits 23:0, as [`place`] takes them from a completion.
    oldest: u64,
    /// QP number in bits 31:8, as a control segment has it, and in bits 63:32 how often the queue was emptied by a reset. A doorbell of
    /// another generation is not rung.
    generation: u64,
    limits: SendLimits,
    /// Value of `end` after all requests of several WQEBBs are retired: `head` after the last such post, plus the ring size.
    wide_end: u64,
    /// WQEBBs; 0 if there is no send queue.
    size: u16,
    /// The next request waits until memory keys are as the one before it makes them.
    fenced: bool,
    frames: FrameLimits,
}

const _: () = assert!(offset_of!(SendQueue, wide_end) == 64);

/// Connection mode of a service.
// `repr(u32)`, because `Option<Qp>` takes the largest niche: this one is in the first cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Connection {
    /// Datagrams.
    Without,
    /// RC, UC.
    With,
    /// Frames with their Ethernet headers.
    RawPacket,
}

/// What a queue for frames takes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FrameLimits {
    /// Bytes that the Ethernet segment must hold, of frames that have as many.
    pub(crate) min_head: u8,
    /// Whether the device computes checksums.
    pub(crate) checksums: bool,
}

/// What a send queue is made for.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct SendLimits {
    pub(super) connection: Connection,
    /// Whether the service has RDMA reads, atomics, invalidation.
    pub(super) reliable: bool,
    pub(super) max_sge: u8,
    pub(super) max_inline: u16,
}

/// The data of a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Payload<'a> {
    /// In registered memory.
    Sges(&'a [Sge]),
    /// Copied into the request.
    Inline(&'a [u8]),
}

impl Payload<'_> {
    /// Octowords (16 bytes) that it takes at most.
    #[inline]
    fn octowords(&self) -> usize {
        match self {
            Self::Sges(sges) => sges.len(),
            Self::Inline(data) => (data.len() + 4).div_ceil(16),
        }
    }
}

/// What follows the control segment of a request without connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Prefix<'a> {
    /// A datagram's destination.
    Datagram(&'a AddressVector),
    /// The first bytes of a frame.
    Frame(&'a EthSegment),
}

impl Prefix<'_> {
    /// Its octowords.
    fn octowords(&self) -> usize {
        match self {
            Self::Datagram(vector) => vector.words().len() / 2,
            Self::Frame(segment) => segment.octowords().len(),
        }
    }

    /// Writes it from octoword `octoword` on, counted from WQEBB `head`. Returns the octowords so far.
    fn put(&self, ring: &mut SendRing, head: u64, mut octoword: usize) -> usize {
        let mut put = |pair| {
            ring.put(head, octoword, pair);
            octoword += 1;
        };
        match self {
            Self::Datagram(vector) => {
                vector.words().as_chunks::<2>().0.iter().for_each(|pair| put((pair[0], pair[1])));
            }
            Self::Frame(segment) => segment.octowords().iter().for_each(|pair| put(*pair)),
        }
        octoword
    }
}

/// A request, as the writer takes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub(super) op: SendOp,
    /// Of datagrams and frames.
    pub(super) prefix: Option<Prefix<'a>>,
    pub(super) payload: Payload<'a>,
    pub(super) wr_id: WrId,
    /// The control byte: [`SendFlags`](crate::SendFlags).
    pub(super) control: u8,
}

impl<'a> Request<'a> {
    /// A request of a connected service.
    #[inline]
    pub(super) fn new(op: SendOp, payload: Payload<'a>, wr_id: WrId, flags: SendFlags) -> Self {
        Self { op, prefix: None, payload, wr_id, control: flags.bits() }
    }
}

/// The bits of a slot's tag that have the number of WQEBBs.
const WQEBBS_MASK: u64 = 0xff;

/// Index and QP number of a completion's last quadword, turned so that the index is at the top, where its carry is lost.
#[inline]
fn place(tail: u64) -> u64 {
    tail.rotate_left(32) & 0xffff_0000_00ff_ffff
}

/// WQEBBs of so many octowords, without the overflow check of `div_ceil`: a request has few.
#[inline]
const fn wqebbs(octowords: usize) -> usize {
    (octowords + (OCTOWORDS_PER_ENTRY - 1)) >> OCTOWORDS_PER_ENTRY.trailing_zeros()
}

impl SendQueue {
    /// An empty queue over `ring`; `size` is 0 if there is none.
    pub(super) fn new(ring: SendRing, size: u16, limits: SendLimits, frames: FrameLimits) -> Self {
        let (head, end, oldest, generation, wide_end) = (0, 0, 0, 0, 0);
        Self { ring, head, end, oldest, generation, limits, wide_end, size, fenced: false, frames }
    }

    /// What it takes of frames.
    pub(super) fn frames(&self) -> FrameLimits {
        self.frames
    }

    /// The slots, for the next queue.
    pub(super) fn into_slots(self) -> Slots {
        self.ring.into_slots()
    }

    /// Forgets everything posted.
    pub(super) fn clear(&mut self) {
        self.ring.clear();
        (self.head, self.wide_end) = (0, 0);
        self.generation = self.generation.wrapping_add(1 << 32);
        self.fenced = false;
        self.settle(0);
    }

    pub(super) fn set_number(&mut self, number: QpNumber) {
        self.oldest = u64::from(self.tail()) << 48 | u64::from(number.get());
        self.generation = self.generation >> 32 << 32 | u64::from(number.get()) << 8;
        self.settle(self.tail());
    }

    #[inline]
    pub(super) fn number(&self) -> QpNumber {
        QpNumber::new(self.oldest as u32)
    }

    /// As if so many WQEBBs had been posted and retired.
    #[cfg(test)]
    pub(super) fn start_at(&mut self, index: u16) {
        self.head = index.into();
        self.settle(index);
    }

    /// Index of the oldest request, if one is outstanding.
    #[inline]
    fn tail(&self) -> u16 {
        (self.oldest >> 48) as u16
    }

    /// Makes `end` fit everything else, with the tail at `tail`.
    fn settle(&mut self, tail: u16) {
        let connected = self.limits.connection == Connection::With;
        let common = connected && !self.fenced && self.size > 0 && self.limits.max_sge > 0;
        let retired = self.retired(tail);
        self.end = if common { retired + u64::from(self.size) } else { retired };
        self.oldest = u64::from(tail) << 48 | u64::from(self.number().get());
    }

    /// The tail, counted as [`head`](Self::head) is in the struct: without end.
    #[inline]
    fn retired(&self, tail: u16) -> u64 {
        self.head - u64::from(self.head().wrapping_sub(tail))
    }

    /// Index that the next request gets.
    #[inline]
    pub(super) fn head(&self) -> u16 {
        self.head as u16
    }

    /// WQEBBs posted and not yet retired.
    #[inline]
    pub(super) fn outstanding(&self) -> u16 {
        self.head().wrapping_sub(self.tail())
    }

    /// Posts a request, if it is a common one.
    // There is one writer, which is compiled twice. This copy, in the caller's code, takes common requests and needs no stack for them.
    // The copy in `post_other` takes all, and says why not.
    #[inline(always)]
    pub(super) fn post_common(&mut self, request: &Request<'_>) -> Option<Doorbell> {
        // One copy for each of the two, in which all places are known.
        match request.op {
            SendOp::Write { raddr, rkey } => {
                self.write::<false>(request, (SendOpcode::RDMA_WRITE, 0, Some((raddr, rkey))))
            }
            SendOp::Send => self.write::<false>(request, (SendOpcode::SEND, 0, None)),
            _ => return None,
        }
        .ok()
    }

    /// Posts any request.
    #[inline(always)]
    pub(super) fn post(&mut self, request: Request<'_>) -> Result<Doorbell, PostError> {
        if let Some(doorbell) = self.post_common(&request) {
            return Ok(doorbell);
        }
        // Of a copy, so that a common request is never put into memory.
        let doorbell = self.post_other(&{ request })?;
        Ok(doorbell)
    }

    #[cold]
    #[inline(never)]
    fn post_other(&mut self, request: &Request<'_>) -> Result<Doorbell, PostError> {
        self.check(request)?;
        self.write::<true>(request, request.op.parts())
    }

    /// Writes a request: control segment, address vector or remote address, operands, data. Without `ANY` it is refused if it
    /// is not common: on a connected service, with room, no atomic operation, no empty SGE, nothing to wait for.
    #[inline(always)]
    fn write<const ANY: bool>(
        &mut self,
        request: &Request<'_>,
        (opcode, imm, remote): (SendOpcode, u32, Option<(u64, RKey)>),
    ) -> Result<Doorbell, PostError> {
        let (mut ring, head) = (self.ring, self.head);
        if !ANY && !self.is_common(request) {
            return Err(PostError::WrongService);
        }
        let most = 1 + usize::from(remote.is_some()) + request.payload.octowords();
        if !ANY && head + wqebbs(most) as u64 > self.end {
            return Err(PostError::Full);
        }
        let mut octoword = 1;
        if ANY && let Some(prefix) = &request.prefix {
            octoword = prefix.put(&mut ring, head, octoword);
        }
        if let Some((raddr, rkey)) = remote {
            ring.put(head, octoword, (raddr, u64::from(rkey.get()) << 32));
            octoword += 1;
        }
        if ANY && let Some(operands) = request.op.operands() {
            ring.put(head, octoword, operands);
            octoword += 1;
        }
        match request.payload {
            Payload::Sges(sges) => {
                for sge in sges.iter().filter(|sge| !ANY || sge.length > 0) {
                    ring.put(head, octoword, data_segment(sge));
                    octoword += 1;
                }
            }
            Payload::Inline(data) => octoword = self.put_inline(octoword, data),
        }
        let second = u64::from(request.control) << 32 | u64::from(imm);
        Ok(self.finish::<ANY>((ring, head), opcode, second, octoword, request.wr_id))
    }

    /// Whether the copy of the writer for common requests takes this one, if there is room.
    #[inline]
    fn is_common(&self, request: &Request<'_>) -> bool {
        let fits = match request.payload {
            // As a signed number a length that is refused, of 2^31 and more, is below 0.
            Payload::Sges(sges) => {
                (sges.len() <= 1 || sges.len() <= usize::from(self.limits.max_sge))
                    && sges.iter().all(|sge| sge.length as i32 > 0)
            }
            Payload::Inline(data) => data.len() <= usize::from(self.limits.max_inline),
        };
        request.prefix.is_none() && fits
    }

    /// Why the request cannot be posted, if so.
    fn check(&self, request: &Request<'_>) -> Result<(), PostError> {
        let Request { op, prefix, payload, .. } = request;
        let limits = &self.limits;
        let possible = match (prefix, limits.connection) {
            (Some(Prefix::Datagram(_)), Connection::Without) => {
                matches!(op, SendOp::Send | SendOp::SendImm(_))
            }
            (Some(Prefix::Frame(segment)), Connection::RawPacket) => {
                if segment.head_len() < usize::from(self.frames.min_head) && payload.octowords() > 0 {
                    return Err(PostError::TooShort);
                }
                self.frames.checksums || !segment.has_checksums()
            }
            (Some(_), _) => false,
            (None, Connection::With) => limits.reliable || !op.is_reliable(),
            // What sends no packet is every service's.
            (None, _) => *op == SendOp::Nop,
        };
        if !possible || self.size == 0 {
            return Err(PostError::WrongService);
        }
        let prefix = 1
            + prefix.as_ref().map_or(0, Prefix::octowords)
            + usize::from(op.parts().2.is_some())
            + usize::from(op.operands().is_some());
        match payload {
            Payload::Inline(_) if op.brings_data() => return Err(PostError::WrongService),
            Payload::Inline(data) if data.len() > usize::from(limits.max_inline) => {
                return Err(PostError::TooLong);
            }
            Payload::Inline(_) => {}
            Payload::Sges(sges) => {
                let atomic = op.operands().is_some();
                if sges.len() > usize::from(limits.max_sge) || atomic && sges.len() != 1 {
                    return Err(PostError::TooManySges);
                }
                let fits =
                    |sge: &Sge| sge.length & INLINE_SEG == 0 && (!atomic || sge.length == ATOMIC_BYTES);
                if !sges.iter().all(fits) {
                    return Err(PostError::TooLong);
                }
            }
        }
        self.room(prefix + payload.octowords())
    }

    /// Whether a request of so many octowords fits behind what is outstanding.
    fn room(&self, octowords: usize) -> Result<(), PostError> {
        let room = self.size - self.outstanding();
        if wqebbs(octowords) > usize::from(room) { Err(PostError::Full) } else { Ok(()) }
    }

    /// Writes an inline segment from octoword `octoword` on: its header takes the first four bytes. Returns the octowords so far.
    fn put_inline(&mut self, octoword: usize, data: &[u8]) -> usize {
        if data.is_empty() {
            return octoword;
        }
        let word = |bytes: &[u8]| {
            let mut padded = [0; 4];
            padded[..bytes.len()].copy_from_slice(bytes);
            u64::from(u32::from_be_bytes(padded))
        };
        let (first, rest) = data.split_at(data.len().min(4));
        let header = u64::from(INLINE_SEG | data.len() as u32) << 32 | word(first);
        let mut quad = octoword * 2;
        self.ring.quad(self.head, quad).store(header.to_be(), Ordering::Relaxed);
        let (whole, tail) = rest.as_chunks::<8>();
        for bytes in whole {
            quad += 1;
            self.ring.quad(self.head, quad).store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        if !tail.is_empty() {
            quad += 1;
            let (high, low) = tail.split_at(tail.len().min(4));
            let last = word(high) << 32 | word(low);
            self.ring.quad(self.head, quad).store(last.to_be(), Ordering::Relaxed);
        }
        quad / 2 + 1
    }

    /// Posts a change of a memory key (UMR), given as the octowords after the control segment; what is posted next waits for it.
    pub(super) fn post_umr(
        &mut self,
        key: u32,
        segments: &([(u64, u64); BIND_OCTOWORDS - 1], usize),
        wr_id: WrId,
        control: u8,
    ) -> Result<Doorbell, PostError> {
        let (segments, used) = segments;
        self.room(1 + used)?;
        for (index, octoword) in segments.iter().take(*used).enumerate() {
            self.ring.put(self.head, 1 + index, *octoword);
        }
        let second = u64::from(control) << 32 | u64::from(key);
        let place = (self.ring, self.head);
        let doorbell = self.finish::<true>(place, SendOpcode::UMR, second, 1 + used, wr_id);
        self.fenced = true;
        self.settle(self.tail());
        Ok(doorbell)
    }

    /// Ends a request of so many octowords, all written but the control segment: that, with the fence that is due, the slots, the new
    /// head. `second` is the second quadword: control byte and immediate.
    #[inline(always)]
    fn finish<const ANY: bool>(
        &mut self,
        (mut ring, head): (SendRing, u64),
        opcode: SendOpcode,
        mut second: u64,
        octowords: usize,
        wr_id: WrId,
    ) -> Doorbell {
        let generation = self.generation;
        let used = wqebbs(octowords) as u64;
        for inner in 1..used {
            ring.keep(head + inner, Slot::default());
        }
        if ANY && self.fenced {
            second = u64::from(small_fence((second >> 32) as u8)) << 32 | u64::from(second as u32);
            self.fenced = false;
            self.settle(self.tail());
        }
        let first = u64::from(head as u16) << 40
            | u64::from(opcode.0) << 32
            | u64::from(generation as u32)
            | octowords as u64;
        ring.put(head, 0, (first, second));
        ring.keep(head, Slot { id: wr_id.id, tag: wr_id.tag & !WQEBBS_MASK | used });
        self.head = head + used;
        if used > 1 {
            self.wide_end = self.head + u64::from(self.size);
        }
        // Read again after the stores, so that the compiler removes the comparison in a `ring` that follows.
        Doorbell { first: first.to_be(), generation: self.generation }
    }

    /// Whether a doorbell is of a request that this queue still has, or has had since it was last emptied.
    #[inline]
    pub(super) fn owns(&self, doorbell: &Doorbell) -> bool {
        doorbell.generation == self.generation
    }

    /// Rings a BlueFlame register for what was posted since the last time, if anything was: writes a lone small request to it, else only
    /// the first quadword of the last. Then turns to the other half.
    ///
    /// A stale queue writes nothing: the device would take its request for one of the queue that has
    /// this number and page now. A recovery on another core takes longer than check and write.
    #[cold]
    #[inline(never)]
    pub(super) fn ring_blueflame<R: DoorbellRegister>(
        &mut self,
        doorbell: Doorbell,
        record: &mut DoorbellRecord,
        register: &mut SendRegister<R>,
    ) {
        if register.rung == self.head || register.epoch.has_ended() {
            return;
        }
        barrier::publish();
        record.store_second(u32::from(self.head()));
        barrier::flush_write_combining();
        let first = doorbell.first();
        let index = (first >> 40) as u16;
        let count = self.head().wrapping_sub(index);
        if index == register.rung as u16 && usize::from(count) * 64 <= register.half_len {
            for quad in 0..usize::from(count) * 8 {
                // The first quadword is the doorbell: the one just made, whatever the memory says by now.
                let word = u64::from_be(self.ring.quad(index.into(), quad).load(Ordering::Relaxed));
                register.handle.write(register.half + quad * 8, if quad == 0 { first } else { word });
            }
        } else {
            register.handle.write(register.half, first);
        }
        barrier::flush_write_combining();
        register.half ^= register.half_len;
        register.rung = self.head;
    }

    /// As [`retire`](Self::retire), if the request is the oldest, and its tag has none of the bits `special`. With `RUNS` also if others
    /// of one WQEBB each are older.
    // Without a call, so that callers need no stack.
    #[inline(always)]
    pub(super) fn retire_common<const RUNS: bool>(
        &mut self,
        cqe: &Cqe<'_>,
        special: u64,
    ) -> Option<(WrId, u16)> {
        let place = place(cqe.tail());
        // In bits 63:48 how many requests are older. The others are 0 if the completion is of this QP.
        let ahead = place.wrapping_sub(self.oldest);
        if RUNS {
            let is_run = ahead << 16 == 0 && (ahead == 0 || self.end >= self.wide_end);
            if !is_run || (ahead >> 48) as u16 >= self.outstanding() {
                return None;
            }
        } else if ahead != 0 || (place >> 48) as u16 == self.head() {
            return None;
        }
        let slot = self.ring.slot(place >> 48);
        if slot.tag & special != 0 {
            return None;
        }
        self.end += ahead >> 48;
        Some((self.advance(place, slot), (ahead >> 48) as u16 + 1))
    }

    /// Retires the request that a completion of a send queue reports done, and those before it, which have no completion of
    /// their own: its name, and how many they are. `None`, and nothing has changed, if it names no outstanding request.
    pub(super) fn retire(&mut self, cqe: &Cqe<'_>) -> Option<(WrId, u16)> {
        if let Some(retired) = self.retire_common::<true>(cqe, 0) {
            return Some(retired);
        }
        self.find(cqe)?;
        let mut count = 1;
        while self.tail() != cqe.wqe_counter() {
            self.flush_next()?;
            count += 1;
        }
        Some((self.flush_next()?, count))
    }

    /// Retires the request at `place`, which is the oldest now and has this slot: its name.
    #[inline]
    fn advance(&mut self, place: u64, Slot { id, tag }: Slot) -> WrId {
        let used = tag & WQEBBS_MASK;
        self.end += used;
        self.oldest = place.wrapping_add(used << 48);
        WrId { id, tag: tag & !WQEBBS_MASK }
    }

    /// The outstanding request that a completion reports done, and the index after it.
    pub(super) fn find(&self, cqe: &Cqe<'_>) -> Option<(WrId, u16)> {
        let (outstanding, index) = (self.outstanding(), cqe.wqe_counter());
        let (wr_id, used) = self.slot(index);
        let possible =
            cqe.qpn() == self.number() && index.wrapping_sub(self.tail()) < outstanding && used != 0;
        possible.then_some((wr_id, index.wrapping_add(used)))
    }

    /// What the slot of a WQEBB says: of the request that begins there, its number of WQEBBs too.
    fn slot(&self, index: u16) -> (WrId, u16) {
        let Slot { id, tag } = self.ring.slot(index.into());
        (WrId { id, tag: tag & !WQEBBS_MASK }, (tag & WQEBBS_MASK) as u16)
    }

    /// Retires the oldest request.
    pub(super) fn flush_next(&mut self) -> Option<WrId> {
        let is_any = self.outstanding() != 0;
        is_any.then(|| self.advance(self.oldest, self.ring.slot(self.oldest >> 48)))
    }
}

//! Queue pairs: posting, ringing, retiring. The hot path.

use crate::barrier;
use crate::config::Service;
use crate::cq::Completion;
use crate::dma::DmaSlice;
use crate::platform::Bar;
use crate::ring::{BLOCK_UNITS, DoorbellRecord, Units};
use crate::types::{QpNumber, RKey, Sge};
use crate::wqe::{AddressVector, PostError, SendFlags, SendOp};
use core::sync::atomic::Ordering;
use mlx5_prm::datapath::{DATA_LKEY_TERMINATOR, INLINE_SEG, SendOpcode};

/// Bytes of the slots beside a ring of `entries`: a unit each, a whole block at least.
fn slot_bytes(entries: usize) -> usize {
    entries.max(BLOCK_UNITS) * 16
}

/// State of a queue pair, as far as this side has brought it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum QpState {
    /// Just made: nothing may be posted.
    Reset,
    /// Receives may be posted.
    Init,
    /// Ready to receive.
    ReadyToReceive,
    /// Ready to send.
    ReadyToSend,
    /// Send queue drained or draining.
    SendQueueDrained,
    /// Send queue in error (not RC).
    SendQueueError,
    /// Everything posted is answered as flushed.
    Error,
}

/// How the rings of a queue pair lie in its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QpGeometry {
    /// log2 of the receive entries; meaningless without a receive queue.
    pub(crate) log_rq_size: u32,
    /// log2 of the 16-byte units in a receive entry.
    pub(crate) log_rq_stride: u32,
    /// Bytes of the receive ring, 0 without one.
    pub(crate) rq_bytes: usize,
    /// log2 of the basic blocks in the send ring.
    pub(crate) log_sq_size: u32,
    /// Bytes of the send ring, 0 without one.
    pub(crate) sq_bytes: usize,
    /// Offset of the doorbell record.
    pub(crate) record: usize,
    /// Offset of the send slots.
    pub(crate) sq_slots: usize,
    /// Offset of the receive slots.
    pub(crate) rq_slots: usize,
    /// Bytes of everything.
    pub(crate) total: usize,
}

impl QpGeometry {
    /// Sizes for these limits; `None` if a size does not fit a `usize` or the 16-bit counters.
    pub(crate) fn new(
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_units: usize,
        max_recv_sge: u32,
    ) -> Option<Self> {
        let mut geometry = Self {
            log_rq_size: 0,
            log_rq_stride: 0,
            rq_bytes: 0,
            log_sq_size: 0,
            sq_bytes: 0,
            record: 0,
            sq_slots: 0,
            rq_slots: 0,
            total: 0,
        };
        let mut rq_entries = 0;
        if max_recv_wr > 0 {
            let stride_units = (max_recv_sge.max(1) as usize).checked_next_power_of_two()?;
            // At least 64 bytes in all, so that the send ring behind it stays aligned.
            let least = BLOCK_UNITS.div_ceil(stride_units);
            rq_entries = (max_recv_wr as usize).max(least).checked_next_power_of_two()?;
            geometry.log_rq_size = rq_entries.ilog2();
            geometry.log_rq_stride = stride_units.ilog2();
            geometry.rq_bytes = rq_entries.checked_mul(stride_units)?.checked_mul(16)?;
        }
        let mut blocks = 0;
        if max_send_wr > 0 {
            let each = max_send_units.div_ceil(BLOCK_UNITS);
            blocks = (max_send_wr as usize).checked_mul(each)?.checked_next_power_of_two()?;
            geometry.log_sq_size = blocks.ilog2();
            geometry.sq_bytes = blocks.checked_mul(64)?;
        }
        if blocks > 1 << 15 || rq_entries > 1 << 15 {
            return None;
        }
        geometry.record = (geometry.rq_bytes + geometry.sq_bytes).next_multiple_of(64);
        geometry.sq_slots = geometry.record + 64;
        geometry.rq_slots = geometry.sq_slots + slot_bytes(blocks);
        geometry.total = geometry.rq_slots + slot_bytes(rq_entries);
        Some(geometry)
    }

    /// Bytes that the device sees as the work queues' buffer.
    pub(crate) fn ring_bytes(&self) -> usize {
        self.rq_bytes + self.sq_bytes
    }
}

/// Where a queue pair rings: which view of BAR0, and at which offset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doorbell<B> {
    pub(crate) bar: B,
    pub(crate) offset: usize,
    /// Bytes of half a BlueFlame register; 0 for a plain doorbell.
    pub(crate) blueflame: usize,
}

#[derive(Debug)]
struct SendQueue {
    ring: Units,
    /// One unit for each basic block: cookie, and in the second quadword the index of this work request (bits 15:0) and of
    /// the one after it (31:16).
    slots: Units,
    head: u16,
    tail: u16,
    size: u16,
    /// Head when the doorbell was last rung.
    rung: u16,
    /// First quadword of the last work request.
    last: u64,
    /// One more than the pieces a connected work request may have; 0 on a datagram service.
    connected_limit: u8,
    /// One more than the pieces a datagram may have; 0 on a connected service.
    datagram_limit: u8,
    max_inline: u16,
}

#[derive(Debug)]
struct ReceiveQueue {
    ring: Units,
    slots: Units,
    head: u16,
    tail: u16,
    size: u16,
    log_stride: u8,
    max_sge: u8,
}

/// A queue pair. Owns all it needs for posting and retiring, apart from the [`Hca`](crate::Hca) that made it.
#[derive(Debug)]
pub struct Qp<B: Bar> {
    sq: Option<SendQueue>,
    rq: Option<ReceiveQueue>,
    record: DoorbellRecord,
    doorbell: Doorbell<B>,
    /// QP number in the place the control segment has it.
    qpn_shifted: u32,
    spurious: u32,
    service: Service,
    state: QpState,
    pub(crate) context: QpContext,
    pub(crate) memory: DmaSlice,
}

/// What the commands of this queue pair repeat.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpContext {
    pub(crate) config: crate::config::QpConfig,
    pub(crate) port: u8,
    pub(crate) pkey_index: u16,
    pub(crate) access: crate::config::Access,
    /// The BlueFlame register taken: page and register in it.
    pub(crate) register: Option<(u8, u8)>,
}

/// The limits that the hot path checks against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpLimits {
    pub(crate) max_send_sge: u8,
    pub(crate) max_inline: u16,
    pub(crate) max_recv_sge: u8,
}

impl<B: Bar> Qp<B> {
    /// Rings and slots over `memory`, all empty.
    pub(crate) fn new(
        memory: DmaSlice,
        geometry: &QpGeometry,
        limits: QpLimits,
        doorbell: Doorbell<B>,
        context: QpContext,
    ) -> Option<Self> {
        let service = context.config.service;
        let datagram = matches!(service, Service::Ud { .. } | Service::Gsi);
        let rq = if geometry.rq_bytes == 0 {
            None
        } else {
            let size = 1usize << geometry.log_rq_size;
            Some(ReceiveQueue {
                ring: Units::new(memory.slice(0, geometry.rq_bytes)?)?,
                slots: Units::new(memory.slice(geometry.rq_slots, slot_bytes(size))?)?,
                head: 0,
                tail: 0,
                size: size as u16,
                log_stride: geometry.log_rq_stride as u8,
                max_sge: limits.max_recv_sge,
            })
        };
        let sq = if geometry.sq_bytes == 0 {
            None
        } else {
            let size = 1usize << geometry.log_sq_size;
            Some(SendQueue {
                ring: Units::new(memory.slice(geometry.rq_bytes, geometry.sq_bytes)?)?,
                slots: Units::new(memory.slice(geometry.sq_slots, slot_bytes(size))?)?,
                head: 0,
                tail: 0,
                size: size as u16,
                rung: 0,
                last: 0,
                connected_limit: if datagram { 0 } else { limits.max_send_sge + 1 },
                datagram_limit: if datagram { limits.max_send_sge + 1 } else { 0 },
                max_inline: limits.max_inline,
            })
        };
        let record = DoorbellRecord::new(memory.slice(geometry.record, 8)?)?;
        let mut qp = Self {
            sq,
            rq,
            record,
            doorbell,
            qpn_shifted: 0,
            spurious: 0,
            service,
            state: QpState::Reset,
            context,
            memory,
        };
        qp.clear();
        Some(qp)
    }

    /// Forgets everything posted, as the device does on reset.
    pub(crate) fn clear(&mut self) {
        if let Some(sq) = &mut self.sq {
            sq.ring.clear();
            sq.slots.clear();
            (sq.head, sq.tail, sq.rung, sq.last) = (0, 0, 0, 0);
        }
        if let Some(rq) = &mut self.rq {
            rq.ring.clear();
            rq.slots.clear();
            (rq.head, rq.tail) = (0, 0);
        }
        self.record.store_first(0);
        self.record.store_second(0);
        barrier::publish();
    }

    pub(crate) fn set_number(&mut self, number: QpNumber) {
        self.qpn_shifted = number.get() << 8;
    }

    pub(crate) fn set_state(&mut self, state: QpState) {
        self.state = state;
    }

    /// The number by which this HCA's commands and completions name the queue pair.
    #[must_use]
    #[inline]
    pub fn number(&self) -> QpNumber {
        QpNumber::new(self.qpn_shifted >> 8)
    }

    /// The number by which peers address it: 1 for the general services interface.
    #[must_use]
    pub fn wire_number(&self) -> QpNumber {
        match self.service {
            Service::Gsi => QpNumber::GSI,
            Service::Rc | Service::Ud { .. } => self.number(),
        }
    }

    /// The service type.
    #[must_use]
    pub fn service(&self) -> Service {
        self.service
    }

    /// The state it was last brought to. The device may have gone to the error state since.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.state
    }

    /// Whether small work requests are written straight to the device.
    #[must_use]
    pub fn has_blueflame(&self) -> bool {
        self.doorbell.blueflame != 0
    }

    /// Completions that named a work request which is not outstanding. Never more than zero with an honest device.
    #[must_use]
    pub fn spurious_completions(&self) -> u32 {
        self.spurious
    }

    /// Basic blocks of 64 bytes posted to the send queue and not yet retired.
    #[must_use]
    #[inline]
    pub fn send_outstanding(&self) -> u16 {
        self.sq.as_ref().map_or(0, |sq| sq.head.wrapping_sub(sq.tail))
    }

    /// Receives posted and not yet retired.
    #[must_use]
    #[inline]
    pub fn receive_outstanding(&self) -> u16 {
        self.rq.as_ref().map_or(0, |rq| rq.head.wrapping_sub(rq.tail))
    }

    /// Posts a work request to the send queue; [`Qp::ring`] hands it to the device. Pieces of length 0 are left out.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    #[inline(always)]
    pub fn post_send(
        &mut self,
        op: SendOp,
        sges: &[Sge],
        cookie: u64,
        flags: SendFlags,
    ) -> Result<(), PostError> {
        let Some(sq) = &mut self.sq else { return Err(PostError::WrongService) };
        if sges.len() >= usize::from(sq.connected_limit) {
            return Err(too_many(sq.connected_limit));
        }
        let (opcode, imm, remote) = op.parts();
        sq.room(1 + usize::from(remote.is_some()) + sges.len())?;
        let mut unit = sq.first_unit() + 1;
        if let Some((raddr, rkey)) = remote {
            sq.put_remote(raddr, rkey);
            unit += 1;
        }
        unit = sq.put_sges(unit, sges)?;
        sq.finish(self.qpn_shifted, opcode, imm, unit, cookie, flags);
        Ok(())
    }

    /// Posts a work request whose data is copied now, so that the caller may reuse it at once.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted. RDMA reads have no data to send.
    #[inline]
    pub fn post_inline(
        &mut self,
        op: SendOp,
        data: &[u8],
        cookie: u64,
        flags: SendFlags,
    ) -> Result<(), PostError> {
        let Some(sq) = &mut self.sq else { return Err(PostError::WrongService) };
        if data.len() > usize::from(sq.max_inline) || sq.connected_limit == 0 {
            return Err(if sq.connected_limit == 0 { PostError::WrongService } else { PostError::TooLong });
        }
        let (opcode, imm, remote) = op.parts();
        if opcode == SendOpcode::RDMA_READ {
            return Err(PostError::WrongService);
        }
        sq.room(1 + usize::from(remote.is_some()) + (data.len() + 4).div_ceil(16))?;
        let mut unit = sq.first_unit() + 1;
        if let Some((raddr, rkey)) = remote {
            sq.put_remote(raddr, rkey);
            unit += 1;
        }
        unit = sq.put_inline(unit, data);
        sq.finish(self.qpn_shifted, opcode, imm, unit, cookie, flags);
        Ok(())
    }

    /// Posts a datagram (UD, GSI); `op` is [`SendOp::Send`] or [`SendOp::SendImm`].
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    #[inline]
    pub fn post_ud(
        &mut self,
        to: &AddressVector,
        op: SendOp,
        sges: &[Sge],
        cookie: u64,
        flags: SendFlags,
    ) -> Result<(), PostError> {
        let Some(sq) = &mut self.sq else { return Err(PostError::WrongService) };
        let (opcode, imm, _) = op.parts();
        if !matches!(opcode, SendOpcode::SEND | SendOpcode::SEND_IMM) {
            return Err(PostError::WrongService);
        }
        if sges.len() >= usize::from(sq.datagram_limit) {
            return Err(too_many(sq.datagram_limit));
        }
        sq.room(4 + sges.len())?;
        let mut unit = sq.first_unit() + 1;
        for pair in to.words.as_chunks::<2>().0 {
            sq.ring.put(unit, pair[0], pair[1]);
            unit += 1;
        }
        unit = sq.put_sges(unit, sges)?;
        sq.finish(self.qpn_shifted, opcode, imm, unit, cookie, flags);
        Ok(())
    }

    /// Posts a receive; the device may use it from now on. Pieces of length 0 are left out.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    #[inline]
    pub fn post_recv(&mut self, sges: &[Sge], cookie: u64) -> Result<(), PostError> {
        let Some(rq) = &mut self.rq else { return Err(PostError::WrongService) };
        if sges.len() > usize::from(rq.max_sge) {
            return Err(PostError::TooManySges);
        }
        if rq.head.wrapping_sub(rq.tail) >= rq.size {
            return Err(PostError::Full);
        }
        let stride = 1usize << rq.log_stride;
        let first = usize::from(rq.head) << rq.log_stride;
        let mut unit = first;
        for sge in sges {
            if sge.length == 0 {
                continue;
            }
            if sge.length & INLINE_SEG != 0 {
                return Err(PostError::TooLong);
            }
            rq.ring.put(unit, u64::from(sge.length) << 32 | u64::from(sge.lkey.get()), sge.address);
            unit += 1;
        }
        if unit - first < stride {
            rq.ring.put(unit, u64::from(DATA_LKEY_TERMINATOR), 0);
        }
        rq.slots.put_native(usize::from(rq.head), cookie, 0);
        rq.head = rq.head.wrapping_add(1);
        barrier::publish();
        self.record.store_first(u32::from(rq.head));
        Ok(())
    }

    /// Hands everything posted to the send queue to the device: once for any number of posts.
    #[inline(always)]
    pub fn ring(&mut self) {
        let Some(sq) = &mut self.sq else { return };
        if sq.head == sq.rung {
            return;
        }
        barrier::publish();
        self.record.store_second(u32::from(sq.head));
        barrier::before_doorbell();
        if self.doorbell.blueflame == 0 {
            self.doorbell.bar.write64(self.doorbell.offset, sq.last);
        } else {
            sq.ring_blueflame(&mut self.doorbell);
        }
        sq.rung = sq.head;
    }

    /// Frees the slots that `completion` reports done and gives the cookie of its work request. In the send queue, earlier
    /// work requests without a completion of their own are freed with it; in the receive queue completions come in order.
    ///
    /// `None` (and a count in [`Qp::spurious_completions`]) if the completion names no outstanding work request of this queue
    /// pair.
    #[inline]
    pub fn retire(&mut self, completion: &Completion) -> Option<u64> {
        let cookie = if completion.qpn().get() << 8 != self.qpn_shifted {
            None
        } else if completion.is_send() {
            self.sq.as_mut().and_then(|sq| sq.retire(completion.wqe_counter()))
        } else {
            self.rq.as_mut().and_then(|rq| rq.retire(completion))
        };
        if cookie.is_none() {
            self.spurious = self.spurious.saturating_add(1);
        }
        cookie
    }
}

/// Basic blocks of so many units, without the overflow check of `div_ceil`: a work request has few.
#[inline(always)]
const fn blocks(units: usize) -> usize {
    (units + (BLOCK_UNITS - 1)) >> BLOCK_UNITS.trailing_zeros()
}

/// Why a number of pieces is not below `limit`.
#[cold]
fn too_many(limit: u8) -> PostError {
    if limit == 0 { PostError::WrongService } else { PostError::TooManySges }
}

impl SendQueue {
    #[inline(always)]
    fn first_unit(&self) -> usize {
        usize::from(self.head) * BLOCK_UNITS
    }

    /// Whether a work request of so many units fits behind what is outstanding.
    #[inline(always)]
    fn room(&self, units: usize) -> Result<(), PostError> {
        let blocks = blocks(units);
        let outstanding = usize::from(self.head.wrapping_sub(self.tail));
        if outstanding + blocks > usize::from(self.size) { Err(PostError::Full) } else { Ok(()) }
    }

    /// The remote address segment, always the second unit.
    #[inline(always)]
    fn put_remote(&mut self, raddr: u64, rkey: RKey) {
        let block = self.ring.block(usize::from(self.head));
        block[2].store(raddr.to_be(), Ordering::Relaxed);
        block[3].store((u64::from(rkey.get()) << 32).to_be(), Ordering::Relaxed);
    }

    #[inline(always)]
    fn put_sges(&mut self, mut unit: usize, sges: &[Sge]) -> Result<usize, PostError> {
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
    fn put_inline(&mut self, mut unit: usize, data: &[u8]) -> usize {
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
    fn put_bytes(&mut self, unit: usize, bytes: &[u8; 16]) {
        let value = u128::from_be_bytes(*bytes);
        self.ring.put(unit, (value >> 64) as u64, value as u64);
    }

    /// The control segment, the slot, the new head.
    #[inline(always)]
    fn finish(
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
    fn ring_blueflame<B: Bar>(&mut self, doorbell: &mut Doorbell<B>) {
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
    fn retire(&mut self, index: u16) -> Option<u64> {
        let outstanding = self.head.wrapping_sub(self.tail);
        if index.wrapping_sub(self.tail) >= outstanding {
            return None;
        }
        let (cookie, meta) = self.slots.get_native(usize::from(index));
        let next = (meta >> 16) as u16;
        let done = next.wrapping_sub(self.tail);
        if meta as u16 != index || done == 0 || done > outstanding {
            return None;
        }
        self.tail = next;
        Some(cookie)
    }
}

impl ReceiveQueue {
    #[inline]
    fn retire(&mut self, completion: &Completion) -> Option<u64> {
        let expected = completion.wqe_counter() ^ self.tail;
        if self.tail == self.head || expected & (self.size - 1) != 0 {
            return None;
        }
        let (cookie, _) = self.slots.get_native(usize::from(self.tail));
        self.tail = self.tail.wrapping_add(1);
        Some(cookie)
    }
}

#[cfg(test)]
mod tests;

//! Queue pairs: posting, ringing, retiring. The hot path.

mod geometry;
mod kept;
mod queues;
mod straight;

pub(crate) use geometry::QpGeometry;
pub use kept::{Kept, Retired};

use crate::barrier;
use crate::config::Service;
use crate::cq::QpnInEntry;
use crate::dma::DmaMemory;
use crate::mw::{self, MemoryWindow, MwBind, MwType};
use crate::platform::Bar;
use crate::ring::{DoorbellRecord, Units};
use crate::types::{LKey, QpNumber, RKey, Sge};
use crate::wqe::{AddressVector, PostError, SendFlags, SendOp};
use geometry::slot_bytes;
use mlx5_prm::datapath::{DATA_LKEY_TERMINATOR, INLINE_SEG, SendOpcode};
use queues::{ReceiveQueue, SendQueue, put_remote, small_fence, too_many};

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

/// Where a queue pair rings: which view of BAR0, and at which offset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doorbell<B> {
    pub(crate) bar: B,
    pub(crate) offset: usize,
    /// Bytes of half a BlueFlame register; 0 for a plain doorbell.
    pub(crate) blueflame: usize,
}

/// A queue pair. Owns all it needs for posting and retiring, apart from the [`Hca`](crate::Hca) that made it.
#[derive(Debug)]
pub struct Qp<B: Bar> {
    sq: SendQueue,
    rq: Option<ReceiveQueue>,
    record: DoorbellRecord,
    doorbell: Doorbell<B>,
    qpn_in_entry: QpnInEntry,
    spurious: u32,
    service: Service,
    state: QpState,
    pub(crate) context: QpContext,
    pub(crate) memory: DmaMemory,
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
        memory: DmaMemory,
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
                inline_receive: context.config.inline_receive,
            })
        };
        // Without a send queue nothing passes the limits, and the pointers lead to a block that is there.
        let (ring, slots, size) = if geometry.sq_bytes == 0 {
            let block = memory.slice(geometry.record, 64)?;
            (block, block, 0)
        } else {
            let size = 1usize << geometry.log_sq_size;
            let ring = memory.slice(geometry.rq_bytes, geometry.sq_bytes)?;
            (ring, memory.slice(geometry.sq_slots, slot_bytes(size))?, size)
        };
        let limit = |applies: bool| if applies && size > 0 { limits.max_send_sge + 1 } else { 0 };
        let sq = SendQueue {
            ring: Units::new(ring)?,
            slots: Units::new(slots)?,
            qpn_shifted: 0,
            head: 0,
            end: size as u16,
            size: size as u16,
            rung: 0,
            last: 0,
            connected_limit: limit(!datagram),
            plain_limit: limit(!datagram && doorbell.blueflame == 0),
            write_base: 0,
            never_plain: doorbell.blueflame != 0,
            datagram_limit: limit(datagram),
            max_inline: limits.max_inline,
            reliable: service == Service::Rc,
            fenced: 0,
        };
        let record = DoorbellRecord::new(memory.slice(geometry.record, 8)?)?;
        let mut qp = Self {
            sq,
            rq,
            record,
            doorbell,
            qpn_in_entry: QpnInEntry::default(),
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
        let sq = &mut self.sq;
        sq.ring.clear();
        sq.slots.clear();
        (sq.head, sq.end, sq.rung, sq.last) = (0, sq.size, 0, 0);
        sq.unfence();
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
        self.sq.qpn_shifted = number.get() << 8;
        self.sq.write_base = queues::write_base(self.sq.qpn_shifted);
        self.qpn_in_entry = QpnInEntry::new(number);
    }

    pub(crate) fn set_state(&mut self, state: QpState) {
        self.state = state;
    }

    /// The number by which this HCA's commands and completions name the queue pair.
    #[must_use]
    #[inline]
    pub fn number(&self) -> QpNumber {
        QpNumber::new(self.sq.qpn_shifted >> 8)
    }

    /// The number by which peers address it: 1 for the general services interface.
    #[must_use]
    pub fn wire_number(&self) -> QpNumber {
        match self.service {
            Service::Gsi => QpNumber::GSI,
            Service::Rc | Service::Uc | Service::Ud { .. } => self.number(),
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
        self.sq.outstanding()
    }

    /// Receives posted and not yet retired.
    #[must_use]
    #[inline]
    pub fn receive_outstanding(&self) -> u16 {
        self.rq.as_ref().map_or(0, ReceiveQueue::outstanding)
    }

    /// Posts a work request to the send queue; [`Qp::ring`] hands it to the device. Pieces of length 0 are left out. `kept` is a cookie,
    /// or [`Kept`].
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    #[inline(always)]
    pub fn post_send(
        &mut self,
        op: SendOp,
        sges: &[Sge],
        kept: impl Into<Kept>,
        flags: SendFlags,
    ) -> Result<(), PostError> {
        if sges.len() >= usize::from(self.sq.connected_limit) {
            return self.sq.post_fenced(op, sges, kept.into(), flags.bits());
        }
        self.sq.post(op, sges, kept.into(), flags.bits())
    }

    /// Posts a signalled RDMA write of one piece and rings at once, if there is nothing unusual about it; else does nothing and says
    /// `false`: then [`Qp::post_send`] and [`Qp::ring`] tell why, or do it.
    #[inline(always)]
    #[must_use]
    pub fn write_plain(&mut self, remote: impl FnOnce() -> (u64, RKey), sge: Sge, kept: Kept) -> bool {
        self.sq.write_plain(&mut self.record, &self.doorbell, remote, sge, kept)
    }

    /// From now on [`Qp::write_plain`] does nothing: for owners who know that the device is gone, and who look before they ring.
    pub fn refuse_plain(&mut self) {
        self.sq.never_plain = true;
        self.sq.plain_limit = 0;
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
        kept: impl Into<Kept>,
        flags: SendFlags,
    ) -> Result<(), PostError> {
        let sq = &mut self.sq;
        let fenced = sq.fenced != 0;
        if sq.connected_limit == 0 && !fenced {
            return Err(PostError::WrongService);
        }
        if data.len() > usize::from(sq.max_inline) {
            return Err(PostError::TooLong);
        }
        let (opcode, imm, remote) = op.parts();
        if op.is_answered() || (opcode == SendOpcode::SEND_INVAL && !sq.reliable) {
            return Err(PostError::WrongService);
        }
        sq.room(1 + usize::from(remote.is_some()) + (data.len() + 4).div_ceil(16))?;
        let first = sq.first_unit();
        let mut unit = first + 1;
        if let Some((raddr, rkey)) = remote {
            put_remote(sq.ring.block(usize::from(sq.head)), raddr, rkey);
            unit += 1;
        }
        unit = sq.put_inline(unit, data);
        let control = if fenced { small_fence(flags.bits()) } else { flags.bits() };
        sq.finish(opcode, imm, unit - first, kept.into(), control);
        if fenced {
            sq.unfence();
        }
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
        kept: impl Into<Kept>,
        flags: SendFlags,
    ) -> Result<(), PostError> {
        let sq = &mut self.sq;
        let (opcode, imm, _) = op.parts();
        if !matches!(opcode, SendOpcode::SEND | SendOpcode::SEND_IMM) {
            return Err(PostError::WrongService);
        }
        if sges.len() >= usize::from(sq.datagram_limit) {
            return Err(too_many(sq.datagram_limit));
        }
        sq.room(4 + sges.len())?;
        let first = sq.first_unit();
        let mut unit = first + 1;
        for pair in to.words.as_chunks::<2>().0 {
            sq.ring.put(unit, pair[0], pair[1]);
            unit += 1;
        }
        unit = sq.put_sges(unit, sges)?;
        sq.finish(opcode, imm, unit - first, kept.into(), flags.bits());
        Ok(())
    }

    /// Posts a bind of a memory window (a QP made with [`QpConfig::memory_windows`](crate::QpConfig::memory_windows)) and gives the new
    /// key, which `window` then holds too and which peers may use once the bind has completed. What is posted after it waits for it.
    ///
    /// The completion is of kind [`CompletionKind::Send`](crate::CompletionKind::Send) with the opcode [`UMR`](SendOpcode::UMR). A bind that the device refuses (outside
    /// the region or its rights, of another protection domain, or of a window of type 2 that is bound) completes with the syndrome
    /// `MW_BIND_ERR` and brings the QP to the error state.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted. [`PostError::TooLong`] for 2^31 bytes and more.
    pub fn post_bind(
        &mut self,
        window: &mut MemoryWindow,
        bind: &MwBind,
        kept: impl Into<Kept>,
        flags: SendFlags,
    ) -> Result<RKey, PostError> {
        if bind.length & INLINE_SEG != 0 {
            return Err(PostError::TooLong);
        }
        let old = window.rkey.get();
        let new = RKey::new(old & !0xff | old.wrapping_add(1) & 0xff);
        let bind = (bind.length > 0).then_some(bind);
        self.post_umr(window.kind, old, new, bind, kept, flags)?;
        window.rkey = new;
        Ok(new)
    }

    /// Posts an invalidation of a memory window of type 2 that this QP has bound: peers cannot use the key any more once it has
    /// completed. What is posted after it waits for it.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    pub fn post_local_invalidate(
        &mut self,
        rkey: RKey,
        kept: impl Into<Kept>,
        flags: SendFlags,
    ) -> Result<(), PostError> {
        self.post_umr(MwType::Two, rkey.get(), rkey, None, kept, flags)
    }

    fn post_umr(
        &mut self,
        kind: MwType,
        old: u32,
        new: RKey,
        bind: Option<&MwBind>,
        kept: impl Into<Kept>,
        flags: SendFlags,
    ) -> Result<(), PostError> {
        let qpn = self.number().get();
        let sq = &mut self.sq;
        if !self.context.config.memory_windows {
            return Err(PostError::WrongService);
        }
        let (units, used) = mw::umr(kind, new, qpn, bind);
        sq.room(1 + used)?;
        let first = sq.first_unit();
        for (index, (high, low)) in units.iter().take(used).enumerate() {
            sq.ring.put(first + 1 + index, *high, *low);
        }
        let control = if sq.fenced != 0 { small_fence(flags.bits()) } else { flags.bits() };
        sq.finish(SendOpcode::UMR, old, 1 + used, kept.into(), control);
        sq.fence_next();
        Ok(())
    }

    /// Posts a receive; the device may use it from now on. Pieces of length 0 are left out.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    #[inline]
    pub fn post_recv(&mut self, sges: &[Sge], kept: impl Into<Kept>) -> Result<(), PostError> {
        let Some(rq) = &mut self.rq else { return Err(PostError::WrongService) };
        if sges.len() > usize::from(rq.max_sge) {
            return Err(PostError::TooManySges);
        }
        if rq.outstanding() >= rq.size {
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
        let Kept { cookie, note } = kept.into();
        rq.slots.put_native(usize::from(rq.head), cookie, note);
        rq.head = rq.head.wrapping_add(1);
        barrier::publish();
        self.record.store_first(u32::from(rq.head));
        Ok(())
    }

    /// The pieces of an outstanding receive (`nth` from 0, the oldest), read back from the ring into `out`: their number, and what is
    /// kept with it.
    /// `None` if fewer are outstanding; pieces beyond `out` are left out.
    #[must_use]
    pub fn posted_recv(&self, nth: u16, out: &mut [Sge]) -> Option<(usize, Kept)> {
        let rq = self.rq.as_ref()?;
        if nth >= self.receive_outstanding() {
            return None;
        }
        let index = rq.tail.wrapping_add(nth);
        let first = usize::from(index) << rq.log_stride;
        let mut count = 0;
        for (slot, unit) in out.iter_mut().zip(first..first + (1 << rq.log_stride)) {
            let (head, address) = rq.ring.get(unit);
            let (length, lkey) = ((head >> 32) as u32, LKey::new(head as u32));
            if length == 0 {
                break;
            }
            *slot = Sge { address, length, lkey };
            count += 1;
        }
        Some((count, rq.kept(index)))
    }

    /// Hands everything posted to the send queue to the device: once for any number of posts.
    #[inline(always)]
    pub fn ring(&mut self) {
        let sq = &mut self.sq;
        let (head, last) = (sq.head, sq.last);
        if head == sq.rung {
            return;
        }
        barrier::publish();
        self.record.store_second(u32::from(head));
        barrier::before_doorbell();
        if self.doorbell.blueflame == 0 {
            sq.rung = head;
            self.doorbell.bar.write64(self.doorbell.offset, u64::from_be(last));
        } else {
            sq.ring_blueflame(&mut self.doorbell);
        }
    }
}

#[cfg(test)]
mod tests;

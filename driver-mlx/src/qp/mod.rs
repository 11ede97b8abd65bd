//! Queue pairs: posting, ringing, retiring. The hot path.

mod frame;
mod geometry;
mod receive;
mod send;

pub use frame::MAX_FRAME_HEAD;
pub(crate) use geometry::QpGeometry;
pub(crate) use receive::put_receive;
pub(crate) use send::FrameLimits;

use crate::barrier;
use crate::completion::{Completion, Sent, WorkQueue, WrId};
use crate::config::Service;
use crate::cq::Cqe;
use crate::dma::DmaMemory;
use crate::generation::{Age, Generation, Object};
use crate::host::Epoch;
use crate::mw::{self, MemoryWindow, MwBind, MwType};
use crate::path::AddressVector;
use crate::platform::{Bar, DoorbellRegister};
use crate::ring::{DoorbellRecord, OctowordRing, SendRing, Slots};
use crate::types::{LKey, QpNumber, RKey, Sge};
use crate::wqe::{FrameChecksums, PostError, SendFlags, SendOp};
use core::cell::Cell;
use frame::EthSegment;
use mlx5_prm::datapath::INLINE_SEG;
use receive::ReceiveQueue;
pub use receive::Receiver;
use send::{Connection, Payload, Prefix, Request, SendLimits, SendQueue};

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

/// The register that a queue pair rings.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SendRegister<R> {
    /// Bytes of half a BlueFlame register; 0 for a plain doorbell.
    half_len: usize,
    handle: R,
    /// Offset of the half whose turn it is.
    half: usize,
    /// The send queue's head when a BlueFlame register was last rung.
    rung: u64,
    /// The register may have another owner afterwards.
    epoch: Epoch,
}

impl<R> SendRegister<R> {
    /// A register that has not been rung; `half_len` is 0 for a plain doorbell, else half a BlueFlame register's bytes.
    pub(crate) fn new(handle: R, half_len: usize, epoch: Epoch) -> Self {
        Self { half_len, handle, half: 0, rung: 0, epoch }
    }
}

/// What has been posted and the device has not heard of: [`Qp::ring`] tells it.
///
/// A batch keeps the newest doorbell and drops the others: ringing it hands over everything posted before. A doorbell that is dropped
/// is no loss either, as the next one hands over its request too. Only the queue that made it rings it, until that queue is reset.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the device hears of the request when the doorbell is rung"]
pub struct Doorbell {
    /// First quadword of the request, as it lies in memory: the form that posting has at hand.
    first: u64,
    /// Of the queue that made it.
    generation: u64,
}

impl Doorbell {
    /// Returns the doorbell register's value, in processor order.
    #[inline]
    fn first(&self) -> u64 {
        u64::from_be(self.first)
    }
}

/// A queue pair. Owns all it needs for posting and retiring, apart from the [`Hca`](crate::Hca) that made it.
///
/// Requests are posted with the `post_*` methods and handed to the device with [`Qp::ring`]; receives are handed over as they are
/// posted. What a [`Cq`](crate::Cq) reports goes to [`Qp::retire`].
// In this order, so that what is posted and rung for lies together.
#[derive(Debug)]
#[repr(C)]
pub struct Qp<B: Bar> {
    sq: SendQueue,
    record: DoorbellRecord,
    register: SendRegister<B::DoorbellRegister>,
    rq: Option<ReceiveQueue>,
    spurious: u32,
    service: Service,
    state: QpState,
    /// In a cell, whose unused values count for no `Option<Qp>`: of the context's that would be the largest number.
    context: Cell<QpContext>,
    /// The work queues' buffer, and the doorbell record.
    memory: [DmaMemory; 2],
    generation: Generation,
}

/// What the commands of this queue pair repeat.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpContext {
    pub(crate) config: crate::config::QpConfig,
    pub(crate) port: u8,
    pub(crate) pkey_index: u16,
    /// Another one than in INIT.
    pub(crate) pkey_changed: bool,
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
    /// The key that ends a scatter list.
    pub(crate) terminator: LKey,
    pub(crate) frames: FrameLimits,
}

impl<B: Bar> Object for Qp<B> {
    type Number = QpNumber;

    fn made(&self, now: Generation) -> Age {
        self.generation.made(now)
    }

    fn name(&self) -> QpNumber {
        self.number()
    }
}

impl<B: Bar> Qp<B> {
    /// Rings over `rings`, all empty; `receive_slots` are none if there is no receive queue.
    pub(crate) fn new(
        memory: [DmaMemory; 2],
        (send_slots, receive_slots): (Slots, Option<Slots>),
        geometry: &QpGeometry,
        limits: QpLimits,
        register: SendRegister<B::DoorbellRegister>,
        context: QpContext,
        generation: Generation,
    ) -> Option<Self> {
        let service = context.config.service;
        let [rings, record] = memory;
        let rq = match receive_slots {
            None => None,
            Some(slots) => {
                let ring = OctowordRing::new(rings.slice(0, geometry.rq_bytes)?)?;
                let inline = context.config.inline_receive;
                let segments = (limits.max_recv_sge, limits.terminator);
                Some(ReceiveQueue::new(ring, slots, geometry.log_rq_stride, segments, inline))
            }
        };
        // Without a send queue nothing passes the limits, and the pointers lead to a WQEBB that is there.
        let size = geometry.send_wqebbs();
        let ring = if size == 0 {
            record.slice(0, 64)?
        } else {
            rings.slice(geometry.rq_bytes, geometry.sq_bytes)?
        };
        let send_limits = SendLimits {
            connection: match service {
                Service::Rc | Service::Uc => Connection::With,
                Service::Ud { .. } | Service::Gsi => Connection::Without,
                Service::RawPacket => Connection::RawPacket,
            },
            reliable: service == Service::Rc,
            max_sge: limits.max_send_sge,
            max_inline: limits.max_inline,
        };
        let mut qp = Self {
            sq: SendQueue::new(SendRing::new(ring, send_slots)?, size as u16, send_limits, limits.frames),
            rq,
            record: DoorbellRecord::new(record)?,
            register,
            spurious: 0,
            service,
            state: QpState::Reset,
            context: Cell::new(context),
            memory,
            generation,
        };
        qp.clear();
        Some(qp)
    }

    /// What it lies in: the work queues' buffer and the doorbell record, the slots, the BlueFlame register.
    #[allow(clippy::type_complexity)]
    pub(crate) fn into_memory(self) -> ([DmaMemory; 2], (Slots, Option<Slots>), Option<(u8, u8)>) {
        (
            self.memory,
            (self.sq.into_slots(), self.rq.map(ReceiveQueue::into_slots)),
            self.context.get().register,
        )
    }

    /// Forgets everything posted, as the device does on reset.
    pub(crate) fn clear(&mut self) {
        self.sq.clear();
        self.register.rung = 0;
        if let Some(rq) = &mut self.rq {
            rq.clear();
        }
        self.record.store_first(0);
        self.record.store_second(0);
        barrier::publish();
    }

    /// The work queues' buffer and the doorbell record.
    pub(crate) fn memory(&self) -> [DmaMemory; 2] {
        self.memory
    }

    /// Returns the context that its commands repeat.
    pub(crate) fn context(&self) -> QpContext {
        self.context.get()
    }

    /// To say what INIT, or another port, makes of it.
    pub(crate) fn context_mut(&mut self) -> &mut QpContext {
        self.context.get_mut()
    }

    /// Sets the numbers of its queues, which differ for a raw-packet QP only.
    pub(crate) fn set_numbers(&mut self, send: QpNumber, receive: QpNumber) {
        self.sq.set_number(send);
        if let Some(rq) = &mut self.rq {
            rq.set_number(receive);
        }
    }

    pub(crate) fn set_state(&mut self, state: QpState) {
        self.state = state;
    }

    /// The number by which this HCA's commands and completions name the queue pair.
    #[inline]
    pub fn number(&self) -> QpNumber {
        self.sq.number()
    }

    /// The number by which completions of receives name it: a raw-packet QP has another one for them.
    pub fn receive_number(&self) -> QpNumber {
        self.rq.as_ref().map_or(self.number(), ReceiveQueue::number)
    }

    /// The number by which peers address it: 1 for the general services interface.
    pub fn wire_number(&self) -> QpNumber {
        match self.service {
            Service::Gsi => QpNumber::GSI,
            Service::Rc | Service::Uc | Service::Ud { .. } | Service::RawPacket => self.number(),
        }
    }

    /// The service type.
    pub fn service(&self) -> Service {
        self.service
    }

    /// The state it was last brought to. The device may have gone to the error state since.
    pub fn state(&self) -> QpState {
        self.state
    }

    /// Sets the P_Key's index, into the port's table, that a connected QP in INIT takes with its
    /// transition to RTR. A path or a peer's request may name another partition than the
    /// QP has so far.
    pub fn set_pkey_index(&mut self, index: u16) {
        let context = self.context.get_mut();
        context.pkey_changed |= context.pkey_index != index;
        context.pkey_index = index;
    }

    /// Whether small requests are written straight to the device.
    pub fn has_blueflame(&self) -> bool {
        self.register.half_len != 0
    }

    /// Completions that named a work request which is not outstanding. Never more than zero with an honest device.
    pub fn spurious_completions(&self) -> u32 {
        self.spurious
    }

    /// WQEBBs (64 bytes) posted to the send queue and not yet retired.
    #[inline]
    pub fn send_outstanding(&self) -> u16 {
        self.sq.outstanding()
    }

    /// Receives posted and not yet retired.
    #[inline]
    pub fn receive_outstanding(&self) -> u16 {
        self.rq.as_ref().map_or(0, ReceiveQueue::outstanding)
    }

    /// Posts a request to the send queue of a connected service; [`Qp::ring`] hands it to the device. SGEs of length 0 are left out.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    #[inline]
    pub fn post_send(
        &mut self,
        op: SendOp,
        sges: &[Sge],
        wr_id: impl Into<WrId>,
        flags: SendFlags,
    ) -> Result<Doorbell, PostError> {
        self.sq.post(Request::new(op, Payload::Sges(sges), wr_id.into(), flags))
    }

    /// As [`Qp::post_send`] of a common request: a send or RDMA write whose SGEs are not empty, with room in the queue. `None`, and
    /// nothing was posted, for any other. For callers whose cold path posts everything else.
    #[inline(always)]
    pub fn post_common(
        &mut self,
        op: SendOp,
        sges: &[Sge],
        wr_id: impl Into<WrId>,
        flags: SendFlags,
    ) -> Option<Doorbell> {
        self.sq.post_common(&Request::new(op, Payload::Sges(sges), wr_id.into(), flags))
    }

    /// Posts a request whose data is copied now, so that the caller may reuse it at once.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted. RDMA reads have no data to send.
    pub fn post_inline(
        &mut self,
        op: SendOp,
        data: &[u8],
        wr_id: impl Into<WrId>,
        flags: SendFlags,
    ) -> Result<Doorbell, PostError> {
        self.sq.post(Request::new(op, Payload::Inline(data), wr_id.into(), flags))
    }

    /// Posts a datagram (UD, GSI); `op` is [`SendOp::Send`] or [`SendOp::SendImm`].
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    pub fn post_ud(
        &mut self,
        to: &AddressVector,
        op: SendOp,
        sges: &[Sge],
        wr_id: impl Into<WrId>,
        flags: SendFlags,
    ) -> Result<Doorbell, PostError> {
        let request = Request::new(op, Payload::Sges(sges), wr_id.into(), flags);
        self.sq.post(Request { prefix: Some(Prefix::Datagram(to)), ..request })
    }

    /// Posts a frame (raw packet): its first bytes `head`, which are copied now, and the rest in registered memory. The
    /// device computes `checksums`, pads a short frame and appends the check sequence. A frame has at least 14 bytes.
    ///
    /// # Errors
    /// Nothing was posted.
    /// - [`PostError::TooShort`]: `head` has fewer than [`Qp::min_frame_head`] bytes and is not the complete frame.
    /// - [`PostError::TooLong`]: `head` has more than [`MAX_FRAME_HEAD`] bytes.
    /// - [`PostError::WrongService`]: another service, or `checksums` without [`Qp::has_frame_checksums`].
    /// - As for [`Qp::post_send`].
    pub fn post_frame(
        &mut self,
        head: &[u8],
        rest: &[Sge],
        checksums: FrameChecksums,
        wr_id: impl Into<WrId>,
        flags: SendFlags,
    ) -> Result<Doorbell, PostError> {
        let segment = EthSegment::new(head, checksums)?;
        let request = Request::new(SendOp::Send, Payload::Sges(rest), wr_id.into(), flags);
        self.sq.post(Request { prefix: Some(Prefix::Frame(&segment)), ..request })
    }

    /// Returns how many of a frame's first bytes the device needs in the request, if the frame has as many: 0, or those
    /// of its Ethernet, IP or TCP header (`nic_vport_context.min_wqe_inline_mode`).
    #[must_use]
    pub fn min_frame_head(&self) -> usize {
        self.sq.frames().min_head.into()
    }

    /// Returns whether the device computes checksums of frames.
    #[must_use]
    pub fn has_frame_checksums(&self) -> bool {
        self.sq.frames().checksums
    }

    /// Posts a bind of a memory window (a QP made with [`QpConfig::memory_windows`](crate::QpConfig::memory_windows)) and gives the new
    /// key, which `window` then holds too and which peers may use once the bind has completed. What is posted after it waits for it.
    ///
    /// The completion is a [`Sent`] with the opcode [`UMR`](mlx5_prm::datapath::SendOpcode::UMR). A bind that the device refuses
    /// (outside the region or its rights, of another protection domain, or of a window of type 2 that is bound) completes with the
    /// syndrome `MW_BIND_ERR` and brings the QP to the error state.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted. [`PostError::TooLong`] for 2^31 bytes and more.
    pub fn post_bind(
        &mut self,
        window: &mut MemoryWindow,
        bind: &MwBind,
        wr_id: impl Into<WrId>,
        flags: SendFlags,
    ) -> Result<(RKey, Doorbell), PostError> {
        if bind.length & INLINE_SEG != 0 {
            return Err(PostError::TooLong);
        }
        let old = window.rkey().get();
        let new = RKey::new(old & !0xff | old.wrapping_add(1) & 0xff);
        let bind = (bind.length > 0).then_some(bind);
        let doorbell = self.post_umr(window.kind(), old, new, bind, wr_id.into(), flags)?;
        window.set_variant(new);
        Ok((new, doorbell))
    }

    /// Posts an invalidation of a memory window of type 2 that this QP has bound: peers cannot use the key any more once it has
    /// completed. What is posted after it waits for it.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    pub fn post_local_invalidate(
        &mut self,
        rkey: RKey,
        wr_id: impl Into<WrId>,
        flags: SendFlags,
    ) -> Result<Doorbell, PostError> {
        self.post_umr(MwType::Two, rkey.get(), rkey, None, wr_id.into(), flags)
    }

    fn post_umr(
        &mut self,
        kind: MwType,
        old: u32,
        new: RKey,
        bind: Option<&MwBind>,
        wr_id: WrId,
        flags: SendFlags,
    ) -> Result<Doorbell, PostError> {
        if !self.context.get().config.memory_windows {
            return Err(PostError::WrongService);
        }
        let segments = mw::umr(kind, new, self.number().get(), bind);
        self.sq.post_umr(old, &segments, wr_id, flags.bits())
    }

    /// Hands everything posted to the send queue to the device; `doorbell` is that of the newest request. A doorbell of another queue,
    /// or from before a reset of this one, does nothing.
    ///
    /// A queue with BlueFlame writes nothing once its [`Hca`](crate::Hca) has recovered or is gone:
    /// its register page may belong to a new queue of the same number.
    #[inline(always)]
    pub fn ring(&mut self, doorbell: Doorbell) {
        if !self.sq.owns(&doorbell) {
            return;
        }
        if self.register.half_len != 0 {
            return self.sq.ring_blueflame(doorbell, &mut self.record, &mut self.register);
        }
        barrier::publish();
        self.record.store_second(u32::from(self.sq.head()));
        barrier::before_doorbell();
        self.register.handle.ring(doorbell.first());
    }

    /// Posts a receive; the device may use it from now on. SGEs of length 0 are left out.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    #[inline]
    pub fn post_recv(&mut self, sges: &[Sge], wr_id: impl Into<WrId>) -> Result<(), PostError> {
        let rq = self.rq.as_mut().ok_or(PostError::WrongService)?;
        rq.post(Some((sges, wr_id.into()))).1?;
        self.ring_recv();
        Ok(())
    }

    /// Posts receives of one SGE each until one is refused, and tells the device of all at once. Returns how many were posted.
    #[inline]
    pub fn post_recvs(&mut self, receives: impl IntoIterator<Item = (Sge, WrId)>) -> usize {
        let Some(rq) = &mut self.rq else { return 0 };
        let (posted, _) = rq.post(receives.into_iter().map(|(sge, wr_id)| ([sge], wr_id)));
        self.ring_recv();
        posted
    }

    /// Returns the receive queue, to take many messages; `None` if receives come from a shared queue.
    #[inline(always)]
    pub fn receiver(&mut self) -> Option<Receiver<'_>> {
        Some(Receiver::new(self.rq.as_mut()?, &mut self.record))
    }

    /// Hands everything posted to the receive queue to the device.
    #[inline]
    fn ring_recv(&mut self) {
        if let Some(rq) = &self.rq {
            barrier::publish();
            self.record.store_first(u32::from(rq.head()));
        }
    }

    /// Retires the work request that `cqe` reports done. In the send queue, earlier requests without a completion of their own are
    /// retired with it; in the receive queue completions come in order. Receives from a shared queue are retired there:
    /// [`Srq::retire`](crate::Srq::retire).
    ///
    /// `None` (and a count in [`Qp::spurious_completions`]) if `cqe` names no outstanding work request of this queue pair.
    #[inline]
    pub fn retire(&mut self, cqe: &Cqe<'_>) -> Option<Completion> {
        match self.retire_common::<false>(cqe, 0) {
            Some(completion) => Some(completion),
            // By value, so that a common one is never put into memory.
            None => self.retire_other(*cqe),
        }
    }

    /// As [`Qp::retire`] of a common completion: the success of the oldest request, if its tag has none of the bits `special`, or a
    /// message that came by a send without more. With `RUNS` also the success of a later request, with those before it. `None`, and
    /// nothing has changed, for any other. For callers whose cold path retires everything else.
    #[inline(always)]
    pub fn retire_common<const RUNS: bool>(&mut self, cqe: &Cqe<'_>, special: u64) -> Option<Completion> {
        if cqe.is_request_done() {
            let (wr_id, count) = self.sq.retire_common::<RUNS>(cqe, special)?;
            Some(Completion::Sent(Sent { wr_id, opcode: cqe.send_opcode(), count }))
        } else {
            self.receiver()?.retire(cqe).map(Completion::Received)
        }
    }

    #[cold]
    #[inline(never)]
    fn retire_other(&mut self, cqe: Cqe<'_>) -> Option<Completion> {
        let retired = if cqe.is_send() {
            self.sq.retire(&cqe)
        } else {
            // Receives from a shared queue are retired there.
            self.rq.as_mut()?.retire(&cqe).map(|wr_id| (wr_id, 1))
        };
        if retired.is_none() {
            self.spurious = self.spurious.saturating_add(1);
        }
        retired.map(|(wr_id, count)| Completion::new(&cqe, wr_id, count))
    }

    /// The name of the work request that `cqe` reports done, which stays outstanding: for completions that were only
    /// [peeked](crate::Cq::peek) at.
    #[inline]
    pub fn peek(&self, cqe: &Cqe<'_>) -> Option<WrId> {
        if cqe.is_send() { self.sq.find(cqe).map(|(wr_id, _)| wr_id) } else { self.rq.as_ref()?.find(cqe) }
    }

    /// Retires the oldest work request of a queue without a completion: for owners who know that the device is gone. `None` if none is
    /// outstanding.
    pub fn flush_next(&mut self, queue: WorkQueue) -> Option<WrId> {
        match queue {
            WorkQueue::Send => self.sq.flush_next(),
            WorkQueue::Receive => self.rq.as_mut()?.flush_next(),
        }
    }

    /// The index that the next request gets, in WQEBBs, circular.
    #[inline]
    pub fn send_end(&self) -> u16 {
        self.sq.head()
    }

    /// The index after the outstanding request that `cqe` reports done: what [`Qp::send_end`] was after it was posted.
    pub fn end_of(&self, cqe: &Cqe<'_>) -> Option<u16> {
        if cqe.is_send() { self.sq.find(cqe).map(|(_, next)| next) } else { None }
    }

    /// The SGEs of an outstanding receive (`nth` from 0, the oldest), read back from the ring into `out`: their number, and its name.
    /// `None` if fewer are outstanding; SGEs beyond `out` are left out.
    pub fn posted_recv(&self, nth: u16, out: &mut [Sge]) -> Option<(usize, WrId)> {
        self.rq.as_ref()?.posted(nth, out)
    }
}

#[cfg(test)]
mod tests;

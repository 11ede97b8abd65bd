//! The queue pair of IPoIB, datagram mode: frames in and out (RFC 4391, section 6). What a frame means, and where one goes,
//! is the business of [`crate::ip`].

use driver_mlx::{
    AddressVector, Bar, CompletionKind, Error, Hca, Platform, QKey, Qp, QpConfig, QpNumber, SendFlags,
    SendOp, Service,
};
use ib_mgmt::ipoib::{ENCAP_LEN, HwAddr, encap};
use ib_types::{Gid, Instant, Lid};

use core::net::Ipv4Addr;

use crate::queue::{Buffers, start_qp};

/// Receives kept posted.
pub(crate) const RECEIVES: usize = 128;
/// Frames that can wait or be under way at once.
pub const IP_SENDS: usize = 64;
/// The longest frame: encapsulation header and packet.
pub(crate) const FRAME_LEN: usize = 4096;
/// Received packets that may wait for their reader; the other receives are for ARP.
const UNREAD: usize = RECEIVES - 32;
/// Bytes before a received datagram: room for its global routing header.
const GRH_LEN: usize = 40;
/// Distance of the receive buffers, bytes.
const RECEIVE_STRIDE: usize = 4160;
/// Cookie bit that tells sends from receives.
const SEND: u64 = 1 << 32;
/// The shortest IPv4 packet.
const IPV4_HEADER: usize = 20;

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Destination {
    /// A neighbour whose hardware address is looked up.
    Ip(Ipv4Addr) = 0,
    /// A hardware address.
    Hardware(HwAddr),
    /// A multicast group.
    Group(Gid),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum TxState {
    Free = 0,
    /// Until it is known how to get there.
    Waiting,
    /// The HCA has it.
    Posted,
}

/// Room for what is known about one frame to send.
#[derive(Clone, Copy, Debug)]
pub struct TxSlot {
    state: TxState,
    destination: Destination,
    len: u16,
    /// Order of arrival.
    sequence: u64,
    /// When a waiting frame is dropped.
    deadline: Instant,
}

impl TxSlot {
    /// A free entry; all bytes zero.
    pub const EMPTY: TxSlot = TxSlot {
        state: TxState::Free,
        destination: Destination::Ip(Ipv4Addr::UNSPECIFIED),
        len: 0,
        sequence: 0,
        deadline: Instant::ORIGIN,
    };
}

/// A frame that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) slot: usize,
    pub(crate) destination: Destination,
    pub(crate) sequence: u64,
    pub(crate) deadline: Instant,
}

/// A received frame that stays in its buffer.
#[derive(Clone, Copy, Debug)]
struct Unread {
    buffer: u16,
    len: u16,
}

/// What went by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FrameCounters {
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(crate) bad: u64,
    pub(crate) overrun: u64,
    pub(crate) send_errors: u64,
}

/// The queue pair, its queue and memory.
#[derive(Debug)]
pub(crate) struct FrameQueue<'s, B: Bar> {
    queue: Buffers<B>,
    /// Made when the broadcast group's Q_Key is known.
    qp: Option<Qp<B>>,
    qkey: QKey,
    tx: &'s mut [TxSlot],
    sequence: u64,
    waiting: usize,
    unread: [Unread; UNREAD],
    unread_first: usize,
    unread_count: usize,
    /// The device gave the queue pair up.
    broken: bool,
    /// A packet arrived for the reader since [`FrameQueue::take_news`].
    news: bool,
    pub(crate) counters: FrameCounters,
}

impl<'s, B: Bar> FrameQueue<'s, B> {
    /// Memory and completion queue. What was begun is undone on failure.
    pub(crate) fn open<P: Platform<Bar = B>>(
        hca: &mut Hca<'_, P>,
        tx: &'s mut [TxSlot],
    ) -> Result<Self, Error> {
        tx.fill(TxSlot::EMPTY);
        let queue = Self::open_queue(hca)?;
        Ok(Self {
            queue,
            qp: None,
            qkey: QKey::new(0),
            tx,
            sequence: 0,
            waiting: 0,
            unread: [Unread { buffer: 0, len: 0 }; UNREAD],
            unread_first: 0,
            unread_count: 0,
            broken: false,
            news: false,
            counters: FrameCounters::default(),
        })
    }

    /// Destroys everything; the first error is told, the rest is done all the same.
    pub(crate) fn close<P: Platform<Bar = B>>(self, hca: &mut Hca<'_, P>) -> Result<(), Error> {
        let qp = self.qp.map_or(Ok(()), |qp| hca.destroy_qp(qp));
        let queue = self.queue.close(hca);
        qp.and(queue)
    }

    /// Makes everything anew after a recovery of the HCA. What waited or was under way is lost.
    pub(crate) fn reopen<P: Platform<Bar = B>>(&mut self, hca: &mut Hca<'_, P>) -> Result<(), Error> {
        let queue = Self::open_queue(hca)?;
        if let Some(qp) = self.qp.take() {
            hca.destroy_qp(qp)?;
        }
        core::mem::replace(&mut self.queue, queue).close(hca)?;
        let lost = self.tx.iter().filter(|slot| slot.state != TxState::Free).count();
        self.counters.send_errors += lost as u64;
        self.tx.fill(TxSlot::EMPTY);
        (self.waiting, self.unread_count) = (0, 0);
        self.set_broken();
        Ok(())
    }

    fn open_queue<P: Platform<Bar = B>>(hca: &mut Hca<'_, P>) -> Result<Buffers<B>, Error> {
        Buffers::open(hca, RECEIVES * RECEIVE_STRIDE + IP_SENDS * FRAME_LEN, RECEIVES + IP_SENDS)
    }

    /// The queue pair, once it is there.
    pub(crate) fn qp(&self) -> Option<&Qp<B>> {
        self.qp.as_ref()
    }

    /// Whether a queue pair with this Q_Key is at work.
    pub(crate) fn serves(&self, qkey: QKey) -> bool {
        self.qp.is_some() && self.qkey == qkey && !self.broken
    }

    /// The queue pair's number.
    pub(crate) fn qpn(&self) -> Option<QpNumber> {
        self.qp.as_ref().map(Qp::number)
    }

    /// The device gave the queue pair up.
    pub(crate) fn set_broken(&mut self) {
        self.broken = true;
    }

    /// Makes the queue pair, anew if there was one. What it had to send is lost.
    pub(crate) fn make_qp<P: Platform<Bar = B>>(
        &mut self,
        hca: &mut Hca<'_, P>,
        qkey: QKey,
        pkey_index: u16,
    ) -> Result<(), Error> {
        if let Some(qp) = self.qp.take() {
            let number = qp.number();
            hca.destroy_qp(qp)?;
            self.queue.cq.sweep(number);
            self.tx.iter_mut().filter(|slot| slot.state == TxState::Posted).for_each(|slot| {
                slot.state = TxState::Free;
                self.counters.send_errors += 1;
            });
        }
        let config = QpConfig {
            service: Service::Ud { q_key: qkey },
            max_send_wr: IP_SENDS as u32,
            max_recv_wr: RECEIVES as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            ..QpConfig::rc(self.queue.pd, self.queue.cq_number())
        };
        self.qp = Some(start_qp(hca, &config, pkey_index)?);
        self.qkey = qkey;
        self.broken = false;
        for buffer in 0..RECEIVES {
            let unread = (0..self.unread_count).any(|n| {
                let entry = self.unread.get((self.unread_first + n) % UNREAD);
                entry.is_some_and(|entry| usize::from(entry.buffer) == buffer)
            });
            if !unread {
                self.post_receive(buffer);
            }
        }
        Ok(())
    }

    fn post_receive(&mut self, buffer: usize) {
        let sge = self.queue.sge(buffer % RECEIVES * RECEIVE_STRIDE, GRH_LEN + FRAME_LEN);
        let posted = self.qp.as_mut().is_some_and(|qp| qp.post_recv(&[sge], buffer as u64).is_ok());
        if !posted {
            self.counters.bad += 1;
        }
    }

    /// Frames that may be handed in.
    pub(crate) fn room(&self) -> usize {
        self.tx.iter().filter(|slot| slot.state == TxState::Free).count()
    }

    /// Frames to a destination that wait.
    pub(crate) fn waiting_for(&self, destination: &Destination) -> usize {
        if self.waiting == 0 {
            return 0;
        }
        let waits = |slot: &&TxSlot| slot.state == TxState::Waiting && slot.destination == *destination;
        self.tx.iter().filter(waits).count()
    }

    /// Takes a frame to be sent as soon as it is known how. False when there is no room.
    pub(crate) fn enqueue(
        &mut self,
        ethertype: u16,
        payload: &[u8],
        destination: Destination,
        deadline: Instant,
    ) -> bool {
        let len = ENCAP_LEN + payload.len();
        let free = self.tx.iter().position(|slot| slot.state == TxState::Free);
        let Some(index) = free.filter(|_| len <= FRAME_LEN) else { return false };
        let at = RECEIVES * RECEIVE_STRIDE + index * FRAME_LEN;
        let written = self.queue.memory.write(at, &encap(ethertype)).is_ok()
            && self.queue.memory.write(at + ENCAP_LEN, payload).is_ok();
        let Some(slot) = self.tx.get_mut(index).filter(|_| written) else { return false };
        let sequence = self.sequence;
        *slot = TxSlot { state: TxState::Waiting, destination, len: len as u16, sequence, deadline };
        self.sequence += 1;
        self.waiting += 1;
        true
    }

    /// The frame waiting for longest among those handed in at `from` or later.
    pub(crate) fn next_waiting(&self, from: u64) -> Option<Waiting> {
        if self.waiting == 0 {
            return None;
        }
        let waits = |slot: &&(usize, &TxSlot)| slot.1.state == TxState::Waiting && slot.1.sequence >= from;
        let first = self.tx.iter().enumerate().filter(|slot| waits(&slot)).min_by_key(|(_, s)| s.sequence);
        first.map(|(slot, s)| Waiting {
            slot,
            destination: s.destination,
            sequence: s.sequence,
            deadline: s.deadline,
        })
    }

    /// Drops a waiting frame.
    pub(crate) fn drop_waiting(&mut self, slot: usize) {
        if let Some(slot) = self.tx.get_mut(slot).filter(|slot| slot.state == TxState::Waiting) {
            slot.state = TxState::Free;
            self.waiting = self.waiting.saturating_sub(1);
        }
    }

    /// Hands a waiting frame to the HCA. False if its queue is full: the frame goes on waiting.
    pub(crate) fn post(&mut self, slot: usize, path: &driver_mlx::Path, qpn: QpNumber) -> bool {
        let (Some(entry), Some(qp)) = (self.tx.get_mut(slot), &mut self.qp) else { return false };
        if entry.state != TxState::Waiting {
            return false;
        }
        let vector = AddressVector::new(path, qpn, self.qkey, self.queue.rate_supported);
        let offset = RECEIVES * RECEIVE_STRIDE + slot * FRAME_LEN;
        let sge = self.queue.sge(offset, usize::from(entry.len));
        let posted = qp.post_ud(&vector, SendOp::Send, &[sge], SEND | slot as u64, SendFlags::SIGNALED);
        let Ok(doorbell) = posted else { return false };
        qp.ring(doorbell);
        entry.state = TxState::Posted;
        self.waiting = self.waiting.saturating_sub(1);
        self.counters.sent += 1;
        true
    }

    /// Takes the next completion. A frame that is no IPv4 packet comes out at once: its type and length, its bytes in `out`.
    /// IPv4 packets wait for [`FrameQueue::read`].
    pub(crate) fn receive(&mut self, own: (Lid, QpNumber), out: &mut [u8]) -> Option<(u16, usize)> {
        for _ in 0..2 * (RECEIVES + IP_SENDS) {
            let completion = match self.queue.cq.poll(|cqe| cqe.copy()) {
                Ok(Some(completion)) => completion,
                Ok(None) => return None,
                Err(_) => {
                    self.counters.bad += 1;
                    continue;
                }
            };
            let completion = completion.cqe();
            let retired = self.qp.as_mut().and_then(|qp| qp.retire(&completion));
            let Some(wr_id) = retired.map(|done| done.wr_id().id) else {
                self.counters.bad += 1;
                continue;
            };
            if completion.error().is_some() {
                // A datagram queue pair that fails one request stops.
                self.broken = true;
            }
            if completion.is_send() {
                if let Some(slot) = self.tx.get_mut((wr_id & !SEND) as usize) {
                    slot.state = TxState::Free;
                }
                self.counters.send_errors += u64::from(completion.error().is_some());
                continue;
            }
            let buffer = wr_id as usize % RECEIVES;
            let len = (completion.byte_len() as usize).saturating_sub(GRH_LEN);
            let source = completion.datagram();
            let own_echo = (source.slid, source.src_qpn) == own;
            let whole =
                completion.kind() == CompletionKind::Receive && (ENCAP_LEN..=FRAME_LEN).contains(&len);
            if !whole || own_echo {
                self.counters.bad += u64::from(!whole);
                self.post_receive(buffer);
                continue;
            }
            let at = buffer * RECEIVE_STRIDE + GRH_LEN;
            let mut head = [0; ENCAP_LEN];
            if self.queue.memory.read(at, &mut head).is_err() {
                self.counters.bad += 1;
                self.post_receive(buffer);
                continue;
            }
            self.counters.received += 1;
            let ethertype = u16::from_be_bytes([head[0], head[1]]);
            let len = len - ENCAP_LEN;
            if ethertype == ib_mgmt::ipoib::ETHERTYPE_IPV4 && len >= IPV4_HEADER {
                self.keep_unread(buffer, len);
                continue;
            }
            let read =
                out.get_mut(..len).is_some_and(|out| self.queue.memory.read(at + ENCAP_LEN, out).is_ok());
            self.post_receive(buffer);
            if read {
                return Some((ethertype, len));
            }
            self.counters.bad += 1;
        }
        None
    }

    fn keep_unread(&mut self, buffer: usize, len: usize) {
        if self.unread_count == UNREAD {
            self.counters.overrun += 1;
            self.post_receive(buffer);
            return;
        }
        if let Some(entry) = self.unread.get_mut((self.unread_first + self.unread_count) % UNREAD) {
            *entry = Unread { buffer: buffer as u16, len: len as u16 };
            self.unread_count += 1;
            self.news = true;
        }
    }

    /// Whether packets arrived for the reader since the last call.
    pub(crate) fn take_news(&mut self) -> bool {
        core::mem::take(&mut self.news)
    }

    /// Whether an IPv4 packet waits for its reader.
    pub(crate) fn has_unread(&self) -> bool {
        self.unread_count > 0
    }

    /// Copies the next IPv4 packet out; its length.
    pub(crate) fn read(&mut self, out: &mut [u8]) -> Option<usize> {
        while self.unread_count > 0 {
            let entry = *self.unread.get(self.unread_first)?;
            self.unread_first = (self.unread_first + 1) % UNREAD;
            self.unread_count -= 1;
            let at = usize::from(entry.buffer) * RECEIVE_STRIDE + GRH_LEN + ENCAP_LEN;
            let len = usize::from(entry.len);
            let read = out.get_mut(..len).is_some_and(|out| self.queue.memory.read(at, out).is_ok());
            self.post_receive(usize::from(entry.buffer));
            if read {
                return Some(len);
            }
            self.counters.bad += 1;
        }
        None
    }

    /// Completion queue and memory.
    pub(crate) fn queue(&mut self) -> &mut Buffers<B> {
        &mut self.queue
    }

    /// Whether something has completed that was not taken yet.
    pub(crate) fn has_work(&self) -> bool {
        self.queue.has_work()
    }
}

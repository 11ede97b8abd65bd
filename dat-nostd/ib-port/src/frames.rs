//! The queue pair of IP, frames in and out: datagrams with an encapsulation header on InfiniBand (RFC 4391, section 6),
//! raw packets on Ethernet. Their meaning and destinations are the business of [`crate::ip`].

use driver_mlx::{
    AddressVector, Bar, CompletionKind, Error, FrameChecksums, Hca, MAX_FRAME_HEAD, MacAddress, Platform,
    PortType, PostError, QKey, Qp, QpConfig, QpNumber, SendFlags, SendOp, Service,
};
use ib_mgmt::ethernet;
use ib_mgmt::ipoib::{ENCAP_LEN, ETHERTYPE_IPV4, HwAddr, decap, encap};
use ib_mgmt::membership::IGMP;
use ib_types::{Gid, Instant, Lid, VlanId};

use core::net::Ipv4Addr;

use crate::queue::{Buffers, start_qp, start_raw_packet};

/// Receives kept posted.
pub(crate) const RECEIVES: usize = 128;
/// Frames that can wait or be under way at once.
pub const IP_SENDS: usize = 64;
/// The same of a port that only finds its peers.
const FEW_RECEIVES: usize = 32;
const FEW_SENDS: usize = 16;
/// The longest frame: header and packet.
pub(crate) const FRAME_LEN: usize = 4096;
/// Least bytes of a frame that a request holds: a WQEBB has as many at no cost.
const FRAME_HEAD: usize = 18;
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
/// An Ethernet port reports its groups to switches and routers, and replies to their queries.
pub(crate) const REPORTS: bool = cfg!(any(test, feature = "multicast"));
/// Offset of the protocol in an IPv4 header.
pub(crate) const PROTOCOL_AT: usize = 9;

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
    /// A MAC address, of a neighbour or a group.
    Mac(MacAddress),
}

/// The way that a frame takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FrameWay {
    /// To a queue pair, along a path.
    Datagram(driver_mlx::Path, QpNumber),
    /// By Ethernet.
    Ethernet {
        /// Destination.
        to: MacAddress,
        /// The own address.
        from: MacAddress,
    },
}

/// A frame that is no IPv4 packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived {
    pub(crate) ether_type: u16,
    /// Bytes behind the header.
    pub(crate) len: usize,
    /// The sender, on Ethernet.
    pub(crate) from: MacAddress,
}

/// Settings of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameConfig {
    pub(crate) medium: PortType,
    /// Packets are kept for a reader. Otherwise they are dropped.
    pub(crate) has_reader: bool,
    /// Bytes of the longest frame that the port may receive.
    pub(crate) longest: usize,
    /// VLAN of all frames on Ethernet. Frames of other VLANs are dropped.
    pub(crate) vlan: Option<VlanId>,
}

/// The kind of queue pair to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameQp {
    /// Datagrams with this Q_Key.
    Datagram {
        /// The key.
        qkey: QKey,
        /// Index of the P_Key.
        pkey_index: u16,
    },
    /// Frames of Ethernet.
    RawPacket,
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
    ether_type: u16,
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
        ether_type: 0,
        sequence: 0,
        deadline: Instant::ORIGIN,
    };
}

impl FrameConfig {
    /// Receives and sends that can be posted at once.
    fn counts(&self) -> (usize, usize) {
        if self.has_reader { (RECEIVES, IP_SENDS) } else { (FEW_RECEIVES, FEW_SENDS) }
    }

    /// Bytes before a received frame.
    fn headroom(&self) -> usize {
        match self.medium {
            PortType::InfiniBand => GRH_LEN,
            PortType::Ethernet => 0,
        }
    }

    /// Bytes of the header of a frame to send.
    fn header(&self) -> usize {
        match (self.medium, self.vlan) {
            (PortType::InfiniBand, _) => ENCAP_LEN,
            (PortType::Ethernet, None) => ethernet::HEADER_LEN,
            (PortType::Ethernet, Some(_)) => ethernet::TAGGED_HEADER_LEN,
        }
    }

    /// Where frame `slot` to send lies.
    fn send_offset(&self, slot: usize) -> usize {
        self.counts().0 * RECEIVE_STRIDE + slot * FRAME_LEN
    }

    /// Where the end of received frames that are too long goes, which is never read: a frame without
    /// room would stop the queue.
    fn overflow_offset(&self) -> usize {
        self.send_offset(self.counts().1)
    }

    /// Its bytes; 0 if no frame is too long.
    fn overflow(&self) -> usize {
        self.longest.saturating_sub(FRAME_LEN)
    }
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
    /// Bytes before the packet.
    start: u16,
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
    config: FrameConfig,
    queue: Buffers<B>,
    /// On InfiniBand created with the broadcast group's Q_Key.
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
        config: FrameConfig,
    ) -> Result<Self, Error> {
        let sends = if config.has_reader { IP_SENDS } else { FEW_SENDS };
        let (tx, _) = tx.split_at_mut(sends.min(tx.len()));
        tx.fill(TxSlot::EMPTY);
        let queue = Self::open_queue(hca, &config)?;
        Ok(Self {
            config,
            queue,
            qp: None,
            qkey: QKey::new(0),
            tx,
            sequence: 0,
            waiting: 0,
            unread: [Unread { buffer: 0, start: 0, len: 0 }; UNREAD],
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
        let queue = Self::open_queue(hca, &self.config)?;
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

    fn open_queue<P: Platform<Bar = B>>(
        hca: &mut Hca<'_, P>,
        config: &FrameConfig,
    ) -> Result<Buffers<B>, Error> {
        let (receives, sends) = config.counts();
        let len = config.overflow_offset() + config.overflow();
        Buffers::open(hca, len, receives + sends)
    }

    /// The queue pair, once it is there.
    pub(crate) fn qp(&self) -> Option<&Qp<B>> {
        self.qp.as_ref()
    }

    /// Whether a queue pair with this Q_Key is at work.
    pub(crate) fn serves(&self, qkey: QKey) -> bool {
        self.is_at_work() && self.qkey == qkey
    }

    /// Returns whether a queue pair is at work.
    pub(crate) fn is_at_work(&self) -> bool {
        self.qp.is_some() && !self.broken
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
        kind: FrameQp,
    ) -> Result<(), Error> {
        if let Some(qp) = self.qp.take() {
            let numbers = [qp.number(), qp.receive_number()];
            hca.destroy_qp(qp)?;
            numbers.into_iter().for_each(|number| _ = self.queue.cq.sweep(number));
            self.tx.iter_mut().filter(|slot| slot.state == TxState::Posted).for_each(|slot| {
                slot.state = TxState::Free;
                self.counters.send_errors += 1;
            });
        }
        let (receives, sends) = self.config.counts();
        let config = QpConfig {
            max_send_wr: sends as u32,
            max_recv_wr: receives as u32,
            max_send_sge: 1,
            max_recv_sge: if self.config.overflow() == 0 { 1 } else { 2 },
            ..QpConfig::raw_packet(self.queue.pd, self.queue.cq_number())
        };
        self.qp = Some(match kind {
            FrameQp::Datagram { qkey, pkey_index } => {
                self.qkey = qkey;
                let service = Service::Ud { q_key: qkey };
                start_qp(hca, &QpConfig { service, ..config }, pkey_index)?
            }
            FrameQp::RawPacket => start_raw_packet(hca, &config)?,
        });
        self.broken = false;
        for buffer in 0..receives {
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
        let (config, queue) = (&self.config, &self.queue);
        let sge = queue.sge(buffer % RECEIVES * RECEIVE_STRIDE, config.headroom() + FRAME_LEN);
        // An empty SGE is left out.
        let overflow = queue.sge(config.overflow_offset(), config.overflow());
        let sges = [sge, overflow];
        let (sges, _) = sges.split_at(if overflow.length == 0 { 1 } else { 2 });
        let posted = self.qp.as_mut().is_some_and(|qp| qp.post_recv(sges, buffer as u64).is_ok());
        if !posted {
            self.counters.bad += 1;
        }
    }

    /// Most bytes behind a frame's header.
    pub(crate) fn longest_payload(&self) -> u16 {
        (FRAME_LEN - self.config.header()) as u16
    }

    /// Returns whether the HCA has frames to send.
    pub(crate) fn is_sending(&self) -> bool {
        self.tx.iter().any(|slot| slot.state == TxState::Posted)
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
        let header = self.config.header();
        let len = header + payload.len();
        let free = self.tx.iter().position(|slot| slot.state == TxState::Free);
        let Some(index) = free.filter(|_| len <= FRAME_LEN) else { return false };
        let at = self.config.send_offset(index);
        // [`FrameQueue::post`] writes the Ethernet header.
        let written = self.queue.memory.write(at, &encap(ethertype)).is_ok()
            && self.queue.memory.write(at + header, payload).is_ok();
        let Some(slot) = self.tx.get_mut(index).filter(|_| written) else { return false };
        let sequence = self.sequence;
        *slot = TxSlot {
            state: TxState::Waiting,
            destination,
            len: len as u16,
            ether_type: ethertype,
            sequence,
            deadline,
        };
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
    pub(crate) fn post(&mut self, slot: usize, way: &FrameWay) -> bool {
        let (Some(entry), Some(qp)) = (self.tx.get_mut(slot), &mut self.qp) else { return false };
        if entry.state != TxState::Waiting {
            return false;
        }
        let (offset, len) = (self.config.send_offset(slot), usize::from(entry.len));
        let (wr_id, flags) = (SEND | slot as u64, SendFlags::SIGNALED);
        let posted = match way {
            FrameWay::Datagram(path, qpn) => {
                let vector = AddressVector::new(path, *qpn, self.qkey, self.queue.rate_supported);
                qp.post_ud(&vector, SendOp::Send, &[self.queue.sge(offset, len)], wr_id, flags)
            }
            FrameWay::Ethernet { to, from } => {
                let mut head = [0; MAX_FRAME_HEAD];
                let (to, from, vlan) = (*to, *from, self.config.vlan);
                let header = ethernet::Header { to, from, vlan, ether_type: entry.ether_type };
                let (header, header_len) = header.encode();
                head.iter_mut().zip(header).for_each(|(to, from)| *to = from);
                let used = len.min(qp.min_frame_head().max(FRAME_HEAD));
                let behind = head.get_mut(header_len..used).unwrap_or_default();
                let read = self.queue.memory.read(offset + header_len, behind);
                let rest = [self.queue.sge(offset + used, len - used)];
                let rest = if used == len { &[][..] } else { &rest[..] };
                let head = head.get(..used).unwrap_or_default();
                let post = |()| qp.post_frame(head, rest, FrameChecksums::empty(), wr_id, flags);
                read.map_err(|_| PostError::TooLong).and_then(post)
            }
        };
        let Ok(doorbell) = posted else { return false };
        qp.ring(doorbell);
        entry.state = TxState::Posted;
        self.waiting = self.waiting.saturating_sub(1);
        self.counters.sent += 1;
        true
    }

    /// Takes the next completion. A frame that is no IPv4 packet comes out at once, its bytes behind the header in `out`.
    /// IPv4 packets wait for [`FrameQueue::read`].
    pub(crate) fn receive(&mut self, own: (Lid, QpNumber), out: &mut [u8]) -> Option<Arrived> {
        let headroom = self.config.headroom();
        for _ in 0..2 * (RECEIVES + IP_SENDS) {
            let Ok(completion) = self.queue.cq.poll(|cqe| cqe.copy()).transpose()? else {
                self.counters.bad += 1;
                continue;
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
            let len = (completion.byte_len() as usize).saturating_sub(headroom);
            let source = completion.datagram();
            let own_echo = self.config.medium == PortType::InfiniBand && (source.slid, source.src_qpn) == own;
            let whole = completion.kind() == CompletionKind::Receive && len <= FRAME_LEN;
            let header = if whole && !own_echo { self.parse(buffer, len) } else { None };
            let Some((from, ether_type, header, protocol)) = header else {
                self.counters.bad += u64::from(!own_echo);
                self.post_receive(buffer);
                continue;
            };
            self.counters.received += 1;
            let (start, len) = (headroom + header, len - header);
            let is_packet =
                ether_type == ETHERTYPE_IPV4 && len >= IPV4_HEADER && !(REPORTS && protocol == IGMP);
            if is_packet && self.config.has_reader {
                self.keep_unread(Unread { buffer: buffer as u16, start: start as u16, len: len as u16 });
                continue;
            }
            let at = buffer * RECEIVE_STRIDE + start;
            let read = out.get_mut(..len).is_some_and(|out| self.queue.memory.read(at, out).is_ok());
            self.post_receive(buffer);
            if read {
                return Some(Arrived { ether_type, len, from });
            }
            self.counters.bad += 1;
        }
        None
    }

    /// Returns sender, EtherType, length of the header and the byte where IPv4 on Ethernet has the protocol, of a received
    /// frame of `len` bytes; `None` if it is too short or of another VLAN.
    fn parse(&self, buffer: usize, len: usize) -> Option<(MacAddress, u16, usize, u8)> {
        let mut head = [0; ethernet::TAGGED_HEADER_LEN + PROTOCOL_AT + 1];
        let head = head.get_mut(..len.min(ethernet::TAGGED_HEADER_LEN + PROTOCOL_AT + 1))?;
        self.queue.memory.read(buffer * RECEIVE_STRIDE + self.config.headroom(), head).ok()?;
        match self.config.medium {
            PortType::InfiniBand => Some((MacAddress::default(), decap(head)?.0, ENCAP_LEN, 0)),
            PortType::Ethernet => {
                let (header, header_len) = ethernet::Header::parse(head)?;
                let protocol = head.get(header_len + PROTOCOL_AT).copied().unwrap_or(0);
                (header.vlan == self.config.vlan).then_some((
                    header.from,
                    header.ether_type,
                    header_len,
                    protocol,
                ))
            }
        }
    }

    fn keep_unread(&mut self, unread: Unread) {
        if self.unread_count == UNREAD {
            self.counters.overrun += 1;
            self.post_receive(unread.buffer.into());
            return;
        }
        if let Some(entry) = self.unread.get_mut((self.unread_first + self.unread_count) % UNREAD) {
            *entry = unread;
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

    /// Copies the next IPv4 packet out; its length, without the padding of a short frame.
    pub(crate) fn read(&mut self, out: &mut [u8]) -> Option<usize> {
        while self.unread_count > 0 {
            let entry = *self.unread.get(self.unread_first)?;
            self.unread_first = (self.unread_first + 1) % UNREAD;
            self.unread_count -= 1;
            let at = usize::from(entry.buffer) * RECEIVE_STRIDE + usize::from(entry.start);
            let len = usize::from(entry.len);
            let read = out.get_mut(..len).is_some_and(|out| self.queue.memory.read(at, out).is_ok());
            self.post_receive(usize::from(entry.buffer));
            let total = out.get(2..4).map_or(0, |bytes| usize::from(bytes[0]) << 8 | usize::from(bytes[1]));
            if read && (IPV4_HEADER..=len).contains(&total) {
                return Some(total);
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

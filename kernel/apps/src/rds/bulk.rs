//! `mode=bulk`: the client writes blocks into memory that the server offers, and says so by a message behind each; the server
//! compares and offers the memory again. Regions are for one use, so that the client's message ends its access.
//!
//! The client begins by asking for slots; the server offers that many and then each again when its block was looked at. After
//! the last block the server says what came.

use core::net::{IpAddr, SocketAddr};

use dat_nostd::{Adapter, DmaBuffer, DmaSlice, Platform};
use rds_nostd::{
    Arrival, Control, Msg, MsgFlags, RdmaArgs, RdmaCookie, RdmaFlags, RdmaStatus, Rds, RdsError, SocketHandle,
};

use super::exchange::{Kind, Message, Writer, fill, send_last, wrong};
use super::work::Move;
use super::{AppError, BULK_PORT, BulkFault, InCall, MAX_LEN};

/// Blocks under way, and bytes of one: the longest RDMA operation.
const SLOTS: usize = 4;
const SLOT: usize = rds_nostd::MAX_RDMA_LEN;
/// How long the last message's acknowledgement may take, as the client may have ended already; nanoseconds.
const LAST_WAIT: u64 = 5_000_000_000;

/// How it went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BulkReport {
    /// Blocks written, and their bytes.
    pub blocks: u64,
    /// See above.
    pub bytes: u64,
    /// From the first to the last, nanoseconds.
    pub ns: u64,
}

/// Times of the first and the last block.
#[derive(Clone, Copy, Default)]
struct Times {
    first: Option<u64>,
    last: u64,
}

impl Times {
    fn note(&mut self, now: u64) {
        self.first.get_or_insert(now);
        self.last = now;
    }

    fn ns(&self) -> u64 {
        self.last.saturating_sub(self.first.unwrap_or(self.last))
    }
}

/// Either side.
struct Common {
    socket: SocketHandle,
    memory: DmaBuffer,
    report: BulkReport,
    times: Times,
}

impl Common {
    fn start<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        port: u16,
    ) -> Result<Self, AppError> {
        let socket = rds.bind(SocketAddr::new(adapter.address(), port)).in_call("bind")?;
        let memory = adapter.dma_alloc(SLOTS * SLOT, 4096).map_err(RdsError::Dat).in_call("dma_alloc")?;
        Ok(Self { socket, memory, report: BulkReport::default(), times: Times::default() })
    }

    fn fault<T>(&self, fault: BulkFault) -> Result<T, AppError> {
        Err(AppError::Bulk { block: self.report.blocks, fault })
    }

    fn slot(&self, index: usize, len: usize) -> Option<DmaSlice<'_>> {
        self.memory.slice(index.checked_mul(SLOT)?, len)
    }

    fn wrote(&mut self, bytes: usize, now: u64) {
        self.report.blocks += 1;
        self.report.bytes += bytes as u64;
        self.times.note(now);
        self.report.ns = self.times.ns();
    }

    fn close<P: Platform>(self, adapter: &mut Adapter<'_, P>, rds: &mut Rds<'_>) -> Result<(), AppError> {
        rds.close(adapter, self.socket).in_call("close")?;
        adapter.dma_free(self.memory).map_err(|kept| RdsError::Dat(kept.reason)).in_call("dma_free")
    }
}

/// Whether a message has to wait.
fn waits(error: RdsError) -> bool {
    matches!(error, RdsError::Again | RdsError::NoBufferSpace | RdsError::Congested | RdsError::Exhausted)
}

/// Offers memory.
pub(super) struct BulkServer {
    common: Common,
    client: Option<SocketAddr>,
    /// Slots to be offered.
    free: [bool; SLOTS],
    /// All came; the client is to hear of it, and heard of it at this time.
    over: bool,
    told_at: Option<u64>,
}

impl BulkServer {
    pub(super) fn start<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
    ) -> Result<Self, AppError> {
        let common = Common::start(adapter, rds, BULK_PORT)?;
        Ok(Self { common, client: None, free: [false; SLOTS], over: false, told_at: None })
    }

    pub(super) fn report(&self) -> BulkReport {
        self.common.report
    }

    /// Nothing before the first block, for a server that nobody asks does not hang.
    pub(super) fn moved(&self) -> Option<u64> {
        self.client.map(|_| self.common.report.blocks)
    }

    pub(super) fn poll<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        buffer: &mut [u8; MAX_LEN],
        now: u64,
    ) -> Result<Move, AppError> {
        if let Some(told_at) = self.told_at {
            let until = told_at.saturating_add(LAST_WAIT);
            let heard = rds.unacknowledged(self.common.socket).in_call("unacknowledged")? == 0;
            return Ok(if heard || now >= until { Move::Done } else { Move::Wait(until) });
        }
        let mut result = self.offer(adapter, rds)?;
        let received = match rds.recvmsg(adapter, self.common.socket, buffer, MsgFlags::empty()) {
            Ok(Arrival::Message(received)) => received,
            Ok(_) | Err(RdsError::Again) => {
                if self.over && self.tell(adapter, rds)? {
                    self.told_at = Some(now);
                    result = Move::Again;
                }
                return Ok(result);
            }
            Err(error) => return Err(AppError::Rds { call: "recvmsg", error }),
        };
        let message = buffer.get(..received.message_len).and_then(Message::decode);
        match (message, self.client) {
            (Some(message), None) if message.kind == Kind::Offer => {
                self.client = Some(received.from);
                self.free.iter_mut().take(message.size(0)).for_each(|free| *free = true);
            }
            (Some(message), Some(client)) if message.kind == Kind::Slot && client == received.from => {
                self.written(&message, now)?;
            }
            _ => return self.common.fault(BulkFault::Message),
        }
        Ok(Move::Again)
    }

    /// A block was written: it is compared, and its slot is free again.
    fn written(&mut self, message: &Message, now: u64) -> Result<(), AppError> {
        let (index, block, len) = (message.number as usize, message.values[0], message.size(1));
        let Some(free) = self.free.get_mut(index).filter(|free| !**free) else {
            return self.common.fault(BulkFault::Message);
        };
        if len > SLOT || block != self.common.report.blocks {
            return self.common.fault(BulkFault::Message);
        }
        let found = wrong(self.common.memory.as_slice(), index * SLOT, len, Writer::Client, block as u32, 0);
        if found.count > 0 {
            return self.common.fault(BulkFault::Bytes { count: found.count, first: found.first });
        }
        self.over = message.values[2] != 0;
        *free = !self.over;
        self.common.wrote(len, now);
        Ok(())
    }

    fn offer<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
    ) -> Result<Move, AppError> {
        let Some(client) = self.client.filter(|_| !self.over) else { return Ok(Move::Wait(u64::MAX)) };
        let mut result = Move::Wait(u64::MAX);
        for (index, free) in self.free.iter_mut().enumerate().filter(|(_, free)| **free) {
            let Some(memory) = self.common.slot(index, SLOT) else { continue };
            let offer = Message::new(Kind::Slot, index as u32, [SLOT as u64, 0, 0, 0]).encode();
            let flags = RdmaFlags::USE_ONCE | RdmaFlags::INVALIDATE;
            let control = Control { map: Some((memory, flags)), ..Control::default() };
            match rds.sendmsg(adapter, self.common.socket, Msg::to(client, &offer).with(&control)) {
                Ok(_) => {
                    *free = false;
                    result = Move::Again;
                }
                Err(error) if waits(error) => break,
                Err(error) => return Err(AppError::Rds { call: "sendmsg", error }),
            }
        }
        Ok(result)
    }

    /// Says what came; false if that has to wait.
    fn tell<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
    ) -> Result<bool, AppError> {
        let Some(client) = self.client else { return Ok(false) };
        let report = self.common.report;
        let last = Message::new(Kind::Done, 0, [report.blocks, report.bytes, 0, 0]);
        match send_last(adapter, rds, self.common.socket, client, &last) {
            Ok(()) => Ok(true),
            Err(error) if waits(error) => Ok(false),
            Err(error) => Err(AppError::Rds { call: "sendmsg", error }),
        }
    }

    pub(super) fn close<P: Platform>(
        self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
    ) -> Result<(), AppError> {
        self.common.close(adapter, rds)
    }
}

/// Writes.
pub(super) struct BulkClient {
    common: Common,
    server: SocketAddr,
    /// Bytes still to be written.
    left: u64,
    asked: bool,
    /// What the server offers, and whether a local slot is being read by the HCA.
    offers: [Option<RdmaCookie>; SLOTS],
    busy: [bool; SLOTS],
    sent: u64,
    /// Blocks and bytes that the server has seen.
    told: Option<(u64, u64)>,
}

impl BulkClient {
    pub(super) fn start<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        peer: IpAddr,
        bytes: u64,
    ) -> Result<Self, AppError> {
        Ok(Self {
            common: Common::start(adapter, rds, BULK_PORT + 1)?,
            server: SocketAddr::new(peer, BULK_PORT),
            left: bytes,
            asked: false,
            offers: [None; SLOTS],
            busy: [false; SLOTS],
            sent: 0,
            told: None,
        })
    }

    pub(super) fn report(&self) -> BulkReport {
        self.common.report
    }

    pub(super) fn moved(&self) -> u64 {
        self.sent + self.common.report.blocks
    }

    pub(super) fn poll<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        buffer: &mut [u8; MAX_LEN],
        now: u64,
    ) -> Result<Move, AppError> {
        if !self.asked {
            let begin = Message::new(Kind::Offer, 0, [SLOTS as u64, SLOT as u64, 0, 0]).encode();
            match rds.sendmsg(adapter, self.common.socket, Msg::to(self.server, &begin)) {
                Ok(_) => self.asked = true,
                Err(error) if waits(error) => return Ok(Move::Wait(u64::MAX)),
                Err(error) => return Err(AppError::Rds { call: "sendmsg", error }),
            }
            return Ok(Move::Again);
        }
        let mut result = self.write(adapter, rds, now)?;
        match rds.recvmsg(adapter, self.common.socket, buffer, MsgFlags::empty()) {
            Ok(Arrival::RdmaStatus(notify)) => {
                if notify.status != RdmaStatus::Success {
                    return self.common.fault(BulkFault::Status(notify.status));
                }
                let (slot, len) = ((notify.user_token >> 32) as usize, notify.user_token as u32);
                if let Some(busy) = self.busy.get_mut(slot) {
                    *busy = false;
                }
                self.common.wrote(len as usize, now);
                result = Move::Again;
            }
            Ok(Arrival::Message(received)) => {
                let message = buffer.get(..received.message_len).and_then(Message::decode);
                match (message, received.cookie) {
                    (Some(message), Some(cookie)) if message.kind == Kind::Slot => {
                        if let Some(offer) = self.offers.get_mut(message.number as usize) {
                            *offer = Some(cookie);
                        }
                    }
                    (Some(message), None) if message.kind == Kind::Done => {
                        self.told = Some((message.values[0], message.values[1]));
                    }
                    _ => return self.common.fault(BulkFault::Message),
                }
                result = Move::Again;
            }
            Ok(Arrival::CongestionUpdate(_) | Arrival::Lent(_) | Arrival::Nothing) => {}
            Err(RdsError::Again) => {}
            Err(error) => return Err(AppError::Rds { call: "recvmsg", error }),
        }
        if let Some((blocks, bytes)) = self.told
            && self.busy == [false; SLOTS]
        {
            let report = self.common.report;
            if (blocks, bytes) != (report.blocks, report.bytes) || self.left > 0 {
                return self.common.fault(BulkFault::Missing { seen: bytes });
            }
            return Ok(Move::Done);
        }
        Ok(result)
    }

    /// Writes the next block where a slot is free on both sides.
    fn write<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        now: u64,
    ) -> Result<Move, AppError> {
        if self.left == 0 {
            return Ok(Move::Wait(u64::MAX));
        }
        let slots = self.offers.iter_mut().zip(&mut self.busy).enumerate();
        for (index, (offer, busy)) in slots.filter(|(_, (_, busy))| !**busy) {
            let Some(cookie) = *offer else { continue };
            let len = self.left.min(SLOT as u64) as usize;
            self.common.times.note(now);
            let Some(memory) = self.common.slot(index, len) else { continue };
            fill(memory, 0, len, Writer::Client, self.sent as u32, 0);
            let args = RdmaArgs {
                cookie,
                remote_offset: 0,
                remote_bytes: len as u64,
                local: &[memory],
                flags: RdmaFlags::READWRITE | RdmaFlags::NOTIFY_ME,
                user_token: (index as u64) << 32 | len as u64,
            };
            let control = Control { rdma: Some(args), ..Control::default() };
            let last = u64::from(self.left == len as u64);
            let behind = Message::new(Kind::Slot, index as u32, [self.sent, len as u64, last, 0]).encode();
            match rds.sendmsg(adapter, self.common.socket, Msg::to(self.server, &behind).with(&control)) {
                Ok(_) => {
                    (*offer, *busy) = (None, true);
                    self.left -= len as u64;
                    self.sent += 1;
                    return Ok(Move::Again);
                }
                Err(error) if waits(error) => return Ok(Move::Wait(u64::MAX)),
                Err(error) => return Err(AppError::Rds { call: "sendmsg", error }),
            }
        }
        Ok(Move::Wait(u64::MAX))
    }

    pub(super) fn close<P: Platform>(
        self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
    ) -> Result<(), AppError> {
        self.common.close(adapter, rds)
    }
}

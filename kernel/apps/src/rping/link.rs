//! DAT objects of a side, its buffers, the connection, posting.

use dat_nostd::{
    Adapter, CloseFlags, CompletionFlags, ConnectFlags, ConnectionEvent, DatReturn, DmaSlice, DtoOperation,
    DtoStatus, EpAttributes, EpHandle, EvdFlags, EvdHandle, Event, EventData, IaHandle, LmrCreated,
    LmrTriplet, MemPriv, Platform, PspFlags, PspHandle, PzHandle, Qos, ReturnType, RmrTriplet,
};

use super::message::{MESSAGE_LEN, Offer};
use super::{Config, InCall, RpingError};
use crate::Role;

/// Receives posted, and messages that may be under way.
const RECEIVES: usize = 4;
const SENDS: usize = 8;
/// Bytes of a receive: more than a message, so that a longer one is seen as what it is.
const RECEIVE_LEN: usize = 64;
const REQUESTS: usize = SENDS + 8;
/// Bytes of each of the two large buffers.
const BUFFER: usize = 64 << 10;
/// Between connection attempts, nanoseconds.
const RETRY: u64 = 200_000_000;
/// For one attempt, microseconds.
const ATTEMPT_US: u32 = 10_000_000;

/// A registered buffer.
struct Buffer {
    memory: DmaSlice,
    registered: LmrCreated,
}

impl Buffer {
    fn new<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        ia: IaHandle,
        pz: PzHandle,
        len: usize,
        rights: MemPriv,
    ) -> Result<Self, RpingError> {
        let memory = adapter.dma_alloc(len, 4096).in_call("dma_alloc")?;
        let registered = adapter.lmr_create(ia, memory, pz, rights).in_call("lmr_create")?;
        Ok(Self { memory, registered })
    }

    fn triplet(&self, offset: usize, len: usize) -> LmrTriplet {
        LmrTriplet::new(self.registered.lmr_context, (self.memory.va() + offset) as u64, len as u64)
    }

    fn offer(&self, size: u32) -> Offer {
        Offer { address: self.registered.registered_address, rkey: self.registered.rmr_context, size }
    }

    fn free<P: Platform>(self, adapter: &mut Adapter<'_, P>) -> Result<(), RpingError> {
        adapter.lmr_free(self.registered.lmr).in_call("lmr_free")?;
        adapter.dma_free(self.memory).in_call("dma_free")
    }
}

/// How the connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkState {
    Connecting,
    Up,
    Ended(ConnectionEvent),
}

/// What a completion says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// A message arrived.
    Message([u8; MESSAGE_LEN]),
    /// The read is done.
    Read,
    /// A send or the write is done.
    Sent,
}

pub(super) struct Link {
    config: Config,
    ia: IaHandle,
    pz: PzHandle,
    receive_evd: EvdHandle,
    request_evd: EvdHandle,
    connect_evd: EvdHandle,
    cr_evd: EvdHandle,
    psp: Option<PspHandle>,
    ep: EpHandle,
    receives: Buffer,
    sends: Buffer,
    /// What the client's peer reads, and what it writes; the server uses the second only.
    source: Buffer,
    sink: Buffer,
    sent: usize,
    pub(super) state: LinkState,
    pub(super) last_failure: Option<ConnectionEvent>,
    retry_at: Option<u64>,
}

impl Link {
    pub(super) fn open<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        config: &Config,
    ) -> Result<Self, RpingError> {
        let (ia, _) = adapter.ia_open(config.ia, 8, None).in_call("ia_open")?;
        let pz = adapter.pz_create(ia).in_call("pz_create")?;
        let receive_evd =
            adapter.evd_create(ia, RECEIVES as u32, None, EvdFlags::DTO).in_call("evd_create")?;
        let request_evd =
            adapter.evd_create(ia, REQUESTS as u32, None, EvdFlags::DTO).in_call("evd_create")?;
        let connect_evd = adapter.evd_create(ia, 8, None, EvdFlags::CONNECTION).in_call("evd_create")?;
        let cr_evd = adapter.evd_create(ia, 4, None, EvdFlags::CR).in_call("evd_create")?;
        let local = MemPriv::LOCAL_READ | MemPriv::LOCAL_WRITE;
        let receives = Buffer::new(adapter, ia, pz, RECEIVES * RECEIVE_LEN, local)?;
        let sends = Buffer::new(adapter, ia, pz, SENDS * MESSAGE_LEN, local)?;
        let source = Buffer::new(adapter, ia, pz, BUFFER, local | MemPriv::REMOTE_READ)?;
        let sink = Buffer::new(adapter, ia, pz, BUFFER, local | MemPriv::REMOTE_WRITE)?;
        let attributes = EpAttributes {
            max_recv_dtos: RECEIVES as u32,
            max_request_dtos: REQUESTS as u32,
            max_recv_iov: 1,
            max_request_iov: 1,
            max_rdma_read_in: 1,
            max_rdma_read_out: 1,
            ..EpAttributes::DEFAULT
        };
        let evds = (Some(receive_evd), Some(request_evd), Some(connect_evd));
        let ep = adapter
            .ep_create(ia, Some(pz), evds.0, evds.1, evds.2, Some(&attributes))
            .in_call("ep_create")?;
        let psp = match config.role {
            Role::Server => Some(
                adapter
                    .psp_create(ia, u64::from(config.port), cr_evd, PspFlags::Consumer)
                    .in_call("psp_create")?,
            ),
            Role::Client => None,
        };
        let mut link = Self {
            config: *config,
            ia,
            pz,
            receive_evd,
            request_evd,
            connect_evd,
            cr_evd,
            psp,
            ep,
            receives,
            sends,
            source,
            sink,
            sent: 0,
            state: LinkState::Connecting,
            last_failure: None,
            retry_at: (config.role == Role::Client).then_some(0),
        };
        link.post_receives(adapter)?;
        Ok(link)
    }

    fn post_receives<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>) -> Result<(), RpingError> {
        (0..RECEIVES).try_for_each(|buffer| self.repost(adapter, buffer))
    }

    fn repost<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, buffer: usize) -> Result<(), RpingError> {
        let segment = self.receives.triplet(buffer * RECEIVE_LEN, RECEIVE_LEN);
        adapter
            .ep_post_recv(self.ep, &[segment], buffer as u64, CompletionFlags::empty())
            .in_call("ep_post_recv")
    }

    /// Runs connection events; gives the time of the next attempt.
    pub(super) fn poll<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        now: u64,
    ) -> Result<Option<u64>, RpingError> {
        while let Some(event) = dequeue(adapter, self.cr_evd)? {
            let EventData::ConnectionRequest { cr, .. } = event.data else { continue };
            // One peer at a time; whoever else asks is told so.
            let accepted =
                self.state == LinkState::Connecting && adapter.cr_accept(cr, Some(self.ep), &[]).is_ok();
            if !accepted {
                let _ = adapter.cr_reject(cr);
            }
        }
        while let Some(event) = dequeue(adapter, self.connect_evd)? {
            if let EventData::Connection { event, .. } = event.data {
                self.connection_event(adapter, event, now)?;
            }
        }
        if let Some(at) = self.retry_at
            && now >= at
        {
            self.retry_at = None;
            let (peer, port) = (self.config.peer, u64::from(self.config.port));
            adapter
                .ep_connect(self.ep, &peer, port, ATTEMPT_US, &[], Qos::BestEffort, ConnectFlags::Default)
                .in_call("ep_connect")?;
        }
        Ok(self.retry_at)
    }

    fn connection_event<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        event: ConnectionEvent,
        now: u64,
    ) -> Result<(), RpingError> {
        if event == ConnectionEvent::Established {
            self.state = LinkState::Up;
            return Ok(());
        }
        if self.state != LinkState::Connecting {
            self.state = LinkState::Ended(event);
            return Ok(());
        }
        // The peer is not there yet: everything posted was flushed; begin anew.
        self.last_failure = Some(event);
        while dequeue(adapter, self.receive_evd)?.is_some() {}
        adapter.ep_reset(self.ep).in_call("ep_reset")?;
        self.post_receives(adapter)?;
        if self.config.role == Role::Client {
            self.retry_at = Some(now + RETRY);
        }
        Ok(())
    }

    /// The next completion; flushed ones of an ended connection are passed over.
    pub(super) fn completion<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        iteration: u32,
    ) -> Result<Option<Done>, RpingError> {
        for evd in [self.request_evd, self.receive_evd] {
            while let Some(event) = dequeue(adapter, evd)? {
                let EventData::Dto(dto) = event.data else { continue };
                match dto.status {
                    DtoStatus::Success => {}
                    // What was flushed has a reason, and that is reported elsewhere.
                    DtoStatus::ErrFlushed => continue,
                    status => {
                        let vendor_syndrome = dto.vendor_syndrome;
                        return Err(RpingError::Transfer { status, vendor_syndrome, iteration });
                    }
                }
                return Ok(Some(match dto.operation {
                    DtoOperation::Receive => {
                        let (buffer, len) = (dto.user_cookie as usize, dto.transferred_length as usize);
                        let mut bytes = [0; MESSAGE_LEN];
                        let read = self.receives.memory.read(buffer * RECEIVE_LEN, &mut bytes);
                        if len != MESSAGE_LEN || read.is_err() {
                            return Err(RpingError::Protocol { iteration });
                        }
                        self.repost(adapter, buffer)?;
                        Done::Message(bytes)
                    }
                    DtoOperation::RdmaRead => Done::Read,
                    _ => Done::Sent,
                }));
            }
        }
        Ok(None)
    }

    fn send<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        message: [u8; MESSAGE_LEN],
    ) -> Result<(), RpingError> {
        // The peer has answered every message but the last: the oldest place is free.
        let offset = self.sent % SENDS * MESSAGE_LEN;
        self.sent = self.sent.wrapping_add(1);
        let _ = self.sends.memory.write(offset, &message);
        let segment = self.sends.triplet(offset, MESSAGE_LEN);
        adapter.ep_post_send(self.ep, &[segment], 0, CompletionFlags::empty()).in_call("ep_post_send")
    }

    pub(super) fn offer_source<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        size: u32,
    ) -> Result<(), RpingError> {
        self.send(adapter, self.source.offer(size).encode())
    }

    pub(super) fn offer_sink<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        size: u32,
    ) -> Result<(), RpingError> {
        self.send(adapter, self.sink.offer(size).encode())
    }

    /// Says that the client may go on; the content does not matter.
    pub(super) fn go_ahead<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>) -> Result<(), RpingError> {
        self.send(adapter, [0; MESSAGE_LEN])
    }

    pub(super) fn source(&self) -> &DmaSlice {
        &self.source.memory
    }

    pub(super) fn sink(&self) -> &DmaSlice {
        &self.sink.memory
    }

    /// The longest transfer, bytes.
    pub(super) fn room(&self) -> usize {
        BUFFER
    }

    /// Reads what the peer offers into the sink.
    pub(super) fn rdma_read<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        offer: &Offer,
    ) -> Result<(), RpingError> {
        let len = offer.size as usize;
        let remote = RmrTriplet::new(offer.rkey, offer.address, len as u64);
        adapter
            .ep_post_rdma_read(self.ep, &[self.sink.triplet(0, len)], 0, &remote, CompletionFlags::empty())
            .in_call("ep_post_rdma_read")
    }

    /// Writes the first `len` bytes of the sink where the peer offers room.
    pub(super) fn rdma_write<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        offer: &Offer,
        len: usize,
    ) -> Result<(), RpingError> {
        let remote = RmrTriplet::new(offer.rkey, offer.address, len as u64);
        adapter
            .ep_post_rdma_write(self.ep, &[self.sink.triplet(0, len)], 0, &remote, CompletionFlags::empty())
            .in_call("ep_post_rdma_write")
    }

    pub(super) fn disconnect<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>) -> Result<(), RpingError> {
        adapter.ep_disconnect(self.ep, CloseFlags::Graceful).in_call("ep_disconnect")
    }

    /// Frees everything; the graceful close at the end is refused if anything was left.
    pub(super) fn close<P: Platform>(self, adapter: &mut Adapter<'_, P>) -> Result<(), RpingError> {
        if let Some(psp) = self.psp {
            adapter.psp_free(psp).in_call("psp_free")?;
        }
        adapter.ep_free(self.ep).in_call("ep_free")?;
        for buffer in [self.receives, self.sends, self.source, self.sink] {
            buffer.free(adapter)?;
        }
        for evd in [self.receive_evd, self.request_evd, self.connect_evd, self.cr_evd] {
            adapter.evd_free(evd).in_call("evd_free")?;
        }
        adapter.pz_free(self.pz).in_call("pz_free")?;
        adapter.ia_close(self.ia, CloseFlags::Graceful).in_call("ia_close")
    }
}

fn dequeue<P: Platform>(adapter: &mut Adapter<'_, P>, evd: EvdHandle) -> Result<Option<Event>, RpingError> {
    match adapter.evd_dequeue(evd) {
        Ok(event) => Ok(Some(event)),
        Err(error) if is_empty(error) => Ok(None),
        Err(error) => Err(RpingError::Dat { call: "evd_dequeue", error }),
    }
}

fn is_empty(error: DatReturn) -> bool {
    error.is(ReturnType::QueueEmpty)
}

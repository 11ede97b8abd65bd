//! The DAT side of a node: its objects, its buffers, the connection, and the small messages that keep both sides in step.

use core::net::IpAddr;

use dat_nostd::{
    Adapter, CloseFlags, CompletionFlags, ConnectFlags, ConnectionEvent, DatReturn, DmaSlice, DtoCompletion,
    DtoOperation, DtoStatus, EpAttributes, EpHandle, EvdFlags, EvdHandle, Event, EventData, IaHandle,
    LmrCreated, LmrTriplet, MemPriv, Platform, PspFlags, PspHandle, PzHandle, Qos, RmrTriplet,
};

use crate::error::{DemoError, InCall};
use crate::report::Operation;
use crate::{Config, Role};

/// The longest message of the send/receive part.
pub(crate) const MAX_MESSAGE: usize = 64 << 10;
/// The longest RDMA transfer, and the size of a slot.
pub(crate) const MAX_RDMA: usize = 256 << 10;
/// RDMA transfers in flight.
pub(crate) const SLOTS: usize = 8;
/// Messages that a side may be ahead of what it has received. The peer is then at most twice that behind.
pub(crate) const WINDOW: usize = 8;
/// Receives posted: twice the window, and room for control messages.
const RECEIVES: usize = 2 * WINDOW + 2 * SLOTS + 4;
/// Control messages in flight.
const CONTROLS: usize = 64;
/// Bytes of a control message.
const CONTROL_LEN: usize = 16;
const REQUESTS: usize = CONTROLS + WINDOW + SLOTS;
/// Between connection attempts, nanoseconds.
const RETRY: u64 = 200_000_000;

/// A message that moves no payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// The sender has finished the part with this number.
    Finished(u64),
    /// RDMA write number n is in your memory.
    Written(u64),
    /// RDMA write number n has been looked at.
    Checked(u64),
    /// The memory for RDMA read number n is ready.
    Ready(u64),
    /// RDMA read number n is done.
    Taken(u64),
}

impl Control {
    fn encode(self) -> [u8; CONTROL_LEN] {
        let (kind, value) = match self {
            Self::Finished(n) => (1, n),
            Self::Written(n) => (2, n),
            Self::Checked(n) => (3, n),
            Self::Ready(n) => (4, n),
            Self::Taken(n) => (5, n),
        };
        let mut bytes = [0; CONTROL_LEN];
        bytes[0] = kind;
        bytes[8..].copy_from_slice(&value.to_le_bytes());
        bytes
    }

    fn decode(bytes: [u8; CONTROL_LEN]) -> Option<Self> {
        let mut value = [0; 8];
        value.copy_from_slice(&bytes[8..]);
        let n = u64::from_le_bytes(value);
        Some(match bytes[0] {
            1 => Self::Finished(n),
            2 => Self::Written(n),
            3 => Self::Checked(n),
            4 => Self::Ready(n),
            5 => Self::Taken(n),
            _ => return None,
        })
    }
}

/// What a completion is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// A message arrived in this receive buffer, this long. Give the buffer back with [`Link::repost`].
    Arrived { buffer: usize, len: usize },
    /// Message number n was sent.
    Sent(u64),
    /// RDMA transfer number n is complete.
    Transferred(u64),
    /// A control message was sent.
    Control,
}

const COOKIE_CONTROL: u64 = 1 << 56;
const COOKIE_MESSAGE: u64 = 2 << 56;
const COOKIE_RDMA: u64 = 3 << 56;
const COOKIE_NUMBER: u64 = (1 << 56) - 1;

/// Where the server's memory for RDMA is; the private data of its accept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    rmr_context: u32,
    address: u64,
}

impl Window {
    const LEN: usize = 12;

    fn encode(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&self.rmr_context.to_le_bytes());
        bytes[4..].copy_from_slice(&self.address.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (context, rest) = bytes.split_first_chunk()?;
        let (address, _) = rest.split_first_chunk()?;
        Some(Self { rmr_context: u32::from_le_bytes(*context), address: u64::from_le_bytes(*address) })
    }
}

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
    ) -> Result<Self, DemoError> {
        let memory = adapter.dma_alloc(len, 4096).in_call("dma_alloc")?;
        let registered = adapter.lmr_create(ia, memory, pz, rights).in_call("lmr_create")?;
        Ok(Self { memory, registered })
    }

    fn triplet(&self, offset: usize, len: usize) -> LmrTriplet {
        LmrTriplet::new(self.registered.lmr_context, (self.memory.va() + offset) as u64, len as u64)
    }

    fn free<P: Platform>(self, adapter: &mut Adapter<'_, P>) -> Result<(), DemoError> {
        adapter.lmr_free(self.registered.lmr).in_call("lmr_free")?;
        adapter.dma_free(self.memory).in_call("dma_free")
    }
}

/// How the connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkState {
    /// Not yet connected.
    Connecting,
    /// Connected.
    Up,
    /// Over.
    Ended(ConnectionEvent),
}

/// The objects of a node and its one connection.
pub(crate) struct Link {
    role: Role,
    peer: IpAddr,
    port: u64,
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
    controls: Buffer,
    slots: Buffer,
    window: Option<Window>,
    controls_sent: usize,
    controls_done: usize,
    state: LinkState,
    retry_at: Option<u64>,
    last_failure: Option<ConnectionEvent>,
}

impl Link {
    pub(crate) fn open<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        config: &Config,
    ) -> Result<Self, DemoError> {
        let (ia, _) = adapter.ia_open("ib0", 8, None).in_call("ia_open")?;
        let pz = adapter.pz_create(ia).in_call("pz_create")?;
        let dto = |adapter: &mut Adapter<'_, P>, len: usize| {
            adapter.evd_create(ia, len as u32, None, EvdFlags::DTO)
        };
        let receive_evd = dto(adapter, RECEIVES).in_call("evd_create")?;
        let request_evd = dto(adapter, REQUESTS).in_call("evd_create")?;
        let connect_evd = adapter.evd_create(ia, 8, None, EvdFlags::CONNECTION).in_call("evd_create")?;
        let cr_evd = adapter.evd_create(ia, 4, None, EvdFlags::CR).in_call("evd_create")?;
        let local = MemPriv::LOCAL_READ | MemPriv::LOCAL_WRITE;
        let receives = Buffer::new(adapter, ia, pz, RECEIVES * MAX_MESSAGE, local)?;
        let sends = Buffer::new(adapter, ia, pz, WINDOW * MAX_MESSAGE, local)?;
        let controls = Buffer::new(adapter, ia, pz, CONTROLS * CONTROL_LEN, local)?;
        let rights = match config.role {
            Role::Server => MemPriv::ALL,
            Role::Client => local,
        };
        let slots = Buffer::new(adapter, ia, pz, SLOTS * MAX_RDMA, rights)?;
        let attributes = EpAttributes {
            max_recv_dtos: RECEIVES as u32,
            max_request_dtos: REQUESTS as u32,
            max_recv_iov: 1,
            max_request_iov: 1,
            ..EpAttributes::DEFAULT
        };
        let ep = adapter
            .ep_create(
                ia,
                Some(pz),
                Some(receive_evd),
                Some(request_evd),
                Some(connect_evd),
                Some(&attributes),
            )
            .in_call("ep_create")?;
        let port = u64::from(config.port);
        let psp = match config.role {
            Role::Server => {
                Some(adapter.psp_create(ia, port, cr_evd, PspFlags::Consumer).in_call("psp_create")?)
            }
            Role::Client => None,
        };
        let mut link = Self {
            role: config.role,
            peer: config.peer,
            port,
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
            controls,
            slots,
            window: None,
            controls_sent: 0,
            controls_done: 0,
            state: LinkState::Connecting,
            retry_at: (config.role == Role::Client).then_some(0),
            last_failure: None,
        };
        link.post_all_receives(adapter)?;
        Ok(link)
    }

    fn post_all_receives<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>) -> Result<(), DemoError> {
        (0..RECEIVES).try_for_each(|buffer| self.repost(adapter, buffer))
    }

    pub(crate) fn state(&self) -> LinkState {
        self.state
    }

    pub(crate) fn last_failure(&self) -> Option<ConnectionEvent> {
        self.last_failure
    }

    /// Runs connection events; gives the time of the next attempt.
    pub(crate) fn poll<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        now: u64,
    ) -> Result<Option<u64>, DemoError> {
        while let Some(event) = dequeue(adapter, self.cr_evd)? {
            let EventData::ConnectionRequest { cr, .. } = event.data else { continue };
            let window = Window {
                rmr_context: self.slots.registered.rmr_context,
                address: self.slots.registered.registered_address,
            };
            // One peer at a time; whoever else asks is told so.
            let accepted = self.state == LinkState::Connecting
                && adapter.cr_accept(cr, Some(self.ep), &window.encode()).is_ok();
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
            adapter
                .ep_connect(
                    self.ep,
                    &self.peer,
                    self.port,
                    10_000_000,
                    &[],
                    Qos::BestEffort,
                    ConnectFlags::Default,
                )
                .in_call("ep_connect")?;
        }
        Ok(self.retry_at)
    }

    fn connection_event<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        event: ConnectionEvent,
        now: u64,
    ) -> Result<(), DemoError> {
        if event == ConnectionEvent::Established {
            if self.role == Role::Client {
                let data = adapter.ep_private_data(self.ep).in_call("ep_private_data")?;
                let window =
                    Window::decode(data).ok_or(DemoError::Protocol { during: Operation::Connection })?;
                self.window = Some(window);
            }
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
        self.post_all_receives(adapter)?;
        if self.role == Role::Client {
            self.retry_at = Some(now + RETRY);
        }
        Ok(())
    }

    /// The next completion; flushed ones of an ended connection are passed over.
    pub(crate) fn completion<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        during: Operation,
    ) -> Result<Option<Done>, DemoError> {
        // Requests first: what arrives is answered by requests, and those need the room of the completed ones.
        for evd in [self.request_evd, self.receive_evd] {
            while let Some(event) = dequeue(adapter, evd)? {
                let EventData::Dto(dto) = event.data else { continue };
                // What was flushed has a reason, and that is reported elsewhere.
                if dto.status != DtoStatus::ErrFlushed {
                    return self.interpret(&dto, during).map(Some);
                }
            }
        }
        Ok(None)
    }

    fn interpret(&mut self, dto: &DtoCompletion, during: Operation) -> Result<Done, DemoError> {
        if dto.status != DtoStatus::Success {
            return Err(DemoError::Transfer {
                status: dto.status,
                vendor_syndrome: dto.vendor_syndrome,
                during,
            });
        }
        if dto.operation == DtoOperation::Receive {
            return Ok(Done::Arrived {
                buffer: dto.user_cookie as usize,
                len: dto.transferred_length as usize,
            });
        }
        let number = dto.user_cookie & COOKIE_NUMBER;
        Ok(match dto.user_cookie & !COOKIE_NUMBER {
            COOKIE_MESSAGE => Done::Sent(number),
            COOKIE_RDMA => Done::Transferred(number),
            _ => {
                self.controls_done += 1;
                Done::Control
            }
        })
    }

    /// Posts a receive buffer (again).
    pub(crate) fn repost<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        buffer: usize,
    ) -> Result<(), DemoError> {
        let segment = self.receives.triplet(buffer * MAX_MESSAGE, MAX_MESSAGE);
        adapter
            .ep_post_recv(self.ep, &[segment], buffer as u64, CompletionFlags::empty())
            .in_call("ep_post_recv")
    }

    pub(crate) fn received(&self, buffer: usize) -> Option<DmaSlice> {
        self.receives.memory.slice(buffer * MAX_MESSAGE, MAX_MESSAGE)
    }

    pub(crate) fn control(&self, buffer: usize, len: usize) -> Option<Control> {
        let mut bytes = [0; CONTROL_LEN];
        self.received(buffer)?.read(0, &mut bytes).ok()?;
        if len == CONTROL_LEN { Control::decode(bytes) } else { None }
    }

    /// Whether another control message may be sent: the memory of the oldest must have been sent.
    pub(crate) fn may_control(&self) -> bool {
        self.controls_sent - self.controls_done < CONTROLS
    }

    pub(crate) fn send_control<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        control: Control,
    ) -> Result<(), DemoError> {
        let offset = self.controls_sent % CONTROLS * CONTROL_LEN;
        let _ = self.controls.memory.write(offset, &control.encode());
        self.controls_sent += 1;
        let segment = self.controls.triplet(offset, CONTROL_LEN);
        adapter
            .ep_post_send(self.ep, &[segment], COOKIE_CONTROL, CompletionFlags::empty())
            .in_call("ep_post_send")
    }

    /// The buffer that message `number` is sent from; it was used by number − WINDOW before.
    pub(crate) fn send_buffer(&self, number: u64) -> Option<DmaSlice> {
        self.sends.memory.slice(number as usize % WINDOW * MAX_MESSAGE, MAX_MESSAGE)
    }

    pub(crate) fn send<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        number: u64,
        len: usize,
    ) -> Result<(), DemoError> {
        let segment = self.sends.triplet(number as usize % WINDOW * MAX_MESSAGE, len);
        adapter
            .ep_post_send(self.ep, some(&segment), COOKIE_MESSAGE | number, CompletionFlags::empty())
            .in_call("ep_post_send")
    }

    /// This side's memory for RDMA transfer `number`.
    pub(crate) fn slot(&self, number: u64) -> Option<DmaSlice> {
        self.slots.memory.slice(number as usize % SLOTS * MAX_RDMA, MAX_RDMA)
    }

    pub(crate) fn rdma_write<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        number: u64,
        len: usize,
    ) -> Result<(), DemoError> {
        let (segment, remote) = self.rdma(number, len)?;
        adapter
            .ep_post_rdma_write(
                self.ep,
                some(&segment),
                COOKIE_RDMA | number,
                &remote,
                CompletionFlags::empty(),
            )
            .in_call("ep_post_rdma_write")
    }

    pub(crate) fn rdma_read<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        number: u64,
        len: usize,
    ) -> Result<(), DemoError> {
        let (segment, remote) = self.rdma(number, len)?;
        adapter
            .ep_post_rdma_read(
                self.ep,
                some(&segment),
                COOKIE_RDMA | number,
                &remote,
                CompletionFlags::empty(),
            )
            .in_call("ep_post_rdma_read")
    }

    fn rdma(&self, number: u64, len: usize) -> Result<(LmrTriplet, RmrTriplet), DemoError> {
        let offset = number as usize % SLOTS * MAX_RDMA;
        let window = self.window.ok_or(DemoError::Protocol { during: Operation::Connection })?;
        Ok((
            self.slots.triplet(offset, len),
            RmrTriplet::new(window.rmr_context, window.address + offset as u64, len as u64),
        ))
    }

    pub(crate) fn disconnect<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>) -> Result<(), DemoError> {
        adapter.ep_disconnect(self.ep, CloseFlags::Graceful).in_call("ep_disconnect")
    }

    /// Frees everything; the graceful close at the end is refused if anything was left.
    pub(crate) fn close<P: Platform>(self, adapter: &mut Adapter<'_, P>) -> Result<(), DemoError> {
        if let Some(psp) = self.psp {
            adapter.psp_free(psp).in_call("psp_free")?;
        }
        adapter.ep_free(self.ep).in_call("ep_free")?;
        for buffer in [self.receives, self.sends, self.controls, self.slots] {
            buffer.free(adapter)?;
        }
        for evd in [self.receive_evd, self.request_evd, self.connect_evd, self.cr_evd] {
            adapter.evd_free(evd).in_call("evd_free")?;
        }
        adapter.pz_free(self.pz).in_call("pz_free")?;
        adapter.ia_close(self.ia, CloseFlags::Graceful).in_call("ia_close")
    }
}

/// No segment for no bytes.
fn some(segment: &LmrTriplet) -> &[LmrTriplet] {
    if segment.segment_length == 0 { &[] } else { core::slice::from_ref(segment) }
}

fn dequeue<P: Platform>(adapter: &mut Adapter<'_, P>, evd: EvdHandle) -> Result<Option<Event>, DemoError> {
    match adapter.evd_dequeue(evd) {
        Ok(event) => Ok(Some(event)),
        Err(error) if is_empty(error) => Ok(None),
        Err(error) => Err(DemoError::Dat { call: "evd_dequeue", error }),
    }
}

fn is_empty(error: DatReturn) -> bool {
    error.is(dat_nostd::ReturnType::QueueEmpty)
}

//! The DAT side of a node: its buffers, what moves over its connection, and the small messages that keep both sides in step.

use apps::connection::{Buffer, Change, Connection, ConnectionConfig, LinkState};
use dat_nostd::{
    Adapter, ConnectionEvent, DmaSlice, DtoCompletion, DtoOperation, DtoStatus, EventData, LmrTriplet,
    MemPriv, Platform, RmrTriplet,
};
use driver_mlx::{Instant, Wake};

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
/// RDMA reads outstanding, each way.
const READS: u32 = 4;

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

/// A node's connection and its buffers.
pub(crate) struct Link {
    role: Role,
    connection: Connection,
    receives: Buffer,
    sends: Buffer,
    controls: Buffer,
    slots: Buffer,
    window: Option<Window>,
    controls_sent: usize,
    controls_done: usize,
}

impl Link {
    pub(crate) fn open<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        config: &Config,
    ) -> Result<Self, DemoError> {
        let connection = Connection::open(
            adapter,
            &ConnectionConfig {
                role: config.role,
                ia: "ib0",
                peer: config.peer,
                port: config.port,
                receives: RECEIVES,
                requests: REQUESTS,
                reads: READS,
            },
        )?;
        let mut buffer = |len, rights| Buffer::new(adapter, connection.ia, connection.pz, len, rights);
        let local = MemPriv::LOCAL_READ | MemPriv::LOCAL_WRITE;
        let receives = buffer(RECEIVES * MAX_MESSAGE, local)?;
        let sends = buffer(WINDOW * MAX_MESSAGE, local)?;
        let controls = buffer(CONTROLS * CONTROL_LEN, local)?;
        let rights = match config.role {
            Role::Server => MemPriv::ALL,
            Role::Client => local,
        };
        let slots = buffer(SLOTS * MAX_RDMA, rights)?;
        let mut link = Self {
            role: config.role,
            connection,
            receives,
            sends,
            controls,
            slots,
            window: None,
            controls_sent: 0,
            controls_done: 0,
        };
        link.post_all_receives(adapter)?;
        Ok(link)
    }

    fn post_all_receives<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>) -> Result<(), DemoError> {
        (0..RECEIVES).try_for_each(|buffer| self.repost(adapter, buffer))
    }

    pub(crate) fn state(&self) -> LinkState {
        self.connection.state()
    }

    pub(crate) fn last_failure(&self) -> Option<ConnectionEvent> {
        self.connection.last_failure()
    }

    /// Runs connection events; returns when to make the next attempt.
    pub(crate) fn poll<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        now: Instant,
    ) -> Result<Wake, DemoError> {
        let own = Window {
            rmr_context: self.slots.registered.rmr_context,
            address: self.slots.registered.registered_address,
        };
        loop {
            match self.connection.poll(adapter, &own.encode(), now)? {
                Change::None => return Ok(Wake::from(self.connection.retry_at())),
                Change::Established if self.role == Role::Client => {
                    let data = adapter.ep_private_data(self.connection.ep).in_call("ep_private_data")?;
                    let window =
                        Window::decode(data).ok_or(DemoError::Protocol { during: Operation::Connection })?;
                    self.window = Some(window);
                }
                Change::Established => {}
                Change::Reset => self.post_all_receives(adapter)?,
            }
        }
    }

    /// The next completion; flushed ones of an ended connection are passed over.
    pub(crate) fn completion<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        during: Operation,
    ) -> Result<Option<Done>, DemoError> {
        while let Some(event) = self.connection.completion(adapter)? {
            let EventData::Dto(dto) = event.data else { continue };
            // What was flushed has a reason, and that is reported elsewhere.
            if dto.status != DtoStatus::ErrFlushed {
                return self.interpret(&dto, during).map(Some);
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
        Ok(self.connection.post_recv(adapter, segment, buffer as u64)?)
    }

    pub(crate) fn received(&self, buffer: usize) -> Option<DmaSlice<'_>> {
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
        Ok(self.connection.post_send(adapter, segment, COOKIE_CONTROL)?)
    }

    /// The buffer that message `number` is sent from; it was used by number − WINDOW before.
    pub(crate) fn send_buffer(&self, number: u64) -> Option<DmaSlice<'_>> {
        self.sends.memory.slice(number as usize % WINDOW * MAX_MESSAGE, MAX_MESSAGE)
    }

    pub(crate) fn send<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        number: u64,
        len: usize,
    ) -> Result<(), DemoError> {
        let segment = self.sends.triplet(number as usize % WINDOW * MAX_MESSAGE, len);
        Ok(self.connection.post_send(adapter, segment, COOKIE_MESSAGE | number)?)
    }

    /// This side's memory for RDMA transfer `number`.
    pub(crate) fn slot(&self, number: u64) -> Option<DmaSlice<'_>> {
        self.slots.memory.slice(number as usize % SLOTS * MAX_RDMA, MAX_RDMA)
    }

    pub(crate) fn rdma_write<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        number: u64,
        len: usize,
    ) -> Result<(), DemoError> {
        let (segment, remote) = self.rdma(number, len)?;
        Ok(self.connection.post_write(adapter, segment, &remote, COOKIE_RDMA | number)?)
    }

    pub(crate) fn rdma_read<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        number: u64,
        len: usize,
    ) -> Result<(), DemoError> {
        let (segment, remote) = self.rdma(number, len)?;
        Ok(self.connection.post_read(adapter, segment, &remote, COOKIE_RDMA | number)?)
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
        Ok(self.connection.disconnect(adapter)?)
    }

    /// Frees everything; the graceful close at the end is refused if anything was left.
    pub(crate) fn close<P: Platform>(self, adapter: &mut Adapter<'_, P>) -> Result<(), DemoError> {
        Ok(self.connection.close(adapter, [self.receives, self.sends, self.controls, self.slots])?)
    }
}

//! The connection of a side, its buffers, posting.

use dat_nostd::{
    Adapter, DmaSlice, DtoOperation, DtoStatus, EventData, Instant, MemPriv, Platform, RmrTriplet,
};

use super::message::{MESSAGE_LEN, Offer};
use super::{Config, RpingError};
use crate::connection::{Buffer, Change, Connection, ConnectionConfig};

/// Receives posted, and messages that may be under way.
const RECEIVES: usize = 4;
const SENDS: usize = 8;
/// Bytes of a receive: more than a message, so that a longer one is seen as what it is.
const RECEIVE_LEN: usize = 64;
const REQUESTS: usize = SENDS + 8;
/// Bytes of each of the two large buffers.
pub(super) const BUFFER: usize = 64 << 10;

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
    pub(super) connection: Connection,
    receives: Buffer,
    sends: Buffer,
    /// What the client's peer reads, and what it writes; the server uses the second only.
    source: Buffer,
    sink: Buffer,
    sent: usize,
}

impl Link {
    pub(super) fn open<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        config: &Config,
    ) -> Result<Self, RpingError> {
        let connection = Connection::open(
            adapter,
            &ConnectionConfig {
                role: config.role,
                ia: config.ia,
                peer: config.peer,
                port: config.port,
                receives: RECEIVES,
                requests: REQUESTS,
                reads: 1,
            },
        )?;
        let mut buffer = |len, rights| Buffer::new(adapter, connection.ia, connection.pz, len, rights);
        let local = MemPriv::LOCAL_READ | MemPriv::LOCAL_WRITE;
        let receives = buffer(RECEIVES * RECEIVE_LEN, local)?;
        let sends = buffer(SENDS * MESSAGE_LEN, local)?;
        let source = buffer(BUFFER, local | MemPriv::REMOTE_READ)?;
        let sink = buffer(BUFFER, local | MemPriv::REMOTE_WRITE)?;
        let link = Self { connection, receives, sends, source, sink, sent: 0 };
        link.post_receives(adapter)?;
        Ok(link)
    }

    fn post_receives<P: Platform>(&self, adapter: &mut Adapter<'_, P>) -> Result<(), RpingError> {
        (0..RECEIVES).try_for_each(|buffer| self.repost(adapter, buffer))
    }

    fn repost<P: Platform>(&self, adapter: &mut Adapter<'_, P>, buffer: usize) -> Result<(), RpingError> {
        let segment = self.receives.triplet(buffer * RECEIVE_LEN, RECEIVE_LEN);
        Ok(self.connection.post_recv(adapter, segment, buffer as u64)?)
    }

    /// Runs connection events.
    pub(super) fn poll<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        now: Instant,
    ) -> Result<(), RpingError> {
        loop {
            match self.connection.poll(adapter, &[], now)? {
                Change::None => return Ok(()),
                Change::Established => {}
                Change::Reset => self.post_receives(adapter)?,
            }
        }
    }

    /// The next completion; flushed ones of an ended connection are passed over.
    pub(super) fn completion<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        iteration: u32,
    ) -> Result<Option<Done>, RpingError> {
        while let Some(event) = self.connection.completion(adapter)? {
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
        Ok(self.connection.post_send(adapter, self.sends.triplet(offset, MESSAGE_LEN), 0)?)
    }

    pub(super) fn offer_source<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        size: u32,
    ) -> Result<(), RpingError> {
        self.send(adapter, offer(&self.source, size))
    }

    pub(super) fn offer_sink<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        size: u32,
    ) -> Result<(), RpingError> {
        self.send(adapter, offer(&self.sink, size))
    }

    /// Says that the client may go on; the content does not matter.
    pub(super) fn go_ahead<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>) -> Result<(), RpingError> {
        self.send(adapter, [0; MESSAGE_LEN])
    }

    pub(super) fn source(&self) -> DmaSlice<'_> {
        self.source.memory.as_slice()
    }

    pub(super) fn sink(&self) -> DmaSlice<'_> {
        self.sink.memory.as_slice()
    }

    /// Reads what the peer offers into the sink.
    pub(super) fn rdma_read<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        offer: &Offer,
    ) -> Result<(), RpingError> {
        let len = offer.size as usize;
        let remote = RmrTriplet::new(offer.rkey, offer.address, len as u64);
        Ok(self.connection.post_read(adapter, self.sink.triplet(0, len), &remote, 0)?)
    }

    /// Writes the first `len` bytes of the sink where the peer offers room.
    pub(super) fn rdma_write<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        offer: &Offer,
        len: usize,
    ) -> Result<(), RpingError> {
        let remote = RmrTriplet::new(offer.rkey, offer.address, len as u64);
        Ok(self.connection.post_write(adapter, self.sink.triplet(0, len), &remote, 0)?)
    }

    pub(super) fn close<P: Platform>(self, adapter: &mut Adapter<'_, P>) -> Result<(), RpingError> {
        Ok(self.connection.close(adapter, [self.receives, self.sends, self.source, self.sink])?)
    }
}

fn offer(buffer: &Buffer, size: u32) -> [u8; MESSAGE_LEN] {
    let (address, rkey) = (buffer.registered.registered_address, buffer.registered.rmr_context);
    Offer { address, rkey, size }.encode()
}

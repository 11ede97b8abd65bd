//! The server: replies to requests, and offers parts of its images.

use super::message::{Name, PORT, Reply, Request, Status};
use crate::rds::{AppError, InCall, MAX_LEN, Work, close, receive, send};
use core::net::SocketAddr;
use core::ops::ControlFlow;
use dat_nostd::{Adapter, DmaBuffer, Instant, Platform};
use driver_mlx::Wake;
use rds_nostd::{Msg, RdmaCookie, RdmaFlags, Rds, RdsError, SocketHandle};

/// Clients with an offered part. The one that was served longest ago loses its part first.
const CLIENTS: usize = 16;
/// Requests handled in one call, so that the connections are polled in between.
const BURST: usize = 16;

/// An image in memory that the HCA can read.
#[derive(Debug)]
pub struct Image {
    name: Name,
    memory: DmaBuffer,
    size: usize,
    checksum: u32,
}

impl Image {
    /// Copies an image into the adapter's memory. An empty name stands for every name.
    ///
    /// # Errors
    /// [`AppError::Rds`]: the adapter has too little memory, or the image is empty.
    pub fn new<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        name: Name,
        bytes: &[u8],
    ) -> Result<Self, AppError> {
        // Keys address whole pages.
        let memory =
            adapter.dma_alloc(bytes.len(), 4096).map_err(RdsError::Dat).in_call("memory for the image")?;
        let written = memory.write(0, bytes).map_err(|_| RdsError::InvalidArgument);
        written.in_call("copy of the image")?;
        Ok(Self { name, memory, size: bytes.len(), checksum: crc32fast::hash(bytes) })
    }

    /// Bytes of the image.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// CRC-32 of the image.
    #[must_use]
    pub const fn checksum(&self) -> u32 {
        self.checksum
    }
}

impl Image {
    /// Returns the memory to the adapter.
    ///
    /// # Errors
    /// [`AppError::Rds`]: a failed device may still read it.
    pub fn free<P: Platform>(self, adapter: &mut Adapter<'_, P>) -> Result<(), AppError> {
        adapter
            .dma_free(self.memory)
            .map_err(|kept| RdsError::Dat(kept.reason))
            .in_call("memory of the image")
    }
}

/// Counters of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Requests for parts.
    pub parts: u64,
    /// Bytes of these parts.
    pub bytes: u64,
    /// Requests that named no image or no part of one.
    pub refused: u64,
    /// Messages that were no requests.
    pub malformed: u64,
}

/// A client's offered part.
#[derive(Clone, Copy, Debug)]
struct Offer {
    client: SocketAddr,
    cookie: RdmaCookie,
}

/// The server.
pub struct Server<'i> {
    images: &'i [Image],
    socket: SocketHandle,
    offers: [Option<Offer>; CLIENTS],
    next: usize,
    /// A reply without room in the send queue.
    waiting: Option<(SocketAddr, Reply)>,
    served: Served,
}

impl<'i> Server<'i> {
    /// Binds the server's port.
    ///
    /// # Errors
    /// [`AppError::Rds`].
    pub fn start<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        images: &'i [Image],
    ) -> Result<Self, AppError> {
        let socket = rds.bind(SocketAddr::new(adapter.address(), PORT)).in_call("bind")?;
        let (offers, served) = ([None; CLIENTS], Served::default());
        Ok(Self { images, socket, offers, next: 0, waiting: None, served })
    }

    /// Returns the counters.
    #[must_use]
    pub const fn served(&self) -> Served {
        self.served
    }

    /// Replies to a request.
    fn reply<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        client: SocketAddr,
        request: &Request,
    ) -> Reply {
        // A client that requests again reads no longer.
        self.release(adapter, rds, |offer| offer.client == client);
        let Request { tag, offset, len, name } = *request;
        let none = Reply { tag, size: 0, offset, cookie: 0, status: Status::NoImage, checksum: 0, len: 0 };
        let matches = |image: &&Image| name == Name::EMPTY || image.name == Name::EMPTY || image.name == name;
        let Some(image) = self.images.iter().find(matches) else {
            self.served.refused += 1;
            return none;
        };
        let reply =
            Reply { size: image.size as u64, checksum: image.checksum, status: Status::Ready, ..none };
        if len == 0 {
            return reply;
        }
        let part = usize::try_from(offset).ok().and_then(|offset| {
            let end = offset.checked_add(len as usize)?;
            image.memory.slice(offset, len as usize).filter(|_| end <= image.size)
        });
        let Some(part) = part else {
            self.served.refused += 1;
            return Reply { status: Status::OutOfRange, ..reply };
        };
        let offer = |rds: &mut Rds<'_>, adapter: &mut Adapter<'_, P>| {
            rds.get_mr_for_dest(adapter, self.socket, client, part, RdmaFlags::PEER_READS)
        };
        let Ok(cookie) = offer(rds, adapter) else { return Reply { status: Status::Busy, ..reply } };
        let index = self.offers.iter().position(Option::is_none).unwrap_or(self.next);
        self.next = (index + 1) % CLIENTS;
        let place = self.offers.get_mut(index);
        if let Some(old) = place.and_then(|place| place.replace(Offer { client, cookie })) {
            // It fails only for an offer that ended with a recovery of the device.
            let _ = rds.free_mr(adapter, self.socket, old.cookie);
        }
        self.served.parts += 1;
        self.served.bytes += u64::from(len);
        Reply { cookie: cookie.0, len, ..reply }
    }

    fn release<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        which: impl Fn(&Offer) -> bool,
    ) {
        for place in &mut self.offers {
            if let Some(offer) = place.take_if(|offer| which(offer)) {
                // As above.
                let _ = rds.free_mr(adapter, self.socket, offer.cookie);
            }
        }
    }
}

impl Work for Server<'_> {
    fn poll<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        buffer: &mut [u8; MAX_LEN],
        _: Instant,
    ) -> Result<crate::Status, AppError> {
        for _ in 0..BURST {
            if let Some((client, reply)) = self.waiting {
                // A client that takes no replies has a full queue of its own: the others are not kept waiting.
                let _ = send(adapter, rds, self.socket, Msg::to(&client, &reply.to_bytes()))?;
                self.waiting = None;
            }
            let Some(message) = receive(adapter, rds, self.socket, buffer)? else {
                return Ok(ControlFlow::Continue(Wake::Idle));
            };
            let bytes = buffer.get(..message.message_len).unwrap_or_default();
            match Request::parse(bytes) {
                // Port 0 belongs to pings.
                Ok(request) if message.from.port() != 0 => {
                    let reply = self.reply(adapter, rds, message.from, &request);
                    self.waiting = Some((message.from, reply));
                }
                _ => self.served.malformed += 1,
            }
        }
        Ok(ControlFlow::Continue(Wake::Now))
    }

    fn moved(&self) -> Option<u64> {
        None
    }

    fn close<P: Platform>(mut self, adapter: &mut Adapter<'_, P>, rds: &mut Rds<'_>) -> Result<(), AppError> {
        self.release(adapter, rds, |_| true);
        close(adapter, rds, self.socket).in_call("close")
    }
}

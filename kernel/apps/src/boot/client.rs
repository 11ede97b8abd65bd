//! The client: reads an image into memory that its caller allocates.

use super::message::{MAX_PART, Malformed, Name, PORT, Reply, Request, Status};
use super::settings::Settings;
use crate::rds::{AppError, InCall, MAX_LEN, Work, close, send};
use core::fmt;
use core::net::SocketAddr;
use core::ops::ControlFlow;
use core::time::Duration;
use dat_nostd::{Adapter, DmaBuffer, Instant, Platform};
use driver_mlx::Wake;
use rds_nostd::{
    Arrival, Control, MemoryHandle, Msg, MsgFlags, RdmaArgs, RdmaCookie, RdmaFlags, RdmaStatus, Rds,
    RdsError, SocketHandle,
};

/// Time after which a request is repeated: a server that restarted has lost it.
const REPEAT: Duration = Duration::from_secs(1);
/// Longest transfer of an image. A server may not hold a machine's start up for longer.
const LONGEST: Duration = Duration::from_secs(1800);

/// Reason why an image did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchError {
    /// The server did not answer.
    NoServer,
    /// The server stopped answering after this number of bytes.
    Stopped(u64),
    /// The transfer takes too long.
    TooSlow(u64),
    /// The server has no image of this name.
    NoImage(Name),
    /// The image has more bytes than the settings allow, or none.
    Size(u64),
    /// Too little memory for the image.
    NoMemory(u64),
    /// The image on the server has changed during the transfer.
    Changed,
    /// The checksum of the received bytes differs from the server's.
    Checksum {
        /// The server's.
        expected: u32,
        /// That of the bytes.
        found: u32,
    },
    /// The server's messages are not of this protocol.
    Malformed(Malformed),
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoServer => f.write_str("the server does not answer"),
            Self::Stopped(bytes) => write!(f, "the server stopped answering after {bytes} bytes"),
            Self::TooSlow(bytes) => {
                write!(f, "only {bytes} bytes arrived in {} minutes", LONGEST.as_secs() / 60)
            }
            Self::NoImage(name) => write!(f, "the server has no image `{}`", name.as_str()),
            Self::Size(bytes) => write!(f, "the image has {bytes} bytes, which limit= does not allow"),
            Self::NoMemory(bytes) => write!(f, "too little memory for an image of {bytes} bytes"),
            Self::Changed => f.write_str("the image on the server changed during the transfer"),
            Self::Checksum { expected, found } => {
                write!(f, "the image's checksum is {found:#010x}, not {expected:#010x}")
            }
            Self::Malformed(error) => write!(f, "the server sent {error}"),
        }
    }
}

impl core::error::Error for FetchError {}

/// Progress of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The server has not answered yet.
    Asking,
    /// Bytes that have arrived, and those of the image.
    Reading(u64, u64),
    /// The image is complete, and its checksum is right.
    Done,
    /// The transfer failed.
    Failed(FetchError),
}

/// The image as the server's first reply describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Described {
    size: u64,
    checksum: u32,
}

/// A read in progress.
#[derive(Clone, Copy, Debug)]
struct Reading {
    len: usize,
    token: u64,
}

/// Memory for an image.
pub trait Store {
    /// Allocates memory for an image. Returns false if there is too little.
    fn reserve(&mut self, bytes: usize) -> bool;

    /// The memory: as many bytes as were reserved.
    fn bytes(&mut self) -> &mut [u8];
}

/// A transfer of an image.
pub struct Client<'m, S> {
    name: Name,
    /// Time that the server may be silent.
    patience: Duration,
    /// Bytes of the largest image.
    max_bytes: u64,
    server: SocketAddr,
    socket: SocketHandle,
    /// Where parts arrive, and its registration, which a recovery of the device ends.
    landing: DmaBuffer,
    registration: Option<MemoryHandle>,
    store: &'m mut S,
    described: Option<Described>,
    /// Bytes of the image that have arrived.
    arrived: usize,
    hash: crc32fast::Hasher,
    reading: Option<Reading>,
    tag: u64,
    began: Instant,
    /// When the last request was sent, and when something arrived last.
    asked_at: Option<Instant>,
    moved_at: Instant,
    failed: Option<FetchError>,
}

impl<'m, S: Store> Client<'m, S> {
    /// Starts the transfer of the image `name` to `store`. The settings say from which server.
    ///
    /// # Errors
    /// [`AppError::Rds`].
    pub fn start<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        settings: &Settings<'_>,
        name: Name,
        store: &'m mut S,
    ) -> Result<Self, AppError> {
        let landing = adapter.dma_alloc(MAX_PART as usize, 4096).map_err(RdsError::Dat).in_call("memory")?;
        let socket = rds.bind(SocketAddr::new(adapter.address(), 0)).in_call("bind")?;
        let now = adapter.now();
        Ok(Self {
            name,
            patience: settings.patience,
            max_bytes: settings.max_bytes,
            server: SocketAddr::new(settings.server, PORT),
            socket,
            landing,
            registration: None,
            store,
            described: None,
            arrived: 0,
            hash: crc32fast::Hasher::new(),
            reading: None,
            tag: now.as_nanos(),
            began: now,
            asked_at: None,
            moved_at: now,
            failed: None,
        })
    }

    /// Goes on with the image `name` from the same server, after another is complete.
    pub fn fetch_next(&mut self, name: Name, store: &'m mut S, now: Instant) {
        (self.name, self.store) = (name, store);
        (self.described, self.arrived, self.reading, self.failed) = (None, 0, None, None);
        self.hash.reset();
        (self.began, self.moved_at, self.asked_at) = (now, now, None);
    }

    /// Returns the progress.
    #[must_use]
    pub fn progress(&self) -> Progress {
        match (self.failed, self.described) {
            (Some(error), _) => Progress::Failed(error),
            (None, None) => Progress::Asking,
            (None, Some(image)) if self.arrived as u64 == image.size => Progress::Done,
            (None, Some(image)) => Progress::Reading(self.arrived as u64, image.size),
        }
    }

    /// Bytes of the next part.
    fn part(&self) -> u32 {
        let left = self.described.map_or(0, |image| image.size.saturating_sub(self.arrived as u64));
        left.min(MAX_PART.into()) as u32
    }

    fn ask<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        now: Instant,
    ) -> Result<(), AppError> {
        self.tag += 1;
        self.asked_at = Some(now);
        let (tag, offset, name) = (self.tag, self.arrived as u64, self.name);
        let request = Request { tag, offset, len: self.part(), name };
        // Without room it is repeated like a lost one.
        send(adapter, rds, self.socket, Msg::to(&self.server, &request.to_bytes())).map(drop)
    }

    /// Handles the reply to the latest request.
    fn replied<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        reply: &Reply,
        now: Instant,
    ) -> Result<(), AppError> {
        let described = Described { size: reply.size, checksum: reply.checksum };
        match (reply.status, self.described) {
            (Status::Busy, _) => return Ok(()),
            (Status::NoImage, None) => return self.fail(FetchError::NoImage(self.name)),
            (Status::NoImage | Status::OutOfRange, _) => return self.fail(FetchError::Changed),
            (Status::Ready, Some(before)) if before != described => return self.fail(FetchError::Changed),
            (Status::Ready, _) => {}
        }
        self.moved_at = now;
        if self.described.is_none() {
            let size = usize::try_from(reply.size).ok();
            let size = size.filter(|size| *size > 0 && reply.size <= self.max_bytes);
            let Some(size) = size else { return self.fail(FetchError::Size(reply.size)) };
            if !self.store.reserve(size) {
                return self.fail(FetchError::NoMemory(reply.size));
            }
            self.described = Some(described);
            return self.ask(adapter, rds, now);
        }
        if reply.len == 0 || reply.len != self.part() || reply.offset != self.arrived as u64 {
            return self.fail(FetchError::Malformed(Malformed::Field("part")));
        }
        self.read(adapter, rds, RdmaCookie(reply.cookie), reply.len as usize)
    }

    fn read<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        cookie: RdmaCookie,
        len: usize,
    ) -> Result<(), AppError> {
        if self.registration.is_none() {
            // Without it each read is registered for itself.
            let all = self.landing.as_slice();
            self.registration = rds.register_memory(adapter, self.socket, self.server, all).ok();
        }
        let Some(local) = self.landing.slice(0, len) else { return Ok(()) };
        let rdma = Some(RdmaArgs {
            cookie,
            remote_offset: 0,
            remote_bytes: len as u64,
            local: &[local],
            flags: RdmaFlags::NOTIFY_ME | RdmaFlags::SILENT,
            user_token: self.tag,
        });
        let control = Control { rdma, ..Control::default() };
        if send(adapter, rds, self.socket, Msg::to(&self.server, &[]).with(&control))? {
            self.reading = Some(Reading { len, token: self.tag });
        }
        Ok(())
    }

    /// Takes the bytes of a read that succeeded.
    fn take(&mut self, len: usize, now: Instant) {
        let place = self.store.bytes().get_mut(self.arrived..self.arrived + len);
        let Some(place) = place else { return };
        if self.landing.read(0, place).is_ok() {
            self.hash.update(place);
            self.arrived += len;
            self.moved_at = now;
        }
    }

    fn fail(&mut self, error: FetchError) -> Result<(), AppError> {
        self.failed = Some(error);
        Ok(())
    }
}

impl<S: Store> Work for Client<'_, S> {
    fn poll<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        buffer: &mut [u8; MAX_LEN],
        now: Instant,
    ) -> Result<crate::Status, AppError> {
        if matches!(self.progress(), Progress::Done | Progress::Failed(_)) {
            return Ok(ControlFlow::Break(()));
        }
        let arrival = match rds.recvmsg(adapter, self.socket, buffer, MsgFlags::empty()) {
            Ok(arrival) => Some(arrival),
            Err(RdsError::Again) => None,
            Err(error) => return Err(AppError::Rds { call: "recvmsg", error }),
        };
        let is_news = arrival.is_some();
        match arrival {
            Some(Arrival::RdmaStatus(ended)) => {
                if let Some(reading) = self.reading.take_if(|reading| reading.token == ended.user_token) {
                    if ended.status == RdmaStatus::Success {
                        self.take(reading.len, now);
                    }
                    match (self.progress(), self.described) {
                        (Progress::Done, Some(Described { checksum: expected, .. })) => {
                            let found = self.hash.clone().finalize();
                            if found != expected {
                                self.fail(FetchError::Checksum { expected, found })?;
                            }
                        }
                        // After a failure the server may have restarted: the repetition waits for it.
                        _ if ended.status == RdmaStatus::Success => self.ask(adapter, rds, now)?,
                        _ => self.asked_at = Some(now),
                    }
                }
            }
            Some(Arrival::Message(message)) if message.from == self.server => {
                match Reply::parse(buffer.get(..message.message_len).unwrap_or_default()) {
                    Ok(reply) if reply.tag == self.tag && self.reading.is_none() => {
                        // Linux returns a cookie with the message only.
                        let cookie = message.cookie.map_or(reply.cookie, |cookie| cookie.0);
                        let reply = Reply { cookie, ..reply };
                        self.replied(adapter, rds, &reply, now)?;
                    }
                    // A reply to a request that was repeated.
                    Ok(_) => {}
                    Err(error) => self.fail(FetchError::Malformed(error))?,
                }
            }
            _ => {}
        }
        if now >= self.began + LONGEST {
            self.fail(FetchError::TooSlow(self.arrived as u64))?;
        } else if now >= self.moved_at + self.patience {
            let error = match self.described {
                None => FetchError::NoServer,
                Some(_) => FetchError::Stopped(self.arrived as u64),
            };
            self.fail(error)?;
        }
        if is_news || self.failed.is_some() {
            return Ok(ControlFlow::Continue(Wake::Now));
        }
        let give_up_at = self.moved_at + self.patience;
        if self.reading.is_some() {
            return Ok(ControlFlow::Continue(Wake::At(give_up_at)));
        }
        let ask_at = self.asked_at.map_or(now, |asked| asked + REPEAT);
        if now >= ask_at {
            self.ask(adapter, rds, now)?;
            return Ok(ControlFlow::Continue(Wake::Now));
        }
        Ok(ControlFlow::Continue(Wake::At(ask_at.min(give_up_at))))
    }

    fn moved(&self) -> Option<u64> {
        None
    }

    fn close<P: Platform>(self, adapter: &mut Adapter<'_, P>, rds: &mut Rds<'_>) -> Result<(), AppError> {
        // Ends the registration and the operations, too.
        close(adapter, rds, self.socket).in_call("close")?;
        adapter.dma_free(self.landing).map_err(|kept| RdsError::Dat(kept.reason)).in_call("memory")
    }
}

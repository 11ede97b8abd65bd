//! The connection: requests, their answers, and register accesses.

use super::wire::{Command, HEADER, Header, Payload, u32_at};
use crate::error::{Error, Result};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The region of BAR0.
pub(crate) const BAR0: u32 = 0;
/// The region of configuration space.
pub(crate) const CONFIG: u32 = 7;
/// Time limit for a reply: firmware commands are not among the requests.
const PATIENCE: Duration = Duration::from_secs(10);
/// Descriptors that a message may carry.
const MOST_DESCRIPTORS: usize = 8;

/// A connection to the server of one HCA.
#[derive(Debug)]
pub(crate) struct Client {
    socket: UnixStream,
    /// Number of the last request. Locked while a message is sent.
    last_id: Mutex<u16>,
    replies: Mutex<Replies>,
    /// A reply was stored, or no thread receives any longer.
    received: Condvar,
    /// The connection is unusable: registers read all ones.
    gone: Arc<AtomicBool>,
    bar_len: usize,
}

/// Replies that threads wait for. A server may pin memory for one thread while it serves others.
#[derive(Debug, Default)]
struct Replies {
    awaited: Vec<Awaited>,
    /// A waiting thread receives for all.
    is_received: bool,
}

/// A request without a reply, or with one that its thread has not taken.
#[derive(Debug)]
struct Awaited {
    id: u16,
    command: Command,
    reply: Option<(Header, Vec<u8>)>,
}

impl Replies {
    fn is_awaited(&self, id: u16) -> bool {
        self.awaited.iter().any(|awaited| awaited.id == id)
    }

    /// Registers a request whose reply a thread will wait for, under the first free number from `id` on. Returns that number.
    fn register(&mut self, mut id: u16, command: Command) -> u16 {
        // Posted writes may use up all numbers while the server pins memory.
        while self.is_awaited(id) {
            id = id.wrapping_add(1);
        }
        self.awaited.push(Awaited { id, command, reply: None });
        id
    }

    /// Takes the reply to a request. `None` if it has not been received.
    fn take(&mut self, id: u16) -> Option<(Header, Vec<u8>)> {
        let index = self.awaited.iter().position(|awaited| awaited.id == id && awaited.reply.is_some())?;
        self.awaited.swap_remove(index).reply
    }

    /// Stores a message if it is a reply that a thread waits for.
    fn store(&mut self, (header, payload): (Header, Vec<u8>)) {
        let awaited = self.awaited.iter_mut().find(|awaited| header.answers(awaited.id, awaited.command));
        if let Some(awaited) = awaited {
            awaited.reply = Some((header, payload));
        }
    }
}

impl Client {
    /// Connects and agrees on the protocol; `bar_len` is found later.
    pub(crate) fn connect(path: &Path) -> Result<Self> {
        let open = |error: io::Error| {
            let hint = match error.kind() {
                io::ErrorKind::NotFound => ": start the server (hca-serve), which makes it",
                io::ErrorKind::ConnectionRefused => ": nobody serves it any more",
                io::ErrorKind::PermissionDenied => ": ask its owner for access",
                _ => "",
            };
            Error::Open { path: path.into(), error, hint }
        };
        let socket = UnixStream::connect(path).map_err(open)?;
        let configured =
            socket.set_read_timeout(Some(PATIENCE)).and_then(|()| socket.set_write_timeout(Some(PATIENCE)));
        configured.map_err(open)?;
        let client = Self {
            socket,
            last_id: Mutex::default(),
            replies: Mutex::default(),
            received: Condvar::new(),
            gone: Arc::default(),
            bar_len: 0,
        };
        let capabilities = br#"{"capabilities":{"max_msg_fds":8,"max_data_xfer_size":1048576}}"#;
        // Major and minor version 0 and 1, 16 bits each.
        let version = Payload::default().u32(1 << 16).bytes(capabilities).bytes(&[0]);
        let answer = client.request(Command::Version, &version, &[])?;
        match u32_at(&answer, 0).map(|version| version & 0xffff) {
            Some(0) => Ok(client),
            major => Err(Error::Protocol { command: "VERSION", what: format!("major version {major:?}") }),
        }
    }

    /// Sets the size of BAR0.
    pub(crate) fn with_bar(self, bar_len: usize) -> Self {
        Self { bar_len, ..self }
    }

    pub(crate) fn bar_len(&self) -> usize {
        self.bar_len
    }

    fn sending(&self) -> MutexGuard<'_, u16> {
        self.last_id.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn replies(&self) -> MutexGuard<'_, Replies> {
        self.replies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the connection: the server resets the HCA and forgets its memory.
    pub(crate) fn close(&self) {
        self.gone.store(true, Ordering::Relaxed);
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }

    /// Returns whether the connection is unusable.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// The descriptor that keeps the connection open.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// The same, for what outlives the client.
    pub(crate) fn gone(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.gone)
    }

    /// The socket, to wait for its end.
    pub(crate) fn duplicate(&self) -> Option<UnixStream> {
        self.socket.try_clone().ok()
    }

    /// Sends a request and gives the answer's payload.
    pub(crate) fn request(
        &self,
        command: Command,
        payload: &Payload,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Vec<u8>> {
        let name = command.name();
        let end = Instant::now() + PATIENCE;
        let received = self
            .check(end)
            .and_then(|()| self.send(command, payload.as_slice(), descriptors, true))
            .and_then(|id| self.wait(id, end));
        let (header, reply) = received.map_err(|error| {
            self.gone.store(true, Ordering::Relaxed);
            Error::Silent { command: name, error }
        })?;
        match header.error() {
            None => Ok(reply),
            Some(errno) => {
                let error = io::Error::from_raw_os_error(errno as i32);
                let error = if errno == 0 { io::Error::other("it does not say why") } else { error };
                Err(Error::Refused { command: name, error })
            }
        }
    }

    /// Waits for the reply to a request. The first thread that waits receives for all.
    fn wait(&self, id: u16, end: Instant) -> io::Result<(Header, Vec<u8>)> {
        let mut replies = self.replies();
        loop {
            if let Some(reply) = replies.take(id) {
                return Ok(reply);
            }
            self.check(end)?;
            if replies.is_received {
                replies = self.received.wait(replies).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            replies.is_received = true;
            drop(replies);
            let message = self.receive(end);
            replies = self.replies();
            replies.is_received = false;
            if replies.awaited.len() > 1 {
                self.received.notify_all();
            }
            match message {
                Ok(message) => replies.store(message),
                Err(error) => {
                    self.gone.store(true, Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
    }

    /// Reads `N` bytes of a region.
    pub(crate) fn read<const N: usize>(&self, region: u32, offset: u64) -> Result<[u8; N]> {
        let payload = Payload::default().u64(offset).u32(region).u32(N as u32);
        let answer = self.request(Command::RegionRead, &payload, &[])?;
        // The request's own 16 bytes come first.
        let bytes = answer.get(16..).and_then(|bytes| bytes.first_chunk());
        bytes.copied().ok_or_else(|| Error::Protocol {
            command: "REGION_READ",
            what: format!("{} bytes instead of {}", answer.len(), 16 + N),
        })
    }

    /// Writes to a region and waits until it is done.
    pub(crate) fn write(&self, region: u32, offset: u64, bytes: &[u8]) -> Result<()> {
        let payload = Payload::default().u64(offset).u32(region).u32(bytes.len() as u32).bytes(bytes);
        self.request(Command::RegionWrite, &payload, &[]).map(drop)
    }

    /// A register; all ones where there is none, or no server.
    pub(crate) fn bar_read32(&self, offset: usize) -> u32 {
        if self.gone.load(Ordering::Relaxed) || offset.checked_add(4).is_none_or(|end| end > self.bar_len) {
            return u32::MAX;
        }
        self.read(BAR0, offset as u64).map_or(u32::MAX, u32::from_be_bytes)
    }

    /// Posts a write to registers: later requests come after it.
    pub(crate) fn bar_write<const N: usize>(&self, offset: usize, value: &[u8; N]) {
        if self.gone.load(Ordering::Relaxed) || offset.checked_add(N).is_none_or(|end| end > self.bar_len) {
            return;
        }
        let mut payload = [0; 24];
        payload[0..8].copy_from_slice(&(offset as u64).to_le_bytes());
        payload[8..12].copy_from_slice(&BAR0.to_le_bytes());
        payload[12..16].copy_from_slice(&(N as u32).to_le_bytes());
        payload[16..16 + N].copy_from_slice(value);
        if self.send(Command::RegionWrite, &payload[..16 + N], &[], false).is_err() {
            self.gone.store(true, Ordering::Relaxed);
        }
    }

    /// Sends a request. Returns its number.
    // Inlined, because each doorbell is a request: one without a reply needs little of this.
    #[inline]
    fn send(
        &self,
        command: Command,
        payload: &[u8],
        descriptors: &[BorrowedFd<'_>],
        wants_reply: bool,
    ) -> io::Result<u16> {
        let mut last_id = self.sending();
        *last_id = last_id.wrapping_add(1);
        if wants_reply {
            *last_id = self.replies().register(*last_id, command);
        }
        let id = *last_id;
        let header = Header::request(id, command, payload.len(), wants_reply).to_bytes();
        self.write_all(&[IoSlice::new(&header), IoSlice::new(payload)], descriptors)?;
        Ok(id)
    }

    /// Writes all of `parts`; the descriptors go with the first byte. The caller has locked sending.
    fn write_all(&self, parts: &[IoSlice<'_>], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::other("too many descriptors for one message"));
        }
        let mut sent = loop {
            match rustix::net::sendmsg(&self.socket, parts, &mut control, SendFlags::NOSIGNAL) {
                Err(rustix::io::Errno::INTR) => {}
                other => break other?,
            }
        };
        // The rest of a partial send follows without the descriptors.
        for part in parts {
            let mut rest = part.get(sent..).unwrap_or_default();
            sent = sent.saturating_sub(part.len());
            while !rest.is_empty() {
                match rustix::net::send(&self.socket, rest, SendFlags::NOSIGNAL) {
                    Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                    Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    /// Returns the next message of the server. Only one thread receives.
    fn receive(&self, end: Instant) -> io::Result<(Header, Vec<u8>)> {
        let mut bytes = [0; HEADER];
        self.read_exact(&mut bytes, end)?;
        let header = Header::from_bytes(&bytes);
        let Some(payload) = header.payload() else {
            return Err(io::Error::other("it sends a message whose size cannot be"));
        };
        let mut answer = vec![0; payload];
        self.read_exact(&mut answer, end)?;
        // The server needs no DMA by message, because it maps all memory of this process. Its
        // requests are refused.
        if header.wants_reply() {
            let refusal = header.refusal(libc::EOPNOTSUPP as u32).to_bytes();
            let _sending = self.sending();
            self.write_all(&[IoSlice::new(&refusal)], &[])?;
        }
        Ok((header, answer))
    }

    /// Fails if bytes are missing at `end`, even if some arrive now and then.
    fn read_exact(&self, mut to: &mut [u8], end: Instant) -> io::Result<()> {
        while !to.is_empty() {
            match rustix::net::recv(self.socket.as_fd(), &mut *to, RecvFlags::empty()) {
                Ok((0, _)) => return Err(io::Error::other("it has closed the connection")),
                Ok((count, _)) => to = to.get_mut(count..).unwrap_or_default(),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Err(late()),
                Err(error) => return Err(error.into()),
            }
            if !to.is_empty() {
                self.check(end)?;
            }
        }
        Ok(())
    }

    /// Fails if the connection has failed, or after `end`.
    fn check(&self, end: Instant) -> io::Result<()> {
        if self.is_gone() {
            Err(io::Error::other("the connection has failed"))
        } else if Instant::now() > end {
            Err(late())
        } else {
            Ok(())
        }
    }
}

fn late() -> io::Error {
    io::Error::other("no answer for 10 seconds")
}

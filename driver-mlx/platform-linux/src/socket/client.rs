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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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
    /// Locked for one request at a time, because a reply follows its request.
    stream: Mutex<Connection>,
    /// The connection is unusable: registers read all ones.
    gone: Arc<AtomicBool>,
    bar_len: usize,
}

#[derive(Debug)]
struct Connection {
    socket: UnixStream,
    next_id: u16,
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
        let stream = Mutex::new(Connection { socket, next_id: 0 });
        let client = Self { stream, gone: Arc::default(), bar_len: 0 };
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

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the connection: the server resets the HCA and forgets its memory.
    pub(crate) fn close(&self) {
        self.gone.store(true, Ordering::Relaxed);
        let _ = self.lock().socket.shutdown(std::net::Shutdown::Both);
    }

    /// Returns whether the connection is unusable.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// The descriptor that keeps the connection open.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.lock().socket.as_raw_fd()
    }

    /// The same, for what outlives the client.
    pub(crate) fn gone(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.gone)
    }

    /// The socket, to wait for its end.
    pub(crate) fn duplicate(&self) -> Option<UnixStream> {
        self.lock().socket.try_clone().ok()
    }

    /// Sends a request and gives the answer's payload.
    pub(crate) fn request(
        &self,
        command: Command,
        payload: &Payload,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Vec<u8>> {
        let name = command.name();
        let silent = |error: io::Error| {
            self.gone.store(true, Ordering::Relaxed);
            Error::Silent { command: name, error }
        };
        let mut connection = self.lock();
        let id = connection.send(command, payload.as_slice(), descriptors, true).map_err(silent)?;
        loop {
            let (header, answer) = connection.receive().map_err(silent)?;
            if header.answers(id, command) {
                return match header.error() {
                    None => Ok(answer),
                    Some(errno) => {
                        let error = io::Error::from_raw_os_error(errno as i32);
                        let error = if errno == 0 { io::Error::other("it does not say why") } else { error };
                        Err(Error::Refused { command: name, error })
                    }
                };
            }
            // The server needs no DMA by message, because it maps all memory of this process. Its
            // requests are refused.
            if header.wants_reply() {
                let refusal = header.refusal(libc::EOPNOTSUPP as u32).to_bytes();
                connection.write(&[IoSlice::new(&refusal)], &[]).map_err(silent)?;
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
        if self.lock().send(Command::RegionWrite, &payload[..16 + N], &[], false).is_err() {
            self.gone.store(true, Ordering::Relaxed);
        }
    }
}

impl Connection {
    /// Sends a request; gives its number.
    fn send(
        &mut self,
        command: Command,
        payload: &[u8],
        descriptors: &[BorrowedFd<'_>],
        wants_reply: bool,
    ) -> io::Result<u16> {
        self.next_id = self.next_id.wrapping_add(1);
        let header = Header::request(self.next_id, command, payload.len(), wants_reply).to_bytes();
        self.write(&[IoSlice::new(&header), IoSlice::new(payload)], descriptors)?;
        Ok(self.next_id)
    }

    /// Writes all of `parts`; the descriptors go with the first byte.
    fn write(&mut self, parts: &[IoSlice<'_>], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
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

    /// The next message.
    fn receive(&mut self) -> io::Result<(Header, Vec<u8>)> {
        let mut bytes = [0; HEADER];
        self.read_exact(&mut bytes)?;
        let header = Header::from_bytes(&bytes);
        let Some(payload) = header.payload() else {
            return Err(io::Error::other("it sends a message whose size cannot be"));
        };
        let mut answer = vec![0; payload];
        self.read_exact(&mut answer)?;
        Ok((header, answer))
    }

    fn read_exact(&mut self, mut to: &mut [u8]) -> io::Result<()> {
        while !to.is_empty() {
            match rustix::net::recv(self.socket.as_fd(), &mut *to, RecvFlags::empty()) {
                Ok((0, _)) => return Err(io::Error::other("it has closed the connection")),
                Ok((count, _)) => to = to.get_mut(count..).unwrap_or_default(),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Err(io::Error::other("no answer for 10 seconds")),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

//! A vfio-user client that can say anything.

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

pub const VERSION: u16 = 1;
pub const DMA_MAP: u16 = 2;
pub const DMA_UNMAP: u16 = 3;
pub const SET_IRQS: u16 = 8;
pub const REGION_READ: u16 = 9;
pub const REGION_WRITE: u16 = 10;
pub const DMA_READ: u16 = 11;
pub const DMA_WRITE: u16 = 12;
pub const RESET: u16 = 13;
pub const WRITE_MULTI: u16 = 15;
pub const NO_REPLY: u32 = 0x10;
pub const BAR0: u32 = 0;
pub const CONFIG: u32 = 7;

/// A message as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    pub id: u16,
    pub command: u16,
    pub flags: u32,
    pub error: u32,
    pub payload: Vec<u8>,
}

impl Reply {
    pub fn is_error(&self) -> bool {
        self.flags & 0x20 != 0
    }
}

/// A connection.
pub struct Client {
    pub stream: UnixStream,
    next: u16,
    /// Memory that the server does not get, and the device's address of it: it has to ask.
    pub private: Option<(File, u64)>,
}

/// A message's bytes.
pub fn message(id: u16, command: u16, flags: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16 + payload.len());
    bytes.extend(id.to_le_bytes());
    bytes.extend(command.to_le_bytes());
    bytes.extend((16 + payload.len() as u32).to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    bytes.extend(0u32.to_le_bytes());
    bytes.extend(payload);
    bytes
}

/// The front of a region access.
pub fn access(region: u32, offset: u64, count: usize) -> Vec<u8> {
    let mut bytes = offset.to_le_bytes().to_vec();
    bytes.extend(region.to_le_bytes());
    bytes.extend((count as u32).to_le_bytes());
    bytes
}

/// The payload of a map.
pub fn map(flags: u32, offset: u64, address: u64, size: u64) -> Vec<u8> {
    let mut bytes = 32u32.to_le_bytes().to_vec();
    bytes.extend(flags.to_le_bytes());
    for value in [offset, address, size] {
        bytes.extend(value.to_le_bytes());
    }
    bytes
}

/// The payload of SET_IRQS for MSI-X.
pub fn set_irqs(flags: u32, start: u32, count: u32) -> Vec<u8> {
    [20, flags, 2, start, count].iter().flat_map(|word: &u32| word.to_le_bytes()).collect()
}

impl Client {
    /// Connects and agrees on the version.
    pub fn new(path: &Path) -> Self {
        let mut client = Self::silent(path);
        let payload = b"\0\0\0\0{\"capabilities\":{\"max_msg_fds\":16,\"write_multiple\":true}}\0";
        let reply = client.ask(VERSION, payload);
        assert!(!reply.is_error(), "{reply:?}");
        client
    }

    /// Connects and says nothing.
    pub fn silent(path: &Path) -> Self {
        let stream = UnixStream::connect(path).expect("connects");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("time limit");
        Self::of(stream)
    }

    /// Over a connection that is there.
    pub fn of(stream: UnixStream) -> Self {
        Self { stream, next: 0, private: None }
    }

    pub fn post(&mut self, command: u16, flags: u32, payload: &[u8], descriptors: &[BorrowedFd<'_>]) -> u16 {
        self.try_post(command, flags, payload, descriptors).expect("sent")
    }

    pub fn try_post(
        &mut self,
        command: u16,
        flags: u32,
        payload: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<u16> {
        self.next = self.next.wrapping_add(1);
        let bytes = message(self.next, command, flags, payload);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        let sent = sendmsg(&self.stream, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
        (&self.stream).write_all(&bytes[sent..])?;
        Ok(self.next)
    }

    /// The next message from the server; what it asks of private memory is answered on the way.
    pub fn receive(&mut self) -> io::Result<Reply> {
        loop {
            let message = self.receive_any()?;
            if message.flags & 0xf != 0 || self.private.is_none() {
                return Ok(message);
            }
            self.answer(&message)?;
        }
    }

    /// Answers what the server asks of private memory, if it does.
    pub fn answer_all(&mut self) {
        self.stream.set_nonblocking(true).expect("nonblocking");
        while let Ok(1..) =
            rustix::net::recv(&self.stream, &mut [0; 1][..], rustix::net::RecvFlags::PEEK).map(|r| r.0)
        {
            self.stream.set_nonblocking(false).expect("blocking");
            let message = self.receive_any().expect("a whole message");
            assert_eq!(message.flags & 0xf, 0, "a reply that nobody waits for: {message:?}");
            self.answer(&message).expect("answered");
            self.stream.set_nonblocking(true).expect("nonblocking");
        }
        self.stream.set_nonblocking(false).expect("blocking");
    }

    fn answer(&mut self, asked: &Reply) -> io::Result<()> {
        let (file, base) = self.private.as_ref().expect("private memory");
        let word = |at: usize| u64::from_le_bytes(asked.payload[at..at + 8].try_into().expect("8 bytes"));
        let (address, count) = (word(0), word(8) as usize);
        let mut payload = asked.payload[..16].to_vec();
        match asked.command {
            DMA_READ => {
                payload.resize(16 + count, 0);
                file.read_exact_at(&mut payload[16..], address - base)?;
            }
            DMA_WRITE => file.write_all_at(&asked.payload[16..], address - base)?,
            other => panic!("the server asks {other}"),
        }
        self.stream.write_all(&message(asked.id, asked.command, 1, &payload))
    }

    fn receive_any(&mut self) -> io::Result<Reply> {
        let mut header = [0; 16];
        self.stream.read_exact(&mut header)?;
        let word =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let mut payload = vec![0; word(4) as usize - 16];
        self.stream.read_exact(&mut payload)?;
        Ok(Reply { id: half(0), command: half(2), flags: word(8), error: word(12), payload })
    }

    pub fn ask_with(&mut self, command: u16, payload: &[u8], descriptors: &[BorrowedFd<'_>]) -> Reply {
        self.try_ask(command, payload, descriptors).expect("answered")
    }

    pub fn try_ask(
        &mut self,
        command: u16,
        payload: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<Reply> {
        let id = self.try_post(command, 0, payload, descriptors)?;
        let reply = self.receive()?;
        assert_eq!((reply.id, reply.command, reply.flags & 0xf), (id, command, 1), "{reply:?}");
        Ok(reply)
    }

    pub fn ask(&mut self, command: u16, payload: &[u8]) -> Reply {
        self.ask_with(command, payload, &[])
    }

    pub fn read(&mut self, region: u32, offset: u64, len: usize) -> Vec<u8> {
        let reply = self.ask(REGION_READ, &access(region, offset, len));
        assert!(!reply.is_error(), "{reply:?}");
        assert_eq!(reply.payload.len(), 16 + len);
        reply.payload[16..].to_vec()
    }

    pub fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        let mut payload = access(region, offset, data.len());
        payload.extend(data);
        self.post(REGION_WRITE, NO_REPLY, &payload, &[]);
    }

    /// Maps a file; `address` is the device's.
    pub fn map(&mut self, file: impl AsFd, offset: u64, address: u64, size: u64) -> Reply {
        self.ask_with(DMA_MAP, &map(3, offset, address, size), &[file.as_fd()])
    }

    /// Whether the server still answers: the device's ids are as they should be.
    pub fn ids(&mut self) -> [u8; 4] {
        self.read(CONFIG, 0, 4).try_into().expect("four bytes")
    }
}

/// The ids of an HCA that works.
pub const IDS: [u8; 4] = [0xb3, 0x15, 0x17, 0x10];

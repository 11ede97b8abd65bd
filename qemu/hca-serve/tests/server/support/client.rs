//! A vfio-user client that can send any bytes.

use hca_serve::Stepped;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, sendmsg};
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Time limit of a reply.
const PATIENCE: Duration = Duration::from_secs(30);

/// VERSION payload of a client.
pub const HELLO: &[u8] = b"\0\0\0\0{\"capabilities\":{\"max_msg_fds\":16,\"write_multiple\":true}}\0";
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

/// A received message.
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

/// Connection to a server.
pub struct Client {
    pub stream: UnixStream,
    next: u16,
    /// Lender that reads the connection instead, because the server requests memory accesses.
    lender: Option<Lender>,
    /// Server that runs only when stepped.
    server: Option<Rc<RefCell<Stepped>>>,
}

/// Private memory that the server must request accesses to. A separate thread replies at any time,
/// as in QEMU, because the thread that drives the device may be waiting for the server.
struct Lender {
    replies: Receiver<Reply>,
    /// Locked while a message is written, because two threads write.
    writing: Arc<Mutex<()>>,
}

impl Lender {
    /// Serves accesses to `file`, which is at `base` for the device, over `stream`.
    fn start(stream: UnixStream, file: File, base: u64) -> Self {
        let (sender, replies) = mpsc::channel();
        let writing = Arc::new(Mutex::new(()));
        let turn = Arc::clone(&writing);
        std::thread::spawn(move || {
            // The thread exits when the connection or the client is closed.
            while let Ok(message) = receive(&stream) {
                if message.flags & 0xf != 0 {
                    if sender.send(message).is_err() {
                        return;
                    }
                    continue;
                }
                let answer = answer(&message, &file, base);
                let _turn = turn.lock().expect("not poisoned");
                if (&stream).write_all(&answer).is_err() {
                    return;
                }
            }
        });
        Self { replies, writing }
    }
}

/// Returns the reply to the server's access to `file`, which is at `base` for the device.
fn answer(asked: &Reply, file: &File, base: u64) -> Vec<u8> {
    let word = |at: usize| u64::from_le_bytes(asked.payload[at..at + 8].try_into().expect("8 bytes"));
    let (address, count) = (word(0), word(8) as usize);
    let mut payload = asked.payload[..16].to_vec();
    match asked.command {
        DMA_READ => {
            payload.resize(16 + count, 0);
            file.read_exact_at(&mut payload[16..], address - base).expect("inside");
        }
        DMA_WRITE => file.write_all_at(&asked.payload[16..], address - base).expect("inside"),
        other => panic!("the server asks {other}"),
    }
    message(asked.id, asked.command, 1, &payload)
}

/// Returns the next message of the server.
fn receive(mut stream: &UnixStream) -> io::Result<Reply> {
    let mut header = [0; 16];
    stream.read_exact(&mut header)?;
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let mut payload = vec![0; word(4) as usize - 16];
    stream.read_exact(&mut payload)?;
    Ok(Reply { id: half(0), command: half(2), flags: word(8), error: word(12), payload })
}

/// Returns whether bytes or a close are pending.
fn readable(stream: &UnixStream) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    recv(stream, &mut [0; 1][..], flags) != Err(Errno::AGAIN)
}

/// Returns a message's bytes.
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

/// Returns the header of a region access.
pub fn access(region: u32, offset: u64, count: usize) -> Vec<u8> {
    let mut bytes = offset.to_le_bytes().to_vec();
    bytes.extend(region.to_le_bytes());
    bytes.extend((count as u32).to_le_bytes());
    bytes
}

/// Returns the payload of DMA_MAP.
pub fn map(flags: u32, offset: u64, address: u64, size: u64) -> Vec<u8> {
    let mut bytes = 32u32.to_le_bytes().to_vec();
    bytes.extend(flags.to_le_bytes());
    for value in [offset, address, size] {
        bytes.extend(value.to_le_bytes());
    }
    bytes
}

/// Returns the payload of SET_IRQS for MSI-X.
pub fn set_irqs(flags: u32, start: u32, count: u32) -> Vec<u8> {
    [20, flags, 2, start, count].iter().flat_map(|word: &u32| word.to_le_bytes()).collect()
}

impl Client {
    /// Connects and negotiates the version.
    pub fn new(path: &Path) -> Self {
        let mut client = Self::silent(path);
        client.agree();
        client
    }

    fn agree(&mut self) {
        let reply = self.ask(VERSION, HELLO);
        assert!(!reply.is_error(), "{reply:?}");
    }

    /// Connects without sending a message.
    pub fn silent(path: &Path) -> Self {
        let stream = UnixStream::connect(path).expect("connects");
        stream.set_read_timeout(Some(PATIENCE)).expect("time limit");
        Self::of(stream)
    }

    /// Connects to a stepped server, which advances while this client waits.
    pub fn stepping(server: &Rc<RefCell<Stepped>>, index: usize) -> Self {
        let path = server.borrow().sockets()[index].clone();
        let server = Some(Rc::clone(server));
        let mut client = Self { server, ..Self::silent(&path) };
        client.agree();
        client
    }

    /// Advances a stepped server. Returns its clock.
    pub fn step(&self) -> Option<Duration> {
        self.server.as_ref()?.borrow_mut().step();
        self.time()
    }

    /// Returns the clock of a server with counted time.
    pub fn time(&self) -> Option<Duration> {
        self.server.as_ref().map(|server| server.borrow().time())
    }

    /// Creates a client on an existing connection.
    pub fn of(stream: UnixStream) -> Self {
        Self { stream, next: 0, lender: None, server: None }
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
        let _turn = self.lender.as_ref().map(|lender| lender.writing.lock().expect("not poisoned"));
        let sent = sendmsg(&self.stream, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
        (&self.stream).write_all(&bytes[sent..])?;
        Ok(self.next)
    }

    /// Makes `file`, which is at `base` for the device, private memory: the server must request its
    /// accesses.
    pub fn lend(&mut self, file: File, base: u64) {
        let stream = self.stream.try_clone().expect("descriptor");
        stream.set_read_timeout(None).expect("no time limit");
        self.lender = Some(Lender::start(stream, file, base));
    }

    /// Returns the next message of the server, except those for the lender.
    pub fn receive(&mut self) -> io::Result<Reply> {
        // The first byte of a message means that its length is available, because messages are sent
        // in one write.
        while self.server.is_some() && !readable(&self.stream) {
            self.step();
        }
        match &self.lender {
            None => receive(&self.stream),
            Some(lender) => lender.replies.recv_timeout(PATIENCE).map_err(io::Error::other),
        }
    }

    /// Returns the next message of the server, if one is available.
    pub fn request(&mut self) -> Option<Reply> {
        readable(&self.stream).then(|| receive(&self.stream).expect("a message"))
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

    /// Maps a file at the device address `address`.
    pub fn map(&mut self, file: impl AsFd, offset: u64, address: u64, size: u64) -> Reply {
        self.ask_with(DMA_MAP, &map(3, offset, address, size), &[file.as_fd()])
    }

    /// Returns the device's ids, which shows that the server replies.
    pub fn ids(&mut self) -> [u8; 4] {
        self.read(CONFIG, 0, 4).try_into().expect("four bytes")
    }
}

/// Ids of a working HCA.
pub const IDS: [u8; 4] = [0xb3, 0x15, 0x17, 0x10];

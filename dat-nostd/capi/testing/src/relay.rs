//! A relay between a program and an HCA's server, which withholds a reply.

use crate::address;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

/// Bytes of a message's header.
const HEADER: usize = 16;
/// Descriptors in one message.
const DESCRIPTORS: usize = 8;

/// A request about memory of the program's own: its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Request {
    /// DMA_MAP, by which an emulated HCA's memory is pinned.
    Pin = 2,
    /// DMA_UNMAP.
    Unpin = 3,
}

/// A relay for one connection. The first reply to a request of one kind is withheld; all else passes.
pub struct Relay {
    path: PathBuf,
    withheld: Receiver<Box<dyn FnOnce() + Send>>,
    counts: Arc<Mutex<Counts>>,
}

/// Requests about memory of the program's own that have passed.
#[derive(Default)]
struct Counts {
    pins: usize,
    unpins: usize,
    /// Number of the request whose reply is withheld.
    withheld: Option<[u8; 2]>,
}

impl Relay {
    pub(crate) fn new(server: &Path, path: PathBuf, withheld: Request) -> Self {
        let listener = UnixListener::bind(&path).expect("bound");
        let to_server = UnixStream::connect(server).expect("connected");
        let (sender, receiver) = channel();
        let counts = Arc::new(Mutex::new(Counts::default()));
        let shared = Arc::clone(&counts);
        thread::spawn(move || {
            let (program, _) = listener.accept().expect("accepted");
            let clone = |stream: &UnixStream| stream.try_clone().expect("a descriptor");
            let (replies, to_program) = (clone(&to_server), clone(&program));
            let counts = Arc::clone(&shared);
            thread::spawn(move || relay_replies(replies, to_program, &counts, &sender));
            relay_requests(&program, &to_server, withheld, &shared);
            let _ = to_server.shutdown(std::net::Shutdown::Both);
        });
        Self { path, withheld: receiver, counts }
    }

    /// The IA name of the HCA behind it, whose address is that of this index.
    pub fn name(&self, index: usize) -> String {
        format!("{}@{}", self.path.display(), address(index))
    }

    /// Waits until the reply is withheld. The program gets it by the returned function.
    pub fn wait(&self) -> impl FnOnce() + use<> {
        self.withheld.recv().expect("a reply")
    }

    /// Returns whether the program has pinned memory, and has unpinned it as often.
    pub fn is_balanced(&self) -> bool {
        let counts = lock(&self.counts);
        counts.pins > 0 && counts.pins == counts.unpins
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().expect("no thread panicked")
}

/// Returns the bytes of a header and its payload.
fn size_of(header: [u8; HEADER]) -> usize {
    u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize
}

/// Passes requests on, with their descriptors, until the program ends.
fn relay_requests(program: &UnixStream, server: &UnixStream, withheld: Request, counts: &Mutex<Counts>) {
    let mut header = [0; HEADER];
    while let Some(descriptors) = receive(program, &mut header) {
        let mut message = header.to_vec();
        message.resize(size_of(header), 0);
        let mut program = program;
        if program.read_exact(&mut message[HEADER..]).is_err() {
            return;
        }
        // The flag of memory that is reached by its file: the DMA region is not.
        let is_own = message.get(HEADER + 4).is_some_and(|flags| flags & 8 != 0);
        let request = match message[2] {
            2 if is_own => Some(Request::Pin),
            3 => Some(Request::Unpin),
            _ => None,
        };
        if let Some(request) = request {
            let mut counts = lock(counts);
            match request {
                Request::Pin => counts.pins += 1,
                Request::Unpin => counts.unpins += 1,
            }
            if request == withheld && counts.withheld.is_none() {
                counts.withheld = Some([header[0], header[1]]);
            }
        }
        send(server, &message, &descriptors);
    }
}

/// Receives a header, and the descriptors of its message. `None` at the end.
fn receive(program: &UnixStream, header: &mut [u8; HEADER]) -> Option<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(header)];
    let received = recvmsg(program, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC).ok()?;
    let rights = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    let descriptors = rights.flatten().collect();
    let mut program = program;
    (received.bytes > 0).then_some(())?;
    program.read_exact(&mut header[received.bytes..]).ok()?;
    Some(descriptors)
}

fn send(server: &UnixStream, message: &[u8], descriptors: &[OwnedFd]) {
    let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(descriptors.is_empty() || control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let sent = sendmsg(server, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL);
    let mut server = server;
    let rest = sent.map_or(&[][..], |sent| &message[sent..]);
    let _ = server.write_all(rest);
}

/// Passes replies on, except for the withheld one, until the server ends.
fn relay_replies(
    mut server: UnixStream,
    program: UnixStream,
    counts: &Mutex<Counts>,
    withheld: &Sender<Box<dyn FnOnce() + Send>>,
) {
    let program = Arc::new(Mutex::new(program));
    let mut header = [0; HEADER];
    let mut is_withheld = false;
    while server.read_exact(&mut header).is_ok() {
        let mut message = header.to_vec();
        message.resize(size_of(header), 0);
        if server.read_exact(&mut message[HEADER..]).is_err() {
            break;
        }
        if !is_withheld && lock(counts).withheld == Some([header[0], header[1]]) {
            is_withheld = true;
            let program = Arc::clone(&program);
            let release = move || lock(&program).write_all(&message).expect("written");
            withheld.send(Box::new(release)).expect("the test waits");
        } else if lock(&program).write_all(&message).is_err() {
            break;
        }
    }
    let _ = lock(&program).shutdown(std::net::Shutdown::Both);
}

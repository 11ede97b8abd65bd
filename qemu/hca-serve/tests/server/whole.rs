//! A client that sends every message of the protocol with every kind of mistake. Each command gets
//! payloads of every length, edge values in each word, and wrong sizes. Descriptors of every kind
//! are sent in place of some, none or too many. The server runs step by step, so that each
//! message's work is metered.

use crate::support::client::{
    BAR0, CONFIG, Client, DMA_MAP, DMA_UNMAP, HELLO, IDS, REGION_READ, REGION_WRITE, SET_IRQS, VERSION,
    WRITE_MULTI, access, map, message, set_irqs,
};
use crate::support::guest::DEVICE_BASE;
use crate::support::{Folder, memory, quiet};
use hca_serve::{Options, Stepped};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::cell::RefCell;
use std::fs::File;
use std::io::{ErrorKind, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

/// Limit of the cost of a message, including a new connection after it.
const MOST: Duration = Duration::from_millis(1);
/// Steps within which a reply must arrive.
const STEPS: usize = 40;

/// Commands, including undefined ones and those that only the server sends.
const COMMANDS: std::ops::RangeInclusive<u16> = 0..=20;

/// Returns a well-formed payload.
fn sound(command: u16) -> Vec<u8> {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
    match command {
        VERSION => HELLO.to_vec(),
        DMA_MAP => map(3, 0, DEVICE_BASE, 0x4000),
        // File I/O, and the removal of its memory.
        11 => map(0xb, 0, DEVICE_BASE, 0x4000),
        DMA_UNMAP => map(0, DEVICE_BASE, 0x4000, 0)[..24].to_vec(),
        4..=7 => words(&[32, 0, 2, 0]),
        SET_IRQS => set_irqs(0x24, 0, 2),
        REGION_READ => access(BAR0, 0x10, 64),
        REGION_WRITE => [access(CONFIG, 0x40, 8), vec![0xff; 8]].concat(),
        WRITE_MULTI => {
            let one = [access(BAR0, 0x10, 4), vec![7; 8]].concat();
            [&3u64.to_le_bytes()[..], &one, &one, &one].concat()
        }
        _ => vec![0; 24],
    }
}

/// Returns a descriptor of every kind.
fn descriptors() -> Vec<OwnedFd> {
    let full = eventfd(0, EventfdFlags::empty()).expect("eventfd");
    rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).expect("filled");
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).expect("pipe");
    while rustix::io::write(&writer, &[0; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).expect("blocking");
    let empty = memory(0).into();
    let open = |path: &str| OwnedFd::from(File::open(path).expect("opens"));
    let (socket, _) = std::os::unix::net::UnixStream::pair().expect("pair");
    let dead = rustix::pipe::pipe().expect("pipe").1;
    let long = OwnedFd::from(memory(0x8000));
    let event = eventfd(0, EventfdFlags::NONBLOCK).expect("eventfd");
    vec![
        long,
        event,
        full,
        writer,
        reader,
        dead,
        empty,
        open("/"),
        open("/dev/zero"),
        open("/proc/self/mem"),
        socket.into(),
    ]
}

/// Outcome of a message.
#[derive(Debug, PartialEq)]
enum Fate {
    Answered { error: bool },
    Closed,
    Nothing,
}

struct Talk {
    server: Rc<RefCell<Stepped>>,
    client: Option<Client>,
    answered: u32,
    refused: u32,
    closed: u32,
}

impl Talk {
    fn new(file_io: bool) -> (Folder, Self) {
        let folder = Folder::new();
        let server = Stepped::new(Options { file_io, ..quiet(&folder, 1) }).expect("served");
        let server = Rc::new(RefCell::new(server));
        (folder, Self { server, client: None, answered: 0, refused: 0, closed: 0 })
    }

    /// Sends bytes with descriptors and waits for the reply to `id`.
    fn say(&mut self, id: u16, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Fate {
        let before = self.server.borrow().worked();
        let client = self.client.get_or_insert_with(|| Client::stepping(&self.server, 0));
        client.stream.set_nonblocking(true).expect("nonblocking");
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        sendmsg(&client.stream, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL).expect("sent");
        let mut fate = Fate::Nothing;
        let mut answer = vec![0; 1 << 17];
        for _ in 0..STEPS {
            self.server.borrow_mut().step();
            match (&client.stream).read(&mut answer) {
                Ok(0) => fate = Fate::Closed,
                Ok(_) if answer[..2] == id.to_le_bytes() => {
                    fate = Fate::Answered { error: answer[8] & 0x20 != 0 }
                }
                Ok(_) => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(_) => fate = Fate::Closed,
            }
            break;
        }
        match fate {
            Fate::Answered { error } => {
                self.answered += 1;
                self.refused += u32::from(error);
            }
            Fate::Closed => {
                self.closed += 1;
                self.client = None;
            }
            Fate::Nothing => {}
        }
        let cost = self.server.borrow().worked() - before;
        assert!(cost < MOST, "{cost:?} for {bytes:02x?}");
        fate
    }

    /// Sends a message of correct size, which must get a reply or close the connection.
    fn tell(&mut self, command: u16, payload: &[u8], descriptors: &[BorrowedFd<'_>]) -> Fate {
        let fate = self.say(77, &message(77, command, 0, payload), descriptors);
        assert_ne!(fate, Fate::Nothing, "{command} {payload:02x?}");
        fate
    }

    /// Checks that the device is available, at the latest to the next client.
    fn device_is_there(&mut self) {
        self.client = None;
        let mut client = Client::stepping(&self.server, 0);
        assert_eq!(client.ids(), IDS);
    }
}

fn through(file_io: bool) {
    let (_folder, mut talk) = Talk::new(file_io);
    let kinds = descriptors();
    for number in COMMANDS {
        // The server's own command number also selects a second kind of map.
        for command in if number == 11 { vec![DMA_MAP, 11] } else { vec![number] } {
            let payload = sound(number);
            for len in 0..=payload.len() + 9 {
                let mut cut = payload.clone();
                cut.resize(len, 0xa5);
                talk.tell(command, &cut, &[]);
            }
            for (word, edge) in (0..payload.len() / 4).flat_map(|word| {
                [0, 1, 8, 0xfff, 0x7fff_ffff, 0x8000_0000, u32::MAX].map(|edge| (word, edge))
            }) {
                let mut bent = payload.clone();
                bent[4 * word..4 * word + 4].copy_from_slice(&edge.to_le_bytes());
                talk.tell(command, &bent, &[kinds[0].as_fd()]);
            }
            for kind in &kinds {
                for count in [1, 2, 16, 20] {
                    talk.tell(command, &payload, &vec![kind.as_fd(); count]);
                }
            }
            for flags in [0x10, 1, 0x21, 0x2, 0xffff_ffff] {
                talk.say(78, &message(78, command, flags, &payload), &[kinds[1].as_fd()]);
            }
            for size in [0u32, 1, 15, 16, 17, 1 << 16, (1 << 16) + 33, 64 << 20, (64 << 20) + 1, u32::MAX] {
                let mut bytes = message(79, command, 0, &payload);
                bytes[4..8].copy_from_slice(&size.to_le_bytes());
                talk.say(79, &bytes, &[]);
                // The rest of the message is never sent.
                talk.device_is_there();
            }
        }
    }
    // Files of guest memory that are truncated while the device uses them.
    for flags in [3, 0xb] {
        let file = memory(0x4000);
        talk.tell(DMA_MAP, &map(flags, 0, DEVICE_BASE, 0x4000), &[file.as_fd()]);
        file.set_len(0).expect("truncated");
        talk.tell(DMA_UNMAP, &sound(DMA_UNMAP), &[]);
    }
    talk.device_is_there();
    println!(
        "{} answered, {} of them refused; {} connections closed",
        talk.answered, talk.refused, talk.closed
    );
    assert!(talk.refused > 1000 && talk.answered - talk.refused > 200 && talk.closed > 20);
}

#[test]
fn every_command_in_every_wrong_form() {
    through(false);
}

#[test]
fn every_command_in_every_wrong_form_with_file_io() {
    through(true);
}

//! The receiver against a reference receiver: any bytes of any length mean the same to both.
//!
//! Each frame is taken twice: by the library and by the reference.

use std::vec::Vec;

use dat_nostd::ReceiveDto;
use reference::cases::{self, Random};
use reference::rds::{self, Fate, Fault, Meaning, Receiver};

use crate::ids::{ConnectionId, SocketHandle};
use crate::protocol::testing::{Bench, CONFIG, ip};
use crate::reason::DownReason;
use crate::wire::{FRAGMENT_LEN, FRAME_LEN, HEADER_LEN, Header};

/// The port that a socket is bound to.
const BOUND: u16 = 4000;
/// Lengths of frames that are tried: all that there can be, and some that no receive has room for.
const LENGTHS: usize = FRAME_LEN + 64;
/// Bytes that a reader has room for.
const BUFFER: usize = 6000;

/// A message that was read: bytes copied, its length, its sender's port, and the cookie with it.
type Read = (usize, usize, u16, Option<(u32, u32)>);

/// Effects of a frame, as far as a receiver can show them.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    broken: Option<DownReason>,
    acknowledgements: u64,
    maps: u64,
    bad_maps: u64,
    pings: u64,
    old: u64,
    too_long: u64,
    no_socket: u64,
    acknowledgement_wanted: bool,
    /// The number that the receiver acknowledges, if a message is complete.
    acknowledges: Option<u64>,
    /// The number that it expects.
    next: u64,
    /// Fragments of the message that has begun.
    begun: Option<u16>,
    read: Option<Read>,
}

/// The library's receiver.
struct Library {
    bench: Bench,
    socket: SocketHandle,
    id: ConnectionId,
}

impl Library {
    fn new() -> Self {
        // Few frames: a message of eleven fragments is too long.
        let mut bench = Bench::new(CONFIG, 40, 1);
        let socket = bench.socket(ip(1), BOUND);
        let id = bench.up(2);
        Self { bench, socket, id }
    }

    fn longest(&self) -> u32 {
        self.bench.protocol.limits.longest_received as u32
    }

    /// Takes a frame of `length` bytes. Memory holds all of `header`, also where fewer bytes
    /// arrive.
    fn receive(&mut self, header: &[u8; HEADER_LEN], length: usize) -> Outcome {
        let Self { bench, socket, id } = self;
        assert!(bench.refill(*id) > 0, "there is a receive for it");
        let before = bench.protocol.counters;
        let rx = &mut bench.protocol.connections.at_mut(*id).rx;
        // A number that no message has.
        (rx.ack_wanted, rx.ack_value) = (false, 0x5555_aaaa_5555_aaaa);
        let frame = bench.oldest(*id).expect("posted");
        let arrival = bench.arrival(*id, &Header::acknowledgement(0), 0).expect("posted");
        bench.protocol.frames.write_header_bytes(frame, header);
        let arrival = ReceiveDto { length: length as u32, ..arrival };
        bench.protocol.arrived(arrival, core::iter::empty(), bench.now);
        let mut buffer = [0; BUFFER];
        let read = bench.receive(*socket, &mut buffer).ok().map(|message| {
            let cookie = message.cookie.map(|cookie| (cookie.rkey(), cookie.offset()));
            (message.len, message.message_len, message.from.port(), cookie)
        });
        assert!(bench.protocol.take_message(*socket, &mut buffer).is_err(), "one frame ends one message");
        bench.protocol.relieve(usize::from(socket.slot));
        let after = &bench.protocol.counters;
        let connection = bench.protocol.connection(*id);
        let begun = connection.rx.partial.map(|message| {
            bench.protocol.frames.message(message).frames + u16::from(connection.rx.discarded)
        });
        let broken = connection.reconnect.broken_by.get();
        let outcome = Outcome {
            broken,
            acknowledgements: after.ack_received - before.ack_received,
            maps: after.cong_update_received - before.cong_update_received,
            bad_maps: after.recv_bad_map - before.recv_bad_map,
            pings: after.recv_ping - before.recv_ping,
            old: after.recv_drop_old_seq - before.recv_drop_old_seq,
            too_long: after.recv_drop_too_long - before.recv_drop_too_long,
            no_socket: after.recv_drop_no_sock - before.recv_drop_no_sock,
            acknowledgement_wanted: connection.rx.ack_wanted,
            acknowledges: Some(connection.rx.ack_value).filter(|&value| value != 0x5555_aaaa_5555_aaaa),
            next: connection.peer.next_rx,
            begun,
            read,
        };
        if let Some(reason) = broken {
            bench.down(*id, reason);
            let again = bench.up(2);
            assert_eq!(again, *id);
        }
        outcome
    }

    /// The connection is made anew, so that nothing has begun.
    fn reconnect(&mut self) {
        self.bench.down(self.id, DownReason::Disconnected);
        assert_eq!(self.bench.up(2), self.id);
    }
}

/// The same by the reference.
fn expected(receiver: &mut Receiver, frame: &[u8]) -> Outcome {
    let meaning = receiver.receive(frame);
    let mut outcome = Outcome::default();
    match meaning {
        Err(fault) => {
            outcome.broken = Some(match fault {
                Fault::FrameLength => DownReason::FrameLength,
                Fault::Checksum => DownReason::BadChecksum,
                Fault::AcknowledgementPayload => DownReason::AcknowledgementPayload,
                Fault::MessageLength => DownReason::MessageLength,
                Fault::FragmentLength => DownReason::FragmentLength,
                Fault::FragmentMismatch => DownReason::FragmentMismatch,
            });
        }
        Ok(Meaning::Acknowledgement) => outcome.acknowledgements = 1,
        Ok(Meaning::Map { whole }) => outcome.maps = u64::from(whole),
        Ok(Meaning::BadMap) => outcome.bad_maps = 1,
        Ok(Meaning::Part(_)) => {}
        Ok(Meaning::Whole(message)) => {
            let first = message.first;
            outcome.acknowledges = Some(first.sequence);
            outcome.acknowledgement_wanted = first.flags & rds::flags::ACK_REQUIRED != 0;
            match message.fate {
                Fate::Old => outcome.old = 1,
                Fate::TooLong => outcome.too_long = 1,
                Fate::Ping => outcome.pings = 1,
                Fate::Nothing => outcome.bad_maps = 1,
                Fate::Probe => {}
                Fate::Deliver if first.dport == BOUND => {
                    let (len, cookie) = (first.len as usize, rds::offered(&first.extensions));
                    // Linux keeps offered memory until the offer is acknowledged.
                    outcome.acknowledgement_wanted |= cookie.is_some();
                    outcome.read = Some((len.min(BUFFER), len, first.sport, cookie));
                }
                Fate::Deliver => outcome.no_socket = 1,
            }
        }
    }
    // A message that has begun is still there when the fault is found.
    outcome.begun = receiver.begun().map(|(_, count)| count as u16);
    outcome.next = receiver.next;
    if meaning.is_err() {
        receiver.reconnect();
    }
    outcome
}

/// The library and the reference.
struct Comparison {
    library: Library,
    receiver: Receiver,
    memory: Vec<u8>,
    count: u64,
}

impl Comparison {
    fn new() -> Self {
        let library = Library::new();
        let receiver = Receiver::new(library.longest());
        Self { library, receiver, memory: std::vec![0; LENGTHS], count: 0 }
    }

    fn receive(&mut self, header: &[u8; HEADER_LEN], length: usize) -> Outcome {
        self.memory[..HEADER_LEN].copy_from_slice(header);
        let before = self.receiver;
        let expected = expected(&mut self.receiver, &self.memory[..length]);
        let found = self.library.receive(header, length);
        assert_eq!(found, expected, "{length} bytes of {header:02x?}, after {before:?}");
        self.count += 1;
        expected
    }

    fn reconnect(&mut self) {
        self.receiver.reconnect();
        self.library.reconnect();
    }
}

/// Choice of a header's checksum.
#[derive(Clone, Copy, Debug)]
enum Sum {
    Right,
    Missing,
    Wrong(u16),
}

fn encoded(header: &rds::Header, padding: u32, sum: Sum) -> [u8; HEADER_LEN] {
    let mut bytes = [0; HEADER_LEN];
    bytes[0..8].copy_from_slice(&header.sequence.to_be_bytes());
    bytes[8..16].copy_from_slice(&header.ack.to_be_bytes());
    bytes[16..20].copy_from_slice(&header.len.to_be_bytes());
    bytes[20..22].copy_from_slice(&header.sport.to_be_bytes());
    bytes[22..24].copy_from_slice(&header.dport.to_be_bytes());
    (bytes[24], bytes[25]) = (header.flags, header.credit);
    bytes[26..30].copy_from_slice(&padding.to_be_bytes());
    bytes[32..48].copy_from_slice(&header.extensions);
    let right = rds::checksum(&bytes);
    let sum = match sum {
        Sum::Right => right,
        Sum::Missing => 0,
        Sum::Wrong(difference) => right ^ difference,
    };
    bytes[30..32].copy_from_slice(&sum.to_be_bytes());
    bytes
}

const PLAIN: rds::Header = rds::Header {
    sequence: 7,
    ack: 0,
    len: 100,
    sport: 5000,
    dport: BOUND,
    flags: 0,
    credit: 0,
    extensions: [0; 16],
};

/// Lengths of messages with something special about them, for a frame of `length` bytes of a
/// receiver that takes `longest`.
fn lengths_of_messages(length: usize, longest: u32) -> [u32; 27] {
    let length = length as u32;
    let payload = length.wrapping_sub(HEADER_LEN as u32);
    let fragment = FRAGMENT_LEN as u32;
    [
        0,
        1,
        47,
        48,
        49,
        fragment - 1,
        fragment,
        fragment + 1,
        2 * fragment - 1,
        2 * fragment,
        2 * fragment + 1,
        longest - 1,
        longest,
        longest + 1,
        longest + fragment + 1,
        rds::LONGEST,
        rds::LONGEST + 1,
        1 << 31,
        u32::MAX - 48,
        u32::MAX - 47,
        u32::MAX - 1,
        u32::MAX,
        length,
        payload.wrapping_sub(1),
        payload,
        payload.wrapping_add(1),
        payload.wrapping_add(fragment),
    ]
}

const PORTS: [u16; 7] = [0, 1, 2, BOUND, BOUND + 1, 0x7fff, 0xffff];

/// Every length of a frame, with each field of the header at its edges, on a connection where
/// nothing has begun.
#[test]
fn frames_of_every_length_agree_with_the_reference() {
    let mut comparison = Comparison::new();
    let longest = comparison.library.longest();
    let mut random = Random::new(1);
    for length in 0..=LENGTHS {
        let fitting = rds::Header { len: (length as u32).wrapping_sub(HEADER_LEN as u32), ..PLAIN };
        let mut headers: Vec<([u8; HEADER_LEN], bool)> = Vec::new();
        for len in lengths_of_messages(length, longest) {
            headers.push((encoded(&rds::Header { len, ..PLAIN }, 0, Sum::Right), len > fitting.len));
        }
        let edges = [
            rds::Header { sequence: random.pick(&[0, 1, u64::MAX]), ..fitting },
            rds::Header { ack: random.pick(&[1, 1 << 63, u64::MAX]), ..fitting },
            rds::Header { sport: random.pick(&PORTS), ..fitting },
            rds::Header { dport: random.pick(&PORTS), ..fitting },
            rds::Header { flags: random.bits() as u8, ..fitting },
            rds::Header { credit: random.pick(&[1, 255]), ..fitting },
            rds::Header { extensions: [random.pick(&[1, 3, 8, 9, 255]); 16], ..fitting },
            rds::Header { flags: rds::flags::CONG_BITMAP, len: rds::MAP, ..PLAIN },
            rds::Header { sport: 0, dport: 0, len: 0, flags: random.bits() as u8, ..PLAIN },
            rds::Header { sport: 0, dport: 0, ..fitting },
        ];
        headers.extend(edges.map(|header| (encoded(&header, 0, Sum::Right), false)));
        headers.push((encoded(&fitting, u32::MAX, Sum::Right), false));
        headers.push((encoded(&fitting, 0, Sum::Missing), false));
        headers.push((encoded(&fitting, 0, Sum::Wrong(1 << random.below(16))), false));
        headers.push(([0; HEADER_LEN], false));
        headers.push(([0xff; HEADER_LEN], false));
        for (header, begins) in headers {
            comparison.receive(&header, length);
            if begins && comparison.receiver.begun().is_some() {
                comparison.reconnect();
            }
        }
    }
    std::println!("{} frames", comparison.count);
    assert!(comparison.count >= 100_000);
}

/// A header drawn so that most fields are at an edge, and the length of a frame for it.
fn drawn(random: &mut Random, receiver: &Receiver, longest: u32) -> ([u8; HEADER_LEN], usize) {
    let begun = receiver.begun();
    if let Some((first, count)) = begun.filter(|(first, _)| first.len > longest)
        && !random.one_in(32)
    {
        let left = first.len as usize - count * FRAGMENT_LEN;
        return (encoded(&first, 0, Sum::Right), HEADER_LEN + left.min(FRAGMENT_LEN));
    }
    let mut length = match random.below(8) {
        0 => random.below(LENGTHS as u64 + 1) as usize,
        1 => random.pick(&[0, 1, 16, 20, 24, 32, 47, 48, 49, FRAME_LEN - 1, FRAME_LEN, FRAME_LEN + 1]),
        2 | 3 => HEADER_LEN + FRAGMENT_LEN,
        _ => HEADER_LEN + random.below(300) as usize,
    };
    let mut header = match begun {
        // Mostly it goes on.
        Some((first, count)) if !random.one_in(8) => {
            let left = first.len as usize - count * FRAGMENT_LEN;
            length = HEADER_LEN + left.min(FRAGMENT_LEN);
            first
        }
        _ => rds::Header { len: length.saturating_sub(HEADER_LEN) as u32, ..PLAIN },
    };
    let next = receiver.next;
    // Change none to four fields.
    for _ in 0..random.pick(&[0, 1, 1, 2, 4]) {
        match random.below(12) {
            0 | 1 => header.len = random.pick(&lengths_of_messages(length, longest)),
            2 => {
                let numbers = [0, 1, next.wrapping_sub(1), next, next.wrapping_add(1), u64::MAX];
                header.sequence = random.pick(&numbers);
            }
            3 => header.ack = random.pick(&[0, 1, 1 << 32, u64::MAX]),
            4 => header.sport = random.pick(&PORTS),
            5 => header.dport = random.pick(&PORTS),
            6 => header.flags = random.pick(&[1, 2, 4, 6]),
            7 => header.flags = random.bits() as u8,
            8 => header.credit = random.bits() as u8,
            9 => {
                let types = [0, 1, 2, 3, 4, 5, 8, 9, 0xff];
                for byte in &mut header.extensions {
                    *byte = if random.one_in(2) { random.pick(&types) } else { random.bits() as u8 };
                }
            }
            10 => (header.sport, header.dport, header.len) = (0, 0, 0),
            _ => length = (length + random.pick(&[LENGTHS, 1])) % (LENGTHS + 1),
        }
    }
    if random.one_in(40) {
        (header.flags, header.len) = (rds::flags::CONG_BITMAP, rds::MAP);
        length = random.pick(&[FRAME_LEN, FRAME_LEN, FRAME_LEN - 1]);
    }
    let padding = if random.one_in(16) { random.bits() as u32 } else { 0 };
    let sum = match random.below(16) {
        0 => Sum::Missing,
        1 => Sum::Wrong(random.pick(&[1, 0x8000, 0xffff])),
        _ => Sum::Right,
    };
    let mut bytes = encoded(&header, padding, sum);
    if random.one_in(64) {
        bytes[random.below(HEADER_LEN as u64) as usize] = random.pick(&[0, 1, 0x7f, 0x80, 0xff]);
    }
    (bytes, length)
}

/// Sequences of frames: what began is continued, broken off, or mixed with maps and
/// acknowledgements.
#[test]
fn sequences_of_frames_agree_with_the_reference() {
    let mut comparison = Comparison::new();
    let longest = comparison.library.longest();
    let (mut random, mut too_long) = (Random::new(2), 0);
    for _ in 0..cases::count() {
        let (header, length) = drawn(&mut random, &comparison.receiver, longest);
        too_long += comparison.receive(&header, length).too_long;
        if random.one_in(1000) {
            comparison.reconnect();
        }
    }
    std::println!("{} frames, {too_long} messages too long", comparison.count);
    assert!(too_long >= comparison.count / 10_000);
}

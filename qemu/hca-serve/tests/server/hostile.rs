//! A client that sends random input: messages of all commands with random arguments, malformed
//! ones, and misplaced descriptors, in random portions. The server must reply or close the
//! connection. It must keep running, and its next client must find a device. In addition, a guest
//! brings its HCA up and then overwrites everything that the device reads.

use crate::attacks::meanwhile;
use crate::support::client::{BAR0, Client, IDS};
use crate::support::guest::Guest;
use crate::support::{memory, serve};
use ib_types::SplitMix64;
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

/// SplitMix64.
struct Random(SplitMix64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Returns a number that is probably an edge case.
    fn edge(&mut self) -> u64 {
        match self.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << self.below(64),
            3 => (1u64 << self.below(64)).wrapping_sub(1),
            4 => 0x1000 * self.below(64),
            5 => self.below(64),
            6 => 0x1_0000_0000 + 0x1000 * self.below(64),
            _ => self.next(),
        }
    }
}

/// Returns a message, mostly well-formed.
fn message(random: &mut Random) -> Vec<u8> {
    let command = match random.below(24) {
        0 => random.next() as u16,
        command => (command % 19) as u16,
    };
    let words = |values: &[u64]| values.iter().flat_map(|value| (*value as u32).to_le_bytes()).collect();
    let mut payload: Vec<u8> = match command {
        1 => {
            let mut bytes = vec![0; 4];
            let json: &[u8] = match random.below(5) {
                0 => b"{\"capabilities\":{}}\0",
                1 => b"{\"capabilities\":{\"max_data_xfer_size\":0}}\0",
                2 => b"{\"capabilities\":{\"max_data_xfer_size\":18446744073709551615}}",
                3 => b"[[[[[[[[",
                _ => b"\0",
            };
            bytes.extend(json);
            bytes
        }
        2 | 3 => {
            let mut bytes: Vec<u8> = words(&[32, random.below(16)]);
            for _ in 0..3 {
                bytes.extend(random.edge().to_le_bytes());
            }
            bytes
        }
        4..=7 => words(&[random.edge(), random.edge(), random.below(12), random.edge()]),
        8 => words(&[20, random.below(64), random.below(4), random.below(40), random.below(40)]),
        9 | 10 => {
            let count = if random.below(4) == 0 { random.edge() } else { random.below(64) };
            let offset = match random.below(3) {
                0 => random.edge(),
                1 => 0x10 + 4 * random.below(4),
                _ => random.below(32 << 20),
            };
            let mut bytes = offset.to_le_bytes().to_vec();
            bytes.extend((random.below(10) as u32).to_le_bytes());
            bytes.extend((count as u32).to_le_bytes());
            if command == 10 {
                bytes.extend((0..count.min(4096)).map(|_| random.next() as u8));
            }
            bytes
        }
        15 => {
            let count = random.below(40);
            let mut bytes = count.to_le_bytes().to_vec();
            for _ in 0..count {
                bytes.extend(random.below(32 << 20).to_le_bytes());
                bytes.extend((random.below(2) as u32).to_le_bytes());
                bytes.extend((random.below(12) as u32).to_le_bytes());
                bytes.extend(random.next().to_le_bytes());
            }
            bytes
        }
        _ => (0..random.below(200)).map(|_| random.next() as u8).collect(),
    };
    if random.below(16) == 0 {
        payload.truncate(random.below(payload.len() as u64 + 1) as usize);
    }
    let flags = [0, 0, 0x10, 1, 0x21, random.next() as u32][random.below(6) as usize];
    let size = match random.below(200) {
        0 => random.next() as u32,
        1 => random.below(16) as u32,
        2 => 1 << 20,
        _ => 16 + payload.len() as u32,
    };
    let mut bytes = (random.next() as u16).to_le_bytes().to_vec();
    bytes.extend(command.to_le_bytes());
    for word in [size, flags, 0] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(payload);
    bytes
}

/// Sends random input on one connection.
fn connection(random: &mut Random, socket: &std::path::Path) {
    let client = if random.below(4) == 0 { Client::silent(socket) } else { Client::new(socket) };
    client.stream.set_nonblocking(true).expect("nonblocking");
    let file = memory(0x1000 * random.below(64));
    let event = eventfd(0, EventfdFlags::NONBLOCK).expect("eventfd");
    let mut answers = [0; 65_536];
    for _ in 0..random.below(200) {
        let mut bytes = message(random);
        for _ in 0..random.below(3) {
            bytes.extend(message(random));
        }
        let mut descriptors: Vec<BorrowedFd<'_>> = Vec::new();
        if random.below(3) == 0 {
            let one = if random.below(2) == 0 { file.as_fd() } else { event.as_fd() };
            descriptors = vec![one; 1 + random.below(20) as usize];
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let Ok(_) = sendmsg(&client.stream, &[IoSlice::new(&bytes)], &mut ancillary, flags) else { break };
        if random.below(2) == 0 {
            let _ = (&client.stream).read(&mut answers);
        }
        if random.below(32) == 0 {
            file.set_len(0x1000 * random.below(64)).expect("length");
        }
    }
}

/// Returns `long` for full lengths (`cargo xtask test --long`), otherwise `short`.
fn rounds(short: u64, long: u64) -> u64 {
    if std::env::var_os("MLX5_TESTS_LONG").is_some_and(|value| value != "0") { long } else { short }
}

#[test]
fn the_server_survives_whatever_is_said_to_it() {
    let (_folder, served, sockets) = serve(3);
    meanwhile(&served, &sockets, |socket| {
        for seed in 0..rounds(1_000, 100_000) {
            connection(&mut Random(SplitMix64::new(seed)), socket);
        }
        // A client that blocked the server is not accepted for a while.
        assert_eq!(Client::new(socket).ids(), IDS);
    });
}

#[test]
fn a_guest_that_scribbles_over_its_rings_and_mailboxes_harms_itself_only() {
    let (_folder, served, sockets) = serve(3);
    meanwhile(&served, &sockets, |socket| {
        for seed in 0..rounds(40, 4_000) {
            let mut random = Random(SplitMix64::new(seed));
            let mut guest = Guest::bring_up(socket);
            let address = guest.wait_active();
            let own = guest.open();
            guest.connect(address, own);
            let len = guest.file.metadata().expect("memory").len();
            for _ in 0..40 {
                // Most of the driver's data is at the beginning.
                for _ in 0..64 {
                    let at = if random.below(4) == 0 { random.below(len - 8) } else { random.below(1 << 19) };
                    let value = if random.below(2) == 0 { random.next() } else { 1 << random.below(64) };
                    guest.file.write_all_at(&value.to_be_bytes(), at & !3).expect("scribbled");
                }
                let mut client = guest.client();
                for _ in 0..16 {
                    let page = random.below(80) * 4096;
                    let place = [0x800, 0xa00, 0x20, 0x40, 0x48, 0x18][random.below(6) as usize];
                    let value = u64::from(own.get()) << 8 | random.below(1 << 8) | random.below(4) << 40;
                    let value = if random.below(4) == 0 { random.next() } else { value };
                    client.write(BAR0, page + place, &value.to_be_bytes());
                }
                client.write(BAR0, 0x18, &(random.next() as u32).to_be_bytes());
                let _ = client.read(BAR0, 0, 16);
            }
        }
        // The next client finds the device in its power-on state.
        let mut guest = Guest::bring_up(socket);
        guest.wait_active();
    });
    let refusals = served.with_world(|world, _| world.nodes()[2].hca.log().refusals()).expect("served");
    assert!(refusals > 100, "{refusals}: the device reads what was scribbled");
}

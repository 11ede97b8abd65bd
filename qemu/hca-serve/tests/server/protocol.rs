//! The protocol message by message.

use crate::support::client::{
    BAR0, CONFIG, Client, DMA_MAP, DMA_READ, DMA_UNMAP, DMA_WRITE, IDS, NO_REPLY, REGION_READ, REGION_WRITE,
    RESET, SET_IRQS, VERSION, WRITE_MULTI, access, map, message, set_irqs,
};
use crate::support::overlay::Overlay;
use crate::support::{log, memory, serve, serve_with, skip};
use hca_serve::Options;
use rustix::event::{EventfdFlags, eventfd};
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Command register with memory decoding on. Without decoding, registers read all ones.
const DECODE: [u8; 2] = [1 << 1, 0];

/// Offset of the command queue's address, which reads back as written.
const SCRATCH: u64 = 0x10;

#[test]
fn nothing_is_done_before_the_version_is_agreed() {
    let (_folder, _served, sockets) = serve(1);
    let mut client = Client::silent(&sockets[0]);
    let refused = client.ask(REGION_READ, &access(CONFIG, 0, 4));
    assert!(refused.is_error() && refused.error != 0, "{refused:?}");
    for (payload, agreed) in [
        (&b"\x01\0\0\0"[..], false),
        (b"\0\0", false),
        (b"\0\0\0\0{\"capabilities\":", false),
        (b"\0\0\0\0\xff\xfe\0", false),
        (b"\0\0\0\0", true),
        (b"\0\0\x07\0{\"capabilities\":{\"max_data_xfer_size\":4096}}", true),
    ] {
        let reply = client.ask(VERSION, payload);
        assert_eq!(reply.is_error(), !agreed, "{payload:?}: {reply:?}");
        if agreed {
            assert_eq!(reply.payload[..4], [0; 4], "0.0");
            assert_eq!(reply.payload.last(), Some(&0));
            let text = String::from_utf8_lossy(&reply.payload[4..]);
            assert!(text.contains("\"write_multiple\":true"), "{text}");
        }
    }
    assert_eq!(client.ids(), IDS);
}

#[test]
fn many_writes_come_in_one_message_or_one_read() {
    let (_folder, served, sockets) = serve(1);
    let mut client = Client::new(&sockets[0]);
    client.write(CONFIG, 4, &DECODE);
    let mut payload = 3u64.to_le_bytes().to_vec();
    for (offset, word) in [(SCRATCH, 0x1111_1111u32), (SCRATCH, 0x2222_2222), (SCRATCH, 0x3333_3333)] {
        payload.extend(access(BAR0, offset, 4));
        payload.extend(word.to_be_bytes());
        payload.extend([0; 4]);
    }
    let reply = client.ask(WRITE_MULTI, &payload);
    assert_eq!((reply.is_error(), &reply.payload[..]), (false, &3u64.to_le_bytes()[..]));
    assert_eq!(client.read(BAR0, SCRATCH, 4), [0x33; 4]);
    let before = served.activity().expect("served").clients[0];
    let mut batch = Vec::new();
    for n in 0..1000u32 {
        let mut payload = access(BAR0, SCRATCH, 4);
        payload.extend(n.to_be_bytes());
        batch.extend(message(1, REGION_WRITE, NO_REPLY, &payload));
    }
    client.stream.write_all(&batch).expect("sent");
    assert_eq!(client.read(BAR0, SCRATCH, 4), 999u32.to_be_bytes());
    let after = served.activity().expect("served").clients[0];
    assert_eq!(after.messages - before.messages, 1001);
    assert!(after.reads - before.reads < 20, "{} reads", after.reads - before.reads);
    for wrong in [&payload[..payload.len() - 1], &4u64.to_le_bytes(), &u64::MAX.to_le_bytes(), &[1, 2]] {
        assert!(client.ask(WRITE_MULTI, wrong).is_error(), "{wrong:?}");
    }
    assert_eq!(client.ids(), IDS);
}

#[test]
fn unknown_commands_are_refused_with_their_payload() {
    let (_folder, _served, sockets) = serve(1);
    let mut client = Client::new(&sockets[0]);
    for command in [0, 6, DMA_READ, DMA_WRITE, 14, 16, 17, 18, 4711, u16::MAX] {
        for len in [0, 1, 100, 50_000, 70_000] {
            let reply = client.ask(command, &vec![command as u8; len]);
            assert!(reply.is_error() && reply.error != 0, "{command}: {reply:?}");
        }
        // A message with `NO_REPLY` gets no reply.
        client.post(command, NO_REPLY, &[0xee; 64], &[]);
    }
    assert_eq!(client.ids(), IDS, "the stream is still in step");
}

#[test]
fn wrong_arguments_are_refused_by_every_command() {
    let (_folder, _served, sockets) = serve(1);
    let mut client = Client::new(&sockets[0]);
    client.write(CONFIG, 4, &DECODE);
    let file = memory(8192);
    let file = file.as_fd();
    let max = u64::MAX;
    let cases: [(u16, Vec<u8>, usize); 17] = [
        (DMA_MAP, map(3, 0, 0x1000, 0), 1),
        (DMA_MAP, map(3, 0, max - 4095, 8192), 1),
        (DMA_MAP, map(3, 4096, 0x1000, 8192), 1),
        (DMA_MAP, map(3, max, 0x1000, 8192), 1),
        (DMA_MAP, map(3, 1, 0x1000, 4096), 1),
        (DMA_MAP, map(3, 0, 0x1000, 4096), 2),
        (DMA_MAP, map(3 | 8, 0, 0x1000, 4096), 1),
        (DMA_MAP, map(3, 0, 0x1000, 4096)[..31].to_vec(), 1),
        (DMA_UNMAP, vec![0; 23], 0),
        (5, [32, 0, 9, 0, 0, 0, 0, 0].iter().flat_map(|w: &u32| w.to_le_bytes()).collect(), 0),
        (7, [16, 0, 5, 0].iter().flat_map(|w: &u32| w.to_le_bytes()).collect(), 0),
        (SET_IRQS, set_irqs(0x24, 31, 2), 0),
        (SET_IRQS, set_irqs(0x24, u32::MAX, 2), 0),
        (SET_IRQS, set_irqs(0x24, 0, 1), 2),
        (REGION_READ, access(9, 0, 4), 0),
        (REGION_READ, access(BAR0, 0, 65_537), 0),
        (REGION_WRITE, access(BAR0, 0, 4), 0),
    ];
    for (command, payload, files) in cases {
        let reply = client.ask_with(command, &payload, &vec![file; files]);
        assert!(reply.is_error(), "{command} {payload:?} with {files} files: {reply:?}");
    }
    assert_eq!(client.read(BAR0, max, 16), [0; 16], "beyond the end there is nothing");
    assert_eq!(client.read(CONFIG, max - 1, 4), [0; 4]);
    assert_eq!(client.read(3, 0, 4), [0xff; 4], "nor in a region without size");
    assert_eq!(client.ids(), IDS);
}

#[test]
fn a_write_is_done_before_what_follows_it() {
    let (_folder, _served, sockets) = serve(1);
    let mut client = Client::new(&sockets[0]);
    for _ in 0..200 {
        // The reset follows the write, so that the write is discarded.
        client.write(BAR0, SCRATCH, &[0x77; 4]);
        assert!(!client.ask(RESET, &[]).is_error());
        client.write(CONFIG, 4, &DECODE);
        assert_eq!(client.read(BAR0, SCRATCH, 4), [0; 4]);
    }
}

#[test]
fn a_message_in_parts_is_put_together() {
    let (_folder, _served, sockets) = serve(1);
    let mut client = Client::new(&sockets[0]);
    let bytes = message(900, REGION_READ, 0, &access(CONFIG, 0, 4));
    for byte in bytes {
        client.stream.write_all(&[byte]).expect("sent");
        std::thread::yield_now();
    }
    let reply = client.receive().expect("answered");
    assert_eq!((reply.id, &reply.payload[16..]), (900, &IDS[..]));
}

#[test]
fn vectors_want_event_descriptors() {
    let (_folder, _served, sockets) = serve(1);
    let mut client = Client::new(&sockets[0]);
    let event = eventfd(0, EventfdFlags::empty()).expect("eventfd");
    let (_read, write) = rustix::pipe::pipe().expect("pipe");
    let all = vec![event.as_fd(); 16];
    assert!(!client.ask_with(SET_IRQS, &set_irqs(0x24, 0, 16), &all).is_error());
    assert!(client.ask_with(SET_IRQS, &set_irqs(0x24, 0, 1), &[write.as_fd()]).is_error());
    assert!(!client.ask_with(SET_IRQS, &set_irqs(0x21, 0, 0), &[]).is_error());
    assert_eq!(client.ids(), IDS);
}

/// Overlayfs over FUSE looks like any overlayfs, and a page fault on it waits for the client's own
/// program.
#[test]
fn files_on_overlayfs_need_the_users_consent() {
    let Some(overlay) = Overlay::mount() else { return };
    needs_consent(&overlay.file(), 0x794c_7630);
}

/// A page fault on a file of a disk waits for the disk. This program is such a file.
#[test]
fn files_on_disks_need_the_users_consent() {
    let file = std::fs::File::open(std::env::current_exe().expect("a path")).expect("opens");
    let system = rustix::fs::fstatfs(&file).expect("a file system").f_type as u32;
    // Files of tmpfs, hugetlbfs and ramfs are memory.
    if [0x0102_1994, 0x9584_58f6, 0x8584_58f6].contains(&system) {
        skip("the tests' programs are on no disk");
        return;
    }
    needs_consent(&file, system);
}

/// A page of this file, on a file system of this type, is guest memory only with `file_io`.
fn needs_consent(file: &std::fs::File, system: u32) {
    let (sink, lines) = log();
    for file_io in [false, true] {
        let log = Arc::clone(&sink);
        let (_folder, _served, sockets) = serve_with(1, |options| Options { file_io, log, ..options });
        let mut client = Client::new(&sockets[0]);
        let reply = client.ask_with(DMA_MAP, &map(1, 0, 1 << 30, 4096), &[file.as_fd()]);
        assert_eq!(reply.is_error(), !file_io, "{reply:?}");
        assert!(!client.map(memory(4096), 0, 1 << 31, 4096).is_error(), "memfd needs none");
        assert_eq!(client.ids(), IDS);
    }
    let lines = lines.lock().expect("lines");
    let refusal = format!("a page fault on file system type {system:#x} can stop all HCAs");
    assert_eq!(lines.iter().filter(|line| line.contains(&refusal)).count(), 1, "{lines:?}");
}

#[test]
fn files_that_cannot_be_mapped_need_the_users_consent() {
    let process = std::fs::File::options().read(true).write(true).open("/proc/self/mem").expect("opens");
    for file_io in [false, true] {
        let (_folder, _served, sockets) = serve_with(1, |options| Options { file_io, ..options });
        let mut client = Client::new(&sockets[0]);
        let reply = client.ask_with(DMA_MAP, &map(3 | 8, 0x1000, 0x1000, 1 << 40), &[process.as_fd()]);
        assert_eq!(reply.is_error(), !file_io, "{reply:?}");
        assert!(client.ask_with(DMA_MAP, &map(3, 0, 1 << 50, 4096), &[process.as_fd()]).is_error());
        assert_eq!(client.ids(), IDS);
    }
}

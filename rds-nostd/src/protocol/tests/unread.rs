//! Unread sockets next to sockets that are read.

use std::vec::Vec;

use proptest::prelude::*;

use crate::error::RdsError;
use crate::ids::{ConnectionId, SocketHandle};
use crate::protocol::testing::{Bench, CONFIG, ip};
use crate::reason::DownReason;
use crate::wire::{FRAGMENT_LEN, HEADER_LEN, Header, fragments};

const UNREAD: u16 = 4000;
const READ: u16 = 4001;
/// Number of messages, several times the frames of a connection.
const FLOOD: u64 = 600;

/// Returns a header whose fields depend on the sequence number.
fn header(sequence: u64, len: usize, dport: u16) -> Header {
    Header {
        sequence,
        len: len as u32,
        sport: 5000 + (sequence % 7) as u16,
        dport,
        ..Header::acknowledgement(0)
    }
}

/// Delivers a message whose frames each begin with its sequence number, if they are long enough.
/// Returns false if the message has to wait.
fn arrives(bench: &mut Bench, id: ConnectionId, header: &Header) -> bool {
    let (len, count) = (header.len as usize, fragments(header.len as usize));
    for index in 0..count {
        if bench.refill(id) == 0 {
            assert_eq!(index, 0, "what has begun is completed");
            return false;
        }
        let part = if index + 1 == count { len - index * FRAGMENT_LEN } else { FRAGMENT_LEN };
        let frame = bench.oldest(id).expect("posted");
        bench.protocol.frames.write_payload(frame, &header.sequence.to_le_bytes());
        assert_eq!(bench.arrives(id, header, part), Some(None));
    }
    true
}

/// Reads a message of [`arrives`]: copied, or as frames that are returned immediately. Returns its
/// sequence number, or 0 if it was too short.
fn read(bench: &mut Bench, socket: SocketHandle, lends: bool) -> Result<(u64, usize, u16), RdsError> {
    let mut bytes = [0; 8];
    let received = if lends {
        let mut copy = [0; 8];
        let peeked = bench.protocol.peek(socket, &mut copy)?.1;
        let lent = bench.protocol.lend_message(socket)?;
        assert_eq!(peeked.message_len, lent.message_len);
        bytes = copy;
        let got = (lent.message_len, lent.from.port());
        assert_eq!(bench.protocol.take_back_lent(lent.frames), Some(socket));
        got
    } else {
        let received = bench.receive(socket, &mut bytes)?;
        (received.message_len, received.from.port())
    };
    bench.protocol.relieve(usize::from(socket.slot));
    let number = if received.0 < 8 { 0 } else { u64::from_le_bytes(bytes) };
    Ok((number, received.0, received.1))
}

/// Messages to an unread port, sent before the peer received the map, do not block those to other
/// ports. All of them can be read later, and then all frames are free.
#[test]
fn a_socket_that_nobody_reads_holds_up_nobody() {
    for lends in [false, true] {
        let mut bench = Bench::new(CONFIG, 512, 4);
        let free = bench.protocol.frames.free_count();
        let sockets = [UNREAD, READ].map(|port| bench.socket(ip(1), port));
        let id = bench.up(2);
        let mut clears = 0;
        for sequence in 1..=FLOOD {
            let before = bench.protocol.sockets.open(sockets[0]).expect("open").congested;
            assert!(arrives(&mut bench, id, &header(2 * sequence - 1, 64, UNREAD)), "message {sequence}");
            assert!(arrives(&mut bench, id, &header(2 * sequence, 64, READ)), "message {sequence}");
            let number = 2 * sequence;
            let expected = (number, 64, 5000 + (number % 7) as u16);
            assert_eq!(read(&mut bench, sockets[1], lends), Ok(expected));
            let after = bench.protocol.sockets.open(sockets[0]).expect("open").congested;
            clears += u32::from(before && !after);
        }
        assert!(bench.protocol.sockets.open(sockets[0]).expect("open").congested);
        assert!(clears <= 1, "its port was cleared {clears} times, though nobody reads it");
        for sequence in 1..=FLOOD {
            let number = 2 * sequence - 1;
            let expected = (number, 64, 5000 + (number % 7) as u16);
            assert_eq!(read(&mut bench, sockets[0], lends), Ok(expected));
        }
        for socket in sockets {
            assert_eq!(read(&mut bench, socket, lends), Err(RdsError::Again));
            let socket = bench.protocol.sockets.open(socket).expect("open");
            assert_eq!((socket.unread.bytes(), socket.unread.count(), socket.congested), (0, 0, false));
        }
        bench.down(id, crate::reason::DownReason::Disconnected);
        assert_eq!(bench.protocol.frames.free_count(), free);
        assert_eq!(bench.protocol.receiving.beyond(), 0);
    }
}

/// Short messages fill the frames of their connection before its peer has to wait.
#[test]
fn a_connection_waits_when_its_frames_are_full() {
    let mut bench = Bench::new(CONFIG, 512, 4);
    bench.socket(ip(1), UNREAD);
    let id = bench.up(2);
    let mut count = 0;
    while arrives(&mut bench, id, &header(count + 1, 64, UNREAD)) {
        count += 1;
    }
    let full = u64::from(bench.protocol.connection(id).rx.held()) - 1;
    assert!(full > 10 && count >= 42 * full, "{count} messages in {full} frames and another one");
}

/// Messages that share a frame are lent in place, and a handle is invalid after its loan.
#[test]
fn loans_of_short_messages_take_no_frame() {
    let mut bench = Bench::new(CONFIG, 512, 4);
    let free = bench.protocol.frames.free_count();
    let socket = bench.socket(ip(1), UNREAD);
    let id = bench.up(2);
    for sequence in 1..=FLOOD {
        assert!(arrives(&mut bench, id, &header(sequence, 64, UNREAD)));
    }
    let before = bench.protocol.frames.free_count();
    let mut loans = Vec::new();
    while let Ok(lent) = bench.protocol.lend_message(socket) {
        let mut payload = [0; 64];
        let slices: Vec<_> = bench.protocol.frames.lent_payloads(lent.frames).collect();
        assert_eq!(slices.len(), usize::from(bench.protocol.frames.memory().is_some()));
        for slice in slices {
            slice.read(0, &mut payload).expect("64 bytes");
        }
        loans.push(lent.frames);
    }
    assert_eq!((loans.len() as u64, bench.protocol.frames.free_count()), (FLOOD, before));
    let unread = bench.protocol.sockets.open(socket).expect("open").unread.bytes();
    assert_eq!(unread as u64, 64 * FLOOD, "a lent message counts as unread");
    // Returned in any order, each once.
    loans.reverse();
    for loan in &loans {
        assert_eq!(bench.protocol.take_back_lent(*loan), Some(socket));
        assert_eq!(bench.protocol.take_back_lent(*loan), None);
    }
    // The same places are reused.
    for sequence in FLOOD + 1..=2 * FLOOD {
        assert!(arrives(&mut bench, id, &header(sequence, 64, UNREAD)));
    }
    for loan in loans {
        assert_eq!(bench.protocol.take_back_lent(loan), None);
    }
    bench.protocol.drop_received(socket);
    bench.down(id, DownReason::Disconnected);
    assert_eq!((bench.protocol.frames.free_count(), bench.protocol.receiving.beyond()), (free, 0));
}

/// A socket that closes drops its unread messages.
#[test]
fn unread_messages_go_with_their_socket() {
    let mut bench = Bench::new(CONFIG, 512, 4);
    let free = bench.protocol.frames.free_count();
    let socket = bench.socket(ip(1), UNREAD);
    let id = bench.up(2);
    for sequence in 1..=FLOOD {
        assert!(arrives(&mut bench, id, &header(sequence, 64, UNREAD)));
    }
    for sequence in 1..100 {
        assert_eq!(read(&mut bench, socket, false).map(|(number, ..)| number), Ok(sequence));
    }
    bench.protocol.drop_received(socket);
    bench.down(id, DownReason::Disconnected);
    assert_eq!((bench.protocol.frames.free_count(), bench.protocol.receiving.beyond()), (free, 0));
}

/// A device may write to frames that it no longer owns. Only unread messages may be lost.
#[test]
fn a_device_that_writes_over_unread_messages_takes_those_alone() {
    // Lengths, and links: to a place that was read, to itself, to a frame that is no arena, and
    // beyond all frames.
    for (lends, word) in [
        (false, 0u64),
        (true, 65),
        (false, 0xffff),
        (true, 0xffff_ffff_ffff_ffff),
        (false, 64 | 0x0005_0001 << 32),
        (true, 64 | 0x0000_0003 << 32),
        (false, 64 | 0x0001_ffff << 32),
    ] {
        let mut bench = Bench::new(CONFIG, 512, 4);
        let socket = bench.socket(ip(1), UNREAD);
        let id = bench.up(2);
        for sequence in 1..=FLOOD {
            assert!(arrives(&mut bench, id, &header(sequence, 64, UNREAD)));
        }
        let inbox = bench.protocol.sockets.open(socket).expect("open").received;
        let third = bench.protocol.frames.all(&inbox).nth(2).expect("the third message").place;
        bench.protocol.frames.forge_record(third, word);
        let mut count = 0;
        while read(&mut bench, socket, lends).is_ok() {
            count += 1;
        }
        assert!((3..=FLOOD).contains(&count), "{count} messages");
        let socket = bench.protocol.sockets.open(socket).expect("open");
        assert_eq!(
            (socket.unread.bytes(), socket.unread.count(), socket.congested),
            (0, 0, false),
            "{word:#x}"
        );
    }
}

/// A forged link delivers no message of another socket, which still receives it.
#[test]
fn forged_link_delivers_no_message_of_another_socket() {
    let mut bench = Bench::new(CONFIG, 512, 4);
    let [unread, other] = [UNREAD, READ].map(|port| bench.socket(ip(1), port));
    let ids = [bench.up(2), bench.up(3)];
    for sequence in 1..=FLOOD {
        assert!(arrives(&mut bench, ids[0], &header(sequence, 64, UNREAD)));
    }
    assert!(arrives(&mut bench, ids[1], &header(7, 64, READ)));
    let inbox = bench.protocol.sockets.open(unread).expect("open").received;
    let third = bench.protocol.frames.all(&inbox).nth(2).expect("the third message").place;
    let target = bench.protocol.sockets.open(other).expect("open").received.head().expect("a message");
    bench.protocol.frames.forge_record(third, 64 | u64::from(target.frame().bits()) << 32);
    for sequence in 1..=3 {
        assert_eq!(read(&mut bench, unread, false).map(|(number, ..)| number), Ok(sequence));
    }
    assert_eq!(read(&mut bench, unread, false), Err(RdsError::Again));
    assert_eq!(read(&mut bench, other, false).map(|(number, ..)| number), Ok(7));
    assert_eq!(read(&mut bench, other, false), Err(RdsError::Again));
}

proptest! {
    /// With any messages of two peers to two sockets, and any way of reading, each socket gets its
    /// messages in order, and all frames become free.
    #[test]
    fn all_is_read_in_order(
        steps in prop::collection::vec((0usize..2, 0usize..2, 0usize..6, any::<bool>(), 0u8..12), 1..600),
    ) {
        const LENGTHS: [usize; 6] = [0, 8, 64, 777, 3000, 9000];
        let mut bench = Bench::new(CONFIG, 96, 2);
        let free = bench.protocol.frames.free_count();
        let sockets = [UNREAD, READ].map(|port| bench.socket(ip(1), port));
        let ids = [bench.up(2), bench.up(3)];
        let mut expected: [[Vec<(u64, usize)>; 2]; 2] = Default::default();
        let mut sequences = [0; 2];
        let take = |bench: &mut Bench, to: usize, lends, expected: &mut [[Vec<(u64, usize)>; 2]; 2]| {
            let Ok((number, len, port)) = read(bench, sockets[to], lends) else { return Ok(false) };
            // The port identifies the peer if the message is too short for a sequence number.
            let from = usize::from(port >= 6000);
            prop_assert!(!expected[to][from].is_empty());
            let (sequence, sent) = expected[to][from].remove(0);
            prop_assert_eq!((len, number), (sent, if len < 8 { 0 } else { sequence }));
            Ok(true)
        };
        for (from, to, length, lends, what) in steps {
            if what == 0 {
                take(&mut bench, to, lends, &mut expected)?;
                continue;
            }
            let (sequence, len) = (sequences[from] + 1, LENGTHS[length]);
            let sport = 5000 + 1000 * from as u16;
            let sent = Header { sport, ..header(sequence, len, [UNREAD, READ][to]) };
            let room = bench.refill(ids[from]) > 0;
            if room && (fragments(len) == 1 || usize::from(bench.refill(ids[from])) >= fragments(len)) {
                prop_assert!(arrives(&mut bench, ids[from], &sent));
                sequences[from] = sequence;
                expected[to][from].push((sequence, len));
            }
        }
        for to in 0..2 {
            while take(&mut bench, to, false, &mut expected)? {}
            prop_assert!(expected[to].iter().all(Vec::is_empty));
            let socket = bench.protocol.sockets.open(sockets[to]).expect("open");
            prop_assert_eq!((socket.unread.bytes(), socket.unread.count()), (0, 0));
        }
        for id in ids {
            bench.down(id, DownReason::Disconnected);
        }
        prop_assert_eq!((bench.protocol.frames.free_count(), bench.protocol.receiving.beyond()), (free, 0));
    }
}

/// A frame shorter than its header is refused, whatever length the bytes in memory contain.
#[test]
fn frames_shorter_than_a_header_break_the_connection() {
    for length in 0..HEADER_LEN as u32 {
        for len in [length.wrapping_sub(HEADER_LEN as u32), u32::MAX, 0] {
            let mut bench = Bench::new(CONFIG, 64, 2);
            let socket = bench.socket(ip(1), UNREAD);
            let id = bench.up(2);
            bench.refill(id);
            let header = Header { len, ..header(1, 0, UNREAD) };
            let mut arrival = bench.arrival(id, &header, 0).expect("a receive");
            arrival.length = length;
            bench.protocol.arrived(arrival, core::iter::empty(), bench.now);
            let reason = bench.protocol.connection(id).reconnect.broken_by.get();
            assert_eq!(reason, Some(DownReason::FrameLength), "{length} bytes, len {len:#x}");
            assert!(bench.read(socket).is_none(), "{length} bytes, len {len:#x}");
        }
    }
}

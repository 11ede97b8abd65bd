//! What is odd but allowed, and what a peer must not be believed.

use crate::rds::hostile::peer::{Frame, GOOD, Hostile, data, flagged, frame};
use dat_nostd::ConnectionEvent;
use harness::dat::address;
use rds_nostd::wire::{CONGESTION_MAP_LEN, Extension, Flags, Header};
use rds_nostd::{Msg, MsgFlags, RdmaFlags, RdsError};
use std::net::SocketAddr;

const ACK: Flags = Flags::ACK_REQUIRED;
const AGAIN: Flags = ACK.union(Flags::RETRANSMITTED);
const NOTHING: Header = Header::acknowledgement(0);
const MAP: Header = Header { len: CONGESTION_MAP_LEN as u32, flags: Flags::CONG_BITMAP, ..NOTHING };

fn is_message(header: &Header) -> bool {
    !header.is_acknowledgement() && !header.is_congestion_map()
}

/// No connection was lost.
fn assert_stands(hostile: &Hostile) {
    let counters = hostile.rds.counters();
    assert_eq!((counters.conn_reset, counters.recv_protocol_errors), (0, 0), "{counters:?}");
}

#[test]
fn an_acknowledgement_of_what_was_not_sent_releases_nothing_else() {
    let mut hostile = Hostile::new(30);
    let ep = hostile.connect();
    hostile.say(ep, Header::acknowledgement(u64::MAX));
    assert_eq!(hostile.rds.counters().ack_beyond, 1);
    hostile.victim_sends(b"still wanted");
    let (first, _) = hostile.frame("the message", is_message);
    assert_eq!(hostile.rds.unacknowledged(hostile.socket), Ok(1), "its acknowledgement came before it");
    hostile.say(ep, Header::acknowledgement(u64::MAX - 1));
    assert_eq!(hostile.rds.unacknowledged(hostile.socket), Ok(0), "clamped to what was sent");
    hostile.victim_sends(b"and this");
    let (second, _) = hostile.frame("the next message", is_message);
    assert_eq!(second.sequence, first.sequence + 1);
    assert_eq!(hostile.rds.unacknowledged(hostile.socket), Ok(1));
    hostile.say(ep, Header::acknowledgement(second.sequence));
    assert_eq!(hostile.rds.unacknowledged(hostile.socket), Ok(0));
    assert_stands(&hostile);
}

#[test]
fn an_acknowledgement_that_goes_back_changes_nothing() {
    let mut hostile = Hostile::new(31);
    let ep = hostile.connect();
    for _ in 0..3 {
        hostile.victim_sends(b"x");
    }
    let (first, _) = hostile.frame("the first message", is_message);
    for ack in [first.sequence + 1, first.sequence, 0, first.sequence + 1] {
        hostile.say(ep, Header::acknowledgement(ack));
        assert_eq!(hostile.rds.unacknowledged(hostile.socket), Ok(1), "{ack}");
    }
    assert_stands(&hostile);
}

#[test]
fn whoever_asks_is_answered_at_once() {
    let mut hostile = Hostile::new(32);
    let ep = hostile.connect();
    // The map leaves first: an acknowledgement follows it if anything came before.
    hostile.pass(5);
    hostile.say(ep, data(7, 10));
    assert!(hostile.frames().iter().all(|header| !header.is_acknowledgement()), "nobody asked");
    hostile.say(ep, flagged(data(9, 10), ACK));
    let (answer, payload) = hostile.frame("an acknowledgement", Header::is_acknowledgement);
    assert_eq!((answer.ack, answer.sequence, payload), (9, 0, 0));
    // And not in the middle of a message.
    let long = flagged(data(10, 8000), ACK);
    hostile.send(ep, &[frame(long, 4096)]);
    hostile.pass(10);
    assert_eq!(hostile.frames(), []);
    hostile.send(ep, &[frame(long, 3904)]);
    assert_eq!(hostile.frame("an acknowledgement", Header::is_acknowledgement).0.ack, 10);
    assert_eq!(hostile.received(), [10, 10, 8000]);
    assert_stands(&hostile);
}

#[test]
fn whatever_leaves_acknowledges() {
    let mut hostile = Hostile::new(33);
    let ep = hostile.connect();
    hostile.say(ep, data(41, 10));
    hostile.victim_sends(b"along with it");
    assert_eq!(hostile.frame("the message", is_message).0.ack, 41);
    // A peer that begins anew would take an old one for one of its new messages.
    hostile.forget(ep);
    hostile.until("the connection goes", |counters| counters.conn_reset > 0);
    hostile.pass(100);
    hostile.connect();
    hostile.victim_sends(b"on the next connection");
    hostile.pass(5);
    let frames = hostile.frames();
    assert!(frames.iter().any(is_message));
    assert!(frames.iter().all(|header| header.ack == 0), "{frames:?}");
}

#[test]
fn the_map_comes_first_and_what_was_not_acknowledged_comes_again() {
    let mut hostile = Hostile::new(34);
    let ep = hostile.connect();
    hostile.victim_sends(b"one");
    hostile.victim_sends(b"two");
    hostile.victim_sends(b"three");
    hostile.pass(5);
    let before = hostile.frames();
    assert!(before[0].is_congestion_map() && before[1].is_congestion_map(), "{before:?}");
    let sent: Vec<u64> = before[2..].iter().map(|header| header.sequence).collect();
    assert_eq!(sent.len(), 3);
    hostile.say(ep, Header::acknowledgement(sent[0]));
    hostile.forget(ep);
    hostile.until("the connection goes", |counters| counters.conn_reset > 0);
    hostile.pass(100);
    hostile.connect();
    hostile.pass(5);
    let after = hostile.frames();
    assert!(after[0].is_congestion_map() && after[1].is_congestion_map(), "{after:?}");
    let again: Vec<(u64, Flags)> = after[2..].iter().map(|header| (header.sequence, header.flags)).collect();
    assert_eq!(again, [(sent[1], AGAIN), (sent[2], AGAIN)], "the same numbers, in order, marked");
}

/// Linux takes several frames at once and believes the acknowledgement of the last; a map's frames have none.
#[test]
fn what_was_acknowledged_is_said_again_behind_a_map() {
    let mut hostile = Hostile::new(44);
    hostile.rds.set_receive_buffer(&mut hostile.adapters[0], hostile.socket, 100).expect("open");
    let ep = hostile.connect();
    hostile.pass(5);
    hostile.frames();
    hostile.say(ep, flagged(data(7, 200), ACK));
    hostile.pass(5);
    assert!(hostile.frames().iter().any(Header::is_congestion_map), "the port is congested");
    // Reading clears the port, so another map leaves, long after the acknowledgement.
    assert_eq!(hostile.received(), [200]);
    hostile.pass(5);
    let frames = hostile.frames();
    let map = frames.iter().rposition(Header::is_congestion_map).expect("the port is clear");
    assert_eq!(frames.last().map(|header| header.ack), Some(7), "{frames:?}");
    assert!(map + 1 < frames.len(), "{frames:?}");
    assert_stands(&hostile);
}

#[test]
fn old_numbers_are_dropped_if_they_say_that_they_come_again() {
    let mut hostile = Hostile::new(35);
    let ep = hostile.connect();
    // The map leaves first: an acknowledgement follows it if anything came before.
    hostile.pass(5);
    hostile.say(ep, data(100, 10));
    // Gaps are legal, and so is beginning anew.
    hostile.say(ep, data(200, 20));
    hostile.say(ep, flagged(data(150, 30), AGAIN));
    assert_eq!(
        hostile.frame("an acknowledgement", Header::is_acknowledgement).0.ack,
        150,
        "though it is dropped"
    );
    hostile.say(ep, flagged(data(200, 40), AGAIN));
    hostile.say(ep, flagged(data(201, 50), AGAIN));
    hostile.say(ep, data(1, 60));
    hostile.say(ep, flagged(data(2, 70), AGAIN));
    hostile.say(ep, data(u64::MAX, 80));
    hostile.say(ep, data(0, 90));
    assert_eq!(hostile.received(), [10, 20, 50, 60, 70, 80, 90]);
    assert_eq!(hostile.rds.counters().recv_drop_old_seq, 2);
    assert_stands(&hostile);
}

/// An acknowledgement may come anywhere, with any flags, and so may half a map.
#[test]
fn acknowledgements_and_maps_in_the_middle_of_a_message() {
    let mut hostile = Hostile::new(36);
    let ep = hostile.connect();
    let heartbeat = flagged(NOTHING, Flags::from_bits_retain(0x0a));
    hostile.send(
        ep,
        &[
            frame(data(1, 4097), 4096),
            frame(NOTHING, 0),
            frame(heartbeat, 0),
            frame(MAP, 4096),
            frame(MAP, 4096),
            frame(data(1, 4097), 1),
            frame(flagged(data(2, 0), Flags::from_bits_retain(0xf8)), 0),
        ],
    );
    hostile.until("two messages", |counters| counters.recv_queued == 2);
    assert_eq!(hostile.received(), [4097, 0]);
    assert_eq!(hostile.rds.counters().cong_update_received, 1);
    assert_stands(&hostile);
}

#[test]
fn maps_of_a_wrong_length_are_ignored() {
    let mut hostile = Hostile::new(37);
    let ep = hostile.connect();
    for (number, (len, payload)) in
        [(77, 77), (8191, 4096), (8192, 4095), (8193, 4096), (0, 100)].into_iter().enumerate()
    {
        let header = Header { len, ..MAP };
        // Without a length it is an acknowledgement, and that has no payload: see elsewhere.
        let header = if len == 0 { Header { sport: 1, ..header } } else { header };
        hostile.send(ep, &[frame(header, payload)]);
        hostile.until("counted", |counters| counters.recv_bad_map == number as u64 + 1);
    }
    hostile.victim_sends(b"no port is marked");
    assert_eq!(hostile.rds.counters().cong_update_received, 0);
    assert_stands(&hostile);
}

/// With any other flag it is a message of RDS to RDS, which there is none of.
#[test]
fn maps_with_other_flags_are_ignored() {
    let mut hostile = Hostile::new(38);
    let ep = hostile.connect();
    for (number, flags) in [0x03, 0x05, 0x21, 0x00].into_iter().enumerate() {
        let header = Header { sequence: 1 + number as u64, ..flagged(MAP, Flags::from_bits_retain(flags)) };
        hostile.send(ep, &[frame(header, 4096), frame(header, 4096)]);
        hostile.until("counted", |counters| counters.recv_bad_map == number as u64 + 1);
    }
    assert_eq!(hostile.rds.counters().cong_update_received, 0);
    assert_stands(&hostile);
}

#[test]
fn a_checksum_that_was_not_computed_is_taken() {
    let mut hostile = Hostile::new(39);
    let ep = hostile.connect();
    // The bytes of the header that the checksum makes up for are in its extensions.
    let sum = u16::from_be_bytes([data(1, 10).encode()[30], data(1, 10).encode()[31]]);
    let mut extensions = [0; 16];
    extensions[14..].copy_from_slice(&sum.to_be_bytes());
    let header = Header { extensions, ..data(1, 10) };
    assert_eq!(header.encode()[30..32], [0, 0]);
    hostile.say(ep, header);
    assert_eq!(hostile.received(), [10]);
    assert_stands(&hostile);
}

#[test]
fn extensions_that_run_over_end_there() {
    let mut hostile = Hostile::new(40);
    let ep = hostile.connect();
    let lists: [[u8; 16]; 5] = [
        // The last has a type and no room for its body; one of unknown length; the largest types there are.
        [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 3],
        [15, 3, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        [0xff; 16],
        [8, 0, 8, 0, 8, 0, 8, 0, 8, 0, 8, 0, 8, 0, 8, 0],
        [0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16],
    ];
    for (number, extensions) in lists.into_iter().enumerate() {
        hostile.say(ep, Header { extensions, ..data(1 + number as u64, 10) });
        let mut buffer = [0; 16];
        let received =
            hostile.rds.recvmsg(&mut hostile.adapters[0], hostile.socket, &mut buffer, MsgFlags::empty());
        let received = received.expect("there").message().expect("a message");
        assert_eq!((received.len, received.cookie), (10, None), "{extensions:?}");
    }
    assert_stands(&hostile);
}

/// Who tells of a key that is another socket's uses nothing up.
#[test]
fn keys_of_other_sockets_are_ignored() {
    let mut hostile = Hostile::new(41);
    let ep = hostile.connect();
    let other = hostile.rds.bind(SocketAddr::new(address(0), 4001)).expect("binds");
    let memory = hostile.adapters[0].dma_alloc(4096, 4096).expect("memory");
    let to = SocketAddr::new(address(1), 4000);
    let cookie = hostile
        .rds
        .get_mr_for_dest(&mut hostile.adapters[0], other, to, memory.as_slice(), RdmaFlags::USE_ONCE)
        .expect("room");
    for (number, rkey) in [cookie.rkey(), cookie.rkey() ^ 1, 0, u32::MAX].into_iter().enumerate() {
        let extensions = Extension::Rdma { rkey }.encode();
        hostile.say(ep, Header { extensions, ..data(1 + number as u64, 10) });
        assert_eq!(hostile.rds.counters().recv_bad_rkey, number as u64 + 1);
    }
    assert_eq!(hostile.received(), [10; 4], "the messages are there");
    assert_eq!(hostile.rds.free_mr(&mut hostile.adapters[0], other, cookie), Ok(()), "and so is the region");
    assert_stands(&hostile);
}

#[test]
fn pings_without_acknowledgement_are_answered_so_many_times() {
    let mut hostile = Hostile::new(42);
    let ep = hostile.connect();
    let mut sequence = 0;
    for _ in 0..5 {
        let pings = [(); 8].map(|()| {
            sequence += 1;
            frame(Header { dport: 0, ..data(sequence, 0) }, 0)
        });
        hostile.send(ep, &pings);
        hostile.until("pings", |counters| counters.recv_ping == sequence);
    }
    let counters = hostile.rds.counters();
    assert_eq!((counters.send_pong, counters.recv_ping_dropped), (16, 24));
    hostile.pass(5);
    let pongs: Vec<Header> = hostile.frames().into_iter().filter(is_message).collect();
    assert_eq!(pongs.len(), 16);
    assert!(pongs.iter().all(|pong| (pong.sport, pong.dport, pong.len) == (0, 4000, 0)));
    // With an acknowledgement it goes on.
    hostile.say(ep, Header::acknowledgement(pongs[15].sequence));
    hostile.say(ep, Header { dport: 0, ..data(100, 0) });
    assert_eq!(hostile.rds.counters().send_pong, 17);
    assert_stands(&hostile);
}

/// Port 1 to port 0 is the probe of another transport: acknowledged, never answered. From port 0 to port 0 there is nothing to say.
#[test]
fn probes_are_acknowledged_and_not_answered() {
    let mut hostile = Hostile::new(43);
    let ep = hostile.connect();
    hostile.pass(2);
    hostile.frames();
    for (sequence, sport, len) in [(1, 1, 0), (2, 1, 16), (3, 0, 16)] {
        hostile.say(ep, flagged(Header { sport, dport: 0, ..data(sequence, len) }, ACK));
        let answers = hostile.frames();
        assert_eq!(answers, [Header::acknowledgement(sequence)], "from port {sport}");
    }
    assert_eq!(hostile.rds.counters().send_pong, 0);
    assert_stands(&hostile);
}

/// No flow control was agreed on: credits mean nothing, however many.
#[test]
fn credits_are_ignored() {
    let mut hostile = Hostile::new(44);
    let ep = hostile.connect();
    for sequence in 1..200 {
        hostile.say(ep, Header { credit: 255, ..data(sequence, 1) });
        hostile.say(ep, Header { credit: 255, ..NOTHING });
        assert_eq!(hostile.received(), [1]);
    }
    hostile.victim_sends(b"no credit needed");
    let (header, _) = hostile.frame("the message", is_message);
    assert_eq!(header.credit, 0);
    assert_stands(&hostile);
}

#[test]
fn a_port_that_nobody_is_bound_to() {
    let mut hostile = Hostile::new(45);
    let ep = hostile.connect();
    hostile.pass(1);
    let free = hostile.unused_frames();
    hostile.say(ep, flagged(Header { dport: 9, ..data(1, 100) }, ACK));
    assert_eq!(hostile.frame("an acknowledgement", Header::is_acknowledgement).0.ack, 1);
    assert_eq!((hostile.rds.counters().recv_drop_no_sock, hostile.unused_frames()), (1, free));
    assert_stands(&hostile);
}

/// What the private data says of numbers and credits is not believed: Linux sends zeros, others something else.
#[test]
fn an_acknowledgement_in_a_request_is_ignored() {
    let mut hostile = Hostile::new(46);
    let ep = hostile.connect();
    hostile.victim_sends(b"not acknowledged");
    hostile.frame("the message", is_message);
    hostile.forget(ep);
    hostile.until("the connection goes", |counters| counters.conn_reset > 0);
    hostile.pass(100);
    let (mut bytes, len) = GOOD.encode();
    bytes[16..24].fill(0xff);
    bytes[24..28].copy_from_slice(&1000u32.to_be_bytes());
    let (ep, event) = hostile.ask(&bytes[..len]);
    assert_eq!(event, ConnectionEvent::Established);
    let (again, _) = hostile.frame("the message again", is_message);
    assert_eq!((again.flags, again.credit), (AGAIN, 0));
    assert_eq!(hostile.rds.unacknowledged(hostile.socket), Ok(1));
    hostile.say(ep, Header::acknowledgement(again.sequence));
    assert_eq!(hostile.rds.unacknowledged(hostile.socket), Ok(0));
}

/// A peer that marks all its ports holds its own messages back and nobody else's; and it is asked again when it is connected anew.
#[test]
fn a_map_with_all_ports_marked() {
    let mut hostile = Hostile::new(47);
    let ep = hostile.connect();
    // What is sent are the bytes after the header, whatever they are: here all ones.
    let slots = [frame(MAP, 4096), frame(MAP, 4096)];
    hostile.fill(0xff);
    hostile.send(ep, &slots);
    hostile.until("the map", |counters| counters.cong_update_received == 1);
    let to = SocketAddr::new(address(1), 4000);
    let refused = hostile.rds.sendmsg(&mut hostile.adapters[0], hostile.socket, Msg::to(&to, b"x"));
    assert_eq!(refused, Err(RdsError::Congested));
    let own = SocketAddr::new(address(0), 4000);
    hostile
        .rds
        .sendmsg(&mut hostile.adapters[0], hostile.socket, Msg::to(&own, b"to itself"))
        .expect("not congested");
    assert_eq!(hostile.received(), [9]);
    hostile.fill(0);
    hostile.send(ep, &slots);
    hostile.until("the next map", |counters| counters.cong_update_received == 2);
    hostile.victim_sends(b"again");
    assert_stands(&hostile);
}

/// Frames that the victim has no receive for wait at the peer, however many it sends; the victim's memory stays bounded, and when
/// it reads, all of them are there.
#[test]
fn more_messages_than_there_is_memory() {
    let mut hostile = Hostile::new(48);
    let ep = hostile.connect();
    let mut sent = 0;
    // A receiver's limits are soft, but the frames are 256.
    for _ in 0..60 {
        let room: [Frame; 8] = std::array::from_fn(|i| frame(data(1 + sent + i as u64, 4096), 4096));
        if hostile.try_send(ep, &room) {
            sent += 8;
        }
        hostile.pass(2);
    }
    assert!(hostile.rds.counters().recv_queued < 256 && sent < 480, "it was held back after {sent}");
    let mut received = 0;
    while received < sent {
        let more = hostile.received();
        assert!(more.iter().all(|len| *len == 4096));
        received += more.len() as u64;
        hostile.pass(1);
    }
    assert_stands(&hostile);
}

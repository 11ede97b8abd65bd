//! The tail of a burst, whose messages request no acknowledgement.

use std::net::SocketAddr;

use dat_nostd::{Duration, Wake};

use super::data;
use crate::connection::ACK_DELAY;
use crate::ids::ConnectionId;
use crate::protocol::testing::{Bench, CONFIG, ip};
use crate::reason::DownReason;
use crate::wire::{Flags, Header};

/// A node with a connection to 10.0.0.2 that has sent its map.
fn connected() -> (Bench, ConnectionId) {
    let mut bench = Bench::new(CONFIG, 256, 2);
    let id = bench.up(2);
    bench.pass(bench.now);
    (bench, id)
}

#[test]
fn one_acknowledgement_follows_a_burst() {
    let (mut bench, id) = connected();
    let socket = bench.socket(ip(1), 4000);
    let step = ACK_DELAY / 4;
    for sequence in 1..=7 {
        assert_eq!(bench.arrives(id, &data(sequence, 64), 64), Some(None));
        bench.pass(bench.now + step);
        bench.read(socket);
        assert_eq!(bench.protocol.counters.ack_sent, 0, "message {sequence}: the burst goes on");
    }
    let last = bench.now - step;
    bench.pass(last + ACK_DELAY - Duration::from_nanos(1));
    assert_eq!(bench.protocol.counters.ack_sent, 0);
    bench.pass(last + ACK_DELAY);
    assert_eq!(bench.protocol.counters.ack_sent, 1);
    bench.pass(last + Duration::from_secs(60));
    assert_eq!(bench.protocol.counters.ack_sent, 1, "one for each burst");
    assert_eq!(bench.protocol.poll_at(), Wake::Idle);
    assert_eq!(bench.arrives(id, &data(8, 64), 64), Some(None));
    bench.pass(bench.now + ACK_DELAY);
    assert_eq!(bench.protocol.counters.ack_sent, 2, "the next burst");
}

/// Replies carry acknowledgements, whether the fast path sends them or they wait in the queue.
#[test]
fn no_acknowledgement_follows_an_answer() {
    for queued in [false, true] {
        let (mut bench, id) = connected();
        let socket = bench.socket(ip(1), 4000);
        // The first message of a connection requests an acknowledgement.
        let header = Header { flags: Flags::ACK_REQUIRED, ..data(1, 64) };
        assert_eq!(bench.arrives(id, &header, 64), Some(None));
        bench.pass(bench.now);
        let asked = bench.protocol.counters.ack_sent;
        for sequence in 2..40 {
            let ack = bench.protocol.connection(id).peer.next_tx - 1;
            assert_eq!(bench.arrives(id, &Header { ack, ..data(sequence, 64) }, 64), Some(None));
            bench.read(socket);
            bench.queue_full = queued;
            bench.send(socket, SocketAddr::new(ip(2), 5000), 64).expect("room");
            bench.pass(bench.now + ACK_DELAY / 3);
        }
        let ack = bench.protocol.connection(id).peer.next_tx - 1;
        bench.protocol.acknowledged(id, ack);
        bench.pass(bench.now + ACK_DELAY * 9);
        assert_eq!(bench.protocol.counters.ack_sent, asked, "queued: {queued}");
    }
}

/// Linux acknowledges the tail of a burst on request. The pong goes to an unbound port, and is
/// acknowledged in turn.
#[test]
fn a_silent_peer_gets_one_ping() {
    let (mut bench, id) = connected();
    let socket = bench.socket(ip(1), 4000);
    let hidden = bench.socket(ip(1), u16::MAX);
    for _ in 0..3 {
        bench.send(socket, SocketAddr::new(ip(2), 5000), 64).expect("room");
    }
    bench.pass(bench.now + Duration::from_millis(999));
    assert_eq!((bench.protocol.counters.send_ping, bench.protocol.counters.ack_sent), (0, 0));
    bench.pass(bench.now + Duration::from_millis(1));
    let ping = bench.protocol.connection(id).peer.next_tx - 1;
    let queue = bench.protocol.connection(id).peer.queue.head();
    let ports = std::iter::successors(queue, |message| bench.protocol.frames.message(*message).next_message);
    let ping_frame = bench.protocol.frames.message(ports.last().expect("four messages"));
    assert_eq!((ping_frame.sequence, ping_frame.dport, ping_frame.len), (ping, 0, 0));
    assert_eq!((ping_frame.sport, ping_frame.flags), (u16::MAX - 1, Flags::ACK_REQUIRED.bits()));
    bench.pass(bench.now + Duration::from_secs(3));
    assert_eq!(bench.protocol.counters.send_ping, 1, "a ping is unanswered");
    assert_eq!(
        bench.protocol.counters.ack_sent, 3,
        "and acknowledgements find out whether the peer is there"
    );
    let pong = Header { sport: 0, dport: u16::MAX - 1, ack: ping, ..data(1, 0) };
    assert_eq!(bench.arrives(id, &pong, 0), Some(None));
    assert_eq!(bench.protocol.counters.recv_drop_no_sock, 1);
    assert_eq!(bench.read(hidden), None);
    assert_eq!(bench.protocol.sockets.open(socket).expect("open").sent.count(), 0);
    bench.pass(bench.now + Duration::from_secs(60));
    assert_eq!((bench.protocol.counters.send_ping, bench.protocol.counters.ack_sent), (1, 4));
    assert!(bench.protocol.connection(id).is_idle());
}

/// Messages of the peer carry acknowledgements.
#[test]
fn a_peer_that_sends_is_not_probed() {
    let (mut bench, id) = connected();
    let socket = bench.socket(ip(1), 4000);
    for sequence in 1..20 {
        bench.send(socket, SocketAddr::new(ip(2), 5000), 64).expect("room");
        let before = bench.protocol.connection(id).peer.next_tx - 2;
        let ack = if sequence == 1 { 0 } else { before };
        assert_eq!(bench.arrives(id, &Header { ack, ..data(sequence, 64) }, 64), Some(None));
        bench.read(socket);
        bench.pass(bench.now + Duration::from_millis(700));
    }
    assert_eq!(bench.protocol.counters.send_ping, 0);
}

/// Retransmitted messages request acknowledgements. A ping alone is no reason to reconnect.
#[test]
fn a_ping_does_not_outlive_its_endpoint() {
    let (mut bench, id) = connected();
    let socket = bench.socket(ip(1), 4000);
    bench.send(socket, SocketAddr::new(ip(2), 5000), 64).expect("room");
    bench.pass(bench.now + Duration::from_secs(1));
    assert_eq!(bench.protocol.counters.send_ping, 1);
    let ping = bench.protocol.connection(id).peer.next_tx - 1;
    bench.down(id, DownReason::Broken);
    bench.up(2);
    assert_eq!(bench.flush(id), [ping - 1], "the message, and not the ping");
    bench.complete(id);
    bench.protocol.acknowledged(id, ping - 1);
    bench.down(id, DownReason::Broken);
    assert!(!bench.protocol.connection(id).wants_up());
    assert_eq!(bench.protocol.connection(id).tx.pongs, 0);
}

//! A socket whose message was refused for lack of space is ready exactly when the message would be
//! accepted.

use std::net::SocketAddr;

use crate::config::RdsConfig;
use crate::error::RdsError;
use crate::ids::{ConnectionId, SocketHandle};
use crate::protocol::testing::{Bench, CONFIG, ip};
use crate::reason::DownReason;
use crate::wire::{FRAGMENT_LEN, Header, fragments};

fn peer(last: u8) -> SocketAddr {
    SocketAddr::new(ip(last), 5000)
}

/// Sends until space runs out.
fn fill(bench: &mut Bench, from: SocketHandle, to: SocketAddr, len: usize) -> usize {
    let mut sent = 0;
    loop {
        match bench.send(from, to, len) {
            Ok(()) => sent += 1,
            Err(error) => {
                assert_eq!(error, RdsError::NoBufferSpace);
                return sent;
            }
        }
    }
}

/// Returns whether readiness agrees with the result of a send.
fn agrees(bench: &mut Bench, from: SocketHandle, to: SocketAddr, len: usize) -> bool {
    let ready = bench.protocol.has_room(from) == Ok(true);
    let taken = bench.send(from, to, len);
    assert_eq!(ready, taken.is_ok(), "{taken:?}");
    ready
}

/// The peer acknowledges one more message.
fn acknowledge(bench: &mut Bench, id: ConnectionId) {
    let queue = &bench.protocol.connection(id).peer.queue;
    let sequence = bench.protocol.frames.message(queue.head().expect("something")).sequence;
    bench.complete(id);
    bench.protocol.acknowledged(id, sequence);
}

#[test]
fn a_message_of_many_frames_waits_for_all_of_them() {
    let mut bench = Bench::new(CONFIG, 1024, 4);
    let socket = bench.socket(ip(1), 4000);
    bench.protocol.sockets.open_mut(socket).expect("open").sent.set_limit(usize::MAX);
    let id = bench.up(2);
    fill(&mut bench, socket, peer(2), 64);
    bench.flush(id);
    let len = 20 * FRAGMENT_LEN;
    assert_eq!(bench.send(socket, peer(2), len), Err(RdsError::NoBufferSpace));
    let mut acknowledged = 0;
    while !agrees(&mut bench, socket, peer(2), len) {
        acknowledge(&mut bench, id);
        acknowledged += 1;
    }
    // A connection leaves as many common frames as it uses.
    assert!((fragments(len) / 2..=fragments(len)).contains(&acknowledged), "{acknowledged}");
}

/// Holds for any state of the connections to peers.
#[test]
fn a_message_to_this_node_waits_for_frames_that_are_received_into() {
    let mut bench = Bench::new(CONFIG, 256, 2);
    let (sender, receiver) = (bench.socket(ip(1), 4000), bench.socket(ip(1), 4001));
    for handle in [sender, receiver] {
        let socket = bench.protocol.sockets.open_mut(handle).expect("open");
        socket.sent.set_limit(usize::MAX);
        socket.unread.set_limit(usize::MAX);
    }
    bench.protocol.limits.congested_frames = usize::MAX;
    bench.protocol.limits.congested_common = u32::MAX;
    let local = SocketAddr::new(ip(1), 4001);
    fill(&mut bench, sender, local, 2 * FRAGMENT_LEN);
    let mut read = 0;
    while !agrees(&mut bench, sender, local, 3 * FRAGMENT_LEN) {
        bench.read(receiver).expect("something");
        read += 1;
    }
    assert_eq!(read, 2, "messages of two frames");
    // A dead peer that has used up its part of the sending side does not matter.
    fill(&mut bench, sender, peer(2), 64);
    fill(&mut bench, sender, local, 64);
    bench.read(receiver).expect("something");
    assert!(agrees(&mut bench, sender, local, 64));
    // Space on the sending side does not matter either.
    let id = bench.up(2);
    fill(&mut bench, sender, local, 64);
    bench.down(id, DownReason::Disconnected);
    assert!(!agrees(&mut bench, sender, local, 64));
}

#[test]
fn a_new_peer_waits_for_an_entry() {
    let mut bench = Bench::new(CONFIG, 256, 2);
    let socket = bench.socket(ip(1), 4000);
    for last in [2, 3] {
        bench.send(socket, peer(last), 64).expect("room");
    }
    assert_eq!(bench.send(socket, peer(4), 64), Err(RdsError::NoBufferSpace));
    assert!(!agrees(&mut bench, socket, peer(4), 64));
    let id = bench.up(3);
    bench.flush(id);
    acknowledge(&mut bench, id);
    bench.down(id, DownReason::Disconnected);
    assert!(agrees(&mut bench, socket, peer(4), 64));
}

/// A socket stops waiting for frames of a connection whose entry is reused for another peer.
#[test]
fn nobody_waits_for_an_entrys_former_peer() {
    let mut bench = Bench::new(CONFIG, 256, 1);
    let (socket, other) = (bench.socket(ip(1), 4000), bench.socket(ip(1), 4001));
    fill(&mut bench, socket, peer(2), 64);
    assert_eq!(bench.protocol.has_room(socket), Ok(false));
    let id = bench.up(2);
    bench.flush(id);
    while !bench.protocol.connection(id).peer.queue.is_empty() {
        acknowledge(&mut bench, id);
    }
    bench.down(id, DownReason::Disconnected);
    fill(&mut bench, other, peer(3), 64);
    assert_eq!(bench.protocol.has_room(socket), Ok(true));
    assert_eq!(bench.send(socket, peer(2), 64), Err(RdsError::NoBufferSpace), "and now for an entry");
    assert_eq!(bench.protocol.has_room(socket), Ok(false));
}

/// While receives of a failed device are withheld, shares may exceed the free frames. Accepted
/// messages are complete, and a socket is ready only with free frames.
#[test]
fn what_is_withheld_is_no_room() {
    let mut bench = Bench::new(RdsConfig { send_frames: 32, ..CONFIG }, 512, 1);
    let (sender, receiver) = (bench.socket(ip(1), 4000), bench.socket(ip(1), 4001));
    for handle in [sender, receiver] {
        let socket = bench.protocol.sockets.open_mut(handle).expect("open");
        socket.sent.set_limit(usize::MAX);
        socket.unread.set_limit(usize::MAX);
    }
    bench.protocol.limits.congested_frames = usize::MAX;
    bench.protocol.limits.congested_common = u32::MAX;
    let id = bench.up(2);
    let mut sequence = 0;
    while bench.refill(id) > 0 && bench.protocol.receiving.beyond() < bench.protocol.receiving.common() / 2 {
        sequence += 1;
        let header = Header { sequence, len: 64, sport: 5000, dport: 4001, ..Header::acknowledgement(0) };
        assert_eq!(bench.arrives(id, &header, 64), Some(None));
    }
    bench.refill(id);
    let withheld = bench.protocol.connection(id).rx.ring.outstanding();
    assert!(withheld > 3, "{withheld}");
    bench.protocol.endpoint_gone(id, true);
    bench.protocol.went_down(id, DownReason::Disconnected, bench.now);
    let len = 3 * FRAGMENT_LEN;
    for to in [peer(2), SocketAddr::new(ip(1), 4001)] {
        fill(&mut bench, sender, to, len);
        assert!(!agrees(&mut bench, sender, to, len));
    }
    assert!(bench.protocol.frames.free_count() < 3);
    bench.protocol.frames.release();
    assert!(bench.protocol.frames.free_count() >= withheld.into());
    assert!(agrees(&mut bench, sender, SocketAddr::new(ip(1), 4001), len));
    // Every message has its full length.
    let mut buffer = [0; 3 * FRAGMENT_LEN];
    let mut whole = 0;
    while let Ok((received, _)) = bench.protocol.take_message(receiver, &mut buffer) {
        let local = received.message_len == len;
        assert!(!local || buffer.iter().all(|byte| *byte == 7), "message {whole}");
        whole += usize::from(local);
        buffer.fill(0);
    }
    assert!(whole > 1, "{whole}");
    let mut queued = bench.protocol.connection(id).peer.queue.head();
    while let Some(message) = queued {
        assert_eq!(bench.protocol.frames.message(message).frames, 3);
        queued = bench.protocol.frames.message(message).next_message;
    }
}

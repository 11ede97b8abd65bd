//! Isolation of peers from each other, and invariants across breaks, boots and reused entries.

mod absent;
mod damping;
mod readiness;
mod reserve;
mod runs;
mod tails;
mod unread;

use std::net::SocketAddr;
use std::vec::Vec;

use dat_nostd::{Duration, Instant};
use proptest::prelude::*;

use crate::config::RdsConfig;
use crate::connection::{Connection, PARTIAL_LIMIT, State};
use crate::error::RdsError;
use crate::frames::Frame;
use crate::generation::Generation;
use crate::ids::{ConnectionId, OperationId};
use crate::protocol::testing::{Bench, CONFIG, ip};
use crate::protocol::{Admission, Body, Due, Protocol, Request};
use crate::quota::Buffer;
use crate::rdma::Operation;
use crate::reason::DownReason;
use crate::socket::key;
use crate::wire::{FRAGMENT_LEN, Flags, Header};

fn data(sequence: u64, len: u32) -> Header {
    Header { sequence, len, sport: 5000, dport: 4000, ..Header::acknowledgement(0) }
}

/// A peer sends the longest message without its end. The messages of another peer still arrive.
/// After the deadline the first connection breaks, and frees all frames.
#[test]
fn a_message_that_is_not_continued_blocks_nobody_and_ends() {
    let mut bench = Bench::new(CONFIG, 1024, 4);
    let free = bench.protocol.frames.free_count();
    let socket = bench.socket(ip(1), 4000);
    let (staller, honest) = (bench.up(2), bench.up(3));
    let len = bench.protocol.limits.longest_received as u32;
    for _ in 0..len as usize / FRAGMENT_LEN - 1 {
        assert!(bench.refill(staller) > 0, "a message that has begun can be completed");
        assert_eq!(bench.arrives(staller, &data(1, len), FRAGMENT_LEN), Some(None));
    }
    for sequence in 1..500 {
        assert!(bench.refill(honest) >= 2, "message {sequence}");
        assert_eq!(bench.arrives(honest, &data(sequence, 64), 64), Some(None));
        assert_eq!(bench.read(socket), Some(64));
    }
    bench.refill(staller);
    assert_eq!(bench.protocol.due(staller, bench.now), Due::Serve);
    bench.now += 3 * PARTIAL_LIMIT;
    assert_eq!(bench.protocol.due(honest, bench.now), Due::Serve);
    assert_eq!(bench.protocol.due(staller, bench.now), Due::Break(DownReason::Stalled));
    bench.down(staller, DownReason::Stalled);
    bench.down(honest, DownReason::Disconnected);
    assert_eq!(bench.protocol.frames.free_count(), free);
    assert_eq!(bench.protocol.receiving.beyond(), 0);
}

/// The sender of an unfinished message is probed.
#[test]
fn a_peer_in_the_middle_of_a_message_is_probed() {
    let mut bench = Bench::new(CONFIG, 256, 2);
    bench.socket(ip(1), 4000);
    let id = bench.up(2);
    bench.refill(id);
    bench.flush(id);
    bench.complete(id);
    bench.arrives(id, &data(1, 9000), FRAGMENT_LEN);
    bench.protocol.due(id, bench.now);
    assert!(!bench.protocol.connection(id).rx.ack_wanted);
    bench.now += Duration::from_secs(1);
    bench.protocol.due(id, bench.now);
    assert!(bench.protocol.connection(id).rx.ack_wanted);
}

/// An unread socket occupies the frames of the peer that fills it, and of no other.
#[test]
fn a_flood_takes_only_its_own_share() {
    let mut bench = Bench::new(CONFIG, 512, 4);
    bench.socket(ip(1), 4000);
    let read = bench.socket(ip(1), 4001);
    let (flood, honest) = (bench.up(2), bench.up(3));
    let mut sequence = 0;
    while bench.refill(flood) > 0 {
        sequence += 1;
        assert_eq!(bench.arrives(flood, &data(sequence, 64), 64), Some(None));
        assert!(sequence < 37 * 512, "that many unread messages are in one frame");
    }
    assert!(bench.protocol.sockets.iter().any(|(_, socket)| socket.port == 4000 && socket.congested));
    for sequence in 1..300 {
        assert!(bench.refill(honest) >= 2, "message {sequence}");
        assert_eq!(bench.arrives(honest, &Header { dport: 4001, ..data(sequence, 64) }, 64), Some(None));
        assert_eq!(bench.read(read), Some(64));
    }
    assert!(!bench.protocol.sockets.open(read).unwrap().congested, "the one that is read from is not");
}

/// A dead peer takes as many messages as its share holds, and its part of the common frames.
#[test]
fn a_dead_peer_does_not_block_sending_to_others() {
    let mut bench = Bench::new(CONFIG, 1024, 4);
    let socket = bench.socket(ip(1), 4000);
    let (dead, alive) = (SocketAddr::new(ip(2), 5000), SocketAddr::new(ip(3), 5000));
    let mut queued = 0;
    let refused = loop {
        match bench.send(socket, dead, 64) {
            Ok(()) => queued += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((refused, refused.errno()), (RdsError::NoBufferSpace, 11), "no congestion");
    assert!(queued < 512);
    let id = bench.up(3);
    for round in 0..100 {
        bench.send(socket, alive, 64).unwrap_or_else(|error| panic!("{round}: {error}"));
        let sent = bench.flush(id);
        bench.complete(id);
        bench.protocol.acknowledged(id, *sent.last().expect("posted"));
    }
    // Messages of several frames, too.
    assert_eq!(bench.send(socket, alive, 20 * FRAGMENT_LEN), Ok(()));
    assert_eq!(bench.protocol.connection(id).peer.frames.count(), 20);
}

/// A node with many addresses gets the connections of one peer. Afterwards their entries are free
/// for others.
#[test]
fn addresses_that_one_port_makes_up_do_not_fill_the_table() {
    let mut bench = Bench::new(CONFIG, 512, 8);
    let mut accepted = Vec::new();
    for last in 10..200 {
        let request = Request { remote: key(ip(last)), tos: 0, gid: [9; 16] };
        if let Admission::Accept(id, None) = bench.protocol.admit(&request, bench.now) {
            bench.protocol.accepting(id, request.gid, bench.now);
            let connection = bench.protocol.connections.at_mut(id);
            (connection.state, connection.objects.ep) = (State::Accepting, 1);
            accepted.push(id);
        }
    }
    assert_eq!(accepted.len(), usize::from(CONFIG.connections_per_peer));
    for id in accepted {
        bench.down(id, DownReason::AcceptFailed);
    }
    for last in 200..208 {
        let request = Request { remote: key(ip(last)), tos: 0, gid: [last; 16] };
        let admission = bench.protocol.admit(&request, bench.now);
        assert!(matches!(admission, Admission::Accept(..)), "{last}: {admission:?}");
        bench.up(last);
    }
}

/// A request with the address of a connected peer, but from another port, replaces nothing. It only
/// triggers a check whether the peer is alive. A request from the same port means that the peer has
/// restarted.
#[test]
fn a_name_stays_where_it_is_while_it_is_there() {
    let mut bench = Bench::new(CONFIG, 256, 2);
    let id = bench.up(2);
    bench.flush(id);
    bench.complete(id);
    bench.now += Duration::from_secs(5);
    let forged = Request { remote: key(ip(2)), tos: 0, gid: [9; 16] };
    assert_eq!(bench.protocol.admit(&forged, bench.now), Admission::Refuse);
    assert!(bench.protocol.connection(id).rx.ack_wanted, "is it there?");
    let own = Request { gid: [2; 16], ..forged };
    assert_eq!(
        bench.protocol.admit(&own, bench.now),
        Admission::Accept(id, Some(DownReason::Replaced)),
        "it has begun anew"
    );
    bench.down(id, DownReason::Broken);
    assert_eq!(bench.protocol.admit(&forged, bench.now), Admission::Accept(id, None), "it has moved");
}

/// A peer that is down is reconnected when a port clears, because a socket of the peer may wait for
/// it, but not when the port becomes full, and not if the peer does not return.
#[test]
fn nobody_is_asked_for_to_hear_that_a_port_is_full() {
    let mut bench = Bench::new(CONFIG, 256, 2);
    let socket = bench.socket(ip(1), 4000);
    let slot = usize::from(socket.slot);
    let id = bench.up(2);
    bench.down(id, DownReason::Disconnected);
    let fill = |bench: &mut Bench, bytes| {
        let socket = bench.protocol.sockets.open_mut(socket).expect("open");
        socket.unread = Buffer::new(100);
        socket.unread.charge(bytes, 0);
        bench.protocol.crowded(slot);
        bench.protocol.relieve(slot);
        bench.protocol.connection(id).wants_up()
    };
    assert!(!fill(&mut bench, 101) && bench.protocol.own_port_is_marked(4000));
    assert!(fill(&mut bench, 0) && !bench.protocol.own_port_is_marked(4000));
    for _ in 0..20 {
        bench.down(id, DownReason::Unreachable);
    }
    assert!(!fill(&mut bench, 101) && !fill(&mut bench, 0));
}

/// After an entry was reused for another peer and then for its first one, duplicates are still
/// recognized, and new messages have larger sequence numbers than all earlier ones.
#[test]
fn numbers_outlive_their_entries() {
    let mut bench = Bench::new(CONFIG, 256, 2);
    let socket = bench.socket(ip(1), 4000);
    let id = bench.up(2);
    bench.refill(id);
    assert_eq!(bench.arrives(id, &data(41, 64), 64), Some(None));
    bench.send(socket, SocketAddr::new(ip(2), 5000), 64).expect("room");
    let sent = bench.flush(id);
    bench.complete(id);
    bench.protocol.acknowledged(id, sent[0]);
    assert_eq!(bench.read(socket), Some(64));
    bench.down(id, DownReason::Disconnected);
    for last in 3..9 {
        bench.now += Duration::from_secs(1);
        bench.protocol.now = bench.now;
        let other = bench.up(last);
        bench.down(other, DownReason::Disconnected);
    }
    assert!(bench.protocol.connections.find(key(ip(2)), 0).is_none(), "its entry is another's");
    let id = bench.up(2);
    bench.refill(id);
    let again = Flags::ACK_REQUIRED | Flags::RETRANSMITTED;
    assert_eq!(bench.arrives(id, &Header { flags: again, ..data(41, 64) }, 64), Some(None));
    assert_eq!(bench.protocol.counters.recv_drop_old_seq, 1);
    bench.send(socket, SocketAddr::new(ip(2), 5000), 64).expect("room");
    assert!(bench.flush(id)[0] > sent[0]);
}

/// Messages of a later boot have larger sequence numbers than all of an earlier boot, however many
/// that sent.
#[test]
fn no_boot_numbers_a_message_as_an_earlier_one_did() {
    let boot = |seconds| RdsConfig::new(Generation::from_wall_clock(Duration::from_secs(seconds)));
    let mut last = 0;
    for seconds in [1_700_000_000, 1_700_000_001, 1_700_000_002] {
        let mut bench = Bench::new(boot(seconds), 256, 2);
        let socket = bench.socket(ip(1), 4000);
        let id = bench.up(2);
        for _ in 0..50 {
            bench.send(socket, SocketAddr::new(ip(2), 5000), 1).expect("room");
            let sent = bench.flush(id);
            assert!(sent[0] > last, "{} after {last}", sent[0]);
            last = sent[0];
            bench.complete(id);
            bench.protocol.acknowledged(id, last);
        }
    }
}

/// The unspecified address is unreachable, before and after a socket has sent, bound or not.
#[test]
fn unspecified_addresses_reach_nobody() {
    let mut bench = Bench::new(CONFIG, 256, 2);
    let socket = bench.socket(ip(1), 4000);
    bench.up(2);
    let nowhere: [SocketAddr; 2] = ["[::]:5000".parse().unwrap(), "0.0.0.0:5000".parse().unwrap()];
    let unbound = bench.protocol.sockets.create(crate::socket::Socket::EMPTY).expect("room");
    for to in nowhere {
        assert_eq!(bench.send(socket, to, 0), Err(RdsError::InvalidArgument));
        assert_eq!(bench.send(unbound, to, 0), Err(RdsError::InvalidArgument));
    }
    bench.send(socket, SocketAddr::new(ip(2), 5000), 0).expect("goes");
    for to in nowhere {
        assert_eq!(bench.send(socket, to, 0), Err(RdsError::InvalidArgument));
    }
}

/// The same with IPv6 addresses, whose peers have no IPv4 address to confuse with.
#[test]
fn unspecified_addresses_reach_no_ipv6_peer() {
    let mut bench = Bench::new(CONFIG, 256, 2);
    let v6 = |last: u16| std::net::IpAddr::V6(std::net::Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last));
    bench.protocol.local = key(v6(1));
    let socket = bench.socket(v6(1), 4000);
    bench.send(socket, SocketAddr::new(v6(2), 5000), 0).expect("goes");
    let id = bench.protocol.connections.find(key(v6(2)), 0).expect("an entry");
    bench.protocol.came_up(id, None, bench.now);
    assert_eq!(bench.flush(id).len(), 1);
    for to in ["0.0.0.0:5000", "[::]:5000", "[::ffff:0.0.0.0]:5000", "255.255.255.255:5000"] {
        assert_eq!(bench.send(socket, to.parse().unwrap(), 0), Err(RdsError::InvalidArgument), "{to}");
    }
    assert_eq!(bench.send(socket, "10.0.0.2:5000".parse().unwrap(), 0), Err(RdsError::NotSupported));
    bench.send(socket, SocketAddr::new(v6(2), 5000), 0).expect("goes");
    assert_eq!(bench.flush(id).len(), 1);
}

/// An unusable address is also unusable mapped to IPv6.
#[test]
fn mapped_addresses_are_what_they_map() {
    let mut bench = Bench::new(CONFIG, 256, 2);
    let socket = bench.socket(ip(1), 4000);
    for to in ["[::ffff:0.0.0.0]:5000", "[::ffff:224.0.0.1]:5000", "[::ffff:255.255.255.255]:5000"] {
        assert_eq!(bench.send(socket, to.parse().unwrap(), 0), Err(RdsError::InvalidArgument), "{to}");
    }
    bench.send(socket, "[::ffff:10.0.0.2]:5000".parse().unwrap(), 0).expect("as to 10.0.0.2");
    assert!(bench.protocol.connections.find(key(ip(2)), 0).is_some());
}

/// Full sockets that are unbound or bound to a loopback address are not marked in the map.
#[test]
fn only_sockets_that_peers_reach_are_marked() {
    let mut bench = Bench::new(CONFIG, 256, 2);
    let loopback = bench.socket("127.0.0.1".parse().unwrap(), 4000);
    let unbound = bench.protocol.sockets.create(crate::socket::Socket::EMPTY).expect("room");
    for handle in [loopback, unbound] {
        let slot = usize::from(handle.slot);
        let socket = bench.protocol.sockets.get_mut(slot).expect("open");
        socket.unread = Buffer::new(10);
        socket.unread.charge(100, 0);
        bench.protocol.crowded(slot);
        assert!(bench.protocol.sockets.get(slot).expect("open").congested);
    }
    assert!(!bench.protocol.own_port_is_marked(4000) && !bench.protocol.own_port_is_marked(0));
    assert_eq!(bench.protocol.counters.cong_update_queued, 0);
    let bound = bench.socket(ip(1), 4000);
    let slot = usize::from(bound.slot);
    let socket = bench.protocol.sockets.get_mut(slot).expect("open");
    socket.unread = Buffer::new(10);
    socket.unread.charge(100, 0);
    bench.protocol.crowded(slot);
    assert!(bench.protocol.own_port_is_marked(4000));
}

/// Peers without due work are not visited, however many they are.
#[test]
fn only_what_is_due_is_looked_at() {
    let mut bench = Bench::new(CONFIG, 1024, 20);
    let socket = bench.socket(ip(1), 4000);
    let ids: Vec<ConnectionId> = (2..22).map(|last| bench.up(last)).collect();
    for &id in &ids {
        bench.refill(id);
        bench.flush(id);
        bench.complete(id);
    }
    while let Some(id) = bench.protocol.connections.pop_due() {
        bench.protocol.due(id, bench.now);
    }
    assert_eq!(bench.protocol.connections.deadline(), None, "nobody waits for anybody");
    bench.send(socket, SocketAddr::new(ip(7), 5000), 64).expect("room");
    let due: Vec<ConnectionId> = std::iter::from_fn(|| bench.protocol.connections.pop_due()).collect();
    assert_eq!(due, [ids[5]]);
}

proptest! {
    /// With messages of any lengths, and breaks and acknowledgements at any time, posts are in
    /// order, only unacknowledged messages are retransmitted, and in the end all frames are free.
    #[test]
    fn breaks_lose_nothing_and_change_no_order(steps in prop::collection::vec((0u8..6, 0usize..9000), 1..120)) {
        let mut bench = Bench::new(CONFIG, 256, 2);
        let free = bench.protocol.frames.free_count();
        let socket = bench.socket(ip(1), 4000);
        let id = bench.up(2);
        let (mut posted, mut acknowledged, mut accepted) = (Vec::new(), 0, 0usize);
        let mut first = None;
        for (action, number) in steps {
            match action {
                0..3 => {
                    bench.queue_full = number % 5 == 0;
                    accepted += usize::from(bench.send(socket, SocketAddr::new(ip(2), 5000), number).is_ok());
                }
                3 => {
                    let sent = bench.flush(id);
                    for sequence in sent {
                        first = first.or(Some(sequence));
                        // Fragments of a message have its sequence number.
                        prop_assert!(posted.last().is_none_or(|last| *last == sequence || *last + 1 == sequence));
                        posted.push(sequence);
                    }
                    bench.complete(id);
                }
                4 => {
                    let complete = bench.protocol.connection(id).tx.next.map(|m| bench.protocol.frames.message(m).sequence);
                    let ack = posted.last().copied().filter(|last| complete.is_none_or(|next| *last < next));
                    if let Some(ack) = ack {
                        bench.protocol.acknowledged(id, ack);
                        acknowledged = ack;
                    }
                }
                _ => {
                    bench.down(id, DownReason::Broken);
                    bench.up(2);
                    // Unacknowledged messages are retransmitted, from the first on.
                    posted.clear();
                    if acknowledged != 0 {
                        posted.push(acknowledged);
                    }
                }
            }
        }
        while !bench.protocol.connection(id).peer.queue.is_empty() {
            posted.extend(bench.flush(id));
            bench.complete(id);
            let last = *posted.last().expect("something was posted");
            bench.protocol.acknowledged(id, last);
        }
        if let Some(first) = first.or(posted.first().copied().filter(|_| acknowledged == 0)) {
            let last = posted.last().copied().unwrap_or(acknowledged);
            prop_assert_eq!((last + 1 - first) as usize, accepted);
        }
        prop_assert_eq!(bench.protocol.sockets.open(socket).unwrap().sent.bytes(), 0);
        bench.down(id, DownReason::Disconnected);
        prop_assert_eq!(bench.protocol.frames.free_count(), free);
        prop_assert_eq!(bench.protocol.sending.beyond(), 0);
    }
}

proptest! {
    /// Completions and acknowledgements arrive separately, for any part of the messages, of one
    /// frame or several. Acknowledged messages count against no socket once they are complete, and
    /// completed ones are free up to the first that is not complete.
    #[test]
    fn what_is_over_is_free(steps in prop::collection::vec((0u8..6, 0usize..9000), 1..120)) {
        let mut bench = Bench::new(CONFIG, 256, 2);
        let socket = bench.socket(ip(1), 4000);
        let id = bench.up(2);
        bench.flush(id);
        let free = bench.protocol.frames.free_count();
        for (action, number) in steps {
            let part = |from: u64, to: u64| from + (to - from) * number as u64 / 8999;
            let Connection { peer, tx, .. } = bench.protocol.connection(id);
            match action {
                0..3 => {
                    let len = if action == 0 { number } else { number % 64 };
                    let _ = bench.send(socket, SocketAddr::new(ip(2), 5000), len);
                }
                3 => {
                    bench.flush(id);
                }
                4 => {
                    let done = part(tx.completed, tx.posts);
                    bench.complete_to(id, done);
                }
                _ => {
                    let sent = tx.next.map(|next| bench.protocol.frames.message(next).sequence);
                    let ack = part(tx.highest_ack, sent.unwrap_or(peer.next_tx) - 1);
                    bench.protocol.acknowledged(id, ack);
                }
            }
            let Protocol { connections, frames, sockets, .. } = &bench.protocol;
            let Connection { peer, tx, .. } = connections.at(id);
            let queue = std::iter::successors(peer.queue.head(), |message| frames.message(*message).next_message);
            let queue: Vec<_> = queue.map(|message| (Some(message), frames.message(message))).collect();
            let there = |message: &Frame| message.sequence <= tx.highest_ack;
            if let Some((head, first)) = queue.first() {
                prop_assert!(*head == tx.next || !there(first) || first.last_post > tx.completed);
            }
            let used: usize = queue.iter().map(|(_, message)| usize::from(message.frames)).sum();
            prop_assert_eq!(frames.free_count(), free - used);
            let open = queue.iter().filter(|(_, message)| !there(message));
            let (count, bytes) =
                open.fold((0, 0), |(count, bytes), (_, message)| (count + 1, bytes + message.len as usize));
            let (early, early_bytes) = bench.protocol.acknowledged_early(socket);
            let counted = &sockets.open(socket).unwrap().sent;
            prop_assert_eq!((counted.count() - early, counted.bytes() - early_bytes), (count, bytes));
            // Only messages that the HCA has not completed wait to be uncounted.
            prop_assert!(early == 0 || queue[0].1.last_post > tx.completed);
        }
    }
}

/// Messages that wait for the first connection get new sequence numbers. Messages that were sent
/// retain theirs.
#[test]
fn numbers_go_on_where_the_peer_says() {
    let mut bench = Bench::new(CONFIG, 256, 2);
    let socket = bench.socket(ip(1), 4000);
    let id = bench.protocol.connection_for(key(ip(2)), 0).expect("room");
    for _ in 0..2 {
        bench.send(socket, SocketAddr::new(ip(2), 5000), 64).expect("room");
    }
    let next = bench.protocol.connection(id).peer.next_tx;
    bench.protocol.peer_expects(id, next - 2);
    bench.protocol.peer_expects(id, 0);
    bench.protocol.peer_expects(id, u64::MAX);
    assert_eq!(
        (bench.protocol.counters.send_numbers_raised, bench.protocol.connection(id).peer.next_tx),
        (0, next)
    );
    bench.protocol.peer_expects(id, 7 << 16);
    assert_eq!(bench.protocol.counters.send_numbers_raised, 1);
    bench.up(2);
    assert_eq!(bench.flush(id), [7 << 16, (7 << 16) + 1]);
    bench.down(id, DownReason::Broken);
    bench.protocol.peer_expects(id, 9 << 16);
    bench.up(2);
    assert_eq!(bench.flush(id), [7 << 16, (7 << 16) + 1], "they may be what the peer has had");
}

#[test]
fn deadlines_are_told() {
    let mut bench = Bench::new(CONFIG, 256, 2);
    let socket = bench.socket(ip(1), 4000);
    let id = bench.up(2);
    bench.send(socket, SocketAddr::new(ip(2), 5000), 64).expect("room");
    bench.protocol.due(id, bench.now);
    let at = bench.protocol.connections.deadline();
    assert_eq!(at, Some(bench.now + Duration::from_secs(1)), "a look whether the peer is there");
    assert_eq!(bench.protocol.poll_at(), dat_nostd::Wake::At(Instant::from_nanos(1_000_000_001)));
}

/// A peer may send 1 MiB, but this node has fewer frames.
#[test]
fn too_long_message_is_acknowledged_and_dropped() {
    let mut bench = Bench::new(CONFIG, 256, 4);
    let socket = bench.socket(ip(1), 4000);
    let id = bench.up(2);
    assert_eq!(bench.protocol.limits.longest_received, 64 * FRAGMENT_LEN);
    bench.refill(id);
    let in_use = |bench: &Bench| bench.protocol.receiving.beyond();
    let before = in_use(&bench);
    for (number, fragments) in [(1, 65), (2, 256), (3, 64)] {
        let header = Header { flags: Flags::ACK_REQUIRED, ..data(number, (fragments * FRAGMENT_LEN) as u32) };
        for _ in 0..fragments {
            assert!(bench.refill(id) > 0);
            assert_eq!(bench.arrives(id, &header, FRAGMENT_LEN), Some(None));
        }
        let Connection { peer, rx, .. } = bench.protocol.connection(id);
        assert_eq!((rx.ack_value, rx.ack_wanted, peer.next_rx), (number, true, number + 1));
        assert_eq!(bench.protocol.counters.recv_drop_too_long, number.min(2));
        assert_eq!(bench.read(socket), (number == 3).then_some(fragments * FRAGMENT_LEN));
    }
    assert_eq!(in_use(&bench), before);
    bench.refill(id);
    let mixed = [data(4, 300 << 10), data(5, 300 << 10)];
    assert_eq!(bench.arrives(id, &mixed[0], FRAGMENT_LEN), Some(None));
    let broken = bench.arrives(id, &mixed[1], FRAGMENT_LEN);
    assert_eq!(broken, Some(Some(DownReason::FragmentMismatch)));
}

#[test]
fn message_longer_than_the_peer_accepts_is_refused() {
    let mut bench = Bench::new(CONFIG, 1024, 4);
    let socket = bench.socket(ip(1), 4000);
    let (id, to) = (bench.up(2), SocketAddr::new(ip(2), 5000));
    let longest = 8 * FRAGMENT_LEN;
    bench.protocol.connections.at_mut(id).tx.set_longest(longest as u32);
    assert_eq!(bench.send(socket, to, longest), Ok(()));
    assert_eq!(bench.send(socket, to, longest + 1), Err(RdsError::MessageSize));
    let lent = |bench: &mut Bench, len| bench.protocol.compose(socket, &to, Body::Lent(len), false).err();
    assert_eq!(lent(&mut bench, longest), None);
    assert_eq!(lent(&mut bench, longest + 1), Some(RdsError::MessageSize));
}

/// Cancelled operations in flight get 100 ms between completions. Then the connection breaks.
#[test]
fn cancelled_operations_are_waited_for_while_something_completes() {
    let mut bench = Bench::new(CONFIG, 256, 4);
    let (socket, to) = (bench.socket(ip(1), 4000), SocketAddr::new(ip(2), 5000));
    let id = bench.up(2);
    for _ in 0..3 {
        bench.send(socket, to, 64).expect("room");
    }
    bench.flush(id);
    let posts = bench.protocol.connection(id).tx.posts;
    let operation = OperationId::new(0);
    let entry =
        Operation { used: true, owner: socket, first_post: posts, last_post: posts, ..Operation::EMPTY };
    bench.protocol.operations.insert(operation, entry);
    let mut message = bench.protocol.connection(id).peer.queue.head().expect("the first");
    while let Some(next) = bench.protocol.frames.message(message).next_message {
        message = next;
    }
    bench.protocol.frames.message_mut(message).operation = Some(operation);
    bench.protocol.connections.at_mut(id).tx.operations = 1;
    assert!(bench.protocol.cancel(id, socket, None));
    let later = |bench: &mut Bench, ms| {
        bench.now += Duration::from_millis(ms);
        bench.protocol.now = bench.now;
        bench.protocol.due(id, bench.now)
    };
    assert_eq!(later(&mut bench, 99), Due::Serve);
    bench.complete_to(id, posts - 1);
    assert_eq!(later(&mut bench, 99), Due::Serve);
    assert!(bench.protocol.cancel(id, socket, None), "asked again");
    assert_eq!(later(&mut bench, 1), Due::Break(DownReason::Local));
    bench.complete_to(id, posts);
    assert!(!bench.protocol.cancel(id, socket, None));
    assert_eq!(later(&mut bench, 500), Due::Serve);
}

//! Long messages while frames are short: order and duration of turns with the reserve.

use dat_nostd::Duration;

use crate::connection::PARTIAL_LIMIT;
use crate::ids::{ConnectionId, SocketHandle};
use crate::protocol::Due;
use crate::protocol::testing::{Bench, CONFIG, ip};
use crate::reason::DownReason;
use crate::socket::key;
use crate::wire::{FRAGMENT_LEN, Header};

const MS: Duration = Duration::from_millis(1);
/// Of two ports only the second is read.
const UNREAD: u16 = 4000;
const READ: u16 = 4001;

fn header(sequence: u64, fragments: usize, dport: u16) -> Header {
    let len = (fragments * FRAGMENT_LEN) as u32;
    Header { sequence, len, sport: 5000, dport, ..Header::acknowledgement(0) }
}

/// Returns a node at which four peers have taken all common frames that they may have, and its
/// socket that is read.
fn crowded() -> (Bench, SocketHandle) {
    let (bench, [_, read]) = crowded_of(512);
    (bench, read)
}

/// The same with `frames` frames, and both sockets.
fn crowded_of(frames: usize) -> (Bench, [SocketHandle; 2]) {
    let mut bench = Bench::new(CONFIG, frames, 8);
    let unread = bench.socket(ip(1), UNREAD);
    let read = bench.socket(ip(1), READ);
    for last in 2..6 {
        let id = bench.up(last);
        let mut sequence = 0;
        while bench.refill(id) > 0 {
            sequence += 1;
            assert_eq!(bench.arrives(id, &header(sequence, 1, UNREAD), FRAGMENT_LEN), Some(None));
        }
    }
    (bench, [unread, read])
}

/// Advances time.
fn pass(bench: &mut Bench, time: Duration) {
    bench.now += time;
    bench.protocol.now = bench.now;
}

/// Delivers fragments of a message from `arrived` on, as many as receives are posted. Returns how
/// many have arrived.
fn goes_on(bench: &mut Bench, id: ConnectionId, header: &Header, mut arrived: usize, all: usize) -> usize {
    while arrived < all && bench.refill(id) > 0 {
        assert_eq!(bench.arrives(id, header, FRAGMENT_LEN), Some(None));
        arrived += 1;
    }
    arrived
}

/// Delivers a message that takes the complete reserve, without its end.
fn drips(bench: &mut Bench, last: u8) -> ConnectionId {
    let id = bench.up(last);
    let longest = bench.protocol.limits.longest_received / FRAGMENT_LEN;
    let arrived = goes_on(bench, id, &header(1, longest, READ), 0, longest / 2);
    assert_eq!(arrived, longest / 2, "it has the reserve");
    id
}

/// The time limit of a message depends on its length, not on its progress.
#[test]
fn fragments_do_not_buy_time() {
    let mut bench = Bench::new(CONFIG, 512, 8);
    bench.socket(ip(1), READ);
    let id = bench.up(2);
    let long = header(1, 64, READ);
    let begun = bench.now;
    for _ in 0..64 {
        bench.refill(id);
        assert_eq!(bench.arrives(id, &long, FRAGMENT_LEN), Some(None));
        bench.refill(id);
        if bench.protocol.due(id, bench.now) == Due::Break(DownReason::Stalled) {
            let took = bench.now.saturating_duration_since(begun);
            assert!(took >= PARTIAL_LIMIT && took < 3 * PARTIAL_LIMIT, "{took:?}");
            return;
        }
        pass(&mut bench, PARTIAL_LIMIT - MS);
    }
    panic!("it holds what it has for {:?}", bench.now.saturating_duration_since(begun));
}

/// A holder that stalls soon loses the reserve to another connection, and does not get it again
/// immediately.
#[test]
fn who_has_the_reserve_makes_haste() {
    let (mut bench, read) = crowded();
    let dripping = drips(&mut bench, 6);
    let honest = bench.up(7);
    let (long, all) = (header(1, 60, READ), 60);
    let mut arrived = goes_on(&mut bench, honest, &long, 0, all);
    assert!(arrived < all, "frames are short");
    let began = bench.now;
    while arrived < all {
        pass(&mut bench, 5 * MS);
        assert!(bench.now < began + 130 * MS, "{arrived} of {all}");
        arrived = goes_on(&mut bench, honest, &long, arrived, all);
        bench.refill(dripping);
        if bench.protocol.due(dripping, bench.now) == Due::Break(DownReason::Stalled) {
            bench.down(dripping, DownReason::Stalled);
        }
    }
    assert_eq!(bench.read(read), Some(all * FRAGMENT_LEN));
    // The peer reconnects, and has its share and the common frames.
    bench.up(6);
    let longest = bench.protocol.limits.longest_received / FRAGMENT_LEN;
    let again = goes_on(&mut bench, dripping, &header(1, longest, READ), 0, longest);
    assert!(again < longest / 2, "{again}");
    assert_eq!(goes_on(&mut bench, honest, &header(2, 60, READ), 0, all), all);
    assert_eq!(bench.read(read), Some(all * FRAGMENT_LEN));
    pass(&mut bench, Duration::from_secs(8));
    assert!(goes_on(&mut bench, dripping, &header(1, longest, READ), again, longest) > longest / 2);
}

/// Additional receives do not extend the time limit either.
#[test]
fn receives_do_not_buy_time() {
    let (mut bench, [unread, _]) = crowded_of(2048);
    let longest = bench.protocol.limits.longest_received / FRAGMENT_LEN;
    let (dripping, all_but_one) = (bench.up(6), longest - 1);
    assert_eq!(goes_on(&mut bench, dripping, &header(1, longest, READ), 0, all_but_one), all_but_one);
    assert_eq!(bench.protocol.turns().0, Some(dripping));
    // The reader frees frames. The holder gets receives, and other connections get the rest.
    while bench.read(unread).is_some() {}
    bench.refill(dripping);
    let posted = u32::from(bench.protocol.connections.at(dripping).rx.ring.outstanding());
    assert!(posted > 5, "{posted}");
    let other = bench.protocol.connection_for(key(ip(2)), 0).expect("there");
    let mut sequence = 1000;
    while bench.refill(other) > 0 {
        sequence += 1;
        assert_eq!(bench.arrives(other, &header(sequence, 1, UNREAD), FRAGMENT_LEN), Some(None));
    }
    let honest = bench.up(7);
    assert!(goes_on(&mut bench, honest, &header(1, longest, READ), 0, longest) < longest, "frames are short");
    assert_eq!(bench.protocol.turns(), (Some(dripping), Some(honest)));
    assert_eq!(bench.protocol.due(dripping, bench.now + 100 * MS), Due::Serve);
    let late = bench.now + 100 * MS + Duration::from_micros(100);
    assert_eq!(bench.protocol.due(dripping, late), Due::Break(DownReason::Stalled));
}

/// A peer that lost the reserve on one connection does not get it on another, even as the first in
/// line.
#[test]
fn a_peer_loses_the_reserve_once() {
    let (mut bench, read) = crowded();
    let dripping = drips(&mut bench, 6);
    let second = bench.protocol.connection_for(key(ip(6)), 1).expect("room");
    bench.protocol.connections.at_mut(second).objects.ep = 1;
    bench.protocol.came_up(second, Some([6; 16]), bench.now);
    let longest = bench.protocol.limits.longest_received / FRAGMENT_LEN;
    let asked = goes_on(&mut bench, second, &header(1, longest, READ), 0, longest / 2);
    let honest = bench.up(7);
    let (long, all) = (header(1, 60, READ), 60);
    let mut arrived = goes_on(&mut bench, honest, &long, 0, all);
    assert!(asked < longest / 2 && arrived < all, "frames are short");
    let began = bench.now;
    while arrived < all {
        pass(&mut bench, 5 * MS);
        assert!(bench.now < began + 130 * MS, "{arrived} of {all}");
        for id in [dripping, second] {
            bench.refill(id);
            if bench.protocol.due(id, bench.now) == Due::Break(DownReason::Stalled) {
                bench.down(id, DownReason::Stalled);
            }
        }
        arrived = goes_on(&mut bench, honest, &long, arrived, all);
    }
    assert_eq!(bench.read(read), Some(all * FRAGMENT_LEN));
}

/// A connection made after the loss, with another type of service or from another address of the
/// same port, has no turn either.
#[test]
fn a_new_connection_does_not_get_what_was_lost() {
    let (mut bench, _) = crowded();
    let dripping = drips(&mut bench, 6);
    let honest = bench.up(7);
    assert!(goes_on(&mut bench, honest, &header(1, 60, READ), 0, 60) < 60, "frames are short");
    pass(&mut bench, 130 * MS);
    bench.refill(dripping);
    assert_eq!(bench.protocol.due(dripping, bench.now), Due::Break(DownReason::Stalled));
    bench.down(dripping, DownReason::Stalled);
    let until = bench.protocol.connection(dripping).peer.barred_until;
    assert!(until > bench.now);
    for (last, tos) in [(6, 1), (9, 0)] {
        let id = bench.protocol.connection_for(key(ip(last)), tos).expect("room");
        bench.protocol.came_up(id, Some([6; 16]), bench.now);
        assert_eq!(bench.protocol.connection(id).peer.barred_until, until, "{last}, {tos}");
    }
    assert!(bench.protocol.connection(honest).peer.barred_until < bench.now);
}

/// A holder that disconnects or violates the protocol just before the loss has had its turn. A
/// holder for a moment has not.
#[test]
fn who_hangs_up_has_had_its_turn() {
    for (held, is_barred) in [(90 * MS, true), (MS, false)] {
        let (mut bench, _) = crowded();
        let dripping = drips(&mut bench, 6);
        let honest = bench.up(7);
        assert!(goes_on(&mut bench, honest, &header(1, 60, READ), 0, 60) < 60, "frames are short");
        pass(&mut bench, held);
        bench.down(dripping, DownReason::Disconnected);
        assert_eq!(bench.protocol.connection(dripping).peer.barred_until > bench.now, is_barred);
        assert!(bench.protocol.connection(honest).peer.barred_until < bench.now);
    }
}

/// A holder that makes progress takes turns: its next message waits for others.
#[test]
fn the_reserve_goes_round() {
    let (mut bench, read) = crowded();
    let (one, other) = (bench.up(6), bench.up(7));
    let all = 60;
    let mut arrived = goes_on(&mut bench, one, &header(1, all, READ), 0, all - 1);
    let mut theirs = goes_on(&mut bench, other, &header(1, all, READ), 0, all);
    assert!(arrived == all - 1 && theirs < all);
    // One burst contains the end of a message, and as much of the next as receives are posted.
    arrived = goes_on(&mut bench, one, &header(1, all, READ), arrived, all);
    assert_eq!(arrived, all);
    assert_eq!(bench.read(read), Some(all * FRAGMENT_LEN));
    arrived = goes_on(&mut bench, one, &header(2, all, READ), 0, all);
    assert!(arrived < all, "it is not its turn");
    theirs = goes_on(&mut bench, other, &header(1, all, READ), theirs, all);
    assert_eq!(theirs, all);
    assert_eq!(bench.read(read), Some(all * FRAGMENT_LEN));
    assert_eq!(goes_on(&mut bench, one, &header(2, all, READ), arrived, all), all);
    assert_eq!(bench.read(read), Some(all * FRAGMENT_LEN));
}

/// Messages to a congested socket never get the reserve, because they would remain unread.
#[test]
fn what_nobody_reads_does_not_take_the_reserve() {
    let (mut bench, read) = crowded();
    let (flood, honest) = (bench.up(6), bench.up(7));
    let all = 60;
    assert!(goes_on(&mut bench, flood, &header(1, all, UNREAD), 0, all) < all);
    for sequence in 1..20 {
        assert_eq!(goes_on(&mut bench, honest, &header(sequence, all, READ), 0, all), all);
        assert_eq!(bench.read(read), Some(all * FRAGMENT_LEN));
    }
}

/// A peer leaves as many common frames as it takes beyond its share.
#[test]
fn nobody_takes_all_common_frames() {
    let mut bench = Bench::new(CONFIG, 512, 8);
    bench.socket(ip(1), UNREAD);
    let id = bench.up(2);
    let mut sequence = 0;
    while bench.refill(id) > 0 {
        sequence += 1;
        assert_eq!(bench.arrives(id, &header(sequence, 1, UNREAD), FRAGMENT_LEN), Some(None));
    }
    let receiving = bench.protocol.receiving;
    assert!(receiving.beyond() <= receiving.common().div_ceil(2), "{receiving:?}");
    assert!(bench.protocol.sockets.is_congested(UNREAD), "its peer is told");
}

/// A waiting connection that found common frames does not block the reserve.
#[test]
fn who_needs_the_reserve_no_more_is_not_waited_for() {
    let (mut bench, read) = crowded();
    let (one, other, third) = (bench.up(6), bench.up(7), bench.up(8));
    let all = 60;
    assert_eq!(goes_on(&mut bench, one, &header(1, all, READ), 0, all - 1), all - 1);
    assert!(goes_on(&mut bench, other, &header(1, all, READ), 0, all) < all);
    assert_eq!(bench.protocol.turns().1, Some(other));
    assert_eq!(goes_on(&mut bench, one, &header(1, all, READ), all - 1, all), all);
    assert_eq!(bench.read(read), Some(all * FRAGMENT_LEN));
    // Frames become free, the first waiting connection takes some and stalls, and then frames are
    // short again.
    let unread = bench.protocol.sockets.iter().find(|(_, socket)| socket.port == UNREAD);
    let unread =
        unread.map(|(slot, socket)| SocketHandle { slot: slot as u16, generation: socket.generation });
    let unread = unread.expect("bound");
    while bench.read(unread).is_some() {}
    assert!(bench.refill(other) > bench.protocol.limits.refill_at);
    for last in 2..6 {
        let id = bench.protocol.connection_for(key(ip(last)), 0).expect("there");
        while bench.refill(id) > 0 {
            let sequence = bench.protocol.connection(id).peer.next_rx;
            assert_eq!(bench.arrives(id, &header(sequence, 1, UNREAD), FRAGMENT_LEN), Some(None));
        }
    }
    assert_eq!(goes_on(&mut bench, third, &header(1, all, READ), 0, all), all);
    assert_eq!(bench.read(read), Some(all * FRAGMENT_LEN));
}

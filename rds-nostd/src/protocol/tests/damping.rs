//! A peer that connects and hangs up, again and again: how often a connection is made for it.

use std::net::SocketAddr;

use dat_nostd::Duration;

use crate::connection::State;
use crate::ids::ConnectionId;
use crate::protocol::testing::{Bench, CONFIG, ip};
use crate::protocol::{Admission, Due, Request};
use crate::reason::DownReason;
use crate::socket::key;
use crate::wire::Header;

const MS: Duration = Duration::from_millis(1);

/// The peer hangs up.
fn hang_up(bench: &mut Bench, id: ConnectionId) {
    bench.down(id, DownReason::Disconnected);
}

/// Whether the peer's request is accepted, and the connection then up.
fn asks(bench: &mut Bench, last: u8, tos: u8) -> Option<ConnectionId> {
    let request = Request { remote: key(ip(last)), tos, gid: [9; 16] };
    bench.protocol.now = bench.now;
    let Admission::Accept(id, None) = bench.protocol.admit(&request, bench.now) else { return None };
    bench.protocol.accepting(id, request.gid, bench.now);
    bench.protocol.connections.at_mut(id).objects.ep = 1;
    bench.protocol.came_up(id, Some(request.gid), bench.now);
    Some(id)
}

/// It asks each millisecond, in the same name or always another, with the same type of service or always another.
#[test]
fn who_hangs_up_is_not_accepted_at_once_again() {
    for (names, types) in [(1, 1), (1, 200), (200, 1)] {
        let mut bench = Bench::new(CONFIG, 1024, 16);
        let mut accepted = 0;
        for step in 0..10_000 {
            bench.now += MS;
            if let Some(id) = asks(&mut bench, 2 + (step % names) as u8, (step % types) as u8) {
                accepted += 1;
                hang_up(&mut bench, id);
            }
        }
        let most = 20 * usize::from(CONFIG.connections_per_peer);
        assert!((10..most).contains(&accepted), "{names}, {types}: {accepted} connections in 10 s");
        // Another port's peer is not made to wait for it.
        let request = Request { remote: key(ip(250)), tos: 0, gid: [7; 16] };
        assert!(matches!(bench.protocol.admit(&request, bench.now), Admission::Accept(_, None)));
    }
}

/// A request that comes seldom is accepted, whatever became of the one before.
#[test]
fn who_comes_back_after_a_second_is_accepted() {
    let mut bench = Bench::new(CONFIG, 256, 2);
    for round in 0..20 {
        bench.now += Duration::from_secs(1);
        let id = asks(&mut bench, 2, 0).unwrap_or_else(|| panic!("round {round}"));
        hang_up(&mut bench, id);
    }
}

/// A ping that is not answered yet when the peer hangs up at once is no reason to ask for it.
#[test]
fn nobody_is_asked_for_to_answer_a_ping() {
    let mut bench = Bench::new(CONFIG, 256, 2);
    let id = bench.up(2);
    bench.refill(id);
    let ping = Header { sequence: 1, len: 0, sport: 7, dport: 0, ..Header::acknowledgement(0) };
    let free =
        bench.protocol.frames.free_count() + usize::from(bench.protocol.connection(id).rx.ring.outstanding());
    assert_eq!(bench.arrives(id, &ping, 0), Some(None));
    assert_eq!(bench.flush(id).len(), 1);
    hang_up(&mut bench, id);
    bench.now += Duration::from_secs(2);
    assert_eq!(bench.protocol.due(id, bench.now), Due::Nothing);
    assert_eq!((bench.protocol.frames.free_count(), bench.protocol.connection(id).tx.pongs), (free, 0));
}

/// A connection that stood for a while, or moved something, was broken: the ping is answered on the next one.
#[test]
fn who_has_pinged_gets_its_answer_on_the_next_connection() {
    for stands in [false, true] {
        let mut bench = Bench::new(CONFIG, 256, 2);
        let id = bench.up(2);
        bench.refill(id);
        let ping =
            |sequence, ack| Header { sequence, len: 0, sport: 7, dport: 0, ..Header::acknowledgement(ack) };
        assert_eq!(bench.arrives(id, &ping(1, 0), 0), Some(None));
        let pong = bench.flush(id)[0];
        bench.complete(id);
        if stands {
            bench.now += Duration::from_secs(4);
        } else {
            assert_eq!(bench.arrives(id, &ping(2, pong), 0), Some(None));
            assert_eq!(bench.flush(id).len(), 1);
        }
        hang_up(&mut bench, id);
        assert_eq!(bench.protocol.due(id, bench.now), Due::Connect);
        assert_eq!(bench.protocol.connection(id).tx.pongs, 1);
    }
}

/// There is something to send, and the peer takes the connection, but never the message: it is asked no more often than one that refuses,
/// whatever it acknowledges that it was not sent. One that takes messages is asked at once.
#[test]
fn a_peer_that_takes_nothing_is_asked_seldom() {
    for takes in [false, true] {
        let mut bench = Bench::new(CONFIG, 256, 2);
        let socket = bench.socket(ip(1), 4000);
        let mut asked = 0;
        let id = bench.up(2);
        for _ in 0..20 {
            bench.send(socket, SocketAddr::new(ip(2), 5000), 64).expect("room");
        }
        for _ in 0..10_000 {
            bench.now += MS;
            if asked < 20 && bench.protocol.due(id, bench.now) == Due::Connect {
                asked += 1;
                bench.up(2);
            }
            if bench.protocol.connection(id).state == State::Up {
                let sent = bench.flush(id);
                bench.complete(id);
                bench.protocol.acknowledged(id, sent[0] - u64::from(!takes));
                hang_up(&mut bench, id);
            }
        }
        assert_eq!(bench.protocol.connection(id).tx.queue.is_empty(), takes);
        let last = bench.protocol.connection(id).reconnect.busy_at;
        let took = last.saturating_duration_since(dat_nostd::Instant::ORIGIN);
        assert_eq!(took < 40 * MS, takes, "{asked} connections in {took:?}");
    }
}

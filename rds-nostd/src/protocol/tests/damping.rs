//! A peer that connects and disconnects repeatedly: how frequently its requests are accepted.

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

/// The peer disconnects.
fn hang_up(bench: &mut Bench, id: ConnectionId) {
    bench.down(id, DownReason::Disconnected);
}

/// Returns the connection if the peer's request is accepted, which then comes up.
fn asks(bench: &mut Bench, last: u8, tos: u8) -> Option<ConnectionId> {
    let request = Request { remote: key(ip(last)), tos, gid: [9; 16] };
    bench.protocol.now = bench.now;
    let Admission::Accept(id, None) = bench.protocol.admit(&request, bench.now) else { return None };
    bench.protocol.accepting(id, request.gid, bench.now);
    bench.protocol.connections.at_mut(id).objects.ep = 1;
    bench.protocol.came_up(id, Some(request.gid), bench.now);
    Some(id)
}

/// The peer requests a connection each millisecond, with the same or another address, and the same
/// or another type of service.
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
        // The peer of another port need not wait.
        let request = Request { remote: key(ip(250)), tos: 0, gid: [7; 16] };
        assert!(matches!(bench.protocol.admit(&request, bench.now), Admission::Accept(_, None)));
    }
}

/// A rare request is accepted, whatever the fate of the connection before.
#[test]
fn who_comes_back_after_a_second_is_accepted() {
    let mut bench = Bench::new(CONFIG, 256, 2);
    for round in 0..20 {
        bench.now += Duration::from_secs(1);
        let id = asks(&mut bench, 2, 0).unwrap_or_else(|| panic!("round {round}"));
        hang_up(&mut bench, id);
    }
}

/// A pending pong is no reason to reconnect when the peer disconnects immediately.
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

/// After a connection that lasted, or transferred a message, the pong is sent on the next one.
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

/// A peer that accepts connections but no messages is tried no more frequently than one that
/// refuses, even if it acknowledges messages that were never sent. A peer that accepts messages is
/// tried immediately.
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
        assert_eq!(bench.protocol.connection(id).peer.queue.is_empty(), takes);
        let last = bench.protocol.connection(id).reconnect.busy_at;
        let took = last.saturating_duration_since(dat_nostd::Instant::ORIGIN);
        assert_eq!(took < 40 * MS, takes, "{asked} connections in {took:?}");
    }
}

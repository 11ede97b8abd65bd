//! Entries of dead peers are reused.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::vec::Vec;

use dat_nostd::Duration;

use super::data;
use crate::ids::{ConnectionId, SocketHandle};
use crate::protocol::testing::{Bench, CONFIG, ip};
use crate::protocol::{Admission, Request};
use crate::reason::DownReason;
use crate::socket::key;
use crate::wire::{Flags, Header};

const SECOND: Duration = Duration::from_secs(1);

fn address(client: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from(0x0a01_0000 + client))
}

/// Connects a client, with an attempt per second while it is refused: for less than a minute.
fn connect(bench: &mut Bench, client: u32) -> ConnectionId {
    let mut gid = [0xfe; 16];
    gid[12..].copy_from_slice(&client.to_be_bytes());
    let request = Request { remote: key(address(client)), tos: 0, gid };
    let first = bench.now;
    loop {
        bench.protocol.now = bench.now;
        if bench.protocol.is_full_for(request.remote, 0)
            && let Some(id) = bench.protocol.find_evictable(bench.now)
        {
            bench.down(id, DownReason::Idle);
        }
        if let Admission::Accept(id, _) = bench.protocol.admit(&request, bench.now) {
            bench.protocol.accepting(id, gid, bench.now);
            bench.protocol.connections.at_mut(id).objects.ep = 1;
            bench.protocol.came_up(id, Some(gid), bench.now);
            bench.pass(bench.now);
            return id;
        }
        assert!(bench.now < first + 60 * SECOND, "client {client} is refused");
        bench.pass(bench.now + SECOND);
    }
}

/// A client sends two requests. The first reply requests an acknowledgement and gets it. Returns
/// the sequence number of the second reply.
fn converse(bench: &mut Bench, (socket, client): (SocketHandle, u32), id: ConnectionId) -> u64 {
    let mut sent = 0;
    for sequence in 1..=2 {
        let flags = if sequence == 1 { Flags::ACK_REQUIRED } else { Flags::empty() };
        assert_eq!(bench.arrives(id, &Header { flags, ..data(sequence, 64) }, 64), Some(None));
        assert_eq!(bench.read(socket), Some(64));
        bench.send(socket, SocketAddr::new(address(client), 5000), 64).expect("room");
        bench.pass(bench.now);
        sent = bench.protocol.connection(id).peer.next_tx - 1;
        if sequence == 1 {
            bench.protocol.acknowledged(id, sent);
        }
    }
    sent
}

/// The client is found to be dead.
fn vanish(bench: &mut Bench, id: ConnectionId) {
    bench.pass(bench.now + 2 * SECOND);
    bench.down(id, DownReason::RetryExceeded);
}

fn close(bench: &mut Bench, socket: SocketHandle) {
    for id in bench.protocol.connections.ids() {
        bench.protocol.cancel(id, socket, None);
    }
    bench.protocol.cancel_absent(socket, None);
}

#[test]
fn a_thousand_clients_are_served_by_eight_entries() {
    let mut bench = Bench::new(CONFIG, 1024, 8);
    let free = bench.protocol.frames.free_count();
    let socket = bench.socket(ip(1), 4000);
    for client in 0..1000 {
        let id = connect(&mut bench, client);
        let last = converse(&mut bench, (socket, client), id);
        if client % 2 == 0 {
            bench.protocol.acknowledged(id, last);
            bench.down(id, DownReason::Disconnected);
        } else {
            vanish(&mut bench, id);
        }
    }
    let waiting: usize = bench.protocol.absent.iter().count();
    let connected = bench.protocol.connections.iter().filter(|(_, c)| !c.peer.queue.is_empty()).count();
    let dropped = bench.protocol.counters.send_drop_unreachable as usize;
    assert_eq!(waiting + connected + dropped, 500, "the second answer to each client that vanished");
    assert_eq!((waiting, dropped), (16, 500 - 16 - connected));
    let state = bench.protocol.sockets.open(socket).expect("open");
    assert!(state.gave_up, "the sender is told");
    assert_eq!(state.sent.count(), waiting + connected);
    close(&mut bench, socket);
    assert_eq!(bench.protocol.frames.free_count(), free);
    assert_eq!((bench.protocol.sending.beyond(), bench.protocol.absent.retry_at()), (0, None));
}

/// Four peers vanish from two entries. Returns them with the sequence numbers of the messages that
/// wait for them.
fn vanished(bench: &mut Bench, socket: SocketHandle) -> Vec<(u32, u64)> {
    let mut vanished = Vec::new();
    for client in 0..4 {
        let id = connect(bench, client);
        vanished.push((client, converse(bench, (socket, client), id)));
        vanish(bench, id);
    }
    assert_eq!(bench.protocol.absent.iter().count(), 2);
    vanished
}

#[test]
fn a_peer_that_returns_gets_its_messages() {
    let mut bench = Bench::new(CONFIG, 256, 2);
    let free = bench.protocol.frames.free_count();
    let socket = bench.socket(ip(1), 4000);
    for (client, sequence) in vanished(&mut bench, socket) {
        let id = connect(&mut bench, client);
        let queue = bench.protocol.connection(id).peer.queue.head().expect("its message");
        let message = bench.protocol.frames.message(queue);
        assert_eq!(message.sequence, sequence);
        assert!(Flags::from_bits_retain(message.flags).contains(Flags::RETRANSMITTED));
        // A message that arrived before the eviction is not delivered again.
        let again = Flags::ACK_REQUIRED | Flags::RETRANSMITTED;
        assert_eq!(bench.arrives(id, &Header { flags: again, ..data(2, 64) }, 64), Some(None));
        assert_eq!(bench.read(socket), None);
        bench.protocol.acknowledged(id, sequence);
        bench.down(id, DownReason::Disconnected);
    }
    assert_eq!(bench.protocol.counters.send_drop_unreachable, 0);
    assert_eq!(bench.protocol.sockets.open(socket).expect("open").sent.count(), 0);
    assert_eq!((bench.protocol.frames.free_count(), bench.protocol.sending.beyond()), (free, 0));
}

/// A peer without messages to us is tried again when an entry is idle.
#[test]
fn absent_peers_are_tried_again() {
    let mut bench = Bench::new(CONFIG, 256, 2);
    let socket = bench.socket(ip(1), 4000);
    let vanished = vanished(&mut bench, socket);
    let (client, sequence) = vanished[3];
    let id = connect(&mut bench, client);
    bench.protocol.acknowledged(id, sequence);
    bench.down(id, DownReason::Disconnected);
    bench.pass(bench.now + 20 * SECOND);
    assert_eq!(bench.protocol.absent.iter().count(), 1);
    let found = bench.protocol.connections.find(key(address(vanished[0].0)), 0).expect("an entry again");
    assert!(bench.protocol.connection(found).reconnect.downs > 1, "and attempts");
}

#[test]
fn cancelled_messages_do_not_wait() {
    let mut bench = Bench::new(CONFIG, 256, 2);
    let socket = bench.socket(ip(1), 4000);
    vanished(&mut bench, socket);
    let before = bench.protocol.frames.free_count();
    bench.protocol.cancel_absent(socket, Some((key(address(0)), 0, 4999)));
    bench.protocol.cancel_absent(socket, Some((key(address(9)), 0, 5000)));
    assert_eq!(bench.protocol.frames.free_count(), before, "another port, another peer");
    bench.protocol.cancel_absent(socket, Some((key(address(0)), 0, 5000)));
    assert_eq!(bench.protocol.frames.free_count(), before + 1);
    assert_eq!(bench.protocol.absent.iter().count(), 1);
}

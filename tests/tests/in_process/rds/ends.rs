//! Orderly ends: a message that was read does not come again to the next program at its address.

use dat_nostd::CloseFlags;
use harness::rds::{Nodes, at, boot};
use rds_nostd::{Rds, RdsConfig, RdsError, RdsStorage, SocketHandle};
use std::net::IpAddr;

const MS: u64 = 1_000_000;

/// Node 0 sends to node 1, which reads: the first message requests an acknowledgement, the second does not.
fn conversation(seed: u64) -> (Nodes, SocketHandle, SocketHandle) {
    let mut nodes = Nodes::new(seed, "none");
    let (server, client) = (nodes.bind(0, 4000), nodes.bind(1, 5000));
    for number in 0..2 {
        nodes.send(0, server, at(1, 5000), &[number; 64]).expect("room");
        nodes.receive(1, client, &mut [0; 64]);
    }
    (nodes, server, client)
}

/// Stops node 1. Returns the peers that were not reached, and the virtual time it took, in nanoseconds.
fn stop(nodes: &mut Nodes) -> (Vec<IpAddr>, u64) {
    let (rds, before) = (nodes.rds.pop().expect("two"), nodes.world.now());
    let unreached = harness::rds::stop(rds, &mut nodes.adapters[1]);
    (unreached, nodes.world.now() - before)
}

#[test]
fn a_successor_gets_no_message_of_its_predecessor() {
    let (mut nodes, server, _) = conversation(300);
    let (unreached, took) = stop(&mut nodes);
    assert!(unreached.is_empty() && took <= 50 * MS, "{unreached:?}, {took} ns");
    let storage = harness::keep(RdsStorage::<4, 4, 1024>::new());
    let config = RdsConfig { seed: 301, ..RdsConfig::new(boot(2)) };
    nodes.rds.push(Rds::start(&mut nodes.adapters[1], storage.parts(), config).expect("starts"));
    let client = nodes.bind(1, 5000);
    nodes.send(1, client, at(0, 4000), &[]).expect("room");
    nodes.receive(0, server, &mut []);
    nodes.send(0, server, at(1, 5000), b"answer").expect("room");
    let mut buffer = [0; 64];
    let received = nodes.receive(1, client, &mut buffer);
    assert_eq!(&buffer[..received.len], b"answer");
    assert_eq!(nodes.rds[0].counters().send_retransmitted, 0);
    nodes.close();
}

#[test]
fn peers_without_their_acknowledgement_are_reported() {
    let (mut nodes, _, _) = conversation(302);
    nodes.world.set_cable(0, false);
    let (unreached, took) = stop(&mut nodes);
    assert_eq!(unreached, [at(0, 0).ip()]);
    assert!((50 * MS..60 * MS).contains(&took), "{took} ns");
}

/// A message that arrives during a graceful stop is not acknowledged, because no program reads it.
#[test]
fn a_stopping_node_takes_no_messages() {
    let (mut nodes, server, _) = conversation(306);
    let stop = |nodes: &mut Nodes| nodes.rds[1].stop(&mut nodes.adapters[1], CloseFlags::Graceful, |_| {});
    assert_eq!(stop(&mut nodes), Err(RdsError::Again));
    nodes.send(0, server, at(1, 5000), &[2; 64]).expect("room");
    let end = nodes.world.now() + MS;
    while nodes.world.now() < end {
        nodes.step();
    }
    assert_eq!(stop(&mut nodes), Ok(()));
    assert_eq!((nodes.rds[1].counters().recv_queued, nodes.rds[0].unacknowledged(server)), (2, Ok(1)));
}

/// The acknowledgement of a burst's tail does not wait for its delay when the last socket closes.
#[test]
fn the_last_close_acknowledges() {
    let (mut nodes, server, client) = conversation(304);
    let before = nodes.world.now();
    nodes.rds[1].close(&mut nodes.adapters[1], client).expect("closes");
    nodes.until("acknowledged", |nodes| nodes.rds[0].unacknowledged(server) == Ok(0));
    assert!(nodes.world.now() - before < 10 * MS, "{} ns", nodes.world.now() - before);
    nodes.close();
}

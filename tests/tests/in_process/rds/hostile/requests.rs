//! Requests that do not fit.

use crate::rds::hostile::peer::{GOOD, Hostile, data};
use dat_nostd::ConnectionEvent;
use harness::dat::address;
use rds_nostd::wire::{ConnectData, REJECT_DATA};

/// Refused so that a Linux peer understands it, counted, and nothing is taken by it; the next one is accepted.
fn is_refused(seed: u64, private_data: &[u8]) {
    let mut hostile = Hostile::new(seed);
    let free = hostile.rds.free_frames();
    for number in 1..4 {
        let (ep, event) = hostile.ask(private_data);
        assert_eq!(event, ConnectionEvent::PeerRejected);
        let why = hostile.adapters[1].ep_private_data(ep).expect("answered").to_vec();
        assert_eq!(why.get(..4), Some(&REJECT_DATA[..]));
        hostile.forget(ep);
        assert_eq!(hostile.rds.counters().connect_refused, number);
        assert_eq!(hostile.rds.free_frames(), free);
    }
    let ep = hostile.connect();
    hostile.say(ep, data(1, 10));
    assert_eq!(hostile.received(), [10]);
}

fn refused(seed: u64, what: ConnectData) {
    let (bytes, len) = what.encode();
    is_refused(seed, &bytes[..len]);
}

#[test]
fn of_an_older_version() {
    refused(60, ConnectData { version: (3, 0), ..GOOD });
}

#[test]
fn of_a_later_version_that_none_speaks() {
    refused(61, ConnectData { version: (5, 0), ..GOOD });
}

#[test]
fn without_a_minor_version_in_common() {
    refused(62, ConnectData { version: (4, 2), minor_mask: 4, ..GOOD });
}

#[test]
fn in_anothers_name() {
    refused(63, ConnectData { source: address(7), ..GOOD });
}

#[test]
fn in_the_victims_name() {
    refused(64, ConnectData { source: address(0), ..GOOD });
}

#[test]
fn for_somebody_else() {
    refused(65, ConnectData { destination: address(7), ..GOOD });
}

#[test]
fn with_addresses_exchanged() {
    refused(66, ConnectData { source: GOOD.destination, destination: GOOD.source, ..GOOD });
}

/// Each request would take a connection's place from the one before: they do not so soon, and what stands goes on.
#[test]
fn of_a_flood_while_the_connection_stands() {
    let mut hostile = Hostile::new(67);
    let first = hostile.connect();
    hostile.pass(1);
    let (bytes, len) = GOOD.encode();
    let (second, event) = hostile.ask(&bytes[..len]);
    assert_eq!(event, ConnectionEvent::PeerRejected);
    assert_eq!(hostile.rds.counters().connect_too_often, 1);
    hostile.say(first, data(1, 10));
    assert_eq!(hostile.received(), [10], "the first one stands");
    hostile.forget(second);
    // All the time for half a second: no more than a few are accepted, and only in the place of one another.
    let (mut standing, mut replaced) = (first, 0);
    for _ in 0..100 {
        let (ep, event) = hostile.ask(&bytes[..len]);
        let over = match event {
            ConnectionEvent::Established => {
                replaced += 1;
                std::mem::replace(&mut standing, ep)
            }
            _ => ep,
        };
        hostile.adapters[1].ep_free(over).expect("frees");
        hostile.pass(5);
    }
    assert!(replaced < 10, "{replaced} were accepted");
    assert_eq!(hostile.rds.counters().connect_too_often, 101 - replaced);
    hostile.say(standing, data(2, 20));
    assert_eq!(hostile.received(), [20], "the last one stands");
}

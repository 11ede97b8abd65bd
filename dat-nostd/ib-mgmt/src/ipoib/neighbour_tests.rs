//! Tests of the neighbour table.

use super::*;
use crate::Gid;
use ib_types::PKey;
use proptest::prelude::*;

const SECOND: Duration = Duration::from_secs(1);
const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

fn hw(number: u32) -> HwAddr {
    HwAddr {
        flags: 0,
        qpn: QpNumber::new(0x40 + number),
        gid: Gid::new(Gid::DEFAULT_PREFIX, u64::from(number)),
    }
}

fn arp(operation: ArpOperation, from: (Ipv4Addr, HwAddr), to: Ipv4Addr) -> Arp {
    let target_hw = (operation == ArpOperation::Reply).then(|| hw(1));
    Arp { operation, sender_hw: from.1, sender_ip: from.0, target_hw, target_ip: to }
}

fn request(table: &mut Neighbours<'_>, now: Instant) -> Option<(Ipv4Addr, Option<HwAddr>)> {
    match table.poll(now) {
        NeighbourAction::Request { ip, to } => Some((ip, to)),
        NeighbourAction::Idle { .. } => None,
    }
}

fn state(table: &Neighbours<'_>, ip: Ipv4Addr) -> NeighbourState {
    table.peek(ip).map_or(NeighbourState::Empty, |neighbour| neighbour.state)
}

#[test]
fn asks_three_times_and_fails_for_a_second() {
    let mut slots = [NeighbourSlot::EMPTY; 2];
    let mut table = Neighbours::new(&mut slots, NeighbourConfig::DEFAULT);
    assert_eq!(table.lookup(Instant::from_nanos(5), PEER), NeighbourLookup::Pending);
    for n in 0..3 {
        let now = Instant::from_nanos(5) + n * SECOND;
        assert_eq!(request(&mut table, now), Some((PEER, None)));
        assert_eq!(table.poll(now), NeighbourAction::Idle(Wake::At(now + SECOND)));
        assert_eq!(table.lookup(now + Duration::from_nanos(1), PEER), NeighbourLookup::Pending);
    }
    assert_eq!(
        table.poll(Instant::from_nanos(5) + 3 * SECOND),
        NeighbourAction::Idle(Wake::At(Instant::from_nanos(5) + 4 * SECOND))
    );
    assert_eq!(table.lookup(Instant::from_nanos(6) + 3 * SECOND, PEER), NeighbourLookup::Failed);
    assert_eq!(table.counters().failures, 1);
    // Later it is tried anew.
    assert_eq!(table.lookup(Instant::from_nanos(5) + 4 * SECOND, PEER), NeighbourLookup::Pending);
    assert_eq!(request(&mut table, Instant::from_nanos(5) + 4 * SECOND), Some((PEER, None)));
}

#[test]
fn an_answer_is_believed_doubted_and_confirmed() {
    let mut slots = [NeighbourSlot::EMPTY; 2];
    let mut table = Neighbours::new(&mut slots, NeighbourConfig::DEFAULT);
    table.lookup(Instant::ORIGIN, PEER);
    assert_eq!(request(&mut table, Instant::ORIGIN), Some((PEER, None)));
    let reply = arp(ArpOperation::Reply, (PEER, hw(2)), OWN);
    assert_eq!(table.input(Instant::from_nanos(1), &reply, OWN, &hw(1)), None);
    assert_eq!(table.lookup(Instant::from_nanos(2), PEER), NeighbourLookup::Known(hw(2)));
    assert_eq!(state(&table, PEER), NeighbourState::Reachable);
    assert_eq!(
        table.poll(Instant::from_nanos(2)),
        NeighbourAction::Idle(Wake::At(Instant::from_nanos(1) + 30 * SECOND))
    );
    assert_eq!(table.poll(Instant::from_nanos(1) + 30 * SECOND), NeighbourAction::Idle(Wake::Idle));
    assert_eq!(state(&table, PEER), NeighbourState::Stale);
    // Unused, it stays as it is. Used, it is probed after five seconds, at its own address.
    let used = 100 * SECOND;
    assert_eq!(table.lookup(Instant::ORIGIN + used, PEER), NeighbourLookup::Known(hw(2)));
    assert_eq!(
        table.poll(Instant::ORIGIN + used),
        NeighbourAction::Idle(Wake::At(Instant::ORIGIN + used + 5 * SECOND))
    );
    assert_eq!(request(&mut table, Instant::ORIGIN + used + 5 * SECOND), Some((PEER, Some(hw(2)))));
    assert_eq!(
        table.input(Instant::ORIGIN + used + 5 * SECOND + Duration::from_nanos(1), &reply, OWN, &hw(1)),
        None
    );
    assert_eq!(state(&table, PEER), NeighbourState::Reachable);
    let counters = table.counters();
    assert_eq!((counters.requests, counters.probes, counters.replies), (1, 1, 2));
}

#[test]
fn a_neighbour_that_fell_silent_is_probed_asked_for_and_failed() {
    let mut slots = [NeighbourSlot::EMPTY; 2];
    let mut table = Neighbours::new(&mut slots, NeighbourConfig::DEFAULT);
    table
        .input(Instant::ORIGIN, &arp(ArpOperation::Request, (PEER, hw(2)), OWN), OWN, &hw(1))
        .expect("a reply");
    table.lookup(Instant::from_nanos(1), PEER);
    let mut now = Instant::from_nanos(1) + 5 * SECOND;
    for to in [Some(hw(2)), Some(hw(2)), Some(hw(2)), None, None, None] {
        assert_eq!(request(&mut table, now), Some((PEER, to)));
        assert_eq!(request(&mut table, now), None);
        now += SECOND;
    }
    assert_eq!(request(&mut table, now), None);
    assert_eq!(table.lookup(now, PEER), NeighbourLookup::Failed);
}

#[test]
fn requests_for_us_are_answered_and_taught_by() {
    let mut slots = [NeighbourSlot::EMPTY; 2];
    let mut table = Neighbours::new(&mut slots, NeighbourConfig::DEFAULT);
    let reply = table.input(Instant::ORIGIN, &arp(ArpOperation::Request, (PEER, hw(2)), OWN), OWN, &hw(1));
    let expected = Arp {
        operation: ArpOperation::Reply,
        sender_hw: hw(1),
        sender_ip: OWN,
        target_hw: Some(hw(2)),
        target_ip: PEER,
    };
    assert_eq!(reply, Some(expected));
    assert_eq!(table.lookup(Instant::ORIGIN, PEER), NeighbourLookup::Known(hw(2)));
    // A probe for duplicates is answered, and teaches nothing.
    let nobody = arp(ArpOperation::Request, (Ipv4Addr::UNSPECIFIED, hw(3)), OWN);
    assert!(table.input(Instant::ORIGIN, &nobody, OWN, &hw(1)).is_some());
    assert_eq!(table.peek(Ipv4Addr::UNSPECIFIED), None);
    // Requests for other addresses update existing entries only.
    let other = Ipv4Addr::new(10, 0, 0, 9);
    let third = Ipv4Addr::new(10, 0, 0, 3);
    assert_eq!(
        table.input(Instant::ORIGIN, &arp(ArpOperation::Request, (third, hw(3)), other), OWN, &hw(1)),
        None
    );
    assert_eq!(table.peek(third), None);
    assert_eq!(
        table.input(Instant::ORIGIN, &arp(ArpOperation::Request, (PEER, hw(4)), other), OWN, &hw(1)),
        None
    );
    assert_eq!(table.lookup(Instant::ORIGIN, PEER), NeighbourLookup::Known(hw(4)));
    assert_eq!((table.counters().moves, table.counters().foreign), (1, 1));
}

#[test]
fn nonsense_is_counted_and_teaches_nothing() {
    let mut slots = [NeighbourSlot::EMPTY; 2];
    let mut table = Neighbours::new(&mut slots, NeighbourConfig::DEFAULT);
    let good = hw(2);
    for (ip, hw) in [
        (PEER, HwAddr { qpn: QpNumber::new(0), ..good }),
        (PEER, HwAddr { qpn: QpNumber::new(0xff_ffff), ..good }),
        (PEER, HwAddr { gid: Gid::ZERO, ..good }),
        (PEER, HwAddr { gid: super::super::broadcast_mgid(PKey::DEFAULT), ..good }),
        (Ipv4Addr::new(224, 0, 0, 1), good),
        (Ipv4Addr::BROADCAST, good),
    ] {
        let message = arp(ArpOperation::Request, (ip, hw), OWN);
        assert_eq!(
            table.input(
                Instant::ORIGIN,
                &message,
                OWN,
                &super::super::HwAddr { qpn: QpNumber::new(9), ..good }
            ),
            None
        );
    }
    assert_eq!((table.counters().malformed, table.iter().count()), (6, 0));
    // A different port claims our address.
    assert_eq!(
        table.input(Instant::ORIGIN, &arp(ArpOperation::Request, (OWN, hw(2)), OWN), OWN, &hw(1)),
        None
    );
    assert_eq!(
        table.input(Instant::ORIGIN, &arp(ArpOperation::Request, (OWN, hw(1)), OWN), OWN, &hw(1)),
        None
    );
    assert_eq!((table.counters().conflicts, table.iter().count()), (1, 0));
}

#[test]
fn the_neighbour_unused_for_longest_makes_room() {
    let mut slots = [NeighbourSlot::EMPTY; 2];
    let mut table = Neighbours::new(&mut slots, NeighbourConfig::DEFAULT);
    let ip = |n| Ipv4Addr::new(10, 0, 1, n);
    for n in [1, 2] {
        let _ = table.input(Instant::ORIGIN, &arp(ArpOperation::Request, (ip(n), hw(2)), OWN), OWN, &hw(1));
    }
    table.lookup(Instant::from_nanos(5), ip(1));
    assert_eq!(table.lookup(Instant::from_nanos(6), ip(3)), NeighbourLookup::Pending);
    assert_eq!(table.peek(ip(2)), None);
    assert_eq!(table.lookup(Instant::from_nanos(7), ip(4)), NeighbourLookup::Pending);
    // Both are asked for at this point.
    assert_eq!(table.lookup(Instant::from_nanos(8), ip(5)), NeighbourLookup::Full);
    assert_eq!(table.counters().evicted, 2);
}

proptest! {
    /// For any sequence of messages the table stays in bounds, its timers end, and requests respect
    /// the limit of tries.
    #[test]
    fn any_sequence(steps in proptest::collection::vec((0u8..4, 0u8..6, 0u8..4, 0u32..20), 0..200)) {
        let mut slots = [NeighbourSlot::EMPTY; 3];
        let mut table = Neighbours::new(&mut slots, NeighbourConfig::DEFAULT);
        let mut now = Instant::ORIGIN;
        for (what, who, at, wait) in steps {
            now += wait * SECOND / 4;
            let ip = Ipv4Addr::new(10, 0, 0, who);
            match what {
                0 => _ = table.lookup(now, ip),
                1 => _ = table.input(now, &arp(ArpOperation::Reply, (ip, hw(u32::from(at))), OWN), OWN, &hw(1)),
                2 => _ = table.input(now, &arp(ArpOperation::Request, (ip, hw(u32::from(at))), OWN), OWN, &hw(1)),
                _ => table.forget(ip),
            }
            let mut asked = 0;
            loop {
                match table.poll(now) {
                    NeighbourAction::Request { .. } => asked += 1,
                    NeighbourAction::Idle(wake) => {
                        prop_assert!(!wake.is_due(now));
                        break;
                    }
                }
                prop_assert!(asked <= 3);
            }
            prop_assert!(table.iter().count() <= 3);
            prop_assert!(table.iter().all(|n| n.ip != OWN || n.hw.is_none()), "learnt its own address");
        }
        // Left alone, it comes to rest.
        for _ in 0..64 {
            match table.poll(now) {
                NeighbourAction::Request { .. } => {}
                NeighbourAction::Idle(Wake::At(at)) => now = at,
                NeighbourAction::Idle(_) => return Ok(()),
            }
        }
        prop_assert!(false, "never rests");
    }
}

//! Counts the server's wake-ups, reads and iterations for a doorbell. Measures no times.

use crate::support::guest::{Guest, pair};
use crate::support::serve;

/// Number of consecutive writes of 16 KiB.
const WRITES: u64 = 400;

#[test]
fn a_doorbell_costs_one_wake_up() {
    let (_folder, served, sockets) = serve(2);
    let mut guests = pair([&sockets[0], &sockets[1]]);
    let target = guests[1].target();
    guests[0].write(1, target).expect("data move");
    let before = served.activity().expect("served");
    for n in 0..WRITES {
        guests[0].write(n as u8, target).expect("data move");
    }
    let after = served.activity().expect("served");
    let messages: u64 = after.clients.iter().zip(&before.clients).map(|(a, b)| a.messages - b.messages).sum();
    let reads: u64 = after.clients.iter().zip(&before.clients).map(|(a, b)| a.reads - b.reads).sum();
    let (wakeups, turns) = (after.wakeups - before.wakeups, after.turns - before.turns);
    println!("{WRITES} writes: {wakeups} wake-ups, {turns} turns, {reads} reads, {messages} messages");
    assert!(messages >= WRITES);
    // The rest is for the devices' own clocks and the read of the counters.
    assert!(wakeups <= WRITES + WRITES / 4 + 20, "{wakeups} wake-ups");
    assert!(reads <= messages + 20, "{reads} reads of {messages} messages");
    drop(guests.map(|guest: Guest| guest));
}

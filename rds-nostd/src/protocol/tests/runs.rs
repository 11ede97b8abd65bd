//! Runs of receives mean the same as their receives one by one.

use std::format;
use std::vec::Vec;

use proptest::prelude::*;

use crate::connection::{Cookie, CookieKind};
use crate::protocol::testing::{Bench, CONFIG, ip};
use crate::wire::{FRAGMENT_LEN, Flags, HEADER_LEN, Header};
use dat_nostd::ReceiveDto;

const BOUND: u16 = 4000;

/// Frames of one kind: headers and payload bytes.
fn frames_of(kind: u8, sequence: u64) -> Vec<(Header, usize)> {
    let plain = Header { sequence, len: 64, sport: 5000, dport: BOUND, ..Header::acknowledgement(0) };
    match kind {
        0..5 => std::vec![(plain, 64)],
        5 => std::vec![(Header { flags: Flags::ACK_REQUIRED, ..plain }, 64)],
        6 => std::vec![(Header { flags: Flags::ACK_REQUIRED | Flags::RETRANSMITTED, ..plain }, 64)],
        7 => std::vec![(Header { dport: BOUND + 1, ..plain }, 64)],
        8 => std::vec![(Header::acknowledgement(0), 0)],
        9 => std::vec![(Header { extensions: [1; 16], ..plain }, 64)],
        10 => {
            let long = Header { len: FRAGMENT_LEN as u32 + 1, ..plain };
            std::vec![(long, FRAGMENT_LEN), (long, 1)]
        }
        _ => std::vec![(plain, 63)],
    }
}

proptest! {
    #[test]
    fn a_run_means_its_receives(
        kinds in prop::collection::vec(0u8..12, 1..40),
        cuts in prop::collection::vec(1usize..10, 1..10),
    ) {
        let frames: Vec<_> =
            kinds.iter().zip(1..).flat_map(|(kind, sequence)| frames_of(*kind, sequence)).collect();
        let states = [false, true].map(|in_runs| {
            let mut bench = Bench::new(CONFIG, 512, 2);
            let socket = bench.socket(ip(1), BOUND);
            let id = bench.up(2);
            let (mut rest, mut cuts) = (&frames[..], cuts.iter().cycle());
            while !rest.is_empty() {
                let posted = usize::from(bench.refill(id));
                let count = rest.len().min(posted).min(*cuts.next().expect("endless"));
                if count == 0 {
                    break;
                }
                let epoch = bench.protocol.connection(id).objects.epoch;
                let mut ring = bench.protocol.connection(id).rx.ring;
                let mut run = Vec::new();
                for (header, payload) in &rest[..count] {
                    let frame = bench.protocol.rings.oldest(id, &ring).expect("posted");
                    ring.take();
                    bench.protocol.frames.write_header(frame, header);
                    let cookie = Cookie { kind: CookieKind::Receive, connection: id, epoch, number: frame.bits().into() };
                    run.push(ReceiveDto { user_cookie: cookie.encode(), length: (HEADER_LEN + payload) as u32 });
                }
                let mut run = run.into_iter();
                while let Some(first) = run.next() {
                    let more = if in_runs { usize::MAX } else { 0 };
                    bench.protocol.arrived(first, run.by_ref().take(more), bench.now);
                }
                rest = &rest[count..];
            }
            let unread = &bench.protocol.sockets.open(socket).expect("open").received;
            let unread: Vec<u64> =
                bench.protocol.frames.all(unread).map(|unread| bench.protocol.frames.number(unread.place)).collect();
            let connection = bench.protocol.connection(id);
            let rx = &connection.rx;
            let broken = connection.reconnect.broken_by.get();
            let numbers = (connection.peer.next_rx, rx.ack_value, rx.ack_wanted, rx.is_unsaid, rx.used.count());
            (unread, numbers, broken, format!("{:?}", bench.protocol.counters))
        });
        let [single, runs] = states;
        prop_assert_eq!(single, runs);
    }
}

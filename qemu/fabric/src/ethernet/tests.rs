//! The switch, with stations that send and receive frames at its ports.

use std::sync::{Arc, Mutex};

use ib_types::MacAddress;
use proptest::prelude::*;

use super::frame::{Ecn, Frame, ether_type};
use super::table::{ADDRESSES_OF_A_PORT, HOLD};
use super::*;
use crate::capture::Capture;
use crate::counters::Traffic;
use crate::faults::Faults;
use crate::infiniband::packet::{Bth, Opcode};
use crate::losses::{FlowKey, Kind};
use crate::packet::Packet;
use crate::ports::{MAX_PORTS, PortIndex, SwitchFull};
use crate::work;

const MS: u64 = 1_000_000;

/// Station `n`, at port `n`.
fn address(n: usize) -> MacAddress {
    MacAddress([2, 0, 0, 0, 0, n as u8])
}

fn port(n: usize) -> PortIndex {
    PortIndex(n as u32)
}

fn frame(source: MacAddress, destination: MacAddress, payload: &[u8]) -> Packet {
    Packet::frame([&destination.0[..], &source.0, &[0x12, 0x34], payload].concat())
}

/// A RoCE v2 frame from one station to another, with ECN bits, its ICRC not written.
fn roce(source: usize, destination: usize, qpn: u32, ecn: Ecn) -> Packet {
    let mut bytes = [&address(destination).0[..], &address(source).0].concat();
    bytes.extend(ether_type::IPV4.to_be_bytes());
    bytes.extend([0x45, ecn as u8, 0, 48, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    bytes.extend([10, 0, 0, source as u8, 10, 0, 0, destination as u8]);
    bytes.extend([0xc0, 0, 0x12, 0xb7, 0, 28, 0, 0]);
    bytes.extend(Bth::new(Opcode::RC_SEND_ONLY, 0xffff, qpn, 1).to_bytes());
    bytes.extend([0; 8]);
    frame::write_checksums(&mut bytes, true, false);
    Packet::unsealed_frame(bytes)
}

/// A switch with `count` stations, all links up.
fn switch_with(count: usize, config: SwitchConfig) -> Switch {
    let mut switch = Switch::new(config);
    for n in 0..count {
        let index = switch.attach(&format!("station{n}")).unwrap();
        assert_eq!(index, port(n));
        switch.set_link(index, true);
    }
    switch
}

fn switch(count: usize) -> Switch {
    switch_with(count, SwitchConfig::default())
}

fn with_faults(count: usize, faults: &str, seed: u64) -> Switch {
    switch_with(count, SwitchConfig { faults: faults.parse().unwrap(), seed, ..SwitchConfig::default() })
}

/// Lets every station send one frame to a group, so that the switch learns its address.
fn introduce(switch: &mut Switch, count: usize) {
    for n in 0..count {
        switch.send(port(n), frame(address(n), MacAddress::BROADCAST, b""), 0);
    }
    for n in 0..count {
        while switch.receive(port(n), 0).is_some() {}
        let _ = switch.links_mut().take_owed(port(n));
    }
}

/// Frames that have arrived at each port at `now`.
fn arrived(switch: &mut Switch, count: usize, now: u64) -> Vec<usize> {
    (0..count).map(|n| std::iter::from_fn(|| switch.receive(port(n), now)).count()).collect()
}

#[test]
fn known_destinations_get_frames_and_unknown_ones_flood() {
    let mut switch = switch(3);
    switch.send(port(0), frame(address(0), address(1), b"unknown"), 0);
    assert_eq!(arrived(&mut switch, 3, 0), [0, 1, 1]);
    switch.send(port(1), frame(address(1), address(0), b"known"), 0);
    assert_eq!(arrived(&mut switch, 3, 0), [1, 0, 0]);
    switch.send(port(0), frame(address(0), address(1), b"learned"), 0);
    assert_eq!(arrived(&mut switch, 3, 0), [0, 1, 0]);
    for group in [MacAddress::BROADCAST, MacAddress([1, 0, 0x5e, 0, 0, 1]), MacAddress([0x33; 6])] {
        switch.send(port(1), frame(address(1), group, b""), 0);
        assert_eq!(arrived(&mut switch, 3, 0), [1, 0, 1]);
    }
    // A second station behind port 1.
    switch.send(port(1), frame(address(9), address(1), b""), 0);
    switch.send(port(0), frame(address(0), address(9), b""), 0);
    assert_eq!(arrived(&mut switch, 3, 0), [0, 1, 0]);
    let counters = switch.switch_counters();
    assert_eq!((counters.flooded, counters.filtered), (4, 1));
    assert_eq!((switch.counters().sent, switch.counters().delivered), (8, 11));
    // An address that sends nothing is forgotten.
    let later = switch.config().ageing;
    switch.send(port(0), frame(address(0), address(1), b""), later);
    assert_eq!(arrived(&mut switch, 3, later), [0, 1, 1]);
}

#[test]
fn tags_pass_and_vlans_are_learned_separately() {
    let mut switch = switch(3);
    let tagged = |from: usize, to: usize, tci: u16| {
        let mut bytes = [&address(to).0[..], &address(from).0, &ether_type::VLAN.to_be_bytes()].concat();
        bytes.extend(tci.to_be_bytes());
        bytes.extend([0x12, 0x34, 1, 2, 3]);
        Packet::frame(bytes)
    };
    switch.send(port(1), tagged(1, 0, 5), 0);
    assert_eq!(arrived(&mut switch, 3, 0), [1, 0, 1]);
    for (tci, expected) in [(5, [0, 1, 0]), (0xa005, [0, 1, 0]), (6, [0, 1, 1]), (0, [0, 1, 1])] {
        switch.send(port(0), tagged(0, 1, tci), 0);
        let received = switch.receive(port(1), 0).unwrap();
        assert_eq!(received.bytes(), tagged(0, 1, tci).bytes());
        let others = arrived(&mut switch, 3, 0);
        assert_eq!([others[0], others[1] + 1, others[2]], expected, "{tci:#x}");
    }
    // A priority tag names no VLAN.
    switch.send(port(1), frame(address(1), address(0), b""), 0);
    arrived(&mut switch, 3, 0);
    switch.send(port(0), tagged(0, 1, 0xe000), 0);
    assert_eq!(arrived(&mut switch, 3, 0), [0, 1, 0]);
}

#[test]
fn malformed_and_link_local_frames_are_not_forwarded() {
    let mut switch = switch(2);
    for len in 0..14 {
        switch.send(port(0), Packet::frame(vec![0xff; len]), 0);
    }
    for last in 0..16 {
        switch.send(port(0), frame(address(0), MacAddress([1, 0x80, 0xc2, 0, 0, last]), b"bpdu"), 0);
    }
    assert_eq!(arrived(&mut switch, 2, 0), [0, 0]);
    assert_eq!((switch.counters().malformed, switch.switch_counters().filtered), (14, 16));
    switch.send(port(0), frame(address(0), MacAddress([1, 0x80, 0xc2, 0, 0, 16]), b""), 0);
    switch.send(port(7), frame(address(0), address(1), b""), 0);
    assert_eq!(arrived(&mut switch, 2, 0), [0, 1]);
    assert_eq!(switch.counters().link_down, 1, "there is no port 7");
}

#[test]
fn frames_longer_than_either_port_allows_are_refused() {
    let mut switch = switch(3);
    introduce(&mut switch, 3);
    let of_len = |len: usize| frame(address(0), address(1), &vec![0; len - 14]);
    switch.send(port(0), of_len(JUMBO_FRAME), 0);
    switch.send(port(0), of_len(JUMBO_FRAME + 1), 0);
    assert_eq!(arrived(&mut switch, 3, 0), [0, 1, 0]);
    switch.set_longest(port(1), 1_522);
    switch.send(port(0), of_len(1_522), 0);
    switch.send(port(0), of_len(1_523), 0);
    assert_eq!(arrived(&mut switch, 3, 0), [0, 1, 0]);
    // A long broadcast reaches the ports that allow it.
    switch.send(port(0), frame(address(0), MacAddress::BROADCAST, &[0; 4_000]), 0);
    assert_eq!(arrived(&mut switch, 3, 0), [0, 0, 1]);
    assert_eq!(switch.counters().refused, 3);
    let refused = |destination| switch.losses().of(&Flow { destination, ..Flow::of(of_len(14).bytes()) });
    assert_eq!((refused(address(1)).lost(), refused(MacAddress::BROADCAST).refused), (2, 1));
}

#[test]
fn buffers_of_flooded_and_refused_frames_return() {
    let mut switch = switch(2);
    introduce(&mut switch, 2);
    let take = |switch: &mut Switch| switch.links_mut().take_buffer().capacity();
    while take(&mut switch) != 0 {}
    switch.send(port(0), frame(address(0), MacAddress::BROADCAST, b""), 0);
    assert_ne!(take(&mut switch), 0);
    switch.set_longest(port(1), 1_522);
    switch.send(port(0), frame(address(0), address(1), &[0; 2_000]), 0);
    assert_ne!(take(&mut switch), 0);
    assert_eq!(take(&mut switch), 0);
}

#[test]
fn a_link_that_goes_down_loses_frames_and_addresses() {
    let mut switch = switch(3);
    introduce(&mut switch, 3);
    switch.send(port(0), roce(0, 1, 77, Ecn::NotCapable), 0);
    switch.set_link(port(1), false);
    assert!(!switch.link_is_up(port(1)) && switch.is_empty());
    switch.send(port(1), frame(address(1), address(0), b""), 0);
    assert_eq!(arrived(&mut switch, 3, 0), [0, 0, 0]);
    assert_eq!(switch.counters().link_down, 2);
    let flow = Flow { source: address(0), destination: address(1), dest_qpn: 77, kind: Kind::Reliable };
    assert_eq!(switch.losses().of(&flow).link_down, 1);
    // The address may now be elsewhere: frames to it flood.
    switch.send(port(0), frame(address(0), address(1), b""), 0);
    assert_eq!(arrived(&mut switch, 3, 0), [0, 0, 1]);
    switch.set_link(port(1), true);
    switch.send(port(0), frame(address(0), address(1), b""), 0);
    assert_eq!(arrived(&mut switch, 3, 0), [0, 1, 1]);
}

#[test]
fn floods_cost_their_sender() {
    let mut switch = switch(5);
    introduce(&mut switch, 5);
    let unicast = || frame(address(0), address(1), &[0; 8_000]);
    switch.send(port(0), unicast(), 0);
    assert_eq!(switch.links_mut().take_owed(port(0)), 0, "a sender pays for its frame itself");
    switch.send(port(0), frame(address(0), MacAddress::BROADCAST, b""), 0);
    assert_eq!(switch.links_mut().take_owed(port(0)), 4 * work::PACKET);
    switch.send(port(0), frame(address(0), MacAddress::BROADCAST, &[0; 8_192]), 0);
    assert!(
        switch.links_mut().take_owed(port(0)) >= 4 * (work::PACKET + 16),
        "copies of long frames cost more"
    );
    // Sources that the switch has to learn cost as well.
    let (mut source, mut owed) = (address(0), 0);
    for n in 0..=255 {
        source.0[4] = n;
        switch.send(port(0), frame(source, address(1), b""), 0);
        owed += switch.links_mut().take_owed(port(0));
    }
    assert_eq!(owed, 255 * work::PACKET);
    assert!((1..5).all(|n| switch.links_mut().take_owed(port(n)) == 0), "bystanders owe nothing");
    switch.send(port(0), frame(address(0), MacAddress::BROADCAST, &[0; 9_000]), 0);
    assert!(switch.links_mut().pay_turn(port(0)) < work::STEPS_PER_CALL, "less than one call's share");
}

#[test]
fn backlogs_mark_capable_packets_only() {
    let faults = Faults { ecn: Some(3), ..Faults::default() };
    let config = SwitchConfig { faults, latency: 100, ..SwitchConfig::default() };
    let mut switch = switch_with(2, config);
    introduce(&mut switch, 2);
    while switch.receive(port(1), 100).is_some() {}
    while switch.receive(port(0), 100).is_some() {}
    let classes =
        [Ecn::Capable0, Ecn::Capable1, Ecn::NotCapable, Ecn::Capable0, Ecn::Capable1, Ecn::NotCapable];
    let send = |switch: &mut Switch, now| {
        for ecn in classes {
            switch.send(port(0), roce(0, 1, 5, ecn), now);
        }
        switch.send(port(0), frame(address(0), address(1), b"no IP"), now);
    };
    let received = |switch: &mut Switch, now| -> Vec<Option<Ecn>> {
        std::iter::from_fn(|| switch.receive(port(1), now))
            .map(|frame| Frame::parse(frame.bytes()).unwrap().ip().map(|ip| ip.ecn()))
            .collect()
    };
    let unmarked: Vec<Option<Ecn>> = classes.into_iter().map(Some).chain([None]).collect();
    send(&mut switch, 1_000);
    assert_eq!(received(&mut switch, 1_100), unmarked, "frames in flight are no backlog");
    assert_eq!(switch.switch_counters().marked, 0);
    send(&mut switch, 2_000);
    send(&mut switch, 2_100);
    let marked: Vec<Option<Ecn>> = unmarked
        .iter()
        .map(|ecn| ecn.map(|ecn| if ecn == Ecn::NotCapable { ecn } else { Ecn::Congested }))
        .collect();
    assert_eq!(received(&mut switch, 2_200), [unmarked, marked].concat());
    assert_eq!(switch.switch_counters().marked, 4);
}

#[test]
fn marked_and_captured_frames_have_right_checksums() {
    let faults = Faults { ecn: Some(0), ..Faults::default() };
    let mut switch = switch_with(2, SwitchConfig { faults, ..SwitchConfig::default() });
    introduce(&mut switch, 2);
    switch.send(port(0), roce(0, 1, 5, Ecn::Capable0), 0);
    let mut received = switch.receive(port(1), 0).unwrap();
    assert!(received.is_intact());
    let bytes = received.sealed_bytes();
    let parsed = Frame::parse(bytes).unwrap();
    assert!(parsed.ip().unwrap().header_checksum_is_right());
    assert!(parsed.roce().unwrap().icrc_is_right(bytes));
}

#[test]
fn faults_replay_from_the_seed_and_are_counted_by_flow() {
    let run = |seed| {
        let mut switch = with_faults(2, "loss=5%,dup=5%,reorder=5%,corrupt=5%,delay=1us..9us", seed);
        let mut log = Vec::new();
        let mut now = 0;
        for n in 0..2_000u32 {
            // The first frame of each side floods: there are only two ports.
            switch.send(port(0), roce(0, 1, n % 3, Ecn::NotCapable), now);
            now += 3_000;
            while let Some(packet) = switch.receive(port(1), now) {
                log.push((now, packet.is_intact(), packet.bytes().to_vec()));
            }
        }
        let end = now + MS;
        log.extend(
            std::iter::from_fn(|| switch.receive(port(1), end))
                .map(|packet| (end, packet.is_intact(), packet.bytes().to_vec())),
        );
        let (counters, losses) = (switch.counters(), switch.losses().sum(|_| true));
        assert_eq!(losses.dropped, counters.dropped);
        assert_eq!(losses.lost(), counters.dropped + counters.overflow);
        assert_eq!(counters.delivered, 2_000 + counters.duplicated - counters.dropped);
        assert_eq!(counters.delivered, log.len() as u64);
        for count in [counters.dropped, counters.duplicated, counters.corrupted, counters.reordered] {
            assert!((20..400).contains(&count), "{counters:?}");
        }
        let damaged = log.iter().filter(|(_, is_intact, _)| !is_intact).count() as u64;
        // Some bits are in fields that the ICRC does not cover.
        assert!(damaged > counters.corrupted / 3, "{damaged} of {}", counters.corrupted);
        assert!(switch.is_empty());
        log
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
    let mut switch = with_faults(2, "loss=50%", 7);
    let lost = |switch: &mut Switch| -> Vec<usize> {
        (0..64)
            .map(|_| {
                switch.send(port(0), roce(0, 1, 1, Ecn::NotCapable), 0);
                arrived(switch, 2, 0)[1]
            })
            .collect()
    };
    let first = lost(&mut switch);
    switch.reseed(7);
    assert_eq!(lost(&mut switch), first);
}

#[test]
fn cuts_take_the_sender_off_the_switch_for_their_time() {
    let mut switch = with_faults(2, "cuts=1/10..10/5ms..5ms", 3);
    for n in 1..=10 {
        switch.send(port(0), frame(address(0), address(1), b""), n);
    }
    assert_eq!(arrived(&mut switch, 2, 10), [0, 9], "the tenth is the first to be lost");
    assert_eq!((switch.counters().cuts, switch.link_is_up(port(0))), (1, false));
    assert!(!switch.port_is_enabled(port(0)) && switch.port_is_enabled(port(1)));
    switch.set_link(port(0), true);
    assert!(!switch.link_is_up(port(0)), "a cut cable has no link");
    switch.poll(11);
    assert_eq!(switch.next_deadline(), Some(10 + 5 * MS));
    switch.poll(10 + 5 * MS);
    assert!(switch.port_is_enabled(port(0)));
    switch.set_link(port(0), true);
    switch.send(port(0), frame(address(0), address(1), b""), 6 * MS);
    assert_eq!(arrived(&mut switch, 2, 6 * MS), [0, 1]);
    switch.poll(6 * MS);
    assert_eq!(switch.next_deadline(), None);
}

#[test]
fn a_cut_ends_also_where_the_link_was_down() {
    let mut switch = with_faults(2, "cuts=1/2..2/5ms..5ms", 3);
    switch.set_link(port(0), false);
    switch.poll(0);
    switch.each_due(0, |_| {});
    assert_eq!(switch.next_deadline(), None);
    for _ in 0..2 {
        switch.send(port(0), frame(address(0), address(1), b""), 0);
    }
    assert_eq!((switch.counters().cuts, switch.port_is_enabled(port(0))), (1, false));
    assert!(switch.is_due(0), "the switch has to learn of the cut");
    switch.poll(0);
    assert_eq!(switch.next_deadline(), Some(5 * MS));
    switch.poll(5 * MS);
    assert!(switch.port_is_enabled(port(0)));
    let mut changed = Vec::new();
    switch.each_due(5 * MS, |port| changed.push(port));
    assert_eq!(changed, [port(0)], "its adapter learns of the end");
}

#[test]
fn senders_without_credit_wait_for_their_receiver() {
    let mut switch = switch(2);
    introduce(&mut switch, 2);
    let mut sent = 0;
    while switch.links().has_credit(port(0)) {
        switch.send(port(0), frame(address(0), address(1), b""), 0);
        sent += 1;
    }
    assert_eq!(sent, 1_024);
    assert!(switch.links().has_credit(port(1)) && !switch.links().has_credit(port(5)));
    // A receiver that never takes its frames holds no memory without bound.
    for _ in 0..100_000 {
        switch.send(port(0), frame(address(0), MacAddress::BROADCAST, b""), 0);
    }
    assert_eq!(switch.counters().overflow, 100_000);
    assert_eq!(arrived(&mut switch, 2, 0), [0, 1_024]);
    assert!(switch.links().has_credit(port(0)));
}

#[test]
fn receiver_that_takes_nothing_stops_no_flood() {
    let mut switch = switch(3);
    introduce(&mut switch, 3);
    for _ in 0..10_000 {
        assert!(switch.links().has_credit(port(0)));
        switch.send(port(0), frame(address(0), MacAddress::BROADCAST, b""), 0);
        assert!(switch.receive(port(1), 0).is_some());
    }
    assert_eq!(switch.counters().overflow, 10_000 - 256);
    assert_eq!(arrived(&mut switch, 3, 0), [0, 0, 256]);
}

#[test]
fn congested_ports_drop_by_head_of_queue_lifetime() {
    let mut switch = switch(3);
    introduce(&mut switch, 3);
    switch.links_mut().set_congested(port(1), true, 0);
    for _ in 0..20 {
        switch.send(port(0), frame(address(0), address(1), b""), 0);
    }
    switch.send(port(0), frame(address(0), address(2), b""), 0);
    switch.poll(0);
    let first = switch.next_deadline().unwrap();
    assert_eq!(first, 0, "a frame has arrived at port 2");
    assert!(switch.receive(port(2), 0).is_some(), "other ports are not affected");
    let lifetime = switch.next_deadline().unwrap();
    assert_eq!(lifetime, 4_096 << 16);
    switch.poll(lifetime - 1);
    assert_eq!(switch.counters().overflow, 0);
    switch.poll(lifetime);
    assert_eq!(switch.counters().overflow, 1);
    for n in 2..=7 {
        switch.poll(n * lifetime);
    }
    assert_eq!(switch.counters().overflow, 20, "a port that accepts none stalls");
    assert!(switch.links().has_credit(port(0)) && switch.is_empty());
    switch.links_mut().set_congested(port(1), false, 8 * lifetime);
    switch.send(port(0), frame(address(0), address(1), b""), 8 * lifetime);
    assert_eq!(arrived(&mut switch, 3, 8 * lifetime)[1], 1);
}

#[test]
fn frames_arrive_in_order_after_the_latency() {
    let mut switch = switch_with(2, SwitchConfig { latency: 500, ..SwitchConfig::default() });
    switch.poll(0);
    assert_eq!(switch.next_deadline(), None);
    switch.send(port(0), frame(address(0), address(1), b"a"), 1_000);
    switch.send(port(0), frame(address(0), address(1), b"b"), 1_200);
    assert_eq!(switch.next_deadline(), Some(1_500));
    assert!(switch.receive(port(1), 1_499).is_none());
    assert_eq!(switch.receive(port(1), 1_500).unwrap().bytes().last(), Some(&b'a'));
    assert_eq!(switch.next_deadline(), Some(1_700));
    // A shorter latency does not let a frame overtake.
    switch.set_latency(0);
    switch.send(port(0), frame(address(0), address(1), b"c"), 1_300);
    assert!(switch.receive(port(1), 1_699).is_none());
    let rest: Vec<u8> = std::iter::from_fn(|| switch.receive(port(1), 1_700))
        .map(|frame| *frame.bytes().last().unwrap())
        .collect();
    assert_eq!(rest, b"bc");
}

/// Frames with the name of their sender's interface and a remark.
type Record = (u32, Vec<u8>, Option<String>);

#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<(Vec<String>, Vec<Record>)>>);

impl Capture for Recorder {
    fn interface(&mut self, index: u32, name: &str) {
        let names = &mut self.0.lock().unwrap().0;
        assert_eq!(names.len(), index as usize);
        names.push(name.to_owned());
    }

    fn packet(&mut self, interface: u32, _: u64, bytes: &[u8], comment: Option<&str>) {
        self.0.lock().unwrap().1.push((interface, bytes.to_vec(), comment.map(str::to_owned)));
    }

    fn finish(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn captures_have_every_frame_sealed_and_remarked() {
    let mut switch = switch(2);
    let recorder = Recorder::default();
    switch.set_capture(Box::new(recorder.clone()));
    switch.attach("late").unwrap();
    switch.send(port(0), roce(0, 1, 5, Ecn::NotCapable), 0);
    switch.send(port(2), frame(address(2), address(0), b""), 0);
    switch.send(port(0), frame(address(0), address(1), &[0; 10_000]), 0);
    let (names, frames) = recorder.0.lock().unwrap().clone();
    assert_eq!(names, ["station0", "station1", "late"]);
    assert_eq!(frames.iter().map(|record| record.0).collect::<Vec<_>>(), [0, 2, 0]);
    let bytes = &frames[0].1;
    assert!(Frame::parse(bytes).unwrap().roce().unwrap().icrc_is_right(bytes));
    let remarks: Vec<Option<&str>> = frames.iter().map(|record| record.2.as_deref()).collect();
    assert_eq!(remarks[..2], [None, Some("dropped: link down")]);
    assert!(remarks[2].unwrap().contains("too long"));
    switch.finish_capture().unwrap();
    switch.send(port(0), roce(0, 1, 5, Ecn::NotCapable), 0);
    assert_eq!(recorder.0.lock().unwrap().1.len(), 3);
}

#[test]
fn connections_go_direct_only_where_nothing_would_change() {
    let path = RocePath { source: address(0), destination: address(1), vlan: 0, longest: 4_200 };
    let fresh = || {
        let mut switch = switch(2);
        introduce(&mut switch, 2);
        switch
    };
    assert_eq!(fresh().unwatched(port(0), &path, 0), Some(port(1)));
    assert_eq!(fresh().unwatched(port(1), &path, 0), None, "not to itself");
    assert_eq!(switch(2).unwatched(port(0), &path, 0), None, "unknown destination");
    for other in [
        RocePath { vlan: 3, ..path },
        RocePath { destination: address(7), ..path },
        RocePath { source: address(7), ..path },
        RocePath { longest: JUMBO_FRAME + 1, ..path },
        RocePath { destination: MacAddress::BROADCAST, ..path },
    ] {
        assert_eq!(fresh().unwatched(port(0), &other, 0), None, "{other:?}");
    }
    let changes: [&dyn Fn(&mut Switch); 6] = [
        &|switch| switch.set_capture(Box::new(Recorder::default())),
        &|switch| switch.set_faults("loss=1%".parse().unwrap()),
        &|switch| switch.set_latency(1),
        &|switch| switch.set_link(port(0), false),
        &|switch| switch.set_link(port(1), false),
        &|switch| switch.set_longest(port(1), 1_522),
    ];
    for change in changes {
        let mut switch = fresh();
        change(&mut switch);
        assert_eq!(switch.unwatched(port(0), &path, 0), None);
    }
    let mut switch = fresh();
    assert_eq!(switch.unwatched(port(0), &path, switch.config().ageing), None, "forgotten");
    let before = switch.counters();
    switch.links_mut().count_copied(&Traffic {
        requests: 3,
        request_bytes: 3_000,
        responses: 1,
        response_bytes: 62,
    });
    let after = switch.counters();
    assert_eq!((after.sent - before.sent, after.delivered - before.delivered), (4, 4));
    assert_eq!((after.delivered_bytes - before.delivered_bytes, switch.copied()), (3_062, 4));
}

#[test]
fn pinned_addresses_cannot_be_taken() {
    let mut switch = switch(3);
    introduce(&mut switch, 3);
    switch.pin(port(1), address(1));
    switch.send(port(2), frame(address(1), address(0), b"forged"), 0);
    assert_eq!(arrived(&mut switch, 3, 0), [0, 0, 0]);
    assert_eq!(switch.counters().refused, 1);
    switch.send(port(0), frame(address(0), address(1), b""), 0);
    assert_eq!(arrived(&mut switch, 3, 0), [0, 1, 0]);
    switch.unpin(port(1));
    switch.send(port(2), frame(address(1), address(0), b""), HOLD);
    switch.send(port(0), frame(address(0), address(1), b""), HOLD);
    assert_eq!(arrived(&mut switch, 3, HOLD), [1, 0, 1]);
}

/// Two switches, connected twice: ports 1 and 2 of one lead to the same ports of the other.
#[test]
fn loops_carry_each_frame_once() {
    let mut switches = [switch(3), switch(3)];
    let mut sent = 0;
    for time in 0..100 {
        switches[0].send(port(0), frame(address(0), MacAddress::BROADCAST, b""), time);
        sent += 1;
        for _ in 0..10 {
            for (from, at) in [(0, 1), (0, 2), (1, 1), (1, 2)] {
                while let Some(frame) = switches[from].receive(port(at), time) {
                    switches[1 - from].send(port(at), frame, time);
                }
            }
        }
    }
    let received = std::iter::from_fn(|| switches[1].receive(port(0), 100)).count();
    assert_eq!(received, sent, "the station at the other switch receives each frame once");
    assert!(switches.iter().all(Switch::is_empty), "nothing goes round");
    assert_eq!(switches[0].counters().refused, sent as u64, "the frames that came back");
}

#[test]
fn a_switch_has_254_ports() {
    let mut switch = switch(MAX_PORTS);
    assert_eq!(switch.attach("one more"), Err(SwitchFull));
    assert_eq!((switch.name(port(253)), switch.name(port(254))), (Some("station253"), None));
}

proptest! {
    #[test]
    fn any_frames_take_bounded_space_and_work(
        frames in proptest::collection::vec(
            (0u32..5, proptest::collection::vec(any::<u8>(), 0..80), 0u64..1_000), 1..200),
        faults in proptest::sample::select(vec!["", "loss=10%,dup=10%,reorder=10%,corrupt=50%"]),
    ) {
        let mut switch = with_faults(4, faults, 1);
        let mut now = 0;
        let mut received = 0;
        for (from, bytes, wait) in frames {
            now += wait;
            switch.send(PortIndex(from), Packet::frame(bytes), now);
            let owed: u64 = (0..4).map(|n| switch.links_mut().take_owed(port(n))).sum();
            prop_assert!(owed <= 4 * work::PACKET);
            switch.poll(now);
            received += arrived(&mut switch, 4, now).iter().sum::<usize>();
        }
        received += arrived(&mut switch, 4, now + MS).iter().sum::<usize>();
        prop_assert_eq!(switch.counters().delivered, received as u64);
        prop_assert!(switch.is_empty());
    }

    #[test]
    fn sources_of_any_number_leave_bystanders_known(count in 1u32..3_000, vlan: u16) {
        let mut switch = switch(3);
        introduce(&mut switch, 3);
        for n in 0..count {
            let [_, a, b, c] = n.to_be_bytes();
            let source = [6, vlan as u8, (vlan >> 8) as u8, a, b, c];
            switch.send(port(0), frame(MacAddress(source), address(1), b""), 0);
        }
        prop_assert_eq!(arrived(&mut switch, 3, 0), [0, count as usize, 0]);
        switch.send(port(1), frame(address(1), address(2), b""), 0);
        prop_assert_eq!(arrived(&mut switch, 3, 0), [0, 0, 1]);
        let own = usize::from((count as usize) < ADDRESSES_OF_A_PORT);
        switch.send(port(1), frame(address(1), address(0), b""), 0);
        prop_assert_eq!(arrived(&mut switch, 3, 0), [1, 0, 1 - own]);
    }
}

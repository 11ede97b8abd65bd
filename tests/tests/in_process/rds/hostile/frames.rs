//! Frames that break the protocol: each costs the connection, is counted, and leaves nothing behind; the next connection works.

use crate::rds::hostile::peer::{Frame, Hostile, data, frame};
use dat_nostd::ConnectionEvent;
use rds_nostd::DownReason;
use rds_nostd::wire::{HEADER_LEN, Header};

/// More messages than a node has frames: each frame has held one.
const FRAMES_OF_ALL: usize = 300;

/// Sends the frames on a connection of their own: it goes down for this reason, nothing is delivered, and all frames come back.
fn costs_the_connection(seed: u64, frames: &[Frame], reason: DownReason) {
    let mut hostile = Hostile::new(seed);
    let mut free = None;
    for number in 0..3 {
        let ep = hostile.connect();
        // Until the victim knows that it is connected, too.
        hostile.pass(1);
        let before = *hostile.rds.counters();
        hostile.send(ep, frames);
        hostile.until("the connection goes", |counters| counters.conn_reset > before.conn_reset);
        assert_ne!(hostile.event(), ConnectionEvent::Established, "the connection is gone");
        hostile.forget(ep);
        let after = *hostile.rds.counters();
        assert_eq!(after.downs[reason as usize], before.downs[reason as usize] + 1, "{:?}", after.downs);
        // Whatever is too long for a posted receive is found by the HCA.
        let counted = u64::from(reason != DownReason::Broken);
        assert_eq!(after.recv_protocol_errors, before.recv_protocol_errors + counted);
        assert_eq!(
            after.recv_drop_bad_checksum - before.recv_drop_bad_checksum,
            u64::from(reason == DownReason::BadChecksum)
        );
        assert_eq!(hostile.rds.connections_up(), 0);
        let left = hostile.rds.free_frames();
        assert_eq!(*free.get_or_insert(left), left, "all frames came back");
        assert!(hostile.received().is_empty(), "nothing was delivered of it");

        let ep = hostile.connect();
        hostile.say(ep, data(100 + number, 10));
        assert_eq!(hostile.received(), [10]);
        hostile.forget(ep);
        // So that the next request is not one of too many.
        hostile.pass(5_000);
    }
}

#[test]
fn shorter_than_a_header() {
    let cut = Frame { cut: Some(47), ..frame(data(1, 0), 0) };
    costs_the_connection(1, &[cut], DownReason::FrameLength);
}

#[test]
fn without_any_byte() {
    let cut = Frame { cut: Some(0), ..frame(data(1, 0), 0) };
    costs_the_connection(2, &[cut], DownReason::FrameLength);
}

/// Message lengths to refuse in a frame of `cut` bytes: the one that its header wraps to, and the
/// largest.
fn wrapped(cut: usize) -> [u32; 2] {
    [(cut as u32).wrapping_sub(HEADER_LEN as u32), u32::MAX]
}

/// The rest of the header is what the victim's memory holds: zeros, which are the end of this header.
#[test]
fn short_frames_whose_length_wraps_cost_the_connection() {
    for (number, cut) in [20, 47].into_iter().enumerate() {
        for len in wrapped(cut) {
            let cut = Frame { cut: Some(cut), ..frame(data(1, len), 0) };
            costs_the_connection(20 + number as u64, &[cut], DownReason::FrameLength);
        }
    }
}

/// An earlier message in the same frame left the rest of the header. Its checksum is right for
/// this one too.
#[test]
fn short_frames_over_an_earlier_header_cost_the_connection() {
    for (number, cut) in [20, 22, 24, 47].into_iter().enumerate() {
        for len in wrapped(cut) {
            let mut hostile = Hostile::new(30 + number as u64);
            let ep = hostile.connect();
            let (good, bad) = (data(1000, 10), data(1, len));
            let sum = |header: Header| {
                let halves = [header.sequence as u32, header.len >> 16, header.len & 0xffff];
                halves.iter().sum::<u32>() % 0xffff
            };
            let sequence = 1 + u64::from((sum(good) + 0xffff - sum(bad)) % 0xffff);
            let bad = Header { sequence, ..bad };
            assert_eq!(good.encode()[30..32], bad.encode()[30..32], "one checksum for both");
            for _ in 0..FRAMES_OF_ALL {
                hostile.say(ep, good);
                assert_eq!(hostile.received(), [10]);
            }
            hostile.send(ep, &[Frame { cut: Some(cut), ..frame(bad, 0) }]);
            hostile.until("the connection goes", |counters| counters.conn_reset > 0);
            assert_eq!(hostile.rds.counters().downs[DownReason::FrameLength as usize], 1);
            assert!(hostile.received().is_empty(), "nothing was delivered of it");
        }
    }
}

#[test]
fn longer_than_a_frame() {
    costs_the_connection(3, &[frame(data(1, 8000), 4097)], DownReason::Broken);
}

#[test]
fn a_first_fragment_that_is_too_short() {
    costs_the_connection(4, &[frame(data(1, 8000), 4095)], DownReason::FragmentLength);
}

#[test]
fn a_last_fragment_that_is_too_long() {
    costs_the_connection(5, &[frame(data(1, 100), 101)], DownReason::FragmentLength);
}

#[test]
fn a_last_fragment_that_is_too_short() {
    let frames = [frame(data(1, 8000), 4096), frame(data(1, 8000), 3000)];
    costs_the_connection(6, &frames, DownReason::FragmentLength);
}

#[test]
fn data_of_an_empty_message() {
    costs_the_connection(7, &[frame(data(1, 0), 1)], DownReason::FragmentLength);
}

#[test]
fn a_message_longer_than_this_node_takes() {
    costs_the_connection(8, &[frame(data(1, u32::MAX), 4096)], DownReason::MessageLength);
}

#[test]
fn a_message_one_byte_longer_than_any() {
    costs_the_connection(9, &[frame(data(1, (1 << 20) + 1), 4096)], DownReason::MessageLength);
}

#[test]
fn a_fragment_with_another_number() {
    let frames = [frame(data(1, 8000), 4096), frame(data(2, 8000), 3904)];
    costs_the_connection(10, &frames, DownReason::FragmentMismatch);
}

#[test]
fn a_fragment_with_another_length() {
    let frames = [frame(data(1, 8000), 4096), frame(data(1, 8001), 3905)];
    costs_the_connection(11, &frames, DownReason::FragmentMismatch);
}

#[test]
fn a_fragment_from_another_port() {
    let other = Header { sport: 4001, ..data(1, 8000) };
    costs_the_connection(12, &[frame(data(1, 8000), 4096), frame(other, 3904)], DownReason::FragmentMismatch);
}

#[test]
fn a_fragment_to_another_port() {
    let other = Header { dport: 4001, ..data(1, 8000) };
    costs_the_connection(13, &[frame(data(1, 8000), 4096), frame(other, 3904)], DownReason::FragmentMismatch);
}

#[test]
fn another_message_in_the_middle_of_one() {
    let frames = [frame(data(1, 8000), 4096), frame(data(2, 10), 10)];
    costs_the_connection(14, &frames, DownReason::FragmentMismatch);
}

#[test]
fn an_acknowledgement_with_payload() {
    costs_the_connection(15, &[frame(Header::acknowledgement(0), 5)], DownReason::AcknowledgementPayload);
}

#[test]
fn a_wrong_checksum() {
    let spoilt = Frame { spoilt: true, ..frame(data(1, 10), 10) };
    costs_the_connection(16, &[spoilt], DownReason::BadChecksum);
}

/// The beginning of a message whose rest never comes takes no more than was sent, and goes with the connection.
#[test]
fn a_message_that_is_never_finished() {
    let mut hostile = Hostile::new(17);
    let ep = hostile.connect();
    hostile.pass(1);
    let free = hostile.unused_frames();
    hostile.send(ep, &[frame(data(1, 60_000), 4096), frame(data(1, 60_000), 4096)]);
    hostile.pass(100);
    assert_eq!(hostile.unused_frames(), free - 2, "what came, and no more");
    hostile.forget(ep);
    hostile.until("the connection goes", |counters| counters.conn_reset > 0);
    let ep = hostile.connect();
    hostile.say(ep, data(2, 10));
    assert_eq!(hostile.received(), [10]);
    assert_eq!(hostile.unused_frames(), free);
}

//! Both sides against each other over a lossy wire, and each against literal bytes.

use super::*;
use crate::mad::attr;
use proptest::prelude::*;

fn template() -> SaMad {
    let mut mad = SaMad::request(method::GET_TABLE_RESP, attr::NODE_RECORD, 0, 0x77);
    mad.set_attribute_offset(14);
    mad
}

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + (i >> 8) * 7 + 1) as u8).collect()
}

/// Carries a table across; `lose` decides which MADs vanish. Answers with what arrived, or the
/// status it failed with.
fn carry(len: usize, window: u32, mut lose: impl FnMut() -> bool) -> Result<Vec<u8>, u8> {
    let data = payload(len);
    let mut sender = Sender::new(len, SenderConfig::default());
    let mut receiver = Receiver::new(window);
    let mut buffer = vec![0; len.next_multiple_of(RECORD_DATA_LEN).max(RECORD_DATA_LEN)];
    let mut arrived = None;
    let mut now = 5;
    loop {
        match sender.poll(Instant::from_nanos(now)) {
            Step::Send(number) => {
                let mad = sender.segment(number, &template(), &data);
                if lose() {
                    continue;
                }
                let reply = match receiver.input(&mad, &mut buffer) {
                    Received::More => None,
                    Received::Acknowledge(reply) => Some(reply),
                    Received::Complete { len, reply } => {
                        arrived = Some(len);
                        reply
                    }
                    Received::Failed { status, .. } => return Err(status),
                };
                if let Some(reply) = reply.filter(|_| !lose()) {
                    assert_eq!((reply.method(), reply.tid()), (method::GET_TABLE, 0x77));
                    assert_eq!(sender.input(Instant::from_nanos(now), &reply), None);
                }
            }
            Step::Wait(deadline) => {
                assert!(deadline > Instant::from_nanos(now));
                now = deadline.as_nanos();
            }
            Step::Done => {
                buffer.truncate(arrived.expect("complete before the last acknowledgement"));
                return Ok(buffer);
            }
            Step::Failed(status) => return Err(status),
        }
    }
}

#[test]
fn tables_of_all_lengths_arrive_whole() {
    for len in [0, 1, 112, 199, 200, 201, 400, 4_480, 22_400, 100_000] {
        for window in [0, 1, 3, 64] {
            assert_eq!(carry(len, window, || false), Ok(payload(len)), "{len} bytes, window {window}");
        }
    }
}

#[test]
fn a_dead_peer_ends_the_transfer() {
    assert_eq!(carry(5_000, 8, || true), Err(status::TOO_MANY_RETRIES));
}

#[test]
fn segments_are_as_the_specification_draws_them() {
    let data = payload(450);
    let sender = Sender::new(450, SenderConfig::default());
    let head = |n| sender.segment(n, &template(), &data).as_bytes()[24..36].to_vec();
    assert_eq!(head(1), [1, 1, 0xfb, 0, 0, 0, 0, 1, 0, 0, 1, 0xfe], "first: all data, and three headers");
    assert_eq!(head(2), [1, 1, 0xf9, 0, 0, 0, 0, 2, 0, 0, 0, 0]);
    assert_eq!(head(3), [1, 1, 0xfd, 0, 0, 0, 0, 3, 0, 0, 0, 70], "last: 50 bytes and a header");
    let last = sender.segment(3, &template(), &data);
    assert_eq!(last.record_data()[..50], data[400..]);
    assert_eq!(last.record_data()[50..], [0; 150]);
    let only = Sender::new(112, SenderConfig::default()).segment(1, &template(), &data[..112]);
    assert_eq!(only.as_bytes()[24..36], [1, 1, 0xff, 0, 0, 0, 0, 1, 0, 0, 0, 132]);
    assert!(only.is_single_segment());
}

#[test]
fn the_window_is_kept() {
    let mut sender = Sender::new(2_000, SenderConfig::default());
    assert_eq!(sender.poll(Instant::ORIGIN), Step::Send(1));
    assert!(matches!(sender.poll(Instant::ORIGIN), Step::Wait(_)), "the first window is one segment");
    let mut ack = control(&template(), rmpp::ACK);
    ack.set_rmpp_segment(1).set_rmpp_payload_len(3);
    assert_eq!(sender.input(Instant::from_nanos(1), &ack), None);
    assert_eq!(
        [sender.poll(Instant::from_nanos(1)), sender.poll(Instant::from_nanos(1))],
        [Step::Send(2), Step::Send(3)]
    );
    assert_eq!(sender.poll(Instant::from_nanos(1)), Step::Wait(Instant::from_nanos(500_000_001)));
    assert_eq!(
        sender.poll(Instant::from_nanos(500_000_001)),
        Step::Send(2),
        "from the first that is not acknowledged"
    );
}

#[test]
fn contradictions_end_a_transfer() {
    for (segment, window, expected) in [(5, 9, status::SEGMENT_TOO_BIG), (1, 0, status::WINDOW_TOO_SMALL)] {
        let mut sender = Sender::new(2_000, SenderConfig::default());
        let _ = sender.poll(Instant::ORIGIN);
        let mut ack = control(&template(), rmpp::ACK);
        ack.set_rmpp_segment(segment).set_rmpp_payload_len(window);
        let reply = sender.input(Instant::ORIGIN, &ack).unwrap();
        assert_eq!((reply.rmpp_type(), reply.rmpp_status()), (rmpp::ABORT, expected));
        assert_eq!(sender.poll(Instant::ORIGIN), Step::Failed(expected));
        assert_eq!(sender.input(Instant::ORIGIN, &ack), None);
    }
    let mut sender = Sender::new(2_000, SenderConfig::default());
    let _ = sender.poll(Instant::ORIGIN);
    assert_eq!(sender.input(Instant::ORIGIN, &abort(&template(), status::RESOURCES_EXHAUSTED)), None);
    assert_eq!(sender.poll(Instant::ORIGIN), Step::Failed(status::RESOURCES_EXHAUSTED));

    let data = payload(600);
    let sender = Sender::new(600, SenderConfig::default());
    let mut second = sender.segment(2, &template(), &data);
    second.set_rmpp_flags(rmpp::FLAG_ACTIVE | rmpp::FLAG_FIRST);
    let mut buffer = [0; 600];
    let outcome = Receiver::new(4).input(&second, &mut buffer);
    assert!(matches!(outcome, Received::Failed { status: status::INCONSISTENT_FIRST, reply: Some(_) }));
    let mut small = [0; 300];
    let mut receiver = Receiver::new(4);
    let _ = receiver.input(&sender.segment(1, &template(), &data), &mut small);
    let Received::Failed { status: 1, reply: Some(stop) } =
        receiver.input(&sender.segment(2, &template(), &data), &mut small)
    else {
        panic!("there is no room");
    };
    assert_eq!((stop.rmpp_type(), stop.method()), (rmpp::STOP, method::GET_TABLE));
}

#[test]
fn an_answer_without_segments_is_complete() {
    let mut buffer = [0; 200];
    let mut mad = template();
    mad.set_record_data(&payload(200));
    let outcome = Receiver::new(4).input(&mad, &mut buffer);
    assert_eq!(outcome, Received::Complete { len: 200, reply: None });
    assert_eq!(buffer[..], payload(200));
}

proptest! {
    #[test]
    fn loss_changes_nothing_but_the_time(len in 0usize..8_000, window in 1u32..20, losses in any::<u64>()) {
        let mut bits = losses | 1 << 63;
        let mut turn = 0;
        let outcome = carry(len, window, || {
            // About a quarter is lost, never for ever.
            turn += 1;
            bits = bits.rotate_left(7).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            bits >> 62 == 0 && turn % 5 != 0
        });
        match outcome {
            Ok(data) => prop_assert_eq!(data, payload(len)),
            Err(failure) => prop_assert_eq!(failure, status::TOO_MANY_RETRIES),
        }
    }

    #[test]
    fn no_mad_harms_either_side(mads in proptest::collection::vec(
        (any::<[u8; 32]>(), any::<[u8; 32]>()), 1..30)
    ) {
        let mut sender = Sender::new(1_000, SenderConfig::default());
        let mut receiver = Receiver::new(2);
        let mut buffer = [0; 500];
        for (head, tail) in mads {
            let mut bytes = [0; 256];
            bytes[..32].copy_from_slice(&head);
            bytes[24..56].copy_from_slice(&tail);
            let mad = SaMad::from_bytes(bytes);
            let _ = sender.poll(Instant::from_nanos(7));
            let _ = sender.input(Instant::from_nanos(7), &mad);
            let _ = receiver.input(&mad, &mut buffer);
            prop_assert!(receiver.received_len() <= 500);
        }
    }
}

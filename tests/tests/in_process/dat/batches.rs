//! DAT's extensions for many messages: receives posted and taken at once, sends posted at once, looks that poll nothing.

use dat_nostd::{
    CompletionFlags, DtoCompletion, DtoStatus, EpAttributes, EpHandle, Event, EventData, ReceiveDto,
    Received, ReturnType, SendDto,
};
use harness::WorldConfig;
use harness::pair::Pair;

/// Bytes of each receive, and receives that may be outstanding.
const LEN: usize = 256;
const RECEIVES: usize = 16;

/// Length and bytes of message `n`.
fn message(n: usize) -> Vec<u8> {
    (0..10 + 7 * n).map(|i| (i * 5 + n * 31 + 3) as u8).collect()
}

#[test]
fn receives_are_posted_and_taken_many_at_a_time() {
    let mut pair = Pair::new(&WorldConfig::new(11), "ib0");
    let attributes =
        EpAttributes { max_recv_dtos: RECEIVES as u32, max_request_dtos: 32, ..EpAttributes::DEFAULT };
    let eps = pair.connect(7001, &attributes, |_, _| {});
    let side = &mut pair.sides[1];
    let (context, start) = (side.lmr.lmr_context, side.memory.va() as u64);
    let at = |n: usize| (start + (n * LEN) as u64, 500 + n as u64);

    // What is outside the region ends it, and so does the endpoint's limit.
    let outside = (start + side.memory.len() as u64 - LEN as u64 + 1, 1);
    let posted = side.adapter.ep_post_receives(eps[1], context, LEN as u32, [at(0), at(1), outside, at(2)]);
    assert_eq!(posted, Ok(2));
    let rest: Vec<_> = (2..RECEIVES + 4).map(at).collect();
    assert_eq!(side.adapter.ep_post_receives(eps[1], context, LEN as u32, rest.clone()), Ok(RECEIVES - 2));
    assert_eq!(side.adapter.ep_post_receives(eps[1], context, LEN as u32, rest.clone()), Ok(0));
    let refused = side.adapter.ep_post_receives(eps[1], context + 1, LEN as u32, rest.clone());
    assert!(refused.expect_err("no such LMR").is(ReturnType::PrivilegesViolation));
    assert!(side.adapter.evd_take(side.receive_evd).is_none());

    // A run ends with the event that is not for it: here, of immediate data.
    const ODD: usize = 6;
    const MESSAGES: usize = 14;
    for n in 0..MESSAGES {
        let (bytes, offset) = (message(n), n * LEN);
        let side = &mut pair.sides[0];
        side.memory.write(offset, &bytes).expect("inside");
        let segment = side.local(offset, bytes.len());
        let flags = match n % 3 {
            0 => CompletionFlags::empty(),
            1 => CompletionFlags::SUPPRESS,
            _ => CompletionFlags::SUPPRESS | CompletionFlags::SOLICITED_WAIT,
        };
        let cookie = n as u64;
        if n == ODD {
            side.adapter.ep_post_send_immediate(eps[0], &[segment], cookie, 0xabcd, flags).expect("posts");
        } else {
            side.adapter.ep_post_send(eps[0], &[segment], cookie, flags).expect("posts");
        }
    }
    pair.pass(10_000_000);
    let side = &mut pair.sides[1];
    let mut taken = vec![];
    let done = |event: &Event| match event.data {
        EventData::Dto(dto) if dto.status == DtoStatus::Success => dto,
        _ => panic!("{event:?}"),
    };
    loop {
        let mut runs = 0;
        let (count, other) = side.adapter.evd_take_receives(side.receive_evd, 4, |first, run| {
            runs += 1;
            taken.extend(std::iter::once(first).chain(run));
            0
        });
        // All are of one endpoint.
        assert!(runs <= 1);
        if let Some(event) = other {
            assert_eq!((taken.len(), done(&event).received), (ODD, Received::Immediate(0xabcd)));
            let DtoCompletion { user_cookie, transferred_length, .. } = done(&event);
            taken.push(ReceiveDto { user_cookie, length: transferred_length as u32 });
        }
        assert!(count <= 4);
        if count == 0 {
            break;
        }
    }
    assert!(side.adapter.evd_take(side.receive_evd).is_none());
    assert_eq!(taken.len(), MESSAGES);
    for (n, arrival) in taken.iter().enumerate() {
        let expected = message(n);
        assert_eq!((arrival.user_cookie, arrival.length as usize), (500 + n as u64, expected.len()));
        let mut bytes = vec![0; expected.len()];
        side.memory.read(n * LEN, &mut bytes).expect("inside");
        assert!(bytes == expected, "message {n}");
    }
    // Their places are free again, in turn with those posted one by one.
    side.receive(eps[1], 0, LEN, 900).expect("room");
    assert_eq!(side.adapter.ep_post_receives(eps[1], context, LEN as u32, [at(1)]), Ok(1));

    // Of the requests, those not suppressed are told.
    for n in (0..MESSAGES).step_by(3) {
        pair.success(0, false, n as u64);
    }
    let side = &mut pair.sides[0];
    assert!(side.adapter.evd_dequeue(side.request_evd).is_err());

    // The receives that are left are flushed.
    pair.disconnect(eps);
    for cookie in [514, 515, 900, 501] {
        let dto = pair.completion(1, true);
        assert_eq!((dto.status, dto.user_cookie), (DtoStatus::ErrFlushed, cookie));
    }
    assert!(
        pair.sides[1]
            .adapter
            .ep_post_receives(EpHandle::from_bits(0), context, LEN as u32, rest.clone())
            .is_err()
    );
    pair.finish(&[eps]);
}

/// Sends of one segment and of two, up to the first that is out of the ordinary or does not fit; what arrives is whole.
#[test]
fn sends_are_posted_many_at_a_time() {
    let mut pair = Pair::new(&WorldConfig::new(12), "ib0");
    let attributes = EpAttributes {
        max_recv_dtos: RECEIVES as u32,
        max_request_dtos: 4,
        max_request_iov: 2,
        ..EpAttributes::DEFAULT
    };
    let eps = pair.connect(7001, &attributes, |_, _| {});
    let side = &mut pair.sides[1];
    let (context, start) = (side.lmr.lmr_context, side.memory.va() as u64);
    let receives = (0..8).map(|n| (start + (n * LEN) as u64, n as u64));
    assert_eq!(side.adapter.ep_post_receives(eps[1], context, LEN as u32, receives), Ok(8));

    let side = &mut pair.sides[0];
    let bytes = message(20);
    side.memory.write(0, &bytes).expect("inside");
    let (context, start, end) =
        (side.lmr.lmr_context, side.memory.va() as u64, (side.memory.va() + side.memory.len()) as u64);
    // Its bytes, in two parts.
    let send = |n: u32| SendDto {
        address: start,
        length: 10 + n,
        second_address: start + u64::from(10 + n),
        second_length: 50,
        user_cookie: u64::from(n),
        flags: CompletionFlags::SUPPRESS,
    };
    let mut post = |second, sends: Vec<SendDto>| side.adapter.ep_post_sends(eps[0], context, second, sends);
    let outside = SendDto { second_address: end - 49, ..send(9) };
    let fenced = SendDto { flags: CompletionFlags::BARRIER_FENCE, ..send(9) };
    let empty = SendDto { length: 0, ..send(9) };
    for refused in [outside, fenced, empty] {
        assert_eq!(post(Some(context), vec![refused, send(9)]), Ok(0));
    }
    assert!(
        post(Some(context + 1), vec![send(9)]).expect_err("no such LMR").is(ReturnType::PrivilegesViolation)
    );
    assert_eq!(post(Some(context), vec![send(0), send(1), outside, send(2)]), Ok(2));
    // Of one segment the rest counts for nothing; of those that do not fit none is taken.
    let mut rest = vec![SendDto { flags: CompletionFlags::empty(), ..outside }; 5].into_iter();
    assert_eq!(side.adapter.ep_post_sends(eps[0], context, None, rest.by_ref()), Ok(2));
    assert_eq!(rest.len(), 3);
    let unknown = side.adapter.ep_post_sends(EpHandle::from_bits(0), context, None, [send(0)]);
    assert!(unknown.expect_err("no such endpoint").is(ReturnType::InvalidHandle));
    pair.pass(10_000_000);
    let side = &mut pair.sides[1];
    let mut taken = vec![];
    // Receives that a run leaves begin the next one.
    let mut runs = 0;
    side.adapter.evd_take_receives(side.receive_evd, 8, |first, run| {
        runs += 1;
        taken.extend(std::iter::once(first).chain(run).take(2).map(|done| done.length as usize));
        0
    });
    assert_eq!(runs, 2);
    assert_eq!(taken, [60, 61, 19, 19]);
    for (n, length) in taken.into_iter().enumerate() {
        let mut found = vec![0; length];
        side.memory.read(n * LEN, &mut found).expect("inside");
        assert_eq!(found, bytes[..length]);
    }
}

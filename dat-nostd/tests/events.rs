//! Event dispatchers: waits, thresholds, notification modes, software events, idling.

use crate::common;

use common::{Net, Options};
use dat_nostd::*;

const NONE: CompletionFlags = CompletionFlags::empty();

#[track_caller]
fn is<T: core::fmt::Debug>(result: DatResult<T>, kind: ReturnType, subtype: Subtype) {
    assert_eq!(result.map(|_| ()), Err(DatReturn::error(kind, subtype)));
}

#[test]
fn software_events() {
    let mut net = Net::new(1, 1);
    let side = net.side(0, &Options::default());
    let adapter = &mut net.nodes[0];
    let flags = EvdFlags::SOFTWARE | EvdFlags::CR;
    let evd = adapter.evd_create(side.ia, 20, None, flags).unwrap();
    assert_eq!(adapter.evd_dequeue(evd), Err(DatReturn(0x000d_0000)), "bare, as dtest compares");
    for value in 0..20 {
        adapter.evd_post_se(evd, value).unwrap();
    }
    is(adapter.evd_post_se(evd, 20), ReturnType::QueueFull, Subtype::NoSubtype);
    for value in 0..20 {
        let event = adapter.evd_dequeue(evd).unwrap();
        assert_eq!(
            (event.evd, event.data, event.number()),
            (evd, EventData::Software { value }, EventNumber::Software)
        );
    }
    is(adapter.evd_post_se(side.recv, 1), ReturnType::InvalidParameter, Subtype::InvalidArg1);
    let query = adapter.evd_query(evd).unwrap();
    assert_eq!((query.evd_qlen, query.evd_flags), (20, flags));
    assert_eq!(query.evd_state, EvdState::ENABLED | EvdState::WAITABLE | EvdState::CONFIG_THRESHOLD);
    adapter.evd_disable(evd).unwrap();
    adapter.evd_set_unwaitable(evd).unwrap();
    let query = adapter.evd_query(evd).unwrap();
    assert_eq!(query.evd_state, EvdState::DISABLED | EvdState::UNWAITABLE | EvdState::CONFIG_THRESHOLD);
    adapter.evd_enable(evd).unwrap();
    adapter.evd_clear_unwaitable(evd).unwrap();
    adapter.evd_post_se(evd, 1).unwrap();
    adapter.evd_free(evd).unwrap();
}

#[test]
fn creation_checks_its_arguments() {
    let mut net = Net::new(2, 1);
    let side = net.side(0, &Options::default());
    let adapter = &mut net.nodes[0];
    let parameter = ReturnType::InvalidParameter;
    is(adapter.evd_create(side.ia, 0, None, EvdFlags::DTO), parameter, Subtype::InvalidArg2);
    is(adapter.evd_create(side.ia, u32::MAX, None, EvdFlags::DTO), parameter, Subtype::InvalidArg2);
    is(adapter.evd_create(side.ia, 8, None, EvdFlags::empty()), parameter, Subtype::InvalidArg4);
    is(
        adapter.evd_create(side.ia, 8, None, EvdFlags::ASYNC | EvdFlags::DTO),
        parameter,
        Subtype::InvalidArg4,
    );
    is(adapter.evd_create(side.ia, 8, None, EvdFlags::from_bits_retain(2)), parameter, Subtype::InvalidArg4);
    let full = ReturnType::InsufficientResources;
    is(adapter.evd_create(side.ia, 1 << 20, None, EvdFlags::DTO), full, Subtype::ResourceTevd);
    let all = EvdFlags::all() - EvdFlags::ASYNC;
    let merged = adapter.evd_create(side.ia, 8, None, all).unwrap();
    adapter.evd_free(merged).unwrap();
}

#[test]
fn waits() {
    let mut net = Net::new(3, 1);
    let side = net.side(0, &Options::default());
    let adapter = &mut net.nodes[0];
    let evd = adapter.evd_create(side.ia, 16, None, EvdFlags::SOFTWARE).unwrap();
    let now = 5_000_000_000;
    is(
        adapter.evd_wait_begin(evd, Instant::from_nanos(now), 1, 0),
        ReturnType::InvalidParameter,
        Subtype::InvalidArg3,
    );
    is(
        adapter.evd_wait_begin(evd, Instant::from_nanos(now), 1, 17),
        ReturnType::InvalidParameter,
        Subtype::InvalidArg3,
    );
    // Time-out 0 asks.
    let mut wait = adapter.evd_wait_begin(evd, Instant::from_nanos(now), 0, 1).unwrap();
    assert_eq!(adapter.evd_wait_poll(&mut wait, Instant::from_nanos(now)), Ok(Wait::TimedOut(0)));
    adapter.evd_post_se(evd, 7).unwrap();
    let mut wait = adapter.evd_wait_begin(evd, Instant::from_nanos(now), 0, 1).unwrap();
    let Ok(Wait::Ready(event, 0)) = adapter.evd_wait_poll(&mut wait, Instant::from_nanos(now)) else {
        panic!()
    };
    assert_eq!(event.data, EventData::Software { value: 7 });
    // One waiter, who alone has the events.
    let mut wait = adapter.evd_wait_begin(evd, Instant::from_nanos(now), 1000, 3).unwrap();
    let state = ReturnType::InvalidState;
    is(adapter.evd_wait_begin(evd, Instant::from_nanos(now), 1, 1), state, Subtype::InvalidStateEvdWaiter);
    is(adapter.evd_dequeue(evd), state, Subtype::InvalidStateEvdWaiter);
    for value in 0..4 {
        assert_eq!(
            adapter.evd_wait_poll(&mut wait, Instant::from_nanos(now)),
            if value < 3 {
                Ok(Wait::Pending(Wake::At(Instant::from_nanos(now + 1_000_000))))
            } else {
                Ok(Wait::Ready(Event { evd, data: EventData::Software { value: 0 } }, 2))
            }
        );
        if value < 3 {
            adapter.evd_post_se(evd, value).unwrap();
        }
    }
    is(adapter.evd_wait_poll(&mut wait, Instant::from_nanos(now)), state, Subtype::InvalidStateEvdWaiter);
    // Time-out below the threshold: nothing is removed, the count is reported.
    let mut wait = adapter.evd_wait_begin(evd, Instant::from_nanos(now), 1000, 3).unwrap();
    assert_eq!(
        adapter.evd_wait_poll(&mut wait, Instant::from_nanos(now + 999_999)),
        Ok(Wait::Pending(Wake::At(Instant::from_nanos(now + 1_000_000))))
    );
    assert_eq!(adapter.evd_wait_poll(&mut wait, Instant::from_nanos(now + 1_000_000)), Ok(Wait::TimedOut(2)));
    is(adapter.evd_wait_end(wait), state, Subtype::InvalidStateEvdWaiter);
    assert_eq!(adapter.evd_dequeue(evd).unwrap().data, EventData::Software { value: 1 });
    // Given up; made unwaitable; freed.
    let mut wait = adapter.evd_wait_begin(evd, Instant::from_nanos(now), TIMEOUT_INFINITE, 8).unwrap();
    assert_eq!(adapter.evd_wait_poll(&mut wait, Instant::from_nanos(now)), Ok(Wait::Pending(Wake::Idle)));
    adapter.evd_wait_end(wait).unwrap();
    let mut wait = adapter.evd_wait_begin(evd, Instant::from_nanos(now), TIMEOUT_INFINITE, 8).unwrap();
    adapter.evd_set_unwaitable(evd).unwrap();
    is(adapter.evd_wait_poll(&mut wait, Instant::from_nanos(now)), state, Subtype::InvalidStateEvdUnwaitable);
    is(
        adapter.evd_wait_begin(evd, Instant::from_nanos(now), 1, 1),
        state,
        Subtype::InvalidStateEvdUnwaitable,
    );
    assert_eq!(adapter.evd_dequeue(evd).unwrap().data, EventData::Software { value: 2 });
    adapter.evd_clear_unwaitable(evd).unwrap();
    let mut wait = adapter.evd_wait_begin(evd, Instant::from_nanos(now), TIMEOUT_INFINITE, 8).unwrap();
    adapter.evd_free(evd).unwrap();
    is(adapter.evd_wait_poll(&mut wait, Instant::from_nanos(now)), ReturnType::Abort, Subtype::NoSubtype);
    // So does the close of the IA.
    let evd = adapter.evd_create(side.ia, 16, None, EvdFlags::SOFTWARE).unwrap();
    let mut wait = adapter.evd_wait_begin(evd, Instant::from_nanos(now), TIMEOUT_INFINITE, 1).unwrap();
    adapter.ia_close(side.ia, CloseFlags::Abrupt).unwrap();
    is(adapter.evd_wait_poll(&mut wait, Instant::from_nanos(now)), ReturnType::Abort, Subtype::NoSubtype);
}

#[test]
fn a_threshold_counts_completions() {
    let mut net = Net::new(4, 2);
    let [active, passive] = net.pair(&Options::default());
    for index in 0..10 {
        net.nodes[1].ep_post_recv(passive.ep, &[passive.segment(0, 64)], index, NONE).unwrap();
    }
    let now = net.world.now();
    let mut receives =
        net.nodes[1].evd_wait_begin(passive.recv, Instant::from_nanos(now), TIMEOUT_INFINITE, 5).unwrap();
    for index in 0..7 {
        let flags = if index % 2 == 0 { CompletionFlags::SUPPRESS } else { NONE };
        net.nodes[0].ep_post_send(active.ep, &[active.segment(0, 8)], index, flags).unwrap();
        if index == 3 {
            net.pass(10_000_000);
            let now = net.world.now();
            assert_eq!(
                net.nodes[1].evd_wait_poll(&mut receives, Instant::from_nanos(now)),
                Ok(Wait::Pending(Wake::Idle))
            );
        }
    }
    net.pass(10_000_000);
    let now = net.world.now();
    let Ok(Wait::Ready(event, 6)) = net.nodes[1].evd_wait_poll(&mut receives, Instant::from_nanos(now))
    else {
        panic!()
    };
    assert!(matches!(event.data, EventData::Dto(DtoCompletion { user_cookie: 0, .. })));
    for index in 1..7 {
        assert_eq!(net.dto(1, passive.recv).user_cookie, index);
    }
    // Suppressed ones do not count.
    let now = net.world.now();
    let mut requests = net.nodes[0].evd_wait_begin(active.request, Instant::from_nanos(now), 0, 4).unwrap();
    assert_eq!(net.nodes[0].evd_wait_poll(&mut requests, Instant::from_nanos(now)), Ok(Wait::TimedOut(3)));
    for index in [1, 3, 5] {
        assert_eq!(net.dto(0, active.request).user_cookie, index);
    }
    net.empty(0, active.request);
}

#[test]
fn notification_modes() {
    // Solicited: receives wake only if the sender asks. Unsignalled: all but those posted so.
    let mut net = Net::new(5, 2);
    let mut options = Options::default();
    options.attributes.recv_completion_flags = CompletionFlags::SOLICITED_WAIT;
    options.attributes.request_completion_flags = CompletionFlags::UNSIGNALLED;
    let [active, passive] = net.pair(&options);
    let state = net.nodes[1].evd_query(passive.recv).unwrap().evd_state;
    assert!(state.contains(EvdState::CONFIG_SOLICITED) && !state.contains(EvdState::CONFIG_NOTIFY));
    let now = net.world.now();
    is(
        net.nodes[1].evd_wait_begin(passive.recv, Instant::from_nanos(now), 1, 2),
        ReturnType::InvalidState,
        Subtype::InvalidStateEvdConfigSolicited,
    );
    is(
        net.nodes[0].evd_wait_begin(active.request, Instant::from_nanos(now), 1, 2),
        ReturnType::InvalidState,
        Subtype::InvalidStateEvdConfigNotify,
    );
    for index in 0..4 {
        net.nodes[1].ep_post_recv(passive.ep, &[passive.segment(0, 64)], index, NONE).unwrap();
    }
    let mut receives =
        net.nodes[1].evd_wait_begin(passive.recv, Instant::from_nanos(now), TIMEOUT_INFINITE, 1).unwrap();
    let mut requests =
        net.nodes[0].evd_wait_begin(active.request, Instant::from_nanos(now), TIMEOUT_INFINITE, 1).unwrap();
    let pending = Ok(Wait::Pending(Wake::Idle));
    assert_eq!(net.nodes[1].evd_wait_poll(&mut receives, Instant::from_nanos(now)), pending);
    assert_eq!(net.nodes[0].evd_wait_poll(&mut requests, Instant::from_nanos(now)), pending);
    for index in 0..2 {
        net.nodes[0].ep_post_send(active.ep, &[], index, CompletionFlags::UNSIGNALLED).unwrap();
        net.pass(5_000_000);
        let now = net.world.now();
        assert_eq!(
            net.nodes[1].evd_wait_poll(&mut receives, Instant::from_nanos(now)),
            pending,
            "queued, not notifying"
        );
        assert_eq!(
            net.nodes[0].evd_wait_poll(&mut requests, Instant::from_nanos(now)),
            pending,
            "queued, not notifying"
        );
    }
    net.nodes[0].ep_post_send(active.ep, &[], 2, CompletionFlags::SOLICITED_WAIT).unwrap();
    net.pass(5_000_000);
    let now = net.world.now();
    // Once awake, all that is queued is there.
    assert!(matches!(
        net.nodes[1].evd_wait_poll(&mut receives, Instant::from_nanos(now)),
        Ok(Wait::Ready(_, 2))
    ));
    assert!(matches!(
        net.nodes[0].evd_wait_poll(&mut requests, Instant::from_nanos(now)),
        Ok(Wait::Ready(_, 2))
    ));
    // What is there when a wait begins ends it, notifying or not.
    let mut receives =
        net.nodes[1].evd_wait_begin(passive.recv, Instant::from_nanos(now), TIMEOUT_INFINITE, 1).unwrap();
    assert!(matches!(
        net.nodes[1].evd_wait_poll(&mut receives, Instant::from_nanos(now)),
        Ok(Wait::Ready(_, 1))
    ));
}

#[test]
fn interrupts_wake_who_idles() {
    let mut net = Net::new(6, 2);
    let [active, passive] = net.pair(&Options::default());
    net.nodes[1].ep_post_recv(passive.ep, &[passive.segment(0, 64)], 1, NONE).unwrap();
    for round in 0..5 {
        // Both come to rest.
        for node in 0..2 {
            net.until("rest", |net| {
                let now = net.world.now();
                let rest = net.nodes[node].prepare_idle(Instant::from_nanos(now));
                net.world.idle(now + 1000);
                rest.then_some(())
            });
        }
        let before = net.world.interrupts(1).iter().sum::<u64>();
        net.nodes[0].ep_post_send(active.ep, &[active.segment(0, 8)], round, NONE).unwrap();
        net.world.pass(1_000_000);
        let after = net.world.interrupts(1).iter().sum::<u64>();
        assert!(after > before, "round {round}: the receive raised an interrupt");
        let now = net.world.now();
        assert!(!net.nodes[1].prepare_idle(Instant::from_nanos(now)), "there is something to do");
        assert_eq!(net.dto(1, passive.recv).user_cookie, 1);
        assert_eq!(net.dto(0, active.request).user_cookie, round);
        net.nodes[1].ep_post_recv(passive.ep, &[passive.segment(0, 64)], 1, NONE).unwrap();
    }
}

//! Every call on an event dispatcher however somebody waits on it (uDAPL 1.2, dat_evd_wait).

use crate::bench::Bench;
use dat_nostd::states::{EVD_CALLS, EVD_CONDITIONS, Effect, EvdCall, EvdCondition, triggers};
use dat_nostd::*;

/// `ok`, or the subtype of INVALID_STATE: `w`aiter, `u`nwaitable, `o`verflowed.
const TABLE: [(&str, [&str; 5]); 13] = [
    // open, waited, interrupted, unwaitable, overflowed
    ("dequeue", ["ok", "w", "u", "ok", "o"]),
    ("wait_begin", ["ok", "w", "u", "u", "o"]),
    ("wait_poll", ["w", "ok", "u", "u", "o"]),
    ("wait_end", ["w", "ok", "ok", "u", "o"]),
    ("post_se", ["ok", "ok", "ok", "ok", "ok"]),
    ("query", ["ok", "ok", "ok", "ok", "ok"]),
    ("enable", ["ok", "ok", "ok", "ok", "ok"]),
    ("disable", ["ok", "ok", "ok", "ok", "ok"]),
    ("set_unwaitable", ["ok", "ok", "ok", "ok", "ok"]),
    ("clear_unwaitable", ["ok", "ok", "ok", "ok", "ok"]),
    ("modify_cno", ["ok", "ok", "ok", "ok", "ok"]),
    ("resize", ["ok", "ok", "ok", "ok", "ok"]),
    ("free", ["ok", "ok", "ok", "ok", "ok"]),
];

const FLAGS: EvdFlags = EvdFlags::SOFTWARE.union(EvdFlags::CONNECTION);

/// An EVD in this condition, with one event unless it is overflowed, and the last waiter on it.
fn evd_in(b: &mut Bench, condition: EvdCondition) -> (EvdHandle, EvdWaiter<'static>) {
    let (h, now) = (b.here, b.net.world.now());
    let a = b.a();
    let evd = a.evd_create(h.ia, 8, None, FLAGS).unwrap();
    let mut waiter = ended(b, evd);
    let a = b.a();
    match condition {
        EvdCondition::Open => a.evd_post_se(evd, 1).unwrap(),
        EvdCondition::Waited => {
            waiter = a.evd_wait_begin(evd, Instant::from_nanos(now), TIMEOUT_INFINITE, 2).unwrap();
            a.evd_post_se(evd, 1).unwrap();
        }
        EvdCondition::Interrupted => {
            a.evd_post_se(evd, 1).unwrap();
            waiter = a.evd_wait_begin(evd, Instant::from_nanos(now), TIMEOUT_INFINITE, 2).unwrap();
            a.evd_set_unwaitable(evd).unwrap();
        }
        EvdCondition::Unwaitable => {
            a.evd_post_se(evd, 1).unwrap();
            a.evd_set_unwaitable(evd).unwrap();
        }
        EvdCondition::Overflowed => panic!("that takes more than one event"),
    }
    (evd, waiter)
}

/// A waiter whose wait is over.
fn ended(b: &mut Bench, evd: EvdHandle) -> EvdWaiter<'static> {
    let now = b.net.world.now();
    let mut waiter = b.a().evd_wait_begin(evd, Instant::from_nanos(now), 0, 8).unwrap();
    assert!(matches!(b.a().evd_wait_poll(&mut waiter, Instant::from_nanos(now)), Ok(Wait::TimedOut(_))));
    waiter
}

/// Makes the call that a row is about.
fn make(b: &mut Bench, evd: EvdHandle, waiter: &mut Option<EvdWaiter<'static>>, call: &str) -> DatResult<()> {
    let now = b.net.world.now();
    let a = b.a();
    match call {
        "dequeue" => a.evd_dequeue(evd).map(|_| ()),
        "wait_begin" => a.evd_wait_begin(evd, Instant::from_nanos(now), 0, 1).map(|_| ()),
        "wait_poll" => {
            a.evd_wait_poll(waiter.as_mut().expect("a waiter"), Instant::from_nanos(now)).map(|_| ())
        }
        "wait_end" => a.evd_wait_end(waiter.take().expect("a waiter")),
        "post_se" => a.evd_post_se(evd, 7),
        "query" => a.evd_query(evd).map(|_| ()),
        "enable" => a.evd_enable(evd),
        "disable" => a.evd_disable(evd),
        "set_unwaitable" => a.evd_set_unwaitable(evd),
        "clear_unwaitable" => a.evd_clear_unwaitable(evd),
        "modify_cno" => a.evd_modify_cno(evd, None),
        "resize" => a.evd_resize(evd, 20),
        "free" => a.evd_free(evd),
        other => panic!("{other}"),
    }
}

/// The conditions that can be had without a queue that overflows.
const CONDITIONS: [EvdCondition; 4] =
    [EvdCondition::Open, EvdCondition::Waited, EvdCondition::Interrupted, EvdCondition::Unwaitable];

#[test]
fn every_call_in_every_condition() {
    let mut b = Bench::new();
    for (call, cells) in TABLE {
        for (condition, cell) in CONDITIONS.into_iter().zip(cells) {
            let (evd, waiter) = evd_in(&mut b, condition);
            let mut waiter = Some(waiter);
            let result = make(&mut b, evd, &mut waiter, call);
            let what = format!("{call} when {condition:?}");
            match cell {
                "ok" => assert_eq!(result, Ok(()), "{what}"),
                refused => {
                    let subtype = match refused {
                        "w" => Subtype::InvalidStateEvdWaiter,
                        _ => Subtype::InvalidStateEvdUnwaitable,
                    };
                    assert_eq!(result, Err(DatReturn::error(ReturnType::InvalidState, subtype)), "{what}");
                }
            }
            // What a refused call leaves: the event is still there for whoever may take it once the waiter is gone.
            drop(waiter);
            if cell != "ok" {
                let event = b.a().evd_dequeue(evd).unwrap();
                assert_eq!(event.data, EventData::Software { value: 1 }, "{what}: the event is still there");
            }
            if call != "free" {
                b.a().evd_free(evd).unwrap();
            }
        }
    }
}

#[test]
fn an_overflow_is_reported_and_final() {
    let mut b = Bench::new();
    let (h, now) = (b.here, b.net.world.now());
    let evd = b.a().evd_create(h.ia, 8, None, FLAGS).unwrap();
    let room = b.a().evd_query(evd).unwrap().evd_qlen;
    let waiter = ended(&mut b, evd);
    let attributes = EpAttributes { max_recv_dtos: 1, max_request_dtos: 1, ..EpAttributes::DEFAULT };
    let connect = |b: &mut Bench| {
        let ep = b
            .a()
            .ep_create(h.ia, Some(h.pz), Some(h.recv), Some(h.request), Some(evd), Some(&attributes))
            .unwrap();
        let nobody = crate::common::address(99);
        b.a().ep_connect(ep, &nobody, 7, 1000, b"", Qos::BestEffort, ConnectFlags::Default).unwrap();
        // An Ethernet port resolves the address by ARP until the time limit; a table of neighbours fails at once.
        b.settle();
        b.net.world.pass(1_000_000);
        b.settle();
        ep
    };
    let eps: Vec<EpHandle> = (0..room).map(|_| connect(&mut b)).collect();
    b.net.empty(0, h.asynchronous);
    let last = connect(&mut b);
    match b.a().evd_dequeue(h.asynchronous).unwrap().data {
        EventData::Async { error: AsyncError::EvdOverflow, handle, reason: 0 } => {
            assert_eq!(handle, Handle::from(evd), "about the EVD that overflowed");
        }
        other => panic!("{other:?}"),
    }
    b.net.empty(0, h.asynchronous);
    let mut waiter = Some(waiter);
    for (call, cells) in TABLE {
        if call == "free" || call == "resize" {
            continue;
        }
        match cells[4] {
            "o" => {
                let error = make(&mut b, evd, &mut waiter, call).unwrap_err();
                assert!(error.is(ReturnType::InvalidState), "{call}: {error}");
            }
            _ if call == "post_se" => {
                assert!(
                    make(&mut b, evd, &mut waiter, call).unwrap_err().is(ReturnType::QueueFull),
                    "it is still full"
                );
            }
            _ => assert_eq!(make(&mut b, evd, &mut waiter, call), Ok(()), "{call}"),
        }
    }
    assert!(
        b.a().evd_wait_begin(evd, Instant::from_nanos(now), 0, 1).unwrap_err().is(ReturnType::InvalidState)
    );
    // The EPs live on, and once they are gone so can the EVD be.
    for ep in eps.into_iter().chain([last]) {
        assert_eq!(b.a().ep_get_status(ep).unwrap().state, EpState::Disconnected);
        b.a().ep_free(ep).unwrap();
    }
    b.a().evd_free(evd).unwrap();
}

#[test]
fn the_crate_has_the_same_table() {
    let rows = [
        ("dequeue", EvdCall::Dequeue),
        ("wait_begin", EvdCall::WaitBegin),
        ("wait_poll", EvdCall::WaitPoll),
        ("wait_end", EvdCall::WaitEnd),
    ];
    for (name, call) in rows {
        let cells = TABLE.iter().find(|row| row.0 == name).expect("the row").1;
        for ((condition, effect), cell) in EVD_CONDITIONS.into_iter().zip(EVD_CALLS[call as usize]).zip(cells)
        {
            let expected = if cell == "ok" { Effect::Run } else { Effect::Refuse };
            assert_eq!(effect, expected, "{name} when {condition:?}");
        }
    }
}

/// Arrivals trigger the CNO if the EVD is enabled and nobody waits on it; whether it is waitable makes no difference.
#[test]
fn what_triggers_the_cno() {
    for enabled in [true, false] {
        for condition in CONDITIONS {
            let mut b = Bench::new();
            let (ia, now) = (b.here.ia, b.net.world.now());
            let (evd, _waiter) = evd_in(&mut b, condition);
            let cno = b.a().cno_create(ia, None).unwrap();
            b.a().evd_modify_cno(evd, Some(cno)).unwrap();
            if !enabled {
                b.a().evd_disable(evd).unwrap();
            }
            // What moving the EVD may have triggered is taken first.
            let mut taken = b.a().cno_wait_begin(cno, Instant::from_nanos(now), 0).unwrap();
            let _ = b.a().cno_wait_poll(&mut taken, Instant::from_nanos(now));
            b.a().evd_post_se(evd, 2).unwrap();
            let mut waiter = b.a().cno_wait_begin(cno, Instant::from_nanos(now), 0).unwrap();
            let fired = b.a().cno_wait_poll(&mut waiter, Instant::from_nanos(now));
            let expected = enabled && condition != EvdCondition::Waited;
            match fired {
                Ok(CnoWait::Triggered(Some(by))) => assert!(expected && by == evd, "{condition:?} {enabled}"),
                Err(error) if error.is(ReturnType::QueueEmpty) => {
                    assert!(!expected, "{condition:?} {enabled}")
                }
                other => panic!("{other:?}"),
            }
            assert_eq!(triggers(enabled, condition), expected);
        }
    }
}

//! Consumer notification objects (uDAPL 1.2, `dat_cno_*`).

use crate::bench::Bench;
use crate::registry::{BY_VALUE, Call, Row, impossible, refused, refused_as, succeeds};
use crate::{call, ok, tests};
use core::sync::atomic::{AtomicU64, Ordering};
use dat_nostd::ReturnType::*;
use dat_nostd::*;

fn no_cnos(b: &Bench) -> Vec<CnoHandle> {
    b.no_handles(HandleType::Cno).into_iter().map(CnoHandle::from_bits).collect()
}

/// A CNO of node 0 and a software EVD that feeds it.
fn fed(b: &mut Bench) -> (CnoHandle, EvdHandle) {
    let ia = b.here.ia;
    let cno = b.a().cno_create(ia, None).unwrap();
    (cno, b.a().evd_create(ia, 8, Some(cno), EvdFlags::SOFTWARE).unwrap())
}

/// What agents were called with: the sum of their instance data, and how often with no EVD.
static CALLED: AtomicU64 = AtomicU64::new(0);
static RELEASED: AtomicU64 = AtomicU64::new(0);

fn agent(_: &mut dyn AgentCalls, instance_data: u64, evd: Option<EvdHandle>) {
    CALLED.fetch_add(instance_data, Ordering::Relaxed);
    RELEASED.fetch_add(u64::from(evd.is_none()), Ordering::Relaxed);
}

fn other_agent(_: &mut dyn AgentCalls, _: u64, _: Option<EvdHandle>) {}

pub const ROWS: &[Row] = &[
    refused_as("cno_create", InvalidHandle, Subtype::InvalidHandleIa, "no IA", |b| {
        let ias = b.no_handles(HandleType::Ia).into_iter().map(IaHandle::from_bits);
        ias.map(|ia| call!(cno_create(ia, None))).collect()
    }),
    refused("cno_create", InsufficientResources, "no CNO is left", |b| {
        let ia = b.here.ia;
        while b.a().cno_create(ia, None).is_ok() {}
        let agent = Some(ProxyAgent { function: agent, instance_data: 0 });
        vec![call!(cno_create(ia, None)), call!(cno_create(ia, agent))]
    }),
    impossible("cno_create", InvalidParameter, "the agent is bad", "a function pointer is never null"),
    impossible("cno_create", InvalidParameter, "the pointer for the CNO is null", BY_VALUE),
    succeeds("cno_create", "with and without an agent, which is called once", |b| {
        let b = &mut *b;
        *b = Bench::new();
        let ia = b.here.ia;
        ok!(b, cno_create(ia, None));
        let given = ProxyAgent { function: agent, instance_data: 5 };
        let cno = ok!(b, cno_create(ia, Some(given)));
        assert_eq!(b.a().cno_query(cno).unwrap().agent, Some(given));
        let evd = b.a().evd_create(ia, 8, Some(cno), EvdFlags::SOFTWARE).unwrap();
        let before = CALLED.load(Ordering::Relaxed);
        b.a().evd_post_se(evd, 1).unwrap();
        b.a().evd_post_se(evd, 2).unwrap();
        assert_eq!(CALLED.load(Ordering::Relaxed), before, "never inside a call");
        b.a().deliver_upcalls();
        assert_eq!(CALLED.load(Ordering::Relaxed), before + 5, "one call for both");
        assert_eq!(b.a().cno_query(cno).unwrap().agent, None);
        b.a().cno_modify_agent(cno, Some(given)).unwrap();
        let before = RELEASED.load(Ordering::Relaxed);
        b.a().ia_close(ia, CloseFlags::Abrupt).unwrap();
        assert_eq!(RELEASED.load(Ordering::Relaxed), before);
        b.a().deliver_upcalls();
        assert_eq!(RELEASED.load(Ordering::Relaxed), before + 1, "the end is reported, with no EVD");
        assert_eq!(b.a().next_upcall(), None);
    }),
    refused_as("cno_free", InvalidHandle, Subtype::InvalidHandleCno, "no CNO", |b| {
        no_cnos(b).into_iter().map(|cno| call!(cno_free(cno))).collect()
    }),
    refused_as(
        "cno_free",
        InvalidState,
        Subtype::InvalidStateCnoInUse,
        "an EVD refers to it, or somebody waits on it",
        |b| {
            let (ia, now, (fed, _)) = (b.here.ia, b.net.world.now(), fed(b));
            let waited = b.a().cno_create(ia, None).unwrap();
            let waiter = b.a().cno_wait_begin(waited, Instant::from_nanos(now), TIMEOUT_INFINITE).unwrap();
            b.cno_waiters.push(waiter);
            vec![call!(cno_free(fed)), call!(cno_free(waited))]
        },
    ),
    succeeds("cno_free", "once no EVD feeds it", |b| {
        let (cno, evd) = fed(b);
        b.a().evd_free(evd).unwrap();
        ok!(b, cno_free(cno));
        assert!(b.a().cno_query(cno).unwrap_err().is(InvalidHandle));
    }),
    refused_as("cno_modify_agent", InvalidHandle, Subtype::InvalidHandleCno, "no CNO", |b| {
        let agent = Some(ProxyAgent { function: agent, instance_data: 0 });
        no_cnos(b)
            .into_iter()
            .flat_map(|cno| [call!(cno_modify_agent(cno, None)), call!(cno_modify_agent(cno, agent))])
            .collect()
    }),
    impossible("cno_modify_agent", InvalidParameter, "the agent is bad", "a function pointer is never null"),
    succeeds("cno_modify_agent", "the new one is the CNO's", |b| {
        let (cno, _) = fed(b);
        for agent in [Some(ProxyAgent { function: other_agent, instance_data: 9 }), None] {
            ok!(b, cno_modify_agent(cno, agent));
            assert_eq!(b.a().cno_query(cno).unwrap().agent, agent);
        }
    }),
    refused_as("cno_query", InvalidHandle, Subtype::InvalidHandleCno, "no CNO", |b| {
        no_cnos(b).into_iter().map(|cno| call!(cno_query(cno))).collect()
    }),
    refused_as(
        "cno_query",
        InvalidParameter,
        Subtype::InvalidArg2,
        "the mask (a C caller's) has undefined bits",
        |b| {
            let ia = b.here.ia;
            let cno = b.a().cno_create(ia, None).unwrap();
            [0x4, u32::MAX].map(|bits| call!(cno_query_masked(cno, bits))).into()
        },
    ),
    impossible("cno_query", InvalidParameter, "the parameter pointer is null", BY_VALUE),
    succeeds("cno_query", "IA and agent", |b| {
        let ((cno, _), ia) = (fed(b), b.here.ia);
        assert_eq!(ok!(b, cno_query(cno)), CnoParameters { ia, agent: None });
    }),
    refused_as("cno_wait", InvalidHandle, Subtype::InvalidHandleCno, "no CNO", |b| {
        let now = b.net.world.now();
        let mut calls: Vec<_> = no_cnos(b)
            .into_iter()
            .map(|cno| call!(cno_wait_begin(cno, Instant::from_nanos(now), 0)))
            .collect();
        let ia = b.there.ia;
        let there = b.net.nodes[1].cno_create(ia, None).unwrap();
        let mut foreign = b.net.nodes[1].cno_wait_begin(there, Instant::from_nanos(now), 0).unwrap();
        calls.push(Call::new("cno_wait_poll", move |a| {
            a.cno_wait_poll(&mut foreign, Instant::from_nanos(now)).map(|_| ())
        }));
        let (ia, _) = b.a().ia_open("ib0", 8, None).unwrap();
        let gone = b.a().cno_create(ia, None).unwrap();
        let waiter = b.a().cno_wait_begin(gone, Instant::from_nanos(now), 0).unwrap();
        b.a().ia_close(ia, CloseFlags::Abrupt).unwrap();
        calls.push(call!(cno_wait_end(waiter)));
        calls
    }),
    refused_as("cno_wait", InvalidState, Subtype::InvalidStateCnoDead, "the wait has ended", |b| {
        let ((cno, _), now) = (fed(b), b.net.world.now());
        let [mut polled, mut ended] =
            [0, 0].map(|timeout| b.a().cno_wait_begin(cno, Instant::from_nanos(now), timeout).unwrap());
        for waiter in [&mut polled, &mut ended] {
            assert!(b.a().cno_wait_poll(waiter, Instant::from_nanos(now)).unwrap_err().is(QueueEmpty));
        }
        vec![
            Call::new("cno_wait_poll", move |a| {
                a.cno_wait_poll(&mut polled, Instant::from_nanos(now)).map(|_| ())
            }),
            call!(cno_wait_end(ended)),
        ]
    }),
    impossible("cno_wait", InvalidParameter, "the time-out is bad", "all 2^32 values mean something"),
    impossible(
        "cno_wait",
        InterruptedCall,
        "a signal interrupts the wait",
        "there are no signals; cno_wait_end gives a wait up",
    ),
    succeeds(
        "cno_wait",
        "the EVD that fired; QUEUE_EMPTY at the time-out; no EVD for all waiters when it or its EVDs go away",
        |b| {
            let ((cno, evd), now) = (fed(b), b.net.world.now());
            b.a().evd_post_se(evd, 1).unwrap();
            let mut waiter = ok!(b, cno_wait_begin(cno, Instant::from_nanos(now), 0));
            assert_eq!(
                ok!(b, cno_wait_poll(&mut waiter, Instant::from_nanos(now))),
                CnoWait::Triggered(Some(evd)),
                "a trigger stays"
            );
            let mut waiter = ok!(b, cno_wait_begin(cno, Instant::from_nanos(now), 0));
            let timed_out = b.a().cno_wait_poll(&mut waiter, Instant::from_nanos(now)).unwrap_err();
            assert!(timed_out.is(QueueEmpty), "and is taken by one wait");
            // Each trigger ends one of several waits.
            let mut waiters: Vec<_> = (0..3)
                .map(|_| ok!(b, cno_wait_begin(cno, Instant::from_nanos(now), TIMEOUT_INFINITE)))
                .collect();
            for waiter in &mut waiters {
                assert!(matches!(
                    ok!(b, cno_wait_poll(waiter, Instant::from_nanos(now))),
                    CnoWait::Pending(_)
                ));
            }
            b.a().evd_post_se(evd, 2).unwrap();
            assert_eq!(
                ok!(b, cno_wait_poll(&mut waiters[1], Instant::from_nanos(now))),
                CnoWait::Triggered(Some(evd))
            );
            for index in [0, 2] {
                assert!(matches!(
                    ok!(b, cno_wait_poll(&mut waiters[index], Instant::from_nanos(now))),
                    CnoWait::Pending(_)
                ));
            }
            // With the last EVD all go; later waits wait.
            b.a().evd_free(evd).unwrap();
            for index in [0, 2] {
                assert_eq!(
                    ok!(b, cno_wait_poll(&mut waiters[index], Instant::from_nanos(now))),
                    CnoWait::Triggered(None)
                );
            }
            let mut waiter = ok!(b, cno_wait_begin(cno, Instant::from_nanos(now), TIMEOUT_INFINITE));
            assert!(matches!(
                ok!(b, cno_wait_poll(&mut waiter, Instant::from_nanos(now))),
                CnoWait::Pending(_)
            ));
            drop(waiter);
            b.a().cno_free(cno).unwrap();
            let (ia, _) = b.a().ia_open("ib0", 8, None).unwrap();
            let cno = b.a().cno_create(ia, None).unwrap();
            let waiters =
                [(); 2].map(|()| ok!(b, cno_wait_begin(cno, Instant::from_nanos(now), TIMEOUT_INFINITE)));
            b.a().ia_close(ia, CloseFlags::Abrupt).unwrap();
            for mut waiter in waiters {
                assert_eq!(
                    ok!(b, cno_wait_poll(&mut waiter, Instant::from_nanos(now))),
                    CnoWait::Triggered(None)
                );
            }
        },
    ),
];

tests! { cno_create cno_free cno_modify_agent cno_query cno_wait }

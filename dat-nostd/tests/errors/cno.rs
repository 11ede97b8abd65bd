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

fn agent(instance_data: u64, evd: Option<EvdHandle>) {
    CALLED.fetch_add(instance_data, Ordering::Relaxed);
    RELEASED.fetch_add(u64::from(evd.is_none()), Ordering::Relaxed);
}

fn other_agent(_: u64, _: Option<EvdHandle>) {}

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
        assert_eq!(CALLED.load(Ordering::Relaxed), before + 5);
        assert_eq!(b.a().cno_query(cno).unwrap().agent, None);
        b.a().cno_modify_agent(cno, Some(given)).unwrap();
        let before = RELEASED.load(Ordering::Relaxed);
        b.a().ia_close(ia, CloseFlags::Abrupt).unwrap();
        assert_eq!(RELEASED.load(Ordering::Relaxed), before + 1, "told of the end, with no EVD");
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
            b.a().cno_wait_begin(waited, Instant::from_nanos(now), TIMEOUT_INFINITE).unwrap();
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
        |_| [0x4].map(|bits| Call::new("cno_query", move |_| CnoFields::check(bits).map(|_| ()))).into(),
    ),
    impossible("cno_query", InvalidParameter, "the parameter pointer is null", BY_VALUE),
    succeeds("cno_query", "IA and agent", |b| {
        let ((cno, _), ia) = (fed(b), b.here.ia);
        assert_eq!(ok!(b, cno_query(cno)), CnoParameters { ia, agent: None });
    }),
    refused_as("cno_wait", InvalidHandle, Subtype::InvalidHandleCno, "no CNO", |b| {
        let now = b.net.world.now();
        no_cnos(b)
            .into_iter()
            .flat_map(|cno| {
                [call!(cno_wait_begin(cno, Instant::from_nanos(now), 0)), call!(cno_wait_end(cno))]
            })
            .collect()
    }),
    refused("cno_wait", InvalidState, "somebody else waits (one adapter has one thread)", |b| {
        let ((cno, _), now) = (fed(b), b.net.world.now());
        b.a().cno_wait_begin(cno, Instant::from_nanos(now), TIMEOUT_INFINITE).unwrap();
        vec![call!(cno_wait_begin(cno, Instant::from_nanos(now), 0))]
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
        "the EVD that fired; QUEUE_EMPTY at the time-out; CNO_DEAD when it goes away",
        |b| {
            let ((cno, evd), now) = (fed(b), b.net.world.now());
            b.a().evd_post_se(evd, 1).unwrap();
            ok!(b, cno_wait_begin(cno, Instant::from_nanos(now), 0));
            assert_eq!(
                ok!(b, cno_wait_poll(cno, Instant::from_nanos(now))),
                CnoWait::Triggered(Some(evd)),
                "a trigger stays"
            );
            ok!(b, cno_wait_begin(cno, Instant::from_nanos(now), 0));
            assert!(
                b.a().cno_wait_poll(cno, Instant::from_nanos(now)).unwrap_err().is(QueueEmpty),
                "and is taken by one wait"
            );
            ok!(b, cno_wait_begin(cno, Instant::from_nanos(now), TIMEOUT_INFINITE));
            assert!(matches!(ok!(b, cno_wait_poll(cno, Instant::from_nanos(now))), CnoWait::Pending(_)));
            b.a().evd_post_se(evd, 2).unwrap();
            assert_eq!(ok!(b, cno_wait_poll(cno, Instant::from_nanos(now))), CnoWait::Triggered(Some(evd)));
            let (ia, _) = b.a().ia_open("ib0", 8, None).unwrap();
            let cno = b.a().cno_create(ia, None).unwrap();
            ok!(b, cno_wait_begin(cno, Instant::from_nanos(now), TIMEOUT_INFINITE));
            b.a().ia_close(ia, CloseFlags::Abrupt).unwrap();
            let gone = b.a().cno_wait_poll(cno, Instant::from_nanos(now)).unwrap_err();
            assert_eq!(gone, DatReturn::error(InvalidState, Subtype::InvalidStateCnoDead));
        },
    ),
];

tests! { cno_create cno_free cno_modify_agent cno_query cno_wait }

//! Event dispatchers (uDAPL 1.2, `dat_evd_*`).

use crate::bench::{Bench, NONE};
use crate::registry::{BY_VALUE, Call, Row, impossible, refused, refused_as, succeeds};
use crate::{call, ok, tests};
use dat_nostd::ReturnType::*;
use dat_nostd::*;

fn no_evds(b: &Bench) -> Vec<EvdHandle> {
    b.no_handles(HandleType::Evd).into_iter().map(EvdHandle::from_bits).collect()
}

/// An EVD for software events, of node 0.
fn software(b: &mut Bench) -> EvdHandle {
    let h = b.here;
    b.a().evd_create(h.ia, 8, None, EvdFlags::SOFTWARE).unwrap()
}

/// EVDs that cannot be freed: fed by each kind of stream.
fn fed(b: &mut Bench) -> Vec<EvdHandle> {
    let h = b.here;
    let psp = b.a().evd_create(h.ia, 8, None, EvdFlags::CR).unwrap();
    let qualifier = b.qualifier();
    b.a().psp_create(h.ia, qualifier, psp, PspFlags::Consumer).unwrap();
    vec![h.recv, h.request, h.connect, psp]
}

pub const ROWS: &[Row] = &[
    refused_as("evd_create", InvalidHandle, Subtype::InvalidHandleIa, "no IA", |b| {
        let ias = b.no_handles(HandleType::Ia).into_iter().map(IaHandle::from_bits);
        ias.map(|ia| call!(evd_create(ia, 8, None, EvdFlags::DTO))).collect()
    }),
    refused_as("evd_create", InvalidHandle, Subtype::InvalidHandleCno, "no CNO", |b| {
        let ia = b.here.ia;
        let cnos = b.no_handles(HandleType::Cno).into_iter().map(CnoHandle::from_bits);
        cnos.map(|cno| call!(evd_create(ia, 8, Some(cno), EvdFlags::DTO))).collect()
    }),
    refused_as(
        "evd_create",
        InvalidParameter,
        Subtype::InvalidArg2,
        "the length is 0 or above 2^31 - 1",
        |b| {
            let ia = b.here.ia;
            [0, 1 << 31, u32::MAX].map(|len| call!(evd_create(ia, len, None, EvdFlags::DTO))).into()
        },
    ),
    refused_as(
        "evd_create",
        InvalidParameter,
        Subtype::InvalidArg4,
        "no stream, or streams that do not merge",
        |b| {
            let ia = b.here.ia;
            let others =
                [EvdFlags::SOFTWARE, EvdFlags::CR, EvdFlags::DTO, EvdFlags::CONNECTION, EvdFlags::RMR_BIND];
            let mut calls: Vec<Call> = others
                .into_iter()
                .map(|flag| call!(evd_create(ia, 8, None, EvdFlags::ASYNC | flag)))
                .collect();
            calls.push(call!(evd_create(ia, 8, None, EvdFlags::empty())));
            calls.push(call!(evd_create(ia, 8, None, EvdFlags::all())));
            calls.push(call!(evd_create(ia, 8, None, EvdFlags::from_bits_retain(0x2))));
            calls.push(call!(evd_create(ia, 8, None, EvdFlags::from_bits_retain(0x8000_0020))));
            calls
        },
    ),
    impossible("evd_create", InvalidParameter, "the pointer for the EVD is null", BY_VALUE),
    refused_as(
        "evd_create",
        InsufficientResources,
        Subtype::ResourceTevd,
        "the length is above max_evd_qlen",
        |b| {
            let ia = b.here.ia;
            let most = b.a().ia_query(ia).unwrap().1.max_evd_qlen;
            [most + 1, i32::MAX as u32]
                .into_iter()
                .flat_map(|len| {
                    [
                        call!(evd_create(ia, len, None, EvdFlags::DTO)),
                        call!(evd_create(ia, len, None, EvdFlags::SOFTWARE)),
                    ]
                })
                .collect()
        },
    ),
    refused_as("evd_create", InsufficientResources, Subtype::ResourceTevd, "no EVD is left", |b| {
        let ia = b.here.ia;
        let a = b.a();
        while a.evd_create(ia, 8, None, EvdFlags::SOFTWARE).is_ok() {}
        vec![
            call!(evd_create(ia, 8, None, EvdFlags::SOFTWARE)),
            call!(evd_create(ia, 8, None, EvdFlags::DTO)),
            call!(evd_create(ia, 8, None, EvdFlags::ASYNC)),
        ]
    }),
    succeeds("evd_create", "enabled, waitable, at least as long as asked", |b| {
        let b = &mut *b;
        *b = Bench::new();
        let ia = b.here.ia;
        for flags in [EvdFlags::SOFTWARE, EvdFlags::DTO, EvdFlags::all() - EvdFlags::ASYNC, EvdFlags::ASYNC] {
            let evd = ok!(b, evd_create(ia, 33, None, flags));
            let made = b.a().evd_query(evd).unwrap();
            assert!(made.evd_qlen >= 33 && made.evd_flags == flags && made.ia == ia);
            let wanted = EvdState::ENABLED | EvdState::WAITABLE | EvdState::CONFIG_THRESHOLD;
            assert_eq!(made.evd_state, wanted);
        }
    }),
    refused("evd_query", InvalidHandle, "no EVD", |b| {
        no_evds(b).into_iter().map(|evd| call!(evd_query(evd))).collect()
    }),
    refused_as(
        "evd_query",
        InvalidParameter,
        Subtype::InvalidArg2,
        "the mask (a C caller's) has undefined bits",
        |b| {
            let evd = b.here.recv;
            [0x20, 0x8000_0000].map(|bits| call!(evd_query_masked(evd, bits))).into()
        },
    ),
    impossible("evd_query", InvalidParameter, "the parameter pointer is null", BY_VALUE),
    succeeds("evd_query", "IA, length, state, streams", |b| {
        let h = b.here;
        let found = ok!(b, evd_query(h.cr));
        assert_eq!((found.ia, found.evd_flags), (h.ia, EvdFlags::CR));
    }),
    refused("evd_modify_cno", InvalidHandle, "no EVD", |b| {
        let ia = b.here.ia;
        let cno = b.a().cno_create(ia, None).unwrap();
        no_evds(b)
            .into_iter()
            .flat_map(|evd| [call!(evd_modify_cno(evd, Some(cno))), call!(evd_modify_cno(evd, None))])
            .collect()
    }),
    refused_as("evd_modify_cno", InvalidHandle, Subtype::InvalidHandleCno, "no CNO", |b| {
        let evd = software(b);
        let cnos = b.no_handles(HandleType::Cno).into_iter().map(CnoHandle::from_bits);
        cnos.map(|cno| call!(evd_modify_cno(evd, Some(cno)))).collect()
    }),
    succeeds("evd_modify_cno", "to another CNO, to none", |b| {
        let (evd, ia) = (software(b), b.here.ia);
        let (one, two) = (b.a().cno_create(ia, None).unwrap(), b.a().cno_create(ia, None).unwrap());
        for cno in [Some(one), Some(two), None, Some(one), None] {
            ok!(b, evd_modify_cno(evd, cno));
            assert_eq!(b.a().evd_query(evd).unwrap().cno, cno);
        }
        b.a().cno_free(one).unwrap();
        b.a().cno_free(two).unwrap();
    }),
    refused("evd_enable", InvalidHandle, "no EVD", |b| {
        no_evds(b).into_iter().map(|evd| call!(evd_enable(evd))).collect()
    }),
    succeeds("evd_enable", "twice is as once", |b| {
        let evd = software(b);
        b.a().evd_disable(evd).unwrap();
        for _ in 0..2 {
            ok!(b, evd_enable(evd));
            assert!(b.a().evd_query(evd).unwrap().evd_state.contains(EvdState::ENABLED));
        }
    }),
    refused("evd_disable", InvalidHandle, "no EVD", |b| {
        no_evds(b).into_iter().map(|evd| call!(evd_disable(evd))).collect()
    }),
    succeeds("evd_disable", "twice is as once, and waiting goes on being possible", |b| {
        let evd = software(b);
        for _ in 0..2 {
            ok!(b, evd_disable(evd));
            let state = b.a().evd_query(evd).unwrap().evd_state;
            assert!(
                state.contains(EvdState::DISABLED | EvdState::WAITABLE) && !state.contains(EvdState::ENABLED)
            );
        }
    }),
    refused("evd_set_unwaitable", InvalidHandle, "no EVD", |b| {
        no_evds(b).into_iter().map(|evd| call!(evd_set_unwaitable(evd))).collect()
    }),
    succeeds("evd_set_unwaitable", "twice is as once; an open wait ends with INVALID_STATE", |b| {
        let (evd, now) = (software(b), b.net.world.now());
        let mut waiter = b.a().evd_wait_begin(evd, Instant::from_nanos(now), TIMEOUT_INFINITE, 1).unwrap();
        for _ in 0..2 {
            ok!(b, evd_set_unwaitable(evd));
            let state = b.a().evd_query(evd).unwrap().evd_state;
            assert!(
                state.contains(EvdState::UNWAITABLE | EvdState::ENABLED)
                    && !state.contains(EvdState::WAITABLE)
            );
        }
        assert!(b.a().evd_wait_poll(&mut waiter, Instant::from_nanos(now)).unwrap_err().is(InvalidState));
        b.a().evd_post_se(evd, 5).unwrap();
        assert_eq!(b.a().evd_dequeue(evd).unwrap().data, EventData::Software { value: 5 });
    }),
    refused("evd_clear_unwaitable", InvalidHandle, "no EVD", |b| {
        no_evds(b).into_iter().map(|evd| call!(evd_clear_unwaitable(evd))).collect()
    }),
    succeeds("evd_clear_unwaitable", "twice is as once, and waits are possible again", |b| {
        let (evd, now) = (software(b), b.net.world.now());
        b.a().evd_set_unwaitable(evd).unwrap();
        for _ in 0..2 {
            ok!(b, evd_clear_unwaitable(evd));
        }
        let mut waiter = b.a().evd_wait_begin(evd, Instant::from_nanos(now), 0, 1).unwrap();
        assert_eq!(b.a().evd_wait_poll(&mut waiter, Instant::from_nanos(now)), Ok(Wait::TimedOut(0)));
    }),
    refused("evd_wait", InvalidHandle, "no EVD", |b| {
        let now = b.net.world.now();
        let mut calls: Vec<_> = no_evds(b)
            .into_iter()
            .map(|evd| call!(evd_wait_begin(evd, Instant::from_nanos(now), 0, 1)))
            .collect();
        let (there, gone) = (b.there.recv, software(b));
        let mut foreign = b.net.nodes[1].evd_wait_begin(there, Instant::from_nanos(now), 0, 1).unwrap();
        calls.push(Call::new("evd_wait_poll", move |a| {
            a.evd_wait_poll(&mut foreign, Instant::from_nanos(now)).map(|_| ())
        }));
        let waiter = b.a().evd_wait_begin(gone, Instant::from_nanos(now), 0, 1).unwrap();
        b.a().evd_free(gone).unwrap();
        calls.push(call!(evd_wait_end(waiter)));
        calls
    }),
    refused_as(
        "evd_wait",
        InvalidParameter,
        Subtype::InvalidArg3,
        "the threshold is 0 or above the queue's length",
        |b| {
            let (h, now) = (b.here, b.net.world.now());
            let mut calls = Vec::new();
            for evd in [h.recv, h.cr, software(b)] {
                let most = b.a().evd_query(evd).unwrap().evd_qlen;
                for threshold in [0, most + 1, u32::MAX] {
                    calls.push(call!(evd_wait_begin(evd, Instant::from_nanos(now), 0, threshold)));
                }
            }
            calls
        },
    ),
    impossible("evd_wait", InvalidParameter, "the pointer for the event or for nmore is null", BY_VALUE),
    impossible("evd_wait", InvalidParameter, "the time-out is bad", "all 2^32 values mean something"),
    refused_as("evd_wait", InvalidState, Subtype::InvalidStateEvdWaiter, "another waiter is there", |b| {
        let now = b.net.world.now();
        let mut calls = Vec::new();
        for (evd, threshold) in [(software(b), 1), (b.here.connect, 3)] {
            let waiter =
                b.a().evd_wait_begin(evd, Instant::from_nanos(now), TIMEOUT_INFINITE, threshold).unwrap();
            b.evd_waiters.push(waiter);
            calls.push(call!(evd_wait_begin(evd, Instant::from_nanos(now), 0, 1)));
        }
        calls
    }),
    refused_as("evd_wait", InvalidState, Subtype::InvalidStateEvdUnwaitable, "the EVD is unwaitable", |b| {
        let (evd, now) = (software(b), b.net.world.now());
        b.a().evd_set_unwaitable(evd).unwrap();
        vec![
            call!(evd_wait_begin(evd, Instant::from_nanos(now), 0, 1)),
            call!(evd_wait_begin(evd, Instant::from_nanos(now), TIMEOUT_INFINITE, 2)),
        ]
    }),
    refused(
        "evd_wait",
        InvalidState,
        "the threshold is not 1 and the streams use UNSIGNALLED or SOLICITED_WAIT",
        |b| {
            let (h, now) = (b.here, b.net.world.now());
            let mut calls = Vec::new();
            for flags in [CompletionFlags::UNSIGNALLED, CompletionFlags::SOLICITED_WAIT] {
                let evd = b.a().evd_create(h.ia, 64, None, EvdFlags::DTO).unwrap();
                let attributes = EpAttributes { recv_completion_flags: flags, ..EpAttributes::DEFAULT };
                b.a()
                    .ep_create(
                        h.ia,
                        Some(h.pz),
                        Some(evd),
                        Some(h.request),
                        Some(h.connect),
                        Some(&attributes),
                    )
                    .unwrap();
                calls.push(call!(evd_wait_begin(evd, Instant::from_nanos(now), 0, 2)));
                calls.push(call!(evd_wait_begin(evd, Instant::from_nanos(now), TIMEOUT_INFINITE, 64)));
            }
            calls
        },
    ),
    impossible(
        "evd_wait",
        InterruptedCall,
        "a signal interrupts the wait",
        "there are no signals; evd_wait_end gives a wait up",
    ),
    succeeds(
        "evd_wait",
        "ready, TIMEOUT_EXPIRED (nothing is taken), ABORT, INVALID_STATE while waiting",
        |b| {
            let (evd, now) = (software(b), b.net.world.now());
            b.a().evd_post_se(evd, 1).unwrap();
            b.a().evd_post_se(evd, 2).unwrap();
            let mut waiter = ok!(b, evd_wait_begin(evd, Instant::from_nanos(now), 0, 3));
            assert_eq!(
                ok!(b, evd_wait_poll(&mut waiter, Instant::from_nanos(now))),
                Wait::TimedOut(2),
                "TIMEOUT_EXPIRED, nmore is the length"
            );
            let mut waiter = ok!(b, evd_wait_begin(evd, Instant::from_nanos(now), 1000, 3));
            assert!(matches!(ok!(b, evd_wait_poll(&mut waiter, Instant::from_nanos(now))), Wait::Pending(_)));
            b.a().evd_post_se(evd, 3).unwrap();
            match ok!(b, evd_wait_poll(&mut waiter, Instant::from_nanos(now))) {
                Wait::Ready(event, 2) => assert_eq!(event.data, EventData::Software { value: 1 }),
                other => panic!("{other:?}"),
            }
            let mut waiter = ok!(b, evd_wait_begin(evd, Instant::from_nanos(now), TIMEOUT_INFINITE, 3));
            b.a().evd_free(evd).unwrap();
            assert!(b.a().evd_wait_poll(&mut waiter, Instant::from_nanos(now)).unwrap_err().is(Abort));
            let (ia, evd) = b.a().ia_open("ib0", 8, None).unwrap();
            let mut waiter = ok!(b, evd_wait_begin(evd, Instant::from_nanos(now), TIMEOUT_INFINITE, 1));
            b.a().ia_close(ia, CloseFlags::Abrupt).unwrap();
            assert!(b.a().evd_wait_poll(&mut waiter, Instant::from_nanos(now)).unwrap_err().is(Abort));
        },
    ),
    refused("evd_dequeue", InvalidHandle, "no EVD", |b| {
        no_evds(b).into_iter().map(|evd| call!(evd_dequeue(evd))).collect()
    }),
    refused("evd_dequeue", QueueEmpty, "there is no event", |b| {
        let (h, software) = (b.here, software(b));
        let evds = [h.recv, h.request, h.connect, h.cr, h.asynchronous, software];
        evds.map(|evd| call!(evd_dequeue(evd))).into()
    }),
    refused_as("evd_dequeue", InvalidState, Subtype::InvalidStateEvdWaiter, "a waiter is there", |b| {
        let now = b.net.world.now();
        let mut calls = Vec::new();
        for evd in [software(b), b.here.recv] {
            let waiter = b.a().evd_wait_begin(evd, Instant::from_nanos(now), TIMEOUT_INFINITE, 2).unwrap();
            b.evd_waiters.push(waiter);
            calls.push(call!(evd_dequeue(evd)));
        }
        calls
    }),
    impossible("evd_dequeue", InvalidParameter, "the pointer for the event is null", BY_VALUE),
    succeeds("evd_dequeue", "the oldest event, with the EVD it comes from", |b| {
        let b = &mut *b;
        *b = Bench::new();
        let evd = software(b);
        for value in 1..=8 {
            b.a().evd_post_se(evd, value).unwrap();
        }
        for value in 1..=8 {
            assert_eq!(ok!(b, evd_dequeue(evd)), Event { evd, data: EventData::Software { value } });
        }
    }),
    refused("evd_post_se", InvalidHandle, "no EVD", |b| {
        no_evds(b).into_iter().map(|evd| call!(evd_post_se(evd, 1))).collect()
    }),
    impossible(
        "evd_post_se",
        InvalidParameter,
        "the event is null or its number is not DAT_SOFTWARE_EVENT",
        "only the value of a software event is given",
    ),
    refused_as(
        "evd_post_se",
        InvalidParameter,
        Subtype::InvalidArg1,
        "the EVD takes no software events",
        |b| {
            let h = b.here;
            [h.recv, h.request, h.connect, h.cr, h.asynchronous].map(|evd| call!(evd_post_se(evd, 1))).into()
        },
    ),
    refused("evd_post_se", QueueFull, "the queue is full; no asynchronous error is raised", |b| {
        let evd = software(b);
        while b.a().evd_post_se(evd, 7).is_ok() {}
        vec![call!(evd_post_se(evd, 8)), call!(evd_post_se(evd, 9))]
    }),
    succeeds("evd_post_se", "as many as evd_qlen says", |b| {
        let evd = software(b);
        for value in 0..b.a().evd_query(evd).unwrap().evd_qlen {
            ok!(b, evd_post_se(evd, u64::from(value) << 32 | 0xffff_ffff));
        }
        assert!(b.a().evd_post_se(evd, 0).unwrap_err().is(QueueFull));
        assert_eq!(b.a().evd_dequeue(evd).unwrap().data, EventData::Software { value: 0xffff_ffff });
        let asynchronous = b.here.asynchronous;
        assert_eq!(b.a().evd_dequeue(asynchronous), Err(DatReturn::QUEUE_EMPTY));
    }),
    refused("evd_resize", InvalidHandle, "no EVD", |b| {
        no_evds(b).into_iter().map(|evd| call!(evd_resize(evd, 16))).collect()
    }),
    refused("evd_resize", InvalidParameter, "the length is 0 or above 2^31 - 1", |b| {
        let evds = [software(b), b.here.recv];
        evds.into_iter()
            .flat_map(|evd| [0, 1 << 31, u32::MAX].map(|len| call!(evd_resize(evd, len))))
            .collect()
    }),
    refused("evd_resize", InsufficientResources, "the length is above max_evd_qlen or the event pool", |b| {
        let (evd, ia) = (software(b), b.here.ia);
        let most = b.a().ia_query(ia).unwrap().1.max_evd_qlen;
        [most + 1, 1 << 16, i32::MAX as u32].map(|len| call!(evd_resize(evd, len))).into()
    }),
    refused("evd_resize", InvalidState, "more events than that are queued", |b| {
        let evd = software(b);
        b.a().evd_resize(evd, 40).unwrap();
        for value in 0..30 {
            b.a().evd_post_se(evd, value).unwrap();
        }
        [1, 10, 29].map(|len| call!(evd_resize(evd, len))).into()
    }),
    succeeds("evd_resize", "larger and smaller; nothing queued is lost", |b| {
        let evd = software(b);
        for value in 0..8 {
            b.a().evd_post_se(evd, value).unwrap();
        }
        ok!(b, evd_resize(evd, 100));
        assert!(b.a().evd_query(evd).unwrap().evd_qlen >= 100);
        for value in 8..100 {
            b.a().evd_post_se(evd, value).unwrap();
        }
        for value in 0..95 {
            assert_eq!(b.a().evd_dequeue(evd).unwrap().data, EventData::Software { value });
        }
        ok!(b, evd_resize(evd, 9));
        for value in 95..100 {
            assert_eq!(b.a().evd_dequeue(evd).unwrap().data, EventData::Software { value });
        }
        b.net.empty(0, evd);
    }),
    refused("evd_free", InvalidHandle, "no EVD", |b| {
        no_evds(b).into_iter().map(|evd| call!(evd_free(evd))).collect()
    }),
    refused_as("evd_free", InvalidState, Subtype::InvalidStateEvdInUse, "a stream still feeds it", |b| {
        fed(b).into_iter().map(|evd| call!(evd_free(evd))).collect()
    }),
    succeeds("evd_free", "queued events are lost, the handle is dead", |b| {
        let evd = software(b);
        b.a().evd_post_se(evd, 1).unwrap();
        ok!(b, evd_free(evd));
        assert!(b.a().evd_query(evd).unwrap_err().is(InvalidHandle));
        let h = b.here;
        b.a().ep_post_recv(h.ep, &[h.segment(0, 8)], 1, NONE).unwrap();
        b.a().ep_free(h.ep).unwrap();
        for evd in [h.recv, h.request, h.connect] {
            ok!(b, evd_free(evd));
        }
    }),
];

tests! {
    evd_create evd_query evd_modify_cno evd_enable evd_disable evd_set_unwaitable evd_clear_unwaitable evd_wait evd_dequeue evd_post_se
    evd_resize evd_free
}

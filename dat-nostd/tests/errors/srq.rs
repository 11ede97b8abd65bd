//! Shared receive queues (uDAPL 1.2, `dat_srq_*`).

use crate::bench::{Bench, NONE, SRQ};
use crate::registry::{BY_VALUE, Call, Row, impossible, refused, refused_as, succeeds};
use crate::{call, ok, tests};
use dat_nostd::ReturnType::*;
use dat_nostd::*;

fn no_srqs(b: &Bench) -> Vec<SrqHandle> {
    b.no_handles(HandleType::Srq).into_iter().map(SrqHandle::from_bits).collect()
}

fn evds(b: &Bench, wrong: &[EvdHandle]) -> Vec<EvdHandle> {
    let mut evds: Vec<EvdHandle> =
        b.no_handles(HandleType::Evd).into_iter().map(EvdHandle::from_bits).collect();
    evds.extend(wrong);
    evds
}

fn srq(b: &mut Bench) -> SrqHandle {
    let h = b.here;
    b.a().srq_create(h.ia, h.pz, &SRQ).unwrap()
}

/// `srq_create` with these attributes.
fn with(b: &Bench, max_recv_dtos: u32, max_recv_iov: u32, low_watermark: u32) -> Call {
    let h = b.here;
    let attributes = SrqAttributes { max_recv_dtos, max_recv_iov, low_watermark };
    call!(srq_create(h.ia, h.pz, &attributes))
}

const DEFAULT: EpAttributes = EpAttributes::DEFAULT;

pub const ROWS: &[Row] = &[
    refused_as("ep_create_with_srq", InvalidHandle, Subtype::InvalidHandleIa, "no IA", |b| {
        let (h, srq) = (b.here, srq(b));
        let ias = b.no_handles(HandleType::Ia).into_iter().map(IaHandle::from_bits);
        let (recv, request, connect) = (Some(h.recv), Some(h.request), Some(h.connect));
        ias.map(|ia| call!(ep_create_with_srq(ia, h.pz, recv, request, connect, srq, &DEFAULT))).collect()
    }),
    refused_as("ep_create_with_srq", InvalidHandle, Subtype::InvalidHandlePz, "no protection zone", |b| {
        let (h, srq) = (b.here, srq(b));
        let pzs = b.no_handles(HandleType::Pz).into_iter().map(PzHandle::from_bits);
        let (recv, request, connect) = (Some(h.recv), Some(h.request), Some(h.connect));
        pzs.map(|pz| call!(ep_create_with_srq(h.ia, pz, recv, request, connect, srq, &DEFAULT))).collect()
    }),
    refused_as(
        "ep_create_with_srq",
        InvalidHandle,
        Subtype::InvalidHandleEvdRecv,
        "the receive EVD given is none, or takes no DTO completions",
        |b| {
            let (h, srq) = (b.here, srq(b));
            let (request, connect) = (Some(h.request), Some(h.connect));
            evds(b, &[h.connect, h.cr])
                .into_iter()
                .map(|evd| call!(ep_create_with_srq(h.ia, h.pz, Some(evd), request, connect, srq, &DEFAULT)))
                .collect()
        },
    ),
    refused_as(
        "ep_create_with_srq",
        InvalidHandle,
        Subtype::InvalidHandleEvdRequest,
        "the request EVD is none, or takes no DTO completions",
        |b| {
            let (h, srq) = (b.here, srq(b));
            let (recv, connect) = (Some(h.recv), Some(h.connect));
            evds(b, &[h.connect, h.cr])
                .into_iter()
                .map(|evd| call!(ep_create_with_srq(h.ia, h.pz, recv, Some(evd), connect, srq, &DEFAULT)))
                .collect()
        },
    ),
    refused_as(
        "ep_create_with_srq",
        InvalidHandle,
        Subtype::InvalidHandleEvdConn,
        "the connect EVD is none, or takes no connection events",
        |b| {
            let (h, srq) = (b.here, srq(b));
            let (recv, request) = (Some(h.recv), Some(h.request));
            evds(b, &[h.recv, h.cr])
                .into_iter()
                .map(|evd| call!(ep_create_with_srq(h.ia, h.pz, recv, request, Some(evd), srq, &DEFAULT)))
                .collect()
        },
    ),
    refused_as("ep_create_with_srq", InvalidHandle, Subtype::InvalidHandleSrq, "no SRQ", |b| {
        let h = b.here;
        let (recv, request, connect) = (Some(h.recv), Some(h.request), Some(h.connect));
        no_srqs(b)
            .into_iter()
            .map(|srq| call!(ep_create_with_srq(h.ia, h.pz, recv, request, connect, srq, &DEFAULT)))
            .collect()
    }),
    refused_as(
        "ep_create_with_srq",
        InvalidParameter,
        Subtype::InvalidArg2,
        "the EP's protection zone is not the SRQ's",
        |b| {
            let (h, srq) = (b.here, srq(b));
            let other = b.a().pz_create(h.ia).unwrap();
            let (recv, request, connect) = (Some(h.recv), Some(h.request), Some(h.connect));
            vec![call!(ep_create_with_srq(h.ia, other, recv, request, connect, srq, &DEFAULT))]
        },
    ),
    refused("ep_create_with_srq", InvalidParameter, "attributes that ep_create refuses too", |b| {
        let (h, srq) = (b.here, srq(b));
        let (recv, request, connect) = (Some(h.recv), Some(h.request), Some(h.connect));
        [
            EpAttributes { qos: Qos::Premium, ..DEFAULT },
            EpAttributes { max_request_dtos: 0, ..DEFAULT },
            EpAttributes { max_request_dtos: u32::MAX, ..DEFAULT },
            EpAttributes { max_request_iov: 1000, ..DEFAULT },
            EpAttributes { max_rdma_read_in: 1000, ..DEFAULT },
            EpAttributes { recv_completion_flags: CompletionFlags::SUPPRESS, ..DEFAULT },
        ]
        .map(|attributes| call!(ep_create_with_srq(h.ia, h.pz, recv, request, connect, srq, &attributes)))
        .into()
    }),
    impossible(
        "ep_create_with_srq",
        InvalidParameter,
        "the attributes are null",
        "a reference is never null",
    ),
    impossible("ep_create_with_srq", InvalidParameter, "the pointer for the EP is null", BY_VALUE),
    impossible(
        "ep_create_with_srq",
        ModelNotSupported,
        "illumos: max_recv_dtos and srq_soft_hw are not DAT_HW_DEFAULT",
        "both are taken",
    ),
    refused("ep_create_with_srq", InsufficientResources, "no EP is left", |b| {
        let (h, srq) = (b.here, srq(b));
        let small = EpAttributes { max_recv_dtos: 1, max_request_dtos: 1, ..DEFAULT };
        let (recv, request, connect) = (Some(h.recv), Some(h.request), Some(h.connect));
        while b.a().ep_create(h.ia, Some(h.pz), recv, request, connect, Some(&small)).is_ok() {}
        vec![call!(ep_create_with_srq(h.ia, h.pz, recv, request, connect, srq, &small))]
    }),
    succeeds("ep_create_with_srq", "takes its receives from the SRQ, and none of its own", |b| {
        let b = &mut *b;
        *b = Bench::new();
        let (h, srq) = (b.here, srq(b));
        let (recv, request, connect) = (Some(h.recv), Some(h.request), Some(h.connect));
        let ep = ok!(b, ep_create_with_srq(h.ia, h.pz, recv, request, connect, srq, &DEFAULT));
        assert_eq!(b.a().ep_query(ep).unwrap().srq, Some(srq));
        let error = b.a().ep_post_recv(ep, &[], 1, NONE).unwrap_err();
        assert!(error.is(InvalidState), "{error}");
    }),
    succeeds("ep_create_with_srq", "max_recv_dtos as asked, 0 and DAT_HW_DEFAULT too; no receive EVD", |b| {
        let b = &mut *b;
        *b = Bench::new();
        let (h, srq) = (b.here, srq(b));
        let (request, connect) = (Some(h.request), Some(h.connect));
        for max_recv_dtos in [0, 1, 7, HW_DEFAULT] {
            for recv in [Some(h.recv), None] {
                let asked = EpAttributes { max_recv_dtos, max_recv_iov: 1000, ..DEFAULT };
                let ep = ok!(b, ep_create_with_srq(h.ia, h.pz, recv, request, connect, srq, &asked));
                let found = b.a().ep_query(ep).unwrap();
                assert_eq!((found.attributes.max_recv_dtos, found.recv_evd), (max_recv_dtos, recv));
                b.a().ep_free(ep).unwrap();
            }
        }
    }),
    refused_as("srq_create", InvalidHandle, Subtype::InvalidHandleIa, "no IA", |b| {
        let h = b.here;
        let ias = b.no_handles(HandleType::Ia).into_iter().map(IaHandle::from_bits);
        ias.map(|ia| call!(srq_create(ia, h.pz, &SRQ))).collect()
    }),
    refused_as("srq_create", InvalidHandle, Subtype::InvalidHandlePz, "no PZ", |b| {
        let h = b.here;
        let pzs = b.no_handles(HandleType::Pz).into_iter().map(PzHandle::from_bits);
        pzs.map(|pz| call!(srq_create(h.ia, pz, &SRQ))).collect()
    }),
    refused_as(
        "srq_create",
        InvalidParameter,
        Subtype::InvalidArg3,
        "a count is 0 or above the IA's limit",
        |b| {
            let limits = b.net.nodes[0].ia_query(b.here.ia).unwrap().1;
            vec![
                with(b, 0, 1, 0),
                with(b, 1, 0, 0),
                with(b, limits.max_recv_per_srq + 1, 1, 0),
                with(b, u32::MAX, 1, 0),
                with(b, 1, limits.max_iov_segments_per_dto + 1, 0),
                with(b, 1, u32::MAX, 0),
            ]
        },
    ),
    refused_as(
        "srq_create",
        InvalidParameter,
        Subtype::InvalidArg3,
        "the low watermark is not DAT_SRQ_LW_DEFAULT",
        |b| vec![with(b, 8, 2, 1), with(b, 8, 2, u32::MAX)],
    ),
    impossible("srq_create", InvalidParameter, "the pointer for the SRQ is null", BY_VALUE),
    impossible("srq_create", ModelNotSupported, "the provider has no SRQs", "it has"),
    refused("srq_create", InsufficientResources, "no SRQ is left", |b| {
        let h = b.here;
        while b.a().srq_create(h.ia, h.pz, &SRQ).is_ok() {}
        vec![call!(srq_create(h.ia, h.pz, &SRQ))]
    }),
    succeeds("srq_create", "operational, empty, at least as large as asked", |b| {
        let b = &mut *b;
        *b = Bench::new();
        let h = b.here;
        let srq = ok!(b, srq_create(h.ia, h.pz, &SRQ));
        let made = b.a().srq_query(srq).unwrap();
        assert_eq!((made.ia, made.pz, made.state), (h.ia, h.pz, states::SrqState::Operational));
        assert!(made.max_recv_dtos >= 8 && made.max_recv_iov >= 2 && made.low_watermark == 0);
        assert_eq!((made.available_dto_count, made.outstanding_dto_count), (0, 0));
    }),
    refused_as("srq_query", InvalidHandle, Subtype::InvalidHandleSrq, "no SRQ", |b| {
        no_srqs(b).into_iter().map(|srq| call!(srq_query(srq))).collect()
    }),
    refused_as(
        "srq_query",
        InvalidParameter,
        Subtype::InvalidArg2,
        "the mask (a C caller's) has undefined bits",
        |b| {
            let srq = srq(b);
            [0x100, u32::MAX].map(|bits| call!(srq_query_masked(srq, bits))).into()
        },
    ),
    impossible("srq_query", InvalidParameter, "the parameter pointer is null", BY_VALUE),
    succeeds(
        "srq_query",
        "the worked example: 3/3 posted, 2/3 one arrived, 2/2 its completion dequeued",
        |b| {
            let b = &mut *b;
            *b = Bench::new();
            let (h, t) = (b.here, b.there);
            let (srq, ep) = b.shared();
            for cookie in 0..3 {
                b.a().srq_post_recv(srq, &[h.segment(0, 64)], cookie).unwrap();
            }
            let counts = |found: SrqParameters| (found.available_dto_count, found.outstanding_dto_count);
            assert_eq!(counts(ok!(b, srq_query(srq))), (3, 3));
            let (cr, peer) = b.request();
            b.a().cr_accept(cr, Some(ep), b"").unwrap();
            assert_eq!(b.connection_event(0, ep), ConnectionEvent::Established);
            assert_eq!(b.connection_event(1, peer), ConnectionEvent::Established);
            b.net.nodes[1].ep_post_send(peer, &[t.segment(0, 9)], 0, NONE).unwrap();
            b.net.pass(1_000_000);
            assert_eq!(counts(ok!(b, srq_query(srq))), (2, 3));
            assert_eq!(b.net.dto(0, h.recv).transferred_length, 9);
            assert_eq!(counts(ok!(b, srq_query(srq))), (2, 2));
        },
    ),
    refused_as("srq_resize", InvalidHandle, Subtype::InvalidHandleSrq, "no SRQ", |b| {
        no_srqs(b).into_iter().map(|srq| call!(srq_resize(srq, 16))).collect()
    }),
    refused_as("srq_resize", InvalidParameter, Subtype::InvalidArg2, "0, or beyond the IA's limit", |b| {
        let srq = srq(b);
        let most = b.net.nodes[0].ia_query(b.here.ia).unwrap().1.max_recv_per_srq;
        [0, most + 1, u32::MAX].map(|count| call!(srq_resize(srq, count))).into()
    }),
    refused("srq_resize", InvalidState, "more buffers than that are outstanding", |b| {
        let (h, srq) = (b.here, srq(b));
        for cookie in 0..5 {
            b.a().srq_post_recv(srq, &[h.segment(0, 8)], cookie).unwrap();
        }
        vec![call!(srq_resize(srq, 4)), call!(srq_resize(srq, 1))]
    }),
    refused("srq_resize", InvalidState, "below the low watermark", |b| {
        let (h, srq) = (b.here, srq(b));
        for cookie in 0..6 {
            b.a().srq_post_recv(srq, &[h.segment(0, 8)], cookie).unwrap();
        }
        b.a().srq_set_lw(srq, 6).unwrap();
        vec![call!(srq_resize(srq, 5))]
    }),
    refused(
        "srq_resize",
        InsufficientResources,
        "the device cannot make it so large while it is in use",
        |b| {
            let (srq, _) = b.shared();
            vec![call!(srq_resize(srq, 20_000))]
        },
    ),
    succeeds("srq_resize", "larger, with buffers in it; as large as the IA allows while unused", |b| {
        let b = &mut *b;
        *b = Bench::new();
        let (h, srq) = (b.here, srq(b));
        for cookie in 0..8 {
            b.a().srq_post_recv(srq, &[h.segment(0, 8)], cookie).unwrap();
        }
        assert!(b.a().srq_post_recv(srq, &[], 8).unwrap_err().is(InsufficientResources));
        ok!(b, srq_resize(srq, 40));
        for cookie in 8..40 {
            b.a().srq_post_recv(srq, &[h.segment(0, 8)], cookie).unwrap();
        }
        assert!(b.a().srq_post_recv(srq, &[], 40).unwrap_err().is(InsufficientResources));
        assert_eq!(b.a().srq_query(srq).unwrap().outstanding_dto_count, 40);
        let unused = b.a().srq_create(h.ia, h.pz, &SRQ).unwrap();
        ok!(b, srq_resize(unused, 1000));
        assert!(b.a().srq_query(unused).unwrap().max_recv_dtos >= 1000);
    }),
    refused_as("srq_set_lw", InvalidHandle, Subtype::InvalidHandleSrq, "no SRQ", |b| {
        no_srqs(b).into_iter().map(|srq| call!(srq_set_lw(srq, 1))).collect()
    }),
    refused_as("srq_set_lw", InvalidParameter, Subtype::InvalidArg2, "above max_recv_dtos", |b| {
        let srq = srq(b);
        let most = b.a().srq_query(srq).unwrap().max_recv_dtos;
        [most + 1, u32::MAX].map(|low| call!(srq_set_lw(srq, low))).into()
    }),
    impossible("srq_set_lw", ModelNotSupported, "the provider has no low watermarks", "it has"),
    succeeds("srq_set_lw", "one event at once if fewer are left; not if as many are", |b| {
        let b = &mut *b;
        *b = Bench::new();
        let (h, srq) = (b.here, srq(b));
        for cookie in 0..3 {
            b.a().srq_post_recv(srq, &[h.segment(0, 8)], cookie).unwrap();
        }
        ok!(b, srq_set_lw(srq, 3));
        b.net.empty(0, h.asynchronous);
        ok!(b, srq_set_lw(srq, 4));
        match b.net.event(0, h.asynchronous) {
            EventData::Async { handle, reason, .. } => {
                assert_eq!((handle, reason), (Handle::from(srq), states::SRQ_LOW_WATERMARK_EVENT));
            }
            other => panic!("{other:?}"),
        }
        b.net.pass(1_000_000);
        b.net.empty(0, h.asynchronous);
    }),
    refused_as("srq_free", InvalidHandle, Subtype::InvalidHandleSrq, "no SRQ", |b| {
        no_srqs(b).into_iter().map(|srq| call!(srq_free(srq))).collect()
    }),
    refused_as("srq_free", InvalidState, Subtype::InvalidStateSrqInUse, "an EP uses it", |b| {
        let (srq, _) = b.shared();
        vec![call!(srq_free(srq))]
    }),
    succeeds("srq_free", "with buffers in it, once no EP uses it", |b| {
        let h = b.here;
        let (srq, ep) = b.shared();
        b.a().srq_post_recv(srq, &[h.segment(0, 8)], 1).unwrap();
        b.a().ep_free(ep).unwrap();
        ok!(b, srq_free(srq));
        assert!(b.a().srq_query(srq).unwrap_err().is(InvalidHandle));
    }),
    refused_as("srq_post_recv", InvalidHandle, Subtype::InvalidHandleSrq, "no SRQ", |b| {
        let h = b.here;
        no_srqs(b).into_iter().map(|srq| call!(srq_post_recv(srq, &[h.segment(0, 8)], 1))).collect()
    }),
    refused("srq_post_recv", InsufficientResources, "max_recv_dtos are outstanding", |b| {
        let (h, srq) = (b.here, srq(b));
        while b.a().srq_post_recv(srq, &[h.segment(0, 8)], 1).is_ok() {}
        vec![call!(srq_post_recv(srq, &[h.segment(0, 8)], 1)), call!(srq_post_recv(srq, &[], 1))]
    }),
    refused("srq_post_recv", InvalidParameter, "a segment reaches outside its LMR", |b| {
        let srq = srq(b);
        crate::transfer::outside(b)
            .into_iter()
            .map(|segment| call!(srq_post_recv(srq, &[segment], 1)))
            .collect()
    }),
    refused("srq_post_recv", InvalidParameter, "more segments than max_recv_iov", |b| {
        let (h, srq) = (b.here, srq(b));
        [3, 17, 300]
            .map(|count| vec![h.segment(0, 8); count])
            .map(|iov| call!(srq_post_recv(srq, &iov, 1)))
            .into()
    }),
    refused("srq_post_recv", ProtectionViolation, "LMR and SRQ are of different zones", |b| {
        let (segment, srq) = (crate::transfer::other_zone(b), srq(b));
        vec![call!(srq_post_recv(srq, &[segment], 1))]
    }),
    refused(
        "srq_post_recv",
        PrivilegesViolation,
        "the LMR lacks local write, or the context names none",
        |b| {
            let (segment, srq) = (crate::transfer::read_only(b), srq(b));
            let mut calls = vec![call!(srq_post_recv(srq, &[segment], 1))];
            calls.extend(
                crate::transfer::no_contexts(b)
                    .into_iter()
                    .map(|segment| call!(srq_post_recv(srq, &[segment], 1))),
            );
            calls
        },
    ),
    succeeds("srq_post_recv", "a buffer that the EP of the queue takes, with its cookie", |b| {
        let b = &mut *b;
        *b = Bench::new();
        let (h, t) = (b.here, b.there);
        let (srq, ep) = b.shared();
        ok!(b, srq_post_recv(srq, &[h.segment(100, 50), h.segment(0, 50)], u64::MAX - 1));
        ok!(b, srq_post_recv(srq, &[crate::transfer::nothing()], 0));
        let (cr, peer) = b.request();
        b.a().cr_accept(cr, Some(ep), b"").unwrap();
        assert_eq!(b.connection_event(1, peer), ConnectionEvent::Established);
        t.fill(7, 80, 5);
        b.net.nodes[1].ep_post_send(peer, &[t.segment(7, 80)], 0, NONE).unwrap();
        let got = b.net.dto(0, h.recv);
        assert_eq!((got.ep, got.user_cookie, got.transferred_length), (ep, u64::MAX - 1, 80));
        assert_eq!(got.status, DtoStatus::Success);
        h.check(100, 50, 5);
    }),
];

tests! { ep_create_with_srq srq_create srq_query srq_resize srq_set_lw srq_free srq_post_recv }

//! Remote memory regions (uDAPL 1.2, `dat_rmr_*`).

use crate::bench::{Bench, NONE};
use crate::ep::no_eps;
use crate::registry::{BY_VALUE, Call, Row, impossible, refused, refused_as, succeeds};
use crate::{call, ok, tests};
use dat_nostd::ReturnType::*;
use dat_nostd::*;

const READ: MemPriv = MemPriv::REMOTE_READ;

fn no_rmrs(b: &Bench) -> Vec<RmrHandle> {
    b.no_handles(HandleType::Rmr).into_iter().map(RmrHandle::from_bits).collect()
}

fn rmr(b: &mut Bench) -> RmrHandle {
    let pz = b.here.pz;
    b.a().rmr_create(pz).unwrap()
}

/// A window and a connection to bind it on.
fn ready(b: &mut Bench) -> (RmrHandle, EpHandle) {
    (rmr(b), b.connection().0)
}

/// A call that binds to the first bytes of node 0's region.
fn bind(b: &Bench, rmr: RmrHandle, ep: EpHandle, flags: CompletionFlags) -> Call {
    let segment = b.here.segment(0, 64);
    call!(rmr_bind(rmr, &segment, READ, ep, 1, flags))
}

pub const ROWS: &[Row] = &[
    refused_as("rmr_create", InvalidHandle, Subtype::InvalidHandlePz, "no PZ", |b| {
        let pzs = b.no_handles(HandleType::Pz).into_iter().map(PzHandle::from_bits);
        pzs.map(|pz| call!(rmr_create(pz))).collect()
    }),
    impossible("rmr_create", InvalidParameter, "the pointer for the RMR is null", BY_VALUE),
    refused("rmr_create", InsufficientResources, "no RMR is left", |b| {
        let pz = b.here.pz;
        while b.a().rmr_create(pz).is_ok() {}
        vec![call!(rmr_create(pz))]
    }),
    succeeds("rmr_create", "bound to nothing", |b| {
        let b = &mut *b;
        *b = Bench::new();
        let h = b.here;
        let rmr = ok!(b, rmr_create(h.pz));
        assert_eq!(b.a().rmr_query(rmr), Ok(RmrParameters { ia: h.ia, pz: h.pz, binding: None }));
    }),
    refused_as("rmr_query", InvalidHandle, Subtype::InvalidHandleRmr, "no RMR", |b| {
        no_rmrs(b).into_iter().map(|rmr| call!(rmr_query(rmr))).collect()
    }),
    refused_as(
        "rmr_query",
        InvalidParameter,
        Subtype::InvalidArg2,
        "the mask (a C caller's) has undefined bits",
        |b| {
            let rmr = rmr(b);
            [0x20, u32::MAX].map(|bits| call!(rmr_query_masked(rmr, bits))).into()
        },
    ),
    impossible("rmr_query", InvalidParameter, "the parameter pointer is null", BY_VALUE),
    succeeds("rmr_query", "unbound, bound, unbound again", |b| {
        let (rmr, ep) = ready(b);
        let (h, segment) = (b.here, b.here.segment(0, 64));
        assert_eq!(ok!(b, rmr_query(rmr)).binding, None);
        let rmr_context = b.a().rmr_bind(rmr, &segment, READ, ep, 1, NONE).unwrap();
        let binding = RmrBinding { lmr_triplet: segment, mem_priv: READ, rmr_context };
        assert_eq!(ok!(b, rmr_query(rmr)).binding, Some(binding));
        b.a().rmr_bind(rmr, &h.segment(0, 0), READ, ep, 2, NONE).unwrap();
        assert_eq!(ok!(b, rmr_query(rmr)).binding, None);
        b.net.pass(1_000_000);
    }),
    refused_as("rmr_free", InvalidHandle, Subtype::InvalidHandleRmr, "no RMR", |b| {
        no_rmrs(b).into_iter().map(|rmr| call!(rmr_free(rmr))).collect()
    }),
    succeeds("rmr_free", "bound or not; its LMR is free afterwards", |b| {
        let (rmr, ep) = ready(b);
        let h = b.here;
        let lmr = b.a().lmr_create(h.ia, h.memory, h.pz, MemPriv::ALL).unwrap();
        let segment = LmrTriplet::new(lmr.lmr_context, lmr.registered_address, 64);
        b.a().rmr_bind(rmr, &segment, READ, ep, 1, NONE).unwrap();
        assert!(matches!(b.net.event(0, h.request), EventData::RmrBind(_)));
        assert!(b.a().lmr_free(lmr.lmr).unwrap_err().is(InvalidState));
        ok!(b, rmr_free(rmr));
        assert!(b.a().rmr_query(rmr).unwrap_err().is(InvalidHandle));
        b.a().lmr_free(lmr.lmr).unwrap();
    }),
    refused_as("rmr_bind", InvalidHandle, Subtype::InvalidHandleRmr, "no RMR", |b| {
        let ep = b.connection().0;
        no_rmrs(b).into_iter().map(|rmr| bind(b, rmr, ep, NONE)).collect()
    }),
    refused_as("rmr_bind", InvalidHandle, Subtype::InvalidHandleEp, "no EP", |b| {
        let rmr = rmr(b);
        no_eps(b).into_iter().map(|ep| bind(b, rmr, ep, NONE)).collect()
    }),
    refused("rmr_bind", InvalidState, "the EP is neither connected nor disconnected", |b| {
        let rmr = rmr(b);
        let eps = b.eps_not_in(&[EpState::Connected, EpState::Disconnected]);
        eps.into_iter().map(|ep| bind(b, rmr, ep, NONE)).collect()
    }),
    refused_as("rmr_bind", InvalidParameter, Subtype::InvalidArg2, "the range reaches beyond the LMR", |b| {
        let (rmr, ep) = ready(b);
        let mut outside = crate::transfer::outside(b);
        // A length of 0 unbinds, wherever it is.
        outside.retain(|segment| segment.segment_length > 0);
        outside.into_iter().map(|segment| call!(rmr_bind(rmr, &segment, READ, ep, 1, NONE))).collect()
    }),
    refused("rmr_bind", InvalidParameter, "rights that do not exist", |b| {
        let ((rmr, ep), segment) = (ready(b), b.here.segment(0, 64));
        let rights = MemPriv::from_bits_retain(0x8000);
        vec![call!(rmr_bind(rmr, &segment, rights, ep, 1, NONE))]
    }),
    refused("rmr_bind", InvalidParameter, "UNSIGNALLED on an EP that is not made for it, other flags", |b| {
        let (rmr, ep) = ready(b);
        [
            CompletionFlags::UNSIGNALLED,
            CompletionFlags::SOLICITED_WAIT,
            CompletionFlags::EVD_THRESHOLD,
            CompletionFlags::from_bits_retain(0x4000),
        ]
        .map(|flags| bind(b, rmr, ep, flags))
        .into()
    }),
    refused(
        "rmr_bind",
        PrivilegesViolation,
        "the LMR's rights are too small, or the context names none",
        |b| {
            let (rmr, ep) = ready(b);
            let h = b.here;
            let read_only = crate::transfer::read_only(b);
            let write_only = b.a().lmr_create(h.ia, h.memory, h.pz, MemPriv::LOCAL_WRITE).unwrap();
            let write_only = LmrTriplet::new(write_only.lmr_context, write_only.registered_address, 8);
            let mut calls = vec![
                call!(rmr_bind(rmr, &read_only, MemPriv::REMOTE_WRITE, ep, 1, NONE)),
                call!(rmr_bind(rmr, &read_only, MemPriv::REMOTE_READ | MemPriv::REMOTE_WRITE, ep, 1, NONE)),
                call!(rmr_bind(rmr, &write_only, MemPriv::REMOTE_READ, ep, 1, NONE)),
            ];
            calls.extend(
                crate::transfer::no_contexts(b)
                    .into_iter()
                    .map(|segment| call!(rmr_bind(rmr, &segment, READ, ep, 1, NONE))),
            );
            calls
        },
    ),
    refused("rmr_bind", ProtectionViolation, "RMR, LMR and EP are not of one zone", |b| {
        let (rmr, ep) = ready(b);
        let foreign = crate::transfer::other_zone(b);
        let h = b.here;
        let pz = b.a().pz_create(h.ia).unwrap();
        let other = b.a().rmr_create(pz).unwrap();
        let segment = h.segment(0, 8);
        vec![
            call!(rmr_bind(rmr, &foreign, READ, ep, 1, NONE)),
            call!(rmr_bind(other, &segment, READ, ep, 1, NONE)),
            call!(rmr_bind(other, &foreign, READ, ep, 1, NONE)),
        ]
    }),
    impossible("rmr_bind", ModelNotSupported, "the provider has no windows", "then rmr_create has said so"),
    refused("rmr_bind", InsufficientResources, "max_request_dtos are outstanding", |b| {
        let (rmr, ep) = ready(b);
        while b.a().ep_post_send(ep, &[], 0, NONE).is_ok() {}
        b.settle();
        vec![bind(b, rmr, ep, NONE), bind(b, rmr, ep, CompletionFlags::SUPPRESS)]
    }),
    refused(
        "rmr_bind",
        InsufficientResources,
        "as many binds have not completed as the adapter has places for",
        |b| {
            let (cr, _) = b.request();
            let (h, rmr) = (b.here, rmr(b));
            let attributes = EpAttributes {
                max_request_dtos: Capacities::DEFAULT.binds as u32 + 8,
                ..EpAttributes::DEFAULT
            };
            let evds = (Some(h.recv), Some(h.request), Some(h.connect));
            let ep = b.a().ep_create(h.ia, Some(h.pz), evds.0, evds.1, evds.2, Some(&attributes)).unwrap();
            b.a().cr_accept(cr, Some(ep), b"").unwrap();
            assert_eq!(b.connection_event(0, ep), ConnectionEvent::Established);
            for _ in 0..Capacities::DEFAULT.binds {
                b.a().rmr_bind(rmr, &h.segment(0, 64), READ, ep, 1, NONE).unwrap();
            }
            b.settle();
            vec![bind(b, rmr, ep, NONE)]
        },
    ),
    succeeds("rmr_bind", "the context works for the peer; the event names the RMR and the cookie", |b| {
        let (h, t) = (b.here, b.there);
        let rmr = rmr(b);
        let (ep, peer) = b.connection();
        h.fill(0, 64, 31);
        let context = ok!(b, rmr_bind(rmr, &h.segment(0, 64), READ, ep, u64::MAX - 5, NONE));
        match b.net.event(0, h.request) {
            EventData::RmrBind(done) => {
                assert_eq!(
                    (done.rmr, done.user_cookie, done.status),
                    (rmr, u64::MAX - 5, DtoStatus::Success)
                );
            }
            other => panic!("{other:?}"),
        }
        let remote = RmrTriplet::new(context, h.lmr.registered_address, 64);
        b.net.nodes[1].ep_post_rdma_read(peer, &[t.segment(0, 64)], 2, &remote, NONE).unwrap();
        assert_eq!(b.net.dto(1, t.request).status, DtoStatus::Success);
        t.check(0, 64, 31);
    }),
];

tests! { rmr_create rmr_query rmr_free rmr_bind }

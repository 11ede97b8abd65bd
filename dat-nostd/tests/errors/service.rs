//! Service points (uDAPL 1.2, `dat_psp_*`, `dat_rsp_*`).

use crate::bench::Bench;
use crate::registry::{BY_VALUE, Row, impossible, refused, refused_as, succeeds};
use crate::{call, ok, tests};
use dat_nostd::ReturnType::*;
use dat_nostd::*;

const CONSUMER: PspFlags = PspFlags::Consumer;

fn no_psps(b: &Bench) -> Vec<PspHandle> {
    b.no_handles(HandleType::Psp).into_iter().map(PspHandle::from_bits).collect()
}

fn no_rsps(b: &Bench) -> Vec<RspHandle> {
    b.no_handles(HandleType::Rsp).into_iter().map(RspHandle::from_bits).collect()
}

fn no_ias(b: &Bench) -> Vec<IaHandle> {
    b.no_handles(HandleType::Ia).into_iter().map(IaHandle::from_bits).collect()
}

/// EVDs that take no connection requests, and none at all.
fn not_for_requests(b: &Bench) -> Vec<EvdHandle> {
    let h = b.here;
    let mut evds = b.no_handles(HandleType::Evd);
    evds.extend([h.recv.bits(), h.connect.bits(), h.asynchronous.bits()]);
    evds.into_iter().map(EvdHandle::from_bits).collect()
}

pub const ROWS: &[Row] = &[
    refused_as("psp_create", InvalidHandle, Subtype::InvalidHandleIa, "no IA", |b| {
        let h = b.here;
        let ias = b.no_handles(HandleType::Ia).into_iter().map(IaHandle::from_bits);
        ias.map(|ia| call!(psp_create(ia, 50, h.cr, CONSUMER))).collect()
    }),
    refused_as(
        "psp_create",
        InvalidHandle,
        Subtype::InvalidHandleEvdCr,
        "the EVD is none, or takes no connection requests",
        |b| {
            let h = b.here;
            not_for_requests(b).into_iter().map(|evd| call!(psp_create(h.ia, 50, evd, CONSUMER))).collect()
        },
    ),
    refused_as("psp_create", InvalidHandle, Subtype::InvalidHandleEvdCr, "the EVD is of another IA", |b| {
        let h = b.here;
        let (other, _) = b.a().ia_open("ib0", 8, None).unwrap();
        vec![call!(psp_create(other, 50, h.cr, CONSUMER))]
    }),
    refused_as(
        "psp_create",
        InvalidParameter,
        Subtype::InvalidArg2,
        "the qualifier names no service (0; RDMA-CM: a port's service id)",
        |b| {
            let h = b.here;
            let (own, _) = b.a().ia_open("ib0-dat", 8, None).unwrap();
            let evd = b.a().evd_create(own, 8, None, EvdFlags::CR).unwrap();
            vec![
                call!(psp_create(h.ia, 0, h.cr, CONSUMER)),
                call!(psp_create(h.ia, 0x0106_0000, h.cr, CONSUMER)),
                call!(psp_create(h.ia, 0x0106_ffff, h.cr, CONSUMER)),
                call!(psp_create(own, 0, evd, CONSUMER)),
            ]
        },
    ),
    impossible(
        "psp_create",
        InvalidParameter,
        "the flags are neither CONSUMER nor PROVIDER",
        crate::registry::AN_ENUM,
    ),
    impossible("psp_create", InvalidParameter, "the pointer for the PSP is null", BY_VALUE),
    refused("psp_create", ConnQualInUse, "another service point listens on the qualifier", |b| {
        let h = b.here;
        b.a().psp_create(h.ia, 51, h.cr, CONSUMER).unwrap();
        let (second, _) = b.a().ia_open("ib0", 8, None).unwrap();
        let evd = b.a().evd_create(second, 8, None, EvdFlags::CR).unwrap();
        vec![call!(psp_create(h.ia, 51, h.cr, CONSUMER)), call!(psp_create(second, 51, evd, CONSUMER))]
    }),
    refused("psp_create", InsufficientResources, "no service point is left", |b| {
        let h = b.here;
        let a = b.a();
        let mut qualifier = 2000;
        while a.psp_create(h.ia, qualifier, h.cr, CONSUMER).is_ok() {
            qualifier += 1;
        }
        vec![call!(psp_create(h.ia, qualifier + 1, h.cr, CONSUMER))]
    }),
    succeeds(
        "psp_create",
        "requests arrive with the service point, the qualifier and this IA's address",
        |b| {
            let b = &mut *b;
            *b = Bench::new();
            let h = b.here;
            let psp = ok!(b, psp_create(h.ia, 52, h.cr, CONSUMER));
            assert_eq!(b.a().psp_query(psp).unwrap().conn_qual, 52);
            b.ask(52, b"x");
            b.ask(52, b"y");
            for _ in 0..2 {
                assert!(matches!(b.net.event(0, h.cr), EventData::ConnectionRequest { conn_qual: 52, .. }));
            }
        },
    ),
    succeeds("psp_create", "PROVIDER: each request brings an EP of its own", |b| {
        let (ep, cr, _) = b.tentative();
        let h = b.here;
        ok!(b, psp_create(h.ia, 55, h.cr, PspFlags::Provider));
        let made = b.a().ep_query(ep).unwrap();
        assert_eq!(made.state, EpState::TentativeConnectionPending);
        assert_eq!((made.pz, made.recv_evd, made.request_evd, made.connect_evd), (None, None, None, None));
        b.a().cr_reject(cr).unwrap();
    }),
    refused_as("psp_create_any", InvalidHandle, Subtype::InvalidHandleIa, "no IA", |b| {
        let h = b.here;
        no_ias(b).into_iter().map(|ia| call!(psp_create_any(ia, h.cr, CONSUMER))).collect()
    }),
    refused_as(
        "psp_create_any",
        InvalidHandle,
        Subtype::InvalidHandleEvdCr,
        "the EVD is none, or takes no connection requests",
        |b| {
            let h = b.here;
            not_for_requests(b).into_iter().map(|evd| call!(psp_create_any(h.ia, evd, CONSUMER))).collect()
        },
    ),
    impossible(
        "psp_create_any",
        InvalidParameter,
        "the pointer for the qualifier or the PSP is null",
        BY_VALUE,
    ),
    impossible(
        "psp_create_any",
        InvalidParameter,
        "the flags are neither CONSUMER nor PROVIDER",
        crate::registry::AN_ENUM,
    ),
    impossible(
        "psp_create_any",
        ConnQualUnavailable,
        "all qualifiers are taken",
        "there are 16,384 to pick from and fewer places for service points: INSUFFICIENT_RESOURCES comes first",
    ),
    impossible(
        "psp_create_any",
        ModelNotSupported,
        "the provider cannot make EPs, or must",
        "it makes them if asked",
    ),
    refused("psp_create_any", InsufficientResources, "no service point is left", |b| {
        let h = b.here;
        while b.a().psp_create_any(h.ia, h.cr, CONSUMER).is_ok() {}
        vec![call!(psp_create_any(h.ia, h.cr, CONSUMER))]
    }),
    succeeds("psp_create_any", "an unprivileged qualifier on which requests arrive", |b| {
        let b = &mut *b;
        *b = Bench::new();
        let h = b.here;
        let (one, _) = ok!(b, psp_create_any(h.ia, h.cr, CONSUMER));
        let (two, psp) = ok!(b, psp_create_any(h.ia, h.cr, CONSUMER));
        assert!(one != two && one > 1023 && two > 1023, "{one} {two}");
        assert_eq!(b.a().psp_query(psp).unwrap().conn_qual, two);
        b.ask(two, b"x");
        b.arrived(two);
    }),
    refused_as("psp_query", InvalidHandle, Subtype::InvalidHandlePsp, "no PSP", |b| {
        no_psps(b).into_iter().map(|psp| call!(psp_query(psp))).collect()
    }),
    refused_as(
        "psp_query",
        InvalidParameter,
        Subtype::InvalidArg2,
        "the mask (a C caller's) has undefined bits",
        |b| {
            let (ia, cr) = (b.here.ia, b.here.cr);
            let psp = b.a().psp_create(ia, 93, cr, PspFlags::Consumer).unwrap();
            [0x10, u32::MAX].map(|bits| call!(psp_query_masked(psp, bits))).into()
        },
    ),
    impossible("psp_query", InvalidParameter, "the parameter pointer is null", BY_VALUE),
    succeeds("psp_query", "IA, qualifier, EVD, flags", |b| {
        let h = b.here;
        let psp = b.a().psp_create(h.ia, 53, h.cr, CONSUMER).unwrap();
        let found = ok!(b, psp_query(psp));
        assert_eq!((found.ia, found.conn_qual, found.evd, found.psp_flags), (h.ia, 53, h.cr, CONSUMER));
    }),
    refused_as("psp_free", InvalidHandle, Subtype::InvalidHandlePsp, "no PSP", |b| {
        no_psps(b).into_iter().map(|psp| call!(psp_free(psp))).collect()
    }),
    succeeds("psp_free", "the qualifier is free again; requests already delivered stay", |b| {
        let h = b.here;
        let psp = b.a().psp_create(h.ia, 54, h.cr, CONSUMER).unwrap();
        let first = b.ask(54, b"");
        let cr = b.arrived(54);
        ok!(b, psp_free(psp));
        assert!(b.a().cr_query(cr).is_ok());
        let late = b.ask(54, b"");
        assert_eq!(b.connection_event(1, late), ConnectionEvent::NonPeerRejected);
        b.a().cr_reject(cr).unwrap();
        assert_eq!(b.connection_event(1, first), ConnectionEvent::PeerRejected);
        let again = b.a().psp_create(h.ia, 54, h.cr, CONSUMER).unwrap();
        ok!(b, psp_free(again));
    }),
    refused_as("rsp_create", InvalidHandle, Subtype::InvalidHandleIa, "no IA", |b| {
        let (h, ep) = (b.here, b.endpoint());
        no_ias(b).into_iter().map(|ia| call!(rsp_create(ia, 70, Some(ep), h.cr))).collect()
    }),
    refused_as("rsp_create", InvalidHandle, Subtype::InvalidHandleEp, "no EP", |b| {
        let h = b.here;
        crate::ep::no_eps(b).into_iter().map(|ep| call!(rsp_create(h.ia, 70, Some(ep), h.cr))).collect()
    }),
    refused_as(
        "rsp_create",
        InvalidHandle,
        Subtype::InvalidHandleEvdCr,
        "the EVD is none, or takes no connection requests",
        |b| {
            let (h, ep) = (b.here, b.endpoint());
            not_for_requests(b).into_iter().map(|evd| call!(rsp_create(h.ia, 70, Some(ep), evd))).collect()
        },
    ),
    refused("rsp_create", InvalidHandle, "the EP or the EVD is of another IA", |b| {
        let (h, ep) = (b.here, b.endpoint());
        let (other, _) = b.a().ia_open("ib0", 8, None).unwrap();
        let evd = b.a().evd_create(other, 8, None, EvdFlags::CR).unwrap();
        vec![call!(rsp_create(other, 70, None, h.cr)), call!(rsp_create(other, 70, Some(ep), evd))]
    }),
    refused(
        "rsp_create",
        InvalidParameter,
        "the qualifier names no service (0; RDMA-CM: a port's service id)",
        |b| {
            let (h, ep) = (b.here, b.endpoint());
            [0, 0x0106_0000, 0x0106_ffff]
                .map(|qualifier| call!(rsp_create(h.ia, qualifier, Some(ep), h.cr)))
                .into()
        },
    ),
    impossible("rsp_create", InvalidParameter, "the pointer for the RSP is null", BY_VALUE),
    refused("rsp_create", InvalidState, "the EP is not unconnected", |b| {
        let h = b.here;
        b.eps_not_in(&[EpState::Unconnected])
            .into_iter()
            .map(|ep| call!(rsp_create(h.ia, 71, Some(ep), h.cr)))
            .collect()
    }),
    refused("rsp_create", ConnQualInUse, "a PSP or RSP listens on the qualifier", |b| {
        let (h, ep) = (b.here, b.endpoint());
        b.a().psp_create(h.ia, 72, h.cr, CONSUMER).unwrap();
        let (_, _, reserved) = b.reserved();
        vec![
            call!(rsp_create(h.ia, 72, Some(ep), h.cr)),
            call!(rsp_create(h.ia, reserved, Some(ep), h.cr)),
            call!(rsp_create(h.ia, 72, None, h.cr)),
        ]
    }),
    refused("rsp_create", InsufficientResources, "no service point is left", |b| {
        let (h, ep) = (b.here, b.endpoint());
        let mut qualifier = 3000;
        while b.a().rsp_create(h.ia, qualifier, None, h.cr).is_ok() {
            qualifier += 1;
        }
        vec![call!(rsp_create(h.ia, 4001, Some(ep), h.cr)), call!(rsp_create(h.ia, 4002, None, h.cr))]
    }),
    succeeds("rsp_create", "the EP is reserved; the one request finds it, a second is refused", |b| {
        let b = &mut *b;
        *b = Bench::new();
        let (h, ep) = (b.here, b.endpoint());
        let rsp = ok!(b, rsp_create(h.ia, 74, Some(ep), h.cr));
        assert_eq!(b.a().ep_get_status(ep).unwrap().state, EpState::Reserved);
        b.ask(74, b"first");
        let cr = match b.net.event(0, h.cr) {
            EventData::ConnectionRequest { sp, conn_qual: 74, cr, .. } if sp == ServicePoint::Rsp(rsp) => cr,
            other => panic!("{other:?}"),
        };
        assert_eq!(b.a().ep_get_status(ep).unwrap().state, EpState::PassiveConnectionPending);
        assert_eq!(b.a().cr_query(cr).unwrap().local_ep, Some(ep));
        let second = b.ask(74, b"second");
        assert_eq!(b.connection_event(1, second), ConnectionEvent::NonPeerRejected);
    }),
    refused_as("rsp_query", InvalidHandle, Subtype::InvalidHandleRsp, "no RSP", |b| {
        no_rsps(b).into_iter().map(|rsp| call!(rsp_query(rsp))).collect()
    }),
    refused_as(
        "rsp_query",
        InvalidParameter,
        Subtype::InvalidArg2,
        "the mask (a C caller's) has undefined bits",
        |b| {
            let (ia, cr) = (b.here.ia, b.here.cr);
            let rsp = b.a().rsp_create(ia, 94, None, cr).unwrap();
            [0x10, u32::MAX].map(|bits| call!(rsp_query_masked(rsp, bits))).into()
        },
    ),
    impossible("rsp_query", InvalidParameter, "the parameter pointer is null", BY_VALUE),
    succeeds("rsp_query", "IA, qualifier, EVD, EP", |b| {
        let h = b.here;
        let (ep, rsp, qualifier) = b.reserved();
        let found = ok!(b, rsp_query(rsp));
        assert_eq!((found.ia, found.conn_qual, found.evd, found.ep), (h.ia, qualifier, h.cr, Some(ep)));
    }),
    refused_as("rsp_free", InvalidHandle, Subtype::InvalidHandleRsp, "no RSP", |b| {
        no_rsps(b).into_iter().map(|rsp| call!(rsp_free(rsp))).collect()
    }),
    succeeds("rsp_free", "the EP is unconnected again; after its request the free succeeds too", |b| {
        let (ep, rsp, qualifier) = b.reserved();
        ok!(b, rsp_free(rsp));
        assert_eq!(b.a().ep_get_status(ep).unwrap().state, EpState::Unconnected);
        let late = b.ask(qualifier, b"");
        assert_eq!(b.connection_event(1, late), ConnectionEvent::NonPeerRejected);
        let (ep, cr, rsp, _) = b.passive();
        ok!(b, rsp_free(rsp));
        assert_eq!(b.a().ep_get_status(ep).unwrap().state, EpState::PassiveConnectionPending);
        b.a().cr_accept(cr, None, b"").unwrap();
        assert_eq!(b.connection_event(0, ep), ConnectionEvent::Established);
    }),
];

tests! { psp_create psp_create_any psp_query psp_free rsp_create rsp_query rsp_free }

//! Service points: section 7.6 of the reference.

use crate::bench::Bench;
use crate::registry::{BY_VALUE, NO_MASK, Row, impossible, refused, refused_as, succeeds};
use crate::{call, ok, tests};
use dat_nostd::ReturnType::*;
use dat_nostd::*;

const CONSUMER: PspFlags = PspFlags::Consumer;

fn no_psps(b: &Bench) -> Vec<PspHandle> {
    b.no_handles(HandleType::Psp).into_iter().map(PspHandle::from_bits).collect()
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
    refused_as(
        "psp_create",
        InvalidParameter,
        Subtype::InvalidArg2,
        "the qualifier names no service (0; RDMA-CM: above 65535)",
        |b| {
            let h = b.here;
            let (own, _) = b.a().ia_open("ib0-dat", 8, None).unwrap();
            vec![
                call!(psp_create(h.ia, 0, h.cr, CONSUMER)),
                call!(psp_create(h.ia, 65536, h.cr, CONSUMER)),
                call!(psp_create(h.ia, u64::MAX, h.cr, CONSUMER)),
                call!(psp_create(own, 0, h.cr, CONSUMER)),
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
        vec![call!(psp_create(h.ia, 51, h.cr, CONSUMER)), call!(psp_create(second, 51, h.cr, CONSUMER))]
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
    refused_as("psp_query", InvalidHandle, Subtype::InvalidHandlePsp, "no PSP", |b| {
        no_psps(b).into_iter().map(|psp| call!(psp_query(psp))).collect()
    }),
    impossible("psp_query", InvalidParameter, "the mask has undefined bits", NO_MASK),
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
];

tests! { psp_create psp_query psp_free }

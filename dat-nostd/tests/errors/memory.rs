//! Protection zones and memory regions (uDAPL 1.2, `dat_pz_*`, `dat_lmr_*`).

use crate::bench::Bench;
use crate::registry::{BY_VALUE, Call, Row, impossible, refused, refused_as, succeeds};
use crate::{call, ok, tests};
use dat_nostd::ReturnType::*;
use dat_nostd::*;

fn no_pzs(b: &Bench) -> Vec<PzHandle> {
    b.no_handles(HandleType::Pz).into_iter().map(PzHandle::from_bits).collect()
}

fn no_lmrs(b: &Bench) -> Vec<LmrHandle> {
    b.no_handles(HandleType::Lmr).into_iter().map(LmrHandle::from_bits).collect()
}

fn no_ias(b: &Bench) -> Vec<IaHandle> {
    b.no_handles(HandleType::Ia).into_iter().map(IaHandle::from_bits).collect()
}

/// Segments that no region covers.
fn outside(b: &Bench) -> Vec<LmrTriplet> {
    let h = b.here;
    let (context, start, size) = (h.lmr.lmr_context, h.lmr.registered_address, h.lmr.registered_size);
    vec![
        LmrTriplet::new(context, start, size + 1),
        LmrTriplet::new(context, start + size, 1),
        LmrTriplet::new(context, start - 1, 1),
        LmrTriplet::new(context, u64::MAX, 2),
        LmrTriplet::new(context, start + 1, u64::MAX),
        LmrTriplet::new(b.dead.lmr_context, start, 1),
        LmrTriplet::new(0, start, 1),
    ]
}

pub const ROWS: &[Row] = &[
    refused_as("pz_create", InvalidHandle, Subtype::InvalidHandleIa, "no IA", |b| {
        no_ias(b).into_iter().map(|ia| call!(pz_create(ia))).collect()
    }),
    impossible("pz_create", InvalidParameter, "the pointer for the PZ is null", BY_VALUE),
    refused_as(
        "pz_create",
        InsufficientResources,
        Subtype::ResourceProtectionDomain,
        "no protection zone is left",
        |b| {
            let ia = b.here.ia;
            while b.a().pz_create(ia).is_ok() {}
            vec![call!(pz_create(ia)), call!(pz_create(ia))]
        },
    ),
    succeeds("pz_create", "a zone of the IA, different from all others", |b| {
        let b = &mut *b;
        *b = Bench::new();
        let ia = b.here.ia;
        let (one, two) = (ok!(b, pz_create(ia)), ok!(b, pz_create(ia)));
        assert_ne!(one, two);
        assert_eq!(b.a().pz_query(two), Ok(ia));
    }),
    refused_as("pz_query", InvalidHandle, Subtype::InvalidHandlePz, "no PZ", |b| {
        no_pzs(b).into_iter().map(|pz| call!(pz_query(pz))).collect()
    }),
    refused_as(
        "pz_query",
        InvalidParameter,
        Subtype::InvalidArg2,
        "the mask (a C caller's) has undefined bits",
        |b| {
            let pz = b.here.pz;
            [0x2, u32::MAX].map(|bits| call!(pz_query_masked(pz, bits))).into()
        },
    ),
    impossible("pz_query", InvalidParameter, "the parameter pointer is null", BY_VALUE),
    succeeds("pz_query", "its IA", |b| {
        let h = b.here;
        assert_eq!(ok!(b, pz_query(h.pz)), h.ia);
    }),
    refused_as("pz_free", InvalidHandle, Subtype::InvalidHandlePz, "no PZ", |b| {
        no_pzs(b).into_iter().map(|pz| call!(pz_free(pz))).collect()
    }),
    refused_as(
        "pz_free",
        InvalidState,
        Subtype::InvalidStatePzInUse,
        "an EP, LMR, SRQ or RMR refers to it",
        |b| {
            let h = b.here;
            let a = b.a();
            let (of_ep, of_lmr) = (a.pz_create(h.ia).unwrap(), a.pz_create(h.ia).unwrap());
            a.ep_create(h.ia, Some(of_ep), Some(h.recv), Some(h.request), Some(h.connect), None).unwrap();
            a.lmr_create(h.ia, h.memory, of_lmr, MemPriv::ALL).unwrap();
            let (of_srq, of_rmr) = (a.pz_create(h.ia).unwrap(), a.pz_create(h.ia).unwrap());
            a.srq_create(h.ia, of_srq, &crate::bench::SRQ).unwrap();
            a.rmr_create(of_rmr).unwrap();
            vec![
                call!(pz_free(of_ep)),
                call!(pz_free(of_lmr)),
                call!(pz_free(of_srq)),
                call!(pz_free(of_rmr)),
            ]
        },
    ),
    succeeds("pz_free", "once nothing refers to it", |b| {
        let h = b.here;
        let pz = b.a().pz_create(h.ia).unwrap();
        let lmr = b.a().lmr_create(h.ia, h.memory, pz, MemPriv::ALL).unwrap().lmr;
        b.a().lmr_free(lmr).unwrap();
        ok!(b, pz_free(pz));
        assert!(b.a().pz_query(pz).unwrap_err().is(InvalidHandle));
    }),
    refused_as("lmr_create", InvalidHandle, Subtype::InvalidHandleIa, "no IA", |b| {
        let h = b.here;
        no_ias(b).into_iter().map(|ia| call!(lmr_create(ia, h.memory, h.pz, MemPriv::ALL))).collect()
    }),
    refused_as("lmr_create", InvalidHandle, Subtype::InvalidHandlePz, "no PZ", |b| {
        let h = b.here;
        no_pzs(b).into_iter().map(|pz| call!(lmr_create(h.ia, h.memory, pz, MemPriv::ALL))).collect()
    }),
    refused("lmr_create", InvalidParameter, "remote write without local write, undefined rights", |b| {
        let h = b.here;
        vec![
            call!(lmr_create(h.ia, h.memory, h.pz, MemPriv::REMOTE_WRITE)),
            call!(lmr_create(h.ia, h.memory, h.pz, MemPriv::READ | MemPriv::REMOTE_WRITE)),
            call!(lmr_create(h.ia, h.memory, h.pz, MemPriv::from_bits_retain(0x8000))),
        ]
    }),
    refused_as("lmr_create", InvalidHandle, Subtype::InvalidHandleLmr, "type LMR, and no LMR", |b| {
        let h = b.here;
        no_lmrs(b).into_iter().map(|lmr| call!(lmr_create(h.ia, lmr, h.pz, MemPriv::ALL))).collect()
    }),
    refused("lmr_create", PrivilegesViolation, "type LMR, and rights that the given LMR lacks", |b| {
        let h = b.here;
        let lmr = b.a().lmr_create(h.ia, h.memory, h.pz, MemPriv::LOCAL_READ).unwrap().lmr;
        vec![
            call!(lmr_create(h.ia, lmr, h.pz, MemPriv::ALL)),
            call!(lmr_create(h.ia, lmr, h.pz, MemPriv::REMOTE_READ)),
            call!(lmr_create(h.ia, lmr, h.pz, MemPriv::LOCAL_WRITE)),
        ]
    }),
    refused_as(
        "lmr_create",
        InvalidState,
        Subtype::InvalidStateLmrInUse,
        "type SHARED_VIRTUAL, and the cookie names other memory",
        |b| {
            let h = b.here;
            let region = Region::SharedVirtual(h.memory, [7; 40]);
            b.a().lmr_create(h.ia, region, h.pz, MemPriv::ALL).unwrap();
            let other = Region::SharedVirtual(h.memory.slice(0, 4096).expect("inside"), [7; 40]);
            vec![call!(lmr_create(h.ia, other, h.pz, MemPriv::ALL))]
        },
    ),
    impossible("lmr_create", InvalidParameter, "the memory type does not exist", crate::registry::AN_ENUM),
    impossible("lmr_create", ModelNotSupported, "the memory type is not offered", "all three are"),
    refused_as("lmr_create", InvalidHandle, Subtype::InvalidHandlePz, "the PZ is of another IA", |b| {
        let h = b.here;
        let (other, _) = b.a().ia_open("ib0", 8, None).unwrap();
        vec![call!(lmr_create(other, h.memory, h.pz, MemPriv::ALL))]
    }),
    refused("lmr_create", LengthError, "the length is 0", |b| {
        let h = b.here;
        let memory = h.memory.slice(0, 0).expect("inside");
        vec![call!(lmr_create(h.ia, memory, h.pz, MemPriv::ALL))]
    }),
    refused("lmr_create", InsufficientResources, "no LMR is left", |b| {
        let h = b.here;
        while b.a().lmr_create(h.ia, h.memory, h.pz, MemPriv::ALL).is_ok() {}
        vec![
            call!(lmr_create(h.ia, h.memory, h.pz, MemPriv::ALL)),
            call!(lmr_create_zero_based(h.ia, h.memory, h.pz, MemPriv::ALL)),
        ]
    }),
    succeeds("lmr_create", "contexts, size and address; a remote context only for remote rights", |b| {
        let b = &mut *b;
        *b = Bench::new();
        let h = b.here;
        let local = ok!(b, lmr_create(h.ia, h.memory, h.pz, MemPriv::LOCAL_READ | MemPriv::LOCAL_WRITE));
        assert!(local.lmr_context != 0 && local.rmr_context == 0);
        let remote = ok!(b, lmr_create(h.ia, h.memory, h.pz, MemPriv::ALL));
        assert!(remote.rmr_context != 0 && remote.lmr_context != local.lmr_context);
        assert!(
            remote.registered_address <= h.memory.va() as u64
                && remote.registered_size >= h.memory.len() as u64
        );
    }),
    succeeds(
        "lmr_create",
        "of an LMR, with other rights and another zone; shared, twice under one cookie",
        |b| {
            let b = &mut *b;
            *b = Bench::new();
            let h = b.here;
            let pz = b.a().pz_create(h.ia).unwrap();
            let again = ok!(b, lmr_create(h.ia, h.lmr.lmr, pz, MemPriv::READ));
            let found = b.a().lmr_query(again.lmr).unwrap();
            assert_eq!((found.pz, found.mem_priv, found.length), (pz, MemPriv::READ, h.memory.len() as u64));
            let region = Region::SharedVirtual(h.memory, [9; 40]);
            let (one, two) = (
                ok!(b, lmr_create(h.ia, region, h.pz, MemPriv::ALL)),
                ok!(b, lmr_create(h.ia, region, pz, MemPriv::ALL)),
            );
            assert!(one.lmr != two.lmr && one.registered_address == two.registered_address);
        },
    ),
    refused_as("lmr_query", InvalidHandle, Subtype::InvalidHandleLmr, "no LMR", |b| {
        no_lmrs(b).into_iter().map(|lmr| call!(lmr_query(lmr))).collect()
    }),
    refused_as(
        "lmr_query",
        InvalidParameter,
        Subtype::InvalidArg2,
        "the mask (a C caller's) has undefined bits",
        |b| {
            let lmr = b.here.lmr.lmr;
            [0x400, u32::MAX].map(|bits| call!(lmr_query_masked(lmr, bits))).into()
        },
    ),
    impossible("lmr_query", InvalidParameter, "the parameter pointer is null", BY_VALUE),
    succeeds("lmr_query", "IA, zone, length, rights, contexts", |b| {
        let h = b.here;
        let found = ok!(b, lmr_query(h.lmr.lmr));
        assert_eq!((found.ia, found.pz, found.mem_priv), (h.ia, h.pz, MemPriv::ALL));
        assert_eq!((found.length, found.lmr_context), (h.memory.len() as u64, h.lmr.lmr_context));
        assert_eq!(found.rmr_context, h.lmr.rmr_context);
    }),
    refused_as("lmr_free", InvalidHandle, Subtype::InvalidHandleLmr, "no LMR", |b| {
        no_lmrs(b).into_iter().map(|lmr| call!(lmr_free(lmr))).collect()
    }),
    refused_as("lmr_free", InvalidState, Subtype::InvalidStateLmrInUse, "an RMR is bound to it", |b| {
        let h = b.here;
        let ep = b.connection().0;
        let rmr = b.a().rmr_create(h.pz).unwrap();
        let lmr = b.a().lmr_create(h.ia, h.memory, h.pz, MemPriv::ALL).unwrap();
        let segment = LmrTriplet::new(lmr.lmr_context, lmr.registered_address, 64);
        b.a().rmr_bind(rmr, &segment, MemPriv::REMOTE_READ, ep, 1, CompletionFlags::empty()).unwrap();
        let lmr = lmr.lmr;
        vec![call!(lmr_free(lmr))]
    }),
    succeeds("lmr_free", "the context is dead", |b| {
        let h = b.here;
        let lmr = b.a().lmr_create(h.ia, h.memory, h.pz, MemPriv::ALL).unwrap();
        ok!(b, lmr_free(lmr.lmr));
        let segment = LmrTriplet::new(lmr.lmr_context, lmr.registered_address, 8);
        let error = b.a().ep_post_recv(h.ep, &[segment], 0, CompletionFlags::empty()).unwrap_err();
        assert!(error.is(PrivilegesViolation), "{error}");
    }),
    refused_as("lmr_sync_rdma_read", InvalidHandle, Subtype::InvalidHandleIa, "no IA", |b| {
        let h = b.here;
        no_ias(b).into_iter().map(|ia| call!(lmr_sync_rdma_read(ia, &[h.segment(0, 8)]))).collect()
    }),
    refused("lmr_sync_rdma_read", InvalidParameter, "a segment reaches outside its LMR", |b| {
        let h = b.here;
        let sync = |segment| -> [Call; 2] {
            [
                call!(lmr_sync_rdma_read(h.ia, &[segment])),
                call!(lmr_sync_rdma_read(h.ia, &[h.segment(0, 8), segment])),
            ]
        };
        outside(b).into_iter().flat_map(sync).collect()
    }),
    succeeds("lmr_sync_rdma_read", "segments of several LMRs and zones", |b| {
        let h = b.here;
        let pz = b.a().pz_create(h.ia).unwrap();
        let other = b.a().lmr_create(h.ia, h.memory, pz, MemPriv::READ).unwrap();
        let segment = LmrTriplet::new(other.lmr_context, other.registered_address, 5);
        ok!(b, lmr_sync_rdma_read(h.ia, &[h.segment(0, 8), segment, h.segment(9, 0)]));
        ok!(b, lmr_sync_rdma_read(h.ia, &[]));
    }),
    refused_as("lmr_sync_rdma_write", InvalidHandle, Subtype::InvalidHandleIa, "no IA", |b| {
        let h = b.here;
        no_ias(b).into_iter().map(|ia| call!(lmr_sync_rdma_write(ia, &[h.segment(0, 8)]))).collect()
    }),
    refused("lmr_sync_rdma_write", InvalidParameter, "a segment reaches outside its LMR", |b| {
        let h = b.here;
        outside(b).into_iter().map(|segment| call!(lmr_sync_rdma_write(h.ia, &[segment]))).collect()
    }),
    succeeds("lmr_sync_rdma_write", "segments of several LMRs and zones", |b| {
        let h = b.here;
        ok!(b, lmr_sync_rdma_write(h.ia, &[h.segment(0, 8), h.segment(100, 1)]));
    }),
];

tests! {
    pz_create pz_query pz_free lmr_create lmr_query lmr_free lmr_sync_rdma_read lmr_sync_rdma_write
}

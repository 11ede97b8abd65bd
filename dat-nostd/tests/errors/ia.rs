//! Interface adapters (uDAPL 1.2, `dat_ia_*`).

use crate::bench::Bench;
use crate::registry::{AN_ENUM, BY_VALUE, Row, impossible, refused, refused_as, succeeds};
use crate::{call, ok, tests};
use dat_nostd::ReturnType::*;
use dat_nostd::*;

pub const ROWS: &[Row] = &[
    refused_as("ia_openv", InvalidParameter, Subtype::InvalidArg1, "the name is empty", |_| {
        vec![call!(ia_open("", 8, None))]
    }),
    refused_as(
        "ia_openv",
        InvalidParameter,
        Subtype::InvalidArg1,
        "the name has 256 characters or more",
        |_| [256, 257, 5000].map(|len| "x".repeat(len)).map(|name| call!(ia_open(&name, 8, None))).into(),
    ),
    refused_as(
        "ia_openv",
        InvalidParameter,
        Subtype::InvalidArg2,
        "the length is 0 or above 2^31 - 1, and an EVD has to be made",
        |_| [0, 1 << 31, u32::MAX].map(|len| call!(ia_open("ib0", len, None))).into(),
    ),
    impossible("ia_openv", InvalidParameter, "the pointer for the IA is null", BY_VALUE),
    refused_as(
        "ia_openv",
        ProviderNotFound,
        Subtype::NameNotRegistered,
        "nobody has registered the name",
        |_| {
            ["ib", "ib1", "ib0-", "ib0-datx", "-dat", "IB0", "ib0 ", "nonsense"]
                .map(|name| call!(ia_open(name, 8, None)))
                .into()
        },
    ),
    refused_as("ia_openv", ProviderNotFound, Subtype::MajorNotFound, "another major version", |_| {
        [0, 2, u32::MAX].map(|major| call!(ia_openv("ib0", 8, None, major, 2, false))).into()
    }),
    refused_as("ia_openv", ProviderNotFound, Subtype::MinorNotFound, "a minor version above 2", |_| {
        [3, u32::MAX].map(|minor| call!(ia_openv("ib0", 8, None, 1, minor, false))).into()
    }),
    refused_as("ia_openv", ProviderNotFound, Subtype::ThreadSafetyNotFound, "thread safety", |_| {
        vec![call!(ia_openv("ib0", 8, None, 1, 2, true))]
    }),
    refused_as(
        "ia_openv",
        InvalidHandle,
        Subtype::InvalidHandleEvdAsync,
        "the asynchronous EVD given is none, or not one for asynchronous errors",
        |b| {
            let mut evds = b.no_handles(HandleType::Evd);
            evds.extend([b.here.recv.bits(), b.here.cr.bits()]);
            evds.into_iter().map(|evd| call!(ia_open("ib0", 8, Some(EvdHandle::from_bits(evd))))).collect()
        },
    ),
    refused("ia_openv", InsufficientResources, "as many IAs are open as there are places", |b| {
        let a = b.a();
        while a.ia_open("ib0", 8, None).is_ok() {}
        vec![call!(ia_open("ib0", 8, None)), call!(ia_open("ib0-dat", 8, None))]
    }),
    refused("ia_openv", InsufficientResources, "the length is beyond the event pool", |_| {
        vec![call!(ia_open("ib0", 1 << 20, None))]
    }),
    impossible(
        "ia_openv",
        InvalidParameter,
        "illumos: a bad relaxed-ordering cookie",
        "there is no such argument",
    ),
    succeeds("ia_openv", "two IAs with one asynchronous EVD, given by the first", |b| {
        let b = &mut *b;
        *b = Bench::new();
        let (first, evd) = ok!(b, ia_open("ib0", 8, None));
        let (second, same) = ok!(b, ia_open("ib0-dat", 8, Some(evd)));
        assert!(first != second && evd == same);
        let (older, _) = ok!(b, ia_openv("ib0", 8, None, 1, 1, false));
        b.a().ia_close(older, CloseFlags::Graceful).unwrap();
        assert_eq!(b.a().evd_query(evd).unwrap().evd_flags, EvdFlags::ASYNC);
    }),
    refused_as("ia_query", InvalidHandle, Subtype::InvalidHandleIa, "no IA", |b| {
        let ias = b.no_handles(HandleType::Ia).into_iter().map(IaHandle::from_bits);
        ias.map(|ia| call!(ia_query(ia))).collect()
    }),
    refused_as(
        "ia_query",
        InvalidParameter,
        Subtype::InvalidArg3,
        "the mask (a C caller's) has undefined bits",
        |b| {
            let ia = b.here.ia;
            [1 << 35, 1 << 63].map(|bits| call!(ia_query_masked(ia, bits, 0))).into()
        },
    ),
    refused_as(
        "ia_query",
        InvalidParameter,
        Subtype::InvalidArg5,
        "the provider's mask (a C caller's) has undefined bits",
        |b| {
            let ia = b.here.ia;
            [1 << 26, 1 << 63].map(|bits| call!(ia_query_masked(ia, 0, bits))).into()
        },
    ),
    impossible(
        "ia_query",
        InvalidParameter,
        "an attribute pointer is null while its mask is not 0",
        BY_VALUE,
    ),
    succeeds("ia_query", "asynchronous EVD, address, limits", |b| {
        let h = b.here;
        let (evd, ia, provider) = ok!(b, ia_query(h.ia));
        let named = (evd, ia.adapter_name, ia.ia_address);
        assert_eq!(named, (h.asynchronous, b.net.nodes[0].name(), crate::common::address(0)));
        assert_eq!((ia.max_eps, ia.max_evds, ia.max_lmrs), (64, 64, 64));
        assert!(ia.max_message_size >= 1 << 30 && ia.max_dto_per_ep >= 1024, "{ia:?}");
        assert_eq!((provider.dapl_version_major, provider.dapl_version_minor), (1, 2));
        assert!(!provider.is_thread_safe && provider.optimal_buffer_alignment == 256);
    }),
    refused_as("ia_close", InvalidHandle, Subtype::InvalidHandleIa, "no IA", |b| {
        let mut calls = Vec::new();
        for ia in b.no_handles(HandleType::Ia).into_iter().map(IaHandle::from_bits) {
            calls.push(call!(ia_close(ia, CloseFlags::Abrupt)));
            calls.push(call!(ia_close(ia, CloseFlags::Graceful)));
        }
        calls
    }),
    impossible("ia_close", InvalidParameter, "the flags are neither abrupt nor graceful", AN_ENUM),
    refused_as(
        "ia_close",
        InvalidState,
        Subtype::InvalidStateIaInUse,
        "graceful, and any object of the consumer is left",
        |b| {
            // One IA for each kind of object that it may be left with, and what that needs.
            let (h, a) = (b.here, b.a());
            let mut calls = vec![];
            let open = |a: &mut crate::common::Node| a.ia_open("ib0", 8, None).unwrap().0;
            let mut left = |ia| calls.push(call!(ia_close(ia, CloseFlags::Graceful)));
            let ia = open(a);
            a.pz_create(ia).unwrap();
            left(ia);
            let ia = open(a);
            a.evd_create(ia, 8, None, EvdFlags::SOFTWARE).unwrap();
            left(ia);
            let ia = open(a);
            let pz = a.pz_create(ia).unwrap();
            a.lmr_create(ia, h.memory, pz, MemPriv::ALL).unwrap();
            left(ia);
            let ia = open(a);
            a.ep_create(ia, None, None, None, None, None).unwrap();
            left(ia);
            let ia = open(a);
            a.cno_create(ia, None).unwrap();
            left(ia);
            calls
        },
    ),
    refused_as(
        "ia_close",
        InvalidState,
        Subtype::InvalidStateIaInUse,
        "graceful, and a service point, SRQ or RMR is left",
        |b| {
            *b = Bench::new();
            let a = b.a();
            let mut calls = vec![];
            let open = |a: &mut crate::common::Node| a.ia_open("ib0", 8, None).unwrap().0;
            let mut left = |ia| calls.push(call!(ia_close(ia, CloseFlags::Graceful)));
            let ia = open(a);
            let evd = a.evd_create(ia, 8, None, EvdFlags::CR).unwrap();
            a.psp_create(ia, 77, evd, PspFlags::Consumer).unwrap();
            left(ia);
            let ia = open(a);
            let evd = a.evd_create(ia, 8, None, EvdFlags::CR).unwrap();
            a.rsp_create(ia, 78, None, evd).unwrap();
            left(ia);
            let ia = open(a);
            let pz = a.pz_create(ia).unwrap();
            a.srq_create(ia, pz, &crate::bench::SRQ).unwrap();
            left(ia);
            let ia = open(a);
            let pz = a.pz_create(ia).unwrap();
            a.rmr_create(pz).unwrap();
            left(ia);
            calls
        },
    ),
    impossible(
        "ia_close",
        InsufficientResources,
        "catastrophic failures only",
        "closing needs nothing that could be short",
    ),
    succeeds("ia_close", "gracefully after everything was freed, abruptly with everything left", |b| {
        let b = &mut *b;
        *b = Bench::new();
        let (ia, evd) = b.a().ia_open("ib0", 8, None).unwrap();
        let pz = b.a().pz_create(ia).unwrap();
        b.a().pz_free(pz).unwrap();
        ok!(b, ia_close(ia, CloseFlags::Graceful));
        assert!(b.a().evd_query(evd).unwrap_err().is(InvalidHandle), "its own EVD goes with it");
        let (ia, given) = b.a().ia_open("ib0", 8, None).unwrap();
        let (other, _) = b.a().ia_open("ib0", 8, Some(given)).unwrap();
        ok!(b, ia_close(other, CloseFlags::Abrupt));
        assert!(b.a().evd_query(given).is_ok(), "an EVD that was given stays");
        ok!(b, ia_close(ia, CloseFlags::Abrupt));
        let h = b.here;
        ok!(b, ia_close(h.ia, CloseFlags::Abrupt));
        assert!(b.a().ep_query(h.ep).unwrap_err().is(InvalidHandle));
        assert_eq!(b.net.world.census(0).mkeys, Bench::bare().world.census(0).mkeys);
    }),
];

tests! { ia_openv ia_query ia_close }

//! Connection requests (uDAPL 1.2, `dat_cr_*`).

use crate::bench::Bench;
use crate::common::address;
use crate::ep::no_eps;
use crate::registry::{A_SLICE, BY_VALUE, Row, impossible, refused, refused_as, succeeds};
use crate::{call, ok, tests};
use dat_nostd::ReturnType::*;
use dat_nostd::*;

fn no_crs(b: &Bench) -> Vec<CrHandle> {
    b.no_handles(HandleType::Cr).into_iter().map(CrHandle::from_bits).collect()
}

pub const ROWS: &[Row] = &[
    refused_as("cr_query", InvalidHandle, Subtype::InvalidHandleCr, "no CR", |b| {
        no_crs(b).into_iter().map(|cr| call!(cr_query(cr))).collect()
    }),
    refused_as(
        "cr_query",
        InvalidParameter,
        Subtype::InvalidArg2,
        "the mask (a C caller's) has undefined bits",
        |b| {
            let (cr, _) = b.request();
            [0x20, u32::MAX].map(|bits| call!(cr_query_masked(cr, bits))).into()
        },
    ),
    impossible("cr_query", InvalidParameter, "the parameter pointer is null", BY_VALUE),
    succeeds("cr_query", "the peer's address, port and private data", |b| {
        let (cr, peer) = b.request();
        let port = b.net.nodes[1].ep_query(peer).unwrap().local_port;
        let asked = ok!(b, cr_query(cr));
        assert_eq!((asked.remote_address, asked.remote_port, asked.local_ep), (address(1), port, None));
        assert!(asked.private_data.starts_with(b"please"));
    }),
    refused_as("cr_accept", InvalidHandle, Subtype::InvalidHandleCr, "no CR", |b| {
        let ep = b.endpoint();
        no_crs(b).into_iter().map(|cr| call!(cr_accept(cr, Some(ep), b""))).collect()
    }),
    refused_as(
        "cr_accept",
        InvalidHandle,
        Subtype::InvalidHandleEp,
        "the EP is none, or missing while the CR carries none",
        |b| {
            let (cr, _) = b.request();
            let mut calls = vec![call!(cr_accept(cr, None, b""))];
            calls.extend(no_eps(b).into_iter().map(|ep| call!(cr_accept(cr, Some(ep), b""))));
            calls
        },
    ),
    refused_as(
        "cr_accept",
        InvalidHandle,
        Subtype::InvalidHandleEp,
        "an EP is given though the CR carries one",
        |b| {
            let ((_, reserved, ..), (_, made, _), ep) = (b.passive(), b.tentative(), b.endpoint());
            vec![call!(cr_accept(reserved, Some(ep), b"")), call!(cr_accept(made, Some(ep), b""))]
        },
    ),
    refused_as(
        "cr_accept",
        InvalidHandle,
        Subtype::InvalidHandleEp,
        "the provider's EP has not been given a protection zone and EVDs",
        |b| {
            let (_, made, _) = b.tentative();
            vec![call!(cr_accept(made, None, b""))]
        },
    ),
    refused_as(
        "cr_accept",
        InvalidHandle,
        Subtype::InvalidHandleEp,
        "the EP has no protection zone or no connect EVD",
        |b| {
            let h = b.here;
            let (cr, _) = b.request();
            let a = b.a();
            let no_pz =
                a.ep_create(h.ia, None, Some(h.recv), Some(h.request), Some(h.connect), None).unwrap();
            let no_evd = a.ep_create(h.ia, Some(h.pz), Some(h.recv), Some(h.request), None, None).unwrap();
            vec![call!(cr_accept(cr, Some(no_pz), b"")), call!(cr_accept(cr, Some(no_evd), b""))]
        },
    ),
    refused_as(
        "cr_accept",
        InvalidParameter,
        Subtype::InvalidArg3,
        "more private data than max_private_data_size",
        |b| {
            let ((cr, _), ep, ia) = (b.request(), b.endpoint(), b.here.ia);
            let most = b.a().ia_query(ia).unwrap().2.max_private_data_size as usize;
            [most + 1, 300, 70_000]
                .map(|len| vec![7; len])
                .map(|data| call!(cr_accept(cr, Some(ep), &data)))
                .into()
        },
    ),
    impossible(
        "cr_accept",
        InvalidParameter,
        "the size of the private data is negative, or its pointer null",
        A_SLICE,
    ),
    refused("cr_accept", InvalidState, "the EP given is not unconnected", |b| {
        // A request waits while the EPs come to their states; asking anew would run the peer.
        let (cr, _) = b.request();
        let eps = b.eps_not_in(&[EpState::Unconnected]);
        eps.into_iter().map(|ep| call!(cr_accept(cr, Some(ep), b""))).collect()
    }),
    succeeds("cr_accept", "ESTABLISHED on both sides; the CR is gone", |b| {
        let (cr, peer) = b.request();
        let ep = b.endpoint();
        ok!(b, cr_accept(cr, Some(ep), b"come in"));
        assert_eq!(b.a().ep_get_status(ep).unwrap().state, EpState::CompletionPending);
        assert!(b.a().cr_query(cr).unwrap_err().is(InvalidHandle));
        assert_eq!(b.connection_event(0, ep), ConnectionEvent::Established);
        assert_eq!(b.connection_event(1, peer), ConnectionEvent::Established);
        assert!(b.net.nodes[1].ep_private_data(peer).unwrap().starts_with(b"come in"));
        assert!(b.a().ep_private_data(ep).unwrap().is_empty(), "nothing for the passive side");
    }),
    succeeds("cr_accept", "a request at a reserved service point, with the EP reserved", |b| {
        let (ep, cr, rsp, peer) = b.passive();
        assert_eq!(b.a().cr_query(cr).unwrap().local_ep, Some(ep));
        ok!(b, cr_accept(cr, None, b""));
        assert_eq!(b.connection_event(0, ep), ConnectionEvent::Established);
        assert_eq!(b.connection_event(1, peer), ConnectionEvent::Established);
        b.a().rsp_free(rsp).unwrap();
    }),
    refused_as("cr_reject", InvalidHandle, Subtype::InvalidHandleCr, "no CR", |b| {
        no_crs(b).into_iter().map(|cr| call!(cr_reject(cr))).collect()
    }),
    succeeds("cr_reject", "PEER_REJECTED; the CR is gone", |b| {
        let (cr, peer) = b.request();
        ok!(b, cr_reject(cr));
        assert!(b.a().cr_query(cr).unwrap_err().is(InvalidHandle));
        assert_eq!(b.connection_event(1, peer), ConnectionEvent::PeerRejected);
        assert_eq!(b.net.nodes[1].ep_get_status(peer).unwrap().state, EpState::Disconnected);
    }),
    succeeds("cr_reject", "a reserved EP is unconnected again, the provider's is gone", |b| {
        let (ep, cr, _, peer) = b.passive();
        ok!(b, cr_reject(cr));
        assert_eq!(b.a().ep_get_status(ep).unwrap().state, EpState::Unconnected);
        assert_eq!(b.connection_event(1, peer), ConnectionEvent::PeerRejected);
        let (ep, cr, peer) = b.tentative();
        ok!(b, cr_reject(cr));
        assert!(b.a().ep_query(ep).unwrap_err().is(InvalidHandle));
        assert_eq!(b.connection_event(1, peer), ConnectionEvent::PeerRejected);
    }),
    refused_as("cr_handoff", InvalidHandle, Subtype::InvalidHandleCr, "no CR", |b| {
        let h = b.here;
        b.a().psp_create(h.ia, 60, h.cr, PspFlags::Consumer).unwrap();
        no_crs(b).into_iter().map(|cr| call!(cr_handoff(cr, 60))).collect()
    }),
    refused("cr_handoff", InvalidParameter, "no service point of the IA owns the qualifier", |b| {
        let (cr, _) = b.request();
        let (other, _) = b.a().ia_open("ib0", 8, None).unwrap();
        let evd = b.a().evd_create(other, 8, None, EvdFlags::CR).unwrap();
        b.a().psp_create(other, 61, evd, PspFlags::Consumer).unwrap();
        [0, 61, 62, u64::MAX].map(|qualifier| call!(cr_handoff(cr, qualifier))).into()
    }),
    succeeds("cr_handoff", "a fresh request at the other service point, the private data with it", |b| {
        let h = b.here;
        let psp = b.a().psp_create(h.ia, 63, h.cr, PspFlags::Consumer).unwrap();
        let (cr, peer) = b.request();
        ok!(b, cr_handoff(cr, 63));
        assert!(b.a().cr_query(cr).unwrap_err().is(InvalidHandle));
        let fresh = match b.net.event(0, h.cr) {
            EventData::ConnectionRequest { sp, conn_qual: 63, cr, .. } if sp == ServicePoint::Psp(psp) => cr,
            other => panic!("{other:?}"),
        };
        assert!(b.a().cr_query(fresh).unwrap().private_data.starts_with(b"please"));
        let ep = b.endpoint();
        b.a().cr_accept(fresh, Some(ep), b"").unwrap();
        assert_eq!(b.connection_event(1, peer), ConnectionEvent::Established);
    }),
];

tests! { cr_query cr_accept cr_reject cr_handoff }

//! What can be changed of an endpoint, and the buffers that it holds (uDAPL 1.2, `dat_ep_modify`, `dat_ep_recv_query`).

use crate::bench::{ALL_STATES, Bench, NONE};
use crate::ep::no_eps;
use crate::registry::{Call, Row, impossible, refused, refused_as, succeeds};
use crate::{call, ok, tests};
use dat_nostd::ReturnType::*;
use dat_nostd::*;

/// `ep_modify` of a field to what it is.
fn touch(b: &mut Bench, ep: EpHandle, mask: EpFields) -> Call {
    let parameters = b.a().ep_query(ep).unwrap();
    call!(ep_modify(ep, mask, &parameters))
}

/// `ep_modify` of an unconnected EP to another value.
fn change(b: &mut Bench, mask: EpFields, change: impl Fn(&mut EpParameters)) -> Call {
    let ep = b.endpoint();
    let mut parameters = b.a().ep_query(ep).unwrap();
    change(&mut parameters);
    call!(ep_modify(ep, mask, &parameters))
}

/// What no state allows.
const NEVER: [EpFields; 8] = [
    EpFields::IA_HANDLE,
    EpFields::EP_STATE,
    EpFields::LOCAL_IA_ADDRESS_PTR,
    EpFields::LOCAL_PORT_QUAL,
    EpFields::REMOTE_IA_ADDRESS_PTR,
    EpFields::REMOTE_PORT_QUAL,
    EpFields::SRQ_HANDLE,
    EpFields::SRQ_SOFT_HW,
];

/// What unconnected, reserved, passive and tentative EPs allow.
const EARLY: [EpFields; 17] = [
    EpFields::RECV_EVD_HANDLE,
    EpFields::REQUEST_EVD_HANDLE,
    EpFields::CONNECT_EVD_HANDLE,
    EpFields::SERVICE_TYPE,
    EpFields::MAX_MESSAGE_SIZE,
    EpFields::MAX_RDMA_SIZE,
    EpFields::QOS,
    EpFields::RECV_COMPLETION_FLAGS,
    EpFields::REQUEST_COMPLETION_FLAGS,
    EpFields::MAX_RECV_DTOS,
    EpFields::MAX_REQUEST_DTOS,
    EpFields::MAX_RECV_IOV,
    EpFields::MAX_REQUEST_IOV,
    EpFields::MAX_RDMA_READ_IN,
    EpFields::MAX_RDMA_READ_OUT,
    EpFields::MAX_RDMA_READ_IOV,
    EpFields::MAX_RDMA_WRITE_IOV,
];

const EARLY_STATES: [EpState; 4] = [
    EpState::Unconnected,
    EpState::Reserved,
    EpState::PassiveConnectionPending,
    EpState::TentativeConnectionPending,
];

pub const ROWS: &[Row] = &[
    refused_as("ep_modify", InvalidHandle, Subtype::InvalidHandleEp, "no EP", |b| {
        let ep = b.here.ep;
        let parameters = b.a().ep_query(ep).unwrap();
        no_eps(b).into_iter().map(|ep| call!(ep_modify(ep, EpFields::MAX_RECV_DTOS, &parameters))).collect()
    }),
    refused_as(
        "ep_modify",
        InvalidParameter,
        Subtype::InvalidArg2,
        "the mask names what cannot be changed, or nothing that exists",
        |b| {
            let ep = b.endpoint();
            let mut calls: Vec<Call> = NEVER.into_iter().map(|field| touch(b, ep, field)).collect();
            calls.push(touch(b, ep, EpFields::MAX_RECV_DTOS | EpFields::EP_STATE));
            calls.push(touch(b, ep, EpFields::from_bits_retain(0x800)));
            calls
        },
    ),
    refused_as(
        "ep_modify",
        InvalidParameter,
        Subtype::InvalidArg3,
        "a value is invalid or unsupported",
        |b| {
            let (dead, connect, recv) = (b.dead, b.here.connect, b.here.recv);
            vec![
                change(b, EpFields::PZ_HANDLE, |p| p.pz = Some(dead.pz)),
                change(b, EpFields::RECV_EVD_HANDLE, |p| p.recv_evd = Some(dead.evd)),
                change(b, EpFields::RECV_EVD_HANDLE, |p| p.recv_evd = Some(connect)),
                change(b, EpFields::RECV_EVD_HANDLE, |p| p.recv_evd = None),
                change(b, EpFields::REQUEST_EVD_HANDLE, |p| p.request_evd = Some(connect)),
                change(b, EpFields::REQUEST_EVD_HANDLE, |p| p.request_evd = None),
                change(b, EpFields::CONNECT_EVD_HANDLE, |p| p.connect_evd = Some(recv)),
                change(b, EpFields::MAX_RECV_DTOS, |p| p.attributes.max_recv_dtos = 0),
                change(b, EpFields::MAX_RECV_DTOS, |p| p.attributes.max_recv_dtos = u32::MAX),
                change(b, EpFields::MAX_REQUEST_DTOS, |p| p.attributes.max_request_dtos = u32::MAX),
                change(b, EpFields::MAX_RECV_IOV, |p| p.attributes.max_recv_iov = 1000),
                change(b, EpFields::MAX_REQUEST_IOV, |p| p.attributes.max_request_iov = 1000),
                change(b, EpFields::MAX_RDMA_READ_IN, |p| p.attributes.max_rdma_read_in = 1000),
                change(b, EpFields::MAX_RDMA_READ_OUT, |p| p.attributes.max_rdma_read_out = 1000),
                change(b, EpFields::QOS, |p| p.attributes.qos = Qos::Economy),
                change(b, EpFields::MAX_MESSAGE_SIZE, |p| p.attributes.max_message_size = u64::MAX),
                change(b, EpFields::RECV_COMPLETION_FLAGS, |p| {
                    p.attributes.recv_completion_flags = CompletionFlags::SUPPRESS;
                }),
                // Other streams on the EVD are in another mode.
                change(b, EpFields::RECV_COMPLETION_FLAGS, |p| {
                    p.attributes.recv_completion_flags = CompletionFlags::UNSIGNALLED;
                }),
            ]
        },
    ),
    refused("ep_modify", InvalidState, "the state forbids the change of that field", |b| {
        let mut calls = Vec::new();
        for state in ALL_STATES {
            let ep = b.ep_in(*state);
            if !EARLY_STATES.contains(state) {
                calls.extend(EARLY.into_iter().map(|field| touch(b, ep, field)));
            }
            if !matches!(state, EpState::Unconnected | EpState::TentativeConnectionPending) {
                calls.push(touch(b, ep, EpFields::PZ_HANDLE));
            }
        }
        calls
    }),
    refused(
        "ep_modify",
        InvalidState,
        "receives are posted, and their completion flags are to change",
        |b| {
            let (h, ep) = (b.here, b.endpoint());
            b.a().ep_post_recv(ep, &[h.segment(0, 8)], 1, NONE).unwrap();
            let own = b.a().evd_create(h.ia, 64, None, EvdFlags::DTO).unwrap();
            let mut parameters = b.a().ep_query(ep).unwrap();
            parameters.recv_evd = Some(own);
            parameters.attributes.recv_completion_flags = CompletionFlags::UNSIGNALLED;
            vec![call!(ep_modify(
                ep,
                EpFields::RECV_EVD_HANDLE | EpFields::RECV_COMPLETION_FLAGS,
                &parameters
            ))]
        },
    ),
    succeeds("ep_modify", "every field that can be changed, alone and together", |b| {
        let h = b.here;
        for state in EARLY_STATES {
            let ep = b.ep_in(state);
            let parameters = b.a().ep_query(ep).unwrap();
            for field in EARLY {
                ok!(b, ep_modify(ep, field, &parameters));
                assert_eq!(b.a().ep_query(ep), Ok(parameters), "{field:?} to what it is, in {state:?}");
            }
        }
        let (ep, pz) = (b.endpoint(), b.a().pz_create(h.ia).unwrap());
        let mut wanted = b.a().ep_query(ep).unwrap();
        wanted.pz = Some(pz);
        (wanted.attributes.max_recv_dtos, wanted.attributes.max_request_dtos) = (7, 9);
        (wanted.attributes.max_recv_iov, wanted.attributes.max_request_iov) = (2, 3);
        let mask = EpFields::PZ_HANDLE
            | EpFields::MAX_RECV_DTOS
            | EpFields::MAX_REQUEST_DTOS
            | EpFields::MAX_RECV_IOV
            | EpFields::MAX_REQUEST_IOV;
        ok!(b, ep_modify(ep, mask, &wanted));
        let found = b.a().ep_query(ep).unwrap();
        assert_eq!(
            (found.pz, found.attributes.max_recv_dtos, found.attributes.max_request_dtos),
            (Some(pz), 7, 9)
        );
        for cookie in 0..7 {
            b.a().ep_post_recv(ep, &[], cookie, NONE).unwrap();
        }
        assert!(b.a().ep_post_recv(ep, &[], 7, NONE).unwrap_err().is(InsufficientResources));
    }),
    succeeds("ep_modify", "the provider's EP gets its zone and EVDs, and connects", |b| {
        let h = b.here;
        let (ep, cr, peer) = b.tentative();
        let mut wanted = b.a().ep_query(ep).unwrap();
        (wanted.pz, wanted.recv_evd) = (Some(h.pz), Some(h.recv));
        (wanted.request_evd, wanted.connect_evd) = (Some(h.request), Some(h.connect));
        (wanted.attributes.max_recv_dtos, wanted.attributes.max_request_dtos) = (4, 4);
        let mask = EpFields::PZ_HANDLE
            | EpFields::RECV_EVD_HANDLE
            | EpFields::REQUEST_EVD_HANDLE
            | EpFields::CONNECT_EVD_HANDLE
            | EpFields::MAX_RECV_DTOS
            | EpFields::MAX_REQUEST_DTOS;
        ok!(b, ep_modify(ep, mask, &wanted));
        b.a().cr_accept(cr, None, b"").unwrap();
        assert_eq!(b.connection_event(0, ep), ConnectionEvent::Established);
        assert_eq!(b.connection_event(1, peer), ConnectionEvent::Established);
    }),
    refused_as("ep_recv_query", InvalidHandle, Subtype::InvalidHandleEp, "no EP", |b| {
        no_eps(b).into_iter().map(|ep| call!(ep_recv_query(ep))).collect()
    }),
    impossible("ep_recv_query", ModelNotSupported, "neither count is supported", "both are"),
    impossible("ep_recv_query", InvalidParameter, "listed, without a parameter to be wrong", "there is none"),
    succeeds("ep_recv_query", "receives posted, less those completed, dequeued or not", |b| {
        let (h, t) = (b.here, b.there);
        let (ep, peer) = b.connection();
        for cookie in 0..5 {
            b.a().ep_post_recv(ep, &[h.segment(0, 8)], cookie, NONE).unwrap();
        }
        assert_eq!(ok!(b, ep_recv_query(ep)).nbufs_allocated, 5);
        b.net.nodes[1].ep_post_send(peer, &[t.segment(0, 8)], 1, NONE).unwrap();
        b.settle();
        assert_eq!(ok!(b, ep_recv_query(ep)).nbufs_allocated, 4, "completed, and not dequeued");
        b.net.dto(0, h.recv);
        let found = ok!(b, ep_recv_query(ep));
        assert_eq!(found.nbufs_allocated, 4);
        assert!(found.bufs_alloc_span >= found.nbufs_allocated);
    }),
    succeeds(
        "ep_recv_query",
        "on an SRQ: unknown while messages can come, as the page allows; none before",
        |b| {
            let (_, ep) = b.shared();
            assert_eq!(ok!(b, ep_recv_query(ep)), EpRecvInfo { nbufs_allocated: 0, bufs_alloc_span: 0 });
            let (cr, peer) = b.request();
            b.a().cr_accept(cr, Some(ep), b"").unwrap();
            assert_eq!(b.connection_event(0, ep), ConnectionEvent::Established);
            assert_eq!(b.connection_event(1, peer), ConnectionEvent::Established);
            let unknown = EpRecvInfo { nbufs_allocated: VALUE_UNKNOWN, bufs_alloc_span: VALUE_UNKNOWN };
            assert_eq!(ok!(b, ep_recv_query(ep)), unknown);
            b.a().ep_disconnect(ep, CloseFlags::Abrupt).unwrap();
            assert_eq!(b.connection_event(0, ep), ConnectionEvent::Disconnected);
            assert_eq!(ok!(b, ep_recv_query(ep)).nbufs_allocated, 0);
        },
    ),
    refused_as("ep_set_watermark", InvalidHandle, Subtype::InvalidHandleEp, "no EP", |b| {
        no_eps(b).into_iter().map(|ep| call!(ep_set_watermark(ep, 1, 1))).collect()
    }),
    refused("ep_set_watermark", InvalidParameter, "negative, and not DAT_WATERMARK_INFINITE", |b| {
        let (_, ep) = b.shared();
        vec![
            call!(ep_set_watermark(ep, -2, 5)),
            call!(ep_set_watermark(ep, i32::MIN, 5)),
            call!(ep_set_watermark(ep, 5, -2)),
            call!(ep_set_watermark(ep, 5, i32::MIN)),
        ]
    }),
    impossible("ep_set_watermark", ModelNotSupported, "the provider has no high watermarks", "it has"),
    succeeds("ep_set_watermark", "any value, on an SRQ and on the EP's own receive queue", |b| {
        let ((_, ep), own) = (b.shared(), b.endpoint());
        for (soft, hard) in [(1, 2), (0, WATERMARK_INFINITE), (WATERMARK_INFINITE, i32::MAX), (-1, -1)] {
            ok!(b, ep_set_watermark(own, soft, hard));
        }
        for (soft, hard) in [(1, 2), (0, WATERMARK_INFINITE), (WATERMARK_INFINITE, i32::MAX), (-1, -1)] {
            ok!(b, ep_set_watermark(ep, soft, hard));
        }
    }),
];

tests! { ep_modify ep_recv_query ep_set_watermark }

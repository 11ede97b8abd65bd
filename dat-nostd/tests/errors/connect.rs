//! Connections, the active side and the end (uDAPL 1.2, `dat_ep_connect`, `dat_ep_disconnect`).

use crate::bench::NONE;
use crate::common::address;
use crate::ep::no_eps;
use crate::registry::{A_SLICE, AN_ENUM, Call, Row, impossible, refused, refused_as, succeeds};
use crate::{call, ok, tests};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use dat_nostd::ReturnType::*;
use dat_nostd::*;

const DEFAULT: ConnectFlags = ConnectFlags::Default;
const BEST: Qos = Qos::BestEffort;

/// Node 0's EP asks node 1.
fn connect(ep: EpHandle) -> Call {
    let to = address(1);
    call!(ep_connect(ep, &to, 40, 1_000_000, b"", BEST, DEFAULT))
}

pub const ROWS: &[Row] = &[
    refused_as("ep_connect", InvalidHandle, Subtype::InvalidHandleEp, "no EP", |b| {
        no_eps(b).into_iter().map(connect).collect()
    }),
    refused("ep_connect", InvalidState, "the EP is not unconnected", |b| {
        b.eps_not_in(&[EpState::Unconnected]).into_iter().map(connect).collect()
    }),
    refused_as(
        "ep_connect",
        InvalidState,
        Subtype::InvalidStateEpNotready,
        "the EP has no protection zone or no connect EVD",
        |b| {
            let h = b.here;
            let a = b.a();
            let no_pz =
                a.ep_create(h.ia, None, Some(h.recv), Some(h.request), Some(h.connect), None).unwrap();
            let no_evd = a.ep_create(h.ia, Some(h.pz), Some(h.recv), Some(h.request), None, None).unwrap();
            vec![connect(no_pz), connect(no_evd)]
        },
    ),
    refused_as(
        "ep_connect",
        InvalidAddress,
        Subtype::InvalidAddressMalformed,
        "no host can have the address",
        |b| {
            let ep = b.endpoint();
            let bad = [Ipv4Addr::UNSPECIFIED, Ipv4Addr::new(224, 0, 0, 1), Ipv4Addr::new(239, 1, 2, 3)];
            bad.map(IpAddr::V4).map(|to| call!(ep_connect(ep, &to, 40, 1000, b"", BEST, DEFAULT))).into()
        },
    ),
    refused_as(
        "ep_connect",
        InvalidAddress,
        Subtype::InvalidAddressUnsupported,
        "the address is of another family than the IA's",
        |b| {
            let (ep, to) = (b.endpoint(), IpAddr::V6(Ipv6Addr::LOCALHOST));
            vec![call!(ep_connect(ep, &to, 40, 1000, b"", BEST, DEFAULT))]
        },
    ),
    refused(
        "ep_connect",
        InvalidParameter,
        "the qualifier names no service (0; RDMA-CM: a port's service id)",
        |b| {
            let (ep, to) = (b.endpoint(), address(1));
            [0, 0x0106_0000, 0x0106_ffff]
                .map(|qualifier| call!(ep_connect(ep, &to, qualifier, 1000, b"", BEST, DEFAULT)))
                .into()
        },
    ),
    refused("ep_connect", InvalidParameter, "the time-out is 0", |b| {
        let (ep, to) = (b.endpoint(), address(1));
        vec![call!(ep_connect(ep, &to, 40, 0, b"", BEST, DEFAULT))]
    }),
    refused_as(
        "ep_connect",
        InvalidParameter,
        Subtype::InvalidArg5,
        "more private data than max_private_data_size",
        |b| {
            let (ep, to) = (b.endpoint(), address(1));
            let ia = b.here.ia;
            let most = b.a().ia_query(ia).unwrap().2.max_private_data_size as usize;
            [most + 1, 200, 70_000]
                .map(|len| vec![0xa5; len])
                .map(|data| call!(ep_connect(ep, &to, 40, 1000, &data, BEST, DEFAULT)))
                .into()
        },
    ),
    impossible(
        "ep_connect",
        InvalidParameter,
        "the size of the private data is negative, or its pointer null",
        A_SLICE,
    ),
    refused("ep_connect", ModelNotSupported, "a quality of service other than best effort", |b| {
        let (ep, to) = (b.endpoint(), address(1));
        [Qos::HighThroughput, Qos::LowLatency, Qos::Economy, Qos::Premium]
            .map(|qos| call!(ep_connect(ep, &to, 40, 1000, b"", qos, DEFAULT)))
            .into()
    }),
    refused("ep_connect", ModelNotSupported, "multipath", |b| {
        let (ep, to) = (b.endpoint(), address(1));
        vec![call!(ep_connect(ep, &to, 40, 1000, b"", BEST, ConnectFlags::Multipath))]
    }),
    impossible(
        "ep_connect",
        InsufficientResources,
        "no room for another connection",
        "the attempt is asynchronous: NON_PEER_REJECTED tells of a full connection manager",
    ),
    succeeds("ep_connect", "one event tells the outcome: ESTABLISHED, with the peer's private data", |b| {
        let t = b.there;
        let psp = b.net.nodes[1].psp_create(t.ia, 41, t.cr, PspFlags::Consumer).unwrap();
        let (ep, to) = (b.endpoint(), address(1));
        ok!(b, ep_connect(ep, &to, 41, 1_000_000, b"who is there", BEST, DEFAULT));
        assert_eq!(b.a().ep_get_status(ep).unwrap().state, EpState::ActiveConnectionPending);
        let cr = b.net.request(&t, psp);
        assert!(b.net.nodes[1].cr_query(cr).unwrap().private_data.starts_with(b"who is there"));
        b.net.nodes[1].cr_accept(cr, Some(t.ep), b"node 1").unwrap();
        assert_eq!(b.connection_event(0, ep), ConnectionEvent::Established);
        assert!(b.a().ep_private_data(ep).unwrap().starts_with(b"node 1"));
        assert_eq!(b.a().ep_get_status(ep).unwrap().state, EpState::Connected);
    }),
    refused_as("ep_dup_connect", InvalidHandle, Subtype::InvalidHandleEp, "either is no EP", |b| {
        let (pattern, ep) = (b.connection().0, b.endpoint());
        no_eps(b)
            .into_iter()
            .flat_map(|none| {
                [
                    call!(ep_dup_connect(none, pattern, 1000, b"", BEST)),
                    call!(ep_dup_connect(ep, none, 1000, b"", BEST)),
                ]
            })
            .collect()
    }),
    refused("ep_dup_connect", InvalidState, "the EP to connect is not unconnected", |b| {
        let pattern = b.connection().0;
        let eps = b.eps_not_in(&[EpState::Unconnected]);
        eps.into_iter().map(|ep| call!(ep_dup_connect(ep, pattern, 1000, b"", BEST))).collect()
    }),
    refused("ep_dup_connect", InvalidState, "the EP to follow is not connected", |b| {
        let ep = b.endpoint();
        let eps = b.eps_not_in(&[EpState::Connected]);
        eps.into_iter().map(|pattern| call!(ep_dup_connect(ep, pattern, 1000, b"", BEST))).collect()
    }),
    refused_as(
        "ep_dup_connect",
        InvalidState,
        Subtype::InvalidStateEpNotready,
        "the EP has no protection zone or no connect EVD",
        |b| {
            let (h, pattern) = (b.here, b.connection().0);
            let a = b.a();
            let no_pz =
                a.ep_create(h.ia, None, Some(h.recv), Some(h.request), Some(h.connect), None).unwrap();
            let no_evd = a.ep_create(h.ia, Some(h.pz), Some(h.recv), Some(h.request), None, None).unwrap();
            [no_pz, no_evd].map(|ep| call!(ep_dup_connect(ep, pattern, 1000, b"", BEST))).into()
        },
    ),
    refused("ep_dup_connect", InvalidParameter, "the time-out is 0, or too much private data", |b| {
        let (pattern, ep) = (b.connection().0, b.endpoint());
        vec![
            call!(ep_dup_connect(ep, pattern, 0, b"", BEST)),
            call!(ep_dup_connect(ep, pattern, 1000, &[1; 57], BEST)),
            call!(ep_dup_connect(ep, pattern, 1000, &[1; 5000], BEST)),
        ]
    }),
    refused("ep_dup_connect", ModelNotSupported, "a quality of service other than best effort", |b| {
        let (pattern, ep) = (b.connection().0, b.endpoint());
        vec![call!(ep_dup_connect(ep, pattern, 1000, b"", Qos::Premium))]
    }),
    succeeds("ep_dup_connect", "another connection to the same address and qualifier", |b| {
        let t = b.there;
        let psp = b.net.nodes[1].psp_create(t.ia, 42, t.cr, PspFlags::Consumer).unwrap();
        let (first, to) = (b.endpoint(), address(1));
        b.a().ep_connect(first, &to, 42, 1_000_000, b"", BEST, DEFAULT).unwrap();
        let cr = b.net.request(&t, psp);
        b.net.nodes[1].cr_accept(cr, Some(t.ep), b"").unwrap();
        assert_eq!(b.connection_event(0, first), ConnectionEvent::Established);
        let second = b.endpoint();
        ok!(b, ep_dup_connect(second, first, 1_000_000, b"me too", BEST));
        assert_eq!(b.a().ep_get_status(second).unwrap().state, EpState::ActiveConnectionPending);
        let cr = b.net.request(&t, psp);
        assert!(b.net.nodes[1].cr_query(cr).unwrap().private_data.starts_with(b"me too"));
        b.net.nodes[1].cr_reject(cr).unwrap();
        assert_eq!(b.connection_event(0, second), ConnectionEvent::PeerRejected);
    }),
    refused_as("ep_disconnect", InvalidHandle, Subtype::InvalidHandleEp, "no EP", |b| {
        no_eps(b)
            .into_iter()
            .flat_map(|ep| {
                [call!(ep_disconnect(ep, CloseFlags::Abrupt)), call!(ep_disconnect(ep, CloseFlags::Graceful))]
            })
            .collect()
    }),
    impossible("ep_disconnect", InvalidParameter, "the flags are neither abrupt nor graceful", AN_ENUM),
    refused("ep_disconnect", InvalidState, "the EP is unconnected, reserved, passive or tentative", |b| {
        let legal = [
            EpState::ActiveConnectionPending,
            EpState::CompletionPending,
            EpState::Connected,
            EpState::DisconnectPending,
            EpState::Disconnected,
        ];
        b.eps_not_in(&legal)
            .into_iter()
            .flat_map(|ep| {
                [call!(ep_disconnect(ep, CloseFlags::Abrupt)), call!(ep_disconnect(ep, CloseFlags::Graceful))]
            })
            .collect()
    }),
    impossible(
        "ep_disconnect",
        InsufficientResources,
        "no room for what the disconnect needs",
        "what it needs was reserved when the EP was made",
    ),
    succeeds(
        "ep_disconnect",
        "DISCONNECTED on both sides, behind the flushes; nothing on a disconnected EP",
        |b| {
            let h = b.here;
            let (ep, peer) = b.connection();
            b.a().ep_post_recv(ep, &[h.segment(0, 64)], 5, NONE).unwrap();
            ok!(b, ep_disconnect(ep, CloseFlags::Graceful));
            assert_eq!(b.connection_event(0, ep), ConnectionEvent::Disconnected);
            let flushed = b.net.dto(0, h.recv);
            assert_eq!((flushed.user_cookie, flushed.status, flushed.ep), (5, DtoStatus::ErrFlushed, ep));
            assert_eq!(b.connection_event(1, peer), ConnectionEvent::Disconnected);
            ok!(b, ep_disconnect(ep, CloseFlags::Abrupt));
            ok!(b, ep_disconnect(ep, CloseFlags::Graceful));
            b.net.pass(3_000_000_000);
            b.net.empty(0, h.connect);
        },
    ),
];

tests! { ep_connect ep_dup_connect ep_disconnect }

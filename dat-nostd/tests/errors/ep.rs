//! Endpoints, their life (uDAPL 1.2, `dat_ep_*`).

use crate::bench::{Bench, NONE};
use crate::registry::{BY_VALUE, Call, Row, impossible, refused, refused_as, succeeds};
use crate::{call, ok, tests};
use dat_nostd::ReturnType::*;
use dat_nostd::*;

pub fn no_eps(b: &Bench) -> Vec<EpHandle> {
    b.no_handles(HandleType::Ep).into_iter().map(EpHandle::from_bits).collect()
}

/// `ep_create` on node 0's usual objects with these attributes.
fn with(b: &Bench, change: impl Fn(&mut EpAttributes)) -> Call {
    let h = b.here;
    let mut attributes = EpAttributes::DEFAULT;
    change(&mut attributes);
    call!(ep_create(h.ia, Some(h.pz), Some(h.recv), Some(h.request), Some(h.connect), Some(&attributes)))
}

pub const ROWS: &[Row] = &[
    refused_as("ep_create", InvalidHandle, Subtype::InvalidHandleIa, "no IA", |b| {
        let h = b.here;
        let ias = b.no_handles(HandleType::Ia).into_iter().map(IaHandle::from_bits);
        ias.map(|ia| call!(ep_create(ia, Some(h.pz), Some(h.recv), Some(h.request), Some(h.connect), None)))
            .collect()
    }),
    refused_as("ep_create", InvalidHandle, Subtype::InvalidHandlePz, "no protection zone", |b| {
        let h = b.here;
        let pzs = b.no_handles(HandleType::Pz).into_iter().map(PzHandle::from_bits);
        pzs.map(|pz| call!(ep_create(h.ia, Some(pz), Some(h.recv), Some(h.request), Some(h.connect), None)))
            .collect()
    }),
    refused_as(
        "ep_create",
        InvalidHandle,
        Subtype::InvalidHandleEvdRecv,
        "the receive EVD is none, or takes no DTO completions",
        |b| {
            let h = b.here;
            let mut evds = b.no_handles(HandleType::Evd);
            evds.extend([h.connect.bits(), h.cr.bits(), h.asynchronous.bits()]);
            let evds = evds.into_iter().map(EvdHandle::from_bits);
            evds.map(|evd| {
                call!(ep_create(h.ia, Some(h.pz), Some(evd), Some(h.request), Some(h.connect), None))
            })
            .collect()
        },
    ),
    refused_as(
        "ep_create",
        InvalidHandle,
        Subtype::InvalidHandleEvdRequest,
        "the request EVD is none, or takes no DTO completions",
        |b| {
            let h = b.here;
            let mut evds = b.no_handles(HandleType::Evd);
            evds.extend([h.connect.bits(), h.cr.bits(), h.asynchronous.bits()]);
            let evds = evds.into_iter().map(EvdHandle::from_bits);
            evds.map(|evd| call!(ep_create(h.ia, Some(h.pz), Some(h.recv), Some(evd), Some(h.connect), None)))
                .collect()
        },
    ),
    refused_as(
        "ep_create",
        InvalidHandle,
        Subtype::InvalidHandleEvdConn,
        "the connect EVD is none, or takes no connection events",
        |b| {
            let h = b.here;
            let mut evds = b.no_handles(HandleType::Evd);
            evds.extend([h.recv.bits(), h.cr.bits(), h.asynchronous.bits()]);
            let evds = evds.into_iter().map(EvdHandle::from_bits);
            evds.map(|evd| call!(ep_create(h.ia, Some(h.pz), Some(h.recv), Some(h.request), Some(evd), None)))
                .collect()
        },
    ),
    impossible("ep_create", InvalidParameter, "the service type is not RC", "there is no other to name"),
    refused_as(
        "ep_create",
        InvalidParameter,
        Subtype::InvalidArg6,
        "a size or count is above the IA's limit",
        |b| {
            let limits = b.net.nodes[0].ia_query(b.here.ia).unwrap().1;
            let (dtos, iov) = (limits.max_dto_per_ep + 1, limits.max_iov_segments_per_dto + 1);
            let (reads_in, reads_out) =
                (limits.max_rdma_read_per_ep_in + 1, limits.max_rdma_read_per_ep_out + 1);
            vec![
                with(b, |a| a.max_recv_dtos = dtos),
                with(b, |a| a.max_recv_dtos = u32::MAX),
                with(b, |a| a.max_request_dtos = dtos),
                with(b, |a| a.max_request_dtos = u32::MAX),
                with(b, |a| a.max_recv_iov = iov),
                with(b, |a| a.max_request_iov = iov),
                with(b, |a| a.max_request_iov = u32::MAX),
                with(b, |a| a.max_rdma_read_iov = iov),
                with(b, |a| a.max_rdma_write_iov = iov),
                with(b, |a| a.max_rdma_read_in = reads_in),
                with(b, |a| a.max_rdma_read_out = reads_out),
                with(b, |a| a.max_message_size = (1 << 31) + 1),
                with(b, |a| a.max_message_size = u64::MAX),
                with(b, |a| a.max_rdma_size = (1 << 31) + 1),
            ]
        },
    ),
    refused_as(
        "ep_create",
        InvalidParameter,
        Subtype::InvalidArg6,
        "the quality of service is not offered",
        |b| {
            let others = [Qos::HighThroughput, Qos::LowLatency, Qos::Economy, Qos::Premium];
            others.map(|qos| with(b, |a| a.qos = qos)).into()
        },
    ),
    refused_as(
        "ep_create",
        InvalidParameter,
        Subtype::InvalidArg6,
        "completion flags that no EP may have",
        |b| {
            vec![
                with(b, |a| a.recv_completion_flags = CompletionFlags::SUPPRESS),
                with(b, |a| a.recv_completion_flags = CompletionFlags::BARRIER_FENCE),
                with(b, |a| {
                    a.recv_completion_flags = CompletionFlags::UNSIGNALLED | CompletionFlags::SOLICITED_WAIT;
                }),
                with(b, |a| a.recv_completion_flags = CompletionFlags::from_bits_retain(0x40)),
                with(b, |a| a.request_completion_flags = CompletionFlags::from_bits_retain(0x80)),
            ]
        },
    ),
    refused_as(
        "ep_create",
        InvalidParameter,
        Subtype::InvalidArg6,
        "a count of DTOs is 0 with an EVD, or not 0 without",
        |b| {
            let h = b.here;
            let attributes = EpAttributes::DEFAULT;
            vec![
                with(b, |a| a.max_recv_dtos = 0),
                with(b, |a| a.max_request_dtos = 0),
                call!(ep_create(h.ia, Some(h.pz), None, Some(h.request), Some(h.connect), Some(&attributes))),
                call!(ep_create(h.ia, Some(h.pz), Some(h.recv), None, Some(h.connect), Some(&attributes))),
            ]
        },
    ),
    refused_as(
        "ep_create",
        InvalidParameter,
        Subtype::InvalidArg6,
        "completion flags clash with those of other streams on the EVD",
        |b| {
            let h = b.here;
            let unsignalled = EpAttributes {
                recv_completion_flags: CompletionFlags::UNSIGNALLED,
                request_completion_flags: CompletionFlags::UNSIGNALLED,
                ..EpAttributes::DEFAULT
            };
            let one =
                EpAttributes { request_completion_flags: CompletionFlags::EVD_THRESHOLD, ..unsignalled };
            let a = &mut b.net.nodes[0];
            let own = a.evd_create(h.ia, 64, None, EvdFlags::DTO).unwrap();
            a.ep_create(h.ia, Some(h.pz), Some(own), Some(own), Some(h.connect), Some(&unsignalled)).unwrap();
            let mixed = a.evd_create(h.ia, 64, None, EvdFlags::DTO | EvdFlags::CONNECTION).unwrap();
            let solicited = a.evd_create(h.ia, 64, None, EvdFlags::DTO).unwrap();
            let receives = EpAttributes {
                recv_completion_flags: CompletionFlags::SOLICITED_WAIT,
                ..EpAttributes::DEFAULT
            };
            let fresh = a.evd_create(h.ia, 64, None, EvdFlags::DTO).unwrap();
            a.ep_create(h.ia, Some(h.pz), Some(solicited), Some(fresh), Some(h.connect), Some(&receives))
                .unwrap();
            let (pz, connect) = (Some(h.pz), Some(h.connect));
            vec![
                // UNSIGNALLED for one means UNSIGNALLED for all.
                call!(ep_create(h.ia, pz, Some(h.recv), Some(h.request), connect, Some(&unsignalled))),
                call!(ep_create(h.ia, pz, Some(own), Some(own), connect, None)),
                call!(ep_create(h.ia, pz, Some(own), Some(own), connect, Some(&one))),
                // With another stream on the EVD only the threshold's way is legal.
                call!(ep_create(h.ia, pz, Some(mixed), Some(mixed), connect, Some(&unsignalled))),
                // SOLICITED_WAIT for one receive stream means for all, and no other streams.
                call!(ep_create(h.ia, pz, Some(solicited), Some(h.request), connect, None)),
                call!(ep_create(h.ia, pz, Some(solicited), Some(solicited), connect, Some(&receives))),
                call!(ep_create(h.ia, pz, Some(h.recv), Some(solicited), connect, None)),
            ]
        },
    ),
    impossible("ep_create", InvalidParameter, "the pointer for the EP is null", BY_VALUE),
    refused("ep_create", InvalidHandle, "the protection zone or an EVD is of another IA", |b| {
        let h = b.here;
        let (ia, _) = b.a().ia_open("ib0", 8, None).unwrap();
        let attributes = EpAttributes { max_recv_dtos: 0, max_request_dtos: 0, ..EpAttributes::DEFAULT };
        vec![
            call!(ep_create(ia, Some(h.pz), None, None, None, Some(&attributes))),
            call!(ep_create(ia, None, Some(h.recv), None, None, None)),
            call!(ep_create(ia, None, None, Some(h.request), None, None)),
            call!(ep_create(ia, None, None, None, Some(h.connect), None)),
        ]
    }),
    refused("ep_create", InsufficientResources, "no memory is left for its queues", |b| {
        let h = b.here;
        let most = b.net.nodes[0].ia_query(h.ia).unwrap().1.max_dto_per_ep;
        let deep = EpAttributes { max_recv_dtos: most, max_request_dtos: most, ..EpAttributes::DEFAULT };
        let a = &mut b.net.nodes[0];
        let evd = a.evd_create(h.ia, 1, None, EvdFlags::DTO).unwrap();
        let (pz, connect) = (Some(h.pz), Some(h.connect));
        let mut eps = Vec::new();
        while let Ok(ep) = a.ep_create(h.ia, pz, Some(evd), Some(evd), connect, Some(&deep)) {
            eps.push(ep);
        }
        assert!(eps.len() < 16, "memory ends before the places for EPs");
        vec![call!(ep_create(h.ia, pz, Some(evd), Some(evd), connect, Some(&deep)))]
    }),
    refused_as("ep_create", InsufficientResources, Subtype::ResourceTep, "no EP is left", |b| {
        let h = b.here;
        let attributes = EpAttributes { max_recv_dtos: 1, max_request_dtos: 1, ..EpAttributes::DEFAULT };
        let (pz, recv, request, connect) = (Some(h.pz), Some(h.recv), Some(h.request), Some(h.connect));
        let a = &mut b.net.nodes[0];
        while a.ep_create(h.ia, pz, recv, request, connect, Some(&attributes)).is_ok() {}
        vec![
            call!(ep_create(h.ia, pz, recv, request, connect, Some(&attributes))),
            call!(ep_create(h.ia, None, recv, request, None, Some(&attributes))),
        ]
    }),
    impossible(
        "ep_create",
        ModelNotSupported,
        "the provider lacks a model of EPs",
        "it offers all of DAT 1.2",
    ),
    succeeds("ep_create", "with everything, with as little as possible", |b| {
        let b = &mut *b;
        *b = Bench::new();
        let h = b.here;
        let ep = ok!(b, ep_create(h.ia, Some(h.pz), Some(h.recv), Some(h.request), Some(h.connect), None));
        let made = b.a().ep_query(ep).unwrap();
        assert_eq!((made.state, made.pz, made.recv_evd), (EpState::Unconnected, Some(h.pz), Some(h.recv)));
        assert_eq!((made.request_evd, made.connect_evd), (Some(h.request), Some(h.connect)));
        assert_eq!(made.attributes.max_recv_dtos, 16);
        let bare = ok!(b, ep_create(h.ia, None, None, None, None, None));
        let made = b.a().ep_query(bare).unwrap();
        assert_eq!((made.pz, made.recv_evd, made.request_evd, made.connect_evd), (None, None, None, None));
        assert_eq!((made.attributes.max_recv_dtos, made.attributes.max_request_dtos), (0, 0));
    }),
    refused_as("ep_query", InvalidHandle, Subtype::InvalidHandleEp, "no EP", |b| {
        no_eps(b).into_iter().map(|ep| call!(ep_query(ep))).collect()
    }),
    refused_as(
        "ep_query",
        InvalidParameter,
        Subtype::InvalidArg2,
        "the mask (a C caller's) has undefined bits",
        |b| {
            let ep = b.here.ep;
            [0x800, 0x8000_0000, 1 << 63].map(|bits| call!(ep_query_masked(ep, bits))).into()
        },
    ),
    impossible("ep_query", InvalidParameter, "the parameter pointer is null", BY_VALUE),
    succeeds("ep_query", "addresses and ports of a connection", |b| {
        let (ep, peer) = b.connection();
        let mine = ok!(b, ep_query(ep));
        let theirs = b.net.nodes[1].ep_query(peer).unwrap();
        assert_eq!((mine.local_address, mine.remote_address), (theirs.remote_address, theirs.local_address));
        assert_eq!((mine.local_port, mine.remote_port), (theirs.remote_port, theirs.local_port));
        assert_eq!((mine.state, theirs.state), (EpState::Connected, EpState::Connected));
    }),
    refused_as("ep_get_status", InvalidHandle, Subtype::InvalidHandleEp, "no EP", |b| {
        no_eps(b).into_iter().map(|ep| call!(ep_get_status(ep))).collect()
    }),
    succeeds("ep_get_status", "state and idleness of both directions", |b| {
        let h = b.here;
        let ep = b.endpoint();
        let idle = EpStatus { state: EpState::Unconnected, recv_idle: true, request_idle: true };
        assert_eq!(ok!(b, ep_get_status(ep)), idle);
        b.a().ep_post_recv(ep, &[h.segment(0, 8)], 1, NONE).unwrap();
        assert_eq!(ok!(b, ep_get_status(ep)), EpStatus { recv_idle: false, ..idle });
    }),
    refused_as("ep_reset", InvalidHandle, Subtype::InvalidHandleEp, "no EP", |b| {
        no_eps(b).into_iter().map(|ep| call!(ep_reset(ep))).collect()
    }),
    refused("ep_reset", InvalidState, "the EP is neither disconnected nor unconnected", |b| {
        let eps = b.eps_not_in(&[EpState::Unconnected, EpState::Disconnected]);
        eps.into_iter().map(|ep| call!(ep_reset(ep))).collect()
    }),
    succeeds("ep_reset", "unconnected again; nothing happens to one that is", |b| {
        let ep = b.ep_in(EpState::Disconnected);
        for _ in 0..2 {
            ok!(b, ep_reset(ep));
            assert_eq!(b.a().ep_get_status(ep).unwrap().state, EpState::Unconnected);
        }
        assert!(b.a().ep_private_data(ep).unwrap().is_empty());
    }),
    refused_as("ep_free", InvalidHandle, Subtype::InvalidHandleEp, "no EP", |b| {
        no_eps(b).into_iter().map(|ep| call!(ep_free(ep))).collect()
    }),
    refused(
        "ep_free",
        InvalidState,
        "a service point or a request holds the EP: reserved, passive, tentative",
        |b| {
            let held = [b.ep_in(EpState::Reserved), b.passive().0, b.tentative().0];
            held.map(|ep| call!(ep_free(ep))).into()
        },
    ),
    succeeds("ep_free", "in every state but reserved, passive and tentative", |b| {
        for state in [
            EpState::Unconnected,
            EpState::ActiveConnectionPending,
            EpState::CompletionPending,
            EpState::Connected,
            EpState::DisconnectPending,
            EpState::Disconnected,
        ] {
            let ep = b.ep_in(state);
            ok!(b, ep_free(ep));
            assert!(b.a().ep_query(ep).unwrap_err().is(InvalidHandle), "{state:?}");
        }
    }),
];

tests! { ep_create ep_query ep_get_status ep_reset ep_free }

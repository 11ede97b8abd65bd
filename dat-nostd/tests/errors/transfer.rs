//! Posts (uDAPL 1.2, `dat_ep_post_*`).

use crate::bench::{Bench, NONE};
use crate::ep::no_eps;
use crate::registry::{Call, Row, impossible, refused, refused_as, succeeds};
use crate::{call, ok, tests};
use dat_nostd::ReturnType::*;
use dat_nostd::*;

/// States in which requests may be posted.
const POSTABLE: [EpState; 2] = [EpState::Connected, EpState::Disconnected];
/// Why local read is never missing.
const ALWAYS_READABLE: &str = "InfiniBand always grants local read, and consumers rely on it (section 15)";

/// Connections are numbered, so that none is in two states.
fn connected(b: &mut Bench) -> EpHandle {
    b.connection().0
}

/// Segments that reach outside node 0's region, and combinations of address and length that overflow.
pub fn outside(b: &Bench) -> Vec<LmrTriplet> {
    let h = b.here;
    let (context, start, size) = (h.lmr.lmr_context, h.lmr.registered_address, h.lmr.registered_size);
    [
        (start, size + 1),
        (start + 1, size),
        (start + size, 1),
        (start - 1, 2),
        (0, 1),
        (u64::MAX, 1),
        (start, u64::MAX),
        (start + 8, u64::MAX - start - 7),
        (u64::MAX - 3, 8),
    ]
    .map(|(at, len)| LmrTriplet::new(context, at, len))
    .into()
}

/// A segment of length 0 that names nothing: neither its context nor its address is looked at.
pub fn nothing() -> LmrTriplet {
    LmrTriplet::new(u32::MAX, u64::MAX, 0)
}

/// Contexts that name no region: never given, of an LMR that is gone, of another generation.
pub fn no_contexts(b: &Bench) -> Vec<LmrTriplet> {
    let h = b.here;
    let (at, good) = (h.lmr.registered_address, h.lmr.lmr_context);
    [0, u32::MAX, b.dead.lmr_context, good ^ 1, good ^ 0x0100_0000]
        .map(|context| LmrTriplet::new(context, at, 8))
        .into()
}

/// A segment of a region in another zone.
pub fn other_zone(b: &mut Bench) -> LmrTriplet {
    let h = b.here;
    let a = b.a();
    let pz = a.pz_create(h.ia).unwrap();
    let lmr = a.lmr_create(h.ia, h.memory, pz, MemPriv::ALL).unwrap();
    LmrTriplet::new(lmr.lmr_context, lmr.registered_address, 8)
}

/// A segment without local write.
pub fn read_only(b: &mut Bench) -> LmrTriplet {
    let h = b.here;
    let lmr = b.a().lmr_create(h.ia, h.memory, h.pz, MemPriv::READ).unwrap();
    LmrTriplet::new(lmr.lmr_context, lmr.registered_address, 8)
}

fn send(ep: EpHandle, iov: Vec<LmrTriplet>, flags: CompletionFlags) -> Call {
    call!(ep_post_send(ep, &iov, 1, flags))
}

fn recv(ep: EpHandle, iov: Vec<LmrTriplet>, flags: CompletionFlags) -> Call {
    call!(ep_post_recv(ep, &iov, 1, flags))
}

/// Into or from 4096 bytes of the peer.
fn read(b: &Bench, ep: EpHandle, iov: Vec<LmrTriplet>, flags: CompletionFlags) -> Call {
    let remote = b.there.remote(0, iov.iter().map(|segment| segment.segment_length.min(4096) as usize).sum());
    call!(ep_post_rdma_read(ep, &iov, 1, &remote, flags))
}

fn write(b: &Bench, ep: EpHandle, iov: Vec<LmrTriplet>, flags: CompletionFlags) -> Call {
    let remote = RmrTriplet { segment_length: u64::MAX, ..b.there.remote(0, 0) };
    call!(ep_post_rdma_write(ep, &iov, 1, &remote, flags))
}

/// A call that makes a request of an EP of some segments.
type Post = fn(&Bench, EpHandle, Vec<LmrTriplet>, CompletionFlags) -> Call;

fn post_send(_: &Bench, ep: EpHandle, iov: Vec<LmrTriplet>, flags: CompletionFlags) -> Call {
    send(ep, iov, flags)
}

fn post_recv(_: &Bench, ep: EpHandle, iov: Vec<LmrTriplet>, flags: CompletionFlags) -> Call {
    recv(ep, iov, flags)
}

fn on_no_ep(b: &mut Bench, post: Post) -> Vec<Call> {
    let h = b.here;
    no_eps(b).into_iter().map(|ep| post(b, ep, vec![h.segment(0, 8)], NONE)).collect()
}

fn in_wrong_states(b: &mut Bench, post: Post) -> Vec<Call> {
    let h = b.here;
    b.eps_not_in(&POSTABLE).into_iter().map(|ep| post(b, ep, vec![h.segment(0, 8)], NONE)).collect()
}

fn out_of_range(b: &mut Bench, post: Post) -> Vec<Call> {
    let (h, ep) = (b.here, connected(b));
    let mut calls: Vec<Call> =
        outside(b).into_iter().map(|segment| post(b, ep, vec![segment], NONE)).collect();
    // Not the first segment.
    calls.push(post(b, ep, vec![h.segment(0, 8), outside(b)[0]], NONE));
    calls
}

fn too_many(b: &mut Bench, post: Post) -> Vec<Call> {
    let (h, ep) = (b.here, connected(b));
    [5, 17, 300].map(|count| post(b, ep, vec![h.segment(0, 8); count], NONE)).into()
}

fn bad_flags(b: &mut Bench, post: Post, flags: &[CompletionFlags]) -> Vec<Call> {
    let (h, ep) = (b.here, connected(b));
    flags.iter().map(|flags| post(b, ep, vec![h.segment(0, 8)], *flags)).collect()
}

fn foreign_zone(b: &mut Bench, post: Post) -> Vec<Call> {
    let (segment, ep) = (other_zone(b), connected(b));
    vec![post(b, ep, vec![segment], NONE), post(b, ep, vec![b.here.segment(0, 8), segment], NONE)]
}

fn bad_contexts(b: &mut Bench, post: Post) -> Vec<Call> {
    let ep = connected(b);
    no_contexts(b).into_iter().map(|segment| post(b, ep, vec![segment], NONE)).collect()
}

fn full_queue(b: &mut Bench, post: Post) -> Vec<Call> {
    // Nothing is received at the peer, so the requests wait.
    let (h, ep) = (b.here, connected(b));
    while b.a().ep_post_send(ep, &[], 0, NONE).is_ok() {}
    b.settle();
    vec![
        post(b, ep, vec![h.segment(0, 8)], NONE),
        post(b, ep, vec![h.segment(0, 8)], CompletionFlags::SUPPRESS),
    ]
}

const UNSIGNALLED: CompletionFlags = CompletionFlags::UNSIGNALLED;
const THRESHOLD: CompletionFlags = CompletionFlags::EVD_THRESHOLD;
const SOLICITED: CompletionFlags = CompletionFlags::SOLICITED_WAIT;
const UNDEFINED: CompletionFlags = CompletionFlags::from_bits_retain(0x4000);

pub const ROWS: &[Row] = &[
    refused_as("ep_post_send", InvalidHandle, Subtype::InvalidHandleEp, "no EP", |b| on_no_ep(b, post_send)),
    refused("ep_post_send", InvalidState, "the EP is neither connected nor disconnected", |b| {
        in_wrong_states(b, post_send)
    }),
    refused("ep_post_send", InsufficientResources, "max_request_dtos are outstanding", |b| {
        full_queue(b, post_send)
    }),
    refused("ep_post_send", InvalidParameter, "a segment reaches outside its LMR", |b| {
        out_of_range(b, post_send)
    }),
    refused("ep_post_send", InvalidParameter, "more segments than max_request_iov", |b| {
        too_many(b, post_send)
    }),
    refused_as(
        "ep_post_send",
        InvalidParameter,
        Subtype::InvalidArg5,
        "UNSIGNALLED on an EP that is not made for it",
        |b| bad_flags(b, post_send, &[UNSIGNALLED, UNSIGNALLED | CompletionFlags::SOLICITED_WAIT]),
    ),
    refused_as("ep_post_send", InvalidParameter, Subtype::InvalidArg5, "flags that no send may have", |b| {
        bad_flags(b, post_send, &[THRESHOLD, UNDEFINED])
    }),
    refused("ep_post_send", ProtectionViolation, "LMR and EP are of different zones", |b| {
        foreign_zone(b, post_send)
    }),
    refused("ep_post_send", PrivilegesViolation, "the context names no LMR", |b| bad_contexts(b, post_send)),
    impossible("ep_post_send", PrivilegesViolation, "the LMR lacks local read", ALWAYS_READABLE),
    succeeds("ep_post_send", "arrives whole; a send of nothing too", |b| {
        let (h, t) = (b.here, b.there);
        let (ep, peer) = b.connection();
        for len in [0, 100] {
            b.net.nodes[1].ep_post_recv(peer, &[t.segment(0, 4096)], 3, NONE).unwrap();
            h.fill(50, len, 77);
            let iov = if len == 0 {
                vec![nothing()]
            } else {
                vec![h.segment(50, 30), nothing(), h.segment(80, 70)]
            };
            ok!(b, ep_post_send(ep, &iov, u64::MAX, NONE));
            let sent = b.net.dto(0, h.request);
            assert_eq!(
                (sent.user_cookie, sent.status, sent.transferred_length),
                (u64::MAX, DtoStatus::Success, len as u64)
            );
            let got = b.net.dto(1, t.recv);
            assert_eq!((got.user_cookie, got.ep, got.transferred_length), (3, peer, len as u64));
            t.check(0, len, 77);
        }
    }),
    refused_as("ep_post_recv", InvalidHandle, Subtype::InvalidHandleEp, "no EP", |b| on_no_ep(b, post_recv)),
    refused("ep_post_recv", InvalidState, "the EP has no protection zone yet", |b| {
        let h = b.here;
        let ep = b.a().ep_create(h.ia, None, Some(h.recv), Some(h.request), Some(h.connect), None).unwrap();
        vec![recv(ep, vec![], NONE), recv(ep, vec![h.segment(0, 8)], NONE)]
    }),
    refused("ep_post_recv", InvalidState, "the EP takes its receives from an SRQ", |b| {
        let (_, ep) = b.shared();
        vec![recv(ep, vec![b.here.segment(0, 8)], NONE), recv(ep, vec![], NONE)]
    }),
    refused("ep_post_recv", InsufficientResources, "max_recv_dtos are outstanding", |b| {
        let (h, ep) = (b.here, b.endpoint());
        while b.a().ep_post_recv(ep, &[h.segment(0, 8)], 0, NONE).is_ok() {}
        vec![recv(ep, vec![h.segment(0, 8)], NONE), recv(ep, vec![], NONE)]
    }),
    refused("ep_post_recv", InvalidParameter, "a segment reaches outside its LMR", |b| {
        out_of_range(b, post_recv)
    }),
    refused("ep_post_recv", InvalidParameter, "more segments than max_recv_iov", |b| too_many(b, post_recv)),
    refused_as(
        "ep_post_recv",
        InvalidParameter,
        Subtype::InvalidArg5,
        "UNSIGNALLED on an EP that is not made for it",
        |b| bad_flags(b, post_recv, &[UNSIGNALLED]),
    ),
    refused_as(
        "ep_post_recv",
        InvalidParameter,
        Subtype::InvalidArg5,
        "flags that no receive may have",
        |b| {
            let fence = CompletionFlags::BARRIER_FENCE;
            bad_flags(b, post_recv, &[CompletionFlags::SUPPRESS, SOLICITED, fence, THRESHOLD, UNDEFINED])
        },
    ),
    refused("ep_post_recv", ProtectionViolation, "LMR and EP are of different zones", |b| {
        foreign_zone(b, post_recv)
    }),
    refused("ep_post_recv", PrivilegesViolation, "the context names no LMR", |b| bad_contexts(b, post_recv)),
    refused_as(
        "ep_post_recv",
        PrivilegesViolation,
        Subtype::PrivilegesWrite,
        "the LMR lacks local write",
        |b| {
            let (segment, ep) = (read_only(b), b.endpoint());
            vec![recv(ep, vec![segment], NONE)]
        },
    ),
    succeeds("ep_post_recv", "in every state; completed in the order of posting", |b| {
        let h = b.here;
        let (ep, peer) = b.connection();
        for cookie in [9, 8, 7] {
            ok!(b, ep_post_recv(ep, &[nothing(), h.segment(0, 64)], cookie, NONE));
        }
        let t = b.there;
        for len in [1, 2, 3] {
            b.net.nodes[1].ep_post_send(peer, &[t.segment(0, len)], 0, NONE).unwrap();
        }
        for (cookie, len) in [(9, 1), (8, 2), (7, 3)] {
            let got = b.net.dto(0, h.recv);
            assert_eq!((got.user_cookie, got.transferred_length), (cookie, len));
        }
        let unconnected = b.endpoint();
        ok!(b, ep_post_recv(unconnected, &[], 1, NONE));
    }),
    refused_as("ep_post_rdma_read", InvalidHandle, Subtype::InvalidHandleEp, "no EP", |b| on_no_ep(b, read)),
    refused("ep_post_rdma_read", InvalidState, "the EP is neither connected nor disconnected", |b| {
        in_wrong_states(b, read)
    }),
    refused("ep_post_rdma_read", InsufficientResources, "max_request_dtos are outstanding", |b| {
        full_queue(b, read)
    }),
    refused("ep_post_rdma_read", InvalidParameter, "a segment reaches outside its LMR", |b| {
        out_of_range(b, read)
    }),
    refused("ep_post_rdma_read", InvalidParameter, "more segments than max_rdma_read_iov", |b| {
        too_many(b, read)
    }),
    refused_as(
        "ep_post_rdma_read",
        InvalidParameter,
        Subtype::InvalidArg6,
        "UNSIGNALLED on an EP that is not made for it",
        |b| bad_flags(b, read, &[UNSIGNALLED]),
    ),
    refused_as(
        "ep_post_rdma_read",
        InvalidParameter,
        Subtype::InvalidArg6,
        "flags that no read may have",
        |b| bad_flags(b, read, &[SOLICITED, THRESHOLD, UNDEFINED]),
    ),
    refused("ep_post_rdma_read", ProtectionViolation, "LMR and EP are of different zones", |b| {
        foreign_zone(b, read)
    }),
    refused("ep_post_rdma_read", PrivilegesViolation, "the context names no LMR", |b| bad_contexts(b, read)),
    refused_as(
        "ep_post_rdma_read",
        PrivilegesViolation,
        Subtype::PrivilegesWrite,
        "the LMR lacks local write",
        |b| {
            let (segment, ep) = (read_only(b), connected(b));
            vec![read(b, ep, vec![segment], NONE)]
        },
    ),
    impossible(
        "ep_post_rdma_read",
        PrivilegesViolation,
        "the peer's region lacks remote read",
        "only the peer can tell: the completion's status says ERR_REMOTE_ACCESS",
    ),
    refused("ep_post_rdma_read", LengthError, "the local segments are shorter than the remote buffer", |b| {
        let (h, t, ep) = (b.here, b.there, connected(b));
        [(8, 9), (0, 1), (100, 1 << 20)]
            .map(|(len, remote)| {
                let (iov, remote) = ([h.segment(0, len)], t.remote(0, remote));
                call!(ep_post_rdma_read(ep, &iov, 1, &remote, NONE))
            })
            .into()
    }),
    succeeds("ep_post_rdma_read", "the peer's bytes arrive in the segments, in order", |b| {
        let (h, t) = (b.here, b.there);
        let (ep, _) = b.connection();
        t.fill(500, 5000, 3);
        let iov = [h.segment(0, 1000), nothing(), h.segment(1000, 4000)];
        ok!(b, ep_post_rdma_read(ep, &iov, 11, &t.remote(500, 5000), NONE));
        let done = b.net.dto(0, h.request);
        assert_eq!((done.user_cookie, done.transferred_length, done.status), (11, 5000, DtoStatus::Success));
        h.check(0, 5000, 3);
    }),
    refused_as("ep_post_rdma_write", InvalidHandle, Subtype::InvalidHandleEp, "no EP", |b| {
        on_no_ep(b, write)
    }),
    refused("ep_post_rdma_write", InvalidState, "the EP is neither connected nor disconnected", |b| {
        in_wrong_states(b, write)
    }),
    refused("ep_post_rdma_write", InsufficientResources, "max_request_dtos are outstanding", |b| {
        full_queue(b, write)
    }),
    refused("ep_post_rdma_write", InvalidParameter, "a segment reaches outside its LMR", |b| {
        out_of_range(b, write)
    }),
    refused("ep_post_rdma_write", InvalidParameter, "more segments than max_rdma_write_iov", |b| {
        too_many(b, write)
    }),
    refused_as(
        "ep_post_rdma_write",
        InvalidParameter,
        Subtype::InvalidArg6,
        "UNSIGNALLED on an EP that is not made for it",
        |b| bad_flags(b, write, &[UNSIGNALLED]),
    ),
    refused_as(
        "ep_post_rdma_write",
        InvalidParameter,
        Subtype::InvalidArg6,
        "flags that no write may have",
        |b| bad_flags(b, write, &[SOLICITED, THRESHOLD, UNDEFINED]),
    ),
    refused("ep_post_rdma_write", ProtectionViolation, "LMR and EP are of different zones", |b| {
        foreign_zone(b, write)
    }),
    refused("ep_post_rdma_write", PrivilegesViolation, "the context names no LMR", |b| {
        bad_contexts(b, write)
    }),
    impossible("ep_post_rdma_write", PrivilegesViolation, "the LMR lacks local read", ALWAYS_READABLE),
    impossible(
        "ep_post_rdma_write",
        PrivilegesViolation,
        "the peer's region lacks remote write",
        "only the peer can tell: the completion's status says ERR_REMOTE_ACCESS",
    ),
    refused("ep_post_rdma_write", LengthError, "the remote buffer is shorter than the local segments", |b| {
        let (h, t, ep) = (b.here, b.there, connected(b));
        [(9, 8), (1, 0), (1 << 20, 100)]
            .map(|(len, remote)| {
                let (iov, remote) = ([h.segment(0, len)], t.remote(0, remote));
                call!(ep_post_rdma_write(ep, &iov, 1, &remote, NONE))
            })
            .into()
    }),
    succeeds("ep_post_rdma_write", "the segments arrive in the peer's memory, in order", |b| {
        let (h, t) = (b.here, b.there);
        let (ep, _) = b.connection();
        h.fill(64, 6000, 4);
        let iov = [h.segment(64, 100), nothing(), h.segment(164, 5900)];
        ok!(b, ep_post_rdma_write(ep, &iov, 12, &t.remote(9, 6000), NONE));
        let done = b.net.dto(0, h.request);
        assert_eq!((done.user_cookie, done.transferred_length, done.status), (12, 6000, DtoStatus::Success));
        t.check(9, 6000, 4);
    }),
];

tests! { ep_post_send ep_post_recv ep_post_rdma_read ep_post_rdma_write }

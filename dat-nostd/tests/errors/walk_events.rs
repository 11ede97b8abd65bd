//! What the peer, a timer, the fabric and the device do to an endpoint in every state (uDAPL 1.2, endpoint state diagram).

use crate::bench::{ALL_STATES, Bench, NONE};
use crate::common::{Net, Options, address};
use dat_nostd::EpState::*;
use dat_nostd::*;
use harness::dat::due;

/// What is told on the connect EVD of an EP within a minute, and the state in the end.
fn outcome(b: &mut Bench, ep: EpHandle, peer_runs: bool) -> (Vec<ConnectionEvent>, EpState) {
    let mut told = Vec::new();
    let end = b.net.world.now() + 60_000_000_000;
    while b.net.world.now() < end {
        let now = b.net.world.now();
        let mut next = now + 10_000_000;
        for node in b.net.nodes.iter_mut().take(if peer_runs { 2 } else { 1 }) {
            if let Some(deadline) = due(node.poll(Instant::from_nanos(now))) {
                next = next.min(deadline.max(now + 1));
            }
        }
        b.net.world.idle(next);
        let evd = b.here.connect;
        while let Ok(event) = b.a().evd_dequeue(evd) {
            match event.data {
                EventData::Connection { event, ep: of, .. } if of == ep => told.push(event),
                EventData::Connection { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
    (told, b.a().ep_get_status(ep).unwrap().state)
}

/// Strikes EPs in all states with something, and compares what follows.
fn strike(
    name: &str,
    peer_runs: bool,
    strike: impl Fn(&mut Bench, EpHandle),
    expected: impl Fn(EpState) -> (&'static [ConnectionEvent], EpState),
) {
    for state in ALL_STATES {
        let mut b = Bench::new();
        let ep = b.ep_in(*state);
        strike(&mut b, ep);
        let (told, after) = outcome(&mut b, ep, peer_runs);
        let (events, end) = expected(*state);
        match events {
            // Nothing.
            [] => assert_eq!(told, [], "{name} in {state:?}"),
            // Exactly one, of these.
            _ => assert!(told.len() == 1 && events.contains(&told[0]), "{name} in {state:?}: {told:?}"),
        }
        assert_eq!(after, end, "{name} in {state:?}");
    }
}

#[test]
fn the_peers_ia_is_closed() {
    let close = |b: &mut Bench, _| {
        let ia = b.there.ia;
        b.net.nodes[1].ia_close(ia, CloseFlags::Abrupt).unwrap();
    };
    strike("the peer's end", true, close, |state| match state {
        // The peer had the request and refuses it, or nobody is there any more.
        ActiveConnectionPending => {
            (&[ConnectionEvent::PeerRejected, ConnectionEvent::NonPeerRejected], Disconnected)
        }
        CompletionPending => (&[ConnectionEvent::AcceptCompletionError], Disconnected),
        Connected | DisconnectPending => (&[ConnectionEvent::Disconnected], Disconnected),
        // The request is still to be answered.
        other => (&[], other),
    });
}

#[test]
fn the_peer_loses_its_power() {
    let kill = |b: &mut Bench, ep: EpHandle| {
        b.net.world.kill(1);
        // An idle connection does not notice.
        if b.a().ep_get_status(ep).unwrap().state == Connected {
            b.a().ep_post_send(ep, &[], 1, NONE).unwrap();
        }
    };
    strike("the peer's death", false, kill, |state| match state {
        ActiveConnectionPending => (&[ConnectionEvent::Unreachable], Disconnected),
        CompletionPending => (&[ConnectionEvent::AcceptCompletionError], Disconnected),
        Connected | DisconnectPending => (&[ConnectionEvent::Broken], Disconnected),
        other => (&[], other),
    });
}

#[test]
fn the_device_is_gone() {
    let unplug = |b: &mut Bench, _| b.net.world.unplug(0);
    strike("the device's end", true, unplug, |state| match state {
        // Resources failed, or the peer cannot be reached: both are true.
        ActiveConnectionPending => {
            (&[ConnectionEvent::Unreachable, ConnectionEvent::NonPeerRejected], Disconnected)
        }
        CompletionPending => (&[ConnectionEvent::AcceptCompletionError], Disconnected),
        Connected | DisconnectPending => (&[ConnectionEvent::Broken], Disconnected),
        other => (&[], other),
    });
}

#[test]
fn time_passes() {
    // The peer's software stands still. What waits for it comes to its end, the rest stays.
    strike(
        "time",
        false,
        |_, _| {},
        |state| match state {
            ActiveConnectionPending => (&[ConnectionEvent::Unreachable], Disconnected),
            CompletionPending => (&[ConnectionEvent::AcceptCompletionError], Disconnected),
            other => (&[], other),
        },
    );
}

#[test]
fn the_peer_lives_on() {
    strike(
        "the peer's answer",
        true,
        |_, _| {},
        |state| match state {
            // Node 1's consumer never answers, and its machinery asks for patience: without a time-out there is no end.
            CompletionPending => (&[ConnectionEvent::Established], Connected),
            other => (&[], other),
        },
    );
}

#[test]
fn a_transfer_fails() {
    let fail = |b: &mut Bench, ep: EpHandle| {
        let (iov, mut remote) = ([b.here.segment(0, 64)], b.there.remote(0, 64));
        remote.rmr_context ^= 0x55;
        let _ = b.a().ep_post_rdma_write(ep, &iov, 1, &remote, NONE);
    };
    strike("a transfer's failure", true, fail, |state| match state {
        Connected => (&[ConnectionEvent::Broken], Disconnected),
        CompletionPending => (&[ConnectionEvent::Established], Connected),
        other => (&[], other),
    });
}

/// Polls node 1 alone.
fn the_peer_alone_runs(net: &mut Net, milliseconds: u64) {
    let end = net.world.now() + milliseconds * 1_000_000;
    while net.world.now() < end {
        let now = net.world.now();
        let _ = net.nodes[1].poll(Instant::from_nanos(now));
        net.world.idle(now + 10_000);
    }
}

#[test]
fn a_transfer_fails_and_the_peer_leaves() {
    // Node 0 finds the failed completion and the peer's DREQ in one poll. By DAT 1.2 a failed DTO ends
    // a connection in BROKEN.
    let fail = |b: &mut Bench, ep: EpHandle| {
        let (iov, mut remote) = ([b.here.segment(0, 64)], b.there.remote(0, 64));
        remote.rmr_context ^= 0x55;
        let _ = b.a().ep_post_rdma_write(ep, &iov, 1, &remote, NONE);
        the_peer_alone_runs(&mut b.net, 10);
    };
    strike("a transfer's failure before a DREQ", true, fail, |state| match state {
        Connected => (&[ConnectionEvent::Broken], Disconnected),
        CompletionPending => (&[ConnectionEvent::Established], Connected),
        other => (&[], other),
    });
}

#[test]
fn a_receive_fails_while_a_disconnect_is_pending() {
    // Node 0 finds the failed completion and the answer to its own DREQ in one poll.
    let mut b = Bench::new();
    let (cr, peer) = b.request();
    let (h, t, ep) = (b.here, b.there, b.endpoint());
    b.a().ep_post_recv(ep, &[h.segment(0, 16)], 8, NONE).unwrap();
    b.a().cr_accept(cr, Some(ep), b"").unwrap();
    assert_eq!(b.connection_event(1, peer), ConnectionEvent::Established);
    assert_eq!(b.connection_event(0, ep), ConnectionEvent::Established);
    b.net.nodes[1].ep_post_send(peer, &[t.segment(0, 64)], 1, NONE).unwrap();
    b.a().ep_disconnect(ep, CloseFlags::Graceful).unwrap();
    assert_eq!(b.a().ep_get_status(ep).unwrap().state, DisconnectPending);
    the_peer_alone_runs(&mut b.net, 10);
    assert_eq!(outcome(&mut b, ep, true), (vec![ConnectionEvent::Broken], Disconnected));
}

#[test]
fn the_last_request_fails_because_the_peer_has_left() {
    // The failure does not end the connection: the peer has. So many completions precede it that
    // node 0 sends its DREQ before it has looked at the failed one.
    const REQUESTS: u64 = 300;
    let attributes =
        EpAttributes { max_request_dtos: REQUESTS as u32, retry_count: 1, ..EpAttributes::DEFAULT };
    let mut net = Net::new(6, 2);
    let [here, there] = net.pair(&Options { attributes, ..Options::default() });
    for cookie in 1..REQUESTS {
        let (iov, remote) = ([here.segment(0, 8)], there.remote(0, 8));
        net.nodes[0].ep_post_rdma_write(here.ep, &iov, cookie, &remote, NONE).unwrap();
    }
    // The peer has no receive for this one.
    net.nodes[0].ep_post_send(here.ep, &[here.segment(0, 8)], REQUESTS, NONE).unwrap();
    net.world.pass(10_000_000);
    net.nodes[0].ep_disconnect(here.ep, CloseFlags::Graceful).unwrap();
    net.nodes[1].ep_disconnect(there.ep, CloseFlags::Abrupt).unwrap();
    the_peer_alone_runs(&mut net, 2000);
    let now = Instant::from_nanos(net.world.now());
    let _ = net.nodes[0].poll(now);
    assert_eq!(net.nodes[0].ep_get_status(here.ep).unwrap().state, DisconnectPending);
    the_peer_alone_runs(&mut net, 10);
    assert_eq!(net.connection(0, &here), ConnectionEvent::Disconnected);
    let statuses = (0..REQUESTS).map(|_| net.dto(0, here.request).status).collect::<Vec<_>>();
    assert_eq!(statuses[REQUESTS as usize - 2..], [DtoStatus::Success, DtoStatus::ErrTransport]);
}

/// An EP of node 0 that asks node 1, with this time-out.
fn asks(b: &mut Bench, to: IaAddress, qualifier: u64, timeout_us: u32) -> EpHandle {
    let ep = b.endpoint();
    b.a().ep_connect(ep, &to, qualifier, timeout_us, b"", Qos::BestEffort, ConnectFlags::Default).unwrap();
    ep
}

#[test]
fn how_an_attempt_ends() {
    // Nobody listens.
    let mut b = Bench::new();
    let ep = asks(&mut b, address(1), 999, TIMEOUT_INFINITE);
    assert_eq!(outcome(&mut b, ep, true), (vec![ConnectionEvent::NonPeerRejected], Disconnected));
    // The consumer's time-out.
    let mut b = Bench::new();
    let began = b.net.world.now();
    let ep = asks(&mut b, address(1), 40, 2_500_000);
    assert_eq!(b.connection_event(0, ep), ConnectionEvent::TimedOut);
    let took = b.net.world.now() - began;
    assert!((2_500_000_000..3_500_000_000).contains(&took), "{took} ns");
    // No such host.
    let mut b = Bench::new();
    let ep = asks(&mut b, address(99), 40, TIMEOUT_INFINITE);
    assert_eq!(outcome(&mut b, ep, true), (vec![ConnectionEvent::Unreachable], Disconnected));
    // The peer's consumer refuses.
    let mut b = Bench::new();
    let ep = asks(&mut b, address(1), 40, TIMEOUT_INFINITE);
    let t = b.there;
    let cr = match b.net.event(1, t.cr) {
        EventData::ConnectionRequest { cr, .. } => cr,
        other => panic!("{other:?}"),
    };
    b.net.nodes[1].cr_reject(cr).unwrap();
    assert_eq!(outcome(&mut b, ep, true), (vec![ConnectionEvent::PeerRejected], Disconnected));
    // The backlog is full.
    let mut b = Bench::new();
    let eps: Vec<EpHandle> = (0..12).map(|_| asks(&mut b, address(1), 40, TIMEOUT_INFINITE)).collect();
    let room = b.net.nodes[1].evd_query(t.cr).unwrap().evd_qlen as usize;
    b.net.pass(100_000_000);
    let refused: Vec<ConnectionEvent> =
        std::iter::from_fn(|| match b.net.nodes[0].evd_dequeue(b.here.connect).ok()?.data {
            EventData::Connection { event, .. } => Some(event),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(refused, vec![ConnectionEvent::NonPeerRejected; eps.len() - room]);
}

#[test]
fn a_request_meets_its_service_point() {
    let mut b = Bench::new();
    let (ep, cr, ..) = b.passive();
    let h = b.here;
    b.a().psp_create(h.ia, 91, h.cr, PspFlags::Consumer).unwrap();
    b.a().cr_handoff(cr, 91).unwrap();
    assert_eq!(b.a().ep_get_status(ep).unwrap().state, Unconnected, "handed on, the EP is free");
    let (ep, cr, _) = b.tentative();
    b.a().cr_handoff(cr, 91).unwrap();
    assert!(b.a().ep_query(ep).is_err(), "the provider's EP ends with its request");
}

#[test]
fn the_first_data_confirm_an_accepted_connection() {
    // The RTU is lost; the peer's first message comes. ESTABLISHED is told before it.
    let mut b = Bench::new();
    let (cr, peer) = b.request();
    let (h, ep) = (b.here, b.endpoint());
    b.a().ep_post_recv(ep, &[h.segment(0, 64)], 8, NONE).unwrap();
    b.a().cr_accept(cr, Some(ep), b"").unwrap();
    assert_eq!(b.connection_event(1, peer), ConnectionEvent::Established);
    b.net.nodes[1].ep_post_send(peer, &[], 1, NONE).unwrap();
    assert_eq!(b.net.dto(0, h.recv).user_cookie, 8);
    assert_eq!(b.connection_event(0, ep), ConnectionEvent::Established);
    assert_eq!(b.a().ep_get_status(ep).unwrap().state, Connected);
}

//! Connections between two adapters on the model: set-up, refusal, time-outs, ends.

use crate::common;

use common::{LIMIT, Net, Options, Side, address};
use dat_nostd::*;

const NONE: CompletionFlags = CompletionFlags::empty();

/// Posts `count` receives with cookies from 100.
fn post_receives(net: &mut Net, node: usize, side: &Side, count: u64) {
    for index in 0..count {
        net.nodes[node].ep_post_recv(side.ep, &[side.segment(0, 64)], 100 + index, NONE).unwrap();
    }
}

/// The flushes of these receives, in order.
#[track_caller]
fn flushed_receives(net: &mut Net, node: usize, side: &Side, count: u64) {
    for index in 0..count {
        let flush = net.dto(node, side.recv);
        assert_eq!((flush.ep, flush.user_cookie), (side.ep, 100 + index));
        assert_eq!((flush.status, flush.operation), (DtoStatus::ErrFlushed, DtoOperation::Receive));
    }
    net.empty(node, side.recv);
}

fn merged() -> Options {
    Options { merged: true, ..Options::default() }
}

#[test]
fn connect_send_and_disconnect() {
    let mut net = Net::new(1, 2);
    let [active, passive] = net.pair(&Options::default());
    active.fill(0, 5000, 1);
    net.nodes[1].ep_post_recv(passive.ep, &[passive.segment(0, 8192)], 11, NONE).unwrap();
    net.nodes[0].ep_post_send(active.ep, &[active.segment(0, 5000)], 22, NONE).unwrap();
    let sent = net.dto(0, active.request);
    assert_eq!((sent.ep, sent.user_cookie, sent.status), (active.ep, 22, DtoStatus::Success));
    assert_eq!((sent.transferred_length, sent.operation), (5000, DtoOperation::Send));
    let received = net.dto(1, passive.recv);
    assert_eq!((received.ep, received.user_cookie, received.status), (passive.ep, 11, DtoStatus::Success));
    assert_eq!((received.transferred_length, received.operation), (5000, DtoOperation::Receive));
    passive.check(0, 5000, 1);
    let query = net.nodes[1].ep_query(passive.ep).unwrap();
    assert_eq!(
        (query.state, query.remote_address, query.local_address),
        (EpState::Connected, address(0), address(1))
    );
    assert_eq!(query.local_port, 7);
    net.nodes[0].ep_disconnect(active.ep, CloseFlags::Abrupt).unwrap();
    assert_eq!(net.connection(0, &active), ConnectionEvent::Disconnected);
    assert_eq!(net.connection(1, &passive), ConnectionEvent::Disconnected);
    for (node, side) in [(0, &active), (1, &passive)] {
        assert_eq!(net.nodes[node].ep_get_status(side.ep).unwrap().state, EpState::Disconnected);
        net.empty(node, side.connect);
    }
    net.assert_no_refusals();
}

#[test]
fn private_data_both_ways_under_both_names() {
    // The largest process id of Linux, and 1024.
    const FROM_PID: u64 = 4_195_328;
    for (name, qualifier, sent, seen) in [
        ("ib0", 18634, 56, 56),
        ("ib0", 18634, 3, 56),
        ("ib0", FROM_PID, 56, 56),
        ("ib0", u64::MAX, 0, 56),
        ("ib0-dat", 18634, 64, 64),
        ("ib0-dat", FROM_PID, 3, 3),
        ("ib0-dat", 18634, 0, 0),
    ] {
        let mut net = Net::new(2, 2);
        let options = Options { name, ..Options::default() };
        let [active, passive] = [net.side(0, &options), net.side(1, &options)];
        let psp = net.nodes[1].psp_create(passive.ia, qualifier, passive.cr, PspFlags::Consumer).unwrap();
        let data: Vec<u8> = (1..=sent).collect();
        net.ask(&active, qualifier, TIMEOUT_INFINITE, &data);
        let cr = net.request(&passive, psp);
        let request = net.nodes[1].cr_query(cr).unwrap();
        assert_eq!((request.remote_address, request.private_data.len()), (address(0), seen));
        assert_eq!(request.private_data[..data.len()], data);
        assert!(request.private_data[data.len()..].iter().all(|byte| *byte == 0));
        let remote_port = request.remote_port;
        let answer: Vec<u8> = (100..100 + sent).collect();
        net.nodes[1].cr_accept(cr, Some(passive.ep), &answer).unwrap();
        let (ep, size) = match net.event(0, active.connect) {
            EventData::Connection { event: ConnectionEvent::Established, ep, private_data_size } => {
                (ep, private_data_size)
            }
            other => panic!("{other:?}"),
        };
        let got = net.nodes[0].ep_private_data(ep).unwrap();
        assert_eq!(got.len(), size);
        assert_eq!(got[..answer.len()], answer);
        assert_eq!(size, if name == "ib0" { 196 } else { answer.len() });
        match net.event(1, passive.connect) {
            EventData::Connection { event, ep, private_data_size } => {
                assert_eq!((event, ep, private_data_size), (ConnectionEvent::Established, passive.ep, 0));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(net.nodes[0].ep_query(active.ep).unwrap().local_port, remote_port);
        assert_eq!(net.nodes[1].cr_query(cr), Err(DatReturn(0x8005_0012)), "the request is gone");
        net.assert_no_refusals();
    }
}

#[test]
fn reject_flushes_and_reset_tries_again() {
    for (name, reason) in [("ib0", &b""[..]), ("ib0", &[1, 0, 0, 0]), ("ib0-dat", &[7; 140])] {
        let mut net = Net::new(3, 2);
        let options = Options { name, ..Options::default() };
        let [active, passive] = [net.side(0, &options), net.side(1, &options)];
        let psp = net.nodes[1].psp_create(passive.ia, 7, passive.cr, PspFlags::Consumer).unwrap();
        post_receives(&mut net, 0, &active, 3);
        net.ask(&active, 7, TIMEOUT_INFINITE, b"hello");
        let cr = net.request(&passive, psp);
        net.nodes[1].cr_reject_with(cr, reason).unwrap();
        assert_eq!(net.connection(0, &active), ConnectionEvent::PeerRejected);
        let seen = net.nodes[0].ep_private_data(active.ep).unwrap();
        assert_eq!(seen[..reason.len()], *reason);
        assert_eq!(seen.len(), if name == "ib0" { 148 } else { reason.len() });
        assert_eq!(net.nodes[0].ep_get_status(active.ep).unwrap().state, EpState::Disconnected);
        flushed_receives(&mut net, 0, &active, 3);
        // As dapltest does: reset, post again, try again.
        net.nodes[0].ep_reset(active.ep).unwrap();
        assert_eq!(net.nodes[0].ep_private_data(active.ep).unwrap(), b"");
        post_receives(&mut net, 0, &active, 2);
        net.ask(&active, 7, TIMEOUT_INFINITE, b"again");
        let cr = net.request(&passive, psp);
        net.nodes[1].cr_accept(cr, Some(passive.ep), b"").unwrap();
        assert_eq!(net.connection(0, &active), ConnectionEvent::Established);
        assert_eq!(net.connection(1, &passive), ConnectionEvent::Established);
        // The receives posted before the connect have survived.
        net.nodes[1].ep_post_send(passive.ep, &[], 1, NONE).unwrap();
        let received = net.dto(0, active.recv);
        assert_eq!(
            (received.user_cookie, received.status, received.transferred_length),
            (100, DtoStatus::Success, 0)
        );
        net.assert_no_refusals();
    }
}

#[test]
fn refusals_by_machinery_and_by_absence() {
    let mut net = Net::new(4, 2);
    let active = net.side(0, &merged());
    // Nobody listens.
    net.ask(&active, 99, TIMEOUT_INFINITE, b"");
    assert_eq!(net.connection(0, &active), ConnectionEvent::NonPeerRejected);
    net.nodes[0].ep_reset(active.ep).unwrap();
    // A neighbour that is not there: the subnet administrator knows no path.
    let connect = |net: &mut Net, to: IaAddress| {
        net.nodes[0].ep_connect(
            active.ep,
            &to,
            7,
            TIMEOUT_INFINITE,
            b"",
            Qos::BestEffort,
            ConnectFlags::Default,
        )
    };
    connect(&mut net, address(2)).unwrap();
    assert_eq!(net.connection(0, &active), ConnectionEvent::Unreachable);
    net.nodes[0].ep_reset(active.ep).unwrap();
    // An address that no table has.
    connect(&mut net, address(77)).unwrap();
    assert_eq!(net.connection(0, &active), ConnectionEvent::Unreachable);
    net.nodes[0].ep_reset(active.ep).unwrap();
    // Addresses that no host can have.
    assert!(connect(&mut net, address(255 - 1)).is_ok());
    assert_eq!(net.connection(0, &active), ConnectionEvent::Unreachable);
    net.nodes[0].ep_reset(active.ep).unwrap();
    for wrong in ["0.0.0.0", "224.0.0.1", "fd00::1"] {
        let error = connect(&mut net, wrong.parse().unwrap()).unwrap_err();
        assert!(error.is(ReturnType::InvalidAddress), "{wrong}: {error}");
        assert_eq!(net.nodes[0].ep_get_status(active.ep).unwrap().state, EpState::Unconnected);
    }
    net.empty(0, active.connect);
}

#[test]
fn a_full_backlog_refuses() {
    let mut net = Net::new(5, 2);
    let passive = net.side(1, &Options::default());
    let cr = net.nodes[1].evd_create(passive.ia, 8, None, EvdFlags::CR).unwrap();
    net.nodes[1].psp_create(passive.ia, 7, cr, PspFlags::Consumer).unwrap();
    let sides: Vec<Side> = (0..7).map(|_| net.side(0, &Options::default())).collect();
    let mut all = Vec::new();
    for side in &sides {
        all.push(*side);
        let Side { ia, pz, recv, request, connect, .. } = *side;
        let ep =
            net.nodes[0].ep_create(ia, Some(pz), Some(recv), Some(request), Some(connect), None).unwrap();
        all.push(Side { ep, ..*side });
    }
    for side in &all {
        net.ask(side, 7, TIMEOUT_INFINITE, b"");
    }
    net.pass(20_000_000);
    let mut refused = 0;
    for side in &sides {
        while let Ok(event) = net.nodes[0].evd_dequeue(side.connect) {
            match event.data {
                EventData::Connection { event: ConnectionEvent::NonPeerRejected, .. } => refused += 1,
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(refused, all.len() - 8, "eight fit the queue");
    let mut requests = 0;
    while net.nodes[1].evd_dequeue(cr).is_ok() {
        requests += 1;
    }
    assert_eq!(requests, 8);
}

#[test]
fn the_consumers_time_out_and_a_silent_peer() {
    let mut net = Net::new(6, 2);
    let [active, passive] = [net.side(0, &Options::default()), net.side(1, &Options::default())];
    let psp = net.nodes[1].psp_create(passive.ia, 7, passive.cr, PspFlags::Consumer).unwrap();
    post_receives(&mut net, 0, &active, 2);
    let began = net.world.now();
    net.ask(&active, 7, 300_000, b"");
    let cr = net.request(&passive, psp);
    assert_eq!(net.connection(0, &active), ConnectionEvent::TimedOut);
    let took = net.world.now() - began;
    assert!((300_000_000..400_000_000).contains(&took), "{took}");
    flushed_receives(&mut net, 0, &active, 2);
    // The passive side accepts what is no more.
    net.pass(1_000_000);
    post_receives(&mut net, 1, &passive, 2);
    net.nodes[1].cr_accept(cr, Some(passive.ep), b"late").unwrap();
    assert_eq!(net.connection(1, &passive), ConnectionEvent::AcceptCompletionError);
    assert_eq!(net.nodes[1].ep_get_status(passive.ep).unwrap().state, EpState::Disconnected);
    flushed_receives(&mut net, 1, &passive, 2);
    // A peer without power, and all the time in the world.
    net.nodes[0].ep_reset(active.ep).unwrap();
    net.world.kill(1);
    let began = net.world.now();
    net.ask(&active, 7, TIMEOUT_INFINITE, b"");
    assert_eq!(net.connection(0, &active), ConnectionEvent::Unreachable);
    assert!(net.world.now() - began < LIMIT);
}

#[test]
fn an_accept_whose_peer_dies() {
    let mut net = Net::new(7, 2);
    let [active, passive] = [net.side(0, &merged()), net.side(1, &merged())];
    let psp = net.nodes[1].psp_create(passive.ia, 7, passive.cr, PspFlags::Consumer).unwrap();
    net.ask(&active, 7, TIMEOUT_INFINITE, b"");
    let cr = net.request(&passive, psp);
    net.world.kill(0);
    post_receives(&mut net, 1, &passive, 3);
    net.nodes[1].cr_accept(cr, Some(passive.ep), b"").unwrap();
    assert_eq!(net.nodes[1].ep_get_status(passive.ep).unwrap().state, EpState::CompletionPending);
    // On one EVD the flushes come first.
    for index in 0..3 {
        let flush = net.dto(1, passive.recv);
        assert_eq!((flush.user_cookie, flush.status), (100 + index, DtoStatus::ErrFlushed));
    }
    assert_eq!(net.connection(1, &passive), ConnectionEvent::AcceptCompletionError);
    net.empty(1, passive.connect);
}

#[test]
fn data_that_overtakes_the_confirmation_establishes() {
    for one_evd in [true, false] {
        let mut net = Net::new(8, 2);
        let options = Options { merged: one_evd, ..Options::default() };
        let [active, passive] = [net.side(0, &options), net.side(1, &options)];
        let psp = net.nodes[1].psp_create(passive.ia, 7, passive.cr, PspFlags::Consumer).unwrap();
        post_receives(&mut net, 1, &passive, 2);
        net.ask(&active, 7, TIMEOUT_INFINITE, b"");
        let cr = net.request(&passive, psp);
        net.nodes[1].cr_accept(cr, Some(passive.ep), b"").unwrap();
        // The passive side's software stands still, so neither RTU nor event is looked at; only its HCA works.
        let event = net.until("ESTABLISHED", |net| {
            let now = net.world.now();
            let _ = net.nodes[0].poll(Instant::from_nanos(now));
            net.world.idle(now + 100_000);
            net.nodes[0].evd_dequeue(active.connect).ok()
        });
        assert!(matches!(event.data, EventData::Connection { event: ConnectionEvent::Established, .. }));
        active.fill(0, 64, 5);
        net.nodes[0].ep_post_send(active.ep, &[active.segment(0, 64)], 1, NONE).unwrap();
        net.world.pass(1_000_000);
        assert_eq!(net.nodes[1].ep_get_status(passive.ep).unwrap().state, EpState::CompletionPending);
        if one_evd {
            // The receive is in the CQ already, yet ESTABLISHED comes first.
            let first = net.nodes[1].evd_dequeue(passive.recv).unwrap();
            assert!(
                matches!(first.data, EventData::Connection { event: ConnectionEvent::Established, .. }),
                "{first:?}"
            );
            let second = net.nodes[1].evd_dequeue(passive.recv).unwrap();
            assert!(
                matches!(second.data, EventData::Dto(DtoCompletion { user_cookie: 100, .. })),
                "{second:?}"
            );
        } else {
            let first = net.nodes[1].evd_dequeue(passive.recv).unwrap();
            assert!(
                matches!(first.data, EventData::Dto(DtoCompletion { user_cookie: 100, .. })),
                "{first:?}"
            );
            assert_eq!(net.nodes[1].ep_get_status(passive.ep).unwrap().state, EpState::Connected);
            assert_eq!(net.connection(1, &passive), ConnectionEvent::Established);
        }
        passive.check(0, 64, 5);
        // And it can answer.
        post_receives(&mut net, 0, &active, 1);
        net.nodes[1].ep_post_send(passive.ep, &[], 2, NONE).unwrap();
        assert_eq!(net.dto(0, active.request).user_cookie, 1);
        assert_eq!(net.dto(0, active.recv).user_cookie, 100);
        assert_eq!(net.dto(1, passive.request).user_cookie, 2);
        net.pass(3_000_000_000);
        net.empty(1, passive.connect);
        net.assert_no_refusals();
    }
}

#[test]
fn a_lost_confirmation_is_repeated() {
    let mut net = Net::new(9, 2);
    let [active, passive] = [net.side(0, &Options::default()), net.side(1, &Options::default())];
    let psp = net.nodes[1].psp_create(passive.ia, 7, passive.cr, PspFlags::Consumer).unwrap();
    net.ask(&active, 7, TIMEOUT_INFINITE, b"");
    let cr = net.request(&passive, psp);
    net.nodes[1].cr_accept(cr, Some(passive.ep), b"").unwrap();
    // Until the REP is in, everything that node 0 sends vanishes.
    net.until("ESTABLISHED", |net| {
        net.world.set_cable(1, net.nodes[0].ep_get_status(active.ep).unwrap().state != EpState::Connected);
        net.nodes[0].evd_dequeue(active.connect).ok()
    });
    net.world.set_cable(1, true);
    assert_eq!(net.connection(1, &passive), ConnectionEvent::Established);
}

#[test]
fn a_set_up_that_is_aborted_ends_in_one_event() {
    let mut net = Net::new(10, 2);
    let [active, passive] = [net.side(0, &Options::default()), net.side(1, &Options::default())];
    let psp = net.nodes[1].psp_create(passive.ia, 7, passive.cr, PspFlags::Consumer).unwrap();
    post_receives(&mut net, 0, &active, 2);
    // While the path is asked for, while the request is out, after the peer has seen it.
    for stage in 0..3 {
        net.ask(&active, 7, TIMEOUT_INFINITE, b"");
        let cr = match stage {
            0 => None,
            1 => {
                net.step();
                None
            }
            _ => {
                Some(net.until("the request", |net| match net.nodes[1].evd_dequeue(passive.cr).ok()?.data {
                    EventData::ConnectionRequest { cr, sp: of, .. } if of == ServicePoint::Psp(psp) => {
                        Some(cr)
                    }
                    other => panic!("{other:?}"),
                }))
            }
        };
        assert_eq!(net.nodes[0].ep_get_status(active.ep).unwrap().state, EpState::ActiveConnectionPending);
        net.nodes[0].ep_disconnect(active.ep, CloseFlags::Graceful).unwrap();
        assert_eq!(net.connection(0, &active), ConnectionEvent::Disconnected);
        if stage == 0 {
            flushed_receives(&mut net, 0, &active, 2);
        }
        net.pass(2_000_000_000);
        net.empty(0, active.connect);
        if let Some(cr) = cr {
            net.nodes[1].cr_accept(cr, Some(passive.ep), b"").unwrap();
            assert_eq!(net.connection(1, &passive), ConnectionEvent::AcceptCompletionError);
        }
        while let Ok(event) = net.nodes[1].evd_dequeue(passive.cr) {
            let EventData::ConnectionRequest { cr, .. } = event.data else { panic!("{event:?}") };
            net.nodes[1].cr_reject(cr).unwrap();
        }
        net.nodes[0].ep_reset(active.ep).unwrap();
    }
}

#[test]
fn an_accept_that_is_aborted_ends_in_one_event() {
    let mut net = Net::new(11, 2);
    let [active, passive] = [net.side(0, &Options::default()), net.side(1, &Options::default())];
    let psp = net.nodes[1].psp_create(passive.ia, 7, passive.cr, PspFlags::Consumer).unwrap();
    net.ask(&active, 7, TIMEOUT_INFINITE, b"");
    let cr = net.request(&passive, psp);
    net.nodes[1].cr_accept(cr, Some(passive.ep), b"").unwrap();
    net.nodes[1].ep_disconnect(passive.ep, CloseFlags::Abrupt).unwrap();
    assert_eq!(net.connection(1, &passive), ConnectionEvent::Disconnected);
    let event = net.connection(0, &active);
    assert!(
        matches!(event, ConnectionEvent::PeerRejected | ConnectionEvent::Established),
        "the REJ reaches the peer before or after its RTU: {event:?}"
    );
    if event == ConnectionEvent::Established {
        assert!(matches!(
            net.connection(0, &active),
            ConnectionEvent::Disconnected | ConnectionEvent::Broken
        ));
    }
    net.pass(3_000_000_000);
    net.empty(0, active.connect);
    net.empty(1, passive.connect);
}

#[test]
fn both_sides_disconnect_at_once() {
    for seed in 20..24 {
        let mut net = Net::new(seed, 2);
        let sides = net.pair(&merged());
        for (node, side) in sides.iter().enumerate() {
            post_receives(&mut net, node, side, 4);
        }
        for (node, side) in sides.iter().enumerate() {
            net.nodes[node].ep_disconnect(side.ep, CloseFlags::Abrupt).unwrap();
        }
        for (node, side) in sides.iter().enumerate() {
            for index in 0..4 {
                let flush = net.dto(node, side.recv);
                assert_eq!((flush.user_cookie, flush.status), (100 + index, DtoStatus::ErrFlushed));
            }
            assert_eq!(net.connection(node, side), ConnectionEvent::Disconnected);
        }
        net.pass(5_000_000_000);
        for (node, side) in sides.iter().enumerate() {
            net.empty(node, side.connect);
            net.nodes[node].ep_disconnect(side.ep, CloseFlags::Abrupt).unwrap();
            net.empty(node, side.connect);
        }
    }
}

#[test]
fn freeing_a_connected_endpoint_tells_the_peer() {
    let mut net = Net::new(12, 2);
    let [active, passive] = net.pair(&merged());
    post_receives(&mut net, 0, &active, 3);
    post_receives(&mut net, 1, &passive, 3);
    net.nodes[0].ep_free(active.ep).unwrap();
    assert!(net.nodes[0].ep_get_status(active.ep).unwrap_err().is(ReturnType::InvalidHandle));
    net.empty(0, active.recv);
    for index in 0..3 {
        assert_eq!(net.dto(1, passive.recv).user_cookie, 100 + index);
    }
    assert_eq!(net.connection(1, &passive), ConnectionEvent::Disconnected);
    // Everything goes in order, and a second open of the IA closes gracefully.
    net.nodes[0].lmr_free(active.lmr.lmr).unwrap();
    net.nodes[0].pz_free(active.pz).unwrap();
    assert!(net.nodes[0].ia_close(active.ia, CloseFlags::Graceful).unwrap_err().is(ReturnType::InvalidState));
    net.nodes[0].evd_free(active.recv).unwrap();
    net.nodes[0].ia_close(active.ia, CloseFlags::Graceful).unwrap();
    net.nodes[1].ia_close(passive.ia, CloseFlags::Abrupt).unwrap();
    net.assert_no_refusals();
}

#[test]
fn an_adapter_can_connect_to_itself() {
    let mut net = Net::new(13, 1);
    let [active, passive] = [net.side(0, &Options::default()), net.side(0, &Options::default())];
    net.nodes[0].psp_create(passive.ia, 7, passive.cr, PspFlags::Consumer).unwrap();
    let own = address(0);
    net.nodes[0]
        .ep_connect(active.ep, &own, 7, 5_000_000, b"", Qos::BestEffort, ConnectFlags::Default)
        .unwrap();
    let EventData::ConnectionRequest { cr, .. } = net.event(0, passive.cr) else { panic!() };
    net.nodes[0].cr_accept(cr, Some(passive.ep), b"").unwrap();
    assert_eq!(net.connection(0, &active), ConnectionEvent::Established);
    assert_eq!(net.connection(0, &passive), ConnectionEvent::Established);
    active.fill(0, 3000, 9);
    net.nodes[0].ep_post_recv(passive.ep, &[passive.segment(0, 3000)], 1, NONE).unwrap();
    net.nodes[0].ep_post_send(active.ep, &[active.segment(0, 3000)], 2, NONE).unwrap();
    assert_eq!(net.dto(0, passive.recv).transferred_length, 3000);
    passive.check(0, 3000, 9);
}

#[test]
fn many_connections_come_and_go() {
    let mut net = Net::new(14, 2);
    let [active, passive] = [net.side(0, &Options::default()), net.side(1, &Options::default())];
    let psp = net.nodes[1].psp_create(passive.ia, 7, passive.cr, PspFlags::Consumer).unwrap();
    let census = [net.world.census(0), net.world.census(1)];
    for round in 0..40 {
        net.ask(&active, 7, TIMEOUT_INFINITE, b"");
        let cr = net.request(&passive, psp);
        net.nodes[1].cr_accept(cr, Some(passive.ep), b"").unwrap();
        assert_eq!(net.connection(0, &active), ConnectionEvent::Established, "round {round}");
        assert_eq!(net.connection(1, &passive), ConnectionEvent::Established, "round {round}");
        let from = round % 2;
        let side = if from == 0 { &active } else { &passive };
        net.nodes[from].ep_disconnect(side.ep, CloseFlags::Abrupt).unwrap();
        assert_eq!(net.connection(0, &active), ConnectionEvent::Disconnected, "round {round}");
        assert_eq!(net.connection(1, &passive), ConnectionEvent::Disconnected, "round {round}");
        net.nodes[0].ep_reset(active.ep).unwrap();
        net.nodes[1].ep_reset(passive.ep).unwrap();
    }
    assert_eq!([net.world.census(0), net.world.census(1)], census);
    net.assert_no_refusals();
}

#[test]
fn closing_gives_everything_back() {
    let mut net = Net::new(15, 2);
    net.pair(&Options::default());
    let world = net.world.clone();
    for (node, adapter) in net.nodes.drain(..).enumerate() {
        adapter.close().unwrap();
        assert_eq!(world.census(node).total(), 0, "{}", world.census(node));
        assert_eq!(world.firmware_pages(node), 0);
        assert_eq!(world.refusals(node), Vec::<String>::new());
    }
}

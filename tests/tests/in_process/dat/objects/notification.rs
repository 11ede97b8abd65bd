//! Notification: what wakes, what is reported, what is neither.

use crate::dat::objects::NONE;
use dat_nostd::*;
use harness::net::{Net, Options, Side};

/// An EP whose completions notify in this way, on EVDs of its own and a CNO; connected to node 0's.
fn notified(net: &mut Net, recv: CompletionFlags, request: CompletionFlags) -> ([Side; 2], CnoHandle) {
    let active = net.side(0, &Options::default());
    let mut passive = net.side(1, &Options::default());
    let node = &mut net.nodes[1];
    node.ep_free(passive.ep).unwrap();
    let cno = node.cno_create(passive.ia, None).unwrap();
    passive.recv = node.evd_create(passive.ia, 64, Some(cno), EvdFlags::DTO).unwrap();
    passive.request = node.evd_create(passive.ia, 64, Some(cno), EvdFlags::DTO).unwrap();
    let attributes = EpAttributes {
        recv_completion_flags: recv,
        request_completion_flags: request,
        ..EpAttributes::DEFAULT
    };
    let (pz, connect) = (Some(passive.pz), Some(passive.connect));
    passive.ep = node
        .ep_create(passive.ia, pz, Some(passive.recv), Some(passive.request), connect, Some(&attributes))
        .unwrap();
    net.connect(&[active, passive]);
    ([active, passive], cno)
}

/// Whether the CNO has triggered since it was last asked, and by which EVD.
fn triggered(net: &mut Net, cno: CnoHandle) -> Option<EvdHandle> {
    net.pass(1_000_000);
    let now = net.world.now();
    let mut waiter = net.nodes[1].cno_wait_begin(cno, Instant::from_nanos(now), 0).unwrap();
    match net.nodes[1].cno_wait_poll(&mut waiter, Instant::from_nanos(now)) {
        Ok(CnoWait::Triggered(evd)) => Some(evd.expect("it lives")),
        Err(error) if error.is(ReturnType::QueueEmpty) => None,
        other => panic!("{other:?}"),
    }
}

/// Solicited: only what the sender marks wakes; everything is there.
#[test]
fn solicited_completions_are_counted() {
    let mut net = Net::new(91, 2);
    let ([active, passive], cno) =
        notified(&mut net, CompletionFlags::SOLICITED_WAIT, CompletionFlags::EVD_THRESHOLD);
    triggered(&mut net, cno);
    for cookie in 0..12 {
        net.nodes[1].ep_post_recv(passive.ep, &[passive.segment(0, 64)], cookie, NONE).unwrap();
    }
    let mut woken = 0;
    for number in 0..12 {
        let solicits = number % 4 == 3;
        let flags = if solicits { CompletionFlags::SOLICITED_WAIT } else { NONE };
        net.nodes[0].ep_post_send(active.ep, &[active.segment(0, 8)], number, flags).unwrap();
        net.dto(0, active.request);
        let by = triggered(&mut net, cno);
        assert_eq!(by, solicits.then_some(passive.recv), "message {number}");
        if solicits {
            // Once awake, everything that came is there.
            for cookie in number - 3..=number {
                let Ok(Event { data: EventData::Dto(done), .. }) = net.nodes[1].evd_dequeue(passive.recv)
                else {
                    panic!("message {cookie} is missing")
                };
                assert_eq!(done.user_cookie, cookie);
            }
            net.empty(1, passive.recv);
            woken += 1;
        }
    }
    assert_eq!(woken, 3);
    // A wait sleeps through what is not solicited.
    let now = net.world.now();
    for cookie in 0..2 {
        net.nodes[1].ep_post_recv(passive.ep, &[passive.segment(0, 64)], cookie, NONE).unwrap();
    }
    let mut waiter =
        net.nodes[1].evd_wait_begin(passive.recv, Instant::from_nanos(now), TIMEOUT_INFINITE, 1).unwrap();
    assert!(matches!(
        net.nodes[1].evd_wait_poll(&mut waiter, Instant::from_nanos(now)),
        Ok(Wait::Pending(_))
    ));
    net.nodes[0].ep_post_send(active.ep, &[], 0, NONE).unwrap();
    net.pass(1_000_000);
    let now = net.world.now();
    assert!(matches!(
        net.nodes[1].evd_wait_poll(&mut waiter, Instant::from_nanos(now)),
        Ok(Wait::Pending(_))
    ));
    net.nodes[0].ep_post_send(active.ep, &[], 0, CompletionFlags::SOLICITED_WAIT).unwrap();
    net.pass(1_000_000);
    let now = net.world.now();
    match net.nodes[1].evd_wait_poll(&mut waiter, Instant::from_nanos(now)) {
        Ok(Wait::Ready(Event { data: EventData::Dto(done), .. }, 1)) => assert_eq!(done.user_cookie, 0),
        other => panic!("{other:?}"),
    }
}

/// UNSIGNALLED: the event is there and does not wake; SUPPRESS: there is none unless it fails.
#[test]
fn unsignalled_and_suppressed_completions_are_counted() {
    let mut net = Net::new(92, 2);
    let unsignalled = CompletionFlags::UNSIGNALLED;
    let ([active, passive], cno) = notified(&mut net, unsignalled, unsignalled);
    triggered(&mut net, cno);
    let (mut events, mut wakes) = (0, 0);
    for number in 0..24u64 {
        let flags = [NONE, unsignalled, CompletionFlags::SUPPRESS][number as usize % 3];
        let iov = [passive.segment(0, 64)];
        net.nodes[1].ep_post_rdma_write(passive.ep, &iov, number, &active.remote(0, 64), flags).unwrap();
        let by = triggered(&mut net, cno);
        assert_eq!(by, (flags == NONE).then_some(passive.request), "write {number}");
        wakes += u64::from(by.is_some());
        match net.nodes[1].evd_dequeue(passive.request) {
            Ok(Event { data: EventData::Dto(done), .. }) => {
                assert_eq!((done.user_cookie, done.status), (number, DtoStatus::Success));
                assert_ne!(flags, CompletionFlags::SUPPRESS, "a suppressed success is not told");
                events += 1;
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) => assert_eq!((error, flags), (DatReturn::QUEUE_EMPTY, CompletionFlags::SUPPRESS)),
        }
    }
    assert_eq!((events, wakes), (16, 8));
    // Receives that do not wake are there too.
    for cookie in 0..2 {
        let flags = if cookie == 0 { unsignalled } else { NONE };
        net.nodes[1].ep_post_recv(passive.ep, &[passive.segment(0, 64)], cookie, flags).unwrap();
        net.nodes[0].ep_post_send(active.ep, &[], cookie, NONE).unwrap();
        assert_eq!(triggered(&mut net, cno), (cookie == 1).then_some(passive.recv));
    }
    for cookie in 0..2 {
        assert_eq!(net.dto(1, passive.recv).user_cookie, cookie);
    }
    // A failure is told and wakes, whatever was asked for.
    let mut remote = active.remote(0, 64);
    remote.rmr_context ^= 0x33;
    let flags = CompletionFlags::SUPPRESS;
    net.nodes[1].ep_post_rdma_write(passive.ep, &[passive.segment(0, 64)], 99, &remote, flags).unwrap();
    assert_eq!(triggered(&mut net, cno), Some(passive.request));
    let failed = net.dto(1, passive.request);
    assert_eq!((failed.user_cookie, failed.status), (99, DtoStatus::ErrRemoteAccess));
}

/// One CNO for EVDs of every kind: the EVD that fired first is named, further triggers are absorbed, a sweep finds all.
#[test]
fn one_cno_watches_all_kinds_of_events() {
    let mut net = Net::new(93, 2);
    let threshold = CompletionFlags::EVD_THRESHOLD;
    let ([active, passive], cno) = notified(&mut net, threshold, threshold);
    let software = net.nodes[1].evd_create(passive.ia, 8, Some(cno), EvdFlags::SOFTWARE).unwrap();
    for evd in [passive.connect, passive.cr] {
        net.nodes[1].evd_modify_cno(evd, Some(cno)).unwrap();
    }
    triggered(&mut net, cno);
    assert_eq!(triggered(&mut net, cno), None);
    // A message.
    net.nodes[1].ep_post_recv(passive.ep, &[passive.segment(0, 64)], 1, NONE).unwrap();
    net.nodes[0].ep_post_send(active.ep, &[], 1, NONE).unwrap();
    assert_eq!(triggered(&mut net, cno), Some(passive.recv));
    assert_eq!(triggered(&mut net, cno), None, "a trigger is taken by one wait");
    // A disabled EVD does not trigger; events are there all the same.
    net.nodes[1].evd_disable(software).unwrap();
    net.nodes[1].evd_post_se(software, 1).unwrap();
    assert_eq!(triggered(&mut net, cno), None);
    net.nodes[1].evd_enable(software).unwrap();
    net.nodes[1].evd_post_se(software, 2).unwrap();
    assert_eq!(triggered(&mut net, cno), Some(software));
    // A waiter owns its EVD.
    let now = net.world.now();
    let waiter =
        net.nodes[1].evd_wait_begin(software, Instant::from_nanos(now), TIMEOUT_INFINITE, 8).unwrap();
    net.nodes[1].evd_post_se(software, 3).unwrap();
    assert_eq!(triggered(&mut net, cno), None);
    net.nodes[1].evd_wait_end(waiter).unwrap();
    // Two at once: the first is the hint, one wait takes both.
    net.nodes[1].evd_post_se(software, 4).unwrap();
    net.nodes[1].ep_disconnect(passive.ep, CloseFlags::Abrupt).unwrap();
    assert_eq!(triggered(&mut net, cno), Some(software));
    assert_eq!(triggered(&mut net, cno), None, "absorbed");
    assert_eq!(net.connection(1, &passive), ConnectionEvent::Disconnected);
    for value in 1..=4 {
        assert_eq!(net.event(1, software), EventData::Software { value });
    }
    // A wait that is open is woken.
    let now = net.world.now();
    let mut waiter = net.nodes[1].cno_wait_begin(cno, Instant::from_nanos(now), TIMEOUT_INFINITE).unwrap();
    assert!(matches!(
        net.nodes[1].cno_wait_poll(&mut waiter, Instant::from_nanos(now)),
        Ok(CnoWait::Pending(_))
    ));
    net.nodes[1].evd_post_se(software, 5).unwrap();
    assert_eq!(
        net.nodes[1].cno_wait_poll(&mut waiter, Instant::from_nanos(now)),
        Ok(CnoWait::Triggered(Some(software)))
    );
}

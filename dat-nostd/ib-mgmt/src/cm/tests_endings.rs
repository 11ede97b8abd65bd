//! Ends of connections, and messages of strangers.

use super::*;
use crate::cm::message::{Apr, Dreq, Lap, SidrRep, SidrReq};
use ib_types::{Guid, Lid, Psn, QpNumber};

#[test]
fn disconnect_from_either_side() {
    for active in [true, false] {
        let (mut sa, mut sb) = (Store::new(1), Store::new(1));
        let (mut a, mut b) = (sa.cm(A), sb.cm(B));
        let (ida, idb) = connected(&mut a, &mut b);
        if active {
            a.disconnect(Instant::ORIGIN + MS, ida, b"bye").unwrap();
        } else {
            b.disconnect(Instant::ORIGIN + MS, idb, b"bye").unwrap();
        }
        settle(Instant::ORIGIN + MS, &mut a, &mut b);
        let (ca, cb) = if active {
            (DisconnectCause::Local, DisconnectCause::Peer)
        } else {
            (DisconnectCause::Peer, DisconnectCause::Local)
        };
        assert_eq!(a.poll_event(), Some(CmEvent::Disconnected { id: ida, owner: 1, cause: ca }));
        assert_eq!(b.poll_event(), Some(CmEvent::Disconnected { id: idb, owner: 2, cause: cb }));
        let told = if active { b.private_data(idb) } else { a.private_data(ida) };
        assert_eq!(told[..4], *b"bye\0");
        assert_eq!(a.disconnect(Instant::ORIGIN + MS, ida, &[]), Err(CmError::WrongState(State::TimeWait)));
        assert_eq!(a.poll_event(), None);
        // At least twice the packet life time (1.05 ms) and the ACK delay (134 ms).
        let mut now = Instant::ORIGIN + MS;
        while !a.has_event() {
            now = due(&a).unwrap();
            assert_eq!(messages(&mut a, now), []);
        }
        assert!(now >= Instant::ORIGIN + MS + Duration::from_nanos(2 * 1_048_576 + 134_217_728), "{now:?}");
        assert_eq!(events(&mut a), [CmEvent::TimeWaitExit { id: ida, owner: 1 }]);
        assert_eq!((a.slots_in_use(), a.disconnect(now, ida, &[])), (0, Err(CmError::InvalidId)));
    }
}

#[test]
fn crossing_and_lost_disconnects_end_both_sides() {
    let (mut sa, mut sb) = (Store::new(1), Store::new(1));
    let (mut a, mut b) = (sa.cm(A), sb.cm(B));
    let (ida, idb) = connected(&mut a, &mut b);
    a.disconnect(Instant::ORIGIN, ida, &[]).unwrap();
    b.disconnect(Instant::ORIGIN, idb, &[]).unwrap();
    settle(Instant::ORIGIN, &mut a, &mut b);
    let cause = DisconnectCause::Local;
    assert_eq!(events(&mut a), [CmEvent::Disconnected { id: ida, owner: 1, cause }]);
    assert_eq!(events(&mut b), [CmEvent::Disconnected { id: idb, owner: 2, cause }]);

    let (mut sa, mut sb) = (Store::new(1), Store::new(1));
    let (mut a, mut b) = (sa.cm(A), sb.cm(B));
    let (ida, _) = connected(&mut a, &mut b);
    a.disconnect(Instant::ORIGIN, ida, &[]).unwrap();
    let mut dreqs = 0;
    let mut seen = vec![];
    while let Some(at) = due(&a) {
        dreqs += messages(&mut a, at).len();
        seen.extend(events(&mut a));
    }
    assert_eq!(dreqs, 6);
    let cause = DisconnectCause::LocalUnanswered;
    assert_eq!(seen[0], CmEvent::Disconnected { id: ida, owner: 1, cause });
    assert_eq!(seen[1], CmEvent::TimeWaitExit { id: ida, owner: 1 });
}

#[test]
fn a_dreq_is_always_answered() {
    let (mut sa, mut sb) = (Store::new(1), Store::new(1));
    let (mut a, mut b) = (sa.cm(A), sb.cm(B));
    let (ida, _) = connected(&mut a, &mut b);
    a.disconnect(Instant::ORIGIN, ida, &[]).unwrap();
    let dreq = one(messages(&mut a, Instant::ORIGIN));
    let mut forgotten = Store::new(1);
    let mut restarted = forgotten.cm(B);
    restarted.process(Instant::ORIGIN, &MadAddress::local(A), &dreq.mad);
    let drep = one(messages(&mut restarted, Instant::ORIGIN)).mad;
    assert_eq!(drep.attr_id(), attr::CM_DREP);
    a.process(Instant::ORIGIN, &MadAddress::local(B), &drep);
    let cause = DisconnectCause::Local;
    assert_eq!(events(&mut a), [CmEvent::Disconnected { id: ida, owner: 1, cause }]);
}

#[test]
fn dreq_before_rtu_shows_the_connection_and_its_end() {
    let (mut sa, mut sb) = (Store::new(1), Store::new(1));
    let (mut a, mut b) = (sa.cm(A), sb.cm(B));
    b.listen(SERVICE, 100, 0).unwrap();
    let ida = a.connect(Instant::ORIGIN, &params(), &[], 1).unwrap();
    settle(Instant::ORIGIN, &mut a, &mut b);
    let [CmEvent::ConnectRequest { id: idb, .. }] = events(&mut b)[..] else { panic!() };
    b.accept(Instant::ORIGIN, idb, &accept(), &[], 2).unwrap();
    settle(Instant::ORIGIN, &mut a, &mut b);
    a.rtu(ida, &[]).unwrap();
    messages(&mut a, Instant::ORIGIN); // lost
    a.disconnect(Instant::ORIGIN, ida, &[]).unwrap();
    settle(Instant::ORIGIN, &mut a, &mut b);
    let cause = DisconnectCause::Peer;
    let expected =
        [CmEvent::Established { id: idb, owner: 2 }, CmEvent::Disconnected { id: idb, owner: 2, cause }];
    assert_eq!(events(&mut b), expected);
}

#[test]
fn a_restarted_peer_makes_the_old_connection_stale() {
    let (mut sa, mut sb) = (Store::new(1), Store::new(2));
    let (mut a, mut b) = (sa.cm(A), sb.cm(B));
    let (_, idb) = connected(&mut a, &mut b);
    let mut again = Store::new(1);
    let mut restarted = Cm::new(
        &mut again.slots,
        &mut [],
        &mut again.listeners,
        CmConfig::new(Guid::new(A.get().into()), 0xfeed),
    );
    let id = restarted.connect(Instant::ORIGIN, &params(), &[], 9).unwrap();
    settle(Instant::ORIGIN, &mut restarted, &mut b);
    let reason = RejReason::STALE_CONNECTION;
    assert_eq!(events(&mut restarted), [CmEvent::Rejected { id, owner: 9, reason }]);
    let cause = DisconnectCause::Stale;
    assert_eq!(events(&mut b), [CmEvent::Disconnected { id: idb, owner: 2, cause }]);
    // The next attempt finds the way free.
    let id = restarted.connect(Instant::ORIGIN, &params(), &[], 10).unwrap();
    settle(Instant::ORIGIN, &mut restarted, &mut b);
    let [CmEvent::ConnectRequest { id: idb, .. }] = events(&mut b)[..] else { panic!() };
    b.accept(Instant::ORIGIN, idb, &accept(), &[], 3).unwrap();
    settle(Instant::ORIGIN, &mut restarted, &mut b);
    assert_eq!(events(&mut restarted), [CmEvent::Reply { id, owner: 10 }]);
}

#[test]
fn a_communication_id_in_use_belongs_to_one_connection() {
    let (mut sa, mut sb) = (Store::new(2), Store::new(2));
    let (mut a, mut b) = (sa.cm(A), sb.cm(B));
    let (_, idb) = connected(&mut a, &mut b);
    let (id, guid) = (b.slots[0].remote_id, b.slots[0].remote_guid);
    // The same id from the same CA with another queue pair: the peer is not the one it was.
    let mut req = foreign_req(guid.get(), 12);
    req.set_local_comm_id(id).set_local_qpn(QpNumber::new(0x77)).set_starting_psn(Psn::new(7));
    b.process(Instant::ORIGIN, &MadAddress::local(A), &req.to_mad(1));
    let rej = Rej::from_mad(&one(messages(&mut b, Instant::ORIGIN)).mad);
    assert_eq!((rej.reason(), rej.remote_comm_id()), (10, id));
    let ended = CmEvent::Disconnected { id: idb, owner: 2, cause: DisconnectCause::Stale };
    assert_eq!(events(&mut b), [ended]);
    // The next REQ of the new queue pair is a connection request.
    b.process(Instant::ORIGIN, &MadAddress::local(A), &req.to_mad(2));
    assert!(messages(&mut b, Instant::ORIGIN).is_empty());
    assert!(matches!(events(&mut b)[..], [CmEvent::ConnectRequest { .. }]));
}

#[test]
fn a_reply_to_nobody_is_rejected_and_ends_the_passive_side() {
    let (mut sa, mut sb) = (Store::new(1), Store::new(1));
    let (mut a, mut b) = (sa.cm(A), sb.cm(B));
    b.listen(SERVICE, 100, 0).unwrap();
    let ida = a.connect(Instant::ORIGIN, &params(), &[], 1).unwrap();
    settle(Instant::ORIGIN, &mut a, &mut b);
    let [CmEvent::ConnectRequest { id: idb, .. }] = events(&mut b)[..] else { panic!() };
    a.abandon(Instant::ORIGIN, ida, &[]).unwrap();
    messages(&mut a, Instant::ORIGIN); // The REJ is lost.
    b.accept(Instant::ORIGIN, idb, &accept(), &[], 2).unwrap();
    settle(Instant::ORIGIN, &mut a, &mut b);
    let reason = RejReason::INVALID_COMM_ID;
    assert_eq!(events(&mut b), [CmEvent::Rejected { id: idb, owner: 2, reason }]);
}

#[test]
fn the_active_side_may_reject_the_reply() {
    let (mut sa, mut sb) = (Store::new(1), Store::new(1));
    let (mut a, mut b) = (sa.cm(A), sb.cm(B));
    b.listen(SERVICE, 100, 0).unwrap();
    let ida = a.connect(Instant::ORIGIN, &params(), &[], 1).unwrap();
    settle(Instant::ORIGIN, &mut a, &mut b);
    let [CmEvent::ConnectRequest { id: idb, .. }] = events(&mut b)[..] else { panic!() };
    b.accept(Instant::ORIGIN, idb, &accept(), &[], 2).unwrap();
    settle(Instant::ORIGIN, &mut a, &mut b);
    assert_eq!(events(&mut a).len(), 1);
    a.reject(Instant::ORIGIN, ida, RejReason::CONSUMER_DEFINED, &[], b"changed my mind").unwrap();
    settle(Instant::ORIGIN, &mut a, &mut b);
    let reason = RejReason::CONSUMER_DEFINED;
    assert_eq!(b.poll_event(), Some(CmEvent::Rejected { id: idb, owner: 2, reason }));
    assert_eq!(b.private_data(idb)[..16], *b"changed my mind\0");
    assert_eq!(events(&mut a), []);
}

#[test]
fn abandoning_works_in_every_state_and_leaks_nothing() {
    // 0 REQ sent, 1 reply received, 2 established, 3 DREQ sent; then the passive side's: 4 request,
    // 5 REP sent, 6 established.
    for step in 0..7 {
        let (mut sa, mut sb) = (Store::new(1), Store::new(1));
        let (mut a, mut b) = (sa.cm(A), sb.cm(B));
        b.listen(SERVICE, 100, 0).unwrap();
        let ida = a.connect(Instant::ORIGIN, &params(), &[], 1).unwrap();
        let mut idb = None;
        if step > 0 {
            settle(Instant::ORIGIN, &mut a, &mut b);
            let [CmEvent::ConnectRequest { id, .. }] = events(&mut b)[..] else { panic!() };
            idb = Some(id);
            if step != 4 {
                b.accept(Instant::ORIGIN, id, &accept(), &[], 2).unwrap();
            }
            if step != 4 && step != 5 {
                settle(Instant::ORIGIN, &mut a, &mut b);
                events(&mut a);
            }
            if [2, 3, 6].contains(&step) {
                a.rtu(ida, &[]).unwrap();
                settle(Instant::ORIGIN, &mut a, &mut b);
                events(&mut b);
            }
            if step == 3 {
                a.disconnect(Instant::ORIGIN, ida, &[]).unwrap();
            }
        }
        if step < 4 {
            a.abandon(Instant::ORIGIN, ida, &[]).unwrap();
            assert_eq!(a.abandon(Instant::ORIGIN, ida, &[]), Err(CmError::InvalidId));
        } else {
            b.abandon(Instant::ORIGIN, idb.unwrap(), &[]).unwrap();
            assert_eq!(b.abandon(Instant::ORIGIN, idb.unwrap(), &[]), Err(CmError::InvalidId));
        }
        let mut told_a = vec![];
        let mut told_b = vec![];
        for _ in 0..1000 {
            let next = [due(&a), due(&b)].into_iter().flatten().min();
            let Some(at) = next else { break };
            settle(at, &mut a, &mut b);
            told_a.extend(events(&mut a));
            told_b.extend(events(&mut b));
        }
        assert_eq!((a.slots_in_use(), b.slots_in_use()), (0, 0), "step {step}");
        let (quiet, told) = if step < 4 { (told_a, told_b) } else { (told_b, told_a) };
        assert_eq!(quiet, [], "step {step}");
        assert_eq!(told.is_empty(), step == 0, "step {step}: {told:?}");
    }
}

#[test]
fn a_slot_is_not_used_again_before_its_last_message_is_sent() {
    let mut sa = Store::new(1);
    let mut a = sa.cm(A);
    let id = a.connect(Instant::ORIGIN, &params(), &[], 1).unwrap();
    a.abandon(Instant::ORIGIN, id, &[]).unwrap();
    assert_eq!(a.connect(Instant::ORIGIN, &params(), &[], 2), Err(CmError::NoResources));
    assert_eq!(one(messages(&mut a, Instant::ORIGIN)).mad.attr_id(), attr::CM_REJ);
    let again = a.connect(Instant::ORIGIN, &params(), &[], 2).unwrap();
    assert_ne!(again, id);
    assert_eq!(a.info(id), None);
}

#[test]
fn a_connection_can_be_looked_at_until_the_next_event_is_fetched() {
    let mut sa = Store::new(1);
    let mut a = sa.cm(A);
    let once = ConnectParams { max_cm_retries: 0, ..params() };
    let id = a.connect(Instant::ORIGIN, &once, &[], 1).unwrap();
    messages(&mut a, Instant::ORIGIN);
    let due = due(&a).unwrap();
    let rej = a.dispatch(due);
    assert_eq!(a.poll_event(), Some(CmEvent::TimedOut { id, owner: 1, stage: Stage::Req }));
    assert!(rej.is_some() && a.dispatch(due).is_none());
    assert_eq!(a.info(id).map(|info| info.service_id), Some(SERVICE));
    assert_eq!((a.poll_event(), a.info(id)), (None, None));

    // The other way round: the event is fetched first (another answer is sent before), then the
    // message.
    let id = a
        .connect(Instant::ORIGIN, &ConnectParams { deadline: Some(Instant::ORIGIN), ..once }, &[], 2)
        .unwrap();
    a.process(Instant::ORIGIN, &MadAddress::local(B), &Dreq::zeroed().to_mad(0));
    assert_eq!(a.dispatch(Instant::ORIGIN).map(|out| out.mad.attr_id()), Some(attr::CM_DREP));
    assert_eq!(a.poll_event(), Some(CmEvent::TimedOut { id, owner: 2, stage: Stage::Req }));
    assert_eq!(a.dispatch(Instant::ORIGIN).map(|out| out.mad.attr_id()), Some(attr::CM_REJ));
    assert!(a.info(id).is_some());
    assert!(a.poll_event().is_none() && a.info(id).is_none());
}

#[test]
fn a_reply_that_is_taken_back_before_it_was_fetched_is_not_shown() {
    let (mut sa, mut sb) = (Store::new(1), Store::new(1));
    let (mut a, mut b) = (sa.cm(A), sb.cm(B));
    b.listen(SERVICE, 100, 0).unwrap();
    let ida = a.connect(Instant::ORIGIN, &params(), &[], 1).unwrap();
    settle(Instant::ORIGIN, &mut a, &mut b);
    let [CmEvent::ConnectRequest { id: idb, .. }] = events(&mut b)[..] else { panic!() };
    b.accept(Instant::ORIGIN, idb, &accept(), &[], 2).unwrap();
    settle(Instant::ORIGIN, &mut a, &mut b);
    b.abandon(Instant::ORIGIN, idb, b"after all, no").unwrap();
    settle(Instant::ORIGIN, &mut a, &mut b);
    let reason = RejReason::CONSUMER_DEFINED;
    assert_eq!(a.poll_event(), Some(CmEvent::Rejected { id: ida, owner: 1, reason }));
    assert_eq!(a.private_data(ida)[..14], *b"after all, no\0");
    assert_eq!(a.poll_event(), None);
}

#[test]
fn a_node_connects_to_itself() {
    let mut store = Store::new(2);
    let mut cm = store.cm(A);
    cm.listen(SERVICE, 100, 0).unwrap();
    let active =
        cm.connect(Instant::ORIGIN, &ConnectParams { path: path(A, A), ..params() }, &[], 1).unwrap();
    let mut passive = None;
    let mut ended = 0;
    for _ in 0..20 {
        for out in messages(&mut cm, Instant::ORIGIN) {
            cm.process(Instant::ORIGIN, &MadAddress::local(A), &out.mad);
        }
        while let Some(event) = cm.poll_event() {
            match event {
                CmEvent::ConnectRequest { id, .. } => {
                    passive = Some(id);
                    cm.accept(Instant::ORIGIN, id, &accept(), &[], 2).unwrap();
                }
                CmEvent::Reply { id, .. } => cm.rtu(id, &[]).unwrap(),
                CmEvent::Established { id, .. } => {
                    assert_eq!(Some(id), passive);
                    cm.disconnect(Instant::ORIGIN, active, &[]).unwrap();
                }
                CmEvent::Disconnected { .. } => ended += 1,
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(ended, 2);
}

#[test]
fn strange_requests_are_refused_with_the_reason() {
    let mut sb = Store::new(1);
    let mut b = sb.cm(B);
    b.listen(SERVICE, 100, 0).unwrap();
    let mut req = Req::zeroed();
    req.set_local_comm_id(5).set_service_id(SERVICE).set_path_mtu(5).set_transport_service(1);
    b.process(Instant::ORIGIN, &MadAddress::local(A), &req.to_mad(9));
    let rej = Rej::from_mad(&one(messages(&mut b, Instant::ORIGIN)).mad);
    assert_eq!((rej.reason(), rej.remote_comm_id(), rej.message_rejected()), (9, 5, 0));
    req.set_transport_service(0).set_path_mtu(0);
    b.process(Instant::ORIGIN, &MadAddress::local(A), &req.to_mad(9));
    assert_eq!(Rej::from_mad(&one(messages(&mut b, Instant::ORIGIN)).mad).reason(), 26);
    let mut old = req.to_mad(9);
    old.set_class_version(1);
    b.process(Instant::ORIGIN, &MadAddress::local(A), &old);
    assert_eq!(Rej::from_mad(&one(messages(&mut b, Instant::ORIGIN)).mad).reason(), 31);
    b.process(Instant::ORIGIN, &MadAddress::local(A), &Mad::new(class::SUBN_ADM, 2, method::GET, 0x35, 1));
    assert_eq!(b.counters().foreign, 1);
    let mut sidr = SidrReq::zeroed();
    sidr.set_request_id(77);
    b.process(Instant::ORIGIN, &MadAddress::local(A), &sidr.to_mad(1));
    let reply = SidrRep::from_mad(&one(messages(&mut b, Instant::ORIGIN)).mad);
    assert_eq!((reply.request_id(), reply.status()), (77, 1));
    b.process(Instant::ORIGIN, &MadAddress::local(A), &Lap::zeroed().to_mad(1));
    assert_eq!(Apr::from_mad(&one(messages(&mut b, Instant::ORIGIN)).mad).ap_status(), 1);
    assert_eq!(b.slots_in_use(), 0);
}

#[test]
fn strangers_cannot_move_a_connection() {
    let (mut sa, mut sb) = (Store::new(1), Store::new(1));
    let (mut a, mut b) = (sa.cm(A), sb.cm(B));
    let (_, idb) = connected(&mut a, &mut b);
    let local = b.slots[0].local_id;
    for wrong in [0, 1, 0xffff_ffff] {
        let mut rej = Rej::zeroed();
        rej.set_local_comm_id(wrong).set_remote_comm_id(local).set_reason(28);
        b.process(Instant::ORIGIN, &MadAddress::local(Lid::new(9)), &rej.to_mad(1));
        let mut dreq = Dreq::zeroed();
        dreq.set_local_comm_id(wrong).set_remote_comm_id(local).set_remote_qpn(QpNumber::new(0x22));
        b.process(Instant::ORIGIN, &MadAddress::local(Lid::new(9)), &dreq.to_mad(1));
        let mut rtu = Rtu::zeroed();
        rtu.set_local_comm_id(wrong).set_remote_comm_id(local);
        b.process(Instant::ORIGIN, &MadAddress::local(Lid::new(9)), &rtu.to_mad(1));
        let mut rep = Rep::zeroed();
        rep.set_local_comm_id(wrong).set_remote_comm_id(local);
        b.process(Instant::ORIGIN, &MadAddress::local(Lid::new(9)), &rep.to_mad(1));
    }
    // A DREQ for another QP of ours.
    let mut dreq = Dreq::zeroed();
    dreq.set_local_comm_id(b.slots[0].remote_id)
        .set_remote_comm_id(local)
        .set_remote_qpn(QpNumber::new(0x23));
    b.process(Instant::ORIGIN, &MadAddress::local(A), &dreq.to_mad(1));
    assert_eq!(events(&mut b), []);
    assert_eq!(b.info(idb).unwrap().state, State::Established);
}

/// A REQ as A would send it.
fn foreign_req(guid: u64, timeout: u8) -> Req {
    let mut req = Req::zeroed();
    req.set_local_comm_id(5).set_service_id(SERVICE).set_path_mtu(5).set_local_qpn(QpNumber::new(0x77));
    req.set_local_ca_guid(Guid::new(guid))
        .set_local_cm_response_timeout(timeout)
        .set_primary_local_ack_timeout(timeout);
    req.set_max_cm_retries(1);
    req
}

#[test]
fn a_peers_time_exponents_are_believed_within_limits() {
    for (timeout, least, most) in [(0, MS, 2 * MS), (31, 8_000 * MS, 30_000 * MS)] {
        let mut sb = Store::new(1);
        let mut b = sb.cm(B);
        b.listen(SERVICE, 100, 0).unwrap();
        b.process(Instant::ORIGIN, &MadAddress::local(A), &foreign_req(3, timeout).to_mad(9));
        let [CmEvent::ConnectRequest { id, .. }] = events(&mut b)[..] else { panic!() };
        b.accept(Instant::ORIGIN, id, &accept(), &[], 2).unwrap();
        assert_eq!(messages(&mut b, Instant::ORIGIN).len(), 1);
        let waits = due(&b).unwrap() - Instant::ORIGIN;
        assert!((least..=most).contains(&waits), "{timeout}: {waits:?}");
    }
}

#[test]
fn two_nodes_with_equal_ids_are_told_apart_by_their_guids() {
    let mut sb = Store::new(2);
    let mut b = sb.cm(B);
    b.listen(SERVICE, 100, 0).unwrap();
    b.process(Instant::ORIGIN, &MadAddress::local(A), &foreign_req(3, 12).to_mad(9));
    b.process(Instant::ORIGIN, &MadAddress::local(Lid::new(8)), &foreign_req(8, 12).to_mad(9));
    let [CmEvent::ConnectRequest { id: from_a, .. }, CmEvent::ConnectRequest { id: from_c, .. }] =
        events(&mut b)[..]
    else {
        panic!()
    };
    assert_eq!((b.info(from_a).unwrap().peer.lid, b.info(from_c).unwrap().peer.lid), (A, Lid::new(8)));
    // The second one withdraws; it never learnt our id.
    let mut rej = Rej::zeroed();
    rej.set_local_comm_id(5).set_message_rejected(which::OTHER).set_reason(RejReason::TIMEOUT.0);
    rej.set_info(&8u64.to_be_bytes()).unwrap();
    b.process(Instant::ORIGIN, &MadAddress::local(Lid::new(8)), &rej.to_mad(9));
    let reason = RejReason::TIMEOUT;
    assert_eq!(events(&mut b), [CmEvent::Rejected { id: from_c, owner: 100, reason }]);
    assert_eq!(b.info(from_a).unwrap().state, State::ReqRcvd);
}

#[test]
fn patience_for_another_message_is_not_patience() {
    let mut sa = Store::new(1);
    let mut a = sa.cm(A);
    a.connect(Instant::ORIGIN, &params(), &[], 1).unwrap();
    messages(&mut a, Instant::ORIGIN);
    let due = due(&a);
    let mut mra = Mra::zeroed();
    mra.set_remote_comm_id(a.slots[0].local_id).set_message_mraed(which::REP).set_service_timeout(20);
    a.process(Instant::ORIGIN, &MadAddress::local(B), &mra.to_mad(1));
    assert_eq!((a.counters().unexpected, a.slots[0].deadline), (1, due.unwrap()));
}

#[test]
fn parameters_outside_their_fields_are_refused() {
    let mut sa = Store::new(1);
    let mut a = sa.cm(A);
    let good = params();
    let mut small_mtu = good;
    small_mtu.path.set_mtu(0);
    for bad in [
        ConnectParams { retry_count: 8, ..good },
        ConnectParams { rnr_retry_count: 8, ..good },
        ConnectParams { response_timeout: 32, ..good },
        ConnectParams { max_cm_retries: 16, ..good },
        small_mtu,
    ] {
        assert_eq!(a.connect(Instant::ORIGIN, &bad, &[], 1), Err(CmError::InvalidParameter), "{bad:?}");
    }
    assert_eq!(a.slots_in_use(), 0);
    let mut none = Store::new(0);
    assert_eq!(none.cm(A).connect(Instant::ORIGIN, &good, &[], 1), Err(CmError::NoResources));
}

proptest! {
    /// Random MADs, many of them about a live connection, in any order: no panic, no leak, always
    /// silence in the end.
    #[test]
    fn hostile_messages(
        inputs in proptest::collection::vec((0x10u16..0x1c, proptest::collection::vec(any::<u8>(), 232), 0u8..8), 1..40),
    ) {
        let (mut sa, mut sb) = (Store::new(3), Store::new(3));
        let (mut a, mut b) = (sa.cm(A), sb.cm(B));
        connected(&mut a, &mut b);
        a.connect(Instant::ORIGIN, &ConnectParams { qpn: QpNumber::new(0x99), ..params() }, &[], 3).unwrap();
        settle(Instant::ORIGIN, &mut a, &mut b);
        let mut now = Instant::ORIGIN;
        let mut pending = vec![];
        for (attr_id, bytes, fix) in inputs {
            let mut mad = Mad::new(class::CM, 2, method::SEND, attr_id, 1);
            let mut data: [u8; 232] = bytes.try_into().unwrap();
            let slot = &b.slots[usize::from(fix) % 3];
            if fix & 1 != 0 {
                data[4..8].copy_from_slice(&slot.local_id.to_be_bytes());
            }
            if fix & 2 != 0 {
                data[0..4].copy_from_slice(&slot.remote_id.to_be_bytes());
            }
            if fix & 4 != 0 && attr_id == attr::CM_REQ {
                data[8..16].copy_from_slice(&SERVICE.to_be_bytes());
                data[43] &= !6;
                data[50] = 0x50;
            }
            mad.set_data(&data);
            b.process(now, &MadAddress::local(A), &mad);
            now += MS;
            messages(&mut b, now);
            for event in events(&mut b) {
                if let CmEvent::ConnectRequest { id, .. } = event {
                    pending.push(id);
                }
            }
        }
        for id in pending {
            let _ = b.accept(now, id, &accept(), &[], 2);
        }
        for slot in 0..3u16 {
            let id = ConnId { slot, generation: b.slots[usize::from(slot)].generation };
            let _ = b.abandon(now, id, &[]);
        }
        for _ in 0..500 {
            let Some(at) = due(&b) else { break };
            now = now.max(at);
            messages(&mut b, now);
            events(&mut b);
        }
        prop_assert_eq!(due(&b), None);
        prop_assert_eq!(b.slots_in_use(), 0);
    }
}

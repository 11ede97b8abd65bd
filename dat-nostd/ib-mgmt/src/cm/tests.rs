//! Tests of the handshake, one behaviour of the communication manager each, on a wire that the test
//! controls. [`endings`] has the ends of connections, and messages of strangers.

use super::message::{Message, Mra, Rej, Rep, Req, Rtu, which};
use super::reason::RejReason;
use super::*;
use crate::mad::{Mad, MadAddress, attr, class, method};
use crate::sa::PathRecord;
use ib_types::{Duration, Gid, Guid, Instant, Lid, PKey, Psn, QpNumber, ServiceLevel};
use proptest::prelude::*;

const SERVICE: u64 = 0x0000_0000_0106_48ca;
const MS: Duration = Duration::from_millis(1);
const A: Lid = Lid::new(3);
const B: Lid = Lid::new(4);

fn path(from: Lid, to: Lid) -> PathRecord {
    *PathRecord::zeroed()
        .set_sgid(Gid::new(Gid::DEFAULT_PREFIX, from.get().into()))
        .set_dgid(Gid::new(Gid::DEFAULT_PREFIX, to.get().into()))
        .set_slid(from)
        .set_dlid(to)
        .set_pkey(PKey::DEFAULT)
        .set_sl(ServiceLevel::new(0))
        .set_mtu(5)
        .set_rate(16)
        .set_packet_life_time(8)
        .set_hop_limit(1)
        .set_traffic_class(0)
        .set_flow_label(0)
}

fn params() -> ConnectParams {
    ConnectParams {
        responder_resources: 16,
        initiator_depth: 8,
        retry_count: 5,
        rnr_retry_count: 6,
        response_timeout: 12, // 16.8 ms
        max_cm_retries: 3,
        ..ConnectParams::new(path(A, B), SERVICE, QpNumber::new(0x11), Psn::new(0x00_1111))
    }
}

fn accept() -> AcceptParams {
    AcceptParams {
        responder_resources: 4,
        initiator_depth: 2,
        rnr_retry_count: 3,
        ..AcceptParams::new(QpNumber::new(0x22), Psn::new(0x00_2222))
    }
}

struct Store {
    slots: Vec<CmSlot>,
    history: Vec<EndedSet>,
    listeners: [Listener; 2],
}

impl Store {
    fn new(slots: usize) -> Store {
        Store {
            slots: vec![CmSlot::EMPTY; slots],
            history: vec![EndedSet::EMPTY; slots],
            listeners: [Listener::EMPTY; 2],
        }
    }

    fn cm(&mut self, lid: Lid) -> Cm<'_> {
        Cm::new(
            &mut self.slots,
            &mut self.history,
            &mut self.listeners,
            CmConfig::new(Guid::new(u64::from(lid.get())), u64::from(lid.get()) * 77),
        )
    }
}

/// When the manager wants to run next; the origin for at once.
pub(super) fn due(cm: &Cm<'_>) -> Option<Instant> {
    cm.poll_at().deadline(Instant::ORIGIN)
}

fn messages(cm: &mut Cm<'_>, now: Instant) -> Vec<Outgoing> {
    core::iter::from_fn(|| cm.dispatch(now)).collect()
}

fn events(cm: &mut Cm<'_>) -> Vec<CmEvent> {
    core::iter::from_fn(|| cm.poll_event()).collect()
}

fn one(mut out: Vec<Outgoing>) -> Outgoing {
    assert_eq!(out.len(), 1, "{out:?}");
    out.remove(0)
}

/// Hands over everything, both ways, until silence.
fn settle(now: Instant, a: &mut Cm<'_>, b: &mut Cm<'_>) {
    loop {
        let (from_a, from_b) = (messages(a, now), messages(b, now));
        if from_a.is_empty() && from_b.is_empty() {
            return;
        }
        for out in from_a {
            b.process(now, &MadAddress::local(A), &out.mad);
        }
        for out in from_b {
            a.process(now, &MadAddress::local(B), &out.mad);
        }
    }
}

/// Connects A to B; the ids of both.
fn connected(a: &mut Cm<'_>, b: &mut Cm<'_>) -> (ConnId, ConnId) {
    if !b.is_listening(SERVICE) {
        b.listen(SERVICE, 100, 0).unwrap();
    }
    let ida = a.connect(Instant::ORIGIN, &params(), b"hello", 1).unwrap();
    settle(Instant::ORIGIN, a, b);
    let idb = match events(b)[..] {
        [CmEvent::ConnectRequest { id, listener: 100 }] => id,
        ref other => panic!("{other:?}"),
    };
    b.accept(Instant::ORIGIN, idb, &accept(), b"welcome", 2).unwrap();
    settle(Instant::ORIGIN, a, b);
    assert_eq!(events(a), [CmEvent::Reply { id: ida, owner: 1 }]);
    a.rtu(ida, b"").unwrap();
    settle(Instant::ORIGIN, a, b);
    assert_eq!(events(b), [CmEvent::Established { id: idb, owner: 2 }]);
    (ida, idb)
}

#[test]
fn connects_and_both_sides_know_the_others_qp() {
    let (mut sa, mut sb) = (Store::new(2), Store::new(2));
    let (mut a, mut b) = (sa.cm(A), sb.cm(B));
    b.listen(SERVICE, 7, 0).unwrap();
    let ida = a.connect(Instant::ORIGIN, &params(), b"hello", 1).unwrap();
    assert_eq!(a.qp_attributes(ida), None);
    let req = one(messages(&mut a, Instant::ORIGIN));
    assert_eq!((req.dest.lid, req.dest.qpn), (B, QpNumber::new(1)));
    b.process(Instant::ORIGIN, &MadAddress::local(A), &req.mad);
    let idb = match events(&mut b)[..] {
        [CmEvent::ConnectRequest { id, listener: 7 }] => id,
        ref other => panic!("{other:?}"),
    };
    assert_eq!(b.private_data(idb).len(), 92);
    assert_eq!(b.private_data(idb)[..6], *b"hello\0");
    let info = b.info(idb).unwrap();
    assert_eq!(
        (info.service_id, info.remote_ca_guid, info.remote_qpn),
        (SERVICE, Guid::new(3), QpNumber::new(0x11))
    );
    assert_eq!((info.peer_responder_resources, info.peer_initiator_depth), (16, 8));
    assert_eq!((info.path.slid(), info.path.dlid(), info.path.mtu()), (B, A, 5));
    assert_eq!((info.path.sgid(), info.path.dgid()), (path(B, A).sgid(), path(B, A).dgid()));
    b.accept(Instant::ORIGIN, idb, &accept(), b"welcome", 2).unwrap();
    settle(Instant::ORIGIN, &mut a, &mut b);
    assert_eq!(events(&mut a), [CmEvent::Reply { id: ida, owner: 1 }]);
    assert_eq!(a.private_data(ida).len(), 196);
    assert_eq!(a.private_data(ida)[..8], *b"welcome\0");
    // The starting PSN of a side's own message is what it expects to receive; the peer's is what it
    // sends.
    let qa = a.qp_attributes(ida).unwrap();
    let qb = b.qp_attributes(idb).unwrap();
    assert_eq!(
        (qa.remote_qpn, qa.rq_psn, qa.sq_psn),
        (QpNumber::new(0x22), Psn::new(0x1111), Psn::new(0x2222))
    );
    assert_eq!(
        (qb.remote_qpn, qb.rq_psn, qb.sq_psn),
        (QpNumber::new(0x11), Psn::new(0x2222), Psn::new(0x1111))
    );
    assert_eq!((qa.responder_resources, qa.initiator_depth), (2, 4));
    assert_eq!((qb.responder_resources, qb.initiator_depth), (4, 2));
    assert_eq!((qa.retry_count, qb.retry_count, qb.path.mtu()), (5, 5, 5));
    // Each side's RNR retry count is that in the peer's message.
    assert_eq!((qa.rnr_retry_count, qb.rnr_retry_count), (3, 6));
    a.rtu(ida, b"").unwrap();
    settle(Instant::ORIGIN, &mut a, &mut b);
    assert_eq!(events(&mut b), [CmEvent::Established { id: idb, owner: 2 }]);
    assert_eq!((a.counters().active_established, b.counters().passive_established), (1, 1));
}

#[test]
fn req_fields_on_the_wire() {
    let mut sa = Store::new(1);
    let mut a = sa.cm(A);
    let id = a.connect(Instant::ORIGIN, &params(), &[9; 92], 1).unwrap();
    let Some(Message::Req(req)) = Message::parse(&one(messages(&mut a, Instant::ORIGIN)).mad) else {
        panic!()
    };
    assert_eq!(
        (req.service_id(), req.local_qpn(), req.starting_psn()),
        (SERVICE, QpNumber::new(0x11), Psn::new(0x1111))
    );
    assert_eq!((req.primary_local_lid(), req.primary_remote_lid()), (A, B));
    assert!(req.primary_subnet_local());
    assert_eq!(req.primary_local_ack_timeout(), 15); // life 8, CA delay 15
    assert_ne!(req.local_comm_id(), 0);
    assert_eq!(a.connect(Instant::ORIGIN, &params(), &[0; 93], 1), Err(CmError::TooLong));
    let mut routed = params();
    routed.path.set_hop_limit(64);
    a.abandon(Instant::ORIGIN, id, &[]).unwrap();
    messages(&mut a, Instant::ORIGIN);
    a.connect(Instant::ORIGIN, &routed, &[], 1).unwrap();
    let out = one(messages(&mut a, Instant::ORIGIN));
    let Some(Message::Req(req)) = Message::parse(&out.mad) else { panic!() };
    assert_eq!((req.primary_local_lid(), req.primary_subnet_local()), (Lid::new(0xffff), false));
    assert_eq!(out.dest.grh.unwrap().remote_gid, routed.path.dgid());
}

#[test]
fn unanswered_req_is_repeated_then_times_out() {
    let mut sa = Store::new(1);
    let mut a = sa.cm(A);
    let id = a.connect(Instant::ORIGIN, &params(), &[], 5).unwrap();
    let first = one(messages(&mut a, Instant::ORIGIN)).mad;
    let step = 16_777_216 + 2 * 1_048_576;
    assert_eq!(due(&a), Some(Instant::ORIGIN + Duration::from_nanos(step)));
    for n in 1..=3 {
        assert_eq!(messages(&mut a, Instant::from_nanos(n * step - 1)), []);
        assert_eq!(one(messages(&mut a, Instant::from_nanos(n * step))).mad, first);
    }
    let last = one(messages(&mut a, Instant::from_nanos(4 * step)));
    let Some(Message::Rej(rej)) = Message::parse(&last.mad) else { panic!("{last:?}") };
    assert_eq!((rej.reason(), rej.info_len(), rej.remote_comm_id()), (4, 8, 0));
    assert_eq!(rej.info()[..8], 3u64.to_be_bytes());
    assert_eq!(events(&mut a), [CmEvent::TimedOut { id, owner: 5, stage: Stage::Req }]);
    assert_eq!((a.slots_in_use(), due(&a), a.counters().retries), (0, None, 3));
}

#[test]
fn the_callers_deadline_comes_first() {
    let mut sa = Store::new(1);
    let mut a = sa.cm(A);
    let id = a
        .connect(
            Instant::ORIGIN,
            &ConnectParams { deadline: Some(Instant::ORIGIN + 30 * MS), ..params() },
            &[],
            5,
        )
        .unwrap();
    assert_eq!(messages(&mut a, Instant::ORIGIN).len(), 1);
    assert_eq!(messages(&mut a, Instant::ORIGIN + 20 * MS).len(), 1);
    assert_eq!(due(&a), Some(Instant::ORIGIN + 30 * MS));
    assert_eq!(messages(&mut a, Instant::ORIGIN + 30 * MS).len(), 1);
    assert_eq!(events(&mut a), [CmEvent::TimedOut { id, owner: 5, stage: Stage::Req }]);
}

#[test]
fn a_timeout_withdraws_the_request_at_the_peer() {
    let (mut sa, mut sb) = (Store::new(1), Store::new(1));
    let (mut a, mut b) = (sa.cm(A), sb.cm(B));
    b.listen(SERVICE, 100, 0).unwrap();
    a.connect(Instant::ORIGIN, &ConnectParams { deadline: Some(Instant::ORIGIN + MS), ..params() }, &[], 5)
        .unwrap();
    settle(Instant::ORIGIN, &mut a, &mut b);
    let idb = match events(&mut b)[..] {
        [CmEvent::ConnectRequest { id, .. }] => id,
        ref other => panic!("{other:?}"),
    };
    settle(Instant::ORIGIN + MS, &mut a, &mut b);
    assert_eq!(events(&mut b), [CmEvent::Rejected { id: idb, owner: 100, reason: RejReason::TIMEOUT }]);
    assert_eq!(
        b.accept(Instant::ORIGIN + MS, idb, &accept(), &[], 2),
        Err(CmError::WrongState(State::TimeWait))
    );
}

#[test]
fn a_request_withdrawn_before_it_was_seen_is_never_shown() {
    let (mut sa, mut sb) = (Store::new(1), Store::new(1));
    let (mut a, mut b) = (sa.cm(A), sb.cm(B));
    b.listen(SERVICE, 100, 0).unwrap();
    let id = a.connect(Instant::ORIGIN, &params(), &[], 5).unwrap();
    settle(Instant::ORIGIN, &mut a, &mut b);
    a.abandon(Instant::ORIGIN, id, &[]).unwrap();
    settle(Instant::ORIGIN, &mut a, &mut b);
    assert_eq!(events(&mut b), []);
    assert_eq!(b.counters().withdrawn, 1);
    assert_eq!((events(&mut a), a.slots_in_use()), (vec![], 0));
}

#[test]
fn rejection_carries_reason_info_and_private_data_and_is_repeated() {
    let (mut sa, mut sb) = (Store::new(1), Store::new(1));
    let (mut a, mut b) = (sa.cm(A), sb.cm(B));
    b.listen(SERVICE, 100, 0).unwrap();
    let id = a.connect(Instant::ORIGIN, &params(), &[], 5).unwrap();
    let req = one(messages(&mut a, Instant::ORIGIN)).mad;
    b.process(Instant::ORIGIN, &MadAddress::local(A), &req);
    let [CmEvent::ConnectRequest { id: idb, .. }] = events(&mut b)[..] else { panic!() };
    assert_eq!(
        b.reject(Instant::ORIGIN, idb, RejReason::CONSUMER_DEFINED, &[0; 73], &[]),
        Err(CmError::TooLong)
    );
    b.reject(Instant::ORIGIN, idb, RejReason::CONSUMER_DEFINED, &[7, 8], b"no, thanks").unwrap();
    assert_eq!(b.info(idb), None);
    // The REJ is lost; the REQ comes again, and so does the REJ.
    let lost = one(messages(&mut b, Instant::ORIGIN)).mad;
    b.process(Instant::ORIGIN + MS, &MadAddress::local(A), &req);
    let again = one(messages(&mut b, Instant::ORIGIN + MS)).mad;
    assert_eq!(again, lost);
    assert_eq!(events(&mut b), []);
    a.process(Instant::ORIGIN + MS, &MadAddress::local(B), &again);
    assert_eq!(a.poll_event(), Some(CmEvent::Rejected { id, owner: 5, reason: RejReason::CONSUMER_DEFINED }));
    assert_eq!(a.private_data(id).len(), 148);
    assert_eq!(a.private_data(id)[..11], *b"no, thanks\0");
    assert_eq!(a.reject_info(id), [7, 8]);
    assert_eq!((a.poll_event(), a.slots_in_use()), (None, 0));
    assert_eq!(a.private_data(id), []);
    // The memory of the rejection fades.
    let due = due(&b).unwrap();
    assert_eq!((b.dispatch(due), b.slots_in_use()), (None, 0));
}

#[test]
fn unknown_service_and_full_tables_are_refused() {
    let (mut sa, mut sb) = (Store::new(3), Store::new(1));
    let (mut a, mut b) = (sa.cm(A), sb.cm(B));
    let id = a.connect(Instant::ORIGIN, &params(), &[], 1).unwrap();
    settle(Instant::ORIGIN, &mut a, &mut b);
    let reason = RejReason::INVALID_SERVICE_ID;
    assert_eq!(events(&mut a), [CmEvent::Rejected { id, owner: 1, reason }]);
    b.listen(SERVICE, 100, 0).unwrap();
    assert_eq!(b.listen(SERVICE, 5, 0), Err(ListenError::InUse));
    a.connect(Instant::ORIGIN, &params(), &[], 2).unwrap();
    settle(Instant::ORIGIN, &mut a, &mut b);
    let id =
        a.connect(Instant::ORIGIN, &ConnectParams { qpn: QpNumber::new(0x99), ..params() }, &[], 3).unwrap();
    settle(Instant::ORIGIN, &mut a, &mut b);
    assert_eq!(events(&mut a), [CmEvent::Rejected { id, owner: 3, reason: RejReason::NO_RESOURCES }]);
    assert_eq!((b.counters().no_listener, b.counters().no_resources), (1, 1));
    assert!(b.unlisten(SERVICE) && !b.unlisten(SERVICE));
    b.listen(1, 0, 0).unwrap();
    b.listen(2, 0, 0).unwrap();
    assert_eq!(b.listen(3, 0, 0), Err(ListenError::Full));
}

#[test]
fn a_backlog_bounds_waiting_requests() {
    let (mut sa, mut sb) = (Store::new(4), Store::new(4));
    let (mut a, mut b) = (sa.cm(A), sb.cm(B));
    b.listen(SERVICE, 100, 2).unwrap();
    for n in 0..4 {
        a.connect(Instant::ORIGIN, &ConnectParams { qpn: QpNumber::new(0x30 + n), ..params() }, &[], n)
            .unwrap();
    }
    assert_eq!(a.connect(Instant::ORIGIN, &params(), &[], 9), Err(CmError::NoResources));
    settle(Instant::ORIGIN, &mut a, &mut b);
    assert_eq!(events(&mut b).len(), 2);
    let is_refusal = |e: &&CmEvent| matches!(e, CmEvent::Rejected { reason: RejReason::NO_RESOURCES, .. });
    assert_eq!(events(&mut a).iter().filter(is_refusal).count(), 2);
    // Fetched requests no longer count, though neither has an answer yet.
    for n in 4..6 {
        let params = ConnectParams { qpn: QpNumber::new(0x30 + n), ..params() };
        a.connect(Instant::ORIGIN, &params, &[], n).unwrap();
    }
    settle(Instant::ORIGIN, &mut a, &mut b);
    assert_eq!((events(&mut b).len(), events(&mut a)), (2, vec![]));
}

#[test]
fn reqs_to_another_port_or_with_a_larger_mtu_are_rejected() {
    let (mut sa, mut sb) = (Store::new(4), Store::new(4));
    let (mut a, mut b) = (sa.cm(A), sb.cm(B));
    let (_, old) = connected(&mut a, &mut b);
    b.set_port(path(B, A).sgid(), 4, None);
    let ask = |a: &mut Cm<'_>, b: &mut Cm<'_>, change: fn(&mut PathRecord)| {
        let mut params = params();
        change(&mut params.path);
        let id = a.connect(Instant::ORIGIN, &params, &[], 5).unwrap();
        settle(Instant::ORIGIN, a, b);
        let answers = events(a);
        a.abandon(Instant::ORIGIN, id, &[]).unwrap_or_default();
        settle(Instant::ORIGIN, a, b);
        match answers[..] {
            [CmEvent::Rejected { reason, .. }] => reason,
            ref other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        ask(&mut a, &mut b, |path| _ = path.set_dgid(Gid::new(Gid::DEFAULT_PREFIX, 99))),
        RejReason::INVALID_GID
    );
    assert_eq!(ask(&mut a, &mut b, |_| {}), RejReason::INVALID_MTU);
    // Neither says anything about the connection that uses the same QP number.
    let reason = RejReason::STALE_CONNECTION;
    assert_eq!((events(&mut b), b.counters().wrong_path), (vec![], 2));
    assert_eq!(ask(&mut a, &mut b, |path| _ = path.set_mtu(4)), reason);
    let cause = DisconnectCause::Stale;
    assert_eq!(events(&mut b), [CmEvent::Disconnected { id: old, owner: 2, cause }]);
    // A port whose subnet has a prefix of its own also answers to the default one.
    b.set_port(Gid::new(7, B.get().into()), 5, None);
    a.connect(Instant::ORIGIN, &params(), &[], 5).unwrap();
    settle(Instant::ORIGIN, &mut a, &mut b);
    assert!(matches!(events(&mut b)[..], [CmEvent::ConnectRequest { .. }]));
}

#[test]
fn lost_rep_and_rtu_are_repaired() {
    let (mut sa, mut sb) = (Store::new(1), Store::new(1));
    let (mut a, mut b) = (sa.cm(A), sb.cm(B));
    b.listen(SERVICE, 100, 0).unwrap();
    let ida = a.connect(Instant::ORIGIN, &params(), &[], 1).unwrap();
    let req = one(messages(&mut a, Instant::ORIGIN)).mad;
    b.process(Instant::ORIGIN, &MadAddress::local(A), &req);
    let [CmEvent::ConnectRequest { id: idb, .. }] = events(&mut b)[..] else { panic!() };
    b.accept(Instant::ORIGIN, idb, &accept(), &[], 2).unwrap();
    let rep = one(messages(&mut b, Instant::ORIGIN)).mad;
    // REP lost: the repeated REQ brings it again, not a second request.
    b.process(Instant::ORIGIN + MS, &MadAddress::local(A), &req);
    assert_eq!(one(messages(&mut b, Instant::ORIGIN + MS)).mad, rep);
    assert_eq!(events(&mut b), []);
    a.process(Instant::ORIGIN + MS, &MadAddress::local(B), &rep);
    a.process(Instant::ORIGIN + MS, &MadAddress::local(B), &rep);
    assert_eq!(events(&mut a), [CmEvent::Reply { id: ida, owner: 1 }]);
    a.rtu(ida, &[]).unwrap();
    let rtu = one(messages(&mut a, Instant::ORIGIN + MS)).mad;
    // RTU lost: B repeats the REP in time, A answers with the RTU again.
    let due = due(&b).unwrap();
    assert_eq!(one(messages(&mut b, due)).mad, rep);
    a.process(due, &MadAddress::local(B), &rep);
    assert_eq!(one(messages(&mut a, due)).mad, rtu);
    b.process(due, &MadAddress::local(A), &rtu);
    b.process(due, &MadAddress::local(A), &rtu);
    assert_eq!(events(&mut b), [CmEvent::Established { id: idb, owner: 2 }]);
    assert_eq!(events(&mut a), []);
}

#[test]
fn data_before_the_rtu_counts_as_rtu() {
    let (mut sa, mut sb) = (Store::new(1), Store::new(1));
    let (mut a, mut b) = (sa.cm(A), sb.cm(B));
    b.listen(SERVICE, 100, 0).unwrap();
    a.connect(Instant::ORIGIN, &params(), &[], 1).unwrap();
    settle(Instant::ORIGIN, &mut a, &mut b);
    let [CmEvent::ConnectRequest { id: idb, .. }] = events(&mut b)[..] else { panic!() };
    let too_soon = b.communication_established(idb);
    assert_eq!(too_soon, Err(CmError::WrongState(State::ReqRcvd)));
    b.accept(Instant::ORIGIN, idb, &accept(), &[], 2).unwrap();
    b.communication_established(idb).unwrap();
    b.communication_established(idb).unwrap();
    assert_eq!(events(&mut b), [CmEvent::Established { id: idb, owner: 2 }]);
    assert_eq!(b.counters().passive_established, 1);
}

#[test]
fn a_silent_active_side_ends_the_passive_one() {
    let (mut sa, mut sb) = (Store::new(1), Store::new(1));
    let (mut a, mut b) = (sa.cm(A), sb.cm(B));
    b.listen(SERVICE, 100, 0).unwrap();
    a.connect(Instant::ORIGIN, &params(), &[], 1).unwrap();
    settle(Instant::ORIGIN, &mut a, &mut b);
    let [CmEvent::ConnectRequest { id: idb, .. }] = events(&mut b)[..] else { panic!() };
    b.accept(Instant::ORIGIN, idb, &accept(), &[], 2).unwrap();
    let mut sent = vec![];
    let mut seen = vec![];
    while let Some(at) = due(&b) {
        sent.extend(messages(&mut b, at));
        seen.extend(events(&mut b));
        assert!(at < Instant::ORIGIN + 1_000 * MS, "endless");
    }
    let kinds: Vec<u16> = sent.iter().map(|o| o.mad.attr_id()).collect();
    assert_eq!(kinds, [attr::CM_REP, attr::CM_REP, attr::CM_REP, attr::CM_REP, attr::CM_REJ]);
    let expected = [
        CmEvent::TimedOut { id: idb, owner: 2, stage: Stage::Rep },
        CmEvent::TimeWaitExit { id: idb, owner: 2 },
    ];
    assert_eq!((seen, b.slots_in_use()), (expected.to_vec(), 0));
}

#[test]
fn patience_is_asked_for_and_has_an_end() {
    let (mut sa, mut sb) = (Store::new(1), Store::new(1));
    let (mut a, mut b) = (sa.cm(A), sb.cm(B));
    b.listen(SERVICE, 100, 0).unwrap();
    let ida = a.connect(Instant::ORIGIN, &params(), &[], 1).unwrap();
    let req = one(messages(&mut a, Instant::ORIGIN)).mad;
    b.process(Instant::ORIGIN, &MadAddress::local(A), &req);
    let [CmEvent::ConnectRequest { id: idb, .. }] = events(&mut b)[..] else { panic!() };
    assert_eq!(b.defer(idb, 32), Err(CmError::InvalidParameter));
    b.defer(idb, 16).unwrap(); // 268 ms
    let mra = one(messages(&mut b, Instant::ORIGIN)).mad;
    let parsed = Mra::from_mad(&mra);
    assert_eq!((parsed.message_mraed(), parsed.service_timeout()), (which::REQ, 16));
    // A repeated REQ gets the MRA again.
    b.process(Instant::ORIGIN, &MadAddress::local(A), &req);
    assert_eq!(one(messages(&mut b, Instant::ORIGIN)).mad, mra);
    let before = due(&a).unwrap();
    a.process(Instant::ORIGIN, &MadAddress::local(B), &mra);
    assert_eq!(messages(&mut a, before), []);
    let after = due(&a).unwrap();
    assert!(after > Instant::ORIGIN + 268 * MS && after < Instant::ORIGIN + 300 * MS, "{after:?}");
    // Only so many are believed.
    for _ in 0..10 {
        a.process(Instant::ORIGIN + 100 * MS, &MadAddress::local(B), &mra);
    }
    assert_eq!(a.counters().unexpected, 8);
    b.accept(Instant::ORIGIN, idb, &accept(), &[], 2).unwrap();
    let rep = one(messages(&mut b, Instant::ORIGIN)).mad;
    a.process(Instant::ORIGIN + 110 * MS, &MadAddress::local(B), &rep);
    assert_eq!(events(&mut a), [CmEvent::Reply { id: ida, owner: 1 }]);
    a.defer(ida, 10).unwrap();
    let mra = one(messages(&mut a, Instant::ORIGIN + 110 * MS)).mad;
    assert_eq!(Mra::from_mad(&mra).message_mraed(), which::REP);
    let before = due(&b).unwrap();
    b.process(Instant::ORIGIN + MS, &MadAddress::local(A), &mra);
    assert_eq!(messages(&mut b, before), []);
}

#[test]
fn a_slow_owner_does_not_cost_the_peer_its_repetitions() {
    let (mut sa, mut sb) = (Store::new(1), Store::new(1));
    let (mut a, mut b) = (sa.cm(A), sb.cm(B));
    b.listen(SERVICE, 100, 0).unwrap();
    a.connect(Instant::ORIGIN, &params(), &[], 1).unwrap();
    settle(Instant::ORIGIN, &mut a, &mut b);
    let [CmEvent::ConnectRequest { id, .. }] = events(&mut b)[..] else { panic!("no request") };
    // The owner has not decided yet. Each repetition gets an MRA, for longer than the repetitions
    // without MRA would have lasted.
    let mut now = Instant::ORIGIN;
    while now < Instant::ORIGIN + 8_000 * MS {
        now = due(&a).unwrap();
        settle(now, &mut a, &mut b);
        assert_eq!(events(&mut a), []);
    }
    assert!(a.counters().retries <= 3);
    b.accept(now, id, &accept(), &[], 2).unwrap();
    settle(now, &mut a, &mut b);
    assert!(matches!(events(&mut a)[..], [CmEvent::Reply { .. }]));
}

#[path = "tests_churn.rs"]
mod churn;
#[path = "tests_endings.rs"]
mod endings;

#[test]
fn a_port_that_needs_routes_answers_with_one() {
    let (mut sa, mut sb) = (Store::new(1), Store::new(1));
    let mut a = sa.cm(A);
    a.connect(Instant::ORIGIN, &params(), &[], 1).unwrap();
    let req = one(messages(&mut a, Instant::ORIGIN)).mad;
    for route in [None, Some(64)] {
        let mut b = sb.cm(B);
        b.set_port(Gid::ZERO, 5, route);
        // No listener: the reply is a REJ, which the peer must get.
        b.process(Instant::ORIGIN, &MadAddress::local(A), &req);
        let grh = one(messages(&mut b, Instant::ORIGIN)).dest.grh;
        assert_eq!(
            grh.map(|grh| (grh.remote_gid, grh.hop_limit)),
            route.map(|limit| (params().path.sgid(), limit))
        );
    }
}

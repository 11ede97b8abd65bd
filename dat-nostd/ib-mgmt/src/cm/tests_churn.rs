//! Connections in TimeWait give way to new ones.

use super::*;
use std::collections::VecDeque;

/// OpenSM's packet life time: 4.096 µs · 2^18, about a second.
const OPENSM_LIFE: u8 = 18;

/// Connects A to B under a QP number of its own; the REQ, and B's id of the request.
fn requested(a: &mut Cm<'_>, b: &mut Cm<'_>, now: Instant, number: u32) -> (ConnId, ConnId, Mad) {
    let mut params = ConnectParams { qpn: QpNumber::new(number), starting_psn: Psn::new(number), ..params() };
    params.path.set_packet_life_time(OPENSM_LIFE);
    let ida = a.connect(now, &params, &[], number).unwrap();
    let req = one(messages(a, now)).mad;
    b.process(now, &MadAddress::local(A), &req);
    let [CmEvent::ConnectRequest { id, .. }] = events(b)[..] else { panic!("no request {number}") };
    (ida, id, req)
}

/// Connects and disconnects; the REQ.
fn came_and_went(a: &mut Cm<'_>, b: &mut Cm<'_>, now: Instant, number: u32) -> Mad {
    let (ida, idb, req) = requested(a, b, now, number);
    let own = AcceptParams { qpn: QpNumber::new(number), ..accept() };
    b.accept(now, idb, &own, &[], number).unwrap();
    settle(now, a, b);
    assert_eq!(events(a), [CmEvent::Reply { id: ida, owner: number }]);
    a.rtu(ida, &[]).unwrap();
    settle(now, a, b);
    a.disconnect(now, ida, &[]).unwrap();
    settle(now, a, b);
    assert!(matches!(events(a)[..], [CmEvent::Disconnected { .. }]));
    assert!(matches!(events(b)[..], [CmEvent::Established { .. }, CmEvent::Disconnected { .. }]));
    req
}

/// Returns the reason of the REJ that answers a copy of a REQ, if there is a reply.
fn answer(b: &mut Cm<'_>, now: Instant, req: &Mad) -> Option<RejReason> {
    b.process(now, &MadAddress::local(A), req);
    match messages(b, now)[..] {
        [] => None,
        [out] => Some(RejReason(Rej::from_mad(&out.mad).reason())),
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn the_oldest_in_time_wait_gives_way_and_its_req_stays_known() {
    let (mut sa, mut sb) = (Store::new(2), Store::new(2));
    let (mut a, mut b) = (sa.cm(A), sb.cm(B));
    b.listen(SERVICE, 100, 0).unwrap();
    let reqs: Vec<Mad> =
        (1..=6).map(|n| came_and_went(&mut a, &mut b, Instant::ORIGIN + n * MS, n)).collect();
    assert_eq!((a.slots_in_use(), b.slots_in_use()), (2, 2));
    assert_eq!((a.counters().evicted, b.counters().evicted), (4, 4));
    // Late copies are no new requests, whether or not the slot is still there.
    let now = Instant::ORIGIN + 7 * MS;
    for req in &reqs {
        assert_eq!(answer(&mut b, now, req), Some(RejReason::STALE_CONNECTION));
    }
    assert_eq!((events(&mut b), b.counters().duplicates), (vec![], 6));
    // Nor is a DREQ that comes late left without its answer.
    let mut dreq = super::message::Dreq::zeroed();
    dreq.set_local_comm_id(1).set_remote_comm_id(2);
    b.process(now, &MadAddress::local(A), &dreq.to_mad(3));
    assert_eq!(one(messages(&mut b, now)).mad.attr_id(), attr::CM_DREP);
    // When TimeWait is over, so is the memory.
    let life = Duration::from_nanos(2 * (4096 << OPENSM_LIFE) + (4096 << 15));
    let now = Instant::ORIGIN + 2 * MS + life;
    assert_eq!(answer(&mut b, now, &reqs[0]), None);
    assert!(matches!(
        events(&mut b)[..],
        [CmEvent::TimeWaitExit { .. }, CmEvent::ConnectRequest { .. }] | [CmEvent::ConnectRequest { .. }]
    ));
}

#[test]
fn rejections_give_way_after_time_wait_and_keep_their_reason() {
    let (mut sa, mut sb) = (Store::new(4), Store::new(2));
    let (mut a, mut b) = (sa.cm(A), sb.cm(B));
    b.listen(SERVICE, 100, 0).unwrap();
    let now = Instant::ORIGIN;
    let (_, idb, rejected) = requested(&mut a, &mut b, now, 1);
    b.reject(now, idb, RejReason::CONSUMER_DEFINED, &[], &[]).unwrap();
    settle(now, &mut a, &mut b);
    let _ = events(&mut a);
    let over = came_and_went(&mut a, &mut b, now + MS, 2);
    requested(&mut a, &mut b, now + MS, 3);
    assert_eq!(answer(&mut b, now + MS, &over), Some(RejReason::STALE_CONNECTION));
    assert_eq!(b.counters().evicted, 1, "the one in TimeWait");
    requested(&mut a, &mut b, now + MS, 4);
    assert_eq!(b.counters().evicted, 2);
    assert_eq!(answer(&mut b, now + MS, &rejected), Some(RejReason::CONSUMER_DEFINED));
    // Requests that wait for their owner give way to none.
    assert_eq!(
        answer(&mut b, now + MS, &{
            let mut req = Req::from_mad(&over);
            req.set_local_comm_id(77).set_local_qpn(QpNumber::new(77));
            req.to_mad(7)
        }),
        Some(RejReason::NO_RESOURCES)
    );
}

#[test]
fn an_abandoned_connection_gives_way_though_its_peer_is_silent() {
    let (mut sa, mut sb) = (Store::new(4), Store::new(1));
    let (mut a, mut b) = (sa.cm(A), sb.cm(B));
    let (_, idb) = connected(&mut a, &mut b);
    b.disconnect(Instant::ORIGIN, idb, &[]).unwrap();
    let _ = messages(&mut b, Instant::ORIGIN);
    let refused = b.connect(Instant::ORIGIN, &params(), &[], 3);
    assert_eq!(refused, Err(CmError::NoResources), "its owner waits for the end");
    b.abandon(Instant::ORIGIN, idb, &[]).unwrap();
    b.connect(Instant::ORIGIN, &params(), &[], 3).unwrap();
    assert_eq!((b.counters().evicted, b.slots_in_use()), (1, 1));
}

#[test]
fn what_the_owner_has_not_fetched_does_not_give_way() {
    let (mut sa, mut sb) = (Store::new(1), Store::new(1));
    let (mut a, mut b) = (sa.cm(A), sb.cm(B));
    let (ida, _) = connected(&mut a, &mut b);
    a.disconnect(Instant::ORIGIN, ida, &[]).unwrap();
    settle(Instant::ORIGIN, &mut a, &mut b);
    assert_eq!(a.connect(Instant::ORIGIN, &params(), &[], 3), Err(CmError::NoResources));
    // Fetched, but its private data may still be looked at.
    assert!(matches!(a.poll_event(), Some(CmEvent::Disconnected { .. })));
    assert_eq!(a.connect(Instant::ORIGIN, &params(), &[], 3), Err(CmError::NoResources));
    assert_eq!(a.poll_event(), None);
    a.connect(Instant::ORIGIN, &params(), &[], 3).unwrap();
}

/// A node that connects and disconnects all the time.
struct Node<'s> {
    lid: Lid,
    cm: Cm<'s>,
    number: u32,
    /// Established connections of its own asking, with the time to end them.
    up: VecDeque<(Instant, ConnId)>,
    established: u32,
    ended: u32,
}

impl Node<'_> {
    fn connect(&mut self, now: Instant, to: Lid) {
        self.number += 1;
        let (qpn, psn) = (QpNumber::new(self.number), Psn::new(self.number));
        let mut path = path(self.lid, to);
        path.set_packet_life_time(OPENSM_LIFE);
        let params = ConnectParams::new(path, SERVICE, qpn, psn);
        self.cm.connect(now, &params, &[], self.number).expect("room for one more");
    }

    /// Takes what happened. Each connection lasts 30 ms; the side that asked ends it.
    fn act(&mut self, now: Instant) {
        while let Some(&(_, id)) = self.up.front().filter(|(at, _)| *at <= now) {
            self.up.pop_front();
            self.cm.disconnect(now, id, &[]).expect("was up");
        }
        while let Some(event) = self.cm.poll_event() {
            match event {
                CmEvent::ConnectRequest { id, .. } => {
                    self.number += 1;
                    let own = AcceptParams::new(QpNumber::new(self.number), Psn::new(self.number));
                    self.cm.accept(now, id, &own, &[], 0).expect("asks");
                }
                CmEvent::Reply { id, .. } => {
                    self.cm.rtu(id, &[]).expect("answered");
                    self.up.push_back((now + 30 * MS, id));
                    self.established += 1;
                }
                CmEvent::Established { .. } => self.established += 1,
                CmEvent::Disconnected { .. } => self.ended += 1,
                CmEvent::TimeWaitExit { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

/// A minute at 1,000 connects and disconnects a second from each of two nodes, whose tables are an
/// adapter's default.
#[test]
#[cfg_attr(miri, ignore = "a hundred thousand connections")]
fn a_minute_of_churn_with_opensms_packet_life_time_refuses_none() {
    const SLOTS: usize = 96;
    const COUNT: u32 = 60_000;
    let (mut sa, mut sb) = (Store::new(SLOTS), Store::new(SLOTS));
    let node = |lid, cm| Node { lid, cm, number: 0x100, up: VecDeque::new(), established: 0, ended: 0 };
    let (mut a, mut b) = (node(A, sa.cm(A)), node(B, sb.cm(B)));
    for node in [&mut a, &mut b] {
        node.cm.listen(SERVICE, 100, 8).unwrap();
    }
    for ms in 0..COUNT + 100 {
        let now = Instant::ORIGIN + ms * MS;
        if ms < COUNT {
            a.connect(now, B);
            b.connect(now, A);
        }
        // REQ, REP, RTU; or DREQ, DREP.
        for _ in 0..4 {
            a.act(now);
            b.act(now);
            settle(now, &mut a.cm, &mut b.cm);
        }
    }
    for node in [&a, &b] {
        let counters = node.cm.counters();
        assert_eq!((node.established, node.ended), (2 * COUNT, 2 * COUNT));
        assert_eq!((counters.no_resources, counters.rejected_by_us, counters.rejected_by_peer), (0, 0, 0));
        assert_eq!((counters.retries, counters.stale, counters.replies_dropped), (0, 0, 0));
        assert!(counters.evicted > u64::from(2 * COUNT - 200), "{}", counters.evicted);
    }
}

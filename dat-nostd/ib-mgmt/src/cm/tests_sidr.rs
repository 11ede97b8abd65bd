//! Datagram services.

use super::message::{Message, SidrRep, SidrReq, sidr_status};
use super::tests::due;
use super::*;
use crate::mad::MadAddress;
use crate::sa::PathRecord;
use ib_types::{Duration, Guid, Instant, Lid, PKey, Psn, QKey, QpNumber};

const SERVICE: u64 = 0x0000_0000_0111_1234;
const MS: Duration = Duration::from_millis(1);

fn params() -> ResolveParams {
    let path = *PathRecord::zeroed()
        .set_slid(Lid::new(3))
        .set_dlid(Lid::new(4))
        .set_pkey(PKey::DEFAULT)
        .set_mtu(5)
        .set_packet_life_time(8);
    ResolveParams { response_timeout: 12, max_cm_retries: 2, ..ResolveParams::new(path, SERVICE) }
}

struct Nodes<'s> {
    a: Cm<'s>,
    b: Cm<'s>,
}

fn messages(cm: &mut Cm<'_>, now: Instant) -> Vec<crate::mad::Mad> {
    core::iter::from_fn(|| cm.dispatch(now)).map(|out| out.mad).collect()
}

impl Nodes<'_> {
    fn a_to_b(&mut self, now: Instant) -> usize {
        let out = messages(&mut self.a, now);
        out.iter().for_each(|mad| self.b.process(now, &MadAddress::local(Lid::new(3)), mad));
        out.len()
    }

    fn b_to_a(&mut self, now: Instant) -> usize {
        let out = messages(&mut self.b, now);
        out.iter().for_each(|mad| self.a.process(now, &MadAddress::local(Lid::new(4)), mad));
        out.len()
    }
}

fn with_nodes(slots: usize, test: impl FnOnce(Nodes<'_>)) {
    let (mut sa, mut sb) = (vec![CmSlot::EMPTY; slots], vec![CmSlot::EMPTY; slots]);
    let (mut la, mut lb) = ([Listener::EMPTY; 2], [Listener::EMPTY; 2]);
    test(Nodes {
        a: Cm::new(&mut sa, &mut [], &mut la, CmConfig::new(Guid::new(3), 33)),
        b: Cm::new(&mut sb, &mut [], &mut lb, CmConfig::new(Guid::new(4), 44)),
    });
}

#[test]
fn a_service_is_found_and_the_data_of_both_sides_arrives() {
    with_nodes(2, |mut nodes| {
        nodes.b.listen_datagram(SERVICE, 70, 0).expect("listens");
        assert_eq!(nodes.b.listen(SERVICE, 71, 0), Err(ListenError::InUse));
        let id = nodes.a.resolve_datagram(Instant::ORIGIN, &params(), b"where", 7).expect("asks");
        assert_eq!(nodes.a_to_b(Instant::ORIGIN), 1);
        let Some(CmEvent::DatagramRequest { id: request, listener: 70 }) = nodes.b.poll_event() else {
            panic!("no request")
        };
        assert_eq!(nodes.b.private_data(request)[..6], *b"where\0");
        let info = nodes.b.info(request).expect("lives");
        assert_eq!((info.service_id, info.peer.lid, info.path.dlid()), (SERVICE, Lid::new(3), Lid::new(3)));
        assert!(nodes.b.qp_attributes(request).is_none());
        let service = DatagramService::at(QpNumber::new(0x55), QKey::new(0x0123_4567));
        nodes
            .b
            .answer_datagram(Instant::from_nanos(1), request, service, &[9; 72], b"here")
            .expect("answers");
        assert_eq!(
            nodes.b.answer_datagram(Instant::from_nanos(1), request, service, &[], &[]),
            Err(CmError::InvalidId),
            "answered once"
        );
        assert_eq!(nodes.b_to_a(Instant::from_nanos(1)), 1);
        assert_eq!(nodes.a.poll_event(), Some(CmEvent::DatagramReply { id, owner: 7, service }));
        assert_eq!(nodes.a.private_data(id)[..5], *b"here\0");
        assert_eq!(nodes.a.reject_info(id), [9; 72]);
        assert_eq!(nodes.a.poll_event(), None);
        assert_eq!(nodes.a.slots_in_use(), 0);
        // The answer is kept for repetitions of the question, then forgotten.
        assert_eq!(nodes.b.poll_event(), None);
        assert_eq!(nodes.b.slots_in_use(), 1);
        let end = due(&nodes.b).expect("a timer");
        assert_eq!(messages(&mut nodes.b, end), []);
        assert_eq!((nodes.b.slots_in_use(), due(&nodes.b)), (0, None));
        let counters = (nodes.a.counters().datagram_replies, nodes.b.counters().datagram_answers);
        assert_eq!(counters, (1, 1));
    });
}

#[test]
fn messages_on_the_wire() {
    with_nodes(1, |mut nodes| {
        nodes.a.resolve_datagram(Instant::ORIGIN, &params(), &[], 7).expect("asks");
        let mad = messages(&mut nodes.a, Instant::ORIGIN).remove(0);
        assert_eq!(mad.as_bytes()[..4], [1, 7, 2, 3]);
        assert_eq!((mad.attr_id(), mad.attr_mod()), (0x17, 0));
        let b = mad.data();
        assert_eq!(b[4..6], [0xff, 0xff]);
        assert_eq!(b[8..16], [0, 0, 0, 0, 1, 0x11, 0x12, 0x34]);
    });
}

#[test]
fn lost_questions_and_answers_are_repeated() {
    with_nodes(2, |mut nodes| {
        nodes.b.listen_datagram(SERVICE, 70, 0).expect("listens");
        nodes.a.resolve_datagram(Instant::ORIGIN, &params(), &[], 7).expect("asks");
        messages(&mut nodes.a, Instant::ORIGIN);
        let mut now = due(&nodes.a).expect("a timer");
        let waited = now - Instant::ORIGIN;
        assert!(waited > 16 * MS && waited < 30 * MS, "{waited:?}");
        assert_eq!(nodes.a_to_b(now), 1);
        let Some(CmEvent::DatagramRequest { id: request, .. }) = nodes.b.poll_event() else { panic!() };
        // Repeated while the owner thinks: one request.
        now = due(&nodes.a).expect("a timer");
        assert_eq!(nodes.a_to_b(now), 1);
        assert_eq!(nodes.b.poll_event(), None);
        nodes
            .b
            .answer_datagram(now, request, DatagramService::at(QpNumber::new(5), QKey::new(6)), &[], &[])
            .expect("answers");
        let answer = messages(&mut nodes.b, now);
        // Lost; a repetition (here the same question again) gets the same answer.
        let question = SidrReq::from_mad(&nodes.a.slots[0].tx);
        let tid = nodes.a.slots[0].tid;
        nodes.b.process(now, &MadAddress::local(Lid::new(3)), &question.to_mad(tid));
        assert_eq!(messages(&mut nodes.b, now), answer);
        assert_eq!(nodes.b.counters().duplicates, 2);
        nodes.a.process(now, &MadAddress::local(Lid::new(4)), &answer[0]);
        assert!(matches!(nodes.a.poll_event(), Some(CmEvent::DatagramReply { .. })));
        // Again, without a listener.
        let _ = nodes.a.poll_event();
        nodes.a.process(now, &MadAddress::local(Lid::new(4)), &answer[0]);
        assert_eq!((nodes.a.counters().unknown_id, nodes.a.poll_event()), (1, None));
    });
}

#[test]
fn silence_times_out_and_unknown_services_are_refused() {
    with_nodes(2, |mut nodes| {
        let id = nodes.a.resolve_datagram(Instant::ORIGIN, &params(), &[], 7).expect("asks");
        let mut sent = 0;
        while let Some(at) = due(&nodes.a) {
            sent += messages(&mut nodes.a, at).len();
        }
        assert_eq!(sent, 3);
        assert_eq!(nodes.a.poll_event(), Some(CmEvent::TimedOut { id, owner: 7, stage: Stage::Sidr }));
        let _ = nodes.a.poll_event();
        assert_eq!(nodes.a.slots_in_use(), 0);

        // A listener for connections is no datagram service, and the other way round.
        nodes.b.listen(SERVICE, 1, 0).expect("listens");
        nodes.a.resolve_datagram(Instant::ORIGIN, &params(), &[], 8).expect("asks");
        nodes.a_to_b(Instant::ORIGIN);
        nodes.b_to_a(Instant::ORIGIN);
        let Some(CmEvent::DatagramReply { service, owner: 8, .. }) = nodes.a.poll_event() else { panic!() };
        assert_eq!(service.status, sidr_status::SERVICE_ID_NOT_SUPPORTED);
        assert!(nodes.b.unlisten(SERVICE));
        nodes.b.listen_datagram(SERVICE, 1, 0).expect("listens");
        nodes
            .a
            .connect(
                Instant::ORIGIN,
                &ConnectParams::new(params().path, SERVICE, QpNumber::new(0x11), Psn::new(1)),
                &[],
                9,
            )
            .expect("asks");
        nodes.a_to_b(Instant::ORIGIN);
        nodes.b_to_a(Instant::ORIGIN);
        let refused = nodes.a.poll_event();
        assert!(
            matches!(refused, Some(CmEvent::Rejected { reason: RejReason::INVALID_SERVICE_ID, .. })),
            "{refused:?}"
        );
    });
}

#[test]
fn full_tables_refuse_and_abandoned_requests_are_answered() {
    with_nodes(1, |mut nodes| {
        nodes.b.listen_datagram(SERVICE, 70, 1).expect("listens");
        nodes.a.resolve_datagram(Instant::ORIGIN, &params(), &[], 7).expect("asks");
        assert_eq!(nodes.a.resolve_datagram(Instant::ORIGIN, &params(), &[], 8), Err(CmError::NoResources));
        nodes.a_to_b(Instant::ORIGIN);
        let Some(CmEvent::DatagramRequest { id, .. }) = nodes.b.poll_event() else { panic!() };
        let mut other = SidrReq::zeroed();
        other.set_request_id(99).set_service_id(SERVICE);
        nodes.b.process(Instant::ORIGIN, &MadAddress::local(Lid::new(9)), &other.to_mad(5));
        let refusal = SidrRep::from_mad(&messages(&mut nodes.b, Instant::ORIGIN)[0]);
        assert_eq!((refusal.request_id(), refusal.status()), (99, sidr_status::NO_QP));
        nodes.b.abandon(Instant::ORIGIN, id, &[]).expect("lives");
        nodes.b_to_a(Instant::ORIGIN);
        let Some(CmEvent::DatagramReply { service, .. }) = nodes.a.poll_event() else { panic!() };
        assert_eq!(service.status, sidr_status::REJECTED);
        // A remembered answer makes room for the next request.
        assert_eq!(nodes.b.poll_event(), None);
        nodes.b.process(Instant::ORIGIN, &MadAddress::local(Lid::new(9)), &other.to_mad(6));
        assert!(matches!(nodes.b.poll_event(), Some(CmEvent::DatagramRequest { .. })));
    });
}

#[test]
fn an_answer_about_another_service_is_not_believed() {
    with_nodes(1, |mut nodes| {
        let id = nodes.a.resolve_datagram(Instant::ORIGIN, &params(), &[], 7).expect("asks");
        let question = SidrReq::from_mad(&messages(&mut nodes.a, Instant::ORIGIN)[0]);
        let mut forged = SidrRep::zeroed();
        forged.set_request_id(question.request_id()).set_service_id(SERVICE + 1).set_qpn(QpNumber::new(3));
        nodes.a.process(Instant::ORIGIN, &MadAddress::local(Lid::new(4)), &forged.to_mad(1));
        assert_eq!((nodes.a.poll_event(), nodes.a.counters().malformed), (None, 1));
        let mad = forged.set_service_id(SERVICE).to_mad(1);
        assert!(matches!(Message::parse(&mad), Some(Message::SidrRep(_))));
        nodes.a.process(Instant::ORIGIN, &MadAddress::local(Lid::new(4)), &mad);
        assert!(matches!(nodes.a.poll_event(), Some(CmEvent::DatagramReply { id: i, .. }) if i == id));
    });
}

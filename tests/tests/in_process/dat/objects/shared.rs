//! Shared receive queues: order, watermarks.

use crate::dat::objects::{BEST, NONE};
use dat_nostd::*;
use harness::WorldConfig;
use harness::net::{Net, Options, Side, address, payload};

/// 64 endpoints of node 1 take their receives from one queue; node 0 sends on all of them in a random order with losses. Every
/// message arrives once, in the order of its connection.
#[test]
fn endpoints_of_a_shared_queue_keep_their_order() {
    const EPS: usize = 64;
    const EACH: usize = 40;
    const SLOT: usize = 256;
    const BUFFERS: usize = 200;
    let mut config = WorldConfig::new(41);
    config.fabric.faults = "loss=0.5%,dup=0.5%,reorder=0.5%".parse().unwrap();
    let mut net = Net::with(&config, 2);
    // Room for all: the side's own EPs give their places.
    let sides = [net.side(0, &Options::default()), net.side(1, &Options::default())];
    for (node, side) in net.nodes.iter_mut().zip(&sides) {
        node.ep_free(side.ep).unwrap();
    }
    let [active, passive] = sides;
    let attributes = EpAttributes { max_recv_dtos: 1, max_request_dtos: 2, ..EpAttributes::DEFAULT };
    let queue = SrqAttributes { max_recv_dtos: BUFFERS as u32, max_recv_iov: 1, low_watermark: 0 };
    let (node, streams) = (&mut net.nodes[1], EvdFlags::DTO);
    let srq = node.srq_create(passive.ia, passive.pz, &queue).unwrap();
    let recv = node.evd_create(passive.ia, 512, None, streams).unwrap();
    let requests = [
        net.nodes[0].evd_create(active.ia, 512, None, streams).unwrap(),
        net.nodes[1].evd_create(passive.ia, 512, None, streams).unwrap(),
    ];
    let psp = net.nodes[1].psp_create(passive.ia, 7, passive.cr, PspFlags::Consumer).unwrap();
    let mut pairs = Vec::new();
    for _ in 0..EPS {
        let (pz, connect) = (Some(active.pz), Some(active.connect));
        let ours = net.nodes[0]
            .ep_create(active.ia, pz, Some(active.recv), Some(requests[0]), connect, Some(&attributes))
            .unwrap();
        let flags = ConnectFlags::Default;
        net.nodes[0].ep_connect(ours, &address(1), 7, TIMEOUT_INFINITE, b"", BEST, flags).unwrap();
        let cr = net.request(&passive, psp);
        let theirs = net.nodes[1]
            .ep_create_with_srq(
                passive.ia,
                passive.pz,
                Some(recv),
                Some(requests[1]),
                Some(passive.connect),
                srq,
                &attributes,
            )
            .unwrap();
        net.nodes[1].cr_accept(cr, Some(theirs), b"").unwrap();
        assert_eq!(net.connection(0, &Side { ep: ours, ..active }), ConnectionEvent::Established);
        assert_eq!(net.connection(1, &Side { ep: theirs, ..passive }), ConnectionEvent::Established);
        pairs.push((ours, theirs));
    }
    for buffer in 0..BUFFERS {
        net.nodes[1].srq_post_recv(srq, &[passive.segment(buffer * SLOT, SLOT)], buffer as u64).unwrap();
    }
    let found = net.nodes[1].srq_query(srq).unwrap();
    assert_eq!((found.available_dto_count, found.outstanding_dto_count), (BUFFERS as i32, BUFFERS as i32));
    // Posts go to endpoints in an order that is no endpoint's own; a message says whose it is and which.
    let (mut sent, mut received, mut in_flight) = ([0usize; EPS], [0usize; EPS], [0usize; EPS]);
    let mut place = 0usize;
    net.until("all messages", |net| {
        for _ in 0..20 {
            place = (place * 29 + 17) % 64;
            let at = place % EPS;
            if sent[at] < EACH && in_flight[at] < 2 {
                let number = sent[at];
                let (offset, len) = ((at * 2 + number % 2) * SLOT, 16 + (at + number) % 200);
                active.fill(offset, len, (at * 1000 + number) as u64);
                active.memory.store_be64(offset, number as u64).unwrap();
                net.nodes[0]
                    .ep_post_send(pairs[at].0, &[active.segment(offset, len)], at as u64, NONE)
                    .unwrap();
                sent[at] += 1;
                in_flight[at] += 1;
            }
        }
        while let Ok(event) = net.nodes[0].evd_dequeue(requests[0]) {
            let EventData::Dto(done) = event.data else { panic!("{event:?}") };
            assert_eq!(done.status, DtoStatus::Success);
            in_flight[done.user_cookie as usize] -= 1;
        }
        while let Ok(event) = net.nodes[1].evd_dequeue(recv) {
            let EventData::Dto(done) = event.data else { panic!("{event:?}") };
            assert_eq!((done.status, done.operation), (DtoStatus::Success, DtoOperation::Receive));
            let at = pairs.iter().position(|pair| pair.1 == done.ep).expect("one of ours");
            let number = received[at];
            let (buffer, len) = (done.user_cookie as usize, 16 + (at + number) % 200);
            assert_eq!(done.transferred_length, len as u64, "message {number} of endpoint {at}");
            assert_eq!(passive.memory.load_be64(buffer * SLOT), Ok(number as u64), "endpoint {at} in order");
            let mut bytes = vec![0; len - 8];
            passive.memory.read(buffer * SLOT + 8, &mut bytes).unwrap();
            let expected: Vec<u8> =
                (8..len).map(|byte| payload((at * 1000 + number) as u64).byte(byte)).collect();
            assert_eq!(bytes, expected, "message {number} of endpoint {at}");
            received[at] += 1;
            net.nodes[1]
                .srq_post_recv(srq, &[passive.segment(buffer * SLOT, SLOT)], done.user_cookie)
                .unwrap();
        }
        (received == [EACH; EPS]).then_some(())
    });
    let found = net.nodes[1].srq_query(srq).unwrap();
    assert_eq!((found.available_dto_count, found.outstanding_dto_count), (BUFFERS as i32, BUFFERS as i32));
    assert!(net.world.fabric_counters().dropped > 0);
    net.assert_no_refusals();
}

/// A low watermark is told once per arming, a soft high one too; above the hard one the connection breaks.
#[test]
fn watermarks_are_told_once_and_the_hard_one_breaks() {
    let mut net = Net::new(51, 2);
    let [active, passive] = [net.side(0, &Options::default()), net.side(1, &Options::default())];
    net.nodes[1].ep_free(passive.ep).unwrap();
    let queue = SrqAttributes { max_recv_dtos: 32, max_recv_iov: 1, low_watermark: 0 };
    let srq = net.nodes[1].srq_create(passive.ia, passive.pz, &queue).unwrap();
    let (recv, request, connect) = (Some(passive.recv), Some(passive.request), Some(passive.connect));
    let ep = net.nodes[1]
        .ep_create_with_srq(passive.ia, passive.pz, recv, request, connect, srq, &EpAttributes::DEFAULT)
        .unwrap();
    let passive = Side { ep, ..passive };
    net.connect(&[active, passive]);
    for cookie in 0..20 {
        net.nodes[1].srq_post_recv(srq, &[passive.segment(0, 64)], cookie).unwrap();
    }
    let send = |net: &mut Net, count: u64| {
        for cookie in 0..count {
            net.nodes[0].ep_post_send(active.ep, &[active.segment(0, 8)], cookie, NONE).unwrap();
            net.dto(0, active.request);
        }
        net.pass(1_000_000);
    };
    let told = |net: &mut Net| match net.nodes[1].evd_dequeue(passive.asynchronous) {
        Ok(Event { data: EventData::Async { handle, reason, .. }, .. }) => Some((handle, reason)),
        Ok(other) => panic!("{other:?}"),
        Err(error) => {
            assert_eq!(error, DatReturn::QUEUE_EMPTY);
            None
        }
    };
    // 20 buffers, the mark at 18: the third message takes one below it.
    net.nodes[1].srq_set_lw(srq, 18).unwrap();
    send(&mut net, 2);
    assert_eq!(told(&mut net), None);
    send(&mut net, 1);
    assert_eq!(told(&mut net), Some((srq.into(), states::SRQ_LOW_WATERMARK_EVENT)));
    send(&mut net, 2);
    assert_eq!(told(&mut net), None, "silent until it is set anew");
    // The EP holds 5 that nobody has dequeued; more than 6 is too many.
    net.nodes[1].ep_set_watermark(ep, 6, 9).unwrap();
    send(&mut net, 1);
    assert_eq!(told(&mut net), None);
    send(&mut net, 1);
    assert_eq!(told(&mut net), Some((ep.into(), states::SRQ_SOFT_HIGH_WATERMARK_EVENT)));
    assert_eq!(net.nodes[1].ep_recv_query(ep).unwrap().nbufs_allocated, VALUE_UNKNOWN);
    let found = net.nodes[1].srq_query(srq).unwrap();
    assert_eq!(found.outstanding_dto_count - found.available_dto_count, 7);
    send(&mut net, 2);
    assert_eq!(told(&mut net), None, "once");
    assert_eq!(net.nodes[1].ep_get_status(ep).unwrap().state, EpState::Connected);
    // The tenth is one above the hard mark.
    send(&mut net, 1);
    assert_eq!(net.connection(1, &passive), ConnectionEvent::Broken);
    assert_eq!(net.nodes[1].ep_get_status(ep).unwrap().state, EpState::Disconnected);
}

//! Shared receive queues when something ends: an endpoint with messages that nobody has taken, a connection in the middle of a message,
//! the queue itself.

use crate::common;

use common::{Net, Options, Side};
use dat_nostd::states::{Effect, SRQ_CALLS, SRQ_STATES, SrqCall, SrqState, TRANSFER_TO_ERROR};
use dat_nostd::*;
use hca_model::GuestMemory;

const NONE: CompletionFlags = CompletionFlags::empty();
const BUFFERS: u32 = 16;
/// Bytes of a buffer: many packets.
const LONG: usize = 60_000;

/// Two sides, connected; node 1's EP is on the queue.
fn pair(net: &mut Net, merged: bool) -> ([Side; 2], SrqHandle) {
    pair_on(net, merged, BUFFERS)
}

/// The same with a queue of this length.
fn pair_on(net: &mut Net, merged: bool, max_recv_dtos: u32) -> ([Side; 2], SrqHandle) {
    let options = Options { merged, memory: 2 << 20, ..Options::default() };
    let [active, mut passive] = [net.side(0, &options), net.side(1, &options)];
    let node = &mut net.nodes[1];
    node.ep_free(passive.ep).unwrap();
    let attributes = SrqAttributes { max_recv_dtos, max_recv_iov: 1, low_watermark: 0 };
    let srq = node.srq_create(passive.ia, passive.pz, &attributes).unwrap();
    passive.ep = on_queue(net, &passive, srq).unwrap();
    net.connect(&[active, passive]);
    ([active, passive], srq)
}

fn on_queue(net: &mut Net, side: &Side, srq: SrqHandle) -> DatResult<EpHandle> {
    let (recv, request, connect) = (Some(side.recv), Some(side.request), Some(side.connect));
    net.nodes[1].ep_create_with_srq(side.ia, side.pz, recv, request, connect, srq, &EpAttributes::DEFAULT)
}

fn post(net: &mut Net, side: &Side, srq: SrqHandle, cookie: u64) -> DatResult<()> {
    net.nodes[1].srq_post_recv(srq, &[side.segment(cookie as usize % 32 * LONG, LONG)], cookie)
}

fn counts(net: &Net, srq: SrqHandle) -> (i32, i32) {
    let found = net.nodes[1].srq_query(srq).unwrap();
    (found.available_dto_count, found.outstanding_dto_count)
}

/// What an EP has taken and nobody has dequeued is lost with its reset or its end; the places in the queue are not.
#[test]
fn places_come_back_from_an_endpoint_that_is_reset_or_freed() {
    let mut net = Net::new(61, 2);
    let ([active, passive], srq) = pair(&mut net, false);
    for cookie in 0..16 {
        post(&mut net, &passive, srq, cookie).unwrap();
    }
    assert!(post(&mut net, &passive, srq, 16).unwrap_err().is(ReturnType::InsufficientResources));
    for end in ["reset", "free"] {
        for cookie in 0..5 {
            net.nodes[0].ep_post_send(active.ep, &[active.segment(0, 3000)], cookie, NONE).unwrap();
            assert_eq!(net.dto(0, active.request).status, DtoStatus::Success);
        }
        assert_eq!(counts(&net, srq), (11, 16), "taken, and not dequeued");
        net.nodes[1].ep_disconnect(passive.ep, CloseFlags::Abrupt).unwrap();
        assert_eq!(net.connection(1, &passive), ConnectionEvent::Disconnected);
        assert_eq!(net.connection(0, &active), ConnectionEvent::Disconnected);
        if end == "reset" {
            net.nodes[1].ep_reset(passive.ep).unwrap();
        } else {
            net.nodes[1].ep_free(passive.ep).unwrap();
        }
        assert_eq!(counts(&net, srq), (11, 11), "{end}");
        net.empty(1, passive.recv);
        for cookie in 20..25 {
            post(&mut net, &passive, srq, cookie).unwrap();
        }
        assert!(post(&mut net, &passive, srq, 25).unwrap_err().is(ReturnType::InsufficientResources));
        if end == "reset" {
            net.nodes[0].ep_reset(active.ep).unwrap();
            net.connect(&[active, passive]);
        }
    }
    net.assert_no_refusals();
}

/// A buffer that a message has begun to fill is flushed before the end is told, and nothing comes behind it.
#[test]
fn the_end_waits_for_the_buffer_of_half_a_message() {
    for (seed, connected) in [(62, true), (63, false)] {
        let mut net = Net::new(seed, 2);
        let ([active, passive], srq) = pair(&mut net, true);
        post(&mut net, &passive, srq, 7).unwrap();
        post(&mut net, &passive, srq, 8).unwrap();
        // A packet of the message is lost, and the rest has to wait for it.
        net.world.with_fabric(|fabric| fabric.set_faults("loss=20%".parse().unwrap()));
        net.nodes[0].ep_post_send(active.ep, &[active.segment(0, LONG)], 1, NONE).unwrap();
        net.until("the first packet", |net| {
            net.world
                .with_hca(1, |hca| hca.shared_receive_queues().any(|(taken, _)| taken == 1))
                .then_some(())
        });
        // The rest never comes.
        if connected {
            net.world.kill(0);
        } else {
            net.world.set_cable(0, false);
        }
        net.nodes[1].ep_disconnect(passive.ep, CloseFlags::Abrupt).unwrap();
        match net.event(1, passive.connect) {
            EventData::Dto(done) => {
                assert_eq!((done.user_cookie, done.status), (7, DtoStatus::ErrFlushed));
                assert_eq!((done.ep, done.operation), (passive.ep, DtoOperation::Receive));
            }
            other => panic!("{other:?} before the flush"),
        }
        assert_eq!(net.connection(1, &passive), ConnectionEvent::Disconnected);
        assert_eq!(counts(&net, srq), (1, 1), "the other buffer stays in the queue");
        net.pass(3_000_000_000);
        net.empty(1, passive.connect);
    }
}

/// The device fails a queue whose record claims more than fits: one event, and the calls of its error state.
#[test]
fn a_failed_queue_takes_what_its_state_table_says() {
    let mut net = Net::new(64, 2);
    let ([active, passive], srq) = pair(&mut net, false);
    post(&mut net, &passive, srq, 1).unwrap();
    net.nodes[1].srq_set_lw(srq, 1).unwrap();
    let record = net.world.with_hca(1, |hca| hca.shared_receive_queues().next().expect("one queue").1);
    let memory = net.world.memory(1);
    let posted = memory.load32(record).unwrap();
    memory.store32(record, posted.wrapping_add(0x4000)).unwrap();
    net.nodes[0].ep_post_send(active.ep, &[active.segment(0, 64)], 1, NONE).unwrap();
    assert_ne!(net.dto(0, active.request).status, DtoStatus::Success);
    let told = net.until("word of the failure", |net| {
        std::iter::from_fn(|| net.nodes[1].evd_dequeue(passive.asynchronous).ok()).find_map(|event| {
            match event.data {
                EventData::Async { handle, reason, .. } if handle == Handle::from(srq) => Some(reason),
                _ => None,
            }
        })
    });
    assert_eq!(told, TRANSFER_TO_ERROR);
    assert_eq!(net.nodes[1].srq_query(srq).unwrap().state, SrqState::Error);
    assert_eq!(net.connection(0, &active), ConnectionEvent::Broken);
    let refused = DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStateSrqError);
    for call in SrqCall::ALL {
        let result = match call {
            SrqCall::PostRecv => post(&mut net, &passive, srq, 2),
            SrqCall::Query => net.nodes[1].srq_query(srq).map(|_| ()),
            SrqCall::SetLowWatermark => net.nodes[1].srq_set_lw(srq, 2),
            SrqCall::Resize => net.nodes[1].srq_resize(srq, 20),
            SrqCall::Attach => on_queue(&mut net, &passive, srq).map(|_| ()),
            // In use, whatever its state; tried below.
            SrqCall::Free => continue,
        };
        let column = SRQ_STATES.iter().position(|state| *state == SrqState::Error).unwrap();
        match SRQ_CALLS[*call as usize][column] {
            Effect::Run => assert_eq!(result, Ok(()), "{call:?}"),
            _ => assert_eq!(result, Err(refused), "{call:?}"),
        }
    }
    // The EP on it comes to its end, and then the queue may go. Nothing more is told of it.
    net.nodes[1].ep_disconnect(passive.ep, CloseFlags::Abrupt).unwrap();
    net.connection(1, &passive);
    net.nodes[1].ep_free(passive.ep).unwrap();
    net.nodes[1].srq_free(srq).unwrap();
    net.pass(1_000_000_000);
    while let Ok(event) = net.nodes[1].evd_dequeue(passive.asynchronous) {
        let EventData::Async { handle, .. } = event.data else { panic!("{event:?}") };
        assert_ne!(handle, Handle::from(srq), "{event:?}");
    }
}

/// Receives that nobody wants to hear of come and go: their buffers serve again, and the connection ends as any other.
#[test]
fn receives_without_an_evd_give_their_buffers_back() {
    let mut net = Net::new(67, 2);
    let options = Options { memory: 2 << 20, ..Options::default() };
    let [active, mut passive] = [net.side(0, &options), net.side(1, &options)];
    let node = &mut net.nodes[1];
    node.ep_free(passive.ep).unwrap();
    let attributes = SrqAttributes { max_recv_dtos: BUFFERS, max_recv_iov: 1, low_watermark: 0 };
    let srq = node.srq_create(passive.ia, passive.pz, &attributes).unwrap();
    let (request, connect) = (Some(passive.request), Some(passive.connect));
    let attributes = EpAttributes { max_recv_dtos: 0, ..EpAttributes::DEFAULT };
    passive.ep =
        node.ep_create_with_srq(passive.ia, passive.pz, None, request, connect, srq, &attributes).unwrap();
    for cookie in 0..u64::from(BUFFERS) {
        post(&mut net, &passive, srq, cookie).unwrap();
    }
    net.connect(&[active, passive]);
    // Many times what the queue holds.
    for cookie in 0..100 {
        active.fill(0, 3000, cookie);
        net.nodes[0].ep_post_send(active.ep, &[active.segment(0, 3000)], cookie, NONE).unwrap();
        assert_eq!(net.dto(0, active.request).status, DtoStatus::Success);
        net.pass(1_000_000);
        assert_eq!(counts(&net, srq), (15, 15), "message {cookie}");
        passive.check(cookie as usize % 16 * LONG, 3000, cookie);
        post(&mut net, &passive, srq, cookie % 16).unwrap();
    }
    for evd in [passive.recv, passive.request, passive.connect, passive.asynchronous] {
        net.empty(1, evd);
    }
    // Nobody polls node 1 while the last ones come; then its EP goes.
    for cookie in 0..3 {
        net.nodes[0].ep_post_send(active.ep, &[active.segment(0, 100)], cookie, NONE).unwrap();
    }
    net.world.settle(1_000_000);
    assert_eq!(counts(&net, srq), (16, 16));
    net.nodes[1].ep_free(passive.ep).unwrap();
    assert_eq!(counts(&net, srq), (13, 13), "what the EP had taken is free again");
    net.nodes[1].srq_free(srq).unwrap();
    net.assert_no_refusals();
}

/// A message too long for its buffer breaks the connection, also where receives have no EVD and
/// the peer's DREQ is found together with the failure.
#[test]
fn a_receive_without_an_evd_fails_before_the_peer_leaves() {
    let mut net = Net::new(70, 2);
    let [active, mut passive] = [net.side(0, &Options::default()), net.side(1, &Options::default())];
    let node = &mut net.nodes[1];
    node.ep_free(passive.ep).unwrap();
    let attributes = SrqAttributes { max_recv_dtos: BUFFERS, max_recv_iov: 1, low_watermark: 0 };
    let srq = node.srq_create(passive.ia, passive.pz, &attributes).unwrap();
    let (request, connect) = (Some(passive.request), Some(passive.connect));
    let attributes = EpAttributes { max_recv_dtos: 0, ..EpAttributes::DEFAULT };
    passive.ep =
        node.ep_create_with_srq(passive.ia, passive.pz, None, request, connect, srq, &attributes).unwrap();
    node.srq_post_recv(srq, &[passive.segment(0, 16)], 1).unwrap();
    net.connect(&[active, passive]);
    net.nodes[0].ep_post_send(active.ep, &[active.segment(0, 64)], 2, NONE).unwrap();
    // Node 1 is not polled meanwhile.
    let end = net.world.now() + 10_000_000;
    while net.world.now() < end {
        let now = net.world.now();
        let _ = net.nodes[0].poll(Instant::from_nanos(now));
        net.world.idle(now + 10_000);
    }
    assert_eq!(net.connection(0, &active), ConnectionEvent::Broken);
    assert_eq!(net.connection(1, &passive), ConnectionEvent::Broken);
}

/// The marks are about what messages consumed, from an SRQ or from the EP's own receive queue alike.
#[test]
fn watermarks_of_an_own_receive_queue() {
    let mut net = Net::new(71, 2);
    let [active, passive] = net.pair(&Options::default());
    for cookie in 0..12 {
        let segment = passive.segment(cookie as usize * 64, 64);
        net.nodes[1].ep_post_recv(passive.ep, &[segment], cookie, NONE).unwrap();
    }
    net.nodes[1].ep_set_watermark(passive.ep, 2, 5).unwrap();
    let send = |net: &mut Net| {
        net.nodes[0].ep_post_send(active.ep, &[active.segment(0, 8)], 1, NONE).unwrap();
        assert_eq!(net.dto(0, active.request).status, DtoStatus::Success);
        net.pass(1_000_000);
    };
    send(&mut net);
    send(&mut net);
    net.empty(1, passive.asynchronous);
    assert_eq!(net.nodes[1].ep_recv_query(passive.ep).unwrap().nbufs_allocated, 10);
    send(&mut net);
    match net.event(1, passive.asynchronous) {
        EventData::Async { handle, reason, .. } => {
            assert_eq!((handle, reason), (passive.ep.into(), states::SRQ_SOFT_HIGH_WATERMARK_EVENT));
        }
        other => panic!("{other:?}"),
    }
    // What is dequeued no longer counts.
    for cookie in 0..3 {
        assert_eq!(net.dto(1, passive.recv).user_cookie, cookie);
    }
    (0..5).for_each(|_| send(&mut net));
    net.empty(1, passive.asynchronous);
    assert_eq!(net.nodes[1].ep_get_status(passive.ep).unwrap().state, EpState::Connected);
    net.nodes[0].ep_post_send(active.ep, &[active.segment(0, 8)], 1, NONE).unwrap();
    assert_eq!(net.connection(1, &passive), ConnectionEvent::Broken, "the sixth is one too many");
}

/// Begins a message to node 1 that takes a buffer and does not end: its rest is lost.
fn half_a_message(net: &mut Net, active: &Side, passive: &Side) {
    half_messages(net, active, &[active.ep]);
    net.empty(1, passive.recv);
}

/// The same from each of these endpoints.
fn half_messages(net: &mut Net, active: &Side, eps: &[EpHandle]) {
    // No run of packets as long as the message comes through.
    net.world.with_fabric(|fabric| fabric.set_faults("loss=50%".parse().unwrap()));
    let before = taken(net);
    for ep in eps {
        net.nodes[0].ep_post_send(*ep, &[active.segment(0, LONG)], 1, NONE).unwrap();
    }
    net.until("the first packets", |net| (taken(net) == before + eps.len() as u16).then_some(()));
    net.world.with_fabric(|fabric| fabric.set_faults("loss=100%".parse().unwrap()));
}

/// Buffers that queue pairs of node 1 have taken so far.
fn taken(net: &Net) -> u16 {
    net.world.with_hca(1, |hca| hca.shared_receive_queues().next().expect("one queue").0)
}

/// Delays the flushes of node 1's HCA, or lets them go on.
fn hold_flushes(net: &Net, hold: bool) {
    net.world.with_hca(1, |hca| hca.hold_flushes(hold));
}

fn heal(net: &Net) {
    net.world.with_fabric(|fabric| fabric.set_faults(Default::default()));
}

/// Puts fresh endpoints on both sides and connects them.
fn again(net: &mut Net, active: &mut Side, passive: &mut Side, srq: SrqHandle) {
    heal(net);
    let (recv, request, connect) = (Some(active.recv), Some(active.request), Some(active.connect));
    active.ep = net.nodes[0].ep_create(active.ia, Some(active.pz), recv, request, connect, None).unwrap();
    passive.ep = on_queue(net, passive, srq).unwrap();
    net.connect(&[*active, *passive]);
}

/// The buffer comes back as often as this happens, to the last place of the queue.
#[test]
fn a_buffer_of_half_a_message_comes_back_from_an_endpoint_that_is_freed() {
    let mut net = Net::new(91, 2);
    let ([mut active, mut passive], srq) = pair(&mut net, false);
    for cookie in 0..u64::from(BUFFERS) {
        post(&mut net, &passive, srq, cookie).unwrap();
    }
    for round in 0..2 * BUFFERS {
        half_a_message(&mut net, &active, &passive);
        assert_eq!(counts(&net, srq), (16, 16), "round {round}");
        net.nodes[1].ep_free(passive.ep).unwrap();
        assert!(net.nodes[1].ep_query(passive.ep).is_err(), "it is gone for its consumer");
        net.nodes[0].ep_free(active.ep).unwrap();
        net.pass(1_000_000);
        assert_eq!(counts(&net, srq), (15, 15), "round {round}");
        assert_eq!(net.nodes[1].census().closing, 0);
        net.empty(1, passive.recv);
        post(&mut net, &passive, srq, 1).unwrap();
        again(&mut net, &mut active, &mut passive, srq);
    }
    // The EVD is freed too: the CQ goes behind the queue pair.
    half_a_message(&mut net, &active, &passive);
    net.nodes[1].ep_free(passive.ep).unwrap();
    net.nodes[1].evd_free(passive.recv).unwrap();
    assert_eq!(counts(&net, srq), (15, 15));
    net.nodes[1].srq_free(srq).unwrap();
    net.assert_no_refusals();
}

/// The peer leaves in the middle of a message, and the endpoint is reset before the device has
/// flushed it.
#[test]
fn a_buffer_of_half_a_message_comes_back_from_an_endpoint_that_is_reset() {
    let mut net = Net::new(82, 2);
    let ([active, passive], srq) = pair(&mut net, false);
    for cookie in 0..u64::from(BUFFERS) {
        post(&mut net, &passive, srq, cookie).unwrap();
    }
    for round in 0..2 * BUFFERS {
        half_a_message(&mut net, &active, &passive);
        heal(&net);
        hold_flushes(&net, true);
        net.nodes[0].ep_disconnect(active.ep, CloseFlags::Abrupt).unwrap();
        net.until("the peer to be gone", |net| {
            let state = net.nodes[1].ep_query(passive.ep).unwrap().state;
            (state == EpState::Disconnected).then_some(())
        });
        assert_eq!((net.nodes[1].census().closing, counts(&net, srq).1), (1, 16), "the flush is pending");
        net.nodes[1].ep_reset(passive.ep).unwrap();
        assert_eq!(net.connection(1, &passive), ConnectionEvent::Disconnected);
        hold_flushes(&net, false);
        net.pass(1_000_000);
        assert_eq!(counts(&net, srq), (15, 15), "round {round}");
        net.empty(1, passive.connect);
        post(&mut net, &passive, srq, 1).unwrap();
        while let Ok(event) = net.nodes[0].evd_dequeue(active.request) {
            assert!(matches!(event.data, EventData::Dto(done) if done.status == DtoStatus::ErrFlushed));
        }
        net.connection(0, &active);
        net.nodes[0].ep_reset(active.ep).unwrap();
        net.connect(&[active, passive]);
    }
    // The IA takes everything with it, though the device has not flushed yet.
    half_a_message(&mut net, &active, &passive);
    hold_flushes(&net, true);
    net.nodes[1].ia_close(passive.ia, CloseFlags::Abrupt).unwrap();
    let census = net.nodes[1].census();
    assert_eq!((census.eps, census.srqs, census.evds, census.closing), (0, 0, 0, 0));
    net.assert_no_refusals();
}

/// More at once than can be kept until they are flushed: a free waits for one of those before.
#[test]
fn many_endpoints_are_freed_in_the_middle_of_messages() {
    const COUNT: usize = 16;
    let mut net = Net::new(83, 2);
    let ([mut active, mut passive], srq) = pair(&mut net, false);
    net.nodes[1].srq_resize(srq, COUNT as u32).unwrap();
    let mut eps = vec![(active.ep, passive.ep)];
    for _ in 1..COUNT {
        again(&mut net, &mut active, &mut passive, srq);
        eps.push((active.ep, passive.ep));
    }
    for cookie in 0..COUNT as u64 {
        post(&mut net, &passive, srq, cookie).unwrap();
    }
    let senders: Vec<_> = eps.iter().map(|(sender, _)| *sender).collect();
    half_messages(&mut net, &active, &senders);
    let (unfinished, outstanding) = counts(&net, srq);
    assert!(unfinished > 8 && outstanding == COUNT as i32, "{unfinished} are in the middle of a message");
    for (sender, receiver) in eps {
        net.nodes[1].ep_free(receiver).unwrap();
        net.nodes[0].ep_free(sender).unwrap();
    }
    net.pass(1_000_000);
    assert_eq!(counts(&net, srq), (0, 0));
    net.nodes[1].srq_free(srq).unwrap();
    net.assert_no_refusals();
}

/// The consumer dequeues the flush of a freed endpoint before the adapter is polled.
#[test]
fn a_buffer_comes_back_with_a_completion_that_is_dequeued() {
    let mut net = Net::new(84, 2);
    let ([active, passive], srq) = pair(&mut net, false);
    for cookie in 0..u64::from(BUFFERS) {
        post(&mut net, &passive, srq, cookie).unwrap();
    }
    half_a_message(&mut net, &active, &passive);
    hold_flushes(&net, true);
    net.nodes[1].ep_free(passive.ep).unwrap();
    hold_flushes(&net, false);
    net.world.settle(1_000_000);
    assert_eq!((counts(&net, srq), net.nodes[1].census().closing), ((16, 16), 1));
    // A dequeue looks at the CQ before it polls.
    net.empty(1, passive.recv);
    assert_eq!((counts(&net, srq), net.nodes[1].census().closing), ((15, 15), 0));
    net.assert_no_refusals();
}

/// A device that never reports the end of a flush keeps neither the queue pair nor its owner.
#[test]
fn a_queue_pair_whose_flush_is_not_reported_ends_after_a_second() {
    let mut net = Net::new(85, 2);
    let ([active, passive], srq) = pair(&mut net, false);
    let before = net.world.census(1);
    post(&mut net, &passive, srq, 0).unwrap();
    half_a_message(&mut net, &active, &passive);
    hold_flushes(&net, true);
    net.nodes[1].ep_free(passive.ep).unwrap();
    heal(&net);
    net.pass(900_000_000);
    assert_eq!((net.nodes[1].census().closing, net.world.census(1)), (1, before));
    net.pass(200_000_000);
    assert_eq!(net.nodes[1].census().closing, 0);
    assert_eq!(net.world.census(1).qps + 1, before.qps);
    net.nodes[1].evd_free(passive.recv).unwrap();
    net.nodes[1].srq_free(srq).unwrap();
    net.assert_no_refusals();
}

/// Nothing is flushed any more once the device is gone.
#[test]
fn the_end_of_the_device_ends_its_flushes() {
    let mut net = Net::new(86, 2);
    let ([active, passive], srq) = pair(&mut net, false);
    post(&mut net, &passive, srq, 0).unwrap();
    half_a_message(&mut net, &active, &passive);
    hold_flushes(&net, true);
    net.nodes[1].ep_free(passive.ep).unwrap();
    assert_eq!(net.nodes[1].census().closing, 1);
    net.world.with_hca(1, |hca| hca.fail(mlx5_prm::status::HealthSyndrome(1)));
    // The flush is overdue as well, but the first poll finds the failure.
    net.world.pass(3_000_000_000);
    let now = Instant::from_nanos(net.world.now());
    let _ = net.nodes[1].poll(now);
    assert_eq!((net.nodes[1].is_dead(), net.nodes[1].census().closing), (true, 0));
}

/// The places in the CQ of an endpoint that is freed are kept for its flush. The next endpoint of
/// the queue shares them: they are neither reserved twice nor lost.
#[test]
fn places_in_the_cq_pass_from_endpoint_to_endpoint() {
    const SHARED: u32 = 400;
    let mut net = Net::new(87, 2);
    let ([mut active, mut passive], srq) = pair_on(&mut net, false, SHARED);
    let evd = passive.recv;
    let length = |net: &Net| net.nodes[1].evd_query(evd).unwrap().evd_qlen;
    let before = length(&net);
    assert!((SHARED..4 * SHARED).contains(&before), "{before}");
    for cookie in 0..6 {
        post(&mut net, &passive, srq, cookie).unwrap();
        half_a_message(&mut net, &active, &passive);
        hold_flushes(&net, true);
        net.nodes[1].ep_free(passive.ep).unwrap();
        net.nodes[0].ep_free(active.ep).unwrap();
        again(&mut net, &mut active, &mut passive, srq);
        hold_flushes(&net, false);
        net.pass(1_000_000);
        assert_eq!((length(&net), counts(&net, srq), net.nodes[1].census().closing), (before, (0, 0), 0));
    }
    // An endpoint with receives of its own fills the CQ with them: the queue's need more.
    let attributes = EpAttributes { max_recv_dtos: before, ..EpAttributes::DEFAULT };
    let (recv, request, connect) = (Some(passive.recv), Some(passive.request), Some(passive.connect));
    let (ia, pz) = (passive.ia, Some(passive.pz));
    net.nodes[1].ep_create(ia, pz, recv, request, connect, Some(&attributes)).unwrap();
    assert!(length(&net) >= before + SHARED, "{}", length(&net));
    net.assert_no_refusals();
}

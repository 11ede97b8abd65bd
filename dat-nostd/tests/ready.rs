//! Who hears of what: upcalls, waiters, the ready queue, requests that nobody answers; and what a poll costs.

use crate::common;

use common::{Net, Node, Options, Side};
use dat_nostd::*;
use harness::platform::{ModelBar, ModelPlatform};
use harness::{World, WorldConfig};
use std::cell::Cell;
use std::time::Duration;

const NONE: CompletionFlags = CompletionFlags::empty();

#[track_caller]
fn is<T: core::fmt::Debug>(result: DatResult<T>, kind: ReturnType) {
    match result {
        Err(error) if error.is(kind) => {}
        other => panic!("{other:?} instead of {kind:?}"),
    }
}

/// What the agent that answers messages works with.
#[derive(Clone, Copy)]
struct Answering {
    cno: CnoHandle,
    side: Side,
    calls: u64,
}

thread_local! {
    // Upcalls come on the thread that delivers them.
    static ANSWERING: Cell<Option<Answering>> = const { Cell::new(None) };
}

/// Posts every receive again and answers it with the number of the call.
fn answer(adapter: &mut dyn AgentCalls, instance_data: u64, evd: Option<EvdHandle>) {
    let Answering { cno, side, calls } = ANSWERING.get().unwrap();
    ANSWERING.set(Some(Answering { cno, side, calls: calls + 1 }));
    assert_eq!((instance_data, evd), (77, Some(side.recv)));
    adapter.cno_modify_agent(cno, Some(ProxyAgent { function: answer, instance_data })).unwrap();
    loop {
        match adapter.evd_dequeue(side.recv) {
            Ok(Event { data: EventData::Dto(done), .. }) => {
                let number = done.user_cookie;
                assert_eq!((done.status, done.transferred_length), (DtoStatus::Success, 64));
                let place = side.segment(number as usize * 64, 64);
                adapter.ep_post_send(side.ep, &[place], number, CompletionFlags::SUPPRESS).unwrap();
                let next = side.segment((number as usize + 64) * 64, 64);
                adapter.ep_post_recv(side.ep, &[next], number + 64, NONE).unwrap();
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) => return assert_eq!(error, DatReturn::QUEUE_EMPTY),
        }
    }
}

#[test]
fn an_agent_posts_in_its_upcall() {
    let mut net = Net::new(201, 2);
    let [active, passive] = net.pair(&Options::default());
    let agent = ProxyAgent { function: answer, instance_data: 77 };
    let cno = net.nodes[1].cno_create(passive.ia, Some(agent)).unwrap();
    net.nodes[1].evd_modify_cno(passive.recv, Some(cno)).unwrap();
    ANSWERING.set(Some(Answering { cno, side: passive, calls: 0 }));
    for number in 0..8 {
        net.nodes[1]
            .ep_post_recv(passive.ep, &[passive.segment(number * 64, 64)], number as u64, NONE)
            .unwrap();
    }
    // Two at a time, so that an upcall stands for several messages.
    for number in (0..40).step_by(2) {
        for number in [number, number + 1] {
            active.fill(number * 64, 64, number as u64);
            let back = active.segment((1000 + number) * 64, 64);
            net.nodes[0].ep_post_recv(active.ep, &[back], number as u64, NONE).unwrap();
            let out = [active.segment(number * 64, 64)];
            net.nodes[0].ep_post_send(active.ep, &out, number as u64, CompletionFlags::SUPPRESS).unwrap();
        }
        net.pass(1_000_000);
        assert!(!net.nodes[1].prepare_idle(Instant::from_nanos(net.world.now())), "somebody is to be called");
        net.nodes[1].deliver_upcalls();
        for number in [number, number + 1] {
            assert_eq!(net.dto(0, active.recv).user_cookie, number as u64);
            active.check((1000 + number) * 64, 64, number as u64);
        }
    }
    assert_eq!(ANSWERING.get().unwrap().calls, 20, "one for each pair");
    assert_eq!(net.nodes[1].next_upcall(), None);
    net.assert_no_refusals();
}

fn nobody(_: &mut dyn AgentCalls, _: u64, _: Option<EvdHandle>) {
    panic!("the test takes its upcalls itself");
}

#[test]
fn one_call_is_due_for_each_notifier_and_none_is_lost() {
    let mut net = Net::new(202, 1);
    let side = net.side(0, &Options::default());
    let adapter = &mut net.nodes[0];
    let agent = |instance_data| Some(ProxyAgent { function: nobody, instance_data });
    let cnos = [1, 2, 3].map(|data| adapter.cno_create(side.ia, agent(data)).unwrap());
    let evds = cnos.map(|cno| adapter.evd_create(side.ia, 8, Some(cno), EvdFlags::SOFTWARE).unwrap());
    for evd in [evds[1], evds[0], evds[1], evds[0]] {
        adapter.evd_post_se(evd, 1).unwrap();
    }
    // The agent that is there when the call is made gets it; none, and nobody is called.
    adapter.cno_modify_agent(cnos[0], agent(9)).unwrap();
    adapter.evd_post_se(evds[2], 1).unwrap();
    adapter.cno_modify_agent(cnos[2], None).unwrap();
    for (cno, data, evd) in [(cnos[1], 2, evds[1]), (cnos[0], 9, evds[0])] {
        let upcall = adapter.next_upcall().unwrap();
        assert_eq!((upcall.cno, upcall.agent, upcall.evd), (cno, agent(data).unwrap(), Some(evd)));
        assert_eq!(adapter.cno_query(cno).unwrap().agent, None, "called once");
    }
    assert_eq!(adapter.next_upcall(), None);
    // Those of a closed IA wait until they are delivered; their places are taken till then.
    for (cno, data) in cnos.into_iter().zip(11..) {
        adapter.cno_modify_agent(cno, agent(data)).unwrap();
    }
    adapter.ia_close(side.ia, CloseFlags::Abrupt).unwrap();
    assert_eq!(adapter.census().cnos, 0);
    let (ia, _) = adapter.ia_open("ib0", 8, None).unwrap();
    let room = core::iter::from_fn(|| adapter.cno_create(ia, None).ok()).count();
    assert_eq!(room, Capacities::DEFAULT.cnos - 3);
    for (cno, data) in cnos.into_iter().zip(11..) {
        let upcall = adapter.next_upcall().unwrap();
        assert_eq!((upcall.cno, upcall.agent.instance_data, upcall.evd), (cno, data, None));
    }
    assert_eq!(adapter.next_upcall(), None);
    adapter.cno_create(ia, None).unwrap();
}

#[test]
fn a_dropped_waiter_frees_its_evd() {
    let mut net = Net::new(203, 1);
    let side = net.side(0, &Options::default());
    let adapter = &mut net.nodes[0];
    let cno = adapter.cno_create(side.ia, None).unwrap();
    let evd = adapter.evd_create(side.ia, 8, Some(cno), EvdFlags::SOFTWARE).unwrap();
    let waiter = adapter.evd_wait_begin(evd, Instant::from_nanos(0), TIMEOUT_INFINITE, 2).unwrap();
    adapter.evd_post_se(evd, 1).unwrap();
    is(adapter.evd_dequeue(evd), ReturnType::InvalidState);
    is(adapter.evd_wait_begin(evd, Instant::from_nanos(0), 0, 1), ReturnType::InvalidState);
    drop(waiter);
    assert_eq!(adapter.evd_dequeue(evd).unwrap().data, EventData::Software { value: 1 });
    // The EVD triggers its CNO again.
    let mut watching = adapter.cno_wait_begin(cno, Instant::from_nanos(0), 0).unwrap();
    is(adapter.cno_wait_poll(&mut watching, Instant::from_nanos(0)), ReturnType::QueueEmpty);
    drop(adapter.evd_wait_begin(evd, Instant::from_nanos(0), TIMEOUT_INFINITE, 2).unwrap());
    adapter.evd_post_se(evd, 2).unwrap();
    let mut watching = adapter.cno_wait_begin(cno, Instant::from_nanos(0), 0).unwrap();
    assert_eq!(
        adapter.cno_wait_poll(&mut watching, Instant::from_nanos(0)),
        Ok(CnoWait::Triggered(Some(evd)))
    );
    // A wait that has ended leaves a later one alone.
    let mut first = adapter.evd_wait_begin(evd, Instant::from_nanos(0), 0, 8).unwrap();
    assert_eq!(adapter.evd_wait_poll(&mut first, Instant::from_nanos(0)), Ok(Wait::TimedOut(1)));
    let mut second = adapter.evd_wait_begin(evd, Instant::from_nanos(0), TIMEOUT_INFINITE, 2).unwrap();
    is(adapter.evd_wait_poll(&mut first, Instant::from_nanos(0)), ReturnType::InvalidState);
    drop(first);
    assert_eq!(adapter.evd_wait_poll(&mut second, Instant::from_nanos(0)), Ok(Wait::Pending(Wake::Idle)));
    is(adapter.evd_dequeue(evd), ReturnType::InvalidState);
    // So does one on an EVD that had the slot before.
    adapter.evd_free(evd).unwrap();
    let mut later = Vec::new();
    for _ in 0..80 {
        let evd = adapter.evd_create(side.ia, 8, None, EvdFlags::SOFTWARE).unwrap();
        later.push(adapter.evd_wait_begin(evd, Instant::from_nanos(0), TIMEOUT_INFINITE, 1).unwrap());
        if later.len() < 70 {
            adapter.evd_free(evd).unwrap();
        }
    }
    drop(second);
    for waiter in later.iter_mut().skip(70) {
        assert_eq!(adapter.evd_wait_poll(waiter, Instant::from_nanos(0)), Ok(Wait::Pending(Wake::Idle)));
    }
    for waiter in &mut later[..69] {
        is(adapter.evd_wait_poll(waiter, Instant::from_nanos(0)), ReturnType::Abort);
    }
}

#[test]
fn a_simple_program_waits() {
    let mut net = Net::new(204, 2);
    let [active, passive] = net.pair(&Options::default());
    let before = net.world.now();
    is(net.nodes[1].wait(passive.recv, Duration::from_millis(5)), ReturnType::TimeoutExpired);
    assert!(net.world.now() >= before + 5_000_000);
    is(net.nodes[1].wait(passive.recv, Duration::ZERO), ReturnType::TimeoutExpired);
    net.nodes[1].ep_post_recv(passive.ep, &[passive.segment(0, 64)], 1, NONE).unwrap();
    net.nodes[0].ep_post_send(active.ep, &[active.segment(0, 64)], 2, NONE).unwrap();
    for (node, evd, cookie) in [(1, passive.recv, 1), (0, active.request, 2)] {
        let event = net.nodes[node].wait(evd, Duration::MAX).unwrap();
        assert!(
            matches!(event.data, EventData::Dto(DtoCompletion { user_cookie, .. }) if user_cookie == cookie)
        );
    }
    // It does not end another's wait, and agents are called meanwhile.
    let waiter =
        net.nodes[1].evd_wait_begin(passive.recv, Instant::from_nanos(0), TIMEOUT_INFINITE, 1).unwrap();
    is(net.nodes[1].wait(passive.recv, Duration::MAX), ReturnType::InvalidState);
    net.nodes[1].evd_wait_end(waiter).unwrap();
    let agent = ProxyAgent { function: ring, instance_data: passive.connect.bits() };
    let cno = net.nodes[1].cno_create(passive.ia, Some(agent)).unwrap();
    let software = net.nodes[1].evd_create(passive.ia, 8, Some(cno), EvdFlags::SOFTWARE).unwrap();
    let rung = net.nodes[1].evd_create(passive.ia, 8, None, EvdFlags::SOFTWARE).unwrap();
    let agent = ProxyAgent { function: ring, instance_data: rung.bits() };
    net.nodes[1].cno_modify_agent(cno, Some(agent)).unwrap();
    net.nodes[1].evd_post_se(software, 1).unwrap();
    let event = net.nodes[1].wait(rung, Duration::MAX).unwrap();
    assert_eq!(event.data, EventData::Software { value: 5 });
}

/// Posts a software event to the EVD that it is given.
fn ring(adapter: &mut dyn AgentCalls, instance_data: u64, _: Option<EvdHandle>) {
    adapter.evd_post_se(EvdHandle::from_bits(instance_data), 5).unwrap();
}

/// Completions looked at for each event, where `count` writes have completed and are drained by waits.
fn looks_for_each_event(count: u32) -> f64 {
    let mut net = Net::new(206, 2);
    let attributes = EpAttributes { max_request_dtos: count, ..EpAttributes::DEFAULT };
    let [active, _] = net.pair(&Options { attributes, ..Options::default() });
    let remote = {
        let passive = net.side(1, &Options::default());
        passive.remote(0, 0)
    };
    let before = net.nodes[0].visits();
    for half in 0..2 {
        for cookie in 0..u64::from(count / 2) {
            net.nodes[0].ep_post_rdma_write(active.ep, &[], cookie, &remote, NONE).unwrap();
        }
        // Polls look at completions, and no wait counts them.
        net.pass(50_000_000);
        for taken in 1..=count / 2 {
            let now = Instant::from_nanos(net.world.now());
            let mut wait = net.nodes[0].evd_wait_begin(active.request, now, 0, 1).unwrap();
            let left = match net.nodes[0].evd_wait_poll(&mut wait, now) {
                Ok(Wait::Ready(Event { data: EventData::Dto(done), .. }, left)) => {
                    assert_eq!((done.status, done.user_cookie), (DtoStatus::Success, u64::from(taken - 1)));
                    left
                }
                other => panic!("{other:?} at {taken} of half {half}"),
            };
            assert_eq!(left, count / 2 - taken, "nmore");
        }
    }
    (net.nodes[0].visits() - before) as f64 / f64::from(count)
}

#[test]
fn waits_cost_the_same_however_many_completions_are_queued() {
    let [few, many] = [400, 4000].map(looks_for_each_event);
    assert!(many <= 2.0 * few, "{many} looks for each of 4,000 events, {few} for each of 400");
    assert!(many <= 4.0, "{many} looks for each event");
}

/// Everything that became ready.
fn ready(adapter: &mut Node) -> Vec<Ready> {
    core::iter::from_fn(|| adapter.next_ready()).collect()
}

#[test]
fn what_became_ready_is_a_queue() {
    let mut net = Net::new(205, 2);
    let [active, passive] = net.pair(&Options::default());
    for node in 0..2 {
        ready(&mut net.nodes[node]);
    }
    let now = net.world.now();
    let node = &mut net.nodes[1];
    let cno = node.cno_create(passive.ia, None).unwrap();
    let evds = [(); 3].map(|()| node.evd_create(passive.ia, 8, None, EvdFlags::SOFTWARE).unwrap());
    node.evd_modify_cno(evds[2], Some(cno)).unwrap();
    for evd in [evds[2], evds[0], evds[2], evds[0]] {
        node.evd_post_se(evd, 1).unwrap();
    }
    assert_eq!(ready(node), [Ready::Evd(evds[2]), Ready::Evd(evds[0]), Ready::Cno(cno)]);
    assert_eq!(ready(node), []);
    // Time-outs, of each kind once, when their time has come.
    let mut waits = [
        node.evd_wait_begin(evds[0], Instant::from_nanos(now), 1000, 3).unwrap(),
        node.evd_wait_begin(evds[1], Instant::from_nanos(now), 3000, 1).unwrap(),
    ];
    let mut watching = node.cno_wait_begin(cno, Instant::from_nanos(now), 0).unwrap();
    assert_eq!(
        node.cno_wait_poll(&mut watching, Instant::from_nanos(now)),
        Ok(CnoWait::Triggered(Some(evds[2])))
    );
    let mut watching =
        [2000, 4000].map(|timeout| node.cno_wait_begin(cno, Instant::from_nanos(now), timeout).unwrap());
    for (at, deadline, expected) in [
        (999_999, 1_000_000, vec![]),
        (1_000_000, 2_000_000, vec![Ready::Evd(evds[0])]),
        (1_000_001, 2_000_000, vec![]),
    ] {
        let wake = node.poll(Instant::from_nanos(now + at));
        assert!(wake.is_due(Instant::from_nanos(now + deadline)), "{wake:?}");
        assert_eq!(ready(node), expected, "after {at} ns");
    }
    assert_eq!(
        node.evd_wait_poll(&mut waits[0], Instant::from_nanos(now + 1_000_001)),
        Ok(Wait::TimedOut(2))
    );
    let _ = node.poll(Instant::from_nanos(now + 2_000_000));
    assert_eq!(ready(node), [Ready::Cno(cno)]);
    is(node.cno_wait_poll(&mut watching[0], Instant::from_nanos(now + 2_000_000)), ReturnType::QueueEmpty);
    let pending = Ok(CnoWait::Pending(Wake::At(Instant::from_nanos(now + 4_000_000))));
    assert_eq!(node.cno_wait_poll(&mut watching[1], Instant::from_nanos(now + 2_000_000)), pending);
    let _ = node.poll(Instant::from_nanos(now + 4_000_000));
    assert_eq!(ready(node), [Ready::Evd(evds[1]), Ready::Cno(cno)]);
    // An interrupted wait is over; a dropped one is nobody's.
    let wait = node.evd_wait_begin(evds[0], Instant::from_nanos(now), TIMEOUT_INFINITE, 2).unwrap();
    node.evd_set_unwaitable(evds[0]).unwrap();
    assert_eq!(ready(node), [Ready::Evd(evds[0])]);
    drop(wait);
    drop(node.evd_wait_begin(evds[2], Instant::from_nanos(now), 5000, 8).unwrap());
    let _ = node.poll(Instant::from_nanos(now + 6_000_000));
    assert_eq!(ready(node), []);
    // Completions, without a look at any other EVD.
    net.nodes[1].ep_post_recv(passive.ep, &[passive.segment(0, 64)], 1, NONE).unwrap();
    net.nodes[0].ep_post_send(active.ep, &[], 1, NONE).unwrap();
    net.pass(5_000_000);
    assert_eq!(ready(&mut net.nodes[1]), [Ready::Evd(passive.recv)]);
    assert_eq!(ready(&mut net.nodes[0]), [Ready::Evd(active.request)]);
    // With the last EVD the CNO's waiters go.
    net.nodes[1].evd_free(evds[2]).unwrap();
    assert_eq!(ready(&mut net.nodes[1]), [Ready::Cno(cno)]);
    assert_eq!(
        net.nodes[1].cno_wait_poll(&mut watching[1], Instant::from_nanos(now)),
        Ok(CnoWait::Triggered(None))
    );
}

/// Requests that nobody answers, as many as an adapter takes and one more.
fn requests(net: &mut Net, active: &Side, eps: &[EpHandle], qualifier: u64) {
    for ep in eps {
        let side = Side { ep: *ep, ..*active };
        net.ask(&side, qualifier, TIMEOUT_INFINITE, b"");
    }
    net.until("the requests", |net| (net.nodes[1].census().crs == Capacities::DEFAULT.crs).then_some(()));
}

#[test]
fn requests_go_with_the_evd_that_nobody_took_them_from() {
    let mut net = Net::new(206, 2);
    let [active, passive] = [0, 1].map(|node| net.side(node, &Options::default()));
    let connect = net.nodes[0].evd_create(active.ia, 64, None, EvdFlags::CONNECTION).unwrap();
    let attributes = EpAttributes { max_recv_dtos: 1, max_request_dtos: 1, ..EpAttributes::DEFAULT };
    let active = Side { connect, ..active };
    for (qualifier, flags) in [(70, PspFlags::Consumer), (71, PspFlags::Provider)] {
        let eps: Vec<EpHandle> = (0..=Capacities::DEFAULT.crs)
            .map(|_| {
                let (recv, request) = (Some(active.recv), Some(active.request));
                let node = &mut net.nodes[0];
                node.ep_create(active.ia, Some(active.pz), recv, request, Some(connect), Some(&attributes))
                    .unwrap()
            })
            .collect();
        let before = net.nodes[1].census();
        let cr = net.nodes[1].evd_create(passive.ia, 64, None, EvdFlags::CR).unwrap();
        let psp = net.nodes[1].psp_create(passive.ia, qualifier, cr, flags).unwrap();
        requests(&mut net, &active, &eps, qualifier);
        net.nodes[1].psp_free(psp).unwrap();
        net.nodes[1].evd_free(cr).unwrap();
        // All that they held is there again, and every peer hears of it.
        let after = net.nodes[1].census();
        assert_eq!((after.crs, after.eps, after.events), (0, before.eps, before.events));
        for _ in &eps {
            match net.event(0, connect) {
                EventData::Connection { event, .. } => assert!(
                    matches!(event, ConnectionEvent::PeerRejected | ConnectionEvent::NonPeerRejected),
                    "{event:?}"
                ),
                other => panic!("{other:?}"),
            }
        }
        // New ones are taken.
        let psp = net.nodes[1].psp_create(passive.ia, qualifier, passive.cr, PspFlags::Consumer).unwrap();
        let side = net.side(0, &Options::default());
        net.ask(&side, qualifier, TIMEOUT_INFINITE, b"");
        let request = net.request(&passive, psp);
        net.nodes[1].cr_reject(request).unwrap();
        assert_eq!(net.connection(0, &side), ConnectionEvent::PeerRejected);
        net.nodes[1].psp_free(psp).unwrap();
        for ep in eps {
            net.nodes[0].ep_free(ep).unwrap();
        }
    }
}

/// A graceful close does not mind requests, whether their events were taken or not, nor the EPs that came with them.
#[test]
fn an_unanswered_request_does_not_keep_an_ia_open() {
    for (seed, taken) in [(207, false), (208, true)] {
        let mut net = Net::new(seed, 2);
        let active = net.side(0, &Options::default());
        let node = &mut net.nodes[1];
        let (ia, _) = node.ia_open("ib0", 8, None).unwrap();
        // The EVD is another IA's, so that it lives on.
        let (other, _) = node.ia_open("ib0", 8, None).unwrap();
        let cr = node.evd_create(ia, 8, None, EvdFlags::CR).unwrap();
        let psp = node.psp_create(ia, 9, cr, PspFlags::Provider).unwrap();
        net.ask(&active, 9, TIMEOUT_INFINITE, b"");
        net.until("the request", |net| (net.nodes[1].census().crs == 1).then_some(()));
        let node = &mut net.nodes[1];
        is(node.ia_close(ia, CloseFlags::Graceful), ReturnType::InvalidState);
        node.psp_free(psp).unwrap();
        if taken {
            node.evd_dequeue(cr).unwrap();
            node.evd_free(cr).unwrap();
            assert_eq!((node.census().crs, node.census().eps), (1, 1), "it can still be answered");
        } else {
            node.evd_free(cr).unwrap();
        }
        node.ia_close(ia, CloseFlags::Graceful).unwrap();
        assert_eq!((node.census().crs, node.census().eps, node.census().ias), (0, 0, 1));
        assert_eq!(net.connection(0, &active), ConnectionEvent::PeerRejected);
        net.nodes[1].ia_close(other, CloseFlags::Graceful).unwrap();
    }
}

const MANY: usize = 1000;

adapter_storage! {
    struct ManyTables {
        bar: ModelBar, dma_bytes: 256 << 20, eps: MANY + 8, evds: MANY + 8, lmrs: 8, events: 16384,
        connections: 64,
    }
}

/// An adapter with so many EPs, each on an EVD of its own.
fn with_many(
    count: usize,
) -> (std::rc::Rc<World>, Adapter<'static, ModelPlatform>, Vec<EvdHandle>, Vec<EpHandle>) {
    let world = World::new(&WorldConfig::new(209));
    let (platform, region) = world.attach(hca_model::Profile::node(0), 65536 * 4096);
    let tables = Box::leak(Box::new(ManyTables::new()));
    let config = AdapterConfig::new("ib0", common::address(0), &[], 209);
    let mut adapter =
        Adapter::open(platform, region, harness::host_region(), tables.parts(), &config).unwrap();
    harness::dat::register(&mut adapter, 0);
    let (ia, _) = adapter.ia_open("ib0", 8, None).unwrap();
    let pz = Some(adapter.pz_create(ia).unwrap());
    let attributes = EpAttributes { max_recv_dtos: 1, max_request_dtos: 1, ..EpAttributes::DEFAULT };
    let streams = EvdFlags::DTO | EvdFlags::CONNECTION;
    let evds: Vec<EvdHandle> =
        (0..count).map(|_| adapter.evd_create(ia, 8, None, streams).unwrap()).collect();
    let eps = evds.iter().map(|evd| {
        let evd = Some(*evd);
        adapter.ep_create(ia, pz, evd, evd, evd, Some(&attributes)).unwrap()
    });
    let eps = eps.collect();
    (world, adapter, evds, eps)
}

adapter_storage! {
    struct FewTables {
        bar: ModelBar, dma_bytes: 256 << 20, eps: 8, evds: 64, lmrs: 8, events: 16384,
        connections: 64,
    }
}

/// As many EVDs as the adapter has, beyond the entries of the default event queue, are armed and
/// complete before it is polled.
#[test]
fn every_evd_may_complete_at_once() {
    on_a_large_stack(|| {
        const COUNT: usize = 520;
        let (world, mut adapter, evds, eps) = with_many(COUNT);
        let ia = adapter.ep_query(eps[0]).unwrap().ia;
        let pz = adapter.ep_query(eps[0]).unwrap().pz.unwrap();
        let buffer = adapter.dma_alloc(4096, 64).unwrap();
        let lmr = adapter.lmr_create(ia, &buffer, pz, MemPriv::ALL).unwrap();
        let segment = LmrTriplet {
            lmr_context: lmr.lmr_context,
            virtual_address: buffer.va() as u64,
            segment_length: 8,
            pad: 0,
        };
        for (cookie, ep) in eps.iter().enumerate() {
            adapter.ep_post_recv(*ep, &[segment], cookie as u64, CompletionFlags::empty()).unwrap();
        }
        visits(&world, &mut adapter, 200);
        assert_eq!(visits(&world, &mut adapter, 10), 0, "every CQ is armed");
        for ep in &eps {
            let (to, qos) = (common::address(1), Qos::BestEffort);
            adapter.ep_connect(*ep, &to, 7, TIMEOUT_INFINITE, b"", qos, ConnectFlags::Default).unwrap();
            adapter.ep_disconnect(*ep, CloseFlags::Abrupt).unwrap();
        }
        world.idle(world.now() + 1_000_000);
        for _ in 0..10 {
            let _ = adapter.poll(Instant::from_nanos(world.now()));
        }
        assert!(!adapter.is_dead(), "{:?}", adapter.hca().fatal());
        assert_eq!(adapter.hca().counters().completion_events, COUNT as u64);
        for (cookie, evd) in evds.iter().enumerate() {
            match adapter.evd_dequeue(*evd).unwrap().data {
                EventData::Dto(done) => {
                    assert_eq!((done.user_cookie, done.status), (cookie as u64, DtoStatus::ErrFlushed));
                }
                other => panic!("{other:?}"),
            }
            assert!(matches!(adapter.evd_dequeue(*evd).unwrap().data, EventData::Connection { .. }));
        }
    });
}

/// The event queue takes as much of the DMA region as is documented.
#[test]
fn the_event_queue_of_many_evds_costs_what_is_documented() {
    fn free_bytes(parts: AdapterParts<'static, ModelBar>) -> usize {
        let world = World::new(&WorldConfig::new(210));
        let (platform, region) = world.attach(hca_model::Profile::node(0), 65536 * 4096);
        let config = AdapterConfig::new("ib0", common::address(0), &[], 210);
        Adapter::open(platform, region, harness::host_region(), parts, &config).unwrap().census().free_bytes
    }
    on_a_large_stack(|| {
        let many = free_bytes(Box::leak(Box::new(ManyTables::new())).parts());
        let few = free_bytes(Box::leak(Box::new(FewTables::new())).parts());
        let bytes = |evds| 64usize << Capacities { evds, ..Capacities::DEFAULT }.log_eq_size();
        assert_eq!((bytes(64), bytes(MANY + 8)), (32 << 10, 128 << 10));
        assert_eq!(few - many, bytes(MANY + 8) - bytes(64));
    });
}

/// Objects that so many polls look at, while little time passes.
fn visits(world: &World, adapter: &mut Adapter<'static, ModelPlatform>, polls: u64) -> u64 {
    let before = adapter.visits();
    for _ in 0..polls {
        let now = world.now();
        let _ = adapter.poll(Instant::from_nanos(now));
        world.idle(now + 1000);
    }
    adapter.visits() - before
}

#[test]
fn a_poll_does_not_look_at_what_is_idle() {
    on_a_large_stack(poll_among_many);
}

/// The tables are made on the stack.
fn on_a_large_stack(test: fn()) {
    std::thread::Builder::new().stack_size(64 << 20).spawn(test).unwrap().join().unwrap();
}

fn poll_among_many() {
    let [few, many] = [32, MANY].map(|count| {
        let (world, mut adapter, evds, eps) = with_many(count);
        // All come to rest, and stay there.
        assert!(visits(&world, &mut adapter, 200) >= count as u64);
        assert_eq!(visits(&world, &mut adapter, 1000), 0, "{count} EVDs and EPs");
        // An attempt that fails, and a wait that times out, are looked at; nothing else is.
        let now = world.now();
        let to = common::address(1);
        adapter
            .ep_connect(eps[count / 2], &to, 7, TIMEOUT_INFINITE, b"", Qos::BestEffort, ConnectFlags::Default)
            .unwrap();
        let mut wait = adapter.evd_wait_begin(evds[1], Instant::from_nanos(now), 1, 1).unwrap();
        let active = visits(&world, &mut adapter, 1000);
        assert!(active > 0);
        assert_eq!(adapter.evd_wait_poll(&mut wait, Instant::from_nanos(world.now())), Ok(Wait::TimedOut(0)));
        adapter.ep_disconnect(eps[count / 2], CloseFlags::Abrupt).unwrap();
        assert!(matches!(adapter.evd_dequeue(evds[count / 2]).unwrap().data, EventData::Connection { .. }));
        visits(&world, &mut adapter, 200);
        assert_eq!(visits(&world, &mut adapter, 1000), 0, "at rest again");
        active
    });
    assert_eq!(few, many, "objects looked at among 32 and among {MANY}");
}

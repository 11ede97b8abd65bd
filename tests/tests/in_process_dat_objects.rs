//! DAT's objects between nodes: windows, shared receive queues, service points, disconnects, notification.

use dat_nostd::*;
use tests::WorldConfig;
use tests::net::{Net, Options, Side, address, pattern};

const NONE: CompletionFlags = CompletionFlags::empty();
const BEST: Qos = Qos::BestEffort;

/// Sides whose request EVD takes binds too, connected.
fn pair_with_binds(net: &mut Net) -> [Side; 2] {
    let mut sides = [net.side(0, &Options::default()), net.side(1, &Options::default())];
    for (node, side) in net.nodes.iter_mut().zip(&mut sides) {
        node.ep_free(side.ep).unwrap();
        node.evd_free(side.request).unwrap();
        side.request = node.evd_create(side.ia, 64, None, EvdFlags::DTO | EvdFlags::RMR_BIND).unwrap();
        side.ep = node
            .ep_create(side.ia, Some(side.pz), Some(side.recv), Some(side.request), Some(side.connect), None)
            .unwrap();
    }
    net.connect(&sides);
    sides
}

/// Node 1 binds a window and waits for its event; the context for node 0.
fn bind(net: &mut Net, side: &Side, rmr: RmrHandle, segment: LmrTriplet, rights: MemPriv) -> u32 {
    let context = net.nodes[1].rmr_bind(rmr, &segment, rights, side.ep, 77, NONE).unwrap();
    match net.event(1, side.request) {
        EventData::RmrBind(done) => {
            assert_eq!((done.rmr, done.user_cookie, done.status), (rmr, 77, DtoStatus::Success));
        }
        other => panic!("{other:?}"),
    }
    context
}

/// What becomes of node 0's write or read of node 1's memory.
fn access(net: &mut Net, side: &Side, read: bool, remote: RmrTriplet) -> DtoStatus {
    let iov = [side.segment(0, remote.segment_length as usize)];
    let node = &mut net.nodes[0];
    if read {
        node.ep_post_rdma_read(side.ep, &iov, 5, &remote, NONE).unwrap();
    } else {
        node.ep_post_rdma_write(side.ep, &iov, 5, &remote, NONE).unwrap();
    }
    net.dto(0, side.request).status
}

/// A peer reaches a window's bytes, with its rights, while it is bound; everything else is denied, writes nothing, and breaks the
/// connection.
#[test]
fn a_window_ends_where_range_rights_and_time_do() {
    const FROM: usize = 8192;
    const LEN: usize = 4096;
    let at = |side: &Side, offset: usize| side.lmr.registered_address + (FROM + offset) as u64;
    // Which access is tried: rights of the window, read or write, first byte and length, and whether it may be.
    let tries = [
        (MemPriv::REMOTE_WRITE, false, 0, LEN, true),
        (MemPriv::REMOTE_READ, true, 0, LEN, true),
        (MemPriv::REMOTE_READ | MemPriv::REMOTE_WRITE, true, 100, 1000, true),
        (MemPriv::REMOTE_READ | MemPriv::REMOTE_WRITE, false, LEN - 1, 1, true),
        (MemPriv::REMOTE_WRITE, false, LEN - 1, 2, false),
        (MemPriv::REMOTE_WRITE, false, LEN, 1, false),
        (MemPriv::REMOTE_READ, true, 1, LEN, false),
        (MemPriv::REMOTE_READ, false, 0, 1, false),
        (MemPriv::REMOTE_WRITE, true, 0, 1, false),
        (MemPriv::LOCAL_READ, true, 0, 1, false),
    ];
    for (seed, (rights, read, offset, len, allowed)) in (1..).zip(tries) {
        let what = format!("{rights:?}, {} of {len} at {offset}", if read { "read" } else { "write" });
        let mut net = Net::new(seed, 2);
        let [active, passive] = pair_with_binds(&mut net);
        let rmr = net.nodes[1].rmr_create(passive.pz).unwrap();
        passive.fill(0, 65536, seed);
        active.fill(0, 8192, seed + 100);
        let context = bind(&mut net, &passive, rmr, passive.segment(FROM, LEN), rights);
        let remote = RmrTriplet::new(context, at(&passive, offset), len as u64);
        let status = access(&mut net, &active, read, remote);
        if !allowed {
            assert_eq!(status, DtoStatus::ErrRemoteAccess, "{what}");
            assert_eq!(net.connection(0, &active), ConnectionEvent::Broken, "{what}");
            passive.check(0, 65536, seed);
            continue;
        }
        assert_eq!(status, DtoStatus::Success, "{what}");
        let mut bytes = vec![0; len];
        if read {
            active.memory.read(0, &mut bytes).unwrap();
            let expected: Vec<u8> = (0..len).map(|byte| pattern(seed, FROM + offset + byte)).collect();
            assert_eq!(bytes, expected, "{what}");
        } else {
            passive.memory.read(FROM + offset, &mut bytes).unwrap();
            let expected: Vec<u8> = (0..len).map(|byte| pattern(seed + 100, byte)).collect();
            assert_eq!(bytes, expected, "{what}");
            passive.check(0, FROM + offset, seed);
        }
        net.assert_no_refusals();
    }
}

/// Time: before the bind, after another bind, after an unbind, after the free.
#[test]
fn a_windows_context_dies_with_its_binding() {
    for (seed, end) in [(21, "rebound"), (22, "unbound"), (23, "freed")] {
        let mut net = Net::new(seed, 2);
        let [active, passive] = pair_with_binds(&mut net);
        let rmr = net.nodes[1].rmr_create(passive.pz).unwrap();
        let rights = MemPriv::REMOTE_READ | MemPriv::REMOTE_WRITE;
        let segment = passive.segment(0, 4096);
        let first = bind(&mut net, &passive, rmr, segment, rights);
        let remote = |context| RmrTriplet::new(context, passive.lmr.registered_address, 64);
        assert_eq!(access(&mut net, &active, false, remote(first)), DtoStatus::Success);
        let before = net.nodes[1].rmr_query(rmr).unwrap().binding.unwrap();
        assert_eq!((before.rmr_context, before.lmr_triplet, before.mem_priv), (first, segment, rights));
        match end {
            "rebound" => {
                let second = bind(&mut net, &passive, rmr, segment, rights);
                assert_ne!(first, second);
                assert_eq!(access(&mut net, &active, true, remote(second)), DtoStatus::Success);
            }
            "unbound" => {
                bind(&mut net, &passive, rmr, passive.segment(0, 0), rights);
                assert_eq!(net.nodes[1].rmr_query(rmr).unwrap().binding, None);
            }
            _ => net.nodes[1].rmr_free(rmr).unwrap(),
        }
        passive.fill(0, 4096, seed);
        assert_eq!(access(&mut net, &active, false, remote(first)), DtoStatus::ErrRemoteAccess, "{end}");
        assert_eq!(net.connection(0, &active), ConnectionEvent::Broken, "{end}");
        passive.check(0, 4096, seed);
    }
}

/// What is posted behind a bind waits for it: the message that carries the context may be answered by its use at once.
#[test]
fn a_send_behind_a_bind_may_carry_its_context() {
    let mut net = Net::new(31, 2);
    let [active, passive] = pair_with_binds(&mut net);
    let rmr = net.nodes[1].rmr_create(passive.pz).unwrap();
    for round in 0..50u64 {
        net.nodes[0].ep_post_recv(active.ep, &[active.segment(60_000, 8)], round, NONE).unwrap();
        let segment = passive.segment(4096 * (round as usize % 8), 4096);
        let suppress = CompletionFlags::SUPPRESS;
        let context =
            net.nodes[1].rmr_bind(rmr, &segment, MemPriv::REMOTE_WRITE, passive.ep, round, suppress).unwrap();
        passive.memory.store_be64(100_000, u64::from(context)).unwrap();
        net.nodes[1].ep_post_send(passive.ep, &[passive.segment(100_000, 8)], round, NONE).unwrap();
        assert_eq!(net.dto(0, active.recv).user_cookie, round);
        let told = active.memory.load_be64(60_000).unwrap() as u32;
        active.fill(0, 4096, round);
        let remote = RmrTriplet::new(told, segment.virtual_address, 4096);
        assert_eq!(access(&mut net, &active, false, remote), DtoStatus::Success, "round {round}");
        passive.check(4096 * (round as usize % 8), 4096, round);
        // The bind was suppressed: the send's completion is the next event.
        assert_eq!(net.dto(1, passive.request).user_cookie, round);
    }
    net.assert_no_refusals();
}

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
            let expected: Vec<u8> = (8..len).map(|byte| pattern((at * 1000 + number) as u64, byte)).collect();
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
    assert_eq!(net.nodes[1].ep_recv_query(ep).unwrap().nbufs_allocated, 7);
    send(&mut net, 2);
    assert_eq!(told(&mut net), None, "once");
    assert_eq!(net.nodes[1].ep_get_status(ep).unwrap().state, EpState::Connected);
    // The tenth is one above the hard mark.
    send(&mut net, 1);
    assert_eq!(net.connection(1, &passive), ConnectionEvent::Broken);
    assert_eq!(net.nodes[1].ep_get_status(ep).unwrap().state, EpState::Disconnected);
}

/// Everything posted before a graceful disconnect arrives, however much is lost on the way; nothing comes behind DISCONNECTED.
#[test]
fn a_graceful_disconnect_delivers_everything_posted() {
    for seed in 61..66 {
        let mut config = WorldConfig::new(seed);
        config.fabric.faults = "loss=2%,dup=1%,reorder=1%".parse().unwrap();
        let mut net = Net::with(&config, 2);
        let attributes = EpAttributes { max_recv_dtos: 32, max_request_dtos: 32, ..EpAttributes::DEFAULT };
        let options = Options { merged: true, attributes, ..Options::default() };
        let [active, passive] = net.pair(&options);
        for cookie in 0..32 {
            let segment = passive.segment(cookie as usize * 16384, 16384);
            net.nodes[1].ep_post_recv(passive.ep, &[segment], cookie, NONE).unwrap();
        }
        let len = |number: u64| [0, 1, 5000, 16384][number as usize % 4];
        for number in 0..30u64 {
            let offset = number as usize * 16384;
            active.fill(offset, len(number), number);
            let flags = if number % 3 == 0 { CompletionFlags::SUPPRESS } else { NONE };
            net.nodes[0]
                .ep_post_send(active.ep, &[active.segment(offset, len(number))], number, flags)
                .unwrap();
        }
        net.nodes[0].ep_disconnect(active.ep, CloseFlags::Graceful).unwrap();
        let error = net.nodes[0].ep_post_send(active.ep, &[], 99, NONE).unwrap_err();
        assert!(error.is(ReturnType::InvalidState), "no new requests: {error}");
        let mut told = Vec::new();
        loop {
            match net.event(0, active.connect) {
                EventData::Dto(done) => {
                    assert_eq!(done.status, DtoStatus::Success);
                    told.push(done.user_cookie);
                }
                EventData::Connection { event, .. } => {
                    break assert_eq!(event, ConnectionEvent::Disconnected);
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(told, (0..30).filter(|number| number % 3 != 0).collect::<Vec<_>>());
        let mut arrived = 0;
        loop {
            match net.event(1, passive.connect) {
                EventData::Dto(done) if done.status == DtoStatus::Success => {
                    assert_eq!((done.user_cookie, done.transferred_length), (arrived, len(arrived) as u64));
                    passive.check(arrived as usize * 16384, len(arrived), arrived);
                    arrived += 1;
                }
                EventData::Dto(done) => {
                    assert_eq!(arrived, 30, "everything came before the flushes");
                    assert_eq!(done.status, DtoStatus::ErrFlushed);
                }
                EventData::Connection { event, .. } => {
                    break assert_eq!(event, ConnectionEvent::Disconnected);
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(arrived, 30);
        net.pass(3_000_000_000);
        net.empty(0, active.connect);
        net.empty(1, passive.connect);
    }
}

/// A request goes through a chain of service points to one whose owner accepts it.
#[test]
fn a_request_is_handed_on_with_its_private_data() {
    for name in ["ib0", "ib0-dat"] {
        let mut net = Net::new(71, 2);
        let options = Options { name, ..Options::default() };
        let [active, passive] = [net.side(0, &options), net.side(1, &options)];
        let psps: Vec<PspHandle> = [7, 8, 9]
            .map(|qualifier| {
                net.nodes[1].psp_create(passive.ia, qualifier, passive.cr, PspFlags::Consumer).unwrap()
            })
            .into();
        net.ask(&active, 7, TIMEOUT_INFINITE, b"for whom it may concern");
        let mut cr = net.request(&passive, psps[0]);
        for (qualifier, psp) in [(8, psps[1]), (9, psps[2])] {
            net.nodes[1].cr_handoff(cr, qualifier).unwrap();
            cr = net.request(&passive, psp);
            let asked = net.nodes[1].cr_query(cr).unwrap();
            assert!(asked.private_data.starts_with(b"for whom it may concern"));
            assert_eq!(asked.remote_address, address(0));
        }
        net.nodes[1].cr_accept(cr, Some(passive.ep), b"me").unwrap();
        assert_eq!(net.connection(0, &active), ConnectionEvent::Established);
        assert_eq!(net.connection(1, &passive), ConnectionEvent::Established);
        assert!(net.nodes[0].ep_private_data(active.ep).unwrap().starts_with(b"me"));
        // Handed to a place that cannot take it, the peer is refused.
        let ep = net.nodes[0]
            .ep_create(
                active.ia,
                Some(active.pz),
                Some(active.recv),
                Some(active.request),
                Some(active.connect),
                None,
            )
            .unwrap();
        let other = Side { ep, ..active };
        net.ask(&other, 7, TIMEOUT_INFINITE, b"");
        let cr = net.request(&passive, psps[0]);
        let rsp = net.nodes[1].rsp_create(passive.ia, 10, None, passive.cr).unwrap();
        net.nodes[1].rsp_free(rsp).unwrap();
        assert!(net.nodes[1].cr_handoff(cr, 10).unwrap_err().is(ReturnType::InvalidParameter));
        net.nodes[1].cr_reject(cr).unwrap();
        assert_eq!(net.connection(0, &other), ConnectionEvent::PeerRejected);
    }
}

/// A second connection to where the first goes, with data on both.
#[test]
fn a_connection_is_duplicated() {
    let mut net = Net::new(81, 2);
    let [active, passive] = [net.side(0, &Options::default()), net.side(1, &Options::default())];
    let psp = net.nodes[1].psp_create(passive.ia, 7, passive.cr, PspFlags::Consumer).unwrap();
    let mut eps = Vec::new();
    for round in 0..5u64 {
        let make = |node: &mut tests::net::Node, side: &Side| {
            let (recv, request, connect) = (Some(side.recv), Some(side.request), Some(side.connect));
            node.ep_create(side.ia, Some(side.pz), recv, request, connect, None).unwrap()
        };
        let ours = Side { ep: make(&mut net.nodes[0], &active), ..active };
        let theirs = Side { ep: make(&mut net.nodes[1], &passive), ..passive };
        match eps.last() {
            None => net.ask(&ours, 7, TIMEOUT_INFINITE, b""),
            Some((first, _)) => {
                let first: &Side = first;
                net.nodes[0].ep_dup_connect(ours.ep, first.ep, TIMEOUT_INFINITE, b"another", BEST).unwrap();
            }
        }
        let cr = net.request(&passive, psp);
        net.nodes[1].cr_accept(cr, Some(theirs.ep), b"").unwrap();
        assert_eq!(net.connection(0, &ours), ConnectionEvent::Established);
        assert_eq!(net.connection(1, &theirs), ConnectionEvent::Established);
        eps.push((ours, theirs));
        for (number, (ours, theirs)) in eps.iter().enumerate() {
            let message = round * 10 + number as u64;
            net.nodes[1].ep_post_recv(theirs.ep, &[passive.segment(0, 512)], message, NONE).unwrap();
            active.fill(0, 300, message);
            net.nodes[0].ep_post_send(ours.ep, &[active.segment(0, 300)], message, NONE).unwrap();
            assert_eq!(net.dto(1, passive.recv).user_cookie, message);
            passive.check(0, 300, message);
            net.dto(0, active.request);
        }
    }
}

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
    net.nodes[1].cno_wait_begin(cno, now, 0).unwrap();
    match net.nodes[1].cno_wait_poll(cno, now) {
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
    net.nodes[1].evd_wait_begin(passive.recv, now, TIMEOUT_INFINITE, 1).unwrap();
    assert!(matches!(net.nodes[1].evd_wait_poll(passive.recv, now), Ok(Wait::Pending(_))));
    net.nodes[0].ep_post_send(active.ep, &[], 0, NONE).unwrap();
    net.pass(1_000_000);
    let now = net.world.now();
    assert!(matches!(net.nodes[1].evd_wait_poll(passive.recv, now), Ok(Wait::Pending(_))));
    net.nodes[0].ep_post_send(active.ep, &[], 0, CompletionFlags::SOLICITED_WAIT).unwrap();
    net.pass(1_000_000);
    let now = net.world.now();
    match net.nodes[1].evd_wait_poll(passive.recv, now) {
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

/// One CNO for EVDs of every kind: the EVD that fired first is told, further triggers are absorbed, a sweep finds all.
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
    net.nodes[1].evd_wait_begin(software, now, TIMEOUT_INFINITE, 8).unwrap();
    net.nodes[1].evd_post_se(software, 3).unwrap();
    assert_eq!(triggered(&mut net, cno), None);
    net.nodes[1].evd_wait_end(software).unwrap();
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
    net.nodes[1].cno_wait_begin(cno, now, TIMEOUT_INFINITE).unwrap();
    assert!(matches!(net.nodes[1].cno_wait_poll(cno, now), Ok(CnoWait::Pending(_))));
    net.nodes[1].evd_post_se(software, 5).unwrap();
    assert_eq!(net.nodes[1].cno_wait_poll(cno, now), Ok(CnoWait::Triggered(Some(software))));
}

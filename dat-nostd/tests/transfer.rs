//! Transfers between two adapters on the model: bytes, order, completion flags, flushes, errors.

use crate::common;

use common::{Net, Options, Side};
use dat_nostd::*;
use harness::WorldConfig;

const NONE: CompletionFlags = CompletionFlags::empty();

fn deep(requests: u32, receives: u32) -> Options {
    let attributes = EpAttributes {
        max_request_dtos: requests,
        max_recv_dtos: receives,
        max_rdma_read_in: 8,
        max_rdma_read_out: 8,
        ..EpAttributes::DEFAULT
    };
    Options { attributes, memory: 4 << 20, ..Options::default() }
}

/// 1 % of everything that a fabric can do to a packet.
fn lossy(seed: u64) -> WorldConfig {
    let mut config = WorldConfig::new(seed);
    config.fabric.faults = "loss=1%,dup=1%,reorder=1%,delay=1us..20us".parse().unwrap();
    config
}

const SIZES: [usize; 16] =
    [0, 1, 63, 64, 1023, 1024, 1025, 4095, 4096, 4097, 8191, 8192, 20_000, 65_535, 65_536, 7];
const SLOT: usize = 1 << 16;

#[test]
fn sends_arrive_in_order_on_a_bad_fabric() {
    for seed in 1..4 {
        let mut net = Net::with(&lossy(seed), 2);
        let [active, passive] = net.pair(&deep(16, 16));
        let slots = 16;
        for slot in 0..slots {
            let segment = passive.segment(slot * SLOT, SLOT);
            net.nodes[1].ep_post_recv(passive.ep, &[segment], slot as u64, NONE).unwrap();
        }
        let (mut posted, mut sent, mut received) = (0u64, 0u64, 0u64);
        let total = 200;
        net.until("all messages", |net| {
            while posted < total && posted - sent < 16 {
                let len = SIZES[(posted * 7 % 16) as usize];
                let offset = (posted as usize % slots) * SLOT;
                active.fill(offset, len, posted);
                // Several segments, of which some are empty.
                let third = len / 3;
                let iov = [
                    active.segment(offset, third),
                    active.segment(offset + third, 0),
                    active.segment(offset + third, len - third),
                ];
                net.nodes[0].ep_post_send(active.ep, &iov, posted, NONE).unwrap();
                posted += 1;
            }
            while let Ok(event) = net.nodes[0].evd_dequeue(active.request) {
                let EventData::Dto(done) = event.data else { panic!("{event:?}") };
                assert_eq!((done.user_cookie, done.status), (sent, DtoStatus::Success));
                assert_eq!(done.transferred_length, SIZES[(sent * 7 % 16) as usize] as u64);
                sent += 1;
            }
            while let Ok(event) = net.nodes[1].evd_dequeue(passive.recv) {
                let EventData::Dto(done) = event.data else { panic!("{event:?}") };
                let len = SIZES[(received * 7 % 16) as usize];
                let slot = (received % slots as u64) as usize;
                assert_eq!((done.user_cookie, done.status), (slot as u64, DtoStatus::Success));
                assert_eq!(done.transferred_length, len as u64);
                passive.check(slot * SLOT, len, received);
                net.nodes[1]
                    .ep_post_recv(passive.ep, &[passive.segment(slot * SLOT, SLOT)], slot as u64, NONE)
                    .unwrap();
                received += 1;
            }
            (received == total && sent == total).then_some(())
        });
        let counters = net.world.fabric_counters();
        assert!(counters.dropped > 0 && counters.duplicated > 0 && counters.reordered > 0, "{counters:?}");
        net.assert_no_refusals();
    }
}

#[test]
fn writes_and_reads_on_a_bad_fabric() {
    for seed in 11..13 {
        let mut net = Net::with(&lossy(seed), 2);
        let [active, passive] = net.pair(&deep(8, 1));
        for (round, len) in SIZES.iter().copied().chain([1 << 20]).enumerate() {
            let message = seed * 1000 + round as u64;
            active.fill(0, len, message);
            passive.memory.fill(0, len + 64, 0xee).unwrap();
            let write = [active.segment(0, len)];
            net.nodes[0].ep_post_rdma_write(active.ep, &write, 1, &passive.remote(8, len), NONE).unwrap();
            // The read comes after the write, into other memory, in two pieces of which the second is longer than needed.
            let read =
                [active.segment(2 << 20, len / 2), active.segment((2 << 20) + len / 2, len - len / 2 + 5)];
            net.nodes[0]
                .ep_post_rdma_read(
                    active.ep,
                    &read,
                    2,
                    &passive.remote(8, len),
                    CompletionFlags::BARRIER_FENCE,
                )
                .unwrap();
            for (cookie, operation) in [(1, DtoOperation::RdmaWrite), (2, DtoOperation::RdmaRead)] {
                let done = net.dto(0, active.request);
                assert_eq!(
                    (done.user_cookie, done.status, done.operation),
                    (cookie, DtoStatus::Success, operation)
                );
                assert_eq!(done.transferred_length, len as u64);
            }
            passive.check(8, len, message);
            active.check(2 << 20, len, message);
            let mut around = [0; 8];
            passive.memory.read(0, &mut around).unwrap();
            assert_eq!(around, [0xee; 8], "before");
            passive.memory.read(8 + len, &mut around).unwrap();
            assert_eq!(around, [0xee; 8], "behind");
        }
        net.empty(1, passive.recv);
        net.assert_no_refusals();
    }
}

#[test]
fn a_run_of_suppressed_requests_needs_nobody_to_dequeue() {
    let mut net = Net::new(21, 2);
    let [active, passive] = net.pair(&deep(8, 1));
    for index in 0..3000u64 {
        active.memory.store_be64(0, index).unwrap();
        let flags = CompletionFlags::SUPPRESS;
        net.until("room", |net| {
            let iov = [active.segment(0, 8)];
            match net.nodes[0].ep_post_rdma_write(active.ep, &iov, index, &passive.remote(0, 8), flags) {
                Ok(()) => Some(()),
                Err(error) if error.is(ReturnType::InsufficientResources) => None,
                Err(error) => panic!("{error}"),
            }
        });
    }
    // One that is told implies all before it.
    active.memory.store_be64(0, 77).unwrap();
    net.until("room", |net| {
        let iov = [active.segment(0, 8)];
        net.nodes[0].ep_post_rdma_write(active.ep, &iov, 4711, &passive.remote(0, 8), NONE).ok()
    });
    let done = net.dto(0, active.request);
    assert_eq!((done.user_cookie, done.status), (4711, DtoStatus::Success));
    net.empty(0, active.request);
    assert_eq!(passive.memory.load_be64(0), Ok(77));
    assert!(net.nodes[0].ep_get_status(active.ep).unwrap().request_idle);
    net.assert_no_refusals();
}

#[test]
fn a_suppressed_request_that_fails_is_told() {
    let mut net = Net::new(22, 2);
    let [active, passive] = net.pair(&deep(8, 1));
    let wrong = RmrTriplet::new(passive.lmr.rmr_context ^ 0x100, passive.lmr.registered_address, 64);
    let flags = CompletionFlags::SUPPRESS;
    let iov = [active.segment(0, 64)];
    net.nodes[0].ep_post_rdma_write(active.ep, &iov, 1, &passive.remote(0, 64), flags).unwrap();
    net.nodes[0].ep_post_rdma_write(active.ep, &iov, 2, &wrong, flags).unwrap();
    net.nodes[0].ep_post_send(active.ep, &iov, 3, flags).unwrap();
    let failed = net.dto(0, active.request);
    assert_eq!((failed.user_cookie, failed.status), (2, DtoStatus::ErrRemoteAccess));
    let flushed = net.dto(0, active.request);
    assert_eq!((flushed.user_cookie, flushed.status), (3, DtoStatus::ErrFlushed));
    assert_eq!(net.connection(0, &active), ConnectionEvent::Broken);
    // The peer hears of it too, once.
    assert!(matches!(net.connection(1, &passive), ConnectionEvent::Broken | ConnectionEvent::Disconnected));
    net.pass(3_000_000_000);
    net.empty(0, active.connect);
    net.empty(0, active.request);
    net.empty(1, passive.connect);
}

#[test]
fn everything_outstanding_is_flushed_before_the_end_is_told() {
    // On one EVD, so that the order is contract.
    for (seed, node, flags) in
        [(31, 0, CloseFlags::Abrupt), (32, 1, CloseFlags::Abrupt), (33, 1, CloseFlags::Graceful)]
    {
        let mut net = Net::new(seed, 2);
        let options = Options { merged: true, ..deep(16, 16) };
        let sides = net.pair(&options);
        for (node, side) in sides.iter().enumerate() {
            for index in 0..10 {
                net.nodes[node].ep_post_recv(side.ep, &[side.segment(0, 64)], 100 + index, NONE).unwrap();
            }
        }
        // More sends than receives: the last ones wait at the receiver.
        for index in 0..16 {
            let flags = if index % 3 == 1 { CompletionFlags::SUPPRESS } else { NONE };
            net.nodes[0].ep_post_send(sides[0].ep, &[sides[0].segment(0, 64)], index, flags).unwrap();
        }
        net.pass(10_000_000);
        net.nodes[node].ep_disconnect(sides[node].ep, flags).unwrap();
        let mut sent = Vec::new();
        let mut received = [Vec::new(), Vec::new()];
        for (node, side) in sides.iter().enumerate() {
            loop {
                match net.event(node, side.connect) {
                    EventData::Dto(done) if done.operation == DtoOperation::Receive => {
                        received[node].push((done.user_cookie, done.status));
                    }
                    EventData::Dto(done) => sent.push((done.user_cookie, done.status)),
                    EventData::Connection { event, .. } => {
                        assert!(matches!(event, ConnectionEvent::Disconnected), "{event:?}");
                        break;
                    }
                    other => panic!("{other:?}"),
                }
            }
            net.empty(node, side.connect);
            assert_eq!(
                net.nodes[node].ep_get_status(side.ep).unwrap(),
                EpStatus { state: EpState::Disconnected, recv_idle: true, request_idle: true }
            );
        }
        let cookies = |list: &[(u64, DtoStatus)]| list.iter().map(|entry| entry.0).collect::<Vec<_>>();
        assert_eq!(cookies(&received[0]), (100..110).collect::<Vec<_>>());
        assert_eq!(cookies(&received[1]), (100..110).collect::<Vec<_>>());
        assert!(received[0].iter().all(|entry| entry.1 == DtoStatus::ErrFlushed));
        assert!(received[1].iter().all(|entry| entry.1 == DtoStatus::Success));
        // Ten sends found a receive; the others are flushed, suppressed or not.
        let expected: Vec<_> = (0..16)
            .filter_map(|index| match index {
                0..10 if index % 3 == 1 => None,
                0..10 => Some((index, DtoStatus::Success)),
                _ => Some((index, DtoStatus::ErrFlushed)),
            })
            .collect();
        assert_eq!(sent, expected);
        net.assert_no_refusals();
    }
}

#[test]
fn graceful_lets_requests_finish() {
    let mut net = Net::with(&lossy(41), 2);
    let [active, passive] = net.pair(&Options { merged: true, ..deep(32, 4) });
    active.fill(0, 1 << 16, 1);
    for index in 0..20 {
        let offset = index as usize * SLOT;
        let iov = [active.segment(0, SLOT)];
        net.nodes[0].ep_post_rdma_write(active.ep, &iov, index, &passive.remote(offset, SLOT), NONE).unwrap();
    }
    net.nodes[0].ep_disconnect(active.ep, CloseFlags::Graceful).unwrap();
    assert_eq!(net.nodes[0].ep_get_status(active.ep).unwrap().state, EpState::DisconnectPending);
    let refused = net.nodes[0].ep_post_send(active.ep, &[], 1, NONE).unwrap_err();
    assert_eq!(refused, DatReturn(0x8007_0036));
    // A second graceful one changes nothing.
    net.nodes[0].ep_disconnect(active.ep, CloseFlags::Graceful).unwrap();
    for index in 0..20 {
        let done = net.dto(0, active.request);
        assert_eq!((done.user_cookie, done.status), (index, DtoStatus::Success));
    }
    assert_eq!(net.connection(0, &active), ConnectionEvent::Disconnected);
    assert_eq!(net.connection(1, &passive), ConnectionEvent::Disconnected);
    for index in 0..20 {
        passive.check(index * SLOT, SLOT, 1);
    }
}

#[test]
fn posts_to_a_disconnected_endpoint_are_flushed_at_once() {
    let mut net = Net::new(42, 2);
    let [active, passive] = net.pair(&deep(4, 4));
    net.nodes[1].ep_disconnect(passive.ep, CloseFlags::Abrupt).unwrap();
    assert_eq!(net.connection(0, &active), ConnectionEvent::Disconnected);
    assert_eq!(net.connection(1, &passive), ConnectionEvent::Disconnected);
    let iov = [active.segment(0, 64)];
    // Markers: suppressed or not, they show.
    for round in 0..20 {
        let adapter = &mut net.nodes[0];
        adapter.ep_post_send(active.ep, &iov, round * 10, CompletionFlags::SUPPRESS).unwrap();
        adapter.ep_post_rdma_write(active.ep, &iov, round * 10 + 1, &passive.remote(0, 64), NONE).unwrap();
        adapter.ep_post_rdma_read(active.ep, &iov, round * 10 + 2, &passive.remote(0, 64), NONE).unwrap();
        adapter.ep_post_recv(active.ep, &iov, round * 10 + 3, NONE).unwrap();
        for index in 0..3 {
            let flush = net.dto(0, active.request);
            assert_eq!((flush.user_cookie, flush.status), (round * 10 + index, DtoStatus::ErrFlushed));
        }
        let flush = net.dto(0, active.recv);
        assert_eq!((flush.user_cookie, flush.status), (round * 10 + 3, DtoStatus::ErrFlushed));
    }
    net.empty(0, active.connect);
    // A reset loses nothing after a marker, and the EP connects again.
    net.nodes[0].ep_reset(active.ep).unwrap();
    net.nodes[1].ep_reset(passive.ep).unwrap();
    net.connect(&[active, passive]);
}

/// Every way in which a peer or the own side refuses a transfer, seen from the side that asked.
#[test]
fn transfer_errors_have_names() {
    #[derive(Clone, Copy)]
    enum Case {
        TooLong,
        WrongKey,
        OutsideRegion,
        NoRemoteWrite,
        NoRemoteRead,
    }
    use Case::*;
    let cases = [
        (TooLong, DtoStatus::ErrRemoteResponder, Some(DtoStatus::ErrLocalLength)),
        (WrongKey, DtoStatus::ErrRemoteAccess, None),
        (OutsideRegion, DtoStatus::ErrRemoteAccess, None),
        (NoRemoteWrite, DtoStatus::ErrRemoteAccess, None),
        (NoRemoteRead, DtoStatus::ErrRemoteAccess, None),
    ];
    for (case, status, at_peer) in cases {
        let mut net = Net::new(51, 2);
        let [active, passive] = net.pair(&deep(8, 8));
        let iov = [active.segment(0, 4096)];
        let adapter = &mut net.nodes[1];
        let private = adapter.dma_alloc(8192, 4096).unwrap();
        let lmr = adapter
            .lmr_create(passive.ia, &private, passive.pz, MemPriv::READ | MemPriv::LOCAL_WRITE)
            .unwrap();
        let locked = adapter.lmr_create(passive.ia, &private, passive.pz, MemPriv::WRITE).unwrap();
        let at = private.va() as u64;
        adapter.ep_post_recv(passive.ep, &[passive.segment(0, 4095)], 9, NONE).unwrap();
        let adapter = &mut net.nodes[0];
        match case {
            TooLong => adapter.ep_post_send(active.ep, &iov, 1, NONE),
            WrongKey => {
                let remote = RmrTriplet::new(0xdead_be00, at, 4096);
                adapter.ep_post_rdma_write(active.ep, &iov, 1, &remote, NONE)
            }
            OutsideRegion => {
                let remote = RmrTriplet::new(lmr.rmr_context, at + 4097, 4096);
                adapter.ep_post_rdma_read(active.ep, &iov, 1, &remote, NONE)
            }
            NoRemoteWrite => adapter.ep_post_rdma_write(
                active.ep,
                &iov,
                1,
                &RmrTriplet::new(lmr.rmr_context, at, 4096),
                NONE,
            ),
            NoRemoteRead => adapter.ep_post_rdma_read(
                active.ep,
                &iov,
                1,
                &RmrTriplet::new(locked.rmr_context, at, 4096),
                NONE,
            ),
        }
        .unwrap();
        let failed = net.dto(0, active.request);
        assert_eq!((failed.user_cookie, failed.status), (1, status));
        assert_eq!(net.nodes[0].ep_get_status(active.ep).unwrap().state, EpState::Disconnected);
        assert_eq!(net.connection(0, &active), ConnectionEvent::Broken);
        let at_receive = net.dto(1, passive.recv);
        assert_eq!(
            (at_receive.user_cookie, at_receive.status),
            (9, at_peer.unwrap_or(DtoStatus::ErrFlushed))
        );
        let event = net.connection(1, &passive);
        assert!(matches!(event, ConnectionEvent::Broken | ConnectionEvent::Disconnected), "{event:?}");
    }
}

#[test]
fn a_peer_without_receives_and_a_peer_without_power() {
    let mut net = Net::new(52, 2);
    let mut options = deep(8, 8);
    options.attributes.rnr_retry = 2;
    options.attributes.rnr_timer = 10;
    let [active, _] = net.pair(&options);
    net.nodes[0].ep_post_send(active.ep, &[active.segment(0, 64)], 1, NONE).unwrap();
    let failed = net.dto(0, active.request);
    assert_eq!((failed.user_cookie, failed.status), (1, DtoStatus::ErrReceiverNotReady));
    assert_eq!(net.connection(0, &active), ConnectionEvent::Broken);

    let mut net = Net::new(53, 2);
    options.attributes.retry_count = 1;
    let [active, _] = net.pair(&options);
    net.world.kill(1);
    net.nodes[0].ep_post_send(active.ep, &[active.segment(0, 64)], 1, NONE).unwrap();
    let failed = net.dto(0, active.request);
    assert_eq!((failed.user_cookie, failed.status), (1, DtoStatus::ErrTransport));
    assert_eq!(net.connection(0, &active), ConnectionEvent::Broken);
    net.pass(20_000_000_000);
    net.empty(0, active.connect);
}

#[test]
fn zero_based_regions_and_immediate_data() {
    let mut net = Net::new(54, 2);
    let [active, passive] = net.pair(&deep(8, 8));
    let buffer = net.nodes[1].dma_alloc(8192, 4096).unwrap();
    let memory = Box::leak(Box::new(buffer)).as_slice();
    let zero = net.nodes[1].lmr_create_zero_based(passive.ia, memory, passive.pz, MemPriv::ALL).unwrap();
    assert_eq!((zero.registered_address, zero.registered_size), (0, 8192));
    active.fill(0, 1000, 3);
    let remote = RmrTriplet::new(zero.rmr_context, 5000, 1000);
    let recv = [LmrTriplet::new(zero.lmr_context, 0, 16)];
    net.nodes[1].ep_post_recv(passive.ep, &recv, 8, NONE).unwrap();
    let iov = [active.segment(0, 1000)];
    let flags = CompletionFlags::SOLICITED_WAIT;
    net.nodes[0].ep_post_rdma_write_immediate(active.ep, &iov, 1, &remote, 0x1234_5678, flags).unwrap();
    assert_eq!(net.dto(0, active.request).status, DtoStatus::Success);
    let got = net.dto(1, passive.recv);
    assert_eq!(
        (got.user_cookie, got.received, got.transferred_length),
        (8, Received::Immediate(0x1234_5678), 1000)
    );
    let moved = Side { memory, lmr: zero, ..passive };
    moved.check(5000, 1000, 3);
    net.nodes[1].ep_post_recv(passive.ep, &recv, 9, NONE).unwrap();
    net.nodes[0].ep_post_send_immediate(active.ep, &[active.segment(0, 16)], 2, 0xabcd_ef01, NONE).unwrap();
    let got = net.dto(1, passive.recv);
    assert_eq!(
        (got.user_cookie, got.received, got.transferred_length),
        (9, Received::Immediate(0xabcd_ef01), 16)
    );
    moved.check(0, 16, 3);
    let off_page =
        net.nodes[1].lmr_create_zero_based(passive.ia, memory.slice(8, 8).unwrap(), passive.pz, MemPriv::ALL);
    // Counted from the offset in the page.
    assert_eq!(off_page.map(|lmr| (lmr.registered_address, lmr.registered_size)), Ok((8, 8)));
    net.assert_no_refusals();
}

#[test]
fn a_dead_adapter_flushes_everything_in_bounded_time() {
    for merged in [true, false] {
        let mut net = Net::new(61, 2);
        let [active, _] = net.pair(&Options { merged, ..deep(8, 8) });
        for index in 0..5 {
            net.nodes[0].ep_post_recv(active.ep, &[active.segment(0, 64)], 100 + index, NONE).unwrap();
        }
        net.nodes[0].ep_post_send(active.ep, &[active.segment(0, 64)], 1, CompletionFlags::SUPPRESS).unwrap();
        net.nodes[0].ep_post_send(active.ep, &[active.segment(0, 64)], 2, NONE).unwrap();
        net.world.unplug(0);
        let began = net.world.now();
        let event = net.event(0, active.asynchronous);
        match event {
            EventData::Async { error: AsyncError::IaCatastrophic, handle, .. } => {
                assert_eq!(handle, active.ia.handle());
            }
            other => panic!("{other:?}"),
        }
        assert!(net.world.now() - began < 10_000_000_000);
        let mut requests = Vec::new();
        let mut receives = Vec::new();
        for evd in [active.recv, active.request] {
            while let Ok(event) = net.nodes[0].evd_dequeue(evd) {
                match event.data {
                    EventData::Dto(done) => {
                        assert_eq!(done.status, DtoStatus::ErrFlushed);
                        let list = if done.operation == DtoOperation::Receive {
                            &mut receives
                        } else {
                            &mut requests
                        };
                        list.push(done.user_cookie);
                    }
                    EventData::Connection { event, .. } => {
                        assert_eq!(event, ConnectionEvent::Broken);
                        assert_eq!((requests.len(), receives.len()), (2, 5), "flushes first");
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!((requests, receives), (vec![1, 2], vec![100, 101, 102, 103, 104]));
        if !merged {
            assert_eq!(net.connection(0, &active), ConnectionEvent::Broken);
        }
        // Posts go on to be flushed; nothing new is made; everything can be freed.
        net.nodes[0].ep_post_send(active.ep, &[active.segment(0, 64)], 3, NONE).unwrap();
        assert_eq!(net.dto(0, active.request).status, DtoStatus::ErrFlushed);
        assert!(net.nodes[0].pz_create(active.ia).unwrap_err().is(ReturnType::InternalError));
        net.nodes[0].ia_close(active.ia, CloseFlags::Abrupt).unwrap();
    }
}

#[test]
fn broken_comes_behind_the_last_flush_though_all_were_there_before() {
    let mut net = Net::new(71, 2);
    let [active, passive] = net.pair(&Options { merged: true, ..deep(8, 8) });
    let wrong = RmrTriplet::new(passive.lmr.rmr_context ^ 0x100, passive.lmr.registered_address, 64);
    let iov = [active.segment(0, 64)];
    let adapter = &mut net.nodes[0];
    adapter.ep_post_rdma_write(active.ep, &iov, 0, &wrong, NONE).unwrap();
    for index in 1..6 {
        adapter.ep_post_rdma_write(active.ep, &iov, index, &passive.remote(0, 64), NONE).unwrap();
        adapter.ep_post_recv(active.ep, &iov, 100 + index, NONE).unwrap();
    }
    // Nobody looks while the device fails and flushes.
    net.world.pass(10_000_000);
    let failed = net.dto(0, active.request);
    assert_eq!((failed.user_cookie, failed.status), (0, DtoStatus::ErrRemoteAccess));
    let mut flushed = Vec::new();
    for _ in 0..10 {
        let flush = net.dto(0, active.request);
        assert_eq!(flush.status, DtoStatus::ErrFlushed);
        flushed.push(flush.user_cookie);
    }
    flushed.sort_unstable();
    assert_eq!(flushed, [1, 2, 3, 4, 5, 101, 102, 103, 104, 105]);
    assert_eq!(net.connection(0, &active), ConnectionEvent::Broken);
    net.empty(0, active.connect);
}

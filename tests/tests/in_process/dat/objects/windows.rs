//! Windows: what a peer reaches through them, and what it is refused.

use crate::dat::objects::NONE;
use dat_nostd::*;
use harness::net::{Net, Options, Side, payload};
use mlx5_prm::opcode::Opcode;

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
            let expected: Vec<u8> = (0..len).map(|byte| payload(seed).byte(FROM + offset + byte)).collect();
            assert_eq!(bytes, expected, "{what}");
        } else {
            passive.memory.read(FROM + offset, &mut bytes).unwrap();
            let expected: Vec<u8> = (0..len).map(|byte| payload(seed + 100).byte(byte)).collect();
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

/// What a window is bound to is known however many binds are on their way, whatever becomes of them, and whether anybody hears of it.
#[test]
fn a_window_knows_what_it_is_bound_to() {
    let mut net = Net::new(32, 2);
    let [active, passive] = pair_with_binds(&mut net);
    let node = &mut net.nodes[1];
    let rmr = node.rmr_create(passive.pz).unwrap();
    let regions: Vec<LmrCreated> = (0..5)
        .map(|_| node.lmr_create(passive.ia, passive.memory, passive.pz, MemPriv::ALL).unwrap())
        .collect();
    let segment = |of: usize| LmrTriplet::new(regions[of].lmr_context, regions[of].registered_address, 64);
    let post = |net: &mut Net, of: usize| {
        let rights = MemPriv::REMOTE_WRITE;
        net.nodes[1].rmr_bind(rmr, &segment(of), rights, passive.ep, of as u64, NONE).unwrap()
    };
    let bound = |net: &Net| {
        let binding = net.nodes[1].rmr_query(rmr).unwrap().binding.expect("bound");
        (binding.lmr_triplet, binding.rmr_context)
    };
    let in_use = |net: &mut Net, of: usize| {
        let error = DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStateLmrInUse);
        assert_eq!(net.nodes[1].lmr_free(regions[of].lmr), Err(error), "region {of}");
    };
    // Three at once: the last counts, and each may still be what it is.
    let contexts: Vec<u32> = (0..3).map(|of| post(&mut net, of)).collect();
    assert_eq!(bound(&net), (segment(2), contexts[2]));
    (0..3).for_each(|of| in_use(&mut net, of));
    for cookie in 0..3 {
        let EventData::RmrBind(done) = net.event(1, passive.request) else { panic!("no bind") };
        assert_eq!((done.user_cookie, done.status), (cookie, DtoStatus::Success));
    }
    assert_eq!(bound(&net), (segment(2), contexts[2]));
    net.nodes[1].lmr_free(regions[0].lmr).unwrap();
    net.nodes[1].lmr_free(regions[1].lmr).unwrap();
    in_use(&mut net, 2);
    // One whose completion nobody takes before the EP is reset.
    let context = post(&mut net, 3);
    net.pass(1_000_000);
    net.nodes[1].ep_disconnect(passive.ep, CloseFlags::Abrupt).unwrap();
    assert_eq!(net.connection(1, &passive), ConnectionEvent::Disconnected);
    assert_eq!(net.connection(0, &active), ConnectionEvent::Disconnected);
    // And one that is only flushed: nothing has changed, whatever context it was given.
    post(&mut net, 4);
    assert_eq!(bound(&net), (segment(3), context));
    net.nodes[1].ep_reset(passive.ep).unwrap();
    assert_eq!(bound(&net), (segment(3), context));
    net.empty(1, passive.request);
    net.nodes[1].lmr_free(regions[2].lmr).unwrap();
    net.nodes[1].lmr_free(regions[4].lmr).unwrap();
    in_use(&mut net, 3);
    // The peer reaches it by its context, over the EP's next connection.
    net.nodes[0].ep_reset(active.ep).unwrap();
    net.connect(&[active, passive]);
    let remote = RmrTriplet::new(context, regions[3].registered_address, 64);
    assert_eq!(access(&mut net, &active, false, remote), DtoStatus::Success);
    net.nodes[1].rmr_free(rmr).unwrap();
    net.nodes[1].lmr_free(regions[3].lmr).unwrap();
    net.assert_no_refusals();
}

/// Where the device carried out a bind whose completion was flushed, only the device knows: the region stays until the window is freed.
#[test]
fn a_flushed_bind_may_have_been_carried_out() {
    let mut net = Net::new(34, 2);
    let [_, passive] = pair_with_binds(&mut net);
    let node = &mut net.nodes[1];
    let rmr = node.rmr_create(passive.pz).unwrap();
    let mut own = node.dma_alloc(4096, 4096).unwrap();
    let region = node.lmr_create(passive.ia, &own, passive.pz, MemPriv::ALL).unwrap();
    net.world.set_cable(0, false);
    let node = &mut net.nodes[1];
    // Nobody acknowledges what is before it.
    node.ep_post_send(passive.ep, &[passive.segment(0, 8)], 1, NONE).unwrap();
    let segment = LmrTriplet::new(region.lmr_context, region.registered_address, 4096);
    node.rmr_bind(rmr, &segment, MemPriv::REMOTE_WRITE, passive.ep, 2, NONE).unwrap();
    net.pass(100_000);
    net.nodes[1].ep_disconnect(passive.ep, CloseFlags::Abrupt).unwrap();
    assert_eq!(net.dto(1, passive.request).status, DtoStatus::ErrFlushed);
    let EventData::RmrBind(flushed) = net.event(1, passive.request) else { panic!("no bind") };
    assert_eq!((flushed.user_cookie, flushed.status), (2, DtoStatus::ErrFlushed));
    let node = &mut net.nodes[1];
    assert_eq!(node.rmr_query(rmr).unwrap().binding, None);
    let in_use = DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStateLmrInUse);
    for _ in 0..2 {
        assert_eq!(node.lmr_free(region.lmr), Err(in_use));
        own = node.dma_free(own).expect_err("registered").buffer;
    }
    node.rmr_free(rmr).unwrap();
    node.lmr_free(region.lmr).unwrap();
    node.dma_free(own).unwrap();
}

/// What the device refuses to free is there, and bound, until it does not refuse any more.
#[test]
fn a_window_that_is_not_freed_stays() {
    let mut net = Net::new(24, 2);
    let [active, passive] = pair_with_binds(&mut net);
    let rmr = net.nodes[1].rmr_create(passive.pz).unwrap();
    let rights = MemPriv::REMOTE_READ | MemPriv::REMOTE_WRITE;
    let context = bind(&mut net, &passive, rmr, passive.segment(0, 4096), rights);
    let refuse = |net: &Net, refused: &[Opcode]| {
        net.world.with_hca(1, |hca| hca.habits_mut().refused_commands = refused.to_vec());
    };
    refuse(&net, &[Opcode::DESTROY_MKEY]);
    for _ in 0..2 {
        let refused = net.nodes[1].rmr_free(rmr).expect_err("firmware refuses");
        assert!(refused.is(ReturnType::InternalError), "{refused}");
        assert_eq!(net.nodes[1].rmr_query(rmr).unwrap().binding.unwrap().rmr_context, context);
    }
    let remote = RmrTriplet::new(context, passive.lmr.registered_address, 64);
    assert_eq!(access(&mut net, &active, false, remote), DtoStatus::Success);
    refuse(&net, &[]);
    net.nodes[1].rmr_free(rmr).unwrap();
    assert!(net.nodes[1].rmr_free(rmr).expect_err("gone").is(ReturnType::InvalidHandle));
    assert_eq!(access(&mut net, &active, false, remote), DtoStatus::ErrRemoteAccess);
}

/// Extension: a peer that has used a window ends its context by its answer.
#[test]
fn a_peer_ends_a_window_by_a_send() {
    let mut net = Net::new(33, 2);
    let [active, passive] = pair_with_binds(&mut net);
    let rmr = net.nodes[1].rmr_create_invalidatable(passive.pz).unwrap();
    let rights = MemPriv::REMOTE_WRITE;
    let mut contexts = Vec::new();
    for round in 0..4 {
        let segment = passive.segment(4096 * round, 4096);
        let context = net.nodes[1].rmr_bind(rmr, &segment, rights, passive.ep, 77, NONE).unwrap();
        // What is bound cannot be bound to other bytes, whether word of the bind has been taken or not.
        let other = passive.segment(60_000, 64);
        let again = net.nodes[1].rmr_bind(rmr, &other, rights, passive.ep, 78, NONE);
        assert_eq!(again, Err(DatReturn::new(ReturnType::InvalidState)));
        if round % 2 == 0 {
            assert!(matches!(net.event(1, passive.request), EventData::RmrBind(_)));
        } else {
            net.pass(1_000_000);
        }
        assert!(!contexts.contains(&context));
        contexts.push(context);
        let remote = RmrTriplet::new(context, segment.virtual_address, 4096);
        active.fill(0, 4096, round as u64);
        assert_eq!(access(&mut net, &active, false, remote), DtoStatus::Success);
        net.nodes[1].ep_post_recv(passive.ep, &[passive.segment(100_000, 8)], 9, NONE).unwrap();
        let iov = [active.segment(0, 8)];
        net.nodes[0].ep_post_send_invalidate(active.ep, &iov, 1, context, NONE).unwrap();
        assert_eq!(net.dto(0, active.request).status, DtoStatus::Success);
        assert_eq!(net.dto(1, passive.recv).received, Received::Invalidated(context));
        assert_eq!(net.nodes[1].rmr_query(rmr).unwrap().binding, None);
        passive.check(4096 * round, 4096, round as u64);
        if round % 2 == 1 {
            assert!(matches!(net.event(1, passive.request), EventData::RmrBind(_)));
            assert_eq!(net.nodes[1].rmr_query(rmr).unwrap().binding, None, "word of the bind comes late");
        }
    }
    net.assert_no_refusals();
    // Its time is over.
    let late = RmrTriplet::new(contexts[3], passive.segment(3 * 4096, 0).virtual_address, 64);
    assert_eq!(access(&mut net, &active, false, late), DtoStatus::ErrRemoteAccess);
    // The region is free though the window lives.
    net.nodes[1].lmr_free(passive.lmr.lmr).unwrap();
}

//! Atomics, multicast, and looking at completions before they are retired.

use crate::common;

use common::World;
use common::node::{ALL, Node, connected, filled, id, path, sound, world};
use driver_mlx::{
    Access, AddressVector, Base, CompletionKind, Error, Gid, Grh, InitParams, Lid, Path, PostError, Psn,
    QKey, QpConfig, QpNumber, RKey, SendFlags, SendOp, Service, ServiceLevel,
};
use mlx5_prm::status::CqeSyndrome;
use rdma_fabric::faults::Faults;
use rdma_fabric::infiniband::FabricConfig;
use std::rc::Rc;

/// A number in the processor's byte order.
fn number(node: &Node, offset: usize) -> u64 {
    u64::from_ne_bytes(node.get(offset, 8).try_into().expect("8 bytes"))
}

/// One atomic operation from `a` on `b`'s number at `offset`: what it found.
fn atomic(world: &Rc<World>, a: &mut Node, op: SendOp) -> u64 {
    a.put(64, &[0xee; 24]);
    let doorbell = a.qp.post_send(op, &[a.sge(72, 8)], 5, SendFlags::SIGNALED).expect("room");
    a.qp.ring(doorbell);
    let (completion, cookie) = a.expect(world, CompletionKind::Send);
    assert_eq!((cookie, completion.byte_len()), (5, 8));
    assert_eq!((a.get(64, 8), a.get(80, 8)), (vec![0xee; 8], vec![0xee; 8]), "only the piece was written");
    number(a, 72)
}

#[test]
fn atomics_return_what_was_there_and_change_it() {
    let world = world(FabricConfig::default());
    let (mut a, b) = connected(&world, |_| ());
    let start = 0x0102_0304_0506_0708u64;
    b.put(800, &start.to_ne_bytes());
    b.put(792, &[0x11; 8]);
    b.put(808, &[0x22; 8]);
    let (raddr, rkey) = b.remote(800);
    let cas = |compare, swap| SendOp::CompareSwap { raddr, rkey, compare, swap };
    let add = |add| SendOp::FetchAdd { raddr, rkey, add };
    assert_eq!(atomic(&world, &mut a, cas(start, u64::MAX - 4)), start);
    assert_eq!(number(&b, 800), u64::MAX - 4);
    assert_eq!(atomic(&world, &mut a, cas(start, 1)), u64::MAX - 4, "not as expected");
    assert_eq!(number(&b, 800), u64::MAX - 4, "so nothing changed");
    assert_eq!(atomic(&world, &mut a, add(10)), u64::MAX - 4);
    assert_eq!(number(&b, 800), 5, "the sum wraps");
    for step in 0..50u64 {
        assert_eq!(
            atomic(&world, &mut a, add(step << 32 | step)),
            5 + (0..step).map(|s| s << 32 | s).sum::<u64>()
        );
    }
    assert_eq!((b.get(792, 8), b.get(808, 8)), (vec![0x11; 8], vec![0x22; 8]));
    sound(&world);
    a.end();
    b.end();
}

#[test]
fn atomics_survive_loss_exactly_once() {
    let faults: Faults = "loss=5%,dup=3%,reorder=3%".parse().expect("faults");
    let world = world(FabricConfig { seed: 11, faults, latency: 1000, ..FabricConfig::default() });
    let (mut a, b) = connected(&world, |_| ());
    b.put(0, &[0; 8]);
    let (raddr, rkey) = b.remote(0);
    let mut sum = 0u64;
    for step in 1..=200u64 {
        assert_eq!(atomic(&world, &mut a, SendOp::FetchAdd { raddr, rkey, add: step }), sum);
        sum += step;
    }
    assert_eq!(number(&b, 0), sum);
    assert!(world.fabric(|f| f.counters().dropped) > 0);
}

#[test]
fn wrong_atomics_are_refused() {
    let world = world(FabricConfig::default());
    let (mut a, b) = connected(&world, |_| ());
    let (raddr, rkey) = b.remote(0);
    let add = SendOp::FetchAdd { raddr, rkey, add: 1 };
    let post = |a: &mut Node, lengths: &[usize]| {
        let pieces: Vec<_> = lengths.iter().map(|&len| a.sge(0, len)).collect();
        a.qp.post_send(add, &pieces, 1, SendFlags::SIGNALED)
    };
    assert_eq!(post(&mut a, &[4]), Err(PostError::TooLong));
    assert_eq!(post(&mut a, &[]), Err(PostError::TooManySges));
    assert_eq!(post(&mut a, &[8, 8]), Err(PostError::TooManySges));
    assert_eq!(a.qp.post_inline(add, &[0; 8], 1, SendFlags::SIGNALED), Err(PostError::WrongService));
    assert_eq!(a.qp.send_outstanding(), 0);
    // Not at a multiple of 8: the peer says so.
    let crooked = SendOp::FetchAdd { raddr: raddr + 4, rkey, add: 1 };
    let doorbell = a.qp.post_send(crooked, &[a.sge(0, 8)], 1, SendFlags::SIGNALED).expect("room");
    a.qp.ring(doorbell);
    let (failed, _) = a.expect(&world, CompletionKind::SendError);
    assert_eq!(failed.error().map(|e| e.syndrome), Some(CqeSyndrome::REMOTE_INVAL_REQ_ERR));
}

#[test]
fn atomics_need_the_right_on_both_the_key_and_the_queue_pair() {
    for (on_qp, on_key) in [(true, false), (false, true), (true, true)] {
        let world = world(FabricConfig::default());
        let (mut a, mut b) = connected(&world, |_| ());
        // `connected` gave every right; the responder starts anew with fewer.
        let right = |granted| if granted { ALL } else { ALL - Access::REMOTE_ATOMIC };
        b.hca.modify_to_reset(&mut b.qp).expect("RESET");
        common::node::connect_with(&mut b, &mut a, 1, right(on_qp));
        let window = b.memory.slice(4096, 4096).expect("inside");
        let key = b.hca.register(b.pd, window, right(on_key), Base::Zero).expect("a key");
        let add = SendOp::FetchAdd { raddr: 8, rkey: key.rkey(), add: 3 };
        let doorbell = a.qp.post_send(add, &[a.sge(0, 8)], 1, SendFlags::SIGNALED).expect("room");
        a.qp.ring(doorbell);
        let completion = a.completion(&world);
        let denied = (!on_qp || !on_key).then_some(CqeSyndrome::REMOTE_ACCESS_ERR);
        assert_eq!(completion.error().map(|e| e.syndrome), denied, "QP {on_qp}, key {on_key}");
        assert_eq!(number(&b, 4096 + 8), if denied.is_some() { 0 } else { 3 });
    }
}

#[test]
fn multicast_reaches_the_attached() {
    let world = world(FabricConfig::default());
    let q_key = QKey::new(0x0b1b);
    let change = |config: &mut QpConfig| config.service = Service::Ud { q_key };
    let (mut a, mut b) = (Node::new(&world, 0, change), Node::new(&world, 1, change));
    for node in [&mut a, &mut b] {
        let init = InitParams { port: 1, pkey_index: 0, access: Access::empty() };
        node.hca.modify_to_init(&mut node.qp, &init).expect("INIT");
        node.hca.modify_to_rts_datagram(&mut node.qp, Psn::new(5)).expect("RTS");
    }
    // The broadcast group of IPoIB, which the subnet has from the start (RFC 4391).
    let group = Gid([0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    let unicast = b.hca.gid(0).expect("a GID");
    assert_eq!(b.hca.attach_multicast(&b.qp, unicast), Err(Error::InvalidArgument("group")));
    assert!(matches!(b.hca.detach_multicast(&b.qp, group), Err(Error::Command(_))), "not attached yet");
    b.hca.attach_multicast(&b.qp, group).expect("attached");
    assert!(matches!(b.hca.attach_multicast(&b.qp, group), Err(Error::Command(_))), "attached already");
    b.hca.detach_multicast(&b.qp, group).expect("detached");
    b.hca.attach_multicast(&b.qp, group).expect("attached again");
    // To this node itself: the device gives its own multicasts to those attached here.
    let (_, lid) = (path(&mut b.hca), Lid::new(0xc000));
    let grh = Grh { dgid: group, source_gid_index: 0, flow_label: 0, hop_limit: 0, traffic_class: 0 };
    let to = Path::InfiniBand {
        dlid: lid,
        sl: ServiceLevel::default(),
        src_path_bits: 0,
        static_rate: 0,
        grh: Some(grh),
    };
    let vector = AddressVector::new(&to, QpNumber::new(0xff_ffff), q_key, b.hca.caps().stat_rate_support);
    b.qp.post_recv(&[b.sge(0, 4096)], 9).expect("room");
    b.put(10_000, &filled(2, 1, 500));
    let config = QpConfig { user_index: 1, ..QpConfig::ud(b.pd, b.cq.number(), q_key) };
    let mut sender = b.hca.create_qp(&config).expect("a QP");
    b.hca
        .modify_to_init(&mut sender, &InitParams { port: 1, pkey_index: 0, access: Access::empty() })
        .expect("INIT");
    b.hca.modify_to_rts_datagram(&mut sender, Psn::new(5)).expect("RTS");
    let doorbell =
        sender.post_ud(&vector, SendOp::Send, &[b.sge(10_000, 500)], 4, SendFlags::SIGNALED).expect("room");
    sender.ring(doorbell);
    let mut received = 0;
    for _ in 0..2 {
        let completion = b.completion(&world);
        if completion.is_send() {
            assert_eq!(id(sender.retire(&completion)), Some(4));
        } else {
            assert_eq!(id(b.qp.retire(&completion)), Some(9));
            assert!(completion.datagram().grh && completion.datagram().src_qpn == sender.number());
            assert!(b.get(40, 500) == filled(2, 1, 500));
            received += 1;
        }
    }
    assert_eq!(received, 1);
    b.hca.detach_multicast(&b.qp, group).expect("detached");
    b.hca.destroy_qp(sender).expect("destroyed");
    assert_eq!(world.complaints(0), [""; 0]);
    assert_eq!(world.complaints(1).len(), 2, "the two refusals");
    a.end();
    b.end();
}

#[test]
fn cookies_can_be_looked_at_before_they_are_retired() {
    let world = world(FabricConfig::default());
    let (mut a, mut b) = connected(&world, |_| ());
    for message in 0..3u64 {
        b.qp.post_recv(&[b.sge(message as usize * 64, 64)], 70 + message).expect("room");
        let doorbell =
            a.qp.post_send(SendOp::Send, &[a.sge(0, 10)], 80 + message, SendFlags::SIGNALED).expect("room");
        a.qp.ring(doorbell);
    }
    world.pass(1_000_000);
    for _ in 0..2 {
        for ahead in 0..3 {
            let completion = b.cq.peek(ahead).expect("sound").expect("there");
            assert_eq!(b.qp.peek(&completion).map(|wr_id| wr_id.id), Some(70 + u64::from(ahead)));
            let completion = a.cq.peek(ahead).expect("sound").expect("there");
            assert_eq!(a.qp.peek(&completion).map(|wr_id| wr_id.id), Some(80 + u64::from(ahead)));
            assert_eq!(b.qp.peek(&completion).map(|wr_id| wr_id.id), None, "another queue pair's");
        }
    }
    for message in 0..3 {
        assert_eq!(b.expect(&world, CompletionKind::Receive).1, 70 + message);
        assert_eq!(a.expect(&world, CompletionKind::Send).1, 80 + message);
    }
    let wrong = RKey::new(0);
    assert!(b.qp.post_local_invalidate(wrong, 0, SendFlags::SIGNALED) == Err(PostError::WrongService));
}

#[test]
fn small_messages_arrive_in_the_completion_itself() {
    let world = world(FabricConfig::default());
    let (mut a, mut b) = connected(&world, |config| config.inline_receive = true);
    b.put(0, &[0x77; 4096]);
    for (message, len) in [0, 1, 15, 16, 17, 31, 32, 33, 100, 4000].into_iter().enumerate() {
        let message = message as u32;
        a.put(0, &filled(1, message, len));
        b.put(0, &[0x77; 4096]);
        b.qp.post_recv(&[b.sge(0, 4096)], 50).expect("room");
        let doorbell =
            a.qp.post_send(SendOp::SendImm(message), &[a.sge(0, len)], 7, SendFlags::SIGNALED).expect("room");
        a.qp.ring(doorbell);
        assert_eq!(a.expect(&world, CompletionKind::Send).1, 7);
        let (received, cookie) = b.expect(&world, CompletionKind::ReceiveImm);
        assert_eq!((cookie, received.byte_len() as usize, received.imm()), (50, len, message));
        assert_eq!((received.user_index(), received.qpn()), (0x101, b.qp.number()));
        let data = filled(1, message, len);
        match received.inline_data() {
            Some((bytes, count)) => {
                assert!(count == len && bytes[..count] == data, "message of {len} bytes");
                assert!(b.get(0, 4096).iter().all(|&byte| byte == 0x77), "the memory was not used");
            }
            None => assert!(b.get(0, len) == data, "message of {len} bytes"),
        }
        assert_eq!(received.inline_data().is_some(), (1..=32).contains(&len), "{len} bytes");
    }
    sound(&world);
}

#[test]
fn inline_data_that_nobody_asked_for_is_no_receive() {
    let world = world(FabricConfig::default());
    let (mut a, mut b) = connected(&world, |_| ());
    b.qp.post_recv(&[b.sge(0, 64)], 50).expect("room");
    let doorbell = a.qp.post_send(SendOp::Send, &[a.sge(0, 8)], 7, SendFlags::SIGNALED).expect("room");
    a.qp.ring(doorbell);
    a.expect(&world, CompletionKind::Send);
    world.pass(1_000_000);
    // The device's entry, changed where it lies to say that the data are in it.
    let memory = world.memory(1);
    let position = (0..memory.len() / 64).find(|at| {
        let tail = memory.load_be64(at * 64 + 0x38).expect("inside");
        (tail >> 32) as u32 & 0xff_ffff == b.qp.number().get() && tail & 0xff == 0x20
    });
    let at = position.expect("the completion") * 64 + 0x38;
    memory.store_be64(at, memory.load_be64(at).expect("inside") | 1 << 2).expect("inside");
    let completion = b.completion(&world);
    assert!(completion.is_inline());
    assert_eq!((id(b.qp.retire(&completion)), b.qp.spurious_completions()), (None, 1));
}

#[test]
fn counters_say_what_happened() {
    let world = world(FabricConfig::default());
    let mut sets = vec![];
    let mut nodes = [0, 1].map(|index| {
        let mut node = Node::new(&world, index, |_| ());
        let set = node.hca.alloc_q_counters().expect("counters");
        let config =
            QpConfig { counters: Some(set), user_index: 0x100, ..QpConfig::rc(node.pd, node.cq.number()) };
        let counted = node.hca.create_qp(&config).expect("a QP");
        let plain = std::mem::replace(&mut node.qp, counted);
        node.hca.destroy_qp(plain).expect("destroyed");
        sets.push(set);
        node
    });
    let [a, b] = &mut nodes;
    common::node::connect_one(a, b, 0);
    common::node::connect_one(b, a, 1);
    let before = b.hca.port_counters().expect("counters");
    let (raddr, rkey) = b.remote(4096);
    for step in 0..6u64 {
        let op = match step {
            0..3 => SendOp::Write { raddr, rkey },
            3..5 => SendOp::Read { raddr, rkey },
            _ => SendOp::FetchAdd { raddr, rkey, add: 1 },
        };
        let doorbell = a.qp.post_send(op, &[a.sge(0, 8)], step, SendFlags::SIGNALED).expect("room");
        a.qp.ring(doorbell);
        assert_eq!(a.expect(&world, CompletionKind::Send).1, step);
    }
    let counted = b.hca.query_q_counters(sets[1], true).expect("counters");
    assert_eq!((counted.rx_write_requests, counted.rx_read_requests, counted.rx_atomic_requests), (3, 2, 1));
    assert_eq!(counted.responder_access_errors, 0);
    let after = b.hca.port_counters().expect("counters");
    assert!(
        after.received.packets >= before.received.packets + 6 && after.received.bytes > before.received.bytes
    );
    assert!(after.transmitted.packets > before.transmitted.packets);
    let wrong = SendOp::Write { raddr, rkey: RKey::new(rkey.get() ^ 1) };
    let doorbell = a.qp.post_send(wrong, &[a.sge(0, 8)], 7, SendFlags::SIGNALED).expect("room");
    a.qp.ring(doorbell);
    a.expect(&world, CompletionKind::SendError);
    let counted = b.hca.query_q_counters(sets[1], false).expect("counters");
    assert_eq!((counted.rx_write_requests, counted.responder_access_errors), (0, 1), "cleared when read");
    assert_eq!(a.hca.query_q_counters(sets[0], false).expect("counters").remote_access_errors, 1);
    for (mut node, set) in nodes.into_iter().zip(sets) {
        node.hca.destroy_qp(node.qp).expect("destroyed");
        node.hca.dealloc_q_counters(set).expect("ended");
        assert!(matches!(node.hca.dealloc_q_counters(set), Err(Error::Command(_))), "none such");
    }
}

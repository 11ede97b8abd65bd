//! RC, UD and QP1 between two emulated HCAs: every operation, every byte checked, every error named.

use crate::common;

use common::node::{ALL, Node, connect_one, connected, filled, id, path, sound, world};
use driver_mlx::{
    Access, AddressVector, Base, CompletionKind, CqConfig, Error, Instant, Mtu, PostError, Psn, QKey,
    QpConfig, QpNumber, QpState, RKey, RtrParams, SendFlags, SendOp, Service, Sge,
};
use mlx5_prm::status::CqeSyndrome;
use rdma_fabric::faults::Faults;
use rdma_fabric::infiniband::FabricConfig;

#[test]
fn sends_of_every_size_arrive_whole() {
    let world = world(FabricConfig::default());
    let (mut a, mut b) = connected(&world, |_| ());
    for (message, len) in [0, 1, 255, 256, 4095, 4096, 4097, 65_536, 300_000].into_iter().enumerate() {
        let message = message as u32;
        a.put(0, &filled(1, message, len));
        b.qp.post_recv(&[b.sge(0, 1000.min(len)), b.sge(400_000, len.saturating_sub(1000))], 50)
            .expect("room");
        let pieces = [a.sge(0, len / 3), a.sge(len / 3, len - len / 3)];
        let op = SendOp::SendImm(0xabc0_0000 | message);
        let doorbell = a.qp.post_send(op, &pieces, u64::from(message), SendFlags::SIGNALED).expect("room");
        a.qp.ring(doorbell);
        let (done, cookie) = a.expect(&world, CompletionKind::Send);
        assert_eq!((cookie, done.user_index(), done.qpn()), (u64::from(message), 0x100, a.qp.number()));
        let (received, cookie) = b.expect(&world, CompletionKind::ReceiveImm);
        assert_eq!((cookie, received.user_index()), (50, 0x101));
        assert_eq!((received.byte_len(), received.imm()), (len as u32, 0xabc0_0000 | message));
        let mut data = b.get(0, 1000.min(len));
        data.extend(b.get(400_000, len.saturating_sub(1000)));
        assert!(data == filled(1, message, len), "message {message} of {len} bytes");
    }
    sound(&world);
    a.end();
    b.end();
    sound(&world);
}

#[test]
fn writes_and_reads_reach_the_other_memory() {
    let world = world(FabricConfig::default());
    let (mut a, mut b) = connected(&world, |_| ());
    let len = 123_457;
    a.put(100, &filled(1, 7, len));
    let (raddr, rkey) = b.remote(4_321);
    let _ =
        a.qp.post_send(SendOp::Write { raddr, rkey }, &[a.sge(100, len)], 1, SendFlags::SIGNALED)
            .expect("room");
    b.qp.post_recv(&[], 60).expect("room");
    let (raddr_imm, _) = b.remote(200_000);
    let write = SendOp::WriteImm { raddr: raddr_imm, rkey, imm: 0x55 };
    let doorbell =
        a.qp.post_send(write, &[a.sge(100, 10)], 2, SendFlags::SIGNALED | SendFlags::SOLICITED)
            .expect("room");
    a.qp.ring(doorbell);
    assert_eq!(a.expect(&world, CompletionKind::Send).1, 1);
    assert_eq!(a.expect(&world, CompletionKind::Send).1, 2);
    let (received, cookie) = b.expect(&world, CompletionKind::ReceiveWriteImm);
    assert_eq!((cookie, received.imm(), received.byte_len(), received.solicited()), (60, 0x55, 10, true));
    assert!(b.get(4_321, len) == filled(1, 7, len));
    assert_eq!(b.get(4_320, 1), [0]);
    assert_eq!(b.get(4_321 + len, 1), [0]);
    assert!(b.get(200_000, 10) == filled(1, 7, 10));

    b.put(300_000, &filled(2, 9, len));
    let (raddr, rkey) = b.remote(300_000);
    let read = SendOp::Read { raddr, rkey };
    let pieces = [a.sge(500_000, 5), a.sge(600_001, len - 5)];
    let _ = a.qp.post_send(read, &pieces, 3, SendFlags::SIGNALED).expect("room");
    let fenced = SendFlags::SIGNALED | SendFlags::FENCE;
    let doorbell =
        a.qp.post_send(SendOp::Write { raddr, rkey }, &[a.sge(600_001, 8)], 4, fenced).expect("room");
    a.qp.ring(doorbell);
    let (done, cookie) = a.expect(&world, CompletionKind::Send);
    assert_eq!((cookie, done.byte_len()), (3, len as u32));
    assert_eq!(a.expect(&world, CompletionKind::Send).1, 4);
    let mut data = a.get(500_000, 5);
    data.extend(a.get(600_001, len - 5));
    assert!(data == filled(2, 9, len));
    assert!(b.get(300_000, 8) == filled(2, 9, len)[5..13], "the fenced write sent what was read");
    sound(&world);
}

#[test]
fn zero_based_keys_count_from_zero() {
    let world = world(FabricConfig::default());
    let (mut a, mut b) = connected(&world, |_| ());
    let window = b.memory.slice(8192, 20_000).expect("inside");
    let key = b.hca.register(b.pd, window, ALL, Base::Zero).expect("a key");
    assert_eq!((key.address(), key.length()), (0, 20_000));
    a.put(0, &filled(1, 1, 3000));
    let write = SendOp::Write { raddr: 5000, rkey: key.rkey() };
    let doorbell = a.qp.post_send(write, &[a.sge(0, 3000)], 1, SendFlags::SIGNALED).expect("room");
    a.qp.ring(doorbell);
    a.expect(&world, CompletionKind::Send);
    assert!(b.get(8192 + 5000, 3000) == filled(1, 1, 3000));
    let odd = b.memory.slice(100, 100).expect("inside");
    let inside = b.hca.register(b.pd, odd, ALL, Base::Zero).expect("a key");
    assert_eq!((inside.address(), inside.length()), (100, 100), "from where it begins in its page");
    b.hca.deregister(inside).expect("deregistered");
    assert!(b.hca.register(b.pd, odd, Access::REMOTE_WRITE, Base::Virtual).is_err());
    b.hca.deregister(key).expect("deregistered");
    sound(&world);
}

#[test]
fn rings_wrap_under_unsignalled_batches_and_inline_data() {
    for blueflame in [false, true] {
        let world = world(FabricConfig::default());
        let (mut a, mut b) = connected(&world, |config| config.blueflame = blueflame);
        assert_eq!(a.qp.has_blueflame(), blueflame);
        let mut next = 0u64;
        let mut expected = 0u64;
        for round in 0..400u32 {
            let batch = 1 + round % 7;
            for n in 0..batch {
                b.qp.post_recv(&[b.sge(n as usize * 4096, 4096)], u64::from(n)).expect("room");
            }
            let mut newest = None;
            for n in 0..batch {
                let flags = if n + 1 == batch { SendFlags::SIGNALED } else { SendFlags::empty() };
                let data = filled(1, round * 8 + n, (round as usize * 13 + n as usize) % 101);
                newest = Some(a.qp.post_inline(SendOp::Send, &data, next, flags).expect("room"));
                next += 1;
            }
            a.qp.ring(newest.expect("one at least"));
            let (_, cookie) = a.expect(&world, CompletionKind::Send);
            expected += u64::from(batch);
            assert_eq!(cookie + 1, expected);
            assert_eq!(a.qp.send_outstanding(), 0);
            for n in 0..batch {
                let (received, cookie) = b.expect(&world, CompletionKind::Receive);
                assert_eq!(cookie, u64::from(n));
                let len = (round as usize * 13 + n as usize) % 101;
                assert_eq!(received.byte_len() as usize, len);
                assert!(b.get(n as usize * 4096, len) == filled(1, round * 8 + n, len), "{round} {n}");
            }
        }
        sound(&world);
    }
}

#[test]
fn a_lossy_fabric_loses_nothing() {
    let faults: Faults = "loss=2%,dup=2%,reorder=2%".parse().expect("faults");
    let world = world(FabricConfig { seed: 7, faults, latency: 1000, ..FabricConfig::default() });
    let (mut a, mut b) = connected(&world, |_| ());
    for message in 0..60u32 {
        let len = 1 + message as usize * 1777 % 40_000;
        a.put(0, &filled(1, message, len));
        b.qp.post_recv(&[b.sge(0, 50_000)], 1).expect("room");
        let doorbell = a.qp.post_send(SendOp::Send, &[a.sge(0, len)], 2, SendFlags::SIGNALED).expect("room");
        a.qp.ring(doorbell);
        let (received, _) = b.expect(&world, CompletionKind::Receive);
        assert_eq!(received.byte_len() as usize, len);
        assert!(b.get(0, len) == filled(1, message, len));
        a.expect(&world, CompletionKind::Send);
        let (raddr, rkey) = b.remote(0);
        let doorbell =
            a.qp.post_send(SendOp::Read { raddr, rkey }, &[a.sge(100_000, len)], 3, SendFlags::SIGNALED)
                .expect("room");
        a.qp.ring(doorbell);
        a.expect(&world, CompletionKind::Send);
        assert!(a.get(100_000, len) == filled(1, message, len));
    }
    assert!(world.fabric(|f| f.counters().dropped) > 0);
}

#[test]
fn remote_access_errors_are_named_and_flush_the_rest() {
    let world = world(FabricConfig::default());
    let (mut a, mut b) = connected(&world, |_| ());
    let (raddr, rkey) = b.remote(0);
    let wrong = SendOp::Write { raddr, rkey: RKey::new(rkey.get() ^ 1) };
    a.qp.post_recv(&[a.sge(0, 10)], 90).expect("room");
    let _ = a.qp.post_send(wrong, &[a.sge(0, 10)], 1, SendFlags::SIGNALED).expect("room");
    let doorbell = a.qp.post_send(SendOp::Send, &[a.sge(0, 10)], 2, SendFlags::SIGNALED).expect("room");
    a.qp.ring(doorbell);
    let (failed, cookie) = a.expect(&world, CompletionKind::SendError);
    let error = failed.error().expect("an error");
    assert_eq!((cookie, error.syndrome), (1, CqeSyndrome::REMOTE_ACCESS_ERR));
    assert!(error.to_string().starts_with("remote access error (0x13), vendor syndrome 0x"), "{error}");
    let mut flushed = vec![];
    for _ in 0..2 {
        let completion = a.completion(&world);
        assert_eq!(completion.error().map(|e| e.syndrome), Some(CqeSyndrome::WR_FLUSH_ERR));
        flushed.push((completion.is_send(), id(a.qp.retire(&completion))));
    }
    flushed.sort();
    assert_eq!(flushed, [(false, Some(90)), (true, Some(2))]);
    assert_eq!(a.hca.query_qp_state(&a.qp), Ok(QpState::Error));
    assert_eq!(b.hca.query_qp_state(&b.qp), Ok(QpState::Error));
    let _ = b.hca.poll(Instant::from_nanos(world.now()));
    let event = std::iter::from_fn(|| b.hca.next_event())
        .find(|e| matches!(e, driver_mlx::AsyncEvent::Qp { qpn, .. } if *qpn == b.qp.number()));
    assert!(event.is_some(), "the responder hears of it by event");
    // From the error state back to work.
    for node in [&mut a, &mut b] {
        node.hca.modify_to_reset(&mut node.qp).expect("RESET");
        node.cq.sweep(node.qp.number());
    }
    connect_one(&mut a, &mut b, 0);
    connect_one(&mut b, &mut a, 1);
    b.qp.post_recv(&[b.sge(0, 10)], 5).expect("room");
    a.put(0, &filled(1, 3, 10));
    let doorbell = a.qp.post_send(SendOp::Send, &[a.sge(0, 10)], 6, SendFlags::SIGNALED).expect("room");
    a.qp.ring(doorbell);
    assert_eq!(a.expect(&world, CompletionKind::Send).1, 6);
    assert_eq!(b.expect(&world, CompletionKind::Receive).1, 5);
    assert!(b.get(0, 10) == filled(1, 3, 10));
}

#[test]
fn a_dead_peer_ends_in_retries_exceeded() {
    let world = world(FabricConfig::default());
    let (mut a, mut b) = connected(&world, |_| ());
    b.hca.modify_to_reset(&mut b.qp).expect("RESET");
    let doorbell = a.qp.post_send(SendOp::Send, &[a.sge(0, 10)], 1, SendFlags::SIGNALED).expect("room");
    a.qp.ring(doorbell);
    let (failed, cookie) = a.expect(&world, CompletionKind::SendError);
    let syndrome = failed.error().map(|e| e.syndrome);
    assert_eq!((cookie, syndrome), (1, Some(CqeSyndrome::TRANSPORT_RETRY_EXC_ERR)));
}

#[test]
fn posts_to_the_error_state_are_flushed() {
    let world = world(FabricConfig::default());
    let (mut a, _b) = connected(&world, |_| ());
    a.hca.modify_to_error(&mut a.qp).expect("ERROR");
    a.qp.post_recv(&[a.sge(0, 1)], 1).expect("room");
    let doorbell = a.qp.post_send(SendOp::Nop, &[], 2, SendFlags::empty()).expect("room");
    a.qp.ring(doorbell);
    let mut cookies = vec![];
    for _ in 0..2 {
        let flushed = a.completion(&world);
        assert_eq!(flushed.error().map(|e| e.syndrome), Some(CqeSyndrome::WR_FLUSH_ERR));
        cookies.push(id(a.qp.retire(&flushed)));
    }
    cookies.sort();
    assert_eq!(cookies, [Some(1), Some(2)]);
}

#[test]
fn datagrams_carry_their_source() {
    let world = world(FabricConfig::default());
    let q_key = QKey::new(0x1234_5678);
    let change = |config: &mut QpConfig| config.service = Service::Ud { q_key };
    let (mut a, mut b) = (Node::new(&world, 0, change), Node::new(&world, 1, change));
    for node in [&mut a, &mut b] {
        node.init();
        node.hca.modify_to_rts_datagram(&mut node.qp, Psn::new(5)).expect("RTS");
    }
    let rates = a.hca.caps().stat_rate_support;
    let to = AddressVector::new(&path(&mut b.hca), b.qp.number(), q_key, rates);
    let wrong = AddressVector::new(&path(&mut b.hca), b.qp.number(), QKey::new(1), rates);
    for message in 0..20 {
        let len = message as usize * 200;
        a.put(0, &filled(1, message, len));
        b.qp.post_recv(&[b.sge(0, 40 + 4096)], 9).expect("room");
        let _ = a.qp.post_ud(&wrong, SendOp::Send, &[a.sge(0, len)], 1, SendFlags::SIGNALED).expect("room");
        let doorbell =
            a.qp.post_ud(&to, SendOp::Send, &[a.sge(0, len)], 2, SendFlags::SIGNALED).expect("room");
        a.qp.ring(doorbell);
        assert_eq!(a.expect(&world, CompletionKind::Send).1, 1);
        assert_eq!(a.expect(&world, CompletionKind::Send).1, 2);
        let (received, _) = b.expect(&world, CompletionKind::Receive);
        assert_eq!(received.byte_len() as usize, 40 + len, "the one with the wrong key was dropped");
        assert_eq!(
            (received.datagram().src_qpn, received.datagram().slid),
            (a.qp.number(), a.hca.port().expect("a port").lid())
        );
        assert!(!received.datagram().grh);
        assert!(b.get(40, len) == filled(1, message, len));
    }
    sound(&world);
}

#[test]
fn management_datagrams_go_between_qp1s() {
    let world = world(FabricConfig::default());
    let change = |config: &mut QpConfig| {
        config.service = Service::Gsi;
        // SAFETY: the requests below stay within the nodes' registered buffers.
        config.reserved_lkey = Some(unsafe { driver_mlx::ReservedLKey::allow() });
    };
    let (mut a, mut b) = (Node::new(&world, 0, change), Node::new(&world, 1, change));
    for node in [&mut a, &mut b] {
        node.init();
        node.hca.modify_to_rts_datagram(&mut node.qp, Psn::new(0)).expect("RTS");
        assert_eq!(node.qp.wire_number(), QpNumber::GSI);
    }
    let rates = a.hca.caps().stat_rate_support;
    let to = AddressVector::new(&path(&mut b.hca), QpNumber::GSI, QKey::GSI, rates);
    // By device address, under the reserved key.
    let physical = |node: &Node, len| Sge {
        address: node.memory.device_address(),
        length: len,
        lkey: node.hca.reserved_lkey(),
    };
    // A MAD of class CM, method Send.
    let mut mad = filled(1, 1, 256);
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    a.put(0, &mad);
    b.qp.post_recv(&[physical(&b, 296)], 3).expect("room");
    let doorbell =
        a.qp.post_ud(&to, SendOp::Send, &[physical(&a, 256)], 4, SendFlags::SIGNALED).expect("room");
    a.qp.ring(doorbell);
    assert_eq!(a.expect(&world, CompletionKind::Send).1, 4);
    let (received, cookie) = b.expect(&world, CompletionKind::Receive);
    assert_eq!((cookie, received.byte_len(), received.datagram().src_qpn), (3, 296, QpNumber::GSI));
    assert_eq!(
        (received.pkey().get(), received.datagram().slid),
        (0xffff, a.hca.port().expect("a port").lid())
    );
    assert!(b.get(40, 256) == mad);
    sound(&world);
}

#[test]
fn completion_events_come_once_per_arming() {
    let world = world(FabricConfig::default());
    let (mut a, mut b) = connected(&world, |_| ());
    let names = |node: &mut Node| {
        let mut names = vec![];
        node.hca.poll_completions(|cqn| names.push(cqn));
        names
    };
    let send = |a: &mut Node, b: &mut Node, flags| {
        b.qp.post_recv(&[b.sge(0, 10)], 1).expect("room");
        let doorbell = a.qp.post_send(SendOp::Send, &[a.sge(0, 10)], 1, flags).expect("room");
        a.qp.ring(doorbell);
        a.expect(&world, CompletionKind::Send);
    };
    send(&mut a, &mut b, SendFlags::SIGNALED);
    assert_eq!(names(&mut b), [], "not armed");
    // What else happened (communication established) shares the vector.
    let _ = b.hca.poll(Instant::from_nanos(world.now()));
    world.raised(1);
    b.cq.arm(false);
    b.hca.arm_events();
    world.settle();
    assert_eq!(names(&mut b), [b.cq.number()], "at once, as a completion waits");
    // Once because the event queue was armed at bring-up, once more because it was armed with an event in it.
    assert_eq!(world.raised(1), [0, 0]);
    b.cq.notified();
    b.expect(&world, CompletionKind::Receive);
    // Only one that asks for it.
    b.cq.arm(true);
    b.hca.arm_events();
    send(&mut a, &mut b, SendFlags::SIGNALED);
    world.settle();
    assert_eq!(names(&mut b), []);
    send(&mut a, &mut b, SendFlags::SIGNALED | SendFlags::SOLICITED);
    world.settle();
    assert_eq!(names(&mut b), [b.cq.number()]);
    assert_eq!(world.raised(1), [0]);
    b.cq.notified();
    for _ in 0..2 {
        b.expect(&world, CompletionKind::Receive);
    }
    // And again in all sequence numbers.
    for _ in 0..9 {
        b.cq.arm(false);
        b.hca.arm_events();
        world.settle();
        assert_eq!(names(&mut b), []);
        send(&mut a, &mut b, SendFlags::SIGNALED);
        world.settle();
        assert_eq!(names(&mut b), [b.cq.number()]);
        b.cq.notified();
        b.expect(&world, CompletionKind::Receive);
    }
    sound(&world);
}

#[test]
fn full_queues_say_so() {
    let world = world(FabricConfig::default());
    let (mut a, _b) = connected(&world, |_| ());
    let pieces = [a.sge(0, 1), a.sge(1, 1), a.sge(2, 1), a.sge(3, 1)];
    let (raddr, rkey) = (0, RKey::new(0));
    let mut posted = 0;
    while a.qp.post_send(SendOp::Write { raddr, rkey }, &pieces, 0, SendFlags::SIGNALED).is_ok() {
        posted += 1;
    }
    assert!(posted >= 32, "{posted}");
    assert_eq!(
        a.qp.post_send(SendOp::Nop, &[pieces[0]; 5], 0, SendFlags::empty()),
        Err(PostError::TooManySges)
    );
    let mut posted = 0;
    while a.qp.post_recv(&pieces, 0).is_ok() {
        posted += 1;
    }
    assert_eq!(posted, 32);
}

#[test]
fn more_than_the_device_can_is_refused_by_name() {
    let world = world(FabricConfig::default());
    let mut node = Node::new(&world, 0, |_| ());
    let base = QpConfig::rc(node.pd, node.cq.number());
    for (what, config) in [
        ("max_wqe_sz_sq", QpConfig { max_send_sge: 31, ..base }),
        ("max_wqe_sz_sq", QpConfig { max_inline: 2000, ..base }),
        ("max_wqe_sz_rq", QpConfig { max_recv_sge: 200, ..base }),
        ("log_max_qp_sz", QpConfig { max_send_wr: 1 << 20, ..base }),
        ("log_max_qp_sz", QpConfig { max_recv_wr: u32::MAX, ..base }),
    ] {
        let refused = node.hca.create_qp(&config).err();
        assert!(matches!(refused, Some(Error::Limit { what: w, .. }) if w == what), "{refused:?}");
    }
    let refused = node.hca.create_cq(&CqConfig { entries: u32::MAX, eq: 0 }).err();
    assert!(matches!(refused, Some(Error::Limit { what: "log_max_cq_sz", .. })), "{refused:?}");
    let refused = node.hca.create_cq(&CqConfig { entries: 1, eq: 1 }).err();
    assert_eq!(refused, Some(Error::InvalidArgument("eq")));
    node.init();
    let dlid = path(&mut node.hca);
    let rtr = RtrParams {
        path: dlid,
        mtu: Mtu::B256,
        remote_qpn: QpNumber::new(1),
        rq_psn: Psn::new(0),
        responder_resources: 255,
        min_rnr_timer: 0,
    };
    let refused = node.hca.modify_to_rtr(&mut node.qp, &rtr).err();
    assert!(matches!(refused, Some(Error::Limit { what: "log_max_ra_res_qp", .. })), "{refused:?}");
    assert_eq!(node.qp.state(), QpState::Init);
    let free = node.hca.free_bytes();
    let gone = node.hca.alloc_pd().expect("a PD");
    node.hca.dealloc_pd(gone).expect("ended");
    let refused = node.hca.create_qp(&QpConfig { pd: gone, ..base }).err();
    assert!(matches!(refused, Some(Error::Command(_))), "{refused:?}");
    assert_eq!(node.hca.free_bytes(), free, "a refused queue leaves nothing behind");
    node.end();
}

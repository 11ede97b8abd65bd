//! Memory windows of both types: what peers reach through them, and what they do not.

use crate::common;

use common::World;
use common::node::{ALL, Node, connected, filled, id, sound, world};
use driver_mlx::{
    Access, Base, CompletionKind, Cqe, Error, MemoryWindow, MwBind, MwType, PostError, QpConfig, RKey,
    SendFlags, SendOp,
};
use mlx5_prm::datapath::SendOpcode;
use mlx5_prm::status::CqeSyndrome;
use rdma_fabric::infiniband::FabricConfig;
use std::rc::Rc;

const REMOTE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

fn windows() -> (Rc<World>, Node, Node) {
    let world = world(FabricConfig::default());
    let (a, b) = connected(&world, |config| config.memory_windows = true);
    (world, a, b)
}

/// A window of `len` bytes at `offset` of the node's memory.
fn part(node: &Node, offset: usize, len: u32, access: Access) -> MwBind {
    let address = node.key.address() + offset as u64;
    MwBind { lkey: node.key.lkey(), address, length: len, access, zero_based: false }
}

/// Binds and waits.
fn bind(world: &Rc<World>, node: &mut Node, window: &mut MemoryWindow, what: &MwBind) -> RKey {
    let (key, doorbell) = node.qp.post_bind(window, what, 40, SendFlags::SIGNALED).expect("room");
    node.qp.ring(doorbell);
    let (completion, cookie) = node.expect(world, CompletionKind::Send);
    assert_eq!((cookie, completion.send_opcode()), (40, SendOpcode::UMR));
    assert_eq!(key, window.rkey());
    key
}

/// One operation of `node` on 8 bytes of the peer: how it ended.
fn attempt(world: &Rc<World>, node: &mut Node, op: SendOp) -> Cqe<'static> {
    let doorbell = node.qp.post_send(op, &[node.sge(0, 8)], 41, SendFlags::SIGNALED).expect("room");
    node.qp.ring(doorbell);
    let completion = node.completion(world);
    assert_eq!(id(node.qp.retire(&completion)), Some(41));
    completion
}

fn syndrome(completion: &Cqe) -> Option<CqeSyndrome> {
    completion.error().map(|error| error.syndrome)
}

/// Ends what a failure left, and connects both anew.
fn reconnect(a: &mut Node, b: &mut Node) {
    for node in [&mut *a, &mut *b] {
        node.hca.modify_to_reset(&mut node.qp).expect("RESET");
        node.cq.sweep(node.qp.number());
    }
    common::node::connect_one(a, b, 0);
    common::node::connect_one(b, a, 1);
}

#[test]
fn a_window_opens_a_part_of_a_region() {
    for kind in [MwType::One, MwType::Two] {
        let (world, mut a, mut b) = windows();
        let mut window = b.hca.alloc_mw(b.pd, kind).expect("a window");
        assert!(b.hca.query_mkey(window.rkey()).expect("there").free);
        let first = window.rkey();
        let what = part(&b, 5000, 3000, REMOTE);
        let rkey = bind(&world, &mut b, &mut window, &what);
        assert_eq!(
            (rkey.get() >> 8, rkey != first),
            (first.get() >> 8, true),
            "the same window, another key"
        );
        let state = b.hca.query_mkey(rkey).expect("there");
        assert_eq!((state.free, state.rkey, state.pd), (false, rkey, b.pd.number()));
        // All of it is written and read, and nothing beside it.
        b.put(0, &[0xee; 10_000]);
        a.put(0, &filled(1, 1, 3000));
        let write = SendOp::Write { raddr: what.address, rkey };
        let _ = a.qp.post_send(write, &[a.sge(0, 3000)], 1, SendFlags::SIGNALED).expect("room");
        let read = SendOp::Read { raddr: what.address + 100, rkey };
        let doorbell = a.qp.post_send(read, &[a.sge(50_000, 2900)], 2, SendFlags::SIGNALED).expect("room");
        a.qp.ring(doorbell);
        assert_eq!(a.expect(&world, CompletionKind::Send).1, 1);
        assert_eq!(a.expect(&world, CompletionKind::Send).1, 2);
        assert!(b.get(5000, 3000) == filled(1, 1, 3000));
        assert!(a.get(50_000, 2900) == filled(1, 1, 3000)[100..]);
        assert!(b.get(0, 5000).iter().chain(&b.get(8000, 2000)).all(|&byte| byte == 0xee));
        b.put(5000, &7u64.to_ne_bytes());
        let add = SendOp::FetchAdd { raddr: what.address, rkey, add: 5 };
        assert_eq!(syndrome(&attempt(&world, &mut a, add)), None);
        assert_eq!(b.get(5000, 8), 12u64.to_ne_bytes());
        sound(&world);
        b.hca.dealloc_mw(window).expect("ended");
        a.end();
        b.end();
    }
}

#[test]
fn a_window_may_count_from_zero() {
    let (world, mut a, mut b) = windows();
    let mut window = b.hca.alloc_mw(b.pd, MwType::Two).expect("a window");
    let what = MwBind { zero_based: true, ..part(&b, 777, 64, REMOTE) };
    let rkey = bind(&world, &mut b, &mut window, &what);
    a.put(0, &filled(1, 9, 8));
    assert_eq!(syndrome(&attempt(&world, &mut a, SendOp::Write { raddr: 56, rkey })), None);
    assert!(b.get(777 + 56, 8) == filled(1, 9, 8));
    let beyond = attempt(&world, &mut a, SendOp::Write { raddr: 57, rkey });
    assert_eq!(syndrome(&beyond), Some(CqeSyndrome::REMOTE_ACCESS_ERR));
}

#[test]
fn outside_range_and_rights_peers_are_refused() {
    let (world, mut a, mut b) = windows();
    for kind in [MwType::One, MwType::Two] {
        for (access, offset, writes, good) in [
            (REMOTE, 0, true, true),
            (REMOTE, 56, true, true),
            (REMOTE, 57, true, false),
            (REMOTE, -1, true, false),
            (REMOTE, 64, false, false),
            (Access::REMOTE_READ, 0, true, false),
            (Access::REMOTE_READ, 0, false, true),
            (Access::REMOTE_WRITE, 0, false, false),
            (Access::REMOTE_WRITE, 0, true, true),
        ] {
            let mut window = b.hca.alloc_mw(b.pd, kind).expect("a window");
            let what = part(&b, 4096 - 32, 64, access);
            let rkey = bind(&world, &mut b, &mut window, &what);
            b.put(4096 - 40, &[0x5a; 80]);
            let raddr = what.address.wrapping_add_signed(offset);
            let op = if writes { SendOp::Write { raddr, rkey } } else { SendOp::Read { raddr, rkey } };
            a.put(0, &filled(1, 3, 8));
            let completion = attempt(&world, &mut a, op);
            let refused = (!good).then_some(CqeSyndrome::REMOTE_ACCESS_ERR);
            assert_eq!(syndrome(&completion), refused, "{kind:?} {access:?} at {offset}, write {writes}");
            if refused.is_some() {
                assert!(b.get(4096 - 40, 80).iter().all(|&byte| byte == 0x5a), "nothing was written");
                reconnect(&mut a, &mut b);
            }
            b.hca.dealloc_mw(window).expect("ended");
        }
    }
}

#[test]
fn old_keys_do_not_fit() {
    let (world, mut a, mut b) = windows();
    let mut window = b.hca.alloc_mw(b.pd, MwType::One).expect("a window");
    let what = part(&b, 0, 64, REMOTE);
    let old = bind(&world, &mut b, &mut window, &what);
    // A window of type 1 is bound again as it is; its old key ends.
    let elsewhere = part(&b, 8192, 64, REMOTE);
    let new = bind(&world, &mut b, &mut window, &elsewhere);
    assert_ne!(old, new);
    a.put(0, &filled(1, 5, 8));
    assert_eq!(
        syndrome(&attempt(&world, &mut a, SendOp::Write { raddr: elsewhere.address, rkey: new })),
        None
    );
    assert!(b.get(8192, 8) == filled(1, 5, 8));
    let stale = attempt(&world, &mut a, SendOp::Write { raddr: elsewhere.address, rkey: old });
    assert_eq!(syndrome(&stale), Some(CqeSyndrome::REMOTE_ACCESS_ERR));
    reconnect(&mut a, &mut b);
    // Bound to nothing.
    let nothing = MwBind { length: 0, ..what };
    let none = bind(&world, &mut b, &mut window, &nothing);
    assert!(b.hca.query_mkey(none).expect("there").free);
    let free = attempt(&world, &mut a, SendOp::Write { raddr: what.address, rkey: none });
    assert_eq!(syndrome(&free), Some(CqeSyndrome::REMOTE_ACCESS_ERR));
    reconnect(&mut a, &mut b);
    let again = bind(&world, &mut b, &mut window, &what);
    assert_eq!(syndrome(&attempt(&world, &mut a, SendOp::Write { raddr: what.address, rkey: again })), None);
    // After 256 binds the key has been all its 256 names and is the first again.
    for _ in 0..256 {
        bind(&world, &mut b, &mut window, &what);
    }
    assert_eq!(window.rkey(), again);
}

#[test]
fn invalidated_windows_are_closed() {
    for by_peer in [false, true] {
        let (world, mut a, mut b) = windows();
        let mut window = b.hca.alloc_mw(b.pd, MwType::Two).expect("a window");
        let what = part(&b, 0, 64, REMOTE);
        let rkey = bind(&world, &mut b, &mut window, &what);
        assert_eq!(syndrome(&attempt(&world, &mut a, SendOp::Write { raddr: what.address, rkey })), None);
        if by_peer {
            b.qp.post_recv(&[b.sge(9000, 8)], 60).expect("room");
            assert_eq!(syndrome(&attempt(&world, &mut a, SendOp::SendInval(rkey))), None);
            let (received, cookie) = b.expect(&world, CompletionKind::ReceiveInval);
            assert_eq!((cookie, received.invalidated_rkey()), (60, Some(rkey)));
        } else {
            let doorbell = b.qp.post_local_invalidate(rkey, 61, SendFlags::SIGNALED).expect("room");
            b.qp.ring(doorbell);
            let (completion, cookie) = b.expect(&world, CompletionKind::Send);
            assert_eq!((cookie, completion.send_opcode()), (61, SendOpcode::UMR));
        }
        assert!(b.hca.query_mkey(rkey).expect("there").free);
        let closed = attempt(&world, &mut a, SendOp::Write { raddr: what.address, rkey });
        assert_eq!(syndrome(&closed), Some(CqeSyndrome::REMOTE_ACCESS_ERR), "by the peer: {by_peer}");
        reconnect(&mut a, &mut b);
        // It can be bound again, under a new key.
        let again = bind(&world, &mut b, &mut window, &what);
        assert_ne!(again, rkey);
        assert_eq!(
            syndrome(&attempt(&world, &mut a, SendOp::Write { raddr: what.address, rkey: again })),
            None
        );
        let old = attempt(&world, &mut a, SendOp::Write { raddr: what.address, rkey });
        assert_eq!(syndrome(&old), Some(CqeSyndrome::REMOTE_ACCESS_ERR));
    }
}

/// Makes a window and what it must not be bound to.
type Wrong = fn(&mut Node) -> (MwType, MwBind);

#[test]
fn binds_that_cannot_be_fail_by_name() {
    let wrong: [(&str, Wrong); 5] = [
        ("beyond the region", |b| (MwType::One, part(b, common::node::MEMORY - 32, 64, REMOTE))),
        ("another protection domain's region", |b| {
            let pd = b.hca.alloc_pd().expect("a PD");
            let foreign = b.hca.register(pd, &b.memory, ALL, Base::Virtual).expect("a key");
            (MwType::Two, MwBind { lkey: foreign.lkey(), ..part(b, 0, 64, REMOTE) })
        }),
        ("write without local write", |b| {
            let readable =
                b.hca.register(b.pd, &b.memory, Access::REMOTE_READ, Base::Virtual).expect("a key");
            (MwType::One, MwBind { lkey: readable.lkey(), ..part(b, 0, 64, Access::REMOTE_WRITE) })
        }),
        ("no such region", |b| {
            (MwType::Two, MwBind { lkey: driver_mlx::LKey::new(0x00ff_ff00), ..part(b, 0, 64, REMOTE) })
        }),
        ("a zero-based region, by its virtual address", |b| {
            let zero = b.hca.register(b.pd, &b.memory, ALL, Base::Zero).expect("a key");
            (MwType::One, MwBind { lkey: zero.lkey(), ..part(b, 0, 64, REMOTE) })
        }),
    ];
    for (why, case) in wrong {
        let (world, _a, mut b) = windows();
        let (kind, what) = case(&mut b);
        let mut window = b.hca.alloc_mw(b.pd, kind).expect("a window");
        let _ = b.qp.post_bind(&mut window, &what, 40, SendFlags::empty()).expect("room");
        let doorbell = b.qp.post_send(SendOp::Nop, &[], 41, SendFlags::SIGNALED).expect("room");
        b.qp.ring(doorbell);
        let failed = b.completion(&world);
        assert_eq!(id(b.qp.retire(&failed)), Some(40), "{why}");
        assert_eq!(syndrome(&failed), Some(CqeSyndrome::MW_BIND_ERR), "{why}");
        let flushed = b.completion(&world);
        assert_eq!(
            (id(b.qp.retire(&flushed)), syndrome(&flushed)),
            (Some(41), Some(CqeSyndrome::WR_FLUSH_ERR)),
            "{why}"
        );
    }
}

#[test]
fn a_bound_window_of_type_two_is_not_bound_again() {
    let (world, _a, mut b) = windows();
    let mut window = b.hca.alloc_mw(b.pd, MwType::Two).expect("a window");
    let what = part(&b, 0, 64, REMOTE);
    bind(&world, &mut b, &mut window, &what);
    let (_, doorbell) = b.qp.post_bind(&mut window, &what, 40, SendFlags::SIGNALED).expect("room");
    b.qp.ring(doorbell);
    let failed = b.completion(&world);
    assert_eq!((id(b.qp.retire(&failed)), syndrome(&failed)), (Some(40), Some(CqeSyndrome::MW_BIND_ERR)));
}

#[test]
fn what_follows_a_bind_finds_it_bound() {
    let (world, mut a, mut b) = windows();
    let mut window = b.hca.alloc_mw(b.pd, MwType::Two).expect("a window");
    let mut turn = 0u32;
    b.put(0, &filled(2, 0, 4096));
    // The peer learns the key by a send posted right behind the bind, and uses it; then the window is closed, all in one batch.
    for round in 0..40u32 {
        let what = part(&b, round as usize * 64, 64, REMOTE);
        let (rkey, _) = b.qp.post_bind(&mut window, &what, 1, SendFlags::empty()).expect("room");
        let flags = SendFlags::SIGNALED;
        a.qp.post_recv(&[a.sge(8000, 16)], 2).expect("room");
        let word = what.address.to_be_bytes().into_iter().chain(rkey.get().to_be_bytes()).collect::<Vec<_>>();
        let posted = if round % 2 == 0 {
            b.qp.post_inline(SendOp::Send, &word, 3, flags)
        } else {
            b.put(500_000, &word);
            b.qp.post_send(SendOp::Send, &[b.sge(500_000, 12)], 3, flags)
        };
        b.qp.ring(posted.expect("room"));
        assert_eq!(b.expect(&world, CompletionKind::Send).1, 3);
        assert_eq!(a.expect(&world, CompletionKind::Receive).1, 2);
        let heard = a.get(8000, 12);
        let raddr = u64::from_be_bytes(heard[..8].try_into().expect("8 bytes"));
        let heard = RKey::new(u32::from_be_bytes(heard[8..].try_into().expect("4 bytes")));
        assert_eq!(heard, rkey);
        assert_eq!(syndrome(&attempt(&world, &mut a, SendOp::Read { raddr, rkey })), None);
        assert!(a.get(0, 8) == b.get(round as usize * 64, 8));
        let _ = b.qp.post_local_invalidate(rkey, 4, SendFlags::empty()).expect("room");
        turn += 1;
    }
    assert_eq!(turn, 40);
    sound(&world);
}

#[test]
fn windows_are_only_for_queue_pairs_made_for_them() {
    let world = world(FabricConfig::default());
    let (mut a, _b) = connected(&world, |_| ());
    let mut window = a.hca.alloc_mw(a.pd, MwType::One).expect("a window");
    let what = part(&a, 0, 64, REMOTE);
    let before = window.rkey();
    assert_eq!(a.qp.post_bind(&mut window, &what, 0, SendFlags::SIGNALED), Err(PostError::WrongService));
    assert_eq!(window.rkey(), before, "a refused bind leaves the key");
    let config =
        QpConfig { memory_windows: true, ..QpConfig::ud(a.pd, a.cq.number(), driver_mlx::QKey::GSI) };
    assert!(matches!(a.hca.create_qp(&config), Err(Error::InvalidArgument("memory_windows"))));
    let config = QpConfig { memory_windows: true, max_send_wr: 2, ..QpConfig::rc(a.pd, a.cq.number()) };
    let mut qp = a.hca.create_qp(&config).expect("a QP");
    let long = MwBind { length: 1 << 31, ..what };
    assert_eq!(qp.post_bind(&mut window, &long, 0, SendFlags::SIGNALED), Err(PostError::TooLong));
    for _ in 0..2 {
        let _ = qp.post_bind(&mut window, &what, 0, SendFlags::SIGNALED).expect("as many as were asked for");
    }
    assert_eq!(qp.post_bind(&mut window, &what, 0, SendFlags::SIGNALED), Err(PostError::Full));
    a.hca.destroy_qp(qp).expect("destroyed");
}

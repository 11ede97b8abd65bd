//! Completion queues that grow while completions are in them and on their way.

use crate::common;

use common::node::{connected, filled, sound, world};
use driver_mlx::{CompletionKind, Error, SendFlags, SendOp};
use rdma_fabric::infiniband::FabricConfig;

#[test]
fn a_queue_grows_with_completions_in_it() {
    let world = world(FabricConfig::default());
    let (mut a, mut b) = connected(&world, |_| ());
    let (mut sent, mut done, mut received) = (0u64, 0u64, 0u64);
    let mut capacity = b.cq.capacity();
    let free = b.hca.free_bytes();
    for round in 0..6u32 {
        // Some are taken before, some stay in the queue across the change, some come after it.
        for n in 0..24u32 {
            let message = round * 24 + n;
            a.put(n as usize * 4096, &filled(1, message, 200));
            b.qp.post_recv(&[b.sge(n as usize * 4096, 4096)], u64::from(n)).expect("room");
            let op = SendOp::SendImm(message);
            let doorbell =
                a.qp.post_send(op, &[a.sge(n as usize * 4096, 200)], sent, SendFlags::SIGNALED)
                    .expect("room");
            a.qp.ring(doorbell);
            sent += 1;
            if n == 15 {
                world.pass(1_000_000);
                for _ in 0..round {
                    assert_eq!(b.expect(&world, CompletionKind::ReceiveImm).0.imm() as u64, received);
                    received += 1;
                }
                b.hca.resize_cq(&mut b.cq, capacity + 1).expect("grown");
                assert!(b.cq.capacity() > capacity);
                capacity = b.cq.capacity();
            }
        }
        while received < sent {
            let (completion, cookie) = b.expect(&world, CompletionKind::ReceiveImm);
            assert_eq!((u64::from(completion.imm()), cookie), (received, received % 24));
            assert!(b.get(cookie as usize * 4096, 200) == filled(1, received as u32, 200));
            received += 1;
        }
        while done < sent {
            assert_eq!(a.expect(&world, CompletionKind::Send).1, done);
            done += 1;
        }
    }
    // Events come from the new ring too.
    b.cq.arm(false);
    b.hca.arm_events();
    b.qp.post_recv(&[b.sge(0, 64)], 0).expect("room");
    let doorbell = a.qp.post_send(SendOp::Send, &[a.sge(0, 10)], sent, SendFlags::SIGNALED).expect("room");
    a.qp.ring(doorbell);
    a.expect(&world, CompletionKind::Send);
    world.settle();
    let mut named = vec![];
    b.hca.poll_completions(|cqn| named.push(cqn));
    assert_eq!(named, [b.cq.number()]);
    b.expect(&world, CompletionKind::Receive);
    // What the device has not, and what is there already.
    let too_many = b.hca.resize_cq(&mut b.cq, 1 << 30);
    assert!(matches!(too_many, Err(Error::Limit { what: "log_max_cq_sz", .. })), "{too_many:?}");
    b.hca.resize_cq(&mut b.cq, 1).expect("large enough");
    assert_eq!(b.cq.capacity(), capacity);
    assert!(b.hca.free_bytes() < free);
    sound(&world);
    a.end();
    b.end();
}

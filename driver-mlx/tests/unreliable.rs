//! Unreliable connections between two emulated HCAs: what arrives is whole, what is lost is lost.

use crate::common;

use common::node::{connected, filled, id, kept, sound, world};
use driver_mlx::{CompletionKind, PostError, SendFlags, SendOp, Service};
use rdma_fabric::faults::Faults;
use rdma_fabric::infiniband::FabricConfig;

#[test]
fn unreliable_connections_send_and_write() {
    let world = world(FabricConfig::default());
    let (mut a, mut b) = connected(&world, |config| config.service = Service::Uc);
    for (message, len) in [0, 1, 4096, 4097, 100_000].into_iter().enumerate() {
        let message = message as u32;
        a.put(0, &filled(1, message, len));
        b.qp.post_recv(&[b.sge(0, 100_000)], 50).expect("room");
        let _ =
            a.qp.post_send(SendOp::SendImm(message), &[a.sge(0, len)], 7, SendFlags::SIGNALED).expect("room");
        let (raddr, rkey) = b.remote(300_000);
        let write = SendOp::WriteImm { raddr, rkey, imm: !message };
        b.qp.post_recv(&[], 51).expect("room");
        let doorbell = a.qp.post_send(write, &[a.sge(0, len)], 8, SendFlags::SIGNALED).expect("room");
        a.qp.ring(doorbell);
        assert_eq!(a.expect(&world, CompletionKind::Send).1, 7);
        assert_eq!(a.expect(&world, CompletionKind::Send).1, 8);
        let (received, cookie) = b.expect(&world, CompletionKind::ReceiveImm);
        assert_eq!((cookie, received.byte_len() as usize, received.imm()), (50, len, message));
        let (written, cookie) = b.expect(&world, CompletionKind::ReceiveWriteImm);
        assert_eq!((cookie, written.byte_len() as usize, written.imm()), (51, len, !message));
        assert!(b.get(0, len) == filled(1, message, len) && b.get(300_000, len) == filled(1, message, len));
    }
    let (raddr, rkey) = b.remote(0);
    for op in [
        SendOp::Read { raddr, rkey },
        SendOp::FetchAdd { raddr, rkey, add: 1 },
        SendOp::CompareSwap { raddr, rkey, compare: 1, swap: 2 },
        SendOp::SendInval(rkey),
    ] {
        let posted = a.qp.post_send(op, &[a.sge(0, 8)], 1, SendFlags::SIGNALED);
        assert_eq!(posted, Err(PostError::WrongService), "{op:?}");
    }
    sound(&world);
    a.end();
    b.end();
}

#[test]
fn an_unreliable_connection_loses_whole_messages_and_nothing_else() {
    let faults: Faults = "loss=3%".parse().expect("faults");
    let world = world(FabricConfig { seed: 5, faults, latency: 1000, ..FabricConfig::default() });
    let (mut a, mut b) = connected(&world, |config| config.service = Service::Uc);
    let (mut arrived, mut last) = (0, None);
    b.qp.post_recv(&[b.sge(0, 20_000)], 0).expect("room");
    for message in 0..300u32 {
        let len = 1 + message as usize * 131 % 20_000;
        a.put(0, &filled(1, message, len));
        let doorbell =
            a.qp.post_send(SendOp::SendImm(message), &[a.sge(0, len)], 7, SendFlags::SIGNALED).expect("room");
        a.qp.ring(doorbell);
        a.expect(&world, CompletionKind::Send);
        world.pass(100_000);
        if let Some(received) = b.cq.poll(kept).expect("sound") {
            assert_eq!((received.imm(), received.byte_len() as usize), (message, len));
            assert!(b.get(0, len) == filled(1, message, len), "message {message}");
            assert!(id(b.qp.retire(&received)).is_some() && last < Some(message));
            (arrived, last) = (arrived + 1, Some(message));
            b.qp.post_recv(&[b.sge(0, 20_000)], 0).expect("room");
        }
    }
    assert!((100..300).contains(&arrived), "{arrived} of 300");
}

//! A short life of a small fabric, for interpreters: everything that happens on the way from bring-up to tear-down once.

use driver_mlx::{CompletionKind, Config, SendFlags, SendOp};
use harness::verbs::{Endpoint, Options, connect};
use harness::{Node, World, WorldConfig};
use hca_model::Profile;

const MEMORY: usize = 8192;
/// Small event queues, as most of an interpreter's time goes into filling them.
const CONFIG: Config = Config { log_eq_size: 7, log_async_eq_size: 7, ..Config::DEFAULT };
const LIMIT: u64 = 1_000_000_000;

#[test]
fn two_nodes_come_up_exchange_messages_and_go() {
    let world = World::new(&WorldConfig::new(7));
    let mut nodes =
        [0, 1].map(|i| Node::bring_up(&world, Profile::node(i), 1 << 20, &CONFIG).expect("comes up"));
    for node in &mut nodes {
        node.wait_active().expect("Active");
    }
    let mut ends = nodes
        .each_mut()
        .map(|node| Endpoint::new(&mut node.hca, MEMORY, 4, |config| config).expect("objects"));
    let ([a, b], [at, to]) = (&mut nodes, &mut ends);
    connect((a, at), (b, to), &Options::default()).expect("connects");

    // More messages than the rings have places.
    for number in 0..5_u64 {
        let bytes: Vec<u8> = (0..100).map(|at| (number * 7 + at) as u8).collect();
        at.memory.write(0, &bytes).expect("inside");
        to.qp.post_recv(&[to.sge(4096, 128)], number).expect("posts");
        let doorbell = at
            .qp
            .post_send(SendOp::Send, &[at.sge(0, bytes.len())], number, SendFlags::SIGNALED)
            .expect("posts");
        at.qp.ring(doorbell);
        for (end, node, kind) in
            [(&mut *at, &*a, CompletionKind::Send), (&mut *to, &*b, CompletionKind::Receive)]
        {
            let completion = end.wait(&node.platform, LIMIT);
            let retired = end.qp.retire(&completion).map(|done| done.wr_id().id);
            assert_eq!((completion.kind(), retired), (kind, Some(number)));
        }
        let mut arrived = [0; 100];
        to.memory.read(4096, &mut arrived).expect("inside");
        assert_eq!(arrived[..], bytes);
    }

    for (node, end) in nodes.into_iter().zip(ends) {
        let mut node = node;
        end.destroy(&mut node.hca).expect("destroyed");
        node.hca.tear_down().expect("torn down");
        assert_eq!(world.census(node.index).total(), 0);
    }
}

//! The data path of the driver and the emulated HCA: reliable connections without a connection manager.

use demo::Stream;
use driver_mlx::{CompletionKind, Config, Cqe, Mtu, PostError, QpState, RKey, SendFlags, SendOp};
use harness::verbs::{Endpoint, Options, connect, wrong_key};
use harness::{Node, World, WorldConfig};
use hca_model::Profile;
use mlx5_prm::status::CqeSyndrome;
use rdma_fabric::faults::Faults;
use std::rc::Rc;

const MEMORY: usize = 1 << 20;
const SECOND: u64 = 1_000_000_000;

/// Two nodes with a connection between them.
struct Pair {
    world: Rc<World>,
    nodes: [Node; 2],
    ends: [Endpoint; 2],
}

impl Pair {
    fn new(seed: u64, faults: Faults, options: &Options) -> Self {
        let mut config = WorldConfig::new(seed);
        config.fabric.faults = faults;
        let world = World::new(&config);
        let mut nodes = [0, 1]
            .map(|i| Node::bring_up(&world, Profile::node(i), 8 << 20, &Config::DEFAULT).expect("comes up"));
        for node in &mut nodes {
            node.wait_active().expect("Active");
        }
        let mut ends = nodes.each_mut().map(|node| {
            Endpoint::new(&mut node.hca, MEMORY, 32, |config| driver_mlx::QpConfig {
                max_inline: 64,
                ..config
            })
            .expect("objects")
        });
        let [a, b] = &mut nodes;
        let [at, to] = &mut ends;
        connect((a, at), (b, to), options).expect("connects");
        Self { world, nodes, ends }
    }

    fn clean(seed: u64) -> Self {
        Self::new(seed, Faults::default(), &Options::default())
    }

    fn wait(&mut self, side: usize) -> Cqe<'static> {
        self.ends[side].wait(&self.nodes[side].platform, 100 * SECOND)
    }

    fn send(&mut self, side: usize, op: SendOp, offset: usize, len: usize, cookie: u64) {
        let end = &mut self.ends[side];
        let sge = end.sge(offset, len);
        let doorbell = end.qp.post_send(op, &[sge], cookie, SendFlags::SIGNALED).expect("posts");
        end.qp.ring(doorbell);
    }

    fn receive(&mut self, side: usize, offset: usize, len: usize, cookie: u64) {
        let end = &mut self.ends[side];
        let sge = end.sge(offset, len);
        end.qp.post_recv(&[sge], cookie).expect("posts");
    }

    /// The next completion is a success of this kind and for this cookie; gives its bytes.
    fn expect(&mut self, side: usize, kind: CompletionKind, cookie: u64) -> Cqe<'static> {
        let completion = self.wait(side);
        assert_eq!(completion.kind(), kind, "{completion:?}");
        assert_eq!(self.ends[side].qp.retire(&completion).map(|done| done.wr_id().id), Some(cookie));
        completion
    }

    fn expect_error(&mut self, side: usize, syndrome: CqeSyndrome, cookie: u64) {
        let completion = self.wait(side);
        assert_eq!(completion.error().map(|error| error.syndrome), Some(syndrome), "{completion:?}");
        assert_eq!(self.ends[side].qp.retire(&completion).map(|done| done.wr_id().id), Some(cookie));
    }

    fn fill(&self, side: usize, sequence: u64, offset: usize, len: usize) {
        let mut bytes = vec![0; len];
        stream(side).payload(sequence).fill(0, &mut bytes);
        self.ends[side].memory.write(offset, &bytes).expect("inside");
    }

    /// `len` bytes at `offset` of `side` are message `sequence` of the other side.
    fn check(&self, side: usize, sequence: u64, offset: usize, len: usize) {
        let mut bytes = vec![0; len];
        self.ends[side].memory.read(offset, &mut bytes).expect("inside");
        assert_eq!(
            stream(1 - side).payload(sequence).mismatch(0, &bytes),
            None,
            "message {sequence} of {len} bytes"
        );
    }

    /// Tears everything down, and checks that nothing stays behind and nothing was refused.
    fn finish(self) {
        let Self { world, nodes, ends } = self;
        for ((i, mut node), end) in nodes.into_iter().enumerate().zip(ends) {
            assert_eq!(end.qp.spurious_completions(), 0);
            assert_eq!(end.cq.errors(), 0);
            end.destroy(&mut node.hca).expect("destroys");
            node.hca.tear_down().expect("goes down");
            assert_eq!(world.census(i).total(), 0, "left behind: {}", world.census(i));
            assert_eq!(world.refusals(i), [""; 0]);
        }
    }
}

fn stream(side: usize) -> Stream {
    Stream { sender: side as u8 + 1, operation: 9, seed: 0x5eed }
}

#[test]
fn messages_of_all_lengths_arrive_whole() {
    let mut pair = Pair::clean(1);
    let lengths = [0, 1, 3, 4, 5, 4095, 4096, 4097, 8192, 12_289, 65_536, 200_000];
    for (n, len) in lengths.into_iter().enumerate() {
        let n = n as u64;
        let (from, to) = (n as usize % 2, 1 - n as usize % 2);
        pair.fill(from, n, 64, len);
        pair.receive(to, 300_000, 250_000, 1000 + n);
        pair.send(from, SendOp::Send, 64, len, n);
        let arrived = pair.expect(to, CompletionKind::Receive, 1000 + n);
        assert_eq!(arrived.byte_len() as usize, len);
        pair.check(to, n, 300_000, len);
        pair.expect(from, CompletionKind::Send, n);
    }
    pair.finish();
}

#[test]
fn writes_and_reads_reach_the_right_bytes_and_no_others() {
    let mut pair = Pair::clean(2);
    let lengths = [1, 7, 4095, 4096, 4097, 100_000];
    for (n, len) in lengths.into_iter().enumerate() {
        let n = n as u64;
        let rkey = pair.ends[1].key.rkey();
        pair.ends[1].memory.fill(0, MEMORY, 0xaa).expect("inside");
        pair.fill(0, n, 0, len);
        let raddr = pair.ends[1].address(4097);
        pair.send(0, SendOp::Write { raddr, rkey }, 0, len, n);
        pair.expect(0, CompletionKind::Send, n);
        pair.check(1, n, 4097, len);
        let mut around = vec![0; MEMORY];
        pair.ends[1].memory.read(0, &mut around).expect("inside");
        assert!(around[..4097].iter().chain(&around[4097 + len..]).all(|&byte| byte == 0xaa));

        pair.fill(1, 100 + n, 8192, len);
        let raddr = pair.ends[1].address(8192);
        pair.send(0, SendOp::Read { raddr, rkey }, 500_001, len, 100 + n);
        pair.expect(0, CompletionKind::Send, 100 + n);
        pair.check(0, 100 + n, 500_001, len);
    }
    assert!(pair.ends[1].cq.poll(|_| ()).is_ok_and(|none| none.is_none()), "the target hears nothing");
    pair.finish();
}

#[test]
fn immediate_data_inline_data_and_pieces() {
    let mut pair = Pair::clean(3);
    pair.receive(1, 0, 4096, 1);
    pair.receive(1, 4096, 4096, 2);
    pair.receive(1, 8192, 4096, 3);
    pair.send(0, SendOp::SendImm(0x0102_0304), 0, 100, 10);
    let arrived = pair.expect(1, CompletionKind::ReceiveImm, 1);
    assert_eq!((arrived.imm(), arrived.byte_len()), (0x0102_0304, 100));

    let (raddr, rkey) = (pair.ends[1].address(20_000), pair.ends[1].key.rkey());
    pair.fill(0, 5, 0, 5000);
    pair.send(0, SendOp::WriteImm { raddr, rkey, imm: 77 }, 0, 5000, 11);
    let arrived = pair.expect(1, CompletionKind::ReceiveWriteImm, 2);
    assert_eq!((arrived.imm(), arrived.byte_len()), (77, 5000));
    pair.check(1, 5, 20_000, 5000);

    let text = b"inline data of thirty-odd bytes..";
    let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
    let doorbell = pair.ends[0].qp.post_inline(SendOp::Send, text, 12, flags).expect("posts");
    pair.ends[0].qp.ring(doorbell);
    let arrived = pair.expect(1, CompletionKind::Receive, 3);
    assert_eq!(arrived.byte_len() as usize, text.len());
    assert!(arrived.solicited());
    let mut bytes = vec![0; text.len()];
    pair.ends[1].memory.read(8192, &mut bytes).expect("inside");
    assert_eq!(bytes, text);

    // Three pieces gathered, three scattered, cut at other places.
    pair.fill(0, 6, 30_000, 9000);
    let pieces = [(30_000, 1), (30_001, 5000), (35_001, 3999)];
    let gather = pieces.map(|(offset, len)| pair.ends[0].sge(offset, len));
    let scatter = [(50_000, 4096), (54_096, 4900), (58_996, 4)].map(|(o, len)| pair.ends[1].sge(o, len));
    pair.ends[1].qp.post_recv(&scatter, 4).expect("posts");
    let doorbell = pair.ends[0].qp.post_send(SendOp::Send, &gather, 13, SendFlags::SIGNALED).expect("posts");
    pair.ends[0].qp.ring(doorbell);
    pair.expect(1, CompletionKind::Receive, 4);
    pair.check(1, 6, 50_000, 9000);
    for cookie in 10..=13 {
        pair.expect(0, CompletionKind::Send, cookie);
    }
    pair.finish();
}

#[test]
fn full_rings_wrap_and_unsignalled_requests_are_freed_by_later_ones() {
    let mut pair = Pair::clean(4);
    let mut sequence = 0u64;
    for _ in 0..20 {
        let mut posted = 0u64;
        // Until the queue says that it is full; only the last one is signalled.
        loop {
            let end = &mut pair.ends[0];
            let (sge, raddr) = (end.sge(0, 8), pair.ends[1].address(sequence as usize % 1000 * 8));
            let op = SendOp::Write { raddr, rkey: pair.ends[1].key.rkey() };
            match pair.ends[0].qp.post_send(op, &[sge], sequence, SendFlags::empty()) {
                Ok(_) => (posted, sequence) = (posted + 1, sequence + 1),
                Err(error) => {
                    assert_eq!(error, PostError::Full);
                    break;
                }
            }
            if posted == 31 {
                break;
            }
        }
        assert!(posted >= 31, "{posted} fit");
        let qp = &mut pair.ends[0].qp;
        let doorbell =
            qp.post_send(SendOp::Nop, &[], 1 << 40 | sequence, SendFlags::SIGNALED).expect("one more");
        qp.ring(doorbell);
        pair.expect(0, CompletionKind::Send, 1 << 40 | sequence);
        assert_eq!(pair.ends[0].qp.send_outstanding(), 0, "all slots are free again");
    }
    pair.finish();
}

#[test]
fn faults_of_the_fabric_stay_invisible() {
    let faults: Faults = "loss=2%,dup=2%,reorder=2%,corrupt=1%".parse().expect("a fault list");
    for seed in 5..8 {
        // A small MTU makes many packets.
        let options = Options { mtu: Mtu::B1024, ack_timeout: 10, ..Options::default() };
        let mut pair = Pair::new(seed, faults, &options);
        let before = pair.world.fabric_counters();
        for n in 0..40u64 {
            let len = 1 + (n as usize * 7919) % 60_000;
            pair.fill(0, n, 0, len);
            pair.receive(1, 400_000, 65_536, n);
            pair.send(0, SendOp::Send, 0, len, n);
            pair.expect(1, CompletionKind::Receive, n);
            pair.check(1, n, 400_000, len);
            pair.expect(0, CompletionKind::Send, n);

            pair.fill(1, 1000 + n, 100_000, len);
            let (raddr, rkey) = (pair.ends[1].address(100_000), pair.ends[1].key.rkey());
            pair.send(0, SendOp::Read { raddr, rkey }, 200_000, len, 1000 + n);
            pair.expect(0, CompletionKind::Send, 1000 + n);
            pair.check(0, 1000 + n, 200_000, len);
        }
        let after = pair.world.fabric_counters();
        assert!(after.dropped > before.dropped, "seed {seed} lost something");
        assert!(after.duplicated > before.duplicated, "seed {seed} duplicated something");
        assert!(after.reordered > before.reordered, "seed {seed} reordered something");
        assert!(after.corrupted > before.corrupted, "seed {seed} corrupted something");
        pair.finish();
    }
}

#[test]
fn a_receiver_that_is_not_ready_is_waited_for() {
    let mut pair = Pair::clean(9);
    pair.fill(0, 1, 0, 3000);
    pair.send(0, SendOp::Send, 0, 3000, 1);
    pair.world.pass(SECOND / 100);
    assert!(pair.ends[0].cq.poll(|_| ()).is_ok_and(|none| none.is_none()), "nobody has received it");
    pair.receive(1, 0, 4096, 2);
    pair.expect(1, CompletionKind::Receive, 2);
    pair.check(1, 1, 0, 3000);
    pair.expect(0, CompletionKind::Send, 1);
    pair.finish();

    let mut pair = Pair::new(9, Faults::default(), &Options { rnr_retry: 2, ..Options::default() });
    pair.send(0, SendOp::Send, 0, 10, 1);
    pair.send(0, SendOp::Send, 0, 10, 2);
    pair.expect_error(0, CqeSyndrome::RNR_RETRY_EXC_ERR, 1);
    pair.expect_error(0, CqeSyndrome::WR_FLUSH_ERR, 2);
    let state = pair.nodes[0].hca.query_qp_state(&pair.ends[0].qp).expect("answers");
    assert_eq!(state, QpState::Error);
    pair.finish();
}

#[test]
fn errors_are_named_and_both_queues_are_flushed() {
    // A remote key that does not exist.
    let mut pair = Pair::clean(10);
    pair.receive(0, 0, 64, 50);
    let op = SendOp::Write { raddr: pair.ends[1].address(0), rkey: RKey::new(0xdead_be00) };
    pair.send(0, op, 0, 64, 1);
    pair.send(0, SendOp::Send, 0, 64, 2);
    pair.expect_error(0, CqeSyndrome::REMOTE_ACCESS_ERR, 1);
    let mut flushed: Vec<u64> = (0..2)
        .map(|_| {
            let completion = pair.wait(0);
            assert_eq!(completion.error().map(|e| e.syndrome), Some(CqeSyndrome::WR_FLUSH_ERR));
            pair.ends[0].qp.retire(&completion).expect("its wr_id").wr_id().id
        })
        .collect();
    flushed.sort_unstable();
    assert_eq!(flushed, [2, 50]);

    // One byte beyond the peer's memory.
    let mut pair = Pair::clean(11);
    let op = SendOp::Read { raddr: pair.ends[1].address(MEMORY - 63), rkey: pair.ends[1].key.rkey() };
    pair.send(0, op, 0, 64, 1);
    pair.expect_error(0, CqeSyndrome::REMOTE_ACCESS_ERR, 1);

    // A local key that does not exist.
    let mut pair = Pair::clean(12);
    let mut sge = pair.ends[0].sge(0, 64);
    sge.lkey = wrong_key();
    let doorbell = pair.ends[0].qp.post_send(SendOp::Send, &[sge], 1, SendFlags::SIGNALED).expect("posts");
    pair.ends[0].qp.ring(doorbell);
    pair.expect_error(0, CqeSyndrome::LOCAL_PROT_ERR, 1);

    // A receive that is too short: both sides learn it.
    let mut pair = Pair::clean(13);
    pair.receive(1, 0, 63, 7);
    pair.send(0, SendOp::Send, 0, 64, 1);
    pair.expect_error(1, CqeSyndrome::LOCAL_LENGTH_ERR, 7);
    pair.expect_error(0, CqeSyndrome::REMOTE_INVAL_REQ_ERR, 1);
}

#[test]
fn a_killed_peer_is_noticed_within_the_retries() {
    let options = Options { ack_timeout: 14, retry_count: 3, ..Options::default() };
    let mut pair = Pair::new(14, Faults::default(), &options);
    pair.world.kill(1);
    let began = pair.world.now();
    pair.send(0, SendOp::Send, 0, 10_000, 1);
    pair.expect_error(0, CqeSyndrome::TRANSPORT_RETRY_EXC_ERR, 1);
    // 4.096 us times 2^14 is 67 ms; hardware may take up to four times as long for each of the four tries.
    let waited = pair.world.now() - began;
    assert!((200_000_000..1_200_000_000).contains(&waited), "{} ms", waited / 1_000_000);
}

#[test]
fn completions_raise_interrupts_only_when_armed() {
    let mut pair = Pair::clean(15);
    pair.receive(1, 0, 64, 1);
    pair.receive(1, 64, 64, 2);
    pair.send(0, SendOp::Send, 0, 64, 1);
    pair.expect(1, CompletionKind::Receive, 1);
    let quiet = pair.world.interrupts(1);
    pair.ends[1].cq.arm(false);
    pair.nodes[1].hca.arm_events();
    pair.world.pass(1_000_000);
    assert_eq!(pair.world.interrupts(1), quiet);
    pair.send(0, SendOp::Send, 0, 64, 2);
    pair.world.pass(1_000_000);
    assert_eq!(pair.world.interrupts(1).iter().sum::<u64>(), quiet.iter().sum::<u64>() + 1);
    let mut named = Vec::new();
    assert_eq!(pair.nodes[1].hca.poll_completions(|cqn| named.push(cqn)), 1);
    assert_eq!(named, [pair.ends[1].cq.number()]);
    pair.ends[1].cq.notified();
    pair.expect(1, CompletionKind::Receive, 2);
    for cookie in [1, 2] {
        pair.expect(0, CompletionKind::Send, cookie);
    }
    pair.finish();
}

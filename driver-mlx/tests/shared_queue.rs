//! Shared receive queues between two emulated HCAs: who gets which receive, in which order they come back, and when they run out.

use crate::common;

use common::node::{ALL, Node, connect_one, filled, id, path, sound, world};
use common::{ModelBar, World};
use driver_mlx::{
    AsyncEvent, CompletionKind, Error, InitParams, Instant, Mtu, PostError, Psn, Qp, QpConfig, QpState,
    RtrParams, RtsParams, SendFlags, SendOp, Srq, SrqConfig, SrqNumber, SrqState,
};
use mlx5_prm::status::{CmdStatus, CqeSyndrome};
use rdma_fabric::infiniband::FabricConfig;
use std::rc::Rc;

/// Senders, each with a QP of its own to one QP of the other side.
const PAIRS: usize = 5;

struct Bed {
    world: Rc<World>,
    near: Node,
    far: Node,
    senders: Vec<Qp<ModelBar>>,
    receivers: Vec<Qp<ModelBar>>,
    srq: Srq,
}

impl Bed {
    /// Five connections from `near` to `far`, whose side takes from one shared queue of `receives`.
    fn new(receives: u32, rnr_retry: u8) -> Self {
        let world = world(FabricConfig::default());
        let mut near = Node::new(&world, 0, |_| ());
        let mut far = Node::new(&world, 1, |_| ());
        let config = SrqConfig { pd: far.pd, max_wr: receives, max_sge: 2 };
        let srq = far.hca.create_srq(&config).expect("a shared queue");
        let make = |node: &mut Node, srq: Option<SrqNumber>| -> Vec<Qp<ModelBar>> {
            (0..PAIRS)
                .map(|index| {
                    let user_index = 0x500 + index as u32;
                    let config = QpConfig { srq, user_index, ..QpConfig::rc(node.pd, node.cq.number()) };
                    let mut qp = node.hca.create_qp(&config).expect("a QP");
                    let init = InitParams { port: 1, pkey_index: 0, access: ALL };
                    node.hca.modify_to_init(&mut qp, &init).expect("INIT");
                    qp
                })
                .collect()
        };
        let mut senders = make(&mut near, None);
        let mut receivers = make(&mut far, Some(srq.number()));
        let connect = |node: &mut Node, qps: &mut [Qp<ModelBar>], peer: &mut Node, peers: &[Qp<ModelBar>]| {
            for (qp, other) in qps.iter_mut().zip(peers) {
                let rtr = RtrParams {
                    path: path(&mut peer.hca),
                    mtu: Mtu::B1024,
                    remote_qpn: other.number(),
                    rq_psn: Psn::new(7),
                    responder_resources: 1,
                    min_rnr_timer: 12,
                };
                let rts = RtsParams {
                    sq_psn: Psn::new(7),
                    ack_timeout: 14,
                    retry_count: 7,
                    rnr_retry,
                    initiator_depth: 1,
                };
                node.hca.modify_to_rtr(qp, &rtr).expect("RTR");
                node.hca.modify_to_rts(qp, &rts).expect("RTS");
            }
        };
        connect(&mut near, &mut senders, &mut far, &receivers);
        connect(&mut far, &mut receivers, &mut near, &senders);
        Self { world, near, far, senders, receivers, srq }
    }

    /// A receive of 3000 bytes whose cookie is its place.
    fn post(&mut self, slot: u64) {
        let at = slot as usize * 4096;
        let pieces = [self.far.sge(at, 1000), self.far.sge(at + 1000, 2000)];
        self.srq.post_recv(&pieces, slot).expect("room");
    }

    fn send(&mut self, pair: usize, message: u32, len: usize) {
        let at = pair * 4096;
        self.near.put(at, &filled(pair as u8, message, len));
        let sge = self.near.sge(at, len);
        let doorbell = self.senders[pair]
            .post_send(SendOp::SendImm(message), &[sge], u64::from(message), SendFlags::SIGNALED)
            .expect("room");
        self.senders[pair].ring(doorbell);
    }

    /// What arrives next: pair, message, and the slot that it went to, whose bytes are checked and which is free again.
    fn receive(&mut self, len: impl Fn(u32) -> usize) -> (usize, u32, u64) {
        let completion = self.far.completion(&self.world);
        assert_eq!(completion.kind(), CompletionKind::ReceiveImm, "{completion:?}");
        let pair = (completion.user_index() - 0x500) as usize;
        assert_eq!(completion.qpn(), self.receivers[pair].number());
        let message = completion.imm();
        assert_eq!(self.srq.peek(&completion), self.srq.peek(&completion), "looking changes nothing");
        let slot = id(self.srq.retire(&completion)).expect("posted");
        assert_eq!(id(self.srq.retire(&completion)), None, "only once");
        assert_eq!(completion.byte_len() as usize, len(message));
        let data = self.far.get(slot as usize * 4096, len(message));
        assert!(data == filled(pair as u8, message, len(message)), "message {message} of pair {pair}");
        (pair, message, slot)
    }

    fn sent(&mut self, count: usize) {
        for _ in 0..count {
            let completion = self.near.completion(&self.world);
            assert_eq!(completion.kind(), CompletionKind::Send, "{completion:?}");
            let pair = (completion.user_index() - 0x500) as usize;
            assert!(id(self.senders[pair].retire(&completion)).is_some());
        }
    }

    fn events(&mut self) -> Vec<AsyncEvent> {
        self.world.settle();
        let _ = self.far.hca.poll(Instant::from_nanos(self.world.now()));
        std::iter::from_fn(|| self.far.hca.next_event()).collect()
    }

    fn end(mut self) {
        for qp in self.senders.drain(..) {
            self.near.hca.destroy_qp(qp).expect("destroyed");
        }
        for qp in self.receivers.drain(..) {
            self.far.hca.destroy_qp(qp).expect("destroyed");
        }
        self.far.hca.destroy_srq(self.srq).expect("destroyed");
        self.near.end();
        self.far.end();
    }
}

fn length(message: u32) -> usize {
    message as usize * 397 % 3001
}

#[test]
fn many_queue_pairs_share_one_queue_and_free_it_in_any_order() {
    let mut bed = Bed::new(16, 7);
    assert!(bed.srq.capacity() >= 16);
    for slot in 0..16 {
        bed.post(slot);
    }
    bed.srq.ring();
    let mut next = [0u32; PAIRS];
    let mut seen = [0u32; PAIRS];
    for round in 0..60usize {
        // As many as there are receives, unevenly spread.
        let batch = 1 + round % 16;
        for n in 0..batch {
            let pair = (round + n * n) % PAIRS;
            let message = (pair as u32) << 16 | next[pair];
            // A sender's buffer is reused: one message of a pair at a time.
            if n > 0 {
                bed.sent(1);
            }
            bed.send(pair, message, length(message));
            next[pair] += 1;
        }
        bed.sent(1);
        let mut free = vec![];
        for _ in 0..batch {
            let (pair, message, slot) = bed.receive(length);
            assert_eq!(message, (pair as u32) << 16 | seen[pair], "in order for each pair");
            seen[pair] += 1;
            free.push(slot);
        }
        assert_eq!(usize::from(bed.srq.outstanding()), 16 - batch);
        // Posted again in another order than they came.
        if round % 2 == 0 {
            free.reverse();
        }
        for slot in free {
            bed.post(slot);
        }
        bed.srq.ring();
    }
    assert_eq!(bed.srq.outstanding(), 16);
    sound(&bed.world);
    bed.end();
}

#[test]
fn a_full_queue_says_so_and_an_empty_one_makes_senders_wait() {
    let mut bed = Bed::new(4, 7);
    let capacity = u64::from(bed.srq.capacity());
    for slot in 0..capacity {
        bed.post(slot);
    }
    let piece = bed.far.sge(0, 1);
    assert_eq!(bed.srq.post_recv(&[piece], 99), Err(PostError::Full));
    assert_eq!(bed.srq.post_recv(&[piece; 3], 99), Err(PostError::TooManySges));
    bed.srq.ring();
    for message in 0..capacity as u32 + 2 {
        bed.send(message as usize % PAIRS, message, 10);
        if u64::from(message) < capacity {
            bed.sent(1);
        }
    }
    // Two more than there are receives: their senders wait until there is one each.
    bed.world.pass(50_000_000);
    for _ in 0..capacity {
        bed.receive(|_| 10);
    }
    assert!(matches!(bed.far.cq.poll(|_| ()), Ok(None)), "nothing to receive into");
    assert!(matches!(bed.near.cq.poll(|_| ()), Ok(None)), "nothing was acknowledged");
    bed.post(0);
    bed.post(1);
    bed.srq.ring();
    bed.receive(|_| 10);
    bed.receive(|_| 10);
    bed.sent(2);
    bed.end();
}

#[test]
fn an_exhausted_queue_ends_senders_that_do_not_wait() {
    let mut bed = Bed::new(4, 0);
    bed.send(2, 1, 10);
    let completion = bed.near.completion(&bed.world);
    assert_eq!(completion.error().map(|e| e.syndrome), Some(CqeSyndrome::RNR_RETRY_EXC_ERR));
    assert_eq!(id(bed.senders[2].retire(&completion)), Some(1));
    bed.end();
}

#[test]
fn the_limit_is_told_once_for_each_arming() {
    let mut bed = Bed::new(8, 7);
    for slot in 0..8 {
        bed.post(slot);
    }
    bed.srq.ring();
    bed.events();
    let number = bed.srq.number();
    bed.far.hca.arm_srq(&bed.srq, 6).expect("armed");
    assert_eq!(bed.far.hca.query_srq(&bed.srq), Ok(SrqState { failed: false, limit: 6 }));
    for message in 0..2 {
        bed.send(0, message, 10);
        bed.sent(1);
    }
    assert!(!bed.events().contains(&AsyncEvent::SrqLimit(number)), "six are left");
    bed.send(1, 2, 10);
    bed.sent(1);
    assert!(bed.events().contains(&AsyncEvent::SrqLimit(number)), "five are left");
    assert_eq!(bed.far.hca.query_srq(&bed.srq), Ok(SrqState { failed: false, limit: 0 }));
    bed.send(1, 3, 10);
    bed.sent(1);
    assert!(!bed.events().contains(&AsyncEvent::SrqLimit(number)), "not armed any more");
    for _ in 0..4 {
        bed.receive(|_| 10);
    }
    let too_many = bed.far.hca.arm_srq(&bed.srq, bed.srq.capacity() + 1);
    assert!(matches!(too_many, Err(Error::Limit { what: "wq.lwm", .. })), "{too_many:?}");
    bed.end();
}

#[test]
fn a_failed_queue_pair_says_when_it_takes_no_more() {
    let mut bed = Bed::new(8, 7);
    for slot in 0..8 {
        bed.post(slot);
    }
    bed.srq.ring();
    bed.events();
    bed.far.hca.modify_to_error(&mut bed.receivers[3]).expect("ERROR");
    let last = AsyncEvent::QpLastWqe(bed.receivers[3].number());
    assert!(bed.events().contains(&last));
    assert!(matches!(bed.far.cq.poll(|_| ()), Ok(None)), "what it had not taken stays in the shared queue");
    assert_eq!(bed.srq.outstanding(), 8);
    for pair in [0, 4] {
        bed.send(pair, 5, 100);
        bed.sent(1);
        assert_eq!(bed.receive(|_| 100).0, pair, "the others go on");
    }
    assert_eq!(bed.far.hca.query_qp_state(&bed.receivers[3]), Ok(QpState::Error));
    bed.end();
}

#[test]
fn what_cannot_be_is_refused() {
    let world = world(FabricConfig::default());
    let mut a = Node::new(&world, 0, |_| ());
    let mut b = Node::new(&world, 1, |_| ());
    connect_one(&mut a, &mut b, 0);
    let refused = |result: Result<Srq, Error>, name: &str| {
        assert!(matches!(result, Err(Error::Limit { what, .. }) if what == name), "{result:?}");
    };
    refused(a.hca.create_srq(&SrqConfig { pd: a.pd, max_wr: 8, max_sge: 33 }), "max_wqe_sz_rq");
    refused(a.hca.create_srq(&SrqConfig { pd: a.pd, max_wr: 1 << 16, max_sge: 1 }), "log_max_srq_sz");
    let gone = a.hca.alloc_pd().expect("a PD");
    a.hca.dealloc_pd(gone).expect("ended");
    let foreign = SrqConfig { pd: gone, max_wr: 8, max_sge: 1 };
    let free = a.hca.free_bytes();
    assert!(matches!(a.hca.create_srq(&foreign), Err(Error::Command(_))));
    assert_eq!(a.hca.free_bytes(), free, "nothing is lost by a refusal");
    let srq = a.hca.create_srq(&SrqConfig { pd: a.pd, max_wr: 8, max_sge: 1 }).expect("a shared queue");
    let config = QpConfig { srq: Some(srq.number()), ..QpConfig::rc(a.pd, a.cq.number()) };
    let mut qp = a.hca.create_qp(&config).expect("a QP");
    let piece = a.sge(0, 1);
    assert_eq!(qp.post_recv(&[piece], 0), Err(PostError::WrongService), "it has no queue of its own");
    // A queue in use cannot be destroyed; its memory is then kept, as the device may still read it.
    let leaked = a.hca.counters().leaked_bytes;
    match a.hca.destroy_srq(srq) {
        Err(Error::Command(error)) => assert_eq!(error.status, CmdStatus::BAD_RES_STATE),
        other => panic!("{other:?}"),
    }
    assert!(a.hca.counters().leaked_bytes > leaked);
    a.hca.destroy_qp(qp).expect("destroyed");
}

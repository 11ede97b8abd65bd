//! A node with one QP, and what connects two of them.

use super::{Driver, ModelBar, World};
use driver_mlx::{
    Access, Base, Completion, CompletionKind, Cq, CqConfig, Cqe, DmaBuffer, InitParams, MemoryRegion, Mtu,
    Path, Pd, Psn, Qp, QpConfig, RKey, RtrParams, RtsParams, ServiceLevel, Sge,
};
use hca_model::Profile;
use ib_types::Payload;
use rdma_fabric::infiniband::FabricConfig;
use std::rc::Rc;

/// A node with one QP.
pub struct Node {
    pub hca: Driver,
    pub pd: Pd,
    pub cq: Cq<ModelBar>,
    pub qp: Qp<ModelBar>,
    pub memory: DmaBuffer,
    pub key: MemoryRegion,
}

/// Bytes of a node's registered memory.
pub const MEMORY: usize = 1 << 20;
/// Every right.
pub const ALL: Access = Access::all();

/// The `wr_id` of what was retired.
pub fn id(retired: Option<Completion>) -> Option<u64> {
    retired.map(|completion| completion.wr_id().id)
}

/// The `len` bytes of message `message` of `sender`.
pub fn filled(sender: u8, message: u32, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Payload::new(0, sender.into(), message.into()).fill(0, &mut bytes);
    bytes
}

impl Node {
    pub fn new(world: &Rc<World>, index: usize, change: impl FnOnce(&mut QpConfig)) -> Self {
        Self::on(world.ready(index), index, change)
    }

    /// The same with an HCA that is ready.
    pub fn on(mut hca: Driver, index: usize, change: impl FnOnce(&mut QpConfig)) -> Self {
        let pd = hca.alloc_pd().expect("a PD");
        let cq = hca.create_cq(&CqConfig { entries: 256, eq: 0 }).expect("a CQ");
        let mut config =
            QpConfig { user_index: 0x100 + index as u32, max_inline: 100, ..QpConfig::rc(pd, cq.number()) };
        change(&mut config);
        let qp = hca.create_qp(&config).expect("a QP");
        let memory = hca.alloc(MEMORY, 4096).expect("memory");
        let key = hca.register(pd, &memory, ALL, Base::Virtual).expect("a key");
        Self { hca, pd, cq, qp, memory, key }
    }

    pub fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge { address: self.memory.va() as u64 + offset as u64, length: len as u32, lkey: self.key.lkey() }
    }

    pub fn put(&self, offset: usize, data: &[u8]) {
        self.memory.write(offset, data).expect("inside");
    }

    pub fn get(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.memory.read(offset, &mut data).expect("inside");
        data
    }

    pub fn remote(&self, offset: usize) -> (u64, RKey) {
        (self.key.address() + offset as u64, self.key.rkey())
    }

    /// The next completion, which must come.
    pub fn completion(&mut self, world: &Rc<World>) -> Cqe<'static> {
        // 4 s: an acknowledgement time-out takes 268 ms at least, and there are eight.
        for _ in 0..40_000 {
            if let Some(completion) = self.cq.poll(kept).expect("sound") {
                return completion;
            }
            world.pass(100_000);
        }
        panic!("no completion; complaints: {:?} {:?}", world.complaints(0), world.complaints(1));
    }

    /// The next completion, which must be of this kind, and its cookie.
    pub fn expect(&mut self, world: &Rc<World>, kind: CompletionKind) -> (Cqe<'static>, u64) {
        let completion = self.completion(world);
        assert_eq!(completion.kind(), kind, "{completion:?}");
        let retired = self.qp.retire(&completion).expect("of ours");
        (completion, retired.wr_id().id)
    }

    pub fn init(&mut self) {
        let params = InitParams { port: 1, pkey_index: 0, access: ALL };
        self.hca.modify_to_init(&mut self.qp, &params).expect("INIT");
    }

    /// Makes everything anew over the same memory, after a recovery.
    pub fn renew(&mut self) {
        self.renew_with(|_| ());
    }

    /// The same with a QP of another kind.
    pub fn renew_with(&mut self, change: impl FnOnce(&mut QpConfig)) {
        self.pd = self.hca.alloc_pd().expect("a PD");
        let cq = self.hca.create_cq(&CqConfig { entries: 256, eq: 0 }).expect("a CQ");
        let mut config = QpConfig::rc(self.pd, cq.number());
        change(&mut config);
        let qp = self.hca.create_qp(&config).expect("a QP");
        let key = self.hca.register(self.pd, &self.memory, ALL, Base::Virtual).expect("a key");
        self.hca.destroy_qp(std::mem::replace(&mut self.qp, qp)).expect("given back");
        self.hca.destroy_cq(std::mem::replace(&mut self.cq, cq)).expect("given back");
        self.hca.deregister(std::mem::replace(&mut self.key, key)).expect("given back");
    }

    pub fn end(mut self) {
        self.hca.destroy_qp(self.qp).expect("destroyed");
        self.hca.destroy_cq(self.cq).expect("destroyed");
        self.hca.deregister(self.key).expect("deregistered");
        self.hca.dealloc_pd(self.pd).expect("ended");
        self.hca.free(self.memory).expect("freed");
        self.hca.tear_down().expect("torn down");
    }
}

/// A completion that stays when its place in the queue is used again.
pub fn kept(cqe: &Cqe<'_>) -> Cqe<'static> {
    Box::leak(Box::new(cqe.copy())).cqe()
}

pub fn path(to: &mut Driver) -> Path {
    let dlid = to.port().expect("a port").lid();
    Path::InfiniBand { dlid, sl: ServiceLevel::default(), src_path_bits: 0, static_rate: 0, grh: None }
}

pub fn world(config: FabricConfig) -> Rc<World> {
    World::new([Profile::node(0), Profile::node(1)], config)
}

pub fn connect_one(a: &mut Node, b: &mut Node, psn: u32) {
    connect_with(a, b, psn, ALL);
}

/// Connects `a`'s side, from RESET, with what `b` may then do.
pub fn connect_with(a: &mut Node, b: &mut Node, psn: u32, access: Access) {
    let params = InitParams { port: 1, pkey_index: 0, access };
    a.hca.modify_to_init(&mut a.qp, &params).expect("INIT");
    a.hca.modify_to_rtr(&mut a.qp, &towards(b, 1 - psn)).expect("RTR");
    a.hca.modify_to_rts(&mut a.qp, &from(psn)).expect("RTS");
}

/// Receiving from `peer`, which begins with `psn` as [`from`] counts.
pub fn towards(peer: &mut Node, psn: u32) -> RtrParams {
    RtrParams {
        path: path(&mut peer.hca),
        mtu: Mtu::B4096,
        remote_qpn: peer.qp.number(),
        rq_psn: Psn::new(0xff_fff0 + psn),
        responder_resources: 4,
        min_rnr_timer: 12,
    }
}

/// Sending from `psn` on, shortly before the numbers wrap.
pub fn from(psn: u32) -> RtsParams {
    RtsParams {
        sq_psn: Psn::new(0xff_fff0 + psn),
        ack_timeout: 14,
        retry_count: 7,
        rnr_retry: 7,
        initiator_depth: 4,
    }
}

pub fn connected(world: &Rc<World>, change: impl Fn(&mut QpConfig)) -> (Node, Node) {
    connect_both(Node::new(world, 0, &change), Node::new(world, 1, &change))
}

pub fn connect_both(mut a: Node, mut b: Node) -> (Node, Node) {
    connect_one(&mut a, &mut b, 0);
    connect_one(&mut b, &mut a, 1);
    (a, b)
}

pub fn sound(world: &Rc<World>) {
    for node in 0..2 {
        assert_eq!(world.complaints(node), [""; 0], "node {node}");
    }
}

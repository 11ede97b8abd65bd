//! Post and poll of the driver: some connections of one node with another.

use crate::OPERATIONS;
use crate::platform::{BenchBar, BenchPlatform};
use driver_mlx::{
    Access, Base, Config, Cq, CqConfig, Hca, HcaStorage, InitParams, LinkState, MemoryRegion, Mtu, Path,
    PostError, Psn, Qp, QpConfig, RtrParams, RtsParams, SendFlags, SendOp, ServiceLevel, Sge,
};
use harness::{World, WorldConfig};
use hca_model::Profile;

const LEN: usize = 64;
/// Blocks of 4 KiB of a node's memory: for a thousand queue pairs.
const BLOCKS: usize = 16384;

#[inline(never)]
fn measured_driver_post_write(
    qp: &mut Qp<BenchBar>,
    op: SendOp,
    sge: &Sge,
    cookie: u64,
) -> Result<(), PostError> {
    qp.post_send(op, std::slice::from_ref(sge), cookie, SendFlags::SIGNALED)?;
    qp.ring();
    Ok(())
}

/// The cookie of the next work request that is done, as a consumer of many queue pairs finds it.
#[inline(never)]
fn measured_driver_poll(cq: &mut Cq<BenchBar>, qps: &mut [Qp<BenchBar>]) -> Option<u64> {
    let Some(completion) = cq.poll_send() else { return poll_other(cq, qps) };
    qps.get_mut(completion.user_index() as usize)?.retire_send(&completion)
}

/// Receives and failures, which this program does not expect.
#[inline(never)]
fn poll_other(cq: &mut Cq<BenchBar>, qps: &mut [Qp<BenchBar>]) -> Option<u64> {
    let completion = cq.poll().expect("a valid completion")?;
    assert_eq!(completion.error(), None);
    qps.get_mut(completion.user_index() as usize)?.retire(&completion)
}

struct Node {
    hca: Hca<'static, BenchPlatform>,
    platform: BenchPlatform,
    cq: Cq<BenchBar>,
    qps: Vec<Qp<BenchBar>>,
    key: MemoryRegion,
    memory: driver_mlx::DmaBuffer,
}

impl Node {
    fn new(platform: BenchPlatform, region: driver_mlx::DmaRegion, handles: usize) -> Self {
        let storage = Box::leak(Box::new(HcaStorage::<BLOCKS>::new()));
        let mut hca =
            Hca::bring_up(platform.clone(), region, storage.parts(), &Config::DEFAULT).expect("comes up");
        while hca.port().expect("port").state != LinkState::Active {
            platform.settle();
        }
        let pd = hca.alloc_pd().expect("PD");
        let memory = hca.alloc(handles * LEN, 4096).expect("memory");
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let key = hca.register(pd, &memory, access, Base::Virtual).expect("key");
        let cq = hca.create_cq(&CqConfig { entries: 2 * handles as u32, eq: 0 }).expect("CQ");
        let qps = (0..handles)
            .map(|index| {
                let config =
                    QpConfig { user_index: index as u32, max_send_sge: 1, ..QpConfig::rc(pd, cq.number()) };
                let mut qp = hca.create_qp(&config).expect("QP");
                let init = InitParams { port: 1, pkey_index: 0, access: Access::REMOTE_WRITE };
                hca.modify_to_init(&mut qp, &init).expect("INIT");
                qp
            })
            .collect();
        Self { hca, platform, cq, qps, key, memory }
    }

    fn connect(&mut self, other: &mut Self) {
        let dlid = other.hca.port().expect("port").lid;
        for (qp, peer) in self.qps.iter_mut().zip(&other.qps) {
            let rtr = RtrParams {
                path: Path::InfiniBand {
                    dlid,
                    sl: ServiceLevel::default(),
                    src_path_bits: 0,
                    static_rate: 0,
                    grh: None,
                },
                mtu: Mtu::B4096,
                remote_qpn: peer.number(),
                rq_psn: Psn::new(0),
                responder_resources: 1,
                min_rnr_timer: 12,
            };
            let rts = RtsParams {
                sq_psn: Psn::new(0),
                ack_timeout: 14,
                retry_count: 7,
                rnr_retry: 7,
                initiator_depth: 1,
            };
            self.hca.modify_to_rtr(qp, &rtr).expect("RTR");
            self.hca.modify_to_rts(qp, &rts).expect("RTS");
        }
    }
}

/// Makes and checks the operations.
pub fn run(handles: usize) {
    let world = World::new(&WorldConfig::new(1));
    let attached = [0, 1].map(|i| world.attach(Profile::node(i), BLOCKS * 4096));
    let [mut near, mut far] =
        attached.map(|(platform, region)| Node::new(BenchPlatform::new(platform), region, handles));
    near.connect(&mut far);
    far.connect(&mut near);

    let mut done = 0;
    while done < OPERATIONS {
        let batch = handles.min(OPERATIONS - done);
        for handle in 0..batch {
            let word = (done + handle) as u64;
            near.memory.store_be64(handle * LEN, word).expect("inside");
            let offset = (handle * LEN) as u64;
            let sge = Sge { address: near.key.address + offset, length: LEN as u32, lkey: near.key.lkey };
            let op = SendOp::Write { raddr: far.key.address + offset, rkey: far.key.rkey };
            measured_driver_post_write(&mut near.qps[handle], op, &sge, word).expect("posts");
            near.platform.ring();
        }
        near.platform.settle();
        let mut seen = vec![false; handles];
        for _ in 0..batch {
            let cookie = measured_driver_poll(&mut near.cq, &mut near.qps).expect("a completion");
            let handle = (cookie as usize).checked_sub(done).expect("one of this batch");
            assert!(!std::mem::replace(&mut seen[handle], true), "one each");
            assert_eq!(far.memory.load_be64(handle * LEN), Ok(cookie));
            assert_eq!(near.qps[handle].send_outstanding(), 0);
        }
        assert!(seen[..batch].iter().all(|seen| *seen));
        done += batch;
    }
}

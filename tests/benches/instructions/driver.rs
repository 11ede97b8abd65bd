//! Post and poll of the driver: 32 connections of one node with another.

use crate::platform::{BenchBar, BenchPlatform};
use crate::{HANDLES, OPERATIONS};
use driver_mlx::{
    Access, Base, Completion, Config, Cq, CqConfig, CqError, Hca, HcaStorage, InitParams, LinkState,
    MemoryRegion, Mtu, Path, PostError, Psn, Qp, QpConfig, RtrParams, RtsParams, SendFlags, SendOp, Sge,
};
use hca_model::Profile;
use tests::{World, WorldConfig};

const LEN: usize = 64;

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

#[inline(never)]
fn measured_driver_poll(
    cq: &mut Cq<BenchBar>,
    qps: &mut [Qp<BenchBar>],
) -> Result<Option<(Completion, Option<u64>)>, CqError> {
    let Some(completion) = cq.poll()? else { return Ok(None) };
    let qp = qps.get_mut(completion.user_index() as usize);
    Ok(Some((completion, qp.and_then(|qp| qp.retire(&completion)))))
}

struct Node {
    hca: Hca<'static, BenchPlatform>,
    platform: BenchPlatform,
    cq: Cq<BenchBar>,
    qps: Vec<Qp<BenchBar>>,
    key: MemoryRegion,
    memory: driver_mlx::DmaSlice,
}

impl Node {
    fn new(platform: BenchPlatform, region: driver_mlx::DmaRegion) -> Self {
        let storage = Box::leak(Box::new(HcaStorage::<4096>::new()));
        let mut hca =
            Hca::bring_up(platform.clone(), region, storage.parts(), &Config::DEFAULT).expect("comes up");
        while hca.port().expect("port").state != LinkState::Active {
            platform.settle();
        }
        let pd = hca.alloc_pd().expect("PD");
        let memory = hca.alloc(HANDLES * LEN, 4096).expect("memory");
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let key = hca.register(pd, memory, access, Base::Virtual).expect("key");
        let cq = hca.create_cq(&CqConfig { entries: 2 * HANDLES as u32, eq: 0 }).expect("CQ");
        let qps = (0..HANDLES)
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
                path: Path::InfiniBand { dlid, sl: 0, src_path_bits: 0, static_rate: 0, grh: None },
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
pub fn run() {
    let world = World::new(&WorldConfig::new(1));
    let attached = [0, 1].map(|i| world.attach(Profile::node(i), 16 << 20));
    let [mut near, mut far] =
        attached.map(|(platform, region)| Node::new(BenchPlatform::new(platform), region));
    near.connect(&mut far);
    far.connect(&mut near);

    let mut done = 0;
    while done < OPERATIONS {
        let batch = HANDLES.min(OPERATIONS - done);
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
        let mut seen = [false; HANDLES];
        for _ in 0..batch {
            let polled = measured_driver_poll(&mut near.cq, &mut near.qps).expect("a valid completion");
            let (completion, cookie) = polled.expect("a completion");
            assert_eq!(completion.error(), None);
            let handle = completion.user_index() as usize;
            assert_eq!(cookie, Some((done + handle) as u64));
            assert!(!std::mem::replace(&mut seen[handle], true), "one each");
            assert_eq!(far.memory.load_be64(handle * LEN), Ok((done + handle) as u64));
        }
        done += batch;
    }
}

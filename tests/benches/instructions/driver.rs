//! Post and poll of the driver: some connections of one node with another.

use crate::OPERATIONS;
use crate::platform::{BenchBar, BenchPlatform};
use driver_mlx::{
    Access, Base, Completion, Config, Cq, CqConfig, Gid, Grh, Hca, HcaStorage, InitParams, Link, LinkState,
    MemoryRegion, Path, PostError, Qp, QpConfig, RKey, SendFlags, SendOp, ServiceLevel, Sge,
};
use harness::net::usual_card;
use harness::verbs::{Options, to_rts_along};
use harness::{World, WorldConfig};
use hca_model::Profile;

const LEN: usize = 64;
/// Posts under one doorbell.
const BATCH: usize = 32;
/// Blocks of 4 KiB of a node's memory: for a thousand queue pairs.
const BLOCKS: usize = 16384;

#[inline(never)]
fn measured_driver_post_write(
    qp: &mut Qp<BenchBar>,
    op: SendOp,
    sge: &Sge,
    cookie: u64,
) -> Result<(), PostError> {
    let doorbell = qp.post_send(op, std::slice::from_ref(sge), cookie, SendFlags::SIGNALED)?;
    qp.ring(doorbell);
    Ok(())
}

/// Writes each SGE to the peer's memory, one after the other.
#[inline(never)]
fn measured_driver_post_batch(
    qp: &mut Qp<BenchBar>,
    mut raddr: u64,
    rkey: RKey,
    sges: &[Sge],
    mut wr_id: u64,
) -> Result<(), PostError> {
    let mut newest = None;
    for sge in sges {
        let op = SendOp::Write { raddr, rkey };
        newest = Some(qp.post_send(op, std::slice::from_ref(sge), wr_id, SendFlags::SIGNALED)?);
        raddr += u64::from(sge.length);
        wr_id += 1;
    }
    if let Some(doorbell) = newest {
        qp.ring(doorbell);
    }
    Ok(())
}

#[inline(never)]
fn measured_driver_post_gather(
    qp: &mut Qp<BenchBar>,
    op: SendOp,
    sges: &[Sge; 4],
    wr_id: u64,
) -> Result<(), PostError> {
    let doorbell = qp.post_send(op, sges, wr_id, SendFlags::SIGNALED)?;
    qp.ring(doorbell);
    Ok(())
}

#[inline(never)]
fn measured_driver_post_inline(
    qp: &mut Qp<BenchBar>,
    op: SendOp,
    data: &[u8; LEN],
    wr_id: u64,
) -> Result<(), PostError> {
    let doorbell = qp.post_inline(op, data, wr_id, SendFlags::SIGNALED)?;
    qp.ring(doorbell);
    Ok(())
}

#[inline(never)]
fn measured_driver_post_unsignalled(
    qp: &mut Qp<BenchBar>,
    op: SendOp,
    sge: &Sge,
    wr_id: u64,
) -> Result<(), PostError> {
    let doorbell = qp.post_send(op, std::slice::from_ref(sge), wr_id, SendFlags::empty())?;
    qp.ring(doorbell);
    Ok(())
}

/// The `wr_id` of the next request that is done, as a consumer of many queue pairs finds it.
#[inline(never)]
fn measured_driver_poll(cq: &mut Cq<BenchBar>, qps: &mut [Qp<BenchBar>]) -> Option<u64> {
    let mut done = None;
    let _ = cq.poll(|cqe| {
        if let Some(Completion::Sent(sent)) = qps.get_mut(cqe.user_index() as usize)?.retire(cqe) {
            done = Some(sent.wr_id.id);
        }
        Some(())
    });
    done
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
        let mut hca = Hca::bring_up(
            platform.clone(),
            region,
            harness::host_region(),
            storage.parts(),
            &Config::DEFAULT,
        )
        .expect("comes up");
        while hca.port().expect("port").state != LinkState::Active {
            platform.settle();
        }
        let pd = hca.alloc_pd().expect("PD");
        let memory = hca.alloc(handles * LEN, 4096).expect("memory");
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let key = hca.register(pd, &memory, access, Base::Virtual).expect("key");
        let cq = hca
            .create_cq(&CqConfig { entries: (BATCH * handles).min(OPERATIONS) as u32 + 64, eq: 0 })
            .expect("CQ");
        let qps = (0..handles)
            .map(|index| {
                let config = QpConfig {
                    user_index: index as u32,
                    max_inline: LEN as u32,
                    ..QpConfig::rc(pd, cq.number())
                };
                let mut qp = hca.create_qp(&config).expect("QP");
                let init = InitParams { port: 1, pkey_index: 0, access: Access::REMOTE_WRITE };
                hca.modify_to_init(&mut qp, &init).expect("INIT");
                qp
            })
            .collect();
        Self { hca, platform, cq, qps, key, memory }
    }

    fn connect(&mut self, other: &mut Self) {
        let path = match (other.hca.port().expect("port").link, self.hca.port().expect("port").link) {
            (Link::Ethernet(peer), Link::Ethernet(own)) => {
                let own = self.hca.add_roce_address(Gid::link_local(own.mac), None);
                let grh = Grh {
                    dgid: Gid::link_local(peer.mac),
                    source_gid_index: own.expect("room"),
                    flow_label: 0,
                    hop_limit: 64,
                    traffic_class: 0,
                };
                Path::Roce { dmac: peer.mac, priority: 0, grh }
            }
            (_, _) => Path::InfiniBand {
                dlid: other.hca.port().expect("port").lid(),
                sl: ServiceLevel::default(),
                src_path_bits: 0,
                static_rate: 0,
                grh: None,
            },
        };
        let options = Options { mtu: other.hca.port().expect("port").mtu, ..Options::default() };
        for (qp, peer) in self.qps.iter_mut().zip(&other.qps) {
            to_rts_along(&mut self.hca, qp, path, peer.number(), (0, 0), &options).expect("RTS");
        }
    }
}

/// Makes and checks the operations.
pub fn run(handles: usize) {
    let world = World::new(&WorldConfig::new(1));
    let attached = [0, 1].map(|i| world.attach(Profile::of(usual_card(), i), BLOCKS * 4096));
    let [mut near, mut far] =
        attached.map(|(platform, region)| Node::new(BenchPlatform::new(platform), region, handles));
    near.connect(&mut far);
    far.connect(&mut near);

    writes(&mut near, &far, handles);
    batches(&mut near, &far, handles);
    others(&mut near, &far, handles);
}

impl Node {
    /// Memory of a handle, as this node's requests name it.
    fn sge(&self, handle: usize, offset: usize, len: usize) -> Sge {
        let address = self.key.address() + (handle * LEN + offset) as u64;
        Sge { address, length: len as u32, lkey: self.key.lkey() }
    }

    /// A write to the memory of a handle, as the other node's requests name it.
    fn write(&self, handle: usize) -> SendOp {
        SendOp::Write { raddr: self.key.address() + (handle * LEN) as u64, rkey: self.key.rkey() }
    }

    /// Takes completions, outside the count, until there are none: the requests that are done.
    fn drain(&mut self) -> usize {
        let mut done = 0;
        let qps = &mut self.qps;
        while let Some(retired) =
            self.cq.poll(|cqe| qps[cqe.user_index() as usize].retire(cqe)).expect("a valid completion")
        {
            let retired = retired.expect("outstanding");
            assert!(matches!(retired, Completion::Sent(_)), "{retired:?}");
            done += usize::from(retired.count());
        }
        done
    }
}

fn writes(near: &mut Node, far: &Node, handles: usize) {
    let mut done = 0;
    while done < OPERATIONS {
        let batch = handles.min(OPERATIONS - done);
        for handle in 0..batch {
            let word = (done + handle) as u64;
            near.memory.store_be64(handle * LEN, word).expect("inside");
            let (sge, op) = (near.sge(handle, 0, LEN), far.write(handle));
            measured_driver_post_write(&mut near.qps[handle], op, &sge, word).expect("posts");
            near.platform.ring();
        }
        near.platform.settle();
        let mut seen = vec![false; handles];
        for _ in 0..batch {
            let wr_id = measured_driver_poll(&mut near.cq, &mut near.qps).expect("a completion");
            let handle = (wr_id as usize).checked_sub(done).expect("one of this batch");
            assert!(!std::mem::replace(&mut seen[handle], true), "one each");
            assert_eq!(far.memory.load_be64(handle * LEN), Ok(wr_id));
            assert_eq!(near.qps[handle].send_outstanding(), 0);
        }
        assert!(seen[..batch].iter().all(|seen| *seen));
        done += batch;
    }
}

fn batches(near: &mut Node, far: &Node, handles: usize) {
    let mut done = 0;
    while done < OPERATIONS {
        let before = done;
        for handle in 0..handles {
            let count = BATCH.min(OPERATIONS - done);
            if count == 0 {
                break;
            }
            near.memory.store_be64(handle * LEN, !(done as u64)).expect("inside");
            let sges = vec![near.sge(handle, 0, LEN / BATCH); count];
            let (raddr, rkey) = (far.key.address() + (handle * LEN) as u64, far.key.rkey());
            measured_driver_post_batch(&mut near.qps[handle], raddr, rkey, &sges, done as u64)
                .expect("posts");
            near.platform.ring();
            done += count;
        }
        near.platform.settle();
        assert_eq!(near.drain(), done - before);
        // Every SGE begins where the memory does, and is two bytes long.
        let first = (!(before as u64) >> 48).wrapping_mul(0x0001_0001_0001_0001);
        assert_eq!(far.memory.load_be64(0), Ok(first));
    }
}

/// The reported rows: several SGEs, inline data, no completion.
fn others(near: &mut Node, far: &Node, handles: usize) {
    let mut done = 0;
    while done < OPERATIONS {
        let batch = handles.min(OPERATIONS - done);
        for handle in 0..batch {
            let word = !((done + handle) as u64) << 1;
            near.memory.store_be64(handle * LEN, word).expect("inside");
            let (op, whole) = (far.write(handle), near.sge(handle, 0, LEN));
            let quarters = [0, 1, 2, 3].map(|n| near.sge(handle, n * LEN / 4, LEN / 4));
            let mut data = [0; LEN];
            data[..8].copy_from_slice(&word.to_be_bytes());
            let qp = &mut near.qps[handle];
            measured_driver_post_gather(qp, op, &quarters, word).expect("posts");
            measured_driver_post_unsignalled(qp, op, &whole, word).expect("posts");
            measured_driver_post_inline(qp, op, &data, word).expect("posts");
            near.platform.ring();
        }
        near.platform.settle();
        assert_eq!(near.drain(), 3 * batch);
        for handle in 0..batch {
            assert_eq!(far.memory.load_be64(handle * LEN), near.memory.load_be64(handle * LEN));
        }
        done += batch;
    }
}

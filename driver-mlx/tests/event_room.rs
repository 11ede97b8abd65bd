//! Completion event queues: no CQ is made for whose event there is no entry, so that no burst
//! overruns the queue.

use crate::common;

use common::recovery::SECOND;
use common::{Driver, ModelBar, World};
use driver_mlx::{
    Access, Config, Cq, CqConfig, CqNumber, Duration, Error, Hca, HcaStorage, InitParams, Instant, Pd, Psn,
    QKey, Qp, QpConfig, SendFlags, SendOp,
};
use hca_model::Profile;
use rdma_fabric::infiniband::FabricConfig;
use std::rc::Rc;

/// CQs of a queue of 512 entries: 64 are spare.
const ROOM: usize = 448;
const MEMORY: usize = 32 << 20;

fn up(config: &Config) -> (Rc<World>, Driver) {
    let world = World::with_memory([Profile::node(0)], FabricConfig::default(), MEMORY);
    let storage = Box::leak(Box::new(HcaStorage::<{ MEMORY / 4096 }>::new()));
    let hca =
        Hca::bring_up(world.platform(0), world.region(0), common::host_region(), storage.parts(), config);
    (world, hca.expect("comes up"))
}

fn full(limit: usize) -> Option<Error> {
    Some(Error::Limit { what: "log_eq_size", asked: limit as u64 + 1, limit: limit as u64 })
}

/// A CQ that reports to `eq`, and a QP that can complete there.
struct Pair {
    cq: Cq<ModelBar>,
    qp: Qp<ModelBar>,
}

impl Pair {
    fn new(hca: &mut Driver, pd: Pd, eq: u8) -> Result<Self, Error> {
        let cq = hca.create_cq(&CqConfig { entries: 1, eq })?;
        let config =
            QpConfig { max_send_wr: 2, max_recv_wr: 0, ..QpConfig::ud(pd, cq.number(), QKey::new(1)) };
        let mut qp = hca.create_qp(&config)?;
        hca.modify_to_init(&mut qp, &InitParams { port: 1, pkey_index: 0, access: Access::empty() })?;
        hca.modify_to_rts_datagram(&mut qp, Psn::new(0))?;
        Ok(Self { cq, qp })
    }

    /// Arms the CQ and lets something complete there.
    fn complete(&mut self) {
        self.cq.arm(false);
        let doorbell = self.qp.post_send(SendOp::Nop, &[], 1, SendFlags::SIGNALED).expect("room");
        self.qp.ring(doorbell);
    }
}

/// Lets all of them complete before anybody polls, and says which CQs are named then.
fn burst(world: &Rc<World>, hca: &mut Driver, pairs: &mut [Pair]) -> Vec<CqNumber> {
    pairs.iter_mut().for_each(Pair::complete);
    world.pass(SECOND);
    let _ = hca.poll(Instant::from_nanos(world.now()));
    assert_eq!(hca.fatal(), None, "{:?}", world.complaints(0).last());
    let mut named = Vec::new();
    hca.poll_completions(|number| named.push(number));
    for pair in pairs {
        assert!(named.contains(&pair.cq.number()), "{:?} is lost", pair.cq.number());
        pair.cq.notified();
        assert!(matches!(pair.cq.poll(|cqe| pair.qp.retire(cqe)), Ok(Some(Some(_)))));
    }
    named
}

#[test]
fn cqs_beyond_the_event_queue_are_refused() {
    let (world, mut hca) = up(&Config { completion_eqs: 2, ..Config::DEFAULT });
    let pd = hca.alloc_pd().expect("a PD");
    let mut pairs: Vec<_> = (0..ROOM).map(|_| Pair::new(&mut hca, pd, 0).expect("room")).collect();
    assert_eq!(hca.create_cq(&CqConfig { entries: 1, eq: 0 }).err(), full(ROOM));
    // Each event queue has its own count.
    let mut other = Pair::new(&mut hca, pd, 1).expect("room");
    for _ in 0..3 {
        assert_eq!(burst(&world, &mut hca, &mut pairs).len(), ROOM);
    }
    burst(&world, &mut hca, std::slice::from_mut(&mut other));
    // A refusal leaves the count as it was, and a CQ that goes makes room for one.
    let Pair { cq, qp } = pairs.pop().expect("one");
    hca.destroy_qp(qp).expect("destroyed");
    hca.destroy_cq(cq).expect("destroyed");
    assert!(hca.create_cq(&CqConfig { entries: u32::MAX, eq: 0 }).is_err());
    pairs.push(Pair::new(&mut hca, pd, 0).expect("room"));
    assert_eq!(hca.create_cq(&CqConfig { entries: 1, eq: 0 }).err(), full(ROOM));
    assert_eq!(burst(&world, &mut hca, &mut pairs).len(), ROOM);
}

/// 520 CQs, more than the default has entries for: what the size for them is asked for holds.
#[test]
fn an_event_queue_for_520_cqs_takes_a_completion_of_each() {
    let log_eq_size = Config::log_eq_size_for(520);
    let (world, mut hca) = up(&Config { log_eq_size, ..Config::DEFAULT });
    let pd = hca.alloc_pd().expect("a PD");
    let mut pairs: Vec<_> = (0..520).map(|_| Pair::new(&mut hca, pd, 0).expect("room")).collect();
    for _ in 0..5 {
        assert_eq!(burst(&world, &mut hca, &mut pairs).len(), 520);
    }
    assert_eq!([1, 64, 65, 448, 449, 960, 961].map(Config::log_eq_size_for), [7, 7, 8, 9, 10, 10, 11]);
    assert_eq!([65_472, 65_473, u32::MAX].map(Config::log_eq_size_for), [16; 3]);
}

/// The event of a CQ that is gone takes its entry until it has been polled.
#[test]
fn events_of_destroyed_cqs_count_until_they_are_taken() {
    let (world, mut hca) = up(&Config { log_eq_size: 7, ..Config::DEFAULT });
    let pd = hca.alloc_pd().expect("a PD");
    let mut pairs: Vec<_> = (0..64).map(|_| Pair::new(&mut hca, pd, 0).expect("room")).collect();
    pairs.iter_mut().take(40).for_each(Pair::complete);
    world.pass(SECOND);
    for Pair { cq, qp } in pairs.drain(..50) {
        hca.destroy_qp(qp).expect("destroyed");
        hca.destroy_cq(cq).expect("destroyed");
    }
    // 14 are left, and 40 events.
    for _ in 0..10 {
        pairs.push(Pair::new(&mut hca, pd, 0).expect("room"));
    }
    assert_eq!(hca.create_cq(&CqConfig { entries: 1, eq: 0 }).err(), full(64));
    let mut taken = 0;
    hca.poll_completions(|_| taken += 1);
    assert_eq!(taken, 40);
    for _ in 0..40 {
        pairs.push(Pair::new(&mut hca, pd, 0).expect("room"));
    }
    assert_eq!(hca.create_cq(&CqConfig { entries: 1, eq: 0 }).err(), full(64));
    assert_eq!(burst(&world, &mut hca, &mut pairs).len(), 64);
}

/// CQs of an earlier life are not counted, whether they are given back before or after.
#[test]
fn a_recovery_counts_anew() {
    let config = Config { log_eq_size: 7, recovery_grace: Duration::ZERO, ..Config::DEFAULT };
    let (_world, mut hca) = up(&config);
    let cq = CqConfig { entries: 1, eq: 0 };
    let mut old: Vec<_> = (0..64).map(|_| hca.create_cq(&cq).expect("room")).collect();
    assert_eq!(hca.create_cq(&cq).err(), full(64));
    hca.recover().expect("recovered");
    let mut new: Vec<_> = (0..30).map(|_| hca.create_cq(&cq).expect("room")).collect();
    old.drain(..).for_each(|cq| hca.destroy_cq(cq).expect("given back"));
    new.extend((30..64).map(|_| hca.create_cq(&cq).expect("room")));
    assert_eq!(hca.create_cq(&cq).err(), full(64));
    new.drain(..).for_each(|cq| hca.destroy_cq(cq).expect("destroyed"));
    hca.create_cq(&cq).expect("room");
}

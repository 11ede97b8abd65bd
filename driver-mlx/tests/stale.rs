//! What is left of a life of the device before its recovery names nothing any more: no call with it reaches the device.

use crate::common;

use common::node::{self, ALL, Node};
use common::recovery::{ready, up, works};
use common::{Driver, ModelBar, World};
use driver_mlx::{
    Base, CqConfig, Error, Gid, InitParams, MwType, Psn, QKey, Qp, QpConfig, SendFlags, SendOp, Service,
    SrqConfig,
};
use hca_model::Profile;
use rdma_fabric::infiniband::FabricConfig;

const GROUP: Gid = Gid([0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
const INIT: InitParams = InitParams { port: 1, pkey_index: 0, access: ALL };

#[test]
fn stale_objects_are_refused_and_given_back_without_the_device() {
    let world = common::recovery::world();
    let (mut a, mut b) = node::connected(&world, |config| config.memory_windows = true);
    let ud = QpConfig { service: Service::Ud { q_key: QKey::new(1) }, ..QpConfig::rc(a.pd, a.cq.number()) };
    let mut datagrams = a.hca.create_qp(&ud).expect("a QP");
    let srq = a.hca.create_srq(&SrqConfig { pd: a.pd, max_wr: 16, max_sge: 1 }).expect("an SRQ");
    let window = a.hca.alloc_mw(a.pd, MwType::Two).expect("a window");
    let counters = a.hca.alloc_q_counters().expect("counters");
    a.hca.recover().expect("recovers");
    // Of the same kinds and, as the device counts, of the same numbers.
    ready(&world, &mut a.hca);
    let pd = a.hca.alloc_pd().expect("a PD");
    let cq = a.hca.create_cq(&CqConfig { entries: 256, eq: 0 }).expect("a CQ");
    let qps = [0; 2].map(|_| a.hca.create_qp(&QpConfig::rc(pd, cq.number())).expect("a QP"));
    let new_srq = a.hca.create_srq(&SrqConfig { pd, max_wr: 16, max_sge: 1 }).expect("an SRQ");
    let new_window = a.hca.alloc_mw(pd, MwType::Two).expect("a window");

    let new_counters = a.hca.alloc_q_counters().expect("counters");
    let commands = a.hca.counters().commands;
    let stale = Err(Error::Stale);
    let Node { mut hca, pd: old_pd, mut qp, cq: mut old_cq, memory, key } = a;
    assert_eq!(hca.modify_to_init(&mut qp, &INIT), stale);
    assert_eq!(hca.modify_to_rtr(&mut qp, &node::towards(&mut b, 1)), stale);
    assert_eq!(hca.modify_to_rts(&mut qp, &node::from(0)), stale);
    assert_eq!(hca.modify_to_error(&mut qp), stale);
    assert_eq!(hca.modify_to_reset(&mut qp), stale);
    assert_eq!(hca.query_qp_state(&qp).map(|_| ()), stale);
    assert_eq!(hca.modify_to_rts_datagram(&mut datagrams, Psn::new(1)), stale);
    assert_eq!(hca.attach_multicast(&datagrams, GROUP), stale);
    assert_eq!(hca.detach_multicast(&datagrams, GROUP), stale);
    assert_eq!(hca.resize_cq(&mut old_cq, 1000), stale);
    assert_eq!(hca.arm_srq(&srq, 1), stale);
    assert_eq!(hca.query_srq(&srq).map(|_| ()), stale);
    assert_eq!(hca.register_again(pd, &key, ALL, Base::Virtual).map(|_| ()), stale);
    assert_eq!(hca.register(old_pd, &memory, ALL, Base::Virtual).map(|_| ()), stale);
    assert_eq!(hca.alloc_mw(old_pd, MwType::Two).map(|_| ()), stale);
    assert_eq!(hca.create_qp(&QpConfig::rc(old_pd, cq.number())).map(|_| ()), stale);
    assert_eq!(hca.create_srq(&SrqConfig { pd: old_pd, max_wr: 16, max_sge: 1 }).map(|_| ()), stale);
    let counted = QpConfig { counters: Some(counters), ..QpConfig::rc(pd, cq.number()) };
    assert_eq!(hca.create_qp(&counted).map(|_| ()), stale);
    assert_eq!(hca.query_q_counters(counters, true).map(|_| ()), stale);
    hca.destroy_qp(qp).expect("given back");
    hca.destroy_qp(datagrams).expect("given back");
    hca.destroy_cq(old_cq).expect("given back");
    hca.destroy_srq(srq).expect("given back");
    hca.dealloc_mw(window).expect("given back");
    hca.deregister(key).expect("given back");
    hca.free(memory).expect("given back");
    hca.dealloc_q_counters(counters).expect("given back");
    hca.dealloc_pd(old_pd).expect("given back");
    assert_eq!(hca.counters().commands, commands, "the device was asked for nothing");
    // Those of now are whole.
    for qp in qps {
        hca.destroy_qp(qp).expect("destroyed");
    }
    hca.destroy_cq(cq).expect("destroyed");
    hca.destroy_srq(new_srq).expect("destroyed");
    hca.dealloc_mw(new_window).expect("ended");
    hca.dealloc_q_counters(new_counters).expect("ended");
    hca.dealloc_pd(pd).expect("ended");
    works(&world, &mut hca);
    hca.tear_down().expect("torn down");
    b.end();
}

#[test]
fn objects_of_another_hca_are_refused() {
    let world = common::World::new([Profile::node(0), Profile::node(1)], FabricConfig::default());
    let (mut a, mut b) = node::connected(&world, |_| ());
    assert_eq!(a.hca.modify_to_error(&mut b.qp), Err(Error::NotAllocated));
    assert_eq!(a.hca.resize_cq(&mut b.cq, 1000), Err(Error::NotAllocated));
    let again = a.hca.register_again(a.pd, &b.key, ALL, Base::Virtual);
    assert_eq!(again.map(|_| ()), Err(Error::NotAllocated));
    assert_eq!(a.hca.dealloc_pd(b.pd), Err(Error::NotAllocated));
    a.end();
    b.end();
}

/// Makes a QP with a BlueFlame register.
fn blueflame_qp(hca: &mut Driver) -> Qp<ModelBar> {
    let pd = hca.alloc_pd().expect("a PD");
    let cq = hca.create_cq(&CqConfig { entries: 16, eq: 0 }).expect("a CQ");
    let config = QpConfig { blueflame: true, max_inline: 100, ..QpConfig::rc(pd, cq.number()) };
    let qp = hca.create_qp(&config).expect("a QP");
    assert!(qp.has_blueflame());
    qp
}

/// `stale` was made before `qp`, which has the same number and the same register page.
fn rings_nothing(world: &World, stale: &mut Qp<ModelBar>, qp: &mut Qp<ModelBar>) {
    let rings = |qp: &mut Qp<ModelBar>, posts: usize| {
        let counters = || world.model(0, |model| *model.counters());
        let before = counters();
        let posted = (0..posts)
            .map(|_| qp.post_inline(SendOp::Send, &[1; 16], 1, SendFlags::SIGNALED).expect("room"))
            .last();
        qp.ring(posted.expect("one at least"));
        world.settle();
        (counters().doorbells - before.doorbells, counters().blueflame - before.blueflame)
    };
    assert_eq!(stale.number(), qp.number());
    assert_eq!(rings(stale, 1), (0, 0), "a whole request");
    assert_eq!(rings(stale, 2), (0, 0), "the first quadword of the last of two");
    assert_eq!(rings(qp, 1), (1, 1));
    assert_eq!(rings(qp, 2), (1, 0));
}

#[test]
fn stale_qp_rings_no_blueflame_register_after_recovery() {
    let world = common::recovery::world();
    let mut hca = up(&world);
    let mut stale = blueflame_qp(&mut hca);
    hca.recover().expect("recovers");
    let mut qp = blueflame_qp(&mut hca);
    rings_nothing(&world, &mut stale, &mut qp);
}

#[test]
fn qp_of_a_dropped_hca_rings_no_blueflame_register() {
    let world = common::recovery::world();
    let mut hca = up(&world);
    let mut stale = blueflame_qp(&mut hca);
    drop(hca);
    let mut hca = up(&world);
    let mut qp = blueflame_qp(&mut hca);
    rings_nothing(&world, &mut stale, &mut qp);
}

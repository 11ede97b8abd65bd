//! A device that fails and is brought up again: what tests of it share.

use super::{Driver, World};
use driver_mlx::{Config, CqConfig, Duration, FatalCause, Instant, LinkState, Platform, QpConfig, Wake};
use hca_model::Profile;
use rdma_fabric::infiniband::FabricConfig;
use std::rc::Rc;

pub const SECOND: u64 = 1_000_000_000;
/// Offset of the vendor-specific capability of the model.
pub const VENDOR: u16 = 0xc0;

pub fn world() -> Rc<World> {
    World::new([Profile::node(0), Profile::node(1)], FabricConfig::default())
}

/// Brought up, and free to recover as often as it likes.
pub fn up(world: &Rc<World>) -> Driver {
    let config = Config { recovery_grace: Duration::ZERO, ..Config::DEFAULT };
    world.bring_up(0, &config).expect("comes up")
}

/// Polls as it is asked to until the device has failed; at most so long.
pub fn until_fatal(world: &Rc<World>, hca: &mut Driver, limit: u64) -> FatalCause {
    let end = world.now() + limit;
    while world.now() < end {
        let next = match hca.poll(Instant::from_nanos(world.now())) {
            Wake::At(next) => next.as_nanos().clamp(world.now() + 1, end),
            _ => end,
        };
        if let Some(cause) = hca.fatal() {
            return cause;
        }
        world.pass(next - world.now());
    }
    panic!("not noticed in {} s", limit / SECOND);
}

pub fn ready(world: &Rc<World>, hca: &mut Driver) {
    for _ in 0..1000 {
        if hca.port().expect("a port").state == LinkState::Active {
            return;
        }
        world.pass(10_000_000);
    }
    panic!("the port does not become active");
}

/// All that was made is gone and can be given back; what is made now works.
pub fn works(world: &Rc<World>, hca: &mut Driver) {
    ready(world, hca);
    let pd = hca.alloc_pd().expect("a PD");
    let cq = hca.create_cq(&CqConfig { entries: 16, eq: 0 }).expect("a CQ");
    let qp = hca.create_qp(&QpConfig::rc(pd, cq.number())).expect("a QP");
    hca.destroy_qp(qp).expect("destroyed");
    hca.destroy_cq(cq).expect("destroyed");
    hca.dealloc_pd(pd).expect("ended");
    assert_eq!(hca.firmware_pages(), world.model(0, |m| m.pages().given()));
}

/// The reset semaphore's owner.
pub fn semaphore(world: &Rc<World>) -> u32 {
    world.write_config(0, VENDOR + 0x04, 0x0a);
    world.write_config(0, VENDOR + 0x10, 0x20);
    world.platform(0).read_config(VENDOR + 0x14).expect("within reach")
}

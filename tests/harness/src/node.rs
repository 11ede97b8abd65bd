//! A node whose HCA is up and whose port is Active.

use crate::platform::ModelPlatform;
use crate::world::World;
use driver_mlx::{Config, DmaRegion, Duration, Error, Hca, HcaStorage, Instant, LinkState, PortState, Wake};
use hca_model::Profile;
use std::rc::Rc;

/// Blocks of 4 KiB that a node's storage describes.
pub const BLOCKS: usize = 1 << 14;
/// How long the subnet manager may take, in virtual nanoseconds.
const ACTIVE_LIMIT: u64 = 30_000_000_000;

/// An HCA of the world with its driver.
pub struct Node {
    /// The driver.
    pub hca: Hca<'static, ModelPlatform>,
    /// Its number in the world.
    pub index: usize,
    /// A handle to what the driver runs on.
    pub platform: ModelPlatform,
}

impl Node {
    /// Attaches an HCA to the world and brings it up.
    ///
    /// # Errors
    /// Those of bring-up.
    pub fn bring_up(
        world: &Rc<World>,
        profile: Profile,
        memory: usize,
        config: &Config,
    ) -> Result<Self, Error> {
        let (platform, region) = world.attach(profile, memory);
        Self::bring_up_on(platform, region, config)
    }

    /// Brings up an HCA that is attached already.
    ///
    /// # Errors
    /// Those of bring-up.
    pub fn bring_up_on(platform: ModelPlatform, region: DmaRegion, config: &Config) -> Result<Self, Error> {
        let index = platform.node();
        let storage = crate::keep(HcaStorage::<BLOCKS>::new());
        let own = platform.clone();
        let hca = Hca::bring_up(own, region, crate::host_region(), storage.parts(), config)?;
        Ok(Self { hca, index, platform })
    }

    /// Waits until the subnet manager has made the port Active.
    ///
    /// # Errors
    /// Those of the query.
    ///
    /// # Panics
    /// If it does not happen in 30 s of virtual time.
    pub fn wait_active(&mut self) -> Result<PortState, Error> {
        let world = Rc::clone(self.platform.world());
        let began = world.now();
        loop {
            let port = self.hca.port()?;
            if port.state == LinkState::Active {
                return Ok(port);
            }
            let waited = world.now() - began;
            assert!(waited < ACTIVE_LIMIT, "the port is {:?} after {} ms", port.state, waited / 1_000_000);
            let now = Instant::from_nanos(world.now());
            let wake = self.hca.poll(now).earliest(Wake::At(now + Duration::from_millis(1)));
            world.idle(wake.deadline(now).map_or(world.now(), Instant::as_nanos));
        }
    }
}

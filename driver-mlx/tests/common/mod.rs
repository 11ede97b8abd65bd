//! Nodes of the harness as the driver's tests use them.

pub mod node;
pub mod recovery;

use driver_mlx::{Config, DmaRegion, DmaSlice, Error, Hca, HcaStorage, LinkState};
pub use harness::{ModelBar, ModelPlatform, ModelRegister, host_region};
use hca_model::Profile;
use rdma_fabric::infiniband::{Fabric, FabricConfig};
use std::cell::RefCell;
use std::ops::Deref;
use std::rc::Rc;

/// Bytes of a node's region.
pub const REGION: usize = 8 << 20;
/// Blocks that describe it.
pub const BLOCKS: usize = REGION / 4096;

/// A world of the harness whose turns cost a nanosecond, so that tests can tell times.
pub struct World {
    world: Rc<harness::World>,
    /// Interrupts that [`World::raised`] has returned, by node and vector.
    returned: RefCell<Vec<Vec<u64>>>,
}

impl Deref for World {
    type Target = harness::World;

    fn deref(&self) -> &harness::World {
        &self.world
    }
}

impl World {
    /// A fabric of these devices, cables plugged in, bus mastering on.
    pub fn new(profiles: impl IntoIterator<Item = Profile>, config: FabricConfig) -> Rc<Self> {
        Self::with_memory(profiles, config, REGION)
    }

    /// The same with so many bytes of memory for each.
    pub fn with_memory(
        profiles: impl IntoIterator<Item = Profile>,
        config: FabricConfig,
        bytes: usize,
    ) -> Rc<Self> {
        let world = harness::World::new(&harness::WorldConfig { seed: config.seed, fabric: config, turn: 1 });
        let returned = profiles.into_iter().map(|profile| {
            let vectors = usize::from(profile.vectors);
            let _ = world.attach(profile, bytes);
            vec![0; vectors]
        });
        let returned = RefCell::new(returned.collect());
        Rc::new(Self { world, returned })
    }

    /// Lets everything run until it rests.
    pub fn settle(&self) {
        self.world.settle(0);
    }

    /// Looks into (or changes) the model of a node.
    pub fn model<T>(&self, node: usize, look: impl FnOnce(&mut hca_model::Hca) -> T) -> T {
        self.with_hca(node, look)
    }

    pub fn fabric<T>(&self, look: impl FnOnce(&mut Fabric) -> T) -> T {
        self.with_fabric(look)
    }

    /// Interrupts of a node since the last call, by vector.
    pub fn raised(&self, node: usize) -> Vec<u16> {
        let now = self.interrupts(node);
        let before = std::mem::replace(&mut self.returned.borrow_mut()[node], now.clone());
        let counts = now.iter().zip(&before).map(|(now, before)| (now - before) as usize);
        (0..).zip(counts).flat_map(|(vector, count)| std::iter::repeat_n(vector, count)).collect()
    }

    /// What a node's model refused or warned of.
    pub fn complaints(&self, node: usize) -> Vec<String> {
        self.model(node, |hca| {
            let bad = hca.log().entries().filter(|e| e.level != hca_model::log::Level::Info);
            bad.map(ToString::to_string).collect()
        })
    }

    /// The platform of a node.
    pub fn platform(&self, node: usize) -> ModelPlatform {
        self.world.platform(node)
    }

    /// Writes a register of a node's device past its driver.
    pub fn write_register(&self, node: usize, offset: usize, value: u32) {
        driver_mlx::Platform::bar(&self.platform(node)).poke32(offset, value);
    }

    /// Writes a dword of a node's configuration space past its driver.
    pub fn write_config(&self, node: usize, offset: u16, value: u32) {
        self.platform(node).set_config(offset, value);
    }

    /// A node's memory, as the driver sees it.
    pub fn memory(&self, node: usize) -> DmaSlice<'static> {
        self.world.memory(node).as_slice()
    }

    /// A node's DMA region.
    pub fn region(&self, node: usize) -> DmaRegion {
        self.world.memory(node).region_again()
    }

    /// Brings the HCA of a node up.
    pub fn bring_up(&self, node: usize, config: &Config) -> Result<Driver, Error> {
        let storage = Box::leak(Box::new(HcaStorage::<BLOCKS>::new()));
        Hca::bring_up(self.platform(node), self.region(node), host_region(), storage.parts(), config)
    }

    /// As [`World::bring_up`], and waits for the subnet manager.
    pub fn ready(&self, node: usize) -> Driver {
        self.ready_with(node, &Config::DEFAULT)
    }

    /// The same with another configuration.
    pub fn ready_with(&self, node: usize, config: &Config) -> Driver {
        let mut hca = self.bring_up(node, config).expect("brought up");
        for _ in 0..1000 {
            if hca.port().expect("a port").state == LinkState::Active {
                return hca;
            }
            self.pass(10_000_000);
        }
        panic!("the port does not become active");
    }
}

/// The driver on the model.
pub type Driver = Hca<'static, ModelPlatform>;

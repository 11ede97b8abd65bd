//! Adapters of the world's nodes, each knowing all others by address.

use crate::net::{gid, usual_card};
use crate::platform::{ModelBar, ModelPlatform};
use crate::world::{Next, World};
use dat_nostd::{
    Adapter, AdapterConfig, AdapterParts, Neighbour, OpenError, Platform, ProviderInfo, Registry,
    RegistryEntry, adapter_storage,
};
use driver_mlx::{Config, DmaRegion, Instant, Wake};
use hca_model::Profile;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;

/// An adapter of the world.
pub type ModelAdapter = Adapter<'static, ModelPlatform>;
adapter_storage! {
    /// Its tables: a DMA region of up to 64 MiB.
    struct Tables { bar: ModelBar, dma_bytes: 64 << 20, eps: 80, lmrs: 128, connections: 160 }
}

/// Asynchronous events and completions on vectors of their own. Ethernet frames hold packets of 4096
/// bytes, so that faults of packets hit a message as often as on InfiniBand.
pub const HCA: Config =
    Config { async_vector: 0, completion_vector: 1, ethernet_mtu: 4192, ..Config::DEFAULT };

/// The address of node `node`.
#[must_use]
pub fn address(node: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, (node >> 8) as u8, 1 + node as u8).into()
}

/// A seed of node `node` in a world with seed `seed`.
fn node_seed(seed: u64, node: usize) -> u128 {
    (u128::from(seed) << 64 | 0x6e6f_6465) ^ ((node as u128) << 32)
}

/// Attaches `count` nodes with `memory` bytes each and opens their adapters.
///
/// # Errors
/// The first adapter's that does not open.
pub fn open(
    world: &Rc<World>,
    seed: u64,
    count: usize,
    memory: usize,
) -> Result<Vec<ModelAdapter>, OpenError> {
    open_all(world, seed, (0..count).map(|i| Profile::of(usual_card(), i as u16)), memory)
}

/// The same with these HCAs.
///
/// # Errors
/// The first adapter's that does not open.
pub fn open_all(
    world: &Rc<World>,
    seed: u64,
    profiles: impl IntoIterator<Item = Profile>,
    memory: usize,
) -> Result<Vec<ModelAdapter>, OpenError> {
    // All nodes are there before the first asks for its port, as machines on a switch are.
    let attached: Vec<_> = profiles.into_iter().map(|profile| world.attach(profile, memory)).collect();
    let count = attached.len();
    attached.into_iter().map(|(platform, region)| open_one(platform, region, seed, count)).collect()
}

/// Opens the adapter of a node that is attached; `count` nodes are known to it.
///
/// # Errors
/// Those of the adapter.
pub fn open_one(
    platform: ModelPlatform,
    region: DmaRegion,
    seed: u64,
    count: usize,
) -> Result<ModelAdapter, OpenError> {
    boot(platform, region, seed, count, 1)
}

/// The same for boot number `generation` of a node.
///
/// # Errors
/// Those of the adapter.
pub fn boot(
    platform: ModelPlatform,
    region: DmaRegion,
    seed: u64,
    count: usize,
    generation: u64,
) -> Result<ModelAdapter, OpenError> {
    let name = platform.node();
    open_as(platform, region, seed, count, generation, name)
}

/// The same for a node that gives itself the address of node `name`.
///
/// # Errors
/// Those of the adapter.
pub fn open_as(
    platform: ModelPlatform,
    region: DmaRegion,
    seed: u64,
    count: usize,
    generation: u64,
    name: usize,
) -> Result<ModelAdapter, OpenError> {
    let parts = crate::keep(Tables::new()).parts();
    open_in(parts, platform, region, seed, count, generation, name)
}

/// The same with tables of other sizes.
///
/// # Errors
/// Those of the adapter.
pub fn open_in(
    parts: AdapterParts<'static, ModelBar>,
    platform: ModelPlatform,
    region: DmaRegion,
    seed: u64,
    count: usize,
    generation: u64,
    name: usize,
) -> Result<ModelAdapter, OpenError> {
    let (node, world) = (platform.node(), Rc::clone(platform.world()));
    let card = world.with_hca(node, |hca| hca.profile().card);
    let neighbours: Vec<Neighbour> = (0..count)
        .filter(|&other| other != node && other != name)
        .map(|other| (address(other), gid(card, other)))
        .collect();
    let config = AdapterConfig {
        generation,
        hca: Config { physical_function: card.has_smi || card.is_ethernet(), ..HCA },
        ..AdapterConfig::new("ib0", address(name), crate::keep(neighbours), node_seed(seed, node))
    };
    let mut adapter = Adapter::open(platform, region, crate::host_region(), parts, &config)?;
    register(&mut adapter, 0);
    Ok(adapter)
}

/// Enters an adapter called `ib0` into a registry of its node, under both its names; it gets this id.
///
/// # Panics
/// If it has other names.
pub fn register<P: Platform>(adapter: &mut Adapter<'_, P>, id: u8) {
    let mut entries = [RegistryEntry::EMPTY; 2];
    let mut registry = Registry::with_first_id(&mut entries, id);
    for name in ["ib0", "ib0-dat"] {
        registry.registry_add_provider(adapter, ProviderInfo::new(name)).expect("its name");
    }
}

/// When somebody wants to run again, in nanoseconds of the world's clock: 0 for at once.
pub fn due(wake: Wake) -> Option<u64> {
    wake.deadline(Instant::ORIGIN).map(Instant::as_nanos)
}

/// What a loop around an adapter does at its end: asks to be woken by interrupts, and sleeps if there is nothing to do.
/// `deadlines` are those of everything polled at `now`.
pub fn sleep(adapter: &mut ModelAdapter, now: u64, deadlines: impl IntoIterator<Item = Option<u64>>) -> Next {
    let deadline = deadlines.into_iter().flatten().min().unwrap_or(u64::MAX);
    if deadline > now && adapter.prepare_idle(adapter.now()) { Next::At(deadline) } else { Next::Again }
}

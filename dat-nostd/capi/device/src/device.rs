//! Opening a device: an adapter whose port can be reached by address.

use crate::debug::complain;
use crate::target::Target;
use dat_nostd::{
    Adapter, AdapterConfig, AdapterParts, DatResult, DatReturn, Instant, Platform, ProviderInfo, Registry,
    RegistryEntry, ReturnType, Subtype,
};
use platform_linux::{
    DeviceName, Error as PlatformError, LinuxBar, LinuxPlatform, Opened, Options, Sleeper,
    open as open_platform,
};
use std::time::Duration;

/// How long the port may take to join IP's broadcast group.
const IP_UP: Duration = Duration::from_secs(30);

/// The names of every adapter: with the CM's framing of RDMA-CM, and with our own.
pub const NAMES: [&str; 2] = ["ib0", "ib0-dat"];

/// A device that is open.
pub struct Device {
    /// Its adapter, under both [`NAMES`].
    pub adapter: Adapter<'static, LinuxPlatform>,
    /// What its thread sleeps by.
    pub sleeper: Sleeper,
    /// The HCA is a process of this machine.
    pub is_emulated: bool,
}

/// What a library chooses.
pub struct Choices {
    /// Its name, for messages to people.
    pub library: &'static str,
    /// Bytes of the DMA region.
    pub dma_bytes: usize,
    /// In all handles.
    pub id: u8,
    /// How long a program may connect before the other side listens, without being refused.
    pub service_patience: Duration,
}

/// Opens a device and waits until its port can be reached by address.
///
/// # Errors
/// PROVIDER_NOT_FOUND: the name cannot be a device's; else INSUFFICIENT_RESOURCES.
pub fn open(
    target: &Target,
    tables: AdapterParts<'static, LinuxBar>,
    choices: &Choices,
) -> DatResult<Device> {
    let Choices { library, dma_bytes, id, service_patience } = *choices;
    let options = Options { dma_bytes, iommu: target.iommu, ..Options::default() };
    let Opened { platform, dma, host, .. } = open_platform(&target.device, &options).map_err(|error| {
        complain(library, &format!("{}: {error}", target.device));
        why(&error)
    })?;
    let sleeper = platform.sleeper().map_err(|error| why(&error))?;
    let config =
        AdapterConfig { service_patience, ..AdapterConfig::new(NAMES[0], target.address, &[], seed(target)) };
    let failed = |error: &dyn std::fmt::Display| {
        complain(library, &format!("{}: {error}", target.device));
        DatReturn::error(ReturnType::InsufficientResources, Subtype::ResourceDevice)
    };
    let adapter = Adapter::open(platform, dma, host, tables, &config);
    let mut adapter = adapter.map_err(|error| failed(&error))?;
    let mut names = [RegistryEntry::EMPTY; NAMES.len()];
    let mut registry = Registry::with_first_id(&mut names, id);
    for name in NAMES {
        registry.registry_add_provider(&mut adapter, ProviderInfo::new(name))?;
    }
    if !wait_ip_up(&mut adapter) {
        let _ = adapter.close();
        return Err(failed(&"the port joined no broadcast group: is there a subnet administrator?"));
    }
    Ok(Device { adapter, sleeper, is_emulated: matches!(target.device, DeviceName::Socket(_)) })
}

/// Why a device could not be opened, as far as DAT has words for it.
fn why(error: &PlatformError) -> DatReturn {
    match error {
        PlatformError::Name(_) | PlatformError::Options(_) => {
            DatReturn::error(ReturnType::ProviderNotFound, Subtype::NameNotRegistered)
        }
        _ => DatReturn::error(ReturnType::InsufficientResources, Subtype::ResourceDevice),
    }
}

/// Differs from process to process and from time to time.
fn seed(target: &Target) -> u128 {
    use std::hash::{BuildHasher, RandomState};
    let half = || u128::from(RandomState::new().hash_one(target.address));
    half() << 64 | half()
}

fn wait_ip_up(adapter: &mut Adapter<'static, LinuxPlatform>) -> bool {
    let end = adapter.platform().now() + IP_UP;
    loop {
        let now = adapter.platform().now();
        let wake = adapter.poll(now);
        match adapter.ip() {
            Some(ip) if !ip.is_up() => {}
            _ => return true,
        }
        if now >= end || adapter.is_dead() {
            return false;
        }
        if !wake.is_due(now) && adapter.prepare_idle(adapter.platform().now()) {
            adapter.platform().idle(wake.deadline(now).unwrap_or(Instant::MAX).min(end));
        }
    }
}

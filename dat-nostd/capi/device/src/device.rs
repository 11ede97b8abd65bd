//! Opening a device: an adapter whose port can be reached by address.

use crate::debug::complain;
use crate::end::Inherited;
use crate::target::Target;
use dat_calls::{NAMES, bring_up};
use dat_nostd::{
    Adapter, AdapterConfig, AdapterParts, DatResult, DatReturn, DmaRegion, HostRegion, ReturnType, Subtype,
};
use platform_linux::{
    DeviceName, Error as PlatformError, LinuxBar, LinuxPlatform, Memory, Opened, Options, Pinner, Sleeper,
    open as open_platform,
};
use std::time::Duration;

/// A device that is open.
pub struct Device {
    /// Its adapter, under both names.
    pub adapter: Adapter<'static, LinuxPlatform>,
    /// What its thread sleeps by.
    pub sleeper: Sleeper,
    /// Pins the program's memory outside the adapter's lock.
    pub pinner: Pinner,
    /// What is left of it when the adapter is gone.
    pub memory: Memory,
    /// The HCA is a process of this machine.
    pub is_emulated: bool,
    /// Descriptors that a child process closes. To be dropped before the adapter.
    pub inherited: Inherited,
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
/// PROVIDER_NOT_FOUND: the name cannot be a device's; else INSUFFICIENT_RESOURCES. Nothing of the device stays in the process then.
pub fn open(
    target: &Target,
    tables: AdapterParts<'static, LinuxBar>,
    choices: &Choices,
) -> DatResult<Device> {
    let options = Options { dma_bytes: choices.dma_bytes, iommu: target.iommu, ..Options::default() };
    let Opened { platform, dma, host, memory, .. } =
        open_platform(&target.device, &options).map_err(|error| {
            complain(choices.library, &format!("{}: {error}", target.device));
            why(&error)
        })?;
    let mut descriptors = platform.descriptors();
    let pinner = platform.pinner();
    match start(target, platform, (dma, host), tables, choices) {
        Ok((adapter, sleeper)) => {
            let is_emulated = matches!(target.device, DeviceName::Socket(_));
            descriptors.extend(sleeper.descriptors());
            let inherited = Inherited::new(&descriptors);
            Ok(Device { adapter, sleeper, pinner, memory, is_emulated, inherited })
        }
        Err(error) => {
            drop(pinner);
            // SAFETY: the platform has gone with the adapter that did not come up, and nobody uses the tables any more.
            unsafe { memory.free() };
            Err(error)
        }
    }
}

/// Makes an adapter of a device, or drops all of it.
fn start(
    target: &Target,
    platform: LinuxPlatform,
    regions: (DmaRegion, HostRegion),
    tables: AdapterParts<'static, LinuxBar>,
    choices: &Choices,
) -> DatResult<(Adapter<'static, LinuxPlatform>, Sleeper)> {
    let Choices { library, id, service_patience, .. } = *choices;
    let sleeper = platform.sleeper().map_err(|error| why(&error))?;
    let mut config =
        AdapterConfig { service_patience, ..AdapterConfig::new(NAMES[0], target.address, &[], seed(target)) };
    config.hca.physical_function = platform.is_physical();
    let adapter = bring_up(platform, regions, tables, &config, id).map_err(|error| {
        complain(library, &format!("{}: {error}", target.device));
        DatReturn::error(ReturnType::InsufficientResources, Subtype::ResourceDevice)
    })?;
    Ok((adapter, sleeper))
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

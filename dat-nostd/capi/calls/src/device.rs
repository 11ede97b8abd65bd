//! Bringing a device up, until its port can be reached by address.

use core::fmt;
use core::time::Duration;
use dat_nostd::{
    Adapter, AdapterConfig, AdapterParts, DatReturn, Instant, OpenError, Platform, ProviderInfo, Registry,
    RegistryEntry,
};
use driver_mlx::{DmaRegion, HostRegion};

/// The names of every adapter: with the CM's framing of RDMA-CM, and with our own.
pub const NAMES: [&str; 2] = ["ib0", "ib0-dat"];

/// How long the port may take to join IP's broadcast group.
const IP_UP: Duration = Duration::from_secs(30);

/// Why a device does not come up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BringUpError {
    /// The HCA or its port.
    Open(OpenError),
    /// Its names are not taken.
    Names(DatReturn),
    /// The port cannot be reached by address.
    NoIp,
}

impl fmt::Display for BringUpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(error) => error.fmt(f),
            Self::Names(error) => error.fmt(f),
            Self::NoIp => f.write_str("the port joined no broadcast group: is there a subnet administrator?"),
        }
    }
}

impl core::error::Error for BringUpError {}

/// Opens an adapter under both [`NAMES`], with `id` in all its handles.
///
/// # Errors
/// [`BringUpError`]. The device is left alone then.
pub fn bring_up<P: Platform>(
    platform: P,
    (dma, host): (DmaRegion, HostRegion),
    tables: AdapterParts<'static, P::Bar>,
    config: &AdapterConfig<'static>,
    id: u8,
) -> Result<Adapter<'static, P>, BringUpError> {
    let opened = Adapter::open(platform, dma, host, tables, config);
    let mut adapter = opened.map_err(BringUpError::Open)?;
    let mut names = [RegistryEntry::EMPTY; NAMES.len()];
    let mut registry = Registry::with_first_id(&mut names, id);
    let ready = NAMES
        .into_iter()
        .try_for_each(|name| registry.registry_add_provider(&mut adapter, ProviderInfo::new(name)))
        .map_err(BringUpError::Names)
        .and_then(|()| wait_ip_up(&mut adapter));
    match ready {
        Ok(()) => Ok(adapter),
        Err(error) => {
            let _ = adapter.close();
            Err(error)
        }
    }
}

fn wait_ip_up<P: Platform>(adapter: &mut Adapter<'static, P>) -> Result<(), BringUpError> {
    let end = adapter.now() + IP_UP;
    loop {
        let now = adapter.now();
        let wake = adapter.poll(now);
        match adapter.ip() {
            Some(ip) if !ip.is_up() => {}
            _ => return Ok(()),
        }
        if now >= end || adapter.is_dead() {
            return Err(BringUpError::NoIp);
        }
        if !wake.is_due(now) && adapter.prepare_idle(adapter.now()) {
            adapter.idle(wake.deadline(now).unwrap_or(Instant::MAX).min(end));
        }
    }
}

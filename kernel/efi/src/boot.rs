//! `rdmaboot.efi`: a boot option for each HCA, whose image a server has.

use crate::console::Console;
use crate::entry::{self, STACK};
use crate::memory;
use apps::boot::{Client, Progress, Settings, Store};
use apps::rds::{Generation, Node, Settings as NodeSettings, Storage};
use core::fmt::{Display, Write};
use core::net::IpAddr;
use core::ops::ControlFlow;
use dat_nostd::{
    Adapter, AdapterConfig, IpConfig, OpenError, ProviderInfo, Registry, RegistryEntry, adapter_storage,
};
use driver_mlx::{Config, Duration, Instant};
use platform_uefi::{
    BootImage, BootOption, Bound, Clock, Device, Firmware, HostMemory, UefiBar, UefiPlatform,
};
use r_efi::efi::Status;
use spin::Mutex;

/// Bytes of the largest memory of a card.
const DMA_LIMIT: usize = 256 << 20;
adapter_storage! {
    struct Tables {
        bar: UefiBar, dma_bytes: DMA_LIMIT, eps: 16, evds: 24, lmrs: 96, events: 128, connections: 16,
    }
}

static TABLES: Mutex<Tables> = Mutex::new(Tables::new());
static STORAGE: Mutex<Storage> = Mutex::new(Storage::new());

/// Names of the adapter's IAs: with RDMA-CM framing, and with DAT's own.
const NAMES: [&str; 2] = ["ib0", "ib0-dat"];

/// Time between two looks at the keyboard.
const KEYS: Duration = Duration::from_millis(100);

/// The boot option of an HCA.
#[derive(Debug)]
pub struct RdmaBoot;

impl BootOption for RdmaBoot {
    const TEXT: &'static str = "RDMA boot";

    fn load(firmware: Firmware, card: &Bound) -> Result<BootImage, Status> {
        let mut console = entry::console();
        let loaded = match entry::settings() {
            None => Err(Failure::new(Status::NOT_FOUND, &mut console, "no settings: bootset.efi sets them")),
            Some(line) => match Settings::parse(&line) {
                Ok(settings) => fetch(firmware, card, &settings, &mut console),
                Err(error) => Err(Failure::new(Status::INVALID_PARAMETER, &mut console, error)),
            },
        };
        loaded.map_err(|Failure(status)| status)
    }
}

/// A failure that was shown.
struct Failure(Status);

impl Failure {
    fn new(status: Status, console: &mut Console, reason: impl Display) -> Self {
        let _ = writeln!(console, "rdmaboot: {reason}; next boot option");
        Self(status)
    }
}

/// Memory for the image.
struct Memory {
    firmware: Firmware,
    pages: Option<HostMemory>,
    len: usize,
}

impl Store for Memory {
    fn reserve(&mut self, bytes: usize) -> bool {
        self.pages = self.firmware.memory(bytes).ok();
        self.len = bytes;
        let mut console = entry::console();
        let _ = writeln!(console, "rdmaboot: {bytes} bytes");
        self.pages.is_some()
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: no region is made of it.
        let pages = self.pages.as_mut().map(|pages| unsafe { pages.bytes() });
        pages.and_then(|pages| pages.get_mut(..self.len)).unwrap_or_default()
    }
}

impl Memory {
    fn free(self) {
        if let Some(pages) = self.pages {
            // SAFETY: no region was made of it.
            unsafe { pages.free() };
        }
    }
}

/// Fetches the image, on a stack of its own. The card is switched off afterwards.
fn fetch(
    firmware: Firmware,
    card: &Bound,
    settings: &Settings,
    console: &mut Console,
) -> Result<BootImage, Failure> {
    let Settings { ip, server, image, .. } = *settings;
    let _ = writeln!(console, "rdmaboot: {}: {ip} loads `{}` from {server}", card.function(), image.as_str());
    let clock = Clock::measure(firmware);
    let began = clock.now();
    let mut image = Memory { firmware, pages: None, len: 0 };
    let work = || match card.open(clock) {
        Ok(device) => with_device(firmware, device, clock, settings, &mut image, console),
        Err(error) => Err(Failure::new(Status::DEVICE_ERROR, console, error)),
    };
    let done = match firmware.on_stack(STACK, work) {
        Ok((done, used)) => done.map(|()| used),
        Err(error) => Err(Failure::new(Status::OUT_OF_RESOURCES, &mut entry::console(), error)),
    };
    let used = match done {
        Ok(used) => used,
        Err(failure) => {
            image.free();
            return Err(failure);
        }
    };
    let (len, took) = (image.len, clock.now() - began);
    let mut console = entry::console();
    let _ = writeln!(console, "@rdmaboot bytes={len} us={} stack={used}", took.as_micros());
    let loaded = image.pages.and_then(|pages| BootImage::new(pages, len));
    loaded.ok_or_else(|| Failure::new(Status::NOT_FOUND, &mut console, "an empty image"))
}

/// Lets the driver have memory, and frees it.
fn with_device(
    firmware: Firmware,
    device: Device,
    clock: Clock,
    settings: &Settings,
    image: &mut Memory,
    console: &mut Console,
) -> Result<(), Failure> {
    let Some(memory) = memory::of_card(firmware, &device) else {
        return Err(Failure::new(Status::OUT_OF_RESOURCES, console, memory::TOO_LITTLE));
    };
    let done = entry::using(device, |device| {
        let (mut tables, mut storage) = (TABLES.lock(), STORAGE.lock());
        // SAFETY: the only region over each memory, which is freed after the device is closed.
        let Some((region, host)) = (unsafe { memory::regions(&memory) }) else {
            return Err(Failure::new(Status::OUT_OF_RESOURCES, console, memory::TOO_LITTLE));
        };
        let platform = device.platform();
        let seconds = entry::seconds();
        let config = AdapterConfig {
            generation: seconds.unwrap_or(0),
            hca: Config { physical_function: platform.is_physical(), ..Config::DEFAULT },
            ip: Some(IpConfig {
                prefix_len: settings.prefix_len,
                gateway: settings.gateway,
                ..IpConfig::DEFAULT
            }),
            activation_timeout: settings.patience,
            ..AdapterConfig::new(NAMES[0], IpAddr::V4(settings.ip), &[], seed(seconds, clock))
        };
        let mut adapter =
            Adapter::open(platform, region, host, tables.parts(), &config).map_err(|error| {
                let status = match error {
                    OpenError::PortNotActive { .. } => Status::NO_MEDIA,
                    OpenError::Hca(_) => Status::DEVICE_ERROR,
                };
                Failure::new(status, console, error)
            })?;
        // RDS opens the adapter's IA by name.
        let mut entries = [RegistryEntry::EMPTY; NAMES.len()];
        let mut registry = Registry::new(&mut entries);
        for name in NAMES {
            let added = registry.registry_add_provider(&mut adapter, ProviderInfo::new(name));
            added.map_err(|error| Failure::new(Status::DEVICE_ERROR, console, error))?;
        }
        let transfer = Transfer { settings, console, seconds, looked_at: clock.now() };
        let done = transfer.run(&mut adapter, &mut storage, image);
        // An adapter that does not close is ended by the device's end.
        let _ = adapter.close();
        done
    });
    let (dma, host) = memory;
    // SAFETY: the device is closed, so bus mastering is off, and the adapter is gone.
    unsafe {
        dma.free();
        host.free();
    }
    done
}

/// Differs from boot to boot.
fn seed(seconds: Option<u64>, clock: Clock) -> u128 {
    let ticks = u128::from(clock.ticks_per_second()) << 32 ^ clock.now().as_nanos() as u128;
    u128::from(seconds.unwrap_or(0)) << 64 ^ ticks
}

struct Transfer<'a> {
    settings: &'a Settings,
    console: &'a mut Console,
    seconds: Option<u64>,
    looked_at: Instant,
}

impl Transfer<'_> {
    fn fail(&mut self, status: Status, reason: impl Display) -> Failure {
        Failure::new(status, self.console, reason)
    }

    /// Waits until IP packets move, and reads the image.
    fn run(
        mut self,
        adapter: &mut Adapter<'_, &UefiPlatform>,
        storage: &mut Storage,
        image: &mut Memory,
    ) -> Result<(), Failure> {
        let end = adapter.now() + self.settings.patience;
        while !adapter.ip().is_some_and(|ip| ip.is_up()) {
            let now = adapter.now();
            if now >= end {
                return Err(self.fail(Status::NO_MEDIA, "the port joined no broadcast group"));
            }
            let wake = adapter.poll(now).deadline(now).unwrap_or(end);
            self.rest(adapter, wake.min(end))?;
        }
        let generation = self.seconds.map_or(Generation::UNKNOWN, |seconds| {
            Generation::from_wall_clock(core::time::Duration::from_secs(seconds))
        });
        let random = self.looked_at.as_nanos();
        let node = NodeSettings { random, generation, stall_timeout: Duration::MAX };
        let settings = *self.settings;
        let started =
            Node::with(adapter, storage, node, |adapter, rds| Client::start(adapter, rds, &settings, image));
        let mut node = started.map_err(|error| self.fail(Status::OUT_OF_RESOURCES, error))?;
        let done = loop {
            let now = adapter.now();
            let wake = adapter.poll(now);
            if let Some(cause) = adapter.hca().fatal() {
                break Err(self.fail(Status::DEVICE_ERROR, cause));
            }
            match node.poll(adapter, now) {
                Ok(ControlFlow::Break(())) => break Ok(()),
                Ok(ControlFlow::Continue(own)) => {
                    let until = wake.earliest(own).deadline(now).unwrap_or(Instant::MAX);
                    if let Err(failure) = self.rest(adapter, until) {
                        break Err(failure);
                    }
                }
                Err(error) => break Err(self.fail(Status::DEVICE_ERROR, error)),
            }
        };
        let progress = node.work().progress();
        // The adapter's end frees what a socket may not.
        let _ = node.close(adapter);
        done?;
        match progress {
            Progress::Done => Ok(()),
            Progress::Failed(error) => Err(self.fail(Status::NO_RESPONSE, error)),
            Progress::Asking | Progress::Reading(..) => Err(self.fail(Status::ABORTED, "the transfer ended")),
        }
    }

    /// Sleeps until `deadline`. The escape key ends the transfer.
    fn rest(&mut self, adapter: &mut Adapter<'_, &UefiPlatform>, deadline: Instant) -> Result<(), Failure> {
        let now = adapter.now();
        if now >= self.looked_at + KEYS {
            self.looked_at = now;
            if self.console.escaped() {
                return Err(self.fail(Status::ABORTED, "escape was pressed"));
            }
        }
        if now < deadline {
            adapter.idle(deadline.min(now + KEYS));
        }
        Ok(())
    }
}

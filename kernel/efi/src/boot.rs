//! `rdmaboot.efi`: a boot option for each HCA, whose image a server has.

use crate::console::Console;
use crate::entry::{self, STACK};
use crate::memory;
use apps::boot::{Client, Name, Progress, Settings, Store};
use apps::rds::{Generation, Node, Settings as NodeSettings, Storage};
use core::fmt::{Display, Write};
use core::net::IpAddr;
use core::ops::ControlFlow;
use dat_nostd::{
    Adapter, AdapterConfig, IpConfig, OpenError, ProviderInfo, Registry, RegistryEntry, adapter_storage,
};
use driver_mlx::{Config, Duration, Instant};
use platform_uefi::{
    BootFile, BootImage, BootOption, Bound, Clock, Device, Error, Firmware, UefiBar, UefiPlatform,
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

/// Name of the adapter.
const NAME: &str = "ib0";

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

    fn returned(outcome: Result<(), Error>) {
        let mut console = entry::console();
        let _ = match outcome {
            Ok(()) => Failure::new(Status::ABORTED, &mut console, "the image returned"),
            Err(error) => Failure::new(Status::ABORTED, &mut console, error),
        };
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

/// A file of the server's, and memory for it.
struct Wanted {
    firmware: Firmware,
    name: Name,
    file: Option<BootFile>,
}

/// The image, and the initial RAM disk.
type Files = heapless::Vec<Wanted, 2>;

impl Store for Wanted {
    fn reserve(&mut self, bytes: usize) -> bool {
        self.file = BootFile::new(self.firmware, bytes).ok();
        let _ = writeln!(entry::console(), "rdmaboot: `{}`: {bytes} bytes", self.name.as_str());
        self.file.is_some()
    }

    fn bytes(&mut self) -> &mut [u8] {
        self.file.as_mut().map(BootFile::bytes).unwrap_or_default()
    }
}

/// Fetches the image, on a stack of its own. The card is switched off afterwards.
fn fetch(
    firmware: Firmware,
    card: &Bound,
    settings: &Settings<'_>,
    console: &mut Console,
) -> Result<BootImage, Failure> {
    let Settings { ip, server, image, .. } = *settings;
    let _ = writeln!(console, "rdmaboot: {}: {ip} loads `{}` from {server}", card.function(), image.as_str());
    let clock = Clock::measure(firmware);
    let began = clock.now();
    let names = [Some(image), settings.initrd].into_iter().flatten();
    let mut files: Files = names.map(|name| Wanted { firmware, name, file: None }).collect();
    let work = || match card.open(clock) {
        Ok(device) => with_device(firmware, device, clock, settings, &mut files, console),
        Err(error) => Err(Failure::new(Status::DEVICE_ERROR, console, error)),
    };
    let used = match firmware.on_stack(STACK, work) {
        Ok((done, used)) => done.map(|()| used)?,
        Err(error) => return Err(Failure::new(Status::OUT_OF_RESOURCES, &mut entry::console(), error)),
    };
    let took = clock.now() - began;
    let mut console = entry::console();
    let mut files = files.into_iter().filter_map(|wanted| wanted.file);
    let (image, initrd) = (files.next(), files.next());
    let image = image.ok_or_else(|| Failure::new(Status::NOT_FOUND, &mut console, "an empty image"))?;
    let of_initrd = initrd.as_ref().map_or(0, BootFile::len);
    let (bytes, us) = (image.len(), took.as_micros());
    let _ = writeln!(console, "@rdmaboot bytes={bytes} initrd={of_initrd} us={us} stack={used}");
    let arguments = Some(settings.arguments).filter(|text| !text.is_empty());
    let arguments = arguments.map(|text| BootFile::command_line(firmware, text)).transpose();
    let arguments = arguments.map_err(|error| Failure::new(Status::OUT_OF_RESOURCES, &mut console, error))?;
    Ok(BootImage::new(image, arguments, initrd))
}

/// Lets the driver have memory, and frees it.
fn with_device(
    firmware: Firmware,
    device: Device,
    clock: Clock,
    settings: &Settings<'_>,
    files: &mut [Wanted],
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
            ..AdapterConfig::new(NAME, IpAddr::V4(settings.ip), &[], seed(seconds, clock))
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
        let mut entries = [RegistryEntry::EMPTY];
        let added = Registry::new(&mut entries).registry_add_provider(&mut adapter, ProviderInfo::new(NAME));
        added.map_err(|error| Failure::new(Status::DEVICE_ERROR, console, error))?;
        let transfer = Transfer { settings, console, seconds, looked_at: clock.now() };
        let done = transfer.run(&mut adapter, &mut storage, files);
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
    settings: &'a Settings<'a>,
    console: &'a mut Console,
    seconds: Option<u64>,
    looked_at: Instant,
}

impl Transfer<'_> {
    fn fail(&mut self, status: Status, reason: impl Display) -> Failure {
        Failure::new(status, self.console, reason)
    }

    /// Waits until IP packets move, and reads the files.
    fn run(
        mut self,
        adapter: &mut Adapter<'_, &UefiPlatform>,
        storage: &mut Storage,
        files: &mut [Wanted],
    ) -> Result<(), Failure> {
        let mut files = files.iter_mut().map(|file| (file.name, file));
        let Some((name, first)) = files.next() else { return Ok(()) };
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
        let started = Node::with(adapter, storage, node, |adapter, rds| {
            Client::start(adapter, rds, &settings, name, first)
        });
        let mut node = started.map_err(|error| self.fail(Status::OUT_OF_RESOURCES, error))?;
        let done = loop {
            let now = adapter.now();
            let wake = adapter.poll(now);
            if let Some(cause) = adapter.hca().fatal() {
                break Err(self.fail(Status::DEVICE_ERROR, cause));
            }
            match node.poll(adapter, now) {
                Ok(ControlFlow::Break(())) if node.work().progress() == Progress::Done => {
                    match files.next() {
                        Some((name, next)) => node.work_mut().fetch_next(name, next, now),
                        None => break Ok(()),
                    }
                }
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

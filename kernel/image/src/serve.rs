//! `app=serve`: gives boot images, the loader's files, to `rdmaboot.efi`. `@quit` on the console ends it.

use apps::boot::{Image, Name, Server};
use apps::rds::{Node, Settings, Storage};
use driver_mlx::Duration;
use unikernel::adapter::Adapter;
use unikernel::{Clock, ExitCode, Machine, Mutex, options, println};

use crate::cmdline::Options;
use crate::node::{self, Failure, QuitLine};

static STORAGE: Mutex<Storage> = Mutex::new(Storage::new());

/// Most images: as many as the loader has files.
const IMAGES: usize = 4;

type Files = heapless::Vec<(Name, &'static [u8]), IMAGES>;

fn config(machine: &Machine) -> Result<(Settings, Files), options::Error<'static>> {
    let files = machine.modules().map(|(name, bytes)| (Name::new(name).unwrap_or(Name::EMPTY), bytes));
    let files: Files = files.collect();
    if files.is_empty() {
        return Err(node::missing("a boot image", "QEMU's -initrd FILE, or GRUB's module2 FILE NAME"));
    }
    let generation = node::generation(machine);
    Ok((Settings { random: machine.seed() as u64, generation, stall_timeout: Duration::MAX }, files))
}

pub fn run(machine: &mut Machine, options: &Options<'_>) -> ExitCode {
    let (setup, clock) = (config(machine), machine.clock());
    node::run(machine, options, setup, |adapter, (settings, files)| work(adapter, clock, *settings, files))
}

fn work(
    adapter: &mut Adapter<'_>,
    clock: Clock,
    settings: Settings,
    files: &[(Name, &[u8])],
) -> Result<(), Failure> {
    node::wait_if_ip(adapter, clock)?;
    let mut images = heapless::Vec::<Image, IMAGES>::new();
    for (name, bytes) in files {
        let image = Image::new(adapter, *name, bytes).map_err(Failure::app)?;
        println!("@serve image={} bytes={} checksum={:#010x}", name.as_str(), image.size(), image.checksum());
        // As many as there are files fit.
        let _ = images.push(image);
    }
    let mut storage = STORAGE.lock();
    let started =
        Node::with(adapter, &mut storage, settings, |adapter, rds| Server::start(adapter, rds, &images));
    let mut server = started.map_err(Failure::app)?;
    println!("@serve listening port={}", apps::boot::PORT);
    let (mut quit, mut shown) = (QuitLine::new(), 0);
    let driven = node::drive_on(adapter, clock, |adapter, now| {
        let Some(now) = now else {
            return node::carry_on(server.adapter_recovered(adapter), adapter);
        };
        let status = server.poll(adapter, now).map_err(Failure::app)?;
        let served = server.work().served();
        if served.parts != shown {
            shown = served.parts;
            println!("@serve parts={} bytes={}", served.parts, served.bytes);
        }
        Ok(node::together(status, quit.poll(now)))
    });
    let served = server.work().served();
    println!(
        "@serve parts={} bytes={} refused={} malformed={}",
        served.parts, served.bytes, served.refused, served.malformed
    );
    let closed = server.close(adapter).map_err(Failure::app);
    driven?;
    closed?;
    for image in images {
        image.free(adapter).map_err(Failure::app)?;
    }
    node::linger(adapter, clock)
}

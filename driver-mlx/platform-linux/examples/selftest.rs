//! Tests an HCA without a partner, step by step, like `app=selftest` of the unikernel.

use apps::rds::Generation;
use apps::selftest::{self, Storage};
use driver_mlx::Config;
use platform_linux::{DeviceName, Iommu, LinuxBar, Opened, Options, open};
use std::error::Error;
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::process::ExitCode;
use std::time::SystemTime;

/// MiB of the DMA region: what it is, and what the tables of a self-test can describe.
const DMA: usize = 256;
const MOST_DMA: usize = 512;

const USAGE: &str = "selftest --vfio HCA | --socket PATH, and perhaps --dma MIB: memory that the HCA reaches (256; at most 512), \
                     --iommu group | iommufd: how VFIO is opened (what there is), --dump FILE: the output, and what \
                     `cargo xtask profile` reads";

/// Arguments of the command line.
struct Asked {
    device: DeviceName,
    options: Options,
    /// File for the output with the dump.
    dump: Option<File>,
}

fn arguments() -> Result<Asked, Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let device = match (words.next().as_deref(), words.next()) {
        (Some("--vfio"), Some(name)) => name.parse()?,
        (Some("--socket"), Some(path)) => DeviceName::Socket(path.into()),
        _ => return Err(format!("usage: {USAGE}").into()),
    };
    let mut dump = None;
    let mut options = Options { dma_bytes: DMA << 20, ..Options::default() };
    while let Some(word) = words.next() {
        let value = words.next().unwrap_or_default();
        match (word.as_str(), value.as_str()) {
            ("--iommu", "group") => options.iommu = Iommu::Group,
            ("--iommu", "iommufd") => options.iommu = Iommu::Iommufd,
            ("--dma", mib) => match mib.parse() {
                Ok(mib) if (1..=MOST_DMA).contains(&mib) => options.dma_bytes = mib << 20,
                _ => return Err(format!("--dma {mib}: 1 to {MOST_DMA} MiB").into()),
            },
            ("--dump", path) if !path.is_empty() => {
                let file = File::create(path).map_err(|error| format!("cannot write {path}: {error}"))?;
                dump = Some(file);
            }
            _ => return Err(format!("usage: {USAGE}").into()),
        }
    }
    Ok(Asked { device, options, dump })
}

fn main() -> ExitCode {
    match arguments().and_then(test) {
        Ok(verified) => {
            if verified {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Opening a device resets it, and has memory for one bring-up: for the second it is opened again.
/// Returns whether the card is sound.
fn test(Asked { device, options, mut dump }: Asked) -> Result<bool, Box<dyn Error>> {
    let (dumps, mut written) = (dump.is_some(), Ok(()));
    let mut tell = |line: fmt::Arguments<'_>| {
        let line = line.to_string();
        if let Some(file) = &mut dump {
            // The first failure is the one to report.
            written = std::mem::replace(&mut written, Ok(())).and_then(|()| writeln!(file, "{line}"));
        }
        if !line.starts_with("@dump ") {
            println!("{line}");
        }
    };
    let mut storage = Box::new(Storage::<LinuxBar>::new());
    let Opened { platform, dma, host, .. } = open(&device, &options)?;
    let config = Config { physical_function: platform.is_physical(), ..Config::DEFAULT };
    let mut summary = selftest::run(&platform, Some((dma, host)), &mut storage, (&config, dumps), &mut tell);
    drop(platform);
    let Opened { platform, dma, host, .. } = open(&device, &options)?;
    let boot = Generation::from_wall_clock(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?);
    selftest::layers(&platform, Some((dma, host)), &mut storage, (&config, boot), &mut summary, &mut tell);
    summary.tell(&mut tell);
    tell(format_args!("@done verified={}", summary.verified()));
    written?;
    Ok(summary.verified())
}

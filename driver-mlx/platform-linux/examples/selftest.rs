//! Tests an HCA without a partner, step by step, like `app=selftest` of the unikernel.

use apps::rds::Generation;
use apps::selftest::{self, Storage, Summary};
use driver_mlx::Config;
use platform_linux::{DeviceName, Iommu, LinuxBar, Opened, Options, open};
use std::error::Error;
use std::process::ExitCode;
use std::time::SystemTime;

/// MiB of the DMA region: what it is, and what the tables of a self-test can describe.
const DMA: usize = 256;
const MOST_DMA: usize = 512;

const USAGE: &str = "selftest --vfio HCA | --socket PATH, and perhaps --dma MIB: memory that the HCA reaches (256; at most 512), \
                     --iommu group | iommufd: how VFIO is opened (what there is)";

fn arguments() -> Result<(DeviceName, Options), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let device = match (words.next().as_deref(), words.next()) {
        (Some("--vfio"), Some(name)) => name.parse()?,
        (Some("--socket"), Some(path)) => DeviceName::Socket(path.into()),
        _ => return Err(format!("usage: {USAGE}").into()),
    };
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
            _ => return Err(format!("usage: {USAGE}").into()),
        }
    }
    Ok((device, options))
}

fn main() -> ExitCode {
    match arguments().and_then(|(device, options)| test(&device, &options)) {
        Ok(summary) => {
            summary.tell(&mut tell);
            println!("@done verified={}", summary.verified());
            if summary.verified() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn tell(line: std::fmt::Arguments<'_>) {
    println!("{line}");
}

/// Opening a device resets it, and has memory for one bring-up: for the second it is opened again.
fn test(device: &DeviceName, options: &Options) -> Result<Summary, Box<dyn Error>> {
    let mut storage = Box::new(Storage::<LinuxBar>::new());
    let Opened { platform, dma, host, .. } = open(device, options)?;
    let config = Config { physical_function: platform.is_physical(), ..Config::DEFAULT };
    let mut summary = selftest::run(&platform, Some((dma, host)), &mut storage, &config, &mut tell);
    drop(platform);
    let Opened { platform, dma, host, .. } = open(device, options)?;
    let boot = Generation::from_wall_clock(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?);
    selftest::layers(&platform, Some((dma, host)), &mut storage, (&config, boot), &mut summary, &mut tell);
    Ok(summary)
}

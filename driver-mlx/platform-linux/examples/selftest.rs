//! What an HCA can do without a partner, step by step, as `app=selftest` of the unikernel has it.

use apps::rds::Generation;
use apps::selftest::{self, Storage, Summary};
use driver_mlx::Config;
use platform_linux::{DeviceName, LinuxBar, Opened, Options, open};
use std::error::Error;
use std::process::ExitCode;
use std::time::SystemTime;

/// Bytes of the DMA region.
const DMA_BYTES: usize = 256 << 20;

const USAGE: &str = "selftest --vfio HCA | --socket PATH";

fn device() -> Result<DeviceName, Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    match (words.next().as_deref(), words.next()) {
        (Some("--vfio"), Some(name)) => Ok(name.parse()?),
        (Some("--socket"), Some(path)) => Ok(DeviceName::Socket(path.into())),
        _ => Err(format!("usage: {USAGE}").into()),
    }
}

fn main() -> ExitCode {
    match device().and_then(|device| test(&device)) {
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
fn test(device: &DeviceName) -> Result<Summary, Box<dyn Error>> {
    let options = Options { dma_bytes: DMA_BYTES, ..Options::default() };
    let mut storage = Box::new(Storage::<LinuxBar>::new());
    let config = Config::DEFAULT;
    let Opened { platform, dma, host, .. } = open(device, &options)?;
    let mut summary = selftest::run(&platform, Some((dma, host)), &mut storage, &config, &mut tell);
    drop(platform);
    let Opened { platform, dma, host, .. } = open(device, &options)?;
    let boot = Generation::from_wall_clock(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?);
    selftest::layers(&platform, Some((dma, host)), &mut storage, (&config, boot), &mut summary, &mut tell);
    Ok(summary)
}

//! What an HCA can do without a partner, step by step, as `app=selftest` of the unikernel has it.

use apps::selftest;
use driver_mlx::{Config, HcaStorage};
use platform_linux::{DeviceName, Opened, Options, open};
use std::process::ExitCode;

/// Bytes of the DMA region, and blocks that describe it.
const DMA_BYTES: usize = 256 << 20;
const BLOCKS: usize = DMA_BYTES / 4096;

const USAGE: &str = "selftest --vfio ADDRESS | --socket PATH";

fn device() -> Option<DeviceName> {
    let mut words = std::env::args().skip(1);
    let (kind, value) = (words.next()?, words.next()?);
    match kind.as_str() {
        "--vfio" => value.parse().ok().map(DeviceName::Vfio),
        "--socket" => Some(DeviceName::Socket(value.into())),
        _ => None,
    }
}

fn main() -> ExitCode {
    let Some(device) = device() else {
        eprintln!("usage: {USAGE}");
        return ExitCode::FAILURE;
    };
    let Opened { platform, dma, host, .. } =
        match open(&device, &Options { dma_bytes: DMA_BYTES, ..Options::default() }) {
            Ok(opened) => opened,
            Err(error) => {
                eprintln!("error: {error}");
                return ExitCode::FAILURE;
            }
        };
    // Opening has reset the device, and has memory for one bring-up.
    let mut memory = Some((dma, host));
    let mut storage = Box::new(HcaStorage::<BLOCKS>::new());
    let mut tell = |line: std::fmt::Arguments<'_>| println!("{line}");
    let summary = selftest::run(&platform, || memory.take(), &mut storage, &Config::DEFAULT, &mut tell);
    summary.tell(&mut tell);
    println!("@done verified={}", summary.verified());
    if summary.verified() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

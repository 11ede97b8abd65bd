//! `cargo xtask serve`: emulated HCAs for any QEMU and any guest.

use crate::error::{Error, Result};
use crate::process;
use crate::qemu::{hca_argument, memory_arguments};
use hca_serve::{Options, Served};
use std::time::Duration;

/// Serves HCAs until the answer is dropped or the tool ends, by a signal too: then the sockets are gone and a capture is complete.
///
/// # Errors
/// As [`hca_serve::serve`].
pub fn serve(options: Options) -> Result<Served> {
    let served = hca_serve::serve(options)?;
    let handle = served.handle().clone();
    process::before_exit(move || drop(handle.stop()));
    Ok(served)
}

/// Serves until the tool is ended, after printing the QEMU arguments to use.
///
/// # Errors
/// As [`serve`]; and the devices' thread ended.
pub fn run(options: Options) -> Result<()> {
    let (seed, faults) = (options.seed, options.faults);
    let capture = options.capture.clone();
    let served = serve(options)?;
    println!("serving emulated ConnectX-5 HCAs, seed {seed}, faults {faults}");
    if let Some(path) = capture {
        println!("capturing to {}", path.display());
    }
    println!("guest memory has to be shared; for 1 GiB of it:");
    println!("  {}", memory_arguments(1024).join(" "));
    println!("and for each guest the device (in QEMU 10.1 or later; `cargo xtask qemu ...` starts one):");
    for socket in served.sockets() {
        println!("  -device '{}'", hca_argument(socket));
    }
    println!("end with Ctrl-C");
    while served.is_alive() {
        std::thread::sleep(Duration::from_millis(500));
    }
    process::clean_up();
    Err(Error::Serve("the emulated HCAs' thread ended before its time".into()))
}

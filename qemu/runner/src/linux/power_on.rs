//! Time from power on to an Active port, for Linux and for the unikernel, in one run at one server.
//!
//! Both times include firmware. `seconds` is wall-clock time and includes QEMU's own start. The
//! comparison uses the processor time of QEMU's CPU thread, because it excludes sleep and other
//! load of this host.

use rdma_lab::error::{Error, Result};
use rdma_lab::linux::{Lab, Ready};
use rdma_lab::qemu::Output;
use rdma_lab::unikernel;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time limit.
const LIMIT: Duration = Duration::from_secs(180);
/// Guest script, which only loads the driver and waits for the port.
const SCRIPT: &str = "modprobe mlx5_ib && ports-active";
/// Line that the unikernel prints when its port is Active.
const ACTIVE: &str = "port Active:";

/// Returns the time of guest `number`, which has just booted and has not loaded its driver.
///
/// # Errors
/// The port does not become Active.
pub fn linux(lab: &mut Lab, number: usize) -> Result<Ready> {
    let answer = lab.run(number, SCRIPT, LIMIT)?;
    if !answer.success() {
        return Err(Error::Guest(format!("the Linux guest's port is not active: {}", answer.text())));
    }
    lab.guest(number)?.spent()
}

/// Returns the time of the unikernel `image` on the lab's HCA `node`.
///
/// # Errors
/// The unikernel exits before its port is Active.
pub fn unikernel(lab: &Lab, image: &Path, node: usize) -> Result<Ready> {
    let mut options = unikernel::Options::new("app=hca");
    options.hcas = vec![lab.socket(node)?.to_path_buf()];
    options.accelerator.clone_from(&lab.options().accelerator);
    // Keep QEMU after the machine is switched off, so that its processor time can be read.
    options.exit_device = false;
    options.more = vec!["-no-shutdown".into()];
    let mut running = unikernel::start(lab.qemu(), image, &options)?;
    let deadline = Instant::now() + LIMIT;
    let mut lines = Vec::new();
    while let Some(output) = running.next_line(deadline)? {
        let Output::Console(line) = output else { continue };
        if line.starts_with(ACTIVE) {
            let ready = running.spent()?;
            running.kill(None)?;
            return Ok(ready);
        }
        lines.push(line);
        if lines.last().is_some_and(|line| line.starts_with("@done")) {
            break;
        }
    }
    Err(Error::Guest(format!("the unikernel's port is not active: {}", lines.join("\n"))))
}

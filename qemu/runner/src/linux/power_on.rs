//! From power on to an HCA whose port is Active: what Linux takes for it and what the unikernel takes, in one run, at one server.
//!
//! Both are measured from power on, firmware included. The seconds are what one sees, QEMU's own start among them; what is judged is the
//! processor time of the machine's CPU, which is that of a thread of QEMU's: nobody else's work on this host shows in it, and nobody's sleep.

use super::Ready;
use super::lab::Lab;
use crate::error::{Error, Result};
use crate::qemu::Output;
use crate::unikernel;
use std::path::Path;
use std::time::{Duration, Instant};

/// The longest that it may take.
const LIMIT: Duration = Duration::from_secs(180);
/// What the guest does for it: its own driver, and nothing else.
const SCRIPT: &str = "modprobe mlx5_ib && ports-active";
/// The unikernel's line when its port is Active.
const ACTIVE: &str = "port Active:";

/// What guest `number` takes, which has just come up and has not loaded its driver.
///
/// # Errors
/// Its port does not become Active.
pub fn linux(lab: &mut Lab, number: usize) -> Result<Ready> {
    let answer = lab.run(number, SCRIPT, LIMIT)?;
    if !answer.success() {
        return Err(Error::Guest(format!("the Linux guest's port is not active: {}", answer.text())));
    }
    lab.guest(number)?.spent()
}

/// What the unikernel `image` takes on the lab's HCA `node`.
///
/// # Errors
/// It ends before its port is Active.
pub fn unikernel(lab: &Lab, image: &Path, node: usize) -> Result<Ready> {
    let mut options = unikernel::Options::new("app=hca");
    options.hcas = vec![lab.socket(node)?.to_path_buf()];
    options.accelerator.clone_from(&lab.options().accelerator);
    // QEMU stays when the machine is switched off: a machine that is gone has nothing to be measured.
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

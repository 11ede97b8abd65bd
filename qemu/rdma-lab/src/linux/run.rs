//! Linux guests that run a script, unikernels, or both, on one fabric.

use super::guest::Answer;
use super::lab::{Lab, Options};
use crate::error::{Error, Result};
use crate::qemu::Output;
use crate::setup;
use crate::unikernel::{self, Verdict};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Script of the guests if the user gives none.
const DEFAULT_SCRIPT: &str = "uname -a; lspci -nn; hcas-up && ibv_devinfo; dmesg | grep -i mlx5";

/// Options of the user.
#[derive(Debug, Clone)]
pub struct Run {
    /// Linux guests, HCAs and fabric. `run` sets `spare` and `show`.
    pub lab: Options,
    /// Shell script that all Linux guests run at the same time. `$GUEST` is the guest's number,
    /// `$GUESTS` the number of guests.
    pub script: Option<String>,
    /// Command lines of unikernels. Each has an HCA, numbered after those of the Linux guests.
    pub unikernels: Vec<String>,
    /// Image of the unikernels; `None` if there are none.
    pub image: Option<PathBuf>,
    /// Time limit of scripts and unikernels.
    pub limit: Duration,
}

/// Runs guests and unikernels and shows their output. Returns the highest status of the scripts, or
/// 1 if all succeed and a unikernel fails.
///
/// # Errors
/// A guest or unikernel cannot be started or does not exit. A unikernel that serves Linux guests is
/// stopped after they exit.
pub fn run(run: &Run) -> Result<u8> {
    let started = Instant::now();
    let qemu = setup::qemu()?;
    let options = Options { spare: run.unikernels.len(), show: true, ..run.lab.clone() };
    let guests = options.guests.len();
    let accelerator = options.accelerator.clone();
    println!(
        "{guests} Linux guests and {} unikernels by {accelerator}, seed {}",
        run.unikernels.len(),
        options.seed
    );
    let mut lab = Lab::start(&qemu, options)?;
    if guests > 0 {
        println!("Linux {}, booted in {:.1} s", lab.versions().join(", "), started.elapsed().as_secs_f64());
    }
    let (sender, ends) = mpsc::channel();
    if let Some(image) = &run.image {
        for (number, words) in run.unikernels.iter().enumerate() {
            let mut options = unikernel::Options::new(words);
            options.hcas = vec![lab.socket(lab.first_spare() + number)?.to_path_buf()];
            options.accelerator.clone_from(&accelerator);
            let (qemu, image, limit, sender) = (qemu.clone(), image.clone(), run.limit, sender.clone());
            // The thread ends with its unikernel, or with the tool.
            std::thread::spawn(move || {
                let name = format!("unikernel {number}");
                let ended = unikernel::boot(&qemu, &image, &options, limit, |line| match line {
                    Output::Console(line) => println!("{name}: {line}"),
                    Output::Qemu(line) => eprintln!("{name}: qemu: {line}"),
                });
                // An error means that the tool is exiting.
                let _ = sender.send((number, ended.map(|transcript| transcript.verdict)));
            });
        }
    }
    drop(sender);
    let mut status = 0;
    if guests > 0 {
        let answers = lab.run_everywhere(run.script.as_deref().unwrap_or(DEFAULT_SCRIPT), run.limit)?;
        for (number, Answer { status, time, .. }) in answers.iter().enumerate() {
            println!("guest {number}: status {status} after {:.1} s", time.as_secs_f64());
        }
        status = answers.iter().map(|answer| answer.status).max().unwrap_or(0);
    }
    let failed = take_ends(&ends, run.unikernels.len(), guests == 0)?;
    let summary = lab.stop()?;
    let fabric = summary.fabric;
    println!(
        "{} packets, {} lost, {} duplicated, {} reordered, {} corrupted, {} sent again; refusals of each HCA: {:?}",
        fabric.sent,
        fabric.dropped,
        fabric.duplicated,
        fabric.reordered,
        fabric.corrupted,
        summary.retransmitted,
        summary.refusals
    );
    println!("total {:.1} s", started.elapsed().as_secs_f64());
    Ok(if status == 0 { u8::from(failed) } else { status })
}

/// Number and result of a unikernel.
type End = (usize, Result<Option<Verdict>>);

/// Grace period for unikernels after all Linux guests have exited. They are servers then.
const MOMENT: Duration = Duration::from_secs(2);

/// Shows the results of the unikernels. Waits for all of them if `all` is set. Returns whether one
/// failed.
fn take_ends(ends: &Receiver<End>, count: usize, all: bool) -> Result<bool> {
    let mut failed = false;
    for left in (1..=count).rev() {
        let end = if all {
            ends.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            ends.recv_timeout(MOMENT)
        };
        match end {
            Ok((number, ended)) => {
                let verdict = ended?;
                match verdict {
                    Some(verdict) => println!("unikernel {number} {verdict}"),
                    None => println!("unikernel {number} did not end"),
                }
                failed |= verdict != Some(Verdict::Success);
            }
            Err(RecvTimeoutError::Timeout) => {
                println!("{left} unikernels still ran");
                return Ok(failed);
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::Program("a unikernel's thread has ended".into()));
            }
        }
    }
    Ok(failed)
}

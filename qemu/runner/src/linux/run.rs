//! `cargo xtask guests`: Linux guests that run a script, unikernels, or both, on one fabric.

use super::guest::Answer;
use super::lab::{Lab, Options};
use crate::error::{Error, Result};
use crate::kernel_image;
use crate::qemu::Output;
use crate::setup;
use crate::unikernel::{self, Verdict};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// What a guest runs when the user names nothing.
const DEFAULT_SCRIPT: &str = "uname -a; lspci -nn; hcas-up && ibv_devinfo; dmesg | grep -i mlx5";

/// What the user asked for.
#[derive(Debug, Clone)]
pub struct Run {
    /// Linux guests, if any, HCAs and fabric; `spare` and `show` are set here.
    pub lab: Options,
    /// The shell script that every Linux guest runs, at the same time; `$GUEST` is its number, `$GUESTS` how many there are.
    pub script: Option<String>,
    /// Command lines of unikernels with an HCA each, behind the Linux guests' on the same fabric.
    pub unikernels: Vec<String>,
    /// The unikernels' image, in place of the project's own.
    pub image: Option<PathBuf>,
    /// The longest that scripts may run, and unikernels.
    pub limit: Duration,
}

/// Runs it, showing everything; answers the highest status of the scripts, or 1 where these succeed and a unikernel fails.
///
/// # Errors
/// A guest or a unikernel cannot be started, or does not end. A unikernel that serves Linux guests need not end: it ends with them.
pub fn run(run: &Run) -> Result<u8> {
    let started = Instant::now();
    let (qemu, image) = match (&run.image, run.unikernels.is_empty()) {
        (_, true) => (setup::qemu()?, None),
        (Some(image), false) => (setup::qemu()?, Some(image.clone())),
        (None, false) => (setup::all()?, Some(kernel_image::build()?)),
    };
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
    if let Some(image) = image {
        for (number, words) in run.unikernels.iter().enumerate() {
            let mut options = unikernel::Options::new(words);
            options.hcas = vec![lab.socket(lab.first_spare() + number)?.to_path_buf()];
            options.accelerator.clone_from(&accelerator);
            let (qemu, image, limit, sender) = (qemu.clone(), image.clone(), run.limit, sender.clone());
            // It ends with its own work, or with the tool.
            std::thread::spawn(move || {
                let name = format!("unikernel {number}");
                let ended = unikernel::boot(&qemu, &image, &options, limit, |line| match line {
                    Output::Console(line) => println!("{name}: {line}"),
                    Output::Qemu(line) => eprintln!("{name}: qemu: {line}"),
                });
                // Nobody listens when the tool ends.
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

/// A unikernel's number, and how it ended.
type End = (usize, Result<Option<Verdict>>);

/// Where Linux guests have ended, unikernels that still run are servers, which get a moment to end by themselves.
const MOMENT: Duration = Duration::from_secs(2);

/// Shows how the unikernels ended, waiting for all where nothing else is waited for; answers whether one failed.
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

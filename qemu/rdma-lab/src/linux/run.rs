//! Linux guests that run a script, unikernels, or both, on one fabric.

use super::guest::Answer;
use super::lab::{Lab, Options};
use crate::error::{Error, Result};
use crate::qemu::Output;
use crate::setup;
use crate::unikernel::{self, Verdict};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Script of the guests if the user gives none.
const DEFAULT_SCRIPT: &str = "uname -a; lspci -nn; hcas-up && ibv_devinfo; dmesg | grep -i mlx5";

/// A unikernel beside the guests.
#[derive(Debug, Clone)]
pub struct Unikernel {
    /// Its image.
    pub image: PathBuf,
    /// Its command line.
    pub words: String,
    /// True if it serves the others: the run does not wait for its end.
    pub is_server: bool,
}

/// Options of the user.
#[derive(Debug, Clone)]
pub struct Run {
    /// Linux guests, HCAs and fabric. `run` sets `spare` and `show`.
    pub lab: Options,
    /// Shell script that all Linux guests run at the same time. `$GUEST` is the guest's number,
    /// `$GUESTS` the number of guests.
    pub script: Option<String>,
    /// Unikernels. Each has an HCA, numbered after those of the Linux guests.
    pub unikernels: Vec<Unikernel>,
    /// Time limit of scripts and unikernels.
    pub limit: Duration,
}

/// Runs guests and unikernels and shows their output. Returns the highest status of the scripts, or
/// 1 if all succeed and a unikernel fails.
///
/// # Errors
/// A guest or unikernel cannot be started or does not exit. A unikernel that serves others is
/// stopped after they have ended, and every unikernel after the Linux guests have.
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
    for (number, Unikernel { image, words, .. }) in run.unikernels.iter().enumerate() {
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
    drop(sender);
    let mut status = 0;
    if guests > 0 {
        let answers = lab.run_everywhere(run.script.as_deref().unwrap_or(DEFAULT_SCRIPT), run.limit)?;
        for (number, Answer { status, time, .. }) in answers.iter().enumerate() {
            println!("guest {number}: status {status} after {:.1} s", time.as_secs_f64());
        }
        status = answers.iter().map(|answer| answer.status).max().unwrap_or(0);
    }
    let failed = take_ends(&ends, &run.unikernels, guests == 0)?;
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

/// Shows the results of the unikernels. Waits for those that are no servers: without limit if `all`
/// is set. Returns whether one failed.
fn take_ends(ends: &Receiver<End>, unikernels: &[Unikernel], all: bool) -> Result<bool> {
    let mut running: BTreeSet<usize> = (0..unikernels.len()).collect();
    let mut failed = false;
    let is_server = |number: &usize| unikernels.get(*number).is_some_and(|unikernel| unikernel.is_server);
    while !running.iter().all(is_server) {
        let end = if all {
            ends.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            ends.recv_timeout(MOMENT)
        };
        match end {
            Ok((number, ended)) => {
                running.remove(&number);
                let verdict = ended?;
                match verdict {
                    Some(verdict) => println!("unikernel {number} {verdict}"),
                    None => println!("unikernel {number} did not end"),
                }
                failed |= verdict != Some(Verdict::Success);
            }
            Err(RecvTimeoutError::Timeout) => break,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::Program("a unikernel's thread has ended".into()));
            }
        }
    }
    if !running.is_empty() {
        println!("{} unikernels still ran", running.len());
    }
    Ok(failed)
}

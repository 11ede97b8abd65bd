//! `cargo xtask linux`: guests run a script, beside unikernels where asked.

use super::guest::Answer;
use super::lab::{Lab, Options};
use crate::error::Result;
use crate::kernel_image;
use crate::qemu::Output;
use crate::setup;
use crate::unikernel;
use std::time::{Duration, Instant};

/// What a guest runs when the user names nothing.
const DEFAULT_SCRIPT: &str = "uname -a; lspci -nn; modprobe mlx5_ib && modprobe ib_uverbs && sleep 1 && ibv_devinfo; \
    dmesg | grep -i mlx5";

/// What the user asked for.
#[derive(Debug, Clone)]
pub struct Run {
    /// Guests, HCAs and fabric; `spare` and `show` are set here.
    pub lab: Options,
    /// The shell script that every guest runs, at the same time; `$GUEST` is its number, `$GUESTS` how many there are.
    pub script: Option<String>,
    /// Command lines of unikernels with an HCA each, behind the guests' on the same fabric.
    pub unikernels: Vec<String>,
    /// The longest that the script may run.
    pub limit: Duration,
}

/// Runs it, showing everything; answers the highest status of the guests' scripts.
///
/// # Errors
/// A guest or a unikernel cannot be started, or a guest does not end its script.
pub fn run(run: &Run) -> Result<u8> {
    let started = Instant::now();
    let qemu = if run.unikernels.is_empty() { setup::qemu()? } else { setup::all()? };
    let image = if run.unikernels.is_empty() { None } else { Some(kernel_image::build()?) };
    let options = Options { spare: run.unikernels.len(), show: true, ..run.lab.clone() };
    println!("{} guests with {} HCAs each, seed {}", options.guests, options.hcas, options.seed);
    let mut lab = Lab::start(&qemu, options)?;
    println!("Linux {}, booted in {:.1} s", lab.version(), started.elapsed().as_secs_f64());
    if let Some(image) = image {
        for (number, words) in run.unikernels.iter().enumerate() {
            let mut options = unikernel::Options::new(words);
            options.hcas = vec![lab.socket(lab.first_spare() + number)?.to_path_buf()];
            let (qemu, image, limit) = (qemu.clone(), image.clone(), run.limit);
            // It ends with its own work, or with the tool.
            std::thread::spawn(move || {
                let name = format!("unikernel {number}");
                let ended = unikernel::boot(&qemu, &image, &options, limit, |line| match line {
                    Output::Console(line) => println!("{name}: {line}"),
                    Output::Qemu(line) => eprintln!("{name}: qemu: {line}"),
                });
                match ended.map(|transcript| transcript.verdict) {
                    Ok(Some(verdict)) => println!("{name} {verdict}"),
                    Ok(None) => println!("{name} was still running"),
                    Err(error) => eprintln!("{name}: {error}"),
                }
            });
        }
    }
    let script = run.script.as_deref().unwrap_or(DEFAULT_SCRIPT);
    let answers = lab.run_everywhere(script, run.limit)?;
    for (number, Answer { status, time, .. }) in answers.iter().enumerate() {
        println!("guest {number}: status {status} after {:.1} s", time.as_secs_f64());
    }
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
    Ok(answers.iter().map(|answer| answer.status).max().unwrap_or(0))
}

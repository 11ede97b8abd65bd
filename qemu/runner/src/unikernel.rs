//! Boots the unikernel: its command line, its console, its log, its verdict.

use crate::defmt_log::{Decoded, Decoder};
use crate::error::{Error, IoContext, Result};
use crate::linux::Ready;
use crate::process::Temporary;
use crate::qemu::{End, Guest, Machine, Output};
use crate::setup::Qemu;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How a unikernel is booted.
#[derive(Debug, Clone)]
pub struct Options {
    /// The command line, as in `app=hello`.
    pub words: String,
    /// The sockets at which its HCAs are served.
    pub hcas: Vec<PathBuf>,
    /// Further devices, as the values of QEMU's `-device`.
    pub devices: Vec<String>,
    /// A disk that loads it, made by [`crate::iso`], which has its command line too; without one QEMU loads the image.
    pub disk: Option<PathBuf>,
    /// A folder that loads it over a network, made by [`crate::iso::make_network`], with its command line too.
    pub network: Option<PathBuf>,
    /// Firmware in place of QEMU's own choice.
    pub firmware: Option<PathBuf>,
    /// Serial ports that are left out before the one that is the console.
    pub ports_before: u8,
    /// Whether the machine has a device that gives QEMU's process the unikernel's exit code.
    pub exit_device: bool,
    /// Further arguments, as QEMU takes them.
    pub more: Vec<String>,
    /// Guest memory in MiB.
    pub memory_mib: u32,
    /// QEMU's accelerator.
    pub accelerator: String,
}

impl Options {
    /// `words` on a machine without HCA.
    pub fn new(words: &str) -> Self {
        Self {
            words: words.into(),
            hcas: Vec::new(),
            devices: Vec::new(),
            disk: None,
            network: None,
            firmware: None,
            ports_before: 0,
            exit_device: true,
            more: Vec::new(),
            memory_mib: 256,
            accelerator: "tcg".into(),
        }
    }
}

/// How a unikernel ended, by the values that it writes to `isa-debug-exit` (`unikernel::exit`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It did what it was asked for and its data was right.
    Success,
    /// Its command line is wrong.
    Usage,
    /// It ran and failed.
    Failed,
    /// It panicked.
    Panic,
    /// A CPU exception ended it.
    Fault,
    /// The device it needs is not there.
    NoDevice,
    /// It cannot use this machine.
    Machine,
    /// Its device stopped answering.
    DeviceLost,
    /// It was reset, which is a triple fault.
    Crash,
    /// QEMU failed, was killed, or ended with a status that the unikernel does not give.
    Qemu(End),
}

impl From<End> for Verdict {
    fn from(end: End) -> Self {
        match end {
            End::Exit(0x10) => Self::Success,
            End::Exit(0x11) => Self::Usage,
            End::Exit(0x12) => Self::Failed,
            End::Exit(0x13) => Self::Panic,
            End::Exit(0x14) => Self::Fault,
            End::Exit(0x15) => Self::NoDevice,
            End::Exit(0x16) => Self::Machine,
            End::Exit(0x17) => Self::DeviceLost,
            End::PowerOff => Self::Crash,
            other => Self::Qemu(other),
        }
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Success => "succeeded",
            Self::Usage => "refused its command line",
            Self::Failed => "failed",
            Self::Panic => "panicked",
            Self::Fault => "ended with a CPU exception",
            Self::NoDevice => "found no device that it can use",
            Self::Machine => "cannot use this machine",
            Self::DeviceLost => "lost its device",
            Self::Crash => "crashed (the machine was reset)",
            Self::Qemu(End::Exit(0)) => "did not start: QEMU refused",
            Self::Qemu(_) => "ended with its QEMU",
        })
    }
}

/// A running unikernel. Killed when dropped.
#[derive(Debug)]
pub struct Running {
    guest: Guest,
    folder: Temporary,
    started: Instant,
}

/// What a unikernel left behind.
#[derive(Debug)]
pub struct Finished {
    /// How it ended.
    pub verdict: Verdict,
    /// From QEMU's start to its end.
    pub seconds: f64,
    /// Its decoded log, where the image has one.
    pub log: Decoded,
}

/// Boots `image`.
///
/// # Errors
/// QEMU cannot be started.
pub fn start(qemu: &Qemu, image: &Path, options: &Options) -> Result<Running> {
    let folder = Temporary::folder("unikernel")?;
    let mut machine = Machine::new(image);
    machine.memory_mib = options.memory_mib;
    machine.accelerator.clone_from(&options.accelerator);
    machine.command_line.clone_from(&options.words);
    machine.hcas.clone_from(&options.hcas);
    machine.devices.clone_from(&options.devices);
    machine.more.clone_from(&options.more);
    machine.disk.clone_from(&options.disk);
    machine.network.clone_from(&options.network);
    machine.firmware.clone_from(&options.firmware);
    machine.exit_device = options.exit_device;
    machine.ports_before = options.ports_before;
    machine.debug_console = Some(folder.path().join("defmt"));
    let guest = Guest::start(qemu, &machine)?;
    Ok(Running { guest, folder, started: Instant::now() })
}

impl Running {
    /// The next line, at most until `deadline`; `None` at the end.
    ///
    /// # Errors
    /// [`crate::Error::Timeout`] when nothing came in time.
    pub fn next_line(&mut self, deadline: Instant) -> Result<Option<Output>> {
        self.guest.next_line(deadline)
    }

    /// Takes lines of the console until one begins with `start`, or all until its end; `lines` has them.
    ///
    /// # Errors
    /// [`Error::Timeout`] when that takes longer than `limit`; [`Error::Guest`] if it ends before such a line.
    pub fn follow(&mut self, lines: &mut Vec<String>, start: Option<&str>, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        while let Some(output) = self.next_line(deadline)? {
            let Output::Console(line) = output else { continue };
            let found = start.is_some_and(|start| line.starts_with(start));
            lines.push(line);
            if found {
                return Ok(());
            }
        }
        let Some(start) = start else { return Ok(()) };
        let last = lines.last().map_or("nothing", String::as_str);
        Err(Error::Guest(format!("the unikernel ended before `{}`; it said last: {last}", start.trim())))
    }

    /// The time since power on.
    ///
    /// # Errors
    /// QEMU has ended.
    pub fn spent(&self) -> Result<Ready> {
        let cpu_seconds = self.guest.cpu_time()?.as_secs_f64();
        Ok(Ready { seconds: self.started.elapsed().as_secs_f64(), cpu_seconds })
    }

    /// Types a line on COM1.
    ///
    /// # Errors
    /// The unikernel has ended.
    pub fn write_line(&mut self, line: &str) -> Result<()> {
        self.guest.write_line(line)
    }

    /// Its end, after [`Running::next_line`] has answered `None`.
    ///
    /// # Errors
    /// QEMU does not end, or the log cannot be read.
    pub fn finish(self, decoder: Option<&Decoder>) -> Result<Finished> {
        let verdict = self.guest.end()?.into();
        let seconds = self.started.elapsed().as_secs_f64();
        let log = read_log(&self.folder, decoder)?;
        Ok(Finished { verdict, seconds, log })
    }

    /// Kills it; answers the log that it wrote until then.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn kill(self, decoder: Option<&Decoder>) -> Result<Decoded> {
        self.guest.kill();
        read_log(&self.folder, decoder)
    }
}

fn read_log(folder: &Temporary, decoder: Option<&Decoder>) -> Result<Decoded> {
    let path = folder.path().join("defmt");
    match decoder {
        // A QEMU that refused its arguments has made no file.
        Some(decoder) if path.exists() => {
            Ok(decoder.decode(&std::fs::read(&path).context("cannot read", &path)?))
        }
        _ => Ok(Decoded::default()),
    }
}

/// A unikernel's whole run.
#[derive(Debug)]
pub struct Transcript {
    /// The console's lines.
    pub console: Vec<String>,
    /// What QEMU itself printed.
    pub qemu: Vec<String>,
    /// The decoded log.
    pub log: Decoded,
    /// How it ended; `None` when it was killed at the time limit.
    pub verdict: Option<Verdict>,
    /// From QEMU's start to its end.
    pub seconds: f64,
}

/// Boots `image` and waits for its end, at most for `limit`; it is killed then. `each` sees every line.
///
/// # Errors
/// QEMU cannot be started or does not end.
pub fn boot(
    qemu: &Qemu,
    image: &Path,
    options: &Options,
    limit: Duration,
    mut each: impl FnMut(&Output),
) -> Result<Transcript> {
    let decoder = Decoder::for_image(image)?;
    let mut running = start(qemu, image, options)?;
    let deadline = Instant::now() + limit;
    let (mut console, mut messages) = (Vec::new(), Vec::new());
    while let Ok(line) = running.next_line(deadline) {
        let Some(line) = line else {
            let Finished { verdict, seconds, log } = running.finish(decoder.as_ref())?;
            return Ok(Transcript { console, qemu: messages, log, verdict: Some(verdict), seconds });
        };
        each(&line);
        match line {
            Output::Console(line) => console.push(line),
            Output::Qemu(line) => messages.push(line),
        }
    }
    let log = running.kill(decoder.as_ref())?;
    Ok(Transcript { console, qemu: messages, log, verdict: None, seconds: limit.as_secs_f64() })
}

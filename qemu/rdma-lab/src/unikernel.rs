//! Boots the unikernel and collects its console, log and verdict.

use crate::defmt_log::{Decoded, Decoder};
use crate::error::{Error, IoContext, Result};
use crate::linux::Ready;
use crate::process::Temporary;
use crate::qemu::{End, Guest, Machine, Output};
use crate::setup::Qemu;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Boot options of a unikernel.
#[derive(Debug, Clone)]
pub struct Options {
    /// Command line, as in `app=hello`.
    pub words: String,
    /// Sockets of its HCAs.
    pub hcas: Vec<PathBuf>,
    /// Additional devices, as values of QEMU's `-device`.
    pub devices: Vec<String>,
    /// Boot disk made by [`crate::iso`], which contains the command line too. Without a disk QEMU
    /// loads the image.
    pub disk: Option<PathBuf>,
    /// Writable USB stick with its own boot loader, booted by UEFI instead of the image.
    pub stick: Option<PathBuf>,
    /// Directory for booting over a network, made by [`crate::iso::make_network`]. Contains the
    /// command line too.
    pub network: Option<PathBuf>,
    /// Firmware that replaces QEMU's default.
    pub firmware: Option<PathBuf>,
    /// Number of unused serial ports before the console.
    pub ports_before: u8,
    /// Adds the device that sets QEMU's exit status to the unikernel's exit code.
    pub exit_device: bool,
    /// Additional arguments of QEMU.
    pub more: Vec<String>,
    /// Guest memory in MiB.
    pub memory_mib: u32,
    /// QEMU's accelerator.
    pub accelerator: String,
}

impl Options {
    /// Returns options for the command line `words` on a machine without HCA.
    pub fn new(words: &str) -> Self {
        Self {
            words: words.into(),
            hcas: Vec::new(),
            devices: Vec::new(),
            disk: None,
            stick: None,
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

/// Result of a unikernel, from the value that it writes to `isa-debug-exit` (`unikernel::exit`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The application completed and its data was correct.
    Success,
    /// The command line is wrong.
    Usage,
    /// The application failed.
    Failed,
    /// The unikernel panicked.
    Panic,
    /// A CPU exception occurred.
    Fault,
    /// The required device is missing.
    NoDevice,
    /// The machine is not supported.
    Machine,
    /// The device stopped responding.
    DeviceLost,
    /// A triple fault reset the machine.
    Crash,
    /// QEMU failed, was killed, or exited with a status that the unikernel does not use.
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

/// Results of an exited unikernel.
#[derive(Debug)]
pub struct Finished {
    /// Verdict.
    pub verdict: Verdict,
    /// Time from QEMU's start to its exit, in seconds.
    pub seconds: f64,
    /// Decoded log; empty if the image has none.
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
    machine.stick.clone_from(&options.stick);
    machine.network.clone_from(&options.network);
    machine.firmware.clone_from(&options.firmware);
    machine.exit_device = options.exit_device;
    machine.ports_before = options.ports_before;
    machine.debug_console = Some(folder.path().join("defmt"));
    let guest = Guest::start(qemu, &machine)?;
    Ok(Running { guest, folder, started: Instant::now() })
}

impl Running {
    /// Returns the next line, waiting until `deadline`. Returns `None` at the end.
    ///
    /// # Errors
    /// [`crate::Error::Timeout`]: no line arrived in time.
    pub fn next_line(&mut self, deadline: Instant) -> Result<Option<Output>> {
        self.guest.next_line(deadline)
    }

    /// Appends console lines to `lines` until a line begins with `start`, or until the unikernel
    /// exits if `start` is `None`.
    ///
    /// # Errors
    /// - [`Error::Timeout`]: `limit` has passed.
    /// - [`Error::Guest`]: the unikernel exited before such a line.
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

    /// Returns the time since power on.
    ///
    /// # Errors
    /// QEMU has exited.
    pub fn spent(&self) -> Result<Ready> {
        let cpu_seconds = self.guest.cpu_time()?.as_secs_f64();
        Ok(Ready { seconds: self.started.elapsed().as_secs_f64(), cpu_seconds })
    }

    /// Sends a line to COM1.
    ///
    /// # Errors
    /// The unikernel has exited.
    pub fn write_line(&mut self, line: &str) -> Result<()> {
        self.guest.write_line(line)
    }

    /// Collects the results after [`Running::next_line`] has returned `None`.
    ///
    /// # Errors
    /// QEMU does not exit, or the log cannot be read.
    pub fn finish(self, decoder: Option<&Decoder>) -> Result<Finished> {
        let verdict = self.guest.end()?.into();
        let seconds = self.started.elapsed().as_secs_f64();
        let log = read_log(&self.folder, decoder)?;
        Ok(Finished { verdict, seconds, log })
    }

    /// Kills the unikernel. Returns the log written so far.
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
        // A QEMU that rejected its arguments has created no file.
        Some(decoder) if path.exists() => {
            Ok(decoder.decode(&std::fs::read(&path).context("cannot read", &path)?))
        }
        _ => Ok(Decoded::default()),
    }
}

/// Output and results of a complete run.
#[derive(Debug)]
pub struct Transcript {
    /// Lines of the console.
    pub console: Vec<String>,
    /// Lines printed by QEMU itself.
    pub qemu: Vec<String>,
    /// The decoded log.
    pub log: Decoded,
    /// Verdict; `None` if the unikernel was killed at the time limit.
    pub verdict: Option<Verdict>,
    /// Time from QEMU's start to its exit, in seconds.
    pub seconds: f64,
}

/// Boots `image` and waits for its exit. Kills it after `limit`. `each` gets every line.
///
/// # Errors
/// QEMU cannot be started or does not exit.
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

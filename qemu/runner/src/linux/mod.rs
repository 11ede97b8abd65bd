//! Unmodified Linux guests: the outside judges of the emulated HCA and the peers of the unikernel.

mod cpio;
mod image;

pub use image::{Image, ORACLE, Recipe, image};

use crate::error::{Error, Result};
use crate::process::Temporary;
use crate::qemu::{self, Guest, Machine, Output};
use crate::setup::Qemu;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What a Linux guest printed while it ran a script.
#[derive(Debug, Clone)]
pub struct Transcript {
    /// The console's lines after the script began.
    pub lines: Vec<String>,
    /// The script's exit status.
    pub status: u8,
    /// From QEMU's start to the script's first command.
    pub boot: Duration,
    /// From QEMU's start to its end.
    pub total: Duration,
}

impl Transcript {
    /// The lines as one text.
    pub fn text(&self) -> String {
        self.lines.join("\n")
    }
}

/// How a Linux guest is run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The sockets at which emulated HCAs are served.
    pub hcas: Vec<PathBuf>,
    /// Guest memory in MiB.
    pub memory_mib: u32,
    /// QEMU's accelerator.
    pub accelerator: String,
    /// Words added to the kernel's command line.
    pub command_line: String,
    /// From QEMU's start to its end, at most.
    pub limit: Duration,
    /// Print every line as it comes.
    pub show: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            hcas: Vec::new(),
            memory_mib: 1024,
            accelerator: "tcg".into(),
            command_line: String::new(),
            limit: Duration::from_secs(300),
            show: false,
        }
    }
}

/// A Linux guest running a script.
#[derive(Debug)]
pub struct Running {
    guest: Guest,
    /// Holds the script's file while QEMU may read it.
    _folder: Temporary,
    started: Instant,
    options: Options,
}

/// Boots `image` with `script` (a shell script) and returns at once.
///
/// # Errors
/// QEMU cannot be started.
pub fn start(qemu: &Qemu, image: &Image, script: &str, options: &Options) -> Result<Running> {
    let folder = Temporary::folder("linux")?;
    let mut machine = Machine::new(&image.kernel);
    machine.memory_mib = options.memory_mib;
    machine.accelerator.clone_from(&options.accelerator);
    machine.initramfs = Some(image.initramfs.clone());
    machine.hcas.clone_from(&options.hcas);
    // Warnings and worse show on the console as they come; everything is in dmesg.
    machine.command_line = format!(
        "console=ttyS0 loglevel=5 panic=-1 nokaslr mitigations=off no_timer_check random.trust_cpu=on {}",
        options.command_line
    );
    let file = qemu::write_file(folder.path(), "run", script.as_bytes())?;
    machine.firmware_files.push(("opt/run".into(), file));
    let guest = Guest::start(qemu, &machine)?;
    Ok(Running { guest, _folder: folder, started: Instant::now(), options: options.clone() })
}

/// Boots `image`, runs `script` in it and waits for the end.
///
/// # Errors
/// The guest did not come up, crashed, or did not end in time; the last lines it printed are in the error.
pub fn boot(qemu: &Qemu, image: &Image, script: &str, options: &Options) -> Result<Transcript> {
    start(qemu, image, script, options)?.finish()
}

impl Running {
    /// The next line of the console, at most until `deadline`; `None` at the end.
    ///
    /// # Errors
    /// Nothing came in time.
    pub fn next_line(&mut self, deadline: Instant) -> Result<Option<String>> {
        loop {
            match self.guest.next_line(deadline)? {
                Some(Output::Console(line)) => {
                    if self.options.show {
                        println!("linux: {line}");
                    }
                    return Ok(Some(line));
                }
                Some(Output::Qemu(line)) => eprintln!("qemu: {line}"),
                None => return Ok(None),
            }
        }
    }

    /// Waits for the script's end.
    ///
    /// # Errors
    /// As [`boot`].
    pub fn finish(mut self) -> Result<Transcript> {
        let deadline = self.started + self.options.limit;
        let mut all: Vec<String> = Vec::new();
        let mut begin = None;
        let mut status = None;
        loop {
            match self.next_line(deadline) {
                Ok(Some(line)) => {
                    if line == "@begin" && begin.is_none() {
                        begin = Some((all.len(), self.started.elapsed()));
                        continue;
                    }
                    if let Some(text) = line.strip_prefix("@status ") {
                        status = text.trim().parse::<u8>().ok();
                        continue;
                    }
                    all.push(line);
                }
                Ok(None) => break,
                Err(_) => {
                    let last = all.split_off(all.len().saturating_sub(20)).join("\n");
                    return Err(Error::Timeout {
                        what: format!("the Linux guest did not end; its last lines:\n{last}\n"),
                        limit: self.options.limit,
                    });
                }
            }
        }
        let total = self.started.elapsed();
        match (begin, status) {
            (Some((first, boot)), Some(status)) => {
                Ok(Transcript { lines: all.split_off(first), status, boot, total })
            }
            _ => {
                let last = all.split_off(all.len().saturating_sub(20)).join("\n");
                Err(Error::Guest(format!(
                    "the Linux guest ended before its script did; its last lines:\n{last}"
                )))
            }
        }
    }
}

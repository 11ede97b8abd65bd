//! `guests`: Linux guests that run a script, unikernels, or both.

use super::command::{Command, Host};
use super::fabric::{self, Accelerator, Fabric, IMAGE};
use crate::accelerator;
use crate::error::{Error, Result};
use crate::linux::{self, Group, Kind};
use hca_serve::product::options::{Argument, Value};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// A unikernel of the command line.
struct Named {
    /// Its image; `None` for the program's own.
    image: Option<PathBuf>,
    words: String,
    is_server: bool,
}

/// The command.
pub struct Guests {
    guests: Vec<Kind>,
    unikernels: Vec<Named>,
    script: Option<String>,
    /// Image of the unikernels that follow.
    image: Option<PathBuf>,
    /// True while no unikernel follows an `--image`.
    is_image_unused: bool,
    /// Programs for the Linux guests: C files, and binaries.
    programs: Vec<PathBuf>,
    binaries: Vec<PathBuf>,
    strict: bool,
    no_subnet_manager: bool,
    limit: u64,
    fabric: Fabric,
    accelerator: Accelerator,
}

impl AsMut<Accelerator> for Guests {
    fn as_mut(&mut self) -> &mut Accelerator {
        &mut self.accelerator
    }
}

impl AsMut<Fabric> for Guests {
    fn as_mut(&mut self) -> &mut Fabric {
        &mut self.fabric
    }
}

impl Guests {
    fn set_script(&mut self, value: Value) -> hca_serve::Result<()> {
        if self.script.is_some() {
            return Err(value.refused("there is a script already; several words are one in quotes"));
        }
        self.script = Some(value.text()?);
        Ok(())
    }

    fn set_image(&mut self, value: Value) {
        self.image = Some(value.path());
        self.is_image_unused = true;
    }

    fn add_unikernel(&mut self, value: Value, is_server: bool) -> hca_serve::Result<()> {
        self.unikernels.push(Named { image: self.image.clone(), words: value.text()?, is_server });
        self.is_image_unused = false;
        Ok(())
    }

    fn add_program(&mut self, value: Value) {
        let file = value.path();
        let is_source = file.extension().is_some_and(|extension| extension == "c");
        if is_source { &mut self.programs } else { &mut self.binaries }.push(file);
    }

    /// Checks that the options agree.
    fn check(&self) -> Result<()> {
        let refused = match (self.guests.is_empty(), self.unikernels.is_empty()) {
            (true, true) => "which guests? --linux 'WORDS', --unikernel 'WORDS'",
            (true, false)
                if self.script.is_some() || !self.programs.is_empty() || !self.binaries.is_empty() =>
            {
                "only Linux guests run scripts and programs: --linux 'WORDS'"
            }
            (true, false) if self.unikernels.iter().all(|unikernel| unikernel.is_server) => {
                "--server is for a unikernel that serves others, and there are none"
            }
            _ if self.is_image_unused => "--image applies to each --unikernel that follows it, and none does",
            _ => return Ok(()),
        };
        Err(Error::Usage(refused.into()))
    }
}

impl Default for Guests {
    fn default() -> Self {
        Self {
            guests: Vec::new(),
            unikernels: Vec::new(),
            script: None,
            image: None,
            is_image_unused: false,
            programs: Vec::new(),
            binaries: Vec::new(),
            strict: false,
            no_subnet_manager: false,
            limit: 600,
            fabric: Fabric::default(),
            accelerator: Accelerator::default(),
        }
    }
}

impl Command for Guests {
    const NAME: &'static str = "guests";
    const ARGUMENTS: &'static str = "[--linux 'WORDS']... [--unikernel 'WORDS']... [OPTION]... [SCRIPT]";
    const SUMMARY: &'static str =
        "Linux guests that run a script, unikernels, or both, with HCAs on one fabric";
    const STATUSES: &'static str = "0 when every script ended with 0 and no unikernel failed, otherwise the highest of \
                                    the scripts', 1 when something failed, 2 a mistake on the command line";

    fn table() -> Vec<Argument<Self>> {
        let mut table = vec![Argument::value(
            "--linux 'WORDS'",
            "Linux guests, of Debian's packages; may be given many times, '' for one with all as usual",
            |command: &mut Self, value| {
                let group: Group = value.parse()?;
                command.guests.extend(std::iter::repeat_n(group.kind, group.count));
                Ok(())
            },
        )];
        let images = format!("of the unikernels behind this option: {IMAGE}");
        table.extend(linux::WORDS.iter().map(|word| Argument::part(word.form, word.meaning)));
        table.extend([
            Argument::word(
                "SCRIPT",
                "what all of them run, at the same time (shows what the machine is); $GUEST is the guest's number, \
                 $GUESTS how many there are; by Ethernet they are guest0, guest1, ...",
                Self::set_script,
            ),
            Argument::value(
                "--program FILE",
                "a program for the Linux guests, in /usr/bin: a C file, compiled now, or an executable",
                |command: &mut Self, value| {
                    command.add_program(value);
                    Ok(())
                },
            ),
            Argument::value(
                "--unikernel 'WORDS'",
                "a unikernel with an HCA on the same fabric; may be given many times",
                |command: &mut Self, value| command.add_unikernel(value, false),
            ),
            Argument::value(
                "--server 'WORDS'",
                "the same for one that serves the others: it is stopped when they have ended",
                |command: &mut Self, value| command.add_unikernel(value, true),
            ),
            Argument::value("--image ELF", &images, |command: &mut Self, value| {
                command.set_image(value);
                Ok(())
            }),
            Argument::flag(
                "--no-sm",
                "no subnet manager in the fabric: a guest runs one",
                |command: &mut Self| command.no_subnet_manager = true,
            ),
            Argument::flag(
                "--strict",
                "the HCAs refuse what the PRM calls reserved or illegal",
                |command: &mut Self| command.strict = true,
            ),
            Argument::value(
                "--limit SECONDS",
                "scripts and unikernels at most (600)",
                |command: &mut Self, value| {
                    command.limit = value.number()?;
                    Ok(())
                },
            ),
            fabric::accelerator(),
        ]);
        table.extend(fabric::arguments("what the unikernels' HCAs are (cx-5); `serve --help` lists all"));
        table
    }

    fn run(self, host: &Host) -> Result<ExitCode> {
        self.check()?;
        for unikernel in &self.unikernels {
            host.check_image(unikernel.image.as_deref())?;
        }
        let fabric = self.fabric;
        let run = linux::Run {
            lab: linux::Options {
                programs: self.programs,
                binaries: self.binaries,
                // User-space programs fill key fields that firmware ignores.
                strict: self.strict,
                no_subnet_manager: self.no_subnet_manager,
                spare_kind: fabric.kind,
                capture: fabric.capture,
                faults: fabric.faults,
                seed: fabric.seed,
                open_fabric: fabric.open,
                accelerator: accelerator::choose(self.accelerator.name())?,
                ..linux::Options::of(self.guests)
            },
            script: self.script,
            unikernels: self
                .unikernels
                .into_iter()
                .map(|Named { image, words, is_server }| {
                    Ok(linux::Unikernel { image: host.image(image)?, words, is_server })
                })
                .collect::<Result<Vec<_>>>()?,
            limit: Duration::from_secs(self.limit),
        };
        linux::run(&run).map(ExitCode::from)
    }
}

//! `boot`: one unikernel, with emulated HCAs or with HCAs of this machine.

use super::command::{Command, Host};
use super::fabric::{self, Accelerator, IMAGE};
use crate::error::{Error, Result};
use crate::passthrough::HandedOn;
use crate::process::Temporary;
use crate::qemu::Output;
use crate::unikernel::{self, Verdict};
use crate::{accelerator, serve, setup};
use hca_model::DeviceSpec;
use hca_serve::Served;
use hca_serve::product::options::{Argument, Value};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// The command.
pub struct Boot {
    words: Vec<String>,
    image: Option<PathBuf>,
    /// Card and quirks of the emulated HCAs that follow.
    kind: DeviceSpec,
    /// True while no HCA follows a `--profile`.
    is_profile_unused: bool,
    hcas: Vec<DeviceSpec>,
    functions: Vec<vfio_functions::PciAddress>,
    limit: u64,
    memory_mib: u32,
    accelerator: Accelerator,
}

impl AsMut<Accelerator> for Boot {
    fn as_mut(&mut self) -> &mut Accelerator {
        &mut self.accelerator
    }
}

impl Boot {
    fn add_hca(&mut self) {
        self.hcas.push(self.kind.clone());
        self.is_profile_unused = false;
    }

    fn set_profile(&mut self, value: Value) -> hca_serve::Result<()> {
        self.kind = value.parse()?;
        self.is_profile_unused = true;
        Ok(())
    }

    fn add_function(&mut self, value: Value) -> hca_serve::Result<()> {
        let text = value.text()?;
        let named = vfio_functions::Function::named(&vfio_functions::Sysfs::default(), &text);
        let address = named.map_err(|error| hca_serve::Error::Usage(format!("--vfio: {error}")))?;
        if !self.functions.contains(&address) {
            self.functions.push(address);
        }
        Ok(())
    }
}

impl Default for Boot {
    fn default() -> Self {
        Self {
            words: Vec::new(),
            image: None,
            kind: DeviceSpec::default(),
            is_profile_unused: false,
            hcas: Vec::new(),
            functions: Vec::new(),
            limit: 600,
            memory_mib: 256,
            accelerator: Accelerator::default(),
        }
    }
}

impl Command for Boot {
    const NAME: &'static str = "boot";
    const ARGUMENTS: &'static str = "[WORD]... [OPTION]...";
    const SUMMARY: &'static str = "one unikernel without HCA, or with emulated or real ones";

    fn table() -> Vec<Argument<Self>> {
        vec![
            Argument::word("WORD", "its command line, as in app=hello", |boot: &mut Self, value| {
                boot.words.push(value.text()?);
                Ok(())
            }),
            Argument::value("--image ELF", IMAGE, |boot: &mut Self, value| {
                boot.image = Some(value.path());
                Ok(())
            }),
            Argument::value(
                "--profile CARD[,HABIT[=VALUE]]...",
                "what the HCAs that follow are, as in cx-7,command-time=1us..5ms (cx-5); `serve --help` lists all",
                Self::set_profile,
            ),
            Argument::flag("--hca", "with an emulated HCA; may be given many times", Self::add_hca),
            Argument::value(
                "--vfio HCA",
                "with an HCA of this machine, as in 3b:00.0, mlx5_0, ib0 or by GUID: taken from its driver, given back at the end",
                Self::add_function,
            ),
            Argument::value("--limit SECONDS", "at most (600)", |boot: &mut Self, value| {
                boot.limit = value.number()?;
                Ok(())
            }),
            Argument::value("--memory MIB", "guest memory (256)", |boot: &mut Self, value| {
                boot.memory_mib = value.number()?;
                Ok(())
            }),
            fabric::accelerator(),
        ]
    }

    fn run(self, host: &Host) -> Result<ExitCode> {
        if self.is_profile_unused {
            return Err(Error::Usage(
                "--profile applies to each --hca that follows it, and none does".into(),
            ));
        }
        let mut options = unikernel::Options::new(&host.words(&self.words, self.image.as_ref()));
        options.memory_mib = self.memory_mib;
        // Check image and passthrough first, because preparing takes minutes.
        host.check_image(self.image.as_deref())?;
        let handed_on = match self.functions.as_slice() {
            [] => None,
            functions => Some(HandedOn::take(functions, options.memory_mib)?),
        };
        options.devices.extend(handed_on.iter().flat_map(HandedOn::devices));
        let device = if self.hcas.is_empty() && handed_on.is_some() { "vfio-pci" } else { "vfio-user-pci" };
        let qemu = setup::qemu_with(device)?;
        options.accelerator = accelerator::choose_for(self.accelerator.name(), || Ok(qemu.clone()))?;
        let image = host.image(self.image)?;
        let (_folder, _served, sockets) = serve_some(self.hcas)?;
        options.hcas = sockets;
        let limit = Duration::from_secs(self.limit);
        let transcript = unikernel::boot(&qemu, &image, &options, limit, |line| match line {
            Output::Console(line) => println!("{line}"),
            Output::Qemu(line) => eprintln!("qemu: {line}"),
        })?;
        for line in &transcript.log.lines {
            println!("log: {line}");
        }
        match transcript.verdict {
            Some(Verdict::Success) => Ok(ExitCode::SUCCESS),
            Some(verdict) => Err(Error::Guest(format!("the unikernel {verdict}"))),
            None => Err(Error::Guest(format!("the unikernel did not end within {} s", self.limit))),
        }
    }
}

/// Serves HCAs of these kinds in a temporary directory.
fn serve_some(kinds: Vec<DeviceSpec>) -> Result<(Temporary, Option<Served>, Vec<PathBuf>)> {
    let folder = Temporary::folder("hca")?;
    let sockets: Vec<PathBuf> =
        (0..kinds.len()).map(|index| folder.path().join(format!("hca{index}.sock"))).collect();
    let served = match sockets.as_slice() {
        [] => None,
        sockets => {
            Some(serve::serve(hca_serve::Options { kinds, ..hca_serve::Options::new(sockets.to_vec()) })?)
        }
    };
    Ok((folder, served, sockets))
}

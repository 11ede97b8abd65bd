//! `iso`: a boot medium with a unikernel.

use super::command::{Command, Host};
use super::fabric::IMAGE;
use crate::error::Result;
use crate::iso;
use hca_serve::product::options::Argument;
use std::path::PathBuf;
use std::process::ExitCode;

/// The command.
pub struct Iso {
    words: Vec<String>,
    image: Option<PathBuf>,
    output: PathBuf,
    network: Option<PathBuf>,
}

impl Default for Iso {
    fn default() -> Self {
        Self { words: Vec::new(), image: None, output: "unikernel.iso".into(), network: None }
    }
}

impl Command for Iso {
    const NAME: &'static str = "iso";
    const ARGUMENTS: &'static str = "[WORD]... [OPTION]...";
    const SUMMARY: &'static str =
        "an image that boots a unikernel by BIOS and UEFI, from CD, disk and USB stick";

    fn table() -> Vec<Argument<Self>> {
        vec![
            Argument::word("WORD", "its command line, as in app=hello", |iso: &mut Self, value| {
                iso.words.push(value.text()?);
                Ok(())
            }),
            Argument::value("--image ELF", IMAGE, |iso: &mut Self, value| {
                iso.image = Some(value.path());
                Ok(())
            }),
            Argument::value(
                "--output FILE",
                "where it is written (unikernel.iso)",
                |iso: &mut Self, value| {
                    iso.output = value.path();
                    Ok(())
                },
            ),
            Argument::value(
                "--network FOLDER",
                "for network cards (PXE), in place of an image: what a TFTP server serves",
                |iso: &mut Self, value| {
                    iso.network = Some(value.path());
                    Ok(())
                },
            ),
        ]
    }

    fn run(self, host: &Host) -> Result<ExitCode> {
        let words = host.words(&self.words, self.image.as_ref());
        host.check_image(self.image.as_deref())?;
        let image = host.image(self.image)?;
        if let Some(folder) = self.network {
            iso::make_network(&image, &words, &folder)?;
            println!("BIOS: {}, UEFI: {}, in {}", iso::PXE_BIOS, iso::PXE_UEFI, folder.display());
            return Ok(ExitCode::SUCCESS);
        }
        iso::make(&image, &words, &self.output)?;
        println!("{}", self.output.display());
        Ok(ExitCode::SUCCESS)
    }
}

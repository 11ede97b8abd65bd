//! Files that a guest gets at each start in addition to its image: the first process, small
//! helpers, and programs of the user. They form a second archive after the image's, so that the
//! image is made only once.

use super::cpio::Writer;
use crate::error::{IoContext, Result};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The guest's first process.
const INIT: &str = include_str!("init.sh");

/// Helpers for the scripts of tests, by name.
const HELPERS: [(&str, &str); 9] = [
    ("await", include_str!("bin/await.sh")),
    ("background", include_str!("bin/background.sh")),
    ("listening", include_str!("bin/listening.sh")),
    ("reap", include_str!("bin/reap.sh")),
    ("tell", include_str!("bin/tell.sh")),
    ("ports-active", include_str!("bin/ports-active.sh")),
    ("hcas-up", include_str!("bin/hcas-up.sh")),
    ("ethernet-up", include_str!("bin/ethernet-up.sh")),
    ("roce-gid", include_str!("bin/roce-gid.sh")),
];

/// Settings of a single guest.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Number of the guest, from 0.
    pub number: usize,
    /// Addresses of all guests on the network between them; empty without a network.
    pub addresses: Vec<String>,
    /// Programs, installed in `/usr/bin`.
    pub programs: Vec<PathBuf>,
}

/// Writes the initramfs `image` and the additions of `settings` to `into`.
///
/// # Errors
/// A file cannot be read or written.
pub fn write(image: &Path, settings: &Settings, into: &Path) -> Result<()> {
    fs::copy(image, into).context("cannot copy the initramfs to", into)?;
    let file = File::options().append(true).open(into).context("cannot write", into)?;
    archive(settings, file).context("cannot write", into)
}

fn archive(settings: &Settings, out: File) -> std::io::Result<()> {
    let mut writer = Writer::new(out);
    writer.file("init", true, INIT.as_bytes())?;
    for (name, text) in HELPERS {
        writer.file(&format!("usr/bin/{name}"), true, text.as_bytes())?;
    }
    let address = settings.addresses.get(settings.number).map_or("", String::as_str);
    let guests = settings.addresses.len().max(1);
    let variables = format!("GUEST={}\nGUESTS={guests}\nADDRESS={address}\n", settings.number);
    writer.file("etc/guest", false, variables.as_bytes())?;
    let mut hosts = "127.0.0.1 localhost\n".to_owned();
    for (number, address) in settings.addresses.iter().enumerate() {
        hosts.push_str(&format!("{address} guest{number}\n10.78.0.{} roce{number}\n", number + 1));
    }
    writer.file("etc/hosts", false, hosts.as_bytes())?;
    for program in &settings.programs {
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        writer.file(&format!("usr/bin/{name}"), true, &fs::read(program)?)?;
    }
    writer.finish()?.flush()
}

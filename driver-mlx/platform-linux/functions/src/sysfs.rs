//! The files.

use crate::address::PciAddress;
use crate::error::{Error, Result};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where the kernel's view of its devices is: `/sys`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sysfs {
    root: PathBuf,
}

impl Default for Sysfs {
    fn default() -> Self {
        Self::at("/sys")
    }
}

impl Sysfs {
    /// Another root than `/sys`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// A function's directory.
    pub(crate) fn function(&self, address: PciAddress) -> PathBuf {
        self.functions().join(address.to_string())
    }

    /// The directory of all functions.
    pub(crate) fn functions(&self) -> PathBuf {
        self.root.join("bus/pci/devices")
    }

    /// The directory of the functions of an IOMMU group.
    pub(crate) fn group(&self, group: u32) -> PathBuf {
        self.root.join("kernel/iommu_groups").join(group.to_string()).join("devices")
    }

    /// The directory of a driver.
    pub(crate) fn driver(&self, name: &str) -> PathBuf {
        self.root.join("bus/pci/drivers").join(name)
    }

    /// The file that has the kernel look for a driver for the function that is written to it.
    pub(crate) fn probe(&self) -> PathBuf {
        self.root.join("bus/pci/drivers_probe")
    }
}

/// The last part of what a link points to.
pub(crate) fn link(path: &Path) -> Option<String> {
    Some(fs::read_link(path).ok()?.file_name()?.to_string_lossy().into_owned())
}

/// A hexadecimal number with "0x" before it.
pub(crate) fn hex(path: &Path) -> Option<u32> {
    u32::from_str_radix(fs::read_to_string(path).ok()?.trim().trim_start_matches("0x"), 16).ok()
}

/// The names in a directory, sorted; none if there is no such directory.
pub(crate) fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Writes one of the kernel's files, which exist.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    let written = fs::File::options().write(true).open(path).and_then(|mut file| {
        // In a single write, because the kernel takes each write for a complete value.
        io::Write::write_all(&mut file, text.as_bytes())
    });
    written.map_err(|error| {
        let denied = error.kind() == io::ErrorKind::PermissionDenied;
        let hint = if denied { ": only root may hand functions on" } else { "" };
        Error::File { action: "write", path: path.into(), error, hint }
    })
}

//! VFIO's files: what a process opens to get a function that was handed on.

use crate::error::{Error, Result};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// The file of containers.
pub const CONTAINER: &str = "/dev/vfio/vfio";

/// The file of an IOMMU group.
pub fn group_file(group: u32) -> PathBuf {
    format!("/dev/vfio/{group}").into()
}

/// Opens one of VFIO's files to be read and written. `otherwise`: what to do where neither rights
/// nor another process are in the way.
///
/// # Errors
/// [`Error::File`].
pub fn open_file(path: &Path, otherwise: &'static str) -> Result<File> {
    let open = File::options().read(true).write(true).open(path);
    open.map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                ": give this user access (chown, or a udev rule for SUBSYSTEM==\"vfio\")"
            }
            io::ErrorKind::ResourceBusy => ": another process has the device open",
            _ => otherwise,
        };
        Error::File { action: "open", path: path.into(), error, hint }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_opened_is_named_with_what_to_do() {
        let error = open_file(Path::new("/dev/vfio/no such group"), ": modprobe vfio-pci").unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("cannot open /dev/vfio/no such group: "), "{text}");
        assert!(text.ends_with(": modprobe vfio-pci"), "{text}");
    }
}

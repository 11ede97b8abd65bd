//! QEMU with `vfio-user-pci`, and other programs of Debian's packages.

use crate::debian::{self, Packages};
use crate::error::{Error, Result};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Command that starts QEMU on this machine.
#[derive(Debug, Clone)]
pub struct Qemu {
    /// Path of the program, or of the loader that starts it.
    program: PathBuf,
    /// Arguments before QEMU's own.
    leading: Vec<std::ffi::OsString>,
    /// First line of QEMU's version output.
    pub version: String,
}

impl Qemu {
    /// Returns a command that starts this QEMU, without QEMU's own arguments.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.leading);
        command
    }

    /// Returns the words that a user types before QEMU's own arguments.
    pub fn words(&self) -> Vec<String> {
        std::iter::once(self.program.to_string_lossy().into_owned())
            .chain(self.leading.iter().map(|word| word.to_string_lossy().into_owned()))
            .collect()
    }
}

/// Remedy if QEMU cannot be provided.
const QEMU_REMEDY: &str = "install QEMU 10.1 or later with the device vfio-user-pci (Debian: qemu-system-x86 and \
     seabios from trixie-backports or later) so that qemu-system-x86_64 is in PATH, or name it in the variable QEMU";

/// Makes sure that `program` is installed, from the Debian package `package` if need be.
///
/// # Errors
/// [`Error::Missing`] names the package.
pub fn program(program: &str, package: &str) -> Result<()> {
    debian::ensure_installed(program, package).map_err(|error| Error::Missing {
        what: error.to_string(),
        remedy: format!("install {program} (Debian: the package {package})"),
    })
}

/// Returns a QEMU that has `vfio-user-pci`.
///
/// # Errors
/// As [`qemu_with`].
pub fn qemu() -> Result<Qemu> {
    qemu_with("vfio-user-pci")
}

/// Returns a QEMU that has the device `device`. Tries the path in the variable `QEMU`, then the
/// system's QEMU. Otherwise it unpacks a QEMU with all required devices into the cache.
///
/// # Errors
/// [`Error::Missing`] says what to install.
pub fn qemu_with(device: &str) -> Result<Qemu> {
    if let Some(named) = std::env::var_os("QEMU") {
        let named = PathBuf::from(named);
        return probe(named.clone(), Vec::new(), device).map_err(|reason| Error::Missing {
            what: format!("{} (from the variable QEMU): {reason}", named.display()),
            remedy: QEMU_REMEDY.into(),
        });
    }
    if let Some(program) = debian::find_program("qemu-system-x86_64")
        && let Ok(qemu) = probe(program, Vec::new(), device)
    {
        return Ok(qemu);
    }
    let packages = Packages {
        suites: &["trixie", "trixie-backports"],
        release: Some("trixie-backports"),
        names: &["qemu-system-x86", "seabios"],
    };
    let tree = debian::tree("qemu-trixie-backports", &packages, QEMU_REMEDY)?;
    let command = debian::command_in(&tree, "usr/bin/qemu-system-x86_64")?;
    let mut leading: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    for data in ["usr/share/qemu", "usr/share/seabios"] {
        leading.push("-L".into());
        leading.push(tree.join(data).into_os_string());
    }
    probe(PathBuf::from(command.get_program()), leading, device).map_err(|reason| Error::Missing {
        what: format!("the QEMU unpacked in {} does not serve: {reason}", tree.display()),
        remedy: format!("remove that folder, or {QEMU_REMEDY}"),
    })
}

/// Queries a QEMU's version and checks that it has the device.
fn probe(
    program: PathBuf,
    leading: Vec<std::ffi::OsString>,
    device: &str,
) -> std::result::Result<Qemu, String> {
    let ask = |arguments: &[&str]| {
        let output = Command::new(&program)
            .args(&leading)
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| error.to_string())?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            Err(text.lines().next().unwrap_or("it does not start").to_owned())
        }
    };
    // Query only this device. A list of all devices would load modules, and an unpacked QEMU finds
    // those of the system's QEMU, which may have a different version.
    if !ask(&["-device", &format!("{device},help")])?.contains(&format!("{device} options")) {
        return Err(format!("it has no device {device}"));
    }
    let version = ask(&["-version"])?.lines().next().unwrap_or_default().to_owned();
    Ok(Qemu { program, leading, version })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// Creates a script that behaves like an unpacked QEMU on a system with QEMU modules.
    #[test]
    fn a_qemu_beside_another_ones_modules_serves() {
        let folder = crate::process::Temporary::folder("qemu").unwrap();
        let program = folder.path().join("qemu");
        let script = "#!/bin/sh\n\
                      case \"$*\" in\n\
                      '-device help') echo 'failed to initialize module' >&2; kill -ABRT $$ ;;\n\
                      '-device vfio-user-pci,help') echo 'vfio-user-pci options:' ;;\n\
                      -device*) echo \"Device not found\" >&2 ;;\n\
                      -version) echo 'QEMU emulator version 11.1.3' ;;\n\
                      *) exit 1 ;;\n\
                      esac\n";
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let found = probe(program.clone(), Vec::new(), "vfio-user-pci").unwrap();
        assert_eq!(found.version, "QEMU emulator version 11.1.3");
        assert_eq!(
            probe(program, Vec::new(), "intel-iommu").err(),
            Some("it has no device intel-iommu".into())
        );
    }
}

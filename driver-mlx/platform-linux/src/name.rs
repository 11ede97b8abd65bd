//! Names of devices.

use crate::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use vfio_functions::{Function, PciAddress, Sysfs};

/// Name of an HCA.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DeviceName {
    /// A PCI function that is bound to `vfio-pci`.
    Vfio(PciAddress),
    /// The socket of an emulated HCA.
    Socket(PathBuf),
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vfio(address) => address.fmt(f),
            Self::Socket(path) => path.display().fmt(f),
        }
    }
}

impl FromStr for DeviceName {
    type Err = Error;

    /// Parses a name. Text with a slash is the path of a socket. Other text names an HCA of this
    /// machine: a PCI address, or a name of the kernel's driver while that driver has the HCA.
    fn from_str(text: &str) -> Result<Self, Error> {
        if text.contains('/') {
            return Ok(Self::Socket(text.into()));
        }
        let named = Function::named(&Sysfs::default(), text);
        named.map(Self::Vfio).map_err(|error| Error::Name(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart() {
        let address = PciAddress { domain: 0, bus: 0x3b, device: 0, function: 1 };
        for text in ["0000:3b:00.1", "3b:00.1", "0:3B:0.1"] {
            assert_eq!(text.parse::<DeviceName>().unwrap(), DeviceName::Vfio(address), "{text}");
        }
        assert_eq!("./hca0".parse::<DeviceName>().unwrap(), DeviceName::Socket("./hca0".into()));
        for text in ["", "hca0", "3b:00"] {
            let error = text.parse::<DeviceName>().unwrap_err();
            assert!(error.to_string().contains("PCI address"), "{text}: {error}");
        }
    }
}

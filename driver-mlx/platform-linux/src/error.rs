//! Why a device cannot be used, and what to do about it.

use std::io;
use std::path::PathBuf;

/// Why a device cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Neither an HCA of this machine, as the text says, nor the path of a socket.
    #[error("{0}\nNor is it the path of a socket, which has a slash")]
    Name(String),
    /// The function is not there, is no HCA, or is not in the hands of VFIO.
    #[error(transparent)]
    Function(#[from] vfio_functions::Error),
    /// Another device.
    #[error(
        "the device is {vendor:04x}:{device:04x}, which is no Mellanox HCA of the mlx5 family (vendor 15b3){hint}"
    )]
    NotAnHca {
        /// PCI vendor.
        vendor: u16,
        /// PCI device.
        device: u16,
        /// Description of the device, or empty.
        hint: &'static str,
    },
    /// Functions of its group belong to other drivers.
    #[error("the IOMMU group {0} has functions that belong to other drivers: bind all of them to vfio-pci")]
    GroupInUse(u32),
    /// A file is out of reach.
    #[error("cannot open {path}: {error}{hint}")]
    Open {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
        /// Remedy, or empty.
        hint: &'static str,
    },
    /// Memory cannot be locked or mapped for the device.
    #[error("cannot map {len} bytes for the device: {error}{hint}")]
    Map {
        /// Bytes.
        len: usize,
        /// Why.
        error: io::Error,
        /// Remedy, or empty.
        hint: &'static str,
    },
    /// A call to the kernel failed.
    #[error("{what}: {error}")]
    Kernel {
        /// Description of the call.
        what: &'static str,
        /// Error that the kernel returned.
        error: io::Error,
    },
    /// A server refused a message.
    #[error("the server refused {command} ({error})")]
    Refused {
        /// The command's name.
        command: &'static str,
        /// The server's error number.
        error: io::Error,
    },
    /// A server does not speak the protocol.
    #[error("the server's answer to {command} cannot be right: {what}")]
    Protocol {
        /// The command's name.
        command: &'static str,
        /// The fault.
        what: String,
    },
    /// A server does not answer.
    #[error(
        "the server does not answer {command}: {error} (a server takes one client at a time for each HCA)"
    )]
    Silent {
        /// The command's name.
        command: &'static str,
        /// Error of the wait.
        error: io::Error,
    },
    /// The device is not as an HCA is.
    #[error("the device is not as an HCA is: {0}")]
    Unusable(String),
    /// The options are invalid.
    #[error("{0}")]
    Options(&'static str),
}

/// Result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn kernel(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |errno| Self::Kernel { what, error: errno.into() }
    }
}

//! Errors of a device.

use core::fmt;

use crate::claims::Conflict;
use crate::paging::MapError;
use crate::pci;

/// Why a device's registers or interrupts cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// Its capabilities or BARs.
    Pci(pci::Error),
    /// Its registers' addresses.
    Conflict(Conflict),
    /// The registers could not be mapped.
    Map(MapError),
    /// Fewer MSI-X vectors than wanted: wanted, and left of the function or the machine.
    TooFewVectors(u16, u16),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Pci(error) => error.fmt(f),
            Error::Conflict(error) => write!(f, "PCI: {error}"),
            Error::Map(error) => error.fmt(f),
            Error::TooFewVectors(wanted, left) => write!(f, "MSI-X: {wanted} vectors wanted, {left} left"),
        }
    }
}

impl core::error::Error for Error {}

impl From<pci::Error> for Error {
    fn from(error: pci::Error) -> Self {
        Error::Pci(error)
    }
}

impl From<Conflict> for Error {
    fn from(error: Conflict) -> Self {
        Error::Conflict(error)
    }
}

impl From<MapError> for Error {
    fn from(error: MapError) -> Self {
        Error::Map(error)
    }
}

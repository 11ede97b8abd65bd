//! Obstacles, and their remedies.

use crate::address::PciAddress;
use std::io;
use std::path::PathBuf;

/// Reasons why VFIO cannot take a function.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Not a PCI address.
    #[error("{0:?} is no PCI address like 0000:3b:00.0")]
    Address(String),
    /// No HCA has this name.
    #[error(
        "{name:?} is no PCI address like 0000:3b:00.0, and no RDMA device, network interface or GUID of an HCA of this machine; \
         of those there are: {}", if list.is_empty() { "none" } else { list }
    )]
    Unknown {
        /// The requested name.
        name: String,
        /// The HCAs that there are, a line each.
        list: String,
    },
    /// The function does not exist.
    #[error("there is no PCI function {0}: `lspci -D -d 15b3:` lists the HCAs of this machine")]
    NoDevice(PciAddress),
    /// A different vendor's function.
    #[error("{address} is {vendor:04x}:{device:04x}, which is no Mellanox HCA (vendor 15b3)")]
    NotAnHca {
        /// The function.
        address: PciAddress,
        /// PCI vendor.
        vendor: u16,
        /// PCI device.
        device: u16,
    },
    /// No IOMMU stands between the function and memory.
    #[error(
        "{0} has no IOMMU group: enable the IOMMU in the firmware, and boot with intel_iommu=on where it is not the default"
    )]
    NoIommu(PciAddress),
    /// The function belongs to a driver of the kernel.
    #[error(
        "{address} belongs to the driver {driver}: bind it to vfio-pci (echo vfio-pci > {sysfs}/driver_override; \
         echo {address} > {sysfs}/driver/unbind; echo {address} > /sys/bus/pci/drivers_probe)"
    )]
    WrongDriver {
        /// The function.
        address: PciAddress,
        /// Its driver, or "none".
        driver: String,
        /// Its directory.
        sysfs: String,
    },
    /// Others of its IOMMU group belong to drivers.
    #[error(
        "{address} shares the IOMMU group {group} with {neighbour}, which belongs to the driver {driver}: \
         they can only be handed on together, so name both, or unbind {neighbour}"
    )]
    Shared {
        /// The function.
        address: PciAddress,
        /// The group that it is in.
        group: u32,
        /// The other function.
        neighbour: PciAddress,
        /// Driver of that function.
        driver: String,
    },
    /// The machine uses it.
    #[error("the network interface {interface} of {address} is up: `ip link set {interface} down` first")]
    InUse {
        /// The function.
        address: PciAddress,
        /// Its interface.
        interface: String,
    },
    /// The kernel has no `vfio-pci`.
    #[error("this kernel has no driver vfio-pci: `modprobe vfio-pci`")]
    NoVfio,
    /// The kernel did not change the driver.
    #[error(
        "{address} did not go to the driver {wanted}, it belongs to {driver}: the kernel's log (dmesg) says why"
    )]
    Unbound {
        /// The function.
        address: PciAddress,
        /// The requested driver.
        wanted: String,
        /// Its driver, or "none".
        driver: String,
    },
    /// Too little memory may be locked.
    #[error(
        "{need} bytes of memory have to be locked for the device, this process may lock {limit}: raise the limit \
         (`ulimit -l`, LimitMEMLOCK=, limits.d), or run as root"
    )]
    LockedMemory {
        /// Bytes that have to be locked.
        need: u64,
        /// Bytes that may be.
        limit: u64,
    },
    /// A file is out of reach.
    #[error("cannot {action} {path}: {error}{hint}")]
    File {
        /// As in "write".
        action: &'static str,
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
        /// Remedy, or empty.
        hint: &'static str,
    },
}

/// Result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

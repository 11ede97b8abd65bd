//! The kernel's information about a function, and the obstacles to its use.

use crate::address::PciAddress;
use crate::error::{Error, Result};
use crate::sysfs::{self, Sysfs};
use std::path::{Path, PathBuf};

/// The PCI vendor of the HCAs.
pub const MELLANOX: u16 = 0x15b3;
/// Drivers that hand functions on.
pub(crate) const VFIO_DRIVERS: [&str; 2] = ["vfio-pci", "mlx5_vfio_pci"];
/// PCI class of bridges, which stay with the kernel.
const BRIDGE: u32 = 0x06;
/// `IFF_UP` of a network interface.
const UP: u32 = 1;

/// A PCI function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Which.
    pub address: PciAddress,
    /// PCI vendor.
    pub vendor: u16,
    /// PCI device.
    pub device: u16,
    /// The driver that it belongs to, if any.
    pub driver: Option<String>,
    /// Its IOMMU group, if an IOMMU stands between it and memory.
    pub group: Option<u32>,
    /// Its VFIO character device, where the kernel has those and a VFIO driver has it.
    pub character_device: Option<PathBuf>,
}

impl Function {
    /// Looks at a function.
    ///
    /// # Errors
    /// [`Error::NoDevice`].
    pub fn look(sysfs: &Sysfs, address: PciAddress) -> Result<Self> {
        let at = sysfs.function(address);
        if !at.exists() {
            return Err(Error::NoDevice(address));
        }
        let id = |name| sysfs::hex(&at.join(name)).unwrap_or_default() as u16;
        let character_device = sysfs::names(&at.join("vfio-dev")).into_iter().next();
        Ok(Self {
            address,
            vendor: id("vendor"),
            device: id("device"),
            driver: sysfs::link(&at.join("driver")),
            group: sysfs::link(&at.join("iommu_group")).and_then(|group| group.parse().ok()),
            character_device: character_device.map(|name| Path::new("/dev/vfio/devices").join(name)),
        })
    }

    /// All functions of the machine with [`MELLANOX`] as their vendor, by address.
    pub fn hcas(sysfs: &Sysfs) -> Vec<Self> {
        let addresses = sysfs::names(&sysfs.functions()).into_iter().filter_map(|name| name.parse().ok());
        let functions = addresses.filter_map(|address| Self::look(sysfs, address).ok());
        functions.filter(|function| function.vendor == MELLANOX).collect()
    }

    /// The driver's name; "none" if there is none.
    pub fn driver_name(&self) -> &str {
        self.driver.as_deref().unwrap_or("none")
    }

    /// Returns whether a VFIO driver has the function, so that a process can open it.
    pub fn is_handed_on(&self) -> bool {
        self.driver.as_deref().is_some_and(|driver| VFIO_DRIVERS.contains(&driver))
    }

    /// Its IOMMU group.
    ///
    /// # Errors
    /// [`Error::NotAnHca`], [`Error::NoIommu`]: nothing that a change of hands could mend.
    pub fn iommu_group(&self) -> Result<u32> {
        let Self { address, vendor, device, .. } = *self;
        if vendor != MELLANOX {
            return Err(Error::NotAnHca { address, vendor, device });
        }
        self.group.ok_or(Error::NoIommu(address))
    }

    /// Its IOMMU group, if a VFIO driver has it already.
    ///
    /// # Errors
    /// As [`Function::iommu_group`]; [`Error::WrongDriver`].
    pub fn usable(&self, sysfs: &Sysfs) -> Result<u32> {
        let group = self.iommu_group()?;
        if self.is_handed_on() {
            return Ok(group);
        }
        let at = sysfs.function(self.address).display().to_string();
        Err(Error::WrongDriver { address: self.address, driver: self.driver_name().into(), sysfs: at })
    }

    /// The other functions of its group that belong to drivers which do not hand functions on.
    /// Bridges do not count.
    pub fn neighbours(&self, sysfs: &Sysfs) -> Vec<Self> {
        let Some(group) = self.group else { return Vec::new() };
        let addresses = sysfs::names(&sysfs.group(group)).into_iter().filter_map(|name| name.parse().ok());
        let others = addresses.filter(|address| *address != self.address);
        let is_bridge = |address| {
            sysfs::hex(&sysfs.function(address).join("class")).is_some_and(|class| class >> 16 == BRIDGE)
        };
        others
            .filter(|address| !is_bridge(*address))
            .filter_map(|address| Self::look(sysfs, address).ok())
            .filter(|other| other.driver.is_some() && !other.is_handed_on())
            .collect()
    }

    /// The first of its network interfaces that is up.
    pub fn interface_up(&self, sysfs: &Sysfs) -> Option<String> {
        let net = sysfs.function(self.address).join("net");
        let is_up =
            |name: &String| sysfs::hex(&net.join(name).join("flags")).is_some_and(|flags| flags & UP != 0);
        sysfs::names(&net).into_iter().find(is_up)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Machine;

    const AT: &str = "0000:3b:00.0";

    #[test]
    fn each_obstacle_is_named() {
        let machine = Machine::new("obstacles");
        let says = |address: &str| {
            let function = Function::look(&machine.sysfs, address.parse().unwrap());
            function.and_then(|function| function.usable(&machine.sysfs)).unwrap_err().to_string()
        };
        machine.function(AT, 0x8086, 0x1521);
        assert!(says("3c:00.0").contains("lspci -D -d 15b3:"));
        assert!(says(AT).contains("8086:1521"));
        machine.function(AT, MELLANOX, 0x1017);
        assert!(says(AT).contains("intel_iommu=on"));
        machine.group(AT, 14);
        assert!(says(AT).contains("driver none: bind it to vfio-pci"));
        machine.driver(AT, "mlx5_core");
        assert!(says(AT).contains("0000:3b:00.0 belongs to the driver mlx5_core"));
    }

    #[test]
    fn a_function_that_is_bound_has_a_group_and_perhaps_a_character_device() {
        let machine = Machine::new("bound");
        machine.function(AT, MELLANOX, 0x1017);
        machine.group(AT, 14);
        machine.driver(AT, "vfio-pci");
        let look = || Function::look(&machine.sysfs, AT.parse().unwrap()).unwrap();
        assert_eq!(look().usable(&machine.sysfs).unwrap(), 14);
        assert_eq!(look().character_device, None);
        machine.folder(AT, "vfio-dev/vfio2");
        assert_eq!(look().character_device, Some("/dev/vfio/devices/vfio2".into()));
    }

    #[test]
    fn the_list_has_all_hcas_and_nothing_else() {
        let machine = Machine::new("list");
        machine.function("0000:3b:00.1", MELLANOX, 0x1017);
        machine.function(AT, MELLANOX, 0x1017);
        machine.function("0000:00:1f.6", 0x8086, 0x1521);
        let found: Vec<_> =
            Function::hcas(&machine.sysfs).iter().map(|hca| hca.address.to_string()).collect();
        assert_eq!(found, [AT, "0000:3b:00.1"]);
    }

    #[test]
    fn neighbours_count_if_they_belong_to_a_driver_and_are_no_bridges() {
        let machine = Machine::new("neighbours");
        for (address, device) in
            [(AT, 0x1017), ("0000:3b:00.1", 0x1017), ("0000:3a:00.0", 0x1), ("0000:3a:01.0", 2)]
        {
            machine.function(address, MELLANOX, device);
            machine.group(address, 14);
        }
        machine.file("0000:3a:00.0", "class", "0x060400\n");
        machine.driver("0000:3a:00.0", "pcieport");
        let neighbours = || {
            let function = Function::look(&machine.sysfs, AT.parse().unwrap()).unwrap();
            function.neighbours(&machine.sysfs).iter().map(|one| one.address.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(neighbours(), [""; 0]);
        machine.driver("0000:3b:00.1", "mlx5_core");
        assert_eq!(neighbours(), ["0000:3b:00.1"]);
    }

    #[test]
    fn an_interface_that_is_up_is_found() {
        let machine = Machine::new("interfaces");
        machine.function(AT, MELLANOX, 0x1017);
        let function = Function::look(&machine.sysfs, AT.parse().unwrap()).unwrap();
        machine.file(AT, "net/ib0/flags", "0x1002\n");
        assert_eq!(function.interface_up(&machine.sysfs), None);
        machine.file(AT, "net/ib1/flags", "0x1003\n");
        assert_eq!(function.interface_up(&machine.sysfs).as_deref(), Some("ib1"));
    }
}

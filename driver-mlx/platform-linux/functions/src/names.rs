//! Names of HCAs besides their addresses: RDMA devices, network interfaces, GUIDs. The kernel's
//! driver assigns them, so they are lost once a VFIO driver has the function.

use crate::address::PciAddress;
use crate::error::{Error, Result};
use crate::function::Function;
use crate::sysfs::{self, Sysfs};
use std::fmt;
use std::fs;

impl Function {
    /// Returns the function that `text` names: a PCI address, the name of an RDMA device (`mlx5_0`)
    /// or of a network interface (`ib0`), or a GUID. A GUID is that of an HCA or its port, in the
    /// kernel's form (`248a:0703:00ab:cdef`) or as a number (`0x248a070300abcdef`).
    ///
    /// # Errors
    /// [`Error::Unknown`], with a list of the HCAs of the machine and why each can or cannot be
    /// taken.
    pub fn named(sysfs: &Sysfs, text: &str) -> Result<PciAddress> {
        if let Ok(address) = text.parse() {
            return Ok(address);
        }
        let hcas = Self::hcas(sysfs);
        let found = hcas.iter().find(|hca| hca.names(sysfs).iter().any(|name| name.is(text)));
        found.map(|hca| hca.address).ok_or_else(|| {
            let list: Vec<_> = hcas.iter().map(|hca| format!("\n  {}", hca.candidate(sysfs))).collect();
            Error::Unknown { name: text.into(), list: list.concat() }
        })
    }

    /// Returns the function's names. Empty unless the kernel's driver has it.
    pub fn names(&self, sysfs: &Sysfs) -> Vec<Name> {
        let at = sysfs.function(self.address);
        let mut names = Vec::new();
        for device in sysfs::names(&at.join("infiniband")) {
            let place = at.join("infiniband").join(&device);
            let read = |path| fs::read_to_string(place.join(path)).ok();
            let node = read("node_guid").as_deref().and_then(guid);
            // The second half of the first GID.
            let port = read("ports/1/gids/0").and_then(|gid| guid(gid.trim().get(20..)?));
            names.push(Name::Device(device));
            names.extend(node.map(Name::NodeGuid));
            names.extend(port.map(Name::PortGuid));
        }
        names.extend(sysfs::names(&at.join("net")).into_iter().map(Name::Interface));
        names
    }

    /// Returns a line for a list of HCAs: address, ids, names, and obstacles.
    pub fn candidate(&self, sysfs: &Sysfs) -> String {
        let Self { address, vendor, device, .. } = *self;
        let names: String = self.names(sysfs).iter().map(|name| format!(", {name}")).collect();
        let way = match self.iommu_group() {
            Err(error) => format!("cannot be taken: {error}"),
            Ok(group) if self.is_handed_on() => format!("IOMMU group {group}, driver {}", self.driver_name()),
            Ok(group) => match (self.interface_up(sysfs), self.neighbours(sysfs).first()) {
                (Some(interface), _) => format!("cannot be taken: its network interface {interface} is up"),
                (None, Some(other)) => {
                    format!("only with {}, which shares its IOMMU group {group}", other.address)
                }
                (None, None) => format!("IOMMU group {group}, has to be bound to vfio-pci"),
            },
        };
        format!("{address} {vendor:04x}:{device:04x}{names}: {way}")
    }
}

/// A name of an HCA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    /// Name of its RDMA device.
    Device(String),
    /// Name of a network interface.
    Interface(String),
    /// The GUID of the HCA.
    NodeGuid(u64),
    /// The GUID of its port.
    PortGuid(u64),
}

impl Name {
    /// Returns whether `text` is this name.
    fn is(&self, text: &str) -> bool {
        match self {
            Self::Device(name) | Self::Interface(name) => name == text,
            // An unset GUID (0) names no HCA.
            Self::NodeGuid(number) | Self::PortGuid(number) => *number != 0 && guid(text) == Some(*number),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(name) | Self::Interface(name) => f.write_str(name),
            Self::NodeGuid(number) => write!(f, "node GUID {number:#018x}"),
            Self::PortGuid(number) => write!(f, "port GUID {number:#018x}"),
        }
    }
}

/// A GUID: 16 hexadecimal digits, with or without `0x` before and colons between.
fn guid(text: &str) -> Option<u64> {
    let digits: String = text.trim().trim_start_matches("0x").chars().filter(|c| *c != ':').collect();
    let sound = digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    sound.then(|| u64::from_str_radix(&digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::function::MELLANOX;
    use crate::testing::Machine;

    const FIRST: &str = "0000:3b:00.0";
    const SECOND: &str = "0000:3b:00.1";

    fn machine(name: &str) -> Machine {
        let machine = Machine::new(name);
        for (address, number) in [(FIRST, 0), (SECOND, 1)] {
            machine.function(address, MELLANOX, 0x1017);
            machine.driver(address, "mlx5_core");
            let device = format!("infiniband/mlx5_{number}");
            let guid = format!("248a:0703:00ab:cde{number}");
            machine.file(address, &format!("{device}/node_guid"), &format!("{guid}\n"));
            let gid = format!("fe80:0000:0000:0000:248a:0703:00ab:cdf{number}\n");
            machine.file(address, &format!("{device}/ports/1/gids/0"), &gid);
            machine.file(address, &format!("net/ib{number}/flags"), "0x1002\n");
        }
        machine
    }

    #[test]
    fn an_hca_is_found_by_whatever_it_is_called() {
        let machine = machine("names");
        for text in [
            "3b:00.1",
            SECOND,
            "mlx5_1",
            "ib1",
            "248a:0703:00ab:cde1",
            "0x248a070300abcde1",
            "248A070300ABCDF1",
        ] {
            assert_eq!(Function::named(&machine.sysfs, text).unwrap().to_string(), SECOND, "{text}");
        }
    }

    #[test]
    fn who_is_not_there_hears_who_is_and_what_is_in_the_way() {
        let machine = machine("unknown");
        machine.group(FIRST, 14);
        machine.file(FIRST, "net/ib0/flags", "0x1003\n");
        for text in ["mlx5_2", "", "0", "248a:0703:00ab:cde2", "0x0000000000000000"] {
            let error = Function::named(&machine.sysfs, text).unwrap_err().to_string();
            for words in [
                "0000:3b:00.0 15b3:1017, mlx5_0, node GUID 0x248a070300abcde0, port GUID 0x248a070300abcdf0, ib0: \
                 cannot be taken: its network interface ib0 is up",
                "0000:3b:00.1 15b3:1017, mlx5_1",
                "has no IOMMU group",
            ] {
                assert!(error.contains(words), "{text}: {error}");
            }
        }
        let nothing = Machine::new("nothing");
        let error = Function::named(&nothing.sysfs, "mlx5_0").unwrap_err().to_string();
        assert!(error.contains("none"), "{error}");
    }

    #[test]
    fn who_can_be_taken_is_told_how() {
        let machine = machine("ways");
        let line =
            || Function::look(&machine.sysfs, FIRST.parse().unwrap()).unwrap().candidate(&machine.sysfs);
        machine.group(FIRST, 14);
        assert!(line().ends_with("IOMMU group 14, has to be bound to vfio-pci"), "{}", line());
        machine.group(SECOND, 14);
        assert!(line().ends_with("only with 0000:3b:00.1, which shares its IOMMU group 14"), "{}", line());
        machine.driver(FIRST, "vfio-pci");
        assert!(line().ends_with("IOMMU group 14, driver vfio-pci"), "{}", line());
    }
}

//! Temporary binding of a function to `vfio-pci`.

use crate::address::PciAddress;
use crate::error::{Error, Result};
use crate::function::{Function, VFIO_DRIVERS};
use crate::sysfs::{self, Sysfs};

/// A function bound to a VFIO driver. Dropping it returns the function to its previous driver.
#[derive(Debug)]
pub struct Binding {
    sysfs: Sysfs,
    address: PciAddress,
    /// Previous owner; `None` if a VFIO driver had the function from the start.
    owner: Option<Owner>,
}

/// Previous owner of a function.
#[derive(Debug)]
enum Owner {
    /// A driver of the kernel.
    Driver(String),
    /// None: the kernel chooses the driver.
    Nobody,
}

impl Binding {
    /// Binds functions of other drivers to `vfio-pci`, all or none.
    ///
    /// # Errors
    /// An obstacle, found before any change. Or the kernel's refusal: the functions are then back
    /// at their previous drivers.
    pub fn take(sysfs: &Sysfs, addresses: &[PciAddress]) -> Result<Vec<Self>> {
        let functions = addresses.iter().map(|address| Function::look(sysfs, *address));
        let functions = functions.collect::<Result<Vec<_>>>()?;
        for function in &functions {
            check(sysfs, function, addresses)?;
        }
        functions.iter().map(|function| Self::take_one(sysfs, function)).collect()
    }

    fn take_one(sysfs: &Sysfs, function: &Function) -> Result<Self> {
        let mut binding = Self { sysfs: sysfs.clone(), address: function.address, owner: None };
        if function.is_handed_on() {
            return Ok(binding);
        }
        // If dropped from here on, the binding returns the functions taken so far.
        binding.owner = Some(function.driver.clone().map_or(Owner::Nobody, Owner::Driver));
        let at = sysfs.function(function.address);
        sysfs::write(&at.join("driver_override"), VFIO_DRIVERS[0])?;
        let name = function.address.to_string();
        if function.driver.is_some() {
            sysfs::write(&at.join("driver/unbind"), &name)?;
        }
        sysfs::write(&sysfs.probe(), &name)?;
        binding.belongs_to(VFIO_DRIVERS[0])?;
        Ok(binding)
    }

    /// Returns the function's address.
    pub fn address(&self) -> PciAddress {
        self.address
    }

    /// Returns the driver that gets the function back; `None` if it remains bound, or the kernel
    /// chooses.
    pub fn owner(&self) -> Option<&str> {
        match &self.owner {
            Some(Owner::Driver(name)) => Some(name),
            _ => None,
        }
    }

    /// Returns the function to its previous driver. Dropping does the same, but ignores errors.
    ///
    /// # Errors
    /// The kernel's refusal. The function may then have no driver.
    pub fn give_back(mut self) -> Result<()> {
        self.restore()
    }

    fn restore(&mut self) -> Result<()> {
        let Some(owner) = self.owner.take() else { return Ok(()) };
        let at = self.sysfs.function(self.address);
        let name = self.address.to_string();
        sysfs::write(&at.join("driver_override"), "\n")?;
        if sysfs::link(&at.join("driver")).as_deref() == Some(VFIO_DRIVERS[0]) {
            sysfs::write(&at.join("driver/unbind"), &name)?;
        }
        sysfs::write(&self.sysfs.probe(), &name)?;
        match owner {
            Owner::Driver(driver) => self.belongs_to(&driver),
            Owner::Nobody => Ok(()),
        }
    }

    fn belongs_to(&self, driver: &str) -> Result<()> {
        let now = Function::look(&self.sysfs, self.address)?;
        if now.driver.as_deref() == Some(driver) {
            return Ok(());
        }
        let (wanted, driver) = (driver.into(), now.driver_name().into());
        Err(Error::Unbound { address: self.address, wanted, driver })
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        // `drop` cannot return the error.
        let _ = self.restore();
    }
}

/// Returns an error if the function cannot be bound to `vfio-pci` together with `all`.
fn check(sysfs: &Sysfs, function: &Function, all: &[PciAddress]) -> Result<()> {
    let group = function.iommu_group()?;
    let address = function.address;
    if let Some(other) = function.neighbours(sysfs).into_iter().find(|other| !all.contains(&other.address)) {
        let driver = other.driver_name().into();
        return Err(Error::Shared { address, group, neighbour: other.address, driver });
    }
    if function.is_handed_on() {
        return Ok(());
    }
    if let Some(interface) = function.interface_up(sysfs) {
        return Err(Error::InUse { address, interface });
    }
    if !sysfs.driver(VFIO_DRIVERS[0]).exists() {
        return Err(Error::NoVfio);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::function::MELLANOX;
    use crate::testing::Machine;

    const AT: &str = "0000:3b:00.0";
    const OTHER: &str = "0000:3b:00.1";

    fn take(machine: &Machine, addresses: &[&str]) -> Result<Vec<Binding>> {
        let addresses: Vec<_> = addresses.iter().map(|text| text.parse().unwrap()).collect();
        Binding::take(&machine.sysfs, &addresses)
    }

    /// A machine with a function of `mlx5_core` in group 14.
    fn machine(name: &str) -> Machine {
        let machine = Machine::new(name);
        machine.function(AT, MELLANOX, 0x1017);
        machine.group(AT, 14);
        machine.driver(AT, "mlx5_core");
        machine.has_driver("vfio-pci");
        machine
    }

    #[test]
    fn nothing_is_changed_while_something_is_in_the_way() {
        let machine = machine("in-the-way");
        machine.file(AT, "net/ib0/flags", "0x1003\n");
        let error = take(&machine, &[AT]).unwrap_err().to_string();
        assert!(error.contains("ip link set ib0 down"), "{error}");
        machine.file(AT, "net/ib0/flags", "0x1002\n");
        machine.function(OTHER, MELLANOX, 0x1017);
        machine.group(OTHER, 14);
        machine.driver(OTHER, "mlx5_core");
        let error = take(&machine, &[AT]).unwrap_err().to_string();
        assert!(error.contains("shares the IOMMU group 14 with 0000:3b:00.1"), "{error}");
        assert_eq!(machine.read(AT, "driver_override"), "");
        assert_eq!(machine.read(AT, "driver/unbind"), "");
    }

    #[test]
    fn what_the_kernel_refuses_is_told_and_undone() {
        // These files are plain: the kernel behind them never acts, as one whose vfio-pci refuses.
        let machine = machine("refused");
        let error = take(&machine, &[AT]).unwrap_err().to_string();
        assert!(error.contains("did not go to the driver vfio-pci, it belongs to mlx5_core"), "{error}");
        assert_eq!(machine.read(AT, "driver/unbind"), AT);
        assert_eq!(
            machine.read(AT, "driver_override"),
            "\nfio-pci",
            "the override is cleared in its first byte"
        );
    }

    #[test]
    fn a_function_that_vfio_has_is_neither_taken_nor_given_back() {
        let machine = machine("had");
        machine.driver(AT, "vfio-pci");
        let bindings = take(&machine, &[AT]).unwrap();
        assert_eq!(bindings[0].owner(), None);
        drop(bindings);
        assert_eq!(machine.read(AT, "driver_override"), "");
    }

    #[test]
    fn without_vfio_pci_the_module_is_named() {
        let machine = machine("no-vfio");
        machine.has_no_driver("vfio-pci");
        assert!(take(&machine, &[AT]).unwrap_err().to_string().contains("modprobe vfio-pci"));
    }
}

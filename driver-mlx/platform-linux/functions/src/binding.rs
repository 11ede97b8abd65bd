//! A function in the hands of `vfio-pci` for a while.

use crate::address::PciAddress;
use crate::error::{Error, Result};
use crate::function::{Function, VFIO_DRIVERS};
use crate::sysfs::{self, Sysfs};

/// A function that a VFIO driver has; given back to the driver that had it before when dropped.
#[derive(Debug)]
pub struct Binding {
    sysfs: Sysfs,
    address: PciAddress,
    /// Whom it is given back to: nobody if VFIO had it from the start.
    owner: Option<Owner>,
}

/// Who had a function before.
#[derive(Debug)]
enum Owner {
    /// A driver of the kernel.
    Driver(String),
    /// Nobody: it is left to the kernel which driver it gets.
    Nobody,
}

impl Binding {
    /// Gives functions to `vfio-pci` that belong to other drivers, all or none.
    ///
    /// # Errors
    /// What is in the way, found before anything is changed; or what the kernel refused, after which the functions are back where they
    /// were.
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
        // Dropped from here on, the binding gives back what was taken so far.
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

    /// Which function.
    pub fn address(&self) -> PciAddress {
        self.address
    }

    /// The driver that gets it back; `None` if it stays where it is, or the kernel chooses.
    pub fn owner(&self) -> Option<&str> {
        match &self.owner {
            Some(Owner::Driver(name)) => Some(name),
            _ => None,
        }
    }

    /// Gives the function back to whoever had it before. Dropping does the same, without a word about what fails.
    ///
    /// # Errors
    /// What the kernel refused. The function may belong to nobody then.
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
        // Nobody is left to tell.
        let _ = self.restore();
    }
}

/// What stands against giving a function to `vfio-pci` together with `all`.
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

//! Assigns HCAs of this machine to a unikernel: checks them, binds them to `vfio-pci`, and returns
//! them at the end.

use crate::error::{Error, Result};
use crate::process;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use vfio_functions::{
    Binding, CONTAINER, Error as Obstacle, Function, PciAddress, Sysfs, check_locked_memory, group_file,
    open_file,
};

/// Bytes that QEMU locks in addition to the guest's memory: its firmware and registers.
const BESIDE_GUEST: u64 = 64 << 20;

/// HCAs bound to `vfio-pci` until this is dropped or the tool exits.
#[derive(Debug)]
pub struct HandedOn {
    addresses: Vec<PciAddress>,
    /// Shared with the exit hook of the tool.
    bindings: Arc<Mutex<Vec<Binding>>>,
}

impl HandedOn {
    /// Checks the functions, binds them to `vfio-pci` if necessary, and prints each action.
    ///
    /// # Errors
    /// Reason and remedy. The functions keep their drivers, or get them back.
    pub fn take(addresses: &[PciAddress], guest_mib: u32) -> Result<Self> {
        let sysfs = Sysfs::default();
        check_locked_memory((u64::from(guest_mib) << 20) + BESIDE_GUEST).map_err(refused)?;
        for other in Function::hcas(&sysfs).iter().filter(|hca| !addresses.contains(&hca.address)) {
            eprintln!("vfio: not taken, as it was not named: {}", other.candidate(&sysfs));
        }
        for address in addresses {
            let function = Function::look(&sysfs, *address).map_err(|error| with_list(&sysfs, error))?;
            let group = function.iommu_group().map_err(refused)?;
            eprintln!(
                "vfio: {address} is {:04x}:{:04x}, IOMMU group {group}, driver {}",
                function.vendor,
                function.device,
                function.driver_name()
            );
        }
        let bindings = match Binding::take(&sysfs, addresses) {
            Err(Obstacle::NoVfio) if load_module() => Binding::take(&sysfs, addresses),
            other => other,
        };
        let handed_on = Self {
            addresses: addresses.to_vec(),
            bindings: Arc::new(Mutex::new(bindings.map_err(refused)?)),
        };
        let at_exit = Arc::clone(&handed_on.bindings);
        process::before_exit(move || give_back(&at_exit));
        for address in addresses {
            check_access(&sysfs, *address)?;
        }
        Ok(handed_on)
    }

    /// Returns the values of QEMU's `-device`.
    pub fn devices(&self) -> impl Iterator<Item = String> + '_ {
        self.addresses.iter().map(|address| format!("vfio-pci,host={address}"))
    }
}

impl Drop for HandedOn {
    fn drop(&mut self) {
        give_back(&self.bindings);
    }
}

/// Returns the functions to their drivers. Prints failures, because only the user can fix them.
fn give_back(bindings: &Mutex<Vec<Binding>>) {
    for binding in bindings.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        let (address, owner) = (binding.address(), binding.owner().map(str::to_owned));
        match (binding.give_back(), owner) {
            (Ok(()), Some(owner)) => eprintln!("vfio: {address} is given back to {owner}"),
            (Ok(()), None) => {}
            (Err(error), _) => eprintln!("vfio: {error}"),
        }
    }
}

/// Loads `vfio-pci`. Returns whether the kernel has it.
fn load_module() -> bool {
    let mut command = Command::new("modprobe");
    command.arg("vfio-pci").stdin(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Checks access with the rights of the current user, because QEMU runs as this user.
fn check_access(sysfs: &Sysfs, address: PciAddress) -> Result<()> {
    let group =
        Function::look(sysfs, address).and_then(|function| function.usable(sysfs)).map_err(refused)?;
    for path in [PathBuf::from(CONTAINER), group_file(group)] {
        open_file(&path, ": load the modules vfio-pci and vfio_iommu_type1").map_err(refused)?;
    }
    Ok(())
}

fn refused(error: Obstacle) -> Error {
    Error::Program(error.to_string())
}

/// Adds the list of functions to an error about a wrong address.
fn with_list(sysfs: &Sysfs, error: Obstacle) -> Error {
    let mut text = error.to_string();
    for hca in Function::hcas(sysfs) {
        text += &format!("\n  {}", hca.candidate(sysfs));
    }
    Error::Program(text)
}

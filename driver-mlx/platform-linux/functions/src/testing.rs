//! A machine of files for tests: it says what the kernel's sysfs would, and keeps what is written.

use crate::sysfs::Sysfs;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Gone when dropped.
pub(crate) struct Machine {
    root: PathBuf,
    pub(crate) sysfs: Sysfs,
}

impl Machine {
    pub(crate) fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("vfio-functions-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("bus/pci/drivers")).unwrap();
        fs::write(root.join("bus/pci/drivers_probe"), "").unwrap();
        Self { sysfs: Sysfs::at(&root), root }
    }

    fn at(&self, address: &str) -> PathBuf {
        self.root.join("bus/pci/devices").join(address)
    }

    pub(crate) fn function(&self, address: &str, vendor: u16, device: u16) {
        self.file(address, "vendor", &format!("0x{vendor:04x}\n"));
        self.file(address, "device", &format!("0x{device:04x}\n"));
        self.file(address, "driver_override", "");
    }

    pub(crate) fn file(&self, address: &str, name: &str, text: &str) {
        let path = self.at(address).join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(crate) fn folder(&self, address: &str, name: &str) {
        fs::create_dir_all(self.at(address).join(name)).unwrap();
    }

    pub(crate) fn read(&self, address: &str, name: &str) -> String {
        fs::read_to_string(self.at(address).join(name)).unwrap()
    }

    pub(crate) fn group(&self, address: &str, group: u32) {
        let folder = self.root.join(format!("kernel/iommu_groups/{group}/devices"));
        fs::create_dir_all(&folder).unwrap();
        link(self.at(address), &folder.join(address));
        link(self.root.join(format!("kernel/iommu_groups/{group}")), &self.at(address).join("iommu_group"));
    }

    pub(crate) fn has_driver(&self, driver: &str) {
        let folder = self.root.join("bus/pci/drivers").join(driver);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("unbind"), "").unwrap();
    }

    pub(crate) fn has_no_driver(&self, driver: &str) {
        fs::remove_dir_all(self.root.join("bus/pci/drivers").join(driver)).unwrap();
    }

    /// The function belongs to `driver`.
    pub(crate) fn driver(&self, address: &str, driver: &str) {
        self.has_driver(driver);
        link(self.root.join("bus/pci/drivers").join(driver), &self.at(address).join("driver"));
    }
}

fn link(to: PathBuf, at: &Path) {
    let _ = fs::remove_file(at);
    symlink(to, at).unwrap();
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

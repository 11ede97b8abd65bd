//! What the kernel says of a function, and what is in the way of using it.

use crate::error::{Error, Result};
use crate::name::PciAddress;
use std::fs;
use std::path::{Path, PathBuf};

/// Drivers that hand functions to processes.
const VFIO_DRIVERS: [&str; 2] = ["vfio-pci", "mlx5_vfio_pci"];

/// A function that a process may open.
#[derive(Debug)]
pub(super) struct Function {
    /// The number of its IOMMU group.
    pub(super) group: u32,
    /// Its character device, where the kernel has those.
    pub(super) character_device: Option<PathBuf>,
}

/// Looks at a function below `root` (`/sys`), and says what is to be done if it cannot be used.
pub(super) fn function(root: &Path, address: PciAddress) -> Result<Function> {
    let at = root.join("bus/pci/devices").join(address.to_string());
    if !at.exists() {
        return Err(Error::NoDevice(address));
    }
    let number = |name: &str| {
        let text = fs::read_to_string(at.join(name)).ok()?;
        u16::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
    };
    if let (Some(vendor), Some(device)) = (number("vendor"), number("device"))
        && vendor != 0x15b3
    {
        return Err(Error::NotAnHca { vendor, device });
    }
    let last = |link: PathBuf| Some(fs::read_link(link).ok()?.file_name()?.to_string_lossy().into_owned());
    let group = last(at.join("iommu_group")).and_then(|group| group.parse().ok());
    let group = group.ok_or(Error::NoIommu(address))?;
    let driver = last(at.join("driver")).unwrap_or_else(|| "none".into());
    if !VFIO_DRIVERS.contains(&driver.as_str()) {
        return Err(Error::WrongDriver { address, driver, sysfs: at.display().to_string() });
    }
    let character_device = fs::read_dir(at.join("vfio-dev")).ok().and_then(|mut entries| {
        let name = entries.next()?.ok()?.file_name();
        Some(Path::new("/dev/vfio/devices").join(name))
    });
    Ok(Function { group, character_device })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A directory of its own, gone at the end.
    struct Sys(PathBuf);

    impl Sys {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("platform-linux-{name}-{}", std::process::id()));
            fs::create_dir_all(root.join("bus/pci/devices/0000:3b:00.0")).unwrap();
            Self(root)
        }

        fn file(&self, name: &str, text: &str) {
            fs::write(self.0.join("bus/pci/devices/0000:3b:00.0").join(name), text).unwrap();
        }

        fn link(&self, name: &str, to: &str) {
            symlink(to, self.0.join("bus/pci/devices/0000:3b:00.0").join(name)).unwrap();
        }

        fn function(&self, address: &str) -> Result<Function> {
            function(&self.0, address.parse().unwrap())
        }
    }

    impl Drop for Sys {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn each_obstacle_is_named() {
        let sys = Sys::new("obstacles");
        let says = |sys: &Sys, address| sys.function(address).unwrap_err().to_string();
        assert!(says(&sys, "3c:00.0").contains("lspci -D -d 15b3:"));
        sys.file("vendor", "0x8086\n");
        sys.file("device", "0x1521\n");
        assert!(says(&sys, "3b:00.0").contains("8086:1521"));
        sys.file("vendor", "0x15b3\n");
        assert!(says(&sys, "3b:00.0").contains("intel_iommu=on"));
        sys.link("iommu_group", "../../../../kernel/iommu_groups/14");
        assert!(says(&sys, "3b:00.0").contains("driver none: bind it to vfio-pci"));
        sys.link("driver", "../../../../bus/pci/drivers/mlx5_core");
        assert!(says(&sys, "3b:00.0").contains("0000:3b:00.0 belongs to the driver mlx5_core"));
    }

    #[test]
    fn a_function_that_is_bound_has_a_group_and_perhaps_a_character_device() {
        let sys = Sys::new("bound");
        sys.file("vendor", "0x15b3\n");
        sys.file("device", "0x1017\n");
        sys.link("iommu_group", "../../../../kernel/iommu_groups/14");
        sys.link("driver", "../../../../bus/pci/drivers/vfio-pci");
        let function = sys.function("3b:00.0").unwrap();
        assert_eq!((function.group, function.character_device), (14, None));
        fs::create_dir_all(sys.0.join("bus/pci/devices/0000:3b:00.0/vfio-dev/vfio2")).unwrap();
        let function = sys.function("3b:00.0").unwrap();
        assert_eq!(function.character_device, Some("/dev/vfio/devices/vfio2".into()));
    }
}

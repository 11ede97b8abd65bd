//! Debian packages of a Linux guest.

use crate::error::{Error, Result};
use std::collections::BTreeSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::str::FromStr;

/// Kernels of the guests, each with the programs of its Debian release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Debian 12's, with rdma-core 44.
    V6_1,
    /// Debian 13's, with rdma-core 56.
    V6_12,
    /// Latest kernel for Debian's stable release, from trixie-backports.
    Backports,
}

impl Kernel {
    /// All kernels.
    pub const ALL: [Self; 3] = [Self::V6_1, Self::V6_12, Self::Backports];
    /// Kernels of Debian releases, without backports.
    pub const RELEASES: [Self; 2] = [Self::V6_1, Self::V6_12];

    /// Returns the Debian suites. The last one takes precedence.
    pub fn suites(self) -> &'static [&'static str] {
        match self {
            Self::V6_1 => &["bookworm"],
            Self::V6_12 => &["trixie"],
            Self::Backports => &["trixie", "trixie-backports"],
        }
    }

    /// Returns modules that other kernels do not have.
    const fn own_modules(self) -> &'static [&'static str] {
        match self {
            // For `rdma_rxe`, which does not name it.
            Self::V6_1 | Self::V6_12 => &["crc32_generic"],
            Self::Backports => &[],
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
            Self::Backports => "backports",
        })
    }
}

impl FromStr for Kernel {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|kernel| kernel.to_string() == text).ok_or_else(|| {
            let names = Self::ALL.map(|kernel| kernel.to_string()).join(", ");
            Error::Usage(format!("unknown kernel {text}; there are {names}"))
        })
    }
}

/// Contents of a guest: Debian with a kernel, mlx5, RDS and the RDMA programs, plus additions.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Recipe {
    kernel: Kernel,
    packages: BTreeSet<String>,
    modules: BTreeSet<String>,
    files: BTreeSet<String>,
}

/// Part of the cache entry's name. Increment it when images change, so that older entries are not
/// used.
const GENERATION: u32 = 8;

impl Recipe {
    /// Returns the recipe with the contents that every guest has.
    pub fn new(kernel: Kernel) -> Self {
        Self { kernel, packages: BTreeSet::new(), modules: BTreeSet::new(), files: BTreeSet::new() }
    }

    /// Adds Debian packages by name.
    ///
    /// # Errors
    /// [`Error::Usage`]: a name is not a valid package name.
    pub fn with_packages<S: AsRef<str>>(mut self, names: impl IntoIterator<Item = S>) -> Result<Self> {
        for name in names {
            self.packages.insert(checked(name.as_ref(), "package", is_package)?);
        }
        Ok(self)
    }

    /// Adds kernel modules by name, with their dependencies.
    ///
    /// # Errors
    /// [`Error::Usage`]: a name is not a valid module name.
    pub fn with_modules<S: AsRef<str>>(mut self, names: impl IntoIterator<Item = S>) -> Result<Self> {
        for name in names {
            self.modules.insert(checked(name.as_ref(), "kernel module", is_module)?.replace('-', "_"));
        }
        Ok(self)
    }

    /// Adds package files and directories that are left out by default: documentation,
    /// translations, Perl.
    ///
    /// # Errors
    /// [`Error::Usage`]: a path is relative, or a part of it is empty, "." or "..".
    pub fn with_files<S: AsRef<str>>(mut self, paths: impl IntoIterator<Item = S>) -> Result<Self> {
        for path in paths {
            let path = checked(path.as_ref(), "file (from the root, as in /usr/share/doc/fio)", is_path)?;
            self.files.insert(path.trim_matches('/').to_owned());
        }
        Ok(self)
    }

    /// Returns the name of the cache entry. Different contents have different names.
    pub fn name(&self) -> String {
        let plain = format!("linux-{}-{GENERATION}", self.kernel);
        if *self == Self::new(self.kernel) {
            return plain;
        }
        // Returns the same hash in every run, because its keys are constant.
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        format!("{plain}-{:016x}", hasher.finish())
    }

    /// Returns the kernel.
    pub fn kernel(&self) -> Kernel {
        self.kernel
    }

    /// Returns all packages, including the kernel's.
    pub fn packages(&self) -> Vec<&str> {
        PACKAGES.into_iter().chain(self.added_packages()).collect()
    }

    /// Returns the packages in addition to those of every guest.
    pub fn added_packages(&self) -> impl Iterator<Item = &str> {
        self.packages.iter().map(String::as_str)
    }

    /// Returns the kernel modules to keep, without ".ko". Built-in modules need no entry.
    pub fn modules(&self) -> Vec<&str> {
        let added = self.modules.iter().map(String::as_str);
        MODULES.into_iter().chain(self.kernel.own_modules().iter().copied()).chain(added).collect()
    }

    /// Returns the files and directories to keep, relative to the root.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(String::as_str)
    }
}

fn checked(name: &str, what: &str, good: impl Fn(&str) -> bool) -> Result<String> {
    if good(name) {
        Ok(name.to_owned())
    } else {
        Err(Error::Usage(format!("`{name}` is no name of a {what}")))
    }
}

/// Returns whether `name` is a package name (Debian Policy 5.6.1).
fn is_package(name: &str) -> bool {
    name.len() > 1
        && name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c))
}

fn is_module(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
}

fn is_path(path: &str) -> bool {
    path.starts_with('/')
        && path.trim_matches('/').split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

const PACKAGES: [&str; 14] = [
    "linux-image-amd64",
    "busybox-static",
    "kmod",
    "xz-utils",
    "zstd",
    "iproute2",
    "iputils-ping",
    "pciutils",
    "rdma-core",
    "ibverbs-utils",
    "ibverbs-providers",
    "infiniband-diags",
    "rdmacm-utils",
    "perftest",
];

const MODULES: [&str; 21] = [
    "mlx5_core",
    "mlx5_ib",
    "ib_core",
    "ib_uverbs",
    "ib_umad",
    "ib_ipoib",
    "ib_cm",
    "rdma_cm",
    "rdma_ucm",
    "rds",
    "rds_rdma",
    "rds_tcp",
    "rdma_rxe",
    "qemu_fw_cfg",
    "vfio_pci",
    "vfio_iommu_type1",
    "virtio_pci",
    "virtio_net",
    "veth",
    "tun",
    "dummy",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_go_by_their_version() {
        for kernel in Kernel::ALL {
            assert_eq!(kernel.to_string().parse::<Kernel>().ok(), Some(kernel));
        }
        let refused = "5.10".parse::<Kernel>().expect_err("unknown").to_string();
        assert_eq!(refused, "unknown kernel 5.10; there are 6.1, 6.12, backports");
    }

    #[test]
    fn images_of_different_contents_have_different_names() {
        let plain = Recipe::new(Kernel::V6_1);
        let recipes = [
            plain.clone(),
            Recipe::new(Kernel::V6_12),
            plain.clone().with_packages(["qperf"]).expect("a name"),
            plain.clone().with_packages(["qperf", "fio"]).expect("names"),
            plain.clone().with_modules(["qperf"]).expect("a name"),
            plain.clone().with_files(["/qperf"]).expect("a path"),
        ];
        let names: BTreeSet<String> = recipes.iter().map(Recipe::name).collect();
        assert_eq!(names.len(), recipes.len());
        let same = plain.clone().with_packages(["fio", "qperf", "fio"]).expect("names");
        assert_eq!(same.name(), recipes[3].name(), "the order does not matter");
        let module = |name| plain.clone().with_modules([name]).expect("a name").name();
        assert_eq!(module("nvme-rdma"), module("nvme_rdma"), "both spellings are the kernel's");
    }

    #[test]
    fn names_that_are_none_are_refused() {
        for name in ["", "a", "Perl", "-y", "a b", "x;y", "fio,qperf"] {
            let refused = Recipe::new(Kernel::V6_1).with_packages([name]).expect_err("refused").to_string();
            assert_eq!(refused, format!("`{name}` is no name of a package"));
        }
        for name in ["", "../mlx5", "a b"] {
            assert!(Recipe::new(Kernel::V6_1).with_modules([name]).is_err(), "{name}");
        }
        for path in ["", "usr/bin", "/", "/usr/../etc", "/usr//bin"] {
            assert!(Recipe::new(Kernel::V6_1).with_files([path]).is_err(), "{path}");
        }
    }
}

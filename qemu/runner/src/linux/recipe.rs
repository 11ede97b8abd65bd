//! Which Debian packages a Linux guest is made of.

use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// What goes into a guest.
#[derive(Debug, Clone)]
pub struct Recipe<'a> {
    /// The name of the cache entry; different contents need different names.
    pub name: &'a str,
    /// The Debian suite.
    pub suite: &'a str,
    /// The packages, the kernel's among them.
    pub packages: &'a [&'a str],
    /// The kernel modules to keep, without ".ko"; what they depend on comes along. Those that the kernel has built in are
    /// there anyway.
    pub modules: &'a [&'a str],
}

/// The kernels that are the judges of the emulated HCA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Debian 12's, with rdma-core 44.
    V6_1,
    /// Debian 13's, with rdma-core 56.
    V6_12,
}

impl Kernel {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::V6_1, Self::V6_12];

    /// Debian with this kernel, mlx5, RDS and the RDMA programs.
    pub fn recipe(self) -> Recipe<'static> {
        let (name, suite) = match self {
            Self::V6_1 => ("linux-bookworm-6", "bookworm"),
            Self::V6_12 => ("linux-trixie-6", "trixie"),
        };
        Recipe { name, suite, packages: &PACKAGES, modules: &MODULES }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
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
        assert_eq!(refused, "unknown kernel 5.10; there are 6.1, 6.12");
    }
}

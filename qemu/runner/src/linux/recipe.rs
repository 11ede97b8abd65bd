//! Which Debian packages a Linux guest is made of.

use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// What goes into a guest.
#[derive(Debug, Clone)]
pub struct Recipe<'a> {
    /// The name of the cache entry; different contents need different names.
    pub name: &'a str,
    /// The Debian suites; what the last has wins.
    pub suites: &'a [&'a str],
    /// The packages, the kernel's among them.
    pub packages: &'a [&'a str],
    /// The kernel modules to keep, without ".ko"; what they depend on comes along. Those that the kernel has built in are
    /// there anyway.
    pub modules: &'a [&'a str],
    /// Folders of the packages that the guest gets whole, beside programs, their libraries and settings. A last part that
    /// ends in `*` stands for all that begin so.
    pub folders: &'a [&'a str],
}

/// The kernels that are the judges of the emulated HCA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Debian 12's, with rdma-core 44.
    V6_1,
    /// Debian 13's, with rdma-core 56.
    V6_12,
    /// The latest that Debian has for its stable release, in trixie-backports; with it the programs of others that judge more
    /// than a kernel does: rdma-core's own tests, OpenSM.
    Backports,
    /// Debian 13's with QEMU, so that a guest can hand its HCA to a guest of its own.
    V6_12Qemu,
}

impl Kernel {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::V6_1, Self::V6_12, Self::Backports, Self::V6_12Qemu];
    /// Those of Debian's releases, with the same programs in both.
    pub const RELEASES: [Self; 2] = [Self::V6_1, Self::V6_12];

    /// Debian with this kernel, mlx5, RDS and the RDMA programs.
    pub fn recipe(self) -> Recipe<'static> {
        let common = Recipe { name: "", suites: &[], packages: &PACKAGES, modules: &MODULES, folders: &[] };
        match self {
            Self::V6_1 => Recipe { name: "linux-bookworm-6", suites: &["bookworm"], ..common },
            Self::V6_12 => Recipe { name: "linux-trixie-6", suites: &["trixie"], ..common },
            Self::Backports => Recipe {
                name: "linux-trixie-backports-1",
                suites: &["trixie", "trixie-backports"],
                packages: &JUDGES,
                folders: &PYTHON,
                ..common
            },
            Self::V6_12Qemu => Recipe {
                name: "linux-trixie-qemu-1",
                suites: &["trixie"],
                packages: &HOSTS,
                folders: &QEMU,
                ..common
            },
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
            Self::Backports => "backports",
            Self::V6_12Qemu => "6.12-qemu",
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

/// `PACKAGES`, and `$more`.
macro_rules! packages {
    ($($more:literal),*) => {
        [
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
            $($more),*
        ]
    };
}

const PACKAGES: [&str; 14] = packages!();
/// What judges more than a kernel does.
const JUDGES: [&str; 18] = packages!("qperf", "opensm", "python3-pyverbs", "python3-scapy");
/// What hands its devices to guests.
const HOSTS: [&str; 16] = packages!("qemu-system-x86", "seabios");
/// Firmware, and the parts that QEMU loads when it needs them.
const QEMU: [&str; 3] = ["usr/share/qemu", "usr/share/seabios", "usr/lib/x86_64-linux-gnu/qemu"];
/// Python, its packages, and rdma-core's tests.
const PYTHON: [&str; 3] = ["usr/lib/python3", "usr/lib/python3.*", "usr/share/doc/rdma-core/tests"];

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
        assert_eq!(refused, "unknown kernel 5.10; there are 6.1, 6.12, backports, 6.12-qemu");
    }
}

//! What a name stands for: a device, and the address that its port has.

use dat_nostd::IaAddress;
use platform_linux::{DeviceName, Iommu};
use std::net::Ipv4Addr;

/// A device and how it is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The device.
    pub device: DeviceName,
    /// Its port's address.
    pub address: IaAddress,
    /// Connection requests have DAT's own framing, with 64 bytes of private data, and not RDMA-CM's, with 56.
    pub own_framing: bool,
    /// The interface to the IOMMU.
    pub iommu: Iommu,
}

impl Target {
    /// From the IA parameters of a line: `DEVICE ADDRESS [framing=dat|rdma-cm] [iommu=group|iommufd]`. None if they name no device: the
    /// line is another provider's.
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let mut target = Self::new(words.next()?, words.next()?)?;
        for word in words {
            match word {
                "framing=dat" => target.own_framing = true,
                "framing=rdma-cm" => target.own_framing = false,
                "iommu=group" => target.iommu = Iommu::Group,
                "iommu=iommufd" => target.iommu = Iommu::Iommufd,
                _ => return None,
            }
        }
        Some(target)
    }

    /// From an IA name that says everything: `DEVICE@ADDRESS`.
    pub fn from_name(name: &str) -> Option<Self> {
        let (device, address) = name.rsplit_once('@')?;
        Self::new(device, address)
    }

    fn new(device: &str, address: &str) -> Option<Self> {
        let address: Ipv4Addr = address.parse().ok()?;
        let device = device.parse().ok()?;
        Some(Self { device, address: address.into(), own_framing: false, iommu: Iommu::Any })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_a_device() {
        let socket = Target::parse("/run/hca0 10.0.0.1").unwrap();
        assert_eq!(socket.device, DeviceName::Socket("/run/hca0".into()));
        assert_eq!(Some(&socket), Target::from_name("/run/hca0@10.0.0.1").as_ref());
        let card = Target::parse("0000:3b:00.0 10.0.0.1 framing=dat iommu=group").unwrap();
        assert!(card.own_framing && card.iommu == Iommu::Group && card.device.to_string() == "0000:3b:00.0");
        for text in ["", "ib0 0", "/run/hca0", "/run/hca0 host", "/run/hca0 10.0.0.1 framing=none"] {
            assert_eq!(Target::parse(text), None, "{text}");
        }
        for name in ["ib0", "OpenIB-cma", "@10.0.0.1", "/run/hca0@", "hca0@10.0.0.1"] {
            assert_eq!(Target::from_name(name), None, "{name}");
        }
    }
}

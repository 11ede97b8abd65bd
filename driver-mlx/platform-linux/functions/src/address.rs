//! Addresses of PCI functions.

use crate::error::Error;
use std::fmt;
use std::str::FromStr;

/// Domain, bus, device and function of a PCI function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    /// PCI domain (segment).
    pub domain: u16,
    /// Bus.
    pub bus: u8,
    /// Device on the bus, below 32.
    pub device: u8,
    /// Function of the device, below 8.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function}")
    }
}

impl FromStr for PciAddress {
    type Err = Error;

    /// As `lspci` prints it, with or without the domain.
    fn from_str(text: &str) -> Result<Self, Error> {
        let parse = || {
            let (rest, function) = text.rsplit_once('.')?;
            let (rest, device) = rest.rsplit_once(':')?;
            let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
            // A sign would be taken for part of a number.
            let digits = [domain, bus, device, function];
            if digits.iter().any(|part| part.is_empty() || !part.bytes().all(|byte| byte.is_ascii_hexdigit()))
            {
                return None;
            }
            let address = Self {
                domain: u16::from_str_radix(domain, 16).ok()?,
                bus: u8::from_str_radix(bus, 16).ok()?,
                device: u8::from_str_radix(device, 16).ok()?,
                function: u8::from_str_radix(function, 16).ok()?,
            };
            (address.device < 32 && address.function < 8).then_some(address)
        };
        parse().ok_or_else(|| Error::Address(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_that_lspci_prints() {
        let address = PciAddress { domain: 0, bus: 0x3b, device: 0, function: 1 };
        for text in ["0000:3b:00.1", "3b:00.1", "0:3B:0.1"] {
            assert_eq!(text.parse::<PciAddress>().unwrap(), address, "{text}");
        }
        assert_eq!(address.to_string(), "0000:3b:00.1");
        for text in
            ["", "hca0", "3b:00", "3b:20.0", "3b:00.8", "3b:+1.0", "1:2:3:4.0", "10000:00:00.0", ":00.0"]
        {
            let error = text.parse::<PciAddress>().unwrap_err();
            assert!(error.to_string().contains("PCI address"), "{text}: {error}");
        }
    }
}

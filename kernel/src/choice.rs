//! Which HCA of a machine is meant.

use core::fmt;
use core::str::FromStr;

use pci_types::PciAddress;

/// Which HCA of a machine is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The `n`th of those that the machine lists, counted from 0.
    Nth(usize),
    /// The PCI function at this address.
    At(PciAddress),
}

/// It names no HCA: neither a number nor a PCI address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoName;

impl From<usize> for Choice {
    fn from(nth: usize) -> Self {
        Self::Nth(nth)
    }
}

impl FromStr for Choice {
    type Err = NoName;

    /// A number, or an address as `lspci` prints it: `3b:00.0`, `0000:3b:00.0`.
    fn from_str(text: &str) -> Result<Self, NoName> {
        if let Ok(nth) = text.parse() {
            return Ok(Self::Nth(nth));
        }
        let hex = |text: &str, digits: usize| {
            let sound =
                !text.is_empty() && text.len() <= digits && text.bytes().all(|b| b.is_ascii_hexdigit());
            if sound { u16::from_str_radix(text, 16).map_err(|_| NoName) } else { Err(NoName) }
        };
        let (rest, function) = text.split_once('.').ok_or(NoName)?;
        let (rest, device) = rest.rsplit_once(':').ok_or(NoName)?;
        let (segment, bus) = rest.split_once(':').unwrap_or(("0", rest));
        let (segment, bus) = (hex(segment, 4)?, hex(bus, 2)?);
        let (device, function) = (hex(device, 2)?, hex(function, 1)?);
        if device >= 32 || function >= 8 {
            return Err(NoName);
        }
        Ok(Self::At(PciAddress::new(segment, bus as u8, device as u8, function as u8)))
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nth(nth) => write!(f, "number {nth}"),
            Self::At(address) => write!(f, "at {address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_addresses() {
        let at =
            |segment, bus, device, function| Ok(Choice::At(PciAddress::new(segment, bus, device, function)));
        for (text, choice) in [
            ("0", Ok(Choice::Nth(0))),
            ("12", Ok(Choice::Nth(12))),
            ("3b:00.0", at(0, 0x3b, 0, 0)),
            ("0001:3B:1f.7", at(1, 0x3b, 0x1f, 7)),
        ] {
            assert_eq!(text.parse(), choice, "{text}");
        }
        for text in [
            "",
            "-1",
            "3b:00",
            "3b:20.0",
            "3b:00.8",
            "x:00.0",
            "1:2:3:4.0",
            "12345:00:00.0",
            ":.",
            "3b:00.0 ",
        ] {
            assert_eq!(text.parse::<Choice>(), Err(NoName), "{text}");
        }
    }
}

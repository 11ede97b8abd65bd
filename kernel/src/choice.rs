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
    /// The one whose port has this GUID. Only its firmware knows it, so that HCAs are brought up until one says so.
    Port(u64),
}

/// It names no HCA: neither a number, nor a PCI address, nor a GUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoName;

impl From<usize> for Choice {
    fn from(nth: usize) -> Self {
        Self::Nth(nth)
    }
}

impl FromStr for Choice {
    type Err = NoName;

    /// A number, an address as `lspci` prints it (`3b:00.0`, `0000:3b:00.0`), or a port's GUID (`0x248a070300abcdef`,
    /// `248a:0703:00ab:cdef`).
    fn from_str(text: &str) -> Result<Self, NoName> {
        if let Ok(nth) = text.parse() {
            return Ok(Self::Nth(nth));
        }
        if let Some(guid) = guid(text) {
            return Ok(Self::Port(guid));
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

/// 16 digits behind `0x`, or in four groups of four.
fn guid(text: &str) -> Option<u64> {
    let mut guid = 0;
    let mut digits = 0;
    let mut take = |part: &str| {
        for digit in part.chars() {
            guid = guid << 4 | u64::from(digit.to_digit(16)?);
            digits += 1;
        }
        Some(())
    };
    match text.strip_prefix("0x") {
        Some(number) if number.len() == 16 => take(number)?,
        Some(_) => return None,
        None => text.split(':').try_for_each(|group| if group.len() == 4 { take(group) } else { None })?,
    }
    (digits == 16).then_some(guid)
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nth(nth) => write!(f, "number {nth}"),
            Self::At(address) => write!(f, "at {address}"),
            Self::Port(guid) => write!(f, "with the port GUID {guid:#018x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_addresses_and_guids() {
        let at =
            |segment, bus, device, function| Ok(Choice::At(PciAddress::new(segment, bus, device, function)));
        for (text, choice) in [
            ("0", Ok(Choice::Nth(0))),
            ("12", Ok(Choice::Nth(12))),
            ("3b:00.0", at(0, 0x3b, 0, 0)),
            ("0001:3B:1f.7", at(1, 0x3b, 0x1f, 7)),
            ("0x248a070300abcdef", Ok(Choice::Port(0x248a_0703_00ab_cdef))),
            ("248A:0703:00ab:cdef", Ok(Choice::Port(0x248a_0703_00ab_cdef))),
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
            "0x248a070300abcde",
            "0x248a070300abcdef0",
            "248a:0703:00ab",
            "248a:0703:00ab:cdeg",
            "248a07:0300:abcd:ef",
        ] {
            assert_eq!(text.parse::<Choice>(), Err(NoName), "{text}");
        }
    }
}

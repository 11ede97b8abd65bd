//! Errors of the bus that a function has recorded: Advanced Error Reporting (section 7.8.4).

use core::fmt;

use super::function::{ConfigRead, Function};

/// First extended capability.
const FIRST: u16 = 0x100;
/// Number of the capability, and its status registers.
const AER: u16 = 1;
const UNCORRECTABLE: u16 = 4;
const CORRECTABLE: u16 = 0x10;
/// Most capabilities: each has 8 bytes at least.
const MAX_CAPABILITIES: usize = (4096 - 256) / 8;

/// Recorded errors. Bits stay set until they are cleared, also through a reboot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusErrors {
    /// Uncorrectable Error Status register.
    pub uncorrectable: u32,
    /// Correctable Error Status register.
    pub correctable: u32,
}

/// Uncorrectable errors by bit.
const NAMES: [(u8, &str); 12] = [
    (4, "data link protocol error"),
    (5, "surprise down"),
    (12, "poisoned TLP"),
    (13, "flow control protocol error"),
    (14, "completion timeout"),
    (15, "completer abort"),
    (16, "unexpected completion"),
    (17, "receiver overflow"),
    (18, "malformed TLP"),
    (19, "ECRC error"),
    (20, "unsupported request"),
    (21, "ACS violation"),
];

impl BusErrors {
    /// Reads the errors of the function whose configuration space `read` accesses. Returns `None` if it
    /// has no such capability within reach, or no error.
    fn of(read: impl Fn(u16) -> u32) -> Option<Self> {
        let mut at = FIRST;
        for _ in 0..MAX_CAPABILITIES {
            let header = read(at);
            if header == u32::MAX || header == 0 {
                return None;
            }
            if header as u16 == AER {
                let [uncorrectable, correctable] =
                    [UNCORRECTABLE, CORRECTABLE].map(|status| read(at + status));
                let is_clean = uncorrectable | correctable == 0 || uncorrectable == u32::MAX;
                return (!is_clean).then_some(Self { uncorrectable, correctable });
            }
            at = (header >> 20) as u16 & 0xffc;
            if at < FIRST {
                return None;
            }
        }
        None
    }
}

impl Function {
    /// The errors that the function has recorded. Returns `None` if there are none, or if only ports
    /// reach its configuration space.
    pub(crate) fn bus_errors(&self, access: &impl ConfigRead) -> Option<BusErrors> {
        BusErrors::of(|offset| access.read(self.address, offset))
    }
}

impl fmt::Display for BusErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PCI Express errors: uncorrectable {:#x}", self.uncorrectable)?;
        for (bit, name) in NAMES {
            if self.uncorrectable & (1 << bit) != 0 {
                write!(f, ", {name}")?;
            }
        }
        write!(f, "; correctable {:#x}", self.correctable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    /// A space with these registers, all others 0.
    fn space(registers: &[(u16, u32)]) -> impl Fn(u16) -> u32 {
        move |offset| registers.iter().find(|known| known.0 == offset).map_or(0, |known| known.1)
    }

    #[test]
    fn errors_are_read_behind_other_capabilities() {
        // As a ConnectX-5 has them: AER, then others; and behind one of them.
        let status = [(0x104, 0x4000), (0x110, 0x2000)];
        let first = [&[(0x100, 0x1501_0000 | 0x1_0001)][..], &status].concat();
        let errors = BusErrors { uncorrectable: 0x4000, correctable: 0x2000 };
        assert_eq!(BusErrors::of(space(&first)), Some(errors));
        let second = [(0x100, 0x1801_0003), (0x180, 0x0001_0001), (0x184, 1 << 12), (0x190, 0)];
        let errors = BusErrors::of(space(&second)).expect("an error");
        assert_eq!(
            errors.to_string(),
            "PCI Express errors: uncorrectable 0x1000, poisoned TLP; correctable 0x0"
        );
    }

    #[test]
    fn functions_without_errors_or_capability_have_none() {
        assert_eq!(BusErrors::of(space(&[])), None);
        assert_eq!(BusErrors::of(|_| u32::MAX), None, "by ports, or a device that is gone");
        assert_eq!(BusErrors::of(space(&[(0x100, 0x0001_0001)])), None, "no error");
        assert_eq!(BusErrors::of(space(&[(0x100, 0x0001_0003)])), None, "the last capability");
        // Capabilities that lead to each other, and one that leads out.
        assert_eq!(BusErrors::of(space(&[(0x100, 0x2001_0003), (0x200, 0x1001_0003)])), None);
        assert_eq!(BusErrors::of(space(&[(0x100, 0x0401_0003)])), None);
    }
}

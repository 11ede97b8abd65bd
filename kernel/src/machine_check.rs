//! Machine checks: the registers in which a processor reports hardware errors, in words (Intel SDM
//! volume 3, sections 16.3 and 16.9).

use core::fmt;

/// Most banks read: bank 31's registers are the last before those of other features.
pub const MAX_BANKS: u8 = 32;

const VALID: u64 = 1 << 63;
const OVERFLOW: u64 = 1 << 62;
const UNCORRECTED: u64 = 1 << 61;
const HAS_MISC: u64 = 1 << 59;
const HAS_ADDRESS: u64 = 1 << 58;
const CONTEXT_CORRUPT: u64 = 1 << 57;

/// An error that a bank reports. Displays as a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bank {
    number: u8,
    status: u64,
    address: Option<u64>,
    misc: Option<u64>,
}

/// A register of a bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// `IA32_MCi_STATUS`.
    Status,
    /// `IA32_MCi_ADDR`.
    Address,
    /// `IA32_MCi_MISC`.
    Misc,
}

impl Bank {
    /// Returns the error in bank `number`, if it reports one. `read` is called only for registers
    /// that exist: a bank has the address and the miscellaneous register if its status says so.
    pub fn read(number: u8, mut read: impl FnMut(Register) -> u64) -> Option<Self> {
        let status = read(Register::Status);
        if status & VALID == 0 {
            return None;
        }
        let address = (status & HAS_ADDRESS != 0).then(|| read(Register::Address));
        let misc = (status & HAS_MISC != 0).then(|| read(Register::Misc));
        Some(Self { number, status, address, misc })
    }
}

impl fmt::Display for Bank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bank {}: status {:#018x}: {}", self.number, self.status, kind(self.status as u16))?;
        let severity = if self.status & UNCORRECTED != 0 { "uncorrected" } else { "corrected" };
        write!(f, ", {severity}")?;
        for (bit, text) in [(CONTEXT_CORRUPT, "processor context corrupt"), (OVERFLOW, "others were lost")] {
            if self.status & bit != 0 {
                write!(f, ", {text}")?;
            }
        }
        if let Some(address) = self.address {
            write!(f, ", address {address:#x}")?;
        }
        if let Some(misc) = self.misc {
            write!(f, ", misc {misc:#x}")?;
        }
        Ok(())
    }
}

/// The error code's meaning: the simple codes, then the compound ones by their highest bit.
const fn kind(code: u16) -> &'static str {
    // Bit 12 says that corrected errors are filtered.
    match code & !(1 << 12) {
        0 => "no error",
        1 => "unclassified",
        2 => "microcode ROM parity",
        3 => "external",
        4 => "redundancy check",
        5 => "internal parity",
        6 => "SMM handler code access",
        0x400 => "internal timer",
        0x401..0x800 => "internal unclassified",
        0xe0b => "I/O",
        0x800..0x1000 => "bus or interconnect",
        0x100..0x200 => "cache",
        0x080..0x100 => "memory controller",
        0x010..0x020 => "TLB",
        0x00c..0x010 => "cache hierarchy",
        _ => "unknown",
    }
}

/// `IA32_MCG_STATUS` in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalStatus(pub u64);

impl fmt::Display for GlobalStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let restartable = if self.0 & 1 != 0 { "program could go on" } else { "program cannot go on" };
        let related = if self.0 & 2 != 0 { "at this instruction" } else { "not at this instruction" };
        write!(f, "machine check: status {:#x}: {related}, {restartable}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;
    use std::vec::Vec;

    fn bank(status: u64) -> Option<(Bank, Vec<Register>)> {
        let mut registers = Vec::new();
        let bank = Bank::read(9, |register| {
            registers.push(register);
            match register {
                Register::Status => status,
                Register::Address => 0x1234_5000,
                Register::Misc => 0x8c,
            }
        });
        bank.map(|bank| (bank, registers))
    }

    #[test]
    fn bank_reads_only_the_registers_that_its_status_names() {
        use Register::{Address, Misc, Status};
        for (status, registers) in [
            (1 << 63, [Status].as_slice()),
            (1 << 63 | 1 << 58, &[Status, Address]),
            (1 << 63 | 1 << 59, &[Status, Misc]),
            (1 << 63 | 3 << 58, &[Status, Address, Misc]),
        ] {
            assert_eq!(bank(status).unwrap().1, registers, "{status:#x}");
        }
        assert_eq!(bank(u64::MAX >> 1), None, "not valid");
    }

    #[test]
    fn bank_displays_kind_severity_and_registers() {
        for (status, line) in [
            (
                0xbd00_0000_0000_0134,
                "bank 9: status 0xbd00000000000134: cache, uncorrected, address 0x12345000, misc 0x8c",
            ),
            (
                0xfe00_0000_0001_0e0b,
                "bank 9: status 0xfe00000000010e0b: I/O, uncorrected, processor context corrupt, others were \
                 lost, address 0x12345000, misc 0x8c",
            ),
            (0x8000_0000_0000_1090, "bank 9: status 0x8000000000001090: memory controller, corrected"),
            (
                0xb200_0000_0000_0402,
                "bank 9: status 0xb200000000000402: internal unclassified, uncorrected, \
                                     processor context corrupt",
            ),
        ] {
            assert_eq!(bank(status).unwrap().0.to_string(), line);
        }
    }

    #[test]
    fn every_error_code_has_a_kind() {
        for (code, expected) in [
            (0x0000, "no error"),
            (0x0005, "internal parity"),
            (0x000f, "cache hierarchy"),
            (0x0010, "TLB"),
            (0x009f, "memory controller"),
            (0x017a, "cache"),
            (0x0400, "internal timer"),
            (0x0810, "bus or interconnect"),
            (0x0e0b, "I/O"),
            (0x0020, "unknown"),
            (0x2000, "unknown"),
        ] {
            assert_eq!(kind(code), expected, "{code:#x}");
            assert_eq!(kind(code | 0x1000), expected, "{code:#x}, filtered");
        }
    }

    #[test]
    fn global_status_says_where_it_happened() {
        let text = GlobalStatus(5).to_string();
        assert_eq!(text, "machine check: status 0x5: not at this instruction, program could go on");
    }
}

//! Registers that ACPI tables name.

/// A register of 8 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// At an I/O port.
    Port(u16),
    /// At a physical address.
    Memory(u64),
}

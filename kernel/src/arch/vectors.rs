//! Which interrupt vector is whose.

/// Interrupt vectors for devices: MSI-X vector `n` of the table programmed is CPU vector `FIRST_DEVICE + n`.
pub const FIRST_DEVICE: u8 = 0x40;
/// How many there are: one bit each in a word.
pub const DEVICE_VECTORS: u8 = 64;
/// The local APIC's timer.
pub const TIMER: u8 = 0x80;
/// The local APIC's spurious vector, which wants no end-of-interrupt.
pub const SPURIOUS: u8 = 0x8f;
/// The last vector in use.
pub const LAST: u8 = SPURIOUS;
/// Where the masked PIC's spurious interrupts would come out.
pub const PIC: u8 = 0x20;

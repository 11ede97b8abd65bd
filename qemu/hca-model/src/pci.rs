//! PCI configuration space: identity, BAR0, power management, PCI Express with function-level reset, MSI-X.
//!
//! The owner of the interrupts (QEMU, a test) gives the MSI-X table and the pending bits their meaning; here is only where
//! they lie.

use crate::card::Card;
use crate::profile::Profile;
use crate::vsc::Vsc;

/// Bytes of configuration space, extended part included.
pub const CONFIG_SIZE: usize = 4096;
/// Mellanox.
pub const VENDOR_ID: u16 = 0x15b3;
/// Class code: network controller, InfiniBand.
pub const CLASS_CODE: u32 = 0x02_07_00;

const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const BAR0: usize = 0x10;
const BAR1: usize = 0x14;
const CAP_POINTER: usize = 0x34;
const INTERRUPT_LINE: usize = 0x3c;
const POWER: usize = 0x40;
const EXPRESS: usize = 0x60;
const MSIX: usize = 0x9c;
const VENDOR_SPECIFIC: usize = 0xc0;

/// `Command` bits.
const MEMORY_SPACE: u16 = 1 << 1;
const BUS_MASTER: u16 = 1 << 2;

/// What a write asks of the device besides the changed bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Function-level reset.
    pub function_level_reset: bool,
    /// An internal command waits behind the vendor-specific capability.
    pub internal_command: bool,
}

/// Configuration space of the one function.
#[derive(Clone, Debug)]
pub struct ConfigSpace {
    bytes: Vec<u8>,
    /// Bits that software may change, per byte.
    writable: Vec<u8>,
    card: &'static Card,
    vectors: u16,
    msix: [u32; 2],
    pub(crate) vendor_specific: Vsc,
}

impl ConfigSpace {
    /// Configuration space at power-on.
    #[must_use]
    pub fn new(profile: &Profile) -> Self {
        let mut space = Self {
            bytes: vec![0; CONFIG_SIZE],
            writable: vec![0; CONFIG_SIZE],
            card: profile.card,
            vectors: profile.vectors,
            msix: profile.msix,
            vendor_specific: Vsc::new(profile.card.hardware_id),
        };
        space.power_on();
        space
    }

    fn put(&mut self, offset: usize, value: &[u8], writable: &[u8]) {
        if let Some(to) = self.bytes.get_mut(offset..offset + value.len()) {
            to.copy_from_slice(value);
        }
        if let Some(to) = self.writable.get_mut(offset..offset + writable.len()) {
            to.copy_from_slice(writable);
        }
    }

    fn put16(&mut self, offset: usize, value: u16, writable: u16) {
        self.put(offset, &value.to_le_bytes(), &writable.to_le_bytes());
    }

    fn put32(&mut self, offset: usize, value: u32, writable: u32) {
        self.put(offset, &value.to_le_bytes(), &writable.to_le_bytes());
    }

    fn power_on(&mut self) {
        self.bytes.fill(0);
        self.writable.fill(0);
        self.put16(0x00, VENDOR_ID, 0);
        self.put16(0x02, self.card.device_id, 0);
        // Memory space, bus master, parity error response, SERR, INTx disable.
        self.put16(COMMAND, 0, 0x0546);
        self.put16(STATUS, 1 << 4, 0);
        self.put32(0x08, CLASS_CODE << 8, 0);
        self.put(0x0c, &[0x10], &[0xff]);
        let size_mask = !(self.card.bar_size() as u32 - 1);
        // 64 bits, prefetchable.
        self.put32(BAR0, 0b1100, size_mask);
        self.put32(BAR1, 0, u32::MAX);
        self.put16(0x2c, VENDOR_ID, 0);
        self.put16(0x2e, self.card.subsystem_id, 0);
        self.put(CAP_POINTER, &[POWER as u8], &[]);
        // No interrupt pin; the line register is software's scratch byte.
        self.put(INTERRUPT_LINE, &[0xff], &[0xff]);

        // Power management, version 3: D0 and D3hot, and D3hot loses nothing (No_Soft_Reset).
        self.put(POWER, &[0x01, EXPRESS as u8], &[]);
        self.put16(POWER + 2, 0x0003, 0);
        self.put16(POWER + 4, 1 << 3, 0x0003);

        // PCI Express, version 2, endpoint.
        self.put(EXPRESS, &[0x10, MSIX as u8], &[]);
        self.put16(EXPRESS + 0x02, 0x0002, 0);
        // Payload up to 512 bytes, extended tags, role-based error reporting, function-level reset.
        self.put32(EXPRESS + 0x04, 2 | 1 << 5 | 1 << 15 | 1 << 28, 0);
        // The reset bit (15) always reads zero.
        self.put16(EXPRESS + 0x08, 0x2810, 0x7fff);
        let (generation, lanes) = self.card.pci_link;
        self.put32(EXPRESS + 0x0c, u32::from(generation) | u32::from(lanes) << 4, 0);
        self.put16(EXPRESS + 0x10, 0, 0x01d3);
        self.put16(EXPRESS + 0x12, u16::from(generation) | u16::from(lanes) << 4, 0);
        // Completion time-out ranges A to D and its disabling.
        self.put32(EXPRESS + 0x24, 0x1f, 0);
        self.put16(EXPRESS + 0x28, 0, 0x001f);
        // Each speed up to its own.
        self.put32(EXPRESS + 0x2c, (1 << (generation + 1)) - 2, 0);
        self.put16(EXPRESS + 0x30, generation.into(), 0x000f);

        let [table, pending] = self.msix;
        self.put(MSIX, &[0x11, VENDOR_SPECIFIC as u8], &[]);
        self.put16(MSIX + 2, self.vectors.clamp(1, 2048) - 1, 0xc000);
        self.put32(MSIX + 4, table, 0);
        self.put32(MSIX + 8, pending, 0);

        self.put(VENDOR_SPECIFIC, &[0x09, 0x00, Vsc::LEN as u8, 0x00], &[]);
        self.vendor_specific = Vsc::new(self.card.hardware_id);
    }

    /// Reads any number of bytes; beyond the end zero.
    pub fn read(&self, offset: usize, buf: &mut [u8]) {
        for (i, byte) in buf.iter_mut().enumerate() {
            *byte = offset.checked_add(i).and_then(|at| self.bytes.get(at)).copied().unwrap_or(0);
        }
        self.vendor_specific.read(offset, VENDOR_SPECIFIC, buf);
    }

    /// Writes any number of bytes.
    pub fn write(&mut self, offset: usize, data: &[u8]) -> Effects {
        let mut effects = Effects::default();
        self.vendor_specific.write(offset, VENDOR_SPECIFIC, data);
        effects.internal_command = self.vendor_specific.icmd.is_busy();
        for (i, byte) in data.iter().enumerate() {
            let Some(at) = offset.checked_add(i) else { break };
            if let (Some(to), Some(writable)) = (self.bytes.get_mut(at), self.writable.get(at)) {
                *to = (*to & !writable) | (byte & writable);
            }
            if at == EXPRESS + 0x09 && byte & 0x80 != 0 {
                effects.function_level_reset = true;
            }
        }
        effects
    }

    /// Back to power-on values, as a function-level reset does.
    pub fn reset(&mut self) {
        self.power_on();
    }

    fn command(&self) -> u16 {
        u16::from_le_bytes([
            self.bytes.get(COMMAND).copied().unwrap_or(0),
            self.bytes.get(COMMAND + 1).copied().unwrap_or(0),
        ])
    }

    /// Whether the device may access memory and send interrupts.
    #[must_use]
    pub fn bus_master(&self) -> bool {
        self.command() & BUS_MASTER != 0
    }

    /// Returns true if the function is in D3hot.
    #[must_use]
    pub fn sleeps(&self) -> bool {
        self.bytes.get(POWER + 4).is_some_and(|status| status & 3 == 3)
    }

    /// Whether BAR0 answers.
    #[must_use]
    pub fn memory_space(&self) -> bool {
        self.command() & MEMORY_SPACE != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read32(space: &ConfigSpace, offset: usize) -> u32 {
        let mut bytes = [0; 4];
        space.read(offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn a_driver_finds_the_device_and_sizes_its_bar() {
        let mut space = ConfigSpace::new(&Profile::node(0));
        assert_eq!(read32(&space, 0), 0x1017_15b3);
        assert_eq!(read32(&space, 8) >> 8, 0x0002_0700);
        let _ = space.write(BAR0, &u32::MAX.to_le_bytes());
        let _ = space.write(BAR1, &u32::MAX.to_le_bytes());
        let size = u64::from(read32(&space, BAR1)) << 32 | u64::from(read32(&space, BAR0) & !0xf);
        assert_eq!(size.wrapping_neg(), 32 << 20);
        assert_eq!(read32(&space, BAR0) & 0xf, 0xc);
        assert_eq!(read32(&space, 0x30), 0, "no expansion ROM");
    }

    #[test]
    fn the_capability_list_ends_and_holds_what_the_device_needs() {
        let space = ConfigSpace::new(&Profile::node(0));
        let mut at = (read32(&space, CAP_POINTER) & 0xff) as usize;
        let mut found = Vec::new();
        while at != 0 && found.len() < 16 {
            let header = read32(&space, at);
            found.push(header & 0xff);
            at = (header >> 8 & 0xff) as usize;
        }
        assert_eq!(found, [0x01, 0x10, 0x11, 0x09]);
        assert_eq!(read32(&space, MSIX) >> 16 & 0x7ff, 31, "table size less one");
        assert_ne!(read32(&space, EXPRESS + 4) & 1 << 28, 0, "function-level reset capable");
    }

    #[test]
    fn a_reset_is_asked_by_one_bit_and_clears_the_command_register() {
        let mut space = ConfigSpace::new(&Profile { vectors: 4, ..Profile::node(0) });
        let _ = space.write(COMMAND, &[0x06, 0x04]);
        assert!(space.bus_master() && space.memory_space());
        assert!(!space.write(EXPRESS + 8, &[0x10, 0x28]).function_level_reset);
        assert!(space.write(EXPRESS + 8, &[0x10, 0xa8]).function_level_reset);
        assert_eq!(read32(&space, EXPRESS + 8) & 0x8000, 0);
        space.reset();
        assert!(!space.bus_master());
    }
}

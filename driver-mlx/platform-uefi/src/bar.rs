//! BAR0 by `PciIo.Mem`.

use crate::pci_io::PciIo;
use driver_mlx::{Bar, DoorbellRegister};

/// BAR0 of an HCA.
///
/// Each access is a call of the firmware, which knows translations and boards that do not map the
/// BAR. It costs at most three times a direct access, and both wait for the bus.
#[derive(Clone, Copy, Debug)]
pub struct UefiBar {
    pci: PciIo,
    len: usize,
}

impl UefiBar {
    pub(crate) fn new(pci: PciIo, len: usize) -> Self {
        Self { pci, len }
    }
}

/// The registers of one queue.
#[derive(Debug)]
pub struct UefiDoorbellRegister {
    pci: PciIo,
    offset: usize,
    len: usize,
}

impl DoorbellRegister for UefiDoorbellRegister {
    fn ring(&mut self, value: u64) {
        self.pci.write64(self.offset, value.to_be());
    }

    fn write(&mut self, offset: usize, value: u64) {
        if offset.checked_add(8).is_some_and(|end| end <= self.len) {
            self.pci.write64(self.offset + offset, value.to_be());
        }
    }
}

impl Bar for UefiBar {
    type DoorbellRegister = UefiDoorbellRegister;

    fn len(&self) -> usize {
        self.len
    }

    // Numbers of PciIo are little-endian, registers are big-endian.
    fn read32(&self, offset: usize) -> u32 {
        self.pci.read32(offset).to_be()
    }

    unsafe fn write32(&self, offset: usize, value: u32) {
        self.pci.write32(offset, value.to_be());
    }

    unsafe fn doorbell_register(&self, offset: usize, len: usize) -> UefiDoorbellRegister {
        UefiDoorbellRegister { pci: self.pci, offset, len }
    }
}

//! A function's `EFI_PCI_IO_PROTOCOL`.

use crate::error::{Error, Result, check};
use crate::firmware::Firmware;
use core::ffi::c_void;
use core::ptr::{NonNull, null_mut};
use pci_types::{ConfigRegionAccess, PciAddress};
use r_efi::protocols::pci_io::{
    ATTRIBUTE_BUS_MASTER, ATTRIBUTE_DUAL_ADDRESS_CYCLE, ATTRIBUTE_MEMORY, ATTRIBUTE_OPERATION_DISABLE,
    ATTRIBUTE_OPERATION_ENABLE, ATTRIBUTE_OPERATION_GET, ATTRIBUTE_OPERATION_SET, Attribute,
    AttributeOperation, Protocol, WIDTH_UINT32, WIDTH_UINT64,
};

/// BAR0.
const BAR: u8 = 0;
/// Offset of the command register, and its bits.
const COMMAND: u32 = 4;
const COMMAND_MEMORY: u16 = 1 << 1;
pub(crate) const COMMAND_MASTER: u16 = 1 << 2;

/// A function's `EFI_PCI_IO_PROTOCOL`, which a [`Device`](crate::Device) has opened.
#[derive(Clone, Copy, Debug)]
pub struct PciIo(NonNull<Protocol>);

// SAFETY: `Firmware::new`'s caller promised that all calls are made on one processor, so that there
// is one thread.
unsafe impl Send for PciIo {}

/// Calls a function of the protocol.
macro_rules! io {
    ($pci:expr, $($function:ident).+ ( $($argument:expr),* $(,)? )) => {{
        let protocol = $pci.protocol();
        // SAFETY: `PciIo::new`'s caller promised the protocol. Each argument is a value, or a
        // pointer to a local variable or to memory that the protocol returned.
        unsafe { ((*protocol).$($function).+)(protocol, $($argument),*) }
    }};
}
pub(crate) use io;

impl PciIo {
    /// # Safety
    /// The protocol is of a function that this program operates, and is used no longer than it
    /// stays installed.
    #[must_use]
    pub(crate) unsafe fn new(protocol: NonNull<Protocol>) -> Self {
        Self(protocol)
    }

    pub(crate) fn protocol(self) -> *mut Protocol {
        self.0.as_ptr()
    }

    /// Returns a dword of configuration space: all ones if the function does not answer.
    pub(crate) fn config(self, offset: u32) -> u32 {
        let mut value = u32::MAX;
        let status = io!(self, pci.read(WIDTH_UINT32, offset, 1, (&raw mut value).cast()));
        if status.is_error() { u32::MAX } else { value }
    }

    /// Writes a dword of configuration space. The caller reads it back if need be.
    pub(crate) fn set_config(self, offset: u32, mut value: u32) {
        let _ = io!(self, pci.write(WIDTH_UINT32, offset, 1, (&raw mut value).cast()));
    }

    /// Returns the command register.
    pub(crate) fn command(self) -> u16 {
        self.config(COMMAND) as u16
    }

    /// Ends DMA by the command register alone, without the firmware's bookkeeping.
    pub(crate) fn stop_dma(self) {
        // The status register's bits, in the upper half, clear when ones are written.
        self.set_config(COMMAND, u32::from(self.command() & !COMMAND_MASTER));
    }

    /// Reads a register of BAR0: all ones outside of it.
    pub(crate) fn read32(self, offset: usize) -> u32 {
        let mut value = u32::MAX;
        let status = io!(self, mem.read(WIDTH_UINT32, BAR, offset as u64, 1, (&raw mut value).cast()));
        if status.is_error() { u32::MAX } else { value }
    }

    /// Writes 32 bits to BAR0. Firmware refuses an offset outside of it.
    pub(crate) fn write32(self, offset: usize, mut value: u32) {
        let _ = io!(self, mem.write(WIDTH_UINT32, BAR, offset as u64, 1, (&raw mut value).cast()));
    }

    /// Writes 64 bits to BAR0 in one access.
    pub(crate) fn write64(self, offset: usize, mut value: u64) {
        let _ = io!(self, mem.write(WIDTH_UINT64, BAR, offset as u64, 1, (&raw mut value).cast()));
    }

    fn operate(self, operation: AttributeOperation, attributes: Attribute) -> Result<Attribute> {
        let mut result: Attribute = 0;
        let status = io!(self, attributes(operation, attributes, &raw mut result));
        check("PciIo.Attributes", status).map(|()| result)
    }

    /// Returns the attributes, to be restored by [`PciIo::set_attributes`].
    pub(crate) fn attributes(self) -> Result<Attribute> {
        self.operate(ATTRIBUTE_OPERATION_GET, 0)
    }

    pub(crate) fn set_attributes(self, attributes: Attribute) -> Result<()> {
        self.operate(ATTRIBUTE_OPERATION_SET, attributes).map(drop)
    }

    /// Switches memory decoding on, and DMA beyond 4 GiB.
    pub(crate) fn decode(self) {
        // One by one and without regard to errors: boards exist that refuse some.
        let _ = self.operate(ATTRIBUTE_OPERATION_ENABLE, ATTRIBUTE_MEMORY);
        let _ = self.operate(ATTRIBUTE_OPERATION_ENABLE, ATTRIBUTE_DUAL_ADDRESS_CYCLE);
        // A reset changes the register behind the firmware's back, which then changes nothing.
        self.set_command_bit(COMMAND_MEMORY, true);
    }

    /// Switches bus mastering. Returns whether the register reads so afterwards.
    pub(crate) fn set_bus_master(self, on: bool) -> bool {
        let operation = if on { ATTRIBUTE_OPERATION_ENABLE } else { ATTRIBUTE_OPERATION_DISABLE };
        let _ = self.operate(operation, ATTRIBUTE_BUS_MASTER);
        self.set_command_bit(COMMAND_MASTER, on);
        let command = self.command();
        command != u16::MAX && (command & COMMAND_MASTER != 0) == on
    }

    /// Sets or clears a bit of the command register, unless it is as wanted or nothing answers.
    fn set_command_bit(self, bit: u16, on: bool) {
        let command = self.command();
        if command != u16::MAX && (command & bit != 0) != on {
            self.set_config(COMMAND, u32::from(command ^ bit));
        }
    }

    /// Returns whether memory decoding is on.
    pub(crate) fn decodes(self) -> bool {
        let command = self.command();
        command != u16::MAX && command & COMMAND_MEMORY != 0
    }

    /// Returns the bytes of BAR0.
    ///
    /// # Errors
    /// [`Error::NoBar`]: firmware gave it no address.
    pub(crate) fn bar_len(self, firmware: Firmware) -> Result<usize> {
        /// An ACPI address space descriptor (ACPI 6.5, 6.4.3.5.1): its tag, the type for memory, and
        /// the offsets of type, base and length.
        const QWORD: u8 = 0x8a;
        const MEMORY: u8 = 0;
        const TYPE: usize = 3;
        const BASE: usize = 14;
        const LENGTH: usize = 38;
        const BYTES: usize = 46;

        let mut resources: *mut c_void = null_mut();
        let status = io!(self, get_bar_attributes(BAR, null_mut(), &raw mut resources));
        if status.is_error() {
            return Err(Error::NoBar);
        }
        let resources = NonNull::new(resources).ok_or(Error::NoBar)?;
        // SAFETY: firmware returns one descriptor and an end tag, at any alignment.
        let bytes: [u8; BYTES] = unsafe { resources.cast().read_unaligned() };
        firmware.free_pool(resources);
        let number = |at: usize| {
            let mut value = [0; 8];
            value.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(value)
        };
        let described = bytes[0] == QWORD && bytes[TYPE] == MEMORY && number(BASE) != 0;
        let len = usize::try_from(number(LENGTH)).ok().filter(|len| described && *len >= 8);
        len.ok_or(Error::NoBar)
    }

    /// Returns the segment, bus, device and function.
    #[must_use]
    pub fn address(self) -> PciAddress {
        let [mut segment, mut bus, mut device, mut function] = [0_usize; 4];
        let status =
            io!(self, get_location(&raw mut segment, &raw mut bus, &raw mut device, &raw mut function));
        if status.is_error() {
            return PciAddress::new(0, 0, 0, 0);
        }
        PciAddress::new(segment as u16, bus as u8, device as u8 & 0x1f, function as u8 & 7)
    }
}

/// Configuration space of this function, whatever the address.
impl ConfigRegionAccess for PciIo {
    unsafe fn read(&self, _: PciAddress, offset: u16) -> u32 {
        self.config(offset.into())
    }

    unsafe fn write(&self, _: PciAddress, offset: u16, value: u32) {
        self.set_config(offset.into(), value);
    }
}

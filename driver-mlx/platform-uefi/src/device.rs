//! HCAs of the machine: found, taken from the firmware's own driver, and given back.

use crate::bar::UefiBar;
use crate::clock::Clock;
use crate::error::{Error, Result, check};
use crate::exit::ExitEvent;
use crate::firmware::{Firmware, call};
use crate::memory::DmaMemory;
use crate::pci_io::PciIo;
use crate::platform::UefiPlatform;
use core::ffi::c_void;
use core::fmt;
use core::ptr::{NonNull, null_mut};
use driver_mlx::pci::{Identity, identify};
use r_efi::efi::{
    BY_PROTOCOL, Boolean, Guid, Handle, OPEN_PROTOCOL_BY_CHILD_CONTROLLER, OPEN_PROTOCOL_BY_DRIVER,
    OPEN_PROTOCOL_EXCLUSIVE, OPEN_PROTOCOL_GET_PROTOCOL, Status,
};
use r_efi::protocols::pci_io::{Attribute, PROTOCOL_GUID};

/// Lists all PCI functions that the firmware knows.
///
/// # Errors
/// [`Error::Call`]: too little memory. A machine without PCI has an empty list.
pub fn functions(firmware: Firmware) -> Result<Functions> {
    let (mut guid, mut count, mut handles) = (PROTOCOL_GUID, 0, null_mut());
    let status = call!(
        firmware,
        locate_handle_buffer(BY_PROTOCOL, &raw mut guid, null_mut(), &raw mut count, &raw mut handles)
    );
    match (status, NonNull::new(handles)) {
        (Status::SUCCESS, Some(handles)) => Ok(Functions { firmware, handles, count, next: 0 }),
        (Status::SUCCESS | Status::NOT_FOUND, _) => {
            Ok(Functions { firmware, handles: NonNull::dangling(), count: 0, next: 0 })
        }
        (status, _) => Err(Error::Call("LocateHandleBuffer", status)),
    }
}

/// The PCI functions of the machine, in the firmware's order.
#[derive(Debug)]
pub struct Functions {
    firmware: Firmware,
    handles: NonNull<Handle>,
    count: usize,
    next: usize,
}

impl Iterator for Functions {
    type Item = Function;

    fn next(&mut self) -> Option<Function> {
        while self.next < self.count {
            // SAFETY: the list has `count` handles.
            let handle = unsafe { self.handles.add(self.next).read() };
            self.next += 1;
            // A handle may have gone since the list was made.
            if let Ok(pci) = open(self.firmware, handle, OPEN_PROTOCOL_GET_PROTOCOL) {
                return Some(Function { handle, pci });
            }
        }
        None
    }
}

impl Drop for Functions {
    fn drop(&mut self) {
        if self.count > 0 {
            self.firmware.free_pool(self.handles.cast());
        }
    }
}

/// A PCI function.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    handle: Handle,
    pci: PciIo,
}

impl Function {
    /// Returns its vendor and device numbers.
    #[must_use]
    pub fn ids(&self) -> (u16, u16) {
        let id = self.pci.config(0);
        (id as u16, (id >> 16) as u16)
    }

    /// Returns what it is, if the driver supports it.
    #[must_use]
    pub fn identity(&self) -> Option<Identity> {
        let (vendor, device) = self.ids();
        identify(vendor, device)
    }

    /// Returns whether it may access memory, as far as its command register says.
    #[must_use]
    pub fn masters_bus(&self) -> bool {
        self.pci.command() & crate::pci_io::COMMAND_MASTER != 0
    }
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (vendor, device) = self.ids();
        write!(f, "pci {}: {vendor:04x}:{device:04x}", self.pci.address())
    }
}

fn open(firmware: Firmware, handle: Handle, attributes: u32) -> Result<PciIo> {
    // The function is its own controller where it is opened as a driver does.
    let controller = if attributes == OPEN_PROTOCOL_GET_PROTOCOL { null_mut() } else { handle };
    open_for(firmware, handle, controller, attributes)
}

fn open_for(firmware: Firmware, handle: Handle, controller: Handle, attributes: u32) -> Result<PciIo> {
    let (mut guid, mut protocol): (Guid, *mut c_void) = (PROTOCOL_GUID, null_mut());
    let image = firmware.image();
    let status = call!(
        firmware,
        open_protocol(handle, &raw mut guid, &raw mut protocol, image, controller, attributes)
    );
    match status {
        Status::ACCESS_DENIED | Status::ALREADY_STARTED => return Err(Error::InUse),
        status => check("OpenProtocol", status)?,
    }
    let protocol = NonNull::new(protocol.cast()).ok_or(Error::Call("OpenProtocol", Status::NOT_FOUND))?;
    // SAFETY: the firmware's protocol. A program that opened it for itself operates the function;
    // others only read its identity.
    Ok(unsafe { PciIo::new(protocol) })
}

/// An HCA that this program has for itself, switched on.
///
/// Dropping it ends all DMA and gives the function back to the firmware.
#[derive(Debug)]
pub struct Device {
    firmware: Firmware,
    /// The function, if the firmware gets it back.
    give_back: Option<Handle>,
    /// Attributes when it was opened.
    attributes: Attribute,
    pci: PciIo,
    platform: UefiPlatform,
    /// Closed before the function is given back.
    _exit: ExitEvent,
}

impl Device {
    /// Takes a function from the firmware's own driver, if it has one, and switches memory decoding
    /// and bus mastering on.
    ///
    /// The services of the firmware's driver are gone meanwhile. If this program was loaded through
    /// the card, so is the program's file system.
    ///
    /// # Errors
    /// - [`Error::NotAnHca`]: the driver does not support the function.
    /// - [`Error::InUse`]: its driver does not release it.
    /// - [`Error::NoBar`], [`Error::SwitchedOff`]: it cannot be used as firmware has set it up.
    /// - [`Error::Call`]: the firmware has too little memory.
    pub fn open(firmware: Firmware, function: &Function, clock: Clock) -> Result<Self> {
        let (vendor, device) = function.ids();
        let identity = identify(vendor, device).ok_or(Error::NotAnHca { vendor, device })?;
        let handle = function.handle;
        let pci = open(firmware, handle, OPEN_PROTOCOL_BY_DRIVER | OPEN_PROTOCOL_EXCLUSIVE)?;
        let opened = Self::of(firmware, pci, clock, !identity.virtual_function, Some(handle));
        opened.inspect_err(|_| give_back(firmware, handle))
    }

    fn of(
        firmware: Firmware,
        pci: PciIo,
        clock: Clock,
        physical: bool,
        give_back: Option<Handle>,
    ) -> Result<Self> {
        let attributes = pci.attributes()?;
        let (platform, exit) =
            switch_on(firmware, pci, clock, physical).inspect_err(|_| restore(pci, attributes))?;
        Ok(Self { firmware, give_back, attributes, pci, platform, _exit: exit })
    }

    /// The driver's platform.
    #[must_use]
    pub fn platform(&self) -> &UefiPlatform {
        &self.platform
    }

    /// Allocates memory for the device: see [`DmaMemory`].
    ///
    /// # Errors
    /// - [`Error::Call`]: too little memory.
    /// - [`Error::Mapping`]: the IOMMU maps less.
    pub fn dma(&self, bytes: usize) -> Result<DmaMemory> {
        DmaMemory::allocate(self.pci, bytes)
    }

    /// Ends all DMA and gives the function back to the firmware, whose driver starts again.
    pub fn close(self) {
        drop(self);
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        restore(self.pci, self.attributes);
        if let Some(handle) = self.give_back {
            give_back(self.firmware, handle);
        }
    }
}

/// Switches the function on. It may access memory from now on.
fn switch_on(
    firmware: Firmware,
    pci: PciIo,
    clock: Clock,
    physical: bool,
) -> Result<(UefiPlatform, ExitEvent)> {
    pci.decode();
    let bar = UefiBar::new(pci, pci.bar_len(firmware)?);
    // The event exists before DMA does.
    let exit = ExitEvent::create(firmware, pci, bar)?;
    if !pci.set_bus_master(true) || !pci.decodes() {
        return Err(Error::SwitchedOff(pci.command()));
    }
    Ok((UefiPlatform::new(firmware, pci, bar, clock, physical), exit))
}

/// Ends DMA and restores the function's attributes. Bus mastering stays off: the next driver
/// switches it on.
fn restore(pci: PciIo, attributes: Attribute) {
    let _ = pci.set_attributes(attributes & !r_efi::protocols::pci_io::ATTRIBUTE_BUS_MASTER);
    pci.set_bus_master(false);
}

/// Closes the protocol and lets the firmware's drivers have the function.
fn give_back(firmware: Firmware, handle: Handle) {
    close(firmware, handle, handle);
    // An error means that no driver wants the function.
    let _ = call!(firmware, connect_controller(handle, null_mut(), null_mut(), Boolean::TRUE));
}

fn close(firmware: Firmware, handle: Handle, controller: Handle) {
    let mut guid = PROTOCOL_GUID;
    // An error means that the function is gone.
    let _ = call!(firmware, close_protocol(handle, &raw mut guid, firmware.image(), controller));
}

/// A function that a driver of this program has bound: see [`install`](crate::install).
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    firmware: Firmware,
    handle: Handle,
    pci: PciIo,
    physical: bool,
}

impl Bound {
    /// Returns whether the function is an HCA without a driver. Changes nothing.
    pub(crate) fn is_supported(firmware: Firmware, handle: Handle) -> bool {
        let bound = Self::bind(firmware, handle);
        bound.inspect(|bound| bound.release()).is_ok()
    }

    /// Opens the function as its driver.
    pub(crate) fn bind(firmware: Firmware, handle: Handle) -> Result<Self> {
        let pci = open(firmware, handle, OPEN_PROTOCOL_BY_DRIVER)?;
        let (vendor, device) = Function { handle, pci }.ids();
        match identify(vendor, device) {
            Some(identity) => Ok(Self { firmware, handle, pci, physical: !identity.virtual_function }),
            None => {
                close(firmware, handle, handle);
                Err(Error::NotAnHca { vendor, device })
            }
        }
    }

    /// Closes the function.
    pub(crate) fn release(&self) {
        Self::release_handle(self.firmware, self.handle);
    }

    /// Closes the function of this handle.
    pub(crate) fn release_handle(firmware: Firmware, handle: Handle) {
        close(firmware, handle, handle);
    }

    /// Makes `child` a child controller of the function.
    pub(crate) fn adopt(&self, child: Handle) -> Result<()> {
        open_for(self.firmware, self.handle, child, OPEN_PROTOCOL_BY_CHILD_CONTROLLER).map(drop)
    }

    pub(crate) fn orphan(&self, child: Handle) {
        close(self.firmware, self.handle, child);
    }

    /// Returns the function, to be shown.
    #[must_use]
    pub fn function(&self) -> Function {
        Function { handle: self.handle, pci: self.pci }
    }

    /// Switches the function on, for this driver.
    ///
    /// # Errors
    /// As [`Device::open`].
    pub fn open(&self, clock: Clock) -> Result<Device> {
        Device::of(self.firmware, self.pci, clock, self.physical, None)
    }
}

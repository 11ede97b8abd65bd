//! The driver's platform.

use crate::bar::LinuxBar;
use crate::error::Result;
use crate::interrupts::{Interrupts, now};
use crate::iova::PAGE;
use crate::pci::{self, ConfigSpace};
use crate::pins::{Desk, Range, lock};
use crate::socket;
use crate::vfio;
use driver_mlx::{Instant, MapError, Platform};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

/// Registers, interrupts and address translation of one HCA. Dropped, the device is given back.
#[derive(Debug)]
pub struct LinuxPlatform {
    pub(crate) bar: LinuxBar,
    pub(crate) interrupts: Arc<Interrupts>,
    pub(crate) device: Arc<Device>,
    /// Requests to pin and unpin, while a [`Pins`](crate::Pins) takes them.
    pub(crate) desk: Arc<Mutex<Option<Desk>>>,
    physical: bool,
}

impl LinuxPlatform {
    pub(crate) fn new(bar: LinuxBar, interrupts: Interrupts, device: Device, physical: bool) -> Self {
        let (interrupts, device) = (Arc::new(interrupts), Arc::new(device));
        Self { bar, interrupts, device, desk: Arc::default(), physical }
    }

    /// Returns whether it is a physical function, which owns its card's port settings:
    /// [`Config::physical_function`](driver_mlx::Config::physical_function).
    #[must_use]
    pub const fn is_physical(&self) -> bool {
        self.physical
    }
}

#[derive(Debug)]
pub(crate) enum Device {
    Vfio(vfio::Device),
    Socket(socket::Device),
}

impl Device {
    /// Maps the pages of a range, which pins them. Returns its device address.
    pub(crate) fn map(&self, range: Range) -> std::result::Result<u64, MapError> {
        let Range { va, len, writable } = range;
        let start = va as u64 / PAGE * PAGE;
        let end = (va as u64).checked_add(len as u64).and_then(|end| end.checked_next_multiple_of(PAGE));
        let bytes = end.map(|end| end - start).filter(|bytes| *bytes > 0).ok_or(MapError::BadAddress)?;
        let at = match self {
            Self::Vfio(device) => device.map(start, bytes, writable),
            Self::Socket(device) => device.map(start, bytes, writable),
        }?;
        Ok(at + (va as u64 - start))
    }

    /// Ends what [`Device::map`] began.
    pub(crate) fn unmap(&self, device_address: u64) {
        let start = device_address / PAGE * PAGE;
        match self {
            Self::Vfio(device) => device.unmap(start),
            Self::Socket(device) => device.unmap(start),
        }
    }
}

impl ConfigSpace for Device {
    fn get<const N: usize>(&self, offset: u64) -> Result<[u8; N]> {
        match self {
            Self::Vfio(device) => device.config().get(offset),
            Self::Socket(device) => device.config().get(offset),
        }
    }

    fn put<const N: usize>(&self, offset: u64, value: [u8; N]) -> Result<()> {
        match self {
            Self::Vfio(device) => device.config().put(offset, value),
            Self::Socket(device) => device.config().put(offset, value),
        }
    }
}

impl LinuxPlatform {
    /// Descriptors that keep the device open, with those of a [`Sleeper`](crate::Sleeper).
    ///
    /// A child process inherits them: as long as it has them, the device stays open, whatever
    /// becomes of its parent. The child may do nothing with them but close them.
    #[must_use]
    pub fn descriptors(&self) -> Vec<RawFd> {
        match &*self.device {
            Device::Vfio(device) => device.descriptors(),
            Device::Socket(device) => device.descriptors(),
        }
    }

    /// Returns whether the HCA is permanently lost, so that no recovery can bring it back: the
    /// server of an emulated HCA has exited. False by VFIO, because a missing function may come
    /// back.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        match &*self.device {
            Device::Vfio(_) => false,
            Device::Socket(device) => device.is_gone(),
        }
    }
}

impl Platform for LinuxPlatform {
    type Bar = LinuxBar;

    fn bar(&self) -> LinuxBar {
        self.bar
    }

    /// None: Linux maps registers for processes uncached.
    fn uar_write_combining(&self, _offset: usize, _len: usize) -> Option<LinuxBar> {
        None
    }

    fn now(&self) -> Instant {
        now()
    }

    fn idle(&self, deadline: Instant) {
        let peer = match &*self.device {
            Device::Vfio(_) => None,
            Device::Socket(device) => device.descriptor(),
        };
        self.interrupts.wait(deadline, peer);
    }

    unsafe fn map(&self, va: usize, len: usize, writable: bool) -> std::result::Result<u64, MapError> {
        let range = Range { va, len, writable };
        match &mut *lock(&self.desk) {
            Some(desk) => desk.map(range),
            None => self.device.map(range),
        }
    }

    fn read_config(&self, offset: u16) -> Option<u32> {
        self.device.get(offset.into()).ok().map(u32::from_le_bytes)
    }

    unsafe fn write_config(&self, offset: u16, value: u32) {
        // The caller reads back whether it succeeded.
        let _ = self.device.put(offset.into(), value.to_le_bytes());
    }

    unsafe fn reset_function(&self) -> bool {
        let _ = pci::stop_dma(&*self.device);
        let reset = match &*self.device {
            Device::Vfio(device) => device.reset(),
            Device::Socket(device) => device.reset(),
        };
        // SAFETY: this function's contract.
        unsafe { self.restore_function() };
        reset.is_ok()
    }

    unsafe fn restore_function(&self) {
        // Errors are ignored, because the caller retries.
        let _ = pci::decode(&*self.device);
    }

    unsafe fn set_bus_master(&self, on: bool) -> bool {
        let _ = if on {
            let connected = match &*self.device {
                Device::Vfio(device) => device.reconnect(&self.interrupts),
                Device::Socket(device) => device.connect(&self.interrupts),
            };
            connected.and_then(|()| pci::enable(&*self.device))
        } else {
            pci::stop_dma(&*self.device)
        };
        pci::masters_bus(&*self.device) == Some(on)
    }

    unsafe fn unmap(&self, device_address: u64, _len: usize) {
        match &mut *lock(&self.desk) {
            Some(desk) => desk.unmap(device_address),
            None => self.device.unmap(device_address),
        }
    }
}

impl Drop for LinuxPlatform {
    /// A [`Pinner`](crate::Pinner) may have the device a little longer.
    fn drop(&mut self) {
        match &*self.device {
            Device::Vfio(device) => device.stop(),
            Device::Socket(device) => device.stop(),
        }
    }
}

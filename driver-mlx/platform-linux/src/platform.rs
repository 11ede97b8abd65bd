//! The driver's platform.

use crate::bar::LinuxBar;
use crate::interrupts::{Interrupts, now};
use crate::iova::PAGE;
use crate::socket;
use crate::vfio;
use driver_mlx::{Instant, MapError, Platform};
use std::sync::Arc;

/// Registers, interrupts and address translation of one HCA. Dropped, the device is given back.
#[derive(Debug)]
pub struct LinuxPlatform {
    pub(crate) bar: LinuxBar,
    pub(crate) interrupts: Arc<Interrupts>,
    pub(crate) device: Device,
}

#[derive(Debug)]
pub(crate) enum Device {
    Vfio(vfio::Device),
    Socket(socket::Device),
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
        let peer = match &self.device {
            Device::Vfio(_) => None,
            Device::Socket(device) => device.descriptor(),
        };
        self.interrupts.wait(deadline, peer);
    }

    fn map(&self, va: usize, len: usize) -> Result<u64, MapError> {
        let start = va as u64 / PAGE * PAGE;
        let end = (va as u64).checked_add(len as u64).and_then(|end| end.checked_next_multiple_of(PAGE));
        let bytes = end.map(|end| end - start).filter(|bytes| *bytes > 0).ok_or(MapError::BadAddress)?;
        let at = match &self.device {
            Device::Vfio(device) => device.map(start, bytes),
            Device::Socket(device) => device.map(start, bytes),
        }?;
        Ok(at + (va as u64 - start))
    }

    fn unmap(&self, device_address: u64, _len: usize) {
        let start = device_address / PAGE * PAGE;
        match &self.device {
            Device::Vfio(device) => device.unmap(start),
            Device::Socket(device) => device.unmap(start),
        }
    }
}

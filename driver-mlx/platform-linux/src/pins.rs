//! Pinning without the platform: for a program that keeps its adapter behind a lock, and pins
//! outside it.

use crate::platform::{Device, LinuxPlatform};
use driver_mlx::MapError;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory of this process that the device is to access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) va: usize,
    pub(crate) len: usize,
    pub(crate) writable: bool,
}

/// The result of pinning a range.
#[derive(Debug)]
struct Pin {
    range: Range,
    device_address: Result<u64, MapError>,
    /// The driver has the mapping.
    is_used: bool,
}

/// Requests of the driver to map and unmap, and a mapping that was prepared for it.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    pin: Option<Pin>,
    wanted: Option<Range>,
    unused: Vec<u64>,
}

impl Desk {
    /// [`Platform::map`](driver_mlx::Platform::map): the prepared mapping, if it is of this range.
    pub(crate) fn map(&mut self, range: Range) -> Result<u64, MapError> {
        match &mut self.pin {
            Some(pin) if pin.range == range && !pin.is_used => {
                let device_address = pin.device_address?;
                pin.is_used = true;
                Ok(device_address)
            }
            _ => {
                self.wanted = Some(range);
                Err(MapError::Pending)
            }
        }
    }

    /// [`Platform::unmap`](driver_mlx::Platform::unmap). A driver that could not make a key gives
    /// the prepared mapping back.
    pub(crate) fn unmap(&mut self, device_address: u64) {
        match &mut self.pin {
            Some(pin) if pin.is_used && pin.device_address == Ok(device_address) => pin.is_used = false,
            _ => self.unused.push(device_address),
        }
    }
}

pub(crate) fn lock(desk: &Mutex<Option<Desk>>) -> MutexGuard<'_, Option<Desk>> {
    desk.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Pins and unpins memory without the platform. From [`LinuxPlatform::pinner`].
///
/// The device stays open in this process until the platform and its pinners are dropped. Its DMA
/// ends with the platform.
#[derive(Debug)]
pub struct Pinner {
    device: Arc<Device>,
    desk: Arc<Mutex<Option<Desk>>>,
}

impl LinuxPlatform {
    /// Returns a [`Pinner`] for this HCA.
    #[must_use]
    pub fn pinner(&self) -> Pinner {
        Pinner { device: Arc::clone(&self.device), desk: Arc::clone(&self.desk) }
    }
}

/// The memory that one caller of the adapter has pinned and unpinned outside the adapter's lock.
/// Memory that was pinned without use is unpinned on drop.
///
/// Repeat with the lock held: [`Pins::during`] a call of the adapter; without the lock:
/// [`Pins::serve`]; as long as `serve` returns true.
#[derive(Debug)]
pub struct Pins<'p> {
    pinner: &'p Pinner,
    desk: Desk,
}

impl<'p> Pins<'p> {
    /// Returns one without memory.
    #[must_use]
    pub fn new(pinner: &'p Pinner) -> Self {
        Self { pinner, desk: Desk::default() }
    }

    /// Carries out a call of the adapter, which the caller has locked. The call fails with
    /// [`MapError::Pending`] if it needs memory that is not pinned. Memory that it frees remains
    /// pinned until [`Pins::serve`].
    pub fn during<R>(&mut self, call: impl FnOnce() -> R) -> R {
        *lock(&self.pinner.desk) = Some(mem::take(&mut self.desk));
        let result = call();
        self.desk = lock(&self.pinner.desk).take().unwrap_or_default();
        self.desk.pin.take_if(|pin| pin.is_used);
        result
    }

    /// Unpins the memory that the call has freed, and pins the memory that it needs. Returns whether
    /// the call has to be repeated. To be called without the adapter's lock.
    pub fn serve(&mut self) -> bool {
        let Desk { pin, wanted, unused } = &mut self.desk;
        let device = &self.pinner.device;
        unused.drain(..).for_each(|device_address| device.unmap(device_address));
        let Some(range) = wanted.take() else { return false };
        if let Some(Ok(device_address)) = pin.take().map(|pin| pin.device_address) {
            device.unmap(device_address);
        }
        *pin = Some(Pin { range, device_address: device.map(range), is_used: false });
        true
    }
}

impl Drop for Pins<'_> {
    fn drop(&mut self) {
        let Desk { pin, unused, .. } = &mut self.desk;
        let pinned = pin.take().and_then(|pin| pin.device_address.ok());
        unused.drain(..).chain(pinned).for_each(|device_address| self.pinner.device.unmap(device_address));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: Range = Range { va: 0x5000, len: 100, writable: true };

    fn prepared(device_address: Result<u64, MapError>) -> Desk {
        Desk { pin: Some(Pin { range: RANGE, device_address, is_used: false }), ..Desk::default() }
    }

    #[test]
    fn a_mapping_is_used_once_and_for_its_range() {
        let mut desk = prepared(Ok(0x1_5000));
        for other in
            [Range { va: 0x4000, ..RANGE }, Range { len: 200, ..RANGE }, Range { writable: false, ..RANGE }]
        {
            assert_eq!((desk.map(other), desk.wanted), (Err(MapError::Pending), Some(other)));
        }
        assert_eq!(desk.map(RANGE), Ok(0x1_5000));
        assert_eq!((desk.map(RANGE), desk.wanted), (Err(MapError::Pending), Some(RANGE)));
    }

    #[test]
    fn a_mapping_that_got_no_key_stays_prepared() {
        let mut desk = prepared(Ok(0x1_5000));
        assert_eq!(desk.map(RANGE), Ok(0x1_5000));
        desk.unmap(0x1_5000);
        assert_eq!((desk.map(RANGE), &desk.unused), (Ok(0x1_5000), &vec![]));
        desk.unmap(0x2_0000);
        assert_eq!(desk.unused, [0x2_0000]);
    }

    #[test]
    fn a_refusal_is_the_call_s() {
        let mut desk = prepared(Err(MapError::NoSpace));
        assert_eq!((desk.map(RANGE), desk.wanted), (Err(MapError::NoSpace), None));
    }
}

//! The function: its registers, its interrupts, its configuration space.

use super::container::Container;
use super::ioctl::{self, DeviceInfo, IrqInfo, RegionInfo, SetIrqs, Simple};
use super::iommufd::AddressSpace;
use super::start::needs_reset;
use super::{Translation, call, map_error, map_hint};
use crate::bar::{LinuxBar, Registers as BarRegisters};
use crate::error::{Error, Result};
use crate::interrupts::Interrupts;
use crate::iova::Iovas;
use crate::memory::{Memory, Registers, Shared};
use crate::options::{Iommu, Options};
use crate::pci::{self, ConfigSpace};
use driver_mlx::{DmaRegion, MapError, MmioBar};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use vfio_functions::{Function, PciAddress, Sysfs, group_file};

const BAR0: u32 = 0;
const CONFIG: u32 = 7;
const MSIX: u32 = 2;
/// Interrupts are event descriptors, and are raised by the device.
const EVENTFD_TRIGGER: u32 = 1 << 2 | 1 << 5;
/// The same without descriptors.
const NONE_TRIGGER: u32 = 1 << 0 | 1 << 5;

/// A function in the hands of this process.
// Fields are dropped in this order: registers must go before the descriptor, or it stays open.
#[derive(Debug)]
pub(crate) struct Device {
    _registers: Registers,
    function: Handle,
    /// Not locked while the kernel pins: that takes a second for some gigabytes.
    iovas: Mutex<Iovas>,
    translation: Box<dyn Translation>,
}

/// The function's descriptor, with where its configuration space begins.
#[derive(Debug)]
struct Handle {
    file: OwnedFd,
    config: u64,
}

impl ConfigSpace for Handle {
    fn get<const N: usize>(&self, offset: u64) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        let read = rustix::io::pread(&self.file, &mut bytes, self.config + offset);
        match read.map_err(Error::kernel("cannot read configuration space"))? {
            read if read == N => Ok(bytes),
            _ => Err(Error::Unusable("configuration space ends early".into())),
        }
    }

    fn put<const N: usize>(&self, offset: u64, value: [u8; N]) -> Result<()> {
        let written = rustix::io::pwrite(&self.file, &value, self.config + offset);
        written.map(drop).map_err(Error::kernel("cannot write configuration space"))
    }
}

/// Opens a function, which is reset by that, and gives it a DMA region.
pub(crate) fn open(
    address: PciAddress,
    options: &Options,
    memory: &mut Memory,
) -> Result<(LinuxBar, Interrupts, Device, DmaRegion)> {
    let sysfs = Sysfs::default();
    let found = Function::look(&sysfs, address)?;
    let group = found.usable(&sysfs)?;
    let by_group = match (options.iommu, &found.character_device) {
        (Iommu::Group, _) | (Iommu::Any, None) => true,
        (Iommu::Any, Some(_)) => group_file(group).exists(),
        (Iommu::Iommufd, _) => false,
    };
    let (translation, file): (Box<dyn Translation>, _) = if by_group {
        let (container, file) = Container::open(address, group)?;
        (Box::new(container), file)
    } else {
        let device = found.character_device.as_deref();
        let device =
            device.ok_or(Error::Options("this kernel has no character devices for VFIO: use the group"))?;
        let (space, file) = AddressSpace::open(device)?;
        (Box::new(space), file)
    };
    let iovas = Mutex::new(Iovas::new(translation.ranges()));
    let (function, bar, registers) = look_at(file)?;
    memory.add_mapping(registers.mapping());
    pci::identity(&function)?;
    function.start(bar)?;
    let interrupts = Interrupts::new(vectors(&function, options.vectors)?)?;
    function.connect(&interrupts)?;
    let device = Device { _registers: registers, function, iovas, translation };
    let shared = Shared::anonymous(options.dma_bytes, options.huge_pages)?;
    let at = device.map_region(&shared)?;
    // Only now is there anything that the device could reach.
    pci::enable(&device.function)?;
    let bar = LinuxBar(BarRegisters::Mapped(bar));
    Ok((bar, interrupts, device, shared.into_region(at, memory)?))
}

/// Finds configuration space and maps BAR0.
fn look_at(file: OwnedFd) -> Result<(Handle, MmioBar, Registers)> {
    let mut info = DeviceInfo { argsz: DeviceInfo::SIZE, ..DeviceInfo::default() };
    ioctl::call(file.as_fd(), &mut info).map_err(call("VFIO_DEVICE_GET_INFO"))?;
    if info.num_regions <= CONFIG {
        return Err(Error::Unusable(format!("{} regions: no PCI device", info.num_regions)));
    }
    let region = |index: u32| {
        let mut region = RegionInfo { argsz: RegionInfo::SIZE, index, ..RegionInfo::default() };
        ioctl::call(file.as_fd(), &mut region).map_err(call("VFIO_DEVICE_GET_REGION_INFO"))?;
        Ok::<_, Error>(region)
    };
    let (bar0, config) = (region(BAR0)?, region(CONFIG)?);
    let len = usize::try_from(bar0.size).ok().filter(|len| *len >= 4096);
    let len = len.ok_or_else(|| Error::Unusable("BAR0 is missing".into()))?;
    // Registers are mapped before memory decoding is sure to be on; `start` switches it on before
    // it reads them.
    let (bar, registers) = Registers::map(&file, bar0.offset, len)?;
    Ok((Handle { file, config: config.offset }, bar, registers))
}

/// Returns the number of available interrupt vectors, at most `wanted`.
fn vectors(function: &Handle, wanted: u16) -> Result<usize> {
    let mut info = IrqInfo { argsz: IrqInfo::SIZE, index: MSIX, ..IrqInfo::default() };
    ioctl::call(function.file.as_fd(), &mut info).map_err(call("VFIO_DEVICE_GET_IRQ_INFO"))?;
    let count = info.count.min(wanted.into());
    if count == 0 {
        return Err(Error::Unusable("it has no MSI-X vectors".into()));
    }
    Ok(count as usize)
}

impl Handle {
    /// Waits until firmware has started, and resets the function if the kernel's reset did not make
    /// it usable.
    fn start(&self, bar: MmioBar) -> Result<()> {
        pci::decode(self)?;
        if needs_reset(bar, std::thread::sleep) {
            // Not every function can be reset, and a driver brings up from any state.
            let _ = self.reset();
            pci::decode(self)?;
        }
        Ok(())
    }

    /// Resets the function; the kernel puts its configuration space and its interrupts back.
    fn reset(&self) -> Result<()> {
        let reset = ioctl::simple(self.file.as_fd(), Simple::DeviceReset, 0);
        reset.map(drop).map_err(call("VFIO_DEVICE_RESET"))
    }

    /// Lets interrupts come to these descriptors, all at once: later growth would take all away for
    /// a moment.
    fn connect(&self, interrupts: &Interrupts) -> Result<()> {
        let descriptors = interrupts.descriptors();
        self.set_irqs(EVENTFD_TRIGGER, descriptors.map(|descriptor| descriptor.as_raw_fd()))
    }

    /// Takes all interrupts away.
    fn disconnect(&self) -> Result<()> {
        self.set_irqs(NONE_TRIGGER, [].into_iter())
    }

    fn set_irqs(&self, flags: u32, events: impl ExactSizeIterator<Item = i32>) -> Result<()> {
        let count = events.len() as u32;
        let argsz = SetIrqs::SIZE - 4 * (32 - count);
        let mut set = SetIrqs { argsz, flags, index: MSIX, start: 0, count, events: [-1; 32] };
        for (to, descriptor) in set.events.iter_mut().zip(events) {
            *to = descriptor;
        }
        ioctl::call(self.file.as_fd(), &mut set).map(drop).map_err(call("VFIO_DEVICE_SET_IRQS"))
    }
}

impl Device {
    /// Its configuration space.
    pub(crate) fn config(&self) -> &impl ConfigSpace {
        &self.function
    }

    /// Resets the function; the kernel puts its configuration space and its interrupts back.
    pub(crate) fn reset(&self) -> Result<()> {
        self.function.reset()
    }

    /// Makes the kernel write the MSI-X table again, after a reset outside the kernel cleared it.
    pub(crate) fn reconnect(&self, interrupts: &Interrupts) -> Result<()> {
        self.function.disconnect()?;
        self.function.connect(interrupts)
    }

    /// Descriptors that keep the function open.
    pub(crate) fn descriptors(&self) -> Vec<RawFd> {
        let mut descriptors = self.translation.descriptors();
        descriptors.push(self.function.file.as_raw_fd());
        descriptors
    }

    /// Ends the device's DMA.
    pub(crate) fn stop(&self) {
        let _ = pci::stop_dma(&self.function);
    }

    fn iovas(&self) -> MutexGuard<'_, Iovas> {
        self.iovas.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn map_region(&self, memory: &Shared) -> Result<u64> {
        let len = memory.len();
        let at = self.iovas().take(memory.address(), len as u64);
        let at = at.ok_or(Error::Options("the DMA region is larger than what the IOMMU can address"))?;
        self.translation.map(memory.address(), at, len as u64, true).map_err(|error| {
            let hint = map_hint(&error);
            Error::Map { len, error, hint }
        })?;
        Ok(at)
    }

    /// Makes whole pages of this process visible to the device.
    pub(crate) fn map(&self, start: u64, len: u64, writable: bool) -> std::result::Result<u64, MapError> {
        let at = self.iovas().take(start, len).ok_or(MapError::NoSpace)?;
        if let Err(error) = self.translation.map(start, at, len, writable) {
            self.iovas().give_back(at);
            return Err(map_error(&error));
        }
        Ok(at)
    }

    /// Ends what [`Device::map`] began.
    pub(crate) fn unmap(&self, at: u64) {
        let Some(len) = self.iovas().len_of(at) else { return };
        // On an error the range may still be mapped: its addresses are not reused.
        if self.translation.unmap(at, len).is_ok() {
            self.iovas().give_back(at);
        }
    }
}

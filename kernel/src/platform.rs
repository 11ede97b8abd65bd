//! What `driver-mlx` is handed: the HCA's registers, time and idling, and the DMA region.

use core::fmt;
use core::ptr::NonNull;
use dat_nostd::Instant;

use driver_mlx::{Bar, DmaRegion, HostRegion, MapError, MmioBar, Platform};
use kernel::paging::{self, Caching};
use kernel::pci::{self, Function, MemoryBar, VENDOR_MELLANOX};

use crate::arch::{clock, interrupts, msix};
use crate::machine::Machine;
use crate::mem;

/// InfiniBand and Ethernet network controllers: how an HCA presents its ports.
const CLASSES: [u16; 2] = [0x0207, 0x0200];

/// The unikernel as the driver's platform: memory is mapped one to one, and DMA is coherent.
#[derive(Clone, Copy, Debug)]
pub struct BareMetal {
    registers: MmioBar,
    /// Physical address of BAR0, and of the addresses kept for write-combining views of its UAR pages.
    bar: u64,
    views: usize,
}

impl Platform for BareMetal {
    type Bar = MmioBar;

    fn bar(&self) -> MmioBar {
        self.registers
    }

    fn uar_write_combining(&self, offset: usize, len: usize) -> Option<MmioBar> {
        if !(offset | len).is_multiple_of(4096) || offset.checked_add(len)? > self.registers.len() {
            return None;
        }
        let view = self.views + offset;
        mem::map_in_window(view, self.bar + offset as u64, len as u64, Caching::WriteCombining).ok()?;
        // SAFETY: the pages were just mapped, or had been, and stay so; only the driver uses them. They alias those of the BAR's window,
        // but they hold BlueFlame registers, which the driver writes through this view alone.
        unsafe { MmioBar::new(NonNull::new(view as *mut u8)?, len) }
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(clock::now())
    }

    fn idle(&self, deadline: Instant) {
        // Which vector it was does not matter: the driver looks at all its event queues.
        interrupts::idle(deadline.as_nanos());
    }

    fn map(&self, va: usize, len: usize) -> Result<u64, MapError> {
        if mem::is_memory(va as u64, len as u64) { Ok(va as u64) } else { Err(MapError::BadAddress) }
    }

    fn unmap(&self, _device_address: u64, _len: usize) {}
}

/// Why there is no HCA to drive.
#[derive(Clone, Copy, Debug)]
pub enum Error {
    /// No function of vendor 15b3 with a network class.
    NoHca,
    /// Its configuration space.
    Pci(pci::Error),
    /// Its registers could not be mapped.
    Map(paging::MapError),
    /// Its interrupts.
    Msix(msix::Error),
    /// BAR0 or the DMA region cannot be what the driver wants.
    Unusable,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoHca => {
                f.write_str("no HCA: no PCI function of vendor 15b3 (Mellanox) that is a network controller")
            }
            Error::Pci(error) => write!(f, "HCA: {error}"),
            Error::Map(error) => write!(f, "HCA: {error}"),
            Error::Msix(error) => write!(f, "HCA: {error}"),
            Error::Unusable => f.write_str("HCA: BAR0 is too small or the DMA region is not in whole pages"),
        }
    }
}

/// An HCA, switched on in PCI, with its interrupts and memory.
#[derive(Debug)]
pub struct Hardware {
    /// The PCI function.
    pub function: Function,
    /// For the driver.
    pub platform: BareMetal,
    /// MSI-X vectors 0 to this, exclusively, raise interrupts.
    pub vectors: u16,
    region: (u64, u64),
}

impl Hardware {
    /// Switches the first HCA on and lets its first `vectors` MSI-X vectors raise interrupts. Call it once.
    pub fn open(machine: &Machine<'_>, vectors: u16) -> Result<Hardware, Error> {
        let access = &machine.config_space;
        let is_hca = |f: &&Function| f.vendor == VENDOR_MELLANOX && CLASSES.contains(&f.class);
        let function = *machine.functions.iter().find(is_hca).ok_or(Error::NoHca)?;
        let bar = function.memory_bar(access, 0).map_err(Error::Pci)?;
        let registers = window(&bar)?;
        let views = mem::reserve_window(bar.address, bar.len).map_err(Error::Map)?;
        function.enable(access);
        msix::enable(access, &function, 0, vectors).map_err(Error::Msix)?;
        let platform = BareMetal { registers, bar: bar.address, views };
        Ok(Hardware { function, platform, vectors, region: (machine.dma.start, machine.dma.len()) })
    }

    /// The DMA region, and a sixteenth of the memory set aside for the driver's own use. Each call gives the same memory, so a second
    /// one must wait until the HCA of the first no longer reaches it, and nothing made with it is used any more: after tear-down, drop or
    /// [`Hardware::reset`].
    pub fn memory(&mut self) -> Result<(DmaRegion, HostRegion), Error> {
        let (start, len) = self.region;
        let dma_len = (len - len / 16) & !0xfff;
        // SAFETY:
        // 1. The range was taken out of usable memory at boot and nobody else knows it; it is mapped one to one for good, so
        //    that the device's address is the same, and x86 keeps DMA coherent.
        // 2. `&mut self` and the only `Hardware` there is: the region is handed to one driver after another.
        let region = unsafe { DmaRegion::new(start as *mut u8, start, dma_len as usize) };
        // SAFETY: as above; it is the rest of that range.
        let host = unsafe { HostRegion::new((start + dma_len) as *mut u8, (len - dma_len) as usize) };
        region.zip(host).ok_or(Error::Unusable)
    }

    /// Resets the function, which takes some 100 ms; its interrupts stay set up.
    pub fn reset(&self, machine: &Machine<'_>) -> Result<(), Error> {
        let access = &machine.config_space;
        let wait = |nanos| {
            let end = clock::now().saturating_add(nanos);
            while clock::now() < end {
                interrupts::idle(end);
            }
        };
        self.function.reset(access, wait).map_err(Error::Pci)?;
        // A function-level reset clears the MSI-X table of real hardware.
        msix::enable(access, &self.function, 0, self.vectors).map_err(Error::Msix)?;
        Ok(())
    }
}

fn window(bar: &MemoryBar) -> Result<MmioBar, Error> {
    let base = mem::map_device(bar.address, bar.len, Caching::Uncached).map_err(Error::Map)?;
    let base = NonNull::new(base as *mut u8).ok_or(Error::Unusable)?;
    let len = usize::try_from(bar.len).map_err(|_| Error::Unusable)?;
    // SAFETY: the window covers the whole BAR and stays for good; only the driver uses it.
    unsafe { MmioBar::new(base, len) }.ok_or(Error::Unusable)
}

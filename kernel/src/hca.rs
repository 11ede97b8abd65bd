//! An HCA as `driver-mlx` wants it: its registers, time and idling, and memory.

use core::fmt;
use core::ptr::NonNull;

use crate::choice::Choice;
use crate::claims::{Conflict, Owner};
use crate::device::error::Error as DeviceError;
use crate::paging::{self, Caching};
use crate::pci::{self, ConfigAccess, Function, MemoryBar};
use driver_mlx::{
    Bar, Config, DeviceState, DmaRegion, Hca, HcaParts, HostRegion, Instant, MapError, MmioBar, Platform,
};

use crate::arch::config_space::ConfigSpace;
use crate::arch::msix::{self, Vectors};
use crate::arch::{clock, interrupts};
use crate::failure::Failure;
use crate::mem;
use crate::memory::DmaMemory;
use crate::println;

/// The unikernel as the driver's platform: memory is mapped one to one, and DMA is coherent.
#[derive(Clone, Copy, Debug)]
pub struct BareMetal {
    registers: MmioBar,
    /// Physical address of BAR0, and of the addresses kept for write-combining views of its UAR pages.
    bar: u64,
    views: usize,
    function: Function,
    access: &'static ConfigSpace,
    /// What configuration space has in it, should it be lost.
    saved: driver_mlx::pci::SavedConfig,
    vectors: Vectors,
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
        // The driver looks at all its event queues, whichever vector it was. Other devices'
        // interrupts wait for those who want them.
        interrupts::idle(deadline.as_nanos(), self.vectors.mask());
    }

    unsafe fn map(&self, va: usize, len: usize, _writable: bool) -> Result<u64, MapError> {
        if mem::is_memory(va as u64, len as u64) { Ok(va as u64) } else { Err(MapError::BadAddress) }
    }

    unsafe fn unmap(&self, _device_address: u64, _len: usize) {}

    fn read_config(&self, offset: u16) -> Option<u32> {
        Some(self.access.read(self.function.address(), offset))
    }

    unsafe fn write_config(&self, offset: u16, value: u32) {
        ConfigAccess::write(self.access, self.function.address(), offset, value);
    }

    unsafe fn reset_function(&self) -> bool {
        // One that is gone, or says nothing of itself any more, is not asked how it is reset.
        self.function.restore(self.access, &self.saved);
        self.function.reset(self.access, interrupts::wait).is_ok()
    }

    unsafe fn restore_function(&self) {
        self.function.restore(self.access, &self.saved);
    }

    unsafe fn set_bus_master(&self, on: bool) -> bool {
        if !on {
            self.function.stop_bus_master(self.access);
        } else if self.vectors.switch_on(self.access, &self.function).is_ok() {
            self.function.enable(self.access);
        }
        self.function.bus_mastering(self.access) == Some(on)
    }
}

/// Why there is no HCA to drive.
#[derive(Clone, Copy, Debug)]
pub enum Error {
    /// No such function of the mlx5 family.
    NoHca(Choice),
    /// It is meant by its port's GUID, and was to be opened without being asked: that is [`verbs::open`](crate::verbs::open)'s.
    Guid,
    /// It was opened before.
    InUse,
    /// Its configuration space.
    Pci(pci::Error),
    /// Its registers' addresses.
    Conflict(Conflict),
    /// Its registers could not be mapped.
    Map(paging::MapError),
    /// Its interrupts.
    Msix(DeviceError),
    /// BAR0 or the DMA region cannot be what the driver wants.
    Unusable,
}

impl core::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoHca(choice @ Choice::Port(_)) => {
                write!(f, "no HCA {choice} came up: what became of each one is said above")
            }
            Error::NoHca(choice) => {
                write!(
                    f,
                    "no HCA {choice}: no PCI function of vendor 15b3 (Mellanox) there that the driver knows"
                )
            }
            Error::Guid => f.write_str(
                "HCA: only its firmware knows its port's GUID; name its PCI address or its number here",
            ),
            Error::InUse => f.write_str("HCA: it is in use already"),
            Error::Pci(error) => write!(f, "HCA: {error}"),
            Error::Conflict(error) => write!(f, "HCA: {error}"),
            Error::Map(error) => write!(f, "HCA: {error}"),
            Error::Msix(error) => write!(f, "HCA: {error}"),
            Error::Unusable => f.write_str("HCA: BAR0 is too small or the DMA region is not in whole pages"),
        }
    }
}

/// Whether a function is an HCA that the driver is for.
pub(crate) fn is_hca(function: &Function) -> bool {
    driver_mlx::pci::identify(function.vendor(), function.device()).is_some()
}

/// A function of Mellanox's, and whether the driver is for it: a line for who wonders which is taken.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    function: Function,
    bar: Result<MemoryBar, pci::Error>,
    express: Result<pci::Express, pci::Error>,
    errors: Option<pci::BusErrors>,
}

impl Candidate {
    /// Looks at its configuration space.
    #[must_use]
    pub fn of(access: &ConfigSpace, function: &Function) -> Self {
        Self {
            function: *function,
            bar: function.memory_bar(access, 0),
            express: function.express(access),
            errors: function.bus_errors(access),
        }
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (vendor, device) = (self.function.vendor(), self.function.device());
        let (address, class, revision) =
            (self.function.address(), self.function.class(), self.function.revision());
        write!(f, "pci {address}: {vendor:04x}:{device:04x} class {class:04x} revision {revision:#x}: ")?;
        match driver_mlx::pci::identify(vendor, device) {
            Some(identity) => write!(
                f,
                "{:?}, {} function",
                identity.generation,
                if identity.virtual_function { "virtual" } else { "physical" }
            )?,
            None if driver_mlx::pci::is_flash_recovery(device) => {
                return f.write_str("not taken: it is in flash recovery, its firmware is broken or missing");
            }
            None => return f.write_str("not taken: no HCA of the mlx5 family"),
        }
        match self.bar {
            Ok(bar) => write!(f, ", BAR0 {} MiB at {:#x}", bar.bytes() >> 20, bar.address())?,
            Err(error) => write!(f, ", not usable: {error}")?,
        }
        match self.express {
            Ok(express) => write!(
                f,
                ", link speed {} width {}, function-level reset {}",
                express.link_speed, express.link_width, express.function_level_reset
            )?,
            Err(error) => write!(f, ", {error}")?,
        }
        self.errors.map_or(Ok(()), |errors| write!(f, ", {errors}"))
    }
}

/// An HCA, switched on in PCI, with its interrupts.
#[derive(Debug)]
pub struct Hardware {
    platform: BareMetal,
}

impl Hardware {
    /// Switches a function on, which was handed out to the caller.
    pub(crate) fn open(
        access: &'static ConfigSpace,
        function: Function,
        first_vector: u8,
        vectors: u16,
    ) -> Result<Hardware, Error> {
        let owner = Owner::Function(function.address());
        let opened = Self::open_claimed(access, function, first_vector, vectors, owner);
        if opened.is_err() {
            function.stop_bus_master(access);
            mem::release(owner);
        }
        opened
    }

    fn open_claimed(
        access: &'static ConfigSpace,
        function: Function,
        first_vector: u8,
        vectors: u16,
        owner: Owner,
    ) -> Result<Hardware, Error> {
        if function.wake(access, interrupts::wait) {
            println!("hca at {}: it was asleep: woken", function.address());
        }
        let bar = function.memory_bar(access, 0).map_err(Error::Pci)?;
        for bar in (0..6).filter_map(|index| function.memory_bar(access, index).ok()) {
            mem::claim(bar.range(), owner).map_err(Error::Conflict)?;
        }
        let registers = window(&bar)?;
        let views = mem::reserve_window(bar.address(), bar.bytes()).map_err(Error::Map)?;
        function.decode_memory(access);
        // Its queues are where that driver's memory was, so that the HCA must not reach memory as it is.
        if DeviceState::read(registers).is_some_and(|device| device.left_running()) {
            println!("hca at {}: somebody left it at work: function-level reset", function.address());
            match function.reset(access, interrupts::wait) {
                Err(error @ pci::Error::NoFunctionLevelReset) => {
                    println!("hca at {}: {error}", function.address())
                }
                result => result.map_err(Error::Pci)?,
            }
        }
        function.enable(access);
        let vectors = msix::enable(access, &function, first_vector, vectors).map_err(Error::Msix)?;
        let saved = function.save(access);
        let platform = BareMetal { registers, bar: bar.address(), views, function, access, saved, vectors };
        Ok(Hardware { platform })
    }

    /// The PCI function.
    #[must_use]
    pub const fn function(&self) -> &Function {
        &self.platform.function
    }

    /// Whether it is a physical function, which owns its card's port settings; see
    /// [`Config::physical_function`](driver_mlx::Config::physical_function).
    #[must_use]
    pub fn is_physical(&self) -> bool {
        let function = self.function();
        let identity = driver_mlx::pci::identify(function.vendor(), function.device());
        identity.is_none_or(|identity| !identity.virtual_function)
    }

    /// For the driver: registers, clock, waiting.
    #[must_use]
    pub const fn platform(&self) -> BareMetal {
        self.platform
    }

    /// Resets the function, which takes some 100 ms; its interrupts stay set up. Not public: a reset is
    /// invisible to a driver that operates the function, and bus mastering is on afterwards.
    ///
    /// # Errors
    /// It cannot be reset, or does not come back.
    pub(crate) fn reset(&self) -> Result<(), Error> {
        let BareMetal { function, access, vectors, .. } = &self.platform;
        function.reset(*access, interrupts::wait).map_err(Error::Pci)?;
        // A function-level reset clears the MSI-X table of real hardware.
        vectors.switch_on(access, function).map_err(Error::Pci)?;
        function.enable(*access);
        Ok(())
    }
}

/// What the driver is handed of `memory`: the DMA region, and a sixteenth of it for its own use.
///
/// # Errors
/// [`Error::Unusable`]: it is too little.
pub fn regions(memory: DmaMemory) -> Result<(DmaRegion, HostRegion), Error> {
    // SAFETY: `memory` is given up here, and nothing was made of it before.
    unsafe { regions_again(&memory) }
}

/// The same, of memory that lay under another HCA before.
///
/// # Safety
/// That HCA was taken down, and nothing is left of what was made of `memory`.
unsafe fn regions_again(memory: &DmaMemory) -> Result<(DmaRegion, HostRegion), Error> {
    let range = memory.range();
    let (start, len) = (range.start, range.len());
    let dma_len = (len - len / 16) & !0xfff;
    // SAFETY:
    // 1. The range was taken out of usable memory, once, and by this function's contract nobody else has anything of it. It is mapped one
    //    to one for good, so that the device's address is the same, and x86 keeps DMA coherent.
    // 2. It never comes back, so that it outlives whatever the device does.
    let region = unsafe { DmaRegion::new(start as *mut u8, start, dma_len as usize) };
    // SAFETY: as above; it is the rest of that range.
    let host = unsafe { HostRegion::new((start + dma_len) as *mut u8, (len - dma_len) as usize) };
    region.zip(host).ok_or(Error::Unusable)
}

/// Brings an HCA up, asks it for its port's GUID, and takes it down. The memory comes back with the answer, if the HCA has let go of it.
///
/// # Errors
/// [`Failure::BringUp`], or what went wrong later.
#[allow(clippy::result_large_err, reason = "as for failures")]
pub(crate) fn port_guid(
    hardware: &Hardware,
    memory: DmaMemory,
    storage: HcaParts<'_>,
    config: &Config,
) -> Result<(u64, DmaMemory), Failure> {
    // SAFETY: an HCA that this memory lay under before went down in order, below, and nothing was made of it that could be left.
    let (region, host) = unsafe { regions_again(&memory) }?;
    let mut hca =
        Hca::bring_up(hardware.platform(), region, host, storage, config).map_err(Failure::BringUp)?;
    let port = hca.port();
    hca.tear_down()?;
    Ok((port?.port_guid.get(), memory))
}

fn window(bar: &MemoryBar) -> Result<MmioBar, Error> {
    let base = mem::map_device(bar.address(), bar.bytes(), Caching::Uncached).map_err(Error::Map)?;
    let base = NonNull::new(base as *mut u8).ok_or(Error::Unusable)?;
    let len = usize::try_from(bar.bytes()).map_err(|_| Error::Unusable)?;
    // SAFETY: the window covers the whole BAR and stays for good; only the driver uses it.
    unsafe { MmioBar::new(base, len) }.ok_or(Error::Unusable)
}

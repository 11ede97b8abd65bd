//! Which PCI functions are HCAs of this family, and how one is found, switched on and reset.
//!
//! For embedders that have a bare configuration space and nothing else; over [`pci_types::ConfigRegionAccess`]. The walks here
//! are bounded and no register value makes them panic, which the helpers of `pci_types` do not promise.

use crate::types::Duration;
use core::fmt;
use pci_types::{CommandRegister, ConfigRegionAccess, PciAddress, PciHeader};

/// Mellanox's PCI vendor number.
pub const VENDOR_MELLANOX: u16 = 0x15b3;

/// Generation of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Generation {
    /// Connect-IB.
    ConnectIb,
    /// ConnectX-4.
    ConnectX4,
    /// ConnectX-4 Lx.
    ConnectX4Lx,
    /// ConnectX-5, PCIe 3.
    ConnectX5,
    /// ConnectX-5 Ex, PCIe 4.
    ConnectX5Ex,
    /// ConnectX-6.
    ConnectX6,
    /// ConnectX-6 Dx.
    ConnectX6Dx,
    /// A virtual function of ConnectX-6 Dx or later.
    Later,
    /// ConnectX-6 Lx.
    ConnectX6Lx,
    /// ConnectX-7.
    ConnectX7,
    /// ConnectX-8.
    ConnectX8,
    /// ConnectX-9.
    ConnectX9,
    /// ConnectX-10.
    ConnectX10,
    /// BlueField.
    BlueField,
    /// BlueField-2.
    BlueField2,
    /// BlueField-3.
    BlueField3,
    /// BlueField-4.
    BlueField4,
}

/// A PCI function that this driver is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Identity {
    /// Which generation.
    pub generation: Generation,
    /// Whether it is a virtual function: port settings are not its own, see
    /// [`Config::physical_function`](crate::Config::physical_function).
    pub virtual_function: bool,
}

/// Whether a function with these numbers is an HCA of the mlx5 family.
#[must_use]
pub const fn identify(vendor: u16, device: u16) -> Option<Identity> {
    if vendor != VENDOR_MELLANOX {
        return None;
    }
    let (generation, virtual_function) = match device {
        0x1011 => (Generation::ConnectIb, false),
        0x1012 => (Generation::ConnectIb, true),
        0x1013 => (Generation::ConnectX4, false),
        0x1014 => (Generation::ConnectX4, true),
        0x1015 => (Generation::ConnectX4Lx, false),
        0x1016 => (Generation::ConnectX4Lx, true),
        0x1017 => (Generation::ConnectX5, false),
        0x1018 => (Generation::ConnectX5, true),
        0x1019 => (Generation::ConnectX5Ex, false),
        0x101a => (Generation::ConnectX5Ex, true),
        0x101b => (Generation::ConnectX6, false),
        0x101c => (Generation::ConnectX6, true),
        0x101d => (Generation::ConnectX6Dx, false),
        0x101e => (Generation::Later, true),
        0x101f => (Generation::ConnectX6Lx, false),
        0x1021 => (Generation::ConnectX7, false),
        0x1023 => (Generation::ConnectX8, false),
        0x1025 => (Generation::ConnectX9, false),
        0x1027 | 0x2101 => (Generation::ConnectX10, false),
        0xa2d2 => (Generation::BlueField, false),
        0xa2d3 => (Generation::BlueField, true),
        0xa2d6 => (Generation::BlueField2, false),
        0xa2dc => (Generation::BlueField3, false),
        0xa2df => (Generation::BlueField4, false),
        _ => return None,
    };
    Some(Identity { generation, virtual_function })
}

/// Whether a device number of Mellanox's is that of a card in flash recovery: firmware is broken or missing, and BAR0 speaks another
/// protocol.
#[must_use]
pub const fn is_flash_recovery(device: u16) -> bool {
    matches!(
        device,
        0x01ff
            | 0x0209
            | 0x020b
            | 0x020d
            | 0x020f
            | 0x0211
            | 0x0212
            | 0x0214
            | 0x0216
            | 0x0218
            | 0x021c
            | 0x021e
            | 0x0224
    )
}

/// Why a function cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum PciError {
    /// BAR0 is not 64-bit memory, or its size makes no sense.
    Bar,
    /// There is no PCI Express capability.
    NotExpress,
    /// The function cannot reset itself.
    NoReset,
    /// The function did not answer within 60 s of its reset.
    Lost,
}

impl fmt::Display for PciError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bar => "BAR0 is not a 64-bit memory BAR",
            Self::NotExpress => "no PCI Express capability",
            Self::NoReset => "no function-level reset",
            Self::Lost => "the function did not answer within 60 s of its reset",
        })
    }
}

impl core::error::Error for PciError {}

/// Capability identifiers.
pub mod capability {
    /// PCI Express.
    pub const EXPRESS: u8 = 0x10;
    /// MSI-X.
    pub const MSIX: u8 = 0x11;
    /// Vendor-specific: the gateway to the crash dump and the reset semaphore.
    pub const VENDOR: u8 = 0x09;
}

/// Registers of the header.
const STATUS: u16 = 0x04;
const STATUS_HAS_CAPABILITIES: u32 = 1 << 20;
const BAR0: u16 = 0x10;
const CAPABILITIES: u16 = 0x34;
/// Registers of the PCI Express capability.
const DEVICE_CAPABILITIES: u16 = 0x04;
const RESET_CAPABLE: u32 = 1 << 28;
const DEVICE_CONTROL: u16 = 0x08;
const DEVICE_CONTROL_2: u16 = 0x28;
const INITIATE_RESET: u32 = 1 << 15;
const TRANSACTIONS_PENDING: u32 = 1 << 21;
/// Bits of Device Status that are cleared by writing one.
const DEVICE_STATUS: u32 = 0xffff_0000;
/// A list of capabilities cannot be longer than the space for it.
const MOST_CAPABILITIES: usize = 48;
/// The time a function has for its reset (PCI Express base specification, 6.6.2).
const RESET_TIME: Duration = Duration::from_millis(100);
/// Longest time until it answers again after that. Linux's limit (`PCIE_RESET_READY_POLL_MS`): a ConnectX-7 with hundreds of
/// virtual functions needs a second for each.
const LONGEST_RESET: Duration = Duration::from_secs(60);
/// Pauses between looks meanwhile: the first, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Where BAR0 is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Bar0 {
    /// Bus address; 0 if nobody has assigned one.
    pub address: u64,
    /// Bytes, a power of two.
    pub size: u64,
}

/// State of a function's configuration space that software has written and a reset clears: BARs,
/// command register, device control, MSI-X control. The MSI-X table is in a BAR and is not part of
/// it.
#[derive(Clone, Copy, Debug)]
pub struct SavedConfig {
    command: CommandRegister,
    bars: [u32; 6],
    /// Offset and value of each control register that the function has.
    controls: [Option<(u16, u32)>; 3],
}

/// A function's configuration space.
#[derive(Clone, Copy, Debug)]
pub struct Function<A> {
    access: A,
    address: PciAddress,
}

impl<A: ConfigRegionAccess> Function<A> {
    /// The function at `address`.
    ///
    /// # Safety
    /// `address` must name a function that is there, with an endpoint's header of 256 bytes, which nobody else configures.
    pub unsafe fn new(access: A, address: PciAddress) -> Self {
        Self { access, address }
    }

    fn read(&self, offset: u16) -> u32 {
        // SAFETY: `new`'s caller promised the function; all offsets are below 256 and aligned.
        unsafe { self.access.read(self.address, offset & 0xfc) }
    }

    fn write(&self, offset: u16, value: u32) {
        // SAFETY: as above.
        unsafe { self.access.write(self.address, offset & 0xfc, value) }
    }

    /// What it is, if it is an HCA of this family.
    pub fn identify(&self) -> Option<Identity> {
        let (vendor, device) = PciHeader::new(self.address).id(&self.access);
        identify(vendor, device)
    }

    /// Offset of the first capability with this identifier.
    pub fn capability(&self, id: u8) -> Option<u16> {
        if self.read(STATUS) & STATUS_HAS_CAPABILITIES == 0 {
            return None;
        }
        let mut offset = self.read(CAPABILITIES) as u16 & 0xfc;
        for _ in 0..MOST_CAPABILITIES {
            if offset < 0x40 {
                return None;
            }
            let word = self.read(offset);
            if word as u8 == id {
                return Some(offset);
            }
            offset = (word >> 8) as u16 & 0xfc;
        }
        None
    }

    /// BAR0, which holds all registers. Memory decoding is off while it is sized, and then as before.
    ///
    /// # Errors
    /// [`PciError::Bar`].
    pub fn bar0(&self) -> Result<Bar0, PciError> {
        let low = self.read(BAR0);
        if low & 0b111 != 0b100 {
            return Err(PciError::Bar);
        }
        let high = self.read(BAR0 + 4);
        let mut header = PciHeader::new(self.address);
        let command = header.command(&self.access);
        header.update_command(&self.access, |c| c - CommandRegister::MEMORY_ENABLE);
        self.write(BAR0, u32::MAX);
        self.write(BAR0 + 4, u32::MAX);
        let mask = u64::from(self.read(BAR0 + 4)) << 32 | u64::from(self.read(BAR0) & !0xf);
        self.write(BAR0, low);
        self.write(BAR0 + 4, high);
        header.update_command(&self.access, |_| command);
        let size = mask & mask.wrapping_neg();
        if size < 4096 || mask != size.wrapping_neg() {
            return Err(PciError::Bar);
        }
        Ok(Bar0 { address: u64::from(high) << 32 | u64::from(low & !0xf), size })
    }

    /// Turns memory decoding and bus mastering on and the legacy interrupt off. From now on the device may access memory.
    pub fn enable(&self) {
        PciHeader::new(self.address).update_command(&self.access, |command| {
            command
                | CommandRegister::MEMORY_ENABLE
                | CommandRegister::BUS_MASTER_ENABLE
                | CommandRegister::INTERRUPT_DISABLE
        });
    }

    /// Turns bus mastering off: the device can no longer access memory.
    pub fn stop(&self) {
        PciHeader::new(self.address)
            .update_command(&self.access, |command| command - CommandRegister::BUS_MASTER_ENABLE);
    }

    /// Returns whether bus mastering is on, or `None` if the function does not answer.
    pub fn bus_mastering(&self) -> Option<bool> {
        self.identify()?;
        Some(PciHeader::new(self.address).command(&self.access).contains(CommandRegister::BUS_MASTER_ENABLE))
    }

    /// Returns what a reset would clear, for [`Function::restore`].
    pub fn save(&self) -> SavedConfig {
        // The upper half of a device control register is status, whose ones clear when they are written.
        let control = |base: Option<u16>, offset: u16, mask: u32| {
            let at = base.map(|base| base + offset).filter(|at| *at < 0x100)?;
            Some((at, self.read(at) & mask))
        };
        let express = self.capability(capability::EXPRESS);
        SavedConfig {
            command: PciHeader::new(self.address).command(&self.access),
            bars: core::array::from_fn(|index| self.read(BAR0 + 4 * index as u16)),
            controls: [
                control(express, DEVICE_CONTROL, !DEVICE_STATUS),
                control(express, DEVICE_CONTROL_2, !DEVICE_STATUS),
                control(self.capability(capability::MSIX), 0, u32::MAX),
            ],
        }
    }

    /// Writes back what [`Function::save`] returned, if a reset has cleared it. Bus mastering stays as it is. A function that does not
    /// answer is left alone.
    pub fn restore(&self, saved: &SavedConfig) {
        if self.identify().is_none() {
            return;
        }
        let SavedConfig { command, bars, controls } = *saved;
        let mut header = PciHeader::new(self.address);
        let master = CommandRegister::BUS_MASTER_ENABLE;
        let now = header.command(&self.access);
        let wanted = (command - master) | (now & master);
        let is_bar_kept = |(index, bar): (u16, u32)| self.read(BAR0 + 4 * index) == bar;
        if now == wanted && (0..).zip(bars).all(is_bar_kept) {
            return;
        }
        for (index, bar) in (0..).zip(bars) {
            self.write(BAR0 + 4 * index, bar);
        }
        for (at, value) in controls.into_iter().flatten() {
            self.write(at, value);
        }
        header.update_command(&self.access, |_| wanted);
    }

    /// Resets the function and gives it its BARs back; [`Function::enable`] is next, then a wait for firmware, which
    /// [`Hca::bring_up`](crate::Hca::bring_up) does. One reset is enough, more are harmful. `wait` waits for so long.
    ///
    /// # Errors
    /// [`PciError`].
    pub fn reset(&self, mut wait: impl FnMut(Duration)) -> Result<(), PciError> {
        let express = self.capability(capability::EXPRESS).ok_or(PciError::NotExpress)?;
        if self.read(express + DEVICE_CAPABILITIES) & RESET_CAPABLE == 0 {
            return Err(PciError::NoReset);
        }
        self.stop();
        let bars: [u32; 6] = core::array::from_fn(|index| self.read(BAR0 + 4 * index as u16));
        // What is still on its way gets the same time as the reset.
        for _ in 0..10 {
            if self.read(express + DEVICE_CONTROL) & TRANSACTIONS_PENDING == 0 {
                break;
            }
            wait(RESET_TIME / 10);
        }
        let control = self.read(express + DEVICE_CONTROL) & !DEVICE_STATUS;
        self.write(express + DEVICE_CONTROL, control | INITIATE_RESET);
        // PCIe 6.6.2: no access for 100 ms.
        wait(RESET_TIME);
        let (mut waited, mut pause) = (Duration::ZERO, FIRST_PAUSE);
        while self.identify().is_none() {
            if waited >= LONGEST_RESET {
                return Err(PciError::Lost);
            }
            wait(pause);
            waited += pause;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        for (index, value) in bars.into_iter().enumerate() {
            self.write(BAR0 + 4 * index as u16, value);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::RefCell;

    /// Configuration space of a ConnectX-5 with a BAR0 of 32 MiB.
    struct Space {
        words: RefCell<[u32; 64]>,
        /// Whether memory was decoded while BAR0 was being sized.
        sized_live: RefCell<bool>,
    }

    impl ConfigRegionAccess for Space {
        unsafe fn read(&self, _: PciAddress, offset: u16) -> u32 {
            self.words.borrow()[usize::from(offset) / 4]
        }
        unsafe fn write(&self, _: PciAddress, offset: u16, value: u32) {
            let mut words = self.words.borrow_mut();
            let decoding = words[1] & 2 != 0;
            let word = &mut words[usize::from(offset) / 4];
            match offset {
                0x10 => {
                    *self.sized_live.borrow_mut() |= decoding && value == u32::MAX;
                    *word = value & 0xfe00_0000 | 0xc;
                }
                0x48 if value & 0x8000 != 0 => {
                    words[1] &= 0xffff_0000;
                    words[4] = 0xc;
                    words[5] = 0;
                }
                0x04 => *word = *word & 0xffff_0000 | value & 0xffff,
                _ => *word = value,
            }
        }
    }

    fn space() -> Space {
        let mut words = [0; 64];
        words[0] = 0x1017_15b3;
        words[1] = 0x0010_0002;
        words[4] = 0xf000_000c;
        words[5] = 0x12;
        words[13] = 0x60;
        words[16] = 0x0000_0010;
        words[17] = RESET_CAPABLE;
        words[24] = 0x0000_4011;
        Space { words: RefCell::new(words), sized_live: RefCell::new(false) }
    }

    fn function(space: &Space) -> Function<&Space> {
        // SAFETY: the access ignores the address.
        unsafe { Function::new(space, PciAddress::new(0, 0, 3, 0)) }
    }

    #[test]
    fn device_numbers() {
        let cx5 = identify(0x15b3, 0x1017);
        assert_eq!(cx5, Some(Identity { generation: Generation::ConnectX5, virtual_function: false }));
        assert!(identify(0x15b3, 0x1018).is_some_and(|i| i.virtual_function));
        assert_eq!(identify(0x15b3, 0x1003), None, "ConnectX-3 is another programming model");
        assert_eq!(identify(0x8086, 0x1017), None);
        assert!(is_flash_recovery(0x020d) && !is_flash_recovery(0x1017));
    }

    #[test]
    fn bar0_is_sized_with_decoding_off_and_restored() {
        let space = space();
        assert_eq!(function(&space).bar0(), Ok(Bar0 { address: 0x12_f000_0000, size: 32 << 20 }));
        assert!(!*space.sized_live.borrow());
        assert_eq!((space.words.borrow()[1], space.words.borrow()[4]), (0x0010_0002, 0xf000_000c));
        space.words.borrow_mut()[4] = 0xe001;
        assert_eq!(function(&space).bar0(), Err(PciError::Bar), "I/O space");
    }

    #[test]
    fn capabilities_are_found_and_a_circle_ends() {
        let space = space();
        assert_eq!(function(&space).capability(capability::MSIX), Some(0x60));
        assert_eq!(function(&space).capability(capability::EXPRESS), Some(0x40));
        assert_eq!(function(&space).capability(capability::VENDOR), None);
        space.words.borrow_mut()[16] = 0x0000_6010;
        assert_eq!(function(&space).capability(capability::VENDOR), None);
    }

    #[test]
    fn reset_may_take_most_of_a_minute() {
        let space = space();
        let id = space.words.borrow()[0];
        let (mut waited, mut pauses) = (Duration::ZERO, 0);
        let result = function(&space).reset(|time| {
            waited += time;
            pauses += 1;
            let away = (Duration::from_millis(100)..Duration::from_secs(50)).contains(&waited);
            space.words.borrow_mut()[0] = if away { u32::MAX } else { id };
        });
        assert_eq!(result, Ok(()));
        assert!(waited < Duration::from_secs(52) && pauses < 100, "{waited:?} in {pauses} pauses");
        let result = function(&space).reset(|_| space.words.borrow_mut()[0] = u32::MAX);
        assert_eq!(result, Err(PciError::Lost));
    }

    #[test]
    fn reset_keeps_the_bar_and_clears_bus_mastering() {
        let space = space();
        let mut waited = Duration::ZERO;
        function(&space).enable();
        assert_eq!(space.words.borrow()[1] & 0x406, 0x406);
        assert_eq!(function(&space).reset(|time| waited += time), Ok(()));
        assert!(waited >= Duration::from_millis(100));
        assert_eq!(space.words.borrow()[1] & 4, 0);
        assert_eq!((space.words.borrow()[4], space.words.borrow()[5]), (0xf000_000c, 0x12));
        space.words.borrow_mut()[17] = 0;
        assert_eq!(function(&space).reset(|_| ()), Err(PciError::NoReset));
    }
    #[test]
    fn restore_writes_what_a_reset_has_cleared_and_leaves_bus_mastering() {
        let space = space();
        function(&space).enable();
        space.words.borrow_mut()[0x60 / 4] |= 0x8000_0000;
        space.words.borrow_mut()[0x48 / 4] = 0x0001_2810;
        assert_eq!(function(&space).bus_mastering(), Some(true));
        let saved = function(&space).save();
        let before = *space.words.borrow();
        assert_eq!(function(&space).reset(|_| ()), Ok(()));
        space.words.borrow_mut()[0x60 / 4] = 0x11;
        space.words.borrow_mut()[4] = 0xc;
        function(&space).restore(&saved);
        let after = *space.words.borrow();
        assert_eq!(after[1], before[1] & !4, "all but bus mastering");
        assert_eq!(after[4..6], before[4..6]);
        assert_eq!((after[0x48 / 4], after[0x60 / 4]), (0x2810, before[0x60 / 4]));
        assert_eq!(function(&space).bus_mastering(), Some(false));

        space.words.borrow_mut().fill(u32::MAX);
        function(&space).restore(&saved);
        assert_eq!(*space.words.borrow(), [u32::MAX; 64], "it is off the bus");
        assert_eq!(function(&space).bus_mastering(), None);
    }
}

//! Which PCI functions are HCAs of this family, and how one is found, switched on and reset.
//!
//! For embedders that have a bare configuration space, by [`pci_types::ConfigRegionAccess`]. Unlike the helpers of `pci_types`, the
//! walks here are bounded, no register value makes them panic, and no write clears a bit of the status register. Sections are
//! those of the PCI Express Base Specification 5.0.

use crate::types::Duration;
use core::fmt;
use pci_types::{CommandRegister, ConfigRegionAccess, PciAddress};

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

/// Reason why a function was not reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum PciError {
    /// The function has no function-level reset.
    NoReset,
    /// The function did not answer within 60 s of its reset.
    Lost,
}

impl fmt::Display for PciError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
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
    /// Advanced Features of conventional PCI (ECN of 2006): a function-level reset without PCI Express.
    pub const ADVANCED_FEATURES: u8 = 0x13;
}

/// Registers of the header.
const COMMAND: u16 = 0x04;
const STATUS_HAS_CAPABILITIES: u32 = 1 << 20;
const BAR0: u16 = 0x10;
const CAPABILITIES: u16 = 0x34;
/// Registers of the PCI Express capability (7.5.3).
const DEVICE_CAPABILITIES: u16 = 0x04;
const RESET_CAPABLE: u32 = 1 << 28;
const DEVICE_CONTROL: u16 = 0x08;
const DEVICE_CONTROL_2: u16 = 0x28;
/// The lower half of a device control register. The upper half is status, whose ones clear when they are written.
const CONTROL_BITS: u32 = 0xffff;
/// A list of capabilities cannot be longer than the space for it.
const MOST_CAPABILITIES: usize = 48;
/// Time without any access after the start of a reset (6.6.2).
const RESET_TIME: Duration = Duration::from_millis(100);
/// Pause between reads of pending transactions, and the most such pauses.
const PENDING_PAUSE: Duration = Duration::from_millis(1);
const PENDING_PAUSES: usize = 100;
/// Longest time until it answers again after that. Linux's limit (`PCIE_RESET_READY_POLL_MS`): a ConnectX-7 with hundreds of
/// virtual functions needs a second for each.
const LONGEST_RESET: Duration = Duration::from_secs(60);
/// Pauses between looks meanwhile: the first, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Returns the offset of the first capability with identifier `id` (7.5.3). `read` returns the 32-bit register at an offset.
pub fn find_capability(read: impl Fn(u16) -> u32, id: u8) -> Option<u16> {
    if read(COMMAND) & STATUS_HAS_CAPABILITIES == 0 {
        return None;
    }
    let mut offset = read(CAPABILITIES) as u16 & 0xfc;
    for _ in 0..MOST_CAPABILITIES {
        if offset < 0x40 {
            return None;
        }
        let header = read(offset);
        if header as u8 == id {
            return Some(offset);
        }
        offset = (header >> 8) as u16 & 0xfc;
    }
    None
}

/// Returns bus mastering from the value of the command register, or `None` for a function that does not answer.
#[must_use]
pub fn bus_mastering(command: u32) -> Option<bool> {
    let command = (command != u32::MAX).then_some(CommandRegister::from_bits_retain(command as u16))?;
    Some(command.contains(CommandRegister::BUS_MASTER_ENABLE))
}

/// Registers of a function-level reset: the bit that starts it, and the bit of pending transactions.
struct ResetBits {
    start: (u16, u32),
    pending: (u16, u32),
}

/// State of a function's configuration space that software has written and a reset clears: BARs,
/// command register, device control, MSI-X control. The MSI-X table is in a BAR and is not part of
/// it.
#[derive(Clone, Copy, Debug)]
pub struct SavedConfig {
    vendor: u16,
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
    /// `address` must name a function that is there, with a configuration space of 256 bytes, and no other code may configure it.
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

    /// Returns the generation, if the function is an HCA of this family.
    pub fn identify(&self) -> Option<Identity> {
        let id = self.read(0);
        identify(id as u16, (id >> 16) as u16)
    }

    /// Returns the vendor number: all ones while the function does not answer, 1 while it requests a retry (2.3.2).
    fn vendor(&self) -> u16 {
        self.read(0) as u16
    }

    /// Offset of the first capability with this identifier.
    pub fn capability(&self, id: u8) -> Option<u16> {
        find_capability(|offset| self.read(offset), id)
    }

    /// Returns the command register.
    pub fn command(&self) -> CommandRegister {
        CommandRegister::from_bits_retain(self.read(COMMAND) as u16)
    }

    /// Writes the command register. The status register in the upper half keeps its bits, as only ones clear there.
    pub fn set_command(&self, command: CommandRegister) {
        self.write(COMMAND, command.bits().into());
    }

    /// Turns memory decoding and bus mastering on and the legacy interrupt off. From now on the device may access memory.
    pub fn enable(&self) {
        self.set_command(
            self.command()
                | CommandRegister::MEMORY_ENABLE
                | CommandRegister::BUS_MASTER_ENABLE
                | CommandRegister::INTERRUPT_DISABLE,
        );
    }

    /// Turns bus mastering off: the device can no longer access memory.
    pub fn stop(&self) {
        self.set_command(self.command() - CommandRegister::BUS_MASTER_ENABLE);
    }

    /// Returns whether bus mastering is on, or `None` if the function does not answer as an HCA.
    pub fn bus_mastering(&self) -> Option<bool> {
        self.identify()?;
        bus_mastering(self.read(COMMAND))
    }

    /// Returns what a reset would clear, for [`Function::restore`].
    pub fn save(&self) -> SavedConfig {
        let control = |base: Option<u16>, offset: u16, mask: u32| {
            let at = base.map(|base| base + offset).filter(|at| *at < 0x100)?;
            Some((at, self.read(at) & mask))
        };
        let express = self.capability(capability::EXPRESS);
        SavedConfig {
            vendor: self.vendor(),
            command: self.command(),
            bars: core::array::from_fn(|index| self.read(BAR0 + 4 * index as u16)),
            controls: [
                control(express, DEVICE_CONTROL, CONTROL_BITS),
                control(express, DEVICE_CONTROL_2, CONTROL_BITS),
                control(self.capability(capability::MSIX), 0, u32::MAX),
            ],
        }
    }

    /// Writes back what [`Function::save`] returned, if a reset has cleared it. Bus mastering stays as it is. A function that does not
    /// answer is left alone.
    pub fn restore(&self, saved: &SavedConfig) {
        let SavedConfig { vendor, command, bars, controls } = *saved;
        if self.vendor() != vendor {
            return;
        }
        let master = CommandRegister::BUS_MASTER_ENABLE;
        let now = self.command();
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
        self.set_command(wanted);
    }

    /// Resets this function only (6.6.2) and restores its configuration space, with bus mastering off. [`Function::enable`] is next,
    /// then a wait for firmware, which [`Hca::bring_up`](crate::Hca::bring_up) does. Reset once only: further resets do harm. `wait`
    /// waits for so long.
    ///
    /// # Errors
    /// [`PciError`].
    pub fn reset(&self, mut wait: impl FnMut(Duration)) -> Result<(), PciError> {
        let bits = self.reset_bits().ok_or(PciError::NoReset)?;
        let saved = self.save();
        self.stop();
        // Transactions that never complete do not keep the function from its reset.
        let (register, pending) = bits.pending;
        for _ in 0..PENDING_PAUSES {
            if self.read(register) & pending == 0 {
                break;
            }
            wait(PENDING_PAUSE);
        }
        let (register, start) = bits.start;
        self.write(register, self.read(register) & CONTROL_BITS | start);
        wait(RESET_TIME);
        let (mut waited, mut pause) = (Duration::ZERO, FIRST_PAUSE);
        while self.vendor() != saved.vendor {
            if waited >= LONGEST_RESET {
                return Err(PciError::Lost);
            }
            wait(pause);
            waited += pause;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        self.restore(&saved);
        Ok(())
    }

    /// The reset of PCI Express (7.5.3), or else of Advanced Features.
    fn reset_bits(&self) -> Option<ResetBits> {
        let express = self.capability(capability::EXPRESS).filter(|at| *at <= 0x100 - 0x0c);
        if let Some(at) = express.filter(|at| self.read(at + DEVICE_CAPABILITIES) & RESET_CAPABLE != 0) {
            let control = at + DEVICE_CONTROL;
            return Some(ResetBits { start: (control, 1 << 15), pending: (control, 1 << 21) });
        }
        let at = self.capability(capability::ADVANCED_FEATURES).filter(|at| *at <= 0x100 - 8)?;
        // Function-level reset, and a bit for pending transactions.
        let is_able = self.read(at) >> 24 & 0b11 == 0b11;
        is_able.then_some(ResetBits { start: (at + 4, 1), pending: (at + 4, 1 << 8) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::RefCell;

    /// Configuration space of a ConnectX-5 with a BAR0 of 32 MiB.
    struct Space {
        words: RefCell<[u32; 64]>,
    }

    impl ConfigRegionAccess for Space {
        unsafe fn read(&self, _: PciAddress, offset: u16) -> u32 {
            self.words.borrow()[usize::from(offset) / 4]
        }
        unsafe fn write(&self, _: PciAddress, offset: u16, value: u32) {
            let mut words = self.words.borrow_mut();
            let word = &mut words[usize::from(offset) / 4];
            match offset {
                0x10 => *word = value & 0xfe00_0000 | 0xc,
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
        Space { words: RefCell::new(words) }
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

        space.words.borrow_mut()[..2].copy_from_slice(&[0x1017_0001, 0x0010_0000]);
        function(&space).restore(&saved);
        assert_eq!(space.words.borrow()[1], 0x0010_0000, "it requests a retry");
        space.words.borrow_mut().fill(u32::MAX);
        function(&space).restore(&saved);
        assert_eq!(*space.words.borrow(), [u32::MAX; 64], "it is off the bus");
        assert_eq!(function(&space).bus_mastering(), None);
    }
}

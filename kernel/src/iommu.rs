//! DMA remapping that firmware left on (Intel VT-d 4.1, chapter 11): addresses that a device is given would mean something else, and
//! nothing would say so. It is switched off.

/// A remapping unit's registers.
pub trait Registers {
    /// Reads the 32-bit register at `offset`.
    fn read(&self, offset: u32) -> u32;
    /// Writes it.
    fn write(&self, offset: u32, value: u32);
}

const GLOBAL_COMMAND: u32 = 0x18;
const GLOBAL_STATUS: u32 = 0x1c;
const PROTECTED_MEMORY_ENABLE: u32 = 0x64;
/// Translation, and interrupt remapping: the same bits in command and status.
const TRANSLATION: u32 = 1 << 31;
const INTERRUPT_REMAPPING: u32 = 1 << 25;
/// The status bits that a write of the command has to repeat; the others are commands of one time (section 11.4.4).
const STANDING: u32 = 0x96ff_ffff;
const PROTECTED_MEMORY: u32 = 1 << 31;
const PROTECTED_MEMORY_STATUS: u32 = 1;
/// Looks at the status before a unit is given up: it answers within microseconds.
const MAX_LOOKS: usize = 100_000;

/// What was found at a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Everything off.
    Off,
    /// Something was on, and is off now.
    TurnedOff,
    /// It does not go off.
    Stuck,
}

/// Control register of AMD's IOMMU, and bits of its lower half (AMD I/O Virtualization 3.08 section
/// 3.4.3).
const AMD_CONTROL: u32 = 0x18;
const AMD_ENABLE: u32 = 1;
const AMD_EVENT_LOG: u32 = 1 << 2;
const AMD_COMMANDS: u32 = 1 << 12;

/// Switches AMD's IOMMU off, its buffers in memory first. No device may master the bus meanwhile.
pub fn turn_off_amd(registers: &impl Registers) -> Found {
    let control = registers.read(AMD_CONTROL);
    // All ones: no unit is there.
    if control & AMD_ENABLE == 0 || control == u32::MAX {
        return Found::Off;
    }
    let control = control & !(AMD_EVENT_LOG | AMD_COMMANDS);
    registers.write(AMD_CONTROL, control);
    registers.write(AMD_CONTROL, control & !AMD_ENABLE);
    let off = (0..MAX_LOOKS).any(|_| registers.read(AMD_CONTROL) & AMD_ENABLE == 0);
    if off { Found::TurnedOff } else { Found::Stuck }
}

/// Switches a unit of Intel's off. No device may master the bus meanwhile.
pub fn turn_off(registers: &impl Registers) -> Found {
    let mut found = Found::Off;
    let mut settle = |offset: u32, bit: u32| {
        let off = (0..MAX_LOOKS).any(|_| registers.read(offset) & bit == 0);
        found = if off && found != Found::Stuck { Found::TurnedOff } else { Found::Stuck };
    };
    for bit in [TRANSLATION, INTERRUPT_REMAPPING] {
        let status = registers.read(GLOBAL_STATUS);
        // All ones: nobody is there.
        if status & bit != 0 && status != u32::MAX {
            registers.write(GLOBAL_COMMAND, status & STANDING & !bit);
            settle(GLOBAL_STATUS, bit);
        }
    }
    let protected = registers.read(PROTECTED_MEMORY_ENABLE);
    if protected & PROTECTED_MEMORY != 0 && protected != u32::MAX {
        registers.write(PROTECTED_MEMORY_ENABLE, protected & !PROTECTED_MEMORY);
        settle(PROTECTED_MEMORY_ENABLE, PROTECTED_MEMORY_STATUS);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::vec::Vec;

    /// A unit whose status follows the command after some looks.
    struct Unit {
        status: Cell<u32>,
        protected: Cell<u32>,
        commands: RefCell<Vec<u32>>,
        looks_left: Cell<u32>,
        locked: bool,
    }

    fn unit(status: u32, protected: u32, locked: bool) -> Unit {
        let (status, protected) = (Cell::new(status), Cell::new(protected));
        Unit { status, protected, commands: RefCell::default(), looks_left: Cell::new(0), locked }
    }

    impl Registers for Unit {
        fn read(&self, offset: u32) -> u32 {
            match offset {
                GLOBAL_STATUS => {
                    let left = self.looks_left.get();
                    self.looks_left.set(left.saturating_sub(1));
                    match self.commands.borrow().last() {
                        Some(command) if left == 0 && !self.locked => self.status.set(*command),
                        _ => {}
                    }
                    self.status.get()
                }
                PROTECTED_MEMORY_ENABLE => self.protected.get(),
                _ => 0,
            }
        }

        fn write(&self, offset: u32, value: u32) {
            match offset {
                GLOBAL_COMMAND => {
                    self.commands.borrow_mut().push(value);
                    self.looks_left.set(3);
                }
                PROTECTED_MEMORY_ENABLE if !self.locked => self.protected.set(value & !1),
                _ => {}
            }
        }
    }

    #[test]
    fn what_is_off_is_left_alone() {
        // A root table is set, nothing more.
        let off = unit(0x4000_0000, 0, false);
        assert_eq!(turn_off(&off), Found::Off);
        assert!(off.commands.borrow().is_empty());
        assert_eq!(turn_off(&unit(u32::MAX, u32::MAX, false)), Found::Off);
    }

    #[test]
    fn one_bit_goes_at_a_time_and_one_time_commands_are_not_repeated() {
        let on = unit(0xc300_0000, 0x8000_0001, false);
        assert_eq!(turn_off(&on), Found::TurnedOff);
        // Translation first; the root table's and the interrupt table's bits are statuses of one-time commands.
        assert_eq!(*on.commands.borrow(), [0x0200_0000, 0]);
        assert_eq!(on.protected.get(), 0);
    }

    /// AMD's control register.
    struct Amd(RefCell<Vec<u32>>, bool);

    impl Registers for Amd {
        fn read(&self, offset: u32) -> u32 {
            assert_eq!(offset, AMD_CONTROL);
            self.0.borrow().last().copied().unwrap_or(u32::MAX)
        }

        fn write(&self, offset: u32, value: u32) {
            assert_eq!(offset, AMD_CONTROL);
            self.0.borrow_mut().push(if self.1 { value | AMD_ENABLE } else { value });
        }
    }

    #[test]
    fn amd_unit_is_switched_off_after_its_buffers() {
        let on = Amd(RefCell::new(std::vec![0x1405]), false);
        assert_eq!(turn_off_amd(&on), Found::TurnedOff);
        assert_eq!(*on.0.borrow(), [0x1405, 0x401, 0x400]);
        let off = Amd(RefCell::new(std::vec![0x1404]), false);
        assert_eq!((turn_off_amd(&off), off.0.borrow().len()), (Found::Off, 1));
        assert_eq!(turn_off_amd(&Amd(RefCell::default(), false)), Found::Off, "all ones");
        assert_eq!(turn_off_amd(&Amd(RefCell::new(std::vec![1]), true)), Found::Stuck);
    }

    #[test]
    fn a_unit_that_firmware_locked_is_told() {
        assert_eq!(turn_off(&unit(0xc000_0000, 0, true)), Found::Stuck);
        assert_eq!(turn_off(&unit(0, 0x8000_0001, true)), Found::Stuck);
    }
}

//! I/O APICs (82093AA data sheet, section 3): their inputs are masked, because the unikernel uses message-signalled interrupts alone.
//! A level that firmware left open would interrupt without an end.

use crate::iommu::Registers;

const INDEX: u32 = 0x00;
const DATA: u32 = 0x10;
const VERSION: u32 = 0x01;
/// Two registers for each input, from here on. The lower one has the mask.
const FIRST_INPUT: u32 = 0x10;
const MASKED: u32 = 1 << 16;

/// Masks all inputs. Returns how many were open.
pub fn mask(registers: &impl Registers) -> usize {
    let read = |index| {
        registers.write(INDEX, index);
        registers.read(DATA)
    };
    let version = read(VERSION);
    // All ones: none is there.
    let inputs = if version == u32::MAX { 0 } else { (version >> 16 & 0xff) + 1 };
    let mut open = 0;
    for input in 0..inputs {
        let index = FIRST_INPUT + 2 * input;
        let entry = read(index);
        if entry & MASKED == 0 {
            open += 1;
            registers.write(DATA, entry | MASKED);
        }
    }
    open
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::vec;
    use std::vec::Vec;

    /// The selected register, and all of them.
    struct Fake(RefCell<(u32, Vec<u32>)>);

    impl Registers for Fake {
        fn read(&self, offset: u32) -> u32 {
            let fake = self.0.borrow();
            assert_eq!(offset, DATA);
            fake.1.get(fake.0 as usize).copied().unwrap_or(u32::MAX)
        }

        fn write(&self, offset: u32, value: u32) {
            let mut fake = self.0.borrow_mut();
            if offset == INDEX {
                fake.0 = value;
            } else {
                let index = fake.0 as usize;
                fake.1[index] = value;
            }
        }
    }

    #[test]
    fn open_inputs_are_masked_and_nothing_else_changes() {
        let mut registers = vec![0; 0x10 + 2 * 24];
        registers[1] = 23 << 16 | 0x20;
        for input in 0..24 {
            registers[0x10 + 2 * input] = MASKED | (0x30 + input as u32);
            registers[0x11 + 2 * input] = 0x0100_0000;
        }
        let expected = registers.clone();
        // A level-triggered one, active low, and the last.
        registers[0x10 + 2 * 9] = 0xa039;
        registers[0x10 + 2 * 23] &= !MASKED;
        let fake = Fake(RefCell::new((0, registers)));
        assert_eq!(mask(&fake), 2);
        let mut found = fake.0.into_inner().1;
        assert_eq!(found[0x10 + 2 * 9], MASKED | 0xa039);
        found[0x10 + 2 * 9] = expected[0x10 + 2 * 9];
        assert_eq!(found, expected);
    }

    #[test]
    fn one_that_is_not_there_is_left_alone() {
        assert_eq!(mask(&Fake(RefCell::new((0, Vec::new())))), 0);
    }
}

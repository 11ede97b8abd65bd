//! The vendor-specific capability: a gateway with a lock, behind which lie numbered spaces (PRM, vendor-specific capability).
//!
//! What exists here: semaphores, with which a driver guards a software reset and tools their commands; the firmware's internal commands
//! ([`crate::icmd`]), under two numbers; and of the card's own registers those that tell which card it is. Crash-dump spaces and the one of
//! the minimal network driver answer "not supported".

use crate::icmd::Gateway;
use std::cell::Cell;
use std::collections::BTreeMap;

/// Space numbers of the internal commands: of all functions, and of this one.
const ICMD_ALL: u32 = 0x01;
const ICMD: u32 = 0x03;
/// Space number of the card's own registers.
const CARD: u32 = 0x02;
/// In that space, which chip it is. All others read as zero, which for a tool means that firmware is ready.
const CHIP_ID: u32 = 0x000f_0014;
/// Space number of the semaphores.
const SEMAPHORES: u32 = 0x0a;
/// Semaphores that can be held.
const LIMIT: usize = 64;

const CONTROL: usize = 0x04;
const COUNTER: usize = 0x08;
const SEMAPHORE: usize = 0x0c;
const ADDRESS: usize = 0x10;
const DATA: usize = 0x14;

/// The gateway's registers, without the capability header.
#[derive(Clone, Debug)]
pub(crate) struct Vsc {
    control: u32,
    /// A number that is different at every read: tickets for the lock.
    counter: Cell<u32>,
    semaphore: u32,
    address: u32,
    data: u32,
    held: BTreeMap<u32, u32>,
    /// The chip's number, as in `health_buffer.hw_id`.
    chip: u32,
    /// What lies behind the space of internal commands.
    pub(crate) icmd: Gateway,
}

impl Vsc {
    /// The capability of a card with this chip.
    pub(crate) fn new(chip: u32) -> Self {
        Self {
            chip,
            control: 0,
            counter: Cell::new(1),
            semaphore: 0,
            address: 0,
            data: 0,
            held: BTreeMap::new(),
            icmd: Gateway::default(),
        }
    }

    /// Bytes of the capability.
    pub(crate) const LEN: usize = 0x18;

    const fn exists(space: u32) -> bool {
        matches!(space, ICMD_ALL | CARD | ICMD | SEMAPHORES)
    }

    fn get(&self, register: usize) -> Option<u32> {
        Some(match register {
            CONTROL => self.control,
            COUNTER => {
                let ticket = self.counter.get();
                self.counter.set(ticket.wrapping_add(1).max(1));
                ticket
            }
            SEMAPHORE => self.semaphore,
            ADDRESS => self.address,
            DATA => self.data,
            _ => return None,
        })
    }

    /// Fills in what of a read of configuration space at `offset` lies in the capability at `base`.
    pub(crate) fn read(&self, offset: usize, base: usize, buf: &mut [u8]) {
        for register in (CONTROL..Self::LEN).step_by(4) {
            let at = base + register;
            if offset >= at + 4 || offset.saturating_add(buf.len()) <= at {
                continue;
            }
            let Some(value) = self.get(register) else { continue };
            for (i, byte) in value.to_le_bytes().into_iter().enumerate() {
                let place = (at + i).checked_sub(offset).and_then(|place| buf.get_mut(place));
                if let Some(place) = place {
                    *place = byte;
                }
            }
        }
    }

    /// Takes what of a write to configuration space lies in the capability: whole registers only, but for the space number,
    /// which is 16 bits wide.
    pub(crate) fn write(&mut self, offset: usize, base: usize, data: &[u8]) {
        let Some(start) = offset.checked_sub(base) else { return };
        if let (CONTROL, &[low, high]) = (start, data) {
            self.set(CONTROL, u32::from(u16::from_le_bytes([low, high])));
        }
        for (i, word) in data.as_chunks::<4>().0.iter().enumerate() {
            self.set(start + 4 * i, u32::from_le_bytes(*word));
        }
    }

    fn set(&mut self, register: usize, value: u32) {
        match register {
            CONTROL => {
                let space = value & 0xffff;
                // Status in the upper three bits: not zero for a space that exists.
                self.control = space | if Self::exists(space) { 1 << 29 } else { 0 };
            }
            SEMAPHORE if value == 0 || self.semaphore == 0 => self.semaphore = value,
            DATA => self.data = value,
            ADDRESS => self.access(value),
            _ => {}
        }
    }

    /// The flag (bit 31) says write, and clears when done; a read sets it when done.
    fn access(&mut self, value: u32) {
        let address = value & 0x3fff_ffff;
        let space = self.control & 0xffff;
        if !Self::exists(space) {
            self.address = value;
            return;
        }
        if value >> 31 == 0 {
            self.data = match space {
                ICMD | ICMD_ALL => self.icmd.read(address),
                CARD if address == CHIP_ID => self.chip,
                CARD => 0,
                _ => self.held.get(&address).copied().unwrap_or(0),
            };
            self.address = address | 1 << 31;
            return;
        }
        self.address = address;
        match space {
            ICMD | ICMD_ALL => self.icmd.write(address, self.data),
            CARD => {}
            _ if self.data == 0 => {
                self.held.remove(&address);
            }
            // Who has it keeps it.
            _ if self.held.len() < LIMIT => {
                self.held.entry(address).or_insert(self.data);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: usize = 0xc0;

    fn read(vsc: &Vsc, register: usize) -> u32 {
        let mut bytes = [0; 4];
        vsc.read(BASE + register, BASE, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn write(vsc: &mut Vsc, register: usize, value: u32) {
        vsc.write(BASE + register, BASE, &value.to_le_bytes());
    }

    #[test]
    fn the_lock_goes_to_one_ticket() {
        let mut vsc = Vsc::new(0x20d);
        let (first, second) = (read(&vsc, COUNTER), read(&vsc, COUNTER));
        assert!(first != second && first != 0);
        write(&mut vsc, SEMAPHORE, first);
        write(&mut vsc, SEMAPHORE, second);
        assert_eq!(read(&vsc, SEMAPHORE), first);
        write(&mut vsc, SEMAPHORE, 0);
        assert_eq!(read(&vsc, SEMAPHORE), 0);
    }

    #[test]
    fn tools_find_out_which_chip_it_is() {
        let mut vsc = Vsc::new(0x20d);
        write(&mut vsc, CONTROL, CARD);
        assert_eq!(read(&vsc, CONTROL) >> 29, 1);
        for (address, value) in [(CHIP_ID, 0x20d), (0xb_5e04, 0)] {
            write(&mut vsc, ADDRESS, address);
            assert_eq!((read(&vsc, ADDRESS) >> 31, read(&vsc, DATA)), (1, value));
        }
        write(&mut vsc, DATA, 1);
        write(&mut vsc, ADDRESS, 1 << 31 | CHIP_ID);
        write(&mut vsc, ADDRESS, CHIP_ID);
        assert_eq!(read(&vsc, DATA), 0x20d, "it stays what it is");
    }

    #[test]
    fn semaphores_are_taken_and_released_and_other_spaces_are_not_there() {
        let mut vsc = Vsc::new(0x20d);
        for space in [4, 7, 0x102] {
            write(&mut vsc, CONTROL, space);
            assert_eq!(read(&vsc, CONTROL) >> 29, 0);
        }
        // As mlx5 writes it, and as iPXE does: the number alone.
        write(&mut vsc, CONTROL, SEMAPHORES);
        assert_eq!(read(&vsc, CONTROL), SEMAPHORES | 1 << 29);
        write(&mut vsc, CONTROL, 0);
        vsc.write(BASE + CONTROL, BASE, &(SEMAPHORES as u16).to_le_bytes());
        assert_eq!(read(&vsc, CONTROL), SEMAPHORES | 1 << 29);
        let mut status = [0];
        vsc.read(BASE + CONTROL + 3, BASE, &mut status);
        assert_eq!(status, [0x20]);
        for (value, expected) in [(5, 5), (9, 5), (0, 0), (9, 9)] {
            write(&mut vsc, DATA, value);
            write(&mut vsc, ADDRESS, 1 << 31 | 0x20);
            assert_eq!(read(&vsc, ADDRESS) >> 31, 0, "written");
            write(&mut vsc, ADDRESS, 0x20);
            assert_eq!(read(&vsc, ADDRESS) >> 31, 1, "read");
            assert_eq!(read(&vsc, DATA), expected);
        }
    }
}

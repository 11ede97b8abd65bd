//! Addresses for BARs that have none.

use super::{Bus, Device, all, at};
use crate::memory_map::Range;
use crate::pci::assign::{Room, assign};
use crate::pci::*;
use crate::pvh::{MemoryMapEntry, TYPE_RAM};
use pci_types::PciAddress;

/// A machine with memory up to `low` and, above 4 GiB, up to `high`, and 40 bits of addresses.
fn room(low: u64, high: u64) -> Room {
    let ram = |address, end: u64| MemoryMapEntry { address, len: end - address, kind: TYPE_RAM };
    let ecam = Range { start: 0xe000_0000, end: 0xf000_0000 };
    Room::new([ram(0, low), ram(4 << 30, high)].into_iter(), [ecam].into_iter(), 40)
}

/// An HCA whose BAR of 32 MiB has no address.
fn unassigned() -> Device {
    let mut device = Device::hca();
    device.space[5] = 0;
    device
}

/// A bridge to `secondary` with these windows' registers.
fn bridge(secondary: u8, memory: u32, prefetchable: [u32; 3]) -> Device {
    let mut device = Device::new(0x000c_1b36, 0x0604_0000);
    device.space[3] = 0x0001_0000;
    device.space[6] = 0x00ff_0000 | u32::from(secondary) << 8;
    // The words of its windows, which the fake takes for BARs 4 and 5.
    device.bar_masks[2] = u32::MAX;
    device.bar_masks[4] = 0xfff0_fff0;
    device.bar_masks[5] = 0xfff0_fff0;
    device.space[8] = memory;
    device.space[9..12].copy_from_slice(&prefetchable);
    device
}

const CLOSED: u32 = 0x0000_fff0;

fn assigned(bus: &Bus, room: &Room, address: PciAddress) -> Result<u64, Error> {
    let functions = all(bus);
    let function = functions.iter().find(|function| function.address == address).unwrap();
    assign(bus, &functions, room, function, 0).map(|bar| bar.address)
}

#[test]
fn a_bar_without_an_address_gets_one_apart_from_all_that_is_known() {
    let bus = Bus::default();
    bus.add(at(0, 4, 0), unassigned());
    assert_eq!(assigned(&bus, &room(2 << 30, 4 << 30), at(0, 4, 0)), Ok(0x8000_0000), "behind memory");
    let device = bus.device(at(0, 4, 0));
    assert_eq!(
        (device.space[4] & !0xf, device.space[5], device.sized_while_decoding),
        (0x8000_0000, 0, false)
    );
    assert_eq!(device.space[1] & 0xffff, 0x103, "command restored");

    // Another's BAR is in the way, then a bridge's window.
    let mut other = Device::new(0x1234_1234, 0);
    (other.bar_masks[0], other.space[4]) = (0xffff_f000, 0x8100_1000);
    bus.add(at(0, 4, 0), unassigned());
    bus.add(at(0, 5, 0), other);
    bus.add(at(0, 6, 0), bridge(1, 0x8200_8200, [CLOSED, 0, 0]));
    assert_eq!(assigned(&bus, &room(2 << 30, 4 << 30), at(0, 4, 0)), Ok(0x8400_0000));

    // Below 4 GiB there is no room, because configuration space begins behind memory.
    bus.add(at(0, 4, 0), unassigned());
    let full = room(0xdf00_0000, 6 << 30);
    assert_eq!(assigned(&bus, &full, at(0, 4, 0)), Ok(0xf000_0000));
    let map = [MemoryMapEntry { address: 0xe000_0000, len: 0x1f00_0000, kind: 2 }];
    let ram = MemoryMapEntry { address: 0, len: 0xe000_0000, kind: TYPE_RAM };
    let high = MemoryMapEntry { address: 4 << 30, len: 2 << 30, kind: TYPE_RAM };
    let full = Room::new(map.into_iter().chain([ram, high]), core::iter::empty(), 40);
    bus.add(at(0, 4, 0), unassigned());
    assert_eq!(assigned(&bus, &full, at(0, 4, 0)), Ok(6 << 30), "above all memory");
    // A BAR of 32 bits does not go there.
    let mut narrow = Device::new(0x1234_1234, 0);
    narrow.bar_masks[0] = 0xffff_f000;
    bus.add(at(0, 7, 0), narrow);
    assert_eq!(assigned(&bus, &full, at(0, 7, 0)), Err(Error::NoRoom(0)));
    // Nor does anything where the CPU has no address.
    let none = Room::new([ram, high].into_iter(), core::iter::empty(), 32);
    let mut large = unassigned();
    (large.bar_masks[0], large.bar_masks[1]) = (0, 0xffff_fffc);
    bus.add(at(0, 8, 0), large);
    assert_eq!(assigned(&bus, &none, at(0, 8, 0)), Err(Error::NoRoom(0)));
}

#[test]
fn windows_above_a_bar_are_used_or_opened() {
    let room = room(2 << 30, 4 << 30);
    // Two bridges, both closed: both get the window.
    let bus = Bus::default();
    bus.add(at(0, 1, 0), bridge(1, CLOSED, [CLOSED | 0x0001_0001, 0, 0]));
    bus.add(at(1, 0, 0), bridge(2, CLOSED, [CLOSED | 0x0001_0001, 0, 0]));
    bus.add(at(2, 0, 0), unassigned());
    assert_eq!(assigned(&bus, &room, at(2, 0, 0)), Ok(0x8000_0000));
    for address in [at(0, 1, 0), at(1, 0, 0)] {
        let words = bus.device(address).space;
        assert_eq!(words[9] & 0xfff0_fff0, 0x81f0_8000, "prefetchable: 32 MiB from 2 GiB");
        assert_eq!((words[8], words[10], words[11]), (CLOSED, 0, 0));
    }
    // An open window is kept, and its other BAR spared.
    let bus = Bus::default();
    bus.add(at(0, 1, 0), bridge(1, CLOSED, [0xc3f1_c001, 0x10, 0x10]));
    let mut other = Device::hca();
    (other.space[4], other.space[5]) = (0xc000_000c, 0x10);
    bus.add(at(1, 0, 0), other);
    bus.add(at(1, 1, 0), unassigned());
    assert_eq!(assigned(&bus, &room, at(1, 1, 0)), Ok(0x10_c200_0000), "above 4 GiB");
    // A full one leaves the other window, which is below 4 GiB.
    bus.add(at(1, 2, 0), unassigned());
    assert_eq!(assigned(&bus, &room, at(1, 2, 0)), Ok(0x8000_0000));
    assert_eq!(bus.device(at(0, 1, 0)).space[8], 0x81f0_8000);
}

#[test]
fn a_window_that_is_too_small_and_empty_becomes_a_larger_one() {
    let room = room(2 << 30, 4 << 30);
    let bus = Bus::default();
    // 2 MiB, as firmware keeps for a slot; the BAR wants 32.
    bus.add(at(0, 1, 0), bridge(1, CLOSED, [0xc011_c001, 0x10, 0x10]));
    bus.add(at(1, 0, 0), unassigned());
    assert_eq!(assigned(&bus, &room, at(1, 0, 0)), Ok(0x8000_0000));
    let words = bus.device(at(0, 1, 0)).space;
    assert_eq!((words[9] & 0xfff0_fff0, words[10], words[11]), (0x81f0_8000, 0, 0));
    // With something in it it stays, and the other window takes the BAR.
    let bus = Bus::default();
    bus.add(at(0, 1, 0), bridge(1, CLOSED, [0xc011_c001, 0x10, 0x10]));
    let mut other = Device::new(0x1234_1234, 0);
    (other.bar_masks[0], other.bar_masks[1]) = (0xffff_f000, u32::MAX);
    (other.space[4], other.space[5]) = (0xc000_000c, 0x10);
    bus.add(at(1, 1, 0), other);
    bus.add(at(1, 0, 0), unassigned());
    assert_eq!(assigned(&bus, &room, at(1, 0, 0)), Ok(0x8000_0000));
    let words = bus.device(at(0, 1, 0)).space;
    assert_eq!((words[8], words[9]), (0x81f0_8000, 0xc011_c001));
}

#[test]
fn empty_windows_of_nested_bridges_grow_together() {
    let room = room(2 << 30, 4 << 30);
    let bus = Bus::default();
    // Windows of 2 MiB, as firmware keeps for a switch without functions; the BAR needs 32.
    bus.add(at(0, 1, 0), bridge(1, 0xc010_c000, [0xc011_c001, 0x10, 0x10]));
    bus.add(at(1, 0, 0), bridge(2, 0xc010_c000, [0xc011_c001, 0x10, 0x10]));
    bus.add(at(2, 0, 0), unassigned());
    assert_eq!(assigned(&bus, &room, at(2, 0, 0)), Ok(0xc200_0000));
    for address in [at(0, 1, 0), at(1, 0, 0)] {
        let words = bus.device(address).space;
        assert_eq!((words[8], words[9] & 0xfff0_fff0, words[10]), (0xc010_c000, 0xc3f0_c200, 0));
    }
}

/// A device with a BAR of `len` bytes at `address`.
fn assigned_device(address: u32, len: u32) -> Device {
    let mut device = Device::new(0x1234_8086, 0x0200_0000);
    (device.bar_masks[0], device.space[4]) = (!(len - 1), address);
    device
}

/// The map of a Supermicro X11DAi-N: bus 0 has 0x90000000 to 0x9d7fffff, bus 0x17 has 0x9d800000 to 0xaaffffff.
#[test]
fn addresses_are_those_of_the_own_root_bus() {
    let bus = Bus::default();
    bus.add(at(0, 0x1f, 0), assigned_device(0x9000_0000, 1 << 20));
    bus.add(at(0, 0x14, 0), assigned_device(0x9d00_0000, 1 << 20));
    bus.add(at(0x17, 1, 0), assigned_device(0x9d80_0000, 1 << 20));
    bus.add(at(0x17, 2, 0), assigned_device(0xaaf0_0000, 1 << 20));
    bus.add(at(0x17, 3, 0), unassigned());
    let room = room(0x9000_0000, 4 << 30);
    assert_eq!(assigned(&bus, &room, at(0x17, 3, 0)), Ok(0x9e00_0000));
    // A root bus without any address gets none that lies between those of others.
    bus.add(at(0x3a, 0, 0), unassigned());
    assert_eq!(assigned(&bus, &room, at(0x3a, 0, 0)), Ok(0xac00_0000));
    // Behind a bridge on the root bus.
    bus.add(at(0x17, 4, 0), bridge(0x18, CLOSED, [CLOSED, 0, 0]));
    bus.add(at(0x18, 0, 0), unassigned());
    assert_eq!(assigned(&bus, &room, at(0x18, 0, 0)), Ok(0xa000_0000));
}

/// Two root buses with a range above 4 GiB each, of which firmware has used the first or last MiB.
#[test]
fn addresses_above_4_gib_are_next_to_those_of_the_own_root_bus() {
    let places = |used: [[u32; 2]; 2]| {
        let bus = Bus::default();
        let roots = [0x40, 0x60];
        for (root, [low, high]) in roots.into_iter().zip(used) {
            bus.add(at(root, 1, 0), assigned_device(0x9000_0000 + (u32::from(root) << 20), 1 << 20));
            let mut wide = assigned_device(low | 0xc, 1 << 20);
            (wide.bar_masks[1], wide.space[5]) = (u32::MAX, high);
            bus.add(at(root, 2, 0), wide);
            bus.add(at(root, 3, 0), unassigned());
        }
        let room = room(0x9000_0000, 0x20_0000_0000);
        roots.map(|root| assigned(&bus, &room, at(root, 3, 0)))
    };
    // Downwards from the end, as on Supermicro's AMD servers, and upwards from the start.
    let downwards = places([[0xfff0_0000, 0x2f], [0xfff0_0000, 0x27]]);
    assert_eq!(downwards, [Ok(0x2f_fc00_0000), Ok(0x27_fc00_0000)]);
    let upwards = places([[0, 0x28], [0, 0x20]]);
    assert_eq!(upwards, [Ok(0x28_0200_0000), Ok(0x20_0200_0000)]);
    // Downwards there is no more: below 4 GiB instead, after the own ones.
    assert_eq!(places([[0xfff0_0000, 0x2f], [0x00f0_0000, 0x20]])[1], Ok(0x9800_0000));
}

#[test]
fn registers_of_remapping_units_are_taken() {
    let bus = Bus::default();
    bus.add(at(0, 4, 0), unassigned());
    let ram = MemoryMapEntry { address: 0, len: 2 << 30, kind: TYPE_RAM };
    let unit = crate::acpi::Unit::Intel(0x8100_0000).range();
    let room = Room::new([ram].into_iter(), [unit].into_iter(), 40);
    assert_eq!(assigned(&bus, &room, at(0, 4, 0)), Ok(0x8200_0000));
}

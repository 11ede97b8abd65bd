//! Bridges: the numbers of the buses below them (PCI Express Base Specification 5.0 section 7.5.1.3), and the way through them.

use pci_types::{CommandRegister, PciAddress};

use super::function::{BUS_NUMBERS, ConfigAccess, Function};

/// A tree is not deeper than its buses are many.
const MAX_DEPTH: usize = 256;

/// The bridge that leads to the bus of `address`, if that is no root bus.
pub(super) fn above(functions: &[Function], address: PciAddress) -> Option<usize> {
    functions.iter().position(|bridge| {
        bridge.address.segment() == address.segment()
            && bridge.secondary_bus == Some(address.bus())
            && bridge.address.bus() != address.bus()
    })
}

/// The bridges between `address` and its root bus, the nearest first; bridges that name each other end it.
fn path(functions: &[Function], mut address: PciAddress) -> impl Iterator<Item = usize> + '_ {
    (0..MAX_DEPTH).map_while(move |_| {
        let bridge = above(functions, address)?;
        address = functions.get(bridge)?.address;
        Some(bridge)
    })
}

/// Lets accesses through every bridge between `function` and its root bus: memory decoding down, bus mastering up.
pub(crate) fn open_bridges(access: &impl ConfigAccess, functions: &[Function], function: &Function) {
    let on = CommandRegister::MEMORY_ENABLE | CommandRegister::BUS_MASTER_ENABLE;
    for bridge in path(functions, function.address).filter_map(|index| functions.get(index)) {
        let config = bridge.config(access);
        config.set_command(config.command() | on);
    }
}

/// The register of a bridge's bus numbers.
#[derive(Clone, Copy, Debug)]
struct Register(u32);

impl Register {
    fn of(access: &impl ConfigAccess, bridge: &Function) -> Self {
        Self(access.read(bridge.address, BUS_NUMBERS))
    }

    const fn secondary(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// The last bus below the bridge.
    const fn subordinate(self) -> u8 {
        (self.0 >> 16) as u8
    }

    const fn with_subordinate(self, bus: u8) -> Self {
        Self(self.0 & 0xff00_ffff | (bus as u32) << 16)
    }

    /// For a bridge on bus `primary`; what is no bus number stays.
    const fn with_all(self, primary: u8, secondary: u8) -> Self {
        let numbers = primary as u32 | (secondary as u32) << 8;
        Self(self.0 & 0xff00_0000 | numbers).with_subordinate(secondary)
    }

    const fn without_any(self) -> Self {
        Self(self.0 & 0xff00_0000)
    }

    fn put(self, access: &impl ConfigAccess, bridge: &Function) {
        access.write(bridge.address, BUS_NUMBERS, self.0);
    }
}

/// Whether nothing can be reached through a bridge because it has no number for the bus below, or one that cannot be.
pub(super) fn is_unnumbered(access: &impl ConfigAccess, bridge: &Function) -> bool {
    let register = Register::of(access, bridge);
    register.secondary() <= bridge.address.bus() || register.subordinate() < register.secondary()
}

/// Takes the bus numbers from every bridge, from those farthest from their root bus on: their buses have the higher numbers.
pub(super) fn forget(access: &impl ConfigAccess, functions: &[Function]) {
    for bus in (0..=u8::MAX).rev() {
        let here = |function: &&Function| function.secondary_bus.is_some() && function.address.bus() == bus;
        for bridge in functions.iter().filter(here) {
            Register::of(access, bridge).without_any().put(access, bridge);
        }
    }
}

/// Gives the bridge at `index` a number for the bus below it, the lowest that is free for it up to `last`, and lets those above pass it
/// on. None if there is none.
///
/// What is behind a host bridge is a run of numbers from its root bus on; where it ends only AML says, which is not read here. The next root
/// bus on which there is something is taken for the end.
pub(super) fn number(
    access: &impl ConfigAccess,
    functions: &mut [Function],
    index: usize,
    last: u8,
) -> Option<u8> {
    let bridge = *functions.get(index)?;
    let bus = lowest_free(access, functions, index, last)?;
    for above in path(functions, bridge.address).filter_map(|index| functions.get(index)) {
        let register = Register::of(access, above);
        if register.subordinate() < bus {
            register.with_subordinate(bus).put(access, above);
        }
    }
    Register::of(access, &bridge).with_all(bridge.address.bus(), bus).put(access, &bridge);
    if Register::of(access, &bridge).secondary() != bus {
        return None;
    }
    functions.get_mut(index)?.secondary_bus = Some(bus);
    Some(bus)
}

fn lowest_free(access: &impl ConfigAccess, functions: &[Function], index: usize, last: u8) -> Option<u8> {
    let bridge = functions.get(index)?;
    let segment = bridge.address.segment();
    let there = || functions.iter().enumerate().filter(|(_, function)| function.address.segment() == segment);
    let is_above = |other| path(functions, bridge.address).any(|above| above == other);
    // The buses that those above lead to already; their own end there at the latest where others begin.
    let ends = || path(functions, bridge.address).filter_map(|index| functions.get(index));
    let nearest_end = ends().map(|above| Register::of(access, above).subordinate()).next();
    let first = bridge.address.bus().checked_add(1)?;
    for bus in first..=last {
        let others = there().any(|(other, function)| {
            other != index
                && function.secondary_bus.is_some()
                && !is_unnumbered(access, function)
                && !is_above(other)
                && {
                    let register = Register::of(access, function);
                    (register.secondary()..=register.subordinate()).contains(&bus)
                }
        });
        let occupied = there().any(|(_, function)| function.address.bus() == bus);
        if !others && !occupied {
            return Some(bus);
        }
        // Beyond the end of those above every number on the way would become theirs; a root bus ends the run in any case.
        let beyond = nearest_end.is_some_and(|end| bus > end);
        let root = occupied && !others && above(functions, PciAddress::new(segment, bus, 0, 0)).is_none();
        if beyond || root {
            return None;
        }
    }
    None
}

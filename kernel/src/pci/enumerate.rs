//! Which functions there are.

use core::fmt;

use heapless::Vec;
use pci_types::PciAddress;

use super::bridges;
use super::function::{BUS_NUMBERS, CLASS, ConfigAccess, Function, HEADER};
use super::slots::{self, Patience, Slot};

/// Most functions listed. Servers list some 250 for two sockets.
pub const MAX_FUNCTIONS: usize = 2048;

/// Buses of a segment that configuration space reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buses {
    /// The segment.
    pub segment: u16,
    /// The first bus.
    pub first: u8,
    /// The last bus.
    pub last: u8,
}

impl Buses {
    /// Whether `address` is on one of them.
    #[must_use]
    pub fn contain(&self, address: PciAddress) -> bool {
        address.segment() == self.segment && (self.first..=self.last).contains(&address.bus())
    }
}

/// What is to become of the bus numbers that bridges have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// They stay; bridges that have none get some.
    Keep,
    /// All bridges get new ones.
    Assign,
}

/// What enumeration did beside looking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// Something about a slot.
    Slot(Slot),
    /// The bridge got a number for the bus below it, or there was none for it.
    Number(PciAddress, Option<u8>),
    /// The list is full: [`MAX_FUNCTIONS`] functions, and perhaps more.
    Full,
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slot(slot) => slot.fmt(f),
            Self::Full => {
                write!(
                    f,
                    "pci: {MAX_FUNCTIONS} functions or more: the others are not used, and may master the bus"
                )
            }
            Self::Number(bridge, Some(bus)) => {
                write!(f, "pci {bridge}: a bridge without a bus number: bus {bus:#04x} is below it now")
            }
            Self::Number(bridge, None) => {
                write!(
                    f,
                    "pci {bridge}: a bridge without a bus number, and none is free: what is below it is not seen"
                )
            }
        }
    }
}

/// Lists the functions on all of `buses`, at most [`MAX_FUNCTIONS`]. Every bus is looked at, because a machine has more root buses than
/// bus 0, and only its AML says which. Then cards in slots that are off are switched on, and bridges numbered that firmware left without
/// bus numbers; `tell` hears of both, and what is found there stands behind its bridge. `wait(nanos)` lets that much time pass: a function that was
/// just reset may ask for some, and so do links.
// Code size: inlined, its locals share a frame so large that each access takes four more bytes.
#[inline(never)]
pub(crate) fn functions(
    access: &impl ConfigAccess,
    buses: impl Iterator<Item = Buses> + Clone,
    numbers: Numbers,
    mut wait: impl FnMut(u64),
    mut tell: impl FnMut(Done),
) -> Vec<Function, MAX_FUNCTIONS> {
    let mut found = scan(access, buses.clone(), &mut wait);
    if numbers == Numbers::Assign {
        bridges::forget(access, &found);
        found = scan(access, buses.clone(), &mut wait);
    }
    let mut patience = Patience::new(&mut wait);
    let mut index = 0;
    // What is found on the way is looked at too; a list of bounded length has an end.
    while let Some(bridge) = found.get(index).copied() {
        index += 1;
        if bridge.secondary_bus.is_none() {
            continue;
        }
        let slot = slots::wake(access, &bridge, &mut patience);
        slot.into_iter().for_each(|slot| tell(Done::Slot(slot)));
        let mut below = bridge.secondary_bus;
        let unnumbered = bridges::is_unnumbered(access, &bridge);
        if unnumbered {
            let last = buses.clone().find(|buses| buses.contain(bridge.address)).map(|buses| buses.last);
            below = last.and_then(|last| bridges::number(access, &mut found, index - 1, last));
            tell(Done::Number(bridge.address, below));
        }
        // Also below one whose link came up meanwhile.
        if let Some(bus) = below {
            let segment = bridge.address.segment();
            let seen = found
                .iter()
                .any(|function| (function.address.segment(), function.address.bus()) == (segment, bus));
            if !seen {
                let before = found.len();
                scan_bus(access, (segment, bus), &mut found, patience.wait());
                // They are next: bridges among them want the next numbers, before others behind this one take those.
                let new = found.len() - before;
                if let Some(rest) = found.get_mut(index..) {
                    rest.rotate_right(new);
                }
            }
        }
    }
    if found.is_full() {
        tell(Done::Full);
    }
    found
}

fn scan(
    access: &impl ConfigAccess,
    buses: impl Iterator<Item = Buses>,
    wait: &mut dyn FnMut(u64),
) -> Vec<Function, MAX_FUNCTIONS> {
    let mut found = Vec::new();
    for buses in buses {
        for bus in buses.first..=buses.last {
            scan_bus(access, (buses.segment, bus), &mut found, wait);
        }
    }
    found
}

/// The vendor ID that says "ask again" (section 2.3.2).
const RETRY: u16 = 0x0001;
const RETRY_INTERVAL_NANOS: u64 = 10_000_000;
/// A function has a second after its reset (section 6.6.1).
const RETRIES: usize = 100;

fn scan_bus(
    access: &impl ConfigAccess,
    (segment, bus): (u16, u8),
    found: &mut Vec<Function, MAX_FUNCTIONS>,
    wait: &mut dyn FnMut(u64),
) {
    for device in 0..32 {
        for function in 0..8 {
            let address = PciAddress::new(segment, bus, device, function);
            let mut id = access.read(address, 0);
            for _ in 0..RETRIES {
                if id as u16 != RETRY {
                    break;
                }
                wait(RETRY_INTERVAL_NANOS);
                id = access.read(address, 0);
            }
            if matches!(id as u16, 0xffff | 0 | RETRY) {
                if function == 0 {
                    break;
                }
                continue;
            }
            let class = access.read(address, CLASS);
            let header_type = (access.read(address, HEADER) >> 16) as u8;
            let bridge = header_type & 0x7f == 1;
            let secondary_bus = bridge.then(|| (access.read(address, BUS_NUMBERS) >> 8) as u8);
            let (vendor, device) = (id as u16, (id >> 16) as u16);
            let (class, revision) = ((class >> 16) as u16, class as u8);
            // Beyond the limit functions are not listed.
            if found.push(Function { address, vendor, device, class, revision, secondary_bus }).is_err() {
                return;
            }
            if function == 0 && header_type & 0x80 == 0 {
                break;
            }
        }
    }
}

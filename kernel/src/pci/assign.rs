//! Addresses for BARs that firmware left without one, and windows for the bridges above them (PCI Express Base Specification 5.0 sections
//! 7.5.1.2.1 and 7.5.1.3).
//!
//! Only AML (`_CRS`) names the addresses that a root bus decodes, and the unikernel does not
//! interpret AML. Below 4 GiB chipsets pass to PCI all that is neither memory nor their own
//! registers; above 4 GiB firmware decides. Places below 4 GiB therefore come first, apart from all
//! known ranges. Servers divide both parts among their root buses; there, addresses next to those
//! in use come first.

use heapless::Vec;

use pci_types::PciAddress;

use super::bar::MemoryBar;
use super::bridges;
use super::function::{ConfigAccess, Error, FIRST_BAR, Function, HOST_BRIDGE};
use crate::memory_map::Range;
use crate::pvh::{MemoryMapEntry, TYPE_RAM};

/// The interrupt controllers' registers, firmware's ROM and what else chipsets have at fixed places below 4 GiB lie above.
const LOW_END: u64 = 0xfec0_0000;

/// Windows of bridges are of so many bytes or a multiple of it.
const GRANULE: u64 = 1 << 20;
/// Alignment of the ranges above 4 GiB that are routed to a root bus, in bytes.
const ROUTE_GRANULE: u64 = 16 << 20;
const FOUR_GIB: u64 = 4 << 30;
/// Most ranges that are taken on one bus.
const MAX_TAKEN: usize = 4096;
/// A tree is not deeper than its buses are many.
const MAX_DEPTH: usize = 256;

/// Most ranges in the loader's map that are heeded.
const MAX_KNOWN: usize = 256;

/// Addresses that PCI may have, as far as the loader's map of memory tells.
#[derive(Clone, Debug, Default)]
pub struct Room {
    /// From the end of memory below 4 GiB to the interrupt controllers.
    low: Option<Range>,
    /// From the end of all memory to the last address that the CPU has.
    high: Option<Range>,
    /// What belongs to somebody else.
    taken: Vec<Range, MAX_KNOWN>,
}

impl Room {
    /// From the loader's map, what is known to be taken beyond it, and the CPU's physical address bits. There is none where the map has
    /// more entries than any machine's.
    #[must_use]
    pub fn new(
        map: impl Iterator<Item = MemoryMapEntry>,
        others: impl Iterator<Item = Range>,
        address_bits: u8,
    ) -> Self {
        let mut room = Self::default();
        let (mut low_start, mut high_start) = (GRANULE, FOUR_GIB);
        for entry in map {
            let range = Range { start: entry.address, end: entry.address.saturating_add(entry.len) };
            if entry.kind == TYPE_RAM && range.start < FOUR_GIB {
                low_start = low_start.max(range.end);
            }
            if entry.kind == TYPE_RAM {
                high_start = high_start.max(range.end);
            }
            if room.taken.push(range).is_err() {
                return Self::default();
            }
        }
        for range in others {
            if room.taken.push(range).is_err() {
                return Self::default();
            }
        }
        let high_end = 1u64.checked_shl(address_bits.into()).unwrap_or(0);
        room.low = Some(Range { start: low_start, end: LOW_END }).filter(|range| !range.is_empty());
        room.high = Some(Range { start: high_start, end: high_end }).filter(|range| !range.is_empty());
        room
    }
}

/// The windows of a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Window {
    /// Below 4 GiB.
    Memory,
    /// For prefetchable BARs, perhaps above 4 GiB.
    Prefetchable,
}

impl Window {
    const fn register(self) -> u16 {
        match self {
            Self::Memory => 0x20,
            Self::Prefetchable => 0x24,
        }
    }

    /// Where it is, if it is open. One at 0 is none.
    fn range(self, access: &impl ConfigAccess, bridge: &Function) -> Option<Range> {
        let low = access.read(bridge.address, self.register());
        let (mut start, mut last) = (u64::from(low & 0xfff0) << 16, u64::from(low & 0xfff0_0000) | 0xf_ffff);
        if self.is_wide(low) {
            start |= u64::from(access.read(bridge.address, 0x28)) << 32;
            last |= u64::from(access.read(bridge.address, 0x2c)) << 32;
        }
        (start != 0 && start <= last).then_some(Range { start, end: last.saturating_add(1) })
    }

    fn is_wide(self, low: u32) -> bool {
        self == Self::Prefetchable && low & 0xf == 1
    }

    /// Opens it at whole granules. False if the bridge has no such window there.
    fn open(self, access: &impl ConfigAccess, bridge: &Function, range: Range) -> bool {
        let last = range.end - 1;
        let low = (range.start >> 16) as u32 & 0xfff0 | last as u32 & 0xfff0_0000;
        if self.is_wide(access.read(bridge.address, self.register())) {
            access.write(bridge.address, 0x28, (range.start >> 32) as u32);
            access.write(bridge.address, 0x2c, (last >> 32) as u32);
        }
        access.write(bridge.address, self.register(), low);
        self.range(access, bridge) == Some(range)
    }
}

/// A search for a place.
struct Search<'a, A> {
    access: &'a A,
    functions: &'a [Function],
    room: &'a Room,
    window: Window,
    /// The BAR, or the window above it, has 64 bits.
    wide: bool,
}

/// Gives memory BAR `index` of `function` an address, and opens windows in the bridges above that have none. Memory decoding of the function
/// is off meanwhile.
///
/// # Errors
/// [`Error::NoRoom`], and those of a BAR that is none.
pub(crate) fn assign(
    access: &impl ConfigAccess,
    functions: &[Function],
    room: &Room,
    function: &Function,
    index: u8,
) -> Result<MemoryBar, Error> {
    let (bar, wide) = function.sized_bar(access, index)?;
    let windows: &[Window] = match bar.prefetchable {
        true => &[Window::Prefetchable, Window::Memory],
        false => &[Window::Memory],
    };
    let place = windows.iter().find_map(|window| {
        let search = Search { access, functions, room, window: *window, wide };
        search.on_bus(function.address.segment(), function.address.bus(), bar.len, None, MAX_DEPTH)
    });
    let address = place.ok_or(Error::NoRoom(index))?;
    function.without_decoding(access, || {
        let at = FIRST_BAR + u16::from(index) * 4;
        access.write(function.address, at, address as u32);
        if wide {
            access.write(function.address, at + 4, (address >> 32) as u32);
        }
    });
    function
        .memory_bar(access, index)
        .ok()
        .filter(|found| found.address == address)
        .ok_or(Error::NoRoom(index))
}

impl<A: ConfigAccess> Search<'_, A> {
    /// Returns a place for `len` bytes, a power of two, on a bus: for a BAR, or for the window of
    /// `moving`, a bridge on this bus whose present window is empty.
    fn on_bus(
        &self,
        segment: u16,
        bus: u8,
        len: u64,
        moving: Option<PciAddress>,
        depth: usize,
    ) -> Option<u64> {
        let above = bridges::above(self.functions, PciAddress::new(segment, bus, 0, 0));
        let Some(bridge) = above.and_then(|index| self.functions.get(index)) else {
            return self.on_root_bus((segment, bus), len, moving);
        };
        if let Some(window) = self.window.range(self.access, bridge) {
            let own =
                |function: &&Function| function.address.segment() == segment && function.address.bus() == bus;
            let taken = self.taken(self.functions.iter().filter(own), moving)?;
            let found = gap(window, len, &taken);
            // One that nobody has anything in, as firmware gives to slots that are empty, may become a larger one.
            if found.is_some() || taken.iter().any(|range| range.overlaps(window)) {
                return found;
            }
        }
        let len = len.max(GRANULE);
        let start =
            self.on_bus(segment, bridge.address.bus(), len, Some(bridge.address), depth.checked_sub(1)?)?;
        let range = Range { start, end: start.checked_add(len)? };
        self.window.open(self.access, bridge, range).then_some(start)
    }

    /// A place for a BAR on a root bus itself, or for the window of `moving`.
    ///
    /// Servers route ranges of addresses to each root bus. Addresses between those that the root
    /// bus has already are surely its own, so they come first. Addresses next to its own above 4 GiB
    /// follow if there are several root buses ([`Search::beside`]). After them come, below 4 GiB,
    /// those from its last one to the first one of the next root bus, then all but those between
    /// the addresses of other root buses.
    fn on_root_bus(&self, root: (u16, u8), len: u64, moving: Option<PciAddress>) -> Option<u64> {
        let mut taken = self.taken(self.functions.iter(), moving)?;
        taken.extend_from_slice(&self.room.taken).ok()?;
        // A bridge's memory window is below 4 GiB.
        let high =
            self.room.high.filter(|_| self.wide && (moving.is_none() || self.window == Window::Prefetchable));
        let rooms = || [self.room.low, high].into_iter().flatten();
        let own = rooms().find_map(|room| gap(self.hull(root, room)?, len, &taken));
        own.or_else(|| {
            let mut others = Vec::<Range, MAX_TAKEN>::new();
            for other in self.roots().filter(|other| *other != root) {
                let hulls = rooms().filter_map(|room| self.hull(other, room));
                hulls.into_iter().try_for_each(|hull| others.push(hull)).ok()?;
            }
            let several = high.filter(|_| !others.is_empty());
            let beside =
                several.and_then(|room| Self::beside(room, self.hull(root, room)?, &others, len, &taken));
            let behind = || {
                let room = self.room.low?;
                gap(above(room, self.hull(root, room)?, &others), len, &taken)
            };
            beside.or_else(behind).or_else(|| {
                taken.extend_from_slice(&others).ok()?;
                rooms().find_map(|room| gap(room, len, &taken))
            })
        })
    }

    /// Returns the place next to `own`, the addresses that a root bus uses above 4 GiB, on the side
    /// to which firmware fills what it routes there.
    ///
    /// EDK2 fills it upwards (`PciHostBridgeDxe`), firmware of Dell's and Supermicro's servers
    /// downwards from its end. Addresses in use are nearer to a multiple of [`ROUTE_GRANULE`] on
    /// the side where firmware began.
    fn beside(room: Range, own: Range, others: &[Range], len: u64, taken: &[Range]) -> Option<u64> {
        let used = || others.iter().filter(|other| room.start <= other.start).chain([&own]);
        let from_start: u64 = used().map(|range| range.start % ROUTE_GRANULE).sum();
        let to_end: u64 = used().map(|range| range.end.wrapping_neg() % ROUTE_GRANULE).sum();
        if from_start <= to_end {
            return gap(above(room, own, others), len, taken);
        }
        let start = others.iter().map(|other| other.end).filter(|end| *end <= own.start).max();
        last_gap(Range { start: start.unwrap_or(0).max(room.start), end: own.start }, len, taken)
    }

    /// The buses that no bridge leads to.
    fn roots(&self) -> impl Iterator<Item = (u16, u8)> {
        let bus = |function: &Function| (function.address.segment(), function.address.bus());
        let is_new = move |index: usize, bus_of: (u16, u8)| {
            !self.functions.iter().take(index).any(|function| bus(function) == bus_of)
        };
        let indexed = self.functions.iter().enumerate();
        let first =
            indexed.filter_map(move |(index, function)| Some(bus(function)).filter(|at| is_new(index, *at)));
        first.filter(|(segment, bus)| {
            bridges::above(self.functions, PciAddress::new(*segment, *bus, 0, 0)).is_none()
        })
    }

    /// The addresses of `room` from the first to the last one that functions below `root` have.
    fn hull(&self, root: (u16, u8), room: Range) -> Option<Range> {
        // Each root bus has the buses from its own to the next root bus.
        let (segment, first) = root;
        let next =
            self.roots().filter(|other| other.0 == segment && other.1 > first).map(|other| other.1).min();
        let below = |function: &&Function| {
            let address = function.address;
            address.segment() == segment
                && address.bus() >= first
                && next.is_none_or(|next| address.bus() < next)
        };
        let taken = self.taken(self.functions.iter().filter(below), None)?;
        let inside = taken.iter().filter(|range| room.start <= range.start && range.end <= room.end);
        let start = inside.clone().map(|range| range.start).min()?;
        inside.map(|range| range.end).max().map(|end| Range { start, end })
    }

    /// Returns the BARs and windows of `functions`, without the window of `moving`.
    fn taken<'f>(
        &self,
        functions: impl Iterator<Item = &'f Function>,
        moving: Option<PciAddress>,
    ) -> Option<Vec<Range, MAX_TAKEN>> {
        let mut taken = Vec::new();
        for function in functions.filter(|function| function.class != HOST_BRIDGE) {
            for index in 0..6 {
                if let Ok(bar) = function.memory_bar(self.access, index) {
                    taken.push(Range { start: bar.address, end: bar.address + bar.len }).ok()?;
                }
            }
            if function.secondary_bus.is_some() {
                let stays = |window: &Window| *window != self.window || moving != Some(function.address);
                for window in [Window::Memory, Window::Prefetchable].into_iter().filter(stays) {
                    if let Some(range) = window.range(self.access, function) {
                        taken.push(range).ok()?;
                    }
                }
            }
        }
        Some(taken)
    }
}

/// Returns the part of `room` after `own` and before the next of `others`.
fn above(room: Range, own: Range, others: &[Range]) -> Range {
    let next = others.iter().map(|other| other.start).filter(|next| *next >= own.end).min();
    Range { start: own.end, end: next.map_or(room.end, |next| next.min(room.end)) }
}

/// The lowest place of `len` bytes, a power of two, at a multiple of it, in `room` and apart from what is `taken`.
fn gap(room: Range, len: u64, taken: &[Range]) -> Option<u64> {
    let mut start = room.start.max(len).checked_next_multiple_of(len)?;
    // Each step goes beyond one of those that are taken.
    for _ in 0..=taken.len() {
        let end = start.checked_add(len).filter(|end| *end <= room.end)?;
        let Some(met) = taken.iter().find(|range| range.start < end && start < range.end) else {
            return Some(start);
        };
        start = met.end.checked_next_multiple_of(len)?;
    }
    None
}

/// Returns the highest such place.
fn last_gap(room: Range, len: u64, taken: &[Range]) -> Option<u64> {
    let mut end = room.end;
    // Each step goes below one of those that are taken.
    for _ in 0..=taken.len() {
        let start = end.checked_sub(len)? & !(len - 1);
        if start < room.start.max(len) {
            return None;
        }
        let Some(met) = taken.iter().find(|range| range.start < start + len && start < range.end) else {
            return Some(start);
        };
        end = met.start;
    }
    None
}

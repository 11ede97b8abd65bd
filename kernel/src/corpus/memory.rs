//! Memory maps.

use super::{Machine, hex, machines};
use crate::memory_map::{MemoryMap, Range};
use crate::paging::{Access, Caching, PageTables, TABLES, Table, mapped_ram, ram_end};
use crate::pvh::{MemoryMapEntry, TYPE_RAM};
use std::vec::Vec;

const TEXT: &str = include_str!("memory.txt");
const PAGE: u64 = 4096;
const FOUR_GIB: u64 = 4 << 30;
/// The image is linked at 2 MiB; the largest are shorter.
const IMAGE: Range = Range { start: 2 << 20, end: 16 << 20 };
/// Tables that registers of a few HCAs, of interrupt controllers and IOMMUs need.
const WINDOW_TABLES: usize = 48;

/// Returns the memory map of the machine with this name.
pub(crate) fn of(name: &str) -> Vec<MemoryMapEntry> {
    entries(machines(TEXT).iter().find(|machine| machine.name == name).expect("a memory map"))
}

fn entries(machine: &Machine) -> Vec<MemoryMapEntry> {
    let entry = |words: &[&str]| {
        let (first, last) = (hex(words[0]), hex(words[1]));
        let kind = match words[2] {
            "usable" => TYPE_RAM,
            "acpi" => 3,
            "nvs" => 4,
            _ => 2,
        };
        MemoryMapEntry { address: first, len: last - first + 1, kind }
    };
    machine.all("map").map(entry).collect()
}

#[test]
fn memory_of_every_machine_is_what_linux_finds() {
    let machines = machines(TEXT);
    assert!(machines.len() >= 14);
    for machine in &machines {
        let (entries, name) = (entries(machine), &machine.name);
        let map = MemoryMap::from_entries(entries.iter().copied()).expect("few ranges");
        let end = |limit: u64| map.ranges().iter().map(|range| range.end).filter(|end| *end <= limit).max();
        let pages = machine.all("pages").next().expect("the ends");
        assert_eq!(end(FOUR_GIB), Some(hex(pages[0]) * PAGE), "{name}");
        assert_eq!(end(u64::MAX), Some(hex(pages[1]) * PAGE), "{name}");
        for other in entries.iter().filter(|entry| entry.kind != TYPE_RAM) {
            let other = Range { start: other.address, end: other.address + other.len };
            assert!(map.ranges().iter().all(|range| !range.overlaps(other)), "{name}: {other:?}");
        }
        let mut nodes: Vec<Range> =
            machine.all("node").map(|words| Range { start: hex(words[0]), end: hex(words[1]) + 1 }).collect();
        if let Some(first) = nodes.first_mut() {
            // Linux keeps page 0 for itself.
            first.start = 0;
            assert_eq!(map.ranges(), nodes, "{name}");
        }
        // All of these machines can boot the image.
        assert!(map.contains(IMAGE), "{name}");
    }
}

#[test]
fn page_tables_for_the_memory_of_every_machine_leave_some_for_windows() {
    for machine in &machines(TEXT) {
        let map = MemoryMap::from_entries(entries(machine).into_iter()).expect("few ranges");
        for huge in [false, true] {
            let name = std::format!("{}, huge pages: {huge}", machine.name);
            let mut pool = std::vec![Table::EMPTY; TABLES];
            let mut tables = PageTables::new(&mut pool, 0, huge).expect("a pool");
            let ram = mapped_ram(&map, IMAGE, huge).expect("few ranges");
            for range in ram.ranges() {
                let mapped =
                    tables.map(range.start, range.start, range.len(), Access::WRITE, Caching::WriteBack);
                mapped.unwrap_or_else(|error| panic!("{name}: {range:x?}: {error}"));
            }
            let used = tables.usage().0;
            assert!(used + WINDOW_TABLES <= TABLES, "{name}: {used}");
            // Pages at the bounds of usable memory.
            for range in map.ranges() {
                for page in [range.start, range.end - PAGE] {
                    let is_ram = page != 0 && page < ram_end(huge);
                    let found = tables.translate(page).map(|(address, ..)| address);
                    assert_eq!(found, is_ram.then_some(page), "{name}");
                }
                assert!(
                    range.end > ram_end(huge) || tables.translate(range.end).is_none(),
                    "{name}: {:#x}",
                    range.end
                );
            }
            assert_eq!(
                (tables.translate(IMAGE.start), tables.translate(IMAGE.end - 1)),
                (None, None),
                "{name}"
            );
        }
    }
}

#[test]
fn memory_for_devices_is_usable_on_every_machine() {
    for machine in &machines(TEXT) {
        let (entries, name) = (entries(machine), &machine.name);
        let map = MemoryMap::from_entries(entries.iter().copied()).expect("few ranges");
        let mut free = mapped_ram(&map, IMAGE, false).expect("few ranges");
        let mut taken = std::vec![IMAGE];
        // A heap, then as much as an adapter with large tables, until no GiB is left.
        for len in [64 << 20].into_iter().chain(core::iter::repeat(1 << 30)) {
            let Some(range) = free.take(len, 2 << 20, 1 << 20) else { break };
            assert!(
                map.contains(range) && range.len() == len && range.start.is_multiple_of(2 << 20),
                "{name}"
            );
            assert!(taken.iter().all(|other| !other.overlaps(range)), "{name}: {range:x?}");
            for entry in entries.iter().filter(|entry| entry.kind != TYPE_RAM) {
                let entry = Range { start: entry.address, end: entry.address + entry.len };
                assert!(!entry.overlaps(range), "{name}: {range:x?} and {entry:x?}");
            }
            taken.push(range);
        }
        // Most of what is mapped without 1 GiB pages.
        let gib = (taken.len() - 2) as u64;
        let mapped =
            map.ranges().iter().map(|range| range.end.min(ram_end(false)).saturating_sub(range.start));
        let mapped = mapped.sum::<u64>() >> 30;
        assert!(gib + 3 >= mapped && gib <= mapped, "{name}: {gib} of {mapped} GiB");
    }
}

//! Memory maps.

use super::{Machine, hex, machines};
use crate::memory_map::{MemoryMap, Range};
use crate::pvh::{MemoryMapEntry, TYPE_RAM};
use std::vec::Vec;

const TEXT: &str = include_str!("memory.txt");
const PAGE: u64 = 4096;
const FOUR_GIB: u64 = 4 << 30;

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
    assert!(machines.len() >= 4);
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
        // The image is linked at 2 MiB, and all of these machines can boot it.
        assert!(map.contains(Range { start: 2 << 20, end: 16 << 20 }), "{name}");
    }
}

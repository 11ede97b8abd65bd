//! PCI functions of real servers and desktops.

use super::{Bus, Device, all};
use crate::corpus::{Machine, PCI, hex, machines, memory};
use crate::memory_map::Range;
use crate::pci::Function;
use crate::pci::assign::{Room, assign};
use pci_types::PciAddress;
use std::collections::BTreeMap;
use std::vec::Vec;

/// Registers of a bridge's windows as words: closed, and the word that says so.
const CLOSED: [u32; 2] = [0x0000_fff0, 0x0001_fff1];

fn address(text: &str) -> PciAddress {
    let (bus, rest) = text.split_once(':').expect("a bus");
    let (device, function) = rest.split_once('.').expect("a function");
    PciAddress::new(0, hex(bus) as u8, hex(device) as u8, hex(function) as u8)
}

fn range(words: &[&str]) -> Range {
    Range { start: hex(words[0]), end: hex(words[1]) + 1 }
}

fn contains(outer: &Range, inner: Range) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

/// A bridge with closed windows.
fn bridge(words: &[&str]) -> Device {
    let mut device = Device::new(0, 0x0604_0000);
    let secondary = hex(words[0]) as u32;
    let subordinate = words.get(1).map_or(secondary, |word| hex(word) as u32);
    device.space[3] = 0x0081_0000;
    device.space[6] = subordinate << 16 | secondary << 8;
    // The words of its windows, which the fake takes for BARs.
    device.bar_masks = [0, 0, u32::MAX, 0, 0xfff0_fff0, 0xfff0_fff0];
    device.space[8..10].copy_from_slice(&CLOSED);
    device
}

/// Opens the window of a `window` line.
fn open(device: &mut Device, words: &[&str]) {
    let range = range(&words[1..]);
    let word = (range.start >> 16) as u32 & 0xfff0 | (range.end - 1) as u32 & 0xfff0_0000;
    match (words[0], words.get(3)) {
        ("memory", _) => device.space[8] = word,
        (_, Some(_)) => device.space[9] = word,
        _ => {
            device.space[9] = word | 0x0001_0001;
            device.space[10] = (range.start >> 32) as u32;
            device.space[11] = ((range.end - 1) >> 32) as u32;
        }
    }
}

/// Adds the BAR of a `bar` line.
fn add_bar(device: &mut Device, words: &[&str]) {
    let (index, range) = ((hex(words[0]) as usize - 0x10) / 4, range(&words[1..]));
    let mask = !(range.len() - 1);
    let wide = words[3].starts_with("64");
    let flags = if words[3].ends_with('p') { 8 } else { 0 } | if wide { 4 } else { 0 };
    device.bar_masks[index] = mask as u32;
    device.space[4 + index] = range.start as u32 | flags;
    if wide {
        device.bar_masks[index + 1] = (mask >> 32) as u32;
        device.space[5 + index] = (range.start >> 32) as u32;
    }
}

/// The machine's functions, each with a header of several functions.
fn bus(machine: &Machine) -> Bus {
    let mut functions: Vec<(PciAddress, Device)> = Vec::new();
    for line in &machine.lines {
        match line[0] {
            "function" | "bridge" => {
                let (vendor, number) = line[2].split_once(':').expect("numbers");
                let mut device = match line[0] {
                    "bridge" => bridge(&line[3..]),
                    _ => Device::new(0, (hex(line[3]) as u32) << 16),
                };
                device.space[0] = hex(number) as u32 * 0x1_0000 + hex(vendor) as u32;
                device.space[3] |= 0x0080_0000;
                functions.push((address(line[1]), device));
            }
            "window" => open(&mut functions.last_mut().expect("a bridge").1, &line[1..]),
            "bar" => add_bar(&mut functions.last_mut().expect("a function").1, &line[1..]),
            _ => {}
        }
    }
    let bus = Bus::default();
    functions.into_iter().for_each(|(address, device)| bus.add(address, device));
    bus
}

/// Returns the listed BARs: function, index and addresses.
fn bars(machine: &Machine) -> Vec<(PciAddress, u8, Range)> {
    let mut current = None;
    let mut bars = Vec::new();
    for line in &machine.lines {
        match line[0] {
            "function" | "bridge" => current = Some(address(line[1])),
            "bar" => {
                let index = (hex(line[1]) as u8 - 0x10) / 4;
                bars.push((current.expect("a function"), index, range(&line[2..])));
            }
            _ => {}
        }
    }
    bars
}

/// Returns a bridge's open windows.
fn windows(device: &Device) -> Vec<Range> {
    let window = |word: u32, upper: [u32; 2]| {
        let (base, limit) = (u64::from(word & 0xfff0) << 16, u64::from(word | 0xf_ffff));
        let [base_above, limit_above] = if word & 0xf == 1 { upper } else { [0, 0] };
        let range = Range {
            start: base | u64::from(base_above) << 32,
            end: (limit | u64::from(limit_above) << 32) + 1,
        };
        (range.start < range.end).then_some(range)
    };
    let upper = [device.space[10], device.space[11]];
    [window(device.space[8], [0, 0]), window(device.space[9], upper)].into_iter().flatten().collect()
}

/// Returns the bridges above a bus, nearest first, and its root bus.
fn path(machine: &Machine, mut bus: u8) -> (Vec<PciAddress>, u8) {
    let mut bridges = Vec::new();
    while let Some(words) = machine.all("bridge").find(|words| hex(words[2]) == u64::from(bus)) {
        bridges.push(address(words[0]));
        bus = address(words[0]).bus();
    }
    (bridges, bus)
}

/// Asserts that a BAR is routed and enclosed, and that nothing else uses its addresses.
fn check(machine: &Machine, bus: &Bus, at: PciAddress, index: u8, bar: Range) {
    let what = std::format!("{}: BAR{index} of {at} at {bar:x?}", machine.name);
    let (above, root) = path(machine, at.bus());
    let mut routes = machine.all("root").filter(|words| hex(words[0]) == u64::from(root));
    assert!(routes.any(|words| contains(&range(&words[1..]), bar)), "{what}: not routed to bus {root:#x}");
    for entry in memory::of(&machine.name) {
        let entry = Range { start: entry.address, end: entry.address + entry.len };
        let is_firmwares = bars(machine).contains(&(at, index, bar));
        assert!(is_firmwares || !bar.overlaps(entry), "{what}: {entry:x?} of the memory map");
    }
    assert!(machine.all("ecam").all(|words| !range(words).overlaps(bar)), "{what}: configuration space");
    for function in &all(bus) {
        let open = windows(&bus.device(function.address()));
        if above.contains(&function.address()) {
            assert!(open.iter().any(|window| contains(window, bar)), "{what}: windows {open:x?}");
        } else if function.is_bridge() && !path(machine, function.address().bus()).0.contains(&at) {
            assert!(!open.iter().any(|window| window.overlaps(bar)), "{what}: windows {open:x?}");
        }
        for other in (0..6).filter(|other| (function.address(), *other) != (at, index)) {
            if let Ok(other) = function.memory_bar(bus, other) {
                assert!(!other.range().overlaps(bar), "{what}: {:x?}", other.range());
            }
        }
    }
}

fn room(machine: &Machine) -> Room {
    let bits = machine.all("bits").next().expect("the width of addresses");
    let bits = bits[0].parse().expect("a number");
    Room::new(memory::of(&machine.name).into_iter(), machine.all("ecam").map(range), bits)
}

/// Gives a BAR an address and checks it.
fn place(machine: &Machine, bus: &Bus, at: PciAddress, index: u8) {
    let functions = all(bus);
    let function = functions.iter().find(|function| function.address() == at).expect("found");
    let bar = assign(bus, &functions, &room(machine), function, index);
    let bar = bar.unwrap_or_else(|error| panic!("{}: BAR{index} of {at}: {error}", machine.name));
    check(machine, bus, at, index, bar.range());
    // All others can still be reached.
    let is_there = |other: PciAddress, index: u8, bar: Range| {
        let function = functions.iter().find(|function| function.address() == other);
        let found = function.and_then(|function| function.memory_bar(bus, index).ok());
        found.is_some_and(|found| found.range() == bar)
    };
    let others = bars(machine).into_iter().filter(|(other, index, bar)| is_there(*other, *index, *bar));
    for (other, _, bar) in others {
        for bridge in path(machine, other.bus()).0 {
            let open = windows(&bus.device(bridge));
            let name = &machine.name;
            assert!(
                open.iter().any(|window| contains(window, bar)),
                "{name}: {other} behind {bridge}: {open:x?}"
            );
        }
    }
}

/// Returns an HCA without an address.
fn hca() -> Device {
    let mut card = Device::hca();
    card.space[5] = 0;
    card
}

/// Returns the bridges below which there is no other, each with whether there is a function.
fn slots(machine: &Machine) -> Vec<(PciAddress, u8, bool)> {
    let below = |bus: u64, kind: &'static str| {
        machine.all(kind).any(|words| u64::from(address(words[0]).bus()) == bus)
    };
    let bridges = machine.all("bridge").map(|words| (address(words[0]), hex(words[2])));
    let leaves = bridges.filter(|(_, bus)| !below(*bus, "bridge"));
    leaves.map(|(bridge, bus)| (bridge, bus as u8, below(bus, "function"))).collect()
}

#[test]
fn functions_and_bars_of_every_machine_are_found() {
    let machines = machines(PCI);
    assert!(machines.len() >= 9);
    for machine in &machines {
        let (bus, name) = (bus(machine), &machine.name);
        let found: BTreeMap<PciAddress, Function> =
            all(&bus).into_iter().map(|function| (function.address(), function)).collect();
        let listed = machine.all("function").chain(machine.all("bridge")).count();
        assert_eq!(found.len(), listed, "{name}");
        for (at, index, range) in bars(machine) {
            let bar = found[&at].memory_bar(&bus, index);
            assert_eq!(bar.map(|bar| bar.range()), Ok(range), "{name}: BAR{index} of {at}");
            // As firmware left it: windows enclose it, and nothing else is there.
            check(machine, &bus, at, index, range);
        }
    }
}

#[test]
fn a_bar_that_lost_its_address_gets_one_that_its_root_bus_routes() {
    for machine in &machines(PCI) {
        for (at, index, _) in bars(machine) {
            let bus = bus(machine);
            let mut device = bus.device(at);
            let word = 4 + usize::from(index);
            if device.space[word] & 4 != 0 {
                device.space[word + 1] = 0;
            }
            device.space[word] &= 0xf;
            bus.add(at, device);
            place(machine, &bus, at, index);
        }
    }
}

#[test]
fn a_card_in_an_empty_slot_gets_an_address_that_its_root_bus_routes() {
    let mut empty = 0;
    for machine in &machines(PCI) {
        for (_, slot, _) in slots(machine).into_iter().filter(|(_, _, has_function)| !has_function) {
            let bus = bus(machine);
            let at = PciAddress::new(0, slot, 0, 0);
            bus.add(at, hca());
            place(machine, &bus, at, 0);
            empty += 1;
        }
    }
    assert!(empty >= 10, "{empty}");
}

#[test]
fn a_card_that_firmware_skipped_gets_an_address_that_its_root_bus_routes() {
    let mut skipped = 0;
    for machine in &machines(PCI) {
        for (bridge, slot, _) in slots(machine) {
            // Other functions show what a root bus decodes above 4 GiB if there are several.
            let root = path(machine, slot).1;
            let others = machine.all("root").any(|words| hex(words[0]) != u64::from(root));
            let is_shown = bars(machine).iter().any(|(at, _, bar)| {
                at.bus() != slot && path(machine, at.bus()).1 == root && bar.start >= 4 << 30
            });
            if others && !is_shown {
                continue;
            }
            let bus = bus(machine);
            bus.0.borrow_mut().retain(|address, _| address.bus() != slot);
            let mut closed = bus.device(bridge);
            closed.space[8..12].copy_from_slice(&[CLOSED[0], CLOSED[1], 0, 0]);
            bus.add(bridge, closed);
            let at = PciAddress::new(0, slot, 0, 0);
            bus.add(at, hca());
            place(machine, &bus, at, 0);
            skipped += 1;
        }
    }
    assert!(skipped >= 40, "{skipped}");
}

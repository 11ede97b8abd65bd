//! PCI functions of real servers.

use super::{Bus, Device, all};
use crate::corpus::{Machine, PCI, hex, machines};
use crate::memory_map::Range;
use crate::pci::assign::{Room, assign};
use crate::pvh::{MemoryMapEntry, TYPE_RAM};
use pci_types::PciAddress;
use std::vec::Vec;

fn address(text: &str) -> PciAddress {
    let (bus, rest) = text.split_once(':').expect("a bus");
    let (device, function) = rest.split_once('.').expect("a function");
    PciAddress::new(0, hex(bus) as u8, hex(device) as u8, hex(function) as u8)
}

fn range(words: &[&str]) -> Range {
    Range { start: hex(words[0]), end: hex(words[1]) + 1 }
}

/// The machine's functions, each with a header of several functions.
fn bus(machine: &Machine) -> Bus {
    let mut functions: Vec<(PciAddress, Device)> = Vec::new();
    for line in &machine.lines {
        let windows =
            |range: Range| (range.start >> 16) as u32 & 0xfff0 | (range.end - 1) as u32 & 0xfff0_0000;
        match line[0] {
            "function" | "bridge" => {
                let (vendor, device) = line[2].split_once(':').expect("numbers");
                let id = hex(device) as u32 * 0x1_0000 + hex(vendor) as u32;
                let is_bridge = line[0] == "bridge";
                let class = if is_bridge { 0x0604 } else { hex(line[3]) as u32 };
                let mut device = Device::new(id, class << 16);
                device.space[3] = if is_bridge { 0x0081_0000 } else { 0x0080_0000 };
                if is_bridge {
                    let below = hex(line[3]) as u32;
                    device.space[6] = below << 16 | below << 8;
                    // The words of its windows, which the fake takes for BARs.
                    device.bar_masks = [0, 0, u32::MAX, 0, 0xfff0_fff0, 0xfff0_fff0];
                    device.space[8] = 0x0000_fff0;
                    device.space[9] = 0x0001_fff1;
                }
                functions.push((address(line[1]), device));
            }
            "window" => {
                let space = &mut functions.last_mut().expect("a bridge").1.space;
                match line[1] {
                    "memory" => space[8] = windows(range(&line[2..])),
                    _ => space[9] = windows(range(&line[2..])) | 0x0001_0001,
                }
            }
            "bar" => {
                let device = &mut functions.last_mut().expect("a function").1;
                let (index, range) = ((hex(line[1]) as usize - 0x10) / 4, range(&line[2..]));
                let flags = if line[4].ends_with('p') { 8 } else { 0 };
                let wide = line[4].starts_with("64");
                device.bar_masks[index] = !(range.len() as u32 - 1);
                device.space[4 + index] = range.start as u32 | flags | if wide { 4 } else { 0 };
                if wide {
                    device.bar_masks[index + 1] = u32::MAX;
                }
            }
            _ => {}
        }
    }
    let bus = Bus::default();
    functions.into_iter().for_each(|(address, device)| bus.add(address, device));
    bus
}

#[test]
fn functions_and_bars_of_every_machine_are_found() {
    for machine in &machines(PCI) {
        let (bus, name) = (bus(machine), &machine.name);
        let found = all(&bus);
        let listed = machine.all("function").chain(machine.all("bridge")).count();
        assert_eq!(found.len(), listed, "{name}");
        let mut current = None;
        for line in &machine.lines {
            match line[0] {
                "function" | "bridge" => current = Some(address(line[1])),
                "bar" => {
                    let function = found.iter().find(|function| Some(function.address()) == current);
                    let index = (hex(line[1]) as u8 - 0x10) / 4;
                    let bar = function.expect("found").memory_bar(&bus, index).expect("a BAR");
                    let range = range(&line[2..]);
                    assert_eq!((bar.address(), bar.bytes()), (range.start, range.len()), "{name}: {line:?}");
                }
                _ => {}
            }
        }
    }
}

#[test]
fn a_card_without_an_address_gets_one_that_its_root_bus_routes() {
    for machine in &machines(PCI) {
        let bus = bus(machine);
        // A slot that firmware left empty: its bridge has no window.
        let empty = machine.all("bridge").filter(|bridge| {
            let below = hex(bridge[2]) as u8;
            machine.all("function").all(|function| address(function[0]).bus() != below)
        });
        let slots: Vec<u8> = empty.map(|bridge| hex(bridge[2]) as u8).collect();
        assert!(!slots.is_empty());
        for slot in slots {
            let mut card = Device::hca();
            card.space[5] = 0;
            let at = PciAddress::new(0, slot, 0, 0);
            bus.add(at, card);
            let functions = all(&bus);
            let ram = MemoryMapEntry { address: 0, len: 0x7800_0000, kind: TYPE_RAM };
            let high = MemoryMapEntry { address: 4 << 30, len: 60 << 30, kind: TYPE_RAM };
            let ecam = machine.all("ecam").map(range);
            let room = Room::new([ram, high].into_iter(), ecam, 48);
            let function = functions.iter().find(|function| function.address() == at).expect("found");
            let bar = assign(&bus, &functions, &room, function, 0).expect("a place");
            let place = Range { start: bar.address(), end: bar.address() + bar.bytes() };
            let routed = machine
                .all("root")
                .map(|words| range(&words[1..]))
                .any(|root| root.start <= place.start && place.end <= root.end);
            assert!(routed, "{}: bus {slot:#x}: {place:x?}", machine.name);
        }
    }
}

//! Bus numbers and slots, on a machine whose accesses find their way by what its bridges say.

use super::{Device, SEGMENT_0, at};
use crate::pci::*;
use pci_types::PciAddress;
use std::cell::RefCell;
use std::string::{String, ToString};
use std::vec::Vec;

/// PCI Express of a port, at 0x60.
const CAPABILITY: usize = 0x60 / 4;
const LINK: usize = CAPABILITY + 4;
const SLOT_CAPABILITIES: usize = CAPABILITY + 5;
const SLOT: usize = CAPABILITY + 6;

/// A function and, if it is a bridge, what is below.
struct Node {
    device: u8,
    space: Device,
    /// Time from power (or from the link's being enabled) to the link's being up; none comes up where there is none.
    link_nanos: Option<u64>,
    /// When it got power.
    powered_at: u64,
    /// The status that a command ends with.
    after_command: u32,
    below: Vec<Node>,
}

impl Node {
    fn hca() -> Self {
        Self::of(Device::hca())
    }

    fn of(space: Device) -> Self {
        Self { device: 0, space, link_nanos: None, powered_at: 0, after_command: 1 << 20, below: Vec::new() }
    }

    /// A bridge with these primary, secondary and subordinate bus numbers.
    fn bridge([primary, secondary, last]: [u32; 3], below: Vec<Node>) -> Self {
        let mut space = Device::new(0x000c_1b36, 0x0604_0000);
        space.space[3] = 0x0001_0000;
        // The register of bus numbers is where others have BAR 2.
        space.bar_masks[2] = u32::MAX;
        space.space[6] = primary | secondary << 8 | last << 16;
        Self { below, ..Self::of(space) }
    }

    /// The same with a slot of its own that says this of itself and of its link.
    fn slot(numbers: [u32; 3], capabilities: u32, slot: u32, link: u32, below: Vec<Node>) -> Self {
        let mut port = Self::bridge(numbers, below);
        let words = &mut port.space.space;
        words[0x34 / 4] = 0x60;
        // A root port with a slot, whose link reports that it is up.
        words[CAPABILITY] = 0x0142_0010;
        words[CAPABILITY + 3] = 1 << 20;
        (words[LINK], words[SLOT_CAPABILITIES], words[SLOT]) = (link, capabilities | 7 << 19, slot);
        port.link_nanos = Some(300_000_000);
        port
    }

    fn at(self, device: u8) -> Self {
        Self { device, ..self }
    }

    fn has_slot(&self) -> bool {
        self.space.space[CAPABILITY] == 0x0142_0010
    }

    /// Whether accesses get through.
    fn is_up(&self) -> bool {
        !self.has_slot() || self.space.space[LINK] & 1 << 29 != 0
    }

    /// The link as it is now.
    fn settle(&mut self, now: u64) {
        let words = &mut self.space.space;
        if words[CAPABILITY] != 0x0142_0010 {
            return;
        }
        let on = words[SLOT] & 1 << 22 != 0 && words[SLOT] & 1 << 10 == 0 && words[LINK] & 1 << 4 == 0;
        let up = on && self.link_nanos.is_some_and(|nanos| now - self.powered_at >= nanos);
        words[LINK] = words[LINK] & !(1 << 29) | u32::from(up) << 29;
    }
}

/// Root bus 0 with these on it, and the time.
struct Machine(RefCell<(Vec<Node>, u64)>);

impl Machine {
    fn new(nodes: Vec<Node>) -> Self {
        Self(RefCell::new((nodes, 0)))
    }

    /// Lets `with` at a function, if there is a way to it.
    fn with<R>(&self, address: PciAddress, with: impl FnOnce(&mut Node, u64) -> R) -> Option<R> {
        let (nodes, now) = &mut *self.0.borrow_mut();
        find(nodes, 0, address, *now).map(|node| with(node, *now))
    }

    fn numbers(&self, address: PciAddress) -> Option<[u8; 3]> {
        let word = self.with(address, |node, _| node.space.space[6])?;
        Some([word as u8, (word >> 8) as u8, (word >> 16) as u8])
    }

    /// The functions found, what was told, and how long it took.
    fn enumerate(&self, numbers: Numbers) -> (Vec<PciAddress>, Vec<String>, u64) {
        let mut told = Vec::new();
        let found = functions(
            self,
            [SEGMENT_0].into_iter(),
            numbers,
            |nanos| self.0.borrow_mut().1 += nanos,
            |done| told.push(done.to_string()),
        );
        (found.iter().map(|function| function.address).collect(), told, self.0.borrow().1)
    }
}

/// The way of an access: down every bridge whose range has the bus.
fn find(nodes: &mut [Node], bus: u8, address: PciAddress, now: u64) -> Option<&mut Node> {
    if address.bus() == bus {
        let node =
            nodes.iter_mut().find(|node| node.device == address.device() && address.function() == 0)?;
        node.settle(now);
        return Some(node);
    }
    nodes.iter_mut().find_map(|node| {
        node.settle(now);
        let [_, secondary, last, _] = node.space.space[6].to_le_bytes();
        let bridge = node.space.space[3] >> 16 == 1;
        let leads = bridge && secondary > bus && (secondary..=last).contains(&address.bus()) && node.is_up();
        if leads { find(&mut node.below, secondary, address, now) } else { None }
    })
}

impl ConfigRead for Machine {
    fn read(&self, address: PciAddress, offset: u16) -> u32 {
        self.with(address, |node, _| node.space.space[usize::from(offset / 4)]).unwrap_or(u32::MAX)
    }
}

impl ConfigAccess for Machine {
    fn write(&self, address: PciAddress, offset: u16, value: u32) {
        self.with(address, |node, now| {
            let has_slot = node.has_slot();
            let old = node.space.space[usize::from(offset / 4)];
            let word = &mut node.space.space[usize::from(offset / 4)];
            match usize::from(offset / 4) {
                SLOT if has_slot => {
                    // The status's ones clear, and a command ends at once.
                    *word = value & 0xffff | old & 0xffff_0000 & !(value & 0x001f_0000);
                    if (old ^ value) & 0xffff != 0 {
                        *word |= node.after_command;
                    }
                    if old & 1 << 10 != 0 && value & 1 << 10 == 0 {
                        node.powered_at = now;
                    }
                }
                LINK if has_slot => {
                    *word = value & 0xffff | old & 0xffff_0000;
                    if old & 1 << 4 != 0 && value & 1 << 4 == 0 {
                        node.powered_at = now;
                    }
                }
                _ => *word = value,
            }
        });
    }
}

#[test]
fn bridges_without_bus_numbers_get_the_next_ones() {
    let switch = |numbers: [[u32; 3]; 3]| {
        let down = |numbers| Node::bridge(numbers, std::vec![Node::hca()]);
        let [up, one, two] = numbers;
        Node::bridge(up, std::vec![down(one), down(two).at(1)])
    };
    // One that firmware numbered, a switch that it did not, one more that it numbered.
    let machine = Machine::new(std::vec![
        Node::bridge([0, 1, 2], std::vec![Node::hca()]).at(1),
        switch([[0; 3]; 3]).at(2),
        Node::bridge([0, 4, 4], std::vec![Node::hca()]).at(3),
    ]);
    let (found, told, took) = machine.enumerate(Numbers::Keep);
    assert_eq!(
        found,
        [at(0, 1, 0), at(0, 2, 0), at(3, 0, 0), at(3, 1, 0), at(0, 3, 0), at(1, 0, 0), at(4, 0, 0)],
        "the switch has room for itself only, between others"
    );
    assert_eq!(machine.numbers(at(0, 2, 0)), Some([0, 3, 3]));
    assert_eq!((told.len(), took), (3, 0));
    assert!(told[0].contains("00:02.0: a bridge without a bus number: bus 0x03 is below it"), "{told:?}");
    assert!(told[1].contains("03:00.0: ") && told[1].contains("none is free"), "{told:?}");

    // With new numbers for all there is room for each.
    let (found, told, _) = machine.enumerate(Numbers::Assign);
    assert_eq!(found.len(), 9, "{found:?}");
    assert!(told.iter().all(|line| !line.contains("none is free")), "{told:?}");
    for bridge in found.iter().filter(|address| machine.numbers(**address).is_some_and(|n| n[1] != 0)) {
        let [primary, secondary, last] = machine.numbers(*bridge).unwrap();
        assert!(primary == bridge.bus() && primary < secondary && secondary <= last, "{bridge}");
    }
    // What was found again is what is there: each is reached by one address.
    let (again, told, _) = machine.enumerate(Numbers::Keep);
    let sorted = |mut list: Vec<PciAddress>| {
        list.sort_unstable();
        list
    };
    assert_eq!((sorted(again), told), (sorted(found), Vec::new()));
}

#[test]
fn the_last_bus_and_the_next_root_bus_end_the_search() {
    let last = Buses { segment: 0, first: 0, last: 1 };
    let machine = Machine::new(std::vec![
        Node::bridge([0; 3], std::vec![Node::hca()]),
        Node::bridge([0; 3], std::vec![Node::hca()]).at(1),
    ]);
    let mut told = Vec::new();
    let found =
        functions(&machine, [last].into_iter(), Numbers::Keep, |_| {}, |done| told.push(done.to_string()));
    assert_eq!(found.len(), 3, "{told:?}");
    assert!(told[1].contains("none is free"), "{told:?}");
}

const POWER_CONTROLLER: u32 = 1 << 1 | 1 << 4;
const LATCH: u32 = 1 << 2;
const OFF: u32 = 1 << 10 | 0b11 << 8;
const CARD: u32 = 1 << 22;

fn one_slot(capabilities: u32, slot: u32, link: u32) -> Machine {
    Machine::new(std::vec![Node::slot([0, 1, 1], capabilities, slot, link, std::vec![Node::hca()]).at(3)])
}

#[test]
fn a_card_without_power_gets_it_and_is_waited_for() {
    let machine = one_slot(POWER_CONTROLLER, OFF | CARD, 0);
    let (found, told, took) = machine.enumerate(Numbers::Keep);
    assert_eq!(found, [at(0, 3, 0), at(1, 0, 0)]);
    assert_eq!(told, ["pci 0000:00:03.0: slot 7: its power was off: switched on"]);
    assert!((400_000_000..=500_000_000).contains(&took), "{took}: the link's time, and 100 ms");
    let control = machine.with(at(0, 3, 0), |node, _| node.space.space[SLOT]).unwrap();
    assert_eq!(control & 0x0700, 0b01 << 8, "power on, indicator on");
    // A second look finds nothing to do.
    assert_eq!(machine.enumerate(Numbers::Keep), (found, Vec::new(), took));
}

#[test]
fn an_empty_slot_is_left_alone() {
    let machine = one_slot(POWER_CONTROLLER, OFF, 0);
    assert_eq!(machine.enumerate(Numbers::Keep), (std::vec![at(0, 3, 0)], Vec::new(), 0));
    assert_eq!(machine.with(at(0, 3, 0), |node, _| node.space.space[SLOT]), Some(OFF));
    // There may be something all the same: some machines tell of cards by ACPI alone. So it gets a bus number where it has none.
    let machine = Machine::new(std::vec![Node::slot([0; 3], POWER_CONTROLLER, OFF, 0, Vec::new()).at(3)]);
    let (found, told, took) = machine.enumerate(Numbers::Keep);
    assert_eq!((found, told.len(), took), (std::vec![at(0, 3, 0)], 1, 0));
    assert_eq!(machine.numbers(at(0, 3, 0)), Some([0, 1, 1]));
}

#[test]
fn slots_that_must_not_be_switched_on_are_told() {
    for (slot, words) in
        [(OFF | CARD | 1 << 21, "the latch is open"), (OFF | CARD | 1 << 17, "power of its card")]
    {
        let machine = one_slot(POWER_CONTROLLER | LATCH, slot, 0);
        let (found, told, took) = machine.enumerate(Numbers::Keep);
        assert_eq!((found.len(), took), (1, 0));
        assert!(told.len() == 1 && told[0].contains(words), "{told:?}");
        assert_eq!(machine.with(at(0, 3, 0), |node, _| node.space.space[SLOT]), Some(slot));
    }
}

#[test]
fn links_that_are_disabled_or_late_or_never_come() {
    // Disabled; its power is on.
    let machine = one_slot(POWER_CONTROLLER, CARD, 1 << 4);
    let (found, told, took) = machine.enumerate(Numbers::Keep);
    assert_eq!(
        (found.len(), told[0].as_str()),
        (2, "pci 0000:00:03.0: slot 7: its link was disabled: enabled")
    );
    assert!((400_000_000..=500_000_000).contains(&took), "{took}");
    // Late.
    let (found, told, _) = one_slot(0, CARD, 0).enumerate(Numbers::Keep);
    assert_eq!((found.len(), told[0].as_str()), (2, "pci 0000:00:03.0: slot 7: its link came up late"));
    // Never: a second, then it is said.
    let machine = one_slot(0, CARD, 0);
    machine.with(at(0, 3, 0), |node, _| node.link_nanos = None);
    let (found, told, took) = machine.enumerate(Numbers::Keep);
    assert!(found.len() == 1 && told[0].contains("no link to it"), "{told:?}");
    assert_eq!(took, 1_000_000_000);
    // Power that fails when it is switched on.
    let machine = one_slot(POWER_CONTROLLER, OFF | CARD, 0);
    machine.with(at(0, 3, 0), |node, _| (node.link_nanos, node.after_command) = (None, 0x0012_0000));
    let (_, told, _) = machine.enumerate(Numbers::Keep);
    assert!(told[0].contains("power of its card failed"), "{told:?}");
}

#[test]
fn all_slots_together_have_ten_seconds() {
    let dead = |device| {
        let mut port = Node::slot([0; 3], POWER_CONTROLLER, OFF | CARD, 0, Vec::new()).at(device);
        (port.link_nanos, port.after_command) = (None, 0);
        port
    };
    let machine = Machine::new((0..32).map(dead).collect());
    let (found, told, took) = machine.enumerate(Numbers::Keep);
    // Each is said to have no link, and gets a bus number for what may be there.
    assert_eq!((found.len(), told.len()), (32, 64));
    assert!(took <= 10_000_000_000, "{took}");
}

#[test]
fn bays_without_a_link_are_waited_for_together() {
    let bay = |device, link_nanos| {
        let number = u32::from(device) + 1;
        let mut port = Node::slot([0, number, number], 0, CARD, 0, std::vec![Node::hca()]);
        port.link_nanos = link_nanos;
        port.at(device)
    };
    let bays = (0..16).map(|device| bay(device, (device == 15).then_some(300_000_000)));
    let (found, told, took) = Machine::new(bays.collect()).enumerate(Numbers::Keep);
    assert!(told.len() == 15 && told.iter().all(|line| line.contains("no link to it")), "{told:?}");
    assert_eq!((found.len(), found.last()), (17, Some(&at(16, 0, 0))), "and the card of the last one");
    assert!(took <= 1_200_000_000, "{took}");
}

#[test]
fn a_switch_in_a_slot_that_was_off_is_numbered() {
    let switch = Node::bridge([0; 3], std::vec![Node::bridge([0; 3], std::vec![Node::hca()]).at(4)]);
    let machine =
        Machine::new(std::vec![Node::slot([0, 1, 5], POWER_CONTROLLER, OFF | CARD, 0, std::vec![switch])]);
    let (found, told, _) = machine.enumerate(Numbers::Keep);
    assert_eq!(found, [at(0, 0, 0), at(1, 0, 0), at(2, 4, 0), at(3, 0, 0)]);
    assert_eq!(told.len(), 3, "{told:?}");
    assert_eq!(
        (machine.numbers(at(0, 0, 0)), machine.numbers(at(1, 0, 0))),
        (Some([0, 1, 5]), Some([1, 2, 3]))
    );
}

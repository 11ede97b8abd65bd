//! PCI on a fake machine.

mod assign;
mod corpus;
mod tree;

use super::*;
use crate::memory_map::Range;
use heapless::Vec;
use pci_types::PciAddress;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::string::ToString;
use std::vec::Vec as StdVec;

const HCA_ID: u32 = 0x1017_15b3;
const CLASS_INFINIBAND: u32 = 0x0207_0000;

/// A function whose BARs answer size masks and whose PCI Express capability (at 0x60) resets it.
#[derive(Clone)]
struct Device {
    space: [u32; 64],
    /// The bits of each BAR that can be written.
    bar_masks: [u32; 6],
    sized_while_decoding: bool,
    /// Reads of the vendor ID that fail after a reset.
    deaf_reads: u32,
    pending_reads: u32,
    resets: u32,
}

impl Device {
    fn new(id: u32, class: u32) -> Self {
        let mut space = [0; 64];
        space[0] = id;
        space[1] = 0x0010_0103;
        space[2] = class | 5;
        Device {
            space,
            bar_masks: [0; 6],
            sized_while_decoding: false,
            deaf_reads: 0,
            pending_reads: 0,
            resets: 0,
        }
    }

    /// A ConnectX-5 with its 32 MiB BAR above 4 GiB, PCI Express at 0x60, MSI-X at 0x9c.
    fn hca() -> Self {
        let mut device = Device::new(HCA_ID, CLASS_INFINIBAND);
        device.bar_masks[0] = 0xfe00_0000;
        device.bar_masks[1] = u32::MAX;
        device.space[4] = 0xc;
        device.space[5] = 0xc0;
        device.space[0x34 / 4] = 0x60;
        device.space[0x60 / 4] = 0x0002_9c10;
        device.space[0x64 / 4] = 1 << 28 | 2;
        device.space[0x68 / 4] = 0x5 << 12 | 0x1 << 5;
        device.space[0x70 / 4] = 0x1083 << 16;
        device.space[0x9c / 4] = 0x003f_0011;
        device.space[0xa0 / 4] = 0x2000;
        device.space[0xa4 / 4] = 0x3000;
        device
    }
}

impl Device {
    /// Command register and BARs are as after a reset.
    fn forget(&mut self) {
        self.space[1] &= 0xffff_0000;
        for (bar, mask) in self.space[4..10].iter_mut().zip(self.bar_masks) {
            *bar &= !mask;
        }
    }
}

#[derive(Default)]
struct Bus(RefCell<BTreeMap<PciAddress, Device>>);

impl Bus {
    fn with(address: PciAddress, device: Device) -> (Bus, Function) {
        let bus = Bus::default();
        bus.add(address, device);
        let function = all(&bus).into_iter().find(|f| f.address == address).unwrap();
        (bus, function)
    }

    fn add(&self, address: PciAddress, device: Device) {
        self.0.borrow_mut().insert(address, device);
    }

    fn device(&self, address: PciAddress) -> Device {
        self.0.borrow()[&address].clone()
    }
}

impl ConfigRead for Bus {
    fn read(&self, address: PciAddress, offset: u16) -> u32 {
        let mut devices = self.0.borrow_mut();
        let Some(device) = devices.get_mut(&address) else { return u32::MAX };
        if offset == 0 && device.deaf_reads > 0 {
            device.deaf_reads -= 1;
            return u32::MAX;
        }
        let mut value = device.space[usize::from(offset / 4)];
        if offset == 0x68 && device.pending_reads > 0 {
            device.pending_reads -= 1;
            value |= 1 << 21;
        }
        value
    }
}

impl ConfigAccess for Bus {
    fn write(&self, address: PciAddress, offset: u16, value: u32) {
        let mut devices = self.0.borrow_mut();
        let Some(device) = devices.get_mut(&address) else { return };
        let word = usize::from(offset / 4);
        match word {
            1 => device.space[1] = device.space[1] & 0xffff_0000 | value & 0xffff,
            4..=9 => {
                if value == u32::MAX && device.space[1] & 0b11 != 0 {
                    device.sized_while_decoding = true;
                }
                let mask = device.bar_masks[word - 4];
                device.space[word] = value & mask | device.space[word] & 0xf & !mask;
            }
            _ if offset == 0x68 && value & (1 << 15) != 0 => {
                device.resets += 1;
                device.forget();
                device.space[word] = 0x2810;
            }
            _ if offset == 0xc4 && device.space[word] & 0b11 == 0b11 && value & 0b11 == 0 => {
                device.space[word] = value;
                device.forget();
            }
            _ => device.space[word] = value,
        }
    }
}

const SEGMENT_0: Buses = Buses { segment: 0, first: 0, last: 255 };

/// What is found without having to wait.
fn all(bus: &Bus) -> Vec<Function, MAX_FUNCTIONS> {
    functions(bus, [SEGMENT_0].into_iter(), Numbers::Keep, |_| panic!("nothing asks for time"), |_| {})
}

fn at(bus: u8, device: u8, function: u8) -> PciAddress {
    PciAddress::new(0, bus, device, function)
}

#[test]
fn enumeration_follows_bridges_and_functions_once() {
    let bus = Bus::default();
    bus.add(at(0, 0, 0), Device::new(0x29c0_8086, 0x0600_0000));
    let mut bridge = Device::new(0x000c_1b36, 0x0604_0000);
    bridge.space[3] = 0x0001_0000;
    bridge.space[6] = 0x0007_0700;
    bus.add(at(0, 3, 0), bridge.clone());
    // A bridge whose secondary bus is its own: a circle.
    bridge.space[6] = 0x0007_0700;
    bus.add(at(7, 31, 0), bridge);
    bus.add(at(7, 0, 0), Device::hca());
    let mut multi = Device::new(0x2918_8086, 0x0601_0000);
    multi.space[3] = 0x0080_0000;
    bus.add(at(0, 31, 0), multi);
    bus.add(at(0, 31, 3), Device::new(0x2930_8086, 0x0c05_0000));
    // Function 1 of a device that says it has one function only.
    bus.add(at(7, 0, 1), Device::hca());

    let mut addresses: StdVec<_> = all(&bus).iter().map(|f| f.address).collect();
    addresses.sort_unstable();
    assert_eq!(addresses, [at(0, 0, 0), at(0, 3, 0), at(0, 31, 0), at(0, 31, 3), at(7, 0, 0), at(7, 31, 0)]);
    let hca = all(&bus).into_iter().find(|f| f.vendor == VENDOR_MELLANOX).unwrap();
    assert_eq!((hca.device, hca.class, hca.revision, hca.secondary_bus), (0x1017, 0x0207, 5, None));
}

#[test]
fn more_functions_than_fit_are_left_out() {
    let bus = Bus::default();
    let list = |bus: &Bus| {
        let mut told = StdVec::new();
        let found = functions(bus, [SEGMENT_0].into_iter(), Numbers::Keep, |_| {}, |done| told.push(done));
        (found.len(), told)
    };
    for number in 0..=MAX_FUNCTIONS {
        let mut new = Device::hca();
        new.space[3] = 0x0080_0000;
        bus.add(at((number / 256) as u8, (number / 8 % 32) as u8, (number % 8) as u8), new);
        // Eight sockets with 250 functions each are not too many.
        if number == 2000 {
            assert_eq!(list(&bus), (2001, StdVec::new()));
        }
    }
    assert_eq!(list(&bus), (MAX_FUNCTIONS, std::vec![Done::Full]));
    assert!(Done::Full.to_string().starts_with("pci: 2048 functions or more"));
}

#[test]
fn root_buses_and_segments_that_no_bridge_leads_to_are_looked_at() {
    let bus = Bus::default();
    bus.add(at(0, 0, 0), Device::new(0x29c0_8086, 0x0600_0000));
    bus.add(at(0x40, 0, 0), Device::hca());
    bus.add(PciAddress::new(1, 0x80, 3, 0), Device::hca());
    // Beyond the second segment's buses.
    bus.add(PciAddress::new(1, 0x7f, 0, 0), Device::hca());
    let second = Buses { segment: 1, first: 0x80, last: 0xff };
    let found = functions(&bus, [SEGMENT_0, second].into_iter(), Numbers::Keep, |_| {}, |_| {});
    let addresses: StdVec<_> = found.iter().map(|f| f.address).collect();
    assert_eq!(addresses, [at(0, 0, 0), at(0x40, 0, 0), PciAddress::new(1, 0x80, 3, 0)]);
}

#[test]
fn a_function_that_asks_for_time_gets_a_second() {
    let bus = Bus::default();
    bus.add(at(0, 1, 0), Device::new(0x1017_0001, CLASS_INFINIBAND));
    let mut waited = 0;
    let found = functions(
        &bus,
        [SEGMENT_0].into_iter(),
        Numbers::Keep,
        |nanos| {
            waited += nanos;
            if waited == 500_000_000 {
                bus.add(at(0, 1, 0), Device::hca());
            }
        },
        |_| {},
    );
    assert_eq!((found.len(), waited), (1, 500_000_000));
    bus.add(at(0, 2, 0), Device::new(0x1017_0001, CLASS_INFINIBAND));
    waited = 0;
    assert_eq!(
        functions(&bus, [SEGMENT_0].into_iter(), Numbers::Keep, |nanos| waited += nanos, |_| {}).len(),
        1
    );
    assert_eq!(waited, 1_000_000_000);
}

#[test]
fn bridges_on_the_way_are_opened_and_no_others() {
    let bus = Bus::default();
    let bridge = |secondary: u32| {
        let mut bridge = Device::new(0x000c_1b36, 0x0604_0000);
        (bridge.space[1], bridge.space[3], bridge.space[6]) =
            (0x0010_0000, 0x0001_0000, 0x00ff_0000 | secondary << 8);
        bridge
    };
    bus.add(at(0x40, 0, 0), bridge(0x41));
    bus.add(at(0x41, 0, 0), bridge(0x42));
    bus.add(at(0x40, 1, 0), bridge(0x50));
    bus.add(at(0x60, 0, 0), bridge(0x61));
    bus.add(at(0x61, 0, 0), bridge(0x62));
    bus.add(at(0x42, 0, 0), Device::hca());
    bus.add(at(0x61, 1, 0), Device::hca());
    let mut found = all(&bus);
    // Bridges that name each other are no way to anywhere, and no endless one.
    found.iter_mut().find(|f| f.address == at(0x61, 0, 0)).unwrap().secondary_bus = Some(0x60);
    for address in [at(0x42, 0, 0), at(0x61, 1, 0)] {
        let hca = *found.iter().find(|f| f.address == address).unwrap();
        open_bridges(&bus, &found, &hca);
    }
    let command = |address| bus.device(address).space[1];
    assert_eq!((command(at(0x40, 0, 0)), command(at(0x41, 0, 0))), (0x0010_0006, 0x0010_0006));
    assert_eq!(command(at(0x40, 1, 0)), 0x0010_0000);
}

#[test]
fn a_64_bit_bar_is_sized_with_decoding_off_and_left_as_it_was() {
    let (bus, hca) = Bus::with(at(0, 4, 0), Device::hca());
    let bar = MemoryBar { address: 0xc0_0000_0000, len: 32 << 20, prefetchable: true };
    assert_eq!(hca.memory_bar(&bus, 0), Ok(bar));
    let device = bus.device(hca.address);
    assert!(!device.sized_while_decoding);
    assert_eq!(device.space[1], 0x0010_0103);
    assert_eq!(device.space[4..6], [0xc, 0xc0]);
    // Its upper half is no BAR of its own; nor are those that are not implemented.
    assert_eq!(hca.memory_bar(&bus, 1), Err(Error::NoMemoryBar(1)));
    assert_eq!(hca.memory_bar(&bus, 2), Err(Error::NoMemoryBar(2)));
    assert_eq!(hca.memory_bar(&bus, 6), Err(Error::NoMemoryBar(6)));
}

#[test]
fn bars_of_host_bridges_are_not_sized() {
    let mut device = Device::new(0x29c0_8086, 0x0600_0000);
    device.bar_masks[0] = 0xffff_f000;
    device.space[4] = 0xfebf_1000;
    let (bus, bridge) = Bus::with(at(0, 0, 0), device);
    assert_eq!(bridge.memory_bar(&bus, 0), Err(Error::NoMemoryBar(0)));
}

#[test]
fn a_function_that_sleeps_is_woken_and_keeps_its_bars() {
    let mut device = Device::hca();
    // Power management behind MSI-X, in D3hot.
    device.space[0x9c / 4] |= 0xc000;
    device.space[0xc0 / 4] = 0x0003_0001;
    device.space[0xc4 / 4] = 1 << 15 | 0b11;
    let (bus, hca) = Bus::with(at(0, 4, 0), device);
    let mut waited = 0;
    assert!(hca.wake(&bus, |nanos| waited += nanos));
    assert_eq!(waited, 10_000_000);
    let device = bus.device(hca.address);
    assert_eq!((device.space[0xc4 / 4], device.space[1] & 0b10), (0, 0b10));
    assert_eq!(device.space[4..6], [0xc, 0xc0]);
    assert!(!hca.wake(&bus, |_| panic!("it is awake")));
    let (bus, hca) = Bus::with(at(0, 4, 0), Device::hca());
    assert!(!hca.wake(&bus, |_| panic!("it cannot sleep")));
}

#[test]
fn bars_of_every_kind() {
    let mut device = Device::new(0x1234_1234, 0);
    device.bar_masks = [0xffff_f000, 0xffff_fff0, 0xffff_ffe0, 0, 0xffff_ff00, 0];
    device.space[4..10].copy_from_slice(&[0xfebf_1000, 0xfebf_2000, 0xc041, 0x2, 0, 0x4]);
    let (bus, function) = Bus::with(at(0, 1, 0), device);
    let small = MemoryBar { address: 0xfebf_1000, len: 4096, prefetchable: false };
    assert_eq!(function.memory_bar(&bus, 0), Ok(small));
    assert_eq!(function.memory_bar(&bus, 1).map(|bar| bar.len), Ok(16));
    assert_eq!(function.memory_bar(&bus, 2), Err(Error::NoMemoryBar(2)), "I/O");
    assert_eq!(function.memory_bar(&bus, 3), Err(Error::BadBar(3)), "reserved type");
    assert_eq!(function.memory_bar(&bus, 4), Err(Error::NotAssigned(4)));
    assert_eq!(function.memory_bar(&bus, 5), Err(Error::BadBar(5)), "64 bits in the last slot");
}

#[test]
fn size_masks_that_no_device_has() {
    for mask in [0xff0f_0000, 0x0000_ff00] {
        let mut device = Device::new(0x1234_1234, 0);
        device.bar_masks[0] = mask;
        device.space[4] = 0xfe00_0000 & mask | 0x1000;
        let (bus, function) = Bus::with(at(0, 1, 0), device);
        assert_eq!(function.memory_bar(&bus, 0), Err(Error::BadBar(0)), "{mask:#x}");
    }
}

#[test]
fn capabilities() {
    let (bus, hca) = Bus::with(at(0, 4, 0), Device::hca());
    let msix = hca.msix(&bus).unwrap();
    assert_eq!((msix.vectors, msix.table_bar, msix.table_offset), (64, 0, 0x2000));
    assert_eq!((msix.pending_bar, msix.pending_offset), (0, 0x3000));
    let express = hca.express(&bus).unwrap();
    assert_eq!((express.max_payload, express.max_read_request), (256, 4096));
    assert_eq!((express.link_speed, express.link_width), (3, 8));
    assert!(express.function_level_reset);

    let bar = hca.memory_bar(&bus, msix.table_bar).unwrap();
    assert_eq!(msix.table(&bar), Ok(Range { start: 0xc0_0000_2000, end: 0xc0_0000_2000 + 64 * 16 }));
    let short = MemoryBar { len: 0x2000 + 63 * 16, ..bar };
    assert_eq!(msix.table(&short), Err(Error::BadMsixTable));
}

#[test]
fn msix_switches() {
    let (bus, hca) = Bus::with(at(0, 4, 0), Device::hca());
    let msix = hca.msix(&bus).unwrap();
    hca.set_msix(&bus, &msix, true, true);
    assert_eq!(bus.device(hca.address).space[0x9c / 4], 0xc03f_0011);
    hca.set_msix(&bus, &msix, true, false);
    assert_eq!(bus.device(hca.address).space[0x9c / 4], 0x803f_0011);
    hca.set_msix(&bus, &msix, false, false);
    assert_eq!(bus.device(hca.address).space[0x9c / 4], 0x003f_0011);
}

#[test]
fn capability_lists_that_lead_nowhere() {
    let list = |pointer, header| {
        let mut device = Device::hca();
        device.space[0x34 / 4] = pointer;
        device.space[0x60 / 4] = header;
        Bus::with(at(0, 4, 0), device)
    };
    // To itself, into the header, no list at all.
    for (pointer, header) in [(0x60, 0x6001), (0x60, 0x0401), (0x10, 0x9c10), (0, 0x9c10)] {
        let (bus, function) = list(pointer, header);
        assert_eq!(function.msix(&bus), Err(Error::NoCapability("MSI-X")), "{pointer:#x} {header:#x}");
    }
    let mut device = Device::hca();
    device.space[1] &= !(1 << 20);
    let (bus, function) = Bus::with(at(0, 4, 0), device);
    assert_eq!(function.express(&bus), Err(Error::NoCapability("PCI Express")));
    // A capability whose registers would lie behind the end.
    let mut device = Device::hca();
    device.space[0x34 / 4] = 0xfc;
    device.space[0xfc / 4] = 0x0010;
    let (bus, function) = Bus::with(at(0, 4, 0), device);
    assert_eq!(function.express(&bus), Err(Error::NoCapability("PCI Express")));
}

#[test]
fn enabling_leaves_the_status_register_alone() {
    let (bus, hca) = Bus::with(at(0, 4, 0), Device::hca());
    hca.enable(&bus);
    assert_eq!(bus.device(hca.address).space[1] & 0xffff, 0x0507);
    hca.stop_bus_master(&bus);
    assert_eq!(bus.device(hca.address).space[1] & 0xffff, 0x0503);
}

#[test]
fn reset_waits_and_restores() {
    let mut device = Device::hca();
    // `save` causes one of these reads.
    device.pending_reads = 3;
    let (bus, hca) = Bus::with(at(0, 4, 0), device);
    hca.enable(&bus);
    let msix = hca.msix(&bus).unwrap();
    hca.set_msix(&bus, &msix, true, true);
    let mut waited = StdVec::new();
    let before = bus.device(hca.address);
    hca.reset(&bus, |nanos| {
        waited.push(nanos);
        if nanos == 100_000_000 {
            bus.0.borrow_mut().get_mut(&hca.address).unwrap().deaf_reads = 2;
        }
    })
    .unwrap();
    let after = bus.device(hca.address);
    assert_eq!(after.resets, 1);
    assert_eq!(waited, [1_000_000, 1_000_000, 100_000_000, 10_000_000, 20_000_000]);
    assert_eq!(after.space[4..10], before.space[4..10]);
    assert_eq!(
        after.space[1],
        before.space[1] & !4,
        "bus mastering is for who knows that the function has let go"
    );
    assert_eq!(after.space[0x68 / 4], before.space[0x68 / 4]);
    assert_eq!(after.space[0x9c / 4], 0x003f_0011, "MSI-X is off");
}

#[test]
fn what_a_reset_by_others_has_taken_is_put_back() {
    let (bus, hca) = Bus::with(at(0, 4, 0), Device::hca());
    hca.enable(&bus);
    let (saved, before) = (hca.save(&bus), bus.device(hca.address));
    let change = |change: fn(&mut Device)| change(bus.0.borrow_mut().get_mut(&hca.address).unwrap());
    change(|device| {
        device.space[1] &= !0xffff;
        device.space[4..10].copy_from_slice(&[0xc, 0, 0, 0, 0, 0]);
        device.space[0x68 / 4] = 0x2810;
        device.deaf_reads = 1;
    });
    hca.restore(&bus, &saved);
    assert_eq!(bus.device(hca.address).space[1] & 0xffff, 0, "it did not answer yet");
    hca.restore(&bus, &saved);
    let after = bus.device(hca.address);
    assert_eq!((after.space[1], &after.space[4..]), (before.space[1] & !4, &before.space[4..]));
    hca.enable(&bus);
    hca.restore(&bus, &saved);
    assert_eq!(hca.bus_mastering(&bus), Some(true), "it stays as it is");
    bus.0.borrow_mut().remove(&hca.address);
    assert_eq!((hca.bus_mastering(&bus), hca.masters_bus(&bus)), (None, false));
}

#[test]
fn reset_by_advanced_features() {
    let mut device = Device::hca();
    device.space[0x64 / 4] = 0;
    // Behind MSI-X: function-level reset, and transactions pending.
    device.space[0x9c / 4] = 0x003f_c011;
    device.space[0xc0 / 4] = 0x0306_0013;
    let (bus, hca) = Bus::with(at(0, 4, 0), device);
    let begun = core::cell::Cell::new(0);
    hca.reset(&bus, |nanos| {
        if nanos == 100_000_000 {
            begun.set(bus.device(hca.address).space[0xc4 / 4]);
        }
    })
    .unwrap();
    assert_eq!(begun.get(), 1);
}

#[test]
fn transactions_that_never_end_do_not_keep_a_function_from_its_reset() {
    let mut device = Device::hca();
    device.pending_reads = 1000;
    let (bus, hca) = Bus::with(at(0, 4, 0), device);
    hca.enable(&bus);
    let mut waited = 0;
    assert_eq!(hca.reset(&bus, |nanos| waited += nanos), Ok(()));
    assert_eq!((bus.device(hca.address).resets, waited), (1, 200_000_000));
    assert_eq!(hca.bus_mastering(&bus), Some(false));
}

#[test]
fn reset_that_cannot_be_done() {
    let mut device = Device::hca();
    device.space[0x64 / 4] = 0;
    let (bus, hca) = Bus::with(at(0, 4, 0), device);
    assert_eq!(hca.reset(&bus, |_| {}), Err(Error::NoFunctionLevelReset));

    let (bus, hca) = Bus::with(at(0, 4, 0), Device::hca());
    let mut waited = 0;
    let result = hca.reset(&bus, |nanos| {
        waited += nanos;
        bus.0.borrow_mut().get_mut(&hca.address).unwrap().deaf_reads = 1;
    });
    assert_eq!(result, Err(Error::ResetTimedOut));
    assert!((60_000_000_000..61_100_000_000).contains(&waited), "{waited}");
}

/// A card with hundreds of virtual functions needs a second for each.
#[test]
fn reset_may_take_most_of_a_minute() {
    let (bus, hca) = Bus::with(at(0, 4, 0), Device::hca());
    let (mut waited, mut pauses) = (0, 0);
    let result = hca.reset(&bus, |nanos| {
        waited += nanos;
        pauses += 1;
        let back = waited >= 50_000_000_000;
        bus.0.borrow_mut().get_mut(&hca.address).unwrap().deaf_reads = u32::from(!back);
    });
    assert_eq!(result, Ok(()));
    assert!(waited < 52_000_000_000 && pauses < 100, "{waited} in {pauses} pauses");
}

#[test]
fn errors_are_one_line() {
    for error in [Error::NotAssigned(0), Error::NoRoom(0), Error::NoCapability("MSI-X"), Error::ResetTimedOut]
    {
        let line = error.to_string();
        assert!(line.starts_with("PCI: ") && !line.contains('\n'));
    }
}

#[test]
fn each_function_is_handed_out_once_and_bridges_are_not() {
    let bus = Bus::default();
    bus.add(at(0, 0, 0), Device::new(0x29c0_8086, 0x0600_0000));
    let mut port = Device::new(0x000c_1b36, 0x0604_0000);
    port.space[3] = 0x0001_0000;
    port.space[6] = 0x0001_0100;
    bus.add(at(0, 3, 0), port);
    bus.add(at(0, 31, 0), Device::new(0x2918_8086, 0x0601_0000));
    bus.add(at(1, 0, 0), Device::hca());
    for number in 0..100 {
        let mut nic = Device::new(0x10d3_8086, 0x0200_0000);
        nic.space[3] = 0x0080_0000;
        bus.add(at(2, number / 8, number % 8), nic);
    }
    let found = all(&bus);
    let mut inventory = Inventory::new(found.clone());
    assert_eq!(inventory.found(), found.as_slice());
    let taken: StdVec<_> = found.iter().filter(|function| inventory.take(function)).collect();
    assert_eq!(taken.len(), 101);
    assert!(taken.iter().all(|function| !function.is_bridge()));
    assert!(!found.iter().any(|function| inventory.take(function)), "each once");
    // An HCA that could not be opened.
    let hca = found.iter().find(|function| function.vendor == VENDOR_MELLANOX).unwrap();
    inventory.give_back(hca);
    assert!(inventory.take(hca) && !inventory.take(hca));
    // A function that this machine does not have.
    let (_, other) = Bus::with(at(9, 0, 0), Device::hca());
    inventory.give_back(&other);
    assert!(!inventory.take(&other));
}

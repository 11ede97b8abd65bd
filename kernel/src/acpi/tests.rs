//! ACPI tables of several machines.

use super::*;
use std::string::ToString;
use std::vec::Vec;

struct Image(Vec<u8>);

impl PhysicalMemory for Image {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let Ok(address) = usize::try_from(address) else { return false };
        let Some(end) = address.checked_add(into.len()) else { return false };
        self.0.get(address..end).map(|bytes| into.copy_from_slice(bytes)).is_some()
    }
}

impl Image {
    fn table(&mut self, address: usize, signature: &[u8; 4], body: &[u8]) {
        let len = 36 + body.len();
        self.0[address..address + 4].copy_from_slice(signature);
        self.0[address + 4..address + 8].copy_from_slice(&(len as u32).to_le_bytes());
        self.0[address + 36..address + len].copy_from_slice(body);
        self.0[address + 9] = 0;
        self.0[address + 9] = 0u8.wrapping_sub(sum(&self.0[address..address + len]));
    }
}

/// An image with the root table in either form; the extended one's entries are unaligned, as on
/// microvm.
fn image(extended: bool) -> Image {
    let mut image = Image(std::vec![0; 0x4000]);
    let mut fadt = [0; 276 - 36];
    let mut put = |at: usize, value: &[u8]| fadt[at - 36..at - 36 + value.len()].copy_from_slice(value);
    put(40, &0x2800u32.to_le_bytes());
    put(48, &0xb2u32.to_le_bytes());
    put(52, &[2]);
    put(64, &0x604u32.to_le_bytes());
    put(76, &0x608u32.to_le_bytes());
    put(112, &(1u32 << 10).to_le_bytes());
    put(116, &[SYSTEM_IO]);
    put(120, &0xcf9u64.to_le_bytes());
    put(128, &[0xf]);
    image.table(0x1000, b"FACP", &fadt);
    let mut mcfg = [0; 8 + 32];
    mcfg[8..16].copy_from_slice(&0x7000_0000u64.to_le_bytes());
    mcfg[16] = 1; // another segment
    mcfg[24..32].copy_from_slice(&0xb000_0000u64.to_le_bytes());
    mcfg[34] = 0;
    mcfg[35] = 255;
    image.table(0x2004, b"MCFG", &mcfg);
    // Flags; a unit, a reserved range, another unit.
    let mut dmar = std::vec![0; 12];
    for (kind, base) in [(0u16, 0xfed9_0000u64), (1, 0x1000), (0, 0xfed9_1000)] {
        dmar.extend(kind.to_le_bytes());
        dmar.extend(16u16.to_le_bytes());
        dmar.extend([0; 4]);
        dmar.extend(base.to_le_bytes());
    }
    image.table(0x2200, b"DMAR", &dmar);
    // The package lies across two of the blocks that are read.
    let mut dsdt = std::vec![0xff; 300];
    dsdt[230..244].copy_from_slice(b"_S5_\x12\x0a\x04\x0a\x05\x01\x00\x00\x08x");
    image.table(0x2800, b"DSDT", &dsdt);
    let addresses = [0x3f00u64, 0x1000, 0x2004, 0x2200];
    let body: Vec<u8> = addresses
        .iter()
        .flat_map(|a| a.to_le_bytes().into_iter().take(if extended { 8 } else { 4 }))
        .collect();
    image.table(0x3001, if extended { b"XSDT" } else { b"RSDT" }, &body);
    image.0[0x100..0x108].copy_from_slice(b"RSD PTR ");
    if extended {
        image.0[0x10f] = 2;
        image.0[0x118..0x11c].copy_from_slice(&0x3001u32.to_le_bytes());
    } else {
        image.0[0x110..0x114].copy_from_slice(&0x3001u32.to_le_bytes());
    }
    image.0[0x108] = 0u8.wrapping_sub(sum(&image.0[0x100..0x114]));
    image.0[0x120] = 0u8.wrapping_sub(sum(&image.0[0x100..0x124]));
    image
}

fn found() -> Tables {
    Tables {
        pm_timer_port: Some(0x608),
        ecam: heapless::Vec::from_array([
            Ecam { base: 0x7000_0000, segment: 1, first_bus: 0, last_bus: 0 },
            Ecam { base: 0xb000_0000, segment: 0, first_bus: 0, last_bus: 255 },
        ]),
        remapping: [Unit::Intel(0xfed9_0000), Unit::Intel(0xfed9_1000)].into_iter().collect(),
        damaged: heapless::Vec::new(),
        io_apics: heapless::Vec::new(),
        hpet: None,
        dropped: [0; 3],
        console: None,
        no_x2apic: false,
        power: Power {
            pm1_control: [Some(0x604), None],
            soft_off: Some([5, 1]),
            enable: Some((0xb2, 2)),
            reset: Some((Register::Port(0xcf9), 0xf)),
            sleep_control: None,
        },
    }
}

#[test]
fn both_root_tables() {
    assert_eq!(Tables::find(&image(false), 0x100), found());
    assert_eq!(Tables::find(&image(true), 0x100), found());
}

#[test]
fn an_rsdp_that_the_loader_does_not_name_is_looked_for() {
    let mut image = image(true);
    image.0.resize(0x10_0000, 0);
    assert_eq!(Tables::find(&image, 0), Tables::default());
    // The place of the extended BIOS data area.
    image.0[0x40e..0x410].copy_from_slice(&0x380u16.to_le_bytes());
    let rsdp: [u8; 36] = image.0[0x100..0x124].try_into().unwrap();
    image.0[0x3a10..0x3a34].copy_from_slice(&rsdp);
    assert_eq!(Tables::find(&image, 0), found());
    image.0[0x3a10] = 0;
    image.0[0xe_4560..0xe_4584].copy_from_slice(&rsdp);
    assert_eq!(Tables::find(&image, 0), found());
}

#[test]
fn registers_that_only_the_extended_fields_name() {
    let mut image = image(true);
    let mut body: Vec<u8> = image.0[0x1000 + 36..0x1000 + 276].to_vec();
    body[76 - 36..80 - 36].fill(0);
    body[208 - 36] = SYSTEM_IO;
    body[212 - 36..220 - 36].copy_from_slice(&0x1808u64.to_le_bytes());
    image.table(0x1000, b"FACP", &body);
    assert_eq!(Tables::find(&image, 0x100).pm_timer_port, Some(0x1808));
    // In memory, not among the ports.
    body[208 - 36] = 0;
    image.table(0x1000, b"FACP", &body);
    assert_eq!(Tables::find(&image, 0x100).pm_timer_port, None);
}

#[test]
fn damaged_tables_are_used_and_named() {
    assert_eq!(Tables::find(&image(true), 0), Tables::default());
    assert_eq!(Tables::find(&image(true), 0x7fff_ffff_ffff), Tables::default());
    let mut image = image(false);
    image.0[0x1000 + 77] ^= 0x10;
    let tables = Tables::find(&image, 0x100);
    assert_eq!(tables.damaged.as_slice(), [*b"FACP"]);
    assert_eq!((tables.ecam, tables.power), (found().ecam, found().power), "all else is as it was");
    // The list of tables itself.
    image.0[0x3001 + 9] ^= 1;
    assert_eq!(Tables::find(&image, 0x100).damaged.as_slice(), [*b"RSDT", *b"FACP"]);
    // A table that ends beyond memory counts as absent.
    image.0[0x1000 + 7] = 0x7f;
    let expected = Tables { pm_timer_port: None, power: Power::default(), ..found() };
    let tables = Tables::find(&image, 0x100);
    assert_eq!(Tables { damaged: heapless::Vec::new(), ..tables }, expected);
}

#[test]
fn no_byte_of_the_tables_can_panic() {
    for at in (0x100..0x124)
        .chain(0x1000..0x10a0)
        .chain(0x2004..0x2060)
        .chain(0x2200..0x2260)
        .chain(0x2800..0x2824)
        .chain(0x28f0..0x2920)
        .chain(0x3001..0x3040)
    {
        for value in [0, 0x7f, 0xff] {
            let mut image = image(true);
            image.0[at] = value;
            Tables::find(&image, 0x100);
        }
    }
}

/// Sleep objects, and the types in them.
const OBJECTS: [(&[u8], [u8; 2]); 9] = [
    (b"\x08_S5_\x12\x08\x04\x0a\x05\x0a\x06\x00\x00", [5, 6]),
    (b"\x08\\_S5_\x12\x06\x04\x00\x00\x00\x00", [0, 0]),
    (b"\x08_S5_\x12\x05\x02\x01\x0a\x07", [1, 7]),
    (b"\x08_S5_\x12\x08\x02\x0b\x05\x00\x0b\x05\x00", [5, 5]),
    (b"\x08_S5_\x12\x0c\x02\x0c\x06\x00\x00\x00\x0c\x05\x00\x00\x00", [6, 5]),
    (b"\x08_S5_\x12\x14\x02\x0e\x03\0\0\0\0\0\0\0\x0e\x04\0\0\0\0\0\0\0", [3, 4]),
    // PkgLength in two bytes, OnesOp, several prefixes.
    (b"\x08_S5_\x12\x47\x00\x04\xff\x0b\x02\x00\x00\x00", [7, 2]),
    // A single integer for both registers.
    (b"\x08_S5_\x12\x05\x01\x0b\x05\x06\x00", [5, 6]),
    // The same name elsewhere first, then elements that are no integers.
    (b"\x0d_S5_\x12\x00_S5_\x12\x08\x02\x0dab\x00_S5_\x12\x04\x02\x01\x01", [1, 1]),
];

/// A machine whose FADT leads to the DSDT at 1 MiB, and whose XSDT lists the FADT and `tables`.
fn power(dsdt: &[u8], tables: &[&[u8]]) -> Power {
    let ssdt_at = 0x10_0000 + (36 + dsdt.len()).next_multiple_of(4096);
    let len: usize = tables.iter().map(|table| table.len() + 4096).sum();
    let mut image = Image(std::vec![0; ssdt_at + len + 4096]);
    image.table(0x10_0000, b"DSDT", dsdt);
    let mut entries = std::vec![];
    let mut at = ssdt_at;
    for table in tables {
        image.table(at, b"SSDT", table);
        entries.push(at as u64);
        at += (36 + table.len()).next_multiple_of(16);
    }
    let mut fadt = [0; 276 - 36];
    fadt[64 - 36..66 - 36].copy_from_slice(&0x504u16.to_le_bytes());
    fadt[140 - 36..148 - 36].copy_from_slice(&0x10_0000u64.to_le_bytes());
    image.table(0x1000, b"FACP", &fadt);
    // The FADT last.
    entries.push(0x1000);
    let body: Vec<u8> = entries.iter().flat_map(|entry| entry.to_le_bytes()).collect();
    image.table(0x2000, b"XSDT", &body);
    image.0[0x100..0x108].copy_from_slice(b"RSD PTR ");
    image.0[0x10f] = 2;
    image.0[0x118..0x11c].copy_from_slice(&0x2000u32.to_le_bytes());
    image.0[0x108] = 0u8.wrapping_sub(sum(&image.0[0x100..0x114]));
    image.0[0x120] = 0u8.wrapping_sub(sum(&image.0[0x100..0x124]));
    Tables::find(&image, 0x100).power
}

/// AML of `len` bytes with `object` at `at`.
fn aml(len: usize, at: usize, object: &[u8]) -> Vec<u8> {
    let mut aml = std::vec![0x10; len];
    aml[at..at + object.len()].copy_from_slice(object);
    aml
}

#[test]
fn soft_off_is_found_in_a_dsdt_of_any_size() {
    let (object, types) = OBJECTS[0];
    // The DSDT of a Supermicro X11DAi-N (two Xeon SP) has 0x19cbda bytes.
    for len in [0xf_ffff, 0x10_0001, 0x19_cbda, 24 << 20] {
        for at in [0x5000, len - 36 - object.len()] {
            let power = power(&aml(len - 36, at, object), &[]);
            assert_eq!(power.soft_off, Some(types), "{len:#x} bytes, object at {at:#x}");
            assert_eq!(power.soft_off_registers(), Ok(SoftOff::Pm1([Some((0x504, 5)), None])));
        }
    }
}

#[test]
fn sleep_types_of_all_integer_encodings_are_read() {
    for (object, types) in OBJECTS {
        // At every place of the blocks that are read.
        for at in 0..1100 {
            let found = power(&aml(at + object.len(), at, object), &[]).soft_off;
            assert_eq!(found, Some(types), "{object:02x?} at {at}");
        }
        for cut in 1..object.len() {
            // A cut leaves no integer, or an object that is complete.
            let found = power(&object[..cut], &[]).soft_off;
            assert!(found.is_none() || found == Some(types) || found == Some([1, 1]), "{object:02x?} {cut}");
        }
    }
}

#[test]
fn soft_off_is_found_in_an_ssdt_and_the_dsdt_comes_first() {
    let [(first, in_first), (second, in_second), ..] = OBJECTS;
    let none = aml(2000, 0, b"");
    assert_eq!(power(&none, &[&none, first, second]).soft_off, Some(in_first));
    assert_eq!(power(second, &[first]).soft_off, Some(in_second));
    let many: Vec<&[u8]> = (0..200).map(|i| if i == 190 { first } else { none.as_slice() }).collect();
    assert_eq!(power(&none, &many).soft_off, Some(in_first));
}

#[test]
fn without_soft_off_the_reason_is_named() {
    let reason = |power: Power| power.soft_off_registers().map(|_| ()).map_err(|reason| reason.to_string());
    let none = power(&aml(2000, 0, b""), &[]);
    assert_eq!(reason(none), Err("no sleep object _S5_ in ACPI's DSDT and SSDTs".into()));
    let reduced = Power { pm1_control: [None; 2], soft_off: Some([5, 5]), ..none };
    assert_eq!(reason(reduced), Err("ACPI names no sleep control register".into()));
    assert_eq!(reason(Power::default()), reason(reduced));
}

/// Memory of which every byte can be read, and which counts how many are.
struct Endless(Image, Cell<u64>);

impl PhysicalMemory for Endless {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        self.1.set(self.1.get() + into.len() as u64);
        into.fill(0);
        self.0.read(address, into) || address >= self.0.0.len() as u64
    }
}

#[test]
fn tables_with_absurd_lengths_take_bounded_time() {
    let mut image = image(true);
    for table in [0x1000, 0x2004, 0x2200, 0x2800] {
        image.0[table + 4..table + 8].copy_from_slice(&u32::MAX.to_le_bytes());
    }
    let endless = Endless(image, Cell::new(0));
    assert_eq!(Tables::find(&endless, 0x100), Tables::default());
    assert!(endless.1.get() <= MAX_BYTES);
}

/// FADT, MCFG and DMAR of [`image`], changed.
fn changed(change: impl FnOnce(&mut Image)) -> Tables {
    let mut image = image(true);
    image.0.resize(0x1_0000, 0);
    change(&mut image);
    Tables::find(&image, 0x100)
}

#[test]
fn hardware_reduced_machines_have_a_sleep_control_register() {
    let fadt = |pm1: u32, space: u8, address: u64, reset: (u8, u64)| {
        changed(|image| {
            let mut body = image.0[0x1000 + 36..0x1000 + 276].to_vec();
            body[64 - 36..68 - 36].copy_from_slice(&pm1.to_le_bytes());
            body[116 - 36] = reset.0;
            body[120 - 36..128 - 36].copy_from_slice(&reset.1.to_le_bytes());
            body[244 - 36] = space;
            body[248 - 36..256 - 36].copy_from_slice(&address.to_le_bytes());
            image.table(0x1000, b"FACP", &body);
        })
        .power
    };
    // Cloud Hypervisor: ports.
    let power = fadt(0, SYSTEM_IO, 0x3c0, (SYSTEM_IO, 0x3c0));
    assert_eq!(power.soft_off_registers(), Ok(SoftOff::SleepControl(Register::Port(0x3c0), 5)));
    assert_eq!(power.reset, Some((Register::Port(0x3c0), 0xf)));
    // QEMU's microvm: memory.
    let power = fadt(0, SYSTEM_MEMORY, 0xfea0_0000, (SYSTEM_MEMORY, 0xfea0_0008));
    assert_eq!(power.soft_off_registers(), Ok(SoftOff::SleepControl(Register::Memory(0xfea0_0000), 5)));
    assert_eq!(power.reset, Some((Register::Memory(0xfea0_0008), 0xf)));
    // Both: PM1. Another address space, and none.
    let power = fadt(0x604, SYSTEM_IO, 0x3c0, (2, 0x3c0));
    assert_eq!(power.soft_off_registers(), Ok(SoftOff::Pm1([Some((0x604, 5)), None])));
    assert_eq!(power.reset, None);
    assert_eq!(fadt(0, SYSTEM_IO, 0, (0, 0)).soft_off_registers(), Err(NoSoftOff::Register));
}

#[test]
fn remapping_units_beyond_the_limit_are_counted() {
    let dmar = |units: u64, flags: u8| {
        changed(|image| {
            let mut body = std::vec![0; 12];
            body[1] = flags;
            for unit in 0..units {
                body.extend([0, 0, 16, 0, 0, 0, 0, 0]);
                body.extend((0xc000_0000 + unit * 0x1000).to_le_bytes());
            }
            image.table(0x8000, b"DMAR", &body);
            image.0[0x3001 + 36 + 24..0x3001 + 36 + 32].copy_from_slice(&0x8000u64.to_le_bytes());
            image.0[0x3001 + 9] = 0;
            image.0[0x3001 + 9] = 0u8.wrapping_sub(sum(&image.0[0x3001..0x3001 + 36 + 32]));
        })
    };
    // A HPE DL560 has 16, eight sockets have some forty.
    for (units, kept, dropped) in [(16, 16, 0), (40, 40, 0), (128, 128, 0), (130, 128, 2)] {
        let tables = dmar(units, 0);
        assert_eq!((tables.remapping.len(), tables.dropped), (kept, [0, dropped, 0]), "{units}");
    }
    assert!(dmar(1, 2).no_x2apic && !dmar(1, 1).no_x2apic);
}

#[test]
fn console_of_firmware_is_found() {
    let tables = changed(|image| {
        let mut body = [0; 80 - 36];
        (body[40 - 36], body[41 - 36], body[58 - 36]) = (SYSTEM_IO, 8, 7);
        body[44 - 36..52 - 36].copy_from_slice(&0x2f8u64.to_le_bytes());
        image.table(0x2200, b"SPCR", &body);
    });
    assert_eq!(tables.console, Some(Setting::port(0x2f8)));
}

#[test]
fn io_apics_and_the_hpet_are_found() {
    let tables = changed(|image| {
        // A local APIC, an I/O APIC, one at no page's start, a structure that is cut.
        let mut body = std::vec![0; 44 - 36];
        body.extend([0, 8, 0, 0, 1, 0, 0, 0]);
        body.extend([1, 12, 2, 0, 0x00, 0x00, 0xc0, 0xfe, 0, 0, 0, 0]);
        body.extend([1, 12, 3, 0, 0x10, 0x00, 0xc1, 0xfe, 24, 0, 0, 0]);
        body.extend([1, 12, 4, 0, 0x00, 0x20, 0xc0, 0xfe]);
        image.table(0x2200, b"APIC", &body);
    });
    assert_eq!(tables.io_apics.as_slice(), [0xfec0_0000]);
    let hpet = |space: u8, base: u64| {
        let tables = changed(|image| {
            let mut body = [0; 56 - 36];
            (body[40 - 36], body[41 - 36]) = (space, 64);
            body[44 - 36..52 - 36].copy_from_slice(&base.to_le_bytes());
            image.table(0x2200, b"HPET", &body);
        });
        tables.hpet
    };
    assert_eq!(hpet(SYSTEM_MEMORY, 0xfed0_0000), Some(0xfed0_0000));
    assert_eq!([hpet(SYSTEM_IO, 0xfed0_0000), hpet(SYSTEM_MEMORY, 0), hpet(SYSTEM_MEMORY, 8)], [None; 3]);
}

#[test]
fn amd_units_are_listed_once_for_all_versions() {
    let tables = changed(|image| {
        let mut body = std::vec![0; 12];
        for (kind, base) in [(0x10, 0xfeb8_0000u64), (0x11, 0xfeb8_0000), (0x20, 0x1000), (0x40, 0xfebc_0000)]
        {
            body.extend([kind, 0, 32, 0, 0, 0, 0, 0]);
            body.extend(base.to_le_bytes());
            body.extend([0; 16]);
        }
        image.table(0x2200, b"IVRS", &body);
    });
    let wanted = [Unit::Amd(0xfeb8_0000), Unit::Amd(0xfebc_0000)];
    assert_eq!(tables.remapping.as_slice(), wanted);
}

//! ACPI tables.

use super::{Machine, hex, machines};
use crate::acpi::register::Register;
use crate::acpi::{Ecam, PhysicalMemory, Tables, Unit};
use std::vec::Vec;

const TEXT: &str = include_str!("acpi.txt");

/// Where the tables are.
const BASE: usize = 0x1000;

/// Memory with a machine's tables.
struct Memory(Vec<u8>);

impl PhysicalMemory for Memory {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let start = address as usize;
        self.0.get(start..start + into.len()).map(|bytes| into.copy_from_slice(bytes)).is_some()
    }
}

fn bytes(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| hex(&text[at..at + 2]) as u8).collect()
}

impl Memory {
    /// Appends a table and returns its address.
    fn table(&mut self, signature: &str, revision: u8, body: &[u8]) -> u64 {
        let start = self.0.len();
        self.0.extend(signature.as_bytes());
        self.0.extend((36 + body.len() as u32).to_le_bytes());
        self.0.extend([revision, 0]);
        self.0.extend([0x20; 26]);
        self.0.extend(body);
        let sum = self.0[start..].iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        self.0[start + 9] = 0u8.wrapping_sub(sum);
        start as u64
    }

    fn of(machine: &Machine) -> Self {
        let mut memory = Self(std::vec![0; BASE]);
        let dsdt: Vec<u8> =
            machine.all("s5").flat_map(|words| [&[8][..], &bytes(words[0])].concat()).collect();
        let dsdt = memory.table("DSDT", 2, &dsdt);
        let mut entries = Vec::new();
        for words in machine.all("table") {
            let mut body = bytes(words[2]);
            if words[0] == "FACP" {
                // The pointers are those of this memory.
                body[4..8].copy_from_slice(&(dsdt as u32).to_le_bytes());
                if let Some(pointer) = body.get_mut(104..112) {
                    pointer.copy_from_slice(&dsdt.to_le_bytes());
                }
            }
            entries.push(memory.table(words[0], words[1].parse().expect("a revision"), &body));
        }
        let list: Vec<u8> = entries.iter().flat_map(|entry| entry.to_le_bytes()).collect();
        let root = memory.table("XSDT", 1, &list);
        let rsdp = &mut memory.0[0x100..0x124];
        rsdp[..8].copy_from_slice(b"RSD PTR ");
        rsdp[15] = 2;
        rsdp[24..32].copy_from_slice(&root.to_le_bytes());
        let sum = |bytes: &[u8]| bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        rsdp[8] = 0u8.wrapping_sub(sum(&rsdp[..20]));
        rsdp[32] = 0u8.wrapping_sub(sum(rsdp));
        memory
    }
}

/// The values of expectations of this kind.
fn expected(machine: &Machine, kind: &str) -> Vec<Vec<u64>> {
    let of_kind = machine.all("expect").filter(|words| words[0] == kind);
    of_kind.map(|words| words[1..].iter().map(|word| hex(word)).collect()).collect()
}

fn addresses(machine: &Machine, kind: &str) -> Vec<u64> {
    expected(machine, kind).iter().map(|values| values[0]).collect()
}

#[test]
fn tables_of_every_machine_say_what_another_decoder_reads() {
    let machines = machines(TEXT);
    assert!(machines.len() >= 12);
    for machine in &machines {
        let (tables, name) = (Tables::find(&Memory::of(machine), 0x100), &machine.name);
        let port = |value: u64| Some(value as u16).filter(|port| *port != 0);
        assert_eq!(tables.pm_timer_port, port(expected(machine, "pm_timer")[0][0]), "{name}");
        let pm1 = &expected(machine, "pm1")[0];
        assert_eq!(tables.power.pm1_control, [port(pm1[0]), port(pm1[1])], "{name}");
        let smi = &expected(machine, "smi")[0];
        let enable = Some((smi[0] as u16, smi[1] as u8)).filter(|(port, value)| *port != 0 && *value != 0);
        assert_eq!(tables.power.enable, enable, "{name}");
        let reset = machine.all("expect").find(|words| words[0] == "reset").map(|words| {
            let register = match words[1] {
                "port" => Register::Port(hex(words[2]) as u16),
                _ => Register::Memory(hex(words[2])),
            };
            (register, hex(words[3]) as u8)
        });
        assert_eq!(tables.power.reset, reset, "{name}");
        let ecam: Vec<Ecam> = expected(machine, "ecam")
            .iter()
            .map(|v| Ecam { base: v[0], segment: v[1] as u16, first_bus: v[2] as u8, last_bus: v[3] as u8 })
            .collect();
        assert_eq!(tables.ecam.as_slice(), ecam, "{name}");
        let intel = addresses(machine, "intel").into_iter().map(Unit::Intel);
        let units: Vec<Unit> = intel.chain(addresses(machine, "amd").into_iter().map(Unit::Amd)).collect();
        assert_eq!(tables.remapping.as_slice(), units, "{name}");
        assert_eq!(tables.no_x2apic, !expected(machine, "no_x2apic").is_empty(), "{name}");
        assert_eq!(tables.io_apics.as_slice(), addresses(machine, "io_apic"), "{name}");
        assert_eq!(tables.hpet, addresses(machine, "hpet").first().copied(), "{name}");
        assert_eq!((tables.dropped, tables.damaged.len()), ([0; 3], 0), "{name}");
        // Each of them can be switched off.
        assert!(tables.power.soft_off_registers().is_ok(), "{name}");
    }
}

#[test]
fn consoles_of_firmware_are_used_only_where_they_have_an_address() {
    let mut consoles = 0;
    for machine in &machines(TEXT) {
        let tables = Tables::find(&Memory::of(machine), 0x100);
        let wanted = machine.all("expect").find(|words| words[0] == "spcr").and_then(|words| {
            let address = hex(words[2]);
            (address != 0).then_some(Register::Port(address as u16))
        });
        assert_eq!(tables.console.map(|console| console.place), wanted, "{}", machine.name);
        consoles += u32::from(wanted.is_some());
    }
    // Most servers with the table name no port.
    assert_eq!(consoles, 1);
}

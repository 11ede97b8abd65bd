//! Firmware data of real servers and desktops, which parsers and planners must understand.

mod acpi;
pub(crate) mod memory;

use std::string::String;
use std::vec::Vec;

/// PCI functions of machines: see `pci::tests::corpus`.
pub(crate) const PCI: &str = concat!(include_str!("pci.txt"), include_str!("pci_desktops.txt"));

/// Lines of a machine, as words.
pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) lines: Vec<Vec<&'static str>>,
}

/// The machines of a file.
pub(crate) fn machines(text: &'static str) -> Vec<Machine> {
    let mut machines: Vec<Machine> = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match (words.first(), machines.last_mut()) {
            (Some(&"machine"), _) => {
                machines.push(Machine { name: words[1..].join(" "), lines: Vec::new() });
            }
            (Some(_), Some(machine)) => machine.lines.push(words),
            _ => {}
        }
    }
    machines
}

impl Machine {
    /// Lines that begin with this word, without it.
    pub(crate) fn all<'m>(&'m self, first: &'m str) -> impl Iterator<Item = &'m [&'static str]> {
        self.lines.iter().filter(move |line| line[0] == first).map(|line| &line[1..])
    }
}

/// A hexadecimal number.
pub(crate) fn hex(word: &str) -> u64 {
    u64::from_str_radix(word, 16).unwrap_or_else(|_| panic!("{word} is no number"))
}

//! A card from the `@dump` lines of a self-test (`driver_mlx::Hca::dump`).

use super::text::{CAP_TYPES, fields, largest};
use crate::card::{CONNECTX_5, Card, VIRTUAL_FUNCTION};
use mlx5_prm::caps::cmd_hca_cap;
use mlx5_prm::management::mgir_reg;
use mlx5_prm::registers::ptys_reg;
use mlx5_prm::value::{CapType, PortType, RegisterId};
use mlx5_prm::{Field, later};
use rdma_fabric::infiniband::Speeds;
use std::collections::BTreeMap;

/// First word of the lines that count.
const MARK: &str = "@dump ";
/// Version of the lines that this module reads.
const VERSION: &str = "1";
/// Bytes of the longest block: a capability type, the configuration space, the initialization segment.
const LONGEST: usize = 4096;
/// PCI capabilities.
const EXPRESS: u32 = 0x10;
const MSIX: u32 = 0x11;
/// `special` begins after status and syndrome of QUERY_SPECIAL_CONTEXTS.
const SPECIAL_AT: u32 = 8;
/// A LID that was never set.
const UNSET_LID: u32 = 0xffff;

/// The lines that a self-test wrote about a card.
#[derive(Debug, Default)]
pub struct Dump {
    /// Blocks of bytes: capabilities, registers, QUERY_SPECIAL_CONTEXTS.
    blocks: BTreeMap<String, Vec<u8>>,
    /// Dwords: of the PCI configuration and of the initialization segment.
    dwords: BTreeMap<(String, u32), u32>,
    /// Values by name: page numbers, the vport's.
    values: BTreeMap<String, String>,
    /// Times of bring-up in microseconds.
    times: Vec<(String, u64)>,
}

/// A profile from a dump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// The card as the model can be it.
    pub card: Card,
    /// Facts of the dump that the profile does not have, a line each.
    pub remarks: Vec<String>,
}

fn hexadecimal(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}

fn bytes(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let pairs = digits.chunks(2).map(|pair| Some(16 * nibble(*pair.first()?)? + nibble(*pair.get(1)?)?));
    pairs.collect()
}

fn nibble(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|digit| digit as u8)
}

impl Dump {
    /// Reads the lines of a self-test. Skips lines without `@dump`, and what a console puts before
    /// that word.
    ///
    /// # Errors
    /// The number of the first line that is wrong, or that no line is there.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut dump = Self::default();
        for (index, line) in text.lines().enumerate() {
            let Some((_, words)) = line.split_once(MARK) else { continue };
            dump.line(words.trim()).ok_or_else(|| format!("line {}, `{line}`: damaged", index + 1))?;
        }
        match dump.values.get("version").map(String::as_str) {
            Some(VERSION) => Ok(dump),
            Some(other) => Err(format!("version {other} of the dump, this program reads {VERSION}")),
            None => Err("no @dump lines: the self-test writes them with --dump or dump=yes".to_owned()),
        }
    }

    fn line(&mut self, line: &str) -> Option<()> {
        let (name, at, data) = match line.split_once(" at=") {
            Some((name, rest)) => {
                let (at, data) = rest.split_once(' ')?;
                (name, hexadecimal(at)?, data)
            }
            None => return self.words(line),
        };
        if matches!(name, "config" | "segment") {
            let at = Some(at).filter(|at| *at < LONGEST as u32)?;
            self.dwords.insert((name.to_owned(), at), hexadecimal(data)?);
            return Some(());
        }
        let (at, data) = (at as usize, bytes(data)?);
        let end = at.checked_add(data.len()).filter(|end| *end <= LONGEST)?;
        let block = self.blocks.entry(name.to_owned()).or_default();
        block.resize(block.len().max(end), 0);
        block.get_mut(at..end)?.copy_from_slice(&data);
        Some(())
    }

    fn words(&mut self, line: &str) -> Option<()> {
        if line.contains(" refused ") {
            return Some(());
        }
        if let Some(rest) = line.strip_prefix("step=") {
            let (name, time) = rest.split_once(" us=")?;
            self.times.push((name.to_owned(), time.parse().ok()?));
            return Some(());
        }
        for word in line.split_whitespace().filter(|word| word.contains('=')) {
            let (name, value) = word.split_once('=')?;
            self.values.insert(name.to_owned(), value.to_owned());
        }
        Some(())
    }

    fn capabilities(&self, kind: CapType) -> &[u8] {
        self.blocks.get(&format!("cap={:#x} max", kind.0)).map_or(&[], Vec::as_slice)
    }

    fn register(&self, id: RegisterId) -> Option<&[u8]> {
        self.blocks.get(&format!("register={:#x}", id.0)).map(Vec::as_slice)
    }

    fn value<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.values.get(name)?.parse().ok()
    }

    fn hexadecimal(&self, name: &str) -> Option<u32> {
        hexadecimal(self.values.get(name)?)
    }

    fn config(&self, at: u32) -> Option<u32> {
        self.dwords.get(&("config".to_owned(), at)).copied()
    }

    fn segment(&self, at: u32) -> Option<u32> {
        self.dwords.get(&("segment".to_owned(), at)).copied()
    }

    /// Returns the offset of a PCI capability: the first dword of a run whose low byte is `id`.
    fn capability(&self, id: u32) -> Option<u32> {
        let starts = |at: &u32| *at >= 0x40 && at.checked_sub(4).and_then(|at| self.config(at)).is_none();
        let found = self.dwords.iter().filter(|((name, at), _)| name == "config" && starts(at));
        found.into_iter().find(|(_, dword)| **dword & 0xff == id).map(|((_, at), _)| *at)
    }

    /// Returns the card that the dump is of. The model keeps its own value where the card announces
    /// more than the model has, and where the dump does not say.
    ///
    /// # Errors
    /// The dump lacks what no profile can be without.
    pub fn card(&self) -> Result<Measured, String> {
        let general = self.capabilities(CapType::GENERAL);
        if general.is_empty() {
            return Err("the dump has no general capabilities".to_owned());
        }
        let port_type = PortType(cmd_hca_cap::port_type.get(general) as u8);
        let device_id = self.config(0).map(|dword| (dword >> 16) as u16);
        let base = nearest(port_type, device_id);
        let mut card = *base;
        self.identity(&mut card, device_id);
        self.firmware(&mut card);
        self.port(&mut card);
        let mut remarks = self.announced(&mut card, base);
        remarks.extend(self.times.iter().map(|(name, time)| format!("bring-up, {name}: {time} us")));
        Ok(Measured { card, remarks })
    }

    fn identity(&self, card: &mut Card, device_id: Option<u16>) {
        card.device_id = device_id.unwrap_or(card.device_id);
        card.subsystem_id = self.config(0x2c).map_or(card.subsystem_id, |dword| (dword >> 16) as u16);
        if let Some(psid) = self.values.get("psid").filter(|psid| *psid != card.psid) {
            card.psid = Box::leak(psid.clone().into_boxed_str());
        }
        if let Some(at) = self.capability(MSIX) {
            card.vectors = self.config(at).map_or(card.vectors, |dword| (dword >> 16 & 0x7ff) as u16 + 1);
            if let (Some(table), Some(pending)) = (self.config(at + 4), self.config(at + 8)) {
                card.msix = [table, pending].map(|dword| dword & !7);
            }
        }
        // An endpoint of the root complex has no link. QEMU shows cards on its first bus so.
        let link = self.capability(EXPRESS).and_then(|at| self.config(at + 0x0c));
        if let Some(link) = link.filter(|link| link & 0xf != 0) {
            card.pci_link = ((link & 0xf) as u8, (link >> 4 & 0x3f) as u8);
        }
        if let Some(register) = self.register(RegisterId::MGIR) {
            card.technology = mgir_reg::technology.get(register) as u8;
        }
        let general = self.capabilities(CapType::GENERAL);
        card.log_bar_mib = cmd_hca_cap::uar_sz.get32(general);
    }

    fn firmware(&self, card: &mut Card) {
        if let (Some(first), Some(second)) = (self.segment(0), self.segment(4)) {
            card.firmware = (first & 0xffff, first >> 16, second & 0xffff);
        }
        card.hardware_id = self.segment(0x234).unwrap_or(card.hardware_id);
        if let (Some(exec), Some(queue)) = (self.segment(0xff8), self.segment(0xffc)) {
            card.command_timeouts = [exec, queue];
        }
        let words = self.register(RegisterId::DTOR).unwrap_or_default().chunks_exact(4).enumerate();
        let words = words.map(|(index, word)| (4 * index, Field::bits(0, 31, 0).get32(word)));
        let words: Vec<_> = words.filter(|(_, word)| *word != 0).collect();
        if words != card.default_timeouts {
            card.default_timeouts = Box::leak(words.into_boxed_slice());
        }
        card.boot_pages = self.value("boot").unwrap_or(card.boot_pages);
        if let Some(pages) = self.value::<u32>("init") {
            let log_max_qp = self.value("log_max_qp").filter(|log: &u32| *log < 32).unwrap_or(0);
            let for_qps = ((1u32 << log_max_qp) >> 10).saturating_mul(card.pages_for_qps);
            card.init_pages = pages.saturating_sub(for_qps);
        }
        let has_terminator =
            later::CAP_TERMINATE_SCATTER_LIST_MKEY.is_set(self.capabilities(CapType::GENERAL));
        let special = self.blocks.get("special").map_or(&[][..], Vec::as_slice);
        let terminator = Field {
            bit_offset: later::TERMINATE_SCATTER_LIST_MKEY.bit_offset - 8 * SPECIAL_AT,
            ..later::TERMINATE_SCATTER_LIST_MKEY
        };
        card.terminator = has_terminator.then(|| terminator.get32(special));
    }

    fn port(&self, card: &mut Card) {
        if let Some(register) = self.register(RegisterId::PTYS) {
            if card.is_ethernet() {
                let fields = [ptys_reg::eth_proto_capability, ptys_reg::ext_eth_proto_capability];
                card.protocols = fields.map(|field| field.get32(register)).into();
            } else {
                card.speeds = Speeds::from_ptys(ptys_reg::ib_proto_capability.get32(register));
            }
        }
        card.has_smi = self.value::<u32>("has_smi").map_or(card.has_smi, |has| has != 0);
        card.capability_mask = self.hexadecimal("capability_mask").unwrap_or(card.capability_mask);
        card.unset_lid_is_ffff |= self.hexadecimal("lid") == Some(UNSET_LID);
    }

    /// Takes over the capabilities, and returns those that the model lacks.
    fn announced(&self, card: &mut Card, base: &'static Card) -> Vec<String> {
        let (mut general, mut others) = (base.capabilities.to_vec(), base.other_capabilities.to_vec());
        let mut remarks = Vec::new();
        for (group, kind, layout) in CAP_TYPES {
            let (announced, own) = (self.capabilities(kind), largest(base, kind));
            let of_medium = Card::ALL.iter().filter(|card| card.port_type == base.port_type);
            let all: Vec<Vec<u8>> = of_medium.map(|card| largest(card, kind)).collect();
            for (name, field) in fields(kind, layout) {
                let (value, own) = (field.get32(announced), field.get32(&own));
                let most = all.iter().map(|block| field.get32(block)).max().unwrap_or(own);
                if value > most {
                    remarks.push(format!("{group}.{name}: the card has {value:#x}, the model {most:#x}"));
                }
                let value = value.min(most);
                if value != own {
                    match kind {
                        CapType::GENERAL => general.push((field, value)),
                        kind => others.push((kind, field, value)),
                    }
                }
            }
        }
        if general != base.capabilities {
            card.capabilities = Box::leak(general.into_boxed_slice());
        }
        if others != base.other_capabilities {
            card.other_capabilities = Box::leak(others.into_boxed_slice());
        }
        remarks
    }
}

/// Returns the card of a medium with this device id, or the newest that is not newer.
fn nearest(port_type: PortType, device_id: Option<u16>) -> &'static Card {
    let of_medium = || Card::ALL.iter().copied().filter(|card| card.port_type == port_type);
    let same = of_medium().find(|card| Some(card.device_id) == device_id);
    let older = of_medium().filter(|card| device_id.is_none_or(|id| card.device_id <= id));
    let older = older.filter(|card| card.name != VIRTUAL_FUNCTION.name);
    same.or_else(|| older.max_by_key(|card| card.device_id))
        .or_else(|| of_medium().next())
        .unwrap_or(&CONNECTX_5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_dump_is_refused_with_its_line() {
        for (text, why) in [
            ("nothing", "no @dump lines"),
            ("@dump version=2", "version 2"),
            ("@dump version=1\n@dump cap=0x0 max at=0x0 123", "line 2"),
            ("@dump version=1\n@dump cap=0x0 max at=0xfff 1234", "line 2"),
            ("@dump version=1\n@dump cap=0x0 max at=zz 12", "line 2"),
            ("@dump version=1\n@dump segment at=0x0 wrong", "line 2"),
            ("@dump version=1\n@dump config at=0xfffffffc 11", "line 2"),
            ("@dump version=1\n@dump step=issi us=", "line 2"),
        ] {
            assert!(Dump::parse(text).expect_err("damaged").contains(why), "{text:?}");
        }
        let empty = Dump::parse("[1.0] @dump version=1\r\n").expect("a dump").card().expect_err("empty");
        assert!(empty.contains("no general capabilities"), "{empty}");
    }

    #[test]
    fn a_function_without_a_link_keeps_that_of_its_base() {
        let link = |dword: &str| {
            let text = format!(
                "@dump version=1\n@dump cap=0x0 max at=0x0 01\n\
                 @dump config at=0x60 00920010\n@dump config at=0x64 0\n@dump config at=0x68 0\n\
                 @dump config at=0x6c {dword}"
            );
            Dump::parse(&text).expect("a dump").card().expect("a card").card.pci_link
        };
        assert_eq!(link("00000083"), (3, 8));
        assert_eq!(link("00000000"), nearest(PortType::IB, None).pci_link);
    }

    #[test]
    fn a_card_without_an_own_profile_is_like_the_next_older() {
        for (port_type, id, name) in [
            (PortType::ETH, Some(0x101f), "cx-6-dx"),
            (PortType::ETH, Some(0x1015), "cx-5-en"),
            (PortType::ETH, Some(0xa2dc), "cx-7-en"),
            (PortType::IB, Some(0x1018), "vf"),
            (PortType::IB, Some(0x1019), "cx-5"),
            (PortType::IB, None, "cx-7"),
        ] {
            assert_eq!(nearest(port_type, id).name, name, "{id:x?}");
        }
    }
}

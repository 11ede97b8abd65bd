//! Profiles of cards as text: a card of [`Card::ALL`] and how the card differs from it.
//!
//! ```text
//! base = cx-6-dx
//! psid = MT_0000000430
//! firmware = 22.39.1002
//! general.log_max_cq = 0x18
//! ```

use crate::caps::Caps;
use crate::card::{CONNECTX_5, Card};
use crate::profile::Profile;
use mlx5_prm::caps::{
    atomic_caps, cmd_hca_cap, cmd_hca_cap_2, device_mem_cap, flow_table_nic_cap,
    per_protocol_networking_offload_caps, roce_cap,
};
use mlx5_prm::opcode::Opcode;
use mlx5_prm::value::{CapType, RegisterId};
use mlx5_prm::{Field, Kind, Layout, later};
use rdma_fabric::infiniband::Speeds;
use std::fmt::Write as _;

/// A fact of a card that a profile may state.
struct Key {
    name: &'static str,
    show: fn(&Card) -> String,
    /// `None` if the text has another form.
    read: fn(&mut Card, &str) -> Option<()>,
}

/// Returns a number, decimal or hexadecimal after `0x`.
fn number<T: TryFrom<u64>>(text: &str) -> Option<T> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok()?,
        None => text.parse().ok()?,
    };
    T::try_from(number).ok()
}

/// Returns `N` numbers with spaces between them.
fn numbers<T: TryFrom<u64>, const N: usize>(text: &str) -> Option<[T; N]> {
    list(text, number)?.try_into().ok()
}

fn list<T>(text: &str, item: impl Fn(&str) -> Option<T>) -> Option<Vec<T>> {
    text.split_whitespace().map(item).collect()
}

fn shown<T>(items: &[T], show: impl Fn(&T) -> String) -> String {
    items.iter().map(show).collect::<Vec<_>>().join(" ")
}

/// Keeps a value for the rest of the process. Profiles are read once for each command line.
fn kept<T: Clone>(items: &[T]) -> &'static [T] {
    Box::leak(items.to_vec().into_boxed_slice())
}

fn kept_text(text: &str) -> &'static str {
    Box::leak(text.to_owned().into_boxed_str())
}

/// A key whose value is one number of a field.
macro_rules! number_key {
    ($field:ident) => {
        number_key!($field, "{:#x}")
    };
    ($field:ident, $form:literal) => {
        Key {
            name: stringify!($field),
            show: |card| format!($form, card.$field),
            read: |card, text| number(text).map(|value| card.$field = value),
        }
    };
}

/// All facts but capabilities.
const KEYS: &[Key] = &[
    Key {
        name: "title",
        show: |card| card.title.to_owned(),
        read: |card, text| (!text.is_empty()).then(|| card.title = kept_text(text)),
    },
    number_key!(device_id),
    number_key!(subsystem_id),
    Key {
        name: "psid",
        show: |card| card.psid.to_owned(),
        read: |card, text| (text.len() <= 16).then(|| card.psid = kept_text(text)),
    },
    Key {
        name: "firmware",
        show: |card| {
            let (major, minor, sub_minor) = card.firmware;
            format!("{major}.{minor}.{sub_minor}")
        },
        read: |card, text| {
            let parts: Option<Vec<u16>> = text.split('.').map(|part| part.parse().ok()).collect();
            let parts: [u16; 3] = parts?.try_into().ok()?;
            card.firmware = parts.map(u32::from).into();
            Some(())
        },
    },
    number_key!(hardware_id),
    Key {
        name: "log_bar_mib",
        show: |card| card.log_bar_mib.to_string(),
        // 512 MiB: the model keeps a byte of state for some of them.
        read: |card, text| number(text).filter(|log| *log <= 9).map(|log| card.log_bar_mib = log),
    },
    Key {
        name: "vectors",
        show: |card| card.vectors.to_string(),
        read: |card, text| number(text).filter(|n| (1..=2048).contains(n)).map(|n| card.vectors = n),
    },
    Key {
        name: "msix",
        show: |card| shown(&card.msix, |at| format!("{at:#x}")),
        read: |card, text| numbers(text).map(|at| card.msix = at),
    },
    number_key!(technology, "{}"),
    Key {
        name: "pci_link",
        show: |card| format!("{} {}", card.pci_link.0, card.pci_link.1),
        read: |card, text| {
            let [generation, lanes] = numbers(text)?;
            let known = (1..=6).contains(&generation) && lanes <= 32;
            known.then(|| card.pci_link = (generation, lanes))
        },
    },
    number_key!(boot_pages, "{}"),
    number_key!(init_pages, "{}"),
    number_key!(pages_for_qps, "{}"),
    Key {
        name: "speeds",
        show: |card| format!("{:#x}", card.speeds.ptys()),
        read: |card, text| number(text).map(|bits| card.speeds = Speeds::from_ptys(bits)),
    },
    Key {
        name: "protocols",
        show: |card| format!("{:#x} {:#x}", card.protocols.0, card.protocols.1),
        read: |card, text| numbers(text).map(|[first, extended]| card.protocols = (first, extended)),
    },
    number_key!(capability_mask),
    Key {
        name: "has_smi",
        show: |card| card.has_smi.to_string(),
        read: |card, text| text.parse().ok().map(|has| card.has_smi = has),
    },
    Key {
        name: "terminator",
        show: |card| card.terminator.map_or("none".to_owned(), |key| format!("{key:#x}")),
        read: |card, text| {
            card.terminator = if text == "none" { None } else { Some(number(text)?) };
            Some(())
        },
    },
    Key {
        name: "read_only_registers",
        show: |card| shown(card.read_only_registers, |id| format!("{:#x}", id.0)),
        read: |card, text| {
            let ids = list(text, |id| number(id).map(RegisterId));
            ids.map(|ids| card.read_only_registers = kept(&ids))
        },
    },
    Key {
        name: "refused_commands",
        show: |card| shown(card.refused_commands, |opcode| format!("{:#x}", opcode.0)),
        read: |card, text| {
            let opcodes = list(text, |opcode| number(opcode).map(Opcode));
            opcodes.map(|opcodes| card.refused_commands = kept(&opcodes))
        },
    },
    Key {
        name: "unset_lid_is_ffff",
        show: |card| card.unset_lid_is_ffff.to_string(),
        read: |card, text| text.parse().ok().map(|is| card.unset_lid_is_ffff = is),
    },
    Key {
        name: "command_timeouts",
        show: |card| shown(&card.command_timeouts, |word| format!("{word:#x}")),
        read: |card, text| numbers(text).map(|words| card.command_timeouts = words),
    },
    Key {
        name: "default_timeouts",
        show: |card| shown(card.default_timeouts, |(at, word)| format!("{at:#x}:{word:#x}")),
        read: |card, text| {
            let words = list(text, |entry| {
                let (at, word) = entry.split_once(':')?;
                let at = number(at).filter(|at: &usize| at.is_multiple_of(4) && *at < later::DTOR_LEN)?;
                Some((at, number(word)?))
            });
            words.map(|words| card.default_timeouts = kept(&words))
        },
    },
];

/// Capability types whose fields a profile may state.
pub(super) const CAP_TYPES: [(&str, CapType, &Layout); 7] = [
    ("general", CapType::GENERAL, &cmd_hca_cap::LAYOUT),
    ("general_2", CapType::GENERAL_2, &cmd_hca_cap_2::LAYOUT),
    ("ethernet", CapType::ETHERNET_OFFLOADS, &per_protocol_networking_offload_caps::LAYOUT),
    ("roce", CapType::ROCE, &roce_cap::LAYOUT),
    ("atomic", CapType::ATOMIC, &atomic_caps::LAYOUT),
    ("flow_table", CapType::FLOW_TABLE, &flow_table_nic_cap::LAYOUT),
    ("device_memory", CapType::DEV_MEM, &device_mem_cap::LAYOUT),
];

/// Fields of the general capabilities that [`Card`] has as facts of its own.
const OWN_FACTS: [Field; 4] =
    [cmd_hca_cap::uar_sz, cmd_hca_cap::dtor, cmd_hca_cap::port_type, later::CAP_TERMINATE_SCATTER_LIST_MKEY];

/// Field of the atomic capabilities that drivers set.
const SETTING: &str = "atomic_req_8B_endianness_mode";

/// Returns the fields of a capability type by name, those of newer firmware with them.
pub(super) fn fields(kind: CapType, layout: &Layout) -> Vec<(String, Field)> {
    let mut fields = Vec::new();
    layout.visit(&mut |leaf| {
        let Kind::Field(_) = leaf.kind else { return };
        let field = Field { bit_offset: leaf.bit_offset, bit_width: leaf.bit_width };
        let path = leaf.path.to_string();
        let name = path.split_once('.').map_or(path.as_str(), |(_, name)| name);
        fields.push((name.to_owned(), field));
    });
    if kind == CapType::GENERAL {
        fields.push(("dma_mmo_sq".to_owned(), later::CAP_DMA_MMO_SQ));
        fields.push(("log_dma_mmo_max_size".to_owned(), later::CAP_LOG_DMA_MMO_MAX_SIZE));
    }
    fields.retain(|(name, field)| {
        let own = kind == CapType::GENERAL && OWN_FACTS.contains(field);
        field.bit_width <= 32 && !own && name != SETTING
    });
    fields
}

/// Returns the largest capabilities of a card.
pub(super) fn largest(card: &'static Card, kind: CapType) -> Vec<u8> {
    let caps = Caps::new(&Profile::of(card, 0));
    caps.query(kind, false).unwrap_or_default().to_vec()
}

impl Card {
    /// Returns the card as a profile: [`parse`](Self::parse) makes an equal one of it.
    #[must_use]
    pub fn to_text(&self) -> String {
        let base = Self::named(self.name).unwrap_or(&CONNECTX_5);
        let mut text = format!("base = {}\n", base.name);
        for key in KEYS {
            let value = (key.show)(self);
            if value != (key.show)(base) {
                let _ = writeln!(text, "{} = {value}", key.name);
            }
        }
        let added = self.capabilities.strip_prefix(base.capabilities).unwrap_or(self.capabilities);
        let general = added.iter().map(|&(field, value)| (CapType::GENERAL, field, value));
        for (kind, field, value) in general.chain(self.other_capabilities.iter().copied()) {
            let Some(&(group, _, layout)) = CAP_TYPES.iter().find(|(_, known, _)| *known == kind) else {
                continue;
            };
            if let Some((name, _)) = fields(kind, layout).into_iter().find(|(_, known)| *known == field) {
                let _ = writeln!(text, "{group}.{name} = {value:#x}");
            }
        }
        text
    }

    /// Returns the card that a profile describes. Empty lines and lines that begin with `#` are
    /// comments.
    ///
    /// # Errors
    /// The number of the first line that is wrong, and why.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut card: Option<Self> = None;
        let (mut general, mut others) = (Vec::new(), Vec::new());
        for (number_of_line, line) in text.lines().enumerate().map(|(index, line)| (index + 1, line.trim())) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |why: &str| format!("line {number_of_line}, `{line}`: {why}");
            let (name, value) =
                line.split_once('=').ok_or_else(|| wrong("not of the form `name = value`"))?;
            let (name, value) = (name.trim(), value.trim());
            let Some(card) = &mut card else {
                let base = (name == "base").then(|| Self::named(value)).flatten();
                card = Some(*base.ok_or_else(|| wrong("the first line is `base = CARD`"))?);
                continue;
            };
            if let Some(key) = KEYS.iter().find(|key| key.name == name) {
                (key.read)(card, value).ok_or_else(|| wrong("not a value of this name"))?;
                continue;
            }
            let (kind, field) = capability(name).ok_or_else(|| wrong("no fact of a card has this name"))?;
            let value: u32 = number(value)
                .filter(|value| u64::from(*value) <= field.max())
                .ok_or_else(|| wrong("not a number that fits in the field"))?;
            match kind {
                CapType::GENERAL => general.push((field, value)),
                kind => others.push((kind, field, value)),
            }
        }
        let mut card = card.ok_or("the profile is empty; its first line is `base = CARD`")?;
        let vectors = usize::from(card.vectors);
        let lens = [16 * vectors, vectors.next_multiple_of(64) / 8].map(|len| len.max(0x1000));
        let mut parts = card.msix.iter().zip(lens);
        if parts.any(|(&at, len)| !at.is_multiple_of(8) || at as usize + len > card.bar_size()) {
            return Err("msix: table or pending bits are not in BAR0".to_owned());
        }
        if !general.is_empty() {
            card.capabilities = kept(&[card.capabilities, &general].concat());
        }
        if !others.is_empty() {
            card.other_capabilities = kept(&[card.other_capabilities, &others].concat());
        }
        Ok(card)
    }
}

fn capability(name: &str) -> Option<(CapType, Field)> {
    let (group, name) = name.split_once('.')?;
    let &(_, kind, layout) = CAP_TYPES.iter().find(|(known, ..)| *known == group)?;
    let (_, field) = fields(kind, layout).into_iter().find(|(known, _)| known == name)?;
    Some((kind, field))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::card::CONNECTX_6_DX;

    #[test]
    fn every_card_is_its_own_profile() {
        for card in Card::ALL {
            assert_eq!(card.to_text(), format!("base = {}\n", card.name));
            assert_eq!(Card::parse(&card.to_text()), Ok(**card));
        }
    }

    #[test]
    fn every_fact_is_read_as_it_was_written() {
        let text = "base = cx-6-dx\ntitle = a card\ndevice_id = 0x101f\nsubsystem_id = 0x1\npsid = LNV_0000000001\n\
            firmware = 26.39.1002\nhardware_id = 0x216\nlog_bar_mib = 6\nvectors = 128\nmsix = 0x2000 0x4000\n\
            technology = 4\npci_link = 4 8\nboot_pages = 7\ninit_pages = 4660\npages_for_qps = 65\n\
            speeds = 0x37\nprotocols = 0x100000 0x800\ncapability_mask = 0x1\nhas_smi = true\nterminator = 0x300\n\
            read_only_registers = 0x5003\nrefused_commands = 0x50d 0x100\nunset_lid_is_ffff = false\n\
            command_timeouts = 0x1 0x2\ndefault_timeouts = 0x4:0x20000005\ngeneral.log_max_cq = 0x14\n\
            roce.l3_type = 0x6\n";
        let card = Card::parse(text).expect("a profile");
        assert_eq!(card.to_text(), text);
        for key in KEYS {
            assert_ne!((key.show)(&card), (key.show)(&CONNECTX_6_DX), "{}", key.name);
        }
        let caps = Caps::new(&Profile::of(Box::leak(Box::new(card)), 0));
        let field = |kind, field: Field| field.get32(caps.query(kind, false).expect("a block"));
        assert_eq!(field(CapType::GENERAL, cmd_hca_cap::log_max_cq), 0x14);
        assert_eq!(field(CapType::ROCE, roce_cap::l3_type), 6);
    }

    #[test]
    fn a_wrong_line_is_named() {
        for (text, why) in [
            ("", "the profile is empty"),
            ("psid = X", "line 1, `psid = X`: the first line is `base = CARD`"),
            ("# a comment\nbase = cx-9", "line 2, `base = cx-9`: the first line is"),
            ("base = cx-6\nspeed", "line 2, `speed`: not of the form"),
            ("base = cx-6\ncolour = red", "line 2, `colour = red`: no fact of a card"),
            ("base = cx-6\ngeneral.colour = 1", "no fact of a card"),
            ("base = cx-6\ngeneral.log_max_cq = 0x20", "fits in the field"),
            ("base = cx-6\nvectors = 0", "not a value of this name"),
            ("base = cx-6\nfirmware = 1.2", "not a value of this name"),
            ("base = cx-6\ndefault_timeouts = 0x40:0x1", "not a value of this name"),
            ("base = cx-6\nmsix = 0x2000 0xfffffff8", "msix: "),
            ("base = cx-6\nlog_bar_mib = 0\nvectors = 2048\nmsix = 0xff000 0x4000", "msix: "),
        ] {
            let error = Card::parse(text).expect_err("wrong");
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }
}

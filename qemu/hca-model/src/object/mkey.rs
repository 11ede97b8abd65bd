//! Memory keys (PRM, software context formats), and what they count of each other.

use super::table::Table;
use super::translation::mask;
pub use super::translation::{Klm, KlmList, Segments, Translation};
use mlx5_prm::value::AccessFlags;
use std::collections::HashMap;

/// First memory key index.
pub const FIRST_MKEY_INDEX: u32 = 0x100;

/// A memory key.
#[derive(Clone, Debug)]
pub struct Mkey {
    /// The whole key: index and variant byte.
    pub(crate) key: u32,
    /// Protection domain.
    pub(crate) pd: u32,
    /// The QP it is bound to, `None` for any QP of the PD.
    pub(crate) qpn: Option<u32>,
    /// Rights.
    pub(crate) access: AccessFlags,
    /// `mkc.free`: not usable until a UMR says so.
    pub(crate) free: bool,
    /// `mkc.en_rinval`.
    pub(crate) remote_invalidate: bool,
    /// First valid address.
    pub(crate) start_addr: u64,
    /// Bytes; ignored with `length64`.
    pub(crate) len: u64,
    /// The whole 2^64 space.
    pub(crate) length64: bool,
    /// What is behind it.
    pub(crate) translation: Translation,
    /// Room for translations, in octowords (`mkc.translations_octword_size`).
    pub(crate) octowords: u32,
    /// The context as given, for QUERY_MKEY.
    pub(crate) context: Vec<u8>,
}

impl Mkey {
    /// Host memory that it takes, its room for translations included.
    #[must_use]
    pub fn memory(&self) -> u64 {
        // An entry of a KLM list is there once more in its sums, and in the count of what the key behind it has.
        let octoword = if matches!(self.translation, Translation::Mtt { .. }) { 16 } else { 48 };
        (size_of::<Self>() + self.context.len()) as u64
            + octoword * u64::from(self.octowords).next_multiple_of(4)
    }
}

/// Why a key does not translate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MkeyError {
    /// No such key, or another variant of it.
    Missing,
    /// The key is free (invalidated).
    Free,
    /// Another protection domain.
    Pd,
    /// Bound to another QP.
    Qp,
    /// The right is not granted.
    Access,
    /// Outside the region.
    Bounds,
    /// Indirect keys nested too deep.
    Depth,
    /// The range consists of too many parts.
    Scattered,
}

impl MkeyError {
    /// The field at fault, for the log.
    #[must_use]
    pub const fn field(self) -> &'static str {
        match self {
            Self::Missing => "mkc.mkey_7_0",
            Self::Free => "mkc.free",
            Self::Pd => "mkc.pd",
            Self::Qp => "mkc.qpn",
            Self::Access => "mkc.access",
            Self::Bounds => "mkc.len",
            Self::Depth => "mkc.access_mode_1_0",
            Self::Scattered => "klm.bcount",
        }
    }

    /// Returns the reason as a predicate whose subject is the key.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Missing => "does not exist",
            Self::Free => "is free (invalidated)",
            Self::Pd => "belongs to another protection domain",
            Self::Qp => "is bound to another QP",
            Self::Access => "does not grant this access",
            Self::Bounds => "does not cover the address range",
            Self::Depth => "is nested too deep",
            Self::Scattered => "maps the range to too many parts",
        }
    }
}

/// Who uses a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// The protection domain of its QP or SRQ.
    pub(crate) pd: u32,
    /// Its QP.
    pub(crate) qpn: u32,
    /// Whether it may use the reserved L_Key (`qpc.rlky`); only for local access.
    pub(crate) reserved_lkey: bool,
}

/// All memory keys.
#[derive(Debug)]
pub struct Mkeys {
    /// By index.
    pub(crate) table: Table<Mkey>,
    /// The reserved L_Key (`query_special_contexts_out.resd_lkey`).
    pub(crate) reserved_lkey: u32,
    /// The key that ends a scatter list, where it is not 0x100 and length 0.
    pub(crate) terminator: Option<u32>,
    /// Octowords of translations that the keys have room for together.
    pub(crate) octowords: u64,
    /// By key, how many entries of indirect keys in use name it.
    references: HashMap<u32, u32>,
    /// By protection domain, the keys in use.
    in_use: HashMap<u32, u32>,
    /// Ranges that were translated lately and lie in one page, by what was asked; a change of any key ends them.
    recent: [Option<Recent>; RECENT],
    replaced: usize,
}

/// A translation that may be asked for again.
#[derive(Clone, Copy, Debug)]
struct Recent {
    key: u32,
    user: User,
    need: AccessFlags,
    /// Addresses from here on, and how many.
    va: u64,
    len: u64,
    /// The device's address of the first.
    address: u64,
}

/// Translations that are remembered.
const RECENT: usize = 2;

/// Octowords of translations that all keys together may have room for: 512 MiB, or a list of 64 Mi pages.
pub const MAX_OCTOWORDS: u64 = 1 << 25;

impl Mkeys {
    /// An empty table.
    #[must_use]
    pub fn new(limit: u32, reserved_lkey: u32) -> Self {
        Self {
            table: Table::new(FIRST_MKEY_INDEX, limit),
            reserved_lkey,
            terminator: None,
            octowords: 0,
            references: HashMap::new(),
            in_use: HashMap::new(),
            recent: [None; RECENT],
            replaced: 0,
        }
    }

    /// With a key that ends scatter lists.
    pub(crate) fn ending_lists_with(self, terminator: Option<u32>) -> Self {
        Self { terminator, ..self }
    }

    /// Removes all keys.
    pub fn clear(&mut self) {
        self.table.clear();
        self.octowords = 0;
        self.references.clear();
        self.in_use.clear();
        self.recent = [None; RECENT];
    }

    /// The key as a whole (index and variant byte must match).
    #[must_use]
    pub fn get(&self, key: u32) -> Option<&Mkey> {
        self.table.get(key >> 8).filter(|mkey| mkey.key == key)
    }

    /// Adds the key that `make` gives for its index; `None` when the table is full.
    pub fn insert(&mut self, make: impl FnOnce(u32) -> Mkey) -> Option<u32> {
        let index = self.table.insert(make)?;
        self.count(index, true);
        Some(index)
    }

    /// Takes a key out.
    pub fn remove(&mut self, index: u32) -> Option<Box<Mkey>> {
        self.count(index, false);
        self.table.remove(index)
    }

    /// Changes a key. Answers what `change` does, and the entries that were looked at.
    pub fn change<R>(&mut self, index: u32, change: impl FnOnce(&mut Mkey) -> R) -> Option<(R, u64)> {
        let before = self.count(index, false);
        let result = self.table.get_mut(index).map(change);
        let after = self.count(index, true);
        result.map(|result| (result, before + after))
    }

    /// Counts what a key in use names, or takes it off the count. Answers the entries looked at.
    fn count(&mut self, index: u32, add: bool) -> u64 {
        self.recent = [None; RECENT];
        let Some(mkey) = self.table.get(index).filter(|mkey| !mkey.free) else { return 0 };
        let count = |counts: &mut HashMap<u32, u32>, number: u32| {
            let count = counts.entry(number).or_default();
            *count = if add { count.saturating_add(1) } else { count.saturating_sub(1) };
            if *count == 0 {
                counts.remove(&number);
            }
        };
        count(&mut self.in_use, mkey.pd);
        let mut looked_at = 1;
        for key in mkey.translation.references().filter(|key| *key != mkey.key) {
            count(&mut self.references, key);
            looked_at += 1;
        }
        looked_at
    }

    /// Entries of windows (or other indirect keys) in use that are parts of `key`.
    #[must_use]
    pub fn bound_to(&self, key: u32) -> u32 {
        self.references.get(&key).copied().unwrap_or(0)
    }

    /// Keys in use in protection domain `pd`.
    #[must_use]
    pub fn in_use(&self, pd: u32) -> u32 {
        self.in_use.get(&pd).copied().unwrap_or(0)
    }

    /// The device address of `len` bytes at `va` of `key`, if they lie in a page that was asked for in the same way before.
    #[inline]
    pub(crate) fn recent(&self, key: u32, user: User, va: u64, len: u64, need: AccessFlags) -> Option<u64> {
        let recent = self.recent.iter().flatten().find(|recent| {
            recent.key == key
                && va.wrapping_sub(recent.va) < recent.len
                && recent.user == user
                && recent.need == need
        })?;
        let offset = va.wrapping_sub(recent.va);
        (len <= recent.len - offset).then(|| recent.address.wrapping_add(offset))
    }

    /// Remembers the page in which `va` of an MTT key lies, after it was translated.
    pub(crate) fn remember(&mut self, key: u32, user: User, va: u64, need: AccessFlags) {
        let Some(mkey) = self.get(key).filter(|mkey| !mkey.length64) else { return };
        let Translation::Mtt { entries, log_page_size, .. } = &mkey.translation else { return };
        let first = mkey.start_addr & mask(*log_page_size);
        let at = first.wrapping_add(va.wrapping_sub(mkey.start_addr));
        let index = usize::try_from(at >> log_page_size).unwrap_or(usize::MAX);
        let Some(page) = entries.get(index).map(|entry| entry & !0xfff) else { return };
        // The part of the page that belongs to the key.
        let begin = (index as u64) << log_page_size;
        let low = begin.max(first);
        let high = begin.saturating_add(1 << log_page_size).min(first.saturating_add(mkey.len));
        let recent = Recent {
            key,
            user,
            need,
            va: mkey.start_addr.wrapping_add(low - first),
            len: high.saturating_sub(low),
            address: page.wrapping_add(low - begin),
        };
        self.replaced = (self.replaced + 1) % RECENT;
        if let Some(place) = self.recent.get_mut(self.replaced) {
            *place = Some(recent);
        }
    }
}

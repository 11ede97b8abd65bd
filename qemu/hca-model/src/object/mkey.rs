//! Memory keys (PRM, software context formats).

use super::table::Table;
use mlx5_prm::value::AccessFlags;

/// First memory key index.
pub const FIRST_MKEY_INDEX: u32 = 0x100;

/// How a key turns addresses into device addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Translation {
    /// The address is the device address.
    Physical,
    /// A list of pages of `1 << log_page_size` bytes.
    Mtt {
        /// Device address of each page; the low bits carry the page's own access rights.
        entries: Vec<u64>,
        /// log2 of bytes.
        log_page_size: u32,
        /// Whether the low two bits of an entry are its rights (`create_mkey_in.pg_access`).
        page_access: bool,
    },
    /// Pieces of other keys.
    Klm(Vec<Klm>),
    /// Equal pieces of `1 << log_entity_size` bytes of other keys.
    Ksm {
        /// The pieces.
        entries: Vec<Klm>,
        /// log2 of bytes.
        log_entity_size: u32,
    },
}

/// One entry of a KLM or KSM list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Klm {
    /// Bytes (KLM only).
    pub byte_count: u32,
    /// The key they belong to.
    pub key: u32,
    /// Their address under that key.
    pub address: u64,
}

/// A memory key.
#[derive(Clone, Debug)]
pub struct Mkey {
    /// The whole key: index and variant byte.
    pub key: u32,
    /// Protection domain.
    pub pd: u32,
    /// The QP it is bound to, `None` for any QP of the PD.
    pub qpn: Option<u32>,
    /// Rights.
    pub access: AccessFlags,
    /// `mkc.free`: not usable until a UMR says so.
    pub free: bool,
    /// `mkc.en_rinval`.
    pub remote_invalidate: bool,
    /// First valid address.
    pub start_addr: u64,
    /// Bytes; ignored with `length64`.
    pub len: u64,
    /// The whole 2^64 space.
    pub length64: bool,
    /// What is behind it.
    pub translation: Translation,
    /// Room for translations, in octowords (`mkc.translations_octword_size`).
    pub octowords: u32,
    /// The context as given, for QUERY_MKEY.
    pub context: Vec<u8>,
}

/// A piece of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Device address.
    pub address: u64,
    /// Bytes.
    pub len: u64,
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
        }
    }
}

/// Who uses a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// The protection domain of its QP or SRQ.
    pub pd: u32,
    /// Its QP.
    pub qpn: u32,
    /// Whether it may use the reserved L_Key (`qpc.rlky`); only for local access.
    pub reserved_lkey: bool,
}

/// All memory keys.
#[derive(Debug)]
pub struct Mkeys {
    /// By index.
    pub table: Table<Mkey>,
    /// The reserved L_Key (`query_special_contexts_out.resd_lkey`).
    pub reserved_lkey: u32,
    /// Octowords of translations that the keys have room for together.
    pub octowords: u64,
}

/// Octowords of translations that all keys together may have room for: 512 MiB, or a list of 64 Mi pages.
pub const MAX_OCTOWORDS: u64 = 1 << 25;

/// Nesting of indirect keys that hardware follows (`cmd_hca_cap.max_indirection`).
pub const MAX_INDIRECTION: u32 = 4;

impl Mkeys {
    /// An empty table.
    #[must_use]
    pub const fn new(limit: u32, reserved_lkey: u32) -> Self {
        Self { table: Table::new(FIRST_MKEY_INDEX, limit), reserved_lkey, octowords: 0 }
    }

    /// Removes all keys.
    pub fn clear(&mut self) {
        self.table.clear();
        self.octowords = 0;
    }

    /// The key as a whole (index and variant byte must match).
    #[must_use]
    pub fn get(&self, key: u32) -> Option<&Mkey> {
        self.table.get(key >> 8).filter(|mkey| mkey.key == key)
    }

    /// The key as a whole, to change it.
    #[must_use]
    pub fn get_mut(&mut self, key: u32) -> Option<&mut Mkey> {
        self.table.get_mut(key >> 8).filter(|mkey| mkey.key == key)
    }

    /// Appends to `out` the device memory behind `len` bytes at `va` of `key`. `need` is one right, or several
    /// (`LOCAL_READ`, `LOCAL_WRITE`, `REMOTE_READ`, `REMOTE_WRITE`, `ATOMIC`). A zero `len` checks key, PD and rights only.
    ///
    /// # Errors
    /// [`MkeyError`]; `out` may then hold a part of the answer, to be discarded.
    pub fn translate(
        &self,
        key: u32,
        user: User,
        va: u64,
        len: u64,
        need: AccessFlags,
        out: &mut Vec<Segment>,
    ) -> Result<(), MkeyError> {
        let local = AccessFlags::LOCAL_READ | AccessFlags::LOCAL_WRITE;
        if user.reserved_lkey && key == self.reserved_lkey && local.contains(need) {
            push_segment(out, va, len);
            return Ok(());
        }
        self.walk(key, user, va, len, need, out, MAX_INDIRECTION)
    }

    /// A piece of an indirect key: of another key, or of memory itself by the reserved L_Key.
    #[allow(clippy::too_many_arguments)] // As `walk`.
    fn walk_piece(
        &self,
        key: u32,
        user: User,
        va: u64,
        len: u64,
        need: AccessFlags,
        out: &mut Vec<Segment>,
        depth: u32,
    ) -> Result<(), MkeyError> {
        if user.reserved_lkey && key == self.reserved_lkey {
            push_segment(out, va, len);
            return Ok(());
        }
        self.walk(key, user, va, len, local_form(need), out, depth)
    }

    #[allow(clippy::too_many_arguments)] // The recursion's state; a struct would only rename it.
    fn walk(
        &self,
        key: u32,
        user: User,
        va: u64,
        len: u64,
        need: AccessFlags,
        out: &mut Vec<Segment>,
        depth: u32,
    ) -> Result<(), MkeyError> {
        let mkey = self.get(key).ok_or(MkeyError::Missing)?;
        if mkey.free {
            return Err(MkeyError::Free);
        }
        if mkey.pd != user.pd {
            return Err(MkeyError::Pd);
        }
        if mkey.qpn.is_some_and(|qpn| qpn != user.qpn) {
            return Err(MkeyError::Qp);
        }
        // Local read is always possible on hardware (PRM, software context formats, "should always be 1").
        if !(mkey.access | AccessFlags::LOCAL_READ).contains(need) {
            return Err(MkeyError::Access);
        }
        if len == 0 {
            return Ok(());
        }
        let offset = if mkey.length64 {
            va.wrapping_sub(mkey.start_addr)
        } else {
            let offset = va.checked_sub(mkey.start_addr).ok_or(MkeyError::Bounds)?;
            if offset.checked_add(len).is_none_or(|end| end > mkey.len) {
                return Err(MkeyError::Bounds);
            }
            offset
        };
        match &mkey.translation {
            Translation::Physical => {
                push_segment(out, va, len);
                Ok(())
            }
            Translation::Mtt { entries, log_page_size, page_access } => {
                // Pages hold what their addresses say: the first starts at start_addr rounded down to a page.
                let mut at = (mkey.start_addr & mask(*log_page_size)).wrapping_add(offset);
                let mut left = len;
                while left > 0 {
                    let index = usize::try_from(at >> log_page_size).map_err(|_| MkeyError::Bounds)?;
                    let entry = *entries.get(index).ok_or(MkeyError::Bounds)?;
                    let writes = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::ATOMIC;
                    let reads = AccessFlags::LOCAL_READ | AccessFlags::REMOTE_READ | AccessFlags::ATOMIC;
                    if *page_access
                        && ((need.intersects(writes) && entry & 2 == 0)
                            || (need.intersects(reads) && entry & 1 == 0))
                    {
                        return Err(MkeyError::Access);
                    }
                    let inside = at & mask(*log_page_size);
                    let piece = left.min((1 << log_page_size) - inside);
                    push_segment(out, (entry & !0xfff).wrapping_add(inside), piece);
                    at = at.wrapping_add(piece);
                    left -= piece;
                }
                Ok(())
            }
            Translation::Klm(entries) => {
                let depth = depth.checked_sub(1).ok_or(MkeyError::Depth)?;
                let (mut skip, mut left) = (offset, len);
                for klm in entries {
                    let count = u64::from(klm.byte_count);
                    if skip >= count {
                        skip -= count;
                        continue;
                    }
                    let piece = left.min(count - skip);
                    self.walk_piece(klm.key, user, klm.address.wrapping_add(skip), piece, need, out, depth)?;
                    left -= piece;
                    skip = 0;
                    if left == 0 {
                        return Ok(());
                    }
                }
                Err(MkeyError::Bounds)
            }
            Translation::Ksm { entries, log_entity_size } => {
                let depth = depth.checked_sub(1).ok_or(MkeyError::Depth)?;
                let (mut at, mut left) = (offset, len);
                while left > 0 {
                    let index = usize::try_from(at >> log_entity_size).map_err(|_| MkeyError::Bounds)?;
                    let ksm = entries.get(index).ok_or(MkeyError::Bounds)?;
                    let inside = at & mask(*log_entity_size);
                    let piece = left.min((1 << log_entity_size) - inside);
                    let address = ksm.address.wrapping_add(inside);
                    self.walk_piece(ksm.key, user, address, piece, need, out, depth)?;
                    at = at.wrapping_add(piece);
                    left -= piece;
                }
                Ok(())
            }
        }
    }
}

const fn mask(log: u32) -> u64 {
    (1 << log) - 1
}

/// What an indirect key needs of the key behind it: remote rights are the window's own, the region behind it must only be
/// readable or writable.
fn local_form(need: AccessFlags) -> AccessFlags {
    let mut local = AccessFlags::LOCAL_READ;
    let writes = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::ATOMIC;
    if need.intersects(writes) {
        local |= AccessFlags::LOCAL_WRITE;
    }
    local
}

/// Adds a piece, joined to the last one where they touch.
fn push_segment(out: &mut Vec<Segment>, address: u64, len: u64) {
    if let Some(last) = out.last_mut()
        && last.address.wrapping_add(last.len) == address
    {
        last.len += len;
        return;
    }
    if len > 0 {
        out.push(Segment { address, len });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: User = User { pd: 7, qpn: 0x20, reserved_lkey: false };

    fn key(index: u32, translation: Translation, start_addr: u64, len: u64) -> Mkey {
        Mkey {
            key: index << 8 | 0x5a,
            pd: 7,
            qpn: None,
            access: AccessFlags::LOCAL_READ | AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ,
            free: false,
            remote_invalidate: false,
            start_addr,
            len,
            length64: false,
            translation,
            octowords: 0,
            context: Vec::new(),
        }
    }

    fn mtt(entries: &[u64]) -> Translation {
        Translation::Mtt { entries: entries.to_vec(), log_page_size: 12, page_access: false }
    }

    #[test]
    fn a_region_that_starts_inside_its_first_page() {
        let mut keys = Mkeys::new(16, 0x100);
        let index = keys.table.insert(|n| key(n, mtt(&[0x8000, 0x9000, 0x20_0000]), 0x10_0c00, 0x1800));
        let lkey = index.unwrap_or(0) << 8 | 0x5a;
        let mut out = Vec::new();
        assert_eq!(keys.translate(lkey, USER, 0x10_0c00, 0x1800, AccessFlags::LOCAL_WRITE, &mut out), Ok(()));
        assert_eq!(
            out,
            [Segment { address: 0x8c00, len: 0x1400 }, Segment { address: 0x20_0000, len: 0x400 }],
            "neighbouring pages are one piece"
        );
        let check = |k, user, va, len, need| keys.translate(k, user, va, len, need, &mut Vec::new());
        let read = AccessFlags::LOCAL_READ;
        assert_eq!(check(lkey, USER, 0x10_0c00, 0x1801, read), Err(MkeyError::Bounds));
        assert_eq!(check(lkey, USER, 0x10_0bff, 1, read), Err(MkeyError::Bounds));
        assert_eq!(check(lkey, USER, u64::MAX, 2, read), Err(MkeyError::Bounds));
        assert_eq!(check(lkey ^ 1, USER, 0x10_0c00, 1, read), Err(MkeyError::Missing));
        assert_eq!(check(lkey, User { pd: 8, ..USER }, 0x10_0c00, 1, read), Err(MkeyError::Pd));
        assert_eq!(check(lkey, USER, 0x10_0c00, 1, AccessFlags::REMOTE_WRITE), Err(MkeyError::Access));
        assert_eq!(check(lkey, USER, 0x10_0c00, 0, AccessFlags::REMOTE_WRITE), Err(MkeyError::Access));
    }

    #[test]
    fn an_indirect_key_is_followed_and_bounded() {
        let mut keys = Mkeys::new(16, 0x100);
        let a = keys.table.insert(|n| key(n, mtt(&[0x8000]), 0, 0x1000)).unwrap_or(0) << 8 | 0x5a;
        let pieces =
            [Klm { byte_count: 16, key: a, address: 0x100 }, Klm { byte_count: 16, key: a, address: 0x800 }];
        let b = keys.table.insert(|n| key(n, Translation::Klm(pieces.to_vec()), 0x1000, 32)).unwrap_or(0)
            << 8
            | 0x5a;
        let mut out = Vec::new();
        assert_eq!(keys.translate(b, USER, 0x1008, 16, AccessFlags::REMOTE_READ, &mut out), Ok(()));
        assert_eq!(out, [Segment { address: 0x8108, len: 8 }, Segment { address: 0x8800, len: 8 }]);
        let own = [Klm { byte_count: 16, key: 0, address: 0 }];
        let c = keys.table.insert(|n| key(n, Translation::Klm(own.to_vec()), 0, 16)).unwrap_or(0) << 8 | 0x5a;
        if let Some(mkey) = keys.get_mut(c) {
            mkey.translation = Translation::Klm(vec![Klm { byte_count: 16, key: c, address: 0 }]);
        }
        assert_eq!(
            keys.translate(c, USER, 0, 8, AccessFlags::LOCAL_READ, &mut Vec::new()),
            Err(MkeyError::Depth)
        );
    }

    #[test]
    fn the_reserved_key_serves_only_queues_allowed_to_use_it() {
        let keys = Mkeys::new(16, 0x700);
        let allowed = User { reserved_lkey: true, ..USER };
        let mut out = Vec::new();
        assert_eq!(keys.translate(0x700, allowed, 0x1234, 8, AccessFlags::LOCAL_WRITE, &mut out), Ok(()));
        assert_eq!(out, [Segment { address: 0x1234, len: 8 }]);
        assert_eq!(
            keys.translate(0x700, USER, 0, 8, AccessFlags::LOCAL_READ, &mut out),
            Err(MkeyError::Missing)
        );
        assert_eq!(
            keys.translate(0x700, allowed, 0, 8, AccessFlags::REMOTE_READ, &mut out),
            Err(MkeyError::Missing)
        );
    }
}

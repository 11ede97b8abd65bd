//! From a key and an address to device memory: through pages, and through the keys that an indirect key is made of.

use super::mkey::{MkeyError, Mkeys, User};
use super::translation::{Segments, Translation, mask};
use mlx5_prm::value::AccessFlags;

/// Nesting of indirect keys that hardware follows (`cmd_hca_cap.max_indirection`).
pub const MAX_INDIRECTION: u32 = 4;

impl Mkeys {
    /// Appends to `out` the memory behind `len` bytes at `va` of `key`. `need` is one right, or several
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
        out: &mut Segments,
    ) -> Result<(), MkeyError> {
        let local = AccessFlags::LOCAL_READ | AccessFlags::LOCAL_WRITE;
        if user.reserved_lkey && key == self.reserved_lkey && local.contains(need) {
            out.push(va, len);
            return Ok(());
        }
        Walk { keys: self, user, out }.key(key, va, len, need, MAX_INDIRECTION)
    }
}

/// A translation under way.
struct Walk<'a> {
    keys: &'a Mkeys,
    user: User,
    out: &'a mut Segments,
}

impl Walk<'_> {
    #[inline]
    fn step(&mut self) -> Result<(), MkeyError> {
        if self.out.step() { Ok(()) } else { Err(MkeyError::Scattered) }
    }

    fn key(&mut self, key: u32, va: u64, len: u64, need: AccessFlags, depth: u32) -> Result<(), MkeyError> {
        self.step()?;
        let mkey = self.keys.get(key).ok_or(MkeyError::Missing)?;
        if mkey.free {
            return Err(MkeyError::Free);
        }
        if mkey.pd != self.user.pd {
            return Err(MkeyError::Pd);
        }
        if mkey.qpn.is_some_and(|qpn| qpn != self.user.qpn) {
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
                self.out.push(va, len);
                Ok(())
            }
            Translation::Device { start, len: there } => {
                if offset.checked_add(len).is_none_or(|end| end > *there) {
                    return Err(MkeyError::Bounds);
                }
                self.out.push_own(start + offset, len);
                Ok(())
            }
            Translation::Mtt { entries, log_page_size, page_access } => {
                // Pages hold what their addresses say: the first starts at start_addr rounded down to a page.
                let at = (mkey.start_addr & mask(*log_page_size)).wrapping_add(offset);
                self.pages(entries, *log_page_size, need, *page_access, at, len)
            }
            Translation::Klm(list) => {
                let depth = depth.checked_sub(1).ok_or(MkeyError::Depth)?;
                let (mut at, mut left) = (offset, len);
                while left > 0 {
                    let (klm, skip) = list.find(at).ok_or(MkeyError::Bounds)?;
                    let part = left.min(u64::from(klm.byte_count) - skip);
                    self.part(klm.key, klm.address.wrapping_add(skip), part, need, depth)?;
                    at = at.wrapping_add(part);
                    left -= part;
                }
                Ok(())
            }
            Translation::Interleaved(layout) => {
                let depth = depth.checked_sub(1).ok_or(MkeyError::Depth)?;
                let (mut at, mut left) = (offset, len);
                while left > 0 {
                    let (key, address, there) = layout.find(at).ok_or(MkeyError::Bounds)?;
                    let part = left.min(there);
                    self.part(key, address, part, need, depth)?;
                    at = at.wrapping_add(part);
                    left -= part;
                }
                Ok(())
            }
            Translation::Ksm { entries, log_entity_size } => {
                let depth = depth.checked_sub(1).ok_or(MkeyError::Depth)?;
                let (mut at, mut left) = (offset, len);
                while left > 0 {
                    let index = usize::try_from(at >> log_entity_size).map_err(|_| MkeyError::Bounds)?;
                    let ksm = entries.get(index).ok_or(MkeyError::Bounds)?;
                    let inside = at & mask(*log_entity_size);
                    let part = left.min((1 << log_entity_size) - inside);
                    self.part(ksm.key, ksm.address.wrapping_add(inside), part, need, depth)?;
                    at = at.wrapping_add(part);
                    left -= part;
                }
                Ok(())
            }
        }
    }

    fn pages(
        &mut self,
        entries: &[u64],
        log_page_size: u32,
        need: AccessFlags,
        page_access: bool,
        mut at: u64,
        mut left: u64,
    ) -> Result<(), MkeyError> {
        let writes = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::ATOMIC;
        let reads = AccessFlags::LOCAL_READ | AccessFlags::REMOTE_READ | AccessFlags::ATOMIC;
        while left > 0 {
            self.step()?;
            let index = usize::try_from(at >> log_page_size).map_err(|_| MkeyError::Bounds)?;
            let entry = *entries.get(index).ok_or(MkeyError::Bounds)?;
            if page_access
                && ((need.intersects(writes) && entry & 2 == 0) || (need.intersects(reads) && entry & 1 == 0))
            {
                return Err(MkeyError::Access);
            }
            let inside = at & mask(log_page_size);
            let part = left.min((1 << log_page_size) - inside);
            self.out.push((entry & !0xfff).wrapping_add(inside), part);
            at = at.wrapping_add(part);
            left -= part;
        }
        Ok(())
    }

    /// A part of an indirect key: of another key, or of memory itself by the reserved L_Key.
    fn part(&mut self, key: u32, va: u64, len: u64, need: AccessFlags, depth: u32) -> Result<(), MkeyError> {
        if self.user.reserved_lkey && key == self.keys.reserved_lkey {
            self.step()?;
            self.out.push(va, len);
            return Ok(());
        }
        self.key(key, va, len, local_form(need), depth)
    }
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
#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::mkey::Mkey;
    use crate::object::translation::{Klm, KlmList, Segment};

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
        let index = keys.insert(|n| key(n, mtt(&[0x8000, 0x9000, 0x20_0000]), 0x10_0c00, 0x1800));
        let lkey = index.unwrap_or(0) << 8 | 0x5a;
        let mut out = Segments::default();
        assert_eq!(keys.translate(lkey, USER, 0x10_0c00, 0x1800, AccessFlags::LOCAL_WRITE, &mut out), Ok(()));
        assert_eq!(
            out.list,
            [
                Segment { address: 0x8c00, len: 0x1400, own: false },
                Segment { address: 0x20_0000, len: 0x400, own: false }
            ],
            "neighbouring pages are one range"
        );
        let check = |k, user, va, len, need| keys.translate(k, user, va, len, need, &mut Segments::default());
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
        let a = keys.insert(|n| key(n, mtt(&[0x8000]), 0, 0x1000)).unwrap_or(0) << 8 | 0x5a;
        let parts =
            [Klm { byte_count: 16, key: a, address: 0x100 }, Klm { byte_count: 16, key: a, address: 0x800 }];
        let b =
            keys.insert(|n| key(n, Translation::Klm(KlmList::new(parts.to_vec())), 0x1000, 32)).unwrap_or(0)
                << 8
                | 0x5a;
        let mut out = Segments::default();
        assert_eq!(keys.translate(b, USER, 0x1008, 16, AccessFlags::REMOTE_READ, &mut out), Ok(()));
        assert_eq!(
            out.list,
            [
                Segment { address: 0x8108, len: 8, own: false },
                Segment { address: 0x8800, len: 8, own: false }
            ]
        );
        let own = [Klm { byte_count: 16, key: 0, address: 0 }];
        let c = keys.insert(|n| key(n, Translation::Klm(KlmList::new(own.to_vec())), 0, 16)).unwrap_or(0)
            << 8
            | 0x5a;
        let itself = KlmList::new(vec![Klm { byte_count: 16, key: c, address: 0 }]);
        assert!(keys.change(c >> 8, |mkey| mkey.translation = Translation::Klm(itself)).is_some());
        assert_eq!(
            keys.translate(c, USER, 0, 8, AccessFlags::LOCAL_READ, &mut Segments::default()),
            Err(MkeyError::Depth)
        );
    }

    #[test]
    fn the_reserved_key_serves_only_queues_allowed_to_use_it() {
        let keys = Mkeys::new(16, 0x700);
        let allowed = User { reserved_lkey: true, ..USER };
        let mut out = Segments::default();
        assert_eq!(keys.translate(0x700, allowed, 0x1234, 8, AccessFlags::LOCAL_WRITE, &mut out), Ok(()));
        assert_eq!(out.list, [Segment { address: 0x1234, len: 8, own: false }]);
        assert_eq!(
            keys.translate(0x700, USER, 0, 8, AccessFlags::LOCAL_READ, &mut out),
            Err(MkeyError::Missing)
        );
        assert_eq!(
            keys.translate(0x700, allowed, 0, 8, AccessFlags::REMOTE_READ, &mut out),
            Err(MkeyError::Missing)
        );
    }

    #[test]
    fn a_remembered_page_answers_as_the_translation_does() {
        let mut keys = Mkeys::new(16, 0x100);
        let read = AccessFlags::LOCAL_READ;
        let index = keys.insert(|n| key(n, mtt(&[0x8000, 0x2_0000, 0x5000]), 0x10_0c00, 0x1c80)).unwrap_or(0);
        let lkey = index << 8 | 0x5a;
        for asked in [0x10_0c00, 0x10_1800, 0x10_287f] {
            assert!(keys.change(index, |_| ()).is_some());
            keys.remember(lkey, USER, asked, read);
            assert!(keys.recent(lkey, USER, asked, 1, read).is_some());
            for va in (0x10_0bf0..0x10_28a0).step_by(8) {
                for len in [1, 8, 64, 0x1000] {
                    let mut out = Segments::default();
                    let right = keys.translate(lkey, USER, va, len, read, &mut out).map(|()| out.list);
                    if let Some(address) = keys.recent(lkey, USER, va, len, read) {
                        assert_eq!(
                            right,
                            Ok(vec![Segment { address, len, own: false }]),
                            "{len} bytes at {va:#x}"
                        );
                    }
                }
            }
            assert_eq!(keys.recent(lkey, USER, asked, 1, AccessFlags::LOCAL_WRITE), None);
            assert_eq!(keys.recent(lkey, User { pd: 8, ..USER }, asked, 1, read), None);
            assert_eq!(keys.recent(lkey ^ 1, USER, asked, 1, read), None);
            assert!(keys.change(index, |mkey| mkey.free = false).is_some());
            assert_eq!(keys.recent(lkey, USER, asked, 1, read), None, "a change forgets it");
        }
    }
}

//! Memory windows: keys for a part of a registered region, bound and unbound by work requests instead of commands.

use crate::config::Access;
use crate::generation::{Age, Generation, Object};
use crate::types::{LKey, RKey};
use mlx5_prm::datapath::{FmCeSe, MkeyMask, UmrFlags};

/// Kind of a memory window (IBTA 1.3, 10.6.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum MwType {
    /// Any QP of its protection domain may bind it, again and again, and peers of all of them may use it.
    One,
    /// Belongs to the QP that bound it (2B) until it is invalidated, by this side or by the peer; only then it can be bound again.
    Two,
}

/// A memory window. A copy is a name, not ownership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryWindow {
    rkey: RKey,
    kind: MwType,
    generation: Generation,
}

impl MemoryWindow {
    pub(crate) fn new(rkey: RKey, kind: MwType, generation: Generation) -> Self {
        Self { rkey, kind, generation }
    }

    /// Returns the key for peers, as the last bind posted makes it: its low 8 bits change with every bind.
    #[inline]
    pub const fn rkey(&self) -> RKey {
        self.rkey
    }

    /// Sets the low 8 bits of the key to those of `rkey`, which the device has after a bind that it has not carried out.
    pub const fn set_variant(&mut self, rkey: RKey) {
        self.rkey = RKey::new(self.rkey.get() & !0xff | rkey.get() & 0xff);
    }

    /// Returns the kind.
    pub const fn kind(&self) -> MwType {
        self.kind
    }
}

impl Object for MemoryWindow {
    type Number = RKey;

    fn made(&self, now: Generation) -> Age {
        self.generation.made(now)
    }

    fn name(&self) -> RKey {
        self.rkey
    }
}

/// What a window is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct MwBind {
    /// Key of the registered region that the window is part of; in the same protection domain.
    pub lkey: LKey,
    /// First byte of the window as the region's key counts.
    pub address: u64,
    /// Bytes, below 2^31. 0 binds the window to nothing.
    pub length: u32,
    /// What peers may do, of [`Access::REMOTE_READ`], [`Access::REMOTE_WRITE`] and [`Access::REMOTE_ATOMIC`]; to write, the region needs
    /// [`Access::LOCAL_WRITE`].
    pub access: Access,
    /// Whether peers count from 0 instead of from `address`.
    pub zero_based: bool,
}

/// Octowords of a work request that binds: control segment, UMR control segment, memory key, list of one piece padded to 64 bytes.
pub(crate) const BIND_OCTOWORDS: usize = 12;
/// Octowords of one that leaves the window bound to nothing: without the list.
pub(crate) const UNBIND_OCTOWORDS: usize = 8;

/// `mkc.free` and the rights, in the first dword of a memory key.
const FREE: u32 = 1 << 30;
const RIGHTS: [(Access, u32); 3] =
    [(Access::REMOTE_READ, 1 << 12), (Access::REMOTE_WRITE, 1 << 13), (Access::REMOTE_ATOMIC, 1 << 14)];
/// `mkc.qpn` of a key that every QP of its protection domain may use.
const ANY_QPN: u32 = 0xff_ffff;
/// Octowords (16 bytes) of the list, in whole 64 bytes.
const LIST_OCTOWORDS: u64 = 4;

/// The octowords after the control segment of a work request that changes a memory key (UMR), and how many they are: UMR control segment,
/// memory key, list.
pub(crate) fn umr(
    window: MwType,
    new: RKey,
    qpn: u32,
    bind: Option<&MwBind>,
) -> ([(u64, u64); BIND_OCTOWORDS - 1], usize) {
    let mut octowords = [(0, 0); BIND_OCTOWORDS - 1];
    let mut flags = UmrFlags::INLINE | UmrFlags::TRANSLATION_OFFSET_EN;
    let mut mask = MkeyMask::FREE | MkeyMask::KEY;
    if window == MwType::Two {
        mask |= MkeyMask::QPN;
    }
    let variant = u64::from(new.get() & 0xff);
    let [control, _, _, key, range, _, _, list, ..] = &mut octowords;
    let used = if let Some(bind) = bind {
        mask |=
            MkeyMask::LEN | MkeyMask::START_ADDR | MkeyMask::LW | MkeyMask::RR | MkeyMask::RW | MkeyMask::A;
        let owner = match window {
            MwType::One => ANY_QPN,
            MwType::Two => {
                flags |= UmrFlags::FAIL_IF_NOT_FREE;
                qpn
            }
        };
        let rights = RIGHTS
            .iter()
            .filter(|(right, _)| bind.access.contains(*right))
            .fold(0, |all, (_, bit)| all | bit);
        *key = (u64::from(rights) << 32 | u64::from(owner) << 8 | variant, 0);
        *range = (if bind.zero_based { 0 } else { bind.address }, u64::from(bind.length));
        *list = (u64::from(bind.length) << 32 | u64::from(bind.lkey.get()), bind.address);
        BIND_OCTOWORDS - 1
    } else {
        if window == MwType::Two {
            flags |= UmrFlags::CHECK_QPN;
        }
        *key = (u64::from(FREE) << 32 | u64::from(ANY_QPN) << 8 | variant, 0);
        UNBIND_OCTOWORDS - 1
    };
    let in_list = if bind.is_some() { LIST_OCTOWORDS } else { 0 };
    *control = (u64::from(flags.bits()) << 56 | in_list << 16, mask.bits());
    (octowords, used)
}

/// The control byte of a request that waits for a change of memory keys besides what it waits for already.
pub(crate) fn small_fence(control: u8) -> u8 {
    let mode = if control & FmCeSe::FENCE_MASK.bits() == 0 {
        FmCeSe::INITIATOR_SMALL_FENCE
    } else {
        FmCeSe::SMALL_AND_FENCE
    };
    control & !FmCeSe::FENCE_MASK.bits() | mode.bits()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mlx5_prm::contexts::mkc;
    use mlx5_prm::datapath::{klm, wqe_umr_ctrl_seg};
    use std::vec::Vec;

    fn bytes(octowords: &[(u64, u64)]) -> Vec<u8> {
        octowords
            .iter()
            .flat_map(|(first, second)| [first.to_be_bytes(), second.to_be_bytes()])
            .flatten()
            .collect()
    }

    #[test]
    fn a_variant_of_another_window_leaves_the_index() {
        let mut window = MemoryWindow::new(RKey::new(0x1234_5678), MwType::One, Generation::first(0));
        window.set_variant(RKey::new(0xffff_ff9a));
        assert_eq!(window.rkey(), RKey::new(0x1234_569a));
    }

    #[test]
    fn a_bind_agrees_with_the_layouts() {
        let bind = MwBind {
            lkey: LKey::new(0x1234_5678),
            address: 0x7000_0000_1000,
            length: 0x2345,
            access: Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            zero_based: false,
        };
        let (octowords, used) = umr(MwType::Two, RKey::new(0xabc0_0142), 0x55_6677, Some(&bind));
        let bytes = bytes(&octowords[..used]);
        let (control, rest) = bytes.split_at(48);
        assert_eq!(wqe_umr_ctrl_seg::LAYOUT.reserved_bits_set(control), None);
        assert_eq!(wqe_umr_ctrl_seg::flags.get32(control), 0xb0);
        assert_eq!(wqe_umr_ctrl_seg::xlt_octowords.get32(control), 4);
        let mask = MkeyMask::from_bits_retain(wqe_umr_ctrl_seg::mkey_mask.get(control));
        assert!(mask.contains(MkeyMask::QPN | MkeyMask::FREE | MkeyMask::KEY | MkeyMask::RW | MkeyMask::LEN));
        let (key, list) = rest.split_at(64);
        assert_eq!(mkc::LAYOUT.reserved_bits_set(key), None);
        assert_eq!((mkc::free.get(key), mkc::qpn.get32(key), mkc::mkey_7_0.get32(key)), (0, 0x55_6677, 0x42));
        assert_eq!((mkc::rr.get(key), mkc::rw.get(key), mkc::a.get(key), mkc::lw.get(key)), (1, 0, 1, 0));
        assert_eq!((mkc::start_addr.get(key), mkc::len.get(key)), (0x7000_0000_1000, 0x2345));
        assert_eq!((klm::bcount.get32(list), klm::key.get32(list)), (0x2345, 0x1234_5678));
        assert_eq!(klm::va.get(list), 0x7000_0000_1000);
        assert_eq!(list.len(), 64);
    }

    #[test]
    fn an_unbound_window_is_free() {
        let (octowords, used) = umr(MwType::Two, RKey::new(0x142), 5, None);
        let bytes = bytes(&octowords[..used]);
        assert_eq!(bytes.len(), 48 + 64);
        assert_eq!(bytes[..4], [0x98, 0, 0, 0]);
        assert_eq!(bytes[4..8], [0; 4], "no list");
        assert_eq!(bytes[48..56], [0x40, 0, 0, 0, 0xff, 0xff, 0xff, 0x42]);
        let (octowords, _) = umr(MwType::One, RKey::new(0x142), 5, None);
        assert_eq!(octowords[0].0 >> 56, 0x90);
    }
}

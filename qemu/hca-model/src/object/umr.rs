//! Changing a memory key from a work queue: what a UMR may do to it (PRM, work requests and completions).
//!
//! The same operation registers memory (`REG_MR`), binds and unbinds windows, and invalidates keys.

use super::interleaved::{Interleaved, is_interleaved};
use super::mkey::{Klm, KlmList, Mkey, Mkeys, Translation};
use super::translation::OCTOWORD;
use crate::profile::Strictness;
use mlx5_prm::Field;
use mlx5_prm::contexts::mkc;
use mlx5_prm::datapath::{MkeyMask, UmrFlags, klm};
use mlx5_prm::value::AccessFlags;

/// `mkc.qpn` of a key that belongs to no QP.
const ANY_QP: u32 = 0x00ff_ffff;
/// Mask bits of things that no key here has: signatures.
const UNSUPPORTED: MkeyMask = MkeyMask::EN_SIGERR.union(MkeyMask::BSF_EN);

/// Whose work queue the request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registrar {
    /// Its QP.
    pub(crate) qpn: u32,
    /// The QP's protection domain; `None` for the registration QP, which may change every key.
    pub(crate) pd: Option<u32>,
    /// `qpc.fre`: physical addresses may be registered, not only parts of other keys.
    pub(crate) fast_registration: bool,
    /// `qpc.rlky`: the reserved L_Key may be part of a list.
    pub(crate) reserved_lkey: bool,
    /// How strictly input is checked.
    pub(crate) strictness: Strictness,
}

/// One UMR work request.
#[derive(Clone, Copy, Debug)]
pub struct UmrRequest<'a> {
    /// `wqe_ctrl_seg.imm`: names the key by its index; the variant byte may already be the new one.
    pub(crate) key: u32,
    /// `wqe_umr_ctrl_seg.flags`.
    pub(crate) flags: UmrFlags,
    /// `wqe_umr_ctrl_seg.mkey_mask`.
    pub(crate) mask: u64,
    /// Where in the key's translations the list goes, in octowords.
    pub(crate) offset: u64,
    /// The new context (`mkc`); only fields in the mask count.
    pub(crate) context: &'a [u8],
    /// New translations, whole octowords.
    pub(crate) list: &'a [u8],
}

/// Why a UMR is refused: the field at fault, and in words.
pub type UmrError = (&'static str, String);

fn refuse<T>(field: &'static str, text: impl Into<String>) -> Result<T, UmrError> {
    Err((field, text.into()))
}

/// The rights of a key after `mask` took over those of `context`.
fn access_after(before: AccessFlags, mask: MkeyMask, context: &[u8]) -> AccessFlags {
    let mut access = before;
    for (bit, field, right) in [
        (MkeyMask::LR, mkc::lr, AccessFlags::LOCAL_READ),
        (MkeyMask::LW, mkc::lw, AccessFlags::LOCAL_WRITE),
        (MkeyMask::RR, mkc::rr, AccessFlags::REMOTE_READ),
        (MkeyMask::RW, mkc::rw, AccessFlags::REMOTE_WRITE),
        (MkeyMask::A, mkc::a, AccessFlags::ATOMIC),
    ] {
        if mask.contains(bit) {
            access.set(right, field.is_set(context));
        }
    }
    access
}

fn klms(list: &[u8]) -> impl Iterator<Item = Klm> {
    list.chunks_exact(OCTOWORD).map(|entry| Klm {
        byte_count: klm::bcount.get32(entry),
        key: klm::key.get32(entry),
        address: klm::va.get(entry),
    })
}

impl Mkeys {
    /// Carries out a UMR. Answers how many list entries were looked at.
    ///
    /// # Errors
    /// [`UmrError`]; nothing is changed then.
    pub fn reregister(&mut self, who: &Registrar, request: &UmrRequest<'_>) -> Result<u64, UmrError> {
        let Some(mkey) = self.table.get(request.key >> 8) else {
            return refuse("wqe_ctrl_seg.imm", format!("key {:#x} does not exist", request.key));
        };
        let Some(mask) = MkeyMask::from_bits(request.mask) else {
            let unknown = request.mask & !MkeyMask::all().bits();
            return refuse("wqe_umr_ctrl_seg.mkey_mask", format!("bits {unknown:#x} are reserved"));
        };
        check_flags(mkey, who, request, mask)?;
        check_fields(mkey, who, request.context, mask)?;
        self.check_list(mkey, who, request, mask)?;
        let changed = self.change(request.key >> 8, |mkey| apply(mkey, request, mask));
        Ok(changed.map_or(0, |((), entries)| entries) + (request.list.len() / OCTOWORD) as u64)
    }

    /// The list fits, and what it names may be used.
    fn check_list(
        &self,
        mkey: &Mkey,
        who: &Registrar,
        request: &UmrRequest<'_>,
        mask: MkeyMask,
    ) -> Result<(), UmrError> {
        let context = request.context;
        let octowords = (request.list.len() / OCTOWORD) as u64;
        let end = request.offset.saturating_add(octowords);
        // Tables are made of whole blocks of 64 bytes, to which Linux rounds its lists up.
        if octowords != 0 && end > u64::from(mkey.octowords).next_multiple_of(4) {
            let text = format!("{end} octowords in a key that has room for {}", mkey.octowords);
            return refuse("mkc.translations_octword_size", text);
        }
        let access = access_after(mkey.access, mask, context);
        let free = if mask.contains(MkeyMask::FREE) { mkc::free.is_set(context) } else { mkey.free };
        let length64 =
            if mask.contains(MkeyMask::LEN) { mkc::length64.is_set(context) } else { mkey.length64 };
        let len = if mask.contains(MkeyMask::LEN) { mkc::len.get(context) } else { mkey.len };
        let start =
            if mask.contains(MkeyMask::START_ADDR) { mkc::start_addr.get(context) } else { mkey.start_addr };
        match &mkey.translation {
            Translation::Physical | Translation::Device { .. } if octowords != 0 => {
                refuse("mkc.access_mode_1_0", "a key that has no translations")
            }
            Translation::Physical => Ok(()),
            Translation::Device { len: there, .. } => {
                if !free && (length64 || len > *there) {
                    return refuse("mkc.len", format!("{len} bytes over {there} of device memory"));
                }
                Ok(())
            }
            Translation::Mtt { log_page_size, .. } => {
                if octowords != 0 && who.pd.is_some() && !who.fast_registration {
                    return refuse("qpc.fre", "physical addresses from a QP without fast registration");
                }
                let log = page_size_after(*log_page_size, mask, context);
                let needed = u128::from(start & ((1 << log) - 1)) + u128::from(len);
                let room = (u128::from(mkey.octowords) * 2) << log;
                if !free && !length64 && needed > room {
                    let text = format!("{needed} bytes in a key that has room for {room}");
                    return refuse("mkc.len", text);
                }
                Ok(())
            }
            Translation::Klm(_) | Translation::Interleaved(_) if is_interleaved(request.list) => {
                let Some(layout) = Interleaved::parse(request.list).filter(|_| request.offset == 0) else {
                    return refuse("wqe_umr_ctrl_seg.xlt_octowords", "not a whole interleaved layout");
                };
                if !length64 && !free && len > layout.bytes() {
                    return refuse("mkc.len", format!("{len} bytes over rounds of {} bytes", layout.bytes()));
                }
                let pd = if mask.contains(MkeyMask::PD) { mkc::pd.get32(context) } else { mkey.pd };
                for (part, bytes) in layout.reach().filter(|(part, _)| part.byte_count != 0) {
                    self.check_part(who, pd, access, part, bytes)?;
                }
                Ok(())
            }
            Translation::Interleaved(layout) if octowords == 0 => {
                if !length64 && !free && len > layout.bytes() {
                    return refuse("mkc.len", format!("{len} bytes over rounds of {} bytes", layout.bytes()));
                }
                Ok(())
            }
            Translation::Klm(_) | Translation::Interleaved(_) => {
                // What was interleaved is a list from now on, of which nothing is there before.
                let none = KlmList::default();
                let before = if let Translation::Klm(before) = &mkey.translation { before } else { &none };
                if free {
                    return Ok(());
                }
                let index = |octoword: u64| usize::try_from(octoword).unwrap_or(usize::MAX);
                let kept = before.bytes() - before.bytes_of(index(request.offset), index(end));
                let room = kept + klms(request.list).map(|klm| u64::from(klm.byte_count)).sum::<u64>();
                if !length64 && len > room {
                    return refuse("mkc.len", format!("{len} bytes over entries of {room} bytes"));
                }
                let pd = if mask.contains(MkeyMask::PD) { mkc::pd.get32(context) } else { mkey.pd };
                // Lists are rounded up: what lies behind the key's length may be left over from before.
                let mut before = 0u64;
                for klm in klms(request.list) {
                    let behind = request.offset == 0 && !length64 && before >= len;
                    if !behind && klm.byte_count != 0 {
                        self.check_part(who, pd, access, klm, klm.byte_count.into())?;
                    }
                    before += u64::from(klm.byte_count);
                }
                Ok(())
            }
            Translation::Ksm { .. } => Ok(()),
        }
    }

    /// `bytes` of another key, from the address of `part` on, that shall become part of one in `pd` with rights `access` (IBTA
    /// 10.6.7.2).
    fn check_part(
        &self,
        who: &Registrar,
        pd: u32,
        access: AccessFlags,
        part: Klm,
        bytes: u64,
    ) -> Result<(), UmrError> {
        if who.reserved_lkey && part.key == self.reserved_lkey {
            return Ok(());
        }
        let Some(parent) = self.get(part.key) else {
            return refuse("klm.key", format!("{:#x} does not exist", part.key));
        };
        if parent.free {
            return refuse("klm.key", format!("{:#x} is free", part.key));
        }
        if parent.pd != pd {
            return refuse("klm.key", format!("{:#x} is of PD {:#x}, not {pd:#x}", part.key, parent.pd));
        }
        let outside = !parent.length64
            && part
                .address
                .checked_sub(parent.start_addr)
                .and_then(|offset| offset.checked_add(bytes))
                .is_none_or(|end| end > parent.len);
        if outside {
            let text = format!("{:#x} and {bytes} bytes leave the region", part.address);
            return refuse("klm.va", text);
        }
        let writes = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::ATOMIC;
        if access.intersects(writes) && !parent.access.contains(AccessFlags::LOCAL_WRITE) {
            return refuse("mkc.lw", format!("{:#x} is read-only", part.key));
        }
        Ok(())
    }
}

/// The key is in the state that the request expects.
fn check_flags(
    mkey: &Mkey,
    who: &Registrar,
    request: &UmrRequest<'_>,
    mask: MkeyMask,
) -> Result<(), UmrError> {
    if !mkey.access.contains(AccessFlags::UMR_EN) {
        return refuse("mkc.umr_en", format!("key {:#x} cannot be changed by a UMR", mkey.key));
    }
    if who.pd.is_some_and(|pd| pd != mkey.pd) {
        return refuse("mkc.pd", format!("key {:#x} is of PD {:#x}", mkey.key, mkey.pd));
    }
    let flags = request.flags;
    if flags.contains(UmrFlags::FAIL_IF_FREE | UmrFlags::FAIL_IF_NOT_FREE) {
        return refuse("wqe_umr_ctrl_seg.flags", "the key can be neither free nor not free");
    }
    if flags.contains(UmrFlags::FAIL_IF_NOT_FREE) && !mkey.free {
        return refuse("mkc.free", format!("key {:#x} is not free", mkey.key));
    }
    if flags.contains(UmrFlags::FAIL_IF_FREE) && mkey.free {
        return refuse("mkc.free", format!("key {:#x} is free", mkey.key));
    }
    // One that belongs to no QP in particular is everyone's.
    if flags.contains(UmrFlags::CHECK_QPN)
        && let Some(owner) = mkey.qpn.filter(|owner| *owner != who.qpn)
    {
        return refuse("mkc.qpn", format!("key {:#x} belongs to QP {owner:#x}", mkey.key));
    }
    // Only a request that gives the key a new variant may name it by another than its own.
    if !mask.contains(MkeyMask::KEY) && request.key != mkey.key && who.strictness == Strictness::Strict {
        return refuse("wqe_ctrl_seg.imm", format!("{:#x}, the key is {:#x}", request.key, mkey.key));
    }
    Ok(())
}

/// The new values may be given by this QP.
fn check_fields(mkey: &Mkey, who: &Registrar, context: &[u8], mask: MkeyMask) -> Result<(), UmrError> {
    if mask.intersects(UNSUPPORTED) {
        return refuse("wqe_umr_ctrl_seg.mkey_mask", "signatures: the capability is off");
    }
    if mask.contains(MkeyMask::PD) && who.pd.is_some() {
        return refuse("wqe_umr_ctrl_seg.mkey_mask", "the protection domain from an ordinary QP");
    }
    let qpn = mkc::qpn.get32(context);
    if mask.contains(MkeyMask::QPN) && who.pd.is_some() && qpn != ANY_QP && qpn != who.qpn {
        return refuse("mkc.qpn", format!("QP {qpn:#x} is another"));
    }
    if let Translation::Mtt { .. } | Translation::Ksm { .. } = mkey.translation
        && mask.contains(MkeyMask::PAGE_SIZE)
    {
        let log = mkc::log_page_size.get32(context);
        if log < 12 {
            return refuse("mkc.log_page_size", format!("{log}, at least 12"));
        }
    }
    let (start, len) = (mkc::start_addr.get(context), mkc::len.get(context));
    if mask.contains(MkeyMask::LEN | MkeyMask::START_ADDR)
        && !mkc::length64.is_set(context)
        && start.checked_add(len).is_none()
    {
        return refuse("mkc.len", format!("{len:#x} from {start:#x} passes the end of the address space"));
    }
    Ok(())
}

fn page_size_after(before: u32, mask: MkeyMask, context: &[u8]) -> u32 {
    if mask.contains(MkeyMask::PAGE_SIZE) { mkc::log_page_size.get32(context) } else { before }
}

fn apply(mkey: &mut Mkey, request: &UmrRequest<'_>, mask: MkeyMask) {
    let context = request.context;
    let first = usize::try_from(request.offset).unwrap_or(usize::MAX);
    match &mut mkey.translation {
        Translation::Physical | Translation::Device { .. } => {}
        Translation::Mtt { entries, log_page_size, .. } => {
            *log_page_size = page_size_after(*log_page_size, mask, context);
            let list = request.list.chunks_exact(8).map(|entry| Field::quad(0).get(entry));
            replace(entries, first.saturating_mul(2), list, 0);
        }
        Translation::Klm(_) | Translation::Interleaved(_) if is_interleaved(request.list) => {
            // Parsed before.
            if let Some(layout) = Interleaved::parse(request.list) {
                mkey.translation = Translation::Interleaved(layout);
            }
        }
        Translation::Interleaved(_) if request.list.is_empty() => {}
        Translation::Interleaved(_) => {
            mkey.translation = Translation::Klm(KlmList::new(klms(request.list).collect()));
        }
        Translation::Klm(entries) => {
            let empty = Klm { byte_count: 0, key: 0, address: 0 };
            entries.change(first, |entries| replace(entries, first, klms(request.list), empty));
        }
        Translation::Ksm { entries, log_entity_size } => {
            *log_entity_size = page_size_after(*log_entity_size, mask, context);
            replace(entries, first, klms(request.list), Klm { byte_count: 0, key: 0, address: 0 });
        }
    }
    mkey.access = access_after(mkey.access, mask, context);
    if mask.contains(MkeyMask::LEN) {
        mkey.len = mkc::len.get(context);
        mkey.length64 = mkc::length64.is_set(context);
    }
    if mask.contains(MkeyMask::START_ADDR) {
        mkey.start_addr = mkc::start_addr.get(context);
    }
    if mask.contains(MkeyMask::PD) {
        mkey.pd = mkc::pd.get32(context);
    }
    if mask.contains(MkeyMask::EN_RINVAL) {
        mkey.remote_invalidate = mkc::en_rinval.is_set(context);
    }
    if mask.contains(MkeyMask::KEY) {
        mkey.key = mkey.key & !0xff | mkc::mkey_7_0.get32(context);
    }
    if mask.contains(MkeyMask::QPN) {
        let qpn = mkc::qpn.get32(context);
        mkey.qpn = (qpn != ANY_QP).then_some(qpn);
    }
    if mask.contains(MkeyMask::FREE) {
        mkey.free = mkc::free.is_set(context);
    }
    // Kept for QUERY_MKEY; order is never relaxed here, which both settings allow.
    for (bit, field) in [
        (MkeyMask::SMALL_FENCE, mkc::small_fence_on_rdma_read_response),
        (MkeyMask::RELAXED_ORDERING_WRITE, mkc::relaxed_ordering_write),
        (MkeyMask::RELAXED_ORDERING_READ, mkc::relaxed_ordering_read),
        (MkeyMask::PAGE_SIZE, mkc::log_page_size),
    ] {
        if mask.contains(bit) {
            field.set(&mut mkey.context, field.get(context));
        }
    }
}

/// Puts `list` in place from entry `first` on; a gap before it is filled with `empty`.
fn replace<T: Clone>(entries: &mut Vec<T>, first: usize, list: impl Iterator<Item = T>, empty: T) {
    for (i, entry) in (first..).zip(list) {
        if i >= entries.len() {
            entries.resize(i + 1, empty.clone());
        }
        if let Some(place) = entries.get_mut(i) {
            *place = entry;
        }
    }
}

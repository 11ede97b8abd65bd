//! Memory key commands (PRM, command reference).

use super::refusal::{Outcome, Refusal};
use crate::device::Device;
use crate::object::mkey::{Klm, KlmList, MAX_OCTOWORDS, Mkey, Translation};
use crate::profile::Strictness;
use mlx5_prm::Field;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::mkc;
use mlx5_prm::later;
use mlx5_prm::status::CmdStatus;
use mlx5_prm::value::{AccessFlags, AccessMode};

/// Where a context has its rights.
const RIGHTS: [(Field, AccessFlags); 6] = [
    (mkc::lr, AccessFlags::LOCAL_READ),
    (mkc::lw, AccessFlags::LOCAL_WRITE),
    (mkc::rr, AccessFlags::REMOTE_READ),
    (mkc::rw, AccessFlags::REMOTE_WRITE),
    (mkc::a, AccessFlags::ATOMIC),
    (mkc::umr_en, AccessFlags::UMR_EN),
];

/// The rights in a context.
fn access_of(context: &[u8]) -> AccessFlags {
    let mut access = AccessFlags::empty();
    for (field, flag) in RIGHTS {
        access.set(flag, field.is_set(context));
    }
    access
}

/// The access mode of a context.
fn mode_of(context: &[u8]) -> AccessMode {
    AccessMode((mkc::access_mode_4_2.get32(context) << 2 | mkc::access_mode_1_0.get32(context)) as u8)
}

impl Device {
    pub(super) fn create_mkey(&mut self, input: &[u8], output: &mut [u8]) -> Outcome {
        let context = create_mkey_in::memory_key_mkey_entry.of(input);
        let pd = mkc::pd.get32(context);
        let free = mkc::free.is_set(context);
        // A key that is free is nobody's: the UMR that makes it usable gives it a protection domain. FreeBSD's cache names none.
        if !free && !self.objects.pds.contains(pd) {
            return Err(Refusal::missing("mkc.pd", pd));
        }
        if create_mkey_in::mkey_umem_valid.is_set(input) {
            return Err(Refusal::param("create_mkey_in.mkey_umem_valid", "the capability is off"));
        }
        if mkc::bsf_en.is_set(context) || mkc::bsf_octword_size.is_set(context) {
            return Err(Refusal::param("mkc.bsf_en", "the capability is off"));
        }
        let qpn = match mkc::qpn.get32(context) {
            0x00ff_ffff => None,
            qpn => Some(qpn),
        };
        let access = access_of(context);
        if free && !access.contains(AccessFlags::UMR_EN) && self.profile.strictness == Strictness::Strict {
            return Err(Refusal::param("mkc.umr_en", "a free key that no UMR can make usable"));
        }
        let key = KeyShape {
            start_addr: mkc::start_addr.get(context),
            len: mkc::len.get(context),
            length64: mkc::length64.is_set(context),
            free,
            strict: self.profile.strictness == Strictness::Strict,
        };
        let device_memory = mode_of(context) == AccessMode::MEMIC;
        let translation =
            if device_memory { self.device_memory(&key)? } else { translation(&key, context, input)? };
        let octowords = mkc::translations_octword_size.get32(context);
        let indirect = matches!(translation, Translation::Klm(_) | Translation::Ksm { .. });
        let longest = 1 << self.caps.current(mlx5_prm::caps::cmd_hca_cap::log_max_klm_list_size);
        if indirect && octowords > longest {
            let text = format!("{octowords}, at most {longest} for an indirect key");
            return Err(Refusal::param("mkc.translations_octword_size", text));
        }
        let together = self.objects.mkeys.octowords + u64::from(octowords);
        if together > MAX_OCTOWORDS {
            let text =
                format!("{octowords}, {} left in the device", MAX_OCTOWORDS - self.objects.mkeys.octowords);
            return Err(Refusal::new(CmdStatus::NO_RES, "mkc.translations_octword_size", text));
        }
        let variant = mkc::mkey_7_0.get32(context);
        let mkey = Mkey {
            key: variant,
            pd,
            qpn,
            access,
            free,
            remote_invalidate: mkc::en_rinval.is_set(context),
            // Addresses in device memory count from the key's own first byte.
            start_addr: if device_memory { 0 } else { key.start_addr },
            len: key.len,
            length64: key.length64,
            translation,
            octowords,
            context: context.to_vec(),
        };
        let memory = mkey.memory();
        self.hold(memory)?;
        self.meter.charge(u64::from(octowords));
        let Some(index) = self.objects.mkeys.insert(|index| Mkey { key: index << 8 | variant, ..mkey })
        else {
            self.budget.release(memory);
            let text = format!("{} exist", self.objects.mkeys.table.len());
            return Err(Refusal::new(CmdStatus::NO_RES, "cmd_hca_cap.log_max_mkey", text));
        };
        if let Some(Translation::Device { start, .. }) =
            self.objects.mkeys.table.get(index).map(|mkey| &mkey.translation)
        {
            self.objects.memic.count_key(*start, true);
        }
        self.objects.mkeys.octowords = together;
        create_mkey_out::mkey_index.set(output, index);
        Ok(())
    }

    /// What is behind a key of device memory, which must have been allocated.
    fn device_memory(&mut self, key: &KeyShape) -> Result<Translation, Refusal> {
        if key.length64 {
            return Err(Refusal::param("mkc.length64", "a key of device memory has a length"));
        }
        match self.objects.memic.place(key.start_addr, key.len) {
            Some(start) => Ok(Translation::Device { start, len: key.len }),
            None => {
                let text = format!("{} bytes at {:#x} are not in one allocation", key.len, key.start_addr);
                Err(Refusal::param("mkc.start_addr", text))
            }
        }
    }

    pub(super) fn destroy_mkey(&mut self, input: &[u8]) -> Outcome {
        let index = destroy_mkey_in::mkey_index.get32(input);
        let bound =
            self.objects.mkeys.table.get(index).map_or(0, |mkey| self.objects.mkeys.bound_to(mkey.key));
        if bound != 0 {
            let text = format!("an indirect key ({bound} entries in all) is bound to it");
            return Err(Refusal::busy("destroy_mkey_in.mkey_index", text));
        }
        match self.objects.mkeys.remove(index) {
            Some(mkey) => {
                if let Translation::Device { start, .. } = mkey.translation {
                    self.objects.memic.count_key(start, false);
                }
                self.budget.release(mkey.memory());
                self.meter.charge(u64::from(mkey.octowords));
                self.objects.mkeys.octowords =
                    self.objects.mkeys.octowords.saturating_sub(u64::from(mkey.octowords));
                Ok(())
            }
            None => Err(Refusal::missing("destroy_mkey_in.mkey_index", index)),
        }
    }

    pub(super) fn query_mkey(&self, input: &[u8], output: &mut [u8]) -> Outcome {
        let index = query_mkey_in::mkey_index.get32(input);
        let Some(mkey) = self.objects.mkeys.table.get(index) else {
            return Err(Refusal::missing("query_mkey_in.mkey_index", index));
        };
        let context = query_mkey_out::memory_key_mkey_entry.of_mut(output);
        context.copy_from_slice(&mkey.context);
        mkc::free.set(context, mkey.free);
        mkc::mkey_7_0.set(context, mkey.key & 0xff);
        mkc::pd.set(context, mkey.pd);
        mkc::qpn.set(context, mkey.qpn.unwrap_or(0x00ff_ffff));
        if !matches!(mkey.translation, Translation::Device { .. }) {
            mkc::start_addr.set(context, mkey.start_addr);
        }
        mkc::len.set(context, mkey.len);
        mkc::length64.set(context, mkey.length64);
        mkc::en_rinval.set(context, mkey.remote_invalidate);
        for (field, flag) in RIGHTS {
            field.set(context, mkey.access.contains(flag));
        }
        Ok(())
    }

    pub(super) fn query_special_contexts(&self, output: &mut [u8]) -> Outcome {
        query_special_contexts_out::resd_lkey.set(output, self.objects.mkeys.reserved_lkey);
        if let Some(key) = self.objects.mkeys.terminator {
            later::TERMINATE_SCATTER_LIST_MKEY.set(output, key);
        }
        Ok(())
    }
}

struct KeyShape {
    start_addr: u64,
    len: u64,
    length64: bool,
    free: bool,
    strict: bool,
}

fn translation(key: &KeyShape, context: &[u8], input: &[u8]) -> Result<Translation, Refusal> {
    let actual = create_mkey_in::translations_octword_actual_size.get32(input) as usize;
    let reserved = mkc::translations_octword_size.get32(context) as usize;
    let field = "create_mkey_in.translations_octword_actual_size";
    let present = CREATE_MKEY_MTT.count(input) / 2;
    let mode = mode_of(context);
    if mode == AccessMode::PA {
        if actual != 0 || (present != 0 && key.strict) {
            return Err(Refusal::param(field, format!("{actual} for a physical key")));
        }
        if !key.length64 && key.len == 0 && !key.free {
            return Err(Refusal::param("mkc.len", "0 without length64"));
        }
        return Ok(Translation::Physical);
    }
    if actual > present {
        let text = format!("{actual}, {present} in the input");
        return Err(Refusal::new(CmdStatus::BAD_INP_LEN, field, text));
    }
    if actual > reserved {
        return Err(Refusal::param("mkc.translations_octword_size", format!("{reserved}, {actual} present")));
    }
    let klm = |i: usize| {
        let bytes = CREATE_MKEY_KLM.entry(input, i).unwrap_or(&[]);
        Klm {
            byte_count: Field::bits(0, 31, 0).get32(bytes),
            key: Field::bits(4, 31, 0).get32(bytes),
            address: Field::quad(8).get(bytes),
        }
    };
    match mode {
        AccessMode::MTT => {
            let log_page_size = mkc::log_page_size.get32(context);
            if log_page_size < 12 {
                return Err(Refusal::param("mkc.log_page_size", format!("{log_page_size}, at least 12")));
            }
            if key.length64 && key.strict {
                return Err(Refusal::param("mkc.length64", "with an MTT list"));
            }
            let page_access = create_mkey_in::pg_access.is_set(input);
            let mut entries = Vec::with_capacity(actual * 2);
            for i in 0..actual * 2 {
                entries.push(CREATE_MKEY_MTT.quad(input, i));
            }
            let inside = key.start_addr & ((1 << log_page_size) - 1);
            let needed = u128::from(inside) + u128::from(key.len);
            let covered = (entries.len() as u128) << log_page_size;
            if covered < needed && !key.free {
                let text = format!("{} pages of 2^{log_page_size} bytes for {needed} bytes", entries.len());
                return Err(Refusal::param(field, text));
            }
            if let Some(i) = (0..entries.len()).find(|&i| {
                let used = (i as u128) << log_page_size < needed;
                let address = entries.get(i).copied().unwrap_or(0) & !0x7;
                used && key.strict && address % (1 << log_page_size) != 0
            }) {
                let text = format!("not aligned to 2^{log_page_size} bytes");
                return Err(Refusal::param(format!("create_mkey_in.klm_pas_mtt[{i}]"), text));
            }
            Ok(Translation::Mtt { entries, log_page_size, page_access })
        }
        AccessMode::KLMS => Ok(Translation::Klm(KlmList::new((0..actual).map(klm).collect()))),
        AccessMode::KSM => {
            let log_entity_size = mkc::log_page_size.get32(context);
            if log_entity_size < 12 {
                return Err(Refusal::param("mkc.log_page_size", format!("{log_entity_size}, at least 12")));
            }
            Ok(Translation::Ksm { entries: (0..actual).map(klm).collect(), log_entity_size })
        }
        other => Err(Refusal::param("mkc.access_mode_1_0", format!("{other}"))),
    }
}

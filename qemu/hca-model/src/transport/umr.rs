//! UMR work requests: fetching them from the send queue and carrying them out (PRM, work requests and completions).

use mlx5_prm::contexts::mkc;
use mlx5_prm::datapath::{DS_SIZE, MkeyMask, UmrFlags, wqe_data_seg, wqe_umr_ctrl_seg};
use mlx5_prm::status::CqeSyndrome;
use mlx5_prm::value::AccessFlags;

use super::completion::vendor;
use super::data_path::DataPath;
use super::parser::{Bad, Parser, bad, take};
use super::segments::Segment;
use super::state::{Failure, Sge, Umr, UmrList};
use crate::object::qp::Qp;
use crate::object::translation::OCTOWORD;
use crate::object::umr::UmrRequest;

/// Alignment of a translation list in memory.
const LIST_ALIGN: u64 = 64;

impl Umr {
    /// Whether the key cannot be used afterwards.
    pub(super) fn invalidates(&self) -> bool {
        self.mask & MkeyMask::FREE.bits() != 0 && mkc::free.is_set(&self.context)
    }
}

impl Parser<'_> {
    /// Parses what follows the control segment of a UMR.
    pub(super) fn parse_umr(&self, key: u32, mut rest: &[u8]) -> Result<Umr, Bad> {
        let control: &[u8; wqe_umr_ctrl_seg::SIZE] = take(&mut rest)?;
        self.reserved(Segment::Umr, control)?;
        let flags = wqe_umr_ctrl_seg::flags.get32(control) as u8;
        let Some(flags) = UmrFlags::from_bits(flags) else {
            return Err(bad("wqe_umr_ctrl_seg.flags", format!("{flags:#x}")));
        };
        let context: [u8; mkc::SIZE] = *take(&mut rest)?;
        let octowords = wqe_umr_ctrl_seg::xlt_octowords.get32(control);
        let len = octowords as usize * OCTOWORD;
        let list = if flags.contains(UmrFlags::INLINE) {
            match rest.get(..len) {
                Some(list) => UmrList::Inline(list.to_vec()),
                None => {
                    let text = format!("{octowords}, the WQE holds {}", rest.len() / OCTOWORD);
                    return Err(bad("wqe_umr_ctrl_seg.xlt_octowords", text));
                }
            }
        } else if octowords == 0 {
            UmrList::Inline(Vec::new())
        } else {
            let segment: &[u8; DS_SIZE] = take(&mut rest)?;
            let held = wqe_data_seg::byte_count.get(segment);
            let address = wqe_data_seg::addr.get(segment);
            if held < len as u64 {
                return Err(bad("wqe_data_seg.byte_count", format!("{held}, {len} bytes of translations")));
            }
            if !address.is_multiple_of(LIST_ALIGN) && self.is_strict() {
                return Err(bad("wqe_data_seg.addr", format!("{address:#x} is not aligned to {LIST_ALIGN}")));
            }
            UmrList::Memory(Sge { address, len: len as u32, lkey: wqe_data_seg::lkey.get32(segment) })
        };
        let offset = if flags.contains(UmrFlags::TRANSLATION_OFFSET_EN) {
            wqe_umr_ctrl_seg::xlt_offset_47_16.get(control) << 16 | wqe_umr_ctrl_seg::xlt_offset.get(control)
        } else {
            0
        };
        let mask = wqe_umr_ctrl_seg::mkey_mask.get(control);
        Ok(Umr { key, flags, mask, offset, context, list })
    }
}

impl DataPath<'_, '_> {
    /// Carries out a UMR. A refusal is logged and comes back as what the WQE's completion says.
    pub(super) fn execute_umr(&mut self, qp: &mut Qp, index: u16, umr: &Umr) -> Result<(), Failure> {
        let mut fetched = Vec::new();
        let list = match &umr.list {
            UmrList::Inline(list) => list,
            UmrList::Memory(sge) => {
                fetched.resize(sge.len as usize, 0);
                let read = self.memory().read_key(
                    qp.user(),
                    sge.lkey,
                    sge.address,
                    AccessFlags::LOCAL_READ,
                    &mut fetched,
                );
                if let Err(fault) = read {
                    self.reports().refuse_data(qp, index, fault);
                    return Err(Failure {
                        syndrome: CqeSyndrome::LOCAL_PROT_ERR,
                        vendor: vendor::LOCAL_PROTECTION,
                    });
                }
                &fetched
            }
        };
        let who = qp.registrar(self.strictness());
        let request = UmrRequest {
            key: umr.key,
            flags: umr.flags,
            mask: umr.mask,
            offset: umr.offset,
            context: &umr.context,
            list,
        };
        self.memory().reregister(&who, &request).map_err(|(field, text)| {
            self.reports().refuse_work(qp, Some(index), field, format!("UMR of {:#x}: {text}", umr.key));
            Failure { syndrome: CqeSyndrome::MW_BIND_ERR, vendor: vendor::BIND }
        })
    }
}

//! User contexts and user memory (PRM, command reference): objects that a user makes himself, in memory that he names by
//! number.

use super::owner::SHARED_UID;
use super::refusal::{Outcome, Refusal};
use super::ring::Ring;
use crate::device::Device;
use crate::object::pages::PageList;
use crate::object::reserved;
use crate::object::umem::Umem;
use mlx5_prm::caps::cmd_hca_cap;
use mlx5_prm::commands::*;
use mlx5_prm::management::{create_general_object_in, create_general_object_out, destroy_general_object_in};
use mlx5_prm::{Field, Tail, later};

/// log2 of the largest page of user memory.
const LOG_MAX_PAGE: u32 = 31;

impl Device {
    /// The user in whose name a command is given is known, or nobody.
    pub(super) fn check_user(&self, input: &[u8]) -> Outcome {
        let uid = create_cq_in::uid.get32(input);
        if uid == 0 || self.caps.current(cmd_hca_cap::log_max_uctx) == 0 {
            return Ok(());
        }
        if uid == SHARED_UID || self.objects.uctxs.contains(uid) {
            Ok(())
        } else {
            Err(Refusal::missing("uid", uid))
        }
    }

    pub(super) fn create_uctx(&mut self, input: &[u8], output: &mut [u8]) -> Outcome {
        let asked = uctx::cap.get32(create_uctx_in::uctx.of(input));
        let known = self.caps.current(cmd_hca_cap::uctx_cap);
        if asked & !known != 0 {
            return Err(Refusal::param("uctx.cap", format!("{asked:#x}, of {known:#x}")));
        }
        let uid = self.objects.uctxs.insert(|_| ()).ok_or_else(|| Refusal::full("user contexts"))?;
        create_uctx_out::uid.set(output, uid);
        Ok(())
    }

    pub(super) fn destroy_uctx(&mut self, input: &[u8]) -> Outcome {
        let uid = destroy_uctx_in::uid.get32(input);
        match self.objects.uctxs.remove(uid) {
            Some(_) => Ok(()),
            None => Err(Refusal::missing("destroy_uctx_in.uid", uid)),
        }
    }

    pub(super) fn create_umem(&mut self, input: &[u8], output: &mut [u8]) -> Outcome {
        let (at, context) = (create_umem_in::umem.offset, create_umem_in::umem.of(input));
        let count = umem::num_of_mtt.get(context);
        let list = Tail { offset: at + umem::mtt.offset, stride: umem::mtt.stride };
        let field = "umem.num_of_mtt";
        if count == 0 || count > list.count(input) as u64 {
            let text = format!("{count}, {} in the input", list.count(input));
            return Err(Refusal::param(field, text));
        }
        let log_page_size = umem::log_page_size.get32(context) + 12;
        if log_page_size > LOG_MAX_PAGE {
            return Err(Refusal::param("umem.log_page_size", format!("{}", log_page_size - 12)));
        }
        self.meter.charge(count);
        let mut pages = Vec::new();
        for i in 0..count as usize {
            // The lowest bits say what the device may do with the page.
            let entry = list.quad(input, i);
            if entry & 0xffc != 0 {
                return Err(Refusal::param(format!("umem.mtt[{i}]"), format!("{entry:#x} is not aligned")));
            }
            pages.push(entry & !0xfff);
        }
        let offset = u64::from(umem::page_offset.get32(context));
        let Some(umem) = Umem::new(pages, log_page_size, offset) else {
            return Err(Refusal::param("umem.page_offset", format!("{offset:#x} is beyond the pages")));
        };
        let memory = umem.memory();
        self.hold(memory)?;
        let Some(id) = self.objects.umems.insert(|_| umem) else {
            self.budget.release(memory);
            return Err(Refusal::full("user memories"));
        };
        create_umem_out::umem_id.set(output, id);
        Ok(())
    }

    /// Objects in the memory stay as they are: the pages are their own by now.
    pub(super) fn destroy_umem(&mut self, input: &[u8]) -> Outcome {
        let id = destroy_umem_in::umem_id.get32(input);
        let checked = self.profile.habits.adversary.umem_in_use;
        if checked && self.objects.umems.get(id).is_some_and(Umem::is_used) {
            return Err(Refusal::busy("destroy_umem_in.umem_id", "a ring lies in it"));
        }
        match self.objects.umems.remove(id) {
            Some(umem) => {
                self.budget.release(umem.memory());
                Ok(())
            }
            None => Err(Refusal::missing("destroy_umem_in.umem_id", id)),
        }
    }
}

impl Device {
    /// An object of a kind that has no commands of its own: only reserved QP numbers.
    pub(super) fn create_general_object(&mut self, kind: u16, input: &[u8], output: &mut [u8]) -> Outcome {
        known_object(kind)?;
        let range = create_general_object_in::log_obj_range.get32(input);
        if range != reserved::LOG_RANGE {
            let text = format!("{range}, ranges have 2^{}", reserved::LOG_RANGE);
            return Err(Refusal::param("create_general_object_in.log_obj_range", text));
        }
        let first = self.objects.reserved.take().ok_or_else(|| Refusal::full("reserved QP numbers"))?;
        create_general_object_out::obj_id.set(output, first);
        Ok(())
    }

    pub(super) fn destroy_general_object(&mut self, kind: u16, input: &[u8]) -> Outcome {
        known_object(kind)?;
        let first = destroy_general_object_in::obj_id.get32(input);
        if self.objects.reserved.give_back(first) {
            Ok(())
        } else {
            Err(Refusal::missing("destroy_general_object_in.obj_id", first))
        }
    }
}

fn known_object(kind: u16) -> Outcome {
    if kind == later::RESERVED_QPN_OBJECT {
        return Ok(());
    }
    Err(Refusal::param("general_obj_in_cmd_hdr.obj_type", format!("{kind:#x} is not supported")))
}

/// Where something names user memory: whether it does, which, and (for a queue) from which byte on.
pub(super) struct Naming {
    name: &'static str,
    pub(super) valid: Field,
    pub(super) id: Field,
    offset: Option<Field>,
}

/// The ring of CREATE_CQ and MODIFY_CQ.
pub(super) const CQ_RING: Naming = Naming {
    name: "cq_umem_id",
    valid: create_cq_in::cq_umem_valid,
    id: Field::bits(0x58, 31, 0),
    offset: Some(Field::quad(0x50)),
};
/// The rings of CREATE_QP.
pub(super) const QP_RING: Naming = Naming {
    name: "wq_umem_id",
    valid: create_qp_in::wq_umem_valid,
    id: Field::bits(0x108, 31, 0),
    offset: Some(Field::quad(0x100)),
};
/// The doorbell record in a `cqc`.
pub(super) const CQ_RECORD: Naming = Naming {
    name: "cqc.dbr_umem_id",
    valid: mlx5_prm::contexts::cqc::dbr_umem_valid,
    id: Field::bits(0x04, 31, 0),
    offset: None,
};
/// The doorbell record in a `qpc`.
pub(super) const QP_RECORD: Naming = Naming {
    name: "qpc.dbr_umem_id",
    valid: mlx5_prm::contexts::qpc::dbr_umem_valid,
    id: Field::bits(0xe4, 31, 0),
    offset: None,
};
/// The ring of a `wq`.
pub(super) const WQ_RING: Naming = Naming {
    name: "wq.wq_umem_id",
    valid: mlx5_prm::contexts::wq::wq_umem_valid,
    id: Field::bits(0x2c, 31, 0),
    offset: Some(Field::quad(0x30)),
};
/// The doorbell record in a `wq`.
pub(super) const WQ_RECORD: Naming = Naming {
    name: "wq.dbr_umem_id",
    valid: mlx5_prm::contexts::wq::dbr_umem_valid,
    id: Field::bits(0x28, 31, 0),
    offset: None,
};

impl Naming {
    /// The memory that `from` names; `None` where it names none.
    fn umem<'a>(&self, device: &'a Device, from: &[u8]) -> Result<Option<&'a Umem>, Refusal> {
        if !self.valid.is_set(from) {
            return Ok(None);
        }
        let id = self.id.get32(from);
        device.objects.umems.get(id).map(Some).ok_or_else(|| Refusal::missing(self.name, id))
    }

    /// The pages of `ring`: of the memory that `from` names, or else those that the command lists.
    pub(super) fn ring(
        &self,
        device: &Device,
        ring: &Ring<'_>,
        from: &[u8],
        input: &[u8],
        pas: Tail,
    ) -> Result<PageList, Refusal> {
        let Some(umem) = self.umem(device, from)? else {
            return ring.pages(input, pas, device.profile.strictness);
        };
        let offset = self.offset.map_or(0, |field| field.get(from));
        umem.part(offset, ring.len).ok_or_else(|| {
            Refusal::param(self.name, format!("{} bytes from {offset:#x} on are not all inside", ring.len))
        })
    }

    /// The device address of a doorbell record at `address`: an offset in the memory that `from` names, or an address.
    pub(super) fn record(&self, device: &Device, from: &[u8], address: u64) -> Result<u64, Refusal> {
        let Some(umem) = self.umem(device, from)? else { return Ok(address) };
        umem.record(address)
            .ok_or_else(|| Refusal::param(self.name, format!("a record at {address:#x} is not inside")))
    }
}

/// Dwords in which commands name user memory, and which `mlx5_ifc.h` has no names for, with their bits: by offset in the
/// input.
pub(super) fn unnamed_fields(opcode: mlx5_prm::opcode::Opcode) -> &'static [usize] {
    use mlx5_prm::opcode::Opcode;
    match opcode {
        Opcode::CREATE_CQ | Opcode::MODIFY_CQ => &[0x14, 0x50, 0x54, 0x58],
        Opcode::CREATE_QP => &[0xfc, 0x100, 0x104, 0x108],
        Opcode::CREATE_RMP | Opcode::CREATE_SQ | Opcode::CREATE_RQ => &[0x78, 0x7c, 0x80, 0x84],
        _ => &[],
    }
}

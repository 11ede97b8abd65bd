//! From an input to the handler of its opcode.

use super::refusal::{Outcome, Refusal};
use super::{check, port};
use crate::device::{Device, Life};
use crate::log::Subject;
use crate::seams::Io;
use mlx5_prm::cmd::cmd_in;
use mlx5_prm::event::EventType;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::CmdStatus;

/// What became of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The output holds the answer, good or bad.
    Done,
    /// It needs pages and waits for them.
    WaitForPages,
    /// It never completes (a fault ordered by the profile).
    Never,
}

/// Commands that make an object, for which the device may need pages first.
fn makes_object(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::CREATE_MKEY
            | Opcode::CREATE_CQ
            | Opcode::CREATE_QP
            | Opcode::CREATE_SRQ
            | Opcode::CREATE_XRC_SRQ
            | Opcode::CREATE_RMP
    )
}

impl Device {
    /// Carries out one command. `output` is then at most `output_len` bytes of answer.
    pub(super) fn execute(
        &mut self,
        io: &mut Io<'_>,
        input: &[u8],
        output_len: usize,
        output: &mut Vec<u8>,
    ) -> Verdict {
        let opcode = Opcode::of(input);
        if self.profile.misbehaviour.stall_command == Some(opcode) {
            return Verdict::Never;
        }
        let mut remarks = Vec::new();
        let checked = check::shape(opcode, input, output_len, self.profile.strictness, &mut remarks)
            .and_then(|input| check::state(opcode, self.life).map(|()| input))
            .and_then(|input| self.check_user(&input).map(|()| input))
            .and_then(|input| self.check_owner(opcode, &input).map(|()| input))
            .and_then(|input| self.profile.habits.admit(opcode, input));
        for (field, text) in remarks {
            self.log.warn(Subject::Tolerated { opcode }, field, text);
        }
        let outcome = match checked {
            Ok(_) if self.waits_for_pages(opcode) => {
                if self.pages.refused {
                    self.pages.refused = false;
                    let text =
                        format!("{} pages at hand, {} needed", self.pages.given(), self.pages.needed());
                    self.update_needed_pages();
                    Err(Refusal::new(CmdStatus::NO_RES, "manage_pages_in.input_num_entries", text))
                } else {
                    self.request_pages(io);
                    return Verdict::WaitForPages;
                }
            }
            Ok(input) => {
                let size = opcode.output_layout().map_or(16, |layout| layout.size);
                output.clear();
                output.resize(size.max(16), 0);
                let op_mod = cmd_in::op_mod.get32(&input) as u16;
                let handled = self.handle(io, opcode, op_mod, &input, output, output_len);
                if handled.is_ok() {
                    self.note_owner(opcode, &input, output);
                }
                self.profile.habits.amend(opcode, &input, output);
                handled
            }
            Err(refusal) => Err(refusal),
        };
        if let Err(refusal) = outcome {
            let subject = refusal.answer(opcode, output);
            self.log.refuse(subject, refusal.field, refusal.text);
        }
        if self.life == Life::Initialized {
            self.update_needed_pages();
            self.request_pages(io);
        }
        Verdict::Done
    }

    /// Whether a command cannot be carried out before pages come, or was told that none will.
    fn waits_for_pages(&mut self, opcode: Opcode) -> bool {
        if makes_object(opcode) {
            return !self.pages_suffice();
        }
        // A hungry card's other commands wait too, where somebody listens and has not said no.
        self.hungers_during(opcode)
            && self.tells_page_requests()
            && !self.pages_suffice_for(0)
            && !self.pages.refused
    }

    /// Whether a driver hears of page requests.
    pub(crate) fn tells_page_requests(&self) -> bool {
        self.objects.queues.eqs.iter().any(|(_, eq)| eq.takes(EventType::PAGE_REQUEST))
    }

    /// Sends a page request event where one is due.
    pub(super) fn request_pages(&mut self, io: &mut Io<'_>) {
        if !self.tells_page_requests() {
            return;
        }
        let surplus = self.profile.growth_pages.saturating_mul(2);
        let Some(pages) = self.pages.request(surplus) else { return };
        let mut data = [0; 28];
        data[..4].copy_from_slice(&self.profile.habits.page_owner());
        data[4..8].copy_from_slice(&pages.to_be_bytes());
        self.objects.queues.event(io, &mut self.log, EventType::PAGE_REQUEST, 0, &data);
    }

    #[allow(clippy::too_many_arguments)] // One place that knows everything about a call.
    fn handle(
        &mut self,
        io: &mut Io<'_>,
        opcode: Opcode,
        op_mod: u16,
        input: &[u8],
        output: &mut Vec<u8>,
        output_len: usize,
    ) -> Outcome {
        match opcode {
            Opcode::QUERY_PAGES => return self.query_pages(op_mod, input, output),
            Opcode::MANAGE_PAGES => return self.manage_pages(io, op_mod, input, output, output_len),
            Opcode::QUERY_HCA_CAP => return self.query_hca_cap(op_mod, input, output),
            Opcode::SET_HCA_CAP => return self.set_hca_cap(op_mod, input),
            Opcode::ACCESS_REG if self.profile.habits.own_register(input) => {
                return self.profile.habits.access_register(op_mod, output, output_len);
            }
            Opcode::ACCESS_REG => return self.port.access_register(op_mod, input, output, output_len),
            Opcode::MAD_IFC => return self.port.mad_ifc(op_mod, input, output),
            Opcode::MODIFY_CQ => return self.modify_cq(io, op_mod, input),
            Opcode::ARM_RQ | Opcode::ARM_XRC_SRQ => return self.arm_srq(io, opcode, op_mod, input),
            Opcode::QUERY_VPORT_STATE => return self.port.query_vport_state(op_mod, input, output),
            Opcode::MODIFY_VPORT_STATE => return self.port.modify_vport_state(op_mod, input),
            Opcode::CONFIG_INT_MODERATION => return self.config_int_moderation(op_mod, input, output),
            Opcode::MODIFY_MEMIC => return self.modify_memic(op_mod, input, output),
            _ if op_mod != 0 => return Err(Refusal::op_mod(op_mod)),
            _ => {}
        }
        match opcode {
            Opcode::ENABLE_HCA => self.enable_hca(input),
            Opcode::DISABLE_HCA => self.disable_hca(input),
            Opcode::QUERY_ISSI => self.query_issi(output),
            Opcode::SET_ISSI => self.set_issi(input),
            Opcode::INIT_HCA => self.init_hca(),
            Opcode::TEARDOWN_HCA => self.teardown_hca(input, output),
            Opcode::QUERY_ADAPTER => self.query_adapter(output),
            Opcode::SET_DRIVER_VERSION => self.set_driver_version(input),
            // No ports are bonded: the context is all zero.
            Opcode::NOP | Opcode::QUERY_LAG => Ok(()),
            Opcode::ALLOC_UAR => self.alloc_uar(output),
            Opcode::DEALLOC_UAR => self.dealloc_uar(input),
            Opcode::CREATE_UCTX => self.create_uctx(input, output),
            Opcode::DESTROY_UCTX => self.destroy_uctx(input),
            Opcode::CREATE_UMEM => self.create_umem(input, output),
            Opcode::DESTROY_UMEM => self.destroy_umem(input),
            Opcode::ALLOC_PD => self.alloc_pd(output),
            Opcode::DEALLOC_PD => self.dealloc_pd(input),
            Opcode::ALLOC_TRANSPORT_DOMAIN => self.alloc_transport_domain(output),
            Opcode::DEALLOC_TRANSPORT_DOMAIN => self.dealloc_transport_domain(input),
            Opcode::ALLOC_XRCD => self.alloc_xrcd(output),
            Opcode::DEALLOC_XRCD => self.dealloc_xrcd(input),
            Opcode::ALLOC_Q_COUNTER => self.alloc_q_counter(output),
            Opcode::DEALLOC_Q_COUNTER => self.dealloc_q_counter(input),
            Opcode::QUERY_Q_COUNTER => self.query_q_counter(input, output),
            Opcode::QUERY_VPORT_COUNTER => self.query_vport_counter(input, output),
            Opcode::CREATE_EQ => self.create_eq(io, input, output),
            Opcode::DESTROY_EQ => self.destroy_eq(input),
            Opcode::QUERY_EQ => self.query_eq(input, output),
            Opcode::CREATE_CQ => self.create_cq(io, input, output),
            Opcode::DESTROY_CQ => self.destroy_cq(input),
            Opcode::QUERY_CQ => self.query_cq(io, input, output),
            Opcode::ALLOC_MEMIC => self.alloc_memic(input, output),
            Opcode::DEALLOC_MEMIC => self.dealloc_memic(input),
            Opcode::CREATE_MKEY => self.create_mkey(input, output),
            Opcode::DESTROY_MKEY => self.destroy_mkey(input),
            Opcode::QUERY_MKEY => self.query_mkey(input, output),
            Opcode::QUERY_SPECIAL_CONTEXTS => self.query_special_contexts(output),
            Opcode::CREATE_QP => self.create_qp(input, output),
            Opcode::DESTROY_QP => self.destroy_qp(input),
            Opcode::QUERY_QP => self.query_qp(input, output),
            Opcode::RST2INIT_QP
            | Opcode::INIT2INIT_QP
            | Opcode::INIT2RTR_QP
            | Opcode::RTR2RTS_QP
            | Opcode::RTS2RTS_QP
            | Opcode::SQERR2RTS_QP
            | Opcode::SQD_RTS_QP
            | Opcode::QP_2ERR
            | Opcode::QP_2RST => self.modify_qp(io, opcode, input),
            Opcode::CREATE_SRQ | Opcode::CREATE_XRC_SRQ | Opcode::CREATE_RMP => {
                self.create_srq(io, opcode, input, output)
            }
            Opcode::DESTROY_SRQ | Opcode::DESTROY_XRC_SRQ | Opcode::DESTROY_RMP => {
                self.destroy_srq(opcode, input)
            }
            Opcode::QUERY_SRQ | Opcode::QUERY_XRC_SRQ | Opcode::QUERY_RMP => {
                self.query_srq(io, opcode, input, output)
            }
            Opcode::MODIFY_RMP => self.modify_rmp(io, input),
            Opcode::ATTACH_TO_MCG => self.attach_to_mcg(input),
            Opcode::DETACH_FROM_MCG => self.detach_from_mcg(input),
            Opcode::QUERY_HCA_VPORT_CONTEXT => self.port.query_hca_vport_context(input, output),
            Opcode::MODIFY_HCA_VPORT_CONTEXT => self.port.modify_hca_vport_context(input),
            Opcode::QUERY_HCA_VPORT_GID => self.port.query_hca_vport_gid(input, output, output_len),
            Opcode::QUERY_HCA_VPORT_PKEY => self.port.query_hca_vport_pkey(input, output, output_len),
            Opcode::QUERY_MAD_DEMUX => port::query_mad_demux(output),
            Opcode::SET_MAD_DEMUX => port::set_mad_demux(input),
            _ => Err(Refusal::new(CmdStatus::BAD_OP, "opcode", "not supported")),
        }
    }
}

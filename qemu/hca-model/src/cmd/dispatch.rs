//! From an input to the handler of its opcode.

use super::{
    Outcome, Refusal, check, counters, cq, device, eq, mkey, port, qp, refused, register, resources, srq,
};
use crate::hca::Hca;
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

/// Carries out one command. `output` is then at most `output_len` bytes of answer.
pub(super) fn execute(
    hca: &mut Hca,
    io: &mut Io<'_>,
    input: &[u8],
    output_len: usize,
    output: &mut Vec<u8>,
) -> Verdict {
    let opcode = Opcode::of(input);
    if hca.profile.misbehaviour.stall_command == Some(opcode) {
        return Verdict::Never;
    }
    let mut remarks = Vec::new();
    let checked = check::shape(opcode, input, output_len, hca.profile.strictness, &mut remarks)
        .and_then(|input| check::state(opcode, hca.life).map(|()| input));
    for (field, text) in remarks {
        hca.log.warn(Subject::Tolerated { opcode }, field, text);
    }
    let outcome = match checked {
        Ok(_) if makes_object(opcode) && !hca.pages_suffice() => {
            if hca.pages.refused {
                hca.pages.refused = false;
                let text = format!("{} pages at hand, {} needed", hca.pages.given(), hca.pages.needed());
                hca.update_needed_pages();
                Err(Refusal::new(CmdStatus::NO_RES, "manage_pages_in.input_num_entries", text))
            } else {
                request_pages(hca, io);
                return Verdict::WaitForPages;
            }
        }
        Ok(input) => {
            let size = opcode.output_layout().map_or(16, |layout| layout.size);
            output.clear();
            output.resize(size.max(16), 0);
            let op_mod = cmd_in::op_mod.get32(&input) as u16;
            handle(hca, io, opcode, op_mod, &input, output, output_len)
        }
        Err(refusal) => Err(refusal),
    };
    if let Err(refusal) = outcome {
        let subject = refused(opcode, &refusal, output);
        hca.log.refuse(subject, refusal.field, refusal.text);
    }
    if hca.life == crate::hca::Life::Initialized {
        hca.update_needed_pages();
        request_pages(hca, io);
    }
    Verdict::Done
}

/// Sends a page request event where one is due.
pub(super) fn request_pages(hca: &mut Hca, io: &mut Io<'_>) {
    if !hca.queues.eqs.iter().any(|(_, eq)| eq.takes(EventType::PAGE_REQUEST)) {
        return;
    }
    let surplus = hca.profile.growth_pages.saturating_mul(2);
    let Some(pages) = hca.pages.request(surplus) else { return };
    let mut data = [0; 28];
    data[4..8].copy_from_slice(&pages.to_be_bytes());
    hca.queues.event(io, &mut hca.log, EventType::PAGE_REQUEST, 0, &data);
}

/// Refuses an op_mod that the command does not have.
fn no_op_mod(op_mod: u16) -> Outcome {
    if op_mod == 0 { Ok(()) } else { Err(bad_op_mod(op_mod)) }
}

pub(super) fn bad_op_mod(op_mod: u16) -> Refusal {
    Refusal::new(CmdStatus::BAD_OP, "op_mod", format!("{op_mod:#x}"))
}

#[allow(clippy::too_many_arguments)] // One place that knows everything about a call.
fn handle(
    hca: &mut Hca,
    io: &mut Io<'_>,
    opcode: Opcode,
    op_mod: u16,
    input: &[u8],
    output: &mut Vec<u8>,
    output_len: usize,
) -> Outcome {
    match opcode {
        Opcode::QUERY_PAGES => return device::query_pages(hca, op_mod, input, output),
        Opcode::MANAGE_PAGES => return device::manage_pages(hca, io, op_mod, input, output, output_len),
        Opcode::QUERY_HCA_CAP => return device::query_hca_cap(hca, op_mod, input, output),
        Opcode::SET_HCA_CAP => return device::set_hca_cap(hca, op_mod, input),
        Opcode::ACCESS_REG => return register::access(hca, op_mod, input, output, output_len),
        Opcode::MAD_IFC => return port::mad_ifc(hca, op_mod, input, output),
        Opcode::MODIFY_CQ => return cq::modify(hca, io, op_mod, input),
        Opcode::ARM_RQ | Opcode::ARM_XRC_SRQ => return srq::arm(hca, io, opcode, op_mod, input),
        Opcode::QUERY_VPORT_STATE => return port::query_vport_state(hca, op_mod, input, output),
        Opcode::MODIFY_VPORT_STATE => return port::modify_vport_state(hca, op_mod, input),
        Opcode::CONFIG_INT_MODERATION => return eq::config_int_moderation(hca, op_mod, input, output),
        _ => no_op_mod(op_mod)?,
    }
    match opcode {
        Opcode::ENABLE_HCA => device::enable_hca(hca, input),
        Opcode::DISABLE_HCA => device::disable_hca(hca, input),
        Opcode::QUERY_ISSI => device::query_issi(hca, output),
        Opcode::SET_ISSI => device::set_issi(hca, input),
        Opcode::INIT_HCA => device::init_hca(hca),
        Opcode::TEARDOWN_HCA => device::teardown_hca(hca, input, output),
        Opcode::QUERY_ADAPTER => device::query_adapter(hca, output),
        Opcode::SET_DRIVER_VERSION => device::set_driver_version(hca, input),
        Opcode::NOP => Ok(()),
        Opcode::ALLOC_UAR => resources::alloc_uar(hca, output),
        Opcode::DEALLOC_UAR => resources::dealloc_uar(hca, input),
        Opcode::ALLOC_PD => resources::alloc_pd(hca, output),
        Opcode::DEALLOC_PD => resources::dealloc_pd(hca, input),
        Opcode::ALLOC_TRANSPORT_DOMAIN => resources::alloc_transport_domain(hca, output),
        Opcode::DEALLOC_TRANSPORT_DOMAIN => resources::dealloc_transport_domain(hca, input),
        Opcode::ALLOC_XRCD => resources::alloc_xrcd(hca, output),
        Opcode::DEALLOC_XRCD => resources::dealloc_xrcd(hca, input),
        Opcode::ALLOC_Q_COUNTER => counters::alloc(hca, output),
        Opcode::DEALLOC_Q_COUNTER => counters::dealloc(hca, input),
        Opcode::QUERY_Q_COUNTER => counters::query(hca, input, output),
        Opcode::QUERY_VPORT_COUNTER => counters::query_vport(hca, input, output),
        Opcode::CREATE_EQ => eq::create(hca, io, input, output),
        Opcode::DESTROY_EQ => eq::destroy(hca, input),
        Opcode::QUERY_EQ => eq::query(hca, input, output),
        Opcode::CREATE_CQ => cq::create(hca, io, input, output),
        Opcode::DESTROY_CQ => cq::destroy(hca, input),
        Opcode::QUERY_CQ => cq::query(hca, io, input, output),
        Opcode::CREATE_MKEY => mkey::create(hca, input, output),
        Opcode::DESTROY_MKEY => mkey::destroy(hca, input),
        Opcode::QUERY_MKEY => mkey::query(hca, input, output),
        Opcode::QUERY_SPECIAL_CONTEXTS => mkey::query_special_contexts(hca, output),
        Opcode::CREATE_QP => qp::create(hca, input, output),
        Opcode::DESTROY_QP => qp::destroy(hca, input),
        Opcode::QUERY_QP => qp::query(hca, input, output),
        Opcode::RST2INIT_QP
        | Opcode::INIT2INIT_QP
        | Opcode::INIT2RTR_QP
        | Opcode::RTR2RTS_QP
        | Opcode::RTS2RTS_QP
        | Opcode::SQERR2RTS_QP
        | Opcode::SQD_RTS_QP
        | Opcode::QP_2ERR
        | Opcode::QP_2RST => qp::modify(hca, io, opcode, input),
        Opcode::CREATE_SRQ | Opcode::CREATE_XRC_SRQ | Opcode::CREATE_RMP => {
            srq::create(hca, io, opcode, input, output)
        }
        Opcode::DESTROY_SRQ | Opcode::DESTROY_XRC_SRQ | Opcode::DESTROY_RMP => {
            srq::destroy(hca, opcode, input)
        }
        Opcode::QUERY_SRQ | Opcode::QUERY_XRC_SRQ | Opcode::QUERY_RMP => {
            srq::query(hca, io, opcode, input, output)
        }
        Opcode::MODIFY_RMP => srq::modify_rmp(hca, io, input),
        Opcode::ATTACH_TO_MCG => qp::attach_to_mcg(hca, input),
        Opcode::DETACH_FROM_MCG => qp::detach_from_mcg(hca, input),
        Opcode::QUERY_HCA_VPORT_CONTEXT => port::query_hca_vport_context(hca, input, output),
        Opcode::MODIFY_HCA_VPORT_CONTEXT => port::modify_hca_vport_context(hca, input),
        Opcode::QUERY_HCA_VPORT_GID => port::query_hca_vport_gid(hca, input, output, output_len),
        Opcode::QUERY_HCA_VPORT_PKEY => port::query_hca_vport_pkey(hca, input, output, output_len),
        Opcode::QUERY_MAD_DEMUX => port::query_mad_demux(output),
        Opcode::SET_MAD_DEMUX => port::set_mad_demux(input),
        _ => Err(Refusal::new(CmdStatus::BAD_OP, "opcode", "not supported")),
    }
}

//! What is known of each command that the device carries out: its handler, the object that it is about, when it may be given. One table,
//! so that no two lists can disagree.

use super::port;
use super::refusal::Outcome;
use crate::device::Device;
use crate::object::owners::Kind;
use crate::seams::Io;
use mlx5_prm::Field;
use mlx5_prm::commands::*;
use mlx5_prm::opcode::Opcode;

/// Where nearly all commands name their object, and answer its number.
const NUMBER: Field = Field::bits(0x08, 23, 0);

/// One command as its handler sees it.
pub(super) struct Call<'a, 'io> {
    pub(super) io: &'a mut Io<'io>,
    pub(super) opcode: Opcode,
    pub(super) op_mod: u16,
    pub(super) input: &'a [u8],
    pub(super) output: &'a mut Vec<u8>,
    /// Bytes of output that the driver has room for.
    pub(super) output_len: usize,
}

type Handler = fn(&mut Device, Call<'_, '_>) -> Outcome;

/// What a command does with the object that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    Make,
    Use,
    End,
}

/// What is known of a command.
#[derive(Clone, Copy)]
pub(super) struct Command {
    pub(super) run: Handler,
    /// The object that it is about, and where its number stands.
    pub(super) about: Option<(Kind, Deed, Field)>,
    /// It has operation modifiers; of all others it is 0.
    pub(super) modified: bool,
    /// It can be given between ENABLE_HCA and INIT_HCA (PRM, driver start-up).
    pub(super) early: bool,
    /// The driver may ask for a part of its output (a capability block, a page list, a context).
    pub(super) partial: bool,
    /// What it makes lives in pages of the host.
    pub(super) paged: bool,
    /// Only devices with an Ethernet port know it.
    pub(super) ethernet: bool,
}

/// A command about no object.
const fn plain(run: Handler) -> Command {
    Command { run, about: None, modified: false, early: false, partial: false, paged: false, ethernet: false }
}

const fn about(kind: Kind, deed: Deed, run: Handler) -> Command {
    Command { about: Some((kind, deed, NUMBER)), ..plain(run) }
}

const fn make(kind: Kind, run: Handler) -> Command {
    about(kind, Deed::Make, run)
}

const fn using(kind: Kind, run: Handler) -> Command {
    about(kind, Deed::Use, run)
}

const fn end(kind: Kind, run: Handler) -> Command {
    about(kind, Deed::End, run)
}

impl Command {
    const fn modified(self) -> Self {
        Self { modified: true, ..self }
    }

    const fn early(self) -> Self {
        Self { early: true, ..self }
    }

    const fn partial(self) -> Self {
        Self { partial: true, ..self }
    }

    const fn paged(self) -> Self {
        Self { paged: true, ..self }
    }

    const fn ethernet(self) -> Self {
        Self { ethernet: true, ..self }
    }
}

/// The entry of `opcode`, `None` for a command that the device does not have.
pub(super) fn command(opcode: Opcode) -> Option<Command> {
    Some(match opcode {
        Opcode::ENABLE_HCA => plain(|d, c| d.enable_hca(c.input)).early(),
        Opcode::DISABLE_HCA => plain(|d, c| d.disable_hca(c.input)).early(),
        Opcode::QUERY_ISSI => plain(|d, c| d.query_issi(c.output)).early(),
        Opcode::SET_ISSI => plain(|d, c| d.set_issi(c.input)).early(),
        Opcode::QUERY_PAGES => plain(|d, c| d.query_pages(c.op_mod, c.input, c.output)).early().modified(),
        Opcode::MANAGE_PAGES => {
            plain(|d, c| d.manage_pages(c.io, c.op_mod, c.input, c.output, c.output_len)).early().modified()
        }
        Opcode::QUERY_HCA_CAP => {
            plain(|d, c| d.query_hca_cap(c.op_mod, c.input, c.output)).early().modified().partial()
        }
        Opcode::SET_HCA_CAP => plain(|d, c| d.set_hca_cap(c.op_mod, c.input)).early().modified(),
        Opcode::INIT_HCA => plain(|d, _| d.init_hca()).early(),
        Opcode::TEARDOWN_HCA => plain(|d, c| d.teardown_hca(c.input, c.output)).early(),
        Opcode::QUERY_ADAPTER => plain(|d, c| d.query_adapter(c.output)).early(),
        Opcode::SET_DRIVER_VERSION => plain(|d, c| d.set_driver_version(c.input)).early(),
        Opcode::ACCESS_REG => {
            plain(|d, c| d.access_register(c.op_mod, c.input, c.output, c.output_len)).early().modified()
        }
        Opcode::NOP => plain(|_, _| Ok(())).early(),
        // No ports are bonded: the context is all zero.
        Opcode::QUERY_LAG => plain(|_, _| Ok(())),
        Opcode::QUERY_SPECIAL_CONTEXTS => plain(|d, c| d.query_special_contexts(c.output)),

        Opcode::MAD_IFC => plain(|d, c| d.port.mad_ifc(c.op_mod, c.input, c.output, c.io.now)).modified(),
        Opcode::QUERY_VPORT_STATE => {
            plain(|d, c| d.port.query_vport_state(c.op_mod, c.input, c.output)).modified()
        }
        Opcode::MODIFY_VPORT_STATE => plain(|d, c| d.port.modify_vport_state(c.op_mod, c.input)).modified(),
        Opcode::QUERY_VPORT_COUNTER => plain(|d, c| d.query_vport_counter(c.input, c.output)),
        Opcode::QUERY_VNIC_ENV => plain(|d, c| d.query_vnic_env(c.input, c.output)).partial(),
        Opcode::QUERY_HCA_VPORT_CONTEXT => plain(|d, c| d.port.query_hca_vport_context(c.input, c.output)),
        Opcode::MODIFY_HCA_VPORT_CONTEXT => plain(|d, c| d.port.modify_hca_vport_context(c.input)),
        Opcode::QUERY_HCA_VPORT_GID => {
            plain(|d, c| d.port.query_hca_vport_gid(c.input, c.output, c.output_len))
        }
        Opcode::QUERY_HCA_VPORT_PKEY => {
            plain(|d, c| d.port.query_hca_vport_pkey(c.input, c.output, c.output_len))
        }
        Opcode::QUERY_MAD_DEMUX => plain(|_, c| port::query_mad_demux(c.output)),
        Opcode::SET_MAD_DEMUX => plain(|_, c| port::set_mad_demux(c.input)),

        Opcode::CREATE_UCTX => plain(|d, c| d.create_uctx(c.input, c.output)),
        Opcode::DESTROY_UCTX => plain(|d, c| d.destroy_uctx(c.input)),
        Opcode::CREATE_UMEM => make(Kind::Umem, |d, c| d.create_umem(c.input, c.output)),
        Opcode::DESTROY_UMEM => end(Kind::Umem, |d, c| d.destroy_umem(c.input)),
        Opcode::CREATE_GENERAL_OBJECT => {
            make(Kind::General, |d, c| d.create_general_object(c.op_mod, c.input, c.output)).modified()
        }
        Opcode::DESTROY_GENERAL_OBJECT => {
            end(Kind::General, |d, c| d.destroy_general_object(c.op_mod, c.input)).modified()
        }

        Opcode::ALLOC_UAR => make(Kind::Uar, |d, c| d.alloc_uar(c.output)),
        Opcode::DEALLOC_UAR => end(Kind::Uar, |d, c| d.dealloc_uar(c.input)),
        Opcode::ALLOC_PD => make(Kind::Pd, |d, c| d.alloc_pd(c.output)),
        Opcode::DEALLOC_PD => end(Kind::Pd, |d, c| d.dealloc_pd(c.input)),
        Opcode::ALLOC_TRANSPORT_DOMAIN => {
            make(Kind::TransportDomain, |d, c| d.alloc_transport_domain(c.output))
        }
        Opcode::DEALLOC_TRANSPORT_DOMAIN => {
            end(Kind::TransportDomain, |d, c| d.dealloc_transport_domain(c.input))
        }
        Opcode::ALLOC_XRCD => make(Kind::Xrcd, |d, c| d.alloc_xrcd(c.output)),
        Opcode::DEALLOC_XRCD => end(Kind::Xrcd, |d, c| d.dealloc_xrcd(c.input)),
        Opcode::ALLOC_Q_COUNTER => make(Kind::Counters, |d, c| d.alloc_q_counter(c.output)),
        Opcode::DEALLOC_Q_COUNTER => end(Kind::Counters, |d, c| d.dealloc_q_counter(c.input)),
        Opcode::QUERY_Q_COUNTER => Command {
            about: Some((Kind::Counters, Deed::Use, query_q_counter_in::counter_set_id)),
            ..plain(|d, c| d.query_q_counter(c.input, c.output))
        },
        Opcode::ALLOC_MEMIC => plain(|d, c| d.alloc_memic(c.input, c.output)),
        Opcode::DEALLOC_MEMIC => plain(|d, c| d.dealloc_memic(c.input)),
        Opcode::MODIFY_MEMIC => plain(|d, c| d.modify_memic(c.op_mod, c.input, c.output)).modified(),

        Opcode::CREATE_EQ => make(Kind::Eq, |d, c| d.create_eq(c.io, c.input, c.output)),
        Opcode::DESTROY_EQ => end(Kind::Eq, |d, c| d.destroy_eq(c.input)),
        Opcode::QUERY_EQ => using(Kind::Eq, |d, c| d.query_eq(c.input, c.output)).partial(),
        Opcode::CREATE_CQ => make(Kind::Cq, |d, c| d.create_cq(c.io, c.input, c.output)).paged(),
        Opcode::DESTROY_CQ => end(Kind::Cq, |d, c| d.destroy_cq(c.input)),
        Opcode::QUERY_CQ => using(Kind::Cq, |d, c| d.query_cq(c.io, c.input, c.output)).partial(),
        Opcode::MODIFY_CQ => using(Kind::Cq, |d, c| d.modify_cq(c.io, c.op_mod, c.input)).modified(),
        Opcode::CONFIG_INT_MODERATION => {
            plain(|d, c| d.config_int_moderation(c.op_mod, c.input, c.output)).modified()
        }

        Opcode::CREATE_MKEY => make(Kind::Mkey, |d, c| d.create_mkey(c.input, c.output)).paged(),
        Opcode::DESTROY_MKEY => end(Kind::Mkey, |d, c| d.destroy_mkey(c.input)),
        Opcode::QUERY_MKEY => using(Kind::Mkey, |d, c| d.query_mkey(c.input, c.output)).partial(),

        Opcode::CREATE_QP => make(Kind::Qp, |d, c| d.create_qp(c.input, c.output)).paged(),
        Opcode::DESTROY_QP => end(Kind::Qp, |d, c| d.destroy_qp(c.input)),
        Opcode::QUERY_QP => using(Kind::Qp, |d, c| d.query_qp(c.input, c.output)).partial(),
        Opcode::RST2INIT_QP
        | Opcode::INIT2INIT_QP
        | Opcode::INIT2RTR_QP
        | Opcode::RTR2RTS_QP
        | Opcode::RTS2RTS_QP
        | Opcode::SQERR2RTS_QP
        | Opcode::SQD_RTS_QP
        | Opcode::QP_2ERR
        | Opcode::QP_2RST => using(Kind::Qp, |d, c| d.modify_qp(c.io, c.opcode, c.input)),
        Opcode::ATTACH_TO_MCG => using(Kind::Qp, |d, c| d.attach_to_mcg(c.input)),
        Opcode::DETACH_FROM_MCG => using(Kind::Qp, |d, c| d.detach_from_mcg(c.input)),

        Opcode::CREATE_SRQ | Opcode::CREATE_XRC_SRQ | Opcode::CREATE_RMP => {
            make(Kind::Srq, |d, c| d.create_srq(c.io, c.opcode, c.input, c.output)).paged()
        }
        Opcode::DESTROY_SRQ | Opcode::DESTROY_XRC_SRQ | Opcode::DESTROY_RMP => {
            end(Kind::Srq, |d, c| d.destroy_srq(c.opcode, c.input))
        }
        Opcode::QUERY_SRQ | Opcode::QUERY_XRC_SRQ | Opcode::QUERY_RMP => {
            using(Kind::Srq, |d, c| d.query_srq(c.io, c.opcode, c.input, c.output)).partial()
        }
        Opcode::MODIFY_RMP => using(Kind::Srq, |d, c| d.modify_rmp(c.io, c.input)),
        Opcode::ARM_RQ | Opcode::ARM_XRC_SRQ => {
            using(Kind::Srq, |d, c| d.arm_srq(c.io, c.opcode, c.op_mod, c.input)).modified()
        }
        _ => return nic_command(opcode),
    })
}

/// The entry of a command of Ethernet ports.
fn nic_command(opcode: Opcode) -> Option<Command> {
    let command = match opcode {
        Opcode::QUERY_NIC_VPORT_CONTEXT => {
            plain(|d, c| d.query_nic_vport_context(c.input, c.output)).partial()
        }
        Opcode::MODIFY_NIC_VPORT_CONTEXT => plain(|d, c| d.modify_nic_vport_context(c.input)),
        Opcode::QUERY_ROCE_ADDRESS => plain(|d, c| d.query_roce_address(c.input, c.output)),
        Opcode::QUERY_CONG_STATISTICS => plain(|d, c| d.query_congestion(c.input, c.output)),
        Opcode::SET_ROCE_ADDRESS => plain(|d, c| d.set_roce_address(c.input)),

        Opcode::CREATE_TIS => make(Kind::Tis, |d, c| d.create_tis(c.input, c.output)),
        Opcode::MODIFY_TIS => using(Kind::Tis, |d, c| d.modify_tis(c.input)),
        Opcode::DESTROY_TIS => end(Kind::Tis, |d, c| d.destroy_tis(c.input)),
        Opcode::QUERY_TIS => using(Kind::Tis, |d, c| d.query_tis(c.input, c.output)),
        Opcode::CREATE_TIR => make(Kind::Tir, |d, c| d.create_tir(c.input, c.output)),
        Opcode::MODIFY_TIR => using(Kind::Tir, |d, c| d.modify_tir(c.input)),
        Opcode::DESTROY_TIR => end(Kind::Tir, |d, c| d.destroy_tir(c.input)),
        Opcode::QUERY_TIR => using(Kind::Tir, |d, c| d.query_tir(c.input, c.output)),
        Opcode::CREATE_RQT => make(Kind::Rqt, |d, c| d.create_rqt(c.input, c.output)),
        Opcode::MODIFY_RQT => using(Kind::Rqt, |d, c| d.modify_rqt(c.input)),
        Opcode::DESTROY_RQT => end(Kind::Rqt, |d, c| d.destroy_rqt(c.input)),
        Opcode::QUERY_RQT => using(Kind::Rqt, |d, c| d.query_rqt(c.input, c.output)).partial(),
        Opcode::CREATE_SQ => make(Kind::Sq, |d, c| d.create_sq(c.io, c.input, c.output)).paged(),
        Opcode::MODIFY_SQ => using(Kind::Sq, |d, c| d.modify_sq(c.input)),
        Opcode::DESTROY_SQ => end(Kind::Sq, |d, c| d.destroy_sq(c.input)),
        Opcode::QUERY_SQ => using(Kind::Sq, |d, c| d.query_sq(c.input, c.output)).partial(),
        Opcode::CREATE_RQ => make(Kind::Rq, |d, c| d.create_rq(c.io, c.input, c.output)).paged(),
        Opcode::MODIFY_RQ => using(Kind::Rq, |d, c| d.modify_rq(c.io, c.input)),
        Opcode::DESTROY_RQ => end(Kind::Rq, |d, c| d.destroy_rq(c.input)),
        Opcode::QUERY_RQ => using(Kind::Rq, |d, c| d.query_rq(c.input, c.output)).partial(),

        Opcode::CREATE_FLOW_TABLE => make(Kind::FlowTable, |d, c| d.create_flow_table(c.input, c.output)),
        Opcode::MODIFY_FLOW_TABLE => {
            at(modify_flow_table_in::table_id, using(Kind::FlowTable, |d, c| d.modify_flow_table(c.input)))
        }
        Opcode::DESTROY_FLOW_TABLE => {
            at(destroy_flow_table_in::table_id, end(Kind::FlowTable, |d, c| d.destroy_flow_table(c.input)))
        }
        Opcode::QUERY_FLOW_TABLE => at(
            query_flow_table_in::table_id,
            using(Kind::FlowTable, |d, c| d.query_flow_table(c.input, c.output)),
        ),
        Opcode::SET_FLOW_TABLE_ROOT => at(
            set_flow_table_root_in::table_id,
            using(Kind::FlowTable, |d, c| d.set_flow_table_root(c.op_mod, c.input)),
        )
        .modified(),
        Opcode::CREATE_FLOW_GROUP => make(Kind::FlowGroup, |d, c| d.create_flow_group(c.input, c.output)),
        Opcode::DESTROY_FLOW_GROUP => {
            at(destroy_flow_group_in::group_id, end(Kind::FlowGroup, |d, c| d.destroy_flow_group(c.input)))
        }
        Opcode::QUERY_FLOW_GROUP => at(
            query_flow_group_in::group_id,
            using(Kind::FlowGroup, |d, c| d.query_flow_group(c.input, c.output)),
        ),
        Opcode::SET_FLOW_TABLE_ENTRY => {
            at(set_fte_in::table_id, using(Kind::FlowTable, |d, c| d.set_fte(c.op_mod, c.input))).modified()
        }
        Opcode::QUERY_FLOW_TABLE_ENTRY => {
            at(query_fte_in::table_id, using(Kind::FlowTable, |d, c| d.query_fte(c.input, c.output)))
        }
        Opcode::DELETE_FLOW_TABLE_ENTRY => {
            at(delete_fte_in::table_id, using(Kind::FlowTable, |d, c| d.delete_fte(c.input)))
        }
        Opcode::ALLOC_FLOW_COUNTER => make(Kind::FlowCounter, |d, c| d.alloc_flow_counter(c.input, c.output)),
        Opcode::DEALLOC_FLOW_COUNTER => end(Kind::FlowCounter, |d, c| d.dealloc_flow_counter(c.input)),
        Opcode::QUERY_FLOW_COUNTER => at(
            query_flow_counter_in::flow_counter_id,
            using(Kind::FlowCounter, |d, c| d.query_flow_counter(c.input, c.output)),
        ),
        _ => return None,
    };
    Some(command.ethernet())
}

/// The command with its object's number at `field` of the input.
const fn at(field: Field, command: Command) -> Command {
    let about = match command.about {
        Some((kind, deed, _)) => Some((kind, deed, field)),
        None => None,
    };
    Command { about, ..command }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mlx5_prm::opcode::COMMANDS;

    #[test]
    fn every_command_that_is_carried_out_has_layouts() {
        let known = COMMANDS.iter().filter(|known| command(known.opcode).is_some());
        let without: Vec<&str> =
            known.filter(|known| known.layouts.is_none()).map(|known| known.name).collect();
        assert!(without.is_empty(), "{without:?}");
    }

    #[test]
    fn kinds_that_can_be_made_can_be_ended() {
        let deeds = |wanted: Deed| {
            let entries = COMMANDS.iter().filter_map(|known| command(known.opcode)?.about);
            entries.filter(move |(_, deed, _)| *deed == wanted).map(|(kind, _, _)| kind)
        };
        for kind in deeds(Deed::Make) {
            assert!(deeds(Deed::End).any(|ended| ended == kind), "{kind:?}");
        }
        for kind in deeds(Deed::End).chain(deeds(Deed::Use)) {
            assert!(deeds(Deed::Make).any(|made| made == kind), "{kind:?}");
        }
    }
}

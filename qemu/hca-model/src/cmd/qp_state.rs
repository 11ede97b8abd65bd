//! The state commands of QPs: which transition, and what of the context counts in it (PRM, command reference).

use super::refusal::{Outcome, Refusal};
use crate::caps::{LOG_MAX_MSG, LOG_MAX_RA};
use crate::device::Device;
use crate::profile::Strictness;
use crate::seams::Io;
use mlx5_prm::Field;
use mlx5_prm::caps::cmd_hca_cap;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::{ads, qpc};
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::CmdStatus;
use mlx5_prm::value::{OptParamMask, QpState, ServiceType};

/// Input fields that all state commands share.
const QPN: Field = rst2init_qp_in::qpn;
const OPT_PARAM_MASK: Field = rst2init_qp_in::opt_param_mask;

impl Device {
    pub(super) fn modify_qp(&mut self, io: &mut Io<'_>, opcode: Opcode, input: &[u8]) -> Outcome {
        let qpn = QPN.get32(input);
        let Some(qp) = self.objects.qps.get(qpn) else {
            return Err(Refusal::missing("qpn", qpn));
        };
        let old = qp.state();
        let Some(new) = transition(opcode, old) else {
            return Err(Refusal::new(
                CmdStatus::BAD_QP_STATE,
                "qpc.state",
                format!("QP {qpn:#x} is in {old}"),
            ));
        };
        let mut mask = OptParamMask::empty();
        let mut context = Vec::new();
        if !matches!(opcode, Opcode::QP_2ERR | Opcode::QP_2RST) {
            mask = OptParamMask::from_bits_retain(OPT_PARAM_MASK.get32(input));
            let foreign = mask.bits() & !optional(opcode, qp.service());
            if foreign != 0 {
                let text = format!("bits {foreign:#x} do not belong to this transition of {}", qp.service());
                return Err(Refusal::param("opt_param_mask", text));
            }
            context = rst2init_qp_in::qpc.of(input).to_vec();
            self.check_qpc(qp.service(), opcode, &mut context)?;
            self.check_optional(qp.service(), mask, &context)?;
        }
        if let Some(qp) = self.objects.qps.get_mut(qpn) {
            qp.apply(opcode, mask, &context);
            qp.enter(new);
        }
        self.qp_changed_state(io, qpn, old, new);
        Ok(())
    }

    /// Checks the parameters that a transition requires, and fills in the one that has a default.
    fn check_qpc(&self, service: ServiceType, opcode: Opcode, context: &mut [u8]) -> Outcome {
        let connected = matches!(service, ServiceType::RC | ServiceType::UC | ServiceType::XRC);
        let reliable = matches!(service, ServiceType::RC | ServiceType::XRC);
        let path = qpc::primary_address_path.of(context);
        match opcode {
            Opcode::RST2INIT_QP => {
                check_port(service, path)?;
                self.check_pkey(path)?;
                let pd = qpc::pd.get32(context);
                if service == ServiceType::REG_UMR && pd != 0 && !self.objects.pds.contains(pd) {
                    return Err(Refusal::missing("qpc.pd", pd));
                }
                self.check_counter_set(qpc::counter_set_id.get32(context) as u8)
            }
            Opcode::INIT2RTR_QP => {
                let mtu = match qpc::mtu.get32(context) as u8 {
                    // Datagrams go by the port's MTU; iPXE names none.
                    0 if !connected && self.profile.strictness == Strictness::Lenient => self.port.mtu_cap,
                    mtu => mtu,
                };
                if !(1..=5).contains(&mtu) || (connected && mtu > self.port.mtu_cap) {
                    return Err(Refusal::param(
                        "qpc.mtu",
                        format!("{mtu}, the port's is {}", self.port.mtu_cap),
                    ));
                }
                check_limit("qpc.log_msg_max", qpc::log_msg_max.get32(context), LOG_MAX_MSG)?;
                if connected {
                    self.check_path(service, path)?;
                }
                if reliable {
                    check_limit("qpc.log_rra_max", qpc::log_rra_max.get32(context), LOG_MAX_RA)?;
                }
                qpc::mtu.set(context, mtu);
                Ok(())
            }
            Opcode::RTR2RTS_QP if reliable => {
                check_limit("qpc.log_sra_max", qpc::log_sra_max.get32(context), LOG_MAX_RA)
            }
            _ => Ok(()),
        }
    }

    /// Checks the optional parameters that `mask` names.
    fn check_optional(&self, service: ServiceType, mask: OptParamMask, context: &[u8]) -> Outcome {
        let path = qpc::primary_address_path.of(context);
        if mask.contains(OptParamMask::PRI_PORT) {
            check_port(service, path)?;
        }
        if mask.contains(OptParamMask::PKEY_INDEX) {
            self.check_pkey(path)?;
        }
        if mask.contains(OptParamMask::COUNTER_SET_ID) {
            self.check_counter_set(qpc::counter_set_id.get32(context) as u8)?;
        }
        let cqn = qpc::cqn_rcv.get32(context);
        if mask.contains(OptParamMask::CQN_RCV) && !self.objects.queues.cqs.contains(cqn) {
            return Err(Refusal::missing("qpc.cqn_rcv", cqn));
        }
        let srqn = qpc::srqn_rmpn_xrqn.get32(context);
        if mask.contains(OptParamMask::SRQN) && !self.objects.srqs.contains(srqn) {
            return Err(Refusal::missing("qpc.srqn_rmpn_xrqn", srqn));
        }
        Ok(())
    }

    fn check_pkey(&self, path: &[u8]) -> Outcome {
        let index = ads::pkey_index.get32(path);
        if index as usize >= self.port.pkeys.len() {
            return Err(Refusal::param(
                "ads.pkey_index",
                format!("{index}, {} entries", self.port.pkeys.len()),
            ));
        }
        Ok(())
    }

    /// Checks the whole primary path of INIT to RTR.
    fn check_path(&self, service: ServiceType, path: &[u8]) -> Outcome {
        let ethernet = self.port.ethernet.is_some();
        let source = ads::src_addr_index.get32(path);
        // On Ethernet the field cannot name an entry that does not exist.
        if ads::grh.is_set(path) && !ethernet && source as usize >= self.port.guids.len() {
            let text = format!("{source}, {} entries", self.port.guids.len());
            return Err(Refusal::param("ads.src_addr_index", text));
        }
        let force_loopback = ads::fl.is_set(path);
        if ethernet && !self.vport.roce && !force_loopback && service != ServiceType::REG_UMR {
            let text = "RoCE is not enabled";
            return Err(Refusal::new(CmdStatus::BAD_OP, "nic_vport_context.roce_en", text));
        }
        let loops = self.caps.current(cmd_hca_cap::fl_rc_qp_when_roce_disabled) != 0;
        if force_loopback && !(loops && service == ServiceType::RC) {
            return Err(Refusal::param("ads.fl", "the capability is off"));
        }
        let port = ads::vhca_port_num.get32(path);
        if port > 1 {
            return Err(Refusal::param("ads.vhca_port_num", format!("port {port} does not exist")));
        }
        Ok(())
    }
}

fn check_limit(field: &'static str, value: u32, limit: u32) -> Outcome {
    if value > limit {
        return Err(Refusal::param(field, format!("{value}, at most {limit}")));
    }
    Ok(())
}

/// States that `opcode` may start from, and the state it leads to.
fn transition(opcode: Opcode, old: QpState) -> Option<QpState> {
    let (from, to): (&[QpState], QpState) = match opcode {
        Opcode::RST2INIT_QP => (&[QpState::RST], QpState::INIT),
        Opcode::INIT2INIT_QP => (&[QpState::INIT], QpState::INIT),
        Opcode::INIT2RTR_QP => (&[QpState::INIT], QpState::RTR),
        Opcode::RTR2RTS_QP => (&[QpState::RTR], QpState::RTS),
        Opcode::RTS2RTS_QP => (&[QpState::RTS], QpState::RTS),
        Opcode::SQERR2RTS_QP => (&[QpState::SQER], QpState::RTS),
        Opcode::SQD_RTS_QP => (&[QpState::SQD, QpState::SQ_DRAINING], QpState::RTS),
        // From reset too: Linux's transition table has it.
        Opcode::QP_2ERR => return Some(QpState::ERR),
        Opcode::QP_2RST => return Some(QpState::RST),
        _ => return None,
    };
    from.contains(&old).then_some(to)
}

/// Optional parameters that a transition takes, by service (PRM, command reference).
fn optional(opcode: Opcode, service: ServiceType) -> u32 {
    let bits: &[u32] = match (opcode, service) {
        (Opcode::INIT2INIT_QP, ServiceType::RC | ServiceType::XRC) => &[1, 2, 3, 4, 15, 16],
        (Opcode::INIT2INIT_QP, ServiceType::UC) => &[3, 4, 15, 16],
        (Opcode::INIT2INIT_QP, ServiceType::UD) => &[4, 5, 16],
        (Opcode::INIT2RTR_QP, ServiceType::RC | ServiceType::XRC) => &[0, 1, 2, 3, 4, 15],
        (Opcode::INIT2RTR_QP, ServiceType::UC) => &[0, 3, 4, 15],
        (Opcode::INIT2RTR_QP, ServiceType::UD | ServiceType::QP0 | ServiceType::QP1) => &[4, 5],
        (Opcode::RTR2RTS_QP | Opcode::RTS2RTS_QP, ServiceType::RC | ServiceType::XRC) => &[0, 1, 2, 3, 6, 10],
        (Opcode::RTR2RTS_QP | Opcode::RTS2RTS_QP, ServiceType::UC) => &[0, 3, 10],
        (Opcode::RTR2RTS_QP, ServiceType::UD) => &[5],
        (Opcode::RTS2RTS_QP, ServiceType::UD) => &[5, 18, 19],
        (Opcode::SQERR2RTS_QP, ServiceType::RC | ServiceType::XRC)
        | (Opcode::SQD_RTS_QP, ServiceType::RC) => &[1, 2, 3, 6],
        (Opcode::SQERR2RTS_QP | Opcode::SQD_RTS_QP, ServiceType::UC) => &[3],
        (
            Opcode::SQERR2RTS_QP | Opcode::SQD_RTS_QP,
            ServiceType::UD | ServiceType::QP0 | ServiceType::QP1,
        ) => &[5],
        _ => &[],
    };
    // A QP may move to another counter set while it runs (cmd_hca_cap.rts2rts_qp_counters_set_id).
    let any = if opcode == Opcode::RTS2RTS_QP { OptParamMask::COUNTER_SET_ID.bits() } else { 0 };
    bits.iter().fold(any, |mask, bit| mask | 1 << bit)
}

/// Checks the port of a path. The registration QP never sends: it need not have one.
fn check_port(service: ServiceType, path: &[u8]) -> Outcome {
    match ads::vhca_port_num.get32(path) {
        1 => Ok(()),
        0 if service == ServiceType::REG_UMR => Ok(()),
        port => Err(Refusal::param("ads.vhca_port_num", format!("port {port} does not exist"))),
    }
}

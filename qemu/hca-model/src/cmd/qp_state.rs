//! The state commands of QPs: which transition, and what of the context counts in it (PRM, command reference).

use super::refusal::{Outcome, Refusal};
use crate::caps::{LOG_MAX_MSG, LOG_MAX_RA};
use crate::device::Device;
use crate::object::qp::{AddressPath, Qp};
use crate::object::remote_access::RemoteAccess;
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
        let old = qp.state;
        let Some(new) = transition(opcode, old) else {
            return Err(Refusal::new(
                CmdStatus::BAD_QP_STATE,
                "qpc.state",
                format!("QP {qpn:#x} is in {old}"),
            ));
        };
        // The context is checked on a copy: a refused command changes nothing.
        let mut changed = qp.clone();
        if !matches!(opcode, Opcode::QP_2ERR | Opcode::QP_2RST) {
            let mask = OPT_PARAM_MASK.get32(input);
            let foreign = mask & !optional(opcode, qp.service);
            if foreign != 0 {
                let text = format!("bits {foreign:#x} do not belong to this transition of {}", qp.service);
                return Err(Refusal::param("opt_param_mask", text));
            }
            let context = rst2init_qp_in::qpc.of(input);
            self.apply_qpc(&mut changed, opcode, OptParamMask::from_bits_retain(mask), context)?;
        }
        changed.state = new;
        if let Some(qp) = self.objects.qps.get_mut(qpn) {
            *qp = changed;
        }
        self.qp_changed_state(io, qpn, old, new);
        Ok(())
    }

    fn apply_qpc(&self, qp: &mut Qp, opcode: Opcode, mask: OptParamMask, context: &[u8]) -> Outcome {
        let connected = matches!(qp.service, ServiceType::RC | ServiceType::UC | ServiceType::XRC);
        let reliable = matches!(qp.service, ServiceType::RC | ServiceType::XRC);
        let path = qpc::primary_address_path.of(context);
        match opcode {
            Opcode::RST2INIT_QP => {
                take_port(qp, path, true)?;
                self.take_pkey(qp, path)?;
                if qp.service == ServiceType::REG_UMR {
                    // Made without a domain, Linux names it here: that of the key over its translation lists.
                    let pd = qpc::pd.get32(context);
                    if pd != 0 && !self.objects.pds.contains(pd) {
                        return Err(Refusal::missing("qpc.pd", pd));
                    }
                    qp.pd = pd;
                }
                if qp.service == ServiceType::REG_UMR || connected {
                    qp.remote_access.update(RemoteAccess::ALL, context);
                }
                if !connected {
                    qp.q_key = qpc::q_key.get32(context);
                }
                let counter_set_id = qpc::counter_set_id.get32(context) as u8;
                self.check_counter_set(counter_set_id)?;
                if counter_set_id != 0 {
                    qp.counter_set_id = counter_set_id;
                }
                qp.pm_state = qpc::pm_state.get32(context) as u8;
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
                let log_msg_max = qpc::log_msg_max.get32(context);
                if log_msg_max > LOG_MAX_MSG {
                    return Err(Refusal::param(
                        "qpc.log_msg_max",
                        format!("{log_msg_max}, at most {LOG_MAX_MSG}"),
                    ));
                }
                qp.mtu = mtu;
                qp.log_msg_max = log_msg_max as u8;
                if connected {
                    qp.remote_qpn = qpc::remote_qpn.get32(context);
                    qp.next_rcv_psn = qpc::next_rcv_psn.get32(context);
                    self.take_path(qp, path)?;
                }
                if reliable {
                    let log_rra_max = qpc::log_rra_max.get32(context);
                    if log_rra_max > LOG_MAX_RA {
                        return Err(Refusal::param(
                            "qpc.log_rra_max",
                            format!("{log_rra_max}, at most {LOG_MAX_RA}"),
                        ));
                    }
                    qp.log_rra_max = log_rra_max as u8;
                    qp.min_rnr_nak = qpc::min_rnr_nak.get32(context) as u8;
                }
            }
            Opcode::RTR2RTS_QP => {
                qp.next_send_psn = qpc::next_send_psn.get32(context);
                if reliable {
                    let log_sra_max = qpc::log_sra_max.get32(context);
                    if log_sra_max > LOG_MAX_RA {
                        return Err(Refusal::param(
                            "qpc.log_sra_max",
                            format!("{log_sra_max}, at most {LOG_MAX_RA}"),
                        ));
                    }
                    qp.log_sra_max = log_sra_max as u8;
                    qp.primary_path.ack_timeout = ads::ack_timeout.get32(path) as u8;
                    qp.retry_count = qpc::retry_count.get32(context) as u8;
                    qp.rnr_retry = qpc::rnr_retry.get32(context) as u8;
                    qp.log_ack_req_freq = qpc::log_ack_req_freq.get32(context) as u8;
                }
            }
            _ => {}
        }
        self.apply_optional(qp, mask, context)
    }

    /// The optional parameters that `mask` names.
    fn apply_optional(&self, qp: &mut Qp, mask: OptParamMask, context: &[u8]) -> Outcome {
        let path = qpc::primary_address_path.of(context);
        qp.remote_access.update(mask, context);
        if mask.contains(OptParamMask::PRI_PORT) {
            take_port(qp, path, true)?;
        }
        if mask.contains(OptParamMask::PKEY_INDEX) {
            self.take_pkey(qp, path)?;
        }
        if mask.contains(OptParamMask::Q_KEY) {
            qp.q_key = qpc::q_key.get32(context);
        }
        if mask.contains(OptParamMask::RNR_TIMEOUT) {
            qp.min_rnr_nak = qpc::min_rnr_nak.get32(context) as u8;
        }
        if mask.contains(OptParamMask::PM_STATE) {
            qp.pm_state = qpc::pm_state.get32(context) as u8;
        }
        if mask.contains(OptParamMask::ALT_ADDR_PATH) {
            qp.alternate_path = AddressPath::parse(qpc::secondary_address_path.of(context));
        }
        if mask.contains(OptParamMask::COUNTER_SET_ID) {
            let counter_set_id = qpc::counter_set_id.get32(context) as u8;
            self.check_counter_set(counter_set_id)?;
            qp.counter_set_id = counter_set_id;
        }
        if mask.contains(OptParamMask::CQN_RCV) {
            let cqn = qpc::cqn_rcv.get32(context);
            if !self.objects.queues.cqs.contains(cqn) {
                return Err(Refusal::missing("qpc.cqn_rcv", cqn));
            }
            qp.cqn_rcv = cqn;
        }
        if mask.contains(OptParamMask::SRQN) {
            let srqn = qpc::srqn_rmpn_xrqn.get32(context);
            if !self.objects.srqs.contains(srqn) {
                return Err(Refusal::missing("qpc.srqn_rmpn_xrqn", srqn));
            }
            qp.srqn = srqn;
        }
        Ok(())
    }

    fn take_pkey(&self, qp: &mut Qp, path: &[u8]) -> Outcome {
        let index = ads::pkey_index.get32(path) as u16;
        if usize::from(index) >= self.port.pkeys.len() {
            return Err(Refusal::param(
                "ads.pkey_index",
                format!("{index}, {} entries", self.port.pkeys.len()),
            ));
        }
        qp.primary_path.pkey_index = index;
        Ok(())
    }

    /// The whole primary path of INIT to RTR. Port and P_Key were given before and are changed by their own mask bits.
    fn take_path(&self, qp: &mut Qp, path: &[u8]) -> Outcome {
        let new = AddressPath::parse(path);
        let ethernet = self.port.ethernet.is_some();
        // On Ethernet the field cannot name an entry that does not exist.
        if new.grh && !ethernet && usize::from(new.src_addr_index) >= self.port.guids.len() {
            let text = format!("{}, {} entries", new.src_addr_index, self.port.guids.len());
            return Err(Refusal::param("ads.src_addr_index", text));
        }
        if ethernet && !self.vport.roce && !new.force_loopback && qp.service != ServiceType::REG_UMR {
            let text = "RoCE is not enabled";
            return Err(Refusal::new(CmdStatus::BAD_OP, "nic_vport_context.roce_en", text));
        }
        let loops = self.caps.current(cmd_hca_cap::fl_rc_qp_when_roce_disabled) != 0;
        if new.force_loopback && !(loops && qp.service == ServiceType::RC) {
            return Err(Refusal::param("ads.fl", "the capability is off"));
        }
        if new.port > 1 {
            return Err(Refusal::param("ads.vhca_port_num", format!("port {} does not exist", new.port)));
        }
        let pkey_index = qp.primary_path.pkey_index;
        let port = qp.primary_path.port;
        qp.primary_path = AddressPath { pkey_index, port, ..new };
        Ok(())
    }
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

fn take_port(qp: &mut Qp, path: &[u8], required: bool) -> Outcome {
    let port = ads::vhca_port_num.get32(path) as u8;
    if port == 1 {
        qp.primary_path.port = port;
        return Ok(());
    }
    // The registration QP never sends; Linux gives it a port all the same, others need not.
    if port == 0 && (!required || qp.service == ServiceType::REG_UMR) {
        return Ok(());
    }
    Err(Refusal::param("ads.vhca_port_num", format!("port {port} does not exist")))
}

//! Queue pair commands (PRM, command reference).

use super::refusal::{Outcome, Refusal};
use super::ring::Ring;
use crate::caps::{LOG_MAX_MSG, LOG_MAX_QP_SZ, LOG_MAX_RA};
use crate::device::Device;
use crate::object::pages::PageList;
use crate::object::qp::{AddressPath, Multicast, Qp, ReceiveQueue, SendQueue};
use crate::profile::Strictness;
use crate::seams::Io;
use crate::transport::QpTransport;
use mlx5_prm::Field;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::{ads, qpc};
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::CmdStatus;
use mlx5_prm::value::{OptParamMask, QpState, RqType, ServiceType};
use std::collections::BTreeSet;

impl Device {
    pub(super) fn create_qp(&mut self, input: &[u8], output: &mut [u8]) -> Outcome {
        let context = create_qp_in::qpc.of(input);
        let service = ServiceType(qpc::st.get32(context) as u8);
        self.check_created_qp(service, context, input)?;
        let (buffer, sq, rq) = self.rings_of_qp(context, input)?;
        let mut qp = Qp {
            qpn: 0,
            service,
            state: QpState::RST,
            pd: 0,
            uar_page: 0,
            cqn_snd: 0,
            cqn_rcv: 0,
            rq_type: RqType::NON_ZERO_RQ,
            srqn: 0,
            xrcd: 0,
            buffer,
            sq,
            rq,
            dbr_addr: 0,
            user_index: 0,
            reserved_lkey: false,
            fast_registration: false,
            cs_req: 0,
            cs_res: 0,
            block_multicast_loopback: false,
            counter_set_id: 0,
            mtu: 0,
            log_msg_max: LOG_MAX_MSG as u8,
            remote_qpn: 0,
            primary_path: AddressPath::default(),
            alternate_path: AddressPath::default(),
            pm_state: 0,
            log_ack_req_freq: 0,
            log_sra_max: 0,
            log_rra_max: 0,
            retry_count: 0,
            rnr_retry: 0,
            min_rnr_nak: 0,
            next_send_psn: 0,
            next_rcv_psn: 0,
            rre: false,
            rwe: false,
            rae: false,
            atomic_mode: 0,
            q_key: 0,
            deth_sqpn: 0,
            context: context.to_vec(),
            groups: BTreeSet::new(),
            transport: QpTransport::default(),
        };
        qp.parse_created(context);
        self.check_references_of_qp(&qp)?;
        let memory = qp.memory();
        self.hold(memory)?;
        let Some(qpn) = self.objects.qps.table.insert(|qpn| Qp { qpn, ..qp }) else {
            self.budget.release(memory);
            return Err(Refusal::full("QPs"));
        };
        match service {
            ServiceType::QP0 => self.objects.qps.qp0 = Some(qpn),
            ServiceType::QP1 => self.objects.qps.qp1 = Some(qpn),
            _ => {}
        }
        create_qp_out::qpn.set(output, qpn);
        Ok(())
    }

    fn check_created_qp(&self, service: ServiceType, context: &[u8], input: &[u8]) -> Outcome {
        use mlx5_prm::caps::cmd_hca_cap;
        let supported = match service {
            ServiceType::RC => self.caps.current(cmd_hca_cap::rc) != 0,
            ServiceType::UC => self.caps.current(cmd_hca_cap::uc) != 0,
            ServiceType::UD => self.caps.current(cmd_hca_cap::ud) != 0,
            ServiceType::XRC => self.caps.current(cmd_hca_cap::xrc) != 0,
            ServiceType::QP0 | ServiceType::QP1 | ServiceType::REG_UMR => true,
            _ => false,
        };
        if !supported {
            return Err(Refusal::param("qpc.st", format!("{service} is not supported")));
        }
        let taken = match service {
            ServiceType::QP0 => self.objects.qps.qp0,
            ServiceType::QP1 => self.objects.qps.qp1,
            _ => None,
        };
        if let Some(qpn) = taken {
            return Err(Refusal::busy("qpc.st", format!("the port's {service} is QP {qpn:#x}")));
        }
        for (field, name) in [
            (qpc::wq_signature, "qpc.wq_signature"),
            (qpc::drain_sigerr, "qpc.drain_sigerr"),
            (qpc::dbr_umem_valid, "qpc.dbr_umem_valid"),
            (qpc::offload_type, "qpc.offload_type"),
            (qpc::cd_master, "qpc.cd_master"),
            (qpc::cd_slave_send, "qpc.cd_slave_send"),
            (qpc::cd_slave_receive, "qpc.cd_slave_receive"),
        ] {
            if field.is_set(context) {
                return Err(Refusal::param(name, "the capability is off"));
            }
        }
        if create_qp_in::wq_umem_valid.is_set(input) {
            return Err(Refusal::param("create_qp_in.wq_umem_valid", "the capability is off"));
        }
        if create_qp_in::input_qpn.is_set(input) && self.profile.strictness == Strictness::Strict {
            return Err(Refusal::param("create_qp_in.input_qpn", "the device chooses numbers"));
        }
        Ok(())
    }

    /// Parses the sizes: the receive queue comes first in the buffer.
    fn rings_of_qp(
        &self,
        context: &[u8],
        input: &[u8],
    ) -> Result<(PageList, Option<SendQueue>, Option<ReceiveQueue>), Refusal> {
        let rq_type = RqType(qpc::rq_type.get32(context) as u8);
        let rq = match rq_type {
            RqType::NON_ZERO_RQ => {
                let log_size = qpc::log_rq_size.get32(context);
                let log_stride = qpc::log_rq_stride.get32(context) + 4;
                if log_size > LOG_MAX_QP_SZ {
                    return Err(Refusal::param(
                        "qpc.log_rq_size",
                        format!("{log_size}, at most {LOG_MAX_QP_SZ}"),
                    ));
                }
                let max = self.caps.current(mlx5_prm::caps::cmd_hca_cap::max_wqe_sz_rq);
                if 1 << log_stride > max {
                    let text = format!("{} bytes, at most {max}", 1 << log_stride);
                    return Err(Refusal::param("qpc.log_rq_stride", text));
                }
                Some(ReceiveQueue { offset: 0, log_size, log_stride })
            }
            RqType::SRQ_RQ | RqType::ZERO_LEN_RQ => None,
            other => return Err(Refusal::param("qpc.rq_type", format!("{other}"))),
        };
        let rq_len = rq.map_or(0, |rq| 1u64 << (rq.log_size + rq.log_stride));
        let sq = if qpc::no_sq.is_set(context) {
            None
        } else {
            let log_size = qpc::log_sq_size.get32(context);
            if log_size > LOG_MAX_QP_SZ {
                return Err(Refusal::param(
                    "qpc.log_sq_size",
                    format!("{log_size}, at most {LOG_MAX_QP_SZ}"),
                ));
            }
            Some(SendQueue { offset: rq_len, log_size })
        };
        let sq_len = sq.map_or(0, |sq| 64u64 << sq.log_size);
        if rq_len + sq_len == 0 {
            return Ok((PageList::default(), sq, rq));
        }
        let ring = Ring {
            context: "qpc",
            input: "create_qp_in",
            len: rq_len + sq_len,
            page_offset: qpc::page_offset.get32(context),
            log_page_size: qpc::log_page_size.get32(context),
        };
        Ok((ring.pages(input, create_qp_in::pas, self.profile.strictness)?, sq, rq))
    }

    fn check_references_of_qp(&self, qp: &Qp) -> Outcome {
        // The registration QP belongs to no protection domain.
        if qp.service != ServiceType::REG_UMR && !self.objects.pds.contains(qp.pd) {
            return Err(Refusal::missing("qpc.pd", qp.pd));
        }
        if qp.sq.is_some() && !self.objects.uars.contains(qp.uar_page) {
            return Err(Refusal::missing("qpc.uar_page", qp.uar_page));
        }
        if qp.sq.is_some() && !self.objects.queues.cqs.contains(qp.cqn_snd) {
            return Err(Refusal::missing("qpc.cqn_snd", qp.cqn_snd));
        }
        if qp.rq_type != RqType::ZERO_LEN_RQ && !self.objects.queues.cqs.contains(qp.cqn_rcv) {
            return Err(Refusal::missing("qpc.cqn_rcv", qp.cqn_rcv));
        }
        if qp.service == ServiceType::XRC && !self.objects.xrcds.contains(qp.xrcd) {
            return Err(Refusal::missing("qpc.xrcd", qp.xrcd));
        }
        if qp.rq_type == RqType::SRQ_RQ && !self.objects.srqs.contains(qp.srqn) {
            return Err(Refusal::missing("qpc.srqn_rmpn_xrqn", qp.srqn));
        }
        if !qp.dbr_addr.is_multiple_of(8) || (qp.dbr_addr == 0 && (qp.sq.is_some() || qp.rq.is_some())) {
            return Err(Refusal::param("qpc.dbr_addr", format!("{:#x}", qp.dbr_addr)));
        }
        self.check_counter_set(qp.counter_set_id)
    }

    fn check_counter_set(&self, id: u8) -> Outcome {
        if id != 0 && !self.objects.q_counters.sets.contains(u32::from(id)) {
            return Err(Refusal::missing("qpc.counter_set_id", u32::from(id)));
        }
        Ok(())
    }

    pub(super) fn destroy_qp(&mut self, input: &[u8]) -> Outcome {
        let qpn = destroy_qp_in::qpn.get32(input);
        if !self.objects.qps.table.contains(qpn) {
            return Err(Refusal::missing("destroy_qp_in.qpn", qpn));
        }
        self.qp_goes(qpn);
        if let Some(qp) = self.objects.qps.table.remove(qpn) {
            self.budget.release(qp.memory());
            for group in qp.groups {
                self.objects.qps.multicast.detach(group, qpn);
                self.budget.release(Multicast::MEMORY);
            }
        }
        for special in [&mut self.objects.qps.qp0, &mut self.objects.qps.qp1] {
            if *special == Some(qpn) {
                *special = None;
            }
        }
        Ok(())
    }

    pub(super) fn modify_qp(&mut self, io: &mut Io<'_>, opcode: Opcode, input: &[u8]) -> Outcome {
        let qpn = QPN.get32(input);
        let Some(qp) = self.objects.qps.table.get(qpn) else {
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
        if let Some(qp) = self.objects.qps.table.get_mut(qpn) {
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
                    take_access(qp, context, OptParamMask::RRE | OptParamMask::RWE | OptParamMask::RAE);
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
        take_access(qp, context, mask);
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
        if new.grh && usize::from(new.src_addr_index) >= self.port.guids.len() {
            let text = format!("{}, {} entries", new.src_addr_index, self.port.guids.len());
            return Err(Refusal::param("ads.src_addr_index", text));
        }
        if new.force_loopback {
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

    pub(super) fn query_qp(&self, input: &[u8], output: &mut Vec<u8>) -> Outcome {
        let qpn = query_qp_in::qpn.get32(input);
        let Some(qp) = self.objects.qps.table.get(qpn) else {
            return Err(Refusal::missing("query_qp_in.qpn", qpn));
        };
        let pages = qp.buffer.pages();
        output.resize(query_qp_out::pas.len_with(pages.len()), 0);
        let progress = qp.transport.progress();
        let context = query_qp_out::qpc.of_mut(output);
        context.copy_from_slice(&qp.context);
        let started = qp.state != QpState::RST && qp.state != QpState::INIT;
        for (field, value) in [
            (qpc::state, u32::from(qp.state.0)),
            (qpc::pm_state, u32::from(qp.pm_state)),
            (qpc::counter_set_id, u32::from(qp.counter_set_id)),
            (qpc::mtu, u32::from(qp.mtu)),
            (qpc::log_msg_max, u32::from(qp.log_msg_max)),
            (qpc::remote_qpn, qp.remote_qpn),
            (qpc::log_sra_max, u32::from(qp.log_sra_max)),
            (qpc::log_rra_max, u32::from(qp.log_rra_max)),
            (qpc::retry_count, u32::from(qp.retry_count)),
            (qpc::rnr_retry, u32::from(qp.rnr_retry)),
            (qpc::min_rnr_nak, u32::from(qp.min_rnr_nak)),
            (qpc::rre, u32::from(qp.rre)),
            (qpc::rwe, u32::from(qp.rwe)),
            (qpc::rae, u32::from(qp.rae)),
            (qpc::atomic_mode, u32::from(qp.atomic_mode)),
            (qpc::cqn_rcv, qp.cqn_rcv),
            (qpc::srqn_rmpn_xrqn, qp.srqn),
            (qpc::q_key, qp.q_key),
            (
                qpc::next_send_psn,
                if started { progress.next_send_psn } else { qp.next_send_psn } & 0x00ff_ffff,
            ),
            (qpc::next_rcv_psn, if started { progress.next_rcv_psn } else { qp.next_rcv_psn } & 0x00ff_ffff),
            (qpc::last_acked_psn, progress.last_acked_psn & 0x00ff_ffff),
            (qpc::ssn, progress.ssn & 0x00ff_ffff),
            (qpc::rmsn, progress.rmsn & 0x00ff_ffff),
            (qpc::hw_sq_wqebb_counter, u32::from(progress.hw_sq_wqebb_counter)),
            (qpc::sw_sq_wqebb_counter, u32::from(progress.sw_sq_wqebb_counter)),
            (qpc::hw_rq_counter, progress.hw_rq_counter),
            (qpc::sw_rq_counter, progress.sw_rq_counter),
        ] {
            field.set(context, value);
        }
        qp.primary_path.emit(qpc::primary_address_path.of_mut(context));
        qp.alternate_path.emit(qpc::secondary_address_path.of_mut(context));
        for (i, page) in pages.iter().enumerate() {
            query_qp_out::pas.set_quad(output, i, *page);
        }
        Ok(())
    }

    /// A group and the QP of a multicast command; only datagram QPs can be attached.
    fn multicast_member(&self, input: &[u8]) -> Result<([u8; 16], u32), Refusal> {
        let qpn = attach_to_mcg_in::qpn.get32(input);
        let mut group = [0; 16];
        for (to, from) in group.iter_mut().zip(attach_to_mcg_in::multicast_gid.of(input)) {
            *to = *from;
        }
        match self.objects.qps.table.get(qpn) {
            None => Err(Refusal::missing("attach_to_mcg_in.qpn", qpn)),
            Some(qp) if qp.service != ServiceType::UD => {
                Err(Refusal::param("attach_to_mcg_in.qpn", format!("{} cannot be attached", qp.service)))
            }
            Some(_) => Ok((group, qpn)),
        }
    }

    pub(super) fn attach_to_mcg(&mut self, input: &[u8]) -> Outcome {
        let entry = self.multicast_member(input)?;
        if entry.0[0] != 0xff {
            return Err(Refusal::param("attach_to_mcg_in.multicast_gid", "not a multicast address"));
        }
        let (group, qpn) = entry;
        let members = self.objects.qps.multicast.members(&group);
        if members.contains(&qpn) {
            return Err(Refusal::param("attach_to_mcg_in.multicast_gid", "attached already"));
        }
        if members.len() >= self.caps.current(mlx5_prm::caps::cmd_hca_cap::max_qp_mcg) as usize {
            return Err(Refusal::full("QPs in this group"));
        }
        self.hold(Multicast::MEMORY)?;
        self.objects.qps.multicast.attach(group, qpn);
        if let Some(qp) = self.objects.qps.table.get_mut(qpn) {
            qp.groups.insert(group);
        }
        Ok(())
    }

    pub(super) fn detach_from_mcg(&mut self, input: &[u8]) -> Outcome {
        let entry = self.multicast_member(input)?;
        let (group, qpn) = entry;
        if !self.objects.qps.multicast.detach(group, qpn) {
            return Err(Refusal::param("detach_from_mcg_in.multicast_gid", "not attached"));
        }
        self.budget.release(Multicast::MEMORY);
        if let Some(qp) = self.objects.qps.table.get_mut(qpn) {
            qp.groups.remove(&group);
        }
        Ok(())
    }
}

/// Input fields that all state commands share.
const QPN: Field = rst2init_qp_in::qpn;
const OPT_PARAM_MASK: Field = rst2init_qp_in::opt_param_mask;

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

fn take_access(qp: &mut Qp, context: &[u8], mask: OptParamMask) {
    if mask.contains(OptParamMask::RRE) {
        qp.rre = qpc::rre.is_set(context);
    }
    if mask.contains(OptParamMask::RWE) {
        qp.rwe = qpc::rwe.is_set(context);
    }
    if mask.contains(OptParamMask::RAE) {
        qp.rae = qpc::rae.is_set(context);
        qp.atomic_mode = qpc::atomic_mode.get32(context) as u8;
    }
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

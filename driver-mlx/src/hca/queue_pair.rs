//! Making, changing and destroying queue pairs.

use super::event_room::EVENTS_OF_QP;
use super::exec::input;
use super::{BlueFlamePage, Hca, page_list};
use crate::buddy::BLOCK;
use crate::cmd::Tail;
use crate::config::{Access, InitParams, QpConfig, RtrParams, RtsParams, Service};
use crate::control;
use crate::error::Error;
use crate::mw::BIND_OCTOWORDS;
use crate::platform::{Bar, Platform};
use crate::qp::{Qp, QpContext, QpGeometry, QpLimits, QpState, SendRegister};
use crate::types::{CounterSet, Path, Psn, QpNumber, UarPage};
use crate::wqe::stat_rate;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::{ads, qpc};
use mlx5_prm::init_seg::uar;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::value::{self, OptParamMask, PmState, RqType, ServiceType};

/// Octowords (16 bytes) that any work request may have (6 bits of `ds`), and an RDMA read (512 bytes).
const MOST_UNITS: usize = 63;
const MOST_READ_UNITS: usize = 32;
/// Octowords that a receive work request may have: `log_rq_stride` has 3 bits.
const MOST_RECEIVE_UNITS: u64 = 1 << 7;
/// Largest `log_sra_max` and `log_rra_max`: 3 bits.
const MOST_LOG_READS: u64 = 7;
/// An ACK is asked for at least every 2^8 packets.
const LOG_ACK_REQ_FREQ: u32 = 8;
/// `qpc.atomic_mode`: 8 bytes, as InfiniBand defines them.
const ATOMIC_MODE_IB: u32 = 1;
/// `qpc.cs_res`: up to 32 received bytes go to the completion.
const SCATTER_32: u32 = 1;
/// `qpc.ts_format`: the clock that the device prefers. A device with REAL_TIME_CLOCK_ENABLE refuses
/// 0, the free-running clock. Linux, include/linux/mlx5/qp.h, mlx5_get_qp_default_ts.
const DEFAULT_CLOCK: u32 = 1;
/// MTU code and log2 of the longest message of datagram services: UD, and the management QPs.
const UD_MTU_AND_MESSAGE: (u32, u32) = (5, 12);
const GSI_MTU_AND_MESSAGE: (u32, u32) = (1, 8);

/// Work request sizes that a configuration implies.
struct Sizes {
    geometry: QpGeometry,
    limits: QpLimits,
}

fn exceeds(what: &'static str, asked: u64, limit: u64) -> Result<(), Error> {
    if asked > limit { Err(Error::Limit { what, asked, limit }) } else { Ok(()) }
}

/// log2, rounded up.
fn log2_ceil(count: u8) -> u32 {
    u32::from(count).max(1).next_power_of_two().ilog2()
}

/// The 272-byte input that all state changes with parameters share; they are laid out alike.
struct Change {
    bytes: [u8; rst2init_qp_in::SIZE],
}

impl Change {
    fn new(opcode: Opcode, context: &QpContext, qpn: QpNumber) -> Self {
        let mut bytes = input::<{ rst2init_qp_in::SIZE }>(opcode, 0);
        rst2init_qp_in::qpn.set(&mut bytes, qpn.get());
        let qp = rst2init_qp_in::qpc.of_mut(&mut bytes);
        qpc::st.set(qp, service_type(context.config.service).0);
        qpc::pm_state.set(qp, PmState::MIGRATED.0);
        qpc::pd.set(qp, context.config.pd.number().get());
        qpc::cqn_snd.set(qp, context.config.send_cq.get());
        qpc::cqn_rcv.set(qp, context.config.recv_cq.get());
        qpc::log_ack_req_freq.set(qp, LOG_ACK_REQ_FREQ);
        Self { bytes }
    }

    fn qp(&mut self) -> &mut [u8] {
        rst2init_qp_in::qpc.of_mut(&mut self.bytes)
    }

    fn path(&mut self) -> &mut [u8] {
        qpc::primary_address_path.of_mut(self.qp())
    }

    fn allow(&mut self, mask: OptParamMask) {
        rst2init_qp_in::opt_param_mask.set(&mut self.bytes, mask.bits());
    }
}

fn service_type(service: Service) -> ServiceType {
    match service {
        Service::Rc => ServiceType::RC,
        Service::Uc => ServiceType::UC,
        Service::Ud { .. } => ServiceType::UD,
        Service::Gsi => ServiceType::QP1,
    }
}

impl<P: Platform> Hca<'_, P> {
    fn sizes(&self, config: &QpConfig) -> Result<Sizes, Error> {
        let caps = &self.caps;
        let (head, most) = match config.service {
            // Control and remote address.
            Service::Rc | Service::Uc => (2, MOST_READ_UNITS),
            // Control and address vector.
            Service::Ud { .. } | Service::Gsi => (4, MOST_UNITS),
        };
        let inline_octowords =
            if config.max_inline == 0 { 0 } else { (config.max_inline as usize + 4).div_ceil(16) };
        let most = most.min(usize::from(caps.max_wqe_sz_sq) / 16);
        let room = most.saturating_sub(head) as u64;
        exceeds("max_wqe_sz_sq", u64::from(config.max_send_sge), room)?;
        let inline_room = (MOST_UNITS.min(usize::from(caps.max_wqe_sz_sq) / 16) - head) as u64;
        exceeds("max_wqe_sz_sq", inline_octowords as u64, inline_room)?;
        let room = (u64::from(caps.max_wqe_sz_rq) / 16).min(MOST_RECEIVE_UNITS);
        exceeds("max_wqe_sz_rq", u64::from(config.max_recv_sge), room)?;
        let octowords = head + inline_octowords.max(config.max_send_sge as usize);
        let octowords = if config.memory_windows { octowords.max(BIND_OCTOWORDS) } else { octowords };
        let max_recv_wr = if config.srq.is_some() { 0 } else { config.max_recv_wr };
        let largest = 1u64 << caps.log_max_qp_sz.min(15);
        let limit = |asked| Error::Limit { what: "log_max_qp_sz", asked, limit: largest };
        let asked = u64::from(config.max_send_wr.max(max_recv_wr));
        let geometry = QpGeometry::new(config.max_send_wr, max_recv_wr, octowords, config.max_recv_sge)
            .ok_or(limit(asked))?;
        if geometry.sq_bytes > 0 {
            exceeds("log_max_qp_sz", 1 << geometry.log_sq_size, largest)?;
        }
        if geometry.rq_bytes > 0 {
            exceeds("log_max_qp_sz", 1 << geometry.log_rq_size, largest)?;
        }
        let limits = QpLimits {
            max_send_sge: config.max_send_sge as u8,
            max_inline: config.max_inline as u16,
            max_recv_sge: config.max_recv_sge as u8,
            terminator: self.terminator,
        };
        Ok(Sizes { geometry, limits })
    }

    /// Makes a queue pair, in the state [`QpState::Reset`].
    ///
    /// # Errors
    /// Any [`Error`] of a command, [`Error::OutOfMemory`], [`Error::Limit`], [`Error::MissingCapability`].
    pub fn create_qp(&mut self, config: &QpConfig) -> Result<Qp<P::Bar>, Error> {
        self.expecting(EVENTS_OF_QP, |hca| hca.make_qp(config))
    }

    fn make_qp(&mut self, config: &QpConfig) -> Result<Qp<P::Bar>, Error> {
        if config.user_index >= 0xff_ffff {
            return Err(Error::InvalidArgument("user_index"));
        }
        if config.deth_sqpn.is_some() && !self.caps.set_deth_sqpn {
            return Err(Error::MissingCapability("set_deth_sqpn"));
        }
        if config.service == Service::Uc && !self.caps.uc {
            return Err(Error::MissingCapability("uc"));
        }
        if config.memory_windows && config.service != Service::Rc {
            return Err(Error::InvalidArgument("memory_windows"));
        }
        if config.memory_windows && !self.caps.imaicl {
            return Err(Error::MissingCapability("imaicl"));
        }
        if config.inline_receive && !self.caps.sctr_data_cqe {
            return Err(Error::MissingCapability("sctr_data_cqe"));
        }
        self.named(&config.pd)?;
        config.counters.map_or(Ok(0), |counters| self.named(&counters))?;
        let sizes = self.sizes(config)?;
        let control_page = self.uar.ok_or(Error::WrongState)?;
        let epoch = self.host.epoch();
        let (page, send_register, register) = match self.take_register(config.blueflame) {
            Some((page, view, offset, half_len, register)) => {
                let handle = control::doorbell_register(view, offset, 2 * half_len);
                (page, SendRegister { handle, half_len, half: 0, epoch }, Some(register))
            }
            None => {
                let offset = control_page.get() as usize * uar::PAGE_SIZE + uar::BLUEFLAME;
                let handle = control::doorbell_register(self.platform.bar(), offset, 8);
                (control_page, SendRegister { handle, half_len: 0, half: 0, epoch }, None)
            }
        };
        let context = QpContext {
            config: *config,
            port: 1,
            pkey_index: 0,
            pkey_changed: false,
            access: Access::empty(),
            register,
        };
        let mut qp = match self.empty_qp(&sizes, send_register, context) {
            Ok(qp) => qp,
            Err(error) => {
                self.give_register(register);
                return Err(error);
            }
        };
        if let Err(error) = self.create_qp_over(&mut qp, &sizes.geometry, page) {
            self.free_qp(&super::not_created(&error), qp);
            return Err(error);
        }
        Ok(qp)
    }

    /// A queue pair that the device does not know yet.
    fn empty_qp(
        &mut self,
        sizes: &Sizes,
        register: SendRegister<<P::Bar as Bar>::DoorbellRegister>,
        context: QpContext,
    ) -> Result<Qp<P::Bar>, Error> {
        let Sizes { geometry, limits } = sizes;
        let out_of_host = |slots: usize| Error::OutOfHostMemory { bytes: slots * 16 };
        let wqebbs = geometry.send_wqebbs();
        let send_slots = self.host.alloc(wqebbs).ok_or(out_of_host(wqebbs))?;
        let receive_slots = match geometry.receives() {
            None => None,
            Some(count) => match self.host.alloc(count) {
                None => {
                    self.host.free(send_slots);
                    return Err(out_of_host(count));
                }
                slots => slots,
            },
        };
        let memory = self.take_memory(geometry.ring_bytes(), BLOCK).and_then(|rings| {
            let record = self.take_record();
            if record.is_err() {
                self.free_unless(&Ok(()), rings);
            }
            record.map(|record| [rings, record])
        });
        match memory {
            Ok(memory) => Qp::new(memory, (send_slots, receive_slots), geometry, *limits, register, context)
                .ok_or(Error::OutOfBounds),
            Err(error) => {
                self.host.free(send_slots);
                if let Some(slots) = receive_slots {
                    self.host.free(slots);
                }
                Err(error)
            }
        }
    }

    fn free_qp(&mut self, destroyed: &Result<(), Error>, qp: Qp<P::Bar>) {
        let current = self.named(&qp).is_ok();
        let ([rings, record], (send_slots, receive_slots), register) = qp.into_memory();
        self.free_unless(destroyed, rings);
        self.give_record_unless(destroyed, record);
        // The device has no part in these.
        self.host.free(send_slots);
        if let Some(slots) = receive_slots {
            self.host.free(slots);
        }
        if destroyed.is_ok() {
            self.give_register(register.filter(|_| current));
        }
    }

    fn create_qp_over(
        &mut self,
        qp: &mut Qp<P::Bar>,
        geometry: &QpGeometry,
        page: UarPage,
    ) -> Result<(), Error> {
        qp.life = self.life;
        let [rings, record] = qp.memory;
        let context = qp.context;
        let config = &context.config;
        let (log_page, pages) = page_list(rings, geometry.ring_bytes());
        let mut create = input::<{ create_qp_in::SIZE }>(Opcode::CREATE_QP, 0);
        let fields = create_qp_in::qpc.of_mut(&mut create);
        qpc::st.set(fields, service_type(config.service).0);
        qpc::pm_state.set(fields, PmState::MIGRATED.0);
        qpc::pd.set(fields, config.pd.number().get());
        if let Some(srq) = config.srq {
            qpc::rq_type.set(fields, RqType::SRQ_RQ.0);
            qpc::srqn_rmpn_xrqn.set(fields, srq.get());
        } else if geometry.rq_bytes > 0 {
            qpc::log_rq_size.set(fields, geometry.log_rq_size);
            qpc::log_rq_stride.set(fields, geometry.log_rq_stride);
            qpc::rq_type.set(fields, RqType::NON_ZERO_RQ.0);
        } else {
            qpc::rq_type.set(fields, RqType::ZERO_LEN_RQ.0);
        }
        if geometry.sq_bytes > 0 {
            qpc::log_sq_size.set(fields, geometry.log_sq_size);
        } else {
            qpc::no_sq.set(fields, true);
        }
        if self.caps.sq_ts_format != 0 {
            qpc::ts_format.set(fields, DEFAULT_CLOCK);
        }
        qpc::rlky.set(fields, config.reserved_lkey.is_some());
        // Memory windows are bound by work requests that change memory keys.
        qpc::fre.set(fields, config.memory_windows);
        if config.inline_receive {
            qpc::cs_res.set(fields, SCATTER_32);
        }
        qpc::counter_set_id.set(fields, config.counters.map_or(0, CounterSet::number));
        qpc::uar_page.set(fields, page.get());
        qpc::user_index.set(fields, config.user_index);
        qpc::log_page_size.set(fields, log_page);
        qpc::cqn_snd.set(fields, config.send_cq.get());
        qpc::cqn_rcv.set(fields, config.recv_cq.get());
        qpc::dbr_addr.set(fields, record.device_address());
        if let Some(source) = config.deth_sqpn {
            qpc::deth_sqpn.set(fields, source.get());
        }
        let address = rings.device_address();
        let count = if geometry.ring_bytes() == 0 { 0 } else { pages };
        let tail = Tail { count, entry: &|index| address + ((index as u64) << (log_page + 12)) };
        let mut out = [0; create_qp_out::SIZE];
        self.exec_with(&create, tail, &mut out)?;
        qp.set_number(QpNumber::new(create_qp_out::qpn.get32(&out)));
        Ok(())
    }

    /// Destroys a queue pair in any state. Its completions stay in the CQs: see [`Cq::sweep`](crate::Cq::sweep).
    ///
    /// # Errors
    /// Any [`Error`] of a command. The queue's memory then stays taken, as the device may still use it.
    pub fn destroy_qp(&mut self, qp: Qp<P::Bar>) -> Result<(), Error> {
        let mut destroy = input::<{ destroy_qp_in::SIZE }>(Opcode::DESTROY_QP, 0);
        destroy_qp_in::qpn.set(&mut destroy, qp.number().get());
        let result = self.end(&qp, &destroy, &mut [0; destroy_qp_out::SIZE]);
        self.free_qp(&result, qp);
        self.expect_no_more(EVENTS_OF_QP, &result);
        result
    }

    /// A BlueFlame register of its own: page, the page's write-combining view, offset of the first half in it, bytes of a half, and the name
    /// to give it back by. `None` if it was not asked for or there is none.
    #[allow(clippy::type_complexity)]
    fn take_register(&mut self, wanted: bool) -> Option<(UarPage, P::Bar, usize, usize, (u8, u8))> {
        let log_size = u32::from(self.caps.log_bf_reg_size);
        if !wanted || self.no_write_combining || !(4..=9).contains(&log_size) {
            return None;
        }
        let every = (1u8 << uar::BLUEFLAME_REGISTERS) - 1;
        let index = self.blueflame.iter().position(|entry| entry.used != every)?;
        let BlueFlamePage { page, used } = self.blueflame.get(index).copied()?;
        let (page, bar) = match page {
            Some(page) => page,
            None => {
                let page = self.alloc_uar().ok()?;
                let start = page.get() as usize * uar::PAGE_SIZE;
                match self.platform.uar_write_combining(start, uar::PAGE_SIZE) {
                    Some(view) => (page, view),
                    None => {
                        // Freeing the page here could take as long as a command may. Tear-down
                        // frees it, and no other page is tried.
                        self.no_write_combining = true;
                        let spent = BlueFlamePage { page: Some((page, self.platform.bar())), used: every };
                        *self.blueflame.get_mut(index)? = spent;
                        return None;
                    }
                }
            }
        };
        let register = used.trailing_ones() as usize;
        *self.blueflame.get_mut(index)? =
            BlueFlamePage { page: Some((page, bar)), used: used | 1 << register };
        let offset = uar::blueflame(register, false, log_size);
        Some((page, bar, offset, 1 << (log_size - 1), (index as u8, register as u8)))
    }

    fn give_register(&mut self, register: Option<(u8, u8)>) {
        if let Some((index, register)) = register
            && let Some(entry) = self.blueflame.get_mut(usize::from(index))
        {
            entry.used &= !(1 << register);
        }
    }

    fn change(&mut self, qp: &mut Qp<P::Bar>, change: &Change, state: QpState) -> Result<(), Error> {
        self.exec(&change.bytes, &mut [0; rst2init_qp_out::SIZE])?;
        qp.set_state(state);
        Ok(())
    }

    /// RESET to INIT: receives may be posted.
    ///
    /// # Errors
    /// Any [`Error`] of a command; [`Error::InvalidArgument`]; [`Error::Stale`].
    pub fn modify_to_init(&mut self, qp: &mut Qp<P::Bar>, params: &InitParams) -> Result<(), Error> {
        if params.port == 0 || params.port > self.caps.num_ports {
            return Err(Error::InvalidArgument("port"));
        }
        qp.context.port = params.port;
        qp.context.pkey_index = params.pkey_index;
        qp.context.pkey_changed = false;
        qp.context.access = params.access;
        let config = qp.context.config;
        let mut change = Change::new(Opcode::RST2INIT_QP, &qp.context, self.named(qp)?);
        ads::pkey_index.set(change.path(), params.pkey_index);
        ads::vhca_port_num.set(change.path(), params.port);
        let fields = change.qp();
        qpc::rlky.set(fields, config.reserved_lkey.is_some());
        qpc::counter_set_id.set(fields, config.counters.map_or(0, CounterSet::number));
        match config.service {
            Service::Rc | Service::Uc => {}
            Service::Ud { q_key } => qpc::q_key.set(fields, q_key.get()),
            Service::Gsi => {
                qpc::q_key.set(fields, crate::types::QKey::GSI.get());
                let (mtu, message) = GSI_MTU_AND_MESSAGE;
                qpc::mtu.set(fields, mtu);
                qpc::log_msg_max.set(fields, message);
            }
        }
        self.change(qp, &change, QpState::Init)
    }

    /// INIT to RTR of a connected QP: it answers its peer.
    ///
    /// # Errors
    /// Any [`Error`] of a command; [`Error::InvalidArgument`], [`Error::Limit`], [`Error::Stale`].
    pub fn modify_to_rtr(&mut self, qp: &mut Qp<P::Bar>, params: &RtrParams) -> Result<(), Error> {
        let reliable = match qp.service() {
            Service::Rc => true,
            Service::Uc => false,
            _ => return Err(Error::InvalidArgument("service")),
        };
        if params.min_rnr_timer > 31 {
            return Err(Error::InvalidArgument("min_rnr_timer"));
        }
        let log_rra = log2_ceil(params.responder_resources);
        exceeds(
            "log_max_ra_res_qp",
            u64::from(log_rra),
            u64::from(self.caps.log_max_ra_res_qp).min(MOST_LOG_READS),
        )?;
        let QpContext { port, pkey_index, pkey_changed, access, .. } = qp.context;
        let mut change = Change::new(Opcode::INIT2RTR_QP, &qp.context, self.named(qp)?);
        // Remote rights are set here, where every firmware takes them, and not at RST2INIT.
        let atomics = access.contains(Access::REMOTE_ATOMIC);
        if reliable && atomics && !self.caps.atomic {
            return Err(Error::MissingCapability("atomic"));
        }
        let mut optional = match (reliable, atomics) {
            (true, true) => OptParamMask::RRE | OptParamMask::RWE | OptParamMask::RAE,
            (true, false) => OptParamMask::RRE | OptParamMask::RWE,
            (false, _) => OptParamMask::RWE,
        };
        optional.set(OptParamMask::PKEY_INDEX, pkey_changed);
        change.allow(optional);
        let log_msg_max = self.caps.log_max_msg;
        let fields = change.qp();
        qpc::mtu.set(fields, params.mtu.code());
        qpc::log_msg_max.set(fields, log_msg_max);
        qpc::remote_qpn.set(fields, params.remote_qpn.get());
        qpc::next_rcv_psn.set(fields, params.rq_psn.get());
        if reliable {
            qpc::log_rra_max.set(fields, log_rra);
            qpc::min_rnr_nak.set(fields, params.min_rnr_timer);
            qpc::rre.set(fields, access.contains(Access::REMOTE_READ));
            if atomics {
                qpc::rae.set(fields, true);
                qpc::atomic_mode.set(fields, ATOMIC_MODE_IB);
            }
        }
        qpc::rwe.set(fields, access.contains(Access::REMOTE_WRITE));
        let rates = self.caps.stat_rate_support;
        let path = change.path();
        ads::pkey_index.set(path, pkey_index);
        ads::vhca_port_num.set(path, port);
        put_path(path, &params.path, rates)?;
        self.change(qp, &change, QpState::ReadyToReceive)
    }

    /// RTR to RTS of a connected QP: it sends.
    ///
    /// # Errors
    /// Any [`Error`] of a command; [`Error::InvalidArgument`], [`Error::Limit`], [`Error::Stale`].
    pub fn modify_to_rts(&mut self, qp: &mut Qp<P::Bar>, params: &RtsParams) -> Result<(), Error> {
        let reliable = match qp.service() {
            Service::Rc => true,
            Service::Uc => false,
            _ => return Err(Error::InvalidArgument("service")),
        };
        if params.ack_timeout > 31 || params.retry_count > 7 || params.rnr_retry > 7 {
            return Err(Error::InvalidArgument("ack_timeout, retry_count or rnr_retry"));
        }
        let log_sra = log2_ceil(params.initiator_depth);
        exceeds(
            "log_max_ra_req_qp",
            u64::from(log_sra),
            u64::from(self.caps.log_max_ra_req_qp).min(MOST_LOG_READS),
        )?;
        let mut change = Change::new(Opcode::RTR2RTS_QP, &qp.context, self.named(qp)?);
        let fields = change.qp();
        qpc::next_send_psn.set(fields, params.sq_psn.get());
        if reliable {
            qpc::retry_count.set(fields, params.retry_count);
            qpc::rnr_retry.set(fields, params.rnr_retry);
            qpc::log_sra_max.set(fields, log_sra);
            ads::ack_timeout.set(change.path(), params.ack_timeout);
        }
        self.change(qp, &change, QpState::ReadyToSend)
    }

    /// INIT to RTR and on to RTS of a datagram QP (UD, GSI).
    ///
    /// # Errors
    /// Any [`Error`] of a command; [`Error::InvalidArgument`] for a connected QP; [`Error::Stale`].
    pub fn modify_to_rts_datagram(&mut self, qp: &mut Qp<P::Bar>, sq_psn: Psn) -> Result<(), Error> {
        let (mtu, message) = match qp.service() {
            Service::Rc | Service::Uc => return Err(Error::InvalidArgument("service")),
            Service::Ud { .. } => UD_MTU_AND_MESSAGE,
            Service::Gsi => GSI_MTU_AND_MESSAGE,
        };
        let number = self.named(qp)?;
        let mut change = Change::new(Opcode::INIT2RTR_QP, &qp.context, number);
        qpc::mtu.set(change.qp(), mtu);
        qpc::log_msg_max.set(change.qp(), message);
        ads::pkey_index.set(change.path(), qp.context.pkey_index);
        ads::vhca_port_num.set(change.path(), qp.context.port);
        self.change(qp, &change, QpState::ReadyToReceive)?;
        let mut change = Change::new(Opcode::RTR2RTS_QP, &qp.context, number);
        qpc::next_send_psn.set(change.qp(), sq_psn.get());
        self.change(qp, &change, QpState::ReadyToSend)
    }

    /// Any state but RESET to ERROR: what is posted, now or later, is answered as flushed.
    ///
    /// # Errors
    /// Any [`Error`] of a command; [`Error::Stale`].
    pub fn modify_to_error(&mut self, qp: &mut Qp<P::Bar>) -> Result<(), Error> {
        let mut change = input::<{ qp_2err_in::SIZE }>(Opcode::QP_2ERR, 0);
        qp_2err_in::qpn.set(&mut change, self.named(qp)?.get());
        self.exec(&change, &mut [0; qp_2err_out::SIZE])?;
        qp.set_state(QpState::Error);
        Ok(())
    }

    /// Any state to RESET: what is posted is forgotten. Its completions stay in the CQs: see
    /// [`Cq::sweep`](crate::Cq::sweep).
    ///
    /// # Errors
    /// Any [`Error`] of a command; [`Error::Stale`].
    pub fn modify_to_reset(&mut self, qp: &mut Qp<P::Bar>) -> Result<(), Error> {
        let mut change = input::<{ qp_2rst_in::SIZE }>(Opcode::QP_2RST, 0);
        qp_2rst_in::qpn.set(&mut change, self.named(qp)?.get());
        self.exec(&change, &mut [0; qp_2rst_out::SIZE])?;
        qp.clear();
        qp.set_state(QpState::Reset);
        Ok(())
    }

    /// The state as the device has it.
    ///
    /// # Errors
    /// Any [`Error`] of a command; [`Error::BadAnswer`] for a state that does not exist; [`Error::Stale`].
    pub fn query_qp_state(&mut self, qp: &Qp<P::Bar>) -> Result<QpState, Error> {
        let mut query = input::<{ query_qp_in::SIZE }>(Opcode::QUERY_QP, 0);
        query_qp_in::qpn.set(&mut query, self.named(qp)?.get());
        let mut out = [0; query_qp_out::SIZE];
        self.exec(&query, &mut out)?;
        let state = qpc::state.get(query_qp_out::qpc.of(&out));
        match value::QpState(state as u8) {
            value::QpState::RST => Ok(QpState::Reset),
            value::QpState::INIT => Ok(QpState::Init),
            value::QpState::RTR => Ok(QpState::ReadyToReceive),
            value::QpState::RTS => Ok(QpState::ReadyToSend),
            value::QpState::SQER => Ok(QpState::SendQueueError),
            value::QpState::SQD | value::QpState::SQ_DRAINING => Ok(QpState::SendQueueDrained),
            value::QpState::ERR => Ok(QpState::Error),
            _ => Err(Error::BadAnswer { step: self.step, field: "state", value: state }),
        }
    }
}

/// Fills the path that the device keeps in the QP.
fn put_path(to: &mut [u8], path: &Path, rates: u16) -> Result<(), Error> {
    let Path::InfiniBand { dlid, sl, src_path_bits, static_rate, grh } = *path;
    if src_path_bits > 0x7f {
        return Err(Error::InvalidArgument("src_path_bits"));
    }
    ads::rlid.set(to, dlid.get());
    ads::mlid.set(to, src_path_bits);
    ads::sl.set(to, sl.get());
    ads::stat_rate.set(to, stat_rate(static_rate, rates));
    if let Some(grh) = grh {
        if grh.flow_label > 0xf_ffff {
            return Err(Error::InvalidArgument("flow_label"));
        }
        ads::grh.set(to, true);
        ads::src_addr_index.set(to, grh.source_gid_index);
        ads::hop_limit.set(to, grh.hop_limit);
        ads::tclass.set(to, grh.traffic_class);
        ads::flow_label.set(to, grh.flow_label);
        ads::rgid_rip.of_mut(to).iter_mut().zip(grh.dgid.0).for_each(|(to, from)| *to = from);
    }
    Ok(())
}

//! Creation, state changes and destruction of queue pairs.

use super::Objects;
use super::event_room::EVENTS_OF_QP;
use super::qp_context::{Change, Sizes, create_input, exceeds, log2_ceil};
use super::raw_packet::{self, RawPacket};
use crate::caps::PortType;
use crate::cmd::{Tail, input};
use crate::config::{Access, InitParams, QpConfig, RtrParams, RtsParams, Service};
use crate::control;
use crate::error::Error;
use crate::generation::Generation;
use crate::hca::Hca;
use crate::hca::firmware::Firmware;
use crate::hca::memory::{Memory, Usable};
use crate::hca::page_list::PageList;
use crate::path::{Ends, Path};
use crate::platform::{Bar, Platform};
use crate::qp::{FrameLimits, Qp, QpContext, QpGeometry, QpState, SendRegister};
use crate::types::{CounterSet, Psn, QpNumber, UarPage};
use mlx5_prm::commands::*;
use mlx5_prm::contexts::{ads, qpc};
use mlx5_prm::init_seg::uar;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::value::{self, OptParamMask};

/// Largest `log_sra_max` and `log_rra_max`: 3 bits.
const MOST_LOG_READS: u64 = 7;
/// `qpc.atomic_mode`: 8 bytes, as InfiniBand defines them.
const ATOMIC_MODE_IB: u32 = 1;
/// MTU code and log2 of the longest message of datagram services: UD, and the management QPs.
const UD_MTU_AND_MESSAGE: (u32, u32) = (5, 12);
const GSI_MTU_AND_MESSAGE: (u32, u32) = (1, 8);

impl<P: Platform> Hca<'_, P> {
    /// Makes a queue pair, in the state [`QpState::Reset`].
    ///
    /// # Errors
    /// Any [`Error`] of a command, [`Error::OutOfMemory`], [`Error::Limit`], [`Error::MissingCapability`];
    /// [`Error::InvalidArgument`] for a raw-packet QP without send or receive queue.
    pub fn create_qp(&mut self, config: &QpConfig) -> Result<Qp<P::Bar>, Error> {
        let Self { firmware, memory, objects, .. } = self;
        objects.create_qp(firmware, memory, config)
    }

    /// Destroys a queue pair in any state. Its completions stay in the CQs: see [`Cq::sweep`](crate::Cq::sweep).
    ///
    /// # Errors
    /// Any [`Error`] of a command. The queue's memory then stays taken, as the device may still use it.
    pub fn destroy_qp(&mut self, qp: Qp<P::Bar>) -> Result<(), Error> {
        let Self { firmware, memory, objects, port, .. } = self;
        let stopped = match objects.raw_packet(firmware, &qp) {
            Some(_) => port.stop_frames(firmware, memory, &qp),
            None => Ok(()),
        };
        objects.destroy_qp(firmware, memory, qp, stopped)
    }

    fn change(&mut self, qp: &mut Qp<P::Bar>, change: &Change, state: QpState) -> Result<(), Error> {
        self.exec(change.input(), &mut [0; rst2init_qp_out::SIZE])?;
        qp.set_state(state);
        Ok(())
    }

    /// RESET to INIT: receives may be posted.
    ///
    /// # Errors
    /// Any [`Error`] of a command; [`Error::InvalidArgument`]; [`Error::Stale`].
    pub fn modify_to_init(&mut self, qp: &mut Qp<P::Bar>, params: &InitParams) -> Result<(), Error> {
        if params.port == 0 || params.port > self.firmware.caps().num_ports {
            return Err(Error::InvalidArgument("port"));
        }
        check_state_machine(qp)?;
        let context = qp.context_mut();
        context.port = params.port;
        context.pkey_index = params.pkey_index;
        context.pkey_changed = false;
        context.access = params.access;
        let config = context.config;
        let mut change = Change::new(Opcode::RST2INIT_QP, &qp.context(), self.firmware.resolve(qp)?);
        ads::pkey_index.set(change.path(), params.pkey_index);
        ads::vhca_port_num.set(change.path(), params.port);
        let fields = change.qp();
        qpc::rlky.set(fields, config.reserved_lkey.is_some());
        qpc::counter_set_id.set(fields, config.counters.map_or(0, CounterSet::number));
        match config.service {
            Service::Rc | Service::Uc => {}
            Service::RawPacket => {}
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
            u64::from(self.firmware.caps().log_max_ra_res_qp).min(MOST_LOG_READS),
        )?;
        let QpContext { port, pkey_index, pkey_changed, access, .. } = qp.context();
        let number = self.firmware.resolve(qp)?;
        self.check_medium(&params.path)?;
        let mut change = Change::new(Opcode::INIT2RTR_QP, &qp.context(), number);
        // Remote rights are set here, where every firmware takes them, and not at RST2INIT.
        let atomics = access.contains(Access::REMOTE_ATOMIC);
        if reliable && atomics && !self.firmware.caps().atomic {
            return Err(Error::MissingCapability("atomic"));
        }
        let mut optional = match (reliable, atomics) {
            (true, true) => OptParamMask::RRE | OptParamMask::RWE | OptParamMask::RAE,
            (true, false) => OptParamMask::RRE | OptParamMask::RWE,
            (false, _) => OptParamMask::RWE,
        };
        optional.set(OptParamMask::PKEY_INDEX, pkey_changed);
        change.allow(optional);
        let log_msg_max = self.firmware.caps().log_max_msg;
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
        let rates = self.firmware.caps().stat_rate_support;
        let path = change.path();
        ads::pkey_index.set(path, pkey_index);
        ads::vhca_port_num.set(path, port);
        let ends = Ends::new(number, params.remote_qpn);
        params.path.write_ads(path, ends, rates)?;
        self.change(qp, &change, QpState::ReadyToReceive)
    }

    /// # Errors
    /// [`Error::InvalidArgument`] for a path of the other kind of port.
    fn check_medium(&self, path: &Path) -> Result<(), Error> {
        match (path, self.firmware.caps().port_type) {
            (Path::InfiniBand { .. }, PortType::InfiniBand)
            | (Path::Roce { .. }, PortType::Ethernet)
            | (Path::Loopback, _) => Ok(()),
            _ => Err(Error::InvalidArgument("path")),
        }
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
            u64::from(self.firmware.caps().log_max_ra_req_qp).min(MOST_LOG_READS),
        )?;
        let mut change = Change::new(Opcode::RTR2RTS_QP, &qp.context(), self.firmware.resolve(qp)?);
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
            Service::Rc | Service::Uc | Service::RawPacket => {
                return Err(Error::InvalidArgument("service"));
            }
            Service::Ud { .. } => UD_MTU_AND_MESSAGE,
            Service::Gsi => GSI_MTU_AND_MESSAGE,
        };
        let number = self.firmware.resolve(qp)?;
        let mut change = Change::new(Opcode::INIT2RTR_QP, &qp.context(), number);
        qpc::mtu.set(change.qp(), mtu);
        qpc::log_msg_max.set(change.qp(), message);
        ads::pkey_index.set(change.path(), qp.context().pkey_index);
        ads::vhca_port_num.set(change.path(), qp.context().port);
        self.change(qp, &change, QpState::ReadyToReceive)?;
        let mut change = Change::new(Opcode::RTR2RTS_QP, &qp.context(), number);
        qpc::next_send_psn.set(change.qp(), sq_psn.get());
        self.change(qp, &change, QpState::ReadyToSend)
    }

    /// Any state but RESET to ERROR: what is posted, now or later, is answered as flushed.
    ///
    /// # Errors
    /// Any [`Error`] of a command; [`Error::Stale`].
    pub fn modify_to_error(&mut self, qp: &mut Qp<P::Bar>) -> Result<(), Error> {
        check_state_machine(qp)?;
        let mut change = input::<{ qp_2err_in::SIZE }>(Opcode::QP_2ERR, 0);
        qp_2err_in::qpn.set(&mut change, self.firmware.resolve(qp)?.get());
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
        check_state_machine(qp)?;
        let mut change = input::<{ qp_2rst_in::SIZE }>(Opcode::QP_2RST, 0);
        qp_2rst_in::qpn.set(&mut change, self.firmware.resolve(qp)?.get());
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
        check_state_machine(qp)?;
        let mut query = input::<{ query_qp_in::SIZE }>(Opcode::QUERY_QP, 0);
        query_qp_in::qpn.set(&mut query, self.firmware.resolve(qp)?.get());
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
            _ => Err(Error::BadAnswer { step: self.firmware.step(), field: "state", value: state }),
        }
    }
}

impl<B: Bar> Objects<B> {
    fn create_qp<P: Platform<Bar = B>>(
        &mut self,
        firmware: &mut Firmware<'_, P>,
        memory: &mut Memory<'_>,
        config: &QpConfig,
    ) -> Result<Qp<B>, Error> {
        self.room.check(EVENTS_OF_QP)?;
        if config.user_index >= 0xff_ffff {
            return Err(Error::InvalidArgument("user_index"));
        }
        if config.deth_sqpn.is_some() && !firmware.caps().set_deth_sqpn {
            return Err(Error::MissingCapability("set_deth_sqpn"));
        }
        if config.service == Service::Uc && !firmware.caps().uc {
            return Err(Error::MissingCapability("uc"));
        }
        if config.memory_windows && config.service != Service::Rc {
            return Err(Error::InvalidArgument("memory_windows"));
        }
        if config.memory_windows && !firmware.caps().imaicl {
            return Err(Error::MissingCapability("imaicl"));
        }
        if config.inline_receive && !firmware.caps().sctr_data_cqe {
            return Err(Error::MissingCapability("sctr_data_cqe"));
        }
        let frames = match config.service {
            Service::RawPacket if self.raw_packet.is_some() => {
                return Err(Error::Limit { what: "raw-packet QPs", asked: 2, limit: 1 });
            }
            Service::RawPacket => raw_packet::limits(firmware, memory, config)?,
            _ => FrameLimits::default(),
        };
        firmware.resolve(&config.pd)?;
        config.counters.map_or(Ok(0), |counters| firmware.resolve(&counters))?;
        let sizes = Sizes::new(config, firmware.caps(), self.terminator, frames)?;
        let control_page = self.uar.ok_or(Error::WrongState)?;
        let epoch = memory.epoch();
        let taken = if config.blueflame { self.blueflame.take(firmware, memory) } else { None };
        let (page, send_register) = match &taken {
            Some(register) => (register.page(), register.send_register(epoch)),
            None => {
                let offset = control_page.get() as usize * uar::PAGE_SIZE + uar::BLUEFLAME;
                let handle = control::doorbell_register(firmware.bar(), offset, 8);
                (control_page, SendRegister::new(handle, 0, epoch))
            }
        };
        let register = taken.map(|register| register.index());
        let context = QpContext {
            config: *config,
            port: 1,
            pkey_index: 0,
            pkey_changed: false,
            access: Access::empty(),
            register,
        };
        let usable = firmware.usable();
        let mut qp = match usable.and_then(|usable| {
            empty_qp(memory, usable, &sizes, send_register, context, firmware.generation())
        }) {
            Ok(qp) => qp,
            Err(error) => {
                self.blueflame.give(register);
                return Err(error);
            }
        };
        let mut raw = RawPacket::default();
        if let Err(error) = create_qp_over(firmware, memory, &mut raw, &mut qp, &sizes.geometry, page) {
            let undone = raw_packet::destroy(firmware, memory, &raw, &qp);
            self.free_qp(firmware, memory, &error.not_created().and(undone), qp);
            return Err(error);
        }
        if config.service == Service::RawPacket {
            self.raw_packet = Some(raw);
        }
        self.room.add(EVENTS_OF_QP);
        Ok(qp)
    }

    fn free_qp<P: Platform<Bar = B>>(
        &mut self,
        firmware: &Firmware<'_, P>,
        memory: &mut Memory<'_>,
        destroyed: &Result<(), Error>,
        qp: Qp<B>,
    ) {
        let current = firmware.resolve(&qp).is_ok();
        let (rings, (send_slots, receive_slots), register) = qp.into_memory();
        memory.release_ring_unless(destroyed, rings);
        // The device does not see the slots.
        memory.release_slots(send_slots);
        if let Some(slots) = receive_slots {
            memory.release_slots(slots);
        }
        if destroyed.is_ok() {
            self.blueflame.give(register.filter(|_| current));
        }
    }

    fn destroy_qp<P: Platform<Bar = B>>(
        &mut self,
        firmware: &mut Firmware<'_, P>,
        memory: &mut Memory<'_>,
        qp: Qp<B>,
        stopped: Result<(), Error>,
    ) -> Result<(), Error> {
        let result = if qp.service() == Service::RawPacket {
            // A recovery has destroyed an older one.
            match self.raw_packet(firmware, &qp) {
                Some(raw) => {
                    self.raw_packet = None;
                    stopped.and(raw_packet::destroy(firmware, memory, &raw, &qp))
                }
                None => Ok(()),
            }
        } else {
            let mut destroy = input::<{ destroy_qp_in::SIZE }>(Opcode::DESTROY_QP, 0);
            destroy_qp_in::qpn.set(&mut destroy, qp.number().get());
            firmware.destroy(memory, &qp, &destroy, &mut [0; destroy_qp_out::SIZE])
        };
        self.free_qp(firmware, memory, &result, qp);
        self.forget_events(firmware, memory, EVENTS_OF_QP, &result);
        result
    }
}

/// # Errors
/// [`Error::InvalidArgument`] for a raw-packet QP, whose queues have states of their own.
fn check_state_machine<B: Bar>(qp: &Qp<B>) -> Result<(), Error> {
    if qp.service() == Service::RawPacket { Err(Error::InvalidArgument("service")) } else { Ok(()) }
}

/// A queue pair without a number, before CREATE_QP.
fn empty_qp<B: Bar>(
    memory: &mut Memory<'_>,
    usable: Usable,
    sizes: &Sizes,
    register: SendRegister<B::DoorbellRegister>,
    context: QpContext,
    generation: Generation,
) -> Result<Qp<B>, Error> {
    let Sizes { geometry, limits } = sizes;
    let send_slots = memory.take_slots(geometry.send_wqebbs())?;
    let receive_slots = match geometry.receives().map(|count| memory.take_slots(count)).transpose() {
        Ok(slots) => slots,
        Err(error) => {
            memory.release_slots(send_slots);
            return Err(error);
        }
    };
    match memory.take_ring(usable, geometry.ring_bytes()) {
        Ok(rings) => {
            Qp::new(rings, (send_slots, receive_slots), geometry, *limits, register, context, generation)
                .ok_or(Error::OutOfBounds)
        }
        Err(error) => {
            memory.release_slots(send_slots);
            if let Some(slots) = receive_slots {
                memory.release_slots(slots);
            }
            Err(error)
        }
    }
}

fn create_qp_over<P: Platform>(
    firmware: &mut Firmware<'_, P>,
    memory: &mut Memory<'_>,
    raw: &mut RawPacket,
    qp: &mut Qp<P::Bar>,
    geometry: &QpGeometry,
    page: UarPage,
) -> Result<(), Error> {
    if qp.service() == Service::RawPacket {
        return raw_packet::create(firmware, memory, raw, qp, geometry, page);
    }
    let [rings, record] = qp.memory();
    let pages = PageList::new(rings, geometry.ring_bytes());
    let create = create_input(&qp.context().config, geometry, firmware.caps(), page, &pages, record);
    let count = if geometry.ring_bytes() == 0 { 0 } else { pages.count() };
    let tail = Tail { count, entry: &|index| pages.entry(index) };
    let mut out = [0; create_qp_out::SIZE];
    firmware.exec_with(memory, &create, tail, &mut out)?;
    let number = QpNumber::new(create_qp_out::qpn.get32(&out));
    qp.set_numbers(number, number);
    Ok(())
}

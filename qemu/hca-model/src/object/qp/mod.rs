//! Queue pairs: identity, configuration, work queues, and the state of the transport.

mod config;
mod path;
mod rings;

use super::mkey::User;
use super::remote_access::RemoteAccess;
use super::umr::Registrar;
use crate::profile::Strictness;
use crate::transport::QpTransport;
use config::{Config, Context};
use mlx5_prm::contexts::qpc;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::value::{OptParamMask, QpState, ServiceType};

pub use config::{Completions, Connection};
pub use path::{AddressPath, GrhRoute, Route};
pub use rings::{ReceiveQueue, Rings, SendQueue};

/// A queue pair.
#[derive(Clone, Debug)]
pub struct Qp {
    qpn: u32,
    service: ServiceType,
    state: QpState,
    context: Context,
    config: Config,
    uar_page: u32,
    rings: Rings,
    /// The transport's state. The data path changes it while it reads the rest.
    pub(crate) transport: QpTransport,
}

impl Qp {
    /// A QP in reset, from the context of CREATE_QP. It obeys doorbells of UAR page `uar_page`.
    #[must_use]
    pub fn new(context: &[u8], rings: Rings, uar_page: u32) -> Self {
        let context = Context::created(context);
        Self {
            qpn: 0,
            service: ServiceType(qpc::st.get32(context.bytes()) as u8),
            state: QpState::RST,
            config: Config::parse(&context),
            context,
            uar_page,
            rings,
            transport: QpTransport::default(),
        }
    }

    /// Gives the QP its number.
    #[must_use]
    pub(super) fn numbered(self, qpn: u32) -> Self {
        Self { qpn, ..self }
    }

    /// Takes over what a state command configures. Its context has been checked.
    pub fn apply(&mut self, opcode: Opcode, mask: OptParamMask, context: &[u8]) {
        self.context.apply(opcode, mask, self.service, context);
        self.config = Config::parse(&self.context);
    }

    /// Moves to `state`. Returns the state before.
    pub const fn enter(&mut self, state: QpState) -> QpState {
        core::mem::replace(&mut self.state, state)
    }

    /// Writes the context that QUERY_QP reports.
    pub fn emit(&self, context: &mut [u8]) {
        context.copy_from_slice(self.context.bytes());
        qpc::state.set(context, self.state.0);
        let progress = self.transport.progress();
        if self.state != QpState::RST && self.state != QpState::INIT {
            qpc::next_send_psn.set(context, progress.next_send_psn & 0x00ff_ffff);
            qpc::next_rcv_psn.set(context, progress.next_rcv_psn & 0x00ff_ffff);
        }
        for (field, value) in [
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
    }

    /// Host memory that it takes, with as many requests under way as there is room for, in bytes.
    #[must_use]
    pub fn memory(&self) -> u64 {
        let fixed = (size_of::<Self>() + self.context.bytes().len()) as u64 + self.rings.memory();
        fixed + self.transport.memory(self.rings.send().map_or(0, |queue| queue.blocks().into()))
    }

    /// Number in commands and doorbells.
    #[must_use]
    #[inline]
    pub const fn qpn(&self) -> u32 {
        self.qpn
    }

    /// Service type.
    #[must_use]
    #[inline]
    pub const fn service(&self) -> ServiceType {
        self.service
    }

    /// State.
    #[must_use]
    #[inline]
    pub const fn state(&self) -> QpState {
        self.state
    }

    /// The UAR page whose doorbells it obeys.
    #[must_use]
    #[inline]
    pub const fn uar_page(&self) -> u32 {
        self.uar_page
    }

    /// The work queues.
    #[must_use]
    #[inline]
    pub const fn rings(&self) -> &Rings {
        &self.rings
    }

    pub(super) const fn rings_mut(&mut self) -> &mut Rings {
        &mut self.rings
    }

    /// How work requests are completed.
    #[must_use]
    #[inline]
    pub const fn completions(&self) -> &Completions {
        &self.config.completions
    }

    /// Parameters of the transport.
    #[must_use]
    #[inline]
    pub const fn connection(&self) -> &Connection {
        &self.config.connection
    }

    /// The path to the peer.
    #[must_use]
    #[inline]
    pub const fn path(&self) -> &AddressPath {
        &self.config.path
    }

    /// Who the QP is to memory keys.
    #[must_use]
    #[inline]
    pub const fn user(&self) -> User {
        User { pd: self.config.pd, qpn: self.qpn, reserved_lkey: self.config.reserved_lkey }
    }

    /// Who the QP is to UMRs.
    #[must_use]
    pub fn registrar(&self, strictness: Strictness) -> Registrar {
        Registrar {
            qpn: self.qpn,
            pd: (self.service != ServiceType::REG_UMR).then_some(self.config.pd),
            fast_registration: self.config.fast_registration,
            reserved_lkey: self.config.reserved_lkey,
            strictness,
        }
    }

    /// Accesses that it allows its peer.
    #[must_use]
    #[inline]
    pub const fn remote_access(&self) -> RemoteAccess {
        self.config.remote_access
    }

    /// The SRQ, RMP or XRQ that receives come from, if they do.
    #[must_use]
    #[inline]
    pub const fn shared_queue(&self) -> Option<u32> {
        self.config.shared_queue
    }

    /// XRC domain.
    #[must_use]
    pub const fn xrcd(&self) -> u32 {
        self.config.xrcd
    }

    /// Q counter set, if there is one.
    #[must_use]
    #[inline]
    pub fn counter_set(&self) -> Option<u8> {
        Some(self.config.counter_set).filter(|set| *set != 0)
    }

    /// Q_Key of datagrams to the QP, and of those whose WQE asks for it.
    #[must_use]
    pub const fn q_key(&self) -> u32 {
        self.config.q_key
    }

    /// Source QP number in datagrams.
    #[must_use]
    pub const fn source_qpn(&self) -> u32 {
        match (self.config.deth_sqpn, self.service) {
            (0, ServiceType::QP0) => 0,
            (0, ServiceType::QP1) => 1,
            (0, _) => self.qpn,
            (given, _) => given,
        }
    }

    /// Returns whether this HCA's members of a group receive the multicasts that the QP sends.
    #[must_use]
    pub const fn loops_multicast(&self) -> bool {
        !self.config.block_multicast_loopback
    }

    /// Returns whether completions of either queue go to a CQ.
    #[must_use]
    pub fn uses_cq(&self, cqn: u32) -> bool {
        let receives = self.rings.receive().is_some() || self.config.shared_queue.is_some();
        (self.rings.send().is_some() && self.config.completions.send_cq() == cqn)
            || (receives && self.config.completions.receive_cq() == cqn)
    }

    /// Returns whether the QP belongs to an XRC domain.
    #[must_use]
    pub fn uses_xrcd(&self, xrcd: u32) -> bool {
        self.service == ServiceType::XRC && self.config.xrcd == xrcd
    }
}

#[cfg(test)]
impl Qp {
    /// Changes the context in ways that no command allows in the QP's state.
    pub(crate) fn reconfigure(&mut self, change: impl FnOnce(&mut [u8])) {
        change(self.context.bytes_mut());
        self.config = Config::parse(&self.context);
    }

    /// Has receives come from an SRQ. With `target_only` there is no send queue either.
    pub(crate) fn share(&mut self, srqn: u32, target_only: bool) {
        use mlx5_prm::value::RqType;
        self.rings.take_queues(target_only);
        self.reconfigure(|context| {
            qpc::rq_type.set(context, RqType::SRQ_RQ.0);
            qpc::srqn_rmpn_xrqn.set(context, srqn);
        });
    }
}

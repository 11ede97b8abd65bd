//! Configuration of a QP: its context as software gave it, and what the data path needs of it, parsed.
//!
//! CREATE_QP fixes some fields for life, state commands set the others. QUERY_QP reports the context.

use super::path::AddressPath;
use crate::caps::LOG_MAX_MSG;
use crate::object::remote_access::RemoteAccess;
use ib_types::Psn;
use mlx5_prm::Field;
use mlx5_prm::contexts::{ads, qpc};
use mlx5_prm::opcode::Opcode;
use mlx5_prm::value::{OptParamMask, RqType, ServiceType};

/// `qpc.user_index` that asks for the older form of CQEs.
const NO_USER_INDEX: u32 = 0xff_ffff;

/// Fields that only state commands set.
const SET_LATER: &[Field] = &[
    qpc::mtu,
    qpc::remote_qpn,
    qpc::log_sra_max,
    qpc::log_rra_max,
    qpc::retry_count,
    qpc::rnr_retry,
    qpc::min_rnr_nak,
    qpc::next_send_psn,
    qpc::next_rcv_psn,
    qpc::q_key,
    qpc::rre,
    qpc::rwe,
    qpc::rae,
    qpc::atomic_mode,
];

/// Accesses that the peer is allowed.
const ACCESSES: &[Field] = &[qpc::rre, qpc::rwe, qpc::rae, qpc::atomic_mode];

/// Fields that bits of the mask of optional parameters name.
const OPTIONAL: &[(OptParamMask, &[Field])] = &[
    (OptParamMask::RRE, &[qpc::rre]),
    (OptParamMask::RWE, &[qpc::rwe]),
    (OptParamMask::RAE, &[qpc::rae, qpc::atomic_mode]),
    (OptParamMask::Q_KEY, &[qpc::q_key]),
    (OptParamMask::RNR_TIMEOUT, &[qpc::min_rnr_nak]),
    (OptParamMask::PM_STATE, &[qpc::pm_state]),
    (OptParamMask::COUNTER_SET_ID, &[qpc::counter_set_id]),
    (OptParamMask::CQN_RCV, &[qpc::cqn_rcv]),
    (OptParamMask::SRQN, &[qpc::srqn_rmpn_xrqn]),
];

/// The context of a QP, as configured so far.
#[derive(Clone, Debug)]
pub(super) struct Context(Vec<u8>);

impl Context {
    /// The context of a new QP, from that of CREATE_QP.
    pub(super) fn created(context: &[u8]) -> Self {
        let mut bytes = context.to_vec();
        SET_LATER.iter().for_each(|field| field.set(&mut bytes, 0u32));
        qpc::log_msg_max.set(&mut bytes, LOG_MAX_MSG);
        qpc::primary_address_path.of_mut(&mut bytes).fill(0);
        qpc::secondary_address_path.of_mut(&mut bytes).fill(0);
        Self(bytes)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    #[cfg(test)]
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    /// Takes over the fields of a state command and the optional ones in `mask`.
    pub(super) fn apply(&mut self, opcode: Opcode, mask: OptParamMask, service: ServiceType, from: &[u8]) {
        let connected = matches!(service, ServiceType::RC | ServiceType::UC | ServiceType::XRC);
        let reliable = matches!(service, ServiceType::RC | ServiceType::XRC);
        match opcode {
            Opcode::RST2INIT_QP => {
                self.take_port(from);
                self.take_path(&[ads::pkey_index], from);
                if service == ServiceType::REG_UMR {
                    // Made without a domain, Linux names it here: that of the key over its translation lists.
                    self.take(&[qpc::pd], from);
                }
                if service == ServiceType::REG_UMR || connected {
                    self.take(ACCESSES, from);
                }
                if !connected {
                    self.take(&[qpc::q_key], from);
                }
                if qpc::counter_set_id.is_set(from) {
                    self.take(&[qpc::counter_set_id], from);
                }
                self.take(&[qpc::pm_state], from);
            }
            Opcode::INIT2RTR_QP => {
                self.take(&[qpc::mtu, qpc::log_msg_max], from);
                if connected {
                    self.take(&[qpc::remote_qpn, qpc::next_rcv_psn], from);
                    self.take_connection_path(from);
                }
                if reliable {
                    self.take(&[qpc::log_rra_max, qpc::min_rnr_nak], from);
                }
            }
            Opcode::RTR2RTS_QP => {
                self.take(&[qpc::next_send_psn], from);
                if reliable {
                    let fields = [qpc::log_sra_max, qpc::retry_count, qpc::rnr_retry, qpc::log_ack_req_freq];
                    self.take(&fields, from);
                    self.take_path(&[ads::ack_timeout], from);
                }
            }
            _ => {}
        }
        for (bits, fields) in OPTIONAL {
            if mask.contains(*bits) {
                self.take(fields, from);
            }
        }
        if mask.contains(OptParamMask::PRI_PORT) {
            self.take_port(from);
        }
        if mask.contains(OptParamMask::PKEY_INDEX) {
            self.take_path(&[ads::pkey_index], from);
        }
        if mask.contains(OptParamMask::ALT_ADDR_PATH) {
            let path = qpc::secondary_address_path;
            path.of_mut(&mut self.0).copy_from_slice(path.of(from));
        }
    }

    fn take(&mut self, fields: &[Field], from: &[u8]) {
        fields.iter().for_each(|field| field.set(&mut self.0, field.get(from)));
    }

    fn take_path(&mut self, fields: &[Field], from: &[u8]) {
        let (own, from) = (qpc::primary_address_path.of_mut(&mut self.0), qpc::primary_address_path.of(from));
        fields.iter().for_each(|field| field.set(own, field.get(from)));
    }

    /// Port 0 stands for the port that the QP has.
    fn take_port(&mut self, from: &[u8]) {
        if ads::vhca_port_num.is_set(qpc::primary_address_path.of(from)) {
            self.take_path(&[ads::vhca_port_num], from);
        }
    }

    /// The whole primary path of INIT to RTR. Port and P_Key were given before and are changed by their own mask bits.
    fn take_connection_path(&mut self, from: &[u8]) {
        let own = qpc::primary_address_path.of_mut(&mut self.0);
        let kept = [ads::pkey_index, ads::vhca_port_num].map(|field| (field, field.get(own)));
        own.copy_from_slice(qpc::primary_address_path.of(from));
        kept.iter().for_each(|(field, value)| field.set(own, *value));
    }
}

/// What the data path needs of a context.
#[derive(Clone, Copy, Debug)]
pub(super) struct Config {
    pub(super) pd: u32,
    pub(super) xrcd: u32,
    pub(super) reserved_lkey: bool,
    pub(super) fast_registration: bool,
    pub(super) remote_access: RemoteAccess,
    pub(super) counter_set: u8,
    pub(super) shared_queue: Option<u32>,
    pub(super) q_key: u32,
    pub(super) deth_sqpn: u32,
    pub(super) block_multicast_loopback: bool,
    pub(super) completions: Completions,
    pub(super) connection: Connection,
    pub(super) path: AddressPath,
}

impl Config {
    /// Parses a context.
    pub(super) fn parse(context: &Context) -> Self {
        let bytes = context.bytes();
        let shared = qpc::rq_type.get32(bytes) as u8 == RqType::SRQ_RQ.0;
        Self {
            pd: qpc::pd.get32(bytes),
            xrcd: qpc::xrcd.get32(bytes),
            reserved_lkey: qpc::rlky.is_set(bytes),
            fast_registration: qpc::fre.is_set(bytes),
            remote_access: RemoteAccess::parse(bytes),
            counter_set: qpc::counter_set_id.get32(bytes) as u8,
            shared_queue: shared.then(|| qpc::srqn_rmpn_xrqn.get32(bytes)),
            q_key: qpc::q_key.get32(bytes),
            deth_sqpn: qpc::deth_sqpn.get32(bytes),
            block_multicast_loopback: qpc::block_lb_mc.is_set(bytes),
            completions: Completions::parse(bytes),
            connection: Connection::parse(bytes),
            path: AddressPath::parse(qpc::primary_address_path.of(bytes)),
        }
    }
}

/// How work requests are completed.
#[derive(Clone, Copy, Debug)]
pub struct Completions {
    send_cq: u32,
    receive_cq: u32,
    user_index: u32,
    inline_answer: u8,
    inline_receive: u8,
}

impl Completions {
    fn parse(context: &[u8]) -> Self {
        Self {
            send_cq: qpc::cqn_snd.get32(context),
            receive_cq: qpc::cqn_rcv.get32(context),
            user_index: qpc::user_index.get32(context),
            inline_answer: inline_limit(qpc::cs_req.get32(context)),
            inline_receive: inline_limit(qpc::cs_res.get32(context)),
        }
    }

    /// The CQ of send completions.
    #[must_use]
    #[inline]
    pub const fn send_cq(&self) -> u32 {
        self.send_cq
    }

    /// The CQ of receive completions.
    #[must_use]
    #[inline]
    pub const fn receive_cq(&self) -> u32 {
        self.receive_cq
    }

    /// Software's number of the QP in every CQE; `srqn` in its place in the older form.
    #[must_use]
    #[inline]
    pub const fn index_or(&self, srqn: u32) -> u32 {
        if self.user_index == NO_USER_INDEX { srqn } else { self.user_index }
    }

    /// Bytes of a READ's or atomic's answer that its CQE may carry: 0, 32 or 64.
    #[must_use]
    #[inline]
    pub const fn inline_answer(&self) -> usize {
        self.inline_answer as usize
    }

    /// Bytes of a received message that its CQE may carry: 0, 32 or 64.
    #[must_use]
    #[inline]
    pub const fn inline_receive(&self) -> usize {
        self.inline_receive as usize
    }
}

/// Bytes that a completion may carry: `qpc.cs_res` 1 or 2, `qpc.cs_req` 0x11 or 0x22.
const fn inline_limit(scatter: u32) -> u8 {
    match scatter & 0xf {
        1 => 32,
        2 => 64,
        _ => 0,
    }
}

/// Parameters of the transport.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    remote_qpn: u32,
    next_send_psn: u32,
    next_rcv_psn: u32,
    mtu: u8,
    log_msg_max: u8,
    log_ack_req_freq: u8,
    log_sra_max: u8,
    log_rra_max: u8,
    retry_count: u8,
    rnr_retry: u8,
    min_rnr_nak: u8,
}

impl Connection {
    fn parse(context: &[u8]) -> Self {
        Self {
            remote_qpn: qpc::remote_qpn.get32(context),
            next_send_psn: qpc::next_send_psn.get32(context),
            next_rcv_psn: qpc::next_rcv_psn.get32(context),
            mtu: qpc::mtu.get32(context) as u8,
            log_msg_max: qpc::log_msg_max.get32(context) as u8,
            log_ack_req_freq: qpc::log_ack_req_freq.get32(context) as u8,
            log_sra_max: qpc::log_sra_max.get32(context) as u8,
            log_rra_max: qpc::log_rra_max.get32(context) as u8,
            retry_count: qpc::retry_count.get32(context) as u8,
            rnr_retry: qpc::rnr_retry.get32(context) as u8,
            min_rnr_nak: qpc::min_rnr_nak.get32(context) as u8,
        }
    }

    /// The peer's QP number.
    #[must_use]
    #[inline]
    pub const fn remote_qpn(&self) -> u32 {
        self.remote_qpn
    }

    /// First PSN of the requester.
    #[must_use]
    pub const fn first_sent(&self) -> Psn {
        Psn::new(self.next_send_psn)
    }

    /// First PSN that the responder expects.
    #[must_use]
    pub const fn first_expected(&self) -> Psn {
        Psn::new(self.next_rcv_psn)
    }

    /// Path MTU in bytes.
    #[must_use]
    #[inline]
    pub fn mtu(&self) -> u32 {
        128 << self.mtu.clamp(1, 5)
    }

    /// Longest message in bytes.
    #[must_use]
    #[inline]
    pub fn longest_message(&self) -> u64 {
        1 << self.log_msg_max.min(31)
    }

    /// log2 of the packets between two requests for acknowledgement.
    #[must_use]
    #[inline]
    pub const fn log_ack_req_freq(&self) -> u8 {
        self.log_ack_req_freq
    }

    /// READs and atomics that the requester may have outstanding.
    #[must_use]
    #[inline]
    pub const fn reads_sent(&self) -> u32 {
        1 << self.log_sra_max
    }

    /// READs and atomics that the peer may have outstanding.
    #[must_use]
    #[inline]
    pub fn reads_taken(&self) -> usize {
        1 << self.log_rra_max.min(7)
    }

    /// Retries after time-outs and sequence errors.
    #[must_use]
    #[inline]
    pub const fn retry_count(&self) -> u8 {
        self.retry_count
    }

    /// Retries after RNR NAKs; 7 is forever.
    #[must_use]
    #[inline]
    pub const fn rnr_retry(&self) -> u8 {
        self.rnr_retry
    }

    /// Timer code of the RNR NAKs that the responder sends.
    #[must_use]
    pub const fn rnr_timer(&self) -> u8 {
        self.min_rnr_nak
    }
}

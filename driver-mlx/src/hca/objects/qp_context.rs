//! Contexts of queue pairs, as CREATE_QP and state changes carry them.

use crate::caps::Capabilities;
use crate::cmd::input;
use crate::config::{QpConfig, Service};
use crate::dma::DmaMemory;
use crate::error::Error;
use crate::hca::page_list::PageList;
use crate::mw::BIND_OCTOWORDS;
use crate::qp::{FrameLimits, MAX_FRAME_HEAD, QpContext, QpGeometry, QpLimits};
use crate::types::{CounterSet, LKey, QpNumber, UarPage};
use mlx5_prm::commands::*;
use mlx5_prm::contexts::qpc;
use mlx5_prm::datapath::ETH_INLINE_OFFSET;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::value::{OptParamMask, PmState, RqType, ServiceType};

/// Octowords (16 bytes) that any work request may have (6 bits of `ds`), and an RDMA read (512 bytes).
const MOST_UNITS: usize = 63;
const MOST_READ_UNITS: usize = 32;
/// Octowords that a receive work request may have: `log_rq_stride` has 3 bits.
const MOST_RECEIVE_UNITS: u64 = 1 << 7;
/// An ACK is asked for at least every 2^8 packets.
const LOG_ACK_REQ_FREQ: u32 = 8;
/// `qpc.cs_res`: up to 32 received bytes go to the completion.
const SCATTER_32: u32 = 1;
/// `qpc.ts_format`: the clock that the device prefers. A device with REAL_TIME_CLOCK_ENABLE refuses
/// 0, the free-running clock. Linux, include/linux/mlx5/qp.h, mlx5_get_qp_default_ts.
const DEFAULT_CLOCK: u32 = 1;

/// Work request sizes that a configuration implies.
pub(super) struct Sizes {
    pub(super) geometry: QpGeometry,
    pub(super) limits: QpLimits,
}

impl Sizes {
    pub(super) fn new(
        config: &QpConfig,
        caps: &Capabilities,
        terminator: LKey,
        frames: FrameLimits,
    ) -> Result<Self, Error> {
        let (head, most, least_rq_bytes) = match config.service {
            // Control and remote address.
            Service::Rc | Service::Uc => (2, MOST_READ_UNITS, QpGeometry::WQEBB),
            // Control and address vector.
            Service::Ud { .. } | Service::Gsi => (4, MOST_UNITS, QpGeometry::WQEBB),
            // Control and Ethernet segment.
            Service::RawPacket => {
                (1 + (ETH_INLINE_OFFSET + MAX_FRAME_HEAD).div_ceil(16), MOST_UNITS, QpGeometry::PAGE)
            }
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
        let max_recv_sge = config.max_recv_sge;
        let geometry =
            QpGeometry::new(config.max_send_wr, max_recv_wr, octowords, max_recv_sge, least_rq_bytes)
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
            terminator,
            frames,
        };
        Ok(Self { geometry, limits })
    }
}

/// # Errors
/// [`Error::Limit`] if `asked` is more than `limit`.
pub(super) fn exceeds(what: &'static str, asked: u64, limit: u64) -> Result<(), Error> {
    if asked > limit { Err(Error::Limit { what, asked, limit }) } else { Ok(()) }
}

/// log2, rounded up.
pub(super) fn log2_ceil(count: u8) -> u32 {
    u32::from(count).max(1).next_power_of_two().ilog2()
}

/// The 272-byte input that all state changes with parameters share; they are laid out alike.
pub(super) struct Change {
    bytes: [u8; rst2init_qp_in::SIZE],
}

impl Change {
    pub(super) fn new(opcode: Opcode, context: &QpContext, qpn: QpNumber) -> Self {
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

    pub(super) fn input(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn qp(&mut self) -> &mut [u8] {
        rst2init_qp_in::qpc.of_mut(&mut self.bytes)
    }

    pub(super) fn path(&mut self) -> &mut [u8] {
        qpc::primary_address_path.of_mut(self.qp())
    }

    pub(super) fn allow(&mut self, mask: OptParamMask) {
        rst2init_qp_in::opt_param_mask.set(&mut self.bytes, mask.bits());
    }
}

fn service_type(service: Service) -> ServiceType {
    match service {
        Service::Rc => ServiceType::RC,
        Service::Uc => ServiceType::UC,
        Service::Ud { .. } => ServiceType::UD,
        Service::Gsi => ServiceType::QP1,
        // Not a queue pair of the device.
        Service::RawPacket => ServiceType::RAW_ETHERTYPE,
    }
}

/// The input of CREATE_QP, without the list of its pages.
pub(super) fn create_input(
    config: &QpConfig,
    geometry: &QpGeometry,
    caps: &Capabilities,
    page: UarPage,
    pages: &PageList,
    record: DmaMemory,
) -> [u8; create_qp_in::SIZE] {
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
    if caps.sq_ts_format != 0 {
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
    qpc::log_page_size.set(fields, pages.log_page());
    qpc::cqn_snd.set(fields, config.send_cq.get());
    qpc::cqn_rcv.set(fields, config.recv_cq.get());
    qpc::dbr_addr.set(fields, record.device_address());
    if let Some(source) = config.deth_sqpn {
        qpc::deth_sqpn.set(fields, source.get());
    }
    create
}

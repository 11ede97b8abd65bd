//! Raw-packet QPs: a send queue with its TIS, and a receive queue (PRM, "Raw Ethernet").

use super::qp_context::exceeds;
use crate::cmd::{Tail, input};
use crate::config::QpConfig;
use crate::dma::DmaMemory;
use crate::error::Error;
use crate::hca::firmware::Firmware;
use crate::hca::memory::Memory;
use crate::hca::page_list::PageList;
use crate::hca::port::min_inline_mode;
use crate::platform::Platform;
use crate::qp::{FrameLimits, Qp, QpGeometry};
use crate::types::{CounterSet, QpNumber, UarPage};
use mlx5_prm::caps::per_protocol_networking_offload_caps as offloads;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::{rqc, sqc, tisc, wq};
use mlx5_prm::opcode::Opcode;
use mlx5_prm::value::{CapType, WqState};

/// `wq.wq_type`: entries are used in order.
const CYCLIC: u32 = 1;
/// log2 of the bytes of a WQEBB and of an octoword.
const LOG_WQEBB: u32 = 6;
const LOG_OCTOWORD: u32 = 4;
/// `per_protocol_networking_offload_caps.wqe_inline_mode`: the Ethernet header is needed, or what
/// the vport's context says.
const INLINE_L2: u32 = 0;
const INLINE_BY_VPORT: u32 = 1;
/// Bytes of headers that hold whatever the frame has: Ethernet with a VLAN tag, IPv6, TCP.
const ETHERNET: u8 = 18;
const IP: u8 = 40;
const TCP: u8 = 20;
/// `sqc.ts_format` and `rqc.ts_format`: the clock that the device prefers.
const DEFAULT_CLOCK: u32 = 1;

/// Numbers of what the raw-packet QP consists of, as far as it was created.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::hca) struct RawPacket {
    pub(in crate::hca) transport_domain: Option<u32>,
    tisn: Option<u32>,
    pub(in crate::hca) sqn: Option<u32>,
    pub(in crate::hca) rqn: Option<u32>,
}

/// What the device needs of, and does for, frames.
pub(super) fn limits<P: Platform>(
    firmware: &mut Firmware<'_, P>,
    memory: &mut Memory<'_>,
    config: &QpConfig,
) -> Result<FrameLimits, Error> {
    if !firmware.caps().raw_packet {
        return Err(Error::MissingCapability("eth_net_offloads or nic_flow_table"));
    }
    if config.max_send_wr == 0 || config.max_recv_wr == 0 || config.srq.is_some() {
        return Err(Error::InvalidArgument("max_send_wr, max_recv_wr or srq"));
    }
    exceeds("max_inline", config.max_inline.into(), 0)?;
    let query = input::<{ query_hca_cap_in::SIZE }>(
        Opcode::QUERY_HCA_CAP,
        CapType::ETHERNET_OFFLOADS.query_op_mod(true),
    );
    let mut out = [0; query_hca_cap_out::SIZE];
    firmware.exec(memory, &query, &mut out)?;
    let block = query_hca_cap_out::capability.of(&out);
    let mode = match offloads::wqe_inline_mode.get32(block) {
        INLINE_L2 => 1,
        INLINE_BY_VPORT => min_inline_mode(firmware, memory)?,
        _ => 0,
    };
    Ok(FrameLimits { min_head: min_head(mode), checksums: offloads::csum_cap.is_set(block) })
}

/// Bytes that requests must hold by `min_wqe_inline_mode`.
const fn min_head(mode: u8) -> u8 {
    match mode {
        0 => 0,
        1 => ETHERNET,
        2 => ETHERNET + IP,
        _ => ETHERNET + IP + TCP,
    }
}

/// The `min_wqe_inline_mode` by which so many bytes are needed.
fn inline_mode(least: usize) -> u8 {
    (0..3).find(|mode| usize::from(min_head(*mode)) >= least).unwrap_or(3)
}

/// Creates what a raw-packet QP consists of, in RESET. After an error, `raw` lists the objects that exist.
pub(super) fn create<P: Platform>(
    firmware: &mut Firmware<'_, P>,
    memory: &mut Memory<'_>,
    raw: &mut RawPacket,
    qp: &mut Qp<P::Bar>,
    geometry: &QpGeometry,
    page: UarPage,
) -> Result<(), Error> {
    let config = qp.context().config;
    let mut out = [0; alloc_transport_domain_out::SIZE];
    let alloc = input::<{ alloc_transport_domain_in::SIZE }>(Opcode::ALLOC_TRANSPORT_DOMAIN, 0);
    firmware.exec(memory, &alloc, &mut out)?;
    let domain = alloc_transport_domain_out::transport_domain.get32(&out);
    raw.transport_domain = Some(domain);

    let mut create = input::<{ create_tis_in::SIZE }>(Opcode::CREATE_TIS, 0);
    tisc::transport_domain.set(create_tis_in::ctx.of_mut(&mut create), domain);
    let mut out = [0; create_tis_out::SIZE];
    firmware.exec(memory, &create, &mut out)?;
    let tisn = create_tis_out::tisn.get32(&out);
    raw.tisn = Some(tisn);

    let [rings, record] = qp.memory();
    let clock = if firmware.caps().sq_ts_format == 0 { 0 } else { DEFAULT_CLOCK };
    let ring = rings.slice(geometry.rq_bytes, geometry.sq_bytes).ok_or(Error::OutOfBounds)?;
    let mut create = input::<{ create_sq_in::SIZE }>(Opcode::CREATE_SQ, 0);
    let context = create_sq_in::ctx.of_mut(&mut create);
    sqc::rlky.set(context, config.reserved_lkey.is_some());
    sqc::flush_in_error_en.set(context, true);
    sqc::min_wqe_inline_mode.set(context, inline_mode(qp.min_frame_head()));
    sqc::ts_format.set(context, clock);
    sqc::user_index.set(context, config.user_index);
    sqc::cqn.set(context, config.send_cq.get());
    sqc::tis_lst_sz.set(context, 1u32);
    sqc::tis_num_0.set(context, tisn);
    let fields = sqc::wq.of_mut(context);
    wq::uar_page.set(fields, page.get());
    let pages = write_wq(fields, &config, (ring, geometry.sq_bytes), record, geometry.log_sq_size, LOG_WQEBB);
    let mut out = [0; create_sq_out::SIZE];
    let tail = Tail { count: pages.count(), entry: &|index| pages.entry(index) };
    firmware.exec_with(memory, &create, tail, &mut out)?;
    let sqn = create_sq_out::sqn.get32(&out);
    raw.sqn = Some(sqn);

    let ring = rings.slice(0, geometry.rq_bytes).ok_or(Error::OutOfBounds)?;
    let mut create = input::<{ create_rq_in::SIZE }>(Opcode::CREATE_RQ, 0);
    let context = create_rq_in::ctx.of_mut(&mut create);
    rqc::rlky.set(context, config.reserved_lkey.is_some());
    // VLAN tags stay in the frame.
    rqc::vsd.set(context, true);
    rqc::flush_in_error_en.set(context, true);
    rqc::ts_format.set(context, clock);
    rqc::user_index.set(context, config.user_index);
    rqc::cqn.set(context, config.recv_cq.get());
    rqc::counter_set_id.set(context, config.counters.map_or(0, CounterSet::number));
    let fields = rqc::wq.of_mut(context);
    let log_stride = geometry.log_rq_stride + LOG_OCTOWORD;
    let pages =
        write_wq(fields, &config, (ring, geometry.rq_bytes), record, geometry.log_rq_size, log_stride);
    let mut out = [0; create_rq_out::SIZE];
    let tail = Tail { count: pages.count(), entry: &|index| pages.entry(index) };
    firmware.exec_with(memory, &create, tail, &mut out)?;
    let rqn = create_rq_out::rqn.get32(&out);
    raw.rqn = Some(rqn);
    qp.set_numbers(QpNumber::new(sqn), QpNumber::new(rqn));
    Ok(())
}

/// Writes what the work queues of both directions have alike. Returns the list of its pages.
fn write_wq(
    fields: &mut [u8],
    config: &QpConfig,
    (ring, bytes): (DmaMemory, usize),
    record: DmaMemory,
    log_size: u32,
    log_stride: u32,
) -> PageList {
    let pages = PageList::new(ring, bytes);
    wq::wq_type.set(fields, CYCLIC);
    wq::pd.set(fields, config.pd.number().get());
    wq::dbr_addr.set(fields, record.device_address());
    wq::log_wq_stride.set(fields, log_stride);
    wq::log_wq_pg_sz.set(fields, pages.log_page());
    wq::log_wq_sz.set(fields, log_size);
    pages
}

/// Brings both queues from RESET to ready.
pub(in crate::hca) fn start_queues<P: Platform>(
    firmware: &mut Firmware<'_, P>,
    memory: &mut Memory<'_>,
    sqn: u32,
    rqn: u32,
) -> Result<(), Error> {
    let mut modify = input::<{ modify_rq_in::SIZE }>(Opcode::MODIFY_RQ, 0);
    modify_rq_in::rqn.set(&mut modify, rqn);
    modify_rq_in::rq_state.set(&mut modify, WqState::RST.0);
    rqc::state.set(modify_rq_in::ctx.of_mut(&mut modify), WqState::RDY.0);
    firmware.exec(memory, &modify, &mut [0; modify_rq_out::SIZE])?;
    let mut modify = input::<{ modify_sq_in::SIZE }>(Opcode::MODIFY_SQ, 0);
    modify_sq_in::sqn.set(&mut modify, sqn);
    modify_sq_in::sq_state.set(&mut modify, WqState::RST.0);
    sqc::state.set(modify_sq_in::ctx.of_mut(&mut modify), WqState::RDY.0);
    firmware.exec(memory, &modify, &mut [0; modify_sq_out::SIZE])
}

/// Destroys what [`create`] created. Returns the first error; the rest is done anyway.
pub(super) fn destroy<P: Platform>(
    firmware: &mut Firmware<'_, P>,
    memory: &mut Memory<'_>,
    raw: &RawPacket,
    qp: &Qp<P::Bar>,
) -> Result<(), Error> {
    let mut result = Ok(());
    if let Some(rqn) = raw.rqn {
        let mut destroy = input::<{ destroy_rq_in::SIZE }>(Opcode::DESTROY_RQ, 0);
        destroy_rq_in::rqn.set(&mut destroy, rqn);
        result = result.and(firmware.destroy(memory, qp, &destroy, &mut [0; destroy_rq_out::SIZE]));
    }
    if let Some(sqn) = raw.sqn {
        let mut destroy = input::<{ destroy_sq_in::SIZE }>(Opcode::DESTROY_SQ, 0);
        destroy_sq_in::sqn.set(&mut destroy, sqn);
        result = result.and(firmware.destroy(memory, qp, &destroy, &mut [0; destroy_sq_out::SIZE]));
    }
    if let Some(tisn) = raw.tisn {
        let mut destroy = input::<{ destroy_tis_in::SIZE }>(Opcode::DESTROY_TIS, 0);
        destroy_tis_in::tisn.set(&mut destroy, tisn);
        result = result.and(firmware.destroy(memory, qp, &destroy, &mut [0; destroy_tis_out::SIZE]));
    }
    if let Some(domain) = raw.transport_domain {
        let mut free = input::<{ dealloc_transport_domain_in::SIZE }>(Opcode::DEALLOC_TRANSPORT_DOMAIN, 0);
        dealloc_transport_domain_in::transport_domain.set(&mut free, domain);
        let done = firmware.destroy(memory, qp, &free, &mut [0; dealloc_transport_domain_out::SIZE]);
        result = result.and(done);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_names_the_headers_that_requests_hold() {
        assert_eq!([0, 1, 2, 3].map(min_head), [0, 18, 58, 78]);
        assert_eq!([0, 18, 58, 78].map(inline_mode), [0, 1, 2, 3]);
        assert!(usize::from(min_head(u8::MAX)) <= crate::qp::MAX_FRAME_HEAD);
    }
}

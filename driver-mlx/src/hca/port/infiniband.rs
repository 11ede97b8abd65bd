//! An InfiniBand port: state, LID, GIDs and P_Keys, from vport contexts or by management datagrams
//! to the device itself.

use super::Port;
use super::speed::read_ptys;
use super::state::{InfiniBandLink, Link, LinkState, PORT, PortState, at_most, highest};
use crate::caps::PortType;
use crate::cmd::input;
use crate::error::Error;
use crate::hca::firmware::{Firmware, access_register};
use crate::hca::memory::Memory;
use crate::platform::Platform;
use crate::trace::TraceKind;
use crate::types::{Gid, Lid, Mtu, PKey};
use ib_types::{Guid, ServiceLevel};
use mlx5_prm::commands::*;
use mlx5_prm::contexts::hca_vport_context as vport;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::registers::{pmtu_reg, ptys_reg};
use mlx5_prm::value::RegisterId;

/// MAD_IFC: check neither M_Key nor B_Key, as the request comes from this side.
const NO_KEY_CHECK: u16 = 3;
/// `ptys_reg.proto_mask`: InfiniBand.
const INFINIBAND: u32 = 1;
/// Mb/s of a lane by the bits of `ptys_reg.ib_proto_oper`: SDR, DDR, QDR, FDR10, FDR, EDR, HDR, NDR,
/// XDR.
const LANE_SPEEDS: [u32; 9] = [2_500, 5_000, 10_000, 10_000, 14_000, 25_000, 50_000, 100_000, 200_000];
/// MTU of a link that reports none: subnet managers set 2048 bytes or more by default, and smaller
/// packets cost as much work each.
const ASSUMED_MTU: Mtu = Mtu::B2048;
/// Bytes of a management datagram, and offset of a subnet management attribute in it (IBTA 1.3, 14.2.1.1).
const MAD: usize = 256;
const ATTRIBUTE: usize = 64;
/// Subnet management attributes (IBTA 1.3, 14.2.5).
const NODE_INFO: u16 = 0x11;
const GUID_INFO: u16 = 0x14;
const PORT_INFO: u16 = 0x15;
const P_KEY_TABLE: u16 = 0x16;

/// `pkey_index` that queries all entries, and the most entries that one such query returns.
const WHOLE_TABLE: u16 = 0xffff;
const PKEYS_AT_ONCE: usize = 128;

impl LinkState {
    /// InfiniBand's codes. A state without a name is no state in which data flows.
    const fn from_code(code: u64) -> Self {
        match code {
            2 => Self::Init,
            3 => Self::Armed,
            4 => Self::Active,
            _ => Self::Down,
        }
    }
}

/// Speed of a PortInfo's link in Mb/s: `LinkWidthActive`, `LinkSpeedActive` and
/// `LinkSpeedExtActive`, which counts if it is not 0 (IBTA 1.3, 14.2.5.6).
fn link_speed(info: &[u8; ATTRIBUTE]) -> u32 {
    let field = |at| number::<1>(info, at) as u32;
    let width = highest(field(31), &[1, 4, 8, 12, 2]);
    let lane = match field(62) >> 4 {
        0 => highest(field(35) >> 4, &LANE_SPEEDS[..3]),
        extended => highest(extended, &LANE_SPEEDS[4..]),
    };
    width * lane
}

/// `NeighborMTU` of a PortInfo.
fn neighbor_mtu(info: &[u8; ATTRIBUTE]) -> Mtu {
    Mtu::from_code((number::<1>(info, 36) >> 4) as u8).unwrap_or(Mtu::B256)
}

/// A LID; cards say 0xffff for one that was never set.
fn base_lid(value: u64) -> Lid {
    Lid::new(if value == 0xffff { 0 } else { value as u16 })
}

/// A big-endian number of `N` bytes at `at`; callers stay inside.
fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    bytes.iter().skip(at).take(N).fold(0, |value, byte| value << 8 | u64::from(*byte))
}

impl Port {
    /// As [`Hca::port`](crate::Hca::port), of an InfiniBand port.
    pub(super) fn infiniband_state<P: Platform>(
        &mut self,
        firmware: &mut Firmware<'_, P>,
        memory: &mut Memory<'_>,
    ) -> Result<PortState, Error> {
        if firmware.caps().ib_virt { self.by_context(firmware, memory) } else { by_mad(firmware, memory) }
    }

    fn by_context<P: Platform>(
        &mut self,
        firmware: &mut Firmware<'_, P>,
        memory: &mut Memory<'_>,
    ) -> Result<PortState, Error> {
        let mut query = input::<{ query_hca_vport_context_in::SIZE }>(Opcode::QUERY_HCA_VPORT_CONTEXT, 0);
        if firmware.caps().num_ports == 2 {
            query_hca_vport_context_in::port_num.set(&mut query, PORT);
        }
        let mut out = [0; query_hca_vport_context_out::SIZE];
        firmware.exec(memory, &query, &mut out)?;
        let context = query_hca_vport_context_out::hca_vport_context.of(&out);
        let (mtu, speed) = (self.link_mtu(firmware, memory)?, read_link_speed(firmware, memory)?);
        let link = InfiniBandLink {
            lid: base_lid(vport::lid.get(context)),
            lmc: vport::lmc.get(context) as u8,
            sm_lid: base_lid(vport::sm_lid.get(context)),
            sm_sl: ServiceLevel::new(vport::sm_sl.get(context) as u8),
            subnet_timeout: vport::subnet_timeout.get(context) as u8,
            grh_required: vport::grh_required.is_set(context),
            gid_prefix: own_gid(firmware, memory, 0)?.prefix(),
            capability_mask: vport::cap_mask1.get32(context),
        };
        Ok(PortState {
            // State of the function's own port, which may differ from the card's.
            state: LinkState::from_code(vport::vport_state.get(context)),
            mtu,
            speed,
            port_guid: Guid::new(vport::port_guid.get(context)),
            node_guid: Guid::new(vport::node_guid.get(context)),
            link: Link::InfiniBand(link),
        })
    }

    /// The MTU in force, by PMTU or from the function's own management agent. A virtual function may
    /// have access to neither: then [`ASSUMED_MTU`], which the trace reports.
    fn link_mtu<P: Platform>(
        &mut self,
        firmware: &mut Firmware<'_, P>,
        memory: &mut Memory<'_>,
    ) -> Result<Mtu, Error> {
        let mut register = [0; pmtu_reg::SIZE];
        pmtu_reg::local_port.set(&mut register, PORT);
        match access_register::<{ 16 + pmtu_reg::SIZE }, P>(
            firmware,
            memory,
            RegisterId::PMTU,
            false,
            &mut register,
        ) {
            Ok(()) => return Ok(at_most(pmtu_reg::oper_mtu.get32(&register))),
            Err(Error::Command(_)) => {}
            Err(error) => return Err(error),
        }
        match subnet_get(firmware, memory, PORT_INFO, PORT) {
            Ok(info) => Ok(neighbor_mtu(&info)),
            Err(Error::Command(_) | Error::BadAnswer { .. }) => {
                if !self.mtu_is_assumed {
                    self.mtu_is_assumed = true;
                    let now = firmware.now();
                    firmware.log_mut().trace(now, TraceKind::MtuAssumed(ASSUMED_MTU));
                }
                Ok(ASSUMED_MTU)
            }
            Err(error) => Err(error),
        }
    }
}

/// The speed of the link in Mb/s by PTYS; 0 where the function may not read that.
fn read_link_speed<P: Platform>(
    firmware: &mut Firmware<'_, P>,
    memory: &mut Memory<'_>,
) -> Result<u32, Error> {
    let Some(register) = read_ptys(firmware, memory, INFINIBAND)? else { return Ok(0) };
    let lanes = [1, 2, 4, 8, 12];
    let width = highest(ptys_reg::ib_link_width_oper.get32(&register), &lanes);
    Ok(width * highest(ptys_reg::ib_proto_oper.get32(&register), &LANE_SPEEDS))
}

fn by_mad<P: Platform>(firmware: &mut Firmware<'_, P>, memory: &mut Memory<'_>) -> Result<PortState, Error> {
    let info = subnet_get(firmware, memory, PORT_INFO, PORT)?;
    let node = subnet_get(firmware, memory, NODE_INFO, 0)?;
    let link = InfiniBandLink {
        lid: base_lid(number::<2>(&info, 16)),
        lmc: number::<1>(&info, 34) as u8 & 7,
        sm_lid: base_lid(number::<2>(&info, 18)),
        sm_sl: ServiceLevel::new(number::<1>(&info, 36) as u8 & 0xf),
        subnet_timeout: number::<1>(&info, 51) as u8 & 0x1f,
        grh_required: false,
        gid_prefix: number::<8>(&info, 8),
        capability_mask: number::<4>(&info, 20) as u32,
    };
    Ok(PortState {
        state: LinkState::from_code(number::<1>(&info, 32) & 0xf),
        mtu: neighbor_mtu(&info),
        speed: link_speed(&info),
        port_guid: Guid::new(number::<8>(&node, 20)),
        node_guid: Guid::new(number::<8>(&node, 12)),
        link: Link::InfiniBand(link),
    })
}

/// As [`Hca::gid`](crate::Hca::gid).
pub(in crate::hca) fn gid<P: Platform>(
    port: &Port,
    firmware: &mut Firmware<'_, P>,
    memory: &mut Memory<'_>,
    index: u16,
) -> Result<Gid, Error> {
    match firmware.caps().port_type {
        PortType::InfiniBand => own_gid(firmware, memory, index),
        PortType::Ethernet => port.roce_gid(index),
    }
}

/// An entry of an InfiniBand port's GID table.
fn own_gid<P: Platform>(
    firmware: &mut Firmware<'_, P>,
    memory: &mut Memory<'_>,
    index: u16,
) -> Result<Gid, Error> {
    let limit = u64::from(firmware.caps().gid_table_size);
    if u64::from(index) >= limit {
        return Err(Error::Limit { what: "gid_table_size", asked: u64::from(index), limit });
    }
    if !firmware.caps().ib_virt {
        let prefix = number::<8>(&subnet_get(firmware, memory, PORT_INFO, PORT)?, 8);
        let block = subnet_get(firmware, memory, GUID_INFO, u32::from(index / 8))?;
        return Ok(Gid::new(prefix, number::<8>(&block, usize::from(index % 8) * 8)));
    }
    let mut query = input::<{ query_hca_vport_gid_in::SIZE }>(Opcode::QUERY_HCA_VPORT_GID, 0);
    if firmware.caps().num_ports == 2 {
        query_hca_vport_gid_in::port_num.set(&mut query, PORT);
    }
    query_hca_vport_gid_in::gid_index.set(&mut query, index);
    let mut out = [0; query_hca_vport_gid_out::gid.len_with(1)];
    firmware.exec(memory, &query, &mut out)?;
    let mut gid = Gid::default();
    gid.0.iter_mut().zip(&out[query_hca_vport_gid_out::gid.offset..]).for_each(|(to, from)| *to = *from);
    Ok(gid)
}

/// The P_Key table of Ethernet ports, which is fixed (IBTA A16.5.2).
fn fixed_pkeys<P: Platform>(firmware: &Firmware<'_, P>) -> Option<&'static [PKey]> {
    match firmware.caps().port_type {
        PortType::InfiniBand => None,
        PortType::Ethernet => Some(&[PKey::DEFAULT]),
    }
}

/// As [`Hca::pkey`](crate::Hca::pkey).
pub(in crate::hca) fn pkey<P: Platform>(
    firmware: &mut Firmware<'_, P>,
    memory: &mut Memory<'_>,
    index: u16,
) -> Result<PKey, Error> {
    if let Some(keys) = fixed_pkeys(firmware) {
        let limit = keys.len() as u64;
        let found = keys.get(usize::from(index)).copied();
        return found.ok_or(Error::Limit { what: "pkey_table_size", asked: u64::from(index), limit });
    }
    let limit = u64::from(firmware.caps().pkey_table_size);
    if u64::from(index) >= limit {
        return Err(Error::Limit { what: "pkey_table_size", asked: u64::from(index), limit });
    }
    if !firmware.caps().ib_virt {
        let block = subnet_get(firmware, memory, P_KEY_TABLE, u32::from(index / 32))?;
        return Ok(PKey::new(number::<2>(&block, usize::from(index % 32) * 2) as u16));
    }
    let mut query = input::<{ query_hca_vport_pkey_in::SIZE }>(Opcode::QUERY_HCA_VPORT_PKEY, 0);
    if firmware.caps().num_ports == 2 {
        query_hca_vport_pkey_in::port_num.set(&mut query, PORT);
    }
    query_hca_vport_pkey_in::pkey_index.set(&mut query, index);
    let mut out = [0; query_hca_vport_pkey_out::pkey.len_with(1)];
    firmware.exec(memory, &query, &mut out)?;
    Ok(PKey::new(number::<4>(&out, query_hca_vport_pkey_out::pkey.offset) as u16))
}

/// As [`Hca::pkeys`](crate::Hca::pkeys).
pub(in crate::hca) fn pkeys<P: Platform>(
    firmware: &mut Firmware<'_, P>,
    memory: &mut Memory<'_>,
    keys: &mut [PKey],
) -> Result<usize, Error> {
    if let Some(fixed) = fixed_pkeys(firmware) {
        keys.iter_mut().zip(fixed).for_each(|(to, from)| *to = *from);
        return Ok(keys.len().min(fixed.len()));
    }
    let entries = firmware.caps().pkey_table_size as usize;
    let count = keys.len().min(entries);
    let keys = keys.get_mut(..count).unwrap_or_default();
    if firmware.caps().ib_virt && entries <= PKEYS_AT_ONCE {
        let mut query = input::<{ query_hca_vport_pkey_in::SIZE }>(Opcode::QUERY_HCA_VPORT_PKEY, 0);
        if firmware.caps().num_ports == 2 {
            query_hca_vport_pkey_in::port_num.set(&mut query, PORT);
        }
        query_hca_vport_pkey_in::pkey_index.set(&mut query, WHOLE_TABLE);
        let mut out = [0; query_hca_vport_pkey_out::pkey.len_with(PKEYS_AT_ONCE)];
        firmware.exec(memory, &query, &mut out)?;
        for (index, key) in keys.iter_mut().enumerate() {
            *key = PKey::new(number::<4>(&out, query_hca_vport_pkey_out::pkey.offset + 4 * index) as u16);
        }
        return Ok(count);
    }
    for (index, key) in keys.iter_mut().enumerate() {
        *key = pkey(firmware, memory, index as u16)?;
    }
    Ok(count)
}

/// An attribute of the device's own subnet management agent (IBTA 1.3, 14.2.1): SubnGet through MAD_IFC.
fn subnet_get<P: Platform>(
    firmware: &mut Firmware<'_, P>,
    memory: &mut Memory<'_>,
    attribute: u16,
    modifier: u32,
) -> Result<[u8; ATTRIBUTE], Error> {
    let mut command = input::<{ mad_ifc_in::SIZE }>(Opcode::MAD_IFC, NO_KEY_CHECK);
    mad_ifc_in::port.set(&mut command, PORT);
    let mad = mad_ifc_in::mad.of_mut(&mut command);
    let ([high, low], [a, b, c, d]) = (attribute.to_be_bytes(), modifier.to_be_bytes());
    // Base version 1, LID-routed subnet management class, class version 1, method Get.
    let head = [1, 0x01, 1, 0x01, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, high, low, 0, 0, a, b, c, d];
    mad.iter_mut().zip(head).for_each(|(to, byte)| *to = byte);
    let mut out = [0; mad_ifc_out::SIZE];
    firmware.exec(memory, &command, &mut out)?;
    let response: &[u8] = mad_ifc_out::response_mad_packet.of(&out);
    let status = number::<2>(response, 4) & 0x7fff;
    if response.len() != MAD || response[3] != 0x81 || status != 0 {
        return Err(Error::BadAnswer {
            step: firmware.step(),
            field: "response_mad_packet.status",
            value: status,
        });
    }
    let mut value = [0; ATTRIBUTE];
    value.copy_from_slice(&response[ATTRIBUTE..2 * ATTRIBUTE]);
    Ok(value)
}

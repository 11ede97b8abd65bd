//! An Ethernet port: MAC address, frame size and state, by commands that physical and virtual
//! functions may use.

use super::speed::read_ptys;
use super::state::{EthernetLink, Link, LinkState, PORT, PortState, at_most, highest};
use crate::cmd::{Tail, input};
use crate::error::Error;
use crate::hca::firmware::{Firmware, access_register, optional};
use crate::hca::memory::Memory;
use crate::platform::Platform;
use crate::types::MacAddress;
use ib_types::Guid;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::{mac_address_layout, nic_vport_context as vport};
use mlx5_prm::opcode::Opcode;
use mlx5_prm::registers::{pmtu_reg, ptys_reg};
use mlx5_prm::value::{NicVportList, RegisterId};

/// Bytes of a frame besides its payload, as the device counts: header, VLAN tag, check sequence.
const FRAME_OVERHEAD: u16 = 14 + 4 + 4;
/// Bytes of RoCE v2 besides the payload of a packet: IPv6 40, UDP 8, BTH 12, longest extended
/// header 28, immediate or ICRC 4 and 4. Linux, include/rdma/ib_addr.h, iboe_get_mtu.
const ROCE_OVERHEAD: u32 = 96;
/// `ptys_reg.proto_mask`: Ethernet.
const ETHERNET: u32 = 1 << 2;
/// Mb/s by the bits of `ptys_reg.eth_proto_oper` (Linux, include/linux/mlx5/port.h).
const SPEEDS: [u32; 32] = [
    1_000, 1_000, 10_000, 10_000, 10_000, 20_000, 40_000, 40_000, 56_000, 0, 0, 0, 10_000, 10_000, 10_000,
    40_000, 40_000, 0, 50_000, 0, 100_000, 100_000, 100_000, 100_000, 100, 1_000, 10_000, 25_000, 25_000,
    25_000, 50_000, 50_000,
];
/// The same of `ext_eth_proto_oper`.
const EXTENDED_SPEEDS: [u32; 21] = [
    100, 1_000, 0, 5_000, 10_000, 40_000, 25_000, 50_000, 50_000, 100_000, 100_000, 100_000, 200_000,
    200_000, 200_000, 400_000, 400_000, 400_000, 0, 800_000, 800_000,
];

/// A vport context.
struct Vport {
    mac: MacAddress,
    port_guid: Guid,
    node_guid: Guid,
    /// Largest frame in bytes; 0 if the port's counts.
    frame: u16,
    min_inline_mode: u8,
}

/// Returns `nic_vport_context.min_wqe_inline_mode`, which the e-switch sets for virtual functions.
pub(in crate::hca) fn min_inline_mode<P: Platform>(
    firmware: &mut Firmware<'_, P>,
    memory: &mut Memory<'_>,
) -> Result<u8, Error> {
    query_vport(firmware, memory).map(|vport| vport.min_inline_mode)
}

/// QUERY_NIC_VPORT_CONTEXT of the function itself.
fn query_vport<P: Platform>(firmware: &mut Firmware<'_, P>, memory: &mut Memory<'_>) -> Result<Vport, Error> {
    let query = input::<{ query_nic_vport_context_in::SIZE }>(Opcode::QUERY_NIC_VPORT_CONTEXT, 0);
    let mut out = [0; query_nic_vport_context_out::SIZE];
    firmware.exec(memory, &query, &mut out)?;
    let context = query_nic_vport_context_out::nic_vport_context.of(&out);
    let address = vport::permanent_address.of(context);
    Ok(Vport {
        mac: MacAddress::from_halves(
            mac_address_layout::mac_addr_47_32.get(address) as u16,
            mac_address_layout::mac_addr_31_0.get32(address),
        ),
        port_guid: Guid::new(vport::port_guid.get(context)),
        node_guid: Guid::new(vport::node_guid.get(context)),
        frame: vport::mtu.get(context) as u16,
        min_inline_mode: vport::min_wqe_inline_mode.get(context) as u8,
    })
}

/// MODIFY_NIC_VPORT_CONTEXT: the function receives frames to these addresses of one kind.
pub(super) fn set_addresses<P: Platform>(
    firmware: &mut Firmware<'_, P>,
    memory: &mut Memory<'_>,
    kind: NicVportList,
    count: usize,
    address: &dyn Fn(usize) -> MacAddress,
) -> Result<(), Error> {
    let mut modify = input::<{ modify_nic_vport_context_in::SIZE }>(Opcode::MODIFY_NIC_VPORT_CONTEXT, 0);
    let select = modify_nic_vport_context_in::field_select.of_mut(&mut modify);
    modify_nic_vport_field_select::addresses_list.set(select, true);
    let context = modify_nic_vport_context_in::nic_vport_context.of_mut(&mut modify);
    vport::allowed_list_type.set(context, kind.0);
    vport::allowed_list_size.set(context, count as u32);
    let entry = |index| {
        let (high, low) = address(index).halves();
        u64::from(high) << 32 | u64::from(low)
    };
    let tail = Tail { count, entry: &entry };
    firmware.exec_with(memory, &modify, tail, &mut [0; modify_nic_vport_context_out::SIZE])
}

/// MODIFY_NIC_VPORT_CONTEXT with the fields that `select` and `set` name.
pub(super) fn modify_vport<P: Platform>(
    firmware: &mut Firmware<'_, P>,
    memory: &mut Memory<'_>,
    select: impl FnOnce(&mut [u8]),
    set: impl FnOnce(&mut [u8]),
) -> Result<(), Error> {
    let mut modify = input::<{ modify_nic_vport_context_in::SIZE }>(Opcode::MODIFY_NIC_VPORT_CONTEXT, 0);
    select(modify_nic_vport_context_in::field_select.of_mut(&mut modify));
    set(modify_nic_vport_context_in::nic_vport_context.of_mut(&mut modify));
    firmware.exec(memory, &modify, &mut [0; modify_nic_vport_context_out::SIZE])
}

/// Reads PMTU. Returns `None` for a function that has no access to it.
fn read_pmtu<P: Platform>(
    firmware: &mut Firmware<'_, P>,
    memory: &mut Memory<'_>,
) -> Result<Option<[u8; pmtu_reg::SIZE]>, Error> {
    if !firmware.config().physical_function {
        return Ok(None);
    }
    let mut register = [0; pmtu_reg::SIZE];
    pmtu_reg::local_port.set(&mut register, PORT);
    let read = access_register::<{ 16 + pmtu_reg::SIZE }, P>(
        firmware,
        memory,
        RegisterId::PMTU,
        false,
        &mut register,
    );
    Ok(optional(read)?.then_some(register))
}

/// Reads the MAC address of the function and sets its frame size.
pub(super) fn start<P: Platform>(
    firmware: &mut Firmware<'_, P>,
    memory: &mut Memory<'_>,
) -> Result<MacAddress, Error> {
    let mac = query_vport(firmware, memory)?.mac;
    set_frame_size(firmware, memory)?;
    Ok(mac)
}

/// Sets the largest frame: of the port, which its physical function owns, then of the function.
fn set_frame_size<P: Platform>(firmware: &mut Firmware<'_, P>, memory: &mut Memory<'_>) -> Result<(), Error> {
    let mut frame = firmware.config().ethernet_mtu.saturating_add(FRAME_OVERHEAD);
    if let Some(mut register) = read_pmtu(firmware, memory)? {
        frame = frame.min(pmtu_reg::max_mtu.get(&register) as u16);
        if pmtu_reg::admin_mtu.get(&register) != u64::from(frame) {
            register = [0; pmtu_reg::SIZE];
            pmtu_reg::local_port.set(&mut register, PORT);
            pmtu_reg::admin_mtu.set(&mut register, frame);
            let written = access_register::<{ 16 + pmtu_reg::SIZE }, P>(
                firmware,
                memory,
                RegisterId::PMTU,
                true,
                &mut register,
            );
            optional(written)?;
        }
    }
    let modified = modify_vport(
        firmware,
        memory,
        |select| modify_nic_vport_field_select::mtu.set(select, true),
        |context| vport::mtu.set(context, frame),
    );
    // A virtual function may have to live with its hypervisor's choice.
    optional(modified).map(|_| ())
}

/// As [`Hca::port`](crate::Hca::port), of an Ethernet port.
pub(super) fn state<P: Platform>(
    firmware: &mut Firmware<'_, P>,
    memory: &mut Memory<'_>,
) -> Result<PortState, Error> {
    let query = input::<{ query_vport_state_in::SIZE }>(Opcode::QUERY_VPORT_STATE, 0);
    let mut out = [0; query_vport_state_out::SIZE];
    firmware.exec(memory, &query, &mut out)?;
    let up = query_vport_state_out::state.is_set(&out);
    let own = query_vport(firmware, memory)?;
    // The port's frame size counts too: another function may have set it.
    let port = read_pmtu(firmware, memory)?.map_or(0, |register| pmtu_reg::oper_mtu.get(&register) as u16);
    let frame = match (own.frame, port) {
        (0, port) => port,
        (own, 0) => own,
        (own, port) => own.min(port),
    };
    let mtu = frame.saturating_sub(FRAME_OVERHEAD);
    Ok(PortState {
        state: if up { LinkState::Active } else { LinkState::Down },
        mtu: at_most(u32::from(mtu).saturating_sub(ROCE_OVERHEAD)),
        speed: if up { read_speed(firmware, memory)? } else { 0 },
        port_guid: own.port_guid,
        node_guid: own.node_guid,
        link: Link::Ethernet(EthernetLink { mac: own.mac, mtu }),
    })
}

/// The speed of the link in Mb/s by PTYS; 0 where the function may not read that.
fn read_speed<P: Platform>(firmware: &mut Firmware<'_, P>, memory: &mut Memory<'_>) -> Result<u32, Error> {
    let Some(register) = read_ptys(firmware, memory, ETHERNET)? else { return Ok(0) };
    Ok(match ptys_reg::ext_eth_proto_oper.get32(&register) {
        0 => highest(ptys_reg::eth_proto_oper.get32(&register), &SPEEDS),
        extended => highest(extended, &EXTENDED_SPEEDS),
    })
}

//! The port: management datagrams, vport context, tables, registers, counters.

use super::guest::{Failed, Guest, Input};
use crate::profile::Profile;
use ib_mgmt::mad::{attr, class, method, status};
use ib_mgmt::smp::{GuidInfo, NodeInfo, PKeyTable, PortInfo, Smp};
use mlx5_prm::Field;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::hca_vport_context;
use mlx5_prm::event::{EventType, PortChange};
use mlx5_prm::opcode::Opcode;
use mlx5_prm::registers::{paos_reg, ptys_reg};
use mlx5_prm::status::CmdStatus;
use mlx5_prm::value::PortState;

fn mad(guest: &mut Guest, smp: &Smp) -> Result<Smp, Failed> {
    let mut input = Input::new(Opcode::MAD_IFC).op_mod(3).set(mad_ifc_in::port, 1);
    mad_ifc_in::mad.of_mut(&mut input.0).copy_from_slice(smp.as_bytes());
    let output = guest.command(&input)?;
    Ok(Smp::from_bytes(mad_ifc_out::response_mad_packet.of(&output).try_into().unwrap()))
}

fn get(guest: &mut Guest, attribute: u16, modifier: u32) -> Smp {
    let reply = mad(guest, &Smp::lid_routed(method::GET, attribute, modifier, 77)).unwrap();
    assert_eq!((reply.method(), reply.tid()), (method::GET_RESP, 77));
    reply
}

fn set(guest: &mut Guest, attribute: u16, modifier: u32, data: &[u8; 64]) -> u16 {
    let mut request = Smp::lid_routed(method::SET, attribute, modifier, 5);
    request.set_data(data);
    mad(guest, &request).unwrap().status()
}

#[test]
fn the_agent_tells_who_it_is() {
    let mut guest = Guest::up(Profile::node(2));
    let info = NodeInfo::from_slice(get(&mut guest, attr::NODE_INFO, 0).data()).unwrap();
    assert_eq!(
        (info.node_type(), info.num_ports(), info.device_id(), info.vendor_id()),
        (1, 1, 0x1017, 0x2c9)
    );
    assert_eq!(info.port_guid(), Profile::port_guid_of(2));
    let text = get(&mut guest, attr::NODE_DESCRIPTION, 0);
    assert!(text.data().starts_with(b"emulated ConnectX-5 2\0"));
    let guids = GuidInfo::from_bytes(get(&mut guest, attr::GUID_INFO, 0).data());
    assert_eq!(guids.0, [Profile::port_guid_of(2), 0, 0, 0, 0, 0, 0, 0]);
    let keys = PKeyTable::from_bytes(get(&mut guest, attr::PKEY_TABLE, 0).data());
    assert_eq!(keys.0[..2], [0xffff, 0]);
    assert_eq!(get(&mut guest, attr::PKEY_TABLE, 4).status(), status::INVALID_FIELD, "four blocks of 32");
    assert_eq!(get(&mut guest, attr::SM_INFO, 0).status(), status::ATTR_NOT_SUPPORTED);
    let response = Smp::lid_routed(method::GET_RESP, attr::NODE_INFO, 0, 1);
    assert_eq!(mad(&mut guest, &response), Err(Failed::Status(CmdStatus::BAD_PKT)));
    let mut communication = Smp::lid_routed(method::GET, attr::NODE_INFO, 0, 1);
    communication.set_mgmt_class(class::CM);
    assert_eq!(mad(&mut guest, &communication).unwrap().status(), status::BAD_VERSION);
}

#[test]
fn a_subnet_manager_brings_the_port_up() {
    let mut guest = Guest::up(Profile::node(0));
    let ring = guest.page();
    guest.create_eq(ring, 6, 0, 1 << EventType::PORT_CHANGE.0).unwrap();
    let mut info = *PortInfo::from_bytes(*get(&mut guest, attr::PORT_INFO, 1).data()).set_lid(7);
    assert_eq!(info.port_state(), PortState::DOWN.0, "no cable");
    info.set_port_state(PortState::ARMED.0).set_port_phys_state(0);
    assert_eq!(set(&mut guest, attr::PORT_INFO, 1, info.as_bytes()) & 0x1c, status::INVALID_FIELD);
    guest.hca.device.port.set_cable(true);
    guest.poll();

    info.set_master_sm_lid(1).set_neighbor_mtu(4).set_subnet_timeout(16).set_client_reregister(true);
    for state in [PortState::ARMED, PortState::ACTIVE] {
        info.set_port_state(state.0);
        assert_eq!(set(&mut guest, attr::PORT_INFO, 1, info.as_bytes()), status::OK);
        info.set_client_reregister(false);
    }
    info.set_port_state(PortState::ARMED.0);
    assert_eq!(
        set(&mut guest, attr::PORT_INFO, 1, info.as_bytes()) & 0x1c,
        status::INVALID_FIELD,
        "no way back"
    );
    let now = PortInfo::from_bytes(*get(&mut guest, attr::PORT_INFO, 1).data());
    assert_eq!((now.lid(), now.port_state(), now.neighbor_mtu(), now.master_sm_lid()), (7, 4, 4, 1));
    assert_eq!(guest.hca.device.port.mtu_bytes(), 2048);

    let kinds: Vec<u8> = (0..8)
        .map(|i| guest.memory.bytes(ring + i * 64, 64))
        .take_while(|event| event[63] == 0)
        .map(|event| event[3])
        .collect();
    let expected = [PortChange::INITIALIZED, PortChange::LID, PortChange::CLIENT_REREG, PortChange::ACTIVE];
    assert_eq!(kinds, expected.map(|change| change.0));

    let output = guest.command(&Input::new(Opcode::QUERY_HCA_VPORT_CONTEXT)).unwrap();
    let context = query_hca_vport_context_out::hca_vport_context.of(&output);
    assert_eq!(hca_vport_context::lid.get32(context), 7);
    assert_eq!(hca_vport_context::vport_state.get32(context), 4);
    assert_eq!(hca_vport_context::port_physical_state.get32(context), 5);
    assert_eq!(hca_vport_context::sm_lid.get32(context), 1);
    assert_eq!(hca_vport_context::has_smi.get32(context), 1);
    assert_eq!(hca_vport_context::port_guid.get(context), Profile::port_guid_of(0));
}

#[test]
fn a_wrong_management_key_is_counted_and_not_answered() {
    let mut guest = Guest::up(Profile::node(0));
    guest.hca.device.port.m_key = 0x1234;
    guest.hca.device.port.m_key_protect = 2;
    let mut request = *Smp::lid_routed(method::GET, attr::NODE_INFO, 0, 1).as_bytes();
    assert_eq!(guest.hca.device.port.agent(&request, false, 0), None);
    assert_eq!(guest.hca.device.port.m_key_violations, 1);
    request = *Smp::from_bytes(request).set_m_key(0x1234).as_bytes();
    assert!(guest.hca.device.port.agent(&request, false, 0).is_some());
    let mut input = Input::new(Opcode::MAD_IFC).set(mad_ifc_in::port, 1);
    request = *Smp::from_bytes(request).set_m_key(0).as_bytes();
    mad_ifc_in::mad.of_mut(&mut input.0).copy_from_slice(&request);
    assert_eq!(guest.status(&input), CmdStatus::BAD_PKT);
    assert!(guest.command(&input.clone().op_mod(1)).is_ok(), "the host may read whatever the key");
    let mut info = Smp::lid_routed(method::GET, attr::PORT_INFO, 1, 1);
    mad_ifc_in::mad.of_mut(&mut input.0).copy_from_slice(info.as_bytes());
    let output = guest.command(&input.clone().op_mod(1)).unwrap();
    let shown = Smp::from_bytes(mad_ifc_out::response_mad_packet.of(&output).try_into().unwrap());
    assert_eq!(PortInfo::from_bytes(*shown.data()).m_key(), 0, "but not the key");
    info.set_method(method::SET);
    mad_ifc_in::mad.of_mut(&mut input.0).copy_from_slice(info.as_bytes());
    assert_eq!(guest.status(&input.op_mod(1)), CmdStatus::BAD_PKT, "nor set anything");
}

#[test]
fn gid_and_pkey_tables_are_read_whole_or_by_entry() {
    let mut guest = Guest::up(Profile::node(1));
    let all = Input::new(Opcode::QUERY_HCA_VPORT_GID).set(query_hca_vport_gid_in::gid_index, 0xffff);
    let output = guest.command_len(&all, 16 + 8 * 16).unwrap();
    assert_eq!(query_hca_vport_gid_out::gids_num.get32(&output), 8);
    let mut gid = [0; 16];
    gid[..8].copy_from_slice(&[0xfe, 0x80, 0, 0, 0, 0, 0, 0]);
    gid[8..].copy_from_slice(&Profile::port_guid_of(1).to_be_bytes());
    assert_eq!(output[16..32], gid);
    assert_eq!(guest.command_len(&all, 100), Err(Failed::Status(CmdStatus::BAD_OUTP_LEN)));
    let beyond = Input::new(Opcode::QUERY_HCA_VPORT_GID).set(query_hca_vport_gid_in::gid_index, 8);
    assert_eq!(guest.command_len(&beyond, 32), Err(Failed::Status(CmdStatus::BAD_PARAM)));
    let first = Input::new(Opcode::QUERY_HCA_VPORT_PKEY);
    assert_eq!(guest.command_len(&first, 20).unwrap()[16..], [0, 0, 0xff, 0xff]);
    let other = Input::new(Opcode::QUERY_HCA_VPORT_PKEY).set(query_hca_vport_pkey_in::vport_number, 1);
    assert_eq!(guest.command_len(&other, 20), Err(Failed::Status(CmdStatus::BAD_PARAM)));
}

#[test]
fn registers_of_the_port() {
    let mut guest = Guest::up(Profile::node(0));
    guest.hca.device.port.set_cable(true);
    let mut access = |id: u64, op_mod: u16, register: &[u8]| {
        let mut input =
            Input::new(Opcode::ACCESS_REG).op_mod(op_mod).set(access_register_in::register_id, id);
        input.0.extend_from_slice(register);
        guest.command_len(&input, 16 + register.len()).map(|output| output[16..].to_vec())
    };
    let mut paos = vec![0; paos_reg::SIZE];
    paos_reg::local_port.set(&mut paos, 1u8);
    let up = access(0x5006, 1, &paos).unwrap();
    assert_eq!((paos_reg::admin_status.get32(&up), paos_reg::oper_status.get32(&up)), (1, 1));
    paos_reg::ase.set(&mut paos, 1u8);
    paos_reg::admin_status.set(&mut paos, 2u8);
    assert_eq!(paos_reg::oper_status.get32(&access(0x5006, 0, &paos).unwrap()), 2);
    let mut ptys = vec![0; ptys_reg::SIZE];
    ptys_reg::local_port.set(&mut ptys, 1u8);
    ptys_reg::proto_mask.set(&mut ptys, 1u8);
    assert_eq!(ptys_reg::ib_proto_oper.get32(&access(0x5004, 1, &ptys).unwrap()), 0, "down");
    ptys_reg::proto_mask.set(&mut ptys, 4u8);
    assert_eq!(access(0x5004, 1, &ptys), Err(Failed::Status(CmdStatus::BAD_PARAM)), "no Ethernet");
    assert_eq!(access(0x902d, 1, &[0; 16]), Err(Failed::Status(CmdStatus::BAD_PARAM)), "no such register");
    assert_eq!(access(0x5006, 1, &[0; 8]), Err(Failed::Status(CmdStatus::BAD_INP_LEN)));
    assert_eq!(access(0x7004, 0, &[0x80; 16]), Err(Failed::Status(CmdStatus::BAD_PARAM)), "big-endian host");
    let text = access(0x6001, 1, &[0; 64]).unwrap();
    assert!(text.starts_with(b"emulated ConnectX-5 0"));
    let mut port_two = vec![0; 16];
    paos_reg::local_port.set(&mut port_two, 2u8);
    assert_eq!(access(0x5006, 1, &port_two), Err(Failed::Status(CmdStatus::BAD_PARAM)));
}

#[test]
fn capabilities_that_software_owns_can_be_set() {
    let mut guest = Guest::up(Profile::node(0));
    let modify = |select: u32, value: u32| {
        let mut input = Input::new(Opcode::MODIFY_HCA_VPORT_CONTEXT);
        let context = modify_hca_vport_context_in::hca_vport_context.of_mut(&mut input.0);
        hca_vport_context::cap_mask1_field_select.set(context, select);
        hca_vport_context::cap_mask1.set(context, value);
        input
    };
    let before = guest.hca.device.port.capability_mask;
    assert_eq!(guest.status(&modify(1 << 1, u32::MAX)), CmdStatus::OK);
    assert_eq!(guest.hca.device.port.capability_mask, before | 2, "only the selected bit");
    assert_eq!(guest.status(&modify(1 << 11, 0)), CmdStatus::BAD_PARAM);
}

#[test]
fn counters_count_and_clear() {
    let mut guest = Guest::up(Profile::node(0));
    let output = guest.command(&Input::new(Opcode::ALLOC_Q_COUNTER)).unwrap();
    let id = alloc_q_counter_out::counter_set_id.get32(&output);
    guest.hca.device.objects.q_counters.bump(id as u8, query_q_counter_out::out_of_sequence);
    guest.hca.device.objects.q_counters.bump(id as u8 + 1, query_q_counter_out::out_of_sequence);
    let query = |clear: u64| {
        Input::new(Opcode::QUERY_Q_COUNTER)
            .set(query_q_counter_in::counter_set_id, u64::from(id))
            .set(query_q_counter_in::clear, clear)
    };
    let read = |guest: &mut Guest, clear| {
        let output = guest.command(&query(clear)).unwrap();
        query_q_counter_out::out_of_sequence.get32(&output)
    };
    assert_eq!((read(&mut guest, 1), read(&mut guest, 0)), (1, 0));

    guest.hca.device.port.counters.xmit_packets = 5;
    guest.hca.device.port.counters.rcv_data = 1 << 40;
    guest.hca.device.port.counters.multicast_rcv_packets = 9;
    let mut request = Smp::lid_routed(method::GET, 0x12, 0, 3);
    request.set_mgmt_class(class::PERF_MGMT);
    let mut data = [0; 64];
    data[1] = 1;
    request.set_data(&data);
    let reply = mad(&mut guest, &request).unwrap();
    assert_eq!(Field::bits(32, 31, 0).get32(reply.data()), 5);
    assert_eq!(Field::bits(28, 31, 0).get32(reply.data()), u32::MAX, "32-bit counters stop at the end");
    request.set_attr_id(0x1d);
    let reply = mad(&mut guest, &request).unwrap();
    assert_eq!(Field::quad(16).get(reply.data()), 1 << 40);
    assert_eq!(Field::quad(128).get(reply.as_bytes()), 9);
    request.set_method(method::SET);
    data[2..4].copy_from_slice(&[0xff, 0xff]);
    request.set_data(&data);
    assert!(mad(&mut guest, &request).is_ok());
    assert_eq!(guest.hca.device.port.counters.rcv_data, 0);
    data[1] = 2;
    request.set_data(&data);
    assert_eq!(mad(&mut guest, &request).unwrap().status(), status::INVALID_FIELD, "port 2");
}

//! The registers by which tools and drivers find out what a card is and can do.

use super::guest::{Guest, Input};
use crate::card::{CONNECTX_7, Card};
use crate::profile::Profile;
use mlx5_prm::commands::{access_register_in, access_register_out};
use mlx5_prm::management::*;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::CmdStatus;
use mlx5_prm::value::RegisterId;

fn enabled(card: &'static Card) -> Guest {
    let mut guest = Guest::new(Profile::of(card, 0));
    assert_eq!(guest.status(&Input::new(Opcode::ENABLE_HCA)), CmdStatus::OK);
    guest
}

/// Writes or reads the register `id`; its content afterwards.
pub(super) fn access(
    guest: &mut Guest,
    id: RegisterId,
    write: bool,
    register: &[u8],
) -> Result<Vec<u8>, CmdStatus> {
    let mut input = Input::new(Opcode::ACCESS_REG)
        .op_mod(u16::from(!write))
        .set(access_register_in::register_id, id.0.into());
    input.0.extend_from_slice(register);
    let at = access_register_out::register_data.offset;
    guest.command_len(&input, at + register.len()).map(|output| output[at..].to_vec()).map_err(|failed| {
        match failed {
            super::guest::Failed::Status(status) => status,
            other => panic!("{other:?}"),
        }
    })
}

fn read<const N: usize>(guest: &mut Guest, id: RegisterId, fill: impl FnOnce(&mut [u8; N])) -> Vec<u8> {
    let mut register = [0; N];
    fill(&mut register);
    access(guest, id, false, &register).expect("readable")
}

/// The numbers of the bits in a mask whose highest come first.
fn bits(mask: &[u8]) -> Vec<u16> {
    (0..128).filter(|bit| mask[15 - usize::from(bit / 8)] >> (bit % 8) & 1 == 1).collect()
}

#[test]
fn a_card_says_which_it_is() {
    for card in Card::ALL {
        let mut guest = enabled(card);
        let (major, minor, sub_minor) = card.firmware;
        let mgir = read::<{ mgir_reg::SIZE }>(&mut guest, RegisterId::MGIR, |_| {});
        assert_eq!(mgir_reg::device_id.get32(&mgir), u32::from(card.device_id));
        assert_eq!(mgir_reg::hw_dev_id.get32(&mgir), card.hardware_id);
        let version = [mgir_reg::extended_major, mgir_reg::extended_minor, mgir_reg::extended_sub_minor];
        assert_eq!(version.map(|field| field.get32(&mgir)), [major, minor, sub_minor]);
        assert!(mgir_reg::psid.of(&mgir).starts_with(card.psid.as_bytes()));
        let mcqs = read::<{ mcqs_reg::SIZE }>(&mut guest, RegisterId::MCQS, |_| {});
        assert!(mcqs_reg::last_index_flag.is_set(&mcqs));
        assert_eq!((mcqs_reg::identifier.get32(&mcqs), mcqs_reg::component_status.get32(&mcqs)), (1, 1));
        // As `devlink dev info` asks.
        let mcqi = read::<{ mcqi_reg::SIZE }>(&mut guest, RegisterId::MCQI, |register| {
            mcqi_reg::info_type.set(register, 1u8);
            mcqi_reg::data_size.set(register, 124u8);
        });
        let data = mcqi_reg::data.of(&mcqi);
        assert_eq!(mcqi_version::version.get32(data), major << 24 | minor << 16 | sub_minor);
        let text = format!("{major}.{minor}.{sub_minor:04}\0");
        assert_eq!(mcqi_version::version_string_length.get32(data), text.len() as u32);
        assert!(mcqi_version::version_string.of(data).starts_with(text.as_bytes()));
        // In parts, and with nothing but what is asked for.
        let mut index = [0; mcqi_reg::data.offset];
        mcqi_reg::info_type.set(&mut index, 1u8);
        assert!(access(&mut guest, RegisterId::MCQI, false, &index).is_ok());
        let part = read::<{ mcqi_reg::SIZE }>(&mut guest, RegisterId::MCQI, |register| {
            mcqi_reg::info_type.set(register, 1u8);
            mcqi_reg::offset.set(register, 0x20u8);
            mcqi_reg::data_size.set(register, 4u8);
        });
        assert_eq!(mcqi_reg::data.of(&part)[..5], [&text.as_bytes()[..4], &[0]].concat());
    }
}

#[test]
fn masks_name_the_registers_that_can_be_read_and_no_others() {
    let mut guest = enabled(&CONNECTX_7);
    let groups = [
        (RegisterId::MCAM, 0x48, [0x9000, 0x9080, 0x9100]),
        (RegisterId::PCAM, capability_reg::SIZE, [0x5000, 0x5080, 0x5100]),
    ];
    let mut named = Vec::new();
    for (id, size, firsts) in groups {
        for (group, first) in firsts.into_iter().enumerate() {
            let mut register = vec![0; size];
            capability_reg::access_reg_group.set(&mut register, group as u32);
            let answer = access(&mut guest, id, false, &register).expect("readable");
            named.extend(bits(capability_reg::access_reg_cap_mask.of(&answer)).iter().map(|bit| first + bit));
        }
    }
    assert!(named.contains(&RegisterId::MCAM.0) && named.contains(&RegisterId::PTYS.0));
    for id in (0x5000..0x5180).chain(0x9000..0x9180) {
        let mut register = [0; 256];
        // The port, and InfiniBand, where that is asked.
        register[1] = 1;
        register[3] = u8::from(id == RegisterId::PTYS.0);
        let answer = access(&mut guest, RegisterId(id), false, &register);
        // Nothing is being changed: there is no such data to be read.
        let readable = named.contains(&id) && id != RegisterId::MCDA.0;
        assert_eq!(answer.is_ok(), readable, "{id:#x}: {answer:?}");
    }
}

#[test]
fn a_port_says_why_it_has_no_link() {
    let mut guest = enabled(&CONNECTX_7);
    let page = |guest: &mut Guest, page: u8| {
        read::<{ pddr_reg::SIZE }>(guest, RegisterId::PDDR, |register| {
            pddr_reg::local_port.set(register, 1u8);
            pddr_reg::page_select.set(register, page);
        })
    };
    let why = |guest: &mut Guest| {
        let answer = page(guest, 1);
        pddr_troubleshooting_page::monitor_opcode.get32(pddr_reg::page_data.of(&answer))
    };
    assert_eq!(why(&mut guest), 1024, "no cable");
    guest.hca.device.port.set_cable(true);
    guest.poll();
    assert_eq!(why(&mut guest), 0);
    let answer = page(&mut guest, 0);
    let data = pddr_reg::page_data.of(&answer);
    assert_eq!(pddr_operation_info_page::link_speed_active.get32(data), 0x80, "NDR");
    assert_eq!(pddr_operation_info_page::ib_phy_fsm_state.get32(data), 7);
    guest.hca.device.port.set_admin(false);
    guest.poll();
    assert_eq!(why(&mut guest), 1);
    let mut other = [0; pddr_reg::SIZE];
    pddr_reg::local_port.set(&mut other, 1u8);
    pddr_reg::page_select.set(&mut other, 7u8);
    assert_eq!(access(&mut guest, RegisterId::PDDR, false, &other), Err(CmdStatus::BAD_PARAM));
}

#[test]
fn what_only_tells_cannot_be_written() {
    let mut guest = enabled(&CONNECTX_7);
    for (id, size) in [
        (RegisterId::MGIR, mgir_reg::SIZE),
        (RegisterId::MCC, mcc_reg::SIZE),
        (RegisterId::MCQI, mcqi_reg::SIZE),
        (RegisterId::PMLP, pmlp_reg::SIZE),
        (RegisterId::MTCAP, mtcap_reg::SIZE),
    ] {
        let mut register = vec![0; size];
        register[1] = 1;
        assert_eq!(access(&mut guest, id, true, &register), Err(CmdStatus::BAD_PARAM), "{id}");
        assert!(guest.refusal().contains("cannot be written"), "{}", guest.refusal());
    }
    let mut name = [0; mqis_reg::SIZE];
    mqis_reg::info_type.set(&mut name, 1u8);
    mqis_reg::read_length.set(&mut name, 8u8);
    let answer = access(&mut guest, RegisterId::MQIS, false, &name).expect("readable");
    assert_eq!(
        (&mqis_reg::info_string.of(&answer)[..5], mqis_reg::info_length.get32(&answer)),
        (&b"CX-7\0"[..], 4)
    );
    let mut second = [0; mcqs_reg::SIZE];
    mcqs_reg::component_index.set(&mut second, 1u8);
    assert_eq!(access(&mut guest, RegisterId::MCQS, false, &second), Err(CmdStatus::BAD_PARAM));
    assert_eq!(access(&mut guest, RegisterId::MGIR, false, &[0; 16]), Err(CmdStatus::BAD_INP_LEN));
}

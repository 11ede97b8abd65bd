//! A driver on a machine with pages of 64 KiB.

use super::guest::{Failed, Guest, Input};
use crate::card::{CONNECTX_5, Card};
use crate::object::mkey::{Segments, User};
use crate::profile::Profile;
use crate::seams::GuestMemory;
use mlx5_prm::caps::cmd_hca_cap as cap;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::{cqc, eqc, mkc, qpc};
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::CmdStatus;
use mlx5_prm::value::{AccessFlags, ServiceType};

const PAGE: u64 = 64 << 10;

fn capability(guest: &mut Guest) -> Vec<u8> {
    let output = guest.command(&Input::new(Opcode::QUERY_HCA_CAP).op_mod(1)).unwrap();
    query_hca_cap_out::capability.of(&output).to_vec()
}

/// Initialized as Linux does it on such a machine, with UARs numbered by 4 KiB or by pages.
fn initialized(card: &'static Card, by_4k: bool) -> Guest {
    let mut guest = Guest::new(Profile { boot_pages: 6, init_pages: 8, ..Profile::of(card, 0) });
    assert_eq!(guest.status(&Input::new(Opcode::ENABLE_HCA)), CmdStatus::OK);
    let boot = guest.query_pages(1);
    assert_eq!(guest.give(boot as usize), CmdStatus::OK);
    let mut wanted = capability(&mut guest);
    cap::log_uar_page_sz.set(&mut wanted, 4u8);
    cap::uar_4k.set(&mut wanted, by_4k);
    let mut input = Input::new(Opcode::SET_HCA_CAP);
    set_hca_cap_in::capability.of_mut(&mut input.0).copy_from_slice(&wanted);
    assert_eq!(guest.status(&input), CmdStatus::OK);
    let init = guest.query_pages(2);
    assert_eq!(guest.give(init as usize), CmdStatus::OK);
    assert_eq!(guest.status(&Input::new(Opcode::INIT_HCA)), CmdStatus::OK);
    let now = capability(&mut guest);
    assert_eq!(cap::log_uar_page_sz.get32(&now), 4);
    assert_eq!(cap::num_of_uars_per_page.get32(&now), if by_4k { 16 } else { 1 });
    let output = guest.command(&Input::new(Opcode::ALLOC_PD)).unwrap();
    guest.pd = alloc_pd_out::pd.get32(&output);
    guest
}

fn alloc_uar(guest: &mut Guest) -> u32 {
    let output = guest.command(&Input::new(Opcode::ALLOC_UAR)).unwrap();
    alloc_uar_out::uar.get32(&output)
}

/// Fresh memory of one large page, aligned to it.
fn page(guest: &mut Guest) -> u64 {
    let pages = guest.pages(31);
    pages[0].next_multiple_of(PAGE)
}

/// An EQ in one large page, whose doorbells are those of UAR `uar`.
fn create_eq(guest: &mut Guest, ring: u64, uar: u32) -> Result<u32, Failed> {
    for i in 0..256 {
        guest.memory.write(ring + i * 64 + 63, &[1]).unwrap();
    }
    let mut input = Input::new(Opcode::CREATE_EQ);
    let context = create_eq_in::eq_context_entry.of_mut(&mut input.0);
    eqc::log_eq_size.set(context, 8u8);
    eqc::uar_page.set(context, uar);
    eqc::log_page_size.set(context, 4u8);
    guest.command(&input.pas(&[ring])).map(|output| create_eq_out::eq_number.get32(&output))
}

/// A CQ of 16 entries in the middle of a large page.
fn create_cq(guest: &mut Guest, ring: u64, record: u64, uar: u32, eqn: u32) -> Result<u32, Failed> {
    for i in 0..16 {
        guest.memory.write(ring + PAGE / 2 + i * 64 + 63, &[0xf0]).unwrap();
    }
    let mut input = Input::new(Opcode::CREATE_CQ);
    let context = create_cq_in::cq_context.of_mut(&mut input.0);
    cqc::log_cq_size.set(context, 4u8);
    cqc::uar_page.set(context, uar);
    cqc::c_eqn_or_apu_element.set(context, eqn);
    cqc::dbr_addr.set(context, record);
    cqc::log_page_size.set(context, 4u8);
    // In units of a 64th of the page.
    cqc::page_offset.set(context, 32u8);
    guest.command(&input.pas(&[ring])).map(|output| create_cq_out::cqn.get32(&output))
}

/// A QP of 64 send blocks, two large pages behind each other.
fn create_qp(guest: &mut Guest, ring: [u64; 2], record: u64, uar: u32, cqn: u32) -> Result<u32, Failed> {
    let mut input = Input::new(Opcode::CREATE_QP);
    let context = create_qp_in::qpc.of_mut(&mut input.0);
    qpc::st.set(context, ServiceType::RC.0);
    qpc::pm_state.set(context, 3u8);
    qpc::pd.set(context, guest.pd);
    qpc::uar_page.set(context, uar);
    qpc::log_sq_size.set(context, 11u8);
    qpc::rq_type.set(context, 3u8);
    qpc::cqn_snd.set(context, cqn);
    qpc::cqn_rcv.set(context, cqn);
    qpc::dbr_addr.set(context, record);
    qpc::log_page_size.set(context, 4u8);
    guest.command(&input.pas(&ring)).map(|output| create_qp_out::qpn.get32(&output))
}

/// Where UAR `number` lies in BAR0.
fn at(number: u32, by_4k: bool) -> usize {
    number as usize * if by_4k { 4096 } else { PAGE as usize }
}

fn refusals(guest: &Guest) -> u64 {
    guest.hca.device.log.refusals()
}

#[test]
fn queues_obey_the_doorbells_of_their_uar_in_a_large_page() {
    for (card, by_4k) in Card::ALL.iter().flat_map(|card| [(*card, false), (*card, true)]) {
        let mut guest = initialized(card, by_4k);
        let base = alloc_uar(&mut guest);
        assert!(at(base, by_4k).is_multiple_of(PAGE as usize), "it can be mapped: {base:#x}");
        assert_eq!(alloc_uar(&mut guest), base + if by_4k { 16 } else { 1 });
        // Each queue through another UAR of the page, where there are several.
        let [first, second, last] = if by_4k { [base, base + 1, base + 15] } else { [base; 3] };
        let (events, ring, record) = (page(&mut guest), page(&mut guest), page(&mut guest));
        let eqn = create_eq(&mut guest, events, first).unwrap();
        let cqn = create_cq(&mut guest, ring, record, second, eqn).unwrap();
        let sends = [page(&mut guest), page(&mut guest)];
        let qpn = create_qp(&mut guest, sends, record + 64, last, cqn).unwrap();
        // Arm both; then a completion, for which an event comes.
        guest.write32(at(first, by_4k) + 0x40, eqn << 24);
        let arm = at(second, by_4k) + 0x20;
        guest.bar.write(arm, &u64::from(cqn).to_be_bytes());
        guest.poll();
        assert_eq!(guest.push_cqe(cqn, &[0x20; 64], false), Ok(()));
        assert_eq!(guest.memory.bytes(ring + PAGE / 2, 1), [0x20], "the ring begins in the middle");
        assert_eq!(guest.memory.bytes(events + 0x38, 4)[..], cqn.to_be_bytes()[..], "{}", card.name);
        // The QP is not ready to send: its doorbell is taken in silence, that of any other UAR is refused.
        let bell = (u64::from(qpn) << 8 | 1).to_be_bytes();
        guest.bar.write(at(last, by_4k) + 0x800, &bell);
        guest.poll();
        assert_eq!(refusals(&guest), 0, "{}", guest.refusal());
        let elsewhere = if by_4k { at(base + 2, by_4k) } else { at(base, by_4k) + 4096 };
        guest.bar.write(elsewhere + 0x800, &bell);
        guest.poll();
        let expected = if by_4k { "qpc.uar_page" } else { "not allocated" };
        assert!(guest.refusal().contains(expected), "{}", guest.refusal());
        // The page stays until the last of them goes.
        let release = Input::new(Opcode::DEALLOC_UAR).set(dealloc_uar_in::uar, u64::from(base));
        assert_eq!(guest.status(&release), CmdStatus::OK);
        for (input, uars) in [
            (Input::new(Opcode::DESTROY_QP).set(destroy_qp_in::qpn, u64::from(qpn)), 2),
            (Input::new(Opcode::DESTROY_CQ).set(destroy_cq_in::cqn, u64::from(cqn)), 2),
            (Input::new(Opcode::DESTROY_EQ).set(destroy_eq_in::eq_number, u64::from(eqn)), 1),
        ] {
            assert_eq!(guest.status(&input), CmdStatus::OK);
            assert_eq!(guest.hca.census().uars, uars);
        }
    }
}

#[test]
fn only_whole_pages_are_given_back_and_larger_ones_than_the_card_has_are_refused() {
    let mut guest = initialized(&CONNECTX_5, true);
    let base = alloc_uar(&mut guest);
    let release = |number: u32| Input::new(Opcode::DEALLOC_UAR).set(dealloc_uar_in::uar, u64::from(number));
    assert_eq!(guest.status(&release(base + 1)), CmdStatus::BAD_RES);
    assert_eq!(guest.status(&release(base)), CmdStatus::OK);
    let events = page(&mut guest);
    assert_eq!(create_eq(&mut guest, events, base), Err(Failed::Status(CmdStatus::BAD_RES)));

    let mut guest = Guest::new(Profile::node(0));
    assert_eq!(guest.status(&Input::new(Opcode::ENABLE_HCA)), CmdStatus::OK);
    let boot = guest.query_pages(1);
    assert_eq!(guest.give(boot as usize), CmdStatus::OK);
    let mut wanted = capability(&mut guest);
    cap::log_uar_page_sz.set(&mut wanted, 9u8);
    let mut input = Input::new(Opcode::SET_HCA_CAP);
    set_hca_cap_in::capability.of_mut(&mut input.0).copy_from_slice(&wanted);
    assert_eq!(guest.status(&input), CmdStatus::BAD_PARAM);
    assert!(guest.refusal().contains("cmd_hca_cap.log_uar_page_sz"), "{}", guest.refusal());
}

#[test]
fn a_key_is_made_of_large_pages() {
    let mut guest = initialized(&CONNECTX_5, true);
    let (a, b) = (page(&mut guest), page(&mut guest));
    let mut input = Input::new(Opcode::CREATE_MKEY);
    create_mkey_in::translations_octword_actual_size.set(&mut input.0, 1u8);
    let context = create_mkey_in::memory_key_mkey_entry.of_mut(&mut input.0);
    mkc::pd.set(context, guest.pd);
    mkc::qpn.set(context, 0xff_ffffu32);
    mkc::access_mode_1_0.set(context, 1u8);
    mkc::lr.set(context, 1u8);
    mkc::start_addr.set(context, 0x7_0000_8000u64);
    mkc::len.set(context, PAGE);
    mkc::log_page_size.set(context, 16u8);
    mkc::translations_octword_size.set(context, 1u8);
    let output = guest.command(&input.pas(&[b, a])).unwrap();
    let key = create_mkey_out::mkey_index.get32(&output) << 8;
    guest.memory.write(b + 0x8000, b"begins in the middle of the first page").unwrap();
    guest.memory.write(a, b"goes on at the start of the second").unwrap();
    for (address, text) in [(0x7_0000_8000u64, &b"begins"[..]), (0x7_0001_0000, b"goes on")] {
        let user = User { pd: guest.pd, qpn: 0, reserved_lkey: false };
        let mut parts = Segments::default();
        let keys = &guest.hca.device.objects.mkeys;
        let found =
            keys.translate(key, user, address, text.len() as u64, AccessFlags::LOCAL_READ, &mut parts);
        assert_eq!(found, Ok(()));
        let place = parts.list[0].address;
        assert_eq!(guest.memory.bytes(place, text.len()), text);
    }
}

//! User contexts and user memory: queues in memory that is named by number and offset.

use super::guest::{Guest, Input};
use crate::profile::Profile;
use crate::seams::GuestMemory;
use mlx5_prm::Field;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::cqc;
use mlx5_prm::later;
use mlx5_prm::management::{create_general_object_in, create_general_object_out, destroy_general_object_in};
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::CmdStatus;

const OFFSET: Field = Field::quad(0x50);
const ID: Field = Field::bits(0x58, 31, 0);
const RECORD_ID: Field = Field::bits(0x14, 31, 0);

fn create_uctx(guest: &mut Guest) -> u32 {
    let output = guest.command(&Input::new(Opcode::CREATE_UCTX)).expect("a user context");
    create_uctx_out::uid.get32(&output)
}

/// User memory of `pages`, from `offset` in the first on.
fn memory(uid: u32, pages: &[u64], offset: u32) -> Input {
    let mut input = Input::new(Opcode::CREATE_UMEM).set(create_umem_in::uid, uid.into());
    let umem = create_umem_in::umem.of_mut(&mut input.0);
    umem::page_offset.set(umem, offset);
    umem::num_of_mtt.set(umem, pages.len() as u64);
    input.pas(&pages.iter().map(|page| page | 3).collect::<Vec<_>>())
}

fn cq_in(guest: &Guest, uid: u32, umem: u32, eqn: u32, [ring, record]: [u64; 2]) -> Input {
    let mut input = Input::new(Opcode::CREATE_CQ)
        .set(create_cq_in::uid, uid.into())
        .set(create_cq_in::cq_umem_valid, 1)
        .set(OFFSET, ring)
        .set(ID, umem.into())
        .set(RECORD_ID, umem.into());
    let context = create_cq_in::cq_context.of_mut(&mut input.0);
    cqc::log_cq_size.set(context, 4u8);
    cqc::uar_page.set(context, guest.uar);
    cqc::c_eqn_or_apu_element.set(context, eqn);
    cqc::dbr_umem_valid.set(context, 1u8);
    cqc::dbr_addr.set(context, record);
    input
}

#[test]
fn queues_lie_in_user_memory_and_stay_when_it_ends() {
    // Strict: nothing of this is reserved.
    let mut guest = Guest::up(Profile::node(0));
    let ring = guest.page();
    let eqn = guest.create_eq(ring, 3, 0, 0).expect("an EQ");
    let uid = create_uctx(&mut guest);
    let pages = guest.pages(3);
    let output = guest.command(&memory(uid, &[pages[2], pages[0]], 0x800)).expect("user memory");
    let umem = create_umem_out::umem_id.get32(&output);
    for entry in 0..16 {
        // The ring begins in the last KiB but one of the first page and goes on in the second.
        let at = 0xf00 + entry * 64 + 63;
        let page = if at < 0x1000 { pages[2] } else { pages[0] - 0x1000 };
        guest.memory.write(page + at, &[0xf0]).expect("memory");
    }
    let create = cq_in(&guest, uid, umem, eqn, [0x700, 0xe00]);
    let output = guest.command(&create).expect("a CQ");
    let cqn = create_cq_out::cqn.get32(&output);
    let cq = guest.hca.device.objects.queues.cqs.get(cqn).expect("it is there");
    assert_eq!(cq.buffer.address(0x100), Some((pages[0], 0x300)));
    assert_eq!(cq.dbr_addr, pages[0] + 0x600);
    assert_eq!(guest.hca.device.log.entries().filter(|entry| entry.field == "cqe64.op_own").count(), 0);

    let destroy = Input::new(Opcode::DESTROY_UMEM).set(destroy_umem_in::umem_id, umem.into());
    assert_eq!(guest.status(&destroy), CmdStatus::OK);
    assert_eq!(guest.status(&destroy), CmdStatus::BAD_RES);
    assert_eq!(guest.status(&create), CmdStatus::BAD_RES);
    let destroy = Input::new(Opcode::DESTROY_CQ).set(destroy_cq_in::cqn, cqn.into());
    assert_eq!(guest.status(&destroy), CmdStatus::OK);
    assert_eq!((guest.hca.census().umems, guest.hca.census().uctxs), (0, 1));
}

#[test]
fn what_does_not_fit_or_is_not_there_is_refused() {
    let mut guest = Guest::up(Profile::node(0));
    let ring = guest.page();
    let eqn = guest.create_eq(ring, 3, 0, 0).expect("an EQ");
    let uid = create_uctx(&mut guest);
    let page = guest.page();
    assert_eq!(guest.status(&memory(uid + 1, &[page], 0)), CmdStatus::BAD_RES, "nobody's");
    assert_eq!(guest.status(&memory(uid, &[page], 0x1000)), CmdStatus::BAD_PARAM);
    assert_eq!(guest.status(&memory(uid, &[page | 4], 0)), CmdStatus::BAD_PARAM);
    let mut long = memory(uid, &[page], 0);
    umem::num_of_mtt.set(create_umem_in::umem.of_mut(&mut long.0), 1u64 << 40);
    assert_eq!(guest.status(&long), CmdStatus::BAD_PARAM);
    // For everybody's use: what the kernel makes in nobody's name.
    let output = guest.command(&memory(0xffff, &[page], 0)).expect("user memory");
    let umem = create_umem_out::umem_id.get32(&output);
    for place in [[0xc01, 0], [u64::MAX, 0], [0, 0xffc], [0, u64::MAX - 7]] {
        let create = cq_in(&guest, uid, umem, eqn, place);
        assert_eq!(guest.status(&create), CmdStatus::BAD_PARAM, "{place:x?}");
    }
    let asks = Input::new(Opcode::CREATE_UCTX).set(Field::bits(0x10, 31, 0), 1 << 4);
    assert_eq!(guest.status(&asks), CmdStatus::BAD_PARAM);
    let destroy = Input::new(Opcode::DESTROY_UCTX).set(destroy_uctx_in::uid, uid.into());
    assert_eq!(guest.status(&destroy), CmdStatus::OK);
    assert_eq!(guest.status(&memory(uid, &[page], 0)), CmdStatus::BAD_RES, "gone");
}

#[test]
fn an_object_is_its_user_s_and_the_kernel_may_name_all() {
    let mut guest = Guest::up(Profile::node(0));
    let [first, second] = [create_uctx(&mut guest), create_uctx(&mut guest)];
    let named = |opcode: Opcode, uid: u32, number: u32| {
        Input::new(opcode).set(dealloc_pd_in::uid, uid.into()).set(Field::bits(0x08, 23, 0), number.into())
    };
    let alloc = |guest: &mut Guest, opcode: Opcode, uid: u32| {
        let output = guest.command(&named(opcode, uid, 0)).expect("made");
        Field::bits(0x08, 23, 0).get32(&output)
    };
    for (make, end) in [
        (Opcode::ALLOC_PD, Opcode::DEALLOC_PD),
        (Opcode::ALLOC_UAR, Opcode::DEALLOC_UAR),
        (Opcode::ALLOC_XRCD, Opcode::DEALLOC_XRCD),
        (Opcode::ALLOC_TRANSPORT_DOMAIN, Opcode::DEALLOC_TRANSPORT_DOMAIN),
        (Opcode::ALLOC_Q_COUNTER, Opcode::DEALLOC_Q_COUNTER),
    ] {
        // Another user's, then the kernel's, are out of reach; one's own and everybody's are not.
        for (owner, asks, expected) in [
            (first, second, CmdStatus::BAD_RES),
            (0, second, CmdStatus::BAD_RES),
            (first, first, CmdStatus::OK),
            (first, 0, CmdStatus::OK),
            (0xffff, second, CmdStatus::OK),
        ] {
            let number = alloc(&mut guest, make, owner);
            assert_eq!(
                guest.status(&named(end, asks, number)),
                expected,
                "{end}: {owner}'s, asked by {asks}"
            );
            if expected != CmdStatus::OK {
                assert!(guest.refusal().contains(&format!("is not user {second}'s")), "{}", guest.refusal());
                assert_eq!(guest.status(&named(end, 0, number)), CmdStatus::OK);
            }
        }
    }
    // What a queue refers to is its user's as well, or the kernel's.
    let ring = guest.page();
    let eqn = guest.create_eq(ring, 3, 0, 0).expect("an EQ");
    let pages = guest.pages(2);
    for entry in 0..64 {
        guest.memory.write(pages[0] + entry * 64 + 63, &[0xf0]).expect("memory");
    }
    let output = guest.command(&memory(first, &pages, 0)).expect("user memory");
    let umem = create_umem_out::umem_id.get32(&output);
    assert_eq!(guest.status(&cq_in(&guest, second, umem, eqn, [0, 0x1800])), CmdStatus::BAD_RES);
    assert!(guest.refusal().contains("Umem"), "{}", guest.refusal());
    assert_eq!(guest.status(&cq_in(&guest, first, umem, eqn, [0, 0x1800])), CmdStatus::OK);
    // Numbers that come again are whoever's they are now.
    let everybody = guest.hca.census().total();
    assert_eq!(guest.status(&Input::new(Opcode::TEARDOWN_HCA)), CmdStatus::OK);
    assert!(everybody > 0 && guest.hca.census().total() == 0);
}

#[test]
fn qp_numbers_are_set_aside_in_ranges_for_a_user() {
    let mut guest = Guest::up(Profile::node(0));
    let output = guest.command(&Input::new(Opcode::QUERY_HCA_CAP).op_mod(0x20 << 1 | 1)).expect("known");
    let granularity =
        later::CAP2_LOG_RESERVED_QPN_GRANULARITY.get32(query_hca_cap_out::capability.of(&output));
    let [first, second] = [create_uctx(&mut guest), create_uctx(&mut guest)];
    let create = |uid: u32, range: u32| {
        Input::new(Opcode::CREATE_GENERAL_OBJECT)
            .op_mod(later::RESERVED_QPN_OBJECT)
            .set(create_general_object_in::uid, uid.into())
            .set(create_general_object_in::log_obj_range, range.into())
    };
    let numbers: Vec<u32> = (0..3)
        .map(|_| {
            let output = guest.command(&create(first, granularity)).expect("a range");
            create_general_object_out::obj_id.get32(&output)
        })
        .collect();
    assert!(numbers.windows(2).all(|pair| pair[1] - pair[0] >= 1 << granularity), "{numbers:x?}");
    let largest = 1 << guest.hca.device.caps.max(mlx5_prm::caps::cmd_hca_cap::log_max_qp);
    assert!(numbers[0] > largest * 2, "no QP has it");
    assert_eq!(guest.hca.census().reserved_qpns, 3);
    assert_eq!(guest.status(&create(first, granularity + 1)), CmdStatus::BAD_PARAM);
    assert_eq!(guest.status(&create(first, granularity).op_mod(0x2d)), CmdStatus::BAD_PARAM);
    let destroy = |uid: u32, number: u32| {
        Input::new(Opcode::DESTROY_GENERAL_OBJECT)
            .op_mod(later::RESERVED_QPN_OBJECT)
            .set(destroy_general_object_in::uid, uid.into())
            .set(destroy_general_object_in::obj_id, number.into())
    };
    assert_eq!(guest.status(&destroy(second, numbers[0])), CmdStatus::BAD_RES, "another's");
    assert_eq!(guest.status(&destroy(0, numbers[0] + 1)), CmdStatus::BAD_RES);
    for number in &numbers {
        assert_eq!(guest.status(&destroy(first, *number)), CmdStatus::OK);
        assert_eq!(guest.status(&destroy(first, *number)), CmdStatus::BAD_RES);
    }
    assert_eq!(guest.hca.census().reserved_qpns, 0);
}

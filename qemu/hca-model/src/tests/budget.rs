//! A guest that makes its device hold all it can: NO_RES at the budget, and all of it comes back.

use super::guest::{Failed, Guest, Input, Memory};
use crate::profile::Profile;
use crate::seams::GuestMemory;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::{cqc, mkc};
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::CmdStatus;
use mlx5_prm::value::AccessMode;

/// Bytes that the devices of these tests may hold.
const LIMIT: u64 = 4 << 20;

/// A guest with an EQ, a CQ and a page of its own for everything.
struct Greedy {
    guest: Guest,
    cqn: u32,
    page: u64,
}

impl Greedy {
    fn new() -> Self {
        let mut profile = Profile::node(0);
        profile.memory = LIMIT;
        profile.objects_per_growth = 1 << 20;
        let mut guest = Guest::up(profile);
        let (events, ring, record, page) = (guest.page(), guest.page(), guest.page(), guest.page());
        guest.create_eq(events, 4, 0, 0).unwrap();
        let cqn = guest.create_cq(ring, 4, record, 0x10).unwrap();
        Self { guest, cqn, page }
    }

    fn held(&self) -> u64 {
        let budget = &self.guest.hca.device.budget;
        assert!(budget.held() <= budget.limit());
        budget.held()
    }

    /// A CQ of 2^16 entries, all of its pages the same: a list of 1024.
    fn cq(&mut self) -> Result<u32, Failed> {
        let mut input = Input::new(Opcode::CREATE_CQ);
        let context = create_cq_in::cq_context.of_mut(&mut input.0);
        cqc::log_cq_size.set(context, 16u8);
        cqc::uar_page.set(context, self.guest.uar);
        cqc::c_eqn_or_apu_element.set(context, 0x10u32);
        cqc::dbr_addr.set(context, self.page);
        let output = self.guest.command(&input.pas(&[self.page; 1024]))?;
        Ok(create_cq_out::cqn.get32(&output))
    }

    fn key(&mut self, mode: AccessMode, octowords: u32) -> Result<u32, Failed> {
        let mut input = Input::new(Opcode::CREATE_MKEY);
        let context = create_mkey_in::memory_key_mkey_entry.of_mut(&mut input.0);
        mkc::pd.set(context, self.guest.pd);
        mkc::qpn.set(context, 0xff_ffffu32);
        mkc::umr_en.set(context, 1u8);
        mkc::free.set(context, 1u8);
        mkc::access_mode_1_0.set(context, mode.0);
        mkc::log_page_size.set(context, 12u8);
        mkc::translations_octword_size.set(context, octowords);
        let output = self.guest.command(&input)?;
        Ok(create_mkey_out::mkey_index.get32(&output))
    }

    fn qp(&mut self) -> Result<u32, Failed> {
        self.guest.create_qp(self.cqn, self.page)
    }

    /// Makes objects until the device refuses, and takes them away again.
    fn fill(
        &mut self,
        what: &str,
        mut make: impl FnMut(&mut Self) -> Result<u32, Failed>,
        destroy: impl Fn(u32) -> Input,
    ) {
        let before = self.held();
        let mut made = Vec::new();
        let refused = loop {
            match make(self) {
                Ok(number) => made.push(number),
                Err(refused) => break refused,
            }
            assert!(made.len() < 100_000, "{what}: there is an end");
        };
        assert_eq!(refused, Failed::Status(CmdStatus::NO_RES), "{what}");
        assert!(self.guest.refusal().contains("of the device's memory"), "{}", self.guest.refusal());
        assert!(self.held() > LIMIT * 9 / 10, "{what}: {} of {LIMIT} bytes", self.held());
        let last = made.pop().expect("some were made");
        assert_eq!(self.guest.status(&destroy(last)), CmdStatus::OK, "{what}");
        made.push(make(self).unwrap_or_else(|error| panic!("{what}: {error:?} with room for one")));
        for number in made {
            assert_eq!(self.guest.status(&destroy(number)), CmdStatus::OK, "{what}");
        }
        assert_eq!(self.held(), before, "{what}");
    }
}

#[test]
fn every_kind_of_object_is_charged_and_given_back() {
    let mut greedy = Greedy::new();
    let destroy = |opcode, field| move |number: u32| Input::new(opcode).set(field, u64::from(number));
    greedy.fill("CQs", Greedy::cq, destroy(Opcode::DESTROY_CQ, destroy_cq_in::cqn));
    let mkey = || destroy(Opcode::DESTROY_MKEY, destroy_mkey_in::mkey_index);
    greedy.fill("MTT keys", |greedy| greedy.key(AccessMode::MTT, 4096), mkey());
    greedy.fill("KLM keys", |greedy| greedy.key(AccessMode::KLMS, 1024), mkey());
    greedy.fill("QPs", Greedy::qp, destroy(Opcode::DESTROY_QP, destroy_qp_in::qpn));
    let uar = |greedy: &mut Greedy| {
        let output = greedy.guest.command(&Input::new(Opcode::ALLOC_UAR))?;
        Ok(alloc_uar_out::uar.get32(&output))
    };
    greedy.fill("UARs", uar, destroy(Opcode::DEALLOC_UAR, dealloc_uar_in::uar));
}

#[test]
fn a_teardown_gives_everything_back() {
    let mut greedy = Greedy::new();
    while greedy.cq().is_ok() {}
    let pages = greedy.guest.hca.device.pages.memory();
    let (held, steps) = (greedy.held(), greedy.guest.hca.meter().steps());
    assert_eq!(
        greedy.guest.status(&Input::new(Opcode::TEARDOWN_HCA).set(teardown_hca_in::profile, 1)),
        CmdStatus::OK
    );
    assert_eq!(greedy.held(), pages);
    let charged = greedy.guest.hca.meter().steps() - steps;
    assert!(charged > held / 300, "{charged} steps for the removal of {held} bytes");
    assert_eq!(greedy.guest.status(&Input::new(Opcode::DISABLE_HCA)), CmdStatus::OK);
    assert_eq!(greedy.held(), 0);
    greedy.guest.initialize();
    greedy.guest.hca.reset();
    assert_eq!(greedy.held(), 0);
}

#[test]
fn pages_and_long_commands_are_charged() {
    let mut profile = Profile::node(0);
    profile.memory = 64 << 10;
    let mut guest = Guest::up(profile);
    // The device holds the input of a command while it waits and runs.
    let pages: Vec<u64> = (0..16_000).map(|i| Memory::BASE + i * 4096).collect();
    let input = Input::new(Opcode::MANAGE_PAGES)
        .op_mod(1)
        .set(manage_pages_in::input_num_entries, pages.len() as u64)
        .pas(&pages);
    assert_eq!(guest.status(&input), CmdStatus::NO_RES);
    assert_eq!(refused(&mut guest), [0, 1]);
    // A short one, whose pages are too many for what is left.
    let mut given = 0;
    let refused = loop {
        let first = Memory::BASE + (0x400 + given) * 4096;
        guest.memory.write(first, &[0; 8]).unwrap();
        let input = Input::new(Opcode::MANAGE_PAGES)
            .op_mod(1)
            .set(manage_pages_in::input_num_entries, 64)
            .pas(&(0..64).map(|i| first + i * 4096).collect::<Vec<_>>());
        match guest.status(&input) {
            CmdStatus::OK => given += 64,
            other => break other,
        }
    };
    assert_eq!(refused, CmdStatus::NO_RES);
    assert!((512..2048).contains(&given), "{given} pages of 32 bytes each");
    assert_eq!(guest.status(&Input::new(Opcode::NOP)), CmdStatus::OK);
}

/// `invalid_command` and `quota_exceeded_command` of QUERY_VNIC_ENV.
fn refused(guest: &mut Guest) -> [u32; 2] {
    let output = guest.command(&Input::new(Opcode::QUERY_VNIC_ENV)).expect("an answer");
    let counters = query_vnic_env_out::vport_env.of(&output);
    [vnic_diagnostic_statistics::invalid_command, vnic_diagnostic_statistics::quota_exceeded_command]
        .map(|counter| counter.get32(counters))
}

#[test]
fn commands_that_were_refused_for_room_are_counted_apart() {
    let mut greedy = Greedy::new();
    while greedy.cq().is_ok() {}
    assert_eq!(refused(&mut greedy.guest), [0, 1]);
    let nothing = Input::new(Opcode::DESTROY_CQ).set(destroy_cq_in::cqn, 0xff_ffff);
    assert_ne!(greedy.guest.status(&nothing), CmdStatus::OK);
    assert_eq!(refused(&mut greedy.guest), [1, 1]);
}

/// Queue pairs of 1,024 basic blocks that a device has memory for, as long as they are idle.
const QPS: usize = 64 << 10;

#[test]
fn a_device_has_room_for_as_many_qps_as_applications_have() {
    let mut profile = Profile::node(0);
    profile.log_max_qp = 18;
    profile.objects_per_growth = 1 << 20;
    let mut guest = Guest::up(profile);
    let (events, ring, record, page) = (guest.page(), guest.page(), guest.page(), guest.page());
    guest.create_eq(events, 4, 0, 0).unwrap();
    let cqn = guest.create_cq(ring, 4, record, 0x10).unwrap();
    let mut made = 0;
    let refused = loop {
        match guest.create_qp(cqn, page) {
            Ok(_) => made += 1,
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused, Failed::Status(CmdStatus::NO_RES));
    assert!(guest.refusal().contains("of the device's memory"), "{}", guest.refusal());
    assert!((QPS..1 << 18).contains(&made), "{made}");
}

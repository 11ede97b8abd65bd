//! `app=selftest` on cards with a cable, without one, and with one thing wrong: each level says what came of it.

use apps::rds::Generation;
use apps::selftest::{self, Level, Storage, Verdict};
use driver_mlx::Config;
use harness::{World, WorldConfig, host_region};
use hca_model::{Habits, Profile};
use mlx5_prm::opcode::Opcode;

const MEMORY: usize = 64 << 20;

/// The verdicts of a card, in the order of the levels, whether all in all it is sound, and what was said.
fn verdicts(habits: Habits, cable: bool) -> (Vec<Verdict>, bool, String) {
    let world = World::new(&WorldConfig::new(7));
    let (platform, region) = world.attach(Profile { habits, ..Profile::node(0) }, MEMORY);
    world.set_cable(0, cable);
    let storage = Box::leak(Box::new(Storage::new()));
    let mut text = String::new();
    let out = &mut |line: std::fmt::Arguments<'_>| text += &format!("{line}\n");
    let config = Config::DEFAULT;
    let mut summary = selftest::run(&platform, Some((region, host_region())), storage, &config, out);
    let again = Some((world.memory(0).region_again(), host_region()));
    selftest::layers(&platform, again, storage, (&config, Generation::UNKNOWN), &mut summary, out);
    summary.tell(out);
    assert_eq!((world.census(0).total(), world.firmware_pages(0)), (0, 0), "nothing is left: {text}");
    (Level::ALL.map(|level| summary.verdict(level)).to_vec(), summary.verified(), text)
}

#[test]
fn a_sound_card_passes_all_levels() {
    let (verdicts, verified, text) = verdicts(Habits::default(), true);
    assert_eq!((verdicts, verified), (vec![Verdict::Passed; 7], true), "{text}");
    for check in ["bring_up", "round=2", "dat_connection", "dat_rdma_read", "rds_message"] {
        assert!(text.contains(check), "{check}: {text}");
    }
    // As a virtual function's, whose routes need a GRH.
    let (verdicts, ..) = self::verdicts(Habits { grh_required: true, ..Habits::default() }, true);
    assert_eq!(verdicts, [Verdict::Passed; 7]);
}

#[test]
fn what_a_card_without_a_link_cannot_reach_is_said() {
    let (verdicts, verified, text) = verdicts(Habits::default(), false);
    let [passed, beyond] = [Verdict::Passed, Verdict::OutOfReach];
    assert_eq!(verdicts, [passed, passed, passed, passed, beyond, beyond, beyond], "{text}");
    assert!(verified, "no fault of the card");
    for words in ["the port is Down after 30 s", "round=2", "@level name=rds verdict=\"out of reach\""] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn what_fails_ends_it_and_is_told() {
    let refused = |opcode| Habits { refused_commands: vec![opcode], ..Habits::default() };
    for (opcode, level) in [
        (Opcode::INIT_HCA, Level::Commands),
        (Opcode::CREATE_CQ, Level::Objects),
        (Opcode::CREATE_MKEY, Level::Data),
    ] {
        let (verdicts, verified, text) = verdicts(refused(opcode), true);
        let failed = Level::ALL.iter().position(|&other| verdicts[other as usize] == Verdict::Failed);
        assert_eq!((failed, verified), (Some(level as usize), false), "{opcode:?}: {text}");
        let after = &verdicts[level as usize + 1..];
        assert!(after.iter().all(|verdict| *verdict == Verdict::OutOfReach), "{opcode:?}: {text}");
    }
}

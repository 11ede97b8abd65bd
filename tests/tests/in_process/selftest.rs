//! `app=selftest` on cards with a cable, without one, and with one thing wrong: each level says what came of it.

use apps::rds::Generation;
use apps::selftest::{self, Level, Storage, Verdict};
use driver_mlx::Config;
use harness::{World, WorldConfig, host_region};
use hca_model::caps::Caps;
use hca_model::card::{CONNECTX_4, Card};
use hca_model::measured::{Dump, Measured};
use hca_model::{DeviceSpec, Habits, Profile};
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::HealthSyndrome;

const MEMORY: usize = 64 << 20;

/// The verdicts of a card, in the order of the levels, whether all in all it is sound, and what was said.
fn verdicts(habits: Habits, cable: bool) -> (Vec<Verdict>, bool, String) {
    verdicts_of(Profile { habits, ..Profile::node(0) }, cable)
}

fn verdicts_of(profile: Profile, cable: bool) -> (Vec<Verdict>, bool, String) {
    let world = World::new(&WorldConfig::new(7));
    let (platform, region) = world.attach(profile, MEMORY);
    world.set_cable(0, cable);
    let storage = Box::leak(Box::new(Storage::new()));
    let mut text = String::new();
    let out = &mut |line: std::fmt::Arguments<'_>| text += &format!("{line}\n");
    let config = Config::DEFAULT;
    let mut summary = selftest::run(&platform, Some((region, host_region())), storage, (&config, true), out);
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
    let checks =
        ["bring_up", "round=2", "by=inside", "by=port", "dat_connection", "dat_rdma_read", "rds_message"];
    for check in checks {
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
    // Data goes through the card all the same.
    assert_eq!(verdicts, [passed, passed, passed, passed, passed, beyond, beyond], "{text}");
    assert!(verified && text.contains("name=rdma_read"), "no fault of the card");
    for words in ["the port is Down after a minute", "round=2", "@level name=rds verdict=\"out of reach\""] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn a_card_that_loops_nothing_says_so() {
    let [passed, beyond] = [Verdict::Passed, Verdict::OutOfReach];
    let (verdicts, verified, text) = verdicts_of(Profile::of(&CONNECTX_4, 0), false);
    assert_eq!(verdicts, [passed, passed, passed, passed, beyond, beyond, beyond], "{text}");
    assert!(verified && text.contains("@check name=inside us=") && text.contains("not offered"), "{text}");
}

#[test]
fn an_ethernet_card_proves_itself_with_and_without_a_link() {
    let [passed, beyond] = [Verdict::Passed, Verdict::OutOfReach];
    for card in Card::ALL.iter().filter(|card| card.is_ethernet()) {
        for cable in [true, false] {
            let (verdicts, verified, text) = verdicts_of(Profile::of(card, 0), cable);
            let above = if cable { passed } else { beyond };
            assert_eq!(verdicts, [passed, passed, passed, passed, passed, above, above], "{text}");
            assert!(verified && text.contains("name=rdma_read"), "{text}");
            assert_eq!(text.contains("by=port"), cable, "{text}");
            assert_eq!(text.contains("data by the port: the port is Down"), !cable, "{text}");
        }
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
        let said = format!("{opcode} op_mod 0x0: status bad operation");
        reported(&text, &format!("{opcode} (op_mod 0x0) at step "), &[&said, "syndrome 0x"]);
        let after = &verdicts[level as usize + 1..];
        assert!(after.iter().all(|verdict| *verdict == Verdict::OutOfReach), "{opcode:?}: {text}");
    }
}

/// What a report has besides what failed: what the device says of itself, its health buffer, and the last commands.
fn reported(text: &str, failed: &str, parts: &[&str]) {
    let at = text.find(&format!("failed: {failed}")).unwrap_or_else(|| panic!("no {failed:?}: {text}"));
    let report = &text[at..];
    for part in
        ["device: firmware 16.", "health: synd ", "assert_var 0x", "nic_interface 0"].iter().chain(parts)
    {
        assert!(report.contains(part), "no {part:?} behind {failed:?}: {text}");
    }
}

#[test]
fn a_card_that_connects_nobody_fails_with_dat() {
    let [passed, failed, beyond] = [Verdict::Passed, Verdict::Failed, Verdict::OutOfReach];
    let connects = [passed, passed, passed, passed, passed, failed, beyond];
    // The administrator is not heard; the connection manager is not.
    for (class, why) in [
        (0x03, "DAT: the card does not connect to itself: Unreachable"),
        (0x07, "DAT: the card does not connect to itself: TimedOut"),
    ] {
        let habits = Habits {
            lost_classes: vec![class],
            neighbour_syndrome: Some(HealthSyndrome(8)),
            ..Habits::default()
        };
        let (verdicts, verified, text) = verdicts(habits, true);
        assert_eq!((verdicts, verified), (connects.to_vec(), false), "{class:#x}: {text}");
        reported(&text, why, &["CREATE_QP op_mod 0x0: ok", "synd unrecoverable hardware error"]);
        assert!(text.contains("@level name=dat verdict=\"FAILED\""), "{text}");
    }
}

/// Its firmware leaves memory for all but RDS.
#[test]
fn a_card_that_leaves_too_little_memory_for_rds_fails_with_it() {
    let profile = Profile { init_pages: 15_000, ..Profile::node(0) };
    let (verdicts, verified, text) = verdicts_of(profile, true);
    let mut wanted = vec![Verdict::Passed; 7];
    wanted[Level::Rds as usize] = Verdict::Failed;
    assert_eq!((verdicts, verified), (wanted, false), "{text}");
    reported(&text, "RDS: DAT_INSUFFICIENT_RESOURCES (DAT_RESOURCE_MEMORY)", &["CREATE_MKEY op_mod 0x0: ok"]);
}

/// Returns the card of a self-test's dump.
fn measured(card: &'static Card) -> Measured {
    let (_, verified, text) = verdicts_of(Profile::of(card, 0), true);
    assert!(verified, "{text}");
    let identity = Profile::of(card, 0);
    for secret in [format!("{:016x}", identity.port_guid), identity.mac().to_string().replace(':', "")] {
        let dump: String = text.lines().filter(|line| line.starts_with("@dump ")).collect();
        assert!(!dump.contains(&secret), "{secret}: {dump}");
    }
    Dump::parse(&text).and_then(|dump| dump.card()).expect("a card")
}

#[test]
fn a_dump_makes_the_profile_of_the_card() {
    for card in Card::ALL.iter().filter(|card| card.name != "vf") {
        let Measured { card: found, remarks } = measured(card);
        assert_eq!(found, **card, "{}", found.to_text());
        assert!(remarks.iter().all(|remark| remark.starts_with("bring-up, ")), "{remarks:?}");
        assert!(remarks.iter().any(|remark| remark.starts_with("bring-up, init_hca: ")), "{remarks:?}");
    }
}

/// A card that is none of the emulated ones: its profile, from a file, makes a card with the same dump.
#[test]
fn a_profile_from_a_file_is_a_card_like_others() {
    let text = "base = cx-6-dx\ndevice_id = 0x101f\npsid = LNV_0000000001\nfirmware = 26.39.1002\nhardware_id = 0x216\n\
        vectors = 128\ntechnology = 4\npci_link = 4 8\nboot_pages = 7\ninit_pages = 4660\nprotocols = 0x100000 0x800\n\
        command_timeouts = 0x20000005 0x20000002\ndefault_timeouts = 0x4:0x20000005\ngeneral.log_max_cq = 0x14\n\
        general.log_max_tir = 0x8\nroce.l3_type = 0x6\n";
    let path = std::env::temp_dir().join(format!("lx-{}.profile", std::process::id()));
    std::fs::write(&path, text).expect("a file");
    let spec = format!("{},training=2ms", path.display()).parse::<DeviceSpec>();
    let missing = std::fs::remove_file(&path).map(|()| path.display().to_string()).expect("removed");
    let card = spec.expect("a profile").card();
    let Measured { card: found, .. } = measured(card);
    assert_eq!(found.to_text(), text);
    assert_eq!(Card::parse(text), Ok(found));
    let error = missing.parse::<DeviceSpec>().expect_err("gone").to_string();
    assert!(error.starts_with("cannot read the profile `"), "{error}");
}

/// A card that announces what the model lacks: the profile leaves that out and says so.
#[test]
fn abilities_that_the_model_lacks_are_remarks() {
    let (_, _, text) = verdicts_of(Profile::of(&CONNECTX_4, 0), true);
    let field = mlx5_prm::caps::cmd_hca_cap::dct;
    let mut block = Caps::new(&Profile::of(&CONNECTX_4, 0))
        .query(mlx5_prm::value::CapType::GENERAL, false)
        .expect("general")
        .to_vec();
    field.set(&mut block, 1u32);
    let line = usize::try_from(field.bit_offset / 8 / 32).expect("small");
    let bytes: String = block[32 * line..][..32].iter().map(|byte| format!("{byte:02x}")).collect();
    let text = format!("{text}@dump cap=0x0 max at={:#x} {bytes}\n", 32 * line);
    let Measured { card, remarks } = Dump::parse(&text).and_then(|dump| dump.card()).expect("a card");
    assert_eq!(card, CONNECTX_4);
    assert_eq!(remarks[0], "general.dct: the card has 0x1, the model 0x0");
}

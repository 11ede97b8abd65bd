//! Every kind of card, with every habit of real ones: the driver comes up, moves bytes, and gives all back.

mod common;

use common::node::{self, Node};
use common::{Driver, World};
use driver_mlx::{Bar, CompletionKind, Config, Error, HcaStorage, Instant, Platform, SendFlags, SendOp};
use hca_model::fabric::FabricConfig;
use hca_model::{Card, DeviceSpec, Profile};
use std::rc::Rc;

const SECOND: u64 = 1_000_000_000;
const MEMORY: usize = 4 << 20;

fn config(card: &Card) -> Config {
    // Few QPs, which cost pages.
    Config { physical_function: card.has_smi, log_max_qp: 10, ..Config::DEFAULT }
}

fn pair(spec: &DeviceSpec) -> Rc<World> {
    World::with_memory([spec.profile(0), spec.profile(1)], FabricConfig::default(), MEMORY)
}

/// Two of a kind come up, one writes to the other, and both end.
fn write_across(spec: &DeviceSpec) {
    let world = pair(spec);
    let ready = |index: usize| Node::on(world.ready_with(index, &config(spec.card())), index, |_| ());
    let (mut a, b) = node::connect_both(ready(0), ready(1));
    let (raddr, rkey) = b.remote(64);
    a.put(0, &[0xc5; 5000]);
    let op = SendOp::Write { raddr, rkey };
    a.qp.post_send(op, &[a.sge(0, 5000)], 7, SendFlags::SIGNALED).expect("room");
    a.qp.ring();
    let cqe = a.completion(&world);
    assert_eq!(cqe.kind(), CompletionKind::Send, "{spec}: {cqe:?}");
    a.qp.retire(&cqe).expect("of ours");
    assert_eq!(b.get(64, 5001), [&[0xc5; 5000][..], &[0]].concat(), "{spec}");
    a.end();
    b.end();
    for node in 0..2 {
        assert_eq!(world.complaints(node), [""; 0], "{spec}, node {node}");
        world.model(node, |m| assert_eq!((m.census().total(), m.pages().given()), (0, 0), "{spec}"));
    }
}

/// Habits that end it, or that ask for other requests, have tests of their own.
const OTHERS: [&str; 3] = ["ethernet", "grh", "no-atomic-byte-order"];

#[test]
fn every_card_with_every_habit_moves_bytes() {
    for card in Card::ALL {
        let few = format!("{},init-pages=64", card.name);
        write_across(&few.parse().expect("right"));
        for habit in DeviceSpec::habits().filter(|habit| !OTHERS.contains(&habit.as_str())) {
            write_across(&format!("{few},{habit}").parse().expect("right"));
        }
    }
}

#[test]
fn every_card_gets_the_pages_that_it_asks_for() {
    const BLOCKS: usize = 1 << 14;
    for card in Card::ALL {
        let world = World::with_memory([Profile::of(card, 0)], FabricConfig::default(), BLOCKS * 4096);
        let storage = Box::leak(Box::new(HcaStorage::<BLOCKS>::new()));
        let hca = Driver::bring_up(
            world.platform(0),
            world.region(0),
            common::host_region(),
            storage.parts(),
            &Config { log_max_qp: 14, ..config(card) },
        )
        .expect("comes up");
        let all = card.boot_pages + card.init_pages + 16 * card.pages_for_qps;
        assert_eq!(
            (hca.firmware_pages(), world.model(0, |m| m.pages().given())),
            (all, all),
            "{}",
            card.name
        );
        hca.tear_down().expect("torn down");
        assert_eq!(world.complaints(0), [""; 0], "{}", card.name);
    }
}

#[test]
fn every_card_says_what_it_is() {
    for card in Card::ALL {
        let spec: DeviceSpec = format!("{},init-pages=64", card.name).parse().expect("right");
        let world = pair(&spec);
        let hca = world.ready_with(0, &config(card));
        let (major, minor, sub_minor) = hca.firmware_version();
        assert_eq!((major.into(), minor.into(), sub_minor.into()), card.firmware);
        world.model(0, |m| {
            let mut id = [0; 4];
            m.config_read(0, &mut id);
            assert_eq!(id, (u32::from(card.device_id) << 16 | 0x15b3).to_le_bytes());
        });
        assert_eq!(Platform::bar(hca.platform()).len(), card.bar_size());
    }
}

#[test]
fn what_a_card_cannot_do_is_known() {
    for card in Card::ALL {
        let spec = |habit: &str| format!("{},init-pages=64,{habit}", card.name).parse::<DeviceSpec>();
        let world = pair(&spec("ethernet").expect("right"));
        assert_eq!(world.bring_up(0, &config(card)).err(), Some(Error::NotInfiniBand));
        let world = pair(&spec("grh").expect("right"));
        assert!(world.ready_with(0, &config(card)).port().expect("a port").grh_required);
        let world = pair(&spec("no-atomic-byte-order").expect("right"));
        assert!(!world.ready_with(0, &config(card)).caps().atomic);
    }
}

/// Poll until firmware's wishes are met.
fn live(world: &Rc<World>, hca: &mut Driver) {
    for _ in 0..100 {
        let _ = hca.poll(Instant::from_nanos(world.now()));
        world.pass(SECOND / 100);
    }
}

#[test]
fn commands_complete_out_of_order_and_are_the_same_again() {
    let spec: DeviceSpec = "cx-5,command-time=1us..50ms".parse().expect("right");
    let took = |seed: u64| {
        let world = pair(&spec.clone().seeded(seed));
        let hca = world.ready_with(0, &config(spec.card()));
        drop(hca);
        world.now()
    };
    assert_eq!(took(3), took(3));
    assert_ne!(took(3), took(4));
}

#[test]
fn another_function_s_pages_come_and_go() {
    let spec: DeviceSpec = "cx-5,other-function=3:40,other-function=9:1".parse().expect("right");
    let world = pair(&spec);
    let mut hca = world.ready_with(0, &config(spec.card()));
    live(&world, &mut hca);
    let given =
        |function| world.model(0, |m| m.pages_of(function).map(hca_model::pages::FirmwarePages::given));
    assert_eq!((given(3), given(9)), (Some(40), Some(1)));
    let own = world.model(0, |m| m.pages().given());
    // One ends, the other grows.
    world.model(0, |m| m.habits_mut().other_functions = vec![(3, 0), (9, 5)]);
    live(&world, &mut hca);
    assert_eq!((given(3), given(9)), (Some(0), Some(5)));
    assert_eq!(hca.firmware_pages(), own + 5);
    hca.tear_down().expect("torn down");
    assert_eq!(world.complaints(0), [""; 0]);
    assert_eq!(given(9), Some(0));
}
